"""Progress markers: after each batch, a record in every partition of the changelog.

A reader that has come to a marker has everything that the batch changed, knows how far the sources were read, and
knows that a silent partition is current.

Decision: docs/decisions/0003-an-empty-key-marks-progress.md
Decision: docs/decisions/0047-replace-deaf-kafka-clients.md
Decision: docs/decisions/0080-runs-fence-frozen-jobs.md
Decision: docs/decisions/0182-a-run-has-its-number-before-it-asks.md
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Message, Producer

from tablegate.gateway.contract.kafka_refusals import Right
from tablegate.gateway.contract.kafka_settings import settings_of
from tablegate.gateway.contract.types import MARKER_KEY, run_key
from tablegate.jobs.errors import JobError
from tablegate.jobs.kafka.job_group import Tenure
from tablegate.jobs.kafka.topics import AWAY, QUIET_CLIENT, Topic, broker_away, why_not
from tablegate.jobs.log import log
from tablegate.v1 import changelog_pb2

FLUSH_TIMEOUT_S = 5.0  # for the last markers, when the job ends
SourceOffsets = Mapping[str, Mapping[int, int]]
"""Next offsets of source topics, by topic and partition."""

DELIVERY_TIMEOUT_MS = 10_000  # by then there are newer markers


class Markers:
    """Writes the markers of one changelog. One thread calls it; `publish` does not wait for Kafka."""

    def __init__(self, bootstrap: str, changelog: Topic, generation: int) -> None:
        self._bootstrap = bootstrap
        self._changelog = changelog
        self._generation = generation
        self._run = 0  # until one is begun
        self._is_failing = False
        self._producer = self._new_producer()
        self.written_s = time.time()
        """When Kafka had a marker, as far as is known; before the first one, when this began."""
        self.kafka_time_ms: int | None = None
        """Kafka's time of the newest marker that it had; None before."""
        self.tenure = Tenure("", 0)
        """In which its run began; nobody's before."""

    def _new_producer(self) -> Producer:
        return Producer(
            {
                **settings_of(self._bootstrap).librdkafka(),
                "acks": "all",
                "linger.ms": 0,
                "max.in.flight.requests.per.connection": 1,  # so a retried marker never arrives after a newer one
                "message.timeout.ms": DELIVERY_TIMEOUT_MS,
                **QUIET_CLIENT,
            }
        )

    def publish(self, progress: Mapping[str, Any]) -> dict[str, dict[int, int]]:
        """Write the marker of a committed batch, by Spark's progress report of it; return its source offsets."""
        offsets = source_offsets(progress)
        marker = _marker(offsets, self._generation, batch_id=progress["batchId"])
        marker.run = self._run
        try:
            self._write(marker, self._note, range(self._changelog.partition_count))
        except (BufferError, KafkaException) as error:
            self._fail(str(error))
        return offsets

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._fail(error.str())
        else:
            self.written_s = time.time()
            self._note_time(message)

    def _note_time(self, message: Message) -> None:
        kind, time_ms = message.timestamp()
        if kind == TIMESTAMP_LOG_APPEND_TIME:  # else it is ours, and no broker's
            self.kafka_time_ms = time_ms

    def _fail(self, why: str) -> None:
        if not self._is_failing:
            self._is_failing = True
            log("marker_lost", topic=self._changelog.name, error=why)

    def publish_batch(self, batch_id: int) -> None:
        """Write the marker of a batch that read no topics. Wait until Kafka has it; raise `JobError`."""
        marker = _marker({}, self._generation, batch_id=batch_id)
        marker.run = self._run
        self._write_all(marker, range(self._changelog.partition_count), lambda _: None)

    def begin_run(self, tenure: Callable[[], Tenure]) -> int:
        """Begin a run, and return its number: gateways drop what earlier runs write from now on. Wait for Kafka.

        The number is an offset in the first partition: each run gets another one, and a later one gets a higher one,
        without anybody who keeps count. The second record, in all partitions, says it to the gateways: it has a key of
        its own, so that a restore reads it before the rows that do not count.

        `tenure` is asked before the number is there and after, and raises where another one has the table. So whoever
        takes it over later has a higher number, whenever the second record comes; and nobody has one who had it before.
        """
        asked = tenure()
        while True:
            number, before, asked = self._new_number(), asked, tenure()
            if asked == before:
                break
        marker = _marker({}, self._generation, batch_id=-1)
        marker.run = self._run = number
        self._write_all(marker, range(self._changelog.partition_count), lambda _: None, key=run_key(number))
        self.tenure = asked  # now that the run has begun: who asks again after an error begins another one
        return number

    def _new_number(self) -> int:
        """Return the number of a run, which means nothing yet."""
        offsets: list[int] = []
        marker = _marker({}, self._generation, batch_id=-1)
        self._write_all(marker, range(1), lambda message: offsets.append(message.offset() or 0))
        return max(offsets) + 1

    def publish_final(self, offsets: SourceOffsets) -> None:
        """Write the final marker: all rows are made from source records before `offsets`. Wait until Kafka has it."""
        marker = _marker(offsets, self._generation, batch_id=-1)
        marker.final = True
        self._write_all(marker, range(self._changelog.partition_count), lambda _: None)

    def _write_all(
        self,
        marker: changelog_pb2.ProgressMarker,
        partitions: range,
        on_written: Callable[[Message], None],
        *,
        key: bytes = MARKER_KEY,
    ) -> None:
        """Write a marker to these partitions, and return when Kafka has it; raise `JobError`.

        Whoever writes it again after `BrokersAway` does so by another client: this one may be deaf for good.
        """
        errors: list[str] = []
        is_away = False

        def note(error: KafkaError | None, message: Message) -> None:
            nonlocal is_away
            if error is None:
                self._note_time(message)
                on_written(message)
            else:
                is_away = is_away or error.code() in AWAY
                errors.append(why_not(self._bootstrap, error, Right("Write", "topic", self._changelog.name)))

        try:
            self._write(marker, note, partitions, key=key)
        except (BufferError, KafkaException) as error:
            errors.append(str(error))
        if self._producer.flush(2 * DELIVERY_TIMEOUT_MS / 1000) > 0 or is_away:
            self._is_failing = True
            raise broker_away(self._bootstrap)
        if errors:
            topic = self._changelog.name
            raise JobError(f'a marker cannot be written to topic "{topic}" at {self._bootstrap}: {errors[0]}')

    def _write(
        self,
        marker: changelog_pb2.ProgressMarker,
        on_delivery: Callable[[KafkaError | None, Message], None],
        partitions: range,
        *,
        key: bytes = MARKER_KEY,
    ) -> None:
        marker.commit_time.GetCurrentTime()
        value = marker.SerializeToString()
        self._producer.poll(0)
        if self._is_failing:  # it may never connect again, see `JobGroup._join_again`
            self._producer.purge()
            self._producer.poll(0)
            self._producer, self._is_failing = self._new_producer(), False
        for partition in partitions:
            self._producer.produce(
                self._changelog.name, key=key, value=value, partition=partition, on_delivery=on_delivery
            )

    def close(self) -> None:
        """Wait up to `FLUSH_TIMEOUT_S` for the last markers."""
        self._producer.flush(FLUSH_TIMEOUT_S)


def source_offsets(progress: Mapping[str, Any], which: str = "endOffset") -> dict[str, dict[int, int]]:
    """Return how far a batch has read the sources, or the batches before it: `which` is "startOffset" then.

    Of sides with the same topic, the slowest counts. Sources that are no topics, as a function may read, are left out.
    """
    found: dict[str, dict[int, int]] = {}
    for source in progress["sources"]:
        read = source[which]
        for topic, next_offsets in read.items() if isinstance(read, Mapping) else ():
            if not isinstance(next_offsets, Mapping):
                continue
            offsets = found.setdefault(topic, {})
            for text, next_offset in next_offsets.items():
                partition = int(text)
                offsets[partition] = min(next_offset, offsets.get(partition, next_offset))
    return found


def _marker(offsets: SourceOffsets, generation: int, *, batch_id: int) -> changelog_pb2.ProgressMarker:
    marker = changelog_pb2.ProgressMarker(generation=generation, batch_id=batch_id)
    for topic, next_offsets in offsets.items():
        marker.sources.add(topic=topic).next_offsets.update(next_offsets)
    return marker
