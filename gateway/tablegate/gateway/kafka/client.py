"""The log in Kafka."""

import logging
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
)
from confluent_kafka import (
    TopicPartition as KafkaPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from tablegate.gateway.contract.types import Offset, Partition
from tablegate.gateway.contract.versions import VERSION_HEADER
from tablegate.gateway.kafka.appender import KafkaAppender, quiet_logger
from tablegate.gateway.kafka.log import Fetched, Log, LogUnavailable, Record, TopicFacts, TopicPartition
from tablegate.gateway.kafka.renewal import Renewal
from typing_extensions import override

LOOK_TIMEOUT_S = 5.0
QUIET_S = 5.0  # a consumer that brings nothing for longer is asked whether it hears of Kafka
DELETE_RETENTION_MS = 86_400_000  # Kafka's default, where we may not ask

_CONSUMER_OPTIONS: Mapping[str, str | int | bool] = {
    "group.id": "tablegate",  # librdkafka wants one; no group is joined and nothing is committed
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",  # never skip in silence
    "enable.partition.eof": True,  # the end is known even where compaction took the last records
    "allow.auto.create.topics": False,
    "fetch.wait.max.ms": 100,  # a partition that joins waits for the fetch that is under way
    "fetch.message.max.bytes": 4 * 2**20,
    "queued.min.messages": 100_000,
    "queued.max.messages.kbytes": 16 * 2**10,  # of memory, while the store is slower than the brokers
    "fetch.queue.backoff.ms": 5,  # librdkafka rests a second by default, once its queue was full
    "reconnect.backoff.max.ms": 2_000,
    "topic.metadata.refresh.interval.ms": 30_000,
}

COMPACTED_TOPIC: Mapping[str, str] = {  # of many small records that soon mean nothing
    "cleanup.policy": "compact",
    "message.timestamp.type": "LogAppendTime",
    "segment.ms": "60000",  # the newest segment is not compacted
    "segment.bytes": str(4 * 2**20),
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": "600000",
}

_logger = logging.getLogger("tablegate.gateway.replication")
_record = tuple.__new__  # Record(...) costs twice as much, a million times a restore


class KafkaLog(Log):
    """A client of Kafka brokers. `options` are librdkafka's, for security; ours win."""

    def __init__(self, bootstrap: str, options: Mapping[str, str] | None = None) -> None:
        self._client = {**(options or {}), "bootstrap.servers": bootstrap, "client.id": "tablegate"}
        self._bootstrap = bootstrap
        self._trouble = ""
        try:
            self._consumer = self._new_consumer()
            self._admin = self._new_admin()
        except KafkaException as error:
            raise LogUnavailable(f"the Kafka client refuses its options: {error.args[0].str()}") from None
        self._appender = KafkaAppender(self._client)
        self._followed: dict[TopicPartition, Offset] = {}
        self._looks, self._reads = Renewal(), Renewal()
        self._heard_s = 0.0  # when the consumer brought something
        self._is_deaf = False  # it is to be made anew
        self._closed = False

    def _new_consumer(self) -> Consumer:
        return Consumer({**self._client, **_CONSUMER_OPTIONS, "error_cb": self._note}, logger=quiet_logger())

    def _new_admin(self) -> AdminClient:
        return AdminClient({**self._client, "reconnect.backoff.max.ms": 2_000}, logger=quiet_logger())

    @override
    def look(self, topic: str) -> "Future[TopicFacts | None]":
        answer: Future[TopicFacts | None] = Future()
        # A daemon, as a process that ends waits for no broker.
        threading.Thread(target=self._answer, args=(topic, answer), name="kafka-look", daemon=True).start()
        return answer

    def _answer(self, topic: str, answer: "Future[TopicFacts | None]") -> None:
        try:
            facts = self._look(topic)
        except Exception as error:  # noqa: BLE001  it belongs to whoever takes the answer
            answer.set_exception(error)
            return
        answer.set_result(facts)
        self._listen(topic)

    def _look(self, topic: str) -> TopicFacts | None:
        try:
            facts = self._describe(topic)
        except KafkaException as error:
            self._note_no_answer()
            raise LogUnavailable(f"Kafka at {self._bootstrap} does not answer: {error.args[0].str()}") from None
        except TimeoutError:
            self._note_no_answer()
            raise LogUnavailable(f"Kafka at {self._bootstrap} does not answer") from None
        self._looks.succeeded()
        self._trouble = ""
        return facts

    def _note_no_answer(self) -> None:
        if self._looks.failed():
            self._admin = self._new_admin()

    def _listen(self, topic: str) -> None:
        """See whether the consumer is told what another client was told just now, where nothing came of it lately."""
        if time.monotonic() < self._heard_s + QUIET_S:
            self._reads.succeeded()
            return
        try:
            self._consumer.list_topics(topic, timeout=LOOK_TIMEOUT_S)
        except (KafkaException, RuntimeError):  # the latter of one that was closed meanwhile
            self._is_deaf = self._is_deaf or self._reads.failed()
        else:
            self._reads.succeeded()

    def _describe(self, topic: str) -> TopicFacts | None:
        wait: Any = {"request_timeout": LOOK_TIMEOUT_S}
        asked = self._admin.describe_topics(TopicCollection([topic]), **wait)[topic]
        try:
            description = asked.result(LOOK_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise
        partitions = range(len(description.partitions))
        wait["isolation_level"] = IsolationLevel.READ_UNCOMMITTED
        bounds = []
        for spec in (OffsetSpec.earliest(), OffsetSpec.latest()):  # type: ignore[no-untyped-call]
            answers = self._admin.list_offsets({KafkaPartition(topic, number): spec for number in partitions}, **wait)
            found = {asked.partition: answer.result(LOOK_TIMEOUT_S).offset for asked, answer in answers.items()}
            bounds.append(tuple(Offset(found[number]) for number in partitions))
        return TopicFacts(str(description.topic_id), bounds[0], bounds[1], self._delete_retention_ms(topic))

    def _delete_retention_ms(self, topic: str) -> int:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        answer = self._admin.describe_configs([resource], request_timeout=LOOK_TIMEOUT_S)[resource]
        try:
            return int(answer.result(LOOK_TIMEOUT_S)["delete.retention.ms"].value)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                return DELETE_RETENTION_MS
            raise

    @override
    def follow(self, source: TopicPartition, next_offset: Offset) -> None:
        self.unfollow(source)
        self._consumer.incremental_assign([KafkaPartition(source.topic, source.partition, next_offset)])
        self._followed[source] = next_offset

    @override
    def unfollow(self, source: TopicPartition) -> None:
        if self._followed.pop(source, None) is not None:
            self._consumer.incremental_unassign([KafkaPartition(source.topic, source.partition)])

    @override
    def fetch(self, *, records_max: int, timeout_s: float) -> list[Fetched]:
        # `consume` alone would wait for a full batch; so one record is awaited, and those behind it are taken.
        if self._is_deaf:
            self._hear_again()
        first = self._consumer.poll(timeout_s)
        if first is None:
            return []
        self._heard_s = time.monotonic()
        found: dict[tuple[str, int], list[Record]] = {}
        ends: dict[TopicPartition, Offset] = {}
        lost: dict[TopicPartition, Offset] = {}
        for message in (first, *self._consumer.consume(records_max - 1, 0)):
            at: Any = (message.topic(), message.partition())
            if message.error() is not None:
                self._note_event(message, TopicPartition(*at), ends, lost)
                continue
            records = found.get(at)
            if records is None:
                records = found[at] = []
            version, time_ms = _version(message.headers()), message.timestamp()[1]
            records.append(_record(Record, (message.offset(), message.key(), message.value(), version, time_ms)))
        return self._delivered(found, ends, lost)

    def _hear_again(self) -> None:
        """Follow what is followed with another consumer, from where this one was."""
        _logger.warning("the Kafka client is told nothing while Kafka answers others; another one goes on")
        deaf, self._consumer = self._consumer, self._new_consumer()
        self._is_deaf = False
        self._consumer.incremental_assign(
            [KafkaPartition(each.topic, each.partition, next_offset) for each, next_offset in self._followed.items()]
        )
        threading.Thread(target=deaf.close, name="kafka-close", daemon=True).start()  # it may wait for brokers

    def _delivered(
        self,
        found: dict[tuple[str, int], list[Record]],
        ends: dict[TopicPartition, Offset],
        lost: dict[TopicPartition, Offset],
    ) -> list[Fetched]:
        fetched = []
        for topic, partition in dict.fromkeys([*found, *ends, *lost]):
            source = TopicPartition(topic, Partition(partition))
            if source not in self._followed:
                continue
            if source in lost:
                fetched.append(Fetched(source, [], lost[source], lost=True))
                self.unfollow(source)
                continue
            records = found.get(source, [])
            next_offset = Offset(records[-1].offset + 1) if records else self._followed[source]
            next_offset = max(next_offset, ends.get(source, next_offset))
            self._followed[source] = next_offset
            fetched.append(Fetched(source, records, next_offset))
        return fetched

    def _note_event(
        self,
        message: Message,
        source: TopicPartition,
        ends: dict[TopicPartition, Offset],
        lost: dict[TopicPartition, Offset],
    ) -> None:
        error = message.error()
        assert error is not None
        if error.code() == KafkaError._PARTITION_EOF:
            ends[source] = Offset(message.offset())  # type: ignore[arg-type]
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            lost[source] = self._followed.get(source, Offset(0))
        else:
            self._note(error)

    def _note(self, error: KafkaError) -> None:
        if error.code() in (KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION, KafkaError._SSL):
            self._trouble = f"Kafka at {self._bootstrap} cannot be reached: {error.str()}"
        elif error.code() not in (KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._TIMED_OUT):
            _logger.warning("kafka client: %s", error.str(), extra={"code": error.name()})

    @override
    def create(self, topic: str) -> "Future[None]":
        answer: Future[None] = Future()
        threading.Thread(target=self._create, args=(topic, answer), name="kafka-create", daemon=True).start()
        return answer

    def _create(self, topic: str, answer: "Future[None]") -> None:
        wanted = NewTopic(topic, num_partitions=1, replication_factor=-1, config=dict(COMPACTED_TOPIC))
        try:
            self._admin.create_topics([wanted], request_timeout=LOOK_TIMEOUT_S)[topic].result(LOOK_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                answer.set_exception(LogUnavailable(error.args[0].str()))
                return
        except Exception as error:  # noqa: BLE001  it belongs to whoever takes the answer
            answer.set_exception(LogUnavailable(str(error) or "no answer in time"))
            return
        answer.set_result(None)

    @override
    def append(self, topic: str, key: bytes, value: bytes | None) -> None:
        self._appender.append(topic, key, value)

    @override
    def trouble(self) -> str:
        return self._trouble

    @override
    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._appender.close()
            self._consumer.close()


def _version(headers: Any) -> bytes | None:
    for name, value in headers or ():
        if name == VERSION_HEADER:
            version: bytes | None = value
            return version
    return None
