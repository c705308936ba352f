"""Requests of an HTTP/2 connection and their answers, and what leaves the connection: windows, turns, bounds."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol, cast

from tablegate.gateway.http.h2.budget import Budget
from tablegate.gateway.http.h2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_MAX,
    HEADERS,
    WINDOW_BYTES,
    frame,
    header_frames,
    pack_head,
)
from tablegate.gateway.http.headers import Head, Trailer

WRITE_BYTES = 64 * 1024  # go to the transport in one piece: fewer system calls, and the rest of the loop waits little

_HEADERS_END = END_HEADERS | END_STREAM


class Streams(Protocol):
    """The connection, as its exchanges see it."""

    def answered(self, exchange: "Http2Exchange") -> None:
        """Note that an answer is whole."""

    def aborted(self, exchange: "Http2Exchange") -> None:
        """Break an answer off."""

    def read(self, exchange: "Http2Exchange", size: int) -> None:
        """Note that bytes of a request were read."""


class Http2Exchange:
    """One request and its answer; see `Exchange`. What has no underscore after `on_gone` is for the connection."""

    __slots__ = (
        "_begun",
        "_outbox",
        "_sender",
        "_streams",
        "body",
        "buffer",
        "closed",
        "complete",
        "ended",
        "expected",
        "headers",
        "method",
        "on_gone",
        "oversize",
        "pending",
        "queued",
        "reader",
        "received",
        "silent_since",
        "stream",
        "takes_pieces",
        "target",
        "trailer",
        "untold",
        "window",
    )
    http2 = True

    def __init__(
        self,
        streams: Streams,
        outbox: "SendQueue",
        stream: int,
        request: tuple[bytes, bytes, Mapping[bytes, bytes]],
    ) -> None:
        self.method: bytes
        self.target: bytes
        self.headers: Mapping[bytes, bytes]
        self.method, self.target, self.headers = request
        self.body = b""
        self.oversize = False
        self.on_gone: Callable[[], object] | None = None

        self.stream = stream
        self.window = outbox.stream_window  # of the answer
        self.closed = False  # answered whole, reset or gone
        self.complete = False  # the request is
        self.takes_pieces = False
        self.buffer: bytearray | None = None  # of the request's body, until it is served or read
        self.received = 0  # bytes of the request's body
        self.expected: int | None = None  # of them, by its content-length
        self.untold = 0  # bytes read whose window the client was not given back yet
        self.reader: asyncio.Future[None] | None = None
        self.silent_since: float | None = None
        self.pending: memoryview | None = None  # of the answer's body, what no window or transport takes yet
        self.queued = False  # in the outbox's queue
        self.ended = False  # nothing comes after `pending` but `trailer`
        self.trailer: Trailer | None = None
        self._begun = False
        self._sender: asyncio.Future[None] | None = None
        self._outbox = outbox
        self._streams = streams

    @property
    def principal(self) -> str | None:
        """Who the client is by its verified certificate."""
        return self._outbox.principal

    def respond(self, head: Head, body: bytes, trailer: Trailer | None = None) -> None:
        """Answer, whole."""
        if self.closed:
            return
        outbox = self._outbox
        block = head.h2
        last = None if trailer is None else trailer.h2
        size = len(body)
        total = len(block) + size + (len(last) if last else 0)
        if (
            not size
            or total > FRAME_BYTES_MAX
            or size > self.window
            or size > outbox.window
            or not outbox.free
            or self.method == b"HEAD"
        ):
            self._respond_otherwise(head, body, trailer)
            return
        stream = self.stream
        start = pack_head(len(block) << 8 | HEADERS, END_HEADERS, stream)
        if last is None:
            outbox.pieces.extend((start, block, pack_head(size << 8 | DATA, END_STREAM, stream), body))
        else:
            end = pack_head(len(last) << 8 | HEADERS, _HEADERS_END, stream)
            outbox.pieces.extend((start, block, pack_head(size << 8 | DATA, 0, stream), body, end, last))
        outbox.window -= size
        outbox.add(total)
        self._streams.answered(self)

    def _respond_otherwise(self, head: Head, body: bytes, trailer: Trailer | None) -> None:
        """Answer without trailer or body, or with more than goes at once."""
        if self.method == b"HEAD":
            body = b""
        if body:
            self.begin(head)
            self._outbox.held += len(body)  # of all that is pending and ended
            self._queue(body, trailer, ended=True)
            return
        if trailer is None:
            self._outbox.put(header_frames(head.h2, self.stream, END_STREAM))
        else:
            self._outbox.put(header_frames(head.h2, self.stream, 0))
            self._outbox.put(header_frames(trailer.h2, self.stream, END_STREAM))
        self._streams.answered(self)

    def begin(self, head: Head) -> None:
        """Send the head of an answer whose body follows."""
        if not self.closed:
            self._begun = True
            self._outbox.put(header_frames(head.h2, self.stream, 0))

    async def send(self, data: bytes) -> None:
        """Send a piece of the body; return when the next may be made. One at a time."""
        if self.closed or not data or self.method == b"HEAD":
            return
        outbox = self._outbox
        if self._goes_at_once(len(data)):
            if not self._put(data):
                return
            await asyncio.sleep(0)
        else:
            self._queue(data, None, ended=False)
        while not self.closed and (self.pending is not None or outbox.blocked):
            self._sender = outbox.wait()
            try:
                await self._sender
            finally:
                self._sender = None

    def offer(self, data: bytes) -> bool:
        """Send a piece of the body, if that can be at once; else return False and send nothing."""
        if self.closed or not data or self.method == b"HEAD" or not self._goes_at_once(len(data)):
            return False
        self._put(data)
        return True

    def _goes_at_once(self, size: int) -> bool:
        outbox = self._outbox
        return outbox.free and size <= self.window and size <= outbox.window and self.pending is None

    def _put(self, data: bytes) -> bool:
        """Send frames; return whether the outbox was flushed."""
        size = len(data)
        outbox = self._outbox
        if size <= FRAME_BYTES_MAX:
            outbox.pieces += (pack_head(size << 8 | DATA, 0, self.stream), data)
        else:
            view = memoryview(data)
            for at in range(0, size, FRAME_BYTES_MAX):
                part = view[at : at + FRAME_BYTES_MAX]
                outbox.pieces += (pack_head(len(part) << 8 | DATA, 0, self.stream), part)
        self.window -= size
        outbox.window -= size
        outbox.budget.pieces += 1
        return outbox.add(size)

    def end(self, trailer: Trailer | None = None) -> None:
        """End the answer."""
        if self.closed:
            return
        if self.pending is not None:
            self.trailer = trailer
            self.ended = True
            self._outbox.held += len(self.pending)
            return
        if trailer is None:
            self._outbox.put(frame(DATA, END_STREAM, self.stream))
        else:
            self._outbox.put(header_frames(trailer.h2, self.stream, END_STREAM))
        self._streams.answered(self)

    def abort(self) -> None:
        """Break the answer off."""
        if not self.closed:
            self._streams.aborted(self)

    async def read(self) -> bytes:
        """Return the next piece of the request's body, b"" at its end. One at a time."""
        while not self.buffer:
            if self.complete or self.closed:
                return b""
            self.reader = self._outbox.future()
            try:
                await self.reader
            finally:
                self.reader = None
        data = bytes(self.buffer)
        self.buffer.clear()
        self._streams.read(self, len(data))
        return data

    def _queue(self, data: bytes, trailer: Trailer | None, *, ended: bool) -> None:
        """Leave bytes to the outbox."""
        if self.pending is not None:  # a sender was cancelled
            data = bytes(self.pending) + data
        self.pending = memoryview(data)
        self.trailer = trailer
        self.ended = ended
        self._outbox.queue(self)

    def sent(self) -> None:
        """Note that `pending` has gone."""
        self.pending = None
        if self.ended:
            if self.trailer is not None:
                self._outbox.put(header_frames(self.trailer.h2, self.stream, END_STREAM))
            self._streams.answered(self)
        else:
            self.wake()

    def wake(self) -> None:
        """Let who waits for this stream look again."""
        for waiter in (self._sender, self.reader):
            if waiter is not None and not waiter.done():
                waiter.set_result(None)


