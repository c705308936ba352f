"""A Spark standalone cluster on this machine: master and workers by the commands of docker-compose.yml."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self
from urllib.request import urlopen

from tablegate.examples.demo.tether import tethered
from tablegate.jobs.jars.java import SHORT_LIVED_OPTIONS
from tests.kit.programs.deployment import DEPLOY, command_line
from tests.kit.programs.processes import kill_tree

START_TIMEOUT_S = 120.0  # 3 s on a quiet machine
CORES = 3  # of each worker: threads, whatever the machine has
MEMORY_MB = 700
EXECUTOR_MB = 512
DAEMON_MB = 192
POLL_S = 0.1
PROMETHEUS_PATH = "/metrics/prometheus/"


def spark_environment(work: Path) -> Mapping[str, str]:
    """Return the environment of the image, as this machine has it: nothing listens but on the loopback."""
    programs = Path(sys.executable).parent
    return {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "SPARK_CONF_DIR": str(DEPLOY / "spark"),
        "SPARK_WORKER_DIR": str(work),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": f"{DAEMON_MB}m",
        # They live for a minute: code that takes long to compile never pays.
        "JAVA_TOOL_OPTIONS": " ".join(SHORT_LIVED_OPTIONS),
    }


class Daemon:
    """A master or a worker, which ends with this process at the latest. `page`: its port for people and Prometheus."""

    def __init__(self, command: list[str], log_file: Path, work: Path) -> None:
        self._log_file = log_file
        environment = spark_environment(work)
        programs = Path(sys.executable).parent
        command = [str(programs / command[0]), *command[1:]]
        with log_file.open("wb") as log:
            self.process = subprocess.Popen(
                tethered(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=log_file.parent,
                env=environment,
                start_new_session=True,
            )

    def port(self, service: str) -> int:
        """Return the port that Spark chose for one of its services, once it has."""
        pattern = re.compile(rf"Successfully started service '{service}' on port (\d+)")
        end_s = time.monotonic() + START_TIMEOUT_S
        while (found := pattern.search(text := self._log_file.read_text(errors="replace"))) is None:
            assert self.process.poll() is None, f"it ended while it started: {text[-2_000:]}"
            assert time.monotonic() < end_s, f"no {service} within {START_TIMEOUT_S:g} s: {text[-2_000:]}"
            time.sleep(POLL_S)
        return int(found[1])

    def metrics(self, service: str) -> str:
        """Return its metrics for Prometheus."""
        with urlopen(f"http://127.0.0.1:{self.port(service)}{PROMETHEUS_PATH}", timeout=30) as answer:
            metrics: str = answer.read().decode()
        return metrics


class SparkCluster:
    """A master, and the workers that are started; all end, with their executors, when the block does."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self._directory = directory
        command = command_line("spark-master", {"spark-master": "127.0.0.1", "7077": "0", "8080": "0"})
        self.master = Daemon(command, directory / "master.log", directory)
        self.workers: list[Daemon] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in (*self.workers, self.master):
            kill_tree(daemon.process)

    @property
    def url(self) -> str:
        """The master, as applications name it."""
        return f"spark://127.0.0.1:{self.master.port('sparkMaster')}"

    def start_worker(self) -> Daemon:
        """Start another worker; it registers by itself."""
        name = f"spark-worker-{len(self.workers) + 1}"
        changes = {"spark://spark-master:7077": self.url, "8081": "0", "3g": f"{MEMORY_MB}m", "4": str(CORES)}
        command = command_line(name, {})
        command = [changes.get(word, word) for word in command]
        worker = Daemon(command, self._directory / f"{name}.log", self._directory / name)
        self.workers.append(worker)
        return worker
