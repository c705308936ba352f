"""Odd but valid records of others: none may become another row than it says, or one that no client can be given."""

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.protobuf import json_format, struct_pb2

from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.foreign.topics import ForeignRows, partition_function
from tablegate.gateway.contract.foreign.values import value_reader
from tablegate.gateway.contract.keys import murmur2_partition
from tablegate.gateway.contract.rows import UndecodableRecord
from tablegate.v1 import changelog_pb2
from tablegate.v1.changelog_pb2 import ForeignTopic
from tests.kit.table.contracts import bind_sources

ROWS = """syntax = "proto3";
package odd.v1;
import "google/protobuf/any.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/field_mask.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
import "google/type/money.proto";
import "tablegate/v1/options.proto";
message Part { int32 part_no = 1; google.protobuf.Timestamp made_at = 2; string text = 3; google.type.Money cost = 4; }
message Row {
  option (tablegate.v1.table) = {name: "rows", key: "id"};
  string id = 1;
  string order_no = 2;
  google.protobuf.Timestamp at = 3;
  google.protobuf.Duration wait = 4;
  google.protobuf.Struct facts = 5;
  google.protobuf.Any thing = 6;
  Part part = 7;
  map<string, Part> parts = 8;
  repeated google.protobuf.Value values = 9;
  double weight = 10;
  map<string, int32> counts = 11;
}
message Event {
  option (tablegate.v1.table) = {name: "events", key: "id"};
  string id = 1;
  google.protobuf.Timestamp at = 2;
}
message Fact {
  option (tablegate.v1.table) = {name: "facts", key: "id"};
  string id = 1;
  google.protobuf.Timestamp at = 2;
  google.protobuf.Struct said = 3;
}
message Update {
  option (tablegate.v1.table) = {name: "updates", key: "id"};
  string id = 1;
  google.protobuf.FieldMask mask = 2;
  repeated google.protobuf.FieldMask others = 3;
}
"""


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Table]:
    return dict(bind_sources(tmp_path_factory.mktemp("odd"), odd=ROWS).tables)


def read(table: Table, codec: str, value: bytes, schema: Any = None) -> dict[str, Any]:
    """Return the row of key "x" as JSON has it."""
    topic = ForeignTopic(value_codec=getattr(changelog_pb2, f"VALUE_CODEC_{codec}"))
    row = value_reader(table, topic, {} if schema is None else {0: json.dumps(schema)}).read(value, ["x"])
    assert row is not None
    message = table.row_class.FromString(row)
    found = json_format.MessageToDict(message, descriptor_pool=table.row.file.pool)
    assert found.pop("id") == "x"
    return found


def read_avro(table: Table, fields: list[Any], value: Any) -> dict[str, Any]:
    schema = {"type": "record", "name": "Theirs", "fields": fields}
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return read(table, "AVRO_PLAIN", body.getvalue(), schema)


PART = {
    "type": "record",
    "name": "Part",
    "fields": [{"name": "partNo", "type": "int"}, {"name": "text", "type": ["null", "string"]}],
}
_REST = ("at", "wait", "facts", "thing", "parts", "values", "weight", "counts")
REST = [{"name": name, "type": "null"} for name in _REST]


@pytest.mark.parametrize("slow", [[], [{"name": "enum", "type": {"type": "enum", "name": "E", "symbols": ["A"]}}]])
def test_avro_fields_may_have_the_names_of_json(tables: dict[str, Table], slow: list[Any]) -> None:
    """Both by the reader of our own changelogs and by the library, which an enum needs."""
    fields = [{"name": "orderNo", "type": "string"}, {"name": "part", "type": PART}, *REST[:-1], *slow]
    counts = {"name": "counts", "type": {"type": "map", "values": "int"}}
    value = {"orderNo": "7", "part": {"partNo": 3, "text": None}, "counts": {}} | ({"enum": "A"} if slow else {})
    assert read_avro(tables["rows"], [*fields, counts], value) == {"orderNo": "7", "part": {"partNo": 3}}


def test_of_two_names_in_avro_the_columns_own_is_read(tables: dict[str, Table]) -> None:
    fields = [{"name": name, "type": "string"} for name in ("order_no", "orderNo")]
    more = [*REST, {"name": "part", "type": "null"}]
    assert read_avro(tables["rows"], [*fields, *more], {"order_no": "own", "orderNo": "other"}) == {"orderNo": "own"}


NANOS = 1_767_225_600_123_456_789


