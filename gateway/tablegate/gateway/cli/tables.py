"""`tablegate table …`: tables of topics that others write. No job keeps them, so a command publishes their manifest.

Decision: docs/decisions/0093-topics-of-others.md
Decision: docs/decisions/0170-of-two-adds-the-later-is-the-next-generation.md
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tablegate.gateway.cli.connecting import AsJson
from tablegate.gateway.cli.errors import fail, fail_with_problems
from tablegate.gateway.contract.kafka_arguments import Bootstrap, KafkaFile

if TYPE_CHECKING:
    from tablegate.gateway.cli.foreign_tables import Definition
    from tablegate.gateway.cli.topic_samples import Sample
    from tablegate.gateway.contract.catalogue import Table
    from tablegate.gateway.contract.registry_settings import RegistrySettings
    from tablegate.gateway.kafka.log import TopicFacts
    from tablegate.gateway.kafka.published import PublishedManifests
    from tablegate.v1.changelog_pb2 import Manifest

tables = typer.Typer(no_args_is_help=True, help="Serve topics that others write as tables.")


class KeyWord(Enum):
    """Codecs of keys, as commands call them."""

    UTF8 = "utf8"
    INT32 = "int32"
    INT64 = "int64"
    BYTES = "bytes"
    JSON = "json"
    AVRO = "avro"
    AVRO_PLAIN = "avro-plain"
    PROTOBUF = "protobuf"
    PROTOBUF_PLAIN = "protobuf-plain"


class ValueWord(Enum):
    """Codecs of values, as commands call them."""

    JSON = "json"
    JSON_SCHEMA = "json-schema"
    AVRO = "avro"
    AVRO_PLAIN = "avro-plain"
    PROTOBUF = "protobuf"
    PROTOBUF_PLAIN = "protobuf-plain"
    DEBEZIUM_JSON = "debezium-json"
    DEBEZIUM_AVRO = "debezium-avro"


class WindowWord(Enum):
    """What follows a key of Kafka Streams, as commands call it."""

    TIME = "time"
    TIME_STORE = "time-store"
    SESSION = "session"


class StoredWord(Enum):
    """What is before a value of Kafka Streams, as commands call it."""

    TIMESTAMPED = "timestamped"
    VERSIONED = "versioned"


TablesTopic = Annotated[
    str | None,
    typer.Option(
        help="Topic of the manifests. Default: tables, behind the topic_prefix of --kafka.",
    ),
]
Contract = Annotated[Path | None, typer.Option(help="Contract: a .proto or a descriptor set.")]
Name = Annotated[str, typer.Argument(help="Name of the table.")]


@tables.command()
def add(
    name: Annotated[
        str | None, typer.Argument(help="Name of the table, as in the contract.", show_default=False)
    ] = None,
    topic: Annotated[str | None, typer.Option(help="Topic whose newest record of each key is a row.")] = None,
    key: Annotated[KeyWord | None, typer.Option(help="What the bytes of keys are.")] = None,
    value: Annotated[ValueWord | None, typer.Option(help="What the bytes of values are.")] = None,
    contract: Contract = None,
    file: Annotated[
        Path | None,
        typer.Option(help="TOML file that says all this, with the names of these options; options go over it."),
    ] = None,
    schema_registry: Annotated[
        str | None,
        typer.Option(
            help="Schema registry with the Confluent API: avro and debezium-avro need it; of protobuf and json-schema "
            "it says whether the contract fits.",
            metavar="URL",
        ),
    ] = None,
    key_subject: Annotated[
        str | None, typer.Option(help="Subject of the keys' schemas. Default: TOPIC-key.", metavar="NAME")
    ] = None,
    value_subject: Annotated[
        str | None, typer.Option(help="Subject of the values' schemas. Default: TOPIC-value.", metavar="NAME")
    ] = None,
    partitioner: Annotated[
        str | None,
        typer.Option(
            help="How producers choose partitions: murmur2, as Java's clients do, or unknown, with which a Get looks "
            "into each. Default: murmur2 for utf8, int32, int64 and bytes, else unknown.",
            metavar="NAME",
        ),
    ] = None,
    windowed: Annotated[
        WindowWord | None, typer.Option(help="Keys are windowed ones of Kafka Streams; the last key columns have it.")
    ] = None,
    stored: Annotated[StoredWord | None, typer.Option(help="Values have the store format of Kafka Streams.")] = None,
    key_message: Annotated[
        str | None, typer.Option(help="Message of the contract that a Protobuf key is.", metavar="NAME")
    ] = None,
    key_index: Annotated[
        str | None,
        typer.Option(
            help="Which message of its schema a key of protobuf is: 1 is the second, 1.0 the first one in that. "
            "Default: 0.",
            metavar="PLACE",
        ),
    ] = None,
    value_index: Annotated[
        str | None, typer.Option(help="Which message of its schema a value of protobuf is.", metavar="PLACE")
    ] = None,
    key_schema: Annotated[Path | None, typer.Option(help="Avro schema of the keys of avro-plain.")] = None,
    value_schema: Annotated[Path | None, typer.Option(help="Avro schema of the values of avro-plain.")] = None,
    retention: Annotated[
        str | None,
        typer.Option(
            help="Of a topic with cleanup.policy=delete: for how long it keeps records at least. Older rows may be "
            "missing.",
            metavar="7d",
        ),
    ] = None,
    bootstrap: Bootstrap = None,
    kafka: KafkaFile = None,
    tables_topic: TablesTopic = None,
) -> None:
    """Serve a topic that others write: [bold]tablegate table add orders --topic orders --key utf8 --value json[/bold].

    A row is the newest record of its key; a record without a value deletes it. The contract has the row, as for a job's
    table. Some of the newest records are read first, and what of them cannot be a row is told.

    Given again with something else, as with another schema, the table gets a new generation, read from the start.
    """
    from tablegate.gateway.cli.foreign_tables import Definition, bound_table
    from tablegate.gateway.contract.foreign.topics import UnfitTopic, unfit_reason
    from tablegate.gateway.contract.registry_settings import load_registry
    from tablegate.gateway.replication.manifests import problem_of, topic_fault

    given = Definition(
        table=name or "",
        topic=topic or "",
        key=key.value if key else "",
        value=value.value if value else "",
        contract=str(contract) if contract else "",
        schema_registry=schema_registry or "",
        key_subject=key_subject or "",
        value_subject=value_subject or "",
        partitioner=partitioner or "",
        windowed=windowed.value if windowed else "",
        stored=stored.value if stored else "",
        key_message=key_message or "",
        key_schema=str(key_schema) if key_schema else "",
        value_schema=str(value_schema) if value_schema else "",
        key_index=key_index or "",
        value_index=value_index or "",
        retention=retention or "",
    )
    with _explained(), kafka_of(bootstrap, kafka, tables_topic) as published:
        definition = (given.with_file(file) if file else given).checked()
        table = bound_table(definition)
        facts = published.describe(definition.topic)
        if facts is None:
            fail(f'topic "{definition.topic}" does not exist; create it, or correct --topic')
        known = published.newest()
        registry = load_registry(kafka, url=definition.schema_registry or None)
        try:
            manifest = _manifest(definition, table, facts, known, registry)
        except UnfitTopic as error:
            fail(f'table "{table.name}": {error}')
        why = unfit_reason(table, manifest)
        if why is not None:
            fail(f'table "{table.name}": {why}')
        if (problem := problem_of(table, manifest)) is not None:
            fail(problem)
        if (fault := topic_fault(manifest, facts)) is not None:
            fail(f"{fault.what}; {fault.hint}")
        sample = _show_sample(published, table, manifest, facts)
        old = known.get(table.name)
        if old is not None and old.generation == manifest.generation:
            print(f'table "{table.name}" is there as it is, generation {old.generation}')
            return
        if old is not None and sample.has_no_row:
            # A codec that is mistyped would empty a table that clients read.
            fail(
                f'table "{table.name}" stays as it is, generation {old.generation}: by this, it would have no rows; '
                f"correct --key and --value, or remove the table first: tablegate table remove {table.name}"
            )
        publish_new(published, manifest)
    print(f'table "{table.name}" is served from topic "{definition.topic}", generation {manifest.generation}')


def publish_new(published: "PublishedManifests", manifest: "Manifest") -> None:
    """Write a manifest of a new generation: of the next one where another command has written this one first.

    Both have seen the same generation before. The topic's order says who was first, to both alike.
    """
    from tablegate.gateway.replication.manifests import follows_on

    while True:
        published.publish(manifest)
        first = published.first_of(manifest.table, manifest.generation)
        if first is None or follows_on(first, manifest):
            return
        manifest.generation = manifest.declared_generation = manifest.generation + 1


def _manifest(
    definition: "Definition",
    table: "Table",
    facts: "TopicFacts",
    known: "dict[str, Manifest]",
    registry: "RegistrySettings | None",
) -> "Manifest":
    """Return the manifest of a definition: with the generation that is there where it says the same, else the next."""
    from tablegate.gateway.cli.foreign_tables import manifest_of
    from tablegate.gateway.cli.topic_schemas import topic_schemas
    from tablegate.gateway.contract.types import past_name
    from tablegate.gateway.replication.manifests import follows_on

    old = known.get(table.name)
    if old is not None and not old.HasField("foreign"):
        fail(f'table "{table.name}" is kept by a job; remove it with tablegate job reset first')
    schemas = topic_schemas(definition, table, registry)
    past = known.get(past_name(table.name))
    generation = old.generation if old is not None else past.generation + 1 if past is not None else 1
    manifest = manifest_of(
        definition,
        table,
        facts,
        key_schemas=schemas.keys,
        value_schemas=schemas.values,
        schema_guids=schemas.guids,
        generation=generation,
    )
    if old is not None and not follows_on(old, manifest):
        manifest.generation = manifest.declared_generation = old.generation + 1
    return manifest


def _show_sample(
    published: "PublishedManifests", table: "Table | None", manifest: "Manifest", facts: "TopicFacts"
) -> "Sample":
    """Print what some of the newest records come to, and return it."""
    sample = _sample(published, table, manifest, facts)
    for line in sample.lines(manifest.changelog_topic):
        print(line)
    return sample


def _sample(
    published: "PublishedManifests", table: "Table | None", manifest: "Manifest", facts: "TopicFacts"
) -> "Sample":
    from tablegate.gateway.cli.topic_samples import SAMPLE_RECORDS_MAX, sample_of

    return sample_of(published.read_some(manifest.changelog_topic, facts, SAMPLE_RECORDS_MAX), manifest, table)


@tables.command("list")
def list_(
    bootstrap: Bootstrap = None, kafka: KafkaFile = None, tables_topic: TablesTopic = None, as_json: AsJson = False
) -> None:
    """Show the tables of topics that others write."""
    with _explained(), kafka_of(bootstrap, kafka, tables_topic) as published:
        found = [each for _, each in sorted(published.newest().items()) if each.HasField("foreign")]
    if as_json:
        for manifest in found:
            print(json.dumps(_described(manifest)))
        return
    for manifest in found:
        facts = _described(manifest)
        print(f"{manifest.table}: topic {manifest.changelog_topic}, key {facts['key']}, value {facts['value']}")


@tables.command()
def show(
    name: Name,
    contract: Contract = None,
    bootstrap: Bootstrap = None,
    kafka: KafkaFile = None,
    tables_topic: TablesTopic = None,
    as_json: AsJson = False,
) -> None:
    """Show what is said of a table's topic, and how many of its newest records can be read.

    With --contract they are read as rows; without it by their codecs alone.
    """
    from tablegate.gateway.cli.foreign_tables import Definition, bound_table
    from tablegate.gateway.contract.foreign.topics import unfit_reason
    from tablegate.gateway.replication.manifests import topic_fault

    with _explained(), kafka_of(bootstrap, kafka, tables_topic) as published:
        manifest = _of_others(published, name)
        described = _described(manifest)
        table = None if contract is None else bound_table(Definition(table=name, contract=str(contract)))
        if not as_json:
            for what, text in described.items():
                print(f"{what.replace('_', ' ')}: {text}")
        facts = published.describe(manifest.changelog_topic)
        fault = topic_fault(manifest, facts)
        if fault is not None:
            fail(f"{fault.what}; {fault.hint}")
        if table is not None and (why := unfit_reason(table, manifest)) is not None:
            fail(f'table "{name}": {why}')
        assert facts is not None, "a topic that is not there is a fault"
        if as_json:
            print(json.dumps(described | {"newest": _sample(published, table, manifest, facts).described()}))
        else:
            _show_sample(published, table, manifest, facts)


@tables.command()
def remove(name: Name, bootstrap: Bootstrap = None, kafka: KafkaFile = None, tables_topic: TablesTopic = None) -> None:
    """Serve a topic no longer. The topic itself stays as it is."""
    with _explained(), kafka_of(bootstrap, kafka, tables_topic) as published:
        manifest = _of_others(published, name)
        published.remove(name, newest=manifest.generation)
    print(f'table "{name}" is removed; topic "{manifest.changelog_topic}" is as it was')


def _of_others(published: "PublishedManifests", name: str) -> "Manifest":
    manifest = published.newest().get(name)
    if manifest is None:
        fail(f'table "{name}" has no manifest; tablegate table list names those that have')
    if not manifest.HasField("foreign"):
        fail(f'table "{name}" is kept by a job; see tablegate job list')
    return manifest


def _described(manifest: "Manifest") -> dict[str, Any]:
    from tablegate.gateway.cli.foreign_tables import word_of

    topic = manifest.foreign
    described: dict[str, Any] = {
        "table": manifest.table,
        "generation": manifest.generation,
        "topic": manifest.changelog_topic,
        "partitions": manifest.partition_count,
        "key": word_of("key", topic.key_codec),
        "value": word_of("value", topic.value_codec),
        "partitioner": word_of("partitioner", topic.record_partitioner),
    }
    if topic.key_window:
        described["windowed"] = word_of("windowed", topic.key_window)
    if topic.stored_format:
        described["stored"] = word_of("stored", topic.stored_format)
    if topic.HasField("retention"):
        described["retention_s"] = topic.retention.seconds
    if topic.key_message:
        described["key_message"] = topic.key_message
    for what, schemas in (("key_schemas", topic.key_schemas), ("value_schemas", manifest.value_schemas)):
        if schemas:
            described[what] = sorted(schemas)
    return described


@contextmanager
def kafka_of(
    bootstrap: str | None, kafka: Path | None, tables_topic: str | None = None
) -> "Iterator[PublishedManifests]":
    """Connect a command to Kafka; raise `KafkaSettingsError`."""
    from tablegate.gateway.contract.kafka_settings import load_settings
    from tablegate.gateway.kafka.published import PublishedManifests

    settings = load_settings(kafka, bootstrap=bootstrap)
    topic = settings.own_topic("tables") if tables_topic is None else tables_topic
    published = PublishedManifests(settings.bootstrap, settings.librdkafka(), topic)
    # A gateway logs what keeps it from Kafka; a command says it, once, as it ends.
    logging.getLogger("tablegate").addHandler(logging.NullHandler())
    try:
        yield published
    finally:
        published.close()


@contextmanager
def _explained() -> Iterator[None]:
    """End with one sentence where the user can do something about what went wrong."""
    from tablegate.gateway.cli.foreign_tables import DefinitionError
    from tablegate.gateway.cli.registry import RegistryError
    from tablegate.gateway.contract.binder.problems import ContractError
    from tablegate.gateway.contract.descriptors import DescriptorError
    from tablegate.gateway.contract.foreign.keys import UnfitTopic
    from tablegate.gateway.contract.kafka_file import KafkaSettingsError
    from tablegate.gateway.kafka.log import LogUnavailable

    try:
        yield
    except ContractError as error:
        fail_with_problems(error.problems)
    except (DefinitionError, RegistryError, DescriptorError, KafkaSettingsError, LogUnavailable, UnfitTopic) as error:
        fail(error)
