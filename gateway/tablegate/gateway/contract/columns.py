"""Types of columns: which fields a row may have, which of them a key, which operators fit.

A column may be whatever a field of a message may be. A key column is a scalar, an enum or a time, once.
"""

from collections.abc import Iterator

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tablegate.gateway.contract.catalogue import Op
from tablegate.gateway.contract.keys import KeyType

TIMESTAMP = "google.protobuf.Timestamp"
MONEY = "google.type.Money"
DURATION = "google.protobuf.Duration"
FIELD_MASK = "google.protobuf.FieldMask"
TIMESTAMP_S_MIN = -62_135_596_800  # year 1, the first that google.protobuf.Timestamp allows
TIMESTAMP_S_MAX = 253_402_300_799  # the end of year 9999, the last
DURATION_S_MAX = 315_576_000_000  # 10,000 years: what google.protobuf.Duration allows
WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
)
"""Messages that hold one scalar, so that it can be unset."""
ANY = "google.protobuf.Any"
ANY_JSON = "google.protobuf.Value"
JSON_MESSAGES = frozenset(f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue"))
"""Messages that hold any JSON, or an object, or a list."""
NESTING_MAX = 16  # messages in one another

_INTEGERS = frozenset(
    {
        FieldDescriptor.TYPE_INT32,
        FieldDescriptor.TYPE_INT64,
        FieldDescriptor.TYPE_UINT32,
        FieldDescriptor.TYPE_UINT64,
        FieldDescriptor.TYPE_SINT32,
        FieldDescriptor.TYPE_SINT64,
        FieldDescriptor.TYPE_FIXED32,
        FieldDescriptor.TYPE_FIXED64,
        FieldDescriptor.TYPE_SFIXED32,
        FieldDescriptor.TYPE_SFIXED64,
    }
)
INTEGER_BOUNDS = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_SINT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_SFIXED32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_ENUM: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_FIXED32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**63 - 1),
    FieldDescriptor.TYPE_FIXED64: (0, 2**63 - 1),
}
"""Smallest and largest number of a field, of those types that cannot hold each int64, as a changelog has numbers."""
_FLOATS = frozenset({FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE})
_KEY_TYPES = {
    **dict.fromkeys(_INTEGERS, KeyType.INT64),
    FieldDescriptor.TYPE_ENUM: KeyType.INT64,
    FieldDescriptor.TYPE_BOOL: KeyType.BOOL,
    FieldDescriptor.TYPE_STRING: KeyType.STRING,
    FieldDescriptor.TYPE_BYTES: KeyType.BYTES,
}
_TEXTS = frozenset({FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES})
_TYPE_NAMES = {
    getattr(FieldDescriptor, name): name.removeprefix("TYPE_").lower()
    for name in dir(FieldDescriptor)
    if name.startswith("TYPE_")
}


def is_timestamp(field: FieldDescriptor) -> bool:
    """Return whether values of `field` are google.protobuf.Timestamp."""
    return field.message_type is not None and field.message_type.full_name == TIMESTAMP


def is_money(field: FieldDescriptor) -> bool:
    """Return whether values of `field` are google.type.Money."""
    return field.message_type is not None and field.message_type.full_name == MONEY


def is_map(field: FieldDescriptor) -> bool:
    """Return whether a field is a map."""
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def messages_in(message: Message) -> Iterator[Message]:
    """Yield the messages that are in the fields of a message, those of lists and maps too."""
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if is_map(field):
            yield from value.values() if field.message_type.fields_by_name["value"].message_type else ()
        else:
            yield from value if field.is_repeated else (value,)


def is_message(field: FieldDescriptor) -> bool:
    """Return whether a value of `field` is a message of which the fields count: none that stands for one value."""
    message = field.message_type
    if message is None or is_timestamp(field) or is_money(field):
        return False
    return message.full_name not in JSON_MESSAGES | WRAPPERS | {DURATION}


def is_one_value(field: FieldDescriptor) -> bool:
    """Return whether values of `field` can be compared: a scalar, an enum or a time, and not repeated."""
    return not field.is_repeated and (field.message_type is None or is_timestamp(field))


def column_problem(field: FieldDescriptor, above: tuple[str, ...] = ()) -> tuple[str, str] | None:
    """Return what is wrong with the type of a column, and what to do; None where it can be kept.

    `above`: full names of the messages that it is in, from the row on.
    """
    if field.type == field.TYPE_GROUP:
        return "a group cannot be kept", "make it a message of its own, with length-prefixed encoding"
    if not is_message(field):
        return None
    message = field.message_type
    assert message is not None
    if message.full_name in above:
        return f"message {message.full_name} contains itself, and a row has an end", "keep it as bytes, or as text"
    if len(above) == NESTING_MAX:
        return f"there are more than {NESTING_MAX} messages in one another", "keep the innermost as bytes"
    if not message.fields:
        return f"message {message.full_name} has no fields, so there is nothing to keep", "make it a bool"
    inside = (column_problem(inner, (*above, message.full_name)) for inner in message.fields)
    return next((problem for problem in inside if problem is not None), None)


def key_type(field: FieldDescriptor) -> KeyType | None:
    """Return the key type of the values of `field`; None if no key column holds them."""
    return KeyType.TIMESTAMP if is_timestamp(field) else _KEY_TYPES.get(field.type)


def type_name(field: FieldDescriptor) -> str:
    """Return the type of a value of `field`, as a contract writes it."""
    named = field.message_type or field.enum_type
    return named.full_name if named is not None else _TYPE_NAMES[field.type]


def same_type(one: FieldDescriptor, other: FieldDescriptor) -> bool:
    """Return whether both hold values of the same type: int32 and int64 are two."""
    return type_name(one) == type_name(other)


def oneof_of(field: FieldDescriptor) -> str | None:
    """Return the name of the oneof that `field` is in; the one that `optional` makes behind the scenes is none."""
    oneof = field.containing_oneof
    if oneof is None:
        return None
    # protoc calls that one "_" and the field's name, with as many "X" before it as make it free.
    is_made = len(oneof.fields) == 1 and oneof.name.lstrip("X") in (f"_{field.name}", field.name)
    return None if is_made else oneof.name


def in_oneof(field: FieldDescriptor) -> bool:
    """Return whether `field` is in a oneof."""
    return oneof_of(field) is not None


def operator_fits(op: Op, column: FieldDescriptor) -> bool:
    """Return whether `op` means something for the values of `column`."""
    if op is Op.CONTAINS:
        return column.is_repeated and (column.message_type is None or is_timestamp(column))
    if not is_one_value(column):
        return False
    if op in (Op.EQ, Op.IN):
        return True
    if op is Op.PREFIX:
        return column.type in _TEXTS
    return is_timestamp(column) or column.type in _INTEGERS | _FLOATS | _TEXTS
