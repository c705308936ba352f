"""Restores of topics that others write, of the same rows in Avro, Protobuf and JSON: flat ones, and some with lists."""

import io
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import fastavro
from confluent_kafka import Producer, TopicCollection
from confluent_kafka.admin import AdminClient
from google.protobuf import json_format

from tablegate.examples.samples import create_topic
from tablegate.gateway.contract.binder.binder import bind
from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.descriptors import load_descriptors
from tablegate.gateway.contract.foreign.topics import ForeignRows
from tablegate.gateway.contract.keys import murmur2_partition
from tablegate.gateway.contract.rows import row_reader
from tablegate.gateway.contract.value_schemas import fit_fields, row_schema
from tablegate.v1 import changelog_pb2
from tests.bench.changelog import PARTITIONS, SEED_TIME_US, rating
from tests.bench.contestants import Bench
from tests.bench.load import say
from tests.bench.nested import CONTRACT, order

_QUEUED_MAX = 300_000
_READ_RECORDS, _READS = 4_000, 5
_CODECS = {
    "Avro": changelog_pb2.VALUE_CODEC_AVRO_PLAIN,
    "Protobuf": changelog_pb2.VALUE_CODEC_PROTOBUF_PLAIN,
    "JSON": changelog_pb2.VALUE_CODEC_JSON,
}


class TheirTopic:
    """A topic of a table's rows in one codec. Keys are an int64."""

    def __init__(self, table: Table, codec: str, row: Callable[[int, int], Mapping[str, Any]]) -> None:
        self._table, self._codec, self._row = table, codec, row
        self._topic = f"their-{table.name}-{codec.lower()}"
        self._schema: Any = row_schema(table)
        self._parsed: Any = fastavro.parse_schema(dict(self._schema))
        self._read = row_reader(fit_fields("schema", table, json.dumps(self._schema)), start=0)

    def value(self, number: int) -> bytes:
        """Return the value of a row. All codecs have the same rows, the key's column among them."""
        body = io.BytesIO()
        fastavro.schemaless_writer(body, self._parsed, self._row(number, SEED_TIME_US))
        if self._codec == "Avro":
            return body.getvalue()
        message = self._table.row_class.FromString(self._read(body.getvalue()))
        if self._codec == "Protobuf":
            return bytes(message.SerializeToString())
        found = json_format.MessageToDict(message, preserving_proto_field_name=True)
        for item in found.get("items", ()):
            item["price"] = f"{int(item['price'].get('units', 0))}.{item['price'].get('nanos', 0):09}"
        return json.dumps(found, separators=(",", ":")).encode()

    def record(self, number: int) -> dict[str, Any]:
        """Return what `Producer.produce` takes for the row of a number."""
        key = number.to_bytes(8, "big", signed=True)
        partition = murmur2_partition(key, PARTITIONS)
        return {"topic": self._topic, "key": key, "value": self.value(number), "partition": partition}

    def seed(self, bootstrap: str, rows: int) -> None:
        """Create the topic, and write the rows 1 … rows."""
        create_topic(bootstrap, self._topic, PARTITIONS, {"cleanup.policy": "compact"})
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 500_000})
        for number in range(1, rows + 1):
            producer.produce(**self.record(number))
            if number % 10_000 == 0:
                producer.poll(0)
                while len(producer) > _QUEUED_MAX:
                    producer.poll(0.1)
        producer.flush()

    def publish(self, bootstrap: str, generation: int) -> None:
        """Write that the table is this topic."""
        admin = AdminClient({"bootstrap.servers": bootstrap})
        found = admin.describe_topics(TopicCollection([self._topic]))
        manifest = self.manifest(generation, str(found[self._topic].result().topic_id))
        producer = Producer({"bootstrap.servers": bootstrap})
        producer.produce("tables", manifest.SerializeToString(), key=self._table.name)
        producer.flush()

    def read_us(self) -> float:
        """Return the CPU that it takes to make a row of a record, without Kafka and store, in microseconds."""
        rows = ForeignRows(self._table, self.manifest(1, "id"))
        records = [
            (key, self.value(number), murmur2_partition(key, PARTITIONS))
            for number in range(_READ_RECORDS)
            for key in [number.to_bytes(8, "big")]
        ]
        before_s = time.process_time()
        for record in records:
            rows.read(*record)
        return (time.process_time() - before_s) / _READ_RECORDS * 1e6

    def manifest(self, generation: int, topic_id: str) -> changelog_pb2.Manifest:
        """Return what says that the table is this topic."""
        return self._table.manifest(
            generation=generation,
            changelog_topic=self._topic,
            changelog_topic_id=topic_id,
            partition_count=PARTITIONS,
            value_schemas={0: json.dumps(self._schema)} if self._codec == "Avro" else {},
            sources=[changelog_pb2.SourceTopic(topic=self._topic, partition_count=PARTITIONS, keyed=True)],
            foreign=changelog_pb2.ForeignTopic(
                key_codec=changelog_pb2.KEY_CODEC_INT64,
                value_codec=_CODECS[self._codec],
                record_partitioner=changelog_pb2.RECORD_PARTITIONER_MURMUR2,
            ),
        )


def measure(bench: Bench) -> None:
    """Record how many rows a second a gateway restores, of each codec, in turns."""
    ratings = bind(load_descriptors(bench.stack.protoset)).tables["ratings"]
    orders = bind(load_descriptors(CONTRACT)).tables["orders"]
    for table, contract, row, what in (
        (ratings, bench.stack.protoset, rating, "flat rows"),
        (orders, CONTRACT, order, "5 items and 2 maps"),
    ):
        topics = {codec: TheirTopic(table, codec, row) for codec in _CODECS}
        for codec, topic in topics.items():
            say(f"writing a topic of {bench.rows:,} rows in {codec}, {what}")
            topic.seed(bench.stack.bootstrap, bench.rows)
        rates: dict[str, list[float]] = {codec: [] for codec in _CODECS}
        for turn, (codec, topic) in enumerate([*topics.items()] * bench.repeat):
            topic.publish(bench.stack.bootstrap, generation=turn + 2)
            say(f"restoring {codec}, {what}")
            with bench.stack.gateway(contracts=[contract], name=f"their-{table.name}-{turn}") as gateway:
                rates[codec].append(gateway.restored_rows_per_second())
        cpu: dict[str, list[float]] = {codec: [topic.read_us()] for codec, topic in topics.items()}
        for _ in range(_READS - 1):
            for codec, topic in topics.items():
                cpu[codec].append(topic.read_us())
        for codec in _CODECS:
            bench.figures.record(f"CPU to read a record in {codec}, {what}", "tablegate", cpu[codec], "µs")
            bench.figures.record(f"restore of others' {codec}, {what}", "tablegate", rates[codec], "rows/s")
