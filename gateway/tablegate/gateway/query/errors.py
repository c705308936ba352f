"""What goes wrong in a query, and the one table that turns it into a status.

An error's class is its reason; its message is one sentence that says what is wrong and what the caller should do. No
message, detail or log line carries a key or a value of a request: only names of fields, tables and topics, and limits.
"""

from collections.abc import Mapping
from typing import ClassVar

from google.protobuf.any_pb2 import Any
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2

from tablegate.gateway.contract.types import Partition
from tablegate.gateway.stores.base import StoredPartition
from tablegate.v1 import errors_pb2

DOMAIN = "tablegate"

STATUS_OF_REASON: Mapping[int, int] = {
    errors_pb2.ERROR_REASON_INVALID_FIELD: code_pb2.INVALID_ARGUMENT,
    errors_pb2.ERROR_REASON_INVALID_PAGE_TOKEN: code_pb2.INVALID_ARGUMENT,
    errors_pb2.ERROR_REASON_INVALID_RESUME_TOKEN: code_pb2.INVALID_ARGUMENT,
    errors_pb2.ERROR_REASON_INVALID_CONSISTENCY_TOKEN: code_pb2.INVALID_ARGUMENT,
    errors_pb2.ERROR_REASON_TOO_MANY_KEYS: code_pb2.INVALID_ARGUMENT,
    errors_pb2.ERROR_REASON_ROW_NOT_FOUND: code_pb2.NOT_FOUND,
    errors_pb2.ERROR_REASON_TABLE_REBUILT: code_pb2.FAILED_PRECONDITION,
    errors_pb2.ERROR_REASON_NOT_CAUGHT_UP: code_pb2.UNAVAILABLE,
    errors_pb2.ERROR_REASON_PARTITION_UNAVAILABLE: code_pb2.UNAVAILABLE,
    errors_pb2.ERROR_REASON_UNTRACKED_SOURCE: code_pb2.INVALID_ARGUMENT,
    errors_pb2.ERROR_REASON_OVERLOADED: code_pb2.RESOURCE_EXHAUSTED,
    errors_pb2.ERROR_REASON_NOT_SERVED: code_pb2.UNIMPLEMENTED,
    errors_pb2.ERROR_REASON_CORRUPT_ROW: code_pb2.DATA_LOSS,
    errors_pb2.ERROR_REASON_SHUTTING_DOWN: code_pb2.UNAVAILABLE,
    errors_pb2.ERROR_REASON_DEADLINE_EXCEEDED: code_pb2.DEADLINE_EXCEEDED,
    errors_pb2.ERROR_REASON_INTERNAL: code_pb2.INTERNAL,
    errors_pb2.ERROR_REASON_STORE_UNAVAILABLE: code_pb2.UNAVAILABLE,
    errors_pb2.ERROR_REASON_REQUEST_TOO_LARGE: code_pb2.RESOURCE_EXHAUSTED,
    errors_pb2.ERROR_REASON_STREAM_EXPIRED: code_pb2.UNAVAILABLE,
    errors_pb2.ERROR_REASON_SLOW_SUBSCRIBER: code_pb2.RESOURCE_EXHAUSTED,
    errors_pb2.ERROR_REASON_FUTURE_OFFSET: code_pb2.OUT_OF_RANGE,
    errors_pb2.ERROR_REASON_FOREIGN_FORWARD: code_pb2.PERMISSION_DENIED,
    errors_pb2.ERROR_REASON_ANSWER_TOO_LARGE: code_pb2.RESOURCE_EXHAUSTED,
    errors_pb2.ERROR_REASON_NOT_AUTHENTICATED: code_pb2.UNAUTHENTICATED,
    errors_pb2.ERROR_REASON_NOT_ALLOWED: code_pb2.PERMISSION_DENIED,
    errors_pb2.ERROR_REASON_LIMIT_EXCEEDED: code_pb2.RESOURCE_EXHAUSTED,
    errors_pb2.ERROR_REASON_INDEX_NOT_BUILT: code_pb2.UNAVAILABLE,
    errors_pb2.ERROR_REASON_INDEX_NOT_UNIQUE: code_pb2.FAILED_PRECONDITION,
}
"""Status code (google.rpc.Code) of every reason but UNSPECIFIED."""


