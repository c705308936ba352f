"""A plan's dataflow: `build` turns a plan into streaming frames, and starts nothing.

    source topic ── decode_source ── with_key ──┬── side_inputs ──┬── group_records ── make_rows ──► changelog_records
                                                │                 └──────────────────────────────► malformed_records
                                                └────────────────────────────────► record_outputs, processor_output

Each arrow on the right is a frame, and becomes a streaming query of its own (`running/queries.py`). But malformed
records are counted by the table's query, and read once more where there are some (`running/dead_letters.py`).

A join is an aggregate: the union of its sides grouped by the key, of each `Latest` side the newest row. So any side may
come first, be replaced or be deleted, no window is needed, and Real-time Mode supports it.

Decision: docs/decisions/0002-versions-count-inputs.md
Decision: docs/decisions/0010-one-union-one-aggregate-one-sink.md
Decision: docs/decisions/0055-jobs-go-forward-only.md
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql

from tablegate.gateway.contract.kafka_settings import source_cluster
from tablegate.gateway.contract.types import BATCH_CHANGES_MAX
from tablegate.jobs.dataflow.columns import COMPUTED_COLUMN, EXISTS_COLUMN, FIRST_TIME, SEQUENCE_COLUMN, check_type
from tablegate.jobs.dataflow.expressions import attempt, ever_met, guarded, state_types
from tablegate.jobs.dataflow.frame_functions import decoded_sources, rows_of_function
from tablegate.jobs.dataflow.functions import register_functions
from tablegate.jobs.dataflow.header_ids import reads_headers
from tablegate.jobs.dataflow.inputs import (
    LATEST,
    SIDE_COLUMN,
    Grouped,
    by_key,
    does_not_compute,
    group_records,
    side_inputs,
)
from tablegate.jobs.dataflow.java_errors import first_line
from tablegate.jobs.dataflow.processors import emitted_rows
from tablegate.jobs.dataflow.sink_records import (
    changelog_records,
    counting_side,
    dead_letters,
    processor_output,
    record_outputs,
)
from tablegate.jobs.dataflow.sources import (
    KEY_COLUMN,
    RECORDS_PER_BATCH_MAX,
    KafkaReader,
    Reader,
    Records,
    all_records,
    decode_source,
    ignored_kinds,
    newest_by_key,
    order_sql,
    with_global_key,
    with_key,
)
from tablegate.jobs.errors import JobError
from tablegate.jobs.frame_table import FrameTable
from tablegate.jobs.planning.declarations import rebuild_hint
from tablegate.jobs.planning.plan import Plan, SourceStream
from tablegate.jobs.table import (
    KAFKA_COLUMN,
    WINDOW_COLUMN,
    Global,
    Join,
    Latest,
    Mode,
    ProcessorOutput,
    SharedOutputs,
    Source,
    Table,
    is_window_start,
)

TRIED = "__tried_"
"""What the names of the columns begin with where they are aggregated."""
_PARTITIONS = "__partitions"
_EVER = "__ever_"
_EVER_MET = "__ever_met"
_CHANGED = "__changed"
CHANGED_PLACE = 1
"""Place, among the columns of the state's values, of the time of a row's newest input, where rows expire."""
_PLACE, _PLACES, _HERE = "__place", "__places", "__here"


def make_rows(
    grouped: Grouped,
    table: Table,
    value_schema: Mapping[str, Any],
    *,
    sequence_base: int = 0,
    have_expired: bool = False,
) -> DataFrame:
    """Return the table's rows: key columns, columns, `SEQUENCE_COLUMN`, `EXISTS_COLUMN` and `COMPUTED_COLUMN`.

    `sequence_base`: what sequences are counted from. `have_expired`: none exists any more, as of then.
    Raise `JobError` where a column does not compute, or is not what the contract wants.
    """
    rows = _processed(grouped.records, table) if table.processor is not None else _aggregated(grouped, table)
    for name in (*table.key, *table.columns):
        check_type(name, rows.schema[name].dataType, table, value_schema)
    try:
        rows = rows.withColumn(TRIED, attempt(sql.expr(_exists(table))))
    except PySparkException as error:
        raise JobError(
            f'{table.declared_at}: table "{table.name}" having= does not compute: {first_line(error)}'
        ) from None
    computed = " AND ".join(f"`{TRIED}{name}` IS NOT NULL" for name in ("", *table.columns))
    rows = rows.withColumn(COMPUTED_COLUMN, sql.expr(computed))
    rows = rows.withColumn(EXISTS_COLUMN, sql.expr(f"{COMPUTED_COLUMN} AND coalesce({TRIED}.value, false)"))
    rows = _checked_versions(rows, table).where(f"{EXISTS_COLUMN} OR {_had_row(rows, table)}")
    if table.expires_after_s is not None:
        rows = _expiring(rows, sequence_base, have_expired=have_expired)
    # What a processor emits beside the columns is there for outputs.
    if table.processor is not None:
        return rows
    return rows.select(*table.key, *table.columns, SEQUENCE_COLUMN, EXISTS_COLUMN, COMPUTED_COLUMN)


def _expiring(rows: DataFrame, sequence_base: int, *, have_expired: bool) -> DataFrame:
    """Return rows with sequences behind those of before the last sweep; as deletes where they have expired."""
    # True of all, but not to the optimizer, which would leave an aggregate that nothing uses out of the state.
    rows = rows.where(f"{_CHANGED} IS NULL OR {_CHANGED} >= {FIRST_TIME}")
    if not have_expired:
        return rows.withColumn(SEQUENCE_COLUMN, sql.expr(f"{sequence_base}L + {SEQUENCE_COLUMN}"))
    # As above: the rows are those of a state, which has all aggregates.
    never = f"{SEQUENCE_COLUMN} < 0"
    exists = sql.expr(f"{EXISTS_COLUMN} AND {never}")
    sequence = sql.expr(f"IF({never}, {SEQUENCE_COLUMN}, {sequence_base}L)")
    return rows.withColumns({EXISTS_COLUMN: exists, SEQUENCE_COLUMN: sequence})


def _aggregated(grouped: Grouped, table: Table) -> DataFrame:
    rows = by_key(grouped, table).agg(*_aggregate_columns(grouped, table))
    if table.expires_after_s is not None:
        _check_state(rows, table)
    rows = _with_values(rows, table)
    if table.rows_move:
        # Every row that the record has ever made, all but the present one without a value.
        rows = rows.withColumn(_HERE, sql.explode(_PLACES))
        return rows.withColumns({name: sql.col(f"{_HERE}.`{name}`") for name in table.key})
    for name, expression in table.key.items():
        if is_window_start(expression):
            rows = rows.withColumn(name, sql.col(f"{WINDOW_COLUMN}.start"))
    return rows


def _check_state(aggregated: DataFrame, table: Table) -> None:
    """Raise `JobError` where the state has what no other query's state can be made of, as of the rows that stay."""
    for name, types in state_types(aggregated).items():
        if any("map<" in kind for kind in types):
            raise JobError(
                f'{table.declared_at}: table "{table.name}" "{name.removeprefix(TRIED).removeprefix(LATEST)}" has an '
                "aggregate that keeps a map, which rows that expire cannot have; make it an array, or remove "
                "expires_after_s"
            )


