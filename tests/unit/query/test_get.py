import asyncio
from contextlib import AbstractContextManager

import pytest
from typing_extensions import override

from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.errors import (
    InvalidField,
    NotServed,
    PartitionUnavailable,
    RowNotFound,
    StoreAway,
    TooManyKeys,
)
from tablegate.gateway.stores.base import Phase, Snapshot
from tablegate.internal.v1.store_pb2 import TableState
from tests.kit.call.asker import Asker, Ratings, Shop
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import LocalCall, catalogue_of, rating, ratings_table


def test_get_finds_the_row_and_says_what_it_read(ratings: Ratings) -> None:
    ratings.table.put([rating(362, 9.0, 2), rating(-1, 3.0)])
    answer = ratings.ask("GetRating", movie_id=362)
    assert answer.rating == rating(362, 9.0, 2)
    assert answer.read_info.consistency_token
    assert answer.read_info.as_of_time.seconds > 1_600_000_000
    assert dict(ratings.asker.call.trailer)[b"tablegate-role"] == b"owner"
    assert dict(ratings.asker.call.trailer)[b"tablegate-partition"] in {b"0", b"1", b"2"}
    assert ratings.ask("GetRating", movie_id=-1).rating == rating(-1, 3.0)


def test_get_of_a_deleted_or_unknown_key_is_not_found(ratings: Ratings) -> None:
    ratings.table.put([rating(1)])
    ratings.table.delete([rating(1)])
    for movie_id in (1, 2):
        with pytest.raises(RowNotFound):
            ratings.ask("GetRating", movie_id=movie_id)


def test_read_info_follows_the_position(ratings: Ratings) -> None:
    ratings.table.put([rating(1)])
    first = ratings.ask("GetRating", movie_id=1).read_info
    assert ratings.ask("GetRating", movie_id=1).read_info == first
    ratings.table.put([rating(1, 7.0)])
    assert ratings.ask("GetRating", movie_id=1).read_info != first


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("method", ["GetRating", "BatchGetRatings", "ListRatings", "ScanRatings"])
def test_nothing_is_not_found_while_restoring(ratings: Ratings, method: str, held: bool) -> None:
    """Partition 2 alone is being restored; or the store does not hold any partition yet."""
    table = ratings.table
    if held:
        table.move(Partition(2), phase=Phase.RESTORING)
    else:
        assert table.store.drop(table.store_id, limit=100)
    movie_id = next(n for n in range(100) if table.table.partition_of(table.key_of(rating(n)), 3) == 2)
    request = ratings.asker.request(method)
    if method == "GetRating":
        request.movie_id = movie_id
    elif method == "BatchGetRatings":
        request.keys.add(movie_id=movie_id)
    ask = ratings.asker.stream if method == "ScanRatings" else ratings.ask
    with pytest.raises(PartitionUnavailable, match="being restored"):
        ask(method, request)


class CountedStore(MemoryStore):
    """A store that counts its snapshots."""

    snapshots = 0

    @override
    def snapshot(self) -> AbstractContextManager[Snapshot]:
        self.snapshots += 1
        return super().snapshot()


@pytest.mark.parametrize("method", ["GetRating", "BatchGetRatings", "ListRatings"])
def test_an_answer_is_of_one_moment(method: str) -> None:
    """Rows, positions and token are of one snapshot, over all partitions: no batch is seen in part."""
    store = CountedStore()
    ratings_table(store).put(rating(number) for number in range(20))
    asker = Asker(catalogue_of(), store, "/examples.ratings.v1.RatingsService", None)
    request = asker.request(method)
    if method == "BatchGetRatings":
        for movie_id in range(20):
            request.keys.add(movie_id=movie_id)
    assert asker.ask(method, request).read_info.consistency_token
    assert store.snapshots == 1


def test_a_table_with_a_problem_is_not_answered(ratings: Ratings) -> None:
    ratings.table.publish(problem="the manifest has another key")
    with pytest.raises(PartitionUnavailable, match="the manifest has another key"):
        ratings.ask("GetRating", movie_id=1)


def test_a_table_without_a_manifest_is_not_answered(shop: Shop) -> None:
    shop.accounts.store.put_table("accounts", TableState())
    request = shop.asker.request("GetAccount", number=1)
    request.open_time.seconds = 1
    with pytest.raises(PartitionUnavailable, match="no manifest"):
        shop.asker.ask("GetAccount", request)


def test_a_closed_store_is_unavailable(ratings: Ratings) -> None:
    ratings.table.store.close()
    with pytest.raises(StoreAway):
        ratings.ask("GetRating", movie_id=1)


