"""Watches the topics of a running job: one that is deleted and made again, or that grows.

Spark goes by the name of a topic. It would read on at the old offsets in another topic of that name, and the records
before these would be lost without a word. What it writes to another changelog of that name no gateway reads.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaException

from tablegate.jobs.errors import JobError
from tablegate.jobs.kafka.polling import Polling
from tablegate.jobs.kafka.topics import KafkaAdmin, Topic

WATCH_EVERY_S = 1.0  # a topic that is made again has few records by then; a request costs a broker next to nothing


class TopicWatch:
    """Asks for topics again and again, without waiting for Kafka. One thread uses it."""

    def __init__(self, admin: KafkaAdmin, topics: Sequence[Topic]) -> None:
        self._topics = {topic.name: topic for topic in topics}
        self._polling = Polling(lambda: admin.ask_topics(list(self._topics)), every_s=WATCH_EVERY_S)

    def changed(self) -> list[tuple[Topic, Topic]]:
        """Return the topics that are others than at first, or have more partitions: as they were and as they are."""
        answers = self._polling.answers()
        found = [(self._topics[name], _described(name, answer)) for name, answer in answers.items()]
        return [(before, now) for before, now in found if now is not None and now != before]

    def check_same(self) -> None:
        """Raise `JobError` where a changelog is another one than at first."""
        for before, now in self.changed():
            if now.topic_id != before.topic_id:
                raise JobError(
                    f'changelog topic "{now.name}" was deleted and made again while it was written, and gateways read '
                    "nothing of it; start again: the start says how to go on"
                )


def _described(name: str, future: "Future[Any]") -> Topic | None:
    """Return the topic; None while it is not there, or nobody answers: the queries notice both."""
    try:
        found = future.result()
    except KafkaException:
        return None
    return Topic(name, str(found.topic_id), len(found.partitions))
