"""gRPC's interoperability tests, by the clients of grpc-go and grpc-java: its TestService behind our server.

Not asked: cases with credentials of clouds. Others that cannot pass are in `JAVA_FAILS`, with the reason.
"""

import subprocess
import sys
from collections.abc import Iterator, Mapping

import pytest

from tests.kit.programs.go_tools import go_tool
from tests.kit.programs.grpc_java import interop_cases, interop_jars

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
# All cases of the client of Java, but for credentials.
JAVA_CASES = (
    *CASES,
    "cacheable_unary",
    "client_compressed_streaming_noprobe",
    "pick_first_unary",
    "server_compressed_streaming",  # the server may, and ours does not
    "server_compressed_unary",
)
_LONGER = "RESOURCE_EXHAUSTED: the request is longer than"
JAVA_FAILS = {
    "client_compressed_streaming": "expected INVALID_ARGUMENT",  # handlers of streams do not see what was compressed
    "client_compressed_unary": f"{_LONGER} 262144 bytes",  # of what was compressed, no server of ours takes as much
    "client_compressed_unary_noprobe": f"{_LONGER} 262144 bytes",
    "orca_oob": "expected to be less than",  # servers of ours report no load
    "orca_per_rpc": "but was: null",
    "very_large_request": f"{_LONGER} 524288 bytes",  # some megabytes
}


@pytest.fixture(scope="module")
def port() -> Iterator[str]:
    """The port of the service, in a process of its own."""
    command = [sys.executable, "-m", "tests.kit.http.interop_server"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.communicate(timeout=TIMEOUT_S)


@pytest.fixture(scope="module")
def java(port: str) -> Mapping[str, str]:
    """What was wrong with each case of the client of Java; "": nothing."""
    jars = interop_jars()
    if jars is None:
        pytest.skip("the client is not here, and there is no Maven to fetch it")
    return interop_cases(jars, port, [*JAVA_CASES, *JAVA_FAILS])


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


@pytest.mark.tools
@pytest.mark.interop
@pytest.mark.parametrize("case", JAVA_CASES)
def test_the_client_of_java_finds_what_it_expects(java: Mapping[str, str], case: str) -> None:
    assert java[case] == ""


@pytest.mark.tools
@pytest.mark.interop
@pytest.mark.parametrize("case", JAVA_FAILS)
def test_what_cannot_pass_fails_for_the_reason_that_is_known(java: Mapping[str, str], case: str) -> None:
    assert JAVA_FAILS[case] in java[case]
