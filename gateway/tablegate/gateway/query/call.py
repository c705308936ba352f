"""The seam between queries and doors: request bytes and a call in, bytes or a stream of bytes out.

A handler knows nothing of gRPC, a door nothing of tables. Errors are `QueryError`s.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

Fields = tuple[tuple[bytes, bytes], ...]
"""Names, lower case, and values."""


class Call(Protocol):
    """One call, as its handler sees it. A cancelled call cancels its handler's task."""

    def time_left_s(self) -> float | None:
        """Return the seconds left to the call's deadline, 0 when it is over; None without a deadline."""

    @property
    def draining(self) -> bool:
        """Return whether the gateway is going away: streams then end with `ShuttingDown`."""

    @property
    def forwarded(self) -> str | None:
        """Return what the gateway that forwarded the call says of it, signed; None where a client made the call."""

    def offer(self, message: bytes) -> bool:
        """Send a message of the stream past its handler, if that can be at once; else return False and send nothing.

        Only while the handler waits for something of its own: then all it has yielded is sent.
        """

    def set_trailer(self, trailer: Fields) -> None:
        """Send these fields after the answer; the last call counts."""


UnaryHandler = Callable[[bytes, Call], bytes | Awaitable[bytes]]
"""Answers at once where it can, so that the common read costs no task; where it must wait, it returns an awaitable."""
StreamHandler = Callable[[bytes, Call], AsyncIterator[bytes]]
DuplexHandler = Callable[[AsyncIterator[bytes], Call], AsyncIterator[bytes]]


def close_unawaited(answer: Awaitable[bytes]) -> None:
    """Close an answer that nobody will wait for, or Python warns of its coroutine; one that has ended is fine."""
    close = getattr(answer, "close", None)
    if close is not None:
        close()


@dataclass(frozen=True, slots=True)
class UnaryMethod:
    """A method with one answer. A call without a deadline gets the default one; a longer one is cut to the maximum.

    `checks_mark`: before it waits for anything, the handler refuses what says that it is forwarded and is not.
    """

    handler: UnaryHandler
    default_timeout_s: float
    max_timeout_s: float
    checks_mark: bool = False


@dataclass(frozen=True, slots=True)
class StreamMethod:
    """A method whose answer is a stream, for as long as its client wants. `checks_mark`: as of `UnaryMethod`."""

    handler: StreamHandler
    checks_mark: bool = False


@dataclass(frozen=True, slots=True)
class DuplexMethod:
    """A method with a stream each way. Over gRPC only."""

    handler: DuplexHandler


Method = UnaryMethod | StreamMethod | DuplexMethod
Methods = Mapping[str, Method]
"""Methods by path, such as "/examples.ratings.v1.RatingsService/GetRating"."""
