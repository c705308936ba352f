"""A Spark session as a user makes it, with Spark's own settings."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession

from tablegate.jobs.publishing import spark_jars
from tablegate.jobs.testing import stop_spark


@contextmanager
def user_session() -> Iterator[SparkSession]:
    """Start the session; it stops with the block."""
    stop_spark()  # that of a test's declarations has the settings of jobs
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
