"""The notifier: whoever reads and then waits misses nothing, and is not woken by what is not for it."""

import asyncio

import pytest

from tablegate.gateway.contract.types import Partition, StoreId
from tablegate.gateway.query.explain import reads_reader
from tablegate.gateway.query.service import table_accesses
from tablegate.gateway.stores.base import StoredPartition
from tablegate.gateway.stores.changes import StoreChanges
from tablegate.gateway.stores.notifier import Notifier
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import SIGNER, catalogue_of, now_ms

LONG_S = 1_000.0
ONE, OTHER, OTHER_STORE = (
    StoredPartition(StoreId(store_id), Partition(partition)) for store_id, partition in ((1, 0), (1, 1), (2, 0))
)


def changes(*partitions: StoredPartition, status: bool = False) -> StoreChanges:
    made = StoreChanges(status=status)
    for each in partitions:
        made.add(*each)
    return made


def test_a_notification_wakes_all_who_wait() -> None:
    async def talk() -> None:
        notifier = Notifier()
        waiting = [asyncio.ensure_future(notifier.wait(LONG_S)) for _ in range(3)]
        await asyncio.sleep(0)
        notifier.notify()
        notifier.notify()
        await asyncio.wait_for(asyncio.gather(*waiting), 10)

    asyncio.run(talk())


def test_a_notification_before_the_wait_wakes_nobody() -> None:
    async def talk() -> None:
        notifier = Notifier()
        notifier.notify()
        waiting = asyncio.ensure_future(notifier.wait(LONG_S))
        await asyncio.sleep(0)
        assert not waiting.done()
        notifier.notify()
        await asyncio.wait_for(waiting, 10)
        await asyncio.wait_for(notifier.wait(0.0), 10)
        await asyncio.wait_for(notifier.wait(0.0, [ONE]), 10)

    asyncio.run(talk())


@pytest.mark.parametrize("partitions", [None, [ONE]])
def test_who_is_cancelled_waits_no_more(partitions: list[StoredPartition] | None) -> None:
    async def talk() -> None:
        notifier = Notifier()
        waiting = asyncio.ensure_future(notifier.wait(LONG_S, partitions))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        notifier.notify()
        assert waiting.cancelled()

    asyncio.run(talk())


def test_who_waits_for_partitions_is_woken_by_these_alone() -> None:
    async def talk() -> None:
        notifier = Notifier()
        waiting = asyncio.ensure_future(notifier.wait(LONG_S, [ONE, OTHER]))
        of_anything = asyncio.ensure_future(notifier.wait(LONG_S))
        await asyncio.sleep(0)
        notifier.notify(changes(OTHER_STORE, status=True))
        await asyncio.wait_for(of_anything, 10)
        assert not waiting.done()
        notifier.notify(changes(OTHER_STORE, OTHER))
        await asyncio.wait_for(waiting, 10)

    asyncio.run(talk())


def test_all_are_woken_where_everything_may_have_changed() -> None:
    async def talk() -> None:
        notifier = Notifier()
        waiting = [asyncio.ensure_future(notifier.wait(LONG_S, [each])) for each in (ONE, ONE, OTHER_STORE)]
        waiting.append(asyncio.ensure_future(notifier.wait(LONG_S)))
        await asyncio.sleep(0)
        notifier.notify(StoreChanges.of_everything())
        await asyncio.wait_for(asyncio.gather(*waiting), 10)

    asyncio.run(talk())


def test_listeners_are_passed_what_has_changed() -> None:
    notifier, heard = Notifier(), list[StoreChanges]()
    notifier.listen(on_change=heard.append, on_shutdown=lambda: None)
    named = changes(ONE, status=True)
    notifier.notify(named)
    notifier.notify()
    assert heard == [named, StoreChanges.of_everything()]


def test_a_shutdown_is_a_notification_and_more() -> None:
    async def talk() -> None:
        notifier, heard = Notifier(), list[str]()
        notifier.listen(on_change=lambda _: heard.append("change"), on_shutdown=lambda: heard.append("shutdown"))
        waiting = [asyncio.ensure_future(notifier.wait(LONG_S, names)) for names in (None, [ONE])]
        await asyncio.sleep(0)
        notifier.notify(changes(OTHER))
        assert heard == ["change"]
        notifier.shutdown()
        assert heard == ["change", "change", "shutdown"]
        await asyncio.wait_for(asyncio.gather(*waiting), 10)

    asyncio.run(talk())


def test_explaining_leaves_nothing_that_hears_of_changes() -> None:
    notifier, catalogue = Notifier(), catalogue_of()
    store = MemoryStore()
    accesses = table_accesses(catalogue, store, SIGNER, notifier, ends=None, router=None, now_ms=now_ms)
    for query in catalogue.queries.values():
        reads_reader(query, accesses[query.table.name])
    assert not notifier._on_change
    assert not notifier._on_shutdown
