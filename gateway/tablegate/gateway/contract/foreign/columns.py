"""Values of JSON and Avro, as Python has them, into the columns of a row message.

An object becomes a message, an array what is repeated, an object or an array of entries a map.

What a column cannot hold is refused, not rounded. Times are RFC 3339 or numbers, which are milliseconds unless the
record's own schema says otherwise; decimals are text, numbers, or the bytes of Kafka Connect with the scale of its
schema.
"""

import base64
import binascii
import json
import math
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from google.protobuf import json_format
from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import EncodeError, Message

from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.columns import (
    ANY,
    ANY_JSON,
    DURATION,
    DURATION_S_MAX,
    FIELD_MASK,
    JSON_MESSAGES,
    TIMESTAMP_S_MAX,
    TIMESTAMP_S_MIN,
    WRAPPERS,
    is_map,
    is_money,
    is_timestamp,
    oneof_of,
)
from tablegate.gateway.contract.foreign.sayable import check_sayable
from tablegate.gateway.contract.keys import KeyColumn, KeyType, KeyValue
from tablegate.gateway.contract.rows import UndecodableRecord, check_path, put_json
from tablegate.gateway.contract.value_schemas import columns_of

_NUMERAL = re.compile(r"-?[0-9]{1,20}")
_DECIMAL_CHARACTERS_MAX = 64  # more digits than any amount has
_AMOUNT = re.compile(rf"[-+]?[0-9.]{{1,{_DECIMAL_CHARACTERS_MAX}}}([eE][-+]?[0-9]{{1,3}})?")
_EXACT = Context(prec=400, traps=[Inexact, InvalidOperation, Overflow])  # an amount is not rounded on its way
_NANOS = 10**9
_UNITS_MAX = 2**63
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROS_MIN, _MICROS_MAX = TIMESTAMP_S_MIN * 1_000_000, TIMESTAMP_S_MAX * 1_000_000 + 999_999
_DAY_MICROS = 86_400_000_000
_MICROS_OF = {
    "": 1_000,
    "io.debezium.time.Timestamp": 1_000,
    "org.apache.kafka.connect.data.Timestamp": 1_000,
    "io.debezium.time.MicroTimestamp": 1,
    "io.debezium.time.Date": _DAY_MICROS,
    "org.apache.kafka.connect.data.Date": _DAY_MICROS,
}
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
REQUIRED_MISSING = "value lacks a field that its message requires"
_NANO_TIMESTAMP = "io.debezium.time.NanoTimestamp"


class Hint(NamedTuple):
    """What a schema of Kafka Connect says of a field beside its type: its name, and the scale of a decimal.

    `inside`: the same of the fields in it. Of a list or a map, all is said of one value in it.
    """

    name: str = ""
    scale: int = 0
    inside: Mapping[str, "Hint"] = MappingProxyType({})


NO_HINT = Hint()
Hints = Mapping[str, Hint]
"""By the name of a field; those of which nothing is said are not there."""


