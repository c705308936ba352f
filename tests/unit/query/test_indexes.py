"""Queries by an index: what they answer alone and in a cluster is what the rows say."""

import asyncio
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from tablegate.gateway.access.views import View
from tablegate.gateway.contract.indexes import RowIndexes
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.call import UnaryMethod
from tablegate.gateway.query.errors import (
    IndexNotBuilt,
    IndexNotUnique,
    InvalidField,
    InvalidPageToken,
    NotAllowed,
    RowNotFound,
)
from tablegate.v1.query_pb2 import ORDER_DESCENDING
from tests.kit.call.asker import Asker
from tests.kit.gateways_in_process.cluster import ALONE, GrpcCluster, Placement
from tests.kit.store.memory import MemoryStore
from tests.kit.table.accounts import ACCOUNTS, BANKS, CITIES, SERVICE, TAGS, account
from tests.kit.table.contracts import edited
from tests.kit.table.filled import FilledTable, LocalCall, catalogue_of

SCATTERED: Placement = {"a": [0, 1, 2], "b": [2, 3], "c": [4, 5, 0]}
GATEWAYS = ("a", "b", "c", ALONE)


class Accounts:
    """Accounts by their key, in random states."""

    def __init__(self, seed: int, count: int = 60) -> None:
        choice = random.Random(seed)
        rows = (account(choice) for _ in range(count))
        self.rows: dict[tuple[str, int], Any] = {(row.bank, row.account_id): row for row in rows}

    def where(self, holds: Any) -> list[Any]:
        return [row for row in self.rows.values() if holds(row)]


@pytest.fixture(scope="module")
def accounts() -> Accounts:
    return Accounts(1)


@pytest.fixture(scope="module")
def cluster(accounts: Accounts) -> Iterator[GrpcCluster]:
    with GrpcCluster(SCATTERED, contract=ACCOUNTS, table="accounts", service=SERVICE) as cluster:
        cluster.put(accounts.rows.values())
        yield cluster


@pytest.fixture
def filled() -> FilledTable:
    filled = FilledTable(MemoryStore(), catalogue_of(ACCOUNTS).tables["accounts"], 3)
    filled.publish()
    return filled


@pytest.fixture
def asker(filled: FilledTable) -> Asker:
    return Asker(catalogue_of(ACCOUNTS), filled.store, SERVICE, None)


def walk(cluster: GrpcCluster, method: str, *, gateways: str = "abc", page_size: int = 3, **fields: Any) -> list[Any]:
    """Return the accounts of a whole walk, each page asked of another gateway."""
    found: list[Any] = []
    token = ""
    for turn in range(200):
        gateway = gateways[turn % len(gateways)] if gateways else ALONE
        page = cluster.ask(gateway, method, page_size=page_size, page_token=token, **fields)
        assert page.read_info.consistency_token
        found += page.accounts
        token = page.next_page_token
        if not token:
            return found
        assert page.accounts
    raise AssertionError("the walk does not end")


def keys(rows: list[Any]) -> list[tuple[str, int]]:
    return [(row.bank, row.account_id) for row in rows]


def _is_in_city(row: Any, *, city: str, min_balance: int | None = None, below_balance: int | None = None) -> bool:
    if not row.HasField("address") or row.address.city != city:
        return False
    if min_balance is None and below_balance is None:
        return True
    if not row.HasField("balance"):  # no value passes no comparison
        return False
    return (min_balance is None or row.balance >= min_balance) and (
        below_balance is None or row.balance < below_balance
    )


@pytest.mark.parametrize("gateways", ["", "abc"])
@pytest.mark.parametrize("descending", [False, True])
def test_a_range_reads_in_the_order_of_its_index(
    cluster: GrpcCluster, accounts: Accounts, gateways: str, descending: bool
) -> None:
    for city in CITIES:
        for bounds in ({}, {"min_balance": 0}, {"below_balance": 7}, {"min_balance": -1, "below_balance": 0}):
            order = {"order": ORDER_DESCENDING} if descending else {}
            found = walk(cluster, "ListAccountsInCity", gateways=gateways, city=city, **bounds, **order)
            wanted = accounts.where(partial(_is_in_city, city=city, **bounds))
            assert sorted(keys(found)) == sorted(keys(wanted)), (city, bounds)
            if len(city) < 500:  # rows of a longer one are in the order of their keys
                balances = [(row.HasField("balance"), row.balance) for row in found]
                assert balances == sorted(balances, reverse=descending)


