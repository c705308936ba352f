"""Odd but valid rows of a topic of others, asked for by every protocol: each is given to everybody as it is."""

import json
import struct
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import grpc
import pytest

from tablegate.gateway.contract.catalogue import Catalogue
from tablegate.gateway.contract.foreign.topics import ForeignRows
from tablegate.gateway.contract.rows import UndecodableRecord
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.http.server import HttpServer, web_protocols
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.stores.notifier import Notifier
from tablegate.v1 import changelog_pb2
from tablegate.v1.changelog_pb2 import ForeignTopic
from tests.kit.gateways_in_process.threaded import ServerThread
from tests.kit.gateways_in_process.web import WebClient
from tests.kit.store.memory import MemoryStore
from tests.kit.table.contracts import bind_sources
from tests.kit.table.filled import SIGNER, FilledTable

OLD = """syntax = "proto2";
package odd.v1;
enum Closed { ZERO = 0; ONE = 1; }
message Old { required string must = 1; optional Closed closed = 2; map<string, Closed> by_name = 3; extensions 100; }
extend Old { optional string more = 100; }
"""
ROWS = """syntax = "proto3";
package odd.v1;
import "google/protobuf/any.proto";
import "google/protobuf/field_mask.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/wrappers.proto";
import "tablegate/v1/options.proto";
import "old.proto";
enum Color { COLOR_UNSPECIFIED = 0; COLOR_RED = 1; }
message Part { int32 part_no = 1; string text = 2; }
message Row {
  option (tablegate.v1.table) = {name: "rows", key: "id"};
  string id = 1;
  google.protobuf.Value fact = 2;
  google.protobuf.Any thing = 3;
  Part part = 4;
  map<string, Part> parts = 5;
  map<bool, string> by_bool = 6;
  map<int64, Color> by_long = 7;
  oneof one { string text = 8; double number = 9; Part other = 10; google.protobuf.NullValue nothing = 11; }
  google.protobuf.StringValue name = 12;
  google.protobuf.DoubleValue weight = 13;
  repeated Color colors = 14;
  google.protobuf.FieldMask mask = 15;
  Old old = 16;
  bytes blob = 17;
}
"""


def field(number: int, body: bytes) -> bytes:
    """Return a field of bytes."""
    length, size = b"", len(body)
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    tag = number << 3 | 2
    return (bytes([tag]) if tag < 128 else bytes([tag & 127 | 128, tag >> 7])) + length + bytes([size]) + body


def deep(count: int) -> bytes:
    """Return a google.protobuf.Value of so many objects in one another."""
    value = b"\x20\x01"
    for _ in range(count):
        value = field(5, field(1, field(1, b"a") + field(2, value)))
    return value


ANY_OF_UNKNOWN = {"type_url": "x.y/of.Others", "value": b"\xff"}
COLUMNS: dict[str, dict[str, Any]] = {
    "": {},
    "/ ? % # é\0": {},
    "nothing set": {"other": {}, "part": {}, "name": {}, "weight": {}, "mask": {}, "thing": {}},
    "long": {"text": "x" * 200_000, "blob": bytes(200_000)},
    "numbers": {"number": float("nan"), "weight": {"value": float("-inf")}},
    "zeros": {"number": -0.0, "weight": {"value": -0.0}},
    "enums": {"colors": [1, 77, -(2**31)], "by_long": {-(2**63): 9, 2**63 - 1: 1}},
    "maps": {"by_bool": {True: "", False: "x"}, "parts": {"": {}, "\0": {"text": ""}, "a.b": {"part_no": 0}}},
    "any of others": {"thing": ANY_OF_UNKNOWN},
    # Of types that the gateway has for itself, and the contract does not.
    "any of ours": {"thing": {"type_url": "x.y/google.rpc.Status", "value": b"\xff"}},
    "any at no time": {
        "thing": {"type_url": "x.y/google.rpc.RetryInfo", "value": b"\x0a\x0a\x08" + b"\xff" * 8 + b"\x7f"}
    },
}
BYTES = {
    "oneof twice": field(8, b"first") + field(10, b"\x08\x05"),
    "in parts": field(4, b"\x08\x05") + field(4, field(2, b"t")),
    "empty entries": field(5, b"") + field(6, b"") + field(7, b""),
    "not packed": b"\x70\x01\x70\x00",
    "unknown": b"\xf8\x3f\x05" + field(4, b"\xf8\x3f\x05") + b"\xbb\x3e\x08\x01\xbc\x3e",
    "extension": field(16, field(1, b"m") + b"\xa2\x06\x01x"),
    "deep": field(2, deep(30)),
}


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    return bind_sources(tmp_path_factory.mktemp("odd"), old=OLD, odd=ROWS)


