"""A source topic as rows: its records decoded, and the reason of each that no row can be made of."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from tablegate.gateway.contract.catalogue import Table as ContractTable
from tablegate.gateway.contract.keys import KEY_BYTES_MAX, KeyColumn, KeyType
from tablegate.jobs.dataflow.decoding import Problem, decoded, ignored_sql, is_framed_sql, schema_id_sql
from tablegate.jobs.dataflow.java_errors import first_line
from tablegate.jobs.dataflow.keys import key_bytes_sql, without_ansi
from tablegate.jobs.errors import JobError, UnknownSchema
from tablegate.jobs.planning.schemas import SourceSchemas, WriterSchemas
from tablegate.jobs.table import KAFKA_COLUMN, Global, Latest, Source, Table, is_window_start

KEY_COLUMN = "__key"
"""Struct of the key columns that a record has; a window's start is not among them."""
REASON_COLUMN = "__reason"
"""Why a record is malformed, a struct of `kind` and `text`; null where it is not."""
IGNORED_COLUMN = "__ignored"
"""Name of the record type that is passed over; null for others."""
PASSES_COLUMN = "__passes"
"""Whether a record meets the source's `where`."""
TIME_COLUMN = "__time"
"""Event time, in tables with a window."""

RECORDS_PER_BATCH_MAX = 1_000_000  # of a micro-batch: a backlog is worked off in steps, each with its marker

KAFKA_SCHEMA = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT"
)
"""What Spark's Kafka source gives."""


class Reader(Protocol):
    """Gives the records of topics as Spark's Kafka source does: frames of `KAFKA_SCHEMA`."""

    def stream(self, topic: str, *, batched: bool, starting_offsets: str) -> DataFrame:
        """Return the records as they come. `batched`: for micro-batches. `starting_offsets`: JSON as Spark has it."""

    def read_all(self, topic: str) -> DataFrame:
        """Return all records that are there when a batch begins."""


class KafkaReader:
    """Reads topics of a cluster."""

    def __init__(
        self, spark: SparkSession, bootstrap: str, *, records_per_batch_max: int = RECORDS_PER_BATCH_MAX
    ) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._records_per_batch_max = records_per_batch_max

    def stream(self, topic: str, *, batched: bool, starting_offsets: str) -> DataFrame:
        """Return the records from these offsets on, as they come."""
        reader = (
            self._spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self._bootstrap)
            .option("subscribe", topic)
            .option("startingOffsets", starting_offsets)
            # Records that Kafka has dropped before they were read are an error: a row would be wrong for ever.
            .option("failOnDataLoss", "true")
        )
        if batched:
            reader = reader.option("maxOffsetsPerTrigger", self._records_per_batch_max)
        return reader.load()

    def read_all(self, topic: str) -> DataFrame:
        """Return all records that are there when a batch begins."""
        return (
            self._spark.read.format("kafka")
            .option("kafka.bootstrap.servers", self._bootstrap)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .load()
        )


@dataclass(frozen=True, slots=True)
class Records:
    """Records of a source as rows. `kinds`: what can be wrong with one, the kinds of `REASON_COLUMN`."""

    frame: DataFrame
    kinds: tuple[str, ...]


def decode_source(records: DataFrame, source: Source, schemas: SourceSchemas, *, deletes: bool) -> Records:
    """Return the records' fields, the struct `kafka`, `REASON_COLUMN` and `IGNORED_COLUMN`.

    `deletes`: a null value is a delete, not a malformed record; its fields are null, those of the key apart.
    """
    value = decoded(source.value, f"{KAFKA_COLUMN}.value", "__value", schemas.writers)
    # One struct for what Kafka gives, so that a field of the record may have any name but this one.
    frame = records.select(sql.struct("key", "value", "topic", "partition", "offset", "timestamp").alias(KAFKA_COLUMN))
    if schemas.writers is not None and schemas.can_learn:
        frame = frame.where(_fail_on_unknown(source.topic, schemas.writers))
    frame = frame.withColumn("__value", value.struct).withColumn(IGNORED_COLUMN, sql.expr(ignored_sql(schemas.writers)))
    problems = [] if deletes else [Problem("null_value", f"{KAFKA_COLUMN}.value IS NULL", "'value is null'")]
    problems += [_where_not_null("value", problem) for problem in value.problems]
    fields = [sql.col(f"__value.`{name}`").alias(name) for name in value.fields]
    if source.key is not None:
        key = decoded(source.key, f"{KAFKA_COLUMN}.key", "__key_fields", None)
        frame = frame.withColumn("__key_fields", key.struct)
        problems += [_where_not_null("key", problem) for problem in key.problems]
        fields += [sql.col(f"__key_fields.`{name}`").alias(name) for name in key.fields]
    reason = sql.expr(_reason_sql(problems)).alias(REASON_COLUMN)
    decoded_frame = frame.select(KAFKA_COLUMN, *fields, reason, IGNORED_COLUMN)
    return Records(decoded_frame, tuple(problem.kind for problem in problems))


