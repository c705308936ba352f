"""A table's feed in this process: pumped when the bell rings, for as long as anybody is subscribed."""

import asyncio
import time
from collections.abc import Callable

from tablegate.gateway.query.errors import PartitionUnavailable, QueryError
from tablegate.gateway.query.serving import ServedGeneration, TableAccess
from tablegate.gateway.query.subscribe.broadcaster import ChangeBroadcaster
from tablegate.gateway.stores.base import Snapshot, StoreUnavailable

FLUSH_S = 0.01  # changes that come within it, or less, are given together; the first of them at once
FLUSH_TIMES = 5  # as long as giving took the last time: few subscribers hear at once, many are no load for ever
BURST_PAUSE_S = 0.005  # between two parts of a burst, for subscribers to take the first
BURST_WAIT_S = 0.05  # where some have not: who takes less than that is slow, and does not hold up the others


def is_same(life: ServedGeneration, other: ServedGeneration) -> bool:
    """Return whether offsets of the one mean something in the other; a store that is made anew counts lives anew."""
    return life.store_id == other.store_id and life.state.life_id == other.state.life_id


class LiveTable:
    """Keeps the feed of the life that is served. One event loop."""

    def __init__(self, access: TableAccess) -> None:
        self.bell = access.notifier
        self.on_toll: set[Callable[[], None]] = set()  # of streams that wait for other gateways
        self._access = access
        self._feed: ChangeBroadcaster | None = None
        self._life: ServedGeneration | None = None  # of the feed
        self._is_due = False
        self._pumped_s = 0.0
        self._took_s = 0.0
        self._waits_until_s = 0.0  # in the middle of a burst
        access.notifier.listen(on_ring=self._rung, on_toll=self._tolled)

    def feed(self, life: ServedGeneration) -> ChangeBroadcaster:
        """Return the feed of a life that is served; those of the one before are let go."""
        if self._feed is None or self._life is None or not is_same(self._life, life):
            if self._feed is not None:
                self._feed.break_off()
            self._feed = ChangeBroadcaster(life.store_id)
        self._life = life
        return self._feed

    def _rung(self) -> None:
        if self._is_due or self._feed is None or not self._feed.is_followed:
            return
        wait_s = self._pumped_s + min(FLUSH_S, FLUSH_TIMES * self._took_s) - time.monotonic()
        if wait_s > 0:
            self._pump_in(wait_s)
        else:
            self._pump()

    def _pump_in(self, wait_s: float) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(wait_s, self._pump)

    def pump(self, snapshot: Snapshot, life: ServedGeneration) -> bool:
        """Bring the feed of a life up to a snapshot; return whether it is there. If not, it goes on by itself."""
        feed = self.feed(life)
        if not feed.is_followed:
            return True
        try:
            is_there = feed.pump(snapshot, life.partitions)
        except QueryError:  # a damaged row: whose it is finds out by itself
            return True
        self._waits_until_s = 0.0
        if not is_there:
            self._waits_until_s = time.monotonic() + BURST_WAIT_S
            self._pump_in(BURST_PAUSE_S)
        return is_there

    def _pump(self) -> None:
        self._is_due = False
        if self._feed is not None and time.monotonic() < self._waits_until_s and not self._feed.is_taken:
            self._pump_in(BURST_PAUSE_S)
            return
        begin_s = time.monotonic()
        try:
            with self._access.store.snapshot() as snapshot:
                self.pump(snapshot, self._access.served(snapshot))
        except (PartitionUnavailable, StoreUnavailable):
            if self._feed is not None:
                self._feed.leave_unserved(list(self._feed.marks))
            return
        self._pumped_s = time.monotonic()
        self._took_s = self._pumped_s - begin_s

    def _tolled(self) -> None:
        if self._feed is not None:
            self._feed.wake()
        for wake in self.on_toll:
            wake()
