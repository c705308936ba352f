"""Real-time Mode beside micro-batches, which take slots and give them back."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from py4j.protocol import Py4JError
from pyspark import InheritableThread, StatusTracker
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from tablegate.examples.demo.kafka import Broker
from tablegate.jobs.dataflow.sources import KafkaReader
from tablegate.jobs.planning.options import Options
from tablegate.jobs.running.running_table import RESTARTS_MAX
from tablegate.jobs.running.session import spark_session
from tablegate.jobs.testing import stop_spark
from tests.kit.job.counting_job import JobInProcess, Written, orders, write_job, written
from tests.kit.job.process import wait_until
from tests.kit.programs.kafka import NewRecord, consume, new_topic, produce

pytestmark = pytest.mark.jvm

SLOTS = 3  # one for the source's partition, one for the shuffle's, one for others
BUSY = "busy"


@pytest.fixture(autouse=True)
def no_other_spark() -> None:
    """That of another module's declarations has other slots."""
    stop_spark()


def test_realtime_batch_waits_for_slots_that_others_have(broker: Broker, tmp_path: Path) -> None:
    source, out = (new_topic(broker.bootstrap) for _ in range(2))
    produce(broker.bootstrap, source, [NewRecord(b"a", b"1")])
    with spark_session(
        "slots", master=f"local[{SLOTS}]", checkpoints=str(tmp_path), spark_log=tmp_path / "spark.log"
    ) as spark:
        spark.conf.set("spark.sql.shuffle.partitions", 1)
        tracker = spark.sparkContext.statusTracker()
        with _busy_slots(spark, SLOTS):
            records = KafkaReader(spark, broker.bootstrap).stream([source], batched=False, starting_offsets="earliest")
            counts = records.groupBy("key").count().select("key", sql.expr("CAST(`count` AS STRING) AS value"))
            query = (
                counts.writeStream.format("kafka")
                .option("kafka.bootstrap.servers", broker.bootstrap)
                .option("topic", out)
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .outputMode("update")
                .trigger(realTime="5 seconds")
                .start()
            )
            try:
                wait_until("a job of the query", lambda: len(tracker.getActiveJobsIds()) > 1 or not query.isActive)
                assert query.exception() is None
                spark.sparkContext.cancelJobGroup(BUSY)
                wait_until("a row", lambda: bool(consume(broker.bootstrap, out)) or not query.isActive)
                assert query.exception() is None
                assert [(record.key, record.value) for record in consume(broker.bootstrap, out)] == [(b"a", b"1")]
            finally:
                query.stop()


def test_a_batch_that_never_ends_is_begun_again(
    broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = new_topic(broker.bootstrap)
    job = write_job(tmp_path, "never_ends", topic, more="mode=Mode.REALTIME")
    produce(broker.bootstrap, topic, orders("ann", 3))
    checkpoints = str(tmp_path / "checkpoints")
    options = Options(bootstrap=broker.bootstrap, checkpoints=checkpoints, partition_count=1)
    with (
        spark_session("slots", master=f"local[{SLOTS}]", checkpoints=checkpoints, spark_log=tmp_path / "log") as spark,
        _busy_slots(spark, SLOTS - 1),  # who reads has no slot, so who writes waits for it
        JobInProcess(spark, job, options, stalled_s=1.0) as running,
    ):
        logged = ""

        def is_begun_again() -> bool:
            nonlocal logged
            running.table.poll()
            logged += capsys.readouterr().out
            return logged.count('"stalled"') > RESTARTS_MAX  # however often, as a lost worker may be away for long

        wait_until("new starts of the query", is_begun_again)
        spark.sparkContext.cancelJobGroup(BUSY)
        running.run_until_read(topic, 3)
    events = [json.loads(line) for line in logged.splitlines()]
    assert all("has not ended after" in event["reason"] for event in events if event["event"] == "stalled")
    # All times: at one of them the query may not have had a task yet.
    tasks = " ".join(task for event in events if event["event"] == "stuck_tasks" for task in event["tasks"])
    assert "StreamingShuffleWriter" in tasks
    assert "java.lang.Thread.sleep" in tasks
    assert written(broker.bootstrap, job)[-1] == Written("ann", 3, 3, 0.0, run=0)


@contextmanager
def _busy_slots(spark: SparkSession, slots: int) -> Iterator[None]:
    """Have tasks in so many slots, until the job group `BUSY` is cancelled."""
    context = spark.sparkContext

    def hold() -> None:
        context.setJobGroup(BUSY, "takes slots", interruptOnCancel=True)
        sleeping = sql.expr("java_method('java.lang.Thread', 'sleep', 600000L)")
        with suppress(Py4JError, PySparkException):  # it is cancelled
            spark.range(0, slots, 1, slots).select(sleeping).collect()

    holder = InheritableThread(target=hold, daemon=True)
    holder.start()
    try:
        wait_until("tasks in the slots", lambda: _active_tasks(context.statusTracker()) == slots)
        yield
    finally:
        context.cancelJobGroup(BUSY)
        holder.join()


def _active_tasks(tracker: StatusTracker) -> int:
    infos = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return sum(info.numActiveTasks for info in infos if info is not None)
