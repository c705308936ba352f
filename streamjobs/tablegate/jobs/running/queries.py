"""The running queries of a table: `start` starts a plan's frames, `QueryMonitor` watches them.

What goes to an output topic beside the table's changes, which have a version, goes through `IdempotentSink`, as its
records must not come twice.

Decision: docs/decisions/0012-no-record-stops-a-job.md
Decision: docs/decisions/0079-realtime-mode-starts-with-a-micro-batch.md
"""

import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sql
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from tablegate.gateway.contract.kafka_settings import spark_options
from tablegate.jobs import metrics
from tablegate.jobs.dataflow import sink_records
from tablegate.jobs.dataflow.frame_batches import output_mode_hint
from tablegate.jobs.dataflow.frames import Frames
from tablegate.jobs.dataflow.java_classes import HADOOP_PATH, IO_UTILS, java_class
from tablegate.jobs.dataflow.java_errors import error_reason, thrown_reason
from tablegate.jobs.dataflow.sink_records import UnseenFields, ignored_kinds_of, null_columns, uncomputable
from tablegate.jobs.errors import JobError
from tablegate.jobs.frame_table import FrameTable
from tablegate.jobs.kafka.markers import Markers, source_offsets
from tablegate.jobs.kafka.topics import KafkaAdmin, Topic
from tablegate.jobs.log import log
from tablegate.jobs.planning.plan import MICROBATCH_TRIGGER_S, Plan
from tablegate.jobs.running.atomic_sink import AtomicSink
from tablegate.jobs.running.checkpoint import Checkpoint
from tablegate.jobs.running.dead_letters import DeadLetters
from tablegate.jobs.running.frame_sink import FrameSink
from tablegate.jobs.running.query_errors import query_error
from tablegate.jobs.table import Mode, ProcessorOutput, RecordOutput

TABLE_QUERY = "table"
UNSEEN_RECORDS = 1_000  # without a field, before its name is taken for wrong
LOG_EVERY_S = 5.0
LOG_IDLE_EVERY_S = 60.0
_TOPICS_ID_CHARS = 22  # of what names several topics, as many as the id of one has


@dataclass(frozen=True, slots=True)
class RunningQueries:
    """The running queries of a table. `all` has those of outputs, too. `sink`: the table's own, if it has one.

    `is_catching_up`: the table's query ends by itself, and then `start_realtime` is to follow.
    """

    table: StreamingQuery
    all: tuple[StreamingQuery, ...]
    sink: AtomicSink | FrameSink | None = None
    is_catching_up: bool = False


def start(frames: Frames, plan: Plan, *, catch_up: bool = False, once: bool = False) -> RunningQueries:
    """Start the frames of a plan as streaming queries, the table's first; raise `JobError`.

    `catch_up`: a table in Real-time Mode first gets all records that there are, in one micro-batch. `once`: the queries
    end when they have worked off what there is. The checkpoints of the table's other outputs outlive generations: what
    was written is not written again because the table is built anew.
    """
    # The table's query first: its rows are waited for, and each start takes a second or more.
    starter = _Starter(frames.table.sparkSession, plan, run=frames.run, once=once)
    table = starter.start_table(frames.table, catch_up=catch_up)
    outputs = [starter.start_output(output, frame) for output, frame in frames.outputs]
    return RunningQueries(table, (table, *outputs), starter.sink, catch_up)


def start_realtime(frames: Frames, plan: Plan, caught_up: RunningQueries) -> RunningQueries:
    """Start the table's query in Real-time Mode, where the one that caught up has ended; raise `JobError`."""
    caught_up.table.awaitTermination()  # Spark gives its name free a moment after it says that it has ended
    table = _Starter(frames.table.sparkSession, plan, run=frames.run).start_table(frames.table, catch_up=False)
    return replace(caught_up, table=table, all=(table, *caught_up.all[1:]), is_catching_up=False)


