"""The demo as a user runs it: all tables answer, a second start finds its data, and nothing is left behind."""

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tablegate.examples.demo.launch import job_process
from tablegate.jobs.jars.java import SHORT_LIVED_OPTIONS, find_java
from tests.kit.job.process import wait_until
from tests.kit.programs.demo import read_rest, read_until, start_demo
from tests.kit.programs.go_tools import go_tool
from tests.kit.programs.processes import alive, process_tree

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

COMMAND = [sys.executable, "-m", "tablegate.gateway.cli"]


def _ask(*words: str, address: str) -> list[dict[str, object]]:
    done = subprocess.run(
        [*COMMAND, *words, "--address", address, "--json"], capture_output=True, text=True, check=True, timeout=60
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def _demo_options(directory: Path) -> Sequence[str]:
    return job_process(directory, "127.0.0.1:1")._environment["JDK_JAVA_OPTIONS"].split()


@pytest.mark.parametrize("options_of", [_demo_options, lambda _: SHORT_LIVED_OPTIONS], ids=["of the demo", "of tests"])
def test_the_quick_compiler_has_room_for_code(tmp_path: Path, options_of: Callable[[Path], Sequence[str]]) -> None:
    command = [str(find_java()), *options_of(tmp_path), "-XX:+PrintFlagsFinal", "-version"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    found = re.search(r"ReservedCodeCacheSize\s+=\s+(\d+)", shown)
    assert found is not None
    assert int(found[1]) >= 200 << 20  # alone it has 48 MB, which Spark fills with many tables


def test_demo_answers_stays_and_leaves_nothing(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = start_demo(tmp_path / "demo", "--port", str(port))
        try:
            seen = read_until(process, "Ctrl-C stops everything")
            assert f"port {port} is taken" in seen
            found = re.search(r"the gateway listens on (\d+)", seen)
            assert found, seen
            address = f"127.0.0.1:{found[1]}"
            _check_answers(seen)
            _check_pages(seen, address)
            _check_questions(address)
            tree = process_tree(process.pid) - {process.pid}
            assert len(tree) >= 4, "Kafka, job with its Java, gateway"
            process.send_signal(signal.SIGINT)
            output = read_rest(process)
            assert process.returncode == 0, output
            assert "Traceback" not in output
            # Spark's Python daemon ends by itself, a moment after the Java process that it serves.
            wait_until("end of all processes", lambda: not any(alive(pid) for pid in tree))
        finally:
            process.kill()
            process.communicate()
    again = start_demo(tmp_path / "demo", "--once", "--port", str(port))
    output = read_rest(again)
    assert again.returncode == 0, output
    _check_answers(output)
    if go_tool("github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.3") is None:
        pytest.skip("all passed but grpcurl, which needs Go")


def _check_pages(seen: str, address: str) -> None:
    """Check that what it says of browsers is there."""
    for page in ("/", "/console"):
        assert f"http://{address}{page}\n" in seen
        with urllib.request.urlopen(f"http://{address}{page}", timeout=30) as answer:
            assert answer.status == 200


ANSWERS = {
    "ratings": r"362 +9\.0 +2 ",
    "balances": r"customer-1 +14\.75 +2 ",
    "stock_ticks": r"stock-1 +132\.25 ",
    "customers": r"1 +augusto +000\.000\.000-0 +REGULAR",
    "action_counts": r"(browser-1 +\S+Z +\S+Z +6\s+){3}",
    "suspicious_browsers": r"browser-1 +6\s",
    "reward_points": r"card-1 +25\.0 +1 ",
    "product_views": r"product-1 +3\s",
}
"""What stands below the command that asks a table."""


def _check_answers(output: str) -> None:
    asked = re.findall(r"\$ \S+ (?:get|range) (\w+) .*\n(?:.+\n)+", output)
    assert sorted(asked) == sorted(ANSWERS), output
    for table, answer in ANSWERS.items():
        block = re.search(rf"\$ \S+ (?:get|range) {table} .*\n((?:.+\n)+)", output)
        assert block is not None
        assert re.search(answer, block[1]), (table, output)


def _check_questions(address: str) -> None:
    [row] = _ask("get", "ratings", "movie_id=362", address=address)
    assert (row["average_rating"], row["rating_count"]) == (9.0, "2")
    listed = _ask("range", "ratings", "--limit", "5", address=address)
    assert [int(str(row["movie_id"])) for row in listed] == sorted(int(str(row["movie_id"])) for row in listed)
    assert len(listed) == 5
    tables = _ask("tables", address=address)
    assert {table["table"] for table in tables if table["serving"]} == set(ANSWERS)
    missing = subprocess.run(
        [*COMMAND, "get", "ratings", "movie_id=-5", "--address", address], capture_output=True, text=True, check=False
    )
    assert missing.returncode == 1
    assert "ROW_NOT_FOUND" in missing.stderr
    assert "Traceback" not in missing.stderr
    grpcurl = go_tool("github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.3")
    if grpcurl is None:
        return
    for path, words in (
        ("GetRating", ['"averageRating": 9']),
        ("ScanRatings", ['"resumeToken"']),
    ):
        request = '{"movie_id": 362}' if path == "GetRating" else "{}"
        done = subprocess.run(
            [grpcurl, "-plaintext", "-d", request, address, f"examples.ratings.v1.RatingsService/{path}"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert all(word in done.stdout for word in words)


def test_second_demo_on_the_same_data_is_refused(tmp_path: Path) -> None:
    import fcntl

    (tmp_path / "lock").touch()
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(
            [*COMMAND, "demo", "--once", "--data", str(tmp_path)], capture_output=True, text=True, check=False
        )
    assert done.returncode == 1
    assert "a demo runs in" in done.stderr
