"""One suite for all places that keep snapshot files."""

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tablegate.gateway.stores.snapshots.files import (
    UNFINISHED_S,
    DirectoryFiles,
    FilesUnavailable,
    SnapshotFile,
    SnapshotFiles,
)
from tests.kit.store.snapshot_files import MemoryFiles

CONTENT = bytes(range(256)) * 5


OBJECT_STORES = ("s3", "google", "azure")


@pytest.fixture(
    params=["memory", "directory", *(pytest.param(kind, marks=pytest.mark.tools) for kind in OBJECT_STORES)]
)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> SnapshotFiles:
    """Return files that are read 100 bytes at once."""
    if request.param in OBJECT_STORES:
        objects: SnapshotFiles = request.getfixturevalue("open_objects")(request.param)
        return objects
    if request.param == "directory":
        return DirectoryFiles(tmp_path / "snapshots", read_bytes=100)
    return MemoryFiles(read_bytes=100)


def put(files: SnapshotFiles, name: str, content: bytes = CONTENT) -> SnapshotFile:
    new = files.create(name)
    new.write(content[:10])
    new.write(content[10:])
    new.commit()
    new.discard()
    return SnapshotFile(name, len(content))


def test_what_is_committed_is_there(files: SnapshotFiles) -> None:
    a, b, c = (put(files, name) for name in ("ratings/1-a/0/x", "ratings/1-a/0/y", "ratings/2-a/11/x"))
    put(files, "ratings_of_all/1-a/0/x")
    assert sorted(files.list("ratings")) == [a, b, c]
    assert sorted(files.list("ratings/1-a")) == [a, b]
    assert list(files.list("customers")) == []
    chunks = list(files.read(b))
    assert b"".join(chunks) == CONTENT
    assert max(map(len, chunks)) <= 100


def test_an_empty_file_has_nothing_to_read(files: SnapshotFiles) -> None:
    assert list(files.read(put(files, "ratings/1-a/0/x", b""))) == []


def test_before_its_end_a_file_is_not_there(files: SnapshotFiles) -> None:
    new = files.create("ratings/1-a/0/x")
    new.write(CONTENT)
    assert list(files.list("ratings")) == []
    new.discard()
    new.discard()
    assert list(files.list("ratings")) == []


def test_two_files_are_written_at_once(files: SnapshotFiles) -> None:
    new = [files.create(f"ratings/1-a/0/{name}") for name in "xy"]
    for number in range(5):
        for each, byte in zip(new, (b"x", b"y"), strict=True):
            each.write(byte * number)
    for each in new:
        each.commit()
    found = {file.name: b"".join(files.read(file)) for file in files.list("ratings")}
    assert found == {"ratings/1-a/0/x": b"x" * 10, "ratings/1-a/0/y": b"y" * 10}


def test_a_file_is_removed_and_may_be_gone_already(files: SnapshotFiles) -> None:
    gone, stays = put(files, "ratings/1-a/0/x"), put(files, "ratings/1-a/0/y")
    files.remove(gone.name)
    files.remove(gone.name)
    files.tidy("ratings")
    assert list(files.list("ratings")) == [stays]
    with pytest.raises(FilesUnavailable):
        list(files.read(gone))


def test_nobody_beside_user_and_group_reads_a_directory(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        put(DirectoryFiles(tmp_path / "snapshots"), "ratings/1-a/0/x")
    finally:
        os.umask(before)
    found = [tmp_path / "snapshots", *(tmp_path / "snapshots").rglob("*")]
    assert len(found) == 5
    assert {stat.S_IMODE(each.stat().st_mode) for each in found} == {0o770, 0o660}


# Of a directory alone.


def test_what_a_killed_writer_left_is_removed_when_it_is_old(tmp_path: Path) -> None:
    now_s = time.time()
    files = DirectoryFiles(tmp_path, now_s=lambda: now_s)
    left = tmp_path / "ratings/1-a/0/x.unfinished"
    left.parent.mkdir(parents=True)
    left.write_bytes(CONTENT)
    files.tidy("ratings")
    assert left.exists(), "it may be written still"
    now_s += UNFINISHED_S + 60
    files.tidy("ratings")
    assert not left.exists()


def test_a_place_that_is_no_directory_is_one_sentence(tmp_path: Path) -> None:
    place = tmp_path / "snapshots"
    place.write_text("a file")
    files = DirectoryFiles(place)
    attempts: list[Callable[[], object]] = [
        lambda: files.create("ratings/1-a/0/x"),
        lambda: list(files.read(SnapshotFile("ratings/1-a/0/x", 1))),
        lambda: files.remove("ratings/1-a/0/x"),
    ]
    for attempt in attempts:
        with pytest.raises(FilesUnavailable, match=r'directory ".*snapshots" cannot be used: Not a directory'):
            attempt()
