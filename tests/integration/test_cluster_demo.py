"""The cluster demo as a user runs it: a gateway is killed and nobody notices, and nothing is left behind."""

import re
import shutil
import signal
from pathlib import Path

import pytest

from tests.kit.job.process import wait_until
from tests.kit.programs.demo import read_rest, read_until, start_demo
from tests.kit.programs.processes import alive, process_tree

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

NAMES = ("g1", "g2", "g3")
PARTITIONS = 6


def _pictures(output: str) -> list[dict[str, str]]:
    """Return, of each picture, the marks that each gateway has for the partitions."""
    pictures: list[dict[str, str]] = []
    for line in output.splitlines():
        if re.search(r"gateway .*partition .*0 +1 +2", line):
            pictures.append({})
        found = re.match(rf" *(g\d) .*?((?: +[●○·]){{{PARTITIONS}}}) *(?:away)?$", line.rstrip())
        if found is not None:
            pictures[-1][found[1]] = "".join(found[2].split())
    return pictures


def _check_picture(picture: dict[str, str]) -> None:
    assert set(picture) == set(NAMES)
    for partition in range(PARTITIONS):
        assert sorted(marks[partition] for marks in picture.values()) == sorted("●○·")


def _number(pattern: str, output: str) -> int:
    found = re.search(pattern, output)
    assert found is not None, output
    return int(found[1])


def test_nobody_notices_that_a_gateway_is_killed_and_nothing_is_left(tmp_path: Path) -> None:
    process = start_demo(tmp_path / "demo", "--gateways", "3", "--once")
    try:
        seen = read_until(process, "reads begin")
        tree = process_tree(process.pid) - {process.pid}
        output = seen + read_rest(process)
        assert process.returncode == 0, output
    finally:
        process.kill()
        process.communicate()
    assert "Traceback" not in output
    wait_until("end of all processes", lambda: not any(alive(pid) for pid in tree))
    assert ("in Redis" if shutil.which("redis-server") else "There is no Redis") in output

    before, without, after = _pictures(output)
    killed = re.search(r"kill -9 \d+: (g\d), the owner", output)
    assert killed is not None
    for picture in (before, without, after):
        _check_picture(picture)
    assert set(without[killed[1]]) == {"·"}
    assert after == before
    first = re.search(r"after the kill, by (g\d), standby", output)
    assert first is not None
    assert first[1] != killed[1]
    owner = re.search(rf"{killed[1]} is found to be dead; (g\d) owns partition (\d)", output)
    assert owner is not None
    assert owner[1] == first[1]
    partition = int(owner[2])
    assert [picture[killed[1]][partition] for picture in (before, without, after)] == ["●", "·", "●"]

    reads = _number(r"(\d+) reads, ", output)
    assert reads == _number(r"reads, (\d+) answered", output) > 0
    assert reads == sum(_number(rf"(\d+) by {name}[,.]", output) for name in NAMES)
    assert "no read failed, none was NOT_FOUND, none was older" in output
    assert _number(r"all (\d+) ratings of that time are in the answer", output) > 0
    for name in NAMES:
        assert re.search(rf"^{name} +g\d +(owner|standby).* 9\.0 +2$", output, re.MULTILINE), output

    again = start_demo(tmp_path / "demo", "--gateways", "3")
    try:
        read_until(again, "reads begin")
        tree = process_tree(again.pid) - {again.pid}
        again.send_signal(signal.SIGINT)
        output = read_rest(again)
        assert again.returncode == 0, output
    finally:
        again.kill()
        again.communicate()
    assert "Traceback" not in output
    wait_until("end of all processes", lambda: not any(alive(pid) for pid in tree))
