"""Gateways of one event loop over memory stores, which ask each other without a network: for seeded tests.

What they serve is one table, kept whole in a store that no gateway has; each follows the partitions that it holds.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

from google.protobuf.message import Message
from google.rpc import code_pb2, status_pb2
from typing_extensions import override

from tablegate.gateway.cluster.directory import Directory, Peer
from tablegate.gateway.cluster.forward_token import ForwardToken, ForwardTokenSigner
from tablegate.gateway.cluster.scatter import Forwarder, PeerFailed, Router
from tablegate.gateway.contract.types import Offset, Partition
from tablegate.gateway.query.call import StreamMethod, TopicEnds
from tablegate.gateway.query.errors import QueryError, ShuttingDown, status_of
from tablegate.gateway.query.limits import QueryLimits
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.stores.base import Change, Phase, Position, StoreUnavailable
from tablegate.gateway.stores.notifier import Notifier
from tablegate.internal.v1.store_pb2 import TableState
from tablegate.v1.status_pb2 import GetStatusResponse
from tests.kit.store.breaking import GONE, UNREADABLE, BreakingStore
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import RATINGS, SIGNER, FilledTable, LocalCall, catalogue_of, now_ms

SERVICE = "/examples.ratings.v1.RatingsService"
Placement = Mapping[int, Collection[int]]
"""From a gateway's number to the partitions that it holds."""

SAFE: Placement = {0: [0, 1, 2, 5], 1: [1, 3, 4, 0], 2: [2, 3, 4, 5]}  # each on two


QUICK_LIMITS = QueryLimits(
    progress_min_s=0.02, sources_check_s=0.02, sources_retry_s=0.02, avoid_s=0.02, silent_s=3_600.0
)
"""Subscriptions speak often, and look often for who has which partitions; none is taken for silent."""


async def next_of(messages: Any) -> bytes | None:
    """Return the next message, None at the end."""
    try:
        return bytes(await anext(messages))
    except StopAsyncIteration:
        return None


class Local(Forwarder):
    """Asks gateways of this process, each message by itself: nothing is read ahead."""

    def __init__(self, forward_tokens: ForwardTokenSigner, gateways: Mapping[str, "LocalGateway"]) -> None:
        super().__init__(forward_tokens.sign)
        self._forward_tokens = forward_tokens
        self._gateways = gateways

    @override
    async def stream(
        self, peer: Peer, path: str, data: bytes, token: ForwardToken, time_left_s: float | None
    ) -> AsyncGenerator[bytes, None]:
        gateway = self._gateways[peer.gateway_id]
        if gateway.is_down:
            raise PeerFailed(status_pb2.Status(code=code_pb2.UNAVAILABLE, message="connection refused"))
        call = LocalCall(time_left_s, forwarded=self._forward_tokens.sign(token))
        async with aclosing(gateway.answers(path, data, call)) as messages:
            while True:
                try:
                    message = await next_of(messages)
                except QueryError as error:
                    raise PeerFailed(status_of(error)) from None
                if message is None:
                    return
                yield message


class _Ends(TopicEnds):
    """Kafka, as far as a gateway asks it: the changelog ends where the whole table is."""

    def __init__(self, cluster: "LocalCluster") -> None:
        self._cluster = cluster

    @override
    async def ends(self, topic: str) -> Mapping[int, int]:
        return {int(partition): offset for partition, offset in self._cluster.whole.next_offsets.items()}


