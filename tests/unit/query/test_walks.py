"""Walks over pages and scans that go on elsewhere: whoever goes on has all that the walk has read."""

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import grpc
import pytest

from tablegate.gateway.contract.tokens import CLIENT_TOKEN_CHARS_MAX
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.errors import NotCaughtUp
from tests.kit.call.asker import Ratings, make_ratings
from tests.kit.call.subscribing import opened, token_of
from tests.kit.gateways_in_process.cluster import EACH_ON_TWO, GrpcCluster
from tests.kit.gateways_in_process.cluster_without_network import LocalCluster
from tests.kit.gateways_in_process.streams import ids
from tests.kit.table.filled import rating

OLD, NEW = range(20), range(20, 40)
WIDE = 3_000
CHANGELOG = "ratings-g1-changelog"
SOON = {"nanos": 1_000_000}
TURNS = Path(__file__).parent / "contracts" / "turns.proto"
FAR_S = 7_258_118_400  # a window that does not expire in the meantime


def two_replicas(partition_count: int = 3) -> tuple[Ratings, Ratings]:
    """Return a replica, and one that has only the first half of its rows."""
    ahead, behind = make_ratings(partition_count), make_ratings(partition_count)
    for replica in (ahead, behind):
        replica.table.put(rating(number) for number in OLD)
    ahead.table.put(rating(number) for number in NEW)
    return ahead, behind


def page(replica: Ratings, token: str, **more: Any) -> Any:
    return replica.ask("ListRatings", page_size=5, page_token=token, read_options={"max_wait": SOON}, **more)


def test_a_page_waits_for_what_the_pages_before_have_read() -> None:
    ahead, behind = two_replicas()
    first = page(ahead, "")
    with pytest.raises(NotCaughtUp, match="not applied"):
        page(behind, first.next_page_token)
    behind.table.put(rating(number) for number in NEW)
    found, token = [*first.ratings], first.next_page_token
    while token:
        answer = page(behind, token)
        found, token = [*found, *answer.ratings], answer.next_page_token
    assert [row.movie_id for row in found] == [*OLD, *NEW]


def test_what_one_page_has_read_counts_for_all_that_follow() -> None:
    """The second page comes from a replica that is further still; the third asks for that."""
    ahead, behind = two_replicas()
    first = page(behind, "")
    second = page(ahead, first.next_page_token)
    with pytest.raises(NotCaughtUp):
        page(behind, second.next_page_token)


def test_a_walk_in_one_store_never_waits() -> None:
    _, behind = two_replicas()
    token = page(behind, "").next_page_token
    assert page(behind, token).ratings


def test_a_scan_waits_for_what_it_has_read_before() -> None:
    ahead, behind = two_replicas()
    first = ahead.asker.stream("ScanRatings", most=1)[0]
    options = {"resume_token": first.progress.resume_token}
    with pytest.raises(NotCaughtUp, match="not applied"):
        behind.asker.stream("ScanRatings", scan_options=options, read_options={"max_wait": SOON})
    behind.table.put(rating(number) for number in NEW)
    rest = behind.asker.stream("ScanRatings", scan_options=options, read_options={"max_wait": SOON})
    assert sorted(ids([first, *rest])) == [*OLD, *NEW]


def test_a_scan_asks_for_nothing_of_partitions_that_are_done() -> None:
    ahead, behind = two_replicas()
    messages = ahead.asker.stream("ScanRatings")
    token = messages[-1].progress.resume_token
    assert not token_of(token).next_offsets
    assert not ids(behind.asker.stream("ScanRatings", scan_options={"resume_token": token}))


@pytest.fixture
def cluster() -> Iterator[GrpcCluster]:
    with GrpcCluster(EACH_ON_TWO) as cluster:
        cluster.put(rating(number) for number in OLD)
        yield cluster


def put_all_but(cluster: GrpcCluster, gateway_id: str) -> None:
    """Write new rows, which one gateway does not get."""
    for gateway in (cluster.whole, *cluster.gateways.values()):
        if gateway.gateway_id != gateway_id:
            gateway.put([rating(number) for number in NEW])


@pytest.mark.parametrize("asked", ["a", "b", "c"])
def test_a_page_comes_from_replicas_that_are_not_behind(cluster: GrpcCluster, asked: str) -> None:
    put_all_but(cluster, "b")
    found: list[int] = []
    token = cluster.ask("", "ListRatings", page_size=5).next_page_token
    while token:
        answer = cluster.ask(asked, "ListRatings", page_size=5, page_token=token, timeout_s=20)
        found, token = [*found, *(row.movie_id for row in answer.ratings)], answer.next_page_token
    assert found == list(range(5, 40))


