"""Watches the source topics of a running job: one that is deleted and made again, or that grows.

Spark goes by the name of a topic. It would read on at the old offsets in another topic of that name, and the records
before these would be lost without a word.
"""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaException, TopicCollection

from tablegate.jobs.kafka.topics import BROKER_TIMEOUT_S, Topic, admin_client

WATCH_EVERY_S = 1.0  # a topic that is made again has few records by then; a request costs a broker next to nothing


class TopicWatch:
    """Asks for topics again and again, without waiting for Kafka. One thread uses it."""

    def __init__(self, bootstrap: str, topics: Sequence[Topic]) -> None:
        self._admin = admin_client(bootstrap)
        self._topics = {topic.name: topic for topic in topics}
        self._asked: Mapping[str, Future[Any]] = {}
        self._next_s = 0.0

    def changed(self) -> list[tuple[Topic, Topic]]:
        """Return the topics that are others than at first, or have more partitions: as they were and as they are."""
        if self._asked and all(future.done() for future in self._asked.values()):
            asked, self._asked = self._asked, {}
            found = [(self._topics[name], _described(name, future)) for name, future in asked.items()]
            return [(before, now) for before, now in found if now is not None and now != before]
        if not self._asked and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + WATCH_EVERY_S
            self._asked = self._admin.describe_topics(
                TopicCollection(list(self._topics)), request_timeout=BROKER_TIMEOUT_S
            )
        return []


def _described(name: str, future: "Future[Any]") -> Topic | None:
    """Return the topic; None while it is not there, or nobody answers: the queries notice both."""
    try:
        found = future.result()
    except KafkaException:
        return None
    return Topic(name, str(found.topic_id), len(found.partitions))