def _where_not_null(what: str, problem: Problem) -> Problem:
    # A null is a delete, or a problem of its own; and a record of another type is not malformed, only passed over.
    is_there = f"{KAFKA_COLUMN}.{what} IS NOT NULL AND {IGNORED_COLUMN} IS NULL"
    return Problem(problem.kind, f"{is_there} AND ({problem.condition})", problem.text)


def _fail_on_unknown(topic: str, writers: WriterSchemas) -> str:
    # -1 keeps the list from being empty, which SQL does not allow. No schema has this id.
    known = ", ".join(str(number) for number in [-1, *writers.decoded, *writers.ignored, *writers.incompatible])
    value = f"{KAFKA_COLUMN}.value"
    schema_id = schema_id_sql(value)
    message = f"concat('{UnknownSchema.message_prefix(topic)}', {schema_id})"
    return f"IF({is_framed_sql(value)} AND {schema_id} NOT IN ({known}), raise_error({message}), true)"


def with_key(records: Records, side: Source | Latest, table: Table, contract: ContractTable) -> Records:
    """Return the records with `KEY_COLUMN`, `PASSES_COLUMN`, and `TIME_COLUMN` for windows; raise `JobError`.

    An expression that a record makes fail is null, so that no record stops the job.
    """
    source = side if isinstance(side, Source) else side.source
    fields, expressions = records.frame, record_key(side, table)
    # Without ANSI mode, as in it an expression that fails would end the query instead of being null.
    with without_ansi(fields.sparkSession):
        for name, expression in expressions.items():
            _check(fields, expression, f'{source.declared_at}: table "{table.name}" key column "{name}"')
        key = sql.struct(*(sql.expr(expression).alias(name) for name, expression in expressions.items()))
        keyed = fields.withColumn(KEY_COLUMN, key)
        if source.where is not None:
            _check(fields, source.where, f'{source.declared_at}: source "{source.topic}" where', wanted="boolean")
        keyed = keyed.withColumn(PASSES_COLUMN, sql.expr(_passes_sql(source)))
        problems = [*_key_problems(contract.key, list(expressions))]
        if table.window is not None:
            time = source.event_time or f"{KAFKA_COLUMN}.timestamp"
            _check(fields, time, f'{source.declared_at}: source "{source.topic}" event_time', wanted="timestamp")
            keyed = keyed.withColumn(TIME_COLUMN, sql.expr(time))
            problems.append(Problem("no_event_time", f"{TIME_COLUMN} IS NULL", "'event time is null'"))
        reason = f"coalesce({REASON_COLUMN}, IF({IGNORED_COLUMN} IS NULL, {_reason_sql(problems)}, NULL))"
        kinds = (*records.kinds, *(problem.kind for problem in problems))
        return Records(keyed.withColumn(REASON_COLUMN, sql.expr(reason)), kinds)


def with_global_key(records: Records, side: Global, table: Table) -> Records:
    """Return a global side's records, those without a key malformed: nothing would ever find them."""
    what = f'{side.source.declared_at}: table "{table.name}" global side of topic "{side.source.topic}" key'
    with without_ansi(records.frame.sparkSession):
        _check(records.frame, side.key, what)
        problem = Problem("null_key", f"({side.key}) IS NULL", "'key is null'")
        reason = f"coalesce({REASON_COLUMN}, IF({IGNORED_COLUMN} IS NULL, {_reason_sql([problem])}, NULL))"
        keyed = records.frame.withColumn(REASON_COLUMN, sql.expr(reason))
        return Records(keyed, (*records.kinds, problem.kind))