class RowMaker:
    """Makes rows of objects: a field goes to the column of its name. Fields without a column are left out.

    Key columns are not taken from objects. One thread.
    """

    def __init__(self, table: Table) -> None:
        self._row_class: type[Message] = table.row_class
        self.key_names = tuple(column.name for column in table.key)
        columns = [column for column in table.row.fields if column.name not in self.key_names]
        self._columns = [(column.name, column.json_name, oneof_of(column), _setter(column)) for column in columns]
        self._key = [(column.name, column.type is KeyType.TIMESTAMP) for column in table.key]
        [(name, is_time), *rest] = self._key
        self._only = None if is_time or rest else attrgetter(name)
        every = [*columns_of(table.row)]
        self.has_money = any(is_money(column) for column in every)
        self.has_hints = any(column.message_type or column.type == column.TYPE_STRING for column in columns)

    def make(self, found: Any, key: Sequence[KeyValue], hints: Hints) -> bytes:
        """Return the bytes of the row of an object and a key; raise `UndecodableRecord`."""
        if not isinstance(found, dict):
            raise UndecodableRecord("value is no object")
        row = self._row_class()
        try:
            put_fields(row, self._columns, found, hints)
        except _Misfit as error:
            raise UndecodableRecord(f'value has a "{error}" that its column cannot hold') from None
        self.put_key(row, key)
        try:
            return row.SerializeToString()
        except EncodeError:
            raise UndecodableRecord(REQUIRED_MISSING) from None

    def key_bytes(self, key: Sequence[KeyValue]) -> bytes:
        """Return the bytes of a row that has the columns of a key alone; raise `UndecodableRecord`."""
        row = self._row_class()
        self.put_key(row, key)
        return row.SerializeToString()

    def put_key(self, row: Any, key: Sequence[KeyValue]) -> None:
        """Set the columns of a key; raise `UndecodableRecord`."""
        for (name, is_time), value in zip(self._key, key, strict=True):
            try:
                if is_time:
                    getattr(row, name).FromMicroseconds(_checked_micros(value))
                else:
                    setattr(row, name, value)
            except (ValueError, TypeError):
                raise UndecodableRecord(f'key has a "{name}" that its column cannot hold') from None

    def has_key(self, row: Any, key: Sequence[KeyValue]) -> bool:
        """Return whether a row has the columns of a key already."""
        if self._only is not None:
            return bool(self._only(row) == key[0])
        try:
            for (name, is_time), value in zip(self._key, key):  # noqa: B905  it costs as much as a column
                found = getattr(row, name)
                if (found.ToMicroseconds() if is_time else found) != value:
                    return False
        except ValueError:  # a time that is none
            return False
        return True


def key_value_of(column: KeyColumn, field: FieldDescriptor) -> Callable[[Any, Hint], KeyValue]:
    """Return the function from a value to that of a key column; it raises `UndecodableRecord`."""
    convert = _key_converter(column, field)
    reason = f'key has a "{column.name}" that its column cannot hold'

    def key_value(value: Any, hint: Hint) -> KeyValue:
        try:
            return convert(value, hint)
        except (ValueError, TypeError, OverflowError, InvalidOperation, AttributeError):
            raise UndecodableRecord(reason) from None

    return key_value


def _key_converter(column: KeyColumn, field: FieldDescriptor) -> Callable[[Any, Hint], KeyValue]:
    match column.type:
        case KeyType.TIMESTAMP:
            return _micros
        case KeyType.BOOL:
            return lambda value, _: _bool(value)
        case KeyType.STRING:
            return lambda value, _: _text(value)
        case KeyType.BYTES:
            return lambda value, _: _bytes(value)
        case KeyType.INT64:
            enum = field.enum_type
            return lambda value, _: _integer(value) if enum is None else _enum(value, enum)


def connect_hints(schema: Any) -> Hints:
    """Return what a struct's schema of Kafka Connect, in JSON, says of its fields."""
    hints: dict[str, Hint] = {}
    for field in schema.get("fields") or () if isinstance(schema, dict) else ():
        if isinstance(field, dict) and isinstance(field.get("field"), str):
            hint = _connect_hint(field)
            if hint != NO_HINT:
                hints[field["field"]] = hint
    return hints


def _connect_hint(schema: Any) -> Hint:
    while isinstance(schema, dict) and schema.get("type") in ("array", "map"):
        schema = schema.get("items" if schema["type"] == "array" else "values")
    if not isinstance(schema, dict):
        return NO_HINT
    name = schema.get("name")
    return Hint(name if isinstance(name, str) else "", _scale(schema.get("parameters")), connect_hints(schema))


def avro_hints(schema: Any) -> Hints:
    """Return what a parsed Avro schema says of a record's fields, in the properties that Kafka Connect writes."""
    return _avro_hint(schema, {}).inside


