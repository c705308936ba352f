from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, cast

import pytest

from tablegate.gateway.http.cors import Cors
from tablegate.gateway.http.h1_exchange import Http1Exchange
from tests.kit.gateways_in_process.web import SERVICE, WebClient, WebServer, client_of, web_clients

PAGE = "https://shop.example"
GET_RATING = f"{SERVICE}/GetRating"
ASKED = "content-type, connect-protocol-version, x-grpc-web"


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, WebServer]]:
    with ExitStack() as stack:
        origins = {"one": (PAGE,), "any": ("*",), "none": ()}
        yield {name: stack.enter_context(WebServer(origins=allowed)) for name, allowed in origins.items()}


@pytest.fixture(params=["http1", "http2"])
def clients(request: pytest.FixtureRequest, servers: dict[str, WebServer]) -> dict[str, WebClient]:
    return {name: client_of(web_clients(server), request.param) for name, server in servers.items()}


def _preflight(client: WebClient, **headers: str) -> dict[str, str]:
    asked = {"access_control_request_method": "POST", "access_control_request_headers": ASKED, **headers}
    answer = client.ask("OPTIONS", GET_RATING, None, **asked)
    assert answer.body == b"" or answer.status == 405
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control-")}


def test_a_preflight_allows_what_was_asked(clients: dict[str, WebClient]) -> None:
    for name, origin in (("one", PAGE), ("any", "*")):
        assert _preflight(clients[name], origin=PAGE) == {
            "access-control-allow-origin": origin,
            "access-control-allow-methods": "GET, POST, PUT, PATCH, DELETE",
            "access-control-allow-headers": ASKED,
            "access-control-max-age": "7200",
        }


def test_a_preflight_of_others_allows_nothing(clients: dict[str, WebClient]) -> None:
    assert _preflight(clients["one"], origin="https://other.example") == {}
    assert _preflight(clients["one"], origin=f"{PAGE}.evil.example") == {}
    assert _preflight(clients["one"], origin="null") == {}
    assert _preflight(clients["one"]) == {}
    assert _preflight(clients["none"], origin=PAGE) == {}
    answer = clients["one"].ask("OPTIONS", GET_RATING, origin=PAGE)
    assert (answer.status, answer.headers["allow"]) == (405, "GET, POST")


def test_names_of_headers_that_are_none_are_not_sent_back(clients: dict[str, WebClient]) -> None:
    for asked in ("x\tevil", "a(b)", '"x"'):
        allowed = _preflight(clients["any"], origin=PAGE, access_control_request_headers=asked)
        assert "access-control-allow-headers" not in allowed


def test_answers_may_be_read_by_allowed_origins_alone(clients: dict[str, WebClient]) -> None:
    for body in ('{"movieId":7}', '{"movieId":-3}', "no JSON"):
        answer = clients["one"].post(GET_RATING, body, "application/json", origin=PAGE)
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert answer.headers["access-control-expose-headers"] == "*"
        assert answer.headers["vary"] == "origin"
        answer = clients["any"].post(GET_RATING, body, "application/json", origin=PAGE)
        assert answer.headers["access-control-allow-origin"] == "*"
        for client, headers in (
            (clients["one"], {"origin": "https://other.example"}),
            (clients["one"], {}),
            (clients["none"], {"origin": PAGE}),
        ):
            answer = client.post(GET_RATING, body, "application/json", **headers)
            assert not any(name.startswith("access-control-") for name in answer.headers)


def test_streams_and_their_ends_are_as_without_cors(clients: dict[str, WebClient]) -> None:
    answer = clients["one"].post(
        "/test.Service/BreakOff", b"\0\0\0\0\0", "application/grpc-web+proto", origin=PAGE, grpc_timeout="5S"
    )
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert b"grpc-status: 14\r\n" in answer.body
    answer = clients["one"].post("/test.Service/Wait", b"", "application/proto", origin=PAGE, connect_timeout_ms="50")
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (504, PAGE)


def test_a_body_that_is_let_go_is_kept_nowhere() -> None:
    inside = Http1Exchange(cast(Any, None), b"POST", b"/", {b"origin": PAGE.encode()}, http10=False)
    inside.body = b"a request"
    exchange = Cors(("*",)).wrap(inside)
    assert exchange.body == b"a request"
    exchange.body = b""
    assert inside.body == b""
