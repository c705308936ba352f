"""Gateways whose contract is not that of a table's manifest: others have what would be theirs."""

import random

import pytest

from tests.kit.replication.replicators import Member, World, another_contract
from tests.kit.seeds import seeds


@pytest.mark.parametrize("seed", seeds(20, in_check=2))
def test_who_refuses_a_table_is_to_have_none_of_it(seed: int) -> None:
    chance = random.Random(seed)
    world = World(seed)
    for catalogue in chance.sample([None, None, None, another_contract()], 4):
        world.join(catalogue)
        world.run(chance.choice([0.0, 0.3, 5.0]))
    world.settle()
    for partition in range(world.partitions):
        live = {member.name for member in world.running if partition in member.live()}
        assert len(live) == 2


@pytest.mark.tools
@pytest.mark.parametrize("seed", seeds(10, in_check=2))
def test_a_restart_of_one_that_refuses_moves_nothing(seed: int) -> None:
    world = World(seed, lag=False)
    for catalogue in (None, None, None, another_contract()):
        world.join(catalogue)
    world.settle()
    held = {member.name: member.held() for member in world.members}
    refusing = world.members[-1]
    world.stop(refusing)
    world.run(world.chance.uniform(0.0, 15.0))
    world.start(refusing)
    for _ in world.steps(20):
        world.check()
        assert {member.name: member.held() for member in world.members} == held


@pytest.mark.parametrize("seed", seeds(10, in_check=2))
def test_where_a_manifest_is_put_right_nobody_takes_what_is_not_its_own(seed: int) -> None:
    """All refused it, and hear one after the other that they do no more."""
    world = World(seed)
    world.rebuild(another_contract().tables["ratings"], is_wrong=True)
    for _ in range(4):
        world.join()
    world.run(5.0)
    assert not any(member.held() for member in world.members)
    world.manifest = world.job.manifest()
    world.job.publish()
    ever = world.ever_held(10)
    world.settle()
    assert ever == {member.name: member.held() for member in world.members}


@pytest.mark.tools
@pytest.mark.parametrize("seed", seeds(30, in_check=2))
def test_gateways_get_another_contract_one_after_the_other(seed: int) -> None:
    """Each partition is answered all the time, and the job need not end the old generation."""
    chance = random.Random(seed)
    world = World(seed, replicas=chance.choice([1, 2]), lag=chance.random() < 0.5)
    for _ in range(3):
        world.join()
    world.settle()
    new = another_contract()
    world.rebuild(new.tables["ratings"])
    world.run(chance.uniform(0.0, 10.0))
    for member in world.members:
        world.drain(member)
        _run_until_empty(world, member)
        world.stop(member)
        member.catalogue = new
        world.start(member)
        world.run(chance.uniform(10.0, 20.0))
        assert member.state().manifest.generation == 2  # of another contract, the others cannot be asked for it
    world.settle()
    assert world.served() == {2}


def _run_until_empty(world: World, member: Member) -> None:
    for _ in range(100):
        world.run(1.0)
        if not member.held():
            return
    raise AssertionError(f"{member.name} has {member.held()} still")
