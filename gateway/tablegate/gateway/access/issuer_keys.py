"""The public keys of an issuer of tokens: a JWKS (RFC 7517), read again and again, from a file or over HTTPS.

A thread reads, so that no call waits for the network. It replaces the whole set at once. What signs tokens may be
replaced at any time: a key that is no longer in the set signs nothing, and one that is new is known after `refresh_s`
at the latest, or soon after somebody shows a token of it.

A set says of a key which algorithms it may be for. A key is bound here to those, once: a token never chooses how its
signature is checked beyond naming one of them, so no public key is ever the secret of an HMAC (RFC 8725, 2.1).
"""

import json
import logging
import math
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.message import Message
from ipaddress import ip_address
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from cryptography.exceptions import UnsupportedAlgorithm
from jwt import PyJWK, PyJWTError
from typing_extensions import override

from tablegate.gateway.access.sections import read_file

DISCOVERY = "/.well-known/openid-configuration"
EARLY_S = 10.0  # between re-reads that tokens ask for: whoever sends bad tokens causes no more requests than that
RETRY_S = 10.0  # after a read that failed
FILE_REFRESH_S = 5.0
TIMEOUT_S = 10.0  # of a connection, and of each wait for bytes
WHOLE_S = 30.0  # for all of a body, however often a byte comes: keys that were removed must not stay for hours
SET_BYTES_MAX = 256 * 1024
KEYS_MAX = 100
KEYS_OF_ID_MAX = 4  # each is tried

# Key types and curves of algorithms (RFC 7518, RFC 8037). All are of two keys: what a gateway has signs nothing.
ALGORITHMS: Mapping[str, tuple[str, str | None]] = {
    **{f"{kind}{bits}": ("RSA", None) for kind in ("RS", "PS") for bits in (256, 384, 512)},
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", "Ed25519"),
}

_PUBLIC = ("kty", "crv", "n", "e", "x", "y")
_PARAMETER_CHARACTERS_MAX = 1_400  # of a number in base64: an RSA key of 8,192 bits
_RSA_BITS_MIN = 2_048

_logger = logging.getLogger("tablegate.gateway.access")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySource:
    """Where the keys of an issuer are: in `file`, else at `url`, else where its discovery document says.

    `ca_file` has the authorities (PEM) that its server's certificate may be of; None: those of the system.
    """

    issuer: str
    algorithms: tuple[str, ...]
    file: Path | None = None
    url: str | None = None
    ca_file: Path | None = None
    refresh_s: float = 300.0
    whole_s: float = WHOLE_S

    def read(self) -> bytes:
        """Return the set as it is now; raise `AccessFileError` (a file), `OSError` or `ValueError`."""
        if self.file is not None:
            return read_file(self.file, SET_BYTES_MAX)
        opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=self.tls_context()), _RedirectsRefused()
        )
        if self.url is not None:
            return self._get(opener, self.url)
        url = self.issuer.rstrip("/") + DISCOVERY
        document = json.loads(self._get(opener, url))
        if not isinstance(document, dict) or document.get("issuer") != self.issuer:
            raise ValueError(f"{url} is of another issuer")  # OpenID Connect Discovery 1.0, 4.3
        keys_url = document.get("jwks_uri")
        if not isinstance(keys_url, str) or not is_safe_url(keys_url):
            raise ValueError(f"{url} has no jwks_uri that begins with https://")
        return self._get(opener, keys_url)

    def _get(self, opener: urllib.request.OpenerDirector, url: str) -> bytes:
        request = urllib.request.Request(url, headers={"Accept": "application/json"})
        data = bytearray()
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            until_s = time.monotonic() + self.whole_s
            while piece := answer.read1(SET_BYTES_MAX + 1):
                data += piece
                if len(data) > SET_BYTES_MAX:
                    raise ValueError(f"{url} gives more than {SET_BYTES_MAX} bytes")
                if time.monotonic() > until_s:
                    raise TimeoutError(f"{url} takes more than {self.whole_s:g} s")
        return bytes(data)

    def tls_context(self) -> ssl.SSLContext:
        """Return what proves the server; raise `OSError`. Made for each read: the file may be a new one."""
        return ssl.create_default_context(cafile=self.ca_file)


