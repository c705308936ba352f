"""A gateway that goes on to another generation while it puts an answer together."""

import asyncio
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.limits import DEFAULT_LIMITS, QueryLimits
from tablegate.gateway.stores.base import Phase
from tablegate.v1.query_pb2 import SUBSCRIBE_START_LIVE
from tests.kit.call.subscribing import Copy
from tests.kit.gateways_in_process.answers import ROWS, refused
from tests.kit.gateways_in_process.cluster import EACH_ON_ONE, ClusterGateway, GrpcCluster, Placement, movie_of
from tests.kit.gateways_in_process.streams import filled, subscribed
from tests.kit.table.accounts import ACCOUNTS, SERVICE
from tests.kit.table.filled import rating

FRESH = {"max_staleness": {"seconds": 3_600}, "max_wait": {"seconds": 10}}


@pytest.fixture
def cluster() -> Iterator[GrpcCluster]:
    """Gateway "a" lags; once "b" is asked, it answers from a generation of twice as many partitions, and is fresh."""
    with GrpcCluster(EACH_ON_ONE) as cluster:
        cluster.put(rating(number, count=number) for number in range(ROWS))
        behind = cluster["a"]
        for partition in map(Partition, EACH_ON_ONE["a"]):
            behind.do(lambda partition=partition: behind.table.move(partition, as_of_ms=1))  # type: ignore[misc]
        is_asked = threading.Event()
        cluster["b"].on_call = is_asked.set

        def switch() -> None:
            is_asked.wait()
            behind.table.generation, behind.table.partition_count = 2, 12
            behind.do(lambda: behind.table.publish(phase=Phase.LIVE))
            behind.held = frozenset(map(Partition, range(12)))
            behind.put(rating(number, count=1_000 + number) for number in range(ROWS))

        switching = threading.Thread(target=switch)
        switching.start()
        yield cluster
        is_asked.set()
        switching.join()


@pytest.mark.parametrize("method", ["ListRatings", "BatchGetRatings"])
def test_what_it_has_of_another_generation_is_put_together_with_nothing(method: str, cluster: GrpcCluster) -> None:
    asked: dict[str, Any] = {"page_size": 1_000}
    if method == "BatchGetRatings":
        asked = {"keys": [{"movie_id": movie_of(cluster, partition)} for partition in (0, 3, 5)]}
    answer = cluster.ask("a", method, read_options=FRESH, **asked)
    rows = answer.ratings if method == "ListRatings" else [result.found for result in answer.results]
    assert len(rows) == (ROWS if method == "ListRatings" else 3)
    assert all(row.rating_count >= 1_000 for row in rows), "asked again, it has all of them in the other generation"


@pytest.fixture
def settled() -> QueryLimits:
    """No generation is waited for."""
    return replace(DEFAULT_LIMITS, retries_s=0)


def switch(gateway: ClusterGateway, partitions: Iterable[int], *, count: int) -> None:
    """Let a gateway go on to a generation of `count` partitions, some of which it has; nobody hears of it."""
    gateway.table.generation, gateway.table.partition_count = 2, count
    gateway.do(gateway.table.publish)
    gateway.hold(partitions)


def test_no_row_is_missing_that_another_generation_has_in_a_partition_more(settled: QueryLimits) -> None:
    numbers = [f"number {each}" for each in range(40)]
    placement: Placement = {"a": [], "b": [0], "c": [1]}
    with GrpcCluster(
        placement, contract=ACCOUNTS, table="accounts", service=SERVICE, partition_count=2, limits=settled
    ) as cluster:
        switch(cluster["b"], [0, 1, 2], count=6)
        switch(cluster["c"], [3, 4, 5], count=6)
        cluster.announce()
        for gateway in cluster.gateways.values():
            row_class: Any = gateway.table.table.row_class
            gateway.put(row_class(bank=str(at), account_id=at, number=each) for at, each in enumerate(numbers))
        assert refused(cluster, "a", "BatchGetAccountsByNumber", numbers=numbers)[1] == "PARTITION_UNAVAILABLE"
        switch(cluster["a"], [], count=6)
        cluster.announce()
        answer = cluster.ask("a", "BatchGetAccountsByNumber", numbers=numbers)
        assert [each.account.number for each in answer.results] == numbers


def test_a_partition_of_another_generation_is_read_at_one_place_only(settled: QueryLimits) -> None:
    with GrpcCluster({"a": [], "b": [0], "c": [1]}, partition_count=2, limits=settled) as cluster:
        movies = [movie_of(cluster, 0), movie_of(cluster, 1)]
        for gateway in (cluster["b"], cluster["c"]):
            switch(gateway, [0], count=1)
            gateway.put(rating(movie, count=1) for movie in movies)
        keys = [{"movie_id": movie} for movie in movies]
        assert [each.found.rating_count for each in cluster.ask("a", "BatchGetRatings", keys=keys).results] == [1, 1]
        for gateway in (cluster["c"], cluster["b"]):
            gateway.put(rating(movie, count=2) for movie in movies)
            if gateway is cluster["c"]:
                assert refused(cluster, "a", "BatchGetRatings", keys=keys)[1] == "PARTITION_UNAVAILABLE"
        assert [each.found.rating_count for each in cluster.ask("a", "BatchGetRatings", keys=keys).results] == [2, 2]


def test_changes_alone_have_no_rows_of_an_early_new_generation() -> None:
    async def talk() -> None:
        cluster, writer = filled({0: [0, 1, 2], 1: [3, 4, 5]})
        cluster[1].hangs = True
        async with subscribed(cluster, 0, asked={"start": SUBSCRIBE_START_LIVE}) as stream:
            first = asyncio.ensure_future(stream.next())
            while not cluster[1].calls:
                await asyncio.sleep(0)
            for _ in range(100):  # until it has a message, which it keeps
                await asyncio.sleep(0)
            writer.rebuild(range(50, 80))
            for number, partitions in ((0, range(3)), (1, range(3, 6))):
                cluster[number].switch(partitions)
            cluster.announce()
            while len(cluster[1].calls) < 2 and not first.done():
                await asyncio.sleep(0)
            cluster[1].hangs = False
            one = Copy()
            one.take(await first)
            writer.put(7)
            while not one.given:
                one.take(await stream.next())
            assert one.counts == {7: writer.counts[7]}

    asyncio.run(talk())
