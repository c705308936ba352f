"""Turns of connections on the event loop: what a read brought is served at once, while a round of the loop has time.

All connections read through one buffer (`Receiver`). asyncio would allocate 256 KiB for each read and give most of it
back to the system, which costs 15 µs.

Beyond that connections wait here, and each round serves some of them: first who has used the least time of the loop.
A round is short, so that clients that come meanwhile are soon accepted and read; and whoever asks for little does not
wait for those who ask for much, however many they are.

Time is virtual, as in the Linux kernel's fair scheduler. Each connection has a clock, which its turns move on: by as
many times their length as its address has connections, so that more connections get no more. Who comes, or comes
again, starts at the clock of who was served last, as nobody can save time up; and a little behind it for each
connection of its address, or whoever comes by many new ones would always be first.

More than there is time for makes everybody wait for longer and longer, and then answers come whose clients have given
up. A burst is served, however long its end waits. But once connections have waited without a pause for `burst_s`, who
has waited for `wait_max_s` is refused what it asked by then, which takes a small part of what serving it would; half of
each round is for that. Both are counted by the processor's clock: a machine that is busy with other things, or was
stopped, refuses nobody.

Source of that: Maurer, Fail at Scale (2015), after Nichols and Jacobson, Controlling Queue Delay (2012).

Sources: Stoica and Abdel-Wahab, Earliest Eligible Virtual Deadline First (1995), for the clocks.

Decision: docs/decisions/0127-connections-take-turns.md
Decision: docs/decisions/0131-who-waits-too-long-is-refused.md
"""

import asyncio
import heapq
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from typing_extensions import override

BUFFER_BYTES = 256 * 1024  # read at once
ROUND_S = 0.005  # of turns, before the loop reads what has come
BEHIND_S = 0.0005  # where who comes starts, for each connection of its address: some calls of one
_ARRIVALS = 10  # that are told apart within `wait_max_s`

_buffer = memoryview(bytearray(BUFFER_BYTES))


