import base64
import gzip
from typing import Any
from urllib.parse import unquote

import pytest
from google.rpc import error_details_pb2, status_pb2

from tablegate.gateway.http.exchange import MESSAGE_BYTES_MAX
from tests.kit.gateways_in_process.web import SERVICE, Answer, WebClient
from tests.kit.table.filled import catalogue_of

GET_RATING = f"{SERVICE}/GetRating"
SCAN = f"{SERVICE}/ScanRatings"
PROTO, TEXT = "application/grpc-web+proto", "application/grpc-web-text"


def _frame(data: bytes, flags: int = 0) -> bytes:
    return bytes((flags,)) + len(data).to_bytes(4, "big") + data


def _request(method: str, **fields: Any) -> bytes:
    return _frame(catalogue_of().queries[f"{SERVICE}/{method}"].request_class(**fields).SerializeToString())


def _parts(answer: Answer, body: bytes | None = None) -> tuple[list[bytes], dict[str, str]]:
    """Return the messages and the trailers of an answer."""
    assert answer.status == 200, answer
    left = answer.body if body is None else body
    messages: list[bytes] = []
    while left:
        end = 5 + int.from_bytes(left[1:5], "big")
        data = left[5:end]
        if left[0] == 0x80:
            assert left[end:] == b"", "the trailers are the last frame"
            assert data.endswith(b"\r\n")
            return messages, dict(line.split(": ", 1) for line in data.decode().split("\r\n")[:-1])
        assert left[0] == 0
        messages.append(data)
        left = left[end:]
    raise AssertionError("no trailers")


def _response(method: str, data: bytes) -> Any:
    return catalogue_of().queries[f"{SERVICE}/{method}"].response_class.FromString(data)


def _refused(answer: Answer, code: int) -> dict[str, str]:
    messages, trailers = _parts(answer)
    assert messages == []
    assert trailers["grpc-status"] == str(code), trailers
    details = trailers["grpc-status-details-bin"]
    status = status_pb2.Status.FromString(base64.b64decode(details + "=" * (-len(details) % 4)))
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert status.code == code
    assert status.message == unquote(trailers["grpc-message"])
    return trailers


@pytest.mark.parametrize("content_type", ["application/grpc-web", PROTO, f"{PROTO};charset=utf-8"])
def test_a_unary_call(client: WebClient, content_type: str) -> None:
    answer = client.post(GET_RATING, _request("GetRating", movie_id=7), content_type)
    [message], trailers = _parts(answer)
    assert answer.headers["content-type"] == PROTO
    assert _response("GetRating", message).rating.movie_id == 7
    assert trailers["grpc-status"] == "0"
    assert trailers["tablegate-role"] == "owner"


def _in_pieces(data: bytes, size: int) -> bytes:
    """Return base64 that was made of pieces, each padded."""
    return b"".join(base64.b64encode(data[at : at + size]) for at in range(0, len(data), size))


def _from_runs(text: bytes) -> bytes:
    """Read base64 four letters at a time, as clients of the text form do."""
    return b"".join(base64.b64decode(text[at : at + 4], validate=True) for at in range(0, len(text), 4))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 100])
def test_the_text_form(client: WebClient, size: int) -> None:
    answer = client.post(GET_RATING, _in_pieces(_request("GetRating", movie_id=7), size), TEXT)
    assert answer.headers["content-type"] == f"{TEXT}+proto"
    [message], trailers = _parts(answer, _from_runs(answer.body))
    assert _response("GetRating", message).rating.movie_id == 7
    assert trailers["grpc-status"] == "0"
    answer = client.post(SCAN, base64.b64encode(_request("ScanRatings")), f"{TEXT}+proto")
    messages, trailers = _parts(answer, _from_runs(answer.body))
    rows = [row.movie_id for message in messages for row in _response("ScanRatings", message).ratings]
    assert sorted(rows) == list(range(100))
    for body in (b"AAA", b"!!!!", b"====", b"AAAA\xff"):
        answer = client.post(GET_RATING, body, TEXT)
        assert _parts(answer, _from_runs(answer.body))[1]["grpc-status"] == "3"


def test_a_stream(client: WebClient) -> None:
    packed = _frame(gzip.compress(_request("ScanRatings")[5:]), 1)
    messages, trailers = _parts(client.post(SCAN, packed, PROTO, grpc_encoding="gzip"))
    rows = [row.movie_id for message in messages for row in _response("ScanRatings", message).ratings]
    assert sorted(rows) == list(range(100))
    assert trailers["grpc-status"] == "0"
    messages, trailers = _parts(client.post("/test.Service/BreakOff", _frame(b""), PROTO))
    assert messages == [b"one", b""]
    assert trailers["grpc-status"] == "14"
    assert trailers["grpc-retry-pushback-ms"] == "100"


def test_a_stream_each_way(client: WebClient) -> None:
    answer = client.post("/test.Service/Echo", _frame(b"one") + _frame(b"two"), PROTO)
    assert _parts(answer) == ([b"one", b"two"], {"grpc-status": "0"})
    if not client.http2:  # curl drops an answer that comes while it still sends
        answer = client.post("/test.Service/Echo", base64.b64encode(_frame(b"one")), TEXT)
        messages, trailers = _parts(answer, base64.b64decode(answer.body))
        assert (messages, trailers["grpc-status"]) == ([], "12")


def test_errors_are_trailers(client: WebClient) -> None:
    _refused(client.post(GET_RATING, _request("GetRating", movie_id=-3), PROTO), 5)
    _refused(client.post(GET_RATING, _frame(b"\xff"), PROTO), 3)
    _refused(client.post(GET_RATING, b"", PROTO), 12)
    _refused(client.post(GET_RATING, _frame(b"") * 2, PROTO), 12)
    _refused(client.post(GET_RATING, _frame(b"", 1), PROTO, grpc_encoding="br"), 12)
    _refused(client.post(GET_RATING, _frame(b""), PROTO, grpc_timeout="soon"), 3)
    _refused(client.post("/test.Service/Wait", _frame(b""), PROTO, grpc_timeout="50m"), 4)
    _refused(client.post(f"{SERVICE}/Nothing", _frame(b""), PROTO), 12)
    _refused(client.post("/nobody.v1.Service/Get", _frame(b""), PROTO), 12)
    _refused(client.post("/test.Service/Length", _frame(b"x" * (MESSAGE_BYTES_MAX + 1)), PROTO), 8)
    if not client.http2:  # curl drops an answer that comes while it still sends
        _refused(client.post("/test.Service/Length", _frame(b"x" * 5_000_000), PROTO), 8)
    assert _refused(client.post("/test.Service/Overloaded", _frame(b""), PROTO), 8)["tablegate-role"] == "owner"


def test_wrong_codecs_and_methods_say_which_are_right(client: WebClient) -> None:
    for content_type in ("application/grpc-web+json", "application/grpc-web+foo", "application/grpc-webber"):
        answer = client.post(GET_RATING, _frame(b"{}"), content_type)
        assert answer.status == 415
        assert PROTO in answer.headers["accept-post"]
    answer = client.ask("GET", GET_RATING, content_type=PROTO)
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
