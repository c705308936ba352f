"""Topics of a job: found, created with the right settings, or refused where their settings would lose data."""

import re
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined] # its stubs do not export them
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tablegate.gateway.contract.kafka_refusals import Right, refused_connection, refused_right
from tablegate.gateway.contract.kafka_settings import own_group, own_topic, settings_of, source_cluster
from tablegate.gateway.contract.types import COMPACTION_LAG_MS
from tablegate.jobs.errors import BrokersAway, JobError

Answer = TypeVar("Answer")

RETRY_S = 0.05
BROKER_TIMEOUT_S = 10.0  # a person waits for it; a healthy broker answers in milliseconds
EPOCHS_TIMEOUT_S = 2.0  # a running job asks, which has other tables; it asks again a second later
LEADERS_KEPT_MS = 24 * 60 * 60 * 1000  # the most that librdkafka takes: `_Client`
COORDINATORS_KEPT_MS = 500  # a client that asks a coordinator of before waits for it in vain
CLUSTERS_MAX = 8  # of which a process keeps its client
CLIENT_STAYS_S = 3 * BROKER_TIMEOUT_S
QUIET_CLIENT = {"log_level": 0}  # librdkafka would write every lost connection to stderr; errors are raised anyway

HOUR_MS = 60 * 60 * 1000
_CHANGELOG_SETTINGS = {
    "cleanup.policy": "compact",
    # The time in which a stale record that landed late is healed before compaction drops the newer one, and in which
    # a store that is restored knows the row that each change replaced.
    "min.compaction.lag.ms": str(COMPACTION_LAG_MS),
    # A reader's staleness counts from the time the row arrived, not from the job's clock.
    "message.timestamp.type": "LogAppendTime",
}
MANIFESTS_TOPIC = "tables"
MANIFESTS_SETTINGS = {"cleanup.policy": "compact"}
DEAD_LETTERS_SETTINGS = {"cleanup.policy": "delete"}
DEAD_LETTERS_NEW_SETTINGS = {"retention.ms": str(14 * 24 * HOUR_MS)}
EXPIRED_KEPT_MS = 24 * HOUR_MS  # how far clocks and event times may be ahead of the brokers' before rows go too early

_FOR_EVER = -1  # as a retention.ms
_GROUPS_COMING = (
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
)
"""Errors about groups until Kafka has created the topic that it keeps them in, which it does at the first request."""
_LEADERS_COMING = (
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError._NOENT,  # of all partitions the client knows no leader that is there
)
"""Errors about offsets of a new topic, and after an election, until broker and client know the leader."""
AWAY = (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._MSG_TIMED_OUT, KafkaError._ALL_BROKERS_DOWN)
"""Errors of a client that no broker answers."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the cluster has it. `topic_id`: a topic deleted and made again has another."""

    name: str
    topic_id: str
    partition_count: int


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A client in a consumer group: the host it runs on, the name it has given itself, and that of the broker.

    `is_assigned`: whether the broker has given it partitions; none has any while the group is changing.
    """

    host: str
    client_id: str
    member_id: str
    is_assigned: bool


def source_admin(bootstrap: str) -> "KafkaAdmin":
    """Return what asks about the sources of tables in a cluster, which may be in another one."""
    return KafkaAdmin(source_cluster(bootstrap))


def manifests_topic(bootstrap: str) -> str:
    """Return the name of the topic that has the manifests of all tables of this installation."""
    return own_topic(bootstrap, MANIFESTS_TOPIC)


def changelog_name(bootstrap: str, table: str, generation: int) -> str:
    """Return the name of a table's changelog topic."""
    return own_topic(bootstrap, f"{table}-g{generation}-changelog")


