"""The store in this process's memory: for tests and the simulator."""

import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from operator import attrgetter

from typing_extensions import override

from tablegate.gateway.contract.indexes import INDEX_ID_BYTES, Index, RowIndexes, make_entry
from tablegate.gateway.contract.types import Offset, Partition, StoreId
from tablegate.gateway.stores.base import (
    HISTORY_CHANGES_MAX,
    Applied,
    Change,
    OwnStore,
    PastChange,
    Phase,
    Position,
    Repair,
    Snapshot,
    StoredRow,
    StoredRows,
    StoreFull,
    StoreUnavailable,
    StoreUsage,
)
from tablegate.gateway.stores.lmdb import layout
from tablegate.gateway.stores.settling import settle
from tablegate.internal.v1.store_pb2 import TableState

_PartitionName = tuple[StoreId, Partition]
_OFFSET = attrgetter("offset")


@dataclass(slots=True)
class _Part:
    """What is stored of a partition."""

    rows: dict[bytes, Change] = field(default_factory=dict)
    keys: list[bytes] = field(default_factory=list)  # of `rows`, in order
    history: list[PastChange] = field(default_factory=list)
    position: Position | None = None
    repairs: dict[bytes, Repair] = field(default_factory=dict)
    entries: list[tuple[bytes, bytes]] = field(default_factory=list)  # index key and row key, in order
    built: dict[bytes, bytes | None] = field(default_factory=dict)  # index id → key from which on entries may lack

    def copy(self) -> "_Part":
        rows, repairs, built = dict(self.rows), dict(self.repairs), dict(self.built)
        return _Part(rows, list(self.keys), list(self.history), self.position, repairs, list(self.entries), built)

    def reindex(self, key: bytes, before: bytes | None, now: bytes | None, indexes: RowIndexes) -> None:
        """Put a row's entries in place of those that it had, if they are there."""
        for old in () if before is None else indexes.keys_of(before):
            at = bisect_left(self.entries, (old, key))
            if self.entries[at : at + 1] == [(old, key)]:
                del self.entries[at]
        # Elements that are cut alike have one entry.
        for new in () if now is None else dict.fromkeys(indexes.keys_of(now)):
            insort(self.entries, (new, key))


@dataclass(slots=True)
class _Content:
    """One moment of the store. While snapshots read it, the writer works on a copy."""

    parts: dict[_PartitionName, _Part] = field(default_factory=dict)
    tables: dict[str, TableState] = field(default_factory=dict)
    status: bytes = b""
    readers: int = 0
    own: set[_PartitionName] = field(default_factory=set)  # parts that no other moment has

    def copy(self) -> "_Content":
        return _Content(dict(self.parts), dict(self.tables), self.status)

    def part(self, name: _PartitionName) -> _Part:
        """Return the partition's part, to be changed."""
        if name not in self.own:
            self.own.add(name)
            self.parts[name] = self.parts[name].copy() if name in self.parts else _Part()
        return self.parts[name]


class MemorySnapshot(Snapshot):
    """One moment of a memory store."""

    def __init__(self, content: _Content) -> None:
        self._content = content

    def _part(self, store_id: StoreId, partition: Partition) -> _Part:
        return self._content.parts.get((store_id, partition)) or _Part()

    @override
    def table(self, name: str) -> TableState | None:
        return self._content.tables.get(name)

    @override
    def position(self, store_id: StoreId, partition: Partition) -> Position | None:
        return self._part(store_id, partition).position

    @override
    def get(self, store_id: StoreId, partition: Partition, key: bytes) -> bytes | None:
        change = self._part(store_id, partition).rows.get(key)
        return None if change is None else change.row

    @override
    def get_stored(self, store_id: StoreId, partition: Partition, key: bytes) -> StoredRow | None:
        change = self._part(store_id, partition).rows.get(key)
        return None if change is None else StoredRow(change.version, change.row)

    @override
    def get_many(self, store_id: StoreId, partition: Partition, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(store_id, partition, key) for key in keys]

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
        part = self._part(store_id, partition)
        keys = part.keys[bisect_left(part.keys, start) : None if end is None else bisect_left(part.keys, end)]
        rows = ((key, part.rows[key].row) for key in (reversed(keys) if descending else keys))
        return [(key, row) for key, row in rows if row is not None][: max(limit, 0)]

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
        part = self._part(store_id, partition)
        if part.built.get(index.id, b"") is not None:
            return None
        found = []
        for index_key, key in part.entries:
            values = index_key[INDEX_ID_BYTES:]
            if index_key.startswith(index.id) and start <= values and (end is None or values < end):
                entry = make_entry(values, key)
                if after is None or (entry < after if descending else entry > after):
                    row = part.rows[key].row
                    assert row is not None, "an entry of a row that is not there"
                    found.append((entry, row))
        return (found[::-1] if descending else found)[: max(limit, 0)]

    @override
    def history(
        self, store_id: StoreId, partition: Partition, *, start: Offset, limit: int, skip: int = 0
    ) -> list[PastChange]:
        changes = self._part(store_id, partition).history
        return changes[bisect_left(changes, start, key=_OFFSET) + skip :][: max(limit, 0)]

    @override
    def stored_rows(
        self, store_id: StoreId, partition: Partition, *, after: bytes | None, bytes_max: int
    ) -> StoredRows:
        part = self._part(store_id, partition)
        rows = StoredRows([], [])
        for key in part.keys[0 if after is None else bisect_right(part.keys, after) :]:
            value = layout.pack_row(part.rows[key])
            bytes_max -= len(value)
            if bytes_max < 0 and rows.keys:
                break
            rows.keys.append(key)
            rows.values.append(value)
        return rows

    @override
    def repairs(self, store_id: StoreId, partition: Partition, *, limit: int) -> list[Repair]:
        return list(self._part(store_id, partition).repairs.values())[: max(limit, 0)]

    @override
    def status(self) -> bytes:
        return self._content.status

    @override
    def usage(self) -> StoreUsage:
        parts = self._content.parts.values()
        entries = {
            "rows": sum(len(part.rows) for part in parts),
            "tombstones": sum(change.row is None for part in parts for change in part.rows.values()),
            "history": sum(len(part.history) for part in parts),
            "index": sum(len(part.entries) for part in parts),
            "repairs": sum(len(part.repairs) for part in parts),
        }
        return StoreUsage(0, 0, entries)


