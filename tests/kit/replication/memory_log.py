"""A log in this process's memory, with compaction: for tests and the simulator."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count

from typing_extensions import override

from tablegate.gateway.contract.foreign.framing import SchemaIds
from tablegate.gateway.contract.lineage import UNKNOWN_EPOCH, EpochRun, Place, continued, lineage_of, place_at
from tablegate.gateway.contract.types import VERSION_BYTES, Offset, Partition
from tablegate.gateway.kafka.log import Fetched, Log, LogUnavailable, Record, RecordId, TopicFacts, TopicPartition

DELETE_RETENTION_MS = 86_400_000  # Kafka's default: a day


@dataclass(slots=True)
class _Topic:
    topic_id: str
    delete_retention_ms: int
    records: list[list[Record]]
    starts: list[Offset]
    ends: list[Offset]
    epochs: list[list[tuple[int, Offset]]]  # by partition: each leader epoch, and where it began
    retention_ms: int | None = None  # None: records are compacted, not deleted


@dataclass(slots=True)
class MemoryBroker:
    """Topics, for any number of `MemoryLog`s. `is_up` False: nobody answers."""

    now_ms: Callable[[], int]
    is_up: bool = True
    _topics: dict[str, _Topic] = field(default_factory=dict)
    _ids: "count[int]" = field(default_factory=lambda: count(1))

    def create(
        self,
        topic: str,
        partitions: int,
        *,
        delete_retention_ms: int = DELETE_RETENTION_MS,
        retention_ms: int | None = None,
    ) -> str:
        """Make a topic, in place of one that was there; return its id. With `retention_ms` old records are deleted."""
        topic_id = f"topic-{next(self._ids)}"
        zeros = [Offset(0)] * partitions
        records: list[list[Record]] = [[] for _ in range(partitions)]
        epochs = [[(0, Offset(0))] for _ in range(partitions)]
        made = _Topic(topic_id, delete_retention_ms, records, list(zeros), list(zeros), epochs, retention_ms)
        self._topics[topic] = made
        return topic_id

    def delete(self, topic: str) -> None:
        """Remove a topic."""
        del self._topics[topic]

    def append(
        self,
        source: TopicPartition,
        key: bytes | None,
        value: bytes | None,
        *,
        version: bytes | None = None,
        schema_ids: SchemaIds | None = None,
    ) -> Offset:
        """Write a record; return its offset."""
        topic = self._topics[source.topic]
        offset = topic.ends[source.partition]
        topic.records[source.partition].append(Record(offset, key, value, version, self.now_ms(), schema_ids))
        topic.ends[source.partition] = Offset(offset + 1)
        return offset

    def compact(self, source: TopicPartition, *, tombstones: bool = False) -> None:
        """Keep the last record of each key; with `tombstones`, remove those too."""
        records = self._topics[source.topic].records[source.partition]
        last = {record.key: record for record in records}
        records[:] = sorted(record for record in last.values() if not (tombstones and record.value is None))

    def repeat(self, source: TopicPartition, wanted: RecordId) -> bool:
        """Write a record again behind all others; return whether it was there."""
        records = self._topics[source.topic].records[source.partition] if source.topic in self._topics else []
        for record in records[bisect_left(records, (wanted.offset,)) :][:1]:
            version = record.version and record.version[:VERSION_BYTES]  # without the run
            if (record.offset, record.key, version) == wanted:
                self.append(source, record.key, record.value, version=version)
                return True
        return False

    def truncate_before(self, source: TopicPartition, offset: Offset) -> None:
        """Remove the records before `offset`."""
        topic = self._topics[source.topic]
        records = topic.records[source.partition]
        del records[: bisect_left(records, (offset,))]
        topic.starts[source.partition] = offset

    def truncate_from(self, source: TopicPartition, offset: Offset) -> None:
        """Lose the records at and after `offset`, as after an unclean election."""
        topic = self._topics[source.topic]
        records = topic.records[source.partition]
        del records[bisect_left(records, (offset,)) :]
        topic.ends[source.partition] = offset
        self.elect(source)

    def elect(self, source: TopicPartition) -> None:
        """Elect a leader: what comes next is of a leader epoch that there never was."""
        topic = self._topics[source.topic]
        epochs, end = topic.epochs[source.partition], topic.ends[source.partition]
        newest = epochs[-1][0] + 1
        epochs[:] = [(epoch, start) for epoch, start in epochs if start < end] + [(newest, end)]

    def epoch_at(self, source: TopicPartition, offset: Offset) -> int:
        """Return the leader epoch of the record that is at an offset, or was before it was compacted away."""
        epochs = self._topics[source.topic].epochs[source.partition]
        return next((epoch for epoch, start in reversed(epochs) if start <= offset), UNKNOWN_EPOCH)

    def facts(self, topic: str) -> TopicFacts | None:
        """Return what a look sees."""
        found = self._topics.get(topic)
        if found is None:
            return None
        epochs = tuple(epochs[-1][0] for epochs in found.epochs)
        return TopicFacts(
            found.topic_id,
            tuple(found.starts),
            tuple(found.ends),
            found.delete_retention_ms,
            epochs,
            deletes_old=found.retention_ms is not None,
            retention_ms=-1 if found.retention_ms is None else found.retention_ms,
        )

    def has_news(self, source: TopicPartition, place: Place) -> bool:
        """Return whether `read` may have anything for whoever is at a place."""
        topic = self._topics.get(source.topic)
        if topic is None or place.next_offset != topic.ends[source.partition]:
            return True
        return place.leader_epoch not in (UNKNOWN_EPOCH, topic.epochs[source.partition][-1][0])

    def read(
        self, source: TopicPartition, start: Offset, records_max: int, *, place: Place | None = None
    ) -> Fetched | None:
        """Return what is from `start` on, to whoever is at that place; None where the topic is gone."""
        topic = self._topics.get(source.topic)
        if topic is None:
            return None
        place, end = place or Place(start), topic.ends[source.partition]
        is_other = place.leader_epoch not in (UNKNOWN_EPOCH, self.epoch_at(source, Offset(place.read_end - 1)))
        if is_other or not topic.starts[source.partition] <= start <= end:
            return Fetched(source, [], start, lost=True)
        records = topic.records[source.partition]
        first = bisect_left(records, (start,))
        found = records[first : first + records_max]
        at_end = first + len(found) == len(records)
        next_offset = end if at_end else Offset(found[-1].offset + 1) if found else start
        runs = continued(
            (),
            [EpochRun(self.epoch_at(source, each.offset), each.offset, Offset(each.offset + 1)) for each in found],
        )
        return Fetched(source, found, next_offset, runs=runs)


class MemoryLog(Log):
    """A client of a `MemoryBroker`. `refuses_repeats`: why it may append no record again; "" where it may."""

    refuses_repeats = ""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self._positions: dict[TopicPartition, Place] = {}
        self._begun: set[TopicPartition] = set()

    @override
    def describe_topic(self, topic: str) -> "Future[TopicFacts | None]":
        answer: Future[TopicFacts | None] = Future()
        if self._broker.is_up:
            answer.set_result(self._broker.facts(topic))
        else:
            answer.set_exception(LogUnavailable("the broker is down"))
        return answer

    @override
    def follow(self, source: TopicPartition, place: Place) -> None:
        self.unfollow(source)
        self._positions[source] = place

    @override
    def unfollow(self, source: TopicPartition) -> None:
        self._positions.pop(source, None)
        self._begun.discard(source)

    @override
    def fetch(self, *, records_max: int, timeout_s: float) -> list[Fetched]:
        if not self._broker.is_up:
            return []
        fetched = []
        for source, place in list(self._positions.items()):
            if source in self._begun and not self._broker.has_news(source, place):
                continue  # most of the time: simulations ask a hundred thousand times
            found = self._broker.read(source, place.next_offset, records_max, place=place)
            is_news = found is not None and (found.lost or found.next_offset > place.next_offset)
            if found is None or not (is_news or source not in self._begun):
                continue
            fetched.append(found)
            self._begun.add(source)
            lineage = continued(lineage_of(place), found.runs)
            self._positions[source] = place_at(lineage, found.next_offset)
            if found.lost:
                self.unfollow(source)
        return fetched

    @override
    def create(self, topic: str) -> "Future[None]":
        answer: Future[None] = Future()
        if self._broker.is_up:
            if self._broker.facts(topic) is None:
                self._broker.create(topic, 1)
            answer.set_result(None)
        else:
            answer.set_exception(LogUnavailable("the broker is down"))
        return answer

    @override
    def append(self, topic: str, key: bytes, value: bytes | None) -> None:
        if self._broker.is_up and self._broker.facts(topic) is not None:
            self._broker.append(source(topic, 0), key, value)

    @override
    def repeat(self, source: TopicPartition, records: Sequence[RecordId]) -> "Future[list[RecordId]]":
        answer: Future[list[RecordId]] = Future()
        why = self.refuses_repeats if self._broker.is_up else "the broker is down"
        if why:
            answer.set_exception(LogUnavailable(why))
        else:
            answer.set_result([each for each in records if self._broker.repeat(source, each)])
        return answer

    @override
    def another(self) -> "MemoryLog":
        return type(self)(self._broker)

    @override
    def trouble(self) -> str:
        return "" if self._broker.is_up else "the broker is down"

    @override
    def close(self) -> None:
        self._positions.clear()


def source(topic: str, partition: int) -> TopicPartition:
    """Return a source of plain numbers."""
    return TopicPartition(topic, Partition(partition))


class ReadingLog(MemoryLog):
    """A client that knows the lowest place from which it has read each partition."""

    followed: dict[str, int]

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self.followed = {}

    @override
    def follow(self, source: TopicPartition, place: Place) -> None:
        super().follow(source, place)
        self.followed[f"{source.topic}/{source.partition}"] = place.next_offset
