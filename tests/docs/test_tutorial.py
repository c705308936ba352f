"""Each step of the tutorial, and of a guide, as a reader would do it: the code blocks, with a real Kafka and Spark.

A comment before each block says what becomes of it: `run`, `run until it succeeds`, `start` (in another terminal),
`file NAME`, `prints` (what the step before must have printed), `excerpt of FILE`, or `not run: WHY`.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tablegate.examples.demo.kafka import free_port
from tests.kit.docs.pages import DOCS, Block, blocks

TUTORIAL = DOCS / "tutorial" / "index.md"
PAGES = [TUTORIAL, DOCS / "how-to" / "serve-a-topic.md"]
KAFKA, GATEWAY = "127.0.0.1:9092", "127.0.0.1:50051"  # what the page says
STEP_S = 300.0
STOP_S = 60.0
KINDS = ("run", "run until it succeeds", "start", "prints", "file ", "excerpt of ", "not run: ")


each_page = pytest.mark.parametrize("page", [pytest.param(page, id=page.stem) for page in PAGES])


@each_page
def test_each_block_says_what_becomes_of_it(page: Path) -> None:
    for block in blocks(page):
        assert block.comment.startswith(KINDS), f"line {block.line}: no comment says whether the block is run"


def test_excerpts_are_what_the_starter_has(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "tablegate.gateway.cli", "new", str(tmp_path / "shop")], check=True)
    for block in blocks(TUTORIAL):
        if block.comment.startswith("excerpt of "):
            name = block.comment.removeprefix("excerpt of ")
            text = (tmp_path / "shop" / name).read_text()
            lines = [re.split(r"  #|//", line)[0].strip() for line in text.splitlines()]  # comments may be left out
            for line in block.text.splitlines():
                assert line.strip() in lines, f"tutorial, line {block.line}: {name} has no line {line.strip()!r}"


@each_page
@pytest.mark.jvm
@pytest.mark.timeout(1_200)
def test_every_step_works(tmp_path: Path, page: Path) -> None:
    with _Reader(tmp_path) as reader:
        for block in blocks(page):
            reader.follow(block)


class _Reader:
    """Somebody who does what the page says, in a directory of their own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._bootstrap = f"127.0.0.1:{free_port()}"
        self._address = f"127.0.0.1:{free_port()}"
        self._here = directory
        self._command = ""
        self._until = False
        self._printed = ""
        self._started: list[tuple[str, subprocess.Popen[bytes], Path]] = []
        self._environment = {
            **os.environ,
            "PATH": f"{_commands(directory / 'bin')}{os.pathsep}{os.environ['PATH']}",
            "TABLEGATE_ADDRESS": self._address,
            "TABLEGATE_BROKER_PORT": self._bootstrap.rpartition(":")[2],
            "COLUMNS": "200",
        }

    def __enter__(self) -> "_Reader":
        return self

    def __exit__(self, *_: object) -> None:
        for _, process, _ in reversed(self._started):  # the broker last
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)  # Ctrl-C
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def follow(self, block: Block) -> None:
        text = block.text.replace(KAFKA, self._bootstrap).replace(GATEWAY, self._address)
        if block.comment.startswith("run"):
            self._command, self._until = text, block.comment.endswith("succeeds")
            if not self._until:  # else what it prints comes next, and is waited for
                code = self._run()
                assert code == 0, f"tutorial, line {block.line}: {self._command}{self._printed}{self._logs()}"
        elif block.comment == "prints":
            self._expect(text, block.line)
        elif block.comment == "start":
            log = self._directory / f"started-{len(self._started)}.log"
            with log.open("wb") as out:
                process = subprocess.Popen(
                    ["/bin/sh", "-c", f"exec {text}"],
                    cwd=self._here,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self._started.append((text, process, log))
        elif block.comment.startswith("file "):
            (self._here / block.comment.removeprefix("file ")).write_text(text)

    def _run(self) -> int:
        at = self._directory / "at"
        done = subprocess.run(
            ["/bin/bash", "-ec", f"{self._command}\npwd > '{at}'"],
            cwd=self._here,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=STEP_S,
            check=False,
        )
        self._printed = done.stdout + done.stderr
        if done.returncode == 0:
            self._here = Path(at.read_text().strip())
        return done.returncode

    def _expect(self, text: str, line: int) -> None:
        deadline = time.monotonic() + STEP_S
        while self._until:
            for command, process, log in self._started:
                assert process.poll() is None, f"ended: {command}{log.read_text()}"
            if self._run() == 0 and _in_order(text, self._printed):
                return
            assert time.monotonic() < deadline, f"tutorial, line {line}: {self._printed}{self._logs()}"
            time.sleep(0.5)
        assert _in_order(text, self._printed), f"tutorial, line {line}: not printed, but\n{self._printed}"

    def _logs(self) -> str:
        return "".join(f"\n--- {command}{log.read_text()[-5_000:]}" for command, _, log in self._started)


def _in_order(wanted: str, printed: str) -> bool:
    """Say whether each wanted line is part of a printed one, in their order.

    How wide columns are does not matter. A line that ends in … may go on as it likes.
    """
    lines: Iterator[str] = iter([" ".join(line.split()) for line in printed.splitlines()])
    return all(
        any(" ".join(line.removesuffix("…").split()) in found for found in lines) for line in wanted.splitlines()
    )


def _commands(directory: Path) -> Path:
    """Return a directory for PATH with this environment's programs, and a `pip` that installs nothing."""
    directory.mkdir()
    programs = Path(sys.executable).parent
    commands = {name: f'exec "{programs / name}" "$@"' for name in ("python", "pytest", "tablegate")}
    for name, line in {**commands, "pip": "exit 0"}.items():
        (directory / name).write_text(f"#!/bin/sh\n{line}\n")
        (directory / name).chmod(0o755)
    assert shutil.which("curl"), "the tutorial asks with curl: install it"
    return directory
