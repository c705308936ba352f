"""Subscribe, and reads of one's own writes: how long a change takes from its sending to those who wait for it.

Rows are written into the changelog directly, so no job is in these figures. A lag begins when a row is given to the
producer and ends in the client.
"""

import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from confluent_kafka import KafkaError, Message, Producer

from tablegate.v1.query_pb2 import SUBSCRIBE_START_LIVE
from tests.bench.changelog import SOURCE_TOPIC
from tests.bench.contestants import Bench
from tests.bench.load import GET_PATH, SERVICE, Target, say
from tests.bench.usage import cpu_s, shared_memory_mb
from tests.kit.programs.processes import process_tree

SUBSCRIBE_PATH = f"{SERVICE}/SubscribeRatings"
STREAMS_A_CONNECTION = 25
WARM_S = 2.0
LAGS = ((1, 200.0), (1_000, 20.0))  # subscribers, changes a second
FANOUT_STREAMS, FANOUT_RATE = 500, 5_000.0  # more than two cores give to all
IDLE_STREAMS = 2_000
SETTLE_S = 2.0
STALLED, STALLED_OF, STALLED_RATE = 50, 200, 200.0
STALLED_WARM_S = 12.0  # until the windows of streams that nobody reads, and what is kept for them, are full
REPEAT_MAX = 3  # snapshots are the same again and again
OWN_WRITES = 300


@dataclass(frozen=True)
class Seen:
    """What subscribers saw in a window, and the cores that both sides used in it."""

    per_second: float
    p50_ms: float
    p99_ms: float
    client_cores: float
    server_cores: float
    server_mb: float


def measure(bench: Bench, target: Target) -> None:
    """Record all figures."""
    if bench.generators.go:
        _measure_idle(bench, target)  # first: whatever reads many rows leaves pages of the store mapped
        _measure_lags(bench, target)
        _measure_fanout(bench, target)
        _measure_stalled(bench, target)
        _measure_snapshot(bench, target)
    _measure_own_writes(bench, target)


def _measure_lags(bench: Bench, target: Target) -> None:
    for streams, rate in LAGS:
        name = f"change → {streams:,} subscriber{'s' if streams > 1 else ''}, {rate:.0f} changes/s"
        say(name)
        seen = _watched(bench, target, streams=streams, rate=rate)
        cost_us = seen.server_cores / seen.per_second * 1e6
        values = {"p50": (seen.p50_ms, "ms"), "p99": (seen.p99_ms, "ms"), "server CPU": (cost_us, "µs a change")}
        _record(bench, target, name, values)
        _check_all_came(seen, streams * rate)


def _measure_fanout(bench: Bench, target: Target) -> None:
    name = f"changes to {FANOUT_STREAMS} subscribers"
    say(name)
    seen = _watched(bench, target, streams=FANOUT_STREAMS, rate=FANOUT_RATE)
    values = {"": (seen.per_second, "changes/s"), "p99": (seen.p99_ms, "ms")}
    cores = {"gateway": (seen.server_cores, "cores"), "clients": (seen.client_cores, "cores")}
    _record(bench, target, name, values | cores)


def _measure_idle(bench: Bench, target: Target) -> None:
    say(f"{IDLE_STREAMS:,} idle subscriptions")
    requests = bench.generators.requests(SUBSCRIBE_PATH, [_one_movie(bench, movie) for movie in range(IDLE_STREAMS)])
    connections = IDLE_STREAMS // STREAMS_A_CONNECTION
    before_mb = shared_memory_mb(process_tree(target.pid))
    with bench.generators.open_streams(target, requests, IDLE_STREAMS, connections):
        time.sleep(SETTLE_S)
        used_mb = shared_memory_mb(process_tree(target.pid))
    values = {"": (used_mb, "MB"), "before": (before_mb, "MB")}
    _record(bench, target, f"memory with {IDLE_STREAMS:,} subscriptions of one key", values)


def _measure_stalled(bench: Bench, target: Target) -> None:
    reading = STALLED_OF - STALLED
    for stalled in (0, STALLED):
        name = f"change → {reading} subscribers{f' beside {STALLED} who never read' if stalled else ''}"
        say(name)
        seen = _watched(
            bench,
            target,
            streams=reading + stalled,
            stalled=stalled,
            rate=STALLED_RATE,
            warm_s=STALLED_WARM_S if stalled else WARM_S,
        )
        values = {"p50": (seen.p50_ms, "ms"), "p99": (seen.p99_ms, "ms"), "memory": (seen.server_mb, "MB")}
        _record(bench, target, name, values)
        _check_all_came(seen, reading * STALLED_RATE)


def _measure_snapshot(bench: Bench, target: Target) -> None:
    say("a subscription's snapshot")
    requests = bench.generators.requests(SUBSCRIBE_PATH, [b""])
    rates = []
    for _ in range(min(bench.repeat, REPEAT_MAX)):
        words = bench.generators.go_words("subscribe", target, requests, "--warm", "0", "--seconds", "0")
        done = subprocess.run(words, check=True, capture_output=True, text=True)
        first = json.loads(done.stdout.splitlines()[0])
        if first["rows"] != bench.rows:
            raise RuntimeError(f"a snapshot gave {first['rows']} rows of {bench.rows}")
        rates.append(first["rows"] / first["elapsed_s"])
    bench.figures.record("Subscribe, snapshot", target.who, rates, "rows/s", load="Go")


