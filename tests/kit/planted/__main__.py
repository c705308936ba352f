"""`make planted`: plants each bug of `bugs.BUGS` in a copy of the sources, and says whether the tests notice it.

A bug that no test notices is a promise that nothing holds. Each is one change of the product's text, and names the
tests that have to fail; they are tests of `make test`. First all of them have to pass without a bug. Nothing of the
checkout is changed.

Progress is on stderr, a line for each bug on stdout. The exit code is 1 where a bug is not noticed, and also where its
tests could not be run: then nobody knows.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from tests.kit.planted.bug import Bug
from tests.kit.planted.bugs import BUGS

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
TEST_TIMEOUT_S = 120  # a bug may make a test wait for ever
TIMEOUT_S = 600.0  # of the tests of one bug, and of all together without one
PASSED, FAILED = 0, 1  # pytest's exit codes; others say that tests could not run

_WRITES_FROM_S = 1_000_000_000  # long before any checkout
_writes = count()

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
            copy = _copy(Path(directory, str(number)))
            copies.put(copy)
        tests = sorted({test for bug in bugs for test in bug.tests.split()})
        run = _run_tests([f"-n{processes}", *tests], copy)
        if run is None or run.returncode != PASSED:
            OUT.print(f"without a bug its tests do not pass{_end_of(run)}: mend that first")
            return list(bugs)

        def plant(bug: Bug) -> str:
            copy = copies.get()
            try:
                return outcome_of(bug, copy)
            finally:
                copies.put(copy)

        unnoticed = []
        # Lines that go elsewhere than to a terminal stay on stdout.
        shown = Progress(console=Console(stderr=True), transient=True, redirect_stdout=sys.stdout.isatty())
        with shown as progress:
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
    _write(path, planted(bug, text))
    started_s = time.monotonic()
    try:
        run = _run_tests(bug.tests.split(), copy)
    finally:
        _write(path, text)
    # A module that cannot be imported is a failure for pytest, too, where it is told to stop at the first.
    if run is not None and run.returncode == FAILED and "ERROR collecting" not in run.stdout:
        return ""
    return f"{_end_of(run)} ({time.monotonic() - started_s:.0f} s: pytest {bug.tests})"


def _write(path: Path, text: str) -> None:
    """Write a source with a time of its own."""
    path.write_text(text)
    # Bytecode is kept by length and whole seconds of the source, and two texts may be alike in both.
    time_s = _WRITES_FROM_S + next(_writes)
    os.utime(path, (time_s, time_s))


def _run_tests(tests: Sequence[str], copy: Path) -> "subprocess.CompletedProcess[str] | None":
    """Run tests of a copy up to the first that fails; return None where they do not end."""
    options = ["-x", "-q", "-p", "no:cacheprovider", f"--timeout={TEST_TIMEOUT_S}"]
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join(str(copy / root) for root in SOURCE_ROOTS),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # half of the time of a small test
    }
    try:
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "pytest_timeout", "-p", "xdist.plugin", *options, *tests],
            cwd=copy,
            env=env,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None


def _end_of(run: "subprocess.CompletedProcess[str] | None") -> str:
    """Return the end of what pytest said."""
    if run is None:
        return f": they do not end in {TIMEOUT_S:.0f} s"
    last = (run.stdout.strip() or run.stderr.strip()).splitlines()[-2:]
    return f": {' '.join(last)}"


def planted(bug: Bug, text: str) -> str:
    """Return the text with the bug; raise `ValueError` where it cannot be planted."""
    if text.count(bug.find) != 1:
        raise ValueError(f"{bug.name}: its text is {text.count(bug.find)} times in {bug.file}, not once")
    return text.replace(bug.find, bug.replace)


if __name__ == "__main__":
    typer.run(main)
