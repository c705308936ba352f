"""Packages of npm that tests use, as tests/web locks them."""

import hashlib
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from tests.kit.table.filled import ROOT

SOURCES = ROOT / "tests/web"
CACHE = ROOT / ".cache/web"
INSTALL_TIMEOUT_S = 300
RUN_TIMEOUT_S = 120


def run(*words: str | Path, cwd: Path, timeout_s: float = RUN_TIMEOUT_S) -> str:
    """Return what a program prints; it has to end well."""
    command = [str(word) for word in words]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-5_000:]}{done.stderr[-5_000:]}"
    return done.stdout


def installed() -> Path:
    """Return the directory of the packages that the lock names, installed there once."""
    names = ("package.json", "package-lock.json")
    mark = hashlib.sha256(b"".join((SOURCES / name).read_bytes() for name in names)).hexdigest()[:16]
    directory = CACHE / mark
    if not directory.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            made = Path(scratch, "made")
            made.mkdir()
            for name in names:
                shutil.copy(SOURCES / name, made)
            words = ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
            run(*words, cwd=made, timeout_s=INSTALL_TIMEOUT_S)
            with suppress(OSError):  # another run was first
                made.rename(directory)
    return directory
