"""An HTTP/2 stream: its states, the body that arrives on it, and what is said of it to those who serve requests.

States (RFC 9113, 5.1), what may happen in each, and which error else:

                     RECEIVE_HEADERS
               IDLE ------------------> OPEN
                                       /    \\
                   RECEIVE_END_STREAM /      \\ SEND_END_STREAM
                                     v        v
                   HALF_CLOSED_REMOTE          HALF_CLOSED_LOCAL
                                     \\        /
                      SEND_END_STREAM \\      / RECEIVE_END_STREAM
                                       v    v
                                       CLOSED

RECEIVE_RST_STREAM leads to CLOSED from everywhere but IDLE, SEND_RST_STREAM to RESET. RESET is the RFC's "closed" after
our RST_STREAM, and the state of a stream that our GOAWAY excluded: what arrives on it was sent before the client knew,
so it is late, and not wrong. The two reserved states are missing since a server that pushes nothing never sees them.

An event of ours (SEND_…) that is not in `TRANSITIONS` is a defect: `AssertionError`. One of the client (RECEIVE_…) is
an error of the stream or of the connection: `REFUSALS` says which. A test walks through all pairs of states and events.

Bodies, and the windows that bound them (RFC 9113, 5.2). Two kinds share a connection's window:

- Uploads, which are served when they are whole. A stream's window is a little larger than the longest body that is
  served, and is widened by padding alone: the body that is longer is seen, and served cut, as `oversize`.
- Streamed bodies, which are served from their headers on and read piece by piece. Their stream's window is widened as
  pieces are read.

The connection's window bounds the bytes that are kept here, of all of its streams. It is widened as bodies are served,
read or thrown away, by quarters of itself, so that WINDOW_UPDATEs are few. When unfinished uploads have used up all of
it, none could ever go on: then the newest are refused (REFUSED_STREAM: clients may send them again), which leaves the
oldest room to end.

Events. A request that is to be served is an event itself: its `Stream`, with its whole `body`, or before it where
`streams_body`. (An object around it would cost a small call 4 % more.) Most frames mean nothing to those who serve
requests (SETTINGS, PING, a part of a body that is served whole), and give no event.

Sources: RFC 9113, 5.1; `H2ConnectionStateMachine` of hyper-h2 and `_state.py` of h11 have their tables so, too.
"""

from collections.abc import Callable, Mapping
from enum import IntEnum, auto
from typing import Any, Generic, TypeAlias, TypeVar

from tablegate.gateway.http.h2.frames import (
    CANCEL,
    FLOW_CONTROL_ERROR,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    STREAM_CLOSED,
    WINDOW_BYTES,
    Http2ConnectionError,
    Http2StreamError,
    window_update,
)

CONNECTION_BYTES_MIN = 1 << 20  # of a connection's window: four bodies of the longest gRPC request fit into it
SLACK_BYTES = 1_024  # a stream's window is so much more than a body may have, so that longer ones are seen


Request = tuple[bytes, bytes, dict[bytes, bytes]]
"""Method, target, headers."""


class StreamState(IntEnum):
    """As in RFC 9113, 5.1. Integers, because their hash costs a fifth of that of other enums."""

    IDLE = auto()
    OPEN = auto()
    HALF_CLOSED_LOCAL = auto()
    HALF_CLOSED_REMOTE = auto()
    RESET = auto()
    CLOSED = auto()


class StreamEvent(IntEnum):
    """What happens to a stream. PRIORITY is not among them: it is allowed in every state, and changes none."""

    RECEIVE_HEADERS = auto()
    RECEIVE_DATA = auto()
    RECEIVE_END_STREAM = auto()
    RECEIVE_RST_STREAM = auto()
    RECEIVE_WINDOW_UPDATE = auto()
    SEND_HEADERS = auto()
    SEND_DATA = auto()
    SEND_END_STREAM = auto()
    SEND_RST_STREAM = auto()


IDLE, OPEN, HALF_CLOSED_LOCAL, HALF_CLOSED_REMOTE, RESET, CLOSED = StreamState
(
    RECEIVE_HEADERS,
    RECEIVE_DATA,
    RECEIVE_END_STREAM,
    RECEIVE_RST_STREAM,
    RECEIVE_WINDOW_UPDATE,
    SEND_HEADERS,
    SEND_DATA,
    SEND_END_STREAM,
    SEND_RST_STREAM,
) = StreamEvent

