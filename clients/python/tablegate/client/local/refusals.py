"""What a local table refuses a query with: the reasons, codes and words of a gateway. No I/O."""

import grpc

from tablegate.client.local.freshness import LocalReadError
from tablegate.gateway.query.errors import STATUS_OF_REASON, QueryError
from tablegate.v1.errors_pb2 import ErrorReason

_CODES = {code.value[0]: code for code in grpc.StatusCode}


def refusal_of(error: QueryError) -> LocalReadError:
    """Return what a gateway's code has refused in the form of a local table."""
    code = _CODES[STATUS_OF_REASON[error.reason]]
    return LocalReadError(code, ErrorReason.Name(error.reason).removeprefix("ERROR_REASON_"), error.text)


class InvalidPageToken(LocalReadError):
    """The page token is not one that this table made for this query and these params."""

    def __init__(self) -> None:
        text = "the page token is not of this local table and request; start over at the first page"
        super().__init__(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_PAGE_TOKEN", text)


class InvalidResumeToken(LocalReadError):
    """The resume token is not one that this table made for this query and these params."""

    def __init__(self) -> None:
        text = "the resume token is not of this local table and request; start over without it"
        super().__init__(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_RESUME_TOKEN", text)


class NotServed(LocalReadError):
    """The method is none that a local table answers."""

    def __init__(self, text: str) -> None:
        super().__init__(grpc.StatusCode.UNIMPLEMENTED, "NOT_SERVED", text)


class NotProven(LocalReadError):
    """A local table cannot show that its rows are as fresh as that."""

    def __init__(self, field: str) -> None:
        text = f'a local table cannot show what "{field}" asks for: ask for max_staleness here, or ask a gateway'
        super().__init__(grpc.StatusCode.UNAVAILABLE, "NOT_CAUGHT_UP", text)
