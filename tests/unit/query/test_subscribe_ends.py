"""What happens to a stream: its own end, the process's, and a store that fails or is made anew under it."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tablegate.gateway.contract.types import Offset, Partition, StoreId
from tablegate.gateway.query.errors import CorruptRow, ShuttingDown, StoreAway, StreamExpired
from tablegate.gateway.query.limits import DEFAULT_LIMITS, QueryLimits
from tablegate.gateway.server.worker import WatchedStore
from tablegate.gateway.stores.base import PastChange, Phase, StoreUnavailable
from tablegate.internal.v1.store_pb2 import TableState
from tablegate.v1.query_pb2 import SUBSCRIBE_PHASE_CATCHING_UP, SUBSCRIBE_PHASE_CURRENT
from tests.kit.call.asker import Asker, Ratings, make_ratings
from tests.kit.call.subscribing import OFTEN, Copy, Writer, opened, options, subscribed
from tests.kit.store.memory import MemorySnapshot, MemoryStore
from tests.kit.table.filled import FilledTable, catalogue_of, rating
from tests.kit.table.parcels import Parcels, copy


@pytest.fixture
def ratings() -> Ratings:
    return make_ratings()


@pytest.fixture
def writer(ratings: Ratings) -> Writer:
    return Writer(ratings)


def test_a_stream_that_is_old_ends_with_its_progress_and_is_gone_on_with(ratings: Ratings, writer: Writer) -> None:
    writer.put(*range(1_200))
    asker, short = ratings.asker, QueryLimits(stream_min_s=0.2, stream_max_s=0.2)
    hurried = replace(ratings, asker=Asker(asker.catalogue, ratings.table.store, asker.service, None, short))

    async def talk() -> None:
        one = Copy()
        ends = 0
        while one.phase != SUBSCRIBE_PHASE_CURRENT or one.counts != writer.counts:
            asked = hurried if one.given else ratings  # the first is cut in the middle of the rows
            async with subscribed(asked, subscribe_options=options(one.token, **OFTEN)) as stream:
                if not one.given:
                    one.take(await stream.next())
                    one.take(await stream.next())
                    writer.put(3)
                    continue
                with pytest.raises(StreamExpired):
                    await _take_all(stream, one)
                ends += 1
        assert one.resets == 1
        assert ends

    asyncio.run(talk())


async def _take_all(stream: Any, one: Copy) -> None:
    while True:
        one.take(await stream.next())


def test_a_drain_in_the_middle_of_the_rows(ratings: Ratings, writer: Writer) -> None:
    writer.put(*range(3_000))

    async def talk() -> None:
        one = Copy()
        async with subscribed(ratings) as stream:
            for _ in range(3):
                one.take(await stream.next())
            stream.call.draining = True
            given = one.given
            with pytest.raises(ShuttingDown):
                await _take_all(stream, one)
            assert one.given == given
            assert one.phase == SUBSCRIBE_PHASE_CATCHING_UP
        async with subscribed(ratings, subscribe_options=options(one.token)) as stream:
            await stream.until(one, writer.counts)
        assert one.resets == 1

    asyncio.run(talk())


def test_a_drain_after_changes_loses_none(ratings: Ratings, writer: Writer) -> None:
    writer.put(*range(10))

    async def talk() -> None:
        one = Copy()
        async with subscribed(ratings) as stream:
            await stream.until(one, writer.counts)
            writer.put(1, 2, 3)
            stream.call.draining = True
            ratings.asker.bell.shutdown()
            writer.put(4)
            with pytest.raises(ShuttingDown):
                await _take_all(stream, one)
        async with subscribed(ratings, subscribe_options=options(one.token)) as stream:
            await stream.until(one, writer.counts)
        assert (one.resets, one.given) == (1, 14)

    asyncio.run(talk())


def test_a_drain_while_the_store_is_behind_the_token() -> None:
    ahead, behind = make_ratings(1), make_ratings(1)
    ahead_writer, behind_writer = Writer(ahead), Writer(behind)
    ahead_writer.put(*range(10))
    behind_writer.put(*range(4))

    async def talk() -> None:
        one = Copy()
        async with subscribed(ahead) as stream:
            await stream.until(one, ahead_writer.counts)
        async with subscribed(behind, subscribe_options=options(one.token, **OFTEN)) as stream:
            for _ in range(2):
                one.take(await stream.next())
                assert one.phase == SUBSCRIBE_PHASE_CATCHING_UP
            stream.call.draining = True
            behind.asker.bell.shutdown()
            with pytest.raises(ShuttingDown):
                await _take_all(stream, one)
        async with subscribed(behind, subscribe_options=options(one.token, **OFTEN)) as stream:
            one.take(await stream.next())
            behind_writer.put(*range(4, 10))
            await stream.until(one, ahead_writer.counts)
            behind_writer.put(3)
            await stream.until(one, behind_writer.counts)
        assert one.resets == 1

    asyncio.run(talk())


class Remade:
    """The ratings in a store that can be wiped and made anew: its numbers begin again."""

    def __init__(self) -> None:
        self.watched = WatchedStore(lambda: self.table.store)
        self.make(generation=1)
        self.asker = Asker(catalogue_of(), self.watched, "/examples.ratings.v1.RatingsService", None)

    def make(self, *, generation: int) -> None:
        self.watched.close()
        self.table = FilledTable(MemoryStore(), catalogue_of().tables["ratings"], 2, generation=generation)
        self.table.publish()
        with self.table.store.snapshot() as snapshot:
            state = TableState()
            state.CopyFrom(snapshot.table("ratings") or TableState())
        state.incarnation_id = generation
        state.manifest.changelog_topic_id = f"topic-{generation}"
        self.table.store.put_table("ratings", state)
        self.watched.refresh()

    def ratings(self) -> Ratings:
        return Ratings(self.table, self.asker.ask, self.asker)


def test_a_store_made_anew_under_a_stream_begins_it_anew() -> None:
    """The new life may have the number that the old one had; its offsets mean something else."""
    remade = Remade()
    first = Writer(remade.ratings())
    first.put(*range(10))

    async def talk() -> None:
        one = Copy()
        async with subscribed(remade.ratings(), subscribe_options=options(**OFTEN)) as stream:
            await stream.until(one, first.counts)
            store_id = remade.table.store_id
            remade.make(generation=2)
            assert remade.table.store_id == store_id
            second = Writer(remade.ratings())
            second.put(*range(5, 40))
            await stream.until(one, second.counts)
            assert one.resets == 2

    asyncio.run(talk())


def test_a_table_that_is_not_served_for_a_while(ratings: Ratings, writer: Writer) -> None:
    writer.put(*range(10))

    async def talk() -> None:
        one = Copy()
        async with subscribed(ratings, subscribe_options=options(**OFTEN)) as stream:
            await stream.until(one, writer.counts)
            with ratings.table.store.snapshot() as snapshot:
                served = snapshot.table("ratings")
                assert served is not None
            ratings.table.store.put_table("ratings", TableState(store_id=ratings.table.store_id, problem="it is off"))
            writer.put(3)
            one.take(await stream.next())
            ratings.table.store.put_table("ratings", served)
            writer.put(4)
            await stream.until(one, writer.counts)
            assert one.resets == 1

    asyncio.run(talk())


def failing_history(fails: Callable[[Partition], bool]) -> Any:
    history = MemorySnapshot.history

    def read(
        self: MemorySnapshot, store_id: StoreId, partition: Partition, *, start: Offset, limit: int, skip: int = 0
    ) -> list[PastChange]:
        if fails(partition):
            raise StoreUnavailable("the disk is gone")
        return history(self, store_id, partition, start=start, limit=limit, skip=skip)

    return read


def test_a_store_that_fails_under_a_feed_costs_no_change(
    ratings: Ratings, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.put(*range(30))

    async def talk() -> None:
        one = Copy()
        async with subscribed(ratings) as stream:
            await stream.until(one, writer.counts)
            with monkeypatch.context() as patched:
                patched.setattr(MemorySnapshot, "history", failing_history(lambda partition: partition == 2))
                writer.put(*range(30))
                await asyncio.sleep(0)
                with pytest.raises(StoreAway):
                    await _take_all(stream, one)
        async with subscribed(ratings, subscribe_options=options(one.token)) as stream:
            await stream.until(one, writer.counts)
        assert (one.resets, one.given) == (1, 60)

    asyncio.run(talk())


def test_a_damaged_row_ends_those_who_look_into_rows_and_no_others() -> None:
    parcels = Parcels(0)
    parcels.put("ash", 1, 9)

    async def talk() -> None:
        filtered, unfiltered = copy(), copy()
        async with (
            opened(parcels.asker, "SubscribeParcels", min_weight=5) as looking,
            opened(parcels.asker, "SubscribeParcels", depot="birch", subscribe_options=options(**OFTEN)) as other,
        ):
            await looking.until(filtered, {("ash", 1): 1})
            await other.until(unfiltered, {})
            row: Any = parcels.filled.table.row_class(depot="ash", number=2)
            parcels.filled._apply([(parcels.filled.key_of(row), b"\xff")])
            parcels.put("birch", 1, 9)
            parcels.asker.bell.notify()
            with pytest.raises(CorruptRow):
                await _take_all(looking, filtered)
            await other.until(unfiltered, {("birch", 1): 2})
            assert unfiltered.resets == 1

    asyncio.run(talk())


def test_the_end_of_a_burst_is_told_at_once(ratings: Ratings, writer: Writer) -> None:
    """Without a progress interval to wait for, to whom its last part says nothing as well."""
    writer.put(*range(10))
    late: dict[str, Any] = {"progress_interval": {"seconds": 60}}

    async def talk() -> None:
        one = Copy()
        async with subscribed(ratings, movie_id=3, subscribe_options=options(**late)) as stream:
            await stream.until(one, {3: 4})
            for movie_id in (3, *(100 + number % 7 for number in range(1_500))):
                writer.version += 1
                writer.counts[movie_id] = writer.version
                ratings.table.put([rating(movie_id, count=writer.version)])
            ratings.asker.bell.notify()
            await stream.until(one, {3: writer.counts[3]})

    asyncio.run(talk())


def test_a_partition_not_live_and_then_the_history_lost() -> None:
    ratings = make_ratings(1, store=MemoryStore(history_changes_max=5))
    writer = Writer(ratings)
    writer.put(*range(3))

    async def talk() -> None:
        one = Copy()
        async with subscribed(ratings, subscribe_options=options(**OFTEN)) as stream:
            await stream.until(one, writer.counts)
            ratings.table.move(Partition(0), phase=Phase.CATCHING_UP)
            ratings.asker.bell.notify()
            one.take(await stream.next())
            assert one.counts == writer.counts
            writer.put(*range(20))
            await stream.until(one, writer.counts)
            assert one.resets == 2

    asyncio.run(talk())


@pytest.mark.tools
def test_a_long_burst_goes_on_by_itself(ratings: Ratings, writer: Writer) -> None:
    """The bell rings once for all of it."""

    async def talk() -> None:
        one = Copy()
        async with subscribed(ratings, subscribe_options=options(progress_interval={"seconds": 60})) as stream:
            await stream.until(one, {})
            for number in range(12_000):
                writer.version += 1
                writer.counts[number % 500] = writer.version
                ratings.table.put([rating(number % 500, count=writer.version)])
            ratings.asker.bell.notify()
            await stream.until(one, writer.counts)
            assert one.resets == 1

    asyncio.run(talk())


@pytest.mark.tools
def test_what_was_taken_before_being_let_go_is_not_given_again() -> None:
    parcels = Parcels(0)

    async def talk() -> None:
        one = copy()
        async with opened(parcels.asker, "SubscribeParcels", subscribe_options=options(**OFTEN)) as stream:
            await stream.until(one, {})
            for number in range(10, 14):  # one message each
                parcels.put("birch", number, 1)
                parcels.asker.bell.notify()
                await asyncio.sleep(DEFAULT_LIMITS.publish_flush_s * 2)
            while one.given < 2:
                one.take(await stream.next())
            for _ in range(60):
                for number in range(500):
                    parcels.put("ash", number % 20, 1)
                parcels.asker.bell.notify()
                await asyncio.sleep(DEFAULT_LIMITS.publish_flush_s * 1.5)
            await stream.until(one, parcels.part(lambda *_: True))
            assert one.resets == 1
            assert one.given < parcels.moves

    asyncio.run(talk())
