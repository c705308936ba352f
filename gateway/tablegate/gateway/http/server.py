"""The HTTP server: every protocol on one port. Exchanges go to gRPC first, which gives on what is not of gRPC.

Decision: docs/decisions/0008-an-http-server-of-our-own.md
Decision: docs/decisions/0113-our-http2-beside-others.md
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from ipaddress import ip_address
from typing import Protocol

from google.protobuf import descriptor_pool

from tablegate.gateway.access.gate import Gate
from tablegate.gateway.access.policy import Right
from tablegate.gateway.contract.catalogue import BatchGetQuery, Catalogue
from tablegate.gateway.http.console.console import Console
from tablegate.gateway.http.cors import Cors
from tablegate.gateway.http.exchange import TEXT, Exchange, ResponseHeaders
from tablegate.gateway.http.json_codec import JSON_BYTES_MAX, JsonCodec, KeysLimit
from tablegate.gateway.http.listener import Limits, Listener
from tablegate.gateway.http.memory import MemoryLimits
from tablegate.gateway.http.rest.arrow import ArrowRows
from tablegate.gateway.http.rest.pages import Pages
from tablegate.gateway.http.rest.protocol import RestProtocol
from tablegate.gateway.http.rpc.calls import HTTP_STATUSES, CallLimits, Calls, retry_after
from tablegate.gateway.http.rpc.connect import ConnectProtocol
from tablegate.gateway.http.rpc.grpc import GrpcProtocol
from tablegate.gateway.http.rpc.grpc_web import GrpcWebProtocol
from tablegate.gateway.http.rpc.traced_calls import TracedCalls
from tablegate.gateway.http.tls import TlsFiles
from tablegate.gateway.query.call import Methods
from tablegate.gateway.query.errors import QueryError, code_of
from tablegate.gateway.telemetry.measures import Measures
from tablegate.gateway.telemetry.spans import Tracer

CLOSE_S = 1.0  # for clients to read their last answers

_NOT_FOUND = ResponseHeaders(404, (TEXT,))
_MISDIRECTED = ResponseHeaders(421, (TEXT,))


def host_name(host: bytes) -> bytes:
    """Return the name in a host header, lower case and without its port."""
    if host.startswith(b"["):
        return host.partition(b"]")[0].lower() + b"]"
    return host.partition(b":")[0].lower()


class ServedHosts:
    """The names under which requests that are not gRPC are served: `hosts` alone; where there are none, any.

    Any but at an address that only this machine reaches. Whoever asks there calls it localhost or by its number; a page
    that a browser here has opened, and whose own name now leads here (DNS rebinding), by that name.
    """

    def __init__(self, address: str, hosts: Iterable[str] = (), *, alone: bool = True) -> None:
        """`alone`: False to serve `hosts` beside what would be served without them."""
        self._hosts = frozenset(host.encode("ascii") for host in hosts)
        self._alone = alone and bool(self._hosts)
        self._is_local = _is_of_this_machine(host_name(address.encode("ascii", "replace")), is_loopback=True)

    def __contains__(self, name: bytes) -> bool:
        if name in self._hosts or self._alone:
            return name in self._hosts
        return not self._is_local or not name or _is_of_this_machine(name)


def _is_of_this_machine(name: bytes, *, is_loopback: bool = False) -> bool:
    """Return whether a name is no name of the DNS: localhost, or an address; `is_loopback`: one of loopback."""
    text = name.decode("latin-1").removesuffix(".")
    if text == "localhost" or text.endswith(".localhost"):
        return True
    try:
        return ip_address(text.strip("[]")).is_loopback or not is_loopback
    except ValueError:
        return False


def is_misdirected(exchange: Exchange, hosts: ServedHosts) -> bool:
    """Return whether an exchange is for none of these hosts; it is told so."""
    if host_name(exchange.headers.get(b"host", b"")) in hosts:
        return False
    exchange.respond(_MISDIRECTED, b"this host is not served here; start the gateway with --host to name it\n")
    return True


class WebProtocol(Protocol):
    """A protocol other than gRPC."""

    def serve(self, exchange: Exchange) -> bool:
        """Serve an exchange that is of this protocol; return whether it was."""


class HttpServer:
    """Serves methods on one address. One event loop.

    `shared_port`: other processes may listen on the same port, and share its connections. `web` makes the protocols
    beside gRPC; the first that knows an exchange serves it. `gate` decides who may call; None: whoever connects.
    `memory`: what connections may hold; the streams that `call_limits` allow have their room beside it.
    `kept_bytes_max` is both. `hosts` are the names under which requests that are not gRPC are served. `measures`: where
    calls are counted. `tracer`: what makes spans of the calls whose paths are `traced`; None: nothing does.
    """

    def __init__(
        self,
        methods: Methods,
        address: str,
        *,
        web: Callable[[Methods, Calls], Sequence[WebProtocol]] = lambda _methods, _calls: (),
        tls: TlsFiles | None = None,
        shared_port: bool = False,
        call_limits: CallLimits | None = None,
        memory: MemoryLimits | None = None,
        gate: Gate | None = None,
        hosts: ServedHosts | None = None,
        measures: Measures | None = None,
        tracer: Tracer | None = None,
        traced: Collection[str] = (),
    ) -> None:
        call_limits = call_limits or CallLimits()
        if tracer is None:
            self._calls = Calls(call_limits, gate, measures)
        else:
            self._calls = TracedCalls(call_limits, gate, measures, tracer=tracer, paths=traced)
        self._web = tuple(web(methods, self._calls))
        self._hosts = hosts or ServedHosts(address)
        # Connections call gRPC themselves: what is common passes nothing here.
        app = GrpcProtocol(methods, self._calls, serve_other=self._serve_web, body_bytes_max=JSON_BYTES_MAX)
        memory = replace(memory or MemoryLimits(), streams_max=call_limits.streams_max)
        self.kept_bytes_max = memory.bytes_of(8)
        self._listener = Listener(app, address, tls=tls, shared_port=shared_port, limits=Limits(memory=memory))

    @property
    def port(self) -> int:
        """Return the port, once started."""
        return self._listener.port

    @property
    def calls(self) -> Calls:
        """Return what is at work."""
        return self._calls

    @property
    def connections(self) -> int:
        """Return how many connections there are."""
        return self._listener.connections

    @property
    def kept_bytes(self) -> int:
        """Return how many bytes connections hold for their clients, by the last count of each."""
        return self._listener.kept_bytes

    async def start(self) -> None:
        """Listen; raise `OSError` where the address cannot be had, `TlsError` where the TLS files are wrong."""
        await self._listener.start()

    def check_streams(self) -> None:
        """End the streams that the gate does not let in any more."""
        self._calls.check_streams()

    def drain(self) -> None:
        """Ask streams to end; calls on open connections are still served."""
        self._calls.drain()

    async def stop(self, grace_s: float) -> None:
        """Stop listening, wait for the calls at work, at most `grace_s`, then end them."""
        self.drain()
        self._listener.drain()
        await self._calls.finish(grace_s)
        await self._listener.stop(min(grace_s, CLOSE_S))

    def _serve_web(self, exchange: Exchange) -> None:
        """Give an exchange to its protocol."""
        # A page cannot speak gRPC, so what does is asked for no host: gateways call each other by any address.
        if is_misdirected(exchange, self._hosts):
            return
        for protocol in self._web:
            if protocol.serve(exchange):
                return
        exchange.respond(_NOT_FOUND, b"nothing is served under this path\n")


def web_protocols(
    catalogue: Catalogue,
    *,
    cors_origins: tuple[str, ...] = (),
    describe: bool = False,
    scheme: str = "http",
    console: Console | None = None,
) -> Callable[[Methods, Calls], Sequence[WebProtocol]]:
    """Return the function that makes the protocols for a server.

    `describe`: with /openapi.json, /docs and /. `console`: with this one.
    """

    def make(methods: Methods, calls: Calls) -> Sequence[WebProtocol]:
        codec = JsonCodec([catalogue.pool, descriptor_pool.Default()], keys_limits_of(catalogue))
        protocols: list[WebProtocol] = [
            GrpcWebProtocol(methods, calls),
            ConnectProtocol(methods, calls, codec),
            RestProtocol(catalogue.routes, methods, calls, codec, ArrowRows(catalogue.queries, codec)),
        ]
        if describe:
            pages = Pages(catalogue, scheme, has_console=console is not None)
            protocols.append(Guarded(pages, pages.paths, calls, Right.REFLECTION))
        if console is not None:
            protocols.append(Guarded(console, console.guarded_paths, calls, Right.REFLECTION))
        return (CrossOrigin(Cors(cors_origins), protocols),) if cors_origins else protocols

    return make


def keys_limits_of(catalogue: Catalogue) -> Mapping[str, KeysLimit]:
    """Return how many keys each request of a BatchGet may list; where several queries share it, the most."""
    limits: dict[str, KeysLimit] = {}
    for query in catalogue.queries.values():
        if isinstance(query, BatchGetQuery):
            name = query.request_class.DESCRIPTOR.full_name
            known = limits.get(name)
            if known is None or known.keys_max < query.max_keys:
                limits[name] = KeysLimit(query.keys, query.max_keys)
    return limits


class Guarded:
    """A protocol beside calls that serves some paths to those who have a right."""

    def __init__(self, protocol: WebProtocol, paths: Iterable[bytes], calls: Calls, right: Right) -> None:
        self._protocol = protocol
        self._paths = frozenset(paths)
        self._calls = calls
        self._right = right

    def serve(self, exchange: Exchange) -> bool:
        """Serve an exchange, if it is one of the protocol; return whether it was."""
        if exchange.target.partition(b"?")[0] in self._paths:
            try:
                self._calls.admit_to(self._right, exchange)
            except QueryError as error:
                fields = (TEXT, *retry_after(error))
                exchange.respond(ResponseHeaders(HTTP_STATUSES[code_of(error)], fields), f"{error.text}\n".encode())
                return True
        return self._protocol.serve(exchange)


class CrossOrigin:
    """Protocols that pages of other origins may use."""

    def __init__(self, cors: Cors, protocols: Sequence[WebProtocol]) -> None:
        self._cors = cors
        self._protocols = protocols

    def serve(self, exchange: Exchange) -> bool:
        """Answer a browser's question before its call, or give the exchange to its protocol."""
        if self._cors.preflight(exchange):
            return True
        exchange = self._cors.wrap(exchange)
        return any(protocol.serve(exchange) for protocol in self._protocols)
