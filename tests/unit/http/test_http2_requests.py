"""Requests over HTTP/2: what reaches the app, and what is refused."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablegate.gateway.http.h2 import frames
from tablegate.gateway.http.h2.frames import END_HEADERS, END_STREAM, PADDED, PRIORITY_FLAG, frame
from tests.kit.http.h2 import (
    HEAD,
    OPENING,
    REQUEST,
    TRAILER,
    Answer,
    RawClient,
    Served,
    block,
    call,
    data,
    eventually,
    head,
    over_a_connection,
    request,
    served,
)


@over_a_connection
async def test_request_in_one_buffer(server: Served, client: RawClient) -> None:
    client.send(call(1, b"/echo", b"hello"))
    answer = await client.answer(1)
    assert (answer.status, answer.body, answer.trailer) == (200, b"hello", {b"rest": b"none"})
    exchange = server.app.served[0]
    assert (exchange.method, exchange.target, exchange.body) == (b"POST", b"/echo", b"hello")
    assert exchange.headers == {b"host": b"localhost"}
    assert exchange.http2
    assert not exchange.oversize
    await eventually(lambda: all(connection.idle for connection in server.connections))


@over_a_connection
async def test_answers_of_every_form(server: Served, client: RawClient) -> None:
    paths = [b"/0", b"/5", b"/bare/0", b"/bare/5", b"/60000", b"/bare/17000"]
    for number, path in enumerate(paths):
        client.send(frames.window_update(0, 100_000), call(2 * number + 1, path))
        answer = await client.answer(2 * number + 1)
        assert len(answer.body) == int(path.rpartition(b"/")[2]), path
        assert answer.trailer == ({} if b"bare" in path else {b"rest": b"none"}), path


@over_a_connection
async def test_head_is_answered_without_body(server: Served, client: RawClient) -> None:
    client.send(head(1, request(b"/60000", method=b"HEAD"), ended=True))
    assert (await client.answer(1)).body == b""
    client.send(head(3, request(b"/stream/2", method=b"HEAD"), ended=True))
    assert (await client.answer(3)).body == b""


@over_a_connection
async def test_repeated_names_are_joined(server: Served, client: RawClient) -> None:
    fields = [(b"a", b"1"), (b"cookie", b"x=1"), (b"a", b"2"), (b"cookie", b"y=2"), (b"host", b"localhost")]
    for stream in (1, 3):  # the second time, names are known
        client.send(head(stream, request(b"/echo", *fields), ended=True))
        await client.answer(stream)
        headers = server.app.served[-1].headers
        assert headers == {b"a": b"1, 2", b"cookie": b"x=1; y=2", b"host": b"localhost"}


@over_a_connection
async def test_body_in_frames_of_every_form(server: Served, client: RawClient) -> None:
    client.send(
        frame(frames.HEADERS, END_HEADERS | PADDED | PRIORITY_FLAG, 1, b"\2\0\0\0\0\7" + request(b"/echo") + b"\0\0"),
        frame(frames.DATA, PADDED, 1, b"\3one\0\0\0"),
        data(1, b""),
        data(1, b"two"),
        frame(0xFA, 0xFF, 1, b"of a type that nobody knows"),
        frame(frames.PRIORITY, 0, 1, b"\0\0\0\3\7"),
        frame(frames.DATA, END_STREAM | PADDED, 1, b"\0"),
    )
    assert (await client.answer(1)).body == b"onetwo"
    assert len(server.app.served) == 1


@over_a_connection
async def test_header_block_in_pieces(server: Served, client: RawClient) -> None:
    fields = request(b"/echo", (b"a", b"b" * 100))
    client.send(
        frame(frames.HEADERS, END_STREAM, 1, fields[:10]),
        frame(frames.CONTINUATION, 0, 1, fields[10:20]),
        frame(frames.CONTINUATION, END_HEADERS, 1, fields[20:]),
    )
    assert (await client.answer(1)).status == 200


@over_a_connection
async def test_trailers_of_a_request_are_ignored(server: Served, client: RawClient) -> None:
    client.send(head(1, request(b"/echo")), data(1, b"body"), head(1, block((b"checksum", b"1")), ended=True))
    assert (await client.answer(1)).body == b"body"


@over_a_connection
async def test_length_that_is_right(server: Served, client: RawClient) -> None:
    client.send(head(1, request(b"/echo", (b"content-length", b"4"))), data(1, b"body", ended=True))
    client.send(head(3, request(b"/echo", (b"content-length", b"4"))), data(3, b"bo"), data(3, b"dy", ended=True))
    client.send(head(5, request(b"/echo", (b"content-length", b"0")), ended=True))
    assert [(await client.answer(stream)).body for stream in (1, 3, 5)] == [b"body", b"body", b""]
    assert len(server.app.served) == 3


_MALFORMED = {
    "no fields": b"",
    "an empty name": block((b"", b"")),
    "no method": block(*REQUEST[1:]),
    "no scheme": block(REQUEST[0], *REQUEST[2:]),
    "no path": block(*REQUEST[:2], REQUEST[3]),
    "empty path": request(b""),
    "path without slash": request(b"echo"),
    "method twice": block(REQUEST[0], *REQUEST),
    "path twice, the same": block(*REQUEST, REQUEST[2]),
    "pseudo header after others": block((b"a", b"b"), *REQUEST),
    "pseudo header of an answer": request(b"/echo", (b":status", b"200")),
    "unknown pseudo header": block((b":colour", b"red"), *REQUEST),
    "upper case": request(b"/echo", (b"Accept", b"text/plain")),
    "space in a name": request(b"/echo", (b"ac cept", b"text/plain")),
    "empty name": request(b"/echo", (b"", b"text/plain")),
    "connection": request(b"/echo", (b"connection", b"close")),
    "transfer-encoding": request(b"/echo", (b"transfer-encoding", b"chunked")),
    "te": request(b"/echo", (b"te", b"gzip")),
    "line feed": request(b"/echo", (b"a", b"b\nc: d")),
    "carriage return": request(b"/echo", (b"a", b"b\r")),
    "zero byte": request(b"/echo", (b"a", b"\0")),
    "space at a value's end": request(b"/echo", (b"a", b"b "), (b"c", b"d")),
    "space at a value's beginning": request(b"/echo", (b"a", b" b"), (b"c", b"d")),
    "tab at a value's end": request(b"/echo", (b"a", b"b\t"), (b"c", b"d")),
    "tab at a value's beginning": request(b"/echo", (b"a", b"\tb")),
    "space at the last value's end": request(b"/echo", (b"a", b"b ")),
    "space before the first value": block((b":method", b" POST"), *REQUEST[1:]),
    "value of a space": request(b"/echo", (b"a", b" ")),
    "neither authority nor host": block(*REQUEST[:3]),
    "empty authority": block(*REQUEST[:3], (b":authority", b"")),
    "empty host": block(*REQUEST[:3], (b"host", b"")),
    "host unlike authority": request(b"/echo", (b"host", b"elsewhere")),
    "host twice": request(b"/echo", (b"host", b"localhost"), (b"host", b"localhost")),
    "method that is no token": request(b"/echo", method=b"PO ST"),
    "empty method": request(b"/echo", method=b""),
    "odd scheme": block(REQUEST[0], (b":scheme", b"javascript"), *REQUEST[2:]),
    "empty scheme": block(REQUEST[0], (b":scheme", b""), *REQUEST[2:]),
    "length that is no number": request(b"/echo", (b"content-length", b"-1")),
    "length with nothing": request(b"/echo", (b"content-length", b"1")),
    "CONNECT": block((b":method", b"CONNECT"), (b":authority", b"localhost")),
    "CONNECT with a path": request(b"/echo", method=b"CONNECT"),
}


@pytest.mark.parametrize("fields", _MALFORMED.values(), ids=_MALFORMED.keys())
def test_malformed_request_is_reset_and_others_are_not(fields: bytes) -> None:
    @over_a_connection
    async def run(server: Served, client: RawClient) -> None:
        client.send(head(1, fields, ended=True), call(3, b"/echo", b"sane"))
        assert (await client.answer(1)).reset == frames.PROTOCOL_ERROR
        assert (await client.answer(3)).body == b"sane"
        client.send(head(5, fields), data(5, b"", ended=True), call(7, b"/echo", b"sane"))
        assert (await client.answer(5)).reset == frames.PROTOCOL_ERROR
        assert (await client.answer(7)).body == b"sane"
        assert len(server.app.served) == 2

    run()


@over_a_connection
async def test_values_that_are_unusual_and_allowed(server: Served, client: RawClient) -> None:
    fields = ((b"a", b""), (b"b", b"x y\tz"), (b"c", b""))
    client.send(head(1, request(b"/echo", *fields, method=b"M-SEARCH"), ended=True))
    await client.answer(1)
    assert server.app.served[-1].headers == {**dict(fields), b"host": b"localhost"}
    client.send(head(3, block(*REQUEST[:3], (b"host", b"elsewhere")), ended=True))
    await client.answer(3)
    assert server.app.served[-1].headers == {b"host": b"elsewhere"}


_WRONG_BODIES = {
    "longer than said": head(1, request(b"/echo", (b"content-length", b"1"))) + data(1, b"12", ended=True),
    "shorter than said": head(1, request(b"/echo", (b"content-length", b"3"))) + data(1, b"12", ended=True),
    "longer, in pieces": head(1, request(b"/echo", (b"content-length", b"3"))) + data(1, b"12") + data(1, b"34"),
    "shorter, with trailers": head(1, request(b"/echo", (b"content-length", b"3")))
    + data(1, b"12")
    + head(1, block((b"a", b"b")), ended=True),
    "pseudo header in trailers": head(1, request(b"/echo")) + head(1, block((b":path", b"/")), ended=True),
    "line feed in trailers": head(1, request(b"/echo")) + head(1, block((b"a", b"b\nc")), ended=True),
    "zero byte in trailers": head(1, request(b"/echo")) + head(1, block((b"a", b"\0")), ended=True),
    "space at the end of trailers": head(1, request(b"/echo")) + head(1, block((b"a", b"b ")), ended=True),
    # One of 4 KB is kept in the table, then named four times by its index.
    "trailers that count too many bytes": head(1, request(b"/echo"))
    + head(1, b"\x40\x01x\x7f\xa1\x1e" + b"y" * 4_000 + b"\xbe" * 4, ended=True),
    "trailers that do not end": head(1, request(b"/echo")) + head(1, block((b"a", b"b"))),
    "trailers that do not end, and an empty end": head(1, request(b"/echo"))
    + head(1, block((b"a", b"b")))
    + data(1, b"", ended=True),
    "head twice": head(1, request(b"/echo")) + head(1, request(b"/echo")),
}


@pytest.mark.parametrize("sent", _WRONG_BODIES.values(), ids=_WRONG_BODIES.keys())
def test_wrong_body_is_reset(sent: bytes) -> None:
    @over_a_connection
    async def run(server: Served, client: RawClient) -> None:
        client.send(sent, call(3, b"/echo"))
        assert (await client.answer(1)).reset == frames.PROTOCOL_ERROR
        assert (await client.answer(3)).status == 200
        assert [exchange.target for exchange in server.app.served] == [b"/echo"]

    run()


_CONNECTION_FAULTS = {
    "no preface": (b"GET / HTTP/1.1\r\n\r\n", frames.PROTOCOL_ERROR),
    "preface that changes its mind": (frames.PREFACE[:-1] + b"!", frames.PROTOCOL_ERROR),
    "no settings": (frames.PREFACE + frame(frames.PING, 0, 0, b"12345678"), frames.PROTOCOL_ERROR),
    "settings that answer none": (frames.PREFACE + frame(frames.SETTINGS, 1, 0), frames.PROTOCOL_ERROR),
    "long frame": (OPENING + frame(0xFA, 0, 0, b"x" * 16_385), frames.FRAME_SIZE_ERROR),
    "head of a long frame": (OPENING + frame(0, 0, 1, b"x" * 16_385)[:9], frames.FRAME_SIZE_ERROR),
    "DATA on no stream": (OPENING + data(0, b"x"), frames.PROTOCOL_ERROR),
    "DATA on an idle stream": (OPENING + data(1, b"x"), frames.PROTOCOL_ERROR),
    "HEADERS on no stream": (OPENING + head(0, request(b"/echo")), frames.PROTOCOL_ERROR),
    "HEADERS on a server's stream": (OPENING + head(2, request(b"/echo")), frames.PROTOCOL_ERROR),
    "streams backwards": (OPENING + call(5, b"/echo") + call(3, b"/echo"), frames.PROTOCOL_ERROR),
    "stream again": (OPENING + call(5, b"/echo") + call(5, b"/echo"), frames.STREAM_CLOSED),
    "padding": (OPENING + head(1, request(b"/echo")) + frame(0, PADDED, 1, b"\1"), frames.PROTOCOL_ERROR),
    "padding without length": (OPENING + head(1, request(b"/echo")) + frame(0, PADDED, 1), frames.FRAME_SIZE_ERROR),
    "priority cut short": (OPENING + frame(1, END_HEADERS | PRIORITY_FLAG, 1, b"\0\0"), frames.FRAME_SIZE_ERROR),
    "no HPACK": (OPENING + head(1, b"\x80"), frames.COMPRESSION_ERROR),
    "HPACK cut short": (OPENING + head(1, request(b"/echo")[:-1]), frames.COMPRESSION_ERROR),
    "block of another stream": (
        OPENING + frame(1, 0, 1, b"\x82") + frame(9, END_HEADERS, 3, b"\x84"),
        frames.PROTOCOL_ERROR,
    ),
    "frame inside of a block": (OPENING + frame(1, 0, 1, b"\x82") + frame(6, 0, 0, b"12345678"), frames.PROTOCOL_ERROR),
    "CONTINUATION of nothing": (OPENING + frame(9, END_HEADERS, 1, b""), frames.PROTOCOL_ERROR),
    "PUSH_PROMISE": (OPENING + frame(5, END_HEADERS, 1, b"\0\0\0\2"), frames.PROTOCOL_ERROR),
    "SETTINGS on a stream": (OPENING + frame(4, 0, 1), frames.PROTOCOL_ERROR),
    "SETTINGS cut short": (OPENING + frame(4, 0, 0, b"\0\1"), frames.FRAME_SIZE_ERROR),
    "SETTINGS answered with more": (OPENING + frame(4, 1, 0, b"\0\1\0\0\0\0"), frames.FRAME_SIZE_ERROR),
    "ENABLE_PUSH": (OPENING + frames.settings((2, 2)), frames.PROTOCOL_ERROR),
    "INITIAL_WINDOW_SIZE": (OPENING + frames.settings((4, 2**31)), frames.FLOW_CONTROL_ERROR),
    "MAX_FRAME_SIZE": (OPENING + frames.settings((5, 16_383)), frames.PROTOCOL_ERROR),
    "PING on a stream": (OPENING + frame(6, 0, 1, b"12345678"), frames.PROTOCOL_ERROR),
    "PING cut short": (OPENING + frame(6, 0, 0, b"1234567"), frames.FRAME_SIZE_ERROR),
    "RST_STREAM on an idle stream": (OPENING + frames.rst_stream(1, 8), frames.PROTOCOL_ERROR),
    "RST_STREAM cut short": (OPENING + call(1, b"/never") + frame(3, 0, 1, b"\0"), frames.FRAME_SIZE_ERROR),
    "GOAWAY on a stream": (OPENING + frame(7, 0, 1, bytes(8)), frames.PROTOCOL_ERROR),
    "GOAWAY cut short": (OPENING + frame(7, 0, 0, bytes(7)), frames.FRAME_SIZE_ERROR),
    "PRIORITY cut short": (OPENING + frame(2, 0, 1, bytes(4)), frames.FRAME_SIZE_ERROR),
    "WINDOW_UPDATE of 0": (OPENING + frames.window_update(0, 0), frames.PROTOCOL_ERROR),
    "WINDOW_UPDATE too large": (OPENING + frames.window_update(0, 2**31 - 1), frames.FLOW_CONTROL_ERROR),
    "WINDOW_UPDATE on an idle stream": (OPENING + frames.window_update(1, 1), frames.PROTOCOL_ERROR),
    "WINDOW_UPDATE cut short": (OPENING + frame(8, 0, 0, b"\0"), frames.FRAME_SIZE_ERROR),
}


@pytest.mark.parametrize(("sent", "code"), _CONNECTION_FAULTS.values(), ids=_CONNECTION_FAULTS.keys())
def test_fault_of_a_connection_ends_it_with_a_word(sent: bytes, code: int) -> None:
    async def run() -> None:
        async with served() as server:
            client = await server.connect(sent)
            found, text = await client.fault()
            assert found == code
            assert text
            await client.close()
            await eventually(lambda: not server.connections)

    asyncio.run(run())


@over_a_connection
async def test_stream_faults_of_windows(server: Served, client: RawClient) -> None:
    client.send(call(1, b"/never"), frames.window_update(1, 0), call(3, b"/never"), frames.window_update(3, 2**31 - 1))
    assert (await client.answer(1)).reset == frames.PROTOCOL_ERROR
    assert (await client.answer(3)).reset == frames.FLOW_CONTROL_ERROR


@over_a_connection
async def test_data_after_the_end(server: Served, client: RawClient) -> None:
    client.send(call(1, b"/never"), data(1, b"more"))
    assert (await client.answer(1)).reset == frames.STREAM_CLOSED
    client.send(call(3, b"/echo"), data(3, b"more"), call(5, b"/echo"))
    await client.answer(5)
    assert client.answers[3].reset == frames.STREAM_CLOSED


@over_a_connection
async def test_long_body_is_served_once_and_the_rest_thrown_away(server: Served, client: RawClient) -> None:
    client.send(head(1, request(b"/echo")), *[data(1, b"x" * 10_000) for _ in range(10)], data(1, b"y"))
    answer = await client.answer(1)
    assert (answer.status, answer.body) == (413, b"too large")
    reset = await client.until(frames.RST_STREAM)
    assert (reset.stream, reset.payload) == (1, bytes(4))
    client.send(data(1, b"z"), data(1, b"z", ended=True), call(3, b"/echo"))
    assert (await client.answer(3)).status == 200
    assert len(server.app.served) == 2
    assert client.answers[1].reset == frames.NO_ERROR


def test_body_longer_than_one_may_be_in_one_frame() -> None:
    async def run() -> None:
        async with served(body_bytes_max=10) as server:
            client = await server.connect()
            client.send(call(1, b"/echo", b"x" * 11), call(3, b"/echo", b"x" * 10))
            assert (await client.answer(1)).status == 413
            assert (await client.answer(3)).status == 200

    asyncio.run(run())


@over_a_connection
async def test_large_head_is_answered_and_costs_nobody_else(server: Served, client: RawClient) -> None:
    # The field is in the table from the second request on: the third block is short, but means 17 KB.
    entry = bytes((0x40,)) + block((b"a", b"b" * 3_000))[1:]
    client.send(
        head(1, request(b"/echo", (b"a", b"b" * 16_200)), ended=True),
        head(3, request(b"/echo") + entry, ended=True),
        head(5, request(b"/echo") + b"\xbe" * 6, ended=True),
        head(7, request(b"/echo") + b"\xbe"),
        data(7, b"sane", ended=True),
    )
    assert [(await client.answer(stream)).status for stream in (1, 3, 5, 7)] == [431, 200, 431, 200]
    assert client.answers[7].body == b"sane"


@over_a_connection
async def test_refused_streams_leave_the_tables_right(server: Served, client: RawClient) -> None:
    for stream in range(1, 2_001, 2):
        client.send(head(stream, request(b"/never"), ended=True))
    entry = bytes((0x40,)) + block((b"a", b"b"))[1:]
    client.send(head(2_001, request(b"/echo") + entry, ended=True))
    assert (await client.answer(2_001)).reset == frames.REFUSED_STREAM
    client.send(frames.rst_stream(1, frames.CANCEL), head(2_003, request(b"/echo") + b"\xbe", ended=True))
    assert (await client.answer(2_003)).status == 200
    assert server.app.served[-1].headers[b"a"] == b"b"


@over_a_connection
async def test_cancel_is_told_at_once_and_once(server: Served, client: RawClient) -> None:
    client.send(call(1, b"/never"))
    await client.settled()
    client.send(frames.rst_stream(1, frames.CANCEL), frames.rst_stream(1, frames.CANCEL))
    await client.settled()
    assert server.app.gone == [b"/never"]
    exchange = server.app.served[0]
    exchange.respond(HEAD, b"late", TRAILER)
    exchange.abort()
    client.send(call(3, b"/echo", b"next"))
    assert (await client.answer(3)).body == b"next"
    assert 1 not in client.answers


@over_a_connection
async def test_connection_that_goes_away_is_told(server: Served, client: RawClient) -> None:
    client.send(call(1, b"/never"), call(3, b"/later"), call(5, b"/echo"), head(7, request(b"/pieces")))
    await client.answer(5)
    await client.close()
    await eventually(lambda: not server.connections)
    assert sorted(server.app.gone) == [b"/later", b"/never", b"/pieces"]


@over_a_connection
async def test_answer_that_is_broken_off(server: Served, client: RawClient) -> None:
    client.send(call(1, b"/abort"))
    answer = await client.answer(1)
    assert (answer.status, answer.reset) == (200, frames.INTERNAL_ERROR)
    assert server.app.gone == []


@over_a_connection
async def test_answer_before_the_request_ended(server: Served, client: RawClient) -> None:
    client.send(head(1, request(b"/early")))
    assert (await client.answer(1)).body == b"early"
    await client.until(frames.RST_STREAM)
    assert client.answers[1].reset == frames.NO_ERROR


@over_a_connection
async def test_stream_both_ways(server: Served, client: RawClient) -> None:
    client.send(head(1, request(b"/pieces")))
    for piece in (b"one", b"two"):
        client.send(data(1, piece))
        assert (await client.until(frames.DATA)).payload == piece
    client.send(data(1, b"three", ended=True))
    answer = await client.answer(1)
    assert (answer.body, answer.reset) == (b"onetwothree", None)
    client.send(call(3, b"/pieces", b"at once"))
    assert (await client.answer(3)).body == b"at once"
    assert server.app.served[0].body == b""


def _sent() -> bytes:
    return b"".join(
        [
            OPENING,
            call(1, b"/echo", b"one"),
            head(3, request(b"/echo", (b"content-length", b"5"))),
            data(3, b"tw"),
            frame(frames.PING, 0, 0, b"12345678"),
            data(3, b"o..", ended=True),
            frame(frames.HEADERS, END_STREAM, 5, request(b"/7")[:5]),
            frame(frames.CONTINUATION, END_HEADERS, 5, request(b"/7")[5:]),
            head(7, b"\x82", ended=True),
            head(9, request(b"/pieces")),
            data(9, b"piece", ended=True),
            call(11, b"/20000"),
        ]
    )


async def _answers(cuts: list[int]) -> dict[int, Answer]:
    sent = _sent()
    async with served() as server:
        client = await server.connect(b"")
        for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
            client.send(sent[start:end])
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        for stream in range(1, 12, 2):
            await client.answer(stream)
        for answer in client.answers.values():
            answer.data_frames = 0
        return client.answers


@given(st.lists(st.integers(1, len(_sent()) - 1), max_size=12).map(sorted))
def test_bytes_cut_anywhere_mean_the_same(cuts: list[int]) -> None:
    assert asyncio.run(_answers(cuts)) == asyncio.run(_answers([]))


def test_bytes_one_by_one_mean_the_same() -> None:
    assert asyncio.run(_answers(list(range(1, len(_sent()))))) == asyncio.run(_answers([]))
