"""What a table writes to Kafka, as frames of records that Spark's Kafka sink takes.

Decision: docs/decisions/0004-malformed-records-by-a-second-query.md
"""

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.avro.functions import to_avro

from tablegate.gateway.contract import catalogue
from tablegate.gateway.contract.types import VERSION_HEADER
from tablegate.jobs.dataflow.columns import EXISTS_COLUMN, SEQUENCE_COLUMN, stored_column
from tablegate.jobs.dataflow.decoding import encoded_sql
from tablegate.jobs.dataflow.java_errors import first_line
from tablegate.jobs.dataflow.keys import key_bytes_sql, partition_sql, without_ansi
from tablegate.jobs.dataflow.processors import emitted_rows
from tablegate.jobs.dataflow.sources import IGNORED_COLUMN, REASON_COLUMN, Records, well_formed
from tablegate.jobs.errors import JobError
from tablegate.jobs.table import ITEM_COLUMN, KAFKA_COLUMN, ProcessorOutput, RecordOutput, RowOutput, Table

RECORD_TYPE = (
    "STRUCT<topic: STRING, partition: INT, key: BINARY, value: BINARY, "
    "headers: ARRAY<STRUCT<key: STRING, value: BINARY>>>"
)
"""A record as the Kafka sink takes it."""
_PARTITION, _KEY, _HEADERS = "__partition", "__key", "__headers"


def changelog_records(
    rows: DataFrame,
    table: Table,
    contract: catalogue.Table,
    *,
    topic: str,
    generation: int,
    value_schema: Mapping[str, Any],
    schema_id: int,
    partition_count: int,
    row_outputs: bool,
) -> DataFrame:
    """Return rows as the Kafka sink takes them: for the changelog, and for the topics that get the table's changes."""
    columns = [stored_column(rows, avro_field).alias(avro_field["name"]) for avro_field in value_schema["fields"]]
    body = to_avro(sql.struct(*columns), json.dumps(value_schema))
    # The Confluent wire format: 00, the schema's id in four bytes, the Avro. A row that is gone has a null value: it is
    # a tombstone, which compaction may remove.
    value = sql.when(sql.col(EXISTS_COLUMN), sql.concat(sql.expr(f"X'00{schema_id:08X}'"), body))
    # Four bytes and eight, both big endian: versions compare as bytes.
    version = f"concat(X'{generation:08X}', CAST({SEQUENCE_COLUMN} AS BINARY))"
    with without_ansi(rows.sparkSession):
        rows = rows.select(
            "*",
            sql.expr(partition_sql(contract, partition_count) or "CAST(NULL AS INT)").alias(_PARTITION),
            sql.expr(key_bytes_sql(contract.key)).alias(_KEY),
            sql.expr(f"array(struct('{VERSION_HEADER}' AS key, {version} AS value))").alias(_HEADERS),
        )
    record = sql.struct(
        sql.lit(topic).alias("topic"),
        sql.col(_PARTITION).alias("partition"),
        sql.col(_KEY).alias("key"),
        value.alias("value"),
        sql.col(_HEADERS).alias("headers"),
    )
    outputs = [output for output in table.outputs if row_outputs and isinstance(output, RowOutput)]
    if not outputs:
        return rows.select(record.alias("record")).select("record.*")
    # One query writes all of these topics: a row costs its state once, and its copies are of the same batch.
    others = [_output_record(rows, output, table) for output in outputs]
    every = sql.array(record.cast(RECORD_TYPE), *(sql.expr(other) for other in others))
    return rows.select(sql.inline(sql.filter(every, lambda one: one.isNotNull())))


def _output_record(rows: DataFrame, output: RowOutput, table: Table) -> str:
    value = f"IF({EXISTS_COLUMN}, {encoded_sql(output.value)}, NULL)"
    # A tombstone always goes out: the row that is gone may have met `where` before.
    is_wanted = f"(NOT {EXISTS_COLUMN} OR coalesce({output.where}, false))" if output.where is not None else "true"
    record = output_record_sql(output.topic, key=encoded_sql(output.key), value=value)
    check_output(rows, record, is_wanted, f'{table.declared_at}: table "{table.name}" output "{output.topic}"')
    return f"IF({is_wanted}, {record}, NULL)"


def output_record_sql(topic: str, *, key: str, value: str) -> str:
    """Return the SQL of a record for another topic than the changelog."""
    return f"CAST(struct('{topic}', CAST(NULL AS INT), {key}, {value}, NULL) AS {RECORD_TYPE})"


