"""Subscribe over a memory store: what a client's copy is, after any history of the table and of the stream."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.contract.types import Partition
from gateway.query import live_table
from gateway.query.call import StreamMethod
from gateway.query.errors import InvalidField, InvalidResumeToken, PartitionUnavailable, ShuttingDown
from gateway.stores.base import Phase
from gateway.stores.memory import MemoryStore
from gateway.v1.query_pb2 import (
    SUBSCRIBE_PHASE_CATCHING_UP,
    SUBSCRIBE_PHASE_CURRENT,
    SUBSCRIBE_PHASE_RESET,
    SUBSCRIBE_START_LIVE,
)
from tests.support.tables import LocalCall, rating
from tests.unit.query.conftest import Ratings, make_ratings

METHOD = "SubscribeRatings"
TIMEOUT_S = 10.0
OFTEN = {"progress_interval": {"nanos": 100_000_000}}


class Copy:
    """What a client makes of a stream; it fails where that breaks a promise."""

    def __init__(self) -> None:
        self.rows: dict[int, Any] = {}
        self.phase = SUBSCRIBE_PHASE_CATCHING_UP
        self.token = ""
        self.resets = 0
        self.given = 0

    def take(self, response: Any) -> None:
        assert response.HasField("progress")
        progress = response.progress
        if progress.phase == SUBSCRIBE_PHASE_RESET:
            assert not response.changes
            self.rows.clear()
            self.resets += 1
        for change in response.changes:
            self.given += 1
            if change.HasField("upsert"):
                before = self.rows.get(change.upsert.movie_id)
                assert before is None or before.rating_count <= change.upsert.rating_count, "a row went back"
                self.rows[change.upsert.movie_id] = change.upsert
            else:
                self.rows.pop(change.delete.movie_id)
        assert progress.HasField("read_info") == (progress.phase == SUBSCRIBE_PHASE_CURRENT)
        self.phase, self.token = progress.phase, progress.resume_token

    @property
    def counts(self) -> dict[int, int]:
        return {movie_id: row.rating_count for movie_id, row in self.rows.items()}


class Stream:
    """A stream that is open."""

    def __init__(self, messages: AsyncIterator[bytes], response_class: Any, call: LocalCall) -> None:
        self._messages = messages
        self._response_class = response_class
        self.call = call

    async def next(self) -> Any:
        message = await asyncio.wait_for(anext(self._messages), TIMEOUT_S)
        return self._response_class.FromString(message)

    async def until(self, copy: Copy, wanted: dict[int, int]) -> None:
        """Take messages until the copy is current and as wanted."""
        while copy.phase != SUBSCRIBE_PHASE_CURRENT or copy.counts != wanted:
            copy.take(await self.next())


@asynccontextmanager
async def subscribed(ratings: Ratings, **fields: Any) -> AsyncIterator[Stream]:
    path = f"{ratings.asker.service}/{METHOD}"
    method = ratings.asker.methods[path]
    assert isinstance(method, StreamMethod)
    call = LocalCall(None)
    messages = method.handler(ratings.asker.request(METHOD, **fields).SerializeToString(), call)
    try:
        yield Stream(messages, ratings.asker.catalogue.queries[path].response_class, call)
    finally:
        await messages.aclose()  # type: ignore[attr-defined]


def options(token: str = "", **more: Any) -> dict[str, Any]:
    return {"resume_token": token, **more}


class Writer:
    """Changes the table, and knows what it should be."""

    def __init__(self, ratings: Ratings, seed: int = 0) -> None:
        self.ratings = ratings
        self.counts: dict[int, int] = {}
        self.version = 0
        self.choice = random.Random(seed)

    def put(self, *movie_ids: int) -> None:
        for movie_id in movie_ids:
            self.version += 1
            self.counts[movie_id] = self.version
            self.ratings.table.put([rating(movie_id, count=self.version)])
        self.ratings.asker.bell.ring()

    def delete(self, *movie_ids: int) -> None:
        self.ratings.table.delete([rating(movie_id) for movie_id in movie_ids])
        for movie_id in movie_ids:
            self.counts.pop(movie_id, None)
        self.ratings.asker.bell.ring()

    def anything(self, keys: int = 40) -> None:
        movie_id = self.choice.randrange(keys)
        (self.delete if self.choice.random() < 0.2 else self.put)(movie_id)


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
                ratings.asker.bell.ring()
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


@pytest.mark.parametrize("seed", range(20))
def test_any_breaks_and_changes_leave_the_copy_equal(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_table, "FLUSH_S", 0.0)
    ratings = make_ratings(partition_count=1 + seed % 4)
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
            ratings.asker.bell.toll()
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


def test_a_subscriber_that_does_not_read_is_let_go_and_catches_up(ratings: Ratings, writer: Writer) -> None:
    writer.put(*range(10))

    async def talk() -> None:
        copy = Copy()
        async with subscribed(ratings) as stream:
            await stream.until(copy, writer.counts)
            for _ in range(200):
                writer.put(*range(100))
                await asyncio.sleep(0)
            await asyncio.sleep(0.05)
            await stream.until(copy, writer.counts)
            assert copy.resets == 1
            assert copy.given < 20_000

    asyncio.run(talk())
