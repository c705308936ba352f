"""A source topic as rows: its records decoded, and the reason of each that no row can be made of."""

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql

from tablegate.gateway.contract.catalogue import Table as ContractTable
from tablegate.gateway.contract.kafka_settings import spark_options
from tablegate.gateway.contract.keys import KEY_BYTES_MAX, KeyColumn, KeyType
from tablegate.gateway.contract.types import RUN_HEADER, RUN_KEY_PREFIX, VERSION_BYTES, VERSION_HEADER
from tablegate.jobs.dataflow.columns import FIRST_TIME, LAST_TIME
from tablegate.jobs.dataflow.decoding import Decoded, Problem, decoded, ignored_sql, is_framed_sql, schema_id_sql
from tablegate.jobs.dataflow.expressions import attempt, once
from tablegate.jobs.dataflow.header_ids import HEADERS_COLUMN, by_name_sql, framed_sql
from tablegate.jobs.dataflow.java_errors import first_line
from tablegate.jobs.dataflow.keys import key_bytes_sql, without_ansi
from tablegate.jobs.errors import JobError, UnknownSchema
from tablegate.jobs.formats import Json
from tablegate.jobs.planning.schemas import SourceSchemas, WriterSchemas
from tablegate.jobs.table import ITEM_COLUMN, KAFKA_COLUMN, Global, Latest, Source, Table, Window, is_window_start

KEY_COLUMN = "__key"
"""Struct of the key columns that a record has; a window's start is not among them."""
RECORD_KEY_COLUMN = "__record_key"
"""Struct of the fields of a record's own key, where rows move."""
REASON_COLUMN = "__reason"
"""Why a record is malformed, a struct of `kind` and `text`; null where it is not."""
IGNORED_COLUMN = "__ignored"
"""Name of the record type that is passed over, "" where `each` finds no element; null for others."""
SEEN_COLUMN = "__seen"
"""Which of the fields a record has that may be misspelt, a bit each; null where it does not decode.

Of the elements of a record, the first alone has it.
"""
PASSES_COLUMN = "__passes"
"""Whether a record meets the source's `where`."""
TIME_COLUMN = "__time"
"""Event time, in tables with a window."""

HISTORY_COLUMN = "__history"
"""Struct of a record's fields, where it is of a history, and has no bytes to decode."""

_FRAMED_COLUMN = "__framed"
_ITEMS, _ELEMENT = "__items", "__element"

FIELDS_WATCHED_MAX = 60  # of a record; they are bits of a BIGINT
RECORDS_PER_BATCH_MAX = 1_000_000  # of a micro-batch: a backlog is worked off in steps, each with its marker

VERSION_FIELD = "version"
"""Field of the struct `kafka` of rows of another table, by which they are ordered: the sequence, then the run."""

KAFKA_SCHEMA = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT"
)
"""What Spark's Kafka source gives."""
HEADERS_SCHEMA = f"{KAFKA_SCHEMA}, {HEADERS_COLUMN} ARRAY<STRUCT<key: STRING, value: BINARY>>"
"""What it gives where headers are asked for."""
Offsets = Mapping[str, Mapping[int, int]]
"""By topic and partition."""


class Reader(Protocol):
    """Gives the records of topics as Spark's Kafka source does: frames of `KAFKA_SCHEMA`."""

    def stream(self, topics: Sequence[str], *, batched: bool, starting_offsets: str) -> DataFrame:
        """Return the records as they come. `batched`: for micro-batches. `starting_offsets`: JSON as Spark has it."""

    def read_all(self, topic: str) -> DataFrame:
        """Return all records that are there when a batch begins."""


class KafkaReader:
    """Reads topics of a cluster. Records of topics in `with_headers` have the column `headers`, too."""

    def __init__(
        self,
        spark: SparkSession,
        bootstrap: str,
        *,
        records_per_batch_max: int = RECORDS_PER_BATCH_MAX,
        with_headers: Collection[str] = (),
    ) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._records_per_batch_max = records_per_batch_max
        self._with_headers = with_headers

    def stream(self, topics: Sequence[str], *, batched: bool, starting_offsets: str) -> DataFrame:
        """Return the records from these offsets on, as they come."""
        reader = (
            self._spark.readStream.format("kafka")
            .options(**self._options(topics))
            .option("subscribe", ",".join(topics))
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
            .options(**self._options([topic]))
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .load()
        )

    def _options(self, topics: Sequence[str]) -> dict[str, str]:
        has_headers = any(topic in self._with_headers for topic in topics)
        return {**spark_options(self._bootstrap), "includeHeaders": str(has_headers).lower()}


