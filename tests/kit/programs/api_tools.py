"""Programs of others that ask a server, installed from PyPI and npm where they can be had."""

import fcntl
import shutil
import subprocess
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
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
    with _alone(path.parents[1]) as directory:
        if not path.exists():
            venv.create(directory, with_pip=True)
            _install(directory, [path.with_name("pip"), "install", "-q", *also, f"{package}=={version}"], timeout_s)
    return path if path.exists() else None


def from_npm(package: str, version: str, *, program: str) -> Path | None:
    """Return the path of a program, in a directory of its own; None where it cannot be had."""
    path = TOOLS / f"{program}-{version}/node_modules/.bin/{program}"
    with _alone(path.parents[2]) as directory:
        if not path.exists() and shutil.which("npm") is not None:
            words = ["npm", "install", "--silent", "--ignore-scripts", "--no-audit", "--no-fund"]
            _install(directory, [*words, "--prefix", str(directory), f"{package}@{version}"])
    return path if path.exists() else None


@contextmanager
def _alone(directory: Path) -> Iterator[Path]:
    """Let one process at a time look whether a program is there."""
    TOOLS.mkdir(parents=True, exist_ok=True)
    with (TOOLS / f"{directory.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield directory


def _install(directory: Path, words: Sequence[str | Path], timeout_s: float = _INSTALL_TIMEOUT_S) -> None:
    """Install all of a program or nothing: of what is left of half an install, npm makes one that does not run."""
    is_whole = False
    try:
        with suppress(subprocess.TimeoutExpired):  # then it cannot be had here
            is_whole = subprocess.run(words, check=False, timeout=timeout_s).returncode == 0
    finally:
        if not is_whole:
            shutil.rmtree(directory, ignore_errors=True)
