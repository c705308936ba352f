"""The store in Redis: what `redis_layout` says, a partition in one slot, a batch in one atomic step.

Rows, order, history and position of a batch are written by one script, which compares versions itself. So gateways of
one prefix share a copy of each partition that several are to have, and all write to it: one that is behind moves
neither a row back nor the position, and what another has applied is not applied again. Which partitions a gateway has,
how far it is with each (its phase), tables and status are its own. Rows go when nobody has them any more.

What is stored is as durable as Redis is told to be; the changelog is the truth. Where a failover or a flush took back
what this writer had written, its next write or status raises `StoreWentBack`, and changes nothing: a batch never leaves
a gap. After that the store is as if just opened.

Redis 7.0 or newer, with `maxmemory-policy noeviction`: an evicted key would be a row that is "not found".
"""

import secrets
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from functools import partial

from tablegate.gateway.contract.types import Offset, Partition, StoreId
from tablegate.gateway.stores.base import (
    HISTORY_CHANGES_MAX,
    Applied,
    Change,
    Copy,
    Joined,
    Phase,
    Position,
    Snapshot,
    StoreReader,
    StoreUnavailable,
    StoreWentBack,
    StoreWriter,
)
from tablegate.gateway.stores.redis.connection import Command, RedisConnection, parse_address
from tablegate.gateway.stores.redis.layout import (
    FORMAT_VERSION,
    KNOWN_BYTES,
    Keys,
    Mark,
    Place,
    held_value,
    mark_of,
    pack_position,
    pack_row,
    place_name,
    place_of,
)
from tablegate.gateway.stores.redis.removal import Removal
from tablegate.gateway.stores.redis.scripts import APPLY, COPY, DROP_TOMBSTONES, EXPIRE, HERE, JOIN
from tablegate.gateway.stores.redis.snapshot import KnownStates, RedisSnapshot
from tablegate.internal.v1.store_pb2 import TableState
from typing_extensions import override

READ_TIMEOUT_S = 3.0  # a worker's event loop waits so long at most, and the largest batch takes less
WRITE_TIMEOUT_S = 30.0  # nobody waits for the writer
STATUSES_PER_POLICY_CHECK = 20  # ten seconds
CHANGES_MAX = 2_000  # Redis does nothing else meanwhile: 20 ms
LOOK_FIRST = 100  # changes of a batch from which on it is worth a look whether another gateway has applied them
THERE_MS = 30_000  # a gateway that was here so lately looks after what it keeps
LET_GO_S = 60.0  # a failover brings back no partition that was let go of before
COPY_IDS = range(2**20, 2**31)  # drawn: one that Redis forgot, and that a gateway still writes to, is given to nobody

_FORMAT, _LIFE = "format", "life"