@pytest.mark.parametrize("slow", [[], [{"name": "enum", "type": {"type": "enum", "name": "E", "symbols": ["A"]}}]])
@pytest.mark.parametrize(
    ("kind", "time", "wanted"),
    [
        ("timestamp-micros", 253_402_300_799_999_999, "9999-12-31T23:59:59.999999Z"),
        ("timestamp-micros", -62_135_596_800_000_000, "0001-01-01T00:00:00Z"),
        ("timestamp-micros", 253_402_300_800_000_000, None),
        ("timestamp-micros", -62_135_596_800_000_001, None),
        ("timestamp-micros", 2**63 - 1, None),
        ("timestamp-nanos", NANOS, "2026-01-01T00:00:00.123456Z"),
    ],
)
def test_times_of_avro_are_those_of_protobuf(
    tables: dict[str, Table], kind: str, time: int, wanted: str | None, slow: list[Any]
) -> None:
    fields = [{"name": "at", "type": {"type": "long", "logicalType": kind}}, *slow]
    value = {"at": time} | ({"enum": "A"} if slow else {})
    if wanted is not None:
        assert read_avro(tables["events"], fields, value) == {"at": wanted}
        return
    with pytest.raises(UndecodableRecord):
        read_avro(tables["events"], fields, value)


def _row(table: Table, **columns: Any) -> Any:
    return table.row_class(**columns)


YEAR_10000 = {"seconds": 253_402_300_800}


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"at": YEAR_10000}, "a time that is not of the years 1 to 9999"),
        ({"at": {"seconds": 1, "nanos": 10**9}}, "a time that is not of the years"),
        ({"at": {"seconds": 1, "nanos": -1}}, "a time that is not of the years"),
        ({"part": {"made_at": YEAR_10000}}, "a time that is not of the years"),
        ({"parts": {"a": {"made_at": YEAR_10000}}}, "a time that is not of the years"),
        ({"wait": {"seconds": 2**40}}, "a duration of more than 10,000 years"),
        ({"wait": {"seconds": 1, "nanos": -1}}, "a duration whose parts are not of one sign"),
        ({"facts": {"fields": {"a": {"number_value": float("nan")}}}}, "a number in a Struct or Value"),
        ({"values": [{"list_value": {"values": [{"number_value": float("inf")}]}}]}, "a number in a Struct or Value"),
        ({"thing": {"type_url": "x.y/odd.v1.Part", "value": b"\xff"}}, "an Any whose bytes are not of its type"),
        (
            {"thing": {"type_url": "/odd.v1.Row", "value": b"\x1a\x07\x08\x80\x80\x80\x80\x80\x78"}},
            "a time that is not",
        ),
    ],
)
def test_protobuf_that_json_cannot_say_is_no_row(tables: dict[str, Table], columns: Any, reason: str) -> None:
    """One such row would end each page and stream of REST that has it."""
    with pytest.raises(UndecodableRecord) as refused:
        read(tables["rows"], "PROTOBUF_PLAIN", _row(tables["rows"], **columns).SerializeToString())
    assert f"value has {reason}" in str(refused.value)


def test_protobuf_at_the_ends_is_a_row(tables: dict[str, Table]) -> None:
    facts = struct_pb2.Struct()
    facts.update({"a": [None, {"b": -0.0}]})
    row = _row(
        tables["rows"],
        at={"seconds": 253_402_300_799, "nanos": 999_999_999},
        wait={"seconds": -315_576_000_000, "nanos": -1},
        part={"made_at": {"seconds": -62_135_596_800}},
        thing={"type_url": "x.y/odd.v1.Part", "value": b"\x08\x05"},
        weight=float("nan"),
    )
    row.facts.ParseFromString(facts.SerializeToString())
    row.values.add()
    assert read(tables["rows"], "PROTOBUF_PLAIN", row.SerializeToString()) == {
        "at": "9999-12-31T23:59:59.999999999Z",
        "wait": "-315576000000.000000001s",
        "facts": {"a": [None, {"b": -0.0}]},
        "part": {"madeAt": "0001-01-01T00:00:00Z"},
        "thing": {"@type": "x.y/odd.v1.Part", "partNo": 5},
        "values": [None],
        "weight": "NaN",
    }


