"""A plan's dataflow: `build` turns a plan into streaming frames, and starts nothing.

    source topic ── decode_source ── with_key ──┬── group_records ── make_rows ── changelog_records ──► changelog
                                                ├── dead_letters ─────────────────────────────────────► dead letters
                                                └── record_output, processor_output ──────────────────► other topics

Each arrow on the right is a frame, and becomes a streaming query of its own (`running/queries.py`).

A join is an aggregate: the union of its sides grouped by the key, of each `Latest` side the newest row. So any side may
come first, be replaced or be deleted, no window is needed, and Real-time Mode supports it.

Decision: docs/decisions/0002-versions-count-inputs.md
Decision: docs/decisions/0010-one-union-one-aggregate-one-sink.md
Decision: docs/decisions/0055-jobs-go-forward-only.md
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from tablegate.gateway.contract.types import BATCH_CHANGES_MAX
from tablegate.jobs.dataflow.columns import EXISTS_COLUMN, SEQUENCE_COLUMN, check_type
from tablegate.jobs.dataflow.java_errors import first_line
from tablegate.jobs.dataflow.processors import emitted_rows
from tablegate.jobs.dataflow.sink_records import changelog_records, dead_letters, processor_output, record_output
from tablegate.jobs.dataflow.sources import (
    KEY_COLUMN,
    RECORDS_PER_BATCH_MAX,
    TIME_COLUMN,
    KafkaReader,
    Reader,
    Records,
    decode_source,
    ignored_kinds,
    newest_by_key,
    order_sql,
    row_sql,
    well_formed,
    with_global_key,
    with_key,
)
from tablegate.jobs.errors import JobError
from tablegate.jobs.planning.plan import Plan, SidePlan
from tablegate.jobs.table import (
    KAFKA_COLUMN,
    WINDOW_COLUMN,
    Global,
    Join,
    Latest,
    Mode,
    ProcessorOutput,
    RecordOutput,
    RowOutput,
    Source,
    Table,
    is_window_start,
)

_SIDE = "__side"
_PARTITIONS = "__partitions"
_LATEST = "__latest_"


@dataclass(frozen=True, slots=True)
class Grouped:
    """Records of all sides that aggregates can be made over. `latest`: aggregates of the `Latest` sides by name."""

    records: DataFrame
    latest: Mapping[str, str]


def group_records(keyed: Mapping[str, DataFrame], globals_: Mapping[str, DataFrame], table: Table) -> Grouped:
    """Return the well-formed records of the sides, by `with_key`, together."""
    frames = {}
    for name, frame in keyed.items():
        records = well_formed(frame)
        for global_name, newest in globals_.items():
            records = join_global(records, newest, global_name, table)
        frames[name] = records
    if table.source is not None:
        return Grouped(frames[""], {})
    return _union(frames, globals_, table)


def join_global(records: DataFrame, newest: DataFrame, name: str, table: Table) -> DataFrame:
    """Return the records with the row of a global side as the struct `name`."""
    side = table.sides[name]
    assert isinstance(side, Global)
    try:
        asked = records.withColumn("__asked", sql.expr(side.on))
    except PySparkException as error:
        raise JobError(
            f'{table.declared_at}: table "{table.name}" side "{name}" on= does not compute: {first_line(error)}'
        ) from None
    # A global side is a static frame, which Spark reads again for each batch: so the join sees its newest rows.
    joined = asked.join(
        sql.broadcast(newest), sql.expr("__asked = __on"), "inner" if side.join is Join.INNER else "left"
    )
    return joined.withColumn(name, sql.col("__found")).drop("__asked", "__on", "__found")


def _union(frames: Mapping[str, DataFrame], globals_: Mapping[str, DataFrame], table: Table) -> Grouped:
    """Return records with a struct column a side, of which one is not null."""
    columns: dict[str, str] = {}
    latest: dict[str, str] = {}
    for name in frames:
        side = table.sides[name]
        source = table.source_of(name)
        column = f"{_LATEST}{name}" if isinstance(side, Latest) else name
        columns[name] = column
        if isinstance(side, Latest):
            order = order_sql(source)
            # `max_by` passes over records whose order is null: those of other sides. A delete is a null struct that
            # still has its order, so that it can be the newest.
            latest[name] = f"max_by({column}, IF({_SIDE} = '{name}', {order}, NULL))"
    types = {
        name: frame.select(sql.expr(row_sql(table.source_of(name))).alias("row")).schema["row"].dataType.simpleString()
        for name, frame in frames.items()
    }
    parts = []
    for name, frame in frames.items():
        time = [TIME_COLUMN] if table.window is not None else []
        # Only the struct of its own side is not null: so an aggregate over a side's fields sees that side alone.
        structs = [
            sql.expr(row_sql(table.source_of(other)) if other == name else f"CAST(NULL AS {types[other]})").alias(
                column
            )
            for other, column in columns.items()
        ]
        parts.append(frame.select(KAFKA_COLUMN, KEY_COLUMN, *time, sql.lit(name).alias(_SIDE), *structs, *globals_))
    records = parts[0]
    for part in parts[1:]:
        records = records.unionByName(part)
    return Grouped(records, latest)


def make_rows(grouped: Grouped, table: Table, value_schema: Mapping[str, Any]) -> DataFrame:
    """Return the table's rows: key columns, columns, `SEQUENCE_COLUMN` and `EXISTS_COLUMN`.

    Raise `JobError` where a column does not compute, or is not what the contract wants.
    """
    rows = _processed(grouped.records, table) if table.processor is not None else _aggregated(grouped, table)
    for name in (*table.key, *table.columns):
        check_type(name, rows.schema[name].dataType.simpleString(), table, value_schema)
    try:
        rows = rows.withColumn(EXISTS_COLUMN, sql.expr(_exists(table)))
    except PySparkException as error:
        raise JobError(
            f'{table.declared_at}: table "{table.name}" having= does not compute: {first_line(error)}'
        ) from None
    rows = _checked_versions(rows, table)
    # What a processor emits beside the columns is there for outputs.
    return (
        rows if table.processor is not None else rows.select(*table.key, *table.columns, SEQUENCE_COLUMN, EXISTS_COLUMN)
    )


def _aggregated(grouped: Grouped, table: Table) -> DataFrame:
    records, keys = _grouping(grouped.records, table)
    aggregates = _aggregates(grouped, table)
    by_key = records.groupBy(*keys)
    own = [sql.expr(expression).alias(name) for name, expression in aggregates.items()]
    for name, expression in table.columns.items():  # each alone first, so that an error names its column
        try:
            by_key.agg(*own, sql.expr(expression).alias(name))
        except PySparkException as error:
            raise _does_not_compute(name, table, error) from None
    rows = by_key.agg(*own, *(sql.expr(expression).alias(name) for name, expression in table.columns.items()))
    for name, expression in table.key.items():
        if is_window_start(expression):
            rows = rows.withColumn(name, sql.col(f"{WINDOW_COLUMN}.start"))
    return rows


def _does_not_compute(name: str, table: Table, error: PySparkException) -> JobError:
    return JobError(f'{table.declared_at}: table "{table.name}" column "{name}" does not compute: {first_line(error)}')


def _grouping(records: DataFrame, table: Table) -> tuple[DataFrame, list[object]]:
    names = [name for name, expression in table.key.items() if not is_window_start(expression)]
    keys: list[object] = [sql.expr(f"{KEY_COLUMN}.`{name}`").alias(name) for name in names]
    if table.window is not None:
        records = records.withWatermark(TIME_COLUMN, _seconds(table.window.late_s))
        hop_s = table.window.hop_s or table.window.size_s
        window = sql.window(TIME_COLUMN, _seconds(table.window.size_s), _seconds(hop_s))
        keys.append(window.alias(WINDOW_COLUMN))
    return records, keys


def _seconds(seconds: float) -> str:
    return f"{round(seconds * 1000)} milliseconds"


def _aggregates(grouped: Grouped, table: Table) -> dict[str, str]:
    """Return the job's own aggregates by name; columns may use the names of the sides."""
    keyed = table.has_keyed_versions
    found = {SEQUENCE_COLUMN: f"max({KAFKA_COLUMN}.offset)" if keyed else "count(*)"}
    if keyed:
        found[_PARTITIONS] = f"struct(min({KAFKA_COLUMN}.partition) AS first, max({KAFKA_COLUMN}.partition) AS last)"
    # A key that only `Latest` sides know has no row in a table that counts events, so these are counted.
    plain = [name for name, side in table.sides.items() if isinstance(side, Source)]
    if plain:
        listed = ", ".join(f"'{name}'" for name in plain)
        found["__plain"] = f"count_if({_SIDE} IN ({listed}))"
    return {**found, **grouped.latest}


