"""An OpenID provider of one's own: it gives a token to each client whose secret is right."""

import base64
import http.server
import json
import ssl
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256

from tests.kit.http.certificates import Pair

ISSUER, VALID_S = "https://issuer.example", 600


class OpenIdProvider:
    """Answers at `url`, by TLS with a certificate; `keys` has its public key, as brokers read it (JWKS)."""

    def __init__(self, directory: Path, secrets: Mapping[str, str], pair: Pair | None = None) -> None:
        self._key = rsa.generate_private_key(65537, 2048)
        self.keys = directory / "jwks.json"
        public = self._key.public_key().public_numbers()
        known = {"kty": "RSA", "kid": "one", "use": "sig", "alg": "RS256"}
        known |= {"n": _text(public.n.to_bytes(256, "big")), "e": _text(public.e.to_bytes(3, "big"))}
        self.keys.write_text(json.dumps({"keys": [known]}))
        provider = self
        wanted = {
            "Basic " + base64.b64encode(f"{client}:{secret}".encode()).decode(): client
            for client, secret in secrets.items()
        }

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                client = wanted.get(self.headers.get("Authorization", ""))
                body: dict[str, object] = {"error": "invalid_client"}
                if client is not None:
                    body = {"access_token": provider.token(client), "token_type": "Bearer", "expires_in": VALID_S}
                self.send_response(401 if client is None else 200)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if pair is not None:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(pair.certificate, pair.key)
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"http{'s' if pair else ''}://127.0.0.1:{self._server.server_port}/token"

    def token(self, client: str) -> str:
        """Return a signed token of a client."""
        now = int(time.time())
        claims = {"iss": ISSUER, "sub": client, "aud": "kafka", "iat": now, "exp": now + VALID_S, "scope": "kafka"}
        parts = ({"alg": "RS256", "kid": "one", "typ": "JWT"}, claims)
        signed = ".".join(_text(json.dumps(part).encode()) for part in parts)
        return f"{signed}.{_text(self._key.sign(signed.encode(), padding.PKCS1v15(), SHA256()))}"

    def client_of(self, token: str) -> str | None:
        """Return the client that a token was given to; None where it is none of this provider."""
        signed, _, signature = token.rpartition(".")
        try:
            self._key.public_key().verify(_bytes(signature), signed.encode(), padding.PKCS1v15(), SHA256())
        except (InvalidSignature, ValueError):
            return None
        return str(json.loads(_bytes(signed.partition(".")[2]))["sub"])

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
