"""The store in a Redis of several nodes, while slots move, nodes die and copies take over."""

import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from redis.crc import key_slot

from tablegate.gateway.contract.types import Partition, StoreId
from tablegate.gateway.stores.base import StoreUnavailable, StoreWentBack
from tablegate.gateway.stores.redis.connection import (
    REST_MAX_S,
    REST_S,
    BadRedisUrl,
    RedisConnection,
    parse_address,
)
from tablegate.gateway.stores.redis.layout import Keys, StoredPartition
from tablegate.gateway.stores.redis.nodes import RedisNodes, connect
from tablegate.gateway.stores.redis.store import STATUSES_PER_POLICY_CHECK, RedisReader, RedisStore, wipe
from tests.kit.programs.redis import RedisNodeServers, RedisServer, needs_redis
from tests.kit.store.batches import ID, P0, apply_batches, expected_rows, rows_of
from tests.kit.store.changes import change, position

pytestmark = [needs_redis, pytest.mark.tools]

PARTITIONS = 12


def slot_of(url: str, store_id: StoreId = ID, partition: Partition = P0) -> int:
    keys = Keys(parse_address(url).prefix, "").of(StoredPartition(store_id, partition))
    return key_slot(keys.rows.encode())


def move_slot(slot: int, source: RedisServer, target: RedisServer, nodes: RedisNodeServers) -> Iterator[str]:
    """Move a slot as `redis-cli --cluster reshard` does, and yield after each step."""
    target.run("CLUSTER", "SETSLOT", slot, "IMPORTING", nodes.id_of(source))
    source.run("CLUSTER", "SETSLOT", slot, "MIGRATING", nodes.id_of(target))
    yield "before its keys"
    while keys := source.raw("CLUSTER", "GETKEYSINSLOT", slot, 1):
        source.run("MIGRATE", "127.0.0.1", target.port, "", 0, 5_000, "KEYS", *keys)
        yield f"after {keys[0].decode()}"
    for server in (target, source, *nodes.servers):
        if server in nodes.servers[:3]:
            server.run("CLUSTER", "SETSLOT", slot, "NODE", nodes.id_of(target))
    yield "after its keys"


def test_commands_are_answered_in_their_order(redis_nodes: RedisNodeServers) -> None:
    redis = connect(parse_address(redis_nodes.new_url()), timeout_s=3)
    assert isinstance(redis, RedisNodes)
    names = [f"{{{number}}}" for number in range(50)]
    assert redis.run(*(("SET", name, name) for name in names)) == [b"OK"] * 50
    commands = [command for name in names for command in (("GET", name), ("STRLEN", name))]
    assert redis.run(*commands) == [answer for name in names for answer in (name.encode(), len(name))]
    transaction = [("MULTI",), ("SET", "{1}", "x"), ("GET", "{1}"), ("EXEC",)]
    assert redis.run(("GET", "{0}"), *transaction, ("GET", "{2}")) == [
        b"{0}",
        b"OK",
        b"QUEUED",
        b"QUEUED",
        [b"OK", b"x"],
        b"{2}",
    ]
    redis.close()


def test_partitions_are_on_all_nodes(redis_nodes: RedisNodeServers) -> None:
    url = redis_nodes.new_url()
    store = RedisStore(url)
    for number in range(PARTITIONS):
        store.apply(ID, Partition(number), [change(0, b"key", 1, b"%d" % number)], position(1))
    reader = RedisReader(url)
    with reader.snapshot() as snapshot:
        assert [snapshot.get(ID, Partition(number), b"key") for number in range(PARTITIONS)] == [
            b"%d" % number for number in range(PARTITIONS)
        ]
    prefix = parse_address(url).prefix.encode()
    counts = [sum(key.startswith(prefix) for key in keys) for keys in redis_nodes.run("KEYS", "*")]
    assert all(counts)
    wipe(url)
    assert not any(key.startswith(prefix) for keys in redis_nodes.run("KEYS", "*") for key in keys)


def test_a_slot_that_moves_is_followed(redis_nodes: RedisNodeServers) -> None:
    """Between two steps of a move, what is answered is right; and what is refused is answered once it has moved."""
    url = redis_nodes.new_url()
    store, reader = RedisStore(url), RedisReader(url)
    apply_batches(store, 0, 5)
    source = redis_nodes.of_slot(slot_of(url))
    target = next(server for server in redis_nodes.servers if server is not source)
    applied, refused = 5, list[str]()
    for step in move_slot(slot_of(url), source, target, redis_nodes):
        try:
            apply_batches(store, applied, applied + 1)
        except StoreWentBack:
            raise
        except StoreUnavailable:
            refused.append(step)
        else:
            applied += 1
        try:
            assert rows_of(reader) == expected_rows(applied)
        except StoreUnavailable:
            refused.append(step)
    assert "after its keys" not in refused
    assert applied > 5
    apply_batches(store, applied, applied + 5)
    assert rows_of(reader) == expected_rows(applied + 5)


