"""Values that others write, with objects, arrays and maps in them: what they are in a row that is not flat."""

import io
import json
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.protobuf import json_format

from tablegate.gateway.contract.foreign.avro import AvroSchemas
from tablegate.gateway.contract.foreign.columns import RowMaker
from tablegate.gateway.contract.foreign.values import value_reader
from tablegate.gateway.contract.rows import UndecodableRecord, UnfitSchema
from tablegate.v1 import changelog_pb2
from tablegate.v1.changelog_pb2 import ForeignTopic
from tests.kit.table.contracts import bind_sources
from tests.kit.table.filled import orders

FULL: dict[str, Any] = {
    "items": [
        {"sku": "a", "pieces": 2, "price": 9.99, "marks": ["x", "y"], "locker": 0, "unknown": {"a": 1}},
        {"sku": "b", "sent_to": {"street": "s", "city": "", "floor": 3}, "courier": "c"},
    ],
    "address": {"street": "Main", "city": "Bern", "floor": 2},
    "tags": ["new", "ü"],
    "labels": {"a": "1", "b": "2"},
    "byLine": {"7": {"sku": "c", "pieces": 1}},
    "cash": 0.0,
    "nickname": "",
    "points": 5,
    "took": "86399.999999s",
    "extra": {"a": [1, None, 0.5]},
    "deltas": [-1, 1],
    "weights": [1.5],
    "flags": [True, False],
    "history": ["STATUS_PAID", 0],
    "times": ["2026-01-01T00:00:00Z", 1_767_225_600_000],
    "counts": {"true": 4},
    "blobs": ["AA=="],
    "maybes": [0.0, 2.5],
    "anyValue": "text",
    "waits": {"a": "-1.5s"},
    "small": [0.5],
    "fixed": [2**32 - 1],
}
EXPECTED: dict[str, Any] = {
    **FULL,
    "id": 1,
    "items": [
        {"sku": "a", "pieces": 2, "price": {"units": 9, "nanos": 990_000_000}, "marks": ["x", "y"], "locker": 0},
        FULL["items"][1],
    ],
    "times": ["2026-01-01T00:00:00Z"] * 2,
}


STRUCT, WRAPPERS = "google/protobuf/struct.proto", "google/protobuf/wrappers.proto"


def expected(row: dict[str, Any]) -> Any:
    return json_format.ParseDict(row, orders().row_class())


def read_json(value: Any) -> Any:
    topic = ForeignTopic(value_codec=changelog_pb2.VALUE_CODEC_JSON)
    row = value_reader(orders(), topic, {}).read(json.dumps(value).encode(), [1])
    assert row is not None
    return orders().row_class.FromString(row)


def test_json_of_every_kind() -> None:
    assert read_json(FULL) == expected(EXPECTED)


def test_maps_may_be_arrays_of_entries() -> None:
    """As Kafka Connect writes a map whose keys are no text, and Avro one of ours."""
    found = read_json({"by_line": [[7, {"sku": "c"}]], "labels": [{"key": "a", "value": "1"}]})
    assert found == expected({"id": 1, "byLine": {"7": {"sku": "c"}}, "labels": {"a": "1"}})


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"items": [{"sku": 1}]}, "items.sku"),
        ({"items": [None]}, "items"),
        ({"items": {"sku": "a"}}, "items"),
        ({"items": [{"sent_to": {"floor": 2**31}}]}, "items.sent_to.floor"),
        ({"items": [{"courier": "a", "locker": 1}]}, "items.locker"),
        ({"card": "", "cash": 0}, "cash"),
        ({"address": []}, "address"),
        ({"tags": ["a", None]}, "tags"),
        ({"tags": "a"}, "tags"),
        ({"labels": {"a": None}}, "labels"),
        ({"labels": {"a": 1}}, "labels"),
        ({"labels": [[1, 2, 3]]}, "labels"),
        ({"labels": [{"key": "a"}]}, "labels"),
        ({"by_line": {"x": {}}}, "by_line"),
        ({"counts": {"yes": 1}}, "counts"),
        ({"took": 5}, "took"),
        ({"took": "soon"}, "took"),
        ({"took": "315576000001s"}, "took"),
        ({"extra": []}, "extra"),
        ({"extra": {"a": 1e400}}, "extra"),
        ({"points": "x"}, "points"),
        ({"maybes": [None]}, "maybes"),
        ({"small": [1e39]}, "small"),
    ],
)
def test_what_no_column_holds_is_refused_by_its_path(value: Any, path: str) -> None:
    with pytest.raises(UndecodableRecord) as refused:
        read_json(value)
    assert str(refused.value) == f'value has a "{path}" that its column cannot hold'


def test_a_null_of_json_may_be_in_a_map(tmp_path: Path) -> None:
    columns = "string id = 1; map<string, google.protobuf.Value> facts = 2; google.protobuf.Int64Value count = 3;"
    imports = "".join(f'import "{name}";' for name in ("tablegate/v1/options.proto", STRUCT, WRAPPERS))
    row = f'message Row {{ option (tablegate.v1.table) = {{name: "rows", key: "id"}}; {columns} }}'
    table = bind_sources(tmp_path, shop=f'syntax = "proto3"; package shop.v1; {imports} {row}').tables["rows"]
    topic = ForeignTopic(value_codec=changelog_pb2.VALUE_CODEC_JSON)
    read = value_reader(table, topic, {}).read(b'{"facts": {"a": null, "b": [null]}, "count": 0}', ["x"])
    assert read is not None
    found = json_format.MessageToDict(table.row_class.FromString(read))
    assert found == {"id": "x", "facts": {"a": None, "b": [None]}, "count": "0"}


