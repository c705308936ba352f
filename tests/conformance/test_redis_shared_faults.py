"""Gateways of one Redis when things go wrong: losses, deaths, what is repeated, what nobody removes any more."""

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from typing_extensions import override

from tablegate.gateway.contract.types import Offset, Partition, StoreId
from tablegate.gateway.stores.base import Phase, StoreUnavailable, StoreWentBack
from tablegate.gateway.stores.redis.connection import Command, RedisConnection, parse_address
from tablegate.gateway.stores.redis.layout import Keys
from tablegate.gateway.stores.redis.scripts import BURY
from tablegate.gateway.stores.redis.store import GONE_MS, STATUSES_PER_POLICY_CHECK, RedisReader, RedisStore, Removal
from tablegate.internal.v1.store_pb2 import TableState
from tests.kit.programs.redis import RedisServer, needs_redis
from tests.kit.seeds import seeds
from tests.kit.store.batches import ID, P0, P1, apply_batches, expected_rows, rows_of, stored_position
from tests.kit.store.changes import change, position
from tests.kit.store.crash_writer import KEYS, batch_of
from tests.kit.store.redis_world import Gateways, Losses

pytestmark = [needs_redis, pytest.mark.tools]

STEPS = 250
BATCHES = 150


class Saved:
    """What a Redis has now, to be had again later."""

    def __init__(self, server: RedisServer, pattern: str = "*") -> None:
        self._server = server
        self._pattern = pattern
        self._values = {name: server.run("DUMP", name) for name in server.run("KEYS", pattern)}

    def restore(self) -> None:
        for name in self._server.run("KEYS", self._pattern):
            self._server.run("DEL", name)
        for name, value in self._values.items():
            self._server.run("RESTORE", name, 0, value)


def restore_to(store: RedisStore, first: int, last: int, *, phase: Phase = Phase.RESTORING) -> None:
    """Apply batches while they are restored, and then become `phase`."""
    for number in range(first, last):
        changes, moved_to = batch_of(number)
        store.apply(ID, P0, changes, moved_to.in_phase(Phase.RESTORING))
    store.apply(ID, P0, [], batch_of(last - 1)[1].in_phase(phase))


# Whatever happens.


@pytest.mark.parametrize("losses", Losses)
@pytest.mark.parametrize("seed", seeds(25, in_check=1))
def test_whatever_goes_wrong_who_is_live_has_all_rows_and_changes(
    own_redis_server: RedisServer, losses: Losses, seed: int
) -> None:
    world = Gateways(own_redis_server, seed, losses=losses, trouble=0.06)
    for _ in range(STEPS):
        world.step()
    world.leave()
    if losses is not Losses.SLOTS:  # else who has what may be forgotten, though it is there
        assert world.slots().keys() <= {b"tables"}
    assert world.checked
    assert world.checked_indexes
    assert bool(world.went_back) is (losses is not Losses.NONE)
    world.close()


