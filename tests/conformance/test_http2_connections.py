"""What a connection of HTTP/2 owes to the rest of the server, whatever library frames it.

The seam has two sides. Above it is `exchange.py`: an app serves exchanges, and knows nothing of frames. Beside it are
asyncio's transport, and the listener: `tick`, `drain`, `retire`, `close`, `idle`, the turns of connections and the
account of what they hold. These tests see nothing else of a connection, and its frames as a client does.

Another one is added to `CONNECTIONS`. What RFC 9113 says of frames is asked by `tests/unit/http` and by h2spec.

Decision: docs/decisions/0113-our-http2-beside-others.md
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tablegate.gateway.http.connection_turns import ConnectionTurns, WaitLimits
from tablegate.gateway.http.exchange import Exchange
from tablegate.gateway.http.h2 import frames
from tablegate.gateway.http.h2_connection import Http2Connection
from tablegate.gateway.http.memory import MemoryLimits
from tests.kit.http.h2 import (
    HEAD,
    PIECE,
    TRAILER,
    RawClient,
    Served,
    call,
    data,
    eventually,
    head,
    initial_window,
    request,
    served,
)
from tests.kit.http.http1 import PATIENT

CONNECTIONS = {"own": Http2Connection}
WINDOW = 65_535  # of a connection and of its streams, at the beginning


def of_each(**options: Any) -> Callable[[Callable[[Served, RawClient], Awaitable[None]]], Callable[..., None]]:
    """Make a test of each connection of one that takes a server of it and a client."""

    def decorate(test: Callable[[Served, RawClient], Awaitable[None]]) -> Callable[..., None]:
        @pytest.mark.parametrize("connection_class", CONNECTIONS.values(), ids=CONNECTIONS.keys())
        def run(connection_class: type[Http2Connection]) -> None:
            async def go() -> None:
                made = {name: make() for name, make in options.items()}
                async with served(connection_class=connection_class, **made) as server:
                    await test(server, await server.connect())

            asyncio.run(go())

        run.__name__ = test.__name__
        return run

    return decorate


def _window(stream: int, size: int) -> bytes:
    return frames.window_update(stream, size)


@of_each()
async def test_an_answer_has_its_headers_body_and_trailer(server: Served, client: RawClient) -> None:
    client.send(call(1, b"/echo", b"asked"))
    answer = await client.answer(1)
    assert (answer.status, answer.body, answer.trailer) == (200, b"asked", {b"rest": b"none"})
    [exchange] = server.app.served
    assert (exchange.method, exchange.target, exchange.http2) == (b"POST", b"/echo", True)


@of_each()
async def test_an_answer_may_have_no_trailer_and_no_body(server: Served, client: RawClient) -> None:
    client.send(call(1, b"/bare/10"), call(3, b"/head"), head(5, request(b"/10", method=b"HEAD"), ended=True))
    assert (await client.answer(1)).body == b"x" * 10
    assert (await client.answer(3)).body == b""
    assert (await client.answer(5)).body == b""


@of_each()
async def test_calls_are_at_work_at_once_and_end_in_any_order(server: Served, client: RawClient) -> None:
    streams = range(1, 201, 2)
    client.send(*[call(stream, b"/later", b"%d" % stream) for stream in streams], call(201, b"/echo"))
    await client.answer(201)
    assert not client.answers.keys() & set(streams)
    assert not server.connection.idle
    server.app.release.set()
    assert [(await client.answer(stream)).body for stream in streams] == [b"%d" % stream for stream in streams]
    assert server.connection.idle


@of_each()
async def test_an_answer_waits_for_the_windows_of_its_stream_and_connection(server: Served, client: RawClient) -> None:
    client.send(initial_window(10), call(1, b"/80000"), call(3, b"/echo", b"small"))
    await client.answer(3)
    assert client.answers[1].body == b"x" * 10
    client.send(_window(1, 100_000))
    await client.settled()
    assert len(client.answers[1].body) == WINDOW - len(b"small")
    client.send(_window(0, 100_000))
    answer = await client.answer(1)
    assert (len(answer.body), answer.trailer) == (80_000, {b"rest": b"none"})


@of_each()
async def test_who_makes_a_stream_waits_for_its_client(server: Served, client: RawClient) -> None:
    client.send(initial_window(3 * len(PIECE)), call(1, b"/stream/100"))
    await client.settled()
    await client.settled()
    assert server.app.pieces_sent <= 4
    client.send(_window(1, 1_000_000), _window(0, 1_000_000))
    assert (await client.answer(1)).body == PIECE * 100


@of_each()
async def test_a_message_is_taken_at_once_or_not_at_all(server: Served, client: RawClient) -> None:
    client.send(initial_window(len(PIECE)), head(1, request(b"/pieces")))
    await eventually(lambda: server.app.served)
    [exchange] = server.app.served
    await client.settled()
    assert exchange.offer(PIECE)
    assert not exchange.offer(PIECE)
    client.send(_window(1, len(PIECE)), data(1, b"", ended=True))
    assert (await client.answer(1)).body == PIECE


@of_each()
async def test_windows_of_requests_are_given_back(server: Served, client: RawClient) -> None:
    for stream in range(1, 41, 2):
        client.send(call(stream, b"/echo", b"b" * 16_000), _window(0, 16_000))
        assert len((await client.answer(stream)).body) == 16_000


@of_each()
async def test_a_body_in_pieces_goes_both_ways(server: Served, client: RawClient) -> None:
    client.send(head(1, request(b"/pieces")), data(1, b"one"))
    await eventually(lambda: server.app.served)
    while client.answers.get(1) is None or client.answers[1].body != b"one":
        await client.frame()
    client.send(data(1, b"two", ended=True))
    answer = await client.answer(1)
    assert (answer.body, answer.trailer) == (b"onetwo", {b"rest": b"none"})


@of_each()
async def test_a_body_that_is_too_long_is_served_cut(server: Served, client: RawClient) -> None:
    client.send(head(1, request(b"/echo")))
    for _ in range(7):
        client.send(data(1, b"b" * 16_000))
        await client.settled()
    client.send(data(1, b"", ended=True))
    assert (await client.answer(1)).status == 413
    client.send(call(3, b"/echo", b"next"))
    assert (await client.answer(3)).body == b"next"


@of_each()
async def test_a_cancelled_call_is_told_once_and_its_answer_thrown_away(server: Served, client: RawClient) -> None:
    client.send(call(1, b"/later"), call(3, b"/never"), frames.rst_stream(1, frames.CANCEL))
    await client.settled()
    assert server.app.gone == [b"/later"]
    server.app.release.set()
    client.send(call(5, b"/echo", b"next"))
    assert (await client.answer(5)).body == b"next"
    assert not client.answers.get(1) or not client.answers[1].head
    await client.close()
    await eventually(lambda: server.app.gone == [b"/later", b"/never"])


@of_each()
async def test_an_answer_that_breaks_off_is_seen_to_be_broken(server: Served, client: RawClient) -> None:
    client.send(call(1, b"/abort"), call(3, b"/echo", b"next"))
    assert (await client.answer(1)).reset is not None
    assert (await client.answer(3)).body == b"next"


@of_each()
async def test_a_malformed_request_ends_its_stream_alone(server: Served, client: RawClient) -> None:
    client.send(call(1, b"/later"), head(3, request(b"no path")), call(5, b"/echo", b"next"))
    assert (await client.answer(5)).body == b"next"
    assert (await client.answer(3)).reset == frames.PROTOCOL_ERROR
    server.app.release.set()
    assert (await client.answer(1)).status == 200


@of_each(turns=lambda: ConnectionTurns(limits=PATIENT, round_s=0.0))
async def test_one_client_does_not_keep_the_others_waiting(server: Served, client: RawClient) -> None:
    count = 1_000
    other = await server.connect()
    await other.settled()
    order: list[bytes] = []
    serve = server.app.serve

    def serve_and_note(exchange: Exchange) -> None:
        order.append(exchange.target)
        exchange.respond(HEAD, b"", TRAILER) if exchange.target == b"/other" else serve(exchange)

    server.app.serve = serve_and_note  # type: ignore[method-assign]
    client.send(*[call(stream, b"/echo") for stream in range(1, 2 * count, 2)])
    other.send(call(1, b"/other"))
    await other.answer(1)
    await client.answer(2 * count - 1)
    assert order.index(b"/other") < count // 2


@of_each(turns=lambda: ConnectionTurns(limits=WaitLimits(burst_s=0.0, wait_max_s=0.0), round_s=0.0))
async def test_what_waited_too_long_for_its_turn_is_refused(server: Served, client: RawClient) -> None:
    client.send(*[call(stream, b"/echo") for stream in range(1, 801, 2)])
    statuses = {(await client.answer(stream)).status for stream in range(1, 801, 2)}
    assert 429 in statuses
    await eventually(lambda: not server.turns.is_busy)
    client.send(call(801, b"/echo"))
    assert (await client.answer(801)).status == 200


@of_each(memory=lambda: MemoryLimits(bytes_max=100_000, even_bytes=10_000))
async def test_what_is_held_is_counted_and_bounds_what_is_served(server: Served, client: RawClient) -> None:
    other = server.memory.account()
    client.send(head(1, request(b"/later")), data(1, b"b" * 15_000, ended=True))
    await eventually(lambda: server.tick(1.0) or server.memory.kept_bytes >= 15_000)
    other.hold(70_000)
    client.send(call(3, b"/echo"))
    assert (await client.answer(3)).status == 429
    server.app.release.set()
    await client.answer(1)
    client.send(call(5, b"/echo"))
    assert (await client.answer(5)).status == 200
    await client.close()
    await eventually(lambda: server.memory.kept_bytes == 70_000)


@of_each()
async def test_a_drain_loses_no_call_and_ends_with_the_last_answer(server: Served, client: RawClient) -> None:
    client.send(call(1, b"/later", b"first"))
    await eventually(lambda: server.app.served)
    server.connection.drain()
    await client.until(frames.GOAWAY)
    client.send(call(3, b"/echo", b"on its way"))
    assert (await client.answer(3)).body == b"on its way"
    for second in range(5):  # for a client that does not say that it has heard
        server.tick(float(second))
    last = await client.until(frames.GOAWAY)
    assert int.from_bytes(last.payload[:4], "big") == 3
    client.send(call(5, b"/echo", b"too late"))
    await client.settled()
    server.app.release.set()
    assert (await client.answer(1)).body == b"first"
    await client.all_frames()
    assert [exchange.body for exchange in server.app.served] == [b"first", b"on its way"]


@of_each()
async def test_a_connection_ends_at_once_where_it_is_closed(server: Served, client: RawClient) -> None:
    client.send(call(1, b"/never"))
    await eventually(lambda: server.app.served)
    server.connection.close()
    assert (await client.fault())[0] == frames.NO_ERROR
    assert server.app.gone == [b"/never"]
    await eventually(lambda: not server.connections)
