"""Avro to row bytes: what fastavro writes and protobuf reads are the same values."""

import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.rows import RowDecoder, UndecodableRecord, UnfitSchema, row_schema
from tests.kit.seeds import examples
from tests.kit.table.contracts import bind_ratings, bind_sources
from tests.kit.table.values import framed, reasons_of_mutated

COLUMNS = {
    "i32": ("int32", st.integers(-(2**31), 2**31 - 1)),
    "i64": ("int64", st.integers(-(2**63), 2**63 - 1)),
    "u32": ("uint32", st.integers(0, 2**32 - 1)),
    "u64": ("uint64", st.integers(0, 2**63 - 1)),
    "s32": ("sint32", st.integers(-(2**31), 2**31 - 1)),
    "s64": ("sint64", st.integers(-(2**63), 2**63 - 1)),
    "f32": ("fixed32", st.integers(0, 2**32 - 1)),
    "f64": ("fixed64", st.integers(0, 2**63 - 1)),
    "sf32": ("sfixed32", st.integers(-(2**31), 2**31 - 1)),
    "sf64": ("sfixed64", st.integers(-(2**63), 2**63 - 1)),
    "real": ("float", st.floats(width=32, allow_nan=False)),
    "double_": ("double", st.floats(allow_nan=False)),
    "flag": ("bool", st.booleans()),
    "name": ("string", st.text(max_size=200)),
    "raw": ("bytes", st.binary(max_size=300)),
    "place": ("Place", st.integers(-(2**31), 2**31 - 1)),
    "time": ("google.protobuf.Timestamp", st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)),
    "maybe": ("optional int64", st.integers(-(2**63), 2**63 - 1)),
    "maybe_flag": ("optional bool", st.booleans()),
    "maybe_name": ("optional string", st.text(max_size=5)),
    "maybe_real": ("optional double", st.floats(allow_nan=False)),
}
FIELDS = "\n".join(f"  {kind} {name} = {number * 7 + 2};" for number, (name, (kind, _)) in enumerate(COLUMNS.items()))
CONTRACT = """
syntax = "proto3";
package test.everything.v1;
import "tablegate/v1/options.proto";
import "google/protobuf/timestamp.proto";
service EverythingService {
  rpc GetEverything(GetEverythingRequest) returns (GetEverythingResponse) {
    option (tablegate.v1.query) = { get: {} };
  }
}
enum Place { PLACE_UNSPECIFIED = 0; }
message Everything {
  option (tablegate.v1.table) = { name: "everything" key: "id" };
  int64 id = 1;
FIELDS
}
message GetEverythingRequest { int64 id = 1; }
message GetEverythingResponse { Everything everything = 1; }
"""


@cache
def everything() -> Table:
    with TemporaryDirectory() as directory:
        text = CONTRACT.replace("FIELDS", FIELDS)
        return bind_sources(Path(directory), test__everything__v1__everything=text).tables["everything"]


@cache
def ratings() -> Table:
    with TemporaryDirectory() as directory:
        return bind_ratings(Path(directory)).tables["ratings"]


def decoder(table: Table, *schemas: Any) -> RowDecoder:
    return RowDecoder(table, {number: json.dumps(schema) for number, schema in enumerate(schemas, start=1)})


def expected_row(table: Table, columns: Mapping[str, Any]) -> Any:
    row: Any = table.row_class()
    for name, value in columns.items():
        if name == "time" and value is not None:
            row.time.FromMicroseconds(value)
        elif value is not None:
            setattr(row, name, value)
    return row


