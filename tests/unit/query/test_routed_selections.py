"""Subscriptions to parts of a table, and to one whose rows expire, over gateways that have some partitions each."""

import asyncio
import random
from contextlib import aclosing
from operator import attrgetter
from typing import Any

import pytest

from gateway.contract.types import Partition
from gateway.query import scan, subscribe
from gateway.v1.query_pb2 import SUBSCRIBE_PHASE_CURRENT
from tests.support.local_cluster import LocalCluster
from tests.support.subscribing import TIMEOUT_S, Copy, options
from tests.support.tables import rating
from tests.unit.query.parcels import DEPOTS, NUMBERS, PARCELS, copy

VISITS = PARCELS.with_name("visits.proto")
QUICK: dict[str, Any] = {"progress_interval": {"nanos": 20_000_000}}
HELD = {0: [0], 1: [1, 2], 2: [2]}
NOW_MS = 1_790_000_000_000
WINDOW_US = 5_000_000


@pytest.fixture(autouse=True)
def quick(quick_routes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscribe, "MESSAGE_ROWS_MAX", 3)


async def until(stream: Any, one: Copy, wanted: dict[Any, int], order: str) -> None:
    """Take messages until the copy is current and as wanted."""

    def is_there() -> bool:
        rows = {key: getattr(row, order) for key, row in one.rows.items()}
        return one.phase == SUBSCRIBE_PHASE_CURRENT and rows == wanted

    while not is_there():
        one.take(await asyncio.wait_for(anext(stream), TIMEOUT_S))


