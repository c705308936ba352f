"""Request fields to key bytes and to tests of rows, compiled once for each query."""

import operator
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from tablegate.gateway.contract.catalogue import Op, Param, Table
from tablegate.gateway.contract.columns import TIMESTAMP_S_MAX, TIMESTAMP_S_MIN, is_timestamp
from tablegate.gateway.contract.indexes import Index, IndexColumn
from tablegate.gateway.contract.keys import (
    ENCODERS,
    INT64_MAX,
    KEY_BYTES_MAX,
    InvalidKey,
    KeyColumn,
    KeyType,
    after_prefix,
)
from tablegate.gateway.query.errors import InvalidField, NotAllowed

ReadKey = Callable[[Message], bytes]
"""From a message to the key bytes of some of its fields; raises `InvalidField`."""

Test = Callable[[Any], bool]
"""Whether a row passes. A column without a value passes no comparison, as in SQL."""

_FIXED_LENGTH = frozenset({KeyType.INT64, KeyType.BOOL, KeyType.TIMESTAMP})
_COMPARE: dict[Op, Callable[[Any, Any], bool]] = {
    Op.EQ: operator.eq,
    Op.GT: operator.gt,
    Op.GTE: operator.ge,
    Op.LT: operator.lt,
    Op.LTE: operator.le,
    Op.PREFIX: lambda value, prefix: value.startswith(prefix),
    Op.CONTAINS: lambda values, wanted: wanted in values,
    Op.IN: lambda value, wanted: value in wanted,
}


def parse(message_class: type[Message], data: bytes) -> Message:
    """Return the request in `data`; raise `InvalidField` where it is none."""
    try:
        return message_class.FromString(data)
    except DecodeError:
        name = message_class.DESCRIPTOR.full_name
        raise InvalidField("", f"the request is not a {name}; send the message that the contract names") from None


def timestamp_parts(field: str, value: Any) -> tuple[int, int]:
    """Return seconds and nanoseconds of a Timestamp; raise `InvalidField` where it is not a moment."""
    seconds, nanos = value.seconds, value.nanos
    if not (TIMESTAMP_S_MIN <= seconds <= TIMESTAMP_S_MAX and 0 <= nanos < 1_000_000_000):
        raise InvalidField(field, "is not a moment from year 1 to 9999; send seconds and nanos in their ranges")
    return seconds, nanos


def seconds_of(duration: Any) -> float:
    """Return a google.protobuf.Duration in seconds."""
    return float(duration.seconds) + float(duration.nanos) / 1e9


def value_encoder(name: str, key_type: KeyType) -> Callable[[Any], bytes]:
    """Return the function from a value of field `name` to its key bytes; it raises `InvalidField`."""
    encode: Callable[[Any], bytes] = ENCODERS[key_type]  # type: ignore[assignment]
    if key_type is KeyType.TIMESTAMP:
        return _timestamp_encoder(name)
    if key_type is not KeyType.INT64:
        return encode

    def encode_integer(value: int) -> bytes:
        try:
            return encode(value)
        except InvalidKey:
            raise InvalidField(name, f"is above {INT64_MAX}, the highest that a key column holds; lower it") from None

    return encode_integer


def column_reader(field: FieldDescriptor, column: KeyColumn) -> ReadKey:
    """Return the function from a message to the key bytes of its `field`, which holds `column`."""
    return _value_reader(field, value_encoder(field.name, column.type))


def _value_reader(field: FieldDescriptor, encode: Callable[[Any], bytes]) -> ReadKey:
    """Return the function from a message to what `encode` makes of its `field`, which must be set."""
    name = field.name

    def read(message: Message) -> bytes:
        return encode(getattr(message, name))

    def read_required(message: Message) -> bytes:
        if not message.HasField(name):
            raise InvalidField(name, "is required; set it")
        return read(message)

    return read_required if field.has_presence else read


def key_reader(fields: Sequence[FieldDescriptor], columns: Sequence[KeyColumn]) -> ReadKey:
    """Return the function from a message to the key bytes of `fields`, which hold `columns`, in key order."""
    readers = [column_reader(field, column) for field, column in zip(fields, columns, strict=True)]
    if not readers:
        return lambda _: b""
    if len(readers) == 1 and columns[0].type in _FIXED_LENGTH:
        return readers[0]
    longest = next((field.name for field, column in zip(fields, columns, strict=True) if _is_long(column)), "")

    def read(message: Message) -> bytes:
        return checked_key(longest, b"".join([reader(message) for reader in readers]))

    return read


def checked_key(field: str, key: bytes) -> bytes:
    """Return `key`; raise `InvalidField` where it is longer than any key of a table."""
    if len(key) > KEY_BYTES_MAX:
        raise InvalidField(field, f"makes a key of more than {KEY_BYTES_MAX} bytes, which no table has; shorten it")
    return key