class RangeReader(KafkaReader):
    """Reads streamed topics from some offsets up to others; both by topic and partition."""

    def __init__(
        self,
        spark: SparkSession,
        bootstrap: str,
        starts: Offsets,
        ends: Offsets,
        *,
        with_headers: Collection[str] = (),
    ) -> None:
        super().__init__(spark, bootstrap, with_headers=with_headers)
        self._starts = starts
        self._ends = ends

    def stream(self, topics: Sequence[str], *, batched: bool, starting_offsets: str) -> DataFrame:  # noqa: ARG002 - see `Reader`
        """Return the records of the topics' ranges: no stream, as a range ends."""
        ends = {topic: self._ends[topic] for topic in topics if self._ends.get(topic)}
        if not ends:
            return self._spark.createDataFrame([], HEADERS_SCHEMA)
        return (
            self._spark.read.format("kafka")
            .options(**self._options([*ends]))
            .option("assign", json.dumps({topic: list(found) for topic, found in ends.items()}))
            .option("startingOffsets", json.dumps({topic: self._starts[topic] for topic in ends}))
            .option("endingOffsets", json.dumps(ends))
            # What Kafka has dropped cannot be set aside; the query that needs it has said so.
            .option("failOnDataLoss", "false")
            .load()
        )


@dataclass(frozen=True, slots=True)
class Records:
    """Records of a source as rows. `kinds`: what can be wrong with one, the kinds of `REASON_COLUMN`.

    `fields`: those that may be misspelt without an error, by the bits of `SEEN_COLUMN`.
    """

    frame: DataFrame
    kinds: tuple[str, ...]
    fields: tuple[str, ...] = ()


def decode_source(records: DataFrame, source: Source, schemas: SourceSchemas, *, deletes: bool) -> Records:
    """Return the records' fields, the struct `kafka`, `REASON_COLUMN` and `IGNORED_COLUMN`.

    `deletes`: a null value is a delete, not a malformed record; its fields are null, those of the key apart.
    """
    bytes_of = KAFKA_COLUMN
    # One struct for what Kafka gives, so that a field of the record may have any name but this one.
    own: list[Column | str] = ["key", "value", "topic", "partition", "offset", "timestamp"]
    if source.is_table:
        records = records.where(_IS_ROW)
        own.append(once(sql.expr(_VERSION)).alias(VERSION_FIELD))
    headers = [once(sql.expr(by_name_sql())).alias(HEADERS_COLUMN)] if source.headers else []
    columns = [sql.struct(*own, *headers).alias(KAFKA_COLUMN)]
    if HISTORY_COLUMN in records.columns:
        return _of_history(records.select(*columns, HISTORY_COLUMN), source)
    if schemas.writers is not None and schemas.writers.guids and HEADERS_COLUMN in records.columns:
        bytes_of = _FRAMED_COLUMN
        columns.append(once(sql.expr(framed_sql(schemas.writers))).alias(bytes_of))
    frame = records.select(*columns)
    value = decoded(source.value, f"{bytes_of}.value", "__value", schemas.writers)
    if schemas.writers is not None and schemas.can_learn:
        frame = frame.where(_fail_on_unknown(schemas.writers, f"{bytes_of}.value"))
    frame = _with_struct(frame, "__value", value, source)
    frame = frame.withColumn(IGNORED_COLUMN, sql.expr(ignored_sql(schemas.writers, f"{bytes_of}.value")))
    problems = [] if deletes else [Problem("null_value", f"{KAFKA_COLUMN}.value IS NULL", "'value is null'")]
    problems += [_where_not_null("value", problem) for problem in value.problems]
    fields = _fields("__value", value)
    if source.key is not None:
        key = decoded(source.key, f"{bytes_of}.key", "__key_fields", None)
        frame = _with_struct(frame, "__key_fields", key, source)
        problems += [_where_not_null("key", problem) for problem in key.problems]
        fields += _fields("__key_fields", key)
    reason = sql.expr(reason_sql(problems)).alias(REASON_COLUMN)
    # Where a JSON object lacks a field, it is null. Nothing else tells a name that is wrong in the declaration.
    named = source.value.field_names[:FIELDS_WATCHED_MAX] if isinstance(source.value, Json) else ()
    bits = " | ".join(f"IF(`{name}` IS NULL, 0L, {1 << place}L)" for place, name in enumerate(named)) or "0L"
    seen = sql.expr(f"IF({REASON_COLUMN} IS NULL AND {KAFKA_COLUMN}.value IS NOT NULL, {bits}, NULL)")
    decoded_frame = frame.select(KAFKA_COLUMN, *fields, reason, IGNORED_COLUMN).withColumn(SEEN_COLUMN, seen)
    kinds = tuple(problem.kind for problem in problems)
    found = Records(decoded_frame, kinds, tuple(f"{source.topic}: {name}" for name in named))
    return found if source.each is None else _elements(found, source)


