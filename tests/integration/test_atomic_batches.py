"""Atomic tables on real Kafka and Spark: units move between accounts, and no answer shows a sum that never was."""

import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tablegate.examples.demo.kafka import Broker
from tablegate.gateway.contract.lineage import Place
from tablegate.gateway.contract.types import Offset, Partition, make_version
from tablegate.gateway.kafka.client import KafkaEnds, KafkaLog
from tablegate.gateway.kafka.log import TopicPartition
from tablegate.jobs.errors import JobError
from tablegate.jobs.kafka.batches import BatchRecord, BatchWriter
from tablegate.jobs.kafka.topics import Topic
from tablegate.v1.changelog_pb2 import ProgressMarker
from tests.kit.gateway_processes.gateway import GatewayProcess, soon
from tests.kit.job.process import JobProcess, wait_until
from tests.kit.job.transfers.declared import BANKS, Bookings, Reader, answers_of, repeated, torn, write_job
from tests.kit.programs.kafka import NewRecord, consume, new_topic, produce

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(3_600)]

PARTITIONS = 2
WAIT_S = 30.0
MOVE_EVERY_S = 0.1  # so that a batch stays far below its bound, also on a machine that is slow
BATCHES_MIN = 4  # it is no proof unless units move


@pytest.fixture
def log(broker: Broker) -> Iterator[KafkaLog]:
    log = KafkaLog(broker.bootstrap)
    yield log
    log.close()


