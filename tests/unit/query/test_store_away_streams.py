"""Streams of a gateway whose own store goes away under them, and comes back."""

import asyncio
from collections.abc import Collection
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from tablegate.gateway.query.errors import StoreAway
from tablegate.v1.query_pb2 import SUBSCRIBE_START_LIVE
from tests.kit.call.subscribing import Copy
from tests.kit.gateways_in_process.cluster_without_network import QUICK_LIMITS, SAFE, LocalCluster
from tests.kit.gateways_in_process.streams import Writer, filled, ids, scanned, subscribed
from tests.kit.gateways_in_process.streams import append_all as take_all
from tests.kit.gateways_in_process.streams import apply_all as until_the_end
from tests.kit.gateways_in_process.windows import ON_TWO, Windows, window_copy
from tests.kit.gateways_in_process.windows import until as until_whole
from tests.kit.seeds import seeds
from tests.kit.store.breaking import GONE, UNREADABLE, At
from tests.kit.table.filled import rating

pytestmark = pytest.mark.tools

breaks = pytest.mark.parametrize("at", [GONE, ("table",), ("position",), UNREADABLE], ids=lambda at: at[0])


def cluster_of(rows: int = 2_000) -> LocalCluster:
    cluster = LocalCluster(SAFE)
    cluster.put(rating(number) for number in range(rows))
    return cluster


@breaks
@pytest.mark.parametrize("after", [1, 3, 6])
def test_a_scan_goes_on_elsewhere_and_comes_back(after: int, at: Collection[At]) -> None:
    async def talk() -> None:
        cluster = cluster_of()
        messages = cluster.stream(0, "ScanRatings")
        found = [await anext(messages) for _ in range(after)]
        cluster[0].answered.breaks(at)
        found.append(await anext(messages))
        found.append(await anext(messages))
        cluster[0].answered.mends()
        await take_all(messages, found)
        assert sorted(ids(found)) == list(range(2_000))

    asyncio.run(talk())


@breaks
def test_a_scan_that_nobody_can_go_on_with_ends(at: Collection[At]) -> None:
    async def talk() -> None:
        cluster = LocalCluster({0: [0, 1, 2], 1: [3, 4, 5]}, limits=replace(QUICK_LIMITS, retries_s=0.0))
        cluster.put(rating(number) for number in range(2_000))
        messages = cluster.stream(0, "ScanRatings")
        found = [await anext(messages)]
        cluster[0].answered.breaks(at)
        with pytest.raises(StoreAway):
            await take_all(messages, found)
        with pytest.raises(StoreAway):
            await scanned(cluster, 0)
        cluster[0].answered.mends()
        request = cluster.request("ScanRatings")
        request.scan_options.resume_token = found[-1].progress.resume_token
        found += [message async for message in cluster.stream(1, "ScanRatings", request)]
        assert sorted(ids(found)) == list(range(2_000))

    asyncio.run(talk())


@breaks
@pytest.mark.parametrize("spread", [SAFE, {0: range(6), 1: range(6)}], ids=["some", "all"])
def test_a_subscription_goes_on_elsewhere_and_comes_back(spread: Any, at: Collection[At]) -> None:
    async def talk() -> None:
        cluster, writer = filled(spread)
        one = Copy()
        async with subscribed(cluster, 0) as stream:
            for _ in range(4):
                await stream.until(one, writer.counts)
                cluster[0].answered.breaks(at)
                cluster[0].bell.notify()
                writer.put(*range(40))
                writer.delete(41)
                writer.put(41)
                await stream.until(one, writer.counts)
                cluster[0].answered.mends()
                writer.put(*range(20, 60))
            given = one.given
            assert given > 4 * 40
        assert one.resets == 1

    asyncio.run(talk())


@breaks
def test_a_subscription_begins_while_the_store_is_away(at: Collection[At]) -> None:
    async def talk() -> None:
        cluster, writer = filled(SAFE)
        one, live = Copy(), Copy()
        cluster[0].answered.breaks(at)
        async with (
            subscribed(cluster, 0) as stream,
            subscribed(cluster, 0, asked={"start": SUBSCRIBE_START_LIVE}) as changes,
        ):
            live.take(await changes.next())
            await stream.until(one, writer.counts)
            writer.put(5)
            await stream.until(one, writer.counts)
            await changes.until(live, {5: writer.counts[5]})
        cluster[0].answered.mends()
        async with subscribed(cluster, 0, one.token) as stream:
            writer.put(6)
            await stream.until(one, writer.counts)
        assert one.resets == 1

    asyncio.run(talk())


