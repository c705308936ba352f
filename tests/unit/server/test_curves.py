"""The curves of TLS that a worker speaks: those of Mozilla's intermediate list, and no more."""

import socket
import ssl
import subprocess
from pathlib import Path

import pytest

from tablegate.gateway.server.child import REPLICATOR, WORKER, child_environment
from tests.kit.http.certificates import Authority
from tests.kit.http.tls_process import serving

CURVES = {"prime256v1": True, "secp384r1": True, "secp521r1": False}
GROUPS = {"X25519": True, "P-256": True, "P-384": True, "P-521": False, "X448": False, "ffdhe2048": False}


def speaks(port: int, authority: Authority, curve: str) -> bool:
    """Return whether a client that knows this curve alone is served.

    By TLS 1.3: in 1.2 it would have to know the curve of the certificate's key, too.
    """
    context = ssl.create_default_context(cafile=authority.certificate)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_ecdh_curve(curve)
    try:
        with (
            socket.create_connection(("127.0.0.1", port)) as raw,
            context.wrap_socket(raw, server_hostname="127.0.0.1"),
        ):
            return True
    except (ssl.SSLError, ConnectionError):
        return False


def openssl_speaks(port: int, group: str) -> bool:
    """The same, as `openssl s_client` sees it, which knows more of them."""
    words = ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-groups", group]
    return subprocess.run(words, input="", capture_output=True, text=True, check=False).returncode == 0


@pytest.mark.tools
def test_a_worker_speaks_the_curves_of_mozillas_list_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENSSL_CONF", raising=False)
    authority = Authority(tmp_path)
    with serving(authority, child_environment(WORKER)) as port:
        assert {each: speaks(port, authority, each) for each in CURVES} == CURVES
        if subprocess.run(["openssl", "version"], capture_output=True, check=False).returncode == 0:
            assert {each: openssl_speaks(port, each) for each in GROUPS} == GROUPS


def test_whoever_configures_openssl_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENSSL_CONF", "/etc/ssl/fips.cnf")
    assert child_environment(WORKER) == {}
    monkeypatch.delenv("OPENSSL_CONF")
    assert child_environment(REPLICATOR) == {}