def _of_history(records: DataFrame, source: Source) -> Records:
    """Return the records of a history, whose fields are there; what is wrong with them is told by other columns."""
    fields = [sql.col(f"{HISTORY_COLUMN}.`{name}`").alias(name) for name in source.field_names]
    nothing = [
        sql.expr(reason_sql([])).alias(REASON_COLUMN),
        sql.lit(None).cast("string").alias(IGNORED_COLUMN),
        sql.lit(None).cast("bigint").alias(SEEN_COLUMN),
    ]
    found = Records(records.select(KAFKA_COLUMN, *fields, *nothing), ())
    return found if source.each is None else _elements(found, source)


def _elements(records: Records, source: Source) -> Records:
    """Return a row for each element of `each`, and one for a record without any, which is ignored, only counted."""
    assert source.each is not None
    where = f'{source.declared_at}: source "{source.topic}" each'
    _check(records.frame, source.each, where, wanted="array")
    tried = sql.when(sql.expr(f"{REASON_COLUMN} IS NULL AND {IGNORED_COLUMN} IS NULL"), attempt(sql.expr(source.each)))
    problem = Problem("uncomputable_each", f"{_ITEMS} IS NULL", "'each cannot be computed with this record'")
    reason = f"coalesce({REASON_COLUMN}, IF({IGNORED_COLUMN} IS NULL, {reason_sql([problem])}, NULL))"
    frame = records.frame.withColumn(_ITEMS, tried).withColumn(REASON_COLUMN, sql.expr(reason))
    frame = frame.select("*", sql.posexplode_outer(f"{_ITEMS}.value").alias(_ELEMENT, ITEM_COLUMN))
    frame = frame.withColumns(
        {
            KAFKA_COLUMN: sql.col(KAFKA_COLUMN).withField("element", sql.col(_ELEMENT)),
            IGNORED_COLUMN: sql.expr(
                f"coalesce({IGNORED_COLUMN}, IF({REASON_COLUMN} IS NULL AND {_ELEMENT} IS NULL, '', NULL))"
            ),
            SEEN_COLUMN: sql.expr(f"IF(coalesce({_ELEMENT}, 0) = 0, {SEEN_COLUMN}, NULL)"),
        }
    )
    return replace(records, frame=frame.drop(_ITEMS, _ELEMENT), kinds=(*records.kinds, problem.kind))


def _with_struct(frame: DataFrame, name: str, decoding: Decoded, source: Source) -> DataFrame:
    try:
        return frame.withColumn(name, once(decoding.struct))
    except PySparkException as error:  # the types of a format's fields are Spark's to read
        raise JobError(
            f'{source.declared_at}: source "{source.topic}" has fields that Spark cannot read: {first_line(error)}'
        ) from None


def _fields(name: str, decoding: Decoded) -> list[Column]:
    struct = name if decoding.at is None else f"{name}.`{decoding.at}`"
    return [sql.col(f"{struct}.`{field}`").alias(field) for field in decoding.fields]


def _where_not_null(what: str, problem: Problem) -> Problem:
    # A null is a delete, or a problem of its own; and a record of another type is not malformed, only passed over.
    is_there = f"{KAFKA_COLUMN}.{what} IS NOT NULL AND {IGNORED_COLUMN} IS NULL"
    return Problem(problem.kind, f"{is_there} AND ({problem.condition})", problem.text)


