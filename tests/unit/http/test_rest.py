import gzip
import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest
from google.rpc import code_pb2

from tablegate.gateway.http.rpc.calls import HTTP_STATUSES
from tablegate.gateway.query.errors import STATUS_OF_REASON
from tests.kit.gateway_processes.gateway import soon
from tests.kit.gateways_in_process.rest import RestServer
from tests.kit.gateways_in_process.web import HTTP_TIMEOUT_S, Answer, WebClient, client_of, web_clients

RULES = {
    "GetThing": """
        get: "/things/{name}"
        additional_bindings {get: "/things/{name=shelves/*/books/**}:read"}
        additional_bindings {get: "/things/fixed"}
        additional_bindings {get: "/things/{big}:number"}
        additional_bindings {get: "/things/{name}/at/{start_time}"}
        additional_bindings {get: "/any/**"}
        additional_bindings {post: "/things" body: "*"}
        additional_bindings {post: "/things/{inner_thing.big_number}/inner" body: "inner_thing"}
        additional_bindings {put: "/things/{big}/counts" body: "counts" response_body: "counts"}
        additional_bindings {put: "/things/{big}/name" body: "name" response_body: "name"}
        additional_bindings {patch: "/things/{big}" body: "*"}
        additional_bindings {post: "/queries"}
    """,
    "FindThing": 'get: "/found/{name=**}"',
    "WatchThing": 'get: "/watched"',
    "WatchOn": 'get: "/watched/on"',
}


@pytest.fixture(scope="module")
def server() -> Iterator[RestServer]:
    with RestServer(**RULES) as served:
        yield served


@pytest.fixture(params=["http1", "http2"])
def client(request: pytest.FixtureRequest, server: RestServer) -> WebClient:
    return client_of(web_clients(server), request.param)


@pytest.fixture
def ask(server: RestServer) -> Any:
    """A function that returns the JSON of an answer that must be OK."""

    def asked(method: str, target: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        answer = WebClient(server, http2=False).ask(method, target, data)
        assert answer.status == 200, answer
        return answer.json

    return asked


@pytest.fixture
def refused(server: RestServer) -> Any:
    """A function that returns the name of the field that a request is refused for, and the message."""

    def asked(method: str, target: str, body: bytes | None = None) -> tuple[str, str]:
        answer = WebClient(server, http2=False).ask(method, target, body)
        assert answer.status == 400, answer
        error = answer.json["error"]
        assert (error["code"], error["status"], error["details"][0]["reason"]) == (
            *(400, "INVALID_ARGUMENT"),
            "INVALID_FIELD",
        )
        return error["details"][1]["fieldViolations"][0].get("field", ""), error["message"]

    return asked


def lines_of(answer: Answer) -> list[Any]:
    return [json.loads(line) for line in answer.body.splitlines()]


def events_of(answer: Answer) -> list[tuple[str, Any]]:
    """Return name and data of each event."""
    events = []
    for text in answer.body.decode().removesuffix("\n\n").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in text.split("\n"))
        events.append((fields.get("event", "message"), json.loads(fields["data"])))
    return events


def test_get(client):
    answer = client.ask("GET", "/v1/ratings/42")
    assert answer.status == 200
    assert answer.json["rating"]["movieId"] == "42"
    assert (answer.headers["content-type"], answer.headers["cache-control"]) == ("application/json", "no-store")
    assert answer.headers["tablegate-role"] == "owner"


def test_batch_get(client):
    answer = client.ask("POST", "/v1/ratings:batchGet", b'{"keys": [{"movieId": 7}, {"movie_id": "1000"}]}')
    assert [list(result) for result in answer.json["results"]] == [["found"], ["missing"]]


def test_range_by_pages(ask):
    found, token = [], ""
    while True:
        page = ask("GET", f"/v1/ratings?pageSize=30&movie_id_from=5&order=ORDER_DESCENDING&pageToken={token}")
        found += [int(row["movieId"]) for row in page["ratings"]]
        token = page.get("nextPageToken", "")
        if not token:
            break
    assert found == list(range(99, 4, -1))


def test_read_options(ask, refused):
    assert ask("GET", "/v1/ratings/42?readOptions.maxStaleness=60s&read_options.max_wait=1s")["rating"]
    field, message = refused("GET", "/v1/ratings/42?readOptions.latest=true&readOptions.maxStaleness=60s")
    assert field == "readOptions.maxStaleness"
    assert 'oneof "consistency"' in message


def test_no_row(client):
    answer = client.ask("GET", "/v1/ratings/1000")
    assert answer.status == 404
    error = answer.json["error"]
    assert (error["code"], error["status"]) == (404, "NOT_FOUND")
    assert error["details"][0] == {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": "ROW_NOT_FOUND",
        "domain": "tablegate",
        "metadata": {"table": "ratings"},
    }