def _aggregate_columns(grouped: Grouped, table: Table) -> list[Column]:
    own = [sql.expr(expression).alias(name) for name, expression in _aggregates(grouped, table).items()]
    columns = [
        attempt(guarded(expression, grouped.records)).alias(f"{TRIED}{name}")
        for name, expression in table.columns.items()
    ]
    if table.having is not None and not table.rows_move:
        met = ever_met(table.having, table.columns, grouped.records.sparkSession)
        # Behind the columns, whose aggregates it has: so the state is the same with it.
        columns += [attempt(met).alias(_EVER_MET)] if met is not None else []
    return [*own, *columns]


def _with_values(rows: DataFrame, table: Table) -> DataFrame:
    return rows.withColumns({name: sql.col(f"`{TRIED}{name}`.value") for name in table.columns})


def _aggregates(grouped: Grouped, table: Table) -> dict[str, str]:
    """Return the job's own aggregates by name; columns may use the names of the sides."""
    keyed = table.has_keyed_versions
    changed = {_CHANGED: f"max({KAFKA_COLUMN}.timestamp)"} if table.expires_after_s is not None else {}
    if table.rows_move:
        order = order_sql(table.source_of(*table.sides))
        return {
            SEQUENCE_COLUMN: "count(*)",
            **changed,
            _PLACE: f"max_by({KEY_COLUMN}, {order})",
            _PLACES: f"collect_set({KEY_COLUMN})",
            **grouped.latest,
        }
    found = {SEQUENCE_COLUMN: f"max({KAFKA_COLUMN}.offset)" if keyed else "count(*)", **changed}
    if keyed:
        found[_PARTITIONS] = f"struct(min({KAFKA_COLUMN}.partition) AS first, max({KAFKA_COLUMN}.partition) AS last)"
    # A key that only `Latest` sides know has no row in a table that counts events, so these are counted.
    plain = [name for name, side in table.sides.items() if isinstance(side, Source)]
    if plain:
        listed = ", ".join(f"'{name}'" for name in plain)
        found["__plain"] = f"count_if({SIDE_COLUMN} IN ({listed}))"
    # A key that has never had all that its row needs never had a row, and so needs no tombstone.
    ever = {f"{_EVER}{name}": f"bool_or({LATEST}{name} IS NOT NULL)" for name in grouped.latest}
    return {**found, **ever, **grouped.latest}