class Worker(threading.Thread):
    """A gateway that joins, reads on, sweeps and leaves, as fast as it can, until it has read all."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._name = name
        self._random = random.Random(name)
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            store = RedisStore(self._url, self._name)
            number = 0
            while number < BATCHES:
                number = self._take_part(store, self._random.randrange(3, 40))
            store.close()
        except Exception as error:  # noqa: BLE001 - the test tells
            self.error = error

    def _take_part(self, store: RedisStore, count: int) -> int:
        joined = store.join(ID, P0)
        assert joined is not None
        number = joined.position.source_offsets["batch", 0]
        store.apply(ID, P0, [], joined.position.in_phase(Phase.LIVE))
        for at in range(number, min(number + count, BATCHES)):
            changes, moved_to = batch_of(at)
            store.apply(ID, P0, changes, moved_to)
            number = at + 1
        store.set_status(b"up")
        while number < BATCHES and not store.drop_partition(ID, P0, limit=500):
            pass
        return number


def test_gateways_that_act_at_the_same_time_come_to_what_one_comes_to(redis_server: RedisServer) -> None:
    url = redis_server.new_url()
    keeper = RedisStore(url, "keeper")
    apply_batches(keeper, 0, 1)
    readers = [RedisReader(url, name) for name in ("keeper", "a", "b")]
    expected: dict[int, dict[bytes, bytes]] = {}
    workers = [Worker(url, name) for name in "ab"]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        for reader in readers:
            check_moment(reader, expected)
    assert [worker.error for worker in workers] == [None, None]
    assert rows_of(keeper) == expected_rows(BATCHES)
    check_moment(readers[0], expected)


def check_moment(reader: RedisReader, expected: dict[int, dict[bytes, bytes]]) -> None:
    with reader.snapshot() as snapshot:
        found = snapshot.position(ID, P0)
        if found is None or found.phase is not Phase.LIVE:
            return
        number = found.source_offsets["batch", 0]
        try:
            rows = dict(snapshot.range(ID, P0, start=b"", end=None, limit=10 * KEYS))
            changes = snapshot.history(ID, P0, start=found.history_start, limit=10**6)
        except StoreUnavailable:
            return  # the gateway let go of it meanwhile
    if number not in expected:
        expected[number] = expected_rows(number)
    assert rows == expected[number]
    assert [each.offset for each in changes] == list(range(found.history_start, found.next_offset))


# What Redis loses.


def test_a_number_that_redis_forgot_is_given_to_nobody_else(own_redis_server: RedisServer) -> None:
    """Else whoever has not noticed the loss writes rows of one table into another."""
    url = own_redis_server.url()
    first = RedisStore(url, "a")
    copy = first.copy_of("ratings/1", unwanted=())
    assert first.join(copy.store_id, P0) is None
    own_redis_server.flush()
    second = RedisStore(url, "b")
    other = second.copy_of("movies/1", unwanted=())
    second.apply(other.store_id, P0, [change(0, b"a", 1, b"movie")], position(1))
    first.apply(copy.store_id, P0, [change(0, b"b", 1, b"rating")], position(1))
    with second.snapshot() as snapshot:
        assert snapshot.range(other.store_id, P0, start=b"", end=None, limit=9) == [(b"a", b"movie")]


@pytest.mark.parametrize("notice", ["apply", "expire", "status"])
def test_live_is_lost_where_others_restore_from_an_older_state(own_redis_server: RedisServer, notice: str) -> None:
    """Though they are further by then than it was: it may have been cleaned since, up to where they are not yet."""
    url = own_redis_server.url()
    first, second = RedisStore(url, "a"), RedisStore(url, "b")
    restore_to(first, 0, 2)
    second.join(ID, P0)
    saved = Saved(own_redis_server)
    restore_to(first, 2, 4, phase=Phase.LIVE)
    saved.restore()
    second = RedisStore(url, "b")
    restore_to(second, 2, 6)
    notices: dict[str, Callable[[], object]] = {
        "apply": lambda: apply_batches(first, 4, 5),
        "expire": lambda: first.expire(ID, P0, [b"a"], time_ms=0),
        "status": lambda: first.set_status(b"up"),
    }
    with pytest.raises(StoreWentBack):
        notices[notice]()
    found = stored_position(first)
    assert found is not None
    assert found.phase is Phase.RESTORING


@pytest.mark.parametrize("notice", ["apply", "expire", "status"])
def test_where_expirations_are_lost_a_partition_has_another_incarnation(
    own_redis_server: RedisServer, notice: str
) -> None:
    """Other rows may expire in their place, which a subscriber would pass over. What lost nothing stays as it is."""
    url = own_redis_server.url()
    first, second = RedisStore(url, "a"), RedisStore(url, "b")
    whole = replace(position(2), incarnation_id=1)
    for store, partition in ((first, P0), (second, P0), (first, P1)):
        store.join(ID, partition)
        store.apply(ID, partition, [change(0, b"a", 1, b"1"), change(1, b"b", 1, b"1")], whole)
    saved = Saved(own_redis_server)
    first.expire(ID, P0, [b"b"], time_ms=0)
    second.set_status(b"up")
    saved.restore()
    notices: dict[str, Callable[[], object]] = {
        "apply": lambda: first.apply(ID, P0, [change(2, b"c", 1, b"1")], replace(position(3), incarnation_id=1)),
        "expire": lambda: first.expire(ID, P0, [b"a", b"b"], time_ms=0),
        "status": lambda: first.set_status(b"up"),
    }
    with pytest.raises(StoreWentBack):
        notices[notice]()
    found = stored_position(first)
    assert found is not None
    assert found.incarnation_id != 1
    with pytest.raises(StoreWentBack):
        second.set_status(b"up")
    assert stored_position(first) == stored_position(second) == found
    with first.snapshot() as snapshot:
        assert snapshot.position(ID, P1) == whole
    assert first.expire(ID, P0, [b"a", b"b"], time_ms=0) == 2


@pytest.mark.parametrize("notice", ["apply", "status"])
def test_another_life_of_a_partition_is_not_taken_for_the_one_that_was(redis_server: RedisServer, notice: str) -> None:
    """As where a process was away while another of its gateway began anew."""
    url = redis_server.new_url()
    one, other = RedisStore(url, "a"), RedisStore(url, "a")
    one.apply(ID, P0, [change(0, b"a", 1, b"1")], replace(position(1), incarnation_id=1))
    other.expel(ID, P0)
    other.apply(ID, P0, [change(0, b"a", 1, b"1")], replace(position(2), incarnation_id=2))
    notices: dict[str, Callable[[], object]] = {
        "apply": lambda: one.apply(ID, P0, [change(1, b"b", 1, b"2")], replace(position(3), incarnation_id=1)),
        "status": lambda: one.set_status(b"up"),
    }
    with pytest.raises(StoreWentBack):
        notices[notice]()


def test_who_goes_on_from_what_it_has_read_notices_when_that_is_lost(own_redis_server: RedisServer) -> None:
    """Though it knew of less before: what it brings begins where it has read that others are."""
    url = own_redis_server.url()
    first, second = RedisStore(url, "a"), RedisStore(url, "b")
    apply_batches(first, 0, 1)
    second.join(ID, P0)
    apply_batches(second, 1, 3)
    saved = Saved(own_redis_server)
    apply_batches(second, 3, 5)
    found = stored_position(first)
    assert found == batch_of(4)[1]
    saved.restore()
    with pytest.raises(StoreWentBack):
        first.apply(ID, P0, [], found)
    assert rows_of(first) == expected_rows(3)


def test_a_partition_that_comes_back_after_it_was_let_go_of_is_noticed(own_redis_server: RedisServer) -> None:
    """Else it is answered from, and nobody follows it."""
    store = RedisStore(own_redis_server.url(), "a")
    apply_batches(store, 0, 2)
    saved = Saved(own_redis_server, "*{1/0}*")
    assert store.drop_partition(ID, P0, limit=10**6)
    store.set_status(b"up")
    saved.restore()
    with pytest.raises(StoreWentBack):
        store.set_status(b"up")
    assert store.store_ids() == {ID}
    assert store.drop(ID, limit=10**6)
    assert own_redis_server.run("KEYS", "*{1/0}*") == []


def test_what_redis_forgot_to_be_here_can_be_removed(own_redis_server: RedisServer) -> None:
    store = RedisStore(own_redis_server.url(), "a")
    keys = Keys(parse_address(own_redis_server.url()).prefix, "a")
    for _ in range(2):
        apply_batches(store, 0, 2)
        store.set_status(b"up")
        own_redis_server.run("DEL", keys.partitions)
        with pytest.raises(StoreWentBack):
            store.set_status(b"up")
        assert store.store_ids() == {ID}
        own_redis_server.run("DEL", keys.partitions)
        assert store.drop_partition(ID, P0, limit=10**6)
        assert own_redis_server.run("KEYS", "*{1/0}*") == []
        store = RedisStore(own_redis_server.url(), "a")


# What is whole for one gateway, and restored yet by another.


def test_who_is_live_behind_those_that_restore_has_a_history_from_there(redis_server: RedisServer) -> None:
    """It looked at the changelog's end before they did, so its way was shorter; they are ahead of it all the same."""
    url = redis_server.new_url()
    first, second, reader = RedisStore(url, "a"), RedisStore(url, "b"), RedisReader(url, "a")
    restore_to(first, 0, 1)
    second.join(ID, P0)
    restore_to(second, 1, 4)
    apply_batches(first, 1, 3)
    with reader.snapshot() as snapshot:
        found = snapshot.position(ID, P0)
        assert found is not None
        assert (found.phase, found.next_offset) == (Phase.LIVE, batch_of(3)[1].next_offset)
        restore_to(second, 4, 6)
        assert dict(snapshot.range(ID, P0, start=b"", end=None, limit=10 * KEYS)) == expected_rows(4)
    with reader.snapshot() as snapshot:
        changes = snapshot.history(ID, P0, start=found.next_offset, limit=10**6)
    assert [each.offset for each in changes] == list(range(found.next_offset, batch_of(5)[1].next_offset))


