"""A gateway of a world: the product's replicator and handlers over a disk that fails, asked without a network.

Its replicator and its worker end apart, as the two processes of a gateway do: what supervises the replicator starts it
again after `RESTART_S`, whatever it ended with, and wipes a store that is corrupt. Whoever changes its contract,
`catalogue`, starts it anew.
"""

import asyncio
import random
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from google.protobuf.message import Message
from google.rpc import code_pb2, status_pb2
from typing_extensions import override

from tablegate.gateway.cluster.assignment import Holder, IncomingParts, TransferFailed
from tablegate.gateway.cluster.directory import Directory, Peer
from tablegate.gateway.cluster.forward_token import ForwardToken, ForwardTokenSigner
from tablegate.gateway.cluster.gateways_topic import NameInUse
from tablegate.gateway.cluster.membership import Membership
from tablegate.gateway.cluster.parts import TRANSFER_PATH
from tablegate.gateway.cluster.scatter import Forwarded, Forwarder, PeerFailed, Router
from tablegate.gateway.contract.catalogue import Catalogue
from tablegate.gateway.query.call import EndsUnknown, Parked, StreamHandler, StreamMethod, TopicEnds, UnaryMethod
from tablegate.gateway.query.errors import QueryError, status_of
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.replication.repair import REPAIR_GRACE_S
from tablegate.gateway.replication.replicator import Replicator
from tablegate.gateway.replication.transfers import TransferClient
from tablegate.gateway.server.snapshots import SnapshotWriter
from tablegate.gateway.server.transfers import transfer_methods
from tablegate.gateway.stores.base import StoreCorrupt, StoreUnavailable
from tablegate.gateway.stores.changes import NotifyingStore, StoreChanges
from tablegate.gateway.stores.notifier import Notifier
from tablegate.gateway.stores.snapshots.files import SnapshotFiles
from tablegate.gateway.telemetry.measures import Measures
from tablegate.internal.v1.transfer_pb2 import TransferRequest, TransferResponse
from tests.kit.replication.replicator import FakeClock
from tests.kit.store.snapshot_files import MemorySnapshots
from tests.kit.table.filled import SIGNER, LocalCall
from tests.kit.world.broker import SkewedClock, WorldBroker, WorldLog
from tests.kit.world.stores import Disk, DiskReader, DiskWriter, Killed

RESTART_S = 0.5
CALL_S = 2.0
ON_WAY_MAX = 3  # messages that are offered and not yet read
OFFERS_REFUSED = (0.0, 0.2)  # of some streams none, so that nothing else wakes them
INDEX_ROWS_MAX = 2  # of a step: a partition has some five
TRANSFER_OFFSETS_MIN, PART_BYTES = 3, 100
SNAPSHOTS_EVERY_S, SNAPSHOTS_KEEP = 6.0, 2
GONE = status_pb2.Status(code=code_pb2.UNAVAILABLE, message="connection reset")
UNKNOWN = status_pb2.Status(code=code_pb2.UNIMPLEMENTED, message="no such method")


@dataclass
class Answered:
    """How a call ended: `message` of the response, or `error`. `by`: the gateway that read its store, if it said so."""

    message: Any
    error: status_pb2.Status | None
    by: str
    partition: int | None


class BrokerEnds(TopicEnds):
    """Kafka, asked for `latest`."""

    def __init__(self, broker: WorldBroker, log: Callable[[], WorldLog]) -> None:
        self._broker = broker
        self._log = log

    async def ends(self, topic: str) -> Mapping[int, int]:
        facts = self._broker.facts(topic)
        if facts is None or not self._broker.is_up or self._log().is_cut:
            raise EndsUnknown("Kafka does not answer")
        return dict(enumerate(facts.end_offsets))


class WorldForwarder(Forwarder):
    """Asks the other gateways of the world."""

    def __init__(self, signer: ForwardTokenSigner, gateways: Mapping[str, "WorldGateway"], own: str) -> None:
        super().__init__(signer.sign)
        self._gateways = gateways
        self._own = own

    def _peer(self, peer: Peer) -> "WorldGateway":
        gateway = self._gateways.get(peer.gateway_id)
        if gateway is None or not gateway.is_up or self._own in gateway.unreachable:
            raise PeerFailed(GONE)
        return gateway

    @override
    async def unary(
        self,
        peer: Peer,
        path: str,
        data: bytes,
        token: ForwardToken,
        time_left_s: float | None,
        *,
        may_wait: bool = False,
    ) -> Forwarded:
        call = LocalCall(time_left_s, forwarded=self.sign(token))
        try:
            message = await self._peer(peer).unary(path, data, call)
        except QueryError as error:
            raise PeerFailed(status_of(error), tuple(call.trailer)) from None
        return Forwarded(message, tuple(call.trailer))

    @override
    async def stream(
        self, peer: Peer, path: str, data: bytes, token: ForwardToken, time_left_s: float | None
    ) -> AsyncGenerator[bytes, None]:
        call = LocalCall(time_left_s, forwarded=self.sign(token))
        try:
            async with aclosing(self._peer(peer).messages(path, data, call)) as messages:
                async for message in messages:
                    yield message
        except QueryError as error:
            raise PeerFailed(status_of(error)) from None