def _avro_hint(schema: Any, named: dict[str, Hint]) -> Hint:
    """`named`: of the types that stand before this one. A record may be in itself."""
    if isinstance(schema, list):
        return next((hint for one in schema if (hint := _avro_hint(one, named)) != NO_HINT), NO_HINT)
    if not isinstance(schema, dict):
        return named.get(schema, NO_HINT) if isinstance(schema, str) else NO_HINT
    kind = schema.get("type")
    if isinstance(kind, dict | list):
        return _avro_hint(kind, named)
    if kind in ("array", "map"):
        return _avro_hint(schema.get("items" if kind == "array" else "values"), named)
    inside: dict[str, Hint] = {}
    name = schema.get("connect.name")
    if schema.get("logicalType") in ("timestamp-nanos", "local-timestamp-nanos"):
        name = _NANO_TIMESTAMP
    hint = Hint(name if isinstance(name, str) else "", _scale(schema.get("connect.parameters")), inside)
    named[str(schema.get("name"))] = hint
    for field in schema.get("fields") or ():
        of = _avro_hint(field["type"], named)
        if of != NO_HINT:
            inside[field["name"]] = of
    return hint


def _scale(parameters: Any) -> int:
    scale = parameters.get("scale") if isinstance(parameters, dict) else None
    return int(scale) if isinstance(scale, str | int) and _NUMERAL.fullmatch(str(scale)) else 0


_Put = Callable[[Any, Any, Hint], None]
"""Sets a field of a message to a value that is not null; raises what `RowMaker.make` expects."""


def _setter(column: FieldDescriptor) -> _Put:
    """Return the function that sets a column of a row message, or a field of a message in it."""
    name = column.name
    if is_map(column):
        return _map_setter(column)
    if column.is_repeated:
        return _list_setter(column)
    if column.message_type is None:
        return _scalar_setter(column)
    put = _message_setter(column)

    def put_message(row: Any, value: Any, hint: Hint) -> None:
        inside = getattr(row, name)
        inside.SetInParent()
        put(inside, value, hint)

    return put_message


def _scalar_setter(column: FieldDescriptor) -> _Put:
    name, convert, is_text = column.name, _converter(column), column.type == column.TYPE_STRING

    def put(row: Any, value: Any, hint: Hint) -> None:
        if is_text and hint.name == _DECIMAL:
            raise TypeError  # it is base64 of the number's bytes, which nobody wants for a text
        setattr(row, name, convert(value))

    return put


def _list_setter(column: FieldDescriptor) -> _Put:
    name = column.name
    if column.message_type is None:
        convert = _converter(column)
        return lambda row, value, _: getattr(row, name).extend([convert(item) for item in _list(value)])
    put = _message_setter(column)

    def put_all(row: Any, value: Any, hint: Hint) -> None:
        several = getattr(row, name)
        for item in _list(value):
            put(several.add(), item, hint)

    return put_all


def _map_setter(column: FieldDescriptor) -> _Put:
    name = column.name
    assert column.message_type is not None
    key, of = column.message_type.fields
    convert_key = _converter(key)
    is_bool, is_text = key.type == key.TYPE_BOOL, key.type == key.TYPE_STRING
    has_null = of.message_type is not None and of.message_type.full_name == ANY_JSON
    convert, put = (_converter(of), None) if of.message_type is None else (None, _message_setter(of))

    def put_entries(row: Any, value: Any, hint: Hint) -> None:
        entries = getattr(row, name)
        for one, inside in _entries(value):
            at = {"true": True, "false": False}.get(one, one) if is_bool else one
            at = convert_key(str(at) if is_text and type(at) is int else at)
            if inside is None and not has_null:
                raise TypeError
            if convert is not None:
                entries[at] = convert(inside)
            elif put is not None:
                entries[at].Clear()
                put(entries[at], inside, hint)

    return put_entries


def _entries(value: Any) -> Iterable[tuple[Any, Any]]:
    """Return keys and values of an object, or of an array of entries, as Kafka Connect and Avro have them."""
    if isinstance(value, dict):
        return value.items()
    return [(one["key"], one["value"]) if isinstance(one, dict) else _pair(one) for one in _list(value)]


