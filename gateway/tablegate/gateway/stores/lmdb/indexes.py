"""Entries of indexes in the LMDB store, and how far each index is.

An entry is a key with several values: the partition and the index key, and there the keys of its rows, in order. So
both may be as long as a key of LMDB, where one key of both could not. Entries of a row that changes are found by the
row before, which a write reads anyway: they are made of it anew.

An index of a partition is whole; or it is being built, from its lowest row key on up to one that is stored; or it is
gone, and its entries are removed before it may be built again.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from tablegate.gateway.contract.indexes import INDEX_ID_BYTES, Index, RowIndexes, make_entry, split_entry
from tablegate.gateway.contract.keys import after_prefix
from tablegate.gateway.contract.types import VERSION_BYTES
from tablegate.gateway.stores.base import Change
from tablegate.gateway.stores.lmdb import layout
from tablegate.gateway.stores.lmdb.environment import Environment

_BUILDING, _WHOLE, _GONE = b"\x00", b"\x01", b"\x02"

_FEW = 16  # index keys of a row, before and after together: to search them takes less time than to make sets of them
_VALUES_AT = layout.PREFIX_BYTES + INDEX_ID_BYTES


def is_whole(transaction: Any, environment: Environment, prefix: bytes, index: Index) -> bool:
    """Return whether a partition's index has the entries of all rows."""
    return bool(transaction.get(prefix + index.id, db=environment.indexes) == _WHOLE)


def entries(
    cursor: Any,
    prefix: bytes,
    index: Index,
    *,
    start: bytes,
    end: bytes | None,
    after: bytes | None,
    descending: bool,
) -> Iterator[tuple[bytes, bytes]]:
    """Yield entries and row keys of an index, as `Snapshot.index_range` has them."""
    head = prefix + index.id
    first, last = head + start, after_prefix(head) if end is None else head + end
    assert last is not None
    found = _found_descending(cursor, head, last, after) if descending else _found_ascending(cursor, head, first, after)
    for full_key, key in found:
        if full_key < first if descending else full_key >= last:
            return
        yield make_entry(full_key[_VALUES_AT:], key), key


def _found_ascending(cursor: Any, head: bytes, first: bytes, after: bytes | None) -> Iterator[tuple[bytes, bytes]]:
    if after is None or head + after < first:
        return iter(cursor.iternext()) if cursor.set_range(first) else iter(())
    values, key = split_entry(after)
    at = head + values
    if not cursor.set_range_dup(at, key):
        more = cursor.set_range(at + b"\x00")  # no row behind it has these values
    else:
        more = cursor.value() != key or cursor.next()  # the entry itself, if it is there still, was had
    return iter(cursor.iternext()) if more else iter(())


def _found_descending(cursor: Any, head: bytes, last: bytes, after: bytes | None) -> Iterator[tuple[bytes, bytes]]:
    if after is not None:
        values, key = split_entry(after)
        at = head + values
        if at < last:
            if cursor.set_range_dup(at, key):
                more = cursor.prev()
            else:
                more = cursor.prev() if cursor.set_range(at + b"\x00") else cursor.last()
            return iter(cursor.iterprev()) if more else iter(())
    more = cursor.prev() if cursor.set_range(last) else cursor.last()
    return iter(cursor.iterprev()) if more else iter(())


def begin(transaction: Any, environment: Environment, prefix: bytes, indexes: RowIndexes) -> None:
    """Note that indexes are whole in a partition that begins: it has no rows."""
    for index_id in indexes.ids:
        transaction.put(prefix + index_id, _WHOLE, db=environment.indexes)


def keep(transaction: Any, environment: Environment, prefix: bytes, indexes: RowIndexes) -> None:
    """Note that those of a partition that were not kept are to be built, and that those of others are gone."""
    known = dict(_states(transaction, environment, prefix))
    for index_id in indexes.ids:
        if index_id not in known:
            transaction.put(prefix + index_id, _BUILDING, db=environment.indexes)
    for index_id in set(known).difference(indexes.ids):
        transaction.put(prefix + index_id, _GONE, db=environment.indexes)


