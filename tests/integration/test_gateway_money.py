"""Amounts of money through every way to ask: gRPC, REST, OpenAPI, reflection, the commands."""

import json
import struct
import subprocess
from collections.abc import Iterator
from decimal import Decimal
from io import BytesIO
from typing import Any
from urllib.request import Request, urlopen

import fastavro
import grpc
import pytest
from click.testing import CliRunner
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tablegate.examples import CONTRACTS
from tablegate.gateway.contract.rows import RowDecoder, row_schema
from tablegate.gateway.http.server import HttpServer, web_protocols
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.server.metadata import reflection_methods
from tablegate.gateway.stores.notifier import Notifier
from tests.kit.command_line import COMMAND
from tests.kit.gateways_in_process.threaded import ServerThread
from tests.kit.programs.go_tools import go_tool
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import SIGNER, FilledTable, catalogue_of

BALANCES = CONTRACTS / "examples/balances/v1/balances.proto"
SERVICE = "examples.balances.v1.BalancesService"
AMOUNTS = {
    "c-1": Decimal("14.75"),
    "c-2": Decimal("-0.000000001"),
    "c-3": Decimal(0),
    "c-4": None,
    "c-5": Decimal("-9223372036854775808.999999999"),
    "c-6": Decimal(1200),
}
SHOWN = ["14.75", "-0.000000001", "0.00", "", "-9223372036854775808.999999999", "1200.00"]


def _row(customer_id: str, balance: Decimal | None) -> Any:
    """Return a row as the replicator makes it from a changelog value."""
    table = catalogue_of(BALANCES).tables["balances"]
    schema, body = row_schema(table), BytesIO()
    columns = {"customer_id": customer_id, "balance": balance, "booking_count": 2, "update_time": None}
    fastavro.schemaless_writer(body, fastavro.parse_schema(dict(schema)), columns)
    value = struct.pack(">bI", 0, 1) + body.getvalue()
    return table.row_class.FromString(RowDecoder(table, {1: json.dumps(row_schema(table))}).decode(value))


def _server() -> HttpServer:
    store, catalogue = MemoryStore(), catalogue_of(BALANCES)
    filled = FilledTable(store, catalogue.tables["balances"], partition_count=2)
    filled.publish()
    filled.put(_row(customer_id, balance) for customer_id, balance in AMOUNTS.items())
    methods = {**query_methods(catalogue, store, SIGNER, Notifier()), **reflection_methods(catalogue)}
    return HttpServer(methods, "127.0.0.1:0", web=web_protocols(catalogue, cors_origins=(), describe=True))


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ServerThread(_server) as server:
        yield f"127.0.0.1:{server.port}"


def _ask(address: str, method: str, **fields: Any) -> Any:
    query = catalogue_of(BALANCES).queries[f"/{SERVICE}/{method}"]
    with grpc.insecure_channel(address) as channel:
        streams = method.startswith("Scan")
        call = (channel.unary_stream if streams else channel.unary_unary)(
            query.path,
            request_serializer=query.request_class.SerializeToString,
            response_deserializer=query.response_class.FromString,
        )
        answer = call(query.request_class(**fields), timeout=20)
        return list(answer) if streams else answer


def test_grpc(address: str) -> None:
    balance = _ask(address, "GetBalance", customer_id="c-1").balance.balance
    assert (balance.currency_code, balance.units, balance.nanos) == ("", 14, 750_000_000)
    results = _ask(address, "BatchGetBalances", keys=[{"customer_id": name} for name in ("c-5", "c-4", "c-0")]).results
    assert [result.WhichOneof("result") for result in results] == ["found", "found", "missing"]
    assert (results[0].found.balance.units, results[0].found.balance.nanos) == (-(2**63), -999_999_999)
    assert not results[1].found.HasField("balance")
    rows = [row for response in _ask(address, "ScanBalances") for row in response.balances]
    assert {row.customer_id: row.balance.units for row in rows}["c-6"] == 1200
    assert len(rows) == len(AMOUNTS)


def _http(url: str, request: dict[str, Any] | None = None) -> Any:
    data = None if request is None else json.dumps(request).encode()
    with urlopen(Request(url, data, {"content-type": "application/json"}), timeout=20) as response:
        return [json.loads(line) for line in response.read().splitlines()]


def test_rest_and_connect(address: str) -> None:
    [answer] = _http(f"http://{address}/v1/customers/c-1/balance")
    assert answer["balance"]["balance"] == {"units": "14", "nanos": 750_000_000}
    [answer] = _http(f"http://{address}/v1/balances:batchGet", {"keys": [{"customerId": "c-2"}]})
    assert answer["results"][0]["found"]["balance"] == {"nanos": -1}
    lines = _http(f"http://{address}/v1/balances:scan?minBookingCount=1")
    found = {row["customerId"]: row for line in lines for row in line.get("result", line).get("balances", [])}
    assert found.keys() == AMOUNTS.keys()
    assert "balance" not in found["c-4"]
    assert found["c-3"]["balance"] == {}
    [answer] = _http(f"http://{address}/{SERVICE}/GetBalance", {"customerId": "c-6"})
    assert answer["balance"]["balance"] == {"units": "1200"}


def test_openapi(address: str) -> None:
    with urlopen(f"http://{address}/openapi.json", timeout=20) as response:
        document = json.load(response)
    schemas = document["components"]["schemas"]
    assert schemas["Balance"]["properties"]["balance"]["$ref"] == "#/components/schemas/Money"
    assert {name: each["type"] for name, each in schemas["Money"]["properties"].items()} == {
        "currencyCode": "string",
        "units": "string",
        "nanos": "integer",
    }
    assert '{"units": "14", "nanos": 750000000}' in json.dumps(document)


def test_reflection_has_the_file_of_money(address: str) -> None:
    request = reflection_pb2.ServerReflectionRequest(file_containing_symbol="google.type.Money")
    with grpc.insecure_channel(address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        [answer] = stub.ServerReflectionInfo(iter([request]), timeout=20)
    names = [FileDescriptorProto.FromString(raw).name for raw in answer.file_descriptor_response.file_descriptor_proto]
    assert names[0] == "google/type/money.proto"


def _run(*words: str) -> str:
    done = CliRunner().invoke(COMMAND, list(words), env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_commands_print_decimals_and_protobufs_json(address: str) -> None:
    shown = _run("get", "balances", *(f"customer_id={name}" for name in AMOUNTS), "--address", address)
    [head, *lines] = shown.splitlines()
    end = head.index("balance") + len("balance")
    assert [line[:end].removeprefix(name).strip() for name, line in zip(AMOUNTS, lines, strict=True)] == SHOWN
    row = json.loads(_run("get", "balances", "customer_id=c-1", "--address", address, "--json"))
    assert row["balance"]["units"] == "14"
    assert row["balance"]["nanos"] == 750_000_000
    assert "14.75" in _run("scan", "balances", "--address", address)


def test_check_takes_the_contract() -> None:
    assert "balances" in _run("check", str(BALANCES))


@pytest.mark.tools
def test_grpcurl(address: str) -> None:
    grpcurl = go_tool("github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.3")
    if grpcurl is None:
        pytest.skip("grpcurl needs Go")
    words = [grpcurl, "-plaintext", "-d", '{"customer_id": "c-1"}', address, f"{SERVICE}/GetBalance"]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["balance"]["balance"] == {"units": "14", "nanos": 750_000_000}
    described = subprocess.run(
        [grpcurl, "-plaintext", address, "describe", "google.type.Money"], check=False, capture_output=True, text=True
    )
    assert "int64 units = 2;" in described.stdout
