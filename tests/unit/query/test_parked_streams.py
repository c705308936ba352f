"""Streams that park, in real `Calls`: whatever changes and ends, each copy is right in the end, and nothing is left."""

import asyncio
import gc
import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
from typing_extensions import override

from tablegate.gateway.access.gate import Gate
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.http.rpc.calls import CallLimits, Calls, ServedCall
from tablegate.gateway.query.call import StreamMethod
from tablegate.gateway.query.errors import InvalidResumeToken, QueryError, StreamExpired
from tablegate.gateway.query.limits import QueryLimits
from tablegate.gateway.query.subscribe.broadcaster import Subscriber
from tablegate.gateway.query.subscribe.local import DUE_TOGETHER_S, LocalStream
from tablegate.gateway.query.subscribe.subscription import Subscription
from tablegate.gateway.stores.base import Phase
from tablegate.gateway.stores.changes import NotifyingStore, StoreChanges
from tablegate.gateway.telemetry.request_ids import AT_WORK
from tests.kit.call.asker import Asker
from tests.kit.call.subscribing import METHOD, TIMEOUT_S, Copy, TableWriter, options
from tests.kit.gateways_in_process.tenants import write_access
from tests.kit.seeds import seeds
from tests.kit.store.breaking import BreakingStore
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import FilledTable, catalogue_of

SERVICE = "/examples.ratings.v1.RatingsService"
PATH = f"{SERVICE}/{METHOD}"
PARTITIONS = 4
KEYS = ("ann", "ann", "bob") * 2
CROWD = 5
MANY = [f"many-{number}" for number in range(100)]
SHOWING = """
[api_keys]
file = "keys.toml"

[[limit]]
name = "some"
streams = 5

[[rule]]
tables = ["ratings"]
"""
HIDING = f'{SHOWING}hide = ["average_rating"]\n'
OFTEN = {"progress_interval": {"nanos": 20_000_000}}
SELDOM = {"progress_interval": {"seconds": 60}}
LIMITS = QueryLimits(
    stream_min_s=0.03,
    stream_max_s=0.3,
    progress_min_s=0.01,
    subscriber_bytes_max=1_500,
    queued_bytes_max=6_000,
    publish_flush_s=0.001,
    publish_retry_s=0.01,
)
LONG = QueryLimits(progress_min_s=0.01)


class World:
    """The ratings in a gateway that knows who calls. `wrong`: what was seen where an error would be taken for one."""

    def __init__(
        self,
        seed: int,
        directory: Path,
        limits: QueryLimits = LIMITS,
        streams_max: int = len(KEYS) + CROWD - 2,
    ) -> None:
        self._streams_max = streams_max
        catalogue = catalogue_of()
        self.choice = random.Random(seed)
        memory = MemoryStore(history_changes_max=60)
        self.read = BreakingStore(memory)
        self.asker = Asker(catalogue, self.read, SERVICE, None, limits)
        self.store = NotifyingStore(memory, self._notify)
        self.table = FilledTable(self.store, catalogue.tables["ratings"], PARTITIONS)
        self.table.publish()
        self.store.publish()
        self.writer = TableWriter(self.table, self.store.publish, seed)
        self._file = write_access(directory, SHOWING, {key: {} for key in (*KEYS, "crowd", *MANY)})
        self.gate = Gate(self._file, catalogue)
        self.hides = False
        self.ended: Counter[ServedCall] = Counter()
        self.wrong: list[object] = []
        self.calls = self.new_calls()

    def _notify(self, changes: StoreChanges) -> None:
        self.asker.bell.notify(changes)

    def new_calls(self) -> Calls:
        """Return the calls of a process that begins."""
        calls = Calls(CallLimits(streams_max=self._streams_max), self.gate)
        calls.on_ended = lambda call, _path, _code, _took_s: self.ended.update([call])
        return calls

    def open(
        self,
        key: str,
        copy: Copy,
        client_class: "type[Client] | None" = None,
        *,
        timeout_s: float | None = None,
        **often: Any,
    ) -> "Client":
        """Open a stream; raise `QueryError`."""
        client, method = (client_class or Client)(self, key, copy), self.asker.methods[PATH]
        assert isinstance(method, StreamMethod)
        client.timeout_s = timeout_s
        request = self.asker.request(METHOD, subscribe_options=options(copy.token, **often))
        self.calls.admit(client, PATH, method)
        self.calls.stream(client, PATH, method, request.SerializeToString())
        return client

    def set_policy(self, *, hides: bool) -> None:
        self._file.write_text(HIDING if hides else SHOWING)
        for _ in range(2):  # a worker's timer: once it sees the file, once that nobody writes it any more
            self.gate.refresh()
        self.calls.check_streams()
        self.hides = hides

    def move(self, phase: Phase, partition: Partition) -> None:
        self.table.move(partition, phase=phase)
        self.store.publish()

    def begin_generation(self) -> None:
        self.writer.counts.clear()
        self.table.generation += 1
        self.table.publish()
        self.store.publish()


