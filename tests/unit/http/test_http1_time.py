"""HTTP/1.1 connections that take too long, by a clock of the test."""

import asyncio
import socket

from tablegate.gateway.http.h1_connection import Http1Limits
from tests.kit.http.http1 import Client, Http1Server, http1_server, until

LIMITS = Http1Limits(header_s=10, body_s=30, idle_s=75, stall_s=60, linger_s=2)
GET = b"GET /echo HTTP/1.1\r\nhost: a\r\n\r\n"


class Clock:
    """Ticks the first connection of a server."""

    def __init__(self, server: Http1Server) -> None:
        self._server = server
        self.now = 1_000.0

    def tick(self) -> None:
        self._server.open[0].tick(self.now)

    async def pass_s(self, seconds: float) -> bool:
        """Let time pass; return whether the connection was ended then, or has begun to end."""
        self.tick()
        self.now += seconds
        self.tick()
        await asyncio.sleep(0)
        return self._server.open[0]._over


async def taken(server: Http1Server, client: Client, data: bytes) -> None:
    """Send bytes, and return when the server has taken them in."""
    connection = server.open[0]
    count = 0
    take = connection.data_received

    def counted(data: bytes) -> None:
        nonlocal count
        count += len(data)
        take(data)

    connection.data_received = counted  # type: ignore[method-assign]
    connection._transport.set_protocol(connection)  # it keeps the bound method
    await client.send(data)
    await until(lambda: count == len(data))


def test_silence_at_the_start() -> None:
    async def run() -> None:
        async with http1_server(LIMITS) as server:
            client, clock = await server.connect(), Clock(server)
            assert not await clock.pass_s(9.9)
            assert await clock.pass_s(0.1)
            assert await client.rest() == b""

    asyncio.run(run())


def test_slow_head() -> None:
    async def run() -> None:
        async with http1_server(LIMITS) as server:
            client, clock = await server.connect(), Clock(server)
            await taken(server, client, GET)
            await client.answer()
            await taken(server, client, GET[:5])
            clock.tick()
            for at in range(5, 14):  # a byte a second helps nobody
                await taken(server, client, GET[at : at + 1])
                assert not await clock.pass_s(1)
            assert await clock.pass_s(1)
            assert (await client.answer())[0] == 408
            assert await client.rest() == b""

    asyncio.run(run())


def test_slow_body() -> None:
    async def run() -> None:
        async with http1_server(LIMITS) as server:
            client, clock = await server.connect(), Clock(server)
            await taken(server, client, b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\n")
            for _ in range(9):
                assert not await clock.pass_s(29)
                await taken(server, client, b"x")
            assert await clock.pass_s(30)
            assert (await client.answer())[0] == 408
            assert not server.app.seen

    asyncio.run(run())


def test_body_that_comes_a_byte_at_a_time() -> None:
    async def run() -> None:
        async with http1_server(Http1Limits(body_s=30, whole_body_s=100, whole_answer_s=50)) as server:
            client, clock = await server.connect(), Clock(server)
            for _ in range(2):  # the second has a time of its own
                await taken(server, client, b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\n")
                for _ in range(3):
                    assert not await clock.pass_s(29)
                    await taken(server, client, b"x")
                await taken(server, client, b"x")
                assert await client.answer() == (200, b"xxxx")
            await taken(server, client, b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\n")
            for _ in range(3):
                assert not await clock.pass_s(29)
                await taken(server, client, b"x")
            assert await clock.pass_s(14)
            assert (await client.answer())[0] == 408

    asyncio.run(run())


def test_slow_chunk_extension() -> None:
    async def run() -> None:
        async with http1_server(LIMITS) as server:
            client, clock = await server.connect(), Clock(server)
            await taken(server, client, b"POST /echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3;")
            clock.tick()
            for _ in range(29):
                await taken(server, client, b"x")
                assert not await clock.pass_s(1)
            assert await clock.pass_s(1)
            assert (await client.answer())[0] == 408

    asyncio.run(run())


def test_pieces_that_the_app_waits_for() -> None:
    async def run() -> None:
        async with http1_server(LIMITS) as server:
            client, clock = await server.connect(), Clock(server)
            await taken(server, client, b"POST /pieces HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nx")
            assert not await clock.pass_s(29)
            assert await clock.pass_s(1)
            assert (await client.answer())[0] == 408
            assert server.app.gone.is_set()

    asyncio.run(run())


def test_idle_between_requests() -> None:
    async def run() -> None:
        async with http1_server(LIMITS) as server:
            client, clock = await server.connect(), Clock(server)
            for _ in range(2):
                await taken(server, client, GET)
                await client.answer()
                assert not await clock.pass_s(74)
            assert await clock.pass_s(1)
            assert await client.rest() == b""

    asyncio.run(run())


def test_app_may_take_its_time() -> None:
    async def run() -> None:
        async with http1_server(LIMITS) as server:
            client, clock = await server.connect(), Clock(server)
            await taken(server, client, b"GET /later HTTP/1.1\r\nhost: a\r\n\r\n" + GET[:10])
            for _ in range(10):
                assert not await clock.pass_s(1_000)
            server.app.answer.set()
            assert await client.answer() == (200, b"later")
            assert not await clock.pass_s(9)
            await taken(server, client, GET[10:])
            assert await client.answer() == (200, b"")

    asyncio.run(run())


def test_client_that_does_not_read() -> None:
    async def run() -> None:
        async with http1_server(LIMITS) as server:
            raw = socket.socket()
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            client, clock = await server.connect_by(raw), Clock(server)
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await client.send(b"GET /big HTTP/1.1\r\nhost: a\r\n\r\n" * 10)
            transport = server.open[0]._transport
            await until(lambda: transport.get_write_buffer_size() > 0)
            assert not await clock.pass_s(59)
            while not await clock.pass_s(60):  # the kernel may have taken a little more
                await asyncio.sleep(0.001)
            await until(lambda: server.closed == server.open)

    asyncio.run(run())


def test_answer_that_is_read_a_little_at_a_time() -> None:
    async def run() -> None:
        async with http1_server(Http1Limits(stall_s=60, whole_answer_s=200)) as server:
            raw = socket.socket()
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            client, clock = await server.connect_by(raw), Clock(server)
            transport = server.open[0]._transport
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
            await client.send(b"GET /big HTTP/1.1\r\nhost: a\r\n\r\n")
            await until(lambda: transport.get_write_buffer_size() > 500_000)
            clock.tick()
            for _ in range(3):
                left = transport.get_write_buffer_size()
                while transport.get_write_buffer_size() == left:
                    await client.reader.read(10_000)
                assert not await clock.pass_s(59)
            assert transport.get_write_buffer_size() > 0
            assert await clock.pass_s(30)
            await until(lambda: server.closed == server.open)

    asyncio.run(run())


def test_client_that_does_not_close() -> None:
    async def run() -> None:
        async with http1_server(LIMITS) as server:
            client, clock = await server.connect(), Clock(server)
            await taken(server, client, b"nonsense\r\n\r\n")
            assert (await client.answer())[0] == 400
            await taken(server, client, b"more of it" * 1_000)
            assert not server.closed
            await clock.pass_s(1.9)
            assert not server.closed
            await clock.pass_s(0.1)
            await until(lambda: server.closed == server.open)

    asyncio.run(run())