def changelog_settings(lifetime_us: int | None) -> dict[str, str]:
    """Return the settings of a changelog whose rows are gone `lifetime_us` after their last change; None: they stay.

    Nobody writes tombstones for rows that are gone, so Kafka drops their records by their age.
    """
    if lifetime_us is None:
        return dict(_CHANGELOG_SETTINGS)
    # Before the policy: an error about a wrong policy must not make people delete records by a wrong age.
    retention = {"retention.ms": str(-(-lifetime_us // 1000) + EXPIRED_KEPT_MS)}
    return {**retention, **_CHANGELOG_SETTINGS, "cleanup.policy": "compact,delete"}


def dead_letters_name(bootstrap: str, table: str) -> str:
    """Return the name of the topic that takes the malformed records of a table's sources."""
    return own_topic(bootstrap, f"{table}-dead-letters")


class _Connection(NamedTuple):
    """A client, the topics of which it knows the leaders, and why brokers do not let it in, if they do not."""

    admin: AdminClient
    described: set[str]
    refused: list[str]


class _Client:
    """The client of a cluster, which also answers after an election. All threads of a process use the same.

    Groups are asked for by another one (`_group_client`).

    A client has four threads, and ends the process where Python's garbage collector frees it in one of these, as it may
    where the client was in a cycle of references, such as that of a caught exception. So nobody else keeps it.

    Where it is asked for offsets and has forgotten a leader, it asks for the leader first. Its own thread may end that
    question while the thread that asks still uses it, and then the process ends: librdkafka's
    `rd_kafka_topic_partition_list_query_leaders_async`. So topics are described before, it does not forget them, and
    they are described again where it has asked a leader of before: it goes on with what it knows.
    """

    def __init__(self, bootstrap: str, *, kept_ms: int, options: Mapping[str, str | int] = QUIET_CLIENT) -> None:
        self._bootstrap = bootstrap
        self._kept_ms = kept_ms  # of leaders and of coordinators: librdkafka has one setting for both
        self._options = options
        self._lock = threading.Lock()
        self._previous: AdminClient | None = None
        self._renew()

    def _renew(self) -> None:
        self._made_s = time.monotonic()
        client = settings_of(self._bootstrap).librdkafka()
        refused: list[str] = []

        def note(error: KafkaError) -> None:  # without the client, as above
            if (why := refused_connection(client, error.name(), error.str())) is not None:
                refused[:] = [why]

        options: dict[str, Any] = {
            **client,
            "error_cb": note,
            "metadata.max.age.ms": self._kept_ms,
            "reconnect.backoff.max.ms": 1_000,  # less than a question waits
            **self._options,
        }
        admin = AdminClient(options)
        self.current = _Connection(admin, set(), refused)

    def replace(self) -> None:
        """Replace a client that nobody answers: it may be deaf for good (decision 47)."""
        with self._lock:
            # Others may wait for its answers, and of those that end with it some would never come. So it stays longer
            # than all of them.
            if time.monotonic() >= self._made_s + CLIENT_STAYS_S:
                self._previous = self.current.admin
                self._renew()


def _client(bootstrap: str) -> _Client:
    return _made(bootstrap, LEADERS_KEPT_MS)


def _group_client(bootstrap: str) -> _Client:
    return _made(bootstrap, COORDINATORS_KEPT_MS)


def _made(bootstrap: str, kept_ms: int) -> _Client:
    # Of two threads that ask first at once, each would make a client, and one client would end with its question.
    with _making_client:
        found = _client_of(bootstrap, kept_ms=kept_ms)
    found.current.admin.poll(0)  # it says what became of its connections
    return found


_making_client = threading.Lock()
_client_of = lru_cache(maxsize=2 * CLUSTERS_MAX)(_Client)


def _describe(connection: _Connection, names: Iterable[str]) -> "dict[str, Future[Any]]":
    # Without the client, which must not be freed where the answer comes.
    described, refused = connection.described, connection.refused

    def note(name: str, answer: "Future[Any]") -> None:
        if answer.exception() is None:
            described.add(name)
            refused.clear()

    found = connection.admin.describe_topics(TopicCollection(list(names)), request_timeout=BROKER_TIMEOUT_S)
    for name, answer in found.items():
        answer.add_done_callback(partial(note, name))
    return found


def _partitions(topics: Iterable[Topic]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, partition) for topic in topics for partition in range(topic.partition_count)]


class KafkaAdmin:
    """Topics, offsets and groups of one Kafka cluster. Every method raises `JobError` when Kafka does not answer."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    @property
    def _admin(self) -> AdminClient:
        return _client(self._bootstrap).current.admin

    def find(self, name: str) -> Topic | None:
        """Return the topic; None where there is none."""
        connection = _client(self._bootstrap).current
        try:
            found = _describe(connection, [name])[name].result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise self._failure(
                f'topic "{name}" cannot be described', error, Right("Describe", "topic", name)
            ) from None
        return Topic(name, str(found.topic_id), len(found.partitions))

    def require(self, name: str, what: str = "source topic", hint: str = "create it, or correct its name") -> Topic:
        """Return a topic that must be there."""
        topic = self.find(name)
        if topic is None:
            raise JobError(f'{what} "{name}" does not exist at {self._bootstrap}; {hint}')
        return topic

    def ensure(
        self,
        name: str,
        settings: Mapping[str, str],
        *,
        partition_count: int | None = None,
        new_partition_count: int = 1,
        new_settings: Mapping[str, str] = MappingProxyType({}),
    ) -> Topic:
        """Return the topic, created if it is missing; raise `JobError` where it has other settings or partitions.

        `partition_count` None accepts any number, and creates the topic with `new_partition_count`. A new topic gets
        `new_settings`, too; afterwards people may change these.
        """
        topic = self.find(name)
        if topic is None:
            self._create(name, partition_count or new_partition_count, {**settings, **new_settings})
            topic = self._find_new(name)
        if partition_count is not None and topic.partition_count != partition_count:
            raise JobError(
                f'topic "{name}" has {topic.partition_count} partitions, not {partition_count}; '
                f"start the job with {topic.partition_count}, or raise the table's generation to get a new topic"
            )
        self._check_settings(name, settings)
        return topic

    def _find_new(self, name: str) -> Topic:
        """Wait for a topic that was just created: not all brokers know it at once."""
        end_s = time.monotonic() + BROKER_TIMEOUT_S
        while time.monotonic() < end_s:
            topic = self.find(name)
            if topic is not None:
                return topic
            time.sleep(RETRY_S)
        raise JobError(f'topic "{name}" was created at {self._bootstrap} and is not there yet; start the job again')

    def first_offsets(self, topic: Topic) -> dict[int, int]:
        """Return the offset of the first record that Kafka still has, by partition."""
        return self._offsets(topic, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def end_offsets(self, topic: Topic) -> dict[int, int]:
        """Return the offset that the next record will have, by partition."""
        return self._offsets(topic, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def ask_topics(self, names: Sequence[str]) -> "dict[str, Future[Any]]":
        """Ask for the descriptions of topics, without waiting."""
        return _describe(_client(self._bootstrap).current, names)

    def ask_ends(self, topics: Iterable[Topic]) -> "dict[TopicPartition, Future[Any]]":
        """Ask for the end offsets, without waiting. An answer has `offset` and `leader_epoch`, or a `KafkaException`.

        The epoch is that of the leader, and None of a broker that tells none.
        """
        topics = list(topics)
        if self._describe_first(topics):
            unknown: Future[Any] = Future()
            unknown.set_exception(KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE)))
            return dict.fromkeys(_partitions(topics), unknown)
        return self._ask_offsets(topics, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def readable_ends(self, topic: Topic) -> dict[int, int]:
        """Return the end offsets by partition, or the first record of a transaction that is still open before it."""
        return self._offsets(topic, OffsetSpec.latest(), isolation=IsolationLevel.READ_COMMITTED)  # type: ignore[no-untyped-call]

    def offsets_at(self, topic: Topic, time_ms: int) -> dict[int, int]:
        """Return the offset of the first record of that time or later, by partition; the end where there is none."""
        found = self._offsets(topic, OffsetSpec.for_timestamp(time_ms))
        ends = self.end_offsets(topic)
        return {partition: ends[partition] if offset < 0 else offset for partition, offset in found.items()}

    def delete(self, names: Sequence[str]) -> None:
        """Delete topics; one that is not there is deleted already."""
        for name, future in self._admin.delete_topics(list(names), request_timeout=BROKER_TIMEOUT_S).items():
            try:
                future.result()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise self._failure(
                        f'topic "{name}" cannot be deleted', error, Right("Delete", "topic", name)
                    ) from None

    def members(self, group: str) -> list[GroupMember]:
        """Return the clients that are in a consumer group of this installation now."""
        name = own_group(self._bootstrap, group)

        def ask() -> list[GroupMember]:
            admin = _group_client(self._bootstrap).current.admin
            futures = admin.describe_consumer_groups([name], request_timeout=BROKER_TIMEOUT_S)
            try:
                members = futures[name].result().members
            except KafkaException as error:
                if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                    return []
                raise
            return [
                GroupMember(
                    str(member.host).lstrip("/"),
                    str(member.client_id),
                    str(member.member_id),
                    bool(member.assignment and member.assignment.topic_partitions),
                )
                for member in members
            ]

        failure = f'consumer group "{group}" cannot be described'
        return self._answer(ask, failure, Right("Describe", "group", name), coming=_GROUPS_COMING)

    def changelogs(self, table: str) -> dict[int, str]:
        """Return the names of a table's changelog topics, by generation, the oldest first."""
        names = self.topic_names(Right("Describe", "topic", changelog_name(self._bootstrap, table, 1)))
        pattern = re.compile(re.escape(own_topic(self._bootstrap, table)) + r"-g([1-9][0-9]*)-changelog")
        found = [(int(matched.group(1)), name) for name in names if (matched := pattern.fullmatch(name))]
        return dict(sorted(found))

    def topic_names(self, right: Right) -> list[str]:
        """Return the names of all topics, in order, of which this client may know; `right`: what it needs."""
        try:
            return sorted(self._admin.list_topics(timeout=BROKER_TIMEOUT_S).topics)
        except KafkaException as error:
            raise self._failure("the topics cannot be listed", error, right) from None

    def _offsets(
        self, topic: Topic, spec: OffsetSpec, *, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    ) -> dict[int, int]:
        def ask() -> dict[int, int]:
            for described in self._describe_first([topic]):
                described.result()
            futures = self._ask_offsets([topic], spec, isolation)
            return {partition.partition: future.result().offset for partition, future in futures.items()}

        failure = f'the offsets of topic "{topic.name}" cannot be read'
        return self._answer(ask, failure, Right("Describe", "topic", topic.name), coming=_LEADERS_COMING)

    def _answer(self, ask: Callable[[], Answer], failure: str, right: Right, *, coming: Sequence[int]) -> Answer:
        """Ask again while brokers answer with an error that passes, one of `coming`; raise `JobError`."""
        end_s = time.monotonic() + BROKER_TIMEOUT_S
        while True:
            try:
                return ask()
            except KafkaException as error:
                if error.args[0].code() not in coming or time.monotonic() >= end_s:
                    raise self._failure(failure, error, right) from None
            time.sleep(RETRY_S)

    def _ask_offsets(
        self,
        topics: Iterable[Topic],
        spec: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> "dict[TopicPartition, Future[Any]]":
        connection = _client(self._bootstrap).current
        described = connection.described

        def note(topic: str, answer: "Future[Any]") -> None:
            error = answer.exception()
            if isinstance(error, KafkaException) and error.args[0].code() in _LEADERS_COMING:
                described.discard(topic)

        found = connection.admin.list_offsets(
            dict.fromkeys(_partitions(topics), spec), isolation_level=isolation, request_timeout=BROKER_TIMEOUT_S
        )
        for asked, answer in found.items():
            answer.add_done_callback(partial(note, asked.topic))
        return found

    def _describe_first(self, topics: Iterable[Topic]) -> "Collection[Future[Any]]":
        """Ask for the descriptions of those topics whose leaders the client does not know (`_Client`)."""
        connection = _client(self._bootstrap).current
        names = {topic.name for topic in topics} - connection.described
        return _describe(connection, names).values() if names else ()

    def _create(self, name: str, partition_count: int, settings: Mapping[str, str]) -> None:
        topic = NewTopic(name, partition_count, config=dict(settings))
        try:
            self._admin.create_topics([topic], request_timeout=BROKER_TIMEOUT_S)[name].result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:  # another job has created it
                raise self._failure(
                    f'topic "{name}" cannot be created', error, Right("Create", "topic", name)
                ) from None

    def _check_settings(self, name: str, settings: Mapping[str, str]) -> None:
        resource = ConfigResource(ResourceType.TOPIC, name)
        try:
            described = self._admin.describe_configs([resource], request_timeout=BROKER_TIMEOUT_S)[resource].result()
        except KafkaException as error:
            right = Right("DescribeConfigs", "topic", name)
            raise self._failure(f'the settings of topic "{name}" cannot be read', error, right) from None
        for setting, wanted in settings.items():
            actual = described[setting].value if setting in described else None
            if not _agrees(setting, actual, wanted):
                value = f"[{wanted}]" if "," in wanted else wanted  # a list, as that command has it
                raise JobError(
                    f'topic "{name}" has {setting}={actual}, not {_or_more(setting, wanted)}; alter it with '
                    f"kafka-configs.sh --alter --entity-type topics --entity-name {name} --add-config {setting}={value}"
                )

    def _failure(self, what: str, error: KafkaException, right: Right) -> JobError:
        """Return why a question has failed; `right`: what it needs."""
        kafka_error = error.args[0]
        if kafka_error.code() in AWAY:
            away = broker_away(self._bootstrap)
            _client(self._bootstrap).replace()
            _group_client(self._bootstrap).replace()
            return away
        return JobError(f"{what} at {self._bootstrap}: {why_not(self._bootstrap, kafka_error, right)}")


def _agrees(setting: str, actual: str | None, wanted: str) -> bool:
    if actual is None:
        return False
    if setting == "retention.ms":
        return int(actual) == _FOR_EVER or int(actual) >= int(wanted)
    return sorted(actual.split(",")) == sorted(wanted.split(","))


def _or_more(setting: str, wanted: str) -> str:
    return f"{wanted} or more" if setting == "retention.ms" else wanted


def _reader(bootstrap: str, **options: str) -> Consumer:
    return Consumer(
        {
            **settings_of(bootstrap).librdkafka(),
            "group.id": "tablegate-job",  # asked for by the client; never joined, nothing is committed
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            # The broker answers a fetch that finds nothing new after this time, by default half a second: that is how
            # long the end would take to show, several times for each table that starts.
            "fetch.wait.max.ms": 10,
            **options,
            **QUIET_CLIENT,
        }
    )


def read_to_end(bootstrap: str, topic: str, start: int) -> Generator[Message, None, None]:
    """Yield the records of a topic's first partition from an offset to its end; raise `JobError`."""
    consumer = _reader(bootstrap)
    try:
        consumer.assign([TopicPartition(topic, 0, start)])
        while True:
            record = consumer.poll(BROKER_TIMEOUT_S)
            if record is None:
                raise broker_away(bootstrap)
            error = record.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                return
            if error is not None and error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:  # no group is joined
                why = why_not(bootstrap, error, Right("Read", "topic", topic))
                raise JobError(f'topic "{topic}" at {bootstrap} cannot be read: {why}')
            if error is None:
                yield record
    finally:
        consumer.close()


def highest_epochs(bootstrap: str, ends: Mapping[tuple[str, int], int], records_max: int) -> dict[tuple[str, int], int]:
    """Return the highest leader epoch of the last records before offsets, by topic and partition.

    Raise `KafkaException`. It reads up to `records_max` offsets before each; a partition is left out where none of
    these has a record.
    """
    # Also what was aborted has an epoch. A start that retention has dropped becomes the first record there is.
    consumer = _reader(bootstrap, **{"isolation.level": "read_uncommitted", "auto.offset.reset": "earliest"})
    found: dict[tuple[str, int], int] = {}
    awaited = set(ends)
    try:
        consumer.assign([TopicPartition(*at, max(end - records_max, 0)) for at, end in ends.items()])
        while awaited:
            record = consumer.poll(EPOCHS_TIMEOUT_S)
            if record is None:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            error, at = record.error(), (record.topic() or "", record.partition() or 0)
            if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:  # no group is joined
                continue
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            offset, epoch = record.offset() or 0, record.leader_epoch()
            if error is None and epoch is not None and offset < ends[at]:
                found[at] = max(found.get(at, epoch), epoch)
            if error is not None or offset >= ends[at] - 1:
                awaited.discard(at)
    finally:
        consumer.close()
    return found


def why_not(bootstrap: str, error: KafkaError, right: Right) -> str:
    """Return what an error means: which right is missing, where it is one, or what Kafka says of it."""
    return refused_right(settings_of(bootstrap).librdkafka(), error.name(), right) or error.str()


def broker_away(bootstrap: str) -> JobError:
    """Return the error of a cluster that does not answer, or does not let this client in."""
    for client in (_client(bootstrap), _group_client(bootstrap)):
        for why in [*client.current.refused]:
            return JobError(why)
    return BrokersAway(
        f"no Kafka broker answers at {bootstrap} within {BROKER_TIMEOUT_S:g} s; "
        "start it, or correct --bootstrap or --kafka"
    )
