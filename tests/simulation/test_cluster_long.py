"""What may happen to gateways of a cluster, from many more seeds than every change is tried with."""

import pytest

from tests.unit.replication import test_cluster

SEEDS = 2_000
AT_ONCE = 50  # in one test: a minute


@pytest.mark.long
@pytest.mark.parametrize("first", range(1_000, 1_000 + SEEDS, AT_ONCE))
def test_whatever_happens_many_times(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        test_cluster.test_whatever_happens_a_partition_stays_answered_and_all_ends_well(seed)
        test_cluster.test_a_new_generation_takes_the_place_of_the_old_one_without_a_gap(seed)
        test_cluster.test_two_that_rely_on_each_other_do_not_both_let_go(seed)
