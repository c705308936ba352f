"""Rows as they are: messages, lists, maps and oneofs become what protobuf says they are."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from tablegate.gateway.contract.binder.problems import ContractError
from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.rows import RowDecoder, UndecodableRecord, UnfitSchema, row_schema
from tablegate.gateway.kafka.border import _check_schema
from tests.kit.seeds import examples
from tests.kit.table.contracts import bind_sources
from tests.kit.table.filled import orders
from tests.kit.table.values import framed, reasons_of_mutated


@cache
def decoder() -> RowDecoder:
    return RowDecoder(orders(), {1: json.dumps(row_schema(orders()))})


def value_of(columns: Mapping[str, Any]) -> bytes:
    return framed(row_schema(orders()), columns)


def decoded(columns: Mapping[str, Any]) -> Any:
    return orders().row_class.FromString(decoder().decode(value_of(columns)))


def fill(message: Any, values: Mapping[str, Any]) -> Any:
    """Set fields as a programmer would, with protobuf's own means."""
    for name, value in values.items():
        field = message.DESCRIPTOR.fields_by_name[name]
        if value is None:
            continue
        kept = getattr(message, name)
        kind = field.message_type.full_name if field.message_type is not None else None
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            pairs = value.items() if isinstance(value, dict) else [(one["key"], one["value"]) for one in value]
            of = field.message_type.fields_by_name["value"]
            for key, one in pairs:
                if of.message_type is None:
                    kept[key] = one
                else:
                    kept[key].Clear()
                    set_message(kept[key], of.message_type.full_name, one)
        elif field.is_repeated:
            for one in value:
                if kind is None:
                    kept.append(one)
                else:
                    set_message(kept.add(), kind, one)
        elif kind is None:
            setattr(message, name, value)
        else:
            kept.SetInParent()
            set_message(kept, kind, value)
    return message


def set_message(message: Any, kind: str, value: Any) -> None:
    if kind in ("google.protobuf.Timestamp", "google.protobuf.Duration"):
        message.FromMicroseconds(value)
    elif kind == "google.type.Money":
        number = int.from_bytes(value, "big", signed=True)
        sign = -1 if number < 0 else 1
        message.units, message.nanos = sign * (abs(number) // 10**9), sign * (abs(number) % 10**9)
    elif kind in ("google.protobuf.Struct", "google.protobuf.Value"):
        json_format.Parse(value, message)
    elif kind.startswith("google.protobuf.") and kind.endswith("Value"):
        message.value = value
    else:
        fill(message, value)


INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=6)
REAL = st.floats(allow_nan=False)
MICROS = st.integers(-(10**15), 10**15)
MONEY = st.integers(-(10**20), 10**20).map(lambda number: number.to_bytes(12, "big", signed=True))
ADDRESS = st.fixed_dictionaries({"street": st.none() | TEXT, "city": st.none() | TEXT, "floor": st.none() | INT32})
ITEM = st.fixed_dictionaries(
    {
        "sku": st.none() | TEXT,
        "pieces": st.none() | INT64,
        "price": st.none() | MONEY,
        "marks": st.none() | st.lists(TEXT, max_size=3),
        "sent_to": st.none() | ADDRESS,
    },
).flatmap(lambda item: st.sampled_from([{}, {"courier": ""}, {"locker": 0}, {"locker": 9}]).map(lambda how: item | how))
JSON_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
PAYMENT = st.sampled_from(
    [{}, {"card": ""}, {"card": "x"}, {"cash": 0.0}, {"cash": 2.5}, {"invoice": {"street": "a"}}, {"free": False}]
)


def entries(keys: Any, values: Any) -> Any:
    return st.dictionaries(keys, values, max_size=3).map(
        lambda found: [{"key": key, "value": value} for key, value in found.items()]
    )


