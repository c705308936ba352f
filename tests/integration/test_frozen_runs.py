"""Who freezes between its last check and its first record, and wakes when another has the table: nothing of it counts.

The one process is real, and frozen by SIGSTOP behind the answer that nobody else has the table.
"""

import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from tablegate.examples.demo.kafka import Broker
from tablegate.gateway.contract.types import MARKER_KEY, RUN_HEADER, is_marker_key
from tablegate.jobs import FrameTable
from tablegate.jobs.kafka.job_group import SESSION_TIMEOUT_MS
from tablegate.jobs.kafka.topics import BROKER_TIMEOUT_S
from tablegate.jobs.publishing import publish, publish_batch
from tablegate.v1.changelog_pb2 import ProgressMarker
from tests.kit.gateway_processes.gateway import GatewayProcess, soon
from tests.kit.job.counting_job import orders, rows, write_job, written
from tests.kit.job.process import WAIT_S, JobProcess, wait_until
from tests.kit.job.scores.declared import Scores, write_contract
from tests.kit.job.scores.publisher import SCHEMA
from tests.kit.job.user_session import user_session
from tests.kit.programs.kafka import RawRecord, consume, new_topic, produce

pytestmark = pytest.mark.jvm

CHECKS = (
    pytest.param(1, id="before it has a number", marks=pytest.mark.long),
    pytest.param(2, id="when it has a number"),
)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with user_session() as session:
        yield session


@pytest.fixture
def name() -> str:
    return f"scores_{uuid.uuid4().hex[:8]}"


@pytest.fixture
def table(tmp_path: Path, name: str) -> FrameTable:
    return FrameTable(name=name, contract=str(write_contract(tmp_path, name)), order="scored_at")


@pytest.fixture
def scores(broker: Broker, tmp_path: Path, table: FrameTable) -> Iterator[Scores]:
    with GatewayProcess(tmp_path / "data", broker.bootstrap, contract=Path(table.contract), workers=1) as gateway:
        yield Scores(gateway, Path(table.contract))


def frame(spark: SparkSession, user: int, score: float) -> DataFrame:
    row = spark.createDataFrame([(user, score, "m")], "user BIGINT, score DOUBLE, model STRING")
    return row.withColumn("scored_at", sql.expr("TIMESTAMP '2026-01-01 00:00:00Z'"))


def freezing(directory: Path, check: int, module: str, *arguments: str) -> JobProcess:
    command = (sys.executable, "-m", "tests.kit.job.freezing", str(check), module)
    return JobProcess(directory, *arguments, command=command)


def begun(bootstrap: str, table: str) -> list[int]:
    """Return the numbers of the runs that were begun in a changelog, in the order of the first partition."""
    return [
        ProgressMarker.FromString(record.value or b"").run
        for record in consume(bootstrap, f"{table}-g1-changelog")
        if record.partition == 0 and is_marker_key(record.key) and record.key != MARKER_KEY
    ]


def row_records(bootstrap: str, table: str) -> list[RawRecord]:
    return [record for record in consume(bootstrap, f"{table}-g1-changelog") if not is_marker_key(record.key)]


def written_keys(bootstrap: str, table: str) -> set[bytes | None]:
    return {record.key for record in row_records(bootstrap, table)}


def check_outnumbered(before: list[int], after: list[int]) -> None:
    """Fail where the first run that has begun since has a higher number than those before; the last of them counts."""
    assert before == sorted(before) != []
    assert after[: len(before)] == before
    assert all(run < before[-1] for run in after[len(before) :][:1]), f"{after} begins with {before}"


@pytest.mark.parametrize("check", CHECKS)
def test_a_frozen_batch_adds_no_row_behind_another(
    spark: SparkSession,
    broker: Broker,
    name: str,
    table: FrameTable,
    scores: Scores,
    tmp_path: Path,
    check: int,
) -> None:
    publish_batch(frame(spark, 1, 0.5), table, bootstrap=broker.bootstrap, partitions=1)
    frame(spark, 9, 9.0).write.parquet(str(tmp_path / "rows"))
    arguments = (broker.bootstrap, name, table.contract, str(tmp_path / "rows"))
    with freezing(tmp_path / "frozen", check, "tests.kit.job.scores.publisher", *arguments) as frozen:
        frozen.wait_frozen()
        publish_batch(frame(spark, 2, 0.7), table, bootstrap=broker.bootstrap)
        before = begun(broker.bootstrap, name)
        frozen.thaw()
        assert frozen.process.wait(120) != 0
    assert "JobError: table" in frozen.errors(), "it says what happened"
    check_outnumbered(before, begun(broker.bootstrap, name))
    publish_batch(frame(spark, 3, 0.3), table, bootstrap=broker.bootstrap)
    soon(lambda: scores.all().keys() >= {1, 2, 3}, "rows of the others")
    assert scores.all() == {1: (0.5, "m"), 2: (0.7, "m"), 3: (0.3, "m")}


