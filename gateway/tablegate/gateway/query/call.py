"""The seams of queries: the call that a protocol hands over, and Kafka, as far as a query has to ask it.

Request bytes and a call go in, bytes or a stream of bytes come out. A handler knows nothing of gRPC, a protocol nothing
of tables. Errors are `QueryError`s.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tablegate.gateway.access.views import View

Fields = tuple[tuple[bytes, bytes], ...]
"""Names, lower case, and values."""

AtTurn = Callable[[Callable[[], None]], None]
"""Calls what it is given, once, now or later on the event loop."""


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

    @property
    def view(self) -> View | None:
        """Return what the client may see of the table; None: all of it. Of a forwarded call its token says it."""

    def view_of(self, path: str) -> View | None:
        """Return what the client sees of the table of another query; raise `NotAllowed`."""

    def offer(self, message: bytes) -> bool:
        """Send a message of the stream past its handler, if that can be at once; else return False and send nothing.

        Only while the handler waits for something of its own: then all it has yielded is sent.
        """

    @property
    def parks(self) -> bool:
        """Return whether its handler may raise `Parked`: whoever called it goes on with what that has."""

    async def turn(self) -> None:
        """Return when the handler may use the event loop for some milliseconds: one that does so again and again waits.

        Streams have waited before each message.
        """

    @property
    def at_turn(self) -> AtTurn:
        """Return what calls something when `turn` would return, for who has no task. All calls of a process have one.

        It may call it now.
        """

    @property
    def at_turn_for_many(self) -> AtTurn:
        """Return the like for who sends to many streams: it does not wait behind all of them for each of its turns."""

    def set_trailer(self, trailer: Fields) -> None:
        """Send these fields after the answer; the last call counts."""


class ParkedStream(Protocol):
    """A stream that has no task, as it waits for something of its own and has nothing to send meanwhile.

    It is either gone on with, by `messages`, or left.
    """

    def wait(self, wake: Callable[[], None]) -> None:
        """Wait, and call `wake` once when it is to go on; messages are offered to its call meanwhile."""

    def messages(self) -> AsyncIterator[bytes]:
        """Yield the messages that follow; raise as the handler did, `Parked` among it."""

    def leave(self) -> None:
        """End it."""


class Parked(Exception):
    """A stream gives up its task, which takes much more than all else of it. All that was yielded is sent."""

    def __init__(self, stream: ParkedStream) -> None:
        super().__init__()
        self.stream = stream


class ForView(Exception):
    """Another gateway asks for a view of the table, and not for all of it."""


Answer = bytes | Coroutine[Any, Any, bytes]
"""The bytes where the answer is there at once, so that the common read costs no task; else a coroutine that waits.

A coroutine that nobody awaits is to be closed (`close()`); one that has not begun holds nothing.
"""
UnaryHandler = Callable[[bytes, Call], Answer]
StreamHandler = Callable[[bytes, Call], AsyncIterator[bytes]]
DuplexHandler = Callable[[AsyncIterator[bytes], Call], AsyncIterator[bytes]]


@dataclass(frozen=True, slots=True)
class UnaryMethod:
    """A method with one answer. A call without a deadline gets the default one; a longer one is cut to the maximum.

    `checks_forward_token`: before it waits for anything, the handler refuses what says that it is forwarded and is not.
    `handler_for`: the handler of a call for a view of the table; where `handler` finds out by its forward token that it
    is for one, it raises `ForView`.
    """

    handler: UnaryHandler
    default_timeout_s: float
    max_timeout_s: float
    checks_forward_token: bool = False
    handler_for: Callable[[Call], UnaryHandler] | None = None


@dataclass(frozen=True, slots=True)
class StreamMethod:
    """A method whose answer is a stream, for as long as its client wants.

    `checks_forward_token`: as of `UnaryMethod`. `is_bulk`: it sends as much as it can, so that it pays to compress it.
    """

    handler: StreamHandler
    checks_forward_token: bool = False
    is_bulk: bool = False


@dataclass(frozen=True, slots=True)
class DuplexMethod:
    """A method with a stream each way. Over HTTP/1.1 the client sends all, then reads."""

    handler: DuplexHandler


Method = UnaryMethod | StreamMethod | DuplexMethod
Methods = Mapping[str, Method]
"""Methods by path, such as "/examples.ratings.v1.RatingsService/GetRating"."""


class EndsUnknown(Exception):
    """Kafka, or who asks it, did not answer; the message says who."""


class TopicEnds(Protocol):
    """Asks Kafka how far its topics are."""

    async def ends(self, topic: str) -> Mapping[int, int]:
        """Return the end offset of each partition, read after the call was made; raise `EndsUnknown`."""
