"""Processes that the demo starts, and that never outlive it (`tether.py`)."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from tablegate.examples.demo.tether import tethered

STOP_S = 30.0  # a job ends its batch, a gateway its calls; then SIGKILL
TABLEGATE = (sys.executable, "-P", "-m", "tablegate.gateway.cli")  # -P: the working directory shadows no module


_KEPT = ("TABLEGATE_CACHE",)  # where jars are


class ProcessEnded(Exception):
    """A process has ended that should run on; the message says which, with what code, and the last line of its log."""


class ChildProcess:
    """A command of `program` in a session of its own (Ctrl-C does not reach it), its output in a log file.

    `environment`: variables that it has over ours. Those of options are not ours to pass on: who has TABLEGATE_KAFKA
    set for a cluster of their own would have the demo's processes look for its Kafka there.
    """

    def __init__(
        self,
        name: str,
        log_path: Path,
        *arguments: str,
        program: Sequence[str] = TABLEGATE,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log_path = log_path
        self._command = [*program, *arguments]
        self._environment = dict(environment or {})

    def __enter__(self) -> Self:
        self.log_path.write_bytes(b"")
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
        except KeyboardInterrupt:  # the second of somebody who does not want to wait
            self.kill()
            raise

    def start(self) -> None:
        """Start it, again where it has ended."""
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                tethered(self._command),
                env=_without_options(os.environ) | self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def terminate(self) -> None:
        """Send SIGTERM, and do not wait."""
        self._process.terminate()

    def kill(self) -> None:
        """End it at once (SIGKILL); a gateway's processes end with the one that started them."""
        self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def check(self) -> None:
        """Raise `ProcessEnded` unless the process lives."""
        code = self._process.poll()
        if code is not None:
            last = self.log_path.read_text(errors="replace").strip().splitlines()[-1:]
            line = f": {last[0]}" if last else ""
            raise ProcessEnded(f"the {self.name} ended with code {code}{line} (log: {self.log_path})")


def _without_options(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith("TABLEGATE_") or name in _KEPT}
