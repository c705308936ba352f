"""Streams that stay open, and connections that do not: what they cost a gateway."""

import time

from tests.bench.contestants import Bench
from tests.bench.gets import hot_load
from tests.bench.load import GET_PATH, Target, say
from tests.bench.stack import request_bytes
from tests.bench.usage import shared_memory_mb
from tests.kit.programs.processes import process_tree

WATCH_PATH = "/grpc.health.v1.Health/Watch"  # a stream that stays open and says little
STREAMS_BESIDE = 500
STREAMS_IDLE = 2_000
STREAMS_A_CONNECTION = 25
SETTLE_S = 2.0


def measure_streams(bench: Bench, target: Target) -> None:
    """Record memory with idle streams, and Gets with and without streams beside them."""
    watch = bench.generators.requests(WATCH_PATH, [b""])

    def held_mb(count: int) -> float:
        with bench.generators.open_streams(target, watch, count, count // STREAMS_A_CONNECTION):
            time.sleep(SETTLE_S)
            return shared_memory_mb(process_tree(target.pid))

    say(f"{STREAMS_IDLE:,} idle streams")
    memory_mb = shared_memory_mb(process_tree(target.pid))
    bench.figures.record("memory of all processes (PSS)", target.who, [memory_mb], "MB")
    bench.figures.record(
        f"memory with {STREAMS_IDLE:,} idle streams", target.who, [held_mb(STREAMS_IDLE)], "MB", load="Go"
    )

    say(f"Get beside {STREAMS_BESIDE} streams")
    without, beside = [], []
    for _ in range(bench.repeat):
        without.append(hot_load(bench, target))
        with bench.generators.open_streams(target, watch, STREAMS_BESIDE, STREAMS_BESIDE // STREAMS_A_CONNECTION):
            beside.append(hot_load(bench, target))
    bench.record("Get, no streams", {target.who: without})
    bench.record(f"Get beside {STREAMS_BESIDE} streams", {target.who: beside})


def measure_connections(bench: Bench, plain: list[Target], tls: list[Target]) -> None:
    """Record connections/s, each made for one Get, and server CPU a connection."""
    requests = bench.generators.requests(GET_PATH, [request_bytes(bench.rows // 2)])
    for targets in filter(None, (plain, tls)):
        name = f"new connections{', TLS' if targets is tls else ''}"
        say(name)
        loads = bench.in_turns(targets, lambda target: bench.generators.connects(target, requests, bench.seconds))
        bench.record(name, loads, of="connection")
