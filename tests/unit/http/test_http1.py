"""HTTP/1.1 connections over real sockets."""

import asyncio
import socket

import pytest

from tablegate.gateway.http.h1_connection import AHEAD_BYTES_MAX, WRITE_BUFFER_BYTES
from tests.kit.http.http1 import BIG, BODY_BYTES_MAX, OK, Client, Http1Server, http1_server, until

GET = b"GET /echo HTTP/1.1\r\nhost: a\r\n\r\n"
GET_LAST = b"GET /echo HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
POST = b"POST /echo HTTP/1.1\r\nhost: a\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"
HOST = b"GET / HTTP/1.1\r\nhost: a\r\n"
UPGRADE_LAST = b"host: a\r\nconnection: upgrade, close\r\nupgrade: h2c\r\n"
LATER = b"GET /later HTTP/1.1\r\nhost: a\r\n\r\n"


def post(target: bytes, body: bytes, *fields: bytes) -> bytes:
    lines = b"".join(b"%b\r\n" % field for field in fields)
    return b"POST %b HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n%b\r\n%b" % (target, len(body), lines, body)


def chunked(target: bytes, *chunks: bytes, trailer: bytes = b"") -> bytes:
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return b"POST %b HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n%b0\r\n%b\r\n" % (target, body, trailer)


def test_connection_is_kept() -> None:
    async def run() -> None:
        async with http1_server() as server:
            client = await server.connect()
            for body in (b"one", b"", b"two"):
                await client.send(post(b"/echo?a=b", body))
                assert await client.answer() == (200, body)
            assert server.app.seen == [(b"POST", b"/echo?a=b", body) for body in (b"one", b"", b"two")]
            assert len(server.open) == 1
            assert server.open[0].idle

    asyncio.run(run())


def test_headers_are_lower_case_and_joined() -> None:
    async def run() -> None:
        async with http1_server() as server:
            client = await server.connect()
            await client.send(b"GET /echo HTTP/1.1\r\nHost: a:1\r\nX-A:  1 \t\r\nx-a: 2\r\nEmpty:\r\n\r\n")
            assert await client.answer() == (200, b"")
            exchange = server.app.exchanges[0]
            assert exchange.headers == {b"host": b"a:1", b"x-a": b"1, 2", b"empty": b""}
            assert not exchange.http2

    asyncio.run(run())


@pytest.mark.parametrize(
    ("target", "host", "path"),
    [
        (b"http://b.example:8/c?d=http://e", b"b.example:8", b"/c?d=http://e"),
        (b"http://b?c", b"b", b"/?c"),
        (b"http://b", b"b", b"/"),
        (b"HTTPS://b/c", b"b", b"/c"),
        (b"/c?d=http://e", b"a", b"/c?d=http://e"),
    ],
)
def test_whole_urls_are_taken_apart(target: bytes, host: bytes, path: bytes) -> None:
    async def run() -> None:
        async with http1_server() as server:
            client = await server.connect()
            await client.send(b"GET %b HTTP/1.1\r\nhost: a\r\n\r\n" % target)
            await client.answer()
            assert server.app.exchanges[0].target == path
            assert server.app.exchanges[0].headers[b"host"] == host

    asyncio.run(run())


@pytest.mark.parametrize(
    "target", [b"tp://h/p", b"hp://h/p", b"ftp://h/p", b"javascript://h/p", b"http:///p", b"http://"]
)
def test_urls_of_other_schemes_or_without_host_are_refused(target: bytes) -> None:
    async def run() -> None:
        async with http1_server() as server:
            client = await server.connect()
            await client.send(b"GET %b HTTP/1.1\r\nhost: a\r\n\r\n" % target)
            assert (await client.answer())[0] == 400
            assert not server.app.exchanges

    asyncio.run(run())


