"""Scans of a table whose partitions are spread over gateways."""

import asyncio
import random
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.errors import ForeignForward, PartitionUnavailable, PeerError, TableRebuilt
from tablegate.gateway.query.forwarding import HEARD_S
from tablegate.gateway.stores.base import Phase
from tablegate.internal.v1.tokens_pb2 import TOKEN_KIND_SLICE, Token
from tests.kit.call.asker import SHOP
from tests.kit.call.subscribing import token_of
from tests.kit.gateways_in_process.cluster_without_network import QUICK_LIMITS, SAFE, LocalCluster, Placement
from tests.kit.gateways_in_process.streams import append_all, ids, scanned
from tests.kit.seeds import seeds
from tests.kit.table.filled import SIGNER, LocalCall, rating

pytestmark = pytest.mark.tools

SPREAD: Placement = {0: [0, 3], 1: [1, 3, 4], 2: [0, 1, 2, 5, 4]}  # partitions 2 and 5 are on one gateway alone
ROWS = 2_000


def filled(held: Placement, rows: int = ROWS, **more: Any) -> LocalCluster:
    cluster = LocalCluster(held, **more)
    cluster.put(rating(number, count=number % 40) for number in range(rows))
    return cluster


@pytest.mark.parametrize("least", [None, 0, 20, 41])
def test_each_gateway_gives_all_rows_once(least: int | None) -> None:
    async def talk() -> None:
        cluster = filled(SPREAD)
        fields = {} if least is None else {"min_rating_count": least}
        wanted = [number for number in range(ROWS) if least is None or number % 40 >= least]
        for number in range(3):
            messages = await scanned(cluster, number, **fields)
            assert sorted(ids(messages)) == wanted
            assert all(message.progress.resume_token for message in messages)

    asyncio.run(talk())


def test_a_gateway_without_partitions_gives_all_rows() -> None:
    async def talk() -> None:
        cluster = filled({**SPREAD, 3: []})
        assert sorted(ids(await scanned(cluster, 3))) == list(range(ROWS))

    asyncio.run(talk())


def test_the_last_message_says_what_was_read_of_each_partition() -> None:
    async def talk() -> None:
        cluster = filled(SPREAD)
        info = (await scanned(cluster, 0))[-1].progress.read_info
        token = token_of(info.consistency_token)
        partitions = token.partitions or range(len(token.next_offsets))
        assert dict(zip(partitions, token.next_offsets, strict=True)) == cluster.whole.next_offsets
        assert info.as_of_time.seconds

    asyncio.run(talk())


def test_all_that_is_here_is_read_here() -> None:
    async def talk() -> None:
        cluster = filled({0: range(6), 1: range(6)})
        assert sorted(ids(await scanned(cluster, 0))) == list(range(ROWS))
        assert not cluster[1].calls

    asyncio.run(talk())


def test_neighbours_on_one_gateway_are_one_stream() -> None:
    async def talk() -> None:
        cluster = filled({0: [0], 1: [1, 2, 3, 4], 2: [5, 2]})
        assert sorted(ids(await scanned(cluster, 0))) == list(range(ROWS))
        assert [len(cluster[number].calls) for number in range(3)] == [1, 1, 1]

    asyncio.run(talk())


@pytest.mark.parametrize("seed", seeds(8, in_check=3))
def test_a_token_of_any_message_is_good_on_any_gateway(seed: int) -> None:
    choice = random.Random(seed)

    async def talk() -> None:
        cluster = filled(SPREAD)
        fields = choice.choice([{}, {"min_rating_count": 20}])
        wanted = [number for number in range(ROWS) if not fields or number % 40 >= 20]
        found: list[int] = []
        request = cluster.request("ScanRatings", **fields)
        is_whole = False
        while not is_whole:
            left = choice.randrange(1, 8)
            is_whole = True
            async with aclosing(cluster.stream(choice.randrange(3), "ScanRatings", request)) as messages:
                async for message in messages:
                    found += ids([message])
                    request.scan_options.resume_token = message.progress.resume_token
                    left -= 1
                    if not left:
                        is_whole = False
                        break
        assert sorted(found) == wanted

    asyncio.run(talk())


