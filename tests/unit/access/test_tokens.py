"""Tokens: which are accepted, and that nothing else is, whatever anybody sends."""

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from tablegate.gateway.access.credentials import Authenticator, authenticator_of
from tablegate.gateway.access.principal import Principal, Unauthenticated
from tablegate.gateway.access.tokens import TOKEN_BYTES_MAX, Tokens
from tests.kit.access.issuer import AUDIENCE, NAME, NOW_S, Clock, SigningKey, key_set, made, text_of

KEY = SigningKey()
RSA = SigningKey("rsa", "RS256")
CLAIMS = {"iss": NAME, "aud": AUDIENCE, "sub": "ann", "exp": int(NOW_S) + 600}


def authenticator(directory: Path, *keys: Any, clock: Clock | None = None, **settings: Any) -> Authenticator:
    """Return who knows one issuer with these keys."""
    (directory / "keys.json").write_bytes(key_set(*keys))
    issuer = {"issuer": NAME, "audience": AUDIENCE, "jwks_file": "keys.json", **settings}
    return authenticator_of({"issuer": [issuer]}, directory, clock=clock or Clock())


def shown(to: Authenticator, token: str | bytes) -> Principal | None:
    return to.principal({b"authorization": b"Bearer " + (token.encode() if isinstance(token, str) else token)}, None)


def refusal(of: Authenticator, token: str | bytes) -> str:
    with pytest.raises(Unauthenticated) as refused:
        shown(of, token)
    return str(refused.value)


@pytest.mark.parametrize("algorithm", ["RS256", "RS512", "PS256", "ES256", "ES384", "ES512", "EdDSA"])
def test_a_signed_token_says_who_calls(tmp_path: Path, algorithm: str) -> None:
    key = SigningKey(algorithm=algorithm)
    found = shown(authenticator(tmp_path, key), key.token(roles=["reader"]))
    assert found is not None
    assert found.name == f"{NAME} ann"
    assert found.claims["roles"] == ["reader"]
    assert found.expires_at_s == NOW_S + 630  # clocks may differ


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"iss": "https://other.example"}, "of an issuer that is not known"),
        ({"iss": None}, "of an issuer that is not known"),
        ({"iss": [NAME]}, "of an issuer that is not known"),
        ({"aud": "other"}, "for another audience"),
        ({"aud": ["other", 7]}, "another audience|malformed"),
        ({"aud": None}, "lacks one of the claims"),
        ({"exp": None}, "lacks one of the claims"),
        ({"exp": NOW_S - 31}, "has expired"),
        ({"exp": -(10**400)}, "malformed"),
        ({"exp": float("inf")}, "malformed"),
        ({"exp": float("nan")}, "malformed"),
        ({"exp": True}, "malformed"),
        ({"exp": "1900000000"}, "malformed"),
        ({"nbf": NOW_S + 31}, "not valid yet"),
        ({"nbf": "soon"}, "malformed"),
        ({"sub": None}, "does not name whose it is"),
        ({"sub": ""}, "does not name whose it is"),
        ({"sub": 7}, "does not name whose it is"),
        ({"sub": "ann\nkey reports"}, "does not name whose it is"),
        ({"sub": "a" * 257}, "does not name whose it is"),
    ],
)
def test_a_signed_token_of_other_claims_is_refused(tmp_path: Path, changed: dict[str, Any], reason: str) -> None:
    to = authenticator(tmp_path, KEY)
    with pytest.raises(Unauthenticated, match=reason):
        shown(to, KEY.token(**changed))


def test_clocks_may_differ_by_the_leeway(tmp_path: Path) -> None:
    to = authenticator(tmp_path, KEY, leeway_s=5)
    assert shown(to, KEY.token(exp=NOW_S - 4, nbf=NOW_S + 5))
    assert "expired" in refusal(to, KEY.token(exp=NOW_S - 5))


def test_one_of_several_audiences_is_enough(tmp_path: Path) -> None:
    assert shown(authenticator(tmp_path, KEY, audience=["other", AUDIENCE]), KEY.token(aud=["third", AUDIENCE]))


def test_another_claim_may_be_the_name(tmp_path: Path) -> None:
    found = shown(authenticator(tmp_path, KEY, name_claim="email"), KEY.token(email="ann@shop.example"))
    assert found is not None
    assert found.name == f"{NAME} ann@shop.example"


# Signatures.


def _hmac(secret: bytes) -> Any:
    return lambda data: hmac.digest(secret, data, hashlib.sha256)


