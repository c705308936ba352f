"""The store in Redis: a partition in one slot, a batch in one atomic step, one copy for all gateways of a prefix.

How a copy is shared. Several gateways are to have a partition, and each follows its changelog and applies the same
records. The script of `apply` compares versions and offsets itself, so the first to bring a record applies it, and from
the others it is nothing new: who is behind moves neither a row nor the position back. Rows, history and position are
common; which partitions a gateway has, how far it is with each (its phase), tables and status are its own. A partition
goes when the last gateway drops it, or has been away for a day (`Removal`).

How a loss is noticed. What is stored is as durable as Redis is told to be, and the changelog is the truth. This process
knows what it wrote last to each partition, and says so with each batch; where a failover or a flush took that back, its
next write or status raises `StoreWentBack` and changes nothing: a batch never leaves a gap. After that the store is as
if just opened.

Snapshots take several round trips and are still one moment of each partition: see `snapshot.py`. Keys and values are in
`layout.py`, the scripts in the `.lua` files, their names in `scripts.py`.

Redis 7.0 or newer, with `maxmemory-policy noeviction`: an evicted key would be a row that is "not found".

Decision: docs/decisions/0046-one-copy-in-redis.md
"""

import secrets
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from typing_extensions import override

from tablegate.gateway.contract.indexes import RowIndexes
from tablegate.gateway.contract.types import Offset, Partition, StoreId
from tablegate.gateway.stores.base import (
    HISTORY_CHANGES_MAX,
    Applied,
    Change,
    Copy,
    Joined,
    Position,
    Repair,
    Repeat,
    Snapshot,
    StoredPartition,
    StoredRows,
    StoreReader,
    StoreUnavailable,
    StoreWentBack,
    StoreWriter,
)
from tablegate.gateway.stores.lmdb import layout
from tablegate.gateway.stores.redis.connection import Command, parse_address
from tablegate.gateway.stores.redis.layout import (
    FORMAT_VERSION,
    INCARNATION_BYTES,
    INDEX_BUILDING,
    INDEX_WHOLE,
    KNOWN_BYTES,
    Keys,
    PartitionKeys,
    StaleKind,
    StoredPosition,
    own_value,
    pack_index_keys,
    pack_position,
    pack_row,
    parse_partition_name,
    parse_repair,
    partition_name,
    record_of,
    stored_part,
    unpack_stored_position,
)
from tablegate.gateway.stores.redis.nodes import Redis, connect
from tablegate.gateway.stores.redis.scripts import (
    APPLY,
    BUILD,
    BURY,
    CHECK,
    COPY,
    DROP,
    DROP_TOMBSTONES,
    EXPIRE,
    HERE,
    JOIN,
    READ_RANGE,
    RENEW,
    THERE,
)
from tablegate.gateway.stores.redis.snapshot import KnownStates, RedisSnapshot
from tablegate.internal.v1.store_pb2 import TableState

READ_TIMEOUT_S = 3.0  # a worker's event loop waits so long at most, and the largest batch takes less
WRITE_TIMEOUT_S = 30.0  # nobody waits for the writer
STATUSES_PER_POLICY_CHECK = 20  # ten seconds
CHANGES_MAX = 2_000  # Redis does nothing else meanwhile: 20 ms
CHECK_CHANGES_MIN = 100  # of a batch: from here on a round trip to see what others have applied is worth its time
THERE_MS = 30_000  # a gateway that was here so lately looks after what it keeps
DROPPED_S = 60.0  # a failover brings back no partition that was dropped before
GONE_MS = 86_400_000  # a gateway that was away so long keeps nothing
BURIED_ROWS_MAX = 500  # at once: under a millisecond
BURIED_PARTITIONS_MAX = 100
COPY_IDS = range(2**20, 2**31)  # drawn: one that Redis forgot, and that a gateway still writes to, is given to nobody

_FORMAT, _INCARNATION = "format", "life"


