"""The log that a replicator reads and announces in: the protocol, and its records.

`kafka.client.KafkaLog` implements it over Kafka, `MemoryLog` of the tests in memory. Time is a protocol, too, so that
the simulator can move it.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from typing_extensions import override

from tablegate.gateway.contract.foreign.framing import SchemaIds
from tablegate.gateway.contract.lineage import EpochRun, Place
from tablegate.gateway.contract.types import Offset, Partition


class LogUnavailable(Exception):
    """The brokers do not answer; the message says which, and why. It may pass by itself."""


class NotAllowed(LogUnavailable):
    """The brokers answer, and refuse; the message is a sentence that says which right is missing."""


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: Partition


class RecordId(NamedTuple):
    """A row's record in a topic partition: where it is, and what it must be."""

    offset: Offset
    key: bytes
    version: bytes


class Record(NamedTuple):
    """A record. `version`: its version header, then its run, if it has one, whatever bytes those are.

    `time_ms`: when the brokers appended it. `schema_ids`: of a record that has such headers.
    """

    offset: Offset
    key: bytes | None
    value: bytes | None
    version: bytes | None
    time_ms: int
    schema_ids: SchemaIds | None = None


class Fetched(NamedTuple):
    """What a fetch got of one topic partition: records in order of offset; all before `next_offset` was delivered.

    `lost`: there is no such offset any more (or not yet), or other records are before it than were read; the topic
    partition is followed no longer. `runs` say of which leader epochs the records are; there are none where there
    are no records, or where brokers tell no epochs.
    """

    topic_partition: TopicPartition
    records: list[Record]
    next_offset: Offset
    lost: bool = False
    runs: tuple[EpochRun, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic, as the brokers describe it. Offsets by partition: the first there is, the first not yet written.

    `leader_epochs`, by partition: in which epoch its leader was then; `UNKNOWN_EPOCH` where none was told.
    `deletes_old`: records are deleted after `retention_ms` (-1: never). `asked_ms`: when the brokers were asked.
    """

    topic_id: str
    start_offsets: tuple[Offset, ...]
    end_offsets: tuple[Offset, ...]
    delete_retention_ms: int
    leader_epochs: tuple[int, ...]
    deletes_old: bool = False
    retention_ms: int = -1
    asked_ms: int = 0

    @property
    def partition_count(self) -> int:
        """Return how many partitions the topic has."""
        return len(self.start_offsets)


class Log(Protocol):
    """A client of the brokers, for one thread. Nothing blocks but `fetch`, and that for `timeout_s` at most."""

    def describe_topic(self, topic: str) -> "Future[TopicFacts | None]":
        """Ask the brokers to describe a topic: None if there is none; `LogUnavailable` if no broker answers.

        `NotAllowed`, which is one of these, where they do not let this gateway read it.
        """

    def follow(self, topic_partition: TopicPartition, place: Place) -> None:
        """Fetch a topic partition from a place on, also where it is followed already.

        Where that is not known to be a place of this log, the partition is lost. Else a `Fetched` comes in any case, be
        it one without records.
        """

    def unfollow(self, topic_partition: TopicPartition) -> None:
        """Fetch a topic partition no more. Repeats do nothing."""

    def fetch(self, *, records_max: int, timeout_s: float) -> list[Fetched]:
        """Return what is there, at most one `Fetched` a topic partition; wait up to `timeout_s` for a first record.

        Nothing delivered is delivered again. Brokers that do not answer are no error: there is nothing then.
        """

    def create(self, topic: str) -> "Future[None]":
        """Ask for a compacted topic of one partition, whose records have the time at which the brokers appended them.

        One that is there stays as it is. `LogUnavailable` where there cannot be one; the message says why.
        """

    def append(self, topic: str, key: bytes, value: bytes | None) -> None:
        """Write a record to the first partition of a topic, behind those before; None is a tombstone.

        It does not wait: what the brokers do not accept within seconds is lost, which is logged once.
        """

    def repeat(self, topic_partition: TopicPartition, records: Sequence[RecordId]) -> "Future[list[RecordId]]":
        """Append records again as they are, with key, value and headers; return those that were there to be appended.

        `LogUnavailable` where the brokers do not answer, or do not let us write; the message says why. Some of the
        records may have been appended then.
        """

    def another(self) -> "Log":
        """Return another client of the same brokers: each follows a topic partition once. It lives as long as this."""

    def trouble(self) -> str:
        """Return why no broker can be reached; "" as far as is known."""

    def close(self) -> None:
        """Disconnect, after a moment for what was appended. Repeats do nothing."""


class Clock(Protocol):
    """Time."""

    def now_ms(self) -> int:
        """Return the time of day: milliseconds since 1970."""

    def monotonic_s(self) -> float:
        """Return seconds that only go on."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock(Clock):
    """The machine's time."""

    @override
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    @override
    def monotonic_s(self) -> float:
        return time.monotonic()

    @override
    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
