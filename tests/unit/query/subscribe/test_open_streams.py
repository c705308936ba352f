"""How far behind its store a Subscribe stream is, by what it was sent."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.call import StreamMethod
from tablegate.gateway.query.limits import QueryLimits
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.query.subscribe.open_streams import OpenStreams, StreamLag
from tablegate.gateway.stores.notifier import Notifier
from tablegate.v1.query_pb2 import SUBSCRIBE_PHASE_CURRENT
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import SIGNER, LocalCall, catalogue_of, rating, ratings_table

PATH = "/examples.ratings.v1.RatingsService/SubscribeRatings"


class _World:
    """A gateway that stands alone, over the ratings table."""

    def __init__(self, limits: QueryLimits | None = None) -> None:
        self.store, self.notifier, self.streams = MemoryStore(), Notifier(), OpenStreams()
        self.table = ratings_table(self.store, 3)
        limits = limits or QueryLimits(message_rows_max=10)
        methods = query_methods(catalogue_of(), self.store, SIGNER, self.notifier, limits=limits, streams=self.streams)
        self._method = methods[PATH]

    def subscribe(self, **fields: Any) -> AsyncGenerator[Any, None]:
        """Return the messages of a stream."""
        query = catalogue_of().queries[PATH]
        assert isinstance(self._method, StreamMethod)
        request = query.request_class(**fields)
        handled: Any = self._method.handler(request.SerializeToString(), LocalCall(None))
        return _parsed(handled, query.response_class)

    def behind_in(self, seconds: float) -> tuple[int, float]:
        """Return how many streams are behind when so many seconds have passed, and how long the longest then has been.

        In whole seconds.
        """
        count, longest_s = self.streams.behind(time.monotonic() + seconds)
        return count, round(longest_s)

    def lags(self) -> list[StreamLag]:
        """Return those of all streams."""
        with self.store.snapshot() as snapshot:
            return self.streams.lags(snapshot)

    def lag(self) -> StreamLag:
        """Return that of the one stream."""
        [lag] = self.lags()
        return lag


async def _parsed(messages: Any, response_class: Any) -> AsyncGenerator[Any, None]:
    async with aclosing(messages) as parts:
        async for data in parts:
            yield response_class.FromString(data)


async def _until_current(stream: AsyncGenerator[Any, None]) -> None:
    async for message in stream:
        if message.progress.phase == SUBSCRIBE_PHASE_CURRENT:
            return


async def _changes_until_current(stream: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    async for message in stream:
        for change in message.changes:
            yield change
        if message.progress.phase == SUBSCRIBE_PHASE_CURRENT:
            return


def test_a_stream_counts_while_it_is_open() -> None:
    async def talk() -> None:
        world = _World()
        assert world.lags() == []
        async with aclosing(world.subscribe()) as stream:
            await _until_current(stream)
            assert (world.lag().path, world.lag().is_part) == (PATH, False)
            async with aclosing(world.subscribe(movie_id=7)) as other:
                await _until_current(other)
                assert len(world.lags()) == 2
        assert world.lags() == []

    asyncio.run(talk())


def test_a_stream_is_behind_until_it_was_sent_what_is_new() -> None:
    async def talk() -> None:
        world = _World()
        world.table.put(map(rating, range(5)))
        async with aclosing(world.subscribe()) as stream:
            await _until_current(stream)
            assert world.lag()[2:6:2] == (False, 0)
            world.table.put([rating(7, count=2)])
            world.table.put([rating(7, count=3)])
            lag = world.lag()
            assert lag.records == 2
            with world.store.snapshot() as snapshot:
                partition = world.table.partition_of(rating(7))
                offset = snapshot.history(world.table.store_id, partition, start=0, limit=9)[-2]  # type: ignore[arg-type]
            assert lag.since_ms == offset.time_ms, "as old as the first of them"
            world.notifier.notify()  # queued for it, and not sent yet
            assert world.lag().records == 2
            await _until_current(stream)
            assert world.lag()[4:] == (0, 0)

    asyncio.run(talk())


def test_records_that_change_no_row_are_no_lag() -> None:
    async def talk() -> None:
        world = _World()
        world.table.put([rating(7)])
        async with aclosing(world.subscribe()) as stream:
            await _until_current(stream)
            for partition in map(Partition, range(3)):  # as a marker of progress does
                world.table.next_offsets[partition] += 1
                world.table.move(partition)
            assert world.lag()[4:] == (0, 0)

    asyncio.run(talk())


def test_a_stream_that_fills_says_so() -> None:
    async def talk() -> None:
        world = _World()
        world.table.put(map(rating, range(60)))
        async with aclosing(world.subscribe()) as stream:
            await anext(stream)
            await anext(stream)
            assert world.lag().is_filling
            await _until_current(stream)
            assert not world.lag().is_filling

    asyncio.run(talk())


def test_a_stream_of_one_key_is_behind_in_its_partition_alone() -> None:
    async def talk() -> None:
        world = _World()
        mine = world.table.partition_of(rating(7))
        other = next(row for row in map(rating, range(100)) if world.table.partition_of(row) != mine)
        async with aclosing(world.subscribe(movie_id=7)) as stream:
            await _until_current(stream)
            world.table.put([other])
            assert world.lag()[4:] == (0, 0)
            world.table.put([rating(7)])
            assert world.lag().records == 1

    asyncio.run(talk())


def test_a_stream_is_behind_since_the_oldest_change_it_was_not_sent() -> None:
    async def talk() -> None:
        world = _World()
        world.table.put(map(rating, range(60)))
        async with aclosing(world.subscribe()) as stream:
            await anext(stream)
            await anext(stream)
            assert world.behind_in(1_000) == (0, 0), "its rows are still to come"
            await _until_current(stream)
            assert world.behind_in(1_000) == (0, 0)
            world.table.put([rating(7, count=2)])
            world.notifier.notify()
            assert world.behind_in(0.1) == (0, 0), "it is on its way"
            first = world.streams.behind(1_000.0 + time.monotonic())
            world.table.put([rating(7, count=3)])
            world.notifier.notify()
            assert world.behind_in(1_000) == (1, 1_000)
            assert world.streams.behind(1_000.0 + time.monotonic()) > first
            await _until_current(stream)
            await _until_current(stream)
            assert world.behind_in(1_000) == (0, 0)

    asyncio.run(talk())


def test_a_stream_that_was_evicted_is_behind_until_it_has_all() -> None:
    async def talk() -> None:
        world = _World(QueryLimits(message_rows_max=10, subscriber_bytes_max=300, publish_flush_s=0))
        async with aclosing(world.subscribe()) as stream:
            await _until_current(stream)
            for number in range(40):
                world.table.put([rating(number)])
                world.notifier.notify()
            assert world.behind_in(1_000) == (1, 1_000)
            rows = [change async for change in _changes_until_current(stream)]
            assert len(rows) == 40, "none was dropped with its queue"
            assert world.behind_in(1_000) == (0, 0)

    asyncio.run(talk())


def test_a_stream_that_resumes_is_behind_until_it_has_all() -> None:
    async def talk() -> None:
        world = _World()
        async with aclosing(world.subscribe()) as stream:
            async for message in stream:
                if message.progress.phase == SUBSCRIBE_PHASE_CURRENT:
                    token = message.progress.resume_token
                    break
        world.table.put(map(rating, range(40)))
        async with aclosing(world.subscribe(subscribe_options={"resume_token": token})) as stream:
            await anext(stream)
            assert world.behind_in(1_000) == (1, 1_000)
            await _until_current(stream)
            assert world.behind_in(1_000) == (0, 0)

    asyncio.run(talk())
