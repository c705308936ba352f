"""What only a planted bug showed to be without a test: each of these fails where its line in the server is wrong."""

import asyncio
import gzip
import random
import ssl
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tablegate.gateway.http.exchange import MESSAGE_BYTES_MAX, Exchange
from tablegate.gateway.http.h1_connection import Http1Limits
from tablegate.gateway.http.h2 import frames
from tablegate.gateway.http.h2.control import RESET_STREAMS_MAX
from tablegate.gateway.http.h2.headers import TABLE_BYTES, HpackDecoder
from tablegate.gateway.http.h2.huffman import HpackError
from tablegate.gateway.http.h2_connection import UNSENT_BYTES_MAX
from tablegate.gateway.http.json_codec import JSON_BYTES_MAX, VALUES_MAX
from tablegate.gateway.http.listener import Limits
from tablegate.gateway.http.rpc import grpc
from tablegate.gateway.http.rpc.calls import CallLimits, checked_encoding, unzipped
from tablegate.gateway.http.rpc.grpc import envelope, error_fields
from tablegate.gateway.http.server import HttpServer
from tablegate.gateway.http.tls import TlsFiles, WatchedTls
from tablegate.gateway.query.call import Call, Methods, StreamMethod, UnaryMethod
from tablegate.gateway.query.errors import InvalidField, NotServed, RequestTooLarge
from tests.kit.gateways_in_process.web import SERVICE, codec
from tests.kit.http.certificates import Authority
from tests.kit.http.h2 import (
    HEAD,
    OPENING,
    PIECE,
    TRAILER,
    RawClient,
    Served,
    block,
    call,
    data,
    eventually,
    head,
    initial_window,
    over_a_connection,
    request,
)
from tests.kit.http.http1 import OK, http1_server
from tests.kit.http.listening import served as listening

