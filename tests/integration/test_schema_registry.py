"""Writers' schemas in a real registry: naming strategies, evolution, what other topics and types have there."""

import json
import uuid
from collections.abc import Iterator

import fastavro
import pytest
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    record_subject_name_strategy,
    topic_record_subject_name_strategy,
    topic_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tablegate.gateway.cli.registry import avro_schemas
from tablegate.gateway.contract.registry_settings import RegistrySettings
from tablegate.jobs.errors import JobError
from tablegate.jobs.planning.registry import SchemaRegistry, choose_value_schema
from tablegate.v1 import changelog_pb2
from tests.kit.job.avro_pairs import field, record

pytestmark = pytest.mark.jvm


class Writer:
    """A producer of one topic's values. Its namespace is its own: schemas of other tests have other texts and ids."""

    def __init__(self, url: str) -> None:
        unique = uuid.uuid4().hex[:12]
        self.url = url
        self.client = SchemaRegistryClient({"url": url})
        self.topic = f"funds-{unique}"
        self.namespace = f"bank_{unique}.v1"

    def schema(self, name: str = "Added", kind: str = "long", **added: object) -> str:
        """Return a record of an amount, and of a field for each of `added` with that default."""
        fields = [field(more, "int", default=default) for more, default in added.items()]
        return json.dumps(record(field("amount", kind), *fields, name=name, namespace=self.namespace))

    def write(self, schema: str, strategy: object = topic_subject_name_strategy) -> int:
        """Encode a record with Confluent's serializer, which registers the schema; return the id of its frame."""
        value = {"amount": "1" if '"string"' in schema else 1}
        serializer = AvroSerializer(self.client, schema, conf={"subject.name.strategy": strategy})
        framed = serializer(value, SerializationContext(self.topic, MessageField.VALUE))
        assert framed is not None
        return int.from_bytes(framed[1:5], "big")

    def register(self, subject: str, schema: str, *references: SchemaReference) -> int:
        return self.client.register_schema(subject, Schema(schema, "AVRO", list(references)))


@pytest.fixture
def writer(schema_registry: str) -> Iterator[Writer]:
    writer = Writer(schema_registry)
    with writer.client:
        yield writer


def test_versions_of_the_topics_subject(writer: Writer) -> None:
    old, new, wrong = writer.schema(), writer.schema(fee=0), writer.schema(kind="string")
    ids = [writer.write(schema) for schema in (old, new, wrong)]
    found = SchemaRegistry(RegistrySettings(url=writer.url)).writer_schemas(writer.topic, new)
    assert found.decoded == {ids[0]: old, ids[1]: new}
    assert found.ignored == {}
    assert found.incompatible == {ids[2]: 'field "amount" is string, not long'}


def test_schema_that_comes_later_is_found(writer: Writer) -> None:
    registry, reader = SchemaRegistry(RegistrySettings(url=writer.url)), writer.schema()
    first = writer.write(reader)
    assert list(registry.writer_schemas(writer.topic, reader).decoded) == [first]
    second = writer.write(writer.schema(fee=0))
    assert list(registry.writer_schemas(writer.topic, reader).decoded) == [first, second]


def test_subjects_of_topic_and_record(writer: Writer) -> None:
    added = writer.write(writer.schema(), topic_record_subject_name_strategy)
    newer = writer.write(writer.schema(fee=0), topic_record_subject_name_strategy)
    reserved = writer.write(writer.schema("Reserved"), topic_record_subject_name_strategy)
    # Subjects of other topics, whose names go on where this one's ends; and one of this topic's keys.
    for subject in (f"{writer.topic}-archive-value", f"{writer.topic}-archive", f"{writer.topic}-key"):
        writer.register(subject, writer.schema(elsewhere=len(subject)))
    found = SchemaRegistry(RegistrySettings(url=writer.url)).writer_schemas(writer.topic, writer.schema())
    assert sorted(found.decoded) == [added, newer]
    assert found.ignored == {reserved: f"{writer.namespace}.Reserved"}
    assert found.incompatible == {}


def test_subject_of_the_record(writer: Writer) -> None:
    added = writer.write(writer.schema(), record_subject_name_strategy)
    reserved = writer.write(writer.schema("Reserved"), record_subject_name_strategy)
    registry = SchemaRegistry(RegistrySettings(url=writer.url))
    found = registry.writer_schemas(writer.topic, writer.schema())
    assert (list(found.decoded), found.ignored, found.incompatible) == ([added], {}, {})
    # Nothing says that Reserved is in this topic, until a record of it is seen there.
    assert writer.client.get_schema(reserved).schema_str == writer.schema("Reserved")
    found = registry.writer_schemas(writer.topic, writer.schema(), seen=[added, reserved, 2_000_000_000])
    assert (list(found.decoded), found.ignored) == ([added], {reserved: f"{writer.namespace}.Reserved"})


def test_topic_that_was_copied_with_its_ids(writer: Writer) -> None:
    known = writer.write(writer.schema())
    found = SchemaRegistry(RegistrySettings(url=writer.url)).writer_schemas(
        f"copy-of-{writer.topic}", writer.schema(fee=0), seen=[known]
    )
    assert list(found.decoded) == [known]


