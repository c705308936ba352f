"""The part of an HTTP/2 connection that a small call never passes: answers in steps, resets, control frames, the end.

Frames go into `output`, in their order; whoever does the I/O empties it. `send_data` takes what fits the windows,
`send_window` of the connection and of the stream. In which order streams that wait have their turns is the caller's
business.

When an answer ends before its request, the rest of the request is of no use: its stream is reset with NO_ERROR, as
RFC 9113, 8.1 has it. What the client sent meanwhile is late, and not wrong, so the latest such streams are remembered.

Control frames (SETTINGS, PING, GOAWAY, PRIORITY, RST_STREAM) carry nothing of a request. `_receive_…_frame` changes
what they change, and returns the event, as those of `ServerConnection` do.
"""

from typing import Generic

from tablegate.gateway.http.h2 import frames
from tablegate.gateway.http.h2.budget import Budget
from tablegate.gateway.http.h2.frames import (
    ACK,
    DATA,
    END_STREAM,
    FLOW_CONTROL_ERROR,
    FRAME_BYTES_MAX,
    FRAME_SIZE_ERROR,
    NO_ERROR,
    PING,
    PROTOCOL_ERROR,
    WINDOW_BYTES,
    WINDOW_MAX,
    Http2ConnectionError,
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
    Event,
    GoawayReceived,
    InitialWindowChanged,
    ReceiveWindows,
    ShutdownAcknowledged,
    StreamEnded,
    StreamEvent,
    StreamState,
    StreamT,
    next_state,
)

RESET_STREAMS_MAX = 1_000  # remembered as reset, as many as can be open: a client may have sent to each of them
SHUTDOWN_PING = b"draining"
SETTINGS_WEIGHT = 10  # as empty frames count: a change of the initial window visits each open stream
SENDING_STATES = frozenset(state for state, event in TRANSITIONS if event is SEND_DATA)


class ConnectionControl(Generic[StreamT]):
    """What lies below `ServerConnection`. Each method that sends returns how many bytes it added to `output`.

    `streams`: by their number, those that are neither answered nor reset. `send_window`: bytes of DATA that the client
    accepts on all streams together.
    """

    def __init__(self, body_bytes_max: int) -> None:
        self.output: list[bytes | memoryview] = []
        self.streams: dict[int, StreamT] = {}
        self.request_bytes = 0  # of large ones that are among `streams`
        self._large_requests: dict[int, int] = {}  # their bytes, by stream
        self.send_window = WINDOW_BYTES
        self.budget = Budget()
        self.windows = ReceiveWindows(body_bytes_max, self.output.append, self.reset_stream)
        self.last_stream_id = 0  # the newest stream that the client opened
        self.last_allowed = WINDOW_MAX  # by our GOAWAY
        self._initial_send_window = WINDOW_BYTES  # of a stream
        self._last_before = 0  # the newest stream when the budget's span began: to end older ones is no attack
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
        self._forget_request(stream.stream_id)
        self.windows.discard(stream)
        if stream.state is not HALF_CLOSED_LOCAL:
            return 0
        stream.move(SEND_RST_STREAM)
        return self._send_rst_stream(stream.stream_id, NO_ERROR)

    def _count_request(self, stream_id: int, size: int) -> None:
        """Count bytes that a stream keeps until it ends."""
        self._large_requests[stream_id] = self._large_requests.get(stream_id, 0) + size
        self.request_bytes += size

    def _forget_request(self, stream_id: int) -> None:
        self.request_bytes -= self._large_requests.pop(stream_id, 0)

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
        self._forget_request(stream.stream_id)
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

    # Control frames.

    def _receive_settings_frame(self, flags: int, stream_id: int, payload: bytes) -> Event[StreamT] | None:
        if stream_id:
            raise Http2ConnectionError(PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & ACK:
            if payload:
                raise Http2ConnectionError(FRAME_SIZE_ERROR, "acknowledgement of SETTINGS with a payload")
            self.budget.count_empty_frame(1, "too many settings")
            return None
        self.budget.count_empty_frame(SETTINGS_WEIGHT, "too many settings")
        values = dict(frames.decode_settings(payload))
        self.output.append(frames.frame(frames.SETTINGS, ACK, 0))
        size = values.get(frames.INITIAL_WINDOW_SIZE)
        if size is None:
            return None
        # Windows of open streams change by as much, and may be negative then (RFC 9113, 6.9.2).
        change = size - self._initial_send_window
        self._initial_send_window = size
        for stream in self.streams.values():
            stream.send_window += change
            if stream.send_window > WINDOW_MAX:
                raise Http2ConnectionError(FLOW_CONTROL_ERROR, "a stream's window is too large")
        return InitialWindowChanged()

    def _receive_ping_frame(self, flags: int, stream_id: int, payload: bytes) -> Event[StreamT] | None:
        if stream_id:
            raise Http2ConnectionError(PROTOCOL_ERROR, "PING on a stream")
        frames.check_length(payload, 8, "PING")
        self.budget.count_ping(idle=not self.streams)
        if not flags & ACK:
            self.output.append(frames.frame(PING, ACK, 0, payload))
        elif payload == SHUTDOWN_PING:
            return ShutdownAcknowledged()
        return None

    def _receive_rst_stream_frame(self, _flags: int, stream_id: int, payload: bytes) -> Event[StreamT] | None:
        frames.check_length(payload, 4, "RST_STREAM")
        stream = self.streams.get(stream_id)
        if stream is None:
            next_state(self._state_of(stream_id), RECEIVE_RST_STREAM)
            self.budget.count_empty_frame(1, "too many streams are reset")
            return None
        if stream_id > self._last_before:
            self.budget.count_reset()
        self._remove(stream, RECEIVE_RST_STREAM)
        return StreamEnded(stream)

    def _receive_goaway_frame(self, _flags: int, stream_id: int, payload: bytes) -> Event[StreamT] | None:
        if stream_id:
            raise Http2ConnectionError(PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(payload) < 8:
            raise Http2ConnectionError(FRAME_SIZE_ERROR, "GOAWAY of a wrong length")
        self.budget.count_empty_frame(1, "too many frames")
        return GoawayReceived()

    def _receive_priority_frame(self, _flags: int, stream_id: int, payload: bytes) -> Event[StreamT] | None:
        if stream_id == 0:
            raise Http2ConnectionError(PROTOCOL_ERROR, "PRIORITY without a stream")
        frames.check_length(payload, 5, "PRIORITY")
        self.budget.count_empty_frame(1, "too many priorities")
        frames.check_priority(payload, stream_id)
        return None

    def _receive_unexpected_frame(self, _flags: int, _stream_id: int, _payload: bytes) -> Event[StreamT] | None:
        raise Http2ConnectionError(PROTOCOL_ERROR, "PUSH_PROMISE, or CONTINUATION without a header block")

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
