"""Get, BatchGet and Range of a table whose partitions are spread over gateways: each answers as if it had them all."""

import random
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2

from tablegate.gateway.cluster.forward_token import TOKEN_AGE_MAX_MS, ForwardToken, ForwardTokenSigner
from tablegate.gateway.contract.tokens import TokenSigner
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query import forwarding as patience
from tablegate.gateway.query.limits import DEFAULT_LIMITS, QueryLimits
from tablegate.gateway.query.serving import wall_clock_ms
from tablegate.gateway.stores.base import Phase
from tests.kit.call.asker import SHOP
from tests.kit.gateways_in_process.answers import MARK, ROWS, failure, opened, read, refused, same
from tests.kit.gateways_in_process.cluster import ALONE, EACH_ON_ONE, EACH_ON_TWO, GrpcCluster, movie_of
from tests.kit.table.filled import SIGNER, rating

pytestmark = pytest.mark.tools


@pytest.fixture
def cluster() -> Iterator[GrpcCluster]:
    with GrpcCluster(EACH_ON_TWO) as cluster:
        cluster.put(rating(number, count=number) for number in range(ROWS))
        yield cluster


@pytest.fixture
def lone(request: pytest.FixtureRequest) -> Iterator[GrpcCluster]:
    """Each partition is on one gateway; a test may say with which limits."""
    with GrpcCluster(EACH_ON_ONE, limits=getattr(request, "param", DEFAULT_LIMITS)) as cluster:
        cluster.put(rating(number, count=number) for number in range(ROWS))
        yield cluster


def test_a_get_is_the_same_at_each_gateway(cluster: GrpcCluster) -> None:
    for number in range(0, ROWS, 7):
        for gateway_id in "abc":
            same(
                cluster.ask(gateway_id, "GetRating", movie_id=number), cluster.ask(ALONE, "GetRating", movie_id=number)
            )


def test_a_missing_row_is_told_by_who_has_its_partition(cluster: GrpcCluster) -> None:
    asked = range(ROWS, ROWS + 20)
    for number in asked:
        answers = [refused(cluster, gateway_id, "GetRating", movie_id=number) for gateway_id in ("a", "b", "c", ALONE)]
        assert answers[0][:2] == (grpc.StatusCode.NOT_FOUND, "ROW_NOT_FOUND")
        assert all(answer == answers[0] for answer in answers)
    assert cluster.calls()


def test_the_trailer_says_who_answered_and_whose_it_is(cluster: GrpcCluster) -> None:
    cluster.ask_nobody_twice()
    for partition in range(6):
        owner, standby = (
            peer.gateway_id for peer in cluster["a"].router.directory.replicas("ratings", Partition(partition))
        )
        for gateway_id in "abc":
            _, trailer = cluster.ask_whole(gateway_id, "GetRating", movie_id=movie_of(cluster, partition))
            by = gateway_id if gateway_id in (owner, standby) else owner
            assert trailer == {
                "tablegate-partition": str(partition),
                "tablegate-role": "owner" if by == owner else "standby",
                "tablegate-gateway": by,
                "tablegate-owner": owner,
            }
    _, trailer = cluster.ask_whole(ALONE, "GetRating", movie_id=movie_of(cluster, 3))
    assert trailer == {"tablegate-partition": "3", "tablegate-role": "owner"}


def test_the_trailer_of_an_error_is_that_of_who_said_it(lone: GrpcCluster) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        lone.ask("a", "GetRating", movie_id=movie_of(lone, 5, first=ROWS))
    error: Any = raised.value
    assert dict(error.trailing_metadata())["tablegate-gateway"] == "c"


def test_what_is_here_is_not_asked_elsewhere(cluster: GrpcCluster) -> None:
    for partition in EACH_ON_TWO["a"]:
        cluster.ask("a", "GetRating", movie_id=movie_of(cluster, partition))
    here = [number for number in range(ROWS) if cluster.whole.table.partition_of(rating(number)) < 4]
    cluster.ask("a", "BatchGetRatings", keys=[{"movie_id": number} for number in here])
    assert cluster.calls() == []


