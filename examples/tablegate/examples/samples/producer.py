"""Sends events to Kafka."""

from collections import Counter
from collections.abc import Callable, Iterable

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from tablegate.examples.samples.event import Event
from tablegate.examples.samples.topics import POLL_S, client_settings
from tablegate.jobs.jars import SetupError

DELIVERY_TIMEOUT_S = 30.0
QUEUED_EVENTS_MAX = 5_000  # so partitions stay close in the time of their events, and no event is late by accident

Progress = Callable[[int], None]
"""Takes how many events have been sent."""


class EventProducer:
    """Sends events, each partition's in their order. For one thread."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._producer = Producer(
            {
                **client_settings(bootstrap),
                "enable.idempotence": True,
                "linger.ms": 5,
                "queue.buffering.max.messages": QUEUED_EVENTS_MAX,
                "partitioner": "murmur2_random",
                "delivery.timeout.ms": int(DELIVERY_TIMEOUT_S * 1000),
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
                self._producer.poll(POLL_S)
            except KafkaException as error:  # a partition that the topic does not have
                self._failure = error.args[0].str()
                break
            else:
                break
        self._producer.poll(0)

    def flush(self) -> None:
        """Wait until all that was queued is in Kafka; raise `SetupError` if some of it is not."""
        self._producer.flush(DELIVERY_TIMEOUT_S + 1)
        undelivered, self._undelivered = +self._undelivered, Counter()
        if undelivered:
            topics = ", ".join(f'"{topic}"' for topic in sorted(undelivered))
            raise SetupError(
                f"{undelivered.total()} events did not get into topic {topics} at {self._bootstrap} "
                f"({self._failure or 'no answer'}): check that Kafka runs there and that the topic exists"
            )

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._undelivered[message.topic() or ""] -= 1
        else:
            self._failure = error.str()


def send(bootstrap: str, events: Iterable[Event], *, progress: Progress | None = None) -> int:
    """Send all `events` and wait until they are in Kafka; return their number. Raise `SetupError`."""
    producer = EventProducer(bootstrap)
    sent = 0
    for sent, event in enumerate(events, start=1):
        producer.send(event)
        if progress is not None:
            progress(sent)
    producer.flush()
    return sent
