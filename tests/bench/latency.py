"""From an event to its Get: the time from `produce` to the first answer that holds it."""

import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import grpc

from tests.bench.load import GET_PATH, say
from tests.bench.peer import Peer
from tests.bench.stack import Stack, read_count, request_bytes

MOVIES = 50
WARM_S = 30.0
POLL_S = 0.0005
PROBE_TIMEOUT_S = 20.0


def measure(work: Path, built: Path | None, *, probes: int) -> dict[str, dict[str, float | str]]:
    """Return p50 and p99 of event → Get: both modes of the job, then the peer, at its best and with its defaults."""
    figures: dict[str, dict[str, float | str]] = {}
    for mode in ("realtime", "microbatch"):
        say(f"event → Get, {mode}")
        with Stack(work / mode) as stack:
            stack.create_source()
            with stack.job(mode=mode), stack.gateway() as gateway:
                count = probes if mode == "realtime" else probes // 3  # each takes 20 times as long
                _record(figures, f"event → Get, {mode}", "tablegate", _probe(stack, gateway.address, count))
    if built:
        with Stack(work / "peer-latency") as stack:
            stack.create_source()
            _measure_peer(figures, built, stack, probes)
    return figures


def _measure_peer(figures: dict[str, dict[str, float | str]], built: Path, stack: Stack, probes: int) -> None:
    for figure, settings in (
        ("event → Get, realtime", {"cache": 0, "linger": 0}),
        ("event → Get, peer's defaults", {}),
    ):
        say(f"{figure}, of the peer")
        application = f"peer-{len(settings)}"
        state = stack.directory / application
        running = Peer(built, stack.bootstrap, state, stack.free_port(), application=application, **settings)
        try:
            _record(figures, figure, "peer", _probe(stack, running.address, probes))
        finally:
            running.stop()


def _record(figures: dict[str, dict[str, float | str]], name: str, who: str, took_ms: list[float]) -> None:
    ordered = sorted(took_ms)
    figures.setdefault(f"{name} p50", {"unit": "ms"})[who] = statistics.median(ordered)
    figures.setdefault(f"{name} p99", {"unit": "ms"})[who] = ordered[int(len(ordered) * 0.99)]


def _probe(stack: Stack, address: str, probes: int) -> list[float]:
    """Send one rating after another and ask until it is there; the first `WARM_S` seconds do not count."""
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(GET_PATH)
        counts = {movie: _count(call, movie) for movie in range(1, MOVIES + 1)}
        took_ms: list[float] = []
        warm_until = time.monotonic() + WARM_S
        while len(took_ms) < probes:
            movie = random.randint(1, MOVIES)
            counts[movie] += 1
            start = time.perf_counter()
            stack.produce(movie, 5.0)
            while _count(call, movie) < counts[movie]:
                time.sleep(POLL_S)  # a tighter loop would take the cores from what is measured
                if time.perf_counter() - start > PROBE_TIMEOUT_S:
                    raise RuntimeError(f"a rating did not arrive within {PROBE_TIMEOUT_S} s")
            if time.monotonic() > warm_until:
                took_ms.append((time.perf_counter() - start) * 1000)
            time.sleep(random.uniform(0.0, 0.05))
        return took_ms


def _count(call: Callable[..., bytes], movie: int) -> int:
    try:
        return read_count(call(request_bytes(movie), timeout=5))
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.NOT_FOUND:
            return 0
        raise