class SendQueue:
    """What a connection sends, in the order of its pieces; bodies as the client's windows and the transport allow.

    Streams with more than goes at once take turns, a frame each.
    """

    __slots__ = (
        "_due",
        "_loop",
        "_queue",
        "_size",
        "_transport",
        "_waiters",
        "blocked",
        "budget",
        "free",
        "held",
        "in_turn",
        "moved",
        "over",
        "pieces",
        "stream_window",
        "window",
    )

    def __init__(self, transport: asyncio.Transport, budget: Budget) -> None:
        self.pieces: list[bytes | memoryview] = []
        self.window = WINDOW_BYTES  # of the connection
        self.stream_window = WINDOW_BYTES  # of a stream, at its start
        self.free = True  # neither blocked nor a queue: what fits the windows may go at once
        self.blocked = False  # the transport holds enough
        self.in_turn = False  # whoever set it flushes
        self.over = False
        self.moved = False  # something was sent of what waited
        self.held = 0  # bytes of whole answers that wait for the client
        self.budget = budget
        self._size = 0
        self._due = False
        self._queue: deque[Http2Exchange] = deque()
        self._waiters: list[asyncio.Future[None]] = []
        self._transport = transport
        self._loop = asyncio.get_running_loop()

    @property
    def principal(self) -> str | None:
        """To whom it goes, by the client's verified certificate."""
        return cast("str | None", self._transport.get_extra_info("principal"))

    def put(self, data: bytes) -> None:
        """Send frames that no window holds back."""
        self.pieces.append(data)
        self.add(len(data))

    def add(self, size: int) -> bool:
        """Count bytes that were put into `pieces`; return whether that was enough for one write."""
        self._size += size
        if self._size >= WRITE_BYTES:
            self.flush()
            return True
        if not self.in_turn and not self._due:
            self._due = True
            self._loop.call_soon(self._flush_due)
        return False

    def flush(self) -> None:
        """Give the transport what there is."""
        if self.pieces and not self.over:
            data = b"".join(self.pieces)
            self.pieces.clear()
            self._size = 0
            transport = self._transport
            # Of a client that is gone nothing is heard before the next turn, and asyncio logs each write until then.
            if not transport.is_closing() or transport.get_write_buffer_size():
                transport.write(data)

    def _flush_due(self) -> None:
        self._due = False
        self.flush()

    def future(self) -> asyncio.Future[None]:
        """Return a future of this loop."""
        return self._loop.create_future()

    def wait(self) -> asyncio.Future[None]:
        """Return a future for a sender, done at the latest when the transport takes more."""
        waiter = self._loop.create_future()
        if self.blocked:
            self._waiters.append(waiter)
        return waiter

    def block(self) -> None:
        """Keep bodies back."""
        self.blocked = True
        self.free = False

    def unblock(self) -> None:
        """Go on."""
        self.blocked = False
        self.pump()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def queue(self, exchange: Http2Exchange) -> None:
        """Send what is pending of a stream in its turns."""
        if not exchange.queued:
            exchange.queued = True
            self._queue.append(exchange)
        self.pump()

    def pump(self) -> None:
        """Send of what waits what may go."""
        queue = self._queue
        while queue and self.window > 0 and not self.blocked:
            exchange = queue.popleft()
            exchange.queued = False
            pending = exchange.pending
            if pending is None or exchange.window <= 0:
                continue
            size = min(len(pending), FRAME_BYTES_MAX, exchange.window, self.window)
            last = size == len(pending)
            ends = last and exchange.ended and exchange.trailer is None
            self.pieces.append(pack_head(size << 8 | DATA, END_STREAM if ends else 0, exchange.stream))
            self.pieces.append(pending[:size])
            exchange.window -= size
            self.window -= size
            self.budget.pieces += 1
            self.moved = True
            if exchange.ended:
                self.held -= size
            if last:
                exchange.sent()
            else:
                exchange.pending = pending[size:]
                exchange.queued = True
                queue.append(exchange)
            self.add(size)
        self.free = not queue and not self.blocked

    def forget(self, exchange: Http2Exchange) -> None:
        """Drop what is pending of a stream."""
        if exchange.pending is not None:
            if exchange.ended:
                self.held -= len(exchange.pending)
            exchange.pending = None
        if exchange.queued:
            exchange.queued = False
            self._queue.remove(exchange)
