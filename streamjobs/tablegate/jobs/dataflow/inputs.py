"""What aggregates are made over: the records of all sides together, without those that an aggregate cannot take.

Decision: docs/decisions/0082-what-cannot-be-computed-is-set-aside.md
Decision: docs/decisions/0084-a-watermark-for-each-partition.md
Decision: docs/decisions/0085-a-row-moves-with-its-record.md
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, GroupedData
from pyspark.sql import functions as sql

from tablegate.jobs.dataflow.decoding import Problem
from tablegate.jobs.dataflow.expressions import attempt, fallible_inputs
from tablegate.jobs.dataflow.java_errors import first_line
from tablegate.jobs.dataflow.keys import without_ansi
from tablegate.jobs.dataflow.sources import (
    IGNORED_COLUMN,
    KEY_COLUMN,
    PASSES_COLUMN,
    REASON_COLUMN,
    RECORD_KEY_COLUMN,
    SEEN_COLUMN,
    TIME_COLUMN,
    Records,
    decodable,
    order_sql,
    reason_sql,
    row_sql,
    union,
    well_formed,
)
from tablegate.jobs.errors import JobError
from tablegate.jobs.table import (
    KAFKA_COLUMN,
    WINDOW_COLUMN,
    Global,
    Join,
    Latest,
    Table,
    Window,
    is_window_start,
)

PARTITIONS_APART_S = 86_400  # how far one partition may be behind another in event time before its events are late
CLOCKS_MAX = 32  # of a table with a window: each costs every record a little

SIDE_COLUMN = "__side"
"""Name of the side that a record is of, in a table that has several."""
LATEST = "__latest_"
"""What the names of the structs of `Latest` sides begin with."""


@dataclass(frozen=True, slots=True)
class Grouped:
    """Records of all sides that aggregates can be made over. `latest`: aggregates of the `Latest` sides by name.

    `partitions`: topic and number of each partition that the records come from, for watermarks.
    """

    records: DataFrame
    latest: Mapping[str, str]
    partitions: Sequence[tuple[str, int]] = ()


def side_inputs(keyed: Mapping[str, Records], globals_: Mapping[str, DataFrame], table: Table) -> dict[str, Records]:
    """Return the records of each side with the columns that aggregates are over, the same for all sides.

    A record of which an aggregate cannot compute what it takes of it is malformed. Raise `JobError` where a column does
    not compute at all.
    """
    frames = {name: records.frame for name, records in keyed.items()}
    for name, newest in globals_.items():
        frames = {side: join_global(frame, newest, name, table) for side, frame in frames.items()}
    latest: dict[str, str] = {}
    if table.source is None:
        latest = _latest_aggregates(table, list(frames))
        frames = _with_structs(frames, globals_, table)
    return {
        name: _computable(replace(records, frame=frames[name]), Grouped(frames[name], latest), table)
        for name, records in keyed.items()
    }


def join_global(records: DataFrame, newest: DataFrame, name: str, table: Table) -> DataFrame:
    """Return the records with the row of a global side as the struct `name`; without one they may not pass."""
    side = table.sides[name]
    assert isinstance(side, Global)
    try:
        with without_ansi(records.sparkSession):  # what fails finds nothing
            asked = records.withColumn("__asked", sql.expr(side.on))
    except PySparkException as error:
        raise JobError(
            f'{table.declared_at}: table "{table.name}" side "{name}" on= does not compute: {first_line(error)}'
        ) from None
    # A global side is a static frame, which Spark reads again for each batch: so the join sees its newest rows.
    joined = asked.join(sql.broadcast(newest), sql.expr("__asked = __on"), "left")
    if side.join is Join.INNER:
        joined = joined.withColumn(PASSES_COLUMN, sql.expr(f"{PASSES_COLUMN} AND __found IS NOT NULL"))
    return joined.withColumn(name, sql.col("__found")).drop("__asked", "__on", "__found")


def _latest_aggregates(table: Table, names: Sequence[str]) -> dict[str, str]:
    """Return the aggregates of the `Latest` sides by name."""
    # `max_by` passes over records whose order is null: those of other sides. A delete is a null struct that still has
    # its order, so that it can be the newest.
    return {
        name: f"max_by({LATEST}{name}, IF({SIDE_COLUMN} = '{name}', {order_sql(table.source_of(name))}, NULL))"
        for name in names
        if isinstance(table.sides[name], Latest)
    }


def _with_structs(
    frames: Mapping[str, DataFrame], globals_: Mapping[str, DataFrame], table: Table
) -> dict[str, DataFrame]:
    """Return records with a struct column a side, of which one is not null."""
    columns = {name: f"{LATEST}{name}" if isinstance(table.sides[name], Latest) else name for name in frames}
    types = {
        name: frame.select(sql.expr(row_sql(table.source_of(name))).alias("row")).schema["row"].dataType.simpleString()
        for name, frame in frames.items()
    }
    time = [TIME_COLUMN] if table.window is not None else []
    own = [
        KAFKA_COLUMN,
        KEY_COLUMN,
        *([RECORD_KEY_COLUMN] if table.rows_move else []),
        *time,
        REASON_COLUMN,
        IGNORED_COLUMN,
        SEEN_COLUMN,
        PASSES_COLUMN,
    ]
    found = {}
    for name, frame in frames.items():
        # Only the struct of its own side is not null: so an aggregate over a side's fields sees that side alone.
        structs = [
            sql.expr(row_sql(table.source_of(other)) if other == name else f"CAST(NULL AS {types[other]})").alias(
                column
            )
            for other, column in columns.items()
        ]
        found[name] = frame.select(*own, sql.lit(name).alias(SIDE_COLUMN), *structs, *globals_)
    return found


def _computable(records: Records, grouped: Grouped, table: Table) -> Records:
    """Return records with the reason of those that the table's aggregates cannot take."""
    if table.processor is not None:
        return records
    grouping, frame = by_key(grouped, table), records.frame
    # Columns may use the names of `Latest` sides; what stands for them here has their types and cannot fail.
    own = [sql.expr(f"first({LATEST}{name})").alias(name) for name in grouped.latest]
    problems = []
    for number, (name, expression) in enumerate(table.columns.items()):
        try:
            inputs = fallible_inputs(grouping.agg(*own, sql.expr(expression).alias(name)))
        except PySparkException as error:
            raise does_not_compute(name, table, error) from None
        if inputs:
            frame = frame.withColumn(f"__input_{number}", attempt(sql.struct(*inputs)))
            condition = f"{PASSES_COLUMN} AND __input_{number} IS NULL"
            problems.append(
                Problem(f"uncomputable_{name}", condition, f"'column \"{name}\" cannot be computed with this record'")
            )
    if not problems:
        return records
    reason = f"coalesce({REASON_COLUMN}, IF({IGNORED_COLUMN} IS NULL, {reason_sql(problems)}, NULL))"
    kinds = (*records.kinds, *(problem.kind for problem in problems))
    return replace(records, frame=frame.withColumn(REASON_COLUMN, sql.expr(reason)), kinds=kinds)


