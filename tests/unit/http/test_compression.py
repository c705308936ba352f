"""Answers that are compressed, for those who ask: over each protocol the same bytes once they are decompressed."""

import base64
import gzip
import json
import random
import shutil
import subprocess
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc
import pytest

try:
    import zstandard
except ImportError:
    zstandard = None  # type: ignore[assignment]

from tablegate.gateway.http.rpc.compression import (
    HAS_ZSTD,
    SLICE_BYTES,
    SMALL_BYTES,
    ZSTD,
    ZippedBody,
    accepts_gzip,
    coding_for,
)
from tablegate.gateway.query.call import Call, StreamMethod, UnaryMethod
from tests.kit.gateways_in_process.rest import RestServer
from tests.kit.gateways_in_process.web import SERVICE, Answer, WebClient, WebServer, client_of, web_clients
from tests.kit.table.filled import catalogue_of

LARGE = bytes(range(256)) * 4_000  # four slices


@pytest.fixture(scope="module")
def server() -> Iterator[WebServer]:
    async def bulk(data: bytes, _call: Call) -> AsyncIterator[bytes]:
        for length in (0, SMALL_BYTES - 1, SMALL_BYTES, 100_000):
            yield b"x" * length

    more = {
        "/test.Service/Large": UnaryMethod(lambda _data, _call: LARGE, 5.0, 5.0),
        "/test.Service/Bulk": StreamMethod(bulk, is_bulk=True),
        "/test.Service/Changes": StreamMethod(bulk),
    }
    assert len(LARGE) > 3 * SLICE_BYTES
    with WebServer(more) as served:
        yield served


@pytest.fixture(params=["http1", "http2"])
def client(request: pytest.FixtureRequest, server: WebServer) -> WebClient:
    return client_of(web_clients(server), request.param)