def test_a_batch_is_the_same_at_each_gateway(cluster: GrpcCluster) -> None:
    cluster.ask_nobody_twice()
    choice = random.Random(5)
    for count in (0, 1, 2, 10, 100, 500):
        keys = [{"movie_id": choice.randrange(-20, ROWS + 20)} for _ in range(count)]
        right = cluster.ask(ALONE, "BatchGetRatings", keys=keys)
        for gateway_id in "abc":
            answer = cluster.ask(gateway_id, "BatchGetRatings", keys=keys)
            assert answer.results == right.results
            assert len(cluster.calls()) <= 1
            if count:
                assert read(answer.read_info) == read(right.read_info)


def test_the_trailer_of_a_batch_names_who_gave_their_parts(lone: GrpcCluster) -> None:
    keys = [{"movie_id": movie_of(lone, partition)} for partition in (1, 3, 5)]
    _, trailer = lone.ask_whole("b", "BatchGetRatings", keys=keys)
    assert trailer == {"tablegate-partition": "several", "tablegate-gateway": "a,b,c"}


def test_many_keys_are_one_call_to_each_other_gateway(lone: GrpcCluster) -> None:
    numbers = random.Random(3).sample(range(-100, ROWS + 100), 500)
    keys = [{"movie_id": number} for number in numbers]
    right = lone.ask(ALONE, "BatchGetRatings", keys=keys)
    for gateway_id in "abc":
        assert lone.ask(gateway_id, "BatchGetRatings", keys=keys).results == right.results
        assert sorted(lone.calls()) == sorted(set("abc") - {gateway_id})


def test_keys_that_are_values_come_back_as_they_were() -> None:
    with GrpcCluster(EACH_ON_ONE, contract=SHOP, table="tags", service="/shop.v1.ShopService") as cluster:
        tag = cluster.whole.table.table.row_class
        cluster.put(tag(name=f"tag {number}", uses=number) for number in range(0, 100, 2))
        names = [f"tag {number}" for number in random.Random(3).sample(range(100), 100)]
        assert cluster.ask("b", "BatchGetTags", names=names) == cluster.ask(ALONE, "BatchGetTags", names=names)
        assert sorted(cluster.calls()) == ["a", "c"]


def test_keys_that_are_messages_come_back_as_they_were() -> None:
    with GrpcCluster(EACH_ON_ONE, contract=SHOP, table="days", service="/shop.v1.ShopService") as cluster:
        day = cluster.whole.table.table.row_class
        starts = [{"seconds": seconds} for seconds in range(-50, 50)]
        cluster.put(day(start=start) for start in starts[::3])
        assert cluster.ask("b", "BatchGetDays", starts=starts) == cluster.ask(ALONE, "BatchGetDays", starts=starts)


def test_a_range_over_one_partition_is_the_same_at_each_gateway() -> None:
    with GrpcCluster(EACH_ON_TWO, contract=SHOP, table="orders", service="/shop.v1.ShopService") as cluster:
        order = cluster.whole.table.table.row_class
        cluster.put(order(customer=f"c{number % 9}", code=f"{number:03}") for number in range(90))
        for customer in range(9):
            for start in "abc":
                codes: list[str] = []
                token = ""
                for gateway_id in "abcabc":
                    gateway = start if not codes else gateway_id
                    page = cluster.ask(gateway, "ListOrders", customer=f"c{customer}", page_size=4, page_token=token)
                    codes += [row.code for row in page.orders]
                    token = page.next_page_token
                    if not token:
                        break
                assert codes == [f"{number:03}" for number in range(customer, 90, 9)]


@pytest.mark.parametrize("gone", ["b", "c"])
def test_a_gateway_that_ends_is_not_noticed(gone: str, cluster: GrpcCluster) -> None:
    keys = [{"movie_id": number} for number in range(ROWS)]
    for number in range(120):
        if number == 60:
            cluster[gone].stop()
        assert cluster.ask("a", "GetRating", movie_id=number).rating.rating_count == number
        results = cluster.ask("a", "BatchGetRatings", keys=keys).results
        assert [result.found.rating_count for result in results] == list(range(ROWS))
        page = cluster.ask("a", "ListRatings", page_size=1_000)
        assert [row.movie_id for row in page.ratings] == list(range(ROWS))


