"""Rows of a table as records: of its changelog (key, value, version, partition), and of topics that get its changes."""

import json
from collections.abc import Mapping
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.avro.functions import to_avro
from tablegate.gateway.contract import catalogue
from tablegate.gateway.contract.versions import VERSION_HEADER
from tablegate.jobs.dataflow.decoding import encoded_sql
from tablegate.jobs.dataflow.keys import key_bytes_sql, partition_sql, without_ansi
from tablegate.jobs.errors import JobError
from tablegate.jobs.planning.columns import EXISTS_COLUMN, SEQUENCE_COLUMN, stored_column
from tablegate.jobs.running.java_errors import first_line
from tablegate.jobs.table import RowOutput, Table

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
    value = sql.when(sql.col(EXISTS_COLUMN), sql.concat(sql.expr(f"X'00{schema_id:08X}'"), body))
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
    others = [_output_record(rows, output, table) for output in outputs]
    every = sql.array(record.cast(RECORD_TYPE), *(sql.expr(other) for other in others))
    return rows.select(sql.inline(sql.filter(every, lambda one: one.isNotNull())))


def _output_record(rows: DataFrame, output: RowOutput, table: Table) -> str:
    value = f"IF({EXISTS_COLUMN}, {encoded_sql(output.value)}, NULL)"
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