@examples(300)
@given(
    st.fixed_dictionaries(
        {
            "id": st.integers(-(2**63), 2**63 - 1),
            **{name: st.none() | values for name, (_, values) in COLUMNS.items()},
        }
    )
)
def test_every_type_is_what_protobuf_says(columns: dict[str, Any]) -> None:
    table = everything()
    row_bytes = decoder(table, row_schema(table)).decode(framed(row_schema(table), columns))
    expected = expected_row(table, columns)
    row: Any = table.row_class.FromString(row_bytes)
    assert row == expected
    assert row_bytes == expected.SerializeToString(deterministic=True)
    assert [row.HasField(name) for name in ("maybe", "maybe_flag", "maybe_name", "maybe_real", "time")] == [
        columns[name] is not None for name in ("maybe", "maybe_flag", "maybe_name", "maybe_real", "time")
    ]


def test_not_a_number_and_minus_zero_are_kept() -> None:
    table = everything()
    columns = {"id": 0, "real": math.nan, "double_": -0.0, "maybe_real": 0.0}
    row: Any = table.row_class.FromString(decoder(table, row_schema(table)).decode(framed(row_schema(table), columns)))
    assert math.isnan(row.real)
    assert math.copysign(1, row.double_) == -1
    assert row.HasField("maybe_real")


BORDERS = sorted({sign * (2**bits + more) for bits in range(63) for more in (-1, 0, 1) for sign in (1, -1)})
MICROS = 1_000_000
TIME_BORDERS = [
    sign * (whole + more)
    for whole in [*(2**bits for bits in range(57)), *(2**bits * MICROS for bits in range(38))]
    for more in (-1, 0, 1, 268_435, 268_436, MICROS - 1)
    for sign in (1, -1)
    if -62_135_596_800 * MICROS <= sign * (whole + more) <= 253_402_300_799_999_999
]


def test_numbers_and_times_at_the_borders_of_their_lengths() -> None:
    """Few bytes are read and written in other ways than many; a time may be the last of a value, or not."""
    table = everything()
    schema = row_schema(table)
    for name, numbers in (("i64", BORDERS), ("time", TIME_BORDERS)):
        for behind in ("maybe_flag", "maybe_real"):
            own = {**schema, "fields": [each for each in schema["fields"] if each["name"] in ("id", name, behind)]}
            rows = RowDecoder(table, {1: json.dumps(own), 2: json.dumps(schema)})
            for number in numbers:
                columns = {"id": number, name: number, behind: None}
                expected = expected_row(table, columns).SerializeToString(deterministic=True)
                assert rows.decode(framed(own, columns)) == expected, number


def test_a_schema_may_have_records_in_one_another_that_no_column_takes() -> None:
    """As deep as schemas may be: what reads them is one function in another."""
    inner: dict[str, Any] = {"type": "record", "name": "R0", "fields": [{"name": "x", "type": "long"}]}
    value: Any = {"x": 5}
    for depth in range(1, 99):
        inner = {"type": "record", "name": f"R{depth}", "fields": [{"name": "x", "type": ["null", inner]}]}
        value = {"x": value}
    schema = row_schema(ratings())
    schema["fields"].insert(1, {"name": "deep", "type": ["null", inner]})
    columns = {"movie_id": 7, "deep": value, "average_rating": 2.0}
    row: Any = ratings().row_class.FromString(decoder(ratings(), schema).decode(framed(schema, columns)))
    assert (row.movie_id, row.average_rating) == (7, 2.0)


def test_a_schema_may_have_a_thousand_fields() -> None:
    schema = row_schema(ratings())
    more = {f"f{number}": number for number in range(1_000)}
    schema["fields"] += [{"name": name, "type": ["null", "long"]} for name in more]
    row: Any = ratings().row_class.FromString(
        decoder(ratings(), schema).decode(framed(schema, {"movie_id": 7, "rating_count": 3, **more}))
    )
    assert (row.movie_id, row.rating_count) == (7, 3)


def test_texts_of_a_schema_are_no_code() -> None:
    schema = row_schema(ratings())
    for number, text in enumerate(('"""', "\n    raise SystemExit\n", "{fields}", "'+exit()+'")):
        schema["fields"].insert(number, {"name": text, "type": {"type": "string", "doc": text}, "doc": text})
    body = b"\x02a\x02b\x02c\x02d" + b"\x0e" + b"\x00" * 3
    row: Any = ratings().row_class.FromString(decoder(ratings(), schema).decode(b"\x00\x00\x00\x00\x01" + body))
    assert row.movie_id == 7


