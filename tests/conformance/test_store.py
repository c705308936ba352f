"""What every store does."""

from dataclasses import replace

import pytest

from tablegate.gateway.contract.lineage import RUNS_MAX, EpochRun
from tablegate.gateway.contract.types import BATCH_CHANGES_MAX, Offset, Partition, StoreId, make_version
from tablegate.gateway.stores.base import (
    Change,
    Conflict,
    PastChange,
    Phase,
    Position,
    Repeat,
    StoredRow,
    StoreFull,
    StoreUnavailable,
    StoreWriter,
)
from tablegate.internal.v1.store_pb2 import TableState
from tests.kit.store.changes import change, past, position
from tests.kit.store.opened import HISTORY_CHANGES_MAX, OpenStore

ID = StoreId(1)
P0, P1 = Partition(0), Partition(1)


def get(store: StoreWriter, key: bytes, partition: Partition = P0) -> bytes | None:
    with store.snapshot() as snapshot:
        return snapshot.get(ID, partition, key)


def keys(
    store: StoreWriter, start: bytes = b"", end: bytes | None = None, *, limit: int = 99, descending: bool = False
) -> list[bytes]:
    with store.snapshot() as snapshot:
        rows = snapshot.range(ID, P0, start=start, end=end, limit=limit, descending=descending)
    return [key for key, _ in rows]


def history_offsets(store: StoreWriter, start: int = 0, limit: int = 99) -> list[int]:
    with store.snapshot() as snapshot:
        return [c.offset for c in snapshot.history(ID, P0, start=Offset(start), limit=limit)]


def stored_position(store: StoreWriter, partition: Partition = P0) -> Position | None:
    with store.snapshot() as snapshot:
        return snapshot.position(ID, partition)


@pytest.mark.tools
def test_the_largest_atomic_batch_is_one_write(store: StoreWriter) -> None:
    """It is more than a replicator fetches at once."""
    for sequence in (1, 2):
        rows = [
            change(number, b"%05d" % number, sequence, b"%d" % sequence, time_ms=sequence)
            for number in range((sequence - 1) * BATCH_CHANGES_MAX, sequence * BATCH_CHANGES_MAX)
        ]
        rows = [one._replace(key=b"%05d" % (one.offset % BATCH_CHANGES_MAX)) for one in rows]
        applied, stale = store.apply(ID, P0, rows, position(sequence * BATCH_CHANGES_MAX))
        assert (applied, stale) == (BATCH_CHANGES_MAX, [])
        with store.snapshot() as snapshot:
            found = snapshot.range(ID, P0, start=b"", end=None, limit=BATCH_CHANGES_MAX + 1)
        assert [row for _, row in found] == [b"%d" % sequence] * BATCH_CHANGES_MAX


def test_an_empty_store_knows_nothing(store: StoreWriter) -> None:
    with store.snapshot() as snapshot:
        assert snapshot.table("ratings") is None
        assert snapshot.position(ID, P0) is None
        assert snapshot.get(ID, P0, b"a") is None
        assert snapshot.get_stored(ID, P0, b"a") is None
        assert snapshot.get_many(ID, P0, [b"a", b"a"]) == [None, None]
        assert snapshot.range(ID, P0, start=b"", end=None, limit=9) == []
        assert snapshot.history(ID, P0, start=Offset(0), limit=9) == []
        assert snapshot.status() == b""
    assert store.store_ids() == set()
    assert store.is_current()


def test_a_row_is_read_back(store: StoreWriter) -> None:
    applied = store.apply(ID, P0, [change(0, b"a", 1, b"row"), change(1, b"b", 1, b"")], position(2))
    assert applied == (2, [])
    with store.snapshot() as snapshot:
        assert snapshot.get_many(ID, P0, [b"b", b"x", b"a", b"b"]) == [b"", None, b"row", b""]
        assert snapshot.get_stored(ID, P0, b"a") == StoredRow(make_version(1, 1), b"row")


def test_entries_are_counted_by_kind(store: StoreWriter) -> None:
    store.apply(ID, P0, [change(0, b"a", 1, b"row"), change(1, b"b", 1, b"row")], position(2))
    store.apply(ID, P0, [change(2, b"a", 2, None)], position(3))
    with store.snapshot() as snapshot:
        usage = snapshot.usage()
        # Redis is not on this machine: it is asked for what it takes by others.
        if usage is not None:
            assert usage.entries == {"rows": 2, "tombstones": 1, "history": 3, "index": 0, "repairs": 0}
    with store.snapshot() as snapshot:
        assert (snapshot.usage() is None) == (usage is None)


