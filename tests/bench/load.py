"""Load on a gRPC server, the same for each contestant, and what it costs the server.

ghz makes the load of one request for ever. What it cannot do, or not without taking the cores that the server needs,
the Go module beside this file does. Without Go a generator in Python does what it can.
"""

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from tests.bench.usage import cpu_s
from tests.kit.programs.go_tools import TOOLS, go_tool
from tests.kit.programs.processes import process_tree

SERVICE = "/examples.ratings.v1.RatingsService"
GET_PATH = f"{SERVICE}/GetRating"
CONNECTIONS = 8
IN_FLIGHT = 32
CONNECTS_IN_FLIGHT = 8
_GO_SOURCES = Path(__file__).parent / "go"


def say(what: str) -> None:
    """Tell on stderr what is measured now: it takes minutes."""
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Target:
    """A server that takes part. `ca`: the certificate to trust; plaintext without it."""

    who: str
    address: str
    pid: int
    ca: Path | None = None


@dataclass(frozen=True)
class Load:
    """Outcome of a load: what the clients saw, and the server's CPU in all its processes."""

    generator: str
    per_second: float
    p50_ms: float
    p99_ms: float
    server_cpu_us: float


class Requests:
    """Encoded requests of one method, in memory and in a file; generators go through them again and again."""

    def __init__(self, path: str, messages: Sequence[bytes], directory: Path) -> None:
        self.path = path
        self.messages = messages
        with tempfile.NamedTemporaryFile(dir=directory, suffix=".requests", delete=False) as file:
            file.writelines(len(message).to_bytes(4, "big") + message for message in messages)
        self.file = Path(file.name)


def build_go() -> Path | None:
    """Return the path of the Go module's binary, built; None without Go."""
    if shutil.which("go") is None:
        return None
    say("building the Go load generator")
    _run(["go", "build", "-o", str(TOOLS / "bench-load"), "."], cwd=_GO_SOURCES)
    return TOOLS / "bench-load"


class Generators:
    """What makes load on this machine."""

    def __init__(self, protoset: Path, directory: Path) -> None:
        self.ghz = go_tool("github.com/bojand/ghz/cmd/ghz@v0.93.0")
        self.go = build_go()
        self._protoset = protoset
        self._directory = directory

    def requests(self, path: str, messages: Sequence[bytes]) -> Requests:
        """Return requests that generators can send."""
        return Requests(path, messages, self._directory)

    def repeat(
        self, target: Target, path: str, message: bytes, request: Any, seconds: float, *, connections: int
    ) -> Load:
        """Send one request for ever: `request` with ghz, else `message`, which is the same in bytes."""
        if not self.ghz:
            return self.calls(target, self.requests(path, [message]), seconds, connections=connections)
        words = [self.ghz, "--protoset", str(self._protoset), "--call", path.lstrip("/").replace("/", ".")]
        words += ["--cacert", str(target.ca)] if target.ca else ["--insecure"]
        words += ["-d", json.dumps(request), "-z", f"{seconds}s", "--duration-stop", "wait", "-O", "json"]
        words += ["-c", str(max(IN_FLIGHT, connections)), "--connections", str(connections), target.address]

        def run() -> dict[str, Any]:
            report = json.loads(_run(words))
            at = {entry["percentage"]: entry["latency"] / 1e6 for entry in report["latencyDistribution"] or ()}
            return {
                "count": report["count"],
                "failed": report["count"] - report["statusCodeDistribution"].get("OK", 0),
                "first_error": next(iter(report["errorDistribution"]), ""),
                "elapsed_s": report["total"] / 1e9,
                "p50_ms": at.get(50, 0.0),
                "p99_ms": at.get(99, 0.0),
            }

        return _charged("ghz", target, run)

    def calls(
        self, target: Target, requests: Requests, seconds: float, *, connections: int = CONNECTIONS, rate: float = 0
    ) -> Load:
        """Send requests in turn. `rate`: calls a second whatever the server does (needs Go); 0: as fast as it goes."""
        in_flight = max(IN_FLIGHT, connections)
        if not self.go:
            arguments = (target.address, requests, seconds, connections, in_flight)
            return _charged("Python", target, lambda: asyncio.run(_python_calls(*arguments)))
        words = ["--seconds", str(seconds), "--connections", str(connections)]
        words += ["--rate", str(rate)] if rate else ["--in-flight", str(in_flight)]
        return _charged("Go", target, lambda: self._go_run("calls", target, requests, *words))

    def connects(self, target: Target, requests: Requests, seconds: float) -> Load:
        """Make a connection, call once and close it, again and again. Needs Go."""
        words = ["--seconds", str(seconds), "--in-flight", str(CONNECTS_IN_FLIGHT)]
        return _charged("Go", target, lambda: self._go_run("connects", target, requests, *words))

    def scan(self, target: Target, requests: Requests, rows: int) -> Load:
        """Read one stream of `rows` rows to its end; the load counts rows. Needs Go."""

        def run() -> dict[str, Any]:
            report = self._go_run("scan", target, requests)
            if report["rows"] != rows:
                raise RuntimeError(f"a Scan gave {report['rows']} rows of {rows}")
            return {"count": rows, "failed": 0, "elapsed_s": report["elapsed_s"], "p50_ms": 0.0, "p99_ms": 0.0}

        return _charged("Go", target, run)

    @contextmanager
    def open_streams(self, target: Target, requests: Requests, count: int, connections: int) -> Iterator[None]:
        """Hold streams that have each had a message; raise where one ends before the block does. Needs Go."""
        words = self.go_words("streams", target, requests, "--count", str(count), "--connections", str(connections))
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin
            assert process.stdout
            try:
                if json.loads(process.stdout.readline() or "{}").get("open") != count:
                    raise RuntimeError(f"{count} streams could not be opened")
                yield
                process.stdin.close()
                if process.wait(60):
                    raise RuntimeError("streams ended by themselves")
            finally:
                process.kill()

    def go_words(self, command: str, target: Target, requests: Requests, *options: str) -> list[str]:
        """Return the command line of the Go generator."""
        words = [str(self.go), command, "--address", target.address, "--path", requests.path]
        words += ["--requests", str(requests.file)] + (["--ca", str(target.ca)] if target.ca else [])
        return [*words, *options]

    def _go_run(self, command: str, target: Target, requests: Requests, *options: str) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(_run(self.go_words(command, target, requests, *options)))
        return report


