"""What becomes of a worker that is asked for five times what it can do: `python -m tests.bench.overload [SECONDS]`.

One worker's server runs in a process of its own, over rows in LMDB, and a generator in Go asks it for pages of 1,000
rows: first as fast as one answer follows the other, which is its capacity; then 80 % of that, at an even pace; then
five times as much, beside 1,000 clients that scan the whole table again and again and 10,000 attempts to subscribe, as
long as SECONDS say; then 80 % again, second by second, until that is as fast as before.

A call's latency counts from when it was due. Server and generator share the cores of this machine.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.bench.fairness import serve_alone
from tests.bench.figures import Figures
from tests.bench.load import SERVICE, Requests, Target, build_go, say
from tests.bench.usage import memory_mb
from tests.kit.table.filled import catalogue_of

SECONDS = 60.0
SHARE, TIMES = 0.8, 5  # of the capacity: a load that a worker is to be run at, and one that is too much
SCANS, SUBSCRIBES = 1_000, 10_000
SLOWER_MAX = 2  # times the p99 of 80 % load: then it counts as recovered
RECOVERY_MAX_S = 30
_WHO = "tablegate"


def measure(work: Path, figures: Figures, *, seconds: float) -> None:
    """Record the figures; nothing without Go."""
    go = build_go()
    if go is None:
        say("no Go, so no overload")
        return
    with serve_alone() as (port, pid):
        _Overload(go, Target(_WHO, f"127.0.0.1:{port}", pid), work, figures).measure(seconds)


class _Overload:
    def __init__(self, go: Path, target: Target, work: Path, figures: Figures) -> None:
        self._go = go
        self._target = target
        self._figures = figures
        catalogue = catalogue_of()
        self._page = Requests(f"{SERVICE}/ListRatings", [_request(catalogue, "ListRatings", page_size=1_000)], work)
        # One of each kind, as `overload` of the generator takes them.
        kinds = [*self._page.messages, b"", _request(catalogue, "SubscribeRatings", movie_id=7)]
        self._mixed = Requests(self._page.path, kinds, work)

    def measure(self, seconds: float) -> None:
        say("pages, as fast as it goes")
        self._run("calls", self._page, "--seconds", "2")  # warm
        load = self._run("calls", self._page, "--seconds", "4")
        capacity = load["count"] / load["elapsed_s"]
        self._record("capacity", capacity, "pages/s")
        say(f"80 % of {capacity:.0f} pages/s")
        even = self._paced(capacity, max(4.0, seconds / 6))
        self._record("p99 of a page at 80 %", even, "ms")
        before_mb = self._resident_mb()
        say(f"{TIMES} times as much for {seconds:.0f} s, {SCANS:,} scans, {SUBSCRIBES:,} attempts to subscribe")
        words = ["--seconds", str(seconds), "--rate", str(TIMES * capacity)]
        words += ["--scans", str(SCANS), "--subscribes", str(SUBSCRIBES)]
        words += ["--scan-path", f"{SERVICE}/ScanRatings", "--subscribe-path", f"{SERVICE}/SubscribeRatings"]
        report = self._run("overload", self._mixed, *words)
        self._record("resident more after it", self._resident_mb() - before_mb, "MB")
        for kind in ("unary", "scan", "subscribe"):
            self._record_kind(kind, report[kind])
        p99_ms = report["unary"]["admitted"]["p99_ms"]
        self._record("p99 of admitted pages, by that of 80 %", p99_ms / even, "times")
        self._record("recovery", self._recovery_s(capacity, even), "s")

    def _record_kind(self, kind: str, seen: Mapping[str, Any]) -> None:
        for name in ("admitted", "refused"):
            self._record(f"{kind} {name}", seen[name]["count"], "calls")
            for share in ("p50", "p99"):
                self._record(f"{share} of {kind} {name}", seen[name][f"{share}_ms"], "ms")
        for name in ("late", "broken"):
            self._record(f"{kind} {name}", seen[name], "calls")
        if seen["broken"]:
            say(f"{kind}: {seen['first_error']}")

    def _recovery_s(self, capacity: float, even_ms: float) -> float:
        """Return how long after the overload a second of 80 % load is answered as before; a limit where it never is."""
        begun_s = time.monotonic()
        while (passed_s := time.monotonic() - begun_s) < RECOVERY_MAX_S:
            if self._paced(capacity, 1) <= SLOWER_MAX * even_ms:
                return passed_s
        return RECOVERY_MAX_S

    def _paced(self, capacity: float, seconds: float) -> float:
        report = self._run("calls", self._page, "--seconds", str(seconds), "--rate", str(SHARE * capacity))
        return float(report["p99_ms"])

    def _resident_mb(self) -> float:
        return memory_mb(self._target.pid, "VmRSS")

    def _record(self, name: str, value: float, unit: str) -> None:
        self._figures.record(f"overload: {name}", _WHO, [value], unit, load="Go")

    def _run(self, command: str, requests: Requests, *options: str) -> dict[str, Any]:
        words = [str(self._go), command, "--address", self._target.address, "--path", requests.path]
        done = subprocess.run([*words, "--requests", str(requests.file), *options], check=True, stdout=subprocess.PIPE)
        report: dict[str, Any] = json.loads(done.stdout)
        return report


def _request(catalogue: Any, method: str, **values: Any) -> bytes:
    request = catalogue.queries[f"{SERVICE}/{method}"].request_class(**values)
    data: bytes = request.SerializeToString()
    return data


def main() -> None:
    """Measure, and print the figures."""
    figures = Figures()
    with tempfile.TemporaryDirectory(prefix="tablegate-bench-") as work:
        measure(Path(work), figures, seconds=float((sys.argv[1:2] or [SECONDS])[0]))
    Console(highlight=False, width=150).print(figures.table())


if __name__ == "__main__":
    main()