def test_an_empty_row_is_a_row(store: StoreWriter) -> None:
    store.apply(ID, P0, [change(0, b"a", 1, b"")], position(1))
    assert get(store, b"a") == b""
    assert keys(store) == [b"a"]


def test_a_tombstone_is_no_row_but_keeps_its_version(store: StoreWriter) -> None:
    store.apply(ID, P0, [change(0, b"a", 1, b"row")], position(1))
    store.apply(ID, P0, [change(1, b"a", 2, None)], position(2))
    assert get(store, b"a") is None
    assert keys(store) == []
    with store.snapshot() as snapshot:
        assert snapshot.get_stored(ID, P0, b"a") == StoredRow(make_version(1, 2), None)
        assert snapshot.get_many(ID, P0, [b"a"]) == [None]
    late = change(2, b"a", 1, b"row")
    assert store.apply(ID, P0, [late], position(3)) == (0, [late])
    assert get(store, b"a") is None


@pytest.mark.parametrize("sequence", [1, 2])
def test_an_older_or_equal_version_is_stale(store: StoreWriter, sequence: int) -> None:
    store.apply(ID, P0, [change(0, b"a", 2, b"new")], position(1))
    late = change(1, b"a", sequence, b"old")
    other = change(2, b"b", 1, b"b")
    assert store.apply(ID, P0, [late, other], position(3)) == (1, [late])
    assert get(store, b"a") == b"new"
    assert history_offsets(store) == [0, 2]


def test_a_version_is_ordered_by_generation_then_sequence(store: StoreWriter) -> None:
    store.apply(ID, P0, [change(0, b"a", 300, b"1")], position(1))
    assert store.apply(ID, P0, [change(1, b"a", 1, b"2", generation=2)], position(2)).applied == 1
    assert store.apply(ID, P0, [change(2, b"a", 2**63, b"3", generation=1)], position(3)).applied == 0
    assert get(store, b"a") == b"2"


def test_one_batch_may_change_a_key_several_times(store: StoreWriter) -> None:
    batch = [change(0, b"a", 1, b"1"), change(1, b"a", 3, b"3"), change(2, b"a", 2, b"2"), change(3, b"a", 4, None)]
    assert store.apply(ID, P0, [*batch, change(4, b"a", 5, b"5")], position(5)) == (4, [batch[2]])
    assert get(store, b"a") == b"5"
    assert history_offsets(store) == [0, 1, 3, 4]


def test_of_equal_versions_in_a_batch_the_first_stays(store: StoreWriter) -> None:
    batch = [change(0, b"a", 1, b"first"), change(1, b"a", 1, b"second")]
    assert store.apply(ID, P0, batch, position(2)) == (1, [batch[1]])
    assert get(store, b"a") == b"first"
    assert history_offsets(store) == [0]


def test_a_batch_of_mixed_stale_changes_over_stored_rows(store: StoreWriter) -> None:
    store.apply(ID, P0, [change(0, b"a", 5, b"5"), change(1, b"b", 1, b"1")], position(2))
    batch = [change(2, b"a", 4, b"4"), change(3, b"a", 6, b"6"), change(4, b"a", 5, b"5"), change(5, b"b", 1, b"x")]
    assert store.apply(ID, P0, batch, position(6)) == (1, [batch[0], batch[2], batch[3]])
    assert (get(store, b"a"), get(store, b"b")) == (b"6", b"1")


def test_a_repeated_batch_changes_nothing(store: StoreWriter) -> None:
    batch = [change(0, b"a", 1, b"1"), change(1, b"a", 2, None), change(2, b"b", 1, b"b")]
    store.apply(ID, P0, batch, position(3))
    assert store.apply(ID, P0, batch, position(3)) == (0, batch)
    assert (get(store, b"a"), get(store, b"b")) == (None, b"b")
    assert history_offsets(store) == [0, 1, 2]


