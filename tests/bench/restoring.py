"""What a row of a restore costs, by parts: the Kafka client, reading, the store.

It needs no Java: the broker is librdkafka's own, which keeps some 100,000 rows of a topic. With `--kafka`, a Kafka
keeps as many as are asked for.

Each figure is CPU of the replicator's thread, in microseconds a row, the least of some turns, so that other work on the
machine counts little. Keys come in a random order. `reading` is what a record takes to be read that lies in the
processor's caches, without anything beside: it differs least from run to run.
"""

import gc
import json
import math
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Annotated, Any

import typer
from confluent_kafka import Producer

from tablegate.examples.demo.kafka import Broker
from tablegate.examples.samples import create_topic
from tablegate.gateway.cluster.assignment import SoleGateway
from tablegate.gateway.contract.binder.binder import bind
from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.descriptors import load_descriptors
from tablegate.gateway.contract.rows import RowDecoder
from tablegate.gateway.contract.types import VERSION_HEADER, Offset, Partition
from tablegate.gateway.kafka.client import KafkaLog
from tablegate.gateway.kafka.log import Record, SystemClock, TopicFacts
from tablegate.gateway.replication.foreign import ForeignReader
from tablegate.gateway.replication.partitions import GenerationReplica
from tablegate.gateway.replication.records import RecordReader, SkippedRecords
from tablegate.gateway.replication.transfers import Transfers
from tablegate.gateway.server.replicator import YOUNG_OBJECTS_MAX
from tablegate.gateway.stores.base import Phase, Position
from tablegate.gateway.stores.lmdb.environment import DATA_FILE
from tablegate.gateway.stores.lmdb.store import LmdbStore
from tablegate.v1.changelog_pb2 import Manifest
from tests.bench.changelog import PARTITIONS, SEED_TIME_US, Changelog, rating
from tests.bench.nested import CONTRACT as ORDERS
from tests.bench.nested import order
from tests.bench.restores import TheirTopic
from tests.bench.stack import CONTRACT as RATINGS

READING_RECORDS, READING_TURNS = 2_000, 20
PARTITION_BYTES_MAX = 5 * 2**20  # librdkafka's broker keeps no more of one
WAIT_S = 30.0
QUEUED_MAX = 50_000  # half of what librdkafka lets wait
_TOPIC_ID = "bench"


@dataclass(frozen=True)
class Topic:
    """Records of a table, as many as the broker keeps."""

    name: str
    table: Table
    manifest: Manifest
    ends: tuple[Offset, ...]
    reading_us: float


@dataclass
class Cost:
    """Seconds of a restore, and what it left."""

    rows: int = 0
    fetch_s: float = 0.0
    read_s: float = 0.0
    store_s: float = 0.0
    file_bytes: int = 0

    @property
    def total_s(self) -> float:
        return self.fetch_s + self.read_s + self.store_s


def _records(rows: int) -> Iterator[tuple[str, Table, Manifest, Callable[[int], Mapping[str, Any]]]]:
    ratings = bind(load_descriptors(RATINGS)).tables["ratings"]
    orders = bind(load_descriptors(ORDERS)).tables["orders"]
    for kind, table, row in (("flat", ratings, rating), ("nested", orders, order)):
        ours = Changelog(table, f"{kind}-ours", row)
        yield (
            f"{kind}-ours",
            table,
            ours.manifest(_TOPIC_ID),
            lambda number, ours=ours: ours.record(number, SEED_TIME_US),
        )
        for codec in ("Avro", "Protobuf", "JSON"):
            theirs = TheirTopic(table, codec, row)
            yield f"{kind}-{codec}", table, theirs.manifest(1, _TOPIC_ID), theirs.record


def _written(
    producer: Producer, name: str, record: Callable[[int], Mapping[str, Any]], rows: int, bytes_max: float
) -> tuple[Offset, ...]:
    """Write records, each where its partition is not full; return where partitions end."""
    ends, sizes = [0] * PARTITIONS, [0] * PARTITIONS
    numbers = list(range(1, rows + 1))
    random.Random(1).shuffle(numbers)
    for number in numbers:
        made = {**record(number), "topic": name}
        partition, size = made["partition"], len(made["value"]) + 100
        if sizes[partition] + size > bytes_max:
            continue
        ends[partition] += 1
        sizes[partition] += size
        while len(producer) > QUEUED_MAX:
            producer.poll(0.1)
        producer.produce(**made)
        producer.poll(0)
    assert producer.flush(WAIT_S) == 0
    return tuple(map(Offset, ends))


def _reading_us(
    table: Table, manifest: Manifest, record: Callable[[int], Mapping[str, Any]], turns: int = READING_TURNS
) -> float:
    """Return the CPU that it takes to read a record, in microseconds."""
    made = (record(number) for number in count(1))
    some = islice((one for one in made if one["partition"] == 0), READING_RECORDS)
    records = [
        Record(Offset(offset), one["key"], one["value"], dict(one.get("headers", ())).get(VERSION_HEADER), 0)
        for offset, one in enumerate(some)
    ]
    reader: RecordReader | ForeignReader
    if manifest.HasField("foreign"):
        reader = ForeignReader(table, manifest)
    else:
        decoder = RowDecoder(table, manifest.value_schemas)
        reader = RecordReader(1, table=table, partition_count=PARTITIONS, decoder=decoder)
    position, costs_s = Position(Offset(0), 0, Phase.RESTORING, Offset(0)), []
    for _ in range(turns):
        before_s = time.thread_time()
        batch = reader.read(records, position, Partition(0), passed_ms=0)
        costs_s.append(time.thread_time() - before_s)
        assert len(batch.changes) == READING_RECORDS, batch.skipped
    return min(costs_s) / READING_RECORDS * 1e6


