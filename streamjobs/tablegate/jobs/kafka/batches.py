"""Batches of an atomic table: each is written to the changelog in one transaction, from the driver.

Spark's Kafka sink has no transactions. A batch of an atomic table has a bound, so its records fit the driver, and one
producer writes them all. Its transactional id names the changelog: when a job starts, Kafka refuses what is left of an
earlier one, and gives up the transaction that it had open.

A batch that runs again after a crash is written again. Its rows have the versions that they had, so gateways drop what
they have already.

Decision: docs/decisions/0073-atomic-batches.md
"""

import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from tablegate.gateway.contract.kafka_refusals import Right
from tablegate.gateway.contract.kafka_settings import settings_of
from tablegate.gateway.contract.types import BATCH_CHANGES_MAX, MARKER_KEY, VERSION_HEADER
from tablegate.jobs.errors import JobError
from tablegate.jobs.kafka.topics import AWAY, QUIET_CLIENT, Topic, why_not
from tablegate.v1 import changelog_pb2

TRANSACTION_TIMEOUT_S = 60  # after which Kafka gives up the transaction of a job that was killed and is not started
REQUEST_TIMEOUT_S = 30.0  # a healthy broker answers in milliseconds
ABORT_TIMEOUT_S = 5.0  # as the job ends; the next one, or the time above, gives up what is left

_FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)


class BatchRecord(NamedTuple):
    """A row's record in a batch; its value is None where the row is deleted."""

    partition: int
    key: bytes
    value: bytes | None
    version: bytes


class BatchWriter:
    """Writes the batches of one changelog. Any thread; one batch at a time."""

    def __init__(self, bootstrap: str, changelog: Topic, generation: int) -> None:
        self._bootstrap = bootstrap
        self._changelog = changelog
        self._generation = generation
        self._lock = threading.Lock()
        self._producer: Producer | None = None
        self._is_open = False  # a transaction is
        self._is_closed = False

    @property
    def _transactional_id(self) -> str:
        return f"tablegate-{self._changelog.name}"

    def open(self) -> None:
        """Fence whoever has opened before; raise `JobError`. Without it, the first batch does.

        Who opens before it asks whether it still has the table never fences one that takes the table over later.
        """
        with self._lock:
            try:
                self._producer = self._new_producer()
            except KafkaException as error:
                raise self._failure_of(error.args[0]) from None

    def write(self, batch_id: int, records: Iterable[BatchRecord]) -> None:
        """Write a batch, and return when it is committed; raise `JobError`, and then it is not known whether it is."""
        with self._lock:
            if self._is_closed:
                raise JobError(f'batch {batch_id} of topic "{self._changelog.name}" is not written: the job is ending')
            try:
                self._write(batch_id, records)
            except BufferError:
                self._abort()
                raise self._failure("they do not fit the client's memory") from None
            except KafkaException as error:
                self._abort()
                raise self._failure_of(error.args[0]) from None

    def _write(self, batch_id: int, records: Iterable[BatchRecord]) -> None:
        topic = self._changelog.name
        if self._producer is None:
            self._producer = self._new_producer()
        producer = self._producer
        producer.begin_transaction()
        self._is_open = True
        partitions = set()
        for partition, key, value, version in records:
            partitions.add(partition)
            producer.produce(topic, key=key, value=value, headers={VERSION_HEADER: version}, partition=partition)
        marker = changelog_pb2.ProgressMarker(generation=self._generation, batch_id=batch_id, ends_batch=True)
        marker.commit_time.GetCurrentTime()
        for partition in sorted(partitions):
            producer.produce(topic, key=MARKER_KEY, value=marker.SerializeToString(), partition=partition)
        producer.commit_transaction(REQUEST_TIMEOUT_S)
        self._is_open = False

    def _new_producer(self) -> Producer:
        producer = Producer(
            {
                **settings_of(self._bootstrap).librdkafka(),
                "transactional.id": self._transactional_id,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_S * 1000,
                # A batch, and a marker in each partition that has some of it, at once.
                "queue.buffering.max.messages": 2 * BATCH_CHANGES_MAX,
                **QUIET_CLIENT,
            }
        )
        producer.init_transactions(REQUEST_TIMEOUT_S)
        return producer

    def _abort(self) -> None:
        """Give up the transaction that is open, and the producer: after an error nobody knows what it can still do."""
        producer, self._producer = self._producer, None
        if producer is not None and self._is_open:
            with suppress(KafkaException):  # a fenced producer cannot, and need not
                producer.abort_transaction(ABORT_TIMEOUT_S)
        self._is_open = False

    def _failure_of(self, error: KafkaError) -> JobError:
        if error.code() in _FENCED:
            return self._failure("another job has begun to write it; stop one of the two")
        if error.code() in AWAY:
            return self._failure(
                f"Kafka at {self._bootstrap} does not answer; start the job again when it does: it goes on from its "
                "checkpoint"
            )
        right = Right("Write", "topic", self._changelog.name)
        if error.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            right = Right("Write", "transactional-id", self._transactional_id)
        return self._failure(why_not(self._bootstrap, error, right))

    def _failure(self, why: str) -> JobError:
        return JobError(f'the rows of a batch cannot be written to topic "{self._changelog.name}": {why}')

    def close(self) -> None:
        """Give up what is not committed, and write no more. Repeats do nothing."""
        with self._lock:
            self._is_closed = True
            self._abort()
