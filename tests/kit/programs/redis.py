"""A real Redis, on a socket in a directory of its own or on a free port."""

import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
import redis

from tablegate.examples.demo.kafka import free_port
from tablegate.gateway.stores.base import StoreUnavailable

PATIENCE_S = 30.0

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
        command = ["redis-server", *where, "--save", "", "--dir", str(self._directory), "--daemonize", "no"]
        log = (self._directory / "log").open("ab")
        with log:
            self._process = subprocess.Popen([*command, *self._options, *options], stdout=log, stderr=log)
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


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    if shutil.which("redis-server") is None:
        pytest.skip(NOT_INSTALLED)
    with RedisServer() as server:
        yield server


@pytest.fixture
def own_redis_server() -> Iterator[RedisServer]:
    """A Redis that a test may kill, flush or set up."""
    if shutil.which("redis-server") is None:
        pytest.skip(NOT_INSTALLED)
    with RedisServer() as server:
        yield server