def test_the_schema_of_ratings() -> None:
    assert row_schema(ratings()) == {
        "type": "record",
        "name": "Rating",
        "namespace": "examples.ratings.v1",
        "fields": [
            {"name": "movie_id", "type": "long"},
            {"name": "average_rating", "type": ["null", "double"], "default": None},
            {"name": "rating_count", "type": ["null", "long"], "default": None},
            {
                "name": "update_time",
                "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}],
                "default": None,
            },
        ],
    }


@pytest.mark.parametrize(
    ("name", "number"),
    [("i32", 2**31), ("i32", -(2**31) - 1), ("u32", -1), ("u32", 2**32), ("u64", -1), ("place", 2**31), ("s32", 2**31)],
)
def test_a_number_that_its_column_cannot_hold_is_poison(name: str, number: int) -> None:
    table = everything()
    with pytest.raises(UndecodableRecord, match="cannot hold"):
        decoder(table, row_schema(table)).decode(framed(row_schema(table), {"id": 1, name: number}))


def field(schema: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in schema["fields"] if each["name"] == name)
    return found


def test_other_writers_may_order_and_type_their_fields_otherwise() -> None:
    schema = row_schema(ratings())
    schema["fields"].reverse()
    field(schema, "movie_id")["type"] = "int"
    field(schema, "average_rating")["type"] = ["float", "null"]
    field(schema, "rating_count")["type"] = [{"type": "long"}]
    schema["fields"].insert(1, {"name": "note", "type": ["null", "string"]})
    schema["fields"].insert(2, {"name": "weight", "type": "double"})
    schema["fields"].insert(3, {"name": "seen", "type": "long"})
    columns = {
        "movie_id": -7,
        "average_rating": 2.5,
        "rating_count": 3,
        "update_time": 1_500_000,
        "note": "x",
        "weight": 1.5,
        "seen": 10**12,
    }
    row: Any = ratings().row_class.FromString(decoder(ratings(), schema).decode(framed(schema, columns)))
    assert (row.movie_id, row.average_rating, row.rating_count) == (-7, 2.5, 3)
    assert row.update_time.ToMicroseconds() == 1_500_000
    columns["average_rating"] = None
    row = ratings().row_class.FromString(decoder(ratings(), schema).decode(framed(schema, columns)))
    assert row.average_rating == 0


def test_an_older_schema_may_lack_a_column_that_a_newer_one_has() -> None:
    older, newer = row_schema(ratings()), row_schema(ratings())
    older["fields"] = older["fields"][:2]
    both = decoder(ratings(), older, newer)
    row: Any = ratings().row_class.FromString(both.decode(framed(older, {"movie_id": 1, "average_rating": 2.0})))
    assert (row.movie_id, row.rating_count) == (1, 0)
    with pytest.raises(UnfitSchema, match='no value schema has field "rating_count" of the contract'):
        decoder(ratings(), older)