class LocalGateway:
    """A gateway. `calls` are those that have come; `said`: how many messages it gave. One that hangs gives no more.

    It answers from `answered`, which a test may break, of what is applied to `store`.
    """

    def __init__(self, gateway_id: str, cluster: "LocalCluster", incarnation_id: int) -> None:
        self.gateway_id = gateway_id
        self.bell = Notifier()
        self.directory = Directory()
        self.is_down = False
        self.hangs = False
        self.calls: list[LocalCall] = []
        self.said = 0
        self.phases: dict[Partition, Phase] = {}
        self.incarnations: dict[Partition, int] = {}
        self.generation = cluster.whole.generation
        self._cluster = cluster
        self._down = asyncio.Event()
        self._open: list[LocalCall] = []
        self.make(incarnation_id)

    def make(self, incarnation_id: int) -> None:
        """Begin with an empty store."""
        self.store = MemoryStore(history_changes_max=self._cluster.history_changes_max)
        self._publish(incarnation_id)
        forward_tokens = ForwardTokenSigner(SIGNER, self._cluster.now_ms)
        self.answered = BreakingStore(self.store)
        self.router = Router(self.directory, Local(forward_tokens, self._cluster.gateways))
        self.methods = query_methods(
            self._cluster.catalogue,
            self.answered,
            SIGNER,
            self.bell,
            ends=_Ends(self._cluster),
            router=self.router,
            now_ms=self._cluster.now_ms,
            limits=self._cluster.limits,
        )

    def look(self, status: bytes) -> None:
        """Take in what the replicator says, as far as it can be read."""
        self.store.set_status(status)
        with suppress(StoreUnavailable), self.answered.snapshot() as snapshot:
            self.router.refresh(snapshot, self._cluster.catalogue.tables)
        self.bell.notify()

    def switch(self, partitions: Collection[int]) -> None:
        """Answer from the generation that there is now."""
        self._publish(self.incarnation_id)
        for number in partitions:
            self.follow(Partition(number))

    def _publish(self, incarnation_id: int) -> None:
        state = TableState()
        with self._cluster.whole.store.snapshot() as snapshot:
            state.CopyFrom(snapshot.table(self._cluster.whole.table.name) or TableState())
        self.store_id = self.store.new_store_id()
        state.store_id, state.incarnation_id = self.store_id, incarnation_id
        self.incarnation_id, self.generation = incarnation_id, state.manifest.generation
        self.store.put_table(self._cluster.whole.table.name, state)
        self.phases.clear()
        self.incarnations.clear()

    def follow(self, partition: Partition, *, phase: Phase = Phase.LIVE, most: int = 1_000_000) -> None:
        """Apply what the changelog has, at most so many changes."""
        whole = self._cluster.whole
        with self.store.snapshot() as snapshot:
            known = snapshot.position(self.store_id, partition)
        start = Offset(0) if known is None else known.next_offset
        with whole.store.snapshot() as snapshot:
            found = snapshot.history(whole.store_id, partition, start=start, limit=most)
        changes = [Change(*past[:5]) for past in found]
        next_offset = Offset(changes[-1].offset + 1) if changes else start
        incarnation_id = (
            self.incarnations.setdefault(partition, self.incarnation_id) if whole.table.expiry is not None else 0
        )
        history_start = start if known is None else known.history_start
        position = Position(next_offset, now_ms(), phase, history_start, incarnation_id=incarnation_id)
        if known is None:  # the history begins where restoring ends
            self.store.apply(self.store_id, partition, changes, position.in_phase(Phase.RESTORING))
            changes = []
        self.store.apply(self.store_id, partition, changes, position)
        self.phases[partition] = phase
        self.bell.notify()

    def drop(self, partition: Partition) -> None:
        """Answer from a partition no more."""
        self.follow(partition, phase=Phase.CATCHING_UP, most=0)
        del self.phases[partition]

    def lose(self, partition: Partition) -> None:
        """Answer from a partition no more, and keep nothing of it: it comes back as another incarnation."""
        assert self.store.drop_partition(self.store_id, partition, limit=1_000_000)
        self.incarnations[partition] = self.incarnations.get(partition, self.incarnation_id) + 1_000
        del self.phases[partition]
        self.bell.notify()

    @property
    def is_busy(self) -> bool:
        """Return whether a stream is open."""
        return bool(self._open)

    def kill(self) -> None:
        """End without a word: calls break off, none is taken."""
        self.is_down = True
        self._down.set()

    def drain(self) -> None:
        """End as told: streams say so."""
        self.is_down = True
        for call in self._open:
            call.draining = True
        self.bell.shutdown()

    def start(self) -> None:
        """Be there again."""
        self.is_down = False
        self._down = asyncio.Event()

    async def answers(self, path: str, data: bytes, call: LocalCall) -> AsyncGenerator[bytes, None]:
        """Yield the messages of a stream, until the gateway is killed."""
        method = self.methods[path]
        assert isinstance(method, StreamMethod)
        self.calls.append(call)
        self._open.append(call)
        messages: Any = method.handler(data, call)
        down = asyncio.ensure_future(self._down.wait())
        coming: asyncio.Future[bytes | None] | None = None
        try:
            while True:
                coming = asyncio.ensure_future(next_of(messages))
                await asyncio.wait({coming, down}, return_when=asyncio.FIRST_COMPLETED)
                if down.done():
                    raise PeerFailed(status_pb2.Status(code=code_pb2.UNAVAILABLE, message="connection reset"))
                message = coming.result()
                if message is None:
                    return
                if self.hangs:
                    await self._down.wait()
                self.said += 1
                yield message
        finally:
            self._open = [each for each in self._open if each is not call]
            for task in (coming, down):
                if task is not None:
                    task.cancel()
                    await asyncio.wait({task})
            await messages.aclose()


