"""Streams of clients that read nothing, as their gateway ends: each is told why, if that can be."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import pytest

from tablegate.gateway.http.h2 import frames
from tablegate.gateway.http.server import HttpServer
from tablegate.gateway.query.call import Call, StreamMethod
from tests.kit.http.h2 import OPENING, RawClient, data, eventually, head, initial_window, request

PATH = "/test.Service/Stream"
MESSAGE = bytes(1_000)
ENVELOPE_BYTES = 5 + len(MESSAGE)
GRACE_S = 0.05
UNAVAILABLE = b"14"


class Endless:
    """A server of a stream without an end. `made`: how many messages."""

    def __init__(self) -> None:
        self.made = 0
        self.server = HttpServer({PATH: StreamMethod(self._messages)}, "127.0.0.1:0")

    async def _messages(self, _data: bytes, _call: Call) -> AsyncIterator[bytes]:
        while True:
            self.made += 1
            yield MESSAGE


def run(talk: Callable[[Endless], Awaitable[None]]) -> None:
    async def serve() -> None:
        endless = Endless()
        await endless.server.start()
        try:
            await talk(endless)
        finally:
            await endless.server.stop(0)

    asyncio.run(serve())


async def asked(endless: Endless, window: int) -> RawClient:
    """Return a client of one stream, which has a window for as many bytes of it and never widens it."""
    client = RawClient(*await asyncio.open_connection("127.0.0.1", endless.server.port))
    headers = request(PATH.encode(), (b"content-type", b"application/grpc"), (b"te", b"trailers"))
    client.send(OPENING, initial_window(window), head(1, headers), data(1, bytes(5), ended=True))
    await eventually(lambda: endless.made == window // ENVELOPE_BYTES + 1)
    return client


@pytest.mark.parametrize("messages", [0, 3])
def test_a_drain_says_why_to_who_has_no_window(messages: int) -> None:
    async def talk(endless: Endless) -> None:
        client = await asked(endless, messages * ENVELOPE_BYTES)
        await endless.server.stop(GRACE_S)
        answer = await client.answer(1)
        assert answer.trailer[b"grpc-status"] == UNAVAILABLE
        assert b"grpc-status-details-bin" in answer.trailer
        assert len(answer.body) == messages * ENVELOPE_BYTES
        await client.close()

    run(talk)


def test_a_message_that_has_begun_ends_with_its_connection() -> None:
    """A status behind half a message is taken for a fault by grpc-go, of which no client tries again."""

    async def talk(endless: Endless) -> None:
        client = await asked(endless, ENVELOPE_BYTES + 100)
        await endless.server.stop(GRACE_S)
        got = await client.all_frames()
        assert got[-1].kind == frames.GOAWAY
        assert len(client.answers[1].body) == ENVELOPE_BYTES + 100
        assert not client.answers[1].trailer
        await client.close()

    run(talk)


def test_a_real_client_that_reads_nothing_hears_that_it_may_try_again() -> None:
    async def talk(endless: Endless) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{endless.server.port}") as channel:
            call = channel.unary_stream(PATH)(b"")
            assert await call.read() == MESSAGE
            made = -1
            while made != endless.made:
                made = endless.made
                await asyncio.sleep(0.1)
            await endless.server.stop(GRACE_S)
            assert await call.code() is grpc.StatusCode.UNAVAILABLE

    run(talk)
