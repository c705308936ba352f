"""Rows: the way from a changelog value to the row message's bytes.

A value is Avro in the Confluent wire format: 00, schema id (4 bytes, big endian), body. It becomes the bytes of the
contract's row message once, when it is applied; reads splice these bytes into answers.

There is nothing between Avro and Protobuf: the columns of a value become wire bytes one after the other. Both formats
write varints and little-endian floats, so most of a row is copied. That is twice as fast as reading Avro into a
dictionary and writing a message from it (measured: a restore is mostly this), and refuses what does not fit.

What is done with each field is a step, made of the schema and the contract. `row_code` compiles the steps of a row into
one function. A message in a row has steps of its own. What a list has is read by its one step, repeated.

Decision: docs/decisions/0006-avro-to-protobuf-bytes.md
Decision: docs/decisions/0095-rows-as-they-are.md
Decision: docs/decisions/0124-row-readers-are-compiled.md
"""

import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Never

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.columns import (
    DURATION_S_MAX,
    FIELD_MASK,
    INTEGER_BOUNDS,
    TIMESTAMP_S_MAX,
    TIMESTAMP_S_MIN,
    WRAPPERS,
    oneof_of,
)
from tablegate.gateway.contract.keys import ENCODERS, InvalidKey, KeyType, decode_key, is_only_numbers
from tablegate.gateway.contract.row_code import (
    VARINTS,
    Kind,
    Step,
    UndecodableRecord,
    check_text,
    compiled_items,
    compiled_part,
    compiled_row,
    ends_early,
    read_long,
    varint,
)
from tablegate.gateway.contract.value_schemas import (
    ARRAY,
    DECIMAL,
    DURATION_MICROS,
    JSON,
    MONEY_SCALE,
    RECORD,
    TIMESTAMP_MICROS,
    AvroField,
    UnfitSchema,
    columns_of,
    fit_fields,
    fitted_columns,
    row_schema,
)

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5  # wire types
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_RAW_BYTES = {"float": 4, "double": 8, "boolean": 1}
_TEXT_TYPES = ("string", "bytes", DECIMAL, JSON)  # a length, then so many bytes
_ITEMS_AT_ONCE = 64  # of a list: what is read is joined, and to join it is to copy it
_JSON_DEPTH_MAX = 75  # messages in one another that JSON becomes: protobuf's parsers end at 100, with row and answer

_KEY_TEXT: Callable[[bytes], bytes] = ENCODERS[KeyType.BYTES]  # type: ignore[assignment]  # of UTF-8 as well

_Field = FieldDescriptor
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


class KeyParts:
    """The key columns of the value that was read last, as key bytes: `parts` has each, in the order of the key."""

    def __init__(self, table: Table) -> None:
        self.parts = [b""] * len(table.key)
        self._slots = {column.name: (slot, column.type) for slot, column in enumerate(table.key)}

    def step(self, field: AvroField, step: Step) -> Step:
        """Return the step of a field, which keeps its key bytes where it is a column of the key."""
        found = None if field.column is None else self._slots.get(field.column.name)
        if found is None:
            return step
        slot, key_type = found
        step = step._replace(null_byte=None)  # a key has no null
        if key_type in (KeyType.INT64, KeyType.TIMESTAMP):
            return step._replace(slot=slot)
        parts, write = self.parts, _calling(step).encode
        assert write is not None

        def encode(value: bytes) -> bytes:
            row: bytes = write(value)
            parts[slot] = value if key_type is KeyType.BOOL else _KEY_TEXT(value)
            return row

        kind = Kind.CHECKED_RAW if key_type is KeyType.BOOL else Kind.TEXT
        return step._replace(kind=kind, zero=None, encode=encode)


def row_reader(fields: Sequence[AvroField], *, start: int, key: KeyParts | None = None) -> Callable[[bytes], bytes]:
    """Return a function from values, whose Avro begins at `start`, to row bytes; it raises `UndecodableRecord`.

    It leaves the columns of the key in `key`.
    """
    return compiled_row(_steps(fields, key), start=start, parts=[] if key is None else key.parts)


def _steps(fields: Sequence[AvroField], key: KeyParts | None = None) -> Sequence[Step]:
    """Return the steps of a record's fields."""
    steps = [_step(field) if key is None else key.step(field, _step(field)) for field in fields]
    oneofs = [None if field.column is None else oneof_of(field.column) for field in fields]
    if not any(oneofs):
        return steps
    chosen: set[str] = set()  # the oneofs of which a field was set, of the record that is being read
    steps = [
        step if oneof is None else _choosing(step, oneof, chosen) for step, oneof in zip(steps, oneofs, strict=True)
    ]

    def begin(_: bytes, at: int) -> tuple[bytes, int]:
        chosen.clear()
        return b"", at

    return [Step(Kind.PART, encode=begin), *steps]


