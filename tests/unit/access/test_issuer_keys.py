"""Keys of issuers: found, read again, kept while an issuer is away, and never from a place that nobody named."""

import json
import logging
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tablegate.gateway.access.credentials import Authenticator, authenticator_of
from tablegate.gateway.access.issuer_keys import DISCOVERY, EARLY_S, SET_BYTES_MAX, IssuerKeys, KeySet, KeySource
from tablegate.gateway.access.principal import AccessFileError, Principal, Unauthenticated
from tablegate.gateway.access.tokens import Issuer, TokenRules
from tests.kit.access.issuer import AUDIENCE, NAME, Clock, KeyServer, SigningKey, key_set
from tests.kit.http.certificates import Authority

pytestmark = pytest.mark.tools

WAIT_S = 20.0
ONE, TWO = SigningKey("one"), SigningKey("two")


@pytest.fixture
def server() -> Iterator[KeyServer]:
    with KeyServer() as server:
        yield server


class World:
    """Who knows an issuer whose keys are at a URL; `changed` is set when there are other keys."""

    def __init__(self, url: str | None, *, issuer: str = NAME, ca_file: Path | None = None) -> None:
        self.changed = threading.Event()
        self.monotonic = Clock(0.0)
        self.clock = Clock()
        self.authenticator = Authenticator(clock=self.clock)
        source = KeySource(issuer=issuer, algorithms=("ES256",), url=url, ca_file=ca_file, refresh_s=86_400)
        self.keys = IssuerKeys(source, on_change=self._on_change, monotonic=self.monotonic)
        rules = TokenRules(issuer=issuer, audiences=(AUDIENCE,), algorithms=("ES256",))
        self.authenticator.add_issuers({issuer: Issuer(rules, self.keys)})

    def _on_change(self) -> None:
        self.authenticator.changed()
        self.changed.set()

    def wait(self) -> None:
        """Return after the next change of the keys."""
        assert self.changed.wait(WAIT_S)
        self.changed.clear()

    def shown(self, token: str) -> Principal | None:
        return self.authenticator.principal({b"authorization": b"Bearer " + token.encode()}, None)

    def refusal(self, token: str) -> str:
        with pytest.raises(Unauthenticated) as refused:
            self.shown(token)
        return str(refused.value)


def test_an_issuer_that_is_down_is_asked_again(server: KeyServer, caplog: pytest.LogCaptureFixture) -> None:
    world = World(f"{server.url}/keys")
    assert "keys of the token's issuer are not known yet" in world.refusal(ONE.token())
    server.pages["/keys"] = 503
    for _ in range(3):
        assert world.keys.read() <= 10
    [line] = caplog.records
    assert "cannot be read" in line.message
    assert vars(line)["reason"] == f"{server.url}/keys answers HTTP 503"
    server.pages["/keys"] = key_set(ONE)
    assert world.keys.read() == 86_400
    assert world.shown(ONE.token())


def test_a_gateway_starts_without_its_issuer_and_finds_it(server: KeyServer) -> None:
    world = World(f"{server.url}/keys")
    world.authenticator.start()
    try:
        server.pages["/keys"] = key_set(ONE)
        world.refusal(ONE.token())  # wakes the thread, where it came first
        world.wait()
        assert world.shown(ONE.token())
    finally:
        world.authenticator.close()


def test_rotated_keys_count_and_removed_ones_do_not(server: KeyServer) -> None:
    world = World(f"{server.url}/keys")
    server.pages["/keys"] = key_set(ONE)
    world.keys.read()
    token = ONE.token()
    version = world.authenticator.version
    first = world.shown(token)
    world.keys.read()
    assert world.authenticator.version == version  # the same keys: nothing is verified again
    assert world.shown(token) is first
    server.pages["/keys"] = key_set(ONE, TWO)
    world.keys.read()
    assert world.shown(token)
    assert world.shown(TWO.token())
    server.pages["/keys"] = key_set(TWO)
    world.keys.read()
    assert world.authenticator.version == version + 2
    assert "not signed by a key" in world.refusal(token)


def test_an_unknown_id_lets_keys_be_read_early_and_not_often(server: KeyServer) -> None:
    world = World(f"{server.url}/keys")
    server.pages["/keys"] = key_set(ONE)
    world.authenticator.start()
    try:
        world.wait()
        server.pages["/keys"] = key_set(TWO)
        assert "not signed by a key" in world.refusal(TWO.token())
        for _ in range(20):
            world.monotonic.now_s += EARLY_S / 25
            assert not world.keys.reread_early()
        world.wait()
        assert world.shown(TWO.token())
        server.pages["/keys"] = key_set(ONE)
        world.monotonic.now_s += EARLY_S
        assert "not signed by a key" in world.refusal(ONE.token())
        world.wait()
        assert world.shown(ONE.token())
        assert server.requests == ["/keys"] * 3
    finally:
        world.authenticator.close()


