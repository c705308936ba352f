"""The demo as a user starts it, and its output."""

import os
import signal
import subprocess
import sys
from pathlib import Path

ENDS_WITHIN_S = 300  # with all its processes, on a busy machine


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


def read_rest(process: subprocess.Popen[str]) -> str:
    """Return what it still prints until it ends; show that, and what its threads do, where it does not end."""
    try:
        return process.communicate(timeout=ENDS_WITHIN_S)[0]
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # faulthandler then prints the stacks
        raise AssertionError(f"the demo does not end:\n{process.communicate()[0]}") from None
