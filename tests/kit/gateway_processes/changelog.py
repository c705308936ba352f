"""A ratings changelog in a real Kafka, written by hand: what the job would write, and the fold of it."""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BytesIO
from operator import itemgetter
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AdminClient
from fastavro import parse_schema, schemaless_writer

from tablegate.examples.samples import create_topic
from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.keys import decode_key, encode_key
from tablegate.gateway.contract.rows import row_schema
from tablegate.gateway.contract.types import VERSION_HEADER, is_marker_key, make_version, read_version
from tablegate.v1.changelog_pb2 import JOB_MODE_MICROBATCH, Manifest, ProgressMarker, SourceTopic
from tests.kit.histories.history import History
from tests.kit.programs.kafka import RawRecord, consume, delete_topic, new_topic
from tests.kit.table.filled import catalogue_of

SCHEMA_ID = 1
FLUSH_TIMEOUT_S = 60.0


def _described(admin: AdminClient, topic: str) -> Any:
    """Return the description of a topic, of which not all brokers know at once where it is new."""
    end_s = time.monotonic() + 20
    while True:
        try:
            return admin.describe_topics(TopicCollection([topic]))[topic].result(20)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART or time.monotonic() >= end_s:
                raise
        time.sleep(0.05)


def manifest_of(
    bootstrap: str, table: Table, *, topic: str, partition_count: int, source: str, generation: int = 1
) -> Manifest:
    """Return the manifest of a table whose changelog is a topic, and whose job reads a source of one partition."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    described = _described(admin, topic)
    manifest = table.manifest(
        generation=generation,
        changelog_topic=topic,
        changelog_topic_id=str(described.topic_id),
        partition_count=partition_count,
        value_schemas={SCHEMA_ID: json.dumps(row_schema(table))},
        sources=[SourceTopic(topic=source, partition_count=1)],
        mode=JOB_MODE_MICROBATCH,
    )
    manifest.publish_time.GetCurrentTime()
    return manifest


def value_writer(table: Table) -> Callable[[Mapping[str, object]], bytes]:
    """Return what makes a record's value of a row's columns."""
    schema: Any = parse_schema(dict(row_schema(table)))

    def value(row: Mapping[str, object]) -> bytes:
        out = BytesIO()
        schemaless_writer(out, schema, row)
        return b"\x00" + SCHEMA_ID.to_bytes(4, "big") + out.getvalue()

    return value


def found_record(table: Table, record: RawRecord, number_of: Callable[[Any], int]) -> list[Any]:
    """Return a record of a changelog as a `log` line of a history has it; `number_of` makes a number of its key."""
    if is_marker_key(record.key):
        return [record.offset, None, 0, False, record.timestamp_ms]
    [version] = [value for name, value in record.headers if name == VERSION_HEADER]
    number = number_of(decode_key(table.key, record.key))
    return [record.offset, number, read_version(version)[1], record.value is None, record.timestamp_ms]


def write_log(
    history: History,
    table: Table,
    records: Iterable[RawRecord],
    partitions: Iterable[int],
    *,
    generation: int = 1,
    number_of: Callable[[Any], int] = itemgetter(0),
) -> None:
    """Write into a history the records that are in a changelog; `number_of` makes a number of a key."""
    by_partition: dict[int, list[list[Any]]] = {partition: [] for partition in partitions}
    for record in records:
        by_partition[record.partition].append(found_record(table, record, number_of))
    for partition, found in by_partition.items():
        history.about("log", id=[generation, partition], end=found[-1][0] + 1 if found else 0, value=found)


class RatingsChangelog:
    """The ratings table's changelog, manifest and rows. `rows` is what a gateway must serve: id → (average, count)."""

    def __init__(self, bootstrap: str, *, partition_count: int = 2, generation: int = 1) -> None:
        self.bootstrap = bootstrap
        self.table = catalogue_of().tables["ratings"]
        self.partition_count = partition_count
        self.generation = generation
        self.tables_topic = new_topic(bootstrap, prefix="tables", cleanup_policy="compact")
        self.rows: dict[int, tuple[float, int]] = {}
        self._value = value_writer(self.table)
        self._sequences: dict[int, int] = {}
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "partitioner": "murmur2_random", "linger.ms": 5, "acks": "all"}
        )
        self.new_topic()

    def new_topic(self) -> None:
        """Begin a changelog in a topic of its own."""
        self.topic = new_topic(self.bootstrap, self.partition_count, "ratings-changelog", **_changelog_config())
        self.rows.clear()
        self._sequences.clear()

    def recreate_topic(self) -> None:
        """Delete the topic and make it again, empty, with the same name."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        delete_topic(self.bootstrap, self.topic)
        while self.topic in admin.list_topics(timeout=10).topics:
            pass
        config = {name.replace("_", "."): value for name, value in _changelog_config().items()}
        create_topic(self.bootstrap, self.topic, self.partition_count, config)
        self.rows.clear()
        self._sequences.clear()

    def manifest(self) -> Manifest:
        """Return the manifest of the present topic."""
        return manifest_of(
            self.bootstrap,
            self.table,
            topic=self.topic,
            partition_count=self.partition_count,
            source="ratings",
            generation=self.generation,
        )

    def publish(self, manifest: Manifest | None = None) -> None:
        """Write the manifest."""
        value = (manifest or self.manifest()).SerializeToString()
        self._producer.produce(self.tables_topic, key=self.table.name.encode(), value=value)
        self.flush()

    def sequence(self, movie_id: int) -> int:
        """Return the sequence of a movie's newest version; 0 where nothing was written."""
        return self._sequences.get(movie_id, 0)

    def write_log(self, history: History) -> None:
        """Write into a history what is in the changelog. Nothing is compacted away within hours."""
        records = consume(self.bootstrap, self.topic)
        write_log(history, self.table, records, range(self.partition_count), generation=self.generation)

    def put(self, ratings: Mapping[int, tuple[float, int]]) -> None:
        """Write rows: id → (average, count)."""
        for movie_id, (average, count) in ratings.items():
            row = {"movie_id": movie_id, "average_rating": average, "rating_count": count, "update_time": 0}
            self._write(movie_id, self._value(row))
            self.rows[movie_id] = (average, count)
        self.flush()

    def delete(self, movie_ids: Iterable[int]) -> None:
        """Write tombstones."""
        for movie_id in movie_ids:
            self._write(movie_id, None)
            self.rows.pop(movie_id, None)
        self.flush()

    def mark(self, source_next_offset: int = 0, batch_id: int = 1, *, final: bool = False) -> None:
        """Write a progress marker to every partition; a final one is the last record of the generation."""
        marker = ProgressMarker(generation=self.generation, batch_id=batch_id, final=final)
        marker.sources.add(topic="ratings").next_offsets[0] = source_next_offset
        marker.commit_time.GetCurrentTime()
        for partition in range(self.partition_count):
            self._producer.produce(self.topic, key=b"", value=marker.SerializeToString(), partition=partition)
        self.flush()

    def flush(self) -> None:
        """Wait until everything is written."""
        assert self._producer.flush(FLUSH_TIMEOUT_S) == 0

    def _write(self, movie_id: int, value: bytes | None) -> None:
        key = encode_key(self.table.key, [movie_id])
        sequence = self._sequences[movie_id] = self.sequence(movie_id) + 1
        version = make_version(self.generation, sequence)
        while True:
            try:
                self._producer.produce(self.topic, key=key, value=value, headers=[(VERSION_HEADER, version)])
                return
            except BufferError:
                self._producer.poll(0.1)


def _changelog_config() -> dict[str, str]:
    return {"cleanup_policy": "compact", "min_compaction_lag_ms": "21600000", "message_timestamp_type": "LogAppendTime"}


def many(count: int, average: float = 5.0) -> Iterator[tuple[int, tuple[float, int]]]:
    """Yield `count` rows."""
    return ((movie_id, (average, 1)) for movie_id in range(count))