def _exists(table: Table) -> str:
    """Return the SQL of whether a key has a row: by the kind of join, then by `having`."""
    latest = {name: side for name, side in table.sides.items() if isinstance(side, Latest)}
    conditions = [f"{name} IS NOT NULL" for name, side in latest.items() if side.join is Join.INNER]
    if any(isinstance(side, Source) for side in table.sides.values()):
        conditions.append("__plain > 0")
    elif latest and not conditions:  # all sides are optional: a key has a row while one of them has
        conditions.append("(" + " OR ".join(f"{name} IS NOT NULL" for name in latest) + ")")
    if table.rows_move:
        conditions.append(f"{_PLACE} = {_HERE}")
    if table.having is not None:
        conditions.append(f"coalesce({table.having}, false)")
    return " AND ".join(conditions) or "true"


def _had_row(rows: DataFrame, table: Table) -> str:
    """Return the SQL of whether a key may have had a row before: by the kind of join, then by `having`."""
    if table.rows_move:
        return "true"
    latest = {f"{_EVER}{name}": side for name, side in table.sides.items() if isinstance(side, Latest)}
    conditions = [name for name, side in latest.items() if side.join is Join.INNER]
    if any(isinstance(side, Source) for side in table.sides.values()):
        conditions.append("__plain > 0")
    elif latest and not conditions:
        conditions.append("(" + " OR ".join(latest) + ")")
    if _EVER_MET in rows.columns:  # null where it does not compute
        conditions.append(f"({_EVER_MET} IS NULL OR coalesce({_EVER_MET}.value, false))")
    return " AND ".join(conditions) or "true"


def _checked_versions(rows: DataFrame, table: Table) -> DataFrame:
    """Stop the job at a key whose inputs lie in two partitions though its source says `keyed`.

    The largest offset would order nothing then, and changes would be lost without a word.
    """
    if not table.has_keyed_versions:
        return rows
    topic = next(iter(table.all_sides.values()))
    source = topic if isinstance(topic, Source) else table.source_of(next(iter(table.sides)))
    message = (
        f'source "{source.topic}" is declared keyed, but records of one key are in several partitions; remove '
        f"keyed=True, and {rebuild_hint(table)}"
    )
    # A path in it may have what would end the text.
    message = message.replace("\\", "\\\\").replace("'", "\\'")
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
    for name, expression in table.columns.items():
        try:
            emitted.select(sql.expr(expression))
        except PySparkException as error:
            raise does_not_compute(name, table, error) from None
    others = [name for name in emitted.columns if name not in {*table.key, *table.columns, SEQUENCE_COLUMN}]
    tried = [attempt(sql.expr(expression)).alias(f"{TRIED}{name}") for name, expression in table.columns.items()]
    return _with_values(emitted.select(*table.key, SEQUENCE_COLUMN, *tried, *others), table)