def reader(catalogue: Catalogue, codec: int = changelog_pb2.VALUE_CODEC_PROTOBUF_PLAIN) -> ForeignRows:
    table = catalogue.tables["rows"]
    topic = ForeignTopic(
        key_codec=changelog_pb2.KEY_CODEC_UTF8,
        value_codec=codec,  # type: ignore[arg-type]
        record_partitioner=changelog_pb2.RECORD_PARTITIONER_UNKNOWN,
    )
    named = {"changelog_topic": "theirs", "changelog_topic_id": "id", "value_schemas": {}, "sources": []}
    return ForeignRows(table, table.manifest(generation=1, partition_count=1, foreign=topic, **named))  # type: ignore[arg-type]


class OddServer(ServerThread):
    """A gateway over the odd rows. `rows`: what it was given, by their keys."""

    def __init__(self, catalogue: Catalogue) -> None:
        super().__init__(self._made)
        self.catalogue, rows = catalogue, reader(catalogue)
        self._row = catalogue.tables["rows"].row_class
        values = {name: self._row(id=name, **columns).SerializeToString() for name, columns in COLUMNS.items()}
        values |= {name: self._row(id=name).SerializeToString() + value for name, value in BYTES.items()}
        self.stored = [rows.read(name.encode(), value, Partition(0)) for name, value in values.items()]
        self.stored.append(rows.read(b"only deleted", None, Partition(0)))
        self.rows = {name: self._row.FromString(value) for name, (_, value) in zip(values, self.stored, strict=False)}  # type: ignore[arg-type]

    def _made(self) -> HttpServer:
        store = MemoryStore()
        table = FilledTable(store, self.catalogue.tables["rows"], 1)
        table.publish()
        table._apply(self.stored)
        return HttpServer(
            query_methods(self.catalogue, store, SIGNER, Notifier()), "127.0.0.1:0", web=web_protocols(self.catalogue)
        )

    def message(self, method: str, *, of_request: bool, **fields: Any) -> Any:
        query = self.catalogue.queries[f"/odd.v1.RowsService/{method}"]
        return (query.request_class if of_request else query.response_class)(**fields)

    def stream(self, method: str, **fields: Any) -> Iterator[Any]:
        """Yield what a method of gRPC answers."""
        with grpc.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            call = channel.unary_stream(
                f"/odd.v1.RowsService/{method}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=type(self.message(method, of_request=False)).FromString,
            )
            yield from call(self.message(method, of_request=True, **fields), timeout=20)


@pytest.fixture(scope="module")
def server(catalogue: Catalogue) -> Iterator[OddServer]:
    with OddServer(catalogue) as started:
        yield started


@pytest.fixture
def client(server: OddServer) -> WebClient:
    return WebClient(server, http2=False)  # type: ignore[arg-type]


def same(found: Any, wanted: Any) -> bool:
    return bool(found.SerializeToString(deterministic=True) == wanted.SerializeToString(deterministic=True))


