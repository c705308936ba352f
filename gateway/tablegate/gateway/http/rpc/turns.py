"""Turns of streams on the event loop: unary calls are served first, and streams share the rest.

A unary call is served where its bytes are read. A stream that makes one message after the other is ready in each round
of the loop, and 200 of them made a round of a second, in which no byte was read. So a stream waits for its turn before
each message, and a round has as many turns as fit TURN_S by the last ones' cost, at least one: between two rounds the
loop reads what has come. A stream that waits for its client or for changes has no turn to wait for meanwhile; where
that has no task, it is called at its turn: what finds no time left in its round is the first of the next one.

Who sends changes to many has turns of its own, one before each round: behind all streams a change for a hundred
thousand, which takes hundreds of turns, would wait as often for each scan and for each stream that begins.

The loop asks for what has come after it has collected what it is to run. So turns that are given in the pass that ends
a round would all be run before anything that came meanwhile. They are given one pass later: a call waits for the rest
of one round, and not for a whole one more.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable

TURN_S = 0.0005  # of one round of the loop, for all streams together: so long may a call wait for them
_WEIGHT = 0.25  # of the last round in the mean cost of a turn


class StreamTurns:
    """Whose turn it is. One event loop."""

    def __init__(self, turn_s: float = TURN_S, clock: Callable[[], float] = time.perf_counter) -> None:
        self._turn_s = turn_s
        self._clock = clock
        self._cost_s = turn_s  # of one turn, in the mean
        self._waiting: deque[asyncio.Future[None] | Callable[[], None]] = deque()
        self._begun_s = 0.0
        self._count = 0  # turns of this round
        self._deferred: list[Callable[[], None]] = []  # of this round to the next
        self._for_many: deque[Callable[[], None]] = deque()
        self._scheduled = False

    async def wait(self) -> None:
        """Return when it is the caller's turn: in the next round of the loop, or a later one; in order."""
        turn = asyncio.get_running_loop().create_future()
        self._add(turn)
        await turn

    def call(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` when it is the caller's turn: now, where nobody has one in this round, else as `wait`."""
        if self._scheduled:
            self._waiting.append(go_on)
        else:
            self._call_now(go_on)

    def call_for_many(self, go_on: Callable[[], None]) -> None:
        """Call `go_on`, which sends to many, before the next round that has yet none of these: now, where none goes."""
        if self._scheduled:
            self._for_many.append(go_on)
        else:
            self._call_now(go_on)

    def _call_now(self, go_on: Callable[[], None]) -> None:
        self._scheduled = True
        self._begin()
        try:
            go_on()
        finally:
            self._count = 1
            self._end_round(asyncio.get_running_loop())

    def _add(self, turn: asyncio.Future[None]) -> None:
        self._waiting.append(turn)
        if not self._scheduled:
            self._scheduled = True
            loop = asyncio.get_running_loop()
            loop.call_soon(self._give_turns, loop)

    def _begin(self) -> None:
        self._begun_s = self._clock()

    def _end_round(self, loop: asyncio.AbstractEventLoop) -> None:
        """Count what the round cost, and let the loop read before the next one."""
        self._waiting.extendleft(reversed(self._deferred))
        self._deferred.clear()
        if self._count:
            cost_s = (self._clock() - self._begun_s) / self._count
            self._cost_s += _WEIGHT * (cost_s - self._cost_s)
        loop.call_soon(self._give_turns, loop)

    def _give_turns(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin a round. What is scheduled here runs in this order, in a row."""
        self._count = 0
        most = max(1, int(self._turn_s / max(self._cost_s, 1e-6)))
        sends_to_many = bool(self._for_many)
        if sends_to_many:
            loop.call_soon(self._for_many.popleft())
        loop.call_soon(self._begin)
        while self._waiting and self._count < most:
            turn = self._waiting.popleft()
            if not isinstance(turn, asyncio.Future):
                loop.call_soon(self._call, turn)
                self._count += 1
            elif not turn.done():  # its stream was cancelled
                turn.set_result(None)
                self._count += 1
        self._scheduled = sends_to_many or self._count > 0
        if self._scheduled:
            loop.call_soon(self._end_round, loop)

    def _call(self, go_on: Callable[[], None]) -> None:
        if self._clock() - self._begun_s <= self._turn_s:
            go_on()
        else:
            self._count -= 1
            self._deferred.append(go_on)
