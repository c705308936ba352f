"""Removes expired rows from the store, a few at a time. Queries hide them already, so it is in no hurry.

A sweep reads the first row of each run of windows, so it takes as long as there are runs, however many windows they
have. It works in small steps between two fetches, as a live record may wait for it.

Decision: docs/decisions/0014-retention-in-the-gateway.md
Decision: docs/decisions/0068-windows-go-by-kafkas-clock.md
"""

from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from tablegate.gateway.contract.keys import InvalidKey, after_prefix
from tablegate.gateway.contract.types import Offset, StoreId
from tablegate.gateway.contract.windows import Expiry
from tablegate.gateway.kafka.log import Clock
from tablegate.gateway.replication.partitions import GenerationReplica, PartitionReplica
from tablegate.gateway.replication.table import TableReplicator
from tablegate.gateway.stores.base import HISTORY_CHANGES_MAX, Snapshot, StoreWriter

SWEEP_EVERY_S = 10.0  # from the end of a sweep to the beginning of the next
SWEEP_PART = 0.02  # of the time is spent on sweeps at most, so that a table of many runs is swept less often


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepLimits:
    """How much is swept."""

    step_max: int = 500  # runs read and rows removed at once: milliseconds, as a live record may wait for it
    at_offset_max: int = HISTORY_CHANGES_MAX // 2  # of a partition before its next record: its history must keep all


class Sweep:
    """Sweeps the tables with retention, one partition after the other. `step` over and over."""

    def __init__(self, store: StoreWriter, clock: Clock, limits: SweepLimits | None = None) -> None:
        self._limits = limits or SweepLimits()
        self._store = store
        self._clock = clock
        self._at_s = 0.0
        self._spent_s = 0.0
        self._waiting: list[tuple[TableReplicator, GenerationReplica, PartitionReplica]] = []
        self._cursor: bytes | None = b""  # in the first of them; None: at its end
        self._swept: dict[PartitionReplica, tuple[Offset, int]] = {}  # how many before the record of which offset

    @property
    def is_under_way(self) -> bool:
        """Return whether a sweep has begun and is not at its end."""
        return bool(self._waiting)

    def step(
        self,
        tables: Collection[TableReplicator],
        *,
        apart: Callable[[TableReplicator], AbstractContextManager[None]] = lambda _: nullcontext(),
    ) -> None:
        """Begin a sweep when it is time, or go on with it by `step_max` runs and rows.

        What is done to a table is done in `apart` of it; what that lets pass unfinished is left to the next sweep.
        """
        started_s = self._clock.monotonic_s()
        if not self._waiting and started_s >= self._at_s:
            self._begin(tables)
        left = self._limits.step_max
        while self._waiting and left > 0:
            table, generation, replica = self._waiting[0]
            expiry = table.table.expiry
            if expiry is None or not replica.is_followed or table not in tables:
                self._cursor = None
            else:
                read = None
                with apart(table):
                    read = self._remove(expiry, generation.store_id, replica, left)
                if read is None:
                    self._cursor = None
                left -= read or 1
            if self._cursor is None:
                self._waiting.pop(0)
                self._cursor = b""
        now_s = self._clock.monotonic_s()
        self._spent_s += now_s - started_s
        if not self._waiting and started_s >= self._at_s:
            self._at_s = now_s + max(SWEEP_EVERY_S, self._spent_s / SWEEP_PART)

    def _begin(self, tables: Iterable[TableReplicator]) -> None:
        self._waiting = [
            (table, generation, replica)
            for table in tables
            for generation in table.generations.followed()
            if table.table.expiry is not None
            for replica in generation.replicas
        ]
        self._swept = {replica: self._swept[replica] for _, _, replica in self._waiting if replica in self._swept}
        self._spent_s = 0.0

    def _remove(self, expiry: Expiry, store_id: StoreId, replica: PartitionReplica, limit: int) -> int:
        """Remove rows of a partition from the cursor on; return how many runs and rows that took: about `limit`."""
        offset = replica.position.next_offset
        if replica not in self._swept:  # a process before this one may have swept
            self._swept[replica] = (offset, self._count_swept(store_id, replica, offset))
        known, swept = self._swept[replica]
        if known != offset:
            swept = 0
        limit = min(limit, self._limits.at_offset_max - swept)
        if limit <= 0:
            self._cursor = None
            return 1
        passed_ms = replica.passed_ms()
        with self._store.snapshot() as snapshot:
            repairs = self._expired_repairs(snapshot, expiry, store_id, replica, now_us=passed_ms * 1_000)
            expired, read = self._find(snapshot, expiry, store_id, replica, limit=limit, now_us=passed_ms * 1_000)
        expired += repairs
        if expired:
            removed = self._store.expire(store_id, replica.partition, expired, time_ms=passed_ms)
            self._swept[replica] = (offset, swept + removed)
        return read

    def _expired_repairs(
        self, snapshot: Snapshot, expiry: Expiry, store_id: StoreId, replica: PartitionReplica, *, now_us: int
    ) -> list[bytes]:
        """Return expired keys that are deleted, and wait for a repair, where the sweep of a partition begins.

        No row of theirs is found, and what is appended again is passed over as expired: nothing else ends the repair.
        """
        if self._cursor != b"":
            return []
        pending = self._store.repairs(store_id, replica.partition, limit=self._limits.step_max)
        keys = [repair.key for repair in pending if _is_expired(expiry, repair.key, now_us=now_us)]
        rows = snapshot.get_many(store_id, replica.partition, keys) if keys else []
        return [key for key, row in zip(keys, rows, strict=True) if row is None]

    def _count_swept(self, store_id: StoreId, replica: PartitionReplica, offset: Offset) -> int:
        with self._store.snapshot() as snapshot:
            limit = self._limits.at_offset_max
            return len(snapshot.history(store_id, replica.partition, start=offset, limit=limit))

    def _find(
        self,
        snapshot: Snapshot,
        expiry: Expiry,
        store_id: StoreId,
        replica: PartitionReplica,
        *,
        limit: int,
        now_us: int,
    ) -> tuple[list[bytes], int]:
        """Return the next keys whose rows are expired, and how many runs and rows were read; move the cursor on."""
        expired: list[bytes] = []
        read = 0
        while self._cursor is not None and read < limit:
            read += 1
            first = snapshot.range(store_id, replica.partition, start=self._cursor, end=None, limit=1)
            if not first:
                self._cursor = None
                break
            key = first[0][0]
            try:
                run = expiry.window.run(key)
            except InvalidKey:  # no key of the table, and so nothing that ages
                self._cursor = key + b"\x00"
                continue
            kept_from = expiry.kept_from(run, now_us)
            rows = snapshot.range(store_id, replica.partition, start=key, end=kept_from, limit=limit)
            expired += [key for key, _ in rows]
            read += len(rows)
            self._cursor = after_prefix(run) if len(rows) < limit else rows[-1][0] + b"\x00"
        return expired, read


def _is_expired(expiry: Expiry, key: bytes, *, now_us: int) -> bool:
    try:
        return expiry.at_us(key) <= now_us
    except InvalidKey:
        return False
