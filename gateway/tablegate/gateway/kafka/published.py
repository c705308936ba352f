"""Manifests as a command reads and writes them: once, up to the end of their topic, with an answer for each write.

Jobs have their own (`tablegate.jobs.kafka.manifests`), as they import nothing of a gateway's.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress

from confluent_kafka import KafkaError, KafkaException, Producer

from tablegate.gateway.contract.lineage import Place
from tablegate.gateway.contract.types import Offset, Partition, past_name
from tablegate.gateway.kafka.border import Poison, read_manifest
from tablegate.gateway.kafka.client import REQUEST_TIMEOUT_S, KafkaLog, quiet_logger
from tablegate.gateway.kafka.log import LogUnavailable, Record, TopicFacts, TopicPartition
from tablegate.v1.changelog_pb2 import Manifest

_WAIT_S = 20.0
_RECORDS_MAX = 10_000  # at once
_SAMPLES_AT_ONCE = 100


class PublishedManifests:
    """The manifests of an installation. Every method raises `LogUnavailable`. `options` are librdkafka's."""

    def __init__(self, bootstrap: str, options: Mapping[str, str], topic: str) -> None:
        self._options = {**options, "bootstrap.servers": bootstrap}
        self._topic = topic
        self._log = KafkaLog(bootstrap, options)

    def describe(self, topic: str) -> TopicFacts | None:
        """Return what a topic is; None where there is none."""
        return self._log.describe_topic(topic).result()

    def newest(self) -> dict[str, Manifest]:
        """Return the newest manifest of each table, and of each that was removed under its `past_name`."""
        found: dict[str, Manifest] = {}
        for record in self._records():
            name = (record.key or b"").decode(errors="replace")
            found.pop(name, None)
            with suppress(Poison):
                if record.value is not None:
                    found[name] = read_manifest(name, record.value)
        return found

    def first_of(self, table: str, generation: int) -> Manifest | None:
        """Return the manifest of a generation that was written first, of those that compaction has left."""
        first: Manifest | None = None
        for record in self._records():
            with suppress(Poison):
                if first is None and record.key == table.encode() and record.value is not None:
                    found = read_manifest(table, record.value)
                    first = found if found.generation == generation else None
        return first

    def _records(self) -> Iterator[Record]:
        """Yield the records of the topic, up to the end that it has now; to be taken to the end."""
        facts = self.describe(self._topic)
        if facts is None:
            return
        [end] = facts.end_offsets
        topic_partition = TopicPartition(self._topic, Partition(0))
        self._log.follow(topic_partition, Place(facts.start_offsets[0]))
        at, until_s = facts.start_offsets[0], time.monotonic() + _WAIT_S
        while at < end:
            if time.monotonic() > until_s:
                raise LogUnavailable(
                    f'topic "{self._topic}" is not read to its end: {self._log.trouble() or "no answer"}'
                )
            for fetched in self._log.fetch(records_max=_RECORDS_MAX, timeout_s=0.5):
                at = max(at, fetched.next_offset)
                yield from fetched.records
        self._log.unfollow(topic_partition)

    def publish(self, manifest: Manifest) -> None:
        """Write a manifest, and return when Kafka has it."""
        if self.describe(self._topic) is None:
            self._log.create(self._topic).result()
        self._write({manifest.table: manifest.SerializeToString()})

    def remove(self, table: str, *, newest: int) -> None:
        """Write that a table has no manifest, and which was its newest generation: no later one has its number."""
        past = Manifest(table=past_name(table), generation=newest)
        self._write({past.table: past.SerializeToString()})
        self._write({table: None})

    def _write(self, records: Mapping[str, bytes | None]) -> None:
        errors: list[KafkaError] = []
        producer = Producer(
            {**self._options, "acks": "all", "message.timeout.ms": round(_WAIT_S * 1_000)}, logger=quiet_logger()
        )
        try:
            for name, value in records.items():
                producer.produce(
                    self._topic,
                    key=name.encode(),
                    value=value,
                    partition=0,
                    on_delivery=lambda error, _: errors.append(error) if error is not None else None,
                )
            left = producer.flush(_WAIT_S + REQUEST_TIMEOUT_S)
        except KafkaException as error:
            raise LogUnavailable(f'topic "{self._topic}" cannot be written: {error.args[0].str()}') from None
        if errors or left:
            why = errors[0].str() if errors else "Kafka does not answer"
            raise LogUnavailable(f'topic "{self._topic}" cannot be written: {why}')

    def read_some(self, topic: str, facts: TopicFacts, records_max: int) -> Iterator[tuple[Partition, Record]]:
        """Yield some of the newest records of a topic, of each partition that has some; raise `LogUnavailable`.

        Few are in memory at once: a record may have a megabyte.
        """
        each_max = max(1, records_max // facts.partition_count)
        left: dict[TopicPartition, Offset] = {}
        for number, (start, end) in enumerate(zip(facts.start_offsets, facts.end_offsets, strict=True)):
            topic_partition = TopicPartition(topic, Partition(number))
            if start < end:
                self._log.follow(topic_partition, Place(Offset(max(start, end - each_max))))
                left[topic_partition] = end
        until_s = time.monotonic() + _WAIT_S
        while left:
            if time.monotonic() > until_s:
                raise LogUnavailable(self._log.trouble() or f'topic "{topic}" is not read to its end: no answer')
            for fetched in self._log.fetch(records_max=_SAMPLES_AT_ONCE, timeout_s=0.5):
                yield from ((fetched.topic_partition.partition, record) for record in fetched.records)
                if fetched.lost or fetched.next_offset >= left.get(fetched.topic_partition, 0):
                    left.pop(fetched.topic_partition, None)
                    self._log.unfollow(fetched.topic_partition)

    def close(self) -> None:
        """Disconnect."""
        self._log.close()
