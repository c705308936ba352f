"""Rows that go from one store to another, of each kind to each, as a gateway gets them from another one."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from google.protobuf.message import DecodeError

from tablegate.gateway.contract.lineage import EpochRun
from tablegate.gateway.contract.types import Offset, Partition, StoreId
from tablegate.gateway.stores.base import Phase, StoredRows, StoreFull, StoreWriter
from tablegate.gateway.stores.changes import NotifyingStore
from tablegate.gateway.stores.lmdb.environment import FREE_BYTES_MIN
from tablegate.gateway.stores.lmdb.store import LmdbStore
from tests.kit.store.changes import change, position
from tests.kit.store.indexed_accounts import TABLE, Written
from tests.kit.store.memory import MemoryStore
from tests.kit.table.accounts import entries_of

FROM, TO = StoreId(1), StoreId(7)
P0, P1, P2 = Partition(0), Partition(1), Partition(2)
END = position(90, as_of_ms=50, source_offsets={("orders", 0): 12}, lineage=(EpochRun(3, Offset(0), Offset(90)),))


class Pair:
    """A store that rows come from, and one that they go to; `is_full`: the latter's disk."""

    def __init__(self, kinds: tuple[str, str], directory: Path) -> None:
        self.is_full = False
        self.source = self._open(kinds[0], directory / "source", lambda: FREE_BYTES_MIN)
        self.target = self._open(kinds[1], directory / "target", lambda: 0 if self.is_full else FREE_BYTES_MIN)

    def _open(self, kind: str, path: Path, free_bytes: Callable[[], int]) -> StoreWriter:
        if kind == "lmdb":
            return LmdbStore(path, free_bytes=free_bytes)
        store = MemoryStore(free_bytes=free_bytes)
        return NotifyingStore(store, lambda _: None) if kind == "notifying" else store

    def rows(self, bytes_max: int, partition: Partition = P0) -> list[StoredRows]:
        """Return all parts."""
        parts: list[StoredRows] = []
        while True:
            with self.source.snapshot() as snapshot:
                after = parts[-1].keys[-1] if parts else None
                part = snapshot.stored_rows(FROM, partition, after=after, bytes_max=bytes_max)
            if not part.keys:
                return parts
            parts.append(part)

    def transfer(self, bytes_max: int = 100, partition: Partition = P0) -> None:
        for part in self.rows(bytes_max, partition):
            self.target.put_transferred(TO, partition, part, time_ms=50)
        with self.source.snapshot() as snapshot:
            repairs = snapshot.repairs(FROM, partition, limit=99)
            at = snapshot.position(FROM, partition)
        assert at is not None
        self.target.end_transfer(TO, partition, repairs, at.in_phase(Phase.RESTORING))


@pytest.fixture(
    params=[("lmdb", "lmdb"), ("lmdb", "memory"), ("memory", "lmdb"), ("memory", "notifying")], ids="-to-".join
)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(request.param, tmp_path)
    yield pair
    pair.source.close()
    pair.target.close()


def filled(pair: Pair, count: int = 40) -> Pair:
    """Give rows 0, 1, ... of 10 bytes, each third deleted, in two partitions; and rows of others around them."""
    for partition in (P0, P1, P2):
        changes = [
            change(at, b"%04d" % at, 5, None if at % 3 == 0 else b"row%07d" % at, time_ms=9) for at in range(count)
        ]
        pair.source.apply(FROM, partition, changes, END)
        pair.source.apply(StoreId(2), partition, changes, END)
    return pair


@pytest.mark.parametrize("bytes_max", [1, 100, 10**6])
def test_rows_tombstones_and_position_are_as_they_were(pair: Pair, bytes_max: int) -> None:
    filled(pair).transfer(bytes_max, P1)
    with pair.source.snapshot() as given, pair.target.snapshot() as got:
        for number in range(41):
            key = b"%04d" % number
            assert got.get_stored(TO, P1, key) == given.get_stored(FROM, P1, key)
        rows = got.range(TO, P1, start=b"", end=None, limit=99)
        assert rows == given.range(FROM, P1, start=b"", end=None, limit=99)
        assert len(rows) == 26
        found = got.position(TO, P1)
        assert found is not None
        assert (found.next_offset, found.as_of_ms, found.phase) == (90, 50, Phase.RESTORING)
        assert (found.source_offsets, found.lineage, found.history_start) == (END.source_offsets, END.lineage, 90)
        assert got.history(TO, P1, start=Offset(0), limit=9) == []
        assert got.position(TO, P0) is None


