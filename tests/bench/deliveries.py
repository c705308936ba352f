"""What a change costs that many subscribers want: `python -m tests.bench.deliveries [STREAMS [CONNECTIONS]]`.

One worker's server runs in a process of its own, over rows in memory. Each stream is for the same row, which is changed
50 times a second: so all of them share a message. The client speaks HTTP/2 in the raw. The figures: the CPU of the
server's event loop for each message that a client got, with all that it does besides; and how long a change takes until
the last stream has it.
"""

import asyncio
import os
import statistics
import subprocess
import sys
import time

from tablegate.gateway.http.rpc.calls import CallLimits
from tablegate.gateway.http.server import HttpServer
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.stores.notifier import Notifier
from tests.bench.idle_streams import AT_ONCE, FIELDS, SERVICE, Connection, request_of
from tests.kit.http.h2 import request
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import SIGNER, catalogue_of, rating, ratings_table

STREAMS, CONNECTIONS = 1_000, 1
CHANGES, A_SECOND = 250, 50


async def _serve(streams: int) -> None:
    """Serve; for each line that is read change the row, and answer with the CPU seconds that were used."""
    store, catalogue, notifier = MemoryStore(), catalogue_of(), Notifier()
    table = ratings_table(store, partition_count=1)
    table.put([rating(1)])
    methods = query_methods(catalogue, store, SIGNER, notifier)
    server = HttpServer(methods, "127.0.0.1:0", call_limits=CallLimits.for_streams(8 * streams))
    await server.start()
    print(server.port, flush=True)
    count = 1
    while await asyncio.to_thread(sys.stdin.readline):
        print(time.thread_time(), flush=True)
        count += 1
        table.put([rating(1, count=count)])
        notifier.notify()


def _opened(port: int, streams: int, connections: int) -> list[Connection]:
    block, wanted = request(f"{SERVICE}SubscribeRatings".encode(), *FIELDS), request_of("SubscribeRatings", movie_id=1)
    opened = []
    each = streams // connections
    for _ in range(connections):
        connection = Connection(port)
        opened.append(connection)
        for first in range(0, each, AT_ONCE):
            numbers = range(first, min(each, first + AT_ONCE))
            connection.call(block, [2 * number + 1 for number in numbers], [wanted] * len(numbers))
            while connection.messages < numbers.stop:
                connection.receive(waits=True)
                assert not connection.ended, "a stream was refused"
    return opened


def main() -> None:
    """Print the figures."""
    streams = int(sys.argv[1]) if sys.argv[1:] else STREAMS
    connections = int(sys.argv[2]) if sys.argv[2:] else CONNECTIONS
    with subprocess.Popen(
        [sys.executable, "-m", __spec__.name, "--serve", str(streams)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        opened = _opened(int(server.stdout.readline()), streams, connections)
        time.sleep(1)
        for connection in opened:
            connection.receive()
        took_ms, used_s = [], []
        began = sum(connection.messages for connection in opened)
        each = streams // connections
        for _ in range(CHANGES):
            begun_s = time.perf_counter()
            wanted = [connection.messages + each for connection in opened]
            print(file=server.stdin, flush=True)
            used_s.append(float(server.stdout.readline()))
            for connection, messages in zip(opened, wanted, strict=True):
                while connection.messages < messages:  # progress may be among them, once in five seconds
                    connection.receive(waits=True)
            took_ms.append(1e3 * (time.perf_counter() - begun_s))
            time.sleep(max(0.0, begun_s + 1 / A_SECOND - time.perf_counter()))
        given = sum(connection.messages for connection in opened) - began
        server.stdin.close()
    cpu_us = 1e6 * (used_s[-1] - used_s[0]) / (given * (CHANGES - 1) / CHANGES)
    centiles = statistics.quantiles(took_ms, n=100)
    print(f"{streams:,} streams, {connections:,} connections, {CHANGES} changes; load {os.getloadavg()[0]:.0f}")
    print(f"{cpu_us:.2f} µs of CPU a message; to the last stream: p50 {centiles[49]:.1f} ms, p99 {centiles[98]:.1f} ms")


if __name__ == "__main__":
    if "--serve" in sys.argv:
        asyncio.run(_serve(int(sys.argv[-1])))
    else:
        main()
