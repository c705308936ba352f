"""The history of a partition in LMDB: a cursor over it, with a place, in a transaction of whoever calls."""

from collections.abc import Iterable, Sequence
from typing import Any

from tablegate.gateway.contract.types import Offset
from tablegate.gateway.stores.base import PastChange
from tablegate.gateway.stores.lmdb import layout


def add_applied(cursor: Any, at: bytes, changes: Iterable[PastChange]) -> None:
    """Add what records changed."""
    cursor.putmulti([(layout.history_key(at, change.offset), layout.pack_change(change)) for change in changes])


def add_expired(cursor: Any, at: bytes, changes: Sequence[PastChange]) -> None:
    """Add deletes of one offset, whose record has not come, behind those that the offset has already."""
    if not changes:
        return
    offset = changes[0].offset
    first = _next_order(cursor, at, offset)
    cursor.putmulti(
        [
            (layout.history_key(at, offset, order), layout.pack_change(change))
            for order, change in enumerate(changes, start=first)
        ]
    )


def _next_order(cursor: Any, at: bytes, offset: Offset) -> int:
    """Return the first order that no delete of `offset` has."""
    more = cursor.prev() if cursor.set_range(layout.history_key(at, offset)) else cursor.last()
    if not more or not cursor.key().startswith(layout.offset_key(at, offset)):
        return 0
    return layout.order_of(cursor.key()) + 1


def drop_oldest(cursor: Any, at: bytes, count: int) -> Offset:
    """Remove the first `count` changes; return the offset of the last of them."""
    offset = Offset(-1)
    more = count > 0 and cursor.set_range(at)
    while more and count > 0 and cursor.key().startswith(at):
        offset = layout.offset_of(cursor.key())
        count -= 1
        more = cursor.delete()
    return offset
