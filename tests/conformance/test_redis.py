"""What only the Redis store does: it is read beside its writer, survives Redis's deaths, and sees what Redis lost."""

import random
import socket
import struct
import threading
from itertools import count

import pytest

from tablegate.examples.demo.kafka import free_port
from tablegate.gateway.contract.types import Offset, StoreId
from tablegate.gateway.stores.base import (
    Phase,
    StoreFull,
    StoreUnavailable,
    StoreWentBack,
    StoreWriter,
)
from tablegate.gateway.stores.redis.connection import BadRedisUrl, parse_address
from tablegate.gateway.stores.redis.layout import Keys, parse_partition_name
from tablegate.gateway.stores.redis.store import STATUSES_PER_POLICY_CHECK, RedisReader, RedisStore, wipe
from tablegate.internal.v1.store_pb2 import TableState
from tablegate.v1.changelog_pb2 import Manifest
from tests.kit.programs.redis import RedisServer, needs_redis
from tests.kit.store.batches import ID, P0, P1, apply_batches, expected_rows, fill, rows_of, stored_position
from tests.kit.store.changes import change, position
from tests.kit.store.crash_writer import batch_of
from tests.kit.store.memory import MemoryStore

pytestmark = needs_redis

SECRET = "correct-horse"


# Who may use which Redis.


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_redis_that_evicts_is_refused(own_redis_server: RedisServer, policy: str) -> None:
    own_redis_server.run("CONFIG", "SET", "maxmemory-policy", policy)
    for kind in (RedisStore, RedisReader):
        with pytest.raises(StoreUnavailable, match=f'"{policy}": set maxmemory-policy to noeviction'):
            kind(own_redis_server.new_url())


def test_a_redis_that_begins_to_evict_is_noticed(own_redis_server: RedisServer) -> None:
    store = RedisStore(own_redis_server.new_url())
    own_redis_server.run("CONFIG", "SET", "maxmemory-policy", "allkeys-lfu")
    for _ in range(STATUSES_PER_POLICY_CHECK - 1):
        store.set_status(b"up")
    with pytest.raises(StoreUnavailable, match="may evict rows"):
        store.set_status(b"up")


def test_a_reader_waits_for_its_writer(redis_server: RedisServer) -> None:
    url = redis_server.new_url()
    with pytest.raises(StoreUnavailable, match=r"there is no store in Redis at .* yet"):
        RedisReader(url)
    RedisStore(url).close()
    RedisReader(url).close()


def test_another_format_is_refused(redis_server: RedisServer) -> None:
    url = redis_server.new_url()
    store = RedisStore(url)
    store.apply(ID, P0, [change(0, b"a", 1, b"a")], position(1))
    redis_server.run("HSET", Keys(parse_address(url).prefix, "").store, "format", "99")
    with pytest.raises(StoreUnavailable, match="has format 99, this version writes 5: give it another prefix"):
        RedisStore(url)
    with pytest.raises(StoreUnavailable):
        RedisReader(url)
    wipe(url)
    assert not store.is_current()
    assert stored_position(RedisStore(url)) is None


def test_a_wipe_leaves_nothing_of_its_prefix_and_all_of_others(own_redis_server: RedisServer) -> None:
    stores = [RedisStore(own_redis_server.url(prefix=name)) for name in ("one", "two")]
    for store in stores:
        fill(store)
    reader = RedisReader(own_redis_server.url(prefix="one"))
    wipe(own_redis_server.url(prefix="one"))
    assert not reader.is_current()
    assert {key.partition(b":")[0] for key in own_redis_server.run("KEYS", "*")} == {b"two"}
    with stores[1].snapshot() as snapshot:
        assert snapshot.get(ID, P0, b"a") == b"2"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://localhost", "is none of Redis: use redis://host:6379/0"),
        ("redis://host:port/0", "is none of Redis"),
        ("localhost:6379", "is none of Redis"),
        ("unix://", "is none of Redis"),
        ("redis://h?prefix={a}", "the prefix of a Redis URL .* has a space or a brace"),
        ("redis://h?prefix=", "the prefix of a Redis URL is empty"),
        ("redis://h?nonsense=1", "has an option that Redis connections have not: after [?] give prefix=NAME"),
        ("redis://h/ratings?prefix=a", "the database in the URL of the store is no number"),
    ],
)
def test_a_url_that_names_no_redis_is_refused(url: str, why: str) -> None:
    with pytest.raises(BadRedisUrl, match=why):
        parse_address(url)


