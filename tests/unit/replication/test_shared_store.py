"""Gateways of a cluster that keep their partitions together, in one Redis."""

import logging
import random
from concurrent.futures import Future

import pytest
from typing_extensions import override

from tablegate.gateway.contract.types import Offset, Partition
from tablegate.gateway.kafka.log import Fetched, TopicFacts, TopicPartition
from tablegate.gateway.stores.base import StoreWentBack
from tablegate.gateway.stores.redis.connection import parse_address
from tablegate.gateway.stores.redis.layout import Keys
from tablegate.gateway.stores.redis.store import RedisStore
from tests.kit.programs.redis import RedisServer, needs_redis
from tests.kit.replication.memory_log import MemoryBroker, MemoryLog
from tests.kit.replication.replicators import Member, World
from tests.kit.seeds import seeds

pytestmark = [needs_redis, pytest.mark.tools]


class SharedWorld(World):
    """Gateways of one prefix. A gateway that notices a loss begins anew with what is there, as its process does."""

    def __init__(self, redis_server: RedisServer, seed: int, *, replicas: int = 2, lag: bool = True) -> None:
        super().__init__(seed, replicas=replicas, lag=lag)
        self.redis = redis_server
        self.url = redis_server.new_url()
        self.went_back = 0

    @override
    def start(self, member: Member) -> None:
        member.store.close()
        member.store = RedisStore(self.url, member.name)
        super().start(member)

    @override
    def kill(self, member: Member, *, wipe: bool = False) -> None:
        super().kill(member)

    def flush(self) -> None:
        """Lose everything."""
        self.deaths += self.replicas
        self.redis.run(
            "EVAL",
            "for _, key in ipairs(redis.call('KEYS', ARGV[1])) do redis.call('DEL', key) end",
            0,
            self.url.rpartition("prefix=")[2] + ":*",
        )

    @override
    def step(self, member: Member) -> None:
        try:
            super().step(member)
        except StoreWentBack:
            self.went_back += 1
            self.start(member)
        if self.chance.random() < 0.2:
            self.check_rows(member)

    def check_rows(self, member: Member) -> None:
        """What it answers from has every row that was there at its position."""
        topic = member.state().manifest.changelog_topic
        for number in member.live():
            position = member.positions()[number]
            source = TopicPartition(topic, Partition(number))
            assert set(member.rows(number)) == self.keys(source, position.next_offset), (member.name, number)

    def close(self) -> None:
        for member in self.members:
            member.store.close()


class LateLog(MemoryLog):
    """A client whose looks are answered some steps later, by what was there when they were made."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self._answers: list[tuple[Future[TopicFacts | None], TopicFacts | None]] = []

    @override
    def describe_topic(self, topic: str) -> "Future[TopicFacts | None]":
        answer: Future[TopicFacts | None] = Future()
        self._answers.append((answer, super().describe_topic(topic).result()))
        return answer

    @override
    def fetch(self, *, records_max: int, timeout_s: float) -> list[Fetched]:
        while len(self._answers) > 1 or (self._answers and self.chance.random() < 0.3):
            answer, facts = self._answers.pop(0)
            answer.set_result(facts)
        return super().fetch(records_max=records_max, timeout_s=timeout_s)

    chance = random.Random(0)


def restores(caplog: pytest.LogCaptureFixture) -> int:
    texts = ("restoring from its changelog", "are restored from its changelog")
    return sum(text in record.message for record in caplog.records for text in texts)


@pytest.mark.parametrize("seed", seeds(5, in_check=1))
@pytest.mark.parametrize("log", [MemoryLog, LateLog])
def test_who_comes_later_or_again_restores_nothing(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture, log: type[MemoryLog], seed: int
) -> None:
    """Though the others write on all the time, and so are further than its looks say."""
    caplog.set_level(logging.INFO, "tablegate.gateway.replication")
    world = SharedWorld(redis_server, seed, replicas=0, lag=False)
    world.log = log
    world.join()
    world.settle()
    assert restores(caplog) == 1
    later = world.join()
    world.settle()
    for _ in range(4):
        world.kill(later)
        world.deaths = 0
        world.run(world.chance.uniform(0.0, 4.0))
        world.start(later)
        for _ in world.steps(8):
            world.job.put([world.chance.randrange(40)])
        world.settle()
    assert restores(caplog) == 1
    assert redis_server.run("HLEN", Keys(parse_address(world.url).prefix, "").copies) == 1
    assert world.went_back == 0
    world.close()


@pytest.mark.parametrize("running", [True, False])
def test_a_changelog_that_lost_records_is_restored_into_another_copy_once(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture, running: bool
) -> None:
    caplog.set_level(logging.INFO, "tablegate.gateway.replication")
    world = SharedWorld(redis_server, 1, replicas=0, lag=False)
    for _ in range(2):
        world.join()
    world.settle()
    first_id = world.members[0].state().store_id
    if not running:
        for member in world.members:
            world.kill(member)
    world.job.put([movie for movie in range(40) for _ in range(3)])
    facts = world.broker.facts(world.job.topic)
    assert facts is not None
    for partition in range(world.partitions):
        world.broker.truncate_before(world.job.source(partition), Offset(facts.end_offsets[partition] - 2))
    world.deaths = 9
    for member in world.members:
        if not running:
            world.start(member)
    world.settle()
    assert len({member.state().store_id for member in world.members}) == 1
    assert world.members[0].state().store_id != first_id
    world.close()


@pytest.mark.parametrize("seed", seeds(6, in_check=1))
def test_late_joiner_waits_though_the_shared_store_has_the_rows(redis_server: RedisServer, seed: int) -> None:
    world = SharedWorld(redis_server, seed)
    for _ in range(2):
        world.join()
    world.settle()
    world.rebuild()
    world.run(5.0)
    world.join()
    for _ in world.steps(15.0):
        assert world.served() == {1}
    world.end_old()
    world.settle()
    assert world.served() == {2}
    world.close()


@pytest.mark.parametrize("seed", seeds(12, in_check=1))
def test_whatever_happens_to_gateways_of_one_copy_all_ends_well(redis_server: RedisServer, seed: int) -> None:
    world = SharedWorld(redis_server, seed)
    for _ in range(3):
        world.join()
    world.settle()
    for _ in range(6):
        member = world.chance.choice(world.running)
        match world.chance.choice(["kill", "stop", "drain", "restart", "join", "flush", "rebuild"]):
            case "kill" if len(world.running) > 2:
                world.kill(member)
            case "stop" if len(world.running) > 2:
                world.stop(member)
            case "drain" if sum(not each.is_draining for each in world.running) > 2:
                world.drain(member)
            case "restart":
                world.kill(member)
                world.start(member)
            case "join" if len(world.members) < 5:
                world.join()
            case "flush":
                world.flush()
            case "rebuild" if world.ended is None:
                world.end_old()
                world.rebuild()
            case _:
                for each in world.members:
                    if each.replicator is None:
                        world.start(each)
        world.run(world.chance.uniform(0.0, 15.0))
        world.end_old()
    world.settle(120.0)
    world.close()