def test_a_gateway_that_hangs_is_not_waited_for(cluster: GrpcCluster) -> None:
    cluster["b"].hangs = True
    for number in range(60):
        assert cluster.ask("a", "GetRating", movie_id=number).rating.rating_count == number
    answer = cluster.ask("a", "BatchGetRatings", keys=[{"movie_id": number} for number in range(ROWS)])
    assert [result.found.rating_count for result in answer.results] == list(range(ROWS))
    assert [row.movie_id for row in cluster.ask("a", "ListRatings", page_size=1_000).ratings] == list(range(ROWS))
    assert "b" in cluster.calls()


def test_without_a_replica_a_partition_is_unavailable_and_never_empty(lone: GrpcCluster) -> None:
    lone["c"].stop()
    gone = movie_of(lone, 5)
    for asked in (
        {"method": "GetRating", "movie_id": gone},
        {"method": "BatchGetRatings", "keys": [{"movie_id": gone}, {"movie_id": movie_of(lone, 0)}]},
        {"method": "ListRatings"},
    ):
        code, reason, details = refused(lone, "a", **asked)
        assert (code, reason) == (grpc.StatusCode.UNAVAILABLE, "PARTITION_UNAVAILABLE")
        assert any(detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR) for detail in details)
    lone.announce(dead={"c"})
    assert refused(lone, "a", "GetRating", movie_id=gone)[1] == "PARTITION_UNAVAILABLE"
    assert lone.ask("a", "GetRating", movie_id=movie_of(lone, 3)).rating.rating_count == movie_of(lone, 3)


def test_a_forwarded_call_is_never_forwarded(cluster: GrpcCluster) -> None:
    """Two gateways each think that the other has it."""
    for gateway_id in "abc":
        cluster[gateway_id].hold([], phase=Phase.LIVE)
    cluster.calls()
    number = movie_of(cluster, 0)
    for method, asked in ("GetRating", {"movie_id": number}), ("BatchGetRatings", {"keys": [{"movie_id": number}]}):
        assert refused(cluster, "b", method, **asked)[1] == "PARTITION_UNAVAILABLE"
        called = cluster.calls()
        times = len(called) // 2  # each time that the call is tried
        assert sorted(called) == ["a"] * times + ["c"] * times
        assert 1 <= times <= 2 + patience.HEARD_S / patience.RETRY_S
    assert refused(cluster, "b", "ListRatings")[1] == "PARTITION_UNAVAILABLE"


@pytest.mark.parametrize("method", ["GetRating", "BatchGetRatings", "ListRatings"])
def test_a_mark_that_is_not_ours_is_refused(method: str, cluster: GrpcCluster) -> None:
    foreign = TokenSigner([b"f" * 32])
    token = cluster.ask("a", "GetRating", movie_id=1).read_info.consistency_token
    marks = [
        "nonsense",
        token,
        ForwardTokenSigner(foreign, wall_clock_ms).sign(ForwardToken("ratings")),
        ForwardTokenSigner(SIGNER, wall_clock_ms).sign(ForwardToken("orders")),
        ForwardTokenSigner(SIGNER, lambda: wall_clock_ms() - TOKEN_AGE_MAX_MS - 1_000).sign(ForwardToken("ratings")),
        ForwardTokenSigner(SIGNER, lambda: wall_clock_ms() + TOKEN_AGE_MAX_MS + 60_000).sign(ForwardToken("ratings")),
    ]
    for mark in marks:
        for gateway_id in ("a", ALONE):
            answer = refused(cluster, gateway_id, method, metadata=((MARK, mark),))
            assert answer[:2] == (grpc.StatusCode.PERMISSION_DENIED, "FOREIGN_FORWARD")


def test_gateways_with_other_keys_say_what_is_wrong() -> None:
    with GrpcCluster(EACH_ON_ONE, signers={"c": TokenSigner([b"f" * 32])}) as cluster:
        code, reason, _ = refused(cluster, "a", "GetRating", movie_id=movie_of(cluster, 5))
        assert (code, reason) == (grpc.StatusCode.PERMISSION_DENIED, "FOREIGN_FORWARD")


