"""The process that writes snapshot files: what is due, who writes it, and what is kept."""

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tablegate.gateway.contract.lineage import EpochRun, cut
from tablegate.gateway.contract.types import Offset, Partition, StoreId
from tablegate.gateway.server.snapshots import RETRY_S, SnapshotWriter, numbers_of, write_paced
from tablegate.gateway.stores.base import Position
from tablegate.gateway.stores.snapshots.format import snapshots_of
from tablegate.gateway.telemetry.measures import Measures
from tablegate.internal.v1.store_pb2 import TableState
from tests.kit.replication.replicators import Member, World
from tests.kit.store.memory import MemoryStore
from tests.kit.store.snapshot_files import MemoryFiles
from tests.kit.table.filled import SIGNER
from tests.kit.world.broker import SkewedClock

PARTITIONS = 3
EVERY_S = 600


class Writing:
    """Gateways of a world, each with a writer; they have `files` together."""

    def __init__(self, gateways: int = 1, *, keep: int = 2) -> None:
        self.world = World(1, partitions=PARTITIONS, replicas=2, lag=False)
        self.clock = SkewedClock(self.world.clock)
        self.members = [self.world.join() for _ in range(gateways)]
        self.world.settle()
        self.files = MemoryFiles()
        self.measures = Measures()
        self.writers = {each.name: self.writer(each, keep=keep) for each in self.members}

    def writer(self, member: Member, *, keep: int = 2, offsets_min: int = 1) -> SnapshotWriter:
        return SnapshotWriter(
            member.catalogue,
            self.files,
            every_s=EVERY_S,
            keep=keep,
            clock=self.clock,
            signer=SIGNER,
            offsets_min=offsets_min,
            part_bytes=100,
            measures=self.measures,
        )

    def round(self, *members: Member) -> None:
        for member in members or self.members:
            for _ in self.writers[member.name].round(member.store):
                pass

    def names(self, partition: int | None = None) -> list[str]:
        found = snapshots_of(self.files.list("ratings"))
        return sorted(each.file.name for each in found if partition in (None, each.partition))


def test_each_partition_is_written_when_it_is_time() -> None:
    writing = Writing()
    writing.round()
    first = writing.names()
    assert len(first) == PARTITIONS
    writing.world.clock.passed_s += EVERY_S - 1
    writing.round()
    assert writing.names() == first
    writing.world.clock.passed_s += 1
    writing.round()
    assert len(writing.names()) == 2 * PARTITIONS
    assert writing.measures.snapshots == {("ratings", "written", "done"): 2 * PARTITIONS}


def test_a_writer_that_is_started_anew_knows_what_is_there() -> None:
    writing = Writing()
    writing.round()
    [member] = writing.members
    writing.writers[member.name] = writing.writer(member)
    writing.round()
    assert len(writing.names()) == PARTITIONS


def test_as_many_are_kept_as_was_said_the_newest() -> None:
    writing = Writing(keep=2)
    for _ in range(5):
        newest = set(writing.names())
        writing.round()
        newest = set(writing.names()) - newest
        writing.world.clock.passed_s += EVERY_S
    assert len(writing.names()) == 2 * PARTITIONS
    assert newest < set(writing.names())


def test_a_file_from_the_future_is_not_the_newest_for_ever() -> None:
    """The clock of a gateway was years ahead."""
    writing = Writing(keep=1)
    writing.world.clock.passed_s += 10**8
    writing.round()
    wrong = set(writing.names())
    writing.world.clock.passed_s -= 10**8
    writing.round()
    assert len(writing.names()) == PARTITIONS
    assert not wrong & set(writing.names())


def test_a_clock_that_is_set_back_puts_off_no_file() -> None:
    """It was years ahead, so that no certificate of an object store was valid any more."""
    writing = Writing()
    writing.clock.skew_ms = 10**11
    writing.files.is_away = True
    writing.round()
    writing.clock.skew_ms = 0
    writing.files.is_away = False
    writing.world.clock.passed_s += RETRY_S
    writing.round()
    assert len(writing.names()) == PARTITIONS


def interleaved(*rounds: Iterator[None]) -> None:
    """Do the rounds of several writers, a part of each in turn."""
    left = list(rounds)
    while left:
        left = [each for each in left if next(each, each) is not each]


def test_one_gateway_writes_a_partition() -> None:
    writing = Writing(3)
    interleaved(*(writing.writers[each.name].round(each.store) for each in writing.members))
    assert [len(writing.names(partition)) for partition in range(PARTITIONS)] == [1] * PARTITIONS
    files = [numbers_of(writer)["snapshot_files"] for writer in writing.writers.values()]
    assert sorted(partition for each in files for _, partition, time_ms, _ in each if time_ms) == [0, 1, 2]