def test_pipelined_requests_are_served_one_after_another() -> None:
    async def run() -> None:
        async with http1_server() as server:
            client = await server.connect()
            await client.send(GET + LATER + post(b"/echo", b"after") + chunked(b"/echo", b"last"))
            assert await client.answer() == (200, b"")
            await until(lambda: len(server.app.seen) == 2)
            await client.send(GET)
            server.app.answer.set()
            assert [await client.answer() for _ in range(4)] == [
                (200, b"later"),
                (200, b"after"),
                (200, b"last"),
                (200, b""),
            ]

    asyncio.run(run())


def test_many_pipelined_requests_are_all_answered() -> None:
    async def run() -> None:
        async with http1_server() as server:
            client = await server.connect()
            client.writer.write(GET * 20_000 + GET_LAST)
            assert (await client.rest()).count(b"HTTP/1.1 200 OK") == 20_001

    asyncio.run(run())


def test_what_is_sent_ahead_is_bounded() -> None:
    async def run() -> None:
        async with http1_server() as server:
            client = await server.connect()
            client.writer.write(LATER + GET * 500_000)
            connection = server.open[0]
            await until(lambda: not connection._transport.is_reading())
            assert len(connection._rest) < AHEAD_BYTES_MAX + 256 * 1024  # asyncio reads that much at once
            assert len(server.app.seen) == 1
            client.writer.transport.abort()
            server.app.answer.set()

    asyncio.run(run())


def test_head_is_answered_without_body() -> None:
    async def run() -> None:
        async with http1_server() as server:
            client = await server.connect()
            await client.send(b"HEAD /big HTTP/1.1\r\nhost: a\r\n\r\n")
            assert b"content-length: %d\r\n" % len(BIG) in await client.head()
            await client.send(b"HEAD /stream HTTP/1.1\r\nhost: a\r\n\r\n")
            assert b"200 OK" in await client.head()
            await client.send(b"GET /nothing HTTP/1.1\r\nhost: a\r\n\r\n")
            assert await client.head() == b"HTTP/1.1 204 No Content\r\n\r\n"
            await client.send(GET_LAST)
            assert await client.answer() == (200, b"")

    asyncio.run(run())


def test_streams_are_chunked() -> None:
    async def run() -> None:
        async with http1_server() as server:
            client = await server.connect()
            await client.send(b"GET /stream HTTP/1.1\r\nhost: a\r\n\r\n" + GET_LAST)
            answer = (
                b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n"
                b"5\r\nfirst\r\n6\r\nsecond\r\n0\r\n\r\n"
            )
            assert (await client.rest()).startswith(answer + b"HTTP/1.1 200 OK")

    asyncio.run(run())