class _Reading:
    """A snapshot while it is read. Worlds take thousands: as a generator it would cost them one part in fifty."""

    __slots__ = ("_content", "_store")

    def __init__(self, store: "MemoryStore") -> None:
        self._store = store

    def __enter__(self) -> Snapshot:
        store = self._store
        if store._closed:
            raise StoreUnavailable("the store is closed")
        with store._lock:
            self._content = store._content
            self._content.readers += 1
        return MemorySnapshot(self._content)

    def __exit__(self, *_: object) -> None:
        with self._store._lock:
            self._content.readers -= 1


class MemoryStore(OwnStore):
    """The store protocol over dictionaries. `free_bytes` below 1 is a full disk."""

    def __init__(
        self, *, history_changes_max: int = HISTORY_CHANGES_MAX, free_bytes: Callable[[], int] = lambda: 1
    ) -> None:
        self._content = _Content()
        self._lock = threading.Lock()
        self._next_store_id = 1
        self._history_changes_max = history_changes_max
        self._free_bytes = free_bytes
        self._closed = False
        self._indexes: dict[StoreId, RowIndexes] = {}

    @override
    def snapshot(self) -> AbstractContextManager[Snapshot]:
        return _Reading(self)

    @override
    def is_current(self) -> bool:
        return True

    @override
    def close(self) -> None:
        self._closed = True

    @contextmanager
    def _write(self) -> Iterator[_Content]:
        with self._lock:
            if self._content.readers:
                self._content = self._content.copy()
            yield self._content

    @override
    def put_table(self, name: str, state: TableState) -> None:
        kept = TableState()
        kept.CopyFrom(state)
        with self._write() as content:
            content.tables[name] = kept

    @override
    def new_store_id(self) -> StoreId:
        self._next_store_id += 1
        return StoreId(self._next_store_id - 1)

    @override
    def store_ids(self) -> set[StoreId]:
        return {store_id for store_id, _ in self._content.parts}

    @override
    def apply(self, store_id: StoreId, partition: Partition, changes: Sequence[Change], position: Position) -> Applied:
        if self._free_bytes() < 1:
            raise StoreFull("no room for the batch")
        with self._write() as content:
            part = content.part((store_id, partition))
            indexes = self._indexes.get(store_id)
            if part.position is None and indexes:
                part.built = dict.fromkeys(indexes.ids)
            settled = settle(changes, {each.key: part.rows[each.key] for each in changes if each.key in part.rows})
            for change in settled.applied:
                if change.key not in part.rows:
                    insort(part.keys, change.key)
                part.rows[change.key] = Change(*change[:5])
                if indexes:
                    part.reindex(change.key, change.before, change.row, indexes)
            part.rows.update(settled.repeated)
            for key, repair in settled.repairs.items():
                part.repairs.pop(key, None)
                if repair is not None:
                    part.repairs[key] = repair
            self._move(part, settled.applied, position)
        return Applied(len(settled.applied), settled.stale)

    @override
    def keep_indexes(self, store_id: StoreId, indexes: RowIndexes) -> None:
        self._indexes[store_id] = indexes
        with self._write() as content:
            for name in [name for name in content.parts if name[0] == store_id]:
                part = content.part(name)
                gone = set(part.built).difference(indexes.ids)
                part.entries = [each for each in part.entries if each[0][:INDEX_ID_BYTES] not in gone]
                part.built = {index_id: part.built.get(index_id, b"") for index_id in indexes.ids}

    @override
    def build_indexes(self, store_id: StoreId, partition: Partition, *, limit: int) -> bool:
        with self._write() as content:
            name = (store_id, partition)
            if name not in content.parts:
                return True
            unfinished = [start for start in content.parts[name].built.values() if start is not None]
            if not unfinished:
                return True
            if self._free_bytes() < 1:
                raise StoreFull("no room for entries")
            part, indexes, start = content.part(name), self._indexes[store_id], min(unfinished)
            some = [key for key in part.keys if key >= start][: max(limit, 0)]
            for key in some:
                row = part.rows[key].row
                part.reindex(key, row, row, indexes)
            until = some[-1] + b"\x00" if len(some) == limit else None
            for index_id, begin in part.built.items():
                if begin == start:
                    part.built[index_id] = until
            return all(each is None for each in part.built.values())

    @override
    def repairs(self, store_id: StoreId, partition: Partition, *, limit: int) -> list[Repair]:
        return MemorySnapshot(self._content).repairs(store_id, partition, limit=limit)

    @override
    def put_transferred(self, store_id: StoreId, partition: Partition, rows: StoredRows, *, time_ms: int) -> None:
        if self._free_bytes() < 1:
            raise StoreFull("no room for the rows")
        with self._write() as content:
            changes = [layout.unpack_stored(key, value, time_ms) for key, value in zip(*rows, strict=True)]
            indexes = self._indexes.get(store_id)
            for change in changes:
                if indexes and change.row is not None:
                    indexes.keys_of(change.row)  # where it cannot be read, nothing is written
            part = content.part((store_id, partition))
            for change in changes:
                if change.key not in part.rows:
                    insort(part.keys, change.key)
                part.rows[change.key] = change
                if indexes:
                    part.reindex(change.key, None, change.row, indexes)

    @override
    def end_transfer(
        self, store_id: StoreId, partition: Partition, repairs: Sequence[Repair], position: Position
    ) -> None:
        if self._free_bytes() < 1:
            raise StoreFull("no room for the position")
        with self._write() as content:
            part, indexes = content.part((store_id, partition)), self._indexes.get(store_id)
            if indexes:
                part.built = dict.fromkeys(indexes.ids)
            part.repairs.update({repair.key: repair for repair in repairs})
            self._move(part, (), position)

    def _move(self, part: _Part, applied: Sequence[PastChange], position: Position) -> None:
        if position.phase is Phase.RESTORING:
            part.history.clear()
            part.position = position.in_restore()
        else:
            history_start = position.history_start if part.position is None else part.position.history_start
            if position.history_start > history_start:
                history_start = position.history_start
                part.history.clear()
                applied = [change for change in applied if change.offset >= history_start]
            part.position = replace(position, history_start=history_start)
            self._remember(part, part.position, applied)

    def _remember(self, part: _Part, position: Position, changes: Sequence[PastChange]) -> None:
        """Put changes into the history."""
        part.history.extend(changes)
        excess = len(part.history) - self._history_changes_max
        if excess > 0:
            part.position = replace(position, history_start=Offset(part.history[excess - 1].offset + 1))
            del part.history[:excess]

    @override
    def expire(self, store_id: StoreId, partition: Partition, keys: Sequence[bytes], *, time_ms: int) -> int:
        with self._write() as content:
            if (store_id, partition) not in content.parts:
                return 0
            part = content.part((store_id, partition))
            for key in keys:
                part.repairs.pop(key, None)
            found = [part.rows[key] for key in dict.fromkeys(keys) if key in part.rows]
            found = [change for change in found if change.row is not None]
            indexes = self._indexes.get(store_id)
            for change in found:
                del part.rows[change.key]
                del part.keys[bisect_left(part.keys, change.key)]
                if indexes:
                    part.reindex(change.key, change.row, None, indexes)
            position = part.position
            if position is not None and position.phase is not Phase.RESTORING:
                offset = position.next_offset
                deletes = [PastChange(offset, each.key, each.version, None, time_ms, each.row) for each in found]
                self._remember(part, position, deletes)
        return len(found)

    @override
    def drop_tombstones(self, store_id: StoreId, partition: Partition, *, before_ms: int, limit: int) -> int:
        with self._write() as content:
            part = content.part((store_id, partition))
            deletes = (change for change in part.rows.values() if change.row is None and change.time_ms < before_ms)
            oldest = sorted(deletes)[: max(limit, 0)]
            for change in oldest:
                del part.rows[change.key]
                del part.keys[bisect_left(part.keys, change.key)]
        return len(oldest)

    @override
    def drop(self, store_id: StoreId, *, limit: int) -> bool:
        with self._write() as content:
            names = [name for name in content.parts if name[0] == store_id]
            for name in names:
                content.part(name).position = None
            return all(self._drop(content, name, limit) for name in names)

    @override
    def drop_partition(self, store_id: StoreId, partition: Partition, *, limit: int) -> bool:
        with self._write() as content:
            return (store_id, partition) not in content.parts or self._drop(content, (store_id, partition), limit)

    def _drop(self, content: _Content, name: _PartitionName, limit: int) -> bool:
        part = content.part(name)
        part.position = None
        part.history.clear()
        part.repairs.clear()
        part.entries.clear()
        part.built.clear()
        for key in part.keys[: max(limit, 0)]:
            del part.rows[key]
        del part.keys[: max(limit, 0)]
        if part.keys:
            return False
        del content.parts[name]
        content.own.discard(name)
        return True

    @override
    def set_status(self, status: bytes) -> None:
        with self._write() as content:
            content.status = status
