"""Schemas of topics beside a contract: what is refused is what no record could make right, by those who read them."""

import io
import json
from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import pytest

from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.foreign.columns import RowMaker
from tablegate.gateway.contract.foreign.fit import AvroDescription, JsonDescription, message_misfits, misfits
from tablegate.gateway.contract.rows import UndecodableRecord
from tests.kit.table.contracts import bind_sources

COLUMNS = {
    "a_bool": "bool",
    "an_int": "int32",
    "a_long": "int64",
    "a_float": "float",
    "a_double": "double",
    "a_text": "string",
    "some_bytes": "bytes",
    "a_kind": "Kind",
    "a_time": "google.protobuf.Timestamp",
    "an_amount": "google.type.Money",
    "a_wrapper": "google.protobuf.DoubleValue",
    "a_struct": "google.protobuf.Struct",
    "a_value": "google.protobuf.Value",
    "an_inner": "Inner",
    "some_texts": "repeated string",
    "some_inners": "repeated Inner",
    "a_map": "map<string, int64>",
}
IMPORTS = ("protobuf/timestamp", "protobuf/struct", "protobuf/wrappers", "type/money")
CONTRACT = "".join(
    (
        'syntax = "proto3"; package fit.v1; import "tablegate/v1/options.proto";',
        *(f'import "google/{name}.proto";' for name in IMPORTS),
        "enum Kind { KIND_UNSPECIFIED = 0; KIND_A = 1; } message Inner { int64 size = 1; } message Row {",
        'option (tablegate.v1.table) = {name: "rows", key: "id"}; int64 id = 1;',
        *(f"{kind} {name} = {number};" for number, (name, kind) in enumerate(COLUMNS.items(), start=2)),
        "}",
    )
)
INNER = {"type": "record", "name": "Inner", "fields": [{"name": "size", "type": "long"}]}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
TIME = {"type": "long", "logicalType": "timestamp-micros"}
AVRO: Mapping[str, tuple[Any, list[Any]]] = {
    "boolean": ("boolean", [True]),
    "int": ("int", [1]),
    "long": ("long", [1, 2**40]),
    "double": ("double", [1.0, 0.5]),
    "string": ("string", ["x", "1", "KIND_A", "1.5", "AAAA", "2026-01-01T00:00:00Z", "{}"]),
    "bytes": ("bytes", [b"\x01"]),
    "enum": ({"type": "enum", "name": "E", "symbols": ["KIND_A"]}, ["KIND_A"]),
    "decimal": (DECIMAL, [Decimal("1.00")]),
    "timestamp": (TIME, [datetime(2026, 1, 1, tzinfo=UTC)]),
    "date": ({"type": "int", "logicalType": "date"}, [date(2026, 1, 1)]),
    "time": ({"type": "int", "logicalType": "time-millis"}, [time(1)]),
    "uuid": ({"type": "string", "logicalType": "uuid"}, [UUID(int=7)]),
    "record": (INNER, [{"size": 3}]),
    "other record": ({**INNER, "fields": [{"name": "size", "type": "boolean"}]}, [{"size": True}]),
    "list of strings": ({"type": "array", "items": "string"}, [["x"]]),
    "list of records": ({"type": "array", "items": INNER}, [[{"size": 3}]]),
    "map of longs": ({"type": "map", "values": "long"}, [{"a": 1}]),
    "map of strings": ({"type": "map", "values": "boolean"}, [{"a": True}]),
    "union": (["null", "boolean", "long"], [1, True]),
}
LENIENT = {
    ("a_map", "list of strings"): "a list may be one of entries",
    ("a_map", "list of records"): "the same",
    ("a_map", "other record"): "an object of JSON may be a map",
    ("an_amount", "bytes"): "Kafka Connect says beside the type that they are a decimal",
    ("an_amount", "record"): "Debezium has a record of a number and its scale",
    ("an_amount", "other record"): "the same",
    ("an_inner", "map of strings"): "an object, whose names are not known",
    ("some_bytes", "enum"): "a name may be base64",
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return bind_sources(tmp_path_factory.mktemp("fit"), fit__v1__rows=CONTRACT).tables["rows"]


@pytest.mark.parametrize("kind", AVRO)
def test_what_is_refused_is_what_no_record_fits(rows: Table, kind: str) -> None:
    avro, values = AVRO[kind]
    maker = RowMaker(rows)
    for column in COLUMNS:
        schema: Any = {"type": "record", "name": "Row", "fields": [{"name": column, "type": avro}]}
        parsed: Any = fastavro.parse_schema(json.loads(json.dumps(schema)))
        of, field = AvroDescription(parsed), rows.row.fields_by_name[column]
        is_refused = bool([*misfits([field], of.fields(parsed), of, every=False)])
        is_read = any(_is_read(maker, parsed, {column: value}) for value in values)
        assert is_refused is not (is_read or (column, kind) in LENIENT), column


def _is_read(maker: RowMaker, parsed: Any, value: Any) -> bool:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, parsed, value)
    body.seek(0)
    try:
        maker.make(fastavro.schemaless_reader(body, parsed, None), [1], {})
    except UndecodableRecord:
        return False
    return True


