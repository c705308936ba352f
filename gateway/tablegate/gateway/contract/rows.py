"""Rows: the Avro schema of a table's values, and the way from a changelog value to the row message's bytes.

A value is Avro in the Confluent wire format: 00, schema id (4 bytes, big endian), body. It becomes the bytes of the
contract's row message once, when it is applied; reads splice these bytes into answers.
"""

import json
import struct
from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.columns import is_money, is_timestamp
from tablegate.gateway.contract.transcoder import (
    DECIMAL,
    LONG,
    MONEY_SCALE,
    TIMESTAMP,
    AvroField,
    UndecodableRecord,
    row_reader,
)

__all__ = ["RowDecoder", "UndecodableRecord", "UnfitSchema", "UnsupportedColumn", "row_schema"]

VALUE_PREFIX_BYTES = 5  # 00 and the schema id
MONEY_PRECISION = 28  # digits of a google.type.Money: int64 units (19, not all of them) and nanos

_AVRO_TYPES = {
    FieldDescriptor.CPPTYPE_INT32: LONG,
    FieldDescriptor.CPPTYPE_INT64: LONG,
    FieldDescriptor.CPPTYPE_UINT32: LONG,
    FieldDescriptor.CPPTYPE_UINT64: LONG,
    FieldDescriptor.CPPTYPE_ENUM: LONG,
    FieldDescriptor.CPPTYPE_FLOAT: "float",
    FieldDescriptor.CPPTYPE_DOUBLE: "double",
    FieldDescriptor.CPPTYPE_BOOL: "boolean",
}
_READABLE_AS = {LONG: {LONG, "int"}, "double": {"double", "float"}}
"""Avro types that a column takes beside its own, because no value is lost."""

_LOGICAL_TYPES = {TIMESTAMP: LONG, DECIMAL: "bytes"}
_PLAIN_TYPES = ("int", LONG, "float", "double", "boolean", "string", "bytes")


class UnsupportedColumn(ValueError):
    """A column of the row message that no changelog value can hold; the message names it."""


class UnfitSchema(ValueError):
    """A value schema from which the row message cannot be made; the message names schema and field."""


def row_schema(table: Table) -> dict[str, Any]:
    """Return the Avro schema of the table's values; raise `UnsupportedColumn`."""
    key = {column.name for column in table.key}
    return {
        "type": "record",
        "name": table.row.name,
        "namespace": table.row.file.package,
        "fields": [_avro_field(column, is_key=column.name in key) for column in table.row.fields],
    }


def _avro_field(column: FieldDescriptor, *, is_key: bool) -> dict[str, Any]:
    name = _avro_type(column)
    avro: Any = {"type": _LOGICAL_TYPES[name], "logicalType": name} if name in _LOGICAL_TYPES else name
    if name == DECIMAL:
        avro |= {"precision": MONEY_PRECISION, "scale": MONEY_SCALE}
    if is_key:
        return {"name": column.name, "type": avro}
    return {"name": column.name, "type": ["null", avro], "default": None}


def _avro_type(column: FieldDescriptor) -> str:
    """Return the Avro type of a column, or the logical type of a timestamp or an amount."""
    if not column.is_repeated:
        if column.type == FieldDescriptor.TYPE_STRING:
            return "string"
        if column.type == FieldDescriptor.TYPE_BYTES:
            return "bytes"
        if is_timestamp(column):
            return TIMESTAMP
        if is_money(column):
            return DECIMAL
        if column.cpp_type in _AVRO_TYPES:
            return _AVRO_TYPES[column.cpp_type]
    row = column.containing_type
    assert row is not None
    raise UnsupportedColumn(
        f'{row.file.name}: message {row.name}, field "{column.name}": a column is a number, bool, string, bytes, '
        "enum, google.protobuf.Timestamp or google.type.Money, and not repeated; change its type or remove it"
    )


