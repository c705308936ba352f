"""The Redis store while several look at it: readers beside a writer, two writers, other programs."""

import random
import threading
from collections.abc import Callable

import pytest

from tablegate.gateway.contract.types import Offset, make_version
from tablegate.gateway.stores.base import (
    Phase,
    StoredRow,
    StoreUnavailable,
    StoreWriter,
)
from tablegate.gateway.stores.redis.store import RedisReader, RedisStore
from tablegate.internal.v1.store_pb2 import TableState
from tablegate.v1.changelog_pb2 import Manifest
from tests.kit.programs.redis import RedisServer, needs_redis
from tests.kit.store.batches import ID, P0, P1, apply_batches, fill, rows_of, stored_position
from tests.kit.store.changes import change, position
from tests.kit.store.crash_writer import KEYS, batch_of
from tests.kit.store.memory import MemoryStore

pytestmark = needs_redis

BATCHES = 300


def test_a_writer_that_is_behind_changes_nothing(redis_server: RedisServer) -> None:
    url = redis_server.new_url()
    ahead, behind = RedisStore(url, "a"), RedisStore(url, "b")
    apply_batches(behind, 0, 2)
    ahead.join(ID, P0)
    apply_batches(ahead, 2, 9)
    expired = [*rows_of(ahead)][:50]
    ahead.expire(ID, P0, expired, time_ms=0)
    ahead.drop_tombstones(ID, P0, before_ms=10**9, limit=10**6)
    before, rows = stored_position(ahead), rows_of(ahead)
    for number in range(2, 9):
        changes, moved_to = batch_of(number)
        assert behind.apply(ID, P0, changes, moved_to) == (0, [])
    assert behind.apply(ID, P0, [], batch_of(3)[1].in_phase(Phase.RESTORING)) == (0, [])
    assert (stored_position(ahead), rows_of(ahead)) == (before, rows)
    behind.set_status(b"up")
    apply_batches(behind, 9, 10)  # and goes on where it has caught up
    ahead.set_status(b"up")
    assert stored_position(ahead) != before


@pytest.mark.parametrize("sequence", [2**32 - 1, 2**32, 2**53, 2**64 - 2])
def test_versions_are_ordered_to_the_last_bit(redis_server: RedisServer, sequence: int) -> None:
    store = RedisStore(redis_server.new_url())
    versions = [sequence, sequence - 1, sequence + 1, sequence]
    changes = [change(offset, b"a", version, b"%d" % offset) for offset, version in enumerate(versions)]
    assert store.apply(ID, P0, changes, position(4)) == (2, [changes[1], changes[3]])
    assert store.apply(ID, P0, [change(4, b"a", 1, b"4")], position(5)).applied == 0
    assert rows_of(store) == {b"a": b"2"}


@pytest.mark.tools
def test_writers_that_overlap_come_to_what_one_comes_to(redis_server: RedisServer) -> None:
    """Two writers of batches of other sizes, in any order: rows and position never go back."""
    for seed in range(20):
        random_ = random.Random(seed)
        url = redis_server.new_url()
        changes = [each for number in range(8) for each in batch_of(number)[0]]
        writers = [(RedisStore(url, name), [0]) for name in "ab"]
        for store, _ in writers:
            store.join(ID, P0)
            store.apply(ID, P0, [], position(0))
        memory, reached = MemoryStore(), 0
        while reached < len(changes):
            store, at = random_.choice(writers)
            end = min(at[0] + random_.randrange(1, 60), len(changes))
            applied, stale = store.apply(ID, P0, changes[at[0] : end], position(end))
            assert applied == max(0, end - max(reached, at[0]))
            assert stale == []
            at[0], reached = end, max(reached, end)
            found = stored_position(store)
            assert found is not None
            assert found.next_offset == reached
        memory.apply(ID, P0, changes, position(len(changes)))
        assert rows_of(writers[0][0]) == rows_of(memory)
        for store, _ in writers:
            store.close()


