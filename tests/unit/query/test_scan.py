import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query import store_scan
from tablegate.gateway.query.errors import (
    CorruptRow,
    DeadlineExceeded,
    InvalidField,
    InvalidResumeToken,
    PartitionUnavailable,
    QueryError,
    ShuttingDown,
    TableRebuilt,
)
from tablegate.gateway.query.limits import DEFAULT_LIMITS, QueryLimits
from tablegate.gateway.stores.base import Change, Phase
from tests.kit.call.asker import Ratings, Shop, make_ratings
from tests.kit.call.subscribing import token_of
from tests.kit.table.filled import FilledTable, LocalCall, catalogue_of, now_ms, rating


def _ids(messages: list[Any]) -> list[int]:
    return [row.movie_id for message in messages for row in message.ratings]


def _resumed(ratings: Ratings, token: str, **fields: Any) -> list[Any]:
    request = ratings.asker.request("ScanRatings", **fields)
    request.scan_options.resume_token = token
    return ratings.asker.stream("ScanRatings", request)


def test_a_scan_gives_every_row_in_bounded_messages(ratings: Ratings) -> None:
    ratings.table.put(rating(number) for number in range(5_000))
    messages = ratings.asker.stream("ScanRatings")
    assert sorted(_ids(messages)) == list(range(5_000))
    assert max(len(message.ratings) for message in messages) <= DEFAULT_LIMITS.message_rows_max
    assert all(message.progress.resume_token for message in messages)
    assert messages[-1].progress.read_info.consistency_token
    assert messages[-1].progress.read_info.as_of_time.seconds


def test_a_scan_of_nothing_has_one_message(ratings: Ratings) -> None:
    [message] = ratings.asker.stream("ScanRatings")
    assert not message.ratings
    assert message.progress.resume_token


@pytest.mark.tools
@settings(max_examples=30, deadline=None)
@given(
    count=st.integers(0, 1_500),
    partition_count=st.integers(1, 4),
    broken_after=st.integers(1, 6),
    least=st.none() | st.integers(0, 40),
)
def test_a_broken_scan_resumes_without_loss_or_repeat(
    count: int, partition_count: int, broken_after: int, least: int | None
) -> None:
    ratings = make_ratings(partition_count)
    ratings.table.put(rating(number, count=number % 40) for number in range(count))
    fields = {} if least is None else {"min_rating_count": least}
    first = ratings.asker.stream("ScanRatings", most=broken_after, **fields)
    rest = _resumed(ratings, first[-1].progress.resume_token, **fields)
    wanted = [number for number in range(count) if least is None or number % 40 >= least]
    assert sorted(_ids(first) + _ids(rest)) == wanted
    assert not _ids(_resumed(ratings, rest[-1].progress.resume_token, **fields))


def test_long_rows_make_small_messages(shop: Shop) -> None:
    shop.orders.put(shop.orders.table.row_class(customer="a" * 240, code=f"{n}") for n in range(7))
    assert len(shop.asker.stream("ScanOrders")[0].orders) == 7
    rows = [(b"%d" % n, b"x" * 30_000) for n in range(10)]
    bytes_max = DEFAULT_LIMITS.message_bytes_max
    assert store_scan._fitting(rows, bytes_max) == 2
    assert store_scan._fitting([(b"k", b"x" * 100_000)], bytes_max) == 1
    assert store_scan._fitting([(b"k", b"x" * 100_000)] * 2, bytes_max) == 1


@pytest.mark.parametrize("fields", [{}, {"min_rating_count": 0}])
def test_each_part_of_a_split_batch_can_be_resumed(fields: dict[str, int]) -> None:
    # Rows that passed a filter are held for as long as may be.
    ratings = make_ratings(limits=QueryLimits(message_bytes_max=300, scan_flush_s=60.0))
    ratings.table.put(rating(number) for number in range(200))
    messages = ratings.asker.stream("ScanRatings", **fields)
    assert len(messages) > 12
    for broken in range(len(messages)):
        rest = _resumed(ratings, messages[broken].progress.resume_token, **fields)
        assert sorted(_ids(messages[: broken + 1]) + _ids(rest)) == list(range(200))


def test_max_rows_holds_over_resumed_scans(shop: Shop) -> None:
    shop.orders.put(shop.orders.table.row_class(customer=f"c{n}", code="x", price=n) for n in range(30))
    messages = shop.asker.stream("ScanOrders")
    assert sum(len(message.orders) for message in messages) == 7
    request = shop.asker.request("ScanOrders")
    request.scan_options.resume_token = messages[0].progress.resume_token
    rest = shop.asker.stream("ScanOrders", request)
    assert sum(len(message.orders) for message in [messages[0], *rest]) == 7


