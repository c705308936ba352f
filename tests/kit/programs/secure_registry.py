"""A schema registry as companies run it: behind a proxy with TLS, which asks who comes."""

import base64
import contextlib
import http.server
import ssl
import threading
import urllib.error
import urllib.request
from http import HTTPMethod, HTTPStatus
from pathlib import Path
from typing import Self

from tests.kit.http.certificates import Authority
from tests.kit.programs.openid import OpenIdProvider

WAYS = ("basic", "token", "oauth", "mtls")
USER, STRANGER = "registrar", "stranger"
TIMEOUT_S = 30.0


class SecureRegistry:
    """A registry that `USER` may ask, in four ways, each at an address of its own; `STRANGER` may not.

    `upstream`: URL of the registry behind.
    """

    def __init__(self, directory: Path, upstream: str) -> None:
        self._directory = directory
        self._authority = Authority(directory)
        self._other_authority = Authority(directory, "other")
        names = (USER, STRANGER)
        self.provider = OpenIdProvider(
            directory, {name: self.password(name) for name in names}, self._authority.issue("provider")
        )
        base, _, self._path = upstream.partition("/apis")
        self._servers = {way: self._server(way, base) for way in WAYS}

    def __enter__(self) -> Self:
        self.provider.__enter__()
        for server in self._servers.values():
            threading.Thread(target=server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers.values():
            server.shutdown()
            server.server_close()
        self.provider.__exit__()

    @staticmethod
    def password(user: str) -> str:
        """Return the password of a user: with what URLs and JAAS would misread."""
        return f'{user}:"9c1e/\\@'

    def url(self, way: str) -> str:
        """Return where users come in who say in this way who they are."""
        return f"https://127.0.0.1:{self._servers[way].server_port}/apis{self._path}"

    def settings(self, way: str, user: str = USER, *, secret: str | None = None, more: str = "") -> Path:
        """Write the file of `--kafka` for a user, with another secret than is right; return its path."""
        folder = self._directory / f"{way}-{user}-{secret is None}-{len(more)}"
        folder.mkdir(exist_ok=True)
        lines = [f'bootstrap = "127.0.0.1:9"\n[registry]\nurl = "{self.url(way)}"']
        if "ca_file" not in more:
            lines.append(f'ca_file = "{self._authority.certificate}"')
        right = self.provider.token(user) if way == "token" else self.password(user)
        (folder / "secret").write_text(right if secret is None else secret)
        if way == "basic":
            lines += [f'username = "{user}"', 'password_file = "secret"']
        elif way == "token":
            lines += ['token_file = "secret"']
        elif way == "oauth":
            lines += [f'oauth_token_url = "{self.provider.url}"', f'oauth_client_id = "{user}"']
            lines += ['oauth_client_secret_file = "secret"', 'oauth_scope = "registry"']
        elif user == USER:
            pair = self._authority.issue(user)
            lines += [f'certificate_file = "{pair.certificate}"', f'key_file = "{pair.key}"']
        file = folder / "kafka.toml"
        file.write_text("\n".join([*lines, more]))
        return file

    def other_ca(self) -> str:
        """Return the line that names a CA which did not sign the registry's certificate."""
        return f'ca_file = "{self._other_authority.certificate}"'

    def _server(self, way: str, base: str) -> http.server.ThreadingHTTPServer:
        registry = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                user = USER if way == "mtls" else registry._user_of(self.headers.get("Authorization", ""))
                if user == USER:
                    self._forward()
                elif user == STRANGER:
                    self._answer(HTTPStatus.FORBIDDEN, b"<html>Forbidden</html>")
                else:
                    self._answer(HTTPStatus.UNAUTHORIZED, b"<html>Authorization Required</html>")

            def do_POST(self) -> None:
                self.do_GET()

            def _forward(self) -> None:
                self._answer(*forwarded(self, base))

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        pair = self._authority.issue("registry")
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(pair.certificate, pair.key)
        if way == "mtls":
            tls.verify_mode = ssl.CERT_REQUIRED
            tls.load_verify_locations(self._authority.certificate)
        server = _Quiet(("127.0.0.1", 0), Handler)
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        return server

    def _user_of(self, authorization: str) -> str | None:
        kind, _, proof = authorization.partition(" ")
        if kind == "Bearer":
            return self.provider.client_of(proof)
        with contextlib.suppress(ValueError):
            name, _, password = base64.b64decode(proof).decode().partition(":")
            return name if password == self.password(name) else None
        return None


def forwarded(asked: http.server.BaseHTTPRequestHandler, base: str, path: str | None = None) -> tuple[int, bytes]:
    """Return what the server at `base` answers to the same question, or to one of another path."""
    length = int(asked.headers.get("Content-Length", 0))
    body = asked.rfile.read(length) if asked.command == HTTPMethod.POST else None
    headers = {"Content-Type": asked.headers.get("Content-Type", "application/json")}
    request = urllib.request.Request(base + (path or asked.path), data=body, headers=headers, method=asked.command)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


class _Quiet(http.server.ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Say nothing of clients that do not like the certificate."""