def check_output(frame: DataFrame, record: str, is_wanted: str, what: str) -> None:
    """Raise `JobError` where an output's expressions do not compute."""
    try:
        frame.select(sql.expr(record), sql.expr(is_wanted).cast("boolean"))
    except PySparkException as error:
        raise JobError(f"{what} does not compute: {first_line(error)}") from None


def record_output(keyed: DataFrame, output: RecordOutput, table: Table) -> DataFrame:
    """Return a source's records as the Kafka sink takes them; raise `JobError`."""
    records = well_formed(keyed)
    if output.each is not None:
        try:
            records = records.withColumn(ITEM_COLUMN, sql.explode(sql.expr(output.each)))
        except PySparkException as error:
            raise JobError(f"{_where(output, table)} each= does not compute: {first_line(error)}") from None
    return _as_records(records, output, table)


def processor_output(keyed: DataFrame, output: ProcessorOutput, table: Table) -> DataFrame:
    """Return what a processor emits as the Kafka sink takes it; raise `JobError`."""
    source = table.source_of(output.side or "")
    try:
        emitted = emitted_rows(
            well_formed(keyed), output.processor, output.by, source, owner=f'output "{output.topic}"'
        )
    except PySparkException as error:
        raise JobError(f"{_where(output, table)} by= does not compute: {first_line(error)}") from None
    return _as_records(emitted, output, table)


def _as_records(frame: DataFrame, output: RecordOutput | ProcessorOutput, table: Table) -> DataFrame:
    record = output_record_sql(output.topic, key=encoded_sql(output.key), value=encoded_sql(output.value))
    is_wanted = f"coalesce({output.where}, false)" if output.where is not None else "true"
    check_output(frame, record, is_wanted, _where(output, table))
    return frame.where(is_wanted).select(sql.expr(record).alias("record")).select("record.*")


def _where(output: RecordOutput | ProcessorOutput, table: Table) -> str:
    return f'{table.declared_at}: table "{table.name}" output "{output.topic}"'


_COUNTS = "counts"
"""Name under which Spark reports how many records of each kind a batch had."""
_MALFORMED, _IGNORED = "malformed: ", "ignored: "

_DEAD_LETTER_HEADERS = {
    "reason": f"{REASON_COLUMN}.text",
    "topic": f"{KAFKA_COLUMN}.topic",
    "partition": f"CAST({KAFKA_COLUMN}.partition AS STRING)",
    "offset": f"CAST({KAFKA_COLUMN}.offset AS STRING)",
}


def dead_letters(sides: Sequence[Records], topic: str, *, ignored: Iterable[str]) -> DataFrame:
    """Return the malformed records of all sides as the Kafka sink takes them; `counts` has how many of each kind.

    `ignored`: names of record types that are passed over, and counted.
    """
    every = functools.reduce(
        DataFrame.unionByName, (side.frame.select(KAFKA_COLUMN, REASON_COLUMN, IGNORED_COLUMN) for side in sides)
    )
    kinds = sorted({kind for side in sides for kind in side.kinds})
    wanted = [(_MALFORMED + kind, f"{REASON_COLUMN}.kind = '{kind}'") for kind in kinds]
    wanted += [(_IGNORED + name, f"{IGNORED_COLUMN} = '{name}'") for name in ignored]
    headers = ", ".join(
        f"struct('{name}' AS key, encode({text}, 'UTF-8') AS value)" for name, text in _DEAD_LETTER_HEADERS.items()
    )
    fields = f"'{topic}', CAST(NULL AS INT), {KAFKA_COLUMN}.key, {KAFKA_COLUMN}.value, array({headers})"
    record = f"CAST(struct({fields}) AS {RECORD_TYPE})"
    return (
        every.coalesce(1)  # one task for all partitions, so that it needs one slot: `realtime_slots`
        .where(f"{REASON_COLUMN} IS NOT NULL OR {IGNORED_COLUMN} IS NOT NULL")
        .observe(_COUNTS, *(sql.expr(f"count_if({condition})").alias(name) for name, condition in wanted))
        .where(f"{REASON_COLUMN} IS NOT NULL")
        .select(sql.expr(record).alias("record"))
        .select("record.*")
    )


def counts(progress: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    """Return how many records a batch set aside and passed over, by kind; kinds without any are left out."""
    found: Mapping[str, int] = progress.get("observedMetrics", {}).get(_COUNTS) or {}
    malformed = {kind.removeprefix(_MALFORMED): n for kind, n in found.items() if n and kind.startswith(_MALFORMED)}
    ignored = {kind.removeprefix(_IGNORED): n for kind, n in found.items() if n and kind.startswith(_IGNORED)}
    return malformed, ignored