def _exists(table: Table) -> str:
    """Return the SQL of whether a key has a row: by the kind of join, then by `having`."""
    latest = {name: side for name, side in table.sides.items() if isinstance(side, Latest)}
    conditions = [f"{name} IS NOT NULL" for name, side in latest.items() if side.join is Join.INNER]
    if any(isinstance(side, Source) for side in table.sides.values()):
        conditions.append("__plain > 0")
    elif latest and not conditions:  # all sides are optional: a key has a row while one of them has
        conditions.append("(" + " OR ".join(f"{name} IS NOT NULL" for name in latest) + ")")
    if table.having is not None:
        conditions.append(f"coalesce({table.having}, false)")
    return " AND ".join(conditions) or "true"


def _checked_versions(rows: DataFrame, table: Table) -> DataFrame:
    """Stop the job at a key whose inputs lie in two partitions though its source says `keyed`.

    The largest offset would order nothing then, and changes would be lost without a word.
    """
    if not table.has_keyed_versions:
        return rows
    topic = next(iter(table.all_sides.values()))
    source = topic if isinstance(topic, Source) else table.source_of(next(iter(table.sides)))
    message = f'source "{source.topic}" is declared keyed, but records of one key are in several partitions'
    checked = f"IF({_PARTITIONS}.first = {_PARTITIONS}.last, {SEQUENCE_COLUMN}, raise_error('{message}'))"
    return rows.withColumn(SEQUENCE_COLUMN, sql.expr(checked))