class RedisReader(StoreReader):
    """The store for a process that answers, as a gateway has it ("": one that stands alone).

    Opening one raises `StoreUnavailable`, or `BadRedisUrl`.
    """

    def __init__(self, url: str, gateway: str = "") -> None:
        self._use(url, gateway, timeout_s=READ_TIMEOUT_S)
        [[found, incarnation]] = self._connection.run(("HMGET", self._keys.store, _FORMAT, _INCARNATION))
        self._incarnation = incarnation
        if found != FORMAT_VERSION:
            self.close()
            raise StoreUnavailable(f"there is no store in {self._text} yet: the replicator makes it")

    def _use(self, url: str, gateway: str, *, timeout_s: float) -> None:
        address = parse_address(url)
        self._text = address.text
        self._connection = connect(address, timeout_s=timeout_s)
        self._keys = Keys(address.prefix, gateway)
        self._states: KnownStates = {}
        self._incarnation = b""
        self._closed = False

    @override
    def snapshot(self) -> AbstractContextManager[Snapshot]:
        self._check_open()
        return RedisSnapshot(self._connection, self._keys, self._states)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable(f"the store in {self._text} is closed")

    @override
    def is_current(self) -> bool:
        """Return False once the store was made anew. While Redis does not answer it is taken for the same."""
        try:
            return bool(self._connection.run(("HGET", self._keys.store, _INCARNATION))[0] == self._incarnation)
        except StoreUnavailable:
            return True

    @override
    def close(self) -> None:
        self._closed = True
        self._connection.close()


