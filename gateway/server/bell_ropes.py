"""How the replicator's process rings the bells of the workers': a pipe to each, kept by the parent through restarts.

A rope that is full has rung: nothing waits for a worker.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gateway.subscription.bell import Bell

_READ_BYTES = 65_536  # all that a pipe holds


class BellRope(NamedTuple):
    """The file descriptors of a pipe: the worker's end, and the replicator's."""

    worker_fd: int
    replicator_fd: int


def make_rope() -> BellRope:
    """Return a new pipe; children get its ends by `pass_fds`."""
    worker_fd, replicator_fd = os.pipe()
    os.set_blocking(worker_fd, False)
    os.set_blocking(replicator_fd, False)
    return BellRope(worker_fd, replicator_fd)


def close_rope(rope: BellRope) -> None:
    """Close this process's ends."""
    for end in rope:
        os.close(end)


def ringer(replicator_fds: Sequence[int]) -> Callable[[], None]:
    """Return the function that pulls these ropes."""

    def ring() -> None:
        for end in replicator_fds:
            try:
                os.write(end, b"\x00")
            except BlockingIOError:
                continue

    return ring


def hang(bell: Bell, worker_fd: int) -> None:
    """Let `bell` ring whenever the rope is pulled, on the event loop that runs."""

    def pulled() -> None:
        try:
            os.read(worker_fd, _READ_BYTES)
        except BlockingIOError:
            return  # another life of this worker has read it
        bell.ring()

    asyncio.get_running_loop().add_reader(worker_fd, pulled)
