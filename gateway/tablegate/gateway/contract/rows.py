"""Rows: the Avro schema of a table's values, and the way from a changelog value to the row message's bytes.

A value is Avro in the Confluent wire format: 00, schema id (4 bytes, big endian), body. It becomes the bytes of the
contract's row message once, when it is applied; reads splice these bytes into answers.

There is nothing between Avro and Protobuf: the columns of a value become wire bytes one after the other. Both formats
write varints and little-endian floats, so most of a row is copied. That is twice as fast as reading Avro into a
dictionary and writing a message from it (measured: a restore is mostly this), and refuses what does not fit.

Decision: docs/decisions/0006-avro-to-protobuf-bytes.md
"""

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from google.protobuf.descriptor import FieldDescriptor

from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.columns import is_money, is_timestamp
from tablegate.gateway.contract.keys import ENCODERS, InvalidKey, KeyType, decode_key, is_only_numbers

LONG, TIMESTAMP, DECIMAL = "long", "timestamp-micros", "decimal"
MONEY_SCALE = 9  # digits after the point: units and nanos

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5  # wire types
_RAW, _CHECKED_RAW, _INTEGER, _NUMBER, _TEXT = range(5)  # how a value is read: see `_read`
_FAST_INTEGER_MAX = 2**31 - 1  # fits each integer type
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_SHIFTS = tuple(range(7, 64, 7))  # of the bytes of a varint after the first
_RAW_BYTES = {"float": 4, "double": 8, "boolean": 1}
_TEXT_TYPES = ("string", "bytes", DECIMAL)  # a length, then so many bytes

_KEY_NUMBER = struct.Struct(">Q").pack  # of a number + 2**63, as `keys.ENCODERS` has it
_KEY_TEXT: Callable[[bytes], bytes] = ENCODERS[KeyType.BYTES]  # type: ignore[assignment]  # of UTF-8 as well

_Field = FieldDescriptor
_RANGES = {
    _Field.TYPE_INT32: (-(2**31), 2**31 - 1),
    _Field.TYPE_SINT32: (-(2**31), 2**31 - 1),
    _Field.TYPE_SFIXED32: (-(2**31), 2**31 - 1),
    _Field.TYPE_ENUM: (-(2**31), 2**31 - 1),
    _Field.TYPE_UINT32: (0, 2**32 - 1),
    _Field.TYPE_FIXED32: (0, 2**32 - 1),
    _Field.TYPE_UINT64: (0, _INT64_MAX),
    _Field.TYPE_FIXED64: (0, _INT64_MAX),
}
_PLAIN_INTEGERS = {
    _Field.TYPE_INT32,
    _Field.TYPE_INT64,
    _Field.TYPE_UINT32,
    _Field.TYPE_UINT64,
    _Field.TYPE_ENUM,
}
"""Types whose small positive values are written as they are."""

_FIXED = {
    _Field.TYPE_FIXED32: struct.Struct("<I"),
    _Field.TYPE_SFIXED32: struct.Struct("<i"),
    _Field.TYPE_FIXED64: struct.Struct("<Q"),
    _Field.TYPE_SFIXED64: struct.Struct("<q"),
}


class UndecodableRecord(ValueError):
    """A changelog value that is no row of the table; the message is the reason, without data."""


@dataclass(frozen=True, slots=True)
class AvroField:
    """A field of a value schema: its plain type (or the logical type of a timestamp or decimal), and its union.

    `branches`: of a union, the index of null (None: it has none) and of the type; None: no union. `column`: the row's
    field that takes it, None where there is none. `scale`: of a decimal, how many digits are after the point.
    """

    type: str
    branches: tuple[int | None, int] | None
    column: FieldDescriptor | None
    scale: int = 0


class _Step(NamedTuple):
    """How to read one field."""

    null_byte: int | None  # the byte before a null, where the union has one
    value_byte: int | None  # the byte before a value; None: no union
    kind: int
    tag: bytes
    raw_bytes: int
    zero: bytes | None  # the raw value that is not written; None: each is
    encode: Callable[[Any], bytes]


def _small_varint(number: int) -> bytes:
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    parts.append(number)
    return bytes(parts)


