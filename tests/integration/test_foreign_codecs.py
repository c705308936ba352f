"""Records of every codec in a real Kafka, by one gateway: what real producers and registries write, and the documented
formats of others."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import (
    SchemaRegistryClient,
    header_schema_id_serializer,
    record_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from tablegate.examples.demo.kafka import Broker
from tablegate.gateway.cli.tables import publish_new
from tablegate.gateway.contract.keys import murmur2_partition
from tablegate.gateway.kafka.published import PublishedManifests
from tablegate.jobs.errors import JobError
from tablegate.jobs.kafka.manifests import read_manifest
from tablegate.jobs.running.operations import list_tables
from tablegate.v1.changelog_pb2 import Manifest
from tests.kit.gateway_processes.foreign import ForeignTables
from tests.kit.programs.kafka import NewRecord, new_topic, produce
from tests.kit.programs.registry_with_guids import RegistryWithGuids
from tests.kit.table.foreign import ORDER_SCHEMA, TOPICS, Topic, avro_order

pytestmark = pytest.mark.jvm

COUNT = 40
IN_HEADERS = {"schema.id.serializer": header_schema_id_serializer}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory, broker: Broker) -> Iterator[ForeignTables]:
    with ForeignTables(tmp_path_factory.mktemp("foreign"), broker.bootstrap) as running:
        yield running


@pytest.mark.parametrize("topic", [pytest.param(one, id=one.name) for one in TOPICS])
def test_a_codec_is_served(tables: ForeignTables, topic: Topic) -> None:
    name = new_topic(tables.bootstrap, 3, "theirs", cleanup_policy="compact")
    _write(tables, name, topic)
    published = PublishedManifests(tables.bootstrap, {}, tables.tables_topic)
    facts = published.describe(name)
    assert facts is not None
    old = published.newest().get(topic.table)
    generation = 1 if old is None else old.generation + 1
    published.publish(topic.manifest(topic=name, topic_id=facts.topic_id, partitions=3, generation=generation))
    published.close()
    tables.wait_for(topic.table, generation)
    expected = [topic.row(topic.columns(number)) for number in range(COUNT) if number % 5]
    assert sorted(map(str, tables.rows(topic.table))) == sorted(map(str, expected))
    for row in expected:
        assert tables.get(topic.table, row) == row
    assert tables.poison(topic.table) == {}


def _write(tables: ForeignTables, name: str, topic: Topic) -> None:
    """Write rows as a Java client does; each fifth is deleted."""
    records = []
    for number in range(COUNT):
        columns = topic.columns(number)
        records.append((topic.place(columns), topic.key(columns), topic.value(columns)))
        if not number % 5:
            records.append((topic.place(columns), topic.key(columns), topic.delete(columns)))
    tables.write(name, records)


@pytest.fixture
def client(schema_registry: str) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": schema_registry}) as opened:
        yield opened


def test_what_confluents_serializers_write_is_served(
    tables: ForeignTables, schema_registry: str, client: SchemaRegistryClient
) -> None:
    name = new_topic(tables.bootstrap, 3, "confluent", cleanup_policy="compact")
    topic = TOPICS[3]
    key = AvroSerializer(client, '"string"')
    by_record = {"subject.name.strategy": record_subject_name_strategy}
    value = AvroSerializer(client, json.dumps(ORDER_SCHEMA), lambda row, _: avro_order(row), by_record)
    producer = Producer({"bootstrap.servers": tables.bootstrap, "partitioner": "murmur2_random"})
    rows = [topic.columns(number) for number in range(COUNT)]
    for row in rows:
        producer.produce(
            name,
            key=key(row["order_id"], SerializationContext(name, MessageField.KEY)),
            value=value(row, SerializationContext(name, MessageField.VALUE)),
        )
    assert producer.flush(20) == 0
    printed = tables.add(
        "orders", "--topic", name, "--key", "avro", "--value", "avro", "--partitioner", "murmur2",
        "--schema-registry", schema_registry, "--value-subject", str(ORDER_SCHEMA["name"]),
    )  # fmt: skip
    assert f"{COUNT} of the newest {COUNT} records are rows" in printed
    tables.wait_for("orders", tables.generation("orders"))
    expected = [topic.row(row) for row in rows]
    assert sorted(map(str, tables.rows("orders"))) == sorted(map(str, expected))
    assert tables.get("orders", expected[7]) == expected[7]


@pytest.mark.parametrize("kind", ["json-schema", "protobuf", "protobuf of a message in the second one"])
def test_other_serializers_of_confluent_are_served(
    tables: ForeignTables, schema_registry: str, client: SchemaRegistryClient, kind: str
) -> None:
    name = new_topic(tables.bootstrap, 3, "confluent", cleanup_policy="compact")
    rows = [{"counter_id": number, "total": number * 2} for number in range(COUNT)]
    place: list[str] = []
    if kind == "json-schema":
        properties = {column: {"type": "integer"} for column in rows[0]}
        schema = json.dumps({"title": "Counter", "type": "object", "properties": properties})
        write: Any = JSONSerializer(schema, client)
        values = [write(row, SerializationContext(name, MessageField.VALUE)) for row in rows]
    else:
        is_inner = kind != "protobuf"
        counter, place = (
            _counter_class("Second.Counter" if is_inner else "Counter"),
            ["--value-index", "1.0"] * is_inner,
        )
        write = ProtobufSerializer(counter, client, {"use.deprecated.format": False})
        values = [write(counter(**row, unasked=7), SerializationContext(name, MessageField.VALUE)) for row in rows]
    tables.write(
        name,
        [
            (key, key, value)
            for row, value in zip(rows, values, strict=True)
            for key in [row["counter_id"].to_bytes(8, "big", signed=True)]
        ],
    )
    words = ["--topic", name, "--key", "int64", "--value", kind.partition(" ")[0], "--schema-registry", schema_registry]
    printed = tables.add("counters", *words, *place)
    assert f"{COUNT} of the newest {COUNT} records are rows" in printed
    tables.wait_for("counters", tables.generation("counters"))
    assert sorted(row.total for row in tables.rows("counters")) == [row["total"] for row in rows]


def test_ids_in_headers_leave_records_plain(tables: ForeignTables, schema_registry: str, tmp_path: Path) -> None:
    name = new_topic(tables.bootstrap, 3, "headers", cleanup_policy="compact")
    schema = {"type": "record", "name": "Counter", "fields": [{"name": "total", "type": "long"}]}
    file = tmp_path / "counter.avsc"
    file.write_text(json.dumps(schema))
    with RegistryWithGuids(schema_registry) as registry, SchemaRegistryClient({"url": registry.url}) as client:
        write = AvroSerializer(client, json.dumps(schema), conf={"schema.id.serializer": header_schema_id_serializer})
        values = [
            write({"total": number}, SerializationContext(name, MessageField.VALUE, [])) for number in range(COUNT)
        ]
    keys = [number.to_bytes(8, "big", signed=True) for number in range(COUNT)]
    tables.write(name, [(key, key, value) for key, value in zip(keys, values, strict=True)])
    words = ["--topic", name, "--key", "int64", "--value", "avro-plain", "--value-schema", str(file)]
    assert f"{COUNT} of the newest {COUNT} records are rows" in tables.add("counters", *words)
    tables.wait_for("counters", tables.generation("counters"))
    assert sorted(row.total for row in tables.rows("counters")) == [*range(COUNT)]


@pytest.mark.parametrize("kind", ["avro", "json-schema", "protobuf of a message in the second one"])
def test_ids_in_headers_are_read_beside_those_before_values(
    tables: ForeignTables, schema_registry: str, kind: str
) -> None:
    """A producer was upgraded: its older records have the id before the value, its newer ones a GUID in a header."""
    name = new_topic(tables.bootstrap, 3, "headers", cleanup_policy="compact")
    rows = [{"counter_id": number, "total": number * 2} for number in range(COUNT)]
    records = []
    with RegistryWithGuids(schema_registry) as registry, SchemaRegistryClient({"url": registry.url}) as client:
        writers = [_counter_writer(kind, client, conf) for conf in ({}, IN_HEADERS)]
        for row in rows:
            headers: list[tuple[str, bytes]] = []
            context = SerializationContext(name, MessageField.VALUE, headers)
            key, value = row["counter_id"].to_bytes(8, "big", signed=True), writers[row["counter_id"] % 2](row, context)
            assert len(headers) == row["counter_id"] % 2
            records.append(NewRecord(key, value, headers, murmur2_partition(key, 3)))
        odd = records[0]._replace(headers=[("__value_schema_id", b"\x01short")])
        produce(tables.bootstrap, name, [*records, odd])
        codec, _, inner = kind.partition(" ")
        words = ["--topic", name, "--key", "int64", "--value", codec, "--schema-registry", registry.url]
        printed = tables.add("counters", *words, *(["--value-index", "1.0"] if inner else []))
    reason = "value has a header of a schema id that ends early"
    assert f"{COUNT} of the newest {COUNT + 1} records are rows" in printed
    assert f"  1 not: {reason}" in printed
    tables.wait_for("counters", tables.generation("counters"))
    assert sorted(row.total for row in tables.rows("counters")) == [row["total"] for row in rows]
    assert tables.poison("counters")[reason] >= 1


def test_keys_with_ids_in_headers_are_read(tables: ForeignTables, schema_registry: str) -> None:
    name = new_topic(tables.bootstrap, 3, "headers", cleanup_policy="compact")
    rows = [TOPICS[3].columns(number) for number in range(COUNT)]
    producer = Producer({"bootstrap.servers": tables.bootstrap, "partitioner": "murmur2_random"})
    with RegistryWithGuids(schema_registry) as registry, SchemaRegistryClient({"url": registry.url}) as client:
        key = AvroSerializer(client, '"string"', conf=IN_HEADERS)
        value = AvroSerializer(client, json.dumps(ORDER_SCHEMA), lambda row, _: avro_order(row), IN_HEADERS)
        for row in rows:
            headers: list[tuple[str, bytes]] = []
            written = key(row["order_id"], SerializationContext(name, MessageField.KEY, headers))
            made = value(row, SerializationContext(name, MessageField.VALUE, headers))
            producer.produce(name, key=written, value=made, headers=headers)
        assert producer.flush(20) == 0
        words = ["--topic", name, "--key", "avro", "--value", "avro", "--schema-registry", registry.url]
        assert f"{COUNT} of the newest {COUNT} records are rows" in tables.add("orders", *words)
    tables.wait_for("orders", tables.generation("orders"))
    expected = [TOPICS[3].row(row) for row in rows]
    assert sorted(map(str, tables.rows("orders"))) == sorted(map(str, expected))
    assert tables.get("orders", expected[7]) == expected[7]


def _counter_writer(kind: str, client: SchemaRegistryClient, conf: dict[str, Any]) -> Any:
    """Return Confluent's serializer of a counter, as its producers have it."""
    fields = [{"name": name, "type": "long"} for name in ("counter_id", "total")]
    if kind == "avro":
        return AvroSerializer(client, json.dumps({"type": "record", "name": "Counter", "fields": fields}), conf=conf)
    if kind == "json-schema":
        properties = {field["name"]: {"type": "integer"} for field in fields}
        schema = json.dumps({"title": "Counter", "type": "object", "properties": properties})
        return JSONSerializer(schema, client, conf=conf)
    counter = _counter_class("Second.Counter")
    write = ProtobufSerializer(counter, client, {"use.deprecated.format": False, **conf})
    return lambda row, context: write(counter(**row), context)


