"""A replica over records."""

import json
import logging

import pytest
from typing_extensions import override

from tablegate.gateway.contract.lineage import EpochRun
from tablegate.gateway.contract.rows import RowDecoder, row_schema
from tablegate.gateway.contract.types import Offset, Partition, StoreId, make_version
from tablegate.gateway.kafka.log import Fetched, Record, TopicPartition
from tablegate.gateway.replication.partitions import PartitionReplica
from tablegate.gateway.replication.records import RecordReader, SkippedRecords
from tablegate.gateway.replication.states import PartitionEvent, Subject, partition_machine
from tablegate.gateway.stores.base import Phase, Position, StoreFull
from tablegate.v1.changelog_pb2 import ProgressMarker
from tests.kit.replication.replicator import FakeClock, key_of, ratings, value_of
from tests.kit.store.memory import MemoryStore

SOURCE = TopicPartition("ratings-g1-changelog", Partition(0))
ID = StoreId(1)


class ClockAtZero(FakeClock):
    """A clock of 1970, when all records of these tests are appended."""

    def now_ms(self) -> int:
        return 0


class Setup:
    def __init__(self, *, barrier: int = 0, next_offset: int = 0, phase: Phase = Phase.RESTORING) -> None:
        self.clock = ClockAtZero()
        self.full = False
        self.writes_left = 1_000
        self.store = MemoryStore(free_bytes=self._free_bytes)
        self.skipped = SkippedRecords("ratings")
        start = Offset(next_offset)
        decoder = RowDecoder(ratings(), {1: json.dumps(row_schema(ratings()))})
        machine = partition_machine(Subject("ratings", 1, ID), SOURCE.partition, lambda _: None)
        machine.move(PartitionEvent.ASSIGN)
        self.replica = PartitionReplica(
            store=self.store,
            topic_partition=SOURCE,
            reader=RecordReader(1, table=ratings(), partition_count=1, decoder=decoder),
            position=Position(start, 0, phase, start),
            barrier=Offset(barrier),
            skipped=self.skipped,
            clock=self.clock,
            machine=machine,
        )

    def _free_bytes(self) -> int:
        self.writes_left -= 1
        return 0 if self.full else self.writes_left + 1

    def apply(self, *records: Record, next_offset: int | None = None) -> None:
        end = records[-1].offset + 1 if next_offset is None else next_offset
        self.replica.apply(Fetched(SOURCE, list(records), Offset(end)))

    def stored(self) -> Position:
        with self.store.snapshot() as snapshot:
            found = snapshot.position(ID, SOURCE.partition)
        assert found is not None
        assert found.next_offset == self.replica.position.next_offset
        return found

    def row(self, movie_id: int) -> bytes | None:
        with self.store.snapshot() as snapshot:
            return snapshot.get(ID, SOURCE.partition, key_of(movie_id))


def row(offset: int, movie_id: int, sequence: int, *, time_ms: int = 0) -> Record:
    return Record(Offset(offset), key_of(movie_id), value_of(movie_id, sequence), make_version(1, sequence), time_ms)


def marker(
    offset: int, next_offsets: dict[int, int], *, generation: int = 1, time_ms: int = 0, final: bool = False
) -> Record:
    value = ProgressMarker(generation=generation, final=final)
    value.sources.add(topic="ratings", next_offsets=next_offsets)
    return Record(Offset(offset), b"", value.SerializeToString(), None, time_ms)


def test_an_empty_changelog_is_live_at_once() -> None:
    setup = Setup()
    assert setup.replica.is_live
    assert setup.stored().phase is Phase.LIVE


def test_it_is_live_when_the_barrier_is_reached_and_not_before() -> None:
    setup = Setup(barrier=3)
    assert setup.stored().phase is Phase.RESTORING
    setup.apply(row(0, 1, 1), row(1, 2, 1))
    assert setup.stored().phase is Phase.RESTORING
    setup.apply(row(2, 3, 1))
    assert setup.stored().phase is Phase.LIVE
    assert setup.row(1) is not None


@pytest.mark.parametrize("phase", Phase)
def test_what_was_stored_is_live_only_at_the_barrier(phase: Phase) -> None:
    """Whatever it was before, as records may have come meanwhile. What was live has a history to go on with."""
    assert Setup(barrier=5, next_offset=5, phase=phase).stored().phase is Phase.LIVE
    opened_as = Phase.RESTORING if phase is Phase.RESTORING else Phase.CATCHING_UP
    assert Setup(barrier=5, next_offset=4, phase=phase).stored().phase is opened_as