class QueryError(Exception):
    """An answer that is not OK. `retry_after_ms` is set where the same call may do better later."""

    reason: ClassVar[int] = errors_pb2.ERROR_REASON_UNSPECIFIED
    retry_after_ms: int | None = None

    def __init__(self, text: str, **metadata: str) -> None:
        super().__init__(text)
        self.text = text
        self.metadata = metadata

    def details(self) -> list[Message]:
        """Return the details beside ErrorInfo and RetryInfo."""
        return []


class PeerError(QueryError):
    """What another gateway said, as it came: of any reason, also of one that only a newer gateway knows."""

    def __init__(self, status: status_pb2.Status) -> None:
        super().__init__(status.message)
        self.status = status
        retry = error_details_pb2.RetryInfo()
        for detail in status.details:
            if detail.Unpack(retry):
                self.retry_after_ms = retry.retry_delay.ToMilliseconds()


def _bad_request(field: str, text: str) -> list[Message]:
    violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=text)
    return [error_details_pb2.BadRequest(field_violations=[violation])]


class InvalidField(QueryError):
    """A request field has no allowed value; `field` is its path, "" for the whole request."""

    reason = errors_pb2.ERROR_REASON_INVALID_FIELD

    def __init__(self, field: str, text: str) -> None:
        super().__init__(f'field "{field}": {text}' if field else text)
        self.field = field
        self.description = text

    def details(self) -> list[Message]:
        """Return a BadRequest that names the field."""
        return _bad_request(self.field, self.description)


class InvalidPageToken(QueryError):
    """The page token is not one this query made for these params: start over at the first page."""

    reason = errors_pb2.ERROR_REASON_INVALID_PAGE_TOKEN


class InvalidResumeToken(QueryError):
    """The resume token is not one this query made for these params: start over without a token."""

    reason = errors_pb2.ERROR_REASON_INVALID_RESUME_TOKEN


def resume_token_refused(fault: str) -> QueryError:
    """Return the error of a resume token, from what is wrong with it."""
    return InvalidResumeToken(f"the resume token {fault}; start over without it")


class InvalidConsistencyToken(QueryError):
    """The consistency token is not of this table: read without it."""

    reason = errors_pb2.ERROR_REASON_INVALID_CONSISTENCY_TOKEN


class TooManyKeys(QueryError):
    """More keys than a batch may have: split it."""

    reason = errors_pb2.ERROR_REASON_TOO_MANY_KEYS

    def __init__(self, count: int, max_keys: int) -> None:
        super().__init__(f"{count} keys are more than the {max_keys} of a batch; split it", maxKeys=str(max_keys))


class RowNotFound(QueryError):
    """No row has this key. Said only by a restored replica of the right partition."""

    reason = errors_pb2.ERROR_REASON_ROW_NOT_FOUND

    def __init__(self, table: str, row_type: str) -> None:
        super().__init__(f'table "{table}" has no row with this key', table=table)
        self._resource = error_details_pb2.ResourceInfo(
            resource_type=row_type, resource_name=table, description="no row has the key that was asked for"
        )

    def details(self) -> list[Message]:
        """Return a ResourceInfo that names the row's type and the table."""
        return [self._resource]


LOST_RECORDS = "lost records that the token's answer had"


class TableRebuilt(QueryError):
    """What the token was made from is gone: start over without the token."""

    reason = errors_pb2.ERROR_REASON_TABLE_REBUILT

    def __init__(self, table: str, what: str = "has a new generation since the token was made") -> None:
        super().__init__(f'table "{table}" {what}; start over without it', table=table)


class NotCaughtUp(QueryError):
    """The replica did not become fresh enough in time: try again, or ask for less."""

    reason = errors_pb2.ERROR_REASON_NOT_CAUGHT_UP
    retry_after_ms = 100

    def __init__(self, table: str, partition: int, text: str, *, behind: StoredPartition | None = None) -> None:
        self.behind = behind  # the partition to wait for, where it is this gateway's
        super().__init__(
            f'table "{table}" partition {partition} is not fresh enough: {text}; try again, or raise max_wait',
            table=table,
            partition=str(partition),
        )


