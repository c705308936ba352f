"""`tablegate subscribe` against a server in this process: lines for pipes, the live table, how it ends."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from tablegate.client import CatchingUp, Current, Delete, Disconnected, Reset, Upsert
from tablegate.gateway.cli.subscribe import HIGHLIGHT_S, LiveView
from tablegate.gateway.query.errors import ShuttingDown
from tests.kit.command_line import COMMAND
from tests.kit.gateways_in_process.ratings import Fault, RatingsServer
from tests.kit.table.filled import ROOT, catalogue_of, rating

ROWS = 30
START = datetime(2026, 11, 21, tzinfo=UTC)


@pytest.fixture
def server() -> Iterator[RatingsServer]:
    with RatingsServer() as server:
        server.put(range(ROWS))
        yield server


class Command:
    """`tablegate subscribe ratings` in a process of its own, its lines read one by one."""

    def __init__(self, server: RatingsServer, *words: str) -> None:
        command = [
            sys.executable,
            "-m",
            "tablegate.gateway.cli",
            "subscribe",
            "ratings",
            "--address",
            server.address,
            *words,
        ]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, bufsize=1
        )

    def until(self, event: str) -> list[dict[str, Any]]:
        """Return the next events up to one of this kind."""
        assert self._process.stdout is not None
        events = []
        for line in self._process.stdout:
            events.append(json.loads(line))
            if events[-1]["event"] == event:
                return events
        raise AssertionError(f"it ended: {self._process.communicate()}")

    def leave(self) -> None:
        """Read no more."""
        assert self._process.stdout is not None
        self._process.stdout.close()

    def end(self, number: int | None = signal.SIGINT) -> tuple[int, str]:
        """Return its exit code and what it complained of, after a signal."""
        if number is not None:
            self._process.send_signal(number)
        assert self._process.stderr is not None
        with self._process.stderr:
            complaints = self._process.stderr.read()
        if self._process.stdout is not None:
            self._process.stdout.close()
        return self._process.wait(), complaints


def test_each_event_is_a_line(server: RatingsServer) -> None:
    command = Command(server, "--json")
    first, *rows, last = command.until("current")
    assert first["event"] == "reset"
    assert {int(event["row"]["movie_id"]) for event in rows} == set(range(ROWS))
    assert last["as_of_time"].startswith("20")
    server.delete([4])
    gone, _ = command.until("current")
    assert gone == {"event": "delete", "key": {"movie_id": "4"}}
    server.stop()
    *_, lost = command.until("disconnected")
    assert lost["code"] == "UNAVAILABLE"
    server.put([5])
    server.start()
    assert "5" in [event["row"]["movie_id"] for event in command.until("current") if event["event"] == "upsert"]
    assert command.end() == (0, "")


def test_it_ends_at_sigterm_and_when_nobody_reads(server: RatingsServer) -> None:
    command = Command(server)
    command.until("current")
    assert command.end(signal.SIGTERM) == (0, "")
    command = Command(server)
    command.until("current")
    command.leave()
    server.put([1])
    assert command.end(None) == (0, "")


def test_it_goes_on_where_its_file_says(server: RatingsServer, tmp_path: Path) -> None:
    words = ("--resume", str(tmp_path / "token"), 'subscribe_options={"progress_interval": "0.1s"}')
    command = Command(server, *words)
    command.until("current")
    command.until("current")  # so the one before is kept
    command.end()
    server.put([7])
    command = Command(server, *words)
    [upsert, _] = command.until("current")
    assert (upsert["event"], upsert["row"]["movie_id"]) == ("upsert", "7")
    command.end()


def test_only_changes(server: RatingsServer) -> None:
    command = Command(server, "--changes-only")
    assert len(command.until("current")) == 1
    server.put([7])
    assert [event["event"] for event in command.until("current")] == ["upsert", "current"]
    command.end()


def test_rows_have_the_fields_that_were_asked_for(server: RatingsServer) -> None:
    command = Command(server, "--fields", "ratingCount")
    _, *rows, _ = command.until("current")
    assert {tuple(event["row"]) for event in rows} == {("movie_id", "rating_count")}
    server.put([4])
    upsert, _ = command.until("current")
    assert (upsert["row"]["movie_id"], upsert["row"].keys()) == ("4", {"movie_id", "rating_count"})
    command.end()


def _run(*words: str) -> Result:
    return CliRunner().invoke(COMMAND, ["subscribe", *words])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nothing"], 'this gateway has no table "nothing": it has ratings'),
        (["ratings", "movie=3"], 'SubscribeRatingsRequest has no field "movie"'),
        (["ratings", "--fields", "mean"], 'field "--fields": names "mean", and Rating has no such'),
        (["ratings", "--resume", "TMP/junk"], "has no token for this gateway, table and fields: delete it"),
        (["ratings", "--resume", "TMP/binary"], "is not a token file"),
        (["ratings", "--resume", "/proc/none/token"], '"/proc/none/token" cannot be used for --resume'),
        (["ratings", 'subscribe_options={"progress_interval": "-1s"}'], "INVALID_ARGUMENT (INVALID_FIELD)"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    server: RatingsServer, tmp_path: Path, words: Sequence[str], sentence: str
) -> None:
    (tmp_path / "junk").write_text("1.junk\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    result = _run(*(word.replace("TMP", str(tmp_path)) for word in words), "--address", server.address)
    assert result.exit_code == 1
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


class Clock:
    """Seconds since `START`, moved by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def now(self) -> datetime:
        return START + timedelta(seconds=self.now_s)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def view(clock: Clock) -> LiveView:
    return LiveView("ratings", catalogue_of().tables["ratings"].row, clock=clock, now=clock.now)


