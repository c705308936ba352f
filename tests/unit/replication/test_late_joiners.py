"""A gateway that joins while a table is rebuilt: it answers from nothing newer than the others do."""

import random
from dataclasses import replace

import pytest

from tablegate.gateway.cli.served import directory_of, served_tables
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.kafka.log import TopicPartition
from tablegate.gateway.replication.manifests import ManifestSequence
from tablegate.gateway.replication.progress import TableLog
from tablegate.gateway.replication.stored import StoredTable
from tablegate.v1.cluster_pb2 import GatewayRecord
from tests.kit.replication.replicators import Member, SlowLog, World
from tests.kit.seeds import seeds

pytestmark = pytest.mark.tools


def rebuilding(seed: int, *, gateways: int = 3, replicas: int = 2, lag: bool = True) -> World:
    """Return gateways that answer from generation 1, and may not from generation 2 yet."""
    world = World(seed, replicas=replicas, lag=lag)
    for _ in range(gateways):
        world.join()
    world.settle()
    world.rebuild()
    world.run(world.chance.choice([0.0, 0.5, 5.0]))
    return world


def restart(world: World, member: Member, chance: random.Random) -> None:
    if chance.random() < 0.5:
        world.stop(member)
    else:
        world.kill(member)
    for _ in world.steps(chance.uniform(0.0, 3.0)):
        assert world.served() <= {1}
    world.start(member)


@pytest.mark.parametrize("seed", seeds(100, in_check=2))
def test_late_joiner_serves_no_newer_generation_than_the_others(seed: int) -> None:
    """Whatever else happens, as long as those do not stay away."""
    chance = random.Random(seed)
    world = rebuilding(seed, replicas=chance.choice([1, 2]))
    world.join()
    for _ in range(5):
        match chance.choice(["join", "restart", "wait", "kafka goes", "kafka comes"]):
            case "join" if len(world.running) < 6:
                world.join()
            case "restart":
                restart(world, chance.choice(world.running), chance)
            case "kafka goes":
                world.broker.is_up = False
            case "kafka comes":
                world.broker.is_up = True
        for _ in world.steps(chance.uniform(0.0, 12.0)):
            assert world.served() <= {1}
    world.broker.is_up = True
    world.end_old()
    world.settle()


@pytest.mark.parametrize("seed", seeds(10, in_check=2))
def test_served_generation_is_built_until_all_have_switched(seed: int) -> None:
    """Would only the newcomer have it in the new generation, nobody would answer it between two switches."""
    world = World(seed, replicas=1, lag=False)
    old = [world.join() for _ in range(2)]
    world.settle()
    world.rebuild()
    world.run(5.0)
    new = world.join()
    world.run(15.0)
    assert any(new.name in world.wanted(partition) for partition in range(world.partitions))
    for member in old:
        assert member.replicator is not None
        table = member.replicator._tables["ratings"]
        assert table.serving is not None
        assert table.building is not None
        answered = {replica.partition for replica in table.serving.replicas}
        assert answered == member.live()
        assert answered <= {replica.partition for replica in table.building.replicas if replica.is_live}
    world.end_old()
    world.settle()


@pytest.mark.parametrize("seed", seeds(20, in_check=2))
def test_restarted_cluster_serves_its_generation_though_a_store_is_lost(seed: int) -> None:
    chance = random.Random(seed)
    world = rebuilding(seed, lag=False)
    lost = chance.choice(world.members)
    if chance.random() < 0.5:  # it has the next generation when all restart
        world.kill(lost, wipe=True)
        world.start(lost)
        world.run(chance.uniform(0.0, 10.0))
    for member in world.running:
        (world.stop if chance.random() < 0.5 else world.kill)(member)
    if lost.state().manifest.changelog_topic:
        world.kill(lost, wipe=True)
    for member in chance.sample(world.members, 3):
        world.start(member)
        for _ in world.steps(chance.uniform(0.0, 0.5)):
            assert world.served() <= {1}
    for _ in world.steps(30.0):
        assert world.served() <= {1}
    assert world.served() == {1}
    assert {member.state().manifest.generation for member in world.members} == {1}


