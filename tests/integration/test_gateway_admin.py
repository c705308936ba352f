"""`tablegate serve --admin`: what it refuses, and what it serves while its brokers are away."""

import socket
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from tablegate.gateway.cli.gateway import Gateway
from tablegate.gateway.server.app import serve
from tablegate.gateway.server.config import ServeConfig, ServeError
from tablegate.gateway.server.preflight import holder_of, reserve_address, reserve_admin
from tests.kit.gateway_processes.gateway import GatewayProcess
from tests.kit.table.filled import RATINGS

NO_BROKER = "127.0.0.1:1"


def _config(data: Path, admin: str, listen: str = "127.0.0.1:0") -> ServeConfig:
    return ServeConfig(contracts=(RATINGS,), bootstrap=NO_BROKER, data=data, listen=listen, admin=admin)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def test_an_address_in_use_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        admin = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ServeError, match=f'cannot listen on "{admin}": .*in use; .*choose another --admin'):
            serve(_config(tmp_path, admin))


@pytest.mark.parametrize(
    ("listen", "admin"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "localhost"),
        ("0.0.0.0", "127.0.0.1"),
        ("127.0.0.1", "0.0.0.0"),
        ("[::1]", "[::1]"),
    ],
)
def test_the_address_of_the_data_port_is_refused(tmp_path: Path, listen: str, admin: str) -> None:
    port = _free_port()
    config = replace(_config(tmp_path, f"{admin}:{port}", f"{listen}:{port}"), insecure=True)
    with pytest.raises(ServeError, match=rf'--admin ".*:{port}" is the port of --listen; choose another'):
        serve(config)


@pytest.mark.parametrize("admin", ["0.0.0.0:0", "[::]:0"])
def test_plaintext_beyond_loopback_is_refused(tmp_path: Path, admin: str) -> None:
    with pytest.raises(ServeError, match="without TLS would let anyone read it"):
        serve(_config(tmp_path, admin))


def test_two_addresses_of_one_port_may_be_two() -> None:
    data = reserve_address("127.0.0.1:0", insecure=False)
    with data.holder:
        admin = reserve_admin(_config(Path(), f"127.0.0.2:{data.port}"), data)
        assert admin is not None
        with admin.holder:
            assert admin.address == f"127.0.0.2:{data.port}"


@pytest.mark.parametrize("admin", ["", "9090", "127.0.0.1:x"])
def test_odd_addresses_are_refused(tmp_path: Path, admin: str) -> None:
    with pytest.raises(ServeError, match="is no address"):
        serve(_config(tmp_path, admin))


def test_every_worker_answers_for_all(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with GatewayProcess(data, NO_BROKER, options=["--admin", "127.0.0.1:0"]) as gateway:
        [admin] = [line.split()[-1] for line in gateway.lines if line.startswith("admin on ")]
        for _ in range(8):  # each time another connection, and so perhaps the other worker
            assert _asked(admin, "healthz") == (200, "ok\n")
            assert _asked(admin, "readyz") == (503, "not all tables are served; missing: ratings\n")
            status, text = _asked(admin, "metrics")
            assert status == 200
            assert "tablegate_streams 0.0" in text
            assert _asked(admin, "console")[0] == _asked(admin, "console/app.js")[0] == 200
            assert '"name": "ratings"' in _asked(admin, "console/contracts.json")[1]
        with Gateway(admin) as asked:
            assert not asked.status().kafka_reachable
        assert gateway.health() == 2  # load balancers ask at the data port
        address = gateway.address()
        assert address is not None
        assert _asked(address, "metrics")[0] == _asked(address, "readyz")[0] == _asked(address, "console")[0] == 404
        with pytest.raises(grpc.RpcError, match="admin port"):
            gateway.status()
        holder = holder_of(data)
        assert holder is not None
        assert holder.address == admin  # which `tablegate drain` asks


def test_the_numbers_of_an_earlier_run_are_forgotten(tmp_path: Path) -> None:
    """In a container the parent has the same process id in each run, so they would count as those of this one."""
    data = tmp_path / "data"
    with GatewayProcess(data, NO_BROKER, options=["--admin", "127.0.0.1:0"]):
        [earlier] = (data / "processes").glob("worker-0.json")
        of_more_workers = earlier.with_stem("worker-99")
        of_more_workers.write_bytes(earlier.read_bytes())
    with GatewayProcess(data, NO_BROKER, options=["--admin", "127.0.0.1:0"]):
        assert not of_more_workers.exists()


def _asked(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}/{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize(("reflection", "status"), [(True, 200), (False, 404)])
def test_the_only_port_has_the_console_where_contracts_are_public(
    tmp_path: Path, reflection: bool, status: int
) -> None:
    with GatewayProcess(tmp_path / "data", NO_BROKER, reflection=reflection) as gateway:
        address = gateway.address()
        assert address is not None
        assert _asked(address, "console")[0] == _asked(address, "console/contracts.json")[0] == status