TRANSITIONS: Mapping[tuple[StreamState, StreamEvent], StreamState] = {
    (IDLE, RECEIVE_HEADERS): OPEN,
    #
    (OPEN, RECEIVE_HEADERS): OPEN,  # trailers
    (OPEN, RECEIVE_DATA): OPEN,
    (OPEN, RECEIVE_END_STREAM): HALF_CLOSED_REMOTE,
    (OPEN, RECEIVE_RST_STREAM): CLOSED,
    (OPEN, RECEIVE_WINDOW_UPDATE): OPEN,
    (OPEN, SEND_HEADERS): OPEN,
    (OPEN, SEND_DATA): OPEN,
    (OPEN, SEND_END_STREAM): HALF_CLOSED_LOCAL,
    (OPEN, SEND_RST_STREAM): RESET,
    # We reset a stream as soon as it is answered, so that nothing is received here; the RFC would allow it.
    (HALF_CLOSED_LOCAL, RECEIVE_HEADERS): HALF_CLOSED_LOCAL,
    (HALF_CLOSED_LOCAL, RECEIVE_DATA): HALF_CLOSED_LOCAL,
    (HALF_CLOSED_LOCAL, RECEIVE_END_STREAM): CLOSED,
    (HALF_CLOSED_LOCAL, RECEIVE_RST_STREAM): CLOSED,
    (HALF_CLOSED_LOCAL, RECEIVE_WINDOW_UPDATE): HALF_CLOSED_LOCAL,
    (HALF_CLOSED_LOCAL, SEND_RST_STREAM): RESET,
    #
    (HALF_CLOSED_REMOTE, RECEIVE_RST_STREAM): CLOSED,
    (HALF_CLOSED_REMOTE, RECEIVE_WINDOW_UPDATE): HALF_CLOSED_REMOTE,
    (HALF_CLOSED_REMOTE, SEND_HEADERS): HALF_CLOSED_REMOTE,
    (HALF_CLOSED_REMOTE, SEND_DATA): HALF_CLOSED_REMOTE,
    (HALF_CLOSED_REMOTE, SEND_END_STREAM): CLOSED,
    (HALF_CLOSED_REMOTE, SEND_RST_STREAM): RESET,
    #
    (RESET, RECEIVE_HEADERS): RESET,
    (RESET, RECEIVE_DATA): RESET,
    (RESET, RECEIVE_END_STREAM): RESET,
    (RESET, RECEIVE_RST_STREAM): RESET,
    (RESET, RECEIVE_WINDOW_UPDATE): RESET,
    # Frames that crossed with the end of a stream say nothing any more; DATA is refused, as its bytes count in windows.
    (CLOSED, RECEIVE_RST_STREAM): CLOSED,
    (CLOSED, RECEIVE_WINDOW_UPDATE): CLOSED,
    (CLOSED, SEND_RST_STREAM): RESET,
}

_NEVER_OPEN = Http2ConnectionError(PROTOCOL_ERROR, "frame on a stream that was never open")
_NOT_OPEN = Http2ConnectionError(PROTOCOL_ERROR, "DATA on a stream that is not open")
_STREAM_CLOSED = Http2StreamError(STREAM_CLOSED)

REFUSALS: Mapping[tuple[StreamState, StreamEvent], Http2ConnectionError | Http2StreamError] = {
    (IDLE, RECEIVE_DATA): _NOT_OPEN,
    (IDLE, RECEIVE_END_STREAM): _NOT_OPEN,
    (IDLE, RECEIVE_RST_STREAM): _NEVER_OPEN,
    (IDLE, RECEIVE_WINDOW_UPDATE): _NEVER_OPEN,
    (HALF_CLOSED_REMOTE, RECEIVE_HEADERS): _STREAM_CLOSED,
    (HALF_CLOSED_REMOTE, RECEIVE_DATA): _STREAM_CLOSED,
    (HALF_CLOSED_REMOTE, RECEIVE_END_STREAM): _STREAM_CLOSED,
    (CLOSED, RECEIVE_HEADERS): Http2ConnectionError(STREAM_CLOSED, "HEADERS on a closed stream"),
    (CLOSED, RECEIVE_DATA): _STREAM_CLOSED,
    (CLOSED, RECEIVE_END_STREAM): _STREAM_CLOSED,
}


