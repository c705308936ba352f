"""`tablegate serve --access` as a user runs it: keys, rules, changes of the file while it runs, the audit log."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tablegate.examples.demo.kafka import Broker
from tests.kit.gateway_processes.foreign import ForeignTables
from tests.kit.gateway_processes.gateway import GatewayProcess, soon
from tests.kit.programs.kafka import new_topic
from tests.kit.table.filled import ROOT
from tests.kit.table.foreign import FOREIGN

RULES = """
[api_keys]
file = "keys.toml"

[audit]
file = "audit.log"

[[rule]]
roles = ["operator"]
tables = ["*"]
rights = ["status", "reflection"]

[[rule]]
tables = ["orders"]
rights = ["reflection"]
rows = { customer = "tenant" }
hide = ["quantity"]
"""


def command(*words: str, credential: Path | None = None) -> subprocess.CompletedProcess[str]:
    shown = [] if credential is None else ["--credential", str(credential)]
    return subprocess.run(
        [sys.executable, "-m", "tablegate.gateway.cli", *shown, *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "200"},
        check=False,
        timeout=60,
    )


def new_key(directory: Path, name: str, claims: str) -> Path:
    """Make an API key by the command, with claims; return the file that has it."""
    made = command("access", "new-key", name)
    assert made.returncode == 0, made.stderr
    with (directory / "keys.toml").open("a") as keys:
        keys.write(f"{made.stdout}claims = {claims}\n")
    file = directory / name
    file.write_text(next(word for word in made.stderr.split() if word.startswith("tg_")))
    return file


@pytest.mark.jvm
def test_a_gateway_shows_each_what_is_his(tmp_path: Path, broker: Broker) -> None:
    ann = new_key(tmp_path, "ann", '{ tenant = "ann" }')
    operator = new_key(tmp_path, "operator", '{ roles = ["operator"] }')
    access = tmp_path / "access.toml"
    access.write_text(RULES)
    tables = ForeignTables(tmp_path, broker.bootstrap)
    topic = new_topic(broker.bootstrap, 3, "orders", cleanup_policy="compact")
    values = {f"o{number}": {"customer": "ann" if number % 2 else "ben", "quantity": number} for number in range(6)}
    tables.write(topic, [(key.encode(), key.encode(), json.dumps(each).encode()) for key, each in values.items()])
    tables.add("orders", "--topic", topic, "--key", "utf8", "--value", "json")
    gateway = GatewayProcess(
        tmp_path / "gateway",
        broker.bootstrap,
        contract=FOREIGN,
        tables_topic=tables.tables_topic,
        reflection=True,
        options=("--access", str(access)),
    )
    with gateway:
        at = ("--address", str(gateway.address()), "--json")

        def rows(credential: Path) -> dict[str, int]:
            shown = command("scan", "orders", *at, credential=credential)
            return {row["order_id"]: int(row["quantity"]) for row in map(json.loads, shown.stdout.splitlines())}

        soon(lambda: len(rows(operator)) == 6, "all orders are served")
        assert rows(operator) == {key: each["quantity"] for key, each in values.items()}
        assert rows(ann) == {"o1": 0, "o3": 0, "o5": 0}
        assert "NOT_FOUND" in command("get", "orders", "order_id=o2", *at, credential=ann).stderr
        assert "UNAUTHENTICATED" in command("get", "orders", "order_id=o1", *at).stderr
        assert "PERMISSION_DENIED" in command("status", *at, credential=ann).stderr
        assert command("status", *at, credential=operator).returncode == 1  # the other tables have no manifest

        following = subprocess.Popen(
            [sys.executable, "-m", "tablegate.gateway.cli", "--credential", str(ann), "subscribe", "orders", *at],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert following.stdout is not None
        assert following.stderr is not None
        try:
            while json.loads(following.stdout.readline())["event"] != "current":
                pass
            access.write_text(RULES.replace("rows =", "row ="))  # a slip: what was read before counts
            assert gateway.process is not None
            soon(lambda: '"row\\" is unknown' in gateway.log_file.read_text(), "the slip is in the log")
            assert rows(ann) == {"o1": 0, "o3": 0, "o5": 0}
            access.write_text(RULES.split("[[rule]]\ntables")[0])
            assert following.wait(20) == 1
            refusal = "PERMISSION_DENIED (NOT_ALLOWED): you may not call this method; ask the operator"
            assert refusal in following.stderr.read()
        finally:
            following.kill()
            following.communicate()
        assert rows(operator)
    lines = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    refused = {(line["principal"], line["method"].rpartition("/")[2]) for line in lines if not line["allowed"]}
    assert refused >= {(None, "ServerReflectionInfo"), ("key ann", "GetStatus"), ("key ann", "SubscribeOrders")}
    assert ("key ann", "orders") in {(line["principal"], line["table"]) for line in lines if line["allowed"]}
    assert not any("o2" in line or "o3" in line for line in (tmp_path / "audit.log").read_text().splitlines())
