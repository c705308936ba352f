"""Gateways of a cluster: who has which partition, whatever happens to them."""

import pytest

from tests.kit.replication.events import (
    check_a_new_generation,
    check_two_that_rely_on_each_other,
    check_whatever_happens,
)
from tests.kit.replication.replicators import SlowLog, World
from tests.kit.seeds import seeds

pytestmark = pytest.mark.tools


def test_each_partition_has_its_replicas() -> None:
    world = World(1)
    for _ in range(4):
        world.join()
    world.settle()
    assert all(len(world.wanted(partition)) == 2 for partition in range(world.partitions))


def test_gateways_that_start_together_take_nothing_that_is_not_theirs() -> None:
    world = World(2, lag=False)
    for _ in range(4):
        world.join()
        world.run(0.2)
    ever = world.ever_held(10)
    world.settle()
    assert ever == {member.name: member.held() for member in world.members}


@pytest.mark.parametrize("seed", seeds(10, in_check=2))
def test_moved_partition_is_live_only_when_it_has_caught_up(seed: int) -> None:
    world = World(seed, replicas=1, lag=False)
    world.log = SlowLog
    old, new = world.join(), world.join()
    world.settle()
    moving = sorted(old.held())
    world.run(world.chance.uniform(0.0, 5.0))
    world.job.put([movie for movie in range(40) for _ in range(20)])
    facts = world.broker.facts(world.job.topic)
    assert facts is not None
    world.drain(old)
    gained: dict[int, int] = {}
    for _ in world.steps(60):
        for number in new.live() & set(moving):
            gained.setdefault(number, new.positions()[number].next_offset)
    assert sorted(gained) == moving
    assert all(offset >= facts.end_offsets[number] for number, offset in gained.items())


@pytest.mark.parametrize("seed", seeds(20, in_check=2))
def test_two_that_rely_on_each_other_do_not_both_let_go(seed: int) -> None:
    check_two_that_rely_on_each_other(seed)


@pytest.mark.parametrize("seed", seeds(10, in_check=2))
def test_nothing_moves_while_kafka_is_away_and_when_it_comes_back(seed: int) -> None:
    world = World(seed)
    for _ in range(3):
        world.join()
    world.settle()
    held = {member.name: member.held() for member in world.members}
    world.broker.is_up = False
    world.run(world.chance.choice([2.0, 40.0, 400.0]))
    world.broker.is_up = True
    for _ in world.steps(20):
        world.check()
        assert {member.name: member.held() for member in world.members} == held
        assert all(each.alive for member in world.members for each in member.status().gateways)


@pytest.mark.parametrize("seed", seeds(10, in_check=2))
def test_a_quick_restart_moves_nothing(seed: int) -> None:
    world = World(seed, lag=False)
    for _ in range(3):
        world.join()
    world.settle()
    held = {member.name: member.held() for member in world.members}
    member = world.chance.choice(world.members)
    if world.chance.random() < 0.5:
        world.kill(member)
    else:
        world.stop(member)
    world.run(5.0)
    world.start(member)
    for _ in world.steps(20):
        world.check()
        assert {member.name: member.held() for member in world.members} == held


@pytest.mark.parametrize("seed", seeds(5, in_check=2))
def test_a_gateway_that_was_told_more_replicas_gives_all_away_too(seed: int) -> None:
    """Gateways are told another number one after the other; the last one with the old number is drained."""
    world = World(seed, replicas=3)
    last = world.join()
    world.replicas = 2
    for _ in range(3):
        world.join()
    world.run(30.0)
    world.drain(last)
    world.settle()
    assert not last.held()


@pytest.mark.parametrize("seed", seeds(20, in_check=2))
def test_a_new_generation_takes_the_place_of_the_old_one_without_a_gap(seed: int) -> None:
    check_a_new_generation(seed)


@pytest.mark.parametrize("seed", seeds(50, in_check=4))
def test_whatever_happens_a_partition_stays_answered_and_all_ends_well(seed: int) -> None:
    check_whatever_happens(seed)
