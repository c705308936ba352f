"""Reads of the Redis store: a snapshot is one moment of each partition, though it is read in several round trips.

The moment is that at which a snapshot first asks for a partition: it keeps the position that was stored then, and each
script that reads returns, in one atomic step, the position of its own moment. Where that is another, what was changed
in between is in the history with the row that it took the place of, and is taken back. What cannot be taken back, as it
left the history or the partition went away, is an error and no answer. While a partition is RESTORING, which has no
history, each read is a moment of its own; nobody is answered from it.
"""

import secrets
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Literal, NamedTuple

from typing_extensions import override

from tablegate.gateway.contract.indexes import INDEX_ID_BYTES, Index, make_entry, split_entry
from tablegate.gateway.contract.keys import after_prefix
from tablegate.gateway.contract.types import VERSION_BYTES, Offset, Partition, StoreId, Version
from tablegate.gateway.stores.base import (
    PastChange,
    Phase,
    Position,
    Repair,
    Snapshot,
    StoredPartition,
    StoredRow,
    StoredRows,
    StoreUnavailable,
)
from tablegate.gateway.stores.lmdb import layout
from tablegate.gateway.stores.redis.connection import Command
from tablegate.gateway.stores.redis.layout import (
    INDEX_WHOLE,
    Keys,
    PartitionKeys,
    StoredPosition,
    first_id,
    offset_of,
    own_value,
    past_change,
    stored_part,
    unpack_stored_position,
)
from tablegate.gateway.stores.redis.nodes import Redis, RedisNodes
from tablegate.gateway.stores.redis.scripts import READ_HISTORY, READ_INDEX, READ_RANGE, READ_VALUES
from tablegate.internal.v1.store_pb2 import TableState

PREFETCHED_MAX = 32  # positions that come with a table's state: a Get is then two round trips
KEYS_PER_READ = 1_000
CHANGES_PER_READ = 1_000  # so that Redis is not kept for long
UNDONE_MAX = 50_000  # changes of one partition between two reads of a snapshot: more than the largest batch
COPY_TTL_S = 60  # a copy that a dead process left goes by itself

_UNKNOWN_VERSION = Version(bytes(VERSION_BYTES))

KnownStates = dict[str, tuple[bytes, TableState]]
"""The states that were read last, by table."""


