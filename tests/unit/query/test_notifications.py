"""Queries that hear of a commit by the names of what it changed: they miss nothing, and read no more than that."""

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest
from typing_extensions import override

from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.errors import NotCaughtUp, PartitionUnavailable, StoreAway
from tablegate.gateway.query.limits import DEFAULT_LIMITS, QueryLimits
from tablegate.gateway.stores.base import Phase
from tablegate.gateway.stores.changes import NotifyingStore, StoreChanges
from tests.kit.call.asker import Asker, Ratings
from tests.kit.call.subscribing import OFTEN, Copy, TableWriter, options, subscribed
from tests.kit.seeds import seeds
from tests.kit.store.breaking import BreakingStore
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import FilledTable, catalogue_of, rating

SERVICE = "/examples.ratings.v1.RatingsService"
PARTITIONS = 50
SELDOM = {"progress_interval": {"seconds": 60}}
SETTLE_S = 0.05


class CountingStore(BreakingStore):
    """A store that counts the positions that are read."""

    positions = 0

    @override
    def check(self, read: str) -> None:
        self.positions += read == "position"
        super().check(read)


class World:
    """The ratings, written as the replicator does: each write is named, and published with the next."""

    def __init__(self, partition_count: int = PARTITIONS, limits: QueryLimits = DEFAULT_LIMITS) -> None:
        self.memory = MemoryStore(history_changes_max=1_000)
        self.read = CountingStore(self.memory)
        self.asker = Asker(catalogue_of(), self.read, SERVICE, None, limits)
        self.store = NotifyingStore(self.memory, self._notify)
        self.table = FilledTable(self.store, catalogue_of().tables["ratings"], partition_count)
        self.table.publish()
        self.store.publish()
        self.ratings = Ratings(self.table, self.asker.ask, self.asker)
        self.writer = TableWriter(self.table, self.store.publish)

    def _notify(self, changes: StoreChanges) -> None:
        self.asker.bell.notify(StoreChanges.decode(changes.encode()))

    def movies(self) -> Iterator[tuple[int, Partition]]:
        """Yield numbers of movies, and where they are."""
        for movie_id in range(1, 10_000):
            yield movie_id, self.table.partition_of(rating(movie_id))


@pytest.fixture
def world() -> World:
    return World()


def test_a_commit_reads_the_positions_that_it_changed(world: World) -> None:
    async def talk() -> None:
        one = Copy()
        async with subscribed(world.ratings, subscribe_options=options(**SELDOM)) as stream:
            await stream.until(one, {})
            for number in range(20):
                await asyncio.sleep(DEFAULT_LIMITS.publish_flush_s)
                world.read.positions = 0
                world.writer.put(number)
                await stream.until(one, world.writer.counts)
                assert world.read.positions == 1
        assert one.resets == 1

    asyncio.run(talk())


@pytest.mark.parametrize("seed", seeds(12, in_check=2))
def test_subscribers_have_all_whatever_changes_and_moves(seed: int) -> None:
    """Partitions that leave and come back, generations, a store that goes away: each is heard of by its name."""
    world = World(5, QueryLimits(publish_flush_s=0.001, publish_retry_s=0.01))
    choice = random.Random(seed)

    async def follow(one: Copy, often: dict[str, Any]) -> None:
        while True:
            try:
                async with subscribed(world.ratings, subscribe_options=options(one.token, **often)) as stream:
                    while True:
                        one.take(await stream.next())
            except (StoreAway, PartitionUnavailable):  # the latter where it begins while one is away
                await asyncio.sleep(0.003)

    async def talk() -> None:
        copies = [Copy() for _ in range(3)]
        tasks = [
            asyncio.ensure_future(follow(one, often))
            for one, often in zip(copies, (SELDOM, SELDOM, OFTEN), strict=True)
        ]
        for _ in range(120):
            match choice.choices(["write", "away", "phase", "generation"], [90, 3, 6, 1])[0]:
                case "write":
                    world.writer.anything(keys=30)
                case "away":
                    world.read.breaks()
                    world.writer.anything(keys=30)
                    await asyncio.sleep(0.005)
                    world.read.mends()
                case "phase":
                    partition = Partition(choice.randrange(5))
                    world.table.move(partition, phase=Phase.CATCHING_UP)
                    world.store.publish()
                    await asyncio.sleep(0.002 * choice.randrange(3))
                    world.table.move(partition)
                    world.store.publish()
                case "generation":
                    world.writer.counts.clear()
                    world.table.generation += 1
                    world.table.publish()
                    world.store.publish()
            await asyncio.sleep(choice.choice([0, 0, 0.001, 0.003]))
        for _ in range(2_000):
            if all(one.counts == world.writer.counts for one in copies):
                break
            await asyncio.sleep(0.01)
        assert [one.counts for one in copies] == [world.writer.counts] * 3
        for task in tasks:
            assert not task.done()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(talk())


def test_a_table_that_nothing_changes_goes_on_after_its_store_was_away() -> None:
    """No notification says that it can be read again."""
    world = World(limits=QueryLimits(publish_retry_s=0.02))

    async def talk() -> None:
        one = Copy()
        async with subscribed(world.ratings, subscribe_options=options(**SELDOM)) as stream:
            await stream.until(one, {})
            await asyncio.sleep(DEFAULT_LIMITS.publish_flush_s)
            world.read.breaks()
            world.writer.put(1)
            await asyncio.sleep(SETTLE_S)
            world.read.mends()
            await stream.until(one, world.writer.counts)
        assert one.resets == 1

    asyncio.run(talk())


def test_a_wait_for_freshness_reads_again_when_its_partition_changes() -> None:
    """Not for each of the other partitions."""
    world = World(limits=QueryLimits(freshness_check_s=60.0))  # nor by itself
    movies = world.movies()
    movie_id, partition = next(movies)
    others = [other for other, elsewhere in movies if elsewhere != partition][:30]
    world.table.put([rating(movie_id, count=1)])
    world.store.publish()
    world.asker.ends.offsets = {"ratings-g1-changelog": {partition: world.table.next_offsets[partition] + 1}}

    async def talk() -> None:
        read_options = {"latest": True, "max_wait": {"seconds": 10}}
        request = world.asker.request("GetRating", movie_id=movie_id, read_options=read_options)
        asking = asyncio.create_task(world.asker.ask_async("GetRating", request))
        await asyncio.sleep(SETTLE_S)
        world.read.positions = 0
        for other in others:
            world.table.put([rating(other)])
            world.store.publish()
            await asyncio.sleep(0)
        await asyncio.sleep(SETTLE_S)
        assert not asking.done()
        assert world.read.positions == 0
        world.table.put([rating(movie_id, count=2)])
        world.store.publish()
        for _ in range(1_000):  # of the loop, long before the wait is over and reads once more
            await asyncio.sleep(0)
        assert asking.done()
        assert asking.result().rating.rating_count == 2

    asyncio.run(talk())


def test_an_error_names_the_partition_to_wait_for(world: World) -> None:
    world.table.put([rating(1)])
    world.store.publish()
    partition = world.table.partition_of(rating(1))
    world.asker.ends.offsets = {"ratings-g1-changelog": {partition: 100}}
    request = world.asker.request(
        "GetRating", movie_id=1, read_options={"latest": True, "max_wait": {"nanos": 1_000_000}}
    )
    with pytest.raises(NotCaughtUp) as caught:
        world.asker.ask("GetRating", request)
    assert caught.value.behind == (world.table.store_id, partition)
