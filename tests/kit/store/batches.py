"""A changelog of numbered batches, in stores."""

from tablegate.gateway.contract.types import Partition, StoreId
from tablegate.gateway.stores.base import Position, StoreReader, StoreWriter
from tests.kit.store.changes import change, position
from tests.kit.store.crash_writer import KEYS, batch_of
from tests.kit.store.memory import MemoryStore

ID, P0, P1 = StoreId(1), Partition(0), Partition(1)


def stored_position(store: StoreReader) -> Position | None:
    with store.snapshot() as snapshot:
        return snapshot.position(ID, P0)


def rows_of(store: StoreReader) -> dict[bytes, bytes]:
    with store.snapshot() as snapshot:
        return dict(snapshot.range(ID, P0, start=b"", end=None, limit=10 * KEYS))


def apply_batches(store: StoreWriter, first: int, last: int) -> None:
    """Apply batches `first` to `last` of the changelog of tests, whose batches are numbered from 0."""
    for number in range(first, last):
        changes, moved_to = batch_of(number)
        store.apply(ID, P0, changes, moved_to)


def expected_rows(batches: int) -> dict[bytes, bytes]:
    memory = MemoryStore()
    apply_batches(memory, 0, batches)
    return rows_of(memory)


def fill(store: StoreWriter) -> None:
    changes = [change(0, b"a", 1, b"1"), change(1, b"a", 2, b"2"), change(2, b"b", 1, b"b"), change(3, b"c", 1, None)]
    store.apply(ID, P0, changes, position(4))