COLUMNS = {
    "items": st.lists(ITEM, max_size=4),
    "address": ADDRESS,
    "tags": st.lists(TEXT, max_size=5),
    "labels": st.dictionaries(TEXT, TEXT, max_size=3),
    "by_line": entries(INT64, ITEM),
    "nickname": TEXT,
    "points": INT64,
    "took": MICROS,
    "extra": st.dictionaries(TEXT, JSON_VALUE, max_size=3).map(json.dumps),
    "anything": st.fixed_dictionaries({"type_url": TEXT, "value": st.binary(max_size=5)}),
    "deltas": st.lists(INT64, max_size=5),
    "weights": st.lists(REAL, max_size=5),
    "flags": st.lists(st.booleans(), max_size=5),
    "history": st.lists(st.integers(0, 1), max_size=5),
    "times": st.lists(MICROS, max_size=3),
    "counts": entries(st.booleans(), INT32),
    "blobs": st.lists(st.binary(max_size=4), max_size=3),
    "maybes": st.lists(REAL, max_size=3),
    "any_value": JSON_VALUE.map(json.dumps),
    "waits": st.dictionaries(TEXT, MICROS, max_size=3),
    "small": st.lists(st.floats(width=32, allow_nan=False), max_size=3),
    "fixed": st.lists(st.integers(0, 2**32 - 1), max_size=3),
}
ROWS = st.tuples(
    st.fixed_dictionaries({"id": INT64, **{name: st.none() | values for name, values in COLUMNS.items()}}), PAYMENT
).map(lambda parts: parts[0] | parts[1])


@examples(300)
@given(ROWS)
def test_every_kind_of_column_is_what_protobuf_says(columns: dict[str, Any]) -> None:
    expected = fill(orders().row_class(), columns)
    row = decoded(columns)
    assert row == expected
    assert row.WhichOneof("payment") == expected.WhichOneof("payment")
    assert [row.HasField(name) for name in ("address", "nickname", "points", "extra")] == [
        columns[name] is not None for name in ("address", "nickname", "points", "extra")
    ]


def test_long_lists_are_read_whole() -> None:
    items = [{"sku": str(number), "pieces": number, "locker": number} for number in range(1_000)]
    row = decoded(
        {"id": 1, "items": items, "deltas": list(range(-5_000, 5_000)), "labels": {str(n): "x" for n in range(500)}}
    )
    assert [item.locker for item in row.items] == list(range(1_000))
    assert list(row.deltas) == list(range(-5_000, 5_000))
    assert len(row.labels) == 500


def test_blocks_may_give_their_length() -> None:
    """Avro lets a writer say how many bytes a block has, and write several blocks."""
    value = bytearray(value_of({"id": 1, "tags": ["a", "b", "c"]}))
    at = value.index(b"\x06\x02a\x02b\x02c\x00")
    value[at : at + 8] = b"\x03\x08\x02a\x02b\x02\x02c\x00"  # two items in 4 bytes, then one
    row = orders().row_class.FromString(decoder().decode(bytes(value)))
    assert list(row.tags) == ["a", "b", "c"]


def test_two_fields_of_one_oneof_are_poison() -> None:
    with pytest.raises(UndecodableRecord, match="two fields of one oneof"):
        decoded({"id": 1, "card": "x", "cash": 0.0})
    with pytest.raises(UndecodableRecord, match="two fields of one oneof"):
        decoded({"id": 1, "items": [{"courier": "a"}, {"courier": "", "locker": 0}]})
    row = decoded({"id": 1, "items": [{"courier": "a"}, {"locker": 0}], "card": "x"})
    assert [item.WhichOneof("how") for item in row.items] == ["courier", "locker"]
    with pytest.raises(UndecodableRecord):  # the record that ends early leaves nothing behind for the next one
        decoder().decode(value_of({"id": 1, "card": "x"})[:-3])
    assert decoded({"id": 2, "cash": 1.0}).cash == 1.0


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"extra": "[]"}, "not the JSON of its column"),
        ({"extra": "{"}, "not the JSON of its column"),
        ({"extra": '{"a": NaN}'}, "not the JSON of its column"),
        ({"extra": '{"a": 1e999}'}, "not the JSON of its column"),
        ({"any_value": "1" + "0" * 400}, "not the JSON of its column"),
        ({"any_value": "[" * 38 + "]" * 38}, "not the JSON of its column"),
        ({"any_value": "[" * 100_000}, "not the JSON of its column"),
        ({"any_value": '"\\ud800"'}, "not the JSON of its column"),
        ({"took": 315_576_000_001 * 10**6}, "a duration of more than 10,000 years"),
        ({"history": [2**31]}, "an integer that its column cannot hold"),
    ],
)
def test_what_no_message_can_hold_is_poison(columns: dict[str, Any], reason: str) -> None:
    with pytest.raises(UndecodableRecord, match=reason):
        decoded({"id": 1, **columns})