@pytest.mark.long  # its run begins as that of a batch, and ends as that of a job: both are held by day
@pytest.mark.parametrize("check", CHECKS)
def test_a_frozen_stream_takes_no_row_from_another(
    spark: SparkSession,
    broker: Broker,
    name: str,
    table: FrameTable,
    scores: Scores,
    tmp_path: Path,
    check: int,
) -> None:
    rows, checkpoint = str(tmp_path / "rows"), str(tmp_path / "checkpoint")
    frame(spark, 1, 0.5).write.parquet(rows)
    stream = spark.readStream.schema(SCHEMA).parquet(rows)
    first = publish(stream, table, bootstrap=broker.bootstrap, checkpoint=checkpoint, available_now=True)
    assert first.awaitTermination(60)
    arguments = (broker.bootstrap, name, table.contract, rows, checkpoint)
    with freezing(tmp_path / "frozen", check, "tests.kit.job.scores.publisher", *arguments) as frozen:
        frozen.wait_frozen()
        query = publish(stream, table, bootstrap=broker.bootstrap, checkpoint=checkpoint)
        try:
            before = begun(broker.bootstrap, name)
            frozen.thaw()
            wait_until("end of the one that woke", lambda: frozen.process.poll() is not None)
            check_outnumbered(before, begun(broker.bootstrap, name))
            frame(spark, 2, 0.7).write.mode("append").parquet(rows)
            soon(lambda: scores.all() == {1: (0.5, "m"), 2: (0.7, "m")}, "the next row of the other")
        finally:
            query.stop()


@pytest.mark.parametrize("check", CHECKS)
def test_a_frozen_job_takes_no_row_from_another(broker: Broker, tmp_path: Path, check: int) -> None:
    topic = new_topic(broker.bootstrap, 2)
    name = f"frozen_{uuid.uuid4().hex[:8]}"
    job = write_job(tmp_path, name, topic)
    arguments = ["--table", job, "--bootstrap", broker.bootstrap, "--checkpoints", str(tmp_path / "checkpoints")]
    with freezing(tmp_path / "frozen", check, "tablegate.jobs.running", *arguments) as frozen:
        frozen.wait_frozen()
        with JobProcess(tmp_path / "second", *arguments) as second:
            second.wait_for("running")
            produce(broker.bootstrap, topic, orders("ann", 3))
            wait_until("a row of the second job", lambda: rows(broker.bootstrap, job) == {"ann": (3, 0.0)}, second)
            before = begun(broker.bootstrap, name)
            frozen.thaw()
            wait_until("end of the one that woke", lambda: frozen.process.poll() is not None, second)
            check_outnumbered(before, begun(broker.bootstrap, name))
            assert second.stop() == 0


def test_a_job_that_wakes_when_another_has_gone_begins_a_run(broker: Broker, tmp_path: Path) -> None:
    topic = new_topic(broker.bootstrap, 2)
    name = f"woken_{uuid.uuid4().hex[:8]}"
    job = write_job(tmp_path, name, topic)
    arguments = ["--table", job, "--bootstrap", broker.bootstrap, "--checkpoints", str(tmp_path / "checkpoints")]
    with JobProcess(tmp_path / "frozen", *arguments) as frozen:
        frozen.wait_for("running")
        frozen.freeze()
        with JobProcess(tmp_path / "second", *arguments) as second:
            second.wait_for("running")
            assert second.stop() == 0
        frozen.thaw()
        frozen.wait_for("left_out")
        produce(broker.bootstrap, topic, orders("ann", 3))
        wait_until("its row", lambda: rows(broker.bootstrap, job) == {"ann": (3, 0.0)}, frozen)
        assert frozen.stop() == 0
    assert written(broker.bootstrap, job)[-1].run == begun(broker.bootstrap, name)[-1], "of the newest run"


