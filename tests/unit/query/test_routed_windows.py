"""Subscriptions to a table whose rows expire, over gateways that each remove them at their own time."""

import asyncio
import random
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from tablegate.gateway.contract.lineage import places_of
from tablegate.gateway.contract.types import Partition
from tablegate.v1.query_pb2 import SUBSCRIBE_PHASE_CATCHING_UP, SUBSCRIBE_PHASE_CURRENT
from tests.kit.call.subscribing import TIMEOUT_S, Copy, token_of
from tests.kit.gateways_in_process.windows import (
    ON_TWO,
    SHORT_MESSAGES,
    Windows,
    until,
    window_copy,
)
from tests.kit.seeds import seeds


async def settle(stream: Any, one: Copy) -> None:
    """Take messages until the stream says that the copy is whole."""
    one.phase = SUBSCRIBE_PHASE_CATCHING_UP
    while one.phase != SUBSCRIBE_PHASE_CURRENT:
        one.take(await asyncio.wait_for(anext(stream), TIMEOUT_S))


def test_windows_that_each_gateway_removes_at_its_own_time() -> None:
    async def talk() -> None:
        windows = Windows()
        windows.put(*range(4))
        one = window_copy()
        async with aclosing(windows.open(0, one)) as stream:
            await until(stream, one, windows.counts)
            windows.expire(0, 1)
            await until(stream, one, windows.counts)
            windows.expire(1, 1)
            windows.expire(1, 2)
            windows.put(9)
            await until(stream, one, windows.counts)
        assert one.resets == 1
        windows.expire(1, 3)
        async with aclosing(windows.open(0, one)) as stream:  # of two stores, each of which goes on
            await until(stream, one, windows.counts)
        assert one.resets == 1

    asyncio.run(talk())


@pytest.mark.parametrize("asked", [1, 2])
def test_windows_resume_at_the_same_gateway_and_reset_elsewhere(asked: int) -> None:
    """Be that the best for them or not."""

    async def talk() -> None:
        windows = Windows()
        cluster = windows.cluster
        cluster[1].drop(Partition(1))
        cluster[asked].follow(Partition(1))
        cluster.announce()
        windows.put(*range(4))
        one = window_copy()
        async with aclosing(windows.open(0, one)) as stream:
            await until(stream, one, windows.counts)
            cluster[3 - asked].follow(Partition(1))
            cluster.announce()
            for window in range(3):
                cluster[asked].kill()
                cluster[asked].start()
                windows.put(5)
                windows.expire(asked, window)
                await until(stream, one, windows.counts)
            assert one.resets == 1
            for window in range(3):
                windows.expire(3 - asked, window)
            cluster[asked].kill()
            windows.put(6)
            await until(stream, one, windows.counts)
            assert one.resets == 2

    asyncio.run(talk())


def test_a_token_of_one_store_is_good_where_that_is_asked_again() -> None:
    async def talk() -> None:
        windows = Windows()
        cluster = windows.cluster
        cluster[1].follow(Partition(0))
        cluster[0].drop(Partition(0))
        cluster.announce()
        windows.put(*range(4))
        one = window_copy()
        for number in (0, 2, 1, 0):
            async with aclosing(windows.open(number, one)) as stream:
                await until(stream, one, windows.counts)
                windows.expire(1, number) if number else windows.put(number)
                await until(stream, one, windows.counts)
        assert one.resets == 1

    asyncio.run(talk())


@pytest.mark.parametrize("number", [0, 1])
def test_a_partition_that_moved_to_another_store_begins_anew(number: int) -> None:
    async def talk() -> None:
        windows = Windows()
        cluster = windows.cluster
        windows.put(*range(4))
        one = window_copy()
        async with aclosing(windows.open(0, one)) as stream:
            await until(stream, one, windows.counts)
        cluster[number].follow(Partition(1 - number))
        cluster[1 - number].drop(Partition(1 - number))
        cluster.announce()
        async with aclosing(windows.open(2, one)) as stream:
            one.take(await anext(stream))
            await until(stream, one, windows.counts)
        assert one.resets == 2

    asyncio.run(talk())


@pytest.mark.parametrize("after", range(1, 6))
def test_a_scan_that_says_no_progress_goes_on_behind_its_last_row(after: int) -> None:
    async def talk() -> None:
        windows = Windows(limits=replace(SHORT_MESSAGES, message_rows_max=7, scan_first_read_rows=7))
        cluster = windows.cluster
        for partition in (Partition(0), Partition(1)):
            cluster[1].follow(partition)
            cluster[2].follow(partition)
        cluster[0].drop(Partition(0))
        cluster.announce()
        windows.put(*range(10))
        found = []
        async with aclosing(cluster.stream(0, "ScanVisits")) as stream:
            for _ in range(after):
                found += [row.visits for row in (await anext(stream)).visits]
            [asked] = [cluster[number] for number in (1, 2) if cluster[number].calls]
            asked.kill()
            found += [row.visits async for message in stream for row in message.visits]
        assert sorted(found) == sorted(windows.counts.values())

    asyncio.run(talk())