def test_a_stream_as_lines(client):
    answer = client.ask("GET", "/v1/ratings:scan?minRatingCount=1")
    assert answer.headers["content-type"] == "application/x-ndjson"
    found = [row.get("movieId", "0") for line in lines_of(answer) for row in line.get("ratings", [])]
    assert sorted(map(int, found)) == list(range(100))
    some = client.ask("GET", "/v1/ratings:scan?scanOptions.limit=7")
    assert sum(len(line.get("ratings", [])) for line in lines_of(some)) == 7


def test_a_stream_as_events(client):
    answer = client.ask("GET", "/v1/ratings:scan", accept="text/event-stream")
    assert answer.headers["content-type"] == "text/event-stream"
    *messages, last = events_of(answer)
    assert sum(len(data.get("ratings", [])) for _, data in messages) == 100
    assert last == ("end", {})


def test_an_error_within_a_stream(client):
    error = {"code": 503, "status": "UNAVAILABLE"}
    *messages, last = lines_of(client.ask("GET", "/watched?name=x"))
    assert messages == [{"name": "x"}, {"name": "x"}]
    assert error.items() <= last["error"].items()
    *events, (name, data) = events_of(client.ask("GET", "/watched?name=x", accept="text/event-stream"))
    assert events == [("message", {"name": "x"})] * 2
    assert name == "error"
    assert data == last


def test_an_error_before_a_stream(client):
    for accept in ("*/*", "text/event-stream"):
        answer = client.ask("GET", "/watched", accept=accept)
        assert (answer.status, answer.headers["content-type"]) == (429, "application/json")
        assert (answer.headers["retry-after"], answer.json["error"]["status"]) == ("1", "RESOURCE_EXHAUSTED")


def test_a_stream_without_messages_is_no_error(client):
    answer = client.ask("GET", "/v1/ratings:scan?minAverageRating=6")
    assert answer.status == 200
    assert not [row for line in lines_of(answer) for row in line.get("ratings", [])]


@pytest.mark.parametrize(
    ("target", "thing"),
    [
        ("/things/a", {"name": "a"}),
        ("/things/a%2Fb%20c+d%C3%BC", {"name": "a/b c+dü"}),
        ("/things/a:b", {"name": "a:b"}),
        ("/things/5:number", {"big": "5"}),
        ("/things/5%3Anumber", {"name": "5:number"}),
        ("/things/fixed", {}),
        ("/things/fixed?name=x", {"name": "x"}),
        ("/things/shelves/1/books/2/3:read", {"name": "shelves/1/books/2/3"}),
        ("/things/shelves/1/books:read", {"name": "shelves/1/books"}),
        ("/things/shelves/a%2Fb%20c/books/2%2f:read", {"name": "shelves/a%2Fb c/books/2%2f"}),
        ("/things/a/at/2026-01-31T12:00:00Z", {"name": "a", "startTime": "2026-01-31T12:00:00Z"}),
        ("/any", {}),
        ("/any/thing/at/all?small=3", {"small": 3}),
        ("/things/a?sizes=1&sizes=2&color=COLOR_DARK_RED", {"name": "a", "sizes": [1, 2], "color": "COLOR_DARK_RED"}),
        ("/things/a?third=x%20y+z%26", {"name": "a", "third": "x y z&"}),
        ("/any?innerThing.textValue=&inner_thing.big_number=3", {"innerThing": {"textValue": "", "bigNumber": "3"}}),
        ("/things/a?", {"name": "a"}),
    ],
)
def test_paths_and_parameters(ask, target, thing):
    assert ask("GET", target) == thing


@pytest.mark.parametrize(
    ("method", "target", "body", "thing"),
    [
        ("POST", "/things", {"name": "a", "small": 3}, {"name": "a", "small": 3}),
        ("POST", "/things", None, {}),
        ("PATCH", "/things/5", {"name": "a", "big": "6"}, {"name": "a", "big": "5"}),
        ("POST", "/things/7/inner?small=3", {}, {"small": 3, "innerThing": {"bigNumber": "7"}}),
        ("POST", "/things/7/inner", {"textValue": "t"}, {"innerThing": {"bigNumber": "7", "textValue": "t"}}),
        ("POST", "/queries?name=x", None, {"name": "x"}),
        ("PUT", "/things/7/counts", {"a": 1}, {"a": 1}),
        ("PUT", "/things/7/counts", None, {}),
        ("PUT", "/things/7/name", "x", "x"),
    ],
)
def test_bodies(ask, method, target, body, thing):
    assert ask(method, target, body) == thing