@pytest.mark.parametrize("seed", seeds(15, in_check=4))
def test_gateways_that_die_drain_and_come_back_leave_the_rows_whole(seed: int) -> None:
    choice = random.Random(seed)

    async def talk() -> None:
        cluster = filled(SAFE)
        asked = choice.randrange(3)
        found: list[int] = []
        async with aclosing(cluster.stream(asked, "ScanRatings")) as messages:
            async for message in messages:
                found += ids([message])
                if choice.random() < 0.5:
                    cluster.disturb(choice, asked)
                asyncio.get_running_loop().call_later(choice.choice([0, 0.01, 0.1]), cluster.announce)
        assert sorted(found) == list(range(ROWS))

    asyncio.run(talk())


def test_a_partition_that_nobody_has_is_told_with_the_rows_before_it() -> None:
    async def talk() -> None:
        cluster = filled({0: [0, 1], 1: [2, 3, 5]}, limits=replace(QUICK_LIMITS, retries_s=0.0))
        messages: list[Any] = []
        with pytest.raises(PartitionUnavailable, match="partition 4"):
            await append_all(cluster.stream(0, "ScanRatings"), messages)
        cluster[0].follow(Partition(4))
        cluster.announce()
        request = cluster.request("ScanRatings")
        request.scan_options.resume_token = messages[-1].progress.resume_token
        messages += [message async for message in cluster.stream(1, "ScanRatings", request)]
        assert sorted(ids(messages)) == list(range(ROWS))

    asyncio.run(talk())


def test_the_most_rows_hold_over_all_gateways_and_resumes() -> None:
    async def talk() -> None:
        cluster = LocalCluster(
            {0: [0, 2], 1: [1, 3]}, path=SHOP, table="orders", service="/shop.v1.ShopService", partition_count=4
        )
        row = cluster.whole.table.row_class
        cluster.put(row(customer=f"c{number}", code="x", price=number) for number in range(15))
        for number in range(2):
            messages = [message async for message in cluster.stream(number, "ScanOrders")]
            assert sum(len(message.orders) for message in messages) == 7
            request = cluster.request("ScanOrders")
            request.scan_options.resume_token = messages[0].progress.resume_token
            rest = [message async for message in cluster.stream(1 - number, "ScanOrders", request)]
            assert sum(len(message.orders) for message in [messages[0], *rest]) == 7

    asyncio.run(talk())


@pytest.mark.parametrize("least", [None, 20])
def test_limits_hold_over_all_gateways_and_higher_ones_go_on(least: int | None) -> None:
    async def talk() -> None:
        cluster = filled(SPREAD)
        fields = {} if least is None else {"min_rating_count": least}
        wanted = [number for number in range(ROWS) if least is None or number % 40 >= least]
        given, token = list[int](), ""
        for turn, limit in enumerate((1, 2, 300, 301, 900, 0)):
            request = cluster.request("ScanRatings", **fields)
            request.scan_options.limit, request.scan_options.resume_token = limit, token
            messages = [message async for message in cluster.stream(turn % 3, "ScanRatings", request)]
            given += ids(messages)
            assert len(given) == (limit or len(wanted))
            token = messages[-1].progress.resume_token
        assert sorted(given) == wanted

    asyncio.run(talk())


def test_a_scan_waits_for_a_partition_that_is_on_its_way() -> None:
    async def talk() -> None:
        cluster = filled({0: [0, 1], 1: [2, 3, 5]})
        loop = asyncio.get_running_loop()
        loop.call_later(0.2, cluster[1].follow, Partition(4))
        loop.call_later(0.3, cluster.announce)
        assert sorted(ids(await scanned(cluster, 0))) == list(range(ROWS))

    asyncio.run(talk())


