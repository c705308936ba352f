"""What may happen to gateways of a cluster, from many more seeds than every change is tried with."""

import pytest

from tests.kit.replication.events import (
    check_a_new_generation,
    check_two_that_rely_on_each_other,
    check_whatever_happens,
)

SEEDS = 2_000
AT_ONCE = 50  # in one test: a minute


@pytest.mark.long
@pytest.mark.parametrize("first", range(1_000, 1_000 + SEEDS, AT_ONCE))
def test_whatever_happens_many_times(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        check_whatever_happens(seed)
        check_a_new_generation(seed)
        check_two_that_rely_on_each_other(seed)