def test_partitions_and_store_ids_are_apart(store: StoreWriter) -> None:
    store.apply(ID, P0, [change(0, b"a", 1, b"0")], position(1))
    store.apply(ID, P1, [change(0, b"a", 1, b"1")], position(1))
    store.apply(StoreId(2), P0, [change(0, b"a", 1, b"2")], position(1))
    assert (get(store, b"a"), get(store, b"a", P1)) == (b"0", b"1")
    assert keys(store) == [b"a"]
    assert history_offsets(store) == [0]
    assert store.store_ids() == {1, 2}


def test_range_is_in_byte_order_within_its_bounds(store: StoreWriter) -> None:
    names = [b"\xff\xff", b"a", b"", b"a\x00", b"b", b"\x00", b"ab", b"\xff"]
    store.apply(ID, P0, [change(i, key, 1, key) for i, key in enumerate(names)], position(9))
    store.apply(ID, P1, [change(0, b"c", 1, b"c")], position(1))
    store.apply(StoreId(0), P1, [change(0, b"c", 1, b"c")], position(1))
    store.apply(ID, P0, [change(9, b"b", 2, None)], position(10))
    rest = sorted(set(names) - {b"b"})
    assert keys(store) == rest
    assert keys(store, descending=True) == rest[::-1]
    assert keys(store, b"a", b"b") == [b"a", b"a\x00", b"ab"]
    assert keys(store, b"a", b"b", descending=True) == [b"ab", b"a\x00", b"a"]
    assert keys(store, b"a", b"b", limit=2) == [b"a", b"a\x00"]
    assert keys(store, b"a", b"b", limit=2, descending=True) == [b"ab", b"a\x00"]
    assert keys(store, b"a\x00", b"a\x00") == keys(store, b"b", b"a") == keys(store, limit=0) == []
    assert keys(store, b"\xff\xff\xff") == []
    assert keys(store, b"ac", b"\xff", descending=True) == []


def test_a_range_without_an_end_has_the_highest_keys(store: StoreWriter) -> None:
    highest = [b"\xff" * 8, b"\xff" * 500]
    store.apply(ID, P0, [change(i, key, 1, key) for i, key in enumerate(highest)], position(2))
    store.apply(ID, P1, [change(0, b"", 1, b"c")], position(1))
    assert keys(store) == highest
    assert keys(store, descending=True) == highest[::-1]


def test_range_passes_over_tombstones_without_counting_them(store: StoreWriter) -> None:
    batch = [change(i, bytes([i]), 1, b"x" if i % 3 == 0 else None) for i in range(10)]
    store.apply(ID, P0, batch, position(10))
    assert keys(store, limit=3) == [b"\x00", b"\x03", b"\x06"]
    assert keys(store, limit=3, descending=True) == [b"\x09", b"\x06", b"\x03"]


def test_range_passes_over_what_was_deleted_and_comes_back(store: StoreWriter) -> None:
    store.apply(ID, P0, [change(i, bytes([i]), 1, b"x") for i in range(9)], position(9))
    store.apply(ID, P0, [change(9 + i, bytes([i]), 2, None) for i in range(5)], position(14))
    store.expire(ID, P0, [b"\x05"], time_ms=1)
    assert keys(store, limit=2) == [b"\x06", b"\x07"]
    assert keys(store, limit=9, descending=True) == [b"\x08", b"\x07", b"\x06"]
    store.apply(ID, P0, [change(14, b"\x01", 3, b"y"), change(15, b"\x05", 3, b"y")], position(16))
    assert keys(store, limit=3) == [b"\x01", b"\x05", b"\x06"]


def test_a_snapshot_does_not_see_what_is_written_after_it(store: StoreWriter) -> None:
    store.apply(ID, P0, [change(0, b"a", 1, b"old"), change(1, b"b", 1, b"b")], position(2))
    with store.snapshot() as before:
        store.apply(ID, P0, [change(2, b"a", 2, b"new"), change(3, b"c", 1, b"c")], position(4))
        store.put_table("ratings", TableState(store_id=1))
        store.set_status(b"up")
        while not store.drop(ID, limit=1):
            pass
        assert before.get(ID, P0, b"a") == b"old"
        assert [key for key, _ in before.range(ID, P0, start=b"", end=None, limit=9)] == [b"a", b"b"]
        assert [c.offset for c in before.history(ID, P0, start=Offset(0), limit=9)] == [0, 1]
        found = before.position(ID, P0)
        assert found is not None
        assert found.next_offset == 2
        assert before.table("ratings") is None
        assert before.status() == b""
    with store.snapshot() as after:
        assert after.get(ID, P0, b"a") is None
        assert after.position(ID, P0) is None
        assert after.status() == b"up"