def test_where_the_first_gateway_is_gone_the_next_one_writes() -> None:
    writing = Writing(3)
    world = writing.world
    gone = max(writing.members, key=lambda each: len(writing.writers[each.name].newest))
    world.kill(gone)
    world.settle()
    writing.round(*world.running)
    assert [len(writing.names(partition)) for partition in range(PARTITIONS)] == [1] * PARTITIONS


def test_two_that_write_at_once_do_no_harm() -> None:
    writing = Writing()
    [member] = writing.members
    interleaved(*(writing.writer(member).round(member.store) for _ in range(2)))
    assert [len(writing.names(partition)) for partition in range(PARTITIONS)] == [2] * PARTITIONS
    writing.world.clock.passed_s += EVERY_S
    writing.round()
    assert [len(writing.names(partition)) for partition in range(PARTITIONS)] == [2] * PARTITIONS


def begun() -> tuple[Writing, Member, Iterator[None]]:
    """Return one gateway's writing, which is in the middle of a file."""
    writing = Writing()
    [member] = writing.members
    work = writing.writer(member).round(member.store)
    for _ in range(4):
        next(work)
    return writing, member, work


def test_a_writer_that_stops_leaves_no_file() -> None:
    writing, _, work = begun()
    work.close()
    assert writing.names() == []
    assert not writing.measures.snapshots


def test_a_partition_that_goes_meanwhile_is_not_written() -> None:
    writing, member, work = begun()
    state = TableState()
    state.CopyFrom(member.state())
    state.problem = "its topic is gone"
    member.store.put_table("ratings", state)
    for _ in work:
        pass
    assert writing.names() == []
    assert writing.measures.snapshots == {("ratings", "written", "failed"): PARTITIONS}


def go_back(position: Position) -> Position:
    return replace(position, next_offset=Offset(1))


def go_on_in_another_log(position: Position) -> Position:
    lost = Offset(position.next_offset - 2)
    end = Offset(position.next_offset + 9)
    lineage = (*cut(position.lineage, lost), EpochRun(position.lineage[-1].leader_epoch + 1, lost, end))
    return replace(position, next_offset=end, lineage=lineage)


@pytest.mark.parametrize("begin_anew", [go_back, go_on_in_another_log], ids=lambda each: each.__name__)
def test_a_partition_that_begins_anew_meanwhile_is_not_written(begin_anew: Callable[[Position], Position]) -> None:
    """Its changelog lost a tail, and it was restored between two parts: rows before may be of what is gone."""
    writing, member, work = begun()
    store_id = StoreId(member.state().store_id)
    for partition, position in member.positions().items():
        member.store.apply(store_id, Partition(partition), [], begin_anew(position))
    next(work)
    assert writing.measures.snapshots == {("ratings", "written", "failed"): 1}


def test_a_table_that_is_restored_meanwhile_is_not_written() -> None:
    """It was away for too long: the rows that were read are being removed, and the new ones are further already."""
    writing, member, work = begun()
    state = TableState()
    state.CopyFrom(member.state())
    state.store_id += 1
    for partition, position in member.positions().items():
        restored = replace(position, next_offset=Offset(position.next_offset + 9))
        member.store.apply(StoreId(state.store_id), Partition(partition), [], restored)
    member.store.put_table("ratings", state)
    next(work)
    assert writing.measures.snapshots == {("ratings", "written", "failed"): 1}


def test_a_store_that_is_made_anew_meanwhile_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    writing, _, work = begun()
    monkeypatch.setattr(MemoryStore, "is_current", lambda _: False)
    for _ in work:
        pass
    assert writing.names() == []


def test_a_short_changelog_is_not_written() -> None:
    writing = Writing()
    [member] = writing.members
    writing.writers[member.name] = writing.writer(member, offsets_min=10_000)
    writing.round()
    assert writing.names() == []


def test_what_is_not_live_is_not_written() -> None:
    writing = Writing()
    [member] = writing.members
    writing.world.kill(member, wipe=True)
    writing.world.start(member)
    writing.world.step(member)
    writing.round()
    assert writing.names() == []


def test_where_nothing_may_be_removed_all_that_is_due_is_written(caplog: pytest.LogCaptureFixture) -> None:
    writing = Writing(keep=1)
    writing.files.keeps_all = True
    for number in range(1, 4):
        writing.round()
        assert len(writing.names()) == number * PARTITIONS
        writing.world.clock.passed_s += EVERY_S
    assert caplog.messages == ["old snapshot files are not removed: nothing may be removed"]
    writing.files.keeps_all = False
    writing.round()
    assert len(writing.names()) == PARTITIONS


