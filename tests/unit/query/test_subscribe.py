"""Subscribe over a memory store: what a client's copy is, after any history of the table and of the stream."""

import asyncio

import pytest

from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.errors import (
    InvalidField,
    InvalidResumeToken,
    PartitionUnavailable,
    ShuttingDown,
    TooManyKeys,
)
from tablegate.gateway.query.limits import QueryLimits
from tablegate.gateway.stores.base import Phase
from tablegate.v1.query_pb2 import (
    SUBSCRIBE_PHASE_CATCHING_UP,
    SUBSCRIBE_PHASE_CURRENT,
    SUBSCRIBE_PHASE_RESET,
    SUBSCRIBE_START_LIVE,
)
from tests.kit.call.asker import Ratings, make_ratings
from tests.kit.call.subscribing import METHOD, OFTEN, Copy, Writer, options, subscribed
from tests.kit.seeds import seeds
from tests.kit.store.memory import MemoryStore


@pytest.fixture
def ratings() -> Ratings:
    return make_ratings()


@pytest.fixture
def writer(ratings: Ratings) -> Writer:
    return Writer(ratings)


def test_the_rows_and_then_their_changes(ratings: Ratings, writer: Writer) -> None:
    writer.put(*range(10))

    async def talk() -> None:
        async with subscribed(ratings) as stream:
            copy = Copy()
            first = await stream.next()
            assert first.progress.phase == SUBSCRIBE_PHASE_RESET
            copy.take(first)
            await stream.until(copy, writer.counts)
            writer.put(3, 99)
            copy.take(await stream.next())
            assert (copy.counts, copy.phase) == (writer.counts, SUBSCRIBE_PHASE_CURRENT)
            writer.delete(4)
            copy.take(await stream.next())
            assert copy.counts == writer.counts
            assert (copy.resets, copy.given) == (1, 13)

    asyncio.run(talk())


def test_only_changes(ratings: Ratings, writer: Writer) -> None:
    writer.put(*range(10))

    async def talk() -> None:
        async with subscribed(ratings, subscribe_options=options(start=SUBSCRIBE_START_LIVE)) as stream:
            copy = Copy()
            first = await stream.next()
            assert (first.progress.phase, len(first.changes)) == (SUBSCRIBE_PHASE_CURRENT, 0)
            writer.put(3)
            copy.take(await stream.next())
            assert copy.counts == {3: 11}

    asyncio.run(talk())


def test_one_key(ratings: Ratings, writer: Writer) -> None:
    writer.put(*range(10))

    async def talk() -> None:
        async with subscribed(ratings, movie_id=3) as stream:
            copy = Copy()
            await stream.until(copy, {3: 4})
            writer.put(*range(20), 3)
            await stream.until(copy, {3: writer.counts[3]})
            writer.delete(2, 3, 4)
            await stream.until(copy, {})
            assert copy.given == 4

    asyncio.run(talk())


def test_progress_comes_though_nothing_changes_and_says_the_age(ratings: Ratings, writer: Writer) -> None:
    fast = options(**OFTEN)

    async def talk() -> None:
        async with subscribed(ratings, subscribe_options=fast) as stream:
            copy = Copy()
            await stream.until(copy, {})
            for as_of_ms in (5_000_000_000_000, 5_000_000_001_000):
                for partition in range(3):
                    ratings.table.move(Partition(partition), as_of_ms=as_of_ms)
                ratings.asker.bell.notify()
                message = await stream.next()
                assert not message.changes
                assert message.progress.read_info.as_of_time.ToMilliseconds() == as_of_ms

    asyncio.run(talk())


def test_a_broken_snapshot_goes_on_where_it_was(ratings: Ratings, writer: Writer) -> None:
    writer.put(*range(3_000))

    async def talk() -> None:
        copy = Copy()
        for _ in range(3):
            async with subscribed(ratings, subscribe_options=options(copy.token)) as stream:
                for _ in range(2):
                    copy.take(await stream.next())
                assert copy.phase == SUBSCRIBE_PHASE_CATCHING_UP
                writer.put(*(writer.choice.randrange(3_000) for _ in range(50)))
                writer.delete(writer.choice.randrange(3_000))
        async with subscribed(ratings, subscribe_options=options(copy.token)) as stream:
            await stream.until(copy, writer.counts)
        assert copy.resets == 1

    asyncio.run(talk())


@pytest.mark.parametrize("seed", seeds(20, in_check=5))
def test_any_breaks_and_changes_leave_the_copy_equal(seed: int) -> None:
    ratings = make_ratings(partition_count=1 + seed % 4, limits=QueryLimits(publish_flush_s=0.0))
    writer = Writer(ratings, seed)
    writer.put(*range(40))

    async def talk() -> None:
        copy = Copy()
        others = [Copy() for _ in range(3)]
        for _ in range(15):
            async with (
                subscribed(ratings, subscribe_options=options(copy.token, **OFTEN)) as stream,
                subscribed(ratings, subscribe_options=options(others[0].token)) as same,
                subscribed(ratings, movie_id=7, subscribe_options=options(others[1].token)) as one_key,
            ):
                for _ in range(writer.choice.randrange(5)):
                    writer.anything()
                    if writer.choice.random() < 0.7:
                        copy.take(await stream.next())
                writer.put(7)
                await one_key.until(others[1], {7: writer.counts[7]})
                if writer.choice.random() < 0.5:
                    await stream.until(copy, writer.counts)
                await same.until(others[0], writer.counts)
            for _ in range(writer.choice.randrange(5)):
                writer.anything()
        async with subscribed(ratings, subscribe_options=options(copy.token)) as stream:
            await stream.until(copy, writer.counts)
        assert copy.resets == others[0].resets == others[1].resets == 1

    asyncio.run(talk())


