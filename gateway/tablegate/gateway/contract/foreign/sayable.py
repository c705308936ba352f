"""Messages that no client could be given: those with a time in the year 10000, or a number of a Struct that is none.

Protobuf takes them, and whoever writes a topic may have written them. A page or a stream of REST would end at such a
row, and so would the command line: so it is set aside like one that does not parse. So is what is so deep in itself
that it can be read alone, but not within an answer.

Decision: docs/decisions/0136-what-json-cannot-say-is-no-row.md
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from tablegate.gateway.contract.columns import (
    ANY,
    ANY_JSON,
    DURATION,
    DURATION_S_MAX,
    FIELD_MASK,
    TIMESTAMP,
    TIMESTAMP_S_MAX,
    TIMESTAMP_S_MIN,
    is_map,
    is_timestamp,
    messages_in,
)
from tablegate.gateway.contract.rows import UndecodableRecord, check_path

_NANOS = 10**9
DEPTH_MAX = 95  # of messages in a row: protobuf's parsers end at 100, and an answer is around it
_UNCHECKED = 3  # `FeatureSet.Utf8Validation.NONE`: strings of proto2 may be any bytes

Check = Callable[[Any], None]
"""Raises `UndecodableRecord` where JSON cannot say a message, or all that a field holds."""


def check_of(message: Descriptor, depth: int = 0) -> Check | None:
    """Return the check of a type of messages that is not within itself; None where JSON can say all of them.

    It looks at those fields alone that need it: a row is checked for each record. `depth`: of messages that it is in.
    """
    nested = _NESTED.get(message.full_name)
    if nested is not None:
        return lambda found: nested(found, depth)
    known = _CHECKS.get(message.full_name)
    if known is not None:
        return known
    whole: list[tuple[str, Check]] = []
    single: list[tuple[str, Check]] = []
    for field in message.fields:
        check = _field_check(field, depth + 1)
        if check is not None:
            # A time that is not there reads as zero, which is one: to ask whether it is there costs more.
            (whole if field.is_repeated or is_timestamp(field) else single).append((field.name, check))
    if not whole and not single:
        return None

    def check_fields(found: Any) -> None:
        for name, check in single:
            if found.HasField(name):
                check(getattr(found, name))
        for name, check in whole:
            check(getattr(found, name))

    return check_fields


def _field_check(field: FieldDescriptor, depth: int) -> Check | None:
    """Return the check of all that a field holds."""
    of = field.message_type
    if of is None or not is_map(field):
        check = _value_check(field, depth)
        return _check_each(check) if check is not None and field.is_repeated else check
    check_key = _value_check(of.fields_by_name["key"], depth)
    check = _value_check(of.fields_by_name["value"], depth + 1)
    if check is None and check_key is None:
        return None

    def check_entries(found: Any) -> None:
        try:
            entries = [*found.items()]
        except UnicodeDecodeError:  # of a key: the runtime gives no such
            _check_text(b"")
        for key, one in entries:
            if check_key is not None:
                check_key(key)
            if check is not None:
                check(one)

    return check_entries


def _check_each(check: Check) -> Check:
    def check_all(found: Any) -> None:
        for one in found:
            check(one)

    return check_all


def _value_check(field: FieldDescriptor, depth: int) -> Check | None:
    """Return the check of one value of a field."""
    if field.message_type is not None:
        return check_of(field.message_type, depth)
    features: Any = field
    is_any_text = field.type == field.TYPE_STRING and features._GetFeatures().utf8_validation == _UNCHECKED
    return _check_text if is_any_text else None


def check_sayable(message: Message, depth: int = 0) -> None:
    """Raise `UndecodableRecord` where JSON cannot say a message, of whatever type. `depth`: messages that it is in."""
    _check_depth(depth)
    name = message.DESCRIPTOR.full_name
    nested = _NESTED.get(name)
    if nested is not None:
        nested(message, depth)
        return
    check = _CHECKS.get(name)
    if check is not None:
        check(message)
        return
    for inside in messages_in(message):
        check_sayable(inside, depth + 1)


def _check_depth(depth: int) -> None:
    if depth > DEPTH_MAX:
        raise UndecodableRecord(f"value has more than {DEPTH_MAX} messages in one another")


def _check_text(text: Any) -> None:
    """Refuse a string of proto2 that is none: the runtime gives its bytes."""
    if isinstance(text, bytes):
        raise UndecodableRecord("value has a string that is not UTF-8")


def _check_time(time: Any) -> None:
    if not (TIMESTAMP_S_MIN <= time.seconds <= TIMESTAMP_S_MAX and 0 <= time.nanos < _NANOS):
        raise UndecodableRecord("value has a time that is not of the years 1 to 9999")


def _check_duration(duration: Any) -> None:
    if abs(duration.seconds) > DURATION_S_MAX:
        raise UndecodableRecord("value has a duration of more than 10,000 years")
    if abs(duration.nanos) >= _NANOS or duration.seconds * duration.nanos < 0:
        raise UndecodableRecord("value has a duration whose parts are not of one sign, or too large")


def _check_mask(mask: Any) -> None:
    for path in mask.paths:
        check_path(path)


def _check_value(value: Any, depth: int = 0) -> None:
    _check_depth(depth)
    match value.WhichOneof("kind"):
        case "number_value":
            if not math.isfinite(value.number_value):
                raise UndecodableRecord("value has a number in a Struct or Value that JSON does not have")
        case "struct_value":
            _check_struct(value.struct_value, depth + 1)
        case "list_value":
            _check_list(value.list_value, depth + 1)


def _check_struct(struct: Any, depth: int = 0) -> None:
    for one in struct.fields.values():
        _check_value(one, depth + 2)  # an entry of the map is a message, too


def _check_list(several: Any, depth: int = 0) -> None:
    for one in several.values:
        _check_value(one, depth + 1)


def _check_any(packed: Any, depth: int = 0) -> None:
    """Check what is in an Any, where the contract has its type; bytes of others are shown as they are."""
    try:
        of = packed.DESCRIPTOR.file.pool.FindMessageTypeByName(packed.type_url.rpartition("/")[2])
        check_sayable(GetMessageClass(of).FromString(packed.value), depth + 1)
    except KeyError:
        return
    except DecodeError:
        raise UndecodableRecord("value has an Any whose bytes are not of its type") from None


# Those that may be in themselves, and so are counted.
_NESTED: Mapping[str, Callable[[Any, int], None]] = {
    ANY: _check_any,
    ANY_JSON: _check_value,
    "google.protobuf.Struct": _check_struct,
    "google.protobuf.ListValue": _check_list,
}
_CHECKS: Mapping[str, Check] = {TIMESTAMP: _check_time, DURATION: _check_duration, FIELD_MASK: _check_mask}