@dataclass(frozen=True, slots=True)
class Frames:
    """Streaming frames of a plan, not started: each gives records as Spark's Kafka sink takes them.

    `table`: the changelog, with the topics that get the table's changes. `outputs`: the table's other outputs, together
    those that share a read of their source. Of a table of a function, `table` has the rows as it returns them, and they
    become records batch by batch. `run`: number of the run, 0 before it has begun.
    """

    table: DataFrame
    outputs: tuple[tuple[SharedOutputs, DataFrame], ...]
    run: int = 0


def build(
    spark: SparkSession,
    plan: Plan,
    *,
    row_outputs: bool,
    other_outputs: Sequence[SharedOutputs] = (),
    reader: Reader | None = None,
) -> Frames:
    """Return the frames of a plan, all their expressions checked; raise `JobError`.

    `reader` is where records come from, if not from Kafka. `row_outputs`: whether the outputs of the table's changes
    get records. `other_outputs`: those of the others that get some, together those that share a frame.
    """
    reader = reader or KafkaReader(
        spark,
        source_cluster(plan.bootstrap),
        records_per_batch_max=records_per_batch_max(plan),
        with_headers=topics_with_headers(plan),
    )
    if isinstance(plan.table, FrameTable):
        return Frames(table=rows_of_function(spark, plan, reader), outputs=())
    register_functions(spark, plan.table)
    builder = _Builder(plan, plan.table, reader)
    return Frames(
        table=builder.changelog(row_outputs=row_outputs),
        outputs=tuple((outputs, builder.outputs(outputs)) for outputs in other_outputs),
    )


def expired_records(spark: SparkSession, plan: Plan, *, row_outputs: bool, reader: Reader | None = None) -> DataFrame:
    """Return the frame of a table's query with the tombstones of all rows, which its last steps make of a state."""
    assert isinstance(plan.table, Table), "rows of a function do not expire"
    register_functions(spark, plan.table)
    reader = reader or KafkaReader(spark, source_cluster(plan.bootstrap), with_headers=topics_with_headers(plan))
    return _Builder(plan, plan.table, reader).changelog(row_outputs=row_outputs, have_expired=True)


def aggregates_of_both(spark: SparkSession, plan: Plan, before: Table) -> tuple[DataFrame, int]:
    """Return the aggregates of an earlier declaration and then those of the plan's own, and how many the first are.

    Both are over the same records, so that Spark can tell which are the same. The key columns come before all. Raise
    `JobError` where an expression does not compute.
    """
    table = plan.table
    assert isinstance(table, Table), "rows of a function have no aggregates"
    reader = KafkaReader(spark, source_cluster(plan.bootstrap), with_headers=topics_with_headers(plan))
    grouped = _Builder(plan, table, reader).grouped()
    try:
        first = _aggregate_columns(grouped, before)
        return by_key(grouped, table).agg(*first, *_aggregate_columns(grouped, table)), len(first)
    except PySparkException as error:
        raise JobError(
            f'{table.declared_at}: table "{table.name}" cannot compute what it was before: {first_line(error)}'
        ) from None


def malformed_records(plan: Plan, reader: Reader) -> DataFrame:
    """Return the malformed records of all sides as the Kafka sink takes them, each with its `KIND_COLUMN`."""
    if isinstance(plan.table, FrameTable):
        return dead_letters([*decoded_sources(plan, reader).values()], plan.dead_letters.name)
    return _Builder(plan, plan.table, reader).dead_letters()


def topics_with_headers(plan: Plan) -> set[str]:
    """Return the topics of whose records headers are read: by expressions, or for the ids of their schemas."""
    sides = plan.sides.values()
    return {
        side.topic.name
        for side in sides
        if side.source.headers or side.source.is_table or reads_headers(side.schemas.writers)
    }


