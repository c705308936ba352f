"""However the bytes of an HTTP/1.1 client come, they mean the same."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tablegate.gateway.http.connection_turns import ConnectionTurns
from tablegate.gateway.http.h1_connection import Http1Connection, Http1Limits
from tablegate.gateway.http.memory import MemoryBudget, MemoryLimits
from tests.kit.http.http1 import SmallApp, http1_server

LAST = b"GET /echo HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
STREAMS = {
    "right": b"\r\nPOST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody"
    b"POST /echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
    b"3;a=b\r\nabc\r\n0A\r\n0123456789\r\n0\r\nt: u\r\n\r\n"
    b"GET /stream HTTP/1.1\r\nhost: a\r\nx: 1\r\nX: 2\r\n\r\n"
    b"POST /pieces HTTP/1.1\r\nhost: a\r\nexpect: 100-nothing\r\ncontent-length: 12\r\n\r\nhello world!"
    b"POST /echo HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: h2c\r\ncontent-length: 4\r\n\r\nbody"
    b"HEAD http://b/echo?x HTTP/1.1\r\nhost: a\r\n\r\n" + LAST + b"GET /unseen HTTP/1.1\r\nhost: a\r\n\r\n",
    "old": b"POST /echo HTTP/1.0\r\ncontent-length: 4\r\n\r\nbodyand more",
    "long body": b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 100001\r\n\r\nbody" + LAST,
    "no chunk": b"POST /echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n" + LAST,
    "two lengths": b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n" + LAST,
    "bare line feed": b"GET /echo HTTP/1.1\r\nhost: a\r\n\r\nGET /echo HTTP/1.1\r\nhost: a\nb: c\r\n\r\n" + LAST,
    "long head": b"GET /echo HTTP/1.1\r\nhost: a\r\n" + b"b: c\r\n" * 2_800 + b"\r\n" + LAST,
}

Seen = tuple[bytes, list[tuple[bytes, bytes, bytes]], list[dict[bytes, bytes]]]


async def taken(pieces: list[bytes]) -> Seen:
    """Return all that is answered to the pieces, each taken in by itself, and what the app saw."""
    async with http1_server() as server:
        client = await server.connect()
        for piece in pieces:
            server.open[0].data_received(piece)
            await asyncio.sleep(0)
        answers = await client.rest()
        headers = [dict(exchange.headers) for exchange in server.app.exchanges]
        return answers, server.app.seen, headers


@pytest.mark.tools
@pytest.mark.parametrize("name", STREAMS)
@settings(max_examples=30)
@given(data=st.data())
def test_cuts_change_nothing(name: str, data: st.DataObject) -> None:
    stream = STREAMS[name]
    cuts = sorted(data.draw(st.sets(st.integers(1, len(stream) - 1), max_size=12)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert asyncio.run(taken(pieces)) == asyncio.run(taken([stream]))


@pytest.mark.parametrize("name", [name for name in STREAMS if name != "long head"])
def test_single_bytes_change_nothing(name: str) -> None:
    stream = STREAMS[name]
    pieces = [stream[at : at + 1] for at in range(len(stream))]
    assert asyncio.run(taken(pieces)) == asyncio.run(taken([stream]))


@given(st.binary(min_size=1, max_size=300), st.sampled_from(list(STREAMS)), st.integers(0, 400))
def test_any_bytes_are_answered_or_waited_for(noise: bytes, name: str, place: int) -> None:
    stream = STREAMS[name]
    stream = stream[:place] + noise + stream[place + len(noise) // 2 :]

    async def run() -> None:
        app = SmallApp()
        closed: list[Http1Connection] = []
        loop = asyncio.get_running_loop()
        turn, account = ConnectionTurns().turn(lambda: 1), MemoryBudget(MemoryLimits()).account()
        listening = await loop.create_server(
            lambda: Http1Connection(app, Http1Limits(), turn, account, closed.append), "127.0.0.1", 0
        )
        _, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
        writer.write(stream)
        writer.write_eof()
        while not closed:
            await asyncio.sleep(0)
        writer.transport.abort()
        listening.close()

    problems: list[dict[str, object]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        await run()

    asyncio.run(watched())
    assert not problems
