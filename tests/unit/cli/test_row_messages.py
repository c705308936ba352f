"""`tablegate contract new --from`: row messages of Avro schemas, samples of JSON, and other messages."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from google.protobuf.json_format import MessageToDict, MessageToJson
from hypothesis import given
from hypothesis import strategies as st

from tablegate.gateway.cli.row_messages import RowError, avro_row, json_row
from tablegate.gateway.contract.binder.binder import bind
from tablegate.gateway.contract.binder.files import build_pool
from tablegate.gateway.contract.descriptors import load_descriptors
from tablegate.gateway.contract.foreign.columns import RowMaker
from tablegate.gateway.contract.foreign.topics import ForeignRows
from tablegate.gateway.contract.types import Partition
from tablegate.v1 import changelog_pb2
from tablegate.v1.changelog_pb2 import ForeignTopic, Manifest
from tests.kit.command_line import COMMAND
from tests.kit.programs.listed_registry import ListedRegistry
from tests.kit.table.contracts import edited
from tests.kit.table.foreign import avro_writer

pytestmark = pytest.mark.tools

OTHER = """syntax = "proto3";
package other.v1;
import "google/protobuf/timestamp.proto";
enum State { STATE_UNSPECIFIED = 0; STATE_OPEN = 1; }
message Order {
  int64 id = 7;
  optional string note = 9;
  State state = 3;
  google.protobuf.Timestamp placed_at = 4;
  %s
}
message Line { string id = 1; }
"""
TIME = "2026-11-23T10:00:00"


def new(path: Path, *words: object) -> Result:
    return CliRunner().invoke(COMMAND, ["contract", "new", str(path), *map(str, words)], env={"COLUMNS": "200"})


def columns_of(path: Path) -> dict[str, str]:
    """Return the types of the one table's columns, as the text has them."""
    bind(load_descriptors(path))
    message = path.read_text().split("\nmessage ")[1].partition("\n}")[0]
    lines = [line.strip().partition(" = ")[0] for line in message.splitlines() if line.endswith(";") and " = " in line]
    return {line.rpartition(" ")[2]: line.rpartition(" ")[0] for line in lines}


def json_columns(*objects: object) -> dict[str, tuple[str, bool]]:
    row = json_row("\n".join(map(json.dumps, objects)), "Order", (), what="the sample")
    return {one.name: (one.type, one.optional) for one in row.columns}


def avro_columns(*types: object) -> list[tuple[str, bool]]:
    fields = [{"name": f"f{number}", "type": one} for number, one in enumerate(types)]
    row = avro_row(json.dumps({"type": "record", "name": "Order", "fields": fields}), "", (), what="the schema")
    return [(one.type, one.optional) for one in row.columns]


def test_types_of_a_sample() -> None:
    first = {"orderId": 1, "amount": 1, "paid": True, "note": None, "at": TIME + "Z", "day": "2026-11-23"}
    second = {"orderId": 2, "amount": 2.5, "paid": False, "note": "x", "at": TIME + ".5+01:00", "day": "2026-11-24"}
    assert json_columns(first, second, {"orderId": 3, "amount": 0, "paid": True, "at": TIME + "z", "day": ""}) == {
        "order_id": ("int64", False),
        "amount": ("double", False),
        "paid": ("bool", False),
        "note": ("string", True),
        "at": ("google.protobuf.Timestamp", False),
        "day": ("string", False),
    }
    assert json_columns({"at": TIME + "Z"}, {"at": "soon"}) == {"at": ("string", False)}
    assert json_columns({"at": "2026-13-23T10:00:00Z"}) == {"at": ("string", False)}


def test_types_of_a_schema() -> None:
    times = [{"type": "long", "logicalType": f"timestamp-{unit}"} for unit in ("millis", "micros")]
    amount = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
    kind = {"type": "enum", "name": "Kind", "symbols": ["A"]}
    uuid = {"type": "string", "logicalType": "uuid"}
    assert avro_columns("int", "long", "float", "double", "boolean", "string", "bytes") == [
        (type_, False) for type_ in ("int32", "int64", "float", "double", "bool", "string", "bytes")
    ]
    assert avro_columns(*times, amount) == [("google.protobuf.Timestamp", False)] * 2 + [("google.type.Money", False)]
    assert avro_columns(["null", kind], "Kind", uuid) == [("string", True), ("string", False), ("string", False)]


