"""Gateways of a cluster: who has which partition, whatever happens to them."""

import random
from collections.abc import Callable

import pytest

from tests.kit.cluster_world import Member, SlowLog, World
from tests.kit.seeds import seeds


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


@pytest.mark.parametrize("seed", seeds(10, in_check=4))
def test_what_is_taken_over_is_answered_only_when_it_has_all_that_was_there(seed: int) -> None:
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


@pytest.mark.parametrize("seed", seeds(20, in_check=4))
def test_two_that_rely_on_each_other_do_not_both_let_go(seed: int) -> None:
    world = World(seed, replicas=1)
    old = world.join()
    world.settle()
    new = world.join()
    for _ in world.steps(30):
        world.check()
        if new.live() & old.held():
            break
    assert new.live() & old.held()
    world.run(world.chance.choice([0.0, 0.1, 0.2, 0.5]))
    world.drain(new)
    world.settle()
    assert old.live() == set(range(world.partitions))


@pytest.mark.parametrize("seed", seeds(10, in_check=4))
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


@pytest.mark.parametrize("seed", seeds(10, in_check=4))
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


@pytest.mark.parametrize("seed", range(5))
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


@pytest.mark.parametrize("seed", seeds(20, in_check=4))
def test_a_new_generation_takes_the_place_of_the_old_one_without_a_gap(seed: int) -> None:
    chance = random.Random(seed)
    world = World(seed, replicas=chance.choice([1, 2]))
    for _ in range(3):
        world.join()
    world.settle()
    for event in (_rebuild, chance.choice(EVENTS), _join, _end_old, chance.choice(EVENTS)):
        event(world, chance)
        world.run(chance.choice([0.1, 1.0, 5.0, 15.0]))
    _all_is_well(world)


@pytest.mark.parametrize("seed", seeds(50, in_check=8))
def test_whatever_happens_a_partition_stays_answered_and_all_ends_well(seed: int) -> None:
    chance = random.Random(seed)
    world = World(seed, replicas=chance.choice([1, 2, 2, 3]), zones=chance.choice([1, 1, 2]))
    for _ in range(chance.randint(2, 4)):
        world.join()
    world.settle()
    for _ in range(5):
        chance.choice(EVENTS)(world, chance)
        world.run(chance.choice([0.3, 2.0, 6.0, 14.0]))
        if world.deaths >= world.replicas - 1 or chance.random() < 0.4:
            _all_is_well(world)
    _all_is_well(world)


def _all_is_well(world: World) -> None:
    world.broker.is_up = True
    world.end_old()
    world.settle(90.0)


def _one(world: World, chance: random.Random) -> Member:
    return chance.choice(world.running)


def _can_die(world: World) -> bool:
    candidates = [member for member in world.running if not member.is_draining]
    return world.deaths < world.replicas - 1 and len(candidates) > 2


def _join(world: World, chance: random.Random) -> None:
    if len(world.running) < 5:
        world.join()


def _start_again(world: World, chance: random.Random) -> None:
    stopped = [member for member in world.members if member.replicator is None]
    if stopped:
        world.start(chance.choice(stopped))


def _kill(world: World, chance: random.Random) -> None:
    if _can_die(world):
        world.kill(_one(world, chance), wipe=chance.random() < 0.3)


def _restart(world: World, chance: random.Random) -> None:
    if _can_die(world):
        member = _one(world, chance)
        world.kill(member)
        world.run(chance.choice([0.1, 1.0, 5.0]))
        world.start(member)


def _stop(world: World, chance: random.Random) -> None:
    if _can_die(world):
        world.stop(_one(world, chance))


def _drain(world: World, chance: random.Random) -> None:
    if sum(not member.is_draining for member in world.running) > 1:
        world.drain(_one(world, chance))


def _rebuild(world: World, chance: random.Random) -> None:
    if world.ended is None:
        world.rebuild()


def _end_old(world: World, chance: random.Random) -> None:
    world.end_old()


def _kafka_goes(world: World, chance: random.Random) -> None:
    world.broker.is_up = False


def _kafka_comes(world: World, chance: random.Random) -> None:
    world.broker.is_up = True


EVENTS: list[Callable[[World, random.Random], None]] = [
    _join,
    _join,
    _start_again,
    _start_again,
    _kill,
    _kill,
    _restart,
    _stop,
    _drain,
    _drain,
    _rebuild,
    _end_old,
    _kafka_goes,
    _kafka_comes,
]
