"""Principals: who a client is by its certificate, and what one of them may have at work at once."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import ExtensionOID, NameOID

from tablegate.gateway.cluster.forward_token import FORWARDED
from tablegate.gateway.http.cors import Cors
from tablegate.gateway.http.h2.frames import CANCEL, rst_stream
from tablegate.gateway.http.h2_exchange import Http2Exchange
from tablegate.gateway.http.rpc.calls import CallLimits, Calls, ConcurrencyLimit, Place
from tablegate.gateway.http.rpc.grpc import envelope
from tablegate.gateway.http.rpc.grpc_web import GrpcWebProtocol
from tablegate.gateway.http.server import CrossOrigin, HttpServer, WebProtocol
from tablegate.gateway.http.tls import TlsFiles
from tablegate.gateway.http.transport import principal_of
from tablegate.gateway.query.call import Call, DuplexMethod, Methods, StreamMethod, UnaryMethod
from tablegate.gateway.query.errors import ForeignForward, NotServed, Overloaded
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.stores.notifier import Notifier
from tests.kit.call.subscribing import Copy
from tests.kit.gateways_in_process.cluster import GrpcCluster
from tests.kit.http.certificates import HOSTS, Authority, Pair
from tests.kit.http.h2 import OPENING, RawClient, data, head, request
from tests.kit.http.http1 import Client, until
from tests.kit.http.listening import LATER, served
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import SIGNER, LocalCall, catalogue_of, rating, ratings_table

RESOURCE_EXHAUSTED = b"8"
FORWARDED_CALL = (FORWARDED.encode(), b"any")


def uris(*names: str) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([x509.DNSName("localhost"), *map(x509.UniformResourceIdentifier, names)])


def unreadable_uri() -> x509.UnrecognizedExtension:
    name = b"\x86\x03a:\xff"
    return x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, bytes((0x30, len(name))) + name)


def subject(**values: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(getattr(NameOID, kind), value) for kind, value in values.items()])


ALICE = subject(ORGANIZATION_NAME="Example", COMMON_NAME="alice")
BATCH = subject(ORGANIZATION_NAME="Example", ORGANIZATIONAL_UNIT_NAME="batch")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def server_files(authority: Authority) -> TlsFiles:
    """Return the files of a server whose clients show certificates of the same authority."""
    pair = authority.issue()
    return TlsFiles(pair.certificate, pair.key, authority.certificate)


def client_context(authority: Authority, own: Pair | None, *protocols: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.certificate)
    context.set_alpn_protocols(protocols)
    if own is not None:
        context.load_cert_chain(own.certificate, own.key)
    return context


# Who a client is.


async def seen_principal(authority: Authority, files: TlsFiles, own: Pair | None, *, http2: bool = False) -> str | None:
    """Return who a client is for the app."""
    async with served(tls=files) as it:
        context = client_context(authority, own, "h2" if http2 else "http/1.1")
        reader, writer = await asyncio.open_connection("127.0.0.1", it.listener.port, ssl=context)
        it.clients.append(Client(reader, writer))
        writer.write(OPENING + head(1, request(b"/later"), ended=True) if http2 else LATER)
        await until(lambda: bool(it.app.exchanges))
        [exchange] = it.app.exchanges
        assert isinstance(exchange, Http2Exchange) is http2
        return exchange.principal


@pytest.mark.parametrize("http2", [False, True])
@pytest.mark.parametrize(
    ("name", "alternatives", "principal"),
    [
        (ALICE, HOSTS, "alice"),
        (ALICE, uris("spiffe://example.org/reader"), "spiffe://example.org/reader"),
        (ALICE, uris("spiffe://example.org/reader", "https://example.org"), "spiffe://example.org/reader"),
        (BATCH, HOSTS, "organizationName=Example, organizationalUnitName=batch"),
        (subject(COMMON_NAME="élan"), HOSTS, "élan"),
        (subject(), HOSTS, None),
        (ALICE, unreadable_uri(), None),
    ],
)
def test_a_certificate_says_who_its_client_is(
    authority: Authority, name: x509.Name, alternatives: x509.ExtensionType, principal: str | None, *, http2: bool
) -> None:
    own = authority.issue("client", subject=name, alternatives=alternatives)
    if principal is None:
        certificate = x509.load_pem_x509_certificate(own.certificate.read_bytes())
        principal = f"sha256:{certificate.fingerprint(SHA256()).hex()}"
    assert asyncio.run(seen_principal(authority, server_files(authority), own, http2=http2)) == principal


def test_without_a_verified_certificate_there_is_no_principal(authority: Authority) -> None:
    pair = authority.issue()
    files = TlsFiles(pair.certificate, pair.key)
    assert asyncio.run(seen_principal(authority, files, authority.issue("client"))) is None
    assert asyncio.run(seen_principal(authority, files, None, http2=True)) is None


def connected(
    server_context: ssl.SSLContext, context: ssl.SSLContext, session: ssl.SSLSession | None
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Return both ends of a connection, once the server's first byte has come."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    client = context.wrap_bio(to_client, to_server, server_hostname="localhost", session=session)
    steps = [client.do_handshake, server.do_handshake] * 3
    for step in steps:
        with suppress(ssl.SSLWantReadError):
            step()
    server.write(b"x")
    assert client.read(1) == b"x"  # after the ticket
    return server, client


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_resumed_session_has_the_principal_of_the_first(authority: Authority, version: ssl.TLSVersion) -> None:
    """Its handshake shows no certificate."""
    server_context = server_files(authority).load()
    context = client_context(authority, authority.issue("alice"))
    context.maximum_version = version
    session = None
    for again in (False, True):
        server, client = connected(server_context, context, session)
        assert server.session_reused is again
        assert principal_of(server) == "alice"
        session = client.session


# What one principal may have at work.


class Work:
    """Methods of which each call goes on until `go_on`, and how many are at work."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.at_work = 0
        self.methods: Methods = {
            "/a.B/Stream": StreamMethod(self._stream),
            "/a.B/Wait": UnaryMethod(self._wait, 20.0, 20.0),
            "/a.B/Talk": DuplexMethod(self._talk),
            "/a.B/MarkedStream": StreamMethod(self._stream, checks_forward_token=True),
            "/a.B/MarkedWait": UnaryMethod(self._wait, 20.0, 20.0, checks_forward_token=True),
            "/a.B/Now": UnaryMethod(lambda data, _call: data, 20.0, 20.0),
        }

    async def _wait(self, data: bytes, _call: Call) -> bytes:
        self.at_work += 1
        try:
            await self.go_on.wait()
        finally:
            self.at_work -= 1
        if data == b"fail":
            raise NotServed("no")
        return b""

    async def _stream(self, data: bytes, call: Call) -> AsyncIterator[bytes]:
        yield b"begun"
        yield await self._wait(data, call)

    async def _talk(self, messages: AsyncIterator[bytes], _call: Call) -> AsyncIterator[bytes]:
        self.at_work += 1
        async for message in messages:
            yield message


