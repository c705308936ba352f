"""What a client sends over an HTTP/2 connection (RFC 9113), frame by frame: requests begin, go on and are cancelled."""

import time
from collections.abc import Callable, Mapping

from tablegate.gateway.http.exchange import App
from tablegate.gateway.http.h2 import frames
from tablegate.gateway.http.h2.budget import Budget
from tablegate.gateway.http.h2.exchange import Http2Exchange, SendQueue
from tablegate.gateway.http.h2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_BYTES_MAX,
    FRAME_SIZE_ERROR,
    HEAD_BYTES,
    HEADERS,
    PING,
    PROTOCOL_ERROR,
    STREAM_CLOSED,
    WINDOW_MAX,
    ConnectionFault,
    StreamFault,
    unpack_head,
)
from tablegate.gateway.http.h2.headers import HEADER_BYTES_MAX, HeadTooLarge, RequestHeads, content_length
from tablegate.gateway.http.h2.streams import DRAIN_PING, TURN_FRAMES, TURN_S, Http2Streams
from tablegate.gateway.http.headers import TEXT, Head

STREAMS_MAX = 1_000
CONTINUATIONS_MAX = 32  # frames of one header block

_HEAD_MAX = FRAME_BYTES_MAX << 8 | 0xFF
_NOISE_OF_SETTINGS = 10  # they are looked at for each stream
_TOO_LARGE = Head(431, (TEXT,))