def _watched(
    bench: Bench, target: Target, *, streams: int, rate: float, stalled: int = 0, warm_s: float = WARM_S
) -> Seen:
    """Subscribe to all changes, make changes, and return what came of them."""
    request = bench.stack.message("SubscribeRatingsRequest")
    request.subscribe_options.start = SUBSCRIBE_START_LIVE
    requests = bench.generators.requests(SUBSCRIBE_PATH, [request.SerializeToString()])
    options = {"--streams": streams, "--stalled": stalled, "--warm": warm_s, "--seconds": bench.seconds}
    options["--connections"] = max(1, streams // STREAMS_A_CONNECTION)
    words = [str(word) for option in options.items() for word in option]
    command = bench.generators.go_words("subscribe", target, requests, *words)
    with (
        _writing(bench, rate, warm_s + bench.seconds) as begin_writing,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client,
    ):
        try:
            _told(client, "current")
            begin_writing()
            _told(client, "counting")
            pids = process_tree(target.pid)
            before_s = cpu_s(pids)
            report = _told(client, "changes")
            used_s = cpu_s(pids) - before_s
            used_mb = shared_memory_mb(pids)
        finally:
            client.kill()
    elapsed_s = report["elapsed_s"]
    return Seen(
        per_second=report["changes"] / elapsed_s,
        p50_ms=report["p50_ms"],
        p99_ms=report["p99_ms"],
        client_cores=report["cpu_s"] / elapsed_s,
        server_cores=used_s / elapsed_s,
        server_mb=used_mb,
    )


@contextmanager
def _writing(bench: Bench, rate: float, seconds: float) -> Iterator[Any]:
    """Have a writer ready; what is given begins its work. It writes a little longer than `seconds`."""
    stack = bench.stack
    options = {"--protoset": stack.protoset, "--bootstrap": stack.bootstrap, "--rows": bench.rows}
    options |= {"--rate": rate, "--seconds": seconds + 1.0}
    words = [str(word) for option in options.items() for word in option]
    command = [sys.executable, "-m", "tests.bench.writer", *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        try:
            if process.stdout.readline() != "ready\n":
                raise RuntimeError("the writer did not start")
            yield process.stdin.close
        finally:
            process.kill()


def _told(client: subprocess.Popen[str], what: str) -> dict[str, Any]:
    assert client.stdout
    line: dict[str, Any] = json.loads(client.stdout.readline() or "{}")
    if what not in line:
        raise RuntimeError("subscribers gave up; see above")
    return line


def _check_all_came(seen: Seen, per_second: float) -> None:
    """Raise where much less came than was sent: lags of the rest would say nothing."""
    if seen.per_second < per_second / 2:
        raise RuntimeError(f"{seen.per_second:,.0f} changes/s came of {per_second:,.0f}; the machine is too busy")


def _one_movie(bench: Bench, number: int) -> bytes:
    request = bench.stack.message("SubscribeRatingsRequest")
    request.movie_id = 1 + number % bench.rows
    return bytes(request.SerializeToString())


def _measure_own_writes(bench: Bench, target: Target) -> None:
    """Write a row, and with the acknowledgement ask for it: by the changelog's end, and by the offset of its source."""
    say("own writes")
    for how in ("latest", "at_least_source"):
        waited = _own_writes(bench, target, how)
        values = {"p50": (statistics.median(waited), "ms"), "p99": (_p99(waited), "ms")}
        _record(bench, target, f"acknowledgement → Get with {how}", values, load="Python")


def _own_writes(bench: Bench, target: Target, how: str) -> list[float]:
    """Return, in ms, how long each Get took that asked for the row written just before."""
    response_class = type(bench.stack.message("GetRatingResponse"))
    producer = Producer({"bootstrap.servers": bench.stack.bootstrap, "linger.ms": 0})
    failures: list[KafkaError] = []

    def note(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failures.append(error)

    choice = random.Random(1)
    waited = []
    with grpc.insecure_channel(target.address) as channel:
        get = channel.unary_unary(GET_PATH, response_deserializer=response_class.FromString)
        for _ in range(OWN_WRITES):
            request = bench.stack.message("GetRatingRequest")
            request.movie_id = choice.randint(1, bench.rows)
            time_us = time.time_ns() // 1_000
            producer.produce(**bench.stack.changelog.record(request.movie_id, time_us), on_delivery=note)
            if producer.flush(10) or failures:
                raise RuntimeError(f"a row was not taken by the broker: {failures}")
            if how == "latest":
                request.read_options.latest = True
            else:
                request.read_options.at_least_source.topics.add(topic=SOURCE_TOPIC).offsets[0] = time_us
            begin = time.perf_counter()
            answer = get(request.SerializeToString(), timeout=5)
            waited.append((time.perf_counter() - begin) * 1000)
            if answer.rating.update_time.ToMicroseconds() != time_us:
                raise RuntimeError("an answer is older than was asked")
    return waited


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


def _record(bench: Bench, target: Target, name: str, values: dict[str, tuple[float, str]], *, load: str = "Go") -> None:
    for what, (value, unit) in values.items():
        bench.figures.record(f"{name}, {what}" if what else name, target.who, [value], unit, load=load)
