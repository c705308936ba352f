"""One copy of a partition in Redis, which several gateways keep: who has it, who writes, what of it goes when."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from typing_extensions import override

from tablegate.gateway.contract.types import Offset, StoreId
from tablegate.gateway.stores.base import Change, Phase, StoreReader, StoreWentBack
from tablegate.gateway.stores.redis.connection import parse_address
from tablegate.gateway.stores.redis.layout import Keys
from tablegate.gateway.stores.redis.store import GONE_MS, RedisReader, RedisStore, wipe
from tablegate.internal.v1.store_pb2 import TableState
from tests.kit.programs.redis import RedisServer, needs_redis
from tests.kit.seeds import seeds
from tests.kit.store.batches import ID, P0, P1, apply_batches, expected_rows, fill, rows_of, stored_position
from tests.kit.store.changes import change, position
from tests.kit.store.crash_writer import batch_of
from tests.kit.store.memory import MemoryStore

pytestmark = needs_redis

HISTORY_MAX = 25


def phases(*stores: StoreReader) -> list[Phase | None]:
    found = [stored_position(store) for store in stores]
    return [None if each is None else each.phase for each in found]


def drop_all(store: RedisStore) -> None:
    while not store.drop_partition(ID, P0, limit=7):
        pass


def test_a_gateway_has_what_it_joined_and_nothing_else(redis_server: RedisServer) -> None:
    url = redis_server.new_url()
    first, second, reader = RedisStore(url, "a"), RedisStore(url, "b"), RedisReader(url, "b")
    apply_batches(first, 0, 5)
    assert second.join(ID, P1) is None
    assert (stored_position(second), rows_of(reader), second.store_ids()) == (None, {}, {ID})
    joined = second.join(ID, P0)
    assert joined == (batch_of(4)[1].in_phase(Phase.CATCHING_UP), True)
    assert rows_of(reader) == expected_rows(5)
    with reader.snapshot() as snapshot:
        assert [each.offset for each in snapshot.history(ID, P0, start=Offset(0), limit=3)] == [0, 1, 2]
    assert phases(first, second, reader) == [Phase.LIVE, Phase.CATCHING_UP, Phase.CATCHING_UP]
    second.apply(ID, P0, [], joined.position.in_phase(Phase.LIVE))
    assert phases(first, second) == [Phase.LIVE, Phase.LIVE]


def test_what_one_writes_the_other_has_and_need_not_write(redis_server: RedisServer) -> None:
    url = redis_server.new_url()
    first, second = RedisStore(url, "a"), RedisStore(url, "b")
    apply_batches(first, 0, 2)
    second.join(ID, P0)
    apply_batches(second, 2, 6)
    assert rows_of(first) == rows_of(second) == expected_rows(6)
    changes, moved_to = batch_of(2)
    assert first.apply(ID, P0, changes, moved_to) == (0, [])  # neither applied nor stale
    third = [*batch_of(3)[0], *batch_of(4)[0], *batch_of(5)[0], *batch_of(6)[0]]
    assert first.apply(ID, P0, third, batch_of(6)[1]) == (40, [])
    assert rows_of(first) == rows_of(second) == expected_rows(7)
    apply_batches(second, 6, 9)  # behind what is there, and then beyond it
    assert second.apply(ID, P0, batch_of(9)[0], batch_of(9)[1]) == (40, [])
    more = [each for number in range(7, 12) for each in batch_of(number)[0]]
    assert first.apply(ID, P0, more, batch_of(11)[1]) == (80, [])
    assert rows_of(first) == rows_of(second) == expected_rows(12)
    first.set_status(b"up")
    second.set_status(b"up")


class Losing(RedisStore):
    """A store whose Redis goes back between a look at what others have applied and the batch without that."""

    lose: Callable[[], None]

    @override
    def _not_applied(self, *arguments: Any) -> Any:
        left = super()._not_applied(*arguments)
        self.lose()
        return left


def test_what_is_lost_while_it_is_passed_over_leaves_no_gap(own_redis_server: RedisServer) -> None:
    url = own_redis_server.url(prefix="shared")
    first, second = Losing(url, "a"), RedisStore(url, "b")
    apply_batches(first, 0, 2)
    second.join(ID, P0)
    apply_batches(second, 2, 4)
    names = own_redis_server.run("KEYS", "*")
    kept = {name: own_redis_server.run("DUMP", name) for name in names}
    apply_batches(second, 4, 6)

    def lose() -> None:
        own_redis_server.flush()
        for name, value in kept.items():
            own_redis_server.run("RESTORE", name, 0, value)

    first.lose = lose
    changes = [each for number in range(2, 8) for each in batch_of(number)[0]]
    with pytest.raises(StoreWentBack):
        first.apply(ID, P0, changes, batch_of(7)[1])
    assert rows_of(first) == expected_rows(4)


def test_tables_and_status_are_of_each_gateway(redis_server: RedisServer) -> None:
    url = redis_server.new_url()
    stores = [RedisStore(url, name) for name in ("a", "b", "")]
    for number, store in enumerate(stores, 1):
        store.put_table("ratings", TableState(store_id=number))
        store.set_status(b"%d" % number)
    for number, store in enumerate(stores, 1):
        with store.snapshot() as snapshot:
            state = snapshot.table("ratings")
            assert state is not None
            assert (state.store_id, snapshot.status()) == (number, b"%d" % number)
        store.set_status(b"%d" % number)


def test_all_are_given_the_same_copy_of_a_changelog(redis_server: RedisServer) -> None:
    url = redis_server.new_url()
    first, second = RedisStore(url, "a"), RedisStore(url, "b")
    copy = first.copy_of("ratings/1", unwanted=())
    assert second.copy_of("ratings/1", unwanted=()) == copy
    other = second.copy_of("ratings/2", unwanted=())
    assert other.store_id != copy.store_id
    anew = second.copy_of("ratings/1", unwanted={copy.store_id, other.store_id})
    assert anew.store_id not in {copy.store_id, other.store_id}
    assert anew.incarnation_id != copy.incarnation_id
    assert first.copy_of("ratings/1", unwanted={StoreId(10), StoreId(11)}) == anew


def test_rows_go_when_nobody_has_them(own_redis_server: RedisServer) -> None:
    url = own_redis_server.url(prefix="shared")
    first, second = RedisStore(url, "a"), RedisStore(url, "b")
    apply_batches(first, 0, 3)
    second.join(ID, P0)
    assert first.drop_partition(ID, P0, limit=1)  # at once: it keeps nothing more
    assert stored_position(first) is None
    assert first.store_ids() == set()
    assert rows_of(second) == expected_rows(3)
    assert not second.drop(ID, limit=1)
    while not second.drop(ID, limit=9):
        pass
    assert own_redis_server.run("KEYS", "shared:{1/0}:*") == []


def test_who_was_away_for_a_day_keeps_nothing(own_redis_server: RedisServer) -> None:
    url = own_redis_server.url(prefix="shared")
    gone, store = RedisStore(url, "gone"), RedisStore(url, "here")
    apply_batches(gone, 0, 3)
    joined = store.join(ID, P0)
    assert joined is not None
    assert joined.is_kept
    keys = Keys(parse_address(url).prefix, "gone")
    [seen_ms] = own_redis_server.run("HMGET", keys.gateways, keys.gateway)
    for away_ms, is_left in ((GONE_MS - 60_000, True), (GONE_MS + 1, False)):
        own_redis_server.run("HSET", keys.gateways, keys.gateway, int(seen_ms) - away_ms)
        drop_all(store)
        assert bool(own_redis_server.run("EXISTS", "shared:{1/0}:rows")) is is_left
        if is_left:
            joined = store.join(ID, P0)
            assert joined is not None
            assert not joined.is_kept
    with pytest.raises(StoreWentBack):
        gone.set_status(b"up")


def test_who_begins_anew_is_not_disturbed_by_a_removal_that_goes_on(redis_server: RedisServer) -> None:
    url = redis_server.new_url()
    leaving, coming = RedisStore(url, "a"), RedisStore(url, "b")
    apply_batches(leaving, 0, 3)
    assert not leaving.drop_partition(ID, P0, limit=5)
    assert coming.join(ID, P0) is None
    begin = position(0, phase=Phase.RESTORING)
    coming.apply(ID, P0, [], begin)
    assert rows_of(coming) == {}
    coming.apply(ID, P0, batch_of(0)[0], batch_of(0)[1])
    assert leaving.drop_partition(ID, P0, limit=5)
    apply_batches(coming, 1, 4)
    assert rows_of(coming) == expected_rows(4)
    with coming.snapshot() as snapshot:
        assert len(snapshot.history(ID, P0, start=Offset(0), limit=10**6)) == 4 * len(batch_of(0)[0])
    assert stored_position(leaving) is None


def test_a_partition_has_the_life_of_whoever_was_first(redis_server: RedisServer) -> None:
    """Until nobody keeps it: who begins it anew begins another."""
    url = redis_server.new_url()
    first, second = RedisStore(url, "a"), RedisStore(url, "b")
    assert first.join(ID, P0) is None
    assert second.join(ID, P0) is None
    first.apply(ID, P0, [], replace(position(0), incarnation_id=5))
    for store, incarnation_id in ((second, 6), (first, 5)):
        store.apply(ID, P0, [], replace(position(1), incarnation_id=incarnation_id))
        assert [found.incarnation_id for each in (first, second) if (found := stored_position(each))] == [5, 5]
    for store in (first, second):
        assert store.drop_partition(ID, P0, limit=10)
    second.apply(ID, P0, [], replace(position(0), incarnation_id=6))
    joined = first.join(ID, P0)
    assert joined is not None
    assert joined.position.incarnation_id == 6


@pytest.mark.parametrize("notice", ["apply", "status"])
@pytest.mark.parametrize("how", ["expelled", "flushed"])
def test_who_was_live_is_not_live_in_a_copy_that_begins_anew(
    own_redis_server: RedisServer, how: str, notice: str
) -> None:
    """Else keys that are not restored yet would be "not found"."""
    url = own_redis_server.url(prefix="shared")
    first, second, reader = RedisStore(url, "a"), RedisStore(url, "b"), RedisReader(url, "a")
    apply_batches(first, 0, 3)
    if how == "expelled":
        second.join(ID, P0)
        second.expel(ID, P0)
        assert second.join(ID, P0) is None
    else:
        own_redis_server.flush()
        second = RedisStore(url, "b")
    for number in range(5):  # further than the first was, though not through
        changes, moved_to = batch_of(number)
        second.apply(ID, P0, changes, moved_to.in_phase(Phase.RESTORING))
    assert phases(first, reader) == [None, None]
    notices = {"apply": lambda: apply_batches(first, 3, 6), "status": lambda: first.set_status(b"up")}
    with pytest.raises(StoreWentBack):
        notices[notice]()
    assert phases(first, reader) == [None, None]
    joined = first.join(ID, P0)
    assert joined is not None
    assert (joined.position.phase, joined.position.next_offset) == (Phase.RESTORING, batch_of(4)[1].next_offset)
    apply_batches(first, 5, 6)
    assert phases(first, second) == [Phase.LIVE, Phase.RESTORING]
    assert rows_of(first) == expected_rows(6)


def test_who_joins_late_does_not_take_the_history_away(redis_server: RedisServer) -> None:
    url = redis_server.new_url()
    first, second = RedisStore(url, "a"), RedisStore(url, "b")
    changes, moved_to = batch_of(0)
    first.apply(ID, P0, changes, moved_to.in_phase(Phase.RESTORING))
    second.join(ID, P0)
    apply_batches(first, 1, 3)
    changes, moved_to = batch_of(3)
    second.apply(ID, P0, changes, moved_to.in_phase(Phase.RESTORING))
    assert phases(first, second) == [Phase.LIVE, Phase.RESTORING]
    with first.snapshot() as snapshot:
        offsets = [each.offset for each in snapshot.history(ID, P0, start=Offset(0), limit=10**6)]
        found = snapshot.position(ID, P0)
    assert found is not None
    assert offsets == list(range(found.history_start, found.next_offset))
    assert len(offsets) == 3 * len(changes)


def test_who_has_a_later_start_takes_no_later_change_away(redis_server: RedisServer) -> None:
    url = redis_server.new_url()
    first, second, reader = RedisStore(url, "a"), RedisStore(url, "b"), RedisReader(url, "b")
    first.apply(ID, P0, [change(number, b"%d" % number, 1, b"row") for number in range(12)], position(12))
    second.join(ID, P0)
    second.apply(ID, P0, [], replace(position(12), history_start=Offset(9)))
    with reader.snapshot() as snapshot:
        found = snapshot.position(ID, P0)
        assert found is not None
        assert found.history_start == 9
        assert [each.offset for each in snapshot.history(ID, P0, start=Offset(9), limit=100)] == [9, 10, 11]
    first.set_status(b"up")
    for each in (first, second, reader):
        each.close()


def test_a_wipe_takes_what_all_gateways_have(own_redis_server: RedisServer) -> None:
    url = own_redis_server.url(prefix="shared")
    stores = [RedisStore(url, name) for name in ("a", "b")]
    for store, store_id in zip(stores, (StoreId(1), StoreId(2)), strict=True):
        store.put_table("ratings", TableState(store_id=store_id))
        store.apply(store_id, P0, [change(0, b"a", 1, b"1")], position(1))
        store.set_status(b"up")
    fill(stores[0])
    wipe(url)
    assert own_redis_server.run("KEYS", "*") == []
    for store in stores:
        with pytest.raises(StoreWentBack):
            store.set_status(b"up")


@dataclass
class Keeper:
    """A gateway that keeps the partition, or not; `reached` is how far it has read the changelog."""

    url: str
    name: str
    store: RedisStore = field(init=False)
    reached: int | None = None
    barrier: int = 0
    phase: Phase = Phase.RESTORING

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        self.store = RedisStore(self.url, self.name, history_changes_max=HISTORY_MAX)
        found = stored_position(self.store)
        self.reached = None if found is None else found.next_offset
        if found is not None:
            self.phase = found.phase

    def take_part(self, end: int) -> None:
        joined = self.store.join(ID, P0)
        found = position(0, phase=Phase.RESTORING) if joined is None else joined.position
        self.reached, self.barrier, self.phase = found.next_offset, end, found.phase
        self.apply([])

    def apply(self, changes: Sequence[Change]) -> None:
        assert self.reached is not None
        self.reached += len(changes)
        if self.reached >= self.barrier:
            self.phase = Phase.LIVE
        self.store.apply(ID, P0, changes, position(self.reached, phase=self.phase, as_of_ms=self.reached))


def changelog(random_: random.Random, end: int) -> list[Change]:
    return [
        change(offset, bytes([random_.randrange(12)]), offset + 1, None if random_.random() < 0.3 else b"%d" % offset)
        for offset in range(end)
    ]


@pytest.mark.tools
@pytest.mark.parametrize("seed", seeds(40, in_check=3))
def test_whatever_gateways_do_each_that_is_live_has_all_that_came_before(redis_server: RedisServer, seed: int) -> None:
    """Any of them join, read on, restart, leave and expel: rows and history are those of one that read all."""
    random_ = random.Random(seed)
    url = redis_server.new_url()
    records = changelog(random_, 400)
    keepers = [Keeper(url, name) for name in "abc"]
    expected = [dict[bytes, bytes]()]
    for record in records:
        rows = dict(expected[-1])
        rows.pop(record.key, None)
        if record.row is not None:
            rows[record.key] = record.row
        expected.append(rows)
    end = 100
    for _ in range(120):
        keeper = random_.choice(keepers)
        end = min(end + random_.randrange(6), len(records))
        try:
            step(keeper, random_, records[:end])
        except StoreWentBack:
            keeper.open()
        for each in keepers:
            check(each, expected, records)
    for keeper in keepers:
        keeper.store.close()


def step(keeper: Keeper, random_: random.Random, records: Sequence[Change]) -> None:
    match random_.randrange(20):
        case 0:
            drop_all(keeper.store)
            keeper.reached = None
        case 1:
            keeper.store.drop_partition(ID, P0, limit=3)  # the rest stays for another time
            keeper.reached = None
        case 2:
            keeper.open()
        case 3 if random_.random() < 0.2:
            keeper.store.expel(ID, P0)
            keeper.reached = None
        case _ if keeper.reached is None:
            keeper.take_part(len(records))
        case _:
            keeper.apply(records[keeper.reached : keeper.reached + random_.randrange(60)])


def check(keeper: Keeper, expected: Sequence[dict[bytes, bytes]], records: Sequence[Change]) -> None:
    with keeper.store.snapshot() as snapshot:
        found = snapshot.position(ID, P0)
        if found is None:
            return
        at = found.next_offset
        assert dict(snapshot.range(ID, P0, start=b"", end=None, limit=99)) == expected[at]
        kept = snapshot.history(ID, P0, start=Offset(0), limit=10**6)
        if found.phase is Phase.LIVE:
            assert [each[:5] for each in kept] == [tuple(each) for each in records[found.history_start : at]]


def test_what_expires_by_two_is_gone_once(redis_server: RedisServer) -> None:
    url = redis_server.new_url()
    first, second, memory = RedisStore(url, "a"), RedisStore(url, "b"), MemoryStore()
    for store in (first, memory):
        fill(store)
    second.join(ID, P0)
    assert [store.expire(ID, P0, [b"a", b"b"], time_ms=5) for store in (first, second, memory)] == [2, 0, 2]
    with first.snapshot() as found, memory.snapshot() as wanted:
        histories = [each.history(ID, P0, start=Offset(0), limit=9) for each in (found, wanted)]
    assert histories[0] == histories[1]