@pytest.mark.parametrize("junk", [b"", b"{}", b"[]", b'{"keys": 1}', b"\xff", b"[" * 9_000, b" " * (SET_BYTES_MAX + 1)])
def test_junk_in_place_of_keys_leaves_those_before(server: KeyServer, junk: bytes) -> None:
    world = World(f"{server.url}/keys")
    server.pages["/keys"] = key_set(ONE)
    world.keys.read()
    server.pages["/keys"] = junk
    world.keys.read()
    assert world.shown(ONE.token())


def test_an_issuer_that_never_comes_to_an_end_is_given_up(server: KeyServer) -> None:
    source = KeySource(issuer=NAME, algorithms=("ES256",), url=f"{server.url}/slow", whole_s=0.1)
    server.pages["/slow"] = endless()
    with pytest.raises(TimeoutError, match="takes more than"):
        source.read()


def endless() -> Iterator[bytes]:
    """Yield spaces, one by one, until nobody reads them."""
    while True:
        time.sleep(0.01)
        yield b" "


def test_an_empty_set_ends_all_tokens(server: KeyServer, caplog: pytest.LogCaptureFixture) -> None:
    world = World(f"{server.url}/keys")
    for page in (key_set(ONE), key_set()):
        server.pages["/keys"] = page
        world.keys.read()
    assert "not signed by a key" in world.refusal(ONE.token())
    assert [line.message for line in caplog.records] == ["an issuer has no key that may sign tokens"]


@pytest.mark.parametrize(
    "entry",
    [
        None,
        7,
        [],
        {},
        {"kty": "EC"},
        {"kty": ["EC"], "kid": "one"},
        ONE.jwk | {"use": "enc"},
        ONE.jwk | {"key_ops": ["sign"]},
        ONE.jwk | {"key_ops": "verify"},
        ONE.jwk | {"alg": "ES384"},
        ONE.jwk | {"crv": "P-384"},
        ONE.jwk | {"x": "AAAA"},
        ONE.jwk | {"x": 7},
        ONE.jwk | {"x": "ä" * 40},
        ONE.jwk | {"x": "A" * 5_000},
        {"kty": "oct", "kid": "one", "k": "AAAA", "alg": "HS256"},
        SigningKey("one", "RS256", bits=1024).jwk,
        {"kty": "RSA", "kid": "one", "n": "AQAB", "e": "AQAB"},
        {"kty": "OKP", "kid": "one", "crv": "Ed25519", "x": "AA"},
    ],
)
def test_what_is_no_key_for_tokens_is_left_out(entry: object) -> None:
    algorithms = ("ES256", "RS256", "EdDSA")
    keys = KeySet(key_set(entry, TWO), algorithms)
    assert not any(keys.find("one", algorithm) for algorithm in algorithms)
    assert keys.find("two", "ES256")


def test_the_private_half_of_a_published_key_is_not_read() -> None:
    keys = KeySet(key_set(ONE.jwk | {"d": "AAAA"}), ("ES256",))
    [key] = keys.find("one", "ES256")
    assert not hasattr(key.key, "private_numbers")


# Where keys come from.


def discovered(server: KeyServer, **changed: Any) -> None:
    document = {"issuer": server.url, "jwks_uri": f"{server.url}/keys", **changed}
    server.pages |= {DISCOVERY: json.dumps(document).encode(), "/keys": key_set(ONE)}


def test_keys_are_found_by_discovery_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with KeyServer(authority.issue()) as server:
        discovered(server)
        world = World(None, issuer=server.url, ca_file=authority.certificate)
        world.keys.load()
        assert world.shown(ONE.token(iss=server.url))
        assert server.requests == [DISCOVERY, "/keys"]
        stranger = World(None, issuer=server.url)
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            stranger.keys.load()
        assert "not known yet" in stranger.refusal(ONE.token(iss=server.url))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"issuer": "https://other.example"}, "is of another issuer"),
        ({"issuer": None}, "is of another issuer"),
        ({"jwks_uri": "http://keys.example/keys"}, "no jwks_uri that begins with https"),
        ({"jwks_uri": "file:///etc/passwd"}, "no jwks_uri that begins with https"),
        ({"jwks_uri": 7}, "no jwks_uri that begins with https"),
    ],
)
def test_a_document_that_leads_astray_is_refused(server: KeyServer, changed: dict[str, Any], reason: str) -> None:
    discovered(server, **changed)
    with pytest.raises(ValueError, match=reason):
        World(None, issuer=server.url).keys.load()