class FrameReceiver:
    """Takes in the frames of one connection."""

    def __init__(self, app: App, streams: Http2Streams, outbox: SendQueue, budget: Budget) -> None:
        self._app = app
        self._streams = streams
        self._open = streams.open
        self._bodies = streams.bodies
        self._outbox = outbox
        self._budget = budget
        self._heads = RequestHeads()
        self.more = False
        self._block: tuple[int, int, bytearray] | None = None  # stream, flags and beginning of a header block
        self._continuations = 0

    @property
    def in_block(self) -> bool:
        """Whether a header block is not whole."""
        return self._block is not None

    def take(self, data: bytes, at: int) -> int:
        """Take in whole frames of `data` from `at` on, as many as one turn may; return where the rest begins.

        `more` is then whether there are more whole frames. Raise `ConnectionFault`.
        """
        size = len(data)
        clock = time.perf_counter
        until = clock() + TURN_S
        self.more = False
        for _ in range(TURN_FRAMES):
            if size - at < HEAD_BYTES:
                break
            head, flags, stream = unpack_head(data, at)
            if head > _HEAD_MAX:
                raise ConnectionFault(FRAME_SIZE_ERROR, "frame is longer than 16384 bytes")
            end = at + HEAD_BYTES + (head >> 8)
            if end > size:
                break
            stream &= WINDOW_MAX
            payload = data[at + HEAD_BYTES : end]
            at = end
            try:
                if head & 0xFF != HEADERS or self._block is not None:
                    self._take_other(head & 0xFF, flags, stream, payload)
                elif flags == END_HEADERS and size - at >= HEAD_BYTES:
                    # The common request is a head, and after it its body in one frame.
                    head, flags, body_stream = unpack_head(data, at)
                    end = at + HEAD_BYTES + (head >> 8)
                    if (
                        flags == END_STREAM
                        and body_stream == stream
                        and head & 0xFF == DATA
                        and head <= _HEAD_MAX
                        and end <= size
                    ):
                        body = data[at + HEAD_BYTES : end]
                        at = end
                        self._bodies.window -= len(body)
                        self._take_head(stream, payload, body)
                    else:
                        self._take_head(stream, payload, None)
                elif flags == END_HEADERS | END_STREAM:
                    self._take_head(stream, payload, b"")
                else:
                    self._take_headers(stream, flags, payload)
            except StreamFault as fault:
                self._streams.refuse(stream, fault.code)
                self._budget.count_reset()
            if clock() > until:
                self.more = at < size
                break
        else:
            self.more = at < size
        if self._bodies.window < 0:
            raise ConnectionFault(FLOW_CONTROL_ERROR, "more bytes than the connection's window")
        self._bodies.give_back()
        return at

    def _take_other(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        """Take in a frame that is no HEADERS, or that comes inside of a header block."""
        if self._block is not None:
            if kind != CONTINUATION or stream != self._block[0]:
                raise ConnectionFault(PROTOCOL_ERROR, "another frame inside of a header block")
            self._take_continuation(flags, payload)
            return
        take = _TAKE.get(kind)
        if take is None:
            self._budget.count_noise(1, "too many frames of unknown types")
        else:
            take(self, flags, stream, payload)

    # Requests.

    def _take_headers(self, stream: int, flags: int, payload: bytes) -> None:
        """Take in a HEADERS frame that has padding, a priority, or only the beginning of its block."""
        block = frames.header_block(payload, flags, stream)
        if flags & END_HEADERS:
            self._take_head(stream, block, b"" if flags & END_STREAM else None)
        else:
            self._block = (stream, flags, bytearray(block))
            self._continuations = 0

    def _take_continuation(self, flags: int, payload: bytes) -> None:
        assert self._block is not None
        stream, first_flags, block = self._block
        block += payload
        self._continuations += 1
        if self._continuations > CONTINUATIONS_MAX or len(block) > HEADER_BYTES_MAX:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "header block is too long")
        if flags & END_HEADERS:
            self._block = None
            self._take_head(stream, bytes(block), b"" if first_flags & END_STREAM else None)

    def _take_head(self, stream: int, block: bytes, body: bytes | None) -> None:
        """Take in a header block; `body`: the whole body, where it is there already."""
        if stream <= self._streams.last or not stream & 1 or stream > self._streams.last_allowed:
            self._take_other_head(stream, block, body)
            return
        self._streams.last = stream
        try:
            request = self._heads.request(block)
        except HeadTooLarge:
            self._answer_too_large(stream, body)
            return
        if len(self._open) >= STREAMS_MAX:
            self._budget.count_noise(1, "too many streams")
            self._streams.refuse(stream, frames.REFUSED_STREAM)
            return
        headers = request[2]
        expected = content_length(headers) if b"content-length" in headers else None
        exchange = Http2Exchange(self._streams, self._outbox, stream, request)
        exchange.takes_pieces = self._app.takes_pieces(exchange)
        self._open[stream] = exchange
        if body is None or exchange.takes_pieces or len(body) > self._bodies.body_bytes_max:
            exchange.expected = expected
            self._begin_body(exchange, body)
        elif expected is not None and expected != len(body):
            raise StreamFault(PROTOCOL_ERROR)
        else:
            exchange.complete = True
            exchange.body = body
            self._streams.serve(exchange)

    def _begin_body(self, exchange: Http2Exchange, body: bytes | None) -> None:
        """Wait for a body, or take one that needs a look."""
        self._bodies.begin(exchange)
        if exchange.takes_pieces:
            self._streams.serve(exchange)
        if body is not None and not exchange.closed:
            self._add_to_body(exchange, body, ended=True)

    def _add_to_body(self, exchange: Http2Exchange, data: bytes, *, ended: bool) -> None:
        if self._bodies.add(exchange, data, ended=ended):
            self._streams.serve(exchange)

    def _answer_too_large(self, stream: int, body: bytes | None) -> None:
        exchange = Http2Exchange(self._streams, self._outbox, stream, (b"", b"", {}))
        exchange.complete = body is not None
        self._open[stream] = exchange
        exchange.respond(_TOO_LARGE, b"the header fields are larger than 16 KiB")

    def _take_other_head(self, stream: int, block: bytes, body: bytes | None) -> None:
        """Take in a block that begins no request: trailers, or what comes too late or is wrong."""
        exchange = self._open.get(stream)
        if exchange is None:
            self._heads.skip(block)
            if self._streams.is_late(stream):
                self._budget.count_noise(1, "too many frames of streams that are reset")
                return
            if stream == self._streams.last and stream:
                raise ConnectionFault(STREAM_CLOSED, "HEADERS on a closed stream")
            raise ConnectionFault(PROTOCOL_ERROR, "HEADERS on a stream that cannot be opened")
        self._heads.trailers(block)
        if exchange.complete:
            raise StreamFault(STREAM_CLOSED)
        if body != b"":
            raise StreamFault(PROTOCOL_ERROR)
        self._add_to_body(exchange, b"", ended=True)

    # Bodies.

    def _take_data(self, flags: int, stream: int, payload: bytes) -> None:
        self._bodies.window -= len(payload)
        exchange = self._open.get(stream)
        if exchange is None:
            self._take_late_data(stream)
            return
        if exchange.complete:
            raise StreamFault(STREAM_CLOSED)
        data = frames.unpadded(payload, flags)
        ended = bool(flags & END_STREAM)
        if not data and not ended:
            self._budget.count_noise(1, "too many empty frames")
        else:
            self._add_to_body(exchange, data, ended=ended)

    def _take_late_data(self, stream: int) -> None:
        """Throw bytes away that come after their stream was reset; others are wrong."""
        if self._streams.is_late(stream):
            self._budget.count_noise(1, "too many frames of streams that are reset")
            return
        if stream == 0 or not stream & 1 or stream > self._streams.last:
            raise ConnectionFault(PROTOCOL_ERROR, "DATA on a stream that is not open")
        raise StreamFault(STREAM_CLOSED)

    # Other frames.

    def _take_window_update(self, _flags: int, stream: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(FRAME_SIZE_ERROR, "WINDOW_UPDATE of a wrong length")
        self._budget.count_noise(1, "too many window updates")
        size = int.from_bytes(payload, "big") & WINDOW_MAX
        if stream == 0:
            self._outbox.window += size
            if size == 0:
                raise ConnectionFault(PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
            if self._outbox.window > WINDOW_MAX:
                raise ConnectionFault(FLOW_CONTROL_ERROR, "the connection's window is too large")
            self._outbox.pump()
            return
        exchange = self._open.get(stream)
        if exchange is None:
            self._streams.check_was_open(stream)
            return
        if size == 0:
            raise StreamFault(PROTOCOL_ERROR)
        exchange.window += size
        if exchange.window > WINDOW_MAX:
            raise StreamFault(FLOW_CONTROL_ERROR)
        if exchange.pending is not None:
            self._outbox.queue(exchange)

    def _take_settings(self, flags: int, stream: int, payload: bytes) -> None:
        if stream:
            raise ConnectionFault(PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & ACK:
            if payload:
                raise ConnectionFault(FRAME_SIZE_ERROR, "acknowledgement of SETTINGS with a payload")
            self._budget.count_noise(1, "too many settings")
            return
        self._budget.count_noise(_NOISE_OF_SETTINGS, "too many settings")
        values = dict(frames.read_settings(payload))
        self._outbox.put(frames.frame(frames.SETTINGS, ACK, 0))
        if frames.INITIAL_WINDOW_SIZE in values:
            self._change_windows(values[frames.INITIAL_WINDOW_SIZE])

    def _change_windows(self, size: int) -> None:
        """Change the windows of answers by as much as their first size changes, maybe below 0."""
        change = size - self._outbox.stream_window
        self._outbox.stream_window = size
        for exchange in list(self._open.values()):
            exchange.window += change
            if exchange.window > WINDOW_MAX:
                raise ConnectionFault(FLOW_CONTROL_ERROR, "a stream's window is too large")
            if exchange.pending is not None:
                self._outbox.queue(exchange)

    def _take_ping(self, flags: int, stream: int, payload: bytes) -> None:
        if stream:
            raise ConnectionFault(PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != 8:
            raise ConnectionFault(FRAME_SIZE_ERROR, "PING of a wrong length")
        self._budget.count_ping(idle=not self._open)
        if not flags & ACK:
            self._outbox.put(frames.frame(PING, ACK, 0, payload))
        elif payload == DRAIN_PING:
            self._streams.stop()

    def _take_rst_stream(self, _flags: int, stream: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(FRAME_SIZE_ERROR, "RST_STREAM of a wrong length")
        exchange = self._open.get(stream)
        if exchange is None:
            self._streams.check_was_open(stream)
            self._budget.count_noise(1, "too many streams are reset")
            return
        self._streams.cancelled(exchange)

    def _take_goaway(self, _flags: int, stream: int, payload: bytes) -> None:
        if stream:
            raise ConnectionFault(PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(payload) < 8:
            raise ConnectionFault(FRAME_SIZE_ERROR, "GOAWAY of a wrong length")
        self._budget.count_noise(1, "too many frames")
        self._streams.end_after_last()

    def _take_priority(self, _flags: int, stream: int, payload: bytes) -> None:
        if stream == 0:
            raise ConnectionFault(PROTOCOL_ERROR, "PRIORITY without a stream")
        if len(payload) != 5:
            raise ConnectionFault(FRAME_SIZE_ERROR, "PRIORITY of a wrong length")
        self._budget.count_noise(1, "too many priorities")
        frames.check_priority(payload, stream)

    def _take_wrong(self, _flags: int, _stream: int, _payload: bytes) -> None:
        raise ConnectionFault(PROTOCOL_ERROR, "PUSH_PROMISE, or CONTINUATION without a header block")


_TAKE: Mapping[int, Callable[[FrameReceiver, int, int, bytes], None]] = {
    DATA: FrameReceiver._take_data,
    frames.PRIORITY: FrameReceiver._take_priority,
    frames.RST_STREAM: FrameReceiver._take_rst_stream,
    frames.SETTINGS: FrameReceiver._take_settings,
    frames.PUSH_PROMISE: FrameReceiver._take_wrong,
    PING: FrameReceiver._take_ping,
    frames.GOAWAY: FrameReceiver._take_goaway,
    frames.WINDOW_UPDATE: FrameReceiver._take_window_update,
    CONTINUATION: FrameReceiver._take_wrong,
}