@pytest.mark.parametrize("patience_s", [0.0, 0.2])
def test_a_subscription_that_nobody_can_give_ends(patience_s: float) -> None:
    async def talk() -> None:
        cluster, writer = filled({0: range(6), 1: range(6)}, limits=replace(QUICK_LIMITS, retries_s=patience_s))
        one = Copy()
        async with subscribed(cluster, 0) as stream:
            await stream.until(one, writer.counts)
            for number in range(2):
                cluster[number].answered.breaks()
                cluster[number].bell.notify()
            writer.put(1)
            with pytest.raises(StoreAway):
                await until_the_end(stream, one)
        async with subscribed(cluster, 0) as stream:
            with pytest.raises(StoreAway):
                await until_the_end(stream, Copy())
        async with subscribed(cluster, 0, asked={"start": SUBSCRIBE_START_LIVE}) as stream:
            with pytest.raises(StoreAway):
                await stream.next()
        for number in range(2):
            cluster[number].answered.mends()
        async with subscribed(cluster, 1, one.token) as stream:
            await stream.until(one, writer.counts)
        assert one.resets == 1

    asyncio.run(talk())


def test_a_store_that_fails_in_the_middle_of_a_step_costs_no_change() -> None:
    """Changes of one partition are read already when those of another cannot be."""

    async def talk() -> None:
        cluster, writer = filled({0: range(6), 1: range(6)})
        one = Copy()
        async with subscribed(cluster, 0) as stream:
            await stream.until(one, writer.counts)
            token = one.token
        writer.put(*range(300))
        gateway = cluster[0].answered
        whole, reads = gateway.check, 0

        def check(at: str) -> None:
            nonlocal reads
            reads += at == "history"
            if reads > 3:
                gateway.breaks((*GONE, *UNREADABLE))
            whole(at)

        gateway.check = check  # type: ignore[assignment, method-assign]
        async with subscribed(cluster, 0, token) as stream:
            await stream.until(one, writer.counts)
        assert reads > 3
        assert (one.resets, one.given) == (1, 600)

    asyncio.run(talk())


def writes(writer: Writer, count: int) -> None:
    for _ in range(count):
        writer.anything(60)


@pytest.mark.parametrize("seed", seeds(6, in_check=2))
def test_stores_that_go_and_come_under_many_subscribers(seed: int) -> None:
    """One store at a time: whoever is asked, a copy is whole in the end, and was begun once."""

    async def talk() -> None:
        cluster, writer = filled(SAFE, rows=60)
        writer.choice.seed(seed)
        copies = [Copy() for _ in range(3)]
        async with (
            subscribed(cluster, 0) as first,
            subscribed(cluster, 1) as second,
            subscribed(cluster, 2) as third,
        ):
            streams = (first, second, third)
            for stream, one in zip(streams, copies, strict=True):
                await stream.until(one, writer.counts)
            for _ in range(25):
                for gateway in cluster.gateways.values():
                    gateway.answered.mends()
                    gateway.bell.notify()
                    for partition in gateway.phases:
                        gateway.follow(partition)
                broken = cluster[writer.choice.randrange(3)]
                broken.answered.breaks(writer.choice.choice([GONE, UNREADABLE]))
                broken.bell.notify()
                writes(writer, writer.choice.randrange(6))
                for stream, one in zip(streams, copies, strict=True):
                    if writer.choice.random() < 0.6:
                        one.take(await stream.next())
            for stream, one in zip(streams, copies, strict=True):
                await stream.until(one, writer.counts)
        assert [one.resets for one in copies] == [1, 1, 1]

    asyncio.run(talk())


@breaks
def test_windows_of_a_store_that_is_away_begin_anew_elsewhere(at: Collection[At]) -> None:
    async def talk() -> None:
        windows = Windows(ON_TWO)
        windows.put(*range(4))
        one = window_copy()
        async with aclosing(windows.open(0, one)) as stream:
            await until_whole(stream, one, windows.counts)
            windows.cluster[0].answered.breaks(at)
            windows.put(9)
            windows.cluster[0].bell.notify()
            await until_whole(stream, one, windows.counts)
        assert one.resets == 2

    asyncio.run(talk())
