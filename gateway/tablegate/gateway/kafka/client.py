"""The log in Kafka: one consumer, one admin client and one producer of librdkafka behind the `Log` protocol.

How it is used. One thread follows topic partitions and fetches; it never joins a group and commits nothing, as
positions lie in the store with the rows. Questions about topics wait for brokers, up to seconds, so each has a thread
of its own and a future. Announcements are produced without waiting.

The last thing that a broker says while it shuts down may be that there are no brokers. librdkafka then forgets those
that it was started with, too, and never connects again (https://github.com/confluentinc/librdkafka/issues/5301). From
outside that looks like Kafka being away. So each of the three clients has a `Renewal`: one that gets no answer for long
is replaced by a new one, which reads secrets and certificates anew. The consumer is idle on a quiet topic, which is no
sign of trouble; it is suspected only when another client was answered a moment ago (`_check_consumer`). It may be deaf
for one partition, too, of which Kafka is known to have more (`_check_partitions`).

What was read is proved before more is: a partition that is followed from a place of a known leader epoch is fetched
from the last record before it, once more. Where that is not there in its epoch, the log is another one (`_is_proved`).
While a partition is fetched, librdkafka asks for the end of the epoch itself whenever there is a new leader.

Decision: docs/decisions/0065-the-last-record-is-read-again.md
Decision: docs/decisions/0047-replace-deaf-kafka-clients.md
Decision: docs/decisions/0028-latest-is-asked-by-the-replicator.md
"""

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
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
from typing_extensions import override

from tablegate.gateway.contract.foreign.framing import KEY_HEADER, VALUE_HEADER, SchemaIds
from tablegate.gateway.contract.kafka_refusals import Right, refused_connection, refused_right
from tablegate.gateway.contract.lineage import UNKNOWN_EPOCH, EpochRun, Lineage, Place, continued, lineage_of, place_at
from tablegate.gateway.contract.types import RUN_HEADER, VERSION_HEADER, Offset, Partition
from tablegate.gateway.kafka.fresh_options import fresh
from tablegate.gateway.kafka.log import (
    Fetched,
    Log,
    LogUnavailable,
    NotAllowed,
    Record,
    RecordId,
    TopicFacts,
    TopicPartition,
)
from tablegate.gateway.kafka.repeater import repeat_records

REQUEST_TIMEOUT_S = 5.0
STILL_S = 15.0  # what is queued before the records of a partition, in a restore, is mostly applied sooner
STILL_MAX_S = 600.0  # that doubles each time: brokers that hold a client back for longer would begin again each time
QUIET_S = 5.0  # a consumer that brings nothing for longer is asked whether it still has brokers
APPEND_TIMEOUT_S = 2.0  # an older beat is worth nothing
CLOSE_TIMEOUT_S = 2.0
RENEW_S = 10.0  # several times what a client needs that can connect again
DELETE_RETENTION_MS = 86_400_000  # Kafka's default, where we may not ask or are not told

_PASSWORD = "sasl.password"