class WorldTransfers(TransferClient):
    """Asks the other gateways of the world for rows: each part comes with a turn of the loop."""

    def __init__(self, forwarder: Forwarder, loop: asyncio.AbstractEventLoop) -> None:
        self._forwarder = forwarder
        self._loop = loop

    @override
    def ask(self, holder: Holder, request: TransferRequest) -> "WorldParts":
        token = ForwardToken(request.table, request.generation, (request.partition,), "")
        peer = Peer(holder.gateway_id, holder.endpoint, "")
        return WorldParts(
            self._forwarder.stream(peer, TRANSFER_PATH, request.SerializeToString(), token, None), self._loop
        )


class WorldParts(IncomingParts):
    """The parts of one transfer."""

    def __init__(self, parts: AsyncGenerator[bytes, None], loop: asyncio.AbstractEventLoop) -> None:
        self._parts: deque[bytes] = deque()
        self._failed: TransferFailed | None = None
        self._task = loop.create_task(self._receive(parts))

    async def _receive(self, parts: AsyncGenerator[bytes, None]) -> None:
        try:
            async with aclosing(parts) as messages:
                async for message in messages:
                    self._parts.append(message)
        except PeerFailed as failed:
            self._failed = TransferFailed(str(failed))
        else:
            self._failed = TransferFailed("it ended early")

    @override
    def next(self) -> TransferResponse | None:
        if self._parts:
            return TransferResponse.FromString(self._parts.popleft())
        if self._failed is not None:
            raise self._failed
        return None

    @override
    def close(self) -> None:
        self._task.cancel()


