"""`table add` and `table show` name the columns that no record fills, beside the fields that no column reads."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto

from tablegate.gateway.cli.foreign_tables import Definition, bound_table, manifest_of
from tablegate.gateway.cli.topic_samples import Sample, sample_of
from tablegate.gateway.contract.foreign.framing import PLAIN_ID
from tablegate.gateway.contract.types import Offset, Partition
from tablegate.gateway.kafka.log import Record, TopicFacts
from tests.kit.table.foreign import TOPICS, Topic, avro_writer

ROW = """
syntax = "proto3";
package shop.v1;
import "google/protobuf/struct.proto";
import "tablegate/v1/options.proto";
message Order {
  option (tablegate.v1.table) = {name: "orders", key: "order_id"};
  string order_id = 1;
%s
}
message Address { string city = 1; string post_code = 2; }
"""
FACTS = TopicFacts("id", (Offset(0),), (Offset(9),), 0, (0,))
RENAME = 'call each column as its field is called, or say that in the contract: [json_name = "FIELD"]'


def sampled(tmp_path: Path, columns: str, values: Iterable[bytes], codec: str = "json", schema: Any = None) -> Sample:
    (tmp_path / "orders.proto").write_text(ROW % columns)
    given = Definition(table="orders", topic="t", key="utf8", value=codec, contract=str(tmp_path / "orders.proto"))
    definition = given.checked()
    table = bound_table(definition)
    schemas = {} if schema is None else {PLAIN_ID: json.dumps(schema)}
    manifest = manifest_of(definition, table, FACTS, key_schemas={}, value_schemas=schemas, generation=1)
    records = [(Partition(0), Record(Offset(at), b"o-1", value, None, 0)) for at, value in enumerate(values)]
    sample = sample_of(records, manifest, table)
    assert not sample.reasons
    return sample


def printed_after(sample: Sample) -> Sequence[str]:
    """Return what is printed after how many records are rows."""
    _, *lines = sample.lines("t")
    return lines


def of_json(*values: Any) -> list[bytes]:
    return [json.dumps(value).encode() for value in values]


def test_columns_named_unlike_the_fields_of_json_are_named(tmp_path: Path) -> None:
    values = of_json({"customerName": "ann", "total": 2}, {"customerName": "ben", "note": "x"})
    sample = sampled(tmp_path, "string customer = 2; int64 total = 3;", values)
    assert printed_after(sample) == [
        (
            'none of these has a field for column "customer", which stays empty; no column reads the fields '
            '"customerName" and "note"'
        ),
        RENAME,
    ]
    assert sample.described()["columns_without_field"] == ["customer"]
    assert sample.described()["fields_without_column"] == ["customerName", "note"]


@pytest.mark.parametrize(
    ("columns", "value"),
    [
        pytest.param('string customer = 2 [json_name = "who"];', {"who": "ann", "note": "x"}, id="by json_name"),
        pytest.param("string customer_name = 2;", {"customerName": "ann", "note": "x"}, id="in camel case"),
        pytest.param("string customer = 2;", {"customer": None, "note": "x"}, id="null"),
        pytest.param("string customer = 2;", {"customer": "", "orderId": "o-1"}, id="with the key"),
        pytest.param("", {"customer": "ann"}, id="the key alone"),
    ],
)
def test_fields_left_out_are_not_named_where_columns_have_theirs(
    tmp_path: Path, columns: str, value: dict[str, Any]
) -> None:
    assert printed_after(sampled(tmp_path, columns, of_json(value))) == []


def test_a_field_that_one_record_has_is_enough_for_its_column(tmp_path: Path) -> None:
    values = of_json({"note": 1}, {"customer": "ann"}, {"note": 2})
    assert printed_after(sampled(tmp_path, "string customer = 2;", values)) == []


def test_columns_without_any_field_left_over_are_named_alone(tmp_path: Path) -> None:
    sample = sampled(tmp_path, "string customer = 2; int64 total = 3;", of_json({}))
    assert printed_after(sample) == [
        (
            'none of these has a field for the columns "customer" and "total", which stay empty; take them out of the '
            "contract, unless such records are still to come"
        )
    ]


@pytest.mark.parametrize(
    ("column", "inside"),
    [
        ("Address address = 2;", {"address": {"city": "Bern", "zip": "3000"}}),
        ("repeated Address address = 2;", {"address": [{"city": "Bern"}, {"city": "Ulm", "zip": "89"}]}),
        ("map<string, Address> address = 2;", {"address": {"home": {"city": "Bern", "zip": "3000"}}}),
        ("map<string, Address> address = 2;", {"address": [{"key": "home", "value": {"city": "Ulm", "zip": "89"}}]}),
        ("map<string, Address> address = 2;", {"address": [["home", {"city": "Ulm", "zip": "89"}]]}),
    ],
    ids=["an object", "a list", "a map", "entries", "pairs"],
)
def test_fields_in_messages_are_named_by_their_path(tmp_path: Path, column: str, inside: Any) -> None:
    sample = sampled(tmp_path, column, of_json(inside))
    assert sample.described()["columns_without_field"] == ["address.post_code"]
    assert sample.described()["fields_without_column"] == ["address.zip"]


@pytest.mark.parametrize(
    ("column", "nothing"),
    [("Address address = 2;", None), ("repeated Address address = 2;", []), ("map<string, Address> address = 2;", {})],
    ids=["null", "an empty list", "an empty map"],
)
def test_columns_of_a_message_that_no_record_has_are_not_named(tmp_path: Path, column: str, nothing: Any) -> None:
    assert printed_after(sampled(tmp_path, column, of_json({"address": nothing, "note": "x"}))) == []


def test_a_column_is_one_whichever_of_its_names_a_record_has(tmp_path: Path) -> None:
    records = [{"shipTo": {"city": "Bern", "zip": "3000"}}, {"ship_to": {"post_code": "89073", "zip": "89"}}]
    assert printed_after(sampled(tmp_path, "Address ship_to = 2;", of_json(*records))) == []
    sample = sampled(tmp_path, "Address ship_to = 2;", of_json(records[0]))
    assert sample.described()["columns_without_field"] == ["ship_to.post_code"]
    assert sample.described()["fields_without_column"] == ["shipTo.zip"]


def test_what_is_in_a_struct_has_no_columns(tmp_path: Path) -> None:
    assert printed_after(sampled(tmp_path, "google.protobuf.Struct more = 2;", of_json({"more": {"any": 1}}))) == []


def test_avro_fields_in_records_are_named(tmp_path: Path) -> None:
    inner = {
        "type": "record",
        "name": "A",
        "fields": [{"name": "city", "type": "string"}, {"name": "zip", "type": "string"}],
    }
    schema = {"type": "record", "name": "Order", "fields": [{"name": "address", "type": inner}]}
    value = avro_writer(schema, b"")({"address": {"city": "Bern", "zip": "3000"}})
    sample = sampled(tmp_path, "Address address = 2;", [value], "avro-plain", schema)
    assert sample.described()["columns_without_field"] == ["address.post_code"]
    assert printed_after(sample)[1] == RENAME


def test_numbers_of_protobuf_that_no_column_has_are_named(tmp_path: Path) -> None:
    theirs = DescriptorProto(name="o-1").SerializeToString() + b"\x3a\x03ann"  # field 1, and field 7
    columns = "string customer = 2; int64 total = 3;"
    assert printed_after(sampled(tmp_path, columns, [theirs], "protobuf-plain")) == [
        (
            'none of these has a field for the columns "customer" and "total", which stay empty; no column reads field '
            'number "7"'
        ),
        "give each column the number that its field has in the topic's own schema",
    ]
    zeros = DescriptorProto(name="o-1").SerializeToString()
    assert printed_after(sampled(tmp_path, columns, [zeros], "protobuf-plain")) == []


def test_many_names_are_counted_and_none_commands_a_terminal(tmp_path: Path) -> None:
    sample = sampled(tmp_path, "string customer = 2;", of_json({f"f\x1b[31m{at:02}": at for at in range(12)}))
    line, _ = printed_after(sample)
    assert line.endswith('"f\ufffd[31m09" and 2 more')
    assert "\x1b" not in line


def test_numbers_of_protobuf_are_in_their_order(tmp_path: Path) -> None:
    row = DescriptorProto(name="o-1").SerializeToString()
    theirs = [row + b"\x58\x01\x38\x01", row + b"\x82\x06\x00"]  # fields 11 and 7, and field 96
    sample = sampled(tmp_path, "string customer = 2;", theirs, "protobuf-plain")
    assert sample.described()["fields_without_column"] == ["7", "11", "96"]


def test_a_name_without_an_end_is_shown_as_it_begins(tmp_path: Path) -> None:
    sample = sampled(tmp_path, "string customer = 2;", of_json({"ab" * 100_000: 1}))
    line, _ = printed_after(sample)
    assert line.endswith(f'no column reads field "{"ab" * 39}a…"')


@pytest.mark.parametrize("topic", [pytest.param(one, id=one.name) for one in TOPICS])
def test_columns_that_have_their_fields_are_named_of_no_codec(topic: Topic) -> None:
    columns = [topic.columns(number) for number in range(3)]
    records = [
        (Partition(0), Record(Offset(at), topic.key(one), topic.value(one), None, 0)) for at, one in enumerate(columns)
    ]
    sample = sample_of(records, topic.manifest(), topic.contract)
    assert sample.good == 3
    assert printed_after(sample) == []
