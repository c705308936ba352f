"""An issuer of tokens: keys made on the spot, tokens of any content, and a server of the public keys."""

import base64
import contextlib
import http.server
import json
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from tests.kit.http.certificates import Pair

NOW_S = 1_800_000_000.0
AUDIENCE = "tablegate"
NAME = "https://login.example"

_CURVES = {"ES256": ec.SECP256R1, "ES384": ec.SECP384R1, "ES512": ec.SECP521R1}


class Clock:
    """A clock that a test sets."""

    def __init__(self, now_s: float = NOW_S) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


class SigningKey:
    """A key pair of an algorithm; `jwk` is its public half."""

    def __init__(self, key_id: str | None = "one", algorithm: str = "ES256", bits: int = 2048) -> None:
        self.algorithm = algorithm
        self.private: Any
        if algorithm in _CURVES:
            self.private = ec.generate_private_key(_CURVES[algorithm]())
        elif algorithm == "EdDSA":
            self.private = ed25519.Ed25519PrivateKey.generate()
        else:
            self.private = rsa.generate_private_key(65537, bits)
        kind: Any = jwt.get_algorithm_by_name(algorithm)
        self.jwk: dict[str, Any] = kind.to_jwk(self.private.public_key(), as_dict=True) | {"use": "sig"}
        self.jwk.pop("key_ops", None)
        self.header = {"kid": key_id} if key_id is not None else {}
        self.jwk |= self.header

    def token(self, *, header: Mapping[str, Any] | None = None, **claims: Any) -> str:
        """Return a token that is right but for these claims; one that is None is left out."""
        every = {"iss": NAME, "aud": AUDIENCE, "sub": "ann", "exp": int(NOW_S) + 600, **claims}
        every = {name: value for name, value in every.items() if value is not None}
        signer: Any = jwt.get_algorithm_by_name(self.algorithm)
        head = {"alg": self.algorithm, **self.header, **(header or {})}
        return made(head, every, lambda data: signer.sign(data, self.private))


def made(header: object, claims: object, sign: Callable[[bytes], bytes]) -> str:
    """Return a token of any header and claims."""
    signed = ".".join(text_of(json.dumps(part).encode()) for part in (header, claims))
    return f"{signed}.{text_of(sign(signed.encode()))}"


def text_of(data: bytes) -> str:
    """Return bytes in the base64 of tokens."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def key_set(*keys: SigningKey | object) -> bytes:
    """Return a JWKS of keys, or of what stands in their place."""
    entries = [key.jwk if isinstance(key, SigningKey) else key for key in keys]
    return json.dumps({"keys": entries}).encode()


class KeyServer:
    """Answers GETs with `pages` by path: a body, its parts or a status. `requests` has the paths asked for."""

    def __init__(self, pair: Pair | None = None) -> None:
        self.pages: dict[str, bytes | int | Iterable[bytes]] = {}
        self.requests: list[str] = []
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.requests.append(self.path)
                page = server.pages.get(self.path, 404)
                self.send_response(page if isinstance(page, int) else 200)
                if page == 302:
                    self.send_header("Location", f"{server.url}/moved")
                self.end_headers()
                parts = [page] if isinstance(page, bytes) else () if isinstance(page, int) else page
                with contextlib.suppress(ConnectionError):
                    for part in parts:
                        self.wfile.write(part)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if pair is not None:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(pair.certificate, pair.key)
            # The handshake in the thread of the connection: one that fails must not end the server.
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
            self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self.url = f"http{'s' if pair else ''}://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
