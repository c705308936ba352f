"""A plan's dataflow: `build` turns a plan into streaming frames, and starts nothing.

    source topic ── decode_source ── with_key ──┬── group_records ── make_rows ── changelog_records ──► changelog
                                                ├── dead_letters ─────────────────────────────────────► dead letters
                                                └── record_output, processor_output ──────────────────► other topics

Each arrow on the right is a frame, and becomes a streaming query of its own (`running/queries.py`).

Decision: docs/decisions/0010-one-union-one-aggregate-one-sink.md
Decision: docs/decisions/0055-jobs-go-forward-only.md
"""

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from tablegate.jobs.dataflow.rows import group_records, make_rows
from tablegate.jobs.dataflow.sink_records import changelog_records, dead_letters, processor_output, record_output
from tablegate.jobs.dataflow.sources import (
    KafkaReader,
    Reader,
    Records,
    decode_source,
    ignored_kinds,
    newest_by_key,
    with_global_key,
    with_key,
)
from tablegate.jobs.planning.plan import Plan, SidePlan
from tablegate.jobs.table import Global, Latest, Mode, ProcessorOutput, RecordOutput, RowOutput


@dataclass(frozen=True, slots=True)
class Frames:
    """Streaming frames of a plan, not started: each gives records as Spark's Kafka sink takes them.

    `table`: the changelog, with the topics that get the table's changes. `malformed`: the dead letters. `outputs`: the
    table's other outputs, which read the sources for themselves.
    """

    table: DataFrame
    malformed: DataFrame
    outputs: tuple[tuple[RecordOutput | ProcessorOutput, DataFrame], ...]


def build(
    spark: SparkSession, plan: Plan, *, row_outputs: bool, other_outputs: bool, reader: Reader | None = None
) -> Frames:
    """Return the frames of a plan, all their expressions checked; raise `JobError`.

    `reader` is where records come from, if not from Kafka. `row_outputs`, `other_outputs`: whether the table's outputs
    get records.
    """
    builder = _Builder(plan, reader or KafkaReader(spark, plan.bootstrap))
    others = [output for output in plan.table.outputs if not isinstance(output, RowOutput)]
    return Frames(
        table=builder.changelog(row_outputs=row_outputs),
        malformed=builder.dead_letters(),
        outputs=tuple((output, builder.output(output)) for output in others if other_outputs),
    )


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