class RedisSnapshot(Snapshot):
    """A moment of each partition. `open_snapshots` has it while it is open, for a writer in the same process.

    `on_position` gets the position of each partition that is looked at for the first time.
    """

    __slots__ = (
        "_connection",
        "_copies",
        "_keys",
        "_known",
        "_on_position",
        "_open",
        "_positions",
        "_states",
        "_status",
    )

    def __init__(
        self,
        connection: Redis,
        keys: Keys,
        known: KnownStates,
        *,
        open_snapshots: list["RedisSnapshot"] | None = None,
        on_position: Callable[[StoredPartition, bytes | None], None] | None = None,
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._known = known
        self._open = open_snapshots
        self._on_position = on_position
        self._positions: dict[StoredPartition, StoredPosition | None] = {}
        self._states: dict[str, TableState | None] = {}
        self._status: bytes | None = None
        self._copies: dict[StoredPartition, PartitionKeys] = {}

    def __enter__(self) -> "RedisSnapshot":
        if self._open is not None:
            self._open.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        if self._open is not None:
            self._open.remove(self)
        if self._copies:
            self._connection.run(*(("UNLINK", *keys) for keys in self._copies.values()))
        return False

    # What a writer in the same process does before it changes something.

    def copy_partition(self, part: StoredPartition) -> None:
        """Keep a partition as it is now, in a copy."""
        if part in self._copies:
            return
        keys, copied = self._keys.of(part), self._keys.copy(part, secrets.token_hex(8))
        commands: list[Command] = []
        for key, copy in zip(keys, copied, strict=True):
            commands += [("COPY", key, copy, "REPLACE"), ("EXPIRE", copy, COPY_TTL_S)]
        self._connection.run(("MULTI",), *commands, ("EXEC",))  # other gateways may write meanwhile
        self._copies[part] = copied
        self._position(part)

    # Reads.

    @override
    def usage(self) -> None:
        return None

    @override
    def table(self, name: str) -> TableState | None:
        if name not in self._states:
            known = self._known.get(name)
            # A read of a table needs its positions next. They are guessed from the state that was read last, so the
            # common Get is two round trips. Of several nodes each would be asked: one for the position is less.
            parts = [] if known is None or isinstance(self._connection, RedisNodes) else _prefetched(known[1])
            parts = [each for each in parts if each not in self._positions]
            state, *values = self._connection.run(("HGET", self._keys.states, name), *map(self._ask_position, parts))
            for part, value in zip(parts, values, strict=True):
                self._note_position(part, own_value(value))
            self._states[name] = self._parsed(name, state)
        return self._states[name]

    def _parsed(self, name: str, value: bytes | None) -> TableState | None:
        if value is None:
            self._known.pop(name, None)
            return None
        known = self._known.get(name)
        if known is None or known[0] != value:
            # Parsing a manifest takes longer than a Get should: as long as its bytes are the same, so is the message.
            known = self._known[name] = value, TableState.FromString(value)
        return known[1]

    @override
    def position(self, store_id: StoreId, partition: Partition) -> Position | None:
        moment = self._position(StoredPartition(store_id, partition))
        return None if moment is None else moment.position

    @override
    def get(self, store_id: StoreId, partition: Partition, key: bytes) -> bytes | None:
        return self.get_many(store_id, partition, [key])[0]

    @override
    def get_stored(self, store_id: StoreId, partition: Partition, key: bytes) -> StoredRow | None:
        """Return what is stored at the key.

        Where it was changed since the snapshot's moment, the version is the lowest there is: which it was is not kept.
        """
        [value], undone = self._values(StoredPartition(store_id, partition), [key])
        if key in undone:
            before = undone[key].before
            return None if before is None else StoredRow(_UNKNOWN_VERSION, before)
        return None if value is None else layout.unpack_row(stored_part(value))

    @override
    def get_many(self, store_id: StoreId, partition: Partition, keys: Sequence[bytes]) -> list[bytes | None]:
        values, undone = self._values(StoredPartition(store_id, partition), keys)
        if undone:
            return [
                undone[key].before if key in undone else _live_row(value)
                for key, value in zip(keys, values, strict=True)
            ]
        return [None if value is None else layout.live_row(stored_part(value)) for value in values]

    def _values(
        self, part: StoredPartition, keys: Sequence[bytes]
    ) -> tuple[list[bytes | None], dict[bytes, PastChange]]:
        """Return the values at `keys`, and for those that were changed since the moment, the first change."""
        moment, at = self._position(part), self._keys_of(part)
        values: list[bytes | None] = []
        undone: dict[bytes, PastChange] = {}
        if moment is None:
            return [None] * len(keys), undone
        for start in range(0, len(keys), KEYS_PER_READ):
            asked = keys[start : start + KEYS_PER_READ]
            read = at.position, at.rows, at.order, at.tombstones
            now, found = self._connection.call(READ_VALUES, read, (self._keys.gateway, *asked))
            values += found
            if now == moment.value:
                continue  # nothing was written since: mostly
            moved = self._moved(moment, now)
            # Something was written since. Only where one of these keys may be among it is the history read.
            if any(value is None or offset_of(value) >= moment.position.next_offset for value in found):
                undone.update(self._first_changes(part, moment, moved))
        return values, undone

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
        part = StoredPartition(store_id, partition)
        moment, at = self._position(part), self._keys_of(part)
        if moment is None or limit <= 0:
            return []
        bounds = (self._keys.gateway, b"[" + start, b"+" if end is None else b"(" + end)
        order = ("REV",) if descending else ()
        asked = limit
        while True:
            now, keys, values = self._connection.call(
                READ_RANGE, (at.position, at.rows, at.order, at.tombstones), (*bounds, asked, *order)
            )
            found = zip(keys, map(_live_row, values), strict=True)
            rows = [(key, row) for key, row in found if row is not None]
            undone = {} if now == moment.value else self._first_changes(part, moment, self._moved(moment, now))
            if not undone:
                return rows
            # Taking back may remove rows of the range: what lies behind its edge is then to be read, too.
            is_whole = len(keys) < asked
            rows = _rows_before(rows, undone, start, end, edge=None if is_whole else keys[-1], descending=descending)
            if is_whole or len(rows) >= limit:
                return rows[:limit]
            asked = limit + len(undone)

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
        part = StoredPartition(store_id, partition)
        moment, at = self._position(part), self._keys_of(part)
        if moment is None:
            return None
        head, limit = index.id, max(limit, 0)
        above = after_prefix(head) if end is None else head + end
        low = b"[" + head + start if after is None or descending else b"(" + head + after
        high = b"+" if above is None else b"(" + above
        if after is not None and descending and (above is None or head + after < above):
            high = b"(" + head + after
        order = ("REV",) if descending else ()
        keys = (at.position, at.rows, at.index_entries, at.indexes, at.index_keys)
        asked = limit
        while True:
            answer = self._connection.call(READ_INDEX, keys, (self._keys.gateway, head, low, high, asked, *order))
            now, state, members, values = answer
            if state != INDEX_WHOLE.encode():
                return None
            found = zip(members, map(_live_row, values), strict=True)
            rows = [(member[INDEX_ID_BYTES:], row) for member, row in found if row is not None]
            undone = {} if now == moment.value else self._first_changes(part, moment, self._moved(moment, now))
            if not undone or not limit:
                return rows[:limit]
            is_whole = len(members) < asked
            edge = None if is_whole else members[-1][INDEX_ID_BYTES:]
            bounds = _EntryBounds(start, end, after, edge, descending)
            rows = _entries_before(rows, undone, index, bounds)
            if is_whole or len(rows) >= limit:
                return rows[:limit]
            # How many entries are taken back, only the rows of now tell: each of them may have any number.
            asked *= 2

    @override
    def history(
        self, store_id: StoreId, partition: Partition, *, start: Offset, limit: int, skip: int = 0
    ) -> list[PastChange]:
        part = StoredPartition(store_id, partition)
        moment, at = self._position(part), self._keys_of(part)
        if moment is None or limit <= 0:
            return []
        asked = (self._keys.gateway, first_id(start, skip), moment.last_id, limit)
        now, entries = self._connection.call(READ_HISTORY, (at.position, at.history), asked)
        if now != moment.value:
            moved = self._moved(moment, now)
            history_start = moved.position.history_start
            # The history was cut since the moment, so what is read now may have a gap at its beginning.
            if start < history_start != moment.position.history_start:
                raise _lost(self._connection)
        return [past_change(entry) for entry in entries]

    @override
    def status(self) -> bytes:
        if self._status is None:
            self._status = self._connection.run(("GET", self._keys.status))[0] or b""
        return self._status

    @override
    def stored_rows(
        self, store_id: StoreId, partition: Partition, *, after: bytes | None, bytes_max: int
    ) -> StoredRows:
        raise AssertionError("the other gateways have it already")

    @override
    def repairs(self, store_id: StoreId, partition: Partition, *, limit: int) -> list[Repair]:
        raise AssertionError("the other gateways have them already")

    # The moment of a partition.

    def _keys_of(self, part: StoredPartition) -> PartitionKeys:
        return self._copies.get(part) or self._keys.of(part)

    def _position(self, part: StoredPartition) -> StoredPosition | None:
        """Return the moment of a partition; None where it had no position then, and so nothing."""
        try:
            return self._positions[part]
        except KeyError:
            self._note_position(part, own_value(self._connection.run(self._ask_position(part))[0]))
            return self._positions[part]

    def _ask_position(self, part: StoredPartition) -> Command:
        return self._keys.ask_position(self._keys_of(part))

    def _note_position(self, part: StoredPartition, value: bytes | None) -> None:
        self._positions[part] = None if value is None else unpack_stored_position(value)
        if self._on_position is not None:
            self._on_position(part, value)

    def _moved(self, moment: StoredPosition, value: bytes | None) -> StoredPosition:
        """Return a later moment of a partition; raise `StoreUnavailable` where it is not that."""
        if value is None:
            raise _lost(self._connection)
        moved = unpack_stored_position(value)
        position = moment.position
        if moved.position.next_offset < position.next_offset:
            raise _lost(self._connection)
        if moved.position.phase is Phase.RESTORING and position.phase is not Phase.RESTORING:
            raise _lost(self._connection)
        return moved

    def _first_changes(
        self, part: StoredPartition, moment: StoredPosition, moved: StoredPosition
    ) -> dict[bytes, PastChange]:
        """Return the first change of each key between two moments."""
        first: dict[bytes, PastChange] = {}
        at, last_id, count = self._keys_of(part), moment.last_id, 0
        # A restore has no history. Nobody is answered from it either.
        if moment.position.phase is Phase.RESTORING:
            return first
        if moved.position.history_start > moment.position.next_offset:
            raise _lost(self._connection)
        if moment.last == moved.last:
            return first
        while last_id != moved.last_id:
            # A snapshot that is held open while a batch after the other comes would read without end. Its reader starts
            # again.
            if count > UNDONE_MAX:
                raise _lost(self._connection)
            entries, value = self._connection.run(
                ("XRANGE", at.history, f"({last_id}", moved.last_id, "COUNT", CHANGES_PER_READ),
                self._ask_position(part),
            )
            later = self._moved(moment, own_value(value))
            if not entries or later.position.history_start > moment.position.next_offset:
                raise _lost(self._connection)
            for change in map(past_change, entries):
                # The first change after the moment has the row before it, which is the row at the moment.
                first.setdefault(change.key, change)
            last_id, count = entries[-1][0].decode(), count + len(entries)
        return first


def _prefetched(state: TableState) -> list[StoredPartition]:
    """Return the partitions whose positions are wanted with a table's state."""
    count = state.manifest.partition_count
    if count > PREFETCHED_MAX:
        return []
    return [StoredPartition(StoreId(state.store_id), Partition(number)) for number in range(count)]


def _live_row(value: bytes | None) -> bytes | None:
    return None if value is None else layout.live_row(stored_part(value))


class _EntryBounds(NamedTuple):
    """Which entries of an index are asked for, and are known: as of `Snapshot.index_range`, none beyond `edge`."""

    start: bytes
    end: bytes | None
    after: bytes | None
    edge: bytes | None
    descending: bool

    def hold(self, values: bytes, entry: bytes) -> bool:
        """Return whether an entry, with these column bytes, is one of them."""
        if values < self.start or (self.end is not None and values >= self.end):
            return False
        if self.descending:
            return (self.after is None or entry < self.after) and (self.edge is None or entry >= self.edge)
        return (self.after is None or entry > self.after) and (self.edge is None or entry <= self.edge)


def _entries_before(
    rows: Sequence[tuple[bytes, bytes]], undone: dict[bytes, PastChange], index: Index, bounds: _EntryBounds
) -> list[tuple[bytes, bytes]]:
    """Return entries and rows as they were before changes."""
    kept = [(entry, row) for entry, row in rows if split_entry(entry)[1] not in undone]
    for key, change in undone.items():
        for index_key in () if change.before is None else index.keys_of(change.before):
            values = index_key[INDEX_ID_BYTES:]
            entry = make_entry(values, key)
            if change.before is not None and bounds.hold(values, entry):
                kept.append((entry, change.before))
    return sorted(kept, reverse=bounds.descending)


def _lost(connection: Redis) -> StoreUnavailable:
    return StoreUnavailable(f"the store in {connection.address.text} changed while it was read: ask again")


def _rows_before(
    rows: Sequence[tuple[bytes, bytes]],
    undone: dict[bytes, PastChange],
    start: bytes,
    end: bytes | None,
    *,
    edge: bytes | None,
    descending: bool,
) -> list[tuple[bytes, bytes]]:
    """Return rows of a range as they were before changes; what lies beyond `edge` (None: the end) is not known yet."""

    def is_known(key: bytes) -> bool:
        if key < start or (end is not None and key >= end):
            return False
        return edge is None or (key >= edge if descending else key <= edge)

    kept = [row for row in rows if row[0] not in undone]
    kept += [(key, each.before) for key, each in undone.items() if each.before is not None and is_known(key)]
    return sorted(kept, reverse=descending)
