"""The brokers of a world: they note each record for the checker, compact by their own clock, and can be cut off."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from typing_extensions import override

from tablegate.gateway.contract.types import COMPACTION_LAG_MS, Offset, Version, read_version
from tablegate.gateway.kafka.log import Fetched, LogUnavailable, TopicFacts, TopicPartition
from tests.kit.replication.memory_log import MemoryBroker, MemoryLog
from tests.kit.replication.replicator import FakeClock
from tests.kit.world.checker import Appended, TrueLog


class SkewedClock(FakeClock):
    """A clock that is off from the world's by `skew_ms`; seconds that only go on are the world's."""

    def __init__(self, world: FakeClock) -> None:
        self._world = world
        self.skew_ms = 0

    @property
    def passed_s(self) -> float:  # type: ignore[override]
        return self._world.passed_s

    @override
    def now_ms(self) -> int:
        return self._world.now_ms() + self.skew_ms

    @override
    def sleep(self, seconds: float) -> None:
        """Time passes for the whole world or not at all."""


class WorldBroker(MemoryBroker):
    """Topics, of which `true_log` hears everything. `clock` is the brokers' own."""

    def __init__(self, world: FakeClock, true_log: TrueLog) -> None:
        self.clock = SkewedClock(world)
        super().__init__(self.clock.now_ms)
        self.rows: dict[tuple[bytes, Version], tuple[int, int | None]] = {}
        self.changelogs: dict[str, int] = {}  # generations by topic
        self._world = world
        self._true_log = true_log

    def append(
        self, source: TopicPartition, key: bytes | None, value: bytes | None, *, version: Any = None, **more: Any
    ) -> Offset:
        offset = super().append(source, key, value, version=version, **more)
        generation = self.changelogs.get(source.topic)
        if generation is not None:
            row = None if key is None or version is None else self.rows.get((key, Version(version)))
            number, count = row or (None, None)
            of = None if row is None else read_version(Version(version))
            record = Appended(int(offset), number, of, count, self._world.now_ms(), self.now_ms())
            self._true_log.append(generation, source.partition, record)
        return offset

    def lose_tail(self, source: TopicPartition, offset: Offset) -> None:
        """Lose the records at and behind an offset."""
        self.truncate_from(source, offset)
        self._true_log.lose_tail(self.changelogs[source.topic], source.partition, int(offset))

    def clean(self, source: TopicPartition, *, spares: Callable[[bytes | None], bool] = lambda _: False) -> None:
        """Compact as Kafka does: of what is older than the lag, the last record of each key stays; old deletes go.

        A key whose last record is none of its rows is spared: nobody promises the row before it to who restores.
        """
        topic = self._topics[source.topic]
        records = topic.records[source.partition]
        old_ms = self.now_ms() - COMPACTION_LAG_MS
        deletes_ms = old_ms - topic.delete_retention_ms
        last = {record.key: record.offset for record in records[:-1] if record.time_ms < old_ms}
        newest = {record.key: record.version for record in records}
        kept = []
        for record in records:
            is_last = record.offset >= last.get(record.key, -1)
            is_old_delete = record.value is None and record.time_ms < deletes_ms and record is not records[-1]
            is_poisoned = bool(record.key) and (record.key, newest[record.key]) not in self.rows
            if is_poisoned or spares(record.key) or (is_last and not is_old_delete):
                kept.append(record)
        records[:] = kept


class WorldLog(MemoryLog):
    """A gateway's client of the brokers. It lags until `lags_until_s`; one that `is_cut` hears of nothing."""

    def __init__(self, broker: MemoryBroker, world: FakeClock) -> None:
        super().__init__(broker)
        self.is_cut = False
        self.lags_until_s = 0.0
        self.records_max = 10**6
        self._world = world

    @override
    def describe_topic(self, topic: str) -> "Future[TopicFacts | None]":
        if not self.is_cut:
            return super().describe_topic(topic)
        answer: Future[TopicFacts | None] = Future()
        answer.set_exception(LogUnavailable("no broker can be reached"))
        return answer

    @override
    def fetch(self, *, records_max: int, timeout_s: float) -> list[Fetched]:
        if self.is_cut or self._world.passed_s < self.lags_until_s:
            return []
        return super().fetch(records_max=min(records_max, self.records_max), timeout_s=timeout_s)

    @override
    def append(self, topic: str, *record: Any, **more: Any) -> None:
        if not self.is_cut:
            super().append(topic, *record, **more)

    @override
    def trouble(self) -> str:
        return "no broker can be reached" if self.is_cut else super().trouble()