@pytest.mark.parametrize(
    ("name", "avro", "words"),
    [
        ("average_rating", "string", 'field "average_rating" is "string", the contract wants double'),
        ("rating_count", ["null", "double"], 'field "rating_count" is ["null", "double"], the contract wants long'),
        ("update_time", ["null", "long"], "the contract wants timestamp-micros"),
        ("update_time", {"type": "long", "logicalType": "timestamp-millis"}, "the contract wants timestamp-micros"),
        ("movie_id", ["null", "int", "long"], 'field "movie_id" is ["null", "int", "long"], the contract wants long'),
        ("movie_id", {"type": "array", "items": "long"}, "the contract wants long"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused_by_field(name: str, avro: Any, words: str) -> None:
    schema = row_schema(ratings())
    field(schema, name)["type"] = avro
    with pytest.raises(UnfitSchema) as refused:
        decoder(ratings(), schema)
    assert str(refused.value).startswith('table "ratings", value schema 1: ')
    assert words in str(refused.value)


def test_schemas_that_are_none_are_refused() -> None:
    with pytest.raises(UnfitSchema, match="has no value schema"):
        RowDecoder(ratings(), {})
    for text in ("", "{", '"long"', "[]", "{}", '{"fields": 3}', '{"fields": [{"name": "x"}]}', '{"fields": [1]}'):
        with pytest.raises(UnfitSchema, match="not an Avro record schema"):
            RowDecoder(ratings(), {1: text})
    schema = row_schema(ratings())
    with pytest.raises(UnfitSchema, match='field "movie_id" is missing, which the contract has in the key'):
        decoder(ratings(), {**schema, "fields": schema["fields"][1:]})
    extra = {"name": "tags", "type": {"type": "fixed", "name": "Tags", "size": 4}}
    with pytest.raises(UnfitSchema, match=r'field "tags" is .* and no column of the contract'):
        decoder(ratings(), {**schema, "fields": [*schema["fields"], extra]})


def good_value() -> bytes:
    columns = {"movie_id": 362, "average_rating": 9.0, "rating_count": 2, "update_time": 1_790_000_000_123_456}
    return framed(row_schema(ratings()), columns)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "value is not in the Confluent wire format"),
        (b"{}", "value is not in the Confluent wire format"),
        (b"\x01" + good_value()[1:], "value is not in the Confluent wire format"),
        (b"\x00\x00\x00\x00\x02" + good_value()[5:], "value has a schema id that is not in the manifest"),
        (good_value()[:5], "value ends early"),
        (good_value()[:-1], "value ends early"),
        (good_value()[:10], "value ends early"),
        (good_value() + b"\x00", "value has bytes after the row"),
        (good_value()[:5] + b"\xff" * 30, "value has an integer of more than 64 bits"),
        (
            good_value()[:7] + b"\x04" + good_value()[8:],
            "value has a null or a union branch that its column cannot have",
        ),
    ],
)
def test_a_damaged_value_is_poison_with_its_reason(value: bytes, reason: str) -> None:
    with pytest.raises(UndecodableRecord) as refused:
        decoder(ratings(), row_schema(ratings())).decode(value)
    assert str(refused.value) == reason


def test_texts_are_checked() -> None:
    table = everything()
    schema = row_schema(table)
    schema["fields"] = [each for each in schema["fields"] if each["name"] in ("id", "name", "flag")]
    rows = RowDecoder(table, {1: json.dumps(schema), 2: json.dumps(row_schema(table))})
    head = b"\x00\x00\x00\x00\x01\x02"
    assert rows.decode(head + b"\x02\x01" + b"\x02\x02a")
    for body, reason in (
        (b"\x02\x01\x02\x02\xff", "value has a string that is not UTF-8"),
        (b"\x02\x02\x02\x02a", "value has a bool that is neither 0 nor 1"),
        (b"\x02\x01\x02\x01", "value has a negative length"),
        (b"\x02\x01\x02\x7ea", "value ends early"),
        (b"\x02\x01\x02\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01a", "value ends early"),
    ):
        with pytest.raises(UndecodableRecord) as refused:
            rows.decode(head + body)
        assert str(refused.value) == reason


def test_mutated_values_are_rows_or_poison() -> None:
    """Whatever comes, there is a row that parses, or a reason; and few reasons, as each is logged once."""
    table = everything()
    rows = decoder(table, row_schema(table))
    columns = {"id": 1, "name": "naïve", "raw": b"abc", "real": 1.5, "time": 5, "flag": True, "place": 0, "u64": 77}
    reasons = reasons_of_mutated(rows, table, framed(row_schema(table), columns), seed=5)
    assert 4 < len(reasons) < 12