def test_a_snapshot_is_not_of_a_copy_that_began_anew_after_it(redis_server: RedisServer) -> None:
    url = redis_server.new_url()
    first, second, reader = RedisStore(url, "a"), RedisStore(url, "b"), RedisReader(url, "a")
    restore_to(first, 0, 2, phase=Phase.LIVE)
    with reader.snapshot() as snapshot:
        assert snapshot.position(ID, P0) is not None
        second.join(ID, P0)
        second.expel(ID, P0)
        restore_to(second, 0, 4, phase=Phase.LIVE)
        joined = first.join(ID, P0)
        assert joined is not None
        first.apply(ID, P0, [], joined.position.in_phase(Phase.LIVE))
        for read in (
            lambda: snapshot.range(ID, P0, start=b"", end=None, limit=9),
            lambda: snapshot.get_many(ID, P0, [key.to_bytes(2, "big") for key in range(KEYS)]),
        ):
            with pytest.raises(StoreUnavailable, match="changed while it was read"):
                read()


# Gateways that are gone.


def leave_for_good(server: RedisServer, keys: Keys, *, away_ms: int) -> None:
    seen_ms = int(server.run("HGET", keys.gateways, keys.gateway))
    server.run("HSET", keys.gateways, keys.gateway, seen_ms - away_ms)


