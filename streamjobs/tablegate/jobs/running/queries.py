"""The running queries of a table: `start` starts a plan's frames, `QueryMonitor` watches them.

What goes to an output topic beside the table's changes, which have a version, goes through `IdempotentSink`
(`outputs.py`), as its records must not come twice.

Decision: docs/decisions/0012-no-record-stops-a-job.md
Decision: docs/decisions/0079-realtime-mode-starts-with-a-micro-batch.md
"""

import json
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from tablegate.gateway.contract.kafka_settings import spark_options
from tablegate.jobs import metrics
from tablegate.jobs.dataflow import sink_records
from tablegate.jobs.dataflow.frame_batches import output_mode_hint
from tablegate.jobs.dataflow.frames import Frames
from tablegate.jobs.dataflow.java_classes import java_class
from tablegate.jobs.dataflow.java_errors import error_reason, thrown_reason
from tablegate.jobs.dataflow.sink_records import (
    UnseenFields,
    ignored_kinds_of,
    malformed_of,
    null_columns,
    uncomputable,
)
from tablegate.jobs.errors import JobError, QueryStalled
from tablegate.jobs.frame_table import FrameTable
from tablegate.jobs.kafka.markers import Markers, source_offsets
from tablegate.jobs.log import log
from tablegate.jobs.planning.plan import MICROBATCH_TRIGGER_S, Plan
from tablegate.jobs.running.atomic_sink import AtomicSink
from tablegate.jobs.running.checkpoint import Checkpoint
from tablegate.jobs.running.dead_letters import DeadLetters
from tablegate.jobs.running.frame_sink import FrameSink
from tablegate.jobs.running.outputs import OutputQuery, keep_places, output_sink
from tablegate.jobs.running.query_errors import query_error
from tablegate.jobs.table import Mode, ProcessorOutput
from tablegate.jobs.traces import BatchTraces

TABLE_QUERY = "table"
UNSEEN_RECORDS = 1_000  # without a field, before its name is taken for wrong
LOG_EVERY_S = 5.0
LOG_IDLE_EVERY_S = 60.0
STALLED_S = 120.0  # beyond the time of a batch in Real-time Mode, which needs a second to end
TASK_FRAMES = 12  # of each, from the innermost on
POLL_GAP_MAX_S = 5.0  # of a job that was not frozen
ENDS_SEEN_MAX = 1_000  # a topic: what a table that is far behind remembers of where it ended, and when


@dataclass(frozen=True, slots=True)
class RunningQueries:
    """The running queries of a table. `all` has those of outputs, too. `sink`: the table's own, if it has one.

    `is_catching_up`: the table's query ends by itself, and then `start_realtime` is to follow. `since_s`: when the
    first of them was started, in Unix time.
    """

    table: StreamingQuery
    all: tuple[StreamingQuery, ...]
    since_s: float
    sink: AtomicSink | FrameSink | None = None
    is_catching_up: bool = False


def start(
    frames: Frames,
    plan: Plan,
    *,
    outputs: Sequence[OutputQuery] = (),
    catch_up: bool = False,
    once: bool = False,
    atomic: AtomicSink | None = None,
) -> RunningQueries:
    """Start the frames of a plan as streaming queries, the table's first; raise `JobError`.

    `atomic`: what writes the batches of an atomic table, opened. `outputs`: the queries of the frames of outputs, in
    their order. `catch_up`: a table in Real-time Mode first gets all records that there are, in one micro-batch.
    `once`: the queries end when they have worked off what there is. The checkpoints of the table's other outputs
    outlive generations: what was written is not written again because the table is built anew.
    """
    # The table's query first: its rows are waited for, and each start takes a second or more.
    since_s = time.time()
    starter = _Starter(frames.table.sparkSession, plan, run=frames.run, once=once, atomic=atomic)
    table = starter.start_table(frames.table, catch_up=catch_up)
    keep_places(outputs, starter.outputs_checkpoint)
    pairs = zip(outputs, frames.outputs, strict=True)
    others = [starter.start_outputs(query, frame) for query, (_, frame) in pairs]
    return RunningQueries(table, (table, *others), since_s, starter.sink, catch_up)


def start_realtime(frames: Frames, plan: Plan, caught_up: RunningQueries) -> RunningQueries:
    """Start the table's query in Real-time Mode, where the one that caught up has ended; raise `JobError`."""
    caught_up.table.awaitTermination()  # Spark gives its name free a moment after it says that it has ended
    since_s = time.time()
    table = _Starter(frames.table.sparkSession, plan, run=frames.run).start_table(frames.table, catch_up=False)
    return replace(caught_up, table=table, all=(table, *caught_up.all[1:]), since_s=since_s, is_catching_up=False)