def next_state(state: StreamState, event: StreamEvent) -> StreamState:
    """Return the state after an event; raise `Http2ConnectionError` or `Http2StreamError` where it is not allowed."""
    after = TRANSITIONS.get((state, event))
    if after is None:
        raise _error_of(state, event)
    return after


def _error_of(state: StreamState, event: StreamEvent) -> Exception:
    refusal = REFUSALS.get((state, event))
    if refusal is None:
        return AssertionError(f"{event.name} of a stream that is {state.name}")
    # A new one each time: an exception that is kept would gather the tracebacks of all who were refused.
    if isinstance(refusal, Http2ConnectionError):
        return Http2ConnectionError(refusal.code, refusal.text)
    return Http2StreamError(refusal.code)


class RequestBody:
    """A body that is arriving; see `ReceiveWindows`."""

    __slots__ = ("data", "expected", "received", "silent_since", "since", "unacknowledged")

    def __init__(self, expected: int | None) -> None:
        self.data: bytearray | None = bytearray()  # not served or read yet; None: nothing more of it is wanted
        self.expected = expected  # bytes, by its content-length
        self.received = 0  # bytes
        self.unacknowledged = 0  # bytes read, or padding, for which the stream's window was not widened yet
        self.since: float | None = None  # by the clock of `tick`, as what follows
        self.silent_since: float | None = None


class Stream:
    """A request, and the state of its stream.

    `body` is the whole body, or its beginning where `oversize`. `streams_body`: the request is served before its body
    is there, which is read piece by piece. `owner`: as given to `ServerConnection`, which alone uses `arriving`.
    """

    __slots__ = (
        "arriving",
        "body",
        "headers",
        "method",
        "oversize",
        "owner",
        "send_window",
        "state",
        "stream_id",
        "streams_body",
        "target",
    )

    def __init__(self, owner: Any, stream_id: int, state: StreamState, request: Request, send_window: int) -> None:
        self.owner = owner
        self.stream_id = stream_id
        self.state = state
        self.method: bytes
        self.target: bytes
        self.headers: Mapping[bytes, bytes]
        self.method, self.target, self.headers = request
        self.send_window = send_window  # bytes of DATA that the client accepts; negative after it shrank its windows
        self.body = b""
        self.oversize = False
        self.streams_body = False
        self.arriving: RequestBody | None = None  # None where the body was there with the headers, or has ended

    def move(self, event: StreamEvent) -> None:
        """Change the state as `TRANSITIONS` says; raise as `next_state`."""
        after = TRANSITIONS.get((self.state, event))
        if after is None:
            raise _error_of(self.state, event)
        self.state = after


