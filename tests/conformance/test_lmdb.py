"""What only the LMDB store does: it survives a crash, and refuses what it cannot trust."""

import multiprocessing
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import lmdb
import pytest

from tablegate.gateway.contract.types import Offset, Partition, StoreId
from tablegate.gateway.stores.base import StoreCorrupt, StoreFull, StoreUnavailable
from tablegate.gateway.stores.lmdb.environment import DATA_FILE, wipe
from tablegate.gateway.stores.lmdb.store import LmdbReader, LmdbStore
from tablegate.internal.v1.store_pb2 import TableState
from tests.kit.store.changes import change, position
from tests.kit.store.crash_writer import KEYS, batch_of

ID, P0 = StoreId(1), Partition(0)
KILLS = 20
PAGE_BYTES = 4_096


def fill(path: Path, *, boot_id: str = "boot", rows: int = 1) -> LmdbStore:
    store = LmdbStore(path, boot_id=boot_id)
    store.apply(ID, P0, [change(i, struct.pack(">I", i), 1, b"x" * 100) for i in range(rows)], position(rows))
    return store


def abandon(store: LmdbStore) -> None:
    """Let go of the files as a killed process does: without the clean mark."""
    store.abandon()


def test_a_closed_store_opens_again_whole(tmp_path: Path) -> None:
    store = fill(tmp_path / "store")
    assert store.new_store_id() == 1
    store.put_table("ratings", TableState(store_id=1))
    store.close()
    again = LmdbStore(tmp_path / "store", boot_id="another boot")
    with again.snapshot() as snapshot:
        assert snapshot.position(ID, P0) == position(1)
        assert snapshot.table("ratings") == TableState(store_id=1)
    assert again.new_store_id() == 2
    again.close()


def test_a_killed_store_opens_again_unless_the_machine_stopped(tmp_path: Path) -> None:
    abandon(fill(tmp_path / "store"))
    store = LmdbStore(tmp_path / "store", boot_id="boot")
    with store.snapshot() as snapshot:
        assert snapshot.position(ID, P0) == position(1)
    abandon(store)
    with pytest.raises(StoreCorrupt, match=r"the machine stopped while the store in .* was open"):
        LmdbStore(tmp_path / "store", boot_id="another boot")
    wipe(tmp_path / "store")
    store = LmdbStore(tmp_path / "store", boot_id="another boot")
    with store.snapshot() as snapshot:
        assert snapshot.position(ID, P0) is None
    store.close()


def test_a_copy_of_a_store_that_was_open_is_not_trusted(tmp_path: Path) -> None:
    store = fill(tmp_path / "store")
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    with pytest.raises(StoreCorrupt, match="or it is a copy of one that was"):
        LmdbStore(tmp_path / "copy", boot_id="boot")
    store.close()
    shutil.copytree(tmp_path / "store", tmp_path / "whole")
    with LmdbStore(tmp_path / "whole", boot_id="boot").snapshot() as snapshot:
        assert snapshot.position(ID, P0) == position(1)


def test_an_unknown_boot_is_no_proof(tmp_path: Path) -> None:
    abandon(fill(tmp_path / "store", boot_id=""))
    with pytest.raises(StoreCorrupt):
        LmdbStore(tmp_path / "store", boot_id="")


def test_another_format_is_refused(tmp_path: Path) -> None:
    fill(tmp_path / "store").close()
    with lmdb.open(str(tmp_path / "store"), max_dbs=8) as env, env.begin(write=True) as transaction:
        transaction.put(b"format", b"99", db=env.open_db(b"meta", transaction))
    with pytest.raises(StoreCorrupt, match="has format 99, this version writes 6"):
        LmdbStore(tmp_path / "store")
    with pytest.raises(StoreUnavailable, match="not ready"):
        LmdbReader(tmp_path / "store")


def test_garbage_is_refused(tmp_path: Path) -> None:
    fill(tmp_path / "store").close()
    (tmp_path / "store" / DATA_FILE).write_bytes(os.urandom(100_000))
    with pytest.raises(StoreCorrupt):
        LmdbStore(tmp_path / "store")


@pytest.mark.tools
def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    fill(tmp_path / "store", rows=50_000).close()
    os.truncate(tmp_path / "store" / DATA_FILE, 200_000)
    with pytest.raises(StoreCorrupt, match="is cut: 200000 of "):
        LmdbStore(tmp_path / "store")


READS_ALL = """
import sys
from pathlib import Path
from tablegate.gateway.stores.base import StoreCorrupt
from tablegate.gateway.stores.lmdb.store import LmdbStore
from tests.conformance.test_lmdb import ID, P0

try:
    with LmdbStore(Path(sys.argv[1]), boot_id="boot").snapshot() as snapshot:
        print(len(snapshot.range(ID, P0, start=b"", end=None, limit=10**6)))
except StoreCorrupt:
    print("corrupt")
"""


@pytest.mark.tools
@pytest.mark.parametrize("missing_pages", [1, 40, 200])
def test_a_file_whose_tail_was_cut_ends_no_process(tmp_path: Path, missing_pages: int) -> None:
    fill(tmp_path / "store", rows=50_000).close()
    file = tmp_path / "store" / DATA_FILE
    os.truncate(file, file.stat().st_size - missing_pages * PAGE_BYTES)
    command = [sys.executable, "-c", READS_ALL, str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) in [(0, "corrupt"), (0, "50000")]


def test_a_path_that_cannot_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match="cannot make"):
        LmdbStore(tmp_path / "file" / "store")


