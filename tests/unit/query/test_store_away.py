"""A gateway whose own store is away: others answer for it, whatever is asked, and nobody asks it in vain for long."""

import threading
from collections.abc import Collection, Iterator
from typing import Any

import grpc
import pytest

from tablegate.gateway.cluster.forward_token import ForwardToken, ForwardTokenSigner
from tablegate.gateway.query.serving import wall_clock_ms
from tablegate.gateway.stores.base import Phase, StoreCorrupt
from tests.kit.call.asker import SHOP
from tests.kit.call.subscribing import Copy
from tests.kit.gateways_in_process.answers import MARK, ROWS, read, refused, same
from tests.kit.gateways_in_process.cluster import ALONE, EACH_ON_ONE, EACH_ON_TWO, GrpcCluster, movie_of
from tests.kit.store.breaking import GONE, UNREADABLE, At
from tests.kit.table.filled import SIGNER, rating

pytestmark = pytest.mark.tools

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE, "STORE_UNAVAILABLE"

breaks = pytest.mark.parametrize("at", [GONE, ("table",), ("position",), UNREADABLE], ids=lambda at: at[0])


@pytest.fixture
def cluster() -> Iterator[GrpcCluster]:
    with GrpcCluster(EACH_ON_TWO) as cluster:
        cluster.put(rating(number, count=number) for number in range(ROWS))
        yield cluster


def asked_of(cluster: GrpcCluster) -> dict[str, dict[str, Any]]:
    """Return a request of each unary method, for partitions that each gateway has, or has not."""
    return {
        "GetRating": {"movie_id": movie_of(cluster, 0)},
        "BatchGetRatings": {"keys": [{"movie_id": number} for number in range(ROWS + 20)]},
        "ListRatings": {"page_size": 1_000},
    }


@breaks
def test_others_answer_for_it(cluster: GrpcCluster, at: Collection[At]) -> None:
    cluster["a"].store.breaks(at)
    for number in range(0, ROWS, 7):
        same(cluster.ask("a", "GetRating", movie_id=number), cluster.ask(ALONE, "GetRating", movie_id=number))
    for method, fields in asked_of(cluster).items():
        same(cluster.ask("a", method, **fields), cluster.ask(ALONE, method, **fields))
    assert refused(cluster, "a", "GetRating", movie_id=ROWS)[:2] == (grpc.StatusCode.NOT_FOUND, "ROW_NOT_FOUND")
    assert set(cluster.calls()) == {"b", "c"}


def test_a_walk_over_pages_goes_on_when_the_store_goes_and_comes(cluster: GrpcCluster) -> None:
    found: list[int] = []
    token = ""
    while token or not found:
        (cluster["a"].store.mends if len(found) % 60 else cluster["a"].store.breaks)()
        page = cluster.ask("a", "ListRatings", page_size=30, page_token=token)
        found += [row.movie_id for row in page.ratings]
        token = page.next_page_token
    assert found == list(range(ROWS))


def test_the_trailer_says_who_answered(cluster: GrpcCluster) -> None:
    cluster["a"].store.breaks()
    for partition, by in ((0, "c"), (3, "b")):  # on "a", too
        _, trailer = cluster.ask_whole("a", "GetRating", movie_id=movie_of(cluster, partition))
        assert (trailer["tablegate-partition"], trailer["tablegate-gateway"]) == (str(partition), by)
    for method in ("BatchGetRatings", "ListRatings"):
        _, trailer = cluster.ask_whole("a", method, **asked_of(cluster)[method])
        assert trailer == {"tablegate-partition": "several", "tablegate-gateway": "b,c"}


