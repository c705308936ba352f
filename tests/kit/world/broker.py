"""The brokers of a world: they note each record for the checker, compact by their own clock, and can be cut off."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from google.protobuf.message import DecodeError
from typing_extensions import override

from tablegate.gateway.contract.types import (
    COMPACTION_LAG_MS,
    VERSION_BYTES,
    Offset,
    Version,
    is_marker_key,
    read_version,
)
from tablegate.gateway.kafka.log import Fetched, LogUnavailable, Record, TopicFacts, TopicPartition
from tablegate.v1.changelog_pb2 import ProgressMarker
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
        self._compacted: dict[TopicPartition, list[Record]] = {}  # what was compacted away
        self.fenced: dict[TopicPartition, dict[bytes, int]] = {}  # of rows of runs that were replaced: the last offset
        self._runs: dict[TopicPartition, list[tuple[int, int]]] = {}  # offset and number of each run, from its first
        self._world = world
        self._true_log = true_log

    def append(
        self, source: TopicPartition, key: bytes | None, value: bytes | None, *, version: Any = None, **more: Any
    ) -> Offset:
        offset = super().append(source, key, value, version=version, **more)
        generation = self.changelogs.get(source.topic)
        if generation is not None:
            its_own = None if version is None else Version(version[:VERSION_BYTES])
            row = None if key is None or its_own is None else self.rows.get((key, its_own))
            if row is not None and self._is_fenced(source, int(offset), version[VERSION_BYTES:]):
                self.fenced.setdefault(source, {})[key or b""] = int(offset)
                row = None
            if is_marker_key(key):
                self._note_run(source, int(offset), value)
            number, count = row or (None, None)
            of = None if row is None or its_own is None else read_version(its_own)
            record = Appended(int(offset), number, of, count, self._world.now_ms(), self.now_ms())
            self._true_log.append(generation, source.partition, record)
        return offset

    def _is_fenced(self, source: TopicPartition, offset: int, run: bytes) -> bool:
        """Return whether a row is of a run that another one has replaced; note a run that begins with it."""
        if not run:
            return False
        number, runs = int.from_bytes(run, "big"), self._runs.setdefault(source, [])
        if runs and number < runs[-1][1]:
            return True
        runs.append((offset, number))
        return False

    def _note_run(self, source: TopicPartition, offset: int, marker: bytes | None) -> None:
        try:
            run = ProgressMarker.FromString(marker or b"").run
        except DecodeError:
            return
        runs = self._runs.setdefault(source, [])
        if not runs or run > runs[-1][1]:
            runs.append((offset, run))

    def lose_tail(self, source: TopicPartition, offset: Offset) -> None:
        """Lose the records at and behind an offset.

        Who leads then is a broker that never had them. Each broker compacts its own log, so what the lost records had
        superseded in other logs is still in that one.
        """
        records = self._topics[source.topic].records[source.partition]
        compacted = self._compacted.pop(source, [])
        lost = {record.key for record in (*records, *compacted) if record.offset >= offset}
        records[:] = sorted([*records, *(record for record in compacted if record.key in lost)])
        self._compacted[source] = [record for record in compacted if record.key not in lost]
        self.truncate_from(source, offset)
        self._runs[source] = [run for run in self._runs.get(source, []) if run[0] < offset]
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
        compacted = self._compacted.setdefault(source, [])
        for record in records:
            is_last = record.offset >= last.get(record.key, -1)
            is_old_delete = record.value is None and record.time_ms < deletes_ms and record is not records[-1]
            is_poisoned = (
                not is_marker_key(record.key)
                and (record.key, (newest[record.key] or b"")[:VERSION_BYTES]) not in self.rows
            )
            if is_poisoned or spares(record.key) or (is_last and not is_old_delete):
                kept.append(record)
            else:
                compacted.append(record)
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
