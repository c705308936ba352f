"""A stale record that lands last: the owner appends the newest row again, before compaction drops it."""

from collections import Counter

import pytest

from tablegate.gateway.contract.placement import Candidate, wanted
from tablegate.gateway.contract.types import Offset, StoreId, make_version
from tablegate.gateway.replication.replicator import Replicator
from tests.kit.replication.memory_log import MemoryBroker, MemoryLog
from tests.kit.replication.replicator import PARTITIONS, FakeClock, Gateway, Job, key_of, ratings, value_of
from tests.kit.replication.replicators import World
from tests.kit.replication.state_observer import StateObserver
from tests.kit.store.memory import MemoryStore

pytestmark = pytest.mark.tools

GRACE_S = 12.0


class RepairingGateway(Gateway):
    """A gateway with a short grace."""

    def restart(self) -> None:
        self.observer = StateObserver()
        self.replicator = Replicator(
            self.catalogue,
            log=self.log(self.broker),
            store=self.store,
            clock=self.clock,
            on_move=self.observer,
            repair_grace_s=GRACE_S,
        )


@pytest.fixture
def job(job: Job) -> Job:
    return job.publish()


def compact(job: Job) -> None:
    for partition in range(PARTITIONS):
        job.broker.compact(job.source(partition))


def ends(job: Job) -> int:
    facts = job.broker.facts(job.topic)
    assert facts is not None
    return sum(facts.end_offsets)


def restored_rows(broker: MemoryBroker, clock: FakeClock) -> dict[int, int]:
    """Return the rows of a gateway whose store was empty."""
    fresh = RepairingGateway(broker, clock)
    fresh.steps()
    assert fresh.is_served()
    return fresh.rows()


def test_a_stale_record_then_compaction_then_an_empty_store(broker: MemoryBroker, clock: FakeClock, job: Job) -> None:
    gateway = RepairingGateway(broker, clock)
    movies = range(200)
    for round_ in range(3):
        newest = 100 * (round_ + 1)
        deleted = {movie for movie in movies if movie % 5 == round_}
        job.put([movie for movie in movies if movie not in deleted], count=newest)
        job.put(deleted, count=newest, delete=True)
        job.put(movies, count=newest - 50)  # a zombie: it lands last
        gateway.steps()
        gateway.seconds(20 * GRACE_S)
        compact(job)
        expected = {movie: newest for movie in movies if movie not in deleted}
        assert gateway.rows() == expected
        assert restored_rows(broker, clock) == expected
        status = gateway.table_status()
        assert (status.stale_records, status.repaired_records) == (200 * (round_ + 1), 200 * (round_ + 1))
        assert (status.pending_repairs, status.conflicting_records) == (0, 0)


def test_compaction_without_a_repair_keeps_the_stale_record(broker: MemoryBroker, clock: FakeClock, job: Job) -> None:
    """The fault bites: what the other tests prove is the repair's doing."""
    job.put([1, 2], count=9)
    job.put([3], count=9, delete=True)
    job.put([1, 2, 3], count=4)
    compact(job)
    assert restored_rows(broker, clock) == {1: 4, 2: 4, 3: 4}


def test_nothing_is_appended_within_the_grace(broker: MemoryBroker, clock: FakeClock, job: Job) -> None:
    gateway = RepairingGateway(broker, clock)
    job.put([1], count=9)
    job.put([1], count=4)
    gateway.seconds(GRACE_S / 2)
    assert ends(job) == 2
    assert gateway.table_status().pending_repairs == 1


def test_a_newer_row_makes_the_repair_needless(broker: MemoryBroker, clock: FakeClock, job: Job) -> None:
    gateway = RepairingGateway(broker, clock)
    job.put([1], count=9)
    job.put([1], count=4)
    gateway.seconds(GRACE_S / 2)
    job.put([1], count=10)
    gateway.seconds(4 * GRACE_S)
    assert ends(job) == 3
    assert gateway.table_status().pending_repairs == 0


def test_the_same_record_again_makes_the_repair_needless(broker: MemoryBroker, clock: FakeClock, job: Job) -> None:
    gateway = RepairingGateway(broker, clock)
    job.put([1], count=9)
    job.put([1], count=4)
    gateway.seconds(GRACE_S / 2)
    job.put([1], count=9)  # as a job that runs a batch again
    gateway.seconds(4 * GRACE_S)
    assert ends(job) == 3
    status = gateway.table_status()
    assert (status.stale_records, status.pending_repairs, status.conflicting_records) == (1, 0, 0)


def test_a_repair_survives_a_restart(broker: MemoryBroker, clock: FakeClock, job: Job) -> None:
    gateway = RepairingGateway(broker, clock)
    job.put([1], count=9)
    job.put([1], count=4)
    gateway.seconds(GRACE_S / 2)
    gateway.restart()
    gateway.seconds(4 * GRACE_S)
    compact(job)
    assert restored_rows(broker, clock) == {1: 9}


def test_a_repair_is_no_change(broker: MemoryBroker, clock: FakeClock, job: Job) -> None:
    gateway = RepairingGateway(broker, clock)
    gateway.steps()
    job.put([1], count=9)
    job.put([1], count=4)
    gateway.seconds(20 * GRACE_S)
    assert ends(job) == 3
    partition = job.source(0).partition if gateway.position(0).next_offset else job.source(1).partition
    with gateway.store.snapshot() as snapshot:
        store_id, position = StoreId(gateway.state().store_id), gateway.position(partition)
        changes = snapshot.history(store_id, partition, start=position.history_start, limit=9)
    assert [change.version[-1] for change in changes] == [9]


