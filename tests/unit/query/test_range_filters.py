"""Ranges that filter: pages of any gateway, by the key and by an index, have the rows that pass, in order."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tablegate.gateway.contract.binder.problems import ContractError
from tablegate.gateway.contract.catalogue import RangeQuery
from tablegate.gateway.query.limits import DEFAULT_LIMITS, QueryLimits
from tablegate.v1.query_pb2 import ORDER_DESCENDING
from tests.kit.gateways_in_process.cluster import ALONE, GrpcCluster, Placement
from tests.kit.table.accounts import ACCOUNTS, BANKS, CITIES, SERVICE, account
from tests.kit.table.contracts import bind_sources, edited

SCATTERED: Placement = {"a": [0, 1, 2], "b": [2, 3], "c": [4, 5, 0]}
FILTERS = """
  repeated State states = 11 [(tablegate.v1.param) = { column: "state" op: OP_IN }];
  optional string number_prefix = 12 [(tablegate.v1.param) = { column: "number" op: OP_PREFIX }];
  optional string number_from = 13 [(tablegate.v1.param) = { column: "number" op: OP_GTE }];
  repeated google.protobuf.Timestamp opened = 14 [(tablegate.v1.param) = { column: "opened_time" op: OP_IN }];
"""
BY_KEY = """
message ListAccountsRequest {
  optional string bank_from = 1 [(tablegate.v1.param) = { column: "bank" op: OP_GTE }];
  repeated string banks = 2 [(tablegate.v1.param) = { column: "bank" op: OP_IN }];
  optional int64 account_id_from = 3 [(tablegate.v1.param) = { column: "account_id" op: OP_GTE }];
  tablegate.v1.Order order = 4;
  int32 page_size = 5;
  string page_token = 6;
  tablegate.v1.ReadOptions read_options = 7;
  FILTERS
}
"""
METHOD = """
  rpc ListAccounts(ListAccountsRequest) returns (ListAccountsResponse) {
    option (tablegate.v1.query) = { range: {scatter: true} };
  }
