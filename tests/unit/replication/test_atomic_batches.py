"""Atomic tables: nobody sees a part of a batch, wherever fetches end."""

import random
from collections.abc import Iterator
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablegate.gateway.contract.types import Offset, Partition, make_version
from tablegate.gateway.kafka.log import Fetched, Record, TopicPartition
from tablegate.gateway.replication.batches import PendingBatch
from tablegate.v1.changelog_pb2 import ProgressMarker
from tests.kit.replication.memory_log import MemoryBroker, MemoryLog
from tests.kit.replication.replicator import PARTITIONS, FakeClock, Gateway, Job, key_of, ratings

pytestmark = pytest.mark.tools

MOVIES = range(24)
SOURCE = TopicPartition("ratings-g1-changelog", Partition(0))


class CutLog(MemoryLog):
    """A log whose fetches end anywhere."""

    def __init__(self, broker: MemoryBroker, cuts: Iterator[int]) -> None:
        super().__init__(broker)
        self._cuts = cuts

    def fetch(self, *, records_max: int, timeout_s: float) -> list[Fetched]:
        return super().fetch(records_max=min(records_max, next(self._cuts)), timeout_s=timeout_s)


class World:
    """A job that writes the same count to all movies of a batch, and a gateway whose fetches end at `cuts`."""

    def __init__(self, cuts: Iterator[int], *, atomic: bool = True) -> None:
        self.clock = FakeClock()
        self.broker = MemoryBroker(self.clock.now_ms)
        self.broker.create("tables", 1)
        self.job = Job(self.broker).create()
        self.job.publish(self.job.manifest(atomic=atomic))
        self.count = 0
        self.gateway = Gateway(self.broker, self.clock, log=partial(CutLog, cuts=cuts))  # type: ignore[arg-type]

    def batch(self, *, ends: bool = True) -> None:
        """Write a batch; of one without ends, some was lost."""
        self.count += 1
        self.job.put(MOVIES, count=self.count)
        if ends:
            self.job.end_batch()

    def counts(self) -> set[tuple[int, int]]:
        """Return the counts that readers see in each partition: one where no batch is seen in part."""
        rows = self.gateway.rows() if self.gateway.state().store_id else {}
        partition_of = {movie: ratings().partition_of(key_of(movie), PARTITIONS) for movie in rows}
        return {(partition_of[movie], count) for movie, count in rows.items()}

    def answered(self) -> set[tuple[int, int]]:
        """Return those of partitions that are answered from."""
        is_live = [self.gateway.position(number).phase.name == "LIVE" for number in range(PARTITIONS)]
        return {(partition, count) for partition, count in self.counts() if is_live[partition]}

    def is_torn(self) -> bool:
        seen = self.answered() if self.gateway.state().store_id else set()
        return len(seen) > len({partition for partition, _ in seen})


@given(st.integers())
def test_no_reader_sees_a_batch_in_part_wherever_fetches_end(seed: int) -> None:
    choice = random.Random(seed)
    world = World(iter(lambda: choice.randint(1, 30), 0))
    for _ in range(12):
        for _ in range(choice.randint(0, 3)):
            world.batch()
            if choice.random() < 0.3:
                world.job.mark_all({0: world.count})
        if choice.random() < 0.2:
            world.gateway.restart()
        for _ in range(choice.randint(0, 6)):
            world.gateway.steps(1)
            assert not world.is_torn()
    for _ in range(100):
        world.gateway.steps(1)
        assert not world.is_torn()
    assert world.gateway.is_served()
    assert world.counts() == {(partition, world.count) for partition in range(PARTITIONS) if world.count}


def test_batches_of_other_tables_are_seen_in_part() -> None:
    """So the tests beside this one can fail."""
    world = World(iter(lambda: 5, 0), atomic=False)
    world.batch()
    world.gateway.steps(30)
    world.batch()
    seen = []
    for _ in range(10):
        world.gateway.steps(1)
        seen.append(world.is_torn())
    assert any(seen)


def test_a_row_of_somebody_else_holds_nothing_up() -> None:
    """It has no end behind it. What the brokers say of the end of the topic shows that it is of no batch."""
    world = World(iter(lambda: 1_000, 0))
    world.batch()
    world.gateway.steps(20)
    world.job.put([0], count=7)
    world.gateway.steps(3)
    assert 7 not in {count for _, count in world.counts()}
    world.gateway.seconds(12)
    assert 7 in {count for _, count in world.counts()}
    ends = world.broker.facts(world.job.topic)
    assert ends is not None
    assert [world.gateway.position(number).next_offset for number in range(PARTITIONS)] == list(ends.end_offsets)


