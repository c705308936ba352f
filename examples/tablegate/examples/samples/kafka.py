"""Sample events into Kafka: topics are made where they are missing, then events are sent."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tablegate.examples.samples.events import Event
from tablegate.gateway.contract.kafka_refusals import refused_connection
from tablegate.gateway.contract.kafka_settings import settings_of
from tablegate.jobs.jars import SetupError

ANSWER_TIMEOUT_S = 10.0
POLL_S = 0.05


def create_topic(
    bootstrap: str,
    name: str,
    partitions: int,
    config: Mapping[str, str] | None = None,
    *,
    timeout_s: float = ANSWER_TIMEOUT_S,
) -> bool:
    """Create a topic and wait until it can be written; return whether it was missing.

    Raise `SetupError` if it cannot be had, or is there with another number of partitions.
    """
    client = AdminClient(client_settings(bootstrap))
    created = True
    topic = NewTopic(name, num_partitions=partitions, replication_factor=-1, config=dict(config or {}))
    try:
        client.create_topics([topic], operation_timeout=timeout_s, request_timeout=timeout_s)[name].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise SetupError(
                f'topic "{name}" cannot be created at {bootstrap} ({error.args[0].str()}): '
                "check the address and the name"
            ) from None
        created = False
    found = _partitions(client, bootstrap, name, timeout_s)
    if found != partitions:
        raise SetupError(f'topic "{name}" has {found} partitions, not {partitions}: delete it, or ask for {found}')
    return created


def record_count(bootstrap: str, topic: str, *, timeout_s: float = ANSWER_TIMEOUT_S) -> int:
    """Return how many records the topic holds, counting those that compaction removed; raise `SetupError`."""
    partitions = _partitions(AdminClient(client_settings(bootstrap)), bootstrap, topic, timeout_s)
    consumer = Consumer({**client_settings(bootstrap), "group.id": "record-count", "enable.auto.commit": False})
    try:
        ranges = [_offset_range(consumer, TopicPartition(topic, each), timeout_s) for each in range(partitions)]
    except KafkaException as error:
        raise SetupError(
            f'the offsets of topic "{topic}" at {bootstrap} cannot be read ({error.args[0].str()}): '
            "check that Kafka runs there"
        ) from None
    finally:
        consumer.close()
    return sum(end - start for start, end in ranges)


def _offset_range(consumer: Consumer, partition: TopicPartition, timeout_s: float) -> tuple[int, int]:
    """Return a partition's first and end offset. A broker that has just started announces leaders before it is one."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            start, end = consumer.get_watermark_offsets(partition, timeout=timeout_s)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION or time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)
        else:
            return start, end


def _partitions(client: AdminClient, bootstrap: str, topic: str, timeout_s: float) -> int:
    """Return the topic's partitions, once each has a leader; raise `SetupError` if that does not come about."""
    deadline = time.monotonic() + timeout_s
    problem = "a partition has no leader"
    while time.monotonic() < deadline:
        try:
            found = client.list_topics(topic, timeout=timeout_s).topics[topic]
            if found.error is not None:
                problem = found.error.str()
            elif all(partition.leader >= 0 for partition in found.partitions.values()):
                return len(found.partitions)
        except KafkaException as error:
            problem = error.args[0].str()
        time.sleep(POLL_S)
    raise SetupError(f'topic "{topic}" at {bootstrap} cannot be used ({problem}): check the address and the name')


def client_settings(bootstrap: str) -> dict[str, str | int | float | bool]:
    """Return what every client of these brokers is made with."""
    # Faults come back as errors of calls; the log on stderr would only repeat them.
    return {**settings_of(bootstrap).librdkafka(), "log_level": 0}


DELIVERY_TIMEOUT_S = 30.0
FLUSH_POLL_S = 0.01
QUEUED_EVENTS_MAX = 5_000  # so partitions stay close in the time of their events, and no event is late by accident

Progress = Callable[[int], None]
"""Takes how many events have been sent."""


class EventProducer:
    """Sends events, each partition's in their order. For one thread."""

    def __init__(self, bootstrap: str, *, delivery_timeout_s: float = DELIVERY_TIMEOUT_S) -> None:
        self._bootstrap = bootstrap
        self._delivery_timeout_s = delivery_timeout_s
        self._refusals: list[str] = []
        self._producer = Producer(
            {
                **client_settings(bootstrap),
                "enable.idempotence": True,
                "linger.ms": 5,
                "queue.buffering.max.messages": QUEUED_EVENTS_MAX,
                "partitioner": "murmur2_random",
                "delivery.timeout.ms": int(delivery_timeout_s * 1000),
                # Not a method: who refers to its producer lives on, and it with all that it has open.
                "error_cb": partial(_note, settings_of(bootstrap).librdkafka(), self._refusals),
            }
        )
        self._undelivered: Counter[str] = Counter()
        self._failure = ""

    def send(self, event: Event) -> None:
        """Queue one event."""
        self._undelivered[event.topic] += 1
        while True:
            try:
                self._producer.produce(
                    event.topic,
                    key=event.key,
                    value=event.value,
                    partition=-1 if event.partition is None else event.partition,
                    timestamp=event.timestamp_ms or 0,
                    on_delivery=self._delivered,
                )
            except BufferError:  # the queue is full: let some of it leave
                self._let_leave()
                time.sleep(FLUSH_POLL_S)
            except KafkaException as error:  # a partition that the topic does not have
                self._failure = error.args[0].str()
                break
            else:
                break
        self._let_leave()

    def flush(self) -> None:
        """Wait until all that was queued is in Kafka; raise `SetupError` if some of it is not."""
        deadline = time.monotonic() + self._delivery_timeout_s + 1
        while self._let_leave() and not self._refusals and time.monotonic() < deadline:
            time.sleep(FLUSH_POLL_S)
        undelivered, self._undelivered = +self._undelivered, Counter()
        if undelivered and self._refusals:
            raise SetupError(self._refusals[0])
        if undelivered:
            topics = ", ".join(f'"{topic}"' for topic in sorted(undelivered))
            raise SetupError(
                f"{undelivered.total()} events did not get into topic {topics} at {self._bootstrap} "
                f"({self._failure or 'no answer'}): check that Kafka runs there and that the topic exists"
            )

    def _let_leave(self) -> int:
        """Note what has left the queue; return what is still in it. Nothing is waited for, so Ctrl-C is soon noticed.

        Before Python 3.12, confluent_kafka loses a Ctrl-C that comes in a callback: it keeps the exception's value, and
        there is none until Python handles it. Our callbacks raise nothing else.
        """
        try:
            self._producer.poll(0)
        except SystemError:
            raise KeyboardInterrupt from None
        return len(self._producer)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._undelivered[message.topic() or ""] -= 1
        else:
            self._failure = error.str()


def _note(settings: Mapping[str, Any], refusals: list[str], error: KafkaError) -> None:
    """Keep why brokers do not let a client in."""
    refusal = refused_connection(settings, error.name(), error.str())
    if refusal is not None:
        refusals.append(refusal)


def send(
    bootstrap: str,
    events: Iterable[Event],
    *,
    progress: Progress | None = None,
    delivery_timeout_s: float = DELIVERY_TIMEOUT_S,
) -> int:
    """Send all `events` and wait until they are in Kafka; return their number. Raise `SetupError`."""
    producer = EventProducer(bootstrap, delivery_timeout_s=delivery_timeout_s)
    sent = 0
    for sent, event in enumerate(events, start=1):
        producer.send(event)
        if progress is not None:
            progress(sent)
    producer.flush()
    return sent