def start_history(frames: Frames, plan: Plan) -> StreamingQuery:
    """Start the table's query over frames that end, before its first run begins; raise `JobError`.

    Its records have no run, and so always count: whoever writes them writes the same.
    """
    return _Starter(frames.table.sparkSession, plan, run=None).start_table(frames.table, catch_up=True)


def with_run(frames: Frames, plan: Plan, run: int) -> Frames:
    """Return the frames with the number of the run in each record of the changelog, beside its version."""
    if isinstance(plan.table, FrameTable):
        return replace(frames, run=run)
    return replace(frames, table=sink_records.with_run(frames.table, plan.changelog.name, run), run=run)


class _Starter:
    """Starts the queries of one plan; every method raises `JobError`."""

    def __init__(self, spark: SparkSession, plan: Plan, *, run: int | None, once: bool = False) -> None:
        self._plan = plan
        self._once = once
        self._output_mode = plan.table.output_mode if isinstance(plan.table, FrameTable) else "update"
        self.sink = _sink(plan, run)
        self._checkpoint = Checkpoint(spark, plan.checkpoint)
        self._outputs_checkpoint = Checkpoint(spark, plan.outputs_checkpoint)

    def start_table(self, frame: DataFrame, *, catch_up: bool) -> StreamingQuery:
        """Start the query that keeps the table, or the one before it that works off what there is."""
        writer = frame.writeStream.outputMode(self._output_mode)
        if catch_up:
            # Its source has no limit in Real-time Mode. So this is one batch, after one that was planned already.
            writer = writer.trigger(availableNow=True)
        elif self._plan.mode is Mode.REALTIME:
            writer = writer.trigger(realTime=_interval(self._plan.batch_s))
        else:
            writer = self._in_batches(writer, self._plan.batch_s)
        if self.sink is not None:
            writer = writer.foreachBatch(self.sink.write_batch)
        return self._start(writer, TABLE_QUERY, self._checkpoint, to_kafka=self.sink is None)

    def start_output(self, output: RecordOutput | ProcessorOutput, frame: DataFrame) -> StreamingQuery:
        """Start the query of an output that is not made from the table's changes."""
        interval_s = max(self._plan.table.emit_interval_s or 0.0, MICROBATCH_TRIGGER_S)
        if isinstance(output, ProcessorOutput):
            interval_s = output.processor.every_s or interval_s
        writer = self._in_batches(frame.writeStream.outputMode("update"), interval_s)
        # A source that was deleted and made again is read from its start: its offsets are others.
        ids = [side.topic.topic_id for side in self._plan.topics_of(output.side or "")]
        of_all = ids[0] if len(ids) == 1 else hashlib.sha256("-".join(ids).encode()).hexdigest()[:_TOPICS_ID_CHARS]
        name = f"{output.topic}-{of_all}"
        sink = IdempotentSink(self._plan.bootstrap, output.topic, self._outputs_checkpoint)
        return self._start(writer.foreachBatch(sink.write_batch), name, self._outputs_checkpoint, to_kafka=False)

    def _in_batches(self, writer: DataStreamWriter, every_s: float) -> DataStreamWriter:
        return writer.trigger(availableNow=True) if self._once else writer.trigger(processingTime=_interval(every_s))

    def _start(
        self, writer: DataStreamWriter, name: str, checkpoint: Checkpoint, *, to_kafka: bool = True
    ) -> StreamingQuery:
        if to_kafka:
            writer = writer.format("kafka").options(**spark_options(self._plan.bootstrap))
            writer = writer.option("includeHeaders", "true")
        writer = writer.queryName(f"{self._plan.table.name}-{name}").option(
            "checkpointLocation", checkpoint.query_location(name)
        )
        checkpoint.discard_uncommitted(name)
        try:
            return writer.start()
        except PySparkException as error:
            table = self._plan.table
            hint = output_mode_hint(error, self._output_mode) if isinstance(table, FrameTable) else ""
            raise JobError(
                f'{table.declared_at}: table "{table.name}" does not run: {error_reason(error)}{hint}'
            ) from None


