"""The reason that a job gives for an error out of Java, wherever it began."""

from dataclasses import dataclass

import pytest
from tablegate.jobs.dataflow.java_errors import thrown_reason
from tablegate.jobs.errors import UnknownSchema

FROM_PYTHON = """An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "/pyspark/sql/utils.py", line 163, in call
    self.func(DataFrame(jdf, wrapped_session_jdf), batch_id)
"""
FROM_JAVA = """py4j.protocol.Py4JJavaError: An error occurred while calling o3680.save.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 50.0 failed 1 times
Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:4568)
Caused by: org.apache.kafka.common.errors.TimeoutException: Topic notification not present after 60000 ms.
\tat org.apache.kafka.clients.producer.KafkaProducer.send(KafkaProducer.java:1013)
"""
CAPTURED = """pyspark.errors.exceptions.captured.SparkRuntimeException: [USER_RAISED_EXCEPTION] \
tablegate-unknown-schema pos_invoices 7 SQLSTATE: P0001

JVM stacktrace:
org.apache.spark.SparkRuntimeException: [USER_RAISED_EXCEPTION] tablegate-unknown-schema pos_invoices 7
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.raiseError(QueryExecutionErrors.scala:2733)
"""


@dataclass
class Thrown:
    """A Java exception as py4j shows it."""

    message: str | None
    cause: "Thrown | None" = None
    name: str = "Py4JException"

    def getMessage(self) -> str | None:  # noqa: N802
        return self.message

    def getCause(self) -> "Thrown | None":  # noqa: N802
        return self.cause

    def getClass(self) -> "Thrown":  # noqa: N802
        return self

    def getSimpleName(self) -> str:  # noqa: N802
        return self.name


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("disk is full;\nmore", "Py4JException: disk is full"),
        (None, "Py4JException"),
        (
            FROM_PYTHON + 'tablegate.jobs.errors.JobError: output topic "x" has gone; make it again\n',
            'output topic "x" has gone; make it again',
        ),
        (FROM_PYTHON + FROM_JAVA, "TimeoutException: Topic notification not present after 60000 ms."),
        (FROM_PYTHON + "builtins.KeyError: 'key'\n", "KeyError: 'key'"),
        (
            "Traceback:\ntablegate.jobs.processor.ProcessorError: job.py:3: raises KeyError\n",
            "job.py:3: raises KeyError",
        ),
    ],
)
def test_reason(message: str | None, reason: str) -> None:
    assert thrown_reason(Thrown("the query has ended", Thrown(message))) == reason


def test_an_unknown_schema_is_found_through_python() -> None:
    unknown = UnknownSchema.found_in(thrown_reason(Thrown("the query has ended", Thrown(FROM_PYTHON + CAPTURED))))
    assert unknown is not None
    assert (unknown.topic, unknown.schema_id) == ("pos_invoices", 7)