@breaks
def test_others_answer_as_fresh_as_is_asked(cluster: GrpcCluster, at: Collection[At]) -> None:
    fields = asked_of(cluster)
    cluster.put([rating(movie_of(cluster, 0), count=9_000)])
    token = cluster.ask(ALONE, "GetRating", **fields["GetRating"]).read_info.consistency_token
    cluster["a"].store.breaks(at)
    for wish in ({"at_least": token}, {"latest": True}, {"max_staleness": {"seconds": 3_600}}):
        answer = cluster.ask("a", "GetRating", **fields["GetRating"], read_options=wish)
        assert answer.rating.rating_count == 9_000
        for method in ("BatchGetRatings", "ListRatings"):
            answer = cluster.ask("a", method, **fields[method], read_options=wish)
            assert read(answer.read_info) == read(cluster.ask(ALONE, method, **fields[method]).read_info)


def test_a_read_that_waits_when_the_store_goes_is_asked_elsewhere(cluster: GrpcCluster) -> None:
    number = movie_of(cluster, 0)
    behind = cluster["a"]
    for gateway in (cluster["c"], cluster.whole):
        gateway.put([rating(number, count=9_000)])
    token = cluster.ask(ALONE, "GetRating", movie_id=number).read_info.consistency_token
    looked = threading.Event()
    whole = behind.store.check

    def check(at: str) -> None:
        whole(at)
        if at == "position":
            looked.set()

    def take_away() -> None:
        looked.wait()
        behind.do(behind.store.breaks)

    behind.store.check = check  # type: ignore[assignment, method-assign]
    taking = threading.Thread(target=take_away)
    taking.start()
    try:
        options = {"at_least": token, "max_wait": {"seconds": 10}}
        assert cluster.ask("a", "GetRating", movie_id=number, read_options=options).rating.rating_count == 9_000
    finally:
        looked.set()
        taking.join()


def test_who_is_asked_by_another_says_so_and_the_next_is_asked(cluster: GrpcCluster) -> None:
    for gateway_id in ("a", "b"):
        cluster[gateway_id].store.breaks()
    mark = (MARK, ForwardTokenSigner(SIGNER, wall_clock_ms).sign(ForwardToken("ratings")))
    for method, fields in asked_of(cluster).items():
        assert refused(cluster, "a", method, metadata=(mark,), **fields)[:2] == UNAVAILABLE
    cluster.calls()
    cluster["a"].store.mends()
    for partition in (4, 5):  # on "b" and "c"
        number = movie_of(cluster, partition)
        assert cluster.ask("a", "GetRating", movie_id=number).rating.rating_count == number
    assert set(cluster.calls()) >= {"c"}
    cluster["a"].store.breaks()
    number = movie_of(cluster, 0)
    assert cluster.ask("a", "GetRating", movie_id=number).rating.rating_count == number
    assert refused(cluster, "a", "GetRating", movie_id=movie_of(cluster, 3))[:2] == UNAVAILABLE  # on "a" and "b" alone


def test_where_nobody_can_answer_the_store_is_away() -> None:
    with GrpcCluster(EACH_ON_ONE) as lone:
        lone.put(rating(number, count=number) for number in range(ROWS))
        lone["a"].store.breaks()
        for method, fields in asked_of(lone).items():
            assert refused(lone, "a", method, **fields)[:2] == UNAVAILABLE
        lone["a"].store.breaks(UNREADABLE, StoreCorrupt)
        assert refused(lone, "a", "GetRating", movie_id=movie_of(lone, 0))[1] == "CORRUPT_ROW"
        lone["a"].store.mends()
        assert lone.ask("a", "ListRatings", page_size=1_000).ratings
        lone.whole.store.breaks()
        for method, fields in asked_of(lone).items():
            assert refused(lone, ALONE, method, **fields)[:2] == UNAVAILABLE


def test_what_it_never_knew_it_cannot_ask_for(cluster: GrpcCluster) -> None:
    cluster["a"].stop()
    cluster["a"].store.breaks()
    cluster["a"].start()
    for method, fields in asked_of(cluster).items():
        assert refused(cluster, "a", method, **fields)[:2] == UNAVAILABLE
    cluster["a"].store.mends()
    cluster["a"].do(cluster["a"].refresh)
    cluster["a"].store.breaks()
    for method, fields in asked_of(cluster).items():  # though none was asked while the store was there
        same(cluster.ask("a", method, **fields), cluster.ask(ALONE, method, **fields))


