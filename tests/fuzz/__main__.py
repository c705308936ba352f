"""Fuzz one target, guided by coverage: python -m tests.fuzz NAME --seconds N.

Atheris does it, which is no part of the environment: it has wheels for few Pythons. What it finds is written into
.cache/fuzz; put the input into tests/fuzz/corpus/NAME, where each `make check` replays it.
"""

import argparse
import sys
from pathlib import Path

try:
    import atheris
except ImportError:
    sys.exit("atheris is not installed: run pip install atheris==3.0.0 in the environment")

with atheris.instrument_imports(include=["tablegate.gateway"]):
    from tests.kit.fuzz.targets import CORPORA, TARGETS

_INPUT_BYTES_MAX = 4_096


def main() -> None:
    """Fuzz until the time is over, or the first fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz one target, guided by coverage.")
    parser.add_argument("name", choices=sorted(TARGETS))
    parser.add_argument("--seconds", type=int, default=60)
    arguments = parser.parse_args()
    found = Path(".cache/fuzz", arguments.name)
    found.mkdir(parents=True, exist_ok=True)
    words = [f"-max_total_time={arguments.seconds}", f"-max_len={_INPUT_BYTES_MAX}", "-timeout=10", "-verbosity=1"]
    words += [f"-artifact_prefix={found.parent}/{arguments.name}-", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *words, str(found), str(CORPORA / arguments.name)], TARGETS[arguments.name])
    atheris.Fuzz()


main()