def test_a_full_disk_and_one_that_is_away_are_a_line_each(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tablegate.gateway.snapshots")
    writing = Writing()
    for _ in range(3):
        writing.files.is_full = True
        writing.round()
        writing.files.is_full, writing.files.is_away = False, True
        writing.world.clock.passed_s += RETRY_S
        writing.round()
        writing.files.is_away = False
        writing.world.clock.passed_s += RETRY_S
    assert writing.names() == []
    writing.round()
    assert len(writing.names()) == PARTITIONS
    assert [each for each in caplog.messages if "of partition" not in each] == [
        "no snapshot file is written: there is no room; it is tried again",
        "snapshot files are written again",
    ]


def test_one_that_can_never_be_written_does_not_hold_up_others() -> None:
    """It is too long for the disk."""
    writing = Writing()
    writing.files.too_long = ("/0/", "/1/")
    for _ in range(PARTITIONS):
        writing.round()
        writing.world.clock.passed_s += RETRY_S
    assert [len(writing.names(partition)) for partition in range(PARTITIONS)] == [0, 0, 1]
    writing.files.too_long = ("/0/",)
    for _ in range(PARTITIONS):
        writing.round()
        writing.world.clock.passed_s += RETRY_S
    assert [len(writing.names(partition)) for partition in range(PARTITIONS)] == [0, 1, 1]


def test_a_table_that_can_never_be_written_does_not_hold_up_others() -> None:
    writing = Writing()
    [member] = writing.members
    table = member.catalogue.tables["ratings"]
    tables = {"ratings": table, "ratings_too": replace(table, name="ratings_too")}
    member.catalogue = replace(member.catalogue, tables=tables)
    member.store.put_table("ratings_too", member.state())
    member.store.set_status(b"")  # it is alone: all is its own
    writing.writers[member.name] = writing.writer(member)
    writing.files.too_long = ("ratings/",)
    for _ in range(PARTITIONS + 1):
        writing.round()
        writing.world.clock.passed_s += RETRY_S
    assert not writing.names()
    assert len(list(writing.files.list("ratings_too"))) == PARTITIONS


@pytest.mark.parametrize("too_long", [(), ("/0/",)], ids=["all are written", "the first one is not"])
def test_files_of_an_older_generation_go_when_they_are_old(too_long: tuple[str, ...]) -> None:
    writing = Writing(keep=2)
    writing.round()
    old = set(writing.names())
    writing.files.too_long = too_long
    world = writing.world
    world.rebuild()
    world.run(5)
    world.end_old()
    world.settle()
    for _ in range(2):
        writing.round()
        world.clock.passed_s += RETRY_S
    assert old < set(writing.names()), "a gateway that stayed behind may want them"
    world.clock.passed_s += 3 * EVERY_S
    for _ in range(2):
        writing.round()
        world.clock.passed_s += RETRY_S
    assert not old & set(writing.names())
    assert len(writing.names()) == 2 * (PARTITIONS - len(too_long))


def test_files_of_others_stay() -> None:
    writing = Writing(keep=1)
    writing.files.whole["ratings/notes.txt"] = b"ours"
    for _ in range(3):
        writing.round()
        writing.world.clock.passed_s += EVERY_S
    assert "ratings/notes.txt" in writing.files.whole


def test_the_age_of_files_is_known_of_what_this_gateway_writes() -> None:
    writing = Writing()
    now_ms = writing.world.clock.now_ms()
    [writer] = writing.writers.values()
    [member] = writing.members
    next(writer.round(member.store))
    assert numbers_of(writer)["snapshot_files"] == [("ratings", number, 0, 0) for number in range(PARTITIONS)]
    writing.round()
    offsets = [snapshot.next_offset for snapshot in snapshots_of(writing.files.list("ratings"))]
    files = [("ratings", number, now_ms, offsets[number]) for number in range(PARTITIONS)]
    assert numbers_of(writer) == {"snapshot_files": files, "snapshots_problem": ""}
    assert all(offsets)
    again = writing.writer(member)
    for _ in again.round(member.store):
        pass
    assert numbers_of(again)["snapshot_files"] == files, "one that is started anew finds them"


def test_why_no_file_can_be_written_is_known() -> None:
    writing = Writing()
    [writer] = writing.writers.values()
    writing.files.is_away = True
    writing.round()
    assert numbers_of(writer) == {"snapshot_files": [], "snapshots_problem": "it does not answer"}


def test_work_ends_when_it_is_to_stop() -> None:
    writing = Writing()
    [member] = writing.members
    stop = threading.Event()
    beats = []

    def beat() -> None:
        beats.append(1)
        if len(beats) == 3:
            stop.set()

    write_paced(writing.writer(member).round(member.store), stop, beat)
    assert (len(beats), writing.names()) == (3, [])