def test_a_gateway_whose_token_is_refused_by_one_is_answered_by_the_next() -> None:
    """As where the clock of one gateway is wrong by more than a forward token lives."""
    with GrpcCluster(EACH_ON_TWO, signers={"c": TokenSigner([b"f" * 32])}) as cluster:
        cluster.put(rating(number, count=number) for number in range(ROWS))
        for partition, gateway_id in ((4, "a"), (5, "a"), (0, "b"), (1, "b")):
            number = movie_of(cluster, partition)
            assert cluster.ask(gateway_id, "GetRating", movie_id=number).rating.movie_id == number
        assert any(call.method.endswith("GetRating") for call in cluster["c"].calls if call.is_forwarded)


def token_ahead(cluster: GrpcCluster, movie_id: int) -> str:
    """Return the token of one change more than the partition of a movie, which is on "c", has."""
    token = opened(cluster.ask("c", "GetRating", movie_id=movie_id).read_info)
    token.next_offsets[0] += 1
    return SIGNER.sign(token)


def test_errors_come_as_they_were_said(lone: GrpcCluster) -> None:
    """An answer that is too old: with its details, and when to come again."""
    number = movie_of(lone, 5)
    options = {"at_least": token_ahead(lone, number), "max_wait": {}}
    answers = []
    for gateway_id in ("c", "a"):
        with pytest.raises(grpc.RpcError) as raised:
            lone.ask(gateway_id, "GetRating", movie_id=number, read_options=options)
        error: Any = raised.value
        answers.append((error.code(), error.details(), error.trailing_metadata()))
        assert failure(error)[1] == "NOT_CAUGHT_UP"
        assert dict(error.trailing_metadata())["grpc-retry-pushback-ms"] == "100"
    details = [dict(metadata)["grpc-status-details-bin"] for _, _, metadata in answers]
    assert answers[0][:2] == answers[1][:2]
    assert details[0] == details[1]
    assert lone.calls() == ["c"]


def test_a_read_waits_where_the_partition_is(lone: GrpcCluster) -> None:
    number = movie_of(lone, 5)
    options = {"at_least": token_ahead(lone, number), "max_wait": {"seconds": 10}}
    asked = threading.Event()
    lone["c"].on_call = asked.set

    def write() -> None:
        asked.wait()
        lone.put([rating(number, count=9_000)])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        answer = lone.ask("a", "GetRating", movie_id=number, read_options=options)
    finally:
        asked.set()
        writer.join()
    assert answer.rating.rating_count == 9_000


def test_a_token_of_several_gateways_is_good_at_each(lone: GrpcCluster) -> None:
    keys = [{"movie_id": movie_of(lone, partition)} for partition in range(6)]
    token = lone.ask("a", "BatchGetRatings", keys=keys).read_info.consistency_token
    options = {"at_least": token, "max_wait": {}}
    for gateway_id in "abc":
        assert lone.ask(gateway_id, "BatchGetRatings", keys=keys, read_options=options).results
        assert lone.ask(gateway_id, "ListRatings", read_options=options).ratings
        assert lone.ask(gateway_id, "GetRating", **keys[0], read_options=options).rating.rating_count


def test_the_newest_is_asked_for_where_the_partition_is(lone: GrpcCluster) -> None:
    options = {"latest": True}
    number = movie_of(lone, 5)
    assert lone.ask("a", "GetRating", movie_id=number, read_options=options).rating.rating_count == number
    assert [lone[gateway_id].ends.asked for gateway_id in "abc"] == [0, 0, 1]
    keys = [{"movie_id": movie_of(lone, partition)} for partition in (2, 5)]
    assert len(lone.ask("a", "BatchGetRatings", keys=keys, read_options=options).results) == 2
    assert [lone[gateway_id].ends.asked for gateway_id in "abc"] == [0, 1, 2]
    assert len(lone.ask("a", "ListRatings", read_options=options, page_size=1_000).ratings) == ROWS
    assert [lone[gateway_id].ends.asked for gateway_id in "abc"] == [1, 2, 3]