def test_redirects_are_not_followed(server: KeyServer) -> None:
    server.pages |= {"/keys": 302, "/moved": key_set(ONE)}
    with pytest.raises(OSError, match="302"):
        World(f"{server.url}/keys").keys.load()
    assert server.requests == ["/keys"]


def test_keys_of_a_file_are_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    file = tmp_path / "keys.json"
    file.write_bytes(key_set(ONE))
    keys = IssuerKeys(KeySource(issuer=NAME, algorithms=("ES256",), file=file), on_change=lambda: None)
    keys.load()
    file.unlink()
    keys.read()
    assert keys.current is not None
    assert keys.current.find("one", "ES256")
    file.write_bytes(key_set(TWO))
    keys.read()
    assert not keys.current.find("one", "ES256")
    assert ["cannot be read" in line.message for line in caplog.records] == [True, False]


# The access file.


def settings(**issuer: Any) -> dict[str, Any]:
    return {"issuer": [{"issuer": NAME, "audience": AUDIENCE, **issuer}]}


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"audience": None}, 'needs "audience"'),
        ({"audience": []}, 'needs "audience"'),
        ({"audience": 7}, 'needs "audience"'),
        ({"issuer": None}, 'needs "issuer"'),
        ({"issuer": "login"}, '"issuer" is no URL'),
        ({"issuer": "http://login.example"}, '"issuer" does not begin with https://'),
        ({"jwks_url": "http://login.example/keys"}, '"jwks_url" does not begin with https://'),
        ({"jwks_url": "https://ann:secret@login.example/keys"}, '"jwks_url" does not begin with https://'),
        ({"jwks_url": "https:///keys"}, '"jwks_url" does not begin with https://'),
        ({"jwks_file": "none.json"}, r'"jwks_file" that is wrong: ".*none.json" cannot be read'),
        ({"jwks_file": "junk.json"}, r'"jwks_file" ".*junk.json" is no JWKS'),
        ({"jwks_file": "junk.json", "jwks_url": "https://a.example"}, "keep the one or the others"),
        ({"ca_file": "none.pem"}, 'ca_file ".*none.pem" cannot be used'),
        ({"ca_file": "junk.json"}, 'ca_file ".*junk.json" cannot be used'),
        ({"algorithms": ["HS256"]}, '"algorithms" has "HS256", which is none of'),
        ({"algorithms": ["none"]}, '"algorithms" has "none", which is none of'),
        ({"leeway_s": "30"}, '"leeway_s" is no number from 0 to 600'),
        ({"leeway_s": True}, '"leeway_s" is no number from 0 to 600'),
        ({"refresh_s": 0}, '"refresh_s" is no number from 1 to 86400'),
        ({"name_claim": ""}, 'needs "name_claim"'),
        ({"leway_s": 3}, '"leway_s" is unknown; known are algorithms, '),
    ],
)
def test_a_wrong_section_is_refused_by_its_key(tmp_path: Path, changed: dict[str, Any], sentence: str) -> None:
    (tmp_path / "junk.json").write_text("junk")
    made = settings(**changed)
    made["issuer"][0] = {name: value for name, value in made["issuer"][0].items() if value is not None}
    with pytest.raises(AccessFileError, match=sentence) as refused:
        authenticator_of(made, tmp_path)
    assert str(refused.value).startswith("[[issuer]] number 1 ")


@pytest.mark.parametrize("issuer", [7, {}, [], [7], settings()["issuer"] * 2, settings()["issuer"] * 21])
def test_issuers_are_a_list_of_different_ones(tmp_path: Path, issuer: object) -> None:
    with pytest.raises(AccessFileError, match="issuer"):
        authenticator_of({"issuer": issuer}, tmp_path)


def test_a_file_that_is_read_again_keeps_known_keys(server: KeyServer, tmp_path: Path) -> None:
    server.pages["/keys"] = key_set(ONE)
    before, same, other = (
        authenticator_of(settings(jwks_url=f"{server.url}/{page}"), tmp_path, clock=Clock())
        for page in ("keys", "keys", "others")
    )
    before._issuers[NAME].keys.load()
    header = {b"authorization": f"Bearer {ONE.token()}".encode()}
    for after in (same, other):
        after.adopt(before)
    assert same.principal(header, None)
    with pytest.raises(Unauthenticated, match="not known yet"):
        other.principal(header, None)


def test_a_missing_library_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("issuers", "issuer_keys", "tokens"):
        monkeypatch.delitem(sys.modules, f"tablegate.gateway.access.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "jwt", None)
    with pytest.raises(AccessFileError, match=r'needs a library: pip install "tablegate-gateway\[access\]"'):
        authenticator_of(settings(), tmp_path)
