"""A listener with TLS in a process of its own, with the environment of a worker or another one."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests.kit.http.certificates import Authority

_SERVER = """
import asyncio, sys
from pathlib import Path
from tablegate.gateway.http.listener import Listener
from tablegate.gateway.http.tls import TlsFiles
from tests.kit.http.http1 import SmallApp

async def serve():
    listener = Listener(SmallApp(), "127.0.0.1:0", tls=TlsFiles(Path(sys.argv[1]), Path(sys.argv[2])))
    await listener.start()
    print(listener.port, flush=True)
    await asyncio.Event().wait()

asyncio.run(serve())
"""


@contextmanager
def serving(authority: Authority, environment: Mapping[str, str]) -> Iterator[int]:
    """Serve in a process with this beside the environment of the tests; yield its port."""
    pair = authority.issue()
    words = [sys.executable, "-c", _SERVER, pair.certificate, pair.key]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env={**os.environ, **environment}) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()
