"""What Subscribe streams cost a worker that has nothing to send: `python -m tests.bench.idle_streams [STREAMS [S]]`.

One worker's server runs in a process of its own, over rows in memory, and may have as many streams as there are. Each
stream is for a row of its own; a connection has 1,000. The client speaks HTTP/2 in the raw, as one that makes 10,000
streams by a library would need more memory than the server. The figures: memory a stream; the server's CPU to open one,
and for a message of progress, of which each stream has one in S (5) seconds; and a Get on a connection of its own,
before and beside them. At last all connections are cut at once, and each stream is asked for again with its resume
token: how many are refused, how long the first message takes, and how many have a row twice.
"""

import asyncio
import os
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from tablegate.gateway.http.h2 import frames
from tablegate.gateway.http.h2.frames import WINDOW_BYTES, WINDOW_MAX, window_update
from tablegate.gateway.http.rpc.calls import CallLimits
from tablegate.gateway.http.rpc.grpc import envelope
from tablegate.gateway.http.server import HttpServer
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.stores.notifier import Notifier
from tests.bench.usage import cpu_s, shared_memory_mb
from tests.kit.http.h2 import OPENING, data, head, request
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import SIGNER, catalogue_of, rating, ratings_table

STREAMS = 10_000
A_CONNECTION = 1_000
PROGRESS_S = 5  # between messages of a stream
AT_ONCE = 20  # opened: so few that none is refused for want of time
PARTITIONS = 12
IDLE_S = 30.0
GETS = 3_000
LATE_S = 2.0  # a connection whose pings nobody answers is ended
SERVICE = "/examples.ratings.v1.RatingsService/"
FIELDS = ((b"content-type", b"application/grpc"), (b"te", b"trailers"))
_HEAD_BYTES = 9
ENVELOPE_BYTES = 5
STORM_S = 30.0
_ACK = 1


async def _serve(rows: int) -> None:
    store, catalogue = MemoryStore(), catalogue_of()
    ratings_table(store, PARTITIONS).put(map(rating, range(rows)))
    methods = query_methods(catalogue, store, SIGNER, Notifier())
    server = HttpServer(methods, "127.0.0.1:0", call_limits=CallLimits.for_streams(8 * rows))
    await server.start()
    print(server.port, flush=True)
    await asyncio.Event().wait()


