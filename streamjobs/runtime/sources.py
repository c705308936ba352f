"""A source topic as rows: its Avro decoded, and the reason of each record that no row can be made of."""

import json
from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.avro.functions import from_avro

from gateway.contract.catalogue import Table as ContractTable
from gateway.contract.keys import KEY_BYTES_MAX, KeyType
from streamjobs.runtime.keys import key_bytes_sql
from streamjobs.table import KAFKA_COLUMN, Source, Table

KEY_COLUMN = "__key"
"""Struct of the key columns."""
REASON_COLUMN = "__reason"
"""Why a record is malformed, a struct of `kind` and `text`; null where it is not."""

RECORDS_PER_BATCH_MAX = 1_000_000  # of a micro-batch: a backlog is worked off in steps, each with its marker

_FRAME_BYTES = 5  # 00 and the schema id
_DECODED = "__decoded"
_FRAMED = "__framed"
_SCHEMA_ID = "__schema_id"
_RECORD = "__record"


def read_source(spark: SparkSession, bootstrap: str, source: Source, *, batched: bool) -> DataFrame:
    """Return the topic's records as Kafka has them, from its start on."""
    reader = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", source.topic)
        .option("startingOffsets", "earliest")
        # Records that Kafka has dropped before they were read are an error: a row would be wrong for ever.
        .option("failOnDataLoss", "true")
    )
    if batched:
        reader = reader.option("maxOffsetsPerTrigger", RECORDS_PER_BATCH_MAX)
    return reader.load()


def decode_fields(records: DataFrame, source: Source, writer_schemas: Mapping[int, str] | None) -> DataFrame:
    """Return the records' fields, the struct `kafka`, and what `with_key` needs.

    `writer_schemas` by id; None takes the declared schema as every writer's.
    """
    framed = records.select(
        sql.struct("key", "value", "topic", "partition", "offset", "timestamp").alias(KAFKA_COLUMN),
        sql.expr(f"octet_length(value) >= {_FRAME_BYTES} AND substring(value, 1, 1) = X'00'").alias(_FRAMED),
        sql.expr(f"conv(hex(substring(value, 2, {_FRAME_BYTES - 1})), 16, 10)").alias(_SCHEMA_ID),
        _decoded(source, writer_schemas).alias(_RECORD),
    )
    return framed.select(KAFKA_COLUMN, _FRAMED, _SCHEMA_ID, f"{_RECORD}.*")


def with_key(
    fields: DataFrame, table: Table, contract: ContractTable, writer_schemas: Mapping[int, str] | None
) -> DataFrame:
    """Return the fields with `KEY_COLUMN` and `REASON_COLUMN`."""
    key = sql.struct(*(sql.expr(expression).alias(name) for name, expression in table.key.items()))
    keyed = fields.withColumn(KEY_COLUMN, key)
    reason = sql.expr(_reason_sql(contract, writer_schemas))
    return keyed.withColumn(REASON_COLUMN, reason).drop(_FRAMED, _SCHEMA_ID, _DECODED)


def _decoded(source: Source, writer_schemas: Mapping[int, str] | None) -> Column:
    """Return the record as a struct, all of whose fields are null where it does not decode.

    A damaged record and one whose fields are all null would look the same. So the reader's schema has one field more,
    which no writer has: Avro fills in its default wherever a record decodes.
    """
    reader = json.loads(source.schema)
    reader["fields"].append({"name": _DECODED, "type": "boolean", "default": True})
    options = {"mode": "PERMISSIVE", "avroSchema": json.dumps(reader)}
    body = sql.expr(f"substring(value, {_FRAME_BYTES + 1})")
    if writer_schemas is None:
        return from_avro(body, source.schema, options)
    decoded: Column | None = None
    for schema_id, writer in writer_schemas.items():
        is_written_so = sql.expr(f"substring(value, 2, {_FRAME_BYTES - 1}) = X'{schema_id:08X}'")
        branch = from_avro(body, writer, options)
        decoded = sql.when(is_written_so, branch) if decoded is None else decoded.when(is_written_so, branch)
    assert decoded is not None, "a subject has one version at least"
    return decoded


def reasons(contract: ContractTable, writer_schemas: Mapping[int, str] | None) -> dict[str, tuple[str, str]]:
    """Return what can be wrong with a record, first come first: kind → (SQL of the condition, SQL of the text)."""
    found = {
        "null_value": (f"{KAFKA_COLUMN}.value IS NULL", "'value is null'"),
        "not_framed": (f"NOT {_FRAMED}", "'value is not Avro in the Confluent wire format'"),
    }
    if writer_schemas is not None:
        known = ", ".join(f"'{schema_id}'" for schema_id in writer_schemas)
        found["unknown_schema"] = (
            f"{_SCHEMA_ID} NOT IN ({known})",
            f"concat('schema id ', {_SCHEMA_ID}, ' was not in the schema registry when the job started')",
        )
    found["undecodable"] = (f"{_DECODED} IS NULL", "'value does not decode by its Avro schema'")
    for column in contract.key:
        value = f"{KEY_COLUMN}.`{column.name}`"
        found[f"null_key_{column.name}"] = (f"{value} IS NULL", f"'key column \"{column.name}\" is null'")
        if column.type is KeyType.STRING:
            found[f"bad_text_{column.name}"] = (
                f"NOT is_valid_utf8({value})",
                f"'key column \"{column.name}\" is not UTF-8'",
            )
    if any(column.type in (KeyType.STRING, KeyType.BYTES) for column in contract.key):
        length = f"octet_length({key_bytes_sql(contract.key, KEY_COLUMN)})"
        found["long_key"] = (
            f"{length} > {KEY_BYTES_MAX}",
            f"concat('key has ', {length}, ' bytes, more than {KEY_BYTES_MAX}')",
        )
    return found


def _reason_sql(contract: ContractTable, writer_schemas: Mapping[int, str] | None) -> str:
    branches = [
        f"WHEN {condition} THEN struct('{kind}' AS kind, {text} AS text)"
        for kind, (condition, text) in reasons(contract, writer_schemas).items()
    ]
    return f"CASE {' '.join(branches)} END"