class WorldGateway:
    """One gateway. `is_up`: it has processes; its replicator may be away all the same, or `is_frozen`."""

    def __init__(
        self,
        name: str,
        *,
        catalogue: Catalogue,
        broker: WorldBroker,
        clock: FakeClock,
        gateways: Mapping[str, "WorldGateway"],
        replicas: int,
        disk: Disk,
        loop: asyncio.AbstractEventLoop,
        repair_grace_s: float = REPAIR_GRACE_S,
        files: SnapshotFiles | None = None,
        measures: Measures | None = None,
        bites: Counter[str] | None = None,
    ) -> None:
        self.name = name
        self._bites: Counter[str] = Counter() if bites is None else bites
        self._files = files
        self._measures = measures
        self._writing: Iterator[None] | None = None  # of snapshot files
        self._writer: SnapshotWriter | None = None
        self._loop = loop
        self.clock = SkewedClock(clock)
        self.disk = disk
        self.is_up = False
        self.is_frozen = False
        self.is_draining = False
        self.unreachable: set[str] = set()  # gateways that cannot connect to this one
        self.last_error = ""  # that the replicator ended with
        self.restarts = 0
        self.replicator: Replicator | None = None
        self.catalogue = catalogue
        self._broker = broker
        self._world = clock
        self._gateways = gateways
        self._replicas = replicas
        self._repair_grace_s = repair_grace_s
        self._start_at_s = 0.0
        self._process = _Process()
        self.log = WorldLog(broker, clock)

    # Its processes.

    def start(self) -> None:
        """Start the gateway: a worker now, a replicator with the next step."""
        self.is_up, self.is_frozen, self.is_draining = True, False, False
        self._process = _Process()
        self.notifier = Notifier()
        self.router = Router(
            Directory(),
            WorldForwarder(ForwardTokenSigner(SIGNER, self.clock.now_ms), self._gateways, self.name),
        )
        self.notifier.listen(on_change=self._note, on_shutdown=lambda: None)
        reader, now_ms = DiskReader(self.disk), self.clock.now_ms
        ends = BrokerEnds(self._broker, lambda: self.log)
        self.methods = {
            **query_methods(
                self.catalogue, reader, SIGNER, self.notifier, ends=ends, router=self.router, now_ms=now_ms
            ),
            **transfer_methods(self.catalogue, reader, SIGNER, self.notifier, now_ms=now_ms, part_bytes=PART_BYTES),
        }
        self._start_at_s = self._world.passed_s
        if self._files is not None:
            self._writer = SnapshotWriter(
                self.catalogue,
                self._files,
                every_s=SNAPSHOTS_EVERY_S,
                keep=SNAPSHOTS_KEEP,
                clock=self.clock,
                signer=SIGNER,
                offsets_min=TRANSFER_OFFSETS_MIN,
                part_bytes=PART_BYTES,
                measures=self._measures,
                draw=random.Random(f"{self.name} {self._world.passed_s}").getrandbits,
            )

    def _write_snapshots(self) -> None:
        """Do a part of the work of who writes snapshot files."""
        if self._writing is None and self._writer is not None:
            self._writing = self._writer.round(DiskReader(self.disk))
        try:
            if self._writing is not None and next(self._writing, self) is self:
                self._writing = None
        except StoreUnavailable:
            self._writing = None

    def _notify(self, changes: StoreChanges) -> None:
        """Let the worker hear of changes, with its next turn."""
        self._loop.call_soon(self.notifier.notify, changes)

    def _note(self, changes: StoreChanges) -> None:
        if changes.status or changes.everything:
            with suppress(StoreUnavailable), self.disk.store.snapshot() as snapshot:
                self.router.refresh(snapshot, self.catalogue.tables)

    def kill(self) -> None:
        """End all of its processes at this instruction."""
        self.is_up = False
        self._writing = self._writer = None
        self.end_replicator()
        self._process.end()

    def end_replicator(self) -> None:
        """End the replicator alone; it starts again by itself."""
        if self.replicator is not None:
            self.replicator = None
            self.log.close()
            self.disk.reopen()
        self._start_at_s = self._world.passed_s + RESTART_S

    def drain(self) -> None:
        """Ask the replicator to give all partitions away."""
        self.is_draining = True
        if self.replicator is not None:
            self.replicator.drain()

    def _start_replicator(self) -> None:
        is_cut, lags_until_s = self.log.is_cut, self.log.lags_until_s
        self.log = WorldLog(self._broker, self._world)
        self.log.is_cut, self.log.lags_until_s = is_cut, lags_until_s
        self.restarts += 1
        writer: Any = DiskWriter(self.disk)
        store = NotifyingStore(writer, self._notify)
        self.replicator = Replicator(
            self.catalogue,
            log=self.log,
            store=store,
            clock=self.clock,
            membership=Membership(gateway_id=self.name, endpoint=f"{self.name}:1", zone="", replicas=self._replicas),
            start_id=hash_of(self.name, self.restarts),
            repair_grace_s=self._repair_grace_s,
            publish=store.publish,
            index_rows_max=INDEX_ROWS_MAX,
            transfers=WorldTransfers(self.router.forwarder, self._loop),
            transfer_offsets_min=TRANSFER_OFFSETS_MIN,
            snapshots=None if self._files is None else MemorySnapshots(self._files),
            measures=self._measures,
        )
        if self.is_draining:
            self.replicator.drain()

    def step(self) -> str:
        """Do one step of the replicator, and of what writes snapshot files.

        Return what the replicator ended with, "" where it goes on.
        """
        if self.is_up:
            self._write_snapshots()
        if not self.is_up or self.is_frozen or self._world.passed_s < self._start_at_s:
            return ""
        try:
            if self.replicator is None:
                self._start_replicator()
            assert self.replicator is not None
            self.replicator.step(poll_s=0)
        except Killed:
            ended = "killed in a write"
        except StoreCorrupt:
            self.replicator = None
            self.disk.wipe()
            ended = "corrupt store, wiped"
        except (StoreUnavailable, NameInUse) as error:
            ended = str(error)
        except Exception as error:  # noqa: BLE001 - what nobody has foreseen ends the process, and nothing else
            self.last_error = ended = f"{type(error).__name__}: {error}"
        else:
            return ""
        self.end_replicator()
        self._notify(StoreChanges.of_everything())
        return ended

    # What it answers.

    async def unary(self, path: str, data: bytes, call: LocalCall) -> bytes:
        """Return the answer; raise a `QueryError`, or `PeerFailed` where the gateway goes."""
        method = self.methods.get(path)
        if method is None:
            raise PeerFailed(UNKNOWN)
        assert isinstance(method, UnaryMethod)
        answer = method.handler(data, call)
        return answer if isinstance(answer, bytes) else bytes(await self._process.run(answer))

    async def messages(self, path: str, data: bytes, call: LocalCall) -> AsyncGenerator[bytes, None]:
        """Yield the messages of a stream, until it ends or the gateway does."""
        method = self.methods[path]
        assert isinstance(method, StreamMethod)
        process = self._process  # the next one knows nothing of the call
        stream = _Stream(call, method.handler, data, self._bites)
        try:
            while (message := await process.run(stream.next())) is not None:
                yield message
        finally:
            await stream.close()

    async def ask(self, path: str, request: Message, response_class: Any) -> Answered:
        """Return how a client's call ends."""
        if not self.is_up:
            return Answered(None, GONE, "", None)
        call = LocalCall(CALL_S)
        try:
            message = response_class.FromString(await self.unary(path, request.SerializeToString(), call))
            error = None
        except QueryError as failed:
            message, error = None, status_of(failed)
        except PeerFailed as failed:
            message, error = None, failed.status
        trailer = dict(call.trailer)
        number = trailer.get(b"tablegate-partition", b"")
        partition = int(number) if number.isdigit() else None
        return Answered(message, error, trailer.get(b"tablegate-gateway", b"").decode(), partition)