def _choosing(step: Step, oneof: str, chosen: set[str]) -> Step:
    """Return the step of a field in a oneof, of which one field is set at most: protobuf would keep the last."""
    called = _calling(step)
    write = called.encode
    assert write is not None

    def encode(*read: Any) -> Any:
        if oneof in chosen:
            raise UndecodableRecord("value has two fields of one oneof")
        chosen.add(oneof)
        return write(*read)

    return called._replace(encode=encode)


def _calling(step: Step) -> Step:
    """Return a step that always calls `encode`, which returns all bytes of the field."""
    kind, tag, zero, encode = step.kind, step.tag, step.zero, step.encode
    if kind is Kind.MESSAGE:
        read = compiled_part([step._replace(null_byte=None, value_byte=None)])
        return step._replace(kind=Kind.PART, encode=read)
    if kind in (Kind.INTEGER, Kind.TIME):
        return step._replace(kind=Kind.NUMBER)
    if kind in (Kind.STRING, Kind.BYTES):
        return step._replace(kind=Kind.TEXT, zero=None, encode=_text_encoder(step))
    if kind in (Kind.RAW, Kind.CHECKED_RAW):

        def encode_raw(raw: bytes) -> bytes:
            if raw == zero:
                return b""
            written: bytes = tag + raw if encode is None else encode(raw)
            return written

        return step._replace(kind=Kind.CHECKED_RAW, zero=None, encode=encode_raw)
    return step


def _step(field: AvroField, *, is_item: bool = False, is_packed: bool = False) -> Step:
    """Return how to read a field. `is_item`: it is one of several, and has a tag of its own where it is not packed."""
    null_byte, value_byte = None, None
    if field.branches is not None:
        null, branch = field.branches
        null_byte, value_byte = None if null is None else 2 * null, 2 * branch
    if field.type == RECORD:
        tag = b"" if field.column is None else _tag(field.column, _LENGTH)
        step = Step(Kind.MESSAGE, tag, steps=_steps(field.parts))
    elif field.type == ARRAY:
        step = Step(Kind.PART, encode=_list_encoder(field))
    elif field.column is None:
        step = _skipping(field.type)
    else:
        target = _Target(field.column, keeps_zero=is_item or field.column.has_presence, is_packed=is_packed)
        step = _writing(field, target)
    return step._replace(null_byte=null_byte, value_byte=value_byte)


class _Target(NamedTuple):
    """The field that a value is written to. `keeps_zero`: a zero is written, too. `is_packed`: without a tag."""

    column: FieldDescriptor
    keeps_zero: bool
    is_packed: bool = False

    def tag(self, wire_type: int) -> bytes:
        """Return what stands before each value."""
        return b"" if self.is_packed else _tag(self.column, wire_type)


def _list_encoder(field: AvroField) -> Callable[[bytes, int], tuple[bytes, int]]:
    """Return the function that reads a list: blocks of items, each after its length, the last one of none."""
    column = field.column
    is_packed = column is not None and column.message_type is None and column.type not in _UNPACKED
    read_items = compiled_items(_step(field.parts[0], is_item=True, is_packed=is_packed))
    tag = _tag(column, _LENGTH) if column is not None and is_packed else b""

    def encode(value: bytes, at: int) -> tuple[bytes, int]:
        parts: list[bytes] = []
        while True:
            count, at = read_long(value, at)
            if count < 0:  # then the block's bytes follow, for those who skip it
                count = -count
                _, at = read_long(value, at)
            if count == 0:
                break
            if count > len(value) - at:  # each has one byte at least
                raise ends_early()
            for begun in range(0, count, _ITEMS_AT_ONCE):
                part, at = read_items(value, at, min(_ITEMS_AT_ONCE, count - begun))
                parts.append(part)
        items = b"".join(parts)
        return tag + varint(len(items)) + items if tag and items else items, at

    return encode


_UNPACKED = (_Field.TYPE_STRING, _Field.TYPE_BYTES)