def _processed(records: DataFrame, table: Table) -> DataFrame:
    assert table.processor is not None
    emitted = emitted_rows(
        records,
        table.processor,
        {name: f"{KEY_COLUMN}.`{name}`" for name in table.key},
        table.source_of(""),
        owner=f'table "{table.name}"',
    )
    columns = []
    for name, expression in table.columns.items():
        try:
            emitted.select(sql.expr(expression))
        except PySparkException as error:
            raise _does_not_compute(name, table, error) from None
        columns.append(sql.expr(expression).alias(name))
    others = [name for name in emitted.columns if name not in {*table.key, *table.columns, SEQUENCE_COLUMN}]
    return emitted.select(*table.key, SEQUENCE_COLUMN, *columns, *others)


@dataclass(frozen=True, slots=True)
class Frames:
    """Streaming frames of a plan, not started: each gives records as Spark's Kafka sink takes them.

    `table`: the changelog, with the topics that get the table's changes. `malformed`: the dead letters. `outputs`: the
    table's other outputs, which read the sources for themselves.
    """

    table: DataFrame
    dead_letters: DataFrame
    outputs: tuple[tuple[RecordOutput | ProcessorOutput, DataFrame], ...]


def build(
    spark: SparkSession, plan: Plan, *, row_outputs: bool, other_outputs: bool, reader: Reader | None = None
) -> Frames:
    """Return the frames of a plan, all their expressions checked; raise `JobError`.

    `reader` is where records come from, if not from Kafka. `row_outputs`, `other_outputs`: whether the table's outputs
    get records.
    """
    reader = reader or KafkaReader(spark, plan.bootstrap, records_per_batch_max=records_per_batch_max(plan))
    builder = _Builder(plan, reader)
    others = [output for output in plan.table.outputs if not isinstance(output, RowOutput)]
    return Frames(
        table=builder.changelog(row_outputs=row_outputs),
        dead_letters=builder.dead_letters(),
        outputs=tuple((output, builder.output(output)) for output in others if other_outputs),
    )


