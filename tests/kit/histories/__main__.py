"""`python -m tests.kit.histories FILE`: check a history again, and say what comes of it."""

import sys
from pathlib import Path

from tests.kit.histories.checking import check

if __name__ == "__main__":
    [file] = sys.argv[1:]
    verdict = check(Path(file))
    print(verdict)
    sys.exit(bool(verdict.problems))
