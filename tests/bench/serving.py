"""All that is measured on one table whose changelog was written directly."""

import time
from collections.abc import Set
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path

from confluent_kafka import Producer

from tablegate.examples.demo.kafka import free_port
from tests.bench import gets, nested, reads, restores, streams, subscribe
from tests.bench.contestants import Bench, contestants
from tests.bench.figures import Figures
from tests.bench.load import Generators, Target, say
from tests.bench.peer import Peer
from tests.bench.stack import GatewayProcess, Stack
from tests.bench.usage import cpu_s, memory_mb
from tests.kit.programs.processes import process_tree

IDLE_S = 20.0


class Part(StrEnum):
    """What can be measured by itself."""

    RESTORE = "restore"
    STREAMS = "streams"
    GET = "get"
    CONNECTIONS = "connections"
    BATCH = "batch"
    RANGE = "range"
    SCAN = "scan"
    NESTED = "nested"
    OTHERS = "others"
    SUBSCRIBE = "subscribe"
    LATENCY = "latency"
    THROUGHPUT = "throughput"
    PLACEMENT = "placement"
    INDEXES = "indexes"
    CLUSTER = "cluster"
    OVERLOAD = "overload"


def measure(
    work: Path,
    built: Path | None,
    figures: Figures,
    *,
    parts: Set[Part],
    rows: int,
    seconds: float,
    repeat: int,
    warm_s: float,
) -> None:
    """Record the figures of the parts."""
    with Stack(work / "serving") as stack:
        generators = Generators(stack.protoset, stack.directory)
        bench = Bench(stack, generators, figures, rows=rows, seconds=seconds, repeat=repeat, warm_s=warm_s)
        say(f"writing a changelog of {rows:,} rows")
        stack.seed_changelog(rows)
        say("restoring it")
        with stack.gateway() as gateway:
            target = Target("tablegate", gateway.address, gateway.pid)
            if Part.RESTORE in parts:
                _restored(figures, gateway)
            if Part.STREAMS in parts and generators.go:
                streams.measure_streams(bench, target)
            if parts & {Part.GET, Part.CONNECTIONS, Part.RESTORE}:
                _contest(bench, gateway, built, parts)
            if Part.BATCH in parts:
                reads.measure_batches(bench, target)
            if Part.RANGE in parts:
                reads.measure_ranges(bench, target)
            if Part.SCAN in parts:
                reads.measure_scans(bench, target)
            if Part.SUBSCRIBE in parts:
                subscribe.measure(bench, target)
        if Part.NESTED in parts:
            nested.measure(bench)
        if Part.OTHERS in parts:
            restores.measure(bench)


def _restored(figures: Figures, gateway: GatewayProcess) -> None:
    figures.record("restore", "tablegate", [gateway.restored_rows_per_second()], "rows/s")
    replicator = gateway.replicator_pid()
    figures.record("replicator resident", "tablegate", [memory_mb(replicator, "VmRSS")], "MB")
    without = memory_mb(replicator, "RssAnon")
    figures.record("replicator resident, without file pages", "tablegate", [without], "MB")
    say("idling")
    pids = process_tree(gateway.pid)
    before_s = cpu_s(pids)
    time.sleep(IDLE_S)
    figures.record("idle gateway", "tablegate", [(cpu_s(pids) - before_s) / IDLE_S * 100], "% of a core")


def _contest(bench: Bench, gateway: GatewayProcess, built: Path | None, parts: Set[Part]) -> None:
    """Measure all contestants beside each other; then the peer's restore, from the changelog that it has made."""
    with ExitStack() as running:
        peer = None
        if built:
            with_rows = _peer_with_rows(bench, built)
            running.callback(with_rows.stop)
            peer = Target("peer", with_rows.address, with_rows.pid)
        if parts & {Part.GET, Part.CONNECTIONS}:
            plain, tls = running.enter_context(contestants(bench, gateway, peer))
            gets.warm(bench, plain + tls)
            if Part.GET in parts:
                gets.measure(bench, plain, tls)
            if Part.CONNECTIONS in parts and bench.generators.go:
                streams.measure_connections(bench, plain, tls)
    if built and Part.RESTORE in parts:
        say("restore, of the peer")
        again = Peer(built, bench.stack.bootstrap, bench.stack.directory / "peer-again", free_port())
        try:
            count, took_s = again.restored()
        finally:
            again.stop()
        bench.figures.record("restore", "peer", [count / took_s], "rows/s")


def _peer_with_rows(bench: Bench, built: Path) -> Peer:
    stack = bench.stack
    say(f"giving the peer {bench.rows:,} ratings")
    stack.create_source()
    producer = Producer(
        {"bootstrap.servers": stack.bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 500_000}
    )
    for movie in range(1, bench.rows + 1):
        producer.produce("ratings", stack.event(movie, 5.0))
        if movie % 10_000 == 0:
            producer.poll(0)
            while len(producer) > 300_000:
                producer.poll(0.1)
    producer.flush()
    peer = Peer(built, stack.bootstrap, stack.directory / "peer-state", free_port())
    try:
        while peer.folded() < bench.rows:
            time.sleep(1)
    except BaseException:
        peer.stop()
        raise
    time.sleep(5)  # its last commit
    return peer
