"""The process that writes snapshot files, over an object store that does not answer: it ends when it is to end."""

import signal
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tablegate.gateway.server.app import SNAPSHOTS_STOP_S
from tablegate.gateway.server.child import SNAPSHOTS, SnapshotSettings
from tablegate.gateway.server.snapshots import OFFSETS_MIN
from tablegate.gateway.server.supervisor import KILL_MARGIN_S
from tablegate.gateway.stores.lmdb.store import LmdbStore
from tests.kit.gateway_processes.child import child_config, child_process
from tests.kit.gateway_processes.gateway import soon
from tests.kit.programs.object_store import Overload, s3
from tests.kit.table.filled import live_partition

pytestmark = pytest.mark.tools

KILLED_S = SNAPSHOTS_STOP_S + KILL_MARGIN_S  # after the signal, where it does not end


def writing(directory: Path, overload: Overload, url: str) -> AbstractContextManager["subprocess.Popen[str]"]:
    """Run the process, over a store with a partition that is due."""
    live_partition(LmdbStore(directory / "store"), OFFSETS_MIN + 100).store.close()
    config = child_config(SNAPSHOTS, directory / "store", snapshots=SnapshotSettings(url=url))
    return child_process(SNAPSHOTS, config, overload.environment)


def log_of(directory: Path) -> str:
    log = directory / "log"
    return log.read_text() if log.exists() else ""


def test_it_writes_and_ends_when_it_is_to(tmp_path: Path) -> None:
    with s3() as store, Overload(store) as overload, writing(tmp_path, overload, store.url) as process:
        soon(lambda: "a snapshot file of partition 0 is written" in log_of(tmp_path), "a file is written")
        process.terminate()
        assert process.wait(KILLED_S) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda each: each.name)
def test_it_ends_also_where_it_waits_for_an_answer(tmp_path: Path, number: signal.Signals) -> None:
    with s3() as store, Overload(store) as overload:
        overload.link.stall(there=False)
        with writing(tmp_path, overload, store.url) as process:
            soon(lambda: overload.link.delayed_bytes, "it has asked")
            process.send_signal(number)
            assert process.wait(KILLED_S) == 0


def test_an_overloaded_store_is_a_line_and_it_lives(tmp_path: Path) -> None:
    with s3() as store, Overload(store) as overload:
        overload.begin()
        with writing(tmp_path, overload, store.url) as process:
            soon(lambda: "no snapshot file is written" in log_of(tmp_path), "it says why")
            assert process.poll() is None
            assert log_of(tmp_path).count("503 Service Unavailable") == 1
            process.terminate()
            assert process.wait(KILLED_S) == 0
