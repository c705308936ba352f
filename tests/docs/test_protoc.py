"""The commands by which pages say to generate Python: they find all that a contract imports."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.docs.pages import DOCS, ROOT

pytest.importorskip("grpc_tools", reason="the compiler is not installed")

PAGES = (ROOT / "clients" / "python" / "README.md", DOCS / "how-to" / "subscribe-from-python.md")
STARTER = ROOT / "gateway" / "tablegate" / "gateway" / "cli" / "starter-project" / "orders.proto"

_COMMAND = re.compile(r"^    python (-m grpc_tools\.protoc (?:.*\\\n)*.*)$", re.MULTILINE)


def _commands(page: Path) -> list[str]:
    return [command.replace("\\\n", " ") for command in _COMMAND.findall(page.read_text())]


def _run(command: str, directory: Path, out: Path) -> None:
    arguments = [
        f"{option}={out}" if (option := word.partition("=")[0]).endswith("_out") else word
        for word in shlex.split(command)
    ]
    done = subprocess.run(
        [sys.executable, "-P", *arguments], cwd=directory, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_with_what_pip_installs(page: Path, tmp_path: Path) -> None:
    site, shop, out = tmp_path / "site", tmp_path / "shop", tmp_path / "out"
    shutil.copytree(ROOT / "proto" / "tablegate", site / "tablegate")  # of tablegate-proto
    shutil.copytree(ROOT / "proto" / "googleapis", site, dirs_exist_ok=True)  # of googleapis-common-protos
    shop.mkdir()
    out.mkdir()
    shutil.copy(STARTER, shop)
    (command,) = (each for each in _commands(page) if "$SITE" in each)
    _run(command.replace("$SITE", str(site)), shop, out)
    assert {path.name for path in out.iterdir()} == {"orders_pb2.py", "orders_pb2_grpc.py"}


def test_in_a_checkout(tmp_path: Path) -> None:
    (command,) = (each for page in PAGES for each in _commands(page) if "$SITE" not in each)
    _run(command, ROOT, tmp_path)
    assert (tmp_path / "examples/ratings/v1/ratings_pb2_grpc.py").is_file()