def test_a_token_behind_the_history_begins_anew() -> None:
    ratings = make_ratings(store=MemoryStore(history_changes_max=5))
    writer = Writer(ratings)
    writer.put(*range(10))

    async def talk() -> None:
        copy = Copy()
        async with subscribed(ratings) as stream:
            await stream.until(copy, writer.counts)
        writer.put(*range(30))
        writer.delete(5)
        async with subscribed(ratings, subscribe_options=options(copy.token)) as stream:
            await stream.until(copy, writer.counts)
        assert copy.resets == 2

    asyncio.run(talk())


def test_a_new_generation_begins_anew_in_the_same_stream(ratings: Ratings, writer: Writer) -> None:
    writer.put(*range(10))

    async def talk() -> None:
        copy = Copy()
        async with subscribed(ratings) as stream:
            await stream.until(copy, writer.counts)
            token = copy.token
            ratings.table.generation = 2
            ratings.table.publish()
            writer.counts.clear()
            writer.put(1, 2)
            await stream.until(copy, writer.counts)
            assert copy.resets == 2
        later = Copy()
        async with subscribed(ratings, subscribe_options=options(token)) as stream:
            await stream.until(later, writer.counts)
            assert later.resets == 1

    asyncio.run(talk())


def test_a_partition_that_catches_up_holds_nobody_up_for_good(ratings: Ratings, writer: Writer) -> None:
    writer.put(*range(10))

    async def talk() -> None:
        copy = Copy()
        async with subscribed(ratings) as stream:
            await stream.until(copy, writer.counts)
            ratings.table.move(Partition(0), phase=Phase.CATCHING_UP)
            with pytest.raises(PartitionUnavailable):
                async with subscribed(ratings) as another:
                    await another.next()
            ratings.table.move(Partition(0))
            writer.put(*range(5))
            await stream.until(copy, writer.counts)
            assert copy.resets == 1

    asyncio.run(talk())


def test_a_drain_ends_a_stream_with_its_progress(ratings: Ratings, writer: Writer) -> None:
    async def talk() -> None:
        copy = Copy()
        async with subscribed(ratings) as stream:
            await stream.until(copy, {})
            stream.call.draining = True
            ratings.asker.bell.shutdown()
            message = await stream.next()
            assert message.progress.resume_token
            with pytest.raises(ShuttingDown):
                await stream.next()

    asyncio.run(talk())


@pytest.mark.parametrize("token", ["x", "1.", "1.AAAA"])
def test_a_token_that_is_none(ratings: Ratings, token: str) -> None:
    with pytest.raises(InvalidResumeToken):
        ratings.asker.stream(METHOD, subscribe_options=options(token))


def test_a_token_of_other_params(ratings: Ratings) -> None:
    [message] = ratings.asker.stream(METHOD, most=1)
    with pytest.raises(InvalidResumeToken):
        ratings.asker.stream(METHOD, movie_id=1, subscribe_options=options(message.progress.resume_token))


def test_wrong_options(ratings: Ratings) -> None:
    with pytest.raises(InvalidField, match="progress_interval"):
        ratings.asker.stream(METHOD, subscribe_options={"progress_interval": {}})
    with pytest.raises(InvalidField, match="start"):
        ratings.asker.stream(METHOD, subscribe_options={"start": 7})


def test_certain_keys(ratings: Ratings, writer: Writer) -> None:
    writer.put(*range(10))
    keys = [{"movie_id": movie_id} for movie_id in (3, 5, 3, 77)]

    async def talk() -> None:
        async with subscribed(ratings, keys=keys) as stream:
            copy = Copy()
            await stream.until(copy, {3: 4, 5: 6})
            writer.put(*range(20), 77)
            writer.delete(3, 4)
            await stream.until(copy, {5: writer.counts[5], 77: writer.counts[77]})
            token = copy.token
        async with subscribed(ratings, keys=keys, subscribe_options=options(token)) as stream:
            writer.put(5, 6)
            await stream.until(copy, {5: writer.counts[5], 77: writer.counts[77]})
        async with subscribed(ratings, movie_id=3, keys=keys) as stream:
            nothing = Copy()
            await stream.until(nothing, {})
            writer.put(3, 5)
            await stream.until(nothing, {3: writer.counts[3]})
        assert copy.resets == 1
        many = [{"movie_id": movie_id} for movie_id in range(1_001)]
        with pytest.raises(TooManyKeys):
            async with subscribed(ratings, keys=many) as stream:
                await stream.next()

    asyncio.run(talk())