def test_a_new_generation_is_seen(ratings: Ratings) -> None:
    ratings.table.put([rating(1, 5.0)])
    assert ratings.ask("GetRating", movie_id=1).rating.average_rating == 5.0
    ratings.table.generation = 2
    ratings.table.publish()
    with pytest.raises(RowNotFound):
        ratings.ask("GetRating", movie_id=1)
    ratings.table.put([rating(1, 8.0)])
    assert ratings.ask("GetRating", movie_id=1).rating.average_rating == 8.0


def test_missing_may_be_empty(shop: Shop) -> None:
    order = shop.orders.table.row_class(customer="ann\x00", code="")
    shop.orders.put([order])
    assert shop.asker.ask("GetOrder", customer="ann\x00", code="").order == order
    assert not shop.asker.ask("GetOrder", customer="ann", code="").HasField("order")


def test_bad_key_fields_are_named(shop: Shop) -> None:
    request = shop.asker.request("GetAccount", number=2**63)
    with pytest.raises(InvalidField) as refused:
        shop.asker.ask("GetAccount", request)
    assert refused.value.field == "number"
    request = shop.asker.request("GetAccount", number=2**63 - 1)
    with pytest.raises(InvalidField, match="required") as refused:
        shop.asker.ask("GetAccount", request)
    assert refused.value.field == "open_time"
    request.open_time.nanos = 1
    with pytest.raises(InvalidField, match="microsecond"):
        shop.asker.ask("GetAccount", request)
    request.open_time.nanos = -1
    with pytest.raises(InvalidField, match="moment"):
        shop.asker.ask("GetAccount", request)
    request.open_time.nanos = 1_000
    with pytest.raises(RowNotFound):
        shop.asker.ask("GetAccount", request)
    with pytest.raises(InvalidField, match="500 bytes") as refused:
        shop.asker.ask("GetOrder", customer="x" * 499, code="")
    assert refused.value.field == "customer"


def test_bytes_that_are_no_request_are_refused(ratings: Ratings) -> None:
    handler = ratings.asker.methods["/examples.ratings.v1.RatingsService/GetRating"].handler
    with pytest.raises(InvalidField, match="GetRatingRequest"):
        asyncio.run(handler(b"\xff\xff", LocalCall()))  # type: ignore[arg-type]


def test_batch_get_answers_in_the_order_asked(ratings: Ratings) -> None:
    ratings.table.put(rating(number, number / 10) for number in range(50))
    request = ratings.asker.request("BatchGetRatings")
    asked = [3, 99, 3, 49, -5, 0]
    for movie_id in asked:
        request.keys.add(movie_id=movie_id)
    results = ratings.ask("BatchGetRatings", request).results
    assert [result.WhichOneof("result") for result in results] == [
        "found", "missing", "found", "found", "missing", "found",
    ]  # fmt: skip
    assert [result.found.movie_id or result.missing.movie_id for result in results] == asked
    assert dict(ratings.asker.call.trailer)[b"tablegate-partition"] == b"several"


def test_batch_get_of_nothing_and_of_too_much(ratings: Ratings) -> None:
    assert not ratings.ask("BatchGetRatings").results
    request = ratings.asker.request("BatchGetRatings")
    for movie_id in range(501):
        request.keys.add(movie_id=movie_id)
    with pytest.raises(TooManyKeys) as refused:
        ratings.ask("BatchGetRatings", request)
    assert refused.value.metadata == {"maxKeys": "500"}


def test_batch_get_takes_plain_values_of_a_key_of_one_column(shop: Shop) -> None:
    shop.tags.put(shop.tags.table.row_class(name=name, uses=1) for name in ("", "new"))
    results = shop.asker.ask("BatchGetTags", names=["new", "old", ""]).results
    assert [result.found.name or result.missing for result in results] == ["new", "old", ""]
    assert [result.WhichOneof("result") for result in results] == ["found", "missing", "found"]
    with pytest.raises(InvalidField, match="500 bytes") as refused:
        shop.asker.ask("BatchGetTags", names=["new", "x" * 500])
    assert refused.value.field == "names[1]"
    request = shop.asker.request("BatchGetDays")
    request.starts.add(seconds=5)
    assert shop.asker.ask("BatchGetDays", request).results[0].missing.seconds == 5
    request.starts.add(nanos=5)
    with pytest.raises(InvalidField, match="microsecond") as refused:
        shop.asker.ask("BatchGetDays", request)
    assert refused.value.field == "starts[1]"


def test_what_is_not_served_says_so(shop: Shop) -> None:
    with pytest.raises(NotServed, match="no query"):
        shop.asker.methods["/shop.v1.ShopService/Audit"].handler(b"", LocalCall())  # type: ignore[arg-type]
