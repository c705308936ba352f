"""The log in Kafka, and the replicator's process, against a real broker."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from tablegate.examples.demo.kafka import Broker, free_port
from tablegate.gateway.contract.foreign.framing import VALUE_HEADER, SchemaIds
from tablegate.gateway.contract.lineage import Lineage, Place, continued, is_of_another_log, place_at
from tablegate.gateway.contract.types import VERSION_HEADER, Offset, Partition, StoreId, make_version
from tablegate.gateway.kafka.client import KafkaLog, quiet_logger
from tablegate.gateway.kafka.log import Fetched, LogUnavailable, TopicPartition
from tablegate.gateway.server.replicator import ReplicatorConfig, run_replicator
from tablegate.gateway.stores.base import Phase, StoreUnavailable
from tablegate.gateway.stores.lmdb.store import LmdbReader, LmdbStore
from tests.kit.gateway_processes.changelog import RatingsChangelog
from tests.kit.programs.kafka import NewRecord, Tail, new_topic, nobody, produce
from tests.kit.store.changes import position
from tests.kit.table.filled import catalogue_of

pytestmark = pytest.mark.jvm

WAIT_S = 30.0


@pytest.fixture
def log(broker: Broker) -> Iterator[KafkaLog]:
    log = KafkaLog(broker.bootstrap)
    yield log
    log.close()


@pytest.fixture
def impatient_log(broker: Broker) -> Iterator[KafkaLog]:
    log = KafkaLog(broker.bootstrap, request_timeout_s=0.5, quiet_s=0.0, renew_s=0.5)
    yield log
    log.close()


@pytest.fixture
def suspicious_log(broker: Broker) -> Iterator[KafkaLog]:
    log = KafkaLog(broker.bootstrap, still_s=0.3)
    yield log
    log.close()


def fetch_until(log: KafkaLog, done: Callable[[list[Fetched]], bool]) -> list[Fetched]:
    fetched: list[Fetched] = []
    deadline = time.monotonic() + WAIT_S
    while not done(fetched):
        assert time.monotonic() < deadline, fetched
        fetched += log.fetch(records_max=1000, timeout_s=0.1)
    return fetched


def test_a_look_tells_what_the_topic_is(broker: Broker, log: KafkaLog) -> None:
    topic = new_topic(broker.bootstrap, 2, delete_retention_ms="1234")
    produce(broker.bootstrap, topic, [NewRecord(b"k", b"v", partition=1)] * 3)
    facts = log.describe_topic(topic).result(WAIT_S)
    assert facts is not None
    assert facts.topic_id
    assert (facts.start_offsets, facts.end_offsets) == ((0, 0), (0, 3))
    assert facts.delete_retention_ms == 1234
    assert log.describe_topic(f"{topic}-not").result(WAIT_S) is None
    assert log.trouble() == ""


def test_clients_that_lost_all_brokers_give_way_to_others(broker: Broker, impatient_log: KafkaLog) -> None:
    """As those do that heard from a broker, while it ended, that there are none: they never connect again."""
    log = impatient_log
    topic = new_topic(broker.bootstrap)
    source = TopicPartition(topic, Partition(0))
    log.follow(source, Place(Offset(0)))
    produce(broker.bootstrap, topic, [NewRecord(b"k", b"1")])
    fetch_until(log, lambda fetched: any(each.records for each in fetched))

    log._consumer.close()
    log._consumer = Consumer(nobody(**{"group.id": "deaf"}), logger=quiet_logger())
    log._admin = AdminClient(nobody(), logger=quiet_logger())
    log._appender._producer = Producer(nobody(**{"message.timeout.ms": 100}), logger=quiet_logger())
    records: list[bytes | None] = []
    deadline = time.monotonic() + WAIT_S
    while b"2" not in records:
        assert time.monotonic() < deadline, records
        log.append(topic, b"k", b"2")
        with suppress(LogUnavailable):
            log.describe_topic(topic).result(WAIT_S)
        for fetched in log.fetch(records_max=100, timeout_s=0.1):
            records += [record.value for record in fetched.records]
    assert records[0] == b"2", "it goes on where the one before was"
    assert log.trouble() == ""


def test_a_consumer_that_is_deaf_for_one_partition_gives_way_to_another(
    suspicious_log: KafkaLog, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """As one whose leader the consumer does not find again, while others bring records."""
    log = suspicious_log
    topic = new_topic(broker.bootstrap, 2)
    sources = [TopicPartition(topic, Partition(number)) for number in range(2)]
    for source in sources:
        log.follow(source, Place(Offset(0)))
    produce(broker.bootstrap, topic, [NewRecord(b"k", b"1", partition=number) for number in range(2)])
    fetch_until(log, lambda fetched: {each.topic_partition for each in fetched if each.records} == set(sources))

    log._consumer.incremental_unassign([KafkaPartition(topic, 0)])
    produce(broker.bootstrap, topic, [NewRecord(b"k", b"2", partition=number) for number in range(2)])
    values: list[bytes | None] = []
    deadline = time.monotonic() + WAIT_S
    while len(values) < 2:
        assert time.monotonic() < deadline, values
        log.describe_topic(topic).result(WAIT_S)
        for fetched in log.fetch(records_max=100, timeout_s=0.1):
            values += [record.value for record in fetched.records]
    assert values == [b"2", b"2"], "what came before comes once"
    expected = f'nothing comes of partition 0 of topic "{topic}" behind offset 0, though it ends at 2'
    assert expected in [record.getMessage() for record in caplog.records]


def test_a_deaf_consumer_is_suspected_later_each_time_until_all_go_on() -> None:
    """Whatever is described between: brokers may hold back a client by a quota, and each new one begins again."""
    log = KafkaLog(f"127.0.0.1:{free_port()}", still_s=100)
    source = TopicPartition("t", Partition(0))
    log.follow(source, Place(Offset(0)))

    def suspected_after(stood_s: float) -> float:
        """Let it hear of the topic's end when the partition has stood still for so much longer."""
        still = log._still.get(source)
        if still is not None:
            log._still[source] = still._replace(since_s=still.since_s - stood_s)
        log._check_partitions("t", [Offset(5)])
        return log._suspected_after_s

    for after_s, later_s in pairwise((100, 200, 400, 600, 600)):
        assert suspected_after(0) == after_s, "a new consumer has as long"
        assert suspected_after(after_s - 50) == after_s
        assert suspected_after(600) == later_s
        log.fetch(records_max=1, timeout_s=0.0)
        log._check_partitions("other", [Offset(0)])
    log._followed[source] = Place(Offset(5))
    log._check_partitions("t", [Offset(5)])
    assert log._suspected_after_s == 100
    log.close()