def test_a_stream_outlasts_brokers_that_are_away(
    spark: SparkSession, name: str, table: FrameTable, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = str(tmp_path / "rows")
    frame(spark, 1, 0.5).write.parquet(rows)
    stream = spark.readStream.schema(SCHEMA).parquet(rows)
    with Broker(tmp_path / "kafka") as broker:
        query = publish(stream, table, bootstrap=broker.bootstrap, checkpoint=str(tmp_path / "checkpoint"))
        committed = tmp_path / "checkpoint" / "table" / "commits"
        try:
            wait_until("the first batch", (committed / "0").exists)
            with frozen(broker):
                # Longer than a silent member stays in the group, and than a question to Kafka may take.
                time.sleep(BROKER_TIMEOUT_S + SESSION_TIMEOUT_MS / 1_000)
            frame(spark, 2, 0.7).write.mode("append").parquet(rows)
            wait_until("the next batch", (committed / "1").exists)
            # In the midst of a batch: its rows are written, what follows them is not.
            for batch in range(2, 6):
                with Watched(broker.bootstrap, f"{name}-g1-changelog") as watched:
                    frame(spark, batch + 1, 0.9).write.mode("append").parquet(rows)
                    watched.wait_for_row()
                    time.sleep(0.01)  # Spark has heard of it, too
                    with frozen(broker):
                        time.sleep(BROKER_TIMEOUT_S)
                        bit = not (committed / str(batch)).exists()
                        time.sleep(2 * BROKER_TIMEOUT_S if bit else 0)
                wait_until("the batch", (committed / str(batch)).exists)
                if "brokers_away" in capsys.readouterr().out:
                    break
            else:
                pytest.fail("brokers were never away behind the rows of a batch")
            assert query.isActive
            assert len(written_keys(broker.bootstrap, name)) == batch + 1
        finally:
            query.stop()


@contextmanager
def frozen(broker: Broker) -> Iterator[None]:
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


class Watched:
    """Sees the next row of a changelog as soon as Kafka has it."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "watched", "fetch.wait.max.ms": 10_000})
        partitions = self._consumer.list_topics(topic, timeout=10).topics[topic].partitions
        ends = [self._consumer.get_watermark_offsets(TopicPartition(topic, each))[1] for each in partitions]
        self._consumer.assign([TopicPartition(topic, each, end) for each, end in zip(partitions, ends, strict=True)])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def wait_for_row(self) -> None:
        end_s = time.monotonic() + WAIT_S
        while time.monotonic() < end_s:
            record = self._consumer.poll(1)
            if record is not None and record.error() is None and not is_marker_key(record.key()):
                return
        pytest.fail("no row came")


def test_a_stream_that_wakes_beside_another_fails_in_its_program(
    spark: SparkSession, broker: Broker, name: str, table: FrameTable, tmp_path: Path
) -> None:
    rows, checkpoint = str(tmp_path / "rows"), tmp_path / "checkpoint"
    frame(spark, 1, 0.5).write.parquet(rows)
    command = (sys.executable, "-m", "tests.kit.job.scores.publisher")
    arguments = (broker.bootstrap, name, table.contract, rows, str(checkpoint))
    with JobProcess(tmp_path / "frozen", *arguments, command=command) as frozen:
        wait_until("the first batch", (checkpoint / "table" / "commits" / "0").exists, frozen)
        frozen.freeze()
        stream = spark.readStream.schema(SCHEMA).parquet(rows)
        query = publish(stream, table, bootstrap=broker.bootstrap, checkpoint=str(checkpoint))
        try:
            frozen.thaw()
            assert frozen.process.wait(120) != 0
            assert query.isActive
        finally:
            query.stop()
    assert f'StreamingQueryException: table "{name}" is kept by another' in frozen.errors(), "it says what happened"
    assert query.awaitTermination(60)
    assert query.exception() is None, "it was stopped by its program"


def test_a_stream_that_wakes_when_another_has_gone_begins_a_run(
    spark: SparkSession, broker: Broker, name: str, table: FrameTable, scores: Scores, tmp_path: Path
) -> None:
    rows, checkpoint = str(tmp_path / "rows"), str(tmp_path / "checkpoint")
    frame(spark, 1, 0.5).write.parquet(rows)
    command = (sys.executable, "-m", "tests.kit.job.scores.publisher")
    arguments = (broker.bootstrap, name, table.contract, rows, checkpoint)
    with JobProcess(tmp_path / "frozen", *arguments, command=command) as frozen:
        committed = tmp_path / "checkpoint" / "table" / "commits" / "0"
        wait_until("the first batch", committed.exists, frozen)
        frozen.freeze()
        stream = spark.readStream.schema(SCHEMA).parquet(rows)
        query = publish(stream, table, bootstrap=broker.bootstrap, checkpoint=checkpoint)
        query.stop()
        assert query.awaitTermination(WAIT_S), "it has left the group"
        frozen.thaw()
        frame(spark, 2, 0.7).write.mode("append").parquet(rows)
        both = {1: (0.5, "m"), 2: (0.7, "m")}
        soon(lambda: scores.all() == both, "the next row", WAIT_S, why_not=frozen.errors)
    runs = {int.from_bytes(dict(record.headers)[RUN_HEADER], "big") for record in row_records(broker.bootstrap, name)}
    assert max(runs) == begun(broker.bootstrap, name)[-1], "its row is of the newest run"
