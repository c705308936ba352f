"""What `clients/Makefile` makes, once, whoever needs it at the same time; and pages of it."""

import fcntl
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.kit.table.filled import ROOT

CLIENTS = ROOT / "clients"
BUILD_TIMEOUT_S = 600  # where nothing is in a cache, and others use the machine


def make_clients(*targets: str) -> None:
    """Make targets of `clients/Makefile`; what is there already takes no time."""
    lock_file = ROOT / ".cache/clients.lock"
    lock_file.parent.mkdir(exist_ok=True)
    with lock_file.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        words = ["make", "--no-print-directory", "-C", str(CLIENTS), *targets]
        done = subprocess.run(words, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False)
    assert done.returncode == 0, f"{done.stdout[-5_000:]}{done.stderr[-5_000:]}"


def built_typescript() -> Path:
    """Return the directory of the TypeScript client's tests, as programs and pages; skip the test without Node."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("the TypeScript client needs node and npm: install Node 20 or newer")
    make_clients("typescript/test/dist/node.js")
    return CLIENTS / "typescript/test/dist"


def built_go() -> Path:
    """Return the directory of the Go client's example, built; skip the test without Go."""
    if shutil.which("go") is None:
        pytest.skip("the Go client needs go: install Go 1.25 or newer")
    make_clients("go/example/driver/driver", "go/example/ratings")
    return CLIENTS / "go/example"


def built_java() -> Path:
    """Return the jar of the Java client's example, built, with the client beside it; skip the test without Maven."""
    if shutil.which("mvn") is None or shutil.which("javac") is None:
        pytest.skip("the Java client needs mvn and javac: install Maven and a JDK 17 or newer")
    make_clients("java")
    return CLIENTS / "java/example/target/ratings.jar"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing of requests."""


@contextmanager
def site(directory: Path) -> Iterator[str]:
    """Serve files on a port of their own, which is another origin than any gateway's; give the address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(directory))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
