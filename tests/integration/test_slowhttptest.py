"""slowhttptest's clients, which send or read as little as they can over HTTP/1.1: they are ended, others served."""

import asyncio
import re
import shutil

import pytest

from tablegate.gateway.http.h1_connection import Http1Limits
from tablegate.gateway.http.listener import Limits
from tests.kit.http.listening import served

_LIMITS = Http1Limits(header_s=2.0, body_s=2.0, whole_body_s=3.0, stall_s=2.0, whole_answer_s=3.0)


@pytest.mark.tools
@pytest.mark.interop
@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(("-H",), id="slow headers"),
        pytest.param(("-B", "-s", "90000"), id="slow body"),
        pytest.param(
            ("-X", "-w", "512", "-y", "1024", "-z", "32", "-k", "10"), id="slow reading", marks=pytest.mark.long
        ),
    ],
)
def test_slow_clients_are_ended_and_others_served(attack: tuple[str, ...]) -> None:
    command = shutil.which("slowhttptest")
    if command is None:
        pytest.skip("slowhttptest is not here; it is a package of Debian")

    async def run() -> str:
        async with served(limits=Limits(http1=_LIMITS)) as it:
            url = f"http://127.0.0.1:{it.listener.port}/big"
            words = [command, *attack, "-c", "200", "-r", "200", "-i", "1", "-p", "3", "-l", "60", "-u", url]
            process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
            output, _ = await process.communicate()
            return re.sub(r"\x1b\[[0-9;]*m", "", output.decode())

    output = asyncio.run(run())
    assert "Exit status: No open connections left" in output, output
    assert "service available:   NO" not in output, output
