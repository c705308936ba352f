"""Batches of a DataFrame of the user's as records of a changelog: the same for jobs, `publish` and tests.

All rows of a batch have one sequence, so a batch has one row of a key. What is no row of the contract is set aside.

Decision: docs/decisions/0087-dataframes-as-tables.md
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sql

from tablegate.gateway.contract import catalogue
from tablegate.jobs import metrics
from tablegate.jobs.dataflow.columns import EXISTS_COLUMN, SEQUENCE_COLUMN, wanted_type
from tablegate.jobs.dataflow.decoding import Problem
from tablegate.jobs.dataflow.expressions import attempt
from tablegate.jobs.dataflow.java_errors import first_line
from tablegate.jobs.dataflow.keys import with_setting, without_ansi
from tablegate.jobs.dataflow.sink_records import (
    DEAD_LETTER_BYTES_MAX,
    RECORD_TYPE,
    ROW_BYTES_MAX,
    row_body,
    save_records,
    with_record,
    with_run,
)
from tablegate.jobs.dataflow.sources import KEY_COLUMN, key_problems, reason_sql
from tablegate.jobs.errors import JobError
from tablegate.jobs.frame_table import FrameTable
from tablegate.jobs.kafka.topics import Topic
from tablegate.jobs.planning.plan import Plan

_REASON, _ORDER, _PLACE, _BODY = "__reason", "__order", "__place", "__body"
_LETTER_BYTES_MAX = DEAD_LETTER_BYTES_MAX["value"]
_MISFIT = (
    "row is none of the contract: a number too large, a time not of the years 1 to 9999, text that is not UTF-8 or not "
    "JSON, a null in a list or map, or two fields of one oneof"
)
# Spark chooses the number of partitions of what is kept, as it does of all else. Otherwise three rows are kept in 200,
# those of Spark's default, and each is a task to count and to write.
_KEPT_BY_SIZE = "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning"
_ROWS, _DELETED, _SET_ASIDE, _SEVERAL = "rows", "deleted", "set_aside", "several"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTarget:
    """Where the rows of batches go."""

    table: FrameTable
    contract: catalogue.Table
    bootstrap: str
    generation: int
    changelog: Topic
    dead_letters: Topic
    value_schema: Mapping[str, Any]
    schema_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCounts:
    """Rows and deletes of a batch that are written, and its rows that are set aside."""

    rows: int
    deleted: int
    set_aside: int


NOTHING = BatchCounts(rows=0, deleted=0, set_aside=0)


def target_of(plan: Plan) -> BatchTarget:
    """Return where the rows of a job's table go."""
    assert isinstance(plan.table, FrameTable)
    return BatchTarget(
        table=plan.table,
        contract=plan.contract,
        bootstrap=plan.bootstrap,
        generation=plan.generation,
        changelog=plan.changelog,
        dead_letters=plan.dead_letters,
        value_schema=plan.value_schema,
        schema_id=plan.schema_id,
    )


def frame_of(table: FrameTable) -> str:
    """Return where the table is declared, and its name, as errors begin."""
    return f'{table.declared_at}: table "{table.name}"'


def conversion(field: FieldDescriptor, column: str, kind: str, wanted: str) -> str:
    """Return the SQL that makes of a column of Spark's type `kind` what the contract wants of a field.

    An enum is the number of its value, which no cast makes of its name.
    """
    if field.enum_type is None or kind != "string" or field.is_repeated:
        return f"CAST({column} AS {wanted.upper()})"
    numbers = [f"'{value.name}', {value.number}L" for value in field.enum_type.values]
    return f"map({', '.join(numbers)})[{column}]"