def _sink(plan: Plan, run: int | None) -> AtomicSink | FrameSink | None:
    if isinstance(plan.table, FrameTable):
        return FrameSink(plan, run)
    return AtomicSink(plan) if plan.table.atomic else None


def _interval(seconds: float) -> str:
    return f"{round(seconds * 1000)} milliseconds"


class _Progress:
    """The progress reports of one query, each once. Spark makes one for each batch, and one a second without data."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query: Any = query._jsq
        self._seen: tuple[int, str] | None = None
        self._data_end_s: float | None = None  # when the newest batch with data ended; of the first, too, without
        self._idle_begin_s = -math.inf  # when the newest batch without data began
        self._is_stopped = False

    def unseen(self) -> list[dict[str, Any]]:
        """Return the reports since those that were returned before, as far as Spark has kept them, the newest last."""
        newest = self._query.lastProgress()
        if newest is None or _name(newest) == self._seen:
            return []
        # The number alone is no name: without data Spark reports the same batch again, once a second.
        seen, self._seen = self._seen, None
        unseen: list[dict[str, Any]] = []
        for report in reversed(self._query.recentProgress()):
            name = _name(report)
            if name == seen:
                break
            self._seen = self._seen or name
            unseen.append(json.loads(report.json()))
        for parsed in unseen[::-1]:
            self._note_times(parsed)
        return unseen[::-1]

    def _note_times(self, report: Mapping[str, Any]) -> None:
        if "addBatch" not in report["durationMs"]:
            return
        begin_s = datetime.fromisoformat(report["timestamp"]).timestamp()
        # The first may be one that a job before has planned, and then has the time of that day.
        is_first = self._data_end_s is None
        if is_first or any(source["startOffset"] != source["endOffset"] for source in report["sources"]):
            self._data_end_s = begin_s + report["durationMs"]["triggerExecution"] / 1000
        else:
            self._idle_begin_s = begin_s

    def stop_where_worked_off(self, timers_s: float) -> None:
        """Stop a query that has run a batch without data, at least `timers_s` after the newest with data.

        By then the timers have run that this data set. Spark ends by itself a query that is to work off what there is,
        but where there may be timers: for these it runs batches without data for ever.
        """
        if self._data_end_s is None or self._idle_begin_s < self._data_end_s + timers_s or not self._query.isActive():
            return
        self._is_stopped = True  # whatever it says of the batch that is interrupted
        with suppress(Py4JJavaError):  # it needs more time than Spark waits; it is asked again
            self._query.stop()

    @property
    def has_new_data(self) -> bool:
        """Whether the query has found something in its sources that it has not worked off."""
        return bool(self._query.status().isDataAvailable())

    @property
    def has_ended(self) -> bool:
        """Whether the query has done all that it had to."""
        return not self._query.isActive() and (self._is_stopped or not self._query.exception().isDefined())

    def check(self, plan: Plan, *, may_end: bool) -> None:
        """Raise where the query has failed or was stopped: `JobError`, or why the job is to start it again.

        `may_end`: it ends by itself, maybe since it was asked last.
        """
        if self._query.isActive() or self._is_stopped:
            return
        failure = self._query.exception()
        if may_end and not failure.isDefined():
            return
        reason = thrown_reason(failure.get()) if failure.isDefined() else "it was stopped from outside"
        raise query_error(reason, plan)


def _name(report: Any) -> tuple[int, str]:
    return report.batchId(), report.timestamp()


def _lag(report: dict[str, Any]) -> dict[str, int]:
    """Return how many records of each source topic were unread when a batch began; nothing of the very first one."""
    ends = source_offsets(report, "latestOffset")
    return {
        topic: sum(max(ends[topic].get(partition, 0) - offset, 0) for partition, offset in offsets.items())
        for topic, offsets in source_offsets(report, "startOffset").items()
        if topic in ends
    }


class QueryMonitor:
    """Follows the queries of a table. One thread uses it."""

    def __init__(
        self, plan: Plan, queries: RunningQueries, markers: Markers, dead_letters: DeadLetters, *, once: bool = False
    ) -> None:
        self._plan = plan
        self._once = once
        self._timers_s = _timers_s(plan)
        self._all = [_Progress(query) for query in queries.all]
        self._table, *self._outputs = self._all
        self._dead_letters = dead_letters
        self._unseen_fields = UnseenFields()
        self._null_columns: set[str] = set()
        self._is_catching_up = queries.is_catching_up
        self._markers = markers
        self._sink = queries.sink
        self._logged_at = time.monotonic()
        self._records = self._changes = self._late = 0
        self._ignored: Counter[str] = Counter()
        self._lag: dict[str, int] = {}
        self._state_rows = 0
        self.has_caught_up = False
        """Whether the query that was to catch up has ended, and its marker is out."""
        self.is_done = False
        """Whether all queries have ended that were to run once, the last marker is out, and malformed records are."""
        self.batch_id = -1
        """Number of the newest batch since the queries started; -1 before."""
        self.next_offsets: dict[str, dict[int, int]] = {}
        """How far the sources were read when the newest batch was done, by topic and partition."""

    @property
    def is_idle(self) -> bool:
        """Whether the table's query has looked at its sources, and found nothing new."""
        return self.batch_id >= 0 and (self.is_done or not self._table.has_new_data)

    def poll(self) -> None:
        """Check the queries once, and publish a marker for a new batch; raise as `_Progress.check` does."""
        # Asked before the reports are read: those of a query that has ended are all there.
        self.has_caught_up = self._is_catching_up and self._table.has_ended
        has_ended = self._once and all(query.has_ended for query in self._all)
        for number, query in enumerate(self._all):
            query.check(self._plan, may_end=self._once or (self._is_catching_up and number == 0))
        reports = self._table.unseen()
        if reports:
            # Only the newest: a marker says what all batches up to its own have done.
            self.next_offsets = self._markers.publish(reports[-1])
            self.batch_id = reports[-1]["batchId"]
        for report in reports:
            self._dead_letters.add(report)
            self._unseen_fields.add(report)
            self._measure(report)
            self._log_nulls(report)
        if self._sink is not None:
            self._count_changes(self._sink.pop_changes())
        metrics.MARKER_TIME.labels(self._plan.table.name).set(self._markers.written_s)
        self._log_batches()
        for field, records in self._unseen_fields.pop(UNSEEN_RECORDS).items():
            log("field_never_seen", table=self._plan.table.name, field=field, records=records)
        self.is_done = self._dead_letters.poll(is_last=has_ended) and has_ended
        for report in (*reports, *(report for output in self._outputs for report in output.unseen())):
            if lost := uncomputable(report):
                metrics.UNCOMPUTABLE.labels(self._plan.table.name).inc(lost)
                log("uncomputable", table=self._plan.table.name, query=report["name"], records=lost)
        for query in self._all if self._once else ():
            query.stop_where_worked_off(self._timers_s)

    def _measure(self, report: dict[str, Any]) -> None:
        table, state = self._plan.table.name, report["stateOperators"]
        late = sum(operator.get("numRowsDroppedByWatermark", 0) for operator in state)
        ignored = ignored_kinds_of(report)
        self._records += report["numInputRows"]
        self._late += late
        self._ignored += ignored
        self._count_changes(max(report["sink"].get("numOutputRows", 0), 0))  # -1 is Spark's word for unknown
        self._lag |= _lag(report)
        self._state_rows = sum(operator["numRowsTotal"] for operator in state)
        metrics.RECORDS.labels(table).inc(report["numInputRows"])
        metrics.LATE.labels(table).inc(late)
        metrics.IGNORED.labels(table).inc(ignored.total())
        metrics.STATE_ROWS.labels(table).set(self._state_rows)
        metrics.STATE_BYTES.labels(table).set(sum(operator["memoryUsedBytes"] for operator in state))
        for topic, records in self._lag.items():
            metrics.LAG.labels(table, topic).set(records)
        if "addBatch" in report["durationMs"]:  # else the report only says that nothing is new
            metrics.BATCH_S.labels(table).observe(report["durationMs"]["triggerExecution"] / 1000)

    def _count_changes(self, changes: int) -> None:
        self._changes += changes
        metrics.CHANGES.labels(self._plan.table.name).inc(changes)

    def _log_nulls(self, report: dict[str, Any]) -> None:
        for column, rows in null_columns(report).items():
            if column not in self._null_columns:  # once is enough: it is the contract that is wrong
                self._null_columns.add(column)
                hint = "make the field optional in the contract, or give the column a coalesce"
                log("null_column", table=self._plan.table.name, column=column, rows=rows, hint=hint)

    def _log_batches(self) -> None:
        elapsed_s = time.monotonic() - self._logged_at
        if elapsed_s < (LOG_EVERY_S if self._records else LOG_IDLE_EVERY_S):
            return
        late = {"late": self._late} if self._late else {}
        log(
            "batch",
            table=self._plan.table.name,
            batch=self.batch_id,
            records=self._records,
            records_per_s=round(self._records / elapsed_s, 1),
            changes=self._changes,
            lag=sum(self._lag.values()),
            state_rows=self._state_rows,
            marker_age_s=round(time.time() - self._markers.written_s, 1),
            **late,
        )
        if self._ignored:
            log("ignored", table=self._plan.table.name, records=self._ignored.total(), types=dict(self._ignored))
            self._ignored.clear()
        self._logged_at = time.monotonic()
        self._records = self._changes = self._late = 0


