"""The listener, without TLS."""

import asyncio
import contextlib
import logging
import os
import resource
import socket

import pytest

from tablegate.gateway.http.listener import Limits, Listener
from tests.kit.http.http1 import SmallApp, until
from tests.kit.http.listening import GET, GOAWAY, LATER, PREFACE, SETTINGS, frame, served

TLS_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 506


def test_both_versions_on_one_port() -> None:
    async def run() -> None:
        async with served() as it:
            first, second = await it.connect(), await it.connect()
            await first.send(GET)
            await second.send(PREFACE)
            assert await first.answer() == (200, b"")
            assert (await frame(second))[0] == SETTINGS

    asyncio.run(run())


@pytest.mark.parametrize("beginning", [GET, b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n"])
def test_slow_beginnings(beginning: bytes) -> None:
    async def run() -> None:
        async with served() as it:
            first, second = await it.connect(), await it.connect()
            for at in range(30):
                await first.send(beginning[at : at + 1])
                await second.send(PREFACE[at : at + 1])
                await asyncio.sleep(0.001)
            await first.send(beginning[30:])
            await second.send(PREFACE[30:])
            assert await first.answer() == (200, b"")
            assert (await frame(second))[0] == SETTINGS

    asyncio.run(run())


def test_tls_hello_gets_an_alert() -> None:
    async def run() -> None:
        async with served() as it:
            client = await it.connect()
            await client.send(TLS_HELLO)
            assert await client.rest() == b"\x15\x03\x01\x00\x02\x02\x46"
            client.close()
            await it.accepted(0)

    asyncio.run(run())


def test_silent_clients_are_closed() -> None:
    async def run() -> None:
        async with served(limits=Limits(detection_s=10)) as it:
            silent, half = await it.connect(), await it.connect()
            await half.send(PREFACE[:5])
            await it.accepted(2)
            it.tick(1_000)
            it.tick(1_009)
            await asyncio.sleep(0)
            await it.accepted(2)
            it.tick(1_010)
            assert await silent.rest() == b""
            with contextlib.suppress(ConnectionResetError):  # where what it sent was not read yet
                assert await half.rest() == b""
            await it.accepted(0)

    asyncio.run(run())


def test_connections_have_a_cap(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with served(limits=Limits(connections_max=5)) as it:
            clients = [await it.connect() for _ in range(5)]
            await it.accepted(5)
            for _ in range(50):
                assert await (await it.connect()).rest() == b""
            for client in clients:
                await client.send(GET)
                assert await client.answer() == (200, b"")
            clients[0].close()
            await it.accepted(4)
            again = await it.connect()
            await again.send(GET)
            assert await again.answer() == (200, b"")

    asyncio.run(run())
    assert 1 <= sum("too many connections" in record.message for record in caplog.records) < 50


def test_a_full_listener_is_shared_by_addresses() -> None:
    async def run() -> None:
        async with served(limits=Limits(connections_max=5)) as it:
            busy = await it.connect()
            await busy.send(LATER)
            await until(lambda: len(it.app.seen) == 1)
            for _ in range(4):
                await it.connect()
            await it.accepted(5)
            others = [await it.connect(source="127.0.0.2") for _ in range(2)]
            for other in others:
                await other.send(GET)
                assert await other.answer() == (200, b"")
            await it.accepted(5)
            assert await (await it.connect(source="127.0.0.2")).rest() == b""  # else it would have the most
            it.app.answer.set()
            assert await busy.answer() == (200, b"later")

    asyncio.run(run())


def test_where_none_is_idle_the_newest_connection_makes_room() -> None:
    async def run() -> None:
        async with served(limits=Limits(connections_max=3)) as it:
            busy = [await it.connect() for _ in range(3)]
            for client in busy:
                await client.send(LATER)
            await until(lambda: len(it.app.seen) == 3)
            other = await it.connect(source="127.0.0.2")
            await other.send(GET)
            assert await other.answer() == (200, b"")
            it.app.answer.set()
            assert await busy[0].answer() == await busy[1].answer() == (200, b"later")
            assert await busy[2].rest() == b""

    asyncio.run(run())


def test_old_connections_are_asked_to_come_again() -> None:
    async def run() -> None:
        async with served(limits=Limits(age_s=0.0)) as it:
            first, second = await it.connect(), await it.connect()
            await first.send(LATER)
            await second.send(PREFACE)
            await frame(second)
            await until(lambda: len(it.app.seen) == 1)
            it.listener._timer.cancel()
            it.listener._tick()
            it.app.answer.set()
            head = await first.head()
            assert b"connection: close\r\n" in head
            assert await first.rest() == b"later"
            while (await frame(second))[0] != GOAWAY:
                pass

    asyncio.run(run())


def test_flood_is_accepted() -> None:
    async def run() -> None:
        async with served() as it:
            clients = [await it.connect() for _ in range(300)]
            for client in clients:
                await client.send(GET)
            assert [await client.answer() for client in clients] == [(200, b"")] * 300

    asyncio.run(run())


def test_address_that_is_taken() -> None:
    async def run() -> None:
        async with served() as it:
            with pytest.raises(OSError, match="in use"):
                await Listener(SmallApp(), f"127.0.0.1:{it.listener.port}").start()

    asyncio.run(run())


def test_shared_port_loses_nobody_when_one_leaves() -> None:
    async def run() -> None:
        async with served(shared_port=True) as it:
            app = SmallApp()
            other = Listener(app, f"127.0.0.1:{it.listener.port}", shared_port=True)
            await other.start()
            # No turn of the event loop comes between: the kernel has the clients, and has chosen a socket for each.
            clients = [socket.create_connection(("127.0.0.1", it.listener.port)) for _ in range(60)]
            for client in clients:
                client.sendall(GET)
            other.drain()

            async def answered(client: socket.socket) -> bool:
                return (await asyncio.to_thread(client.recv, 1_000)).startswith(b"HTTP/1.1 200 OK")

            assert all(await asyncio.gather(*[answered(client) for client in clients]))
            for client in clients:
                client.close()
            await other.stop(10)
            assert app.seen
            assert it.app.seen
            last = await it.connect()
            await last.send(GET)
            assert await last.answer() == (200, b"")

    asyncio.run(run())


def test_stop_waits_for_work() -> None:
    async def run() -> None:
        async with served() as it:
            busy, idle, stream = await it.connect(), await it.connect(), await it.connect()
            await busy.send(LATER)
            await idle.send(GET)
            await idle.answer()
            await stream.send(PREFACE)
            await frame(stream)
            await until(lambda: len(it.app.seen) == 2)
            stopping = asyncio.create_task(it.listener.stop(60))
            assert await idle.rest() == b""
            await stream.rest()
            stream.close()
            with pytest.raises(ConnectionRefusedError):
                await it.connect()
            assert not stopping.done()
            it.app.answer.set()
            assert await busy.answer() == (200, b"later")
            await stopping

    asyncio.run(run())


def test_stop_ends_what_does_not_end() -> None:
    async def run() -> None:
        async with served() as it:
            busy, silent = await it.connect(), await it.connect()
            await busy.send(LATER)
            await until(lambda: len(it.app.seen) == 1)
            await it.accepted(2)
            await it.listener.stop(0)
            assert await busy.rest() == b""
            assert await silent.rest() == b""
            assert it.app.gone.is_set()

    asyncio.run(run())


def test_options_of_connections() -> None:
    async def run() -> None:
        async with served() as it:
            client = await it.connect()
            await client.send(GET)
            await client.answer()
            (connection,) = it.listener._connections
            raw = connection._transport.get_extra_info("socket")  # type: ignore[attr-defined]
            assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            if hasattr(socket, "TCP_NOTSENT_LOWAT"):
                assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == 128 * 1024

    asyncio.run(run())


def all_descriptors() -> list[int]:
    """Take those that are left."""
    taken = []
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.dup(0))
    return taken


def test_clients_wait_where_there_are_no_descriptors(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with served() as it:
            raw = [socket.socket() for _ in range(5)]
            before = resource.getrlimit(resource.RLIMIT_NOFILE)
            highest = max(int(name) for name in os.listdir("/proc/self/fd"))
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest, before[1]))
            try:
                gap = all_descriptors()
                for one in raw:
                    one.connect(("127.0.0.1", it.listener.port))
                    one.sendall(GET)
                await until(lambda: "allow more open files" in caplog.text)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
                for descriptor in gap:
                    os.close(descriptor)
            for one in raw:
                answer = await asyncio.to_thread(one.recv, 1_000)
                assert answer.startswith(b"HTTP/1.1 200 OK")
                one.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert caplog.text.count("allow more open files") == 1


def test_mistake_with_one_connection_leaves_the_limits_of_others(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with served(limits=Limits(detection_s=0)) as it:
            await it.connect()
            silent = await it.connect()
            await it.accepted(2)

            def fail(now: float) -> None:
                raise RuntimeError

            next(iter(it.listener._connections)).tick = fail  # type: ignore[method-assign]
            it.listener._timer.cancel()
            it.listener._tick()
            it.listener._timer.cancel()
            it.listener._tick()
            assert await silent.rest() == b""
            await it.accepted(0)

    asyncio.run(run())
    assert "a connection failed" in caplog.text
