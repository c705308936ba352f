"""Object stores on this machine: Azurite, which speaks as Azure does, and moto's server as S3 and as Google's.

Google's is asked by its XML API, which is that of S3 but for who asks. What emulates Google in PyPI, npm and Go has its
JSON API, and lacks the XML API's uploads; so moto stands for it.
"""

import base64
import hashlib
import hmac
import logging
import os
import re
import secrets
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from email.utils import formatdate
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple, Self
from urllib.request import Request, urlopen

import pytest

from tablegate.examples.demo.tether import tethered
from tablegate.gateway.stores.snapshots.objects import ObjectFiles
from tests.kit.programs.api_tools import from_npm
from tests.kit.programs.network import Link

AZURITE_VERSION = "3.37.0"
START_TIMEOUT_S = 60.0  # 2 s on a quiet machine
ACCOUNT = "tablegate"  # of Azure
_MOTO_PAGE = "MOTO_S3_DEFAULT_MAX_KEYS"
_LISTENING = re.compile(r"listen\w* on http://(127\.0\.0\.1:\d+)")


class ObjectStore(NamedTuple):
    """Where it is, by `environment`, and the URL of a folder in a bucket of its own.

    `address`: where it listens. `stranger`: variables of somebody whom it does not know; as Google, moto knows nobody.
    """

    environment: Mapping[str, str]
    url: str
    address: str
    stranger: Mapping[str, str]

    @contextmanager
    def asks_who_comes(self) -> Iterator[None]:
        """Let it know who may come, as Azurite always does, and moto where it is S3 and is told to."""
        url = f"http://{self.address}/moto-api/reset-auth"
        is_moto = "AWS_ENDPOINT" in self.environment
        try:
            if is_moto:
                _send(url, b"0")
            yield
        finally:
            if is_moto:
                _send(url, b"inf")

    def at(self, address: str) -> Mapping[str, str]:
        """Return the environment for who reaches it elsewhere, as by a link."""
        return {name: value.replace(self.address, address) for name, value in self.environment.items()}


@contextmanager
def _moto() -> Iterator[str]:
    from moto.server import ThreadedMotoServer  # takes its time, which each process would that collects tests

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it logs each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    os.environ[_MOTO_PAGE] = "5"  # names in an answer to a list, so that there are several
    try:
        host, port = server.get_host_and_port()
        yield f"{host}:{port}"
    finally:
        os.environ.pop(_MOTO_PAGE, None)
        server.stop()


def _moto_bucket(address: str) -> str:
    # Without a hyphen: as a Google client writes it in a path, moto does not find it.
    name = f"bucket{secrets.token_hex(4)}"
    with urlopen(Request(f"http://{address}/{name}", method="PUT")):
        return name


def _send(url: str, data: bytes) -> None:
    with urlopen(Request(url, data=data, headers={"content-type": "text/plain"})):
        pass


@contextmanager
def s3() -> Iterator[ObjectStore]:
    """Run a store like S3, with an empty bucket."""
    with _moto() as address:
        environment = {
            "AWS_ACCESS_KEY_ID": "a-key",
            "AWS_SECRET_ACCESS_KEY": "a-secret",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT": f"http://{address}",
            "AWS_ALLOW_HTTP": "true",
        }
        yield ObjectStore(
            environment, f"s3://{_moto_bucket(address)}/tablegate", address, {"AWS_ACCESS_KEY_ID": "another"}
        )


@contextmanager
def google() -> Iterator[ObjectStore]:
    """Run a store like Google Cloud Storage, with an empty bucket."""
    with _moto() as address:
        environment = {
            "GOOGLE_BASE_URL": f"http://{address}",
            "GOOGLE_BEARER_TOKEN": "a-token",
            "GOOGLE_ALLOW_HTTP": "true",
        }
        yield ObjectStore(environment, f"gs://{_moto_bucket(address)}/tablegate", address, {})


@cache
def _azurite() -> Path | None:
    return from_npm("azurite", AZURITE_VERSION, program="azurite-blob")


