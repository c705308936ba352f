"""Traces of jobs, by OpenTelemetry: `tablegate job run --traces` makes a span of each batch that Spark reports.

A span is made of a report when the batch has ended, in the loop that publishes markers and counts metrics. What reads
and writes records knows nothing of it. Spark says how long each of its phases took, and not when it began: they are
laid one behind the other, in the order in which Spark runs them.

Decision: docs/decisions/0180-a-batch-is-a-span-made-of-its-report.md
"""

import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tablegate.jobs import metrics
from tablegate.jobs.errors import JobError
from tablegate.jobs.log import log

if TYPE_CHECKING:  # its packages are an extra
    from tablegate.gateway.telemetry.span_sender import SpanSender

SERVICE = "tablegate-job"
SPAN = "job.batch"
# The phases of a batch, as Spark names and runs them; but in Real-time Mode walCommit comes behind addBatch.
PHASES = "latestOffset", "walCommit", "getBatch", "queryPlanning", "addBatch", "commitOffsets"
_MS = 1_000_000  # in nanoseconds


class BatchTraces:
    """Makes the spans of batches. One thread for each table."""

    def __init__(self, sender: "SpanSender") -> None:
        self._tracer = sender.tracer

    def add(self, report: Mapping[str, Any], attributes: Mapping[str, str | int], *, since_s: float) -> None:
        """Make the span of a batch of a report of Spark; nothing where it only says that nothing is new.

        `since_s`: when its query was started, in Unix time.
        """
        from opentelemetry.trace import set_span_in_context

        took_ms = report["durationMs"]
        if "addBatch" not in took_ms:
            return
        end_ns = time.time_ns()
        begin_s = datetime.fromisoformat(report["timestamp"]).timestamp()
        # One that a job before has planned has the time of that day.
        whole_ns = took_ms["triggerExecution"] * _MS
        if begin_s >= since_s:
            end_ns = round(begin_s * 1000) * _MS + whole_ns
        begin_ns = end_ns - whole_ns
        own = {
            "tablegate.query": report["name"],
            "tablegate.batch": report["batchId"],
            "tablegate.records": report["numInputRows"],
        }
        span = self._tracer.start_span(SPAN, attributes={**own, **attributes}, start_time=begin_ns)
        if not span.is_recording():  # it is none of those that are sampled
            return
        within, phase_ns = set_span_in_context(span), begin_ns
        phases = [phase for phase in PHASES if phase in took_ms]
        for phase in phases:
            part = self._tracer.start_span(f"spark.{phase}", within, start_time=phase_ns)
            phase_ns = min(phase_ns + took_ms[phase] * _MS, end_ns)  # each is rounded
            part.end(phase_ns)
        metrics.SPANS.labels("ended").inc(1 + len(phases))
        span.end(end_ns)


@contextmanager
def sent(*, wanted: bool) -> Iterator[BatchTraces | None]:
    """Make spans and send them while the block runs, as the environment says; None where none are wanted.

    Raise `JobError` where they cannot be.
    """
    if not wanted:
        yield None
        return
    try:
        from tablegate.gateway.telemetry.span_sender import SpanSender, TracesError, check_environment
    except ModuleNotFoundError:
        raise JobError('--traces needs a library: pip install "tablegate-jobs[otel]"') from None
    try:
        check_environment(os.environ)
    except TracesError as error:
        raise JobError(str(error)) from None

    def count(result: str, spans: int) -> None:
        metrics.SPANS.labels(result).inc(spans)

    sender = SpanSender({"service.name": SERVICE}, count, warn=_warn)
    try:
        yield BatchTraces(sender)
    finally:
        sender.close()


def _warn(record: logging.LogRecord) -> None:
    log("traces", reason=record.getMessage())