class RedisReader(StoreReader):
    """The store for a process that answers, as a gateway has it ("": one that stands alone).

    Opening one raises `StoreUnavailable`, or `BadRedisUrl`.
    """

    def __init__(self, url: str, gateway: str = "") -> None:
        self._use(url, gateway, timeout_s=READ_TIMEOUT_S)
        [[found, life]] = self._connection.run(("HMGET", self._keys.store, _FORMAT, _LIFE))
        self._life = life
        if found != FORMAT_VERSION:
            self.close()
            raise StoreUnavailable(f"there is no store in {self._text} yet: the replicator makes it")

    def _use(self, url: str, gateway: str, *, timeout_s: float) -> None:
        address = parse_address(url)
        self._text = address.text
        self._connection = RedisConnection(address, timeout_s=timeout_s)
        self._keys = Keys(address.prefix, gateway)
        self._states: KnownStates = {}
        self._life = b""
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
            return bool(self._connection.run(("HGET", self._keys.store, _LIFE))[0] == self._life)
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
        self._open_snapshots: list[RedisSnapshot] = []
        self._forget()
        self._make()

    def _make(self) -> None:
        """Say that there is a store, unless there is one."""
        store = self._keys.store
        *_, (found, life) = self._connection.run(
            ("HSETNX", store, _FORMAT, FORMAT_VERSION),
            ("HSETNX", store, _LIFE, secrets.token_bytes(16)),
            self._here(),
            ("HMGET", store, _FORMAT, _LIFE),
        )
        if found != FORMAT_VERSION:
            theirs, ours = found.decode(errors="replace"), FORMAT_VERSION.decode()
            self.close()
            raise StoreUnavailable(
                f"the store in {self._text} has format {theirs}, this version writes {ours}: give it another prefix, "
                "where it is restored"
            )
        self._life = life

    def _here(self) -> Command:
        return HERE.on((self._keys.gateways,), (self._keys.gateway,))

    def _forget(self) -> None:
        self._marks: dict[Place, Mark | None] = {}  # what this process knows to be stored
        self._brought: dict[Place, Offset] = {}  # the next offsets that this process has moved to
        self._let_go: dict[Place, float] = {}  # what this process has no part in any more, and since when
        self._put_states: dict[str, bytes] = {}

    @override
    def snapshot(self) -> AbstractContextManager[Snapshot]:
        self._check_open()
        return RedisSnapshot(
            self._connection, self._keys, self._states, open_snapshots=self._open_snapshots, noted=self._note
        )

    def _note(self, place: Place, value: bytes | None) -> None:
        """Take notice of what is stored: whoever read it may go on from there. What is before that is noticed later."""
        known, found = self._marks.get(place), None if value is None else mark_of(value)
        if known is None or (found is not None and not _is_before(found, known)):
            self._marks[place] = found

    def _hold(self, hold: Callable[[RedisSnapshot], object]) -> None:
        """Let snapshots of this process keep what is about to change. Nobody in a gateway writes beside one."""
        self._check_open()
        for snapshot in self._open_snapshots:
            hold(snapshot)

    @override
    def put_table(self, name: str, state: TableState) -> None:
        self._hold(partial(RedisSnapshot.table, name=name))
        value, stream = state.SerializeToString(deterministic=True), self._keys.stream(name)
        is_served = state.store_id and not state.problem and state.manifest.table == name
        count = state.manifest.partition_count if is_served else 0  # else other gateways may know more of it
        places = [(StoreId(state.store_id), Partition(number)) for number in range(count)]
        commands: list[Command] = [("HSET", self._keys.states, name, value)]
        if places:
            names = [item for place in places for item in (place[1], self._keys.of(place).history)]
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
        drawn = f"{COPY_IDS[self._draw(len(COPY_IDS))]}/{self._draw(2**64)}"
        found = self._connection.call(COPY, (self._keys.copies,), (changelog, drawn, *unwanted))
        store_id, life_id = map(int, found.split(b"/"))
        return Copy(StoreId(store_id), life_id)

    @override
    def join(self, store_id: StoreId, partition: Partition) -> Joined | None:
        place = store_id, partition
        self._hold(partial(RedisSnapshot.hold_place, place=place))
        join = JOIN.on((self._keys.of(place).position,), (self._keys.gateway,))
        _, answer = self._connection.run(self._list(place), join)
        self._begin(place)
        self._marks[place] = mark = mark_of(answer[0]) if answer else None
        if mark is None:
            return None
        others = {*answer[1]} - {b"at", self._keys.gateway.encode()}
        return Joined(mark.position, not others.isdisjoint(self._removal.there(THERE_MS)))

    def _list(self, place: Place) -> Command:
        return "SADD", self._keys.places, place_name(place)

    @override
    def expel(self, store_id: StoreId, partition: Partition) -> None:
        place = store_id, partition
        self._hold(partial(RedisSnapshot.hold_place, place=place))
        self._begin(place)
        self._connection.run(("UNLINK", *self._keys.of(place)))

    def _places(self) -> list[Place]:
        return sorted(map(place_of, self._connection.run(("SMEMBERS", self._keys.places))[0]))

    @override
    def store_ids(self) -> set[StoreId]:
        return {store_id for store_id, _ in self._places()}

    @override
    def set_status(self, status: bytes) -> None:
        """Keep the status; raise `StoreWentBack` where the store is not as far as this process knows it was."""
        self._hold(RedisSnapshot.status)
        self._connection.run(("SET", self._keys.status, status), self._here())
        self._check_stored()
        self._statuses += 1
        if self._statuses % STATUSES_PER_POLICY_CHECK == 0:
            self._connection.check_policy()
            self._has_buried = False
        if not self._has_buried:
            self._has_buried = self._removal.bury()

    def _check_stored(self) -> None:
        since_s = time.monotonic() - LET_GO_S
        self._let_go = {place: let_go_s for place, let_go_s in self._let_go.items() if let_go_s > since_s}
        known = [
            *((place, mark) for place, mark in self._marks.items() if mark),
            *((place, None) for place in self._let_go),
        ]
        names, places = list(self._put_states), [place_name(place) for place, mark in known if mark is not None]
        states, life, listed, *values = self._connection.run(
            ("HMGET", self._keys.states, *names, ""),
            ("HGET", self._keys.store, _LIFE),
            ("SMISMEMBER", self._keys.places, *places, ""),
            *(self._ask_position(place) for place, _ in known),
        )
        if life != self._life or states[:-1] != list(self._put_states.values()) or not all(listed[:-1]):
            raise self._went_back()
        for (place, mark), value in zip(known, map(held_value, values), strict=True):
            if value != (mark and mark.value):
                if mark is None or value is None or _is_before(stored := mark_of(value), mark):
                    raise self._went_back()
                self._marks[place] = stored

    def _went_back(self) -> StoreWentBack:
        places = [place_name(place) for place, mark in self._marks.items() if mark] + [*map(place_name, self._let_go)]
        self._forget()
        self._make()
        if places:  # where Redis forgot them, nobody would remove them
            self._connection.run(("SADD", self._keys.places, *places))
        why = "it lost writes, as after a failover or a flush"
        return StoreWentBack(f"the store in {self._text} went back: {why}; what it lacks is fetched again")

    @override
    def apply(self, store_id: StoreId, partition: Partition, changes: Sequence[Change], position: Position) -> Applied:
        place = store_id, partition
        self._hold(partial(RedisSnapshot.hold_place, place=place))
        known = self._known(place)
        if known is not None and len(changes) >= LOOK_FIRST:
            known, changes = self._not_applied(place, known, changes)
        brought = self._brought.get(place, -1 if known is None else known.position.next_offset)
        gateway, history_max = self._keys.gateway, self._history_changes_max
        arguments = [gateway, _known_bytes(known), history_max, brought, pack_position(position)]
        for change in changes:
            arguments += (change[1], pack_row(change))
        # A partition is listed first, so that no row is ever in one that is not.
        first = [self._list(place)] if known is None else []
        *_, answer = self._connection.run(*first, APPLY.on(self._keys.of(place), arguments))
        if not answer:
            raise self._went_back()
        value, applied, *stale = answer
        self._marks[place], self._brought[place] = mark_of(value), position.next_offset
        if applied < 0:
            return Applied(0, [change for change in changes if change.offset < brought])
        return Applied(applied, [changes[number] for number in stale])

    def _not_applied(self, place: Place, known: Mark, changes: Sequence[Change]) -> tuple[Mark, Sequence[Change]]:
        """Return what is stored now, and the changes but for those that another gateway has applied since."""
        value = held_value(self._connection.run(self._ask_position(place))[0])
        if value is None or value == known.value or _is_before(stored := mark_of(value), known):
            return known, changes
        begin, end = self._brought.get(place, known.position.next_offset), stored.position.next_offset
        return stored, [change for change in changes if not begin <= change.offset < end]

    def _known(self, place: Place) -> Mark | None:
        """Return what this process knows to be stored; it looks where it knows nothing."""
        if place not in self._marks:
            self._note(place, held_value(self._connection.run(self._ask_position(place))[0]))
        return self._marks[place]

    def _ask_position(self, place: Place) -> Command:
        return self._keys.ask_position(self._keys.of(place))

    @override
    def expire(self, store_id: StoreId, partition: Partition, keys: Sequence[bytes], *, time_ms: int) -> int:
        place = store_id, partition
        self._hold(partial(RedisSnapshot.hold_place, place=place))
        known = _known_bytes(self._known(place))
        arguments = (self._keys.gateway, known, self._history_changes_max, time_ms, *keys)
        answer = self._connection.call(EXPIRE, self._keys.of(place), arguments)
        if not answer:
            raise self._went_back()
        value, removed = answer
        self._marks[place] = None if value is None else mark_of(value)
        return int(removed)

    @override
    def drop_tombstones(self, store_id: StoreId, partition: Partition, *, before_ms: int, limit: int) -> int:
        if limit <= 0:
            return 0
        place = store_id, partition
        self._hold(partial(RedisSnapshot.hold_place, place=place))
        keys = self._keys.of(place)
        return int(self._connection.call(DROP_TOMBSTONES, (keys.rows, keys.tombstones), (before_ms, limit)))

    @override
    def drop(self, store_id: StoreId, *, limit: int) -> bool:
        return self._drop([place for place in self._places() if place[0] == store_id], limit)

    @override
    def drop_partition(self, store_id: StoreId, partition: Partition, *, limit: int) -> bool:
        place = store_id, partition
        return self._drop([place], limit)

    def _drop(self, places: Sequence[Place], limit: int) -> bool:
        for place in places:
            self._hold(partial(RedisSnapshot.hold_place, place=place))
            self._begin(place)
            self._let_go[place] = time.monotonic()
        return self._removal.drop(places, limit)

    def _begin(self, place: Place) -> None:
        """Know nothing of a partition any more."""
        for known in (self._marks, self._brought, self._let_go):
            known.pop(place, None)

    def abandon(self) -> None:
        """Let go of the store, whatever state it is in."""
        self.close()