_CONSUMER_OPTIONS: Mapping[str, str | int | bool] = {
    "group.id": "tablegate",  # librdkafka wants one; no group is joined and nothing is committed
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",  # never skip in silence
    "isolation.level": "read_committed",  # librdkafka's default, on which atomic tables rely
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


class _Still(NamedTuple):
    """A partition that stands still: where, and since when at the latest, by the monotonic clock."""

    next_offset: Offset
    since_s: float


class KafkaLog(Log):
    """A client of Kafka brokers. `options` are librdkafka's, for security; ours win."""

    def __init__(
        self,
        bootstrap: str,
        options: Mapping[str, Any] | None = None,
        *,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        quiet_s: float = QUIET_S,
        renew_s: float = RENEW_S,
        still_s: float = STILL_S,
    ) -> None:
        self._options = options
        self._others: list[KafkaLog] = []  # what this one hears of Kafka holds for them, too
        self._request_timeout_s = request_timeout_s
        self._renew_s = renew_s
        self._quiet_s = quiet_s
        self._still_s = self._suspected_after_s = still_s
        self._client = fresh(options).also({"bootstrap.servers": bootstrap, "client.id": "tablegate"})
        self._password = self._client.get(_PASSWORD)
        self._bootstrap = bootstrap
        self._trouble = ""
        self._unreadable: set[str] = set()  # those of which they give it no records
        try:
            self._consumer = self._new_consumer()
            self._admin = self._new_admin()
        except KafkaException as error:
            raise LogUnavailable(_refused_options(error)) from None
        self._appender = KafkaAppender(self._client, renew_s)
        self._followed: dict[TopicPartition, Place] = {}
        self._unproved: set[TopicPartition] = set()  # of those: what was read before is not known to be there still
        self._ends: dict[str, Sequence[Offset]] = {}  # of topics that were described since the last fetch
        self._still: dict[TopicPartition, _Still] = {}  # of which Kafka had more
        self._descriptions, self._reads = Renewal(renew_s), Renewal(renew_s)
        self._received_s = 0.0  # when the consumer last brought something
        self._must_renew = False  # the consumer is to be replaced
        self._closed = False

    def _new_consumer(self) -> Consumer:
        return Consumer({**self._client, **_CONSUMER_OPTIONS, "error_cb": self._note}, logger=quiet_logger())

    def _new_admin(self) -> AdminClient:
        return AdminClient({**self._client, "reconnect.backoff.max.ms": 2_000}, logger=quiet_logger())

    @override
    def describe_topic(self, topic: str) -> "Future[TopicFacts | None]":
        answer: Future[TopicFacts | None] = Future()
        # A daemon, as a process that ends waits for no broker.
        threading.Thread(target=self._answer, args=(topic, answer), name="kafka-describe", daemon=True).start()
        return answer

    def _answer(self, topic: str, answer: "Future[TopicFacts | None]") -> None:
        try:
            facts = self._ask(topic)
        except Exception as error:  # noqa: BLE001  it belongs to whoever asked
            answer.set_exception(error)
            return
        answer.set_result(facts)
        for log in (self, *self._others):
            if facts is not None:
                log._ends[topic] = facts.end_offsets
            log._check_consumer(topic)

    def _take_up_password(self) -> None:
        """Tell the clients a password that has changed: their next connection uses it."""
        password = self._client.get(_PASSWORD)
        if password is not None and password != self._password:
            self._password = password
            for client in (self._consumer, self._admin):
                client.set_sasl_credentials(self._client["sasl.username"], password)
            _logger.info("the password of the user of Kafka has changed, and is taken up")

    def _no_answer(self, why: str = "") -> LogUnavailable:
        return LogUnavailable(f"Kafka at {self._bootstrap} does not answer{why}; see that it runs there")

    def _ask(self, topic: str) -> TopicFacts | None:
        for log in (self, *self._others):
            log._take_up_password()
        try:
            facts = self._describe(topic)
        except KafkaException as error:
            refused = refused_right(self._client, error.args[0].name(), Right("Read", "topic", topic))
            if refused is not None:
                raise NotAllowed(refused) from None
            self._record_no_answer()
            raise self._no_answer(f" ({error.args[0].str()})") from None
        except TimeoutError:
            self._record_no_answer()
            raise self._no_answer() from None
        self._descriptions.succeeded()
        self._trouble = ""
        return facts

    def _record_no_answer(self) -> None:
        if self._descriptions.failed():
            with _keeping_the_old():
                self._admin = self._new_admin()

    def _check_consumer(self, topic: str) -> None:
        """Ask a quiet consumer what another client was just answered: without an answer it has lost its brokers."""
        if time.monotonic() < self._received_s + self._quiet_s:
            self._reads.succeeded()
            return
        try:
            self._consumer.list_topics(topic, timeout=self._request_timeout_s)
        except (KafkaException, RuntimeError):  # the latter of one that was closed meanwhile
            self._must_renew = self._must_renew or self._reads.failed()
        else:
            self._reads.succeeded()

    def _describe(self, topic: str) -> TopicFacts | None:
        timeout_s = self._request_timeout_s
        wait: Any = {"request_timeout": timeout_s}
        asked = self._admin.describe_topics(TopicCollection([topic]), **wait)[topic]
        try:
            description = asked.result(timeout_s)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise
        partitions = range(len(description.partitions))
        # The end of what is committed, and so can be read. Behind it may be a transaction that a dead job left open:
        # who waited for its records would wait until the brokers give it up.
        wait["isolation_level"] = IsolationLevel.READ_COMMITTED
        bounds = []
        epochs: list[int] = []
        for spec in (OffsetSpec.earliest(), OffsetSpec.latest()):  # type: ignore[no-untyped-call]
            answers = self._admin.list_offsets({KafkaPartition(topic, number): spec for number in partitions}, **wait)
            found = {asked.partition: answer.result(timeout_s) for asked, answer in answers.items()}
            bounds.append(tuple(Offset(found[number].offset) for number in partitions))
            epochs = [_known_epoch(found[number].leader_epoch) for number in partitions]  # of the leader, with the end
        config = self._config(topic)
        policy = _entry(config, "cleanup.policy", "compact")
        return TopicFacts(
            str(description.topic_id),
            bounds[0],
            bounds[1],
            retention_ms_of(config),
            tuple(epochs),
            deletes_old="delete" in policy,
            retention_ms=_number(_entry(config, "retention.ms", ""), -1),
        )

    def _config(self, topic: str) -> Mapping[str, Any]:
        """Return the entries of a topic's configuration; nothing where we may not ask."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        answer = self._admin.describe_configs([resource], request_timeout=self._request_timeout_s)[resource]
        try:
            config: Mapping[str, Any] = answer.result(self._request_timeout_s)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                return {}
            raise
        return config

    @override
    def follow(self, topic_partition: TopicPartition, place: Place) -> None:
        self.unfollow(topic_partition)
        self._assign({topic_partition: place})

    def _assign(self, places: Mapping[TopicPartition, Place]) -> None:
        """Have partitions fetched from these places on; from the last record before, where its epoch is known."""
        assigned = []
        for (topic, partition), place in places.items():
            if place.leader_epoch == UNKNOWN_EPOCH:
                assigned.append(KafkaPartition(topic, partition, place.next_offset))
            else:
                last = place.read_end - 1
                assigned.append(KafkaPartition(topic, partition, last, leader_epoch=place.leader_epoch))
                self._unproved.add(TopicPartition(topic, partition))
        self._consumer.incremental_assign(assigned)
        self._followed.update(places)

    @override
    def unfollow(self, topic_partition: TopicPartition) -> None:
        self._unproved.discard(topic_partition)
        self._still.pop(topic_partition, None)
        if self._followed.pop(topic_partition, None) is not None:
            self._consumer.incremental_unassign([KafkaPartition(topic_partition.topic, topic_partition.partition)])

    @override
    def fetch(self, *, records_max: int, timeout_s: float) -> list[Fetched]:
        while self._ends:
            self._check_partitions(*self._ends.popitem())
        if self._must_renew:
            self._renew_consumer()
        # `consume` alone would wait for a full batch: `poll` waits for one record, `consume` adds those behind it.
        first = self._consumer.poll(timeout_s)
        if first is None:
            return []
        self._received_s = time.monotonic()
        found: dict[tuple[str, int], list[Record]] = {}
        firsts: dict[tuple[str, int], Message] = {}
        lasts: dict[tuple[str, int], Message] = {}
        ends: dict[TopicPartition, Offset] = {}
        lost: dict[TopicPartition, Offset] = {}
        messages = [first, *self._consumer.consume(records_max - 1, 0)]
        for message in messages:
            at: Any = (message.topic(), message.partition())
            if message.error() is not None:
                self._record_event(message, TopicPartition(*at), ends, lost)
                continue
            records = found.get(at)
            if records is None:
                records = found[at] = []
                firsts[at] = message
            lasts[at] = message
            headers: Any = message.headers()
            time_ms = message.timestamp()[1]
            ids = None
            if not headers:
                version = None  # as in topics of others: a call for each record is spared
            elif len(headers) == 1 and headers[0][0] == VERSION_HEADER:
                version = headers[0][1]  # as in ours
            else:
                version, ids = _own_headers(headers)
            records.append(_record(Record, (message.offset(), message.key(), message.value(), version, time_ms, ids)))
        runs = {at: _runs(at, firsts[at], lasts[at], messages) for at in found}
        return self._delivered(found, runs, ends, lost)

    def _renew_consumer(self) -> None:
        """Go on with a new consumer, at the offsets that the old one had delivered."""
        self._must_renew = False
        now_s = time.monotonic()
        self._still = {each: still._replace(since_s=now_s) for each, still in self._still.items()}
        old = self._consumer
        with _keeping_the_old():
            self._consumer = self._new_consumer()
        if self._consumer is old:
            return
        _logger.warning("the Kafka consumer hears nothing while Kafka answers others; a new consumer replaces it")
        self._assign(self._followed)
        threading.Thread(target=old.close, name="kafka-close", daemon=True).start()  # it may wait for brokers

    def _check_partitions(self, topic: str, end_offsets: Sequence[Offset]) -> None:
        """Suspect a consumer that has brought nothing of a partition for long, though the brokers say that it has more.

        Others may be heard of all the while. To follow the partition anew is not enough: the consumer knows it still.
        """
        now_s, is_deaf = time.monotonic(), False
        for partition, end_offset in enumerate(end_offsets):
            topic_partition = TopicPartition(topic, Partition(partition))
            place, still = self._followed.get(topic_partition), self._still.pop(topic_partition, None)
            if place is None or place.next_offset >= end_offset or topic in self._unreadable:
                continue
            if still is None or still.next_offset != place.next_offset:
                still = _Still(place.next_offset, now_s)
            self._still[topic_partition] = still
            if now_s >= still.since_s + self._suspected_after_s:
                where = f'partition {partition} of topic "{topic}" behind offset {place.next_offset - 1}'
                _logger.warning("nothing comes of %s, though it ends at %d", where, end_offset)
                is_deaf = True
        if is_deaf:
            self._must_renew = True
            self._suspected_after_s = min(2 * self._suspected_after_s, STILL_MAX_S)
        elif not self._still:
            self._suspected_after_s = self._still_s

    def _delivered(
        self,
        found: dict[tuple[str, int], list[Record]],
        runs_of: Mapping[tuple[str, int], Lineage],
        ends: dict[TopicPartition, Offset],
        lost: dict[TopicPartition, Offset],
    ) -> list[Fetched]:
        fetched = []
        for topic, partition in dict.fromkeys([*found, *ends, *lost]):
            topic_partition = TopicPartition(topic, Partition(partition))
            if topic_partition not in self._followed:
                continue
            if topic_partition in lost:
                fetched.append(Fetched(topic_partition, [], lost[topic_partition], lost=True))
                self.unfollow(topic_partition)
                continue
            place = self._followed[topic_partition]
            records, runs = found.get(topic_partition, []), runs_of.get(topic_partition, ())
            if topic_partition in self._unproved:
                if not _is_proved(place, runs, ends.get(topic_partition)):
                    fetched.append(Fetched(topic_partition, [], place.next_offset, lost=True))
                    self.unfollow(topic_partition)
                    continue
                self._unproved.discard(topic_partition)
                # What was read again is known already.
                records = [record for record in records if record.offset >= place.read_end]
                runs = tuple(
                    run._replace(start=max(run.start, place.read_end)) for run in runs if run.end > place.read_end
                )
            next_offset = max(place.next_offset, ends.get(topic_partition, place.next_offset))
            if records:
                next_offset = max(next_offset, Offset(records[-1].offset + 1))
            self._followed[topic_partition] = place_at(runs or lineage_of(place), next_offset)
            fetched.append(Fetched(topic_partition, records, next_offset, runs=runs))
        return fetched

    def _record_event(
        self,
        message: Message,
        topic_partition: TopicPartition,
        ends: dict[TopicPartition, Offset],
        lost: dict[TopicPartition, Offset],
    ) -> None:
        error = message.error()
        assert error is not None
        if error.code() == KafkaError._PARTITION_EOF:
            ends[topic_partition] = Offset(message.offset())  # type: ignore[arg-type]
        elif error.code() in (
            KafkaError._AUTO_OFFSET_RESET,
            KafkaError.OFFSET_OUT_OF_RANGE,
            KafkaError._LOG_TRUNCATION,
        ):
            place = self._followed.get(topic_partition)
            lost[topic_partition] = Offset(0) if place is None else place.next_offset
        elif error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            if topic_partition.topic not in self._unreadable:
                self._unreadable.add(topic_partition.topic)
                right = Right("Read", "topic", topic_partition.topic)
                self._trouble = refused_right(self._client, error.name(), right) or ""
                _logger.warning("%s", self._trouble)
        else:
            self._note(error)

    def _note(self, error: KafkaError) -> None:
        refused = refused_connection(self._client, error.name(), error.str())
        if refused is not None:
            self._trouble = refused
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:  # it follows why each of them is
            self._trouble = self._trouble or f"Kafka at {self._bootstrap} cannot be reached: {error.str()}"
        elif error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            pass  # librdkafka asks who coordinates the group that it wants a name of; none is joined
        elif error.code() not in (KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._TIMED_OUT):
            _logger.warning("kafka client: %s", error.str(), extra={"code": error.name()})

    @override
    def create(self, topic: str) -> "Future[None]":
        answer: Future[None] = Future()
        threading.Thread(target=self._create, args=(topic, answer), name="kafka-create", daemon=True).start()
        return answer

    def _create(self, topic: str, answer: "Future[None]") -> None:
        wanted = NewTopic(topic, num_partitions=1, replication_factor=-1, config=dict(COMPACTED_TOPIC))
        timeout_s = self._request_timeout_s
        try:
            self._admin.create_topics([wanted], request_timeout=timeout_s)[topic].result(timeout_s)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                answer.set_exception(LogUnavailable(error.args[0].str()))
                return
        except Exception as error:  # noqa: BLE001  it belongs to whoever asked
            answer.set_exception(LogUnavailable(str(error) or "no answer in time"))
            return
        answer.set_result(None)

    @override
    def append(self, topic: str, key: bytes, value: bytes | None) -> None:
        self._appender.append(topic, key, value)

    @override
    def repeat(self, topic_partition: TopicPartition, records: Sequence[RecordId]) -> "Future[list[RecordId]]":
        answer: Future[list[RecordId]] = Future()
        args = topic_partition, records, answer
        threading.Thread(target=self._repeat, args=args, name="kafka-repeat", daemon=True).start()
        return answer

    def _repeat(
        self, topic_partition: TopicPartition, records: Sequence[RecordId], answer: "Future[list[RecordId]]"
    ) -> None:
        try:
            answer.set_result(repeat_records(self._client, topic_partition, records))
        except Exception as error:  # noqa: BLE001  it belongs to whoever asked
            answer.set_exception(error if isinstance(error, LogUnavailable) else LogUnavailable(str(error)))

    @override
    def another(self) -> "KafkaLog":
        other = KafkaLog(
            self._bootstrap,
            self._options,
            request_timeout_s=self._request_timeout_s,
            quiet_s=self._quiet_s,
            renew_s=self._renew_s,
            still_s=self._still_s,
        )
        self._others.append(other)
        return other

    @override
    def trouble(self) -> str:
        return self._trouble

    @override
    def close(self) -> None:
        if not self._closed:
            self._closed = True
            for other in self._others:
                other.close()
            self._appender.close()
            self._consumer.close()


@contextmanager
def _keeping_the_old() -> Iterator[None]:
    """Go on with a client where none can be made in its place: a file of a certificate may be half written just now."""
    try:
        yield
    except KafkaException as error:
        _logger.warning("%s", _refused_options(error))


def _refused_options(error: KafkaException) -> str:
    return f"the Kafka client refuses its options: {error.args[0].str()}; correct the file of --kafka"


def retention_ms_of(config: Mapping[str, Any]) -> int:
    """Return a topic's `delete.retention.ms` of the entries that a broker told of it; Kafka's default without one."""
    return _number(_entry(config, "delete.retention.ms", ""), DELETE_RETENTION_MS)


def _entry(config: Mapping[str, Any], name: str, default: str) -> str:
    value = getattr(config.get(name), "value", None)
    return value if isinstance(value, str) else default


def _number(text: str, default: int) -> int:
    try:
        return int(text)
    except ValueError:
        return default


def _own_headers(headers: Any) -> tuple[bytes | None, SchemaIds | None]:
    """Return the version of a record, with its run behind it, if it has one; and what it says of its schemas.

    Of several headers for a schema the first counts, as for Confluent's clients.
    """
    version: bytes | None = None
    run: bytes | None = None
    key_schema: bytes | None = None
    value_schema: bytes | None = None
    for name, value in headers:
        if name == VERSION_HEADER:
            version = value
        elif name == RUN_HEADER:
            run = value
        elif name == KEY_HEADER and key_schema is None:
            key_schema = value
        elif name == VALUE_HEADER and value_schema is None:
            value_schema = value
    ids = None if key_schema is None and value_schema is None else SchemaIds(key_schema, value_schema)
    return version if version is None or run is None else version + run, ids


def _known_epoch(leader_epoch: int | None) -> int:
    return UNKNOWN_EPOCH if leader_epoch is None else max(leader_epoch, UNKNOWN_EPOCH)


def _runs(at: tuple[str, int], first: Message, last: Message, messages: Sequence[Message]) -> Lineage:
    """Return of which leader epochs the records of a partition are; nothing where none is told.

    Epochs are asked for record by record only where the first and the last are of different ones, which is rare.
    """
    ends: tuple[Message, ...] = (first, last)
    if first.leader_epoch() != last.leader_epoch():
        ends = tuple(each for each in messages if each.error() is None and (each.topic(), each.partition()) == at)
    runs: Lineage = ()
    for message in ends:
        epoch, offset = _known_epoch(message.leader_epoch()), Offset(message.offset() or 0)
        if epoch == UNKNOWN_EPOCH:
            return ()
        runs = continued(runs, [EpochRun(epoch, offset, Offset(offset + 1))])
    return runs


def _is_proved(place: Place, runs: Lineage, end_offset: Offset | None) -> bool:
    """Return whether what follows from the last record before a place shows that this record is of the log.

    Its epoch is enough, as compaction may have removed the record itself: a log that has a later one of that epoch has
    all that was written in it before. A later epoch proves nothing. Where nothing follows, nothing was written since:
    the last record of a log stays, and a tombstone for longer than a store may be away.
    """
    if runs:
        return runs[0].leader_epoch == place.leader_epoch
    return end_offset is not None and end_offset >= place.next_offset


class KafkaAppender:
    """A producer, made when it is needed first. `options` are librdkafka's. One thread."""

    def __init__(self, options: Mapping[str, Any], renew_s: float) -> None:
        self._options = options
        self._producer: Producer | None = None
        self._is_failing = False
        self._renewal = Renewal(renew_s)
        self._must_renew = False  # the producer is to be replaced

    def append(self, topic: str, key: bytes, value: bytes | None) -> None:
        """Write a record to the first partition, behind those before; what is not accepted in time is lost."""
        if self._must_renew:
            self._drop_producer()
        try:
            if self._producer is None:
                self._producer = Producer(
                    {
                        **self._options,
                        "linger.ms": 0,
                        "max.in.flight.requests.per.connection": 1,  # a retry must not land behind a later record
                        "message.timeout.ms": round(APPEND_TIMEOUT_S * 1_000),
                        "reconnect.backoff.max.ms": 2_000,
                    },
                    logger=quiet_logger(),
                )
            self._producer.produce(topic, key=key, value=value, partition=0, on_delivery=self._note)
        except BufferError:
            self._fail("its queue is full")
        except KafkaException as error:  # a record that is too large, for one: whatever it is, what is here is served
            self._fail(error.args[0].str())
        if self._producer is not None:
            self._producer.poll(0)

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._is_failing = False
            self._renewal.succeeded()
        else:
            self._fail(f"{error.str()}, topic {message.topic()}")
            self._must_renew = self._must_renew or self._renewal.failed()

    def _fail(self, why: str) -> None:
        if not self._is_failing:
            self._is_failing = True
            _logger.warning("announcements of this gateway do not reach Kafka (%s); it goes on without", why)

    def _drop_producer(self) -> None:
        assert self._producer is not None
        self._producer.purge()
        self._producer.poll(0)
        self._producer, self._must_renew = None, False

    def close(self) -> None:
        """Wait a moment for what was appended."""
        if self._producer is not None:
            self._producer.flush(CLOSE_TIMEOUT_S)


class Renewal:
    """Decides when one client is replaced: after `renew_s` without a success. Any thread."""

    def __init__(self, renew_s: float = RENEW_S) -> None:
        self._renew_s = renew_s
        self._failing_s: float | None = None

    def succeeded(self) -> None:
        """Record that Kafka answered."""
        self._failing_s = None

    def failed(self) -> bool:
        """Record that Kafka did not answer; return whether the client is to be replaced now."""
        now_s = time.monotonic()
        failing_s = self._failing_s
        if failing_s is None:
            self._failing_s = now_s
        elif now_s >= failing_s + self._renew_s:
            self._failing_s = None
            return True
        return False


def quiet_logger() -> logging.Logger:
    """Return the logger of librdkafka, which hides all but critical lines: we log what they mean."""
    logger = logging.getLogger("tablegate.gateway.replication.librdkafka")
    logger.setLevel(logging.CRITICAL)
    return logger


class KafkaEnds:
    """The end offsets of topics, for reads that must be as fresh as the changelog is now.

    A client of its own, created at the first question. One thread. `options` are librdkafka's.
    """

    def __init__(self, bootstrap: str, options: Mapping[str, Any]) -> None:
        self._options = fresh(options).also({"bootstrap.servers": bootstrap, "client.id": "tablegate-ends"})
        self._admin: AdminClient | None = None
        self._renewal = Renewal()

    def end_offsets(self, topic: str) -> Mapping[int, int]:
        """Return the end offset of each partition, by its number; raise `LogUnavailable`."""
        try:
            if self._admin is None:
                self._admin = AdminClient({**self._options, "reconnect.backoff.max.ms": 2_000}, logger=quiet_logger())
            described = self._admin.list_topics(topic, timeout=REQUEST_TIMEOUT_S).topics[topic]
            if described.error is not None:
                raise KafkaException(described.error)
            latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
            answers = self._admin.list_offsets(
                {KafkaPartition(topic, number): latest for number in described.partitions},
                isolation_level=IsolationLevel.READ_COMMITTED,  # see `KafkaLog._describe`
                request_timeout=REQUEST_TIMEOUT_S,
            )
            ends = {asked.partition: answer.result(REQUEST_TIMEOUT_S).offset for asked, answer in answers.items()}
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


def refusal(options: Mapping[str, Any]) -> str | None:
    """Return why brokers refuse a client of these options, as a sentence; None where they answer, or are away."""
    errors: list[KafkaError] = []
    client: Any = {**options, "error_cb": errors.append}
    try:
        admin = AdminClient(client, logger=quiet_logger())
    except KafkaException as error:
        return _refused_options(error)
    with suppress(KafkaException):
        admin.list_topics(timeout=REQUEST_TIMEOUT_S)
        return None
    admin.poll(0)  # the errors come only then
    for found in errors:
        if (why := refused_connection(options, found.name(), found.str())) is not None:
            return why
    return None
