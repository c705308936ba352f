"""Who is to have a partition: the same for all, evenly, and moving no more than it must."""

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablegate.gateway.contract.placement import Candidate, is_candidate, ranked, wanted, wanted_of_all
from tablegate.gateway.contract.types import Partition
from tests.kit.seeds import examples

GOLDEN = Path(__file__).parents[2] / "golden/placements.json"

names = st.text(min_size=1, max_size=8)
clusters = st.dictionaries(names, st.sampled_from(["", "a", "b", "c"]), min_size=1, max_size=9).map(
    lambda zones: [Candidate(name, zone) for name, zone in zones.items()]
)
partitions = st.integers(0, 500).map(Partition)


def gateways(count: int, zones: int = 1) -> list[Candidate]:
    return [Candidate(f"gateway-{number}", f"zone-{number % zones}") for number in range(count)]


def placed(table: str, candidates: list[Candidate], count: int, replicas: int) -> set[tuple[int, str]]:
    return {
        (number, each.gateway_id)
        for number, best in enumerate(wanted_of_all(table, count, candidates, replicas))
        for each in best
    }


def test_it_is_what_gateways_of_any_release_say() -> None:
    for case in json.loads(GOLDEN.read_text()):
        candidates = [Candidate(name, zone) for name, zone in case["candidates"].items()]
        found = [each.gateway_id for each in ranked(case["table"], Partition(case["partition"]), candidates)]
        assert found == case["ranked"], case


@given(cluster=clusters, partition=partitions, replicas=st.integers(0, 4), chance=st.randoms(use_true_random=False))
def test_the_order_of_candidates_means_nothing(
    cluster: list[Candidate], partition: Partition, replicas: int, chance: random.Random
) -> None:
    order = ranked("ratings", partition, cluster)
    shuffled = list(cluster)
    chance.shuffle(shuffled)
    assert ranked("ratings", partition, shuffled) == order
    assert sorted(order) == sorted(cluster)
    assert wanted("ratings", partition, shuffled, replicas) == (order[:replicas] if replicas else order)


@given(cluster=clusters, count=st.integers(0, 200), replicas=st.integers(0, 4))
@examples(50)
def test_all_partitions_at_once_are_the_same(cluster: list[Candidate], count: int, replicas: int) -> None:
    each = [wanted("ratings", Partition(number), cluster, replicas) for number in range(count)]
    assert list(wanted_of_all("ratings", count, cluster, replicas)) == each


@given(cluster=clusters, partition=partitions, replicas=st.integers(1, 4), zone=st.sampled_from(["", "a", "b"]))
def test_who_joins_takes_from_others_and_moves_nothing_between_them(
    cluster: list[Candidate], partition: Partition, replicas: int, zone: str
) -> None:
    joined = Candidate("one that joins", zone)
    before = set(wanted("ratings", partition, cluster, replicas))
    after = set(wanted("ratings", partition, [*cluster, joined], replicas))
    assert after <= before | {joined}
    assert len(after) == min(replicas, len(cluster) + 1)
    if joined not in after:
        assert after == before


@given(cluster=clusters, partition=partitions, replicas=st.integers(1, 9))
def test_as_many_zones_as_there_can_be(cluster: list[Candidate], partition: Partition, replicas: int) -> None:
    best = wanted("ratings", partition, cluster, replicas)
    zones = {each.zone for each in cluster}
    assert len({each.zone for each in best}) == min(len(best), len(zones))


@pytest.mark.parametrize("zones", [1, 3])
@pytest.mark.parametrize("count", [3, 10, 30])
def test_one_of_n_that_leaves_moves_about_an_nth(count: int, zones: int) -> None:
    partition_count, replicas = 2_000, 2
    before = placed("ratings", gateways(count, zones), partition_count, replicas)
    gone = gateways(count, zones)[1]
    after = placed("ratings", [each for each in gateways(count, zones) if each != gone], partition_count, replicas)
    moved = len(after - before)
    assert moved == len({pair for pair in before if pair[1] == gone.gateway_id})
    assert moved <= 1.25 * partition_count * replicas / count


@pytest.mark.parametrize("count", [3, 10])
def test_gateways_have_about_as_much_as_each_other(count: int) -> None:
    partition_count, replicas = 3_000, 2
    having = Counter(name for _, name in placed("ratings", gateways(count), partition_count, replicas))
    owning = Counter(best[0].gateway_id for best in wanted_of_all("ratings", partition_count, gateways(count), 2))
    assert len(having) == len(owning) == count
    for counted, mean in ((having, partition_count * replicas / count), (owning, partition_count / count)):
        assert max(counted.values()) < 1.2 * mean
        assert min(counted.values()) > 0.8 * mean


def test_tables_are_placed_apart() -> None:
    first, second = (placed(table, gateways(10), 500, 1) for table in ("ratings", "movies"))
    assert len(first & second) < 150


def test_no_candidates_no_place() -> None:
    assert ranked("ratings", Partition(3), []) == []
    assert list(wanted_of_all("ratings", 2, [], 2)) == [[], []]


@pytest.mark.parametrize(
    ("serving", "building", "refused", "generations"),
    [
        (0, 0, 0, {1, 2, 3}),  # it has just started
        (2, 0, 0, {1, 2, 3}),
        (1, 2, 0, {1, 2, 3}),
        (0, 2, 0, {2, 3}),  # it joined while 2 was built
        (0, 0, 2, {3}),
        (1, 0, 2, {1, 3}),  # it answers on from 1
        (1, 0, 3, {1}),
    ],
)
def test_who_is_a_candidate_for_a_generation(serving: int, building: int, refused: int, generations: set[int]) -> None:
    found = {
        generation
        for generation in (1, 2, 3)
        if is_candidate(generation, serving=serving, building=building, refused=refused)
    }
    assert found == generations
