import base64
import gzip
import json
import logging
import random
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote, quote_from_bytes

import pytest
from google.rpc import error_details_pb2

from tablegate.gateway.http.exchange import MESSAGE_BYTES_MAX
from tablegate.gateway.http.h2 import frames
from tablegate.gateway.http.json_codec import JSON_BYTES_MAX
from tablegate.gateway.http.rpc.calls import HTTP_STATUSES
from tablegate.gateway.http.rpc.connect import _CODE_NAMES
from tablegate.gateway.query.call import Call, Methods, StreamMethod, UnaryMethod
from tablegate.gateway.query.errors import STATUS_OF_REASON
from tests.kit.gateway_processes.gateway import soon
from tests.kit.gateways_in_process.web import SERVICE, Answer, WebClient, WebServer, client_of, web_clients
from tests.kit.http import h2
from tests.kit.table.filled import catalogue_of, rating

GET_RATING = f"{SERVICE}/GetRating"
SCAN = f"{SERVICE}/ScanRatings"
JSON, PROTO = "application/json", "application/proto"
STREAM_JSON, STREAM_PROTO = "application/connect+json", "application/connect+proto"


def _message(method: str, **fields: Any) -> bytes:
    data: bytes = catalogue_of().queries[f"{SERVICE}/{method}"].request_class(**fields).SerializeToString()
    return data


def _response(method: str, data: bytes) -> Any:
    return catalogue_of().queries[f"{SERVICE}/{method}"].response_class.FromString(data)


def _envelope(data: bytes, flags: int = 0) -> bytes:
    return bytes((flags,)) + len(data).to_bytes(4, "big") + data


def _envelopes(body: bytes) -> list[tuple[int, bytes]]:
    found = []
    while body:
        end = 5 + int.from_bytes(body[1:5], "big")
        found.append((body[0], body[5:end]))
        body = body[end:]
    return found


def _error(answer: Answer, status: int, code: str) -> dict[str, Any]:
    assert answer.status == status, answer
    assert answer.headers["content-type"] == JSON
    found: dict[str, Any] = answer.json
    assert found["code"] == code
    info = found["details"][0]
    assert info["type"] == "google.rpc.ErrorInfo"
    assert "=" not in info["value"]
    padded = info["value"] + "=" * (-len(info["value"]) % 4)
    assert error_details_pb2.ErrorInfo.FromString(base64.b64decode(padded)).reason == info["debug"]["reason"]
    return found


def _end(answer: Answer) -> dict[str, Any]:
    assert answer.status == 200, answer
    flags, last = _envelopes(answer.body)[-1]
    assert flags == 2
    found: dict[str, Any] = json.loads(last)
    return found


def test_every_code_has_a_status_and_the_name_of_the_protocol() -> None:
    assert set(STATUS_OF_REASON.values()) <= set(HTTP_STATUSES)
    assert len(HTTP_STATUSES) == 16
    assert _CODE_NAMES[1] == "canceled"
    assert _CODE_NAMES[9] == "failed_precondition"


def test_a_unary_call_in_json_and_in_protobuf(client: WebClient) -> None:
    for content_type in (JSON, f"{JSON}; charset=utf-8", "Application/JSON;charset=UTF-8"):
        answer = client.post(GET_RATING, '{"movieId":"7"}', content_type)
        assert (answer.status, answer.headers["content-type"]) == (200, JSON)
        assert answer.json["rating"]["movieId"] == "7"
        assert answer.headers["trailer-tablegate-role"] == "owner"
    answer = client.post(GET_RATING, _message("GetRating", movie_id=7), PROTO, connect_protocol_version="1")
    assert (answer.status, answer.headers["content-type"]) == (200, PROTO)
    assert _response("GetRating", answer.body).rating.movie_id == 7


def test_gzip_is_taken_and_other_compressions_are_not(client: WebClient) -> None:
    packed = gzip.compress(b'{"movieId":7}')
    assert client.post(GET_RATING, packed, JSON, content_encoding="gzip").status == 200
    assert client.post(GET_RATING, b'{"movieId":7}', JSON, content_encoding="identity").status == 200
    _error(client.post(GET_RATING, packed, JSON, content_encoding="br"), 501, "unimplemented")
    _error(client.post(GET_RATING, b"{}", JSON, content_encoding="gzip"), 400, "invalid_argument")
    bomb = gzip.compress(b" " * (64 * MESSAGE_BYTES_MAX))
    _error(client.post(GET_RATING, bomb, JSON, content_encoding="gzip"), 429, "resource_exhausted")


