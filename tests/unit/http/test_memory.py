"""What connections hold for their clients: all of it is counted, all of it together is bounded."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable

import pytest

from tablegate.gateway.http.h2 import frames
from tablegate.gateway.http.listener import Limits
from tablegate.gateway.http.memory import MemoryBudget, MemoryLimits
from tablegate.gateway.http.rpc.calls import CallLimits
from tablegate.gateway.http.rpc.grpc import envelope
from tablegate.gateway.http.server import HttpServer
from tablegate.gateway.query.call import Call, StreamMethod
from tests.kit.http.h2 import (
    OPENING,
    WAIT_S,
    RawClient,
    Served,
    call,
    data,
    eventually,
    head,
    initial_window,
    over_a_connection,
    request,
)
from tests.kit.http.h2 import served as served_http2
from tests.kit.http.http1 import Client, http1_server, until
from tests.kit.http.listening import GET, served

KIB = 1_024
LIMITS = MemoryLimits(bytes_max=400 * KIB, even_bytes=50 * KIB)


def test_who_holds_more_than_an_even_part_gives_way() -> None:
    full = []
    budget = MemoryBudget(LIMITS, lambda: full.append(budget.kept_bytes))
    small, large = budget.account(), budget.account()
    small.hold(50 * KIB)
    large.hold(150 * KIB)
    assert large.may_grow
    large.hold(151 * KIB)
    assert not large.may_grow
    assert small.may_grow
    large.hold(250 * KIB)
    assert not large.is_refused
    large.hold(251 * KIB)
    assert large.is_refused
    assert not small.is_refused
    large.hold(350 * KIB)
    assert not full
    large.hold(350 * KIB + 1)
    assert full == [400 * KIB + 1]
    large.close()
    large.hold(1)
    assert budget.kept_bytes == 50 * KIB
    assert small.may_grow


VALUE = b"v" * 9_000
KEPT_BY_HTTP2 = {
    "part of a frame": (data(1, b"b" * 10_000)[:-1], 10_000),
    "part of a header block": (frames.frame(frames.HEADERS, 0, 1, request(b"/echo", (b"x", VALUE))), 9_000),
    "fields": (head(1, request(b"/echo", (b"x", VALUE))), 9_000),
    "names": (head(1, request(b"/echo", (VALUE, b"x"))), 9_000),
    "part of a body": (head(1, request(b"/echo")) + data(1, b"b" * 10_000), 10_000),
    "the body of a call at work": (call(1, b"/never", b"b" * 10_000), 10_000),
    "a body in pieces": (head(1, request(b"/never")) + data(1, b"b" * 10_000) + data(1, b"b", ended=True), 10_000),
    "pieces that nobody reads": (head(1, request(b"/unread")) + data(1, b"b" * 10_000), 10_000),
    "requests": (b"".join(call(1 + 2 * number, b"/never") for number in range(100)), 50_000),
    "a whole answer": (initial_window(10) + call(1, b"/100000"), 100_000),
    "a piece of an answer": (initial_window(10) + call(1, b"/stream/1"), 1_000),
    "what is left of one": (initial_window(99_999) + call(1, b"/100000"), 100_000),
}


@pytest.mark.parametrize("kept", KEPT_BY_HTTP2.values(), ids=KEPT_BY_HTTP2.keys())
@pytest.mark.parametrize("end", ["reset", "close"])
def test_all_that_http2_holds_counts_until_it_ends(kept: tuple[bytes, int], end: str) -> None:
    sent, least = kept

    @over_a_connection
    async def run(server: Served, client: RawClient) -> None:
        client.send(sent)
        await eventually(lambda: server.tick(1.0) or server.memory.kept_bytes >= least)
        assert server.memory.kept_bytes <= least + 3_000 * max(1, len(server.connection.h2.streams))
        if end == "reset" and server.connection.h2.streams:
            client.send(*[frames.rst_stream(stream, frames.CANCEL) for stream in server.connection.h2.streams])
            await client.settled()
            assert server.memory.kept_bytes == 0
        await client.close()
        await eventually(lambda: server.memory.kept_bytes == 0)

    run()


KEPT_BY_HTTP1 = {
    "part of a body": (b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 20000\r\n\r\n" + b"b" * 10_000, 10_000),
    "the body of a request at work": (
        b"POST /later HTTP/1.1\r\nhost: a\r\ncontent-length: 10000\r\n\r\n" + b"b" * 10_000,
        10_000,
    ),
    "what is sent ahead": (b"GET /later HTTP/1.1\r\nhost: a\r\n\r\n" + GET * 1_000, 10_000),
    "an answer": (b"GET /big HTTP/1.1\r\nhost: a\r\n\r\n", 100_000),
}


@pytest.mark.parametrize("kept", KEPT_BY_HTTP1.values(), ids=KEPT_BY_HTTP1.keys())
def test_all_that_http1_holds_counts_until_it_ends(kept: tuple[bytes, int]) -> None:
    sent, least = kept

    async def run() -> None:
        async with http1_server() as server:
            client = await server.connect()
            connection = server.open[0]._transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
            client.writer.write(sent)
            await until(lambda: server.memory.kept_bytes >= least)
            client.writer.transport.abort()
            await until(lambda: server.memory.kept_bytes == 0)

    asyncio.run(run())


@pytest.mark.tools
def test_windows_stay_shut_while_others_need_the_room() -> None:
    async def run() -> None:
        async with served_http2(2_000_000, memory=LIMITS) as server:
            other = server.memory.account()
            other.hold(200 * KIB)
            client = await server.connect()
            client.send(*[head(stream, request(b"/echo")) for stream in (1, 3)])
            await client.settled()
            h2 = server.connection.h2
            while len(h2.streams) == 2:  # what was granted is taken
                size = min(10_000, max(h2.windows.window, 0))
                client.send(data(1 if h2.windows.window % 20_000 < 10_000 else 3, b"b" * size))
                await client.settled()
            while h2.streams:
                await client.settled()
            # Nothing was granted any more, so that neither came to its end.
            assert (await client.answer(3)).reset == (await client.answer(1)).reset == frames.REFUSED_STREAM
            client.send(call(5, b"/echo", b"body"))
            assert (await client.answer(5)).body == b"body"

    asyncio.run(run())


def test_who_holds_too_much_is_refused_until_it_holds_less() -> None:
    async def run() -> None:
        async with served_http2(memory=LIMITS) as server:
            other = server.memory.account()
            client = await server.connect()
            client.send(head(1, request(b"/later")), data(1, b"b" * 10_000) * 6, data(1, b"", ended=True))
            await eventually(lambda: server.memory.kept_bytes > 60_000)
            other.hold(250 * KIB)  # not before: what is still on its way would be refused
            client.send(call(3, b"/echo"))
            assert (await client.answer(3)).status == 429
            second = await server.connect()
            second.send(call(1, b"/echo", b"small"))
            assert (await second.answer(1)).body == b"small"
            server.app.release.set()
            await client.answer(1)
            client.send(call(5, b"/echo", b"body"))
            assert (await client.answer(5)).body == b"body"

    asyncio.run(run())


def test_http1_bodies_are_refused_while_others_need_the_room() -> None:
    async def run() -> None:
        async with http1_server(memory=LIMITS) as server:
            other = server.memory.account()
            other.hold(200 * KIB)
            client = await server.connect()
            await client.send(b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 90000\r\n\r\n" + b"b" * 60_000)
            assert (await client.answer())[0] == 503
            second = await server.connect()
            await second.send(b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 40000\r\n\r\n" + b"b" * 40_000)
            assert (await second.answer())[0] == 200

    asyncio.run(run())


def test_streams_have_room_beside_what_others_hold() -> None:
    limits = MemoryLimits(bytes_max=200 * KIB, even_bytes=50 * KIB)

    async def wait(_data: bytes, _call: Call) -> AsyncIterator[bytes]:
        yield b"begun"
        await asyncio.Event().wait()

    async def run() -> None:
        methods = {"/a.B/Wait": StreamMethod(wait)}
        server = HttpServer(methods, "127.0.0.1:0", call_limits=CallLimits(streams_max=400), memory=limits)
        await server.start()
        client = RawClient(*await asyncio.open_connection("127.0.0.1", server.port))
        block = request(b"/a.B/Wait", (b"content-type", b"application/grpc"))
        client.send(OPENING)
        for stream in range(1, 801, 2):
            client.send(head(stream, block) + data(stream, envelope(b""), ended=True))
            if stream % 50 == 1:
                await client.settled()
        async with asyncio.timeout(WAIT_S):
            while len(client.answers) < 400 or server.kept_bytes <= 3 * limits.bytes_max:
                await client.settled()
        assert not client.ended
        await client.close()
        await server.stop(0)

    asyncio.run(run())


def _uploads(_number: int) -> bytes:
    streams = range(1, 41, 2)
    return OPENING + b"".join(head(stream, request(b"/echo")) + data(stream, b"b" * 10_000) for stream in streams)


def _calls(_number: int) -> bytes:
    return OPENING + b"".join(call(1 + 2 * number, b"/later") for number in range(200))


def _one_of_each(number: int) -> bytes:
    http1 = b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 90000\r\n\r\n" + b"b" * 80_000
    return (_uploads, _calls, lambda _: http1)[number % 3](number)


@pytest.mark.parametrize("sent", [_uploads, _calls, _one_of_each])
def test_what_all_connections_hold_is_bounded(sent: Callable[[int], bytes]) -> None:
    """By a budget of a tenth of what they would hold; and who holds little is served all the time."""
    limits = MemoryLimits(bytes_max=1_000_000, even_bytes=100_000)

    async def run() -> None:
        async with served(limits=Limits(memory=limits)) as it:
            memory = it.listener._memory
            others: list[Client] = []
            most = 0
            for number in range(30):
                other = await it.connect(source=f"127.0.0.{2 + number % 5}")
                others.append(other)
                other.writer.write(sent(number))
                honest = await it.connect()
                await honest.send(GET)
                assert await honest.answer() == (200, b"")
                most = max(most, memory.kept_bytes)
            assert most > limits.bytes_max // 2
            assert most <= limits.bytes_max + 400_000  # of one turn
            for other in others:
                other.writer.transport.abort()
            await until(lambda: memory.kept_bytes == 0)

    asyncio.run(run())


def test_the_largest_of_who_holds_the_most_is_closed() -> None:
    limits = MemoryLimits(bytes_max=200_000, even_bytes=100_000)  # so that none is refused before

    def body(size: int) -> bytes:
        return b"POST /later HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % size + b"b" * size

    async def run() -> None:
        async with served(limits=Limits(memory=limits)) as it:
            memory = it.listener._memory
            one = await it.connect(source="127.0.0.2")  # the largest of all, but of who holds less
            await one.send(body(80_000))
            await until(lambda: memory.kept_bytes > 80_000)
            small, large = [await it.connect(source="127.0.0.3") for _ in range(2)]
            await small.send(body(30_000))
            await until(lambda: memory.kept_bytes > 110_000)
            await large.send(body(70_000))
            await until(lambda: memory.kept_bytes > 180_000)
            more = await it.connect(source="127.0.0.3")
            await more.send(body(20_000))
            assert await large.rest() == b""
            it.app.answer.set()
            assert await one.answer() == await small.answer() == await more.answer() == (200, b"later")

    asyncio.run(run())
