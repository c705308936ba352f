"""Keys of a local table as bytes, and what says that rows on disk are those that are asked for. No I/O."""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto
from google.protobuf.message import Message

from tablegate.client.events import Key
from tablegate.client.fields import (
    ANNOTATION,
    SUBSCRIBE_OPTIONS,
    ContractMismatch,
    field_of_type,
    key_columns,
    numbered,
)
from tablegate.client.owners import BOOL, BYTES, INT64, STRING, TIMESTAMP, NoKey, encode

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_TABLE_RETENTION, _TABLE_INDEX = 6, 7  # of TableOptions

_TYPES: Mapping[int, tuple[int, type]] = {
    FieldDescriptor.TYPE_STRING: (STRING, str),
    FieldDescriptor.TYPE_BYTES: (BYTES, bytes),
    FieldDescriptor.TYPE_BOOL: (BOOL, bool),
    FieldDescriptor.TYPE_MESSAGE: (TIMESTAMP, datetime),
}


class KeyEncoder:
    """Makes bytes of keys, which sort as gateways sort them. Raise `ContractMismatch` where a row has no key."""

    def __init__(self, row: Any) -> None:
        self._names = key_columns(row)
        if not self._names:
            raise ContractMismatch(
                f"{row.full_name} is no row of a table: give the row's message, of code that was generated from the "
                "contract with its annotations"
            )
        fields = [row.fields_by_name[name] for name in self._names]
        self._types = [_TYPES.get(field.type, (INT64, int)) for field in fields]

    def encode(self, key: Key) -> bytes:
        """Return the bytes of a key; raise `TypeError`."""
        if len(self._types) == 1:
            return self.encode_column(0, key)
        if not isinstance(key, tuple) or len(key) != len(self._types):
            raise TypeError(f"a key here is a tuple of {', '.join(self._names)}")
        return self.encode_leading(key)

    def encode_leading(self, values: Sequence[Any]) -> bytes:
        """Return the bytes of the first columns of a key; raise `TypeError`."""
        return b"".join([self.encode_column(number, value) for number, value in enumerate(values)])

    def encode_column(self, number: int, value: Any) -> bytes:
        """Return the bytes of a column; raise `TypeError`."""
        if number >= len(self._types):
            raise TypeError(f"a key here has no columns but {', '.join(self._names)}")
        key_type, kind = self._types[number]
        plain: Any = value
        if type(value) is not kind and (not isinstance(value, kind) or isinstance(value, bool)):
            raise TypeError(f'"{self._names[number]}" is of type {kind.__name__}, and {type(value).__name__} was given')
        if kind is datetime:
            if plain.tzinfo is None:
                raise TypeError(f'"{self._names[number]}" needs a datetime with a time zone')
            plain = (plain - EPOCH) // timedelta(microseconds=1)
        try:
            return encode(key_type, plain)
        except NoKey:
            raise TypeError(f'"{self._names[number]}" does not hold such a value') from None

    def key_of(self, row: Any) -> Key:
        """Return the key of a row."""
        values = [
            getattr(row, name).ToDatetime(tzinfo=UTC) if kind is datetime else getattr(row, name)
            for name, (_, kind) in zip(self._names, self._types, strict=True)
        ]
        return values[0] if len(values) == 1 else tuple(values)


def next_prefix(prefix: bytes) -> bytes | None:
    """Return the first bytes behind all that begin with `prefix`; None where nothing is."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def fingerprint_of(request: Message, row: Any, index_ids: Sequence[bytes] = ()) -> str:
    """Return what is the same where a directory has what is asked for: request, row message, its key, its indexes."""
    asked = type(request)()
    asked.CopyFrom(request)
    asked.ClearField(field_of_type(request.DESCRIPTOR, SUBSCRIBE_OPTIONS))
    parts = [request.DESCRIPTOR.full_name.encode(), asked.SerializeToString(deterministic=True)]
    parts += [name.encode() for name in key_columns(row)]
    parts += index_ids
    for name, described in sorted(_described(row, {}).items()):
        parts += [name.encode(), described]
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).hexdigest()


def _described(message: Any, found: dict[str, bytes]) -> dict[str, bytes]:
    """Add to `found` the descriptions of a message, and of all messages and enums in it."""
    if message.full_name in found:
        return found
    proto = DescriptorProto()
    message.CopyToProto(proto)
    found[message.full_name] = proto.SerializeToString(deterministic=True)
    for field in message.fields:
        if field.message_type is not None:
            _described(field.message_type, found)
        if field.enum_type is not None:
            enum = EnumDescriptorProto()
            field.enum_type.CopyToProto(enum)
            found[field.enum_type.full_name] = enum.SerializeToString(deterministic=True)
    return found


def has_indexes(row: Any) -> bool:
    """Return whether the annotation of a row has an index."""
    return _has(row, _TABLE_INDEX)


def has_retention(row: Any) -> bool:
    """Return whether the annotation of a row says when rows are over."""
    return _has(row, _TABLE_RETENTION)


def _has(row: Any, option: int) -> bool:
    tables = numbered(row.GetOptions().SerializeToString(), ANNOTATION)
    return any(numbered(table, option) for table in tables)
