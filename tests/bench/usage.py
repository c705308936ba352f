"""What processes use of the machine, as /proc has it."""

import os
from collections.abc import Iterable
from pathlib import Path

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def cpu_s(pids: Iterable[int]) -> float:
    """Return the CPU seconds, user and system, that processes have used."""
    total = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS_A_SECOND


def memory_mb(pid: int, kind: str) -> float:
    """Return the memory of one process in MB: VmRSS is what is resident, RssAnon what of it is no page of a file."""
    return _field_mb(Path(f"/proc/{pid}/status"), kind)


def shared_memory_mb(pids: Iterable[int]) -> float:
    """Return the memory of processes in MB, what they share counted once (their PSS, summed)."""
    return sum(_field_mb(Path(f"/proc/{pid}/smaps_rollup"), "Pss") for pid in pids)


def _field_mb(path: Path, name: str) -> float:
    for line in path.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"{path} has no {name}")