_SMALL_MAX = 2**14 - 1
_VARINTS = [_small_varint(number) for number in range(2**14)]
_VARINTS_GOING_ON = [bytes((number & 127 | 128, number >> 7 | 128)) for number in range(2**14)]


def varint(number: int) -> bytes:
    """Return a number >= 0 as protobuf writes it."""
    parts = b""
    while number > 16_383:
        parts += _VARINTS_GOING_ON[number & 16_383]
        number >>= 14
    return parts + _VARINTS[number]


class KeyParts:
    """The key columns of the value that was read last, as key bytes: `parts` has each, in the order of the key."""

    def __init__(self, table: Table) -> None:
        self.parts = [b""] * len(table.key)
        self._slots = {column.name: (slot, column.type) for slot, column in enumerate(table.key)}

    def step(self, field: AvroField, step: _Step) -> _Step:
        """Return the step of a field, which keeps its key bytes where it is a column of the key."""
        found = None if field.column is None else self._slots.get(field.column.name)
        if found is None:
            return step
        slot, key_type = found
        parts, tag, write, zero = self.parts, step.tag, step.encode, step.zero

        def encode_number(number: int) -> bytes:
            if is_plain and 0 < number <= _FAST_INTEGER_MAX:  # as `read_row` does
                row = tag + (_VARINTS[number] if number <= _SMALL_MAX else varint(number))
            else:
                row = write(number)  # it refuses what is no value of the column
            parts[slot] = _KEY_NUMBER(number + 2**63)
            return row

        def encode_bytes(value: bytes) -> bytes:
            row = b"" if value == zero else write(value)
            parts[slot] = value if key_type is KeyType.BOOL else _KEY_TEXT(value)
            return row

        is_plain = step.kind == _INTEGER
        is_number = key_type in (KeyType.INT64, KeyType.TIMESTAMP)
        # Without a byte for null: a key has none. A number is always encoded, and a raw value is also where it is zero.
        kind = _NUMBER if is_plain else step.kind
        encode = encode_number if is_number else encode_bytes
        return step._replace(null_byte=None, kind=kind, zero=None, encode=encode)


def row_reader(fields: Sequence[AvroField], *, start: int, key: KeyParts | None = None) -> Callable[[bytes], bytes]:
    """Return a function from values, whose Avro begins at `start`, to row bytes; it raises `UndecodableRecord`.

    It leaves the columns of the key in `key`.
    """
    steps = [_step(field) if key is None else key.step(field, _step(field)) for field in fields]

    def read_row(value: bytes) -> bytes:
        """Runs for each record of a restore: no call that can be spared."""
        at = start
        try:
            row = b""
            for null_byte, value_byte, kind, tag, raw_bytes, zero, encode in steps:
                if value_byte is not None:
                    branch = value[at]
                    at += 1
                    if branch == null_byte:
                        continue
                    if branch != value_byte:
                        raise UndecodableRecord("value has a union branch that its schema lacks")
                if kind <= _CHECKED_RAW:
                    raw = value[at : at + raw_bytes]
                    at += raw_bytes
                    if raw != zero:
                        row += tag + raw if kind == _RAW else encode(raw)
                    continue
                number = value[at]
                at += 1
                if number > 127:
                    for shift in _SHIFTS:
                        byte = value[at]
                        at += 1
                        number += (byte - 1) << shift  # less the bit that said: it goes on
                        if byte < 128:
                            break
                    else:
                        raise UndecodableRecord("value has an integer of more than 64 bits")
                number = (number >> 1) ^ -(number & 1)
                if kind == _INTEGER and 0 < number <= _FAST_INTEGER_MAX:
                    row += tag + (_VARINTS[number] if number <= _SMALL_MAX else varint(number))
                elif kind <= _NUMBER:
                    row += encode(number)
                else:
                    if number < 0:
                        raise UndecodableRecord("value has a negative length")
                    row += encode(value[at : at + number])
                    at += number
        except IndexError:
            raise UndecodableRecord("value ends early") from None
        if at != len(value):
            raise UndecodableRecord("value ends early" if at > len(value) else "value has bytes after the row")
        return row

    return read_row