@pytest.mark.parametrize("algorithm", ["none", "None", "nOnE", "", None, 0, ["ES256"], {"a": 1}])
def test_an_unsigned_token_is_refused(tmp_path: Path, algorithm: object) -> None:
    to = authenticator(tmp_path, KEY)
    assert "algorithm that is not allowed" in refusal(to, made({"alg": algorithm}, CLAIMS, lambda _: b""))
    assert "algorithm that is not allowed" in refusal(to, made({"alg": algorithm, "kid": "one"}, CLAIMS, bytes))


@pytest.mark.parametrize("algorithm", ["HS256", "HS512"])
def test_a_public_key_is_no_secret_of_an_hmac(tmp_path: Path, algorithm: str) -> None:
    """The classic confusion of algorithms; a key for HMAC in the set changes nothing."""
    secret = {"kty": "oct", "kid": "oct", "k": text_of(b"s" * 32), "alg": algorithm}
    to = authenticator(tmp_path, RSA, secret)
    public = RSA.private.public_key()
    for encoding, form in ((Encoding.PEM, PublicFormat.SubjectPublicKeyInfo), (Encoding.DER, PublicFormat.PKCS1)):
        token = made({"alg": algorithm, "kid": "rsa"}, CLAIMS, _hmac(public.public_bytes(encoding, form)))
        assert "algorithm that is not allowed" in refusal(to, token)
    for secret_bytes in (b"s" * 32, json.dumps(RSA.jwk).encode(), b""):
        assert refusal(to, made({"alg": algorithm, "kid": "oct"}, CLAIMS, _hmac(secret_bytes)))


def test_a_token_cannot_choose_another_algorithm_for_a_key(tmp_path: Path) -> None:
    to = authenticator(tmp_path, RSA.jwk | {"alg": "RS256"}, KEY)
    for algorithm in ("PS256", "RS512", "ES256", "EdDSA"):
        assert "not signed by a key" in refusal(to, RSA.token(header={"alg": algorithm}))
    only = authenticator(tmp_path, RSA, KEY, algorithms="ES256")
    assert "algorithm that is not allowed" in refusal(only, RSA.token())
    assert shown(only, KEY.token())


def test_keys_that_a_token_brings_are_not_used(tmp_path: Path) -> None:
    stranger = SigningKey()
    to = authenticator(tmp_path, KEY)
    for header in ({"jwk": stranger.jwk}, {"jku": "http://127.0.0.1:1/keys"}, {"x5u": "http://127.0.0.1:1/"}):
        assert "not signed by a key" in refusal(to, stranger.token(header=header))


@pytest.mark.parametrize("header", [{"crit": ["exp"]}, {"crit": []}, {"crit": ["b64"], "b64": False}, {"b64": True}])
def test_critical_extensions_are_refused(tmp_path: Path, header: dict[str, Any]) -> None:
    assert "critical extensions" in refusal(authenticator(tmp_path, KEY), KEY.token(header=header))


def test_the_id_of_a_key_chooses_it(tmp_path: Path) -> None:
    to = authenticator(tmp_path, KEY, RSA)
    unknown, wrong = refusal(to, KEY.token(header={"kid": "two"})), refusal(to, SigningKey().token())
    assert unknown == wrong  # which ids there are is not told
    assert "malformed" in refusal(to, KEY.token(header={"kid": ["one"]}))


def test_without_an_id_the_only_key_of_the_algorithm_counts(tmp_path: Path) -> None:
    key = SigningKey(None)
    assert shown(authenticator(tmp_path, key, RSA), key.token())
    assert "not signed by a key" in refusal(authenticator(tmp_path, key, KEY), key.token())


def test_keys_of_one_id_are_all_tried(tmp_path: Path) -> None:
    other = SigningKey("one")
    to = authenticator(tmp_path, KEY, other)
    assert shown(to, KEY.token())
    assert shown(to, other.token())


@pytest.mark.parametrize(
    "token",
    [
        "a.b.c",
        "..",
        "....",
        b"\xff.\xfe.\xfd",
        "ä.ö.ü".encode(),
        "e30.e30.",
        "W10.W10.W10",
        b"\0.\0.\0",
        "bnVsbA.MQ.MQ",
    ],
)
def test_what_is_no_token_is_refused(tmp_path: Path, token: str | bytes) -> None:
    assert refusal(authenticator(tmp_path, KEY), token)


