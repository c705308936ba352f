"""Writes small records to Kafka, without waiting."""

import logging
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, Message, Producer
from tablegate.gateway.kafka.renewal import Renewal

APPEND_TIMEOUT_S = 2.0  # a beat that is older says nothing any more
CLOSE_TIMEOUT_S = 2.0

_logger = logging.getLogger("tablegate.gateway.replication")


class KafkaAppender:
    """A producer, made when it is needed first. `options` are librdkafka's. One thread."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._producer: Producer | None = None
        self._is_failing = False
        self._renewal = Renewal()
        self._is_deaf = False  # the producer is to be made anew

    def append(self, topic: str, key: bytes, value: bytes | None) -> None:
        """Write a record to the first partition, behind those before; what cannot be written is lost."""
        if self._is_deaf:
            self._forget_producer()
        if self._producer is None:
            self._producer = Producer(
                {
                    **self._options,
                    "linger.ms": 0,
                    "max.in.flight.requests.per.connection": 1,  # a repeat must not come behind what follows it
                    "message.timeout.ms": round(APPEND_TIMEOUT_S * 1_000),
                    "reconnect.backoff.max.ms": 2_000,
                },
                logger=quiet_logger(),
            )
        try:
            self._producer.produce(topic, key=key, value=value, partition=0, on_delivery=self._note)
        except BufferError:
            self._fail("its queue is full")
        self._producer.poll(0)

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._is_failing = False
            self._renewal.succeeded()
        else:
            self._fail(f"{error.str()}, topic {message.topic()}")
            self._is_deaf = self._is_deaf or self._renewal.failed()

    def _fail(self, why: str) -> None:
        if not self._is_failing:
            self._is_failing = True
            _logger.warning("what this gateway announces does not reach Kafka (%s); it goes on, unheard", why)

    def _forget_producer(self) -> None:
        assert self._producer is not None
        self._producer.purge()
        self._producer.poll(0)
        self._producer, self._is_deaf = None, False

    def close(self) -> None:
        """Wait a moment for what was appended."""
        if self._producer is not None:
            self._producer.flush(CLOSE_TIMEOUT_S)


def quiet_logger() -> logging.Logger:
    """librdkafka's own lines, of which only the worst are news to us."""
    logger = logging.getLogger("tablegate.gateway.replication.librdkafka")
    logger.setLevel(logging.CRITICAL)
    return logger
