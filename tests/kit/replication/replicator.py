"""A replicator over a broker in memory, and the job that writes there."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from io import BytesIO
from struct import pack
from typing import Any

import fastavro

from tablegate.gateway.contract.catalogue import Catalogue, Table
from tablegate.gateway.contract.keys import encode_key
from tablegate.gateway.contract.rows import row_schema
from tablegate.gateway.contract.types import MARKER_KEY, Partition, StoreId, make_version, run_key
from tablegate.gateway.kafka.log import Clock, TopicPartition
from tablegate.gateway.replication.indexing import BUILD_ROWS_MAX
from tablegate.gateway.replication.replicator import Replicator
from tablegate.gateway.stores.base import Position
from tablegate.gateway.telemetry.measures import Measures
from tablegate.internal.v1.store_pb2 import TableState
from tablegate.v1.changelog_pb2 import Manifest, ProgressMarker, SourceTopic
from tablegate.v1.status_pb2 import GetStatusResponse, TableStatus
from tests.kit.replication.memory_log import MemoryBroker, MemoryLog
from tests.kit.replication.state_observer import StateObserver
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import catalogue_of

PARTITIONS = 2
START_MS = 1_790_000_000_000


class FakeClock(Clock):
    """Time that a test moves."""

    def __init__(self) -> None:
        self.passed_s = 0.0

    def now_ms(self) -> int:
        return START_MS + round(self.passed_s * 1000)

    def monotonic_s(self) -> float:
        return self.passed_s

    def sleep(self, seconds: float) -> None:
        self.passed_s += seconds


def ratings() -> Table:
    return catalogue_of().tables["ratings"]


def key_of(movie_id: int) -> bytes:
    return encode_key(ratings().key, [movie_id])


@cache
def _avro_schema() -> Any:
    return fastavro.parse_schema(row_schema(ratings()))


def value_of(movie_id: int, count: int) -> bytes:
    body = BytesIO()
    columns: dict[str, Any] = {"movie_id": movie_id, "average_rating": 5.0, "rating_count": count, "update_time": None}
    fastavro.schemaless_writer(body, _avro_schema(), columns)
    return pack(">bI", 0, 1) + body.getvalue()


@dataclass
class Job:
    """Writes a generation of the ratings table. `table`: that of its contract, which places the rows.

    `run`: its number in rows and markers; 0 is without.
    """

    broker: MemoryBroker
    generation: int = 1
    topic_id: str = ""
    sequence: int = 0
    partitions: int = PARTITIONS
    table: Table = field(default_factory=ratings)
    run: int = 0

    @property
    def topic(self) -> str:
        return f"ratings-g{self.generation}-changelog"

    def source(self, partition: int) -> TopicPartition:
        return TopicPartition(self.topic, Partition(partition))

    def create(self, partitions: int | None = None) -> "Job":
        self.topic_id = self.broker.create(self.topic, partitions or self.partitions)
        return self

    def manifest(self, **changes: Any) -> Manifest:
        manifest = ratings().manifest(
            generation=self.generation,
            changelog_topic=self.topic,
            changelog_topic_id=self.topic_id,
            partition_count=self.partitions,
            value_schemas={1: json.dumps(row_schema(ratings()))},
            sources=[SourceTopic(topic="ratings", partition_count=2)],
        )
        manifest.MergeFrom(Manifest(**changes))
        return manifest

    def publish(self, manifest: Manifest | None = None) -> "Job":
        value = (manifest or self.manifest()).SerializeToString()
        self.broker.append(TopicPartition("tables", Partition(0)), b"ratings", value)
        return self

    def put(self, movie_ids: Iterable[int], *, count: int | None = None, delete: bool = False) -> None:
        for movie_id in movie_ids:
            self.sequence += 1
            sequence = self.sequence if count is None else count
            self.broker.append(
                self.source(self.table.partition_of(key_of(movie_id), self.partitions)),
                key_of(movie_id),
                None if delete else value_of(movie_id, sequence),
                version=make_version(self.generation, sequence) + (pack(">Q", self.run) if self.run else b""),
            )

    def mark(
        self,
        partition: int,
        offsets: dict[int, int],
        *,
        generation: int | None = None,
        topic: str = "ratings",
        final: bool = False,
    ) -> None:
        marker = ProgressMarker(generation=generation or self.generation, final=final, run=self.run)
        marker.sources.add(topic=topic, next_offsets=offsets)
        self.broker.append(self.source(partition), MARKER_KEY, marker.SerializeToString())

    def begin_run(self, run: int) -> None:
        """Write the marker before the first row of a run in every partition."""
        self.run = run
        marker = ProgressMarker(generation=self.generation, run=run)
        for partition in range(self.partitions):
            self.broker.append(self.source(partition), run_key(run), marker.SerializeToString())

    def end_batch(self) -> None:
        """End an atomic batch in every partition."""
        marker = ProgressMarker(generation=self.generation, ends_batch=True)
        for partition in range(self.partitions):
            self.broker.append(self.source(partition), MARKER_KEY, marker.SerializeToString())

    def mark_all(self, offsets: dict[int, int], *, topic: str = "ratings", final: bool = False) -> None:
        for partition in range(self.partitions):
            self.mark(partition, offsets, topic=topic, final=final)


@dataclass
class Gateway:
    """A replicator that a test steps, and what readers see in its store."""

    broker: MemoryBroker
    clock: FakeClock
    catalogue: Catalogue = field(default_factory=catalogue_of)
    full: bool = False
    log: type[MemoryLog] = MemoryLog
    index_rows_max: int = BUILD_ROWS_MAX
    measures: Measures = field(default_factory=Measures)

    def __post_init__(self) -> None:
        self.store = MemoryStore(free_bytes=lambda: 0 if self.full else 1)
        self.restart()

    def restart(self) -> None:
        log = self.log(self.broker)
        self.observer = StateObserver()
        self.replicator = Replicator(
            self.catalogue,
            log=log,
            store=self.store,
            clock=self.clock,
            on_move=self.observer,
            index_rows_max=self.index_rows_max,
            measures=self.measures,
        )

    def steps(self, count: int = 8, *, pass_s: float = 0.01) -> None:
        for _ in range(count):
            self.replicator.step(poll_s=0)
            self.observer.check(self.replicator, self.store)
            self.clock.passed_s += pass_s

    def seconds(self, seconds: float) -> None:
        """Let time pass, as an idle replicator does."""
        self.steps(round(seconds * 2) + 1, pass_s=0.5)

    def state(self) -> TableState:
        with self.store.snapshot() as snapshot:
            return snapshot.table("ratings") or TableState()

    def position(self, partition: int) -> Position:
        with self.store.snapshot() as snapshot:
            found = snapshot.position(StoreId(self.state().store_id), Partition(partition))
        assert found is not None
        return found

    def is_served(self) -> bool:
        """Return whether a worker would answer for every partition."""
        state = self.state()
        if state.problem or not state.HasField("manifest"):
            return False
        return all(self.position(number).phase.name == "LIVE" for number in range(state.manifest.partition_count))

    def rows(self) -> dict[int, int]:
        """Return rating counts by movie, of all partitions."""
        found = {}
        with self.store.snapshot() as snapshot:
            for partition in range(PARTITIONS):
                store_id = StoreId(self.state().store_id)
                for _, row in snapshot.range(store_id, Partition(partition), start=b"", end=None, limit=10_000):
                    message: Any = ratings().row_class.FromString(row)
                    found[message.movie_id] = message.rating_count
        return found

    def status(self) -> GetStatusResponse:
        with self.store.snapshot() as snapshot:
            return GetStatusResponse.FromString(snapshot.status())

    def table_status(self) -> TableStatus:
        return self.status().tables[0]