def _states(transaction: Any, environment: Environment, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the ids of a partition's indexes, and how far each is."""
    with transaction.cursor(environment.indexes) as cursor:
        more = cursor.set_range(prefix)
        while more and cursor.key().startswith(prefix):
            yield cursor.key()[layout.PREFIX_BYTES :], cursor.value()
            more = cursor.next()


def unfinished(transaction: Any, environment: Environment, prefix: bytes) -> list[tuple[bytes, bytes]]:
    """Return the ids of a partition's indexes that are not whole, and how far each is."""
    return [(index_id, state) for index_id, state in _states(transaction, environment, prefix) if state != _WHOLE]


def is_gone(state: bytes) -> bool:
    """Return whether an index is gone, and its entries are to be removed."""
    return state == _GONE


def put_entries(
    transaction: Any,
    environment: Environment,
    prefix: bytes,
    indexes: RowIndexes,
    newest: Mapping[bytes, Change],
    stored: Mapping[bytes, bytes],
) -> None:
    """Write what changes of a batch mean for indexes: those that are newer than what was stored at their keys."""
    keys_of = indexes.keys_of
    added: list[tuple[bytes, bytes]] = []
    removed: list[tuple[bytes, bytes]] = []
    for key, change in newest.items():
        value, row = stored.get(key), change.row
        before = None
        if value is not None:
            if change.version <= value[:VERSION_BYTES]:
                continue
            before = layout.live_row(value)
        now: Collection[bytes] = [] if row is None else keys_of(row)
        if before is None:
            added += [(prefix + index_key, key) for index_key in now]
            continue
        was: Collection[bytes] = keys_of(before)
        if was != now:
            if len(was) + len(now) > _FEW:
                was, now = set(was), set(now)
            for index_key in was:
                if index_key not in now:
                    removed.append((prefix + index_key, key))
            for index_key in now:
                if index_key not in was:
                    added.append((prefix + index_key, key))
    _remove(transaction, environment, removed)
    _add(transaction, environment, added)


def remove_entries(
    transaction: Any, environment: Environment, prefix: bytes, indexes: RowIndexes, gone: Mapping[bytes, bytes]
) -> None:
    """Remove the entries of rows that are removed; `gone` are their values, by key."""
    removed = []
    for key, value in gone.items():
        row = layout.live_row(value)
        if row is not None:
            removed += [(prefix + index_key, key) for index_key in indexes.keys_of(row)]
    _remove(transaction, environment, removed)


def _add(transaction: Any, environment: Environment, added: list[tuple[bytes, bytes]]) -> None:
    if added:
        added.sort()  # the order of pages
        with transaction.cursor(environment.index) as cursor:
            cursor.putmulti(added, dupdata=True)


def _remove(transaction: Any, environment: Environment, removed: Iterable[tuple[bytes, bytes]]) -> None:
    for full_key, key in sorted(removed):  # the order of pages
        transaction.delete(full_key, key, db=environment.index)  # it may not be there yet


def work_on(
    transaction: Any,
    environment: Environment,
    prefix: bytes,
    indexes: RowIndexes | None,
    index_id: bytes,
    state: bytes,
    limit: int,
) -> None:
    """Go on with an index of a partition that is not whole, by at most `limit` rows or entries."""
    if state == _GONE:
        if _removed(transaction, environment, prefix + index_id, limit):
            if indexes is not None and index_id in indexes.ids:
                transaction.put(prefix + index_id, _BUILDING, db=environment.indexes)
            else:
                transaction.delete(prefix + index_id, db=environment.indexes)
        return
    assert indexes is not None, "what is built is kept"
    last = after_prefix(prefix)
    assert last is not None
    added: list[tuple[bytes, bytes]] = []
    until = _WHOLE
    with transaction.cursor(environment.rows) as cursor:
        more = cursor.set_range(prefix + state[len(_BUILDING) :])
        while more and cursor.key() < last:
            if limit <= 0:
                until = _BUILDING + cursor.key()[layout.PREFIX_BYTES :]
                break
            limit -= 1
            key, row = cursor.key()[layout.PREFIX_BYTES :], layout.live_row(cursor.value())
            if row is not None:
                added += [(prefix + each, key) for each in indexes.keys_of(row) if each.startswith(index_id)]
            more = cursor.next()
    _add(transaction, environment, added)
    transaction.put(prefix + index_id, until, db=environment.indexes)


def _removed(transaction: Any, environment: Environment, head: bytes, limit: int) -> bool:
    with transaction.cursor(environment.index) as cursor:
        more = cursor.set_range(head)
        while more and cursor.key().startswith(head):
            if limit <= 0:
                return False
            limit -= 1
            more = cursor.delete()
    return True