def _fail_on_unknown(writers: WriterSchemas, value: str) -> str:
    # -1 keeps the list from being empty, which SQL does not allow. No schema has this id.
    known = ", ".join(str(number) for number in [-1, *writers.decoded, *writers.ignored, *writers.incompatible])
    schema_id = schema_id_sql(value)
    message = UnknownSchema.message_sql(f"{KAFKA_COLUMN}.topic", schema_id)
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
        if source.where is not None:
            _check(fields, source.where, f'{source.declared_at}: source "{source.topic}" where', wanted="boolean")
        keyed = fields.withColumn(PASSES_COLUMN, sql.expr(_passes_sql(source)))
        key = sql.struct(*(sql.expr(expression).alias(name) for name, expression in expressions.items()))
        problems = [*key_problems(contract.key, list(expressions))]
        if table.rows_move:
            # A delete has no fields to make a key of. Its row is found by the fields of its own key.
            key = sql.when(sql.expr(_makes_row_sql()), key)
            problems = [Problem(one.kind, f"{_makes_row_sql()} AND ({one.condition})", one.text) for one in problems]
            names = source.key.field_names if source.key is not None else ()
            keyed = keyed.withColumn(RECORD_KEY_COLUMN, sql.struct(*(sql.col(f"`{name}`") for name in names)))
            nulls = " OR ".join(f"`{name}` IS NULL" for name in names)
            problems.append(Problem("null_key", nulls, "'key is null'"))
        keyed = keyed.withColumn(KEY_COLUMN, key)
        if table.window is not None:
            time = source.event_time or f"{KAFKA_COLUMN}.timestamp"
            _check(fields, time, f'{source.declared_at}: source "{source.topic}" event_time', wanted="timestamp")
            keyed = keyed.withColumn(TIME_COLUMN, sql.expr(time))
            problems += _time_problems(table.window)
        reason = f"coalesce({REASON_COLUMN}, IF({IGNORED_COLUMN} IS NULL, {reason_sql(problems)}, NULL))"
        kinds = (*records.kinds, *(problem.kind for problem in problems))
        return replace(records, frame=keyed.withColumn(REASON_COLUMN, sql.expr(reason)), kinds=kinds)


def _time_problems(window: Window) -> Iterator[Problem]:
    yield Problem("no_event_time", f"{TIME_COLUMN} IS NULL", "'event time is null'")
    ahead_s, size_s = math.ceil(window.ahead_s), math.ceil(window.size_s)
    yield Problem(
        "future_event",
        f"{TIME_COLUMN} > {KAFKA_COLUMN}.timestamp + INTERVAL '{ahead_s}' SECOND",
        f"'event time is more than {window.ahead_s:g} s ahead of the time that Kafka has of it'",
    )
    # A contract's timestamps, and so the bounds of windows, are of the years 1 to 9999.
    yield Problem(
        "event_time_out_of_range",
        f"{TIME_COLUMN} NOT BETWEEN TIMESTAMP '0001-01-01' + INTERVAL '{size_s}' SECOND "
        f"AND TIMESTAMP '9999-12-31' - INTERVAL '{size_s}' SECOND",
        "'event time is not of the years 1 to 9999'",
    )


def with_global_key(records: Records, side: Global, table: Table) -> Records:
    """Return a global side's records, those without a key malformed: nothing would ever find them."""
    what = f'{side.source.declared_at}: table "{table.name}" global side of topic "{side.source.topic}" key'
    with without_ansi(records.frame.sparkSession):
        _check(records.frame, side.key, what)
        problem = Problem("null_key", f"({side.key}) IS NULL", "'key is null'")
        reason = f"coalesce({REASON_COLUMN}, IF({IGNORED_COLUMN} IS NULL, {reason_sql([problem])}, NULL))"
        keyed = records.frame.withColumn(REASON_COLUMN, sql.expr(reason))
        return replace(records, frame=keyed, kinds=(*records.kinds, problem.kind))


def record_key(side: Source | Latest, table: Table) -> dict[str, str]:
    """Return the key expressions over one side's records."""
    own = side.key if isinstance(side, Latest) and side.key is not None else table.key
    return {name: expression for name, expression in own.items() if not is_window_start(expression)}


def well_formed(keyed: DataFrame) -> DataFrame:
    """Return the records that decode and pass."""
    return decodable(keyed).where(PASSES_COLUMN)


def decodable(keyed: DataFrame) -> DataFrame:
    """Return the records that decode, also those that do not meet the source's `where`."""
    return keyed.where(f"{REASON_COLUMN} IS NULL AND {IGNORED_COLUMN} IS NULL")


def _passes_sql(source: Source) -> str:
    """Return the SQL of whether a record meets the source's `where`; a delete always does."""
    return "true" if source.where is None else f"({KAFKA_COLUMN}.value IS NULL OR coalesce({source.where}, false))"


def _makes_row_sql() -> str:
    """Return the SQL of whether a record is no delete: its value is there, and meets `where`."""
    return f"({KAFKA_COLUMN}.value IS NOT NULL AND {PASSES_COLUMN})"