def _counter_class(place: str) -> Any:
    file = FileDescriptorProto(name="counter.proto", package="theirs", syntax="proto3")
    first, second = (file.message_type.add(name=name) for name in ("Counter", "Second"))
    for counter in (first, second.nested_type.add(name="Counter")):
        for number, name in enumerate(("counter_id", "total", "unasked"), start=1):
            counter.field.add(name=name, number=number, type=3, label=1)
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(f"theirs.{place}"))


def test_a_bad_table_says_what_is_wrong(tables: ForeignTables, tmp_path: Path) -> None:
    name = new_topic(tables.bootstrap, 3, "bad", cleanup_policy="compact")
    tables.write(name, [(b"k", b"k", b"no JSON")])
    definition = tmp_path / "devices.toml"
    definition.write_text(
        f'table = "devices"\ntopic = "{name}"\nkey = "bytes"\nvalue = "json"\ncontract = "{tables.contract}"\n'
    )
    if '"devices"' in tables.command("list", "--json"):  # of another test; its place is not taken by nothing
        assert "stays as it is" in tables.refused("add", "--file", str(definition))
        tables.command("remove", "devices")
    printed = tables.command("add", "--file", str(definition))
    assert "none of the newest 1 records can be read as a row:\n  1 not: value is not JSON" in printed
    shown = tables.command("show", "devices", "--contract", str(tables.contract))
    assert "none of the newest 1 records can be read as a row" in shown
    assert "none of the newest 1 records can be read as a row" in tables.command("show", "devices")
    newest = json.loads(tables.command("show", "devices", "--json"))["newest"]
    assert newest == {
        "records": 1,
        "readable": 0,
        "reasons": {"value is not JSON": 1},
        "by_codecs": True,
        "columns_without_field": [],
        "fields_without_column": [],
    }
    assert "is there as it is" in tables.command("add", "--file", str(definition))
    deleting = new_topic(tables.bootstrap, 1, "deleting", cleanup_policy="delete", retention_ms="3600000")
    refused = tables.refused("add", "--file", str(definition), "--topic", deleting)
    assert "has cleanup.policy=delete" in refused
    assert "keeps records for 3600 s" in tables.refused(
        "add", "--file", str(definition), "--topic", deleting, "--retention", "2h"
    )
    generation = tables.generation("devices")
    printed = tables.command("add", "--file", str(definition), "--topic", deleting, "--retention", "1h")
    assert f"generation {generation + 1}" in printed
    consistent = tables.refused("add", "--file", str(definition), "--partitioner", "consistent_random")
    assert "is librdkafka's, by CRC-32" in consistent
    tables.command("remove", "devices")
    assert "has no manifest" in tables.refused("show", "devices")
    assert f"generation {generation + 2}" in tables.command("add", "--file", str(definition))
    tables.command("remove", "devices")