@pytest.mark.parametrize("seed", seeds(30, in_check=2))
@pytest.mark.parametrize("how", ["die", "leave", "drain"])
def test_late_joiners_answer_anew_when_the_others_are_gone(how: str, seed: int) -> None:
    """Though the job never ends the old one."""
    chance = random.Random(seed)
    world = rebuilding(seed, replicas=chance.choice([1, 2]))
    old = list(world.members)
    new = [world.join() for _ in range(chance.choice([1, 2]))]
    world.run(chance.uniform(0.0, 15.0))
    for member in old:
        if how == "die":
            world.kill(member)
        elif how == "leave":
            world.stop(member)
        else:
            world.drain(member)
        world.run(chance.choice([0.0, 1.0, 15.0]))
    world.settle()
    assert all(not member.held() for member in old if member.replicator is not None)
    assert set().union(*(member.live() for member in new)) == set(range(world.partitions))


@pytest.mark.parametrize("seed", seeds(10, in_check=2))
def test_who_begins_while_others_answer_on_has_all_that_it_is_to_have(seed: int) -> None:
    world = rebuilding(seed, gateways=1, lag=False)
    [old] = world.members
    world.job.put([movie for movie in range(40) for _ in range(30)])
    world.log = SlowLog
    new = world.join()
    world.drain(old)
    for _ in world.steps(200.0):
        if new.live():
            break
        assert world.served() == {1}
    assert world.served() == {1, 2}
    assert new.live() == set(range(world.partitions))


@pytest.mark.parametrize("seed", seeds(10, in_check=2))
def test_where_nobody_has_an_older_generation_a_newcomer_does_not_wait(seed: int) -> None:
    """Nor does it where others have died long ago."""
    world = rebuilding(seed, lag=False)
    for member in world.members:
        world.kill(member, wipe=True)
    world.clock.passed_s += 3_600
    for member in world.members:
        world.start(member)
    began_s = world.clock.passed_s
    while len([member for member in world.members if member.live()]) < len(world.members):
        world.run(0.1)
    assert world.served() == {2}
    assert world.clock.passed_s - began_s < 5.0


def test_reads_that_come_to_a_newcomer_go_to_the_others() -> None:
    """Its workers have a table of the generation, partitions and topic of which the others answer, and no row of it."""
    world = rebuilding(1, lag=False)
    new = world.join()
    world.run(10.0)
    old = world.members[0].state().manifest
    state = new.state()
    assert (state.store_id, state.problem) == (0, "")
    known = state.manifest
    assert (known.table, known.generation, known.partition_count) == ("ratings", 1, world.partitions)
    assert known.changelog_topic_id == old.changelog_topic_id
    [table] = new.status().tables
    assert (table.serving, list(table.partitions), table.manifest) == (False, [], known)
    directory = directory_of(new.status())
    assert served_tables(new.status(), directory) == {"ratings"}
    for partition in map(Partition, range(world.partitions)):
        answering = {peer.gateway_id for peer in directory.replicas("ratings", partition, 1)}
        assert answering == {member.name for member in world.running if partition in member.live()}
    world.end_old()
    world.settle()
    assert new.state().manifest.changelog_topic == world.job.topic
    assert new.status().tables[0].manifest.generation == 2


def test_manifest_learnt_from_others_binds_no_later_manifest() -> None:
    world = rebuilding(1, lag=False)
    new = world.join()
    world.run(10.0)
    table_log = TableLog("ratings", world.clock)
    stored = StoredTable(new.catalogue.tables["ratings"], store=new.store, clock=world.clock, table_log=table_log)
    assert stored.newest_manifest() == world.manifest
    from_others = stored.state("ratings")
    assert from_others is not None
    assert (from_others.manifest.generation, from_others.manifest.changelog_topic) == (1, "")
    stored.keep_newest(from_others.manifest)
    assert ManifestSequence(stored.newest_manifest()).breach_of(replace(world.job, generation=1).manifest()) is None


def test_gateways_of_older_versions_are_not_waited_for() -> None:
    """Reads could not be sent to them."""
    world = rebuilding(1, lag=False)
    for member in world.members:
        world.kill(member)
    record = GatewayRecord(gateway_id="before", endpoint="before:1", beat=1)
    record.tables.add(table="ratings", replicas=2).serving.generation = 1
    new = world.join()
    for _ in range(100):
        world.broker.append(TopicPartition("gateways", Partition(0)), b"before", record.SerializeToString())
        world.run(0.2)
    assert new.state().manifest.generation == 2
