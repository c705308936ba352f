"""The release before this version: its sources, and how a program is started from them.

Decision: docs/decisions/0190-the-last-release-runs-beside-this-version.md
"""

import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import pytest

from tests.kit.table.filled import ROOT

LAST_RELEASE = "da571a035781d9ff97ddaaba20d143173e61cf0b"  # 0.1.0
_PACKAGES = ("gateway", "streamjobs", "proto", "clients/python", "examples")
_WHERE = (
    "import tablegate.gateway, tablegate.jobs, tablegate.v1 as v1; print(*tablegate.gateway.__path__, *v1.__path__)"
)


def last_release(directory: Path) -> Mapping[str, str]:
    """Put the sources there; return the environment in which Python takes them. Skip where git has not the release.

    The packages that it needs are those of this version.
    """
    packed = subprocess.run(["git", "archive", LAST_RELEASE, *_PACKAGES], cwd=ROOT, capture_output=True, check=False)
    if packed.returncode:
        pytest.skip(f"git has not the last release: {packed.stderr.decode().strip()}")
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
        archive.extractall(directory, filter="data")
    environment = {"PYTHONPATH": os.pathsep.join(str(directory / package) for package in _PACKAGES)}
    words = [sys.executable, "-c", _WHERE]
    found = subprocess.run(words, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    assert all(Path(path).is_relative_to(directory) for path in found.stdout.split()), found.stdout
    return environment