ITEM = {
    "type": "record",
    "name": "Item",
    "fields": [
        {"name": "sku", "type": "string"},
        {"name": "pieces", "type": ["null", "int"]},
        {"name": "marks", "type": {"type": "array", "items": "string"}},
    ],
}
STATUS = {"type": "enum", "name": "Status", "symbols": ["STATUS_UNSPECIFIED", "STATUS_PAID"]}


@pytest.mark.parametrize("more", [[], [{"name": "history", "type": {"type": "array", "items": STATUS}}]])
def test_avro_of_others(more: list[Any]) -> None:
    """Without an enum the bytes are read as those of our own changelogs; with one, by way of Python."""
    named = [field.name for field in orders().row.fields if field.name not in ("id", "items", "labels", "history")]
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "items", "type": {"type": "array", "items": ITEM}},
            {"name": "labels", "type": {"type": "map", "values": "string"}},
            *more,
        ],
    }
    old = {"type": "record", "name": "Old", "fields": [{"name": name, "type": "null"} for name in (*named, "history")]}
    value = {"items": [{"sku": "a", "pieces": None, "marks": ["x"]}], "labels": {"a": "1"}, "history": ["STATUS_PAID"]}
    body = io.BytesIO(b"\0\0\0\0\1")
    body.seek(5)
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), value)
    topic = ForeignTopic(value_codec=changelog_pb2.VALUE_CODEC_AVRO)
    reader = value_reader(orders(), topic, {1: json.dumps(schema), 2: json.dumps(old)})
    row = reader.read(body.getvalue(), [1])
    assert row is not None
    wanted = {"id": 1, "items": [{"sku": "a", "marks": ["x"]}], "labels": {"a": "1"}}
    assert orders().row_class.FromString(row) == expected(wanted | ({"history": [1]} if more else {}))


TREE = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "nickname", "type": "string"}, {"name": "inner", "type": ["null", "Order"]}],
}


def test_avro_within_itself_has_an_end() -> None:
    """The library's reader in C would die of so many, with the process, again at each start."""
    schemas = AvroSchemas("value", {0: json.dumps(TREE)})
    assert schemas.read(b"\x02a\x02\x02b\x00") == (0, {"nickname": "a", "inner": {"nickname": "b", "inner": None}})
    with pytest.raises(UndecodableRecord, match="value is not Avro of its schema"):
        schemas.read(b"\x02a\x02" * 20_000)


@pytest.mark.parametrize(
    "items",
    [
        "null",
        {"type": "record", "name": "Nothing", "fields": []},
        {"type": "record", "name": "Nothing", "fields": [{"name": "a", "type": "null"}]},
        {"type": "fixed", "name": "Nothing", "size": 0},
    ],
)
def test_avro_arrays_have_items_of_some_bytes(items: Any) -> None:
    """Six bytes would be a billion of them, and all memory."""
    fields = [{"name": "more", "type": ["null", {"type": "array", "items": items}]}]
    with pytest.raises(UnfitSchema, match="it has an array of what takes no bytes"):
        AvroSchemas("value", {0: json.dumps({"type": "record", "name": "Order", "fields": fields})})


def test_values_that_a_library_of_avro_gives() -> None:
    found = {"took": timedelta(seconds=-1.5), "items": [{"price": Decimal("1.50")}], "by_line": {7: {"sku": "c"}}}
    row = orders().row_class.FromString(RowMaker(orders()).make(found, [1], {}))
    price = {"price": {"units": 1, "nanos": 500_000_000}}
    assert row == expected({"id": 1, "took": "-1.5s", "items": [price], "byLine": {"7": {"sku": "c"}}})


def read_protobuf(value: bytes) -> bytes | None:
    topic = ForeignTopic(value_codec=changelog_pb2.VALUE_CODEC_PROTOBUF_PLAIN)
    return value_reader(orders(), topic, {}).read(value, [1])


UNASKED = b"\xda\x3e\x06secret"  # field 1003, which no message of the contract has
ITEM_WITH_MORE = b"\x0a\x01a" + UNASKED


@pytest.mark.parametrize(
    "place",
    [
        pytest.param(b"\x12" + bytes([len(ITEM_WITH_MORE)]) + ITEM_WITH_MORE, id="in a list"),
        pytest.param(b"\x1a" + bytes([len(UNASKED)]) + UNASKED, id="in a message"),
        pytest.param(
            b"\x32" + bytes([4 + len(UNASKED)]) + b"\x08\x07\x12" + bytes([len(UNASKED)]) + UNASKED, id="in a map"
        ),
    ],
)
def test_nothing_that_the_contract_lacks_is_given_to_clients(place: bytes) -> None:
    row = read_protobuf(b"\x08\x01" + place)
    assert row is not None
    assert b"secret" not in row
    assert orders().row_class.FromString(row).id == 1


def test_a_field_of_another_type_inside_is_refused() -> None:
    with pytest.raises(UndecodableRecord, match="of another type than the contract"):
        read_protobuf(b"\x08\x01\x12\x02\x10\x05\x12\x02\x08\x05")  # a sku that is a number


def test_values_of_the_contract_are_copied() -> None:
    value = json_format.ParseDict(EXPECTED, orders().row_class()).SerializeToString()
    assert read_protobuf(value) == value
