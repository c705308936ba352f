"""Masks in requests: every kind of query gives the fields asked for and the key, from any gateway, and nothing else."""

import itertools
import json
import random
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from tablegate.gateway.access.views import View
from tablegate.gateway.query.call import UnaryMethod
from tablegate.gateway.query.errors import InvalidField, InvalidResumeToken
from tablegate.v1.query_pb2 import ORDER_DESCENDING
from tests.kit.call.asker import Asker, Ratings
from tests.kit.gateways_in_process.cluster import ALONE, EACH_ON_ONE, GrpcCluster
from tests.kit.table.accounts import ACCOUNTS, CITIES, SERVICE, account
from tests.kit.table.contracts import edited
from tests.kit.table.filled import LocalCall, rating

AVERAGE = {"paths": ["average_rating"]}
NUMBERS = range(1, 60)


def facts(row: Any) -> dict[str, Any]:
    """Return the columns that a row has."""
    return {field.name: value for field, value in row.ListFields()}


def short(number: int) -> dict[str, Any]:
    """Return what a mask of its average leaves of a row."""
    return {"movie_id": number, "average_rating": float(number)}


@pytest.fixture(scope="module")
def cluster() -> Iterator[GrpcCluster]:
    with GrpcCluster(EACH_ON_ONE) as cluster:
        cluster.put(rating(number, float(number), number) for number in NUMBERS)
        yield cluster


@pytest.mark.parametrize("gateway", ["a", "b", ALONE])
def test_get_and_batch_get_trim_rows_wherever_they_are(cluster: GrpcCluster, gateway: str) -> None:
    for number in range(1, 10):
        answer = cluster.ask(gateway, "GetRating", movie_id=number, read_mask=AVERAGE)
        assert facts(answer.rating) == short(number)
        assert answer.read_info.consistency_token
    keys = [{"movie_id": number} for number in (5, 3, 100, 9, 1)]
    results = cluster.ask(gateway, "BatchGetRatings", keys=keys, read_mask=AVERAGE).results
    assert [facts(each.found) for each in results if each.HasField("found")] == [short(each) for each in (5, 3, 9, 1)]
    assert results[2].missing.movie_id == 100


@pytest.mark.parametrize("gateways", ["a", "abc", ""])
def test_pages_go_on_with_another_mask(cluster: GrpcCluster, gateways: str) -> None:
    """A mask says nothing of which rows there are, or in which order."""
    token, found = "", []
    masks: Any = itertools.cycle([AVERAGE, {}, {"paths": ["update_time"]}])
    for turn in range(100):
        gateway = gateways[turn % len(gateways)] if gateways else ALONE
        mask, fields = next(masks), {"order": ORDER_DESCENDING}
        page = cluster.ask(gateway, "ListRatings", page_size=7, page_token=token, read_mask=mask, **fields)
        assert {row.HasField("update_time") for row in page.ratings} == {mask is not AVERAGE}
        assert {"average_rating" in facts(row) for row in page.ratings} == {"update_time" not in str(mask)}
        found += [row.movie_id for row in page.ratings]
        token = page.next_page_token
        if not token:
            break
    assert found == sorted(NUMBERS, reverse=True)


@pytest.mark.parametrize("gateway", ["a", "c", ALONE])
def test_scans_trim_rows_behind_their_filters_and_resume(cluster: GrpcCluster, gateway: str) -> None:
    messages = list(cluster.stream(gateway, "ScanRatings", min_rating_count=20, read_mask=AVERAGE))
    rows = [row for message in messages for row in message.ratings]
    assert sorted(row.movie_id for row in rows) == list(range(20, 60))
    assert all(facts(row) == short(row.movie_id) for row in rows)
    token = messages[0].progress.resume_token
    resumed = list(cluster.stream(gateway, "ScanRatings", min_rating_count=20, scan_options={"resume_token": token}))
    whole = [row for message in resumed for row in message.ratings]
    assert len(whole) == len(rows) - len(messages[0].ratings)
    assert all(row.rating_count for row in whole)