WIDE_CONNECTION = frames.window_update(0, 2**31 - 1 - frames.WINDOW_BYTES)
HELD = range(1, 2 * (UNSENT_BYTES_MAX // 99_000 + 2) + 1, 2)
"""Streams whose answers of 99,000 bytes are more than may be held."""


# HTTP/2.


async def _sent(exchange: Exchange, data: bytes) -> None:
    await exchange.send(data)


async def _after_a_cancelled_sender(server: Served) -> Exchange:
    """Return the only exchange, of whose answer 30 bytes wait for a window, and their sender no more."""
    [exchange] = server.app.served
    exchange.begin(HEAD)
    sender = asyncio.create_task(_sent(exchange, b"a" * 30))
    await asyncio.sleep(0)
    sender.cancel()
    await asyncio.gather(sender, return_exceptions=True)
    return exchange


@over_a_connection
async def test_stream_keeps_to_its_own_window(server: Served, client: RawClient) -> None:
    client.send(WIDE_CONNECTION, initial_window(10 * len(PIECE)), call(1, b"/stream/100"))
    await client.settled()
    await client.settled()
    assert len(client.answers[1].body) == 10 * len(PIECE)


@over_a_connection
async def test_postponed_requests_are_served_when_held_answers_are_cancelled(server: Served, client: RawClient) -> None:
    """Without a byte that the transport takes: nothing else would wake them."""
    after = range(HELD.stop, HELD.stop + 20, 2)
    client.send(initial_window(0), *[call(stream, b"/99000") for stream in HELD])
    client.send(*[call(stream, b"/0", b"body") for stream in after])
    await client.settled()
    assert len(server.app.served) < len(HELD)
    assert server.connection.h2.windows.kept > 0
    client.send(*[frames.rst_stream(stream, frames.CANCEL) for stream in HELD])
    for stream in after:
        assert (await client.answer(stream)).status == 200
    assert server.connection.h2.windows.kept == server.connection.send_queue.unsent_bytes == 0


@over_a_connection
async def test_connection_ends_after_its_last_postponed_request(server: Served, client: RawClient) -> None:
    client.send(initial_window(0), *[call(stream, b"/99000") for stream in HELD], call(HELD.stop, b"/0"))
    await client.settled()
    client.send(frames.goaway(0, frames.NO_ERROR), *[frames.rst_stream(stream, frames.CANCEL) for stream in HELD])
    await client.all_frames()
    assert client.answers[HELD.stop].status == 200


def test_postponed_requests_have_turns_bounded_by_time() -> None:
    """A turn whose time is over at once serves one of them."""

    async def run(server: Served, client: RawClient) -> None:
        connection = server.connection
        client.send(initial_window(0), *[call(stream, b"/99000") for stream in HELD])
        client.send(*[call(stream, b"/0") for stream in range(HELD.stop, HELD.stop + 40, 2)])
        await client.settled()
        await eventually(lambda: not connection._turn_scheduled)
        for exchange in list(connection.h2.streams.values()):
            if exchange.pending is not None:
                exchange.abort()
        served = len(server.app.served)
        assert connection._serve_postponed()
        assert len(server.app.served) == served + 1

    over_a_connection(run, turn_s=-1.0)()


def test_one_client_has_no_more_than_its_time() -> None:
    async def run(server: Served, client: RawClient) -> None:
        other = await server.connect()
        await other.settled()
        client.send(*[call(stream, b"/0") for stream in range(1, 181, 2)])
        other.send(call(1, b"/echo", b"beside"))
        await other.answer(1)
        await client.answer(179)
        assert [exchange.target for exchange in server.app.served].index(b"/echo") < 90

    over_a_connection(run, turn_s=-1.0)()


@over_a_connection
async def test_what_a_cancelled_sender_left_comes_before_the_rest(server: Served, client: RawClient) -> None:
    client.send(initial_window(10), call(1, b"/never"))
    await client.settled()
    exchange = await _after_a_cancelled_sender(server)
    rest = asyncio.create_task(_sent(exchange, b"b" * 30))
    await asyncio.sleep(0)
    client.send(frames.window_update(1, 100))
    await rest
    exchange.end(TRAILER)
    assert (await client.answer(1)).body == b"a" * 30 + b"b" * 30


@over_a_connection
async def test_memory_of_reset_streams_is_bounded(server: Served, client: RawClient) -> None:
    for stream in range(1, 2 * (RESET_STREAMS_MAX + 100), 2):
        client.send(head(stream, request(b"/early")))
        await client.answer(stream)
    await client.settled()
    assert len(server.connection.h2._reset) == RESET_STREAMS_MAX


def test_answer_to_a_client_that_is_gone_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    @over_a_connection
    async def run(server: Served, client: RawClient) -> None:
        client.send(WIDE_CONNECTION, initial_window(2**31 - 1), call(1, b"/never"))
        await client.settled()
        server.connection._transport.abort()
        server.app.served[0].respond(HEAD, b"x" * 1_000_000)

    run()
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_full_table_of_hpack_evicts_at_its_last_byte() -> None:
    decoder = HpackDecoder()
    first = TABLE_BYTES - 32 - 1 - 33  # the second entry fits beside it
    decoder.decode(_indexed(b"a", b"x" * (first - 1)) + _indexed(b"b", b""))
    assert decoder.decode(b"\xbf")[0][0] == b"a"
    decoder = HpackDecoder()
    decoder.decode(_indexed(b"a", b"x" * first) + _indexed(b"b", b""))
    assert decoder.decode(b"\xbf")[0][0] == b"a"
    decoder = HpackDecoder()
    decoder.decode(_indexed(b"a", b"x" * (first + 1)) + _indexed(b"b", b""))
    with pytest.raises(HpackError):
        decoder.decode(b"\xbf")


def _indexed(name: bytes, value: bytes) -> bytes:
    return b"\x40" + block((name, value))[1:]


# HTTP/1.1.


def test_pipelined_requests_have_turns_bounded_by_time() -> None:
    async def run() -> None:
        async with http1_server(Http1Limits(turn_s=-1.0)) as server:
            client, other = await server.connect(), await server.connect()
            await client.send(b"GET /one HTTP/1.1\r\nhost: a\r\n\r\n" * 50)
            await other.send(b"GET /other HTTP/1.1\r\nhost: a\r\n\r\n")
            await other.answer()
            for _ in range(50):
                assert (await client.answer())[0] == 200
            assert [target for _, target, _ in server.app.seen].index(b"/other") < 50

    asyncio.run(run())


def test_answers_over_http1_to_a_client_that_is_gone_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with http1_server() as server:
            client = await server.connect()
            await client.send(b"GET /later HTTP/1.1\r\nhost: a\r\n\r\n")
            await eventually(lambda: server.app.exchanges)
            server.open[0]._transport.abort()
            exchange = server.app.exchanges[0]
            exchange.begin(OK)
            for _ in range(20):
                await exchange.send(b"x")

    asyncio.run(run())
    assert not [record for record in caplog.records if record.name == "asyncio"]


# TLS.


def test_listener_looks_at_its_files(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue()

    async def run() -> None:
        async with listening(tls=TlsFiles(pair.certificate, pair.key)) as it:
            before = it.listener.context
            authority.issue()
            await eventually(lambda: it.listener.context is not before)

    asyncio.run(run())


def test_client_that_was_refused_and_stays_is_closed(tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue()

    async def run() -> None:
        async with listening(
            tls=TlsFiles(pair.certificate, pair.key), limits=Limits(refused_s=5.0, detection_s=1e9)
        ) as it:
            client = await it.connect()
            await client.send(b"GET / HTTP/1.1\r\n\r\n")
            assert (await client.head()).startswith(b"HTTP/1.1 400 ")
            for now in (1e6, 1e6 + 4.9):
                it.tick(now)
            await it.accepted(1)
            it.tick(1e6 + 5.0)
            await it.accepted(0)

    asyncio.run(run())


# Messages.


def test_gzip_that_is_cut_is_refused_and_a_bomb_is_not_unpacked() -> None:
    assert unzipped(gzip.compress(b"whole"), MESSAGE_BYTES_MAX) == b"whole"
    with pytest.raises(InvalidField, match="ends early"):
        unzipped(gzip.compress(b"whole" * 100)[:-9], MESSAGE_BYTES_MAX)
    bomb = gzip.compress(bytes(64 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(RequestTooLarge):
            unzipped(bomb, MESSAGE_BYTES_MAX)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * MESSAGE_BYTES_MAX


def test_gzip_may_pack_a_long_text_so_much_and_no_more() -> None:
    text = random.Random(7).randbytes(MESSAGE_BYTES_MAX).hex().encode()
    assert unzipped(gzip.compress(text), JSON_BYTES_MAX) == text
    assert unzipped(gzip.compress(b"[" * MESSAGE_BYTES_MAX), JSON_BYTES_MAX) == b"[" * MESSAGE_BYTES_MAX
    with pytest.raises(RequestTooLarge):
        unzipped(gzip.compress(b"[" * (MESSAGE_BYTES_MAX + 1)), JSON_BYTES_MAX)


class _Pieces:
    """What `messages` reads of an exchange."""

    http2 = True

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = [*pieces, b""]

    async def read(self) -> bytes:
        return self._pieces.pop(0)


def _messages(*pieces: bytes) -> list[bytes]:
    async def run() -> list[bytes]:
        received = grpc.messages(_Pieces(*pieces), None, MESSAGE_BYTES_MAX)  # type: ignore[arg-type]
        return [message async for message in received]

    return asyncio.run(run())


def test_messages_of_a_request_however_they_are_cut() -> None:
    sent = [b"", b"one", b"x" * 1_000, b"", b"last"]
    whole = b"".join(map(envelope, sent))
    assert _messages(whole) == sent
    assert _messages(*[whole[at : at + 1] for at in range(len(whole))]) == sent
    assert _messages(whole[:7], whole[7:]) == sent
    assert _messages() == []
    assert len(_messages(envelope(b"") * 200_000)) == 200_000
    with pytest.raises(InvalidField, match="ends inside"):
        _messages(whole, envelope(b"cut")[:-1])
    with pytest.raises(RequestTooLarge):
        _messages(b"\0" + (MESSAGE_BYTES_MAX + 1).to_bytes(4, "big"))


def test_message_of_an_error_is_percent_encoded() -> None:
    assert dict(error_fields(NotServed("50 % of ü\n")))[b"grpc-message"] == b"50 %25 of %C3%BC%0A"
    assert checked_encoding(b"identity") is None


def test_a_name_that_comes_twice_among_many() -> None:
    names = ",".join(f'"k{number}":1' for number in range(VALUES_MAX - 10))
    with pytest.raises(InvalidField, match="twice"):
        codec().from_json(codec().types(f"{SERVICE}/GetRating").request_class, f'{{{names},"k7":1}}'.encode())


# gRPC, byte by byte: libraries forgive what others do not.


def _over_grpc(
    test: Callable[[HttpServer, RawClient], Awaitable[None]], methods: Methods, limits: CallLimits | None = None
) -> None:
    async def run() -> None:
        server = HttpServer(methods, "127.0.0.1:0", call_limits=limits)
        await server.start()
        client = RawClient(*await asyncio.open_connection("127.0.0.1", server.port))
        client.send(OPENING)
        try:
            await test(server, client)
        finally:
            await client.close()
            await server.stop(0)

    asyncio.run(run())


def _grpc(stream: int, path: bytes, content_type: bytes = b"application/grpc") -> bytes:
    return head(stream, request(path, (b"content-type", content_type))) + data(stream, envelope(b""), ended=True)


async def _two_and_an_error(_data: bytes, _call: Call) -> AsyncIterator[bytes]:
    yield b"one"
    yield b"two"
    raise NotServed("no more")


def test_error_after_messages_is_a_trailer() -> None:
    async def test(_server: HttpServer, client: RawClient) -> None:
        client.send(_grpc(1, b"/a.B/Stream"))
        answer = await client.answer(1)
        assert answer.body == envelope(b"one") + envelope(b"two")
        assert b"grpc-status" not in answer.head
        assert answer.trailer[b"grpc-status"] == b"12"
        assert b":status" not in answer.trailer

    _over_grpc(test, {"/a.B/Stream": StreamMethod(_two_and_an_error)})


def test_content_type_of_grpc_may_have_parameters() -> None:
    async def test(_server: HttpServer, client: RawClient) -> None:
        for stream, content_type in ((1, b"application/grpc; charset=utf-8"), (3, b"application/grpc+proto ;a=b")):
            client.send(_grpc(stream, b"/a.B/Get", content_type))
            assert (await client.answer(stream)).trailer[b"grpc-status"] == b"0"

    _over_grpc(test, {"/a.B/Get": UnaryMethod(lambda _data, _call: b"", 2.0, 5.0)})


def test_streams_are_counted_and_none_begin_in_a_drain() -> None:
    go_on = asyncio.Event()

    async def wait(_data: bytes, _call: Call) -> AsyncIterator[bytes]:
        yield b"begun"
        await go_on.wait()

    async def status(client: RawClient, stream: int) -> bytes:
        answer = await client.answer(stream)
        return (answer.trailer or answer.head)[b"grpc-status"]

    async def test(server: HttpServer, client: RawClient) -> None:
        client.send(_grpc(1, b"/a.B/Wait"), _grpc(3, b"/a.B/Wait"), _grpc(5, b"/a.B/Wait"))
        assert await status(client, 5) == b"8"  # RESOURCE_EXHAUSTED
        go_on.set()
        assert {await status(client, stream) for stream in (1, 3)} == {b"0"}
        client.send(_grpc(7, b"/a.B/Wait"))
        assert await status(client, 7) == b"0"
        server.drain()
        client.send(_grpc(9, b"/a.B/Wait"))
        assert await status(client, 9) == b"14"  # UNAVAILABLE

    _over_grpc(test, {"/a.B/Wait": StreamMethod(wait)}, CallLimits(streams_max=2))


# More of the same.


@over_a_connection
async def test_bytes_that_come_in_a_turn_are_kept(server: Served, client: RawClient) -> None:
    """As TLS gives them, whose pieces are on their way when reading is paused."""
    await client.settled()
    connection = server.connection
    requests = b"".join(call(stream, b"/0") for stream in range(1, 401, 2))
    connection.data_received(requests)
    assert connection._turn_scheduled
    connection.data_received(call(401, b"/0"))
    assert (await client.answer(401)).status == 200


@over_a_connection
async def test_window_of_a_connection_counts_small_answers(server: Served, client: RawClient) -> None:
    client.send(initial_window(2**31 - 1), *[call(stream, b"/1000") for stream in range(1, 201, 2)])
    await client.settled()
    await client.settled()
    assert sum(len(answer.body) for answer in client.answers.values()) == frames.WINDOW_BYTES


@over_a_connection
async def test_client_that_said_goodbye_and_cancels_its_last_is_let_go(server: Served, client: RawClient) -> None:
    client.send(call(1, b"/never"), frames.goaway(0, frames.NO_ERROR))
    await client.settled()
    client.send(frames.rst_stream(1, frames.CANCEL))
    assert await client.frame() is None


@over_a_connection
async def test_end_of_a_stream_that_waits_counts_as_held(server: Served, client: RawClient) -> None:
    client.send(initial_window(10), call(1, b"/never"))
    await client.settled()
    exchange = await _after_a_cancelled_sender(server)  # 10 bytes are sent, and none of these can be taken back
    await client.settled()
    exchange.end(TRAILER)
    assert server.connection.send_queue.unsent_bytes == 20
    client.send(initial_window(100))
    answer = await client.answer(1)
    assert (answer.body, answer.trailer) == (b"a" * 30, {b"rest": b"none"})
    assert server.connection.send_queue.unsent_bytes == 0


@over_a_connection
async def test_body_that_nobody_read_is_forgotten_with_its_answer(server: Served, client: RawClient) -> None:
    client.send(head(1, request(b"/never")), head(3, request(b"/pieces")), data(3, b"x" * 10))
    await client.settled()
    client.send(head(5, request(b"/unread")), data(5, b"x" * 1_000))
    await client.settled()
    server.app.served[-1].respond(HEAD, b"unread")
    await client.answer(5)
    assert server.connection.h2.windows.kept == 0


def test_longest_body_is_not_oversize() -> None:
    @over_a_connection
    async def run(server: Served, client: RawClient) -> None:
        body = b"x" * server.app.body_bytes_max
        pieces = [body[at : at + 10_000] for at in range(0, len(body), 10_000)]
        client.send(head(1, request(b"/0")), *[data(1, piece) for piece in pieces], data(1, b"", ended=True))
        assert (await client.answer(1)).status == 200
        assert server.app.served[0].body == body
        client.send(head(3, request(b"/0")), *[data(3, piece) for piece in pieces], data(3, b"x", ended=True))
        assert (await client.answer(3)).status == 413

    run()


def test_waiting_calls_are_counted() -> None:
    may_end = asyncio.Event()

    async def wait(data: bytes, _call: Call) -> bytes:
        await asyncio.sleep(0)
        await may_end.wait()
        return data

    async def test(_server: HttpServer, client: RawClient) -> None:
        may_end.set()
        for stream in (1, 3, 5):
            client.send(_grpc(stream, b"/a.B/Wait"))
            assert (await client.answer(stream)).trailer[b"grpc-status"] == b"0"
        may_end.clear()  # a busy server may take the two requests in two turns
        client.send(_grpc(7, b"/a.B/Wait") + _grpc(9, b"/a.B/Wait"))
        assert (await client.answer(9)).head[b"grpc-status"] == b"8"  # RESOURCE_EXHAUSTED

    _over_grpc(test, {"/a.B/Wait": UnaryMethod(wait, 2.0, 5.0)}, CallLimits(calls_max=1))


def test_calls_of_grpc_come_by_post_and_errors_keep_their_trailer() -> None:
    def fail(_data: bytes, call: Call) -> bytes:
        call.set_trailer(((b"role", b"owner"),))
        raise NotServed("no")

    async def test(_server: HttpServer, client: RawClient) -> None:
        client.send(_grpc(1, b"/a.B/Fail"))
        assert (await client.answer(1)).head[b"role"] == b"owner"
        by_get = head(3, request(b"/a.B/Get", (b"content-type", b"application/grpc"), method=b"GET"))
        client.send(by_get, data(3, envelope(b""), ended=True))
        assert (await client.answer(3)).head[b"grpc-status"] == b"12"

    _over_grpc(
        test, {"/a.B/Fail": UnaryMethod(fail, 2.0, 5.0), "/a.B/Get": UnaryMethod(lambda data, _: data, 2.0, 5.0)}
    )


def test_flags_of_a_message_are_checked() -> None:
    for flags, encoding in ((1, None), (2, b"gzip"), (0x80, None)):
        with pytest.raises(InvalidField):
            grpc.only_message(bytes((flags,)) + envelope(gzip.compress(b"x"))[1:], encoding, MESSAGE_BYTES_MAX)


def test_files_of_tls_are_strict(tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue()
    context = TlsFiles(pair.certificate, pair.key).load()
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    names = [cipher["name"] for cipher in context.get_ciphers() if cipher["protocol"] == "TLSv1.2"]
    assert names
    assert all(name.startswith("ECDHE-") and ("GCM" in name or "CHACHA20" in name) for name in names)


def test_changed_client_ca_is_loaded(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    pair = authority.issue()
    watched = WatchedTls(TlsFiles(pair.certificate, pair.key, authority.certificate))
    before = watched.context
    authority.certificate.write_bytes(other.certificate.read_bytes())
    watched.reload_if_changed()
    assert watched.context is not before
    assert watched.context.verify_mode is ssl.CERT_REQUIRED