def test_a_position_is_kept_whole(store: StoreWriter) -> None:
    kept = position(
        7, as_of_ms=1_790_000_000_000, history_start=3, source_offsets={("ratings", 0): 5, ("é", 11): 2**40}
    )
    store.apply(ID, P0, [], kept)
    assert stored_position(store) == kept
    assert stored_position(store, P1) is None
    lineage = tuple(EpochRun(epoch, Offset(epoch * 10), Offset(epoch * 10 + 9)) for epoch in range(RUNS_MAX))
    kept = replace(kept, is_final=True, incarnation_id=2**64 - 1, lineage=lineage)
    store.apply(ID, P1, [], kept)
    assert stored_position(store, P1) == kept
    store.apply(ID, P1, [change(7, b"a", 1, b"1")], replace(kept, next_offset=Offset(8)))
    assert store.expire(ID, P1, [b"a"], time_ms=0) == 1
    assert stored_position(store, P1) == replace(kept, next_offset=Offset(8))


def test_history_is_bounded_and_says_where_it_starts(store: StoreWriter) -> None:
    for offset in range(HISTORY_CHANGES_MAX + 3):
        store.apply(ID, P0, [change(offset * 10, b"k", offset + 1, b"x")], position(offset * 10 + 1))
    assert history_offsets(store) == [30, 40, 50, 60, 70]
    found = stored_position(store)
    assert found is not None
    assert found.history_start == 21
    assert history_offsets(store, start=41, limit=2) == [50, 60]
    assert history_offsets(store, start=71) == history_offsets(store, limit=0) == []


def test_history_of_a_batch_larger_than_the_bound(store: StoreWriter) -> None:
    batch = [change(i, bytes([i]), 1, b"x") for i in range(HISTORY_CHANGES_MAX * 2)]
    store.apply(ID, P0, batch, position(len(batch)))
    assert history_offsets(store) == [5, 6, 7, 8, 9]
    found = stored_position(store)
    assert found is not None
    assert found.history_start == 5


def test_history_gives_changes_whole(store: StoreWriter) -> None:
    batch = [change(0, b"a", 1, b"row", time_ms=5), change(1, b"a", 2, None, time_ms=6), change(2, b"b" * 500, 1, b"")]
    store.apply(ID, P0, batch, position(3))
    with store.snapshot() as snapshot:
        assert snapshot.history(ID, P0, start=Offset(0), limit=9) == [
            past(batch[0]),
            past(batch[1], b"row"),
            past(batch[2]),
        ]


def test_history_has_the_row_that_each_change_took_the_place_of(store: StoreWriter) -> None:
    store.apply(ID, P0, [change(0, b"a", 1, b"1"), change(1, b"a", 2, b""), change(2, b"b", 1, None)], position(3))
    store.apply(ID, P0, [change(3, b"a", 3, None), change(4, b"a", 1, b"stale"), change(5, b"a", 4, b"4")], position(6))
    assert [(each.offset, each.before) for each in history(store)] == [
        *[(0, None), (1, b"1"), (2, None), (3, b""), (5, None)]
    ]


def test_history_goes_on_while_catching_up(store: StoreWriter) -> None:
    store.apply(ID, P0, [change(0, b"a", 1, b"1")], position(1))
    store.apply(ID, P0, [change(1, b"b", 1, b"2")], position(2, phase=Phase.CATCHING_UP))
    store.expire(ID, P0, [b"a"], time_ms=1)
    store.apply(ID, P0, [change(2, b"b", 2, b"3")], position(3))
    assert history_offsets(store) == [0, 1, 2, 2]


def test_restoring_keeps_no_history(store: StoreWriter) -> None:
    store.apply(ID, P0, [change(0, b"a", 1, b"1")], position(1))
    store.apply(ID, P0, [change(1, b"a", 2, b"2")], position(2, phase=Phase.RESTORING))
    found = stored_position(store)
    assert found is not None
    assert (found.phase, found.history_start) == (Phase.RESTORING, 2)
    assert history_offsets(store) == []
    store.apply(ID, P0, [change(4, b"a", 3, b"3")], position(5))
    found = stored_position(store)
    assert found is not None
    assert (found.phase, found.history_start) == (Phase.LIVE, 2)
    assert history_offsets(store) == [4]


