"""What a client's channel tries again: unary calls, and no stream, which gRPC may then never end."""

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager, suppress
from typing import Any

import grpc
import pytest

from tablegate.client import aio, open_channel

UNARY, STREAM = "/service/Unary", "/service/Stream"
ATTEMPTS = 4
WAIT_S = 60.0
READERS = 24


class Unavailable(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Refuses all calls, and counts them."""

    def __init__(self) -> None:
        self.calls = Counter[str]()

    def service(self, details: Any) -> Any:
        """Return what refuses a call."""
        self.calls[details.method] += 1

        def refuse(_: bytes, context: Any) -> Any:
            context.abort(grpc.StatusCode.UNAVAILABLE, "later")

        if details.method == UNARY:
            return grpc.unary_unary_rpc_method_handler(refuse)
        return grpc.unary_stream_rpc_method_handler(refuse)


class Trickle(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Streams a few messages."""

    def service(self, details: Any) -> Any:
        """Return what serves a call."""
        assert details.method == STREAM
        return grpc.unary_stream_rpc_method_handler(self._messages)

    def _messages(self, _: bytes, __: Any) -> Iterator[bytes]:
        for _number in range(random.choice((0, 1, 5, 1_000))):
            yield b"message"
            time.sleep(0.01)


@contextmanager
def served(handler: Unavailable | Trickle, port: int = 0) -> Iterator[int]:
    server = grpc.server(futures.ThreadPoolExecutor(2 * READERS), options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers([handler])
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


def test_unary_calls_are_tried_again_and_streams_are_not() -> None:
    refusing = Unavailable()
    with served(refusing) as port, open_channel(f"127.0.0.1:{port}") as opened:
        channel: Any = opened
        with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
            channel.unary_unary(UNARY)(b"")
        with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
            list(channel.unary_stream(STREAM)(b""))
    assert refusing.calls == {UNARY: ATTEMPTS, STREAM: 1}


def test_unary_calls_are_tried_again_and_streams_are_not_by_asyncio() -> None:
    refusing = Unavailable()

    async def ask(port: int) -> None:
        async with aio.open_channel(f"127.0.0.1:{port}") as opened:
            channel: Any = opened
            with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
                await channel.unary_unary(UNARY)(b"")
            with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
                [_ async for _ in channel.unary_stream(STREAM)(b"")]

    with served(refusing) as port:
        asyncio.run(ask(port))
    assert refusing.calls == {UNARY: ATTEMPTS, STREAM: 1}


@pytest.mark.long
def test_no_stream_hangs_where_a_server_comes_and_goes() -> None:
    """With gRPC's retries some of 24 readers hang within half a minute, for ever."""
    over, calls, since_s = threading.Event(), Counter[str](), [time.monotonic()] * READERS
    with served(Trickle()) as port:
        pass

    def read(number: int) -> None:
        while not over.is_set():
            with open_channel(f"127.0.0.1:{port}") as opened:
                channel: Any = opened
                for _ in range(random.choice((1, 3, 10))):
                    since_s[number] = time.monotonic()
                    with suppress(grpc.RpcError):
                        for _ in channel.unary_stream(STREAM)(b""):
                            since_s[number] = time.monotonic()
                    calls[STREAM] += 1

    for number in range(READERS):
        threading.Thread(target=read, args=(number,), daemon=True).start()
    end_s = time.monotonic() + 2 * WAIT_S
    while time.monotonic() < end_s:
        with served(Trickle(), port):
            time.sleep(random.choice((0.02, 0.1, 0.3)))
        time.sleep(random.choice((0, 0.05, 0.4)))
        assert time.monotonic() - min(since_s) < WAIT_S, f"a stream hangs after {calls[STREAM]} calls"
    over.set()
    assert calls[STREAM] > 1_000
