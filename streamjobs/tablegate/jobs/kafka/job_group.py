"""Which job keeps a table: a job is a member of the table's consumer group while it runs, wherever it runs.

So Kafka itself is the lock: a second job finds a member in the group and refuses to start, and a job that dies leaves
the group after the session timeout. The name of the client says the generation that the job has started with.

The same consumer reads the topic of manifests, by which a job learns that a newer generation of its table is ready.

Kafka leaves out a member that is silent, as one that is frozen. When it wakes, it gives way to another that has joined
meanwhile. Whether another has had the table and has left again, its `Tenure` says: between two that are equal nobody
else had it. Kafka gives a member that was left out a new name, and a member that stays gives the partition back before
another gets it.

Decision: docs/decisions/0047-replace-deaf-kafka-clients.md
Decision: docs/decisions/0182-a-run-has-its-number-before-it-asks.md
"""

import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from google.protobuf.message import DecodeError

from tablegate.gateway.contract.kafka_refusals import Right
from tablegate.gateway.contract.kafka_settings import own_group, settings_of
from tablegate.jobs.errors import BrokersAway, JobError, NotJoined
from tablegate.jobs.kafka.topics import QUIET_CLIENT, GroupMember, KafkaAdmin, manifests_topic, why_not
from tablegate.jobs.log import log
from tablegate.v1 import changelog_pb2

SESSION_TIMEOUT_MS = 6_000  # the least that brokers allow; a killed job leaves its group after that
GONE_WITHIN_S = 10.0  # a session timeout, and some time for the broker
JOINED_WITHIN_S = 20.0  # brokers let a first member wait for others; this is a hundred times of what it takes
FORGOTTEN_WITHIN_S = 30.0  # a rebalance is done long before
ANSWER_WITHIN_S = 1.0  # a running job asks, which has other tables
POLL_S = 0.1
_CLIENT_ID = "tablegate-generation-"
"""How a member's client id begins; the generation that it has started with follows."""


def job_group(table: str) -> str:
    """Return the group of the job that keeps a table."""
    return f"tablegate-job-{table}"


def rebuild_group(table: str) -> str:
    """Return the group of the job that builds a table's next generation."""
    return f"tablegate-rebuild-{table}"


def is_rebuilding(admin: KafkaAdmin, table: str, generation: int) -> bool:
    """Return whether a job is building this generation."""
    return any(member.client_id == _client_id(generation) for member in admin.members(rebuild_group(table)))


def is_keeping(admin: KafkaAdmin, table: str, generation: int) -> bool:
    """Return whether the job that keeps the table has started with this generation."""
    return any(member.client_id == _client_id(generation) for member in admin.members(job_group(table)))


def rebuilt_generation(members: Sequence[GroupMember]) -> int | None:
    """Return which generation the member of a rebuild group builds; None without a member."""
    for member in members:
        number = member.client_id.removeprefix(_CLIENT_ID)
        if number.isdigit():
            return int(number)
    return None


def _client_id(generation: int) -> str:
    return f"{_CLIENT_ID}{generation}"


class Tenure(NamedTuple):
    """A time in which this job had the table: its name in the group, and how often it was told of a change before."""

    member_id: str
    changes: int