def test_a_copy_takes_over_from_a_node_that_dies(own_redis_nodes: RedisNodeServers) -> None:
    url = own_redis_nodes.url()
    store, reader = RedisStore(url), RedisReader(url)
    apply_batches(store, 0, 5)
    dying = own_redis_nodes.of_slot(slot_of(url))
    dying.run("WAIT", 1, 5_000)  # its copy has all of that
    dying.kill()
    survivor = next(server for server in own_redis_nodes.servers if server is not dying)
    with pytest.raises(StoreUnavailable, match="does not answer"):
        apply_batches(store, 5, 6)

    def goes_on() -> bool:
        store.set_status(b"up")
        apply_batches(store, 5, 6)
        return rows_of(reader) == expected_rows(6)

    survivor.until(goes_on)
    dying.start()  # it comes back as a copy, and says who has its slots
    survivor.until(lambda: b"role:slave" in dying.raw("INFO", "replication"))
    for each in (store, RedisStore(url)):
        apply_batches(each, 6, 7)
    assert rows_of(reader) == expected_rows(7)


def test_writes_that_a_failover_lost_are_noticed(own_redis_nodes: RedisNodeServers) -> None:
    url = own_redis_nodes.url()
    store = RedisStore(url)
    apply_batches(store, 0, 3)
    dying = own_redis_nodes.of_slot(slot_of(url))
    dying.run("WAIT", 1, 5_000)
    copy = own_redis_nodes.servers[own_redis_nodes.servers.index(dying) + 3]
    copy.process.send_signal(signal.SIGSTOP)
    dying.run("CLIENT", "KILL", "TYPE", "replica")
    apply_batches(store, 3, 4)
    dying.kill()
    copy.process.send_signal(signal.SIGCONT)

    def notices() -> bool:
        try:
            store.set_status(b"up")
        except StoreWentBack as error:
            return "it lost writes, as after a failover or a flush" in str(error)
        return False

    copy.until(notices)
    assert rows_of(store) == expected_rows(3)
    apply_batches(store, 3, 5)
    assert rows_of(store) == expected_rows(5)


def test_several_hosts_of_one_redis_are_refused() -> None:
    with (
        RedisServer(port=True) as alone,
        pytest.raises(StoreUnavailable, match="is not one of several nodes: name one"),
    ):
        RedisStore(f"redis://127.0.0.1:{alone.port},127.0.0.1:1/0?prefix=x")
    with pytest.raises(BadRedisUrl):
        parse_address("redis://127.0.0.1:1,/0")


def test_a_node_that_begins_to_evict_is_noticed(redis_nodes: RedisNodeServers) -> None:
    store = RedisStore(redis_nodes.new_url())
    last = redis_nodes.servers[2]
    last.run("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        for _ in range(STATUSES_PER_POLICY_CHECK - 1):
            store.set_status(b"up")
        with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{last.port} may evict rows"):
            store.set_status(b"up")
    finally:
        last.run("CONFIG", "SET", "maxmemory-policy", "noeviction")


@pytest.mark.parametrize(("has_others", "waits"), [(False, 2), (True, 1)])
def test_a_node_that_hangs_is_not_waited_for_again_at_once(has_others: bool, waits: int) -> None:
    """Else whoever asks for what other nodes have would wait behind that, nearly all of the time."""
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        url = f"redis://127.0.0.1:{hanging.getsockname()[1]}"
        node = RedisConnection(parse_address(url), timeout_s=REST_MAX_S, has_others=has_others)
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="does not answer"):
                node.run(("GET", "key"))
            time.sleep(2 * REST_S)
        hanging.setblocking(False)
        came = 0
        with suppress(BlockingIOError):
            while True:
                hanging.accept()[0].close()
                came += 1
        assert came == waits


def test_no_node_answers(own_redis_nodes: RedisNodeServers) -> None:
    store, reader = RedisStore(own_redis_nodes.url()), RedisReader(own_redis_nodes.url())
    apply_batches(store, 0, 2)
    for server in own_redis_nodes.servers:
        server.kill()
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match=r"Redis at 127\.0\.0\.1:\d+ does not answer"):
            apply_batches(store, 2, 3)
        with pytest.raises(StoreUnavailable):
            rows_of(reader)
    assert reader.is_current()
    with pytest.raises(StoreUnavailable):
        RedisStore(own_redis_nodes.url())