def _step(field: AvroField) -> _Step:
    null_byte, value_byte = None, None
    if field.branches is not None:
        null, branch = field.branches
        null_byte, value_byte = None if null is None else 2 * null, 2 * branch
    kind, tag, zero, encode = _skipping(field.type) if field.column is None else _writing(field, field.column)
    return _Step(null_byte, value_byte, kind, tag, _RAW_BYTES.get(field.type, 0), zero, encode)


_Way = tuple[int, bytes, bytes | None, Callable[[Any], bytes]]


def _skipping(avro_type: str) -> _Way:
    kind = _CHECKED_RAW if avro_type in _RAW_BYTES else _TEXT if avro_type in _TEXT_TYPES else _NUMBER
    return kind, b"", None, lambda _: b""


def _writing(field: AvroField, column: FieldDescriptor) -> _Way:
    avro_type, keeps_zero = field.type, column.has_presence
    if avro_type == DECIMAL:
        tag = _tag(column, _LENGTH)
        return _TEXT, tag, None, _money_encoder(tag, field.scale)
    if avro_type in ("string", "bytes"):
        tag = _tag(column, _LENGTH)
        return _TEXT, tag, None, _text_encoder(tag, keeps_zero, is_string=column.type == column.TYPE_STRING)
    if avro_type == TIMESTAMP:
        tag = _tag(column, _LENGTH)
        return _NUMBER, tag, None, lambda micros: tag + _timestamp(micros)
    if avro_type == "boolean":
        return _CHECKED_RAW, b"", None if keeps_zero else b"\x00", _bool_encoder(_tag(column, _VARINT))
    if avro_type in _RAW_BYTES:
        return _writing_float(avro_type, column, keeps_zero)
    kind = _INTEGER if column.type in _PLAIN_INTEGERS else _NUMBER
    tag, encode = _integer_encoder(column, keeps_zero)
    return kind, tag, None, encode


def _writing_float(avro_type: str, column: FieldDescriptor, keeps_zero: bool) -> _Way:
    zero = None if keeps_zero else bytes(_RAW_BYTES[avro_type])
    if column.type == column.TYPE_FLOAT:
        return _RAW, _tag(column, _FIXED32), zero, bytes
    tag = _tag(column, _FIXED64)
    if avro_type == "double":
        return _RAW, tag, zero, bytes
    return _CHECKED_RAW, tag, zero, lambda raw: tag + struct.pack("<d", *struct.unpack("<f", raw.ljust(4, b"\x00")))


def _tag(column: FieldDescriptor, wire_type: int) -> bytes:
    return varint(column.number << 3 | wire_type)


def _text_encoder(tag: bytes, keeps_zero: bool, *, is_string: bool) -> Callable[[bytes], bytes]:
    def encode(text: bytes) -> bytes:
        if is_string:
            try:
                text.decode()
            except UnicodeDecodeError:
                raise UndecodableRecord("value has a string that is not UTF-8") from None
        return tag + varint(len(text)) + text if text or keeps_zero else b""

    return encode


def _bool_encoder(tag: bytes) -> Callable[[bytes], bytes]:
    def encode(raw: bytes) -> bytes:
        if raw not in (b"\x00", b"\x01"):
            raise UndecodableRecord("value has a bool that is neither 0 nor 1")
        return tag + raw

    return encode


def _integer_encoder(column: FieldDescriptor, keeps_zero: bool) -> tuple[bytes, Callable[[int], bytes]]:
    """Return the tag of an integer or enum, and the function that checks and writes its values."""
    low, high = _RANGES.get(column.type, (_INT64_MIN, _INT64_MAX))
    fixed = _FIXED.get(column.type)
    wire_type = _VARINT if fixed is None else _FIXED32 if fixed.size == 4 else _FIXED64
    tag = _tag(column, wire_type)
    is_zigzag = column.type in (column.TYPE_SINT32, column.TYPE_SINT64)

    def encode(number: int) -> bytes:
        if number == 0 and not keeps_zero:
            return b""
        if not low <= number <= high:
            raise UndecodableRecord("value has an integer that its column cannot hold")
        if fixed is not None:
            return tag + fixed.pack(number)
        if is_zigzag:
            return tag + varint((number << 1) ^ (number >> 63))
        return tag + varint(number & 0xFFFF_FFFF_FFFF_FFFF)

    return tag, encode


