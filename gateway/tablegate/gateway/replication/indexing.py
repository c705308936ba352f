"""Builds the indexes that a contract has added to tables whose rows are stored already, a few rows at a time.

Rows that change meanwhile bring their entries themselves (`StoreWriter.keep_indexes`), so the builder and the changelog
do not wait for each other: it works in small steps between two fetches, and begins where it was after a restart.

Decision: docs/decisions/0117-an-added-index-is-built-beside-writes.md
"""

import logging
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext

from tablegate.gateway.kafka.log import Clock
from tablegate.gateway.replication.partitions import PartitionReplica
from tablegate.gateway.replication.table import TableReplicator
from tablegate.gateway.stores.base import StoreFull, StoreWriter

BUILD_ROWS_MAX = 500  # at once: a few milliseconds, as a live record may wait for it
POLL_EVERY_S = 1.0  # for partitions that came
CHECK_EVERY_S = 10.0  # of a store that others write to, who may not keep our indexes
FULL_RETRY_S = 1.0  # what a full store refused

_Apart = Callable[[TableReplicator], AbstractContextManager[None]]

_logger = logging.getLogger("tablegate.gateway.replication")


class IndexBuilding:
    """Builds what is not whole. `step` over and over. `rows_max`: rows of one step."""

    def __init__(self, store: StoreWriter, clock: Clock, *, rows_max: int = BUILD_ROWS_MAX) -> None:
        self._store = store
        self._clock = clock
        self._rows_max = rows_max
        self._whole: set[PartitionReplica] = set()
        self._waiting: list[tuple[TableReplicator, PartitionReplica]] = []
        self._building: PartitionReplica | None = None  # the first that waits, once it is known not to be whole
        self._poll_at_s = self._check_at_s = self._full_until_s = 0.0

    @property
    def is_under_way(self) -> bool:
        """Return whether something is being built."""
        return self._building is not None

    def step(
        self,
        tables: Collection[TableReplicator],
        *,
        apart: _Apart = lambda _: nullcontext(),
    ) -> None:
        """Go on with one partition, by `rows_max` rows. What is done to a table is done in `apart` of it.

        Raise `StoreFull`; what it refused is tried again after a moment.
        """
        if self._clock.monotonic_s() < self._full_until_s:
            return
        try:
            self._step(tables, apart)
        except StoreFull:
            self._full_until_s = self._clock.monotonic_s() + FULL_RETRY_S
            self._building = None
            raise

    def _step(self, tables: Collection[TableReplicator], apart: _Apart) -> None:
        if not self._waiting:
            self._poll(tables)
        while self._waiting:
            table, replica = self._waiting[0]
            is_whole = True
            if replica.is_followed and table in tables:
                with apart(table):
                    is_whole = self._build(table, replica)
            if not is_whole:
                return
            self._waiting.pop(0)
            self._building = None

    def _poll(self, tables: Collection[TableReplicator]) -> None:
        """Find the partitions that are not known to be whole."""
        now_s = self._clock.monotonic_s()
        if now_s < self._poll_at_s:
            return
        self._poll_at_s = now_s + POLL_EVERY_S
        if self._store.is_shared and now_s >= self._check_at_s:
            self._check_at_s = now_s + CHECK_EVERY_S
            self._whole.clear()
        here = [
            (table, replica)
            for table in tables
            for generation in table.generations.followed()
            for replica in generation.replicas
        ]
        self._whole.intersection_update([replica for _, replica in here])
        self._waiting = [(table, replica) for table, replica in here if replica not in self._whole]

    def _build(self, table: TableReplicator, replica: PartitionReplica) -> bool:
        """Go on with a partition; return whether its indexes are whole."""
        named = f'table "{table.table.name}" partition {replica.partition}'
        if not self._store.build_indexes(replica.store_id, replica.partition, limit=self._rows_max):
            if self._building is not replica:
                self._building = replica
                _logger.info("%s: its indexes are being built", named)
            return False
        if self._building is replica:
            _logger.info("%s: its indexes are whole", named)
        self._whole.add(replica)
        return True
