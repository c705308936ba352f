"""What is wrong with a machine: its clock, or its disk, which is a small file system of its own.

The clock is the one that the gateway reads, in each of its processes, and that of no library. libfaketime sets those as
well, and does more: it knows nothing of `cnd_timedwait` and of futexes, so that librdkafka sleeps for as long as the
clock is ahead, and what gRPC waits for is over before it begins.
"""

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

SKEW = """import os, pathlib, time

real = time.time_ns
time.time_ns = lambda: real() + {seconds} * 1_000_000_000
pathlib.Path({directory!r}, str(os.getpid())).touch()
"""
MIB = 2**20


def skewed(directory: Path, seconds: int) -> Mapping[str, str]:
    """Return the environment of a gateway whose clock is off by so much; its time goes on as it does.

    What does that is written into a directory: Python runs a `sitecustomize.py` before anything else. Each process that
    has run it leaves a file there, named after its id.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "sitecustomize.py").write_text(SKEW.format(seconds=seconds, directory=str(directory)))
    return {"PYTHONPATH": str(directory)}


class NoSmallDisk(Exception):
    """This user may not mount a file system here."""


class SmallDisk:
    """A file system in memory, which a test fills."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def fill(self) -> None:
        """Leave no byte free."""
        with (self.directory / "ballast").open("wb", buffering=0) as ballast, suppress(OSError):
            while True:
                ballast.write(bytes(MIB))

    def free(self) -> None:
        """Give all that back."""
        (self.directory / "ballast").unlink()

    def free_bytes(self) -> int:
        """Return how much is free."""
        found = os.statvfs(self.directory)
        return found.f_bavail * found.f_frsize


@contextmanager
def small_disk(directory: Path, size_mib: int) -> Iterator[SmallDisk]:
    """Mount a small file system at a directory while the block runs; raise `NoSmallDisk` where that is not allowed."""
    directory.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", str(directory)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise NoSmallDisk(str(error)) from None
    if done.returncode:
        raise NoSmallDisk(done.stderr.strip())
    try:
        yield SmallDisk(directory)
    finally:
        subprocess.run(["umount", str(directory)], check=True)
