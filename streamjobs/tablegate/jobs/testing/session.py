"""The Spark of a test process: one, started when it is first asked for."""

import atexit
import tempfile
from contextlib import ExitStack
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from tablegate.jobs.errors import JobError
from tablegate.jobs.jars.java import SHORT_LIVED_OPTIONS
from tablegate.jobs.running.session import DEFAULTS, SETTINGS, has_connectors, spark_session

MASTER = "local[2]"

_running = ExitStack()
_session: SparkSession | None = None


def process_session() -> SparkSession:
    """Return the process's session; raise `JobError` where Spark does not start.

    A session that the process has already is used as it is.
    """
    global _session
    if _session is None or _is_stopped(_session):
        stop_spark()
        _session = _started()
    return _session


def stop_spark() -> None:
    """Stop what `run_table` has started. The process's end does it as well, and the next `run_table` starts it anew."""
    global _session
    _session = None
    _running.close()


atexit.register(stop_spark)


def _started() -> SparkSession:
    other = SparkContext._active_spark_context
    if other is not None:
        return _borrowed(SparkSession(other))
    directory = _running.enter_context(
        tempfile.TemporaryDirectory(prefix="tablegate-test-", ignore_cleanup_errors=True)
    )
    return _running.enter_context(
        spark_session(
            "tablegate tests",
            master=MASTER,
            checkpoints=directory,
            spark_log=Path(directory, "spark.log"),
            java_options=SHORT_LIVED_OPTIONS,
            records_classes=True,
        )
    )


def _borrowed(other: SparkSession) -> SparkSession:
    """Return a session of a Spark that the process has started for itself, with the settings that jobs have."""
    if not has_connectors(other):
        raise JobError(
            "this process runs a Spark of its own without the jars of tablegate.jobs.jars.jars; "
            "give it these as spark.jars, or run tests of declarations in a process of their own"
        )
    return with_settings(other.newSession())


def with_settings(session: SparkSession) -> SparkSession:
    """Return a session with the settings that jobs have; a new session of a Spark has those of that Spark."""
    for setting, value in {**DEFAULTS, **SETTINGS}.items():
        if session.conf.isModifiable(setting):
            session.conf.set(setting, value)
    return session


def _is_stopped(session: SparkSession) -> bool:
    context = session.sparkContext
    return context._jsc is None or bool(context._jsc.sc().isStopped())
