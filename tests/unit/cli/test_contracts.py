"""`tablegate contract`: a row message becomes a contract, in its file or in what gateways serve."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc
import pytest
from click.testing import CliRunner, Result

from tablegate.gateway.cli.contract_files import table_name
from tablegate.gateway.contract.binder.binder import bind
from tablegate.gateway.contract.descriptors import load_descriptors
from tablegate.gateway.http.server import HttpServer, web_protocols
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.server.metadata import reflection_methods
from tablegate.gateway.stores.notifier import Notifier
from tests.kit.command_line import COMMAND
from tests.kit.gateways_in_process.threaded import ServerThread
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import ROOT, SIGNER, FilledTable, catalogue_of

pytestmark = pytest.mark.tools

GOLDEN = Path(__file__).parent / "contracts"
ORDER = """syntax = "proto3";

package shop.v1;

// An order.
message Order {
  // Who ordered.
  string customer = 1;
  // Number of the order.
  int64 order_id = 2;
  // What it costs.
  double amount = 3;
}
"""
OPTION = 'option (tablegate.v1.table) = {name: "orders", key: "order_id"};'
SERVED = ORDER.replace("// Who", f"{OPTION}\n  // Who").replace(
    "shop.v1;\n", 'shop.v1;\n\nimport "tablegate/v1/options.proto";\n', 1
)
AVRO = """{"type": "record", "name": "order", "namespace": "shop", "doc": "An order", "fields": [
  {"name": "id", "type": "long", "doc": "Number of the order"},
  {"name": "placedAt", "type": {"type": "long", "logicalType": "timestamp-millis"}},
  {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
  {"name": "state", "type": ["null", {"type": "enum", "name": "State", "symbols": ["OPEN", "PAID"]}], "default": null},
  {"name": "lines", "type": {"type": "array", "items": "string"}}
]}
"""
METHODS = ["GetOrder", "BatchGetOrders", "ListOrders", "ScanOrders", "SubscribeOrders", "CountOrders"]


def run(*words: object) -> Result:
    return CliRunner().invoke(COMMAND, ["contract", *map(str, words)], env={"COLUMNS": "80"})


def new(path: Path, text: str, *words: str) -> str:
    """Return what a row becomes, compiled and bound."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    done = run("new", path, *words)
    assert done.exit_code == 0, done.stderr
    bind(load_descriptors(path))
    return path.read_bytes().decode()


def methods_of(path: Path) -> list[str]:
    return [query.rpartition("/")[2] for query in bind(load_descriptors(path)).queries]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("one_key", ["--key", "order_id"]),
        (
            "two_keys",
            ["--key", "customer", "--key", "order_id", "--partition-by", "customer", "--table", "shop_orders"],
        ),
        ("get_and_scan", ["--key", "order_id", "--method", "scan", "--method", "get"]),
    ],
)
def test_what_is_written(name: str, words: list[str], tmp_path: Path, pytestconfig: pytest.Config) -> None:
    text = new(tmp_path / "orders.proto", ORDER, "--row", "Order", *words)
    golden = GOLDEN / f"{name}.proto"
    if pytestconfig.getoption("--rewrite-contracts"):
        golden.write_text(text)
    assert text == golden.read_text(), "pytest tests/unit/cli/test_contracts.py --rewrite-contracts, and read the diff"