class RedisStore(RedisReader, StoreWriter):
    """The store for the writing process of a gateway. `draw`: returns a number below its argument, at random."""

    changes_max = CHANGES_MAX
    is_shared = True

    def __init__(
        self,
        url: str,
        gateway: str = "",
        *,
        history_changes_max: int = HISTORY_CHANGES_MAX,
        draw: Callable[[int], int] = secrets.randbelow,
    ) -> None:
        self._use(url, gateway, timeout_s=WRITE_TIMEOUT_S)
        self._draw = draw
        self._history_changes_max = history_changes_max
        self._removal = Removal(self._connection, self._keys)
        self._statuses = 0
        self._has_buried = True
        self._indexes: dict[StoreId, RowIndexes] = {}
        self._open_snapshots: list[RedisSnapshot] = []
        self._forget_all()
        self._make()

    def _make(self) -> None:
        """Say that there is a store, unless there is one."""
        store = self._keys.store
        *_, (found, incarnation) = self._connection.run(
            # Gateways may start together: the first one to say what the store is, is right.
            ("HSETNX", store, _FORMAT, FORMAT_VERSION),
            ("HSETNX", store, _INCARNATION, secrets.token_bytes(16)),
            self._here(),
            ("HMGET", store, _FORMAT, _INCARNATION),
        )
        if found != FORMAT_VERSION:
            # Nothing is converted: a store of another version can be restored, and may still be in use by gateways of
            # that version.
            theirs, ours = found.decode(errors="replace"), FORMAT_VERSION.decode()
            self.close()
            raise StoreUnavailable(
                f"the store in {self._text} has format {theirs}, this version writes {ours}: give it another prefix, "
                "where it is restored"
            )
        self._incarnation = incarnation

    def _here(self) -> Command:
        return HERE.on((self._keys.gateways,), (self._keys.gateway,))

    def _forget_all(self) -> None:
        self._positions: dict[StoredPartition, StoredPosition | None] = {}  # what this process knows to be stored
        self._brought: dict[StoredPartition, Offset] = {}  # the next offsets that this process has moved to
        self._dropped: dict[StoredPartition, float] = {}  # what this process has no part in any more, and since when
        self._put_states: dict[str, bytes] = {}

    @override
    def snapshot(self) -> AbstractContextManager[Snapshot]:
        self._check_open()
        return RedisSnapshot(
            self._connection,
            self._keys,
            self._states,
            open_snapshots=self._open_snapshots,
            on_position=self._note_position,
        )

    def _note_position(self, part: StoredPartition, value: bytes | None) -> None:
        """Take notice of what is stored: whoever read it may go on from there. What is before that is noticed later."""
        known, found = self._positions.get(part), None if value is None else unpack_stored_position(value)
        # A snapshot may have been opened before the last batch. An older position in it is no sign that Redis lost
        # anything.
        if known is None or (found is not None and not found.is_before(known)):
            self._positions[part] = found

    def _keep_for_snapshots(self, keep: Callable[[RedisSnapshot], object]) -> None:
        """Let snapshots of this process keep what is about to change. Nobody in a gateway writes beside one."""
        self._check_open()
        for snapshot in self._open_snapshots:
            keep(snapshot)

    @override
    def put_table(self, name: str, state: TableState) -> None:
        self._keep_for_snapshots(partial(RedisSnapshot.table, name=name))
        value, stream = state.SerializeToString(deterministic=True), self._keys.stream(name)
        is_served = state.store_id and not state.problem and state.manifest.table == name
        count = state.manifest.partition_count if is_served else 0  # else other gateways may know more of it
        parts = [StoredPartition(StoreId(state.store_id), Partition(number)) for number in range(count)]
        commands: list[Command] = [("HSET", self._keys.states, name, value)]
        if parts:
            # Programs of others read a table by its stream of names. They see either the old list or the new one,
            # whole.
            names = [item for part in parts for item in (part[1], self._keys.of(part).history)]
            commands += [("DEL", stream), ("HSET", stream, *map(str, names))]
        self._connection.run(("MULTI",), *commands, ("EXEC",))
        self._put_states[name] = value

    @override
    def new_store_id(self) -> StoreId:
        self._check_open()
        return StoreId(self._connection.run(("INCR", self._keys.next_id))[0])

    @override
    def copy_of(self, changelog: str, *, unwanted: Collection[StoreId]) -> Copy:
        self._check_open()
        # The store decides: of all gateways that draw at once, one number becomes that of the copy.
        drawn = f"{COPY_IDS[self._draw(len(COPY_IDS))]}/{self._draw(2**64)}"
        found = self._connection.call(COPY, (self._keys.copies,), (changelog, drawn, *unwanted))
        store_id, incarnation_id = map(int, found.split(b"/"))
        return Copy(StoreId(store_id), incarnation_id)

    @override
    def join(self, store_id: StoreId, partition: Partition) -> Joined | None:
        part = StoredPartition(store_id, partition)
        self._keep_for_snapshots(partial(RedisSnapshot.copy_partition, part=part))
        join = JOIN.on((self._keys.of(part).position,), (self._keys.gateway,))
        _, answer = self._connection.run(self._list(part), join)
        self._forget_partition(part)
        self._positions[part] = last_known = unpack_stored_position(answer[0]) if answer else None
        if last_known is None:
            return None
        # Gateways that have lately been here look after the copy, so it cannot have missed deletes. One that nobody
        # looks after may have.
        others = {*answer[1]} - {b"at", self._keys.gateway.encode()}
        return Joined(last_known.position, not others.isdisjoint(self._removal.there(THERE_MS)))

    def _list(self, part: StoredPartition) -> Command:
        return "SADD", self._keys.partitions, partition_name(part)

    @override
    def expel(self, store_id: StoreId, partition: Partition) -> None:
        part = StoredPartition(store_id, partition)
        self._keep_for_snapshots(partial(RedisSnapshot.copy_partition, part=part))
        self._forget_partition(part)
        self._connection.run(("UNLINK", *self._keys.of(part)))

    def _all_parts(self) -> list[StoredPartition]:
        return sorted(map(parse_partition_name, self._connection.run(("SMEMBERS", self._keys.partitions))[0]))

    @override
    def store_ids(self) -> set[StoreId]:
        return {store_id for store_id, _ in self._all_parts()}

    @override
    def set_status(self, status: bytes) -> None:
        """Keep the status; raise `StoreWentBack` where the store is not as far as this process knows it was."""
        self._keep_for_snapshots(RedisSnapshot.status)
        self._connection.run(("SET", self._keys.status, status), self._here())
        self._check_stored()
        # What is gone is an error for who reads it. Here it is found without, and also soon after a start.
        if self._statuses % STATUSES_PER_POLICY_CHECK == 0:
            self._check_whole()
        self._statuses += 1
        # An operator may set an eviction policy at any time, and Redis would then drop keys of the store in silence.
        if self._statuses % STATUSES_PER_POLICY_CHECK == 0:
            self._connection.check_policy()
            self._has_buried = False
        if not self._has_buried:
            # What gateways left that never come back is removed by those that live, some of it with each status.
            self._has_buried = self._removal.bury()

    def _check_stored(self) -> None:
        # A failover to a replica that lags may bring partitions back that were dropped a moment ago.
        since_s = time.monotonic() - DROPPED_S
        self._dropped = {part: dropped_s for part, dropped_s in self._dropped.items() if dropped_s > since_s}
        known = [
            *((part, last_known) for part, last_known in self._positions.items() if last_known),
            *((part, None) for part in self._dropped),
        ]
        names, parts = list(self._put_states), [partition_name(part) for part, last_known in known if last_known]
        states, incarnation, listed, *values = self._connection.run(
            ("HMGET", self._keys.states, *names, ""),
            ("HGET", self._keys.store, _INCARNATION),
            ("SMISMEMBER", self._keys.partitions, *parts, ""),
            *(self._ask_position(part) for part, _ in known),
        )
        if incarnation != self._incarnation or states[:-1] != list(self._put_states.values()) or not all(listed[:-1]):
            raise self._went_back()
        for (part, last_known), value in zip(known, map(own_value, values), strict=True):
            # The common case, and the cheapest test: the stored bytes are those that were written.
            if value == (last_known and last_known.value):
                continue
            stored = None if value is None else unpack_stored_position(value)
            if last_known is None or stored is None or stored.is_before(last_known):
                raise self._went_back()
            self._positions[part] = stored

    def _check_whole(self) -> None:
        """Raise `StoreWentBack` where partitions have lost keys, after removing what is left of these."""
        parts = [part for part, last_known in self._positions.items() if last_known]
        keys = [self._keys.of(part) for part in parts]
        found = self._connection.run(*(CHECK.on(_checked(each), ()) for each in keys))
        damaged = [each for each, is_whole in zip(keys, found, strict=True) if not is_whole]
        if damaged:
            self._connection.run(*(("UNLINK", *each) for each in damaged))
            raise self._went_back()

    def _went_back(self) -> StoreWentBack:
        known = {part: last_known for part, last_known in self._positions.items() if last_known}
        parts = [*map(partition_name, known), *map(partition_name, self._dropped)]
        # Where rows expire, they will do so in another order: subscribers that have heard of what is lost begin anew.
        expiring = {part: each for part, each in known.items() if each.position.incarnation_id}
        if expiring:
            self._connection.run(*(self._renew(part, last_known) for part, last_known in expiring.items()))
        self._forget_all()
        self._make()
        if parts:  # where Redis forgot them, nobody would remove them
            self._connection.run(("SADD", self._keys.partitions, *parts))
        why = "it lost writes, as after a failover or a flush"
        return StoreWentBack(f"the store in {self._text} went back: {why}; what it lacks is fetched again")

    def _renew(self, part: StoredPartition, known: StoredPosition) -> Command:
        incarnation = secrets.token_bytes(INCARNATION_BYTES)
        return RENEW.on((self._keys.of(part).position,), (known.value[:KNOWN_BYTES], incarnation))

    @override
    def apply(self, store_id: StoreId, partition: Partition, changes: Sequence[Change], position: Position) -> Applied:
        part = StoredPartition(store_id, partition)
        self._keep_for_snapshots(partial(RedisSnapshot.copy_partition, part=part))
        known = self._known(part)
        # In a cluster another gateway has mostly applied the same records. To ask first saves sending rows that the
        # script would only pass over.
        if known is not None and len(changes) >= CHECK_CHANGES_MIN:
            known, changes = self._not_applied(part, known, changes)
        # What this process brought before is stale when it comes again; what others brought is just not new.
        brought = self._brought.get(part, -1 if known is None else known.position.next_offset)
        gateway, history_max = self._keys.gateway, self._history_changes_max
        indexes = self._indexes.get(store_id)
        ids = () if indexes is None else indexes.ids
        arguments = [gateway, _known_bytes(known), history_max, brought, pack_position(position), len(ids), *ids]
        for change in changes:
            arguments += (change[1], pack_row(change))
        if indexes is not None:
            arguments += [b"" if each.row is None else pack_index_keys(indexes.keys_of(each.row)) for each in changes]
        # A partition is listed first, so that no row is ever in one that is not.
        first = [self._list(part)] if known is None else []
        *_, answer = self._connection.run(*first, APPLY.on(self._keys.of(part), arguments))
        if not answer:
            raise self._went_back()
        value, applied, *stale = answer
        self._positions[part], self._brought[part] = unpack_stored_position(value), position.next_offset
        # Another gateway had applied it all. What this process brought for the second time is stale all the same, and
        # is counted.
        if applied < 0:
            return Applied(0, [Repeat(*change) for change in changes if change.offset < brought])
        kinds = zip(stale[::2], stale[1::2], strict=True)
        return Applied(applied, [StaleKind(kind).of(changes[number]) for number, kind in kinds])

    def _not_applied(
        self, part: StoredPartition, known: StoredPosition, changes: Sequence[Change]
    ) -> tuple[StoredPosition, Sequence[Change]]:
        """Return what is stored now, and the changes but for those that another gateway has applied since."""
        value = own_value(self._connection.run(self._ask_position(part))[0])
        if value is None or value == known.value or (stored := unpack_stored_position(value)).is_before(known):
            return known, changes
        # Before `begin` are records that this process has brought already: the script is to see those again, and to
        # count them as stale.
        begin, end = self._brought.get(part, known.position.next_offset), stored.position.next_offset
        return stored, [change for change in changes if not begin <= change.offset < end]

    def _known(self, part: StoredPartition) -> StoredPosition | None:
        """Return what this process knows to be stored; read it where it knows nothing."""
        if part not in self._positions:
            self._note_position(part, own_value(self._connection.run(self._ask_position(part))[0]))
        return self._positions[part]

    def _ask_position(self, part: StoredPartition) -> Command:
        return self._keys.ask_position(self._keys.of(part))

    @override
    def keep_indexes(self, store_id: StoreId, indexes: RowIndexes) -> None:
        """Keep these indexes. The next `apply` to a partition says so there; and that others lack entries from then on.

        Gateways that share a partition may keep different ones for a while, as contracts of theirs differ. Whoever
        changes a row removes all its entries, and adds those of the indexes that it keeps: so none is ever left behind.
        """
        self._check_open()
        self._indexes.pop(store_id, None)
        if indexes:
            self._indexes[store_id] = indexes

    @override
    def build_indexes(self, store_id: StoreId, partition: Partition, *, limit: int) -> bool:
        part, indexes = StoredPartition(store_id, partition), self._indexes.get(store_id)
        if indexes is None:
            return True
        keys = self._keys.of(part)
        states = self._connection.run(("HMGET", keys.indexes, *indexes.ids))[0]
        found = zip(indexes.ids, states, strict=True)
        unfinished = [(index_id, state) for index_id, state in found if state not in (None, INDEX_WHOLE.encode())]
        if not unfinished:
            return True
        self._keep_for_snapshots(partial(RedisSnapshot.copy_partition, part=part))
        index_id, state = unfinished[0]
        building = INDEX_BUILDING.encode()
        first = b"[" + (state.removeprefix(building) if state.startswith(building) else b"")
        asked, read = (self._keys.gateway, first, b"+", limit), (keys.position, keys.rows, keys.order, keys.tombstones)
        _, names, values = self._connection.call(READ_RANGE, read, asked)
        is_end = len(names) < limit
        arguments = [index_id, state, INDEX_WHOLE if is_end else building + names[-1] + b"\x00"]
        for name, value in zip(names, values, strict=True):
            row = layout.live_row(stored_part(value))
            index_keys = [] if row is None else indexes.keys_of(row)
            of_this = [each for each in index_keys if each.startswith(index_id)]
            arguments += (name, record_of(value), pack_index_keys(of_this))
        build_keys = (keys.rows, keys.index_keys, keys.index_entries, keys.indexes)
        is_as_far = self._connection.call(BUILD, build_keys, arguments)
        return bool(is_as_far) and is_end and len(unfinished) == 1

    @override
    def expire(self, store_id: StoreId, partition: Partition, keys: Sequence[bytes], *, time_ms: int) -> int:
        part = StoredPartition(store_id, partition)
        self._keep_for_snapshots(partial(RedisSnapshot.copy_partition, part=part))
        known = _known_bytes(self._known(part))
        arguments = (self._keys.gateway, known, self._history_changes_max, time_ms, *keys)
        answer = self._connection.call(EXPIRE, self._keys.of(part), arguments)
        if not answer:
            raise self._went_back()
        value, removed = answer
        self._positions[part] = None if value is None else unpack_stored_position(value)
        return int(removed)

    @override
    def repairs(self, store_id: StoreId, partition: Partition, *, limit: int) -> list[Repair]:
        if limit <= 0:
            return []
        self._check_open()
        key = self._keys.of(StoredPartition(store_id, partition)).repairs
        found: dict[bytes, bytes] = {}
        cursor: Any = 0
        while True:  # a hash has no order, and one that is small comes whole with the first answer
            cursor, pairs = self._connection.run(("HSCAN", key, cursor, "COUNT", limit))[0]
            found.update(zip(pairs[::2], pairs[1::2], strict=True))
            if int(cursor) == 0 or len(found) >= limit:
                return [parse_repair(name, value) for name, value in found.items()][:limit]

    @override
    def put_transferred(self, store_id: StoreId, partition: Partition, rows: StoredRows, *, time_ms: int) -> None:
        raise AssertionError("rows of other gateways are here already")

    @override
    def end_transfer(
        self, store_id: StoreId, partition: Partition, repairs: Sequence[Repair], position: Position
    ) -> None:
        raise AssertionError("rows of other gateways are here already")

    @override
    def drop_tombstones(self, store_id: StoreId, partition: Partition, *, before_ms: int, limit: int) -> int:
        if limit <= 0:
            return 0
        part = StoredPartition(store_id, partition)
        self._keep_for_snapshots(partial(RedisSnapshot.copy_partition, part=part))
        keys = self._keys.of(part)
        return int(self._connection.call(DROP_TOMBSTONES, (keys.rows, keys.tombstones), (before_ms, limit)))

    @override
    def drop(self, store_id: StoreId, *, limit: int) -> bool:
        return self._drop([part for part in self._all_parts() if part[0] == store_id], limit)

    @override
    def drop_partition(self, store_id: StoreId, partition: Partition, *, limit: int) -> bool:
        part = StoredPartition(store_id, partition)
        return self._drop([part], limit)

    def _drop(self, parts: Sequence[StoredPartition], limit: int) -> bool:
        for part in parts:
            self._keep_for_snapshots(partial(RedisSnapshot.copy_partition, part=part))
            self._forget_partition(part)
            self._dropped[part] = time.monotonic()
        return self._removal.drop(parts, limit)

    def _forget_partition(self, part: StoredPartition) -> None:
        """Know nothing of a partition any more."""
        for known in (self._positions, self._brought, self._dropped):
            known.pop(part, None)

    def abandon(self) -> None:
        """Let go of the store, whatever state it is in."""
        self.close()


