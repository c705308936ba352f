"""The example client of each language, generated, built and run: Get, and Subscribe across gateways and connections."""

import json
import queue
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest

from tests.kit.client_scenarios.built import make_clients
from tests.kit.gateways_in_process.live_ratings import LiveRatings
from tests.kit.table.filled import ROOT

pytestmark = pytest.mark.timeout(1_200)  # the first test builds a client, and others wait for it

CLIENTS = ROOT / "clients"
LINE_TIMEOUT_S = 60
GENERATED = "**/tablegate/v1/*"


class Language(NamedTuple):
    """What a client needs, and how it is started."""

    programs: tuple[str, ...]
    advice: str
    command: tuple[str, ...]


LANGUAGES = {
    "go": Language(("go",), "install Go 1.25 or newer", (str(CLIENTS / "go/example/ratings"),)),
    "java": Language(
        ("mvn", "javac"),
        "install Maven and a JDK 17 or newer",
        ("java", "-jar", str(CLIENTS / "java/example/target/ratings.jar")),
    ),
    "typescript": Language(
        ("node", "npm"), "install Node 20 or newer", ("node", str(CLIENTS / "typescript/example/dist/ratings.js"))
    ),
}


class Client:
    """A client that runs. `rows`: its copy, movie → number of ratings; `phases`: those that it was told."""

    def __init__(self, language: Language, address: str, token_file: Path, *, count: int) -> None:
        words = ["--address", address, "--movie", "7", "--token-file", str(token_file), "--count", str(count)]
        self._command = [*language.command, *words]
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._errors: list[str] = []
        self.rows: dict[int, int] = {}
        self.phases: list[str] = []

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
        )
        self._readers = [threading.Thread(target=self._read_lines), threading.Thread(target=self._read_errors)]
        for reader in self._readers:
            reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for reader in self._readers:
            reader.join()

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            self._errors.extend(lines)

    @property
    def errors(self) -> list[str]:
        """What it said itself; runtimes may warn of other things."""
        return [line for line in self._errors if line.startswith("ratings: ")]

    def line(self) -> Any:
        """Return the next line; None at the end."""
        line = self._lines.get(timeout=LINE_TIMEOUT_S)
        return None if line is None else json.loads(line)

    def take_changes(self, count: int | None = None) -> None:
        """Bring the copy forward by so many changes; without a number to the end."""
        while count != 0 and (line := self.line()) is not None:
            match line:
                case {"upsert": row}:
                    self.rows[int(row["movieId"])] = int(row["ratingCount"])
                case {"delete": key}:
                    del self.rows[int(key["movieId"])]
                case {"phase": phase}:
                    self.phases.append(phase)
                    if phase == "RESET":
                        self.rows.clear()
                    continue
            count = None if count is None else count - 1
        assert count in (None, 0), self.errors

    def end(self) -> int:
        """Return the exit code."""
        self.take_changes()
        return self._process.wait(LINE_TIMEOUT_S)


def _build(name: str) -> Language:
    language = LANGUAGES[name]
    if any(shutil.which(program) is None for program in language.programs):
        pytest.skip(f"the client in {name} needs {' and '.join(language.programs)}: {language.advice}")
    make_clients(name)
    generated = {path.name for path in (CLIENTS / name).glob(GENERATED)}
    assert generated & {"query.pb.go", "QueryProto.java", "query_pb.ts"}
    assert not generated & {"options.pb.go", "OptionsProto.java", "options_pb.ts"}, "clients need no annotations"
    return language


@pytest.mark.tools
@pytest.mark.parametrize("name", ["go", pytest.param("java", marks=pytest.mark.jvm), "typescript"])
def test_a_client_gets_subscribes_and_resumes(name: str, tmp_path: Path) -> None:
    language, token_file = _build(name), tmp_path / "token"
    with LiveRatings() as live:
        with Client(language, live.address, token_file, count=100) as first:
            got = first.line()["rating"]
            assert (got["movieId"], got["averageRating"], got["ratingCount"]) == ("7", 5, "7"), first.errors
            assert first.end() == 0, first.errors
        assert first.phases[0] == "RESET"
        assert first.rows == live.counts
        live.put([200])  # while nobody follows
        with Client(language, live.address, token_file, count=9) as second:
            second.rows = first.rows
            assert second.line()["rating"] == got
            second.take_changes(1)
            live.put([7, 201])
            second.take_changes(2)
            live.stop()
            live.put([8, 202])
            live.delete([9])
            live.start()
            second.take_changes(3)
            live.cut()
            live.put([10])
            live.delete([11])
            second.take_changes(2)
            assert second.rows == live.counts
            live.put([12])
            assert second.end() == 0, second.errors
        assert second.rows == live.counts
        assert "RESET" not in second.phases
        assert "the gateway is shutting down; connect again; again in 50" in second.errors[0]
        assert len(second.errors) >= 2, "the connection was to break off, too"
        token_file.write_text("junk")
        with Client(language, live.address, token_file, count=1) as third:
            assert third.line()["rating"]["movieId"] == "7"
            assert third.end() == 1
    [error] = third.errors
    assert "resume token" in error
