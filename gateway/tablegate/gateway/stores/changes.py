"""What commits have changed, as the replicator sends it to the workers.

The notification is the news itself: it names the partitions that were written, so that a worker reads those alone and a
commit costs it as much as has changed, not as much as there is (etcd's `cache/demux.go` is the model). The writer of a
store is wrapped by `NotifyingStore`, so that no write can be forgotten: what each write touches is collected, and
`publish` hands it on. Whoever cannot say what has changed says that everything may have: a new process, as it does not
know what the one before it left unsent; a store that other gateways write to as well, now and then.

A notification may come late, twice or for nothing. It never comes too early: the write is done before it is collected.

Decision: docs/decisions/0054-notifications-name-what-changed.md
"""

import struct
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Self

from typing_extensions import override

from tablegate.gateway.contract.indexes import RowIndexes
from tablegate.gateway.contract.types import Partition, StoreId
from tablegate.gateway.stores.base import (
    Applied,
    Change,
    Copy,
    Joined,
    Position,
    Repair,
    Snapshot,
    StoredPartition,
    StoredRows,
    StoreWriter,
)
from tablegate.gateway.telemetry.measures import Histogram
from tablegate.internal.v1.store_pb2 import TableState

PARTITIONS_MAX = 4_000  # in one notification, 16 KiB; where more have changed, everything may have

_EVERYTHING, _STATUS = 1, 2
_STORE = struct.Struct(">QI")  # store id, number of its partitions


