"""The schemas of a topic from a registry: which subject has them, and what is said where the contract does not fit."""

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tablegate.gateway.cli.foreign_tables import Definition, DefinitionError
from tablegate.gateway.cli.registry import RegistryError
from tablegate.gateway.cli.topic_schemas import TopicSchemas, topic_schemas
from tablegate.gateway.contract.descriptors import load_descriptors
from tablegate.gateway.contract.foreign.keys import UnfitTopic
from tablegate.gateway.contract.registry_settings import RegistrySettings
from tests.kit.programs.listed_registry import FIRST_ID, ListedRegistry
from tests.kit.table.foreign import ENVELOPE_SCHEMA, FOREIGN, ORDER_SCHEMA, foreign_catalogue

pytestmark = pytest.mark.tools

ORDERS = Definition(table="orders", topic="orders", key="utf8", value="avro", contract=str(FOREIGN))
LINES = replace(ORDERS, table="lines", key="json")


def record(name: str, **fields: Any) -> str:
    listed = [{"name": field, "type": kind} for field, kind in fields.items()]
    return json.dumps({"type": "record", "name": name, "fields": listed})


def proto(text: str) -> dict[str, str]:
    return {"schemaType": "PROTOBUF", "schema": f'syntax = "proto3"; package shop.others.v1; {text}'}


LINE = "message Line { string order_id = 1; int32 line_number = 2; string article = 3; }"


def serialized(text: str) -> dict[str, Any]:
    """Return a schema as the client for Python registers it: a FileDescriptorProto in base64."""
    with TemporaryDirectory() as directory:
        path = Path(directory, "line.proto")
        Path(directory, "part.proto").write_text(PART)
        path.write_text(text)
        found = load_descriptors(path).file
    [file] = [one for one in found if one.name == path.name]
    return {"schemaType": "PROTOBUF", "schema": base64.b64encode(file.SerializeToString()).decode()}


PART = 'syntax = "proto3"; package parts; message Part { int32 no = 1; }'
IMPORTING = """syntax = "proto3"; package shop.others.v1;
import "part.proto"; import "google/protobuf/timestamp.proto"; import "google/type/money.proto";
message Line {
  string order_id = 1; int32 line_number = 2; %s article = 3; parts.Part part = 4;
  google.protobuf.Timestamp at = 5; google.type.Money price = 6;
}"""
TO_PART = {"references": [{"name": "part.proto", "subject": "part", "version": 1}]}
SUBJECTS: dict[str, list[dict[str, Any]]] = {
    "orders-value": [{"schema": record("Order", quantity="boolean")}, {"schema": json.dumps(ORDER_SCHEMA)}],
    "shop.Order": [{"schema": json.dumps(ORDER_SCHEMA)}],
    "strange-value": [{"schema": record("Order", quantity=["null", "boolean"], customer="string", paid="string")}],
    "envelope": [{"schema": json.dumps(ENVELOPE_SCHEMA)}],
    "keys": [{"schema": record("Key", order_id="string", line_number="boolean")}],
    "twice": [{"schema": record("Order", a={"type": "enum", "name": "E", "symbols": ["A", "A"]})}],
    "lines": [proto(LINE)],
    "second": [proto(f"message First {{}} message Second {{ {LINE} }}")],
    "moved": [proto("message Line { string article = 1; string text = 3; }")],
    "line twice": [proto("message Line {} message Line {}")],
    "line keys": [proto("message LineId { string order_id = 1; string line_number = 2; }")],
    "json": [{"schemaType": "JSON", "schema": json.dumps({"properties": {"article": {"type": "string"}}})}],
    "unfit json": [{"schemaType": "JSON", "schema": json.dumps({"properties": {"article": {"type": "number"}}})}],
    "no json": [{"schemaType": "JSON", "schema": "{"}],
}


@pytest.fixture(scope="module")
def registry() -> Iterator[RegistrySettings]:
    binary = {
        "part": [serialized(PART)],
        "binary": [{**serialized(IMPORTING % "string"), **TO_PART}],
        "binary moved": [{**serialized(IMPORTING % "bool"), **TO_PART}],
    }
    with ListedRegistry({**SUBJECTS, **binary}) as running:
        yield RegistrySettings(url=running.url)


def schemas(definition: Definition, registry: RegistrySettings | None) -> TopicSchemas:
    return topic_schemas(definition, foreign_catalogue().tables[definition.table], registry)


def test_schemas_are_those_of_the_topics_subject_or_of_another(registry: RegistrySettings) -> None:
    assert [*schemas(ORDERS, registry).values] == [FIRST_ID, FIRST_ID + 1], "those of all versions"
    named = schemas(replace(ORDERS, value_subject="shop.Order"), registry)
    assert {one: json.loads(text) for one, text in named.values.items()} == {FIRST_ID + 2: ORDER_SCHEMA}
    assert schemas(replace(ORDERS, value="json"), registry) == TopicSchemas({}, {}, {})


def test_schemas_of_deleted_versions_are_kept_for_their_records() -> None:
    """The newest of the others is the one that the contract must fit; a subject without any is none."""
    unfit = {"schema": record("Order", quantity="boolean"), "deleted": True}
    mistakes = [{**proto(LINE), "deleted": True}, {"schema": '"string"', "deleted": True}]
    versions = [unfit, {"schema": json.dumps(ORDER_SCHEMA)}, unfit, *mistakes]
    with ListedRegistry({"orders-value": versions}) as running:
        found = schemas(ORDERS, RegistrySettings(url=running.url))
    assert [*found.values] == [FIRST_ID, FIRST_ID + 2, FIRST_ID + 1]
    with (
        ListedRegistry({"orders-value": [unfit]}) as running,
        pytest.raises(RegistryError, match='has no subject "orders-value"'),
    ):
        schemas(ORDERS, RegistrySettings(url=running.url))