def _lines(view: LiveView, *, height: int = 24, width: int = 80, color: bool = False) -> list[str]:
    console = Console(width=width, height=height, force_terminal=color, color_system="truecolor" if color else None)
    with console.capture() as captured:
        console.print(view)
    return captured.get().splitlines()


def _ids(lines: Sequence[str]) -> list[int]:
    return [int(line.split()[0]) for line in lines[3:]]


def _marked(view: LiveView) -> list[int]:
    rows = _lines(view, height=9, color=True)[3:]
    return [int(found.group(1)) for line in rows if (found := re.match(r"\x1b\[1;32m *(\d+)", line))]


def _fill(view: LiveView, count: int) -> None:
    view.apply(Reset(""))
    for number in range(count):
        view.apply(Upsert(number, rating(number)))


def _current(clock: Clock) -> Current:
    return Current(clock.now(), None, "")


def test_the_view_says_what_phase_it_is_in(view: LiveView, clock: Clock) -> None:
    _fill(view, 1_234)
    view.apply(CatchingUp(""))
    assert _lines(view)[0].rstrip() == "ratings  catching up, 1,234 rows so far"
    view.apply(_current(clock))
    clock.now_s = 2.0
    assert _lines(view)[0].startswith("ratings  current, 2.0 s old  0.0 changes/s  latest 20 of 1,234 rows")
    view.apply(Disconnected("UNAVAILABLE", "", "failed to connect; last error: refused", 1.0))
    assert "reconnecting, 2.0 s old" in _lines(view, width=120)[0]
    assert _lines(view, width=120)[0].rstrip().endswith("UNAVAILABLE: refused")
    view.apply(_current(clock))
    assert "current, 0.0 s old" in _lines(view)[0]


@pytest.mark.parametrize(("height", "count"), [(24, 1_000), (24, 3), (5, 50), (1_000, 500)])
def test_the_view_fits(view: LiveView, clock: Clock, height: int, count: int) -> None:
    _fill(view, count)
    view.apply(_current(clock))
    for number in range(0, count, 2):
        view.apply(Upsert(number, rating(number, average=1e300)))
    lines = _lines(view, height=height)
    assert len(lines) < height
    assert all(len(line) <= 80 for line in lines)
    assert len(lines) == 3 + min(count, 200, height - 4)


def test_the_view_has_the_columns_that_were_asked_for(clock: Clock) -> None:
    row = catalogue_of().tables["ratings"].row
    view = LiveView("ratings", row, {"movie_id": None, "rating_count": None}, clock=clock, now=clock.now)
    _fill(view, 1)
    view.apply(_current(clock))
    assert [line.split() for line in _lines(view)[2:]] == [
        ["movie_id", "rating_count"],
        ["0", str(rating(0).rating_count)],
    ]


def test_rows_that_changed_last_are_shown_in_order_and_marked(view: LiveView, clock: Clock) -> None:
    _fill(view, 100)
    view.apply(_current(clock))
    assert _ids(_lines(view, height=9)) == [0, 1, 2, 3, 4]
    assert _marked(view) == []
    clock.now_s = 10.0
    for number in (70, 50):
        view.apply(Upsert(number, rating(number)))
    view.apply(Delete(2, None))
    view.apply(_current(clock))
    assert _ids(_lines(view, height=9)) == [0, 1, 3, 50, 70]
    assert _marked(view) == [50, 70]
    assert "0.6 changes/s" in _lines(view)[0]
    clock.now_s += HIGHLIGHT_S * 2
    assert _marked(view) == []
    for number in range(40, 46):
        view.apply(Upsert(number, rating(number)))
    assert _ids(_lines(view, height=9)) == [41, 42, 43, 44, 45]


def test_a_stream_that_breaks_is_no_error(server: RatingsServer) -> None:
    server.faults.append(Fault(1, ShuttingDown()))
    command = Command(server)
    assert [event["event"] for event in command.until("disconnected")] == ["reset", "disconnected"]
    assert len(command.until("current")) == ROWS + 1
    assert command.end() == (0, "")


def test_help_teaches() -> None:
    result = CliRunner().invoke(COMMAND, ["subscribe", "--help"], env={"COLUMNS": "80", "NO_COLOR": "1"})
    for word in ("disconnected", "--resume", "--changes-only", "Ctrl-C"):
        assert word in result.stdout
