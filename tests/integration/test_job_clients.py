"""The clients of Kafka that a job keeps: one that lost all brokers gives way to another."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from tablegate.examples.demo.kafka import Broker, free_port
from tablegate.gateway.contract.types import MARKER_KEY
from tablegate.jobs.errors import JobError
from tablegate.jobs.kafka.job_group import JobGroup, Tenure, job_group
from tablegate.jobs.kafka.markers import Markers
from tablegate.jobs.kafka.topics import (
    CLIENT_STAYS_S,
    LEADERS_KEPT_MS,
    MANIFESTS_SETTINGS,
    MANIFESTS_TOPIC,
    KafkaAdmin,
    Topic,
    _Client,
    _client,
)
from tablegate.v1.changelog_pb2 import Manifest, ProgressMarker
from tests.kit.programs.kafka import NewRecord, consume, new_topic, nobody, produce

pytestmark = pytest.mark.jvm

WAIT_S = 30.0


def test_markers_are_written_again(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    topic = new_topic(broker.bootstrap, 2)
    markers = Markers(broker.bootstrap, Topic(topic, "", 2), generation=1)
    markers._producer = Producer(nobody(**{"message.timeout.ms": 100}))
    deadline = time.monotonic() + WAIT_S
    batch_id = 0
    while not (found := consume(broker.bootstrap, topic)):
        assert time.monotonic() < deadline
        batch_id += 1
        markers.publish({"batchId": batch_id, "sources": []})
        time.sleep(0.2)
    markers.close()
    assert {record.partition for record in found} <= {0, 1}
    assert all(ProgressMarker.FromString(record.value or b"").batch_id > 1 for record in found)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["event"], line["topic"]) for line in lines] == [("marker_lost", topic)]


def test_all_of_a_process_ask_by_one_client(broker: Broker) -> None:
    asked = """
import gc, sys, threading
from pathlib import Path
from tablegate.jobs.kafka.topics import KafkaAdmin

for _ in range(5):
    holder = [KafkaAdmin(sys.argv[1])]
    future = holder[0].ask_topics(["missing"])["missing"]
    ended = threading.Event()
    # As where a garbage collection in the client's own thread frees who asked.
    future.add_done_callback(lambda _: (holder.clear(), gc.collect(), ended.set()))
    assert ended.wait(30)
threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
print(threads.count("rdk:main"))
"""
    run = subprocess.run([sys.executable, "-c", asked, broker.bootstrap], check=False, capture_output=True, text=True)
    assert (run.stdout, run.stderr, run.returncode) == ("1\n", "", 0)


def test_threads_that_ask_first_at_once_ask_by_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    bootstrap, ready, found = f"127.0.0.1:{free_port()}", threading.Barrier(16), list[object]()

    def slow_client(options: dict[str, str]) -> AdminClient:
        time.sleep(0.05)  # as on a busy machine: the others come meanwhile
        return AdminClient(options)

    monkeypatch.setattr("tablegate.jobs.kafka.topics.AdminClient", slow_client)

    def ask() -> None:
        ready.wait()
        found.append(KafkaAdmin(bootstrap)._admin)

    threads = [threading.Thread(target=ask) for _ in range(ready.parties)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == ready.parties
    assert len(set(map(id, found))) == 1


def test_a_new_topic_tells_its_offsets_at_once(broker: Broker) -> None:
    cluster = KafkaAdmin(broker.bootstrap)
    for number in range(10):
        topic = cluster.ensure(f"new-{number}", {}, partition_count=50)
        assert set(cluster.end_offsets(topic).values()) == {0}


def test_offsets_are_asked_of_leaders_that_are_known(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Where the client looks for the leader in the same question, it may end the process: `_Client`."""
    verbose = _Client(broker.bootstrap, kept_ms=LEADERS_KEPT_MS, options={"log_level": 7, "debug": "metadata"})
    monkeypatch.setattr("tablegate.jobs.kafka.topics._client", lambda _: verbose)
    cluster, topic = KafkaAdmin(broker.bootstrap), Topic(new_topic(broker.bootstrap), "", 1)
    assert cluster.end_offsets(topic) == {0: 0}
    (first,) = cluster.ask_ends([topic]).values()
    assert first.result(WAIT_S).offset == 0
    time.sleep(2.0)  # as long as a leader was known before
    (second,) = cluster.ask_ends([topic]).values()
    assert second.result(WAIT_S).offset == 0
    logged = capfd.readouterr().err
    assert topic.name in logged
    assert "query partition leaders" not in logged


def test_ends_are_asked_after_a_description(broker: Broker) -> None:
    cluster, topic = KafkaAdmin(broker.bootstrap), Topic(new_topic(broker.bootstrap, 2), "", 2)
    answers = [answer.exception(WAIT_S) for answer in cluster.ask_ends([topic]).values()]
    assert [type(error) for error in answers] == [KafkaException] * 2
    deadline = time.monotonic() + WAIT_S
    while [answer.exception(WAIT_S) for answer in cluster.ask_ends([topic]).values()] != [None, None]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    missing = Topic("no-such-topic", "", 1)
    with pytest.raises(JobError, match="no-such-topic"):
        cluster.end_offsets(missing)


def test_a_client_that_nobody_answers_is_replaced() -> None:
    bootstrap = f"127.0.0.1:{free_port()}"
    cluster = KafkaAdmin(bootstrap)
    first = id(cluster._admin)  # no reference, which would keep it
    _client(bootstrap).replace()
    assert id(cluster._admin) == first  # it is new, and another thread may wait for it
    _client(bootstrap)._made_s -= CLIENT_STAYS_S
    _client(bootstrap).current.described.add("orders")
    pending = cluster.ask_ends([Topic("orders", "", 1)]).values()
    _client(bootstrap).replace()
    second = id(cluster._admin)
    assert second != first
    _client(bootstrap)._made_s -= CLIENT_STAYS_S
    with pytest.raises(JobError, match="no Kafka broker answers"):
        cluster.find("orders")
    assert id(cluster._admin) != second
    assert [type(answer.exception(WAIT_S)) for answer in pending] == [KafkaException]