def restore(bootstrap: str, topic: Topic) -> Cost:
    """Restore a topic into an empty store."""
    cost = Cost()
    with tempfile.TemporaryDirectory() as directory, closing(KafkaLog(bootstrap)) as log:
        store = _TimedStore(Path(directory) / "store", cost)
        generation = GenerationReplica(
            table=topic.table,
            manifest=topic.manifest,
            copy=store.copy_of(topic.name, unwanted=()),
            facts=TopicFacts(_TOPIC_ID, (Offset(0),) * PARTITIONS, topic.ends, 86_400_000, leader_epochs=()),
            store=store,
            log=log,
            assignment=SoleGateway(),
            skipped=SkippedRecords(topic.table.name),
            clock=SystemClock(),
            caught_up_ms=0,
            is_new=True,
            on_move=lambda _: None,
            new_transfers=partial(
                Transfers, None, table=topic.table, store=store, assignment=SoleGateway(), clock=SystemClock(), asked={}
            ),
        )
        replicas = {replica.topic_partition: replica for replica in generation.replicas}
        while not generation.has_only_live:
            before_s = time.thread_time()
            found = log.fetch(records_max=store.changes_max, timeout_s=0.1)
            fetched_s = time.thread_time()
            cost.fetch_s += fetched_s - before_s
            stored_s = cost.store_s
            for fetched in found:
                replicas[fetched.topic_partition].apply(fetched)
            cost.read_s += time.thread_time() - fetched_s - (cost.store_s - stored_s)
        cost.rows = sum(replica.rows_applied for replica in generation.replicas)
        cost.file_bytes = (Path(directory) / "store" / DATA_FILE).stat().st_size
        store.close()
    return cost


class _TimedStore(LmdbStore):
    def __init__(self, path: Path, cost: Cost) -> None:
        super().__init__(path)
        self._cost = cost

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        before_s = time.thread_time()
        try:
            return super().apply(*args, **kwargs)
        finally:
            self._cost.store_s += time.thread_time() - before_s


def main(
    rows: Annotated[int, typer.Option(help="Rows of a topic, at most.")] = 200_000,
    repeat: Annotated[int, typer.Option()] = 3,
    topics: Annotated[str, typer.Option(help="Some of them, by the beginnings of their names.")] = "",
    kafka: Annotated[bool, typer.Option("--kafka", help="Start a Kafka, which keeps all rows; it needs Java.")] = False,
) -> None:
    """Measure."""
    gc.set_threshold(YOUNG_OBJECTS_MAX, 10, 10)  # as the replicator does
    with _kafka() if kafka else _mock() as (bootstrap, producer, bytes_max):
        found = []
        for name, table, manifest, record in _records(rows):
            if name.startswith(tuple(topics.split(","))):
                manifest.changelog_topic = name
                reading_us = _reading_us(table, manifest, record)
                if kafka:
                    create_topic(bootstrap, name, PARTITIONS, {"cleanup.policy": "compact"})
                ends = _written(producer, name, record, rows, bytes_max)
                found.append(Topic(name, table, manifest, ends, reading_us))
        gc.freeze()
        _measure(bootstrap, found, repeat)


@contextmanager
def _mock() -> Iterator[tuple[str, Producer, float]]:
    producer = Producer({"bootstrap.servers": "", "test.mock.num.brokers": 1, "log_level": 0})
    [broker] = producer.list_topics(timeout=WAIT_S).brokers.values()
    yield f"{broker.host}:{broker.port}", producer, PARTITION_BYTES_MAX * 3 // 4


@contextmanager
def _kafka() -> Iterator[tuple[str, Producer, float]]:
    with (
        tempfile.TemporaryDirectory() as directory,
        Broker(Path(directory, "kafka"), log_file=Path(directory, "kafka.log"), compiler=()) as broker,
    ):
        yield (
            broker.bootstrap,
            Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 20, "log_level": 0}),
            math.inf,
        )


def _measure(bootstrap: str, found: Sequence[Topic], repeat: int) -> None:
    costs: dict[str, list[Cost]] = {topic.name: [] for topic in found}
    for _ in range(repeat):
        for topic in found:
            costs[topic.name].append(restore(bootstrap, topic))
    for topic, each in zip(found, costs.values(), strict=True):
        least = min(each, key=lambda cost: cost.total_s / cost.rows)
        parts = {"fetch": least.fetch_s, "read": least.read_s, "store": least.store_s, "all": least.total_s}
        figures = {part: round(seconds / least.rows * 1e6, 2) for part, seconds in parts.items()}
        sizes = {"rows": least.rows, "file_mb": round(least.file_bytes / 1e6, 1)}
        print(json.dumps({"topic": topic.name, "reading": round(topic.reading_us, 2), **figures, **sizes}), flush=True)


if __name__ == "__main__":
    typer.run(main)
