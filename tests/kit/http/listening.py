"""Listeners of small answers, for tests."""

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable

from tablegate.gateway.http.listener import Limits, Listener
from tablegate.gateway.http.tls import TlsFiles
from tests.kit.http.http1 import PATIENT, Client, SmallApp, until

GET = b"GET /echo HTTP/1.1\r\nhost: a\r\n\r\n"
LATER = b"GET /later HTTP/1.1\r\nhost: a\r\n\r\n"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
SETTINGS, GOAWAY = 4, 7


class Served:
    """A listener, its app, and clients, which are closed at the end."""

    def __init__(self, listener: Listener, app: SmallApp) -> None:
        self.listener = listener
        self.app = app
        self.clients: list[Client] = []

    async def connect(self, *, source: str = "127.0.0.1") -> Client:
        """Return a new client of an address of this machine, once it is connected."""
        raw = socket.create_connection(("127.0.0.1", self.listener.port), source_address=(source, 0))
        client = Client(*await asyncio.open_connection(sock=raw))
        self.clients.append(client)
        return client

    async def accepted(self, count: int) -> None:
        """Return when so many clients are there."""
        await until(lambda: len(self.listener._connections) == count)

    def tick(self, now: float) -> None:
        """Tick all connections, by a clock of the test."""
        for connection in tuple(self.listener._connections):
            connection.tick(now)


@contextlib.asynccontextmanager
async def served(
    *,
    tls: TlsFiles | None = None,
    limits: Limits | None = None,
    shared_port: bool = False,
    wall_clock: Callable[[], float] = time.time,
) -> AsyncIterator[Served]:
    """Listen on a free port."""
    app = SmallApp()
    listener = Listener(
        app,
        "127.0.0.1:0",
        tls=tls,
        limits=limits or Limits(wait=PATIENT),
        shared_port=shared_port,
        wall_clock=wall_clock,
    )
    await listener.start()
    it = Served(listener, app)
    try:
        yield it
    finally:
        app.gone.set()
        app.answer.set()
        await listener.stop(0)
        for client in it.clients:
            client.writer.transport.abort()
        assert not listener._connections


async def frame(client: Client) -> tuple[int, bytes]:
    """Return kind and payload of the next HTTP/2 frame."""
    head = await client.reader.readexactly(9)
    length = struct.unpack(">I", b"\0" + head[:3])[0]
    return head[3], await client.reader.readexactly(length)