def wipe(url: str) -> None:
    """Remove everything of the store's prefix, of all gateways: they see it. Raise `StoreUnavailable`."""
    address = parse_address(url)
    connection = RedisConnection(address, timeout_s=WRITE_TIMEOUT_S)
    keys = Keys(address.prefix, "")
    for name in connection.run(("HKEYS", keys.gateways))[0]:
        own = keys.of_gateway(name.decode())
        tables, places = connection.run(("HKEYS", own.states), ("SMEMBERS", own.places))
        for place in map(place_of, places):
            connection.run(*(("UNLINK", key) for key in keys.of(place)))
        streams = [keys.stream(table.decode()) for table in tables]
        connection.run(("UNLINK", own.states, own.status, own.places, *streams))
    connection.run(("UNLINK", keys.copies, keys.next_id, keys.store, keys.gateways))
    connection.close()


def _known_bytes(known: Mark | None) -> bytes:
    """Return what scripts are told of what this process knows."""
    return b"" if known is None else known.value[:KNOWN_BYTES]


def _is_before(stored: Mark, known: Mark) -> bool:
    """Return whether a position is one that was stored before another, or of another copy."""
    phases = stored.position.phase, known.position.phase
    if stored.position.life_id != known.position.life_id or phases.count(Phase.RESTORING) == 1:
        return True
    at, known_at = (stored.position.next_offset, stored.last), (known.position.next_offset, known.last)
    if at != known_at:
        return at < known_at
    return known.position.phase is Phase.LIVE and stored.position.phase is not Phase.LIVE
