"""The replicator, over a broker in memory and a store in memory."""

import logging
from concurrent.futures import Future

import pytest
from typing_extensions import override

from tablegate.gateway.contract.types import Offset, Partition, StoreId
from tablegate.gateway.kafka.log import Fetched, TopicFacts
from tablegate.gateway.stores.base import Phase
from tests.kit.replication.memory_log import DELETE_RETENTION_MS, MemoryBroker, MemoryLog, source
from tests.kit.replication.replicator import START_MS, FakeClock, Gateway, Job, key_of, value_of


class SlowLog(MemoryLog):
    """Looks are answered two fetches after the brokers looked."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self._late: list[tuple[int, Future[TopicFacts | None], Future[TopicFacts | None]]] = []
        self._fetches = 0

    @override
    def describe_topic(self, topic: str) -> "Future[TopicFacts | None]":
        late: Future[TopicFacts | None] = Future()
        self._late.append((self._fetches + 2, super().describe_topic(topic), late))
        return late

    @override
    def fetch(self, *, records_max: int, timeout_s: float) -> list[Fetched]:
        self._fetches += 1
        while self._late and self._late[0][0] <= self._fetches:
            _, answer, late = self._late.pop(0)
            late.set_result(answer.result())
        return super().fetch(records_max=records_max, timeout_s=timeout_s)


def test_a_table_is_restored_then_followed(gateway: Gateway, job: Job) -> None:
    job.publish().put(range(100))
    assert not gateway.is_served()
    gateway.steps()
    assert gateway.is_served()
    assert gateway.rows() == {movie: movie + 1 for movie in range(100)}
    job.put([5], count=500)
    job.put([6], count=501, delete=True)
    gateway.steps(1)
    assert gateway.rows()[5] == 500
    assert 6 not in gateway.rows()


def test_nothing_is_served_before_every_partition_passed_its_barrier(gateway: Gateway, job: Job) -> None:
    gateway.store.changes_max = 10
    job.publish().put(range(100))
    while not gateway.state().HasField("manifest"):
        gateway.steps(1)
    while len(gateway.rows()) < 100:
        assert not gateway.is_served()
        status = gateway.table_status()
        assert not status.serving
        gateway.steps(1, pass_s=0.5)
    gateway.steps(1, pass_s=0.5)
    gateway.steps(1)
    assert gateway.is_served()
    assert gateway.table_status().serving


def test_a_restart_goes_on_from_its_position(gateway: Gateway, job: Job) -> None:
    job.publish().put(range(10))
    gateway.steps()
    before = gateway.state()
    job.put([3], count=99)
    gateway.restart()
    assert not gateway.is_served()
    assert gateway.position(0).phase is gateway.position(1).phase is Phase.CATCHING_UP
    gateway.steps()
    assert gateway.is_served()
    assert gateway.state().store_id == before.store_id
    assert gateway.rows()[3] == 99
    assert gateway.replicator._tables["ratings"].serving is not None
    assert gateway.replicator._tables["ratings"].serving.progress.rows_applied == 1


def test_the_end_is_reached_although_compaction_took_the_last_records(gateway: Gateway, job: Job) -> None:
    job.publish().put(range(10))
    job.put(range(10), delete=True)
    for partition in range(2):
        job.broker.compact(job.source(partition), tombstones=True)
    gateway.steps()
    assert gateway.is_served()
    assert gateway.rows() == {}
    assert gateway.position(0).next_offset + gateway.position(1).next_offset == 20


def test_markers_reach_every_partition(gateway: Gateway, job: Job) -> None:
    job.publish()
    gateway.steps()
    job.mark(0, {0: 5, 1: 6})
    gateway.steps()
    assert gateway.position(0).source_offsets == {("ratings", 0): 5, ("ratings", 1): 6}
    assert gateway.position(0).as_of_ms >= START_MS
    assert gateway.position(1).source_offsets == {}


def test_no_manifest_is_told(gateway: Gateway, job: Job) -> None:
    gateway.steps()
    problem = 'table "ratings" has no manifest in topic "tables"; start the table\'s job, or give it a topic with'
    assert gateway.state().problem == f"{problem} tablegate table add"
    gateway.seconds(1)
    assert gateway.table_status().problem == gateway.state().problem
    job.put([1])
    job.publish()
    gateway.steps()
    gateway.seconds(1)
    assert gateway.state().problem == gateway.table_status().problem == ""
    assert gateway.is_served()


def test_no_topic_of_manifests_is_told(gateway: Gateway, broker: MemoryBroker, job: Job) -> None:
    broker.delete("tables")
    gateway.seconds(6)
    assert gateway.state().problem.startswith('table "ratings": topic "tables" does not exist; start the table\'s job')
    broker.create("tables", 1)
    job.publish()
    gateway.seconds(3)
    assert gateway.is_served()


def test_a_manifest_that_disagrees_stops_serving(gateway: Gateway, job: Job) -> None:
    job.publish().put([1])
    gateway.steps()
    assert gateway.is_served()
    job.publish(job.manifest(contract_fingerprint=b"other"))
    gateway.steps()
    assert not gateway.is_served()
    assert "another fingerprint" in gateway.state().problem
    job.put([2])
    job.publish()
    gateway.steps()
    gateway.seconds(2)
    assert gateway.is_served()
    assert set(gateway.rows()) == {1, 2}


def test_a_newer_generation_that_disagrees_leaves_the_older_one_served(
    gateway: Gateway, job: Job, broker: MemoryBroker
) -> None:
    job.publish().put([1])
    gateway.steps()
    newer = Job(broker, generation=2).create()
    newer.publish(newer.manifest(contract_fingerprint=b"other"))
    job.put([2])
    gateway.steps()
    assert gateway.is_served()
    assert set(gateway.rows()) == {1, 2}


def test_new_schemas_of_a_manifest_are_taken(gateway: Gateway, job: Job) -> None:
    job.publish().put([1])
    gateway.steps()
    manifest = job.manifest()
    manifest.value_schemas[7] = manifest.value_schemas[1]
    job.publish(manifest)
    gateway.steps()
    job.broker.append(
        job.source(0), key_of(1), b"\0\0\0\0\7" + value_of(1, 50)[5:], version=b"\0\0\0\1" + b"\0\0\0\0\0\0\0\x63"
    )
    gateway.steps()
    assert gateway.table_status().poison_records == 0
    assert gateway.state().manifest.value_schemas[7]
    assert 50 in gateway.rows().values()


def test_a_new_generation_is_built_beside_and_switched_to(gateway: Gateway, job: Job, broker: MemoryBroker) -> None:
    gateway.store.changes_max = 5
    job.publish().put(range(20))
    gateway.steps(20)
    old_id = gateway.state().store_id
    newer = Job(broker, generation=2, sequence=1000).create()
    newer.put(range(50))
    newer.publish()
    job.mark_all({}, final=True)
    seen = []
    for _ in range(40):
        gateway.steps(1)
        assert gateway.is_served()
        seen.append(len(gateway.rows()))
    assert set(seen) == {20, 50}
    assert seen == sorted(seen)
    assert gateway.state().manifest.generation == 2
    assert gateway.store.store_ids() == {gateway.state().store_id}
    assert gateway.state().store_id != old_id
    job.put([1], count=10**6)
    gateway.steps()
    assert gateway.rows()[1] == 1002


def test_an_older_generation_is_ignored(gateway: Gateway, job: Job, broker: MemoryBroker) -> None:
    newer = Job(broker, generation=2).create()
    newer.publish().put([1])
    gateway.steps()
    job.publish()
    gateway.steps()
    assert gateway.is_served()
    assert gateway.state().manifest.generation == 2


def _half_built(gateway: Gateway, job: Job, broker: MemoryBroker) -> Job:
    """Serve generation 1, and begin to build generation 2 beside it; return the job of the latter."""
    gateway.store.changes_max = 5
    job.publish().put(range(20))
    gateway.steps(20)
    newer = Job(broker, generation=2, sequence=1000).create()
    newer.put(range(200))
    newer.publish()
    job.mark_all({}, final=True)
    gateway.steps(8)
    return newer


def test_a_half_built_generation_is_gone_on_with_after_a_restart(
    gateway: Gateway, job: Job, broker: MemoryBroker
) -> None:
    _half_built(gateway, job, broker)
    assert gateway.state().manifest.generation == 1
    built = gateway.store.store_ids() - {StoreId(gateway.state().store_id)}
    gateway.restart()
    gateway.steps(60)
    assert gateway.is_served()
    assert {gateway.state().store_id} == built == gateway.store.store_ids()
    assert len(gateway.rows()) == 200


def test_a_generation_that_is_lost_while_it_is_built_is_built_again(
    gateway: Gateway, job: Job, broker: MemoryBroker
) -> None:
    newer = _half_built(gateway, job, broker)
    for partition in range(2):
        broker.truncate_before(newer.source(partition), Offset(90))
    for _ in range(60):
        gateway.steps(1)
        assert gateway.is_served()
    assert gateway.state().manifest.generation == 2
    assert len(gateway.rows()) == 200 - 2 * 90
    assert gateway.store.store_ids() == {gateway.state().store_id}


def test_a_topic_made_anew_is_not_served_on(gateway: Gateway, job: Job) -> None:
    job.publish().put(range(10))
    gateway.steps()
    old_id = gateway.state().store_id
    job.create()
    gateway.seconds(6)
    assert not gateway.is_served()
    assert "was made anew (id topic-" in gateway.state().problem
    newer = Job(job.broker, generation=2).create()
    newer.put([77])
    newer.publish()
    gateway.seconds(6)
    assert gateway.is_served()
    assert set(gateway.rows()) == {77}
    assert gateway.state().store_id != old_id


def test_a_deleted_topic_is_not_served_on(gateway: Gateway, job: Job) -> None:
    job.publish().put([1])
    gateway.steps()
    job.broker.delete(job.topic)
    gateway.seconds(6)
    assert not gateway.is_served()
    assert gateway.state().problem.endswith("does not exist; start the table's job")


def test_another_partition_count_is_told(gateway: Gateway, broker: MemoryBroker) -> None:
    job = Job(broker).create(partitions=3)
    job.publish()
    gateway.steps()
    assert "has 3 partitions, its manifest says 2; raise the table's generation" in gateway.state().problem


def test_a_topic_that_keeps_tombstones_for_seconds_is_refused(gateway: Gateway, broker: MemoryBroker) -> None:
    """Its table would be restored at each description of the topic, for ever."""
    job = Job(broker)
    job.topic_id = broker.create(job.topic, 2, delete_retention_ms=9_000)
    job.publish().put(range(5))
    gateway.seconds(30)
    assert not gateway.is_served()
    problem = gateway.state().problem
    assert problem.endswith("delete.retention.ms of 9000, and needs 60000 at least; set it on the topic")
    assert gateway.store.store_ids() == set()


@pytest.mark.parametrize("running", [True, False])
def test_lost_records_are_noticed_and_the_table_is_restored(gateway: Gateway, job: Job, running: bool) -> None:
    job.publish().put(range(20))
    gateway.steps()
    old_id = gateway.state().store_id
    for partition in range(2):
        job.broker.truncate_from(job.source(partition), Offset(3))
    if not running:
        gateway.restart()
    gateway.seconds(7)
    assert gateway.is_served()
    assert len(gateway.rows()) == 6
    assert gateway.state().store_id != old_id
    assert gateway.store.store_ids() == {gateway.state().store_id}


def test_a_position_before_the_logs_start_is_restored(gateway: Gateway, job: Job) -> None:
    job.publish().put(range(20))
    gateway.steps()
    job.put(range(100, 120))
    for partition in range(2):
        end = job.broker.facts(job.topic)
        assert end is not None
        job.broker.truncate_before(job.source(partition), Offset(end.end_offsets[partition] - 1))
    gateway.steps(3)
    gateway.seconds(7)
    assert gateway.is_served()
    assert len(gateway.rows()) == 2


def test_a_log_that_starts_late_is_followed_from_there(gateway: Gateway, job: Job) -> None:
    job.publish().put(range(20))
    job.broker.truncate_before(job.source(0), Offset(4))
    gateway.steps()
    assert gateway.is_served()
    assert gateway.table_status().poison_records == 0


def test_records_between_a_look_and_its_answer_are_no_loss(broker: MemoryBroker, clock: FakeClock, job: Job) -> None:
    """The answer is older than what was applied since it was asked for."""
    gateway = Gateway(broker, clock, log=SlowLog)
    job.publish().put(range(5))
    gateway.steps(20)
    old_id = gateway.state().store_id
    assert gateway.is_served()
    for movie in range(100):
        job.put([movie])
        job.publish()
        gateway.steps(1, pass_s=0.5)
    assert gateway.state().store_id == old_id
    assert len(gateway.rows()) == 100


@pytest.mark.parametrize(
    ("away_ms", "restored"), [(DELETE_RETENTION_MS // 2 - 60_000, False), (DELETE_RETENTION_MS // 2 + 60_000, True)]
)
@pytest.mark.parametrize("running", [True, False])
def test_an_old_store_is_restored_from_the_start(
    gateway: Gateway, job: Job, clock: FakeClock, away_ms: int, restored: bool, running: bool
) -> None:
    """Deletes may have been compacted away meanwhile."""
    job.publish().put([1, 2])
    gateway.steps()
    gateway.seconds(6)
    job.broker.is_up = False
    gateway.seconds(6)
    job.put([1], delete=True)
    for partition in range(2):
        job.broker.compact(job.source(partition), tombstones=True)
    clock.passed_s += away_ms / 1000
    job.broker.is_up = True
    if not running:
        gateway.restart()
    gateway.seconds(8)
    assert gateway.is_served()
    assert (set(gateway.rows()) == {2}) is restored


def test_a_gateway_that_was_stopped_in_touch_is_as_old_as_its_last_beat(
    gateway: Gateway, job: Job, clock: FakeClock
) -> None:
    job.publish().put([1])
    gateway.steps()
    clock.passed_s += DELETE_RETENTION_MS / 1000 / 3
    gateway.seconds(6)
    gateway.replicator.close()
    old_id = gateway.state().store_id
    clock.passed_s += DELETE_RETENTION_MS / 1000 / 3
    gateway.restart()
    gateway.seconds(2)
    assert gateway.state().store_id == old_id


def test_kafka_away_is_told_and_what_is_here_is_served_on(
    gateway: Gateway, job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    job.publish().put([1])
    gateway.seconds(1)
    assert gateway.status().kafka_reachable
    job.broker.is_up = False
    gateway.seconds(20)
    assert gateway.is_served()
    assert not gateway.status().kafka_reachable
    assert gateway.rows() == {1: 1}
    job.broker.is_up = True
    job.put([1])
    gateway.seconds(6)
    assert gateway.status().kafka_reachable
    assert gateway.rows() == {1: 2}
    lines = [record.message for record in caplog.records]
    assert sum("served on, growing older" in line for line in lines) == 1
    assert lines.count("Kafka answers again") == 1


def test_a_start_without_kafka_waits_for_it(clock: FakeClock, broker: MemoryBroker, job: Job) -> None:
    broker.is_up = False
    gateway = Gateway(broker, clock)
    gateway.seconds(5)
    assert not gateway.is_served()
    assert not gateway.status().kafka_reachable
    broker.is_up = True
    job.publish().put([1])
    gateway.seconds(3)
    assert gateway.is_served()


def test_a_full_disk_pauses_and_goes_on(gateway: Gateway, job: Job, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    job.publish().put(range(5))
    gateway.steps()
    gateway.full = True
    job.put(range(5, 10))
    gateway.seconds(10)
    assert len(gateway.rows()) == 5
    assert gateway.is_served()
    job.put(range(10, 20))
    gateway.full = False
    gateway.steps()
    gateway.seconds(6)
    assert gateway.rows() == {movie: movie + 1 for movie in range(20)}
    lines = [record.message for record in caplog.records]
    assert sum("applying goes on when there is room" in line for line in lines) == 1
    assert lines.count("there is room again: applying goes on") == 1


def test_a_disk_that_is_full_at_the_start_is_waited_for(
    gateway: Gateway, job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    gateway.full = True
    job.publish().put(range(5))
    gateway.seconds(30)
    assert not gateway.is_served()
    assert gateway.table_status().problem == "no room for the batch"
    lines = [record.message for record in caplog.records]
    assert sum("applying goes on when there is room" in line for line in lines) == 1
    assert "there is room again: applying goes on" not in lines
    gateway.full = False
    gateway.seconds(3)
    assert gateway.is_served()
    assert len(gateway.rows()) == 5
    assert len(gateway.store.store_ids()) == 1


def test_poison_is_counted_in_the_status(gateway: Gateway, job: Job) -> None:
    job.publish()
    gateway.steps()
    job.broker.append(job.source(0), None, b"x")
    job.broker.append(job.source(1), b"k", b"x")
    job.put([1])
    gateway.seconds(1)
    assert gateway.table_status().poison_records == 2
    assert gateway.is_served()
    assert gateway.rows() == {1: 1}


def test_a_record_that_is_no_manifest_is_passed(gateway: Gateway, job: Job, broker: MemoryBroker) -> None:
    tables = source("tables", 0)
    broker.append(tables, b"ratings", b"\xff\xff")
    broker.append(tables, None, None)
    broker.append(tables, b"\xff", job.manifest().SerializeToString())
    job.publish().put([1])
    gateway.steps()
    assert gateway.is_served()


def test_a_removed_manifest_stops_serving(gateway: Gateway, job: Job, broker: MemoryBroker) -> None:
    job.publish().put([1])
    gateway.steps()
    broker.append(source("tables", 0), b"ratings", None)
    gateway.steps()
    assert "has no manifest" in gateway.state().problem


def test_the_topic_of_manifests_may_be_made_anew(gateway: Gateway, job: Job, broker: MemoryBroker) -> None:
    job.publish().put([1])
    gateway.steps()
    broker.create("tables", 1)
    newer = Job(broker, generation=2).create()
    newer.put([1, 2])
    newer.publish()
    job.mark_all({}, final=True)
    gateway.seconds(12)
    assert gateway.is_served()
    assert gateway.state().manifest.generation == 2


def test_what_no_table_names_is_dropped(gateway: Gateway, job: Job) -> None:
    job.publish().put([1])
    gateway.steps()
    orphan = gateway.store.new_store_id()
    gateway.store.apply(orphan, Partition(0), [], gateway.position(0))
    gateway.restart()
    gateway.steps()
    assert gateway.store.store_ids() == {gateway.state().store_id}


@pytest.mark.parametrize(("retention_hours", "kept_hours"), [(1, 24), (48, 48)])
def test_old_tombstones_leave_the_store(
    gateway: Gateway, job: Job, broker: MemoryBroker, retention_hours: int, kept_hours: int
) -> None:
    """Kept for as long as the changelog keeps them, and for a day at least: a stale record may come late."""
    job.topic_id = broker.create(job.topic, 2, delete_retention_ms=retention_hours * 3_600_000)
    job.publish().put([1])
    job.put([1], delete=True)
    gateway.steps()
    store_id = StoreId(gateway.state().store_id)

    def is_stored() -> bool:
        with gateway.store.snapshot() as snapshot:
            return any(snapshot.get_stored(store_id, Partition(number), key_of(1)) for number in range(2))

    def pass_hours(hours: int) -> None:
        for _ in range(hours * 3):
            gateway.clock.passed_s += 1200
            gateway.steps(1)

    pass_hours(kept_hours - 1)
    assert is_stored()
    pass_hours(2)
    assert not is_stored()
    assert gateway.is_served()
    assert gateway.state().store_id == store_id


def test_restore_progress_is_in_status_and_log(gateway: Gateway, job: Job, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    gateway.store.changes_max = 10
    job.publish().put(range(400))
    gateway.steps(8, pass_s=1)
    status = gateway.table_status()
    assert 10 < status.restore_rows_per_second <= 21
    assert 10 < status.restore_seconds_left < 40
    gateway.steps(40, pass_s=1)
    assert gateway.table_status().restore_seconds_left == 0
    messages = [record.message for record in caplog.records if not hasattr(record, "state")]  # no moves
    assert messages[0] == 'table "ratings": restoring from its changelog'
    assert messages.count('table "ratings": restoring') >= 2
    assert messages[-1] == 'table "ratings": restored'
    assert vars(caplog.records[-1])["rows"] == 400


def _pass_hours(gateway: Gateway, hours: int) -> None:
    for _ in range(hours * 2):
        gateway.clock.passed_s += 1800
        gateway.steps(1)


def _delete_and_compact(job: Job) -> None:
    job.put([1], delete=True)
    for partition in range(2):
        job.broker.compact(job.source(partition), tombstones=True)


def test_a_store_that_a_full_disk_held_up_for_days_is_restored(gateway: Gateway, job: Job) -> None:
    job.publish().put([1, 2])
    gateway.seconds(6)
    gateway.full = True
    _delete_and_compact(job)
    job.put([3])
    _pass_hours(gateway, 60)
    gateway.full = False
    gateway.restart()
    gateway.seconds(8)
    assert gateway.is_served()
    assert set(gateway.rows()) == {2, 3}


def test_nothing_is_applied_behind_deletes_that_may_be_missing(
    gateway: Gateway, job: Job, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that stood still for long has newer records at hand before the brokers tell it of the topic."""
    job.publish().put([1])
    gateway.seconds(6)
    _delete_and_compact(job)
    job.put(range(2, 20))
    late: list[tuple[MemoryLog, str, Future[TopicFacts | None]]] = []

    def describe_late(log: MemoryLog, topic: str) -> "Future[TopicFacts | None]":
        late.append((log, topic, Future()))
        return late[-1][2]

    with monkeypatch.context() as patch:
        patch.setattr(MemoryLog, "describe_topic", describe_late)
        clock.passed_s += DELETE_RETENTION_MS / 2_000 + 60
        gateway.seconds(3)
    assert set(gateway.rows()) == {1}, "what came after the delete is there beside the row"
    for log, topic, answer in late:
        answer.set_result(log.describe_topic(topic).result())
    gateway.seconds(8)
    assert gateway.is_served()
    assert set(gateway.rows()) == set(range(2, 20))


def test_a_store_without_manifest_for_days_is_restored(gateway: Gateway, job: Job) -> None:
    job.publish().put([1, 2])
    gateway.seconds(6)
    job.broker.append(source("tables", 0), b"ratings", None)
    gateway.seconds(6)
    _delete_and_compact(job)
    _pass_hours(gateway, 60)
    gateway.restart()
    job.publish()
    gateway.seconds(8)
    assert gateway.is_served()
    assert set(gateway.rows()) == {2}


def test_a_store_that_is_in_touch_but_fetches_nothing_for_days_is_restored(
    gateway: Gateway, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.publish().put([1, 2])
    gateway.seconds(6)
    with monkeypatch.context() as patch:
        patch.setattr(MemoryLog, "fetch", lambda self, **_: [])
        _delete_and_compact(job)
        _pass_hours(gateway, 60)
    gateway.seconds(8)
    assert gateway.is_served()
    assert set(gateway.rows()) == {2}
