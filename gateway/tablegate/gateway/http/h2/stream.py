"""The life of an HTTP/2 stream (RFC 9113, 5.1): its states, what may happen in each, and which error else.

                     RECEIVE_HEADERS
               IDLE ------------------> OPEN
                                       /    \
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

Sources: RFC 9113, 5.1; `H2ConnectionStateMachine` of hyper-h2 and `_state.py` of h11 have their tables so, too.
"""

from collections.abc import Mapping
from enum import IntEnum, auto
from typing import Any

from tablegate.gateway.http.h2.frames import (
    PROTOCOL_ERROR,
    STREAM_CLOSED,
    Http2ConnectionError,
    Http2StreamError,
)

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
    """A body that is arriving; see `h2.flow_control`."""

    __slots__ = ("data", "expected", "received", "silent_since", "unacknowledged")

    def __init__(self, expected: int | None) -> None:
        self.data: bytearray | None = bytearray()  # not served or read yet; None: nothing more of it is wanted
        self.expected = expected  # bytes, by its content-length
        self.received = 0  # bytes
        self.unacknowledged = 0  # bytes read, for which the stream's window was not widened yet
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
        self.arriving: RequestBody | None = None  # None where the body was there with the headers

    def move(self, event: StreamEvent) -> None:
        """Change the state as `TRANSITIONS` says; raise as `next_state`."""
        after = TRANSITIONS.get((self.state, event))
        if after is None:
            raise _error_of(self.state, event)
        self.state = after