class Receiver(asyncio.BufferedProtocol):
    """A protocol whose bytes come by `data_received`. Only for event loops of one thread: they share the buffer."""

    @override
    def get_buffer(self, sizehint: int) -> memoryview:
        return _buffer

    @override
    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(_buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Receive bytes."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitLimits:
    """How long requests wait for the turns of their connections, by the processor's clock."""

    burst_s: float = 0.25  # of work without a pause that is no overload: clients that all come back at once
    wait_max_s: float = 0.03  # in an overload, before they are refused: 1,500 Gets, or 15 of the largest BatchGets


class ConnectionTurns:
    """Whose turn it is. One event loop."""

    def __init__(
        self,
        round_s: float = ROUND_S,
        clock: Callable[[], float] = time.perf_counter,
        *,
        limits: WaitLimits | None = None,
        work_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.is_busy = False  # connections wait, or the round has no time left: whoever reads bytes has to wait, too
        self.least_s = 0.0  # the clock of who was served last
        self.round_s = round_s
        self.limits = limits or WaitLimits()
        self.work_clock = work_clock  # the time that this thread has used
        self._clock = clock
        # Since the last round, or since some milliseconds: where little is asked, there are no rounds.
        self.spent_s = 0.0
        self.renewed_at_s = 0.0  # it begins anew with the first turn after this, two rounds later: half of them is busy
        self._busy_since_s = 0.0  # by the work's clock
        # Those who wait by their clocks, and by what waits longest of each. Each is at most once in either: who was
        # served from one of them and waits again keeps its place in the other.
        self._by_clock: list[tuple[float, int, Turn]] = []
        self._by_arrival: list[tuple[float, int, Turn]] = []
        self._count = 0  # so that who waits with the same clock is served in order

    def turn(self, siblings: Callable[[], int]) -> "Turn":
        """Return the turns of a new connection; `siblings` counts the connections of its address, itself too."""
        return Turn(self, siblings)

    def wait(self, turn: "Turn", clock_s: float) -> None:
        """Serve the connection of a turn when it comes up by this clock, or is to be refused what it asked."""
        self._count += 1
        if not turn.is_queued:
            turn.is_queued = True
            heapq.heappush(self._by_clock, (clock_s, self._count, turn))
        if not turn.is_watched:
            turn.is_watched = True
            heapq.heappush(self._by_arrival, (turn.arrived_s(), self._count, turn))
        self.end_round()

    @property
    def refused_before_s(self) -> float:
        """Return when, by the work's clock, what is refused now had arrived at the latest."""
        now_s, limits = self.work_clock(), self.limits
        return now_s - limits.wait_max_s if now_s - self._busy_since_s > limits.burst_s else -math.inf

    def end_round(self) -> None:
        """Let who reads bytes from now on wait for its turn."""
        if not self.is_busy:
            self.is_busy = True
            self._busy_since_s = self.work_clock()
            asyncio.get_running_loop().call_soon(self._next_round)

    def _next_round(self) -> None:
        begun_s = self._clock()
        self.spent_s = 0.0
        try:
            self._refuse_late(begun_s + self.round_s / 2)
            while self._by_clock:
                clock_s, _, turn = heapq.heappop(self._by_clock)
                turn.is_queued = False
                if turn.waiting is not None:
                    self.least_s = max(self.least_s, clock_s)
                    turn.come()
                    if self._clock() >= begun_s + self.round_s:
                        break
        finally:
            self.spent_s = 0.0
            if self._by_clock:
                asyncio.get_running_loop().call_soon(self._next_round)
            else:
                self.is_busy = False
                for _, _, turn in self._by_arrival:  # nobody waits: those of connections that are gone would stay
                    turn.is_watched = False
                self._by_arrival.clear()

    def _refuse_late(self, until_s: float) -> None:
        """Serve those who have waited for too long: they refuse what they were asked."""
        before_s, by_arrival = self.refused_before_s, self._by_arrival
        while by_arrival and by_arrival[0][0] < before_s:
            _, _, turn = heapq.heappop(by_arrival)
            turn.is_watched = False
            if turn.waiting is None:
                continue
            if turn.arrived_s() < before_s:
                turn.come()
                if self._clock() >= until_s:
                    break
            else:  # it was served since, and waits again
                turn.is_watched = True
                self._count += 1
                heapq.heappush(by_arrival, (turn.arrived_s(), self._count, turn))


class Turn:
    """The turns of one connection."""

    __slots__ = ("_arrivals", "_clock_s", "_siblings", "is_queued", "is_watched", "turns", "unpaid_s", "waiting")

    def __init__(self, turns: ConnectionTurns, siblings: Callable[[], int]) -> None:
        self.turns = turns
        self._siblings = siblings
        self._clock_s = 0.0
        self.unpaid_s = 0.0  # that its clock was not moved on by
        self.waiting: Callable[[], object] | None = None  # what serves it
        self.is_queued = self.is_watched = False  # it is among those who wait, or was
        self._arrivals: deque[tuple[int, float]] = deque()  # bytes up to which, and when; of those that wait

    def wait(self, serve: Callable[[], object]) -> None:
        """Call `serve` when it is this connection's turn."""
        siblings = self._siblings()
        earliest_s = self.turns.least_s + BEHIND_S * siblings
        self._clock_s = max(self._clock_s + self.unpaid_s * siblings, earliest_s)
        self.unpaid_s = 0.0
        self.waiting = serve
        self.turns.wait(self, self._clock_s)

    def come(self) -> None:
        """Serve it: it is its turn."""
        serve, self.waiting = self.waiting, None
        assert serve is not None, "it waits"
        serve()

    def note_arrival(self, received_bytes: int, waiting_bytes: int) -> None:
        """Note that of all bytes of the connection, so many by now, the last ones wait for its turn."""
        now_s, arrivals = self.turns.work_clock(), self._arrivals
        self._forget_served(received_bytes - waiting_bytes)
        if not waiting_bytes:
            return
        if arrivals and now_s - arrivals[-1][1] < self.turns.limits.wait_max_s / _ARRIVALS:
            now_s = arrivals.pop()[1]
        arrivals.append((received_bytes, now_s))

    def arrived_s(self) -> float:
        """Return when, by the work's clock, what waits longest had arrived."""
        return self._arrivals[0][1] if self._arrivals else self.turns.work_clock()

    def has_waited_too_long(self, served_bytes: int) -> bool:
        """Return whether what comes behind so many bytes of the connection is to be refused."""
        self._forget_served(served_bytes)
        return bool(self._arrivals) and self._arrivals[0][1] < self.turns.refused_before_s

    def _forget_served(self, served_bytes: int) -> None:
        while self._arrivals and self._arrivals[0][0] <= served_bytes:
            self._arrivals.popleft()

    def forget_arrivals(self) -> None:
        """Count no more how long bytes wait: none is left, or they wait for their client."""
        self._arrivals.clear()

    def spend(self, begun_s: float, took_s: float) -> None:
        """Count time of the loop that the connection took, from a time by `time.perf_counter` on."""
        self.unpaid_s += took_s
        turns = self.turns
        if begun_s > turns.renewed_at_s:
            turns.renewed_at_s = begun_s + 2 * turns.round_s
            turns.spent_s = 0.0
        turns.spent_s += took_s
        if turns.spent_s > turns.round_s:
            turns.end_round()
