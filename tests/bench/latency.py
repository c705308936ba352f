"""From an event to its Get: `produce` to the first answer that holds it; acknowledgement to a Get that waits for it."""

import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import grpc

from tablegate.examples.demo.kafka import free_port
from tablegate.examples.samples import stocks
from tablegate.jobs.table import Mode
from tests.bench import ticks as ticks_a_minute
from tests.bench.figures import Figures
from tests.bench.load import GET_PATH, say
from tests.bench.peer import Peer
from tests.bench.stack import Stack, read_count, request_bytes
from tests.kit.gateway_processes.own_writes import GET_TICK, OwnWrites, ticks

MOVIES = 50
WARM_S = 30.0
POLL_S = 0.0005
PROBE_TIMEOUT_S = 60.0  # the job may still be starting
OWN_WRITES = 1_000


def measure(work: Path, built: Path | None, figures: Figures, *, probes: int) -> None:
    """Record p50 and p99: both modes of the job, reads of own writes, the peer at its best and with its defaults."""
    for mode in ("realtime", "microbatch"):
        say(f"event → Get, {mode}")
        with Stack(work / mode) as stack:
            stack.create_source()
            with stack.job(mode=mode), stack.gateway() as gateway:
                count = probes if mode == "realtime" else probes // 3  # each takes 20 times as long
                _record(figures, f"event → Get, {mode}", "tablegate", _probe(stack, gateway.address, count))
    _measure_own_writes(work, figures)
    if built:
        _measure_peer(work, built, figures, probes)


def _measure_own_writes(work: Path, figures: Figures) -> None:
    for table, batches in (("stock_ticks", "5 s"), (str(Path(ticks_a_minute.__file__)), "a minute")):
        name = f"acknowledged event → Get with at_least_source, realtime, batches of {batches}"
        say(name)
        _record(figures, name, "tablegate", _own_writes(work / f"own-writes-{batches.replace(' ', '-')}", table))


def _own_writes(directory: Path, table: str) -> list[float]:
    took_ms: list[float] = []
    with OwnWrites(directory, table, Mode.REALTIME, GET_TICK) as own:
        warm_until = time.monotonic() + WARM_S
        for symbol, price in ticks():
            acknowledged = own.write(stocks.tick(symbol, price))
            refused, start = own.refused, time.perf_counter()
            found = own.get(acknowledged, symbol=symbol).stock_tick.price
            took_s = time.perf_counter() - start
            if found != price:
                raise RuntimeError(f"{symbol} has the price {found}, and {price} was acknowledged")
            if time.monotonic() > warm_until:
                if own.refused > refused:
                    raise RuntimeError(f"a Get was refused: what was acknowledged was not there after {took_s:.1f} s")
                took_ms.append(took_s * 1000)
                if len(took_ms) == OWN_WRITES:
                    break
            time.sleep(random.uniform(0.0, 0.05))
    return took_ms


def _measure_peer(work: Path, built: Path, figures: Figures, probes: int) -> None:
    for figure, settings in (
        ("event → Get, realtime", {"cache": 0, "linger": 0}),
        ("event → Get, peer's defaults", {}),
    ):
        say(f"{figure}, of the peer")
        # A broker for each: ratings that another has sent would come in while the first probes wait.
        with Stack(work / f"peer-latency-{len(settings)}") as stack:
            stack.create_source()
            running = Peer(built, stack.bootstrap, stack.directory / "state", free_port(), **settings)
            try:
                _record(figures, figure, "peer", _probe(stack, running.address, probes))
            finally:
                running.stop()


def _record(figures: Figures, name: str, who: str, took_ms: list[float]) -> None:
    ordered = sorted(took_ms)
    figures.record(f"{name}, p50", who, [statistics.median(ordered)], "ms")
    figures.record(f"{name}, p99", who, [ordered[int(len(ordered) * 0.99)]], "ms")


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
            while (count := _count(call, movie)) < counts[movie]:
                time.sleep(POLL_S)  # a tighter loop would take the cores from what is measured
                if time.perf_counter() - start > PROBE_TIMEOUT_S:
                    raise RuntimeError(f"a rating did not arrive within {PROBE_TIMEOUT_S} s")
            if count > counts[movie]:
                raise RuntimeError(f"movie {movie} has {count} ratings, and {counts[movie]} were sent")
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
