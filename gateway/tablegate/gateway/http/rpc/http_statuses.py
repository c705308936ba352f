"""What errors are in HTTP, the same in every protocol that uses its statuses."""

from collections.abc import Mapping

from google.rpc import code_pb2
from tablegate.gateway.query.call import Fields
from tablegate.gateway.query.errors import QueryError

HTTP_STATUSES: Mapping[int, int] = {
    code_pb2.CANCELLED: 499,
    code_pb2.UNKNOWN: 500,
    code_pb2.INVALID_ARGUMENT: 400,
    code_pb2.DEADLINE_EXCEEDED: 504,
    code_pb2.NOT_FOUND: 404,
    code_pb2.ALREADY_EXISTS: 409,
    code_pb2.PERMISSION_DENIED: 403,
    code_pb2.UNAUTHENTICATED: 401,
    code_pb2.RESOURCE_EXHAUSTED: 429,
    code_pb2.FAILED_PRECONDITION: 400,
    code_pb2.ABORTED: 409,
    code_pb2.OUT_OF_RANGE: 400,
    code_pb2.UNIMPLEMENTED: 501,
    code_pb2.INTERNAL: 500,
    code_pb2.UNAVAILABLE: 503,
    code_pb2.DATA_LOSS: 500,
}
"""HTTP status of each google.rpc.Code but OK, as google/rpc/code.proto has it."""


def retry_after(error: QueryError) -> Fields:
    """Return the field that says when to try again, in whole seconds; nothing where that would be no use."""
    if error.retry_after_ms is None:
        return ()
    return ((b"retry-after", b"%d" % max(1, -(-error.retry_after_ms // 1000))),)
