"""Classes of Java, by their whole names.

`jvm.org.apache.spark.util.ManualClock` asks Java at each dot, and Java looks for a class `org`, then for `org.apache`,
in each of three hundred jars: of a test of one table that was a tenth of a second. A whole name is found at once.

Decision: docs/decisions/0107-few-messages-to-java.md
"""

from typing import Any

from pyspark import SparkContext

HADOOP_PATH = "org.apache.hadoop.fs.Path"
IO_UTILS = "org.apache.commons.io.IOUtils"


def java_class(context: SparkContext, name: str) -> Any:
    """Return a class of the Java process, such as `org.apache.hadoop.fs.Path`."""
    return getattr(context._jvm, name)


def scala_object(context: SparkContext, name: str) -> Any:
    """Return the one object that a Scala `object` of this name is."""
    return getattr(java_class(context, f"{name}$"), "MODULE$")


def scala_seq(context: SparkContext, items: list[Any]) -> Any:
    """Return a list as Scala wants it."""
    return java_class(context, "org.apache.spark.api.python.PythonUtils").toSeq(items)