@pytest.mark.parametrize("as_base64", [False, True])
def test_a_get_without_side_effects(client: WebClient, as_base64: bool) -> None:
    for encoding, data in (("json", b'{"movieId":"7"}'), ("proto", _message("GetRating", movie_id=7))):
        for compression, sent in (("", data), ("gzip", gzip.compress(data))):
            message = quote_from_bytes(sent, safe="")
            if as_base64:
                message = base64.urlsafe_b64encode(sent).decode().rstrip("=")
            query = f"connect=v1&encoding={encoding}&message={message}"
            query += "&base64=1" if as_base64 else ""
            query += f"&compression={compression}" if compression else ""
            answer = client.ask("GET", f"{GET_RATING}?{query}")
            assert (answer.status, answer.headers["content-type"]) == (200, f"application/{encoding}")
            assert answer.headers["cache-control"] == "no-store"
            assert b"7" in answer.body if encoding == "json" else _response("GetRating", answer.body).rating.movie_id


def test_a_get_that_is_not_whole_is_refused(client: WebClient) -> None:
    for query in ("encoding=json", "encoding=json&message=!&base64=1", "connect=v2&encoding=json&message={}"):
        _error(client.ask("GET", f"{GET_RATING}?{quote(query, safe='=&!')}"), 400, "invalid_argument")
    _error(client.ask("GET", f"{GET_RATING}?encoding=json&message=%7B%7D&compression=br"), 501, "unimplemented")
    assert client.ask("GET", f"{GET_RATING}?message=%7B%7D").status == 415
    assert client.ask("GET", f"{GET_RATING}?encoding=xml&message=%7B%7D").status == 415


def test_wrong_methods_and_content_types_say_which_are_right(client: WebClient) -> None:
    for path, allow in ((GET_RATING, "GET, POST"), (SCAN, "POST"), ("/grpc.health.v1.Health/Check", "POST")):
        answer = client.ask("DELETE", path)
        assert (answer.status, answer.headers["allow"]) == (405, allow)
    assert client.ask("GET", f"{SCAN}?encoding=json&message=%7B%7D").status == 405
    for path, content_type, accept in (
        (GET_RATING, "image/jpeg", f"{JSON}, {PROTO}"),
        (GET_RATING, STREAM_JSON, f"{JSON}, {PROTO}"),
        (GET_RATING, f"{JSON}; charset=latin-1", f"{JSON}, {PROTO}"),
        (GET_RATING, "", f"{JSON}, {PROTO}"),
        (SCAN, JSON, f"{STREAM_JSON}, {STREAM_PROTO}"),
        ("/test.Service/Length", JSON, PROTO),
    ):
        answer = client.post(path, "{}", content_type)
        assert (answer.status, answer.headers["accept-post"]) == (415, accept)


def test_errors_have_code_status_and_details(client: WebClient) -> None:
    found = _error(client.post(GET_RATING, '{"movieId":-3}', JSON), 404, "not_found")
    assert found["details"][0]["debug"]["reason"] == "ROW_NOT_FOUND"
    assert [detail["type"] for detail in found["details"]] == ["google.rpc.ErrorInfo", "google.rpc.ResourceInfo"]
    found = _error(client.post(GET_RATING, '{"movieId":"x"}', JSON), 400, "invalid_argument")
    assert found["details"][1]["debug"]["fieldViolations"][0]["field"] == "movieId"
    _error(client.post(GET_RATING, b"\xff", PROTO), 400, "invalid_argument")
    _error(client.post(f"{SERVICE}/Nothing", "{}", JSON), 404, "unimplemented")
    _error(client.post("/nobody.v1.Service/Get", b"", PROTO), 404, "unimplemented")
    _error(client.post("/nobody.v1.Service/Get", "{}", JSON, connect_protocol_version="1"), 404, "unimplemented")
    assert b"nothing is served" in client.post("/nobody/at/all", "{}", JSON).body
    answer = client.post("/test.Service/Overloaded", b"", PROTO)
    found = _error(answer, 429, "resource_exhausted")
    assert found["details"][1] == {"type": "google.rpc.RetryInfo", "value": "CgIIAQ", "debug": {"retryDelay": "1s"}}
    assert answer.headers["retry-after"] == "1"
    assert answer.headers["trailer-tablegate-role"] == "owner"


def test_version_and_timeout_are_checked(client: WebClient) -> None:
    _error(client.post(GET_RATING, "{}", JSON, connect_protocol_version="2"), 400, "invalid_argument")
    for timeout in ("x", "-1", "1.5", "12345678901"):
        _error(client.post(GET_RATING, "{}", JSON, connect_timeout_ms=timeout), 400, "invalid_argument")
    answer = client.post("/test.Service/Wait", b"", PROTO, connect_timeout_ms="50")
    found = _error(answer, 504, "deadline_exceeded")
    assert found["details"][0]["debug"]["reason"] == "DEADLINE_EXCEEDED"


