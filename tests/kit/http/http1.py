"""An app of small answers, and HTTP/1.1 connections to it over real sockets."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from tablegate.gateway.http.connection_turns import ConnectionTurns, WaitLimits
from tablegate.gateway.http.exchange import Excess, Exchange, ResponseHeaders, Trailer
from tablegate.gateway.http.h1_connection import Http1Connection, Http1Limits
from tablegate.gateway.http.memory import MemoryBudget, MemoryLimits

OK = ResponseHeaders(200, ((b"content-type", b"text/plain"),))
TOO_LARGE = ResponseHeaders(413, ((b"content-type", b"text/plain"),))
TOO_MUCH = ResponseHeaders(429)
NO_CONTENT = ResponseHeaders(204)
BODY_BYTES_MAX = 100_000
BIG = b"x" * 1_000_000
WAIT_S = 20.0  # no test takes that long; one that hangs says where
PATIENT = WaitLimits(burst_s=3_600.0)  # nobody is refused for how long he waits, however slow the machine is


class SmallApp:
    """Answers by the target: /echo the body; /later once `answer` is set; /stream in pieces; and so on."""

    body_bytes_max = BODY_BYTES_MAX

    def __init__(self) -> None:
        self.seen: list[tuple[bytes, bytes, bytes]] = []  # method, target, body
        self.exchanges: list[Exchange] = []
        self.answer = asyncio.Event()
        self.gone = asyncio.Event()
        self.sent = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def streams_body(self, exchange: Exchange) -> bool:
        return exchange.target.startswith(b"/pieces")

    def serve(self, exchange: Exchange) -> None:
        self.seen.append((exchange.method, exchange.target, exchange.body))
        self.exchanges.append(exchange)
        exchange.on_gone = self.gone.set
        match exchange.target:
            case b"/later":
                self._start(self._respond_later(exchange))
            case b"/stream":
                self._start(self._stream(exchange, [b"first", b"", b"second"]))
            case b"/endless":
                self._start(self._stream(exchange, None))
            case b"/big":
                exchange.respond(OK, BIG)
            case b"/nothing":
                exchange.respond(NO_CONTENT, b"")
            case b"/abort":
                self._start(self._abort(exchange))
            case b"/pieces":
                self._start(self._pieces(exchange))
            case b"/pieces/unread":
                exchange.respond(OK, b"unread")
            case b"/pieces/begun":
                exchange.begin(OK)
                self._start(self._pieces(exchange))
            case _ if exchange.oversize:
                exchange.respond(TOO_LARGE, b"too large")
            case _:
                exchange.respond(OK, exchange.body, Trailer(((b"left", b"out"),)))

    def refuse(self, exchange: Exchange, excess: Excess) -> None:
        exchange.respond(TOO_MUCH, b"too much")

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _respond_later(self, exchange: Exchange) -> None:
        await self.answer.wait()
        exchange.respond(OK, b"later")

    async def _stream(self, exchange: Exchange, pieces: list[bytes] | None) -> None:
        exchange.begin(OK)
        if pieces is None:
            while not self.gone.is_set():
                await exchange.send(b"x" * 10_000)
                self.sent += 10_000
                await asyncio.sleep(0)
            return
        for piece in pieces:
            await exchange.send(piece)
        exchange.end()

    async def _abort(self, exchange: Exchange) -> None:
        exchange.begin(OK)
        await exchange.send(b"first")
        await self.answer.wait()
        exchange.abort()

    async def _pieces(self, exchange: Exchange) -> None:
        length = 0
        while piece := await exchange.read():
            length += len(piece)
        if self.gone.is_set():
            return
        exchange.respond(OK, b"%d" % length)


class Http1Server:
    """Connections of one app, on a free port."""

    def __init__(self, app: SmallApp, limits: Http1Limits, memory: MemoryLimits) -> None:
        self.app = app
        self.limits = limits
        self.turns = ConnectionTurns(limits=PATIENT)
        self.memory = MemoryBudget(memory)
        self.open: list[Http1Connection] = []
        self.closed: list[Http1Connection] = []
        self.clients: list[Client] = []
        self.port = 0

    def connection(self) -> Http1Connection:
        connection = Http1Connection(
            self.app, self.limits, self.turns.turn(lambda: 1), self.memory.account(), self.closed.append
        )
        self.open.append(connection)
        return connection

    async def connect(self) -> "Client":
        """Return a new client, once the server has it."""
        return await self.connect_by(None)

    async def connect_by(self, raw: socket.socket | None) -> "Client":
        """Return a new client over an unconnected socket."""
        raw = raw or socket.socket()
        raw.setblocking(False)
        count = len(self.open)
        await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", self.port))
        client = Client(*await asyncio.open_connection(sock=raw))
        self.clients.append(client)
        await until(lambda: len(self.open) > count)
        return client


@contextlib.asynccontextmanager
async def http1_server(
    limits: Http1Limits | None = None, *, memory: MemoryLimits | None = None
) -> AsyncIterator[Http1Server]:
    server = Http1Server(SmallApp(), limits or Http1Limits(), memory or MemoryLimits())
    listening = await asyncio.get_running_loop().create_server(server.connection, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        server.app.gone.set()
        server.app.answer.set()
        for connection in server.open:
            if connection not in server.closed:
                connection.close()
        for client in server.clients:
            client.writer.transport.abort()
        listening.close()
        await until(lambda: len(server.closed) == len(server.open))


class Client:
    """Raw bytes to a server, and its answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> bytes:
        """Return the next head, with the empty line."""
        return await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), WAIT_S)

    async def answer(self) -> tuple[int, bytes]:
        """Return status and body of the next answer that has a length."""
        head = await self.head()
        length = next((int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:")), 0)
        return int(head[9:12]), await asyncio.wait_for(self.reader.readexactly(length), WAIT_S)

    async def rest(self) -> bytes:
        """Return all up to the end."""
        return await asyncio.wait_for(self.reader.read(-1), WAIT_S)

    def close(self) -> None:
        self.writer.close()


async def until(condition: Callable[[], bool]) -> None:
    """Return when the condition holds."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.001)