class Client(ServedCall):
    """A client's side of a stream: it reads on while `reads` is set, and refuses some of what it is offered."""

    def __init__(self, world: World, key: str, copy: Copy) -> None:
        headers = {b"authorization": b"Bearer " + key.encode()}
        exchange = SimpleNamespace(on_gone=None, principal=None, address=key, body=b"", headers=headers, method=b"POST")
        super().__init__(world.calls, cast(Any, exchange))
        self.reads = asyncio.Event()
        self.reads.set()
        self.over = asyncio.Event()
        self.error: QueryError | None = None
        self._world, self._copy = world, copy
        self._is_sending = self._is_gone = False

    def go(self) -> None:
        """Go away, as seen by the connection."""
        self._is_gone = True
        self.over.set()
        on_gone, self.exchange.on_gone = self.exchange.on_gone, None
        if on_gone is not None:
            on_gone()

    @override
    def fail(self, error: QueryError) -> None:
        self.error = error
        self.over.set()

    @override
    async def send(self, message: bytes) -> None:
        if self._is_gone:
            return
        if AT_WORK.get() is not self or self._is_sending:
            self._world.wrong.append("a message of another")
        self._apply(message)
        self._is_sending = True
        try:
            if self._world.choice.random() < 0.1:  # between the last message and where the stream parks
                self._world.writer.anything(keys=30)
            await self.reads.wait()
        finally:
            self._is_sending = False

    @override
    def offer(self, message: bytes) -> bool:
        if self._is_gone or self._is_sending or not self.reads.is_set() or self._world.choice.random() < 0.15:
            return False
        self._apply(message)
        return True

    def _apply(self, message: bytes) -> None:
        if self.ended_for is not None:  # its task ends in this turn of the loop
            return
        response: Any = self._world.asker.catalogue.queries[PATH].response_class.FromString(message)
        try:
            assert not self.over.is_set(), "a message behind the end"
            shown = [change.upsert.average_rating != 0 for change in response.changes if change.HasField("upsert")]
            assert self._world.hides not in shown, "a row as it was before the policy"
            self._copy.take(response)
        except AssertionError as error:
            self._world.wrong.append(error)


class Follower:
    """Who has a copy, by one stream after the other."""

    def __init__(self, world: World, key: str, often: dict[str, Any]) -> None:
        self.copy = Copy()
        self.client: Client | None = None
        self._world, self._key, self._often = world, key, often

    async def run(self) -> None:
        world = self._world
        while True:
            hides = world.hides
            try:
                self.client = client = world.open(self._key, self.copy, **self._often)
                await client.over.wait()
                refused = isinstance(client.error, InvalidResumeToken)
            except QueryError:
                refused = False
                await asyncio.sleep(0.001)
            if refused or world.hides != hides:
                self.copy = Copy()
            await asyncio.sleep(world.choice.choice([0, 0, 0.002]))

    @property
    def has_all(self) -> bool:
        if self.client is not None:
            self.client.reads.set()
        return self.copy.counts == self._world.writer.counts


async def _happen(world: World, clients: list[Client], crowd: list[Client]) -> None:
    """Let one thing happen."""
    choice = world.choice
    client = choice.choice(clients)
    match choice.choices(
        ["write", "away", "phase", "generation", "policy", "tick", "go", "slow", "fast", "crowd", "drain"],
        [60, 3, 4, 1, 2, 3, 6, 8, 14, 6, 1],
    )[0]:
        case "write":
            for _ in range(choice.choice([1, 1, 1, 5, 40])):
                world.writer.anything(keys=30)
        case "away":
            world.read.breaks()
            world.writer.anything(keys=30)
            await asyncio.sleep(choice.choice([0, 0.005]))
            world.read.mends()
        case "phase":
            partition = Partition(choice.randrange(PARTITIONS))
            world.move(Phase.CATCHING_UP, partition)
            await asyncio.sleep(0.002 * choice.randrange(3))
            world.move(Phase.LIVE, partition)
        case "generation":
            world.begin_generation()
        case "policy":
            world.set_policy(hides=not world.hides)
        case "tick":
            world.calls.check_streams()
        case "go":
            client.go()
        case "slow":
            client.reads.clear()
        case "fast":
            for each in clients:
                each.reads.set()
        case "crowd" if len(crowd) < CROWD:
            crowd.append(world.open("crowd", Copy(), **SELDOM))
        case "crowd":
            crowd.pop(choice.randrange(CROWD)).go()
        case "drain":
            await _drain(world, choice.choice([0, 0.005, 0.1]))
    await asyncio.sleep(choice.choice([0, 0, 0, 0.001, 0.003]))


async def _drain(world: World, grace_s: float) -> None:
    """End a process; clients come back to another."""
    calls, world.calls = world.calls, world.new_calls()
    calls.drain()
    world.asker.bell.shutdown()
    world.writer.anything(keys=30)
    await asyncio.sleep(0)
    await calls.finish(grace_s)
    assert calls.streams == 0


