"""The start page: each command on it works as it stands there."""

import shutil
import subprocess
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from re import findall

import pytest

from tablegate.gateway.http.console.console import Console
from tablegate.gateway.http.rest.pages import StartPage
from tablegate.gateway.http.server import HttpServer, web_protocols
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.stores.notifier import Notifier
from tests.kit.gateways_in_process.rest import RestServer
from tests.kit.gateways_in_process.threaded import ServerThread
from tests.kit.gateways_in_process.web import WebClient
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import ORDERS, ROOT, SIGNER, catalogue_of

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
EVENT = b"data: {"


@pytest.fixture(scope="module")
def server() -> Iterator[RestServer]:
    with RestServer() as served:
        yield served


def _curls(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip().startswith("curl ")]


@needs_curl
def test_each_curl_command_is_answered(server: RestServer) -> None:
    text = WebClient(server, http2=False).ask("GET", "/").body.decode()
    commands = _curls(text)
    assert len(commands) == 6
    for command in commands:
        limited = command.replace("curl ", "curl -sS --max-time 2 ", 1)
        asked = subprocess.run(limited, shell=True, capture_output=True, check=False)
        is_stream = "event-stream" in command
        assert asked.stdout.startswith(EVENT if is_stream else b"{"), (command, asked)
        assert b"error" not in asked.stdout, (command, asked.stdout)


def test_browsers_get_the_same_as_a_page(server: RestServer) -> None:
    client = WebClient(server, http2=False)
    answer = client.ask("GET", "/", accept="text/html,*/*")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    page, text = answer.body.decode(), client.ask("GET", "/").body.decode()
    assert [unescape(each) for each in findall("<pre>(curl .*?)</pre>", page)] == _curls(text)
    assert findall(r'(?:src|href)="([^"]*)"', page) == ["data:,", "docs/start.css", "docs", "openapi.json"]
    assert client.ask("GET", "/docs/start.css").status == 200


@pytest.mark.parametrize("has_console", [True, False])
def test_the_console_is_named_where_it_is(has_console: bool) -> None:
    catalogue = catalogue_of()
    console = Console(catalogue, data_port=50051) if has_console else None
    methods = query_methods(catalogue, MemoryStore(), SIGNER, Notifier())
    web = web_protocols(catalogue, describe=True, console=console)
    with ServerThread(lambda: HttpServer(methods, "127.0.0.1:0", web=web)) as server:
        client = WebClient(server, http2=False)
        page, text = client.ask("GET", "/", accept="text/html").body, client.ask("GET", "/").body
        assert (b'href="console"' in page, b"to see them: /console" in text) == (has_console, has_console)
        assert client.ask("GET", "/console").status == (200 if has_console else 404)


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        (b"127.0.0.1:50051", "127.0.0.1:50051"),
        (b"[::1]:8080", "[::1]:8080"),
        (b"example.org", "example.org"),
        (b"x;rm -rf", "HOST:PORT"),
        (b"$(id)", "HOST:PORT"),
        (b"<script>", "HOST:PORT"),
        (b"", "HOST:PORT"),
    ],
)
def test_the_address_is_the_one_that_was_asked(host: bytes, shown: str) -> None:
    page = StartPage(catalogue_of(), "https")
    assert f"https://{shown}/v1/ratings/1" in page.text(host).decode()
    assert f"https://{shown}/v1/ratings/1" in page.html(host).decode()
    assert "-plaintext" not in page.text(host).decode()
    assert "-plaintext" in StartPage(catalogue_of(), "http").text(host).decode()


@pytest.mark.parametrize(
    "contract", [ORDERS, ROOT / "tests/kit/table/accounts.proto", ROOT / "tests/kit/table/tenants.proto"]
)
def test_every_query_of_a_contract_is_there(contract: Path) -> None:
    catalogue = catalogue_of(contract)
    text = StartPage(catalogue, "http").text(b"h:1").decode()
    for path in catalogue.queries:
        assert text.count(f"h:1 {path.removeprefix('/')}\n") == 1, path