def test_a_restore_keeps_where_its_history_is_to_begin(store: StoreWriter) -> None:
    for next_offset, kept in ((2, 9), (5, 9), (12, 12)):
        store.apply(ID, P0, [], position(next_offset, phase=Phase.RESTORING, history_start=9))
        found = stored_position(store)
        assert found is not None
        assert found.history_start == kept


def test_a_history_begins_anew_where_its_writer_says_so(store: StoreWriter) -> None:
    """In one write, in which the partition stays answered from; and what came before is history no more."""
    store.apply(ID, P0, [change(0, b"a", 1, b"1"), change(1, b"b", 1, b"2")], position(2))
    store.expire(ID, P0, [b"b"], time_ms=1)
    batch = [change(2, b"a", 2, b"3"), change(4, b"c", 1, None), change(6, b"a", 3, b"4"), change(7, b"d", 1, b"5")]
    store.apply(ID, P0, batch, position(8, history_start=6))
    found = stored_position(store)
    assert found is not None
    assert (found.phase, found.next_offset, found.history_start) == (Phase.LIVE, 8, 6)
    assert history_offsets(store) == [6, 7]
    assert [each.before for each in history(store)] == [b"3", None]
    assert get(store, b"a") == b"4"
    store.apply(ID, P0, [change(8, b"a", 4, b"6")], position(9, history_start=3))
    assert history_offsets(store) == [6, 7, 8]
    store.apply(ID, P0, [change(9, b"a", 5, b"7")], position(10, history_start=10))
    assert history_offsets(store) == []
    store.apply(ID, P0, [change(10, b"a", 6, b"8")], position(11))
    found = stored_position(store)
    assert found is not None
    assert (found.history_start, history_offsets(store)) == (10, [10])


def test_old_tombstones_are_dropped(store: StoreWriter) -> None:
    batch = [change(i, bytes([i]), 1, None, time_ms=i) for i in range(6)]
    batch.append(change(6, b"\x01", 2, b"back", time_ms=6))
    batch.append(change(7, b"\x02", 2, None, time_ms=90))
    store.apply(ID, P0, batch, position(8))
    assert store.drop_tombstones(ID, P0, before_ms=5, limit=2) == 2
    assert store.drop_tombstones(ID, P0, before_ms=5, limit=9) == 1
    assert store.drop_tombstones(ID, P0, before_ms=5, limit=9) == 0
    with store.snapshot() as snapshot:
        left = [i for i in range(6) if snapshot.get_stored(ID, P0, bytes([i])) is not None]
    assert left == [1, 2, 5]
    assert store.drop_tombstones(ID, P0, before_ms=100, limit=9) == 2
    assert get(store, b"\x01") == b"back"


def history(store: StoreWriter, start: int = 0, limit: int = 99, skip: int = 0) -> list[PastChange]:
    with store.snapshot() as snapshot:
        return snapshot.history(ID, P0, start=Offset(start), limit=limit, skip=skip)


def test_what_expires_is_gone_and_in_the_history_as_deletes(store: StoreWriter) -> None:
    store.apply(ID, P0, [change(0, b"a", 4, b"a"), change(1, b"b", 5, b"b"), change(2, b"c", 6, None)], position(7))
    store.apply(ID, P1, [change(0, b"a", 1, b"other")], position(1))
    assert store.expire(ID, P0, [b"b", b"c", b"x", b"a", b"a"], time_ms=90) == 2
    with store.snapshot() as snapshot:
        assert snapshot.get_stored(ID, P0, b"a") is None  # no tombstone stays
        assert snapshot.get_stored(ID, P0, b"b") is None
        assert snapshot.get_stored(ID, P0, b"c") == StoredRow(make_version(1, 6), None)
    assert keys(store) == []
    assert get(store, b"a", P1) == b"other"
    assert history(store, 3) == [
        past(change(7, b"b", 5, None, time_ms=90), b"b"),
        past(change(7, b"a", 4, None, time_ms=90), b"a"),
    ]
    assert history_offsets(store) == [0, 1, 2, 7, 7]
    assert stored_position(store) == position(7)
    assert store.expire(ID, P0, [b"a", b"b"], time_ms=91) == 0
    assert history_offsets(store) == [0, 1, 2, 7, 7]