def test_schema_that_was_withdrawn(writer: Writer) -> None:
    first, second = writer.write(writer.schema()), writer.write(writer.schema(fee=0))
    writer.client.delete_version(f"{writer.topic}-value", 1)
    registry = SchemaRegistry(RegistrySettings(url=writer.url))
    assert list(registry.writer_schemas(writer.topic, writer.schema()).decoded) == [second]
    assert sorted(registry.writer_schemas(writer.topic, writer.schema(), seen=[first]).decoded) == [first, second]


def test_types_of_other_subjects_are_written_out(writer: Writer) -> None:
    space = writer.namespace
    currency = json.dumps({"type": "enum", "name": "Currency", "namespace": space, "symbols": ["EUR", "USD"]})
    writer.register(f"{space}.Currency", currency)
    to_currency = SchemaReference(f"{space}.Currency", f"{space}.Currency", 1)
    account = json.dumps(record(field("currency", "Currency"), name="Account", namespace=space))
    writer.register(f"{space}.Account", account, to_currency)
    to_account = SchemaReference(f"{space}.Account", f"{space}.Account", 1)
    fields = [field("amount", "long"), field("account", "Account"), field("more", ["null", "Account"])]
    added = json.dumps(record(*fields, field("currency", "Currency"), name="Added", namespace=space))
    subject = f"{writer.topic}-value"
    schema_id = writer.register(subject, added, to_account, to_currency)
    registry = SchemaRegistry(RegistrySettings(url=writer.url))
    found = registry.writer_schemas(writer.topic, writer.schema())
    assert list(found.decoded) == [schema_id]
    alone = fastavro.parse_schema(json.loads(found.decoded[schema_id]))
    value = {"amount": 1, "account": {"currency": "EUR"}, "more": None, "currency": "USD"}
    assert fastavro.validate(value, alone)
    added_by_hand = avro_schemas(RegistrySettings(url=writer.url), subject)
    assert {one.schema_id: one.text for one in added_by_hand} == found.decoded, "tablegate table add has them, too"


def test_table_add_has_schemas_of_deleted_versions(writer: Writer) -> None:
    """Their records are still in the topic."""
    subject = f"{writer.topic}-value"
    first = writer.register(subject, json.dumps(record(field("amount", "long"), name="Added")))
    second = writer.register(subject, json.dumps(record(field("amount", "double"), name="Added")))
    with SchemaRegistryClient({"url": writer.url}) as client:
        client.delete_version(subject, 1)
        assert client.get_versions(subject) == [2]
    found = avro_schemas(RegistrySettings(url=writer.url), subject)
    assert [(one.schema_id, one.is_deleted) for one in found] == [(first, True), (second, False)]


@pytest.mark.parametrize(
    ("kind", "text", "name"),
    [
        ("JSON", '{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}', "JSON Schema"),
        ("PROTOBUF", 'syntax = "proto3"; message A {}', "Protobuf"),
    ],
)
def test_a_schema_that_is_not_avro_is_named(writer: Writer, kind: str, text: str, name: str) -> None:
    subject = f"{writer.topic}-value"
    schema_id = writer.client.register_schema(subject, Schema(text, kind))
    registry = SchemaRegistry(RegistrySettings(url=writer.url))
    with pytest.raises(JobError, match=f"of schema {schema_id}, it is of {name}, and the source is declared as Avro"):
        registry.writer_schemas(writer.topic, writer.schema())


def test_topic_without_subjects(writer: Writer) -> None:
    with pytest.raises(JobError, match=f'has no subject "{writer.topic}-value", and none .+; let a producer register'):
        SchemaRegistry(RegistrySettings(url=writer.url)).writer_schemas(writer.topic, writer.schema())


def test_value_schema_is_registered_once(writer: Writer) -> None:
    registry, schema = SchemaRegistry(RegistrySettings(url=writer.url)), json.loads(writer.schema())
    text = json.dumps(schema, separators=(",", ":"))
    schema_id, schemas = choose_value_schema(schema, writer.topic, 1, None, registry)
    assert schemas == {schema_id: text}
    assert writer.client.get_schema(schema_id).schema_str == text
    assert writer.client.get_versions(f"{writer.topic}-value") == [1]
    assert choose_value_schema(schema, writer.topic, 1, None, SchemaRegistry(RegistrySettings(url=writer.url))) == (
        schema_id,
        schemas,
    )


def test_id_that_another_value_schema_has(writer: Writer) -> None:
    registry, schema = SchemaRegistry(RegistrySettings(url=writer.url)), json.loads(writer.schema())
    schema_id = choose_value_schema(schema, writer.topic, 1, None, registry)[0]
    old = changelog_pb2.Manifest(generation=1, value_schemas={schema_id: writer.schema("Other")})
    with pytest.raises(JobError, match="raise the table's generation"):
        choose_value_schema(schema, writer.topic, 1, old, registry)