def transaction(bootstrap: str, topic: str, records: int) -> Producer:
    """Return a producer with an open transaction, whose records the broker has."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"id-{topic}", "linger.ms": 0})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    for _ in range(records):
        producer.produce(topic, key=b"k", value=b"v", partition=0)
    producer.flush(WAIT_S)
    return producer


def ends(bootstrap: str, log: KafkaLog, topic: str) -> tuple[int, int]:
    """Return the end of the first partition, as the log describes it and as `latest` has it."""
    facts = log.describe_topic(topic).result(WAIT_S)
    assert facts is not None
    return facts.end_offsets[0], KafkaEnds(bootstrap, {}).end_offsets(topic)[0]


def fetched_to(log: KafkaLog, end: int) -> list[int]:
    """Fetch to an end; return the offsets of the records that came."""
    offsets: list[int] = []
    deadline = time.monotonic() + WAIT_S
    while True:
        for fetched in log.fetch(records_max=1_000, timeout_s=0.1):
            offsets += [record.offset for record in fetched.records]
            if fetched.next_offset >= end:
                assert fetched.next_offset == end
                return offsets
        assert time.monotonic() < deadline, offsets


def test_an_open_transaction_holds_no_restore_up(broker: Broker, log: KafkaLog) -> None:
    """It is what a job leaves that was killed in the middle of a batch."""
    topic = new_topic(broker.bootstrap)
    produce(broker.bootstrap, topic, [NewRecord(b"k", b"v")] * 2)
    producer = transaction(broker.bootstrap, topic, 3)
    assert ends(broker.bootstrap, log, topic) == (2, 2)
    log.follow(TopicPartition(topic, Partition(0)), Place(Offset(0)))
    assert fetched_to(log, 2) == [0, 1]
    producer.commit_transaction(WAIT_S)
    # The brokers end a transaction a moment after they have accepted its commit.
    soon(lambda: ends(broker.bootstrap, log, topic) == (6, 6), "the end is behind the transaction")
    assert fetched_to(log, 6) == [2, 3, 4], "the last offset is the broker's own record"


def test_positions_go_beyond_a_transaction_that_was_given_up(broker: Broker, log: KafkaLog) -> None:
    topic = new_topic(broker.bootstrap)
    produce(broker.bootstrap, topic, [NewRecord(b"k", b"v")])
    transaction(broker.bootstrap, topic, 3).abort_transaction(WAIT_S)
    soon(lambda: ends(broker.bootstrap, log, topic) == (5, 5), "the end is behind the transaction")
    log.follow(TopicPartition(topic, Partition(0)), Place(Offset(0)))
    assert fetched_to(log, 5) == [0]


def batch(*partitions: int) -> list[BatchRecord]:
    return [BatchRecord(partition, b"k%d" % n, b"v", make_version(1, n)) for n, partition in enumerate(partitions)]


def test_a_batch_ends_with_a_marker_where_it_has_rows(broker: Broker) -> None:
    topic = new_topic(broker.bootstrap, 3)
    writer = BatchWriter(broker.bootstrap, Topic(topic, "", 3), 7)
    writer.write(4, batch(2, 0, 2))
    writer.close()
    records = consume(broker.bootstrap, topic)
    assert [(record.partition, record.key) for record in records] == [
        (0, b"k1"),
        (0, b""),
        (2, b"k0"),
        (2, b"k2"),
        (2, b""),
    ]
    marker = ProgressMarker.FromString(records[1].value or b"")
    assert (marker.generation, marker.batch_id, marker.ends_batch, marker.final) == (7, 4, True, False)


def test_a_later_job_fences_the_one_before(broker: Broker) -> None:
    topic = new_topic(broker.bootstrap)
    first, second = (BatchWriter(broker.bootstrap, Topic(topic, "", 1), 1) for _ in range(2))
    first.write(0, batch(0))
    second.write(1, batch(0))
    with pytest.raises(JobError, match="another job has begun to write it; stop one of the two"):
        first.write(2, batch(0))
    second.write(3, batch(0))
    second.close()
    with pytest.raises(JobError, match="the job is ending"):
        second.write(4, batch(0))
    assert [record.key for record in consume(broker.bootstrap, topic)] == [b"k0", b""] * 3


def test_a_job_that_froze_before_its_first_batch_fences_none(broker: Broker) -> None:
    topic = new_topic(broker.bootstrap)
    frozen, other = (BatchWriter(broker.bootstrap, Topic(topic, "", 1), 1) for _ in range(2))
    frozen.open()
    other.open()
    with pytest.raises(JobError, match="another job has begun to write it; stop one of the two"):
        frozen.write(0, batch(0))
    other.write(0, batch(0))
    other.close()
    assert [record.key for record in consume(broker.bootstrap, topic)] == [b"k0", b""]


def read_on(reader: Reader, job: JobProcess, *, reads: int, batches: int) -> None:
    """Read that often, and until so many batches were seen."""
    while reader.reads < reads or len(reader.seen) < batches:
        reader.read()
        if reader.reads >= reads:
            time.sleep(0.01)  # the job needs the machine, too
        assert job.process.poll() is None, job.errors()


@pytest.mark.parametrize("reads", [4_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_no_read_sees_units_lost_while_they_move(broker: Broker, tmp_path: Path, reads: int) -> None:
    """And a job that is killed in the middle of it leaves no half of a batch."""
    name = f"transfers_{uuid.uuid4().hex[:8]}"
    source = new_topic(broker.bootstrap, prefix="bookings")
    declaration, contract = write_job(tmp_path, name, source)
    arguments = ["--table", str(declaration), "--bootstrap", broker.bootstrap]
    arguments += ["--checkpoints", str(tmp_path / "checkpoint"), "--partitions", str(PARTITIONS)]
    history = tmp_path / "history.jsonl"
    bookings = Bookings(broker.bootstrap, source)
    bookings.fill()
    with (
        GatewayProcess(tmp_path / "gateway", broker.bootstrap, contract=contract) as gateway,
        closing(Reader(gateway, contract, history)) as reader,
    ):
        with JobProcess(tmp_path / "logs", *arguments) as job:
            wait_until("the first batch", lambda: reader.moves(BANKS[0]) == 0, job)
            with repeated(bookings.move, MOVE_EVERY_S):
                read_on(reader, job, reads=reads // 2, batches=BATCHES_MIN)
                job.kill()
        assert reader.moves(BANKS[0]) < bookings.moves, "it was killed in the middle of a batch"
        with JobProcess(tmp_path / "logs", *arguments) as job:
            wait_until("what was left of it", lambda: reader.moves(BANKS[0]) == bookings.moves, job)
            with repeated(bookings.move, MOVE_EVERY_S):
                read_on(reader, job, reads=reads, batches=2 * BATCHES_MIN)
            wait_until("all moves", lambda: all(reader.moves(bank) == bookings.moves for bank in BANKS), job)
            wait_until("the log counts them", lambda: any(each["changes"] for each in job.events("batch")), job)
            assert job.stop() == 0, job.errors()
    answers = answers_of(history)
    assert torn(answers) == []
    assert len(answers) >= reads