@pytest.mark.tools
def test_a_snapshot_is_one_moment_whatever_is_written_after_it(redis_server: RedisServer) -> None:
    """Any run of writes after a snapshot looked: it reads what a snapshot in memory reads."""
    for seed in range(60):
        random_ = random.Random(seed)
        url = redis_server.new_url()
        store, reader, memory = RedisStore(url), RedisReader(url), MemoryStore()
        run = ManyWrites(random_, (store, memory))
        for _ in range(random_.randrange(6)):
            run.write()
        with reader.snapshot() as found, memory.snapshot() as expected:
            assert found.position(ID, P0) == expected.position(ID, P0)
            for _ in range(random_.randrange(4)):
                run.write()
                limit, descending = random_.randrange(8), random_.random() < 0.5
                start, end = random_.choice(run.names), random_.choice([None, *run.names])
                ranges = [
                    each.range(ID, P0, start=start, end=end, limit=limit, descending=descending)
                    for each in (found, expected)
                ]
                assert ranges[0] == ranges[1]
                assert found.get_many(ID, P0, run.names) == expected.get_many(ID, P0, run.names)
                first = Offset(random_.randrange(run.next_offset + 1))
                histories = [each.history(ID, P0, start=first, limit=limit) for each in (found, expected)]
                assert histories[0] == histories[1]
        store.close()
        reader.close()


class ManyWrites:
    """Random writes to stores that are to hold the same."""

    def __init__(self, random_: random.Random, stores: tuple[StoreWriter, ...]) -> None:
        self._random = random_
        self._stores = stores
        self.names = [bytes([number]) for number in range(12)]
        self.next_offset = 0

    def write(self) -> None:
        random_ = self._random
        if random_.random() < 0.3:
            expired = self._some()
            self._all(lambda store: store.expire(ID, P0, expired, time_ms=self.next_offset))
        elif random_.random() < 0.2:
            self._all(lambda store: store.drop_tombstones(ID, P0, before_ms=self.next_offset, limit=3))
        changes = []
        for key in self._some():
            row = None if random_.random() < 0.3 else random_.randbytes(3)
            changes.append(change(self.next_offset, key, self.next_offset + 1, row, time_ms=self.next_offset))
            self.next_offset += 1
        self._all(lambda store: store.apply(ID, P0, changes, position(self.next_offset)))

    def _some(self) -> list[bytes]:
        return self._random.choices(self.names, k=self._random.randrange(6))

    def _all(self, write: Callable[[StoreWriter], object]) -> None:
        first, *others = [write(store) for store in self._stores]
        assert all(other == first for other in others)


