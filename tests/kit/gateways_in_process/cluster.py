"""Gateways of one cluster: real servers over memory stores, in a thread's event loop, which ask each other by gRPC.

What the replicators would announce is written by hand. Beside them one gateway that stands alone has every partition:
what it answers is right.
"""

import asyncio
import itertools
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import grpc
from google.protobuf.message import Message
from typing_extensions import override

from tablegate.gateway.access.gate import Gate
from tablegate.gateway.cluster.directory import SWITCH_S, Directory
from tablegate.gateway.cluster.forward_token import ForwardTokenSigner
from tablegate.gateway.cluster.peers import Credentials, GrpcForwarder
from tablegate.gateway.cluster.scatter import ANSWER_BYTES_MAX, Router
from tablegate.gateway.cluster.traced_peers import TracedForwarder
from tablegate.gateway.contract.catalogue import Catalogue
from tablegate.gateway.contract.tokens import TokenSigner
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.http.console.console import Console
from tablegate.gateway.http.rpc.calls import CallLimits, Calls
from tablegate.gateway.http.server import HttpServer, web_protocols
from tablegate.gateway.http.tls import TlsFiles
from tablegate.gateway.query.call import Call, Methods, TopicEnds, UnaryMethod
from tablegate.gateway.query.limits import DEFAULT_LIMITS, QueryLimits
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.query.serving import wall_clock_ms
from tablegate.gateway.server.health import Health
from tablegate.gateway.server.metadata import history_methods, metadata_methods, status_methods
from tablegate.gateway.stores.base import Phase, StoreUnavailable
from tablegate.gateway.stores.notifier import Notifier
from tablegate.gateway.telemetry.measures import Measures
from tablegate.gateway.telemetry.spans import Tracer
from tablegate.v1.changelog_pb2 import ForeignTopic
from tablegate.v1.status_pb2 import GetStatusResponse
from tests.kit.store.breaking import BreakingStore
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import RATINGS, SIGNER, FilledTable, catalogue_of, rating

ALONE = ""
DEFAULT_PORT = 50051  # in what the console shows, where none is known yet

MakeTracer = Callable[[str, Measures], Tracer]
"""From a gateway's id and what it measures to what makes its spans."""

Placement = Mapping[str, Collection[int]]
"""From a gateway's id to the partitions that it has."""

EACH_ON_TWO: Placement = {"a": [0, 1, 2, 3], "b": [2, 3, 4, 5], "c": [4, 5, 0, 1]}
EACH_ON_ONE: Placement = {"a": [0, 1], "b": [2, 3], "c": [4, 5]}


class Called(NamedTuple):
    """A unary call that came: its method, whether another gateway made it, and the seconds that it had left."""

    method: str
    is_forwarded: bool
    left_s: float


class WrittenEnds(TopicEnds):
    """Kafka, as far as one gateway asks it: its changelogs end where a table's writer is."""

    def __init__(self, table: FilledTable) -> None:
        self.asked = 0
        self._table = table

    @override
    async def ends(self, topic: str) -> Mapping[int, int]:
        self.asked += 1
        return {int(partition): offset for partition, offset in self._table.next_offsets.items()}


