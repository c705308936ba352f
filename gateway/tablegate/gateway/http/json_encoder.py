"""Messages as JSON, by an encoder made once for each type: a third of what json_format costs.

Scans write hundreds of rows with each message, on the event loop that serves all other calls, too. So a type is looked
at once, and its fields become functions from a value to what stands for it in JSON; orjson writes the text.

The text says what that of json_format says, field by field in the same order; a test compares both over random
messages. What is rare is left to json_format itself: Any, Struct, Value, and whatever raises an error, which then has
its words.

Decision: docs/decisions/0130-orjson-writes-json.md
"""

import binascii
import math
from collections.abc import Callable
from datetime import date, timedelta
from functools import lru_cache
from struct import Struct
from typing import Any, TypeAlias

import orjson
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from tablegate.gateway.contract.columns import is_map

_Encode: TypeAlias = Callable[[Any], Any]  # from a value of a message to a value that orjson writes

_Field = FieldDescriptor
_DAY_MINUTES = 24 * 60
_DAYS_CACHED = 4_096  # eleven years of days, 60 bytes each
_FIRST_DAY = date(1970, 1, 1)
_SECONDS_MIN, _SECONDS_MAX = -62_135_596_800, 253_402_300_799  # of the years 1 to 9999, as a Timestamp has them
_NANOS_MAX = 999_999_999
_MINUTES = tuple(f"T{minute // 60:02d}:{minute % 60:02d}:" for minute in range(_DAY_MINUTES))
_SECONDS = tuple(f"{second:02d}" for second in range(60))
_FLOAT_DIGITS = range(6, 10)  # of which a float of 4 bytes needs one
_FLOAT = Struct("<f")
_WRAPPERS = "google/protobuf/wrappers.proto"
_WITH_JSON_TEXT = ("google.protobuf.Duration", "google.protobuf.FieldMask")
_TIMESTAMP = "google.protobuf.Timestamp"
_SPECIAL = frozenset(f"google.protobuf.{name}" for name in ("Any", "Struct", "Value", "ListValue"))
_LONG_NUMBERS = frozenset({_Field.CPPTYPE_INT64, _Field.CPPTYPE_UINT64})


class JsonEncoder:
    """Makes encoders of messages, each when it is asked for first, and keeps them.

    `special`: returns what stands for an Any, Struct, Value or ListValue, and for a message of a type that extensions
    or options of its enums make special.
    """

    def __init__(self, special: _Encode) -> None:
        self._special = special
        self._encoders: dict[Descriptor, _Encode] = {}

    def encode(self, message: Any) -> bytes:
        """Return the JSON of a message, without spaces; raise whatever its values make it raise."""
        return orjson.dumps(self._of(message.DESCRIPTOR)(message))

    def _of(self, descriptor: Descriptor) -> _Encode:
        return self._encoders.get(descriptor) or self._make(descriptor)

    def _make(self, descriptor: Descriptor) -> _Encode:
        name = descriptor.full_name
        encode: _Encode
        if name in _SPECIAL or descriptor.is_extendable or _has_enum_with_options(descriptor):
            encode = self._special
        elif name == _TIMESTAMP:
            encode = _timestamp
        elif name in _WITH_JSON_TEXT:
            encode = _own_text
        elif descriptor.file.name == _WRAPPERS:
            value = self._value(descriptor.fields_by_name["value"]) or _same

            def encode(message: Any) -> Any:
                return value(message.value)

        else:
            return self._make_regular(descriptor)
        self._encoders[descriptor] = encode
        return encode

    def _make_regular(self, descriptor: Descriptor) -> _Encode:
        fields: dict[FieldDescriptor, tuple[str, _Encode | None]] = {}

        def encode(message: Any) -> dict[str, Any]:
            made = {}
            for field, value in message.ListFields():
                name, encode_value = fields[field]
                made[name] = value if encode_value is None else encode_value(value)
            return made

        self._encoders[descriptor] = encode  # before its fields: a message may be inside one of its own type
        for field in descriptor.fields:
            fields[field] = field.json_name, self._field(field)
        return encode

    def _field(self, field: FieldDescriptor) -> _Encode | None:
        """Return the function for all that a field has; None where it is written as it is."""
        if is_map(field):
            return self._map(field)
        value = self._value(field)
        if not field.is_repeated:
            return value
        return list if value is None else lambda items: [value(item) for item in items]

    def _map(self, field: FieldDescriptor) -> _Encode:
        assert field.message_type is not None, "a map's entries are messages"
        key_type = field.message_type.fields_by_name["key"].cpp_type
        value = self._value(field.message_type.fields_by_name["value"])
        key: _Encode = str
        if key_type == _Field.CPPTYPE_STRING:
            if value is None:
                return dict
            key = _same
        elif key_type == _Field.CPPTYPE_BOOL:
            key = ("false", "true").__getitem__
        one = value or _same
        return lambda items: {key(each): one(items[each]) for each in items}

    def _value(self, field: FieldDescriptor) -> _Encode | None:
        """Return the function for one value, of a repeated field one item; None where it is written as it is."""
        kind = field.cpp_type
        if field.message_type is not None:
            return self._of(field.message_type)
        if field.enum_type is not None:
            return _enum(field.enum_type)
        if field.type == _Field.TYPE_BYTES:
            return _bytes
        if kind == _Field.CPPTYPE_FLOAT:
            return _float
        if kind == _Field.CPPTYPE_DOUBLE:
            return _double
        return str if kind in _LONG_NUMBERS else None