@pytest.mark.tools
@settings(max_examples=30, deadline=None)
@given(
    count=st.integers(0, 400),
    partition_count=st.integers(1, 4),
    limits=st.lists(st.integers(1, 300), min_size=1, max_size=4),
    least=st.none() | st.integers(0, 40),
)
def test_a_limit_ends_a_scan_and_a_higher_one_goes_on(
    count: int, partition_count: int, limits: list[int], least: int | None
) -> None:
    ratings = make_ratings(partition_count)
    ratings.table.put(rating(number, count=number % 40) for number in range(count))
    fields = {} if least is None else {"min_rating_count": least}
    wanted = [number for number in range(count) if least is None or number % 40 >= least]
    given, token = list[int](), ""
    for limit in [*sorted(limits), 0]:
        request = ratings.asker.request("ScanRatings", **fields)
        request.scan_options.limit, request.scan_options.resume_token = limit, token
        messages = ratings.asker.stream("ScanRatings", request)
        given += _ids(messages)
        assert len(given) == (min(limit, len(wanted)) if limit else len(wanted))
        token = messages[-1].progress.resume_token
    assert sorted(given) == wanted


def test_the_lower_of_limit_and_most_rows_counts(shop: Shop) -> None:
    shop.orders.put(shop.orders.table.row_class(customer=f"c{n}", code="x", price=n) for n in range(30))
    for limit, count in ((3, 3), (7, 7), (20, 7), (0, 7)):
        request = shop.asker.request("ScanOrders")
        request.scan_options.limit = limit
        assert sum(len(message.orders) for message in shop.asker.stream("ScanOrders", request)) == count
    request.scan_options.limit = -1
    with pytest.raises(InvalidField, match=r"scan_options\.limit"):
        shop.asker.stream("ScanOrders", request)


def test_filters(shop: Shop) -> None:
    row = shop.orders.table.row_class
    orders = [row(customer=f"c{n}", code="x") for n in range(4)]
    orders[1].price, orders[2].price = 0.0, 5.0
    orders[3].price = float("nan")
    orders[2].order_time.seconds, orders[1].order_time.nanos = 100, 1
    shop.orders.put(orders)

    def names(request: Any) -> set[str]:
        return {order.customer for message in shop.asker.stream("ScanOrders", request) for order in message.orders}

    assert names(shop.asker.request("ScanOrders")) == {"c0", "c1", "c2", "c3"}
    assert names(shop.asker.request("ScanOrders", price_above=-1.0)) == {"c1", "c2"}
    request = shop.asker.request("ScanOrders")
    request.before.seconds = 100
    assert names(request) == {"c1"}
    request.before.nanos = 1
    assert names(request) == {"c1", "c2"}
    request.before.nanos = -1
    with pytest.raises(InvalidField, match="before"):
        names(request)


def test_a_token_of_another_scan_is_refused(ratings: Ratings) -> None:
    ratings.table.put(rating(number) for number in range(10))
    token = ratings.asker.stream("ScanRatings")[-1].progress.resume_token
    with pytest.raises(InvalidResumeToken, match="another kind"):
        _resumed(ratings, ratings.ask("ListRatings", page_size=3).next_page_token)
    with pytest.raises(InvalidResumeToken, match="other params"):
        _resumed(ratings, token, min_rating_count=1)
    with pytest.raises(InvalidResumeToken, match="damaged"):
        _resumed(ratings, token[:-3])
    ratings.table.generation = 2
    ratings.table.publish()
    with pytest.raises(TableRebuilt):
        _resumed(ratings, token)


def test_a_scan_stops_when_its_call_does(ratings: Ratings) -> None:
    ratings.table.put(rating(number) for number in range(10))
    with pytest.raises(ShuttingDown):
        ratings.asker.stream("ScanRatings", call=LocalCall(draining=True))
    with pytest.raises(DeadlineExceeded):
        ratings.asker.stream("ScanRatings", call=LocalCall(0.0))


def test_a_scan_needs_every_partition_before_its_first_message(ratings: Ratings) -> None:
    ratings.table.put(rating(number) for number in range(10))
    ratings.table.move(Partition(2), phase=Phase.RESTORING)
    with pytest.raises(PartitionUnavailable, match="partition 2"):
        ratings.asker.stream("ScanRatings", most=1)


def _restore_partition_2(table: FilledTable) -> None:
    table.move(Partition(2), phase=Phase.RESTORING)


def _publish_generation_2(table: FilledTable) -> None:
    table.generation = 2
    table.publish()


@pytest.mark.parametrize(
    ("change", "error"), [(_restore_partition_2, PartitionUnavailable), (_publish_generation_2, TableRebuilt)]
)
def test_a_scan_ends_when_its_table_changes_under_it(
    ratings: Ratings, change: Callable[[FilledTable], None], error: type[QueryError]
) -> None:
    ratings.table.put(rating(number) for number in range(200))
    handler = ratings.asker.methods["/examples.ratings.v1.RatingsService/ScanRatings"].handler

    async def scan_over_the_change() -> None:
        messages = 0
        async for _ in handler(b"", LocalCall(None)):  # type: ignore[union-attr]
            messages += 1
            if messages == 1:
                change(ratings.table)

    with pytest.raises(error):
        asyncio.run(scan_over_the_change())


