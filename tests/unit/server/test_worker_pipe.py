"""The pipe between replicator and worker: no change is missed, and the replicator never waits."""

import asyncio
import os
import random
import socket
import threading
from collections.abc import Iterator, Mapping

import pytest

from tablegate.gateway.contract.types import Partition, StoreId
from tablegate.gateway.kafka.log import LogUnavailable
from tablegate.gateway.query.call import EndsUnknown
from tablegate.gateway.server.worker_pipe import ReplicatorEnd, WorkerEnd, WorkerPipe, close_pipe, open_pipe
from tablegate.gateway.stores.base import StoredPartition
from tablegate.gateway.stores.changes import PARTITIONS_MAX, NotifyingStore, StoreChanges
from tablegate.gateway.stores.notifier import Notifier
from tests.kit.seeds import seeds
from tests.kit.store.changes import position
from tests.kit.store.memory import MemoryStore

STORE, OTHER = StoreId(1), StoreId(2**40)


def changes(*partitions: int, store_id: StoreId = STORE, status: bool = False) -> StoreChanges:
    made = StoreChanges(status=status)
    for partition in partitions:
        made.add(store_id, Partition(partition))
    return made


ENDS: list[ReplicatorEnd] = []  # that are open


@pytest.fixture
def pipe() -> Iterator[WorkerPipe]:
    """The parent's ends: those of the processes are copies of them."""
    made = open_pipe()
    yield made
    close_pipe(made)
    while ENDS:
        ENDS.pop().close()


def copy_of(fd: int) -> int:
    """Return the end that a process gets when it starts."""
    return os.dup(fd)


class Worker:
    """A worker's process, as far as its pipe goes. `heard` is what its notifier was told."""

    def __init__(self, pipe: WorkerPipe) -> None:
        self.heard: list[StoreChanges] = []
        notifier = Notifier()
        notifier.listen(on_change=self.heard.append, on_shutdown=lambda: None)
        self.end = WorkerEnd(copy_of(pipe.worker_fd), notifier)
        self.end.listen()

    async def hears(self) -> StoreChanges:
        """Return all that comes until it is silent."""
        for _ in range(3):
            await asyncio.sleep(0)
        heard = StoreChanges()
        for each in self.heard:
            heard.update(each)
        self.heard.clear()
        return heard


def replicator(*pipes: WorkerPipe) -> ReplicatorEnd:
    """Return the end of a replicator that has just started."""
    ENDS.append(ReplicatorEnd([copy_of(pipe.replicator_fd) for pipe in pipes]))
    return ENDS[-1]


def test_what_has_changed_arrives_as_it_was_named(pipe: WorkerPipe) -> None:
    async def talk() -> None:
        worker, end = Worker(pipe), replicator(pipe)
        named = changes(0, 7, 2**31, status=True)
        named.update(changes(3, store_id=OTHER))
        end.publish(named)
        assert await worker.hears() == named
        end.publish(StoreChanges())
        assert not await worker.hears()
        worker.end.close()

    asyncio.run(talk())


def test_what_comes_at_once_is_passed_on_as_one(pipe: WorkerPipe) -> None:
    async def talk() -> None:
        worker, end = Worker(pipe), replicator(pipe)
        end.publish(changes(1))
        end.publish(changes(2, store_id=OTHER))
        end.publish(changes(status=True))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(worker.heard) == 1
        assert set(await worker.hears()) == {
            StoredPartition(STORE, Partition(1)),
            StoredPartition(OTHER, Partition(2)),
        }
        worker.end.close()

    asyncio.run(talk())


def test_a_full_pipe_loses_nothing_and_keeps_nobody_waiting(pipe: WorkerPipe) -> None:
    """A worker hangs; the other hears everything meanwhile. What was refused comes with whatever is published next."""

    async def talk() -> None:
        other_pipe = open_pipe()
        hanging, other = Worker(pipe), Worker(other_pipe)
        end = replicator(pipe, other_pipe)
        asyncio.get_running_loop().remove_reader(hanging.end._socket)
        count = 3_000
        for number in range(count):
            end.publish(changes(number))
            if not number % 5:
                assert Partition(number) in (await other.hears()).partitions[STORE]
        hanging.end.listen()
        first = await hanging.hears()
        assert not first.everything
        assert len(first.partitions[STORE]) < count
        end.publish(StoreChanges())  # as when nothing has changed
        first.update(await hanging.hears())
        assert first == changes(*range(count))
        end.publish(StoreChanges())
        assert not await hanging.hears()
        for each in (hanging, other):
            each.end.close()
        close_pipe(other_pipe)

    asyncio.run(talk())


