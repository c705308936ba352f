"""Gateways to whose topics and manifests anything happens: every move is in its table, and every event happens.

What they answer is not looked at here, as it is in `test_cluster`: changelogs are cut short, deleted and created anew.
The observer of each gateway (`tests/kit/state_observer.py`) holds every move to the table, and what is stored to it.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from enum import Enum

import pytest

from tablegate.gateway.contract.types import Partition
from tablegate.gateway.kafka.log import TopicPartition
from tablegate.gateway.replication.states import GenerationEvent, PartitionEvent, TableEvent
from tests.kit.replication import state_observer
from tests.kit.replication.events import EVENTS
from tests.kit.replication.replicator import Job
from tests.kit.replication.replicators import World

SEEDS = 40
SEEDS_IN_CHECK = 6
AT_ONCE = 250  # in one test: a minute or two
RARE = {  # less than once in a hundred seeds
    GenerationEvent.YIELD,
    GenerationEvent.FELL_BEHIND,
    PartitionEvent.KEEP_CATCHING_UP,
    PartitionEvent.KEEP_LIVE,
    PartitionEvent.KEEP_FINAL,
    PartitionEvent.KEEP_FROZEN,
}
NEVER = {  # in worlds of a few hundred seeds; `tests/unit/replication/test_states.py` makes them happen
    PartitionEvent.KEEP_CATCHING_UP,
    PartitionEvent.KEEP_FINAL,
    PartitionEvent.KEEP_FROZEN,
}
TABLES = TopicPartition("tables", Partition(0))


def _remove_manifest(world: World, chance: random.Random) -> None:
    world.broker.append(TABLES, b"ratings", None)


def _publish_again(world: World, chance: random.Random) -> None:
    world.job.publish(world.manifest)


def _publish_what_no_contract_agrees_with(world: World, chance: random.Random) -> None:
    generation = world.job.generation + chance.choice([0, 0, 1])
    world.job.publish(replace(world.job, generation=generation).manifest(contract_fingerprint=b"another"))


def _publish_another_topic(world: World, chance: random.Random) -> None:
    world.job.publish(world.job.manifest(changelog_topic="another"))


def _delete_topic(world: World, chance: random.Random) -> None:
    topic = chance.choice([world.job, world.ended or world.job]).topic
    if world.broker.facts(topic) is not None:
        world.broker.delete(topic)


def _create_topic(world: World, chance: random.Random) -> None:
    if world.broker.facts(world.job.topic) is None:
        world.broker.create(world.job.topic, world.partitions)


def _next_generation(world: World, chance: random.Random) -> None:
    world.ended = world.job
    world.job = Job(world.broker, generation=world.job.generation + 1, partitions=world.partitions).create()
    world.manifest = world.job.manifest()
    world.job.put(range(20))
    world.job.publish()


def _end_old(world: World, chance: random.Random) -> None:
    if world.ended is not None and world.broker.facts(world.ended.topic) is None:
        world.ended = None
    if world.broker.facts(world.job.topic) is not None:
        world.end_old()


def _end_all(world: World, chance: random.Random) -> None:
    if world.broker.facts(world.job.topic) is not None:
        world.job.mark_all({0: 20, 1: 20}, final=True)


def _lose_first_records(world: World, chance: random.Random) -> None:
    facts = world.broker.facts(world.job.topic)
    if facts is not None:
        for partition, end in enumerate(facts.end_offsets):
            world.broker.truncate_before(world.job.source(partition), end)


def _lose_last_records(world: World, chance: random.Random) -> None:
    facts = world.broker.facts(world.job.topic)
    if facts is not None:
        for partition, start in enumerate(facts.start_offsets):
            world.broker.truncate_from(world.job.source(partition), start)


def _let_days_pass(world: World, chance: random.Random) -> None:
    world.clock.passed_s += 86_400 * chance.choice([0.3, 3.0])


DAMAGES: list[Callable[[World, random.Random], None]] = [
    _remove_manifest,
    _publish_again,
    _publish_again,
    _publish_what_no_contract_agrees_with,
    _publish_another_topic,
    _delete_topic,
    _create_topic,
    _create_topic,
    _next_generation,
    _next_generation,
    _end_old,
    _end_old,
    _end_all,
    _lose_first_records,
    _lose_last_records,
    _let_days_pass,
]


class DamagedWorld(World):
    """A world whose job writes only where its topic is there."""

    def live_seconds(self, seconds: float) -> None:
        is_up = self.broker.is_up
        if self.broker.facts(self.job.topic) is None:
            self.job, job = Job(self.broker, generation=1_000_000, partitions=self.partitions).create(), self.job
        else:
            job = self.job
        for _ in self.steps(seconds):
            pass
        self.job = job
        self.broker.is_up = is_up


def _simulate(seed: int) -> None:
    chance = random.Random(seed)
    world = DamagedWorld(seed, replicas=chance.choice([0, 1, 2]), lag=chance.random() < 0.5)
    for _ in range(chance.choice([1, 2, 3])):
        world.join()
    world.live_seconds(chance.choice([0.3, 5.0]))
    for _ in range(12):
        happens = chance.choice(DAMAGES if chance.random() < 0.6 else [each for each in EVENTS if each not in _OTHERS])
        if world.running:
            happens(world, chance)
            world.live_seconds(chance.choice([0.1, 0.5, 2.0, 6.0]))


_OTHERS = [each for each in EVENTS if each.__name__ in ("_rebuild", "_end_old")]


def _unseen() -> set[Enum]:
    """Return the events that no gateway of this process has met."""
    return {*TableEvent, *GenerationEvent, *PartitionEvent} - {event for _, event in state_observer.SEEN}


@pytest.mark.tools
def test_nothing_happens_that_the_tables_do_not_have() -> None:
    for seed in range(SEEDS_IN_CHECK):
        _simulate(seed)


@pytest.mark.tools
def test_every_event_happens_and_nothing_that_the_tables_do_not_have() -> None:
    for seed in range(SEEDS):
        _simulate(seed)
    assert _unseen() <= RARE


@pytest.mark.long
@pytest.mark.parametrize("first", range(1_000, 4_000, AT_ONCE))
def test_nothing_happens_in_many_worlds(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        _simulate(seed)


@pytest.mark.long
def test_rare_events_happen_too() -> None:
    for seed in range(700):
        _simulate(seed)
    assert _unseen() <= NEVER