def _charged(generator: str, target: Target, run: Callable[[], dict[str, Any]]) -> Load:
    """Run a load and charge the server with it; raise where a call failed."""
    pids = process_tree(target.pid)
    before_s = cpu_s(pids)
    outcome = run()
    used_s = cpu_s(pids) - before_s
    if outcome["failed"] or not outcome["count"]:
        why = outcome.get("first_error", "")
        raise RuntimeError(f"{outcome['failed']} of {outcome['count']} calls to {target.who} failed: {why}")
    return Load(
        generator=generator,
        per_second=outcome["count"] / outcome["elapsed_s"],
        p50_ms=outcome["p50_ms"],
        p99_ms=outcome["p99_ms"],
        server_cpu_us=used_s * 1e6 / outcome["count"],
    )


def _run(words: Sequence[str], **options: Any) -> str:
    done = subprocess.run(words, check=False, capture_output=True, text=True, **options)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words[:2])} failed: {done.stderr.strip()[-2000:]}")
    return str(done.stdout)


async def _python_calls(
    address: str, requests: Requests, seconds: float, connections: int, in_flight: int
) -> dict[str, Any]:
    latencies: list[float] = []
    errors: list[str] = []
    end = time.monotonic() + seconds

    async def caller(call: Callable[[bytes], Any], number: int) -> None:
        while (start := time.monotonic()) < end:
            try:
                await call(requests.messages[number % len(requests.messages)])
            except grpc.RpcError as error:
                errors.append(str(error))
            latencies.append(time.monotonic() - start)
            number += 1

    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(connections)]
    start = time.monotonic()
    callers = [caller(channels[n % connections].unary_unary(requests.path), 1009 * n) for n in range(in_flight)]
    await asyncio.gather(*callers)
    elapsed_s = time.monotonic() - start
    for channel in channels:
        await channel.close()
    ordered = sorted(latencies)
    p50, p99 = (ordered[int(len(ordered) * share)] * 1000 for share in (0.5, 0.99))
    counts = {"count": len(ordered), "failed": len(errors), "first_error": next(iter(errors), "")}
    return counts | {"elapsed_s": elapsed_s, "p50_ms": p50, "p99_ms": p99}
