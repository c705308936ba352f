"""A copy of a table, made of a subscription's events. No I/O."""

from collections.abc import ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from datetime import datetime
from typing import Any

from tablegate.client.events import CatchingUp, Current, Delete, Disconnected, Event, Key, Reset, Upsert

Change = tuple[Key, Any]
"""A key, and its row now; None where it has none any more."""


class Rows(Mapping[Key, Any]):
    """Key → row (the contract's message; not to be altered). One thread applies events; any may read meanwhile.

    Nobody sees half of a snapshot: the first is shown when it is complete, and a later one replaces the rows at once.
    Views (`items()` and the like) are of one moment, too.
    """

    def __init__(self) -> None:
        self._rows: dict[Key, Any] = {}
        self._snapshot: dict[Key, Any] | None = None
        self._is_current = False
        self._as_of: datetime | None = None

    @property
    def is_current(self) -> bool:
        """Whether the stream is up, and the copy was complete as of `as_of`."""
        return self._is_current

    @property
    def as_of(self) -> datetime | None:
        """Nothing is missing that was in the changelog before this (UTC); None before the first complete snapshot."""
        return self._as_of

    def apply(self, event: Event) -> Sequence[Change]:
        """Apply an event; return the changes that readers see by it."""
        match event:
            case Reset():
                self._snapshot, self._is_current = {}, False
            case Upsert(key, row):
                return self._set(key, row)
            case Delete(key):
                return self._set(key, None)
            case CatchingUp() | Disconnected():
                self._is_current = False
            case Current(as_of):
                changes = self._publish_snapshot() if self._snapshot is not None else ()
                self._as_of, self._is_current = as_of, True
                return changes
        return ()

    def _set(self, key: Key, row: Any) -> Sequence[Change]:
        rows = self._rows if self._snapshot is None else self._snapshot
        if row is not None:
            rows[key] = row
        else:
            rows.pop(key, None)
        return [(key, row)] if self._snapshot is None else ()

    def _publish_snapshot(self) -> Sequence[Change]:
        assert self._snapshot is not None
        before, self._rows, self._snapshot = self._rows, self._snapshot, None
        gone: list[Change] = [(key, None) for key in before if key not in self._rows]
        return gone + [(key, row) for key, row in self._rows.items() if before.get(key) != row]

    def __getitem__(self, key: Key) -> Any:
        return self._rows[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._rows.copy())

    def __len__(self) -> int:
        return len(self._rows)

    def keys(self) -> KeysView[Key]:
        """Return the keys of one moment."""
        return self._rows.copy().keys()

    def values(self) -> ValuesView[Any]:
        """Return the rows of one moment."""
        return self._rows.copy().values()

    def items(self) -> ItemsView[Key, Any]:
        """Return the keys and rows of one moment."""
        return self._rows.copy().items()
