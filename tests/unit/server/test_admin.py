"""The admin port in this process: probes, metrics, status, health; with TLS it asks nobody for a certificate."""

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner
from grpc_health.v1 import health_pb2

from tablegate.gateway.http.rpc.calls import Calls
from tablegate.gateway.http.server import HttpServer
from tablegate.gateway.http.tls import TlsFiles
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.server.admin import admin_server, moved_methods, unready_reason
from tablegate.gateway.server.child import ProcessFile
from tablegate.gateway.server.health import Health
from tablegate.gateway.server.metadata import metadata_methods, reflection_methods, status_methods
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

    def __init__(self, directory: Path, tls: TlsFiles | None = None) -> None:
        self.missing = ""
        self._directory = directory
        self._tls = tls
        self._store = MemoryStore()
        ratings_table(self._store).put([rating(362)])
        status = GetStatusResponse(kafka_reachable=True, tables=[TableStatus(table="ratings", serving=True)])
        self._store.set_status(status.SerializeToString())

    def server(self) -> HttpServer:
        """Return its server."""
        catalogue = catalogue_of()
        health = Health(catalogue)
        health.update(health.tables)
        return admin_server(
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
        )


@pytest.fixture
def admin(tmp_path: Path) -> Admin:
    return Admin(tmp_path)


@pytest.fixture
def port(admin: Admin) -> Iterator[int]:
    with ServerThread(admin.server) as server:
        yield server.port


def _asked(
    url: str, *, method: str = "GET", body: bytes | None = None, context: ssl.SSLContext | None = None
) -> tuple[int, str]:
    request = urllib.request.Request(url, body, {"content-type": "application/json"}, method=method)
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


def test_metrics_and_status_without_queries(port: int) -> None:
    url = f"http://127.0.0.1:{port}"
    assert 'tablegate_table_serving{table="ratings"} 1.0' in _asked(f"{url}/metrics")[1]
    status, body = _asked(f"{url}{STATUS}", method="POST", body=b"{}")  # Connect
    assert (status, json.loads(body)["tables"][0]["table"]) == (200, "ratings")
    assert _asked(f"{url}/{EXPLAINED}", method="POST", body=b"{}")[0] == 404
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
            **moved_methods(),
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
