"""Requests over HTTP/2 and their answers, as those who serve them see them, and the queue of what is to be sent.

An answer takes one of two ways. Most are small and whole: `respond` hands them to `ServerConnection.send_response`, and
the stream is over. What does not fit a window, or finds the socket full, waits as `pending` of its exchange, and the
exchange in the `SendQueue`. There the streams take turns, a frame each, so that a long answer does not keep short ones
waiting. A stream whose own window is used up leaves the queue, and comes back with its WINDOW_UPDATE.

`SendQueue` also decides when bytes go to the transport: frames that are made while bytes are received leave together at
the end of that turn (`in_turn`), all others with the next turn of the event loop, or as soon as there are WRITE_BYTES.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

from tablegate.gateway.http.exchange import ResponseHeaders, Trailer
from tablegate.gateway.http.h2.connection import ServerConnection
from tablegate.gateway.http.h2.control import SENDING_STATES
from tablegate.gateway.http.h2.frames import FRAME_BYTES_MAX
from tablegate.gateway.http.h2.stream import HALF_CLOSED_REMOTE, OPEN, Stream
from tablegate.gateway.http.shares import address_of

WRITE_BYTES = 64 * 1024  # go to the transport in one piece: fewer system calls, and the rest of the loop waits little


class Connection(Protocol):
    """The connection, as its exchanges see it."""

    h2: ServerConnection["Http2Exchange"]
    send_queue: "SendQueue"
    ends_with_last_answer: bool

    def end_if_idle(self) -> None:
        """End where that was the last answer."""

    def abort(self, exchange: "Http2Exchange") -> None:
        """Break an answer off."""


class Http2Exchange(Stream):
    """One request and its answer; see `Exchange`. What has no underscore after `on_gone` is for the connection."""

    # Defaults of the class: most exchanges are answered at once, and change few of them.
    owner: Connection
    http2 = True
    on_gone: Callable[[], object] | None = None
    pending: memoryview | None = None  # of the answer's body, what no window or transport takes yet
    pending_bytes = 0  # of the whole piece that it is the end of
    is_begun = False  # some of that piece was sent
    queued = False  # in the send queue
    ended = False  # nothing comes after `pending` but `trailer`
    trailer: Trailer | None = None
    waits_since: float | None = None  # the whole answer, for the client to take it, by the clock of `tick`
    _reader: asyncio.Future[None] | None = None
    _sender: asyncio.Future[None] | None = None

    @property
    def principal(self) -> str | None:
        """Who the client is by its verified certificate."""
        return self.owner.send_queue.principal

    @property
    def address(self) -> str:
        """The address of the client."""
        return self.owner.send_queue.address

    def respond(self, headers: ResponseHeaders, body: bytes, trailer: Trailer | None = None) -> None:
        """Answer, whole."""
        connection = self.owner
        queue = connection.send_queue
        if queue.free and (
            size := connection.h2.send_response(self, headers.h2, body, None if trailer is None else trailer.h2)
        ):
            queue.add(size)
            if connection.ends_with_last_answer:
                connection.end_if_idle()
        elif self.state in SENDING_STATES:
            self._respond_in_steps(headers, body, trailer)

    def _respond_in_steps(self, headers: ResponseHeaders, body: bytes, trailer: Trailer | None) -> None:
        """Answer without a body, or with more than goes at once."""
        if self.method == b"HEAD":
            body = b""
        if not body and trailer is None:
            self._send_headers(headers.h2, end_stream=True)
            return
        self.begin(headers)
        if body:
            self._enqueue(body, trailer, ended=True)
        elif trailer is not None:
            self._send_headers(trailer.h2, end_stream=True)

    def begin(self, headers: ResponseHeaders) -> None:
        """Send the headers of an answer whose body follows."""
        if self.state in SENDING_STATES:
            self._send_headers(headers.h2)

    async def send(self, data: bytes) -> None:
        """Send a piece of the body; return when the next may be made. One at a time."""
        state = self.state  # mostly the first of these, which is found without a hash
        if (state is not HALF_CLOSED_REMOTE and state not in SENDING_STATES) or not data or self.method == b"HEAD":
            return
        connection = self.owner
        queue = connection.send_queue
        h2 = connection.h2
        size = len(data)
        # As in `offer`; a stream sends thousands of messages, and a call for each would be felt.
        if queue.free and size <= self.send_window and size <= h2.send_window and self.pending is None:
            if not queue.add(h2.send_data(self, data)):
                return
            await asyncio.sleep(0)
        else:
            self._enqueue(data, None, ended=False)
        while (self.pending is not None or queue.blocked) and self.state in SENDING_STATES:
            self._sender = queue.wait()
            try:
                await self._sender
            finally:
                self._sender = None

    def offer(self, data: bytes) -> bool:
        """Send a piece of the body, if that can be at once; else return False and send nothing."""
        if self.state not in SENDING_STATES or not data or self.method == b"HEAD":
            return False
        connection = self.owner
        queue = connection.send_queue
        h2 = connection.h2
        size = len(data)
        if queue.free and size <= self.send_window and size <= h2.send_window and self.pending is None:
            queue.add(h2.send_data(self, data))
            return True
        return False

    def end(self, trailer: Trailer | None = None) -> None:
        """End the answer."""
        if self.state not in SENDING_STATES:
            return
        if self.pending is not None and trailer is not None and not self.is_begun:
            # Whoever made it was cancelled. A trailer needs no window, and says why: a client that reads nothing would
            # else see no more of this than the end of its connection.
            self.owner.send_queue.remove(self)
        if self.pending is not None:
            self.trailer = trailer
            self.ended = True
            self.owner.send_queue.unsent_bytes += len(self.pending)
        elif trailer is not None:
            self._send_headers(trailer.h2, end_stream=True)
        else:
            connection = self.owner
            connection.send_queue.add(connection.h2.send_data(self, b"", end_stream=True))
            self._note_end()

    def abort(self) -> None:
        """Break the answer off."""
        if self.state in SENDING_STATES:
            self.owner.abort(self)

    async def read(self) -> bytes:
        """Return the next piece of the request's body, b"" at its end. One at a time."""
        connection = self.owner
        while not (data := connection.h2.windows.read(self)):
            if self.state is not OPEN:
                return b""
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        if connection.h2.output:  # windows were widened
            connection.send_queue.add(0)
        return data

    def _send_headers(self, block: bytes, *, end_stream: bool = False) -> None:
        connection = self.owner
        connection.send_queue.add(connection.h2.send_headers(self, block, end_stream=end_stream))
        if end_stream:
            self._note_end()

    def _note_end(self) -> None:
        if self.owner.ends_with_last_answer:
            self.owner.end_if_idle()

    def _enqueue(self, data: bytes, trailer: Trailer | None, *, ended: bool) -> None:
        """Leave bytes to the queue."""
        queue = self.owner.send_queue
        if self.pending is not None:  # a sender was cancelled
            data = bytes(self.pending) + data
        queue.kept_bytes += len(data) - self.pending_bytes
        self.pending, self.pending_bytes = memoryview(data), len(data)
        self.trailer = trailer
        self.ended = ended
        if ended:
            queue.unsent_bytes += len(data)
        queue.push(self)

    def note_sent(self) -> None:
        """Note that `pending` was sent; with END_STREAM, if `ended` and no trailer follows."""
        self.owner.send_queue.drop_pending(self)
        if not self.ended:
            self.wake()
        elif self.trailer is not None:
            self._send_headers(self.trailer.h2, end_stream=True)
        else:
            self._note_end()

    def wake(self) -> None:
        """Let `send` and `read` check again whether they can go on."""
        for waiter in (self._sender, self._reader):
            if waiter is not None and not waiter.done():
                waiter.set_result(None)