def test_a_barrier_beyond_the_last_record_is_reached_by_position() -> None:
    """Compaction may have taken the records before the end."""
    setup = Setup(barrier=9)
    setup.apply(row(4, 1, 1), next_offset=5)
    assert not setup.replica.is_live
    setup.apply(next_offset=9)
    assert setup.replica.is_live
    assert setup.stored().next_offset == 9


def test_rows_move_the_position_and_its_time() -> None:
    setup = Setup()
    setup.apply(row(0, 1, 1, time_ms=50), row(5, 1, 2, time_ms=40))
    position = setup.stored()
    assert (position.next_offset, position.as_of_ms) == (6, 40)
    setup.apply(row(6, 1, 3, time_ms=30))
    assert setup.stored().as_of_ms == 40


def test_a_tombstone_deletes_and_a_stale_record_does_not_bring_back() -> None:
    setup = Setup()
    setup.apply(row(0, 1, 1), Record(Offset(1), key_of(1), None, make_version(1, 3), 0))
    assert setup.row(1) is None
    setup.apply(row(2, 1, 2))
    assert setup.row(1) is None
    assert setup.replica.stale_records == 1
    assert setup.stored().next_offset == 3
    setup.apply(row(3, 1, 4))
    assert setup.row(1) is not None


def test_a_marker_moves_time_and_source_offsets() -> None:
    setup = Setup()
    setup.apply(row(0, 1, 1, time_ms=10), marker(1, {0: 7, 1: 9}, time_ms=20))
    position = setup.stored()
    assert (position.next_offset, position.as_of_ms) == (2, 20)
    assert position.source_offsets == {("ratings", 0): 7, ("ratings", 1): 9}
    setup.apply(marker(2, {0: 5, 1: 12}, time_ms=30))
    assert setup.stored().source_offsets == {("ratings", 0): 7, ("ratings", 1): 12}
    setup.apply(row(3, 2, 1))
    assert setup.stored().source_offsets == {("ratings", 0): 7, ("ratings", 1): 12}


def test_nothing_is_applied_after_the_last_marker() -> None:
    setup = Setup(barrier=9)
    setup.apply(row(0, 1, 1), marker(1, {0: 7, 1: 9}))
    assert not setup.stored().is_final
    setup.apply(row(2, 1, 2, time_ms=10), marker(3, {0: 8}, time_ms=20, final=True), row(4, 1, 3, time_ms=99))
    setup.apply(row(5, 2, 1, time_ms=99), marker(6, {0: 50}, time_ms=99), marker(7, {0: 60}, time_ms=99, final=True))
    position = setup.stored()
    assert (position.is_final, position.phase, position.as_of_ms) == (True, Phase.LIVE, 20)
    assert position.source_offsets == {("ratings", 0): 8}
    assert setup.row(1) is not None
    assert setup.row(2) is None
    assert setup.replica.rows_applied == 2
    assert setup.skipped.reasons == {"row comes after the last marker of its generation": 2}


def test_a_last_marker_of_another_generation_is_none() -> None:
    setup = Setup()
    setup.apply(marker(0, {0: 8}, generation=2, final=True), row(1, 1, 1))
    assert not setup.stored().is_final
    assert setup.row(1) is not None


def test_a_last_marker_and_what_it_ends_are_one_write() -> None:
    setup = Setup()
    setup.writes_left = 1
    setup.apply(row(0, 1, 1), marker(1, {0: 7}, final=True))
    assert setup.row(1) is not None
    assert setup.stored().is_final


GOOD = row(0, 1, 1)


