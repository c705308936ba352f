"""Tokens (JWT, RFC 7519) of issuers that are known: verified once, remembered until they end.

PyJWT accepts them: it checks signature, issuer and audience. Times are compared here, with a clock that is given. PyJWT
takes a millisecond for a long token, whoever made it, so what is wrong is found before at a tenth of that: that check
only refuses.

What a client is told says nothing of the token, nor which ids keys have: an unknown id and a wrong signature are
refused in the same words.
"""

import base64
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import jwt
from cryptography.exceptions import UnsupportedAlgorithm

from tablegate.gateway.access.issuer_keys import IssuerKeys
from tablegate.gateway.access.principal import Principal, Unauthenticated

TOKEN_BYTES_MAX = 8 * 1024  # header fields of a call may have 16 KiB together
SEEN_MAX = 10_000
SEEN_BYTES_MAX = 32 * 1024 * 1024
NAME_CHARACTERS_MAX = 256

_BYTES_OF_SEEN_BYTE = 6  # what a byte of a token comes to with its claims
_MALFORMED = "the token is malformed; ask its issuer for a new one"
_NOT_SIGNED = "the token is not signed by a key of its issuer; ask its issuer for a new one"
# What PyJWT and cryptography raise for what they are given.
_ERRORS = (jwt.PyJWTError, UnsupportedAlgorithm, ValueError, TypeError, KeyError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """What a token of an issuer has to be. `name_claim` says who it is of."""

    issuer: str
    audiences: tuple[str, ...]
    algorithms: tuple[str, ...]
    name_claim: str = "sub"
    leeway_s: float = 30.0  # by which clocks may differ


class Issuer:
    """One issuer: what its tokens have to be, and its keys."""

    def __init__(self, rules: TokenRules, keys: IssuerKeys) -> None:
        self.rules = rules
        self.keys = keys

    def claims_of(self, token: bytes, header: Mapping[str, Any]) -> dict[str, Any]:
        """Return the claims of a token that is signed and meant for us; raise `Unauthenticated`.

        `header` is what the token has for one, read by anybody.
        """
        if "crit" in header or "b64" in header:  # extensions that a reader must understand: we have none
            raise Unauthenticated("the token has critical extensions; ask its issuer for one without")
        algorithm = header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in self.rules.algorithms:
            raise Unauthenticated("the token is signed by an algorithm that is not allowed here; use another one")
        keys = self.keys.current
        if keys is None:
            self.keys.reread_early()
            raise Unauthenticated("the keys of the token's issuer are not known yet; try again in some seconds")
        key_id = header.get("kid")
        if not isinstance(key_id, str | None):
            raise Unauthenticated(_MALFORMED)
        signed, _, signature = token.rpartition(b".")
        for key in keys.find(key_id, algorithm):
            try:
                if not key.Algorithm.verify(signed, key.key, _bytes_of(signature)):
                    continue
                return jwt.decode(
                    token,
                    key,
                    [algorithm],
                    options={
                        "require": ["exp", "iss", "aud"],
                        "verify_exp": False,  # times are compared in `Tokens`
                        "verify_nbf": False,
                        "verify_iat": False,
                        "verify_sub": False,
                        "verify_jti": False,
                        "enforce_minimum_key_length": True,
                    },
                    audience=self.rules.audiences,
                    issuer=self.rules.issuer,
                )
            except jwt.MissingRequiredClaimError:
                raise Unauthenticated("the token lacks one of the claims exp, iss and aud; ask for one with") from None
            except jwt.InvalidAudienceError:
                raise Unauthenticated("the token is for another audience; ask its issuer for one for this") from None
            except _ERRORS:
                raise Unauthenticated(_MALFORMED) from None
        self.keys.reread_early()
        raise Unauthenticated(_NOT_SIGNED)


class Versions(Protocol):
    """The version of all keys. It rises after they change, in any thread: nothing that was verified before counts."""

    version: int


class Tokens:
    """Who shows a token. One thread."""

    def __init__(
        self,
        issuers: Mapping[str, Issuer],
        *,
        versions: Versions,
        clock: Callable[[], float],
        seen_max: int = SEEN_MAX,
        seen_bytes_max: int = SEEN_BYTES_MAX,
    ) -> None:
        """`clock` gives seconds since 1970, and may be set at any time."""
        self._issuers = issuers
        self._versions = versions
        self._clock = clock
        self._seen_max = seen_max
        self._seen_bytes_max = seen_bytes_max
        self._seen: dict[bytes, tuple[Principal, float, float]] = {}  # with when it begins and ends; oldest first
        self._seen_bytes = 0
        self._seen_version = 0

    def seen(self, value: bytes) -> Principal | None:
        """Return who showed this value of a header before, where it still counts."""
        if self._seen_version != (version := self._versions.version):
            self._seen.clear()
            self._seen_bytes = 0
            self._seen_version = version
        found = self._seen.get(value)
        if found is None or not found[1] <= self._clock() < found[2]:
            return None
        return found[0]

    def verify(self, token: bytes, value: bytes) -> Principal:
        """Return who shows a token, and remember it by `value`; raise `Unauthenticated`. After `seen`, of that."""
        if len(token) > TOKEN_BYTES_MAX:
            raise Unauthenticated(f"the token has more than {TOKEN_BYTES_MAX} bytes; ask for one with fewer claims")
        header, payload = _unverified(token)
        name = payload.get("iss")
        issuer = self._issuers.get(name) if isinstance(name, str) else None
        if issuer is None:
            raise Unauthenticated("the token is of an issuer that is not known here; ask for one of another issuer")
        claims = issuer.claims_of(token, header)
        begins_s, ends_s = _validity(claims, issuer.rules.leeway_s)
        now = self._clock()
        if now < begins_s:
            raise Unauthenticated("the token is not valid yet; try again later, or set the issuer's clock")
        if now >= ends_s:
            raise Unauthenticated("the token has expired; ask its issuer for a new one")
        who = claims.get(issuer.rules.name_claim)
        if not isinstance(who, str) or not who.isprintable() or not 0 < len(who) <= NAME_CHARACTERS_MAX:
            raise Unauthenticated("the token does not name whose it is; ask its issuer for one that does")
        principal = Principal(f"{issuer.rules.issuer} {who}", claims, ends_s)
        self._remember(value, (principal, begins_s, ends_s))
        return principal

    def _remember(self, value: bytes, entry: tuple[Principal, float, float]) -> None:
        self._forget(value)
        self._seen[value] = entry
        self._seen_bytes += len(value) * _BYTES_OF_SEEN_BYTE
        while len(self._seen) > self._seen_max or self._seen_bytes > self._seen_bytes_max:
            self._forget(next(iter(self._seen)))

    def _forget(self, value: bytes) -> None:
        if self._seen.pop(value, None) is not None:
            self._seen_bytes -= len(value) * _BYTES_OF_SEEN_BYTE


def _unverified(token: bytes) -> list[dict[str, Any]]:
    """Return the header and the claims of a token, whoever made it; raise `Unauthenticated`."""
    try:
        found = [json.loads(_bytes_of(part)) for part in token.split(b".")[:2]]
    except (ValueError, RecursionError):
        raise Unauthenticated(_MALFORMED) from None
    if len(found) != 2 or not all(isinstance(part, dict) for part in found):
        raise Unauthenticated(_MALFORMED)
    return found


def _bytes_of(part: bytes) -> bytes:
    return base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4))


def _validity(claims: Mapping[str, Any], leeway_s: float) -> tuple[float, float]:
    """Return from when and until when a token is valid, in seconds since 1970; raise `Unauthenticated`."""
    begins_s = _time_of(claims["nbf"]) - leeway_s if "nbf" in claims else -math.inf
    return begins_s, _time_of(claims["exp"]) + leeway_s


def _time_of(value: object) -> float:
    # JSON of Python has NaN and Infinity, and numbers of any length.
    try:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    except OverflowError:
        pass
    raise Unauthenticated(_MALFORMED)