def test_json_of_each_row_can_be_given_back() -> None:
    for text in ("null", "1.5", '"x"', "[1, {}]", "[" * 37 + "]" * 37, "9007199254740993", "-0.0", '{"": null}'):
        row = decoded({"id": 1, "any_value": text})
        assert json_format.MessageToDict(row)["anyValue"] == json.loads(text) or text == "9007199254740993"


def with_types(change: Any) -> dict[str, Any]:
    schema = row_schema(orders())
    for field in schema["fields"]:
        change(field)
    return schema


def test_a_null_in_a_list_is_poison() -> None:
    def change(field: dict[str, Any]) -> None:
        if field["name"] == "tags":
            field["type"][1] = {"type": "array", "items": ["null", "string"]}
        if field["name"] == "labels":
            field["type"][1] = {"type": "map", "values": ["null", "string"]}

    schema = with_types(change)
    rows = RowDecoder(orders(), {1: json.dumps(schema)})
    row: Any = orders().row_class.FromString(
        rows.decode(framed(schema, {"id": 1, "tags": ["a"], "labels": {"b": "c"}}))
    )
    assert (list(row.tags), dict(row.labels)) == (["a"], {"b": "c"})
    for columns in ({"tags": ["a", None], "labels": {}}, {"tags": [], "labels": {"b": None}}):
        with pytest.raises(UndecodableRecord, match="a null or a union branch"):
            rows.decode(framed(schema, {"id": 1, **columns}))


def test_what_the_contract_lacks_is_passed_over() -> None:
    schema = row_schema(orders())
    extra = {"type": "record", "name": "Extra", "fields": [{"name": "a", "type": {"type": "map", "values": "long"}}]}
    schema["fields"].insert(1, {"name": "unknown", "type": {"type": "array", "items": extra}})
    items = next(field for field in schema["fields"] if field["name"] == "items")
    items["type"][1]["items"]["fields"].insert(0, {"name": "weight", "type": ["null", "double"]})
    columns = {"id": 7, "unknown": [{"a": {"x": 1}}, {"a": {}}], "items": [{"weight": 1.5, "sku": "s"}]}
    row: Any = orders().row_class.FromString(
        RowDecoder(orders(), {1: json.dumps(schema)}).decode(framed(schema, columns))
    )
    assert (row.id, [item.sku for item in row.items]) == (7, ["s"])


@pytest.mark.parametrize(
    ("name", "avro", "words"),
    [
        ("items", {"type": "array", "items": "string"}, 'field "items[]" is "string", the contract wants record'),
        ("tags", "string", 'field "tags" is "string", the contract wants array'),
        ("labels", {"type": "array", "items": "string"}, 'field "labels[]" is "string", the contract wants record'),
        ("by_line", "string", "wants an array of records of key and value"),
        ("address", {"type": "array", "items": "string"}, "the contract wants record"),
        ("points", "string", 'field "points" is "string", the contract wants long'),
        ("extra", "long", "the contract wants json"),
        ("address", {"type": "record", "name": "A"}, 'field "address" is a record without fields'),
    ],
)
def test_a_nested_schema_that_does_not_fit_is_refused(name: str, avro: Any, words: str) -> None:
    def change(field: dict[str, Any]) -> None:
        if field["name"] == name:
            field["type"] = avro

    with pytest.raises(UnfitSchema) as refused:
        RowDecoder(orders(), {1: json.dumps(with_types(change))})
    assert words in str(refused.value)


def test_a_nested_field_that_no_schema_has_is_refused() -> None:
    schema = row_schema(orders())
    items = next(field for field in schema["fields"] if field["name"] == "items")
    items["type"][1]["items"]["fields"] = [
        field for field in items["type"][1]["items"]["fields"] if field["name"] != "pieces"
    ]
    with pytest.raises(UnfitSchema, match=r'no value schema has field ".*Item\.pieces" of the contract'):
        RowDecoder(orders(), {1: json.dumps(schema)})
    assert RowDecoder(orders(), {1: json.dumps(schema), 2: json.dumps(row_schema(orders()))})


