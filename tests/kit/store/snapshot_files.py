"""Snapshot files in memory, of a disk that may be full or away; and a source of them that needs no thread."""

from collections.abc import Iterator, Sequence

from typing_extensions import override

from tablegate.gateway.cluster.assignment import IncomingParts, OriginAway, TransferFailed
from tablegate.gateway.replication.snapshots import SnapshotProblems, SnapshotSource
from tablegate.gateway.stores.snapshots.files import FilesUnavailable, NewFile, SnapshotFile, SnapshotFiles
from tablegate.gateway.stores.snapshots.format import SnapshotDamaged, SnapshotName, folder_of, parts_in, snapshots_of
from tablegate.internal.v1.transfer_pb2 import TransferRequest, TransferResponse


class MemoryFiles(SnapshotFiles):
    """`whole` are those that are there.

    `is_away`: nothing is answered; `is_full`: nothing is written, nor is what has one of `too_long` in its name;
    `keeps_all`: nothing may be removed.
    """

    def __init__(self, read_bytes: int = 50) -> None:
        self.whole: dict[str, bytes] = {}
        self.is_away = self.is_full = self.keeps_all = False
        self.too_long: tuple[str, ...] = ()
        self._read_bytes = read_bytes

    def _check(self) -> None:
        if self.is_away:
            raise FilesUnavailable("it does not answer")

    @override
    def list(self, folder: str) -> Iterator[SnapshotFile]:
        self._check()
        for name, data in sorted(self.whole.items()):
            if name.startswith(f"{folder}/"):
                yield SnapshotFile(name, len(data))

    @override
    def create(self, name: str) -> NewFile:
        self._check()
        return _NewMemoryFile(self, name)

    @override
    def read(self, file: SnapshotFile) -> Iterator[bytes]:
        for start in range(0, file.size_bytes, self._read_bytes):
            self._check()
            if file.name not in self.whole:
                raise FilesUnavailable("it is gone")
            yield self.whole[file.name][start : start + self._read_bytes]

    @override
    def remove(self, name: str) -> None:
        self._check()
        if self.keeps_all:
            raise FilesUnavailable("nothing may be removed")
        self.whole.pop(name, None)

    @override
    def tidy(self, folder: str) -> None:
        self._check()


class _NewMemoryFile(NewFile):
    def __init__(self, files: MemoryFiles, name: str) -> None:
        self._files = files
        self._name = name
        self._data = bytearray()

    @override
    def write(self, data: bytes) -> None:
        self._files._check()
        if self._files.is_full or any(each in self._name for each in self._files.too_long):
            raise FilesUnavailable("there is no room")
        self._data += data

    @override
    def commit(self) -> None:
        self._files._check()
        self._files.whole[self._name] = bytes(self._data)

    @override
    def discard(self) -> None:
        """Nobody sees what was not committed."""


class MemorySnapshots(SnapshotSource):
    """Reads files when it is asked.

    `read_names`: which were begun. `lists_after`: how often they are not known yet.
    `away`: how the reading of each has ended. `is_hanging`: no part comes.
    """

    def __init__(self, files: SnapshotFiles, *, lists_after: int = 2) -> None:
        self.read_names: list[str] = []
        self.away: list[bool] = []
        self.problems = SnapshotProblems()
        self.is_hanging = False
        self._files = files
        self._lists_after = lists_after

    @override
    def found(self, request: TransferRequest) -> Sequence[SnapshotName] | None:
        if self._lists_after:
            self._lists_after -= 1
            return None
        folder = folder_of(request)
        try:
            found = [each for each in snapshots_of(self._files.list(folder)) if each.partition == request.partition]
        except FilesUnavailable:
            return ()
        return sorted(found, key=lambda each: each.time_ms, reverse=True)

    @override
    def read(self, snapshot: SnapshotName, request: TransferRequest) -> IncomingParts:
        self.read_names.append(snapshot.file.name)
        return _Parts(parts_in(self._files.read(snapshot.file), request), is_hanging=self.is_hanging)

    @override
    def note(self, snapshot: SnapshotName, *, problem: str = "", was_away: bool = False) -> None:
        self.away.append(was_away)
        self.problems.note(snapshot, problem)


class _Parts(IncomingParts):
    def __init__(self, parts: Iterator[TransferResponse], *, is_hanging: bool) -> None:
        self._parts = parts
        self._is_hanging = is_hanging

    @override
    def next(self) -> TransferResponse | None:
        try:
            return None if self._is_hanging else next(self._parts)
        except FilesUnavailable as error:
            raise OriginAway(str(error)) from None
        except SnapshotDamaged as error:
            raise TransferFailed(str(error)) from None

    @override
    def close(self) -> None:
        """There is nothing to close."""