def record_key(side: Source | Latest, table: Table) -> dict[str, str]:
    """Return the key expressions over one side's records."""
    own = side.key if isinstance(side, Latest) and side.key is not None else table.key
    return {name: expression for name, expression in own.items() if not is_window_start(expression)}


def well_formed(keyed: DataFrame) -> DataFrame:
    """Return the records that a table is made of."""
    return keyed.where(f"{REASON_COLUMN} IS NULL AND {IGNORED_COLUMN} IS NULL AND {PASSES_COLUMN}")


def _passes_sql(source: Source) -> str:
    """Return the SQL of whether a record meets the source's `where`; a delete always does."""
    return "true" if source.where is None else f"({KAFKA_COLUMN}.value IS NULL OR coalesce({source.where}, false))"


def row_sql(source: Source) -> str:
    """Return the SQL of a record's fields as a struct, null for a delete."""
    fields = ", ".join(f"`{name}`" for name in source.field_names)
    return f"IF({KAFKA_COLUMN}.value IS NULL, NULL, struct({fields}))"


def newest_by_key(records: DataFrame, side: Global, schemas: SourceSchemas) -> DataFrame:
    """Return the newest value of each key of a global side: `__on` and the struct `__found` of fields."""
    source = side.source
    fields = decode_source(records, source, schemas, deletes=True).frame
    where = f'{source.declared_at}: global side of topic "{source.topic}"'
    with without_ansi(fields.sparkSession):
        _check(fields, side.key, f"{where} key")
        found = (
            fields.where(f"{REASON_COLUMN} IS NULL AND {IGNORED_COLUMN} IS NULL AND {_passes_sql(source)}")
            .selectExpr(f"{side.key} AS __on", f"{row_sql(source)} AS __found", f"{order_sql(source)} AS __order")
            .where("__on IS NOT NULL")
        )
    return found.groupBy("__on").agg(sql.expr("max_by(__found, __order) AS __found")).where("__found IS NOT NULL")


def order_sql(source: Source) -> str:
    """Return the SQL that orders a key's records by age. Offsets do so only within one partition."""
    if source.keyed:
        return f"{KAFKA_COLUMN}.offset"
    return f"struct({KAFKA_COLUMN}.timestamp, {KAFKA_COLUMN}.partition, {KAFKA_COLUMN}.offset)"


def _check(frame: DataFrame, expression: str, what: str, *, wanted: str | None = None) -> None:
    try:
        found = frame.select(sql.expr(expression).alias("found")).schema["found"].dataType.simpleString()
    except PySparkException as error:
        raise JobError(f"{what} does not compute: {first_line(error)}") from None
    if wanted is not None and found != wanted:
        raise JobError(f"{what} is {found}, not {wanted}; write an expression that gives {wanted}")


def _key_problems(columns: tuple[KeyColumn, ...], names: list[str]) -> Iterator[Problem]:
    own = [column for column in columns if column.name in names]
    for column in own:
        value = f"{KEY_COLUMN}.`{column.name}`"
        yield Problem(f"null_key_{column.name}", f"{value} IS NULL", f"'key column \"{column.name}\" is null'")
        if column.type is KeyType.STRING:
            yield Problem(
                f"bad_text_{column.name}",
                f"NOT is_valid_utf8({value})",
                f"'key column \"{column.name}\" is not UTF-8'",
            )
    if any(column.type in (KeyType.STRING, KeyType.BYTES) for column in own):
        length = f"octet_length({key_bytes_sql(own, KEY_COLUMN)})"
        yield Problem(
            "long_key",
            f"{length} > {KEY_BYTES_MAX}",
            f"concat('key has ', {length}, ' bytes, more than {KEY_BYTES_MAX}')",
        )


def _reason_sql(problems: list[Problem]) -> str:
    """Return the SQL of the first problem that a record has."""
    branches = [
        f"WHEN {problem.condition} THEN struct('{problem.kind}' AS kind, {problem.text} AS text)"
        for problem in problems
    ]
    nothing = "CAST(NULL AS STRUCT<kind: STRING, text: STRING>)"
    return f"CASE {' '.join(branches)} ELSE {nothing} END" if branches else nothing


def ignored_kinds(schemas: Iterable[SourceSchemas]) -> list[str]:
    """Return the names of record types that are passed over."""
    return sorted({name for one in schemas if one.writers is not None for name in one.writers.ignored.values()})
