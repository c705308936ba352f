"""Indexes in every store: they have the entries of their rows, and no others, whatever was done to the rows."""

import random

import pytest

from tablegate.gateway.contract.indexes import RowIndexes, split_entry
from tablegate.gateway.contract.keys import encode_key
from tablegate.gateway.contract.types import Offset, Partition
from tablegate.gateway.stores.base import Phase, StoreFull, StoreWriter
from tests.kit.store.changes import change, position
from tests.kit.store.indexed_accounts import ID, P0, TABLE, Written
from tests.kit.store.opened import OpenStore
from tests.kit.table.accounts import account, entries_of, index

ALL = TABLE.row_indexes


@pytest.mark.parametrize("seed", range(4))
def test_entries_follow_their_rows(store: StoreWriter, seed: int) -> None:
    written = Written(store, seed)
    for _ in range(12):
        written.write_some()
        written.check()


def test_entries_are_there_while_a_partition_restores(store: StoreWriter) -> None:
    written = Written(store, 1)
    written.write_some(phase=Phase.RESTORING)
    written.write_some()
    written.check()


def test_a_batch_of_one_key_leaves_the_newest(store: StoreWriter) -> None:
    written = Written(store, 1)
    one, two = (account(written.choice, bank="ash", account_id=1, number=number) for number in ("1", "2"))
    key = encode_key(TABLE.key, ["ash", 1])
    rows = [row.SerializeToString() for row in (one, two)]
    written.next_offset = 4
    written.write(
        [
            change(0, key, 2, rows[0]),
            change(1, key, 1, rows[1]),
            change(2, key, 3, rows[1]),
            change(3, key, 3, rows[0]),  # a conflict: the first stays
        ]
    )
    written.rows = {key: rows[1]}
    written.check()


def test_a_repeat_keeps_its_entries(store: StoreWriter) -> None:
    """A job that runs again writes the same row once more, behind the first."""
    written = Written(store, 1)
    row = account(written.choice, bank="ash", account_id=1).SerializeToString()
    key = encode_key(TABLE.key, ["ash", 1])
    written.rows = {key: row}
    for offset in range(3):
        written.next_offset = offset + 1
        written.write([change(offset, key, 5, row)])
        written.check()


def test_elements_that_are_cut_alike_are_one_entry(store: StoreWriter) -> None:
    written = Written(store, 1)
    row = account(written.choice, bank="ash", account_id=1)
    del row.tags[:]
    row.tags.extend(["n" * 600, "n" * 600 + "z"])
    written.next_offset = 1
    written.write([change(0, encode_key(TABLE.key, ["ash", 1]), 1, row.SerializeToString())])
    entries = written.read(index("by_tag"))
    assert entries is not None
    assert len(entries) == 1


def test_entries_of_many_elements_follow_their_row(store: StoreWriter) -> None:
    written = Written(store, 1)
    row, key = account(written.choice, bank="ash", account_id=1), encode_key(TABLE.key, ["ash", 1])
    for offset, tags in enumerate((range(30), range(10, 40), range(20, 23), range(40), ())):
        del row.tags[:]
        row.tags.extend(str(tag) for tag in tags)
        written.next_offset = offset + 1
        written.rows = {key: row.SerializeToString()}
        written.write([change(offset, key, offset + 1, written.rows[key])])
        written.check()


def test_an_expired_row_leaves_no_entry(store: StoreWriter) -> None:
    written = Written(store, 2)
    written.write_some(40)
    gone = sorted(written.rows)[::2]
    assert store.expire(ID, P0, gone, time_ms=1) == len(gone)
    for key in gone:
        del written.rows[key]
    written.check()


def test_tombstones_have_no_entries_to_leave(store: StoreWriter) -> None:
    written = Written(store, 3)
    for _ in range(3):
        written.write_some()
    store.drop_tombstones(ID, P0, before_ms=10, limit=100)
    written.check()


@pytest.mark.parametrize("descending", [False, True])
def test_pages_of_a_range_are_the_range(store: StoreWriter, descending: bool) -> None:
    written = Written(store, 4)
    for _ in range(6):
        written.write_some()
    choice = random.Random(5)
    for each in TABLE.indexes:
        whole = entries_of(each, written.rows)
        bounds = [b"", *(split_entry(entry)[0] for entry, _ in whole), b"\xff" * 20]
        for _ in range(25):
            start, end, limit = choice.choice(bounds), choice.choice([*bounds, None]), choice.randrange(1, 5)
            wanted = [
                (entry, row)
                for entry, row in (whole[::-1] if descending else whole)
                if start <= split_entry(entry)[0] and (end is None or split_entry(entry)[0] < end)
            ]
            found: list[tuple[bytes, bytes]] = []
            after = None
            with store.snapshot() as snapshot:
                while True:
                    page = snapshot.index_range(
                        ID, P0, each, start=start, end=end, limit=limit, after=after, descending=descending
                    )
                    assert page is not None
                    found += page
                    if len(page) < limit:
                        break
                    after = page[-1][0]
            assert found == wanted, each.name