def test_parts_are_as_long_as_asked_for_and_one_row_at_least(pair: Pair) -> None:
    filled(pair)
    assert [len(part.keys) for part in pair.rows(1)] == [1] * 40
    assert 1 < max(len(part.keys) for part in pair.rows(200)) < 10
    assert [len(part.keys) for part in pair.rows(10**6)] == [40]


def test_an_empty_partition_has_no_parts(pair: Pair) -> None:
    pair.source.apply(FROM, P0, [], END)
    assert pair.rows(100) == []
    pair.transfer()
    with pair.target.snapshot() as snapshot:
        assert snapshot.range(TO, P0, start=b"", end=None, limit=9) == []
        assert snapshot.position(TO, P0) is not None


def test_before_the_end_there_is_no_position(pair: Pair) -> None:
    for part in filled(pair).rows(100):
        pair.target.put_transferred(TO, P0, part, time_ms=50)
    with pair.target.snapshot() as snapshot:
        assert snapshot.position(TO, P0) is None
    assert TO in pair.target.store_ids()
    while not pair.target.drop_partition(TO, P0, limit=5):
        pass
    assert pair.target.store_ids() == set()


def test_what_comes_next_is_held_against_transferred_rows(pair: Pair) -> None:
    filled(pair).transfer()
    changes = [change(90, b"0001", 4, b"stale"), change(91, b"0002", 6, b"newer"), change(92, b"0003", 5, None)]
    applied, stale = pair.target.apply(TO, P0, changes, position(93))
    assert (applied, [each.offset for each in stale]) == (1, [90, 92])
    with pair.target.snapshot() as snapshot:
        assert snapshot.get(TO, P0, b"0001") == b"row0000001"
        assert snapshot.get(TO, P0, b"0002") == b"newer"


def test_tombstones_are_as_old_as_the_transfer(pair: Pair) -> None:
    filled(pair).transfer()
    assert pair.target.drop_tombstones(TO, P0, before_ms=50, limit=99) == 0
    assert pair.target.drop_tombstones(TO, P0, before_ms=51, limit=99) == 14
    with pair.target.snapshot() as snapshot:
        assert snapshot.get_stored(TO, P0, b"0003") is None


def test_pending_repairs_go_along(pair: Pair) -> None:
    filled(pair)
    pair.source.apply(FROM, P0, [change(91, b"0001", 2, b"stale")], position(92))
    pair.transfer()
    found = pair.target.repairs(TO, P0, limit=9)
    assert [(each.key, each.offset) for each in found] == [(b"0001", 1)]
    assert found == pair.source.repairs(FROM, P0, limit=9)
    assert pair.target.repairs(TO, P1, limit=9) == []


def test_indexes_have_the_transferred_rows(pair: Pair) -> None:
    written = Written(pair.source, 1)
    for _ in range(5):
        written.write_some()
    pair.target.keep_indexes(TO, TABLE.row_indexes)
    pair.transfer(200)
    for index in TABLE.indexes:
        with pair.target.snapshot() as snapshot:
            found = snapshot.index_range(TO, P0, index, start=b"", end=None, limit=10_000)
        assert found == entries_of(index, written.rows), index.name
        assert found, index.name


def test_of_rows_whose_index_keys_cannot_be_made_none_is_stored(pair: Pair) -> None:
    filled(pair)
    pair.target.keep_indexes(TO, TABLE.row_indexes)
    with pytest.raises(DecodeError):
        pair.transfer()
    assert pair.target.store_ids() == set()


def test_a_full_disk_takes_nothing_and_all_of_it_later(pair: Pair) -> None:
    parts = filled(pair).rows(100)
    pair.is_full = True
    with pytest.raises(StoreFull):
        pair.target.put_transferred(TO, P0, parts[0], time_ms=50)
    with pytest.raises(StoreFull):
        pair.target.end_transfer(TO, P0, [], END.in_phase(Phase.RESTORING))
    assert pair.target.store_ids() == set()
    pair.is_full = False
    pair.transfer()
    with pair.target.snapshot() as snapshot:
        assert len(snapshot.range(TO, P0, start=b"", end=None, limit=99)) == 26
