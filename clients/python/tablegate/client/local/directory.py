"""The directory of a local table: rows in LMDB, and in the same transactions how far they go. No network.

How it works:

1. Two databases have rows. One is read; the other is empty, or is being filled by a snapshot that will take its place.
   Readers see the new rows all at once, when the transaction that says so is written.
2. `CopyState` is written with the rows that it speaks of. So whatever kills the process, the directory has some state
   with exactly its rows, and the subscription goes on from there.
3. Nothing is forced to the disk while the table is open: the file outlives its process, and not a machine that stops.
   So the directory says whether it was closed, and else of which run of the machine it is (as a gateway's store does),
   and of which file: a copy of a file that was written meanwhile has pages of several moments.
   What is of another run or file, another format or another contract is removed, and made anew.
4. One process has a directory, by a lock on a file, which also tells it from those of other programs. Any of its
   threads may read, one writes. To what it forks, the table is closed.

Decision: docs/decisions/0152-a-local-table-is-a-subscription-on-disk.md
"""

import fcntl
import json
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import lmdb

READERS_MAX = 1024  # threads that read at once
SPARE_TRANSACTIONS = 16  # kept for reads to come: to begin another one costs more than a read
TAIL_BYTES_MAX = 2**20  # pages at the end of the file that LMDB may have reserved and not yet written
FREE_BYTES_MIN = 2**20  # with less than that, what a disk refuses is refused because it is full
FORMAT = b"1"

DATA_FILE, LOCK_FILE, OWNER_FILE = "data.mdb", "lock.mdb", "owner"
_FORMAT, _FINGERPRINT, _RUN, _CLEAN, _STATE = b"format", b"fingerprint", b"run", b"clean", b"state"

_FULL = (lmdb.MapFullError, lmdb.DiskError)
_DAMAGED = (
    lmdb.CorruptedError,
    lmdb.InvalidError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    lmdb.VersionMismatchError,
    lmdb.IncompatibleError,
    lmdb.NotFoundError,
)

Answer = TypeVar("Answer")


class LocalTableError(Exception):
    """A local table cannot use its directory; the text says why, and what to do."""


class DirectoryFull(LocalTableError):
    """There is no room for the rows. What was there stays."""


class DirectoryDamaged(LocalTableError):
    """What is in the directory is not what was written. It is made anew when it is opened next."""


@dataclass(frozen=True, slots=True)
class CopyState:
    """How far the rows go.

    `copy` is the number of the copy that is read, 0 before the first is whole; `is_filling`: the next one is filled
    beside it. `token` is the resume token of what was written last. The copy that is read misses nothing of before
    `as_of_us` (microseconds since 1970), and has what `consistency_token` says. `refusal` is why the gateway lets
    nobody read these rows, as code, reason and text; empty where it does.
    """

    copy: int = 0
    is_filling: bool = True
    token: str = ""
    as_of_us: int = 0
    consistency_token: str = ""
    refusal: Sequence[str] = ()


class _View(NamedTuple):
    """What readers see: the newest state that was written, and the databases of its copy."""

    state: CopyState
    rows: Any
    entries: Any  # None where the table has no index


IsGone = Callable[[bytes], bool]
"""Whether the row of a key is over, although it is there."""


