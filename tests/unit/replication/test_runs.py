"""A job that was frozen, and writes after another one has gone on: nothing of it counts."""

from collections.abc import Sequence

import pytest

from tablegate.gateway.contract.types import RUN_BYTES, Partition, StoreId, make_version
from tablegate.gateway.replication.records import RUN_AT
from tablegate.gateway.replication.replicator import Replicator
from tablegate.gateway.server.job_progress import job_statuses
from tablegate.gateway.stores.base import Applied, Change, Phase, Position
from tests.kit.replication.memory_log import MemoryBroker
from tests.kit.replication.replicator import PARTITIONS, FakeClock, Gateway, Job, key_of, value_of
from tests.kit.store.memory import MemoryStore

MOVIES = range(6)
GRACE_S = 30.0


@pytest.fixture
def job(broker: MemoryBroker) -> Job:
    return Job(broker, run=5).create().publish()


class RepairingGateway(Gateway):
    """A gateway that soon appends its newest records again."""

    def restart(self) -> None:
        super().restart()
        log = self.log(self.broker)
        self.replicator = Replicator(
            self.catalogue, log=log, store=self.store, clock=self.clock, on_move=self.observer, repair_grace_s=GRACE_S
        )


@pytest.fixture
def gateway(broker: MemoryBroker, clock: FakeClock) -> Gateway:
    return RepairingGateway(broker, clock)


def replace_run(job: Job, run: int) -> Job:
    """Let another run go on with the table."""
    other = Job(job.broker, topic_id=job.topic_id)
    other.begin_run(run)
    return other


def test_the_status_has_the_time_of_the_newest_marker(job: Job, gateway: Gateway) -> None:
    job.put(MOVIES, count=10)
    gateway.seconds(5)
    assert not any(each.HasField("marker_time") for each in gateway.table_status().partitions), "a row is no marker"
    job.mark_all({0: 10, 1: 7})
    gateway.seconds(5)
    marked = [each.marker_time.ToMilliseconds() for each in gateway.table_status().partitions]
    assert all(marked)
    job.put(MOVIES, count=11)
    gateway.seconds(5)
    assert [each.marker_time.ToMilliseconds() for each in gateway.table_status().partitions] == marked


def test_the_status_has_what_every_partition_has_reached(job: Job, gateway: Gateway) -> None:
    job.mark_all({0: 10, 1: 7})
    job.mark(1, {0: 15, 1: 9})
    gateway.seconds(5)
    with gateway.store.snapshot() as snapshot:
        [status] = job_statuses(snapshot, ["ratings", "unknown"])
    assert (status.table, status.run) == ("ratings", 5)
    [reached] = status.reached
    assert (reached.topic, dict(reached.next_offsets)) == ("ratings", {0: 10, 1: 7})


def test_rows_of_a_frozen_job_are_not_shown(job: Job, gateway: Gateway) -> None:
    job.put(MOVIES, count=10)
    other = replace_run(job, 9)
    other.put([0], count=12)
    gateway.steps()
    job.put([0, 1], count=20)  # a higher version of what is there
    job.put([77], count=1)  # and a key that is not
    job.put([2], delete=True, count=21)
    gateway.steps()
    assert gateway.rows() == {**dict.fromkeys(MOVIES, 10), 0: 12}
    other.put([0, 1, 77], count=13)
    gateway.steps()
    assert gateway.rows() == {**dict.fromkeys(MOVIES, 10), 0: 13, 1: 13, 77: 13}


def test_markers_of_a_frozen_job_move_nothing(job: Job, gateway: Gateway) -> None:
    job.mark_all({0: 10})
    other = replace_run(job, 9)
    job.mark_all({0: 99})
    job.mark_all({0: 99}, final=True)
    gateway.steps()
    other.put(MOVIES)
    gateway.steps()
    for partition in range(PARTITIONS):
        assert gateway.position(partition).source_offsets == {("ratings", 0): 10, RUN_AT: 9}
        assert not gateway.position(partition).is_final
    assert len(gateway.rows()) == len(MOVIES)


def test_a_run_that_begins_behind_a_later_one_is_none(job: Job, gateway: Gateway) -> None:
    job.put(MOVIES, count=10)
    frozen = Job(job.broker, topic_id=job.topic_id)
    other = replace_run(job, 9)
    frozen.begin_run(7)
    frozen.put(MOVIES, count=20)
    other.put([0], count=12)
    gateway.steps()
    assert gateway.rows() == {**dict.fromkeys(MOVIES, 10), 0: 12}
    assert {gateway.position(partition).source_offsets[RUN_AT] for partition in range(PARTITIONS)} == {9}