def test_one_version_with_two_contents_is_an_alarm(
    broker: MemoryBroker, clock: FakeClock, job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = RepairingGateway(broker, clock)
    job.put([1], count=9)
    [(source, written)] = [
        (job.source(number), fetched.records)
        for number in range(PARTITIONS)
        if (fetched := broker.read(job.source(number), Offset(0), 9)) is not None and fetched.records
    ]
    version = written[0].version
    for count in (7, 8):
        broker.append(source, key_of(1), value_of(1, count), version=version)
    gateway.seconds(20 * GRACE_S)
    assert gateway.rows() == {1: 9}
    status = gateway.table_status()
    assert (status.conflicting_records, status.pending_repairs) == (2, 0)
    assert len([line for line in caplog.messages if "other content" in line]) == 1
    compact(job)
    assert restored_rows(broker, clock) == {1: 9}


class ReadOnlyLog(MemoryLog):
    """A client that may not write to changelogs."""

    refuses_repeats = "Broker: Topic authorization failed"


def test_a_refused_repair_is_told_and_all_else_goes_on(broker: MemoryBroker, clock: FakeClock, job: Job) -> None:
    gateway = RepairingGateway(broker, clock, log=ReadOnlyLog)
    job.put([1], count=9)
    job.put([1], count=4)
    gateway.seconds(4 * GRACE_S)
    status = gateway.table_status()
    assert (status.pending_repairs, status.repaired_records) == (1, 0)
    assert "Topic authorization failed" in status.repair_problem
    job.put([2], count=1)
    gateway.seconds(1)
    assert gateway.rows() == {1: 9, 2: 1}
    gateway.log = MemoryLog
    gateway.restart()
    gateway.seconds(4 * GRACE_S)
    status = gateway.table_status()
    assert (status.pending_repairs, status.repaired_records, status.repair_problem) == (0, 1, "")


def test_a_winner_that_is_gone_already_is_told(broker: MemoryBroker, clock: FakeClock, job: Job) -> None:
    gateway = RepairingGateway(broker, clock)
    job.put([1], count=9)
    job.put([1], count=4)
    gateway.seconds(GRACE_S / 2)
    compact(job)  # far too early
    gateway.seconds(4 * GRACE_S)
    status = gateway.table_status()
    assert (status.pending_repairs, status.repaired_records) == (1, 0)
    assert "gone from the changelog" in status.repair_problem
    assert gateway.rows() == {1: 9}


def test_a_final_generation_is_not_repaired(broker: MemoryBroker, clock: FakeClock, job: Job) -> None:
    gateway = RepairingGateway(broker, clock)
    job.put([1], count=9)
    job.put([1], count=4)
    job.mark_all({0: 1, 1: 1}, final=True)
    gateway.seconds(10 * GRACE_S)
    assert ends(job) == 2 + PARTITIONS


def test_of_several_gateways_the_owner_repairs() -> None:
    world = World(7, lag=False, repair_grace_s=GRACE_S)
    for _ in range(3):
        world.join()
    world.settle()
    world.job.put(range(40), count=10_000)
    world.job.put(range(40), count=5_000)
    before = [list(member.status().tables) for member in world.running]
    assert all(table.repaired_records == 0 for tables in before for table in tables)
    _let_pass(world, 20 * GRACE_S)
    candidates = [Candidate(member.name, member.zone) for member in world.members]
    partitions = [ratings().partition_of(key_of(movie), world.partitions) for movie in range(40)]
    owners = Counter(wanted("ratings", partition, candidates, 1)[0].gateway_id for partition in partitions)
    repaired = Counter({member.name: member.status().tables[0].repaired_records for member in world.running})
    assert repaired == owners
    assert len(owners) > 1
    for partition in range(world.partitions):
        world.broker.compact(world.job.source(partition))
    for member in world.running:
        world.kill(member, wipe=True)
    for member in world.members:
        world.start(member)
    world.deaths = 3
    _let_pass(world, 10.0)
    live = [(member, number) for member in world.running for number in sorted(member.live())]
    assert {number for _, number in live} == set(range(world.partitions))
    counts = {
        member.catalogue.tables["ratings"].row_class.FromString(row).rating_count  # type: ignore[attr-defined]
        for member, number in live
        for row in member.rows(number).values()
    }
    assert counts == {10_000}


def test_where_the_owner_does_not_repair_another_one_does() -> None:
    world, full = World(7, lag=False, repair_grace_s=GRACE_S), False
    member = world.join()
    world.kill(member)
    member.store = MemoryStore(free_bytes=lambda: 0 if full else 1)
    world.start(member)
    world.join()
    world.settle()
    full = True  # it is LIVE, and beats; but of what comes it stores nothing, not even that a repair is pending
    world.job.put(range(40), count=10_000)
    world.job.put(range(40), count=5_000)
    _let_pass(world, 4 * GRACE_S)
    owned = world.members[1].status().tables[0].pending_repairs
    assert 0 < owned < 40
    _let_pass(world, 16 * GRACE_S)
    assert world.members[1].status().tables[0].pending_repairs == 0
    sources = [world.job.source(partition) for partition in range(world.partitions)]
    for source in sources:
        world.broker.compact(source)
    found = [world.broker.read(source, Offset(0), 10**6) for source in sources]
    versions = [record.version for fetched in found if fetched is not None for record in fetched.records if record.key]
    assert versions == [make_version(1, 10_000)] * 40


def _let_pass(world: World, seconds: float) -> None:
    """Let time pass, in which the job writes nothing."""
    until_s = world.clock.passed_s + seconds
    while world.clock.passed_s < until_s:
        world.clock.passed_s += 0.1
        for member in world.running:
            world.step(member)