@pytest.mark.parametrize("gateway", ["a", ALONE])
def test_subscribers_of_two_masks_get_each_their_own(cluster: GrpcCluster, gateway: str) -> None:
    masks: Any = [AVERAGE, {"paths": ["rating_count"]}, {"paths": ["*"]}]
    streams = [cluster.stream(gateway, "SubscribeRatings", movie_id=7, read_mask=mask) for mask in masks]
    try:
        for average in (7.0, 8.0, 7.0):
            given = [next(change for message in stream for change in message.changes) for stream in streams]
            averages = {"movie_id": 7, "average_rating": average}
            assert [facts(change.upsert) for change in given[:2]] == [averages, {"movie_id": 7, "rating_count": 7}]
            assert len(facts(given[2].upsert)) == 4
            cluster.put([rating(7, 8.0 if average == 7.0 else 7.0, 7)])
    finally:
        cluster.cancel_streams()
        cluster.put([rating(7, 7.0, 7)])


def test_a_subscription_resumes_by_its_own_mask_alone(ratings: Ratings) -> None:
    """Its copy would have rows of two kinds."""
    ratings.table.put([rating(1)])
    [message] = ratings.asker.stream("SubscribeRatings", most=1, read_mask=AVERAGE)
    options = {"resume_token": message.progress.resume_token}
    ratings.asker.stream("SubscribeRatings", most=1, read_mask=AVERAGE, subscribe_options=options)
    for other in (None, {"paths": ["rating_count"]}):
        with pytest.raises(InvalidResumeToken):
            ratings.asker.stream("SubscribeRatings", most=1, read_mask=other, subscribe_options=options)


@pytest.mark.parametrize("method", ["GetRating", "BatchGetRatings", "ListRatings", "ScanRatings", "SubscribeRatings"])
def test_a_path_of_no_column_is_refused_by_every_query(cluster: GrpcCluster, method: str) -> None:
    for gateway in ("a", ALONE):
        request = cluster.request(method, read_mask={"paths": ["movie_id", "rating.average"]})
        streams = method.startswith(("Scan", "Subscribe"))
        ask = (lambda *asked: next(cluster.stream(*asked))) if streams else cluster.ask
        with pytest.raises(grpc.RpcError) as refused:
            ask(gateway, method, request)
        error: Any = refused.value
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error.details() == (
            'field "read_mask": names "rating.average", and Rating has no such field; '
            'name columns of Rating, or "*" for all'
        )


def test_a_column_that_is_hidden_stays_so(ratings: Ratings) -> None:
    ratings.table.put([rating(1, 9.0, 2)])
    unary = ratings.asker.methods[f"{ratings.asker.service}/GetRating"]
    assert isinstance(unary, UnaryMethod)
    assert unary.handler_for is not None
    call = LocalCall(view=View(hidden=("average_rating",)))
    request = ratings.asker.request("GetRating", movie_id=1, read_mask={"paths": ["average_rating", "rating_count"]})
    answer: Any = unary.handler_for(call)(request.SerializeToString(), call)
    response: Any = ratings.asker.catalogue.queries[f"{ratings.asker.service}/GetRating"].response_class
    assert response.FromString(answer).rating == type(rating(1))(movie_id=1, rating_count=2)


def _http(cluster: GrpcCluster, path: str, body: bytes | None = None) -> Any:
    url = f"http://127.0.0.1:{cluster['a'].port}{path}"
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.loads(answer.read())


def test_rest_takes_a_mask_as_one_text(cluster: GrpcCluster) -> None:
    for mask in ("averageRating", "average_rating", "averageRating,movieId", "averageRating,averageRating"):
        assert _http(cluster, f"/v1/ratings/7?read_mask={mask}")["rating"] == {"movieId": "7", "averageRating": 7.0}
        assert _http(cluster, f"/v1/ratings/7?readMask={urllib.parse.quote(mask)}")["rating"]["movieId"] == "7"
    for whole in ("", "*", "averageRating,*"):
        assert len(_http(cluster, f"/v1/ratings/7?read_mask={whole}")["rating"]) == 4
    rows = _http(cluster, "/v1/ratings?read_mask=ratingCount&page_size=2")["ratings"]
    assert rows == [{"movieId": "1", "ratingCount": "1"}, {"movieId": "2", "ratingCount": "2"}]
    body = b'{"keys": [{"movieId": 7}], "readMask": "updateTime.seconds"}'
    [result] = _http(cluster, "/v1/ratings:batchGet", body)["results"]
    assert result["found"] == {"movieId": "7", "updateTime": "2023-11-14T22:13:20Z"}
    with pytest.raises(urllib.error.HTTPError) as refused:
        _http(cluster, "/v1/ratings/7?read_mask=averageRating,,x")
    with refused.value:
        assert refused.value.code == 400


