from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tablegate.gateway.contract.types import Partition, StoreId
from tablegate.gateway.stores.base import Applied, Change, Position, StoreWriter
from tablegate.gateway.stores.changes import NotifyingStore
from tablegate.gateway.stores.lmdb.environment import FREE_BYTES_MIN
from tablegate.gateway.stores.lmdb.store import LmdbStore
from tablegate.gateway.stores.redis.store import RedisStore
from typing_extensions import override

from tests.kit.memory_store import MemoryStore
from tests.kit.redis import RedisServer

HISTORY_CHANGES_MAX = 5

OpenStore = Callable[..., StoreWriter]


@pytest.fixture(params=["memory", "lmdb", "redis", "notifying"])
def store_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class FillingRedis(RedisStore):
    """The store over a Redis whose memory is full while `is_full` says so and a batch comes."""

    def __init__(self, server: RedisServer, is_full: Callable[[], bool]) -> None:
        super().__init__(server.new_url(), history_changes_max=HISTORY_CHANGES_MAX)
        self._server = server
        self._is_full = is_full

    @override
    def apply(self, store_id: StoreId, partition: Partition, changes: Sequence[Change], position: Position) -> Applied:
        if not self._is_full():
            return super().apply(store_id, partition, changes, position)
        self._server.run("CONFIG", "SET", "maxmemory", "1")
        try:
            return super().apply(store_id, partition, changes, position)
        finally:
            self._server.run("CONFIG", "SET", "maxmemory", "0")


@pytest.fixture
def open_store(store_kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[OpenStore]:
    """Return a function that makes an empty store; `is_full` tells whether its disk is full."""
    stores: list[StoreWriter] = []

    def open_one(*, is_full: Callable[[], bool] = lambda: False) -> StoreWriter:
        def free_bytes() -> int:
            return 0 if is_full() else FREE_BYTES_MIN

        store: StoreWriter
        if store_kind in ("memory", "notifying"):
            store = MemoryStore(history_changes_max=HISTORY_CHANGES_MAX, free_bytes=free_bytes)
            if store_kind == "notifying":
                store = NotifyingStore(store, lambda _: None)
        elif store_kind == "redis":
            store = FillingRedis(request.getfixturevalue("redis_server"), is_full)
        else:
            path = tmp_path / str(len(stores))
            store = LmdbStore(path, history_changes_max=HISTORY_CHANGES_MAX, free_bytes=free_bytes)
        stores.append(store)
        return store

    yield open_one
    for store in stores:
        store.close()


@pytest.fixture
def store(open_store: OpenStore) -> StoreWriter:
    return open_store()