def test_a_scan_is_forwarded_once() -> None:
    """A gateway that is asked for what it does not have says so: it does not ask on."""

    async def talk() -> None:
        cluster = filled({0: [0, 1, 2], 1: [3, 4, 5]}, limits=replace(QUICK_LIMITS, retries_s=0.0))
        cluster[0].follow(Partition(0), phase=Phase.CATCHING_UP)
        cluster[1].phases[Partition(0)] = Phase.LIVE  # said, and not so
        cluster.announce()
        with pytest.raises(PeerError) as failed:
            await scanned(cluster, 0)
        assert "partition 0" in failed.value.text
        assert (len(cluster[0].calls), len(cluster[1].calls)) == (1, 1)

    asyncio.run(talk())


def test_a_forged_mark_is_refused() -> None:
    async def talk() -> None:
        cluster = filled(SPREAD)
        call = LocalCall(None, forwarded=SIGNER.sign(Token(table="ratings")))
        with pytest.raises(ForeignForward):
            await anext(cluster.stream(0, "ScanRatings", call=call))

    asyncio.run(talk())


def test_an_error_of_a_gateway_comes_as_it_is() -> None:
    async def talk() -> None:
        cluster = filled({0: [], 1: range(6)})
        request = cluster.request("ScanRatings")
        request.read_options.max_staleness.nanos = 1
        request.read_options.max_wait.nanos = 1
        with pytest.raises(PeerError, match="is not fresh enough"):
            await anext(cluster.stream(0, "ScanRatings", request))

    asyncio.run(talk())


def test_a_table_that_is_rebuilt_under_a_scan_is_told() -> None:
    async def talk() -> None:
        cluster = filled({0: [0], 1: range(1, 6)})
        messages = cluster.stream(0, "ScanRatings")
        await anext(messages)
        cluster.whole.generation = 2
        cluster.whole.publish()
        for gateway in cluster.gateways.values():
            gateway.switch(list(gateway.phases))
        cluster.announce()
        with pytest.raises(TableRebuilt):
            await append_all(messages, [])

    asyncio.run(talk())


@pytest.mark.parametrize("is_first", [True, False])
def test_a_scan_that_has_given_nothing_waits_for_gateways_to_switch(is_first: bool) -> None:
    """It begins on the gateway that switches first, or on the one that does so last: it is of the new generation."""

    async def talk() -> None:
        cluster = filled({0: [1, 2, 4], 1: [0, 3, 5]}, rows=40)
        cluster.whole.generation = 2
        cluster.whole.publish()
        cluster.put(rating(number) for number in range(50))
        early, late = (0, 1) if is_first else (1, 0)
        cluster[early].switch(list(cluster[early].phases))
        cluster.announce()
        loop = asyncio.get_running_loop()
        loop.call_later(2 * HEARD_S, cluster[late].switch, list(cluster[late].phases))
        loop.call_later(2 * HEARD_S, cluster.announce)
        assert sorted(ids(await scanned(cluster, 0))) == list(range(50))

    asyncio.run(talk())


@pytest.mark.parametrize("slices", [1, 4, 6, 100])
def test_slices_read_on_several_gateways_are_the_scan(slices: int) -> None:
    async def talk() -> None:
        cluster = filled(SPREAD)
        [sliced] = await scanned(cluster, 0, scan_options={"slices": slices})
        tokens = sliced.progress.slice_tokens
        assert len(tokens) == min(slices, 6)
        assert {token_of(token).kind for token in tokens} == {TOKEN_KIND_SLICE}  # which gateways of before refuse
        parts = [
            ids(await scanned(cluster, number % 3, scan_options={"resume_token": token}))
            for number, token in enumerate(tokens)
        ]
        assert all(parts)
        assert sorted(number for part in parts for number in part) == list(range(ROWS))

    asyncio.run(talk())
