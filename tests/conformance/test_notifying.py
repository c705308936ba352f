"""What is written is named: of each method of the protocol that writes."""

from collections.abc import Callable, Sequence

import pytest
from tablegate.gateway.contract.types import Partition, StoreId
from tablegate.gateway.stores.base import Applied, Change, Position, StoreFull, StoreWriter
from tablegate.gateway.stores.changes import PARTITIONS_MAX, NotifyingStore, StoreChanges
from tablegate.internal.v1.store_pb2 import TableState
from typing_extensions import override

from tests.kit.store.changes import change, position
from tests.kit.store.memory import MemoryStore

STORE, PARTITION = StoreId(1), Partition(2)
NAMED = StoreChanges({STORE: {PARTITION}})


def written(write: Callable[[NotifyingStore], object], store: StoreWriter | None = None) -> StoreChanges:
    """Return what a write is published as, after all that was there before it."""
    published: list[StoreChanges] = []
    notifying = NotifyingStore(store or MemoryStore(), published.append)
    notifying.apply(STORE, PARTITION, [change(0, b"a", 1, b"row")], position(1))
    notifying.publish()
    write(notifying)
    notifying.publish()
    [first, changes] = published
    assert first.everything
    return changes


@pytest.mark.parametrize(
    "write",
    [
        lambda store: store.apply(STORE, PARTITION, [], position(2)),
        lambda store: store.expire(STORE, PARTITION, [b"a"], time_ms=1),
        lambda store: store.drop_partition(STORE, PARTITION, limit=1),
        lambda store: store.join(STORE, PARTITION),
    ],
    ids=["apply", "expire", "drop_partition", "join"],
)
def test_what_is_written_to_a_partition_names_it(write: Callable[[NotifyingStore], object]) -> None:
    assert written(write) == NAMED


def test_a_table_that_is_put_may_change_everything() -> None:
    assert written(lambda store: store.put_table("ratings", TableState(store_id=2))).everything


def test_a_status_is_one_and_of_a_shared_store_more() -> None:
    """Nobody here knows what other gateways write to it."""
    assert written(lambda store: store.set_status(b"status")) == StoreChanges(status=True)

    class SharedStore(MemoryStore):
        is_shared = True

    assert written(lambda store: store.set_status(b"status"), SharedStore()).everything


def test_what_is_read_and_removed_unseen_changes_nothing() -> None:
    def write(store: NotifyingStore) -> None:
        with store.snapshot() as snapshot:
            assert snapshot.get(STORE, PARTITION, b"a") == b"row"
        store.drop_tombstones(STORE, PARTITION, before_ms=0, limit=1)
        store.drop(StoreId(9), limit=1)
        store.new_store_id()

    assert not written(write)


def test_a_write_that_fails_may_have_been_done() -> None:
    """As over a connection that breaks before it is answered."""

    class FailingStore(MemoryStore):
        fails = False

        @override
        def apply(
            self, store_id: StoreId, partition: Partition, changes: Sequence[Change], position: Position
        ) -> Applied:
            if self.fails:
                raise StoreFull("full")
            return super().apply(store_id, partition, changes, position)

    failing = FailingStore()

    def write(store: NotifyingStore) -> None:
        failing.fails = True
        with pytest.raises(StoreFull):
            store.apply(STORE, PARTITION, [], position(2))

    assert written(write, failing) == NAMED


@pytest.mark.parametrize("count", [0, 1, 2, 1_000, PARTITIONS_MAX])
def test_what_is_encoded_is_decoded(count: int) -> None:
    changes = StoreChanges(status=bool(count % 2))
    for number in range(count):
        changes.add(StoreId(1 + number % 3 * 2**40), Partition(number))
    data = changes.encode()
    assert StoreChanges.decode(data) == changes
    assert len(data) <= 1 + 4 * PARTITIONS_MAX + 3 * 12
