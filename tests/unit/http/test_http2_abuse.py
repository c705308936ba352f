"""Clients that mean harm over HTTP/2: each costs itself its connection, and others nothing."""

import pytest

from tablegate.gateway.http.h2 import frames
from tablegate.gateway.http.h2.budget import EMPTY_FRAMES_MAX, RESETS_MAX, SPAN_S
from tablegate.gateway.http.h2.connection import CONTINUATIONS_MAX, STREAMS_MAX
from tablegate.gateway.http.h2.frames import ACK, END_HEADERS, ENHANCE_YOUR_CALM, PADDED, frame
from tablegate.gateway.http.h2.headers import HEADER_BYTES_MAX
from tests.kit.http.h2 import RawClient, Served, block, call, data, head, over_a_connection, request

_PING = frame(frames.PING, 0, 0, b"12345678")


async def _ended(server: Served, client: RawClient) -> str:
    """Return why the connection was ended, and look whether others can go on."""
    code, text = await client.fault()
    assert code == ENHANCE_YOUR_CALM, text
    other = await server.connect()
    other.send(call(1, b"/echo", b"others"))
    assert (await other.answer(1)).body == b"others"
    return text


@over_a_connection
async def test_rapid_reset(server: Served, client: RawClient) -> None:
    for stream in range(1, 4 * RESETS_MAX, 2):
        client.send(call(stream, b"/later"), frames.rst_stream(stream, frames.CANCEL))
    assert await _ended(server, client) == "too many streams are reset"
    assert len(server.app.served) == RESETS_MAX + 2  # the last one is of the other client
    assert len(server.app.gone) == RESETS_MAX + 1


@over_a_connection
async def test_resets_that_the_server_is_made_to_send(server: Served, client: RawClient) -> None:
    for stream in range(1, 4 * RESETS_MAX, 2):
        client.send(call(stream, b"/later"), frames.window_update(stream, 0))
    assert await _ended(server, client) == "too many streams are reset"
    assert len(server.app.gone) == RESETS_MAX + 1


@over_a_connection
async def test_malformed_requests(server: Served, client: RawClient) -> None:
    for stream in range(1, 4 * RESETS_MAX, 2):
        client.send(head(stream, block((b":path", b"/echo")), ended=True))
    await _ended(server, client)


@over_a_connection
async def test_cancels_beside_answers_are_no_attack(server: Served, client: RawClient) -> None:
    for stream in range(1, 8 * RESETS_MAX, 4):
        client.send(call(stream, b"/echo"), call(stream + 2, b"/never"), frames.rst_stream(stream + 2, frames.CANCEL))
    assert (await client.answer(8 * RESETS_MAX - 3)).status == 200


@over_a_connection
async def test_cancels_of_old_streams_are_no_attack(server: Served, client: RawClient) -> None:
    count = 2 * RESETS_MAX
    client.send(*[call(stream, b"/never") for stream in range(1, 2 * count, 2)])
    await client.settled()
    server.tick(0.0)
    client.send(*[frames.rst_stream(stream, frames.CANCEL) for stream in range(1, 2 * count, 2)])
    await client.settled()
    assert len(server.app.gone) == count


@over_a_connection
async def test_budget_begins_anew(server: Served, client: RawClient) -> None:
    stream = 1
    for span in range(3):
        for _ in range(RESETS_MAX):
            client.send(call(stream, b"/never"), frames.rst_stream(stream, frames.CANCEL))
            stream += 2
        client.send(_PING * 50)
        await client.settled()
        server.tick(span * SPAN_S)
    client.send(call(stream, b"/echo"))
    assert (await client.answer(stream)).status == 200


_NOISE = {
    "PING": (_PING, "too_many_pings"),
    "answers to PING": (frame(frames.PING, ACK, 0, b"12345678"), "too_many_pings"),
    "SETTINGS": (frames.settings((frames.INITIAL_WINDOW_SIZE, 1)), "too many settings"),
    "answers to SETTINGS": (frame(frames.SETTINGS, ACK, 0), "too many settings"),
    "WINDOW_UPDATE": (frames.window_update(0, 1), "too many window updates"),
    "WINDOW_UPDATE of a stream": (frames.window_update(1, 1), "too many window updates"),
    "PRIORITY": (frame(frames.PRIORITY, 0, 1, b"\0\0\0\3\7"), "too many priorities"),
    "RST_STREAM of what has ended": (frames.rst_stream(1, frames.CANCEL), "too many streams are reset"),
    "empty DATA": (data(3, b""), "too many empty frames"),
    "DATA of padding": (frame(frames.DATA, PADDED, 3, b"\3\0\0\0"), "too many empty frames"),
    "of no known type": (frame(0xFA, 0, 0, b"?"), "too many frames of unknown types"),
}


@pytest.mark.parametrize(("sent", "text"), _NOISE.values(), ids=_NOISE.keys())
def test_flood_of_frames_that_carry_nothing(sent: bytes, text: str) -> None:
    @over_a_connection
    async def run(server: Served, client: RawClient) -> None:
        client.send(call(1, b"/echo"), head(3, request(b"/echo")))
        await client.answer(1)
        client.send(sent * (EMPTY_FRAMES_MAX + 10))
        assert await _ended(server, client) == text

    run()