def row_sql(source: Source) -> str:
    """Return the SQL of a record's fields as a struct, null for a delete and for what does not meet `where`."""
    fields = ", ".join(f"`{name}`" for name in source.names)
    return f"IF({_makes_row_sql()}, struct({fields}), NULL)"


def newest_by_key(records: DataFrame, side: Global, schemas: SourceSchemas) -> DataFrame:
    """Return the newest value of each key of a global side: `__on` and the struct `__found` of fields."""
    source = side.source
    fields = decode_source(records, source, schemas, deletes=True).frame
    where = f'{source.declared_at}: global side of topic "{source.topic}"'
    with without_ansi(fields.sparkSession):
        _check(fields, side.key, f"{where} key")
        found = (
            decodable(fields.withColumn(PASSES_COLUMN, sql.expr(_passes_sql(source))))
            .selectExpr(f"{side.key} AS __on", f"{row_sql(source)} AS __found", f"{order_sql(source)} AS __order")
            .where("__on IS NOT NULL")
        )
    return found.groupBy("__on").agg(sql.expr("max_by(__found, __order) AS __found")).where("__found IS NOT NULL")


def _header_sql(name: str) -> str:
    return f"try_element_at(filter({HEADERS_COLUMN}, h -> h.key = '{name}'), -1).value"


# Progress markers and the begins of runs are no rows, nor is what has no version.
_RUN_KEY_HEX = f"^{RUN_KEY_PREFIX.hex().upper()}(3[0-9]|6[1-6]){{16}}$"
_IS_ROW = (
    f"octet_length(key) > 0 AND NOT (octet_length(key) = {len(RUN_KEY_PREFIX) + 16} AND hex(key) RLIKE "
    f"'{_RUN_KEY_HEX}') AND octet_length({_header_sql(VERSION_HEADER)}) = {VERSION_BYTES}"
)
# Of one version with two contents, that of the later run counts: the earlier one was frozen, or killed.
_VERSION = (
    f"struct(substring({_header_sql(VERSION_HEADER)}, 5) AS sequence, coalesce({_header_sql(RUN_HEADER)}, X'') AS run)"
)


def order_sql(source: Source) -> str:
    """Return the SQL that orders a key's records by age. Offsets do so only within one partition.

    Rows of a table have a version: a job that was started again may write older ones behind newer ones.
    """
    if source.is_table:
        return f"{KAFKA_COLUMN}.{VERSION_FIELD}"
    if source.keyed:
        return f"{KAFKA_COLUMN}.offset"
    return f"struct({KAFKA_COLUMN}.timestamp, {KAFKA_COLUMN}.partition, {KAFKA_COLUMN}.offset)"


def _check(frame: DataFrame, expression: str, what: str, *, wanted: str | None = None) -> None:
    try:
        found = frame.select(sql.expr(expression).alias("found")).schema["found"].dataType.simpleString()
    except PySparkException as error:
        raise JobError(f"{what} does not compute: {first_line(error)}") from None
    if wanted is not None and found.partition("<")[0] != wanted:
        raise JobError(f"{what} is {found}, not {wanted}; write an expression that gives {wanted}")


def key_problems(columns: tuple[KeyColumn, ...], names: list[str]) -> Iterator[Problem]:
    """Yield what may be wrong with the columns of these names in `KEY_COLUMN`: no gateway has a row of such a key."""
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
        if column.type is KeyType.TIMESTAMP:
            yield Problem(
                f"bad_time_{column.name}",
                f"{value} NOT BETWEEN {FIRST_TIME} AND {LAST_TIME}",
                f"'key column \"{column.name}\" is not of the years 1 to 9999'",
            )
    if any(column.type in (KeyType.STRING, KeyType.BYTES) for column in own):
        length = f"octet_length({key_bytes_sql(own, KEY_COLUMN)})"
        yield Problem(
            "long_key",
            f"{length} > {KEY_BYTES_MAX}",
            f"concat('key has ', {length}, ' bytes, more than {KEY_BYTES_MAX}')",
        )


def union(one: DataFrame, other: DataFrame) -> DataFrame:
    """Return the records of both. The struct `kafka` of one may have `element`."""
    return one.unionByName(other, allowMissingColumns=True)


def all_records(one: Records, other: Records) -> Records:
    """Return the records of two topics of one source."""
    kinds = tuple(dict.fromkeys((*one.kinds, *other.kinds)))
    return replace(one, frame=one.frame.unionByName(other.frame), kinds=kinds)


def reason_sql(problems: Sequence[Problem]) -> str:
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
