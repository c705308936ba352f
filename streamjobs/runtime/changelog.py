"""Rows of a table as records of its changelog: key, value, version and partition."""

import json
from collections.abc import Mapping
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.avro.functions import to_avro

from gateway.contract import catalogue
from gateway.contract.versions import VERSION_HEADER
from streamjobs.runtime.errors import JobError
from streamjobs.runtime.java import first_line
from streamjobs.runtime.keys import key_bytes_sql, partition_sql
from streamjobs.runtime.sources import KEY_COLUMN, REASON_COLUMN
from streamjobs.table import KAFKA_COLUMN, Table

_SEQUENCE = "__sequence"
_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_SPARK_TYPES = {
    "long": ("bigint", _INTEGERS),
    "timestamp-micros": ("timestamp", ("timestamp",)),
    "float": ("float", ("float",)),
    "double": ("double", ("double", "float")),
    "boolean": ("boolean", ("boolean",)),
    "string": ("string", ("string",)),
    "bytes": ("binary", ("binary",)),
}
"""Avro type → (Spark's type of the column, types that an expression may have because no value is lost)."""


def aggregate(decoded: DataFrame, table: Table) -> DataFrame:
    """Return the table's rows: key columns, columns, and the sequence of their versions."""
    well_formed = decoded.where(f"{REASON_COLUMN} IS NULL")
    sequence = f"max({KAFKA_COLUMN}.offset)" if table.source.keyed else "count(*)"
    grouped = well_formed.groupBy(*(sql.expr(f"{KEY_COLUMN}.`{name}`").alias(name) for name in table.key))
    return grouped.agg(
        sql.expr(sequence).alias(_SEQUENCE),
        *(sql.expr(expression).alias(name) for name, expression in table.columns.items()),
    )


def changelog_records(
    rows: DataFrame,
    contract: catalogue.Table,
    *,
    generation: int,
    value_schema: Mapping[str, Any],
    schema_id: int,
    partition_count: int,
) -> DataFrame:
    """Return rows as the Kafka sink takes them."""
    columns = [
        sql.col(f"`{avro_field['name']}`").cast(_SPARK_TYPES[_avro_type(avro_field)][0]).alias(avro_field["name"])
        for avro_field in value_schema["fields"]
    ]
    body = to_avro(sql.struct(*columns), json.dumps(value_schema))
    version = f"concat(X'{generation:08X}', unhex(lpad(hex({_SEQUENCE}), 16, '0')))"
    record = [
        sql.expr(key_bytes_sql(contract.key)).alias("key"),
        sql.concat(sql.expr(f"X'00{schema_id:08X}'"), body).alias("value"),
        sql.expr(f"array(struct('{VERSION_HEADER}' AS key, {version} AS value))").alias("headers"),
    ]
    partition = partition_sql(contract, partition_count)
    if partition is not None:
        record.append(sql.expr(partition).alias("partition"))
    return rows.select(*record)


def check_types(fields: DataFrame, table: Table, value_schema: Mapping[str, Any]) -> None:
    """Raise `JobError` where a column's expression does not compute, or gives what the contract does not want."""
    for avro_field in value_schema["fields"]:
        name, avro = avro_field["name"], _avro_type(avro_field)
        wanted, taken = _SPARK_TYPES[avro]
        actual = _type_of(fields, table, name)
        if actual not in taken:
            raise JobError(
                f'{table.declared_at}: table "{table.name}" column "{name}" is {actual}, the contract wants {wanted}; '
                f"write CAST(… AS {wanted.upper()})"
            )


def _type_of(fields: DataFrame, table: Table, name: str) -> str:
    """Return the type of one column's expression; each is looked at alone, so that an error names its column."""
    try:
        if name in table.key:
            found = fields.select(sql.expr(table.key[name]).alias(name))
        else:
            found = fields.groupBy().agg(sql.expr(table.columns[name]).alias(name))
        type_name: str = found.schema[name].dataType.simpleString()
    except PySparkException as error:
        raise JobError(
            f'{table.declared_at}: table "{table.name}" column "{name}" does not compute: {first_line(error)}'
        ) from None
    return type_name


def _avro_type(avro_field: Mapping[str, Any]) -> str:
    """Return the Avro type of a value's field, or its logical type; a union is null and one other."""
    avro = avro_field["type"]
    if isinstance(avro, list):
        avro = next(branch for branch in avro if branch != "null")
    return str(avro["logicalType"] if isinstance(avro, dict) else avro)