def test_what_expired_comes_before_the_record_of_its_offset(store: StoreWriter) -> None:
    store.apply(ID, P0, [change(i, bytes([i]), 1, b"x") for i in range(3)], position(5))
    store.expire(ID, P0, [b"\x01"], time_ms=1)
    store.expire(ID, P0, [b"\x00", b"\x02"], time_ms=2)
    store.apply(ID, P0, [change(5, b"\x01", 1, b"again"), change(6, b"a", 1, b"a")], position(7))
    assert [(c.offset, c.key, c.row) for c in history(store, 5)] == [
        *[(5, b"\x01", None), (5, b"\x00", None), (5, b"\x02", None)],
        *[(5, b"\x01", b"again"), (6, b"a", b"a")],
    ]
    assert get(store, b"\x01") == b"again"


def test_a_reader_of_the_history_gets_on_within_an_offset(store: StoreWriter) -> None:
    store.apply(ID, P0, [change(0, b"a", 1, b"a"), change(1, b"b", 1, b"b"), change(2, b"c", 1, b"c")], position(3))
    store.expire(ID, P0, [b"a"], time_ms=1)
    assert [c.key for c in history(store, 3, limit=1)] == [b"a"]
    assert history(store, 3, skip=1) == []
    store.expire(ID, P0, [b"b"], time_ms=1)
    assert [c.key for c in history(store, 3, limit=1, skip=1)] == [b"b"]
    store.apply(ID, P0, [change(3, b"d", 1, b"d")], position(4))
    assert [c.key for c in history(store, 3, skip=2)] == [b"d"]
    assert [c.key for c in history(store, 4)] == []


def test_what_expires_bounds_the_history(store: StoreWriter) -> None:
    store.apply(ID, P0, [change(i, bytes([i]), 1, b"x") for i in range(4)], position(4))
    store.expire(ID, P0, [bytes([i]) for i in range(3)], time_ms=1)
    found = stored_position(store)
    assert found is not None
    assert (found.next_offset, found.history_start) == (4, 2)
    assert history_offsets(store) == [2, 3, 4, 4, 4]


def test_what_expires_while_restoring_is_in_no_history(store: StoreWriter) -> None:
    store.apply(ID, P0, [change(0, b"a", 1, b"a")], position(1, phase=Phase.RESTORING))
    before = stored_position(store)
    assert store.expire(ID, P0, [b"a"], time_ms=1) == 1
    assert get(store, b"a") is None
    assert history_offsets(store) == []
    assert stored_position(store) == before
    assert store.expire(StoreId(9), P1, [b"a"], time_ms=1) == 0
    assert store.store_ids() == {ID}


def test_drop_removes_one_store_id_in_steps(store: StoreWriter) -> None:
    batch = [change(i, bytes([i]), 1, None if i == 3 else b"x") for i in range(10)]
    for store_id in (ID, StoreId(2)):
        for partition in (P0, P1):
            store.apply(store_id, partition, batch, position(10))
    assert not store.drop(ID, limit=1)
    assert stored_position(store) is None
    steps = 0
    while not store.drop(ID, limit=3):
        steps += 1
    assert steps > 3
    assert store.store_ids() == {2}
    assert keys(store) == history_offsets(store) == []
    with store.snapshot() as snapshot:
        assert len(snapshot.range(StoreId(2), P1, start=b"", end=None, limit=99)) == 9
        assert snapshot.position(StoreId(2), P1) is not None
    assert store.drop(ID, limit=9)


def test_drop_partition_removes_one_partition_in_steps(store: StoreWriter) -> None:
    batch = [change(i, bytes([i]), 1, None if i == 3 else b"x") for i in range(10)]
    for store_id in (ID, StoreId(2)):
        for partition in (P0, P1, Partition(256)):
            store.apply(store_id, partition, batch, position(10))
    assert not store.drop_partition(ID, P1, limit=1)
    assert stored_position(store, P1) is None
    steps = 0
    while not store.drop_partition(ID, P1, limit=3):
        steps += 1
    assert steps > 1
    with store.snapshot() as snapshot:
        assert snapshot.range(ID, P1, start=b"", end=None, limit=9) == []
        assert snapshot.history(ID, P1, start=Offset(0), limit=9) == []
        for place in ((ID, P0), (ID, Partition(256)), (StoreId(2), P1)):
            assert snapshot.position(*place) is not None
            assert len(snapshot.range(*place, start=b"", end=None, limit=99)) == 9
            assert len(snapshot.history(*place, start=Offset(0), limit=9)) == HISTORY_CHANGES_MAX
    assert store.drop_partition(ID, P1, limit=0)
    assert store.drop_partition(StoreId(9), P1, limit=0)
    assert store.store_ids() == {1, 2}
    store.apply(ID, P1, [change(3, b"\x03", 1, b"new")], position(4))
    assert get(store, b"\x03", P1) == b"new"
    assert store.drop_tombstones(ID, P1, before_ms=10**15, limit=9) == 0


