"""Who calls: the one place where credentials become principals.

A call may show, in this order:

1. `authorization: Bearer …`, a token (JWT) of an issuer, or an API key;
2. `x-api-key: …`, an API key;
3. the cookie `tablegate-token`, which has the one or the other, where the request is a GET;
4. the client's certificate, where the file has `[certificates]`.

The first that is there counts, alone. Where it is wrong, the call is refused, whatever else it shows: a client that
means to be somebody must not become somebody else because its token has expired. So a header wins over a cookie, which
the browser adds by itself, and a bearer over a certificate, which is often that of a proxy.

The cookie is for `EventSource`, which can set no header. A token in a URL would do, too, and stay in histories, in logs
of proxies and in `Referer`; so none is read from there, and none is ever logged. A browser sends cookies with requests
that other sites cause (CSRF). Here such a request can only read, as only a GET has the cookie and all queries read, and
CORS keeps what it reads from pages of other origins than those of `--cors-origin`. `SameSite=Strict` on the cookie
keeps even the request away.

Decision: docs/decisions/0103-who-calls.md
"""

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tablegate.gateway.access.api_keys import ApiKeys
from tablegate.gateway.access.principal import AccessFileError, Principal, Unauthenticated
from tablegate.gateway.access.sections import Section

if TYPE_CHECKING:
    from tablegate.gateway.access.tokens import Issuer

COOKIE = b"tablegate-token"
CERTIFICATE_NAMES_MAX = 10_000  # of principals that are remembered

_BEARER = b"bearer "
_UNKNOWN = "the credential is not known here; show another one"


class Authenticator:
    """Who calls. `principal` and `refresh` are of one thread, and wait for nothing; keys are read in others.

    `version` rises when credentials have changed: what was allowed before may no longer be.
    """

    def __init__(
        self,
        *,
        api_keys: ApiKeys | None = None,
        certificates: Mapping[str, Mapping[str, Any]] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Without `add_issuers` no tokens are known. `certificates`: claims by name; None: they say nothing."""
        self.version = 1
        self._versions = threading.Lock()
        self._clock = clock
        self._api_keys = api_keys
        self._certificates = certificates
        self._of_certificates: dict[str, Principal] = {}
        self._issuers: Mapping[str, Issuer] = {}
        self.seen: Callable[[bytes], Principal | None] = _nobody  # who showed this `authorization` before, a token
        self._verify: Callable[[bytes, bytes], Principal] | None = None

    def add_issuers(self, issuers: Mapping[str, "Issuer"]) -> None:
        """Accept tokens of these issuers, by name. Before the first call, once."""
        from tablegate.gateway.access.tokens import Tokens

        tokens = Tokens(issuers, versions=self, clock=self._clock)
        self._issuers, self.seen, self._verify = issuers, tokens.seen, tokens.verify

    def start(self) -> None:
        """Begin to keep the keys of issuers. Until they are known, their tokens are refused."""
        for issuer in self._issuers.values():
            issuer.keys.start()

    def close(self) -> None:
        """End what `start` began, without waiting for it."""
        for issuer in self._issuers.values():
            issuer.keys.close()

    def refresh(self) -> None:
        """Read the API keys again where their file has changed. On a timer."""
        if self._api_keys is not None and self._api_keys.reload_if_changed():
            self.changed()

    def changed(self) -> None:
        """Note that credentials have changed. From any thread."""
        with self._versions:
            self.version += 1

    def adopt(self, before: "Authenticator") -> None:
        """Begin with the keys that `before` knows, of issuers that are the same: so that no token is refused meanwhile.

        For an access file that was read again. Before `start`.
        """
        for name, issuer in self._issuers.items():
            other = before._issuers.get(name)
            if other is not None and other.keys.source == issuer.keys.source and issuer.keys.current is None:
                issuer.keys.current = other.keys.current

    def principal(
        self, headers: Mapping[bytes, bytes], certificate: str | None, *, is_get: bool = False
    ) -> Principal | None:
        """Return who calls; None where no credential came. Raise `Unauthenticated` where one came and is wrong.

        `headers` have names in lower case. `certificate` is the name of the client's, verified. With `is_get` the
        cookie counts.
        """
        value = headers.get(b"authorization")
        if value is not None:
            return self.seen(value) or self._of_header(value)
        value = headers.get(b"x-api-key")
        if value is not None:
            return self._of_api_key(value)
        if is_get and (token := _token_of(headers.get(b"cookie", b""))) is not None:
            value = b"Bearer " + token
            return self.seen(value) or self._of_token(token, value)
        if certificate is not None and self._certificates is not None:
            return self._of_certificate(certificate, self._certificates)
        return None

    def _of_header(self, value: bytes) -> Principal:
        if value[: len(_BEARER)].lower() != _BEARER:
            raise Unauthenticated('the authorization is not of the kind "Bearer"; show a token or an API key by it')
        return self._of_token(value[len(_BEARER) :].strip(b" "), value)

    def _of_token(self, token: bytes, value: bytes) -> Principal:
        # Any text may be an API key, so it is asked for first; a token is never one by chance.
        found = self._api_keys.principal(token) if self._api_keys is not None else None
        if found is not None:
            return found
        if self._verify is None or token.count(b".") != 2:
            raise Unauthenticated(_UNKNOWN)
        return self._verify(token, value)

    def _of_api_key(self, key: bytes) -> Principal:
        found = self._api_keys.principal(key) if self._api_keys is not None else None
        if found is None:
            raise Unauthenticated(_UNKNOWN)
        return found

    def _of_certificate(self, name: str, claims: Mapping[str, Mapping[str, Any]]) -> Principal:
        found = self._of_certificates.get(name)
        if found is None:
            if len(self._of_certificates) >= CERTIFICATE_NAMES_MAX:
                self._of_certificates.clear()
            found = self._of_certificates[name] = Principal(f"certificate {name}", claims.get(name, {}))
        return found


def authenticator_of(
    settings: Mapping[str, Any], directory: Path, *, clock: Callable[[], float] = time.time
) -> Authenticator:
    """Return what the sections `[[issuer]]`, `[api_keys]` and `[certificates]` of an access file say.

    `directory` is where relative paths begin. `clock` gives seconds since 1970. Raise `AccessFileError`.
    """
    api_keys = certificates = None
    if "api_keys" in settings:
        section = Section(settings["api_keys"], "[api_keys]", ("file",), directory)
        api_keys = ApiKeys(section.path("file"), clock=clock)
    if "certificates" in settings:
        section = Section(settings["certificates"], "[certificates]", ("claims",))
        certificates = section.table("claims")
        for name in certificates:
            Section(certificates, "[certificates.claims]", certificates).table(name)
    authenticator = Authenticator(api_keys=api_keys, certificates=certificates, clock=clock)
    if "issuer" in settings:
        try:
            from tablegate.gateway.access.issuers import issuers_of
        except ImportError:
            raise AccessFileError('[[issuer]] needs a library: pip install "tablegate-gateway[access]"') from None
        authenticator.add_issuers(issuers_of(settings["issuer"], directory, on_change=authenticator.changed))
    return authenticator


def _nobody(_value: bytes) -> None:
    return None


def _token_of(cookies: bytes) -> bytes | None:
    """Return the token in a header of cookies; None where there is none. Raise `Unauthenticated` for two."""
    found = [
        value for name, _, value in (pair.strip().partition(b"=") for pair in cookies.split(b";")) if name == COOKIE
    ]
    if len(found) > 1:  # a neighbouring domain can add one, and which comes first is for it to choose
        raise Unauthenticated("there is more than one cookie tablegate-token; remove one")
    return found[0] if found else None
