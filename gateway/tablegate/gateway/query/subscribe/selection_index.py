"""Which selections a change may be in, without asking each of them.

A selection is for certain keys, or for a run of keys; and all of its rows may have one value in some columns (`Fixed`),
by a filter or by what its subscriber may see. So there are two ways to it:

- by each of its keys;
- by what its keys begin with, and its fixed values. Selections that fix the same columns lie in one dictionary for each
  length of what their keys begin with. A change is looked up once in each of these: with the values of its row, and
  with those of the row before, as whoever had that row is to be told that it goes.

So a change costs what it is for, and a look-up for each kind of selection; not how many selections there are. What is
found this way may still be wrong: the run of keys may end earlier, and other filters may not pass.

Decision: docs/decisions/0106-selections-are-found-by-values.md
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from tablegate.gateway.contract.keys import after_prefix
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.requests import Fixed
from tablegate.gateway.query.subscribe.cursor import Selection
from tablegate.gateway.stores.base import PastChange

Owner = TypeVar("Owner", bound=Hashable)
_Values = tuple[Hashable, ...]
_Place = tuple[bytes, _Values]  # what keys begin with, and the values of fixed columns
_Owners = dict[Owner, Selection]


@dataclass(slots=True)
class _Kind(Generic[Owner]):
    """Selections that fix the same columns, by length of what their keys begin with."""

    fixed: Sequence[Fixed]
    of_length: defaultdict[int, dict[_Place, _Owners[Owner]]] = field(default_factory=lambda: defaultdict(dict))

    def values(self, row: Any) -> _Values:
        """Return what a row has in the columns."""
        return tuple([each.read(row) for each in self.fixed])


class SelectionIndex(Generic[Owner]):
    """Owners of selections, one selection each. `parse` is from row bytes to what fixed columns are read of."""

    def __init__(self, parse: Callable[[bytes], Any]) -> None:
        self._parse = parse
        self._by_key: dict[bytes, _Owners[Owner]] = {}
        self._kinds: dict[tuple[str, ...], _Kind[Owner]] = {}

    def add(self, owner: Owner, selection: Selection) -> None:
        """Add an owner."""
        if selection.keys is not None:
            for key in _keys(selection):
                self._by_key.setdefault(key, {})[owner] = selection
            return
        names, length, place = _address(selection)
        kind = self._kinds.get(names)
        if kind is None:
            kind = self._kinds[names] = _Kind(_in_order(selection))
        kind.of_length[length].setdefault(place, {})[owner] = selection

    def remove(self, owner: Owner, selection: Selection) -> None:
        """Remove an owner with the selection that it was added with, and what is empty then."""
        if selection.keys is not None:
            for key in _keys(selection):
                _discard(self._by_key, key, owner)
            return
        names, length, place = _address(selection)
        kind = self._kinds[names]
        _discard(kind.of_length[length], place, owner)
        if not kind.of_length[length]:
            del kind.of_length[length]
            if not kind.of_length:
                del self._kinds[names]

    def owners(self, partition: Partition, change: PastChange) -> list[Owner]:
        """Return whose selections have the key of a change. Filters are not asked; raise what `parse` does."""
        key = change.key
        # What has the key among its keys holds it: asking would make a set of them, of each selection.
        by_key = self._by_key.get(key, {}).items() if self._by_key else ()
        owners = [owner for owner, selection in by_key if partition in selection.partition_set]
        for owner, selection in self._candidates(change):
            if partition in selection.partition_set and selection.holds(key):
                owners.append(owner)
        return owners

    def _candidates(self, change: PastChange) -> Iterator[tuple[Owner, Selection]]:
        key = change.key
        rows: list[Any] | None = None
        for kind in self._kinds.values():
            several: set[_Values] = {()}
            if kind.fixed:
                if rows is None:
                    rows = [self._parse(row) for row in (change.row, change.before) if row is not None]
                several = {kind.values(row) for row in rows}
            for length, places in kind.of_length.items():
                start = key[:length]
                for values in several:
                    yield from places.get((start, values), {}).items()


def _keys(selection: Selection) -> set[bytes]:
    """Return its keys, each once: where a key may be in any partition, it stands in several."""
    return {key for keys in (selection.keys or {}).values() for key in keys}


def _in_order(selection: Selection) -> list[Fixed]:
    return sorted(selection.fixed, key=lambda each: each.column)


def _address(selection: Selection) -> tuple[tuple[str, ...], int, _Place]:
    """Return the names of the fixed columns, the length of what keys begin with, and that with the values."""
    fixed, start = _in_order(selection), _common_start(selection)
    return tuple(each.column for each in fixed), len(start), (start, tuple(each.value for each in fixed))


def _common_start(selection: Selection) -> bytes:
    """Return the longest bytes that all keys of a run begin with."""
    start, end = selection.start, selection.end
    for length in range(len(start), 0, -1):
        after = after_prefix(start[:length])
        if after is None or (end is not None and end <= after):
            return start[:length]
    return b""


def _discard(owners_at: dict[Any, _Owners[Owner]], place: Any, owner: Owner) -> None:
    owners = owners_at[place]
    del owners[owner]
    if not owners:
        del owners_at[place]
