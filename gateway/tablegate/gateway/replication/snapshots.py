"""Snapshot files for restores: which ones there are, and their parts. The replicator waits for neither.

Files are listed, and read, in threads. A store of files that does not answer holds up nothing for long: after a while
none is there, and the changelog is read.

Decision: docs/decisions/0161-snapshots-have-names-and-no-pointer.md
"""

import logging
import math
import threading
from collections.abc import Mapping, Sequence
from typing import Protocol

from typing_extensions import override

from tablegate.gateway.cluster.assignment import IncomingParts, OriginAway, TransferFailed
from tablegate.gateway.cluster.parts import QueuedParts
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.kafka.log import Clock
from tablegate.gateway.stores.snapshots.files import FilesUnavailable, SnapshotFiles
from tablegate.gateway.stores.snapshots.format import SnapshotDamaged, SnapshotName, folder_of, parts_in, snapshots_of
from tablegate.internal.v1.transfer_pb2 import TransferRequest

LISTED_S = 60.0  # a list is good for so long: partitions of a table come one after the other
AWAY_MAX = 3  # files in a row that did not come: with thousands of them, each would be waited for
AWAY_S = 60.0  # then for so long none is used
PROBLEMS_MAX = 100  # that are told
LIST_MAX_S = 10.0  # longest wait for a list; the changelog is there anyway

_logger = logging.getLogger("tablegate.gateway.replication")


class SnapshotSource(Protocol):
    """Finds the snapshot files that rows may come from. One thread; it never waits."""

    def found(self, request: TransferRequest) -> Sequence[SnapshotName] | None:
        """Return those that fit a request by their names, the newest first; None: that is not known yet."""

    def read(self, snapshot: SnapshotName, request: TransferRequest) -> IncomingParts:
        """Begin to read one."""

    def note(self, snapshot: SnapshotName, *, problem: str = "", was_away: bool = False) -> None:
        """Record how the reading of one has ended, and why it was of no use: they may all be away, of each table."""


class SnapshotProblems:
    """Of each partition the snapshot file that was read last and was of no use. The replicator's thread."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, Partition], tuple[SnapshotName, str]] = {}

    def note(self, snapshot: SnapshotName, problem: str) -> None:
        """Record why a file was of no use; "": it was of use, and so one of before counts no more."""
        key = snapshot.folder.partition("/")[0], snapshot.partition
        known = self._of.get(key)
        if problem:
            self._of[key] = snapshot, problem
        elif known is not None and known[0].time_ms <= snapshot.time_ms:
            del self._of[key]

    def numbers(self) -> list[tuple[str, int, int, str, str]]:
        """Return them, the newest first: table, partition, milliseconds since 1970, the file's name, what is wrong."""
        found = sorted(self._of.items(), key=lambda each: each[1][0].time_ms, reverse=True)[:PROBLEMS_MAX]
        return [(table, number, one.time_ms, one.file.name, why) for (table, number), (one, why) in found]


class _List:
    """The snapshot files of a folder by partition, which a thread asks for; `by_partition`: None before it has them."""

    def __init__(self, files: SnapshotFiles, folder: str, now_s: float) -> None:
        self.begun_s = now_s
        self.by_partition: Mapping[Partition, Sequence[SnapshotName]] | None = None
        self.is_given_up = False
        self._files = files
        self._folder = folder
        threading.Thread(target=self._ask, name="snapshots", daemon=True).start()

    def _ask(self) -> None:
        found: dict[Partition, list[SnapshotName]] = {}
        try:
            for snapshot in snapshots_of(self._files.list(self._folder)):
                if snapshot.folder == self._folder:
                    found.setdefault(snapshot.partition, []).append(snapshot)
        except FilesUnavailable as error:
            found.clear()
            _logger.warning("no snapshot file is used: %s; rows come from the changelog", error)
        for snapshots in found.values():
            snapshots.sort(key=lambda each: each.time_ms, reverse=True)
        self.by_partition = found


class FileSnapshots(SnapshotSource):
    """The snapshot files of a directory or an object store."""

    def __init__(
        self,
        files: SnapshotFiles,
        clock: Clock,
        *,
        problems: SnapshotProblems | None = None,
        list_max_s: float = LIST_MAX_S,
    ) -> None:
        self._problems = SnapshotProblems() if problems is None else problems
        self._files = files
        self._clock = clock
        self._list_max_s = list_max_s
        self._lists: dict[str, _List] = {}
        self._away = 0  # files, in a row
        self._away_until_s = -math.inf

    @override
    def found(self, request: TransferRequest) -> Sequence[SnapshotName] | None:
        folder, now_s = folder_of(request), self._clock.monotonic_s()
        if now_s < self._away_until_s:
            return ()
        listed = self._lists.get(folder)
        if listed is None or now_s >= listed.begun_s + LISTED_S:
            listed = self._lists[folder] = _List(self._files, folder, now_s)
        if listed.by_partition is not None:
            return listed.by_partition.get(Partition(request.partition), ())
        if now_s < listed.begun_s + self._list_max_s:
            return None
        if not listed.is_given_up:
            listed.is_given_up = True
            _logger.warning("no snapshot file is used: they are not listed in time; rows come from the changelog")
        return ()

    @override
    def read(self, snapshot: SnapshotName, request: TransferRequest) -> "FileParts":
        return FileParts(self._files, snapshot, request)

    @override
    def note(self, snapshot: SnapshotName, *, problem: str = "", was_away: bool = False) -> None:
        self._problems.note(snapshot, problem)
        self._away = self._away + 1 if was_away else 0
        if self._away >= AWAY_MAX:
            self._away = 0
            self._away_until_s = self._clock.monotonic_s() + AWAY_S
            _logger.warning(
                "no snapshot file is used for a while: %d in a row did not come; rows come from the changelog", AWAY_MAX
            )


class FileParts(QueuedParts):
    """The parts of a snapshot file."""

    def __init__(self, files: SnapshotFiles, snapshot: SnapshotName, request: TransferRequest) -> None:
        super().__init__()
        self._files = files
        self._snapshot = snapshot
        self._request = request
        self._start()

    @override
    def _receive(self) -> None:
        try:
            for part in parts_in(self._files.read(self._snapshot.file), self._request):
                self._put(part)
                if self._is_closed:
                    return
            self._put(TransferFailed("it ended early"))  # nobody reads it behind the last part
        except FilesUnavailable as error:
            self._put(OriginAway(str(error)))
        except SnapshotDamaged as error:
            self._put(TransferFailed(str(error)))