class PartitionUnavailable(QueryError):
    """No replica serves the partition (or, without one, the table) now: try again later."""

    reason = errors_pb2.ERROR_REASON_PARTITION_UNAVAILABLE
    retry_after_ms = 500

    def __init__(self, table: str, partition: int | None, text: str) -> None:
        where = f'table "{table}"' if partition is None else f'table "{table}" partition {partition}'
        metadata = {"table": table} if partition is None else {"table": table, "partition": str(partition)}
        super().__init__(f"{where} is not served now: {text}; try again later", **metadata)
        self.partition = None if partition is None else Partition(partition)


class GenerationsMixed(PartitionUnavailable):
    """Gateways gave parts of one answer from several generations of the table: try again."""

    def __init__(self, table: str) -> None:
        super().__init__(table, None, "its gateways serve different generations of it for a moment")


class IndexNotBuilt(PartitionUnavailable):
    """No replica has the whole index of the partition yet: try again later."""

    reason = errors_pb2.ERROR_REASON_INDEX_NOT_BUILT

    def __init__(self, table: str, index: str, partition: int) -> None:
        super().__init__(table, partition, f'its index "{index}" is being built')
        self.metadata["index"] = index


class IndexNotUnique(QueryError):
    """Several rows have the values: ask by the table's key, or have the method made a Range."""

    reason = errors_pb2.ERROR_REASON_INDEX_NOT_UNIQUE

    def __init__(self, table: str, index: str) -> None:
        text = f'table "{table}" has several rows with these values of its unique index "{index}"'
        super().__init__(f"{text}; ask by the key, or have the method made a Range", table=table, index=index)


class UntrackedSource(QueryError):
    """The table's writer does not report this source topic or partition: wait by token instead."""

    reason = errors_pb2.ERROR_REASON_UNTRACKED_SOURCE

    def __init__(self, field: str, table: str, topic: str, text: str) -> None:
        super().__init__(f'field "{field}": table "{table}": {text}', table=table, topic=topic)
        self.field = field
        self.description = text

    def details(self) -> list[Message]:
        """Return a BadRequest that names the field."""
        return _bad_request(self.field, self.description)


class FutureOffset(QueryError):
    """The source topic has no record at the offset yet: send one that a producer was acknowledged."""

    reason = errors_pb2.ERROR_REASON_FUTURE_OFFSET

    def __init__(self, table: str, topic: str, source_partition: int) -> None:
        text = f'source topic "{topic}" has no record at this offset of partition {source_partition} yet'
        super().__init__(f'table "{table}": {text}; send one that was acknowledged', table=table, topic=topic)


class ForeignForward(QueryError):
    """The call says that a gateway forwarded it, and none of this cluster did: leave its forward token out."""

    reason = errors_pb2.ERROR_REASON_FOREIGN_FORWARD

    def __init__(self, fault: str) -> None:
        text = f"the token of a forwarded call {fault}"
        super().__init__(f"{text}; give all gateways of a cluster the same token keys, and clocks that agree")


class Overloaded(QueryError):
    """Too many calls or streams: back off. The metadata name the limit."""

    reason = errors_pb2.ERROR_REASON_OVERLOADED
    retry_after_ms = 1_000

    def __init__(self, text: str, limit: str) -> None:
        super().__init__(text, limit=limit)
        self.limit = limit


class RequestTooLarge(QueryError):
    """The request is longer than the gateway takes: split it."""

    reason = errors_pb2.ERROR_REASON_REQUEST_TOO_LARGE

    def __init__(self, bytes_max: int) -> None:
        super().__init__(f"the request is longer than {bytes_max} bytes; split it", maxBytes=str(bytes_max))


class AnswerTooLarge(QueryError):
    """The answer of another gateway is longer than one hands the other: ask for less at once."""

    reason = errors_pb2.ERROR_REASON_ANSWER_TOO_LARGE

    def __init__(self, bytes_max: int) -> None:
        text = f"the answer has more than the {bytes_max} bytes that one gateway hands another"
        super().__init__(f"{text}; ask for less at once", maxBytes=str(bytes_max))