def test_a_token_that_nests_deeply_is_refused(tmp_path: Path) -> None:
    deep = text_of(b"[" * 3_000)
    assert "malformed" in refusal(authenticator(tmp_path, KEY), f"{deep}.{deep}.e30")


def test_a_huge_token_is_refused_unread(tmp_path: Path) -> None:
    assert f"more than {TOKEN_BYTES_MAX} bytes" in refusal(
        authenticator(tmp_path, KEY), KEY.token(more="x" * TOKEN_BYTES_MAX)
    )


@pytest.fixture(scope="module")
def knowing(tmp_path_factory: pytest.TempPathFactory) -> tuple[Authenticator, str]:
    return authenticator(tmp_path_factory.mktemp("keys"), KEY, RSA), KEY.token()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
HEADERS = st.dictionaries(st.sampled_from(["alg", "kid", "typ", "crit", "b64", "jwk"]), JSON, max_size=4)
NAMES = st.sampled_from(["iss", "aud", "exp", "nbf", "sub"])


@given(data=st.data())
def test_no_change_of_a_token_is_accepted(knowing: tuple[Authenticator, str], data: st.DataObject) -> None:
    to, token = knowing
    kind = data.draw(st.sampled_from(["bytes", "parts", "content"]))
    raw = token.encode()
    if kind == "bytes":
        start = data.draw(st.integers(0, len(raw)))
        end = data.draw(st.integers(start, min(len(raw), start + 9)))
        changed = raw[:start] + data.draw(st.binary(max_size=9)) + raw[end:]
    elif kind == "parts":
        parts = [*raw.split(b"."), b"", text_of(b'{"alg":"none"}').encode(), data.draw(st.binary(max_size=20))]
        changed = b".".join(data.draw(st.lists(st.sampled_from(parts), min_size=1, max_size=4)))
    else:
        header = {"alg": "ES256", "kid": "one"} | data.draw(HEADERS)
        claims = CLAIMS | data.draw(st.dictionaries(NAMES, JSON, max_size=3))
        signature = raw.rpartition(b".")[2]
        changed = made(header, claims, lambda _: b"").encode() + signature
    if changed.strip(b" ").rstrip(b"=") == raw:
        return
    refusal(to, changed)


@given(claims=st.dictionaries(NAMES | st.text(max_size=5), JSON, max_size=4))
def test_any_signed_claims_are_a_principal_or_refused(knowing: tuple[Authenticator, str], claims: Any) -> None:
    to, _ = knowing
    try:
        found = to.principal({b"authorization": b"Bearer " + KEY.token(**claims).encode()}, None)
    except Unauthenticated:
        return
    assert found is not None
    assert found.name.startswith(f"{NAME} ")


# Tokens that were seen before.


def test_a_seen_token_is_the_same_principal_until_it_ends(tmp_path: Path) -> None:
    clock = Clock()
    to = authenticator(tmp_path, KEY, clock=clock)
    token = KEY.token(nbf=NOW_S - 100)
    first = shown(to, token)
    assert shown(to, token) is first
    clock.now_s = NOW_S + 630
    assert "expired" in refusal(to, token)
    clock.now_s = NOW_S - 131  # set back
    assert "not valid yet" in refusal(to, token)
    clock.now_s = NOW_S
    assert shown(to, token) is first


def test_changed_keys_forget_what_was_seen(tmp_path: Path) -> None:
    to = authenticator(tmp_path, KEY)
    first = shown(to, KEY.token(aud=AUDIENCE))
    token = KEY.token()
    assert shown(to, token) is not first
    to.changed()
    again = shown(to, token)
    assert again is not None
    assert shown(to, token) is again


def test_seen_tokens_are_bounded_by_number_and_bytes(tmp_path: Path) -> None:
    to = authenticator(tmp_path, KEY)
    issuers = to._issuers
    tokens = [KEY.token(sub=f"user {number}").encode() for number in range(5)]
    for limits, kept in (({"seen_max": 2}, 2), ({"seen_bytes_max": 6 * 3 * 300}, 3), ({"seen_bytes_max": 10}, 0)):
        seen = Tokens(issuers, versions=to, clock=Clock(), **limits)
        for token in tokens:
            value = token[:300].ljust(300)
            assert seen.seen(value) is None
            seen.verify(token, value)
        remembered = [token for token in tokens if seen.seen(token[:300].ljust(300)) is not None]
        assert remembered == tokens[len(tokens) - kept :]
