"""An HTTP/2 connection as time passes, and how it ends."""

import asyncio

import pytest

from tablegate.gateway.http.h2 import frames
from tablegate.gateway.http.h2.frames import ACK, ENHANCE_YOUR_CALM, NO_ERROR, PROTOCOL_ERROR, frame
from tablegate.gateway.http.h2_connection import LINGER_S, Http2Limits
from tests.kit.http.h2 import (
    OPENING,
    Frame,
    RawClient,
    Served,
    call,
    data,
    eventually,
    head,
    initial_window,
    over_a_connection,
    request,
    served,
)

LIMITS = Http2Limits()


def _goaway(got: Frame) -> tuple[int, int]:
    return int.from_bytes(got.payload[:4], "big"), int.from_bytes(got.payload[4:8], "big")


@pytest.mark.parametrize("sent", [b"", frames.PREFACE[:10], frames.PREFACE, OPENING[:-1]])
def test_preface_that_does_not_come(sent: bytes) -> None:
    async def run() -> None:
        async with served() as server:
            client = await server.connect(sent)
            await eventually(lambda: server.connections)
            server.tick(5.0)
            server.tick(5.0 + LIMITS.preface_s - 1)
            assert not server.connection._over
            server.tick(5.0 + LIMITS.preface_s)
            # The whole preface with half a frame has been greeted: that is a frame that takes too long.
            server.tick(5.0 + LIMITS.body_s)
            assert (await client.fault())[0] == PROTOCOL_ERROR

    asyncio.run(run())


_HALVES = {
    "frame": call(1, b"/echo", b"body")[:-1],
    "head of a frame": call(1, b"/echo")[:5],
    "header block": frame(frames.HEADERS, 0, 1, request(b"/echo")),
}


@pytest.mark.parametrize("sent", _HALVES.values(), ids=_HALVES.keys())
def test_half_of_something(sent: bytes) -> None:
    @over_a_connection
    async def run(server: Served, client: RawClient) -> None:
        await client.settled()
        client.send(sent)
        await eventually(lambda: server.connection.h2.unread or server.connection.h2.in_header_block)
        server.tick(1.0)
        server.tick(LIMITS.body_s)
        assert not server.connection._over
        server.tick(1.0 + LIMITS.body_s)
        assert (await client.fault())[0] == PROTOCOL_ERROR

    run()


@over_a_connection
async def test_body_that_stops(server: Served, client: RawClient) -> None:
    client.send(head(1, request(b"/echo")), head(3, request(b"/echo")), data(1, b"a"), head(5, request(b"/pieces")))
    await client.settled()
    server.tick(1.0)
    server.tick(20.0)
    client.send(data(3, b"a"))
    await client.settled()
    server.tick(1.0 + LIMITS.body_s)
    assert (await client.answer(1)).reset == frames.CANCEL
    client.send(data(3, b"b", ended=True), data(1, b"late"), data(5, b"c", ended=True))
    assert (await client.answer(3)).body == b"ab"
    assert (await client.answer(5)).body == b"c"
    assert server.connection.idle


def test_body_that_comes_a_byte_at_a_time() -> None:
    async def run() -> None:
        async with served(body_s=30.0, whole_body_s=100.0) as server:
            client = await server.connect()
            client.send(head(1, request(b"/echo")), head(3, request(b"/pieces")))
            for now in (1.0, 29.0, 57.0, 85.0):
                await client.settled()
                server.tick(now)
                client.send(data(1, b"a"), data(3, b"a"))
            await client.settled()
            server.tick(101.0)
            assert (await client.answer(1)).reset == frames.CANCEL
            client.send(data(3, b"b", ended=True))  # whoever reads it piece by piece knows how long to wait
            assert (await client.answer(3)).body == b"aaaab"

    asyncio.run(run())


