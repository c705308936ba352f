"""Calls that no gateway answers for a moment, as not all switch to a new generation at once."""

import asyncio
import itertools
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import grpc
import pytest

from tablegate.gateway.cluster.directory import SWITCH_S, Directory
from tablegate.gateway.cluster.peers import GrpcForwarder
from tablegate.gateway.cluster.scatter import Router
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query import forwarding as patience
from tablegate.gateway.query.call import Call
from tablegate.gateway.query.errors import PartitionUnavailable
from tablegate.gateway.query.forwarding import NotServedHere, answer_by_others
from tablegate.gateway.query.serving import Scope, ServedGeneration, TableAccess, wall_clock_ms
from tablegate.gateway.stores.base import Phase
from tablegate.gateway.stores.notifier import Notifier
from tablegate.v1.status_pb2 import GetStatusResponse
from tests.kit.gateways_in_process.answers import ROWS, failure
from tests.kit.gateways_in_process.cluster import EACH_ON_ONE, ClusterGateway, GrpcCluster, movie_of
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import SIGNER, LocalCall, catalogue_of, rating

PARTITIONS = 12
ASKED: dict[str, dict[str, Any]] = {
    "ListRatings": {"page_size": 1_000},
    "BatchGetRatings": {"keys": [{"movie_id": number} for number in range(ROWS)]},
    "GetRating": {},
}


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[GrpcCluster]:
    """Each partition is on one gateway; a test may say for how long gateways are taken to switch."""
    with GrpcCluster(EACH_ON_ONE, switch_s=getattr(request, "param", SWITCH_S)) as cluster:
        cluster.put(rating(number, count=number) for number in range(ROWS))
        yield cluster


def switch(gateway: ClusterGateway, place: int) -> None:
    """Let a gateway answer from a generation of twice as many partitions, of which it has a third."""
    table = gateway.table
    table.generation, table.partition_count = 2, PARTITIONS
    gateway.do(lambda: table.publish(phase=Phase.RESTORING))
    mine = range(place, PARTITIONS, 3)
    # Its partitions are live with their rows only: calls go on beside this, and a live partition without rows says
    # that there are none.
    gateway.hold(mine, Phase.RESTORING)
    gateway.put(rating(number, count=1_000 + number) for number in range(ROWS))
    gateway.hold(mine)


def unanswered_by_both(cluster: GrpcCluster, partition: int) -> int:
    """Return a movie of a partition of the old generation, whose new partition no gateway of the old one has either.

    Who has switched asks others for the new partition. Where the old generation has one of that number, it answers.
    """
    new = replace(cluster.whole.table, partition_count=PARTITIONS)
    old_count = cluster.whole.table.partition_count
    movies = (movie_of(cluster, partition, first=first) for first in itertools.count())
    return next(movie for movie in movies if new.partition_of(rating(movie)) >= old_count)


@pytest.mark.parametrize("method", ASKED)
@pytest.mark.parametrize(("is_first", "takes_s"), [(True, 0), (False, 2 * patience.HEARD_S)], ids=["first", "last"])
def test_a_call_waits_for_the_gateways_to_switch(
    method: str, is_first: bool, takes_s: float, cluster: GrpcCluster
) -> None:
    """The gateway that is asked is the first to switch, or one of the last."""
    order = ["a", "b", "c"] if is_first else ["c", "b", "a"]
    switch(cluster[order[0]], "abc".index(order[0]))
    cluster.announce()
    asked, is_asked = dict(ASKED[method]), threading.Event()
    if method == "GetRating":
        asked["movie_id"] = unanswered_by_both(cluster, 2) if is_first else movie_of(cluster, 4)

    def go_on() -> None:
        is_asked.wait()
        time.sleep(takes_s)
        for name in order[1:]:
            switch(cluster[name], "abc".index(name))
            cluster.announce()

    switching = threading.Thread(target=go_on)
    switching.start()
    cluster["a"].on_call = is_asked.set
    try:
        answer = cluster.ask("a", method, **asked)
    finally:
        is_asked.set()
        switching.join()
    match method:
        case "GetRating":
            counts = [answer.rating.rating_count]
        case "ListRatings":
            counts = [row.rating_count for row in answer.ratings]
        case _:
            counts = [result.found.rating_count for result in answer.results]
    wanted = [asked["movie_id"]] if method == "GetRating" else range(ROWS)
    assert sorted(counts) == [1_000 + number for number in wanted]


