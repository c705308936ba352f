"""One process of a gateway, over a store that a test writes, without a supervisor and without Kafka."""

import base64
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tablegate.gateway.server.child import ChildConfig
from tablegate.gateway.server.preflight import load_contracts
from tests.kit.table.filled import RATINGS, ROOT

NOTHING: Mapping[str, str] = MappingProxyType({})


def child_config(name: str, store: Path, **settings: Any) -> ChildConfig:
    """Return how a process that serves ratings is started; this one is its parent. `settings` are those that differ."""
    files, _ = load_contracts((RATINGS,))
    usual: dict[str, Any] = {
        "parent": os.getpid(),
        "contract": base64.b64encode(files.SerializeToString()).decode(),
        "address": "127.0.0.1:1",
        "token_keys": ("aa" * 32,),
        "reflection": False,
        "tls": None,
        "cors_origins": (),
        "drain_s": 5.0,
        "streams": 1,
        "bootstrap": "",
        "tables_topic": "",
        "log_file": str(store.parent / "log"),
    }
    return ChildConfig(name=name, store=str(store), **{**usual, **settings})


@contextmanager
def child_process(
    role: str, config: ChildConfig, environment: Mapping[str, str] = NOTHING
) -> Iterator["subprocess.Popen[str]"]:
    """Run a process of a gateway, with variables beside those of this one; SIGKILL at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tablegate.gateway.server", role],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(config.to_json() + "\n")
        process.stdin.close()
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