def test_scan_time_is_of_its_first_rows_and_its_token_of_its_last() -> None:
    """One partition, changed and grown older between two reads: by the token no row may be older afterwards."""
    ratings = make_ratings(partition_count=1)
    ratings.table.put(rating(number) for number in range(200))
    ratings.table.move(Partition(0), as_of_ms=5_000)
    handler = ratings.asker.methods["/examples.ratings.v1.RatingsService/ScanRatings"].handler
    response_class: Any = ratings.asker.catalogue.queries[
        "/examples.ratings.v1.RatingsService/ScanRatings"
    ].response_class

    async def scan_over_changes() -> list[Any]:
        messages = []
        async for data in handler(b"", LocalCall(None)):  # type: ignore[union-attr]
            messages.append(response_class.FromString(data))
            if len(messages) == 1:
                ratings.table.put(rating(number, count=2) for number in range(200))
        return messages

    messages = asyncio.run(scan_over_changes())
    assert [messages[0].ratings[0].rating_count, messages[-1].ratings[-1].rating_count] == [1, 2]
    read_info = messages[-1].progress.read_info
    assert list(token_of(read_info.consistency_token).next_offsets) == [400]
    assert read_info.as_of_time.ToMilliseconds() == 5_000


def test_a_damaged_row_is_told(ratings: Ratings) -> None:
    key = ratings.table.key_of(rating(1))
    partition = catalogue_of().tables["ratings"].partition_of(key, 3)
    from tablegate.gateway.contract.types import Offset, make_version

    ratings.table.move(partition, changes=[Change(Offset(0), key, make_version(1, 1), b"\xff\xff", now_ms())])
    with pytest.raises(CorruptRow):
        ratings.asker.stream("ScanRatings", min_rating_count=1)


@pytest.mark.tools
@settings(max_examples=30, deadline=None)
@given(
    count=st.integers(0, 400),
    partition_count=st.integers(1, 7),
    slices=st.integers(1, 9),
    broken_after=st.integers(1, 3),
    least=st.none() | st.integers(0, 40),
)
def test_slices_are_together_the_scan(
    count: int, partition_count: int, slices: int, broken_after: int, least: int | None
) -> None:
    ratings = make_ratings(partition_count, limits=QueryLimits(message_bytes_max=300))
    ratings.table.put(rating(number, count=number % 40) for number in range(count))
    fields = {} if least is None else {"min_rating_count": least}
    [sliced] = ratings.asker.stream("ScanRatings", scan_options={"slices": slices}, **fields)
    assert not sliced.ratings
    tokens = sliced.progress.slice_tokens
    assert len(tokens) == min(slices, partition_count)
    seen = list[int]()
    for token in tokens:
        first = ratings.asker.stream("ScanRatings", most=broken_after, **_goes_on(token), **fields)
        rest = ratings.asker.stream("ScanRatings", **_goes_on(first[-1].progress.resume_token), **fields)
        seen += _ids(first) + _ids(rest)
    assert sorted(seen) == [number for number in range(count) if least is None or number % 40 >= least]


def _goes_on(token: str, slices: int = 0) -> dict[str, Any]:
    return {"scan_options": {"resume_token": token, "slices": slices}}


def test_a_slice_is_not_sliced_again(ratings: Ratings) -> None:
    ratings.table.put(rating(number) for number in range(100))
    [sliced] = ratings.asker.stream("ScanRatings", scan_options={"slices": 3})
    whole = [ratings.asker.stream("ScanRatings", **_goes_on(token, 2)) for token in sliced.progress.slice_tokens]
    assert sorted(number for messages in whole for number in _ids(messages)) == list(range(100))


def test_a_scan_that_ends_after_some_rows_has_one_slice(ratings: Ratings, shop: Shop) -> None:
    for messages in (
        ratings.asker.stream("ScanRatings", scan_options={"slices": 3, "limit": 5}),
        shop.asker.stream("ScanOrders", scan_options={"slices": 3}),  # max_rows in its contract
    ):
        assert len(messages[0].progress.slice_tokens) == 1


def test_slices_are_of_one_generation(ratings: Ratings) -> None:
    ratings.table.put(rating(number) for number in range(100))
    [sliced] = ratings.asker.stream("ScanRatings", scan_options={"slices": 3})
    ratings.table.generation += 1
    ratings.table.publish()
    for token in sliced.progress.slice_tokens:
        with pytest.raises(TableRebuilt):
            ratings.asker.stream("ScanRatings", **_goes_on(token))


@pytest.mark.parametrize("slices", [-1, 1_001])
def test_a_number_of_slices_that_is_none_is_refused(ratings: Ratings, slices: int) -> None:
    with pytest.raises(InvalidField, match=r"slices.*at most 1000"):
        ratings.asker.stream("ScanRatings", scan_options={"slices": slices})
