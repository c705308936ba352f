"""The streaming queries of a job: the table's, and the one that sets malformed records aside."""

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from streamjobs.runtime.changelog import aggregate, changelog_records, check_types
from streamjobs.runtime.checkpoint import Checkpoint
from streamjobs.runtime.dead_letters import dead_letters
from streamjobs.runtime.errors import JobError
from streamjobs.runtime.java import error_reason
from streamjobs.runtime.plan import Plan
from streamjobs.runtime.sources import decode_fields, read_source, with_key
from streamjobs.runtime.topics import Topic
from streamjobs.table import Mode

TABLE_QUERY = "table"
DEAD_LETTERS_QUERY = "dead-letters"
DEAD_LETTERS_TRIGGER_S = 5.0  # nobody waits for a malformed record; often would cost the table's query its cores


class Queries:
    """The queries of a plan, checked when made; `start` runs them."""

    def __init__(self, spark: SparkSession, plan: Plan, checkpoint: Checkpoint) -> None:
        self._plan = plan
        self._checkpoint = checkpoint
        self._changelog = _changelog_writer(self._decoded(spark, batched=plan.mode is Mode.MICROBATCH), plan)
        malformed = dead_letters(self._decoded(spark, batched=True), plan.contract, plan.writer_schemas)
        self._dead_letters = malformed.writeStream.outputMode("append").trigger(
            processingTime=_interval(DEAD_LETTERS_TRIGGER_S)
        )

    def _decoded(self, spark: SparkSession, *, batched: bool) -> DataFrame:
        plan = self._plan
        records = read_source(spark, plan.bootstrap, plan.table.source, batched=batched)
        fields = decode_fields(records, plan.table.source, plan.writer_schemas)
        check_types(fields, plan.table, plan.value_schema)
        return with_key(fields, plan.table, plan.contract, plan.writer_schemas)

    def start(self) -> tuple[StreamingQuery, StreamingQuery]:
        """Start both; return the table's, then the other; raise `JobError`."""
        table = self._start(self._changelog, TABLE_QUERY, self._plan.changelog)
        return table, self._start(self._dead_letters, DEAD_LETTERS_QUERY, self._plan.dead_letters)

    def _start(self, writer: DataStreamWriter, name: str, topic: Topic) -> StreamingQuery:
        writer = (
            writer.queryName(f"{self._plan.table.name}-{name}")
            .format("kafka")
            .option("kafka.bootstrap.servers", self._plan.bootstrap)
            .option("topic", topic.name)
            .option("includeHeaders", "true")
            .option("checkpointLocation", self._checkpoint.query_location(name))
        )
        self._checkpoint.discard_uncommitted(name)
        try:
            return writer.start()
        except PySparkException as error:
            raise JobError(f'table "{self._plan.table.name}" does not start: {error_reason(error)}') from None


def _changelog_writer(decoded: DataFrame, plan: Plan) -> DataStreamWriter:
    records = changelog_records(
        aggregate(decoded, plan.table),
        plan.contract,
        generation=plan.table.generation,
        value_schema=plan.value_schema,
        schema_id=plan.schema_id,
        partition_count=plan.changelog.partition_count,
    )
    writer = records.writeStream.outputMode("update")
    if plan.mode is Mode.REALTIME:
        return writer.trigger(realTime=_interval(plan.trigger_s))
    return writer.trigger(processingTime=_interval(plan.trigger_s))


def _interval(seconds: float) -> str:
    return f"{round(seconds * 1000)} milliseconds"
