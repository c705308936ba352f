"""How a job works off a backlog, as its output topic has it: times are those at which Kafka got the records."""

import itertools
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import Consumer, Message, TopicPartition
from typing_extensions import override

from tablegate.gateway.contract.types import is_marker_key
from tablegate.v1 import changelog_pb2

LOOK_EVERY_S = 2.0
FEW_RECORDS = 100  # between two looks: an idle job writes a marker a second into each partition
STALLED_S = 300.0
ANSWER_TIMEOUT_S = 10.0
READ_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True)
class Pace:
    """Records a second: `cold` from the start of the job, `warm` of about the second half.

    `warm` is None where one batch had most of the records: then there is no second half.
    """

    cold: float
    warm: float | None


class Output(ABC):
    """What an output topic says of the records that are worked off. Not thread-safe."""

    def __init__(self) -> None:
        self._gained: Counter[int] = Counter()  # records by the millisecond at which their work was there

    @abstractmethod
    def take(self, message: Message) -> None:
        """Take the next record of the topic."""

    @property
    def records(self) -> int:
        """How many records are worked off."""
        return self._gained.total()

    def pace(self, started_s: float) -> Pace:
        """Return the pace of a job that was started at that time (seconds since 1970)."""
        times_ms = sorted(self._gained)
        done = list(itertools.accumulate(self._gained[time_ms] for time_ms in times_ms))
        # The last time before the half: a batch comes out at once, and just after the half would be in it.
        half = sum(1 for records in done if records * 2 <= done[-1]) - 1
        cold = done[-1] / (times_ms[-1] / 1000 - started_s)
        if half < 0 or done[half] * 10 < done[-1]:
            return Pace(cold, None)
        warm_s = (times_ms[-1] - times_ms[half]) / 1000
        return Pace(cold, (done[-1] - done[half]) / warm_s)


class Counted(Output):
    """Rows that tell how many records they are made of: each gains what it has more than the one before of its key."""

    def __init__(self, count_of: Callable[[Message], int]) -> None:
        super().__init__()
        self._count_of = count_of
        self._counts: dict[bytes, int] = {}

    @override
    def take(self, message: Message) -> None:
        key = message.key()
        if key is None or is_marker_key(key):
            return
        count = self._count_of(message)
        gained = count - self._counts.get(key, 0)
        if gained > 0:
            self._counts[key] = count
            self._gained[message.timestamp()[1]] += gained


class Marked(Output):
    """Progress markers of a changelog: each says how far the sources are worked off.

    Those of Real-time Mode come when its batch is over, which may be long after its last row: with `rows_end`, the last
    marker counts as of the last row.
    """

    def __init__(self, *, rows_end: bool) -> None:
        super().__init__()
        self._rows_end = rows_end
        self._marker_ms = self._row_ms = 0

    @override
    def take(self, message: Message) -> None:
        time_ms = message.timestamp()[1]
        if not is_marker_key(message.key()):
            self._row_ms = max(self._row_ms, time_ms)
        elif message.partition() == 0:  # each partition has the same markers
            marker = changelog_pb2.ProgressMarker.FromString(message.value() or b"")
            done = sum(offset for source in marker.sources for offset in source.next_offsets.values())
            if done > self.records:
                self._marker_ms = time_ms
                self._gained[time_ms] += done - self.records

    @override
    def pace(self, started_s: float) -> Pace:
        if self._rows_end:
            self._gained[self._row_ms] += self._gained.pop(self._marker_ms)
        return super().pace(started_s)


def follow(bootstrap: str, topic: str, output: Output, records: int, check: Callable[[], None]) -> None:
    """Read the topic until `output` has all `records`; raise `RuntimeError` where it stalls; ask `check` now and then.

    It is read only while little comes: a reader beside the job would take its cores.
    """
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False})
    try:
        partitions = list(consumer.list_topics(topic, ANSWER_TIMEOUT_S).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        end, moved_s, read = 0, time.monotonic(), 0
        while output.records < records:
            time.sleep(LOOK_EVERY_S)
            check()
            before = end
            end = sum(
                consumer.get_watermark_offsets(TopicPartition(topic, partition), ANSWER_TIMEOUT_S)[1]
                for partition in partitions
            )
            if end - before > FEW_RECORDS:
                moved_s = time.monotonic()
                continue
            read += _read(consumer, output, end - read)
            if time.monotonic() - moved_s > STALLED_S:
                raise RuntimeError(f"{topic} has {output.records:,} of {records:,} records, and no more come")
    finally:
        consumer.close()


def _read(consumer: Consumer, output: Output, wanted: int) -> int:
    read = 0
    while read < wanted:
        messages = consumer.consume(READ_AT_ONCE, timeout=1.0)
        for message in messages:
            if message.error() is None:
                output.take(message)
                read += 1
    return read
