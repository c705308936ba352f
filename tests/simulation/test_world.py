"""Whole worlds, each from a seed: brokers, a job, gateways and clients to whom anything happens.

Every answer, page walk, scan and subscription is held to the fold of the changelog by a checker that knows nothing of
the product (`tests/kit/world/checker.py`). `make simulate SEED=n` tells a seed as a story.
"""

import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.kit.world.faults import ENABLED, FAULTS
from tests.kit.world.simulate import simulate

pytestmark = pytest.mark.timeout(1_200)  # of a machine that has much else to do, too

SEEDS = 2_000  # at each `make test`
AT_ONCE = 25  # in one test: some 14 seconds of a processor
IN_CHECK = 5  # at each `make check`
LONG_SEEDS = 50_000
LONG_AT_ONCE = 250
CHUNKS = [
    range(IN_CHECK),
    range(IN_CHECK, AT_ONCE),
    *(range(at, at + AT_ONCE) for at in range(AT_ONCE, SEEDS, AT_ONCE)),
]


@pytest.mark.parametrize(
    "chunk", [pytest.param(chunk, marks=pytest.mark.tools if chunk.start else ()) for chunk in CHUNKS], ids=str
)
def test_all_guarantees_hold_whatever_happens(chunk: range) -> None:
    for seed in chunk:
        simulate(seed)


@pytest.mark.tools
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(19_035, id="a full store, while partitions are opened on rows of others"),
        pytest.param(2_130, id="a subscriber that goes on where rows of others are the store"),
    ],
)
def test_a_world_that_broke_once_holds(seed: int) -> None:
    simulate(seed)


@pytest.mark.long
@pytest.mark.parametrize("first", range(SEEDS, LONG_SEEDS, LONG_AT_ONCE))
def test_all_guarantees_hold_in_many_worlds(first: int) -> None:
    for seed in range(first, first + LONG_AT_ONCE):
        simulate(seed)


@pytest.mark.tools
def test_every_kind_of_fault_bites() -> None:
    bites: Counter[str] = Counter()
    for seed in range(100_000, 100_060):
        bites += simulate(seed)
    assert {type(fault).__name__ for fault in ENABLED} <= set(bites)
    assert {"write last, undone", "write last, done"} <= set(bites)
    assert {f"{how} by the index" for how in ("read", "sought", "walked")} <= set(bites)
    assert {"stream parked", "message offered"} <= set(bites)
    assert {f"snapshot file {what}, {how}" for what in ("written", "read") for how in ("done", "failed")} <= set(bites)


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
