"""Gateways that do with a store in Redis what replicators do, a step at a time, as chance has it.

They follow two changelogs, each of one partition, from which compaction takes what was overwritten. Each start of one
may have another contract, with other indexes.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from typing_extensions import override

from tablegate.gateway.contract.indexes import RowIndexes
from tablegate.gateway.contract.types import Partition, StoreId
from tablegate.gateway.stores.base import Change, Phase, Position, StoreUnavailable, StoreWentBack
from tablegate.gateway.stores.redis.connection import Command, RedisConnection, parse_address
from tablegate.gateway.stores.redis.store import RedisReader, RedisStore
from tablegate.internal.v1.store_pb2 import TableState
from tablegate.v1.changelog_pb2 import Manifest
from tests.kit.store.changes import change, position
from tests.kit.table.accounts import TAGS, accounts_table, index

P0 = Partition(0)
TABLES = ("x", "y")
KEYS = [bytes([number]) for number in range(12)]
EXPIRING = KEYS[8:]
HISTORY_MAX = 60
RECORDS_MAX = 500
ALL = 10_000
INDEXES = (index("by_tag"), index("by_number"))
CONTRACTS = [RowIndexes(each, INDEXES[0].row_class) for each in (INDEXES, INDEXES, INDEXES[:1], INDEXES[1:], ())]


class Killed(BaseException):
    """The process of a gateway is gone."""


class World(Protocol):
    """Where gateways are."""

    chance: random.Random
    url: str
    logs: Mapping[str, "Log"]
    went_back: int

    def between(self) -> None:
        """Let things happen beside a round trip."""

    def loses_answer(self) -> bool:
        """Return whether an answer is lost, so that all is sent again."""


class ShakyConnection(RedisConnection):
    """A connection beside whose round trips things happen."""

    between: Callable[[], None]
    loses_answer: Callable[[], bool]

    @override
    def run(self, *commands: Command) -> list[Any]:
        self.between()
        answers = super().run(*commands)
        if self.loses_answer():
            answers = super().run(*commands)
        self.between()
        return answers


class ShakyStore(RedisStore):
    """A store over such a connection."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        super().__init__(world.url, name, history_changes_max=HISTORY_MAX, draw=world.chance.randrange)

    @override
    def _use(self, url: str, gateway: str, *, timeout_s: float) -> None:
        super()._use(url, gateway, timeout_s=timeout_s)
        shaky = ShakyConnection(parse_address(url), timeout_s=timeout_s)
        shaky.between, shaky.loses_answer = self._world.between, self._world.loses_answer
        self._connection = shaky


class Log:
    """A changelog: what is below `clean` is there only where nothing below it took its place."""

    def __init__(self, name: str, random_: random.Random) -> None:
        self.name = name
        self.end = 40
        self.clean = 0
        self.expired = 0  # so many of those in `order`
        self.order = random_.sample(EXPIRING, len(EXPIRING))
        self.records: list[Change] = []
        for offset in range(RECORDS_MAX):
            row = None if random_.random() < 0.3 else _row(random_, name, offset)
            self.records.append(change(offset, random_.choice(KEYS), offset + 1, row))
        self.states = list(states(self.records))

    def read(self, start: int, end: int) -> list[Change]:
        newest = {record.key: record.offset for record in self.records[: self.clean]}
        found = self.records[start:end]
        return [record for record in found if record.offset >= self.clean or newest[record.key] == record.offset]

    def gone(self, *, lag: int = 0) -> set[bytes]:
        """Return the keys that are expired, by a clock that is so many of them behind."""
        return set(self.order[: max(0, self.expired - lag)])


def _row(random_: random.Random, name: str, offset: int) -> bytes:
    """Return an account whose entries lie among those of others."""
    tags = random_.choices(TAGS, k=random_.choice((0, 1, 1, 3)))
    row: Any = accounts_table().row_class(bank=name, account_id=offset, number=str(offset % 7), tags=tags)
    return bytes(row.SerializeToString())


def states(records: Sequence[Change]) -> Iterator[dict[bytes, bytes]]:
    """Yield the rows at each offset."""
    rows: dict[bytes, bytes] = {}
    yield {}
    for record in records:
        rows.pop(record.key, None)
        if record.row is not None:
            rows[record.key] = record.row
        yield dict(rows)


@dataclass
class Followed:
    """A table that a gateway follows: how far it has read, and up to where it must to answer."""

    store_id: StoreId
    reached: int
    barrier: int
    phase: Phase