@pytest.mark.tools
@pytest.mark.parametrize("seed", seeds(40, in_check=2))
def test_parked_streams_have_all_and_leave_nothing(seed: int, tmp_path: Path) -> None:
    world = World(seed, tmp_path)

    async def talk() -> None:
        followers = [Follower(world, key, SELDOM if at % 4 else OFTEN) for at, key in enumerate(KEYS)]
        tasks = [asyncio.ensure_future(each.run()) for each in followers]
        crowd: list[Client] = []
        await asyncio.sleep(0)
        for _ in range(150):
            await _happen(world, [each.client for each in followers if each.client is not None], crowd)
        for client in crowd:
            client.go()
        async with asyncio.timeout(TIMEOUT_S):
            while not all(each.has_all for each in followers):
                await asyncio.sleep(0.005)
            last = [each.client for each in followers]
            while any(each.client is client for each, client in zip(followers, last, strict=True)):
                await asyncio.sleep(0.005)  # nothing happens but that each stream has its time
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in followers:
            if each.client is not None and world.choice.random() < 0.5:
                each.client.go()
        await _drain(world, 0.05)
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(talk())
    world.gate.close()
    assert not world.wrong
    assert set(world.ended.values()) == {1}
    world.ended.clear()
    gc.collect()
    kinds = (Client, LocalStream, Subscriber, Subscription)
    assert not [each for each in gc.get_objects() if isinstance(each, kinds)]


@pytest.mark.parametrize("timeout_s", [None, 3_600.0], ids=["parked", "task"])
def test_a_stream_ends_in_time_whenever_progress_is_due(timeout_s: float | None, tmp_path: Path) -> None:
    world = World(1, tmp_path)

    async def talk() -> None:
        client = world.open("ann", Copy(), timeout_s=timeout_s, **SELDOM)
        async with asyncio.timeout(TIMEOUT_S):
            await client.over.wait()
        assert isinstance(client.error, StreamExpired)

    asyncio.run(talk())
    world.gate.close()


class NotingLoop(asyncio.SelectorEventLoop):
    """Notes when parked streams are due."""

    def __init__(self) -> None:
        super().__init__()
        self.due_s: list[float] = []

    @override
    def call_at(self, when: float, callback: Any, *arguments: Any, context: Any = None) -> asyncio.TimerHandle:
        if getattr(callback, "__func__", None) is LocalStream._on_time:
            self.due_s.append(when)
        return super().call_at(when, callback, *arguments, context=context)


def test_streams_that_are_due_within_moments_are_due_together(tmp_path: Path) -> None:
    world, loop = World(1, tmp_path), NotingLoop()

    async def talk() -> None:
        clients = [world.open("ann", Copy(), **OFTEN) for _ in range(3)]
        async with asyncio.timeout(TIMEOUT_S):
            while len(loop.due_s) < 3 * len(clients):
                await asyncio.sleep(0.001)
                # Its time may be over before it was due three times, on a busy machine.
                clients = [world.open("ann", Copy(), **OFTEN) if each.over.is_set() else each for each in clients]
        for client in clients:
            client.go()

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(talk())
    world.gate.close()
    slots = [due_s / DUE_TOGETHER_S for due_s in loop.due_s]
    assert slots == pytest.approx([round(slot) for slot in slots], rel=0, abs=0.01)


def test_a_stream_that_has_yet_to_begin_hears_of_a_new_policy(tmp_path: Path) -> None:
    world = World(1, tmp_path)

    async def talk() -> None:
        client = world.open("ann", Copy())
        world.set_policy(hides=True)  # before the task of the stream has run
        async with asyncio.timeout(TIMEOUT_S):
            await client.over.wait()
        assert isinstance(client.error, StreamExpired)

    asyncio.run(talk())
    world.gate.close()
    assert list(world.ended.values()) == [1]


class Counted(Client):
    """A client that takes all, and counts in the last of `passes`, the loop's, that it is told of its end."""

    passes: ClassVar[list[int]] = [0]

    @override
    async def send(self, message: bytes) -> None:
        return

    @override
    def offer(self, message: bytes) -> bool:
        return True

    @override
    def fail(self, error: QueryError) -> None:
        self.passes[-1] += 1
        super().fail(error)


def test_streams_that_a_policy_ends_together_are_told_in_turns(tmp_path: Path) -> None:
    """A tenth of a millisecond each: thousands kept every Get waiting."""
    world = World(1, tmp_path, LONG, streams_max=400)

    async def talk() -> None:
        clients = [world.open(key, Copy(), Counted, **SELDOM) for key in MANY * 3]
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)
        Counted.passes[:] = [0]
        world.set_policy(hides=True)
        async with asyncio.timeout(TIMEOUT_S):
            while sum(Counted.passes) < len(clients):
                Counted.passes.append(0)
                await asyncio.sleep(0)
        assert max(Counted.passes) < 100
        assert all(isinstance(client.error, StreamExpired) for client in clients)
        assert world.calls.streams == 0

    asyncio.run(talk())
    world.gate.close()
