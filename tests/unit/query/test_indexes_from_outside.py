"""Queries by an index over REST, and explained: as they are answered."""

import json
import random
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tablegate.gateway.contract.indexes import RowIndexes
from tablegate.v1.status_pb2 import ExplainRequest, ExplainResponse, PartitionRoute
from tests.kit.gateways_in_process.cluster import ALONE, GrpcCluster, Placement
from tests.kit.gateways_in_process.metadata import TIMEOUT_S, at, refused
from tests.kit.table.accounts import ACCOUNTS, SERVICE, account

PLACED: Placement = {"a": [0, 1, 2], "b": [2, 3], "c": [4, 5, 0]}
GATEWAYS = ("a", "b", ALONE)


@pytest.fixture(scope="module")
def rows() -> list[Any]:
    choice = random.Random(1)
    found = (account(choice) for _ in range(60))
    rows = list({(row.bank, row.account_id): row for row in found}.values())
    for row in rows[::2]:
        row.address.city = "Bonn"
    return rows


@pytest.fixture
def cluster(rows: list[Any]) -> Iterator[GrpcCluster]:
    with GrpcCluster(PLACED, contract=ACCOUNTS, table="accounts", service=SERVICE) as cluster:
        cluster.put(rows)
        yield cluster


def _get(cluster: GrpcCluster, gateway: str, path: str, **query: object) -> Any:
    """Return what REST answers."""
    port = (cluster.whole if gateway == ALONE else cluster[gateway]).port
    url = f"http://127.0.0.1:{port}{path}?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        return json.load(answer)


def _explain(cluster: GrpcCluster, gateway: str, method: str, **request: object) -> ExplainResponse:
    with at(cluster, gateway) as asked:
        return asked.explain_raw(ExplainRequest(method=f"{SERVICE.lstrip('/')}/{method}", json=json.dumps(request)))


@pytest.mark.parametrize("gateway", GATEWAYS)
def test_rest_reads_by_an_index(cluster: GrpcCluster, rows: list[Any], gateway: str) -> None:
    for row in rows[:5]:
        found = _get(cluster, gateway, f"/v1/numbers/{urllib.parse.quote(row.number, safe='')}/account")
        assert found["account"]["number"] == row.number
    with pytest.raises(urllib.error.HTTPError) as refused:
        _get(cluster, gateway, "/v1/numbers/none/account")
    with refused.value:
        assert refused.value.code == 404
    wanted = [row.balance for row in rows if row.address.city == "Bonn" and row.HasField("balance")]
    balances: list[int] = []
    token = ""
    while True:
        fields = {"minBalance": -(2**63), "order": "ORDER_DESCENDING", "pageSize": 2, "pageToken": token}
        page = _get(cluster, gateway, "/v1/cities/Bonn/accounts", **fields)
        balances += [int(each["balance"]) for each in page["accounts"]]
        token = page.get("nextPageToken", "")
        if not token:
            break
    assert balances == sorted(wanted, reverse=True)
    assert len(balances) > 4


def test_a_read_by_an_index_is_explained_as_it_is_answered(cluster: GrpcCluster, rows: list[Any]) -> None:
    row = rows[0]
    everywhere = '6 of 6 partitions: all, as none of its columns is bank; index "by_number" is kept in each'
    in_one = '1 of 6 partitions: by their bank; index "by_bank_and_number" is kept in each'
    for gateway in PLACED:
        for method, request, reads in (
            ("GetAccountByNumber", {"number": row.number}, everywhere),
            ("BatchGetAccountsByNumber", {"numbers": [row.number]}, everywhere),
            ("GetAccountOfBank", {"bank": row.bank, "number": row.number}, in_one),
            (
                "ListAccountsInCity",
                {"city": "Bonn"},
                '6 of 6 partitions: all, as it does not fix bank; by index "by_city"',
            ),
        ):
            answer = _explain(cluster, gateway, method, **request)
            assert answer.reads == reads
            asked = {plan.gateway_id for plan in answer.partitions} - {gateway}
            cluster.calls()
            cluster.ask_nobody_twice()
            cluster.ask(gateway, method, **request)
            assert set(cluster.calls()) == asked, (gateway, method)


def test_explain_says_where_an_index_is_being_built(cluster: GrpcCluster, rows: list[Any]) -> None:
    """A partition whose index another gateway has is asked there; one that nobody else has is not answered."""
    table = cluster["a"].table
    table.store.keep_indexes(table.store_id, RowIndexes((), table.table.row_class))
    table.store.keep_indexes(table.store_id, table.table.row_indexes)
    plans = {plan.partition: plan for plan in _explain(cluster, "a", "GetAccountByNumber", number="1").partitions}
    routes = {number: PartitionRoute.Name(plan.route).rpartition("_")[2] for number, plan in plans.items()}
    assert routes == {0: "FORWARDED", 1: "NONE", 2: "FORWARDED", 3: "FORWARDED", 4: "FORWARDED", 5: "FORWARDED"}
    assert plans[1].why == 'its index "by_number" is being built here'
    code, reason, text = refused(lambda: cluster.ask("a", "GetAccountByNumber", number="1"))
    assert (code, reason) == ("UNAVAILABLE", "INDEX_NOT_BUILT"), text