def _pair(value: Any) -> tuple[Any, Any]:
    key, one = _list(value)
    return key, one


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError
    return value


def _message_setter(field: FieldDescriptor) -> _Put:
    """Return the function that fills a message, whatever field it is in."""
    message = field.message_type
    assert message is not None
    if is_timestamp(field):
        return lambda time, value, hint: time.FromMicroseconds(_micros(value, hint))
    if is_money(field):
        return _put_money
    if message.full_name == DURATION:
        return _put_duration
    if message.full_name in JSON_MESSAGES:
        is_value = message.full_name == ANY_JSON
        return lambda inside, value, hint: put_json(inside, _json_of(value, hint, is_value=is_value))
    if message.full_name == ANY:
        types = message.file.pool
        return lambda packed, value, _: _put_any(packed, value, types)
    if message.full_name == FIELD_MASK:
        return _put_mask
    if message.full_name in WRAPPERS:
        convert = _converter(message.fields_by_name["value"])
        return lambda wrapper, value, _: setattr(wrapper, "value", convert(value))
    fields = [(inner.name, inner.json_name, oneof_of(inner), _setter(inner)) for inner in message.fields]

    def put(inside: Any, value: Any, hint: Hint) -> None:
        if not isinstance(value, dict):
            raise TypeError
        put_fields(inside, fields, value, hint.inside)

    return put


def put_fields(
    message: Any, fields: Iterable[tuple[str, str, str | None, _Put]], found: Mapping[str, Any], hints: Hints
) -> None:
    """Set fields, given by name, name in JSON, oneof and setter, to what an object has of them.

    Raise `_Misfit` with the name of the field that cannot hold its value.
    """
    for name, json_name, oneof, put in fields:
        value = found.get(name)
        if value is None:
            value = found.get(json_name)
            if value is None:
                continue
        try:
            if oneof is not None and message.WhichOneof(oneof) is not None:
                raise ValueError  # protobuf would keep the last
            put(message, value, hints.get(name, NO_HINT))
        except _Misfit as error:
            raise _Misfit(f"{name}.{error}") from None
        except (ValueError, TypeError, ArithmeticError, AttributeError, KeyError, RecursionError):
            raise _Misfit(name) from None


class _Misfit(Exception):
    """A value that its field cannot hold; the message is the path of the field."""


def _put_duration(duration: Any, value: Any, hint: Hint) -> None:
    """Text is as protobuf has it, "1.5s"; a number has a unit by its hint alone."""
    if isinstance(value, str):
        duration.FromJsonString(value)
    elif isinstance(value, timedelta):
        duration.FromTimedelta(value)
    elif hint.name == "io.debezium.time.MicroDuration":
        duration.FromMicroseconds(_integer(value))
    else:
        raise TypeError
    if abs(duration.seconds) > DURATION_S_MAX:
        raise ValueError


def _put_any(packed: Any, value: Any, types: DescriptorPool) -> None:
    """An object is as JSON has an Any, whose type the contract has to know, or has the fields of one."""
    if not isinstance(value, dict):
        raise TypeError
    try:
        if "@type" in value:
            json_format.ParseDict(_without_decimals(value), packed, descriptor_pool=types)
            return
    except json_format.Error:
        raise ValueError from None
    url = value.get("type_url", value.get("typeUrl"))
    if url is None and value:
        raise ValueError  # it is no Any
    packed.type_url, packed.value = _text(url or ""), _bytes(value.get("value") or b"")
    check_sayable(packed)


def _put_mask(mask: Any, value: Any, _: Hint) -> None:
    """Text is as protobuf has it, "customer,address.city"; an object has paths."""
    if isinstance(value, str):
        mask.FromJsonString(value)
    else:
        mask.paths.extend(map(_text, _list(value["paths"])))
    for path in mask.paths:
        check_path(path)


def _json_of(value: Any, hint: Hint, *, is_value: bool) -> Any:
    """Return what a Struct, ListValue or Value is to say; text is JSON, but in a Value only where the hint says so."""
    if isinstance(value, str) and (not is_value or hint.name == "io.debezium.data.Json"):
        value = json.loads(value)
    return _without_decimals(value)


