"""When a table's changes are published in this process: as the notifier names partitions of the table.

Notifications come as often as the replicator commits. The first change is published at once; those that follow within
`publish_flush_s` are published together, so that a busy table costs many subscribers one message and not hundreds. A
burst goes out in parts, between which subscribers get their turn.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from contextvars import Context

from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.errors import PartitionUnavailable, QueryError
from tablegate.gateway.query.serving import ServedGeneration, TableAccess
from tablegate.gateway.query.subscribe.broadcaster import ChangeBroadcaster
from tablegate.gateway.query.subscribe.open_streams import OpenStreams
from tablegate.gateway.query.visible_rows import row_parser
from tablegate.gateway.stores.base import Snapshot, StoreUnavailable
from tablegate.gateway.stores.changes import StoreChanges

FLUSH_TIMES = 5  # how many times as long as it took to publish is waited before the next: a sixth of the time at most
BURST_PAUSE_S = 0.005  # between two parts of a burst, for subscribers to pop the first


def is_same(served: ServedGeneration, other: ServedGeneration) -> bool:
    """Return whether offsets of the one mean something in the other: a store made anew draws incarnations anew."""
    return served.store_id == other.store_id and served.state.incarnation_id == other.state.incarnation_id


class TablePublisher:
    """Publishes a table's changes by the broadcaster of the generation that is served. One event loop.

    `streams`: all that are open.
    """

    def __init__(self, access: TableAccess, streams: OpenStreams) -> None:
        self.streams = streams
        self.notifier = access.notifier
        self.context = Context()  # of the timers of streams, which would keep a copy each
        self.on_shutdown: set[Callable[[], None]] = set()  # of streams that wait for other gateways
        self._access = access
        self._parse_row = row_parser(access.table)
        self._limits = access.limits
        self._broadcaster: ChangeBroadcaster | None = None
        self._served: ServedGeneration | None = None  # of the broadcaster
        self._is_due = False
        self._published_s = 0.0
        self._took_s = 0.0
        self._waits_until_s = 0.0  # in the middle of a burst
        access.notifier.listen(on_change=self._note, on_shutdown=self._shut_down)

    def broadcaster(self, served: ServedGeneration) -> ChangeBroadcaster:
        """Return the broadcaster of a generation that is served; subscribers of the one before are evicted."""
        if self._broadcaster is None or self._served is None or not is_same(self._served, served):
            if self._broadcaster is not None:
                # They find out by their own cursors whether the generation that is served now is one they can go on
                # with.
                self._broadcaster.evict_all()
            self._broadcaster = ChangeBroadcaster(
                served.store_id, self._limits, self._parse_row, self._access.deliveries.add_since
            )
        self._served = served
        return self._broadcaster

    def _note(self, changes: StoreChanges) -> None:
        """Publish what has changed, now or soon. It costs as much as has changed."""
        broadcaster = self._broadcaster
        if broadcaster is None or not broadcaster.has_subscribers:
            return
        # What has changed is noted even where publishing is due already: that reads whatever is noted by then.
        if changes.everything:
            broadcaster.add_changed()
        else:
            broadcaster.add_changed(changes.partitions.get(broadcaster.store_id, ()))
            if not broadcaster.has_changes:
                return
        if self._is_due:
            return
        # One subscriber hears at once. Where publishing to many takes long, changes are gathered for a multiple of that
        # (decision 30).
        gathers_s = min(self._limits.publish_flush_s, FLUSH_TIMES * self._took_s)
        wait_s = self._published_s + gathers_s - time.monotonic()
        if wait_s > 0:
            self._publish_in(wait_s)
        else:
            self._publish()

    def _publish_in(self, wait_s: float) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(wait_s, self._publish)

    def publish(self, snapshot: Snapshot, served: ServedGeneration, partitions: Iterable[Partition] = ()) -> bool:
        """Publish what has changed, and all that is new of `partitions`; return whether subscribers have it all.

        If not, the rest is published soon.
        """
        broadcaster = self.broadcaster(served)
        if not broadcaster.has_subscribers:
            return True
        broadcaster.add_changed(partitions)
        try:
            is_there = broadcaster.publish(snapshot)
        except QueryError:  # a damaged row. All were evicted: each reads by its own cursor now, and who meets it fails
            return True
        self._waits_until_s = 0.0
        if not is_there:
            self._waits_until_s = time.monotonic() + self._limits.burst_wait_s
            self._publish_in(BURST_PAUSE_S)
        return is_there

    def _publish(self) -> None:
        self._is_due = False
        broadcaster = self._broadcaster
        # In a burst there is more to send than a subscriber may leave unsent: with no turn of their own all would be
        # evicted as slow.
        if broadcaster is not None and time.monotonic() < self._waits_until_s and not broadcaster.is_drained:
            self._publish_in(BURST_PAUSE_S)
            return
        begin_s = time.monotonic()
        try:
            with self._access.store.snapshot() as snapshot:
                self.publish(snapshot, self._access.served(snapshot))
        except (PartitionUnavailable, StoreUnavailable):
            if broadcaster is not None:
                # What was to be read is not known to be whole any more: read all of it when that is possible again.
                broadcaster.set_unserved(list(broadcaster.change_positions))
                broadcaster.add_changed()
                if broadcaster.has_subscribers:
                    self._publish_in(self._limits.publish_retry_s)
            return
        self._published_s = time.monotonic()
        self._took_s = self._published_s - begin_s

    def _shut_down(self) -> None:
        if self._broadcaster is not None:
            self._broadcaster.wake()
        for wake in self.on_shutdown:
            wake()
