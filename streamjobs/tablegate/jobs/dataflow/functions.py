"""Functions of the user's in expressions: registered in the session of a table before its frames are made.

Decision: docs/decisions/0099-functions-of-users-in-jobs.md
"""

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tablegate.jobs.dataflow.java_errors import first_line
from tablegate.jobs.dataflow.processors import modules_of, pickled_by_value
from tablegate.jobs.errors import JobError
from tablegate.jobs.table import Table


def register_functions(spark: SparkSession, table: Table) -> None:
    """Register the functions of a table in its own session; raise `JobError`."""
    for name, function in table.functions.items():
        what = f'{table.declared_at}: table "{table.name}" function "{name}"'
        # A function of Spark's would be hidden by it, also where the job itself means that one.
        if spark.catalog.functionExists(name):
            raise JobError(f"{what} has the name of one of Spark's; give it another name")
        try:
            with pickled_by_value(modules_of(function)):
                spark.udf.register(name, function)
        except (PySparkException, TypeError) as error:
            raise JobError(f"{what} cannot be registered: {first_line(error)}") from None
