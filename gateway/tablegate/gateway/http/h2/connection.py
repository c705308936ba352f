"""HTTP/2 connections (RFC 9113): turns, times, and the end."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from tablegate.gateway.http.exchange import App
from tablegate.gateway.http.h2 import frames
from tablegate.gateway.http.h2.budget import Budget
from tablegate.gateway.http.h2.exchange import WRITE_BYTES, SendQueue
from tablegate.gateway.http.h2.frames import ACK, ENHANCE_YOUR_CALM, NO_ERROR, PREFACE, PROTOCOL_ERROR, ConnectionFault
from tablegate.gateway.http.h2.headers import HEADER_BYTES_MAX
from tablegate.gateway.http.h2.receiver import STREAMS_MAX, FrameReceiver
from tablegate.gateway.http.h2.streams import HELD_BYTES_MAX, Http2Streams
from tablegate.gateway.http.receiving import Receiver

LINGER_S = 1.0  # for a client to close its side

_ALIVE_PING = b"present?"
_DRAIN_TICKS = 2  # at least a second, for a client that does not answer pings


@dataclass(frozen=True, slots=True, kw_only=True)
class Http2Limits:
    """How long a client may take."""

    preface_s: float = 10.0  # from connecting to the first frame
    body_s: float = 30.0  # without a byte of an unfinished body, or without the rest of a frame or header block
    silence_s: float = 30.0  # without a byte, before it is asked whether it is there
    answer_s: float = 20.0  # to answer that
    stall_s: float = 60.0  # without taking a byte of answers that wait for it


class Http2Connection(Receiver):
    """One connection. `on_closed` is called once, when it is gone.

    Answers that are given while bytes are being taken in leave together; so do those of one turn of the loop.
    """

    def __init__(self, app: App, limits: Http2Limits, on_closed: Callable[["Http2Connection"], None]) -> None:
        self._app = app
        self._limits = limits
        self._on_closed = on_closed
        self._transport: asyncio.Transport
        self._outbox: SendQueue
        self._streams: Http2Streams
        self._intake: FrameReceiver
        self._rest = b""  # received, not taken in yet
        self._greeted = False
        self._busy = False  # the rest is for another turn
        self._full = False  # the client leaves so much unread that it is not read any more, either
        self._over = False  # nothing more is taken in or sent

        # Since when, by the clock of `tick`; None: not, or only since the last tick.
        self._silent_since: float | None = None
        self._part_since: float | None = None  # a frame, header block or preface is not whole
        self._stalled_since: float | None = None
        self._pinged_at: float | None = None
        self._over_since: float | None = None
        self._drain_ticks = 0  # since the drain was announced

    @property
    def streams(self) -> int:
        """How many requests are not answered yet."""
        return len(self._streams.open)

    @property
    def idle(self) -> bool:
        """Whether there are none."""
        return not self._streams.open

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say what we take."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BYTES)
        budget = Budget()
        self._outbox = SendQueue(self._transport, budget)
        self._streams = Http2Streams(self._app, self._outbox, budget, self._finish)
        self._intake = FrameReceiver(self._app, self._streams, self._outbox, budget)
        bodies = self._streams.bodies
        self._outbox.put(
            frames.settings(
                (frames.MAX_CONCURRENT_STREAMS, STREAMS_MAX),
                (frames.INITIAL_WINDOW_SIZE, bodies.stream_window),
                (frames.MAX_HEADER_LIST_SIZE, HEADER_BYTES_MAX),
            )
            + frames.window_update(0, bodies.window_size - frames.WINDOW_BYTES)
        )

    def data_received(self, data: bytes) -> None:
        """Take in what came."""
        self._silent_since = None
        if self._busy:
            self._rest += data
        else:
            self._take(self._rest + data if self._rest else data)

    def eof_received(self) -> None:
        """Let the transport close: a client that sends nothing more cannot widen windows, either."""

    def connection_lost(self, _error: Exception | None) -> None:
        """Tell everyone."""
        self._end()
        self._on_closed(self)

    def pause_writing(self) -> None:
        """Keep bodies back."""
        self._outbox.block()

    def resume_writing(self) -> None:
        """Go on with what waited."""
        self._stalled_since = None
        self._outbox.unblock()
        if self._streams.serve_postponed():
            self._go_on_later()
        if self._full:
            self._full = False
            self._set_reading()
            if self._busy:
                asyncio.get_running_loop().call_soon(self._go_on)

    # What the listener calls.

    def tick(self, now: float) -> None:
        """Look for what takes too long; about once a second. `now`: of any clock that only grows."""
        if self._over:
            self._check_end(now)
            return
        try:
            self._check_client(now)
            self._check_parts(now)
            self._streams.tick(now, self._limits.body_s)
        except ConnectionFault as fault:
            self._fail(fault)
        if self._drain_ticks:
            self._drain_ticks += 1
            if self._drain_ticks > _DRAIN_TICKS:
                self._streams.stop()

    def drain(self) -> None:
        """Take no new requests soon, and end with the last answer."""
        if not self._over and not self._drain_ticks:
            self._drain_ticks = 1
            self._streams.announce_stop()

    def close(self) -> None:
        """End now."""
        if not self._over:
            self._outbox.put(frames.goaway(self._streams.last, NO_ERROR))
            self._outbox.flush()
            self._end()
        if self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            self._transport.close()

    # Time.

    def _check_client(self, now: float) -> None:
        """Ask a silent client whether it is there; raise `ConnectionFault` where it is not, or takes no answers."""
        limits = self._limits
        if self._silent_since is None:
            self._silent_since = now
            self._pinged_at = None
        elif self._pinged_at is not None:
            if now - self._pinged_at >= limits.answer_s:
                raise ConnectionFault(NO_ERROR, "no answer to a ping")
        elif now - self._silent_since >= limits.silence_s:
            self._pinged_at = now
            self._outbox.put(frames.frame(frames.PING, 0, 0, _ALIVE_PING))
        if self._outbox.moved or not self._outbox.held:
            self._outbox.moved = False
            self._stalled_since = None
        else:
            self._stalled_since = self._stalled_since or now
            if now - self._stalled_since >= limits.stall_s:
                raise ConnectionFault(ENHANCE_YOUR_CALM, "answers are not taken")

    def _check_parts(self, now: float) -> None:
        """Raise `ConnectionFault` where something has begun too long ago, and is not whole."""
        waits = self._busy or self._full  # what is here may be whole, and waits for its turn
        if self._greeted and (waits or not self._rest) and not self._intake.in_block:
            self._part_since = None
            return
        self._part_since = self._part_since or now
        if now - self._part_since >= (self._limits.body_s if self._greeted else self._limits.preface_s):
            raise ConnectionFault(PROTOCOL_ERROR, "preface, frame or header block takes too long")

    def _check_end(self, now: float) -> None:
        """Cut a client off that does not close, or does not take the last bytes."""
        self._over_since = self._over_since or now
        limit_s = self._limits.stall_s if self._transport.get_write_buffer_size() else LINGER_S
        if now - self._over_since >= limit_s:
            self._transport.abort()

    # Turns.

    def _take(self, data: bytes) -> None:
        """Take in what came, as much as one turn may; keep the rest."""
        if self._over:
            return
        outbox = self._outbox
        outbox.in_turn = True
        try:
            at = 0 if self._greeted else self._greet(data)
            if self._greeted:
                at = self._intake.take(data, at)
            if at:
                self._part_since = None
                data = data[at:]
            self._rest = data
            more = self._intake.more or self._streams.serve_postponed()
            if self._streams.done:
                self._finish()
            elif more:
                self._go_on_later()
        except ConnectionFault as fault:
            self._fail(fault)
        outbox.in_turn = False
        outbox.flush()
        if outbox.blocked and not self._over and self._transport.get_write_buffer_size() > HELD_BYTES_MAX:
            self._full = True
            self._set_reading()

    def _greet(self, data: bytes) -> int:
        """Return where frames begin, once the preface and the head of the first frame are there."""
        if not PREFACE.startswith(data[: len(PREFACE)]):
            raise ConnectionFault(PROTOCOL_ERROR, "not the preface of HTTP/2")
        if len(data) < len(PREFACE) + frames.HEAD_BYTES:
            return 0
        head, flags, _ = frames.unpack_head(data, len(PREFACE))
        if head & 0xFF != frames.SETTINGS or flags & ACK:
            raise ConnectionFault(PROTOCOL_ERROR, "the first frame is not SETTINGS")
        self._greeted = True
        return len(PREFACE)

    def _go_on_later(self) -> None:
        """Let other connections have their turn, then go on."""
        if not self._busy:
            self._busy = True
            self._set_reading()
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._full:
            return
        self._busy = False
        self._take(self._rest)
        self._set_reading()

    def _set_reading(self) -> None:
        if self._busy or self._full:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # Ends.

    def _fail(self, fault: ConnectionFault) -> None:
        """End for a client's fault."""
        if not self._over:
            self._outbox.put(frames.goaway(self._streams.last, fault.code, fault.text))
            self._finish()

    def _finish(self) -> None:
        """End after what is in the outbox.

        Only our side is closed, where that can be: what the client still sends would reset the connection, and what it
        has not read yet be lost. It closes its side, or a tick does.
        """
        if self._over:
            return
        self._outbox.flush()
        self._end()
        self._set_reading()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    def _end(self) -> None:
        """Take and send nothing more."""
        self._over = self._outbox.over = True
        self._busy = self._full = False
        self._rest = b""
        self._streams.end()