class Moment:
    """A copy as it is at one moment, for as long as `CopyDirectory.read` calls its function."""

    __slots__ = ("_is_gone", "_transaction", "_view", "state")

    def __init__(self, transaction: Any, view: _View, is_gone: IsGone | None) -> None:
        self._transaction = transaction
        self._view = view
        self._is_gone = is_gone
        self.state = view.state

    def get(self, key: bytes) -> bytes | None:
        """Return the row of a key; None where there is none."""
        row: bytes | None = self._transaction.get(key, None, self._view.rows)
        return None if row is None or (self._is_gone is not None and self._is_gone(key)) else row

    def count(self) -> int:
        """Return how many rows there are."""
        if self._is_gone is None:
            return int(self._transaction.stat(self._view.rows)["entries"])
        with self._transaction.cursor(self._view.rows) as cursor:
            return sum(not self._is_gone(key) for key in cursor.iternext(values=False))

    def rows(
        self, start: bytes, end: bytes | None, *, limit: int, is_descending: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Return at most `limit` keys and rows with start <= key < end (None: to the last), in order."""
        is_gone = self._is_gone
        with self._transaction.cursor(self._view.rows) as cursor:
            found: list[tuple[bytes, bytes]] = []
            for key, row in _descending(cursor, end) if is_descending else _ascending(cursor, start):
                is_past = key < start if is_descending else end is not None and key >= end
                if is_past or len(found) >= limit:
                    break
                if is_gone is None or not is_gone(key):
                    found.append((key, row))
            return found

    def entries(
        self, low: bytes, high: bytes | None, after: tuple[bytes, bytes] | None, *, is_descending: bool
    ) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Yield index key, key and row of the entries with low <= index key < high, in order, behind one of them."""
        with self._transaction.cursor(self._view.entries) as cursor:
            if after is None:
                found = _descending(cursor, high) if is_descending else _ascending(cursor, low)
            else:
                found = _entries_behind(cursor, *after, is_descending=is_descending)
            for index_key, key in found:
                if index_key < low if is_descending else high is not None and index_key >= high:
                    return
                row = self._transaction.get(key, None, self._view.rows)
                assert row is not None, "an entry is written and deleted with its row"
                if self._is_gone is None or not self._is_gone(key):
                    yield index_key, key, row


class _Reader:
    """A thread that reads: `is_busy` while it does."""

    __slots__ = ("__weakref__", "is_busy")

    def __init__(self) -> None:
        self.is_busy = False


def machine_boot_id() -> str:
    """Return what changes when the machine starts; "" where the system does not know it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


class CopyDirectory:
    """Rows of a table by key bytes, on disk. Any thread reads; the caller sees to it that one alone writes.

    `fingerprint` says what the rows are of: rows of another one are removed. `index_keys` gives the index keys of a
    row, of at most 504 bytes each; None where the table has no index. `gone_now` gives what says of keys whether their
    rows are over now; None where no row is, ever. Raise `LocalTableError` where another process has the directory, or
    where it cannot be used.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        fingerprint: str,
        *,
        map_bytes: int,
        boot_id: str,
        index_keys: Callable[[bytes], list[bytes]] | None = None,
        gone_now: Callable[[], IsGone] | None = None,
    ) -> None:
        self.path = Path(path)
        self._index_keys = index_keys
        self._gone_now = gone_now
        self._map_bytes = map_bytes
        self._write: Any = None  # the transaction of what is not committed yet
        self._local = threading.local()
        self._readers: weakref.WeakSet[_Reader] = weakref.WeakSet()
        self._registering = threading.Lock()
        self._is_closed = False
        self.is_forked = False  # whether this process was forked from the one that has it
        self._owner = _own(self.path)
        try:
            try:
                self._open(fingerprint, boot_id)
            except DirectoryDamaged:
                self._remove()
                self._open(fingerprint, boot_id)
        except BaseException:
            os.close(self._owner)
            raise
        _OPEN.add(self)

    # Opening and closing.

    def _open(self, fingerprint: str, boot_id: str) -> None:
        """Open what is there, or make it; raise `DirectoryDamaged` where it is not to be used."""
        with self._errors():
            self._env = lmdb.open(
                str(self.path),
                map_size=self._map_bytes,
                max_dbs=5,
                max_readers=READERS_MAX,
                max_spare_txns=SPARE_TRANSACTIONS,
                mode=0o600,
                sync=False,
                metasync=False,
            )
        try:
            with self._errors():
                self._check_size()
                self._meta, *self._rows = (self._env.open_db(name) for name in (b"meta", b"rows0", b"rows1"))
                self._entries: list[Any] = []
                if self._index_keys is not None:
                    self._entries = [self._env.open_db(name, dupsort=True) for name in (b"entries0", b"entries1")]
                state = self._check_trust(fingerprint, boot_id)
                self._env.reader_check()
        except BaseException:
            self._env.close()
            raise
        self._view = self._view_of(state)

    def _check_size(self) -> None:
        """Refuse a file that was cut. To touch a page that is not there would end this process with a SIGBUS."""
        pages_bytes = (self._env.info()["last_pgno"] + 1) * self._env.stat()["psize"]
        missing_bytes = pages_bytes - (self.path / DATA_FILE).stat().st_size
        if missing_bytes > TAIL_BYTES_MAX:
            raise DirectoryDamaged(f'"{self.path}" is cut')
        if missing_bytes > 0:
            # Of pages that are in use LMDB sees that these zeros are none.
            os.truncate(self.path / DATA_FILE, pages_bytes)

    def _check_trust(self, fingerprint: str, boot_id: str) -> CopyState:
        """Return the state of what is there, and note that it is in use; raise `DirectoryDamaged`."""
        file = (self.path / DATA_FILE).stat()
        run = f"{boot_id} {file.st_dev}:{file.st_ino}".encode() if boot_id else b""
        with self._env.begin(db=self._meta, write=True) as transaction:
            expected = {_FORMAT: FORMAT, _FINGERPRINT: fingerprint.encode()}
            found = {name: transaction.get(name) for name in expected}
            if found == dict.fromkeys(expected):
                state = CopyState()
                if any(transaction.stat(rows)["entries"] for rows in self._rows):
                    raise DirectoryDamaged(f'"{self.path}" has rows of nothing')
            else:
                is_trusted = transaction.get(_CLEAN) == b"1" or (run and transaction.get(_RUN) == run)
                if found != expected or not is_trusted:
                    raise DirectoryDamaged(f'"{self.path}" has rows of something else')
                try:
                    state = CopyState(**json.loads(transaction.get(_STATE) or b"{}"))
                except (ValueError, TypeError):
                    raise DirectoryDamaged(f'"{self.path}" does not say how far its rows go') from None
            if not state.is_filling:
                # Then these are of the copy before, and the process ended before they were removed.
                self._drop(transaction, state.copy + 1)
            for name, value in {**expected, _RUN: run, _CLEAN: b"0"}.items():
                transaction.put(name, value)
        self._env.sync(True)  # before any row: whatever reaches the disk first, it says that it is in use
        return state

    def _remove(self) -> None:
        for name in (DATA_FILE, LOCK_FILE):
            try:
                (self.path / name).unlink(missing_ok=True)
            except OSError as error:
                text = f'cannot remove "{self.path / name}" ({error.strerror}): remove it, or give another directory'
                raise LocalTableError(text) from None

    def close(self) -> None:
        """Let another process have it; reads fail from now on."""
        if self._is_closed:
            return
        assert self._write is None, "whoever writes has to end first, with a commit or without"
        self._is_closed = True
        # A read that has begun ends in microseconds; the file must not go from under it.
        while self._is_read():
            threading.Event().wait(0.001)
        with suppress(lmdb.Error):  # then it does not say that it was closed, which is right
            self._env.sync(True)
            with self._env.begin(db=self._meta, write=True) as transaction:
                transaction.put(_CLEAN, b"1")
            self._env.sync(True)
        self._env.close()
        _OPEN.discard(self)
        # Not by closing the file alone: what was forked just now may still have it open.
        fcntl.flock(self._owner, fcntl.LOCK_UN)
        os.close(self._owner)

    def after_fork(self) -> None:
        """Leave it to the process that forked this one: LMDB's readers and the lock are that one's."""
        self._is_closed = self.is_forked = True
        os.close(self._owner)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn LMDB's errors into ours."""
        try:
            yield
        except lmdb.Error as error:
            raise self._error(error) from error

    def _error(self, error: lmdb.Error) -> LocalTableError:
        if isinstance(error, lmdb.MapFullError):
            limit = f"{self._map_bytes} bytes of map_bytes"
            return DirectoryFull(f'the rows in "{self.path}" need more than the {limit}: give it more')
        if isinstance(error, _DAMAGED):
            # Whoever opens it next finds nothing, and begins anew.
            with suppress(OSError):
                (self.path / DATA_FILE).unlink(missing_ok=True)
            return DirectoryDamaged(f'the rows in "{self.path}" are damaged ({error}): open the table again')
        # Where the disk takes a part of what is written, LMDB says EIO.
        if isinstance(error, _FULL) or self._free_bytes() < FREE_BYTES_MIN:
            return DirectoryFull(f'the disk of "{self.path}" is full: free some space')
        if self._is_closed:
            return self._closed_error()
        return LocalTableError(f'cannot use "{self.path}" ({error}): give a directory of your own on a local disk')

    def _closed_error(self) -> LocalTableError:
        why = " to a process that was forked: open tables afterwards" if self.is_forked else ""
        return LocalTableError(f'the local table in "{self.path}" is closed{why}')

    def _free_bytes(self) -> int:
        try:
            disk = os.statvfs(self.path)
        except OSError:
            return FREE_BYTES_MIN
        return disk.f_bavail * disk.f_frsize

    # Reading.

    @property
    def state(self) -> CopyState:
        """The newest state that was committed."""
        return self._view.state

    def get(self, key: bytes) -> bytes | None:
        """Return the row of a key; None where there is none."""
        reader = self._reader()
        while True:
            view = self._view
            reader.is_busy = True
            try:
                if self._is_closed:
                    raise self._closed_error()
                # Not by `_read`, as a function and a `with` would be a third of what this costs.
                transaction = self._env.begin(view.rows)
                row: bytes | None = transaction.get(key)
                transaction.abort()
            except lmdb.Error as error:
                raise self._error(error) from error
            finally:
                reader.is_busy = False
            # The view was read before the rows. Rows of a copy that is read no more may be going away.
            if view.state.copy == self._view.state.copy:
                return None if row is None or (self._gone_now is not None and self._gone_now()(key)) else row

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the rows of keys, in their order, all of one moment."""
        return self.read(lambda moment: [moment.get(key) for key in keys])

    def range(self, start: bytes, end: bytes | None, *, limit: int, is_descending: bool = False) -> list[bytes]:
        """Return at most `limit` rows with start <= key < end (None: to the last), in order, all of one moment."""
        found = self.read(lambda moment: moment.rows(start, end, limit=limit, is_descending=is_descending))
        return [row for _, row in found]

    def count(self) -> int:
        """Return how many rows there are."""
        return self.read(Moment.count)

    def read(self, read: Callable[[Moment], Answer]) -> Answer:
        """Return what `read` makes of one moment. It may be called again, where the copy was replaced meanwhile."""
        reader = self._reader()
        is_gone = None if self._gone_now is None else self._gone_now()
        while True:
            view = self._view
            reader.is_busy = True
            try:
                if self._is_closed:
                    raise self._closed_error()
                with self._env.begin() as transaction:
                    answer = read(Moment(transaction, view, is_gone))
            except lmdb.Error as error:
                raise self._error(error) from error
            finally:
                reader.is_busy = False
            if view.state.copy == self._view.state.copy:
                return answer

    def _reader(self) -> _Reader:
        try:
            reader: _Reader = self._local.reader
        except AttributeError:
            reader = self._local.reader = _Reader()
            with self._registering:
                self._readers.add(reader)
        return reader

    def _is_read(self) -> bool:
        with self._registering:  # a thread may read for the first time, to be told that it is closed
            return any(reader.is_busy for reader in self._readers)

    # Writing.

    def begin_copy(self, state: CopyState) -> CopyState:
        """Drop what was filled of the next copy, and begin it; return the state with that."""
        with self._errors():
            self._drop(self._transaction(), state.copy + 1)
        return replace(state, is_filling=True)

    def put(self, state: CopyState, key: bytes, row: bytes) -> None:
        """Write a row into the copy that `state` fills, or into the one that is read; and its index entries."""
        at = (state.copy + state.is_filling) % 2
        try:
            transaction, rows = self._transaction(), self._rows[at]
            if self._index_keys is not None:
                self._move_entries(transaction, at, key, row)
            transaction.put(key, row, db=rows)
        except lmdb.Error as error:
            raise self._error(error) from error

    def delete(self, state: CopyState, key: bytes) -> None:
        """Delete a row, if it is there, and its index entries."""
        at = (state.copy + state.is_filling) % 2
        try:
            transaction = self._transaction()
            if self._index_keys is not None:
                self._move_entries(transaction, at, key, None)
            transaction.delete(key, db=self._rows[at])
        except lmdb.Error as error:
            raise self._error(error) from error

    def _move_entries(self, transaction: Any, at: int, key: bytes, row: bytes | None) -> None:
        """Let the index entries of a key be those of a row, and not those of the row that is there."""
        assert self._index_keys is not None
        before = transaction.get(key, None, self._rows[at])
        old = set() if before is None else set(self._index_keys(before))
        new = set() if row is None else set(self._index_keys(row))
        entries = self._entries[at]
        for index_key in old - new:
            transaction.delete(index_key, key, db=entries)
        for index_key in new - old:
            transaction.put(index_key, key, db=entries)

    def publish_copy(self, state: CopyState) -> CopyState:
        """Return the state with which the next copy is the one that is read."""
        return replace(state, copy=state.copy + 1, is_filling=False)

    def commit(self, state: CopyState) -> None:
        """Write all since the last commit, and how far that is."""
        before = self.state.copy
        with self._errors():
            self._transaction().put(_STATE, json.dumps(asdict(state)).encode(), db=self._meta)
            transaction, self._write = self._write, None
            transaction.commit()
        self._view = self._view_of(state)
        if state.copy != before:
            # From here no read begins in the old copy, and one that has begun notices.
            with self._errors():
                self._drop(self._transaction(), before)

    def refuse(self, refusal: Sequence[str]) -> None:
        """Note that these rows are not to be read, until a state without that is committed."""
        self.roll_back()
        state = replace(self.state, refusal=refusal)
        self._view = self._view_of(state)
        with suppress(LocalTableError):  # then the next process is told so by the gateway alone
            self.commit(state)

    def roll_back(self) -> None:
        """Drop all since the last commit. Like all that writes, it is for the one thread that does."""
        transaction, self._write = self._write, None
        if transaction is not None:
            transaction.abort()

    def _transaction(self) -> Any:
        if self._write is None:
            self._write = self._env.begin(write=True)
        return self._write

    def _drop(self, transaction: Any, copy: int) -> None:
        for databases in (self._rows, self._entries):
            if databases:
                transaction.drop(databases[copy % 2], delete=False)

    def _view_of(self, state: CopyState) -> _View:
        at = state.copy % 2
        return _View(state, self._rows[at], self._entries[at] if self._entries else None)


_OPEN: weakref.WeakSet[CopyDirectory] = weakref.WeakSet()


def _after_fork() -> None:
    for directory in [*_OPEN]:
        directory.after_fork()
    _OPEN.clear()


os.register_at_fork(after_in_child=_after_fork)


def _ascending(cursor: Any, start: bytes) -> Iterable[tuple[bytes, bytes]]:
    return cursor if cursor.set_range(start) else ()


def _descending(cursor: Any, end: bytes | None) -> Iterable[tuple[bytes, bytes]]:
    """Return the rows below `end`, the last one first."""
    if end is None or not cursor.set_range(end):
        return cursor.iterprev() if cursor.last() else ()
    return cursor.iterprev() if cursor.prev() else ()


def _entries_behind(cursor: Any, index_key: bytes, key: bytes, *, is_descending: bool) -> Iterable[tuple[bytes, bytes]]:
    """Return the entries behind one, which may be gone: beyond it, or below it where they descend."""
    if is_descending:
        if not (cursor.set_range_dup(index_key, key) or cursor.set_range(index_key + b"\x00")):
            return cursor.iterprev() if cursor.last() else ()
        return cursor.iterprev() if cursor.prev() else ()
    if cursor.set_range_dup(index_key, key + b"\x00") or cursor.set_range(index_key + b"\x00"):
        found: Iterable[tuple[bytes, bytes]] = cursor
        return found
    return ()


def _own(path: Path) -> int:
    """Return the open file whose lock says that this process has the directory; raise `LocalTableError`."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (path / DATA_FILE).exists() and not (path / OWNER_FILE).exists():
            # What is damaged is removed. This would be the data of whoever else uses LMDB, under its usual name.
            raise LocalTableError(f'"{path}" has a {DATA_FILE} of another program: give a directory of your own')
        owner = os.open(path / OWNER_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LocalTableError(f'cannot use "{path}" ({error.strerror}): give a directory of your own') from None
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(owner, 0)
        os.pwrite(owner, str(os.getpid()).encode(), 0)
    except OSError as error:
        process = os.pread(owner, 20, 0).decode(errors="replace")
        os.close(owner)
        if isinstance(error, BlockingIOError):
            user = f"process {process}" if process else "another process"  # which has not said yet who it is
            text = f'"{path}" is in use by {user}: give each local table a directory of its own'
        else:
            text = f'cannot use "{path}" ({error.strerror}): give a directory on a local disk'
        raise LocalTableError(text) from None
    return owner