def test_guids_are_those_of_a_registry_that_has_them() -> None:
    """Keys and values are of one registry, so an id is one schema's in both."""
    guids = [f"{number}9791762-2336-4186-9674-299b90a802e2" for number in range(3)]
    order, key = ({"schema": json.dumps(schema)} for schema in (ORDER_SCHEMA, "string"))
    subjects = {
        "orders-value": [order, {**order, "guid": guids[0].upper()}, {**order, "guid": guids[1]}],
        "orders-key": [{**key, "guid": guids[2]}],
    }
    with ListedRegistry(subjects) as running:
        found = schemas(replace(ORDERS, key="avro"), RegistrySettings(url=running.url))
    ids = dict(zip(guids, range(FIRST_ID + 1, FIRST_ID + 4), strict=True))
    assert found.guids == ids
    with (
        ListedRegistry({"orders-value": [{**order, "guid": "none"}]}) as running,
        pytest.raises(RegistryError, match="its answer is not one of Confluent's API"),
    ):
        schemas(ORDERS, RegistrySettings(url=running.url))


@pytest.mark.parametrize(
    "definition",
    [
        replace(ORDERS, value="debezium-avro", value_subject="envelope"),
        replace(LINES, value="protobuf", value_subject="lines"),
        replace(LINES, value="protobuf", value_subject="second", value_index="1.0"),
        replace(LINES, value="protobuf", value_subject="binary"),
        replace(LINES, value="json-schema", value_subject="json"),
    ],
)
def test_what_fits_is_taken(registry: RegistrySettings, definition: Definition) -> None:
    schemas(definition, registry)


@pytest.mark.parametrize(
    ("definition", "what", "pairs"),
    [
        (
            replace(ORDERS, topic="strange"),
            "(right); change the contract, or say which subject it is: --value-subject",
            ['int64 quantity = 3;   |   "quantity": ["null", "boolean"]', 'bool paid = 6;        |   "paid": "string"'],
        ),
        (
            replace(LINES, key="avro", key_subject="keys", value="json"),
            "--key-subject",
            ['int32 line_number = 2;   |   "line_number": "boolean"'],
        ),
        (
            replace(LINES, value="protobuf", value_subject="moved"),
            'of subject "moved"',
            ["string article = 3;   |   string article = 1;"],
        ),
        (
            replace(LINES, value="protobuf", value_subject="second"),
            'of subject "second"',
            ["string article = 3;   |   (nothing of this number)"],
        ),
        (
            replace(LINES, value="protobuf", value_subject="binary moved"),
            'of subject "binary moved"',
            ["string article = 3;   |   bool article = 3;"],
        ),
        (
            replace(LINES, key="protobuf", key_subject="line keys", key_message="shop.others.v1.LineId", value="json"),
            'of subject "line keys"',
            ["int64 line_number = 2;   |   string line_number = 2;"],
        ),
        (
            replace(LINES, value="json-schema", value_subject="unfit json"),
            'of subject "unfit json"',
            ['string article = 3;   |   "article": {"type": "number"}'],
        ),
    ],
)
def test_a_contract_that_does_not_fit_is_shown_beside_the_schema(
    registry: RegistrySettings, definition: Definition, what: str, pairs: list[str]
) -> None:
    with pytest.raises(UnfitTopic) as refused:
        schemas(definition, registry)
    first, *lines = str(refused.value).splitlines()
    assert what in first
    assert [line.strip() for line in lines] == pairs


@pytest.mark.parametrize(
    ("definition", "why"),
    [
        (
            replace(ORDERS, topic="none"),
            'has no subject "none-value"; let a producer register its schema first, or name',
        ),
        (replace(ORDERS, value_subject="lines"), "is of Protobuf, not of Avro; choose its codec"),
        (
            replace(LINES, value="protobuf", value_subject="json"),
            "is of JSON Schema, not of Protobuf; choose its codec",
        ),
        (
            replace(LINES, value="protobuf", value_subject="line twice"),
            'of subject "line twice": schema does not compile: schema-51.proto:1:68: "Line" is already defined',
        ),
        (
            replace(LINES, value="protobuf", value_subject="lines", value_index="1"),
            "has no message 1; see --value-index",
        ),
        (
            replace(ORDERS, value_subject="twice"),
            "value schema 47 cannot be used as an Avro schema: All symbols in an enum must be unique",
        ),
        (replace(LINES, value="json-schema", value_subject="no json"), "is not JSON; register it again"),
        (replace(ORDERS, value="json", value_subject="lines"), "--value-subject needs --value avro or the like"),
    ],
)
def test_what_cannot_be_compared_says_why(registry: RegistrySettings, definition: Definition, why: str) -> None:
    with pytest.raises((DefinitionError, RegistryError)) as refused:
        schemas(definition, registry)
    assert why in str(refused.value)


def test_without_a_registry_only_avro_asks_for_one() -> None:
    with pytest.raises(DefinitionError, match="--value avro needs the schemas of the registry; give --schema-registry"):
        schemas(ORDERS, None)
    with pytest.raises(DefinitionError, match="--value-subject needs a schema registry; give --schema-registry"):
        schemas(replace(ORDERS, value_subject="shop.Order"), None)
    assert schemas(replace(LINES, value="protobuf"), None) == TopicSchemas({}, {}, {})
