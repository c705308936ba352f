from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablegate.gateway.query.errors import InvalidField, InvalidPageToken, PartitionUnavailable, TableRebuilt
from tablegate.gateway.query.limits import DEFAULT_LIMITS, QueryLimits
from tablegate.v1.query_pb2 import ORDER_DESCENDING
from tests.kit.call.asker import SHOP, Asker, Ratings, Shop, make_ratings
from tests.kit.seeds import examples
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import FilledTable, catalogue_of, rating

INT64 = st.integers(-(2**63), 2**63 - 1)


def _walk(ratings: Ratings, **fields: Any) -> list[list[int]]:
    """Return the ids of each page of a whole walk."""
    pages, token = [], ""
    while True:
        answer = ratings.ask("ListRatings", page_token=token, **fields)
        pages.append([row.movie_id for row in answer.ratings])
        token = answer.next_page_token
        if not token:
            return pages


@examples(60)
@given(
    ids=st.sets(st.integers(-50, 50) | INT64, max_size=60),
    partition_count=st.integers(1, 5),
    page_size=st.integers(1, 20),
    descending=st.booleans(),
    low=st.none() | st.integers(-60, 60),
    high=st.none() | st.integers(-60, 60),
)
def test_a_walk_meets_each_key_once_in_order(
    ids: set[int], partition_count: int, page_size: int, descending: bool, low: int | None, high: int | None
) -> None:
    ratings = make_ratings(partition_count)
    ratings.table.put(rating(number) for number in ids)
    fields: dict[str, Any] = {"page_size": page_size}
    if descending:
        fields["order"] = ORDER_DESCENDING
    if low is not None:
        fields["movie_id_from"] = low
    if high is not None:
        fields["movie_id_before"] = high
    pages = _walk(ratings, **fields)
    wanted = [number for number in ids if (low is None or number >= low) and (high is None or number < high)]
    assert [number for page in pages for number in page] == sorted(wanted, reverse=descending)
    assert all(len(page) == page_size for page in pages[:-1])
    assert pages[-1] or not wanted  # the token is empty at the end, and only there


@pytest.mark.parametrize("descending", [False, True])
def test_rows_present_during_the_whole_walk_appear_once(descending: bool) -> None:
    ratings = make_ratings()
    ratings.table.put(rating(number) for number in range(0, 100, 2))
    seen, token, step = [], "", 0
    order = ORDER_DESCENDING if descending else 0
    while True:
        answer = ratings.ask("ListRatings", page_size=7, page_token=token, order=order)
        seen += [row.movie_id for row in answer.ratings]
        token = answer.next_page_token
        if not token:
            break
        step += 1
        ratings.table.put([rating(2 * step + 1), rating(99 - 2 * step)])
        ratings.table.delete([rating(2 * step + 1)])
    assert [number for number in seen if number % 2 == 0] == sorted(range(0, 100, 2), reverse=descending)
    assert len(seen) == len(set(seen))


def test_page_sizes(ratings: Ratings) -> None:
    ratings.table.put(rating(number) for number in range(1500))
    assert len(ratings.ask("ListRatings").ratings) == 50
    assert len(ratings.ask("ListRatings", page_size=10**6).ratings) == 1000
    with pytest.raises(InvalidField) as refused:
        ratings.ask("ListRatings", page_size=-1)
    assert refused.value.field == "page_size"
    with pytest.raises(InvalidField) as refused:
        ratings.ask("ListRatings", order=7)
    assert refused.value.field == "order"


def test_a_page_of_long_rows_ends_early(shop: Shop) -> None:
    row = shop.orders.table.row_class
    shop.orders.put(row(customer="ann", code=f"{number}" + "x" * 400, price=1.0) for number in range(3))
    answer = shop.asker.ask("ListOrders", customer="ann", page_size=5)
    assert len(answer.orders) == 3
    from tablegate.gateway.query import range as ranges

    bytes_max = DEFAULT_LIMITS.page_bytes_max
    pages = [ranges._page_of([(b"k", b"x" * 700_000)] * count, 5, bytes_max) for count in (0, 1, 2, 3)]
    assert [len(page) for page in pages] == [0, 1, 1, 1]