@pytest.mark.parametrize("mask", [None, ["text", "fact", "thing", "mask", "parts"], ["other.text", "old.must"]])
@pytest.mark.parametrize("name", [*COLUMNS, *BYTES])
def test_every_protocol_gives_an_odd_row(
    server: OddServer, client: WebClient, name: str, mask: list[str] | None
) -> None:
    wanted = {} if mask is None else {"read_mask": {"paths": mask}}
    [answer] = server.stream("GetRow", id=name, **wanted)
    assert mask is not None or same(answer.row, server.rows[name])
    asked = server.message("GetRow", of_request=True, id=name, **wanted).SerializeToString()
    framed = client.post("/odd.v1.RowsService/GetRow", struct.pack(">xI", len(asked)) + asked, "application/grpc-web")
    length = int.from_bytes(framed.body[1:5], "big")
    assert same(type(answer).FromString(framed.body[5 : 5 + length]).row, answer.row)
    assert client.post("/odd.v1.RowsService/GetRow", asked, "application/proto").status == 200
    question = {"id": name} | ({} if mask is None else {"readMask": ",".join(mask)})
    connect = client.post("/odd.v1.RowsService/GetRow", json.dumps(question), "application/json")
    assert connect.status == 200, connect.body
    if name:
        query = "" if mask is None else f"?read_mask={','.join(mask)}"
        assert client.ask("GET", f"/v1/rows/{quote(name, safe='')}{query}").json["row"] == connect.json["row"]


def test_all_odd_rows_come_together(server: OddServer, client: WebClient) -> None:
    scanned = [row for answer in server.stream("ScanRows") for row in answer.rows]
    page = client.ask("GET", "/v1/rows?page_size=100").json["rows"]
    lines = [json.loads(line) for line in client.ask("GET", "/v1/rows:scan").body.splitlines()]
    streamed = [row for line in lines for row in line.get("rows", ())]
    assert {row.id for row in scanned} == {row.get("id", "") for row in page} == set(server.rows)
    assert {row["id"]: row for row in page if row} == {row["id"]: row for row in streamed if row}
    [batch] = server.stream("BatchGetRows", keys=[{"id": name} for name in [*server.rows, "only deleted"]])
    assert [result.found.id for result in batch.results if result.HasField("found")] == list(server.rows)
    snapshot: set[str] = set()
    for answer in server.stream("SubscribeRows"):
        snapshot |= {change.upsert.id if change.HasField("upsert") else "" for change in answer.changes}
        if len(snapshot) == len(server.rows):
            break
    assert snapshot == set(server.rows)
    assert [row.id for answer in server.stream("ScanRows", min_number=-0.0) for row in answer.rows] == ["zeros"]
    found = {row.id for answer in server.stream("ScanRows", colors_contains=77) for row in answer.rows}
    assert found == {"enums"}


ANY_IN_ANY = b""
for _ in range(100):
    ANY_IN_ANY = field(1, b"x.y/google.protobuf.Any") + field(2, ANY_IN_ANY)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (field(2, deep(33)), "more than 95 messages in one another"),
        (field(3, ANY_IN_ANY), "more than 95 messages in one another"),
        *(
            (field(15, field(1, path)), "a FieldMask with a path")
            for path in (b"aB", b"a_B", b"a__b", b"a_1", b"a,b", b"")
        ),
        (
            field(3, field(1, b"x.y/google.protobuf.FieldMask") + field(2, field(1, b"aB"))),
            "a FieldMask with a path that JSON cannot say",
        ),
        (field(16, b""), "lacks a field that its message requires"),
        (field(16, field(1, b"\xff")), "a string that is not UTF-8"),
        (field(16, field(1, b"m") + field(3, field(1, b"\xff"))), "a string that is not UTF-8"),
        (field(16, field(1, b"m") + b"\x10\x09"), "a number of an enum of proto2 that the contract lacks"),
        (field(16, field(1, b"m") + field(3, b"\x10\x09")), "a number of an enum of proto2 that the contract lacks"),
    ],
)
def test_what_some_client_could_not_read_is_no_row(catalogue: Catalogue, value: bytes, reason: str) -> None:
    with pytest.raises(UndecodableRecord, match=reason):
        reader(catalogue).read(b"x", value, Partition(0))


def test_json_has_the_fields_that_proto2_requires(catalogue: Catalogue) -> None:
    rows = reader(catalogue, changelog_pb2.VALUE_CODEC_JSON)
    assert rows.read(b"x", b'{"old": {"must": "m"}}', Partition(0))
    with pytest.raises(UndecodableRecord, match="lacks a field that its message requires"):
        rows.read(b"x", b'{"old": {"closed": "ONE"}}', Partition(0))
