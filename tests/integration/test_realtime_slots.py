"""Real-time Mode beside micro-batches, which take slots and give them back."""

from contextlib import suppress
from pathlib import Path

import pytest
from py4j.protocol import Py4JError
from pyspark import InheritableThread, StatusTracker
from pyspark.errors import PySparkException
from pyspark.sql import functions as sql

from tablegate.examples.demo.kafka import Broker
from tablegate.jobs.dataflow.sources import KafkaReader
from tablegate.jobs.running.session import spark_session
from tests.kit.job.process import wait_until
from tests.kit.programs.kafka import NewRecord, consume, new_topic, produce

pytestmark = pytest.mark.jvm

SLOTS = 3  # one for the source's partition, one for the shuffle's, one for others
HELD = "held"


def test_realtime_batch_waits_for_slots_that_others_have(broker: Broker, tmp_path: Path) -> None:
    source, out = (new_topic(broker.bootstrap) for _ in range(2))
    produce(broker.bootstrap, source, [NewRecord(b"a", b"1")])
    with spark_session(
        "slots", master=f"local[{SLOTS}]", checkpoints=str(tmp_path), spark_log=tmp_path / "spark.log"
    ) as spark:
        spark.conf.set("spark.sql.shuffle.partitions", 1)
        context = spark.sparkContext

        def hold() -> None:
            context.setJobGroup(HELD, "takes every slot", interruptOnCancel=True)
            sleeping = sql.expr("java_method('java.lang.Thread', 'sleep', 600000L)")
            with suppress(Py4JError, PySparkException):  # it is cancelled
                spark.range(0, SLOTS, 1, SLOTS).select(sleeping).collect()

        holder = InheritableThread(target=hold, daemon=True)
        holder.start()
        tracker = context.statusTracker()
        wait_until("tasks in every slot", lambda: _active_tasks(tracker) == SLOTS)
        records = KafkaReader(spark, broker.bootstrap).stream(source, batched=False, starting_offsets="earliest")
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
            context.cancelJobGroup(HELD)
            wait_until("a row", lambda: bool(consume(broker.bootstrap, out)) or not query.isActive)
            assert query.exception() is None
            assert [(record.key, record.value) for record in consume(broker.bootstrap, out)] == [(b"a", b"1")]
        finally:
            query.stop()
            context.cancelJobGroup(HELD)
        holder.join()


def _active_tasks(tracker: StatusTracker) -> int:
    infos = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return sum(info.numActiveTasks for info in infos if info is not None)
