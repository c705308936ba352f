"""Reads and restore, on a table whose changelog was written directly."""

import itertools
import statistics
import time
from pathlib import Path

import grpc
from confluent_kafka import Producer

from tests.bench.load import GET_PATH, Load, cpu_s, memory_mb, say, unary_load
from tests.bench.peer import Peer
from tests.bench.stack import GatewayProcess, Stack, request_bytes
from tests.support.processes import process_tree

BATCH_PATH = "/examples.ratings.v1.RatingsService/BatchGetRatings"
SCAN_PATH = "/examples.ratings.v1.RatingsService/ScanRatings"
BATCH_KEYS = 100
ROUNDS = 3
IDLE_S = 20.0


def measure(
    work: Path, built: Path | None, *, rows: int, seconds: float, warm_s: float
) -> dict[str, dict[str, float | str]]:
    """Return the figures of restore, Get, BatchGet, Scan and idling."""
    figures: dict[str, dict[str, float | str]] = {}
    with Stack(work / "reads") as stack:
        say(f"writing a changelog of {rows:,} rows")
        stack.seed_changelog(rows)
        say("restore, then idling")
        with stack.gateway() as gateway:
            figures["restore"] = {"unit": "rows/s", "tablegate": gateway.restored_rows_per_second()}
            figures["replicator resident"] = {"unit": "MB", "tablegate": memory_mb(gateway.replicator_pid(), "VmRSS")}
            figures["replicator resident, without file pages"] = {
                "unit": "MB",
                "tablegate": memory_mb(gateway.replicator_pid(), "RssAnon"),
            }
            figures["idle gateway"] = {"unit": "% of a core", "tablegate": _idle(gateway)}
            peer = _peer_with_rows(work, built, stack, rows) if built else None
            try:
                _gets(figures, stack, gateway, peer, rows=rows, seconds=seconds, warm_s=warm_s)
            finally:
                if peer:
                    peer.stop()
            _batches_and_scans(figures, stack, gateway, rows=rows, seconds=seconds)
        if built:
            say("restore, of the peer")
            state = work / "peer-again"
            again = Peer(built, stack.bootstrap, state, stack.free_port())
            count, took_s = again.restored()
            figures["restore"]["peer"] = count / took_s
            again.stop()
    return figures


def _idle(gateway: GatewayProcess) -> float:
    pids = process_tree(gateway.pid)
    before = cpu_s(pids)
    time.sleep(IDLE_S)
    return (cpu_s(pids) - before) / IDLE_S * 100


def _peer_with_rows(work: Path, built: Path, stack: Stack, rows: int) -> Peer:
    say(f"giving the peer {rows:,} ratings")
    stack.create_source()
    producer = Producer(
        {"bootstrap.servers": stack.bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 500_000}
    )
    for movie in range(1, rows + 1):
        while True:
            try:
                producer.produce("ratings", stack.event(movie, 5.0))
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    producer.flush()
    peer = Peer(built, stack.bootstrap, work / "peer-state", stack.free_port())
    while peer.folded() < rows:
        time.sleep(1)
    time.sleep(5)  # its last commit
    return peer


def _gets(
    figures: dict[str, dict[str, float | str]],
    stack: Stack,
    gateway: GatewayProcess,
    peer: Peer | None,
    *,
    rows: int,
    seconds: float,
    warm_s: float,
) -> None:
    """Ours and the peer's in turns, the median of each figure."""
    targets = {"tablegate": (gateway.address, gateway.pid)} | ({"peer": (peer.address, peer.pid)} if peer else {})
    # A key in the middle, and each request the same: what is measured is the way, not the cache.
    movie = rows // 2

    def load(who: str, length_s: float) -> Load:
        address, pid = targets[who]
        request = {"movie_id": str(movie)}
        return unary_load(
            address,
            pid,
            path=GET_PATH,
            request=request,
            raw=request_bytes(movie),
            protoset=stack.protoset,
            seconds=length_s,
        )

    for who in targets:
        say(f"Get, warming {who}")
        load(who, warm_s if who == "peer" else min(warm_s, 10.0))
    measured: dict[str, list[Load]] = {who: [] for who in targets}
    for _, who in itertools.product(range(ROUNDS), targets):
        say(f"Get, {who}")
        measured[who].append(load(who, seconds))
    for who, loads in measured.items():
        if any(one.failed for one in loads):
            raise RuntimeError(f"{sum(one.failed for one in loads)} calls to {who} failed")
        for name, unit, values in (
            ("Get", "requests/s", [one.requests_per_second for one in loads]),
            ("Get, server CPU", "µs a request", [one.server_cpu_us for one in loads]),
            ("Get p50, 32 in flight", "ms", [one.p50_ms for one in loads]),
            ("Get p99, 32 in flight", "ms", [one.p99_ms for one in loads]),
        ):
            entry = figures.setdefault(name, {"unit": f"{unit} ({loads[0].generator})"})
            entry[who] = statistics.median(values)


def _batches_and_scans(
    figures: dict[str, dict[str, float | str]], stack: Stack, gateway: GatewayProcess, *, rows: int, seconds: float
) -> None:
    say("BatchGet and Scan")
    keys = [1 + n * (rows // BATCH_KEYS) for n in range(BATCH_KEYS)]
    batch = unary_load(
        gateway.address,
        gateway.pid,
        path=BATCH_PATH,
        request=None,  # ghz would parse the JSON of a hundred keys anew for each call, on the server's cores
        raw=stack.batch_bytes(keys),
        protoset=stack.protoset,
        seconds=seconds,
    )
    figures["BatchGet, 100 keys"] = {
        "unit": f"keys/s ({batch.generator})",
        "tablegate": batch.requests_per_second * BATCH_KEYS,
    }
    figures["BatchGet, server CPU"] = {"unit": "µs a key", "tablegate": batch.server_cpu_us / BATCH_KEYS}
    rates = []
    for _ in range(ROUNDS):
        with grpc.insecure_channel(gateway.address, options=[("grpc.max_receive_message_length", -1)]) as channel:
            start = time.perf_counter()
            messages = list(channel.unary_stream(SCAN_PATH)(b""))
            took_s = time.perf_counter() - start
        found = stack.count_scanned(messages)
        if found != rows:
            raise RuntimeError(f"a Scan gave {found} rows of {rows}")
        rates.append(rows / took_s)
    figures["Scan"] = {"unit": "rows/s (Python client)", "tablegate": statistics.median(rates)}
