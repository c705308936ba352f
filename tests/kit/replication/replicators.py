"""Several replicators over one broker and one clock, and what may happen to them; all from one seed."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from typing_extensions import override

from tablegate.gateway.cluster.membership import Membership
from tablegate.gateway.contract.catalogue import Catalogue, Partitioner, Table
from tablegate.gateway.contract.placement import Candidate, wanted
from tablegate.gateway.contract.types import Partition, StoreId
from tablegate.gateway.kafka.log import Fetched, TopicPartition
from tablegate.gateway.replication.manifests import problem_of
from tablegate.gateway.replication.repair import REPAIR_GRACE_S
from tablegate.gateway.replication.replicator import Replicator
from tablegate.gateway.replication.snapshots import SnapshotSource
from tablegate.gateway.replication.transfers import TransferClient
from tablegate.gateway.stores.base import Phase, Position, StoreWriter
from tablegate.gateway.telemetry.measures import Measures
from tablegate.internal.v1.store_pb2 import TableState
from tablegate.v1.changelog_pb2 import Manifest
from tablegate.v1.status_pb2 import GetStatusResponse
from tests.kit.replication.memory_log import MemoryBroker, MemoryLog
from tests.kit.replication.replicator import FakeClock, Job
from tests.kit.replication.state_observer import StateObserver
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import catalogue_of


class LaggingLog(MemoryLog):
    """A client that now and then gets nothing for a while."""

    def __init__(self, broker: MemoryBroker, clock: FakeClock, chance: random.Random) -> None:
        super().__init__(broker)
        self._clock = clock
        self._chance = chance
        self._until_s = 0.0

    @override
    def fetch(self, *, records_max: int, timeout_s: float) -> list[Fetched]:
        if self._clock.passed_s < self._until_s:
            return []
        if self._chance.random() < 0.05:
            self._until_s = self._clock.passed_s + self._chance.uniform(0.1, 1.2)
        return super().fetch(records_max=self._chance.choice([3, 50, records_max]), timeout_s=timeout_s)


class SlowLog(MemoryLog):
    """A client that gets a few records at a time."""

    @override
    def fetch(self, *, records_max: int, timeout_s: float) -> list[Fetched]:
        return super().fetch(records_max=4, timeout_s=timeout_s)


@dataclass
class Member:
    """A gateway of the world. `replicator` is None while it does not run."""

    name: str
    zone: str
    store: StoreWriter = field(default_factory=MemoryStore)
    replicator: Replicator | None = None
    observer: StateObserver = field(default_factory=StateObserver)  # of this start
    is_draining: bool = False
    catalogue: Catalogue = field(default_factory=catalogue_of)

    def agrees_with(self, manifest: Manifest) -> bool:
        """Return whether its contract is that of a manifest."""
        return problem_of(self.catalogue.tables["ratings"], manifest) is None

    def state(self) -> TableState:
        with self.store.snapshot() as snapshot:
            return snapshot.table("ratings") or TableState()

    def positions(self) -> dict[int, Position]:
        """Return the positions of the partitions that it has."""
        with self.store.snapshot() as snapshot:
            state = snapshot.table("ratings")
            if state is None or state.problem:
                return {}
            numbers = map(Partition, range(state.manifest.partition_count))
            found = {number: snapshot.position(StoreId(state.store_id), number) for number in numbers}
        return {int(number): position for number, position in found.items() if position is not None}

    def live(self) -> set[int]:
        """Return the partitions that it would answer from."""
        if self.replicator is None:
            return set()
        return {number for number, position in self.positions().items() if position.phase is Phase.LIVE}

    def held(self) -> set[int]:
        """Return the partitions of which it has a position."""
        return set(self.positions())

    def rows(self, partition: int) -> dict[bytes, bytes]:
        with self.store.snapshot() as snapshot:
            store_id = StoreId(self.state().store_id)
            return dict(snapshot.range(store_id, Partition(partition), start=b"", end=None, limit=10_000))

    def status(self) -> GetStatusResponse:
        with self.store.snapshot() as snapshot:
            return GetStatusResponse.FromString(snapshot.status())


class World:
    """Gateways, a job that writes, and time."""

    def __init__(
        self,
        seed: int,
        *,
        partitions: int = 5,
        replicas: int = 2,
        zones: int = 1,
        lag: bool = True,
        repair_grace_s: float = REPAIR_GRACE_S,
    ) -> None:
        self.chance = random.Random(seed)
        self.clock = FakeClock()
        self.broker = MemoryBroker(self.clock.now_ms)
        self.broker.create("tables", 1)
        self.job = Job(self.broker, partitions=partitions).create().publish()
        self.manifest = self.job.manifest()  # the newest
        self.job.put(range(40))
        self.partitions = partitions
        self.replicas = replicas
        self.members: list[Member] = []
        self.once_live: set[int] = set()
        self._live: dict[str, set[int]] = {}  # as of each gateway's last step
        self.deaths = 0  # since all was well
        self.ended: Job | None = None  # the job of the generation before, until its last markers
        self.log: type[MemoryLog] = MemoryLog  # of those that do not lag
        self.stores: dict[str, StoreWriter] = {}  # by name of the gateway, while it runs
        self.transfers: TransferClient | None = None  # by which gateways that start from now on ask for rows
        self.transfer_offsets_min = 1
        self.snapshots: SnapshotSource | None = None  # that gateways restore from which start from now on
        self.measures = Measures()  # of all gateways together
        self._zones = zones
        self._repair_grace_s = repair_grace_s
        self._lag = lag
        self._starts = 0

    # What may happen.

    def join(self, catalogue: Catalogue | None = None) -> Member:
        number = len(self.members)
        zone = f"z{number % self._zones}" if self._zones > 1 else ""
        member = Member(f"gw-{number}", zone, catalogue=catalogue or catalogue_of())
        self.members.append(member)
        self.start(member)
        return member

    def start(self, member: Member) -> None:
        self._starts += 1
        self._live[member.name] = set()
        member.is_draining = False
        log = LaggingLog(self.broker, self.clock, self.chance) if self._lag else self.log(self.broker)
        member.observer = StateObserver()
        member.replicator = Replicator(
            member.catalogue,
            log=log,
            store=member.store,
            clock=self.clock,
            membership=Membership(
                gateway_id=member.name, endpoint=f"{member.name}:1", zone=member.zone, replicas=self.replicas
            ),
            start_id=self._starts,
            repair_grace_s=self._repair_grace_s,
            on_move=member.observer,
            transfers=self.transfers,
            transfer_offsets_min=self.transfer_offsets_min,
            snapshots=self.snapshots,
            measures=self.measures,
        )
        self.stores[member.name] = member.store

    def kill(self, member: Member, *, wipe: bool = False) -> None:
        self.deaths += bool(member.held())
        member.replicator = None
        self.stores.pop(member.name, None)
        self._live[member.name] = set()
        if wipe:
            member.store = MemoryStore()

    def stop(self, member: Member) -> None:
        assert member.replicator is not None
        member.replicator.close()
        self.kill(member)

    def drain(self, member: Member) -> None:
        assert member.replicator is not None
        member.is_draining = True
        member.replicator.drain()

    def rebuild(self, table: Table | None = None, *, is_wrong: bool = False) -> None:
        """Publish the next generation, which is made of all that the present one was made of, and some rows more.

        `table`: that of its contract, where it is another one. `is_wrong`: the manifest is wrong, and the rows are not.
        """
        self.ended = self.job
        self.job = Job(
            self.broker, generation=self.job.generation + 1, sequence=self.job.sequence, partitions=self.partitions
        ).create()
        if table is not None and not is_wrong:
            self.job.table = table
        self.job.put(range(50))
        self.manifest = self.job.manifest() if table is None else manifest_of(self.job, table)
        self.job.publish(self.manifest)

    def end_old(self) -> None:
        """Write the last markers of the generation before; the present one is a little further by then."""
        if self.ended is not None:
            self.ended.mark_all({0: 10, 1: 10}, final=True)
            self.job.mark_all({0: 11, 1: 11})
            self.ended = None

    # Time.

    @property
    def running(self) -> list[Member]:
        return [member for member in self.members if member.replicator is not None]

    def steps(self, seconds: float) -> Iterator[None]:
        """Let time pass, with all gateways in any order; yield after each step."""
        until_s = self.clock.passed_s + seconds
        while self.clock.passed_s < until_s:
            self.clock.passed_s += self.chance.uniform(0.02, 0.3)
            if self.broker.is_up and self.chance.random() < 0.3:
                self.job.put(self.chance.choices(range(40), k=3), delete=self.chance.random() < 0.2)
            running = self.running
            self.chance.shuffle(running)
            for member in running:
                self.step(member)
                yield

    def pass_time(self, *members: Member) -> None:
        """Let half a minute pass in which no job writes."""
        for _ in range(600):
            self.clock.passed_s += 0.05
            for member in members:
                self.step(member)

    def step(self, member: Member) -> None:
        """Let one gateway do what it does next."""
        assert member.replicator is not None
        member.replicator.step(poll_s=0)
        member.observer.check(member.replicator, member.store)
        self._live[member.name] = member.live()

    def run(self, seconds: float) -> None:
        """Let time pass, and hold everybody to what must hold at any moment."""
        for _ in self.steps(seconds):
            self.check()

    def ever_held(self, seconds: float) -> dict[str, set[int]]:
        """Let time pass; return which partitions each gateway has had meanwhile."""
        ever: dict[str, set[int]] = {member.name: set() for member in self.members}
        for _ in self.steps(seconds):
            for member in self.members:
                ever[member.name] |= member.held()
        return ever

    def check(self) -> None:
        """A partition that was answered by somebody is, unless too many died."""
        live = set().union(*(self._live[member.name] for member in self.running))
        self.once_live |= live
        lost = self.once_live - live
        if self.deaths < max(1, self.replicas):
            assert not lost, f"partitions {lost} are answered by nobody at {self.clock.passed_s:.1f} s"
        else:
            self.once_live = live  # it begins anew

    def served(self) -> set[int]:
        """Return the generations that rows are answered from."""
        return {member.state().manifest.generation for member in self.running if self._live[member.name]}

    def wanted(self, partition: int) -> set[str]:
        able = [each for each in self.running if not each.is_draining and each.agrees_with(self.manifest)]
        candidates = [Candidate(each.name, each.zone) for each in able]
        return {each.gateway_id for each in wanted("ratings", Partition(partition), candidates, self.replicas)}

    def why_not_quiet(self) -> str | None:
        """Return what is not as it should be when nothing happens any more."""
        able = [member for member in self.running if member.agrees_with(self.manifest)]
        generations = {member.name: member.state().manifest.generation for member in able}
        if set(generations.values()) - {self.job.generation}:
            return f"generation {self.job.generation} is there, but they answer from {generations}"
        for partition in range(self.partitions):
            wanted = self.wanted(partition)
            live = {member.name for member in self.running if partition in member.live()}
            held = {member.name for member in self.running if partition in member.held()}
            if wanted and (live != wanted or held != wanted):
                return f"partition {partition} is on {held}, live on {live}, wanted on {wanted}"
            source = TopicPartition(self.job.topic, Partition(partition))
            keys = self.keys(source)
            for member in self.running:
                rows = set(member.rows(partition))
                if rows != (keys if member.name in live else set()):
                    return f"{member.name} has other rows of partition {partition}"
        return None

    def keys(self, source: TopicPartition, end: int = 10**9) -> set[bytes | None]:
        """Return the keys that a changelog has rows of, as of an offset."""
        facts = self.broker.facts(source.topic)
        assert facts is not None
        expected = {
            record.key: record.value is not None
            for record in (self.broker.read(source, facts.start_offsets[source.partition], 10**9) or _NONE).records
            if record.offset < end
        }
        return {key for key, is_row in expected.items() if is_row and key}  # a marker has an empty key

    def settle(self, seconds: float = 60.0) -> None:
        """Let nothing happen until all is as it should be."""
        for _ in range(round(seconds / 2)):
            self.run(2.0)
            self._write_nothing_for_a_moment()
            if self.why_not_quiet() is None:
                self.deaths = 0
                return
        raise AssertionError(self.why_not_quiet())

    def _write_nothing_for_a_moment(self) -> None:
        for _ in range(30):
            self.clock.passed_s += 0.1
            for member in self.running:
                self.step(member)
                self.check()


def manifest_of(job: Job, table: Table) -> Manifest:
    """Return the manifest of a job whose contract is that of `table`."""
    return job.manifest(contract_fingerprint=table.fingerprint, partitioner=table.partitioner.value)


def another_contract() -> Catalogue:
    """Return a catalogue that does not agree with manifests of the job: it partitions in another way."""
    catalogue = catalogue_of()
    table = catalogue.tables["ratings"]
    [other] = set(Partitioner) - {table.partitioner}
    return replace(catalogue, tables={"ratings": replace(table, partitioner=other)})


_NONE = Fetched(TopicPartition("", Partition(0)), [], 0)  # type: ignore[arg-type]
