"""A test's process that crashed: its stacks stand at the end of the output, which is what is kept of a long run.

pytest has Python write them to the standard error in that moment, which may be long before the end.
"""

import faulthandler
import re
import tempfile
from pathlib import Path
from typing import Any, TextIO

import pytest

_PYTEST = re.compile(r"/(?:_pytest|pluggy|xdist|execnet)/")  # which all stacks of tests begin with
_STACKS = pytest.StashKey[TextIO]()
_SHOWN = pytest.StashKey[dict[str, str]]()  # by test process


def _file_of(run: str, process: str) -> Path:
    return Path(tempfile.gettempdir(), f"tablegate-tests-{run}-{process}.stacks")


@pytest.hookimpl(trylast=True)  # after pytest's own plugin, whose choice of a file it replaces
def pytest_configure(config: pytest.Config) -> None:
    """Have a test's process write its stacks into a file."""
    config.stash[_SHOWN] = {}
    given: dict[str, Any] | None = getattr(config, "workerinput", None)
    if given is not None:
        config.stash[_STACKS] = _file_of(given["testrunuid"], given["workerid"]).open("w")
        faulthandler.enable(config.stash[_STACKS])


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the file of a process that ends in good order."""
    if _STACKS in config.stash:
        faulthandler.disable()
        config.stash[_STACKS].close()
        Path(config.stash[_STACKS].name).unlink(missing_ok=True)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take what a process left that has crashed."""
    path = _file_of(node.workerinput["testrunuid"], node.workerinput["workerid"])
    if error is not None and path.exists():
        lines = [line for line in path.read_text().splitlines() if not _PYTEST.search(line)]
        node.config.stash[_SHOWN][node.gateway.id] = "\n".join(lines).partition("\nExtension modules:")[0]
        path.unlink()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Show the stacks of the processes that crashed."""
    for process, stacks in config.stash[_SHOWN].items():
        terminalreporter.section(f"stacks of {process}, which crashed")
        terminalreporter.write_line(stacks or "nothing: it was killed")
