"""A gateway's disk: a store in memory or in LMDB, each of whose writes may be refused, or be the process's last."""

import copy
import shutil
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

from typing_extensions import override

from tablegate.gateway.contract.types import Partition, StoreId
from tablegate.gateway.stores.base import (
    Applied,
    Change,
    Copy,
    Position,
    Snapshot,
    StoreCorrupt,
    StoreFull,
    StoreReader,
    StoreUnavailable,
)
from tablegate.gateway.stores.lmdb.store import LmdbStore
from tablegate.internal.v1.store_pb2 import TableState
from tests.kit.store.memory import MemoryStore

Outcome = Literal["done", "refused", "corrupt", "last, undone", "last, done"]
"""What becomes of a write."""
HISTORY_CHANGES_MAX = 40


class Killed(BaseException):
    """The process ended at this write. Not an `Exception`: nothing in the process may see it."""


class Disk:
    """Where a gateway keeps its store; `directory` None: in memory. `outcome` says what becomes of each write."""

    def __init__(self, directory: Path | None) -> None:
        self.outcome: Callable[[str], Outcome] = lambda _: "done"
        self.is_full = False
        self._directory = directory
        self._earlier: Any = None
        self.store = self._open()

    def _open(self) -> MemoryStore | LmdbStore:
        if self._directory is None:
            return MemoryStore(history_changes_max=HISTORY_CHANGES_MAX)
        return LmdbStore(self._directory, history_changes_max=HISTORY_CHANGES_MAX)

    def reopen(self) -> None:
        """Open the store as a process does that comes after one that was killed."""
        if isinstance(self.store, LmdbStore):
            self.store.abandon()
            self.store = self._open()

    def wipe(self) -> None:
        """Lose what is stored."""
        self.close()
        self._earlier = None
        self.store = self._open()

    def remember(self) -> None:
        """Keep a copy of what is stored; memory alone."""
        if isinstance(self.store, MemoryStore):
            content = self.store._content.copy()
            content.parts = {name: part.copy() for name, part in content.parts.items()}
            self._earlier = content, self.store._next_store_id

    def go_back(self) -> bool:
        """Be as when it was remembered last; return whether it is."""
        if self._earlier is None or not isinstance(self.store, MemoryStore):
            return False
        content, next_store_id = self._earlier
        self.store._content, self.store._next_store_id = copy.copy(content), next_store_id
        self.store._content.own = set()
        self._earlier = None
        return True

    def close(self) -> None:
        """Let go of the store, and of its directory."""
        if isinstance(self.store, LmdbStore):
            self.store.abandon()
            assert self._directory is not None
            shutil.rmtree(self._directory, ignore_errors=True)


class DiskReader(StoreReader):
    """What a worker reads: whatever store is on the disk now."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    @override
    def snapshot(self) -> AbstractContextManager[Snapshot]:
        return self._disk.store.snapshot()

    @override
    def is_current(self) -> bool:
        return True

    @override
    def close(self) -> None:
        """The disk stays."""


class DiskWriter:
    """What a replicator writes: each write asks the disk what becomes of it.

    It is no subclass of the protocol, so that whatever that gains is passed on, and not inherited as an empty method.
    """

    is_shared = False

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._store = disk.store
        self.changes_max = disk.store.changes_max

    def _write(self, name: str, write: Callable[[], Any]) -> Any:
        outcome = "refused" if self._disk.is_full and name in _NEEDS_SPACE else self._disk.outcome(name)
        match outcome:
            case "refused":
                raise StoreFull("no room for the batch")
            case "corrupt":
                raise StoreCorrupt("the store's file is damaged")
            case "last, undone":
                raise Killed
            case "last, done":
                write()
                raise Killed
        return write()

    def apply(self, store_id: StoreId, partition: Partition, changes: Sequence[Change], position: Position) -> Applied:
        applied: Applied = self._write("apply", lambda: self._store.apply(store_id, partition, changes, position))
        return applied

    def expire(self, store_id: StoreId, partition: Partition, keys: Sequence[bytes], *, time_ms: int) -> int:
        return int(self._write("expire", lambda: self._store.expire(store_id, partition, keys, time_ms=time_ms)))

    def drop_partition(self, store_id: StoreId, partition: Partition, *, limit: int) -> bool:
        return bool(self._write("drop", lambda: self._store.drop_partition(store_id, partition, limit=limit)))

    def drop(self, store_id: StoreId, *, limit: int) -> bool:
        return bool(self._write("drop", lambda: self._store.drop(store_id, limit=limit)))

    def drop_tombstones(self, store_id: StoreId, partition: Partition, *, before_ms: int, limit: int) -> int:
        drop = self._store.drop_tombstones
        return int(self._write("drop", lambda: drop(store_id, partition, before_ms=before_ms, limit=limit)))

    def put_table(self, name: str, state: TableState) -> None:
        self._write("put_table", lambda: self._store.put_table(name, state))

    def set_status(self, status: bytes) -> None:
        self._write("set_status", lambda: self._store.set_status(status))

    def new_store_id(self) -> StoreId:
        return StoreId(self._write("new_store_id", self._store.new_store_id))

    def copy_of(self, changelog: str, *, unwanted: Collection[StoreId]) -> Copy:
        copied: Copy = self._write("new_store_id", lambda: self._store.copy_of(changelog, unwanted=unwanted))
        return copied

    def snapshot(self) -> AbstractContextManager[Snapshot]:
        if self._store is not self._disk.store:
            raise StoreUnavailable("the store was made anew")
        return self._store.snapshot()

    def close(self) -> None:
        """The disk stays."""

    def __getattr__(self, name: str) -> Any:
        """Pass on what the protocol has beside these."""
        return getattr(self._store, name)


_NEEDS_SPACE = {"apply", "put_table", "set_status", "expire", "new_store_id"}
