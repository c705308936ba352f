"""The history of a source as rows of its fields, and what reads it in the place of Kafka.

Decision: docs/decisions/0105-history-then-live.md
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql import types as spark_types

from tablegate.jobs.dataflow.java_errors import first_line
from tablegate.jobs.dataflow.sources import HEADERS_SCHEMA, HISTORY_COLUMN, KafkaReader, decode_source
from tablegate.jobs.errors import JobError
from tablegate.jobs.function_code import line_of
from tablegate.jobs.planning.logic import kafka_fields_used
from tablegate.jobs.planning.plan import Plan, SidePlan
from tablegate.jobs.table import KAFKA_COLUMN

# What a record of a history has of Kafka where the history does not say it. A value that is not null is no delete.
_DEFAULTS = {
    "key": "CAST(NULL AS BINARY)",
    "value": "X''",
    "partition": "-1",
    "offset": "-1L",
    "timestamp": "CAST(NULL AS TIMESTAMP)",
    "timestampType": "0",
    "headers": "CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>)",
}


def histories(plan: Plan) -> list[SidePlan]:
    """Return the topics that have a history: of a source with several, the first stands for all."""
    found = [plan.topics_of(name)[0] for name in plan.table.all_sides]
    return [side for side in found if side.source.history is not None]


def history_frame(spark: SparkSession, plan: Plan, side: SidePlan) -> DataFrame:
    """Return a source's history in Spark's Kafka columns, with its fields in `HISTORY_COLUMN`; raise `JobError`."""
    source, history = side.source, side.source.history
    assert history is not None, "`histories` has asked"
    what = f'{history.declared_at}: the history of source "{source.topic}"'
    try:
        frame = history.frame(spark)
        if isinstance(frame, DataFrame):
            frame.schema  # noqa: B018 - asks Spark
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the function is the user's: whatever it raises is theirs
        reason = first_line(error) if isinstance(error, PySparkException) else f"{type(error).__name__}: {error}"
        where = line_of(history.rows, error) or history.declared_at
        raise JobError(
            f'{where}: the history of source "{source.topic}" does not run: {" ".join(reason.split())}'
        ) from None
    if not isinstance(frame, DataFrame) or frame.isStreaming:
        kind = "a stream" if isinstance(frame, DataFrame) else type(frame).__name__
        raise JobError(f"{what} is {kind}; return a batch DataFrame")
    no_records = spark.createDataFrame([], HEADERS_SCHEMA)
    wanted = decode_source(no_records, replace(source, each=None), side.schemas, deletes=False).frame.schema
    problems = [*_problems(frame, {name: wanted[name].dataType for name in source.field_names})]
    given = _given(frame)
    used = [name for name in kafka_fields_used(plan.table, side.side) if name in _DEFAULTS and name not in given]
    problems += [f"expressions use {KAFKA_COLUMN}.{name}: add struct(… AS {name}) AS {KAFKA_COLUMN}" for name in used]
    if problems:
        raise JobError(f"{what} has not what the source has: {'; '.join(problems)}")
    # Under the types that the source's decoding gives, which may allow nulls where these do not.
    fields = ", ".join(f"`{name}`" for name in source.field_names)
    columns = {name: f"{KAFKA_COLUMN}.`{name}`" if name in given else text for name, text in _DEFAULTS.items()}
    types = {one.name: one.dataType.simpleString() for one in no_records.schema.fields}
    own = [sql.expr(f"CAST({text} AS {types[name]})").alias(name) for name, text in columns.items()]
    return frame.select(*own, sql.lit(source.topic).alias("topic"), sql.expr(f"struct({fields})").alias(HISTORY_COLUMN))


def _given(frame: DataFrame) -> list[str]:
    kind = next((one.dataType for one in frame.schema.fields if one.name == KAFKA_COLUMN), None)
    return kind.names if isinstance(kind, spark_types.StructType) else []


def _problems(frame: DataFrame, wanted: Mapping[str, spark_types.DataType]) -> Iterator[str]:
    found = {one.name.lower(): one for one in frame.schema.fields}
    for name, kind in wanted.items():
        own = found.get(name.lower())
        if own is None:
            yield f'column "{name}" is missing'
        elif own.dataType.simpleString() != kind.simpleString():
            yield (
                f'column "{name}" is {own.dataType.simpleString()}, the source has {kind.simpleString()}: '
                f"write CAST({own.name} AS {kind.simpleString().upper()})"
            )


class HistoryReader(KafkaReader):
    """Reads histories that were written to directories, a `Reader`; of topics without one there are no records.

    `directories`: by topic. `nothing`: a directory without records. `is_stream`: for a query, not for counting.
    """

    def __init__(
        self, spark: SparkSession, bootstrap: str, directories: Mapping[str, str], nothing: str, *, is_stream: bool
    ) -> None:
        super().__init__(spark, bootstrap)
        self._session = spark
        self._directories = directories
        self._nothing = nothing
        self._is_stream = is_stream

    def stream(self, topics: Sequence[str], *, batched: bool, starting_offsets: str) -> DataFrame:  # noqa: ARG002 - see `Reader`
        """Return a topic's history; a pattern has none."""
        directory = self._directories.get(topics[0], self._nothing)
        schema = self._session.read.parquet(directory).schema
        reader: Any = self._session.readStream if self._is_stream else self._session.read
        found: DataFrame = reader.schema(schema).parquet(directory)
        return found


def topics_of_streams(frame: DataFrame) -> list[str | None]:
    """Return the topics of a query's streams in the order in which Spark numbers them; None for another stream."""
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
    streams: list[Any] = []
    for place in range(leaves.size()):
        leaf = leaves.apply(place)
        # A stream that is used twice is one source, unless Spark had to give its columns other numbers.
        if leaf.isStreaming() and not any(leaf.equals(one) for one in streams):
            streams.append(leaf)
    return [
        stream.extraOptions().get("subscribe") if stream.getClass().getSimpleName() == "StreamingRelationV2" else None
        for stream in streams
    ]