def group_records(inputs: Mapping[str, DataFrame], table: Table, partitions: Sequence[tuple[str, int]] = ()) -> Grouped:
    """Return the well-formed records of the sides, by `side_inputs`, together."""
    if table.source is not None:
        return Grouped(well_formed(inputs[""]), {}, partitions)
    # On a side that is a table, a record that does not pass is a delete.
    parts = [
        (decodable if isinstance(table.sides[name], Latest) else well_formed)(frame) for name, frame in inputs.items()
    ]
    wanted = [name for name in parts[0].columns if not name.startswith("__input_")]
    return Grouped(
        functools.reduce(union, (part.select(*wanted) for part in parts)),
        _latest_aggregates(table, list(inputs)),
        partitions,
    )


def by_key(grouped: Grouped, table: Table) -> GroupedData:
    """Return the records by the table's key, or by their own where rows move; in windows, if the table has them."""
    if table.rows_move:
        return grouped.records.groupBy(RECORD_KEY_COLUMN)
    names = [name for name, expression in table.key.items() if not is_window_start(expression)]
    keys = [sql.expr(f"{KEY_COLUMN}.`{name}`").alias(name) for name in names]
    if table.window is None:
        return grouped.records.groupBy(*keys)
    records = _with_watermarks(grouped.records, grouped.partitions, table.window)
    hop_s = table.window.hop_s or table.window.size_s
    window = sql.window(TIME_COLUMN, _seconds(table.window.size_s), _seconds(hop_s))
    return records.groupBy(*keys, window.alias(WINDOW_COLUMN))


def _with_watermarks(records: DataFrame, partitions: Sequence[tuple[str, int]], window: Window) -> DataFrame:
    """Return records with a watermark for each partition; Spark goes by the one that is farthest behind.

    Partitions of a backlog are not read side by side. One watermark for all would be that of the partition that is
    read first, and the events of the others would be late. A partition without events must not hold up the rest for
    ever, so each is moved on by the events of the others, too, `PARTITIONS_APART_S` behind them.
    """
    late = _seconds(window.late_s)
    clocks = range(min(len(partitions), CLOCKS_MAX)) if len(partitions) > 1 else ()
    places = {
        place: f"({KAFKA_COLUMN}.topic = '{topic}' AND {KAFKA_COLUMN}.partition = {number})"
        for place, (topic, number) in enumerate(partitions)
    }
    columns = records.columns
    for clock in clocks:
        own = " OR ".join(condition for place, condition in places.items() if place % CLOCKS_MAX == clock)
        behind = f"{TIME_COLUMN} - INTERVAL '{PARTITIONS_APART_S}' SECOND"
        records = records.withColumn("__clock", sql.expr(f"IF({own}, {TIME_COLUMN}, {behind})"))
        records = records.withWatermark("__clock", late).select(*columns)
    return records.withWatermark(TIME_COLUMN, late)


def _seconds(seconds: float) -> str:
    return f"{round(seconds * 1000)} milliseconds"


def does_not_compute(name: str, table: Table, error: PySparkException) -> JobError:
    """Return the error of a column whose expression Spark refuses."""
    return JobError(f'{table.declared_at}: table "{table.name}" column "{name}" does not compute: {first_line(error)}')
