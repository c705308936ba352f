"""Snapshot files that are listed and read in threads: whoever asks for them never waits, and never for ever."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typing_extensions import override

from tablegate.gateway.cluster.assignment import OriginAway, TransferFailed
from tablegate.gateway.contract.types import Offset
from tablegate.gateway.replication.snapshots import AWAY_S, LISTED_S, FileSnapshots, SnapshotProblems
from tablegate.gateway.stores.snapshots.files import SnapshotFile
from tablegate.gateway.stores.snapshots.format import Encoder, new_name
from tablegate.internal.v1.transfer_pb2 import TransferRequest, TransferResponse
from tests.kit.replication.replicator import FakeClock
from tests.kit.store.snapshot_files import MemoryFiles

REQUEST = TransferRequest(table="ratings", partition=3, generation=2, changelog_topic_id="id", format=b"6")
PARTS = [TransferResponse(first_position=b"first"), TransferResponse(last_position=b"last")]


class HangingFiles(MemoryFiles):
    """Lists nothing before it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go = threading.Event()
        self.lists = 0

    @override
    def list(self, folder: str) -> Iterator[SnapshotFile]:
        self.lists += 1
        self.may_go.wait(60)
        yield from super().list(folder)


def put(files: MemoryFiles, time_ms: int, request: TransferRequest = REQUEST) -> str:
    encoder = Encoder()
    name = new_name(request, time_ms=time_ms, next_offset=Offset(1), draw=time_ms)
    files.whole[name] = encoder.begin(request) + b"".join(map(encoder.part, PARTS)) + encoder.end()
    return name


def eventually(ask: Callable[[], Any]) -> Any:
    """Return what is answered once it is."""
    while (found := ask()) is None:
        time.sleep(0.001)
    return found


def names(snapshots: FileSnapshots, request: TransferRequest = REQUEST) -> list[str]:
    return [each.file.name for each in eventually(lambda: snapshots.found(request))]


def test_files_of_a_partition_are_found_the_newest_first() -> None:
    files = MemoryFiles()
    other = TransferRequest(table="ratings", partition=4, generation=2, changelog_topic_id="id", format=b"6")
    old, new, others = put(files, 1_000), put(files, 2_000), put(files, 3_000, other)
    put(files, 4_000, TransferRequest(table="ratings", partition=3, generation=3))
    snapshots = FileSnapshots(files, FakeClock())
    assert names(snapshots) == [new, old]
    assert names(snapshots, other) == [others]


def test_a_list_is_asked_for_once_for_all_partitions_and_again_later() -> None:
    files, clock = HangingFiles(), FakeClock()
    files.may_go.set()
    snapshots = FileSnapshots(files, clock)
    for partition in range(9):
        assert names(snapshots, TransferRequest(table="ratings", partition=partition)) == []
    assert files.lists == 1
    clock.passed_s += LISTED_S
    names(snapshots, TransferRequest(table="ratings"))
    assert files.lists == 2


def test_files_that_hang_are_waited_for_a_while_only(caplog: pytest.LogCaptureFixture) -> None:
    files, clock = HangingFiles(), FakeClock()
    snapshots = FileSnapshots(files, clock, list_max_s=10)
    assert snapshots.found(REQUEST) is None
    clock.passed_s += 9
    assert snapshots.found(REQUEST) is None
    clock.passed_s += 1
    for _ in range(3):
        assert snapshots.found(REQUEST) == ()
    assert caplog.messages == ["no snapshot file is used: they are not listed in time; rows come from the changelog"]
    files.may_go.set()


def test_files_that_are_away_are_none_and_a_line(caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    files.is_away = True
    assert names(FileSnapshots(files, FakeClock())) == []
    assert caplog.messages == ["no snapshot file is used: it does not answer; rows come from the changelog"]


def test_after_some_files_in_a_row_that_are_away_none_is_used(caplog: pytest.LogCaptureFixture) -> None:
    """Else each of thousands of partitions would wait for its own."""
    files, clock = MemoryFiles(), FakeClock()
    name = put(files, 1_000)
    snapshots = FileSnapshots(files, clock)
    [found] = eventually(lambda: snapshots.found(REQUEST))
    for was_away in (True, True, False, True, True):
        snapshots.note(found, was_away=was_away)
        assert names(snapshots) == [name]
    snapshots.note(found, was_away=True)
    assert names(snapshots) == []
    assert caplog.messages == [
        "no snapshot file is used for a while: 3 in a row did not come; rows come from the changelog"
    ]
    clock.passed_s += AWAY_S
    assert names(snapshots) == [name]


def test_a_file_of_no_use_is_known_until_a_newer_one_is_of_use() -> None:
    files, problems = MemoryFiles(), SnapshotProblems()
    names_of = [put(files, time_ms) for time_ms in (1_000, 2_000, 3_000)]
    snapshots = FileSnapshots(files, FakeClock(), problems=problems)
    newest, older, oldest = eventually(lambda: snapshots.found(REQUEST))
    assert problems.numbers() == []
    snapshots.note(older, problem="its digest is wrong")
    known = [(REQUEST.table, REQUEST.partition, 2_000, names_of[1], "its digest is wrong")]
    assert problems.numbers() == known
    snapshots.note(oldest)
    assert problems.numbers() == known
    snapshots.note(newest)
    assert problems.numbers() == []


def test_a_file_that_cannot_be_read_is_away() -> None:
    files = MemoryFiles()
    put(files, 1_000)
    snapshots = FileSnapshots(files, FakeClock())
    [found] = eventually(lambda: snapshots.found(REQUEST))
    files.is_away = True
    with pytest.raises(OriginAway, match="it does not answer"):
        eventually(snapshots.read(found, REQUEST).next)


def test_parts_come_from_a_thread_and_a_bad_file_says_why() -> None:
    files = MemoryFiles()
    put(files, 1_000)
    snapshots = FileSnapshots(files, FakeClock())
    [found] = eventually(lambda: snapshots.found(REQUEST))
    parts = snapshots.read(found, REQUEST)
    assert [eventually(parts.next) for _ in PARTS] == PARTS
    with pytest.raises(TransferFailed, match="it ended early"):
        eventually(parts.next)
    files.whole[found.file.name] = files.whole[found.file.name][:-1] + b"x"
    damaged = snapshots.read(found, REQUEST)
    assert eventually(damaged.next) == PARTS[0]
    with pytest.raises(TransferFailed, match="its digest is wrong"):
        eventually(damaged.next)
    for each in (parts, damaged):
        each.close()
