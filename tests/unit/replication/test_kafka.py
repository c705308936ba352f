"""The log in Kafka over librdkafka's own broker, without Java; `tests/integration/test_kafka_log.py` has a real one."""

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from tablegate.gateway.contract.lineage import Place
from tablegate.gateway.contract.types import VERSION_HEADER, Offset
from tablegate.gateway.kafka.client import KafkaLog
from tablegate.gateway.kafka.log import Fetched
from tests.kit.replication.memory_log import source

RECORDS = 3
SOURCE = source("changelog", 0)
WAIT_S = 30.0


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """Return the address of a broker that has `RECORDS` records, and lives as long as its producer."""
    producer = Producer({"bootstrap.servers": "", "test.mock.num.brokers": 1, "log_level": 0})
    [broker] = producer.list_topics(timeout=WAIT_S).brokers.values()
    for number in range(RECORDS):
        headers = [("other", b"x"), (VERSION_HEADER, b"%d" % number)]
        producer.produce(SOURCE.topic, b"value", b"key", partition=SOURCE.partition, headers=headers)
    assert producer.flush(WAIT_S) == 0
    yield f"{broker.host}:{broker.port}"
    producer.close()


@pytest.fixture
def log(bootstrap: str) -> Iterator[KafkaLog]:
    log = KafkaLog(bootstrap)
    yield log
    log.close()


def fetch_once(log: KafkaLog, *, records_max: int = 100) -> Fetched:
    """Return the first of what comes next."""
    deadline = time.monotonic() + WAIT_S
    while not (fetched := log.fetch(records_max=records_max, timeout_s=0.1)):
        assert time.monotonic() < deadline
    [first] = fetched
    return first


@pytest.mark.parametrize("records_max", [1, 100])
@pytest.mark.parametrize("start", range(RECORDS + 1))
def test_a_source_is_followed_from_its_offset_to_its_end(log: KafkaLog, start: int, records_max: int) -> None:
    """At the end there are no records, and the end is told."""
    log.follow(SOURCE, Place(Offset(start)))
    fetched = [fetch_once(log, records_max=records_max)]
    while fetched[-1].next_offset < RECORDS:
        fetched.append(fetch_once(log, records_max=records_max))
    records = [record for each in fetched for record in each.records]
    assert [(record.offset, record.version) for record in records] == [
        (number, b"%d" % number) for number in range(start, RECORDS)
    ]
    assert fetched[-1].next_offset == RECORDS
    assert all(each.next_offset == each.records[-1].offset + 1 for each in fetched if each.records)
    assert not any(each.lost for each in fetched)


def test_an_offset_that_is_not_there_is_lost_and_never_skipped(log: KafkaLog) -> None:
    log.follow(SOURCE, Place(Offset(RECORDS + 7)))
    assert fetch_once(log) == Fetched(SOURCE, [], Offset(RECORDS + 7), lost=True)
    assert log.fetch(records_max=100, timeout_s=0.3) == []


def test_the_last_record_is_read_again_and_not_delivered_again(log: KafkaLog) -> None:
    log.follow(SOURCE, Place(Offset(0)))
    [run] = fetch_once(log).runs
    log.follow(SOURCE, Place(Offset(2), run.leader_epoch))
    first = fetch_once(log)
    assert [record.offset for record in first.records] in ([], [2])
    assert not first.lost
    log.follow(SOURCE, Place(Offset(RECORDS), run.leader_epoch + 7))
    assert fetch_once(log) == Fetched(SOURCE, [], Offset(RECORDS), lost=True)


def test_a_record_that_kafka_refuses_at_once_ends_nothing(log: KafkaLog, caplog: pytest.LogCaptureFixture) -> None:
    log.append("gateways", b"gateway", bytes(2_000_000))
    log.append("gateways", b"gateway", b"small")
    [logged] = [each.getMessage() for each in caplog.records]
    assert "announcements of this gateway do not reach Kafka" in logged
    assert "too large" in logged