def test_tables_and_status_are_replaced(store: StoreWriter) -> None:
    store.put_table("ratings", TableState(store_id=1, problem="none"))
    store.put_table("ratings", TableState(store_id=2))
    store.put_table("others", TableState(store_id=3))
    store.set_status(b"one")
    store.set_status(b"")
    with store.snapshot() as snapshot:
        assert snapshot.table("ratings") == TableState(store_id=2)
        assert snapshot.table("others") == TableState(store_id=3)
        assert snapshot.table("rating") is None
        assert snapshot.status() == b""


def test_store_ids_are_new(store: StoreWriter) -> None:
    assert [store.new_store_id() for _ in range(3)] == [1, 2, 3]


def test_a_full_disk_applies_nothing_and_goes_on_later(open_store: OpenStore) -> None:
    full = False
    store = open_store(is_full=lambda: full)
    store.apply(ID, P0, [change(0, b"a", 1, b"1")], position(1))
    full = True
    with pytest.raises(StoreFull):
        store.apply(ID, P0, [change(1, b"a", 2, b"2")], position(2))
    assert get(store, b"a") == b"1"
    assert stored_position(store) == position(1)
    store.set_status(b"full")
    full = False
    store.apply(ID, P0, [change(1, b"a", 2, b"2")], position(2))
    assert get(store, b"a") == b"2"


def test_a_closed_store_says_so(store: StoreWriter) -> None:
    store.close()
    store.close()
    with pytest.raises(StoreUnavailable), store.snapshot():
        pass


def test_the_longest_key_fits(store: StoreWriter) -> None:
    key = b"k" * 500
    store.apply(ID, Partition(65_535), [change(0, key, 1, b"x" * 100_000), change(1, key, 2, None)], position(2))
    with store.snapshot() as snapshot:
        assert snapshot.get_stored(ID, Partition(65_535), key) == StoredRow(make_version(1, 2), None)


def pending(store: StoreWriter, partition: Partition = P0) -> list[tuple[bytes, int, int]]:
    """Return key, offset and sequence of each pending repair."""
    found = store.repairs(ID, partition, limit=99)
    return sorted((each.key, each.offset, int.from_bytes(each.version[4:])) for each in found)


def test_what_lies_behind_its_newest_record_is_to_be_repaired(store: StoreWriter) -> None:
    store.apply(ID, P0, [change(0, b"a", 9, b"9"), change(1, b"b", 9, None), change(2, b"c", 9, b"9")], position(3))
    assert pending(store) == []
    stale = [change(3, b"a", 4, b"4"), change(4, b"b", 8, b"8"), change(5, b"a", 8, None)]
    assert [type(each) for each in store.apply(ID, P0, stale, position(6)).stale] == [Change] * 3
    assert pending(store) == [(b"a", 0, 9), (b"b", 1, 9)]
    assert len(store.repairs(ID, P0, limit=1)) == 1
    assert store.repairs(ID, P0, limit=0) == store.repairs(ID, P1, limit=9) == []


@pytest.mark.parametrize("row", [b"9", b"", None])
def test_the_same_record_again_is_the_newest_from_then_on(store: StoreWriter, row: bytes | None) -> None:
    store.apply(ID, P0, [change(0, b"a", 9, row)], position(1))
    store.apply(ID, P0, [change(1, b"a", 4, b"4")], position(2))
    [again] = store.apply(ID, P0, [change(2, b"a", 9, row)], position(3)).stale
    assert isinstance(again, Repeat)
    assert pending(store) == []
    assert history_offsets(store) == [0]
    assert get(store, b"a") == row
    store.apply(ID, P0, [change(3, b"a", 5, b"5")], position(4))
    assert pending(store) == [(b"a", 2, 9)]