def keys_reader(
    keys: FieldDescriptor, key_fields: Sequence[FieldDescriptor], table: Table
) -> Callable[[Message], list[bytes]]:
    """Return the function from a request to the keys in its repeated field `keys`; it raises `InvalidField`.

    `key_fields` are those of its message, in key order; empty where it repeats the key's only column itself.
    """
    name = keys.name
    read_key: Callable[[Any], bytes] = (
        key_reader(key_fields, table.key) if key_fields else _scalar_reader(table.key[0].type)
    )

    def read(request: Message) -> list[bytes]:
        values = getattr(request, name)
        try:
            return [read_key(value) for value in values]
        except InvalidField:
            raise _error_of_key(name, read_key, values) from None

    return read


def _scalar_reader(key_type: KeyType) -> Callable[[Any], bytes]:
    encode = value_encoder("", key_type)
    return lambda value: checked_key("", encode(value))


def _error_of_key(name: str, read_key: Callable[[Any], bytes], values: Iterable[Any]) -> InvalidField:
    """Return the error of the first bad key, with its index."""
    for index, value in enumerate(values):
        try:
            read_key(value)
        except InvalidField as error:
            inside = f".{error.field}" if error.field else ""
            return InvalidField(f"{name}[{index}]{inside}", error.description)
    raise AssertionError("no key is bad")


def _is_long(column: KeyColumn) -> bool:
    return column.type not in _FIXED_LENGTH


