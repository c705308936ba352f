"""The conformance suite of HTTP/2, h2spec, against a connection with a small app."""

import asyncio
import re

import pytest

from tests.kit.http.h2 import served
from tests.kit.programs.go_tools import go_tool

_CASES = 146  # of h2spec 2.2.1, the strict ones among them


@pytest.mark.tools
@pytest.mark.interop
def test_every_case_passes() -> None:
    command = go_tool("github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible")
    if command is None:
        pytest.skip("h2spec is not here, and there is no Go to install it")

    async def run() -> str:
        async with served() as server:
            words = [command, "--strict", "--port", str(server.port), "--path", "/bare/100", "--timeout", "10"]
            process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
            output, _ = await process.communicate()
            return output.decode()

    output = asyncio.run(run())
    found = re.search(r"(\d+) tests, (\d+) passed, 0 skipped, 0 failed", output)
    assert found, output
    assert found[1] == found[2] == str(_CASES)