def test_run_is_known_after_a_restart(job: Job, gateway: Gateway) -> None:
    job.put(MOVIES, count=10)
    replace_run(job, 9)
    gateway.steps()
    gateway.restart()
    job.put(MOVIES, count=20)
    gateway.steps()
    assert gateway.rows() == dict.fromkeys(MOVIES, 10)


def test_run_is_known_by_its_rows_alone(job: Job, gateway: Gateway) -> None:
    Job(job.broker, topic_id=job.topic_id, run=9).put(MOVIES, count=10)
    job.put(MOVIES, count=20)
    gateway.steps()
    assert gateway.rows() == dict.fromkeys(MOVIES, 10)


def test_row_without_a_run_counts(job: Job, gateway: Gateway) -> None:
    job.put(MOVIES, count=10)
    Job(job.broker, topic_id=job.topic_id).put(MOVIES, count=20)
    gateway.steps()
    assert gateway.rows() == dict.fromkeys(MOVIES, 20)


def test_compaction_leaves_no_row_of_a_frozen_job(job: Job, gateway: Gateway) -> None:
    other = replace_run(job, 9)
    other.put(MOVIES, count=10)
    job.put(MOVIES, count=20)
    gateway.steps()
    gateway.seconds(20 * GRACE_S)
    for partition in range(PARTITIONS):
        job.broker.compact(job.source(partition))
    restored = Gateway(job.broker, gateway.clock)
    restored.steps()
    assert restored.is_served()
    assert restored.rows() == dict.fromkeys(MOVIES, 10)


def test_a_restore_between_compactions_keeps_no_row_of_a_frozen_job(job: Job, gateway: Gateway) -> None:
    other = replace_run(job, 9)
    source = job.source(job.table.partition_of(key_of(0), PARTITIONS))
    version = make_version(1, 20) + (5).to_bytes(RUN_BYTES, "big")
    job.broker.append(source, key_of(0), value_of(0, 99), version=version)
    other.mark_all({})
    job.broker.compact(source)  # the marker before the row stays
    other.put([0], count=20)
    gateway.steps()
    assert gateway.rows() == {0: 20}


def test_what_was_appended_again_is_in_no_history_of_who_was_away(job: Job, gateway: Gateway) -> None:
    away = Gateway(job.broker, gateway.clock)
    source = job.source(job.table.partition_of(key_of(0), PARTITIONS))
    job.put([0], count=10)
    for each in (gateway, away):
        each.steps()
    job.put([0], count=20)
    gateway.steps()
    # A subscriber has seen 20 at the other gateway, and this is where it is.
    seen = gateway.position(source.partition).next_offset
    job.put([0], count=11)
    gateway.steps()
    gateway.seconds(20 * GRACE_S)
    job.broker.compact(source)
    away.restart()
    away.steps()
    assert away.rows() == {0: 20}
    assert away.position(source.partition).history_start > seen


def test_a_run_beyond_all_offsets_is_poison(job: Job, gateway: Gateway) -> None:
    job.put(MOVIES, count=10)
    Job(job.broker, topic_id=job.topic_id, run=2**63).put(MOVIES, count=20)

    gateway.steps()
    assert gateway.rows() == dict.fromkeys(MOVIES, 10)
    assert gateway.table_status().poison_records == len(MOVIES)


class _DyingStore(MemoryStore):
    """A store whose process dies when the changes of a partition that is LIVE come."""

    def apply(self, store_id: StoreId, partition: Partition, changes: Sequence[Change], position: Position) -> Applied:
        if changes and position.phase is Phase.LIVE:
            raise KeyboardInterrupt
        return super().apply(store_id, partition, changes, position)


def test_a_crash_at_the_end_of_a_restore_fences_no_earlier_row(job: Job, gateway: Gateway) -> None:
    job.put(MOVIES, count=10)
    gateway.clock.passed_s += 20 * 3_600  # what comes now is young enough for a history, and what came is not
    job.put(MOVIES, count=11)
    replace_run(job, 9)
    gateway.store = _DyingStore()
    gateway.restart()
    with pytest.raises(KeyboardInterrupt):
        gateway.steps()
    gateway.store.__class__ = MemoryStore
    gateway.restart()
    gateway.steps()
    assert gateway.is_served()
    assert gateway.rows() == dict.fromkeys(MOVIES, 11)
