"""What may happen to gateways of a cluster, as chance has it; all from one seed. Each check fails with an assertion."""

import random
from collections.abc import Callable

from tests.kit.replication.replicators import Member, World


def check_two_that_rely_on_each_other(seed: int) -> None:
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


def check_a_new_generation(seed: int) -> None:
    chance = random.Random(seed)
    world = World(seed, replicas=chance.choice([1, 2]))
    for _ in range(3):
        world.join()
    world.settle()
    for event in (_rebuild, chance.choice(EVENTS), _join, _end_old, chance.choice(EVENTS)):
        event(world, chance)
        world.run(chance.choice([0.1, 1.0, 5.0, 15.0]))
    _all_is_well(world)


def check_whatever_happens(seed: int) -> None:
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