def _timers_s(plan: Plan) -> float:
    """Return how long after a record a processor's timer may run; 0 where no processor of ours has one."""
    if isinstance(plan.table, FrameTable):
        return 0.0
    processors = [output.processor for output in plan.table.outputs if isinstance(output, ProcessorOutput)]
    return max((one.every_s or 0.0 for one in (plan.table.processor, *processors) if one is not None), default=0.0)


Offsets = dict[int, int]
"""Next offset by partition."""

_DIRECTORY = "begun-batches"
_COPY = "__copy"
_EARLIEST = -2  # as Spark's Kafka source has it


class IdempotentSink:
    """Writes each record of an output topic exactly once, also when a batch runs again.

    Spark repeats a micro-batch that a crash cut off, and its Kafka sink then writes the batch's records a second time.
    This sink leaves out those that are there already:

    1. Before a batch writes for the first time, the end offsets of the topic are saved in the checkpoint
       (`BatchStarts`).
    2. A batch that finds saved end offsets has begun before. Whatever it wrote then lies behind these offsets.
    3. So the records behind them are read back, and of each key and value as many are left out as were read.

    This is right only where a batch has the same rows each time, which `Processor` asks of its functions, and where no
    task writes twice within one batch: `spark.task.maxFailures` must be 1. Kafka's transactions would do the same, but
    Spark's sink has none. A record of another producer with the same key and value would be taken for ours: give the
    topic one writer. If retention has dropped what the batch wrote, nobody can tell any more, and the job stops.

    One sink is for one query and one topic: `writer.foreachBatch(sink.write_batch)`. Spark calls it in one thread, for
    one batch after the other. Rows have the columns that the Kafka sink takes.
    """

    def __init__(self, bootstrap: str, topic: str, checkpoint: Checkpoint) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._directory = checkpoint.query_location(f"{_DIRECTORY}/{topic}")
        self._admin = KafkaAdmin(bootstrap)

    def write_batch(self, rows: DataFrame, batch_id: int) -> None:
        """Write a batch without the records that an earlier try of it has written; raise `JobError`."""
        spark = rows.sparkSession
        starts = BatchStarts(spark, self._directory)
        offsets = starts.load(batch_id)
        if offsets is None:
            starts.save(batch_id, self._admin.end_offsets(self._topic_now()))
        else:
            # The rows may be used in one action only: a second one would compute the state again.
            written = self._written_since(spark, offsets)
            rows = _without(rows, written)
        rows.write.format("kafka").options(**spark_options(self._bootstrap)).option("topic", self._topic).save()

    def _written_since(self, spark: SparkSession, offsets: Offsets) -> DataFrame:
        topic = self._topic_now()
        ends = self._admin.end_offsets(topic)
        for partition, first in self._admin.first_offsets(topic).items():
            since = offsets.get(partition, first)
            # An end below what was saved means another topic under the same name; a start above it, that retention has
            # removed records.
            if not first <= since <= ends[partition]:
                raise JobError(
                    f'output topic "{self._topic}" partition {partition} has offsets {first} to {ends[partition]}, and '
                    f"a batch that was cut off wrote from {since} on; its records are gone, so nobody can tell which "
                    "were written: give the output another topic"
                )
        starting = {partition: offsets.get(partition, _EARLIEST) for partition in ends}
        return (
            spark.read.format("kafka")
            .options(**spark_options(self._bootstrap))
            .option("assign", json.dumps({self._topic: list(starting)}))
            .option("startingOffsets", json.dumps({self._topic: starting}))
            .option("endingOffsets", json.dumps({self._topic: ends}))
            .load()
            .select("key", "value")
        )

    def _topic_now(self) -> Topic:
        return self._admin.require(self._topic, "output topic", "start the job again: it creates it")


