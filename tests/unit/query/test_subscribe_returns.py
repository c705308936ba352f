"""Partitions that leave a gateway and come back: a subscriber misses nothing of what happened meanwhile."""

import asyncio
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from tablegate.gateway.contract.types import COMPACTION_LAG_MS
from tablegate.gateway.replication.replicator import Replicator
from tablegate.gateway.replication.states import PartitionEvent
from tablegate.gateway.stores.base import StoreWriter
from tablegate.gateway.stores.lmdb.store import LmdbStore
from tablegate.v1.query_pb2 import SUBSCRIBE_PHASE_CATCHING_UP, SUBSCRIBE_PHASE_CURRENT
from tests.kit.call.asker import Asker, make_ratings
from tests.kit.call.subscribing import METHOD, OFTEN, Copy, Stream, opened, options, subscribed
from tests.kit.replication import windows as windowed
from tests.kit.replication.memory_log import MemoryBroker
from tests.kit.replication.replicator import START_MS, FakeClock, Gateway, Job
from tests.kit.replication.windows import PARTITIONS, Setup, Window, aged
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import ACTIONS, catalogue_of, rating

SERVICE = "/examples.ratings.v1.RatingsService"


@pytest.fixture
def gateway() -> Gateway:
    clock = FakeClock()
    broker = MemoryBroker(clock.now_ms)
    broker.create("tables", 1)
    return Gateway(broker, clock)


@pytest.fixture
def job(gateway: Gateway) -> Job:
    return Job(gateway.broker).create().publish()