@dataclass(slots=True)
class StoreChanges:
    """What has changed in a store: rows, history or position of partitions; the gateway's status; or anything.

    With `everything`, `partitions` are not all that may have changed, and the status is only some of it.
    """

    partitions: dict[StoreId, set[Partition]] = field(default_factory=dict)
    status: bool = False
    everything: bool = False

    @classmethod
    def of_everything(cls) -> Self:
        """Return that everything may have changed."""
        return cls(everything=True)

    def __bool__(self) -> bool:
        return self.everything or self.status or bool(self.partitions)

    def __iter__(self) -> Iterator[StoredPartition]:
        for store_id, partitions in self.partitions.items():
            for partition in partitions:
                yield StoredPartition(store_id, partition)

    def add(self, store_id: StoreId, partition: Partition) -> None:
        """Add a partition."""
        self.partitions.setdefault(store_id, set()).add(partition)

    def update(self, other: "StoreChanges") -> None:
        """Add what another has."""
        for store_id, partitions in other.partitions.items():
            self.partitions.setdefault(store_id, set()).update(partitions)
        self.status |= other.status
        self.everything |= other.everything
        if self.everything:
            self.partitions.clear()  # it stays small, however long it collects

    def clear(self) -> None:
        """Forget it all."""
        self.partitions, self.status, self.everything = {}, False, False

    def encode(self) -> bytes:
        """Return the bytes: flags, then of each store id its partitions; at most 16 KiB or so."""
        flags = _EVERYTHING * self.everything | _STATUS * self.status
        if self.everything or sum(map(len, self.partitions.values())) > PARTITIONS_MAX:
            return bytes([flags | _EVERYTHING])
        parts = [bytes([flags])]
        for store_id, partitions in self.partitions.items():
            parts.append(_STORE.pack(store_id, len(partitions)))
            parts.append(struct.pack(f">{len(partitions)}I", *partitions))
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return what `encode` made the bytes of; that everything may have changed where they are damaged."""
        try:
            [flags] = data[:1]
            changes = cls(status=bool(flags & _STATUS), everything=bool(flags & _EVERYTHING))
            at = 1
            while at < len(data):
                store_id, count = _STORE.unpack_from(data, at)
                at += _STORE.size
                changes.partitions[StoreId(store_id)] = set(map(Partition, struct.unpack_from(f">{count}I", data, at)))
                at += 4 * count
        except (ValueError, struct.error):
            return cls.of_everything()
        return changes


class NotifyingStore(StoreWriter):
    """A store that collects what is written to it; `publish` hands that to `notify`. The writer's thread alone.

    The first time everything may have changed. Of a store that is shared, other gateways' writes are known to nobody
    here: each status says that everything may have changed, so that they are seen as often as that is written.
    `commits`: where it is measured how long changes take.
    """

    def __init__(
        self, store: StoreWriter, notify: Callable[[StoreChanges], None], commits: Histogram | None = None
    ) -> None:
        self._store = store
        self._commits = Histogram(()) if commits is None else commits
        self._notify = notify
        self._changes = StoreChanges.of_everything()
        self.changes_max = store.changes_max
        self.is_shared = store.is_shared

    def publish(self) -> None:
        """Hand on what was written since the last time; nothing is, too, for what could not be sent before."""
        changes, self._changes = self._changes, StoreChanges()
        self._notify(changes)

    # What is written, one method for each of the protocol's. A write that fails may have been done all the same.

    @override
    def apply(self, store_id: StoreId, partition: Partition, changes: Sequence[Change], position: Position) -> Applied:
        begin_s = time.perf_counter()
        try:
            return self._store.apply(store_id, partition, changes, position)
        finally:
            self._commits.add(time.perf_counter() - begin_s)
            self._changes.add(store_id, partition)

    @override
    def keep_indexes(self, store_id: StoreId, indexes: RowIndexes) -> None:
        self._store.keep_indexes(store_id, indexes)  # nobody waits for it: an index that is not whole is an error

    @override
    def build_indexes(self, store_id: StoreId, partition: Partition, *, limit: int) -> bool:
        return self._store.build_indexes(store_id, partition, limit=limit)

    @override
    def expire(self, store_id: StoreId, partition: Partition, keys: Sequence[bytes], *, time_ms: int) -> int:
        try:
            return self._store.expire(store_id, partition, keys, time_ms=time_ms)
        finally:
            self._changes.add(store_id, partition)

    @override
    def join(self, store_id: StoreId, partition: Partition) -> Joined | None:
        try:
            return self._store.join(store_id, partition)
        finally:
            self._changes.add(store_id, partition)

    @override
    def expel(self, store_id: StoreId, partition: Partition) -> None:
        try:
            self._store.expel(store_id, partition)
        finally:
            self._changes.add(store_id, partition)

    @override
    def drop_partition(self, store_id: StoreId, partition: Partition, *, limit: int) -> bool:
        try:
            return self._store.drop_partition(store_id, partition, limit=limit)
        finally:
            self._changes.add(store_id, partition)

    @override
    def drop(self, store_id: StoreId, *, limit: int) -> bool:
        return self._store.drop(store_id, limit=limit)  # nobody reads it any more: its table has another store id

    @override
    def drop_tombstones(self, store_id: StoreId, partition: Partition, *, before_ms: int, limit: int) -> int:
        return self._store.drop_tombstones(store_id, partition, before_ms=before_ms, limit=limit)  # nobody sees them

    @override
    def repairs(self, store_id: StoreId, partition: Partition, *, limit: int) -> list[Repair]:
        return self._store.repairs(store_id, partition, limit=limit)

    @override
    def put_transferred(self, store_id: StoreId, partition: Partition, rows: StoredRows, *, time_ms: int) -> None:
        self._store.put_transferred(store_id, partition, rows, time_ms=time_ms)  # nobody reads them yet

    @override
    def end_transfer(
        self, store_id: StoreId, partition: Partition, repairs: Sequence[Repair], position: Position
    ) -> None:
        try:
            self._store.end_transfer(store_id, partition, repairs, position)
        finally:
            self._changes.add(store_id, partition)

    @override
    def put_table(self, name: str, state: TableState) -> None:
        try:
            self._store.put_table(name, state)
        finally:
            self._changes.everything = True  # rows may be read from another store id now; it is rare

    @override
    def set_status(self, status: bytes) -> None:
        try:
            self._store.set_status(status)
        finally:
            self._changes.status = True
            self._changes.everything |= self.is_shared

    # What is read.

    @override
    def snapshot(self) -> AbstractContextManager[Snapshot]:
        return self._store.snapshot()

    @override
    def is_current(self) -> bool:
        return self._store.is_current()

    @override
    def close(self) -> None:
        self._store.close()

    @override
    def new_store_id(self) -> StoreId:
        return self._store.new_store_id()

    @override
    def copy_of(self, changelog: str, *, unwanted: Collection[StoreId]) -> Copy:
        return self._store.copy_of(changelog, unwanted=unwanted)

    @override
    def store_ids(self) -> set[StoreId]:
        return self._store.store_ids()
