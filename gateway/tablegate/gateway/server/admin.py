"""The admin port: what those who run a gateway ask it, apart from what its clients ask.

    GET /healthz    200 while a worker's event loop turns
    GET /readyz     200 while all tables are served, else 503 with what is missing
    GET /metrics    as `metrics` has it
    GET /profile    where a worker spends its time, for some seconds
    GET /console    the page that shows all of this, and rows

Beside them grpc.health.v1 and tablegate.v1.GatewayService, by gRPC, gRPC-Web and Connect. All workers share the port,
and each answers for all of them. It asks for no certificate: who can reach it may read it.

The queries of the contracts are answered here, too, by Connect alone, as a page may call no other port than its own;
and GetHistory, which gives rows as they do. For them the access file of the data port counts, and its `--host`. Where
the data port asks for certificates there are none of them here, as who has no certificate would get rows.

Decision: docs/decisions/0102-an-admin-port.md
Decision: docs/decisions/0148-the-console-asks-its-own-port.md
"""

import asyncio
import contextlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import FrameType

from google.protobuf import descriptor_pool
from typing_extensions import override

from tablegate.gateway.access.gate import Gate
from tablegate.gateway.contract.catalogue import Catalogue
from tablegate.gateway.http.console.console import Console
from tablegate.gateway.http.exchange import TEXT, Exchange, ResponseHeaders
from tablegate.gateway.http.json_codec import JsonCodec
from tablegate.gateway.http.rpc.calls import Calls
from tablegate.gateway.http.rpc.connect import ConnectProtocol
from tablegate.gateway.http.rpc.grpc_web import GrpcWebProtocol
from tablegate.gateway.http.server import HttpServer, ServedHosts, WebProtocol, is_misdirected, keys_limits_of
from tablegate.gateway.http.tls import TlsFiles
from tablegate.gateway.query.call import Answer, Call, Method, Methods, UnaryMethod
from tablegate.gateway.query.errors import NotServed
from tablegate.gateway.server.health import Health
from tablegate.gateway.server.metadata import STATUS_SERVICE, STATUS_TIMEOUT_S
from tablegate.gateway.server.metrics import Metrics
from tablegate.gateway.stores.base import StoreReader, StoreUnavailable

HEALTH_PATH, READY_PATH, PROFILE_PATH = b"/healthz", b"/readyz", b"/profile"
PROFILE_S = 10

_NO_STORE = (b"cache-control", b"no-store")
_OK, _NOT_READY = (ResponseHeaders(status, (TEXT, _NO_STORE)) for status in (200, 503))
_METHOD_NOT_ALLOWED = ResponseHeaders(405, (TEXT, (b"allow", b"GET, HEAD")))
_GET_ALONE, _BAD_REQUEST = ResponseHeaders(405, (TEXT, (b"allow", b"GET"))), ResponseHeaders(400, (TEXT,))
_PROFILE_EACH_S = 0.01
_SECONDS = frozenset(b"%d" % number for number in range(1, 61))


def unready_reason(health: Health, store: StoreReader, *, is_late: bool) -> str:
    """Return what keeps a gateway from being ready; "" where nothing does. `is_late`: its replicator is."""
    if health.draining:
        return "the gateway drains"
    if health.serving:
        return ""
    try:
        with store.snapshot():
            pass
    except StoreUnavailable as error:
        return f"the store is away: {error}"
    if is_late:
        return "the replicator hangs"
    return f"not all tables are served; missing: {', '.join(sorted(health.missing))}"


class Probes:
    """Serves /healthz and /readyz. `unready_reason` returns what is missing, "" where nothing is."""

    def __init__(self, unready_reason: Callable[[], str]) -> None:
        self._unready_reason = unready_reason

    def serve(self, exchange: Exchange) -> bool:
        """Serve an exchange; return whether its path was one of a probe."""
        path = exchange.target.partition(b"?")[0]
        if path not in (HEALTH_PATH, READY_PATH):
            return False
        if exchange.method not in (b"GET", b"HEAD"):
            exchange.respond(_METHOD_NOT_ALLOWED, b"probes ask by GET\n")
        elif path == READY_PATH and (reason := self._unready_reason()):
            exchange.respond(_NOT_READY, f"{reason}\n".encode())
        else:
            exchange.respond(_OK, b"ok\n")
        return True


def moved_methods(history: Methods) -> Methods:
    """Return, for the data port, the methods that the admin port has in its place: they say so.

    GetTable and WatchTable stay: clients look up by them where a table is. So does GetHistory, of `history`, for other
    gateways: they know each other's data ports alone.
    """

    def refuse(_data: bytes, _call: Call) -> bytes:
        raise NotServed("this gateway answers it at its admin port, of --admin; ask there")

    def forwarded_alone(method: Method) -> UnaryMethod:
        assert isinstance(method, UnaryMethod)

        def handle(data: bytes, call: Call) -> Answer:
            return refuse(data, call) if call.forwarded is None else method.handler(data, call)

        return replace(method, handler=handle)

    method = UnaryMethod(refuse, STATUS_TIMEOUT_S, STATUS_TIMEOUT_S)
    return {
        **{f"/{STATUS_SERVICE}/{name}": method for name in ("GetStatus", "Explain")},
        **{path: forwarded_alone(method) for path, method in history.items()},
    }


