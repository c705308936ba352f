"""A store that a worker watches: it comes, goes away, hangs, is made anew, and the worker is never kept for long."""

import threading
from collections.abc import Iterator

import pytest

from tablegate.gateway.server.worker import WatchedStore
from tablegate.gateway.stores.base import StoreReader, StoreUnavailable
from tests.kit.gateway_processes.gateway import soon
from tests.kit.store.breaking import BreakingStore
from tests.kit.store.memory import MemoryStore


class Opened:
    """Stores in memory; those that are opened have one that can be taken away. While it `hangs`, opening waits."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.is_there = True
        self.hangs = threading.Event()
        self.hangs.set()
        self.opened: list[BreakingStore] = []

    def open(self) -> StoreReader:
        self.hangs.wait()
        if not self.is_there:
            raise StoreUnavailable("there is none")
        self.opened.append(BreakingStore(self.store))
        return self.opened[-1]

    def watched(self) -> WatchedStore:
        return WatchedStore(self.open, open_every_s=0.01)


@pytest.fixture
def opened() -> Iterator[Opened]:
    opened = Opened()
    yield opened
    opened.is_there = True
    opened.hangs.set()


def status(watched: WatchedStore) -> bytes:
    with watched.snapshot() as snapshot:
        return snapshot.status()


def can_be_read(watched: WatchedStore) -> bool:
    watched.refresh()
    try:
        status(watched)
    except StoreUnavailable:
        return False
    return True


def test_a_store_that_is_there_is_open_at_once(opened: Opened) -> None:
    watched = opened.watched()
    with pytest.raises(StoreUnavailable, match="is not open yet"):
        status(watched)
    opened.store.set_status(b"s")
    watched.refresh()
    watched.refresh()
    assert (status(watched), len(opened.opened)) == (b"s", 1)
    watched.close()


def test_a_store_that_comes_is_opened(opened: Opened) -> None:
    opened.is_there = False
    watched = opened.watched()
    for _ in range(3):
        watched.refresh()
        with pytest.raises(StoreUnavailable, match="there is none"):
            status(watched)
    opened.is_there = True
    soon(lambda: can_be_read(watched), "it is opened")
    watched.close()


def test_a_store_that_goes_away_is_not_asked_until_it_is_back(opened: Opened) -> None:
    watched = opened.watched()
    watched.refresh()
    [first] = opened.opened
    opened.is_there = False
    first.breaks(["status"])
    watched.refresh()
    first.mends()
    for _ in range(3):
        watched.refresh()
        with pytest.raises(StoreUnavailable, match="the store is away"):
            status(watched)
    opened.is_there = True
    soon(lambda: can_be_read(watched), "it is opened again")
    assert len(opened.opened) == 2
    watched.close()


def test_a_store_that_hangs_keeps_nobody_waiting(opened: Opened) -> None:
    watched = opened.watched()
    watched.refresh()
    opened.opened[0].breaks(["status"])
    opened.hangs.clear()
    for _ in range(3):
        watched.refresh()  # returns, though opening does not
        with pytest.raises(StoreUnavailable):
            status(watched)
    opened.hangs.set()
    soon(lambda: can_be_read(watched), "it is opened again")
    watched.close()


def test_a_store_that_is_made_anew_is_opened_at_once(opened: Opened) -> None:
    watched = opened.watched()
    watched.refresh()
    opened.opened[0].is_old = True
    opened.store = MemoryStore()
    opened.store.set_status(b"new")
    watched.refresh()
    assert status(watched) == b"new"
    watched.close()


def test_each_opening_is_said_once(opened: Opened) -> None:
    """The worker says then that everything may have changed: no notification of this store may come."""
    watched = opened.watched()
    assert [watched.refresh() for _ in range(3)] == [True, False, False]
    opened.opened[0].is_old = True
    assert [watched.refresh() for _ in range(3)] == [True, False, False]
    opened.is_there = False
    opened.opened[1].breaks(["status"])
    assert [watched.refresh() for _ in range(3)] == [False, False, False]
    opened.is_there = True
    soon(watched.refresh, "it is opened again")
    assert not watched.refresh()
    watched.close()
