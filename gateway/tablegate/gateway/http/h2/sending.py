"""The sending half of an HTTP/2 connection: answers, resets and the end, and the streams that are still open.

Frames go into `output`, in their order; whoever does the I/O empties it. `send_data` takes what fits the windows,
`send_window` of the connection and of the stream. In which order streams that wait have their turns is the caller's
business.

When an answer ends before its request, the rest of the request is of no use: its stream is reset with NO_ERROR, as
RFC 9113, 8.1 has it. What the client sent meanwhile is late, and not wrong, so the latest such streams are remembered.
"""

from typing import Generic

from tablegate.gateway.http.h2 import frames
from tablegate.gateway.http.h2.budget import Budget
from tablegate.gateway.http.h2.events import StreamT
from tablegate.gateway.http.h2.flow_control import ReceiveWindows
from tablegate.gateway.http.h2.frames import (
    DATA,
    END_STREAM,
    FRAME_BYTES_MAX,
    NO_ERROR,
    PING,
    WINDOW_BYTES,
    WINDOW_MAX,
    pack_frame_header,
)
from tablegate.gateway.http.h2.stream import (
    CLOSED,
    HALF_CLOSED_LOCAL,
    IDLE,
    RECEIVE_RST_STREAM,
    RESET,
    SEND_DATA,
    SEND_END_STREAM,
    SEND_HEADERS,
    SEND_RST_STREAM,
    TRANSITIONS,
    StreamEvent,
    StreamState,
)

RESET_STREAMS_MAX = 1_000  # remembered as reset, as many as can be open: a client may have sent to each of them
SHUTDOWN_PING = b"draining"
SENDING_STATES = frozenset(state for state, event in TRANSITIONS if event is SEND_DATA)


class SendingHalf(Generic[StreamT]):
    """What a server sends. Each method that sends returns how many bytes it added to `output`.

    `streams`: by their number, those that are neither answered nor reset. `send_window`: bytes of DATA that the client
    accepts on all streams together.
    """

    def __init__(self, body_bytes_max: int) -> None:
        self.output: list[bytes | memoryview] = []
        self.streams: dict[int, StreamT] = {}
        self.send_window = WINDOW_BYTES
        self.budget = Budget()
        self.windows = ReceiveWindows(body_bytes_max, self.output.append, self.reset_stream)
        self.last_stream_id = 0  # the newest stream that the client opened
        self.last_allowed = WINDOW_MAX  # by our GOAWAY
        self._reset: dict[int, None] = {}  # the latest streams that we reset, oldest first

    def send_headers(self, stream: StreamT, block: bytes, *, end_stream: bool = False) -> int:
        """Send the headers of an answer, or its trailers, which end it."""
        stream.move(SEND_HEADERS)
        data = frames.header_frames(block, stream.stream_id, END_STREAM if end_stream else 0)
        self.output.append(data)
        return len(data) + (self._end_stream(stream) if end_stream else 0)

    def send_data(self, stream: StreamT, data: bytes | memoryview, *, end_stream: bool = False) -> int:
        """Send a piece of a body, in as many frames as it needs; windows and state must allow it.

        DATA changes no state, so that nothing moves here but at the end.
        """
        size = len(data)
        flags = END_STREAM if end_stream else 0
        if size <= FRAME_BYTES_MAX:
            self.output += (pack_frame_header(size << 8 | DATA, flags, stream.stream_id), data)
        else:
            view = memoryview(data)
            for at in range(0, size, FRAME_BYTES_MAX):
                piece = view[at : at + FRAME_BYTES_MAX]
                last = at + FRAME_BYTES_MAX >= size
                header = pack_frame_header(len(piece) << 8 | DATA, flags if last else 0, stream.stream_id)
                self.output += (header, piece)
        stream.send_window -= size
        self.send_window -= size
        self.budget.data_frames += 1
        if end_stream:
            size += self._end_stream(stream)
        return size

    def _end_stream(self, stream: StreamT) -> int:
        """Note that an answer has ended; reset its stream where the client still sends: nobody will read it."""
        stream.move(SEND_END_STREAM)
        self.budget.answers += 1
        del self.streams[stream.stream_id]
        self.windows.discard(stream)
        if stream.state is not HALF_CLOSED_LOCAL:
            return 0
        stream.move(SEND_RST_STREAM)
        return self._send_rst_stream(stream.stream_id, NO_ERROR)

    def reset_stream(self, stream_id: int, code: int) -> int:
        """Reset a stream that is open, or refuse one."""
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._remove(stream, SEND_RST_STREAM)
        return self._send_rst_stream(stream_id, code)

    def _send_rst_stream(self, stream_id: int, code: int) -> int:
        data = frames.rst_stream(stream_id, code)
        self.output.append(data)
        self._reset[stream_id] = None
        if len(self._reset) > RESET_STREAMS_MAX:
            del self._reset[next(iter(self._reset))]
        return len(data)

    def _remove(self, stream: StreamT, event: StreamEvent) -> None:
        """End a stream without its answer."""
        stream.move(event)
        del self.streams[stream.stream_id]
        self.windows.discard(stream)

    def _state_of(self, stream_id: int) -> StreamState:
        """Return the state of a stream that is not in `streams`; those of even numbers would be ours, and are idle."""
        if stream_id in self._reset:
            return RESET
        if not stream_id & 1:
            return IDLE
        if stream_id > self.last_allowed:
            return RESET
        return IDLE if stream_id > self.last_stream_id else CLOSED

    # The end of the connection.

    def send_ping(self, payload: bytes) -> None:
        """Send a PING, of 8 bytes."""
        self.output.append(frames.frame(PING, 0, 0, payload))

    def announce_shutdown(self) -> None:
        """Tell the client that it soon may open no more streams; `ShutdownAcknowledged` follows (RFC 9113, 6.8).

        A GOAWAY alone would refuse the requests that are on their way.
        """
        self.output.append(frames.goaway(WINDOW_MAX, NO_ERROR))
        self.send_ping(SHUTDOWN_PING)

    def refuse_new_streams(self) -> bool:
        """Tell the client that it may open no more streams; return False where it knew."""
        if self.last_allowed != WINDOW_MAX:
            return False
        self.last_allowed = self.last_stream_id
        self.send_goaway(NO_ERROR)
        return True

    def send_goaway(self, code: int, text: str = "") -> None:
        """Tell the client why the connection ends."""
        self.output.append(frames.goaway(self.last_stream_id, code, text))

    def end_streams(self) -> list[StreamT]:
        """End all streams, as when the client had reset them, since the connection is gone; return them."""
        streams = list(self.streams.values())
        for stream in streams:
            self._remove(stream, RECEIVE_RST_STREAM)
        return streams