def test_a_redis_that_lacks_what_reads_send_is_refused_by_the_writer() -> None:
    with RedisServer("--rename-command", "EVALSHA_RO", "") as server:  # as Redis 6 answers
        for kind in (RedisStore, RedisReader):
            with pytest.raises(StoreUnavailable, match=r"is too old \(.*EVALSHA_RO.*\): Redis 7.0 or newer is needed"):
                kind(server.new_url())


def test_a_database_that_is_not_there_is_told(redis_server: RedisServer) -> None:
    with pytest.raises(StoreUnavailable, match="has no database of that number: name another"):
        RedisStore(redis_server.url(db=99))


def test_a_node_of_a_cluster_that_has_no_slots_is_told() -> None:
    with RedisServer("--cluster-enabled", "yes") as server, pytest.raises(StoreUnavailable, match="no node serves"):
        RedisStore(server.new_url())


def test_a_server_that_is_no_redis_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_answer_as_a_web_server, args=(listener,))
        thread.start()
        with pytest.raises(StoreUnavailable, match=r"is something else than Redis .* check the address"):
            RedisStore(f"redis://127.0.0.1:{listener.getsockname()[1]}/0")
        thread.join()


def _answer_as_a_web_server(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(1_024)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        connection.recv(1_024)


def test_no_message_has_the_password() -> None:
    with RedisServer(port=True, password=SECRET) as server:
        url = server.url().replace("redis://", f"redis://:{SECRET}@")
        RedisStore(url).close()
        wrong = url.replace(SECRET, SECRET[:-1])
        with pytest.raises(StoreUnavailable, match="refuses the user or the password") as refused:
            RedisStore(wrong)
        assert SECRET[:-1] not in f"{refused.value}{parse_address(wrong)!r}"
        store = RedisStore(url)
        server.kill()
        with pytest.raises(StoreUnavailable, match=r"Redis at 127.0.0.1:\d+ does not answer") as gone:
            store.new_store_id()
        assert SECRET not in f"{gone.value}{parse_address(url)!r}"


def test_a_replica_takes_no_writes(own_redis_server: RedisServer) -> None:
    store = RedisStore(own_redis_server.new_url())
    own_redis_server.run("REPLICAOF", "127.0.0.1", "1")
    own_redis_server.run("CONFIG", "SET", "replica-serve-stale-data", "yes")
    with pytest.raises(StoreUnavailable, match="is a replica and takes no writes"):
        store.apply(ID, P0, [], position(1))


# A Redis that comes and goes.


def test_a_lost_connection_and_lost_scripts_are_nothing(own_redis_server: RedisServer) -> None:
    url = own_redis_server.new_url()
    store, reader = RedisStore(url), RedisReader(url)
    apply_batches(store, 0, 1)
    own_redis_server.run("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    apply_batches(store, 1, 2)
    own_redis_server.run("SCRIPT", "FLUSH")
    apply_batches(store, 2, 3)
    own_redis_server.run("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert rows_of(reader) == expected_rows(3)


def test_a_redis_that_is_gone_is_no_missing_row(own_redis_server: RedisServer) -> None:
    url = own_redis_server.new_url()
    store, reader = RedisStore(url), RedisReader(url)
    store.apply(ID, P0, [change(0, b"a", 1, b"1")], position(1))
    with reader.snapshot() as snapshot:
        assert snapshot.get(ID, P0, b"a") == b"1"
        own_redis_server.kill()
        with pytest.raises(StoreUnavailable, match="see that it runs"):
            snapshot.get(ID, P0, b"a")
    with reader.snapshot() as snapshot, pytest.raises(StoreUnavailable):
        snapshot.table("ratings")
    assert reader.is_current()


def write_on(store: RedisStore, first: int) -> int:
    """Apply batches from `first` on until Redis is gone; return the number after the last."""
    number = first
    try:
        while True:
            apply_batches(store, number, number + 1)
            number += 1
    except StoreWentBack:
        raise
    except StoreUnavailable:
        return number


@pytest.mark.tools
@pytest.mark.parametrize("policy", ["always", "everysec"])
def test_a_redis_killed_at_any_moment_has_a_prefix(policy: str) -> None:
    """With its log on, kill -9 at a random command: what is there are the first n batches, position and all.

    Synced each second, the log may lack what was acknowledged last: then the writer is told.
    """
    random_ = random.Random(7)
    with RedisServer("--appendonly", "yes", "--appendfsync", policy) as server:
        store = RedisStore(server.new_url(), history_changes_max=10**9)
        batches, seen = 0, set()
        for _ in range(5):
            server.kill_after_bytes(random_.randrange(1_000, 200_000))
            written = write_on(store, batches)
            server.start()
            server.until(lambda: store.is_current() and store.store_ids())
            batches = check_prefix(store)
            if batches < written:
                assert policy == "everysec"
                with pytest.raises(StoreWentBack):
                    store.set_status(b"up")
            else:
                assert batches <= written + 1  # the last one may have been done, though nobody was told
                store.set_status(b"up")
            seen.add(batches)
        assert len(seen) > 2
        store.close()


def check_prefix(store: RedisStore) -> int:
    """Return how many batches are stored, after a look that nothing else is."""
    found = stored_position(store)
    assert found is not None
    batches = found.source_offsets["batch", 0]
    assert found.next_offset == batch_of(batches - 1)[1].next_offset
    assert rows_of(store) == expected_rows(batches)
    with store.snapshot() as snapshot:
        kept = [each.offset for each in snapshot.history(ID, P0, start=Offset(0), limit=10**6)]
    assert kept == list(range(found.next_offset))
    return batches


@pytest.mark.parametrize("notice", ["apply", "expire", "status"])
def test_what_a_failover_lost_is_noticed_and_fetched_again(own_redis_server: RedisServer, notice: str) -> None:
    store = RedisStore(own_redis_server.new_url())
    apply_batches(store, 0, 5)
    own_redis_server.run("SAVE")
    apply_batches(store, 5, 9)
    own_redis_server.kill()
    own_redis_server.start()  # with what it saved: four batches are lost
    with pytest.raises(StoreWentBack, match="it lost writes"):
        notice_loss(store, notice)
    found = stored_position(store)
    assert found is not None
    assert found.source_offsets["batch", 0] == 5
    assert rows_of(store) == expected_rows(5)
    apply_batches(store, 5, 10)
    store.set_status(b"up")
    assert rows_of(store) == expected_rows(10)


def notice_loss(store: RedisStore, how: str) -> None:
    if how == "apply":
        apply_batches(store, 9, 10)
    elif how == "expire":
        store.expire(ID, P0, [b"a"], time_ms=0)
    else:
        store.set_status(b"up")


@pytest.mark.parametrize("notice", ["apply", "expire", "status"])
def test_a_flush_is_noticed_by_writer_and_reader(own_redis_server: RedisServer, notice: str) -> None:
    url = own_redis_server.new_url()
    store = RedisStore(url)
    reader = RedisReader(url)
    apply_batches(store, 0, 9)
    own_redis_server.flush()
    assert not reader.is_current()
    assert stored_position(reader) is None
    with pytest.raises(StoreWentBack):
        notice_loss(store, notice)
    assert stored_position(store) is None
    assert not reader.is_current()
    assert RedisReader(url).is_current()
    apply_batches(store, 0, 10)
    store.set_status(b"up")
    assert rows_of(store) == expected_rows(10)


def test_a_flush_of_a_store_without_rows_is_noticed(own_redis_server: RedisServer) -> None:
    url = own_redis_server.new_url()
    store = RedisStore(url)
    own_redis_server.flush()
    with pytest.raises(StoreWentBack):
        store.set_status(b"up")
    assert RedisReader(url).is_current()


def test_a_lost_table_is_noticed(own_redis_server: RedisServer) -> None:
    store = RedisStore(own_redis_server.new_url())
    store.put_table("ratings", TableState(store_id=1))
    own_redis_server.run("SAVE")
    store.put_table("ratings", TableState(store_id=2))
    store.set_status(b"up")
    own_redis_server.kill()
    own_redis_server.start()
    with pytest.raises(StoreWentBack):
        store.set_status(b"up")
    with store.snapshot() as snapshot:
        assert snapshot.table("ratings") == TableState(store_id=1)
    store.set_status(b"up")


def test_a_lost_phase_is_noticed(own_redis_server: RedisServer) -> None:
    store = RedisStore(own_redis_server.new_url())
    store.apply(ID, P0, [], position(1, phase=Phase.CATCHING_UP))
    own_redis_server.run("SAVE")
    store.apply(ID, P0, [], position(1))
    own_redis_server.kill()
    own_redis_server.start()
    with pytest.raises(StoreWentBack):
        store.set_status(b"up")


def fill_up(store: RedisStore) -> tuple[int, str]:
    """Apply batches of ten rows of 1 KB until there is no room; return how many were applied, and the error."""
    for number in count():
        first = number * 10
        rows = [change(first + i, struct.pack(">I", first + i), 1, b"x" * 1_000) for i in range(10)]
        try:
            store.apply(ID, P0, rows, position(first + 10))
        except StoreFull as error:
            return number, str(error)
    raise AssertionError


def test_a_full_redis_applies_nothing_and_can_be_swept(own_redis_server: RedisServer) -> None:
    url = own_redis_server.new_url()
    store, reader = RedisStore(url), RedisReader(url)
    used = int(own_redis_server.client.info("memory")["used_memory"])
    own_redis_server.run("CONFIG", "SET", "maxmemory", str(used + 4_000_000))
    number, why = fill_up(store)
    assert why.endswith("has no room for the store: raise its maxmemory")
    assert len(rows_of(reader)) == number * 10
    found = stored_position(reader)
    assert found is not None
    assert found.next_offset == number * 10
    assert store.expire(ID, P0, [struct.pack(">I", i) for i in range(number * 5)], time_ms=0) == number * 5
    own_redis_server.run("CONFIG", "SET", "maxmemory", "0")
    store.apply(ID, P0, [change(number * 10, b"last", 1, b"x")], position(number * 10 + 1))
    assert len(rows_of(reader)) == number * 5 + 1


@pytest.mark.parametrize("lost", [("rows",), ("order",), ("tombstones",), ("rows", "order")], ids=" ".join)
def test_keys_that_redis_lost_are_no_missing_rows(own_redis_server: RedisServer, lost: tuple[str, ...]) -> None:
    """As those that it has evicted, until somebody set its policy right."""
    url = own_redis_server.new_url()
    store, reader = RedisStore(url), RedisReader(url)
    rows = [change(number, b"%d" % number, 1, b"row") for number in range(9)]
    store.apply(ID, P0, [*rows, change(9, b"deleted", 1, None)], position(10))
    for name in lost:
        [key] = own_redis_server.run("KEYS", f"*{{1/0}}:{name}")
        own_redis_server.run("DEL", key)
    with reader.snapshot() as snapshot, pytest.raises(StoreUnavailable, match="has lost keys"):
        snapshot.get(ID, P0, b"4" if "rows" in lost else b"never there")
    with reader.snapshot() as snapshot, pytest.raises(StoreUnavailable, match="has lost keys"):
        snapshot.range(ID, P0, start=b"", end=None, limit=100)
    with pytest.raises(StoreWentBack):
        store.set_status(b"up")
    assert stored_position(reader) is None
    store.apply(ID, P0, rows, position(10))
    store.set_status(b"up")
    assert len(rows_of(reader)) == len(rows)
    store.close()
    reader.close()


@pytest.mark.parametrize("then", ["nothing", "apply", "expire"])
def test_a_history_that_redis_lost_misses_no_change_in_silence(own_redis_server: RedisServer, then: str) -> None:
    url = own_redis_server.new_url()
    store, reader = RedisStore(url), RedisReader(url)
    store.apply(ID, P0, [change(number, b"%d" % number, 1, b"row") for number in range(9)], position(9))
    [key] = own_redis_server.run("KEYS", "*{1/0}:history")
    own_redis_server.run("DEL", key)
    if then == "apply":
        store.apply(ID, P0, [change(9, b"9", 1, b"row")], position(10))
    elif then == "expire":
        store.expire(ID, P0, [b"4"], time_ms=0)
    with reader.snapshot() as snapshot:
        if then == "nothing":
            with pytest.raises(StoreUnavailable, match="has lost keys"):
                snapshot.history(ID, P0, start=Offset(4), limit=100)
        else:  # who is behind where it begins is told so
            found = snapshot.position(ID, P0)
            assert found is not None
            assert found.history_start == 9
            assert [each.offset for each in snapshot.history(ID, P0, start=Offset(9), limit=100)] == [9]
    if then == "nothing":
        with pytest.raises(StoreWentBack):
            store.set_status(b"up")
    else:
        store.set_status(b"up")
    store.close()
    reader.close()


@pytest.mark.tools
def test_everything_runs_in_a_cluster() -> None:
    """A key outside of a script's or transaction's one slot would be an error; what is read shows that all ran."""
    with RedisServer("--cluster-enabled", "yes", "--cluster-port", str(free_port()), port=True) as server:
        server.run("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        server.until(lambda: b"cluster_state:ok" in server.run("CLUSTER", "INFO"))
        store = RedisStore(server.url(), history_changes_max=5)
        reader = RedisReader(server.url())
        memory = MemoryStore(history_changes_max=5)
        for each in (store, memory):
            use_everything(each)
        with memory.snapshot() as expected, reader.snapshot() as found:
            assert found.table("ratings") == expected.table("ratings")
            assert found.status() == expected.status()
            for place in ((ID, P0), (ID, P1), (StoreId(2), P0)):
                assert found.position(*place) == expected.position(*place)
                assert found.range(*place, start=b"", end=None, limit=9) == expected.range(
                    *place, start=b"", end=None, limit=9
                )
                assert found.history(*place, start=Offset(0), limit=9) == expected.history(
                    *place, start=Offset(0), limit=9
                )
        slots: dict[object, set[int]] = {}
        for key in server.run("KEYS", "*"):
            tag = key.partition(b"{")[2].partition(b"}")[0]
            place = tag if tag == b"tables" else parse_partition_name(tag)
            slots.setdefault(place, set()).add(server.run("CLUSTER", "KEYSLOT", key))
        assert len(slots) == 3
        assert all(len(of_place) == 1 for of_place in slots.values())
        wipe(server.url())
        assert server.run("KEYS", "*") == []


def use_everything(store: StoreWriter) -> None:
    store.put_table("ratings", TableState(store_id=1, manifest=Manifest(partition_count=2)))
    store.new_store_id()
    for place in ((ID, P0), (ID, P1), (StoreId(2), P0)):
        store.apply(*place, [change(0, b"a", 1, b"1"), change(1, b"b", 1, None)], position(2, phase=Phase.RESTORING))
        store.apply(*place, [change(2 + i, bytes([i]), 1, b"x") for i in range(9)], position(11))
    store.expire(ID, P0, [b"a"], time_ms=9)
    store.drop_tombstones(ID, P0, before_ms=9, limit=9)
    with store.snapshot() as snapshot:
        store.apply(ID, P0, [change(11, b"c", 1, b"c")], position(12))
        assert snapshot.get(ID, P0, b"c") is None
    while not store.drop(StoreId(2), limit=3):
        pass
    assert store.store_ids() == {ID}
    store.set_status(b"up")
