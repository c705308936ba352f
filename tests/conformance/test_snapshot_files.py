"""One suite for all places that keep snapshot files."""

import os
import random
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tablegate.gateway.stores.snapshots.files import (
    UNFINISHED_S,
    DirectoryFiles,
    FilesUnavailable,
    SnapshotFile,
    SnapshotFiles,
)
from tests.kit.store.snapshot_files import MemoryFiles

if TYPE_CHECKING:
    from tests.kit.programs.object_store import ObjectStore

CONTENT = bytes(range(256)) * 5


@pytest.fixture(scope="module")
def store() -> Iterator["ObjectStore"]:
    """Run an object store; it takes seconds to import."""
    from tests.kit.programs.object_store import object_store

    with object_store() as store:
        yield store


@pytest.fixture
def objects(store: "ObjectStore", monkeypatch: pytest.MonkeyPatch) -> SnapshotFiles:
    """Return the objects of a folder of its own."""
    from tablegate.gateway.stores.snapshots.objects import ObjectFiles

    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    return ObjectFiles(f"{store.url}/{secrets.token_hex(4)}", read_bytes=100)


@pytest.fixture(params=["memory", "directory", pytest.param("objects", marks=pytest.mark.tools)])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> SnapshotFiles:
    """Return files that are read 100 bytes at once."""
    if request.param == "objects":
        found: SnapshotFiles = request.getfixturevalue("objects")
        return found
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


@pytest.mark.tools
def test_a_long_object_is_there_when_its_upload_is_complete(objects: SnapshotFiles) -> None:
    data = random.Random(1).randbytes(5_000_000)
    for is_whole in (False, True):
        new = objects.create("ratings/1-a/0/x")
        for _ in range(10):
            new.write(data)
        assert list(objects.list("ratings")) == []
        if is_whole:
            new.commit()
        new.discard()
    [found] = objects.list("ratings")
    assert found.size_bytes == 50_000_000


@pytest.mark.tools
def test_a_store_that_is_away_or_has_no_such_bucket_is_a_line(store: "ObjectStore", objects: SnapshotFiles) -> None:
    from tablegate.gateway.stores.snapshots.objects import ObjectFiles

    for url in ("s3://no-such-bucket/tablegate", store.url.replace("s3://", "s3://no-")):
        files = ObjectFiles(url)
        with pytest.raises(FilesUnavailable, match=f'^"{url}" cannot be used: .*404 Not Found$'):
            list(files.list("ratings"))
        new = files.create("ratings/1-a/0/x")
        new.write(b"some")
        with pytest.raises(FilesUnavailable, match="cannot be used"):
            new.commit()
        new.discard()


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
