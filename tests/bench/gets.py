"""Get: one hot key and Zipf's keys, over few and many connections, with and without TLS; latency at half load."""

import itertools
import random
import statistics
from functools import partial

from tests.bench.contestants import Bench
from tests.bench.load import CONNECTIONS, GET_PATH, Load, Target, say
from tests.bench.stack import request_bytes

CONNECTION_COUNTS = (1, CONNECTIONS, 64)
WARM_OURS_S = 5.0
ZIPF_EXPONENT = 1.1
ZIPF_REQUESTS = 100_000
_SCATTER = 7_919  # a prime: neighbours in rank are no neighbours in the store


def hot_figure(connections: int, *, tls: bool = False) -> str:
    """Return the name of the figure of Gets of one key."""
    return f"Get, hot key{', TLS' if tls else ''}, {connections} connection{'s' if connections > 1 else ''}"


def warm(bench: Bench, targets: list[Target]) -> None:
    """Put load on each before it is measured; on the peer for longer, whose compiler learns from it."""
    for target in targets:
        say(f"warming {target.who}{' with TLS' if target.ca else ''}")
        hot_load(bench, target, seconds=bench.warm_s if target.who == "peer" else WARM_OURS_S)


def hot_load(bench: Bench, target: Target, *, connections: int = CONNECTIONS, seconds: float | None = None) -> Load:
    """Ask for a key in the middle, always the same: what is measured is the way, not the store."""
    movie = bench.rows // 2
    length_s = seconds or bench.seconds
    request = {"movie_id": str(movie)}
    return bench.generators.repeat(target, GET_PATH, request_bytes(movie), request, length_s, connections=connections)


def measure(bench: Bench, plain: list[Target], tls: list[Target]) -> None:
    """Record requests/s, server CPU and p99 of each."""
    rates: dict[str, float] = {}
    for targets, connections in itertools.product(filter(None, (plain, tls)), CONNECTION_COUNTS):
        name = hot_figure(connections, tls=targets is tls)
        say(name)
        loads = bench.in_turns(targets, partial(hot_load, bench, connections=connections))
        _record(bench, name, loads)
        if targets is plain and connections == CONNECTIONS:
            rates = {who: statistics.median(one.per_second for one in each) for who, each in loads.items()}
    _zipf(bench, plain)
    if bench.generators.go:
        _half_load(bench, plain, rates)


def _record(bench: Bench, name: str, loads: dict[str, list[Load]]) -> None:
    bench.record(name, loads)
    for who, each in loads.items():
        bench.figures.record(f"{name}, p99", who, [one.p99_ms for one in each], "ms", load=each[0].generator)


def _zipf(bench: Bench, targets: list[Target]) -> None:
    weights = itertools.accumulate(rank**-ZIPF_EXPONENT for rank in range(1, bench.rows + 1))
    ranks = random.Random(1).choices(range(bench.rows), cum_weights=list(weights), k=ZIPF_REQUESTS)
    requests = bench.generators.requests(GET_PATH, [request_bytes(1 + rank * _SCATTER % bench.rows) for rank in ranks])
    for connections in CONNECTION_COUNTS:
        name = hot_figure(connections).replace("hot key", "zipf")
        say(name)
        load = partial(bench.generators.calls, requests=requests, seconds=bench.seconds, connections=connections)
        _record(bench, name, bench.in_turns(targets, load))


def _half_load(bench: Bench, targets: list[Target], rates: dict[str, float]) -> None:
    """Calls come at a pace, whoever answers: half of what the peer can, or ours where there is no peer."""
    rate = rates.get("peer", rates["tablegate"]) / 2
    able = [target for target in targets if rates[target.who] > rate]
    for target in targets:
        if target not in able:
            say(f"{target.who} cannot answer {rate:,.0f} Gets a second: it has no latency at that load")
    say(f"Get at {rate:,.0f} requests/s")
    requests = bench.generators.requests(GET_PATH, [request_bytes(bench.rows // 2)])
    loads = bench.in_turns(able, lambda target: bench.generators.calls(target, requests, bench.seconds, rate=rate))
    for percentile in ("p50", "p99"):
        for who, each in loads.items():
            values = [one.p50_ms if percentile == "p50" else one.p99_ms for one in each]
            bench.figures.record(f"Get at half load, {percentile}", who, values, f"ms at {rate:,.0f}/s", load="Go")
