"""Ordered key bytes and partition as Spark SQL, equal to `gateway/tablegate/gateway/contract/keys.py` byte for byte.

They are expressions, not Python functions, because Real-time Mode runs no Python. They are to be analyzed with
`without_ansi`.

Decision: docs/decisions/0036-keys-by-a-cast.md
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pyspark.sql import SparkSession

from tablegate.gateway.contract.catalogue import Partitioner, Table
from tablegate.gateway.contract.keys import KeyColumn, KeyType

# The cast gives 8 bytes, big endian; the xor flips the sign bit.
_INT64 = "CAST(CAST({0} AS BIGINT) ^ (-9223372036854775808L) AS BINARY)"
_BOOL = "IF({0}, X'01', X'00')"
# \\G makes the regular expression go on where its last match ended, at whole bytes: without it, the digits 00 of two
# neighbouring bytes (A0 0B) would be taken for a byte 00. It is slow, and few keys have such a byte.
_ESCAPED = r"IF(contains({0}, X'00'), unhex(regexp_replace(hex({0}), '\\G((?:..)*?)00', '$100FF')), {0})"
_BYTES = f"concat({_ESCAPED}, X'0000')"
_STRING = _BYTES.format("CAST({0} AS BINARY)")

_ENCODERS = {
    KeyType.INT64: _INT64,
    KeyType.BOOL: _BOOL,
    KeyType.STRING: _STRING,
    KeyType.BYTES: _BYTES,
    KeyType.TIMESTAMP: _INT64.format("unix_micros({0})"),
}
"""SQL of each type's bytes; {0} is the value."""


@contextmanager
def without_ansi(spark: SparkSession) -> Iterator[None]:
    """Analyze expressions in the block without ANSI mode: there bigint casts to binary, and what fails is null."""
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        yield
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before or "true")


def key_bytes_sql(columns: Sequence[KeyColumn], struct: str | None = None) -> str:
    """Return the SQL of the bytes of these columns, read by name or out of the struct column `struct`."""
    parts = [_ENCODERS[column.type].format(_column(column.name, struct)) for column in columns]
    return f"concat({', '.join(parts)})"


def partition_sql(table: Table, partition_count: int, struct: str | None = None) -> str | None:
    """Return the SQL of a row's partition by its key columns, read by name or out of the struct column `struct`.

    None where it is left to the Java producer's murmur2.
    """
    if table.partitioner is Partitioner.MURMUR2:
        return None
    prefix = key_bytes_sql(table.key[: table.partition_by_count], struct)
    return f"CAST(crc32({prefix}) % {partition_count} AS INT)"


def _column(name: str, struct: str | None) -> str:
    return f"`{struct}`.`{name}`" if struct else f"`{name}`"
