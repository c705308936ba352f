"""A process that writes snapshot files and is killed, or has a full disk: what is there is whole."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from tablegate.gateway.stores.lmdb import layout
from tablegate.gateway.stores.lmdb.store import LmdbStore
from tablegate.gateway.stores.snapshots.files import UNFINISHED_S, DirectoryFiles
from tablegate.gateway.stores.snapshots.format import parts_in, snapshots_of
from tablegate.internal.v1.transfer_pb2 import TransferRequest, TransferResponse
from tests.kit.table.filled import live_partition

pytestmark = pytest.mark.tools

ROWS, KILLS = 2_000, 6


def request_of(path: Path) -> TransferRequest:
    """Fill a store; return by what its files are asked for."""
    table = live_partition(LmdbStore(path), ROWS)
    with table.store.snapshot() as snapshot:
        state = snapshot.table("ratings")
    assert state is not None
    table.store.close()
    return TransferRequest(
        table="ratings",
        generation=1,
        changelog_topic_id=state.manifest.changelog_topic_id,
        row_digest=state.row_digest,
        format=layout.FORMAT_VERSION,
    )


@contextmanager
def killed_after(*arguments: object) -> Iterator[IO[bytes]]:
    """Yield the lines of a process that is killed then."""
    command = [sys.executable, "-m", "tests.kit.store.snapshot_process", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        try:
            yield writer.stdout
        finally:
            writer.send_signal(signal.SIGKILL)


def whole_files(directory: Path, request: TransferRequest) -> Sequence[Sequence[TransferResponse]]:
    """Return the parts of all files that are there."""
    files = DirectoryFiles(directory)
    return [list(parts_in(files.read(each.file), request)) for each in snapshots_of(files.list("ratings"))]


def test_after_a_kill_at_any_moment_files_are_whole_or_not_there(tmp_path: Path) -> None:
    request, chance, seen = request_of(tmp_path / "store"), random.Random(3), set[int]()
    for _ in range(KILLS):
        with killed_after(tmp_path / "store", tmp_path / "files") as lines:
            for _ in range(chance.randrange(1, 150)):
                assert lines.readline()
        found = whole_files(tmp_path / "files", request)
        seen.add(len(found))
        for parts in found:
            assert parts[-1].rows == ROWS
    assert len(seen) > 1
    left = list(tmp_path.rglob("*.unfinished"))
    assert left, "it was killed while it wrote"
    DirectoryFiles(tmp_path / "files", now_s=lambda: time.time() + 2 * UNFINISHED_S).tidy("ratings")
    assert not list(tmp_path.rglob("*.unfinished"))


def test_on_a_full_disk_no_file_is_there_and_nothing_is_left(tmp_path: Path) -> None:
    request = request_of(tmp_path / "store")
    seen: list[bytes] = []
    with killed_after(tmp_path / "store", tmp_path / "files", 20_000) as lines:
        while seen.count(b"nothing\n") < 3:
            seen.append(lines.readline())
            assert seen[-1] in (b"part\n", b"nothing\n")
    assert b"part\n" in seen
    assert whole_files(tmp_path / "files", request) == []
    assert len(list(tmp_path.rglob("*.unfinished"))) <= 1, "of the file that it was killed at"
