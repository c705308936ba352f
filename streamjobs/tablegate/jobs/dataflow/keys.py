"""Ordered key bytes and partition as Spark SQL, equal to `gateway/tablegate/gateway/contract/keys.py` byte for byte.

They are expressions, not Python functions, because Real-time Mode runs no Python. They are to be analyzed with
`without_ansi`.

Decision: docs/decisions/0036-keys-by-a-cast.md
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from pyspark.sql import SparkSession

from tablegate.gateway.contract.catalogue import Partitioner, Table
from tablegate.gateway.contract.keys import KEY_BYTES_MAX, KeyColumn, KeyType

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

_ANY_BYTES = "((?:(?!00)..|00FF)*)0000"
_PATTERNS = {
    KeyType.INT64: "(.{16})",
    KeyType.BOOL: "(0[01])",
    KeyType.STRING: _ANY_BYTES,
    KeyType.BYTES: _ANY_BYTES,
    KeyType.TIMESTAMP: "(.{16})",
}
# The upper half without the flipped sign bit, then the lower half.
_HALF = "CAST(conv(substring({0}, %d, 8), 16, 10) AS BIGINT)"
_FROM_INT64 = f"(({_HALF % 1} - 2147483648L) * 4294967296L + {_HALF % 9})"
_FROM_BYTES = r"unhex(regexp_replace({0}, '\\G((?:..)*?)00FF', '$100'))"
_DECODERS = {
    KeyType.INT64: _FROM_INT64,
    KeyType.BOOL: "({0} = '01')",
    KeyType.STRING: f"CAST({_FROM_BYTES} AS STRING)",
    KeyType.BYTES: _FROM_BYTES,
    KeyType.TIMESTAMP: f"timestamp_micros({_FROM_INT64})",
}
"""SQL of each type's value; {0} is its bytes in hex."""


@contextmanager
def with_setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Let a setting of Spark have another value in the block."""
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        if before is not None:
            spark.conf.set(name, before)


def without_ansi(spark: SparkSession) -> AbstractContextManager[None]:
    """Analyze expressions in the block without ANSI mode: there bigint casts to binary, and what fails is null."""
    return with_setting(spark, "spark.sql.ansi.enabled", "false")


def key_bytes_sql(columns: Sequence[KeyColumn], struct: str | None = None) -> str:
    """Return the SQL of the bytes of these columns, read by name or out of the struct column `struct`."""
    parts = [_ENCODERS[column.type].format(_column(column.name, struct)) for column in columns]
    return f"concat({', '.join(parts)})"


def is_row_key_sql(columns: Sequence[KeyColumn], key: str) -> str:
    """Return the SQL of whether a binary is the key bytes of these columns."""
    # A longer one is nobody's, and the expression would recurse over it.
    return f"IF(octet_length({key}) <= {KEY_BYTES_MAX}, hex({key}) RLIKE '{_pattern(columns)}', false)"


def row_key_parts_sql(columns: Sequence[KeyColumn], key: str) -> list[str]:
    """Return the SQL of the value of each column in key bytes, null in what is none."""
    own = f"IF({is_row_key_sql(columns, key)}, hex({key}), NULL)"
    found = (f"regexp_extract({own}, '{_pattern(columns)}', {place})" for place in range(1, len(columns) + 1))
    return [_DECODERS[column.type].format(one) for column, one in zip(columns, found, strict=True)]


def _pattern(columns: Sequence[KeyColumn]) -> str:
    """Return the regular expression of key bytes in hex, with a group for each column."""
    return f"^{''.join(_PATTERNS[column.type] for column in columns)}$"


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
