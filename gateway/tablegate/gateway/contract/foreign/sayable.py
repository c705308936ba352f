"""Messages that JSON cannot say: those with a time in the year 10000, or a number of a Struct that is none.

Protobuf takes them, and whoever writes a topic may have written them. A page or a stream of REST would end at such a
row, and so would the command line: so it is set aside like one that does not parse.

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
    TIMESTAMP,
    TIMESTAMP_S_MAX,
    TIMESTAMP_S_MIN,
    is_map,
    messages_in,
)
from tablegate.gateway.contract.rows import UndecodableRecord

_NANOS = 10**9

Check = Callable[[Any], None]
"""Raises `UndecodableRecord` where JSON cannot say a message, or all that a field holds."""


def check_of(message: Descriptor) -> Check | None:
    """Return the check of a type of messages that is not within itself; None where JSON can say all of them.

    It looks at those fields alone that need it: a row is checked for each record.
    """
    known = _CHECKS.get(message.full_name)
    if known is not None:
        return known
    whole: list[tuple[str, Check]] = []
    single: list[tuple[str, Check]] = []
    for field in message.fields:
        check = _field_check(field)
        if check is not None:
            (whole if field.is_repeated else single).append((field.name, check))
    if not whole and not single:
        return None

    def check_fields(found: Any) -> None:
        for name, check in single:
            if found.HasField(name):
                check(getattr(found, name))
        for name, check in whole:
            check(getattr(found, name))

    return check_fields


def _field_check(field: FieldDescriptor) -> Check | None:
    """Return the check of all that a field holds."""
    of = field.message_type
    if of is not None and is_map(field):
        of = of.fields_by_name["value"].message_type
    check = None if of is None else check_of(of)
    if check is None or not field.is_repeated:
        return check
    if is_map(field):

        def check_values(found: Any) -> None:
            for one in found.values():
                check(one)

        return check_values

    def check_all(found: Any) -> None:
        for one in found:
            check(one)

    return check_all


def check_sayable(message: Message) -> None:
    """Raise `UndecodableRecord` where JSON cannot say a message, of whatever type."""
    check = _CHECKS.get(message.DESCRIPTOR.full_name)
    if check is not None:
        check(message)
        return
    for inside in messages_in(message):
        check_sayable(inside)


def _check_time(time: Any) -> None:
    if not (TIMESTAMP_S_MIN <= time.seconds <= TIMESTAMP_S_MAX and 0 <= time.nanos < _NANOS):
        raise UndecodableRecord("value has a time that is not of the years 1 to 9999")


def _check_duration(duration: Any) -> None:
    if abs(duration.seconds) > DURATION_S_MAX:
        raise UndecodableRecord("value has a duration of more than 10,000 years")
    if abs(duration.nanos) >= _NANOS or duration.seconds * duration.nanos < 0:
        raise UndecodableRecord("value has a duration whose parts are not of one sign, or too large")


def _check_value(value: Any) -> None:
    match value.WhichOneof("kind"):
        case "number_value":
            if not math.isfinite(value.number_value):
                raise UndecodableRecord("value has a number in a Struct or Value that JSON does not have")
        case "struct_value":
            _check_struct(value.struct_value)
        case "list_value":
            _check_list(value.list_value)


def _check_struct(struct: Any) -> None:
    for one in struct.fields.values():
        _check_value(one)


def _check_list(several: Any) -> None:
    for one in several.values:
        _check_value(one)


def _check_any(packed: Any) -> None:
    """Check what is in an Any, where the contract has its type; bytes of others are shown as they are."""
    try:
        of = packed.DESCRIPTOR.file.pool.FindMessageTypeByName(packed.type_url.rpartition("/")[2])
        check_sayable(GetMessageClass(of).FromString(packed.value))
    except KeyError:
        return
    except DecodeError:
        raise UndecodableRecord("value has an Any whose bytes are not of its type") from None


_CHECKS: Mapping[str, Check] = {
    TIMESTAMP: _check_time,
    DURATION: _check_duration,
    ANY: _check_any,
    ANY_JSON: _check_value,
    "google.protobuf.Struct": _check_struct,
    "google.protobuf.ListValue": _check_list,
}