def look_around(store: RedisStore, times: int = 1) -> None:
    for _ in range(times * STATUSES_PER_POLICY_CHECK):
        store.set_status(b"up")


def test_what_gateways_left_that_never_come_back_is_removed(own_redis_server: RedisServer) -> None:
    url = own_redis_server.url()
    gone, here = RedisStore(url, "gone"), RedisStore(url, "here")
    places = [(StoreId(1), P0), (StoreId(1), Partition(1)), (StoreId(2), P0)]
    for place in places:
        gone.apply(*place, batch_of(0)[0], batch_of(0)[1])
    gone.put_table("ratings", TableState(store_id=1))
    gone.set_status(b"up")
    here.join(*places[0])
    keys = Keys(parse_address(url).prefix, "gone")
    leave_for_good(own_redis_server, keys, away_ms=GONE_MS - 60_000)
    look_around(here)
    assert gone.store_ids() == {1, 2}
    leave_for_good(own_redis_server, keys, away_ms=60_000)
    look_around(here, 2)
    assert here.store_ids() == {1}
    assert rows_of(here) == expected_rows(1)
    left = own_redis_server.run("KEYS", "*")
    assert not any(b":gone" in key or b"{1/1}" in key or b"{2/0}" in key for key in left)
    assert own_redis_server.run("HKEYS", keys.gateways) == [b"gateway:here"]
    with pytest.raises(StoreWentBack):
        gone.set_status(b"up")


class Slow(RedisConnection):
    """A connection on which somebody comes back before a partition is taken from those that are gone."""

    come_back: Callable[[], None] | None = None

    @override
    def run(self, *commands: Command) -> list[Any]:
        come_back = self.come_back
        if come_back is not None and any(BURY.sha in command for command in commands):
            self.come_back = None
            come_back()
        return super().run(*commands)


