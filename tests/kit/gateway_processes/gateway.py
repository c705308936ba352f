"""A gateway as a user runs it: processes on this machine, asked over gRPC."""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import grpc
from grpc_health.v1.health_pb2 import HealthCheckResponse

from tablegate.v1.status_pb2 import GetStatusResponse
from tests.kit.programs.processes import alive
from tests.kit.table.filled import RATINGS, ROOT, catalogue_of

SERVICE = "/examples.ratings.v1.RatingsService"
START_TIMEOUT_S = 60.0


def soon(
    holds: Callable[[], Any], what: str, seconds: float = 30.0, *, why_not: Callable[[], object] = lambda: ""
) -> None:
    """Wait until `holds()`; a call that is refused does not hold yet. `why_not()` is told where it never does."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if holds():
                return
        except grpc.RpcError as error:
            what = f"{what} ({error.code()}: {error.details()})" if time.monotonic() >= deadline else what
        assert time.monotonic() < deadline, f"not in {seconds} s: {what} {why_not()}"
        time.sleep(0.05)


def _with_hang_limit(hang_limit_s: float) -> str:
    """Return a program that is the command line, but for a limit that no option sets."""
    return (
        "from dataclasses import replace\n"
        "from tablegate.gateway.cli.main import main\n"
        "from tablegate.gateway.server import app\n"
        "serve = app.serve\n"
        f"app.serve = lambda config: serve(replace(config, hang_limit_s={hang_limit_s}))\n"
        "main()\n"
    )


class GatewayProcess:
    """`tablegate serve` with the ratings contract, or one like it, in the background."""

    def __init__(
        self,
        data: Path,
        bootstrap: str,
        *,
        contract: Path = RATINGS,
        tables_topic: str | None = "tables",  # None: the default of the command
        workers: int = 2,
        reflection: bool = False,
        listen: str = "127.0.0.1:0",
        options: Sequence[str] = (),
        hang_limit_s: float | None = None,
    ) -> None:
        self.data = data
        self.lines: list[str] = []
        self.log_file = data.parent / f"{data.name}.log"
        program = ["-m", "tablegate.gateway.cli"] if hang_limit_s is None else ["-c", _with_hang_limit(hang_limit_s)]
        self._command = [sys.executable, *program, "serve", "--contract", str(contract)]
        self._command += [
            "--bootstrap",
            bootstrap,
            "--data",
            str(data),
            "--listen",
            listen,
            "--workers",
            str(workers),
        ]
        self._command += ["--log-file", str(self.log_file)]
        self._command += ["--tables-topic", tables_topic] if tables_topic is not None else []
        self._command += ["--reflection"] if reflection else []
        self._command += options
        self.environment: Mapping[str, str] = {}  # beside what this process has
        self.process: subprocess.Popen[str] | None = None
        self.channel: grpc.Channel | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it and wait until it listens."""
        self.lines = []
        self.process = subprocess.Popen(
            self._command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env={**os.environ, **self.environment},
        )
        self._reader = threading.Thread(target=self._read_lines, args=(self.process,), daemon=True)
        self._reader.start()
        soon(lambda: self.address() or self.process.poll() is not None, "gateway listens", START_TIMEOUT_S)  # type: ignore[union-attr]
        address = self.address()
        assert address is not None, "\n".join(self.lines)
        self.channel = grpc.insecure_channel(address)

    def _read_lines(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self.lines.append(line.rstrip())

    def address(self) -> str | None:
        """Return where it listens; None while it does not."""
        return next((line.split()[-1] for line in self.lines if line.startswith("listening on ")), None)

    def wait_until_serving(self, seconds: float = START_TIMEOUT_S) -> None:
        """Wait for the line that says so."""
        soon(lambda: any(line.startswith("all tables are served") for line in self.lines), "all tables served", seconds)

    def stop(self) -> int:
        """End it with SIGTERM; return its exit code."""
        if self.channel is not None:
            self.channel.close()
            self.channel = None
        if self.process is None:
            return 0
        process, self.process = self.process, None
        children = self.children(process.pid)
        process.terminate()
        try:
            code = process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        assert not any(alive(pid) for pid in children), "a process was left behind"
        self._reader.join()
        return code

    def kill(self) -> None:
        """End the whole gateway as a crash of its supervisor would."""
        assert self.process is not None
        children = self.children(self.process.pid)
        self.process.kill()
        self.process.wait()
        soon(lambda: not any(alive(pid) for pid in children), "its processes end")
        self._reader.join()
        self.process = None
        if self.channel is not None:
            self.channel.close()
            self.channel = None

    def children(self, pid: int | None = None) -> list[int]:
        """Return the processes that the supervisor started."""
        if pid is None:
            assert self.process is not None
            pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def replicator(self) -> int:
        """Return the process id of the replicator."""
        [found] = [pid for pid in self.children() if b"replicator" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        return found

    def kill_replicator(self, number: int = signal.SIGKILL) -> int:
        """Kill the replicator; return the process id of the next one."""
        old = self.replicator()
        os.kill(old, number)
        soon(lambda: self._replicators() not in ([], [old]), "another replicator starts")
        return self.replicator()

    def _replicators(self) -> list[int]:
        found = []
        for pid in self.children():
            try:
                if b"replicator" in Path(f"/proc/{pid}/cmdline").read_bytes() and alive(pid):
                    found.append(pid)
            except OSError:
                continue
        return found

    def log(self) -> list[dict[str, Any]]:
        """Return the lines of the log."""
        return [json.loads(line) for line in self.log_file.read_text().splitlines()]

    def ask(self, method: str, request: Any = None, *, deadline_s: float = 5.0, **fields: Any) -> Any:
        """Return the answer of a unary method. One that is to wait for something needs a later deadline."""
        assert self.channel is not None
        query = catalogue_of().queries[f"{SERVICE}/{method}"]
        data = (request or query.request_class(**fields)).SerializeToString()
        call = self.channel.unary_unary(query.path, None, query.response_class.FromString)
        return call(data, timeout=deadline_s)

    def scan(self, **fields: Any) -> Iterator[Any]:
        """Yield the rows of a Scan."""
        assert self.channel is not None
        query = catalogue_of().queries[f"{SERVICE}/ScanRatings"]
        call = self.channel.unary_stream(query.path, None, query.response_class.FromString)
        for message in call(query.request_class(**fields).SerializeToString(), timeout=30):
            yield from message.ratings

    def rows(self) -> dict[int, tuple[float, int]]:
        """Return the whole table: id → (average, count)."""
        rows = [(row.movie_id, (row.average_rating, row.rating_count)) for row in self.scan()]
        assert len(rows) == len(dict(rows)), "a row came twice"
        return dict(rows)

    def health(self) -> int:
        """Return what grpc.health.v1 says of all services."""
        assert self.channel is not None
        check = self.channel.unary_unary("/grpc.health.v1.Health/Check", None, HealthCheckResponse.FromString)
        return int(check(b"", timeout=5).status)

    def status(self) -> GetStatusResponse:
        """Return what the gateway says of itself."""
        assert self.channel is not None
        call = self.channel.unary_unary("/tablegate.v1.GatewayService/GetStatus", None, GetStatusResponse.FromString)
        return call(b"", timeout=5)


class MonotoneReader:
    """Asks for one movie after another while the block runs, and notes each answer that went back.

    `violations`: counts that went down, and rows that were there and then were not. `answers`: rows that were given.
    `unavailable`: calls that the gateway refused.
    """

    def __init__(self, gateway: GatewayProcess, movies: Sequence[int]) -> None:
        self.violations: list[str] = []
        self.answers = 0
        self.unavailable = 0
        self._gateway = gateway
        self._movies = movies
        self._counts: dict[int, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        for movie in itertools.cycle(self._movies):
            if self._stop.wait(0.002):
                return
            try:
                count = self._gateway.ask("GetRating", movie_id=movie).rating.rating_count
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.UNAVAILABLE:
                    self.unavailable += 1
                    continue
                if error.code() is not grpc.StatusCode.NOT_FOUND:
                    self.violations.append(f"movie {movie}: {error.code()} {error.details()}")
                    continue
                count = 0
            self.answers += count > 0
            if count < self._counts.get(movie, 0):
                self.violations.append(f"movie {movie}: {self._counts[movie]} ratings, then {count}")
            self._counts[movie] = count