MASKED = edited(
    ACCOUNTS.read_text("utf-8").replace(
        "  tablegate.v1.ReadOptions read_options",
        "  google.protobuf.FieldMask columns = 20;\n  tablegate.v1.ReadOptions read_options",
    ),
    (
        'import "google/protobuf/timestamp.proto";',
        'import "google/protobuf/timestamp.proto";\nimport "google/protobuf/field_mask.proto";',
    ),
)


@pytest.fixture(scope="module")
def accounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[GrpcCluster, list[Any]]]:
    contract = tmp_path_factory.mktemp("masks") / "accounts.proto"
    contract.write_text(MASKED)
    choice = random.Random(4)
    rows = {(row.bank, row.account_id): row for row in (account(choice) for _ in range(60))}
    with GrpcCluster(EACH_ON_ONE, contract=contract, table="accounts", service=SERVICE) as cluster:
        cluster.put(rows.values())
        yield cluster, list(rows.values())


def _masked(row: Any) -> tuple[str, int, tuple[str, ...]]:
    """Return the key and the tags of a row that has nothing else."""
    assert {field.name for field, _ in row.ListFields()} <= {"bank", "account_id", "tags"}
    return row.bank, row.account_id, tuple(row.tags)


@pytest.mark.parametrize("gateways", ["abc", ""])
def test_pages_by_an_index_need_none_of_its_columns(accounts: tuple[GrpcCluster, list[Any]], gateways: str) -> None:
    """Gateways merge rows by the index's columns; who asks gets what was asked for."""
    cluster, rows = accounts
    for city in (each for each in CITIES if len(each) < 500):
        token, found = "", []
        for turn in range(100):
            gateway = gateways[turn % len(gateways)] if gateways else ALONE
            fields = {"city": city, "columns": {"paths": ["tags"]}, "page_size": 3}
            page = cluster.ask(gateway, "ListAccountsInCity", page_token=token, **fields)
            found += [_masked(row) for row in page.accounts]
            token = page.next_page_token
            if not token:
                break
        here = [row for row in rows if row.HasField("address") and row.address.city == city]
        here.sort(key=lambda row: (row.HasField("balance"), row.balance))
        assert sorted(found) == sorted((row.bank, row.account_id, tuple(row.tags)) for row in here)
        balances = {(row.bank, row.account_id): (row.HasField("balance"), row.balance) for row in here}
        assert [balances[bank, number] for bank, number, _ in found] == sorted(balances.values())


@pytest.mark.parametrize("gateway", ["b", ALONE])
def test_a_get_by_an_index_trims(accounts: tuple[GrpcCluster, list[Any]], gateway: str) -> None:
    cluster, rows = accounts
    numbers = [row.number for row in rows]
    row = next(row for row in rows if numbers.count(row.number) == 1)
    found = cluster.ask(gateway, "GetAccountByNumber", number=row.number, columns={"paths": ["tags"]}).account
    assert _masked(found) == (row.bank, row.account_id, tuple(row.tags))
    batch = cluster.ask(gateway, "BatchGetAccountsByNumber", numbers=[row.number], columns={"paths": ["tags"]})
    assert _masked(batch.results[0].account) == (row.bank, row.account_id, tuple(row.tags))


def test_a_mask_of_nothing_new_is_answered_all_the_same(ratings: Ratings) -> None:
    asker: Asker = ratings.asker
    ratings.table.put([rating(1, 9.0, 2)])
    assert asker.ask("GetRating", movie_id=1, read_mask={}).rating == rating(1, 9.0, 2)
    assert asker.ask("GetRating", movie_id=1, read_mask={"paths": ["movie_id"]}).rating.average_rating == 0
    with pytest.raises(InvalidField, match="has 10000 paths, and at most 1000"):
        asker.ask("GetRating", movie_id=1, read_mask={"paths": ["movie_id"] * 10_000})