def test_a_call_that_nobody_answers_is_told_so_while_nobody_switches(cluster: GrpcCluster) -> None:
    cluster["c"].hold([])
    calls = 0

    def called() -> None:
        nonlocal calls
        calls += 1

    cluster["c"].on_call = called
    with pytest.raises(grpc.RpcError) as raised:
        cluster.ask("a", "GetRating", movie_id=movie_of(cluster, 5))
    assert failure(raised.value)[:2] == (grpc.StatusCode.UNAVAILABLE, "PARTITION_UNAVAILABLE")
    assert 1 < calls <= 2 + patience.HEARD_S / patience.RETRY_S


@pytest.mark.parametrize("cluster", [0.0], indirect=True)
def test_gateways_that_stay_apart_are_not_waited_for(cluster: GrpcCluster) -> None:
    switch(cluster["c"], 2)
    cluster.announce()
    cluster["c"].hold([])
    cluster.calls()
    with pytest.raises(grpc.RpcError):
        cluster.ask("a", "GetRating", movie_id=movie_of(cluster, 5))
    assert 1 < len(cluster.calls()) <= 2 + patience.HEARD_S / patience.RETRY_S


class _NobodyHasIt:
    """A read of a partition that no gateway has; `times`: how often this gateway was asked for it."""

    requirement = None

    def __init__(self, access: TableAccess, call: Call) -> None:
        self.access = access
        self.call = call
        self.scope = None if call.forwarded is None else Scope(0, None, "")
        self.times = 0

    def local(self) -> bytes:
        self.times += 1
        raise PartitionUnavailable("ratings", 0, "nobody has it")

    def partitions(self, _: ServedGeneration) -> tuple[Partition]:
        return (Partition(0),)

    async def remote(self, reason: NotServedHere) -> bytes:
        raise reason

    async def answer(self) -> bytes:
        try:
            return self.local()
        except PartitionUnavailable as reason:
            answer = answer_by_others(self, reason)
        assert not isinstance(answer, bytes)
        return await answer


def asked_times(call: LocalCall, *, is_awaited: bool = True) -> int:
    """Let a gateway that knows nobody be asked for a call; return how often it was."""
    known = Directory()
    known.update(GetStatusResponse(gateway_id="a").SerializeToString())
    store, table = MemoryStore(), catalogue_of().tables["ratings"]
    router = Router(known, GrpcForwarder(lambda _: ""))
    access = TableAccess(table, store, SIGNER, Notifier(), wall_clock_ms, router=router)
    read = _NobodyHasIt(access, call)

    async def ask() -> None:
        if is_awaited:
            with pytest.raises(PartitionUnavailable):
                await read.answer()
            return
        with pytest.raises(PartitionUnavailable) as raised:
            read.local()
        answer = answer_by_others(read, raised.value)
        assert not isinstance(answer, bytes)
        answer.close()

    asyncio.run(ask())
    return read.times


def test_who_has_time_is_asked_again_and_who_has_none_is_told_at_once() -> None:
    assert asked_times(LocalCall(left_s=None)) > 1
    assert asked_times(LocalCall(left_s=patience.RETRY_S / 2)) == 1
    assert asked_times(LocalCall(left_s=patience.RETRY_S * 3)) <= 2, "half of its time is its client's"
    assert asked_times(LocalCall(forwarded="by another gateway")) == 1
    assert asked_times(LocalCall(), is_awaited=False) == 1
