"""Runs a declaration on a test's events, one batch at a time.

Spark has the parts, for tests of its own: a clock that stands still until it is set, streams and sinks in memory. They
have no Python API, so they are reached through py4j.
"""

import base64
import functools
import json
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from tablegate.jobs.dataflow.frame_batches import batch_records, chosen_rows, count_rows, target_of
from tablegate.jobs.dataflow.frames import Frames, build, expired_records, malformed_records
from tablegate.jobs.dataflow.java_classes import java_class, scala_seq
from tablegate.jobs.dataflow.java_errors import error_reason, thrown_reason
from tablegate.jobs.dataflow.sink_records import KIND_COLUMN, UnseenFields, ignored_kinds_of, null_columns
from tablegate.jobs.dataflow.sources import HEADERS_SCHEMA
from tablegate.jobs.errors import JobError
from tablegate.jobs.frame_table import Declared, FrameTable
from tablegate.jobs.planning.plan import Plan, SidePlan, plan_without_cluster
from tablegate.jobs.running.checkpoint import Checkpoint
from tablegate.jobs.running.expiry import adopt_sweep, end_sweep, have_expired, sweep, tombstones
from tablegate.jobs.running.queries import TABLE_QUERY
from tablegate.jobs.running.session import table_session
from tablegate.jobs.table import Mode, RecordOutput, Table, shared_outputs
from tablegate.jobs.testing.events import START_TIME, Event, Record, UnfitEvent, encode_events
from tablegate.jobs.testing.results import Batch, Result, Written, make_result
from tablegate.jobs.testing.session import process_session, with_settings

BATCH_MS = 2  # one for a batch, one for the batch without records that may follow


def run_table(table: Declared, *batches: Iterable[Event], then_wait_s: float = 0.0) -> Result:
    """Return what a job would make of the events; raise `JobError` or `UnfitEvent`.

    Each list of events is one batch of the table's own streaming queries. So the events of a key in one batch make one
    change of its row, an event is late only for a window that a batch before it has ended, and a global side has the
    events of the batch and of those before. A processor's timers go by the events: a batch runs at the time of its
    newest event, or right after the batch before it, whichever is later. A row that expires is deleted before the first
    batch at such a time. `then_wait_s`: run one more batch, without events, so much later.

    Declarations for Real-time Mode run in micro-batches, too, and come to the same rows. Whether Spark takes them in
    Real-time Mode only `tablegate job check` can say. A row whose retention is over is still there.
    """
    encoded = encode_events(table, [_events(batch) for batch in batches or [()]])
    times_ms = _times_ms(encoded)
    if then_wait_s > 0:
        encoded.append([])
        times_ms.append(times_ms[-1] + round(then_wait_s * 1000))
    with tempfile.TemporaryDirectory(prefix="tablegate-test-", ignore_cleanup_errors=True) as scratch:
        names = [record.topic for batch in encoded for record in batch]
        plan = plan_without_cluster(table, scratch, topics=dict.fromkeys(names))
        plan = replace(plan, mode=Mode.MICROBATCH, sides=_with_partitions(plan.sides, encoded))
        session = with_settings(table_session(process_session(), shuffle_partitions=1))
        with _spark_errors(table):
            fields = UnseenFields()
            return make_result(plan, _run(session, plan, encoded, times_ms, fields), fields)


def _with_partitions(sides: Mapping[str, SidePlan], batches: Sequence[Sequence[Record]]) -> Mapping[str, SidePlan]:
    """Return the sides with as many partitions as their events need."""
    counts: dict[str, int] = {}
    for record in (record for batch in batches for record in batch):
        counts[record.topic] = max(counts.get(record.topic, 1), record.partition + 1)
    return {
        name: replace(side, topic=replace(side.topic, partition_count=counts.get(side.topic.name, 1)))
        for name, side in sides.items()
    }


def _events(batch: Iterable[Event]) -> list[Event]:
    if isinstance(batch, Event):
        raise UnfitEvent("run_table expects lists of events, each a batch; write run_table(TABLE, [Event(…), …])")
    return list(batch)


def _times_ms(batches: Sequence[Sequence[Record]]) -> list[int]:
    """Return the time of each batch: that of its newest record, and later than that of the batch before."""
    times_ms: list[int] = []
    for batch in batches:
        earliest_ms = times_ms[-1] + BATCH_MS if times_ms else None
        newest_ms = max((milliseconds(record.timestamp) for record in batch), default=None)
        given_ms = [time_ms for time_ms in (earliest_ms, newest_ms) if time_ms is not None]
        times_ms.append(max(given_ms, default=milliseconds(START_TIME)))
    return times_ms


