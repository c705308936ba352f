"""Counts: exact, while rows change, wherever they are, and as few of them are seen as the caller may see."""

import json
import random
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
from typing_extensions import override

from tablegate.gateway.access.views import View
from tablegate.gateway.contract.binder.problems import ContractError
from tablegate.gateway.contract.catalogue import CountQuery
from tablegate.gateway.contract.tokens import positions_of
from tablegate.gateway.query.call import UnaryMethod
from tablegate.gateway.query.errors import NotAllowed, PartitionUnavailable
from tablegate.gateway.query.explain import Explainer
from tablegate.gateway.query.limits import DEFAULT_LIMITS, QueryLimits
from tablegate.gateway.query.service import table_accesses
from tablegate.gateway.query.serving import wall_clock_ms
from tablegate.gateway.stores.base import Phase, StoreWriter
from tablegate.gateway.stores.lmdb.store import LmdbStore
from tablegate.gateway.stores.notifier import Notifier
from tablegate.gateway.stores.redis.store import RedisStore
from tablegate.internal.v1.tokens_pb2 import TOKEN_KIND_CONSISTENCY
from tests.kit.call.asker import Asker
from tests.kit.gateways_in_process.cluster import ALONE, EACH_ON_ONE, GrpcCluster
from tests.kit.seeds import seeds
from tests.kit.store.memory import MemoryStore
from tests.kit.table.accounts import ACCOUNTS, BANKS, CITIES, SERVICE, account
from tests.kit.table.contracts import bind_sources, edited
from tests.kit.table.filled import ACTIONS, SIGNER, FilledTable, LocalCall, catalogue_of

SLICES = QueryLimits(count_read_rows=2, count_changes_max=3, count_slice_s=0.0)
METHODS = """
  rpc CountAccounts(CountAccountsRequest) returns (CountResponse) {
    option (google.api.http) = {get: "/v1/accounts:count"};
    option (tablegate.v1.query) = { count: {scatter: true} table: "accounts" };
  }
  rpc CountAccountsOfBank(CountAccountsOfBankRequest) returns (CountResponse) {
    option (tablegate.v1.query) = { count: {} table: "accounts" };
  }
  rpc CountAccountsInCity(CountAccountsInCityRequest) returns (CountResponse) {
    option (tablegate.v1.query) = { count: {scatter: true} table: "accounts" };
  }
  rpc CountAccountsByTag(CountAccountsByTagRequest) returns (CountResponse) {
    option (tablegate.v1.query) = { count: {scatter: true} table: "accounts" };
  }
"""
MESSAGES = """
message CountAccountsRequest {
  repeated State states = 1 [(tablegate.v1.param) = { column: "state" op: OP_IN }];
  optional string bank_from = 2 [(tablegate.v1.param) = { column: "bank" op: OP_GTE }];
  tablegate.v1.ReadOptions read_options = 3;
}
message CountAccountsOfBankRequest {
  string bank = 1;
  optional int64 account_id_from = 2 [(tablegate.v1.param) = { column: "account_id" op: OP_GTE }];
  optional int64 min_balance = 3 [(tablegate.v1.param) = { column: "balance" op: OP_GTE }];
}
message CountAccountsInCityRequest {
  string city = 1 [(tablegate.v1.param).column = "address.city"];
  optional int64 min_balance = 2 [(tablegate.v1.param) = { column: "balance" op: OP_GTE }];
  repeated State states = 3 [(tablegate.v1.param) = { column: "state" op: OP_IN }];
}
message CountAccountsByTagRequest {
  string tag = 1 [(tablegate.v1.param) = { column: "tags" op: OP_CONTAINS }];
}
message CountResponse {
  int64 row_count = 1;
  tablegate.v1.ReadInfo read_info = 2;
}
"""
LIST_CITY = "  rpc ListAccountsInCity("
COUNTED = edited(ACCOUNTS.read_text("utf-8"), (LIST_CITY, METHODS + LIST_CITY)) + MESSAGES

Asked = tuple[str, dict[str, Any], Callable[[Any], bool]]


def asked(choice: random.Random) -> Asked:
    """Return a method, a request, and which rows it is for."""
    bank, state, least = choice.choice(BANKS), choice.randrange(3), choice.choice((-1, 0))
    city, tag = choice.choice(CITIES), choice.choice(("a", "b", "nobody's"))

    def has_balance(row: Any) -> bool:
        return bool(row.HasField("balance") and row.balance >= least)

    def is_in_city(row: Any) -> bool:
        return bool(row.HasField("address") and row.address.city == city)

    return choice.choice(
        [
            ("CountAccounts", {}, lambda _: True),
            ("CountAccounts", {"states": [state]}, lambda row: row.HasField("state") and row.state == state),
            ("CountAccounts", {"bank_from": bank}, lambda row: row.bank >= bank),
            ("CountAccountsOfBank", {"bank": bank}, lambda row: row.bank == bank),
            (
                "CountAccountsOfBank",
                {"bank": bank, "account_id_from": 1, "min_balance": least},
                lambda row: row.bank == bank and row.account_id >= 1 and has_balance(row),
            ),
            ("CountAccountsInCity", {"city": city}, is_in_city),
            (
                "CountAccountsInCity",
                {"city": city, "min_balance": least, "states": [state, 1]},
                lambda row: is_in_city(row) and has_balance(row) and row.HasField("state") and row.state in (state, 1),
            ),
            ("CountAccountsByTag", {"tag": tag}, lambda row: tag in row.tags),
        ]
    )


