"""Which of the credentials of a call counts, API keys, and certificates."""

import os
import re
import resource
import subprocess
import sys
import tomllib
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tablegate.gateway.access.api_keys import ApiKeys, new_key
from tablegate.gateway.access.audit import audit_log_of
from tablegate.gateway.access.credentials import Authenticator, authenticator_of
from tablegate.gateway.access.principal import AccessFileError, Principal, Unauthenticated
from tests.kit.access.issuer import AUDIENCE, NAME, Clock, SigningKey, key_set
from tests.kit.command_line import COMMAND

KEY = SigningKey()
TOKEN = KEY.token().encode()


def entry(key: str, name: str = "reports", **more: str) -> str:
    lines = {"name": f'"{name}"', "sha256": f'"{sha256(key.encode()).hexdigest()}"', **more}
    return "[[key]]\n" + "".join(f"{word} = {value}\n" for word, value in lines.items())


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def to(tmp_path: Path, clock: Clock) -> Authenticator:
    (tmp_path / "keys.json").write_bytes(key_set(KEY))
    (tmp_path / "keys.toml").write_text(entry("k1", claims='{ roles = ["reader"] }') + entry("k2", "other.one"))
    settings = {
        "issuer": [{"issuer": NAME, "audience": AUDIENCE, "jwks_file": "keys.json"}],
        "api_keys": {"file": "keys.toml"},
        "certificates": {"claims": {"spiffe://shop/orders": {"roles": ["writer"]}}},
    }
    return authenticator_of(settings, tmp_path, clock=clock)


def name_of(principal: Principal | None) -> str | None:
    return principal.name if principal is not None else None


ANN, REPORTS, OTHER = f"{NAME} ann", "key reports", "key other.one"
BEARER, CERTIFICATE = b"Bearer " + TOKEN, "spiffe://shop/orders"


@pytest.mark.parametrize(
    ("headers", "certificate", "is_get", "name"),
    [
        ({}, None, True, None),
        ({"authorization": BEARER}, None, False, ANN),
        ({"authorization": b"bearer   " + TOKEN + b" "}, None, False, ANN),
        ({"authorization": b"Bearer k1"}, None, False, REPORTS),
        ({"x-api-key": b"k2"}, None, False, OTHER),
        ({"cookie": b"a=b; tablegate-token=" + TOKEN + b"; c=d"}, None, True, ANN),
        ({"cookie": b"tablegate-token=k1"}, None, True, REPORTS),
        ({"cookie": b"tablegate-token=" + TOKEN}, None, False, None),
        ({"cookie": b"tablegate-token=junk"}, CERTIFICATE, False, f"certificate {CERTIFICATE}"),
        ({"cookie": b"a=tablegate-token=k1; xtablegate-token=k1; tablegate-token"}, None, False, None),
        ({}, CERTIFICATE, False, f"certificate {CERTIFICATE}"),
        ({"authorization": BEARER, "x-api-key": b"k1"}, CERTIFICATE, True, ANN),
        ({"x-api-key": b"k1", "cookie": b"tablegate-token=k2"}, CERTIFICATE, True, REPORTS),
        ({"authorization": BEARER, "cookie": b"tablegate-token=k2"}, None, True, ANN),
        ({"cookie": b"tablegate-token=k2"}, CERTIFICATE, True, OTHER),
    ],
)
def test_the_first_credential_counts(
    to: Authenticator, headers: dict[str, bytes], certificate: str | None, name: str | None, *, is_get: bool
) -> None:
    by_name = {word.encode(): value for word, value in headers.items()}
    for _ in range(2):
        assert name_of(to.principal(by_name, certificate, is_get=is_get)) == name


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": b""},
        {"authorization": b"Bearer"},
        {"authorization": b"Bearer "},
        {"authorization": b"Bearer k3"},
        {"authorization": b"Basic YTpi"},
        {"authorization": b"k1"},
        {"authorization": b"Bearer k1, Bearer k1"},
        {"authorization": b"Bearer " + TOKEN + b"x", "x-api-key": b"k1"},
        {"authorization": b"Bearer " + b"k" * 600},
        {"x-api-key": b""},
        {"x-api-key": TOKEN},
        {"x-api-key": b"k3", "cookie": b"tablegate-token=k1"},
        {"cookie": b"tablegate-token="},
        {"cookie": b"tablegate-token=k1; tablegate-token=k2"},
        {"cookie": b"tablegate-token=k1; tablegate-token=k1"},
        {"cookie": b'tablegate-token="k1"'},
    ],
)
def test_a_wrong_credential_is_refused_whatever_else_comes(to: Authenticator, headers: dict[str, bytes]) -> None:
    by_name = {word.encode(): value for word, value in headers.items()}
    with pytest.raises(Unauthenticated):
        to.principal(by_name, CERTIFICATE, is_get=True)