def _json(rows: Table, **properties: Any) -> list[tuple[str, str]]:
    whole = {"type": "object", "properties": properties, "$defs": {"Inner": {"properties": {"size": {"type": "null"}}}}}
    of = JsonDescription(whole)
    columns = [rows.row.fields_by_name[name] for name in properties if name in COLUMNS]
    return [(one.contract, one.schema) for one in misfits(columns, of.fields(whole) or {}, of, every=True)]


@pytest.mark.parametrize(
    "properties",
    [
        {"a_long": {"type": ["integer", "null"]}},
        {"a_long": {"oneOf": [{"type": "null"}, {"type": "string"}]}},
        {"a_long": {"$ref": "https://elsewhere"}},
        {"a_long": {"$ref": "#/properties/a_long"}},
        {"a_long": True},
        {"a_long": {"enum": [1, 2]}},
        {"some_texts": {"type": "array"}},
        {"some_texts": {"type": "array", "items": {"type": "string"}}},
        {"a_map": {"type": "object"}},
        {"a_map": {"type": "object", "additionalProperties": {"type": "integer"}}},
        {"an_inner": {"type": "object", "properties": {"size": {"type": "integer"}, "more": {}}}},
        {"some_inners": {"type": "array", "items": {"type": "object", "properties": {"size": {"type": "integer"}}}}},
        {"a_time": {"type": "string", "format": "date-time"}},
        {"an_amount": {"type": "number"}},
        {"a_value": {"type": "boolean"}},
    ],
)
def test_schemas_of_json_that_fit(rows: Table, properties: Any) -> None:
    assert _json(rows, **properties) == []


@pytest.mark.parametrize(
    ("properties", "pair"),
    [
        ({"a_long": {"type": "boolean"}}, ("int64 a_long = 4;", '"a_long": {"type": "boolean"}')),
        ({"a_text": {"type": ["null", "object"]}}, ("string a_text = 7;", '"a_text": {"type": ["null", "object"]}')),
        ({"some_texts": {"type": "string"}}, ("repeated string some_texts = 16;", '"some_texts": {"type": "string"}')),
        (
            {"a_map": {"type": "object", "additionalProperties": {"type": "boolean"}}},
            (
                "map<string, int64> a_map = 18;",
                '"a_map": {"type": "object", "additionalProperties": {"type": "boolean"}}',
            ),
        ),
        (
            {"an_inner": {"type": "object", "properties": {"size": {"type": "null"}}}},
            ("int64 an_inner.size = 1;", '"an_inner.size": {"type": "null"}'),
        ),
        (
            {"some_inners": {"type": "array", "items": {"type": "object", "properties": {"length": {}}}}},
            ("int64 some_inners.size = 1;", "(nothing of this name)"),
        ),
    ],
)
def test_schemas_of_json_that_do_not_fit(rows: Table, properties: Any, pair: tuple[str, str]) -> None:
    assert _json(rows, **properties) == [pair]


@pytest.mark.parametrize(
    ("column", "field", "fits"),
    [
        ("int64 a = 2;", "int64 a = 2;", True),
        ("int64 a = 2;", "int32 a = 2;", True),
        ("int32 a = 2;", "int64 a = 2;", False),
        ("int64 a = 2;", "sint64 a = 2;", False),
        ("int64 a = 2;", "int64 renamed = 2;", True),
        ("int64 a = 2;", "int64 b = 2; int64 a = 3;", False),
        ("int64 a = 2;", "int64 a = 3;", False),
        ("int64 a = 2;", "string a = 2;", False),
        ("bytes a = 2;", "string a = 2;", True),
        ("string a = 2;", "bytes a = 2;", False),
        ("repeated int64 a = 2;", "int64 a = 2;", False),
        ("repeated int64 a = 2;", "repeated int64 a = 2 [packed = false];", True),
        ("Kind a = 2;", "Other a = 2;", True),
        ("int32 a = 2;", "Other a = 2;", True),
        ("optional int64 a = 2;", "int64 a = 2;", True),
        ("oneof x { int64 a = 2; }", "int64 a = 2;", True),
        ("map<string, int64> a = 2;", "map<string, int64> a = 2;", True),
        ("map<string, int64> a = 2;", "map<string, string> a = 2;", False),
        ("Inner a = 2;", "Near a = 2;", True),
        ("Inner a = 2;", "Far a = 2;", False),
        ("Inner a = 2;", "bytes a = 2;", False),
        ("google.protobuf.Timestamp a = 2;", "google.protobuf.Timestamp a = 2;", True),
        ("google.protobuf.Timestamp a = 2;", "Near a = 2;", False),
    ],
)
def test_messages_meet_by_their_numbers(tmp_path: Path, column: str, field: str, *, fits: bool) -> None:
    text = f"""syntax = "proto3"; package fit.v1;
import "tablegate/v1/options.proto"; import "google/protobuf/timestamp.proto";
enum Kind {{ KIND_UNSPECIFIED = 0; }} enum Other {{ OTHER_UNSPECIFIED = 0; }}
message Inner {{ int64 size = 1; }} message Near {{ int64 length = 1; }} message Far {{ string size = 1; }}
message Row {{ option (tablegate.v1.table) = {{name: "rows", key: "id"}}; int64 id = 1; {column} }}
message Theirs {{ string id = 1; {field} }}
"""
    row = bind_sources(tmp_path, fit__v1__rows=text).tables["rows"].row
    theirs = row.file.message_types_by_name["Theirs"]
    assert (not [*message_misfits(row, theirs, ["id"])]) is fits
