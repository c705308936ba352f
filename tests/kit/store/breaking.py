"""Stores that a test takes away from the process that answers, or that refuse what their writer brings."""

import random
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from typing_extensions import override

from tablegate.gateway.stores.base import Snapshot, StoreFull, StoreReader, StoreUnavailable, StoreWriter

At = Literal["snapshot", "table", "position", "get", "get_many", "get_stored", "range", "history", "status"]
"""Where a read fails: opening a snapshot, or what is asked of one."""

GONE: Collection[At] = ("snapshot",)
UNREADABLE: Collection[At] = ("get", "get_many", "get_stored", "range", "history")
"""Rows cannot be read, though positions can."""


class BreakingStore(StoreReader):
    """Another store, until it breaks, or `is_old`: made anew elsewhere."""

    def __init__(self, store: StoreReader) -> None:
        self.is_old = False
        self._store = store
        self._at: frozenset[str] = frozenset()
        self._error: type[StoreUnavailable] = StoreUnavailable

    def breaks(self, at: Collection[At] = GONE, error: type[StoreUnavailable] = StoreUnavailable) -> None:
        """Fail at these reads from now on."""
        self._at, self._error = frozenset(at), error

    def mends(self) -> None:
        """Be as before."""
        self._at = frozenset()

    @override
    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        self.check("snapshot")
        with self._store.snapshot() as snapshot:
            broken: Any = _BreakingSnapshot(snapshot, self.check)
            yield broken

    def check(self, read: str) -> None:
        """Raise the error where this read fails now."""
        if read in self._at:
            raise self._error("the store is away")

    @override
    def is_current(self) -> bool:
        return not self.is_old and self._store.is_current()

    @override
    def close(self) -> None:
        """Let go of it; whoever writes to what is behind it keeps that."""


class _BreakingSnapshot:
    def __init__(self, snapshot: Snapshot, check: Callable[[str], None]) -> None:
        self._snapshot = snapshot
        self._check = check

    def __getattr__(self, name: str) -> Any:
        self._check(name)
        return getattr(self._snapshot, name)


WRITES = (
    "apply",
    "copy_of",
    "drop",
    "drop_partition",
    "drop_tombstones",
    "expel",
    "expire",
    "join",
    "put_table",
    "set_status",
)


class RefusingStore:
    """Another store, of which any write may be refused for want of room: none of what it brought is stored then.

    `refuses` is the part of the writes; 1: there is no room at all. It stands for a `StoreWriter`, see `refusing`.
    """

    def __init__(self, store: StoreWriter, chance: random.Random) -> None:
        self.refuses = 0.0
        self.refused = 0
        self._store = store
        self._chance = chance

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return self._refusable(found) if name in WRITES else found

    def _refusable(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def try_to_write(*values: Any, **named: Any) -> Any:
            if self._chance.random() < self.refuses:
                self.refused += 1
                raise StoreFull("no room for the write")
            return write(*values, **named)

        return try_to_write