@contextmanager
def azure() -> Iterator[ObjectStore]:
    """Run a store like Azure's, with an empty container; skip the test where there is none."""
    program, node = _azurite(), shutil.which("node")
    if program is None or node is None:
        pytest.skip("Azurite is not here, and cannot be installed: it needs Node and npm")
    key = base64.b64encode(secrets.token_bytes(64)).decode()
    with tempfile.TemporaryDirectory() as directory:
        words = [node, str(program.resolve()), "--blobHost", "127.0.0.1", "--blobPort", "0"]
        log = Path(directory, "azurite.log")
        with log.open("wb") as out:
            process = subprocess.Popen(
                tethered([*words, "--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck"]),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={"PATH": str(Path(node).parent), "HOME": directory, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{key}"},
                cwd=directory,
                start_new_session=True,
            )
        try:
            address = _address(process, log)
            environment = {
                "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
                "AZURE_STORAGE_ACCOUNT_KEY": key,
                "AZURE_STORAGE_ENDPOINT": f"http://{address}/{ACCOUNT}",
                "AZURE_ALLOW_HTTP": "true",
            }
            other_key = base64.b64encode(secrets.token_bytes(64)).decode()
            yield ObjectStore(
                environment,
                f"az://{_container(address, key)}/tablegate",
                address,
                {"AZURE_STORAGE_ACCOUNT_KEY": other_key},
            )
        finally:
            process.kill()  # it has nothing to lose
            process.wait()


def _address(process: "subprocess.Popen[bytes]", log: Path) -> str:
    end_s = time.monotonic() + START_TIMEOUT_S
    while True:
        log_text = log.read_text(errors="replace")
        if found := _LISTENING.search(log_text):
            return found[1]
        assert process.poll() is None, f"Azurite ended while it started: {log_text[-2_000:]}"
        assert time.monotonic() < end_s, f"Azurite did not start within {START_TIMEOUT_S:g} s: {log_text[-2_000:]}"
        time.sleep(0.05)


def _container(address: str, key: str) -> str:
    """Make a container, which obstore does not, by a request that is signed with the key."""
    name = f"container{secrets.token_hex(4)}"
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    lines = ["PUT", *[""] * 11, *(f"{field}:{value}" for field, value in headers.items())]
    signed = "\n".join([*lines, f"/{ACCOUNT}/{ACCOUNT}/{name}", "restype:container"])
    signature = base64.b64encode(hmac.digest(base64.b64decode(key), signed.encode(), hashlib.sha256)).decode()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{signature}"
    url = f"http://{address}/{ACCOUNT}/{name}?restype=container"
    with urlopen(Request(url, method="PUT", headers={**headers, "Content-Length": "0"})):
        return name


OBJECT_STORES: Mapping[str, Callable[[], AbstractContextManager[ObjectStore]]] = {
    "s3": s3,
    "google": google,
    "azure": azure,
}


class OpenObjects:
    """Opens folders of object stores. `store`: the one of a kind. `setenv`: sets a variable of this process."""

    def __init__(self, store: Callable[[str], ObjectStore], setenv: Callable[[str, str], None]) -> None:
        self.store = store
        self._setenv = setenv

    def __call__(
        self, kind: str, *, also: Mapping[str, str] | None = None, url: str = "", read_bytes: int = 100
    ) -> ObjectFiles:
        """Return the objects of a folder of its own, or at a URL.

        `also`: variables beside those of the store, or in their place.
        """
        store = self.store(kind)
        for name, value in {**store.environment, **(also or {})}.items():
            self._setenv(name, value)
        return ObjectFiles(url or f"{store.url}/{secrets.token_hex(4)}", read_bytes=read_bytes)


class Overload:
    """A link to an object store that is overloaded, or knows nobody, when a test says so. `refused` counts requests."""

    def __init__(self, store: ObjectStore) -> None:
        self.link = Link(store.address)
        self.environment = store.at(self.link.address)
        self.refused = 0
        self._store = store
        self._status = 503
        self._until = 0  # refused

    def __enter__(self) -> Self:
        overload = self

        class Refusing(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                overload._refuse(self)

            do_PUT = do_POST = do_DELETE = do_HEAD = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                """Say nothing of requests."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
        threading.Thread(target=self._server.serve_forever).start()
        self.link.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.link.__exit__()
        self._server.shutdown()
        self._server.server_close()

    def begin(self, *, requests: int = 1_000_000, status: int = 503) -> None:
        """Let it refuse so many requests. Open connections are reset."""
        self._status = status
        self._until = self.refused + requests
        self.link.target = f"127.0.0.1:{self._server.server_port}"
        self._reset()

    def end(self) -> None:
        """Let it answer again."""
        self.link.target = self._store.address
        self._reset()

    def _reset(self) -> None:
        self.link.cut()
        self.link.mend()

    def _refuse(self, request: BaseHTTPRequestHandler) -> None:
        request.rfile.read(int(request.headers.get("content-length", 0)))
        self.refused += 1
        if self.refused >= self._until:
            self.link.target = self._store.address
        request.send_response(self._status)
        request.send_header("content-length", "0")
        request.end_headers()  # and the connection, as it speaks HTTP/1.0