@pytest.mark.parametrize("number", range(3))
def test_subscription_resumes_in_its_store_through_any_gateway(number: int) -> None:
    """Though the gateway that is asked has all partitions as well."""

    async def talk() -> None:
        windows = Windows(ON_TWO)
        windows.put(*range(4))
        one = window_copy()
        async with aclosing(windows.open(0, one)) as stream:
            await until(stream, one, windows.counts)
        windows.expire(0, 1)
        windows.put(5)
        async with aclosing(windows.open(number, one)) as stream:
            await until(stream, one, windows.counts)
            windows.expire(0, 2)
            windows.put(6)
            await until(stream, one, windows.counts)
        assert one.resets == 1

    asyncio.run(talk())


def test_subscription_resets_where_its_gateway_is_gone() -> None:
    async def talk() -> None:
        windows = Windows(ON_TWO)
        windows.put(*range(4))
        one = window_copy()
        async with aclosing(windows.open(0, one)) as stream:
            await until(stream, one, windows.counts)
        windows.cluster[0].kill()
        windows.cluster.announce()
        windows.expire(1, 1)
        async with aclosing(windows.open(1, one)) as stream:
            await settle(stream, one)
        assert (one.counts, one.resets) == (windows.counts, 2)
        assert set(token_of(one.token).gateways) == {"g1"}

    asyncio.run(talk())


def test_a_token_says_of_each_store_once_who_it_is() -> None:
    async def talk() -> None:
        windows = Windows({0: [0, 1, 2, 3], 1: [4, 5, 6, 7], 2: []}, partition_count=8)
        windows.put(*range(4))
        one = window_copy()
        async with aclosing(windows.open(2, one)) as stream:
            await until(stream, one, windows.counts)
        token = token_of(one.token)
        assert sorted(zip(token.gateways, token.incarnation_ids, strict=True)) == [("g0", 1), ("g1", 2)]
        assert len(token.incarnations) == len(places_of(token)) == 8

    asyncio.run(talk())


def test_gateways_that_share_a_store_go_on_for_each_other() -> None:
    async def talk() -> None:
        windows = Windows({0: [], 1: [], 2: []})
        cluster = windows.cluster
        for number in (0, 1):
            for partition in (Partition(0), Partition(1)):
                cluster[number].incarnations[partition] = 77
                cluster[number].follow(partition)
        cluster.announce()
        windows.put(*range(4))
        one = window_copy()
        async with aclosing(windows.open(0, one)) as stream:
            await until(stream, one, windows.counts)
        for number in (1, 2, 0):
            windows.put(4 + number)
            async with aclosing(windows.open(number, one)) as stream:
                await until(stream, one, windows.counts)
            assert set(token_of(one.token).gateways) == {{1: "g1", 2: "g1", 0: "g0"}[number]}
        assert one.resets == 1

    asyncio.run(talk())


@pytest.mark.parametrize("is_open", [False, True])
def test_a_partition_that_left_its_gateway_and_came_back_begins_anew(is_open: bool) -> None:
    async def talk() -> None:
        windows = Windows()
        cluster = windows.cluster
        windows.put(*range(4))
        one = window_copy()
        stream = windows.open(0, one)
        await until(stream, one, windows.counts)
        if not is_open:
            await stream.aclose()
        cluster[1].lose(Partition(1))
        cluster[1].follow(Partition(1))
        windows.expire(1, 2)
        if not is_open:
            stream = windows.open(0, one)
            await settle(stream, one)
        await until(stream, one, windows.counts)
        await stream.aclose()
        assert one.resets == 2

    asyncio.run(talk())


@pytest.mark.parametrize("seed", seeds(100, in_check=2))
def test_only_who_cannot_go_on_begins_anew(seed: int) -> None:
    """Through any gateway, after anything, the copy is what is stored; anew only if no gateway has what was given."""
    choice = random.Random(seed)

    async def talk() -> None:
        windows = Windows({0: range(4), 1: [1, 2], 2: [2, 3, 0], 3: [3]}, partition_count=4)
        cluster = windows.cluster
        windows.put(*range(3))
        one = window_copy()
        resets = 0
        for _ in range(12):
            for _ in range(choice.randrange(4)):
                windows.disturb(choice)
            cluster.announce()
            can_go_on = bool(one.token) and windows.has_all_of(one)
            asked = choice.choice([number for number in range(4) if not cluster[number].is_down])
            async with aclosing(windows.open(asked, one)) as stream:
                await settle(stream, one)
                assert one.counts == windows.given(one)
                if choice.random() < 0.5:
                    windows.put(choice.randrange(100, 200))
                    await settle(stream, one)
            resets += not can_go_on
            assert one.resets == resets

    asyncio.run(talk())