@contextmanager
def _spark_errors(table: Declared) -> Iterator[None]:
    """Raise Spark's errors as `JobError`, in one sentence."""
    where = f'{table.declared_at}: table "{table.name}"'
    try:
        yield
    except PySparkException as error:
        raise JobError(f"{where} does not run: {error_reason(error)}") from None
    except (Py4JError, ConnectionError) as error:
        raise JobError(f"{where}: Spark has stopped: {error_reason(error)}") from None


def _run(
    session: SparkSession,
    plan: Plan,
    batches: Sequence[Sequence[Record]],
    times_ms: Sequence[int],
    fields: UnseenFields,
) -> Iterator[Batch]:
    """Yield what each batch came to, and count its fields."""
    topics = MemoryTopics(session, Path(plan.checkpoint).parent, batches)
    clock = Clock(session, times_ms[0])
    checkpoint = Checkpoint(session, plan.checkpoint)
    frames = _queries_of(
        build(session, plan, row_outputs=True, other_outputs=shared_outputs(plan.table.outputs), reader=topics),
        malformed_records(plan, topics).drop(KIND_COLUMN),
    )
    queries: list[SteppedQuery] = []
    try:
        for number, (records, time_ms) in enumerate(zip(batches, times_ms, strict=True)):
            swept = _sweep(session, plan, checkpoint, topics, queries[0], time_ms) if number > 0 else None
            topics.add(records)
            clock.set(time_ms)
            if number == 0:
                for place, frame in enumerate(frames):
                    batches_of = _FrameBatches(plan) if place == 0 and isinstance(plan.table, FrameTable) else None
                    location = checkpoint.query_location(TABLE_QUERY if place == 0 else str(place))
                    queries.append(SteppedQuery(frame, plan.table, batches_of, clock=clock, checkpoint=location))
            elif swept is not None:
                location = checkpoint.query_location(TABLE_QUERY)
                queries[0] = SteppedQuery(
                    swept.frame, plan.table, None, clock=clock, checkpoint=location, first_batch_id=1
                )
            batch = _finished(queries, fields)
            if swept is not None:
                batch = replace(batch, records=[*swept.records, *batch.records])
            if isinstance(plan.table, FrameTable) or plan.table.window is not None:
                # Spark takes an event for late by the watermark before the last: a job that has nothing to do runs one
                # batch more for it, and so do we.
                topics.add(())
                clock.set(time_ms + 1)
                more = _finished(queries, fields)
                batch = replace(batch, records=[*batch.records, *more.records], late=batch.late + more.late)
            yield batch
    finally:
        for query in queries:
            query.stop()


@dataclass(frozen=True, slots=True)
class _Swept:
    """The tombstones of a sweep, and the frame of the table's query that goes on behind it."""

    records: list[Written]
    frame: DataFrame


def _sweep(
    session: SparkSession,
    plan: Plan,
    checkpoint: Checkpoint,
    topics: "MemoryTopics",
    query: "SteppedQuery",
    time_ms: int,
) -> _Swept | None:
    """Stop the query and remove the rows that have expired by a time, where some have."""
    table = plan.table
    if not isinstance(table, Table) or table.expires_after_s is None:
        return None
    before_us = time_ms * 1_000 - round(table.expires_after_s * 1_000_000)
    if not have_expired(session, plan, checkpoint, before_us=before_us):
        return None
    query.stop()
    sweep(session, plan, checkpoint, before_us=before_us)
    plan = replace(plan, sequence_base=adopt_sweep(checkpoint).sequence_base)
    frame = expired_records(session, plan, row_outputs=True, reader=topics.again())
    found = tombstones(frame, plan, checkpoint).select(sql.expr(_WRITTEN)).collect()
    end_sweep(checkpoint)
    frames = build(session, plan, row_outputs=True, reader=topics.again())
    return _Swept([_written(json.loads(row[0])) for row in found], frames.table)


def _queries_of(frames: Frames, malformed: DataFrame) -> list[DataFrame]:
    """Return what is to be run: the table, what has no state, and processors, each a query of its own in Spark."""
    stateless, processors = [malformed], list[DataFrame]()
    for outputs, frame in frames.outputs:
        (stateless if isinstance(outputs[0], RecordOutput) else processors).append(frame)
    return [frames.table, functools.reduce(DataFrame.unionByName, stateless), *processors]


