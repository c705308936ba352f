"""The TLS of a worker as sslyze sees it: Mozilla's intermediate configuration, and no attack that it knows works."""

import subprocess
from pathlib import Path

import pytest

from tablegate.gateway.server.child import WORKER, child_environment
from tests.kit.http.certificates import Authority
from tests.kit.http.tls_process import serving
from tests.kit.programs.api_tools import from_pypi


@pytest.mark.tools
@pytest.mark.interop
def test_tls_is_mozillas_intermediate_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = from_pypi("sslyze", "6.3.1")
    if program is None:
        pytest.skip("sslyze is not here, and cannot be installed")
    monkeypatch.delenv("OPENSSL_CONF", raising=False)
    authority = Authority(tmp_path)
    with serving(authority, child_environment(WORKER)) as port:
        words = [program, "--mozilla_config", "intermediate", "--certinfo_ca_file", authority.certificate]
        done = subprocess.run([*words, f"localhost:{port}"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "OK - Compliant" in done.stdout
    assert "VULNERABLE" not in done.stdout