class Gateway:
    """What a replicator does with its store, a step at a time. `store` is None while it does not run."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.store: RedisStore | None = None
        self.reader: RedisReader | None = None
        self.followed: dict[str, Followed] = {}
        self._world = world
        self._chance = world.chance
        self._garbage: list[StoreId] = []
        self._given_up: set[StoreId] = set()
        self._lag = 0  # of its clock
        self._indexes = CONTRACTS[0]
        self._is_busy = False

    def step(self) -> None:
        """Do something, as far as it comes."""
        if self._is_busy:
            return  # it is one thread
        self._is_busy = True
        try:
            if self.store is None:
                self.store = ShakyStore(self._world, self.name)
                self._begin(self.store)
            else:
                self._act(self.store)
        except StoreWentBack:
            self._world.went_back += 1
            self.stop()
        except (Killed, StoreUnavailable):
            self.stop()
        finally:
            self._is_busy = False

    def stop(self) -> None:
        if self.store is not None:
            with suppress(StoreUnavailable):
                self.store.close()
        self.store = None
        self.followed.clear()

    def _begin(self, store: RedisStore) -> None:
        if self.reader is None:
            self.reader = RedisReader(self._world.url, self.name)
        self._lag = self._chance.randrange(2)
        self._indexes = self._chance.choice(CONTRACTS)
        found = {name: self._state(store, name) for name in TABLES}
        named = {StoreId(state.store_id) for state in found.values()}
        for store_id in named:
            at = self._position(store, store_id)
            if at is not None and at.phase is Phase.LIVE:
                store.apply(store_id, P0, [], at.in_phase(Phase.CATCHING_UP))
        self._garbage = sorted(store.store_ids() - named)
        self._given_up = set(self._garbage)

    def _state(self, store: RedisStore, name: str) -> TableState:
        with store.snapshot() as snapshot:
            return snapshot.table(name) or TableState()

    def _position(self, store: RedisStore, store_id: StoreId) -> Position | None:
        with store.snapshot() as snapshot:
            return snapshot.position(store_id, P0)

    def _act(self, store: RedisStore) -> None:
        chance, name = self._chance, self._chance.choice(TABLES)
        followed = self.followed.get(name)
        match chance.randrange(28):
            case 0:
                store.set_status(b"up")
            case 1 if followed is not None and chance.random() < 0.3:
                del self.followed[name]
                store.drop_partition(followed.store_id, P0, limit=chance.choice([2, 9, ALL]))
            case 2 if followed is not None and chance.random() < 0.3:  # as where its changelog lost records
                del self.followed[name]
                self._garbage.append(followed.store_id)
                self._given_up.add(followed.store_id)
                store.put_table(name, TableState())
            case 3 if followed is not None:
                self._sweep(store, name, followed)
            case 4 if followed is not None:
                store.drop_tombstones(followed.store_id, P0, before_ms=10**9, limit=chance.choice([1, ALL]))
            case 5 | 6 if self._garbage:
                if store.drop(self._garbage[0], limit=chance.choice([3, ALL])):
                    self._garbage.pop(0)
            case 7 if chance.random() < 0.3:
                raise Killed
            case 8 | 9 | 10 | 11 if followed is not None:
                store.build_indexes(followed.store_id, P0, limit=chance.choice([1, 4, ALL]))
            case _ if followed is None:
                self._follow(store, name)
            case _:
                self._read(store, name, followed, chance.choice([0, 1, 5, 30, 120]))

    def _follow(self, store: RedisStore, name: str) -> None:
        state, barrier = self._state(store, name), self._world.logs[name].end
        is_new = not state.store_id or state.store_id in self._given_up
        if is_new:
            copy = store.copy_of(f"changelog/{name}", unwanted=self._given_up)
            state = TableState(
                store_id=copy.store_id, incarnation_id=copy.incarnation_id, manifest=Manifest(partition_count=1)
            )
        store_id = StoreId(state.store_id)
        found = None if is_new else self._position(store, store_id)
        while found is None and not is_new and not store.drop_partition(store_id, P0, limit=20):
            pass
        if found is None:
            joined = store.join(store_id, P0)
            if joined is not None and not joined.is_kept and self._chance.random() < 0.3:
                store.expel(store_id, P0)
                joined = None
            found = position(0, phase=Phase.RESTORING) if joined is None else joined.position
        followed = Followed(store_id, found.next_offset, barrier, found.phase)
        store.keep_indexes(store_id, self._indexes)
        self._read(store, name, followed, 0)
        if is_new:
            store.put_table(name, state)
        self.followed[name] = followed

    def _read(self, store: RedisStore, name: str, followed: Followed, count: int) -> None:
        log, gone = self._world.logs[name], self._world.logs[name].gone(lag=self._lag)
        end = max(followed.reached, min(followed.reached + count, log.end))
        changes = [record for record in log.read(followed.reached, end) if record.key not in gone]
        phase = followed.phase
        if end >= followed.barrier:
            phase = Phase.LIVE
            if followed.phase is Phase.RESTORING:
                store.apply(followed.store_id, P0, changes, position(end, phase=Phase.RESTORING, as_of_ms=end))
                changes = []
        store.apply(followed.store_id, P0, changes, position(end, phase=phase, as_of_ms=end))
        followed.reached, followed.phase = end, phase

    def _sweep(self, store: RedisStore, name: str, followed: Followed) -> None:
        gone = self._world.logs[name].gone(lag=self._lag)
        with store.snapshot() as snapshot:
            rows = snapshot.range(followed.store_id, P0, start=b"", end=None, limit=ALL)
        store.expire(followed.store_id, P0, [key for key, _ in rows if key in gone], time_ms=7)

    def _is_whole(self, store: RedisStore) -> bool:
        """Return whether the store has what it is known to have; else stop."""
        try:
            store.set_status(b"up")
        except StoreWentBack:
            self.stop()
        return self.store is not None

    def leave(self) -> None:
        """Give everything away, for good."""
        while self.store is None or not self._is_whole(self.store):
            self.step()
        self.followed.clear()
        for name in TABLES:
            self.store.put_table(name, TableState())
        for store_id in self.store.store_ids():
            while not self.store.drop(store_id, limit=50):
                pass