def test_a_schema_that_contains_itself_is_refused() -> None:
    loop = {"type": "record", "name": "Loop", "fields": [{"name": "next", "type": ["null", "Loop"]}]}
    schema = row_schema(orders())
    schema["fields"].append({"name": "loop", "type": loop})
    with pytest.raises(UnfitSchema, match="contains itself"):
        RowDecoder(orders(), {1: json.dumps(schema)})


def test_mutated_values_are_rows_or_poison() -> None:
    columns = {
        "id": 1,
        "items": [{"sku": "a", "pieces": 2, "marks": ["x"], "locker": 1, "sent_to": {"city": "b"}}] * 2,
        "labels": {"k": "v"},
        "by_line": [{"key": 3, "value": {"sku": "c"}}],
        "card": "1",
        "took": 5,
        "extra": '{"a": [1, null]}',
        "deltas": [1, -1],
        "weights": [1.5],
        "counts": [{"key": True, "value": 1}],
    }
    reasons = reasons_of_mutated(decoder(), orders(), value_of(columns), seed=7, kept=5)
    assert 4 < len(reasons) < 16


ONE = 'message One { option (tablegate.v1.table) = { name: "ones" key: "id" }; int64 id = 1; COLUMN }'


def bound(column: str, more: str = "", option: str = "") -> Table:
    text = 'syntax = "proto3"; package test.one.v1; import "tablegate/v1/options.proto"; '
    text += 'import "google/protobuf/struct.proto"; import "google/protobuf/empty.proto"; '
    text += 'import "google/protobuf/timestamp.proto"; import "google/protobuf/wrappers.proto"; '
    text += more + ONE.replace("COLUMN", column).replace('key: "id"', option or 'key: "id"')
    with TemporaryDirectory() as directory:
        return bind_sources(Path(directory), test__one__v1__one=text).tables["ones"]


@pytest.mark.parametrize(
    ("column", "more", "words"),
    [
        ("Node node = 2;", "message Node { Node next = 1; }", "message test.one.v1.Node contains itself"),
        ("repeated Node nodes = 2;", "message Node { map<string, Node> by = 1; }", "Node contains itself"),
        ("One one = 2;", "", "message test.one.v1.One contains itself"),
        ("google.protobuf.Empty nothing = 2;", "", "message google.protobuf.Empty has no fields"),
        (
            "N0 n = 2;",
            "".join(f"message N{n} {{ N{n + 1} n = 1; }} " for n in range(16)) + "message N16 { int32 n = 1; }",
            "more than 16 messages in one another",
        ),
    ],
)
def test_a_column_that_has_no_end_is_refused(column: str, more: str, words: str) -> None:
    with pytest.raises(ContractError) as refused:
        bound(column, more)
    assert words in str(refused.value)


def test_the_deepest_row_has_a_schema_that_gateways_read() -> None:
    more = "".join(f"message N{n} {{ repeated N{n + 1} n = 1; }} " for n in range(14)) + "message N14 { int32 n = 1; }"
    _check_schema("value", json.dumps(row_schema(bound("repeated N0 n = 2;", more))))


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("repeated string tags = 2;", "repeated or a map cannot be in the key"),
        ("oneof of { string tags = 2; }", "in a oneof cannot be in the key"),
        ("google.protobuf.StringValue tags = 2;", "cannot be in the key: messages have no key bytes"),
        ("double tags = 2;", "equal numbers may differ in their bytes"),
    ],
)
def test_a_key_column_is_one_scalar(column: str, words: str) -> None:
    with pytest.raises(ContractError) as refused:
        bound(column, option='key: "id" key: "tags"')
    assert words in str(refused.value)


def test_what_stored_bytes_depend_on_is_known() -> None:
    """A store is made anew where a message in the row has changed."""
    digests = {
        bound(column, more).row_digest
        for column, more in (
            ("Inner inner = 2;", "message Inner { int32 a = 1; }"),
            ("Inner inner = 2;", "message Inner { int32 a = 2; }"),
            ("Inner inner = 2;", "message Inner { int64 a = 1; }"),
            ("Inner inner = 2;", "message Inner { string a = 1; }"),
            ("repeated Inner inner = 2;", "message Inner { int32 a = 1; }"),
        )
    }
    assert len(digests) == 5
