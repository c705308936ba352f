"""Indexes: other orders in which rows are found than that of their keys.

An index key is the index's id, then the bytes of its columns. Those are as in keys (`keys.py`), with three differences,
as no job has to write the same: a column that may have no value begins with 00 (it has none, and is first) or 01; an
unsigned number is its eight bytes; a time is seconds and nanoseconds, as only key columns are whole microseconds.

The bytes of columns are cut to what a store's key takes. Rows of one cut text are in the order of their keys, and who
reads between bounds looks into such a row (`Index.holds`).

An entry is the place of a row in an index: the bytes of the columns, the row's key, and the length of the former in two
bytes, so that who has an entry has both. Entries sort as columns and then keys do: none of either begins another.

Decision: docs/decisions/0115-index-entries-beside-their-rows.md
"""

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tablegate.gateway.contract.keys import encode_bool, encode_bytes, encode_string

INDEXES_MAX = 8  # a table; each makes an apply slower by about a third
INDEX_BYTES_MAX = 500  # of the columns; an LMDB key has at most 511 bytes, 6 of them the partition's, 4 the index's id
INDEX_ID_BYTES = 4

_NUMBER = struct.Struct(">Q")
_TIME = struct.Struct(">QI")
_SIGN = 2**63
_LENGTH = struct.Struct(">H")
_NO_VALUE, _VALUE = b"\x00", b"\x01"

_UNSIGNED = frozenset(
    {
        FieldDescriptor.TYPE_UINT32,
        FieldDescriptor.TYPE_UINT64,
        FieldDescriptor.TYPE_FIXED32,
        FieldDescriptor.TYPE_FIXED64,
    }
)


def _encode_signed(value: int) -> bytes:
    return _NUMBER.pack(value + _SIGN)


def _encode_time(value: Any) -> bytes:
    return _TIME.pack(value.seconds + _SIGN, value.nanos & 0xFFFFFFFF)


def _encoder_of(field_: FieldDescriptor) -> tuple[Callable[[Any], bytes], int]:
    """Return the function from a value to its bytes, and how many those are at least."""
    if field_.message_type is not None:
        return _encode_time, _TIME.size
    match field_.type:
        case FieldDescriptor.TYPE_STRING:
            return encode_string, 2
        case FieldDescriptor.TYPE_BYTES:
            return encode_bytes, 2
        case FieldDescriptor.TYPE_BOOL:
            return encode_bool, 1
        case _:
            return _NUMBER.pack if field_.type in _UNSIGNED else _encode_signed, _NUMBER.size


