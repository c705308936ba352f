"""Scan and Subscribe over gateways that ask each other by gRPC."""

import random
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from tablegate.v1.query_pb2 import SUBSCRIBE_PHASE_CURRENT
from tests.kit.call.subscribing import Copy, options
from tests.kit.gateways_in_process.cluster import ALONE, EACH_ON_TWO, GrpcCluster
from tests.kit.table.filled import rating

pytestmark = pytest.mark.tools

ROWS = 6_000
QUICK: dict[str, Any] = {"progress_interval": {"nanos": 100_000_000}}


@pytest.fixture
def cluster() -> Iterator[GrpcCluster]:
    with GrpcCluster(EACH_ON_TWO) as cluster:
        cluster.put(rating(number) for number in range(ROWS))
        yield cluster


def ids(messages: Iterator[Any]) -> list[int]:
    return [row.movie_id for message in messages for row in message.ratings]


def test_each_gateway_scans_what_one_with_everything_does(cluster: GrpcCluster) -> None:
    wanted = sorted(ids(cluster.stream(ALONE, "ScanRatings")))
    for gateway_id in EACH_ON_TWO:
        assert sorted(ids(cluster.stream(gateway_id, "ScanRatings"))) == wanted


@pytest.mark.parametrize("stopped", ["b", "c"])
@pytest.mark.parametrize("after", [1, 9])
def test_a_gateway_that_stops_under_a_scan(cluster: GrpcCluster, stopped: str, after: int) -> None:
    messages = cluster.stream("a", "ScanRatings")
    found = ids(next(messages) for _ in range(after))
    cluster[stopped].stop()
    assert sorted(found + ids(messages)) == list(range(ROWS))


class Table:
    """Changes the ratings of some gateways, and knows what they should be."""

    def __init__(self, cluster: GrpcCluster) -> None:
        self.counts: dict[int, int] = {}
        self._cluster = cluster
        self._version = 0

    def put(self, movie_ids: Any) -> None:
        rows = []
        for movie_id in movie_ids:
            self._version += 1
            self.counts[movie_id] = self._version
            rows.append(rating(movie_id, count=self._version))
        self._cluster.put(rows)


def until(messages: Iterator[Any], one: Copy, table: Table) -> None:
    while one.phase != SUBSCRIBE_PHASE_CURRENT or one.counts != table.counts:
        one.take(next(messages))


def test_gateways_that_stop_and_start_under_a_subscription() -> None:
    choice = random.Random(3)
    with GrpcCluster(EACH_ON_TWO) as cluster:
        table, one = Table(cluster), Copy()
        table.put(range(2_000))
        messages = cluster.stream("a", "SubscribeRatings", subscribe_options=options(**QUICK))
        for _ in range(4):
            for gateway_id in ("b", "c"):
                for _ in range(choice.randrange(6)):
                    one.take(next(messages))
                cluster[gateway_id].stop()
                table.put(choice.sample(range(2_000), 200))
                until(messages, one, table)
                cluster[gateway_id].start()
                cluster.announce()
        assert one.resets == 1


def test_a_client_that_goes_from_gateway_to_gateway() -> None:
    choice = random.Random(4)
    with GrpcCluster(EACH_ON_TWO) as cluster:
        table, one = Table(cluster), Copy()
        table.put(range(2_000))
        for number in range(12):
            gateway_id = "abc"[number % 3]
            messages = cluster.stream(gateway_id, "SubscribeRatings", subscribe_options=options(one.token, **QUICK))
            for _ in range(choice.randrange(1, 8)):
                one.take(next(messages))
                table.put(choice.sample(range(2_000), 20))
            if number % 2:
                cluster[gateway_id].stop()
                with pytest.raises(grpc.RpcError):
                    until(messages, one, Table(cluster))
                cluster[gateway_id].start()
                cluster.announce()
            messages.close()  # type: ignore[attr-defined]
        until(cluster.stream("b", "SubscribeRatings", subscribe_options=options(one.token, **QUICK)), one, table)
        assert one.resets == 1
