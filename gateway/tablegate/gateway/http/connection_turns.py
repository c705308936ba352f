"""Turns of connections on the event loop: what a read brought is served at once, while a round of the loop has time.

Beyond that connections wait here, and each round serves some of them: first who has used the least time of the loop.
A round is short, so that clients that come meanwhile are soon accepted and read; and whoever asks for little does not
wait for those who ask for much, however many they are.

Time is virtual, as in the Linux kernel's fair scheduler. Each connection has a clock, which its turns move on: by as
many times their length as its address has connections, so that more connections get no more. Who comes, or comes
again, starts at the clock of who was served last, as nobody can save time up; and a little behind it for each
connection of its address, or whoever comes by many new ones would always be first.

Sources: Stoica and Abdel-Wahab, Earliest Eligible Virtual Deadline First (1995), for the clocks.

Decision: docs/decisions/0127-connections-take-turns.md
"""

import asyncio
import heapq
import time
from collections.abc import Callable

ROUND_S = 0.005  # of turns, before the loop reads what has come
BEHIND_S = 0.0005  # where who comes starts, for each connection of its address: some calls of one


class ConnectionTurns:
    """Whose turn it is. One event loop."""

    def __init__(self, round_s: float = ROUND_S, clock: Callable[[], float] = time.perf_counter) -> None:
        self.is_busy = False  # connections wait, or the round has no time left: whoever reads bytes has to wait, too
        self.least_s = 0.0  # the clock of who was served last
        self.round_s = round_s
        self._clock = clock
        # Since the last round, or since some milliseconds: where little is asked, there are no rounds.
        self.spent_s = 0.0
        self.renewed_at_s = 0.0  # it begins anew with the first turn after this, two rounds later: half of them is busy
        self._waiting: list[tuple[float, int, Callable[[], object]]] = []
        self._count = 0  # so that who waits with the same clock is served in order

    def turn(self, siblings: Callable[[], int]) -> "Turn":
        """Return the turns of a new connection; `siblings` counts the connections of its address, itself too."""
        return Turn(self, siblings)

    def wait(self, clock_s: float, serve: Callable[[], object]) -> None:
        """Call `serve` when it is the turn of the connection with this clock."""
        self._count += 1
        heapq.heappush(self._waiting, (clock_s, self._count, serve))
        self.end_round()

    def end_round(self) -> None:
        """Let who reads bytes from now on wait for its turn."""
        if not self.is_busy:
            self.is_busy = True
            asyncio.get_running_loop().call_soon(self._next_round)

    def _next_round(self) -> None:
        until_s = self._clock() + self.round_s
        self.spent_s = 0.0
        try:
            while self._waiting:
                clock_s, _, serve = heapq.heappop(self._waiting)
                self.least_s = max(self.least_s, clock_s)
                serve()
                if self._clock() >= until_s:
                    break
        finally:
            self.spent_s = 0.0
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._next_round)
            else:
                self.is_busy = False


class Turn:
    """The turns of one connection."""

    __slots__ = ("_clock_s", "_siblings", "turns", "unpaid_s")

    def __init__(self, turns: ConnectionTurns, siblings: Callable[[], int]) -> None:
        self.turns = turns
        self._siblings = siblings
        self._clock_s = 0.0
        self.unpaid_s = 0.0  # that its clock was not moved on by

    def wait(self, serve: Callable[[], object]) -> None:
        """Call `serve` when it is this connection's turn."""
        siblings = self._siblings()
        earliest_s = self.turns.least_s + BEHIND_S * siblings
        self._clock_s = max(self._clock_s + self.unpaid_s * siblings, earliest_s)
        self.unpaid_s = 0.0
        self.turns.wait(self._clock_s, serve)

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
