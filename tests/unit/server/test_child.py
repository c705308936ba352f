"""How a child of the gateway is started."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tablegate.gateway.contract.descriptors import load_descriptors
from tablegate.gateway.server.child import REPLICATOR, WORKER, child_command

SHADOWS = ("tablegate", "gateway", "google", "grpc_tools", "json", "logging", "lmdb", "asyncio", "confluent_kafka")
CONTRACT = """\
syntax = "proto3";
package shadows.v1;
import "google/protobuf/timestamp.proto";
import "tablegate/v1/options.proto";
message Row { google.protobuf.Timestamp time = 1; }
"""


@pytest.fixture
def shadowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: with modules and packages that are named like those of the gateway, and must not run."""
    for name in SHADOWS:
        package = tmp_path / name
        package.mkdir()
        for path in (package / "__init__.py", tmp_path / f"{name}.py"):
            path.write_text(
                f'from pathlib import Path\nPath({str(tmp_path)!r}, "ran-{name}").touch()\nraise SystemExit(77)'
            )
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("role", [WORKER, REPLICATOR])
def test_nothing_in_the_working_directory_shadows_what_a_child_imports(role: str, shadowed: Path) -> None:
    """It comes as far as its settings, of which it gets none."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    child = subprocess.run(
        child_command(role), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, env=environment
    )
    assert "JSONDecodeError" in child.stderr
    assert child.returncode == 1
    assert not list(shadowed.glob("ran-*"))


@pytest.mark.parametrize("role", [WORKER, REPLICATOR])
def test_a_child_that_crashes_in_c_code_says_what_ran(role: str) -> None:
    program = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    *options, _, _, _ = child_command(role)  # but for -m, the module and the role
    crashed = subprocess.run([*options, "-c", program], capture_output=True, text=True, check=False)
    assert crashed.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in crashed.stderr


def test_nothing_in_the_working_directory_shadows_what_compiles_a_contract(shadowed: Path) -> None:
    contract = shadowed / "shadows.proto"
    contract.write_text(CONTRACT)
    assert "shadows.proto" in [file.name for file in load_descriptors(contract).file]
    assert not list(shadowed.glob("ran-*"))
