"""A gateway with an admin port in this process, over several tables that change, for the console and its tests."""

import asyncio
import random
import socket
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from typing_extensions import override

from tablegate.examples import CONTRACTS
from tablegate.examples.demo.kafka import free_port
from tablegate.gateway.access.gate import Gate
from tablegate.gateway.contract.binder.binder import bind, merge
from tablegate.gateway.contract.catalogue import Catalogue
from tablegate.gateway.contract.descriptors import load_descriptors
from tablegate.gateway.http.console.console import Console
from tablegate.gateway.http.rpc.calls import Calls
from tablegate.gateway.http.server import HttpServer, WebProtocol, web_protocols
from tablegate.gateway.query.call import Methods
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.query.subscribe.open_streams import OpenStreams
from tablegate.gateway.replication.records import RUN_AT
from tablegate.gateway.server.admin import AdminServer
from tablegate.gateway.server.child import ProcessFile
from tablegate.gateway.server.health import Health
from tablegate.gateway.server.metadata import history_methods, metadata_methods, status_methods
from tablegate.gateway.server.metrics import Metrics
from tablegate.gateway.server.subscriptions import Subscriptions
from tablegate.gateway.stores.notifier import Notifier
from tablegate.v1.changelog_pb2 import JOB_MODE_REALTIME
from tablegate.v1.cluster_pb2 import REPLICA_PHASE_LIVE
from tablegate.v1.status_pb2 import (
    PARTITION_STATE_LIVE,
    TABLE_STATE_NO_MANIFEST,
    TABLE_STATE_SERVING,
    GetStatusResponse,
    SnapshotsStatus,
)
from tests.kit.gateways_in_process.threaded import ServerThread
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import SIGNER, FilledTable, now_ms

NAMES = ("actions", "balances", "customers", "products", "ratings", "rewards", "stocks")
PATHS = tuple(CONTRACTS / f"examples/{name}/v1/{name}.proto" for name in NAMES)

_FIRST = ("Ada", "Grace", "Alan", "Edsger", "Barbara", "Donald", "Radia", "Leslie", "Frances", "Tony")
_LAST = ("Lovelace", "Hopper", "Turing", "Dijkstra", "Liskov", "Knuth", "Perlman", "Lamport", "Allen", "Hoare")
_PRODUCTS = ("kettle", "lamp", "desk", "chair", "shelf", "mug", "rug", "clock", "stool", "vase")
_SYMBOLS = ("ACME", "BOLT", "CORE", "DYNA", "ECHO", "FLUX", "GRID", "HALO", "IONA", "JADE")


