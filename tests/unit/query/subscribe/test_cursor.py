"""Steps of a cursor, one by one: what is given of a change that comes while a partition is read."""

from tablegate.gateway.contract.lineage import EpochRun
from tablegate.gateway.contract.types import Offset, Partition, StoreId
from tablegate.gateway.query.subscribe.cursor import (
    ChangePosition,
    Cursor,
    Given,
    ReadBudget,
    Selection,
    Step,
    start_live,
    step,
)
from tablegate.gateway.stores.base import Change
from tests.kit.store.changes import change, position
from tests.kit.store.memory import MemoryStore

STORE, PARTITION = StoreId(1), Partition(0)
ALL = Selection([PARTITION], b"", None)
RED = Selection([PARTITION], b"", None, matches=b"red".__eq__)


def store_of(*changes: Change) -> MemoryStore:
    store = MemoryStore()
    apply(store, *changes)
    return store


def apply(store: MemoryStore, *changes: Change) -> None:
    store.apply(STORE, PARTITION, changes, position(changes[-1].offset + 1))


def one_step(store: MemoryStore, selection: Selection, cursor: Cursor, *, rows: int, conflate: bool = False) -> Step:
    with store.snapshot() as snapshot:
        found = snapshot.position(STORE, PARTITION)
        assert found is not None
        budget, positions = ReadBudget(rows, 1_000), {PARTITION: found}
        return step(snapshot, STORE, positions, selection, cursor, budget=budget, conflate=conflate)


def test_changes_up_to_the_last_key_that_was_sent_are_given_alone() -> None:
    """Keys behind it are still to be read, and their rows have the changes."""
    store = store_of(*(change(at, key, at + 1, b"old") for at, key in enumerate([b"a", b"b", b"c", b"d"])))
    cursor = Cursor()
    first = one_step(store, ALL, cursor, rows=2)
    assert first == Step([Given(b"a", b"old"), Given(b"b", b"old")], is_whole=False)
    new = [change(at, key, at + 1, b"new") for at, key in enumerate([b"a", b"b", b"c"], start=4)]
    apply(store, *new, change(7, b"d", 8, None))
    second = one_step(store, ALL, cursor, rows=10)
    assert second == Step([Given(key, b"new") for key in (b"a", b"b", b"c")], is_whole=True)


def test_a_copy_of_lost_records_waits_for_nothing() -> None:
    """What the copy before had is in no store of the log that there is now."""
    store = MemoryStore()
    now = position(2, lineage=(EpochRun(1, Offset(0), Offset(2)),))
    store.apply(STORE, PARTITION, [change(0, b"a", 1, b"row")], now)
    lost, kept = ChangePosition(Offset(5), leader_epoch=0), ChangePosition(Offset(5), leader_epoch=1)
    ahead = Step([], is_whole=False, is_ahead=True)
    assert one_step(store, ALL, Cursor({PARTITION: kept}).begun_anew(), rows=10) == ahead
    anew = Cursor({PARTITION: lost}).begun_anew()
    assert one_step(store, ALL, anew, rows=10) == Step([Given(b"a", b"row")], is_whole=True)


def test_joined_changes_remember_what_the_subscriber_has() -> None:
    store = store_of(change(0, b"a", 1, b"red"))
    with store.snapshot() as snapshot:
        found = snapshot.position(STORE, PARTITION)
        assert found is not None
        cursor = start_live(snapshot, STORE, {PARTITION: found}, RED)
    apply(store, change(1, b"a", 2, b"blue"), change(2, b"a", 3, b"green"))
    assert one_step(store, RED, cursor, rows=10, conflate=True) == Step([Given(b"a", None)], is_whole=True)