@pytest.fixture(scope="module")
def contract(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("counts") / "accounts.proto"
    path.write_text(COUNTED)
    return path


@pytest.fixture(scope="module", params=[DEFAULT_LIMITS, SLICES], ids=["", "two rows a slice"])
def cluster(request: pytest.FixtureRequest, contract: Path) -> Iterator[Any]:
    choice = random.Random(9)
    rows = {(row.bank, row.account_id): row for row in (account(choice) for _ in range(80))}
    with GrpcCluster(
        EACH_ON_ONE, contract=contract, table="accounts", service=SERVICE, limits=request.param
    ) as cluster:
        cluster.put(rows.values())
        yield cluster, list(rows.values())


@pytest.mark.parametrize("gateway", ["a", "b", "c", ALONE])
def test_gateways_count_what_each_has(cluster: tuple[GrpcCluster, list[Any]], gateway: str) -> None:
    served, rows = cluster
    choice = random.Random(gateway)
    for _ in range(25):
        method, fields, passes = asked(choice)
        answer = served.ask(gateway, method, **fields)
        assert answer.row_count == sum(map(passes, rows)), (method, fields)
        assert answer.read_info.as_of_time.seconds


def test_a_count_is_as_fresh_as_its_token_says(cluster: tuple[GrpcCluster, list[Any]]) -> None:
    served, rows = cluster
    info = served.ask("a", "CountAccounts").read_info
    fresh = {"at_least": info.consistency_token}
    assert served.ask("b", "CountAccounts", read_options=fresh).row_count == len(rows)
    token = SIGNER.open(info.consistency_token, kind=TOKEN_KIND_CONSISTENCY, table="accounts", generation=None)
    assert sorted(positions_of(token).places) == list(range(6))


def test_a_partition_that_nobody_has_is_no_zero(cluster: tuple[GrpcCluster, list[Any]]) -> None:
    served, rows = cluster
    served.place({"a": [0, 1], "b": [2, 3], "c": [4]})
    try:
        with pytest.raises(grpc.RpcError) as refused:
            served.ask("a", "CountAccounts", timeout_s=1)
        error: Any = refused.value
        assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    finally:
        served.place(EACH_ON_ONE)
    assert served.ask("a", "CountAccounts").row_count == len(rows)


def test_a_count_over_rest(cluster: tuple[GrpcCluster, list[Any]]) -> None:
    served, rows = cluster
    url = f"http://127.0.0.1:{served['b'].port}/v1/accounts:count?states=STATE_OPEN&states=2"
    with urllib.request.urlopen(url, timeout=20) as answer:
        value = json.loads(answer.read())
    assert int(value["rowCount"]) == sum(row.state in (1, 2) for row in rows)
    assert value["readInfo"]["consistencyToken"]


def finished(answer: Any, between: Callable[[], None] = lambda: None) -> bytes:
    """Return what a coroutine returns; `between` is called at each of its turns of the event loop."""
    try:
        while True:
            answer.send(None)
            between()
    except StopIteration as done:
        return bytes(done.value)


def test_a_count_is_explained_as_it_is_answered(contract: Path) -> None:
    store, catalogue = MemoryStore(), catalogue_of(contract)
    FilledTable(store, catalogue.tables["accounts"], 4).publish()
    accesses = table_accesses(catalogue, store, SIGNER, Notifier(), ends=None, router=None, now_ms=wall_clock_ms)
    explainer = Explainer(catalogue, accesses)
    for method, reads in (
        ("CountAccounts", "4 of 4 partitions: all, as it does not fix bank"),
        ("CountAccountsOfBank", "1 of 4 partitions: that of its bank"),
        ("CountAccountsInCity", '4 of 4 partitions: all, as it does not fix bank; by index "by_city"'),
    ):
        answer = explainer.explain(f"{SERVICE}/{method}", b"")
        assert (answer.query, answer.reads, len(answer.partitions)) == ("Count", reads, int(reads[0]))


class Counting:
    """A count of a table in one partition, whose slices a test runs one by one."""

    def __init__(self, store: StoreWriter, contract: Path, limits: QueryLimits = SLICES) -> None:
        catalogue = catalogue_of(contract)
        self.filled = FilledTable(store, catalogue.tables["accounts"], 1)
        self.filled.publish()
        self.asker = Asker(catalogue, store, SERVICE, None, limits)
        self.rows: dict[bytes, Any] = {}

    def change(self, choice: random.Random) -> None:
        row = account(choice)
        key = self.filled.key_of(row)
        if choice.random() < 0.3:
            self.rows.pop(key, None)
            self.filled.delete([row])
        else:
            self.rows[key] = row
            self.filled.put([row])

    def count(self, method: str, between: Callable[[], None], view: View | None = None, **fields: Any) -> int:
        """Return a count; `between` is called after each slice but the last."""
        path = f"{SERVICE}/{method}"
        unary = self.asker.methods[path]
        assert isinstance(unary, UnaryMethod)
        call = LocalCall(view=view)
        assert unary.handler_for is not None
        answer: Any = unary.handler_for(call)(self.asker.request(method, **fields).SerializeToString(), call)
        response: Any = self.asker.catalogue.queries[path].response_class.FromString(finished(answer, between))
        return int(response.row_count)


def store_of(kind: str, directory: Path, request: pytest.FixtureRequest) -> StoreWriter:
    if kind == "lmdb":
        return LmdbStore(directory / "store")
    if kind.startswith("redis"):
        history_changes_max = 4 if kind == "redis, short history" else 100_000
        server = request.getfixturevalue("redis_nodes" if kind == "redis nodes" else "redis_server")
        return RedisStore(server.new_url(), history_changes_max=history_changes_max)
    return MemoryStore(history_changes_max=4 if kind == "short history" else 100_000)


KINDS = ["memory", "lmdb", "short history", "redis", "redis, short history", "redis nodes"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", seeds(8, in_check=2))
def test_a_count_is_exact_while_rows_change(
    kind: str, seed: int, contract: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store, choice = store_of(kind, tmp_path, request), random.Random(seed)
    counting = Counting(store, contract)
    views: list[tuple[View | None, Callable[[Any], bool]]] = [
        (None, lambda _: True),
        (View(rows=(("bank", ("ash",)),)), lambda row: row.bank == "ash"),
        (View(rows=(("state", (1,)),), hidden=("opened_time",)), lambda row: row.HasField("state") and row.state == 1),
    ]
    for _ in range(30):
        counting.change(choice)
    slices = 0

    def between() -> None:
        nonlocal slices
        slices += 1
        if slices < 40:  # a partition that changes faster than its history is long is counted anew for ever
            for _ in range(choice.choice((0, 1, 7))):
                counting.change(choice)

    for _ in range(8):
        method, fields, passes = asked(choice)
        view, sees = choice.choice(views)
        slices = 0
        found = counting.count(method, between, view, **fields)
        assert found == sum(passes(row) and sees(row) for row in counting.rows.values()), (method, fields)
    store.close()


class TurningCall(LocalCall):
    """A call that counts how often its handler waits for its turn."""

    turns = 0

    @override
    async def turn(self) -> None:
        self.turns += 1
        await super().turn()


def test_each_slice_waits_for_its_turn(contract: Path) -> None:
    choice = random.Random(3)
    counting = Counting(MemoryStore(), contract)
    for _ in range(60):
        counting.change(choice)
    call = TurningCall()
    counting.asker.ask("CountAccounts", call=call)
    assert call.turns == len(counting.rows) // 2 + 1


def test_a_table_that_is_made_anew_is_counted_anew(contract: Path) -> None:
    choice = random.Random(1)
    counting = Counting(MemoryStore(), contract)
    for _ in range(40):
        counting.change(choice)
    begun = []

    def between() -> None:
        if not begun:
            begun.append(len(counting.rows))
            counting.filled.incarnation_id += 1
            counting.filled.publish()
            counting.rows.clear()
            for _ in range(5):
                counting.change(choice)

    assert counting.count("CountAccounts", between) == len(counting.rows) != begun[0]


def test_a_partition_that_goes_away_is_no_part_of_a_count(contract: Path) -> None:
    choice = random.Random(1)
    counting = Counting(MemoryStore(), contract)
    for _ in range(40):
        counting.change(choice)
    [partition] = counting.filled.next_offsets
    with pytest.raises(PartitionUnavailable, match="is being restored"):
        counting.count("CountAccounts", lambda: counting.filled.move(partition, phase=Phase.RESTORING))


def test_nobody_counts_by_what_is_hidden(contract: Path) -> None:
    counting = Counting(MemoryStore(), contract)
    cases: Mapping[str, tuple[str, dict[str, Any]]] = {
        "state": ("CountAccounts", {"states": [1]}),
        "balance": ("CountAccountsInCity", {"city": "Bonn"}),
    }
    for hidden, (method, fields) in cases.items():
        with pytest.raises(NotAllowed, match=f"{hidden}.*is hidden from you"):
            counting.count(method, lambda: None, View(hidden=(hidden,)), **fields)


def windows(directory: Path) -> Path:
    text = ACTIONS.read_text("utf-8")
    method = """
  rpc CountActions(CountActionsRequest) returns (CountActionsResponse) {
    option (tablegate.v1.query) = { count: {scatter: true} table: "TABLE" };
  }
}
"""
    [table] = catalogue_of(ACTIONS).tables
    at = text.index("\n}\n", text.index("service "))
    path = directory / "actions.proto"
    path.write_text(
        text[:at]
        + method.replace("TABLE", table)
        + text[at + 3 :]
        + "\nmessage CountActionsRequest {}\nmessage CountActionsResponse {\n  int64 total = 1;\n}\n"
    )
    return path


def test_windows_that_expire_during_a_count_are_counted_if_they_are_read(tmp_path: Path) -> None:
    """Be they swept afterwards or not; those that were gone before are not there."""
    catalogue = catalogue_of(windows(tmp_path))
    [table] = catalogue.tables.values()
    assert table.expiry is not None
    store, now_ms = MemoryStore(), [1_790_000_000_000]
    filled = FilledTable(store, table, 1)
    filled.publish()
    asker = Asker(catalogue, store, "/examples.actions.v1.ActionCountsService", lambda: now_ms[0], SLICES)
    lasts_us = table.expiry.retention_us + table.expiry.window.size_us

    def row(browser: str, seconds_left: int) -> Any:
        made: Any = table.row_class(browser=browser, action_count=1)
        assert table.window is not None
        start = getattr(made, table.key[table.window.start_index].name)
        start.FromMicroseconds(now_ms[0] * 1_000 - lasts_us + seconds_left * 1_000_000)
        return made

    gone, soon, long = ([row(f"b{number}", left) for number in range(9)] for left in (-5, 5, 500))
    filled.put([*gone, *soon, *long])
    path = f"{asker.service}/CountActions"
    unary = asker.methods[path]
    assert isinstance(unary, UnaryMethod)
    answer: Any = unary.handler(b"", LocalCall())
    for _ in range(3):  # the first one waits for its turn
        answer.send(None)
    now_ms[0] += 10_000
    answer.send(None)
    [partition] = filled.next_offsets
    swept = [filled.key_of(each) for each in (*gone[:2], *soon[:4])]
    assert store.expire(filled.store_id, partition, swept, time_ms=now_ms[0]) == 6
    filled.delete([long[0], long[8]])
    response: Any = asker.catalogue.queries[path].response_class.FromString(finished(answer))
    # Six rows were read when their time came. Of those that were swept then, one had not been.
    assert response.total == len(soon) + len(long) - 2 - 1


WRONG = {
    "no table": (
        ' table: "accounts" };\n  }\n  rpc CountAccountsOfBank',
        " };\n  }\n  rpc CountAccountsOfBank",
        "accounts",
    ),
    "another table": ('count: {scatter: true} table: "accounts"', 'count: {scatter: true} table: "x"', '"x", which no'),
    "no scatter": ('count: {scatter: true} table: "accounts"', 'count: {} table: "accounts"', "scatter: true"),
    "a text": ("int64 row_count = 1;", "string row_count = 1;", "lacks an int64"),
    "two numbers": ("int64 row_count = 1;", "int64 row_count = 1;\n  int64 more = 3;", 'field "more"'),
    "a mask": (
        "tablegate.v1.ReadOptions read_options = 3;\n}\nmessage CountAccountsOfBank",
        "google.protobuf.FieldMask read_mask = 3;\n}\nmessage CountAccountsOfBank",
        "a Count has no place for google.protobuf.FieldMask",
    ),
    "a stream": ("CountAccountsRequest) returns (", "CountAccountsRequest) returns (stream ", "wrong shape"),
    "a key": (
        "message CountAccountsOfBankRequest {\n  string bank = 1;",
        "message CountAccountsOfBankRequest {\n  string bank = 1;\n  int64 account_id = 9;",
        "gives the whole key",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_count_that_cannot_be_is_refused(name: str, tmp_path: Path) -> None:
    old, new, word = WRONG[name]
    text = COUNTED.replace(
        'import "google/protobuf/timestamp.proto";',
        'import "google/protobuf/timestamp.proto";\nimport "google/protobuf/field_mask.proto";',
    )
    assert isinstance(bind_sources(tmp_path, accounts=text).queries[f"{SERVICE}/CountAccounts"], CountQuery)
    assert old in text
    with pytest.raises(ContractError, match=word.replace("(", r"\(")):
        bind_sources(tmp_path, accounts=text.replace(old, new, 1))
