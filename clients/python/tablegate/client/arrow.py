"""Rows as Arrow: a table for pandas, Polars and DuckDB, or batches for a file. It needs `tablegate-client[arrow]`.

What a field is in the contract, and what its column is:

    integers, float, double, bool, string, bytes   the same type of Arrow
    enum                                           string: the value's name, or its number where it has none
    Timestamp, Duration                            microseconds, the former in UTC; what is smaller is cut off
    wrappers                                       the type of their value
    Struct, Value, ListValue, Any                  string: their JSON
    other messages, repeated fields, maps          struct, list, map; a map's entries in the order of its keys

A field that has presence and is not set is null. Every other field has a value, as in protobuf.
"""

import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import pyarrow as pa
from google.protobuf import json_format
from google.protobuf.message import Message

__all__ = ["arrow_schema", "arrow_table", "record_batches"]

BATCH_ROWS = 65_536
BATCH_BYTES = 64 << 20  # of rows as protobuf has them; a column of Arrow's may have 2 GiB

MICROS_PER_S = 1_000_000

_WELL_KNOWN = "google.protobuf."
_AS_JSON = ("Any", "ListValue", "Struct", "Value")


def arrow_schema(row: type[Message], *, columns: Sequence[str] | None = None) -> pa.Schema:
    """Return the columns of a row, or those that are named, in the order of the row.

    Raise `ValueError` for a message that contains itself.
    """
    return pa.schema(list(_message(row.DESCRIPTOR, columns=columns).type))


