"""A world of one seed: brokers, a job, gateways and clients on one clock, and what happens to them.

    story = Story()
    simulate(7, story=story)      # raises GuaranteeBroken, which names the promise that was not kept

First the gateways come up, then things happen for a while (`faults.py`), then nothing happens any more and everything
has to become as it should be (`settle`). The same seed gives the same world in any process.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tablegate.gateway.kafka.log import TopicPartition
from tablegate.gateway.telemetry.measures import Measures
from tests.kit.replication.replicator import FakeClock
from tests.kit.store.snapshot_files import MemoryFiles
from tests.kit.world import contracts
from tests.kit.world.broker import WorldBroker
from tests.kit.world.checker import Checker, Guarantee, GuaranteeBroken, Stated, TrueLog
from tests.kit.world.clients import (
    SERVICE,
    Browser,
    Client,
    Finder,
    Reader,
    Scanner,
    Seeker,
    Session,
    Subscriber,
    Walker,
    batch_rows,
    check_by_count,
    stated_by,
)
from tests.kit.world.gateway import Answered, WorldGateway
from tests.kit.world.job import Events, WorldJob
from tests.kit.world.loop import StillLoop
from tests.kit.world.stores import Disk

KEYS = 20
NEAR = 12  # lines of the story beside a broken guarantee
STEPS_UP = 24
SETTLE_S = 90.0


class Story:
    """What happened, line by line. Without `keeps_all` only the last lines are kept."""

    def __init__(self, *, keeps_all: bool = False) -> None:
        self.lines: list[str] = []
        self._keeps_all = keeps_all

    def add(self, line: str) -> None:
        """Add a line."""
        self.lines.append(line)

    def sort_from(self, first: int) -> None:
        """Order the lines from `first` on by who did what: in one moment clients are served in no order."""
        self.lines[first:] = sorted(self.lines[first:], key=lambda line: line.partition(":")[0])
        if not self._keeps_all and len(self.lines) > 4 * NEAR:
            del self.lines[: 2 * NEAR]


class World:
    """Everything of one seed. `is_calm`: nothing happens any more but time."""

    def __init__(
        self,
        seed: int,
        loop: StillLoop,
        clock: FakeClock,
        story: Story,
        *,
        gateways: int,
        partitions: int,
        replicas: int,
        directory: Path | None,
    ) -> None:
        self.seed = seed
        self.loop = loop
        self.clock = clock
        self.story = story
        self.keys = KEYS
        self.replicas = replicas
        self.is_calm = False
        self.bites: Counter[str] = Counter()  # faults by kind, and what else has to happen in some world
        self.rates: dict[str, float] = {}  # of writes, by outcome
        self.lag_rate = 0.0
        self.is_job_away = False
        self.has_odd_records = False
        self.chance = random.Random(f"{seed}-world")
        self.job_chance = random.Random(f"{seed}-job")
        self._disk_chance = random.Random(f"{seed}-disk")
        self._lag_chance = random.Random(f"{seed}-lag")
        self.log = TrueLog()
        self.checker = Checker(self.log)
        self._by_count: dict[str, Any] = {}  # answers of gateways by the index, when all was settled
        self.broker = WorldBroker(clock, self.log)
        self.broker.create("tables", 1)
        self.events = Events()
        self.jobs = [WorldJob(1, self.events, self.broker, self.log, partitions)]
        self.job.publish()
        self.catalogue = contracts.indexed()
        contract_chance = random.Random(f"{seed}-contract")
        self.files = MemoryFiles(read_bytes=100)
        self.measures = Measures()  # of all gateways together
        self.gateways: dict[str, WorldGateway] = {}
        for number in range(gateways):
            name = f"g{number}"
            self.gateways[name] = gateway = WorldGateway(
                name,
                catalogue=contract_chance.choice([contracts.plain(), contracts.indexed()]),
                broker=self.broker,
                clock=clock,
                gateways=self.gateways,
                replicas=replicas,
                disk=Disk(None if directory is None else directory / name),
                loop=loop,
                files=self.files,
                measures=self.measures,
                bites=self.bites,
            )
            gateway.disk.outcome = self._outcome
        self.subscribers = [Subscriber(f"subscriber-{each}", self, self._client_chance(each)) for each in range(2)]
        self.clients: Sequence[Client] = [
            Session("session-one", self, self._client_chance("one"), [3]),
            Session("session-few", self, self._client_chance("few"), [1, 4, 7, 12, 19]),
            Reader("reader", self, self._client_chance("reader")),
            Reader("reader-too", self, self._client_chance("reader-too")),
            Walker("walker", self, self._client_chance("walker")),
            Finder("finder", self, self._client_chance("finder")),
            Browser("browser", self, self._client_chance("browser")),
            Seeker("seeker", self, self._client_chance("seeker")),
            Scanner("scanner", self, self._client_chance("scanner")),
            *self.subscribers,
        ]

    def _client_chance(self, name: object) -> random.Random:
        return random.Random(f"{self.seed}-client-{name}")

    # What clients and faults ask it.

    @property
    def job(self) -> WorldJob:
        """Return the job of the newest generation."""
        return self.jobs[-1]

    @property
    def partitions(self) -> int:
        """Return the number of partitions of the newest generation."""
        return self.job.partitions

    def record(self, text: str) -> None:
        """Add to the story."""
        self.story.add(f"{self.clock.passed_s:10.2f} s  {text}")

    def request(self, method: str, **fields: Any) -> bytes:
        """Return the bytes of a request."""
        query: Any = self.catalogue.queries[f"{SERVICE}/{method}"]
        return bytes(query.request_class(**fields).SerializeToString())

    def response(self, method: str, data: bytes) -> Any:
        """Return a response."""
        query: Any = self.catalogue.queries[f"{SERVICE}/{method}"]
        return query.response_class.FromString(data)

    def ends(self) -> Mapping[tuple[int, int], int]:
        """Return where the changelogs end now, but for those that are over."""
        return {
            (job.generation, partition): self.log.end(job.generation, partition)
            for job in self.jobs
            for partition in range(job.partitions)
            if not job.is_finished
        }

    def written(self, key: int) -> int | None:
        """Return the newest event of a key that its writer knows of; None where there is none."""
        found = [number for number, (each, _) in enumerate(self.events.keys, start=1) if each == key]
        return found[-1] if found else None

    def sources(self) -> list[TopicPartition]:
        """Return the partitions of the newest changelog."""
        return [self.job.source(partition) for partition in range(self.partitions)]

    def _outcome(self, write: str) -> Any:
        if not self.rates:
            return "done"
        drawn = self._disk_chance.random()
        for outcome, rate in self.rates.items():
            drawn -= rate
            if drawn < 0:
                self.bites[f"write {outcome}"] += 1
                self.record(f"a write ({write}) is {outcome}")
                return outcome
        return "done"

    # Time.

    def work(self) -> None:
        """Let the job do some work."""
        if self.broker.is_up and not self.is_job_away and self.job_chance.random() < 0.35:
            for _ in range(self.job_chance.randint(1, 4)):
                self.events.add(self.job_chance.randrange(KEYS), deletes=self.job_chance.random() < 0.25)
            for job in self.jobs:
                if not job.is_finished:
                    job.work(self.job_chance.randint(1, 9), with_markers=self.job_chance.random() < 0.7)

    def step(self, seconds: float) -> None:
        """Let time pass, and everybody do something."""
        self.clock.passed_s += seconds
        order = list(self.gateways.values())
        self.chance.shuffle(order)
        for gateway in order:
            if self.lag_rate and self._lag_chance.random() < self.lag_rate:
                gateway.log.lags_until_s = self.clock.passed_s + self._lag_chance.uniform(0.1, 1.5)
            ended = gateway.step()
            if ended:
                self.record(f"{gateway.name}: its replicator ends: {ended}")
            self._turn()
        for client in self.clients:
            client.tick()
        self._turn()
        for client in self.clients:
            client.check_now()

    def _turn(self) -> None:
        first = len(self.story.lines)
        self.loop.turn()
        self.story.sort_from(first)

    def run(self, steps: int) -> None:
        """Let so many moments pass, with work."""
        for _ in range(steps):
            self.work()
            self.step(self.chance.uniform(0.03, 0.35))

    def hours(self, hours: int) -> None:
        """Let hours pass, in each of which a little happens."""
        for _ in range(0, hours, 2):
            self.clock.passed_s += 7_200.0
            self.run(8)

    # The end.

    def calm_down(self) -> None:
        """End all that was done to anybody."""
        self.is_calm = True
        self.rates.clear()
        self.lag_rate = 0.0
        self.is_job_away = False
        self.broker.is_up = True
        self.files.is_away = self.files.is_full = False
        self.broker.clock.skew_ms = 0
        for gateway in self.gateways.values():
            gateway.disk.is_full = gateway.is_frozen = gateway.log.is_cut = False
            gateway.log.lags_until_s = 0.0
            gateway.clock.skew_ms = 0
            gateway.unreachable.clear()
            if gateway.is_up and (gateway.is_draining or gateway.catalogue is not self.catalogue):
                gateway.kill()
            gateway.catalogue = self.catalogue
            if not gateway.is_up:
                gateway.start()
        for job in self.jobs:
            job.work(10**6)
        self.hand_over()
        self.record("nothing happens any more")

    def hand_over(self) -> None:
        """End the generations before the newest one."""
        for job in self.jobs[:-1]:
            if not job.is_finished:
                job.work(10**6)
                job.finish()
                self.record(f"the job ends generation {job.generation}")
        self.job.work(10**6)

    def settle(self) -> None:
        """Let everything become as it should be; raise where it does not."""
        self.calm_down()
        until_s = self.clock.passed_s + SETTLE_S
        why: GuaranteeBroken | None = None
        while self.clock.passed_s < until_s:
            for _ in range(8):
                self.step(0.25)
            why = self.why_not_settled()
            if why is None:
                break
        if why is not None:
            raise why
        self.checker.is_settled = True
        for name in self.gateways:
            stated, rows = self._table_of(name)
            self.checker.rows(stated, range(KEYS), rows, f"the table at {name}")
            check_by_count(self.checker, self._by_count[name], self.keys, f"the index at {name}", descending=False)

    def why_not_settled(self) -> GuaranteeBroken | None:
        """Return what is not as it should be once nothing happens any more."""
        for name, gateway in self.gateways.items():
            answered = self._all_of(name)
            if answered.error is not None:
                is_odd = bool(gateway.last_error)
                why = gateway.last_error or answered.error.message
                guarantee = Guarantee.MALFORMED if is_odd else Guarantee.STAYS_UP
                return GuaranteeBroken(guarantee, f"{name} does not answer for good: {why}")
            stated = stated_by(answered.message.read_info)
            if stated.generation != self.job.generation:
                text = f"{name} answers from generation {stated.generation}, not {self.job.generation}"
                return GuaranteeBroken(Guarantee.STAYS_UP, text)
            for partition in range(self.partitions):
                end = self.log.end(self.job.generation, partition)
                if stated.positions.get(partition) != end:
                    text = f"{name} stays at {partition}@{stated.positions.get(partition)}; the changelog ends at {end}"
                    return GuaranteeBroken(Guarantee.CONVERGENCE, text)
            found = self._await(self.gateways[name], "ListRatingsByCount", page_size=1_000)
            if found.error is not None:
                text = f"{name} does not answer by its index: {found.error.message}"
                return GuaranteeBroken(Guarantee.STAYS_UP, text)
            # Not asked again: a partition may come to a gateway in between that has a newer contract, and builds yet.
            self._by_count[name] = found.message
        for subscriber in self.subscribers:
            if not subscriber.copy.is_current or subscriber.stated is None:
                return GuaranteeBroken(Guarantee.WHOLE, f"the copy of {subscriber.name} does not become current")
            ends = {number: self.log.end(self.job.generation, number) for number in range(self.partitions)}
            if subscriber.stated.positions != ends:
                return GuaranteeBroken(Guarantee.WHOLE, f"the copy of {subscriber.name} stays behind")
        return None

    def _all_of(self, name: str) -> Answered:
        return self._await(self.gateways[name], "BatchGetRatings", keys=[{"movie_id": key} for key in range(KEYS)])

    def _await(self, gateway: WorldGateway, method: str, **fields: Any) -> Answered:
        """Return how a call ends."""
        query: Any = self.catalogue.queries[f"{SERVICE}/{method}"]
        request = query.request_class(**fields)
        task = self.loop.create_task(gateway.ask(query.path, request, query.response_class))
        for _ in range(12):
            self.loop.turn()
            if task.done():
                return task.result()
            self.step(0.25)
        task.cancel()
        self.loop.turn()
        raise GuaranteeBroken(Guarantee.STAYS_UP, f"{gateway.name} neither answers nor refuses")

    def _table_of(self, name: str) -> tuple[Stated, Mapping[int, int]]:
        answered = self._all_of(name)
        assert answered.error is None, answered.error
        return stated_by(answered.message.read_info), batch_rows(answered.message)

    def close(self) -> None:
        """End everything."""
        for client in self.clients:
            task = self.loop.create_task(client.close())
            self.loop.turn()
            if task.done() and not task.cancelled():
                task.exception()
        for gateway in self.gateways.values():
            gateway.kill()
        self.loop.turn()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        for gateway in self.gateways.values():
            gateway.disk.close()


def near(story: Story) -> str:
    """Return the last lines of a story."""
    return "\n".join(story.lines[-NEAR:])


def with_story(broken: GuaranteeBroken, seed: int, story: Story) -> GuaranteeBroken:
    """Return the error with its seed, and what happened before."""
    text = f"{broken.text}\n\nseed {seed}; make simulate SEED={seed} tells it all. Before it:\n{near(story)}"
    return GuaranteeBroken(broken.guarantee, text)
