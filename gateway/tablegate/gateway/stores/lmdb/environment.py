"""The LMDB environment of a store: opening and checking it, its databases, its errors, wiping it.

Decision: docs/decisions/0005-lmdb-without-a-writable-map.md
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import lmdb

from tablegate.gateway.stores.base import StoreCorrupt, StoreFull, StoreUnavailable
from tablegate.gateway.stores.lmdb.layout import FORMAT_VERSION

MAP_BYTES = 2**40  # address space, not disk: the file grows as it fills
READERS_MAX = 1024  # snapshots open at once, over all processes
FREE_BYTES_MIN = 256 * 2**20  # what is left for logs, and for the status to say that the disk is full
TAIL_BYTES_MAX = 2**20  # pages at the end of the file that LMDB may have reserved and not yet written

DATA_FILE = "data.mdb"
_DATABASES = ("rows", "history", "tombstones", "repairs", "index", "indexes", "positions", "tables", "meta")
_FORMAT, _RUN, _CLEAN = b"format", b"run", b"clean"

_FULL = (lmdb.MapFullError, lmdb.DiskError)
_CORRUPT = (
    lmdb.CorruptedError,
    lmdb.InvalidError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    lmdb.VersionMismatchError,
    lmdb.IncompatibleError,
    lmdb.NotFoundError,
)


def machine_boot_id() -> str:
    """Return what changes when the machine starts; "" where the system does not know it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def free_disk_bytes(path: Path) -> int:
    """Return the free bytes of the disk that holds `path`."""
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize


def wipe(path: Path) -> None:
    """Remove the store. Processes that have it open keep the old one, and see it by `is_current`."""
    shutil.rmtree(path, ignore_errors=True)


def as_store_error(error: lmdb.Error, path: Path) -> StoreUnavailable:
    """Return our error for one of LMDB's."""
    if isinstance(error, _FULL):
        return StoreFull(f"no room for the store in {path} ({error}): free some disk space")
    if isinstance(error, _CORRUPT):
        return StoreCorrupt(f"the store in {path} is damaged ({error})")
    return StoreUnavailable(f"the store in {path} cannot be used now: {error}")


@dataclass(frozen=True, slots=True)
class Environment:
    """An open environment and its databases."""

    path: Path
    env: lmdb.Environment
    rows: Any
    history: Any
    tombstones: Any
    repairs: Any
    index: Any
    indexes: Any
    positions: Any
    tables: Any
    meta: Any

    def size_bytes(self) -> int:
        """Return how long the file is; 0 where there is none. It has pages that are free, too."""
        try:
            return (self.path / DATA_FILE).stat().st_size
        except OSError:
            return 0

    def inode(self) -> int:
        """Return the number of the file that is at the path now; 0 where there is none."""
        try:
            return (self.path / DATA_FILE).stat().st_ino
        except OSError:
            return 0


class Guarded:
    """Runs a block, LMDB's errors turned into ours. A class, because it costs half of a generator."""

    __slots__ = ("path",)

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        if isinstance(error, lmdb.Error):
            raise as_store_error(error, self.path) from error
        return False


def open_for_reading(path: Path) -> Environment:
    """Open a store that a writer has made; raise `StoreUnavailable` before it has."""
    if not (path / DATA_FILE).exists():
        raise StoreUnavailable(f"there is no store in {path} yet: the replicator makes it")
    environment = _open(path, readonly=True)
    with environment.env.begin(db=environment.meta) as transaction:
        if transaction.get(_FORMAT) != FORMAT_VERSION:
            environment.env.close()
            raise StoreUnavailable(f"the store in {path} is not ready: the replicator makes it")
    return environment


def open_for_writing(path: Path, *, boot_id: str) -> Environment:
    """Open a store, or make one; raise `StoreCorrupt` where what is there cannot be trusted."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnavailable(f"cannot make {path}: {error.strerror}") from None
    environment = _open(path, readonly=False)
    try:
        with Guarded(path):
            _check_size(environment)
            _check_trust(environment, boot_id)
            environment.env.reader_check()
    except BaseException:
        environment.env.close()
        raise
    return environment


def mark_clean(environment: Environment) -> None:
    """Note that everything is on the disk: the store survives a restart of the machine."""
    environment.env.sync(True)
    with environment.env.begin(db=environment.meta, write=True) as transaction:
        transaction.put(_CLEAN, b"1")
    environment.env.sync(True)


def _open(path: Path, *, readonly: bool) -> Environment:
    try:
        env = lmdb.open(
            str(path),
            map_size=MAP_BYTES,
            max_dbs=len(_DATABASES),
            max_readers=READERS_MAX,
            max_spare_txns=8,
            readonly=readonly,
            create=not readonly,
            sync=False,
            metasync=False,
            writemap=False,
            readahead=not readonly,
        )
    except lmdb.Error as error:
        raise as_store_error(error, path) from error
    try:
        databases = {
            name: env.open_db(name.encode(), create=not readonly, dupsort=name == "index") for name in _DATABASES
        }
    except lmdb.Error as error:
        env.close()
        if readonly and isinstance(error, lmdb.NotFoundError):
            raise StoreUnavailable(f"the store in {path} is not ready: the replicator makes it") from None
        raise as_store_error(error, path) from error
    return Environment(path=path, env=env, **databases)


def _check_size(environment: Environment) -> None:
    """Refuse a file that was cut. To touch a page that is not there would end this process with a SIGBUS."""
    pages_bytes = (environment.env.info()["last_pgno"] + 1) * environment.env.stat()["psize"]
    size_bytes = (environment.path / DATA_FILE).stat().st_size
    if size_bytes + TAIL_BYTES_MAX < pages_bytes:
        raise StoreCorrupt(f"the store in {environment.path} is cut: {size_bytes} of {pages_bytes} bytes are there")
    if size_bytes < pages_bytes:
        os.truncate(environment.path / DATA_FILE, pages_bytes)  # where pages are in use, LMDB sees that zeros are none


def _check_trust(environment: Environment, boot_id: str) -> None:
    # A copy of a file that is open has pages of several moments: it is another file, and so of no known run.
    file = (environment.path / DATA_FILE).stat()
    run = f"{boot_id} {file.st_dev}:{file.st_ino}".encode() if boot_id else b""
    with environment.env.begin(db=environment.meta, write=True) as transaction:
        found = transaction.get(_FORMAT)
        if found is None and environment.env.info()["last_txnid"] > 1 and transaction.stat(environment.rows)["entries"]:
            raise StoreCorrupt(f"the store in {environment.path} has rows and no format")
        if found not in (None, FORMAT_VERSION):
            theirs, ours = found.decode(errors="replace"), FORMAT_VERSION.decode()
            raise StoreCorrupt(f"the store in {environment.path} has format {theirs}, this version writes {ours}")
        trusted = transaction.get(_CLEAN) == b"1" or (run and transaction.get(_RUN) == run)
        if found is not None and not trusted:
            raise StoreCorrupt(
                f"the machine stopped while the store in {environment.path} was open, or it is a copy of one that was"
            )
        transaction.put(_FORMAT, FORMAT_VERSION)
        transaction.put(_RUN, run)
        transaction.put(_CLEAN, b"0")
    environment.env.sync(True)  # before any row: a store that is in use must say so, whatever reaches the disk first