@over_a_connection
async def test_silent_client_is_asked_and_stays_when_it_answers(server: Served, client: RawClient) -> None:
    await client.settled()
    now = 0.0
    for _ in range(3):
        server.tick(now)
        server.tick(now + LIMITS.silence_s - 1)
        server.tick(now + LIMITS.silence_s)
        ping = await client.until(frames.PING)
        assert not ping.flags & ACK
        client.send(frame(frames.PING, ACK, 0, ping.payload))
        await client.settled()
        now += LIMITS.silence_s + 5
    server.tick(now)
    assert not server.connection._over


@over_a_connection
async def test_silent_client_that_is_gone(server: Served, client: RawClient) -> None:
    client.send(call(1, b"/never"))
    await client.settled()
    server.tick(0.0)
    server.tick(LIMITS.silence_s)
    server.tick(LIMITS.silence_s + LIMITS.answer_s - 1)
    assert not server.app.gone
    server.tick(LIMITS.silence_s + LIMITS.answer_s)
    assert server.app.gone == [b"/never"]
    assert (await client.fault())[0] == NO_ERROR


@over_a_connection
async def test_answers_that_are_not_taken(server: Served, client: RawClient) -> None:
    client.send(initial_window(0), call(1, b"/1000"))
    await client.settled()
    server.tick(0.0)
    client.send(frames.window_update(1, 1))
    await client.settled()
    server.tick(1.0)
    server.tick(2.0)
    for second in range(3, 2 + int(LIMITS.stall_s), 10):
        await client.settled()  # not silent
        server.tick(float(second))
    assert not server.connection._over
    server.tick(2.0 + LIMITS.stall_s)
    assert await client.fault() == (ENHANCE_YOUR_CALM, "answers are not taken")


@over_a_connection
async def test_answer_that_is_taken_a_byte_a_minute(server: Served, client: RawClient) -> None:
    client.send(initial_window(0), call(1, b"/1000"))
    await client.settled()
    seconds = range(0, int(LIMITS.whole_answer_s), 30)
    for second in seconds:
        client.send(frames.window_update(1, 1))
        await client.settled()
        server.tick(float(second))
    assert client.answers[1].body == b"x" * len(seconds)
    assert client.answers[1].reset is None
    server.tick(LIMITS.whole_answer_s)
    assert (await client.answer(1)).reset == frames.CANCEL
    assert server.connection.send_queue.unsent_bytes == 0
    client.send(initial_window(100), call(3, b"/echo", b"sane"))
    assert (await client.answer(3)).body == b"sane"


@over_a_connection
async def test_drain_without_calls(server: Served, client: RawClient) -> None:
    client.send(call(1, b"/echo"))
    await client.answer(1)
    server.connection.drain()
    server.connection.drain()
    assert _goaway(await client.until(frames.GOAWAY)) == (2**31 - 1, NO_ERROR)
    ping = await client.until(frames.PING)
    client.send(call(3, b"/echo", b"on its way"), frame(frames.PING, ACK, 0, ping.payload), call(5, b"/echo"))
    assert (await client.answer(3)).body == b"on its way"
    assert _goaway(await client.until(frames.GOAWAY)) == (3, NO_ERROR)
    assert await client.all_frames() == []
    assert 5 not in client.answers
    await client.close()
    await eventually(lambda: not server.connections)


@over_a_connection
async def test_drain_waits_for_calls_but_takes_none(server: Served, client: RawClient) -> None:
    client.send(call(1, b"/later", b"waits"), head(3, request(b"/echo")))
    await client.settled()
    connection = server.connection
    connection.drain()
    server.tick(1.0)
    server.tick(2.0)
    assert _goaway(await client.until(frames.GOAWAY))[0] == 2**31 - 1
    assert _goaway(await client.until(frames.GOAWAY))[0] == 3
    client.send(call(5, b"/echo"), head(7, request(b"/echo")), data(7, b"x"), data(7, b"y", ended=True))
    client.send(frames.window_update(5, 1), frames.rst_stream(7, 8), data(3, b"begun", ended=True))
    assert (await client.answer(3)).body == b"begun"
    await client.settled()
    assert connection.open_streams == 1
    server.app.release.set()
    assert (await client.answer(1)).body == b"waits"
    assert await client.all_frames() == []
    assert {5, 7}.isdisjoint(client.answers)