def test_ends_that_compaction_removed_are_not_waited_for() -> None:
    world = World(iter(lambda: 3, 0))
    for _ in range(5):
        world.batch()
    world.clock.passed_s += 86_400
    for number in range(PARTITIONS):
        world.broker.compact(world.job.source(number))
    world.gateway.steps(60)
    assert world.gateway.is_served()
    assert {count for _, count in world.counts()} == {5}


def test_a_manifest_may_not_become_atomic_within_a_generation() -> None:
    world = World(iter(lambda: 1_000, 0), atomic=False)
    world.batch()
    world.gateway.steps(20)
    world.job.publish(world.job.manifest(atomic=True))
    world.gateway.steps(20)
    assert "another writing, atomic batches for row by row" in world.gateway.state().problem


# What keeps a batch together, alone.


def row(offset: int, *, time_ms: int = 0) -> Record:
    return Record(Offset(offset), b"k%d" % offset, b"", make_version(1, 1), time_ms)


def marker(offset: int, *, generation: int = 1, **fields: bool) -> Record:
    value = ProgressMarker(generation=generation, **fields).SerializeToString()  # type: ignore[arg-type]
    return Record(Offset(offset), b"", value, None, 0)


def fetched(*records: Record) -> Fetched:
    return Fetched(SOURCE, list(records), Offset(records[-1].offset + 1))


def pending_batch(*, committed_end: int = 0, changes_max: int = 100) -> PendingBatch:
    return PendingBatch(
        1, committed_end=Offset(committed_end), next_offset=Offset(0), now_ms=lambda: 0, changes_max=changes_max
    )


def test_rows_are_held_until_their_end_comes() -> None:
    batch = pending_batch()
    first = fetched(row(0), marker(1, ends_batch=True), marker(2), row(3), row(4))
    split = batch.split(first, is_live=True)
    assert ([record.offset for record in split.whole.records], split.whole.next_offset) == ([0, 1, 2], 3)
    batch.keep(split, first)
    split = batch.split(fetched(row(5), marker(6, ends_batch=True)), is_live=True)
    assert ([record.offset for record in split.whole.records], split.whole.next_offset) == ([3, 4, 5, 6], 7)
    assert not split.pending


@pytest.mark.parametrize(
    "other",
    [
        marker(1),
        marker(1, generation=2, ends_batch=True),
        Record(Offset(1), b"", b"\xff", None, 0),
        Record(Offset(1), b"", None, None, 0),
        Record(Offset(1), None, b"", None, 0),
    ],
)
def test_what_is_no_end_ends_nothing(other: Record) -> None:
    split = pending_batch().split(fetched(row(0), other), is_live=True)
    assert (split.whole.records, split.whole.next_offset, len(split.pending)) == ([], 0, 2)


def test_a_split_changes_nothing_before_it_is_kept() -> None:
    """The store may refuse what is whole; then the same records come once more."""
    batch = pending_batch()
    some = fetched(row(0), row(1))
    assert batch.split(some, is_live=True) == batch.split(some, is_live=True)
    assert batch.records == ()


def test_half_a_batch_before_the_last_marker_is_dropped() -> None:
    some = fetched(row(0), marker(1, ends_batch=True), row(2), marker(3), row(4), marker(5, final=True))
    split = pending_batch().split(some, is_live=True)
    assert ([record.offset for record in split.whole.records], split.whole.next_offset) == ([0, 1, 3, 5], 6)
    assert split.dropped == [2, 4]


def test_a_batch_beyond_the_bound_is_applied_in_parts(caplog: pytest.LogCaptureFixture) -> None:
    batch = pending_batch(changes_max=3)
    assert len(batch.split(fetched(*map(row, range(3))), is_live=True).pending) == 3
    split = batch.split(fetched(*map(row, range(4))), is_live=True)
    assert (len(split.whole.records), split.pending) == (4, ())
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_rows_of_dropped_batches_are_counted() -> None:
    world = World(iter(lambda: 1_000, 0))
    world.batch()
    world.gateway.steps(20)
    world.batch(ends=False)
    world.job.mark_all({0: 1}, final=True)
    world.gateway.steps(20)
    assert {count for _, count in world.counts()} == {1}
    world.gateway.seconds(1)
    assert world.gateway.table_status().poison_records == len(MOVIES)
