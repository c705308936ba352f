"""The border: all that comes from a topic is checked here, before anything else sees it.

Anybody who may write to a topic may write anything, and a store or a library refuses what it cannot hold: a length of
more than two bytes, a number below zero, a time beyond the calendar. Met further in, that is an error in the middle of
a write, and again after each restart, for the record is still there. So whoever reads a record asks here first. What
fails is `Poison`, with its reason: it is set aside and counted, and reading goes on behind it.

    progress marker    `read_marker`           into a `Marker`
    manifest           `read_manifest`         as it came; whether it fits the contract is `manifests.problem_of`
    gateway's record   `read_gateway_record`   as it came
    time of a record   `known_time_ms`         0 where it is none
    description        `checked_facts`         of a topic

Rows, keys and versions have their own place, as the loop over them runs for each record of a restore
(`replication/records.py`, `contract/rows.py`).

Decision: docs/decisions/0059-a-border-for-what-comes-from-topics.md
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp

from tablegate.gateway.contract.columns import TIMESTAMP_S_MAX, TIMESTAMP_S_MIN
from tablegate.gateway.contract.types import PARTITIONS_MAX, is_topic_name
from tablegate.gateway.kafka.log import TopicFacts
from tablegate.v1.changelog_pb2 import Manifest, ProgressMarker
from tablegate.v1.cluster_pb2 import GatewayRecord, GenerationAnnouncement, TableAnnouncement

TIME_MS_MAX = TIMESTAMP_S_MAX * 1_000 + 999  # beyond it no protobuf has a time
SCHEMA_DEPTH_MAX = 128  # six for each message in a row: see `columns.NESTING_MAX`
SCHEMAS_MAX = 1_000  # of one generation, each with its decoder
RUN_MAX = 2**63 - 1  # an offset of Kafka's is no larger
TEXT_BYTES_MAX = 255  # of names, ids and addresses that others choose

_GUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ENDPOINT = re.compile(r"[^\s\x00-\x1f/]+:[0-9]{1,5}")
_NANOS_MAX = 999_999_999


class Poison(Exception):
    """A record that cannot be applied; the message is the reason, without data."""


class Marker(NamedTuple):
    """A progress marker. `next_offsets`: by topic and partition, the first record of a source that is not read yet.

    `run`: of the job that wrote it; 0 where it is of none.
    """

    generation: int
    is_final: bool
    ends_batch: bool
    next_offsets: Mapping[tuple[str, int], int]
    run: int = 0


def known_time_ms(time_ms: int) -> int:
    """Return a record's time, and 0, long ago, for what is no time: the row is good all the same."""
    return time_ms if 0 <= time_ms <= TIME_MS_MAX else 0


def read_marker(value: bytes | None) -> Marker:
    """Return the progress marker of a record; raise `Poison`."""
    try:
        marker = ProgressMarker.FromString(value or b"")
    except DecodeError:
        raise Poison("progress marker does not parse") from None
    offsets: dict[tuple[str, int], int] = {}
    for source in marker.sources:
        if not is_topic_name(source.topic):
            raise Poison("progress marker names a source that can be no topic")
        for partition, next_offset in source.next_offsets.items():
            if partition < 0:
                raise Poison("progress marker has a partition below 0")
            if next_offset < 0:
                raise Poison("progress marker has an offset below 0")
            at = (source.topic, partition)
            offsets[at] = max(next_offset, offsets.get(at, 0))
    if len(offsets) > PARTITIONS_MAX:
        raise Poison(f"progress marker has more than {PARTITIONS_MAX} source partitions")
    if marker.run > RUN_MAX:
        raise Poison(f"progress marker has a run beyond {RUN_MAX}")
    return Marker(marker.generation, marker.final, marker.ends_batch, offsets, marker.run)


