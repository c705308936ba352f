"""Ties a child process to its parent: the child ends when the parent dies, however it dies.

A demo or a test that is killed with SIGKILL cannot end its children; brokers and gateways would live on, and hold their
ports and directories. Linux can send a signal at the parent's death (`prctl`), but the child itself must ask for it,
between fork and exec. Python must not run code there in a process that has threads (`preexec_fn`). So this file is run
as a script between the two: it asks for SIGTERM, then replaces itself by the command. `tethered` makes that command:

    python -I -S tether.py PARENT_PID COMMAND…

The kernel's parent is a thread: a child that a thread has started gets SIGTERM when that thread ends. Elsewhere than
on Linux the command runs, and is not tied. Imports the standard library only, as it is run with `-I -S`.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1  # from <sys/prctl.h>


def tethered(command: Sequence[str]) -> list[str]:
    """Return the command that runs `command` and ends it when this process dies."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def main() -> None:
    """Ask the kernel for SIGTERM at the parent's death, then become the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it died before the kernel was asked
            sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