def test_a_job_whose_group_another_has_joined_begins_no_run(broker: Broker) -> None:
    table = new_topic(broker.bootstrap, prefix="table")
    KafkaAdmin(broker.bootstrap).ensure(MANIFESTS_TOPIC, MANIFESTS_SETTINGS, partition_count=1)
    frozen = JobGroup.join(broker.bootstrap, table, job_group(table), generation=1)
    frozen.check_kept()
    frozen._consumer.unsubscribe()  # as the broker ends a member that is silent
    other = JobGroup.join(broker.bootstrap, table, job_group(table), generation=1)
    other.check_kept()
    with pytest.raises(JobError, match="is kept by another job"):
        frozen.check_kept()
    other.leave()
    frozen.check_kept()  # nobody has the table: it may go on
    frozen.leave()


def test_who_was_left_out_of_its_group_has_another_tenure(broker: Broker) -> None:
    table = new_topic(broker.bootstrap, prefix="table")
    KafkaAdmin(broker.bootstrap).ensure(MANIFESTS_TOPIC, MANIFESTS_SETTINGS, partition_count=1)
    frozen = JobGroup.join(broker.bootstrap, table, job_group(table), generation=1)
    before = frozen.tenure(since_joining=True)
    assert frozen.tenure() == before
    # As the broker leaves out a member that is silent.
    frozen._consumer.unsubscribe()
    other = JobGroup.join(broker.bootstrap, table, job_group(table), generation=1)
    frozen._has_assignment = True  # it does not know yet
    with pytest.raises(JobError, match="is kept by another job"):
        frozen.tenure()
    other.leave()
    frozen._subscribe()
    assert frozen.tenure() != before
    with pytest.raises(JobError, match="may have been published by another while this one stood still"):
        frozen.tenure(since_joining=True)
    frozen.leave()


def test_who_was_left_out_while_brokers_were_away_comes_back(tmp_path: Path) -> None:
    with Broker(tmp_path / "kafka") as own_broker:
        KafkaAdmin(own_broker.bootstrap).ensure(MANIFESTS_TOPIC, MANIFESTS_SETTINGS, partition_count=1)
        job = JobGroup.join(own_broker.bootstrap, "table", job_group("table"), generation=1)
        before = job.tenure()
        deadline = time.monotonic() + WAIT_S
        os.kill(own_broker.pid, signal.SIGSTOP)
        try:
            while not job._is_left_out:
                assert time.monotonic() < deadline
                job.poll()
                time.sleep(0.1)
            job.poll()
        finally:
            os.kill(own_broker.pid, signal.SIGCONT)
        assert job.tenure() != before
        job.leave()


def test_a_run_that_begins_late_has_a_lower_number(broker: Broker) -> None:
    topic = Topic(new_topic(broker.bootstrap, 2), "", 2)
    frozen, other = (Markers(broker.bootstrap, topic, generation=1) for _ in range(2))
    asked, numbers = [], []

    def freeze_behind_the_last_answer() -> Tenure:
        asked.append(Tenure("frozen", 1))
        if len(asked) == 2:
            numbers.append(other.begin_run(lambda: Tenure("other", 1)))
        return asked[-1]

    numbers.append(frozen.begin_run(freeze_behind_the_last_answer))
    assert numbers[0] > numbers[1]
    for partition in (0, 1):
        begun = [
            ProgressMarker.FromString(record.value or b"").run
            for record in consume(broker.bootstrap, topic.name)
            if record.partition == partition and record.key != MARKER_KEY
        ]
        assert begun == numbers, "the later run has begun first"


def test_a_run_has_no_number_from_before_another_one(broker: Broker) -> None:
    topic = Topic(new_topic(broker.bootstrap, 2), "", 2)
    frozen, other = (Markers(broker.bootstrap, topic, generation=1) for _ in range(2))
    tenures = iter([Tenure("frozen", 1), Tenure("woken", 2), Tenure("woken", 2)])
    numbers = []

    def freeze_behind_the_first_answer() -> Tenure:
        tenure = next(tenures)
        if tenure.changes == 2 and not numbers:  # another has had the table, and has left it
            numbers.append(other.begin_run(lambda: Tenure("other", 1)))
        return tenure

    assert frozen.begin_run(freeze_behind_the_first_answer) > numbers[0]


def test_a_job_stays_the_member_of_its_group_and_hears_of_generations(broker: Broker) -> None:
    table = new_topic(broker.bootstrap, prefix="table")
    cluster = KafkaAdmin(broker.bootstrap)
    cluster.ensure(MANIFESTS_TOPIC, MANIFESTS_SETTINGS, partition_count=1)
    job = JobGroup.join(broker.bootstrap, table, job_group(table), generation=1, forgotten_within_s=0.5)
    assert [member.client_id for member in cluster.members(job_group(table))] == ["tablegate-generation-1"]
    job._consumer.close()  # it revokes what it had, as one does that hears nothing of its group for long
    job._consumer = Consumer(nobody(**{"group.id": "deaf"}))
    assert cluster.members(job_group(table)) == []

    manifest = Manifest(table=table, generation=2)
    produce(broker.bootstrap, MANIFESTS_TOPIC, [NewRecord(table.encode(), manifest.SerializeToString())])
    deadline = time.monotonic() + WAIT_S
    while job.poll() != 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert [member.client_id for member in cluster.members(job_group(table))] == ["tablegate-generation-1"]
    job.leave()
