"""HTTP/2 in the raw: a client that sends frames as they are given, and an app whose answers tests choose by path."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from tablegate.gateway.http.connection_turns import ConnectionTurns
from tablegate.gateway.http.exchange import Excess, Exchange, ResponseHeaders, Trailer
from tablegate.gateway.http.h2 import frames
from tablegate.gateway.http.h2.frames import END_HEADERS, END_STREAM, frame
from tablegate.gateway.http.h2.headers import HpackDecoder
from tablegate.gateway.http.h2_connection import Http2Connection, Http2Limits
from tablegate.gateway.http.memory import MemoryBudget, MemoryLimits
from tablegate.gateway.query.call import Fields
from tests.kit.http.http1 import PATIENT

WAIT_S = 20.0  # longer than anything takes
SOCKET_BYTES = 64 * 1024  # that the kernel keeps each way: small, so that a client that reads nothing is felt soon
OPENING = frames.PREFACE + frame(frames.SETTINGS, 0, 0)
HEAD = ResponseHeaders(200, ((b"content-type", b"text/plain"),))
_LONG_HEAD = ResponseHeaders(200, ((b"filler", b"x" * 4_000),))
TRAILER = Trailer(((b"rest", b"none"),))
PIECE = b"p" * 1_024
REQUEST: Fields = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/echo"),
    (b":authority", b"localhost"),
)


def block(*fields: tuple[bytes, bytes]) -> bytes:
    """Return a header block."""
    return Trailer(fields).h2


def request(path: bytes, *more: tuple[bytes, bytes], method: bytes = b"POST") -> bytes:
    """Return the header block of a request."""
    replaced = {b":path": path, b":method": method}
    return block(*[(name, replaced.get(name, value)) for name, value in REQUEST], *more)


def head(stream: int, header_block: bytes, *, ended: bool = False) -> bytes:
    """Return a HEADERS frame."""
    return frame(frames.HEADERS, END_HEADERS | (END_STREAM if ended else 0), stream, header_block)


def data(stream: int, payload: bytes, *, ended: bool = False) -> bytes:
    """Return a DATA frame."""
    return frame(frames.DATA, END_STREAM if ended else 0, stream, payload)


def call(stream: int, path: bytes, body: bytes = b"") -> bytes:
    """Return a whole request."""
    return head(stream, request(path)) + data(stream, body, ended=True)


def initial_window(size: int) -> bytes:
    """Return SETTINGS with a window for answers."""
    return frames.settings((frames.INITIAL_WINDOW_SIZE, size))


@dataclass
class Answer:
    """What came on one stream, until it ended."""

    head: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""
    trailer: dict[bytes, bytes] = field(default_factory=dict)
    reset: int | None = None
    data_frames: int = 0

    @property
    def status(self) -> int:
        return int(self.head[b":status"])


@dataclass(frozen=True)
class Frame:
    """One frame from the server."""

    kind: int
    flags: int
    stream: int
    payload: bytes


class RawClient:
    """A connection. Answers are gathered by stream as frames are read, and windows are never widened."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self.answers: dict[int, Answer] = {}
        self.ended: list[int] = []
        self._decoder = HpackDecoder()

    def send(self, *data: bytes) -> None:
        self.writer.write(b"".join(data))

    async def frame(self) -> Frame | None:
        """Return the next frame, None at the connection's end."""
        try:
            async with asyncio.timeout(WAIT_S):
                first, flags, stream = frames.unpack_frame_header(
                    await self._reader.readexactly(frames.FRAME_HEADER_BYTES), 0
                )
                got = Frame(first & 0xFF, flags, stream, await self._reader.readexactly(first >> 8))
        except (asyncio.IncompleteReadError, ConnectionResetError, BrokenPipeError):
            return None
        self._note(got)
        return got

    def _note(self, got: Frame) -> None:
        answer = self.answers.setdefault(got.stream, Answer()) if got.stream else Answer()
        if got.kind == frames.DATA:
            answer.body += got.payload
            answer.data_frames += 1
        elif got.kind == frames.HEADERS:
            fields = dict(self._decoder.decode(got.payload))
            if answer.head:
                answer.trailer = fields
            else:
                answer.head = fields
        elif got.kind == frames.RST_STREAM:
            answer.reset = int.from_bytes(got.payload, "big")
        ends = got.kind in (frames.DATA, frames.HEADERS) and got.flags & END_STREAM
        if ends or got.kind == frames.RST_STREAM:
            self.ended.append(got.stream)

    async def until(self, kind: int, flags: int = 0) -> Frame:
        """Return the next frame of a kind, with these flags among its own."""
        while got := await self.frame():
            if got.kind == kind and got.flags & flags == flags:
                return got
        raise AssertionError("the connection ended")

    async def answer(self, stream: int) -> Answer:
        """Return what came on a stream, once it has ended."""
        while stream not in self.ended:
            if await self.frame() is None:
                raise AssertionError("the connection ended")
        return self.answers[stream]

    async def all_frames(self) -> list[Frame]:
        """Return the frames until the connection ends."""
        found = []
        while got := await self.frame():
            found.append(got)
        return found

    async def fault(self) -> tuple[int, str]:
        """Return code and text of the GOAWAY after which the connection ends."""
        goaway = [got for got in await self.all_frames() if got.kind == frames.GOAWAY][-1]
        return int.from_bytes(goaway.payload[4:8], "big"), goaway.payload[8:].decode()

    async def settled(self) -> None:
        """Wait until the server has taken in all that was sent."""
        self.send(frame(frames.PING, 0, 0, b"settled?"))
        while (await self.until(frames.PING, frames.ACK)).payload != b"settled?":
            pass

    def stop_reading(self) -> None:
        """Leave what the server sends in the socket."""
        self.writer.transport.pause_reading()  # type: ignore[attr-defined]

    def go_on_reading(self) -> None:
        self.writer.transport.resume_reading()  # type: ignore[attr-defined]

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


