"""A changelog written without a job, that of ratings or another: its rows and its manifest."""

import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import fastavro
from confluent_kafka import Producer, TopicCollection
from confluent_kafka.admin import AdminClient

from tablegate.examples.samples import create_topic
from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.keys import encode_key
from tablegate.gateway.contract.rows import row_schema
from tablegate.gateway.contract.types import VERSION_HEADER, make_version
from tablegate.v1 import changelog_pb2

TOPIC = "ratings-g1-changelog"
SOURCE_TOPIC = "ratings"
PARTITIONS = 4
SEED_TIME_US = 1_700_000_000_000_000  # of the rows that were there first: whatever is written later is newer
_QUEUED_MAX = 300_000


def rating(movie: int, time_us: int) -> dict[str, Any]:
    return {"movie_id": movie, "average_rating": 5.0, "rating_count": 1, "update_time": time_us}


class Changelog:
    """Encodes rows of `table`. A row's sequence is its time: so every writer's rows are newer than those before.

    `row`: from a number, which is the key, and a time to a row's columns.
    """

    def __init__(self, table: Table, topic: str = TOPIC, row: Callable[[int, int], Mapping[str, Any]] = rating) -> None:
        self._table = table
        self._topic = topic
        self._row = row
        self._schema = row_schema(table)
        self._parsed: Any = fastavro.parse_schema(dict(self._schema))

    def record(self, number: int, time_us: int) -> dict[str, Any]:
        """Return what `Producer.produce` takes for the row of a number written at `time_us`, since 1970."""
        key = encode_key(self._table.key, [number])
        out = io.BytesIO(b"\x00\x00\x00\x00\x01")
        out.seek(5)
        fastavro.schemaless_writer(out, self._parsed, self._row(number, time_us))
        return {
            "topic": self._topic,
            "key": key,
            "value": out.getvalue(),
            "partition": self._table.partition_of(key, PARTITIONS),
            "headers": [(VERSION_HEADER, make_version(1, time_us))],
        }

    def seed(self, bootstrap: str, rows: int) -> None:
        """Create the topics, and write the rows 1 … rows and the manifest."""
        settings = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}
        create_topic(bootstrap, self._topic, PARTITIONS, settings)
        create_topic(bootstrap, "tables", 1, {"cleanup.policy": "compact"})
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 500_000})
        for number in range(1, rows + 1):
            producer.produce(**self.record(number, SEED_TIME_US))
            if number % 10_000 == 0:
                producer.poll(0)
                while len(producer) > _QUEUED_MAX:
                    producer.poll(0.1)
        producer.flush()
        admin = AdminClient({"bootstrap.servers": bootstrap})
        found = admin.describe_topics(TopicCollection([self._topic]))
        manifest = self.manifest(str(found[self._topic].result().topic_id))
        producer.produce("tables", manifest.SerializeToString(), key=self._table.name)
        producer.flush()

    def manifest(self, topic_id: str) -> changelog_pb2.Manifest:
        """Return what says that the table is this topic."""
        return self._table.manifest(
            generation=1,
            changelog_topic=self._topic,
            changelog_topic_id=topic_id,
            partition_count=PARTITIONS,
            value_schemas={1: json.dumps(self._schema)},
            sources=[changelog_pb2.SourceTopic(topic=SOURCE_TOPIC, partition_count=1, keyed=True)],
            mode=changelog_pb2.JOB_MODE_REALTIME,
        )
