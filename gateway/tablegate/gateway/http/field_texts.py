"""What a text says of a field of a request: in a path, in a query parameter, or on a command line."""

import base64
import binascii
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from tablegate.gateway.contract.http_rules import FieldPath
from tablegate.gateway.query.errors import InvalidField

_Field = FieldDescriptor
_WHOLE = re.compile(r"-?[0-9]{1,20}")
_NUMBER = re.compile(r"-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|NaN|-?Infinity")
_FLOAT_MAX = 3.4028234663852886e38
_BOOLS: Mapping[str, bool] = {"true": True, "false": False}
_RANGES: Mapping[int, tuple[str, int, int]] = {
    _Field.CPPTYPE_INT32: ("an int32", -(2**31), 2**31 - 1),
    _Field.CPPTYPE_INT64: ("an int64", -(2**63), 2**63 - 1),
    _Field.CPPTYPE_UINT32: ("a uint32", 0, 2**32 - 1),
    _Field.CPPTYPE_UINT64: ("a uint64", 0, 2**64 - 1),
}
_FIELD_MASK = "google.protobuf.FieldMask"
_SHAPES: Mapping[str, str] = {
    "google.protobuf.Timestamp": 'a time; send one such as "2026-01-31T12:00:00Z"',
    "google.protobuf.Duration": 'a duration; send one such as "1.5s"',
    _FIELD_MASK: 'a field mask; send one such as "movieId,rating"',
}

_Parse = Callable[[str], Any]  # raises ValueError


class FieldSetter:
    """Sets one field of a request, as a path or a query parameter gives it. Its texts follow proto3's JSON."""

    __slots__ = ("_holders", "_last", "_oneofs", "_set", "_wanted", "repeated")

    def __init__(self, path: FieldPath) -> None:
        *holders, last = path
        self.repeated = last.is_repeated
        self._holders = tuple(holder.name for holder in holders)
        self._last = last.name
        self._oneofs = tuple(field.containing_oneof.name if field.containing_oneof else None for field in path)
        self._set, self._wanted = _way_to_set(last)

    def set(self, request: Any, text: str, name: str) -> None:
        """Set the field to what `text` says; raise `InvalidField` that calls the field `name`."""
        message = request
        for holder, oneof in zip(self._holders, self._oneofs, strict=False):
            _check_oneof(message, oneof, holder, name)
            message = getattr(message, holder)
        _check_oneof(message, self._oneofs[-1], self._last, name)
        try:
            self._set(message, text)
        except ValueError:
            raise InvalidField(name, f"is not {self._wanted}") from None


def is_text_of(field: FieldDescriptor, text: str) -> bool:
    """Return whether a text is a value of a scalar field."""
    parse, _ = _scalar(field)
    try:
        parse(text)
    except ValueError:
        return False
    return True


def wanted_of(field: FieldDescriptor) -> str:
    """Return what a text of a scalar field has to be, and what to send: it follows "is not"."""
    return _scalar(field)[1]


def _check_oneof(message: Any, oneof: str | None, field: str, name: str) -> None:
    if oneof is not None and message.WhichOneof(oneof) not in (None, field):
        raise InvalidField(name, f'excludes another field of oneof "{oneof}" that is given; leave one out')


def _way_to_set(field: FieldDescriptor) -> tuple[Callable[[Any, str], None], str]:
    """Return a function that sets `field` of a message or raises `ValueError`, and what then follows "is not"."""
    name = field.name
    message = field.message_type
    if message is None:
        parse, wanted = _scalar(field)
        if field.is_repeated:
            return (lambda target, text: getattr(target, name).append(parse(text))), wanted
        return (lambda target, text: setattr(target, name, parse(text))), wanted
    value = message.fields_by_name.get("value")
    if value is None:
        wanted = _SHAPES[message.full_name]

        def fill(target: Any, text: str) -> None:
            if message.full_name == _FIELD_MASK and "_" in text:
                target.paths.extend(text.split(","))  # by the contract's names, which JSON's form has no place for
            else:
                target.FromJsonString(text)

    else:
        parse, wanted = _scalar(value)

        def fill(target: Any, text: str) -> None:
            target.value = parse(text)
            target.SetInParent()

    if field.is_repeated:
        return (lambda target, text: fill(getattr(target, name).add(), text)), wanted
    return (lambda target, text: fill(getattr(target, name), text)), wanted


def _scalar(field: FieldDescriptor) -> tuple[_Parse, str]:
    if field.enum_type is not None:
        numbers = {value.name: value.number for value in field.enum_type.values}
        closed = field.enum_type.is_closed
        name = field.enum_type.name
        article = "an" if name[0] in "AEIOU" else "a"
        return _enum_parser(numbers, closed=closed), f"{article} {name}; send one of {', '.join(numbers)}"
    if field.cpp_type in _RANGES:
        name, low, high = _RANGES[field.cpp_type]
        return _integer_parser(low, high), f"{name}; send a whole number from {low} to {high}"
    if field.cpp_type == _Field.CPPTYPE_BOOL:
        return _bool, "a bool; send true or false"
    if field.cpp_type == _Field.CPPTYPE_FLOAT:
        return _float, "a float; send a number, NaN, Infinity or -Infinity"
    if field.cpp_type == _Field.CPPTYPE_DOUBLE:
        return _double, "a double; send a number, NaN, Infinity or -Infinity"
    if field.type == _Field.TYPE_BYTES:
        return _bytes, "bytes; send them in base64"
    return str, "text"


def _integer_parser(low: int, high: int) -> _Parse:
    def parse(text: str) -> int:
        if not _WHOLE.fullmatch(text) or not low <= (number := int(text)) <= high:
            raise ValueError
        return number

    return parse


def _enum_parser(numbers: Mapping[str, int], *, closed: bool) -> _Parse:
    parse_number = _integer_parser(-(2**31), 2**31 - 1)

    def parse(text: str) -> int:
        number = numbers.get(text)
        if number is None:
            number = parse_number(text)
            if closed and number not in numbers.values():
                raise ValueError
        return int(number)

    return parse


def _bool(text: str) -> bool:
    if text not in _BOOLS:
        raise ValueError
    return _BOOLS[text]


def _double(text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise ValueError
    number = float(text)
    if math.isinf(number) and not text.endswith("Infinity"):
        raise ValueError
    return number


def _float(text: str) -> float:
    number = _double(text)
    if math.isfinite(number) and abs(number) > _FLOAT_MAX:
        raise ValueError
    return number


def _bytes(text: str) -> bytes:
    """Return what either alphabet of base64 says, with padding or without."""
    plain = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except binascii.Error:
        raise ValueError from None
