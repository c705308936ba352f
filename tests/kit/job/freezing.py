"""A program that freezes itself: `python -m tests.kit.job.freezing COUNT MODULE ARGUMENT…`.

It stops, as by SIGSTOP from outside, when it has heard for the COUNT-th time that nobody else keeps its table. So what
it does next it does when it wakes, whatever has become of the table by then.
"""

import os
import runpy
import signal
import sys
from typing import Any

from tablegate.jobs.kafka.job_group import JobGroup, Tenure


def main() -> None:
    """Run the module with a check that stops the process behind its answer."""
    left = int(sys.argv.pop(1))
    module = sys.argv.pop(1)
    check = JobGroup.tenure

    def check_and_freeze(group: JobGroup, **arguments: Any) -> Tenure:
        nonlocal left
        found = check(group, **arguments)
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        return found

    JobGroup.tenure = check_and_freeze  # type: ignore[method-assign]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