class Clients:
    """A server with `work`, and who asks it."""

    def __init__(self, server: HttpServer, work: Work, authority: Authority, stack: AsyncExitStack) -> None:
        self.server = server
        self.work = work
        self._authority = authority
        self._stack = stack

    async def connect(self, own: Pair | None, *, tls: bool = True, source: str = "127.0.0.1") -> RawClient:
        """Return a client over HTTP/2, of an address of this machine."""
        context = client_context(self._authority, own, "h2") if tls else None
        opened = await asyncio.open_connection("127.0.0.1", self.server.port, ssl=context, local_addr=(source, 0))
        client = RawClient(*opened)
        client.send(OPENING)
        self._stack.push_async_callback(client.close)
        return client

    async def connect_http1(self, own: Pair) -> Client:
        """Return a client over HTTP/1.1."""
        context = client_context(self._authority, own, "http/1.1")
        client = Client(*await asyncio.open_connection("127.0.0.1", self.server.port, ssl=context))
        self._stack.callback(client.writer.transport.abort)
        return client

    async def working(self, count: int) -> None:
        """Return when so many calls are at work."""
        await until(lambda: self.work.at_work == count)


def web_of_all_origins(methods: Methods, calls: Calls) -> list[WebProtocol]:
    return [CrossOrigin(Cors(("*",)), [GrpcWebProtocol(methods, calls)])]