@pytest.mark.parametrize(
    ("poison", "reason"),
    [
        (GOOD._replace(key=None), "key is null"),
        (GOOD._replace(key=b"k" * 501), "key is longer than 500 bytes"),
        (GOOD._replace(version=None), "version header is missing"),
        (GOOD._replace(version=b"short"), "version header has not 12 bytes"),
        (GOOD._replace(version=make_version(2, 1)), "version is of another generation"),
        (GOOD._replace(value=b"?"), "value is not in the Confluent wire format"),
        (GOOD._replace(value=b""), "value is not in the Confluent wire format"),
        (GOOD._replace(value=b"\0\0\0\0\x09"), "value has a schema id that is not in the manifest"),
        (GOOD._replace(key=None, value=None, version=None), "key is null"),
        (GOOD._replace(value=None, version=None), "version header is missing"),
        (GOOD._replace(key=b"", value=b"\xff"), "progress marker does not parse"),
        (GOOD._replace(key=b"", value=None), "progress marker of another generation"),
        (marker(0, {0: 99}, generation=2), "progress marker of another generation"),
    ],
)
def test_poison_is_counted_and_passed(poison: Record, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    setup = Setup(barrier=3)
    caplog.set_level(logging.INFO)
    setup.apply(poison, row(1, 2, 1), poison._replace(offset=Offset(2)))
    assert setup.skipped.reasons == {reason: 2}
    assert setup.skipped.total == 2
    assert len(caplog.records) == 1
    assert reason in caplog.text
    assert setup.stored().next_offset == 3
    assert setup.replica.is_live
    assert setup.row(2) is not None
    assert setup.stored().source_offsets == {}


@pytest.mark.parametrize(
    ("first", "leader_epoch", "is_lost"),
    [(3, 5, False), (3, 6, False), (4, 5, False), (2, 5, True), (2, 6, True), (3, 4, True)],
    ids=["the next", "of the next leader", "behind a gap", "an offset again", "of another log", "an earlier leader"],
)
def test_what_cannot_follow_in_one_log_shows_that_it_is_another(first: int, leader_epoch: int, is_lost: bool) -> None:
    setup = Setup()
    records, end = [row(at, 1, at) for at in range(3)], Offset(3)
    setup.replica.apply(Fetched(SOURCE, records, end, runs=(EpochRun(5, Offset(0), end),)))
    run = EpochRun(leader_epoch, Offset(first), Offset(first + 1))
    fetched = Fetched(SOURCE, [row(first, 1, 9)], run.end, runs=(run,))
    assert setup.replica.is_lost_by(fetched) is is_lost


class FaultyDecoder(RowDecoder):
    """It has a mistake, which the row of movie 2 brings out."""

    @override
    def decode_row(self, key: bytes, value: bytes) -> bytes:
        if key == key_of(2):
            raise ZeroDivisionError
        return super().decode_row(key, value)


def test_a_mistake_of_ours_in_one_record_costs_that_record_alone() -> None:
    decoder = FaultyDecoder(ratings(), {1: json.dumps(row_schema(ratings()))})
    reader = RecordReader(1, table=ratings(), partition_count=1, decoder=decoder)
    records = [row(0, 1, 1), row(1, 2, 2), row(2, 3, 3)]
    batch = reader.read(records, Position(Offset(0), 0, Phase.LIVE, Offset(0)), SOURCE.partition, passed_ms=0)
    assert [change.key for change in batch.changes] == [key_of(1), key_of(3)]
    assert batch.skipped == [("reading it failed with ZeroDivisionError", 1)]


def test_rows_markers_and_position_are_one_write() -> None:
    """A crash between two writes would part them: there is room for one only."""
    setup = Setup()
    setup.writes_left = 1
    setup.apply(row(0, 1, 1), marker(1, {0: 7}), GOOD._replace(offset=Offset(2), key=None), row(3, 2, 1))
    assert setup.row(1) is not None
    assert setup.row(2) is not None
    assert setup.stored().next_offset == 4
    assert setup.stored().source_offsets == {("ratings", 0): 7}


def test_a_full_disk_applies_nothing_and_counts_nothing_twice() -> None:
    setup = Setup()
    setup.full = True
    records = [GOOD._replace(key=None), row(1, 1, 1)]
    for _ in range(3):
        with pytest.raises(StoreFull):
            setup.apply(*records)
    assert setup.stored().next_offset == 0
    assert setup.skipped.total == 0
    setup.full = False
    setup.apply(*records)
    assert setup.stored().next_offset == 2
    assert setup.skipped.total == 1


def test_nothing_fetched_writes_nothing() -> None:
    setup = Setup(next_offset=4)
    setup.full = True
    setup.apply(next_offset=4)
    assert setup.stored().next_offset == 4