def test_a_newer_row_needs_no_repair(store: StoreWriter) -> None:
    store.apply(ID, P0, [change(0, b"a", 9, b"9"), change(1, b"b", 9, b"9")], position(2))
    store.apply(ID, P0, [change(2, b"a", 4, b"4"), change(3, b"b", 4, b"4")], position(4))
    store.apply(ID, P0, [change(4, b"a", 10, b"10")], position(5))
    store.apply(ID, P0, [change(5, b"b", 10, None)], position(6))
    assert pending(store) == []


@pytest.mark.parametrize("other", [b"8", b"", None])
def test_other_content_of_a_version_is_a_conflict(store: StoreWriter, other: bytes | None) -> None:
    store.apply(ID, P0, [change(0, b"a", 9, b"9")], position(1))
    [conflict] = store.apply(ID, P0, [change(1, b"a", 9, other)], position(2)).stale
    assert isinstance(conflict, Conflict)
    assert (get(store, b"a"), pending(store)) == (b"9", [(b"a", 0, 9)])


def test_a_deleted_row_and_an_empty_one_are_a_conflict(store: StoreWriter) -> None:
    store.apply(ID, P0, [change(0, b"a", 9, None)], position(1))
    [conflict] = store.apply(ID, P0, [change(1, b"a", 9, b"")], position(2)).stale
    assert isinstance(conflict, Conflict)
    assert (get(store, b"a"), pending(store)) == (None, [(b"a", 0, 9)])


@pytest.mark.parametrize("phase", Phase)
def test_one_batch_leaves_what_is_pending_after_it(store: StoreWriter, phase: Phase) -> None:
    rows = [(b"a", 9), (b"b", 9), (b"c", 9), (b"a", 4), (b"b", 4), (b"c", 4), (b"b", 9), (b"c", 10), (b"c", 9)]
    batch = [change(offset, key, sequence, b"%d" % sequence) for offset, (key, sequence) in enumerate(rows)]
    store.apply(ID, P0, batch, position(9, phase=phase))
    assert pending(store) == [(b"a", 0, 9), (b"c", 7, 10)]


def test_what_is_applied_once_more_is_not_behind(store: StoreWriter) -> None:
    batch = [change(0, b"a", 8, b"8"), change(1, b"a", 9, b"9")]
    store.apply(ID, P0, batch, position(2))
    store.apply(ID, P0, batch, position(2))
    assert pending(store) == []


def test_a_dropped_tombstone_keeps_its_repair(store: StoreWriter) -> None:
    store.apply(ID, P0, [change(0, b"a", 9, None, time_ms=5)], position(1))
    store.apply(ID, P0, [change(1, b"a", 4, b"4", time_ms=6)], position(2))
    assert store.drop_tombstones(ID, P0, before_ms=9, limit=9) == 1
    assert pending(store) == [(b"a", 0, 9)]
    store.apply(ID, P0, [change(2, b"a", 9, None, time_ms=7)], position(3))
    assert pending(store) == []


def test_a_repeated_tombstone_is_as_old_as_the_last(store: StoreWriter) -> None:
    store.apply(ID, P0, [change(0, b"a", 9, None, time_ms=5)], position(1))
    store.apply(ID, P0, [change(1, b"a", 9, None, time_ms=8)], position(2))
    assert store.drop_tombstones(ID, P0, before_ms=7, limit=9) == 0
    assert store.drop_tombstones(ID, P0, before_ms=9, limit=9) == 1


def test_repairs_go_with_what_they_are_of(store: StoreWriter) -> None:
    for partition in (P0, P1):
        store.apply(ID, partition, [change(0, b"a", 9, b"9"), change(1, b"b", 9, b"9")], position(2))
        store.apply(ID, partition, [change(2, b"a", 4, b"4"), change(3, b"b", 4, b"4")], position(4))
    store.expire(ID, P0, [b"a"], time_ms=7)
    assert (pending(store), len(pending(store, P1))) == ([(b"b", 1, 9)], 2)
    while not store.drop_partition(ID, P1, limit=1):
        pass
    assert (len(pending(store)), pending(store, P1)) == (1, [])
    while not store.drop(ID, limit=1):
        pass
    assert pending(store) == []