def record_batches(
    rows: Iterable[Message],
    row: type[Message],
    *,
    columns: Sequence[str] | None = None,
    batch_rows: int = BATCH_ROWS,
    batch_bytes: int = BATCH_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Yield rows as batches of `arrow_schema(row, columns=columns)`, no batch where there are no rows.

    `rows`: messages of `row`, as a Scan gives them or a `LiveTable` has them. Each is read when its batch is made.
    Raise `ValueError` for a message that contains itself.
    """
    made = _message(row.DESCRIPTOR, columns=columns)
    for batch in _cut(rows, batch_rows, batch_bytes):
        yield pa.RecordBatch.from_struct_array(made.read(batch))


def arrow_table(rows: Iterable[Message], row: type[Message]) -> pa.Table:
    """Return rows as a table of `arrow_schema(row)`: `arrow_table(live.values(), ratings_pb2.Rating)`.

    Raise `ValueError` for a message that contains itself.
    """
    return pa.Table.from_batches(record_batches(rows, row), arrow_schema(row))


def _cut(rows: Iterable[Message], batch_rows: int, batch_bytes: int) -> Iterator[list[Message]]:
    batch: list[Message] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += row.ByteSize()
        if len(batch) >= batch_rows or size >= batch_bytes:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class _Column(NamedTuple):
    """A type of Arrow, and what makes an array of it of protobuf's values, None among them."""

    type: pa.DataType
    read: Callable[[Sequence[Any]], pa.Array]


def _message(message: Any, outer: tuple[str, ...] = (), *, columns: Sequence[str] | None = None) -> _Column:
    if message.full_name in outer:
        raise ValueError(f"{message.full_name} contains itself, and Arrow has no type for that; read its rows as JSON")
    fields = [field for field in message.fields if columns is None or field.name in columns]
    made = [_field(field, (*outer, message.full_name)) for field in fields]
    kind = pa.struct([(field.name, column.type) for field, column in zip(fields, made, strict=True)])

    def read(messages: Sequence[Any]) -> pa.Array:
        absent = [one is None for one in messages]
        if not made:
            return pa.array([None if gone else {} for gone in absent], kind)
        mask = pa.array(absent, pa.bool_()) if any(absent) else None
        return pa.StructArray.from_arrays([column.read(messages) for column in made], fields=list(kind), mask=mask)

    return _Column(kind, read)


def _field(field: Any, outer: tuple[str, ...]) -> _Column:
    """Return the column of a field, which is made of messages that have it."""
    get, name = attrgetter(field.name), field.name
    if field.is_repeated:
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        column = _map(field.message_type, outer) if is_map else _list(_value(field, outer))
        nothing: Sequence[Any] = ()
        return _Column(column.type, lambda them: column.read([nothing if one is None else get(one) for one in them]))
    column = _value(field, outer)
    if field.has_presence:
        return _Column(
            column.type,
            lambda them: column.read([get(one) if one is not None and one.HasField(name) else None for one in them]),
        )
    if outer[1:]:  # messages in a row may be missing, rows are not
        return _Column(column.type, lambda them: column.read([None if one is None else get(one) for one in them]))
    return _Column(column.type, lambda rows: column.read([*map(get, rows)]))


def _list(item: _Column) -> _Column:
    kind = pa.list_(item.type)

    def read(lists: Sequence[Any]) -> pa.Array:
        items = item.read([*chain.from_iterable(lists)])
        return pa.ListArray.from_arrays(_offsets(lists), items, type=kind)

    return _Column(kind, read)


def _map(entry: Any, outer: tuple[str, ...]) -> _Column:
    key, value = (_value(entry.fields_by_name[name], outer) for name in ("key", "value"))
    kind = pa.map_(key.type, value.type)

    def read(maps: Sequence[Any]) -> pa.Array:
        entries = [one for each in maps if each for one in sorted(each.items(), key=itemgetter(0))]
        keys, values = key.read([*map(itemgetter(0), entries)]), value.read([*map(itemgetter(1), entries)])
        return pa.MapArray.from_arrays(_offsets(maps), keys, values, type=kind)

    return _Column(kind, read)


def _offsets(lists: Sequence[Any]) -> pa.Array:
    return pa.array([0, *accumulate(map(len, lists))], pa.int32())


def _value(field: Any, outer: tuple[str, ...]) -> _Column:
    """Return the column of one value of a field."""
    if field.enum_type is not None:
        names = {value.number: value.name for value in field.enum_type.values}
        return _converted(pa.string(), lambda number: names.get(number) or str(number))
    if field.message_type is None:
        kind = _scalar(field)
        return _Column(kind, lambda values: pa.array(values, kind))
    package, _, name = field.message_type.full_name.rpartition(".")
    if f"{package}." != _WELL_KNOWN:
        return _message(field.message_type, outer)
    if name == "Timestamp":
        return _converted(pa.timestamp("us", "UTC"), lambda time: time.seconds * MICROS_PER_S + time.nanos // 1_000)
    if name == "Duration":
        return _converted(pa.duration("us"), lambda time: time.seconds * MICROS_PER_S + int(time.nanos / 1_000))
    if name in _AS_JSON:
        return _converted(pa.string(), _json)
    if name.endswith("Value"):
        return _converted(_scalar(field.message_type.fields_by_name["value"]), attrgetter("value"))
    return _message(field.message_type, outer)


def _converted(kind: pa.DataType, convert: Callable[[Any], Any]) -> _Column:
    return _Column(kind, lambda values: pa.array([None if value is None else convert(value) for value in values], kind))


def _scalar(field: Any) -> pa.DataType:
    if field.type == field.TYPE_BYTES:
        return pa.binary()
    kinds = {
        field.CPPTYPE_INT32: pa.int32(),
        field.CPPTYPE_INT64: pa.int64(),
        field.CPPTYPE_UINT32: pa.uint32(),
        field.CPPTYPE_UINT64: pa.uint64(),
        field.CPPTYPE_DOUBLE: pa.float64(),
        field.CPPTYPE_FLOAT: pa.float32(),
        field.CPPTYPE_BOOL: pa.bool_(),
    }
    return kinds.get(field.cpp_type, pa.string())


def _json(message: Any) -> str:
    try:
        value = json_format.MessageToDict(message, descriptor_pool=message.DESCRIPTOR.file.pool)
    except Exception:  # an Any, or one inside: of a type that is not known here, not of its type, or not to be said
        if message.DESCRIPTOR.name != "Any":
            raise
        value = {"@type": message.type_url, "value": b64encode(message.value).decode()}
    return json.dumps(value, ensure_ascii=False)