class JobGroup:
    """Membership in one of a table's groups. One thread uses it."""

    def __init__(
        self,
        bootstrap: str,
        table: str,
        group: str,
        generation: int,
        forgotten_within_s: float = FORGOTTEN_WITHIN_S,
    ) -> None:
        self._table = table
        self._group = group
        self._admin = KafkaAdmin(bootstrap)
        self._has_assignment: bool | None = None  # None while the group is changing
        self._changes = 0  # of the group, in which the partition was taken from this member
        self._joined_as = ""  # its first name in the group
        self._is_left_out = False  # and has not joined again
        self._read_generation = 0
        self._newest_generation = 0
        self._others: dict[str, int] = {}  # newest generations of other tables
        self._bootstrap = bootstrap
        self._forgotten_within_s = forgotten_within_s
        self._client_id = _client_id(generation)
        self._changing_s = time.monotonic()  # since when the group is changing
        self._refused = ""  # why brokers do not let it join
        self._consumer = self._new_consumer()
        self.member_id = ""
        """Its newest name in the group: another one where it was left out meanwhile."""

    def _new_consumer(self) -> Consumer:
        return Consumer(
            {
                **settings_of(self._bootstrap).librdkafka(),
                "group.id": own_group(self._bootstrap, self._group),
                "client.id": self._client_id,
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "heartbeat.interval.ms": SESSION_TIMEOUT_MS // 3,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                **QUIET_CLIENT,
            }
        )

    @classmethod
    def join(
        cls,
        bootstrap: str,
        table: str,
        group: str,
        *,
        generation: int,
        forgotten_within_s: float = FORGOTTEN_WITHIN_S,
    ) -> Self:
        """Become the only member; raise `JobError` where another job is a member, and has not just been killed."""
        await_gone(bootstrap, table, group)
        membership = cls(bootstrap, table, group, generation, forgotten_within_s)
        try:
            membership._await_assignment()
            membership._joined_as = membership.member_id
        except BaseException:
            membership.leave()
            raise
        return membership

    def _subscribe(self) -> None:
        self._consumer.subscribe(
            [manifests_topic(self._bootstrap)],
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_lost,
        )

    def _await_assignment(self) -> None:
        self._subscribe()
        end_s = time.monotonic() + JOINED_WITHIN_S
        while not self._has_assignment:
            self.poll()
            if self._refused:
                raise JobError(f'the job cannot join consumer group "{self._group}": {self._refused}')
            if time.monotonic() >= end_s:
                raise self._not_joined()
            time.sleep(POLL_S)

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if consumer is self._consumer:
            self._has_assignment = bool(partitions)
            self.member_id = str(consumer.memberid())

    def _on_revoke(self, consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        if consumer is self._consumer:
            self._has_assignment, self._changing_s = None, time.monotonic()
            self._changes += 1

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if consumer is self._consumer:
            self._on_revoke(consumer, partitions)
            self._is_left_out = True
            # It would join again at once, and Kafka might give it the partition of the one that has taken over.
            consumer.unsubscribe()

    def _come_back(self) -> None:
        """Join again, having been left out of the group; raise `JobError` where another has joined meanwhile."""
        members = self._members()
        if members is None:  # brokers are away, which leaves out all; the next poll asks again
            return
        others = [member for member in members if member.member_id != self.member_id]
        if others:
            raise _other_job_error(self._table, self._group, others)
        self._is_left_out, self._changing_s = False, time.monotonic()
        self._subscribe()

    def _members(self) -> list[GroupMember] | None:
        """Return who is in the group; None while no broker answers. Raise `JobError` where it may not be described.

        While brokers are away nobody asks for the members: librdkafka ends the process by an assertion where an answer
        about a coordinator comes too late.
        """
        if not self._is_answered():
            return None
        try:
            return self._admin.members(self._group)
        except BrokersAway:  # one that comes back knows its topics before it answers about groups
            return None
        except JobError:
            if self._is_answered():
                raise
            return None

    def _is_answered(self) -> bool:
        try:
            self._consumer.list_topics(manifests_topic(self._bootstrap), timeout=ANSWER_WITHIN_S)
        except KafkaException:
            return False
        return True

    def _join_again(self) -> None:
        """Become a member again, by another client.

        A broker that ended may have sent an empty list of brokers. Then the client never connects again
        (https://github.com/confluentinc/librdkafka/issues/5301), and leaves the group after the session timeout.
        """
        log("joins_again", table=self._table, group=self._group)
        lost, self._consumer = self._consumer, self._new_consumer()
        self._changing_s = time.monotonic()
        self._subscribe()
        threading.Thread(target=lost.close, name="kafka-close", daemon=True).start()  # it may wait for brokers

    def poll(self) -> int:
        """Stay a member; return the newest generation in the table's manifests.

        Raise `JobError` where another job is a member, too, and has got the topic's only partition: that one goes on.
        """
        for record in self._consumer.consume(100, timeout=0):
            error = record.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                # Only at the end: earlier manifests may be older than a reset of the table.
                self._newest_generation = self._read_generation
            if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                self._refused = why_not(
                    self._bootstrap, error, Right("Read", "group", own_group(self._bootstrap, self._group))
                )
            if error is None and record.key() == self._table.encode():
                self._read(record.value())
            elif error is None:
                self._read_other(record.key(), record.value())
        if self._is_left_out:
            self._come_back()
        elif self._has_assignment is None and time.monotonic() > self._changing_s + self._forgotten_within_s:
            self._join_again()
        if self._has_assignment is False:
            members = self._members() or []
            if len(members) > 1:
                raise _other_job_error(self._table, self._group, members)
        return self._newest_generation

    def check_kept(self) -> bool:
        """Raise `JobError` where another job is the member by now, as after a time in which this one was frozen.

        Return False where nobody knows, as no broker answers.
        """
        members = self._members()
        # Brokers that come back still have the name that it had before it was left out.
        names = {self.member_id, self._consumer.memberid()}
        if members and names.isdisjoint(member.member_id for member in members):
            raise _other_job_error(self._table, self._group, members)
        return members is not None

    def tenure(self, *, since_joining: bool = False, within_s: float = JOINED_WITHIN_S) -> Tenure:
        """Return the tenure of now; raise `JobError` where another job has the table by now.

        It asks the broker, as this one may have been frozen, and waits up to `within_s` while the group is changing and
        none answers; then it raises `NotJoined`. `since_joining`: raise, too, where another may have had the table at
        any time since this one has joined.
        """
        end_s = time.monotonic() + within_s
        while True:
            tenure = Tenure(str(self._consumer.memberid()), self._changes)
            members = self._members() or []
            is_assigned = {member.member_id: member.is_assigned for member in members}
            if self._has_assignment and members and tenure.member_id not in is_assigned:
                raise _other_job_error(self._table, self._group, members)
            if since_joining and tenure.member_id not in ("", self._joined_as):
                raise JobError(
                    f'table "{self._table}" may have been published by another while this one stood still, so it begins'
                    " nothing; begin it again"
                )
            if self._has_assignment and is_assigned.get(tenure.member_id):
                return tenure
            if time.monotonic() >= end_s:
                raise self._not_joined()
            time.sleep(POLL_S)
            self.poll()  # behind the question: one that was left out would join again, and another might have to end

    def _not_joined(self) -> NotJoined:
        return NotJoined(
            f'the job could not join consumer group "{self._group}" within {JOINED_WITHIN_S:g} s; read the log '
            "of the brokers, then start the job again"
        )

    def _read(self, value: bytes | None) -> None:
        if value is None:
            self._read_generation = 0
            return
        with suppress(DecodeError):
            generation = changelog_pb2.Manifest.FromString(value).generation
            self._read_generation = max(self._read_generation, generation)

    def _read_other(self, key: bytes | None, value: bytes | None) -> None:
        with suppress(DecodeError):
            generation = changelog_pb2.Manifest.FromString(value).generation if value is not None else 0
            self._others[(key or b"").decode(errors="replace")] = generation

    def generation_of(self, table: str) -> int:
        """Return the newest generation in the manifests of another table; 0 where it has none, or nobody knows yet."""
        return self._others.get(table, 0)

    def leave(self) -> None:
        """Leave the group at once."""
        self._consumer.close()


def await_gone(bootstrap: str, table: str, group: str) -> None:
    """Wait until a group has no member; raise `JobError` where it has one longer than a killed job would stay in it."""
    admin = KafkaAdmin(bootstrap)
    end_s = time.monotonic() + GONE_WITHIN_S
    while members := admin.members(group):
        if time.monotonic() >= end_s:
            raise _other_job_error(table, group, members)
        time.sleep(POLL_S)


def hosts_of(members: Iterable[GroupMember]) -> str:
    """Return the hosts that members of a group run on, for an error."""
    return ", ".join(sorted({member.host for member in members}))


def _other_job_error(table: str, group: str, members: Sequence[GroupMember]) -> JobError:
    doing = "kept" if group == job_group(table) else "being rebuilt"
    return JobError(f'table "{table}" is {doing} by another job, on {hosts_of(members)}; stop that one first')