def _without(rows: DataFrame, written: DataFrame) -> DataFrame:
    """Return the rows that are not written yet. Of equal rows, as many are left out as were written."""
    ours, theirs = _with_copy(rows), _with_copy(written)
    # Keys and values may be null, and in SQL null is not equal to null.
    same = [ours[name].eqNullSafe(theirs[name]) for name in ("key", "value", _COPY)]
    return ours.join(theirs, same, "left_anti").drop(_COPY)


def _with_copy(rows: DataFrame) -> DataFrame:
    bytes_of = {name: sql.col(name).cast("binary") for name in ("key", "value")}
    copies = Window.partitionBy("key", "value").orderBy("key")
    return rows.withColumns(bytes_of).withColumn(_COPY, sql.row_number().over(copies))


class BatchStarts:
    """End offsets of the output topic before a batch wrote: one file, of the newest batch, wherever Spark can write."""

    def __init__(self, spark: SparkSession, directory: str) -> None:
        self._context = spark.sparkContext
        self._directory = java_class(self._context, HADOOP_PATH)(directory)
        self._files = self._directory.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())

    def load(self, batch_id: int) -> Offsets | None:
        """Return the end offsets before a batch began; None where it never has; raise `JobError`."""
        try:
            path = self._path(str(batch_id))
            if not self._files.exists(path):
                return None
            stream = self._files.open(path)
            try:
                text = str(java_class(self._context, IO_UTILS).toString(stream, "UTF-8"))
            finally:
                stream.close()
        except Exception as error:  # noqa: BLE001 - py4j's errors have no common class of their own
            raise self._unusable(error) from None
        return {int(partition): int(offset) for partition, offset in json.loads(text).items()}

    def save(self, batch_id: int, offsets: Offsets) -> None:
        """Save a batch's end offsets by an atomic rename, and remove those of other batches; raise `JobError`."""
        try:
            # Listed first, so that the new file is not among them; deleted last, so that a crash leaves one too many
            # and never none.
            old = [status.getPath() for status in self._listed()]
            partial = self._path(f"_{batch_id}")
            stream = self._files.create(partial, True)
            try:
                stream.write(json.dumps(offsets).encode())
            finally:
                stream.close()
            if not self._files.rename(partial, self._path(str(batch_id))):
                raise OSError("a file cannot be renamed")
            for path in old:
                self._files.delete(path, False)
        except Exception as error:  # noqa: BLE001 - as above
            raise self._unusable(error) from None

    def _listed(self) -> list[Any]:
        return list(self._files.listStatus(self._directory)) if self._files.exists(self._directory) else []

    def _path(self, name: str) -> Any:
        return java_class(self._context, HADOOP_PATH)(self._directory, name)

    def _unusable(self, error: Exception) -> JobError:
        return JobError(f'checkpoint "{self._directory.toString()}" cannot be used: {error_reason(error)}')
