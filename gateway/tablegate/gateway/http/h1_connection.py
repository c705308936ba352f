"""HTTP/1.1 connections (RFC 9112) on asyncio: requests are served one after another, in their order.

`advance` is the heart. It parses and serves in turns, as far as it may: it parses while no request is at work, or for
the body of the one at work; it serves while the client reads. Whatever may let it go on calls it: bytes that arrive, an
answer that ends, a client that has read. It is not reentrant (an app may answer at once, inside of it), so a call from
further up the stack returns, and the loop further down goes on.

What a client sends ahead is read even while its request is at work, since its going away is seen by reading alone; but
up to AHEAD_BYTES_MAX only, and the rest waits in its socket.

Limits are checked by `tick`. There is one clock, for whatever the connection waits for now (`_Wait`); it starts anew
when that changes, or when bytes move. A second one bounds the whole of a body, and of an answer that is made, however
slowly their bytes move; it starts anew when the connection waits for something else.

What the connection holds for its client is counted after each turn and by `tick`, in its account (`http.memory`).

The parser refuses by an answer and an end (`Refusal`), not before the requests ahead of it are answered. An end that
could be lost lingers: our half is closed, and what the client still sends is thrown away for `linger_s`.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import cast

from typing_extensions import override

from tablegate.gateway.http.connection_turns import Receiver, Turn
from tablegate.gateway.http.exchange import TEXT, App, Excess, ResponseHeaders
from tablegate.gateway.http.h1_exchange import CLOSE, Http1Exchange
from tablegate.gateway.http.h1_parser import SLICE_BYTES, Refusal, RequestParser
from tablegate.gateway.http.memory import REQUEST_BYTES, MemoryAccount
from tablegate.gateway.http.shares import address_of
from tablegate.gateway.http.transport import reset

AHEAD_BYTES_MAX = 64 * 1024  # read, but not yet served; what is in the socket waits there
WRITE_BUFFER_BYTES = 64 * 1024  # that a client may leave unread before those wait who answer it
SERVED_MAX = 64  # of them in one turn

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Http1Limits:
    """What a client may ask of one connection."""

    header_bytes_max: int = 16 * 1024  # request line and headers
    header_s: float = 10.0  # from the first byte of a request, or from the start of the connection, to its headers' end
    body_s: float = 30.0  # without a byte of an unfinished body
    whole_body_s: float = 300.0  # for all of a body, as over HTTP/2
    idle_s: float = 75.0  # between requests; more than the 60 s of common load balancers, so that they close first
    stall_s: float = 60.0  # without reading a byte of an answer
    whole_answer_s: float = 300.0  # to read all of an answer that is made, as over HTTP/2
    linger_s: float = 2.0  # for the client to read a last answer, while what it still sends is thrown away
    turn_s: float = 0.005  # of pipelined requests, before other connections have their turn; as over HTTP/2


class _Wait(Enum):
    """What a connection waits for, each with its own limit."""

    HEADERS = auto()
    BODY = auto()
    NEXT_REQUEST = auto()
    ANSWER = auto()  # of the app; no limit here
    CLIENT_TO_READ = auto()
    CLIENT_TO_CLOSE = auto()


class Http1Connection(Receiver):
    """One client. What it sends ahead is read, so that its going away is seen, but up to a bound only.

    A client that has ended its half of the connection counts as gone.
    """

    _transport: asyncio.Transport

    def __init__(
        self,
        app: App,
        limits: Http1Limits,
        turn: Turn,
        account: MemoryAccount,
        on_closed: Callable[["Http1Connection"], None],
    ) -> None:
        self.draining = False
        self._app = app
        self._limits = limits
        self._turn = turn
        self._turn_scheduled = False
        self._waited = False  # what is served now has waited for its turn
        self._received_bytes = 0
        self._account = account
        self._on_closed = on_closed
        self._parser = RequestParser(app, self._new_exchange, limits.header_bytes_max)
        # What came and is not parsed: `_rest` from `_at` on.
        self._rest = b""
        self._at = 0
        self._reading_paused = False
        self._work: Http1Exchange | None = None
        self._advancing = False
        self._over = False  # nothing more is served
        self._writable: asyncio.Future[None] | None = None  # while the client does not read
        self._wait: _Wait | None = None
        self._since = 0.0
        self._answered = 0  # requests
        self._whole: object = None  # the body or the answer that is to be whole in time, as a value
        self._whole_since = 0.0
        self._buffered = 0  # bytes written that the client had not read at the last tick

    @property
    def idle(self) -> bool:
        """Whether the client has asked for nothing that is not answered."""
        parser = self._parser
        return not (parser.begun or parser.unfinished or parser.ready or parser.refusal or self._work or self._rest)

    @property
    def principal(self) -> str | None:
        """Who the client is by its verified certificate."""
        return cast("str | None", self._transport.get_extra_info("principal"))

    @property
    def address(self) -> str:
        """The address of the client."""
        return address_of(self._transport)

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)

    @override
    def data_received(self, data: bytes) -> None:
        if self._over or self._parser.over:
            return
        self._received_bytes += len(data)
        if self._rest:
            self._rest = self._rest[self._at :] + data
            self._at = 0
        else:
            self._rest = data
        if self._turn.turns.is_busy:
            self._schedule_turn()
        else:
            self.advance()

    def eof_received(self) -> None:
        """End: the client sends no more, and the transport closes itself after what was written."""
        self._drop_work()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Let everyone know who waits for the client."""
        self._drop_work()
        self.resume_writing()
        self._account.close()
        self._on_closed(self)

    def pause_writing(self) -> None:
        """Make those wait who write."""
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """Go on with what waited."""
        writable, self._writable = self._writable, None
        if writable is not None:
            writable.set_result(None)
            self.advance()

    def _drop_work(self) -> None:
        self._over = True
        self._rest = b""
        self._parser.ready.clear()
        work, self._work = self._work, None
        if work is not None:
            work.note_gone()

    # What the listener calls.

    def tick(self, now: float) -> None:
        """End what waits for too long; `now` in seconds, on any clock."""
        buffered = self._transport.get_write_buffer_size()
        wait = self._waits_for(buffered)
        if self._parser.progressed or wait is not self._wait or buffered != self._buffered:
            self._parser.progressed = False
            self._wait = wait
            self._since = now
            self._buffered = buffered
        elif wait is not _Wait.ANSWER and now - self._since >= self._limit_s(wait):
            self._time_out(wait)
        self._check_whole(wait, now)
        self._count_kept()

    def _check_whole(self, wait: _Wait, now: float) -> None:
        """End a body or an answer whose bytes move, but that is not whole in time."""
        # A body that the app reads piece by piece is at work, and so is an answer that is still being made.
        is_bounded = self._work is None and wait in (_Wait.BODY, _Wait.CLIENT_TO_READ)
        whole = (wait, self._answered) if is_bounded else None
        if whole != self._whole:
            self._whole, self._whole_since = whole, now
        elif not is_bounded:
            return
        elif wait is _Wait.BODY:
            if now - self._whole_since >= self._limits.whole_body_s:
                self._refuse(408, f"the request's body was not whole after {self._limits.whole_body_s:g} s")
        elif now - self._whole_since >= self._limits.whole_answer_s:
            self.close()

    def _count_kept(self) -> None:
        """Count what is kept of the client's; refuse the body that comes where that is too much."""
        parser = self._parser
        count = len(self._rest) + self._transport.get_write_buffer_size()
        for exchange in (self._work, parser.unfinished, *parser.ready):
            if exchange is not None:
                count += REQUEST_BYTES + len(exchange.received) + len(exchange.body)
        self._account.hold(count)
        if parser.unfinished is not None and not self._account.may_grow:
            self._refuse(503, "this process holds too much for its clients; try again")

    def drain(self) -> None:
        """End after the request at work; now, if there is none."""
        self.draining = True
        if self.idle and not self._over:
            self._end(linger=False)

    def retire(self) -> None:
        """End with the next answer, which says so: a request may be on its way."""
        self.draining = True

    def close(self) -> None:
        """End at once."""
        self._over = True
        self._account.close()
        if self._transport.get_write_buffer_size():
            reset(self._transport)
        else:
            self._transport.abort()

    def _waits_for(self, buffered: int) -> _Wait:
        if buffered:
            return _Wait.CLIENT_TO_READ
        if self._over:
            return _Wait.CLIENT_TO_CLOSE
        if self._work is not None:
            return _Wait.BODY if self._work.waits_for_body else _Wait.ANSWER
        if self._parser.unfinished is not None:
            return _Wait.BODY
        return _Wait.HEADERS if self._parser.begun or self._parser.first else _Wait.NEXT_REQUEST

    def _limit_s(self, wait: _Wait) -> float:
        limits = self._limits
        match wait:
            case _Wait.HEADERS:
                return limits.header_s
            case _Wait.BODY:
                return limits.body_s
            case _Wait.NEXT_REQUEST:
                return limits.idle_s
            case _Wait.CLIENT_TO_READ:
                return limits.stall_s
            case _:
                return limits.linger_s

    def _time_out(self, wait: _Wait) -> None:
        if wait is _Wait.BODY:
            self._refuse(408, f"nothing of the request's body came for {self._limits.body_s:g} s")
        elif wait is _Wait.HEADERS and self._parser.begun:
            self._refuse(408, f"the request's headers were not whole after {self._limits.header_s:g} s")
        else:
            self.close()

    # What exchanges call.

    def write(self, data: bytes) -> None:
        """Send bytes."""
        transport = self._transport
        # Of a client that is gone nothing is heard before the next turn, and asyncio logs each write until then.
        if not transport.is_closing() or transport.get_write_buffer_size():
            transport.write(data)

    @property
    def is_blocked(self) -> bool:
        """Whether the client has yet to read what was written."""
        return self._writable is not None

    async def writable(self) -> None:
        """Return when the client has read most of what was written, or is gone."""
        if self._writable is not None:
            await asyncio.shield(self._writable)

    def send_continue(self, exchange: Http1Exchange) -> None:
        """Ask the client for the body, if it waits for that."""
        if exchange.expects_continue and not exchange.received and not exchange.begun:
            self.write(_CONTINUE)
        exchange.expects_continue = False

    def note_answered(self, exchange: Http1Exchange) -> None:
        """Go on with the next request, or end."""
        self._answered += 1
        self._work = None
        self._wait = None
        if exchange.last or (self.draining and self.idle):
            self._end(linger=not exchange.complete or self._rest != b"")
        else:
            self.advance()

    def break_off(self, *, by_reset: bool) -> None:
        """End without what was not sent; `by_reset` where the end alone would look like that of an answer."""
        self._work = None
        if by_reset:
            self._over = True
            reset(self._transport)
        else:
            self.close()

    def advance(self) -> None:
        """Parse and serve as far as possible, in the order of the requests."""
        if self._advancing:  # further down the stack, which goes on
            return
        self._advancing = True
        ready = self._parser.ready
        excess = self._excess()
        more = False
        served = 0
        begun_s = time.perf_counter()
        until = begun_s + self._limits.turn_s
        while not self._over:
            if ready and self._work is None and self._writable is None:
                if served == SERVED_MAX or (served and time.perf_counter() > until):
                    more = True
                    break
                served += 1
                self._work = ready.popleft()
                if excess is None:
                    self._app.serve(self._work)
                else:
                    self._app.refuse(self._work, excess)
            elif self._may_parse():
                self._parse()
            else:
                break
        self._advancing = False
        if not self._over:
            self._after_advance()
        self._turn.spend(begun_s, time.perf_counter() - begun_s)
        if more and not self._over:
            self._schedule_turn()
        elif self._waited:
            self._waited = False
            self._turn.forget_arrivals()

    def _excess(self) -> Excess | None:
        """Return for what the requests of this turn are refused."""
        if self._waited and self._turn.has_waited_too_long(self._received_bytes - len(self._rest) + self._at):
            return Excess.WAITED
        if self._account.budget.is_scarce:
            self._count_kept()  # answers may have left since
        return Excess.KEPT if self._account.is_refused else None

    def _schedule_turn(self) -> None:
        """Let other connections have their turn, then go on."""
        self._turn.note_arrival(self._received_bytes, len(self._rest) - self._at)
        if not self._turn_scheduled:
            self._turn_scheduled = self._waited = True
            self._pause_where_full()
            self._turn.wait(self._next_turn)

    def _next_turn(self) -> None:
        self._turn_scheduled = False
        self.advance()

    def _after_advance(self) -> None:
        parser = self._parser
        if self._work is None and not parser.ready:
            if parser.refusal is not None:
                self._send_refusal(parser.refusal)
                return
            if parser.unfinished is not None:
                self.send_continue(parser.unfinished)
        self._pause_where_full()
        # Not after each small request that is answered at once.
        if self._rest or self._work or parser.unfinished or self._writable or self._account.kept_bytes:
            self._count_kept()

    def _pause_where_full(self) -> None:
        """Read no more ahead than the bound."""
        full = len(self._rest) - self._at >= AHEAD_BYTES_MAX
        if full != self._reading_paused:
            self._reading_paused = full
            if full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _may_parse(self) -> bool:
        parser = self._parser
        if not self._rest or parser.ready or parser.over:
            return False
        if self._work is None:
            return self._writable is None
        return self._work is parser.unfinished and len(self._work.received) < AHEAD_BYTES_MAX

    def _parse(self) -> None:
        piece = self._rest[self._at : self._at + SLICE_BYTES]
        self._at += len(piece)
        again = self._parser.feed(piece)
        self._at -= len(again)
        if self._parser.refusal is not None:
            self._drop_unfinished()
        if self._at == len(self._rest):
            self._rest = b""
            self._at = 0

    def _refuse(self, status: int, reason: str) -> None:
        self._parser.refuse(status, reason)
        self._drop_unfinished()
        self.advance()

    def _drop_unfinished(self) -> None:
        """Forget the request whose rest is not parsed."""
        parser = self._parser
        exchange, parser.unfinished = parser.unfinished, None
        if exchange is None or not exchange.streams_body:
            return
        if exchange is not self._work:
            parser.ready.remove(exchange)
            return
        self._work = None
        exchange.note_gone()
        if exchange.begun:
            self.close()

    def _send_refusal(self, refusal: Refusal) -> None:
        headers, body = ResponseHeaders(refusal.status, (TEXT,)), refusal.reason.encode("utf-8") + b"\n"
        self.write(b"%bcontent-length: %d\r\n%b\r\n%b" % (headers.h1, len(body), CLOSE, body))
        self._end(linger=True)

    def _end(self, *, linger: bool) -> None:
        """Close after what was written; `linger` where the client may be sending still."""
        self._over = True
        self._wait = None
        self._rest = b""
        if linger and self._transport.can_write_eof():
            # Closing a socket that has bytes unread resets it, and the client may lose the answer.
            self._transport.write_eof()
            if self._reading_paused:
                self._transport.resume_reading()
        else:
            self._transport.close()

    def _new_exchange(
        self, method: bytes, target: bytes, headers: Mapping[bytes, bytes], http10: bool
    ) -> Http1Exchange:
        return Http1Exchange(self, method, target, headers, http10=http10)