class ClusterGateway:
    """A gateway. `calls` are the unary ones that came; `on_call` is called with each. One that hangs answers none.

    It answers from `store`, which a test may break; `table` writes to what is behind that.
    """

    def __init__(
        self,
        gateway_id: str,
        contract: Path,
        table: str,
        partition_count: int,
        signer: TokenSigner,
        tls: TlsFiles | None,
        loop: asyncio.AbstractEventLoop,
        *,
        limits: QueryLimits,
        call_limits: CallLimits | None,
        switch_s: float,
        answer_bytes_max: int,
        gate: Gate | None,
        has_console: bool,
        make_tracer: MakeTracer | None,
    ) -> None:
        self.gate = gate
        self._has_console = has_console
        self.gateway_id = gateway_id
        self.port = 0
        self.calls: list[Called] = []
        self.on_call: Callable[[], object] = lambda: None
        self.hangs = False
        self.catalogue = catalogue_of(contract)
        self.held: frozenset[Partition] = frozenset()
        self.table = FilledTable(MemoryStore(), self.catalogue.tables[table], partition_count)
        self.table.publish(phase=Phase.RESTORING)
        self.store = BreakingStore(self.table.store)
        self.ends = WrittenEnds(self.table)
        self.status = b""
        self._signer = signer
        self._tls = tls
        self._loop = loop
        self._limits = limits
        self.measures = Measures()
        self.tracer = None if make_tracer is None else make_tracer(gateway_id, self.measures)
        self._call_limits = call_limits
        self._switch_s = switch_s
        self._answer_bytes_max = answer_bytes_max
        self._notifier = Notifier()
        self._server: HttpServer | None = None

    @property
    def is_up(self) -> bool:
        """Return whether it listens."""
        return self._server is not None

    def start(self) -> None:
        """Listen: on the port of before, if there was one."""

        async def start() -> None:
            self._server = self._made()
            await self._server.start()
            self.port = self._server.port

        asyncio.run_coroutine_threadsafe(start(), self._loop).result()

    def stop(self) -> None:
        """End calls, and listen no more."""

        async def stop() -> None:
            assert self._server is not None
            await self._server.stop(0)
            await self.router.forwarder.close()
            self._server = None
            if self.tracer is not None:
                self.tracer.close()

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result()

    def do(self, work: Callable[[], None]) -> None:
        """Do something in the thread of the event loop."""

        async def run() -> None:
            work()
            self._notifier.notify()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def check_streams(self) -> None:
        """End streams that are not allowed any more. In the thread of the event loop."""
        assert self._server is not None
        self._server.check_streams()

    def put(self, rows: Iterable[Message]) -> None:
        """Apply those rows whose partitions are here."""
        mine = [row for row in rows if self.table.partition_of(row) in self.held]
        self.do(lambda: self.table.put(mine))

    def refresh(self) -> None:
        """Look at what the replicator has left in the store, as a worker does; nothing of it rings there."""
        with suppress(StoreUnavailable), self.store.snapshot() as snapshot:
            self.router.refresh(snapshot, self.catalogue.tables)

    @property
    def served_calls(self) -> Calls:
        """Return what is at work at its server."""
        assert self._server is not None
        return self._server.calls

    def hold(self, partitions: Iterable[int], phase: Phase = Phase.LIVE) -> None:
        """Have these partitions, and no others."""
        held = frozenset(Partition(number) for number in partitions)

        def move() -> None:
            for partition in map(Partition, range(self.table.partition_count)):
                self.table.move(partition, phase=phase if partition in held else Phase.RESTORING)
            self.held = held

        self.do(move)

    def _made(self) -> HttpServer:
        credentials = None
        if self._tls is not None:
            credentials = Credentials(self._tls.certificate, self._tls.key, self._tls.client_ca)
        make_forwarder = GrpcForwarder if self.tracer is None else TracedForwarder
        forwarder = make_forwarder(
            ForwardTokenSigner(self._signer, wall_clock_ms).sign,
            credentials,
            answer_bytes_max=self._answer_bytes_max,
            measures=self.measures,
        )
        self.router = Router(Directory(switch_s=self._switch_s), forwarder)
        parts = self.catalogue, self.store, self._signer, self._notifier
        queries = query_methods(
            *parts,
            ends=self.ends,
            router=self.router,
            limits=self._limits,
            measures=self.measures,
            is_traced=self.tracer is not None,
        )
        methods = {
            **queries,
            **metadata_methods(*parts, ends=self.ends, router=self.router),
            **Health(self.catalogue).methods(),
            **(status_methods(self.store) | history_methods(*parts, router=self.router) if self._has_console else {}),
        }
        console = Console(self.catalogue, data_port=self.port or DEFAULT_PORT) if self._has_console else None
        address = f"127.0.0.1:{self.port}"
        return HttpServer(
            self._watched(methods),
            address,
            web=web_protocols(self.catalogue, console=console),
            tls=self._tls,
            call_limits=self._call_limits,
            gate=self.gate,
            measures=self.measures,
            tracer=self.tracer,
            traced=queries.keys(),
        )

    def _watched(self, methods: Methods) -> Methods:
        def watched(path: str, method: UnaryMethod) -> UnaryMethod:
            def handle(data: bytes, call: Call) -> Any:
                self.calls.append(Called(path.rpartition("/")[2], call.forwarded is not None, call.time_left_s() or 0))
                self.on_call()
                return asyncio.Event().wait() if self.hangs else method.handler(data, call)

            return replace(method, handler=handle)

        return {
            path: watched(path, method) if isinstance(method, UnaryMethod) else method
            for path, method in methods.items()
        }


