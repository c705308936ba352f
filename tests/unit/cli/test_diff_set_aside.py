"""`tablegate diff` of changes with which gateways take the schema of the rows, but not each of the rows."""

import io
import json
import struct
from pathlib import Path
from typing import Any

import fastavro
import pytest

from tablegate.gateway.cli.diff.differences import Effect
from tablegate.gateway.cli.diff.tables import table_differences
from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.rows import RowDecoder, UndecodableRecord, row_schema
from tests.kit.table.contracts import bind_sources

HEAD = """syntax = "proto3";
package shop.v1;
import "tablegate/v1/options.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/wrappers.proto";
"""
BIG = 2**40


def bound(directory: Path, columns: str) -> Table:
    row = f'message Row {{ option (tablegate.v1.table) = {{name: "rows", key: "id"}}; string id = 1; {columns} }}'
    return bind_sources(directory, shop=HEAD + row).tables["rows"]


def inner(field: str) -> str:
    return f"message Inner {{ {field} }} Inner a = 2;"


@pytest.mark.parametrize(
    ("old", "new", "value", "words"),
    [
        (inner("int64 n = 1;"), inner("int32 n = 1;"), {"n": BIG}, "a number beyond it"),
        (inner("int64 n = 1;"), inner("enum E { ZERO = 0; } E n = 1;"), {"n": BIG}, "a number beyond it"),
        ("map<string, int64> a = 2;", "map<string, int32> a = 2;", {"b": BIG}, "a number beyond it"),
        ("map<int64, bool> a = 2;", "map<int32, bool> a = 2;", [{"key": BIG, "value": True}], "a number beyond it"),
        ("google.protobuf.Int64Value a = 2;", "google.protobuf.Int32Value a = 2;", BIG, "a number beyond it"),
        ("google.protobuf.Int64Value a = 2;", "int32 a = 2;", BIG, "a number beyond it"),
        ("google.protobuf.Value a = 2;", "google.protobuf.Struct a = 2;", "5", "text that is no JSON of it"),
        ("google.protobuf.Struct a = 2;", "google.protobuf.ListValue a = 2;", "{}", "text that is no JSON of it"),
        ("string a = 2;", "google.protobuf.Value a = 2;", "no JSON", "text that is no JSON of it"),
        (
            inner("int64 n = 1; int64 m = 2;"),
            inner("oneof o { int64 n = 1; int64 m = 2; }"),
            {"n": 1, "m": 2},
            "two fields of oneof o",
        ),
        (
            inner("oneof o { bool n = 1; } oneof p { bool m = 2; }"),
            inner("oneof o { bool n = 1; bool m = 2; }"),
            {"n": True, "m": False},
            "two fields of oneof o",
        ),
    ],
)
def test_rows_that_would_be_set_aside(tmp_path: Path, old: str, new: str, value: Any, words: str) -> None:
    before, now = bound(tmp_path / "old", old), bound(tmp_path / "new", new)
    with pytest.raises(UndecodableRecord):
        decoded(before, now, value)
    found = table_differences(before, now)
    assert any(one.rows is Effect.REBUILD and words in one.text for one in found), found


@pytest.mark.parametrize(
    ("old", "new", "value", "effect"),
    [
        (inner("int32 n = 1;"), inner("int64 n = 1;"), {"n": 5}, Effect.RESTORE),
        ("google.protobuf.UInt32Value a = 2;", "int64 a = 2;", 5, Effect.RESTORE),
        ("google.protobuf.Struct a = 2;", "google.protobuf.Value a = 2;", "{}", Effect.RESTORE),
        ("string a = 2;", "oneof o { string a = 2; }", "", Effect.RESTORE),
        ("oneof o { bool a = 2; bool b = 3; }", "oneof p { bool a = 2; bool b = 3; }", True, Effect.SAFE),
    ],
)
def test_rows_that_are_all_taken(tmp_path: Path, old: str, new: str, value: Any, effect: Effect) -> None:
    before, now = bound(tmp_path / "old", old), bound(tmp_path / "new", new)
    is_same = decoded(before, now, value) == decoded(before, before, value)
    assert is_same or effect is Effect.RESTORE
    assert {one.rows for one in table_differences(before, now)} == {effect}


def decoded(writer: Table, reader: Table, value: Any) -> bytes:
    """Return the row that a gateway makes with one contract of what a job wrote with another one."""
    schema = row_schema(writer)
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(row_schema(writer)), {"id": "x", "a": value})
    return RowDecoder(reader, {1: json.dumps(schema)}).decode(struct.pack(">bI", 0, 1) + body.getvalue())
