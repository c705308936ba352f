"""The conformance suite of the Model Context Protocol, which asks `tablegate mcp` over streamable HTTP."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.kit.gateways_in_process.cluster import GrpcCluster
from tests.kit.programs.agents import mcp_over_http
from tests.kit.programs.api_tools import from_npm

pytestmark = [pytest.mark.tools, pytest.mark.interop]

VERSION = "0.1.13"  # the newest that runs on Node.js 20

# The suite calls tools by names of its own: `test_simple_text` is method `simple_text` of a service `test`.
CONTRACT = """
syntax = "proto3";
import "tablegate/v1/options.proto";

service test {
  rpc simple_text(CountRequest) returns (CountResponse) {
    option (tablegate.v1.query) = {count: {scatter: true} table: "things"};
  }
  rpc error_handling(GetRequest) returns (GetResponse) {
    option (tablegate.v1.query) = {get: {}};
  }
}

message Thing {
  option (tablegate.v1.table) = {name: "things" key: "id"};
  string id = 1;
}
message CountRequest {}
message CountResponse { int64 count = 1; }
message GetRequest { string id = 1; }
message GetResponse { Thing thing = 1; }
"""

# What only other servers have: prompts, resources, completions, and tools that ask their clients or send pictures.
NOT_OFFERED = """
server:
  - logging-set-level
  - completion-complete
  - tools-call-image
  - tools-call-audio
  - tools-call-embedded-resource
  - tools-call-mixed-content
  - tools-call-with-logging
  - tools-call-with-progress
  - tools-call-sampling
  - tools-call-elicitation
  - elicitation-sep1034-defaults
  - elicitation-sep1330-enums
  - resources-list
  - resources-read-text
  - resources-read-binary
  - resources-templates-read
  - resources-subscribe
  - resources-unsubscribe
  - prompts-list
  - prompts-get-simple
  - prompts-get-with-args
  - prompts-get-embedded-resource
  - prompts-get-with-image
"""
PASSED = (
    "server-initialize",
    "ping",
    "tools-list",
    "tools-call-simple-text",
    "tools-call-error",
    "server-sse-multiple-streams",
    "dns-rebinding-protection",
)


def test_the_conformance_suite_passes(tmp_path: Path) -> None:
    program = from_npm("@modelcontextprotocol/conformance", VERSION, program="conformance")
    if program is None:
        pytest.skip("the conformance suite needs npm, and a network to get it")
    contract, expected = tmp_path / "test.proto", tmp_path / "expected.yaml"
    contract.write_text(CONTRACT)
    expected.write_text(NOT_OFFERED)
    with GrpcCluster({}, contract=contract, table="things", service="/test") as cluster:
        address = f"127.0.0.1:{cluster.whole.port}"
        with mcp_over_http("--address", address, "--contract", str(contract)) as url:
            words = [program, "server", "--url", url, "--expected-failures", str(expected)]
            done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5_000:] + done.stderr[-5_000:]
    assert set(re.findall(r"^✓ ([\w-]+): [1-9]\d* passed, 0 failed", done.stdout, re.MULTILINE)) == {*PASSED}
