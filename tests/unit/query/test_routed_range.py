"""A walk over all partitions, each page asked of any gateway: the rows of one big store, in order, each once."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablegate.gateway.query.limits import DEFAULT_LIMITS, QueryLimits
from tablegate.v1.query_pb2 import ORDER_ASCENDING, ORDER_DESCENDING
from tests.kit.gateways_in_process.cluster import ALONE, GrpcCluster, Placement
from tests.kit.seeds import examples
from tests.kit.table.filled import rating

pytestmark = pytest.mark.tools

SPREADS: tuple[Placement, ...] = (
    {"a": [0, 1], "b": [2, 3], "c": [4, 5]},
    {"a": [0, 1, 2, 3], "b": [2, 3, 4, 5], "c": [4, 5, 0, 1]},
    {"a": [], "b": [0, 2, 4, 5], "c": [1, 3]},
    {"a": [0, 1, 2, 3, 4, 5], "b": [5], "c": []},
)
NUMBERS = range(-50, 200)
WALK_PAGES_MAX = 600

Bounds = dict[str, Any]


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[GrpcCluster]:
    """Return gateways whose stores have everything, be it live or not; a test may say with which limits."""
    limits = getattr(request, "param", DEFAULT_LIMITS)
    with GrpcCluster(dict.fromkeys("abc", range(6)), limits=limits) as cluster:
        cluster.put(rating(number, count=number) for number in NUMBERS if number % 3)
        yield cluster


def walk(cluster: GrpcCluster, gateway_ids: str, page_size: int, bounds: Bounds) -> list[int]:
    found: list[int] = []
    token = ""
    for turn in range(WALK_PAGES_MAX):
        page = cluster.ask(
            gateway_ids[turn % len(gateway_ids)] if gateway_ids else ALONE,
            "ListRatings",
            page_size=page_size,
            page_token=token,
            **bounds,
        )
        assert len(page.ratings) <= page_size
        assert page.read_info.consistency_token
        found += [row.movie_id for row in page.ratings]
        token = page.next_page_token
        if not token:
            return found
        assert page.ratings
    raise AssertionError("the walk does not end")


@st.composite
def bounds(draw: st.DrawFn) -> Bounds:
    given: Bounds = {"order": draw(st.sampled_from([0, ORDER_ASCENDING, ORDER_DESCENDING]))}
    for name in ("movie_id_from", "movie_id_before"):
        if draw(st.booleans()):
            given[name] = draw(st.integers(-60, 210))
    return given


@pytest.mark.parametrize(
    "cluster", [DEFAULT_LIMITS, QueryLimits(page_bytes_max=150)], ids=["rows", "some five rows a page"], indirect=True
)
@examples(40)
@given(st.sampled_from(SPREADS), st.text("abc", min_size=1, max_size=5), st.integers(3, 300), bounds())
def test_a_walk_is_that_of_one_store(
    cluster: GrpcCluster, held: Placement, gateway_ids: str, page_size: int, bounds: Bounds
) -> None:
    cluster.place(held)
    low, high = bounds.get("movie_id_from", -60), bounds.get("movie_id_before", 300)
    expected = [number for number in NUMBERS if number % 3 and low <= number < high]
    if bounds["order"] == ORDER_DESCENDING:
        expected.reverse()
    assert walk(cluster, gateway_ids, page_size, bounds) == expected


def test_a_page_is_one_call_to_each_other_gateway(cluster: GrpcCluster) -> None:
    cluster.place(SPREADS[0])
    cluster.calls()
    assert len(cluster.ask("a", "ListRatings", page_size=20).ratings) == 20
    assert sorted(cluster.calls()) == ["b", "c"]


def test_a_token_goes_on_where_a_gateway_that_stands_alone_ended(cluster: GrpcCluster) -> None:
    cluster.place(SPREADS[0])
    page = cluster.ask(ALONE, "ListRatings", page_size=20)
    rest = cluster.ask("c", "ListRatings", page_size=1_000, page_token=page.next_page_token)
    found = [row.movie_id for row in (*page.ratings, *rest.ratings)]
    assert found == [number for number in NUMBERS if number % 3]