class Connection:
    """A connection. It counts the messages and the ends of its streams, and throws them away."""

    def __init__(self, port: int) -> None:
        self.messages = self.ended = 0
        self.newest: dict[int, bytes] = {}  # by stream, the last message
        self._received = b""
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(OPENING + window_update(0, WINDOW_MAX - WINDOW_BYTES))

    def call(self, block: bytes, streams: Sequence[int], requests: Sequence[bytes]) -> None:
        """Ask these requests."""
        self._socket.sendall(
            b"".join(
                head(stream, block) + data(stream, envelope(each), ended=True)
                for stream, each in zip(streams, requests, strict=True)
            )
        )

    def cut(self) -> None:
        """Reset the connection."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def receive(self, *, waits: bool = False) -> None:
        """Count what has come."""
        self._socket.setblocking(waits)
        try:
            while True:
                received = self._socket.recv(1 << 20)
                assert received, "the server has closed a connection"
                self._received += received
                if waits:
                    break
        except BlockingIOError:
            pass
        self._socket.setblocking(True)
        at = 0
        while len(self._received) - at >= _HEAD_BYTES:
            size = int.from_bytes(self._received[at : at + 3], "big")
            end = at + _HEAD_BYTES + size
            if end > len(self._received):
                break
            kind, flags = self._received[at + 3], self._received[at + 4]
            if kind in (frames.PING, frames.SETTINGS) and not flags & _ACK:
                payload = self._received[at + _HEAD_BYTES : end] if kind == frames.PING else b""
                self._socket.sendall(frames.frame(kind, _ACK, 0, payload))
            if kind == frames.DATA:
                self.messages += 1
                stream = int.from_bytes(self._received[at + 5 : at + _HEAD_BYTES], "big")
                self.newest[stream] = self._received[at + _HEAD_BYTES + ENVELOPE_BYTES : end]
            self.ended += kind == frames.RST_STREAM or (kind == frames.HEADERS and bool(flags & frames.END_STREAM))
            at = end
        self._received = self._received[at:]


def request_of(method: str, **fields: Any) -> bytes:
    return catalogue_of().queries[SERVICE + method].request_class(**fields).SerializeToString()


def _get_ms(port: int, rows: int) -> list[float]:
    """Return how long Gets take, one after the other."""
    connection, block, took_ms = Connection(port), request(f"{SERVICE}GetRating".encode(), *FIELDS), []
    for count in range(GETS):
        begin_s = time.perf_counter()
        connection.call(block, [2 * count + 1], [request_of("GetRating", movie_id=count % rows + 1)])
        while connection.ended <= count:
            connection.receive(waits=True)
        took_ms.append(1e3 * (time.perf_counter() - begin_s))
    assert connection.messages == GETS, "rows were not found"
    return took_ms


def _print_gets(when: str, took_ms: list[float]) -> None:
    centiles = statistics.quantiles(took_ms, n=100)
    print(f"a Get {when}: p50 {centiles[49]:.2f} ms, p99 {centiles[98]:.2f} ms", flush=True)


def _opened(port: int, count: int, progress_s: int) -> list[Connection]:
    connections: list[Connection] = []
    options = {"progress_interval": {"seconds": progress_s}}
    block, late_s = request(f"{SERVICE}SubscribeRatings".encode(), *FIELDS), time.monotonic() + LATE_S
    for first in range(0, count, A_CONNECTION):
        connection = Connection(port)
        connections.append(connection)
        for at in range(0, A_CONNECTION, AT_ONCE):
            streams = range(2 * at + 1, 2 * (at + AT_ONCE) + 1, 2)
            seen = connection.messages
            numbers = range(first + at + 1, first + at + AT_ONCE + 1)
            requests = [request_of("SubscribeRatings", movie_id=each, subscribe_options=options) for each in numbers]
            connection.call(block, streams, requests)
            while connection.messages < seen + AT_ONCE:
                connection.receive(waits=True)
                # To wait for its messages would leave pings unanswered, and end all connections.
                assert not connection.ended, "a stream was refused"
            if time.monotonic() > late_s:
                late_s = time.monotonic() + LATE_S
                for each in connections:
                    each.receive()
    return connections


def _storm(port: int, server: int, connections: Sequence[Connection]) -> str:
    """Cut all connections, and ask for each of their streams again; return what came of it."""
    response_class = catalogue_of().queries[SERVICE + "SubscribeRatings"].response_class
    block, asked = request(f"{SERVICE}SubscribeRatings".encode(), *FIELDS), []
    for place, each in enumerate(connections):
        requests = {
            stream: request_of(
                "SubscribeRatings",
                movie_id=place * A_CONNECTION + (stream + 1) // 2,
                subscribe_options={"resume_token": response_class.FromString(message).progress.resume_token},
            )
            for stream, message in each.newest.items()
        }
        asked.append(requests)
    for each in connections:
        each.cut()
    again = [Connection(port) for _ in connections]
    before_s, begun_s, took_s, twice, seen = cpu_s([server]), time.monotonic(), [], 0, [set() for _ in again]
    for each, requests in zip(again, asked, strict=True):
        each.call(block, list(requests), list(requests.values()))
    count = sum(map(len, asked))
    while len(took_s) + sum(each.ended for each in again) < count and time.monotonic() < begun_s + STORM_S:
        for each, had in zip(again, seen, strict=True):
            each.receive()
            for stream in each.newest.keys() - had:
                had.add(stream)
                took_s.append(time.monotonic() - begun_s)
                twice += bool(response_class.FromString(each.newest[stream]).changes)
        time.sleep(0.005)
    refused, used_us = sum(each.ended for each in again), 1e6 * (cpu_s([server]) - before_s) / count
    centiles = statistics.quantiles(took_s, n=100)
    return (
        f"cut and asked for again: {len(took_s):,} of {count:,} go on,"
        f" p50 {centiles[49]:.2f} s, p99 {centiles[98]:.2f} s;"
        f" {refused:,} are refused, {twice:,} have a row twice; {used_us:.0f} µs of CPU each"
    )


def main() -> None:
    """Serve, or measure with a server in another process."""
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(_serve(int(sys.argv[2])))
        return
    count, progress_s = (int(each) for each in [*sys.argv[1:3], *(STREAMS, PROGRESS_S)[len(sys.argv[1:3]) :]])
    command = [sys.executable, "-m", "tests.bench.idle_streams", "serve", str(count + 1)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        try:
            port = int(server.stdout.readline())
            _get_ms(port, count)
            _print_gets("alone", _get_ms(port, count))
            before_mb, before_s = shared_memory_mb([server.pid]), cpu_s([server.pid])
            connections = _opened(port, count, progress_s)
            opened_us = 1e6 * (cpu_s([server.pid]) - before_s) / count
            memory_kb = 1024 * (shared_memory_mb([server.pid]) - before_mb) / count
            print(f"{count:,} streams: {memory_kb:.1f} KiB and {opened_us:.0f} µs of CPU each", flush=True)
            messages, before_s = sum(each.messages for each in connections), cpu_s([server.pid])
            until_s = time.monotonic() + IDLE_S
            while time.monotonic() < until_s:
                time.sleep(0.2)
                for each in connections:
                    each.receive()
            used_s, messages = cpu_s([server.pid]) - before_s, sum(each.messages for each in connections) - messages
            print(
                f"idle: {100 * used_s / IDLE_S:.0f} % of a core, {1e6 * used_s / messages:.0f} µs a message", flush=True
            )
            _print_gets("beside them", _get_ms(port, count))
            assert not sum(each.ended for each in connections), "streams have ended"
            print(_storm(port, server.pid, connections), flush=True)
        finally:
            os.kill(server.pid, 9)


if __name__ == "__main__":
    main()