"""
IN_CITY = "message ListAccountsInCityRequest {\n"
LIST_CITY = "  rpc ListAccountsInCity("


def text(more: str = "") -> str:
    return edited(
        ACCOUNTS.read_text("utf-8"), (LIST_CITY, METHOD + LIST_CITY), (IN_CITY, IN_CITY + FILTERS)
    ) + BY_KEY.replace("FILTERS", FILTERS + more)


class Accounts:
    """Accounts by their key, and what a request asks of them."""

    def __init__(self, seed: int) -> None:
        choice = random.Random(seed)
        self.rows: dict[tuple[str, int], Any] = {}
        for _ in range(80):
            row = account(choice)
            self.rows[row.bank, row.account_id] = row

    def where(self, **asked: Any) -> list[tuple[str, int]]:
        holds: dict[str, Callable[[Any, Any], bool]] = {
            "states": lambda row, values: row.HasField("state") and row.state in values,
            "number_prefix": lambda row, value: row.number.startswith(value),
            "number_from": lambda row, value: row.number >= value,
            "opened": lambda row, values: (
                row.HasField("opened_time")
                and {"seconds": row.opened_time.seconds, "nanos": row.opened_time.nanos} in values
            ),
            "bank_from": lambda row, value: row.bank >= value,
            "banks": lambda row, values: row.bank in values,
            "account_id_from": lambda row, value: row.account_id >= value,
            "city": lambda row, value: row.HasField("address") and row.address.city == value,
            "min_balance": lambda row, value: row.HasField("balance") and row.balance >= value,
        }
        return [
            key for key, row in self.rows.items() if all(holds[name](row, wanted) for name, wanted in asked.items())
        ]


@pytest.fixture(scope="module", params=[DEFAULT_LIMITS, QueryLimits(read_rows_max=3)], ids=["", "three rows looked at"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GrpcCluster]:
    contract = tmp_path_factory.mktemp("filters") / "accounts.proto"
    contract.write_text(text())
    with GrpcCluster(SCATTERED, contract=contract, table="accounts", service=SERVICE, limits=request.param) as cluster:
        cluster.put(Accounts(1).rows.values())
        yield cluster


def walk(cluster: GrpcCluster, method: str, gateways: str, page_size: int, **asked: Any) -> list[Any]:
    found: list[Any] = []
    token = ""
    for turn in range(400):
        gateway = gateways[turn % len(gateways)] if gateways else ALONE
        page = cluster.ask(gateway, method, page_size=page_size, page_token=token, **asked)
        assert len(page.accounts) <= page_size
        found += page.accounts
        token = page.next_page_token
        if not token:
            return found
    raise AssertionError("the walk does not end")


def some(choice: random.Random) -> dict[str, Any]:
    filters: dict[str, Any] = {
        "states": choice.sample(range(3), k=2),
        "number_prefix": choice.choice(BANKS)[:2],
        "number_from": choice.choice(BANKS),
        "opened": [{"seconds": 0, "nanos": 1}, {"seconds": 10**9, "nanos": 0}],
    }
    return {name: filters[name] for name in choice.sample([*filters], k=choice.randrange(1, 3))}


@pytest.mark.tools
@pytest.mark.parametrize("gateways", ["", "abc"])
def test_pages_by_the_key_have_the_rows_that_pass(cluster: GrpcCluster, gateways: str) -> None:
    choice, accounts = random.Random(2), Accounts(1)
    for turn in range(12):
        asked = some(choice)
        if turn % 2:
            asked |= choice.choice([{"bank_from": BANKS[1]}, {"banks": [*BANKS[:2]]}, {"account_id_from": 1}])
        order = {"order": ORDER_DESCENDING} if turn % 3 == 0 else {}
        found = [(row.bank, row.account_id) for row in walk(cluster, "ListAccounts", gateways, 4, **asked, **order)]
        assert found == sorted(accounts.where(**asked), reverse=bool(order)), asked


@pytest.mark.parametrize("gateways", ["", "abc"])
def test_pages_by_an_index_have_the_rows_that_pass(cluster: GrpcCluster, gateways: str) -> None:
    choice, accounts = random.Random(3), Accounts(1)
    for turn in range(8):
        asked = some(choice) | {"city": choice.choice([city for city in CITIES if len(city) < 500])}
        asked |= {"min_balance": 0} if turn % 2 else {}
        rows = walk(cluster, "ListAccountsInCity", gateways, 3, **asked)
        assert sorted((row.bank, row.account_id) for row in rows) == sorted(accounts.where(**asked)), asked
        balances = [(row.HasField("balance"), row.balance) for row in rows]
        assert balances == sorted(balances)


def test_a_page_token_is_of_its_filters(cluster: GrpcCluster) -> None:
    page = cluster.ask("a", "ListAccounts", page_size=1, states=[0, 1])
    with pytest.raises(grpc.RpcError) as refused:
        cluster.ask("a", "ListAccounts", page_size=1, states=[0], page_token=page.next_page_token)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_params_ask_for_the_longest_run_and_the_others_filter(tmp_path: Path) -> None:
    queries = bind_sources(tmp_path, accounts__v1__accounts=text()).queries

    def bound(name: str) -> tuple[str | None, list[str], list[str], list[str]]:
        query = queries[f"{SERVICE}/{name}"]
        assert isinstance(query, RangeQuery)
        parts = [[param.field.name for param in part] for part in (query.prefix, query.bounds, query.filters)]
        return (None if query.index is None else query.index.name, *parts)  # type: ignore[return-value]

    filters = ["states", "number_prefix", "number_from", "opened"]
    assert bound("ListAccounts") == (None, [], ["bank_from"], ["banks", "account_id_from", *filters])
    assert bound("ListAccountsInCity") == ("by_city", ["city"], ["min_balance", "below_balance"], filters)
    assert bound("ListAccountsOfBank")[3] == []


@pytest.mark.parametrize(
    ("field", "why"),
    [
        (
            'repeated string names = 20 [(tablegate.v1.param).column = "number"];',
            "a repeated field constrains no column",
        ),
        (
            'optional string name = 20 [(tablegate.v1.param) = { column: "number" op: OP_IN }];',
            'OP_IN takes several values; write "repeated" before its type',
        ),
        ('repeated string all = 20 [(tablegate.v1.param) = { column: "tags" op: OP_IN }];', "OP_IN has no meaning"),
        ('repeated int64 all = 20 [(tablegate.v1.param) = { column: "number" op: OP_IN }];', "its type is int64"),
        ('string number_is = 20 [(tablegate.v1.param) = { column: "number" op: OP_GT }];', "has no presence"),
    ],
)
def test_what_is_no_filter_is_refused_in_words(tmp_path: Path, field: str, why: str) -> None:
    with pytest.raises(ContractError) as refused:
        bind_sources(tmp_path, accounts__v1__accounts=text(field))
    assert why in str(refused.value)
