"""A Spark session as a user makes it, with Spark's own settings."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from tablegate.jobs.publishing import spark_jars
from tablegate.jobs.testing import stop_spark


@contextmanager
def user_session() -> Iterator[SparkSession]:
    """Start the session, in a Java process of its own; it stops with the block."""
    stop_spark()
    _end_java()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        session = (
            SparkSession.builder.master("local[2]")
            .config("spark.jars", spark_jars())
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "America/New_York")
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("ERROR")
        yield session
        session.stop()
    _end_java()


@contextmanager
def spark_warnings(session: SparkSession) -> Iterator[Callable[[], list[str]]]:
    """Give what returns the warnings and errors that Spark has logged since the block began."""
    java = session.sparkContext._jvm
    assert java is not None
    log4j = java.org.apache.logging.log4j
    writer = java.java.io.StringWriter()
    appender = log4j.core.appender.WriterAppender.createAppender(None, None, writer, "tests", False, True)
    appender.start()
    root = log4j.LogManager.getContext(False).getConfiguration().getRootLogger()
    root.addAppender(appender, None, None)
    session.sparkContext.setLogLevel("WARN")
    try:
        yield lambda: str(writer.toString()).splitlines()
    finally:
        session.sparkContext.setLogLevel("ERROR")
        root.removeAppender("tests")
        appender.stop()


def _end_java() -> None:
    """End the Java process that others in this process have started: it keeps the settings of its first Spark."""
    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
        SparkContext._gateway = SparkContext._jvm = None