@pytest.mark.parametrize("table", ["events", "facts"])
@pytest.mark.parametrize(
    "longer",
    [b"\x12\x00", b"\x12\x02\x08\x00", b"\x12\x03\x08\x85\x00", b"\x12\x02\x08\x05\x12\x00", b"\x0a\x01x"],
)
def test_only_what_the_contract_has_is_copied(tables: dict[str, Table], table: str, longer: bytes) -> None:
    """A value may be longer than it has to be, and another may be shorter than we would write it."""
    topic = ForeignTopic(value_codec=changelog_pb2.VALUE_CODEC_PROTOBUF_PLAIN)
    reader, value = value_reader(tables[table], topic, {}), b"\x0a\x01x" + longer
    assert reader.read(value, ["x"]) == value
    for unknown in (b"\x38\x01", b"\xb8\x3e\x01", b"\xba\x3e\x01a"):
        for entry in (b"", b"\x1a\x02\x0a\x00", b"\x1a\x04\x0a\x02\x0a\x00") if table == "facts" else (b"",):
            read = reader.read(value + entry + unknown, ["x"])
            assert read is not None
            assert tables[table].row_class.FromString(read) == tables[table].row_class.FromString(value + entry)
            known: Any = tables[table].row_class.FromString(read)
            known.DiscardUnknownFields()
            assert known.ByteSize() == tables[table].row_class.FromString(read).ByteSize()


def test_an_any_of_an_unknown_type_is_left_as_it_is(tables: dict[str, Table]) -> None:
    table = tables["rows"]
    value = _row(table, id="x", thing={"type_url": "x.y/of.Others", "value": b"\xff"}).SerializeToString()
    topic = ForeignTopic(value_codec=changelog_pb2.VALUE_CODEC_PROTOBUF_PLAIN)
    assert value_reader(table, topic, {}).read(value, ["x"]) == value


@pytest.mark.parametrize(
    ("thing", "wanted"),
    [
        ({"@type": "x.y/odd.v1.Part", "partNo": 5}, {"@type": "x.y/odd.v1.Part", "partNo": 5}),
        (
            {"@type": "x.y/google.protobuf.Timestamp", "value": "2026-01-01T00:00:00Z"},
            {"@type": "x.y/google.protobuf.Timestamp", "value": "2026-01-01T00:00:00Z"},
        ),
        ({"type_url": "x.y/odd.v1.Part", "value": "CAU="}, {"@type": "x.y/odd.v1.Part", "partNo": 5}),
        ({}, {}),
        ({"@type": "x.y/odd.v1.Part", "partNo": "five"}, None),
        ({"@type": "x.y/of.Others", "a": 1}, None),
        ({"partNo": 5}, None),
        ({"type_url": "x.y/odd.v1.Part", "value": "/w=="}, None),
        ([], None),
    ],
)
def test_an_any_in_json_is_what_it_says(tables: dict[str, Table], thing: Any, wanted: Any) -> None:
    """Its fields were left out: an empty Any was served in its place."""
    value = json.dumps({"thing": thing}).encode()
    if wanted is not None:
        assert read(tables["rows"], "JSON", value) == {"thing": wanted}
        return
    with pytest.raises(UndecodableRecord):
        read(tables["rows"], "JSON", value)


MASK = {"type": "record", "name": "Mask", "fields": [{"name": "paths", "type": {"type": "array", "items": "string"}}]}


@pytest.mark.parametrize("slow", [[], [{"name": "enum", "type": {"type": "enum", "name": "E", "symbols": ["A"]}}]])
@pytest.mark.parametrize(("path", "wanted"), [("a_b.c", "aB.c"), ("a,b", None), ("aB", None), ("", None)])
def test_masks_are_those_that_json_can_say(
    tables: dict[str, Table], path: str, wanted: str | None, slow: list[Any]
) -> None:
    """One with capitals ended each page of REST that had it."""
    table = tables["updates"]
    fields = [{"name": "mask", "type": MASK}, {"name": "others", "type": {"type": "array", "items": "Mask"}}, *slow]
    mask = {"paths": ["x", path]}
    value = {"mask": mask, "others": [mask]} | ({"enum": "A"} if slow else {})
    if wanted is not None:
        found = {"mask": f"x,{wanted}", "others": [f"x,{wanted}"]}
        assert read_avro(table, fields, value) == found
        assert read(table, "JSON", json.dumps({"mask": mask, "others": [mask]}).encode()) == found
        assert read(table, "JSON", json.dumps(found).encode()) == found
        return
    with pytest.raises(UndecodableRecord):
        read_avro(table, fields, value)
    with pytest.raises(UndecodableRecord):
        read(table, "JSON", json.dumps({"mask": mask}).encode())


@pytest.mark.parametrize("key", [None, True, 1.5])
def test_a_map_has_no_text_for_a_key_that_is_none(tables: dict[str, Table], key: Any) -> None:
    with pytest.raises(UndecodableRecord, match='value has a "counts" that its column cannot hold'):
        read(tables["rows"], "JSON", json.dumps({"counts": [{"key": key, "value": 1}]}).encode())