ONE_EACH = CallLimits(streams_of_principal_max=1, calls_of_principal_max=1)


@asynccontextmanager
async def clients_of(
    authority: Authority, *, tls: bool = True, limits: CallLimits = ONE_EACH
) -> AsyncIterator[Clients]:
    work = Work()
    async with AsyncExitStack() as stack:
        files = server_files(authority) if tls else None
        server = HttpServer(work.methods, "127.0.0.1:0", web=web_of_all_origins, tls=files, call_limits=limits)
        await server.start()
        stack.push_async_callback(server.stop, 0)
        yield Clients(server, work, authority, stack)


def asked(stream: int, path: bytes, message: bytes = b"", *fields: tuple[bytes, bytes], ended: bool = True) -> bytes:
    """Return the frames of a call over gRPC."""
    header_block = request(path, (b"content-type", b"application/grpc"), *fields)
    return head(stream, header_block) + data(stream, envelope(message), ended=ended)


async def status(client: RawClient, stream: int) -> bytes:
    answer = await client.answer(stream)
    return (answer.trailer or answer.head)[b"grpc-status"]


@pytest.mark.parametrize(("path", "kind"), [(b"/a.B/Stream", b"streams"), (b"/a.B/Wait", b"waiting calls")])
def test_a_principal_has_its_own_limit_over_all_of_its_connections(
    authority: Authority, path: bytes, kind: bytes
) -> None:
    async def run() -> None:
        async with clients_of(authority) as it:
            name = uris("spiffe://example.org/reader")
            alice = await it.connect(authority.issue("alice", alternatives=name))
            alice.send(asked(1, path))
            await it.working(1)
            alias = await it.connect(authority.issue("alias", alternatives=name))
            alias.send(asked(1, path), asked(3, b"/a.B/Now"))
            assert await status(alias, 1) == RESOURCE_EXHAUSTED
            assert b"you have 1 " + kind in alias.answers[1].head[b"grpc-message"]
            assert await status(alias, 3) == b"0"
            bob = await it.connect(authority.issue("bob"))
            bob.send(asked(1, path))
            await it.working(2)
            it.work.go_on.set()
            assert await status(alice, 1) == await status(bob, 1) == b"0"
            alias.send(asked(5, path))
            assert await status(alias, 5) == b"0"

    asyncio.run(run())


@pytest.mark.parametrize("path", [b"/a.B/Stream", b"/a.B/Wait"])
@pytest.mark.parametrize("how", ["end", "error", "deadline", "cancel", "lost connection", "refusal"])
def test_a_place_is_free_again(authority: Authority, path: bytes, how: str) -> None:
    async def run() -> None:
        async with clients_of(authority) as it:
            own = authority.issue("alice")
            client = await it.connect(own)
            fields = [(b"grpc-timeout", b"1n")] if how == "deadline" else []
            client.send(asked(1, path, b"fail" if how == "error" else b"", *fields))
            if how != "deadline":  # it may be over before its handler begins
                await it.working(1)
            match how:
                case "end" | "error":
                    it.work.go_on.set()
                    assert await status(client, 1) == (b"0" if how == "end" else b"12")
                case "deadline":
                    assert await status(client, 1) == b"4"
                case "cancel":
                    client.send(rst_stream(1, CANCEL))
                case "lost connection":
                    client.writer.transport.abort()
                case "refusal":
                    client.send(asked(3, path))
                    assert await status(client, 3) == RESOURCE_EXHAUSTED
                    it.work.go_on.set()
                    assert await status(client, 1) == b"0"
            await it.working(0)
            it.work.go_on.set()
            client = await it.connect(own)
            client.send(asked(1, path))
            assert await status(client, 1) == b"0"

    asyncio.run(run())