def test_where_all_replicas_are_behind_the_page_is_refused(cluster: GrpcCluster) -> None:
    cluster.whole.put([rating(number) for number in NEW])
    token = cluster.ask("", "ListRatings", page_size=5).next_page_token
    with pytest.raises(grpc.RpcError) as raised:
        cluster.ask("a", "ListRatings", page_size=5, page_token=token, read_options={"max_wait": SOON})
    error: Any = raised.value
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "not applied" in error.details()


def test_pages_without_read_info_say_what_was_read_all_the_same() -> None:
    contract, placed = (
        {"contract": TURNS, "table": "turns", "service": "/turns.v1.TurnsService"},
        {"a": [0, 1], "b": [2, 3]},
    )
    with GrpcCluster(placed, partition_count=4, **contract) as cluster:
        turn: Any = cluster.catalogue.tables["turns"].row_class
        cluster.put(turn(gate=str(number), start={"seconds": FAR_S}, code="x") for number in range(40))
        for asked in "ab":
            token = token_of(cluster.ask(asked, "ListTurns", page_size=2).next_page_token)
            assert dict(enumerate(token.next_offsets)) == cluster.whole.table.next_offsets


def test_a_scan_goes_on_within_its_stream_where_nothing_is_missed() -> None:
    """The gateway that a scan reads from dies in the middle; the other that has the partition is behind."""

    async def talk() -> None:
        cluster = LocalCluster({0: [], 1: range(6), 2: range(6)})
        numbers = range(6_000)
        cluster.put(rating(number) for number in numbers[:3_000])
        cluster.whole.put(rating(number) for number in numbers[3_000:])
        first, second = cluster[1], cluster[2]
        found: list[int] = []
        async with aclosing(cluster.stream(0, "ScanRatings")) as messages:
            async for message in messages:
                found += ids([message])
                if first.is_down or second.is_down or not (first.calls or second.calls):
                    continue
                if not found or max(found) < 3_000:
                    serving, other = (first, second) if first.calls else (second, first)
                    # Only the gateway that is asked has the rows from now on.
                    for partition in range(6):
                        serving.follow(Partition(partition))
                    continue
                serving.kill()
                cluster.announce(dead=[serving.gateway_id])
                loop = asyncio.get_running_loop()
                loop.call_later(0.2, lambda other=other: [other.follow(Partition(each)) for each in range(6)])
        assert sorted(found) == list(numbers)

    asyncio.run(talk())


def wide(rows: int) -> Ratings:
    replica = make_ratings(WIDE)
    replica.table.put(rating(number) for number in range(rows))
    replica.asker.ends.offsets = {CHANGELOG: {int(each): at for each, at in replica.table.next_offsets.items()}}
    return replica


def test_tokens_of_many_partitions_are_short_and_ask_for_everything() -> None:
    ahead, behind = wide(40), wide(20)
    first = page(ahead, "")
    scan = ahead.asker.stream("ScanRatings", most=1)[0].progress
    tokens = first.next_page_token, scan.resume_token, first.read_info.consistency_token
    assert all(len(token) < CLIENT_TOKEN_CHARS_MAX for token in tokens)
    behind.asker.ends.offsets = ahead.asker.ends.offsets
    at_least = {"at_least": tokens[2], "max_wait": SOON}
    with pytest.raises(NotCaughtUp, match="has more"):
        page(behind, tokens[0])
    with pytest.raises(NotCaughtUp, match="has more"):
        behind.asker.stream("ScanRatings", scan_options={"resume_token": tokens[1]}, read_options={"max_wait": SOON})
    with pytest.raises(NotCaughtUp, match="has more"):
        behind.ask("ListRatings", read_options=at_least)
    assert [row.movie_id for row in page(ahead, tokens[0]).ratings] == list(range(5, 10))
    assert ahead.ask("ListRatings", read_options=at_least).ratings


def test_what_kafka_cannot_be_asked_for_is_refused() -> None:
    replica = wide(40)
    token = page(replica, "").next_page_token
    replica.asker.ends.offsets = None
    with pytest.raises(NotCaughtUp, match="Kafka does not answer"):
        page(replica, token)


def test_a_scan_ends_where_its_store_has_lost_what_was_there_when_it_began() -> None:
    """Also of a partition that it has not come to: its rows would be those of another time."""

    async def talk() -> None:
        ahead, behind = two_replicas(2)
        store, lost = ahead.table, Partition(1)
        async with opened(ahead.asker, "ScanRatings") as stream:
            assert ids([await stream.next()])
            store.next_offsets[lost] = behind.table.next_offsets[lost]
            store.move(lost)
            with pytest.raises(NotCaughtUp, match="lost what was read"):
                await stream.next()

    asyncio.run(talk())