def test_only_the_generation_that_is_asked_for_answers(cluster: GrpcCluster) -> None:
    number = movie_of(cluster, 0)
    marks = ForwardTokenSigner(SIGNER, wall_clock_ms)
    asked: dict[str, dict[str, Any]] = {
        "GetRating": {"movie_id": number},
        "BatchGetRatings": {"keys": [{"movie_id": number}]},
        "ListRatings": {},
    }
    for method, fields in asked.items():
        right, wrong = (
            ((MARK, marks.sign(ForwardToken("ratings", generation, (0, 1) if method == "ListRatings" else ()))),)
            for generation in (1, 2)
        )
        cluster.ask("a", method, metadata=right, **fields)
        answer = refused(cluster, "a", method, metadata=wrong, **fields)
        assert answer[:2] == (grpc.StatusCode.UNAVAILABLE, "PARTITION_UNAVAILABLE")
    only = (MARK, marks.sign(ForwardToken("ratings", 1, (0,))))
    here = cluster.ask("a", "ListRatings", metadata=(only,), page_size=1_000)
    assert {cluster.whole.table.partition_of(row) for row in here.ratings} == {0}


def test_the_deadline_goes_with_the_call(lone: GrpcCluster) -> None:
    lone.ask("a", "GetRating", movie_id=movie_of(lone, 5), timeout_s=8)
    lone.ask("a", "BatchGetRatings", keys=[{"movie_id": movie_of(lone, 5)}], timeout_s=8)
    lone.ask("a", "ListRatings", timeout_s=8)
    assert [call.is_forwarded for call in lone["c"].calls] == [True, True, True]
    assert all(call.left_s > 2 for call in lone["c"].calls)  # a call without a deadline gets 2 s


@pytest.mark.parametrize("lone", [QueryLimits(retries_s=0.0)], ids=["no retries"], indirect=True)
def test_generations_do_not_mix(lone: GrpcCluster) -> None:
    """One gateway is ahead: single rows come from either, but nothing is put together from both."""
    table = lone["c"].table
    table.generation = 2
    lone["c"].do(lambda: table.publish(phase=Phase.RESTORING))
    lone["c"].hold([4, 5])
    lone["c"].put(rating(number, count=1_000) for number in range(ROWS))
    lone.announce()
    number = movie_of(lone, 5)
    assert lone.ask("a", "GetRating", movie_id=number).rating.rating_count == 1_000
    keys = [{"movie_id": movie_of(lone, partition)} for partition in (0, 5)]
    assert refused(lone, "a", "BatchGetRatings", keys=keys)[1] == "PARTITION_UNAVAILABLE"
    assert lone.ask("a", "BatchGetRatings", keys=keys[1:]).results[0].found.rating_count == 1_000
    assert refused(lone, "a", "ListRatings")[:2] == (grpc.StatusCode.UNAVAILABLE, "PARTITION_UNAVAILABLE")
    assert refused(lone, "c", "ListRatings")[:2] == (grpc.StatusCode.UNAVAILABLE, "PARTITION_UNAVAILABLE")


def test_a_batch_is_of_one_generation_where_a_gateway_stays_ahead() -> None:
    """What is here is of the old one, and the gateway that has most of the rest is of the new one."""
    with GrpcCluster({"a": [0, 1, 2], "b": [3, 4, 5], "c": []}) as cluster:
        cluster.put(rating(number, count=number) for number in range(ROWS))
        ahead = cluster["c"]
        ahead.table.generation = 2
        ahead.do(lambda: ahead.table.publish(phase=Phase.RESTORING))
        ahead.hold(range(6))
        ahead.put(rating(number, count=1_000) for number in range(ROWS))
        cluster.announce()
        for partitions in (0, 4), (1, 3, 4), (2, 4, 5), (3, 5):
            keys = [{"movie_id": movie_of(cluster, partition)} for partition in partitions]
            counts = [result.found.rating_count for result in cluster.ask("a", "BatchGetRatings", keys=keys).results]
            assert counts in ([key["movie_id"] for key in keys], [1_000] * len(keys))


def test_a_partition_that_moves_is_found_where_it_went(lone: GrpcCluster) -> None:
    lone.place({"a": [0, 1, 4, 5], "b": [2, 3], "c": []})
    lone["a"].put(rating(number, count=number + 1_000) for number in range(ROWS))
    lone.calls()
    assert lone.ask("c", "GetRating", movie_id=movie_of(lone, 5)).rating.rating_count >= 1_000
    assert lone.calls() == ["a"]
