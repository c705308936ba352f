"""A table with retention: a row whose time has come is a delete, told when it is removed."""

import asyncio
import random
from operator import attrgetter
from typing import Any

import pytest

from tablegate.gateway.query.limits import DEFAULT_LIMITS, QueryLimits
from tests.kit.call.asker import Asker
from tests.kit.call.subscribing import OFTEN, Copy, opened, options, token_of
from tests.kit.seeds import seeds
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import ACTIONS, FilledTable, catalogue_of

METHOD = "SubscribeActionCounts"
NOW_MS = 1_790_000_000_000
NOW_US = NOW_MS * 1_000
LIFE_US = (5 + 86_400) * 1_000_000  # of an action count: from the start of its window
SECOND_US = 1_000_000


class Windows:
    """Action counts in a memory store, at a moment that a test moves."""

    def __init__(
        self, *, incarnation_id: int = 1, partition_count: int = 2, limits: QueryLimits = DEFAULT_LIMITS
    ) -> None:
        self.now_ms = NOW_MS
        catalogue = catalogue_of(ACTIONS)
        self.store = MemoryStore()
        self.filled = FilledTable(
            self.store, catalogue.tables["action_counts"], partition_count, incarnation_id=incarnation_id
        )
        self.filled.publish()
        service = "/examples.actions.v1.ActionCountsService"
        self.asker = Asker(catalogue, self.store, service, lambda: self.now_ms, limits)
        self.counts: dict[int, int] = {}  # of firefox, by the window's start in seconds from now
        self.version = 0

    def row(self, start_s: int, count: int = 0) -> Any:
        row: Any = self.filled.table.row_class(browser="firefox", action_count=count)
        row.window_start.FromMicroseconds(NOW_US + start_s * SECOND_US)
        return row

    def put(self, *starts_s: int) -> None:
        for start_s in starts_s:
            self.version += 1
            self.filled.put([self.row(start_s, self.version)])
            self.counts[start_s] = self.version
        self.asker.bell.notify()

    def expire(self, *starts_s: int) -> None:
        """Remove windows, as a sweep does."""
        for start_s in starts_s:
            key = self.filled.key_of(self.row(start_s))
            partition = self.filled.table.partition_of(key, self.filled.partition_count)
            assert self.store.expire(self.filled.store_id, partition, [key], time_ms=self.now_ms) == 1
            del self.counts[start_s]
        self.asker.bell.notify()

    def open(self, one: Copy) -> Any:
        return opened(self.asker, METHOD, browser="firefox", subscribe_options=options(one.token, **OFTEN))


def copy(**more: Any) -> Copy:
    def start_s(row: Any) -> int:
        return int(row.window_start.ToMicroseconds() - NOW_US) // SECOND_US

    return Copy(start_s, attrgetter("action_count"), **more)


def test_windows_that_are_removed_are_deletes() -> None:
    windows = Windows()
    windows.put(*range(5))

    async def talk() -> None:
        one = copy()
        async with windows.open(one) as stream:
            await stream.until(one, windows.counts)
            windows.expire(0, 1)
            await stream.until(one, windows.counts)
            windows.expire(2)
            windows.put(9)
            await stream.until(one, windows.counts)
            assert (one.resets, one.given) == (1, 9)

    asyncio.run(talk())


def test_a_resume_between_two_removals_at_one_offset_gets_the_second_alone() -> None:
    windows = Windows()
    windows.put(*range(5))

    async def talk() -> None:
        one = copy()
        async with windows.open(one) as stream:
            await stream.until(one, windows.counts)
            windows.expire(0, 1)
            await stream.until(one, windows.counts)
        assert sum(token_of(one.token).skips) == 2
        windows.expire(2, 3)
        async with windows.open(one) as stream:
            await stream.until(one, windows.counts)
        windows.put(9)
        async with windows.open(one) as stream:
            await stream.until(one, windows.counts)
        assert (one.resets, one.given) == (1, 5 + 4 + 1)
        assert not token_of(one.token).skips

    asyncio.run(talk())


def test_a_snapshot_after_a_removal_does_not_tell_it() -> None:
    windows = Windows()
    windows.put(*range(5))
    windows.expire(0, 1)

    async def talk() -> None:
        one = copy()
        async with windows.open(one) as stream:
            await stream.until(one, windows.counts)
            windows.expire(2)
            await stream.until(one, windows.counts)
            assert one.given == 4

    asyncio.run(talk())


def test_another_store_begins_anew_as_it_removes_at_its_own_time() -> None:
    here, there = Windows(incarnation_id=1), Windows(incarnation_id=2)
    for windows in (here, there):
        windows.put(*range(5))

    async def talk() -> None:
        one = copy()
        async with here.open(one) as stream:
            here.expire(0)
            await stream.until(one, here.counts)
        there.expire(1, 0)
        async with there.open(one) as stream:
            await stream.until(one, there.counts)
        assert one.resets == 2

    asyncio.run(talk())


def test_what_is_expired_and_not_removed_is_not_in_a_snapshot() -> None:
    """Who had it keeps it until it is removed; who did not may be told that it is gone."""
    windows = Windows()
    windows.put(*range(5))

    async def talk() -> None:
        before, after = copy(), copy(gone_unseen=True)
        async with windows.open(before) as had:
            await had.until(before, windows.counts)
            windows.now_ms += LIFE_US // 1_000 + 1_000  # the first two are gone by it
            kept = {start_s: count for start_s, count in windows.counts.items() if start_s > 1}
            async with windows.open(after) as stream:
                await stream.until(after, kept)
                assert before.counts == windows.counts
                windows.expire(0, 1)
                await had.until(before, windows.counts)
                windows.put(9)
                await stream.until(after, windows.counts)

    asyncio.run(talk())


@pytest.mark.parametrize("seed", seeds(10, in_check=3))
def test_any_removals_changes_and_breaks_leave_the_copy_equal(seed: int) -> None:
    choice = random.Random(seed)
    windows = Windows(partition_count=1 + seed % 2, limits=QueryLimits(publish_flush_s=0.0))
    windows.put(*range(20))

    def anything() -> None:
        if windows.counts and choice.random() < 0.4:
            windows.expire(*choice.sample(sorted(windows.counts), min(len(windows.counts), choice.randrange(1, 4))))
        else:
            windows.put(choice.randrange(20))

    async def talk() -> None:
        one, same = copy(), copy()
        for _ in range(12):
            async with windows.open(one) as stream, windows.open(same) as same_stream:
                for _ in range(choice.randrange(6)):
                    anything()
                    if choice.random() < 0.6:
                        one.take(await stream.next())
                if choice.random() < 0.6:
                    await stream.until_at(one, windows.filled.next_offsets)
                    await same_stream.until(same, windows.counts)
            for _ in range(choice.randrange(4)):
                anything()
        async with windows.open(one) as stream, windows.open(same) as same_stream:
            await stream.until(one, windows.counts)
            await same_stream.until(same, windows.counts)
        assert one.resets == same.resets == 1

    asyncio.run(talk())