class GrpcCluster(AbstractContextManager["GrpcCluster"]):
    """Gateways by id, those of `held`; `whole` stands alone and has everything. One at a time in a process.

    Servers share a buffer, so they need to be in one thread; their clients are in others.
    """

    def __init__(
        self,
        held: Placement,
        *,
        contract: Path = RATINGS,
        table: str = "ratings",
        service: str = "/examples.ratings.v1.RatingsService",
        partition_count: int = 6,
        signers: Mapping[str, TokenSigner] | None = None,
        tls: TlsFiles | None = None,
        limits: QueryLimits = DEFAULT_LIMITS,
        call_limits: CallLimits | None = None,
        switch_s: float = SWITCH_S,
        answer_bytes_max: int = ANSWER_BYTES_MAX,
        gate: Callable[[Catalogue], Gate] | None = None,
        contracts: Mapping[str, Path] | None = None,
        has_console: bool = False,
        make_tracer: MakeTracer | None = None,
    ) -> None:
        """Make the gateways; `gate` makes what decides who may call them; `contracts`: of those with another one.

        `has_console`: each serves the console, and the status that it asks for. `make_tracer` makes what makes spans.
        """
        self._service = service
        self._tls = tls
        self._channels: dict[str, grpc.Channel] = {}
        self._streams: list[Any] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

        def made(gateway_id: str) -> ClusterGateway:
            signer = (signers or {}).get(gateway_id, SIGNER)
            return ClusterGateway(
                gateway_id,
                (contracts or {}).get(gateway_id, contract),
                table,
                partition_count,
                signer,
                tls,
                self._loop,
                limits=limits,
                call_limits=call_limits,
                switch_s=switch_s,
                answer_bytes_max=answer_bytes_max,
                gate=None if gate is None else gate(catalogue_of(contract)),
                has_console=has_console,
                make_tracer=make_tracer,
            )

        self.gateways = {gateway_id: made(gateway_id) for gateway_id in held}
        self.whole = made(ALONE)
        self.whole.hold(range(partition_count))
        for gateway_id, partitions in held.items():
            self.gateways[gateway_id].hold(partitions)
        self.catalogue = self.whole.catalogue

    def __getitem__(self, gateway_id: str) -> ClusterGateway:
        return self.gateways[gateway_id]

    @override
    def __enter__(self) -> Self:
        for gateway in (self.whole, *self.gateways.values()):
            gateway.start()
        self.announce()
        return self

    @override
    def __exit__(self, *_: object) -> None:
        for channel in self._channels.values():
            channel.close()
        for gateway in (self.whole, *self.gateways.values()):
            if gateway.is_up:
                gateway.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def announce(self, *, dead: Collection[str] = ()) -> None:
        """Let all gateways know of each other, as they are now."""
        status = GetStatusResponse(kafka_reachable=True)
        for gateway in self.gateways.values():
            announced = status.gateways.add(alive=gateway.gateway_id not in dead)
            announced.record.gateway_id = gateway.gateway_id
            announced.record.endpoint = f"127.0.0.1:{gateway.port}"
            serving = announced.record.tables.add(table=gateway.table.table.name).serving
            serving.generation = gateway.table.generation
            for partition in sorted(gateway.held):
                serving.partitions.append(partition)
                serving.phases.append(Phase.LIVE)  # type: ignore[arg-type]
                serving.next_offsets.append(0)
        for gateway in self.gateways.values():
            status.gateway_id = gateway.gateway_id
            self.announce_to(gateway, status.SerializeToString())

    @staticmethod
    def announce_to(gateway: ClusterGateway, status: bytes) -> None:
        """Give a gateway its replicator's status."""
        gateway.status = status
        gateway.table.store.set_status(status)
        if gateway.is_up:
            gateway.do(gateway.refresh)

    def ask_nobody_twice(self) -> None:
        """Spend the hedges of all gateways; ten answers earn one again. On a busy machine any call may be hedged."""
        for gateway in self.gateways.values():
            while gateway.router.forwarder.may_hedge():
                pass

    def calls(self) -> list[str]:
        """Return which gateways were called by others, once for each call; and forget it."""
        called = [name for name, gateway in self.gateways.items() for each in gateway.calls if each.is_forwarded]
        for gateway in self.gateways.values():
            gateway.calls.clear()
        return called

    def place(self, held: Placement) -> None:
        """Have partitions elsewhere from now on; their rows are to be put anew."""
        for gateway_id, partitions in held.items():
            self.gateways[gateway_id].hold(partitions)
        self.announce()

    def be_foreign(self, topic: ForeignTopic, place: Callable[[bytes], Partition]) -> None:
        """Let the table be of a topic that others write; `place`: where they put a key."""
        for gateway in (self.whole, *self.gateways.values()):
            with gateway.table.store.snapshot() as snapshot:
                state = snapshot.table(gateway.table.table.name)
            assert state is not None
            state.manifest.foreign.CopyFrom(topic)
            gateway.do(partial(gateway.table.store.put_table, gateway.table.table.name, state))
            gateway.table.place = place

    def put(self, rows: Iterable[Message]) -> None:
        """Write rows to all gateways that have their partitions."""
        rows = list(rows)
        for gateway in (self.whole, *self.gateways.values()):
            gateway.put(rows)

    def path(self, method: str) -> str:
        """Return the path of a method."""
        return f"{self._service}/{method}"

    def request(self, method: str, **fields: Any) -> Any:
        """Return a request."""
        return self.catalogue.queries[self.path(method)].request_class(**fields)

    def ask(
        self,
        gateway_id: str,
        method: str,
        request: Any = None,
        *,
        metadata: Any = None,
        timeout_s: float = 20,
        **fields: Any,
    ) -> Any:
        """Return what a gateway answers."""
        return self.ask_whole(gateway_id, method, request, metadata=metadata, timeout_s=timeout_s, **fields)[0]

    def ask_whole(
        self,
        gateway_id: str,
        method: str,
        request: Any = None,
        *,
        metadata: Any = None,
        timeout_s: float = 20,
        **fields: Any,
    ) -> tuple[Any, dict[str, str]]:
        """Return what a gateway answers, and its trailer."""
        response_class: Any = self.catalogue.queries[self.path(method)].response_class
        data = (request or self.request(method, **fields)).SerializeToString()
        call: Any = self._channel(gateway_id).unary_unary(self.path(method), None, None)
        answer, details = call.with_call(data, timeout=timeout_s, metadata=metadata)
        return response_class.FromString(answer), dict(details.trailing_metadata())

    def stream(
        self, gateway_id: str, method: str, request: Any = None, *, metadata: Any = None, **fields: Any
    ) -> Iterator[Any]:
        """Yield the messages of a gateway's stream."""
        response_class: Any = self.catalogue.queries[self.path(method)].response_class
        data = (request or self.request(method, **fields)).SerializeToString()
        call: Any = self._channel(gateway_id).unary_stream(self.path(method), None, None)
        messages = call(data, metadata=metadata)
        self._streams.append(messages)
        for message in messages:
            yield response_class.FromString(message)

    def cancel_streams(self) -> None:
        """End the streams that were begun."""
        while self._streams:
            self._streams.pop().cancel()

    def _channel(self, gateway_id: str) -> grpc.Channel:
        channel = self._channels.get(gateway_id)
        if channel is None:
            gateway = self.whole if gateway_id == ALONE else self.gateways[gateway_id]
            address = f"127.0.0.1:{gateway.port}"
            options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
            if self._tls is None:
                channel = grpc.insecure_channel(address, options)
            else:
                tls = self._tls
                assert tls.client_ca is not None
                credentials = grpc.ssl_channel_credentials(
                    tls.client_ca.read_bytes(), tls.key.read_bytes(), tls.certificate.read_bytes()
                )
                channel = grpc.secure_channel(address, credentials, options)
            self._channels[gateway_id] = channel
        return channel


def movie_of(cluster: GrpcCluster, partition: int, *, first: int = 0) -> int:
    """Return the first movie, of those from `first` on, whose row is of a partition."""
    return next(
        number for number in itertools.count(first) if cluster.whole.table.partition_of(rating(number)) == partition
    )