class SendQueue:
    """What a connection sends: frames in the order of its output; bodies as windows and the transport allow.

    `free`: neither blocked nor a queue, so that what fits the windows may go at once. `blocked`: the transport holds
    enough. `in_turn`: whoever set it flushes. `over`: nothing more is sent. `unsent_bytes`: of whole answers that wait
    for the client; `kept_bytes`: of all pieces that wait, and of what was sent of them. `moved`: something was sent of
    what waited; whoever reads it resets it.
    """

    __slots__ = (
        "_flush_scheduled",
        "_h2",
        "_loop",
        "_queue",
        "_size",
        "_transport",
        "_waiters",
        "blocked",
        "free",
        "in_turn",
        "kept_bytes",
        "moved",
        "over",
        "unsent_bytes",
    )

    def __init__(self, transport: asyncio.Transport, h2: ServerConnection[Http2Exchange]) -> None:
        self.free = True
        self.blocked = False
        self.in_turn = False
        self.over = False
        self.moved = False
        self.unsent_bytes = self.kept_bytes = 0
        self._size = 0
        self._flush_scheduled = False
        self._queue: deque[Http2Exchange] = deque()
        self._waiters: list[asyncio.Future[None]] = []
        self._transport = transport
        self._h2 = h2
        self._loop = asyncio.get_running_loop()

    @property
    def principal(self) -> str | None:
        """To whom it goes, by the client's verified certificate."""
        return cast("str | None", self._transport.get_extra_info("principal"))

    @property
    def address(self) -> str:
        """To which address it goes."""
        return address_of(self._transport)

    def add(self, size: int) -> bool:
        """Count bytes that were added to the output; return whether that was enough for one write."""
        self._size += size
        if self._size >= WRITE_BYTES:
            self.flush()
            return True
        if not self.in_turn and not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_later)
        return False

    def flush(self) -> None:
        """Give the transport what there is."""
        output = self._h2.output
        if output and not self.over:
            data = b"".join(output)
            output.clear()
            self._size = 0
            transport = self._transport
            # Of a client that is gone nothing is heard before the next turn, and asyncio logs each write until then.
            if not transport.is_closing() or transport.get_write_buffer_size():
                transport.write(data)

    def _flush_later(self) -> None:
        self._flush_scheduled = False
        self.flush()

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
        self.send_pending()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def push(self, exchange: Http2Exchange) -> None:
        """Send what is pending of a stream in its turns."""
        if not exchange.queued:
            exchange.queued = True
            self._queue.append(exchange)
        self.send_pending()

    def send_pending(self) -> None:
        """Send as much of what waits as windows and transport allow."""
        queue = self._queue
        h2 = self._h2
        while queue and h2.send_window > 0 and not self.blocked:
            exchange = queue.popleft()
            exchange.queued = False
            pending = exchange.pending
            if pending is None or exchange.send_window <= 0:
                continue
            size = min(len(pending), FRAME_BYTES_MAX, exchange.send_window, h2.send_window)
            last = size == len(pending)
            ends = last and exchange.ended and exchange.trailer is None
            count = h2.send_data(exchange, pending[:size], end_stream=ends)
            self.moved = True
            if exchange.ended:
                self.unsent_bytes -= size
            if last:
                exchange.note_sent()
            else:
                exchange.is_begun = True
                exchange.pending = pending[size:]
                exchange.queued = True
                queue.append(exchange)
            self.add(count)
        self.free = not queue and not self.blocked

    def remove(self, exchange: Http2Exchange) -> None:
        """Drop what is pending of a stream."""
        if exchange.pending is not None:
            if exchange.ended:
                self.unsent_bytes -= len(exchange.pending)
            self.drop_pending(exchange)
        if exchange.queued:
            exchange.queued = False
            self._queue.remove(exchange)

    def drop_pending(self, exchange: Http2Exchange) -> None:
        """Keep a piece no more."""
        self.kept_bytes -= exchange.pending_bytes
        exchange.pending, exchange.pending_bytes = None, 0
        if exchange.is_begun:
            exchange.is_begun = False
