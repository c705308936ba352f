"""The admin port in this process: probes, metrics, status, health; with TLS it asks nobody for a certificate."""

import hashlib
import json
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner
from grpc_health.v1 import health_pb2

from tablegate.gateway.access.gate import Gate
from tablegate.gateway.http.rpc.calls import Calls
from tablegate.gateway.http.server import HttpServer
from tablegate.gateway.http.tls import TlsFiles
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.server.admin import AdminServer, moved_methods, unready_reason
from tablegate.gateway.server.child import ProcessFile
from tablegate.gateway.server.health import Health
from tablegate.gateway.server.metadata import history_methods, metadata_methods, reflection_methods, status_methods
from tablegate.gateway.server.metrics import Metrics
from tablegate.gateway.server.worker import WatchedStore
from tablegate.gateway.stores.notifier import Notifier
from tablegate.v1.status_pb2 import GetStatusResponse, TableStatus
from tests.kit.command_line import COMMAND
from tests.kit.gateways_in_process.threaded import ServerThread
from tests.kit.http.certificates import Authority
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import SIGNER, catalogue_of, rating, ratings_table

STATUS = "/tablegate.v1.GatewayService/GetStatus"
EXPLAINED = "examples.ratings.v1.RatingsService/GetRating"


class Admin:
    """What an admin port serves, of a gateway with one table; `missing`: why it is not ready."""

    def __init__(
        self,
        directory: Path,
        tls: TlsFiles | None = None,
        *,
        access: Path | None = None,
        hosts: tuple[str, ...] = (),
    ) -> None:
        self.missing = ""
        self.gate = None if access is None else Gate(access, catalogue_of())
        self._hosts = hosts
        self._directory = directory
        self._tls = tls
        self._store = MemoryStore()
        ratings_table(self._store).put([rating(362)])
        status = GetStatusResponse(kafka_reachable=True, tables=[TableStatus(table="ratings", serving=True)])
        self._store.set_status(status.SerializeToString())

    def server(self) -> AdminServer:
        """Return its server."""
        catalogue = catalogue_of()
        health = Health(catalogue)
        health.update(health.tables)
        return AdminServer(
            catalogue,
            {
                **health.methods(),
                **status_methods(self._store),
                **metadata_methods(catalogue, self._store, SIGNER, Notifier()),
            },
            "127.0.0.1:0",
            metrics=Metrics(Calls(), self._store, ProcessFile(self._directory, name="worker-0", parent=1), dict),
            unready_reason=lambda: self.missing,
            tls=self._tls,
            data_port=50051,
            queries=query_methods(catalogue, self._store, SIGNER, Notifier()),
            gate=self.gate,
            hosts=self._hosts,
        )


@pytest.fixture
def admin(tmp_path: Path) -> Admin:
    return Admin(tmp_path)


@pytest.fixture
def port(admin: Admin) -> Iterator[int]:
    with ServerThread(admin.server) as server:
        yield server.port


def _asked(
    url: str,
    *,
    method: str = "GET",
    body: bytes | None = None,
    context: ssl.SSLContext | None = None,
    **headers: str,
) -> tuple[int, str]:
    request = urllib.request.Request(url, body, {"content-type": "application/json", **headers}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_probes(admin: Admin, port: int) -> None:
    url = f"http://127.0.0.1:{port}"
    assert _asked(f"{url}/healthz") == _asked(f"{url}/readyz?verbose") == (200, "ok\n")
    admin.missing = "not all tables are served; missing: ratings"
    assert _asked(f"{url}/readyz") == (503, "not all tables are served; missing: ratings\n")
    assert _asked(f"{url}/readyz", method="HEAD") == (503, "")
    assert _asked(f"{url}/healthz") == (200, "ok\n")
    assert _asked(f"{url}/readyz", method="POST", body=b"") == (405, "probes ask by GET\n")
    assert _asked(f"{url}/")[0] == 404


def test_a_profile_says_where_a_worker_is(port: int) -> None:
    status, text = _asked(f"http://127.0.0.1:{port}/profile?seconds=1")
    assert status == 200
    stacks = [line.rpartition(" ") for line in text.splitlines()]
    assert all(stack.count(";") and int(count) > 0 for stack, _, count in stacks)
    assert any("asyncio.base_events.BaseEventLoop.run_forever" in stack for stack, _, _ in stacks)
    assert not any(stack.startswith("profile;") for stack, _, _ in stacks)


@pytest.mark.parametrize("goes", [True, False])
def test_a_profile_ends_when_its_client_goes_or_its_worker_drains(admin: Admin, goes: bool) -> None:
    made = list[AdminServer]()

    def make() -> HttpServer:
        made.append(admin.server())
        return made[0]

    with ServerThread(make) as server, socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b"GET /profile?seconds=60 HTTP/1.1\r\nhost: localhost\r\n\r\n")
        _until(lambda: made[0]._profiles._stop is not None)
        url = f"http://127.0.0.1:{server.port}/profile?seconds=1"
        assert _asked(url) == (503, "another profile is made; ask again when it is done\n")
        if goes:
            client.close()
        else:
            made[0]._profiles.end()
            client.settimeout(30)
            assert client.recv(15) == b"HTTP/1.1 200 OK"
        _until(lambda: made[0]._profiles._stop is None)
        assert _asked(url)[0] == 200