class NotServed(QueryError):
    """The method, or what the request asks of it, is not served: do not repeat it."""

    reason = errors_pb2.ERROR_REASON_NOT_SERVED


class CorruptRow(QueryError):
    """A stored row is damaged: tell the operator, the store must be made anew."""

    reason = errors_pb2.ERROR_REASON_CORRUPT_ROW


class ShuttingDown(QueryError):
    """The gateway is going away: connect again."""

    reason = errors_pb2.ERROR_REASON_SHUTTING_DOWN
    retry_after_ms = 50

    def __init__(self) -> None:
        super().__init__("the gateway is shutting down; connect again")


class StreamExpired(QueryError):
    """The stream has been open for as long as it may be: subscribe again with its newest token."""

    reason = errors_pb2.ERROR_REASON_STREAM_EXPIRED
    retry_after_ms = 50

    def __init__(
        self, text: str = "the stream was open for as long as one may be; subscribe again with its newest resume token"
    ) -> None:
        super().__init__(text)


class ViewChanged(StreamExpired):
    """What the client of a stream may see has changed: begin anew, without a token."""

    def __init__(self) -> None:
        super().__init__("what you may see has changed, and its tokens are of what you saw; begin anew without a token")


class SlowSubscription(QueryError):
    """The subscriber reads more slowly than its rows change: read faster, or subscribe to less."""

    reason = errors_pb2.ERROR_REASON_SLOW_SUBSCRIBER
    retry_after_ms = 1_000

    def __init__(self, table: str) -> None:
        super().__init__(
            f'table "{table}" changes faster than this subscriber reads; read faster, or subscribe to less', table=table
        )


class DeadlineExceeded(QueryError):
    """The call's time was up before its answer: give it more."""

    reason = errors_pb2.ERROR_REASON_DEADLINE_EXCEEDED

    def __init__(self) -> None:
        super().__init__("the call's time was up before its answer; set a longer deadline")


class Internal(QueryError):
    """A mistake of the gateway; its log has the rest."""

    reason = errors_pb2.ERROR_REASON_INTERNAL

    def __init__(self) -> None:
        super().__init__("the gateway made a mistake; its log has the rest")


class StoreAway(QueryError):
    """The store cannot be read now, it is being made anew: try again later."""

    reason = errors_pb2.ERROR_REASON_STORE_UNAVAILABLE
    retry_after_ms = 500

    def __init__(self) -> None:
        super().__init__("the store cannot be read now, it is being made anew; try again later")


class NotAuthenticated(QueryError):
    """The call has no credential, or a wrong one: show another."""

    reason = errors_pb2.ERROR_REASON_NOT_AUTHENTICATED


class NotAllowed(QueryError):
    """Whoever calls may not do this: ask the operator for the right."""

    reason = errors_pb2.ERROR_REASON_NOT_ALLOWED


class LimitExceeded(QueryError):
    """A limit of the principal is reached: wait, and try again. The metadata name the limit."""

    reason = errors_pb2.ERROR_REASON_LIMIT_EXCEEDED

    def __init__(self, text: str, limit: str, retry_after_ms: int) -> None:
        super().__init__(text, limit=limit)
        self.limit = limit
        self.retry_after_ms = retry_after_ms


def code_of(error: QueryError) -> int:
    """Return the google.rpc.Code of an error."""
    return error.status.code if isinstance(error, PeerError) else STATUS_OF_REASON[error.reason]


def reason_of(error: QueryError) -> str:
    """Return the reason's name as ErrorInfo carries it, such as "INVALID_FIELD"."""
    return errors_pb2.ErrorReason.Name(error.reason).removeprefix("ERROR_REASON_")


def status_of(error: QueryError) -> status_pb2.Status:
    """Return the error as a google.rpc.Status with all its details."""
    if isinstance(error, PeerError):
        return error.status
    details: list[Message] = [
        error_details_pb2.ErrorInfo(reason=reason_of(error), domain=DOMAIN, metadata=error.metadata),
        *error.details(),
    ]
    if error.retry_after_ms is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(error.retry_after_ms)
        details.append(retry)
    status = status_pb2.Status(code=code_of(error), message=error.text)
    for detail in details:
        packed = Any()
        packed.Pack(detail)
        status.details.append(packed)
    return status
