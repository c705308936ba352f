"""Processes of this machine, as /proc has them."""

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path


def alive(pid: int) -> bool:
    """Say whether a process is there and more than a zombie, which only waits for its parent to look."""
    return _state(pid) not in "ZX"


def stopped(pid: int) -> bool:
    """Say whether a process stands still, as by SIGSTOP."""
    return _state(pid) == "T"


def _state(pid: int) -> str:
    """Return the letter of a process's state; that of a dead one where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def process_tree(pid: int) -> set[int]:
    """Return `pid` and all its descendants that live."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, todo = set(), [pid]
    while todo:
        one = todo.pop()
        found.add(one)
        todo += children.get(one, [])
    return found


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all that it started at once, as a lost machine does; return when all have ended."""
    pids = process_tree(process.pid)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    while any(alive(pid) for pid in pids):
        time.sleep(0.01)