def _has_enum_with_options(descriptor: Descriptor) -> bool:
    """Return whether an option of an enum's value may change its name in JSON."""
    enums = [field.enum_type for field in descriptor.fields if field.enum_type is not None]
    return any(value.has_options for enum in enums for value in enum.values)


def _same(value: Any) -> Any:
    return value


def _enum(enum: EnumDescriptor) -> _Encode:
    if enum.full_name == "google.protobuf.NullValue":
        return lambda _: None
    names = {number: value.name for number, value in enum.values_by_number.items()}
    if enum.is_closed:
        return names.__getitem__
    return lambda number: names.get(number) or number


def _bytes(value: bytes) -> str:
    return binascii.b2a_base64(value, newline=False).decode("ascii")


def _double(value: float) -> float | str:
    if value - value == 0.0:  # finite, without a call
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _float(value: float) -> float | str:
    """Return a float of 4 bytes with as few digits as tell it apart."""
    if not math.isfinite(value):
        return _double(value)
    for digits in _FLOAT_DIGITS:
        rounded = float(f"{value:.{digits}g}")
        try:
            if _FLOAT.unpack(_FLOAT.pack(rounded))[0] == value:
                return rounded
        except OverflowError:  # the largest float, rounded up
            continue
    raise AssertionError("nine digits tell any two floats apart")


def _own_text(message: Any) -> str:
    text: str = message.ToJsonString()
    return text


@lru_cache(_DAYS_CACHED)
def _day(days: int) -> str:
    return (_FIRST_DAY + timedelta(days)).isoformat()


def _timestamp(message: Any) -> str:
    seconds, nanos = message.seconds, message.nanos
    if not (_SECONDS_MIN <= seconds <= _SECONDS_MAX and 0 <= nanos <= _NANOS_MAX):
        raise ValueError("Timestamp is not valid")
    minutes, second = divmod(seconds, 60)
    days, minute = divmod(minutes, _DAY_MINUTES)
    text = f"{_day(days)}{_MINUTES[minute]}{_SECONDS[second]}"
    if not nanos:
        return text + "Z"
    if not nanos % 1_000_000:
        return f"{text}.{nanos // 1_000_000:03d}Z"
    digits = f"{nanos:09d}"  # of which three, six or nine are written
    return f"{text}.{digits if nanos % 1_000 else digits[:6]}Z"
