"""What a run says of a test's process that crashed, and what it leaves behind."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.gateway_processes.gateway import soon
from tests.kit.programs.processes import alive
from tests.kit.programs.redis import needs_redis

CRASH = """
import ctypes
from threading import Event, Thread

def wait_in_vain():
    Event().wait()

def crash():
    ctypes.string_at(0)

def test_crash():
    Thread(target=wait_in_vain, daemon=True).start()
    crash()

def test_that_passes():
    pass
"""


@pytest.mark.tools
def test_the_stacks_of_a_process_that_crashed_are_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "test_crash.py").write_text(CRASH)
    asked = [sys.executable, "-m", "pytest", "-q", "-n", "1", "-p", "tests.kit.crashes", f"--rootdir={tmp_path}"]
    ran = subprocess.run([*asked, str(tmp_path)], check=False, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    shown = ran.stdout.partition("stacks of gw0, which crashed")[2]
    assert shown.count("Fatal Python error: Segmentation fault") == 1
    assert "in crash\n" in shown
    assert "in wait_in_vain\n" in shown
    assert "Extension modules" not in shown
    assert "/_pytest/" not in shown
    assert "1 failed, 1 passed" in shown


KILLED = """
import os, signal
from tests.kit.programs.redis import RedisServer
print(RedisServer().start().process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@needs_redis
@pytest.mark.tools
def test_a_process_that_is_killed_leaves_no_redis() -> None:
    ran = subprocess.run([sys.executable, "-c", KILLED], check=False, capture_output=True, text=True, timeout=120)
    soon(lambda: not alive(int(ran.stdout)), "it has ended")
