"""Under which names a gateway is served: a page whose own name leads here is not to read."""

import http.client
from contextlib import closing

import grpc
import pytest

from tablegate.gateway.http.server import host_name
from tests.kit.gateways_in_process.web import SERVICE, WebServer


def status(port: int, host: str, path: str = "/v1/ratings/7") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    with closing(connection):
        connection.request("GET", path, headers={"host": host})
        return connection.getresponse().status


def test_other_names_are_misdirected() -> None:
    with WebServer(hosts=("gateway.example", "[::1]")) as server:
        assert status(server.port, f"gateway.example:{server.port}") == 200
        assert status(server.port, "GATEWAY.example") == 200
        assert status(server.port, "[::1]:80") == 200
        for host in ("evil.example", "gateway.example.evil.example", "127.0.0.1", "", "[::2]"):
            assert status(server.port, host) == 421
        assert status(server.port, "evil.example", "/openapi.json") == 421
        # gRPC, which no page speaks, is served by any name: other gateways call by their own.
        with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            assert channel.unary_unary(f"{SERVICE}/GetRating", None, None)(b"\x08\x07", timeout=20)  # type: ignore[arg-type]


def test_without_names_any_is_served() -> None:
    with WebServer() as server:
        assert status(server.port, "anything.example") == 200


@pytest.mark.parametrize(
    ("host", "name"),
    [(b"a.example", b"a.example"), (b"A:1", b"a"), (b"[::1]:1", b"[::1]"), (b"[::A]", b"[::a]"), (b"", b"")],
)
def test_names_of_hosts(host: bytes, name: bytes) -> None:
    assert host_name(host) == name