def read_manifest(table: str, value: bytes) -> Manifest:
    """Return the manifest of a table from the record of that key; raise `Poison`."""
    try:
        manifest = Manifest.FromString(value)
    except DecodeError:
        raise Poison("manifest does not parse") from None
    if manifest.table != table:
        raise Poison("manifest is of another table than its key")
    if manifest.changelog_topic and not is_topic_name(manifest.changelog_topic):
        raise Poison("manifest names a changelog that can be no topic")
    _check_text("manifest", "topic id", manifest.changelog_topic_id)
    for source in manifest.sources:
        if not is_topic_name(source.topic) or source.partition_count < 0:
            raise Poison("manifest names a source that can be no topic")
    if manifest.HasField("publish_time"):
        _check_time("manifest", manifest.publish_time)
    if len(manifest.foreign.schema_guids) > 2 * SCHEMAS_MAX:
        raise Poison(f"manifest has more than {2 * SCHEMAS_MAX} schema GUIDs")
    for guid, schema_id in manifest.foreign.schema_guids.items():
        if schema_id < 0 or not _GUID.fullmatch(guid):
            raise Poison("manifest has a schema GUID that is none")
    for what, schemas in (("value", manifest.value_schemas), ("key", manifest.foreign.key_schemas)):
        if len(schemas) > SCHEMAS_MAX:
            raise Poison(f"manifest has more than {SCHEMAS_MAX} {what} schemas")
        for schema_id, text in schemas.items():
            if schema_id < 0:
                raise Poison(f"manifest has a {what} schema with an id below 0")
            _check_schema(what, text)
    return manifest


def read_gateway_record(name: str, value: bytes) -> GatewayRecord:
    """Return what the gateway of a name announced; raise `Poison`."""
    try:
        record = GatewayRecord.FromString(value)
    except DecodeError:
        raise Poison("gateway's record does not parse") from None
    if not name or record.gateway_id != name:
        raise Poison("gateway's record is of another gateway than its key")
    _check_text("gateway's record", "name", name)
    _check_text("gateway's record", "zone", record.zone)
    _check_text("gateway's record", "endpoint", record.endpoint)
    if record.endpoint and not _ENDPOINT.fullmatch(record.endpoint):
        raise Poison("gateway's record has an endpoint that is not host:port")
    for table in record.tables:
        _check_announcement(table)
    return record


def checked_facts(facts: TopicFacts) -> TopicFacts:
    """Return the description of a topic; raise `Poison` where it is none that a topic can have.

    An end offset may be -1: the brokers did not say.
    """
    count = len(facts.start_offsets)
    if not 1 <= count <= PARTITIONS_MAX or len(facts.end_offsets) != count:
        raise Poison(f"description of the topic has {count} start and {len(facts.end_offsets)} end offsets")
    if min(*facts.start_offsets, *facts.end_offsets) < -1:
        raise Poison("description of the topic has an offset below 0")
    if facts.delete_retention_ms < 0:
        raise Poison("description of the topic has a delete.retention.ms below 0")
    return facts


def _check_announcement(table: TableAnnouncement) -> None:
    if not table.table:
        raise Poison("gateway's record has a table without a name")
    if table.replicas < 0:
        raise Poison("gateway's record wants fewer than 0 replicas")
    for generation in (table.serving, table.building):
        _check_partitions(generation)


def _check_partitions(generation: GenerationAnnouncement) -> None:
    _check_text("gateway's record", "topic id", generation.changelog_topic_id)
    count = generation.partition_count
    if not 0 <= count <= PARTITIONS_MAX:
        raise Poison(f"gateway's record has a table whose partitions are not 0 to {PARTITIONS_MAX}")
    # One of an earlier version does not say how many there are.
    if not _are_within(generation.partitions, count or PARTITIONS_MAX):
        raise Poison("gateway's record has a partition that its table has not")
    if len(generation.phases) != len(generation.partitions):
        raise Poison("gateway's record has not one phase for each partition")
    if len(generation.next_offsets) not in (0, len(generation.partitions)):
        raise Poison("gateway's record has not one offset for each partition")


def _are_within(numbers: Iterable[int], count: int) -> bool:
    return all(0 <= number < count for number in numbers)


def _check_text(kind: str, what: str, text: str) -> None:
    if len(text.encode()) > TEXT_BYTES_MAX:
        raise Poison(f"{kind} has a {what} of more than {TEXT_BYTES_MAX} bytes")
    if not text.isprintable():
        raise Poison(f"{kind} has a {what} with control characters")


def _check_time(kind: str, time: Timestamp) -> None:
    if not (TIMESTAMP_S_MIN <= time.seconds <= TIMESTAMP_S_MAX and 0 <= time.nanos <= _NANOS_MAX):
        raise Poison(f"{kind} has a time that is none")


def _check_schema(what: str, text: str) -> None:
    """Refuse what nobody can read; what is no Avro of the table is refused with the manifest, by the contract."""
    try:
        schema: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise Poison(f"manifest has a {what} schema that is not JSON, or nested too deep") from None
    level = [schema]
    for _ in range(SCHEMA_DEPTH_MAX):
        level = [child for each in level for child in _children(each)]
        if not level:
            return
    raise Poison(f"manifest has a {what} schema of more than {SCHEMA_DEPTH_MAX} levels")


def _children(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
