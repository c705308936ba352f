"""Orders with every kind of column, of which each is set or not."""

import math
import random
from typing import Any

from google.protobuf import wrappers_pb2
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tests.kit.table.filled import orders

ORDER: Any = orders().row_class
ADDRESS: Any = GetMessageClass(ORDER.DESCRIPTOR.fields_by_name["address"].message_type)


def random_order(choice: random.Random) -> Message:
    """Return an order of which each field is set or not."""
    order = ORDER(id=choice.randrange(-(2**63), 2**63))
    _fill(order, choice)
    return order


def _fill(message: Any, choice: random.Random) -> None:
    for field in message.DESCRIPTOR.fields:
        if choice.random() < 0.4:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            _fill_map(getattr(message, field.name), field.message_type.fields_by_name, choice)
        elif field.is_repeated:
            for _ in range(choice.randrange(3)):
                if field.message_type is not None:
                    _fill_message(getattr(message, field.name).add(), choice)
                else:
                    getattr(message, field.name).append(_value(field, choice))
        elif field.message_type is not None:
            getattr(message, field.name).SetInParent()
            _fill_message(getattr(message, field.name), choice)
        else:
            setattr(message, field.name, _value(field, choice))


def _fill_map(entries: Any, entry: Any, choice: random.Random) -> None:
    for _ in range(choice.randrange(3)):
        key = _value(entry["key"], choice)
        if entry["value"].message_type is not None:
            _fill_message(entries[key], choice)
        else:
            entries[key] = _value(entry["value"], choice)


def _fill_message(message: Any, choice: random.Random) -> None:
    match message.DESCRIPTOR.name:
        case "Timestamp":
            message.FromMicroseconds(choice.randrange(-(10**15), 10**15))
        case "Duration":
            message.FromMicroseconds(choice.randrange(-(10**15), 10**15))
        case "Struct":
            message.update({"a": [1, None, "é"], "b": {"c": True}})
        case "Value":
            message.string_value = "v"
        case "Any":
            message.Pack(choice.choice((ADDRESS(street="s"), wrappers_pb2.DoubleValue(value=0.5))))
        case _:
            _fill(message, choice)


def _value(field: Any, choice: random.Random) -> Any:
    if field.enum_type is not None:
        return choice.choice((0, 1, 77))  # the last has no name
    kinds = {
        field.CPPTYPE_STRING: b"\0\xff" if field.type == field.TYPE_BYTES else choice.choice(("", "é", "x\0")),
        field.CPPTYPE_BOOL: choice.random() < 0.5,
        field.CPPTYPE_DOUBLE: choice.choice((0.1, math.inf, -0.0)),
        field.CPPTYPE_FLOAT: choice.choice((0.5, -math.inf)),
    }
    return kinds.get(field.cpp_type, choice.randrange(2**31))