class PathApp:
    """Serves by path.

    /echo: the body; /N: N bytes; /bare/N: N bytes without trailer; /head: a long head alone; /later: once `release`
    is set; /never; /stream/N: pieces of 1 KiB, N of them; /abort; /early: before the body is there, as /pieces, which
    echoes, and /unread.
    """

    def __init__(self, body_bytes_max: int) -> None:
        self.body_bytes_max = body_bytes_max
        self.served: list[Exchange] = []
        self.gone: list[bytes] = []
        self.pieces_sent = 0
        self.release = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def streams_body(self, exchange: Exchange) -> bool:
        return exchange.target in (b"/pieces", b"/early", b"/unread")

    def serve(self, exchange: Exchange) -> None:
        self.served.append(exchange)
        exchange.on_gone = lambda: self.gone.append(exchange.target)
        name, _, number = exchange.target[1:].partition(b"/")
        if exchange.oversize:
            exchange.respond(ResponseHeaders(413), b"too large", TRAILER)
        elif name.isdigit():
            exchange.respond(HEAD, b"x" * int(name), TRAILER)
        elif name == b"bare":
            exchange.respond(HEAD, b"x" * int(number))
        elif name == b"head":
            exchange.respond(_LONG_HEAD, b"")
        elif name == b"abort":
            exchange.begin(HEAD)
            exchange.abort()
        elif name == b"early":
            exchange.respond(HEAD, b"early", TRAILER)
        elif name in (b"later", b"stream", b"pieces"):
            work = {b"later": self._later, b"stream": self._stream, b"pieces": self._echo_pieces}[name]
            task = asyncio.get_running_loop().create_task(work(exchange))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif name == b"echo":
            exchange.respond(HEAD, exchange.body, TRAILER)

    def refuse(self, exchange: Exchange, excess: Excess) -> None:
        exchange.respond(ResponseHeaders(429), b"too much", TRAILER)

    async def _later(self, exchange: Exchange) -> None:
        await self.release.wait()
        exchange.respond(HEAD, exchange.body, TRAILER)

    async def _stream(self, exchange: Exchange) -> None:
        exchange.begin(HEAD)
        for _ in range(int(exchange.target.rpartition(b"/")[2])):
            await exchange.send(PIECE)
            self.pieces_sent += 1
        exchange.end(TRAILER)

    async def _echo_pieces(self, exchange: Exchange) -> None:
        exchange.begin(HEAD)
        while piece := await exchange.read():
            await exchange.send(piece)
        exchange.end(TRAILER)


class Served:
    """A server of `PathApp`, and its clients."""

    def __init__(
        self,
        app: PathApp,
        limits: Http2Limits,
        memory: MemoryLimits,
        turns: ConnectionTurns,
        connection_class: type[Http2Connection],
    ) -> None:
        self.app = app
        self.connections: set[Http2Connection] = set()
        self._limits = limits
        self.turns = turns
        self._connection_class = connection_class
        self.memory = MemoryBudget(memory)
        self._clients: list[RawClient] = []
        self._server: asyncio.Server

    def _connection(self) -> Http2Connection:
        turn, account = self.turns.turn(lambda: 1), self.memory.account()
        connection = self._connection_class(self.app, self._limits, turn, account, self.connections.discard)
        self.connections.add(connection)
        return connection

    async def start(self) -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
        self.port = listening.getsockname()[1]
        self._server = await asyncio.get_running_loop().create_server(self._connection, sock=listening)

    async def connect(self, opening: bytes = OPENING) -> RawClient:
        """Return a client, which has sent `opening`."""
        connecting = socket.socket()
        connecting.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
        connecting.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connecting, ("127.0.0.1", self.port))
        reader, writer = await asyncio.open_connection(sock=connecting)
        client = RawClient(reader, writer)
        self._clients.append(client)
        client.send(opening)
        return client

    @property
    def connection(self) -> Http2Connection:
        """The only connection."""
        (connection,) = self.connections
        return connection

    def tick(self, now: float) -> None:
        """Let a second pass, of a clock that shows `now`."""
        for connection in list(self.connections):
            connection.tick(now)

    async def stop(self) -> None:
        for client in self._clients:
            await client.close()
        self._server.close()
        async with asyncio.timeout(WAIT_S):
            while self.connections:
                await asyncio.sleep(0.001)


@asynccontextmanager
async def served(
    body_bytes_max: int = 100_000,
    *,
    memory: MemoryLimits | None = None,
    turns: ConnectionTurns | None = None,
    connection_class: type[Http2Connection] = Http2Connection,
    **limits: float,
) -> AsyncIterator[Served]:
    """Serve a `PathApp`."""
    app, turns = PathApp(body_bytes_max), turns or ConnectionTurns(limits=PATIENT)
    server = Served(app, Http2Limits(**limits), memory or MemoryLimits(), turns, connection_class)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def eventually(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.001)


def over_a_connection(test: Callable[[Served, RawClient], Awaitable[None]], **limits: Any) -> Callable[[], None]:
    """Make a test of one that takes a server and a client of it."""

    async def run() -> None:
        async with served(**limits) as server:
            await test(server, await server.connect())

    def wrapped() -> None:
        asyncio.run(run())

    wrapped.__name__ = test.__name__
    return wrapped