class RowDecoder:
    """Turns changelog values of one table into row bytes. `value_schemas`: Avro JSON text by schema id.

    Raises `UnfitSchema` when made. A column that older schemas lack stays unset in their rows, but one schema at
    least must have it; key columns are in every schema. Fields that the row message lacks are left out.
    """

    def __init__(self, table: Table, value_schemas: Mapping[int, str]) -> None:
        if not value_schemas:
            raise UnfitSchema(f'table "{table.name}": its manifest has no value schema')
        self._row_readers: dict[bytes, Callable[[bytes], bytes]] = {}
        found: set[str] = set()
        for schema_id, text in sorted(value_schemas.items()):
            fields = _fit_fields(f'table "{table.name}", value schema {schema_id}', table, text)
            found |= {field.column.name for field in fields if field.column is not None}
            self._row_readers[struct.pack(">bI", 0, schema_id)] = row_reader(fields, start=VALUE_PREFIX_BYTES)
        missing = [column.name for column in table.row.fields if column.name not in found]
        if missing:
            raise UnfitSchema(f'table "{table.name}": no value schema has field "{missing[0]}" of the contract')

    def decode(self, value: bytes) -> bytes:
        """Return the bytes of the row message; raise `UndecodableRecord`."""
        read_row = self._row_readers.get(value[:VALUE_PREFIX_BYTES])
        if read_row is None:
            raise UndecodableRecord(_unknown_prefix(value))
        return read_row(value)


def _unknown_prefix(value: bytes) -> str:
    """Return a reason without the schema id: reasons are counted, and garbage has as many ids as there are."""
    if len(value) < VALUE_PREFIX_BYTES or value[0] != 0:
        return "value is not in the Confluent wire format"
    return "value has a schema id that is not in the manifest"


def _fit_fields(where: str, table: Table, text: str) -> list[AvroField]:
    """Return the fields of a schema, in its order, each with the column that takes it; raise `UnfitSchema`."""
    try:
        schema = json.loads(text)
        types = {str(field["name"]): field["type"] for field in schema["fields"]}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UnfitSchema(f"{where}: not an Avro record schema") from None
    columns = table.row.fields_by_name
    for key_column in table.key:
        if key_column.name not in types:
            raise UnfitSchema(f'{where}: field "{key_column.name}" is missing, which the contract has in the key')
    return [_fit_field(where, name, avro, columns.get(name)) for name, avro in types.items()]


def _fit_field(where: str, name: str, avro: Any, column: FieldDescriptor | None) -> AvroField:
    branches = None
    plain = avro
    if isinstance(avro, list):
        others = [index for index, branch in enumerate(avro) if branch != "null"]
        if len(others) == 1 and len(avro) <= 2:
            plain = avro[others[0]]
            branches = (1 - others[0] if len(avro) == 2 else None, others[0])
    while isinstance(plain, dict) and plain.get("logicalType") is None:
        plain = plain.get("type")
    found = _plain_type(plain)
    if column is None:
        if found is None:
            raise UnfitSchema(f'{where}: field "{name}" is {json.dumps(avro)}, and no column of the contract')
        return AvroField(found, branches, None)
    wanted = _avro_type(column)
    if found not in _READABLE_AS.get(wanted, {wanted}):
        raise UnfitSchema(f'{where}: field "{name}" is {json.dumps(avro)}, the contract wants {wanted}')
    assert found is not None
    if found != DECIMAL:
        return AvroField(found, branches, column)
    scale = plain.get("scale", 0)
    if type(scale) is not int or not 0 <= scale <= MONEY_SCALE:
        text = f"a decimal with a scale of 0 to {MONEY_SCALE}, as a google.type.Money has nanos"
        raise UnfitSchema(f'{where}: field "{name}" is {json.dumps(avro)}, the contract wants {text}')
    return AvroField(found, branches, column, scale)


def _plain_type(avro: Any) -> str | None:
    """Return the name of an Avro type that a column may have, or its logical type; None for others."""
    if isinstance(avro, dict):
        found = (avro.get("logicalType"), avro.get("type"))
        return next((logical for logical, plain in _LOGICAL_TYPES.items() if found == (logical, plain)), None)
    return avro if avro in _PLAIN_TYPES else None