def test_nobody_there_is_told_in_a_sentence() -> None:
    log = KafkaLog(f"127.0.0.1:{free_port()}")
    with pytest.raises(LogUnavailable, match=r"^Kafka at 127\.0\.0\.1:\d+ does not answer"):
        log.describe_topic("tables").result(WAIT_S)
    assert log.fetch(records_max=10, timeout_s=0.5) == []
    assert "cannot be reached" in log.trouble()
    log.close()


def test_bad_options_are_told_in_a_sentence() -> None:
    with pytest.raises(LogUnavailable, match=r"the Kafka client refuses its options: .*no.such.option"):
        KafkaLog("127.0.0.1:1", {"no.such.option": "1"})


def test_records_come_with_version_and_end(broker: Broker, log: KafkaLog) -> None:
    topic = new_topic(broker.bootstrap, 1, message_timestamp_type="LogAppendTime")
    version = make_version(1, 2)
    records = [
        NewRecord(b"a", b"1", headers=[("other", b"x"), (VERSION_HEADER, version)]),
        NewRecord(b"", None),
        NewRecord(
            None,
            b"3",
            headers=[("other", b"x"), (VALUE_HEADER, None), (VALUE_HEADER, b"\x01guid"), (VALUE_HEADER, b"late")],
        ),
    ]
    produce(broker.bootstrap, topic, records)
    source = TopicPartition(topic, Partition(0))
    log.follow(source, Place(Offset(1)))
    log.follow(source, Place(Offset(0)))
    fetched = fetch_until(log, lambda some: bool(some) and some[-1].next_offset == 3)
    found = [record for each in fetched for record in each.records]
    assert [(record.offset, record.key, record.value, record.version, record.schema_ids) for record in found] == [
        (0, b"a", b"1", version, None),
        (1, b"", None, None, None),
        (2, None, b"3", None, SchemaIds(None, b"\x01guid")),
    ]
    assert abs(found[0].time_ms - time.time() * 1000) < 60_000
    log.unfollow(source)
    log.unfollow(source)
    produce(broker.bootstrap, topic, records)
    assert log.fetch(records_max=10, timeout_s=0.3) == []


def test_removed_records_are_lost(broker: Broker, log: KafkaLog) -> None:
    topic = new_topic(broker.bootstrap, 1)
    produce(broker.bootstrap, topic, [NewRecord(b"a", b"1")] * 10)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for answer in admin.delete_records([KafkaPartition(topic, 0, 5)]).values():
        answer.result(WAIT_S)
    source = TopicPartition(topic, Partition(0))
    for start in (2, 99):
        log.follow(source, Place(Offset(start)))
        fetched = fetch_until(log, bool)
        assert fetched == [Fetched(source, [], Offset(start), lost=True)]
    log.follow(source, Place(Offset(5)))
    fetched = fetch_until(log, lambda some: bool(some) and some[-1].next_offset == 10)
    assert sum(len(each.records) for each in fetched) == 5


def _replicate(contract: bytes, store: Path, bootstrap: str, tables_topic: str) -> None:
    files = FileDescriptorSet.FromString(contract)
    run_replicator(ReplicatorConfig(files=files, store=store, bootstrap=bootstrap, tables_topic=tables_topic))


