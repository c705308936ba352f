"""What `ServerConnection.next_event` returns: what a frame of the client means to those who serve its requests.

A request that is to be served is an event itself: its `Stream`, with its whole `body`, or before it where
`streams_body`. (An object around it would cost a small call 4 % more.) Most frames mean nothing to those who serve
requests (SETTINGS, PING, a part of a body that is served whole), and give no event.
"""

from typing import Generic, TypeAlias, TypeVar

from tablegate.gateway.http.h2.stream import Stream

StreamT = TypeVar("StreamT", bound=Stream)


class _OfStream(Generic[StreamT]):
    __slots__ = ("stream",)

    def __init__(self, stream: StreamT) -> None:
        self.stream = stream


class DataReceived(_OfStream[StreamT]):
    """The body of a request that `streams_body` has gone on, or has ended."""

    __slots__ = ()


class HeadersTooLarge(_OfStream[StreamT]):
    """A request is to be refused unread, by status 431: its fields are larger than `HEADER_BYTES_MAX`."""

    __slots__ = ()


class StreamEnded(_OfStream[StreamT]):
    """A stream has ended before its answer: the client reset it, or we did because of an error of the client."""

    __slots__ = ()


class WindowUpdated(Generic[StreamT]):
    """The client accepts more, or less: on `stream`; on the whole connection where it is None."""

    __slots__ = ("stream",)

    def __init__(self, stream: StreamT | None) -> None:
        self.stream = stream


class InitialWindowChanged:
    """The client accepts more, or less, on each of its streams."""


class ShutdownAcknowledged:
    """The client has read that the connection is going to end: what it sends from now on, it sends knowingly."""


class GoawayReceived:
    """The client opens no more streams."""


class NeedData:
    """There is no whole frame: `receive_data` must be called first."""


NEED_DATA = NeedData()

Event: TypeAlias = (
    StreamT
    | DataReceived[StreamT]
    | HeadersTooLarge[StreamT]
    | StreamEnded[StreamT]
    | WindowUpdated[StreamT]
    | InitialWindowChanged
    | ShutdownAcknowledged
    | GoawayReceived
    | NeedData
)
