"""Load on a gRPC server, the same for ours and the peer's, and what it costs the server."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from tests.support.processes import process_tree

GET_PATH = "/examples.ratings.v1.RatingsService/GetRating"
CALLS_IN_FLIGHT = 32
CONNECTIONS = 8
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Load:
    """Outcome of a load: what the client saw, and the server's CPU in all its processes."""

    generator: str
    requests_per_second: float
    p50_ms: float
    p99_ms: float
    server_cpu_us: float
    failed: int


def say(what: str) -> None:
    """Tell on stderr what is measured now: it takes minutes."""
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def cpu_s(pids: Iterable[int]) -> float:
    """Return the CPU seconds, user and system, that processes have used."""
    total = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS_A_SECOND


def memory_mb(pid: int, kind: str) -> float:
    """Return the memory of one process in MB: VmRSS is what is resident, RssAnon what of it is no page of a file."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) / 1024
    return 0.0


def find_ghz() -> str | None:
    """Return the path of ghz: from PATH, or installed with Go where there is Go; None without both."""
    if found := shutil.which("ghz"):
        return found
    tools = Path(".cache/tools").resolve()
    if (tools / "ghz").exists():
        return str(tools / "ghz")
    if shutil.which("go") is None:
        return None
    made = subprocess.run(
        ["go", "install", "github.com/bojand/ghz/cmd/ghz@v0.93.0"],
        env=os.environ | {"GOBIN": str(tools)},
        capture_output=True,
        check=False,
    )
    return str(tools / "ghz") if made.returncode == 0 else None


def unary_load(
    address: str, server_pid: int, *, path: str, request: Any, raw: bytes, protoset: Path, seconds: float
) -> Load:
    """Put a load of one unary call on a server: with ghz, or with a generator in Python that sends `raw` as it is.

    `request`: the same for ghz, None not to use it.
    """
    ghz = find_ghz() if request is not None else None
    pids = process_tree(server_pid)
    before = cpu_s(pids)
    if ghz:
        outcome = _ghz(ghz, address, path, request, protoset, seconds)
    else:
        outcome = asyncio.run(_python_load(address, path, raw, seconds))
    generator, count, elapsed_s, p50_ms, p99_ms, failed = outcome
    used_us = (cpu_s(pids) - before) * 1e6
    return Load(generator, count / elapsed_s, p50_ms, p99_ms, used_us / max(count, 1), failed)


def _ghz(
    ghz: str, address: str, path: str, request: Any, protoset: Path, seconds: float
) -> tuple[str, int, float, float, float, int]:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as data:
        json.dump(request, data)
        data.flush()
        words = [ghz, "--insecure", "--protoset", str(protoset), "--call", path.lstrip("/").replace("/", ".")]
        words += ["-D", data.name, "-z", f"{seconds}s", "--duration-stop", "wait", "-O", "json"]
        words += ["-c", str(CALLS_IN_FLIGHT), "--connections", str(CONNECTIONS), address]
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            check=True,
        )
    report = json.loads(done.stdout)
    at = {entry["percentage"]: entry["latency"] / 1e6 for entry in report["latencyDistribution"]}
    failed = report["count"] - report["statusCodeDistribution"].get("OK", 0)
    return "ghz", report["count"], report["total"] / 1e9, at[50], at[99], failed


async def _python_load(
    address: str, path: str, raw: bytes, seconds: float
) -> tuple[str, int, float, float, float, int]:
    latencies: list[float] = []
    failed = 0
    end = time.monotonic() + seconds

    async def caller(call: Callable[[bytes], Any]) -> None:
        nonlocal failed
        while (start := time.monotonic()) < end:
            try:
                await call(raw)
            except grpc.RpcError:
                failed += 1
            latencies.append(time.monotonic() - start)

    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(CONNECTIONS)]
    start = time.monotonic()
    await asyncio.gather(*(caller(channels[n % CONNECTIONS].unary_unary(path)) for n in range(CALLS_IN_FLIGHT)))
    elapsed_s = time.monotonic() - start
    for channel in channels:
        await channel.close()
    ordered = sorted(latencies)
    p50, p99 = (ordered[int(len(ordered) * share)] * 1000 for share in (0.5, 0.99))
    return "Python generator", len(ordered), elapsed_s, p50, p99, failed