def _without_decimals(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_decimals(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_without_decimals(one) for one in value]
    return float(value) if isinstance(value, Decimal) else value


def _converter(column: FieldDescriptor) -> Callable[[Any], Any]:
    enum = column.enum_type
    if enum is not None:
        return lambda value: _enum(value, enum)
    match column.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            return _text if column.type == FieldDescriptor.TYPE_STRING else _bytes
        case FieldDescriptor.CPPTYPE_BOOL:
            return _bool
        case FieldDescriptor.CPPTYPE_FLOAT:
            return _small_number
        case FieldDescriptor.CPPTYPE_DOUBLE:
            return _number
        case _:
            return _integer


def _integer(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    if isinstance(value, int):
        return value
    if isinstance(value, str) and _NUMERAL.fullmatch(value):
        return int(value)
    if isinstance(value, float | Decimal) and -_UNITS_MAX <= value < _UNITS_MAX and value == int(value):
        return int(value)
    raise TypeError


def _enum(value: Any, enum: EnumDescriptor) -> int:
    return enum.values_by_name[value].number if value in enum.values_by_name else _integer(value)


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise TypeError
    number = float(value)
    if isinstance(value, Decimal) and math.isinf(number) and value.is_finite():
        raise OverflowError
    return number


def _small_number(value: Any) -> float:
    number = _number(value)
    if math.isfinite(number):
        struct.pack("<f", number)  # raises where it is too large: protobuf would make it infinite
    return number


def _text(value: Any) -> str:
    if isinstance(value, UUID | date):
        return str(value)
    if not isinstance(value, str):
        raise TypeError
    value.encode()  # half of a surrogate pair is no text
    return value


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error:
        raise ValueError from None


def _checked_micros(micros: Any) -> int:
    if not _MICROS_MIN <= micros <= _MICROS_MAX:
        raise ValueError
    return int(micros)


def _micros(value: Any, hint: Hint) -> int:
    """Return microseconds since 1970."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value.upper())  # RFC 3339 has t and z, too
    if isinstance(value, datetime):
        since = (value if value.tzinfo is not None else value.replace(tzinfo=UTC)) - _EPOCH
        return _checked_micros((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds)
    if isinstance(value, date):
        return _checked_micros((value - _EPOCH.date()).days * _DAY_MICROS)
    number = _integer(value)
    return _checked_micros(
        number // 1_000 if hint.name == _NANO_TIMESTAMP else number * _MICROS_OF.get(hint.name, 1_000)
    )


def _put_money(money: Any, value: Any, hint: Hint) -> None:
    number = int(_EXACT.multiply(_amount(value, hint), _NANOS).to_integral_exact(context=_EXACT))
    units, rest = divmod(abs(number), _NANOS)
    if units >= _UNITS_MAX:
        raise ValueError
    sign = -1 if number < 0 else 1
    money.units, money.nanos = sign * units, sign * rest


def _amount(value: Any, hint: Hint) -> Decimal:
    if hint.name == _DECIMAL and isinstance(value, str | bytes):
        return _scaled(value, hint.scale)
    if isinstance(value, dict):  # io.debezium.data.VariableScaleDecimal
        return _scaled(value["value"], _integer(value["scale"]))
    if isinstance(value, str) and not _AMOUNT.fullmatch(value):
        raise ValueError
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        raise TypeError
    found = Decimal(repr(value) if isinstance(value, float) else value)
    if not found.is_finite() or found.adjusted() > _DECIMAL_CHARACTERS_MAX:
        raise ValueError
    return found


def _scaled(value: str | bytes, scale: int) -> Decimal:
    raw = _bytes(value)
    if len(raw) > _DECIMAL_CHARACTERS_MAX or abs(scale) > _DECIMAL_CHARACTERS_MAX:
        raise ValueError
    return _EXACT.scaleb(Decimal(int.from_bytes(raw, "big", signed=True)), -scale)
