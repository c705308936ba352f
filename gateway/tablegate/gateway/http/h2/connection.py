"""The server's side of one HTTP/2 connection (RFC 9113), without I/O: bytes in, events out, and frames in a list.

How it works. `receive_data` keeps bytes. `next_event` takes one frame from them, changes states and windows, and says
what that means to whoever serves requests; so the caller decides how many frames have their turn. Each kind of frame
has a method, `_receive_…_frame`. A stream's state changes by `Stream.move` alone, as `TRANSITIONS` says.

The exception is the common request: HEADERS with END_HEADERS, and after it the whole body in one DATA with END_STREAM.
`next_event` takes both frames at once, and `send_response` answers in one step. Their states come from the same table,
but are looked up once, when this module is imported. Most calls are small, and pay for nothing else.

Errors. A frame that is wrong for its stream alone resets that stream (`StreamEnded`, where it was announced). All else
raises `Http2ConnectionError`: then `send_goaway` tells the client why, and nothing more is received.

Time comes in by `tick`. Nothing is called back but `streams_body`, which says of a request whether it is served before
its body is there, and must be answered between two frames.

Sources: RFC 9113; hyper-h2 `connection.py` and h11 `_connection.py` for the shape of the interface.
Debts: MAX_CONCURRENT_STREAMS bounds streams, but not the memory of their fields, up to 16 KiB each: whoever does the
I/O has to look at `kept_bytes`.

Decision: docs/decisions/0051-http2-without-io.md
Decision: docs/decisions/0144-h2-of-rust-was-tried.md
"""

from collections.abc import Callable, Mapping
from typing import Any

from tablegate.gateway.http.h2 import frames
from tablegate.gateway.http.h2.budget import EMPTY_FRAMES_MAX
from tablegate.gateway.http.h2.control import ConnectionControl
from tablegate.gateway.http.h2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_BYTES_MAX,
    FRAME_HEADER_BYTES,
    FRAME_SIZE_ERROR,
    HEADERS,
    PING,
    PREFACE,
    PROTOCOL_ERROR,
    WINDOW_BYTES,
    WINDOW_MAX,
    Http2ConnectionError,
    Http2StreamError,
    pack_frame_header,
    unpack_frame_header,
)
from tablegate.gateway.http.h2.headers import HEADER_BYTES_MAX, HeaderListTooLarge, RequestDecoder, content_length
from tablegate.gateway.http.h2.stream import (
    CONNECTION_WINDOW_UPDATED,
    IDLE,
    NEED_DATA,
    RECEIVE_DATA,
    RECEIVE_END_STREAM,
    RECEIVE_HEADERS,
    RECEIVE_WINDOW_UPDATE,
    RESET,
    SEND_DATA,
    SEND_END_STREAM,
    SEND_HEADERS,
    SEND_RST_STREAM,
    TRANSITIONS,
    DataReceived,
    Event,
    HeadersTooLarge,
    NeedData,
    StreamEnded,
    StreamEvent,
    StreamState,
    StreamT,
    WindowUpdated,
    next_state,
)

SMALL_BYTES = 1_024  # of fields, and of a body, of a request that counts for nothing but a stream
STREAMS_MAX = 1_000  # open at once: ten times what most servers allow, and few enough to visit each in a SETTINGS
CONTINUATIONS_MAX = 32  # frames of one header block: 16 KiB come in two, and empty ones are an attack (CVE-2024-27316)

_FRAME_HEADER_MAX = FRAME_BYTES_MAX << 8 | 0xFF
_RESPONSE_ENDS = END_HEADERS | END_STREAM

# States of the common request and of its answer, which never wait: what the table says of all their events.
_AFTER_HEADERS = TRANSITIONS[IDLE, RECEIVE_HEADERS]
_AFTER_REQUEST = TRANSITIONS[TRANSITIONS[_AFTER_HEADERS, RECEIVE_DATA], RECEIVE_END_STREAM]
_AFTER_RESPONSE = TRANSITIONS[TRANSITIONS[TRANSITIONS[_AFTER_REQUEST, SEND_HEADERS], SEND_DATA], SEND_END_STREAM]


