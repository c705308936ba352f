"""Runs a command in this process's place, so that it ends when the process that asked for it does.

`python -I -S tether.py PARENT_PID COMMAND…`: a script of its own, because nothing but exec is safe between fork and
exec of a process that has threads. Linux only; elsewhere the command runs untethered.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # from <sys/prctl.h>


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
