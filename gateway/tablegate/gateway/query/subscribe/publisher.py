"""When a table's changes are published in this process: as the notifier names partitions of the table.

Notifications come as often as the replicator commits. The first change is published at once; those that follow within
`publish_flush_s` are published together, so that a busy table costs many subscribers one message and not hundreds. A
burst goes out in parts, between which subscribers get their turn. What is for many groups goes out in turns of the
event loop, and no more is read before all of it is sent.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from contextvars import Context

from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.call import AtTurn
from tablegate.gateway.query.errors import PartitionUnavailable
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
        self._at_turn: AtTurn | None = None
        self._begun_s = self._published_s = 0.0
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
                served.store_id,
                self._limits,
                self._parse_row,
                self._go_on_at_turn,
                self._note_sent,
                self._access.deliveries.add_since,
            )
        self._served = served
        return self._broadcaster

    def use_turns(self, at_turn: AtTurn) -> None:
        """Publish in these turns: those of the streams, which all have the same."""
        self._at_turn = at_turn

    def _go_on_at_turn(self, go_on: Callable[[], None]) -> None:
        assert self._at_turn is not None, "who subscribes brings it"
        self._at_turn(go_on)

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
        if self._is_due or broadcaster.is_sending:
            return
        # One subscriber hears at once.
        wait_s = self._published_s + self._gathers_s - time.monotonic()
        if wait_s > 0:
            self._publish_in(wait_s)
        else:
            self._publish()

    @property
    def _gathers_s(self) -> float:
        """How long changes are gathered: where publishing to many takes long, for a multiple of that (decision 30)."""
        return min(self._limits.publish_flush_s, FLUSH_TIMES * self._took_s)

    def _publish_in(self, wait_s: float) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(wait_s, self._publish)

    def publish(self, snapshot: Snapshot, served: ServedGeneration, partitions: Iterable[Partition] = ()) -> None:
        """Publish what has changed, and all that is new of `partitions`, as much as goes now; the rest soon."""
        broadcaster = self.broadcaster(served)
        if not broadcaster.has_subscribers:
            return
        broadcaster.add_changed(partitions)
        if broadcaster.is_sending:
            return
        self._begun_s, self._waits_until_s = time.monotonic(), 0.0
        is_read = broadcaster.publish(snapshot)
        if not is_read and not broadcaster.is_sending:
            self._pause()

    def _note_published(self) -> None:
        self._published_s = time.monotonic()
        self._took_s = self._published_s - self._begun_s

    def _note_sent(self, is_whole: bool) -> None:
        """Go on behind what was sent in turns."""
        self._note_published()
        if not is_whole:
            self._pause()
        elif self._broadcaster is not None and self._broadcaster.has_changes:
            self._publish_in(self._gathers_s)

    def _pause(self) -> None:
        """Let subscribers pop a part of a burst."""
        self._waits_until_s = time.monotonic() + self._limits.burst_wait_s
        self._publish_in(BURST_PAUSE_S)

    def _publish(self) -> None:
        self._is_due = False
        broadcaster = self._broadcaster
        if broadcaster is not None and broadcaster.is_sending:
            return
        # In a burst there is more to send than a subscriber may leave unsent: with no turn of their own all would be
        # evicted as slow.
        if broadcaster is not None and time.monotonic() < self._waits_until_s and not broadcaster.is_drained:
            self._publish_in(BURST_PAUSE_S)
            return
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
        if self._broadcaster is not None and not self._broadcaster.is_sending:
            self._note_published()

    def _shut_down(self) -> None:
        if self._broadcaster is not None:
            self._broadcaster.wake()
        for wake in self.on_shutdown:
            wake()
