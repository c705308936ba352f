"""A gateway whose own store is away: others answer for it, whatever is asked, and nobody asks it in vain for long."""

import threading
from collections.abc import Collection, Iterator
from typing import Any

import grpc
import pytest
from tablegate.gateway.cluster.forward_token import ForwardToken, ForwardTokenSigner
from tablegate.gateway.query.serving import wall_clock_ms
from tablegate.gateway.stores.base import Phase, StoreCorrupt

from tests.kit.breaking_store import GONE, UNREADABLE, At
from tests.kit.cluster_doors import ALONE, EACH_ON_ONE, EACH_ON_TWO, ClusterDoors, movie_of
from tests.kit.subscribing import Copy
from tests.kit.tables import SIGNER, rating
from tests.unit.query.conftest import SHOP
from tests.unit.query.test_routed_unary import MARK, ROWS, read, refused, same

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE, "STORE_UNAVAILABLE"

breaks = pytest.mark.parametrize("at", [GONE, ("table",), ("position",), UNREADABLE], ids=lambda at: at[0])


@pytest.fixture
def doors() -> Iterator[ClusterDoors]:
    with ClusterDoors(EACH_ON_TWO) as doors:
        doors.put(rating(number, count=number) for number in range(ROWS))
        yield doors


def asked_of(doors: ClusterDoors) -> dict[str, dict[str, Any]]:
    """Return a request of each unary method, for partitions that each gateway has, or has not."""
    return {
        "GetRating": {"movie_id": movie_of(doors, 0)},
        "BatchGetRatings": {"keys": [{"movie_id": number} for number in range(ROWS + 20)]},
        "ListRatings": {"page_size": 1_000},
    }


@breaks
def test_others_answer_for_it(doors: ClusterDoors, at: Collection[At]) -> None:
    doors["a"].store.breaks(at)
    for number in range(0, ROWS, 7):
        same(doors.ask("a", "GetRating", movie_id=number), doors.ask(ALONE, "GetRating", movie_id=number))
    for method, fields in asked_of(doors).items():
        same(doors.ask("a", method, **fields), doors.ask(ALONE, method, **fields))
    assert refused(doors, "a", "GetRating", movie_id=ROWS)[:2] == (grpc.StatusCode.NOT_FOUND, "ROW_NOT_FOUND")
    assert set(doors.calls()) == {"b", "c"}


def test_a_walk_over_pages_goes_on_when_the_store_goes_and_comes(doors: ClusterDoors) -> None:
    found: list[int] = []
    token = ""
    while token or not found:
        (doors["a"].store.mends if len(found) % 60 else doors["a"].store.breaks)()
        page = doors.ask("a", "ListRatings", page_size=30, page_token=token)
        found += [row.movie_id for row in page.ratings]
        token = page.next_page_token
    assert found == list(range(ROWS))


def test_the_trailer_says_who_answered(doors: ClusterDoors) -> None:
    doors["a"].store.breaks()
    for partition, by in ((0, "c"), (3, "b")):  # on "a", too
        _, trailer = doors.ask_whole("a", "GetRating", movie_id=movie_of(doors, partition))
        assert (trailer["tablegate-partition"], trailer["tablegate-gateway"]) == (str(partition), by)
    for method in ("BatchGetRatings", "ListRatings"):
        _, trailer = doors.ask_whole("a", method, **asked_of(doors)[method])
        assert trailer == {"tablegate-partition": "several", "tablegate-gateway": "b,c"}


@breaks
def test_others_answer_as_fresh_as_is_asked(doors: ClusterDoors, at: Collection[At]) -> None:
    fields = asked_of(doors)
    doors.put([rating(movie_of(doors, 0), count=9_000)])
    token = doors.ask(ALONE, "GetRating", **fields["GetRating"]).read_info.consistency_token
    doors["a"].store.breaks(at)
    for wish in ({"at_least": token}, {"latest": True}, {"max_staleness": {"seconds": 3_600}}):
        answer = doors.ask("a", "GetRating", **fields["GetRating"], read_options=wish)
        assert answer.rating.rating_count == 9_000
        for method in ("BatchGetRatings", "ListRatings"):
            answer = doors.ask("a", method, **fields[method], read_options=wish)
            assert read(answer.read_info) == read(doors.ask(ALONE, method, **fields[method]).read_info)


def test_a_read_that_waits_when_the_store_goes_is_asked_elsewhere(doors: ClusterDoors) -> None:
    number = movie_of(doors, 0)
    behind = doors["a"]
    for gateway in (doors["c"], doors.whole):
        gateway.put([rating(number, count=9_000)])
    token = doors.ask(ALONE, "GetRating", movie_id=number).read_info.consistency_token
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
        assert doors.ask("a", "GetRating", movie_id=number, read_options=options).rating.rating_count == 9_000
    finally:
        looked.set()
        taking.join()