class ServerConnection(ConnectionControl[StreamT]):
    """One connection. `new_stream` is `Stream` or a subclass; its instances know the `owner`.

    `unread`: bytes that were received and are not parsed yet.
    """

    def __init__(
        self,
        *,
        body_bytes_max: int,
        new_stream: type[StreamT],
        streams_body: Callable[[StreamT], bool] = lambda _: False,
        owner: object = None,
    ) -> None:
        super().__init__(body_bytes_max)
        self.unread = b""
        self._new_stream = new_stream
        self._owner = owner
        self._streams_body = streams_body
        self._at = 0  # where `unread` begins
        self._preface: bytes | None = b""  # as much as there is of it; None: it was right
        self._headers = RequestDecoder()
        self._block: tuple[int, int, bytearray] | None = None  # stream, flags and beginning of a header block
        self._continuations = 0
        self.output.append(
            frames.settings(
                (frames.MAX_CONCURRENT_STREAMS, STREAMS_MAX),
                (frames.INITIAL_WINDOW_SIZE, self.windows.stream_size),
                (frames.MAX_HEADER_LIST_SIZE, HEADER_BYTES_MAX),
            )
            + frames.window_update(0, self.windows.size - WINDOW_BYTES)
        )

    # Receiving.

    @property
    def started(self) -> bool:
        """Whether the client's preface was right."""
        return self._preface is None

    @property
    def in_header_block(self) -> bool:
        """Whether the client is inside of a header block, where no frame of another stream may come."""
        return self._block is not None

    @property
    def kept_bytes(self) -> int:
        """Return how many bytes of the client's are kept: what is not parsed yet, and fields and bodies of requests.

        Not those of small requests, of which each kilobyte is one of `streams`. The body of a request that is served
        later counts twice.
        """
        block = 0 if self._block is None else len(self._block[2])
        return len(self.unread) + block + self.request_bytes + self.windows.kept

    def receive_data(self, data: bytes) -> None:
        """Keep bytes for `next_event`. Raise `Http2ConnectionError` where they are not the preface of HTTP/2."""
        if self._preface is not None:
            data = self._receive_preface(data)
        self.unread = self.unread[self._at :] + data if self.unread else data
        self._at = 0

    def _receive_preface(self, data: bytes) -> bytes:
        """Check the preface, and that SETTINGS come first; return what follows the preface, b"" until it is whole."""
        data = (self._preface or b"") + data
        self._preface = data
        if not PREFACE.startswith(data[: len(PREFACE)]):
            raise Http2ConnectionError(PROTOCOL_ERROR, "not the preface of HTTP/2")
        if len(data) < len(PREFACE) + FRAME_HEADER_BYTES:
            return b""
        header, flags, _ = unpack_frame_header(data, len(PREFACE))
        if header & 0xFF != frames.SETTINGS or flags & ACK:
            raise Http2ConnectionError(PROTOCOL_ERROR, "the first frame is not SETTINGS")
        self._preface = None
        return data[len(PREFACE) :]

    def next_event(self) -> Event[StreamT] | None:
        """Receive one frame; return what it means, None where it means nothing to those who serve requests.

        Return `NEED_DATA` where there is no whole frame. Raise `Http2ConnectionError`.
        """
        data = self.unread
        at = self._at
        size = len(data)
        if size - at < FRAME_HEADER_BYTES:
            return self._need_data()
        header, flags, stream_id = unpack_frame_header(data, at)
        if header > _FRAME_HEADER_MAX:
            raise Http2ConnectionError(FRAME_SIZE_ERROR, "frame is longer than 16384 bytes")
        at += FRAME_HEADER_BYTES
        end = at + (header >> 8)
        if end > size:
            return self._need_data()
        stream_id &= WINDOW_MAX
        payload = data[at:end]
        body: bytes | None = None
        kind = header & 0xFF
        whole_block = kind == HEADERS and flags == END_HEADERS and self._block is None
        if whole_block and stream_id > self.last_stream_id and size - end >= FRAME_HEADER_BYTES:
            # The common request: its body is the next frame, and its end. Trailers have none.
            body_header, body_flags, body_stream_id = unpack_frame_header(data, end)
            body_end = end + FRAME_HEADER_BYTES + (body_header >> 8)
            if (
                body_flags == END_STREAM
                and body_stream_id == stream_id
                and body_header & 0xFF == DATA
                and body_header <= _FRAME_HEADER_MAX
                and body_end <= size
            ):
                body = data[end + FRAME_HEADER_BYTES : body_end]
                self.windows.window -= len(body)
                end = body_end
        if end == size:
            self.unread = b""
            self._at = 0
        else:
            self._at = end
        try:
            if whole_block:
                return self._receive_header_block(stream_id, payload, body)
            if self._block is not None:
                if kind != CONTINUATION or stream_id != self._block[0]:
                    raise Http2ConnectionError(PROTOCOL_ERROR, "another frame inside of a header block")
                return self._receive_continuation_frame(flags, payload)
            receive = _RECEIVERS.get(kind)
            if receive is not None:
                return receive(self, flags, stream_id, payload)
        except Http2StreamError as error:
            return self._end_for_error(stream_id, error)
        # Frames of extensions are to be ignored (RFC 9113, 5.5).
        self.budget.count_empty_frame(1, "too many frames of unknown types")
        return None

    def _need_data(self) -> NeedData:
        """Keep nothing of what was parsed: the rest of a frame may be long in coming."""
        self.unread = self.unread[self._at :]
        self._at = 0
        return NEED_DATA

    def _end_for_error(self, stream_id: int, error: Http2StreamError) -> StreamEnded[StreamT] | None:
        self._send_rst_stream(stream_id, error.code)
        self.budget.count_reset()
        stream = self.streams.get(stream_id)
        if stream is None:
            return None
        self._remove(stream, SEND_RST_STREAM)
        return StreamEnded(stream)

    # Requests.

    def _receive_headers_frame(self, flags: int, stream_id: int, payload: bytes) -> Event[StreamT] | None:
        """Receive a HEADERS frame that ends its stream, has padding or priority, or only the beginning of its block."""
        block = frames.header_block(payload, flags, stream_id)
        if flags & END_HEADERS:
            return self._receive_header_block(stream_id, block, b"" if flags & END_STREAM else None)
        self._block = (stream_id, flags, bytearray(block))
        self._continuations = 0
        return None

    def _receive_continuation_frame(self, flags: int, payload: bytes) -> Event[StreamT] | None:
        assert self._block is not None, "CONTINUATION goes on with a block"
        stream_id, first_flags, block = self._block
        block += payload
        self._continuations += 1
        if self._continuations > CONTINUATIONS_MAX or len(block) > HEADER_BYTES_MAX:
            raise Http2ConnectionError(ENHANCE_YOUR_CALM, "header block is too long")
        if not flags & END_HEADERS:
            return None
        self._block = None
        return self._receive_header_block(stream_id, bytes(block), b"" if first_flags & END_STREAM else None)

    def _receive_header_block(self, stream_id: int, block: bytes, body: bytes | None) -> Event[StreamT] | None:
        """Receive a whole header block; `body`: all of the body, where it is there, None where it is still to come."""
        if stream_id <= self.last_stream_id or not stream_id & 1 or stream_id > self.last_allowed:
            return self._receive_other_block(stream_id, block, body)
        self.last_stream_id = stream_id
        state = _AFTER_HEADERS if body is None else _AFTER_REQUEST
        try:
            request = self._headers.request(block)
        except HeaderListTooLarge:
            stream = self._new_stream(self._owner, stream_id, state, (b"", b"", {}), self._initial_send_window)
            self.streams[stream_id] = stream
            return HeadersTooLarge(stream)
        if len(self.streams) >= STREAMS_MAX:
            self.budget.count_empty_frame(1, "too many streams")
            self._send_rst_stream(stream_id, frames.REFUSED_STREAM)
            return None
        headers = request[2]
        expected = content_length(headers) if b"content-length" in headers else None
        stream = self._new_stream(self._owner, stream_id, state, request, self._initial_send_window)
        self.streams[stream_id] = stream
        if self._headers.field_bytes > SMALL_BYTES or (body and len(body) > SMALL_BYTES):
            self._count_request(stream_id, self._headers.field_bytes + len(body or b""))
            self._headers.field_bytes = 0
        if self._streams_body(stream):
            stream.streams_body = True
            return self._begin_body(stream, body, expected)
        if body is None:
            self.windows.begin(stream, expected)
            return None
        if len(body) > self.windows.body_bytes_max:
            return self._begin_body(stream, body, expected)
        if expected is not None and expected != len(body):
            raise Http2StreamError(PROTOCOL_ERROR)
        stream.body = body
        return stream

    def _begin_body(self, stream: StreamT, body: bytes | None, expected: int | None) -> Event[StreamT] | None:
        """Wait for a body, or take one that is not served as it is."""
        self.windows.begin(stream, expected)
        served = body is not None and self.windows.end(stream, body)
        return stream if served or stream.streams_body else None

    def _receive_other_block(self, stream_id: int, block: bytes, body: bytes | None) -> Event[StreamT] | None:
        """Receive a block that begins no request: trailers, or what comes too late or is wrong."""
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._headers.check_trailers(block)
            stream.move(RECEIVE_HEADERS)
            if body != b"":
                raise Http2StreamError(PROTOCOL_ERROR)  # trailers end their stream (RFC 9113, 8.1)
            return self._end_body(stream, b"")
        self._headers.skip(block)
        state = self._state_of(stream_id)
        if state is RESET:
            self._receive_late(state, RECEIVE_HEADERS)
        elif stream_id == self.last_stream_id and stream_id:
            next_state(state, RECEIVE_HEADERS)
        else:  # numbers only rise, and those of a client are odd (RFC 9113, 5.1.1)
            raise Http2ConnectionError(PROTOCOL_ERROR, "HEADERS on a stream that cannot be opened")
        return None

    def _receive_data_frame(self, flags: int, stream_id: int, payload: bytes) -> Event[StreamT] | None:
        self.windows.window -= len(payload)
        stream = self.streams.get(stream_id)
        if stream is None:
            self._receive_late(self._state_of(stream_id), RECEIVE_DATA)
            return None
        if stream.state is not _AFTER_HEADERS:  # where DATA changes nothing: bodies may have thousands of frames
            stream.move(RECEIVE_DATA)
        data = frames.remove_padding(payload, flags) if flags & frames.PADDED else payload
        if flags & END_STREAM:
            return self._end_body(stream, data)
        if data is not payload:
            self.windows.give_back(stream, len(payload) - len(data))
        if not data:
            self.budget.count_empty_frame(1, "too many empty frames")
            return None
        served = self.windows.add(stream, data)
        if stream.streams_body:
            return DataReceived(stream)
        return self._with_body(stream) if served else None

    def _end_body(self, stream: StreamT, data: bytes) -> Event[StreamT] | None:
        if stream.state is _AFTER_HEADERS:  # so clients of gRPC end theirs, a frame or more after the headers
            stream.state = _AFTER_REQUEST
        else:
            stream.move(RECEIVE_END_STREAM)
        served = self.windows.end(stream, data)
        if stream.streams_body:
            return DataReceived(stream)
        return self._with_body(stream) if served else None

    def _with_body(self, stream: StreamT) -> StreamT:
        """Count a body that has come in pieces, with its request."""
        if len(stream.body) > SMALL_BYTES:
            self._count_request(stream.stream_id, len(stream.body))
        return stream

    def _receive_late(self, state: StreamState, event: StreamEvent) -> None:
        """Drop a frame of a stream that is not open any more, where it is late and not wrong."""
        next_state(state, event)
        self.budget.count_empty_frame(1, "too many frames of streams that are reset")

    # Windows.

    def _receive_window_update_frame(self, _flags: int, stream_id: int, payload: bytes) -> Event[StreamT] | None:
        # Clients of gRPC send two with each call: so these lines call nothing in the common case.
        if len(payload) != 4:
            raise Http2ConnectionError(FRAME_SIZE_ERROR, "WINDOW_UPDATE of a wrong length")
        increment = int.from_bytes(payload, "big") & WINDOW_MAX
        budget = self.budget
        if budget.empty_frames >= EMPTY_FRAMES_MAX:
            budget.count_empty_frame(1, "too many window updates")
        else:
            budget.empty_frames += 1
        if stream_id == 0:
            self.send_window += increment
            if increment == 0:
                raise Http2ConnectionError(PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
            if self.send_window > WINDOW_MAX:
                raise Http2ConnectionError(FLOW_CONTROL_ERROR, "the connection's window is too large")
            return CONNECTION_WINDOW_UPDATED
        stream = self.streams.get(stream_id)
        if stream is None:
            next_state(self._state_of(stream_id), RECEIVE_WINDOW_UPDATE)
            return None
        stream.move(RECEIVE_WINDOW_UPDATE)
        if increment == 0:
            raise Http2StreamError(PROTOCOL_ERROR)
        stream.send_window += increment
        if stream.send_window > WINDOW_MAX:
            raise Http2StreamError(FLOW_CONTROL_ERROR)
        return WindowUpdated(stream)

    # The common answer.

    def send_response(self, stream: StreamT, header_block: bytes, body: bytes, trailer_block: bytes | None) -> int:
        """Send a whole answer that is common, with a body that fits the windows and a frame; return its bytes.

        Else return 0 and send nothing: it is for `send_headers` and `send_data`.
        """
        size = len(body)
        total = len(header_block) + size + (len(trailer_block) if trailer_block else 0)
        if (
            stream.state is not _AFTER_REQUEST
            or not size
            or total > FRAME_BYTES_MAX
            or size > stream.send_window
            or size > self.send_window
            or stream.method == b"HEAD"
        ):
            return 0
        stream_id = stream.stream_id
        start = pack_frame_header(len(header_block) << 8 | HEADERS, END_HEADERS, stream_id)
        if trailer_block is None:
            self.output += (start, header_block, pack_frame_header(size << 8 | DATA, END_STREAM, stream_id), body)
        else:
            end = pack_frame_header(len(trailer_block) << 8 | HEADERS, _RESPONSE_ENDS, stream_id)
            self.output += (
                start,
                header_block,
                pack_frame_header(size << 8 | DATA, 0, stream_id),
                body,
                end,
                trailer_block,
            )
        self.send_window -= size
        self.budget.answers += 1
        stream.state = _AFTER_RESPONSE
        del self.streams[stream_id]
        if self._large_requests:
            self._forget_request(stream_id)
        if stream.arriving is not None:
            self.windows.discard(stream)
        return total

    # Flow control of what is received.

    def widen_windows(self) -> None:
        """Let the client send more; to be called when what was received is served. Raise `Http2ConnectionError`."""
        windows = self.windows
        if windows.window <= windows.widen_below:
            if windows.window < 0:
                raise Http2ConnectionError(FLOW_CONTROL_ERROR, "more bytes than the connection's window")
            windows.widen()

    # Time.

    def tick(self, now: float, body_s: float, whole_body_s: float) -> None:
        """Reset bodies that did not go on for `body_s` seconds, or are not whole after `whole_body_s`.

        `now`: of any clock that only grows.
        """
        if self.budget.tick(now):
            self._last_before = self.last_stream_id
        self.windows.end_slow(now, body_s, whole_body_s)


_Receiver = Callable[[ServerConnection[Any], int, int, bytes], "Event[Any] | None"]
_RECEIVERS: Mapping[int, _Receiver] = {
    DATA: ServerConnection._receive_data_frame,
    HEADERS: ServerConnection._receive_headers_frame,
    frames.PRIORITY: ServerConnection._receive_priority_frame,
    frames.RST_STREAM: ServerConnection._receive_rst_stream_frame,
    frames.SETTINGS: ServerConnection._receive_settings_frame,
    frames.PUSH_PROMISE: ServerConnection._receive_unexpected_frame,
    PING: ServerConnection._receive_ping_frame,
    frames.GOAWAY: ServerConnection._receive_goaway_frame,
    frames.WINDOW_UPDATE: ServerConnection._receive_window_update_frame,
    CONTINUATION: ServerConnection._receive_unexpected_frame,
}
