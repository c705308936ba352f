"""BatchGet, Range and Scan of a gateway alone: no other contestant has them."""

import random
import time
from collections.abc import Sequence

import grpc

from tests.bench.contestants import Bench
from tests.bench.load import SERVICE, Target, say

BATCH_PATH = f"{SERVICE}/BatchGetRatings"
RANGE_PATH = f"{SERVICE}/ListRatings"
SCAN_PATH = f"{SERVICE}/ScanRatings"
BATCH_SIZES = (10, 100, 1_000)
PAGE_ROWS = 50
REQUESTS = 200  # different ones, sent again and again
WARM_S = 1.0


def measure_batches(bench: Bench, target: Target) -> None:
    """Record keys/s and server CPU a key."""
    choice = random.Random(1)
    for size in BATCH_SIZES:
        batches = [choice.choices(range(1, bench.rows + 1), k=size) for _ in range(REQUESTS)]
        messages = [bench.stack.batch_bytes(keys) for keys in batches]
        _calls(bench, target, BATCH_PATH, messages, f"BatchGet of {size:,}", of="key", times=size)


def measure_ranges(bench: Bench, target: Target) -> None:
    """Record pages/s and server CPU a page."""
    choice = random.Random(1)
    starts = [choice.randint(1, bench.rows - PAGE_ROWS) for _ in range(REQUESTS)]
    messages = [bench.stack.page_bytes(start, PAGE_ROWS) for start in starts]
    _calls(bench, target, RANGE_PATH, messages, f"Range, pages of {PAGE_ROWS} rows", of="page", times=1)


def _calls(
    bench: Bench, target: Target, path: str, messages: Sequence[bytes], name: str, *, of: str, times: int
) -> None:
    say(name)
    with grpc.insecure_channel(target.address) as channel:
        answer = channel.unary_unary(path)(messages[0], timeout=5)
    rows, expected = bench.stack.count_rows(path, [answer]), PAGE_ROWS if path == RANGE_PATH else times
    if rows != expected:
        raise RuntimeError(f"{name}: {rows} rows instead of {expected}")
    requests = bench.generators.requests(path, messages)
    bench.generators.calls(target, requests, WARM_S)
    loads = bench.in_turns([target], lambda _: bench.generators.calls(target, requests, bench.seconds))
    bench.record(name, loads, of=of, times=times)


def measure_scans(bench: Bench, target: Target) -> None:
    """Record rows/s to a Go client and to a Python client, and server CPU a row."""
    say("Scan")
    requests = bench.generators.requests(SCAN_PATH, [b""])
    if bench.generators.go:
        bench.generators.scan(target, requests, bench.rows)
        loads = bench.in_turns([target], lambda _: bench.generators.scan(target, requests, bench.rows))
        bench.record("Scan", loads, of="row")
    rates = [_python_scan(bench, target) for _ in range(bench.repeat)]
    bench.figures.record("Scan, Python client", target.who, rates, "rows/s", load="Python")


def _python_scan(bench: Bench, target: Target) -> float:
    with grpc.insecure_channel(target.address, options=[("grpc.max_receive_message_length", -1)]) as channel:
        start = time.perf_counter()
        messages = list(channel.unary_stream(SCAN_PATH)(b""))
        took_s = time.perf_counter() - start
    found = bench.stack.count_rows(SCAN_PATH, messages)
    if found != bench.rows:
        raise RuntimeError(f"a Scan gave {found} rows of {bench.rows}")
    return bench.rows / took_s
