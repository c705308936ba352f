"""What the status says of snapshot files, from what the processes of a gateway keep of them."""

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tablegate.gateway.http.server import HttpServer
from tablegate.gateway.server.child import ProcessFile, SnapshotSettings
from tablegate.gateway.server.metadata import status_methods
from tablegate.gateway.server.snapshot_status import snapshots_status
from tablegate.v1.status_pb2 import GetStatusRequest, GetStatusResponse, PartitionStatus, TableStatus
from tests.kit.command_line import COMMAND
from tests.kit.gateways_in_process.threaded import ServerThread
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import LocalCall

NOW_MS = 1_800_000_000_000
SETTINGS = SnapshotSettings(url="/files", every_s=600, keep=2)
USELESS = "ratings/1-00/0/1799999999000-00000000000000000007-00"


def _file(directory: Path, *, now_ms: int = NOW_MS, problem: str = "", useless_ms: int | None = None) -> ProcessFile:
    """Return the file of a worker, beside those of a writer and a replicator."""
    files = [("ratings", 0, now_ms - 90_000, 12_345), ("ratings", 1, 0, 0)]
    ProcessFile(directory, name="snapshots", parent=1).write({"snapshot_files": files, "snapshots_problem": problem})
    useless = [("ratings", 0, now_ms if useless_ms is None else useless_ms, USELESS, "its digest is wrong")]
    ProcessFile(directory, name="replicator", parent=1).write({"snapshot_problems": useless})
    return ProcessFile(directory, name="worker-0", parent=1)


def test_the_status_has_the_newest_snapshot_files(tmp_path: Path) -> None:
    found = snapshots_status(_file(tmp_path), SETTINGS, now_ms=lambda: NOW_MS).snapshots
    assert [(each.table, each.partition, each.next_offset) for each in found.files] == [
        ("ratings", 0, 12_345),
        ("ratings", 1, 0),
    ]
    assert found.files[0].write_time.ToMilliseconds() == NOW_MS - 90_000
    assert not found.files[1].HasField("write_time")
    assert [(each.table, each.partition, each.file, each.problem) for each in found.useless] == [
        ("ratings", 0, USELESS, "its digest is wrong")
    ]
    assert not found.problem


def test_a_snapshot_file_that_is_gone_by_now_is_not_shown(tmp_path: Path) -> None:
    for age_ms, count in ((1_799_999, 1), (1_800_001, 0)):
        file = _file(tmp_path, useless_ms=NOW_MS - age_ms)
        assert len(snapshots_status(file, SETTINGS, now_ms=lambda: NOW_MS).snapshots.useless) == count


def test_snapshot_files_are_in_the_status_of_who_asks_for_them(tmp_path: Path) -> None:
    store = MemoryStore()
    store.set_status(GetStatusResponse(kafka_reachable=True).SerializeToString())

    def asked(request: GetStatusRequest, **more: Any) -> GetStatusResponse:
        [method] = status_methods(store, **more).values()
        handler: Any = method
        return GetStatusResponse.FromString(handler.handler(request.SerializeToString(), LocalCall()))

    answer_of = partial(snapshots_status, _file(tmp_path), SETTINGS)
    assert not asked(GetStatusRequest(), snapshots=answer_of).HasField("snapshots")
    assert not asked(GetStatusRequest(with_snapshots=True)).HasField("snapshots")
    assert len(asked(GetStatusRequest(with_snapshots=True), snapshots=answer_of).snapshots.files) == 2


@pytest.mark.tools
def test_tablegate_status_shows_snapshot_files(tmp_path: Path) -> None:
    file, store = _file(tmp_path, now_ms=round(time.time() * 1_000), problem="it does not answer"), MemoryStore()
    partitions = [PartitionStatus(partition=number, next_offset=20_000) for number in range(3)]
    tables = [TableStatus(table="ratings", serving=True, partitions=partitions)]
    store.set_status(GetStatusResponse(kafka_reachable=True, tables=tables).SerializeToString())
    methods = status_methods(store, snapshots=partial(snapshots_status, file, SETTINGS))
    with ServerThread(lambda: HttpServer(methods, "127.0.0.1:0")) as server:
        words = ["status", "--address", f"127.0.0.1:{server.port}"]
        shown = CliRunner().invoke(COMMAND, words, env={"COLUMNS": "200"}).stdout
        as_json = json.loads(CliRunner().invoke(COMMAND, [*words, "--json"]).stdout)
    assert "no snapshot file can be written: it does not answer" in shown
    assert f"snapshot file {USELESS} of partition 0 is of no use: its digest is wrong" in shown
    lines = [line.split() for line in shown.splitlines()]
    assert lines[-4][-2:] == ["snapshot", "file"]
    assert (lines[-3][-4:], lines[-2][-2:]) == (["s", "ago,", "at", "12345"], ["none", "yet"])
    assert lines[-1][-1] == "0", "this gateway is to write none of it"
    assert as_json["snapshots"]["files"][0]["next_offset"] == "12345"
