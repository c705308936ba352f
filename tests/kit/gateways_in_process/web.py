"""The server in this process, with every protocol of the web, and clients that speak plain HTTP to it."""

import asyncio
import http.client
import json
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pool

from tablegate.gateway.cluster.directory import Directory
from tablegate.gateway.http.json_codec import JsonCodec
from tablegate.gateway.http.server import HttpServer, ServedHosts, keys_limits_of, web_protocols
from tablegate.gateway.query.call import Call, DuplexMethod, Methods, StreamMethod, UnaryMethod
from tablegate.gateway.query.errors import NotCaughtUp, Overloaded
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.server.health import Health, live_tables
from tablegate.gateway.stores.notifier import Notifier
from tests.kit.gateways_in_process.threaded import ServerThread
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import SIGNER, catalogue_of, rating, ratings_table

SERVICE = "/examples.ratings.v1.RatingsService"
HTTP_TIMEOUT_S = 20


def codec() -> JsonCodec:
    """Return a codec of the ratings contract and of what every gateway serves."""
    return JsonCodec([catalogue_of().pool, descriptor_pool.Default()], keys_limits_of(catalogue_of()))


class WebServer(ServerThread):
    """A server over 100 movies, with the protocols of the web, and `more` methods."""

    def __init__(
        self, more: Methods | None = None, *, origins: tuple[str, ...] = (), hosts: tuple[str, ...] = ()
    ) -> None:
        super().__init__(self._made)
        self._more = more or {}
        self._origins = origins
        self._hosts = hosts
        self.ended: list[str] = []

    def _made(self) -> HttpServer:
        store, catalogue = MemoryStore(), catalogue_of()
        ratings_table(store).put(rating(number) for number in range(100))
        health = Health(catalogue)
        health.update(live_tables(store, health.tables, Directory()))
        methods = {
            **query_methods(catalogue, store, SIGNER, Notifier()),
            **health.methods(),
            **self._odd_methods(),
            **self._more,
        }
        web = web_protocols(catalogue, cors_origins=self._origins)
        return HttpServer(methods, "127.0.0.1:0", web=web, hosts=ServedHosts("127.0.0.1:0", self._hosts))

    def _odd_methods(self) -> Methods:
        """Return methods that no contract has: their messages are any bytes."""

        async def wait(_data: bytes, _call: Call) -> bytes:
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                self.ended.append("unary")
                raise
            return b""

        async def endless(_data: bytes, _call: Call) -> AsyncIterator[bytes]:
            try:
                while True:
                    yield b"x" * 1_000
                    await asyncio.sleep(0.001)
            finally:
                self.ended.append("stream")

        async def break_off(_data: bytes, call: Call) -> AsyncIterator[bytes]:
            call.set_trailer(((b"tablegate-role", b"owner"), (b"tablegate-role", b"standby")))
            yield b"one"
            yield b""
            raise NotCaughtUp("ratings", 0, "it is 3 s behind")

        async def echo(messages: AsyncIterator[bytes], _call: Call) -> AsyncIterator[bytes]:
            async for message in messages:
                yield message

        def overloaded(_data: bytes, call: Call) -> bytes:
            call.set_trailer(((b"tablegate-role", b"owner"),))
            raise Overloaded("too much", "calls")

        def fail(_data: bytes, _call: Call) -> bytes:
            raise KeyError("secret")

        return {
            "/test.Service/Wait": UnaryMethod(wait, 20.0, 20.0),
            "/test.Service/Endless": StreamMethod(endless),
            "/test.Service/BreakOff": StreamMethod(break_off),
            "/test.Service/Echo": DuplexMethod(echo),
            "/test.Service/Overloaded": UnaryMethod(overloaded, 5.0, 5.0),
            "/test.Service/Fail": UnaryMethod(fail, 5.0, 5.0),
            "/test.Service/Length": UnaryMethod(lambda data, _call: b"%d" % len(data), 5.0, 5.0),
        }


@dataclass(frozen=True)
class Answer:
    """An HTTP answer. `headers` by lower-case name; values of a repeated one are joined."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class WebClient:
    """Speaks plain HTTP: version 1.1 by Python, version 2 by curl."""

    def __init__(self, server: ServerThread, *, http2: bool) -> None:
        self.server = server
        self.http2 = http2

    def ask(self, method: str, target: str, body: bytes | None = None, **headers: str) -> Answer:
        """Return the answer to one request; in names of headers _ stands for -."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return (self._by_curl if self.http2 else self._by_python)(method, target, body, named)

    def post(self, target: str, body: bytes | str, content_type: str, **headers: str) -> Answer:
        """Return the answer to a POST."""
        data = body.encode() if isinstance(body, str) else body
        return self.ask("POST", target, data, content_type=content_type, **headers)

    def _by_python(self, method: str, target: str, body: bytes | None, headers: dict[str, str]) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=HTTP_TIMEOUT_S)
        try:
            connection.request(method, target, body, headers)
            response = connection.getresponse()
            joined: dict[str, str] = {}
            for name, value in response.getheaders():
                joined[name.lower()] = f"{joined[name.lower()]}, {value}" if name.lower() in joined else value
            return Answer(response.status, joined, response.read())
        finally:
            connection.close()

    def _by_curl(self, method: str, target: str, body: bytes | None, headers: dict[str, str]) -> Answer:
        with tempfile.TemporaryDirectory() as scratch:
            heads, out = Path(scratch, "heads"), Path(scratch, "body")
            words = ["curl", "--silent", "--show-error", "--http2-prior-knowledge", "--max-time", str(HTTP_TIMEOUT_S)]
            words += ["--globoff", "--request", method, "--dump-header", str(heads), "--output", str(out)]
            for name, value in {"content-type": "", **headers}.items():
                words += ["--header", f"{name}: {value}" if value else f"{name}:"]
            if body is not None:
                words += ["--data-binary", "@-"]
            words.append(f"http://127.0.0.1:{self.server.port}{target}")
            subprocess.run(words, input=body or b"", check=True, timeout=2 * HTTP_TIMEOUT_S)
            first, *lines = heads.read_bytes().decode("latin-1").split("\r\n")
            joined: dict[str, str] = {}
            for line in filter(None, lines):
                name, _, value = line.partition(": ")
                joined[name] = f"{joined[name]}, {value}" if name in joined else value
            return Answer(int(first.split()[1]), joined, out.read_bytes() if out.exists() else b"")


def web_clients(server: WebServer) -> dict[str, WebClient]:
    """Return a client of each HTTP version; without curl there is none of version 2."""
    clients = {"http1": WebClient(server, http2=False)}
    if shutil.which("curl") is not None:
        clients["http2"] = WebClient(server, http2=True)
    return clients


def client_of(clients: dict[str, WebClient], version: str) -> WebClient:
    """Return the client of an HTTP version, or skip the test."""
    if version not in clients:
        pytest.skip("HTTP/2 is spoken with curl, which is not here")
    return clients[version]
