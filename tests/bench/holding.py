"""What connections make a worker hold that ask for much and take nothing: `python -m tests.bench.holding [COUNT]`.

One worker's server runs in a process of its own, over rows in LMDB; each kind of client (`KINDS`) has a new one. The
figures: the server's memory (RSS) afterwards less that before, for each connection and in all; and what a client of
another address gets that comes then.
"""

import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from socket import create_connection, socket

from tests.bench.fairness import serve_alone
from tests.kit.http.h2 import OPENING, call, data, head, initial_window, request

IDLE_S = 1.5  # longer than the server's timer
SEND_S = 2.0  # then the server takes no more

_BATCH = request(b"/v1/ratings:batchGet")
_VALUE = b"v" * 3_900
_NAMED = _BATCH + b"\x40\x01x\x7f\xbd\x1d" + _VALUE  # a literal that is indexed: 127 and 0x3d + 0x1d * 128 bytes
_REPEATED = _BATCH + b"\xbe" * 3  # by its index, 62
_PAGE = request(b"/v1/ratings?pageSize=1000", method=b"GET")
_SCAN = request(b"/v1/ratings:scan", method=b"GET")


def _streams(count: int) -> range:
    return range(1, 2 * count, 2)


KINDS: Mapping[str, bytes] = {
    "idle": OPENING + call(1, b"/v1/ratings/7"),
    # Calls whose bodies never come, with fields of 12 KB that a few bytes on the wire stand for.
    "headers": OPENING + head(1, _NAMED) + b"".join(head(stream, _REPEATED) for stream in _streams(1_000)[1:]),
    # Bodies up to the connection's window, none of them whole.
    "bodies": OPENING + b"".join(head(stream, _BATCH) + data(stream, b" " * 16_000) for stream in _streams(64)),
    # Pages, and scans, of which nothing is taken.
    "answers": OPENING + initial_window(0) + b"".join(head(stream, _PAGE, ended=True) for stream in _streams(200)),
    "scans": OPENING + initial_window(0) + b"".join(head(stream, _SCAN, ended=True) for stream in _streams(200)),
    # Most of a body.
    "http1": b"POST /v1/ratings:batchGet HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n"
    + b" " * 999_999,
}


def _resident(pid: int) -> int:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1_024


def _wait_until_idle(pid: int) -> None:
    """Return when a process has used no time of the processor for a while."""
    used, before = 0, -10
    while used - before > 1:
        before = used
        time.sleep(IDLE_S)
        used = sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))


def _client(port: int, source: str, message: bytes) -> socket:
    client = create_connection(("127.0.0.1", port), source_address=(source, 0))
    client.settimeout(SEND_S)
    with suppress(TimeoutError, ConnectionError):
        client.sendall(message)
    return client


def _measure(kind: str, connections: int) -> None:
    with serve_alone() as (port, pid):
        before = _resident(pid)
        clients = [_client(port, f"127.0.1.{1 + number % 200}", KINDS[kind]) for number in range(connections)]
        _wait_until_idle(pid)
        kept = _resident(pid) - before
        begun_s = time.monotonic()
        other = _client(port, "127.0.0.1", b"GET /v1/ratings/7 HTTP/1.1\r\nhost: localhost\r\n\r\n")
        other.settimeout(None)
        answer = other.recv(1 << 16).partition(b"\r\n")[0].decode()
        took_ms = 1_000 * (time.monotonic() - begun_s)
        print(f"{kind}, {connections} times: {kept / connections / 1e3:.0f} KB each, {kept / 1e6:.0f} MB", end="; ")
        print(f"another client gets {answer} in {took_ms:.0f} ms", flush=True)
        for client in clients:
            client.close()


def main() -> None:
    """Measure each kind, or those that are named."""
    connections = int((sys.argv[1:2] or ["100"])[0])
    for kind in sys.argv[2:] or KINDS:
        _measure(kind, connections)


if __name__ == "__main__":
    main()
