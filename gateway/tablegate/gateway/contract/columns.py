"""Types of columns: which fields a row may have, which of them a key, which operators fit."""

from google.protobuf.descriptor import FieldDescriptor

from tablegate.gateway.contract.catalogue import Op
from tablegate.gateway.contract.keys import KeyType

TIMESTAMP = "google.protobuf.Timestamp"
MONEY = "google.type.Money"

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


def is_column_type(field: FieldDescriptor) -> bool:
    """Return whether a value of `field` is a scalar, an enum, a timestamp or an amount: what a column holds."""
    return is_timestamp(field) or is_money(field) or field.type in _KEY_TYPES or field.type in _FLOATS


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


def in_oneof(field: FieldDescriptor) -> bool:
    """Return whether `field` is in a oneof; the one that `optional` makes behind the scenes is none."""
    oneof = field.containing_oneof
    if oneof is None:
        return False
    # protoc calls that one "_" and the field's name, with as many "X" before it as make it free.
    return len(oneof.fields) > 1 or oneof.name.lstrip("X") not in (f"_{field.name}", field.name)


def operator_fits(op: Op, column: FieldDescriptor) -> bool:
    """Return whether `op` means something for the values of `column`."""
    if op is Op.EQ:
        return True
    if op is Op.PREFIX:
        return column.type in _TEXTS
    return is_timestamp(column) or column.type in _INTEGERS | _FLOATS | _TEXTS
