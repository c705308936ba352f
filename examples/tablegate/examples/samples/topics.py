"""Topics: made where they are missing, and counted."""

import time
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tablegate.jobs.jars import SetupError

ANSWER_TIMEOUT_S = 10.0
POLL_S = 0.05


def create_topic(bootstrap: str, name: str, partitions: int, config: Mapping[str, str] | None = None) -> bool:
    """Create a topic and wait until it can be written; return whether it was missing.

    Raise `SetupError` if it cannot be had, or is there with another number of partitions.
    """
    client = AdminClient(client_settings(bootstrap))
    created = True
    topic = NewTopic(name, num_partitions=partitions, replication_factor=-1, config=dict(config or {}))
    try:
        client.create_topics([topic], operation_timeout=ANSWER_TIMEOUT_S, request_timeout=ANSWER_TIMEOUT_S)[
            name
        ].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise SetupError(
                f'topic "{name}" cannot be created at {bootstrap} ({error.args[0].str()}): '
                "check the address and the name"
            ) from None
        created = False
    found = _partitions(client, bootstrap, name)
    if found != partitions:
        raise SetupError(f'topic "{name}" has {found} partitions, not {partitions}: delete it, or ask for {found}')
    return created


def record_count(bootstrap: str, topic: str) -> int:
    """Return how many records the topic holds, counting those that compaction removed; raise `SetupError`."""
    partitions = _partitions(AdminClient(client_settings(bootstrap)), bootstrap, topic)
    consumer = Consumer({**client_settings(bootstrap), "group.id": "record-count", "enable.auto.commit": False})
    try:
        ranges = [_offset_range(consumer, TopicPartition(topic, partition)) for partition in range(partitions)]
    except KafkaException as error:
        raise SetupError(
            f'the offsets of topic "{topic}" at {bootstrap} cannot be read ({error.args[0].str()}): '
            "check that Kafka runs there"
        ) from None
    finally:
        consumer.close()
    return sum(end - start for start, end in ranges)


def _offset_range(consumer: Consumer, partition: TopicPartition) -> tuple[int, int]:
    """Return a partition's first and end offset. A broker that has just started tells of leaders before it is one."""
    deadline = time.monotonic() + ANSWER_TIMEOUT_S
    while True:
        try:
            start, end = consumer.get_watermark_offsets(partition, timeout=ANSWER_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION or time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)
        else:
            return start, end


def _partitions(client: AdminClient, bootstrap: str, topic: str) -> int:
    """Return the topic's partitions, once each has a leader; raise `SetupError` if that does not come about."""
    deadline = time.monotonic() + ANSWER_TIMEOUT_S
    problem = "a partition has no leader"
    while time.monotonic() < deadline:
        try:
            found = client.list_topics(topic, timeout=ANSWER_TIMEOUT_S).topics[topic]
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
    # Faults come back as errors of calls; the log on stderr would only say them twice.
    return {"bootstrap.servers": bootstrap, "log_level": 0}