@pytest.mark.tools
def test_a_snapshot_is_one_moment_while_a_writer_writes(redis_server: RedisServer) -> None:
    """Position, rows and history that are read in several round trips are of one batch, whichever it was."""
    url = redis_server.new_url()
    store, reader, memory = RedisStore(url), RedisReader(url), MemoryStore()
    states = [rows_of(memory)]
    for number in range(BATCHES):
        apply_batches(memory, number, number + 1)
        states.append(rows_of(memory))
    apply_batches(store, 0, 1)
    was_read = threading.Event()

    def write() -> None:
        apply_batches(store, 1, BATCHES // 2)
        was_read.wait()
        apply_batches(store, BATCHES // 2, BATCHES)

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    while BATCHES not in seen:
        with reader.snapshot() as snapshot:
            found = snapshot.position(ID, P0)
            assert found is not None
            number = found.source_offsets["batch", 0]
            names = [key.to_bytes(2, "big") for key in range(KEYS)]
            rows = states[number]
            assert snapshot.get_many(ID, P0, names) == [rows.get(key) for key in names]
            assert dict(snapshot.range(ID, P0, start=b"", end=None, limit=KEYS)) == rows
            highest = snapshot.range(ID, P0, start=b"", end=None, limit=7, descending=True)
            assert highest == sorted(rows.items(), reverse=True)[:7]
            last = snapshot.history(ID, P0, start=Offset(found.next_offset - 3), limit=KEYS)
            assert [each.offset for each in last] == list(range(found.next_offset - 3, found.next_offset))
        seen.add(number)
        was_read.set()
    writer.join()
    assert len(seen) > 1


def test_a_row_that_changed_since_has_the_lowest_version(redis_server: RedisServer) -> None:
    url = redis_server.new_url()
    store, reader = RedisStore(url), RedisReader(url)
    store.apply(ID, P0, [change(0, b"a", 7, b"1"), change(1, b"b", 8, b"b")], position(2))
    with reader.snapshot() as snapshot:
        snapshot.position(ID, P0)
        store.apply(ID, P0, [change(2, b"a", 9, b"2")], position(3))
        assert snapshot.get_stored(ID, P0, b"a") == StoredRow(make_version(0, 0), b"1")
        assert snapshot.get_stored(ID, P0, b"b") == StoredRow(make_version(1, 8), b"b")


def lose_history(store: RedisStore) -> None:
    store.apply(ID, P0, [change(10 + i, b"a", 10 + i, b"x") for i in range(9)], position(20))


def lose_partition(store: RedisStore) -> None:
    while not store.drop(ID, limit=9):
        pass


def begin_restore(store: RedisStore) -> None:
    store.apply(ID, P0, [change(10, b"a", 10, b"x")], position(20, phase=Phase.RESTORING))


@pytest.mark.parametrize("lose", [lose_history, lose_partition, begin_restore])
def test_what_cannot_be_taken_back_is_no_answer(redis_server: RedisServer, lose: Callable[[RedisStore], None]) -> None:
    url = redis_server.new_url()
    store, reader = RedisStore(url, history_changes_max=5), RedisReader(url)
    fill(store)
    with reader.snapshot() as snapshot:
        snapshot.position(ID, P0)
        lose(store)
        for read in (
            lambda: snapshot.get(ID, P0, b"a"),
            lambda: snapshot.range(ID, P0, start=b"", end=None, limit=9),
            lambda: snapshot.history(ID, P0, start=Offset(0), limit=9),
        ):
            with pytest.raises(StoreUnavailable, match="changed while it was read: ask again"):
                read()


def test_a_table_and_its_positions_come_at_once(own_redis_server: RedisServer) -> None:
    """So that a Get takes two round trips. The server is its own: stores of other tests are let go at any time."""
    url = own_redis_server.new_url()
    store, reader = RedisStore(url), RedisReader(url)
    store.put_table("ratings", TableState(store_id=1, manifest=Manifest(partition_count=2)))
    fill(store)
    for known in (False, True):
        with reader.snapshot() as snapshot:
            sent = own_redis_server.client.info("stats")["total_reads_processed"]
            assert snapshot.table("ratings") is not None
            assert snapshot.position(ID, P0) is not None
            assert snapshot.position(ID, P1) is None
            assert snapshot.get(ID, P0, b"a") == b"2"
            trips = own_redis_server.client.info("stats")["total_reads_processed"] - sent - 1
            assert trips == (2 if known else 4)


def test_what_a_snapshot_of_the_writer_held_is_let_go(own_redis_server: RedisServer) -> None:
    store = RedisStore(own_redis_server.new_url())
    fill(store)
    with store.snapshot() as snapshot:
        store.apply(ID, P0, [change(4, b"b", 2, b"new")], position(5))
        assert snapshot.get(ID, P0, b"b") == b"b"
        assert own_redis_server.run("KEYS", "*:copy:*") != []
    assert own_redis_server.run("KEYS", "*:copy:*") == []


def test_the_history_is_a_stream_that_others_find_by_the_table(own_redis_server: RedisServer) -> None:
    store = RedisStore(own_redis_server.url())
    state = TableState(store_id=1, manifest=Manifest(table="ratings", partition_count=2))
    store.put_table("ratings", state)
    fill(store)
    store.expire(ID, P0, [b"b"], time_ms=90)
    name = own_redis_server.run("HGET", "tablegate:{tables}:ratings-stream", 0)
    assert own_redis_server.run("HLEN", "tablegate:{tables}:ratings-stream") == 2
    assert own_redis_server.client.xrange(name) == [
        (b"0-4294967295", {b"key": b"a", b"version": make_version(1, 1), b"time_ms": b"0", b"row": b"1"}),
        (
            b"1-4294967295",
            {b"key": b"a", b"version": make_version(1, 2), b"time_ms": b"0", b"row": b"2", b"before": b"1"},
        ),
        (b"2-4294967295", {b"key": b"b", b"version": make_version(1, 1), b"time_ms": b"0", b"row": b"b"}),
        (b"3-4294967295", {b"key": b"c", b"version": make_version(1, 1), b"time_ms": b"0"}),
        (b"4-1", {b"key": b"b", b"version": make_version(1, 1), b"time_ms": b"90", b"before": b"b"}),
    ]
    other = RedisStore(own_redis_server.url(), "b")
    other.put_table("ratings", TableState(manifest=state.manifest, problem="it is restored from the start"))
    other.put_table("ratings", TableState(store_id=7, manifest=state.manifest, problem="it is not for this contract"))
    other.put_table("ratings/next", TableState(store_id=8, manifest=state.manifest))
    assert own_redis_server.run("HGET", "tablegate:{tables}:ratings-stream", 0) == name
    assert own_redis_server.run("KEYS", "*-stream") == [b"tablegate:{tables}:ratings-stream"]
    state.store_id = 2
    store.put_table("ratings", state)
    assert own_redis_server.run("HGET", "tablegate:{tables}:ratings-stream", 0) == b"tablegate:{2/0}:history"
