"""The store in LMDB: one file, one writing process, any number of reading processes.

A snapshot is a read transaction of LMDB: it costs some microseconds, locks nothing, and sees one moment of all tables.
A batch is a write transaction: the newest version of each key is put in key order, which is the order of pages; then
the history of the batch, then the position. Readers see all of it or nothing. A snapshot that stays open pins the pages
of its moment, and the file grows: so nobody waits while it is open, and the writer clears the slots of killed readers.

LMDB does not sync here, and so survives a killed process but not a lost machine: the writer keeps the machine's boot
id and a clean-shutdown mark, and a store in doubt is `StoreCorrupt`, to be wiped and restored. The map is read-only for
the processor (no `writemap`): a full disk is then an error of a write, and not a SIGBUS.

Rows that a partition leaves behind are removed in small parts (`drop`), positions first, so that nobody reads the rest.
A process must not open one store twice, and not use one after a fork.

Decision: docs/decisions/0125-a-restore-writes-as-it-reads.md
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, islice
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import lmdb
from typing_extensions import override

from tablegate.gateway.contract.indexes import Index, RowIndexes
from tablegate.gateway.contract.keys import after_prefix
from tablegate.gateway.contract.types import VERSION_BYTES, Offset, Partition, StoreId
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
    StoreCorrupt,
    StoredRow,
    StoredRows,
    StoreFull,
    StoreReader,
    StoreUnavailable,
    StoreUsage,
)
from tablegate.gateway.stores.lmdb import environment as environments
from tablegate.gateway.stores.lmdb import indexes as lmdb_indexes
from tablegate.gateway.stores.lmdb import layout
from tablegate.gateway.stores.lmdb.environment import Environment, Guarded
from tablegate.gateway.stores.lmdb.layout import IS_ROW, KIND_AT, ROW_AT, partition_prefix, unpack_position
from tablegate.gateway.stores.settling import Settled, settle
from tablegate.internal.v1.store_pb2 import TableState

STORED_ROWS_AT_ONCE = 64  # read before their bytes are counted
STATUSES_PER_READER_CHECK = 20  # ten seconds: a killed worker pins pages no longer

_STATUS, _NEXT_STORE_ID = b"status", b"next-store-id"
_ID = struct.Struct(">I")


class LmdbSnapshot(Snapshot):
    """A read transaction; enter it to begin, leave it to end."""

    __slots__ = ("_environment", "_transaction")

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    def __enter__(self) -> "LmdbSnapshot":
        try:
            self._transaction = self._environment.env.begin()
        except lmdb.Error as error:
            raise environments.as_store_error(error, self._environment.path) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self._transaction.abort()
        if isinstance(error, lmdb.Error):
            raise environments.as_store_error(error, self._environment.path) from error
        return False

    @override
    def table(self, name: str) -> TableState | None:
        value = self._transaction.get(name.encode(), db=self._environment.tables)
        return None if value is None else _table_state(value)

    @override
    def position(self, store_id: StoreId, partition: Partition) -> Position | None:
        value = self._transaction.get(partition_prefix(store_id, partition), db=self._environment.positions)
        return None if value is None else unpack_position(value)[0]

    @override
    def get(self, store_id: StoreId, partition: Partition, key: bytes) -> bytes | None:
        value = self._transaction.get(partition_prefix(store_id, partition) + key, db=self._environment.rows)
        if value is None:
            return None
        # The common row is unpacked here: a Get calls nothing else of the layout.
        if len(value) >= ROW_AT and value[KIND_AT] == IS_ROW:
            row: bytes = value[ROW_AT:]
            return row
        return layout.live_row(value)

    @override
    def get_stored(self, store_id: StoreId, partition: Partition, key: bytes) -> StoredRow | None:
        value = self._transaction.get(partition_prefix(store_id, partition) + key, db=self._environment.rows)
        return None if value is None else layout.unpack_row(value)

    @override
    def get_many(self, store_id: StoreId, partition: Partition, keys: Sequence[bytes]) -> list[bytes | None]:
        prefix = partition_prefix(store_id, partition)
        full_keys = [prefix + key for key in keys]
        with self._transaction.cursor(self._environment.rows) as cursor:
            found = dict(cursor.getmulti(sorted(set(full_keys))))  # in order, each page is visited once
        return [None if (value := found.get(key)) is None else layout.live_row(value) for key in full_keys]

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
        prefix = partition_prefix(store_id, partition)
        first, last = prefix + start, after_prefix(prefix) if end is None else prefix + end
        assert last is not None
        rows: list[tuple[bytes, bytes]] = []
        if limit <= 0:
            return rows
        with self._transaction.cursor(self._environment.rows) as cursor:
            for full_key, value in _descending(cursor, first, last) if descending else _ascending(cursor, first, last):
                row = layout.live_row(value)
                if row is not None:
                    rows.append((full_key[layout.PREFIX_BYTES :], row))
                    if len(rows) == limit:
                        break
        return rows

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
        transaction, environment = self._transaction, self._environment
        prefix = partition_prefix(store_id, partition)
        if not lmdb_indexes.is_whole(transaction, environment, prefix, index):
            return None
        with transaction.cursor(environment.index) as cursor:
            found = lmdb_indexes.entries(
                cursor, prefix, index, start=start, end=end, after=after, descending=descending
            )
            some = list(islice(found, max(limit, 0)))
        get, rows = transaction.get, environment.rows
        return [(entry, _indexed_row(get(prefix + key, db=rows))) for entry, key in some]

    @override
    def history(
        self, store_id: StoreId, partition: Partition, *, start: Offset, limit: int, skip: int = 0
    ) -> list[PastChange]:
        prefix = partition_prefix(store_id, partition)
        last = after_prefix(prefix)
        assert last is not None
        with self._transaction.cursor(self._environment.history) as cursor:
            run = islice(_ascending(cursor, layout.history_key(prefix, start, skip), last), max(limit, 0))
            return [layout.unpack_change(layout.offset_of(key), value) for key, value in run]

    @override
    def stored_rows(
        self, store_id: StoreId, partition: Partition, *, after: bytes | None, bytes_max: int
    ) -> StoredRows:
        prefix = partition_prefix(store_id, partition)
        end = after_prefix(prefix)
        assert end is not None
        first = prefix if after is None else prefix + after + b"\x00"
        values: list[bytes] = []
        size = 0
        # Two cursors: to make pairs, and take them apart again, would take twice the time.
        with (
            self._transaction.cursor(self._environment.rows) as key_cursor,
            self._transaction.cursor(self._environment.rows) as cursor,
        ):
            if not (cursor.set_range(first) and key_cursor.set_range(first)):
                return StoredRows([], [])
            left = cursor.iternext(keys=False)
            while size < bytes_max and (some := list(islice(left, STORED_ROWS_AT_ONCE))):
                values += some
                size += sum(map(len, some))
            full_keys = list(islice(key_cursor.iternext(values=False), len(values)))
        count = bisect_left(full_keys, end)  # the rows of the next partition follow
        if size > bytes_max:
            count = min(count, max(1, bisect_right(list(accumulate(map(len, values))), bytes_max)))
        at = layout.PREFIX_BYTES
        return StoredRows([key[at:] for key in full_keys[:count]], values[:count])

    @override
    def repairs(self, store_id: StoreId, partition: Partition, *, limit: int) -> list[Repair]:
        prefix = partition_prefix(store_id, partition)
        last = after_prefix(prefix)
        assert last is not None
        with self._transaction.cursor(self._environment.repairs) as cursor:
            found = islice(_ascending(cursor, prefix, last), max(limit, 0))
            return [layout.unpack_repair(key[layout.PREFIX_BYTES :], value) for key, value in found]

    @override
    def status(self) -> bytes:
        value: bytes = self._transaction.get(_STATUS, b"", db=self._environment.meta)
        return value

    @override
    def usage(self) -> StoreUsage:
        environment, stat = self._environment, self._transaction.stat
        entries = {
            "rows": environment.rows,
            "tombstones": environment.tombstones,
            "history": environment.history,
            "index": environment.index,
            "repairs": environment.repairs,
        }
        return StoreUsage(
            environment.size_bytes(),
            environments.free_disk_bytes(environment.path),
            {kind: stat(database)["entries"] for kind, database in entries.items()},
        )


class LmdbReader(StoreReader):
    """The store for a process that answers."""

    def __init__(self, path: Path) -> None:
        self._use(environments.open_for_reading(path))

    def _use(self, environment: Environment) -> None:
        self._environment = environment
        self._inode = environment.inode()
        self._closed = False

    @override
    def snapshot(self) -> AbstractContextManager[Snapshot]:
        if self._closed:
            raise StoreUnavailable(f"the store in {self._environment.path} is closed")
        return LmdbSnapshot(self._environment)

    @override
    def is_current(self) -> bool:
        return self._environment.inode() == self._inode

    @override
    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._environment.env.close()


class LmdbStore(LmdbReader, OwnStore):
    """The store for its writing process. Opening one raises `StoreCorrupt` where `environment.wipe` must come first."""

    def __init__(
        self,
        path: Path,
        *,
        history_changes_max: int = HISTORY_CHANGES_MAX,
        free_bytes: Callable[[], int] | None = None,
        boot_id: str | None = None,
    ) -> None:
        self._use(
            environments.open_for_writing(path, boot_id=environments.machine_boot_id() if boot_id is None else boot_id)
        )
        self._history_changes_max = history_changes_max
        self._free_bytes = free_bytes or (lambda: environments.free_disk_bytes(path))
        self._statuses = 0
        self._indexes: dict[StoreId, RowIndexes] = {}

    @override
    def close(self) -> None:
        if not self._closed:
            with Guarded(self._environment.path):
                environments.mark_clean(self._environment)
            super().close()

    def abandon(self) -> None:
        """Let go of the store without the clean mark: it is in doubt."""
        super().close()

    def _write(self, db: Any = None) -> Any:
        return self._environment.env.begin(db=db, write=True)

    @override
    def put_table(self, name: str, state: TableState) -> None:
        with Guarded(self._environment.path), self._write(self._environment.tables) as transaction:
            transaction.put(name.encode(), state.SerializeToString(deterministic=True))

    @override
    def new_store_id(self) -> StoreId:
        with Guarded(self._environment.path), self._write(self._environment.meta) as transaction:
            store_id = int.from_bytes(transaction.get(_NEXT_STORE_ID, b"\x01"), "big")
            transaction.put(_NEXT_STORE_ID, _ID.pack(store_id + 1))
        return StoreId(store_id)

    @override
    def store_ids(self) -> set[StoreId]:
        found: set[StoreId] = set()
        with Guarded(self._environment.path), self._environment.env.begin() as transaction:
            for database in (self._environment.positions, self._environment.rows, self._environment.history):
                with transaction.cursor(database) as cursor:
                    more = cursor.first()
                    while more:
                        store_id = layout.store_id_of(cursor.key())
                        found.add(store_id)
                        # One step for each store id, however many rows it has.
                        more = cursor.set_range(layout.store_prefix(StoreId(store_id + 1)))
        return found

    @override
    def set_status(self, status: bytes) -> None:
        with Guarded(self._environment.path):
            with self._write(self._environment.meta) as transaction:
                transaction.put(_STATUS, status)
            self._statuses += 1
            if self._statuses % STATUSES_PER_READER_CHECK == 0:
                self._environment.env.reader_check()

    @override
    def apply(self, store_id: StoreId, partition: Partition, changes: Sequence[Change], position: Position) -> Applied:
        self._check_free_disk()
        prefix, indexes = partition_prefix(store_id, partition), self._indexes.get(store_id)
        with Guarded(self._environment.path), self._write() as transaction:
            if indexes is not None and transaction.get(prefix, db=self._environment.positions) is None:
                lmdb_indexes.begin(transaction, self._environment, prefix, indexes)
            applied, count, stale = self._put_rows(transaction, prefix, changes, indexes)
            self._put_position(transaction, prefix, applied, count, position)
        return Applied(count, stale)

    def _check_free_disk(self) -> None:
        """Raise `StoreFull` before the disk is full: logs, and the status that says so, need some room."""
        if self._free_bytes() < environments.FREE_BYTES_MIN:
            least_mib = environments.FREE_BYTES_MIN >> 20
            raise StoreFull(f"less than {least_mib} MiB are free on the disk of {self._environment.path}: free some")

    @override
    def keep_indexes(self, store_id: StoreId, indexes: RowIndexes) -> None:
        environment = self._environment
        self._indexes.pop(store_id, None)
        with Guarded(environment.path), self._write(environment.positions) as transaction:
            head = layout.store_prefix(store_id)
            with transaction.cursor() as cursor:
                more = cursor.set_range(head)
                while more and cursor.key().startswith(head):
                    lmdb_indexes.keep(transaction, environment, cursor.key(), indexes)
                    more = cursor.next()
        if indexes:
            self._indexes[store_id] = indexes

    @override
    def build_indexes(self, store_id: StoreId, partition: Partition, *, limit: int) -> bool:
        environment, prefix = self._environment, partition_prefix(store_id, partition)
        indexes = self._indexes.get(store_id)
        with Guarded(environment.path):
            # Looked at without the writer's lock first: mostly there is nothing to do.
            with environment.env.begin() as transaction:
                found = lmdb_indexes.unfinished(transaction, environment, prefix)
            if not found:
                return True
            if not lmdb_indexes.is_gone(found[0][1]):  # to remove entries makes the disk no fuller
                self._check_free_disk()
            with self._write() as transaction:
                (index_id, state), *_ = lmdb_indexes.unfinished(transaction, environment, prefix)
                lmdb_indexes.work_on(transaction, environment, prefix, indexes, index_id, state, limit)
                return not lmdb_indexes.unfinished(transaction, environment, prefix)

    def _put_rows(
        self, transaction: Any, prefix: bytes, changes: Sequence[Change], indexes: RowIndexes | None
    ) -> tuple[Iterator[PastChange], int, list[Change]]:
        """Write the newest of each key where it is newer than what is stored; return applied, their number, stale."""
        # A batch mostly has each key once. Where it has not, versions decide: the last record need not be the newest.
        newest = {change.key: change for change in reversed(changes)}  # of each key, its first
        if len(newest) < len(changes):
            for change in changes:
                if change.version > newest[change.key].version:
                    newest[change.key] = change
        stored, are_newer = _put_newest(transaction.cursor(self._environment.rows), prefix, newest)
        if indexes is not None:
            lmdb_indexes.put_entries(transaction, self._environment, prefix, indexes, newest, stored)
        self._list_tombstones(transaction, prefix, newest.values())
        # All keys come once, and newer than they were: there is nothing to compare any more.
        if are_newer and len(newest) == len(changes):
            if self._has_repairs(transaction, prefix):
                self._put_repairs(transaction, prefix, dict.fromkeys(newest))
            return _with_row_before(changes, stored), len(changes), []
        settled = settle(changes, {key: layout.unpack_stored(key, value) for key, value in stored.items()})
        self._put_settled(transaction, prefix, settled)
        return iter(settled.applied), len(settled.applied), settled.stale

    def _list_tombstones(self, transaction: Any, prefix: bytes, changes: Iterable[Change]) -> None:
        deletes = [change for change in changes if change.row is None]
        if deletes:
            listed = [(layout.offset_key(prefix, change.offset), layout.pack_tombstone(change)) for change in deletes]
            with transaction.cursor(self._environment.tombstones) as cursor:
                cursor.putmulti(listed)

    def _put_settled(self, transaction: Any, prefix: bytes, settled: Settled) -> None:
        """Write what a batch means beside its newest rows: where the last record of each now is, and repairs."""
        for key, change in settled.repeated.items():
            transaction.put(prefix + key, layout.pack_row(change), db=self._environment.rows)
        self._list_tombstones(transaction, prefix, settled.repeated.values())
        # Mostly all is applied and nothing is pending: then there is nothing to do for each key.
        if settled.stale or self._has_repairs(transaction, prefix):
            self._put_repairs(transaction, prefix, settled.repairs)

    def _has_repairs(self, transaction: Any, prefix: bytes) -> bool:
        with transaction.cursor(self._environment.repairs) as cursor:
            return bool(cursor.set_range(prefix)) and cursor.key().startswith(prefix)

    def _put_repairs(self, transaction: Any, prefix: bytes, repairs: Mapping[bytes, Repair | None]) -> None:
        for key, repair in repairs.items():
            if repair is None:
                transaction.delete(prefix + key, db=self._environment.repairs)
            else:
                transaction.put(prefix + key, layout.pack_repair(repair), db=self._environment.repairs)

    @override
    def repairs(self, store_id: StoreId, partition: Partition, *, limit: int) -> list[Repair]:
        with LmdbSnapshot(self._environment) as snapshot:
            return snapshot.repairs(store_id, partition, limit=limit)

    @override
    def put_transferred(self, store_id: StoreId, partition: Partition, rows: StoredRows, *, time_ms: int) -> None:
        self._check_free_disk()
        prefix, indexes = partition_prefix(store_id, partition), self._indexes.get(store_id)
        keys, values = rows
        full_keys = [prefix + key for key in keys]
        deleted = [at for at, value in enumerate(values) if value[KIND_AT] != IS_ROW]
        with Guarded(self._environment.path), self._write() as transaction:
            with transaction.cursor(self._environment.rows) as cursor:
                # Behind all that is there, pages are filled to their end.
                is_last = not cursor.last() or cursor.key() < full_keys[0]
                cursor.putmulti(zip(full_keys, values, strict=True), append=is_last)
            tombstones = (layout.unpack_stored(keys[at], values[at], time_ms) for at in deleted)
            self._list_tombstones(transaction, prefix, tombstones)
            if indexes is not None:
                pairs = zip(keys, values, strict=True)
                newest = {key: layout.unpack_stored(key, value, time_ms) for key, value in pairs}
                lmdb_indexes.put_entries(transaction, self._environment, prefix, indexes, newest, {})

    @override
    def end_transfer(
        self, store_id: StoreId, partition: Partition, repairs: Sequence[Repair], position: Position
    ) -> None:
        self._check_free_disk()
        prefix, indexes = partition_prefix(store_id, partition), self._indexes.get(store_id)
        with Guarded(self._environment.path), self._write() as transaction:
            if indexes is not None:
                lmdb_indexes.begin(transaction, self._environment, prefix, indexes)
            self._put_repairs(transaction, prefix, {repair.key: repair for repair in repairs})
            self._put_position(transaction, prefix, (), 0, position)

    def _put_position(
        self, transaction: Any, prefix: bytes, applied: Iterable[PastChange], applied_count: int, position: Position
    ) -> None:
        """Write the position, and the history that belongs to it."""
        value = transaction.get(prefix, db=self._environment.positions)
        stored, count = (None, 0) if value is None else unpack_position(value)
        with transaction.cursor(self._environment.history) as cursor:
            # Changes of a restore are nobody's news: writing them to the history would double its cost.
            if position.phase is Phase.RESTORING:
                _drop_oldest(cursor, prefix, count)
                new, count = position.in_restore(), 0
            else:
                if stored is not None and position.history_start > stored.history_start:
                    _drop_oldest(cursor, prefix, count)
                    young = [change for change in applied if change.offset >= position.history_start]
                    applied, count, applied_count = iter(young), 0, len(young)
                elif stored is not None:
                    position = replace(position, history_start=stored.history_start)
                _add_applied(cursor, prefix, applied)
                new, count = self._bound_history(cursor, prefix, position, count + applied_count)
        transaction.put(prefix, layout.pack_position(new, count), db=self._environment.positions)

    def _bound_history(self, cursor: Any, prefix: bytes, position: Position, count: int) -> tuple[Position, int]:
        """Remove what is too much of the history's `count`; return position and count after that."""
        excess = count - self._history_changes_max
        if excess <= 0:
            return position, count
        history_start = Offset(_drop_oldest(cursor, prefix, excess) + 1)
        return replace(position, history_start=history_start), count - excess

    @override
    def expire(self, store_id: StoreId, partition: Partition, keys: Sequence[bytes], *, time_ms: int) -> int:
        prefix, indexes = partition_prefix(store_id, partition), self._indexes.get(store_id)
        gone: dict[bytes, bytes] = {}
        with Guarded(self._environment.path), self._write() as transaction:
            for key in keys:
                value = transaction.get(prefix + key, db=self._environment.rows)
                if value is not None and layout.live_row(value) is not None:
                    transaction.delete(prefix + key, db=self._environment.rows)
                    gone[key] = value
                transaction.delete(prefix + key, db=self._environment.repairs)
            if indexes is not None:
                lmdb_indexes.remove_entries(transaction, self._environment, prefix, indexes, gone)
            value = transaction.get(prefix, db=self._environment.positions)
            if value is not None and unpack_position(value)[0].phase is not Phase.RESTORING:
                position, count = unpack_position(value)
                deletes = [_expired(position.next_offset, key, stored, time_ms) for key, stored in gone.items()]
                with transaction.cursor(self._environment.history) as cursor:
                    _add_expired(cursor, prefix, deletes)
                    new, count = self._bound_history(cursor, prefix, position, count + len(deletes))
                transaction.put(prefix, layout.pack_position(new, count), db=self._environment.positions)
        return len(gone)

    @override
    def drop_tombstones(self, store_id: StoreId, partition: Partition, *, before_ms: int, limit: int) -> int:
        prefix = partition_prefix(store_id, partition)
        removed = 0
        with Guarded(self._environment.path), self._write() as transaction:
            cursor = transaction.cursor(self._environment.tombstones)
            more = cursor.set_range(prefix)
            while more and removed < limit and cursor.key().startswith(prefix):
                time_ms, key = layout.unpack_tombstone(cursor.value())
                if time_ms >= before_ms:
                    break  # they are in order of offset, and so of time
                # The key may have a row again, or a younger tombstone: then only the entry in the list goes.
                value = transaction.get(prefix + key, db=self._environment.rows)
                if value is not None and layout.is_tombstone_of(value, layout.offset_of(cursor.key())):
                    transaction.delete(prefix + key, db=self._environment.rows)
                    removed += 1
                more = cursor.delete()
        return removed

    @override
    def drop(self, store_id: StoreId, *, limit: int) -> bool:
        return self._drop(layout.store_prefix(store_id), limit)

    @override
    def drop_partition(self, store_id: StoreId, partition: Partition, *, limit: int) -> bool:
        return self._drop(partition_prefix(store_id, partition), limit)

    def _drop(self, prefix: bytes, limit: int) -> bool:
        """Remove what has a key that begins with `prefix`: positions, then at most `limit` of the rest."""
        environment = self._environment
        with Guarded(environment.path), self._write() as transaction:
            for database in (
                environment.positions,
                environment.history,
                environment.tombstones,
                environment.repairs,
                environment.indexes,
                environment.index,
                environment.rows,
            ):
                cursor = transaction.cursor(database)
                more = cursor.set_range(prefix)
                while more and cursor.key().startswith(prefix):
                    # Positions go whole: a partition without one is not read, whatever is left of its rows.
                    if limit <= 0 and database is not environment.positions:
                        return False
                    limit -= 1
                    more = cursor.delete()
        return True