@pytest.mark.parametrize("gateways", ["", "abc"])
def test_a_range_of_one_partition_asks_that_alone(cluster: GrpcCluster, accounts: Accounts, gateways: str) -> None:
    for bank in BANKS:
        found = walk(cluster, "ListAccountsOfBank", gateways=gateways, bank=bank)
        times = [(row.HasField("opened_time"), row.opened_time.ToNanoseconds()) for row in found]
        assert times == sorted(times)
        assert sorted(keys(found)) == sorted(keys(accounts.where(lambda row, bank=bank: row.bank == bank)))
        found = walk(cluster, "ListAccountsOfBank", gateways=gateways, bank=bank, opened_from={"nanos": 1})
        late = accounts.where(
            lambda row, bank=bank: (
                row.bank == bank and row.HasField("opened_time") and row.opened_time.ToNanoseconds() >= 1
            )
        )
        assert sorted(keys(found)) == sorted(keys(late))


@pytest.mark.parametrize("gateways", ["", "abc"])
def test_a_range_by_an_element_meets_each_row_once(cluster: GrpcCluster, accounts: Accounts, gateways: str) -> None:
    for tag in TAGS:
        found = walk(cluster, "ListAccountsByTag", gateways=gateways, tag=tag)
        assert sorted(keys(found)) == sorted(keys(accounts.where(lambda row, tag=tag: tag in row.tags)))
        found = walk(cluster, "ListAccountsByTag", gateways=gateways, tag=tag, state=1)
        of_state = accounts.where(lambda row, tag=tag: tag in row.tags and row.HasField("state") and row.state == 1)
        assert sorted(keys(found)) == sorted(keys(of_state))


@pytest.mark.parametrize("gateway", GATEWAYS)
def test_a_get_by_a_unique_index_finds_the_row(cluster: GrpcCluster, accounts: Accounts, gateway: str) -> None:
    for row in accounts.rows.values():
        assert cluster.ask(gateway, "GetAccountByNumber", number=row.number).account == row
        assert cluster.ask(gateway, "GetAccountOfBank", bank=row.bank, number=row.number).account == row
    assert not cluster.ask(gateway, "GetAccountOfBank", bank="ash", number="none").HasField("account")


@pytest.mark.parametrize("gateway", GATEWAYS)
def test_a_batch_by_a_unique_index_is_in_the_order_asked(
    cluster: GrpcCluster, accounts: Accounts, gateway: str
) -> None:
    rows = list(accounts.rows.values())
    numbers = [rows[0].number, "none", *(row.number for row in rows[::-1]), rows[0].number]
    answer = cluster.ask(gateway, "BatchGetAccountsByNumber", numbers=numbers)
    assert [each.account.number or each.missing for each in answer.results] == numbers
    assert answer.results[0].account == rows[0]
    assert answer.results[1].missing == "none"
    assert answer.read_info.consistency_token


def test_a_read_by_an_index_asks_others_for_what_is_not_here(cluster: GrpcCluster, accounts: Accounts) -> None:
    cluster.calls()
    cluster.ask("a", "ListAccountsInCity", city="Bonn", page_size=99)
    assert sorted(set(cluster.calls())) == ["b", "c"]


def test_an_answer_by_an_index_gives_a_token_to_read_on_from(cluster: GrpcCluster, accounts: Accounts) -> None:
    row = next(iter(accounts.rows.values()))
    answer = cluster.ask("a", "GetAccountByNumber", number=row.number)
    options = {"at_least": answer.read_info.consistency_token}
    for gateway in "abc":
        assert cluster.ask(gateway, "GetAccountByNumber", number=row.number, read_options=options).account == row


def test_a_row_that_is_not_there_is_not_found(asker: Asker, filled: FilledTable) -> None:
    with pytest.raises(RowNotFound):
        asker.ask("GetAccountByNumber", number="none")


def test_two_rows_of_a_unique_value_are_an_error(asker: Asker, filled: FilledTable) -> None:
    row_class: Any = filled.table.row_class
    filled.put(row_class(bank=bank, account_id=1, number="same") for bank in BANKS)
    filled.put([row_class(bank="ash", account_id=2, number="same")])
    with pytest.raises(IndexNotUnique):
        asker.ask("GetAccountByNumber", number="same")
    with pytest.raises(IndexNotUnique):
        asker.ask("GetAccountOfBank", bank="ash", number="same")
    assert asker.ask("GetAccountOfBank", bank="birch", number="same").account.bank == "birch"
    with pytest.raises(IndexNotUnique):
        asker.ask("BatchGetAccountsByNumber", numbers=["other", "same"])