class KeySet:
    """Keys that may sign tokens. Does not change."""

    def __init__(self, data: bytes, algorithms: tuple[str, ...]) -> None:
        """Read a JWKS; raise `ValueError` where it is none. Keys of other kinds, and what is no key, are left out."""
        document = json.loads(data)
        entries = document.get("keys") if isinstance(document, dict) else None
        if not isinstance(entries, list):
            raise ValueError("it is no JSON with a list of keys")
        self._by_id: dict[tuple[str, str], list[PyJWK]] = {}
        self._by_algorithm: dict[str, list[PyJWK]] = {}
        self.content: list[tuple[Any, ...]] = []  # equal for sets of the same keys
        for entry in entries[:KEYS_MAX]:
            for algorithm in algorithms:
                if (key := _key_of(entry, algorithm)) is not None:
                    self._by_algorithm.setdefault(algorithm, []).append(key)
                    if isinstance(key_id := entry.get("kid"), str):
                        self._by_id.setdefault((key_id, algorithm), []).append(key)
                    self.content.append((algorithm, entry.get("kid"), *map(entry.get, _PUBLIC)))

    def find(self, key_id: str | None, algorithm: str) -> list[PyJWK]:
        """Return the keys of an id; without one, the only key of the algorithm. Empty where there is none."""
        if key_id is not None:
            return self._by_id.get((key_id, algorithm), [])[:KEYS_OF_ID_MAX]
        keys = self._by_algorithm.get(algorithm, [])
        return keys if len(keys) == 1 else []


class IssuerKeys:
    """The keys of an issuer as they were read last. `current` may be read by any thread; None: none was read yet."""

    def __init__(
        self, source: KeySource, *, on_change: Callable[[], object], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Call `on_change`, in any thread, after each change of `current`."""
        self.source = source
        self.current: KeySet | None = None
        self._on_change = on_change
        self._monotonic = monotonic
        self._early_at = -math.inf
        self._trouble = ""
        self._wake = threading.Event()
        self._closed = False

    def start(self) -> None:
        """Read in a thread, at once and from then on."""
        threading.Thread(target=self._run, name="issuer-keys", daemon=True).start()

    def close(self) -> None:
        """End the thread, without waiting for it."""
        self._closed = True
        self._wake.set()

    def reread_early(self) -> bool:
        """Let the thread read now, unless somebody has asked within the last `EARLY_S`; return whether it does."""
        now = self._monotonic()
        if now - self._early_at < EARLY_S:
            return False
        self._early_at = now
        self._wake.set()
        return True

    def load(self) -> None:
        """Read the keys once; raise `AccessFileError`, `OSError` or `ValueError`, and keep those before."""
        keys = KeySet(self.source.read(), self.source.algorithms)
        if self.current is None or keys.content != self.current.content:
            self.current = keys
            self._on_change()  # after: whoever hears of it finds them
            if not keys.content:
                _logger.warning("an issuer has no key that may sign tokens", extra={"issuer": self.source.issuer})

    def read(self) -> float:
        """Read the keys once, and log what is wrong, once; return in how many seconds to read them again."""
        try:
            self.load()
        except Exception as error:  # noqa: BLE001 - whatever a server sends, the thread goes on
            if (trouble := _in_words(error)) != self._trouble:
                self._trouble = trouble
                _logger.warning(
                    "the keys of an issuer cannot be read; those before stay in use",
                    extra={"issuer": self.source.issuer, "reason": trouble},
                )
            return min(RETRY_S, self._refresh_s)
        if self._trouble:
            self._trouble = ""
            _logger.info("the keys of an issuer are read again", extra={"issuer": self.source.issuer})
        return self._refresh_s

    @property
    def _refresh_s(self) -> float:
        return self.source.refresh_s if self.source.file is None else FILE_REFRESH_S

    def _run(self) -> None:
        while not self._closed:
            pause_s = self.read()
            self._wake.wait(pause_s)
            self._wake.clear()


class _RedirectsRefused(urllib.request.HTTPRedirectHandler):
    """Keys come from where the file says, and from no place that a plain answer leads to."""

    @override
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        """Return no request: the answer is an error then."""


def is_safe_url(url: str) -> bool:
    """Return whether what is read there is what its host wrote: https, or http on this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        if not host or parts.port == 0 or parts.username is not None or not url.isprintable() or " " in url:
            return False
    except ValueError:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(host))


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _in_words(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        return f"{error.url} answers HTTP {error.code}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return str(error) or type(error).__name__


def _key_of(entry: object, algorithm: str) -> PyJWK | None:
    """Return an entry of a JWKS as the key of an algorithm; None where it is not for that."""
    key_type, curve = ALGORITHMS[algorithm]
    if not isinstance(entry, dict) or entry.get("kty") != key_type or entry.get("use", "sig") != "sig":
        return None
    operations = entry.get("key_ops", ["verify"])
    if entry.get("alg", algorithm) != algorithm or not isinstance(operations, list) or "verify" not in operations:
        return None
    if curve is not None and entry.get("crv") != curve:
        return None
    # The public part alone, even where somebody publishes both.
    public = {name: entry[name] for name in _PUBLIC if name in entry}
    if any(not isinstance(value, str) or len(value) > _PARAMETER_CHARACTERS_MAX for value in public.values()):
        return None
    try:
        key = PyJWK.from_dict(public, algorithm)
    except (PyJWTError, ValueError, TypeError, KeyError, OverflowError, UnsupportedAlgorithm):
        return None
    return key if key_type != "RSA" or key.key.key_size >= _RSA_BITS_MIN else None