def records_per_batch_max(plan: Plan) -> int:
    """Return how many records of one source a batch may have, so that an atomic one has not too many changes."""
    if isinstance(plan.table, FrameTable) or not plan.table.atomic:
        return RECORDS_PER_BATCH_MAX
    window = plan.table.window
    windows = math.ceil(window.size_s / (window.hop_s or window.size_s)) if window is not None else 1
    # A record changes one row, or one in each window that it is in. Spark gives each partition one record at least, and
    # so goes beyond its limit by as many as there are partitions.
    over = max(side.topic.partition_count for side in plan.streamed.values())
    return max(BATCH_CHANGES_MAX // (windows * len(plan.streamed)) - over, 1)


class _Builder:
    """Makes the frames of one plan. Each frame reads its sources by itself: Spark shares nothing between queries."""

    def __init__(self, plan: Plan, table: Table, reader: Reader) -> None:
        self._plan = plan
        self._table = table
        self._reader = reader

    def changelog(self, *, row_outputs: bool, have_expired: bool = False) -> DataFrame:
        """Return the table's changes as records."""
        plan = self._plan
        rows = make_rows(
            self.grouped(),
            self._table,
            plan.value_schema,
            sequence_base=plan.sequence_base,
            have_expired=have_expired,
        )
        return changelog_records(
            rows,
            self._table,
            plan.contract,
            topic=plan.changelog.name,
            generation=plan.generation,
            value_schema=plan.value_schema,
            schema_id=plan.schema_id,
            partition_count=plan.changelog.partition_count,
            row_outputs=row_outputs,
            schema_ids=plan.output_schema_ids,
        )

    def grouped(self) -> Grouped:
        """Return the records that the table's aggregates are made over."""
        plan = self._plan
        batched = plan.mode is Mode.MICROBATCH
        ignored = ignored_kinds(side.schemas for side in plan.sides.values())
        inputs = {
            name: counting_side(records, name, ignored=ignored)
            for name, records in self._inputs(batched=batched).items()
        }
        partitions = [
            (side.topic.name, number) for side in plan.streamed.values() for number in range(side.topic.partition_count)
        ]
        return group_records(inputs, self._table, partitions)

    def dead_letters(self) -> DataFrame:
        """Return the malformed records of all sides."""
        plan = self._plan
        inputs = self._inputs(batched=True)
        ignored = ignored_kinds(side.schemas for side in plan.sides.values())
        for name in plan.table.all_sides:
            if name not in inputs:  # a global side: read once more for that, and counted for the kit
                records = self._keyed(name, batched=True)
                inputs[name] = replace(records, frame=counting_side(records, name, ignored=ignored))
        return dead_letters([*inputs.values()], plan.dead_letters.name)

    def _inputs(self, *, batched: bool) -> dict[str, Records]:
        plan = self._plan
        keyed = {name: self._keyed(name, batched=batched) for name in plan.streamed_sides}
        globals_ = {name: self._global(name) for name, side in self._table.sides.items() if isinstance(side, Global)}
        return side_inputs(keyed, globals_, self._table)

    def outputs(self, outputs: SharedOutputs) -> DataFrame:
        """Return the records of outputs that are not made from the table's changes, and share a read of their side."""
        keyed = self._keyed(outputs[0].side or "", batched=True).frame
        schema_ids = self._plan.output_schema_ids
        if isinstance(outputs[0], ProcessorOutput):
            return processor_output(keyed, outputs[0], self._table, schema_ids)
        return record_outputs(keyed, outputs, self._table, schema_ids)

    def _keyed(self, name: str, *, batched: bool) -> Records:
        """Return the decoded records of a side, with their keys."""
        streams = [self._keyed_stream(one, name, batched=batched) for one in self._plan.streams_of(name)]
        return functools.reduce(all_records, streams)

    def _keyed_stream(self, stream: SourceStream, name: str, *, batched: bool) -> Records:
        plan, side = self._plan, self._table.all_sides[name]
        raw = self._reader.stream(stream.topics, batched=batched, starting_offsets=stream.starting_offsets)
        # On a side that is a table, a null value deletes; on any other it means nothing, and so is malformed.
        deletes = isinstance(side, Latest | Global)
        records = decode_source(raw, stream.source, stream.schemas, deletes=deletes)
        if isinstance(side, Global):
            return with_global_key(records, side, self._table)
        return with_key(records, side, self._table, plan.contract)

    def _global(self, name: str) -> DataFrame:
        side, planned = self._table.sides[name], self._plan.sides[name]
        assert isinstance(side, Global)
        return newest_by_key(self._reader.read_all(planned.topic.name), side, planned.schemas)
