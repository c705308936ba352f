"""HTTP/2 connections on asyncio: turns, times, and the end. The protocol itself is `tablegate.gateway.http.h2`.

Turns. A read may bring thousands of frames. One connection serves up to TURN_FRAMES of them, or for `turn_s`. Then it
keeps the rest, and goes on when it is its turn again (`http.connection_turns`): so one client costs the others
milliseconds. Answers that are given inside of a turn leave together at its end.

Slow clients. Two bounds keep memory small when a client does not take its answers. Above UNSENT_BYTES_MAX of answers
that wait for a window, requests are postponed: they are served when there is room. Above as much in the transport's
buffer, which windows do not bound (headers, acknowledgements), the client is not read any more. What a connection holds
of all kinds is counted at the end of each turn and by `tick`, in its account (`http.memory`).

The end. A drain takes two GOAWAYs (RFC 9113, 6.8): the first says that the end is near, and the requests that were on
their way are still served; the second, once the client has answered the PING between them, refuses new ones. The
connection ends with its last answer, our half first: closing a socket that has unread bytes would reset it, and the
client might lose that answer.

Decision: docs/decisions/0051-http2-without-io.md
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from tablegate.gateway.http.connection_turns import Receiver, Turn
from tablegate.gateway.http.exchange import TEXT, App, Excess, ResponseHeaders
from tablegate.gateway.http.h2.connection import ServerConnection
from tablegate.gateway.http.h2.frames import (
    CANCEL,
    ENHANCE_YOUR_CALM,
    INTERNAL_ERROR,
    NO_ERROR,
    PROTOCOL_ERROR,
    Http2ConnectionError,
)
from tablegate.gateway.http.h2.stream import (
    NEED_DATA,
    DataReceived,
    Event,
    GoawayReceived,
    HeadersTooLarge,
    InitialWindowChanged,
    ShutdownAcknowledged,
    StreamEnded,
    WindowUpdated,
)
from tablegate.gateway.http.h2_exchange import WRITE_BYTES, Http2Exchange, SendQueue
from tablegate.gateway.http.memory import REQUEST_BYTES, MemoryAccount
from tablegate.gateway.http.transport import reset

TURN_FRAMES = 100  # of one connection, a request with its body in one frame counted as one, before others have theirs
FEW_STREAMS = 16  # calls at work that are not counted at each turn
UNREAD_BYTES_MAX = 64 * 1024  # that wait for a turn, before no more is read
UNSENT_BYTES_MAX = 1 << 20  # of answers that a client does not take, before nothing more of it is served
LINGER_S = 1.0  # for a client to close its side

_ALIVE_PING = b"present?"
_DRAIN_TICKS = 2  # at least a second, for a client that does not answer pings
_HEADERS_TOO_LARGE = ResponseHeaders(431, (TEXT,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Http2Limits:
    """How long a client may take, and one turn of its connection."""

    preface_s: float = 10.0  # from connecting to the first frame
    body_s: float = 30.0  # without a byte of an unfinished body, or without the rest of a frame or header block
    whole_body_s: float = 300.0  # for all of a body, however many bytes a minute come: of the longest 3.5 KB/s
    silence_s: float = 30.0  # without a byte, before it is asked whether it is there
    answer_s: float = 20.0  # to answer that
    stall_s: float = 60.0  # without taking a byte of answers that wait for it
    whole_answer_s: float = 300.0  # to take all of an answer that waits, however many bytes a minute it takes
    turn_s: float = 0.005  # before other connections have their turn


class Http2Connection(Receiver):
    """One connection. `on_closed` is called once, when it is gone."""

    h2: ServerConnection[Http2Exchange]
    send_queue: SendQueue
    _transport: asyncio.Transport

    def __init__(
        self,
        app: App,
        limits: Http2Limits,
        turn: Turn,
        account: MemoryAccount,
        on_closed: Callable[["Http2Connection"], None],
    ) -> None:
        self.ends_with_last_answer = False
        self._app = app
        self._limits = limits
        self._turn = turn
        self._account = account
        self._on_closed = on_closed
        self._postponed: dict[int, Http2Exchange] = {}  # requests that are served when the client has taken answers
        self._turn_scheduled = False  # what was received waits for another turn
        self._waited = False  # some of it has waited for this one
        self._received_bytes = 0
        self._full = False  # the client leaves so much unread that it is not read any more, either
        self._over = False  # nothing more is received or sent
        self._started = False  # the preface was there at the last tick

        # Since when, by the clock of `tick`; None: not, or only since the last tick.
        self._silent_since: float | None = None
        self._part_since: float | None = None  # a frame, header block or preface is not whole
        self._stalled_since: float | None = None
        self._pinged_at: float | None = None
        self._over_since: float | None = None
        self._drain_ticks = 0  # since the drain was announced

    @property
    def open_streams(self) -> int:
        """How many requests are not answered yet."""
        return len(self.h2.streams)

    @property
    def idle(self) -> bool:
        """Whether there are none."""
        return not self.h2.streams

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send our SETTINGS."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BYTES)
        self.h2 = ServerConnection(
            body_bytes_max=self._app.body_bytes_max,
            new_stream=Http2Exchange,
            owner=self,
            streams_body=self._app.streams_body,
        )
        self.send_queue = SendQueue(self._transport, self.h2)
        self.send_queue.add(0)

    def data_received(self, data: bytes) -> None:
        """Receive bytes, and serve what they ask for."""
        if self._over:
            return
        self._silent_since = None
        self._received_bytes += len(data)
        try:
            self.h2.receive_data(data)
        except Http2ConnectionError as error:
            self._fail(error)
            return
        if self._turn_scheduled:
            self._turn.note_arrival(self._received_bytes, len(self.h2.unread))
            if len(self.h2.unread) > UNREAD_BYTES_MAX:
                self._set_reading()
        elif self._turn.turns.is_busy:
            self._schedule_turn()
        else:
            self._serve_turn()

    def eof_received(self) -> None:
        """Let the transport close: a client that sends nothing more cannot widen windows, either."""

    def connection_lost(self, _error: Exception | None) -> None:
        """Let everyone know who waits for the client."""
        self._end()
        self._account.close()
        self._on_closed(self)

    def pause_writing(self) -> None:
        """Keep bodies back."""
        self.send_queue.block()

    def resume_writing(self) -> None:
        """Go on with what waited."""
        self._stalled_since = None
        self.send_queue.unblock()
        if self._postponed and self._serve_postponed():
            self._schedule_turn()
        if self._full:
            self._full = False
            self._set_reading()
            if self._turn_scheduled:
                self._turn.wait(self._next_turn)

    # What the listener calls.

    def tick(self, now: float) -> None:
        """End what takes too long; called about once a second. `now`: of any clock that only grows."""
        if self._over:
            self._count_kept()
            self._check_end(now)
            return
        try:
            self._check_client(now)
            self._check_parts(now)
            self.h2.tick(now, self._limits.body_s, self._limits.whole_body_s)
            self._end_slow_answers(now)
            self._count_kept()
            self.h2.widen_windows()  # which may have been shut
        except Http2ConnectionError as error:
            self._fail(error)
        else:
            self._flush_soon()
            if self.ends_with_last_answer:
                self.end_if_idle()  # the body that came no further may have been the last
        if self._drain_ticks:
            self._drain_ticks += 1
            if self._drain_ticks > _DRAIN_TICKS:
                self._refuse_new_streams()

    def drain(self) -> None:
        """Take no new requests soon, and end with the last answer."""
        if not self._over and not self._drain_ticks:
            self._drain_ticks = 1
            self.h2.announce_shutdown()
            self._flush_soon()

    def retire(self) -> None:
        """As a drain: it loses no request that is on its way."""
        self.drain()

    def close(self) -> None:
        """End now."""
        self._account.close()
        if not self._over:
            self.h2.send_goaway(NO_ERROR)
            self.send_queue.flush()
            self._end()
        if self._transport.get_write_buffer_size():
            reset(self._transport)
        else:
            self._transport.close()

    # What exchanges call.

    def abort(self, exchange: Http2Exchange) -> None:
        """Break an answer off."""
        exchange.on_gone = None
        self.h2.reset_stream(exchange.stream_id, INTERNAL_ERROR)
        self._forget(exchange)
        self._flush_soon()

    def end_if_idle(self) -> None:
        """End where that was the last answer; a turn does so itself, at its end."""
        if not self.h2.streams and not self.send_queue.in_turn:
            self._finish()

    # Turns.

    def _serve_turn(self) -> None:
        """Serve what was received, as much as one turn may."""
        h2 = self.h2
        queue = self.send_queue
        begun_s = time.perf_counter()
        queue.in_turn = True
        more = False
        try:
            more = bool(h2.unread) and self._serve_frames(begun_s + self._limits.turn_s)
            h2.widen_windows()
            if self._postponed and not more:
                more = self._serve_postponed()
            if self.ends_with_last_answer and not h2.streams:
                self._finish()
        except Http2ConnectionError as error:
            self._fail(error)
        queue.in_turn = False
        queue.flush()
        # What a few small calls hold, `tick` counts soon enough.
        few = len(h2.streams) <= FEW_STREAMS
        if not few or h2.unread or h2.request_bytes or h2.windows.kept or self._account.kept_bytes:
            self._count_kept()
        if queue.blocked and not self._over and self._transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            self._full = True
            self._set_reading()
        self._turn.spend(begun_s, time.perf_counter() - begun_s)
        if more and not self._over:
            self._schedule_turn()
        elif self._waited:
            self._waited = False
            self._turn.forget_arrivals()

    def _excess(self) -> Excess | None:
        """Return for what the requests of this turn are refused."""
        if self._waited and self._turn.has_waited_too_long(self._received_bytes - len(self.h2.unread)):
            return Excess.WAITED
        self._count_kept()  # answers may have left since
        return Excess.KEPT if self._account.is_refused else None

    def _count_kept(self) -> None:
        """Count what is kept of the client's, and let it send no more where that is too much."""
        h2 = self.h2
        at_work = h2.kept_bytes + REQUEST_BYTES * len(h2.streams)
        self._account.hold(at_work + self.send_queue.kept_bytes + self._transport.get_write_buffer_size())
        h2.windows.shut = not self._account.may_grow

    def _serve_frames(self, until_s: float) -> bool:
        """Receive frames, as many as one turn may; return whether there may be more. Raise `Http2ConnectionError`."""
        h2 = self.h2
        next_event = h2.next_event
        serve = self._app.serve
        queue = self.send_queue
        excess = self._excess() if self._waited or self._account.budget.is_scarce else None
        clock = time.perf_counter
        more = True
        for count in range(TURN_FRAMES):
            event = next_event()
            if type(event) is Http2Exchange:
                if queue.unsent_bytes > UNSENT_BYTES_MAX:
                    self._postpone(event)
                elif excess is not None:
                    self._app.refuse(event, excess)
                else:
                    serve(event)
            elif event is NEED_DATA:
                if count == 0:
                    return False
                more = False
                break
            elif event is not None:
                self._handle(event)
            if not h2.unread:
                more = False
                break
            if clock() > until_s:
                break
        self._part_since = None
        return more

    def _postpone(self, exchange: Http2Exchange) -> None:
        self.h2.windows.keep(exchange)
        self._postponed[exchange.stream_id] = exchange

    def _handle(self, event: Event[Http2Exchange]) -> None:
        """Do what an event asks for that is no request to be served."""
        match event:
            case WindowUpdated(stream=stream):
                queue = self.send_queue
                if stream is None:
                    if not queue.free:
                        queue.send_pending()
                elif stream.pending is not None:
                    queue.push(stream)
            case DataReceived():
                event.stream.wake()
            case StreamEnded():
                self._forget(event.stream)
            case HeadersTooLarge():
                event.stream.respond(_HEADERS_TOO_LARGE, b"the header fields are larger than 16 KiB")
            case InitialWindowChanged():
                for stream in list(self.h2.streams.values()):
                    if stream.pending is not None:
                        self.send_queue.push(stream)
            case ShutdownAcknowledged():
                self._refuse_new_streams()
            case GoawayReceived():
                self._end_with_last_answer()
            case _:
                raise AssertionError(f"{type(event).__name__} is no event for here")

    def _serve_postponed(self) -> bool:
        """Serve what waited for the client to take answers, as much as one turn may; return whether there is more."""
        until = time.perf_counter() + self._limits.turn_s
        for _ in range(TURN_FRAMES):
            if not self._postponed or self.send_queue.unsent_bytes > UNSENT_BYTES_MAX:
                return False
            exchange = self._postponed.pop(next(iter(self._postponed)))
            self.h2.windows.release(exchange)
            self._app.serve(exchange)
            if time.perf_counter() > until:
                break
        return True

    def _schedule_turn(self) -> None:
        """Let other connections have their turn, then go on."""
        if not self._turn_scheduled:
            self._turn_scheduled = self._waited = True
            self._set_reading()
            self._turn.note_arrival(self._received_bytes, len(self.h2.unread))
            self._turn.wait(self._next_turn)

    def _next_turn(self) -> None:
        if self._full or self._over:
            self._turn.forget_arrivals()  # it is the client that others wait for
            return
        self._turn_scheduled = False
        self._serve_turn()
        self._set_reading()

    def _set_reading(self) -> None:
        if self._full or (self._turn_scheduled and len(self.h2.unread) > UNREAD_BYTES_MAX):
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _flush_soon(self) -> None:
        if self.h2.output:
            self.send_queue.add(0)

    # Time.

    def _check_client(self, now: float) -> None:
        """Ask a silent client whether it is there; raise `Http2ConnectionError` where it is not, or reads nothing."""
        limits = self._limits
        if self._silent_since is None:
            self._silent_since = now
            self._pinged_at = None
        elif self._pinged_at is not None:
            if now - self._pinged_at >= limits.answer_s:
                raise Http2ConnectionError(NO_ERROR, "no answer to a ping")
        elif now - self._silent_since >= limits.silence_s:
            self._pinged_at = now
            self.h2.send_ping(_ALIVE_PING)
        if self.send_queue.moved or not self.send_queue.unsent_bytes:
            self.send_queue.moved = False
            self._stalled_since = None
        else:
            self._stalled_since = self._stalled_since or now
            if now - self._stalled_since >= limits.stall_s:
                raise Http2ConnectionError(ENHANCE_YOUR_CALM, "answers are not taken")

    def _end_slow_answers(self, now: float) -> None:
        """Reset the streams whose whole answer has waited for too long: a client may take a byte of it a minute."""
        if not self.send_queue.unsent_bytes:
            return
        for exchange in tuple(self.h2.streams.values()):
            if exchange.ended and exchange.pending is not None:
                if exchange.waits_since is None:
                    exchange.waits_since = now
                elif now - exchange.waits_since >= self._limits.whole_answer_s:
                    self.h2.reset_stream(exchange.stream_id, CANCEL)
                    self._forget(exchange)

    def _check_parts(self, now: float) -> None:
        """Raise `Http2ConnectionError` where something has begun too long ago, and is not whole."""
        h2 = self.h2
        waits = self._turn_scheduled or self._full  # what is here may be whole, and waits for its turn
        if h2.started and not self._started:
            self._started = True
            self._part_since = None
        if h2.started and (waits or not h2.unread) and not h2.in_header_block:
            self._part_since = None
            return
        self._part_since = self._part_since or now
        if now - self._part_since >= (self._limits.body_s if h2.started else self._limits.preface_s):
            raise Http2ConnectionError(PROTOCOL_ERROR, "preface, frame or header block takes too long")

    def _check_end(self, now: float) -> None:
        """Cut a client off that does not close, or does not take the last bytes."""
        self._over_since = self._over_since or now
        limit_s = self._limits.stall_s if self._transport.get_write_buffer_size() else LINGER_S
        if now - self._over_since >= limit_s:
            reset(self._transport)

    # Ends.

    def _forget(self, exchange: Http2Exchange) -> None:
        """Let go of an exchange whose stream has ended before its answer, and let those know who make the answer."""
        self.send_queue.remove(exchange)
        if self._postponed.pop(exchange.stream_id, None) is not None:
            self.h2.windows.release(exchange)
        exchange.wake()
        on_gone, exchange.on_gone = exchange.on_gone, None
        if on_gone is not None:
            on_gone()
        if self.ends_with_last_answer:
            self.end_if_idle()

    def _refuse_new_streams(self) -> None:
        if self.h2.refuse_new_streams():
            self._flush_soon()
            self._end_with_last_answer()

    def _end_with_last_answer(self) -> None:
        self.ends_with_last_answer = True
        self.end_if_idle()

    def _fail(self, error: Http2ConnectionError) -> None:
        """End for a client's error."""
        if not self._over:
            self.h2.send_goaway(error.code, error.text)
            self._finish()

    def _finish(self) -> None:
        """End after what is in the send queue.

        Only our side is closed, where that can be: what the client still sends would reset the connection, and what it
        has not read yet be lost. It closes its side, or a tick does.
        """
        if self._over:
            return
        self.send_queue.flush()
        self._end()
        self._set_reading()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    def _end(self) -> None:
        """Receive and send nothing more."""
        self._over = self.send_queue.over = True
        self.ends_with_last_answer = False
        self._turn_scheduled = self._full = False
        self.h2.unread = b""
        for exchange in self.h2.end_streams():
            self._forget(exchange)