@pytest.fixture(params=["memory", "lmdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreWriter]:
    store = MemoryStore() if request.param == "memory" else LmdbStore(tmp_path / "store")
    yield store
    store.close()


def let_go(replicator: Replicator, table: str) -> None:
    """Let a gateway lose the partitions of a table, which it gets again at once."""
    following = replicator._tables[table].serving
    assert following is not None
    for replica in list(following.replicas):
        replica.move(PartitionEvent.REVOKE)
        following.remove(replica)


class Windows:
    """Windows of one browser, and who subscribes to them."""

    def __init__(self, store: StoreWriter) -> None:
        self.setup = Setup(store)
        self.setup.steps()
        self.service = "/examples.actions.v1.ActionCountsService"

    def asker(self) -> Asker:
        return Asker(catalogue_of(ACTIONS), self.setup.store, self.service, self.setup.clock.now_ms)

    def put(self, *windows: Window) -> None:
        self.setup.put(windows)
        self.setup.steps()

    def come_back(self) -> None:
        let_go(self.setup.replicator, windowed.NAME)
        self.setup.seconds(1)
        assert self.setup.is_served()

    def open(self, one: Copy) -> Any:
        return opened(self.asker(), "SubscribeActionCounts", browser="a", subscribe_options=options(one.token, **OFTEN))


async def settle(stream: Stream, one: Copy) -> None:
    """Take messages until the stream says that the copy is whole."""
    one.phase = SUBSCRIBE_PHASE_CATCHING_UP
    while one.phase != SUBSCRIBE_PHASE_CURRENT:
        one.take(await stream.next())


def windows_copy() -> Copy:
    def start_s(row: Any) -> int:
        return int(row.window_start.ToMicroseconds() - START_MS * 1_000) // 1_000_000

    return Copy(start_s, attrgetter("action_count"))


def two_windows(store: StoreWriter) -> tuple[Windows, int, int]:
    """Return windows of a browser "a", and the starts of two: one that expires in seconds, and one that stays."""
    windows = Windows(store)
    soon, later = aged(-5), aged(-500)
    windows.put(("a", soon), ("a", later))
    return windows, soon, later


def test_what_expired_while_its_partition_was_away_is_gone_from_the_copy(store: StoreWriter) -> None:
    windows, soon, later = two_windows(store)

    async def talk() -> None:
        one = windows_copy()
        async with windows.open(one) as stream:
            await stream.until(one, {soon: 1, later: 2})
        windows.setup.clock.passed_s += 6
        windows.come_back()
        async with windows.open(one) as stream:
            await settle(stream, one)
        assert (one.counts, one.resets) == ({later: 2}, 2)

    asyncio.run(talk())


def test_a_partition_that_was_not_away_goes_on_over_a_restart(store: StoreWriter) -> None:
    windows, soon, later = two_windows(store)

    async def talk() -> None:
        one = windows_copy()
        windows.come_back()
        async with windows.open(one) as stream:
            await stream.until(one, {soon: 1, later: 2})
        windows.setup.clock.passed_s += 6
        windows.setup.restart()
        windows.setup.seconds(12)
        async with windows.open(one) as stream:
            await settle(stream, one)
        assert (one.counts, one.resets) == ({later: 2}, 1)

    asyncio.run(talk())


def test_another_partition_that_was_away_takes_nothing_from_the_copy(store: StoreWriter) -> None:
    windows = Windows(store)
    windows.put(("a", 0))

    async def talk() -> None:
        one = windows_copy()
        async with windows.open(one) as stream:
            await stream.until(one, {0: 1})
        following = windows.setup.replicator._tables[windowed.NAME].serving
        assert following is not None
        [other] = [each for each in following.replicas if each.topic_partition != windows.setup.source(("a", 0))]
        other.move(PartitionEvent.REVOKE)
        following.remove(other)
        windows.setup.seconds(1)
        windows.put(("a", 5))
        async with windows.open(one) as stream:
            await settle(stream, one)
        assert (one.counts, one.resets) == ({0: 1, 5: 2}, 1)

    asyncio.run(talk())


def test_who_listens_while_its_partition_is_away_for_a_moment_begins_anew(store: StoreWriter) -> None:
    windows, soon, later = two_windows(store)

    async def talk() -> None:
        one = windows_copy()
        asker = windows.asker()
        asked = options("", **OFTEN)
        async with opened(asker, "SubscribeActionCounts", browser="a", subscribe_options=asked) as stream:
            await stream.until(one, {soon: 1, later: 2})
            windows.setup.clock.passed_s += 6
            windows.come_back()
            windows.put(("a", later + 5))
            asker.bell.notify()
            while later + 5 not in one.counts:
                one.take(await stream.next())
        assert (one.counts, one.resets) == ({later: 2, later + 5: 3}, 2)

    asyncio.run(talk())


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_delete_whose_row_was_compacted_away_is_not_missed(job: Job, gateway: Gateway, is_ahead: bool) -> None:
    """A fresh store does not know what the row before was; so it must not take such a change for its history."""
    job.put(range(8))
    gateway.steps()
    asker = Asker(gateway.catalogue, gateway.store, SERVICE, None)

    async def talk() -> None:
        one = Copy()
        async with opened(asker, METHOD, subscribe_options=options("", **OFTEN)) as stream:
            await stream.until(one, dict(zip(range(8), range(1, 9), strict=True)))
        let_go(gateway.replicator, "ratings")
        job.put([1, 2, 3], delete=True)
        gateway.clock.passed_s += COMPACTION_LAG_MS / 1_000
        for partition in range(PARTITIONS):
            gateway.broker.compact(job.source(partition))
        gateway.seconds(1)
        assert gateway.is_served()
        if is_ahead:
            job.put([9])
            gateway.steps()
        async with opened(asker, METHOD, subscribe_options=options(one.token, **OFTEN)) as stream:
            await settle(stream, one)
        assert (one.counts, one.resets) == (gateway.rows(), 2)
        assert one.rows.keys() == {0, 4, 5, 6, 7, *([9] if is_ahead else [])}

    asyncio.run(talk())


@pytest.mark.parametrize("is_long", [False, True])
def test_who_comes_back_to_a_gateway_that_was_away_misses_no_delete(job: Job, gateway: Gateway, is_long: bool) -> None:
    """It goes on with its history only as long as compaction has taken nothing that another gateway gave."""
    job.put(range(8))
    other = Gateway(gateway.broker, gateway.clock)
    gateway.steps()
    job.put([20, 21])
    other.steps()
    there, here = (Asker(each.catalogue, each.store, SERVICE, None) for each in (other, gateway))

    async def talk() -> None:
        one = Copy()
        async with opened(there, METHOD, subscribe_options=options("", **OFTEN)) as stream:
            await stream.until(one, other.rows())
        job.put([20, 21], delete=True)
        if is_long:
            gateway.clock.passed_s += COMPACTION_LAG_MS / 1_000
            for partition in range(PARTITIONS):
                gateway.broker.compact(job.source(partition))
        gateway.restart()
        gateway.seconds(1)
        async with opened(here, METHOD, subscribe_options=options(one.token, **OFTEN)) as stream:
            await settle(stream, one)
        assert one.rows.keys() == set(range(8))
        assert one.resets == (2 if is_long else 1)

    asyncio.run(talk())


@pytest.mark.parametrize(("hours", "is_long"), [(0.1, False), (2.5, False), (7, True), (11, True)])
def test_a_gateway_that_was_cut_off_from_kafka_hides_no_delete(
    job: Job, gateway: Gateway, hours: float, is_long: bool
) -> None:
    """The gateway ran on meanwhile, and has fetched tombstones whose rows were compacted away."""
    job.put(range(8))
    other = Gateway(gateway.broker, gateway.clock)
    gateway.steps()
    is_cut = [True]
    fetch = gateway.replicator._log.fetch
    gateway.replicator._log.fetch = lambda **asked: [] if is_cut[0] else fetch(**asked)  # type: ignore[method-assign]
    job.put([20, 21])
    other.steps()
    there, here = (Asker(each.catalogue, each.store, SERVICE, None) for each in (other, gateway))

    async def talk() -> None:
        one = Copy()
        async with opened(there, METHOD, subscribe_options=options("", **OFTEN)) as stream:
            await stream.until(one, other.rows())
        job.put([20, 21], delete=True)
        gateway.steps(2, pass_s=hours * 1_800)
        if is_long:
            for partition in range(PARTITIONS):
                gateway.broker.compact(job.source(partition))
        job.put([30])
        is_cut[0] = False
        gateway.seconds(1)
        job.put([31])
        gateway.steps()
        assert gateway.is_served()
        async with opened(here, METHOD, subscribe_options=options(one.token, **OFTEN)) as stream:
            await settle(stream, one)
        assert one.rows.keys() == {*range(8), 30, 31}
        assert one.resets == (2 if is_long else 1)

    asyncio.run(talk())


def test_a_partition_that_comes_back_soon_goes_on_where_nothing_expires(job: Job, gateway: Gateway) -> None:
    """What is too young to be compacted is history, also where it was restored."""
    job.put(range(8))
    gateway.steps()
    asker = Asker(gateway.catalogue, gateway.store, SERVICE, None)

    async def talk() -> None:
        one = Copy()
        async with opened(asker, METHOD, subscribe_options=options("", **OFTEN)) as stream:
            await stream.until(one, gateway.rows())
        let_go(gateway.replicator, "ratings")
        job.put([1, 2], delete=True)
        gateway.seconds(1)
        job.put([3, 9])
        gateway.steps()
        async with opened(asker, METHOD, subscribe_options=options(one.token, **OFTEN)) as stream:
            await settle(stream, one)
        assert (one.counts, one.resets, one.given) == (gateway.rows(), 1, 8 + 4)

    asyncio.run(talk())


def test_a_copy_that_begins_anew_never_goes_back() -> None:
    """The history is lost of one partition. Of the other one the copy had more than its next gateway has yet."""
    there, here = make_ratings(2), make_ratings(2, store=MemoryStore(history_changes_max=5))
    one_movie = next(number for number in range(99) if here.table.partition_of(rating(number)) == 0)
    another = next(number for number in range(99) if here.table.partition_of(rating(number)) == 1)
    for each in (there, here):
        each.table.put([rating(one_movie), rating(another)])
    there.table.put([rating(one_movie, count=2)])
    here.table.put([rating(another, count=count) for count in range(2, 10)])

    async def talk() -> None:
        copy = Copy()
        async with subscribed(there, subscribe_options=options("", **OFTEN)) as stream:
            await stream.until(copy, {one_movie: 2, another: 1})
        for _ in range(2):  # by the token of RESET, too
            async with subscribed(here, subscribe_options=options(copy.token, **OFTEN)) as stream:
                copy.take(await stream.next())
                copy.take(await stream.next())
                assert (copy.counts, copy.phase) == ({}, SUBSCRIBE_PHASE_CATCHING_UP)
        async with subscribed(here, subscribe_options=options(copy.token, **OFTEN)) as stream:
            here.table.put([rating(one_movie, count=2)])
            here.asker.bell.notify()
            await settle(stream, copy)
        assert (copy.counts, copy.resets) == ({one_movie: 2, another: 9}, 2)

    asyncio.run(talk())


def test_who_goes_on_where_one_partition_is_behind_misses_nothing() -> None:
    """The other partition is further than the token: its changes are sent while the first one is waited for."""
    there, here = make_ratings(2), make_ratings(2)
    one_movie = next(number for number in range(99) if here.table.partition_of(rating(number)) == 0)
    another = next(number for number in range(99) if here.table.partition_of(rating(number)) == 1)
    for each in (there, here):
        each.table.put([rating(one_movie), rating(another)])
    there.table.put([rating(one_movie, count=2)])
    here.table.put([rating(another, count=2)])

    async def talk() -> None:
        copy = Copy()
        async with subscribed(there, subscribe_options=options("", **OFTEN)) as stream:
            await stream.until(copy, {one_movie: 2, another: 1})
        async with subscribed(here, subscribe_options=options(copy.token, **OFTEN)) as stream:
            copy.take(await stream.next())
            here.table.put([rating(one_movie, count=2)])
            here.asker.bell.notify()
            while copy.phase != SUBSCRIBE_PHASE_CURRENT:
                copy.take(await stream.next())
        assert (copy.counts, copy.resets) == ({one_movie: 2, another: 2}, 1)

    asyncio.run(talk())