def enveloped(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


needs_zstd = pytest.mark.skipif(not HAS_ZSTD, reason="needs zstandard, an extra")


def unpacked(data: bytes) -> bytes:
    """Return what zstd packed, whole."""
    decompressor = zstandard.ZstdDecompressor().decompressobj()
    found: bytes = decompressor.decompress(data)
    assert decompressor.eof
    return found


def frames(body: bytes, unpack: Callable[[bytes], bytes] = gzip.decompress) -> list[tuple[int, bytes]]:
    """Return flags and messages, decompressed."""
    found = []
    while body:
        flags, length = body[0], int.from_bytes(body[1:5], "big")
        data, body = body[5 : 5 + length], body[5 + length :]
        found.append((flags, unpack(data) if flags & 1 else data))
    return found


@pytest.mark.parametrize(
    ("header", "accepts"),
    [
        (None, False),
        (b"", False),
        (b"identity", False),
        (b"gzip", True),
        (b"GZIP", True),
        (b"deflate, gzip;q=0.5, br", True),
        (b"gzip;q=0", False),
        (b"gzip; q=0.000", False),
        (b"gzip;q=0.001", True),
        (b"*", True),
        (b"*;q=0", False),
        (b"*;q=0, gzip", True),
        (b"gzip;q=0, *", False),
        (b"x-gzip, gzipped", False),
        (b"gzip;q=1.0", True),
    ],
)
def test_who_accepts_gzip(header: bytes | None, accepts: bool) -> None:
    assert accepts_gzip(header) is accepts


@pytest.mark.parametrize(
    ("header", "coding"),
    [
        (b"gzip, deflate, br, zstd", b"zstd"),  # as browsers and curl
        (b"zstd", b"zstd"),
        (b"ZSTD;Q=1", b"zstd"),
        (b"*", b"zstd"),
        (b"zstd;q=0.5, gzip", b"gzip"),
        (b"zstd;q=0.5, gzip;q=0.5", b"zstd"),
        (b"zstd;q=0, gzip;q=0.1", b"gzip"),
        (b"zstd;q=0, *", b"gzip"),
        (b"zstd;q=0.2, identity;q=0.9", None),
        (b"identity, gzip", b"gzip"),
        (b"identity;q=0, zstd;q=0.1", b"zstd"),
        (b"gzip;q=0, zstd;q=0", None),
        (b"gzip;q=wrong", b"gzip"),
        (b"br", None),
        (b";;q=,", None),
        (None, None),
    ],
)
def test_the_coding_that_is_accepted_most_is_taken(header: bytes | None, coding: bytes | None) -> None:
    assert coding_for(header, (b"zstd", b"gzip")) == coding
    without = coding_for(header, (b"gzip",))
    assert without in (None, b"gzip")
    if coding == b"gzip":
        assert without == b"gzip"


@needs_zstd
def test_a_page_over_rest_is_zstd_for_who_accepts_it(client: WebClient) -> None:
    plain = client.ask("GET", "/v1/ratings?pageSize=100")
    answer = client.ask("GET", "/v1/ratings?pageSize=100", accept_encoding="gzip, deflate, br, zstd")
    assert answer.headers["content-encoding"] == "zstd"
    assert len(answer.body) < len(plain.body) / 4
    assert json.loads(unpacked(answer.body))["ratings"] == plain.json["ratings"]
    small = client.ask("GET", "/v1/ratings/1", accept_encoding="zstd")
    assert "content-encoding" not in small.headers
    large = client.post("/test.Service/Large", b"", "application/proto", accept_encoding="zstd")
    assert (large.headers["content-encoding"], unpacked(large.body)) == ("zstd", LARGE)


@needs_zstd
def test_a_scan_over_rest_is_one_frame_of_zstd(client: WebClient) -> None:
    plain = client.ask("GET", "/v1/ratings:scan")
    answer = client.ask("GET", "/v1/ratings:scan", accept_encoding="zstd")
    assert answer.headers["content-encoding"] == "zstd"
    lines = [json.loads(line)["ratings"] for line in unpacked(answer.body).splitlines()]
    assert lines == [json.loads(line)["ratings"] for line in plain.body.splitlines()]
    events = client.ask("GET", "/v1/ratings:scan", accept_encoding="zstd", accept="text/event-stream")
    assert "content-encoding" not in events.headers


@needs_zstd
def test_connect_compresses_messages_by_zstd(client: WebClient) -> None:
    kind = "application/connect+proto"
    answer = client.post("/test.Service/Bulk", enveloped(b""), kind, connect_accept_encoding="zstd, gzip")
    assert answer.headers["connect-content-encoding"] == "zstd"
    *messages, (last, _) = frames(answer.body, unpacked)
    assert last == 2
    assert [len(data) for _, data in messages] == [0, SMALL_BYTES - 1, SMALL_BYTES, 100_000]


@needs_zstd
def test_pieces_of_zstd_can_be_read_once_they_are_there() -> None:
    body, decompressor = ZippedBody(ZSTD), zstandard.ZstdDecompressor().decompressobj()
    for data in (b"one", b"", b"two" * 30_000, random.Random(1).randbytes(300_000)):
        assert decompressor.decompress(body.piece(data)) == data
    assert decompressor.decompress(body.last(b"end")) == b"end"
    assert decompressor.eof


@needs_zstd
def test_a_stream_of_zstd_keeps_little_memory() -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=12, hash_log=12, chain_log=12)
    assert parameters.estimated_compression_context_size() < 64 * 1024
    # A frame says how much whoever reads it has to keep; browsers take no more than 8 MiB.
    frame = zstandard.get_frame_parameters(ZippedBody(ZSTD).piece(b"x" * 1_000_000))
    assert frame.window_size == 4_096