def test_who_comes_back_while_it_is_taken_for_gone_keeps_what_it_takes(own_redis_server: RedisServer) -> None:
    url = own_redis_server.url()
    keys = Keys(parse_address(url).prefix, "gone")
    apply_batches(RedisStore(url, "gone"), 0, 1)
    leave_for_good(own_redis_server, keys, away_ms=GONE_MS)
    slow = Slow(parse_address(url), timeout_s=9.0)
    back: list[RedisStore] = []

    def come_back() -> None:
        back.append(RedisStore(url, "gone"))
        assert stored_position(back[0]) is None
        assert back[0].join(ID, P0) is None
        apply_batches(back[0], 0, 2)

    slow.come_back = come_back
    assert not Removal(slow, Keys(parse_address(url).prefix, "here")).bury()
    assert back[0].store_ids() == {ID}
    assert rows_of(back[0]) == expected_rows(2)
    back[0].set_status(b"up")
    assert Removal(slow, Keys(parse_address(url).prefix, "here")).bury()


def test_a_gateway_that_redis_forgot_keeps_nothing(own_redis_server: RedisServer) -> None:
    url = own_redis_server.url()
    gone, here = RedisStore(url, "gone"), RedisStore(url, "here")
    apply_batches(gone, 0, 2)
    joined = here.join(ID, P0)
    assert joined is not None
    assert joined.is_kept
    keys = Keys(parse_address(url).prefix, "gone")
    own_redis_server.run("HDEL", keys.gateways, keys.gateway)
    joined = here.join(ID, P0)
    assert joined is not None
    assert not joined.is_kept
    assert here.drop_partition(ID, P0, limit=10**6)
    assert own_redis_server.run("KEYS", "*{1/0}*") == []


def test_when_gateways_were_here_is_told_by_the_clock_of_redis(own_redis_server: RedisServer) -> None:
    def now_ms() -> int:
        seconds, micros = own_redis_server.run("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    url = own_redis_server.url()
    begin_ms = now_ms()
    store = RedisStore(url, "a")
    store.set_status(b"up")
    keys = Keys(parse_address(url).prefix, "a")
    assert begin_ms <= int(own_redis_server.run("HGET", keys.gateways, keys.gateway)) <= now_ms()


# What is sent twice.


class TwiceConnection(RedisConnection):
    @override
    def run(self, *commands: Command) -> list[Any]:
        super().run(*commands)
        return super().run(*commands)


class Twice(RedisStore):
    """A store all of whose commands are sent twice, as where the answer was lost."""

    @override
    def _use(self, url: str, gateway: str, *, timeout_s: float) -> None:
        super()._use(url, gateway, timeout_s=timeout_s)
        self._connection = TwiceConnection(parse_address(url), timeout_s=timeout_s)


def test_all_may_be_sent_twice(redis_server: RedisServer) -> None:
    url = redis_server.new_url()
    store, other = Twice(url, "a"), RedisStore(url, "b")
    assert store.copy_of("x", unwanted=()) == other.copy_of("x", unwanted=())
    restore_to(store, 0, 2, phase=Phase.LIVE)
    other.join(ID, P0)
    apply_batches(store, 2, 4)
    key = min(rows_of(store))
    store.expire(ID, P0, [key], time_ms=5)
    apply_batches(store, 4, 5)
    store.set_status(b"up")
    assert store.drop_partition(ID, P0, limit=1)
    assert store.join(ID, P0) is not None
    store.apply(ID, P0, [], batch_of(4)[1])
    store.set_status(b"up")
    with other.snapshot() as snapshot:
        changes = snapshot.history(ID, P0, start=Offset(batch_of(1)[1].next_offset), limit=10**6)
    written = [each.offset for each in changes if each.time_ms != 5 or each.key != key]
    assert written == list(range(batch_of(1)[1].next_offset, batch_of(4)[1].next_offset))
    assert len(changes) == len(written) + 1
