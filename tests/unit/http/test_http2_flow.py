"""Flow control over HTTP/2: what a client does not take waits, in bounds, and nobody else waits with it."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablegate.gateway.http.h2 import frames
from tablegate.gateway.http.h2.connection import STREAMS_MAX
from tablegate.gateway.http.h2.frames import ACK, frame
from tablegate.gateway.http.h2_connection import UNSENT_BYTES_MAX
from tests.kit.http.h2 import (
    OPENING,
    PIECE,
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

WIDE = OPENING + initial_window(2**31 - 1) + frames.window_update(0, 2**31 - 1 - frames.WINDOW_BYTES)


@over_a_connection
async def test_answer_waits_for_its_stream(server: Served, client: RawClient) -> None:
    client.send(initial_window(10), call(1, b"/25"), call(3, b"/0"))
    await client.answer(3)
    assert client.answers[1].body == b"x" * 10
    client.send(frames.window_update(1, 10))
    await client.settled()
    assert client.answers[1].body == b"x" * 20
    client.send(frames.window_update(1, 5))
    answer = await client.answer(1)
    assert (answer.body, answer.trailer) == (b"x" * 25, {b"rest": b"none"})


@over_a_connection
async def test_windows_change_for_open_streams_and_may_be_negative(server: Served, client: RawClient) -> None:
    client.send(initial_window(30), call(1, b"/bare/50"), initial_window(10))
    await client.settled()
    assert len(client.answers[1].body) == 30
    client.send(frames.window_update(1, 20))  # to 0
    await client.settled()
    assert len(client.answers[1].body) == 30
    client.send(frames.window_update(1, 5), initial_window(25))
    answer = await client.answer(1)
    assert len(answer.body) == 50


@over_a_connection
async def test_window_that_settings_make_too_large(server: Served, client: RawClient) -> None:
    client.send(call(1, b"/never"), frames.window_update(1, 2**31 - 1 - 65_535), initial_window(65_536))
    assert (await client.fault())[0] == frames.FLOW_CONTROL_ERROR


@over_a_connection
async def test_streams_share_the_connection_in_turns(server: Served, client: RawClient) -> None:
    client.send(frames.settings((frames.MAX_FRAME_SIZE, 2**24 - 1), (frames.INITIAL_WINDOW_SIZE, 2**24)))
    client.send(call(1, b"/200000"), call(3, b"/200000"), call(5, b"/200000"), call(7, b"/stream/1000"))
    await client.settled()
    assert len(client.answers[1].body) == frames.WINDOW_BYTES, "nobody else was there"
    client.send(frames.window_update(0, 2 * 3 * frames.FRAME_BYTES_MAX + len(PIECE)))
    while sum(len(answer.body) for answer in client.answers.values()) < frames.WINDOW_BYTES + 99_000:
        await client.frame()
    more = [len(client.answers[stream].body) for stream in (1, 3, 5)]
    more[0] -= frames.WINDOW_BYTES
    assert all(frames.FRAME_BYTES_MAX <= size <= 3 * frames.FRAME_BYTES_MAX for size in more), more
    client.send(frames.window_update(0, 2**24))
    for stream in (1, 3, 5, 7):
        await client.answer(stream)
    assert client.answers[7].body == PIECE * 1_000
    assert server.app.pieces_sent == 1_000


@over_a_connection
async def test_stream_waits_for_its_reader(server: Served, client: RawClient) -> None:
    client.send(call(1, b"/stream/1000"))
    await _bytes(client, 1, frames.WINDOW_BYTES)
    assert server.app.pieces_sent == 63, "one more has begun"
    client.send(frames.window_update(1, 10 * len(PIECE)), frames.window_update(0, 10 * len(PIECE)))
    await _bytes(client, 1, frames.WINDOW_BYTES + 10 * len(PIECE))
    await client.settled()
    assert server.app.pieces_sent == 73
    client.send(frames.rst_stream(1, frames.CANCEL), call(3, b"/0"))
    assert (await client.answer(3)).status == 200
    assert server.app.gone == [b"/stream/1000"]


async def _bytes(client: RawClient, stream: int, size: int) -> None:
    while stream not in client.answers or len(client.answers[stream].body) < size:
        assert await client.frame() is not None


@pytest.mark.tools
def test_client_that_reads_nothing_makes_streams_wait() -> None:
    async def run() -> None:
        async with served() as server:
            client = await server.connect(WIDE)
            client.stop_reading()
            client.send(*[call(stream, b"/stream/100000") for stream in range(1, 41, 2)])
            await eventually(lambda: len(server.app.served) == 20)
            sent = -1
            while sent != server.app.pieces_sent:
                sent = server.app.pieces_sent
                await asyncio.sleep(0.1)
            connection = server.connection
            assert connection._transport.get_write_buffer_size() < 1 << 18
            client.go_on_reading()
            while server.app.pieces_sent == sent:
                await client.frame()
            other = await server.connect()
            other.send(call(1, b"/0"))
            assert (await other.answer(1)).status == 200

    asyncio.run(run())


@pytest.mark.tools
@pytest.mark.parametrize("opening", [OPENING, WIDE], ids=["windows", "sockets"])
def test_many_answers_that_nobody_reads_are_bounded_and_not_lost(opening: bytes) -> None:
    calls = 600

    async def run() -> None:
        async with served() as server:
            client = await server.connect(opening)
            client.stop_reading()
            for stream in range(1, 2 * calls, 2):
                client.send(call(stream, b"/100000"))
            connection = server.connection
            seen = -1
            while seen != len(server.app.served) or not seen:
                seen = len(server.app.served)
                await asyncio.sleep(0.1)
            assert seen < calls
            assert connection.send_queue.unsent_bytes < UNSENT_BYTES_MAX + 200_000
            assert connection._transport.get_write_buffer_size() < UNSENT_BYTES_MAX + 200_000
            client.go_on_reading()
            if opening is OPENING:
                client.send(initial_window(2**31 - 1), frames.window_update(0, 2**31 - 1 - frames.WINDOW_BYTES))
            for stream in range(1, 2 * calls, 2):
                assert len((await client.answer(stream)).body) == 100_000
            assert connection.idle
            assert connection.send_queue.unsent_bytes == connection.h2.windows.kept == 0

    asyncio.run(run())


def test_what_no_window_holds_back_is_bounded() -> None:
    """Heads of answers, and acknowledgements: when they fill the transport, the client is not read any more, either."""

    async def run() -> None:
        async with served() as server:
            client = await server.connect(WIDE)
            client.stop_reading()
            await eventually(lambda: server.connections)
            streams = 0
            while not server.connection._full:
                for _ in range(50):
                    client.send(call(2 * streams + 1, b"/head"), frame(frames.PING, 0, 0, b"12345678"))
                    streams += 1
                await asyncio.sleep(0)
            assert server.connection._transport.get_write_buffer_size() < 2 * UNSENT_BYTES_MAX
            client.go_on_reading()
            await client.answer(2 * streams - 1)
            assert len(server.app.served) == streams
            await eventually(lambda: not server.connection._full)

    asyncio.run(run())


@over_a_connection
async def test_cancelled_streams_leave_nothing(server: Served, client: RawClient) -> None:
    """Neither answers that wait for a window, nor requests that wait for those answers."""
    client.send(*[call(stream, b"/99000", b"body") for stream in range(1, 61, 2)])
    await client.settled()
    assert len(server.app.served) < 30
    client.send(*[frames.rst_stream(stream, frames.CANCEL) for stream in range(1, 61, 2)])
    await client.settled()
    connection = server.connection
    assert connection.idle
    assert not connection.send_queue._queue
    assert not connection._postponed
    assert connection.send_queue.unsent_bytes == connection.h2.windows.kept == 0
    client.send(frames.window_update(0, 10), call(61, b"/3"))
    assert (await client.answer(61)).body == b"xxx"


@over_a_connection
async def test_window_of_requests_is_given_back_when_they_are_served(server: Served, client: RawClient) -> None:
    connection = server.connection
    window = connection.h2.windows.size
    body = b"x" * 16_000
    for stream in range(1, 2 * (3 * window // len(body)), 2):
        client.send(call(stream, b"/0", body))
        await client.answer(stream)
    assert connection.h2.windows.kept == 0
    assert connection.h2.windows.window > 0


@over_a_connection
async def test_more_than_the_window_of_a_connection(server: Served, client: RawClient) -> None:
    for stream in range(1, 41, 2):
        client.send(head(stream, request(b"/echo")), *[data(stream, b"x" * 16_000) for _ in range(6)])
    code, _ = await client.fault()
    assert code == frames.FLOW_CONTROL_ERROR


@over_a_connection
async def test_bodies_that_stop_each_other_are_given_up_newest_first(server: Served, client: RawClient) -> None:
    """Sixteen bodies begin, and take the whole window: without more, none could come to its end."""
    connection = server.connection
    left = connection.h2.windows.size
    for stream in range(1, 40, 2):
        client.send(head(stream, request(b"/echo")))
        for _ in range(4):
            size = min(16_000, left)
            left -= size
            if size:
                client.send(data(stream, b"x" * size))
    assert left == 0
    update = await client.until(frames.WINDOW_UPDATE)
    while update.stream == 0 and not any(answer.reset for answer in client.answers.values()):
        update = await client.until(frames.WINDOW_UPDATE)
    refused = [stream for stream, answer in client.answers.items() if answer.reset == frames.REFUSED_STREAM]
    assert refused
    assert min(refused) > 1
    client.send(data(1, b"", ended=True))
    assert len((await client.answer(1)).body) == 64_000
    client.send(data(max(refused), b"late"), call(101, b"/0"))
    assert (await client.answer(101)).status == 200


def test_both_ways_gives_windows_back_as_it_reads() -> None:
    async def run() -> None:
        async with served() as server:
            client = await server.connect(WIDE)
            client.send(head(1, request(b"/pieces")))
            for _ in range(300):
                client.send(data(1, b"x" * 10_000))
                await _bytes(client, 1, 10_000)
                client.answers[1].body = client.answers[1].body[10_000:]
            client.send(data(1, b"", ended=True))
            await client.answer(1)
            assert server.connection.h2.windows.kept == 0

    asyncio.run(run())


@over_a_connection
async def test_both_ways_without_a_reader_ends_at_the_window(server: Served, client: RawClient) -> None:
    client.send(head(1, request(b"/unread")), *[data(1, b"x" * 15_000) for _ in range(7)])
    assert (await client.answer(1)).reset == frames.FLOW_CONTROL_ERROR


@over_a_connection
async def test_settings_are_answered_in_their_order(server: Served, client: RawClient) -> None:
    client.send(initial_window(0), call(1, b"/bare/1"), initial_window(1))
    await client.until(frames.SETTINGS, ACK)
    await client.until(frames.SETTINGS, ACK)
    await client.until(frames.SETTINGS, ACK)
    assert client.answers[1].body == b""
    assert (await client.answer(1)).body == b"x"


@over_a_connection
async def test_streams_up_to_their_number(server: Served, client: RawClient) -> None:
    client.send(*[call(stream, b"/later") for stream in range(1, 2 * STREAMS_MAX, 2)])
    await client.settled()
    assert len(server.app.served) == STREAMS_MAX
    assert server.connection.open_streams == STREAMS_MAX
    server.app.release.set()
    for stream in range(1, 2 * STREAMS_MAX, 2):
        assert (await client.answer(stream)).status == 200


_Step = st.one_of(
    st.tuples(st.just("window"), st.integers(1, 40_000)),
    st.tuples(st.just("initial"), st.integers(0, 70_000)),
    st.tuples(st.just("stream"), st.integers(1, 40_000)),
    st.tuples(st.just("cancel"), st.just(0)),
)


@given(st.lists(st.tuples(st.integers(0, 90_000), st.booleans()), min_size=1, max_size=5), st.lists(_Step, max_size=12))
def test_every_byte_comes_whatever_the_windows_do(sizes: list[tuple[int, bool]], steps: list[tuple[str, int]]) -> None:
    @over_a_connection
    async def run(server: Served, client: RawClient) -> None:
        cancelled = set()
        for number, (size, bare) in enumerate(sizes):
            client.send(call(2 * number + 1, (b"/bare/%d" if bare else b"/%d") % size))
        for number, (step, size) in enumerate(steps):
            stream = 2 * (number % len(sizes)) + 1
            if step == "window":
                client.send(frames.window_update(0, size))
            elif step == "initial":
                client.send(initial_window(size))
            elif step == "stream":
                client.send(frames.window_update(stream, size))
            else:
                client.send(frames.rst_stream(stream, frames.CANCEL))
                cancelled.add(stream)
        client.send(frames.window_update(0, 2**20), initial_window(2**20))
        for number, (size, _) in enumerate(sizes):
            if 2 * number + 1 not in cancelled:
                assert len((await client.answer(2 * number + 1)).body) == size
        await client.settled()
        connection = server.connection
        assert connection.send_queue.unsent_bytes == 0
        assert connection.send_queue.free
        assert connection.idle

    run()