@needs_zstd
@pytest.mark.parametrize("path", ["/v1/ratings?pageSize=100", "/v1/ratings:scan"])
def test_curl_reads_zstd(server: WebServer, path: str) -> None:
    curl = shutil.which("curl")
    if curl is None or "zstd" not in subprocess.run([curl, "-V"], capture_output=True, text=True, check=True).stdout:
        pytest.skip("needs a curl that reads zstd")
    url = f"http://127.0.0.1:{server.port}{path}"
    options = ["-s", "--fail", "-w", "%header{content-encoding}"]
    done = subprocess.run([curl, *options, "--compressed", url], capture_output=True, check=True, timeout=20)
    plain = subprocess.run([curl, *options, url], capture_output=True, check=True, timeout=20)
    assert done.stdout.endswith(b"zstd")
    assert b'"movieId"' in done.stdout
    assert len(done.stdout) == pytest.approx(len(plain.stdout), abs=500)  # the tokens' times differ


def test_a_page_over_rest_is_compressed_for_who_accepts_it(client: WebClient) -> None:
    plain = client.ask("GET", "/v1/ratings?pageSize=100")
    assert "content-encoding" not in plain.headers
    compressed = client.ask("GET", "/v1/ratings?pageSize=100", accept_encoding="br, gzip")
    assert compressed.headers["content-encoding"] == "gzip"
    assert compressed.headers["content-type"] == "application/json"
    assert len(compressed.body) < len(plain.body) / 4
    assert json.loads(gzip.decompress(compressed.body))["ratings"] == plain.json["ratings"]
    small = client.ask("GET", "/v1/ratings/1", accept_encoding="gzip")
    assert "content-encoding" not in small.headers
    assert small.json["rating"]["movieId"] == "1"
    error = client.ask("GET", "/v1/ratings?pageSize=-1", accept_encoding="gzip")
    assert error.json["error"]["code"] == 400


def test_a_scan_over_rest_is_one_gzip_in_pieces(client: WebClient) -> None:
    plain = client.ask("GET", "/v1/ratings:scan")
    compressed = client.ask("GET", "/v1/ratings:scan", accept_encoding="gzip")
    assert compressed.headers["content-encoding"] == "gzip"
    lines = [json.loads(line)["ratings"] for line in gzip.decompress(compressed.body).splitlines()]
    assert lines == [json.loads(line)["ratings"] for line in plain.body.splitlines()]
    events = client.ask("GET", "/v1/ratings:scan", accept_encoding="gzip", accept="text/event-stream")
    assert "content-encoding" not in events.headers
    assert events.body.startswith(b"data: {")


def test_a_stream_over_rest_that_fails_says_so_in_its_gzip() -> None:
    with RestServer(WatchThing='get: "/watched"') as served:
        for client in web_clients(served).values():  # type: ignore[arg-type]
            compressed = client.ask("GET", "/watched?name=x", accept_encoding="gzip")
            assert compressed.headers["content-encoding"] == "gzip"
            lines = [json.loads(line) for line in gzip.decompress(compressed.body).splitlines()]
            assert [*lines[-1]] == ["error"]
            assert len(lines) == 3
            refused = client.ask("GET", "/watched", accept_encoding="gzip")
            assert ("content-encoding" in refused.headers, refused.status) == (False, 429)


def test_pieces_can_be_decompressed_once_they_are_there() -> None:
    body, decompressor = ZippedBody(), zlib.decompressobj(31)
    for data in (b"one", b"", b"two" * 30_000):
        assert decompressor.decompress(body.piece(data)) == data
    assert decompressor.decompress(body.last(b"end")) == b"end"
    assert decompressor.eof


@pytest.mark.parametrize("path", [f"{SERVICE}/ListRatings", "/test.Service/Large"])
def test_connect_answers_compressed_who_accepts_it(client: WebClient, path: str) -> None:
    request = b"" if path.endswith("Large") else page_request()
    plain = client.post(path, request, "application/proto")
    compressed = client.post(path, request, "application/proto", accept_encoding="gzip")
    assert "content-encoding" not in plain.headers
    assert compressed.headers["content-encoding"] == "gzip"
    assert rows_of(gzip.decompress(compressed.body), path) == rows_of(plain.body, path)


def page_request() -> bytes:
    request: Any = catalogue_of().queries[f"{SERVICE}/ListRatings"].request_class(page_size=100)
    return bytes(request.SerializeToString())