def test_streams_each_way_are_streams_of_their_principal(authority: Authority) -> None:
    async def run() -> None:
        async with clients_of(authority) as it:
            client = await it.connect(authority.issue("alice"))
            client.send(asked(1, b"/a.B/Talk", ended=False))
            await it.working(1)
            client.send(asked(3, b"/a.B/Stream"), asked(5, b"/a.B/Talk"))
            assert await status(client, 3) == await status(client, 5) == RESOURCE_EXHAUSTED

    asyncio.run(run())


@pytest.mark.parametrize("origin", [b"", b"origin: https://example.org\r\n"])
def test_the_limit_is_that_of_every_protocol(authority: Authority, origin: bytes) -> None:
    """gRPC-Web over HTTP/1.1, also out of a page of another origin."""
    asks = b"POST /a.B/Stream HTTP/1.1\r\nhost: localhost\r\n" + origin
    asks += b"content-type: application/grpc-web+proto\r\ncontent-length: 5\r\n\r\n" + envelope(b"")

    async def run() -> None:
        async with clients_of(authority) as it:
            own = authority.issue("alice")
            first, second = await it.connect_http1(own), await it.connect_http1(own)
            await first.send(asks)
            await it.working(1)
            await second.send(asks)
            _, answer = await second.answer()
            assert b"grpc-status: 8\r\n" in answer
            assert b"you have 1 " in answer
            client = await it.connect(own)
            client.send(asked(1, b"/a.B/Stream"))
            assert await status(client, 1) == RESOURCE_EXHAUSTED

    asyncio.run(run())


def test_clients_without_certificates_share_the_limit_of_all(authority: Authority) -> None:
    limits = replace(ONE_EACH, streams_max=3)

    async def run() -> None:
        async with clients_of(authority, tls=False, limits=limits) as it:
            client = await it.connect(None, tls=False)
            client.send(*[asked(stream, b"/a.B/Stream") for stream in (1, 3, 5)])
            await it.working(3)
            client.send(asked(7, b"/a.B/Stream"))
            assert await status(client, 7) == RESOURCE_EXHAUSTED
            assert b"all clients together have 3 streams" in client.answers[7].head[b"grpc-message"]

    asyncio.run(run())


def test_nothing_is_kept_of_principals_that_have_nothing_at_work() -> None:
    limit = ConcurrencyLimit[Place]("streams", most=2, most_of_principal=1)
    given_up: list[Place] = []

    class Recorded(Place):
        def cancel(self) -> None:
            given_up.append(self)

    def hold(principal: str | None) -> AbstractContextManager[None]:
        exchange = SimpleNamespace(address="192.0.2.7")
        return limit.hold(Recorded(cast(Any, SimpleNamespace(exchange=exchange)), principal))

    with hold("alice"), hold(None):
        for principal in ("alice", "bob", None):
            with pytest.raises(Overloaded), hold(principal):
                pass
        assert limit.at_work == 2
    assert limit.at_work == 0
    assert not limit._places._holders
    assert not given_up


