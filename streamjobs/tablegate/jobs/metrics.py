"""What jobs measure, for Prometheus: `tablegate job run --metrics HOST:PORT` serves it.

The metrics are in the default registry of Prometheus's client library. A program of your own that calls `publish`
serves them beside its own ones, with `prometheus_client.start_http_server`.

Decision: docs/decisions/0096-metrics-of-jobs-by-the-library.md
"""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import Counter, Gauge, Histogram, disable_created_metrics, start_http_server

from tablegate.jobs.errors import JobError

_TABLE = ("table",)
_BATCH_BOUNDS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_PORT_MAX = 65_535

RUNNING = Gauge("tablegate_job_running", "1 while the job keeps the table; 0 once it has stopped or failed.", _TABLE)
GENERATION = Gauge("tablegate_job_generation", "The generation that the job keeps, or builds.", _TABLE)
RECORDS = Counter("tablegate_job_records", "Records of the sources that the table's query has read.", _TABLE)
CHANGES = Counter(
    "tablegate_job_changes", "Changes that were written, those of outputs made of the rows among them.", _TABLE
)
BATCH_S = Histogram("tablegate_job_batch_seconds", "How long batches took.", _TABLE, buckets=_BATCH_BOUNDS_S)
LAG = Gauge(
    "tablegate_job_source_lag_records",
    "Records of a source that were unread when the newest batch began.",
    ("table", "topic"),
)
LAG_SECONDS = Gauge(
    "tablegate_job_source_lag_seconds",
    "How long ago a source had no more than what was read when the newest batch began; at least so long, where the "
    "table has been behind since it was started.",
    ("table", "topic"),
)
MARKER_TIME = Gauge(
    "tablegate_job_marker_time_seconds", "When the newest progress marker was written, in Unix time.", _TABLE
)
STATE_ROWS = Gauge("tablegate_job_state_rows", "Rows of the state that Spark keeps of the table.", _TABLE)
STATE_BYTES = Gauge("tablegate_job_state_bytes", "Memory that the state takes, on all executors.", _TABLE)
DEAD_LETTERS = Counter(
    "tablegate_job_dead_letters", "Malformed records that were set aside, by kind.", ("table", "kind")
)
IGNORED = Counter("tablegate_job_ignored_records", "Records of types that the table passes over.", _TABLE)
LATE = Counter("tablegate_job_late_records", "Records that came too late for their window; once a window.", _TABLE)
UNCOMPUTABLE = Counter(
    "tablegate_job_uncomputable_rows", "Rows, and records of outputs, that could not be computed.", _TABLE
)
RESTARTS = Counter(
    "tablegate_job_restarts", "Restarts of a table's queries, by what the job logs of them.", ("table", "cause")
)

SPANS = Counter(
    "tablegate_job_spans",
    "Spans of traces that have ended, that were exported, and whose export failed; the others wait, or were dropped.",
    ("result",),
)


@contextmanager
def served(address: str | None) -> Iterator[None]:
    """Serve the metrics at HOST:PORT while the block runs; None serves nothing. Raise `JobError`."""
    if address is None:
        yield
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > _PORT_MAX:
        raise JobError(f'--metrics: "{address}" is no address; give HOST:PORT, such as 127.0.0.1:9464')
    disable_created_metrics()  # type: ignore[no-untyped-call]  # a second line for each counter, of which nobody asks
    try:
        server, thread = start_http_server(int(port), host.removeprefix("[").removesuffix("]"))
    except (OSError, UnicodeError) as error:  # the second of a host that can be no name
        why = getattr(error, "strerror", None) or error
        raise JobError(
            f'--metrics: cannot listen on "{address}": {why}; stop what is there, or choose another'
        ) from None
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
