"""A gateway's disk: a store in memory, LMDB or Redis, each of whose writes may be refused, or be the process's last."""

import copy
import random
import shutil
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

from typing_extensions import override

from tablegate.gateway.contract.indexes import RowIndexes
from tablegate.gateway.contract.types import Partition, StoreId
from tablegate.gateway.stores.base import (
    Applied,
    Change,
    Copy,
    Position,
    Repair,
    Snapshot,
    StoreCorrupt,
    StoredRows,
    StoreFull,
    StoreReader,
    StoreUnavailable,
)
from tablegate.gateway.stores.lmdb.store import LmdbStore
from tablegate.gateway.stores.redis.connection import parse_address
from tablegate.gateway.stores.redis.store import RedisReader, RedisStore
from tablegate.internal.v1.store_pb2 import TableState
from tests.kit.programs.redis import RedisServer
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

    def _open(self) -> MemoryStore | LmdbStore | RedisStore:
        if self._directory is None:
            return MemoryStore(history_changes_max=HISTORY_CHANGES_MAX)
        return LmdbStore(self._directory, history_changes_max=HISTORY_CHANGES_MAX)

    def snapshot(self) -> AbstractContextManager[Snapshot]:
        """Return what a worker reads."""
        return self.store.snapshot()

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


class RedisDisk(Disk):
    """A gateway's part of the store that gateways of one URL share in Redis; its worker has a connection of its own."""

    def __init__(self, server: RedisServer, url: str, gateway: str) -> None:
        self._server = server
        self._url = url
        self._gateway = gateway
        self._chance = random.Random(gateway)
        super().__init__(None)

    @override
    def _open(self) -> RedisStore:
        draw = self._chance.randrange
        store = RedisStore(self._url, self._gateway, history_changes_max=HISTORY_CHANGES_MAX, draw=draw)
        self._reader = RedisReader(self._url, self._gateway)
        return store

    @override
    def snapshot(self) -> AbstractContextManager[Snapshot]:
        return self._reader.snapshot()

    @override
    def reopen(self) -> None:
        """Open the store as a process does that comes after one that was killed."""
        self._disconnect()
        self.store = self._open()

    @override
    def wipe(self) -> None:
        """Lose what is stored, of all gateways: none of the others may run."""
        self.close()
        self.store = self._open()

    @override
    def close(self) -> None:
        """Let go of the store, and of its keys."""
        self._disconnect()
        for key in self._server.run("KEYS", f"{parse_address(self._url).prefix}:*"):
            self._server.run("DEL", key)

    def _disconnect(self) -> None:
        self.store.close()
        self._reader.close()


class DiskReader(StoreReader):
    """What a worker reads: whatever store is on the disk now."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    @override
    def snapshot(self) -> AbstractContextManager[Snapshot]:
        return self._disk.snapshot()

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

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._store = disk.store
        self.is_shared = disk.store.is_shared
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

    def put_transferred(self, store_id: StoreId, partition: Partition, rows: StoredRows, *, time_ms: int) -> None:
        self._write("transfer", lambda: self._store.put_transferred(store_id, partition, rows, time_ms=time_ms))

    def end_transfer(
        self, store_id: StoreId, partition: Partition, repairs: Sequence[Repair], position: Position
    ) -> None:
        self._write("transfer", lambda: self._store.end_transfer(store_id, partition, repairs, position))

    def expire(self, store_id: StoreId, partition: Partition, keys: Sequence[bytes], *, time_ms: int) -> int:
        return int(self._write("expire", lambda: self._store.expire(store_id, partition, keys, time_ms=time_ms)))

    def drop_partition(self, store_id: StoreId, partition: Partition, *, limit: int) -> bool:
        return bool(self._write("drop", lambda: self._store.drop_partition(store_id, partition, limit=limit)))

    def drop(self, store_id: StoreId, *, limit: int) -> bool:
        return bool(self._write("drop", lambda: self._store.drop(store_id, limit=limit)))

    def drop_tombstones(self, store_id: StoreId, partition: Partition, *, before_ms: int, limit: int) -> int:
        drop = self._store.drop_tombstones
        return int(self._write("drop", lambda: drop(store_id, partition, before_ms=before_ms, limit=limit)))

    def keep_indexes(self, store_id: StoreId, indexes: RowIndexes) -> None:
        self._write("keep_indexes", lambda: self._store.keep_indexes(store_id, indexes))

    def build_indexes(self, store_id: StoreId, partition: Partition, *, limit: int) -> bool:
        return bool(self._write("build", lambda: self._store.build_indexes(store_id, partition, limit=limit)))

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


_NEEDS_SPACE = {"apply", "transfer", "put_table", "set_status", "expire", "new_store_id", "keep_indexes", "build"}