def rebuild(cluster: GrpcCluster, gateway_id: str) -> None:
    """Let a gateway go on to the next generation."""
    gateway = cluster[gateway_id]
    gateway.table.generation = 2
    gateway.do(lambda: gateway.table.publish(phase=Phase.RESTORING))
    gateway.hold(EACH_ON_ONE.get(gateway_id, ()))
    gateway.put(rating(number, count=1_000 + number) for number in range(ROWS))


def test_others_that_go_on_to_another_generation_meanwhile() -> None:
    with GrpcCluster({**EACH_ON_ONE, "d": []}) as cluster:
        cluster.put(rating(number, count=number) for number in range(ROWS))
        cluster["d"].store.breaks()
        rebuild(cluster, "c")
        one, other = movie_of(cluster, 3), movie_of(cluster, 5)
        assert cluster.ask("d", "GetRating", movie_id=one).rating.rating_count == one
        assert cluster.ask("d", "GetRating", movie_id=other).rating.rating_count == 1_000 + other
        keys = [{"movie_id": one}, {"movie_id": other}]
        assert refused(cluster, "d", "BatchGetRatings", keys=keys)[:2] == UNAVAILABLE
        assert refused(cluster, "d", "ListRatings")[:2] == UNAVAILABLE
        rebuild(cluster, "a")
        rebuild(cluster, "b")
        answer = cluster.ask("d", "BatchGetRatings", keys=keys)
        assert [each.found.rating_count for each in answer.results] == [1_000 + one, 1_000 + other]
        assert refused(cluster, "d", "ListRatings")[:2] == UNAVAILABLE  # it knows of the generation before only
        cluster["d"].store.mends()
        rebuild(cluster, "d")
        cluster.announce()
        cluster["d"].store.breaks()
        assert len(cluster.ask("d", "ListRatings", page_size=1_000).ratings) == ROWS


def test_batches_that_do_not_tell_their_generation_mix_none() -> None:
    with GrpcCluster({**EACH_ON_ONE, "d": []}, contract=SHOP, table="tags", service="/shop.v1.ShopService") as cluster:
        tag = cluster.whole.table.table.row_class
        cluster.put(tag(name=f"tag {number}", uses=number) for number in range(100))
        names = [f"tag {number}" for number in range(100)]
        ahead = cluster["c"]
        ahead.table.generation = 2
        ahead.do(lambda: ahead.table.publish(phase=Phase.RESTORING))
        ahead.hold(EACH_ON_ONE["c"])
        ahead.put(tag(name=name, uses=7) for name in names)
        for break_it in (cluster["d"].store.mends, cluster["d"].store.breaks):
            break_it()
            assert refused(cluster, "d", "BatchGetTags", names=names)[0] == grpc.StatusCode.UNAVAILABLE
            behind = [name for name in names if cluster.whole.table.partition_of(tag(name=name)) < 4]
            assert len(cluster.ask("d", "BatchGetTags", names=behind).results) == len(behind)
            new = next(name for name in names if cluster.whole.table.partition_of(tag(name=name)) == 5)
            assert cluster.ask("d", "BatchGetTags", names=[new]).results[0].found.uses == 7


def test_streams_are_given_by_others(cluster: GrpcCluster) -> None:
    cluster["a"].store.breaks()
    rows = [row.movie_id for message in cluster.stream("a", "ScanRatings") for row in message.ratings]
    assert sorted(rows) == list(range(ROWS))
    one = Copy()
    messages = cluster.stream("a", "SubscribeRatings")
    while len(one.rows) < ROWS:
        one.take(next(messages))
    cluster.put([rating(3, count=9_000)])
    while one.counts[3] != 9_000:
        one.take(next(messages))
    messages.close()  # type: ignore[attr-defined]
