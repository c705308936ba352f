"""A table of a topic that others write: a key is where its producer has put it, or nobody knows where."""

import random
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import grpc
import pytest

from tablegate.gateway.contract.keys import murmur2_partition
from tablegate.gateway.contract.types import Partition
from tablegate.v1 import changelog_pb2
from tablegate.v1.changelog_pb2 import ForeignTopic
from tests.kit.gateways_in_process.cluster import ALONE, EACH_ON_ONE, EACH_ON_TWO, GrpcCluster, Placement
from tests.kit.gateways_in_process.metadata import at
from tests.kit.table.accounts import ACCOUNTS, BANKS, SERVICE, account
from tests.kit.table.filled import rating

pytestmark = pytest.mark.tools

FOREIGN = ForeignTopic(key_codec=changelog_pb2.KEY_CODEC_INT64, value_codec=changelog_pb2.VALUE_CODEC_JSON)
GATEWAYS = ["a", "b", "c", ALONE]


@contextmanager
def _cluster(
    placement: Placement,
    partitioner: Any,
    *,
    place: Callable[[bytes], Partition] | None = None,
    rows: Iterable[Any] | None = None,
    **contract: Any,
) -> Iterator[GrpcCluster]:
    with GrpcCluster(placement, **contract) as running:
        topic = ForeignTopic(record_partitioner=partitioner)
        topic.MergeFrom(FOREIGN)
        running.be_foreign(topic, place or _place)
        running.put(rows or [rating(number, count=number + 1) for number in range(60)])
        yield running


def _place(key: bytes) -> Partition:
    """Return where a Java producer puts a key of 8 bytes, which are not ours."""
    return murmur2_partition((int.from_bytes(key, "big") - 2**63).to_bytes(8, "big", signed=True), 6)


@pytest.fixture(params=[EACH_ON_ONE, EACH_ON_TWO], ids=["one replica", "two replicas"])
def cluster(request: Any) -> Iterator[GrpcCluster]:
    with _cluster(request.param, changelog_pb2.RECORD_PARTITIONER_UNKNOWN) as running:
        yield running


@pytest.mark.parametrize("gateway", GATEWAYS)
def test_a_key_is_asked_for_where_its_producer_has_put_it(gateway: str) -> None:
    with _cluster(EACH_ON_ONE, changelog_pb2.RECORD_PARTITIONER_MURMUR2) as cluster:
        request = cluster.request("BatchGetRatings")
        for number in range(60):
            answer, trailer = cluster.ask_whole(gateway, "GetRating", movie_id=number)
            assert answer.rating.rating_count == number + 1
            assert trailer["tablegate-partition"] == str(cluster.whole.table.partition_of(rating(number)))
            request.keys.add(movie_id=number)
        found = cluster.ask(gateway, "BatchGetRatings", request).results
        assert [one.found.rating_count for one in found] == [*range(1, 61)]


@pytest.mark.parametrize("gateway", GATEWAYS)
def test_a_get_finds_its_row_wherever_it_is(cluster: GrpcCluster, gateway: str) -> None:
    for number in range(60):
        answer = cluster.ask(gateway, "GetRating", movie_id=number)
        assert answer.rating.rating_count == number + 1
        assert answer.read_info.consistency_token
        again = {"at_least": answer.read_info.consistency_token}
        assert cluster.ask(gateway, "GetRating", movie_id=number, read_options=again).rating == answer.rating
    with pytest.raises(grpc.RpcError) as refused:
        cluster.ask(gateway, "GetRating", movie_id=61)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("gateway", GATEWAYS)
def test_a_batch_get_finds_its_rows_wherever_they_are(cluster: GrpcCluster, gateway: str) -> None:
    request = cluster.request("BatchGetRatings")
    for number in (7, 61, 3, 3, 59, 62):
        request.keys.add(movie_id=number)
    results = cluster.ask(gateway, "BatchGetRatings", request).results
    assert [one.WhichOneof("result") for one in results] == ["found", "missing", "found", "found", "found", "missing"]
    assert [one.found.movie_id or one.missing.movie_id for one in results] == [7, 61, 3, 3, 59, 62]


def test_a_row_that_is_not_found_was_looked_for_everywhere(cluster: GrpcCluster) -> None:
    for gateway in cluster.gateways.values():
        gateway.hold([partition for partition in gateway.held if partition != 5])
    cluster.announce()
    for gateway_id in cluster.gateways:
        with pytest.raises(grpc.RpcError) as refused:
            cluster.ask(gateway_id, "GetRating", movie_id=61)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


def test_explain_tells_what_is_not_promised(cluster: GrpcCluster) -> None:
    with at(cluster, "a") as asked:
        answer = asked.explain("GetRating", {"movieId": "7"})
        stream = asked.explain("SubscribeRatings")
    assert answer.reads == "6 of 6 partitions: all, as nobody knows how its producers choose partitions"
    assert list(answer.not_promised) == [
        "if producers have written a key to several partitions, any of its rows may be answered",
        "rows that were written in one transaction may be seen one by one",
    ]
    assert "a stream that resumes begins with all rows again" in stream.not_promised[1]


def test_a_subscription_of_a_key_looks_into_each_partition(cluster: GrpcCluster) -> None:
    stream = cluster.stream("a", "SubscribeRatings", keys=[{"movie_id": 7}, {"movie_id": 8}])
    found: set[int] = set()
    for message in stream:
        found |= {change.upsert.movie_id for change in message.changes}
        if found == {7, 8}:
            break
    assert found == {7, 8}


def test_a_manifest_that_the_contract_cannot_read_is_told(cluster: GrpcCluster) -> None:
    with cluster.whole.table.store.snapshot() as snapshot:
        state = snapshot.table("ratings")
    assert state is not None
    state.manifest.foreign.key_codec = changelog_pb2.KEY_CODEC_UTF8
    state.manifest.foreign.record_partitioner = changelog_pb2.RECORD_PARTITIONER_MURMUR2
    cluster.whole.do(partial(cluster.whole.table.store.put_table, "ratings", state))
    with pytest.raises(grpc.RpcError) as refused:
        cluster.ask(ALONE, "GetRating", movie_id=1)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "keys of codec utf8 are one column of type string" in str(refused.value.details())


@pytest.mark.parametrize("gateway", GATEWAYS)
def test_an_index_of_what_may_be_anywhere_is_asked_everywhere(gateway: str) -> None:
    """Also where its columns would choose the partition."""
    choice = random.Random(4)
    found = (account(choice) for _ in range(60))
    rows = {(row.bank, row.account_id): row for row in found}.values()
    with _cluster(
        EACH_ON_ONE,
        changelog_pb2.RECORD_PARTITIONER_UNKNOWN,
        place=lambda key: Partition(zlib.crc32(key) % 6),
        rows=rows,
        contract=ACCOUNTS,
        table="accounts",
        service=SERVICE,
    ) as cluster:
        for row in rows:
            assert cluster.ask(gateway, "GetAccountOfBank", bank=row.bank, number=row.number).account == row
        for bank in BANKS:
            page = cluster.ask(gateway, "ListAccountsOfBank", bank=bank, page_size=99)
            numbers = [row.number for row in page.accounts]
            assert sorted(numbers) == sorted(row.number for row in rows if row.bank == bank)
