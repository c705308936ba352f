"""Where snapshots are kept: a directory that gateways share, or an object store.

A file is there whole or not at all. A name is written once; so a reader needs no lock, and two writers are none the
worse for each other.
"""

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple, Protocol

from typing_extensions import override

READ_BYTES = 8 << 20  # at once: a request of an object store costs some 50 ms, however little it is for
UNFINISHED_S = 3_600.0  # without a byte: whoever wrote it is no more

_UNFINISHED = ".unfinished"
# All rows are in them: nobody beside the user and the group of the gateways may read them.
_DIRECTORY_MODE, _FILE_MODE = 0o770, 0o660


class BadSnapshotsUrl(Exception):
    """Snapshots cannot be kept there; the message is a sentence for the one who said where."""


class FilesUnavailable(Exception):
    """Files cannot be read or written now; the message says why."""


class SnapshotFile(NamedTuple):
    """A file that is whole; `name` is a path with slashes."""

    name: str
    size_bytes: int


class NewFile(Protocol):
    """A file that is being written. One thread. All but `discard` raise `FilesUnavailable`."""

    def write(self, data: bytes) -> None:
        """Add bytes at its end."""

    def commit(self) -> None:
        """Let it be there, whole."""

    def discard(self) -> None:
        """Let it not be there. Never fails; after `commit`, and repeated, it does nothing."""


class SnapshotFiles(Protocol):
    """The files of all tables. Any thread. All raise `FilesUnavailable`."""

    def list(self, folder: str) -> Iterator[SnapshotFile]:
        """Yield the files below a folder, in any order; none where it is not there."""

    def create(self, name: str) -> NewFile:
        """Begin to write a file under a name that none has had."""

    def read(self, file: SnapshotFile) -> Iterator[bytes]:
        """Yield what is in a file, some megabytes at once."""

    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is no error."""

    def tidy(self, folder: str) -> None:
        """Remove what is below a folder of writers that have ended before they were done."""


class DirectoryFiles(SnapshotFiles):
    """Files of a directory. `now_s`: the time by which files are old, as the directory has it."""

    def __init__(self, path: Path, *, now_s: Callable[[], float] = time.time, read_bytes: int = READ_BYTES) -> None:
        self._path = path
        self._now_s = now_s
        self._read_bytes = read_bytes

    @override
    def list(self, folder: str) -> Iterator[SnapshotFile]:
        for path, size_bytes, _ in self._found(folder):
            if path.suffix != _UNFINISHED:
                yield SnapshotFile(path.relative_to(self._path).as_posix(), size_bytes)

    def _found(self, folder: str) -> Iterator[tuple[Path, int, float]]:
        """Yield all files below a folder, with their sizes and times."""
        try:
            for directory, _, names in os.walk(self._path / folder, onerror=_fail_unless_missing):
                for name in names:
                    path = Path(directory, name)
                    with suppress(FileNotFoundError):  # another gateway has removed it
                        about = path.stat()
                        yield path, about.st_size, about.st_mtime
        except OSError as error:
            raise self._unavailable(error) from error

    @override
    def create(self, name: str) -> "NewFile":
        path = self._path / name
        try:
            for directory in reversed((path.parent, *path.parent.parents)):
                if directory.is_relative_to(self._path):
                    with suppress(FileExistsError):
                        directory.mkdir(_DIRECTORY_MODE, parents=True)
            return _NewFile(self, path)
        except OSError as error:
            raise self._unavailable(error) from error

    @override
    def read(self, file: SnapshotFile) -> Iterator[bytes]:
        try:
            with open(self._path / file.name, "rb", buffering=0) as source:
                while data := source.read(self._read_bytes):
                    yield data
        except OSError as error:
            raise self._unavailable(error) from error

    @override
    def remove(self, name: str) -> None:
        path = self._path / name
        try:
            path.unlink(missing_ok=True)
            with suppress(OSError):  # others are in it
                path.parent.rmdir()
        except OSError as error:
            raise self._unavailable(error) from error

    @override
    def tidy(self, folder: str) -> None:
        for path, _, written_s in self._found(folder):
            if path.suffix == _UNFINISHED and written_s < self._now_s() - UNFINISHED_S:
                self.remove(path.relative_to(self._path).as_posix())

    def _unavailable(self, error: OSError) -> FilesUnavailable:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return FilesUnavailable(f'there is no room in directory "{self._path}"')
        return FilesUnavailable(f'directory "{self._path}" cannot be used: {error.strerror}')


def _fail_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


class _NewFile(NewFile):
    """A file beside its place, which it is moved to at the end."""

    def __init__(self, files: DirectoryFiles, path: Path) -> None:
        self._files = files
        self._path = path
        self._draft = path.with_name(path.name + _UNFINISHED)
        # It stays open.
        self._file: IO[bytes] | None = open(  # noqa: SIM115
            self._draft, "xb", buffering=0, opener=lambda name, flags: os.open(name, flags, _FILE_MODE)
        )

    @override
    def write(self, data: bytes) -> None:
        assert self._file is not None, "it is not committed"
        left = memoryview(data)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise self._files._unavailable(error) from error

    @override
    def commit(self) -> None:
        assert self._file is not None, "it is not committed"
        try:
            os.fsync(self._file.fileno())
            self._draft.rename(self._path)
            _sync(self._path.parent)
        except OSError as error:
            raise self._files._unavailable(error) from error
        self._file.close()
        self._file = None

    @override
    def discard(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            with suppress(OSError):
                self._draft.unlink(missing_ok=True)
            self._file = None


def _sync(directory: Path) -> None:
    """Let the names in a directory outlive a loss of power."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
