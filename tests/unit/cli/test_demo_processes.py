"""The processes that demos start."""

import json
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tablegate.examples.demo.launch import DemoError, lock_directory
from tablegate.examples.demo.processes import ChildProcess
from tests.kit.gateway_processes.gateway import soon

SHOW = "import json, os; print(json.dumps(sorted(name for name in os.environ if name.startswith('TABLEGATE_'))))"


def test_options_in_the_environment_are_not_those_of_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TABLEGATE_KAFKA", "TABLEGATE_SERVE_REPLICAS", "TABLEGATE_CACHE"):
        monkeypatch.setenv(name, "x")
    program = (sys.executable, "-c")
    with ChildProcess("child", tmp_path / "log", SHOW, program=program, environment={"TABLEGATE_OWN": "y"}):
        soon(lambda: (tmp_path / "log").read_text().endswith("\n"), "it has written")
    assert json.loads((tmp_path / "log").read_text()) == ["TABLEGATE_CACHE", "TABLEGATE_OWN"]


WAIT = """
import sys, time
from contextlib import ExitStack
from pathlib import Path
from tablegate.examples.demo.launch import lock_directory
with ExitStack() as stack:
    lock_directory(stack, Path(sys.argv[1]))
    try:
        print("waits", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        print("stopped", flush=True)
"""


@pytest.mark.tools
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_in_the_background_of_a_script_ends(tmp_path: Path, number: signal.Signals) -> None:
    ignored = f"import os, signal; signal.signal({number:d}, signal.SIG_IGN); os.execv(*{_command(tmp_path)!r})"
    with subprocess.Popen([sys.executable, "-c", ignored], stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        assert demo.stdout.readline() == "waits\n"
        demo.send_signal(number)
        assert demo.stdout.readline() == "stopped\n"


@pytest.mark.tools
@pytest.mark.parametrize(("handler", "last_line"), [("SIG_DFL", "stopped\n"), ("SIG_IGN", "")])
def test_a_demo_stops_in_good_order_as_its_terminal_is_closed(tmp_path: Path, handler: str, last_line: str) -> None:
    """With `nohup` it goes on."""
    set_up = f"import os, signal; signal.signal(signal.SIGHUP, signal.{handler}); os.execv(*{_command(tmp_path)!r})"
    with subprocess.Popen([sys.executable, "-c", set_up], stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        assert demo.stdout.readline() == "waits\n"
        demo.send_signal(signal.SIGHUP)
        if not last_line:
            demo.kill()
        assert demo.stdout.readline() == last_line


DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"


def test_a_second_ctrl_c_kills_what_takes_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(process: Any, timeout: float | None = None) -> int:
        if timeout is not None:
            raise KeyboardInterrupt
        return wait(process)

    wait = subprocess.Popen.wait
    child = ChildProcess("child", tmp_path / "log", DEAF, program=(sys.executable, "-c"))
    child.__enter__()
    soon(lambda: (tmp_path / "log").read_text() == "deaf\n", "it listens to nothing")
    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        child.__exit__()
    is_running = child.is_running
    monkeypatch.undo()
    child.kill()
    assert not is_running


def _command(data: Path) -> tuple[str, list[str]]:
    return sys.executable, [sys.executable, "-c", WAIT, str(data)]


def test_a_demo_in_a_place_that_it_may_not_write_to_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        with ExitStack() as stack, pytest.raises(DemoError, match=r'demo" cannot be used: Not a directory; .* --data'):
            lock_directory(stack, tmp_path / "file" / "demo")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
