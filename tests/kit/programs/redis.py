"""A real Redis, on a socket in a directory of its own or on a free port; alone, or as several nodes."""

import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import pytest
import redis

from tablegate.examples.demo.kafka import free_port
from tablegate.examples.demo.tether import tethered
from tablegate.gateway.stores.base import StoreUnavailable

Running = TypeVar("Running")

PATIENCE_S = 30.0
_QUICK = ("--cluster-node-timeout", "1000", "--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0")

NOT_INSTALLED = "redis-server is not installed: apt-get install redis-server"
needs_redis = pytest.mark.skipif(shutil.which("redis-server") is None, reason=NOT_INSTALLED)


class RedisServer:
    """A redis-server of this process's: `start`, `kill` and `start` again, `stop`. Its files stay in between."""

    def __init__(self, *options: str, port: bool = False, password: str = "") -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="redis-"))
        self._options = ["--requirepass", password, *options] if password else [*options]
        self._socket = self._directory / "redis.sock"
        self.port = free_port() if port else 0
        self._process: subprocess.Popen[bytes] | None = None
        self._prefixes = count(1)
        self.client = redis.Redis(unix_socket_path=str(self._socket), password=password or None)

    def url(self, *, prefix: str = "tablegate", db: int = 0) -> str:
        if self.port:
            return f"redis://127.0.0.1:{self.port}/{db}?prefix={prefix}"
        return f"unix://{self._socket}?db={db}&prefix={prefix}"

    def new_url(self) -> str:
        """Return the URL of a store that nobody has used."""
        return self.url(prefix=f"store-{next(self._prefixes)}")

    def start(self, *options: str) -> "RedisServer":
        where = ["--port", str(self.port), "--bind", "127.0.0.1", "--unixsocket", str(self._socket)]
        command = [shutil.which("redis-server") or "redis-server", *where, "--save", "", "--dir", str(self._directory)]
        log = (self._directory / "log").open("ab")
        with log:  # and a run of tests that is broken off leaves none behind
            self._process = subprocess.Popen(
                tethered([*command, "--daemonize", "no", *self._options, *options]), stdout=log, stderr=log
            )
        self.until(self.client.ping)
        return self

    def until(self, holds: Callable[[], object]) -> None:
        """Return when something holds; while it raises an error of Redis or the store, it does not."""
        end_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                if holds():
                    return
            except (redis.RedisError, StoreUnavailable):
                if time.monotonic() > end_s or self.process.poll() is not None:
                    raise
            assert time.monotonic() < end_s
            time.sleep(0.01)

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None
        return self._process

    def kill(self) -> None:
        """Kill it as a lost machine does."""
        process = self.process
        process.send_signal(signal.SIGKILL)
        process.wait()

    def kill_after_bytes(self, count: int) -> None:
        """Kill it once it has read so many bytes more."""
        read = "total_net_input_bytes"
        end = int(self.client.info("stats")[read]) + count

        def watch() -> None:
            with suppress(redis.RedisError):
                while int(self.client.info("stats")[read]) < end:
                    pass
                self.kill()

        threading.Thread(target=watch, daemon=True).start()

    def stop(self) -> None:
        self.client.close()
        if self._process is not None and self._process.poll() is None:
            self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> "RedisServer":
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def flush(self) -> None:
        self.run("FLUSHALL")

    def run(self, *command: Any) -> Any:
        return self.client.execute_command(*command)  # type: ignore[no-untyped-call]

    def raw(self, *command: Any) -> Any:
        """Return the answer of a command as Redis gives it."""
        connection: Any = self.client.connection_pool.get_connection()
        try:
            connection.send_command(*command)
            return connection.read_response()
        finally:
            self.client.connection_pool.release(connection)


def _running(make: Callable[[], AbstractContextManager[Running]]) -> Iterator[Running]:
    if shutil.which("redis-server") is None:
        pytest.skip(NOT_INSTALLED)
    with make() as running:
        yield running


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    yield from _running(RedisServer)


@pytest.fixture
def own_redis_server() -> Iterator[RedisServer]:
    """A Redis that a test may kill, flush or set up."""
    yield from _running(RedisServer)


class RedisNodeServers:
    """A Redis of several nodes: three with a third of the slots each, and with `copies` a copy of each of them.

    They run while the block does. `url` names the three.
    """

    def __init__(self, *, copies: bool = False) -> None:
        self._bus_ports = [free_port() for _ in range(6 if copies else 3)]
        self.servers = [
            RedisServer("--cluster-enabled", "yes", "--cluster-port", str(port), *_QUICK, port=True)
            for port in self._bus_ports
        ]
        self._prefixes = count(1)
        self._running = ExitStack()

    def __enter__(self) -> "RedisNodeServers":
        with ExitStack() as starting:
            for server in self.servers:
                starting.enter_context(server)
            self._join()
            self._running = starting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def _join(self) -> None:
        first, slots = self.servers[0], 16_384
        for number, server in enumerate(self.servers[:3]):
            server.run("CLUSTER", "ADDSLOTSRANGE", number * slots // 3, (number + 1) * slots // 3 - 1)
        for server, bus_port in zip(self.servers[1:], self._bus_ports[1:], strict=True):
            first.run("CLUSTER", "MEET", "127.0.0.1", server.port, bus_port)
        for server in self.servers:
            server.until(lambda server=server: self._knows_all(server))  # type: ignore[misc]
        for master, copy in zip(self.servers, self.servers[3:], strict=False):
            copy.run("CLUSTER", "REPLICATE", self.id_of(master))
            copy.until(lambda copy=copy: b"master_link_status:up" in copy.raw("INFO", "replication"))  # type: ignore[misc]
        for server in self.servers:
            server.until(lambda server=server: b"cluster_state:ok" in server.raw("CLUSTER", "INFO"))  # type: ignore[misc]

    def _knows_all(self, server: RedisServer) -> bool:
        return f"cluster_known_nodes:{len(self.servers)}".encode() in server.raw("CLUSTER", "INFO")

    @staticmethod
    def id_of(server: RedisServer) -> str:
        """Return the name that nodes have for each other."""
        return str(server.raw("CLUSTER", "MYID").decode())

    def of_slot(self, slot: int) -> RedisServer:
        """Return who has a slot."""
        for start, end, (_, port, *_), *_ in self.servers[0].raw("CLUSTER", "SLOTS"):
            if start <= slot <= end:
                return next(server for server in self.servers if server.port == port)
        raise AssertionError(f"nobody has slot {slot}")

    def url(self, *, prefix: str = "tablegate") -> str:
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in self.servers[:3])
        return f"redis://{hosts}/0?prefix={prefix}"

    def new_url(self) -> str:
        """Return the URL of a store that nobody has used."""
        return self.url(prefix=f"store-{next(self._prefixes)}")

    def run(self, *command: Any) -> list[Any]:
        """Run a command on each node."""
        return [server.run(*command) for server in self.servers]


@pytest.fixture
def own_redis_nodes() -> Iterator[RedisNodeServers]:
    """Nodes with copies that a test may kill."""
    yield from _running(lambda: RedisNodeServers(copies=True))


@pytest.fixture(scope="session")
def redis_nodes() -> Iterator[RedisNodeServers]:
    yield from _running(RedisNodeServers)