def _skipping(avro_type: str) -> Step:
    kind = Kind.CHECKED_RAW if avro_type in _RAW_BYTES else Kind.TEXT if avro_type in _TEXT_TYPES else Kind.NUMBER
    return Step(kind, raw_bytes=_RAW_BYTES.get(avro_type, 0), encode=lambda _: b"")


def _writing(field: AvroField, target: _Target) -> Step:
    avro_type, column, zero = field.type, target.column, b"" if not target.keeps_zero else None
    if column.message_type is not None and column.message_type.full_name in WRAPPERS:
        return _wrapped(field, target)
    if avro_type == DECIMAL:
        return Step(Kind.TEXT, encode=_money_encoder(target.tag(_LENGTH), field.scale))
    if avro_type == JSON:
        assert column.message_type is not None
        return Step(Kind.TEXT, encode=_json_encoder(target.tag(_LENGTH), GetMessageClass(column.message_type)))
    if column.full_name == f"{FIELD_MASK}.paths":
        return Step(Kind.TEXT, encode=_path_encoder(target.tag(_LENGTH)))
    if avro_type in ("string", "bytes"):
        kind = Kind.STRING if column.type == column.TYPE_STRING else Kind.BYTES
        return Step(kind, target.tag(_LENGTH), zero=zero)
    if avro_type in (TIMESTAMP_MICROS, DURATION_MICROS):
        tag, is_time = target.tag(_LENGTH), avro_type == TIMESTAMP_MICROS
        made = _timestamp if is_time else _duration
        return Step(Kind.TIME if is_time else Kind.NUMBER, tag, encode=lambda micros: tag + made(micros))
    if avro_type == "boolean":
        zero = None if target.keeps_zero else b"\x00"
        return Step(Kind.CHECKED_RAW, raw_bytes=1, zero=zero, encode=_bool_encoder(target.tag(_VARINT)))
    if avro_type in _RAW_BYTES:
        return _float_step(avro_type, target)
    kind = Kind.INTEGER if column.type in _PLAIN_INTEGERS else Kind.NUMBER
    tag, encode = _integer_encoder(target)
    return Step(kind, tag, encode=encode)


def _wrapped(field: AvroField, target: _Target) -> Step:
    """Return the step of a message that holds one scalar: google.protobuf.Int64Value and so on."""
    assert target.column.message_type is not None
    value = target.column.message_type.fields_by_name["value"]
    inner = _calling(_writing(field, _Target(value, keeps_zero=False)))
    tag = target.tag(_LENGTH)

    write = inner.encode
    assert write is not None

    def encode(read: Any) -> bytes:
        body: bytes = write(read)
        return tag + varint(len(body)) + body

    return inner._replace(encode=encode)


def _float_step(avro_type: str, target: _Target) -> Step:
    raw_bytes = _RAW_BYTES[avro_type]
    zero = None if target.keeps_zero else bytes(raw_bytes)
    if target.column.type == _Field.TYPE_FLOAT:
        return Step(Kind.RAW, target.tag(_FIXED32), raw_bytes, zero)
    tag = target.tag(_FIXED64)
    if avro_type == "double":
        return Step(Kind.RAW, tag, raw_bytes, zero)

    def encode(raw: bytes) -> bytes:
        return tag + struct.pack("<d", *struct.unpack("<f", raw.ljust(4, b"\x00")))

    return Step(Kind.CHECKED_RAW, raw_bytes=raw_bytes, zero=zero, encode=encode)


def _tag(column: FieldDescriptor, wire_type: int) -> bytes:
    return varint(column.number << 3 | wire_type)


def _text_encoder(step: Step) -> Callable[[bytes], bytes]:
    """Return what writes a string or bytes: tag, length and text, but for one that is not written."""

    def encode(text: bytes) -> bytes:
        if step.kind is Kind.STRING:
            check_text(text)
        return b"" if text == step.zero else step.tag + varint(len(text)) + text

    return encode


def _path_encoder(tag: bytes) -> Callable[[bytes], bytes]:
    def encode(path: bytes) -> bytes:
        check_text(path)
        check_path(path.decode())
        return tag + varint(len(path)) + path

    return encode


def check_path(path: str) -> None:
    """Refuse a path of a FieldMask that its text in JSON does not give back: one with capitals, for one."""
    mask = FieldMask(paths=[path])
    try:
        mask.FromJsonString(mask.ToJsonString())
    except ValueError:
        mask.Clear()
    if mask.paths != [path]:
        raise UndecodableRecord("value has a FieldMask with a path that JSON cannot say")