@pytest.mark.parametrize("order", [0, ORDER_DESCENDING])
def test_pages_that_end_early_meet_each_key_once(order: int) -> None:
    ratings = make_ratings(limits=QueryLimits(page_bytes_max=3 * len(rating(1).SerializeToString())))
    ratings.table.put(rating(number) for number in range(20))
    pages = _walk(ratings, page_size=5, order=order)
    assert [number for page in pages for number in page] == sorted(range(20), reverse=bool(order))
    assert max(len(page) for page in pages) == 3


def test_a_token_is_good_only_for_its_query(ratings: Ratings, shop: Shop) -> None:
    ratings.table.put(rating(number) for number in range(10))
    token = ratings.ask("ListRatings", page_size=3).next_page_token
    assert len(ratings.ask("ListRatings", page_size=5, page_token=token).ratings) == 5
    with pytest.raises(InvalidPageToken, match="other params"):
        ratings.ask("ListRatings", page_token=token, movie_id_from=1)
    with pytest.raises(InvalidPageToken, match="other params"):
        ratings.ask("ListRatings", page_token=token, order=ORDER_DESCENDING)
    with pytest.raises(InvalidPageToken, match="another table"):
        shop.asker.ask("ListOrders", customer="ann", page_token=token)
    with pytest.raises(InvalidPageToken, match="another kind"):
        ratings.ask("ListRatings", page_token=ratings.ask("ListRatings").read_info.consistency_token)
    for damaged in ("x", token[:-2], token[:-1] + ("A" if token[-1] != "A" else "B"), "1.", "2" + token[1:]):
        with pytest.raises(InvalidPageToken, match="damaged"):
            ratings.ask("ListRatings", page_token=damaged)


def test_a_token_of_another_generation_is_refused(ratings: Ratings) -> None:
    ratings.table.put(rating(number) for number in range(10))
    token = ratings.ask("ListRatings", page_size=3).next_page_token
    ratings.table.generation = 2
    ratings.table.publish()
    with pytest.raises(TableRebuilt):
        ratings.ask("ListRatings", page_token=token)
    ratings.table.generation = 0
    ratings.table.publish()
    with pytest.raises(PartitionUnavailable, match="newer generation"):
        ratings.ask("ListRatings", page_token=token)


CODES = ["", "a", "a\x00", "a\x00b", "aa", "ab", "b", "é", "😀", "\x00", "\x00\xff"]


@examples(100)
@given(
    codes=st.sets(st.sampled_from(CODES) | st.text(max_size=3)),
    prefix=st.none() | st.sampled_from(CODES),
    after=st.none() | st.sampled_from(CODES),
    to=st.none() | st.sampled_from(CODES),
    equal=st.none() | st.sampled_from(CODES),
)
def test_bounds_on_strings_hold(
    codes: set[str], prefix: str | None, after: str | None, to: str | None, equal: str | None
) -> None:
    store, catalogue = MemoryStore(), catalogue_of(SHOP)
    orders = FilledTable(store, catalogue.tables["orders"], 4)
    orders.publish()
    asker = Asker(catalogue, store, "/shop.v1.ShopService", None)
    row = orders.table.row_class
    orders.put(row(customer=customer, code=code) for customer in ("ann", "ann\x00", "bo") for code in codes)
    bounds = {"code_prefix": prefix, "code_after": after, "code_to": to, "code": equal}
    fields = {name: value for name, value in bounds.items() if value is not None}
    got: list[str] = []
    token = ""
    while True:
        answer = asker.ask("ListOrders", customer="ann", page_token=token, **fields)
        assert all(order.customer == "ann" for order in answer.orders)
        got += [order.code for order in answer.orders]
        token = answer.next_page_token
        if not token:
            break

    def passes(code: str) -> bool:
        raw = code.encode()
        return (
            (prefix is None or raw.startswith(prefix.encode()))
            and (after is None or raw > after.encode())
            and (to is None or raw <= to.encode())
            and (equal is None or code == equal)
        )

    assert got == sorted(filter(passes, codes), key=str.encode)


def test_extreme_bounds(ratings: Ratings) -> None:
    ratings.table.put([rating(2**63 - 1), rating(-(2**63))])
    assert _walk(ratings, movie_id_from=2**63 - 1) == [[2**63 - 1]]
    assert _walk(ratings, movie_id_before=-(2**63)) == [[]]
    assert _walk(ratings, movie_id_from=5, movie_id_before=5) == [[]]
