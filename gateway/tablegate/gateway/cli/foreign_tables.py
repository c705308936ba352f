"""What a command or a file says of a topic that others write, and the manifest that is made of it."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tablegate.gateway.contract.binder.binder import bind
from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.descriptors import load_descriptors
from tablegate.gateway.contract.foreign.framing import PLAIN_ID
from tablegate.gateway.contract.types import is_topic_name
from tablegate.gateway.kafka.log import TopicFacts
from tablegate.v1 import changelog_pb2
from tablegate.v1.changelog_pb2 import ForeignTopic, Manifest, SourceTopic

_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_INDEX = re.compile(r"[0-9]{1,5}(\.[0-9]{1,5}){0,9}")
_DURATION = re.compile(r"([1-9][0-9]{0,8})([smhd])")


class DefinitionError(Exception):
    """A definition that cannot be; its text is a sentence that says what to do."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A table of a topic that others write. Names are those of the options, and of the file's keys; "" is not said."""

    table: str = ""
    topic: str = ""
    key: str = ""
    value: str = ""
    contract: str = ""
    schema_registry: str = ""
    key_subject: str = ""
    value_subject: str = ""
    partitioner: str = ""
    windowed: str = ""
    stored: str = ""
    key_message: str = ""
    key_schema: str = ""
    value_schema: str = ""
    key_index: str = ""
    value_index: str = ""
    retention: str = ""

    def with_file(self, file: Path) -> "Definition":
        """Return this over what a file says; paths in that are relative to it. Raise `DefinitionError`."""
        try:
            found: Mapping[str, Any] = tomllib.loads(file.read_text("utf-8"))
        except OSError as error:
            raise DefinitionError(f'"{file}" cannot be read: {error.strerror}') from None
        except (ValueError, RecursionError) as error:  # ValueError alone: a number of too many digits
            raise DefinitionError(f'"{file}" is no TOML: {error}') from None
        known = {one.name for one in fields(Definition)}
        for name, value in found.items():
            if name not in known:
                raise DefinitionError(f'"{file}" has an unknown key "{name}"; it may have {", ".join(sorted(known))}')
            if not isinstance(value, str) or not value:
                raise DefinitionError(f'"{file}": "{name}" is no text; write it in quotes')
        paths = {name: str(file.parent / found[name]) for name in _PATHS if name in found}
        own = {name: getattr(self, name) for name in known if getattr(self, name)}
        return Definition(**{**found, **paths, **own})

    def checked(self) -> "Definition":
        """Return this with what is not said of `windowed`, `stored` and `partitioner`; raise `DefinitionError`."""
        for name in ("table", "topic", "key", "value", "contract"):
            if not getattr(self, name):
                option = "the table's name" if name == "table" else f"--{name}"
                choices = f" ({', '.join(CHOICES[name])})" if name in CHOICES else ""
                raise DefinitionError(f"a table of a topic needs {option}{choices}; give it, or write it into --file")
        if not is_topic_name(self.topic):
            raise DefinitionError(
                f'--topic "{self.topic}" is no name of a topic, which has letters, digits, ".", "_" and "-", 249 at '
                "most; correct it"
            )
        partitioner = self.partitioner or ("murmur2" if self.key in _ONE_WRITING else "unknown")
        chosen = replace(self, partitioner=partitioner, windowed=self.windowed or "no", stored=self.stored or "plain")
        if chosen.partitioner in _REFUSED_PARTITIONERS:
            raise DefinitionError(
                f"partitioner {chosen.partitioner} is librdkafka's, by CRC-32: Java's clients place the same key in "
                "another partition, and it places empty keys anywhere; have producers use murmur2_random, or say "
                "--partitioner unknown: a Get then looks into each partition"
            )
        for name, words in CHOICES.items():
            if getattr(chosen, name) not in words:
                option = f"--{name.replace('_', '-')}"
                raise DefinitionError(f'{option} "{getattr(chosen, name)}" is none of {", ".join(words)}')
        return chosen


_PATHS = ("contract", "key_schema", "value_schema")
_ONE_WRITING = ("utf8", "int32", "int64", "bytes")
_REFUSED_PARTITIONERS = ("consistent_random", "consistent", "crc32")