def _timestamp_encoder(name: str) -> Callable[[Any], bytes]:
    encode = ENCODERS[KeyType.TIMESTAMP]

    def encode_timestamp(value: Any) -> bytes:
        seconds, nanos = timestamp_parts(name, value)
        if nanos % 1_000:
            raise InvalidField(name, "is finer than a microsecond, which no key holds; round it")
        return encode(seconds * 1_000_000 + nanos // 1_000)  # type: ignore[operator,no-any-return]

    return encode_timestamp


@dataclass(frozen=True, slots=True)
class KeyBounds:
    """A run of keys: start <= key < end; None for `end`: to the last key. Empty where start is None."""

    start: bytes | None
    end: bytes | None

    @property
    def empty(self) -> bool:
        """Return whether no key can be in it."""
        return self.start is None or (self.end is not None and self.start >= self.end)


def bounds_reader(prefix: ReadKey, bounds: Sequence[Param], column: KeyColumn | None) -> Callable[[Message], KeyBounds]:
    """Return the function from a request to the keys of its Range; `column` is the one that `bounds` constrain."""
    compiled = [(param.field.name, param.op, _bound_reader(param, column)) for param in bounds if column is not None]

    def read(request: Message) -> KeyBounds:
        base = prefix(request)
        start: bytes | None = base
        end = after_prefix(base) if base else None
        for name, op, reader in compiled:
            if request.HasField(name):
                low, high = _run_of(op, checked_key(name, base + reader(request)))
                start = None if start is None or low is None else max(start, low)
                end = high if end is None else end if high is None else min(end, high)
        return KeyBounds(start, end)

    return read


def _bound_reader(param: Param, column: KeyColumn) -> ReadKey:
    reader = column_reader(param.field, column)
    if param.op is not Op.PREFIX:
        return reader
    # Without the two bytes that end it, a string's key bytes begin those of every string that it begins.
    return lambda request: reader(request)[:-2]


def _run_of(op: Op, value: bytes) -> tuple[bytes | None, bytes | None]:
    """Return start and end of the keys for which `op` holds; a start of None means none of them."""
    match op:
        case Op.EQ | Op.PREFIX:
            return value, after_prefix(value)
        case Op.GTE:
            return value, None
        case Op.GT:
            return after_prefix(value), None
        case Op.LT:
            return b"", value
        case Op.LTE:
            return b"", after_prefix(value)
        case Op.CONTAINS | Op.IN:
            raise AssertionError("no key column is repeated, and several values are no run")


def index_value_reader(field: FieldDescriptor, column: IndexColumn) -> ReadKey:
    """Return the function from a message to the bytes of its `field`, as an index has them of `column`."""
    name, encode = field.name, column.encode
    if not is_timestamp(field):
        return _value_reader(field, encode)

    def encode_time(value: Any) -> bytes:
        timestamp_parts(name, value)
        return encode(value)

    return _value_reader(field, encode_time)


def index_values_reader(fields: Sequence[FieldDescriptor], columns: Sequence[IndexColumn]) -> ReadKey:
    """Return the function from a message to the bytes of `fields`, as an index has them of its leading columns."""
    readers = [index_value_reader(field, column) for field, column in zip(fields, columns, strict=True)]
    if len(readers) == 1:
        return readers[0]
    return lambda message: b"".join([read(message) for read in readers])


def index_bounds_reader(
    prefix: Sequence[Param], bounds: Sequence[Param], index: Index
) -> Callable[[Message], KeyBounds]:
    """Return the function from a request to the column bytes of its Range by an index; nothing is cut."""
    count = len(prefix)
    read_prefix = index_values_reader([param.field for param in prefix], index.columns[:count])
    compiled = []
    for param in bounds:
        column = index.columns[count]
        compiled.append((param.field.name, param.op, index_value_reader(param.field, column), column.after_missing()))

    def read(request: Message) -> KeyBounds:
        base = read_prefix(request)
        start: bytes | None = base
        end = after_prefix(base) if base else None
        for name, op, reader, least in compiled:
            if request.HasField(name):
                value = base + reader(request)
                low, high = _run_of(op, value[:-2] if op is Op.PREFIX else value)
                if start is not None:
                    # Rows without a value, which are first, pass no comparison.
                    start = None if low is None else max(start, low, base + least)
                end = high if end is None else end if high is None else min(end, high)
        return KeyBounds(start, end)

    return read


def filters_reader(params: Sequence[Param], hidden: Collection[str] = ()) -> Callable[[Message], list[Test]]:
    """Return the function from a request to the tests it asks for; it raises `InvalidField`.

    And `NotAllowed` where it asks by one of the `hidden` columns: who sees which rows pass sees what they hold.
    """
    makers = [_refusal(param) if _column_of_row(param).name in hidden else _test_maker(param) for param in params]

    def read(request: Message) -> list[Test]:
        return [test for maker in makers if (test := maker(request)) is not None]

    return read


class Fixed(NamedTuple):
    """A column of which some rows have one value, `value` of what `read` returns of a row message.

    Where a column has no value, `read` returns one all the same: so this tells only which rows it may be.
    """

    column: str
    value: Hashable
    read: Callable[[Any], Hashable]


def fixed_reader(params: Sequence[Param]) -> Callable[[Message], list[Fixed]]:
    """Return the function from a request to what the rows that pass its filters have one value of."""
    equal = [
        (param, _is_given(param), _wanted_reader(param), _column_value(param)) for param in params if param.op is Op.EQ
    ]

    def read(request: Message) -> list[Fixed]:
        return [
            Fixed(param.column_name, wanted(getattr(request, param.field.name)), of_row)
            for param, is_given, wanted, of_row in equal
            if is_given(request)
        ]

    return read


def _column_value(param: Param) -> Callable[[Any], Hashable]:
    """Return the function from a row to what it has in a column, as `_wanted_reader` gives what a request asks for."""
    read = operator.attrgetter(param.column_name)
    if not is_timestamp(param.column):
        return read

    def read_time(row: Any) -> Hashable:
        moment = read(row)
        return moment.seconds, moment.nanos

    return read_time


def _column_of_row(param: Param) -> FieldDescriptor:
    return param.within[0] if param.within else param.column


def _is_given(param: Param) -> Callable[[Message], bool]:
    """Return the function that says whether a request asks by a param."""
    name = param.field.name
    if param.op is Op.IN:
        return lambda request: bool(getattr(request, name))
    if param.required or not param.field.has_presence:
        return lambda _: True
    return lambda request: request.HasField(name)


def _refusal(param: Param) -> Callable[[Message], Test | None]:
    name, is_given = param.field.name, _is_given(param)

    def refuse(request: Message) -> Test | None:
        if is_given(request):
            raise NotAllowed(f'field "{name}" asks by the column "{param.column_name}", which is hidden from you')
        return None

    return refuse


def _test_maker(param: Param) -> Callable[[Message], Test | None]:
    name, is_given, read = param.field.name, _is_given(param), _wanted_reader(param)

    def make(request: Message) -> Test | None:
        return _test(param, read(getattr(request, name))) if is_given(request) else None

    return make


def _wanted_reader(param: Param) -> Callable[[Any], Any]:
    """Return the function from the value of a request field to what rows are compared with."""
    name = param.field.name
    timestamps = is_timestamp(param.column)
    if param.op is not Op.IN:
        return (lambda value: timestamp_parts(name, value)) if timestamps else (lambda value: value)
    if not timestamps:
        return frozenset
    return lambda values: frozenset(timestamp_parts(f"{name}[{at}]", value) for at, value in enumerate(values))


def _test(param: Param, wanted: Any) -> Test:
    column, compare = param.column.name, _COMPARE[param.op]
    if param.within:
        inner = _test_of(param.column, column, compare, wanted)
        within = [field.name for field in param.within]

        def test_within(row: Any) -> bool:
            for name in within:
                if not row.HasField(name):
                    return False
                row = getattr(row, name)
            return inner(row)

        return test_within
    return _test_of(param.column, column, compare, wanted)


def _test_of(field: FieldDescriptor, column: str, compare: Callable[[Any, Any], bool], wanted: Any) -> Test:
    if is_timestamp(field):
        if field.is_repeated:
            return lambda row: wanted in [(moment.seconds, moment.nanos) for moment in getattr(row, column)]

        def test_timestamp(row: Any) -> bool:
            moment = getattr(row, column)
            return row.HasField(column) and compare((moment.seconds, moment.nanos), wanted)

        return test_timestamp
    if field.has_presence:
        return lambda row: row.HasField(column) and compare(getattr(row, column), wanted)
    return lambda row: compare(getattr(row, column), wanted)
