"""Prometheus, as its users run it: it scrapes real processes, and evaluates the alerts of `deploy`."""

import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import yaml

from tablegate.examples.demo.kafka import free_port
from tests.kit.docs.pages import ROOT
from tests.kit.gateway_processes.gateway import soon

ALERTS = ROOT / "deploy/prometheus/alerts.yml"
IS_INSTALLED = shutil.which("prometheus") is not None


def _impatient(alerts: Path, shorter: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the alerts as they are, but that none waits before it fires, and for the times that are to be shorter."""
    rules: Mapping[str, Any] = yaml.safe_load(alerts.read_text())
    expressions = " ".join(rule["expr"] for group in rules["groups"] for rule in group["rules"])
    assert all(time in expressions for time in shorter), "a time that no alert has"
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule["for"] = "0s"
            for old, new in shorter.items():
                rule["expr"] = rule["expr"].replace(old, new)
    return rules


class Prometheus:
    """Scrapes targets, HOST:PORT by name of the job, each second. Alerts fire at once; all else of them is as it is.

    `shorter`: but for these parts of their expressions, each by what it is to be. It keeps exemplars.
    """

    def __init__(
        self, directory: Path, targets: Mapping[str, list[str]], *, shorter: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        directory.mkdir()
        self._directory = directory
        self._address = f"127.0.0.1:{free_port()}"
        (directory / "alerts.yml").write_text(yaml.safe_dump(_impatient(ALERTS, shorter)))
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["alerts.yml"],
            "scrape_configs": [
                {"job_name": name, "static_configs": [{"targets": addresses}]} for name, addresses in targets.items()
            ],
        }
        (directory / "prometheus.yml").write_text(yaml.safe_dump(config))

    def __enter__(self) -> Self:
        command = ["prometheus", f"--config.file={self._directory / 'prometheus.yml'}"]
        command += [f"--storage.tsdb.path={self._directory / 'data'}", f"--web.listen-address={self._address}"]
        command += ["--enable-feature=exemplar-storage"]
        with (self._directory / "log").open("w") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            soon(self._is_ready, "Prometheus is ready", 60)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(30)

    def firing(self) -> dict[str, set[str]]:
        """Return the alerts that fire, each with the tables, limits or targets that it is about."""
        found: dict[str, set[str]] = {}
        for alert in self._asked("alerts")["alerts"]:
            if alert["state"] == "firing":
                labels = alert["labels"]
                about = labels.get("limit") or labels.get("method") or labels.get("table") or labels["instance"]
                found.setdefault(labels["alertname"], set()).add(about)
        return found

    def value(self, expression: str) -> float | None:
        """Return the value of an expression with one result; None where it has none."""
        result = self._asked(f"query?{urllib.parse.urlencode({'query': expression})}")["result"]
        return float(result[0]["value"][1]) if result else None

    def exemplars(self, metric: str) -> list[Mapping[str, str]]:
        """Return the labels of a metric's exemplars."""
        query = urllib.parse.urlencode({"query": metric, "start": 0, "end": time.time() + 60})
        return [one["labels"] for series in self._asked(f"query_exemplars?{query}") for one in series["exemplars"]]

    def wait_for(self, alert: str, about: str, seconds: float = 180.0) -> None:
        """Wait until an alert fires."""
        soon(lambda: about in self.firing().get(alert, ()), f"{alert} fires about {about}", seconds)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self._address}/-/ready", timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _asked(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://{self._address}/api/v1/{path}", timeout=30) as answer:
            return json.load(answer)["data"]