def test_times_may_have_small_letters(tables: dict[str, Table]) -> None:
    assert read(tables["events"], "JSON", b'{"at": "2026-01-01t00:00:00.5z"}') == {"at": "2026-01-01T00:00:00.500Z"}


DECIMAL = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}}
DATE = {"type": "int32", "name": "io.debezium.time.Date"}
PART_OF_CONNECT = {
    "type": "struct",
    "name": "server.Part",
    "fields": [{"field": "made_at", **DATE}, {"field": "cost", **DECIMAL}],
}


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ({"field": "part", **PART_OF_CONNECT}, 1, "part"),
        ({"field": "parts", "type": "map", "keys": {"type": "string"}, "values": PART_OF_CONNECT}, {"a": 1}, "parts"),
    ],
)
def test_connects_schemas_count_in_structs_too(tables: dict[str, Table], field: Any, value: Any, wanted: str) -> None:
    """A date within one was read as milliseconds: 18 s after 1970."""
    inside = {"made_at": 18_262, "cost": "BOI="}
    payload = {wanted: {"a": inside} if isinstance(value, dict) else inside}
    text = json.dumps({"schema": {"type": "struct", "fields": [field]}, "payload": payload}).encode()
    part = {"madeAt": "2020-01-01T00:00:00Z", "cost": {"units": "12", "nanos": 500_000_000}}
    assert read(tables["rows"], "JSON", text) == {wanted: {"a": part} if isinstance(value, dict) else part}


def test_connects_schemas_count_in_records_of_avro_too(tables: dict[str, Table]) -> None:
    day = {"type": "int", "connect.name": "io.debezium.time.Date"}
    part = {"type": "record", "name": "Part", "fields": [{"name": "made_at", "type": ["null", day]}]}
    enum = {"type": "enum", "name": "E", "symbols": ["A"]}  # for which the library is needed
    fields = [
        *({"name": name, "type": "null"} for name in ("order_no", *_REST) if name != "parts"),
        {"name": "part", "type": ["null", part]},
        {"name": "parts", "type": {"type": "map", "values": "Part"}},
        {"name": "enum", "type": enum},
    ]
    value = {"part": {"made_at": 18_262}, "parts": {"a": {"made_at": 1}}, "enum": "A"}
    found = read_avro(tables["rows"], fields, value)
    assert found == {"part": {"madeAt": "2020-01-01T00:00:00Z"}, "parts": {"a": {"madeAt": "1970-01-02T00:00:00Z"}}}


@pytest.mark.parametrize("column", ["order_no", "part"])
def test_a_decimal_of_connect_is_no_text(tables: dict[str, Table], column: str) -> None:
    """It is base64 of the number's bytes, which was served as the text."""
    field: Any = {"field": "order_no", **DECIMAL}
    value: Any = {"order_no": "BOI="}
    if column == "part":
        inside = {"field": "text", **DECIMAL}
        field, value = {"field": "part", "type": "struct", "fields": [inside]}, {"part": {"text": "BOI="}}
    text = json.dumps({"schema": {"type": "struct", "fields": [field]}, "payload": value}).encode()
    with pytest.raises(UndecodableRecord, match=f'value has a "{column}'):
        read(tables["rows"], "JSON", text)


def test_avro_keys_may_have_the_names_of_json(tmp_path: Path) -> None:
    """The bytes of such a key could not be made again, so no record was placed by it."""
    row = ROWS.replace('{name: "rows", key: "id"}', '{name: "rows", key: "order_no"}')
    table = bind_sources(tmp_path, odd=row).tables["rows"]
    schema = {"type": "record", "name": "Key", "fields": [{"name": "orderNo", "type": "string", "default": ""}]}
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(dict(schema)), {"orderNo": "o-7"})
    manifest = table.manifest(
        generation=1,
        changelog_topic="theirs",
        changelog_topic_id="id",
        partition_count=7,
        value_schemas={},
        sources=[],
        foreign=ForeignTopic(
            key_codec=changelog_pb2.KEY_CODEC_AVRO_PLAIN,
            value_codec=changelog_pb2.VALUE_CODEC_JSON,
            record_partitioner=changelog_pb2.RECORD_PARTITIONER_MURMUR2,
            key_schemas={0: json.dumps(schema)},
        ),
    )
    placed = murmur2_partition(body.getvalue(), 7)
    key, value = ForeignRows(table, manifest).read(body.getvalue(), b"{}", placed)
    assert value is not None
    found: Any = table.row_class.FromString(value)
    assert found.order_no == "o-7"
    assert partition_function(table, manifest)(key, 7) == placed