class Profiles:
    """Serves /profile?seconds=10: where the threads of this worker are, 100 times a second, as collapsed stacks.

    A line is a thread, its calls and how often they were seen, which flamegraph.pl and speedscope draw. One at a time.
    """

    def __init__(self) -> None:
        self._stop: threading.Event | None = None  # of the one that is made

    def serve(self, exchange: Exchange) -> bool:
        """Serve an exchange; return whether its path was that of a profile."""
        path, _, query = exchange.target.partition(b"?")
        if path != PROFILE_PATH:
            return False
        seconds = _profile_seconds(query)
        if exchange.method != b"GET":
            exchange.respond(_GET_ALONE, b"a profile is asked for by GET\n")
        elif seconds is None:
            exchange.respond(_BAD_REQUEST, b"/profile takes seconds=N alone; send a number from 1 to 60\n")
        elif self._stop is not None:
            exchange.respond(_NOT_READY, b"another profile is made; ask again when it is done\n")
        else:
            self._make(exchange, seconds)
        return True

    def end(self) -> None:
        """Answer with what is there so far."""
        if self._stop is not None:
            self._stop.set()

    def _make(self, exchange: Exchange, seconds: int) -> None:
        stop = self._stop = threading.Event()
        exchange.on_gone = stop.set
        loop = asyncio.get_running_loop()

        def answer(body: bytes) -> None:
            self._stop = None
            exchange.on_gone = None
            exchange.respond(_OK, body)

        def run() -> None:
            body = _profile(seconds, stop)
            with contextlib.suppress(RuntimeError):  # the worker has ended meanwhile
                loop.call_soon_threadsafe(answer, body)

        threading.Thread(target=run, name="profile", daemon=True).start()


def _profile_seconds(query: bytes) -> int | None:
    """Return for how long a profile is asked for; None where that cannot be."""
    name, _, text = query.partition(b"=")
    if not query:
        return PROFILE_S
    return int(text) if name == b"seconds" and text in _SECONDS else None


def _profile(seconds: int, stop: threading.Event) -> bytes:
    """Return the collapsed stacks of all threads but this one."""
    own, ends_s = threading.get_ident(), time.monotonic() + seconds
    seen: Counter[str] = Counter()
    while time.monotonic() < ends_s and not stop.wait(_PROFILE_EACH_S):
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            if ident != own:
                seen[_stack(names.get(ident, str(ident)), frame)] += 1
    return "".join(f"{stack} {count}\n" for stack, count in seen.most_common()).encode()


def _stack(thread: str, frame: FrameType | None) -> str:
    calls = []
    while frame is not None:
        calls.append(f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_qualname}")
        frame = frame.f_back
    return ";".join([thread.replace(";", ","), *reversed(calls)])


class ConsoleQueries:
    """The queries of the contracts for the console, by Connect; `gate` and `hosts` as at the data port."""

    def __init__(self, methods: Methods, codec: JsonCodec, *, gate: Gate | None, hosts: ServedHosts) -> None:
        self.calls = Calls(gate=gate)
        self._connect = ConnectProtocol(methods, self.calls, codec)
        self._paths = frozenset(path.encode() for path in methods)
        self._hosts = hosts

    def serve(self, exchange: Exchange) -> bool:
        """Serve an exchange; return whether its path was that of a query."""
        if exchange.target.partition(b"?")[0] not in self._paths:
            return False
        return is_misdirected(exchange, self._hosts) or self._connect.serve(exchange)


class AdminServer(HttpServer):
    """The server of the admin port. `tls`: files of the data port; what they say of clients does not count.

    `methods` are asked by anybody, `queries` by whom `gate` lets in.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        methods: Methods,
        address: str,
        *,
        metrics: Metrics,
        unready_reason: Callable[[], str],
        tls: TlsFiles | None,
        data_port: int,
        queries: Methods,
        gate: Gate | None = None,
        hosts: Iterable[str] = (),
    ) -> None:
        codec = JsonCodec([catalogue.pool, descriptor_pool.Default()], keys_limits_of(catalogue))
        self._profiles = Profiles()
        has_rows = tls is None or tls.client_ca is None
        self._queries = ConsoleQueries(queries if has_rows else {}, codec, gate=gate, hosts=ServedHosts(address, hosts))

        def protocols(methods: Methods, calls: Calls) -> Sequence[WebProtocol]:
            return (
                self._queries,
                GrpcWebProtocol(methods, calls),
                ConnectProtocol(methods, calls, codec),
                Probes(unready_reason),
                self._profiles,
                metrics,
                Console(catalogue, data_port=data_port),
            )

        super().__init__(
            methods,
            address,
            web=protocols,
            tls=None if tls is None else replace(tls, client_ca=None),
            shared_port=True,
            hosts=ServedHosts(address, hosts, alone=False),  # probes ask by any address
        )

    @property
    def query_calls(self) -> Calls:
        """Return what is at work of the queries."""
        return self._queries.calls

    @override
    def check_streams(self) -> None:
        super().check_streams()
        self._queries.calls.check_streams()

    @override
    def drain(self) -> None:
        super().drain()
        self._profiles.end()
        self._queries.calls.drain()

    @override
    async def stop(self, grace_s: float) -> None:
        self.drain()
        await self._queries.calls.finish(grace_s)
        await super().stop(grace_s)