def test_a_page_goes_on_behind_an_entry_that_is_gone(store: StoreWriter) -> None:
    written = Written(store, 6)
    written.write_some(60)
    by_city = index("by_city")
    before = entries_of(by_city, written.rows)
    after = before[len(before) // 2][0]
    key = split_entry(after)[1]
    written.next_offset += 1
    written.write([change(written.next_offset - 1, key, written.next_offset, None)])
    with store.snapshot() as snapshot:
        above = snapshot.index_range(ID, P0, by_city, start=b"", end=None, limit=99, after=after)
        below = snapshot.index_range(ID, P0, by_city, start=b"", end=None, limit=99, after=after, descending=True)
    rest = [each for each in before if split_entry(each[0])[1] != key]
    assert above == [each for each in rest if each[0] > after]
    assert below == [each for each in reversed(rest) if each[0] < after]


def test_a_snapshot_keeps_its_entries(store: StoreWriter) -> None:
    written = Written(store, 7)
    written.write_some(40)
    before = {each.name: entries_of(each, written.rows) for each in TABLE.indexes}
    with store.snapshot() as snapshot:
        assert snapshot.position(ID, P0) is not None
        for _ in range(3):
            written.write_some()
        for each in TABLE.indexes:
            found = snapshot.index_range(ID, P0, each, start=b"", end=None, limit=999)
            assert found == before[each.name], each.name
            assert snapshot.index_range(ID, P0, each, start=b"", end=None, limit=2) == before[each.name][:2]
    written.check()


def test_an_index_that_is_added_is_built_beside_writes(store: StoreWriter) -> None:
    written = Written(store, 8, None)
    written.write_some(60)
    assert written.read(index("by_city")) is None
    store.keep_indexes(ID, ALL)
    written.write([])
    steps = 0
    while not store.build_indexes(ID, P0, limit=2):
        assert any(written.read(each) is None for each in TABLE.indexes)
        written.write_some(3)
        steps += 1
    assert steps > 3
    written.check()


def test_an_index_that_is_there_stays_while_another_is_built(store: StoreWriter) -> None:
    by_city, by_tag = index("by_city"), index("by_tag")
    written = Written(store, 9, RowIndexes([by_city], TABLE.row_class))
    written.write_some(40)
    store.keep_indexes(ID, RowIndexes([by_city, by_tag], TABLE.row_class))
    written.write([])
    written.check([by_city])
    assert written.read(by_tag) is None
    written.build()
    written.check([by_city, by_tag])


def test_an_index_that_comes_back_has_no_old_entries(store: StoreWriter) -> None:
    """While it was not kept, nobody removed the entries of rows that changed."""
    by_city, by_tag = index("by_city"), index("by_tag")
    written = Written(store, 10, RowIndexes([by_city, by_tag], TABLE.row_class))
    written.write_some(40)
    store.keep_indexes(ID, RowIndexes([by_tag], TABLE.row_class))
    written.write_some(40)
    assert written.read(by_city) is None
    written.check([by_tag])
    store.keep_indexes(ID, RowIndexes([by_city, by_tag], TABLE.row_class))
    written.write_some(10)
    assert written.read(by_city) is None
    written.check([by_tag])
    written.build()
    written.check([by_city, by_tag])


def test_a_table_without_indexes_has_nothing_to_build(store: StoreWriter) -> None:
    written = Written(store, 11, RowIndexes((), TABLE.row_class))
    written.write_some()
    assert store.build_indexes(ID, P0, limit=9)
    assert store.build_indexes(ID, Partition(7), limit=9)


def test_a_partition_that_is_dropped_leaves_no_entry(store: StoreWriter) -> None:
    written = Written(store, 12)
    written.write_some(40)
    while not store.drop_partition(ID, P0, limit=7):
        pass
    assert written.read(index("by_city")) is None
    again = Written(store, 13)
    again.check()
    again.write_some()
    again.check()


def test_what_a_full_store_refuses_is_in_no_index(open_store: OpenStore) -> None:
    full: list[bool] = []
    written = Written(open_store(is_full=lambda: bool(full)), 14)
    written.write_some()
    full.append(True)
    rows, offset = dict(written.rows), written.next_offset
    with pytest.raises(StoreFull):
        written.write_some()
    full.clear()
    written.rows, written.next_offset = rows, offset
    written.check()


def test_a_full_store_builds_no_index(open_store: OpenStore) -> None:
    """The last of the room is for what says that it is full."""
    full: list[bool] = []
    written = Written(open_store(is_full=lambda: bool(full)), 16, None)
    written.write_some()
    written.store.keep_indexes(ID, ALL)
    written.write([])
    full.append(True)
    with pytest.raises(StoreFull):
        written.build()
    assert written.read(index("by_city")) is None
    full.clear()
    written.build()
    full.append(True)
    written.store.keep_indexes(ID, RowIndexes((), TABLE.row_class))
    written.build()  # to remove entries makes it no fuller
    full.clear()
    written.store.keep_indexes(ID, ALL)
    written.build()
    written.check()


def test_partitions_have_entries_of_their_own(store: StoreWriter) -> None:
    written = Written(store, 15)
    written.write_some()
    store.apply(ID, Partition(1), [], position(0))
    with store.snapshot() as snapshot:
        for each in TABLE.indexes:
            assert snapshot.index_range(ID, Partition(1), each, start=b"", end=None, limit=9) == []
            assert snapshot.index_range(ID, Partition(2), each, start=b"", end=None, limit=9) is None
    assert Offset(written.next_offset) == Offset(20)
