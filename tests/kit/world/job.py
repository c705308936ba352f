"""The job of a world: it folds events into rows, one generation after the other, and writes as real jobs do.

The row of a key is the number of its newest event, so a row says by itself which version it is of.
"""

import random
from dataclasses import dataclass, field
from functools import cache
from io import BytesIO
from struct import pack
from typing import Any

import fastavro

from tablegate.gateway.contract.rows import row_schema
from tablegate.gateway.contract.types import Partition, make_version
from tablegate.gateway.kafka.log import TopicPartition
from tests.kit.replication.replicator import Job, key_of, ratings
from tests.kit.world.broker import WorldBroker
from tests.kit.world.checker import TrueLog

SOURCE_PARTITIONS = 2


@cache
def _schema() -> Any:
    return fastavro.parse_schema(row_schema(ratings()))


@cache
def key_bytes(number: int) -> bytes:
    """Return the bytes of a key."""
    return key_of(number)


def value_of(number: int, count: int) -> bytes:
    """Return the Avro value of a row."""
    body = BytesIO()
    columns = {"movie_id": number, "average_rating": 5.0, "rating_count": count, "update_time": None}
    fastavro.schemaless_writer(body, _schema(), columns)
    return pack(">bI", 0, 1) + body.getvalue()


@dataclass
class Events:
    """What a job reads: keys, and whether the event deletes. The first event has number 1."""

    keys: list[tuple[int, bool]] = field(default_factory=list)

    def add(self, key: int, *, deletes: bool) -> int:
        """Append an event; return its number."""
        self.keys.append((key, deletes))
        return len(self.keys)

    @property
    def count(self) -> int:
        """Return how many events there are."""
        return len(self.keys)


def source_of(event: int) -> tuple[int, int]:
    """Return source partition and offset of an event."""
    return (event - 1) % SOURCE_PARTITIONS, (event - 1) // SOURCE_PARTITIONS


def next_offsets(done: int) -> dict[int, int]:
    """Return the next offset of each source partition, after so many events."""
    return {number: (done - number + SOURCE_PARTITIONS - 1) // SOURCE_PARTITIONS for number in range(SOURCE_PARTITIONS)}


class WorldJob:
    """Keeps one generation. `done`: how many events are in its rows. It ends with `finish`."""

    def __init__(
        self, generation: int, events: Events, broker: WorldBroker, true_log: TrueLog, partitions: int
    ) -> None:
        self.generation = generation
        self.done = 0
        self.is_finished = False
        self.partitions = partitions
        self._events = events
        self._broker = broker
        self._true_log = true_log
        self._written: list[tuple[int, int, bool]] = []  # key, event, whether it deletes
        self._numbers: dict[bytes, int] = {}
        self.kit = Job(broker, generation=generation, partitions=partitions).create()
        broker.changelogs[self.kit.topic] = generation
        self.runs: list[int] = []
        self.begin_run()

    def begin_run(self) -> bool:
        """Begin a run, as each start of a job does; return whether it is the highest.

        It is not where the changelog's first partition has lost its tail: such a changelog is to be built anew.
        """
        number = self.number()
        if self.runs and number <= self.runs[-1]:
            self.kit.run = self.runs[-1]
            return False
        self.runs.append(number)
        self.kit.begin_run(number)
        return True

    def number(self) -> int:
        """Write what gives a run its number, and return that; the run has not begun."""
        self.kit.run = 0
        self.kit.mark(0, {})
        return self._true_log.end(self.generation, 0)

    def wake(self, chance: random.Random, *, number: int) -> None:
        """Write as an earlier run does that was frozen: events that this one has done or will do, and other rows.

        `number`: of a run that was frozen before it began, and may begin now.
        """
        run = chance.choice([*self.runs[:-1], number])
        if run == number:
            self.kit.begin_run(number)
            self.kit.run = self.runs[-1]
        newest = [(event, key) for event, (key, _) in enumerate(self._events.keys, start=1)][-8:]
        for event, key in chance.sample(newest, min(len(newest), chance.randint(1, 8))):
            encoded, version = key_bytes(key), make_version(self.generation, event)
            self._numbers[encoded] = key
            self._broker.rows.setdefault((encoded, version), (key, None if self._events.keys[event - 1][1] else event))
            value = None if chance.random() < 0.3 else value_of(key, event + 500_000)
            source = self.source(ratings().partition_of(encoded, self.partitions))
            self._broker.append(source, encoded, value, version=version + pack(">Q", run))
        if chance.random() < 0.5:
            self.kit.run = run
            self.kit.mark_all({0: 10**6, 1: 10**6}, final=chance.random() < 0.5)
            self.kit.run = self.runs[-1]

    def publish(self) -> None:
        """Publish the manifest."""
        self.kit.publish()

    def source(self, partition: int) -> TopicPartition:
        """Return a partition of the changelog."""
        return TopicPartition(self.kit.topic, Partition(partition))

    def catch_up(self) -> None:
        """Write the newest row of each key, as a rebuild does that reads its sources in one batch."""
        newest = {key: (event, deletes) for event, (key, deletes) in enumerate(self._events.keys, start=1)}
        for key, (event, deletes) in sorted(newest.items()):
            if not deletes:
                self._write(key, event, deletes=False)
        self.done = self._events.count

    def work(self, most: int, *, with_markers: bool = True) -> None:
        """Fold more events, at most so many; then write progress markers."""
        for event in range(self.done + 1, min(self.done + most, self._events.count) + 1):
            key, deletes = self._events.keys[event - 1]
            self._write(key, event, deletes=deletes)
            self.done = event
        if with_markers:
            self.kit.mark_all(next_offsets(self.done))

    def finish(self) -> None:
        """Write the last markers."""
        self.kit.mark_all(next_offsets(self.done), final=True)
        for partition in range(self.partitions):
            self._true_log.end_with(self.generation, partition, self._true_log.end(self.generation, partition) - 1)
        self.is_finished = True

    def repeat(self, chance: random.Random, most: int) -> None:
        """Write its last batch again, as a restart from a checkpoint does."""
        first = max(0, len(self._written) - chance.randint(1, most))
        for key, event, deletes in self._written[first:]:
            self._append(key, event, deletes=deletes)

    def delayed(self, chance: random.Random, most: int) -> None:
        """Write some of its oldest records again, as a task does that everybody took for dead."""
        for key, event, deletes in chance.sample(self._written, min(most, len(self._written))):
            self._append(key, event, deletes=deletes)

    def is_stale(self, partition: int, key: bytes | None) -> bool:
        """Return whether the last record of a key is another one than that of its highest version."""
        fenced = self._broker.fenced.get(self.source(partition), {})
        number = self._numbers.get(key or b"")
        if number is None:
            return False
        [branch] = self._true_log.branches(self.generation, partition, is_settled=True)
        records = branch.by_key.get(number, [])
        if fenced.get(key or b"", -1) > (records[-1].offset if records else -1):
            return True
        return bool(records) and records[-1].version != max(record.version or (0, 0) for record in records)

    def _write(self, key: int, event: int, *, deletes: bool) -> None:
        self._written.append((key, event, deletes))
        self._append(key, event, deletes=deletes)

    def _append(self, key: int, event: int, *, deletes: bool) -> None:
        encoded, version = key_bytes(key), make_version(self.generation, event)
        self._numbers[encoded] = key
        self._broker.rows[encoded, version] = (key, None if deletes else event)
        partition = ratings().partition_of(encoded, self.partitions)
        value = None if deletes else value_of(key, event)
        self._broker.append(self.source(partition), encoded, value, version=version + pack(">Q", self.runs[-1]))
