"""The peer: Kafka Streams interactive queries behind grpc-java, built with Maven from the sources --peer names."""

import re
import shutil
import subprocess
import time
from pathlib import Path

from tablegate.examples.samples import create_topic

START_TIMEOUT_S = 90


def can_build() -> bool:
    """Say whether Maven is here."""
    return shutil.which("mvn") is not None


def build(source: Path, work: Path) -> Path:
    """Build the peer in `work`, from a copy of its sources; return where."""
    made = work / "peer"
    if not made.exists():
        shutil.copytree(source, made, copy_function=shutil.copyfile)
    subprocess.run(
        ["mvn", "-q", "package", "dependency:copy-dependencies", "-DoutputDirectory=target/lib"],
        cwd=made,
        check=True,
        capture_output=True,
    )
    return made


class Peer:
    """A running peer. Its state directory may be given again, or wiped to make it restore."""

    def __init__(self, made: Path, bootstrap: str, state: Path, port: int, **settings: object) -> None:
        self.address = f"127.0.0.1:{port}"
        self._log_path = state.parent / f"{state.name}-{int(time.time() * 1000)}.log"
        create_topic(bootstrap, "peer-out", 2)
        options = {"bootstrap": bootstrap, "state": state, "port": port, "topic": "ratings", **settings}
        properties = [f"-D{name}={value}" for name, value in options.items()]
        with self._log_path.open("w") as log:
            self._process = subprocess.Popen(
                ["java", *properties, "-cp", f"{made}/target/*:{made}/target/lib/*", "Peer"],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.pid = self._process.pid
        self._wait_for("-> RUNNING")

    def _wait_for(self, text: str) -> None:
        end = time.monotonic() + START_TIMEOUT_S
        while text not in self.log():
            if self._process.poll() is not None or time.monotonic() > end:
                self.stop()
                raise RuntimeError(f"the peer did not start: see {self._log_path}")
            time.sleep(0.1)

    def poll(self) -> int | None:
        """Return its exit code; None while it runs."""
        return self._process.poll()

    def log(self) -> str:
        """Return what the peer printed."""
        return self._log_path.read_text()

    def folded(self) -> int:
        """Return how many inputs the peer said it has folded."""
        return max((int(n) for n in re.findall(r"folded (\d+) ", self.log())), default=0)

    def restored(self) -> tuple[int, float]:
        """Return how many records were restored, and in how many seconds, from the first start to the last end."""
        starts = [int(ms) for ms in re.findall(r"^(\d+) ms restore start", self.log(), re.M)]
        ends = [(int(ms), int(count)) for ms, count in re.findall(r"^(\d+) ms restore end \S+ (\d+)", self.log(), re.M)]
        return sum(count for _, count in ends), (max(ms for ms, _ in ends) - min(starts)) / 1000

    def kill(self) -> None:
        """End the peer at once, as a crash would."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End the peer."""
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
