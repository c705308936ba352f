"""How long a Get takes beside scans that never end: `python -m tests.bench.fairness [SCANS] [SECONDS] [grpc]`.

One worker's server runs in a process of its own, over rows in LMDB. Clients read whole scans again and again: as JSON
lines over HTTP/1.1, each on a connection of its own, or with `grpc` over ten connections together. One more asks for
one row at a time. The figures: p50 and p99 of a Get in ms, with no scan beside it and with all of them; and MB/s of all
scans together, with no Get beside them and with it.
"""

import asyncio
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tablegate.gateway.http.h2 import frames
from tablegate.gateway.http.h2.frames import WINDOW_BYTES, WINDOW_MAX, window_update
from tablegate.gateway.http.server import HttpServer, web_protocols
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.stores.lmdb.store import LmdbStore
from tablegate.gateway.stores.notifier import Notifier
from tests.kit.http.h2 import OPENING, data, head, initial_window, request
from tests.kit.table.filled import SIGNER, catalogue_of, rating, ratings_table

ROWS = 20_000
_GET = b"GET /v1/ratings/7 HTTP/1.1\r\nhost: localhost\r\n\r\n"
_SCAN = b"GET /v1/ratings:scan HTTP/1.1\r\nhost: localhost\r\n\r\n"
_SERVE = (sys.executable, "-m", "tests.bench.fairness", "serve")
_END = b"\r\n0\r\n\r\n"
_CONNECTIONS = 10  # of all scans over gRPC
_SCAN_METHOD = b"/examples.ratings.v1.RatingsService/ScanRatings"


async def _serve(directory: Path) -> None:
    store, catalogue = LmdbStore(directory), catalogue_of()
    ratings_table(store).put(rating(number) for number in range(ROWS))
    methods = query_methods(catalogue, store, SIGNER, Notifier())
    server = HttpServer(methods, "127.0.0.1:0", web=web_protocols(catalogue))
    await server.start()
    print(server.port, flush=True)
    await asyncio.Event().wait()


@contextmanager
def serve_alone() -> Iterator[tuple[int, int]]:
    """Serve in a process of its own; give the port and the process id."""
    with (
        tempfile.TemporaryDirectory(prefix="tablegate-bench-") as directory,
        subprocess.Popen([*_SERVE, directory], stdout=subprocess.PIPE) as server,
    ):
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline()), server.pid
        finally:
            server.kill()


async def _scan(port: int, received: list[int]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while True:
        writer.write(_SCAN)
        tail = b""
        while not tail.endswith(_END):
            data = await reader.read(1 << 18)
            assert data, "the server ended a scan"
            assert tail or data.startswith(b"HTTP/1.1 200"), data[:300]
            received[0] += len(data)
            tail = (tail + data)[-len(_END) :]


async def _scan_grpc(port: int, scans: int, received: list[int]) -> None:
    """Have so many scans open on one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(OPENING + initial_window(WINDOW_MAX) + window_update(0, WINDOW_MAX - WINDOW_BYTES))
    block, stream = request(_SCAN_METHOD, (b"content-type", b"application/grpc"), (b"te", b"trailers")), 1

    def begin() -> None:
        nonlocal stream
        writer.write(head(stream, block) + data(stream, bytes(5), ended=True))
        stream += 2

    for _ in range(scans):
        begin()
    untold = 0  # bytes that our window of the connection is narrower by
    while True:
        first, flags, of = frames.unpack_frame_header(await reader.readexactly(frames.FRAME_HEADER_BYTES), 0)
        length, kind = first >> 8, first & 0xFF
        payload = await reader.readexactly(length)
        if kind == frames.DATA:
            received[0] += length
            untold += length
            if untold > 1 << 24:
                writer.write(window_update(0, untold))
                untold = 0
        elif kind == frames.HEADERS and flags & frames.END_STREAM:
            assert b"grpc-status\x010" in payload, payload
            begin()
        assert kind not in (frames.RST_STREAM, frames.GOAWAY), (kind, of, payload)


def _gets(port: int, seconds: float) -> str:
    """Ask for one row at a time; return how long that took."""
    times = []
    with socket.create_connection(("127.0.0.1", port)) as client:
        until = time.monotonic() + seconds
        while (begun := time.monotonic()) < until:
            client.sendall(_GET)
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")
            times.append(time.monotonic() - begun)
            time.sleep(0.005)
    times.sort()
    at = [1_000 * times[int(len(times) * part)] for part in (0.5, 0.99)]
    return f"a Get p50 {at[0]:.2f} ms, p99 {at[1]:.2f} ms"


async def _measure(port: int, scans: int, seconds: float, *, is_grpc: bool) -> None:
    received = [0]
    print(f"no scan: {await _asked(port, seconds)}")
    if is_grpc:
        each = scans // _CONNECTIONS
        tasks = [asyncio.ensure_future(_scan_grpc(port, each, received)) for _ in range(_CONNECTIONS)]
    else:
        tasks = [asyncio.ensure_future(_scan(port, received)) for _ in range(scans)]
    await asyncio.sleep(1)
    before, begun = received[0], time.monotonic()
    await asyncio.sleep(seconds)
    alone = (received[0] - before) / (time.monotonic() - begun)
    before, begun = received[0], time.monotonic()
    took = await _asked(port, seconds)
    rate = (received[0] - before) / (time.monotonic() - begun)
    for task in tasks:
        task.cancel()
        if task.done() and not task.cancelled():
            task.result()
    print(
        f"{scans} scans{' over gRPC' if is_grpc else ''}: {took}; scans {alone / 1e6:.1f}, then {rate / 1e6:.1f} MB/s"
    )


async def _asked(port: int, seconds: float) -> str:
    """Return what Gets take, of a process of their own: beside the scans' clients a Get would wait for those, too."""
    words = [sys.executable, "-m", "tests.bench.fairness", "gets", str(port), str(seconds)]
    getting = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    took, _ = await getting.communicate()
    assert getting.returncode == 0, "the Gets failed"
    return took.decode().strip()


def main() -> None:
    """Serve, or ask; or measure with both in other processes."""
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(_serve(Path(sys.argv[2])))
        return
    if sys.argv[1:2] == ["gets"]:
        print(_gets(int(sys.argv[2]), float(sys.argv[3])))
        return
    scans, seconds = int((sys.argv[1:2] or ["10"])[0]), float((sys.argv[2:3] or ["5"])[0])
    with serve_alone() as (port, _):
        asyncio.run(_measure(port, scans, seconds, is_grpc="grpc" in sys.argv))


if __name__ == "__main__":
    main()