def _timestamp(micros: int) -> bytes:
    """Return a google.protobuf.Timestamp, its length first."""
    seconds, rest_micros = divmod(micros, 1_000_000)
    body = b"\x08" + varint(seconds & 0xFFFF_FFFF_FFFF_FFFF) if seconds else b""
    if rest_micros:
        body += b"\x10" + varint(rest_micros * 1_000)
    return _VARINTS[len(body)] + body


def _money_encoder(tag: bytes, scale: int) -> Callable[[bytes], bytes]:
    """Return the function from the bytes of a decimal to a google.type.Money: tag, length, units, nanos."""
    one, nanos_each = 10**scale, 10 ** (MONEY_SCALE - scale)

    def encode(raw: bytes) -> bytes:
        if not raw:
            raise UndecodableRecord("value has a decimal without a byte")
        number = int.from_bytes(raw, "big", signed=True)
        units, rest = divmod(abs(number), one)
        nanos = rest * nanos_each
        if number < 0:
            units, nanos = -units, -nanos
        if not _INT64_MIN <= units <= _INT64_MAX:
            raise UndecodableRecord("value has a decimal that its column cannot hold")
        body = b"\x10" + varint(units & 0xFFFF_FFFF_FFFF_FFFF) if units else b""
        if nanos:
            body += b"\x18" + varint(nanos & 0xFFFF_FFFF_FFFF_FFFF)
        return tag + _VARINTS[len(body)] + body

    return encode


__all__ = ["RowDecoder", "UndecodableRecord", "UnfitSchema", "UnsupportedColumn", "row_schema"]

NO_KEY = "key is none of the table"
ANOTHER_KEY = "row has other key columns than its key"

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
    least must have it; key columns are in every schema. Fields that the row message lacks are left out. One thread.
    """

    def __init__(self, table: Table, value_schemas: Mapping[int, str]) -> None:
        if not value_schemas:
            raise UnfitSchema(f'table "{table.name}": its manifest has no value schema')
        self._row_readers: dict[bytes, Callable[[bytes], bytes]] = {}
        self._key = table.key
        key_parts = KeyParts(table)
        self._parts = key_parts.parts
        self._key_bytes = 8 * len(table.key) if is_only_numbers(table.key) else 0  # 0: of no fixed length
        found: set[str] = set()
        for schema_id, text in sorted(value_schemas.items()):
            fields = _fit_fields(f'table "{table.name}", value schema {schema_id}', table, text)
            found |= {field.column.name for field in fields if field.column is not None}
            self._row_readers[struct.pack(">bI", 0, schema_id)] = row_reader(
                fields, start=VALUE_PREFIX_BYTES, key=key_parts
            )
        missing = [column.name for column in table.row.fields if column.name not in found]
        if missing:
            raise UnfitSchema(f'table "{table.name}": no value schema has field "{missing[0]}" of the contract')

    def decode(self, value: bytes) -> bytes:
        """Return the bytes of the row message; raise `UndecodableRecord`."""
        read_row = self._row_readers.get(value[:VALUE_PREFIX_BYTES])
        if read_row is None:
            raise UndecodableRecord(_unknown_prefix(value))
        return read_row(value)

    def decode_row(self, key: bytes, value: bytes) -> bytes:
        """Return the bytes of the row message; raise `UndecodableRecord` also where `key` is not that of the row.

        To compare the key with that of the row's columns is to check it, too: theirs is always a key of the table.
        """
        read_row = self._row_readers.get(value[:VALUE_PREFIX_BYTES])
        if read_row is None:
            raise UndecodableRecord(_unknown_prefix(value))
        row = read_row(value)
        parts = self._parts
        if key != (parts[0] if len(parts) == 1 else b"".join(parts)):
            raise UndecodableRecord(ANOTHER_KEY if self.is_key(key) else NO_KEY)
        return row

    def is_key(self, key: bytes) -> bool:
        """Return whether bytes are a key of the table."""
        if self._key_bytes:  # then any bytes are numbers
            return len(key) == self._key_bytes
        try:
            decode_key(self._key, key)
        except InvalidKey:
            return False
        return True


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
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
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
