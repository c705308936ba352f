"""What queries measure: how old rows were when they were read, waits for freshness, how late subscribers hear."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.call import StreamMethod, UnaryMethod
from tablegate.gateway.query.errors import NotCaughtUp
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.stores.changes import StoreChanges
from tablegate.gateway.stores.notifier import Notifier
from tablegate.gateway.telemetry.measures import AGE_BOUNDS_S, Histogram, Measures
from tests.kit.gateways_in_process.cluster import GrpcCluster
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import SIGNER, FilledTable, LocalCall, catalogue_of, rating, ratings_table

SERVICE = "/examples.ratings.v1.RatingsService"
AS_OF_MS = 1_700_000_000_000
LATER_S = 3.0  # after that


class Measured:
    """A table in a store, and what its queries measure, by a clock that stands."""

    def __init__(self) -> None:
        self.measures = Measures(lambda: AS_OF_MS / 1_000 + LATER_S)
        self.notifier = Notifier()
        store = MemoryStore()
        self.table: FilledTable = ratings_table(store)
        self._methods = query_methods(catalogue_of(), store, SIGNER, self.notifier, measures=self.measures)

    def move(self, as_of_ms: int) -> None:
        for partition in range(self.table.partition_count):
            self.table.move(Partition(partition), as_of_ms=as_of_ms)

    async def ask(self, method: str, **fields: Any) -> None:
        found = self._methods[f"{SERVICE}/{method}"]
        assert isinstance(found, UnaryMethod)
        answer = found.handler(self._request(method, **fields), LocalCall())
        if not isinstance(answer, bytes):
            await answer

    def subscribe(self) -> AsyncIterator[Any]:
        found = self._methods[f"{SERVICE}/SubscribeRatings"]
        assert isinstance(found, StreamMethod)
        return found.handler(self._request("SubscribeRatings"), LocalCall(left_s=None))

    def _request(self, method: str, **fields: Any) -> bytes:
        data: bytes = catalogue_of().queries[f"{SERVICE}/{method}"].request_class(**fields).SerializeToString()
        return data


def bucket(histogram: Histogram, seconds: float) -> int:
    """Return how many are in the bucket of this value."""
    alone = Histogram(AGE_BOUNDS_S)
    alone.add(seconds)
    return histogram.counts[alone.counts.index(1)]


def test_reads_are_measured_by_the_age_of_their_rows() -> None:
    async def run() -> None:
        measured = Measured()
        measured.table.put([rating(362)])
        measured.move(AS_OF_MS)
        await measured.ask("GetRating", movie_id=362)
        await measured.ask("BatchGetRatings", keys=[{"movie_id": 362}, {"movie_id": 1}])
        await measured.ask("ListRatings")
        staleness = measured.measures.read_staleness[("ratings",)]
        assert staleness.sum == pytest.approx(3 * LATER_S)
        assert bucket(staleness, LATER_S) == 3 == sum(staleness.counts)

    asyncio.run(run())


@pytest.mark.parametrize(("as_of_ms", "count"), [(0, 0), (AS_OF_MS + 60_000, 1)])
def test_an_age_that_is_unknown_or_to_come_spoils_no_sum(as_of_ms: int, count: int) -> None:
    async def run() -> None:
        measured = Measured()
        measured.table.put([rating(362)])
        measured.move(as_of_ms)
        await measured.ask("GetRating", movie_id=362)
        staleness = measured.measures.read_staleness[("ratings",)]
        assert (sum(staleness.counts), staleness.sum) == (count, 0.0)

    asyncio.run(run())


def test_waits_for_freshness_are_measured_those_in_vain_too() -> None:
    async def run() -> None:
        measured = Measured()
        waits = measured.measures.freshness_waits[("ratings",)]
        await measured.ask("ListRatings")
        assert sum(waits.counts) == 0
        source = {"topics": [{"topic": "ratings", "offsets": {0: 7}}]}
        options = {"at_least_source": source, "max_wait": {"nanos": 30_000_000}}
        with pytest.raises(NotCaughtUp):
            await measured.ask("ListRatings", read_options=options)
        assert sum(waits.counts) == 1
        assert waits.sum >= 0.03

    asyncio.run(run())


def test_subscribers_are_measured_by_how_late_they_hear() -> None:
    async def run() -> None:
        measured = Measured()
        measured.table.put([rating(1)])
        deliveries = measured.measures.deliveries[("ratings",)]
        stream = measured.subscribe()
        for _ in range(2):  # begun, and all rows
            await anext(stream)
        later = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        assert sum(deliveries.counts) == 0
        measured.table.put([rating(2)])
        measured.notifier.notify(StoreChanges.of_everything())
        await later
        assert sum(deliveries.counts) == 1
        await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(run())


def test_forwarded_calls_are_measured_by_gateway_and_status() -> None:
    with GrpcCluster({"a": [0, 1, 2], "b": [3, 4, 5]}) as cluster:
        cluster.put(rating(number) for number in range(20))
        for number in range(20):
            cluster.ask("a", "GetRating", movie_id=number)
        forwards = cluster["a"].measures.forwards
        assert set(forwards) == {("b", "OK")}
        there = sum(cluster.whole.table.partition_of(rating(number)) in (3, 4, 5) for number in range(20))
        assert sum(forwards["b", "OK"].counts) == there
        # Who reads the rows measures how old they are.
        read = [cluster[name].measures.read_staleness[("ratings",)] for name in ("a", "b")]
        assert [sum(each.counts) for each in read] == [20 - there, there]