class _Process:
    """A worker from its start to its end, which ends what it does for anybody."""

    def __init__(self) -> None:
        self.is_down = False
        self._ends: list[asyncio.Future[None]] = []  # of what it does

    def end(self) -> None:
        """End it at this instruction."""
        self.is_down = True
        for end in self._ends:
            _set(end)

    async def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Return what a coroutine does; raise `PeerFailed` where the process ends before."""
        if self.is_down:
            coroutine.close()
            raise PeerFailed(GONE)
        task, end = asyncio.ensure_future(coroutine), asyncio.get_running_loop().create_future()
        task.add_done_callback(lambda _: _set(end))
        self._ends.append(end)
        try:
            await end
            if self.is_down:
                raise PeerFailed(GONE)
            return task.result()
        finally:
            self._ends.remove(end)
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
            if not task.cancelled():
                task.exception()


class _Stream(LocalCall):
    """A stream's call: what its handler yields and offers, up to whoever reads it. It is parked where it may be."""

    def __init__(self, call: LocalCall, handler: StreamHandler, data: bytes, bites: Counter[str]) -> None:
        super().__init__(call.left_s, forwarded=call.forwarded)
        self._bites = bites
        self._refuses = random.choice(OFFERS_REFUSED)
        self._on_way: deque[bytes] = deque()
        self._read = self._news = asyncio.get_running_loop().create_future()
        self._task = asyncio.ensure_future(self._run(handler(data, self)))
        self._task.add_done_callback(lambda _: _set(self._news))

    @property
    @override
    def parks(self) -> bool:
        return self.left_s is None

    @override
    def offer(self, message: bytes) -> bool:
        if len(self._on_way) >= ON_WAY_MAX or random.random() < self._refuses:
            return False
        self._bites["message offered"] += 1
        self._put(message)
        return True

    async def next(self) -> bytes | None:
        """Return the next message; None where the stream has ended. Raise as its handler does."""
        while not self._on_way:
            if self._task.done():
                self._task.result()
                return None
            self._news = asyncio.get_running_loop().create_future()
            await self._news
        message = self._on_way.popleft()
        _set(self._read)
        return message

    async def close(self) -> None:
        """End it, as its client is gone."""
        self._task.cancel()
        await asyncio.wait({self._task})
        if not self._task.cancelled():
            self._task.exception()

    async def _run(self, messages: AsyncIterator[bytes]) -> None:
        while True:
            try:
                async with aclosing(messages):  # type: ignore[type-var]
                    async for message in messages:
                        self._put(message)
                        while self._on_way:
                            self._read = asyncio.get_running_loop().create_future()
                            await self._read
                return
            except Parked as parked:
                stream = parked.stream
            self._bites["stream parked"] += 1
            woken = asyncio.get_running_loop().create_future()
            stream.wait(partial(_set, woken))
            try:
                await woken
            except asyncio.CancelledError:
                stream.leave()
                raise
            messages = stream.messages()

    def _put(self, message: bytes) -> None:
        self._on_way.append(bytes(message))
        _set(self._news)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def hash_of(name: str, number: int) -> int:
    """Return a number of its own for each start of each gateway."""
    return int.from_bytes(name.encode(), "big") * 1_000 + number