def _words(enum: Any, *, zero: str = "") -> Mapping[str, int]:
    """Return the numbers of an enum of the manifest by their words: "avro-plain" of KEY_CODEC_AVRO_PLAIN."""
    prefix = enum.DESCRIPTOR.values_by_number[0].name.removesuffix("UNSPECIFIED")
    found = {name.removeprefix(prefix).lower().replace("_", "-"): number for name, number in enum.items() if number}
    return {zero: 0, **found} if zero else found


CHOICES: Mapping[str, Mapping[str, int]] = {
    "key": _words(changelog_pb2.KeyCodec),
    "value": _words(changelog_pb2.ValueCodec),
    "windowed": _words(changelog_pb2.KeyWindow, zero="no"),
    "stored": _words(changelog_pb2.StoredFormat, zero="plain"),
    "partitioner": _words(changelog_pb2.RecordPartitioner),
}
"""By the name of an option: the words that it may be, with their numbers in a manifest."""


def word_of(option: str, number: int) -> str:
    """Return the word of an option for a number of a manifest."""
    return next((word for word, one in CHOICES[option].items() if one == number), f"unknown ({number})")


def bound_table(definition: Definition) -> Table:
    """Return the table of the contract; raise `DefinitionError`, and what reading the contract raises."""
    tables = bind(load_descriptors(Path(definition.contract))).tables
    if definition.table not in tables:
        named = ", ".join(tables) or "none"
        raise DefinitionError(
            f'contract "{definition.contract}" has no table "{definition.table}", only {named}; give one of its names'
        )
    return tables[definition.table]


def foreign_topic(
    definition: Definition, key_schemas: Mapping[int, str], schema_guids: Mapping[str, int] = MappingProxyType({})
) -> ForeignTopic:
    """Return what a manifest says of a topic; raise `DefinitionError`."""
    numbers: dict[str, Any] = {name: words[getattr(definition, name)] for name, words in CHOICES.items()}
    topic = ForeignTopic(
        key_codec=numbers["key"],
        value_codec=numbers["value"],
        key_window=numbers["windowed"],
        stored_format=numbers["stored"],
        record_partitioner=numbers["partitioner"],
        key_schemas=key_schemas,
        schema_guids=schema_guids,
        key_message=definition.key_message,
        key_index=_index(definition.key_index, "key", definition.key),
        value_index=_index(definition.value_index, "value", definition.value),
    )
    if definition.retention:
        matched = _DURATION.fullmatch(definition.retention)
        if matched is None:
            raise DefinitionError(f'--retention "{definition.retention}" is no duration; give one such as 7d or 12h')
        topic.retention.seconds = int(matched[1]) * _UNITS_S[matched[2]]
    return topic


def _index(text: str, part: str, codec: str) -> list[int]:
    """Return the place of a message in its schema; nothing for the first one. Raise `DefinitionError`."""
    if not text:
        return []
    if codec != "protobuf":
        raise DefinitionError(f"--{part}-index is of --{part} protobuf alone, which has an index; leave it out")
    if not _INDEX.fullmatch(text):
        raise DefinitionError(
            f'--{part}-index "{text}" is no place of a message; give one such as 1, or 1.0 for the first message in it'
        )
    return [] if text == "0" else [int(place) for place in text.split(".")]


def manifest_of(
    definition: Definition,
    table: Table,
    facts: TopicFacts,
    *,
    key_schemas: Mapping[int, str],
    value_schemas: Mapping[int, str],
    schema_guids: Mapping[str, int] = MappingProxyType({}),
    generation: int,
) -> Manifest:
    """Return the manifest of a table of a topic; raise `DefinitionError`."""
    manifest = table.manifest(
        generation=generation,
        changelog_topic=definition.topic,
        changelog_topic_id=facts.topic_id,
        partition_count=facts.partition_count,
        value_schemas=value_schemas,
        sources=[SourceTopic(topic=definition.topic, partition_count=facts.partition_count, keyed=True)],
        declared_generation=generation,
        foreign=foreign_topic(definition, key_schemas, schema_guids),
    )
    manifest.publish_time.GetCurrentTime()
    return manifest


def read_schemas(path: str) -> dict[int, str]:
    """Return the only schema of values or keys without ids, from a file; nothing without a path."""
    if not path:
        return {}
    try:
        return {PLAIN_ID: Path(path).read_text("utf-8")}
    except (OSError, UnicodeDecodeError) as error:
        raise DefinitionError(f'schema "{path}" cannot be read: {getattr(error, "strerror", None) or error}') from None
