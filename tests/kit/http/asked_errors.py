"""Errors that a suite asks for: any code, any text. Only for a process of its own: `take_any_error` changes it.

The gateway has an error for each thing that can go wrong, and a code for each error. What suites test is how protocols
say them.
"""

from typing import ClassVar

from google.rpc import status_pb2

from tablegate.gateway.http.rpc import connect, grpc
from tablegate.gateway.query import errors
from tablegate.gateway.query.errors import QueryError
from tablegate.v1 import errors_pb2


class AskedError(QueryError):
    """An error that the suite asked for: any code, any details."""

    reason: ClassVar[int] = errors_pb2.ERROR_REASON_INTERNAL

    def __init__(self, status: status_pb2.Status) -> None:
        super().__init__(status.message)
        self.status = status


def _code_of(error: QueryError) -> int:
    return error.status.code if isinstance(error, AskedError) else errors.code_of(error)


def _status_of(error: QueryError) -> status_pb2.Status:
    """Return the status of an error, without the details that a gateway's own have: suites expect none."""
    if isinstance(error, AskedError):
        return error.status
    status = errors.status_of(error)
    status.ClearField("details")
    return status


def take_any_error() -> None:
    """Let the protocols of this process say errors that no query has."""
    for protocol in (connect, grpc):
        protocol.code_of = _code_of  # type: ignore[attr-defined]
        protocol.status_of = _status_of  # type: ignore[attr-defined]