@over_a_connection
async def test_drain_ends_with_the_last_body_that_stops(server: Served, client: RawClient) -> None:
    client.send(head(1, request(b"/echo")))
    await client.settled()
    server.connection.drain()
    client.send(frame(frames.PING, ACK, 0, (await client.until(frames.PING)).payload))
    await client.settled()
    server.tick(1.0)
    assert not server.connection._over
    server.tick(1.0 + LIMITS.body_s)
    assert (await client.answer(1)).reset == frames.CANCEL
    assert server.connection._over
    await client.close()
    await eventually(lambda: not server.connections)


@over_a_connection
async def test_slow_reader_of_a_last_answer_gets_all_of_it(server: Served, client: RawClient) -> None:
    client.send(initial_window(2**31 - 1), frames.window_update(0, 2**30))
    client.stop_reading()
    client.send(call(1, b"/later"), call(3, b"/900000"))
    await eventually(lambda: len(server.app.served) == 2)
    connection = server.connection
    connection.drain()
    for second in range(1, 20):
        server.tick(float(second))
    server.app.release.set()
    await eventually(lambda: connection.open_streams == 1)
    client.go_on_reading()
    assert len((await client.answer(3)).body) == 900_000
    assert (await client.answer(1)).status == 200
    assert await client.all_frames() == []


@over_a_connection
async def test_close(server: Served, client: RawClient) -> None:
    client.send(call(1, b"/never"))
    await client.settled()
    server.connection.close()
    assert server.app.gone == [b"/never"]
    assert await client.fault() == (NO_ERROR, "")
    await eventually(lambda: not server.connections)


@over_a_connection
async def test_close_does_not_wait_for_one_that_reads_nothing(server: Served, client: RawClient) -> None:
    client.send(initial_window(2**31 - 1), frames.window_update(0, 2**30))
    client.stop_reading()
    client.send(call(1, b"/5000000"))
    await eventually(lambda: server.connections and server.connection.send_queue.unsent_bytes)
    server.connection.close()
    await eventually(lambda: not server.connections)


@over_a_connection
async def test_client_that_says_goodbye(server: Served, client: RawClient) -> None:
    client.send(call(1, b"/later"), frames.goaway(0, NO_ERROR))
    await client.settled()
    server.app.release.set()
    await client.answer(1)
    assert await client.all_frames() == []


@over_a_connection
async def test_client_that_does_not_close_is_cut_off(server: Served, client: RawClient) -> None:
    client.send(frames.window_update(0, 0))
    await client.fault()
    assert server.connections
    client.send(call(1, b"/echo"))
    server.tick(1.0)
    server.tick(1.0 + LINGER_S)
    await eventually(lambda: not server.connections)
    assert server.app.served == []


@over_a_connection
async def test_client_that_sends_its_end(server: Served, client: RawClient) -> None:
    client.send(call(1, b"/never"))
    await client.settled()
    client.writer.write_eof()
    await eventually(lambda: not server.connections)
    assert server.app.gone == [b"/never"]


@over_a_connection
async def test_frames_that_wait_for_their_turn_are_not_late(server: Served, client: RawClient) -> None:
    await client.settled()
    connection = server.connection
    connection.h2.unread = b"\0"
    connection._full = True  # the client takes no answers: it is not the frame that takes too long
    connection.tick(1)
    connection.tick(1 + LIMITS.body_s)
    assert not connection._over
    connection._full = False
    connection.tick(2 + LIMITS.body_s)
    connection.tick(2 + 2 * LIMITS.body_s)
    assert connection._over
