"""Columns of a table's rows in Spark: their types, and the columns that the job adds."""

from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from tablegate.jobs.errors import JobError
from tablegate.jobs.table import Table

SEQUENCE_COLUMN = "__sequence"
"""The sequence of a row's version: it grows with each input of the row."""
EXISTS_COLUMN = "__exists"
"""Whether the key has a row; else it is deleted."""
COMPUTED_COLUMN = "__computed"
"""Whether all of the row could be computed; a row that cannot be does not exist."""

_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_DECIMAL = "decimal"
_SPARK_TYPES = {
    "long": ("bigint", _INTEGERS),
    "timestamp-micros": ("timestamp", ("timestamp",)),
    "float": ("float", ("float",)),
    "double": ("double", ("double", "float")),
    "boolean": ("boolean", ("boolean",)),
    "string": ("string", ("string",)),
    "bytes": ("binary", ("binary",)),
    _DECIMAL: ("decimal(28,9)", (*_INTEGERS, _DECIMAL)),
}
"""Avro type → (Spark's type of the column, types that an expression may have because no value is lost).

A decimal is money: what is finer than its nine digits is cut off towards zero.
"""


def check_type(name: str, actual: str, table: Table, value_schema: Mapping[str, Any]) -> None:
    """Raise `JobError` where a column has not the type that the contract wants."""
    wanted = wanted_type(name, actual, value_schema)
    if wanted is not None:
        raise JobError(
            f'{table.declared_at}: table "{table.name}" column "{name}" is {actual}, the contract wants {wanted}; '
            f"write CAST(… AS {wanted.upper()})"
        )


def wanted_type(name: str, actual: str, value_schema: Mapping[str, Any]) -> str | None:
    """Return Spark's type that the contract wants of a column; None where `actual` will do."""
    avro_field = next(avro_field for avro_field in value_schema["fields"] if avro_field["name"] == name)
    wanted, accepted = _SPARK_TYPES[_avro_type(avro_field)]
    return None if actual in accepted or actual.partition("(")[0] in accepted else wanted


def _avro_type(avro_field: Mapping[str, Any]) -> str:
    """Return the Avro type of a value's field, or its logical type; a union is null and one other."""
    avro = avro_field["type"]
    if isinstance(avro, list):
        avro = next(branch for branch in avro if branch != "null")
    return str(avro["logicalType"] if isinstance(avro, dict) else avro)


def stored_column(rows: DataFrame, avro_field: Mapping[str, Any]) -> Column:
    """Return a column of `rows` as the changelog has it."""
    name, avro = avro_field["name"], _avro_type(avro_field)
    if avro == _DECIMAL and rows.schema[name].dataType.simpleString().startswith(_DECIMAL):
        # A cast would round.
        return sql.expr(f"CAST(IF(`{name}` < 0, ceil(`{name}`, 9), floor(`{name}`, 9)) AS DECIMAL(28, 9))")
    return sql.col(f"`{name}`").cast(_SPARK_TYPES[avro][0])
