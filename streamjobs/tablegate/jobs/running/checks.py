"""Checks a declaration against its contract and against Spark, without Kafka: `tablegate job check`.

Its queries are those of a job, and are started as a job starts them: over sources that have no record, so that
Kafka, the sink, is never asked for.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from tablegate.jobs.dataflow.frames import build
from tablegate.jobs.dataflow.history import histories, history_frame
from tablegate.jobs.dataflow.java_classes import java_class, scala_object
from tablegate.jobs.dataflow.java_errors import error_reason, thrown_reason
from tablegate.jobs.dataflow.sources import HEADERS_SCHEMA
from tablegate.jobs.errors import JobError
from tablegate.jobs.frame_table import Declared
from tablegate.jobs.planning.plan import Plan, plan_without_cluster
from tablegate.jobs.running.checkpoint import Checkpoint
from tablegate.jobs.running.outputs import output_queries
from tablegate.jobs.running.queries import start
from tablegate.jobs.running.session import MICROBATCH_SLOTS, check_realtime, spark_session, table_session
from tablegate.jobs.table import Mode

PLANNED_WITHIN_S = 60.0  # for the first batch of a query, which takes a second
POLL_S = 0.02
_STREAMING = "org.apache.spark.sql.execution.streaming"


@contextmanager
def check_session(tables: Sequence[Declared], spark_log: Path | None) -> Iterator[SparkSession]:
    """Start Spark with as many threads as one of the tables may need; raise `JobError`."""
    slots = MICROBATCH_SLOTS + max((_topics(table) for table in tables), default=0) + 1
    with (
        tempfile.TemporaryDirectory(prefix="tablegate-check-") as scratch,
        spark_session("tablegate check", master=f"local[{slots}]", checkpoints=scratch, spark_log=spark_log) as spark,
    ):
        yield spark


def _topics(table: Declared) -> int:
    return sum(len(table.source_of(side).topics) for side in table.all_sides)


def check_table(spark: SparkSession, table: Declared) -> None:
    """Raise `JobError` where a job could not keep the table."""
    with tempfile.TemporaryDirectory(prefix="tablegate-check-") as scratch:
        plan = plan_without_cluster(table, scratch)
        if plan.mode is Mode.REALTIME:
            check_realtime(spark.version, table.declared_at, table.name)
        session = table_session(spark, shuffle_partitions=plan.changelog.partition_count)
        before = {query.id for query in session.streams.active}
        try:
            outputs = output_queries(plan, Checkpoint(session, plan.outputs_checkpoint))
            shared = [query.outputs for query in outputs]
            frames = build(session, plan, row_outputs=True, other_outputs=shared, reader=_NoRecords(session))
            for side in histories(plan):
                history_frame(session, plan, side)
            _await_physical_plan(start(frames, plan, outputs=outputs).table, plan)
        except (PySparkException, Py4JError) as error:
            raise JobError(f'{table.declared_at}: table "{table.name}": {error_reason(error)}') from None
        finally:
            for query in session.streams.active:
                if query.id not in before:
                    with suppress(PySparkException, Py4JError):  # it ends with Spark at the latest
                        query.stop()


class _NoRecords:
    """Topics without a record, as Spark's own test sources give them."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        context = spark.sparkContext
        row = java_class(context, "org.apache.spark.sql.types.StructType").fromDDL(HEADERS_SCHEMA)
        self._encoder = java_class(context, "org.apache.spark.sql.Encoders").row(row)
        self._batched = scala_object(context, f"{_STREAMING}.runtime.MemoryStream")
        self._realtime = scala_object(context, f"{_STREAMING}.sources.LowLatencyMemoryStream")

    def stream(self, topics: Sequence[str], *, batched: bool, starting_offsets: str) -> DataFrame:  # noqa: ARG002 - see `Reader`
        """Return a stream that brings nothing; of micro-batches, there is not even a first one."""
        source = self._batched if batched else self._realtime
        return DataFrame(source.apply(self._spark._jsparkSession, 1, self._encoder).toDF(), self._spark)

    def read_all(self, topic: str) -> DataFrame:  # noqa: ARG002 - see `Reader`
        """Return no records."""
        return self._spark.createDataFrame([], HEADERS_SCHEMA)


def _await_physical_plan(query: StreamingQuery, plan: Plan) -> None:
    """Wait until Spark has accepted the physical plan for Real-time Mode, which shows when its first tasks run."""
    if plan.mode is Mode.MICROBATCH:
        return
    where = f'{plan.table.declared_at}: table "{plan.table.name}"'
    tracker = query._jsq.sparkSession().sparkContext().statusTracker()
    group = str(query._jsq.runId())
    end_s = time.monotonic() + PLANNED_WITHIN_S
    while not list(tracker.getJobIdsForGroup(group)):
        failure = query._jsq.exception()
        if failure.isDefined():
            reason = thrown_reason(failure.get())
            raise JobError(f"{where} does not run in Real-time Mode: {reason}; use mode=Mode.MICROBATCH")
        if time.monotonic() >= end_s:
            raise JobError(f"{where}: Spark does not plan it within {PLANNED_WITHIN_S:g} s; use --spark-log to see why")
        time.sleep(POLL_S)
