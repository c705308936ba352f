"""What the replicator reads and announces: the records of topics, whoever keeps them."""

import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tablegate.gateway.contract.types import Offset, Partition
from typing_extensions import override


class LogUnavailable(Exception):
    """The brokers do not answer; the message says which, and why. It may pass by itself."""


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: Partition


class Record(NamedTuple):
    """A record. `version` is its version header, whatever bytes those are; `time_ms` is when the log took it."""

    offset: Offset
    key: bytes | None
    value: bytes | None
    version: bytes | None
    time_ms: int


class Fetched(NamedTuple):
    """What a fetch got of one source: records in order of offset; all that is before `next_offset` was delivered.

    `lost`: the source has no such offset any more (or none yet); it is not followed any longer.
    """

    source: TopicPartition
    records: list[Record]
    next_offset: Offset
    lost: bool = False


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic, as the brokers describe it. Offsets by partition: the first there is, the first not yet written."""

    topic_id: str
    start_offsets: tuple[Offset, ...]
    end_offsets: tuple[Offset, ...]
    delete_retention_ms: int

    @property
    def partition_count(self) -> int:
        """Return how many partitions the topic has."""
        return len(self.start_offsets)


class Log(Protocol):
    """A client of the brokers, for one thread. It never blocks for longer than `fetch` is told."""

    def look(self, topic: str) -> "Future[TopicFacts | None]":
        """Ask for a topic: None if there is no such topic, `LogUnavailable` if nobody answers."""

    def follow(self, source: TopicPartition, next_offset: Offset) -> None:
        """Fetch `source` from an offset on; a source that is followed already goes on from there."""

    def unfollow(self, source: TopicPartition) -> None:
        """Fetch `source` no more. Repeats do nothing."""

    def fetch(self, *, records_max: int, timeout_s: float) -> list[Fetched]:
        """Return what is there, at most one `Fetched` a source; wait up to `timeout_s` for a first record.

        Nothing delivered is delivered again. Brokers that do not answer are no error: there is nothing then.
        """

    def create(self, topic: str) -> "Future[None]":
        """Ask for a compacted topic of one partition, whose records have the time at which the brokers took them.

        One that is there stays as it is. `LogUnavailable` where there cannot be one; the message says why.
        """

    def append(self, topic: str, key: bytes, value: bytes | None) -> None:
        """Write a record to the first partition of a topic, behind those before; None is a tombstone.

        It does not wait: what the brokers do not take in a moment is lost, which is logged once.
        """

    def trouble(self) -> str:
        """Return why no broker can be reached; "" as far as is known."""

    def close(self) -> None:
        """Let go of the brokers, once they took what was appended, or a moment later. Repeats do nothing."""


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
