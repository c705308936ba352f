"""gRPC's interoperability tests, by the client of grpc-go: its TestService behind our server.

Not asked: cases with credentials of clouds, reports of a server's load, and servers that compress, which ours is not.
"""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.kit.programs.go_tools import go_tool

TIMEOUT_S = 60
CLIENT = "google.golang.org/grpc/interop/client@v1.85.0"
SOAK = ("--soak_iterations=100", "--soak_overall_timeout_seconds=50")
CASES = (
    "empty_unary",
    "large_unary",
    "client_streaming",
    "server_streaming",
    "ping_pong",
    "empty_stream",
    "cancel_after_begin",
    "cancel_after_first_response",
    "timeout_on_sleeping_server",
    "status_code_and_message",
    "special_status_message",
    "custom_metadata",
    "unimplemented_method",
    "unimplemented_service",
    "rpc_soak",
    "channel_soak",
)


@pytest.fixture(scope="module")
def port() -> Iterator[str]:
    """The port of the service, in a process of its own."""
    command = [sys.executable, "-m", "tests.kit.http.interop_server"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.communicate(timeout=TIMEOUT_S)


@pytest.mark.tools
@pytest.mark.interop
@pytest.mark.parametrize("case", CASES)
def test_the_client_of_go_finds_what_it_expects(port: str, case: str) -> None:
    client = go_tool(CLIENT, "grpc-go-interop")
    if client is None:
        pytest.skip("the client is not here, and there is no Go to install it")
    command = [client, "--server_host=127.0.0.1", f"--server_port={port}", f"--test_case={case}", *SOAK]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr[-2_000:]