def _bool_encoder(tag: bytes) -> Callable[[bytes], bytes]:
    def encode(raw: bytes) -> bytes:
        if raw not in (b"\x00", b"\x01"):
            raise UndecodableRecord("value has a bool that is neither 0 nor 1")
        return tag + raw

    return encode


def _integer_encoder(target: _Target) -> tuple[bytes, Callable[[int], bytes]]:
    """Return the tag of an integer or enum, and the function that checks and writes its values."""
    column, keeps_zero = target.column, target.keeps_zero
    low, high = INTEGER_BOUNDS.get(column.type, (_INT64_MIN, _INT64_MAX))
    fixed = _FIXED.get(column.type)
    wire_type = _VARINT if fixed is None else _FIXED32 if fixed.size == 4 else _FIXED64
    tag = target.tag(wire_type)
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
    if not TIMESTAMP_S_MIN <= seconds <= TIMESTAMP_S_MAX:
        raise UndecodableRecord("value has a time that is not of the years 1 to 9999")
    body = b"\x08" + varint(seconds & 0xFFFF_FFFF_FFFF_FFFF) if seconds else b""
    if rest_micros:
        body += b"\x10" + varint(rest_micros * 1_000)
    return VARINTS[len(body)] + body


def _duration(micros: int) -> bytes:
    """Return a google.protobuf.Duration, its length first; both of its parts have one sign."""
    seconds, rest_micros = divmod(abs(micros), 1_000_000)
    if seconds > DURATION_S_MAX:
        raise UndecodableRecord("value has a duration of more than 10,000 years")
    sign = -1 if micros < 0 else 1
    body = b"\x08" + varint(sign * seconds & 0xFFFF_FFFF_FFFF_FFFF) if seconds else b""
    if rest_micros:
        body += b"\x10" + varint(sign * rest_micros * 1_000 & 0xFFFF_FFFF_FFFF_FFFF)
    return VARINTS[len(body)] + body


def _json_encoder(tag: bytes, message_class: type[Message]) -> Callable[[bytes], bytes]:
    """Return the function from JSON text to a google.protobuf.Struct, Value or ListValue: tag, length, body."""

    def encode(text: bytes) -> bytes:
        message: Any = message_class()
        try:
            put_json(message, json.loads(text.decode(), parse_constant=_no_constant))
        except (ValueError, RecursionError):
            raise UndecodableRecord("value has text that is not the JSON of its column") from None
        body: bytes = message.SerializeToString(deterministic=True)
        return tag + varint(len(body)) + body

    return encode


def put_json(message: Message, value: Any) -> None:
    """Make a google.protobuf.Struct, Value or ListValue of what JSON says; raise `ValueError`.

    What no message can give back as JSON is refused: then no answer with the row could be made.
    """
    try:
        if _json_depth(value) > _JSON_DEPTH_MAX:
            raise ValueError("too deep")
        json_format.ParseDict(value, message)
    except (RecursionError, ArithmeticError, TypeError, AttributeError, json_format.Error):
        raise ValueError("no JSON of this message") from None


def _no_constant(_: str) -> Never:
    raise ValueError("no number")


def _json_depth(value: Any) -> int:
    """Return how many messages are in one another; raise `ValueError` at a number that is too large."""
    if isinstance(value, dict):  # Struct, an entry of its map, Value
        return 3 + max(map(_json_depth, value.values()), default=0)
    if isinstance(value, list):  # ListValue, Value
        return 2 + max(map(_json_depth, value), default=0)
    if isinstance(value, int | float) and not math.isfinite(value):
        raise ValueError("no number")
    return 0


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
        return tag + VARINTS[len(body)] + body

    return encode


__all__ = ["RowDecoder", "UndecodableRecord", "UnfitSchema", "row_reader", "row_schema"]

NO_KEY = "key is none of the table"
ANOTHER_KEY = "row has other key columns than its key"

VALUE_PREFIX_BYTES = 5  # 00 and the schema id


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
            fields = fit_fields(f'table "{table.name}", value schema {schema_id}', table, text)
            found |= {column.full_name for column in fitted_columns(fields)}
            self._row_readers[struct.pack(">bI", 0, schema_id)] = row_reader(
                fields, start=VALUE_PREFIX_BYTES, key=key_parts
            )
        prefix = f"{table.row.full_name}."
        missing = [column.full_name for column in columns_of(table.row) if column.full_name not in found]
        if missing:
            name = missing[0].removeprefix(prefix)
            raise UnfitSchema(f'table "{table.name}": no value schema has field "{name}" of the contract')

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