def test_what_is_written_from_a_schema(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    schema, path = write(tmp_path / "orders.avsc", AVRO), tmp_path / "orders.proto"
    done = run("new", path, "--from", schema, "--key", "id", "--skip", "lines", "--package", "shop.v1")
    assert done.exit_code == 0, done.stderr
    golden = GOLDEN / "from_avro.proto"
    if pytestconfig.getoption("--rewrite-contracts"):
        golden.write_text(path.read_text())
    assert path.read_text() == golden.read_text()


@pytest.mark.parametrize("golden", sorted(path.name for path in GOLDEN.glob("*.proto")))
def test_buf_has_nothing_to_say(golden: str, tmp_path: Path) -> None:
    path = tmp_path / "shop/v1/orders.proto"
    path.parent.mkdir(parents=True)
    path.write_text((GOLDEN / golden).read_text())
    (tmp_path / "buf.yaml").write_text("version: v2\nlint:\n  use: [STANDARD, COMMENTS]\n")
    for imported in ("tablegate/v1", "googleapis/google"):
        shutil.copytree(ROOT / "proto" / imported, tmp_path / imported.removeprefix("googleapis/"))
    for words in (["lint"], ["format", "--diff", "--exit-code"]):
        buf = [str(Path(sys.executable).with_name("buf")), *words, "--path", "shop"]
        done = subprocess.run(buf, cwd=tmp_path, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_it_says_what_it_wrote_and_what_is_next(tmp_path: Path) -> None:
    path = tmp_path / "orders.proto"
    path.write_text(ORDER)
    done = run("new", path, "--key", "order_id")
    assert done.stdout == f"wrote {path}: the queries of table orders; next: tablegate check {path}\n"
    assert os.listdir(tmp_path) == ["orders.proto"]


def test_printed_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "orders.proto"
    path.write_text(ORDER)
    done = run("new", path, "--key", "order_id", "--stdout")
    assert path.read_text() == ORDER
    assert done.stdout == new(path, ORDER, "--key", "order_id")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda text: text.rstrip("\n"), id="no line end at the end"),
        pytest.param(lambda text: text.replace("\n", "\r\n"), id="CRLF"),
        pytest.param(lambda text: "\ufeff" + text, id="BOM"),
        pytest.param(lambda text: text.replace("Order {", "Order { // of a shop"), id="comment behind the brace"),
        pytest.param(lambda text: text.replace("Order {", "Order\n{"), id="brace in a line of its own"),
        pytest.param(
            lambda text: text.replace("Order {", "/* { */ Order /* message Order { */ {"), id="braces in comments"
        ),
        pytest.param(lambda text: "".join(line for line in text.splitlines() if "//" not in line), id="one line"),
        pytest.param(lambda text: text.replace("package shop.v1;\n", ""), id="no package"),
        pytest.param(lambda text: text.replace("  ", "\t"), id="tabs"),
        pytest.param(
            lambda text: text.replace("message", 'import public "google/type/money.proto";\nmessage', 1), id="an import"
        ),
        pytest.param(lambda text: text + 'import "tablegate/v1/query.proto";\n', id="an import at the end"),
    ],
)
def test_the_rest_of_the_file_stays_as_it_is(change: Any, tmp_path: Path) -> None:
    path, before = tmp_path / "orders.proto", change(ORDER)
    after = new(path, before, "--row", "Order", "--key", "order_id")
    assert methods_of(path) == METHODS
    rest = iter(after)
    assert all(letter in rest for letter in before), "nothing was taken out"
    assert after.count("\r\n") == (after.count("\n") if "\r\n" in before else 0)
    assert after.endswith("\n")


@pytest.mark.parametrize(
    ("row", "table"),
    [
        ("Order", "orders"),
        ("OrderTotal", "order_totals"),
        ("URLCount", "url_counts"),
        ("Category", "categories"),
        ("Day", "days"),
        ("Address", "addresses"),
        ("Match", "matches"),
        ("Box2", "box2s"),
    ],
)
def test_tables_have_the_plural_of_their_rows_name(row: str, table: str) -> None:
    assert table_name(row) == table


def test_a_table_option_that_is_there_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "orders.proto"
    other = SERVED[SERVED.index("// An") :].replace("Order", "Return").replace('"orders"', '"returns"')
    new(path, SERVED + other)
    assert {table.name for table in bind(load_descriptors(path)).tables.values()} == {"orders", "returns"}
    assert len(methods_of(path)) == 2 * len(METHODS)


