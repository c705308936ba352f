"""A real Kafka for tests, and raw records in and out of it."""

import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tablegate.examples.demo.kafka import Broker, free_port
from tablegate.examples.samples import create_topic

CONSUME_TIMEOUT_S = 60.0  # brokers that lose one of them need ten seconds, also where no process stands still

Headers = Sequence[tuple[str, bytes]]


class RawRecord(NamedTuple):
    """A record as Kafka has it; a tombstone has value None."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int


class NewRecord(NamedTuple):
    """A record to be written; without a partition, to the one that a Java producer would choose; by default now."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One broker for all tests of a session (of a worker, under xdist): use topics of your own."""
    directory = tmp_path_factory.mktemp("kafka")
    with Broker(directory / "data", log_file=directory / "broker.log") as running:
        yield running


def new_topic(bootstrap: str, partitions: int = 1, prefix: str = "topic", **config: str) -> str:
    """Create a topic that no other test knows; `config` has underscores for the dots of Kafka's names."""
    name = f"{prefix}-{uuid.uuid4().hex[:12]}"
    create_topic(bootstrap, name, partitions, {key.replace("_", "."): value for key, value in config.items()})
    return name


def delete_topic(bootstrap: str, name: str) -> None:
    """Delete a topic. Brokers and clients may know of it for a moment more."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([name])[name].result(20)


def produce(bootstrap: str, topic: str, records: Iterable[NewRecord]) -> None:
    """Write records in their order, and see that each arrived."""
    failures: list[str] = []

    def delivered(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            failures.append(error.str())

    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "partitioner": "murmur2_random", "linger.ms": 0}
    )
    for record in records:
        producer.produce(
            topic,
            key=record.key,
            value=record.value,
            headers=list(record.headers),
            partition=-1 if record.partition is None else record.partition,
            on_delivery=delivered,
            **({} if record.timestamp_ms is None else {"timestamp": record.timestamp_ms}),
        )
        producer.poll(0)
    assert producer.flush(CONSUME_TIMEOUT_S) == 0, f"records still queued for {topic}"
    assert not failures, failures


def acknowledged(producer: Producer, topic: str, record: NewRecord) -> Message:
    """Write a record; return its partition and offset, as Kafka acknowledged it."""
    reports: list[tuple[KafkaError | None, Message]] = []
    producer.produce(
        topic,
        key=record.key,
        value=record.value,
        partition=-1 if record.partition is None else record.partition,
        on_delivery=lambda error, message: reports.append((error, message)),
    )
    assert producer.flush(CONSUME_TIMEOUT_S) == 0, "a record is not acknowledged"
    [(error, message)] = reports
    assert error is None, error.str()
    return message


def _headers(message: Message) -> Headers:
    headers = message.headers() or []
    return tuple(headers.items() if isinstance(headers, dict) else headers)  # type: ignore[arg-type]


def consume(bootstrap: str, topic: str) -> list[RawRecord]:
    """Return all records that the topic has now, by partition and offset."""
    partitions = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=10).topics[topic].partitions
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"tests-{uuid.uuid4().hex}",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
        }
    )
    records: list[RawRecord] = []
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
        unfinished = set(partitions)
        while unfinished:
            message = consumer.poll(CONSUME_TIMEOUT_S)
            assert message is not None, f"no record and no end of {topic} partitions {unfinished}"
            error = message.error()
            if error is None:
                records.append(
                    RawRecord(
                        message.partition() or 0,
                        message.offset() or 0,
                        message.key(),
                        message.value(),
                        _headers(message),
                        message.timestamp()[1],
                    )
                )
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error.str()
                unfinished.discard(message.partition() or 0)
    finally:
        consumer.close()
    return sorted(records, key=lambda record: (record.partition, record.offset))


def nobody(**options: Any) -> dict[str, Any]:
    """Return options of a client that knows no broker, as one does that heard from the last one that there are none."""
    return {"bootstrap.servers": f"127.0.0.1:{free_port()}", "log_level": 0, **options}


class Tail:
    """What the first partition of a topic is given after this is made. Clients must have a broker of their own."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._broker = broker
        [self._directory] = broker.data_dir.rglob(f"{topic}-0")
        self._size = self._log().stat().st_size

    def _log(self) -> Path:
        [log] = self._directory.glob("*.log")
        return log

    def lose(self) -> None:
        """Kill the broker, and start it without the tail, as a disk does that loses what was not flushed."""
        self._broker.kill()
        with self._log().open("r+b") as file:
            file.truncate(self._size)
        for pattern in ("*.index", "*.timeindex", "*.snapshot"):
            for index in self._directory.glob(pattern):
                index.unlink()
        self._broker.start()


def drop_records(bootstrap: str, topic: str, before: int, *, partition: int = 0) -> None:
    """Let a partition drop its first records, as retention does."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    place = TopicPartition(topic, partition, before)
    admin.delete_records([place])[place].result(20)