def test_who_is_asked_by_another_says_so_and_the_next_is_asked(doors: ClusterDoors) -> None:
    for gateway_id in ("a", "b"):
        doors[gateway_id].store.breaks()
    mark = (MARK, ForwardTokenSigner(SIGNER, wall_clock_ms).sign(ForwardToken("ratings")))
    for method, fields in asked_of(doors).items():
        assert refused(doors, "a", method, metadata=(mark,), **fields)[:2] == UNAVAILABLE
    doors.calls()
    doors["a"].store.mends()
    for partition in (4, 5):  # on "b" and "c"
        number = movie_of(doors, partition)
        assert doors.ask("a", "GetRating", movie_id=number).rating.rating_count == number
    assert set(doors.calls()) >= {"c"}
    doors["a"].store.breaks()
    number = movie_of(doors, 0)
    assert doors.ask("a", "GetRating", movie_id=number).rating.rating_count == number
    assert refused(doors, "a", "GetRating", movie_id=movie_of(doors, 3))[:2] == UNAVAILABLE  # on "a" and "b" alone


def test_where_nobody_can_answer_the_store_is_away() -> None:
    with ClusterDoors(EACH_ON_ONE) as lone:
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


def test_what_it_never_knew_it_cannot_ask_for(doors: ClusterDoors) -> None:
    doors["a"].stop()
    doors["a"].store.breaks()
    doors["a"].start()
    for method, fields in asked_of(doors).items():
        assert refused(doors, "a", method, **fields)[:2] == UNAVAILABLE
    doors["a"].store.mends()
    doors["a"].do(doors["a"].look)
    doors["a"].store.breaks()
    for method, fields in asked_of(doors).items():  # though none was asked while the store was there
        same(doors.ask("a", method, **fields), doors.ask(ALONE, method, **fields))


def rebuild(doors: ClusterDoors, gateway_id: str) -> None:
    """Let a gateway go on to the next generation."""
    gateway = doors[gateway_id]
    gateway.table.generation = 2
    gateway.do(lambda: gateway.table.publish(phase=Phase.RESTORING))
    gateway.hold(EACH_ON_ONE.get(gateway_id, ()))
    gateway.put(rating(number, count=1_000 + number) for number in range(ROWS))


def test_others_that_go_on_to_another_generation_meanwhile() -> None:
    with ClusterDoors({**EACH_ON_ONE, "d": []}) as doors:
        doors.put(rating(number, count=number) for number in range(ROWS))
        doors["d"].store.breaks()
        rebuild(doors, "c")
        one, other = movie_of(doors, 3), movie_of(doors, 5)
        assert doors.ask("d", "GetRating", movie_id=one).rating.rating_count == one
        assert doors.ask("d", "GetRating", movie_id=other).rating.rating_count == 1_000 + other
        keys = [{"movie_id": one}, {"movie_id": other}]
        assert refused(doors, "d", "BatchGetRatings", keys=keys)[:2] == UNAVAILABLE
        assert refused(doors, "d", "ListRatings")[:2] == UNAVAILABLE
        rebuild(doors, "a")
        rebuild(doors, "b")
        answer = doors.ask("d", "BatchGetRatings", keys=keys)
        assert [each.found.rating_count for each in answer.results] == [1_000 + one, 1_000 + other]
        assert refused(doors, "d", "ListRatings")[:2] == UNAVAILABLE  # it knows of the generation before only
        doors["d"].store.mends()
        rebuild(doors, "d")
        doors.announce()
        doors["d"].store.breaks()
        assert len(doors.ask("d", "ListRatings", page_size=1_000).ratings) == ROWS


def test_batches_that_do_not_tell_their_generation_mix_none() -> None:
    with ClusterDoors({**EACH_ON_ONE, "d": []}, contract=SHOP, table="tags", service="/shop.v1.ShopService") as doors:
        tag = doors.whole.table.table.row_class
        doors.put(tag(name=f"tag {number}", uses=number) for number in range(100))
        names = [f"tag {number}" for number in range(100)]
        ahead = doors["c"]
        ahead.table.generation = 2
        ahead.do(lambda: ahead.table.publish(phase=Phase.RESTORING))
        ahead.hold(EACH_ON_ONE["c"])
        ahead.put(tag(name=name, uses=7) for name in names)
        for break_it in (doors["d"].store.mends, doors["d"].store.breaks):
            break_it()
            assert refused(doors, "d", "BatchGetTags", names=names)[0] == grpc.StatusCode.UNAVAILABLE
            behind = [name for name in names if doors.whole.table.partition_of(tag(name=name)) < 4]
            assert len(doors.ask("d", "BatchGetTags", names=behind).results) == len(behind)
            new = next(name for name in names if doors.whole.table.partition_of(tag(name=name)) == 5)
            assert doors.ask("d", "BatchGetTags", names=[new]).results[0].found.uses == 7


def test_streams_are_given_by_others(doors: ClusterDoors) -> None:
    doors["a"].store.breaks()
    rows = [row.movie_id for message in doors.stream("a", "ScanRatings") for row in message.ratings]
    assert sorted(rows) == list(range(ROWS))
    one = Copy()
    messages = doors.stream("a", "SubscribeRatings")
    while len(one.rows) < ROWS:
        one.take(next(messages))
    doors.put([rating(3, count=9_000)])
    while one.counts[3] != 9_000:
        one.take(next(messages))
    messages.close()  # type: ignore[attr-defined]