def test_a_day_of_avro_is_a_column_that_gateways_read(tmp_path: Path) -> None:
    day = {"type": "int", "logicalType": "date"}
    fields = [{"name": "id", "type": "long"}, {"name": "day", "type": day}, {"name": "paid", "type": ["null", day]}]
    schema = json.dumps({"type": "record", "name": "Order", "fields": fields})
    file, path = tmp_path / "order.avsc", tmp_path / "orders.proto"
    file.write_text(schema)
    done = new(path, "--from", file, "--key", "id")
    assert done.exit_code == 0, done.stderr
    assert columns_of(path) == {"id": "int64", "day": "string", "paid": "optional string"}
    [table] = bind(load_descriptors(path)).tables.values()
    described = ForeignTopic(
        key_codec=changelog_pb2.KEY_CODEC_INT64,
        value_codec=changelog_pb2.VALUE_CODEC_AVRO_PLAIN,
        record_partitioner=changelog_pb2.RECORD_PARTITIONER_UNKNOWN,
    )
    manifest = Manifest(partition_count=1, value_schemas={0: schema}, foreign=described)
    value = avro_writer(json.loads(schema), b"")({"id": 7, "day": date(2026, 11, 26), "paid": None})
    _, row = ForeignRows(table, manifest).read((7).to_bytes(8, "big"), value, Partition(0))
    found = table.row_class.FromString(row)
    assert MessageToDict(found) == {"id": "7", "day": "2026-11-26"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ({"a": None}, 'field "a" is null in the whole sample, which says no type; add an object where it is not, or'),
        ({"a": {"b": {}}}, 'field "a.b" has no fields in the whole sample; leave it out: --skip "a"'),
        ({"a": {"b.c": None}}, 'field "a.b.c" is null in the whole sample'),
        ({"a": []}, 'field "a" is empty in the whole sample, which says no type; add an object where it is not, or'),
        ({"a": [1, None]}, 'field "a" has a null in a list'),
        ({"a": [[1]]}, 'field "a" has lists in a list'),
        ({"a": [{"b": 1}, {"b": "x"}]}, 'field "a.b" has values of several types (1 times number, 1 times text)'),
        ([{"a": 1}, {"a": {"b": 1}}], "several types (1 times number, 1 times object)"),
        ({"a": {"bC": 1, "b_c": 2}}, 'field "a.b_c" would have the name of field "a.bC"; leave it out: --skip "a"'),
        ({"a": 2**63}, 'field "a" has a number that is no int64; write it as text, or leave it out: --skip "a"'),
        ([{"a": 1}, {"a": "x"}, {"a": 2}], "several types (2 times number, 1 times text); take out the objects that"),
        ([{"a": 1}, {"a": True}], "several types (1 times number, 1 times bool)"),
        ({"2fa": 1}, 'field "2fa" has a name that no field of a message can have; rename it, or leave it out'),
        ({"": 1}, "has a name that no field"),
        ({"größe": 1}, 'rename it, or leave it out: --skip "größe"'),
        ({"orderId": 1, "order_id": 2}, 'field "order_id" would have the name of field "orderId"'),
        ({}, "the sample has no field for a row"),
        ([], "the sample has something else than objects"),
        ([1], "the sample has something else than objects"),
        ("x", "the sample has something else than objects"),
    ],
)
def test_what_a_sample_cannot_say(text: object, sentence: str) -> None:
    with pytest.raises(RowError) as raised:
        json_row(json.dumps(text), "Order", (), what="the sample")
    assert sentence in str(raised.value)


@pytest.mark.parametrize("text", ["", "{", "{}{}", "{]\n{}", "[" * 100_000])
def test_what_is_no_json(text: str) -> None:
    with pytest.raises(RowError, match="the sample is not JSON; give an object, or one in each line"):
        json_row(text, "Order", (), what="the sample")


def test_the_line_that_is_no_json_is_named() -> None:
    with pytest.raises(RowError, match="line 3 of the sample is not JSON; give an object, or one in each line"):
        json_row('{"id": 1}\n\nid 2\n', "Order", (), what="the sample")