@pytest.mark.parametrize("sent", [data(3, b""), head(3, request(b"/echo"))], ids=["DATA", "HEADERS"])
def test_flood_of_frames_of_a_reset_stream(sent: bytes) -> None:
    @over_a_connection
    async def run(server: Served, client: RawClient) -> None:
        client.send(head(3, request(b"/echo")), frames.window_update(3, 0))
        assert (await client.answer(3)).reset == frames.PROTOCOL_ERROR
        client.send(sent * (EMPTY_FRAMES_MAX + 10))
        assert await _ended(server, client) == "too many frames of streams that are reset"

    run()


@over_a_connection
async def test_pings_without_calls_cost_more(server: Served, client: RawClient) -> None:
    client.send(_PING * 50)
    await client.settled()
    client.send(_PING * 60)
    assert await _ended(server, client) == "too_many_pings"


@over_a_connection
async def test_pings_that_go_with_answers_are_no_attack(server: Served, client: RawClient) -> None:
    """As clients of gRPC do that measure how long a round takes."""
    for stream in range(1, 2 * EMPTY_FRAMES_MAX, 2):
        client.send(call(stream, b"/echo"), _PING, frames.window_update(0, 1))
    assert (await client.answer(2 * EMPTY_FRAMES_MAX - 1)).status == 200


@pytest.mark.tools
@over_a_connection
async def test_window_updates_that_go_with_a_stream_are_no_attack(server: Served, client: RawClient) -> None:
    client.send(call(1, b"/stream/3000"))
    while 1 not in client.ended:
        got = await client.frame()
        assert got is not None
        if got.kind == frames.DATA:
            client.send(
                frames.window_update(0, len(got.payload) or 1), frames.window_update(1, len(got.payload) or 1), _PING
            )
    assert len(client.answers[1].body) == 3_000 * 1_024


@over_a_connection
async def test_header_block_without_end(server: Served, client: RawClient) -> None:
    piece = block((b"a", b"b" * 1_000))
    client.send(frame(frames.HEADERS, 0, 1, request(b"/echo")))
    client.send(*[frame(frames.CONTINUATION, 0, 1, piece) for _ in range(HEADER_BYTES_MAX // len(piece) + 1)])
    assert await _ended(server, client) == "header block is too long"


@pytest.mark.parametrize("piece", [b"", b"\x82"], ids=["empty", "tiny"])
def test_flood_of_continuations(piece: bytes) -> None:
    @over_a_connection
    async def run(server: Served, client: RawClient) -> None:
        client.send(frame(frames.HEADERS, 0, 1), *[frame(frames.CONTINUATION, 0, 1, piece)] * (CONTINUATIONS_MAX + 1))
        assert await _ended(server, client) == "header block is too long"

    run()


@over_a_connection
async def test_continuations_up_to_their_number(server: Served, client: RawClient) -> None:
    client.send(frame(frames.HEADERS, 1, 1, request(b"/echo")))
    client.send(*[frame(frames.CONTINUATION, 0, 1)] * (CONTINUATIONS_MAX - 1))
    client.send(frame(frames.CONTINUATION, END_HEADERS, 1))
    assert (await client.answer(1)).status == 200


@over_a_connection
async def test_bomb_of_indexes(server: Served, client: RawClient) -> None:
    """16,000 bytes that mean 64 MB: each names an entry of 4,000 bytes."""
    entry = bytes((0x40,)) + block((b"a", b"b" * 4_000))[1:]
    client.send(head(1, request(b"/echo") + entry, ended=True))
    client.send(*[head(stream, request(b"/echo") + b"\xbe" * 16_000, ended=True) for stream in range(3, 103, 2)])
    for stream in range(3, 103, 2):
        assert (await client.answer(stream)).status == 431
    client.send(call(103, b"/echo", b"sane"))
    assert (await client.answer(103)).body == b"sane"
    assert len(server.app.served) == 2


@over_a_connection
async def test_flood_of_refused_streams(server: Served, client: RawClient) -> None:
    client.send(*[call(stream, b"/never") for stream in range(1, 2 * (STREAMS_MAX + EMPTY_FRAMES_MAX) + 10, 2)])
    assert await _ended(server, client) == "too many streams"


@pytest.mark.tools
@over_a_connection
async def test_one_client_has_one_turn(server: Served, client: RawClient) -> None:
    """Thousands of requests come at once: another connection is answered before they all are."""
    other = await server.connect()
    await other.settled()
    client.send(*[call(stream, b"/echo") for stream in range(1, 8_001, 2)])
    await client.answer(1)
    assert len(server.app.served) < 4_000
    other.send(call(1, b"/0"))
    await other.answer(1)
    for stream in range(3, 8_001, 2):
        await client.answer(stream)
    targets = [exchange.target for exchange in server.app.served]
    assert targets.index(b"/0") < 4_000
    assert len(targets) == 4_001
