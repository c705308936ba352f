"""A store as the queries of a table with retention see it: what is expired is not there, be it swept already or not.

Decision: docs/decisions/0014-retention-in-the-gateway.md
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from typing_extensions import override

from tablegate.gateway.contract.indexes import Index, split_entry
from tablegate.gateway.contract.keys import InvalidKey
from tablegate.gateway.contract.types import Offset, Partition, StoreId
from tablegate.gateway.contract.windows import Expiry
from tablegate.gateway.stores.base import (
    PastChange,
    Position,
    Repair,
    Snapshot,
    StoredRow,
    StoredRows,
    StoreReader,
    StoreUsage,
)
from tablegate.internal.v1.store_pb2 import TableState


class UnexpiredReader(StoreReader):
    """A reader whose snapshots hide the rows that are expired when they are opened."""

    def __init__(self, store: StoreReader, expiry: Expiry, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._expiry = expiry
        self._now_ms = now_ms

    def frozen(self) -> "UnexpiredReader":
        """Return a reader for which it stays as late as it is now: what expires from now on is there."""
        now_ms = self._now_ms()
        return UnexpiredReader(self._store, self._expiry, lambda: now_ms)

    @override
    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        with self._store.snapshot() as snapshot:
            yield UnexpiredSnapshot(snapshot, self._expiry, self._now_ms() * 1_000)

    @override
    def is_current(self) -> bool:
        return self._store.is_current()

    @override
    def close(self) -> None:
        self._store.close()


class UnexpiredSnapshot(Snapshot):
    """One moment of a store, and of time."""

    def __init__(self, snapshot: Snapshot, expiry: Expiry, now_us: int) -> None:
        self._snapshot = snapshot
        self._expiry = expiry
        self._now_us = now_us

    @override
    def table(self, name: str) -> TableState | None:
        return self._snapshot.table(name)

    @override
    def stored_rows(
        self, store_id: StoreId, partition: Partition, *, after: bytes | None, bytes_max: int
    ) -> StoredRows:
        return self._snapshot.stored_rows(store_id, partition, after=after, bytes_max=bytes_max)

    @override
    def repairs(self, store_id: StoreId, partition: Partition, *, limit: int) -> list[Repair]:
        return self._snapshot.repairs(store_id, partition, limit=limit)

    @override
    def usage(self) -> StoreUsage | None:
        return self._snapshot.usage()

    @override
    def position(self, store_id: StoreId, partition: Partition) -> Position | None:
        return self._snapshot.position(store_id, partition)

    @override
    def get(self, store_id: StoreId, partition: Partition, key: bytes) -> bytes | None:
        if self._expiry.is_gone(key, self._now_us):
            return None
        return self._snapshot.get(store_id, partition, key)

    @override
    def get_stored(self, store_id: StoreId, partition: Partition, key: bytes) -> StoredRow | None:
        if self._expiry.is_gone(key, self._now_us):
            return None
        return self._snapshot.get_stored(store_id, partition, key)

    @override
    def get_many(self, store_id: StoreId, partition: Partition, keys: Sequence[bytes]) -> list[bytes | None]:
        rows = self._snapshot.get_many(store_id, partition, keys)
        is_gone, now_us = self._expiry.is_gone, self._now_us
        return [None if is_gone(key, now_us) else row for key, row in zip(keys, rows, strict=True)]

    @override
    def range(
        self,
        store_id: StoreId,
        partition: Partition,
        *,
        start: bytes,
        end: bytes | None,
        limit: int,
        descending: bool = False,
    ) -> list[tuple[bytes, bytes]]:
        is_gone, now_us = self._expiry.is_gone, self._now_us
        rows: list[tuple[bytes, bytes]] = []
        while True:
            found = self._snapshot.range(store_id, partition, start=start, end=end, limit=limit, descending=descending)
            rows += [row for row in found if not is_gone(row[0], now_us)]
            if len(found) < limit or len(rows) >= limit:
                return rows[: max(limit, 0)]
            if descending:
                end = self._below(found[-1][0])
            else:
                # Rows that have expired and are not swept yet may fill a whole read: the next one begins behind them.
                start = self._above(found[-1][0])

    @override
    def index_range(
        self,
        store_id: StoreId,
        partition: Partition,
        index: Index,
        *,
        start: bytes,
        end: bytes | None,
        limit: int,
        after: bytes | None = None,
        descending: bool = False,
    ) -> list[tuple[bytes, bytes]] | None:
        is_gone, now_us = self._expiry.is_gone, self._now_us
        rows: list[tuple[bytes, bytes]] = []
        while True:
            found = self._snapshot.index_range(
                store_id, partition, index, start=start, end=end, limit=limit, after=after, descending=descending
            )
            if found is None:
                return None
            rows += [row for row in found if not is_gone(split_entry(row[0])[1], now_us)]
            if len(found) < limit or len(rows) >= limit:
                return rows[: max(limit, 0)]
            after = found[-1][0]

    def _above(self, key: bytes) -> bytes:
        """Return the lowest key after `key` that may have a row: not one of a run's stretch that is expired."""
        after = key + b"\x00"
        try:
            # One step over all expired windows of the run, however many there are, and not a read for each page of
            # them.
            return max(after, self._expiry.kept_from(self._expiry.window.run(key), self._now_us))
        except InvalidKey:
            return after

    def _below(self, key: bytes) -> bytes:
        """Return the key below which rows may be: below the run, where `key` and so the rest of it is expired."""
        try:
            return self._expiry.window.run(key) if self._expiry.is_gone(key, self._now_us) else key
        except InvalidKey:
            return key

    @override
    def history(
        self, store_id: StoreId, partition: Partition, *, start: Offset, limit: int, skip: int = 0
    ) -> list[PastChange]:
        return self._snapshot.history(store_id, partition, start=start, limit=limit, skip=skip)

    @override
    def status(self) -> bytes:
        return self._snapshot.status()