class Removal:
    """Removes partitions of one prefix, for a gateway that is there."""

    def __init__(self, connection: Redis, keys: Keys) -> None:
        self._connection = connection
        self._keys = keys

    def there(self, for_ms: int) -> set[bytes]:
        """Return the gateways that were here within that time."""
        return set(self._connection.call(THERE, (self._keys.gateways,), (for_ms,)))

    def drop(self, parts: Sequence[StoredPartition], limit: int) -> bool:
        """Take partitions from this gateway, and remove at most `limit` rows and changes that nobody keeps then.

        Return whether nothing is left of them.
        """
        done = self._removed(parts, limit, leaving=(self._keys.gateway.encode(),))
        if done:
            self._connection.run(("SREM", self._keys.partitions, *map(partition_name, done)))
        return len(done) == len(parts)

    def _removed(
        self, parts: Sequence[StoredPartition], limit: int, *, leaving: Iterable[bytes]
    ) -> list[StoredPartition]:
        """Take partitions from gateways that leave or are gone; return those of which nobody has anything left."""
        done: list[StoredPartition] = []
        if not parts:
            return done
        # Whoever keeps one was here before it did, so this order takes nobody for gone who has just come.
        *keepers, there = self._connection.run(
            *(("HKEYS", self._keys.of(part).position) for part in parts),
            THERE.on((self._keys.gateways,), (GONE_MS,)),
        )
        gone = [{*kept} - {b"at", *there} | {*leaving} for kept in keepers]
        if len(parts) > 1:  # first the positions, so that nobody reads the rest
            found = zip(parts, gone, strict=True)
            self._connection.run(*(DROP.on(self._keys.of(part), (0, *names)) for part, names in found))
        left = max(limit, 0)
        for part, names in zip(parts, gone, strict=True):
            removed, rest = self._connection.call(DROP, self._keys.of(part), (left, *names))
            if rest:
                break
            left -= removed
            done.append(part)
        return done

    def bury(self) -> bool:
        """Remove some of what gateways left that are gone; return True when there is nothing of that any more."""
        names, there = self._connection.run(
            ("HKEYS", self._keys.gateways), THERE.on((self._keys.gateways,), (GONE_MS,))
        )
        return all(self._is_buried(name) for name in names if name not in there)

    def _is_buried(self, name: bytes) -> bool:
        theirs = self._keys.of_gateway(name.decode())
        found = self._connection.run(("SRANDMEMBER", theirs.partitions, BURIED_PARTITIONS_MAX))[0]
        done = self._removed([*map(parse_partition_name, found)], BURIED_ROWS_MAX, leaving=())
        keys = (theirs.gateways, theirs.states, theirs.status, theirs.partitions)
        return bool(self._connection.call(BURY, keys, (name, GONE_MS, *map(partition_name, done))))