def rows_of(data: bytes, path: str) -> Any:
    if path.endswith("Large"):
        return data
    response: Any = catalogue_of().queries[path].response_class.FromString(data)
    assert len(response.ratings) == 100
    return list(response.ratings)


@pytest.mark.parametrize("path", ["/test.Service/Bulk", "/test.Service/Changes"])
def test_connect_compresses_messages_of_bulk_alone(client: WebClient, path: str) -> None:
    answer = client.post(path, enveloped(b""), "application/connect+proto", connect_accept_encoding="gzip")
    *messages, (last, _) = frames(answer.body)
    assert last == 2
    is_bulk = path.endswith("Bulk")
    assert ("connect-content-encoding" in answer.headers) is is_bulk
    assert [flags for flags, _ in messages] == [0, 0, int(is_bulk), int(is_bulk)]
    assert [len(data) for _, data in messages] == [0, SMALL_BYTES - 1, SMALL_BYTES, 100_000]
    plain = client.post(path, enveloped(b""), "application/connect+proto")
    assert [flags for flags, _ in frames(plain.body)] == [0, 0, 0, 0, 2]


def grpc_web(client: WebClient, path: str, request: bytes, text: bool, **headers: str) -> Answer:
    kind = "application/grpc-web-text" if text else "application/grpc-web+proto"
    body = enveloped(request)
    return client.post(path, base64.b64encode(body) if text else body, kind, **headers)


@pytest.mark.parametrize("text", [False, True])
def test_grpc_web_answers_as_it_is_asked(client: WebClient, text: bool) -> None:
    """What a client accepts says what it can read, and not that it wants it."""
    for asked, is_compressed in (({"grpc_encoding": "gzip"}, True), ({"grpc_accept_encoding": "gzip"}, False)):
        answer = grpc_web(client, "/test.Service/Large", b"", text, **asked)
        body = base64.b64decode(answer.body) if text else answer.body
        [(flags, message), (trailer, _)] = frames(body)
        assert (flags, trailer, message) == (int(is_compressed), 0x80, LARGE)
        assert ("grpc-encoding" in answer.headers) is is_compressed
        if not text:
            streamed = grpc_web(client, "/test.Service/Bulk", b"", text, **asked)
            assert [flags for flags, _ in frames(streamed.body)] == [0, 0, int(is_compressed), int(is_compressed), 0x80]


def test_grpc_answers_as_it_is_asked(server: WebServer) -> None:
    client = client_of(web_clients(server), "http2")
    for asked, is_compressed in (({"grpc_encoding": "gzip"}, True), ({"grpc_accept_encoding": "gzip"}, False)):
        for path, request in ((f"{SERVICE}/ListRatings", page_request()), ("/test.Service/Large", b"")):
            answer = client.post(path, enveloped(request), "application/grpc", te="trailers", **asked)
            [(flags, message)] = frames(answer.body)
            assert (flags, "grpc-encoding" in answer.headers) == (int(is_compressed), is_compressed)
            rows_of(message, path)
        answer = client.post("/test.Service/Bulk", enveloped(b""), "application/grpc", te="trailers", **asked)
        assert [flags for flags, _ in frames(answer.body)] == [0, 0, int(is_compressed), int(is_compressed)]
        answer = client.post("/test.Service/Changes", enveloped(b""), "application/grpc", te="trailers", **asked)
        assert [flags for flags, _ in frames(answer.body)] == [0, 0, 0, 0]


def test_grpcs_own_client_reads_what_is_compressed(server: WebServer) -> None:
    scan = catalogue_of().queries[f"{SERVICE}/ScanRatings"]
    with grpc.insecure_channel(f"127.0.0.1:{server.port}", compression=grpc.Compression.Gzip) as channel:
        large: Any = channel.unary_unary("/test.Service/Large", None, None)(b"", timeout=20)
        assert large == LARGE
        call: Any = channel.unary_stream(scan.path, None, scan.response_class.FromString)
        messages = list(call(b"", timeout=20))
    assert sum(len(message.ratings) for message in messages) == 100
