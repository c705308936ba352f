"""What a local table costs: `python -m tests.bench.local_reads [--rows 1000000] [--partitions 4]`.

One process serves an LMDB store over a real socket, as a worker does. This one fills a local table by a Subscribe, and
reads random rows of it. CPU of either process, µs a row; of a Get the time on the clock, and the CPU of its thread,
from which the cost of asking for it is taken off.
"""

import argparse
import asyncio
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from tablegate.client import open_channel
from tablegate.client.local import LocalTable
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.http.server import HttpServer
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.stores.base import Phase
from tablegate.gateway.stores.lmdb.store import LmdbStore
from tablegate.gateway.stores.notifier import Notifier
from tests.kit.gateways_in_process.client_copies import request, stub_method
from tests.kit.table.filled import SIGNER, FilledTable, catalogue_of, rating

AT_ONCE = 20_000
BATCH_KEYS = 100
OLD_S = 86_400.0  # nobody writes here, so the rows are as old as the store
FILL_TIMEOUT_S = 3_600.0


def _serve(directory: Path, rows: int, partitions: int, pipe: Connection) -> None:
    """Fill a store and serve it; answer each message with the CPU seconds that were used."""
    table = FilledTable(LmdbStore(directory), catalogue_of().tables["ratings"], partitions)
    table.publish(phase=Phase.RESTORING)
    for start in range(0, rows, AT_ONCE):
        table.put(rating(number) for number in range(start, min(rows, start + AT_ONCE)))
    for number in range(partitions):
        table.move(Partition(number), phase=Phase.LIVE)
    asyncio.run(_answer(table, pipe))


async def _answer(table: FilledTable, pipe: Connection) -> None:
    server = HttpServer(query_methods(catalogue_of(), table.store, SIGNER, Notifier()), "127.0.0.1:0")
    await server.start()
    pipe.send(server.port)
    while await asyncio.to_thread(pipe.recv):
        pipe.send(time.process_time())
    await server.stop(0)


def _used_s(pipe: Connection) -> float:
    pipe.send(True)
    return float(pipe.recv())


def _percentiles_us(
    read: Callable[[int], object], keys: Sequence[int], clock_ns: Callable[[], int]
) -> tuple[float, float]:
    """Return the median and the 99th percentile of what a read takes, less what reading the clock does."""
    idle_ns = statistics.median(-(clock_ns() - clock_ns()) for _ in range(10_000))
    took_ns = []
    for key in keys:
        start_ns = clock_ns()
        read(key)
        took_ns.append(clock_ns() - start_ns - idle_ns)
    took_ns.sort()
    return took_ns[len(took_ns) // 2] / 1e3, took_ns[len(took_ns) * 99 // 100] / 1e3


def _read(table: LocalTable, rows: int, turns: int) -> None:  # type: ignore[type-arg]
    choice = random.Random(1)
    keys = [choice.randrange(rows) for _ in range(turns)]
    reads: Mapping[str, Callable[[int], object]] = {
        "Get": table.get,
        "Get, max_staleness_s": lambda key: table.get(key, max_staleness_s=OLD_S),
        f"BatchGet of {BATCH_KEYS}": lambda key: table.batch_get(range(key, key + BATCH_KEYS)),
        f"Range of {BATCH_KEYS}": lambda key: table.range(start=key, limit=BATCH_KEYS),
    }
    for name, read in reads.items():
        some = turns if name.startswith("Get") else turns // 50
        wall = _percentiles_us(read, keys[:some], time.perf_counter_ns)
        cpu = _percentiles_us(read, keys[:some], time.thread_time_ns)
        print(f"{name}: p50 {wall[0]:.1f} µs, p99 {wall[1]:.1f} µs; CPU p50 {cpu[0]:.1f} µs, p99 {cpu[1]:.1f} µs")


def main() -> None:
    """Print the costs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--turns", type=int, default=200_000, help="Gets.")
    parser.add_argument("--directory", type=Path, help="Where stores are made; else in the system's.")
    arguments = parser.parse_args()
    rows = arguments.rows
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        pipe, other = spawn.Pipe()
        serve = partial(_serve, Path(name, "gateway"), rows, arguments.partitions, other)
        gateway = spawn.Process(target=serve, daemon=True)
        gateway.start()
        address = f"127.0.0.1:{pipe.recv()}"
        row = catalogue_of().tables["ratings"].row_class
        opened = partial(LocalTable, directory=Path(name, "local"), row=row)
        with open_channel(address) as channel:
            cpu_s, begin_s, gateway_s = time.process_time(), time.monotonic(), _used_s(pipe)
            with opened(stub_method(channel), request()) as table:
                table.wait_current(FILL_TIMEOUT_S)
                took_s, cpu_s = time.monotonic() - begin_s, time.process_time() - cpu_s
                gateway_us = (_used_s(pipe) - gateway_s) / rows * 1e6
                assert table.count() == rows
                size = Path(name, "local", "data.mdb").stat().st_size
                print(
                    f"{rows:,} rows, {arguments.partitions} partitions, {size / 1e6:,.0f} MB; "
                    f"load {os.getloadavg()[0]:.0f}"
                )
                print(
                    f"filled with {rows / took_s:,.0f} rows/s; CPU a row: {gateway_us:.2f} µs of the gateway, "
                    f"{cpu_s / rows * 1e6:.2f} µs here"
                )
                _read(table, rows, arguments.turns)
            begin_s = time.monotonic()
            with opened(stub_method(channel), request()) as table:
                assert table.get(rows // 2) is not None
                first_ms = (time.monotonic() - begin_s) * 1e3
                table.wait_current(60)
                print(f"opened again: first row {first_ms:.1f} ms, current {(time.monotonic() - begin_s) * 1e3:.1f} ms")
        pipe.send(False)
        gateway.join()


if __name__ == "__main__":
    main()
