"""Under which names a gateway is served: a page whose own name leads here is not to read."""

import http.client
from contextlib import closing

import grpc
import pytest

from tablegate.gateway.http.server import ServedHosts, host_name
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


def test_an_address_of_this_machine_alone_is_no_place_for_pages_of_others() -> None:
    with WebServer() as server:  # it listens on 127.0.0.1
        for host in ("localhost", f"LOCALHOST:{server.port}", "ratings.localhost", "127.0.0.1", "[::1]:80", "10.0.0.7"):
            assert status(server.port, host) == 200
        for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "notlocalhost", "[evil]"):
            assert status(server.port, host) == 421
        with grpc.insecure_channel(f"127.0.0.1:{server.port}", [("grpc.default_authority", "a.example")]) as channel:
            assert channel.unary_unary(f"{SERVICE}/GetRating", None, None)(b"\x08\x07", timeout=20)  # type: ignore[arg-type]


@pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", "10.0.0.7:1", "gateway.example:1"])
def test_elsewhere_any_name_is_served(address: str) -> None:
    assert b"anything.example" in ServedHosts(address)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.8.0.1:1", "[::1]:1", "localhost:1"])
def test_which_addresses_are_of_this_machine_alone(address: str) -> None:
    assert b"anything.example" not in ServedHosts(address)
    assert b"anything.example" in ServedHosts(address, ("anything.example",))


@pytest.mark.parametrize(
    ("host", "name"),
    [(b"a.example", b"a.example"), (b"A:1", b"a"), (b"[::1]:1", b"[::1]"), (b"[::A]", b"[::a]"), (b"", b"")],
)
def test_names_of_hosts(host: bytes, name: bytes) -> None:
    assert host_name(host) == name