def _finished(queries: Sequence["SteppedQuery"], fields: UnseenFields) -> Batch:
    records, reports = [], []
    for query in queries:
        written, report = query.finish_batch()
        records += written
        reports.append(report)
    ignored = ignored_kinds_of(reports[0]) + ignored_kinds_of(reports[1])  # the second has the global sides
    for report in reports[:2]:
        fields.add(report)
    late = sum(operator.get("numRowsDroppedByWatermark", 0) for operator in reports[0]["stateOperators"])
    return Batch(records, ignored, late, null_columns(reports[0]))


POLL_S = 0.005
_STREAMING = "org.apache.spark.sql.execution.streaming"

_WRITTEN = """to_json(struct(topic, hex(key) AS key, hex(value) AS value,
    map_from_entries(transform(headers, one -> struct(one.key, hex(one.value)))) AS headers))"""


class MemoryTopics:
    """Topics of a test's records, a `Reader`; `add` makes the records of the next batch be there.

    A topic that a global side reads is a file. Spark looks at its length once and reads it in each batch, so its length
    never changes: it is filled up with empty lines.
    """

    def __init__(self, spark: SparkSession, directory: Path, batches: Sequence[Sequence[Record]]) -> None:
        self._spark = spark
        self._directory = directory
        self._streams: list[tuple[Sequence[str], Any]] = []
        self._next_stream = 0
        self._lines: dict[str, list[str]] = {}
        self._lengths: dict[str, int] = {}
        for record in (record for batch in batches for record in batch):
            self._lengths[record.topic] = self._lengths.get(record.topic, 0) + len(_line(record)) + 1
        context = spark.sparkContext
        self._encoder = java_class(context, "org.apache.spark.sql.Encoders").STRING()
        self._source = java_class(context, f"{_STREAMING}.runtime.MemoryStream")

    def stream(self, topics: Sequence[str], *, batched: bool, starting_offsets: str) -> DataFrame:  # noqa: ARG002 - see `Reader`
        """Return the topics' records as they come; a batch is one JSON array of them."""
        if self._next_stream == len(self._streams):
            self._streams.append((topics, self._source.apply(self._spark._jsparkSession, self._encoder)))
        _, stream = self._streams[self._next_stream]
        self._next_stream += 1
        arrays = DataFrame(stream.toDF(), self._spark)
        return arrays.selectExpr(f"inline(from_json(value, 'ARRAY<STRUCT<{HEADERS_SCHEMA}>>'))")

    def again(self) -> Self:
        """Give the same streams again, in their order, for another query that goes on with them."""
        self._next_stream = 0
        return self

    def read_all(self, topic: str) -> DataFrame:
        """Return the records that are there when a batch begins."""
        self._lines.setdefault(topic, [])
        self._write_file(topic)
        return self._spark.read.schema(HEADERS_SCHEMA).json(str(self._path(topic)))

    def add(self, records: Iterable[Record]) -> None:
        """Add the records of a batch."""
        lines: dict[str, list[str]] = {}
        for record in records:
            lines.setdefault(record.topic, []).append(_line(record))
        for topic in self._lines:
            self._lines[topic] += lines.get(topic, [])
            self._write_file(topic)
        for topics, stream in self._streams:
            found = [line for topic in topics for line in lines.get(topic, [])]
            stream.addData(scala_seq(self._spark.sparkContext, [f"[{','.join(found)}]"]))

    def _write_file(self, topic: str) -> None:
        text = "".join(f"{line}\n" for line in self._lines[topic])
        self._path(topic).write_text(text.ljust(max(self._lengths.get(topic, 0), 1), "\n"))

    def _path(self, topic: str) -> Path:
        return self._directory / f"whole-{topic}.json"


def _line(record: Record) -> str:
    """Return a record as Spark reads it from JSON, in ASCII."""
    fields = {
        "key": _base64(record.key),
        "value": _base64(record.value),
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp.isoformat(timespec="milliseconds"),
        "timestampType": 0,
        "headers": [{"key": name, "value": _base64(value)} for name, value in record.headers],
    }
    return json.dumps(fields)