def row_of(catalogue: Catalogue, table: str, number: int, chance: random.Random) -> Any:
    """Return a row of a table of the examples, as a reader would expect one; `number` says which key it has."""
    row: Any = catalogue.tables[table].row_class()
    match table:
        case "ratings":
            row.movie_id, row.rating_count = number, chance.randrange(1, 4_000)
            row.average_rating = round(chance.uniform(4, 10), 1)
        case "customers":
            row.id, row.account_number = number, f"DE{10_000_000 + number * 7_919 % 90_000_000}"
            row.name = f"{_FIRST[number % 10]} {_LAST[number // 10 % 10]}"
            row.status = chance.choice(("active", "active", "active", "closed"))
        case "product_views":
            row.product, row.view_count = f"{_PRODUCTS[number % 10]}-{number}", chance.randrange(10_000)
        case "balances":
            row.customer_id, row.booking_count = f"c-{number:04}", chance.randrange(200)
            row.balance.currency_code, row.balance.units = "EUR", chance.randrange(-500, 20_000)
        case "stock_ticks":
            row.symbol, row.price = f"{_SYMBOLS[number % 10]}{number // 10 or ''}", f"{chance.uniform(5, 900):.2f}"
        case "reward_points":
            row.customer_card_no, row.invoice_count = f"{4_000_000 + number}", chance.randrange(60)
            row.points = round(chance.uniform(0, 900), 1)
        case "accounts":
            row.bank, row.account_id, row.number = ("ash", "birch")[number % 2], number, f"N-{number}"
            row.address.city = ("Bonn", "Ulm", "Kiel")[number % 3]
        case _:
            row.browser, row.action_count = f"browser-{number}", chance.randrange(500)
            row.window_start.FromMilliseconds(now_ms() // 60_000 * 60_000)
            row.window_end.FromMilliseconds(row.window_start.ToMilliseconds() + 60_000)
    if "update_time" in row.DESCRIPTOR.fields_by_name:
        row.update_time.FromMilliseconds(now_ms())
    return row


class ConsoleGateway(ServerThread):
    """Its admin port is `port`, or, without one, that of its clients: any, or one that is given.

    `row_counts`: of tables, by name.

    `change` writes rows, and `status` says what the replicator would. `access`: an access file.
    """

    def __init__(
        self,
        row_counts: dict[str, int],
        *,
        contracts: Sequence[Path] = PATHS,
        partition_count: int = 8,
        has_admin: bool = True,
        access: Path | None = None,
        port: int = 0,
    ) -> None:
        super().__init__(self._made)
        self.catalogue = bind(merge([load_descriptors(path) for path in contracts]))
        self.data_port = free_port()
        self.kafka_reachable = True
        self.snapshots: SnapshotsStatus | None = None  # what it says of snapshot files; None: it writes none
        self._published_ms = now_ms()
        self.chance = random.Random(7)
        self.store = MemoryStore()
        self.tables = {
            name: FilledTable(self.store, self.catalogue.tables[name], partition_count) for name in row_counts
        }
        for name, table in self.tables.items():
            table.publish()
            table.put(row_of(self.catalogue, name, number, self.chance) for number in range(1, row_counts[name] + 1))
        self.row_counts = row_counts
        self._has_admin = has_admin
        self._access = access
        self._port = port
        self.say()

    @override
    def __enter__(self) -> Self:
        self._scratch = tempfile.TemporaryDirectory(prefix="console-")
        return super().__enter__()

    @override
    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._scratch.cleanup()

    def change(self, name: str, number: int | None = None, count: int = 1) -> None:
        """Write rows anew: that of one number, or of any."""
        table, most = self.tables[name], self.row_counts[name]
        numbers = [number or self.chance.randrange(1, most + 1) for _ in range(count)]
        self.do(lambda: table.put([row_of(self.catalogue, name, each, self.chance) for each in numbers]))

    def delete(self, name: str, number: int) -> None:
        """Delete the row of a number."""
        row = row_of(self.catalogue, name, number, self.chance)
        self.do(lambda: self.tables[name].delete([row]))

    def say(self, *, foreign: Collection[str] = (), set_aside: Mapping[str, int] = MappingProxyType({})) -> None:
        """Let the store say of all tables how far they are, as the replicator does; of some that others write them.

        `set_aside`: how many records of each table, by reason.
        """
        status = GetStatusResponse(kafka_reachable=self.kafka_reachable)
        status.beat_time.GetCurrentTime()
        for name in sorted(self.catalogue.tables):
            table = self.tables.get(name)
            if table is None:
                status.tables.add(
                    table=name, state=TABLE_STATE_NO_MANIFEST, problem="its job has published no manifest"
                )
                continue
            entry = status.tables.add(table=name, serving=True, state=TABLE_STATE_SERVING)
            entry.manifest.generation, entry.manifest.partition_count = table.generation, table.partition_count
            entry.manifest.changelog_topic = f"{name}-g{table.generation}-changelog"
            entry.manifest.sources.add(topic=f"{name}-events")
            if name in foreign:
                entry.manifest.foreign.SetInParent()
            for reason, count in set_aside.items():
                entry.poison.add(reason=reason, count=count)
            entry.manifest.mode = JOB_MODE_REALTIME
            entry.manifest.publish_time.FromMilliseconds(self._published_ms)
            read = {(f"{name}-events", number): table.sequence // 3 + number for number in range(3)}
            for partition, offset in table.next_offsets.items():
                table.move(partition, source_offsets={**read, RUN_AT: 12})
                one = entry.partitions.add(partition=partition, phase=REPLICA_PHASE_LIVE, state=PARTITION_STATE_LIVE)
                one.next_offset = one.end_offset = offset
                one.as_of_time.GetCurrentTime()
                one.marker_time.GetCurrentTime()
        self.store.set_status(status.SerializeToString())

    def do(self, work: Callable[[], None]) -> None:
        """Do something in the thread of the event loop, and tell who waits for changes."""

        async def run() -> None:
            work()
            self._notifier.notify()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def _made(self) -> HttpServer:
        self._loop, self._notifier = asyncio.get_running_loop(), Notifier()
        parts = self.catalogue, self.store, SIGNER, self._notifier
        file = ProcessFile(Path(self._scratch.name), name="worker-0", parent=1)
        self.second_worker = ProcessFile(Path(self._scratch.name), name="worker-1", parent=1)
        subscriptions = Subscriptions(streams := OpenStreams(), self.store, file)
        queries = {**query_methods(*parts, streams=streams), **history_methods(*parts)}
        own: Methods = {
            **Health(self.catalogue).methods(),
            **status_methods(
                self.store, subscriptions=subscriptions, snapshots=lambda: GetStatusResponse(snapshots=self.snapshots)
            ),
            **metadata_methods(*parts),
        }
        gate = None if self._access is None else Gate(self._access, self.catalogue)
        console = None if self._has_admin else Console(self.catalogue, data_port=self.data_port)
        web = web_protocols(self.catalogue, console=console)
        metrics: list[Metrics] = []

        def protocols(methods: Methods, calls: Calls) -> Sequence[WebProtocol]:
            metrics.append(Metrics(calls, self.store, file, lambda: {"connections": data.connections}))
            return *web(methods, calls), *metrics

        data = HttpServer({**queries, **own}, f"127.0.0.1:{self.data_port}", web=protocols, gate=gate)
        if not self._has_admin:
            return data
        return _WithDataPort(self, data, own, queries, metrics[0], gate, self._port)


class _WithDataPort(AdminServer):
    """The admin port, which starts and stops the data port with it."""

    def __init__(
        self,
        gateway: ConsoleGateway,
        data: HttpServer,
        own: Methods,
        queries: Methods,
        metrics: Metrics,
        gate: Gate | None,
        port: int,
    ) -> None:
        super().__init__(
            gateway.catalogue,
            own,
            f"127.0.0.1:{port}",
            metrics=metrics,
            unready_reason=lambda: "",
            tls=None,
            data_port=gateway.data_port,
            queries=queries,
            gate=gate,
        )
        self._data = data

    @override
    async def start(self) -> None:
        await self._data.start()
        await super().start()

    @override
    async def stop(self, grace_s: float) -> None:
        await self._data.stop(grace_s)
        await super().stop(grace_s)


class Busy:
    """Changes tables of a gateway, and says how far they are, in a thread, until the context ends."""

    def __init__(self, gateway: ConsoleGateway, *, every_s: float = 0.1) -> None:
        self._gateway = gateway
        self._every_s = every_s
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        chance = random.Random(11)
        while not self._ends.wait(self._every_s):
            for place, (name, row_count) in enumerate(self._gateway.row_counts.items()):
                if row_count:
                    self._gateway.change(name, count=chance.randrange(1, 5 * (place + 1)))
            self._gateway.do(self._gateway.say)


@contextmanager
def silent_stream(port: int, method: str) -> Iterator[None]:
    """Open a stream by Connect at a port of this machine, and read nothing of it, until the context ends."""
    body = b"\0\0\0\0\2{}"
    head = f"POST /{method} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/connect+json\r\n"
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.connect(("127.0.0.1", port))
        client.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        yield