class LocalCluster:
    """Gateways "g0", "g1", ... and their table. Made in the event loop that they work in."""

    def __init__(
        self,
        held: Placement,
        *,
        path: Path = RATINGS,
        table: str = "ratings",
        service: str = SERVICE,
        partition_count: int = 6,
        history_changes_max: int = 1_000_000,
        now_ms: Callable[[], int] = now_ms,
        limits: QueryLimits = QUICK_LIMITS,
    ) -> None:
        self.catalogue = catalogue_of(path)
        self.service = service
        self.history_changes_max = history_changes_max
        self.now_ms = now_ms
        self.limits = limits
        self.whole = FilledTable(MemoryStore(), self.catalogue.tables[table], partition_count)
        self.whole.publish()
        self.gateways: dict[str, LocalGateway] = {}
        for number, partitions in held.items():
            gateway = self.gateways[f"g{number}"] = LocalGateway(f"g{number}", self, number + 1)
            for partition in partitions:
                gateway.follow(Partition(partition))
        self.announce()

    def __getitem__(self, number: int) -> LocalGateway:
        return self.gateways[f"g{number}"]

    def announce(self, *, dead: Collection[str] = ()) -> None:
        """Let all gateways know of each other, as they are now; some are taken to be dead."""
        status = GetStatusResponse()
        for gateway in self.gateways.values():
            told = status.gateways.add(alive=not gateway.is_down and gateway.gateway_id not in dead)
            told.record.gateway_id = gateway.gateway_id
            told.record.endpoint = f"{gateway.gateway_id}:1"
            held = told.record.tables.add(table=self.whole.table.name)
            held.serving.generation = gateway.generation
            for partition, phase in gateway.phases.items():
                held.serving.partitions.append(partition)
                held.serving.phases.append(phase)  # type: ignore[arg-type]
                held.serving.next_offsets.append(0)
        for gateway in self.gateways.values():
            status.gateway_id = gateway.gateway_id
            gateway.look(status.SerializeToString())

    def put(self, rows: Iterable[Message]) -> None:
        """Write rows, which all gateways follow."""
        self.whole.put(rows)
        self.follow()

    def delete(self, rows: Iterable[Message]) -> None:
        """Write tombstones, which all gateways follow."""
        self.whole.delete(rows)
        self.follow()

    def follow(self) -> None:
        """Let all gateways that live, and have this generation, apply everything."""
        for gateway in self.gateways.values():
            if gateway.generation != self.whole.generation:
                continue
            for partition, phase in list(gateway.phases.items()):
                if not gateway.is_down and phase is Phase.LIVE:
                    gateway.follow(partition)

    def disturb(self, choice: random.Random, asked: int, *, calm: int = 0) -> None:
        """Let one gateway at most be away, but for the one that is asked, or be without its store or a partition.

        The spread is `SAFE`, so others have what it lacks. It is one of four things, or of `calm` more, which are
        nothing.
        """
        for gateway in self.gateways.values():
            if gateway.is_down:
                gateway.start()
            gateway.answered.mends()
            for partition in gateway.phases:
                gateway.follow(partition)
        victim = choice.choice(list(self.gateways.values()))
        match choice.randrange(4 + calm):
            case 0 if victim is not self[asked]:
                victim.kill()
            case 1 if victim is not self[asked]:
                victim.drain()
            case 2:
                victim.follow(choice.choice(list(victim.phases)), phase=Phase.CATCHING_UP)
            case 3:
                self.announce()  # the last that it hears of the others
                victim.answered.breaks(choice.choice([GONE, UNREADABLE]))
                victim.bell.notify()

    def request(self, method: str, **fields: Any) -> Any:
        """Return a request."""
        return self.catalogue.queries[f"{self.service}/{method}"].request_class(**fields)

    async def stream(
        self, number: int, method: str, request: Any = None, *, call: LocalCall | None = None, **fields: Any
    ) -> AsyncGenerator[Any, None]:
        """Yield the messages of a stream, asked of one gateway."""
        path = f"{self.service}/{method}"
        data = (request or self.request(method, **fields)).SerializeToString()
        response_class: Any = self.catalogue.queries[path].response_class
        gateway = self.gateways[f"g{number}"]
        if gateway.is_down:
            raise ShuttingDown
        async with aclosing(gateway.answers(path, data, call or LocalCall(None))) as messages:
            async for message in messages:
                yield response_class.FromString(message)