@pytest.mark.parametrize(
    ("file", "row"), [("orders", "Order"), ("shop-parcels", "ShopParcel"), ("cities", "City"), ("boxes", "Box")]
)
def test_a_row_of_a_sample_is_called_as_its_file_is(file: str, row: str, tmp_path: Path) -> None:
    sample, path = tmp_path / "sample.json", tmp_path / f"{file}.proto"
    sample.write_text('{"id": 1}')
    done = new(path, "--from", sample, "--key", "id")
    assert done.exit_code == 0, done.stderr
    assert f"message {row} {{" in path.read_text()
    refused = new(tmp_path / "7.proto", "--from", sample, "--key", "id")
    assert "a sample does not say what a row is called; say it: --row Order" in refused.stderr


@pytest.mark.parametrize(
    ("type_", "sentence"),
    [
        ({"type": "array", "items": ["int", "string"]}, 'field "f0" is a union of 2 types; leave it out: --skip "f0"'),
        ({"type": "map", "values": {"type": "array", "items": "int"}}, "is of type array, which no column has"),
        ({"type": "record", "name": "R", "fields": []}, "is a record without fields"),
        ({"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]}, '"f0.r" contains itself'),
        ({"type": "record", "name": "R", "fields": [{"name": "r"}]}, 'field "f0.r" is of type None'),
        ({"type": "int", "logicalType": "time-millis"}, 'field "f0" is of type time-millis, which no column has'),
        (["null", {"type": "long", "logicalType": "time-micros"}], 'field "f0" is of type time-micros'),
        (["int", "string"], "is a union of 2 types"),
        (["null"], "is always null"),
        ("null", "is of type null"),
        ("Unknown", "is of type Unknown"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 12}, "30 digits, 12 behind the point"),
        (7, "is of type None"),
    ],
)
def test_what_a_schema_has_and_a_row_cannot(type_: object, sentence: str) -> None:
    with pytest.raises(RowError) as raised:
        avro_columns(type_)
    assert sentence in str(raised.value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.sampled_from(("type", "name", "fields", "items", "x")), inner)
        ),
    )
)
def test_anything_is_a_row_or_refused(value: Any) -> None:
    for make in (avro_row, json_row):
        with suppress(RowError):  # and nothing else
            assert make(json.dumps(value), "Order", (), what="it").columns


NESTED = {
    "orderId": 1,
    "address": {"street": "Main", "floor": 2},
    "lines": [{"sku": "a", "parts": [{"id": 1}]}, {"sku": "b", "price": 2.5, "parts": []}],
    "tags": ["x"],
    "boxes": [{"id": "1"}],
    "cities": [{"id": 1.5}],
}


def test_objects_and_lists_of_a_sample() -> None:
    row = json_row(json.dumps(NESTED), "Order", (), what="the sample")
    assert {one.name: one.type for one in row.columns} == {
        "order_id": "int64",
        "address": "Address",
        "lines": "repeated Line",
        "tags": "repeated string",
        "boxes": "repeated Box",
        "cities": "repeated City",
    }
    assert {one.name: {column.name: (column.type, column.optional) for column in one.columns} for one in row.inner} == {
        "Address": {"street": ("string", False), "floor": ("int64", False)},
        "Part": {"id": ("int64", False)},
        "Line": {"sku": ("string", False), "parts": ("repeated Part", False), "price": ("double", True)},
        "Box": {"id": ("string", False)},
        "City": {"id": ("double", False)},
    }


def test_a_nested_sample_is_a_contract(tmp_path: Path) -> None:
    sample, path = tmp_path / "sample.json", tmp_path / "orders.proto"
    sample.write_text(json.dumps(NESTED))
    done = new(path, "--from", sample, "--row", "Order", "--key", "orderId")
    assert done.exit_code == 0, done.stderr
    bind(load_descriptors(path))
    assert "repeated Line lines = 3;" in path.read_text()