@pytest.mark.parametrize("path", [b"/a.B/Stream", b"/a.B/Wait", b"/a.B/Talk", b"/a.B/MarkedStream"])
def test_an_address_cannot_keep_others_out(authority: Authority, path: bytes) -> None:
    limits = CallLimits(streams_max=4, calls_max=4)

    async def run() -> None:
        async with clients_of(authority, tls=False, limits=limits) as it:
            first = await it.connect(None, tls=False)
            first.send(*[asked(stream, path, b"", FORWARDED_CALL, ended=False) for stream in (1, 3, 5, 7)])
            first.send(*[data(stream, b"", ended=True) for stream in (1, 3, 5, 7) if path != b"/a.B/Talk"])
            await it.working(4)
            other = await it.connect(None, tls=False, source="127.0.0.2")
            other.send(*[asked(stream, path, b"", FORWARDED_CALL) for stream in (1, 3, 5)])
            for stream in (7, 5):
                assert await status(first, stream) == RESOURCE_EXHAUSTED
                answer = first.answers[stream]
                assert b"this one made room for another client" in (answer.trailer or answer.head)[b"grpc-message"]
            assert await status(other, 5) == RESOURCE_EXHAUSTED
            if path == b"/a.B/Talk":  # it ends when its client ends it
                return
            await it.working(4)
            it.work.go_on.set()
            assert [await status(client, stream) for client in (first, other) for stream in (1, 3)] == [b"0"] * 4

    asyncio.run(run())


# What gateways forward.


@pytest.mark.parametrize("kind", [b"Stream", b"Wait"])
def test_forwarded_calls_are_of_no_principal(authority: Authority, kind: bytes) -> None:
    """Where the handler checks that they are forwarded: elsewhere it is just said so."""

    async def run() -> None:
        async with clients_of(authority) as it:
            gateway = await it.connect(authority.issue("gateway"))
            marked, unmarked = b"/a.B/Marked" + kind, b"/a.B/" + kind
            gateway.send(*[asked(stream, marked, b"", FORWARDED_CALL) for stream in (1, 3, 5)], asked(7, marked))
            await it.working(4)
            gateway.send(asked(9, marked), asked(11, unmarked, b"", FORWARDED_CALL))
            assert await status(gateway, 9) == await status(gateway, 11) == RESOURCE_EXHAUSTED

    asyncio.run(run())


REQUESTS: Mapping[str, Any] = {
    "GetRating": {"movie_id": 1},
    "BatchGetRatings": {"keys": [{"movie_id": 1}]},
    "ListRatings": {},
    "ScanRatings": {},
    "SubscribeRatings": {},
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_handler_that_checks_refuses_a_foreign_mark_before_it_waits(name: str) -> None:
    """Without an event loop: it could not wait."""
    catalogue, store = catalogue_of(), MemoryStore()
    ratings_table(store).put([rating(1)])
    path = f"/examples.ratings.v1.RatingsService/{name}"
    method = query_methods(catalogue, store, SIGNER, Notifier())[path]
    assert isinstance(method, UnaryMethod | StreamMethod)
    assert method.checks_forward_token
    message = catalogue.queries[path].request_class(**REQUESTS[name]).SerializeToString()

    def begin() -> None:
        answer = method.handler(message, LocalCall(forwarded="nonsense"))
        assert isinstance(answer, AsyncIterator)
        anext(answer).__await__().send(None)

    with pytest.raises(ForeignForward):
        begin()


def test_gateways_may_forward_more_than_one_client_may_ask_for(authority: Authority) -> None:
    """All of them, and their clients, have the same certificate."""
    with GrpcCluster(
        {"a": [0, 1, 2], "b": [3, 4, 5], "c": []}, tls=server_files(authority), call_limits=ONE_EACH
    ) as servers:
        servers.put(rating(number) for number in range(60))
        streams = [servers.stream(gateway_id, "SubscribeRatings") for gateway_id in "abc"]
        for messages in streams:
            copy = Copy()
            while len(copy.rows) < 60:
                copy.take(next(messages))
        for gateway_id in "abc":
            with pytest.raises(grpc.RpcError) as raised:
                next(servers.stream(gateway_id, "SubscribeRatings"))
            assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
