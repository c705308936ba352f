"""The state of a table's query as rows, and the records that the query's own last steps make of such rows.

Decision: docs/decisions/0088-an-audit-reads-the-state.md
"""

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql import types as spark_types

from tablegate.jobs.dataflow.java_classes import java_class, scala_object, scala_seq
from tablegate.jobs.errors import JobError
from tablegate.jobs.planning.plan import Plan

_CATALYST = "org.apache.spark.sql.catalyst"
_EXECUTION = "org.apache.spark.sql.execution"


def read_state(session: SparkSession, query_location: str, batch: int) -> DataFrame:
    """Return the keys and the aggregates in the state of a committed batch: `key_0`, …, `value_0`, …, in their order.

    Several may have one name in Spark.
    """
    state = session.read.format("statestore").option("batchId", batch).load(query_location)
    structs = []
    for name in ("key", "value"):
        kind = state.schema[name].dataType
        assert isinstance(kind, spark_types.StructType), "Spark's source has it so"
        fields = ", ".join(f"{name}_{at}: {field.dataType.simpleString()}" for at, field in enumerate(kind.fields))
        structs.append(sql.expr(f"CAST({name} AS STRUCT<{fields}>)").alias(name))
    return state.select(*structs).select("key.*", "value.*")


def records_of_state(changelog: DataFrame, state: DataFrame, plan: Plan) -> DataFrame:
    """Return the records that a query's last steps make of its state.

    Spark plans an aggregate in two steps: one adds up, for each key; the other makes of the sums what was asked for. A
    stream keeps in its state what the first step gives, in the same columns. So the rows of the state take its place.
    The query is optimized as the stream that it is, or there might be other sums, and planned as a batch, which has no
    steps between the two.
    """
    context = changelog.sparkSession.sparkContext
    session = changelog.sparkSession._jsparkSession
    none, nothing = scala_object(context, "scala.None"), scala_seq(context, [])

    def replaced(step: Any, name: str, by: Callable[[Any], Any]) -> Any:
        """Return a plan with other inputs of its topmost step of this kind."""
        if step.getClass().getSimpleName().endswith(name):
            return step.withNewChildren(scala_seq(context, [by(step)]))
        children = [step.children().apply(place) for place in range(step.children().size())]
        return step.withNewChildren(scala_seq(context, [replaced(child, name, by) for child in children]))

    def no_records(aggregate: Any) -> Any:
        relation = java_class(context, f"{_CATALYST}.plans.logical.LocalRelation")
        return relation(aggregate.child().output(), nothing, False, none)

    def rows_of_state(last_step: Any) -> Any:
        columns, rows = last_step.child().output(), state._jdf.queryExecution().toRdd()
        _check_columns(columns, state, plan)
        # Each key is in the state once. So it is as good as distributed by its key, and needs no shuffle.
        partitioning = java_class(context, f"{_CATALYST}.plans.physical.HashPartitioning")
        by_key = partitioning(last_step.groupingExpressions(), rows.getNumPartitions())
        return java_class(context, f"{_EXECUTION}.RDDScanExec")(columns, rows, "state", by_key, nothing, none)

    analyzed = changelog._jdf.queryExecution().analyzed()
    optimized = session.sessionState().optimizer().execute(analyzed)
    planned = session.sessionState().planner().plan(replaced(optimized, "Aggregate", no_records)).next()
    companion = scala_object(context, f"{_EXECUTION}.QueryExecution")
    prepared = companion.prepareExecutedPlan(session, replaced(planned, "AggregateExec", rows_of_state))
    frame = session.internalCreateDataFrame(prepared.execute(), changelog._jdf.schema(), False)
    return DataFrame(frame, changelog.sparkSession)


def _check_columns(columns: Any, state: DataFrame, plan: Plan) -> None:
    """Raise `JobError` where the state has not the columns that the query would put there."""
    wanted = [columns.apply(place).dataType().simpleString() for place in range(columns.size())]
    found = [field.dataType.simpleString() for field in state.schema.fields]
    if wanted != found:
        raise JobError(
            f'table "{plan.table.name}" has a state that cannot be read: it has columns of the types '
            f"{', '.join(found)}, and the declaration gives {', '.join(wanted)}; use the version of Spark that its "
            "job runs on"
        )
