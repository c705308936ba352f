"""The Connect conformance suite: Connect, gRPC and gRPC-Web over HTTP/1.1 and HTTP/2, plain and with TLS."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from grpc_tools import protoc

from tests.kit.programs.go_tools import go_tool
from tests.kit.table.filled import ROOT

VERSION = "v1.0.5"
SUITE = "connectrpc.com/conformance"
TIMEOUT_S = 240
CASES_MIN = 1_900

CONFIG = """
features:
  versions: [HTTP_VERSION_1, HTTP_VERSION_2]
  protocols: [PROTOCOL_CONNECT, PROTOCOL_GRPC, PROTOCOL_GRPC_WEB]
  codecs: [CODEC_PROTO, CODEC_JSON]
  compressions: [COMPRESSION_IDENTITY, COMPRESSION_GZIP]
  stream_types: [STREAM_TYPE_UNARY, STREAM_TYPE_SERVER_STREAM]
  supports_tls_client_certs: true
  supports_message_receive_limit: false # the limit is a constant
exclude_cases:
  - {protocol: PROTOCOL_GRPC, codec: CODEC_JSON} # gRPC comes as protobuf alone
  - {protocol: PROTOCOL_GRPC_WEB, codec: CODEC_JSON}
"""
KNOWN_FAILING = (
    # A message marked as compressed in a request that names no encoding is its client's mistake, so it is answered by
    # INVALID_ARGUMENT: INTERNAL is for mistakes of the gateway, which operators look after.
    "**/unexpected-compressed-message",
)


def _protos() -> Path | None:
    """Return the directory of the suite's protos; None without Go, which has brought them with the program."""
    if shutil.which("go") is None:
        return None
    found = subprocess.run(["go", "env", "GOMODCACHE"], capture_output=True, text=True, check=True)
    directory = Path(found.stdout.strip(), f"{SUITE}@{VERSION}", "proto")
    return directory if directory.is_dir() else None


@pytest.mark.tools
@pytest.mark.interop
def test_the_conformance_suite_passes(tmp_path: Path) -> None:
    tool, protos = go_tool(f"{SUITE}/cmd/connectconformance@{VERSION}"), _protos()
    if tool is None or protos is None:
        pytest.skip("the conformance suite needs Go, and a network to get it")
    descriptors, config = tmp_path / "conformance.binpb", tmp_path / "config.yaml"
    files = [str(file) for file in (protos / "connectrpc/conformance/v1").glob("*.proto")]
    words = ["protoc", f"-I{protos}", f"-I{Path(protoc.__file__).parent / '_proto'}", "--include_imports"]
    assert protoc.main([*words, f"--descriptor_set_out={descriptors}", *files]) == 0
    config.write_text(CONFIG)
    command = [str(tool), "--mode", "server", "--conf", str(config)]
    for pattern in KNOWN_FAILING:
        command += ["--known-failing", pattern]
    command += ["--", sys.executable, "-m", "tests.kit.http.conformance_server", str(descriptors)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    found = re.search(r"(\d+) passed, 0 failed", done.stdout)
    assert found, done.stdout[-5_000:]
    assert int(found[1]) > CASES_MIN, "the suite ran less than it should"