def _base64(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode()


class Clock:
    """The time of a test's queries. It stands still, and they with it, until it is set to a later one."""

    def __init__(self, spark: SparkSession, now_ms: int) -> None:
        self.of_spark = java_class(spark.sparkContext, "org.apache.spark.util.ManualClock")(now_ms)

    def set(self, now_ms: int) -> None:
        """Let the next batch run, at this time."""
        self.of_spark.setTime(now_ms)


def milliseconds(moment: datetime) -> int:
    """Return the time since 1970."""
    return round(moment.timestamp() * 1000)


class _FrameBatches:
    """Makes the records of batches of a function's rows."""

    def __init__(self, plan: Plan) -> None:
        assert isinstance(plan.table, FrameTable)
        self._target = target_of(plan)
        self.output_mode = plan.table.output_mode

    def records(self, rows: DataFrame, batch_id: int) -> DataFrame:
        """Return what a batch's rows become; raise `JobError`."""
        chosen = chosen_rows(rows, self._target)
        count_rows(chosen, self._target)
        return batch_records(chosen, self._target, batch_id + 1)


class SteppedQuery:
    """A query that runs its first batch when it is made, and the next when the clock is set; raises `JobError`.

    `first_batch_id`: the number of that batch, where its checkpoint has others before it.
    `batches`: what makes records of its rows, where the frame has none.
    """

    def __init__(
        self,
        frame: DataFrame,
        table: Declared,
        batches: _FrameBatches | None,
        *,
        clock: Clock,
        checkpoint: str,
        first_batch_id: int = 0,
    ) -> None:
        spark = frame.sparkSession
        context = spark.sparkContext
        option = java_class(context, "scala.Option")
        modes = java_class(context, "org.apache.spark.sql.streaming.OutputMode")
        self._table = table
        self._frame = frame
        self._batches = batches
        self._next_batch_id = first_batch_id
        is_update = batches is None or batches.output_mode == "update"
        self._sink = java_class(context, f"{_STREAMING}.sources.MemorySink")()
        nothing = option.empty()
        # Its name; from Spark 4.2 on, that of the source of an upgrade, too.
        names = [nothing] if spark.version.startswith("4.1.") else [nothing, nothing]
        self._query = spark._jsparkSession.streams().startQuery(
            *names,
            option.apply(checkpoint),
            (frame if batches is not None else frame.select(sql.expr(_WRITTEN)))._jdf,
            java_class(context, "org.apache.spark.api.python.PythonUtils").toScalaMap({}),  # options
            self._sink,
            modes.Update() if is_update else modes.Append(),
            False,  # no checkpoint of Spark's own choice
            True,  # goes on from the checkpoint
            java_class(context, "org.apache.spark.sql.streaming.Trigger").ProcessingTime(1),
            clock.of_spark,
            nothing,  # catalogue and name of a table to write to
            nothing,  # that table
        )

    def finish_batch(self) -> tuple[list[Written], Mapping[str, Any]]:
        """Wait for the end of the batch that runs; return its records and Spark's report of it."""
        batch_id = self._next_batch_id
        while (report := self._query.lastProgress()) is None or report.batchId() < batch_id:
            failure = self._query.exception()
            if failure.isDefined():
                raise self._failure(failure.get())
            time.sleep(POLL_S)
        self._next_batch_id += 1
        return [_written(json.loads(row)) for row in self._lines(batch_id)], json.loads(report.json())

    def _lines(self, batch_id: int) -> list[str]:
        """Return the records of a batch as JSON."""
        found = self._sink.dataSinceBatch(batch_id - 1)
        if self._batches is None:
            return [row[1:-1] for row in str(found.mkString("\n")).splitlines()]  # each in brackets
        session = self._frame.sparkSession
        listed = java_class(session.sparkContext, "scala.jdk.javaapi.CollectionConverters").asJava(found)
        rows = DataFrame(session._jsparkSession.createDataFrame(listed, self._frame._jdf.schema()), session)
        written = self._batches.records(rows, batch_id).select(sql.expr(_WRITTEN)).collect()
        return [row[0] for row in written]

    def _failure(self, failure: Any) -> JobError:
        return JobError(f'{self._table.declared_at}: table "{self._table.name}" has stopped: {thrown_reason(failure)}')

    def stop(self) -> None:
        """End the query."""
        self._query.stop()


def _written(fields: Mapping[str, Any]) -> Written:
    return Written(
        topic=fields["topic"],
        key=_from_hex(fields.get("key")),
        value=_from_hex(fields.get("value")),
        headers={name: bytes.fromhex(value) for name, value in fields.get("headers", {}).items()},
    )


def _from_hex(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)
