"""Indexes in a Redis that gateways of several contracts share, and that changes while it is read."""

import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import pytest
from typing_extensions import override

from tablegate.gateway.contract.indexes import RowIndexes
from tablegate.gateway.contract.keys import encode_key
from tablegate.gateway.contract.types import Offset, Partition, StoreId
from tablegate.gateway.stores.base import Applied, Change, Position, StoreUnavailable, StoreWentBack
from tablegate.gateway.stores.redis.scripts import SCRIPTS
from tablegate.gateway.stores.redis.store import RedisReader, RedisStore
from tests.kit.programs.redis import RedisServer, needs_redis
from tests.kit.store.changes import change, position
from tests.kit.store.indexed_accounts import ID, P0, TABLE, Written
from tests.kit.store.memory import MemoryStore
from tests.kit.store.redis_gateways import Log, ShakyStore
from tests.kit.table.accounts import entries_of, index

pytestmark = needs_redis

BY_CITY, BY_TAG = index("by_city"), index("by_tag")
TRIPS_MAX = 100


class AtTrip:
    """A world in which something happens once: beside the round trip that is `trips_left` away."""

    def __init__(self, url: str, happens: Callable[[], None]) -> None:
        self.url = url
        self.chance = random.Random(1)
        self.logs: Mapping[str, Log] = {}
        self.went_back = 0
        self.trips_left = 0
        self._happens = happens

    def between(self) -> None:
        self.trips_left -= 1
        if self.trips_left == 0:
            self._happens()

    def loses_answer(self) -> bool:
        return False


def only(*indexes: object) -> RowIndexes:
    return RowIndexes([each for each in TABLE.indexes if each in indexes], TABLE.row_class)


def join(store: RedisStore, indexes: RowIndexes, next_offset: int) -> None:
    """Take part in the partition with another contract."""
    store.keep_indexes(ID, indexes)
    assert store.join(ID, P0)
    store.apply(ID, P0, [], position(next_offset))


@pytest.mark.parametrize("lost", ["rows", "index_entries", "index_keys"])
def test_keys_of_an_index_that_redis_lost_are_no_missing_rows(own_redis_server: RedisServer, lost: str) -> None:
    url = own_redis_server.new_url()
    store, reader = RedisStore(url, "a"), RedisReader(url, "a")
    Written(store, 1, only(BY_TAG, BY_CITY)).write_some(40)
    [key] = own_redis_server.run("KEYS", f"*:{lost}")
    own_redis_server.run("DEL", key)
    with reader.snapshot() as snapshot, pytest.raises(StoreUnavailable, match="has lost keys"):
        snapshot.index_range(ID, P0, BY_CITY, start=b"", end=None, limit=1_000)
    with pytest.raises(StoreWentBack):
        store.set_status(b"up")
    with reader.snapshot() as snapshot:
        assert snapshot.position(ID, P0) is None
    store.close()
    reader.close()


class Refused(RedisStore):
    """A store whose Redis refuses it a command for as long as a batch is applied for the first time."""

    def __init__(self, server: RedisServer, commands: Iterable[str]) -> None:
        super().__init__(server.new_url())
        self._server = server
        self._commands = iter(commands)
        self.refusals: list[str] = []

    @override
    def apply(self, store_id: StoreId, partition: Partition, changes: Sequence[Change], position: Position) -> Applied:
        command = next(self._commands, None)
        if command is not None:
            self._server.run("ACL", "SETUSER", "default", f"-{command}")
            try:
                super().apply(store_id, partition, changes, position)
            except StoreUnavailable as error:
                self.refusals.append(str(error))
            self._server.run("ACL", "SETUSER", "default", "+@all")
        return super().apply(store_id, partition, changes, position)


def test_a_command_that_is_refused_for_a_while_leaves_half_of_nothing(own_redis_server: RedisServer) -> None:
    commands = sorted({name for each in SCRIPTS for name in re.findall(r"call(?:_many)?\('([A-Z]+)'", each.text)})
    store, memory = Refused(own_redis_server, commands), MemoryStore()
    written = [Written(each, seed=1) for each in (store, memory)]
    for _ in commands:
        for each in written:
            each.write_some()
    found = []
    for each in written:
        each.check()
        with each.store.snapshot() as snapshot:
            rows = snapshot.range(ID, P0, start=b"", end=None, limit=10_000)
            found.append((rows, snapshot.history(ID, P0, start=Offset(0), limit=10_000)))
        assert dict(rows) == each.rows
    assert found[0] == found[1]
    assert len(store.refusals) >= 10
    assert all("does not permit what the store does (" in each for each in store.refusals)
    own_redis_server.run("ACL", "SETUSER", "default", "-hmget")
    with store.snapshot() as snapshot, pytest.raises(StoreUnavailable, match="does not permit what the store does"):
        snapshot.get(ID, P0, b"never there")
    store.close()


def test_a_build_leaves_what_another_contract_keeps(redis_server: RedisServer) -> None:
    url = redis_server.new_url()
    written = Written(RedisStore(url, "a"), 1, only(BY_TAG))
    written.write_some(40)
    other = RedisStore(url, "b")
    join(other, only(BY_CITY), written.next_offset)
    while not other.build_indexes(ID, P0, limit=3):
        pass
    written.check([BY_TAG, BY_CITY])


def test_a_build_misses_no_row_that_another_contract_writes_beside_it(redis_server: RedisServer) -> None:
    """Whoever does not keep an index sends it back to its beginning, also where it has not left that yet."""
    for trip in range(1, TRIPS_MAX):
        url = redis_server.new_url()
        written = Written(RedisStore(url, "a"), trip, None)
        written.write_some(12)
        world = AtTrip(url, written.write_some)
        builder = ShakyStore(world, "b")
        join(builder, only(BY_CITY), written.next_offset)
        world.trips_left = trip
        while not builder.build_indexes(ID, P0, limit=9):
            pass
        has_happened = world.trips_left <= 0
        while not builder.build_indexes(ID, P0, limit=9):  # what was sent back in its last moment
            pass
        written.check([BY_CITY])
        if not has_happened:
            assert trip > 3
            return
    raise AssertionError("the build never ends")


@pytest.mark.parametrize("descending", [False, True])
def test_entries_of_rows_that_changed_twice_are_taken_back(redis_server: RedisServer, descending: bool) -> None:
    """How many a row has now, its first change since the snapshot does not tell."""
    url = redis_server.new_url()
    store = RedisStore(url)
    store.keep_indexes(ID, TABLE.row_indexes)
    one, two = (encode_key(TABLE.key, ["ash", number]) for number in (1, 2))

    def row(*tags: str) -> bytes:
        return bytes(TABLE.row_class(bank="ash", tags=tags).SerializeToString())

    store.apply(ID, P0, [change(0, one, 1, row("M")), change(1, two, 2, row())], position(2))
    with RedisReader(url).snapshot() as snapshot:
        assert snapshot.position(ID, P0)
        many = row(*(f"{letter}{number}" for letter in "AZ" for number in range(20)))
        store.apply(ID, P0, [change(2, two, 3, row()), change(3, two, 4, many)], position(4))
        for limit in (0, 1, 2, 50):
            found = snapshot.index_range(ID, P0, BY_TAG, start=b"", end=None, limit=limit, descending=descending)
            assert found == entries_of(BY_TAG, {one: row("M")})[:limit]
