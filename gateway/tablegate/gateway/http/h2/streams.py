"""The streams of an HTTP/2 connection: which are open, which are served, and how they end."""

import time
from collections.abc import Callable

from tablegate.gateway.http.exchange import App
from tablegate.gateway.http.h2 import frames
from tablegate.gateway.http.h2.bodies import RequestBodies
from tablegate.gateway.http.h2.budget import Budget
from tablegate.gateway.http.h2.exchange import Http2Exchange, SendQueue
from tablegate.gateway.http.h2.frames import NO_ERROR, PING, PROTOCOL_ERROR, WINDOW_MAX, ConnectionFault

TURN_S = 0.005  # of one connection, before others have their turn
TURN_FRAMES = 100  # of one connection, a request with its body in one frame counted as one, before others have theirs
HELD_BYTES_MAX = 1 << 20  # of answers that a client does not take, before nothing more of it is served
RESET_STREAMS_MAX = 1_000  # streams remembered as reset: what a client sent before it knew is not its fault
DRAIN_PING = b"draining"


class Http2Streams:
    """The streams of one connection.

    `on_last`: called where the last answer is given and the connection is to end, but not inside of a turn: after it,
    `done` says so.
    """

    def __init__(self, app: App, outbox: SendQueue, budget: Budget, on_last: Callable[[], None]) -> None:
        self._app = app
        self._outbox = outbox
        self._budget = budget
        self._on_last = on_last
        self.open: dict[int, Http2Exchange] = {}
        self.bodies = RequestBodies(app.body_bytes_max, outbox, self.refuse)
        self._postponed: dict[int, Http2Exchange] = {}  # those that are served when the client has taken answers
        self._reset: dict[int, None] = {}  # the latest that we reset
        self.last = 0  # the newest stream that was taken
        self.last_allowed = WINDOW_MAX
        self._last_before = 0  # the newest one when the budget's span began: it is no attack to end older ones
        self._stopping = False  # ends with the last answer

    def serve(self, exchange: Http2Exchange) -> None:
        """Give the app a request, now or when the client has taken answers."""
        if self._outbox.held > HELD_BYTES_MAX:
            self.bodies.kept += len(exchange.body)
            self._postponed[exchange.stream] = exchange
        else:
            self._app.serve(exchange)

    def serve_postponed(self) -> bool:
        """Serve what waited for the client to take answers, as much as one turn may; return whether there is more."""
        until = time.perf_counter() + TURN_S
        for _ in range(TURN_FRAMES):
            if not self._postponed or self._outbox.held > HELD_BYTES_MAX:
                return False
            exchange = self._postponed.pop(next(iter(self._postponed)))
            self.bodies.kept -= len(exchange.body)
            self._app.serve(exchange)
            if time.perf_counter() > until:
                break
        return True

    def answered(self, exchange: Http2Exchange) -> None:
        """Note that an answer is whole."""
        self._budget.answers += 1
        exchange.closed = True
        del self.open[exchange.stream]
        if exchange.buffer is not None:
            self.bodies.forget(exchange)
        if not exchange.complete:
            self._put_reset(exchange.stream, NO_ERROR)
        if self._stopping:
            self._end_if_idle()

    def read(self, exchange: Http2Exchange, size: int) -> None:
        """Note that bytes of a request were read."""
        self.bodies.read(exchange, size)

    def aborted(self, exchange: Http2Exchange) -> None:
        """Break an answer off."""
        exchange.on_gone = None
        self.refuse(exchange.stream, frames.INTERNAL_ERROR)

    def cancelled(self, exchange: Http2Exchange) -> None:
        """End a stream that its client reset."""
        self._drop(exchange)
        if exchange.stream > self._last_before:
            self._budget.count_reset()

    def is_late(self, stream: int) -> bool:
        """Whether what comes on a stream is late, not wrong: it was reset, or opened when we had said that none may."""
        return stream in self._reset or (stream & 1 == 1 and stream > self.last_allowed)

    def refuse(self, stream: int, code: int) -> None:
        """Reset a stream."""
        self._put_reset(stream, code)
        exchange = self.open.get(stream)
        if exchange is not None:
            self._drop(exchange)

    def check_was_open(self, stream: int) -> None:
        """Raise `ConnectionFault` for a stream that was never open."""
        if (not stream & 1 or stream > self.last) and not self.is_late(stream):
            raise ConnectionFault(PROTOCOL_ERROR, "frame on a stream that was never open")

    def _put_reset(self, stream: int, code: int) -> None:
        self._outbox.put(frames.rst_stream(stream, code))
        self._reset[stream] = None
        if len(self._reset) > RESET_STREAMS_MAX:
            del self._reset[next(iter(self._reset))]

    def _drop(self, exchange: Http2Exchange) -> None:
        """End a stream without its answer, and tell who makes it."""
        del self.open[exchange.stream]
        exchange.closed = True
        self.bodies.forget(exchange)
        self._outbox.forget(exchange)
        if self._postponed.pop(exchange.stream, None) is not None:
            self.bodies.kept -= len(exchange.body)
        exchange.wake()
        on_gone, exchange.on_gone = exchange.on_gone, None
        if on_gone is not None:
            on_gone()
        if self._stopping:
            self._end_if_idle()

    def tick(self, now: float, body_s: float) -> None:
        """Look at the time; `body_s`: how long a body may not come on."""
        if self._budget.tick(now):
            self._last_before = self.last
        self.bodies.end_slow(now, body_s)

    def announce_stop(self) -> None:
        """Tell the client that no new streams will be taken soon, in time for those that are on their way."""
        self._outbox.put(frames.goaway(WINDOW_MAX, NO_ERROR) + frames.frame(PING, 0, 0, DRAIN_PING))

    def stop(self) -> None:
        """Take no new streams."""
        if self.last_allowed == WINDOW_MAX:
            self.last_allowed = self.last
            self._outbox.put(frames.goaway(self.last, NO_ERROR))
            self.end_after_last()

    def end_after_last(self) -> None:
        """End the connection with the last answer."""
        self._stopping = True
        self._end_if_idle()

    @property
    def done(self) -> bool:
        """Whether the connection is to end now."""
        return self._stopping and not self.open

    def _end_if_idle(self) -> None:
        if not self.open and not self._outbox.in_turn:
            self._on_last()

    def end(self) -> None:
        """Drop every stream."""
        self._stopping = False
        for exchange in list(self.open.values()):
            self._drop(exchange)