def test_more_than_fits_into_a_message_is_everything(pipe: WorkerPipe) -> None:
    async def talk() -> None:
        worker, end = Worker(pipe), replicator(pipe)
        end.publish(changes(*range(PARTITIONS_MAX)))
        assert await worker.hears() == changes(*range(PARTITIONS_MAX))
        end.publish(changes(*range(PARTITIONS_MAX + 1)))
        assert await worker.hears() == StoreChanges.of_everything()
        worker.end.close()

    asyncio.run(talk())


def test_what_a_full_pipe_refuses_stays_small(pipe: WorkerPipe) -> None:
    async def talk() -> None:
        worker, end = Worker(pipe), replicator(pipe)
        asyncio.get_running_loop().remove_reader(worker.end._socket)
        for number in range(3 * PARTITIONS_MAX):
            end.publish(changes(number))
        worker.end.listen()
        await worker.hears()
        end.publish(StoreChanges())
        assert (await worker.hears()).everything
        worker.end.close()

    asyncio.run(talk())


def test_a_replicator_that_starts_says_everything_may_have_changed(pipe: WorkerPipe) -> None:
    """The one before died between a write and its notification."""

    async def talk() -> None:
        worker, store = Worker(pipe), MemoryStore()
        first = NotifyingStore(store, replicator(pipe).publish)
        first.publish()
        assert (await worker.hears()).everything
        first.apply(STORE, Partition(1), [], position(0))
        again = NotifyingStore(store, replicator(pipe).publish)
        again.publish()
        assert (await worker.hears()).everything
        again.apply(STORE, Partition(2), [], position(0))
        again.publish()
        assert await worker.hears() == changes(2)
        worker.end.close()

    asyncio.run(talk())


def test_a_worker_that_starts_again_hears_what_comes(pipe: WorkerPipe) -> None:
    """What it finds in its pipe is of before, and does no harm."""

    async def talk() -> None:
        end, worker = replicator(pipe), Worker(pipe)
        worker.end.close()
        end.publish(changes(1))
        again = Worker(pipe)
        end.publish(changes(2))
        assert await again.hears() == changes(1, 2)
        again.end.close()

    asyncio.run(talk())


@pytest.mark.parametrize(
    "data",
    [b"C", b"C\x00\x01", b"C\x00" + bytes(12) + b"\x00", b"C\x02" + changes(1, 2).encode()[1:-1]],
    ids=["nothing", "half a store", "half a store after one", "half a partition"],
)
def test_a_notification_that_is_cut_off_is_of_everything(pipe: WorkerPipe, data: bytes) -> None:
    async def talk() -> None:
        worker = Worker(pipe)
        with socket.socket(fileno=copy_of(pipe.replicator_fd)) as end:
            end.send(data)
        assert (await worker.hears()).everything
        worker.end.close()

    asyncio.run(talk())


@pytest.mark.parametrize("seed", seeds(30, in_check=5))
def test_any_mix_of_restarts_and_pauses_names_each_change(seed: int, pipe: WorkerPipe) -> None:
    """Whoever begins reads all that is there; from then on each change is named, or everything is."""
    choice = random.Random(seed)

    async def talk() -> None:
        store = MemoryStore()
        writer, worker = NotifyingStore(store, replicator(pipe).publish), Worker(pipe)
        unread: set[StoredPartition] = set()  # by the worker, of what was written

        def take(heard: StoreChanges) -> None:
            unread.clear() if heard.everything else unread.difference_update(set(heard))

        for _ in range(400):
            match choice.choices(["write", "publish", "hear", "writer", "worker"], [60, 40, 10, 1, 1])[0]:
                case "write":
                    name = StoredPartition(choice.choice([STORE, OTHER]), Partition(choice.randrange(50)))
                    writer.apply(*name, [], position(0))
                    unread.add(name)
                case "publish":
                    writer.publish()
                case "hear":
                    take(await worker.hears())
                case "writer":
                    writer = NotifyingStore(store, replicator(pipe).publish)
                case "worker":
                    worker.end.close()
                    worker = Worker(pipe)
                    unread.clear()
        for _ in range(2):  # the pipe may be full the first time
            writer.publish()
            take(await worker.hears())
        assert not unread
        worker.end.close()

    asyncio.run(talk())


def test_ends_are_asked_for_and_answered_beside_notifications(pipe: WorkerPipe) -> None:
    def end_offsets(topic: str) -> Mapping[int, int]:
        if topic == "lost":
            raise LogUnavailable("Kafka is away")
        return {0: 5, 1: 7}

    async def talk() -> None:
        end, worker = replicator(pipe), Worker(pipe)
        ENDS.clear()  # the thread that answers goes on
        end.answer(end_offsets)
        end.publish(changes(4))
        assert await worker.end.ends("ratings") == {0: 5, 1: 7}
        with pytest.raises(EndsUnknown, match="Kafka is away"):
            await worker.end.ends("lost")
        assert await worker.hears() == changes(4)
        worker.end.close()

    asyncio.run(talk())


