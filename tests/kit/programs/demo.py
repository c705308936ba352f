"""The demo as a user starts it, and its output."""

import os
import subprocess
import sys
from pathlib import Path


def start_demo(data: Path, *words: str) -> subprocess.Popen[str]:
    """Start `tablegate demo`, wide enough for its tables."""
    return subprocess.Popen(
        [sys.executable, "-m", "tablegate.gateway.cli", "demo", "--data", str(data), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"COLUMNS": "160"},
    )


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """Return its output up to the first line with a text; show its job's log where it ends before."""
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if text in line:
            return seen
    assert isinstance(process.args, list)
    log = Path(process.args[process.args.index("--data") + 1], "logs", "job.log")
    raise AssertionError(
        f"the demo ended without {text!r}:\n{seen}\n{log.read_text()[-8_000:] if log.exists() else ''}"
    )