@pytest.mark.parametrize("query", ["seconds=0", "seconds=61", "seconds=", "seconds=1e1", "second=1", "seconds=1&x=2"])
def test_a_profile_that_cannot_be_is_refused(port: int, query: str) -> None:
    status, text = _asked(f"http://127.0.0.1:{port}/profile?{query}")
    assert (status, text) == (400, "/profile takes seconds=N alone; send a number from 1 to 60\n")
    assert _asked(f"http://127.0.0.1:{port}/profile", method="POST", body=b"")[0] == 405


def _until(holds: Callable[[], bool]) -> None:
    while not holds():
        time.sleep(0.05)


def test_what_is_missing_is_named() -> None:
    health, store = Health(catalogue_of()), MemoryStore()
    away = WatchedStore(lambda: store)
    assert unready_reason(health, away, is_late=True) == "the store is away: the store is not open yet"
    assert unready_reason(health, store, is_late=True) == "the replicator hangs"
    assert unready_reason(health, store, is_late=False) == "not all tables are served; missing: ratings"
    health.update(health.tables)
    assert not unready_reason(health, store, is_late=False)
    health.drain()
    assert unready_reason(health, store, is_late=False) == "the gateway drains"


def test_metrics_and_status(port: int) -> None:
    url = f"http://127.0.0.1:{port}"
    assert 'tablegate_table_serving{table="ratings"} 1.0' in _asked(f"{url}/metrics")[1]
    status, body = _asked(f"{url}{STATUS}", method="POST", body=b"{}")  # Connect
    assert (status, json.loads(body)["tables"][0]["table"]) == (200, "ratings")
    assert _asked(f"{url}/v1/ratings/362")[0] == 404
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check", None, health_pb2.HealthCheckResponse.FromString)
        assert check(b"", timeout=30).status == health_pb2.HealthCheckResponse.SERVING


def test_commands_ask_the_admin_port(port: int) -> None:
    shown = CliRunner().invoke(COMMAND, ["status", "--address", f"127.0.0.1:{port}", "--json"])
    assert [table["table"] for table in json.loads(shown.stdout)["tables"]] == ["ratings"]
    address = ("--address", f"127.0.0.1:{port}", "--json")
    explained = CliRunner().invoke(COMMAND, ["explain", EXPLAINED, '{"movieId": 362}', *address])
    assert json.loads(explained.stdout)["table"] == "ratings"


@pytest.fixture
def data_port() -> Iterator[int]:
    """That of a gateway with an admin port."""

    def server() -> HttpServer:
        catalogue, store = catalogue_of(), MemoryStore()
        methods = {
            **query_methods(catalogue, store, SIGNER, Notifier()),
            **moved_methods(history_methods(catalogue, store, SIGNER, Notifier())),
            **reflection_methods(catalogue),
        }
        return HttpServer(methods, "127.0.0.1:0")

    with ServerThread(server) as thread:
        yield thread.port


@pytest.mark.parametrize("words", [("status",), ("explain", EXPLAINED)], ids=lambda words: words[0])
def test_the_data_port_says_where_to_ask(data_port: int, words: tuple[str, ...]) -> None:
    refused = CliRunner().invoke(COMMAND, [*words, "--address", f"127.0.0.1:{data_port}"])
    assert refused.exit_code == 1
    text = "UNIMPLEMENTED (NOT_SERVED): this gateway answers it at its admin port, of --admin; ask there"
    assert text in " ".join(refused.stderr.split())


def test_tables_are_listed_where_the_status_is_elsewhere(data_port: int) -> None:
    shown = CliRunner().invoke(COMMAND, ["tables", "--address", f"127.0.0.1:{data_port}", "--json"])
    table = json.loads(shown.stdout)
    assert table["table"] == "ratings"
    assert "serving" not in table


def test_with_mtls_on_the_data_port_probes_need_no_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue()
    files = TlsFiles(pair.certificate, pair.key, client_ca=authority.certificate)
    server: Callable[[], HttpServer] = Admin(tmp_path, files).server
    with ServerThread(server) as thread:
        context = ssl.create_default_context(cafile=authority.certificate)
        assert _asked(f"https://127.0.0.1:{thread.port}/readyz", context=context) == (200, "ok\n")
        assert _asked(f"https://127.0.0.1:{thread.port}/console", context=context)[0] == 200
        url = f"https://127.0.0.1:{thread.port}/{EXPLAINED}"
        assert _asked(url, method="POST", body=QUESTION, context=context)[0] == 404, (
            "who has no certificate gets no row"
        )


# The console's questions.