@given(value=st.binary(min_size=5, max_size=60), name=st.sampled_from(["authorization", "x-api-key", "cookie"]))
def test_any_bytes_are_refused_in_a_sentence_without_them(value: bytes, name: str) -> None:
    text = {"authorization": b"Bearer " + value, "x-api-key": value, "cookie": b"tablegate-token=" + value}[name]
    with pytest.raises(Unauthenticated) as refused:
        Authenticator().principal({name.encode(): text}, None, is_get=True)
    assert value.decode("latin-1") not in str(refused.value)


def test_without_sections_nobody_is_known(tmp_path: Path) -> None:
    nobody = authenticator_of({}, tmp_path)
    assert nobody.principal({}, CERTIFICATE) is None
    for headers in ({b"authorization": BEARER}, {b"x-api-key": b"k1"}):
        with pytest.raises(Unauthenticated, match="not known here"):
            nobody.principal(headers, CERTIFICATE)


def test_the_files_of_the_guide_are_right(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[3] / "docs/how-to/let-clients-in.md").read_text()
    access, keys, audit = re.findall(r"^```toml\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    (tmp_path / "keys.toml").write_text(keys)
    authenticator_of(tomllib.loads(access), tmp_path)
    settings = tomllib.loads(audit)
    settings["audit"]["file"] = "-"
    log = audit_log_of(settings, tmp_path)
    assert log is not None


def test_a_certificate_has_the_claims_of_its_name(to: Authenticator) -> None:
    known, unknown = to.principal({}, CERTIFICATE), to.principal({}, "alice")
    assert known == Principal(f"certificate {CERTIFICATE}", {"roles": ["writer"]})
    assert unknown == Principal("certificate alice")
    assert to.principal({}, "alice") is unknown


# API keys.


def test_a_new_key_is_known_by_its_entry(tmp_path: Path, clock: Clock) -> None:
    name = 'rep"or\\ts'
    key, made = new_key(name)
    file = tmp_path / "keys.toml"
    file.write_text(made + new_key(name)[1])  # a name may have two, so that one follows the other
    found = ApiKeys(file, clock=clock).principal(key.encode())
    assert name_of(found) == f"key {name}"
    assert key not in made
    assert key != new_key(name)[0]


def test_an_expired_key_is_refused(tmp_path: Path, clock: Clock) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(entry("k1", expires="2027-01-15T08:00:01Z"))
    keys = ApiKeys(file, clock=clock)
    found = keys.principal(b"k1")
    assert found is not None
    assert found.expires_at_s == clock.now_s + 1
    clock.now_s += 1
    with pytest.raises(Unauthenticated, match="has expired"):
        keys.principal(b"k1")


def read_again(to: Authenticator) -> None:
    """Look at the files as often as it takes to see that nobody writes them any more."""
    to.refresh()
    to.refresh()


def test_changed_keys_are_read_again(to: Authenticator, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    version, kept = to.version, to.principal({b"x-api-key": b"k2"}, None)
    read_again(to)
    assert to.version == version
    file = tmp_path / "keys.toml"
    file.write_text("[[key")
    read_again(to)
    assert [line.message for line in caplog.records] == ["API keys cannot be read; those before stay in use"]
    assert to.principal({b"x-api-key": b"k1"}, None)
    new = tmp_path / "new.toml"
    new.write_text(entry("k2", "other.one") + entry("k3"))
    os.replace(new, file)
    read_again(to)
    assert to.version == version + 1
    assert to.principal({b"x-api-key": b"k2"}, None) is kept
    assert name_of(to.principal({b"x-api-key": b"k3"}, None)) == REPORTS
    with pytest.raises(Unauthenticated, match="not known"):
        to.principal({b"x-api-key": b"k1"}, None)
    file.unlink()
    read_again(to)
    assert to.principal({b"x-api-key": b"k3"}, None)


def test_keys_that_could_not_be_read_are_read_later(
    to: Authenticator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    new = tmp_path / "new.toml"
    new.write_text(entry("k3"))
    os.replace(new, tmp_path / "keys.toml")
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, files[1]))  # nothing more can be opened
    try:
        read_again(to)
        read_again(to)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, files)
    assert len(caplog.records) == 1
    to.refresh()
    assert to.principal({b"x-api-key": b"k3"}, None)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[[key", "is no TOML"),
        (f"key = {'9' * 5_000}", "is no TOML"),
        ("keys = 1", '"keys" is unknown; known are key'),
        ("key = 1", '"key" is no list'),
        ("key = [1]", "number 1 is no table"),
        ('[[key]]\nname = "a"', 'number 1 needs "sha256"'),
        ('[[key]]\nsha256 = "a"', 'number 1 needs "name"'),
        ('[[key]]\nname = "a"\nsha256 = "AB"', "not 64 hexadecimal digits"),
        (entry("a") + entry("a", "b"), "number 2 has the key of another one"),
        (entry("a", expires="2027-01-01"), "no time with a zone"),
        (entry("a", expires="2027-01-01T00:00:00"), "no time with a zone"),
        (entry("a", expires="7"), "no time with a zone"),
        (entry("a", claims="7"), '"claims" is no table'),
        (entry("a", role='"x"'), '"role" is unknown'),
        (entry("a", "x" * 257), "over 256 characters"),
    ],
)
def test_a_wrong_file_of_keys_is_refused_by_its_entry(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "keys.toml").write_text(text)
    with pytest.raises(AccessFileError, match=sentence):
        authenticator_of({"api_keys": {"file": "keys.toml"}}, tmp_path)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"api_keys": 7}, r"\[api_keys\] is no table"),
        ({"api_keys": {}}, r'\[api_keys\] needs "file"'),
        ({"api_keys": {"file": 7}}, r'\[api_keys\] needs "file"'),
        ({"api_keys": {"file": "none.toml"}}, 'none.toml" cannot be read'),
        ({"api_keys": {"file": "."}}, "cannot be read"),
        ({"api_keys": {"path": "x"}}, '"path" is unknown; known are file'),
        ({"certificates": True}, r"\[certificates\] is no table"),
        ({"certificates": {"claims": []}}, '"claims" is no table'),
        ({"certificates": {"claims": {"alice": ["reader"]}}}, '"alice" is no table'),
        ({"certificates": {"alice": {}}}, '"alice" is unknown'),
    ],
)
def test_wrong_sections_are_refused_by_their_key(tmp_path: Path, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(AccessFileError, match=sentence):
        authenticator_of(settings, tmp_path)


def test_a_command_makes_a_key_and_its_entry() -> None:
    done = CliRunner().invoke(COMMAND, ["access", "new-key", "reports"])
    assert done.exit_code == 0
    [made] = tomllib.loads(done.stdout)["key"]
    assert made == {"name": "reports", "sha256": sha256(done.stderr.strip().encode()).hexdigest()}
    refused = CliRunner().invoke(COMMAND, ["access", "new-key", "a\nb"])
    assert refused.exit_code == 1
    assert "name is empty, has line breaks" in refused.stderr


def test_who_calls_without_issuers_needs_no_library() -> None:
    program = (
        "import sys; from tablegate.gateway.access import audit, credentials; "
        "print(sorted({'jwt', 'cryptography', 'urllib.request'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
