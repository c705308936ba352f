"""The audit log: what it has, what it leaves out, and what happens when it cannot be written."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tablegate.gateway.access.audit import FLUSH_BYTES, UNKNOWN_PER_S, AuditLog, audit_log_of
from tablegate.gateway.access.principal import AccessFileError
from tests.kit.access.issuer import Clock

GET = "/shop.v1.Orders/GetOrder"


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_line_says_who_asked_for_what(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.log", clock=Clock(1_800_000_000.25))
    log.record("key reports", GET, "orders", address="10.0.0.7")
    log.record(None, GET, None, refusal='no\n"credential"')
    assert lines(tmp_path / "audit.log") == []
    log.close()
    time = "2027-01-15T08:00:00.250Z"
    assert lines(tmp_path / "audit.log") == [
        {
            "time": time,
            "principal": "key reports",
            "method": GET,
            "table": "orders",
            "allowed": True,
            "address": "10.0.0.7",
        },
        {"time": time, "principal": None, "method": GET, "table": None, "allowed": False, "reason": 'no\n"credential"'},
    ]


def test_a_sample_has_all_refusals(tmp_path: Path) -> None:
    chances = iter([0.0, 0.009, 0.01, 0.5])
    log = AuditLog(tmp_path / "audit.log", sample=0.01, chance=lambda: next(chances))
    for number in range(4):
        log.record(f"allowed {number}", GET, "orders")
        log.record(f"refused {number}", GET, "orders", refusal="no")
    log.close()
    names = [line["principal"] for line in lines(tmp_path / "audit.log")]
    assert names == ["allowed 0", "refused 0", "allowed 1", "refused 1", "refused 2", "refused 3"]


def test_a_path_of_any_length_is_a_short_line(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.log")
    log.record(None, "/" + "x" * 9_000, None, refusal="y" * 9_000)
    log.close()
    assert (tmp_path / "audit.log").stat().st_size < 800


@pytest.mark.parametrize("is_moved", [True, False])
def test_a_rotated_file_is_opened_anew(tmp_path: Path, *, is_moved: bool) -> None:
    file, old = tmp_path / "audit.log", tmp_path / "audit.log.1"
    log = AuditLog(file)
    log.record("first", GET, None)
    log.flush()
    if is_moved:
        file.rename(old)
    else:
        file.rename(old)
        file.touch()
    log.record("second", GET, None)
    log.close()
    assert [line["principal"] for each in (old, file) for line in lines(each)] == ["first", "second"]


def test_several_processes_may_write_one_file(tmp_path: Path) -> None:
    logs = [AuditLog(tmp_path / "audit.log") for _ in range(2)]
    for number in range(6):
        logs[number % 2].record(str(number), GET, None)
        logs[number % 2].flush()
    assert [line["principal"] for line in lines(tmp_path / "audit.log")] == [*"012345"]
    for log in logs:
        log.close()


def test_much_is_written_before_the_timer(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.log")
    while not lines(tmp_path / "audit.log"):
        log.record("ann", GET, None)
    assert (tmp_path / "audit.log").stat().st_size >= FLUSH_BYTES
    log.close()


@pytest.fixture
def full(tmp_path: Path) -> Iterator[AuditLog]:
    """A log whose file is a disk that is full."""
    file = tmp_path / "audit.log"
    file.symlink_to("/dev/full")
    log = AuditLog(file, buffer_bytes_max=1_000)
    yield log
    log.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
def test_a_full_disk_stops_nothing_and_is_logged_once(
    full: AuditLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(20):
        full.record(f"user {number}", GET, None)
        full.flush()
    [line] = caplog.records
    assert vars(line)["reason"] == "No space left on device"
    (tmp_path / "audit.log").unlink()
    full.flush()
    written = lines(tmp_path / "audit.log")
    assert [line["principal"] for line in written] == [f"user {number}" for number in range(len(written))]
    assert 0 < len(written) < 20
    assert vars(caplog.records[-1])["left_out"] == 20 - len(written)


@pytest.mark.parametrize("is_stderr", [True, False])
def test_a_pipe_whose_reader_stands_still_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_stderr: bool
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    log = _on_stderr(os.open(pipe, os.O_WRONLY)) if is_stderr else AuditLog(pipe)
    for number in range(3_000):  # far more than a pipe holds
        log.record(f"user {number}", GET, None)
        log.flush()
    [line] = caplog.records
    assert vars(line)["reason"] == "Resource temporarily unavailable"
    read = b""
    while read.count(b"\n") < 3_000:
        read += os.read(reader, 1 << 20)
        log.flush()
    assert [json.loads(line)["principal"] for line in read.splitlines()] == [f"user {n}" for n in range(3_000)]
    os.close(reader)
    log.record("ann", GET, None)
    log.flush()
    log.close()
    assert vars(caplog.records[-1])["reason"] == "Broken pipe"


def _on_stderr(pipe: int) -> AuditLog:
    """Return the log of a process whose stderr is a pipe."""
    kept = os.dup(2)
    os.dup2(pipe, 2)
    os.close(pipe)
    try:
        log = AuditLog(None)
    finally:
        os.dup2(kept, 2)
        os.close(kept)
    return log


def test_a_pipe_that_nobody_reads_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(AccessFileError, match="cannot be written"):
        AuditLog(tmp_path / "pipe")


def test_a_directory_that_is_gone_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = tmp_path / "logs"
    directory.mkdir()
    log = AuditLog(directory / "audit.log")
    (directory / "audit.log").rename(tmp_path / "audit.log")
    directory.rmdir()
    log.record("ann", GET, None)
    log.flush()
    log.flush()
    assert len(caplog.records) == 1
    directory.mkdir()
    log.close()
    assert len(lines(directory / "audit.log")) == 1


def test_the_section_says_where(tmp_path: Path) -> None:
    assert audit_log_of({}, tmp_path) is None
    log = audit_log_of({"audit": {"file": "audit.log", "sample": 1}}, tmp_path)
    assert log is not None
    log.close()
    assert (tmp_path / "audit.log").exists()
    assert (tmp_path / "audit.log").stat().st_mode & 0o007 == 0


def test_a_minus_is_stderr(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = audit_log_of({"audit": {"file": "-"}}, tmp_path)
    assert log is not None
    log.record("ann", GET, None)
    log.close()
    assert json.loads(capfd.readouterr().err)["principal"] == "ann"


@pytest.mark.parametrize(
    ("audit", "sentence"),
    [
        (7, r"\[audit\] is no table"),
        ({}, r'\[audit\] needs "file"'),
        ({"file": "none/audit.log"}, r'\[audit\] file ".*" cannot be written: No such file or directory'),
        ({"file": "-", "sample": 2}, '"sample" is no number from 0 to 1'),
        ({"file": "-", "rate": 2}, '"rate" is unknown; known are file, sample'),
    ],
)
def test_a_wrong_section_of_the_log_is_refused(tmp_path: Path, audit: object, sentence: str) -> None:
    with pytest.raises(AccessFileError, match=sentence):
        audit_log_of({"audit": audit}, tmp_path)


def test_a_flood_of_calls_without_a_credential_is_counted(tmp_path: Path) -> None:
    clock = Clock(1_800_000_000.0)
    log = AuditLog(tmp_path / "audit.log", clock=clock)
    for _ in range(1_000):
        log.record(None, GET, None, refusal="no credential")
    log.record("key reports", GET, "orders", refusal="not allowed")  # of who is known all are there
    clock.now_s += 1
    log.flush()
    log.record(None, GET, None, refusal="no credential")
    log.close()
    *first, named, counted, last = lines(tmp_path / "audit.log")
    assert len(first) == UNKNOWN_PER_S
    assert named["principal"] == "key reports"
    assert counted == {"time": "2027-01-15T08:00:00.000Z", "principal": None, "allowed": False, "more_calls": 950}
    assert last["reason"] == "no credential"