def check_columns(frame: DataFrame, table: FrameTable, row: Descriptor, value_schema: Mapping[str, Any]) -> None:
    """Raise `JobError` with everything that is wrong with the columns of a `row`, and what to write for each."""
    found = {field.name.lower(): (field.name, field.dataType) for field in frame.schema.fields}
    counts = Counter(name.lower() for name in frame.columns)
    problems = []
    for field in value_schema["fields"]:
        name = field["name"]
        if name.lower() not in found:
            problems.append(f'column "{name}" is missing')
            continue
        if counts[name.lower()] > 1:
            problems.append(f'column "{name}" is there {counts[name.lower()]} times: drop all but one')
            continue
        actual_name, actual = found[name.lower()]
        wanted = wanted_type(name, actual, value_schema)
        if wanted is not None:
            kind = actual.simpleString()
            write = conversion(row.fields_by_name[name], actual_name, kind, wanted)
            problems.append(f'column "{name}" is {kind}, the contract wants {wanted}: write {write}')
    if problems:
        raise JobError(f"{frame_of(table)}: the DataFrame has not the columns of the row: {'; '.join(problems)}")
    for what, expression in (("deletes", table.deletes), ("order", table.order)):
        if expression is None:
            continue
        try:
            # Beside a column, as it is of each row and no aggregate of all.
            name = value_schema["fields"][0]["name"]
            computed = frame.select(sql.expr(expression).alias("it"), sql.col(f"`{name}`").alias("one"))
            computed.agg(sql.max("it"))  # which needs an order, too
        except PySparkException as error:
            raise JobError(f"{frame_of(table)} {what}= does not compute: {first_line(error)}") from None
        try:
            frame.select(sql.expr(f"(\n{expression}\n)"))
        except PySparkException:  # with another name behind it, which DESC is taken for
            raise JobError(
                f'{frame_of(table)} {what}="{expression}" is more than an expression; leave out what is behind it (of '
                "several rows, that with the greatest order counts)"
            ) from None
        kind = computed.dtypes[0][1]
        if what == "deletes" and kind != "boolean":
            raise JobError(f"{frame_of(table)} deletes= is {kind}; write a condition, which is true or false")


def output_mode_hint(error: PySparkException, output_mode: str) -> str:
    """Return what to try where Spark refuses an output mode, as the end of a sentence; "" where it does not."""
    return '; try output_mode="append"' if output_mode == "update" and "output mode" in str(error).lower() else ""


def write_batch(
    rows: DataFrame,
    target: BatchTarget,
    sequence: int,
    *,
    run: int | None = None,
    next_run: Callable[[], int | None] = lambda: None,
) -> BatchCounts:
    """Write the rows of a batch to the changelog, all with one sequence; return the counts.

    The rows are kept until they are written: to count them is to compute them, and to compute a stream's batch twice
    would be to compute its state twice. `next_run` is asked when they are: it returns the run to write them with once
    more, as those of `run` may not count, or None. Raise `JobError` as `count_rows` does, and what Spark raises, as it
    is.
    """
    with with_setting(rows.sparkSession, _KEPT_BY_SIZE, "true"):
        chosen = chosen_rows(rows, target).persist()
    try:
        counts = count_rows(chosen, target)
        if counts != NOTHING:
            records = batch_records(chosen, target, sequence)
            _save(records, target, run)
            while (run := next_run()) is not None:
                _save(records, target, run)
        metrics.DEAD_LETTERS.labels(target.table.name, "row").inc(counts.set_aside)
    finally:
        chosen.unpersist()
    return counts


def _save(records: DataFrame, target: BatchTarget, run: int | None) -> None:
    if run is not None:
        records = with_run(records, target.changelog.name, run)
    save_records(records, target.bootstrap)


def chosen_rows(rows: DataFrame, target: BatchTarget) -> DataFrame:
    """Return the rows that count, of each key one, with whether it exists, or why it is set aside."""
    table = target.table
    keys = [f"`{column.name}`" for column in target.contract.key]
    fields = [sql.col(f"`{field['name']}`").alias(field["name"]) for field in target.value_schema["fields"]]
    found = rows.select(
        *fields,
        attempt(sql.expr(f"NOT coalesce({table.deletes or 'false'}, false)")).alias(EXISTS_COLUMN),
        attempt(sql.expr(table.order or "NULL")).alias(_ORDER),
        sql.expr(f"struct({', '.join(keys)})").alias(KEY_COLUMN),
    )
    found = found.withColumn(_BODY, attempt(row_body(found, target.value_schema, target.contract)))
    with without_ansi(rows.sparkSession):
        reason = f"({reason_sql([*_row_problems(target.contract)])}).text"
        found = found.withColumn(_REASON, sql.expr(reason)).drop(KEY_COLUMN)
    found = found.withColumn(EXISTS_COLUMN, sql.col(f"{EXISTS_COLUMN}.value"))
    by_key = Window.partitionBy(*keys)
    if table.order is None:
        # Those that are set aside are in nobody's way.
        place = sql.count(sql.when(sql.col(_REASON).isNull(), 1)).over(by_key)
        return found.withColumn(_PLACE, place).drop(_ORDER)
    # A batch that runs again has its rows in another order, and is to choose the same of those that are alike in it.
    last = sql.to_json(sql.struct(*(sql.col(f"`{field['name']}`") for field in target.value_schema["fields"])))
    order = (sql.col(f"{_ORDER}.value").desc_nulls_last(), sql.col(EXISTS_COLUMN), last)
    found = found.withColumn(_PLACE, sql.row_number().over(by_key.orderBy(*order))).drop(_ORDER)
    # Of rows without a key there is nothing to choose from: each of them is set aside.
    return found.where(f"{_REASON} IS NOT NULL OR {_PLACE} = 1")