def test_of_two_commands_at_once_the_later_takes_the_next_generation(tables: ForeignTables) -> None:
    """Both have read which generation there is before either has written."""
    topics = [next(one for one in TOPICS if one.name == name) for name in ("int64, json", "avro plain, avro plain")]
    manifests = []
    published = PublishedManifests(tables.bootstrap, {}, tables.tables_topic)
    old = published.newest().get("counters")
    generation = 1 if old is None else old.generation + 1
    for topic in topics:
        name = new_topic(tables.bootstrap, 3, "at-once", cleanup_policy="compact")
        _write(tables, name, topic)
        facts = published.describe(name)
        assert facts is not None
        manifests.append(topic.manifest(topic=name, topic_id=facts.topic_id, partitions=3, generation=generation))
    for manifest in manifests:
        publish_new(published, manifest)
    assert [one.generation for one in manifests] == [generation, generation + 1]
    same = Manifest.FromString(manifests[1].SerializeToString())
    publish_new(published, same)
    published.close()
    assert same == manifests[1], "who says the same is no other"
    tables.wait_for("counters", generation + 1)
    assert len(tables.rows("counters")) == COUNT - COUNT // 5


def test_a_mistyped_codec_leaves_the_table_as_it_was(tables: ForeignTables) -> None:
    name = new_topic(tables.bootstrap, 3, "good", cleanup_policy="compact")
    tables.write(name, [(b"k", b"k", b'{"name": "mine"}')])
    tables.add("devices", "--topic", name, "--key", "bytes", "--value", "json")
    generation = tables.generation("devices")
    words = ("--contract", str(tables.contract), "--topic", name, "--key", "bytes", "--value", "protobuf-plain")
    refused = tables.refused("add", "devices", *words)
    assert f'table "devices" stays as it is, generation {generation}: by this, it would have no rows' in refused
    assert tables.generation("devices") == generation
    tables.wait_for("devices", generation)
    assert [row.name for row in tables.rows("devices")] == ["mine"]
    tables.command("remove", "devices")
    assert f"generation {generation + 1}" in tables.command("add", "devices", *words)
    tables.command("remove", "devices")


def test_jobs_leave_tables_of_others_alone(broker: Broker) -> None:
    published = PublishedManifests(broker.bootstrap, {}, "tables")
    manifest = TOPICS[0].manifest()
    manifest.table = "of_others_alone"
    published.publish(manifest)
    with pytest.raises(JobError, match="which others write; remove it first with tablegate table remove of_others"):
        read_manifest(broker.bootstrap, manifest.table)
    assert manifest.table not in {state.name for state in list_tables(broker.bootstrap)}
    published.remove(manifest.table, newest=1)
    assert read_manifest(broker.bootstrap, manifest.table) is None
    published.close()
