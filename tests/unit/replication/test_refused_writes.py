"""A store that refuses any write, in the middle of anything: once there is room, the gateways answer as they should.

What is stored is answered meanwhile, and the other gateways hear of it.
"""

import random
from collections.abc import Callable

import pytest

from tablegate.gateway.cluster.gateways_topic import GONE_MS
from tests.kit.replication.memory_log import MemoryBroker
from tests.kit.replication.replicator import PARTITIONS, FakeClock, Gateway, Job
from tests.kit.replication.replicators import World
from tests.kit.seeds import seeds
from tests.kit.store.breaking import RefusingStore
from tests.kit.store.memory import MemoryStore

pytestmark = pytest.mark.tools


def _filling(gateway: Gateway, chance: random.Random) -> RefusingStore:
    """Start a gateway over a store that may refuse."""
    refusing = RefusingStore(gateway.store, chance)
    gateway.store = refusing  # type: ignore[assignment]
    gateway.restart()
    return refusing


class Story:
    """One gateway, and what happens to its table: rebuilds, switches, lost records, refused and removed manifests."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.clock = FakeClock()
        self.broker = MemoryBroker(self.clock.now_ms)
        self.broker.create("tables", 1)
        self.gateway = Gateway(self.broker, self.clock)
        self.refusing = _filling(self.gateway, self.chance)
        self.jobs = [Job(self.broker).create().publish()]
        self.jobs[0].put(range(20))

    @property
    def job(self) -> Job:
        """The newest one."""
        return self.jobs[-1]

    def rebuild(self) -> None:
        old = self.job
        self.jobs.append(Job(self.broker, generation=old.generation + 1, sequence=1_000 * len(self.jobs)).create())
        self.job.put(range(25))
        self.job.publish()
        self.steps()
        old.mark_all({0: 5, 1: 5}, final=True)
        self.job.mark_all({0: 5, 1: 5})

    def be_away(self) -> None:
        """Be too old, as a gateway that was frozen: what is served starts over."""
        self.clock.passed_s += 13 * 3_600

    def refuse(self) -> None:
        self.job.publish(self.job.manifest(partitioner=99))
        self.steps()
        self.job.publish()

    def remove(self) -> None:
        self.broker.append(self.job.source(0)._replace(topic="tables"), b"ratings", None)
        self.steps()
        self.job.publish()

    def delete_topic(self) -> None:
        if len(self.jobs) > 1:
            self.broker.delete(self.jobs.pop(0).topic)

    def write(self) -> None:
        self.job.put(self.chance.choices(range(30), k=4), delete=self.chance.random() < 0.3)

    def steps(self) -> None:
        self.gateway.steps(self.chance.choice([1, 2, 4, 10]), pass_s=self.chance.choice([0.01, 0.2, 1.5]))

    def run(self) -> None:
        events: list[Callable[[], None]] = [self.rebuild, self.be_away, self.refuse, self.remove]
        events += [self.delete_topic, self.write, self.write]
        for _ in range(6):
            self.refusing.refuses = self.chance.choice([0.0, 0.1, 0.3, 0.7])
            self.chance.choice(events)()
            self.steps()

    def expected(self) -> dict[int, int]:
        """Return the fold of the newest changelog."""
        rows: dict[bytes, tuple[bytes, bool]] = {}
        for partition in range(PARTITIONS):
            fetched = self.broker.read(self.job.source(partition), 0, 10**6)  # type: ignore[arg-type]
            for record in fetched.records if fetched is not None else ():
                if record.key and record.version is not None and record.version > rows.get(record.key, (b"", False))[0]:
                    rows[record.key] = record.version, record.value is not None
        found = [(key, version) for key, (version, is_row) in rows.items() if is_row]
        return {int.from_bytes(key, "big") - 2**63: int.from_bytes(version[4:], "big") for key, version in found}


@pytest.mark.parametrize("seed", seeds(400, in_check=30))
def test_once_there_is_room_a_gateway_answers_right_again(seed: int) -> None:
    story = Story(seed)
    story.run()
    story.refusing.refuses = 0.0
    story.gateway.seconds(40)
    assert story.gateway.is_served()
    assert story.gateway.state().manifest.generation == story.job.generation
    assert story.gateway.rows() == story.expected()
    assert len(story.gateway.store.store_ids()) == 1


@pytest.mark.parametrize("seed", seeds(60, in_check=4))
def test_once_there_is_room_a_cluster_answers_right_again(seed: int) -> None:
    chance = random.Random(seed)
    world = World(seed, lag=False)
    for _ in range(3):
        member = world.join()
        world.kill(member)
        member.store = refusing = RefusingStore(MemoryStore(), chance)  # type: ignore[assignment]
        world.start(member)
        refusing.refuses = chance.choice([0.0, 0.2])
    for event in (world.rebuild, lambda: world.drain(chance.choice(world.running)), world.join, world.end_old):
        for _ in world.steps(chance.choice([0.5, 3.0, 8.0])):
            pass
        event()
        for member in world.running:
            member.store.refuses = chance.choice([0.0, 0.2, 0.6])  # type: ignore[attr-defined]
    for member in world.running:
        member.store.refuses = 0.0  # type: ignore[attr-defined]
    for _ in world.steps(10.0):
        pass
    world.once_live = set()
    world.settle(90.0)


def test_a_start_on_a_full_disk_serves_what_is_stored() -> None:
    clock = FakeClock()
    broker = MemoryBroker(clock.now_ms)
    broker.create("tables", 1)
    job, gateway = Job(broker).create().publish(), Gateway(broker, clock)
    job.put(range(20))
    gateway.seconds(2)
    stored = gateway.rows()
    gateway.full = True
    gateway.restart()
    job.put(range(5))
    gateway.seconds(10)
    assert gateway.is_served()
    assert gateway.rows() == stored
    gateway.full = False
    gateway.steps(1)
    gateway.seconds(10)
    assert gateway.is_served()
    assert {movie: gateway.rows()[movie] for movie in range(5)} == {movie: 21 + movie for movie in range(5)}


def test_a_table_that_a_full_disk_holds_up_says_so() -> None:
    """Not that it has no manifest, which was so before one came."""
    clock = FakeClock()
    broker = MemoryBroker(clock.now_ms)
    broker.create("tables", 1)
    gateway = Gateway(broker, clock)
    gateway.seconds(2)
    assert "has no manifest" in gateway.table_status().problem
    gateway.full = True
    Job(broker).create().publish().put(range(20))
    gateway.seconds(10)
    assert gateway.table_status().problem == "no room for the batch"
    assert gateway.state().problem == gateway.table_status().problem
    gateway.full = False
    gateway.seconds(10)
    assert gateway.is_served()
    assert gateway.table_status().problem == ""


def test_a_gateway_whose_disk_is_full_is_asked_on() -> None:
    """What is stored is answered, also after records were refused; so the others go on to ask for it."""
    world = World(1, lag=False, replicas=1)
    full, other = world.join(), world.join()
    world.settle()
    answered = full.live()
    assert answered
    refusing = RefusingStore(full.store, world.chance)
    world.kill(full)
    full.store = refusing  # type: ignore[assignment]
    world.start(full)
    world.settle()
    refusing.refuses = 1.0
    world.job.put(range(40))
    world.rebuild()
    for _ in world.steps(GONE_MS / 1_000 + 10):
        assert full.live() == answered
    assert refusing.refused
    [seen] = [each for each in other.status().gateways if each.record.gateway_id == full.name]
    assert seen.alive
    refusing.refuses = 0.0
    world.end_old()
    world.settle()
