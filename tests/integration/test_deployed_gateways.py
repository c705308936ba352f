"""The gateways of docker-compose.yml as processes: their command lines, with the paths and ports of this machine."""

import secrets
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest

from tablegate.examples import CONTRACTS
from tablegate.examples.demo.kafka import Broker, free_port
from tablegate.gateway.cli.gateway import Gateway
from tests.kit.gateway_processes.changelog import RatingsChangelog, many
from tests.kit.gateway_processes.gateway import GatewayProcess, soon
from tests.kit.programs.deployment import command_line, compose

pytestmark = pytest.mark.jvm

NAMES = ("gateway-1", "gateway-2", "gateway-3")
ROWS = 200
SERVING = 'tablegate_table_serving{table="ratings"} 1.0'


class DeployedGateway(GatewayProcess):
    """A service of docker-compose.yml."""

    def __init__(self, name: str, directory: Path, changelog: RatingsChangelog, port: int, admin_port: int) -> None:
        self.admin_port = admin_port
        super().__init__(directory / name, changelog.bootstrap)
        replacements = {
            "/opt/contracts": str(CONTRACTS),
            "/var/lib/tablegate": str(self.data),
            "/run/secrets": str(directory),
            "0.0.0.0:50051": f"127.0.0.1:{port}",
            "0.0.0.0:50061": f"127.0.0.1:{admin_port}",
            f"{name}:50051": f"127.0.0.1:{port}",
        }
        words = command_line(name, replacements)
        self._command = [sys.executable, "-m", "tablegate.gateway.cli", *words[1:]]
        self._command += ["--bootstrap", changelog.bootstrap, "--tables-topic", changelog.tables_topic]
        self._command += ["--log-file", str(self.log_file), "--workers", "1"]

    def is_ready(self) -> bool:
        """Ask as the readiness probe of Kubernetes does."""
        try:
            return self._get("readyz") == "ok\n"
        except urllib.error.HTTPError as error:
            error.close()
            return False

    def known(self) -> set[str]:
        """Return the gateways that it takes to live."""
        with Gateway(f"127.0.0.1:{self.admin_port}") as admin:
            return {each.record.gateway_id for each in admin.status().gateways if each.alive}

    def metrics(self) -> str:
        """Ask as Prometheus does."""
        return self._get("metrics")

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}/{path}", timeout=30) as answer:
            text: str = answer.read().decode()
        return text


def is_healthy(port: str) -> bool:
    """Return what the health check of a gateway finds at a port."""
    test = compose()["services"]["gateway-1"]["healthcheck"]["test"]
    command = [word.replace("50061", port) for word in test[1:]]
    return subprocess.run(command, check=False, stderr=subprocess.DEVNULL, timeout=30).returncode == 0


def test_three_gateways_answer_for_one_table(broker: Broker, tmp_path: Path) -> None:
    changelog = RatingsChangelog(broker.bootstrap)
    changelog.publish()
    changelog.put(dict(many(ROWS)))
    changelog.mark()
    (tmp_path / "token-key").write_text(secrets.token_hex(32))
    with ExitStack() as stack:
        gateways = [
            stack.enter_context(DeployedGateway(name, tmp_path, changelog, free_port(), free_port())) for name in NAMES
        ]
        for gateway in gateways:
            soon(gateway.is_ready, "the gateway is ready", 60)
            soon(lambda gateway=gateway: gateway.rows() == changelog.rows, "it answers for the whole table")  # type: ignore[misc]
            soon(lambda gateway=gateway: SERVING in gateway.metrics(), "Prometheus is told")  # type: ignore[misc]
            soon(lambda gateway=gateway: gateway.known() == set(NAMES), "it knows the others")  # type: ignore[misc]
            assert is_healthy(str(gateway.admin_port))
        assert not is_healthy(str(free_port()))
        assert [gateway.stop() for gateway in gateways] == [0, 0, 0]
