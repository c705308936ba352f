"""`buf curl`, which learns by reflection what it calls, over each of its protocols."""

import subprocess
import sys
from pathlib import Path

import pytest

from tablegate.gateway.server.metadata import reflection_methods
from tests.kit.gateways_in_process.web import SERVICE, WebServer
from tests.kit.table.filled import catalogue_of

BUF = Path(sys.executable).with_name("buf")


@pytest.mark.tools
@pytest.mark.interop
@pytest.mark.parametrize("protocol", [(), ("--protocol", "grpc"), ("--protocol", "grpcweb")], ids=lambda it: it[-1:])
def test_buf_finds_and_calls_a_method(protocol: tuple[str, ...]) -> None:
    with WebServer(reflection_methods(catalogue_of())) as server:
        url = f"http://127.0.0.1:{server.port}{SERVICE}/GetRating"
        words = [BUF, "curl", *protocol, "--data", '{"movie_id": 7}', url]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert '"movieId": "7"' in done.stdout, done.stderr
