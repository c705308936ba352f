"""A schema registry that answers oddly, or not: one sentence, and nobody else is told who asks."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tablegate.gateway.cli.registry import RegistryError, newest_schema
from tablegate.gateway.contract.kafka_file import KafkaSettingsError
from tablegate.gateway.contract.registry_settings import RegistrySettings, load_registry
from tests.kit.programs.listed_registry import FIRST_ID, ListedRegistry

SCHEMA = {"schema": '"string"'}
NOBODY = "http://127.0.0.1:1"  # a port of the system's, which nobody listens on


@contextmanager
def _server(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """Run a server that answers every GET and POST so; yield its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def do_POST(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _send(handler: BaseHTTPRequestHandler, body: bytes, *, length: int | None = None, status: int = 200) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body) if length is None else length))
    handler.end_headers()
    handler.wfile.write(body)


def _send_id(number: str, handler: BaseHTTPRequestHandler) -> None:
    _send(handler, f'{{"id": {number}, "schema": "x"}}'.encode())


NO_IDS = ("1e400", "-7", "0", "4294967296", "1.5", "true", '"seven"')  # a record has room for 4 bytes


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (lambda one: _send(one, b"<html>"), "its answer is not one of Confluent's API"),
        (lambda one: _send(one, b"[" * 100_000), "its answer is not one of Confluent's API"),
        (lambda one: _send(one, b'"\xff"'), "its answer is not one of Confluent's API"),
        (lambda one: _send(one, b"{", length=9), "no schema registry answers at .*: IncompleteRead"),
        (lambda one: one.wfile.write(b"\0\r\n"), "no schema registry answers at"),
        (lambda one: _send(one, bytes(17 * 2**20)), "its answer has more than 16 MiB"),
        (lambda one: _send(one, b"", status=500), "it answers with status 500"),
        *((partial(_send_id, number), "its answer is not one of Confluent's API") for number in NO_IDS),
    ],
)
def test_an_odd_answer_is_one_sentence(answer: Callable[[BaseHTTPRequestHandler], None], sentence: str) -> None:
    with _server(answer) as url, pytest.raises(RegistryError, match=sentence):
        newest_schema(RegistrySettings(url=url), "orders-value")


def test_the_next_of_several_is_asked() -> None:
    with ListedRegistry({"orders-value": [SCHEMA]}) as registry:
        found = newest_schema(RegistrySettings(url=f"{NOBODY},{registry.url}"), "orders-value")
    assert (found.schema_id, found.text) == (FIRST_ID, SCHEMA["schema"])
    with pytest.raises(RegistryError, match=f"no schema registry answers at {NOBODY}:"):
        newest_schema(RegistrySettings(url=f"{NOBODY},{NOBODY}"), "orders-value")


def test_a_registry_that_cannot_answer_is_passed_over() -> None:
    """The others of a list are asked, as where nobody answers."""
    with (
        ListedRegistry({"orders-value": [SCHEMA]}) as registry,
        _server(lambda one: _send(one, b"", status=503)) as ill,
    ):
        found = newest_schema(RegistrySettings(url=f"{ill},{registry.url}"), "orders-value")
        assert found.schema_id == FIRST_ID
    with _server(lambda one: _send(one, b"", status=503)) as ill, pytest.raises(RegistryError, match="status 503; ask"):
        newest_schema(RegistrySettings(url=f"{NOBODY},{ill}"), "orders-value")


def test_an_answer_without_an_end_is_given_up() -> None:
    """Each of its bytes comes in time, and they never end."""

    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        with suppress(OSError):
            while True:
                handler.wfile.write(b" ")
                time.sleep(0.05)

    with _server(drip) as url, pytest.raises(RegistryError, match=r"not all of its answer has come in 0\.5 s"):
        newest_schema(RegistrySettings(url=url), "orders-value", timeout_s=0.5)


@contextmanager
def _redirected(seen: list[str | None]) -> Iterator[str]:
    """Run a server that sends its clients to another one, which notes who they say that they are."""

    def note(handler: BaseHTTPRequestHandler) -> None:
        seen.append(handler.headers.get("Authorization"))
        _send(handler, json.dumps({"id": 1, "access_token": "t", **SCHEMA}).encode())

    with _server(note) as other:

        def redirect(handler: BaseHTTPRequestHandler) -> None:
            seen.append(handler.headers.get("Authorization"))
            handler.send_response(302)
            handler.send_header("Location", f"{other}/elsewhere")
            handler.send_header("Content-Length", "0")
            handler.end_headers()

        with _server(redirect) as url:
            yield url


def test_a_redirect_takes_no_password_along(tmp_path: Path) -> None:
    seen: list[str | None] = []
    (tmp_path / "password").write_text("secret")
    with _redirected(seen) as url:
        file = tmp_path / "kafka.toml"
        file.write_text(f'[registry]\nurl = "{url}"\nusername = "shop"\npassword_file = "password"\n')
        settings = load_registry(file, environ={})
        assert settings is not None
        assert newest_schema(settings, "orders-value").text == SCHEMA["schema"]
    assert [one is not None for one in seen] == [True, False]


def test_a_redirect_takes_no_secret_of_a_client_along(tmp_path: Path) -> None:
    seen: list[str | None] = []
    (tmp_path / "secret").write_text("secret")
    client = 'oauth_client_id = "shop"\noauth_client_secret_file = "secret"\n'
    with ListedRegistry({"orders-value": [SCHEMA]}) as registry, _redirected(seen) as url:
        file = tmp_path / "kafka.toml"
        file.write_text(f'[registry]\nurl = "{registry.url}"\noauth_token_url = "{url}"\n{client}')
        settings = load_registry(file, environ={})
        assert settings is not None
        newest_schema(settings, "orders-value")
    assert [one is not None for one in seen] == [True, False]


def test_a_provider_that_breaks_off_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    client = 'oauth_client_id = "shop"\noauth_client_secret_file = "secret"\n'
    with _server(lambda one: _send(one, b"{", length=9)) as url:
        file = tmp_path / "kafka.toml"
        file.write_text(f'[registry]\nurl = "http://h"\noauth_token_url = "{url}"\n{client}')
        settings = load_registry(file, environ={})
        assert settings is not None
        with pytest.raises(KafkaSettingsError, match="gives no token \\(IncompleteRead"):
            newest_schema(settings, "orders-value")
