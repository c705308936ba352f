"""Messages as JSON text, by an encoder made once for each type: less than half of what json_format costs.

Scans write a row with each message, on the event loop that serves all other calls, too. So a type is looked at once,
and its fields become functions from a value to its text: `{"movieId":"7"}` is one `%` and one `join`.

The text is that of json_format, byte by byte; a test compares both over random messages. What is rare is left to
json_format itself: Any, Struct, Value, and whatever raises an error, which then has its words.
"""

import binascii
import math
from collections.abc import Callable
from datetime import date, timedelta
from functools import lru_cache
from json.encoder import encode_basestring  # the C function, without its wrapper
from struct import Struct
from typing import Any, TypeAlias

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from tablegate.gateway.contract.columns import is_map

_Encode: TypeAlias = Callable[[Any], str]

_Field = FieldDescriptor
_DAY_S = 86_400
_DAYS_CACHED = 4_096  # eleven years of days, 60 bytes each
_FIRST_DAY = date(1970, 1, 1)
_SECONDS_MIN, _SECONDS_MAX = -62_135_596_800, 253_402_300_799  # of the years 1 to 9999, as a Timestamp has them
_NANOS_MAX = 999_999_999
_TWO_DIGITS = tuple(f"{number:02d}" for number in range(60))
_FLOAT_DIGITS = range(6, 10)  # of which a float of 4 bytes needs one
_FLOAT = Struct("<f")
_WRAPPERS = "google/protobuf/wrappers.proto"
_WITH_JSON_TEXT = ("google.protobuf.Duration", "google.protobuf.FieldMask")
_TIMESTAMP = "google.protobuf.Timestamp"
_SPECIAL = frozenset(f"google.protobuf.{name}" for name in ("Any", "Struct", "Value", "ListValue"))
_NUMBERS = frozenset({_Field.CPPTYPE_INT32, _Field.CPPTYPE_UINT32})
_LONG_NUMBERS = frozenset({_Field.CPPTYPE_INT64, _Field.CPPTYPE_UINT64})


class JsonEncoder:
    """Makes encoders of messages, each when it is asked for first, and keeps them.

    `special`: returns the JSON text of an Any, Struct, Value or ListValue, and of a type that extensions or options of
    its enums make special.
    """

    def __init__(self, special: _Encode) -> None:
        self._special = special
        self._encoders: dict[Descriptor, _Encode] = {}

    def of(self, descriptor: Descriptor) -> _Encode:
        """Return the function that encodes messages of a type; it raises whatever their values make it raise."""
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
            value = self._value(descriptor.fields_by_name["value"])

            def encode(message: Any) -> str:
                return value(message.value)

        else:
            return self._make_regular(descriptor)
        self._encoders[descriptor] = encode
        return encode

    def _make_regular(self, descriptor: Descriptor) -> _Encode:
        fields: dict[FieldDescriptor, _Encode] = {}

        def encode(message: Any) -> str:
            return "{" + ",".join([fields[field](value) for field, value in message.ListFields()]) + "}"

        self._encoders[descriptor] = encode  # before its fields: a message may be inside one of its own type
        for field in descriptor.fields:
            fields[field] = self._field(field)
        return encode

    def _field(self, field: FieldDescriptor) -> _Encode:
        """Return the function from a field's value to its name and value."""
        start = encode_basestring(field.json_name) + ":"
        if is_map(field):
            return self._map(field, start)
        value = self._value(field)
        if field.is_repeated:
            return lambda items: start + "[" + ",".join([value(item) for item in items]) + "]"
        template = start.replace("%", "%%")
        if field.cpp_type in _NUMBERS:
            return (template + "%d").__mod__
        if field.cpp_type in _LONG_NUMBERS:
            return (template + '"%d"').__mod__
        return lambda one: start + value(one)

    def _map(self, field: FieldDescriptor, start: str) -> _Encode:
        assert field.message_type is not None, "a map's entries are messages"
        value = self._value(field.message_type.fields_by_name["value"])
        key_type = field.message_type.fields_by_name["key"].cpp_type
        key: _Encode = '"%d"'.__mod__
        if key_type == _Field.CPPTYPE_STRING:
            key = encode_basestring
        elif key_type == _Field.CPPTYPE_BOOL:
            key = _bool_key
        return lambda items: start + "{" + ",".join([key(one) + ":" + value(items[one]) for one in items]) + "}"

    def _value(self, field: FieldDescriptor) -> _Encode:
        """Return the function from one value, of a repeated field one item, to its text."""
        kind = field.cpp_type
        if field.message_type is not None:
            return self.of(field.message_type)
        if field.enum_type is not None:
            return _enum(field.enum_type)
        if field.type == _Field.TYPE_BYTES:
            return _bytes
        if kind == _Field.CPPTYPE_STRING:
            return encode_basestring
        if kind == _Field.CPPTYPE_BOOL:
            return _bool
        if kind == _Field.CPPTYPE_FLOAT:
            return _float
        if kind == _Field.CPPTYPE_DOUBLE:
            return _double
        return "%d".__mod__ if kind in _NUMBERS else '"%d"'.__mod__


def _has_enum_with_options(descriptor: Descriptor) -> bool:
    """Return whether an option of an enum's value may change its name in JSON."""
    enums = [field.enum_type for field in descriptor.fields if field.enum_type is not None]
    return any(value.has_options for enum in enums for value in enum.values)


def _enum(enum: EnumDescriptor) -> _Encode:
    if enum.full_name == "google.protobuf.NullValue":
        return lambda _: "null"
    names = {number: encode_basestring(value.name) for number, value in enum.values_by_number.items()}
    if enum.is_closed:
        return names.__getitem__
    return lambda number: names.get(number) or str(number)


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _bool_key(value: bool) -> str:
    return '"true"' if value else '"false"'


def _bytes(value: bytes) -> str:
    return '"' + binascii.b2a_base64(value, newline=False).decode("ascii") + '"'


def _double(value: float) -> str:
    if value - value == 0.0:  # finite, without a call
        return repr(value)
    return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'


def _float(value: float) -> str:
    if not math.isfinite(value):
        return _double(value)
    for digits in _FLOAT_DIGITS:
        rounded = float(f"{value:.{digits}g}")
        try:
            if _FLOAT.unpack(_FLOAT.pack(rounded))[0] == value:
                return repr(rounded)
        except OverflowError:  # the largest float, rounded up
            continue
    raise AssertionError("nine digits tell any two floats apart")


def _own_text(message: Any) -> str:
    text: str = encode_basestring(message.ToJsonString())
    return text


@lru_cache(_DAYS_CACHED)
def _day(days: int) -> str:
    return (_FIRST_DAY + timedelta(days)).isoformat()


def _timestamp(message: Any) -> str:
    seconds, nanos = message.seconds, message.nanos
    if not (_SECONDS_MIN <= seconds <= _SECONDS_MAX and 0 <= nanos <= _NANOS_MAX):
        raise ValueError("Timestamp is not valid")
    days, second = divmod(seconds, _DAY_S)
    minute, second = divmod(second, 60)
    hour, minute = divmod(minute, 60)
    text = f'"{_day(days)}T{_TWO_DIGITS[hour]}:{_TWO_DIGITS[minute]}:{_TWO_DIGITS[second]}'
    if not nanos:
        return text + 'Z"'
    digits = f"{nanos:09d}"  # of which three, six or nine are written
    return f'{text}.{digits[:3] if not nanos % 1_000_000 else digits[:6] if not nanos % 1_000 else digits}Z"'
