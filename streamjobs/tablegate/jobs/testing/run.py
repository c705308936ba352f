"""Runs a declaration on a test's events."""

import functools
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tablegate.jobs.dataflow.dead_letters import counts
from tablegate.jobs.errors import JobError
from tablegate.jobs.planning.checks import plan_without_cluster
from tablegate.jobs.planning.plan import Plan
from tablegate.jobs.running.java_errors import error_reason
from tablegate.jobs.running.queries import Queries
from tablegate.jobs.running.session import table_session
from tablegate.jobs.table import Mode, RecordOutput, Table
from tablegate.jobs.testing.events import START_TIME, Event, Record, UnfitEvent, lay_events
from tablegate.jobs.testing.results import Batch, Result, make_result
from tablegate.jobs.testing.session import process_session
from tablegate.jobs.testing.stepping import Clock, MemoryTopics, SteppedQuery, milliseconds

BATCH_MS = 2  # one for a batch, one for the batch without records that may follow


def run_table(table: Table, *batches: Iterable[Event], then_wait_s: float = 0.0) -> Result:
    """Return what a job would make of the events; raise `JobError` or `UnfitEvent`.

    Each list of events is one batch of the table's own streaming queries. So the events of a key in one batch make one
    change of its row, an event is late only for a window that a batch before it has ended, and a global side has the
    events of the batch and of those before. A processor's timers go by the events: a batch runs at the time of its
    newest event, or right after the batch before it, whichever is later. `then_wait_s`: run one more batch, without
    events, so much later.

    Declarations for Real-time Mode run in micro-batches, too, and come to the same rows. Whether Spark takes them in
    Real-time Mode only `tablegate job check` can say. A row whose retention is over is still there.
    """
    laid = lay_events(table, [_events(batch) for batch in batches or [()]])
    times_ms = _times_ms(laid)
    if then_wait_s > 0:
        laid.append([])
        times_ms.append(times_ms[-1] + round(then_wait_s * 1000))
    with tempfile.TemporaryDirectory(prefix="tablegate-test-", ignore_cleanup_errors=True) as scratch:
        plan = replace(plan_without_cluster(table, scratch), mode=Mode.MICROBATCH)
        session = table_session(process_session(), shuffle_partitions=1)
        with _spark_errors(table):
            return make_result(plan, _run(session, plan, laid, times_ms))


def _events(batch: Iterable[Event]) -> list[Event]:
    if isinstance(batch, Event):
        raise UnfitEvent("run_table takes lists of events, each a batch; write run_table(TABLE, [Event(…), …])")
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
def _spark_errors(table: Table) -> Iterator[None]:
    """Say in a sentence what Spark said."""
    where = f'{table.declared_at}: table "{table.name}"'
    try:
        yield
    except PySparkException as error:
        raise JobError(f"{where} does not run: {error_reason(error)}") from None
    except (Py4JError, ConnectionError) as error:
        raise JobError(f"{where}: Spark has stopped: {error_reason(error)}") from None


def _run(
    session: SparkSession, plan: Plan, batches: Sequence[Sequence[Record]], times_ms: Sequence[int]
) -> Iterator[Batch]:
    """Yield what each batch came to."""
    topics = MemoryTopics(session, Path(plan.checkpoint).parent, batches)
    clock = Clock(session, times_ms[0])
    frames = _frames(Queries(session, plan, row_outputs=True, other_outputs=True, reader=topics))
    queries: list[SteppedQuery] = []
    try:
        for number, (records, time_ms) in enumerate(zip(batches, times_ms, strict=True)):
            topics.add(records)
            clock.set(time_ms)
            if number == 0:
                for name, frame in enumerate(frames):
                    queries.append(SteppedQuery(frame, plan.table, clock=clock, checkpoint=f"{plan.checkpoint}/{name}"))
            batch = _finished(queries)
            if plan.table.window is not None:
                # Spark takes an event for late by the watermark before the last: a job that has nothing to do runs one
                # batch more for it, and so do we.
                topics.add(())
                clock.set(time_ms + 1)
                batch = Batch(batch.records, batch.ignored, batch.late + _finished(queries).late)
            yield batch
    finally:
        for query in queries:
            query.stop()


def _frames(queries: Queries) -> list[DataFrame]:
    """Return what is to be run: the table, what has no state, and processors, each a query of its own in Spark."""
    stateless, processors = [queries.malformed_frame], list[DataFrame]()
    for output, frame in queries.output_frames:
        (stateless if isinstance(output, RecordOutput) else processors).append(frame)
    return [queries.table_frame, functools.reduce(DataFrame.unionByName, stateless), *processors]


def _finished(queries: Sequence[SteppedQuery]) -> Batch:
    records, reports = [], []
    for query in queries:
        written, report = query.finish_batch()
        records += written
        reports.append(report)
    _, ignored = counts(reports[1])
    late = sum(operator.get("numRowsDroppedByWatermark", 0) for operator in reports[0]["stateOperators"])
    return Batch(records, ignored, late)
