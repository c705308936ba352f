"""What access control costs a Get: `python -m tests.bench.access [SECONDS] [REPEAT]`.

One worker's server runs in a process of its own, over rows in memory: without an access file, with one that lets
everybody see all, and with one whose rule compares a column with a claim. A client asks for one row, 32 calls at once
on one connection, with a token (JWT) that was seen before, and once without. The figures: CPU of the server a call.
Loads alternate, and each figure is the least of its loads, as other work on the machine only adds to it.

Beside it: what it takes in the process to find a principal by a token that was seen, and to admit its call.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import timeit
from pathlib import Path

from tablegate.gateway.access.gate import Gate
from tablegate.gateway.http.h2.frames import WINDOW_BYTES, WINDOW_MAX, window_update
from tablegate.gateway.http.server import HttpServer, web_protocols
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.stores.notifier import Notifier
from tests.kit.access.issuer import AUDIENCE, NAME, SigningKey, key_set
from tests.kit.http.h2 import OPENING, data, head, request
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import SIGNER, catalogue_of, rating, ratings_table

CALLS = 32  # at once
GET = "/examples.ratings.v1.RatingsService/GetRating"
MOVIE = 7
RULES = {
    "everything": '[[rule]]\ntables = ["ratings"]\n',
    "one row rule": '[[rule]]\ntables = ["ratings"]\nrows = { rating_count = "count" }\n',
}
_ISSUER = f'[[issuer]]\nissuer = "{NAME}"\naudience = "{AUDIENCE}"\njwks_file = "keys.json"\n'
_MESSAGE = b"\0\0\0\0\x02\x08" + bytes((MOVIE,))
_OK = b"grpc-status\x010"


def _write(directory: Path) -> dict[str, str]:
    """Write the access files, and return a token of their issuer for each, ending in an hour."""
    key = SigningKey()
    (directory / "keys.json").write_bytes(key_set(key))
    for name, rule in RULES.items():
        (directory / name).write_text(_ISSUER + rule)
    token = key.token(exp=int(time.time()) + 3_600, count=rating(MOVIE).rating_count)
    return dict.fromkeys(RULES, token)


async def _serve(access: str) -> None:
    store, catalogue = MemoryStore(), catalogue_of()
    ratings_table(store).put(rating(number) for number in range(100))
    gate = Gate(Path(access), catalogue) if access else None
    if gate is not None:
        gate.start()
    methods = query_methods(catalogue, store, SIGNER, Notifier())
    server = HttpServer(methods, "127.0.0.1:0", web=web_protocols(catalogue), gate=gate)
    await server.start()
    print(server.port, flush=True)
    await asyncio.Event().wait()


def _used_s(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class _Server:
    """A server in a process, and a connection to it."""

    def __init__(self, access: str, token: str) -> None:
        words = [sys.executable, "-m", "tests.bench.access", "serve", access]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self._client = socket.create_connection(("127.0.0.1", int(self.process.stdout.readline())))
        self._client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._client.sendall(OPENING + window_update(0, WINDOW_MAX - WINDOW_BYTES))
        fields = [(b"content-type", b"application/grpc"), (b"te", b"trailers")]
        fields += [(b"authorization", b"Bearer " + token.encode())] if token else []
        self._request = request(GET.encode(), *fields)
        self._stream = 1

    def load(self, seconds: float) -> float:
        """Return the CPU of the server a call, in µs."""
        calls, used_s, until_s = 0, _used_s(self.process.pid), time.monotonic() + seconds
        while time.monotonic() < until_s:
            streams = range(self._stream, self._stream + 2 * CALLS, 2)
            self._stream += 2 * CALLS
            self._client.sendall(
                b"".join(head(stream, self._request) + data(stream, _MESSAGE, ended=True) for stream in streams)
            )
            answered, answers = 0, b""
            while answered < CALLS:
                answers += self._client.recv(1 << 18)
                answered = answers.count(_OK)
            calls += CALLS
        return 1e6 * (_used_s(self.process.pid) - used_s) / calls


def _in_process(file: Path, token: str) -> None:
    class Client:
        principal = None
        address = ""

    gate, headers, client = Gate(file, catalogue_of()), {b"authorization": b"Bearer " + token.encode()}, Client()
    gate.start()
    while True:  # until a thread has read the keys
        try:
            gate.admit(GET, headers, client, is_get=False)
        except Exception:  # noqa: BLE001
            gate.refresh()
        else:
            break
    of = {
        "principal of a seen token": lambda: gate._authenticator.principal(headers, None),
        "admission of its call": lambda: gate.admit(GET, headers, client, is_get=False),
    }
    for name, work in of.items():
        least_s = min(timeit.repeat(work, number=100_000, repeat=5)) / 100_000
        print(f"{name}: {1e6 * least_s:.2f} µs")
    gate.close()


def main() -> None:
    """Serve, or measure with servers in other processes."""
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(_serve(sys.argv[2]))
        return
    seconds, repeat = float((sys.argv[1:2] or ["2"])[0]), int((sys.argv[2:3] or ["5"])[0])
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        tokens = _write(directory)
        _in_process(directory / "one row rule", tokens["one row rule"])
        servers = {"no token": _Server("", ""), "a token, no access file": _Server("", next(iter(tokens.values())))}
        servers |= {name: _Server(str(directory / name), token) for name, token in tokens.items()}
        try:
            for server in servers.values():
                server.load(1.0)
            times: dict[str, list[float]] = {name: [] for name in servers}
            for _ in range(repeat):
                for name, server in servers.items():
                    times[name].append(server.load(seconds))
            print(json.dumps({name: round(min(each), 2) for name, each in times.items()}))
        finally:
            for server in servers.values():
                server.process.kill()


if __name__ == "__main__":
    main()
