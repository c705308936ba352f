"""Records as they lie in source topics, and what is in them: by fastavro and json, nothing of Spark's or ours."""

import json
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from io import BytesIO
from typing import Any, NamedTuple, TypeVar

import fastavro
from tablegate.examples.samples import Event
from tablegate.examples.samples.events import START_MS
from tablegate.gateway.contract.keys import murmur2_partition

from tests.kit.programs.kafka import RawRecord

FRAME_BYTES = 5  # 00 and the schema id
INT64_MAX = 2**63 - 1

_NUMBER = re.compile(r"-?[0-9]+")
_UNREADABLE = (EOFError, IndexError, ValueError, OverflowError, struct.error)
"""What fastavro raises on bytes that are no record of the schema."""

T = TypeVar("T")


class Place(NamedTuple):
    """Where a record lies."""

    topic: str
    partition: int
    offset: int


class Record(NamedTuple):
    """A record of a source topic; a tombstone has value None."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None

    @property
    def place(self) -> Place:
        return Place(self.topic, self.partition, self.offset)


class Malformed(ValueError):
    """A record that no row can be made of."""


def records_of(topic: str, found: Iterable[RawRecord]) -> list[Record]:
    """Return what was consumed as records of `topic`: the name that the folds know, whatever the real one is."""
    return [Record(topic, raw.partition, raw.offset, raw.timestamp_ms, raw.key, raw.value) for raw in found]


def lay(events: Iterable[Event], partition_counts: Mapping[str, int]) -> list[Record]:
    """Return the records that a topic of these events has; one without a key goes to the first partition."""
    next_offsets: dict[tuple[str, int], int] = {}
    records = []
    for number, event in enumerate(events):
        partition = event.partition
        if partition is None:
            partition = 0 if event.key is None else murmur2_partition(event.key, partition_counts[event.topic])
        offset = next_offsets.get((event.topic, partition), 0)
        next_offsets[event.topic, partition] = offset + 1
        timestamp_ms = START_MS + number if event.timestamp_ms is None else event.timestamp_ms
        records.append(Record(event.topic, partition, offset, timestamp_ms, event.key, event.value))
    return records


def decoded(
    records: Iterable[Record], topic: str, decode: Callable[[Record], T], malformed: set[Place]
) -> Iterator[tuple[Record, T]]:
    """Yield the topic's records with what `decode` returns, in their order; add those that raise `Malformed`."""
    for record in sorted((one for one in records if one.topic == topic), key=lambda one: one.place):
        try:
            content = decode(record)
        except Malformed:
            malformed.add(record.place)
        else:
            yield record, content


def newest(contents: Iterable[tuple[Record, tuple[Any, T]]]) -> dict[Any, tuple[Record, T]]:
    """Return the last of each key, of (key, content); raise where a key's records have no order."""
    found: dict[Any, tuple[Record, T]] = {}
    for record, (key, content) in contents:
        if key in found and found[key][0].partition != record.partition:
            raise ValueError(
                f"records of key {key!r} of {record.topic} lie in two partitions: none of them is the newest"
            )
        found[key] = record, content
    return found


def text_key(record: Record) -> str:
    """Return the key, which is UTF-8."""
    if record.key is None:
        raise Malformed("no key")
    try:
        return record.key.decode()
    except UnicodeDecodeError:
        raise Malformed("key is not UTF-8") from None


def number_key(record: Record) -> int:
    """Return the key, which is a number as text."""
    text = text_key(record)
    if not _NUMBER.fullmatch(text) or not -INT64_MAX - 1 <= int(text) <= INT64_MAX:
        raise Malformed("key is no number of 64 bits")
    return int(text)


def json_value(record: Record) -> dict[str, Any]:
    """Return the value, which is a JSON object."""
    try:
        content = json.loads(record.value or b"")
    except ValueError:
        raise Malformed("value is no JSON") from None
    if not isinstance(content, dict):
        raise Malformed("value is no JSON object")
    return content


def avro_value(record: Record, name: str, schemas: Mapping[int, str]) -> dict[str, Any] | None:
    """Return the fields of the value, Avro in the Confluent wire format by one of `schemas` (by id).

    None for a record of another type than `name`, which is not looked at further.
    """
    value = record.value
    if value is None or len(value) < FRAME_BYTES or value[0] != 0:
        raise Malformed("value is not framed")
    schema = schemas.get(int.from_bytes(value[1:FRAME_BYTES], "big"))
    if schema is None:
        raise Malformed("schema id is unknown")
    if json.loads(schema)["name"] != name:
        return None
    try:
        fields = fastavro.schemaless_reader(BytesIO(value[FRAME_BYTES:]), _parsed(schema), None)
    except _UNREADABLE:
        raise Malformed("value does not decode") from None
    assert isinstance(fields, dict), "the schemas are of records"
    return fields


@cache
def _parsed(schema: str) -> Any:
    return fastavro.parse_schema(json.loads(schema))