def start_history(frames: Frames, plan: Plan) -> StreamingQuery:
    """Start the table's query over frames that end, before its first run begins; raise `JobError`.

    Its records have no run, and so always count: whoever writes them writes the same.
    """
    return _Starter(frames.table.sparkSession, plan, run=None).start_table(frames.table, catch_up=True)


def stuck_tasks(spark: SparkSession) -> list[str]:
    """Return where each task of this process waits; none of a cluster, whose tasks are elsewhere."""
    factory = java_class(spark.sparkContext, "java.lang.management.ManagementFactory")
    threads = factory.getThreadMXBean().dumpAllThreads(False, False)
    return [
        f"{thread.getThreadName()}: {' < '.join(str(frame) for frame in list(thread.getStackTrace())[:TASK_FRAMES])}"
        for thread in threads
        if thread.getThreadName().startswith("Executor task launch worker for task")
    ]


def with_run(frames: Frames, plan: Plan, run: int) -> Frames:
    """Return the frames with the number of the run in each record of the changelog, beside its version."""
    if isinstance(plan.table, FrameTable):
        return replace(frames, run=run)
    return replace(frames, table=sink_records.with_run(frames.table, plan.changelog.name, run), run=run)


class _Starter:
    """Starts the queries of one plan; every method raises `JobError`."""

    def __init__(
        self,
        spark: SparkSession,
        plan: Plan,
        *,
        run: int | None,
        once: bool = False,
        atomic: AtomicSink | None = None,
    ) -> None:
        self._plan = plan
        self._once = once
        self._output_mode = plan.table.output_mode if isinstance(plan.table, FrameTable) else "update"
        self.sink = FrameSink(plan, run) if isinstance(plan.table, FrameTable) else atomic
        self._checkpoint = Checkpoint(spark, plan.checkpoint)
        self.outputs_checkpoint = Checkpoint(spark, plan.outputs_checkpoint)

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

    def start_outputs(self, query: OutputQuery, frame: DataFrame) -> StreamingQuery:
        """Start the query of outputs that are not made from the table's changes."""
        interval_s = max(self._plan.table.emit_interval_s or 0.0, MICROBATCH_TRIGGER_S)
        first = query.outputs[0]
        if isinstance(first, ProcessorOutput):
            interval_s = first.processor.every_s or interval_s
        writer = self._in_batches(frame.writeStream.outputMode("update"), interval_s)
        sink = output_sink(self._plan, query.outputs, self.outputs_checkpoint)
        return self._start(writer.foreachBatch(sink.write_batch), query.name, self.outputs_checkpoint, to_kafka=False)

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


class LagTimes:
    """How far behind a table is in time: since when its sources have had more than it has read. One thread.

    Spark says with each batch how far a source is and from where the table goes on. What a source had is kept, thinned
    out where it is long, until it is read: the newest of these ends that is read tells the time.
    """

    def __init__(self, *, seen_max: int = ENDS_SEEN_MAX) -> None:
        self._seen: dict[str, list[tuple[float, Mapping[int, int]]]] = {}  # by topic, oldest first
        self._seen_max = seen_max

    def lag_s(self, topic: str, *, ends: Mapping[int, int], read: Mapping[int, int], now_s: float) -> float:
        """Return the seconds since the topic had no more than `read`, by next offsets; `ends` is what it has now."""
        seen = self._seen.setdefault(topic, [])
        if len(seen) >= self._seen_max:
            del seen[1::2]
        seen.append((now_s, ends))
        is_read = [all(read.get(each, 0) >= end for each, end in had.items()) for _, had in seen]
        newest = max((at for at, it_is in enumerate(is_read) if it_is), default=0)
        del seen[:newest]
        return now_s - seen[0][0]