def test_http10_is_answered_up_to_the_end() -> None:
    async def run() -> None:
        async with http1_server() as server:
            client = await server.connect()
            await client.send(b"GET /stream HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
            assert await client.rest() == (
                b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\nfirstsecond"
            )

    asyncio.run(run())


def test_chunked_requests() -> None:
    async def run() -> None:
        async with http1_server() as server:
            client = await server.connect()
            await client.send(chunked(b"/echo", b"a", b"b" * 50_000, b"c", trailer=b"X: y\r\nHost: z\r\n"))
            assert await client.answer() == (200, b"a" + b"b" * 50_000 + b"c")
            assert server.app.exchanges[0].headers[b"host"] == b"a"
            await client.send(chunked(b"/echo"))
            assert await client.answer() == (200, b"")

    asyncio.run(run())


def test_continue_is_sent_to_those_who_wait() -> None:
    async def run() -> None:
        async with http1_server() as server:
            client = await server.connect()
            await client.send(LATER + POST + b"expect: 100-continue\r\ncontent-length: 4\r\n\r\n")
            await until(lambda: len(server.app.seen) == 1)
            server.app.answer.set()
            assert await client.answer() == (200, b"later")
            assert await client.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
            await client.send(b"body")
            assert await client.answer() == (200, b"body")
            await client.send(post(b"/pieces", b"body", b"expect: 100-continue"))  # and to nobody else
            assert await client.answer() == (200, b"4")
            await client.send(b"POST /pieces HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 4\r\n\r\n")
            assert await client.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
            await client.send(b"body")
            assert await client.answer() == (200, b"4")

    asyncio.run(run())


@pytest.mark.parametrize("expect", [b"", b"expect: 100-continue\r\n"])
def test_long_body_is_refused_by_its_head(expect: bytes) -> None:
    async def run() -> None:
        async with http1_server() as server:
            client = await server.connect()
            await client.send(POST + b"%bcontent-length: 100001\r\n\r\n" % expect)
            assert await client.answer() == (413, b"too large")
            assert await client.rest() == b""
            assert server.app.exchanges[0].oversize

    asyncio.run(run())


def test_long_body_is_refused_while_it_comes() -> None:
    async def run() -> None:
        async with http1_server() as server:
            client = await server.connect()
            # All of it is sent before the answer is read: had the server closed at once, it would be lost.
            await client.send(chunked(b"/echo", *[b"x" * 10_000] * 1_000) + GET)
            head = await client.head()
            assert head.startswith(b"HTTP/1.1 413")
            assert b"connection: close\r\n" in head
            assert await client.rest() == b"too large"
            assert [body[:1] for _, _, body in server.app.seen] == [b"x"]

    asyncio.run(run())


def test_longest_body_is_served() -> None:
    async def run() -> None:
        async with http1_server() as server:
            client = await server.connect()
            body = b"x" * BODY_BYTES_MAX
            await client.send(post(b"/echo", body) + chunked(b"/echo", *[b"x" * 1_000] * (BODY_BYTES_MAX // 1_000)))
            assert await client.answer() == (200, body)
            assert await client.answer() == (200, body)

    asyncio.run(run())


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"x" * 16_400,
        HOST + b"x: " + b"x" * 16_400,
        HOST + b"a: b\r\n" * 4_000,
        HOST + b"" + b"x" * 20_500,
    ],
    ids=["target", "field", "fields", "name"],
)
@pytest.mark.parametrize("end", [b"", b" HTTP/1.1\r\n\r\n"])
def test_long_heads_are_refused(head: bytes, end: bytes) -> None:
    async def run() -> None:
        async with http1_server() as server:
            client = await server.connect()
            await client.send(GET + head + b"x" * 10_000 + end)
            assert await client.answer() == (200, b"")
            assert (await client.answer())[0] == 431
            assert await client.rest() == b""
            assert len(server.app.seen) == 1

    asyncio.run(run())


@pytest.mark.parametrize(
    "endless",
    [b"3;" + b"x" * 30_000, b"0\r\n" + b"a: b\r\n" * 6_000, b"0\r\na: " + b"x" * 30_000],
    ids=["extension", "trailer", "field of the trailer"],
)
def test_chunk_extensions_and_trailers_are_bounded(endless: bytes) -> None:
    async def run() -> None:
        async with http1_server() as server:
            client = await server.connect()
            await client.send(CHUNKED + endless)
            assert (await client.answer())[0] == 400
            assert not server.app.seen

    asyncio.run(run())


@pytest.mark.parametrize(
    ("status", "request_"),
    [
        (400, POST + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
        (400, POST + b"transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n"),
        (400, POST + b"content-length: 3\r\ncontent-length: 4\r\n\r\nabcd"),
        (400, POST + b"content-length: 3\r\ncontent-length: 3\r\n\r\nabc"),
        (400, POST + b"content-length: 3, 3\r\n\r\nabc"),
        (400, POST + b"content-length: +3\r\n\r\nabc"),
        (400, POST + b"content-length: -3\r\n\r\nabc"),
        (400, POST + b"content-length: 0x3\r\n\r\nabc"),
        (400, POST + b"content-length: 99999999999999999999\r\n\r\nabc"),
        (400, POST + b"content-length:\r\n\r\nabc"),
        (400, POST + b"content-length : 3\r\n\r\nabc"),
        (501, POST + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n"),
        (400, POST + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n"),
        (
            400,
            POST + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
        (400, POST + b"transfer-encoding:\x0bchunked\r\n\r\n0\r\n\r\n"),
        (501, POST + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
        (400, b"POST / HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
        (400, CHUNKED + b"-3\r\nabc\r\n0\r\n\r\n"),
        (400, CHUNKED + b" 3\r\nabc\r\n0\r\n\r\n"),
        (400, CHUNKED + b"3 \r\nabc\r\n0\r\n\r\n"),
        (400, CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n"),
        (400, CHUNKED + b"3\nabc\n0\n\n"),
        (400, CHUNKED + b"3\r\nabcd\r\n0\r\n\r\n"),
        (400, CHUNKED + b"3;\nabc\r\n0\r\n\r\n"),
        (400, CHUNKED + b"3;a\rb\r\nabc\r\n0\r\n\r\n"),
        (400, CHUNKED + b"fffffffffffffffff\r\nabc\r\n0\r\n\r\n"),
        (400, HOST + b"x: b\r\n c\r\n\r\n"),
        (400, HOST + b" x: b\r\n\r\n"),
        (400, HOST + b"x: b\ny: c\r\n\r\n"),
        (400, b"GET / HTTP/1.1\nhost: a\n\n"),
        (400, HOST + b"x: b\rc\r\n\r\n"),
        (400, HOST + b"x: b\0c\r\n\r\n"),
        (400, HOST + b"x\0: b\r\n\r\n"),
        (400, HOST + b": b\r\n\r\n"),
        (400, HOST + b"x\r\n\r\n"),
        (400, HOST + b"host: b\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\n\r\n"),
        (400, b"GET /\0 HTTP/1.1\r\nhost: a\r\n\r\n"),
        (400, b"get / HTTP/1.1\r\nhost: a\r\n\r\n"),
        (400, b"GET / HTTP/1.2\r\nhost: a\r\n\r\n"),
        (505, b"GET / HTTP/2.0\r\nhost: a\r\n\r\n"),
        (505, b"GET /\r\n\r\n"),
        (501, b"CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n"),
        (400, b"\x16\x03\x01\x02\x00\x01\x00"),
    ],
)
def test_bad_requests_are_refused_and_nothing_after_them_is_served(status: int, request_: bytes) -> None:
    async def run() -> None:
        async with http1_server() as server:
            client = await server.connect()
            await client.send(GET + request_ + GET)
            assert await client.answer() == (200, b"")
            head = await client.head()
            assert int(head[9:12]) == status
            assert b"connection: close\r\n" in head
            assert b"content-type: text/plain; charset=utf-8\r\n" in head
            assert (await client.rest()).endswith(b"\n")
            assert server.app.seen == [(b"GET", b"/echo", b"")]

    asyncio.run(run())


def test_refusal_waits_for_the_answers_before() -> None:
    async def run() -> None:
        async with http1_server() as server:
            client = await server.connect()
            await client.send(LATER + b"nonsense\r\n\r\n")
            await until(lambda: len(server.app.seen) == 1)
            server.app.answer.set()
            assert await client.answer() == (200, b"later")
            assert (await client.answer())[0] == 400

    asyncio.run(run())


def test_answer_to_an_error_goes_on_to_a_refusal() -> None:
    async def run() -> None:
        async with http1_server() as server:
            client = await server.connect()
            await client.send(LATER)
            await until(lambda: len(server.app.seen) == 1)
            await client.send(HOST + b"host: b\r\n\r\n")
            await until(lambda: server.open[0]._rest != b"")
            try:
                raise RuntimeError
            except RuntimeError:  # what is raised while this is handled has it as its context
                server.app.exchanges[0].respond(OK, b"answer")
            assert await client.answer() == (200, b"answer")
            assert (await client.answer())[0] == 400

    asyncio.run(run())


@pytest.mark.parametrize("upgrade", [b"connection: upgrade, http2-settings", b"connection: upgrade"])
@pytest.mark.parametrize("request_", [post(b"/echo", b"body"), chunked(b"/echo", b"bo", b"dy")])
def test_upgrades_are_ignored(upgrade: bytes, request_: bytes) -> None:
    async def run() -> None:
        async with http1_server() as server:
            client = await server.connect()
            fields = b"host: a\r\n%b\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n" % upgrade
            asking = request_.replace(b"host: a\r\n", fields)
            await client.send(asking + GET.replace(b"host: a\r\n", fields) + asking + GET)
            assert [await client.answer() for _ in range(4)] == [(200, b"body"), (200, b""), (200, b"body"), (200, b"")]

    asyncio.run(run())


def test_upgrade_with_the_last_request() -> None:
    async def run() -> None:
        async with http1_server() as server:
            client = await server.connect()
            await client.send(
                GET.replace(b"host: a\r\n", b"host: a\r\nconnection: upgrade, close\r\nupgrade: h2c\r\n") + GET
            )
            assert b"connection: close\r\n" in await client.head()
            assert await client.rest() == b""
            assert len(server.app.seen) == 1

    asyncio.run(run())


def test_connection_ends_after_the_answer_that_the_client_calls_last() -> None:
    async def run() -> None:
        async with http1_server() as server:
            client = await server.connect()
            await client.send(GET_LAST + GET)
            assert b"connection: close\r\n" in await client.head()
            assert await client.rest() == b""
            assert len(server.app.seen) == 1
            await until(lambda: len(server.closed) == 1)

    asyncio.run(run())


async def leave_by_close(client: Client) -> None:
    client.close()


async def leave_by_half(client: Client) -> None:
    client.writer.write_eof()


async def leave_by_reset(client: Client) -> None:
    client.writer.transport.abort()


@pytest.mark.parametrize("leave", [leave_by_close, leave_by_half, leave_by_reset])
@pytest.mark.parametrize("target", [b"/later", b"/endless", b"/pieces"])
def test_app_hears_that_the_client_is_gone(leave: object, target: bytes) -> None:
    async def run() -> None:
        async with http1_server() as server:
            client = await server.connect()
            length = b"content-length: 10\r\n" if target == b"/pieces" else b""
            await client.send(b"POST %b HTTP/1.1\r\nhost: a\r\n%b\r\n" % (target, length))
            await until(lambda: len(server.app.seen) == 1)
            await client.send(b"ahead")
            await leave(client)  # type: ignore[operator]
            await until(server.app.gone.is_set)
            server.app.answer.set()
            await until(lambda: len(server.closed) == 1)

    asyncio.run(run())


def test_client_that_does_not_read_makes_the_app_wait() -> None:
    async def run() -> None:
        async with http1_server() as server:
            client = await small_window(server)
            await client.send(b"GET /endless HTTP/1.1\r\nhost: a\r\n\r\n")
            await until(lambda: server.open[0]._writable is not None)
            sent = server.app.sent
            for _ in range(10):
                await asyncio.sleep(0.001)
            assert server.app.sent == sent
            assert server.open[0]._transport.get_write_buffer_size() < WRITE_BUFFER_BYTES + 20_000
            await until_read(client, 1_000_000)
            assert server.app.sent > sent
            client.writer.transport.abort()
            await until(server.app.gone.is_set)

    asyncio.run(run())


@pytest.mark.tools
def test_client_that_does_not_read_is_not_served_more() -> None:
    async def run() -> None:
        async with http1_server() as server:
            client = await small_window(server)
            await client.send(b"GET /big HTTP/1.1\r\nhost: a\r\n\r\n" * 40 + GET_LAST)
            await until(lambda: server.open[0]._writable is not None)
            assert len(server.app.seen) < 20
            assert len(await client.rest()) > 40 * len(BIG)

    asyncio.run(run())


async def small_window(server: Http1Server) -> Client:
    """Return a client whose socket takes little that is not read."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    return await server.connect_by(raw)


async def until_read(client: Client, count: int) -> None:
    while count > 0:
        count -= len(await client.reader.read(65_536))


def test_broken_off_answers_have_no_end() -> None:
    async def run() -> None:
        async with http1_server() as server:
            client = await server.connect()
            await client.send(b"GET /abort HTTP/1.1\r\nhost: a\r\n\r\n")
            await client.head()
            server.app.answer.set()
            assert await client.rest() == b"5\r\nfirst\r\n"
            assert not server.app.gone.is_set()

    asyncio.run(run())


def test_broken_off_http10_answers_are_reset() -> None:
    async def run() -> None:
        async with http1_server() as server:
            client = await server.connect()
            await client.send(b"GET /abort HTTP/1.0\r\n\r\n")
            await client.head()
            assert await client.reader.readexactly(5) == b"first"
            server.app.answer.set()
            with pytest.raises(ConnectionResetError):
                await client.rest()

    asyncio.run(run())


def test_pieces_are_read_as_they_come() -> None:
    async def run() -> None:
        async with http1_server() as server:
            client = await server.connect()
            body = b"x" * (10 * BODY_BYTES_MAX)  # more than a whole body may have
            await client.send(post(b"/pieces", body) + chunked(b"/pieces", body, body) + post(b"/pieces", b"") + GET)
            lengths = [await client.answer() for _ in range(4)]
            assert lengths == [(200, b"1000000"), (200, b"2000000"), (200, b"0"), (200, b"")]

    asyncio.run(run())


def test_pieces_wait_for_the_app() -> None:
    async def run() -> None:
        async with http1_server() as server:
            client = await server.connect()
            client.writer.write(LATER + post(b"/pieces", BIG * 20))
            connection = server.open[0]
            await until(lambda: not connection._transport.is_reading())
            server.app.answer.set()
            assert await client.answer() == (200, b"later")
            assert await client.answer() == (200, b"20000000")

    asyncio.run(run())


def test_unread_pieces_end_the_connection() -> None:
    async def run() -> None:
        async with http1_server() as server:
            client = await server.connect()
            await client.send(post(b"/pieces/unread", b"abc"))
            assert await client.answer() == (200, b"unread")
            await client.send(post(b"/pieces/unread", BIG))
            assert b"connection: close\r\n" in await client.head()
            assert await client.rest() == b"unread"

    asyncio.run(run())


@pytest.mark.parametrize(("target", "answer"), [(b"/pieces", b"HTTP/1.1 400"), (b"/pieces/begun", b"")])
def test_malformed_pieces_break_the_exchange_off(target: bytes, answer: bytes) -> None:
    async def run() -> None:
        async with http1_server() as server:
            client = await server.connect()
            await client.send(b"POST %b HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n" % target)
            await until(lambda: len(server.app.seen) == 1)
            if not answer:
                await client.head()
            await client.send(b"nonsense\r\n")
            assert (await client.rest())[: len(answer)] == answer
            assert server.app.gone.is_set()

    asyncio.run(run())


def test_drained_connections_end_after_the_request_at_work() -> None:
    async def run() -> None:
        async with http1_server() as server:
            idle, busy, coming = [await server.connect() for _ in range(3)]
            await busy.send(LATER + GET)
            await coming.send(GET[:10])
            await until(lambda: len(server.app.seen) == 1 and not server.open[2].idle)
            for connection in server.open:
                connection.drain()
            assert await idle.rest() == b""
            server.app.answer.set()
            assert b"connection: close\r\n" in await busy.head()
            assert await busy.rest() == b"later"
            await coming.send(GET[10:])
            assert b"connection: close\r\n" in await coming.head()
            assert await coming.rest() == b""

    asyncio.run(run())


def test_closed_connections_end_at_once() -> None:
    async def run() -> None:
        async with http1_server() as server:
            client = await server.connect()
            await client.send(LATER)
            await until(lambda: len(server.app.seen) == 1)
            server.open[0].close()
            await until(lambda: server.closed == server.open)
            assert server.app.gone.is_set()

    asyncio.run(run())