class IndexColumn:
    """A column of an index: a field of the row, or of a message in it. `path`: those messages, and then the field."""

    def __init__(self, path: Sequence[FieldDescriptor]) -> None:
        *within, column = path
        self.name = ".".join(each.name for each in path)
        self.field = column
        self.top_name = path[0].name
        self.is_repeated = column.is_repeated
        self.may_be_null = bool(within) or (column.has_presence and not column.is_repeated)
        self._encode, bytes_min = _encoder_of(column)
        self.bytes_min = bytes_min + self.may_be_null
        kind = column.message_type.full_name if column.message_type is not None else column.type
        self.numbers = ".".join(str(each.number) for each in path)
        self.text = f"{self.numbers}:{kind}:{self.may_be_null}:{self.is_repeated}"
        self._within = [each.name for each in within]
        self._is_tracked = column.has_presence
        self.read: Callable[[Any], Any] = self._reader()
        """From a row to the bytes of its value; where the column is repeated, to those of each element."""

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a value, as a request has it."""
        return _VALUE + self._encode(value) if self.may_be_null else self._encode(value)

    def after_missing(self) -> bytes:
        """Return what the bytes of each value begin with, but not those of none."""
        return _VALUE if self.may_be_null else b""

    def _reader(self) -> Callable[[Any], Any]:
        name, encode, within = self.field.name, self._encode, self._within
        if self.is_repeated:
            head = _VALUE if within else b""

            def read_elements(row: Any) -> list[bytes]:
                for outer in within:
                    row = getattr(row, outer)  # of a message that is not there, an empty one: it has no elements
                return list({head + encode(value): None for value in getattr(row, name)})

            return read_elements
        if not self.may_be_null:
            return lambda row: encode(getattr(row, name))
        is_tracked = self._is_tracked

        def read(row: Any) -> bytes:
            for outer in within:
                if not row.HasField(outer):
                    return _NO_VALUE
                row = getattr(row, outer)
            if is_tracked and not row.HasField(name):
                return _NO_VALUE
            return _VALUE + encode(getattr(row, name))

        return read


def _value_reader(columns: Sequence[IndexColumn]) -> Callable[[Any], bytes]:
    """Return the function from a row to the bytes of columns of which none is repeated."""
    readers = [column.read for column in columns]
    match readers:
        case [only]:
            return only
        case [first, second]:
            return lambda row: first(row) + second(row)
        case _:
            return lambda row: b"".join([read(row) for read in readers])


def _values_reader(columns: Sequence[IndexColumn]) -> Callable[[Any], list[bytes]]:
    """Return `Index.values_of`."""
    at = next((at for at, column in enumerate(columns) if column.is_repeated), None)
    if at is None:
        value_of = _value_reader(columns)
        return lambda row: [value_of(row)]
    readers = [column.read for column in columns]
    before, elements, after = readers[:at], readers[at], readers[at + 1 :]

    def read_each(row: Any) -> list[bytes]:
        head, tail = b"".join([read(row) for read in before]), b"".join([read(row) for read in after])
        return [head + element + tail for element in elements(row)]

    return read_each


def _key_reader(index: "Index") -> Callable[[Any], bytes]:
    """Return the function from a row to its key in an index without a repeated column."""
    head, value_of = index.id, _value_reader(index.columns)
    return lambda row: head + value_of(row)[:INDEX_BYTES_MAX]


@dataclass(frozen=True, slots=True)
class Index:
    """An index of a table. `row_class` is that of its rows. One of the columns at most is repeated."""

    name: str
    columns: tuple[IndexColumn, ...]
    unique: bool
    row_class: type[Message]
    id: bytes = field(init=False)
    values_of: Callable[[Any], list[bytes]] = field(init=False, compare=False)
    """From a row to the bytes of its columns, whole: once, or for each element of the column that has several."""

    def __post_init__(self) -> None:
        text = ",".join(column.text for column in self.columns)
        object.__setattr__(self, "id", hashlib.sha256(text.encode()).digest()[:INDEX_ID_BYTES])
        object.__setattr__(self, "values_of", _values_reader(self.columns))

    @property
    def is_repeated(self) -> bool:
        """Whether one of its columns is: a row may have several entries, or none."""
        return any(column.is_repeated for column in self.columns)

    @property
    def column_names(self) -> list[str]:
        """The names of its columns, as a contract has them."""
        return [column.name for column in self.columns]

    def keys_of(self, row: bytes) -> list[bytes]:
        """Return the index keys of a row, from its bytes."""
        return self.keys_of_message(self.row_class.FromString(row))

    def keys_of_message(self, row: Any) -> list[bytes]:
        """Return the index keys of a row."""
        head = self.id
        return [head + values[:INDEX_BYTES_MAX] for values in self.values_of(row)]

    def holds(self, row: bytes, start: bytes, end: bytes | None) -> bool:
        """Return whether a row has values with start <= values < end (None: to the last), uncut."""
        values = self.values_of(self.row_class.FromString(row))
        return any(start <= each and (end is None or each < end) for each in values)


class RowIndexes:
    """The indexes of a table, as a store keeps them: none where there are none."""

    __slots__ = ("ids", "keys_of")

    def __init__(self, indexes: Sequence[Index], row_class: type[Message]) -> None:
        self.ids = tuple(index.id for index in indexes)
        self.keys_of: Callable[[bytes], list[bytes]] = _keys_reader(indexes, row_class)
        """From the bytes of a row to its index keys, of all indexes."""

    def __bool__(self) -> bool:
        return bool(self.ids)


def _keys_reader(indexes: Sequence[Index], row_class: type[Message]) -> Callable[[bytes], list[bytes]]:
    """Return `RowIndexes.keys_of`. It is called twice for each row that is replaced: it makes few calls itself."""
    parse = row_class.FromString

    def read_several(row: bytes) -> list[bytes]:
        message = parse(row)
        return [key for index in indexes for key in index.keys_of_message(message)]

    def read_two(row: bytes) -> list[bytes]:
        message = parse(row)
        return [first(message), second(message)]

    def read_one_each(row: bytes) -> list[bytes]:
        message = parse(row)
        return [read(message) for read in readers]

    if any(index.is_repeated for index in indexes):
        return read_several
    readers = [_key_reader(index) for index in indexes]
    if len(readers) == 2:
        first, second = readers
        return read_two
    return read_one_each


def make_entry(values: bytes, key: bytes) -> bytes:
    """Return the entry of a row: the (cut) bytes of its columns, its key."""
    return values + key + _LENGTH.pack(len(values))


def split_entry(entry: bytes) -> tuple[bytes, bytes]:
    """Return what `make_entry` was given."""
    at = _LENGTH.unpack_from(entry, len(entry) - _LENGTH.size)[0]
    return entry[:at], entry[at : -_LENGTH.size]


def is_cut(entry: bytes) -> bool:
    """Return whether the bytes of the columns may have been cut."""
    return bool(_LENGTH.unpack_from(entry, len(entry) - _LENGTH.size)[0] >= INDEX_BYTES_MAX)