def test_the_row_keeps_its_imports_and_the_file_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "shop/v1/orders.proto"
    kinds = tmp_path / "shop/kinds/v1/kinds.proto"
    kinds.parent.mkdir(parents=True)
    kinds.write_text('syntax = "proto3";\npackage shop.kinds.v1;\nenum Kind { KIND_UNSPECIFIED = 0; }\n')
    text = ORDER.replace("// An", 'import "shop/kinds/v1/kinds.proto";\n\n// An').replace(
        "double amount", "shop.kinds.v1.Kind kind"
    )
    path.parent.mkdir(parents=True)
    path.write_text(text)
    path.chmod(0o640)
    new(path, text, "--key", "kind", "--key", "order_id")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert methods_of(path) == METHODS


KEY = ["--key", "order_id"]
REFUSED: list[tuple[str | bytes, list[str], str]] = [
    (ORDER, [], "table of message Order needs a key; say its columns: --key customer"),
    (ORDER, ["--row", "Orders", *KEY], "has no message Orders; name one of Order"),
    (ORDER, ["--key", "id"], 'field "id": the key names a column that message Order does not have; name a field'),
    (ORDER, ["--key", "amount"], 'field "amount": a double cannot be in the key: equal numbers may differ'),
    (ORDER, [*KEY, *KEY], "the key names this column twice"),
    (ORDER, [*KEY, "--partition-by", "customer"], "partition_by (customer) is no prefix of the key"),
    (ORDER, [*KEY, "--table", "Orders"], '"Orders" is no name for a table'),
    (ORDER + "message Line {}\n", KEY, "has several messages; say which is the row: --row Order"),
    ('syntax = "proto3";\n', KEY, "has no message; write that of a row"),
    ('syntax = "proto3";\nmessage Order {}\n', [], "needs a key; give the message fields first"),
    ('syntax = "proto3";\nmessage Order {}\n', KEY, "the key names a column that message Order does"),
    (ORDER.replace("double", "Order"), KEY, "message shop.v1.Order contains itself"),
    (ORDER.replace("double", "doubble"), KEY, 'orders.proto:12:3: "doubble" is not defined'),
    (re.sub("(string|int64|double) ", r"optional \1 ", ORDER).replace("proto3", "proto2"), KEY, "is not proto3, and"),
    (ORDER + "service OrderQueries {}\n", KEY, "has a service already, OrderQueries; take it out"),
    (ORDER + "message GetOrderRequest {}\n", ["--row", "Order", *KEY], '"GetOrderRequest" is there already'),
    (ORDER + "enum OrdersService { A = 0; }\n", KEY, '"OrdersService" is there already'),
    (SERVED, KEY, "message Order has the table option already; leave out --key"),
    (SERVED, ["--method", "list"], "list"),
    (b"\xff\xfe" + ORDER.encode("utf-16-le"), KEY, "does not compile"),
]