PARTS: list[tuple[str, dict[str, Any], Any]] = [
    ("SubscribeParcels", {}, lambda _depot, _number, _weight: True),
    ("SubscribeParcels", {"depot": "ash"}, lambda depot, _number, _weight: depot == "ash"),
    ("SubscribeParcels", {"min_weight": 5}, lambda _depot, _number, weight: weight >= 5),
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("part", range(len(PARTS)))
def test_a_part_of_the_table_through_each_gateway(part: int, seed: int) -> None:
    method, fields, holds = PARTS[part]
    choice = random.Random(seed)

    async def talk() -> None:
        cluster = LocalCluster(
            HELD, path=PARCELS, table="parcels", service="/parcels.v1.ParcelsService", partition_count=3
        )
        rows: dict[tuple[str, int], tuple[int, int]] = {}
        moves = 0

        def anything() -> None:
            nonlocal moves
            depot, number = choice.choice(DEPOTS), choice.choice(NUMBERS)
            row: Any = cluster.whole.table.row_class(depot=depot, number=number)
            if choice.random() < 0.25:
                cluster.delete([row])
                rows.pop((depot, number), None)
            else:
                moves += 1
                row.weight, row.moves = choice.randrange(10), moves
                cluster.put([row])
                rows[depot, number] = (row.weight, moves)

        def wanted() -> dict[Any, int]:
            return {key: moves for key, (weight, moves) in rows.items() if holds(*key, weight)}

        for _ in range(40):
            anything()
        one = copy()
        for _ in range(4):
            asked = options(one.token, **QUICK)
            stream = cluster.stream(choice.randrange(3), method, subscribe_options=asked, **fields)
            async with aclosing(stream):
                for _ in range(5):
                    anything()
                    one.take(await anext(stream))
                await until(stream, one, wanted(), "moves")
            anything()
        assert one.resets == 1

    asyncio.run(talk())


def test_certain_keys_beside_the_whole_table_of_the_same_gateway() -> None:
    """What others subscribe to in its partitions is not given."""

    async def talk() -> None:
        cluster = LocalCluster({0: [0, 1, 2, 3, 4, 5], 1: [1, 3], 2: [2, 3]})
        cluster[0].drop(Partition(3))
        cluster.announce()
        cluster.put(rating(number, count=1) for number in range(60))
        keys = [{"movie_id": number} for number in range(0, 60, 7)]
        some, each = Copy(), Copy()
        asked = options(**QUICK)
        async with (
            aclosing(cluster.stream(2, "SubscribeRatings", keys=keys, subscribe_options=asked)) as one,
            aclosing(cluster.stream(0, "SubscribeRatings", subscribe_options=asked)) as other,
        ):
            for count in range(1, 5):
                await until(one, some, dict.fromkeys(range(0, 60, 7), count), "rating_count")
                await until(other, each, dict.fromkeys(range(60), count), "rating_count")
                cluster.put(rating(number, count=count + 1) for number in range(60))
        assert (some.given, some.resets) == (9 * 4, 1)

    asyncio.run(talk())


class Windows:
    """Visits of pages on gateways that remove what is expired at their own times. Each window starts 5 s after one."""

    def __init__(self) -> None:
        self.cluster = LocalCluster(
            {0: [0], 1: [1], 2: []},
            path=VISITS,
            table="visits",
            service="/visits.v1.VisitsService",
            partition_count=2,
            now_ms=lambda: NOW_MS,
        )
        self.counts: dict[Any, int] = {}
        self.version = 0

    def row(self, page: str, window: int) -> Any:
        row: Any = self.cluster.whole.table.row_class(page=page, visits=self.version)
        row.window_start.FromMicroseconds(NOW_MS * 1_000 + window * WINDOW_US)
        return row

    def put(self, *windows: int) -> None:
        for page in "abcdefgh":
            for window in windows:
                self.version += 1
                self.counts[page, window] = self.version
                self.cluster.put([self.row(page, window)])

    def expire(self, number: int, window: int) -> None:
        """Remove a window from one gateway."""
        gateway, whole = self.cluster[number], self.cluster.whole
        removed = 0
        for page in "abcdefgh":
            key = whole.key_of(self.row(page, window))
            partition = whole.table.partition_of(key, 2)
            if partition in gateway.phases:
                removed += gateway.store.expire(gateway.store_id, partition, [key], time_ms=NOW_MS)
                self.counts.pop((page, window), None)
        assert removed
        gateway.bell.ring()

    def open(self, number: int, one: Copy) -> Any:
        return self.cluster.stream(number, "SubscribeVisits", subscribe_options=options(one.token, **QUICK))


def window_copy() -> Copy:
    def key(row: Any) -> tuple[str, int]:
        return row.page, (row.window_start.ToMicroseconds() - NOW_MS * 1_000) // WINDOW_US

    return Copy(key, attrgetter("visits"))


def test_windows_that_each_gateway_removes_at_its_own_time() -> None:
    async def talk() -> None:
        windows = Windows()
        windows.put(*range(4))
        one = window_copy()
        async with aclosing(windows.open(0, one)) as stream:
            await until(stream, one, windows.counts, "visits")
            windows.expire(0, 1)
            await until(stream, one, windows.counts, "visits")
            windows.expire(1, 1)
            windows.expire(1, 2)
            windows.put(9)
            await until(stream, one, windows.counts, "visits")
        assert one.resets == 1
        async with aclosing(windows.open(0, one)) as stream:  # of two stores: it begins anew
            one.take(await anext(stream))
            await until(stream, one, windows.counts, "visits")
        assert one.resets == 2

    asyncio.run(talk())


@pytest.mark.parametrize("asked", [1, 2])
def test_windows_go_on_where_the_gateway_comes_back_and_begin_anew_elsewhere(asked: int) -> None:
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
            await until(stream, one, windows.counts, "visits")
            cluster[3 - asked].follow(Partition(1))
            cluster.announce()
            for window in range(3):
                cluster[asked].kill()
                cluster[asked].start()
                windows.put(5)
                windows.expire(asked, window)
                await until(stream, one, windows.counts, "visits")
            assert one.resets == 1
            for window in range(3):
                windows.expire(3 - asked, window)
            cluster[asked].kill()
            windows.put(6)
            await until(stream, one, windows.counts, "visits")
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
                await until(stream, one, windows.counts, "visits")
                windows.expire(1, number) if number else windows.put(number)
                await until(stream, one, windows.counts, "visits")
        assert one.resets == 1

    asyncio.run(talk())


@pytest.mark.parametrize("number", [0, 1])
def test_a_token_of_two_stores_begins_anew_in_one_of_them(number: int) -> None:
    async def talk() -> None:
        windows = Windows()
        cluster = windows.cluster
        windows.put(*range(4))
        one = window_copy()
        async with aclosing(windows.open(0, one)) as stream:
            await until(stream, one, windows.counts, "visits")
        cluster[number].follow(Partition(1 - number))
        cluster[1 - number].drop(Partition(1 - number))
        cluster.announce()
        async with aclosing(windows.open(2, one)) as stream:
            one.take(await anext(stream))
            await until(stream, one, windows.counts, "visits")
        assert one.resets == 2

    asyncio.run(talk())


@pytest.mark.parametrize("after", range(1, 6))
def test_a_scan_that_says_no_progress_goes_on_behind_its_last_row(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "MESSAGE_ROWS_MAX", 7)
    monkeypatch.setattr(scan, "FIRST_READ_ROWS", 7)

    async def talk() -> None:
        windows = Windows()
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
