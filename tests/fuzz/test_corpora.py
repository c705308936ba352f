"""The corpora of the fuzzers, replayed: what was found once, and an input of each kind."""

import importlib.util
import subprocess
import sys

import pytest

from tests.kit.fuzz.targets import TARGETS, corpus

SECONDS = 450  # of each: an hour in all


@pytest.mark.parametrize("name", TARGETS)
def test_a_corpus_shows_no_fault(name: str) -> None:
    paths = corpus(name)
    assert paths
    for path in paths:
        TARGETS[name](path.read_bytes())


@pytest.mark.long
@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize("name", TARGETS)
def test_fuzzing_finds_no_fault(name: str) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris is not installed")
    command = [sys.executable, "-m", "tests.fuzz", name, "--seconds", str(SECONDS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4_000:]