def _row_problems(contract: catalogue.Table) -> Iterator[Problem]:
    yield from key_problems(contract.key, [column.name for column in contract.key])
    for name, column in (("deletes", EXISTS_COLUMN), ("order", _ORDER)):
        yield Problem(f"uncomputable_{name}", f"{column} IS NULL", f"'{name}= cannot be computed with this row'")
    yield Problem("misfit", f"{EXISTS_COLUMN}.value AND {_BODY} IS NULL", f"'{_MISFIT}'")
    size = f"octet_length({_BODY}.value)"
    reason = f"concat('row has ', {size}, ' bytes, more than {ROW_BYTES_MAX}, which Kafka takes')"
    yield Problem("too_large", f"{EXISTS_COLUMN}.value AND {size} > {ROW_BYTES_MAX}", reason)


def count_rows(chosen: DataFrame, target: BatchTarget) -> BatchCounts:
    """Return what a batch has, of `chosen_rows`; raise `JobError` where several rows of a key have no order."""
    conditions = {
        _ROWS: f"{_REASON} IS NULL AND {EXISTS_COLUMN}",
        _DELETED: f"{_REASON} IS NULL AND NOT {EXISTS_COLUMN}",
        _SET_ASIDE: f"{_REASON} IS NOT NULL",
        _SEVERAL: f"{_REASON} IS NULL AND {_PLACE} > 1",
    }
    counted = chosen.agg(*(sql.expr(f"count_if({condition})").alias(name) for name, condition in conditions.items()))
    counts = {name: int(count) for name, count in counted.first().asDict().items()}
    if counts.pop(_SEVERAL):
        raise JobError(
            f"{frame_of(target.table)}: a batch has several rows of one key; give order=, which says which counts"
        )
    return BatchCounts(**counts)


def batch_records(chosen: DataFrame, target: BatchTarget, sequence: int) -> DataFrame:
    """Return a batch as the Kafka sink takes it: rows for the changelog, what is no row for the dead letters."""
    rows = chosen.withColumn(SEQUENCE_COLUMN, sql.lit(sequence).cast("bigint"))
    rows, record = with_record(
        rows,
        sql.col(f"{_BODY}.value"),
        target.contract,
        topic=target.changelog.name,
        generation=target.generation,
        schema_id=target.schema_id,
        partition_count=target.changelog.partition_count,
    )
    listed = ", ".join(f"`{field['name']}`" for field in target.value_schema["fields"])
    letter = f"CAST(to_json(struct({listed})) AS BINARY)"
    size = f"struct('value_bytes' AS key, CAST(CAST(octet_length({letter}) AS STRING) AS BINARY) AS value)"
    headers = (
        f"array_compact(array(struct('reason' AS key, CAST({_REASON} AS BINARY) AS value), "
        f"IF(octet_length({letter}) > {_LETTER_BYTES_MAX}, {size}, NULL)))"
    )
    dead = sql.expr(
        f"CAST(struct('{target.dead_letters.name}', CAST(NULL AS INT), CAST(NULL AS BINARY), "
        f"substring({letter}, 1, {_LETTER_BYTES_MAX}), {headers}) AS {RECORD_TYPE})"
    )
    either = sql.when(sql.col(_REASON).isNull(), record.cast(RECORD_TYPE)).otherwise(dead)
    return rows.select(either.alias("record")).select("record.*")