@pytest.mark.parametrize(
    ("method", "target", "body", "field", "words"),
    [
        ("GET", "/v1/ratings/x", None, "movie_id", "is not an int64; send"),
        ("GET", "/things/a?films=1", None, "films", "is no field of Thing"),
        ("GET", "/things/a?%00=1", None, "", "is no field of Thing"),
        ("GET", "/things/a?inners=1", None, "inners", "that a query parameter can give"),
        ("GET", "/things/a?counts.a=1", None, "counts.a", "that a query parameter can give"),
        ("GET", "/things/a?small=1&small=2", None, "small", "given twice"),
        ("GET", "/things/a?is_on=true&isOn=true", None, "isOn", "given twice"),
        ("GET", "/things/a?small=x", None, "small", "is not an int32"),
        ("GET", "/things/a?small", None, "small", "is not an int32"),
        ("GET", "/things/a?name=b", None, "name", "in the path already"),
        ("GET", "/things/a?first=true&third=x", None, "third", 'oneof "choice"'),
        ("GET", "/things/a?third=%FF", None, "", "not UTF-8"),
        ("GET", "/things/%FF", None, "name", "not UTF-8"),
        ("GET", "/things/a", b"{}", "", "does not take"),
        ("POST", "/things?name=a", b"{}", "name", "give it in the body"),
        ("POST", "/things", b"{", "", "no JSON"),
        ("POST", "/things", b'{"small": "x"}', "small", "is not an int32"),
        ("POST", "/things", b'{"films": 1}', "films", "is no field of Thing"),
        ("POST", "/things/7/inner", b"{", "inner_thing", "no JSON"),
        ("POST", "/things/7/inner", b'{"bigNumber": "1"}, "name": "x"', "inner_thing", "no JSON"),
        ("POST", "/things/7/inner", b'{"title": 1}', "innerThing.title", "is no field of Inner"),
        ("POST", "/things/x/inner", b"{}", "inner_thing.big_number", "is not an int64"),
        ("PUT", "/things/7/name", b"3", "name", "is not text"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(refused, method, target, body, field, words):
    found, message = refused(method, target, body)
    assert found == field
    assert words in message


def test_no_value_is_repeated_in_an_error(server):
    answer = WebClient(server, http2=False).ask("GET", "/things/a?small=secret&startTime=secret")
    assert b"secret" not in answer.body


def test_another_http_method(client):
    answer = client.ask("DELETE", "/things/5")
    assert answer.status == 405
    assert set(answer.headers["allow"].split(", ")) == {"GET", "PATCH"}
    assert answer.json["error"]["code"] == 405


def test_other_paths_are_nobodys(client):
    for target in ("/things/a/b", "/things/a/", "/things//", "/v2/ratings/1", "/v1/ratings/", "//"):
        assert client.ask("GET", target).status == 404


def test_a_trailer_goes_with_errors_too(client):
    assert client.ask("GET", "/found/").headers["tablegate-role"] == "owner"
    assert client.ask("GET", "/found/").status == 404


def test_packed_bodies(client):
    packed = gzip.compress(b'{"name": "a"}')
    assert client.ask("POST", "/things", packed, content_encoding="gzip").json == {"name": "a"}
    assert client.ask("POST", "/things", b"{}", content_encoding="gzip").status == 400
    answer = client.ask("POST", "/things", b"{}", content_encoding="br")
    assert (answer.status, answer.headers["accept-encoding"]) == (415, "gzip")


@pytest.mark.parametrize("size", [300_000, 3_000_000])
def test_bodies_that_are_too_large(server, size):
    answer = WebClient(server, http2=False).ask("POST", "/things", b'{"name": "%b"}' % (b"x" * size))
    assert (answer.status, answer.json["error"]["status"]) == (413, "RESOURCE_EXHAUSTED")
    assert "retry-after" not in answer.headers


def test_an_answer_that_json_cannot_say(client):
    answer = client.ask("GET", "/found/year-10000")
    assert (answer.status, answer.json["error"]["status"]) == (500, "INTERNAL")
    first, last = lines_of(client.ask("GET", "/watched?name=year-10000"))
    assert first == {"name": "year-10000"}
    assert last["error"]["code"] == 500


def test_a_client_that_goes_away_ends_its_stream(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=HTTP_TIMEOUT_S)
    connection.request("GET", "/watched/on")
    response = connection.getresponse()
    assert response.readline() == b"{}\n"
    response.close()
    connection.close()
    soon(lambda: server.ended, "the stream ends")


def test_every_error_has_an_http_status():
    assert {*STATUS_OF_REASON.values()} <= {*HTTP_STATUSES}
    assert {*HTTP_STATUSES} == {*code_pb2.Code.values()} - {code_pb2.OK}
