"""`make planted`: plants each bug of `bugs.BUGS` in a copy of the sources, and says whether the tests notice it.

A bug that no test notices is a promise that nothing holds. Each is one change of the product's text, and names the
tests that have to fail; they are tests of `make test`, and pass without the bug. Nothing of the checkout is changed.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from tests.kit.planted.bugs import BUGS, Bug

ROOT = Path(__file__).parents[3]
SOURCE_ROOTS = ("proto", "gateway", "streamjobs", "clients/python", "examples")
COPIED = (
    "proto",
    "gateway",
    "streamjobs",
    "clients",
    "examples",
    "tests",
    "docs",
    "pyproject.toml",
    "deploy",
    "Makefile",
)
TIMEOUT_S = 300.0
FAILED = 1  # pytest's exit code where tests failed; others say that they could not run

OUT = Console(highlight=False, soft_wrap=True)


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Bugs to plant. Default: all.")] = None,
    processes: Annotated[int, typer.Option(help="Bugs at a time.", min=1)] = 2,
    show: Annotated[bool, typer.Option("--list", help="List the bugs and exit.")] = False,
) -> None:
    """Plant bugs, one at a time, and run the tests that have to notice it."""
    unknown = set(names or ()) - {bug.name for bug in BUGS}
    if unknown:
        OUT.print(f"there is no bug named {', '.join(sorted(unknown))}: see --list")
        raise typer.Exit(2)
    chosen = [bug for bug in BUGS if not names or bug.name in names]
    if show:
        for bug in chosen:
            OUT.print(f"{bug.name:44} {bug.file}")
        return
    unnoticed = _plant_all(chosen, processes)
    OUT.print(f"{len(chosen) - len(unnoticed)} of {len(chosen)} planted bugs are noticed")
    raise typer.Exit(1 if unnoticed else 0)


def _plant_all(bugs: Sequence[Bug], processes: int) -> list[Bug]:
    """Return the bugs that nothing notices."""
    copies: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="tablegate-planted-") as directory:
        for number in range(processes):
            copies.put(_copy(Path(directory, str(number))))

        def plant(bug: Bug) -> str:
            copy = copies.get()
            try:
                return outcome_of(bug, copy)
            finally:
                copies.put(copy)

        unnoticed = []
        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("planting", total=len(bugs))
            with ThreadPoolExecutor(processes) as pool:
                for bug, outcome in zip(bugs, pool.map(plant, bugs), strict=True):
                    progress.advance(task)
                    if outcome:
                        unnoticed.append(bug)
                    OUT.print(f"{'NOT NOTICED' if outcome else 'noticed':12} {bug.name}{outcome}")
    return unnoticed


def _copy(to: Path) -> Path:
    """Return a copy of the sources."""
    ignored = shutil.ignore_patterns("__pycache__", "node_modules", "target", "*.egg-info", "gen", "dist")
    to.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, to / name, ignore=ignored)
        else:
            shutil.copy(source, to / name)
    return to


def outcome_of(bug: Bug, copy: Path) -> str:
    """Plant a bug in a copy, run its tests, mend it again; return what is wrong, "" where it is noticed."""
    path = copy / bug.file
    text = path.read_text()
    path.write_text(planted(bug, text))
    started_s = time.monotonic()
    try:
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *bug.tests.split()],
            cwd=copy,
            env=os.environ
            # Two texts of one length may be written within a second: kept bytecode would be that of the other.
            | {
                "PYTHONPATH": os.pathsep.join(str(copy / root) for root in SOURCE_ROOTS),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ""  # it hangs, which the tests' own limit notices
    finally:
        path.write_text(text)
    if run.returncode == FAILED:
        return ""
    last = (run.stdout.strip() or run.stderr.strip()).splitlines()[-1:]
    return f": {' '.join(last)} ({time.monotonic() - started_s:.0f} s: pytest {bug.tests})"


def planted(bug: Bug, text: str) -> str:
    """Return the text with the bug; raise `ValueError` where it cannot be planted."""
    if text.count(bug.find) != 1:
        raise ValueError(f"{bug.name}: its text is {text.count(bug.find)} times in {bug.file}, not once")
    return text.replace(bug.find, bug.replace)


if __name__ == "__main__":
    typer.run(main)