@pytest.mark.parametrize(("text", "words", "sentence"), REFUSED)
def test_what_cannot_be_written_is_told_in_a_sentence(
    text: str | bytes, words: list[str], sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "orders.proto"
    before = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(before)
    done = run("new", path, *words)
    assert done.exit_code != 0
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["orders.proto"]


def test_no_file_to_write_into(tmp_path: Path) -> None:
    for path, sentence in (
        (tmp_path, "is not a file"),
        (tmp_path / "none.proto", "is not a file"),
        (tmp_path / "none/orders.proto", "is not a file"),
    ):
        done = run("new", path, "--key", "id")
        assert (done.exit_code, done.stderr.count("\n")) == (1, 1), done.stderr
        assert sentence in done.stderr
    compiled = tmp_path / "orders.binpb"
    compiled.write_bytes(b"")
    assert "is not a .proto" in run("new", compiled, "--key", "id").stderr
    assert "is not a .proto" in run("show", compiled).stderr


def test_what_is_shown_is_what_is_served(tmp_path: Path) -> None:
    path, shown = tmp_path / "orders.proto", tmp_path / "shown/orders.proto"
    path.write_text(SERVED)
    shown.parent.mkdir()
    shown.write_text(run("show", path).stdout)
    assert methods_of(shown) == methods_of(path) == METHODS
    assert path.read_text() == SERVED
    assert run("show", shown).stdout == shown.read_text()
    assert "no message is a table" in run("show", write(tmp_path / "none.proto", ORDER)).stderr


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The contract of a row alone, and the address where it is served."""
    path = write(tmp_path_factory.mktemp("served") / "orders.proto", SERVED)

    def made() -> HttpServer:
        store, catalogue = MemoryStore(), catalogue_of(path)
        filled = FilledTable(store, catalogue.tables["orders"], partition_count=3)
        filled.publish()
        row = catalogue.tables["orders"].row_class
        filled.put(row(customer="ann", order_id=number, amount=number / 2) for number in range(10))
        methods = {**query_methods(catalogue, store, SIGNER, Notifier()), **reflection_methods(catalogue)}
        return HttpServer(methods, "127.0.0.1:0", web=web_protocols(catalogue, describe=True))

    with ServerThread(made) as server:
        yield path, f"127.0.0.1:{server.port}"


def test_a_row_alone_is_asked_by_grpc(served: tuple[Path, str]) -> None:
    path, address = served
    queries = catalogue_of(path).queries
    with grpc.insecure_channel(address) as channel:

        def ask(method: str, **fields: Any) -> Any:
            query = queries[f"/shop.v1.OrdersService/{method}"]
            streams = method.startswith(("Scan", "Subscribe"))
            call = (channel.unary_stream if streams else channel.unary_unary)(
                query.path,
                request_serializer=query.request_class.SerializeToString,
                response_deserializer=query.response_class.FromString,
            )
            return call(query.request_class(**fields), timeout=20)

        assert ask("GetOrder", order_id=7).row.amount == 3.5
        results = ask("BatchGetOrders", keys=[{"order_id": 3}, {"order_id": 30}]).results
        assert [result.WhichOneof("result") for result in results] == ["found", "missing"]
        assert [row.order_id for row in ask("ListOrders", order_id_from=4, order_id_before=7).rows] == [4, 5, 6]
        found = [row.order_id for message in ask("ScanOrders", min_amount=4.0) for row in message.rows]
        assert sorted(found) == [8, 9]
        changes = ask("SubscribeOrders", keys=[{"order_id": 2}])
        assert next(change.upsert.order_id for message in changes for change in message.changes) == 2
        changes.cancel()
        assert ask("CountOrders").count == len([*ask("ListOrders").rows])
        assert ask("CountOrders", min_amount=4.0).count == len(found)
        assert ask("CountOrders", order_id=7).count == 1


def test_a_row_alone_is_found_by_rest_and_by_pages(served: tuple[Path, str]) -> None:
    _, address = served
    with urlopen(f"http://{address}/v1/orders/7", timeout=20) as answer:
        assert json.load(answer)["row"] == {"customer": "ann", "orderId": "7", "amount": 3.5}
    with urlopen(f"http://{address}/openapi.json", timeout=20) as answer:
        text = answer.read().decode()
    paths = json.loads(text)["paths"]
    assert {"/v1/orders/{orderId}", "/v1/orders:scan"} <= {path.replace("order_id", "orderId") for path in paths}
    assert "Rows in key order, a page at a time" in text


def test_a_row_alone_is_asked_by_the_commands(served: tuple[Path, str]) -> None:
    path, address = served
    got = CliRunner().invoke(COMMAND, ["get", "orders", "order_id=7", "--address", address, "--json"])
    assert json.loads(got.stdout) == {"customer": "ann", "order_id": "7", "amount": 3.5}
    assert "OrdersService/GetOrder" in CliRunner().invoke(COMMAND, ["check", str(path)]).stdout