QUESTION = b'{"movieId": "362"}'


def _rating_at(port: int, **headers: str) -> tuple[int, str]:
    return _asked(f"http://127.0.0.1:{port}/{EXPLAINED}", method="POST", body=QUESTION, **headers)


def test_the_console_asks_for_rows_by_connect_alone(port: int) -> None:
    status, body = _rating_at(port)
    assert (status, json.loads(body)["rating"]["movieId"]) == (200, "362")
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary(f"/{EXPLAINED}", None, None)(b"", timeout=30)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert _asked(f"http://127.0.0.1:{port}/v1/ratings:scan")[0] == 404


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[int]:
    """The port of a gateway that lets one key to the rows."""
    digest = hashlib.sha256(b"the-key").hexdigest()
    (tmp_path / "keys.toml").write_text(f'[[key]]\nname = "ann"\nsha256 = "{digest}"\n')
    access = tmp_path / "access.toml"
    access.write_text('[api_keys]\nfile = "keys.toml"\n[[rule]]\nprincipals = ["key ann"]\ntables = ["*"]\n')
    admin = Admin(tmp_path, access=access)
    assert admin.gate is not None
    with ServerThread(admin.server) as server:
        yield server.port
    admin.gate.close()


def test_rows_need_the_right_that_they_need_at_the_data_port(guarded: int) -> None:
    assert _rating_at(guarded)[0] == 401
    assert _rating_at(guarded, authorization="Bearer another")[0] == 401
    assert _rating_at(guarded, authorization="Bearer the-key")[0] == 200
    assert _rating_at(guarded, **{"x-api-key": "the-key"})[0] == 200
    url = f"http://127.0.0.1:{guarded}"
    assert _asked(f"{url}{STATUS}", method="POST", body=b"{}")[0] == 200, "status needs none here"
    assert _asked(f"{url}/console/contracts.json")[0] == _asked(f"{url}/metrics")[0] == 200


def test_a_page_whose_own_name_leads_to_the_port_reads_nothing(port: int) -> None:
    url = f"http://127.0.0.1:{port}"
    assert _rating_at(port, host="localhost:50061")[0] == 200
    assert _rating_at(port, host="evil.example:50061")[0] == 421
    assert _asked(f"{url}{STATUS}", method="POST", body=b"{}", host="evil.example")[0] == 421
    assert _asked(f"{url}/metrics", host="evil.example")[0] == 421


def test_rows_are_for_the_hosts_of_the_data_port(tmp_path: Path) -> None:
    with ServerThread(Admin(tmp_path, hosts=("gateway.example",)).server) as server:
        assert _rating_at(server.port, host="evil.example")[0] == 421
        assert _rating_at(server.port, host="gateway.example:50061")[0] == 200
        assert _asked(f"http://127.0.0.1:{server.port}/readyz")[0] == 200, "probes ask by an address"


@pytest.mark.parametrize("method", ["OPTIONS", "POST"])
def test_pages_of_other_origins_may_read_nothing(port: int, method: str) -> None:
    """A preflight is no call, and no answer allows an origin."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{EXPLAINED}", QUESTION, method=method)
    request.add_header("origin", "https://evil.example")
    request.add_header("access-control-request-method", "POST")
    request.add_header("content-type", "application/json")
    try:
        answer = urllib.request.urlopen(request, timeout=30)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        assert "access-control-allow-origin" not in answer.headers


def test_the_command_says_where_the_console_is(port: int) -> None:
    shown = CliRunner().invoke(COMMAND, ["console", "--address", f"127.0.0.1:{port}"])
    assert (shown.exit_code, shown.stdout) == (0, f"http://127.0.0.1:{port}/console\n")


def test_the_command_says_where_no_console_is(data_port: int) -> None:
    refused = CliRunner().invoke(COMMAND, ["console", "--address", f"127.0.0.1:{data_port}"])
    assert refused.exit_code == 1
    assert "has no console (HTTP 404): name the address of its --admin" in " ".join(refused.stderr.split())
    refused = CliRunner().invoke(COMMAND, ["console", "--address", "127.0.0.1:1"])
    assert "no gateway answers at 127.0.0.1:1 " in " ".join(refused.stderr.split())
    refused = CliRunner().invoke(COMMAND, ["console", "--address", "nowhere"])
    assert '"nowhere" is not an address' in " ".join(refused.stderr.split())


def test_the_command_trusts_the_ca_that_it_is_given(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue()
    with ServerThread(Admin(tmp_path, TlsFiles(pair.certificate, pair.key)).server) as thread:
        words = ["console", "--address", f"https://127.0.0.1:{thread.port}"]
        shown = CliRunner().invoke(COMMAND, ["--ca", str(authority.certificate), *words])
        assert shown.stdout == f"https://127.0.0.1:{thread.port}/console\n"
        refused = CliRunner().invoke(COMMAND, words)
        assert refused.exit_code == 1
        assert "certificate verify failed" in " ".join(refused.stderr.split())
