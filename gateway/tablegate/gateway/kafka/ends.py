"""The end offsets of topics, for reads that must be as fresh as the changelog is now.

Decision: docs/decisions/0028-latest-is-asked-by-the-replicator.md
"""

from collections.abc import Mapping
from typing import Any

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from tablegate.gateway.kafka.client import Renewal
from tablegate.gateway.kafka.log import LogUnavailable

TIMEOUT_S = 5.0


class KafkaEnds:
    """A client of its own, created at the first question. One thread. `options` are librdkafka's."""

    def __init__(self, bootstrap: str, options: Mapping[str, str]) -> None:
        self._options = {**options, "bootstrap.servers": bootstrap, "client.id": "tablegate-ends"}
        self._admin: AdminClient | None = None
        self._renewal = Renewal()

    def end_offsets(self, topic: str) -> Mapping[int, int]:
        """Return the end offset of each partition, by its number; raise `LogUnavailable`."""
        if self._admin is None:
            self._admin = AdminClient({**self._options, "reconnect.backoff.max.ms": 2_000})
        try:
            described = self._admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
            if described.error is not None:
                raise KafkaException(described.error)
            latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
            answers = self._admin.list_offsets(
                {TopicPartition(topic, number): latest for number in described.partitions},
                isolation_level=IsolationLevel.READ_UNCOMMITTED,
                request_timeout=TIMEOUT_S,
            )
            ends = {asked.partition: answer.result(TIMEOUT_S).offset for asked, answer in answers.items()}
        except KafkaException as error:
            self._record_no_answer()
            raise LogUnavailable(f"Kafka does not answer: {error.args[0].str()}") from None
        except TimeoutError:
            self._record_no_answer()
            raise LogUnavailable("Kafka does not answer") from None
        self._renewal.succeeded()
        return ends

    def _record_no_answer(self) -> None:
        if self._renewal.failed():
            self._admin = None
