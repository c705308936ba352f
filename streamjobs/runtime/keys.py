"""Ordered key bytes and partition as Spark SQL, equal to `gateway/contract/keys.py` byte for byte.

They are expressions, not Python functions, because Real-time Mode takes no Python.
"""

from collections.abc import Sequence

from gateway.contract.catalogue import Partitioner, Table
from gateway.contract.keys import KeyColumn, KeyType

# ANSI mode has no cast from bigint to binary; 16 hex digits are the 8 bytes. The xor flips the sign bit.
_INT64 = "unhex(lpad(hex(CAST({0} AS BIGINT) ^ (-9223372036854775808L)), 16, '0'))"
_BOOL = "IF({0}, X'01', X'00')"
# \\G makes the regular expression go on where its last match ended, at whole bytes: without it, the digits 00 of two
# neighbouring bytes (A0 0B) would be taken for a byte 00.
_BYTES = r"concat(unhex(regexp_replace(hex({0}), '\\G((?:..)*?)00', '$100FF')), X'0000')"
_STRING = _BYTES.format("CAST({0} AS BINARY)")

_ENCODERS = {
    KeyType.INT64: _INT64,
    KeyType.BOOL: _BOOL,
    KeyType.STRING: _STRING,
    KeyType.BYTES: _BYTES,
    KeyType.TIMESTAMP: _INT64.format("unix_micros({0})"),
}
"""SQL of each type's bytes; {0} is the value."""


def key_bytes_sql(columns: Sequence[KeyColumn], struct: str | None = None) -> str:
    """Return the SQL of the bytes of these columns, read by name or out of the struct column `struct`."""
    parts = [_ENCODERS[column.type].format(_column(column.name, struct)) for column in columns]
    return f"concat({', '.join(parts)})"


def partition_sql(table: Table, partition_count: int) -> str | None:
    """Return the SQL of a row's partition by its key columns; None where it is left to the Java producer's murmur2."""
    if table.partitioner is Partitioner.MURMUR2:
        return None
    prefix = key_bytes_sql(table.key[: table.partition_by_count])
    return f"CAST(crc32({prefix}) % {partition_count} AS INT)"


def _column(name: str, struct: str | None) -> str:
    return f"`{struct}`.`{name}`" if struct else f"`{name}`"