def test_a_damaged_row_is_never_served(tmp_path: Path) -> None:
    store = fill(tmp_path / "store")
    environment = store._environment
    with environment.env.begin(write=True) as transaction:
        transaction.put(b"\0\0\0\1\0\0" + struct.pack(">I", 0), bytes(40), db=environment.rows)
    with store.snapshot() as snapshot:
        with pytest.raises(StoreCorrupt, match="damaged"):
            snapshot.get(ID, P0, struct.pack(">I", 0))
        with pytest.raises(StoreCorrupt, match="damaged"):
            snapshot.range(ID, P0, start=b"", end=None, limit=1)
    store.close()


def test_a_full_map_is_a_full_store(tmp_path: Path) -> None:
    store = fill(tmp_path / "store")
    store._environment.env.set_mapsize(1 << 20)
    big = [change(i, struct.pack(">I", i), 2, os.urandom(1000)) for i in range(1, 3000)]
    with pytest.raises(StoreFull, match="free some disk space"):
        store.apply(ID, P0, big, position(3000))
    store._environment.env.set_mapsize(1 << 30)
    with store.snapshot() as snapshot:
        assert snapshot.position(ID, P0) == position(1)
    assert store.apply(ID, P0, big, position(3000)).applied == len(big)
    store.close()


def test_a_reader_waits_for_its_writer(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"there is no store in .* yet"):
        LmdbReader(tmp_path / "store")


def _read_elsewhere(path: Path, asked: "multiprocessing.Queue[bool]", seen: "multiprocessing.Queue[object]") -> None:
    reader = LmdbReader(path)
    with reader.snapshot() as snapshot:
        seen.put(snapshot.get(ID, P0, struct.pack(">I", 0)))
        seen.put(reader.is_current())
        asked.get()
        seen.put(snapshot.get(ID, P0, struct.pack(">I", 0)))
    with reader.snapshot() as snapshot:
        seen.put(snapshot.get(ID, P0, struct.pack(">I", 0)))
    asked.get()
    seen.put(reader.is_current())
    reader.close()


@pytest.mark.tools
def test_another_process_reads_snapshots_and_sees_a_wipe(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    asked: multiprocessing.Queue[bool] = spawn.Queue()
    seen: multiprocessing.Queue[object] = spawn.Queue()
    store = fill(tmp_path / "store")
    process = spawn.Process(target=_read_elsewhere, args=(tmp_path / "store", asked, seen))
    process.start()
    assert [seen.get(timeout=30) for _ in range(2)] == [b"x" * 100, True]
    store.apply(ID, P0, [change(1, struct.pack(">I", 0), 2, b"new")], position(2))
    asked.put(True)
    assert [seen.get(timeout=30) for _ in range(2)] == [b"x" * 100, b"new"]
    store.close()
    wipe(tmp_path / "store")
    fill(tmp_path / "store").close()
    asked.put(True)
    assert seen.get(timeout=30) is False
    process.join(timeout=30)
    assert process.exitcode == 0


@pytest.mark.tools
def test_a_store_killed_at_any_moment_is_a_prefix(tmp_path: Path) -> None:
    """The writer applies numbered batches until it is killed: what is there are the first n, position and all."""
    random_ = random.Random(7)
    seen_positions = set()
    for _ in range(KILLS):
        command = [sys.executable, "-m", "tests.kit.store.crash_writer", str(tmp_path / "store")]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"writing\n"
        time.sleep(random_.uniform(0, 0.08))
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        seen_positions.add(check_prefix(tmp_path / "store"))
        if random_.random() < 0.2:
            shutil.rmtree(tmp_path / "store")
    assert len(seen_positions) > KILLS // 2


def check_prefix(path: Path) -> int:
    store = LmdbStore(path)
    with store.snapshot() as snapshot:
        found = snapshot.position(ID, P0)
        batches = 0 if found is None else found.source_offsets["batch", 0]
        expected: dict[bytes, bytes] = {}
        offsets: list[int] = []
        for number in range(batches):
            changes, moved_to = batch_of(number)
            for each in changes:
                offsets.append(each.offset)
                if each.row is None:
                    expected.pop(each.key, None)
                else:
                    expected[each.key] = each.row
            assert found is not None
            if number == batches - 1:
                assert (found.next_offset, found.as_of_ms) == (moved_to.next_offset, moved_to.as_of_ms)
        assert dict(snapshot.range(ID, P0, start=b"", end=None, limit=KEYS)) == expected
        kept = [each.offset for each in snapshot.history(ID, P0, start=Offset(0), limit=len(offsets) + 1)]
        assert kept == offsets
    abandon(store)
    return batches


@pytest.mark.tools
def test_what_expires_makes_room_for_what_comes(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "store", history_changes_max=1_000, boot_id="boot")
    sizes = []
    for number in range(30):
        keys = [struct.pack(">II", number, i) for i in range(2_000)]
        offset = number * len(keys)
        changes = [change(offset + i, key, 1, b"x" * 100) for i, key in enumerate(keys)]
        store.apply(ID, P0, changes, position(offset + len(keys)))
        if number >= 3:
            expired = [struct.pack(">II", number - 3, i) for i in range(2_000)]
            assert store.expire(ID, P0, expired, time_ms=0) == 2_000
        sizes.append((tmp_path / "store" / DATA_FILE).stat().st_size)
    store.close()
    assert sizes[-1] < sizes[9] * 1.1