def _indexed_row(value: bytes | None) -> bytes:
    row = None if value is None else layout.live_row(value)
    if row is None:
        raise StoreCorrupt("an index names a row that is not there; the store is wiped when the gateway starts again")
    return row


@lru_cache(maxsize=1024)  # every read asks for its table's
def _table_state(value: bytes) -> TableState:
    return TableState.FromString(value)


def _ascending(cursor: Any, first: bytes, last: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values with first <= key < last, in byte order."""
    if not cursor.set_range(first):
        return
    for key, value in cursor.iternext():
        if key >= last:
            return
        yield key, value


def _descending(cursor: Any, first: bytes, last: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values with first <= key < last, the highest first."""
    more = cursor.prev() if cursor.set_range(last) else cursor.last()
    if not more:
        return
    for key, value in cursor.iterprev():
        if key < first:
            return
        yield key, value


def _expired(offset: Offset, key: bytes, stored: bytes, time_ms: int) -> PastChange:
    version, row = layout.unpack_row(stored)
    return PastChange(offset, key, version, None, time_ms, row)


def _put_newest(cursor: Any, prefix: bytes, newest: dict[bytes, Change]) -> tuple[dict[bytes, bytes], bool]:
    """Put each change unless its key has a newer version; return the values before, by key, and whether all were put.

    In key order, as that is the order of pages. A key that is not there yet costs one walk down the tree.
    """
    stored: dict[bytes, bytes] = {}
    are_newer = True
    put = cursor.put
    for key in sorted(newest):
        change = newest[key]
        full_key, value = prefix + key, layout.pack_row(change)
        if not put(full_key, value, True, False):  # overwrite=False, by position: it is called for each row
            found = stored[key] = cursor.value()
            if change.version > found[:VERSION_BYTES]:
                put(full_key, value)
            else:
                are_newer = False
    cursor.close()
    return stored, are_newer


def _with_row_before(changes: Sequence[Change], stored: Mapping[bytes, bytes]) -> Iterator[PastChange]:
    """Yield changes of different keys, each with the row that was stored before."""
    if not stored:  # as in a restore
        return (PastChange(*change, None) for change in changes)
    values = ((change, stored.get(change.key)) for change in changes)
    return (PastChange(*change, None if value is None else layout.live_row(value)) for change, value in values)


# The history of a partition: a cursor over it, with the prefix of its keys.


def _add_applied(cursor: Any, prefix: bytes, changes: Iterable[PastChange]) -> None:
    """Add what records changed."""
    cursor.putmulti([(layout.history_key(prefix, change.offset), layout.pack_change(change)) for change in changes])


def _add_expired(cursor: Any, prefix: bytes, changes: Sequence[PastChange]) -> None:
    """Add deletes of one offset, whose record has not come, behind those that the offset has already."""
    if not changes:
        return
    offset = changes[0].offset
    first = _next_order(cursor, prefix, offset)
    cursor.putmulti(
        [
            (layout.history_key(prefix, offset, order), layout.pack_change(change))
            for order, change in enumerate(changes, start=first)
        ]
    )


def _next_order(cursor: Any, prefix: bytes, offset: Offset) -> int:
    """Return the first order that no delete of `offset` has."""
    more = cursor.prev() if cursor.set_range(layout.history_key(prefix, offset)) else cursor.last()
    if not more or not cursor.key().startswith(layout.offset_key(prefix, offset)):
        return 0
    return layout.order_of(cursor.key()) + 1


def _drop_oldest(cursor: Any, prefix: bytes, count: int) -> Offset:
    """Remove the first `count` changes; return the offset of the last of them."""
    offset = Offset(-1)
    more = count > 0 and cursor.set_range(prefix)
    while more and count > 0 and cursor.key().startswith(prefix):
        offset = layout.offset_of(cursor.key())
        count -= 1
        more = cursor.delete()
    return offset
