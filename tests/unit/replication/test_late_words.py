"""Gateways of a cluster whose announcements reach the topic late: none acts on its own before the others can know."""

import random

import pytest
from typing_extensions import override

from tablegate.gateway.kafka.log import Fetched
from tests.kit.replication.memory_log import MemoryBroker, MemoryLog
from tests.kit.replication.replicators import World
from tests.kit.seeds import seeds

LATE_MS = 1_500  # three beats under way: less than what makes a gateway look dead


class LateWords(MemoryLog):
    """A client whose records are written some time after it was given them, in their order."""

    chance = random.Random(0)

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self._given: list[tuple[int, str, bytes, bytes | None]] = []

    @override
    def append(self, topic: str, key: bytes, value: bytes | None) -> None:
        due_ms = self._broker.now_ms() + self.chance.randint(0, LATE_MS)
        self._given.append((max([due_ms, *(given[0] for given in self._given)]), topic, key, value))

    @override
    def fetch(self, *, records_max: int, timeout_s: float) -> list[Fetched]:
        while self._given and self._given[0][0] <= self._broker.now_ms():
            super().append(*self._given.pop(0)[1:])
        return super().fetch(records_max=records_max, timeout_s=timeout_s)


@pytest.fixture
def late_words(monkeypatch: pytest.MonkeyPatch, seed: int) -> type[LateWords]:
    monkeypatch.setattr(LateWords, "chance", random.Random(seed))
    return LateWords


@pytest.mark.parametrize("seed", seeds(60, in_check=6))
def test_two_that_rely_on_each_other_do_not_both_let_go(seed: int, late_words: type[LateWords]) -> None:
    """The one that lost a partition hears that the other is live; that one is drained, and hears that the first is."""
    world = World(seed, replicas=1, lag=False)
    world.log = late_words
    old = world.join()
    world.settle()
    new = world.join()
    for _ in world.steps(60):
        world.check()
        if new.live() & old.held():
            break
    assert new.live() & old.held()
    world.run(world.chance.uniform(0.0, 2.0))
    world.drain(new)
    world.settle()
    assert old.live() == set(range(world.partitions))
