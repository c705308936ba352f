"""Avro schemas that refer to types of other subjects: what is written out, and under which names."""

import json
from typing import Any

import fastavro
import pytest

from tablegate.gateway.contract.avro_references import written_out
from tests.kit.job.avro_pairs import field, record

ACCOUNT = record(field("id", "long"), name="Account", namespace="bank")


def alone(schema: Any, *referred: Any) -> Any:
    """Return what is written out, which fastavro takes for a schema."""
    found = json.loads(written_out(json.dumps(schema), map(json.dumps, referred)))
    fastavro.parse_schema(json.loads(json.dumps(found)))
    return found


def test_a_type_is_written_where_it_is_used_first() -> None:
    fields = [field("one", "bank.Account"), field("two", ["null", "bank.Account"]), field("three", "string")]
    found = alone(record(*fields, name="Transfer", namespace="shop"), ACCOUNT)
    assert found["fields"][0]["type"] == ACCOUNT
    assert found["fields"][1]["type"] == ["null", "bank.Account"]
    assert found["fields"][2]["type"] == "string"


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "array", "items": "Account"},
        {"type": "map", "values": "Account"},
        {"type": "array", "items": ["null", {"type": "map", "values": "Account"}]},
        {"type": "Account"},
    ],
)
def test_parts_of_other_types(kind: Any) -> None:
    found = alone(record(field("a", kind), name="Transfer", namespace="bank"), ACCOUNT)
    assert json.dumps(ACCOUNT) in json.dumps(found)


def test_a_type_in_a_type_that_is_referred_to_is_known_too() -> None:
    outer = record(field("account", ACCOUNT), name="Holder", namespace="people")
    found = alone(record(field("a", "bank.Account"), field("b", "people.Holder"), name="R"), outer)
    assert found["fields"][0]["type"] == ACCOUNT
    assert found["fields"][1]["type"]["fields"][0]["type"] == "bank.Account"


def test_a_namespace_is_that_of_the_type_and_not_of_its_place() -> None:
    plain = record(field("id", "long"), name="Plain")
    found = alone(record(field("a", "Plain"), name="R", namespace="shop"), plain)
    assert found["fields"][0]["type"]["namespace"] == ""


def test_a_type_that_has_itself() -> None:
    node = record(field("next", ["null", "Node"]), name="tree.Node")
    found = alone(record(field("root", "tree.Node"), name="R"), node)
    assert found["fields"][0]["type"]["fields"][0]["type"] == ["null", "tree.Node"]


def test_a_schema_that_defines_its_types_stays() -> None:
    schema = record(field("a", ACCOUNT), field("b", "bank.Account"), name="R")
    assert alone(schema, ACCOUNT) == schema
