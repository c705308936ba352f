from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tablegate.gateway.stores.base import StoreWriter
from tablegate.gateway.stores.changes import NotifyingStore
from tablegate.gateway.stores.lmdb.environment import FREE_BYTES_MIN
from tablegate.gateway.stores.lmdb.store import LmdbStore
from tests.kit.store.memory import MemoryStore
from tests.kit.store.opened import HISTORY_CHANGES_MAX, FillingRedis, OpenStore

if TYPE_CHECKING:
    from tests.kit.programs.object_store import ObjectStore, OpenObjects


@pytest.fixture(params=["memory", "lmdb", "redis", "redis-nodes", "notifying"])
def store_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


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
        elif store_kind == "redis-nodes":
            store = FillingRedis(request.getfixturevalue("redis_nodes"), is_full)
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


@pytest.fixture(scope="session")
def object_stores() -> Iterator[Callable[[str], "ObjectStore"]]:
    """Return what gives an object store of a kind, started where it is first asked for."""
    from tests.kit.programs.object_store import OBJECT_STORES  # takes seconds

    with ExitStack() as running:
        yield cache(lambda kind: running.enter_context(OBJECT_STORES[kind]()))


@pytest.fixture
def open_objects(object_stores: Callable[[str], "ObjectStore"], monkeypatch: pytest.MonkeyPatch) -> "OpenObjects":
    """Return what opens the objects of a folder of its own, in a store of a kind."""
    from tests.kit.programs.object_store import OpenObjects

    return OpenObjects(object_stores, monkeypatch.setenv)
