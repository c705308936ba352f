"""Scan and Subscribe over gateways that ask each other by gRPC."""

import random
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from tablegate.v1.query_pb2 import SUBSCRIBE_PHASE_CURRENT

from tests.kit.call.subscribing import Copy, options
from tests.kit.gateways_in_process.cluster import ALONE, EACH_ON_TWO, ClusterDoors
from tests.kit.table.filled import rating

ROWS = 6_000
QUICK: dict[str, Any] = {"progress_interval": {"nanos": 100_000_000}}


@pytest.fixture
def doors() -> Iterator[ClusterDoors]:
    with ClusterDoors(EACH_ON_TWO) as doors:
        doors.put(rating(number) for number in range(ROWS))
        yield doors


def ids(messages: Iterator[Any]) -> list[int]:
    return [row.movie_id for message in messages for row in message.ratings]


def test_each_gateway_scans_what_one_with_everything_does(doors: ClusterDoors) -> None:
    wanted = sorted(ids(doors.stream(ALONE, "ScanRatings")))
    for gateway_id in EACH_ON_TWO:
        assert sorted(ids(doors.stream(gateway_id, "ScanRatings"))) == wanted


@pytest.mark.parametrize("stopped", ["b", "c"])
@pytest.mark.parametrize("after", [1, 9])
def test_a_gateway_that_stops_under_a_scan(doors: ClusterDoors, stopped: str, after: int) -> None:
    messages = doors.stream("a", "ScanRatings")
    found = ids(next(messages) for _ in range(after))
    doors[stopped].stop()
    assert sorted(found + ids(messages)) == list(range(ROWS))


class Table:
    """Changes the ratings of some gateways, and knows what they should be."""

    def __init__(self, doors: ClusterDoors) -> None:
        self.counts: dict[int, int] = {}
        self._doors = doors
        self._version = 0

    def put(self, movie_ids: Any) -> None:
        rows = []
        for movie_id in movie_ids:
            self._version += 1
            self.counts[movie_id] = self._version
            rows.append(rating(movie_id, count=self._version))
        self._doors.put(rows)


def until(messages: Iterator[Any], one: Copy, table: Table) -> None:
    while one.phase != SUBSCRIBE_PHASE_CURRENT or one.counts != table.counts:
        one.take(next(messages))


def test_gateways_that_stop_and_start_under_a_subscription() -> None:
    choice = random.Random(3)
    with ClusterDoors(EACH_ON_TWO) as doors:
        table, one = Table(doors), Copy()
        table.put(range(2_000))
        messages = doors.stream("a", "SubscribeRatings", subscribe_options=options(**QUICK))
        for _ in range(4):
            for gateway_id in ("b", "c"):
                for _ in range(choice.randrange(6)):
                    one.take(next(messages))
                doors[gateway_id].stop()
                table.put(choice.sample(range(2_000), 200))
                until(messages, one, table)
                doors[gateway_id].start()
                doors.announce()
        assert one.resets == 1


def test_a_client_that_goes_from_gateway_to_gateway() -> None:
    choice = random.Random(4)
    with ClusterDoors(EACH_ON_TWO) as doors:
        table, one = Table(doors), Copy()
        table.put(range(2_000))
        for number in range(12):
            gateway_id = "abc"[number % 3]
            messages = doors.stream(gateway_id, "SubscribeRatings", subscribe_options=options(one.token, **QUICK))
            for _ in range(choice.randrange(1, 8)):
                one.take(next(messages))
                table.put(choice.sample(range(2_000), 20))
            if number % 2:
                doors[gateway_id].stop()
                with pytest.raises(grpc.RpcError):
                    until(messages, one, Table(doors))
                doors[gateway_id].start()
                doors.announce()
            messages.close()  # type: ignore[attr-defined]
        until(doors.stream("b", "SubscribeRatings", subscribe_options=options(one.token, **QUICK)), one, table)
        assert one.resets == 1
