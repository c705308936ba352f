"""Processes that the demo starts, and that never outlive it."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from streamjobs.local import tether

STOP_S = 30.0  # a job ends its batch, a gateway its calls; then SIGKILL


class ChildEnded(Exception):
    """A process ended that should go on; the message says which, how, and what it said last."""


class Child:
    """A `tablegate` command in a session of its own (Ctrl-C does not reach it), its output in a log file.

    `environment`: variables that it has over ours.
    """

    def __init__(
        self, name: str, log_path: Path, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log_path = log_path
        self._arguments = arguments
        self._environment = dict(environment or {})

    def __enter__(self) -> "Child":
        tethered = [sys.executable, "-I", "-S", tether.__file__, str(os.getpid())]
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [*tethered, sys.executable, "-m", "gateway.cli", *self._arguments],
                env=os.environ | self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def check(self) -> None:
        """Raise `ChildEnded` unless the process lives."""
        code = self._process.poll()
        if code is not None:
            last = self.log_path.read_text(errors="replace").strip().splitlines()[-1:]
            said = f": {last[0]}" if last else ""
            raise ChildEnded(f"the {self.name} ended with code {code}{said} (log: {self.log_path})")
