"""Sample ratings, and how they get into Kafka: Avro in the Confluent wire format, by Confluent's own serializer."""

import itertools
import random
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from streamjobs.local import LocalError
from streamjobs.local.ivy import Progress
from streamjobs.tables.ratings import RATING_SCHEMA

ANSWER_TIMEOUT_S = 10.0
DELIVERY_TIMEOUT_S = 30.0
POLL_S = 0.05


class Rating(NamedTuple):
    """A sample event."""

    movie_id: int
    rating: float


KNOWN_MOVIE = 362
KNOWN_RATINGS = (Rating(KNOWN_MOVIE, 10.0), Rating(KNOWN_MOVIE, 8.0))
"""All ratings that the known movie ever gets: average 9.0, count 2. Send them once a topic."""


def ratings(count: int | None = None, *, movies: int = 500, seed: int = 1) -> Iterator[Rating]:
    """Yield `count` ratings of movies 1 … `movies` but the known one; without a count, for ever.

    The same arguments give the same ratings. They are halves, so sums of them are exact in any order.
    """
    choice = random.Random(seed)
    pool = [movie for movie in range(1, movies + 1) if movie != KNOWN_MOVIE]
    for _ in itertools.count() if count is None else range(count):
        yield Rating(choice.choice(pool), choice.randint(2, 20) / 2)


class RatingProducer:
    """Sends ratings to a topic; raises `LocalError` where the registry does not take their schema. For one thread.

    The key is the movie's id as 8 bytes big endian, and its partition the one that a Java producer would choose.
    Without the URL of a schema registry, a registry in this process counts schema ids from 1.
    """

    def __init__(self, bootstrap: str, topic: str, *, registry_url: str | None = None) -> None:
        self._bootstrap = bootstrap
        self._context = SerializationContext(topic, MessageField.VALUE)
        registry = SchemaRegistryClient.new_client({"url": registry_url or "mock://samples"})
        self._serialize = AvroSerializer(registry, RATING_SCHEMA)
        try:
            self._serialize(KNOWN_RATINGS[0]._asdict(), self._context)  # registers the schema
        except Exception as error:  # noqa: BLE001  the registry's client lets faults of its HTTP library through
            raise LocalError(
                f'schema registry "{registry_url}" did not take the schema of topic "{topic}" ({error}): '
                "check the address, and that the topic has no other schema there"
            ) from None
        self._producer = Producer(
            {
                **_client(bootstrap),
                "enable.idempotence": True,
                "linger.ms": 5,
                "partitioner": "murmur2_random",
                "delivery.timeout.ms": int(DELIVERY_TIMEOUT_S * 1000),
            }
        )
        self._topic = topic
        self._failed = 0
        self._failure = ""

    def send(self, movie_id: int, rating: float) -> None:
        """Queue one rating."""
        value = self._serialize({"movie_id": movie_id, "rating": rating}, self._context)
        key = struct.pack(">q", movie_id)
        while True:
            try:
                self._producer.produce(self._topic, key=key, value=value, on_delivery=self._delivered)
            except BufferError:  # the queue is full: let some of it leave
                self._producer.poll(POLL_S)
            else:
                break
        self._producer.poll(0)

    def flush(self) -> None:
        """Wait until all that was queued is in Kafka; raise `LocalError` if some of it is not."""
        self._producer.flush(DELIVERY_TIMEOUT_S + 1)
        failed, self._failed = self._failed + len(self._producer), 0
        if failed:
            raise LocalError(
                f'{failed} ratings did not get into topic "{self._topic}" at {self._bootstrap} '
                f"({self._failure or 'no answer'}): check that Kafka runs there and that the topic exists"
            )

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._failed += 1
            self._failure = error.str()


def send_ratings(
    bootstrap: str,
    topic: str,
    events: Iterable[Rating],
    *,
    registry_url: str | None = None,
    progress: Progress | None = None,
) -> int:
    """Send all `events` and wait until they are in Kafka; return their number. Raise `LocalError`."""
    producer = RatingProducer(bootstrap, topic, registry_url=registry_url)
    known = list(events)
    for sent, event in enumerate(known, start=1):
        producer.send(*event)
        if progress is not None:
            progress(sent, len(known))
    producer.flush()
    return len(known)


def create_topic(bootstrap: str, name: str, partitions: int, config: Mapping[str, str] | None = None) -> bool:
    """Create a topic and wait until it can be written; return whether it was missing.

    Raise `LocalError` if it cannot be had, or is there with another number of partitions.
    """
    client = AdminClient(_client(bootstrap))
    created = True
    topic = NewTopic(name, num_partitions=partitions, replication_factor=-1, config=dict(config or {}))
    try:
        client.create_topics([topic], operation_timeout=ANSWER_TIMEOUT_S, request_timeout=ANSWER_TIMEOUT_S)[
            name
        ].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise LocalError(
                f'topic "{name}" cannot be created at {bootstrap} ({error.args[0].str()}): '
                "check the address and the name"
            ) from None
        created = False
    found = _partitions(client, bootstrap, name)
    if found != partitions:
        raise LocalError(f'topic "{name}" has {found} partitions, not {partitions}: delete it, or ask for {found}')
    return created


def record_count(bootstrap: str, topic: str) -> int:
    """Return how many records the topic holds, counting those that compaction removed; raise `LocalError`."""
    partitions = _partitions(AdminClient(_client(bootstrap)), bootstrap, topic)
    consumer = Consumer({**_client(bootstrap), "group.id": "record-count", "enable.auto.commit": False})
    try:
        ranges = [
            consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=ANSWER_TIMEOUT_S)
            for partition in range(partitions)
        ]
    except KafkaException as error:
        raise LocalError(
            f'the offsets of topic "{topic}" at {bootstrap} cannot be read ({error.args[0].str()}): '
            "check that Kafka runs there"
        ) from None
    finally:
        consumer.close()
    return sum(end - start for start, end in ranges)


def _partitions(client: AdminClient, bootstrap: str, topic: str) -> int:
    """Return the topic's partitions, once each has a leader; raise `LocalError` if that does not come about."""
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
    raise LocalError(f'topic "{topic}" at {bootstrap} cannot be used ({problem}): check the address and the name')


def _client(bootstrap: str) -> dict[str, str | int | float | bool]:
    # Faults come back as errors of calls; the log on stderr would only say them twice.
    return {"bootstrap.servers": bootstrap, "log_level": 0}