@pytest.mark.parametrize("package", ["com.google.v1", "a.tablegate.v1", "com.google.protobuf.v1", "google.v1"])
def test_a_package_may_have_the_names_of_what_it_imports(tmp_path: Path, package: str) -> None:
    """Within com.google, google.protobuf.Timestamp is com.google.protobuf.Timestamp."""
    sample = tmp_path / "sample.json"
    sample.write_text(json.dumps({"id": 1, "at": f"{TIME}Z", "times": [f"{TIME}Z"], "tablegate": {"a": 1}}))
    done = new(tmp_path / "made.proto", "--from", sample, "--row", "Order", "--key", "id", "--package", package)
    assert done.exit_code == 0, done.output
    catalogue = bind(load_descriptors(tmp_path / "made.proto"))
    at = catalogue.tables["orders"].row.fields_by_name["at"].message_type
    assert at is not None
    assert at.full_name == "google.protobuf.Timestamp"


def test_records_arrays_and_maps_of_a_schema(tmp_path: Path) -> None:
    line = {
        "type": "record",
        "name": "Line",
        "namespace": "a",
        "doc": "A line",
        "fields": [{"name": "sku", "type": "string"}],
    }
    other = {
        **line,
        "namespace": "b",
        "fields": [{"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}],
    }
    types = [
        {"type": "array", "items": line},
        ["null", {"type": "map", "values": "a.Line"}],
        ["null", other],
        {"type": "array", "items": ["null", "int"]},
        {"type": "map", "values": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    ]
    fields = [
        {"name": "id", "type": "long"},
        *({"name": f"f{number}", "type": one} for number, one in enumerate(types)),
    ]
    schema, path = tmp_path / "order.avsc", tmp_path / "orders.proto"
    schema.write_text(json.dumps({"type": "record", "name": "Order", "fields": fields}))
    done = new(path, "--from", schema, "--key", "id")
    assert done.exit_code == 0, done.stderr
    assert columns_of(path) == {
        "id": "int64",
        "f0": "repeated Line",
        "f1": "map<string, Line>",
        "f2": "Line2",
        "f3": "repeated int32",
        "f4": "map<string, google.type.Money>",
    }
    assert "// A line.\nmessage Line {" in path.read_text()


def test_records_are_found_by_their_namespaces(tmp_path: Path) -> None:
    color = {"type": "enum", "name": "Color", "symbols": ["RED"]}
    part = {"type": "record", "name": "Part", "fields": [{"name": "no", "type": "int"}]}
    line = {"type": "record", "name": "Line", "namespace": "a", "fields": [{"name": "part", "type": part}]}
    other = {"type": "record", "name": "Part", "fields": [{"name": "text", "type": "string"}]}
    types = ["long", color, "shop.Color", line, "a.Part", other, "Part", {"type": "shop.Part"}]
    fields = [{"name": f"f{number}", "type": one} for number, one in enumerate(types)]
    schema, path = tmp_path / "order.avsc", tmp_path / "orders.proto"
    schema.write_text(json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": fields}))
    done = new(path, "--from", schema, "--key", "f0")
    assert done.exit_code == 0, done.stderr
    kinds = ["int64", "string", "string", "Line", "Part", "Part2", "Part2", "Part2"]
    assert list(columns_of(path).values()) == kinds


def test_a_sample_and_its_row_mean_the_same_names(tmp_path: Path) -> None:
    first = {"id": "a", "orderID": 1, "OrderTotal": 2, "URL": "u", "Customer Name": "n", "order-no": 3, "placedBy": "p"}
    sample, path = tmp_path / "sample.json", tmp_path / "orders.proto"
    sample.write_text(json.dumps({**first, "lines": [{"skuNo": "x", "SKU": "y"}]}))
    done = new(path, "--from", sample, "--row", "Order", "--key", "id")
    assert done.exit_code == 0, done.stderr
    table = bind(load_descriptors(path)).tables["orders"]
    value = sample.read_bytes()
    row = table.row_class.FromString(RowMaker(table).make(json.loads(value), ("a",), {}))
    assert json.loads(MessageToJson(row)) == {
        key: str(one) if isinstance(one, int) else one for key, one in json.loads(value).items()
    }
    assert 'int64 order_id = 2 [json_name = "orderID"];' in path.read_text()
    assert "string placed_by = 7;" in path.read_text()


EVERY = """
  repeated int64 ids = 5;
  oneof pay { int64 cash = 6; Line card = 8; }
  map<int32, Line> lines = 10;
  google.protobuf.StringValue nick = 11;
  repeated State states = 12;
  map<string, google.protobuf.Duration> waits = 13;
"""


def test_every_field_of_another_message(tmp_path: Path) -> None:
    other, path = tmp_path / "other.proto", tmp_path / "orders.proto"
    imports = 'import "google/protobuf/wrappers.proto";\nimport "google/protobuf/duration.proto";\nenum State'
    other.write_text((OTHER % EVERY).replace("enum State", imports))
    done = new(path, "--from", other, "--row", "Order", "--key", "id")
    assert done.exit_code == 0, done.stderr
    row = next(iter(bind(load_descriptors(path)).tables.values())).row
    assert [field.name for field in row.oneofs_by_name["pay"].fields] == ["cash", "card"]
    assert columns_of(path) == {
        "id": "int64",
        "note": "optional string",
        "state": "State",
        "placed_at": "google.protobuf.Timestamp",
        "ids": "repeated int64",
        "cash": "int64",
        "card": "Line",
        "lines": "map<int32, Line>",
        "nick": "google.protobuf.StringValue",
        "states": "repeated State",
        "waits": "map<string, google.protobuf.Duration>",
    }


def test_a_message_of_another_file(tmp_path: Path) -> None:
    other, path = tmp_path / "other.proto", tmp_path / "orders.proto"
    other.write_text(OTHER % "")
    done = new(path, "--from", other, "--row", "Order", "--key", "id")
    assert done.exit_code == 0, done.stderr
    assert columns_of(path) == {
        "id": "int64",
        "note": "optional string",
        "state": "State",
        "placed_at": "google.protobuf.Timestamp",
    }
    binary = tmp_path / "other.binpb"
    binary.write_bytes(load_descriptors(other).SerializeToString())
    assert new(path, "--from", binary, "--row", "other.v1.Order", "--key", "id", "--force").exit_code == 0


def test_the_only_message_need_not_be_named(tmp_path: Path) -> None:
    """Entries of maps are messages, too, which nobody has written."""
    other, path = tmp_path / "other.proto", tmp_path / "orders.proto"
    other.write_text('syntax = "proto3"; message Order { int64 id = 1; map<string, int64> counts = 2; }')
    done = new(path, "--from", other, "--key", "id")
    assert done.exit_code == 0, done.stderr
    assert columns_of(path) == {"id": "int64", "counts": "map<string, int64>"}


@pytest.mark.parametrize("doc", ["\0", "\x1b[31m", "\ud800", "\u202e", "\n\r\u2028"])
def test_a_comment_has_what_a_text_may_have(doc: str, tmp_path: Path) -> None:
    schema, path = tmp_path / "order.avsc", tmp_path / "orders.proto"
    fields = [{"name": "id", "type": "long", "doc": f"Its{doc}number"}]
    schema.write_text(json.dumps({"type": "record", "name": "Order", "doc": f"An{doc}order", "fields": fields}))
    done = new(path, "--from", schema, "--key", "id")
    assert done.exit_code == 0, done.stderr
    text = path.read_text()
    assert re.search(r"// Its (\[31m)?number\.\n", text)
    assert re.search(r"// An (\[31m)?order\.\n", text)


def test_a_message_keeps_its_numbers(tmp_path: Path) -> None:
    other, path = tmp_path / "other.proto", tmp_path / "orders.proto"
    other.write_text((OTHER % (EVERY + 'string total = 20 [json_name = "sum"];')).replace(
        "enum State", 'import "google/protobuf/wrappers.proto";\nimport "google/protobuf/duration.proto";\nenum State'
    ))  # fmt: skip
    done = new(path, "--from", other, "--row", "Order", "--key", "id", "--skip", "note")
    assert done.exit_code == 0, done.stderr
    theirs = {
        field.name: field for field in build_pool(load_descriptors(other))[1][-1].message_types_by_name["Order"].fields
    }
    ours = next(iter(bind(load_descriptors(path)).tables.values())).row.fields
    assert {field.name for field in ours} == theirs.keys() - {"note"}
    for field in ours:
        assert (field.number, field.json_name) == (theirs[field.name].number, theirs[field.name].json_name)


def test_enums_in_messages_may_have_values_of_one_name(tmp_path: Path) -> None:
    other, path = tmp_path / "other.proto", tmp_path / "orders.proto"
    other.write_text("""syntax = "proto3";
message Order {
  enum State { UNKNOWN = 0; OPEN = 1; }
  string id = 1;
  State state = 2;
  Line line = 3;
  map<string, Kinds.Kind> kinds = 4;
}
message Line { enum State { UNKNOWN = 0; } State state = 1; Order.State whole = 2; }
message Kinds { enum Kind { UNKNOWN = 0; } Order order = 1; }
""")
    done = new(path, "--from", other, "--row", "Order", "--key", "id")
    assert done.exit_code == 0, done.stderr
    assert columns_of(path) == {
        "id": "string",
        "state": "Order.State",
        "line": "Line",
        "kinds": "map<string, Kinds.Kind>",
    } | {"UNKNOWN": "", "OPEN": ""}


@pytest.mark.parametrize(
    ("field", "words", "sentence"),
    [
        (
            "Order order = 5;",
            ["--row", "Order"],
            'field "order" cannot be kept: message other.v1.Order contains itself',
        ),
        ("", ["--row", "Shop"], "has no message Shop; say which with --row, other.v1.Order, other.v1.Line"),
        ("", [], "has 2 messages; say which with --row, one of these: other.v1.Order, other.v1.Line"),
    ],
)
def test_what_another_message_cannot_give(field: str, words: list[str], sentence: str, tmp_path: Path) -> None:
    (tmp_path / "other.proto").write_text(OTHER % field)
    done = new(tmp_path / "orders.proto", "--from", tmp_path / "other.proto", "--key", "id", *words)
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert sentence in done.stderr
    assert not (tmp_path / "orders.proto").exists()


def test_key_and_skip_take_names_of_the_source(tmp_path: Path) -> None:
    sample, path = tmp_path / "sample.json", tmp_path / "orders.proto"
    sample.write_text('[{"orderId": 1, "customer": null, "theLines": []}, {"orderId": 2, "customer": "ann"}]')
    words = ["--from", sample, "--row", "Order", "--key", "customer", "--key", "orderId", "--partition-by", "customer"]
    done = new(path, *words, "--skip", "theLines")
    assert done.exit_code == 0, done.stderr
    assert columns_of(path) == {"order_id": "int64", "customer": "string"}


def test_what_is_there_stays_without_force(tmp_path: Path) -> None:
    sample, path = tmp_path / "sample.json", tmp_path / "orders.proto"
    sample.write_text('\ufeff{"id": 1}')
    path.write_text("mine")
    words = ["--from", sample, "--row", "Order", "--key", "id"]
    done = new(path, *words)
    assert (done.exit_code, path.read_text()) == (1, "mine")
    assert "is there already; give another file, or --force to replace it" in done.stderr
    assert new(path, *words, "--stdout").exit_code == 0
    assert path.read_text() == "mine"
    assert new(path, *words[:-1], "number", "--force").exit_code == 1
    assert path.read_text() == "mine"
    assert new(path, *words, "--force").exit_code == 0
    assert columns_of(path) == {"id": "int64"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--from", "none.json", "--row", "Order", "--key", "id"], '"none.json" cannot be read: No such file'),
        (["--from", "none.proto", "--key", "id"], '"none.proto" is not a file'),
        (["--from", "registry:orders-value", "--key", "id"], "needs the registry; give --schema-registry"),
        (["--from", "x.json", "--schema-registry", "http://h"], "needs a subject; give --from registry:orders-value"),
        (["--skip", "a"], "need --from; say what the row is made of"),
        (["--from", "sample.json", "--key", "id", "--row", "an order"], 'no message can be called "an order"; give'),
        (["--from", "sample.json", "--key", "id", "--package", "a b"], 'no package can be called "a b"; give a name'),
        *(
            (
                ["--from", "sample.json", "--key", "id", "--table", name],
                "is no name for a table; take a lower-case letter",
            )
            for name in ("Örders", "a b", "1", "orders;")
        ),
        (["--from", "deep.json", "--key", "id", "--row", "Order"], "more objects in one another than a row may have"),
        (["--from", "deep.avsc", "--key", "id"], "more objects in one another than a row may have"),
    ],
)
def test_what_is_missing(words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sample.json").write_text('{"id": 1}')
    Path("deep.json").write_text('{"id": 1, "a": ' + '{"b": ' * 900 + "1" + "}" * 901)
    inner = '{"type": "record", "name": "R%d", "fields": [{"name": "id", "type": '
    Path("deep.avsc").write_text("".join(inner % number for number in range(200)) + '"int"' + "}]}" * 200)
    done = new(tmp_path / "orders.proto", *words)
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert sentence in done.stderr
    away = new(tmp_path / "none" / "orders.proto", "--from", tmp_path / "sample.json", "--row", "Order", "--key", "id")
    assert "cannot be written: No such file" in away.stderr


ORDERS_OF_JSON = {
    "type": "object",
    "title": "An order",
    "required": ["id", "note"],
    "properties": {
        "id": {"type": "integer", "description": "Its number"},
        "note": {"oneOf": [{"type": "null"}, {"type": "string"}]},
        "amount": {"type": ["number", "null"]},
        "placedAt": {"type": "string", "format": "date-time"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "address": {"$ref": "#/definitions/Address"},
        "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
    },
    "definitions": {"Address": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
ORDER_OF_AVRO = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
REGISTERED: dict[str, dict[str, Any]] = {
    "avro": {"schema": json.dumps(ORDER_OF_AVRO)},
    "json": {"schemaType": "JSON", "schema": json.dumps(ORDERS_OF_JSON)},
    "proto": {
        "schemaType": "PROTOBUF",
        "schema": edited(OTHER % "parts.v1.Part part = 11;", ("package", 'import "parts/part.proto";\npackage')),
        "references": [{"name": "parts/part.proto", "subject": "parts", "version": 1}],
    },
    "parts": {
        "schemaType": "PROTOBUF",
        "schema": 'syntax = "proto3"; package parts.v1; message Part { int32 no = 1; }',
    },
    "twice": {"schemaType": "PROTOBUF", "schema": 'syntax = "proto3"; message A { int32 id = 1; } message A {}'},
    "other": {"schemaType": "THRIFT", "schema": "struct A {}"},
    "text": {"schemaType": "JSON", "schema": '{"type": "string"}'},
}


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    with ListedRegistry({name: [one] for name, one in REGISTERED.items()}) as running:
        yield running.url


@pytest.mark.parametrize(
    ("subject", "words", "columns"),
    [
        ("avro", [], {"id": "int64"}),
        (
            "json",
            [],
            {
                "id": "int64",
                "note": "optional string",
                "amount": "optional double",
                "placed_at": "google.protobuf.Timestamp",
                "tags": "repeated string",
                "address": "Address",
                "counts": "map<string, int64>",
            },
        ),
        (
            "proto",
            ["--row", "Order"],
            {
                "id": "int64",
                "note": "optional string",
                "state": "State",
                "placed_at": "google.protobuf.Timestamp",
                "part": "Part",
            },
        ),
    ],
)
def test_a_subject_of_a_registry(
    registry: str, tmp_path: Path, subject: str, words: list[str], columns: dict[str, str]
) -> None:
    path = tmp_path / "orders.proto"
    done = new(path, "--from", f"registry:{subject}", "--key", "id", "--schema-registry", registry, *words)
    assert done.exit_code == 0, done.stderr
    assert columns_of(path) == columns


@pytest.mark.parametrize(
    ("subject", "why"),
    [
        ("nobody", 'has no subject "nobody"; let a producer register its schema first, or name another subject'),
        ("proto", '"registry:proto" has 3 messages; say which with --row, one of these: parts.v1.Part, other.v1.Order'),
        ("twice", 'schema 45 of subject "twice": schema does not compile: schema-45.proto:1:56: "A" is already defin'),
        ("other", '"registry:other" is of THRIFT, and only Avro, Protobuf and JSON Schema make a row'),
        ("text", '"registry:text" is not the schema of an object with properties; name another subject'),
    ],
)
def test_a_subject_that_makes_no_row(registry: str, tmp_path: Path, subject: str, why: str) -> None:
    done = new(tmp_path / "o.proto", "--from", f"registry:{subject}", "--key", "id", "--schema-registry", registry)
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert why in done.stderr
