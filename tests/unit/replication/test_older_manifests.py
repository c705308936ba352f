"""A job that was frozen publishes an older generation after a newer one: nobody goes back to it."""

import logging

import pytest

from tablegate.gateway.kafka.log import TopicPartition
from tests.kit.replication.memory_log import MemoryBroker, source
from tests.kit.replication.replicator import FakeClock, Gateway, Job
from tests.kit.replication.replicators import World

TABLES = source("tables", 0)


@pytest.fixture
def newer(broker: MemoryBroker, job: Job, gateway: Gateway) -> Job:
    """Generation 2, which the gateway has switched to: the movies 0 to 29."""
    job.publish().put(range(20))
    gateway.steps()
    newer = Job(broker, generation=2, sequence=1_000).create()
    newer.put(range(30))
    newer.publish()
    job.mark_all({0: 5, 1: 5}, final=True)
    newer.mark_all({0: 5, 1: 5})
    gateway.seconds(2)
    assert gateway.state().manifest.generation == 2
    return newer


def _served(gateway: Gateway) -> tuple[int, int]:
    """Return the generation that is served whole, and how many rows it has."""
    assert gateway.is_served()
    return gateway.state().manifest.generation, len(gateway.rows())


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_gateway_that_starts_again_stays_with_the_newest(
    gateway: Gateway, job: Job, newer: Job, is_compacted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    job.publish()
    if is_compacted:
        gateway.broker.compact(TABLES)
    gateway.seconds(2)
    assert _served(gateway) == (2, 30)
    caplog.clear()
    caplog.set_level(logging.WARNING)
    for _ in range(2):
        gateway.restart()
        gateway.seconds(12)
        assert _served(gateway) == (2, 30)
    assert any("ignored a manifest of the older generation 1" in line.message for line in caplog.records)
    newer.put([77])
    newer.publish()
    gateway.seconds(2)
    assert _served(gateway) == (2, 31)


def test_a_gateway_that_reads_both_at_once_follows_the_newest(clock: FakeClock, broker: MemoryBroker, job: Job) -> None:
    newer = Job(broker, generation=2, sequence=1_000).create().publish()
    newer.put(range(30))
    job.publish()
    gateway = Gateway(broker, clock)
    gateway.seconds(2)
    assert _served(gateway) == (2, 30)


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_table_that_was_removed_begins_anew_with_any_generation(
    gateway: Gateway, job: Job, newer: Job, is_compacted: bool
) -> None:
    gateway.broker.append(TABLES, b"ratings", None)
    gateway.steps()
    assert gateway.state().problem
    if is_compacted:
        gateway.broker.compact(TABLES, tombstones=True)
    gateway.restart()
    anew = Job(gateway.broker, sequence=5_000).create().publish()
    anew.put(range(7))
    for _ in range(2):
        gateway.seconds(12)
        assert _served(gateway) == (1, 7)
        gateway.restart()


def test_a_table_made_anew_while_a_gateway_was_away_is_its_next(gateway: Gateway, job: Job, newer: Job) -> None:
    gateway.broker.append(TABLES, b"ratings", None)
    anew = Job(gateway.broker, sequence=5_000).create().publish()
    anew.put(range(7))
    gateway.restart()
    gateway.seconds(12)
    assert _served(gateway) == (1, 7)


def test_a_gateway_that_joins_does_not_answer_from_what_others_left() -> None:
    world = World(3, lag=False)
    old = world.job
    for _ in range(2):
        world.join()
    world.settle()
    world.rebuild()
    world.end_old()
    world.settle()
    old.publish()
    world.broker.compact(TopicPartition("tables", TABLES.partition))
    new = world.join()
    for _ in world.steps(30.0):
        assert new.state().manifest.generation != 1 or not new.positions()
    [status] = new.status().tables
    assert "generation 2" in status.problem
    assert {member.state().manifest.generation for member in world.members[:2]} == {2}
    world.job.publish()  # the job of generation 2 starts again
    world.settle()
    assert new.live()
