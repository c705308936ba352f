"""Whole worlds, each from a seed: brokers, a job, gateways and clients to whom anything happens.

Every answer, page walk, scan and subscription is held to the fold of the changelog by a checker that knows nothing of
the product (`tests/kit/world/checker.py`). `make simulate SEED=n` tells a seed as a story.
"""

import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.kit.seeds import seeds
from tests.kit.world.checker import GuaranteeBroken
from tests.kit.world.faults import ENABLED, FAULTS
from tests.kit.world.simulate import simulate

AT_ONCE = 25  # seeds in one test: some five seconds
CHUNKS = 48  # 1,200 seeds at each `make test`
LONG_AT_ONCE = 250
LONG_SEEDS = 50_000
KNOWN_TO_BREAK = {
    1069: "a subscriber is told that a row is gone which its gateway has again: nobody knows why yet",
    1556: "the copy of a subscriber stays behind at the end: nobody knows why yet",
}


@pytest.mark.parametrize("chunk", seeds(CHUNKS, in_check=1))
def test_all_guarantees_hold_whatever_happens(chunk: int) -> None:
    for seed in range(chunk * AT_ONCE, (chunk + 1) * AT_ONCE):
        if seed not in KNOWN_TO_BREAK:
            simulate(seed)


@pytest.mark.parametrize("seed", KNOWN_TO_BREAK)
def test_a_seed_that_is_known_to_break_still_does(seed: int) -> None:
    """Whoever mends one removes it from the list, and it counts as all others do."""
    with pytest.raises(GuaranteeBroken):
        simulate(seed)


@pytest.mark.long
@pytest.mark.parametrize("first", range(CHUNKS * AT_ONCE, LONG_SEEDS, LONG_AT_ONCE))
def test_all_guarantees_hold_in_many_worlds(first: int) -> None:
    for seed in range(first, first + LONG_AT_ONCE):
        if seed not in KNOWN_TO_BREAK:
            simulate(seed)


@pytest.mark.tools
def test_every_kind_of_fault_bites() -> None:
    bites: Counter[str] = Counter()
    for seed in range(100_000, 100_060):
        bites += simulate(seed)
    assert {type(fault).__name__ for fault in ENABLED} <= set(bites)
    assert {"write last, undone", "write last, done"} <= set(bites)


def test_a_fault_that_is_off_says_why_and_what_it_breaks() -> None:
    for fault in FAULTS:
        assert bool(fault.off) == bool(fault.breaks), type(fault).__name__


@pytest.mark.tools
@pytest.mark.parametrize("seed", [3, 8])  # in memory and in LMDB
def test_a_seed_tells_the_same_story_in_any_process(seed: int) -> None:
    stories = [
        subprocess.run(
            [sys.executable, "-m", "tests.kit.world.simulate", str(seed)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert stories[0] == stories[1]
    assert "all guarantees held" in stories[0]