class Replicating:
    """A replicator's process, and a reader of its store."""

    def __init__(self, store: Path, bootstrap: str, tables_topic: str) -> None:
        self.store = store
        contract = catalogue_of().files.SerializeToString()
        spawn = multiprocessing.get_context("spawn")
        self.process = spawn.Process(target=_replicate, args=(contract, store, bootstrap, tables_topic))
        self.process.start()

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)
        self.process.join(WAIT_S)
        assert self.process.exitcode is not None
        return self.process.exitcode

    def phases(self) -> list[Phase]:
        try:
            reader = LmdbReader(self.store)
        except StoreUnavailable:
            return []
        try:
            with reader.snapshot() as snapshot:
                state = snapshot.table("ratings")
                if state is None or not state.HasField("manifest"):
                    return []
                store_id = StoreId(state.store_id)
                found = [snapshot.position(store_id, Partition(n)) for n in range(state.manifest.partition_count)]
                return [position.phase for position in found if position is not None]
        finally:
            reader.close()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("reachable", [True, False])
def test_sigterm_leaves_a_clean_store_at_once(broker: Broker, tmp_path: Path, reachable: bool) -> None:
    store = tmp_path / "store"
    bootstrap = broker.bootstrap if reachable else f"127.0.0.1:{free_port()}"
    tables_topic = "tables"
    if reachable:
        changelog = RatingsChangelog(broker.bootstrap)
        tables_topic = changelog.tables_topic
        changelog.put({movie: (5.0, movie) for movie in range(1000)})
        changelog.publish()
    replicating = Replicating(store, bootstrap, tables_topic)
    try:
        wait_for((store / "data.mdb").exists)
        if reachable:
            wait_for(lambda: replicating.phases() == [Phase.LIVE, Phase.LIVE])
        else:
            time.sleep(1)
    finally:
        assert replicating.stop() == 0
    again = LmdbStore(store, boot_id="after a restart of the machine")
    again.close()


def test_a_store_of_another_boot_is_wiped_and_restored(broker: Broker, tmp_path: Path) -> None:
    store = tmp_path / "store"
    changelog = RatingsChangelog(broker.bootstrap)
    changelog.put({movie: (5.0, movie) for movie in range(100)})
    changelog.publish()
    old = LmdbStore(store, boot_id="an earlier boot")
    old.apply(StoreId(77), Partition(0), [], position(0))
    old.abandon()
    replicating = Replicating(store, broker.bootstrap, changelog.tables_topic)
    try:
        wait_for(lambda: replicating.phases() == [Phase.LIVE, Phase.LIVE])
    finally:
        assert replicating.stop() == 0
    again = LmdbStore(store)
    try:
        assert StoreId(77) not in again.store_ids()
        with again.snapshot() as snapshot:
            state = snapshot.table("ratings")
            assert state is not None
            rows = [
                snapshot.range(StoreId(state.store_id), Partition(number), start=b"", end=None, limit=200)
                for number in range(2)
            ]
        assert sum(map(len, rows)) == 100
    finally:
        again.close()


@pytest.mark.parametrize("running", [False, True])
def test_a_log_that_lost_its_tail_and_grew_again_is_lost(tmp_path: Path, running: bool) -> None:
    """Though the offset is there again, with other records before it."""
    with Broker(tmp_path / "data", free_port(), log_file=tmp_path / "broker.log") as broker:
        topic = new_topic(broker.bootstrap, 1)
        source = TopicPartition(topic, Partition(0))
        produce(broker.bootstrap, topic, [NewRecord(b"a", b"1"), NewRecord(b"b", b"1")])
        tail = Tail(broker, topic)
        produce(broker.bootstrap, topic, [NewRecord(b"c", b"1"), NewRecord(b"d", b"1")])
        log = KafkaLog(broker.bootstrap)
        log.follow(source, Place(Offset(0)))
        lineage: Lineage = ()
        for fetched in fetch_until(log, lambda some: bool(some) and some[-1].next_offset == 4):
            lineage = continued(lineage, fetched.runs)
        place = place_at(lineage, Offset(4))
        assert place.leader_epoch >= 0
        log.follow(source, place)
        again = fetch_until(log, bool)
        assert [(each.records, each.next_offset, each.lost) for each in again] == [([], 4, False)], "nothing was lost"
        if not running:
            log.close()

        tail.lose()
        produce(broker.bootstrap, topic, [NewRecord(b"%d" % number, b"2") for number in range(8)])
        if not running:
            log = KafkaLog(broker.bootstrap)
            log.follow(source, place)
        [lost] = fetch_until(log, bool)
        assert lost == Fetched(source, [], Offset(4), lost=True)
        facts = log.describe_topic(topic).result(WAIT_S)
        assert facts is not None
        assert facts.end_offsets == (10,)
        assert facts.leader_epochs[0] > place.leader_epoch

        log.follow(source, Place(Offset(0)))
        for fetched in fetch_until(log, lambda some: bool(some) and some[-1].next_offset == 10):
            lineage = continued((), fetched.runs) if fetched.runs[0].start == 0 else continued(lineage, fetched.runs)
        assert is_of_another_log(place, lineage)
        assert not is_of_another_log(place_at(lineage, Offset(2)), lineage)
        log.close()