def records_per_batch_max(plan: Plan) -> int:
    """Return how many records of one source a batch may have, so that an atomic one has not too many changes."""
    if not plan.table.atomic:
        return RECORDS_PER_BATCH_MAX
    window = plan.table.window
    windows = math.ceil(window.size_s / (window.hop_s or window.size_s)) if window is not None else 1
    # A record changes one row, or one in each window that it is in. Spark gives each partition one record at least, and
    # so goes beyond its limit by as many as there are partitions.
    over = max(side.topic.partition_count for side in plan.streamed.values())
    return max(BATCH_CHANGES_MAX // (windows * len(plan.streamed)) - over, 1)


class _Builder:
    """Makes the frames of one plan. Each frame reads its sources by itself: Spark shares nothing between queries."""

    def __init__(self, plan: Plan, reader: Reader) -> None:
        self._plan = plan
        self._reader = reader

    def changelog(self, *, row_outputs: bool) -> DataFrame:
        """Return the table's changes as records."""
        plan = self._plan
        batched = plan.mode is Mode.MICROBATCH
        keyed = {name: self._keyed(name, side, batched=batched).frame for name, side in plan.streamed.items()}
        globals_ = {name: self._global(name) for name, side in plan.table.sides.items() if isinstance(side, Global)}
        rows = make_rows(group_records(keyed, globals_, plan.table), plan.table, plan.value_schema)
        return changelog_records(
            rows,
            plan.table,
            plan.contract,
            topic=plan.changelog.name,
            generation=plan.generation,
            value_schema=plan.value_schema,
            schema_id=plan.schema_id,
            partition_count=plan.changelog.partition_count,
            row_outputs=row_outputs,
        )

    def dead_letters(self) -> DataFrame:
        """Return the malformed records of all sides. A global side is read once more for that."""
        plan = self._plan
        return dead_letters(
            [self._keyed(name, side, batched=True) for name, side in plan.sides.items()],
            plan.dead_letters.name,
            ignored=ignored_kinds(side.schemas for side in plan.sides.values()),
        )

    def output(self, output: RecordOutput | ProcessorOutput) -> DataFrame:
        """Return the records of an output that is not made from the table's changes."""
        name = output.side or ""
        keyed = self._keyed(name, self._plan.sides[name], batched=True).frame
        if isinstance(output, ProcessorOutput):
            return processor_output(keyed, output, self._plan.table)
        return record_output(keyed, output, self._plan.table)

    def _keyed(self, name: str, side_plan: SidePlan, *, batched: bool) -> Records:
        """Return the decoded records of a side, with their keys."""
        plan, side = self._plan, self._plan.table.all_sides[name]
        raw = self._reader.stream(side_plan.topic.name, batched=batched, starting_offsets=side_plan.starting_offsets)
        # On a side that is a table, a null value deletes; on any other it means nothing, and so is malformed.
        deletes = isinstance(side, Latest | Global)
        records = decode_source(raw, side_plan.source, side_plan.schemas, deletes=deletes)
        if isinstance(side, Global):
            return with_global_key(records, side, plan.table)
        return with_key(records, side, plan.table, plan.contract)

    def _global(self, name: str) -> DataFrame:
        side = self._plan.table.sides[name]
        assert isinstance(side, Global)
        return newest_by_key(self._reader.read_all(side.source.topic), side, self._plan.sides[name].schemas)
