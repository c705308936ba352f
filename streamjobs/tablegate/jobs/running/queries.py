"""The streaming queries of a table: its own, the one that sets malformed records aside, those of its outputs."""

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery
from tablegate.jobs.dataflow.changelog import changelog_records
from tablegate.jobs.dataflow.dead_letters import dead_letters
from tablegate.jobs.dataflow.idempotent_sink import write_once
from tablegate.jobs.dataflow.outputs import processor_output, record_output
from tablegate.jobs.dataflow.rows import group_records, make_rows
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
from tablegate.jobs.errors import JobError
from tablegate.jobs.planning.plan import MICROBATCH_TRIGGER_S, Plan, SidePlan
from tablegate.jobs.running.checkpoint import Checkpoint
from tablegate.jobs.running.java_errors import error_reason
from tablegate.jobs.table import Global, Latest, Mode, ProcessorOutput, RecordOutput, RowOutput

TABLE_QUERY = "table"
DEAD_LETTERS_QUERY = "dead-letters"
DEAD_LETTERS_TRIGGER_S = 5.0  # nobody waits for a malformed record; often would cost the table's query its cores


@dataclass(frozen=True, slots=True)
class Started:
    """The running queries of a table. `all` has the other two, and those of outputs."""

    table: StreamingQuery
    dead_letters: StreamingQuery
    all: tuple[StreamingQuery, ...]


class Queries:
    """The queries of a plan, checked when made; `start` runs them.

    `reader` is where records come from, if not from Kafka.
    `row_outputs`, `other_outputs`: whether the table's outputs get records. The place of the other outputs in the
    sources outlives generations: what was written is not written again because the table is built anew.
    """

    def __init__(
        self,
        spark: SparkSession,
        plan: Plan,
        *,
        row_outputs: bool,
        other_outputs: bool,
        reader: Reader | None = None,
    ) -> None:
        self._reader = reader or KafkaReader(spark, plan.bootstrap)
        self._plan = plan
        self._checkpoint = Checkpoint(spark, plan.checkpoint)
        self._outputs_checkpoint = Checkpoint(spark, plan.outputs_checkpoint)
        batched = plan.mode is Mode.MICROBATCH
        self.table_frame = table_records(
            {name: self._keyed(name, side, batched=batched) for name, side in plan.streamed.items()},
            {name: self._global(name) for name, side in plan.table.sides.items() if isinstance(side, Global)},
            plan,
            row_outputs=row_outputs,
        )
        # Malformed records of a global side are among them: it is read once more for that.
        self.malformed_frame = dead_letters(
            [self._keyed(name, side, batched=True) for name, side in plan.sides.items()],
            plan.dead_letters.name,
            ignored=ignored_kinds(side.schemas for side in plan.sides.values()),
        )
        others = [output for output in plan.table.outputs if not isinstance(output, RowOutput)]
        self.output_frames = [self._output(output) for output in others if other_outputs]

    def _keyed(self, name: str, side_plan: SidePlan, *, batched: bool) -> Records:
        plan, side = self._plan, self._plan.table.all_sides[name]
        raw = self._reader.stream(side_plan.topic.name, batched=batched, starting_offsets=side_plan.starting_offsets)
        records = decode_source(raw, side_plan.source, side_plan.schemas, deletes=not side_is_plain(side))
        if isinstance(side, Global):
            return with_global_key(records, side, plan.table)
        return with_key(records, side, plan.table, plan.contract)

    def _global(self, name: str) -> DataFrame:
        side = self._plan.table.sides[name]
        assert isinstance(side, Global)
        return newest_by_key(self._reader.whole(side.source.topic), side, self._plan.sides[name].schemas)

    def _output(self, output: RecordOutput | ProcessorOutput) -> tuple[RecordOutput | ProcessorOutput, DataFrame]:
        name = output.side or ""
        keyed = self._keyed(name, self._plan.sides[name], batched=True).frame
        if isinstance(output, ProcessorOutput):
            return output, processor_output(keyed, output, self._plan.table)
        return output, record_output(keyed, output, self._plan.table)

    def start(self) -> Started:
        """Start them, the table's first; raise `JobError`."""
        plan = self._plan
        writer = self.table_frame.writeStream.outputMode("update")
        if plan.mode is Mode.REALTIME:
            writer = writer.trigger(realTime=_interval(plan.batch_s))
        else:
            writer = writer.trigger(processingTime=_interval(plan.batch_s))
        table = self._start(writer, TABLE_QUERY, self._checkpoint)
        writer = self.malformed_frame.writeStream.outputMode("append")
        writer = writer.trigger(processingTime=_interval(DEAD_LETTERS_TRIGGER_S))
        malformed = self._start(writer, DEAD_LETTERS_QUERY, self._checkpoint)
        outputs = [self._start_output(output, frame) for output, frame in self.output_frames]
        return Started(table, malformed, (table, malformed, *outputs))

    def _start_output(self, output: RecordOutput | ProcessorOutput, frame: DataFrame) -> StreamingQuery:
        interval_s = max(self._plan.table.emit_interval_s or 0.0, MICROBATCH_TRIGGER_S)
        if isinstance(output, RecordOutput):
            writer = frame.writeStream.outputMode("append").trigger(processingTime=_interval(interval_s))
            return self._start(writer, output.topic, self._outputs_checkpoint)
        writer = frame.writeStream.outputMode("update").trigger(
            processingTime=_interval(output.processor.every_s or interval_s)
        )
        writer = write_once(writer, self._plan.bootstrap, output.topic, self._outputs_checkpoint)
        return self._start(writer, output.topic, self._outputs_checkpoint, to_kafka=False)

    def _start(
        self, writer: DataStreamWriter, name: str, checkpoint: Checkpoint, *, to_kafka: bool = True
    ) -> StreamingQuery:
        if to_kafka:
            writer = writer.format("kafka").option("kafka.bootstrap.servers", self._plan.bootstrap)
            writer = writer.option("includeHeaders", "true")
        writer = writer.queryName(f"{self._plan.table.name}-{name}").option(
            "checkpointLocation", checkpoint.query_location(name)
        )
        checkpoint.discard_uncommitted(name)
        try:
            return writer.start()
        except PySparkException as error:
            table = self._plan.table
            raise JobError(f'{table.declared_at}: table "{table.name}" does not run: {error_reason(error)}') from None


def table_records(
    keyed: Mapping[str, Records], globals_: Mapping[str, DataFrame], plan: Plan, *, row_outputs: bool
) -> DataFrame:
    """Return the table's changes as the Kafka sink takes them; raise `JobError`."""
    grouped = group_records({name: records.frame for name, records in keyed.items()}, globals_, plan.table)
    return changelog_records(
        make_rows(grouped, plan.table, plan.value_schema),
        plan.table,
        plan.contract,
        topic=plan.changelog.name,
        generation=plan.generation,
        value_schema=plan.value_schema,
        schema_id=plan.schema_id,
        partition_count=plan.changelog.partition_count,
        row_outputs=row_outputs,
    )


def side_is_plain(side: object) -> bool:
    """Return whether a null value means nothing on this side, and so is malformed."""
    return not isinstance(side, Latest | Global)


def _interval(seconds: float) -> str:
    return f"{round(seconds * 1000)} milliseconds"
