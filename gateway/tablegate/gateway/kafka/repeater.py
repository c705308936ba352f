"""Appends records of a topic again, as they are: reads each at its offset, and writes it to the same partition.

It has a consumer and a producer of its own, for one request: those of `KafkaLog` read on and must not wait. Repairs are
rare, so nothing is kept between two of them. A record that is appended twice does no harm, so nothing is done against
that; and none of a request overtakes another.

Decision: docs/decisions/0062-the-owner-appends-its-row-again.md
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from tablegate.gateway.contract.types import RUN_HEADER, VERSION_HEADER
from tablegate.gateway.kafka.log import LogUnavailable, RecordId, TopicPartition

READ_TIMEOUT_S = 10.0  # of a request: the brokers do not answer
WRITE_TIMEOUT_S = 10.0
NEAR_RECORDS = 1_000  # what lies so near behind is read on to, and not asked for by its offset

_QUIET = {"log_level": 0}  # librdkafka would write every lost connection to stderr; errors are raised
_REFUSED = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.POLICY_VIOLATION,
)


def repeat_records(
    client: Mapping[str, Any], topic_partition: TopicPartition, records: Sequence[RecordId]
) -> list[RecordId]:
    """Append records again; return those that were there. Raise `LogUnavailable`. It waits for the brokers."""
    found = _read(client, topic_partition, sorted(records))
    if found:
        _write(client, topic_partition, list(found.values()))
    return list(found)


def _read(
    client: Mapping[str, Any], topic_partition: TopicPartition, wanted: Sequence[RecordId]
) -> dict[RecordId, Message]:
    """Return those of the records that are there, by increasing offset."""
    found: dict[RecordId, Message] = {}
    consumer = Consumer(
        {
            **client,
            **_QUIET,
            "group.id": "tablegate",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",  # a record before the first is gone
            "enable.partition.eof": True,
            "fetch.message.max.bytes": 64 * 1024,
        }
    )
    try:
        until_s = time.monotonic() + READ_TIMEOUT_S
        message: Message | None = None
        for each in wanted:
            message = _read_to(consumer, topic_partition, each, message, until_s)
            if message is not None and _id_of(message) == each:
                found[each] = message
    except KafkaException as error:
        raise LogUnavailable(error.args[0].str()) from None
    finally:
        consumer.close()
    return found


def _read_to(
    consumer: Consumer, topic_partition: TopicPartition, wanted: RecordId, last: Message | None, until_s: float
) -> Message | None:
    """Return the first record at or after the offset of one; None where there is none. `last` was read before."""
    at = -1 if last is None else last.offset() or 0
    if at >= wanted.offset:
        return last
    if last is None or wanted.offset - at > NEAR_RECORDS:
        consumer.assign([KafkaPartition(topic_partition.topic, topic_partition.partition, wanted.offset)])
    while time.monotonic() < until_s:
        message = consumer.poll(until_s - time.monotonic())
        error = None if message is None else message.error()
        if message is None:
            break
        if error is None and (message.offset() or 0) >= wanted.offset:
            return message
        if error is not None and error.code() == KafkaError._PARTITION_EOF:
            return None
        if error is not None and error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:  # no group is joined
            raise KafkaException(error)
    raise LogUnavailable("Kafka does not answer")


def _id_of(message: Message) -> RecordId | None:
    headers: Any = message.headers() or ()
    version = next((value for name, value in headers if name == VERSION_HEADER), None)
    key: Any = message.key()
    if key is None or version is None:
        return None
    offset: Any = message.offset()
    return RecordId(offset, key, version)


def _write(client: Mapping[str, Any], topic_partition: TopicPartition, messages: Sequence[Message]) -> None:
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer(
        {
            **client,
            **_QUIET,
            "acks": "all",
            "linger.ms": 5,
            "max.in.flight.requests.per.connection": 1,
            "message.timeout.ms": round(WRITE_TIMEOUT_S * 1_000),
        }
    )
    for message in messages:
        found: Any = message.headers()
        producer.produce(
            topic_partition.topic,
            key=message.key(),
            value=message.value(),
            # It is no row of a job's run any more: nobody may refuse it because that run was replaced.
            headers=[(name, value) for name, value in found or () if name != RUN_HEADER],
            partition=topic_partition.partition,
            on_delivery=delivered,
        )
    producer.flush(WRITE_TIMEOUT_S + 1)
    if failures:
        raise LogUnavailable(_why(failures[0], topic_partition.topic))
    if len(producer):
        producer.purge()
        raise LogUnavailable("Kafka does not answer")


def _why(error: KafkaError, topic: str) -> str:
    if error.code() in _REFUSED:
        return f'{error.str()}; allow this gateway to write to topic "{topic}"'
    return error.str()
