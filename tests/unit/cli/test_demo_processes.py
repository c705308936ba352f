"""The processes that demos start."""

import json
import sys
from pathlib import Path

import pytest

from tablegate.examples.demo.processes import ChildProcess
from tests.kit.gateway_processes.gateway import soon

SHOW = "import json, os; print(json.dumps(sorted(name for name in os.environ if name.startswith('TABLEGATE_'))))"


def test_options_in_the_environment_are_not_those_of_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TABLEGATE_KAFKA", "TABLEGATE_SERVE_REPLICAS", "TABLEGATE_CACHE"):
        monkeypatch.setenv(name, "x")
    program = (sys.executable, "-c")
    with ChildProcess("child", tmp_path / "log", SHOW, program=program, environment={"TABLEGATE_OWN": "y"}):
        soon(lambda: (tmp_path / "log").read_text().endswith("\n"), "it has written")
    assert json.loads((tmp_path / "log").read_text()) == ["TABLEGATE_CACHE", "TABLEGATE_OWN"]