def test_until_an_index_is_whole_its_queries_say_so(asker: Asker, filled: FilledTable) -> None:
    row_class: Any = filled.table.row_class
    rows = [row_class(bank="ash", account_id=number, number=str(number)) for number in range(9)]
    filled.store.keep_indexes(filled.store_id, RowIndexes((), filled.table.row_class))
    filled.put(rows)
    filled.store.keep_indexes(filled.store_id, filled.table.row_indexes)
    for method, fields in (
        ("GetAccountByNumber", {"number": "1"}),
        ("BatchGetAccountsByNumber", {"numbers": ["1"]}),
        ("ListAccountsOfBank", {"bank": "ash"}),
        ("ListAccountsInCity", {"city": "Bonn"}),
    ):
        with pytest.raises(IndexNotBuilt, match="is being built"):
            asker.ask(method, **fields)
    assert asker.ask("GetAccount", bank="ash", account_id=1).account == rows[1]
    for partition in map(Partition, range(3)):
        while not filled.store.build_indexes(filled.store_id, partition, limit=2):
            pass
    assert asker.ask("GetAccountByNumber", number="1").account == rows[1]


def _ask_each(cluster: GrpcCluster, gateway: str, row: Any) -> None:
    """Ask each kind of query by an index whose answer has an account."""
    for method, fields in (
        ("GetAccountByNumber", {"number": row.number}),
        ("GetAccountOfBank", {"bank": row.bank, "number": row.number}),
        ("BatchGetAccountsByNumber", {"numbers": [row.number, "none"]}),
        ("ListAccountsInCity", {"city": row.address.city}),
        ("ListAccountsOfBank", {"bank": row.bank}),
    ):
        assert row.number in str(cluster.ask(gateway, method, **fields)), method


@pytest.mark.parametrize("unbuilt", ["a", "b", "ab"])
def test_a_replica_whose_index_is_not_whole_leaves_it_to_others(accounts: Accounts, unbuilt: str) -> None:
    """Only where all of them build it, they say so."""
    row = next(row for row in accounts.rows.values() if row.address.city)
    with GrpcCluster(
        {"a": range(6), "b": range(6), "c": ()}, contract=ACCOUNTS, table="accounts", service=SERVICE
    ) as cluster:
        tables = [cluster[name].table for name in unbuilt]
        for table in tables:
            table.store.keep_indexes(table.store_id, RowIndexes((), table.table.row_class))
        cluster.put(accounts.rows.values())
        for table in tables:
            table.store.keep_indexes(table.store_id, table.table.row_indexes)
        for gateway in "abc":
            if unbuilt != "ab":
                _ask_each(cluster, gateway, row)
                continue
            for method, fields in (
                ("GetAccountByNumber", {"number": row.number}),
                ("GetAccountOfBank", {"bank": row.bank, "number": row.number}),
                ("ListAccountsInCity", {"city": "Bonn"}),
            ):
                with pytest.raises(grpc.RpcError, match="is being built") as refused:
                    cluster.ask(gateway, method, **fields)
                assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_replica_alone_whose_index_is_not_whole_says_so(accounts: Accounts) -> None:
    row = next(iter(accounts.rows.values()))
    with GrpcCluster({"a": range(6), "b": ()}, contract=ACCOUNTS, table="accounts", service=SERVICE) as cluster:
        table = cluster["a"].table
        table.store.keep_indexes(table.store_id, RowIndexes((), table.table.row_class))
        cluster.put(accounts.rows.values())
        table.store.keep_indexes(table.store_id, table.table.row_indexes)
        for gateway in "ab":
            with pytest.raises(grpc.RpcError, match="is being built"):
                cluster.ask(gateway, "GetAccountOfBank", bank=row.bank, number=row.number)