class QueryMonitor:
    """Follows the queries of a table. One thread uses it."""

    def __init__(
        self,
        plan: Plan,
        queries: RunningQueries,
        markers: Markers,
        dead_letters: DeadLetters,
        *,
        once: bool = False,
        stalled_s: float = STALLED_S,
        traces: BatchTraces | None = None,
    ) -> None:
        """Begin, as soon as the queries have started. `traces`: None where no spans are made."""
        self._plan = plan
        self._once = once
        self._traces = traces
        self._since_s = queries.since_s
        self._is_realtime = plan.mode is Mode.REALTIME and not queries.is_catching_up
        self._stalled_s = plan.batch_s + stalled_s if self._is_realtime else math.inf
        self._silent_s = 0.0  # since the newest report of the table's query
        self._polled_at = time.monotonic()
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
        self._lag_times = LagTimes()
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
        """Check the queries once, and publish a marker for a new batch; raise as `_Progress.check` does.

        Raise `QueryStalled` where a batch in Real-time Mode does not end.
        """
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
        self._check_progress(has_progress=bool(reports))
        for report in reports:
            self._dead_letters.add(report)
            self._unseen_fields.add(report)
            self._measure(report)
            self._log_nulls(report)
        metrics.MARKER_TIME.labels(self._plan.table.name).set(self._markers.written_s)
        self._log_batches()
        for field, records in self._unseen_fields.pop(UNSEEN_RECORDS).items():
            log("field_never_seen", table=self._plan.table.name, field=field, records=records)
        self.is_done = self._dead_letters.poll(is_last=has_ended) and has_ended
        of_outputs = [report for output in self._outputs for report in output.unseen()]
        if self._traces is not None:
            for report in of_outputs:
                self._trace(self._traces, report, {})
        for report in (*reports, *of_outputs):
            for topic, lost in uncomputable(report).items():
                metrics.UNCOMPUTABLE.labels(self._plan.table.name).inc(lost)
                output = {"output": topic} if topic else {}
                log("uncomputable", table=self._plan.table.name, **output, records=lost)
        for query in self._all if self._once else ():
            query.stop_where_worked_off(self._timers_s)

    def _check_progress(self, *, has_progress: bool) -> None:
        """Raise `QueryStalled` where a batch in Real-time Mode, which ends by the clock, does not."""
        now_s = time.monotonic()
        elapsed_s, self._polled_at = now_s - self._polled_at, now_s
        # While this process was frozen, nothing could be seen.
        self._silent_s = 0.0 if has_progress else self._silent_s + min(elapsed_s, POLL_GAP_MAX_S)
        if self._silent_s > self._stalled_s:
            raise QueryStalled(
                f"a batch of {self._plan.batch_s:g} s has not ended after {self._silent_s:.0f} s; give Spark a slot "
                "for each partition of sources and of tables"
            )

    def _measure(self, report: dict[str, Any]) -> None:
        table, state = self._plan.table.name, report["stateOperators"]
        late = sum(operator.get("numRowsDroppedByWatermark", 0) for operator in state)
        ignored = ignored_kinds_of(report)
        self._records += report["numInputRows"]
        self._late += late
        self._ignored += ignored
        if self._sink is not None:
            changes = self._sink.changes.pop(report["batchId"])
        else:
            changes = max(report["sink"].get("numOutputRows", 0), 0)  # -1 is Spark's word for unknown
        self._changes += changes
        metrics.CHANGES.labels(table).inc(changes)
        if self._traces is not None:
            malformed = malformed_of(report, self._plan.streamed_sides)
            self._trace(self._traces, report, {"changes": changes, "malformed": malformed, "late": late})
        self._lag |= _lag(report)
        self._state_rows = sum(operator["numRowsTotal"] for operator in state)
        metrics.RECORDS.labels(table).inc(report["numInputRows"])
        metrics.LATE.labels(table).inc(late)
        metrics.IGNORED.labels(table).inc(ignored.total())
        metrics.STATE_ROWS.labels(table).set(self._state_rows)
        metrics.STATE_BYTES.labels(table).set(sum(operator["memoryUsedBytes"] for operator in state))
        for topic, records in self._lag.items():
            metrics.LAG.labels(table, topic).set(records)
        ends, read = source_offsets(report, "latestOffset"), source_offsets(report, "startOffset")
        now_s = datetime.fromisoformat(report["timestamp"]).timestamp()
        for topic in read.keys() & ends.keys():
            lag_s = self._lag_times.lag_s(topic, ends=ends[topic], read=read[topic], now_s=now_s)
            metrics.LAG_SECONDS.labels(table, topic).set(lag_s)
        if "addBatch" in report["durationMs"]:  # else the report only says that nothing is new
            metrics.BATCH_S.labels(table).observe(report["durationMs"]["triggerExecution"] / 1000)

    def _trace(self, traces: BatchTraces, report: Mapping[str, Any], counts: Mapping[str, int | None]) -> None:
        """Make the span of a batch, of the table's query where there are counts, else of an output's."""
        mode = Mode.REALTIME if self._is_realtime and counts else Mode.MICROBATCH
        known = {f"tablegate.{name}": count for name, count in counts.items() if count is not None}
        attributes: dict[str, str | int] = {
            "tablegate.table": self._plan.table.name,
            "tablegate.generation": self._plan.generation,
            "tablegate.mode": mode.value,
            **known,
        }
        traces.add(report, attributes, since_s=self._since_s)

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