def wipe(url: str) -> None:
    """Remove everything of the store's prefix, of all gateways: they see it. Raise `StoreUnavailable`."""
    address = parse_address(url)
    connection = connect(address, timeout_s=WRITE_TIMEOUT_S)
    keys = Keys(address.prefix, "")
    for name in connection.run(("HKEYS", keys.gateways))[0]:
        own = keys.of_gateway(name.decode())
        tables, parts = connection.run(("HKEYS", own.states), ("SMEMBERS", own.partitions))
        for part in map(parse_partition_name, parts):
            connection.run(*(("UNLINK", key) for key in keys.of(part)))
        streams = [keys.stream(table.decode()) for table in tables]
        connection.run(("UNLINK", own.states, own.status, own.partitions, *streams))
    connection.run(("UNLINK", keys.copies, keys.next_id, keys.store, keys.gateways))
    connection.close()


def _known_bytes(known: StoredPosition | None) -> bytes:
    """Return what scripts get of what this process knows."""
    return b"" if known is None else known.value[:KNOWN_BYTES]


def _checked(keys: PartitionKeys) -> tuple[str, ...]:
    """Return the keys of which a check tells whether they are all there."""
    return keys.position, keys.rows, keys.order, keys.tombstones, keys.index_keys, keys.index_entries, keys.history