def test_long_requests_are_refused(client: WebClient) -> None:
    answer = client.post("/test.Service/Length", b"x" * MESSAGE_BYTES_MAX, PROTO)
    assert answer.body == b"%d" % MESSAGE_BYTES_MAX
    _error(client.post("/test.Service/Length", b"x" * (MESSAGE_BYTES_MAX + 1), PROTO), 429, "resource_exhausted")
    keys = ", ".join([f'{{"movieId": "{number}"}}' for number in range(500)])
    text = f'{{"keys": [{keys}]}}'
    long = text + " " * (JSON_BYTES_MAX - len(text))
    answer = client.post(f"{SERVICE}/BatchGetRatings", long, JSON)
    assert len(answer.json["results"]) == 500
    _error(client.post(f"{SERVICE}/BatchGetRatings", long + " ", JSON), 429, "resource_exhausted")


def test_our_own_mistakes_are_internal(client: WebClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        found = _error(client.post("/test.Service/Fail", b"", PROTO), 500, "internal")
    assert "secret" not in str(found)
    assert all("secret" not in str(vars(record)) for record in caplog.records)


def test_a_row_that_json_cannot_say_is_internal_in_json_alone() -> None:
    row = rating(7)
    row.update_time.seconds = 10**15  # no year that text has
    got = catalogue_of().queries[GET_RATING].response_class(rating=row).SerializeToString()
    scanned = catalogue_of().queries[SCAN].response_class(ratings=[row]).SerializeToString()

    async def scan(_data: bytes, _call: Call) -> AsyncIterator[bytes]:
        yield scanned

    methods: Methods = {GET_RATING: UnaryMethod(lambda _data, _call: got, 5.0, 5.0), SCAN: StreamMethod(scan)}
    with WebServer(methods) as server:
        client = WebClient(server, http2=False)
        assert client.post(GET_RATING, b"", PROTO).body == got
        _error(client.post(GET_RATING, "{}", JSON), 500, "internal")
        assert _envelopes(client.post(SCAN, _envelope(b""), STREAM_PROTO).body)[0] == (0, scanned)
        assert _end(client.post(SCAN, _envelope(b"{}"), STREAM_JSON))["error"]["code"] == "internal"


def test_a_stream_in_json_and_in_protobuf(client: WebClient) -> None:
    answer = client.post(SCAN, _envelope(b'{"minAverageRating":1}'), STREAM_JSON)
    assert answer.headers["content-type"] == STREAM_JSON
    *messages, (flags, last) = _envelopes(answer.body)
    assert [flag for flag, _ in messages] == [0] * len(messages)
    rows = [row.get("movieId", 0) for _, data in messages for row in json.loads(data).get("ratings", [])]
    assert sorted(map(int, rows)) == list(range(100))
    assert flags == 2
    assert "error" not in json.loads(last)
    packed = _envelope(gzip.compress(_message("ScanRatings")), 1)
    answer = client.post(SCAN, packed, STREAM_PROTO, connect_content_encoding="gzip")
    *messages, _ = _envelopes(answer.body)
    rows = [row.movie_id for _, data in messages for row in _response("ScanRatings", data).ratings]
    assert sorted(rows) == list(range(100))


def test_a_stream_may_end_with_an_error_after_messages(client: WebClient) -> None:
    answer = client.post("/test.Service/BreakOff", _envelope(b""), STREAM_PROTO)
    assert _envelopes(answer.body)[:2] == [(0, b"one"), (0, b"")]
    last = _end(answer)
    assert last["error"]["code"] == "unavailable"
    assert last["error"]["details"][-1]["debug"] == {"retryDelay": "0.100s"}
    assert last["metadata"] == {"tablegate-role": ["owner", "standby"]}


def test_errors_before_a_stream_are_its_only_message(client: WebClient) -> None:
    for path, body, code in (
        (SCAN, b"", "unimplemented"),
        (SCAN, _envelope(b"{}") * 2, "unimplemented"),
        (SCAN, _envelope(b'{"nothing":1}'), "invalid_argument"),
        (SCAN, _envelope(b"{}", 1), "invalid_argument"),
        (SCAN, _envelope(b"{}", 2), "invalid_argument"),
        (f"{SERVICE}/Nothing", _envelope(b"{}"), "unimplemented"),
        ("/nobody.v1.Service/Get", _envelope(b"{}"), "unimplemented"),
    ):
        answer = client.post(path, body, STREAM_JSON)
        assert len(_envelopes(answer.body)) == 1
        assert _end(answer)["error"]["code"] == code, path
    answer = client.post(SCAN, _envelope(b"{}", 1), STREAM_JSON, connect_content_encoding="br")
    assert _end(answer)["error"]["code"] == "unimplemented"


def test_a_stream_each_way(client: WebClient) -> None:
    sent = _envelope(b"one") + _envelope(gzip.compress(b"two"), 1) + _envelope(b"")
    answer = client.post("/test.Service/Echo", sent, STREAM_PROTO, connect_content_encoding="gzip")
    assert [data for _, data in _envelopes(answer.body)[:-1]] == [b"one", b"two", b""]
    assert _end(answer) == {}
    answer = client.post("/test.Service/Echo", _envelope(b"one") + b"\0\0", STREAM_PROTO)
    assert _end(answer)["error"]["code"] == "invalid_argument"
    if not client.http2:  # curl drops an answer that comes while it still sends
        for body, content_type in ((b"", STREAM_JSON), (_envelope(b"one"), PROTO)):
            assert client.post("/test.Service/Echo", body, content_type).status == 415
        long = _envelope(b"x" * (MESSAGE_BYTES_MAX + 1))
        assert _end(client.post("/test.Service/Echo", long, STREAM_PROTO))["error"]["code"] == "resource_exhausted"


def test_a_stream_ends_at_its_deadline(client: WebClient) -> None:
    answer = client.post("/test.Service/Endless", _envelope(b""), STREAM_PROTO, connect_timeout_ms="100")
    assert len(_envelopes(answer.body)) > 1
    assert _end(answer)["error"]["code"] == "deadline_exceeded"


def test_a_client_that_goes_away_ends_its_call(server: WebServer) -> None:
    server.ended.clear()
    for path, body, content_type in (
        ("/test.Service/Wait", b"", PROTO),
        ("/test.Service/Endless", _envelope(b""), STREAM_PROTO),
    ):
        with _connected(server) as raw:
            head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {content_type}\r\n"
            raw.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            if "Endless" in path:
                assert raw.recv(1)
            else:
                raw.settimeout(0.2)
                with pytest.raises(TimeoutError):
                    raw.recv(1)
    soon(lambda: sorted(server.ended) == ["stream", "unary"], "both calls end")


def test_a_slow_reader_gets_whole_messages_and_the_end() -> None:
    ended = threading.Event()

    async def big(_data: bytes, _call: Call) -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x" * 100_000
        finally:
            ended.set()

    more = ((b"content-type", STREAM_PROTO.encode()), (b"connect-timeout-ms", b"100"))
    with WebServer({"/test.Service/Big": StreamMethod(big)}) as server, _connected(server) as raw:
        raw.sendall(h2.OPENING + h2.head(1, h2.request(b"/test.Service/Big", *more)))
        raw.sendall(h2.data(1, _envelope(b""), ended=True))
        assert ended.wait(10), "the deadline ends the handler, though the client's window is full"
        body, over = b"", False
        reader = raw.makefile("rb")
        while not over:
            first, flags, stream = frames.unpack_frame_header(reader.read(frames.FRAME_HEADER_BYTES), 0)
            kind, data = first & 0xFF, reader.read(first >> 8)
            assert kind != frames.RST_STREAM
            if kind == frames.DATA and data:
                body += data
                for place in (0, stream):
                    raw.sendall(frames.frame(frames.WINDOW_UPDATE, 0, place, len(data).to_bytes(4, "big")))
            over = stream == 1 and bool(flags & frames.END_STREAM)
    *messages, (flags, last) = _envelopes(body)
    assert messages
    assert all(message == (0, b"x" * 100_000) for message in messages)
    assert flags == 2
    assert json.loads(last)["error"]["code"] == "deadline_exceeded"


def _connected(server: WebServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=10)


def test_grpc_needs_http2(server: WebServer) -> None:
    client = client_of(web_clients(server), "http1")
    answer = client.post(GET_RATING, _envelope(_message("GetRating", movie_id=7)), "application/grpc")
    assert (answer.status, answer.body) == (505, b"gRPC needs HTTP/2; use it, or send application/grpc-web\n")


@pytest.mark.tools
def test_json_may_be_as_long_packed_as_plain(server: WebServer) -> None:
    client = client_of(web_clients(server), "http1")
    spaces = random.Random(7).choices((b" ", b"\t", b"\n"), k=MESSAGE_BYTES_MAX + 1)  # that do not pack to nothing
    body = json.dumps({"movieId": 7}).encode() + b"".join(spaces)
    for sent, coding in ((body, "identity"), (gzip.compress(body), "gzip")):
        assert client.post(GET_RATING, sent, JSON, content_encoding=coding).status == 200
    batch = json.dumps({"keys": [{"movieId": 7}]}).encode() + b"".join(spaces)
    for sent, coding in ((batch, "identity"), (gzip.compress(batch), "gzip")):
        assert client.post("/v1/ratings:batchGet", sent, JSON, content_encoding=coding).status == 200