def test_a_page_of_another_order_is_no_part_of_a_page(tmp_path: Path) -> None:
    """While gateways get a contract whose query reads by another index, some still answer by the one before."""
    balances = "".join(
        f'  optional int64 {name} = {number} [(tablegate.v1.param) = {{\n    column: "balance"\n    op: {op}\n  }}];\n'
        for name, number, op in (("min_balance", 2, "OP_GTE"), ("below_balance", 3, "OP_LT"))
    )
    text = edited(ACCOUNTS.read_text("utf-8"), (balances, ""))
    paths = {name: tmp_path / name / "accounts.proto" for name in ("by_balance", "by_number")}
    for name, path in paths.items():
        column = f'      columns: "{name.removeprefix("by_")}"\n'
        path.parent.mkdir()
        path.write_text(edited(text, ('      columns: "balance"\n', column)))
    row_class: Any = catalogue_of(ACCOUNTS).tables["accounts"].row_class
    rows = [
        row_class(bank=f"bank{number}", account_id=1, number=str(99 - number), address={"city": "Bonn"}, balance=number)
        for number in range(12)
    ]
    placed: Placement = {"a": [0, 1, 2], "b": [3, 4, 5], "c": [3, 4, 5]}
    with GrpcCluster(
        placed,
        contract=paths["by_balance"],
        table="accounts",
        service=SERVICE,
        contracts={"b": paths["by_number"], "c": paths["by_number"]},
    ) as cluster:
        cluster.put(rows)
        with pytest.raises(grpc.RpcError) as refused:
            walk(cluster, "ListAccountsInCity", gateways="a", page_size=2, city="Bonn")
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        found = walk(cluster, "ListAccountsInCity", gateways="a", page_size=12, city="Bonn")  # they have no more
        assert [row.balance for row in found] == list(range(12))


def test_a_page_token_of_another_request_is_refused(asker: Asker, filled: FilledTable) -> None:
    row_class: Any = filled.table.row_class
    filled.put(row_class(bank="ash", account_id=number, address={"city": "Bonn"}) for number in range(9))
    page = asker.ask("ListAccountsInCity", city="Bonn", page_size=2)
    with pytest.raises(InvalidPageToken):
        asker.ask("ListAccountsInCity", city="Ulm", page_size=2, page_token=page.next_page_token)


def test_a_time_that_is_none_is_refused(asker: Asker) -> None:
    with pytest.raises(InvalidField, match="not a moment"):
        asker.ask("ListAccountsOfBank", bank="ash", opened_from={"nanos": -1})


def _ask_as(asker: Asker, view: View, method: str, **fields: Any) -> Any:
    path = f"{SERVICE}/{method}"
    unary = asker.methods[path]
    assert isinstance(unary, UnaryMethod)
    assert unary.handler_for is not None
    call = LocalCall(view=view)

    async def ask() -> Any:
        answer = unary.handler_for(call)(asker.request(method, **fields).SerializeToString(), call)  # type: ignore[misc]
        return answer if isinstance(answer, bytes) else await answer

    return asker.catalogue.queries[path].response_class.FromString(asyncio.run(ask()))


def test_a_view_shows_its_rows_alone_by_an_index_too(asker: Asker, filled: FilledTable) -> None:
    row_class: Any = filled.table.row_class
    rows = [
        row_class(bank=bank, account_id=number, number=f"{bank}{number}", address={"city": "Bonn"}, balance=number)
        for bank in BANKS
        for number in range(9)
    ]
    filled.put(rows)
    view = View(rows=(("bank", ("ash",)),))
    seen: list[Any] = []
    token = ""
    while True:
        page = _ask_as(asker, view, "ListAccountsInCity", city="Bonn", page_size=2, page_token=token)
        seen += page.accounts
        token = page.next_page_token
        if not token:
            break
    assert keys(seen) == [("ash", number) for number in range(9)]
    assert _ask_as(asker, view, "GetAccountByNumber", number="ash1").account == rows[1]
    with pytest.raises(RowNotFound):
        _ask_as(asker, view, "GetAccountByNumber", number="birch1")
    answer = _ask_as(asker, view, "BatchGetAccountsByNumber", numbers=["birch1", "ash1"])
    assert [each.WhichOneof("result") for each in answer.results] == ["missing", "account"]


@pytest.mark.parametrize(
    ("hidden", "method", "fields"),
    [
        ("number", "GetAccountByNumber", {"number": "1"}),
        ("number", "BatchGetAccountsByNumber", {"numbers": ["1"]}),
        ("address", "ListAccountsInCity", {"city": "Bonn"}),
        ("balance", "ListAccountsInCity", {"city": "Bonn"}),
        ("tags", "ListAccountsByTag", {"tag": "a"}),
    ],
)
def test_a_view_that_hides_a_column_reads_by_no_index_of_it(
    asker: Asker, hidden: str, method: str, fields: dict[str, Any]
) -> None:
    """Also where it gives another column: the order of rows tells what they hold."""
    with pytest.raises(NotAllowed, match=f"{hidden}.*is hidden from you"):
        _ask_as(asker, View(hidden=(hidden,)), method, **fields)
    _ask_as(asker, View(hidden=("state",)), "ListAccountsInCity", city="Bonn")