def test_an_answer_that_is_cut_off_takes_no_notification_along(pipe: WorkerPipe) -> None:
    async def talk() -> None:
        worker, end = Worker(pipe), replicator(pipe)
        end.publish(changes(3))
        with socket.socket(fileno=copy_of(pipe.replicator_fd)) as raw:
            raw.send(b'{"id": 1, "ends": {"0": 12')
            raw.send(b"[]")
        end.publish(changes(5))
        assert await worker.hears() == changes(3, 5)
        worker.end.close()

    asyncio.run(talk())


def test_more_end_offsets_than_a_message_holds_come_in_several(pipe: WorkerPipe) -> None:
    """As many as a table may have partitions; what comes after them is answered as ever."""

    async def talk() -> None:
        worker, end = Worker(pipe), replicator(pipe)
        ENDS.clear()  # the thread that answers goes on
        end.answer(lambda topic: dict.fromkeys(range(65_536 if topic == "wide" else 2), 2**62))
        for _ in range(2):
            assert await worker.end.ends("wide") == dict.fromkeys(range(65_536), 2**62)
        assert await worker.end.ends("narrow") == {0: 2**62, 1: 2**62}
        worker.end.close()

    asyncio.run(talk())


@pytest.mark.parametrize(
    "topic",
    ["t" * 100_000, "t" * 65_500, "", "\ud800", "\x00"],
    ids=["too long to be sent", "cut off", "empty", "half a character", "zero"],
)
def test_no_topic_ends_the_thread_that_answers(pipe: WorkerPipe, topic: str) -> None:
    def end_offsets(topic: str) -> Mapping[int, int]:
        if topic != "ratings":
            raise ZeroDivisionError
        return {0: 5}

    async def talk() -> None:
        end, worker = replicator(pipe), Worker(pipe)
        ENDS.clear()  # the thread that answers goes on
        end.answer(end_offsets)
        asking = asyncio.ensure_future(worker.end.ends(topic))
        await asyncio.sleep(0)
        assert await worker.end.ends("ratings") == {0: 5}
        asking.cancel()
        await asyncio.wait({asking})
        worker.end.close()

    asyncio.run(talk())


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"{}", b'{"id": {}, "topic": 1}', b"\xff" * 100],
    ids=["nothing", "cut off", "a list", "an empty question", "other types", "no text"],
)
def test_no_message_ends_the_thread_that_answers(pipe: WorkerPipe, data: bytes) -> None:
    async def talk() -> None:
        end, worker = replicator(pipe), Worker(pipe)
        ENDS.clear()  # the thread that answers goes on
        end.answer(lambda _: {0: 5})
        with socket.socket(fileno=copy_of(pipe.worker_fd)) as raw:
            raw.send(data)
        assert await worker.end.ends("ratings") == {0: 5}
        worker.end.close()

    asyncio.run(talk())


def test_workers_that_ask_together_are_answered_together(pipe: WorkerPipe) -> None:
    asked: list[str] = []

    def end_offsets(topic: str) -> Mapping[int, int]:
        asked.append(topic)
        return {0: 5}

    async def talk() -> None:
        other_pipe = open_pipe()
        workers = [Worker(pipe), Worker(other_pipe)]
        end = replicator(pipe, other_pipe)
        asking = [asyncio.ensure_future(each.end.ends("ratings")) for each in workers]
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # both have asked before anybody answers
        ENDS.clear()  # the thread that answers goes on
        end.answer(end_offsets)
        assert await asyncio.gather(*asking) == [{0: 5}] * 2
        assert asked == ["ratings"]
        for each in workers:
            each.end.close()
        close_pipe(other_pipe)

    asyncio.run(talk())


def test_all_who_wait_for_a_topic_share_one_question(pipe: WorkerPipe) -> None:
    """Kafka is asked for whoever came before, and once more for all who came while it was asked."""
    asked: list[str] = []
    release = threading.Event()

    def end_offsets(topic: str) -> Mapping[int, int]:
        asked.append(topic)
        release.wait()
        return {0: len(asked)}

    async def talk() -> None:
        other_pipe = open_pipe()
        worker, other = Worker(pipe), Worker(other_pipe)
        end = replicator(pipe, other_pipe)
        ENDS.clear()  # the thread that answers goes on
        end.answer(end_offsets)
        first = [asyncio.ensure_future(worker.end.ends("ratings")) for _ in range(100)]
        while not asked:
            await asyncio.sleep(0)
        later = [asyncio.ensure_future(each.end.ends("ratings")) for each in (worker, other) for _ in range(1_000)]
        await asyncio.sleep(0)
        release.set()
        assert await asyncio.gather(*first) == [{0: 1}] * 100
        assert all(answer[0] > 1 for answer in await asyncio.gather(*later))
        assert len(asked) <= 3  # the other worker's question may have come by itself
        for each in (worker, other):
            each.end.close()
        close_pipe(other_pipe)

    asyncio.run(talk())