class ReceiveWindows:
    """The windows of one connection, and the bodies that count in them.

    `output` takes the WINDOW_UPDATEs. `refuse` resets a stream, by its number and with an error code.
    """

    def __init__(
        self, body_bytes_max: int, output: Callable[[bytes], object], refuse: Callable[[int, int], object]
    ) -> None:
        self.body_bytes_max = body_bytes_max
        self.stream_size = max(WINDOW_BYTES, body_bytes_max + SLACK_BYTES)
        self.size = max(CONNECTION_BYTES_MIN, self.stream_size)
        self.window = self.size  # of the connection: what the client may still send
        self.widen_below = self.size - (self.size >> 2)  # `widen` does nothing while the window is larger
        self.kept = 0  # bytes that are not served or read yet
        self.shut = False  # nothing more is wanted than what the client may send already
        self._uploads: dict[int, Stream] = {}  # oldest first
        self._output = output
        self._refuse = refuse

    def begin(self, stream: Stream, expected: int | None) -> None:
        """Wait for the body of a request."""
        stream.arriving = RequestBody(expected)
        if not stream.streams_body:
            self._uploads[stream.stream_id] = stream

    def add(self, stream: Stream, data: bytes) -> bool:
        """Add bytes to a body that goes on; return whether the request of an upload is to be served now, `oversize`.

        Raise `Http2StreamError` where they are more than its window, or than its content-length says.
        """
        body = stream.arriving
        if body is None or (buffer := body.data) is None:
            return False
        size = len(data)
        buffer += data
        self.kept += size
        body.received = received = body.received + size
        if body.expected is not None and received > body.expected:
            raise Http2StreamError(PROTOCOL_ERROR)
        if stream.streams_body:
            if len(buffer) + body.unacknowledged > self.stream_size:
                raise Http2StreamError(FLOW_CONTROL_ERROR)
            return False
        # An upload beyond its window gets no FLOW_CONTROL_ERROR: "too large" as an answer tells its client more.
        body.silent_since = None
        if received <= self.body_bytes_max:
            return False
        stream.oversize = True
        stream.body = bytes(buffer)
        self.discard(stream)
        return True

    def end(self, stream: Stream, data: bytes) -> bool:
        """Add the last bytes of a body; return as `add`, and raise also where its content-length says more."""
        body = stream.arriving
        if body is None or body.data is None:
            return False
        received = body.received + len(data)
        if body.expected is not None and received != body.expected:
            raise Http2StreamError(PROTOCOL_ERROR)
        if stream.streams_body:
            return self.add(stream, data)
        stream.oversize = received > self.body_bytes_max
        stream.body = b"".join((body.data, data)) if body.received else data
        self.kept -= body.received
        stream.arriving = None
        del self._uploads[stream.stream_id]
        return True

    def read(self, stream: Stream) -> bytes:
        """Return what has arrived of a streamed body since the last time, and let the client send as much again."""
        body = stream.arriving
        if body is None or not body.data:
            return b""
        data = bytes(body.data)
        body.data.clear()
        self.kept -= len(data)
        body.unacknowledged += len(data)
        if body.unacknowledged >= self.stream_size >> 2 and stream.state is OPEN:
            self._output(window_update(stream.stream_id, body.unacknowledged))
            body.unacknowledged = 0
        self.widen()
        return data

    def give_back(self, stream: Stream, size: int) -> None:
        """Widen a stream's window by its padding, which nobody reads: soon, as an upload has few bytes to spare."""
        body = stream.arriving
        if body is None or body.data is None:
            return
        body.unacknowledged += size
        if body.unacknowledged >= SLACK_BYTES >> 1:
            self._output(window_update(stream.stream_id, body.unacknowledged))
            body.unacknowledged = 0

    def keep(self, stream: Stream) -> None:
        """Count the whole body of a request that is served later."""
        self.kept += len(stream.body)

    def release(self, stream: Stream) -> None:
        """Count it no more."""
        self.kept -= len(stream.body)

    def discard(self, stream: Stream) -> None:
        """Keep nothing of a body any more."""
        body = stream.arriving
        if body is not None and body.data is not None:
            self.kept -= len(body.data)
            body.data = None
            self._uploads.pop(stream.stream_id, None)

    def widen(self) -> None:
        """Let the client send as many bytes over the connection as are not kept.

        Where it has used up its window, and what is kept fills the rest, uploads are refused, the newest first, until
        one can go on. Where the windows are `shut`, none can, and each call refuses one.
        """
        if self.shut:
            if self.window <= SLACK_BYTES and self._uploads:
                self._refuse(next(reversed(self._uploads)), REFUSED_STREAM)
            return
        free = self.size - self.window - self.kept
        enough = self.size >> 2
        if free < enough and self.window < enough:
            while free < enough and self.window <= SLACK_BYTES and len(self._uploads) > 1:
                self._refuse(next(reversed(self._uploads)), REFUSED_STREAM)
                free = self.size - self.window - self.kept
            enough = 1
        if free >= enough:
            self._output(window_update(0, free))
            self.window += free

    def end_slow(self, now: float, silent_s: float, whole_s: float) -> None:
        """Reset the uploads of which nothing came for `silent_s` seconds, or that take longer than `whole_s`."""
        for stream in list(self._uploads.values()):
            body = stream.arriving
            assert body is not None, "an upload has a body that is arriving"
            body.since = body.since or now
            body.silent_since = body.silent_since or now
            if now - body.silent_since >= silent_s or now - body.since >= whole_s:
                self._refuse(stream.stream_id, CANCEL)


# Events: what `ServerConnection.next_event` returns.

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


CONNECTION_WINDOW_UPDATED = WindowUpdated[Any](None)


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
