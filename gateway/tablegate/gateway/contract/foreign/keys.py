"""Keys of records that others write: their bytes to the columns of the table's key, and back.

Back, because whoever reads one key has to find its partition, which the producer chose by the bytes that it wrote.
"""

import json
import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from typing_extensions import override

from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.columns import key_type
from tablegate.gateway.contract.foreign.avro import AvroSchemas
from tablegate.gateway.contract.foreign.columns import NO_HINT, Hints, avro_hints, connect_hints, key_value_of
from tablegate.gateway.contract.foreign.framing import PLAIN_ID, ProtobufFrame
from tablegate.gateway.contract.keys import KeyColumn, KeyType, KeyValue
from tablegate.gateway.contract.rows import UndecodableRecord, UnfitSchema
from tablegate.v1 import changelog_pb2
from tablegate.v1.changelog_pb2 import ForeignTopic

_TIME = struct.Struct(">q")
_WINDOW_MS_MAX = 2**63 // 1_000 - 1


class UnfitTopic(ValueError):
    """A topic whose records cannot be rows of the table; the message says why, and what to do."""


class KeyReader(Protocol):
    """Keys of a topic. Both raise `UndecodableRecord`."""

    def read(self, key: bytes) -> tuple[KeyValue, ...]:
        """Return the value of each key column."""

    def write(self, values: Sequence[KeyValue]) -> bytes:
        """Return the bytes by which a producer chooses the partition: those of the key, without its window."""

    def placed_by(self, key: bytes, values: Sequence[KeyValue]) -> bytes:  # noqa: ARG002
        """Return what `write` makes of `values`, which were read of `key`."""
        return self.write(values)


def key_reader(table: Table, topic: ForeignTopic) -> KeyReader:
    """Return what reads the keys of a topic; raise `UnfitTopic`."""
    window_columns = _WINDOW_COLUMNS.get(topic.key_window)
    if window_columns is None:
        raise UnfitTopic("the window of its keys is of a newer version of Tablegate; start newer gateways")
    inner_count = len(table.key) - len(window_columns)
    columns = table.key[:inner_count]
    if not columns:
        needed = len(window_columns) + 1
        raise UnfitTopic(f"windowed keys need {needed} key columns at least; name them in the contract")
    inner = _inner_reader(table, columns, topic)
    return inner if not window_columns else _WindowedKeys(inner, table.key[inner_count:], topic.key_window)


def _inner_reader(table: Table, columns: Sequence[KeyColumn], topic: ForeignTopic) -> KeyReader:
    codec = topic.key_codec
    scalar = _SCALARS.get(codec)
    if scalar is not None:
        wanted, name, make = scalar
        if [column.type for column in columns] != [wanted]:
            has = ", ".join(f"{column.name} {column.type.name.lower()}" for column in columns)
            raise UnfitTopic(
                f"keys of codec {name} are one column of type {wanted.name.lower()}, and the contract has ({has})"
            )
        return make()
    fields = [table.row.fields_by_name[column.name] for column in columns]
    if codec == changelog_pb2.KEY_CODEC_JSON:
        return _JsonKeys(columns, fields)
    if codec in (changelog_pb2.KEY_CODEC_AVRO, changelog_pb2.KEY_CODEC_AVRO_PLAIN):
        try:
            return _AvroKeys(columns, fields, topic)
        except UnfitSchema as error:
            raise UnfitTopic(str(error)) from None
    if codec in (changelog_pb2.KEY_CODEC_PROTOBUF, changelog_pb2.KEY_CODEC_PROTOBUF_PLAIN):
        return _ProtobufKeys(table, columns, topic)
    raise UnfitTopic("the codec of its keys is of a newer version of Tablegate; start newer gateways")


class _ScalarKeys(KeyReader):
    """Keys that have one writing each: what was read is what would be written."""

    @override
    def placed_by(self, key: bytes, values: Sequence[KeyValue]) -> bytes:
        return key


class _TextKeys(_ScalarKeys):
    @override
    def read(self, key: bytes) -> tuple[KeyValue, ...]:
        try:
            return (key.decode(),)
        except UnicodeDecodeError:
            raise UndecodableRecord("key is not UTF-8") from None

    @override
    def write(self, values: Sequence[KeyValue]) -> bytes:
        [text] = values
        assert isinstance(text, str)
        return text.encode()


class _NumberKeys(_ScalarKeys):
    def __init__(self, byte_count: int) -> None:
        self._bytes = byte_count

    @override
    def read(self, key: bytes) -> tuple[KeyValue, ...]:
        if len(key) != self._bytes:
            raise UndecodableRecord(f"key has not {self._bytes} bytes")
        return (int.from_bytes(key, "big", signed=True),)

    @override
    def write(self, values: Sequence[KeyValue]) -> bytes:
        [number] = values
        assert isinstance(number, int)
        try:
            return number.to_bytes(self._bytes, "big", signed=True)
        except OverflowError:
            raise UndecodableRecord(f"key is no number of {self._bytes} bytes") from None


class _BytesKeys(_ScalarKeys):
    @override
    def read(self, key: bytes) -> tuple[KeyValue, ...]:
        return (key,)

    @override
    def write(self, values: Sequence[KeyValue]) -> bytes:
        [raw] = values
        assert isinstance(raw, bytes)
        return raw


_SCALARS: dict[int, tuple[KeyType, str, Callable[[], KeyReader]]] = {
    changelog_pb2.KEY_CODEC_UTF8: (KeyType.STRING, "utf8", _TextKeys),
    changelog_pb2.KEY_CODEC_INT32: (KeyType.INT64, "int32", lambda: _NumberKeys(4)),
    changelog_pb2.KEY_CODEC_INT64: (KeyType.INT64, "int64", lambda: _NumberKeys(8)),
    changelog_pb2.KEY_CODEC_BYTES: (KeyType.BYTES, "bytes", _BytesKeys),
}


class _Fields:
    """The key columns of what has fields, by their names, or of the value of the only column."""

    def __init__(self, columns: Sequence[KeyColumn], fields: Sequence[FieldDescriptor]) -> None:
        pairs = zip(columns, fields, strict=True)
        self._columns = [(column.name, field.json_name, key_value_of(column, field)) for column, field in pairs]

    def values_of(self, found: Any, hints: Hints) -> tuple[KeyValue, ...]:
        """Return the values of the columns; raise `UndecodableRecord`."""
        if not isinstance(found, dict):
            if len(self._columns) > 1 or found is None:
                raise UndecodableRecord("key is no object")
            return (self._columns[0][2](found, NO_HINT),)
        values = []
        for name, json_name, key_value in self._columns:
            value = found.get(name)
            if value is None:
                value = found.get(json_name)
                if value is None:
                    raise UndecodableRecord(f'key has no "{name}"')
            values.append(key_value(value, hints.get(name, NO_HINT)))
        return tuple(values)


class _JsonKeys(KeyReader):
    """They are written as an object without spaces, whose fields are in the order of the key."""

    def __init__(self, columns: Sequence[KeyColumn], fields: Sequence[FieldDescriptor]) -> None:
        self._fields = _Fields(columns, fields)
        self._names = [column.name for column in columns]

    @override
    def read(self, key: bytes) -> tuple[KeyValue, ...]:
        found, schema = read_json(key, "key")
        return self._fields.values_of(found, connect_hints(schema) if schema is not None else {})

    @override
    def write(self, values: Sequence[KeyValue]) -> bytes:
        try:
            text = json.dumps(dict(zip(self._names, values, strict=True)), separators=(",", ":"), ensure_ascii=False)
        except TypeError:
            raise UndecodableRecord("key has bytes, which JSON writes in several ways") from None
        return text.encode()


def read_json(data: bytes, what: str, **options: Any) -> tuple[Any, Any]:
    """Return what a JSON text says, and the schema that Kafka Connect has put beside it; None where there is none."""
    try:
        found = json.loads(data, **options)
    except (ValueError, RecursionError):
        raise UndecodableRecord(f"{what} is not JSON") from None
    if isinstance(found, dict) and len(found) == 2 and "schema" in found and "payload" in found:
        schema = found["schema"]
        if schema is None or (isinstance(schema, dict) and "type" in schema):  # else they are columns
            return found["payload"], schema
    return found, None


class _AvroKeys(KeyReader):
    def __init__(self, columns: Sequence[KeyColumn], fields: Sequence[FieldDescriptor], topic: ForeignTopic) -> None:
        self._schemas = AvroSchemas("key", topic.key_schemas)
        if self._schemas.is_plain is not (topic.key_codec == changelog_pb2.KEY_CODEC_AVRO_PLAIN):
            raise UnfitSchema("its key schemas have ids where its keys have none, or none where they have")
        self._fields = _Fields(columns, fields)
        self._hints = {schema_id: avro_hints(parsed) for schema_id, parsed in self._schemas.parsed.items()}
        self._newest_id = max(self._schemas.parsed)
        newest = self._schemas.parsed[self._newest_id]
        self._is_record = isinstance(newest, dict) and newest.get("type") == "record"
        theirs = {field["name"] for field in newest["fields"]} if self._is_record else ()
        self._names = [field.name if field.name in theirs else field.json_name for field in fields]

    @override
    def read(self, key: bytes) -> tuple[KeyValue, ...]:
        schema_id, found = self._schemas.read(key)
        return self._fields.values_of(found, self._hints[schema_id])

    @override
    def write(self, values: Sequence[KeyValue]) -> bytes:
        found: Any = dict(zip(self._names, values, strict=True)) if self._is_record else values[0]
        return self._schemas.write(self._newest_id, found)


class _ProtobufKeys(KeyReader):
    def __init__(self, table: Table, columns: Sequence[KeyColumn], topic: ForeignTopic) -> None:
        has_frame = topic.key_codec == changelog_pb2.KEY_CODEC_PROTOBUF
        self._frame = ProtobufFrame(topic.key_index, "key") if has_frame else None
        descriptor = key_message(table, topic.key_message)
        for column in columns:
            field = descriptor.fields_by_name.get(column.name)
            if field is None or field.is_repeated or key_type(field) is not column.type:
                type_name = column.type.name.lower()
                raise UnfitTopic(f'message {descriptor.full_name} of its keys has no {type_name} "{column.name}"')
        self._class: Any = GetMessageClass(descriptor)
        self._columns = [(column.name, column.type is KeyType.TIMESTAMP) for column in columns]

    @override
    def read(self, key: bytes) -> tuple[KeyValue, ...]:
        body = self._frame.body(key) if self._frame is not None else key
        try:
            message = self._class.FromString(body)
        except DecodeError:
            raise UndecodableRecord("key does not parse") from None
        try:
            return tuple(
                getattr(message, name).ToMicroseconds() if is_time else getattr(message, name)
                for name, is_time in self._columns
            )
        except ValueError:
            raise UndecodableRecord("key has a time that is none") from None

    @override
    def write(self, values: Sequence[KeyValue]) -> bytes:
        message = self._class()
        for (name, is_time), value in zip(self._columns, values, strict=True):
            try:
                if is_time:
                    getattr(message, name).FromMicroseconds(value)
                else:
                    setattr(message, name, value)
            except ValueError:
                raise UndecodableRecord(f'key has a "{name}" that its message cannot hold') from None
        return bytes(message.SerializeToString(deterministic=True))


def key_message(table: Table, name: str) -> Descriptor:
    """Return the message of the contract that keys are; raise `UnfitTopic`."""
    if not name:
        raise UnfitTopic("keys in Protobuf need the message that they are: --key-message, with its full name")
    try:
        return table.row.file.pool.FindMessageTypeByName(name)
    except KeyError:
        raise UnfitTopic(f"the contract has no message {name}, which the keys are; put it into the contract") from None


_WINDOW_COLUMNS: dict[int, tuple[str, ...]] = {
    changelog_pb2.KEY_WINDOW_UNSPECIFIED: (),
    changelog_pb2.KEY_WINDOW_TIME: ("start",),
    changelog_pb2.KEY_WINDOW_TIME_STORE: ("start",),
    changelog_pb2.KEY_WINDOW_SESSION: ("start", "end"),
}
_WINDOW_BYTES: dict[int, int] = {
    changelog_pb2.KEY_WINDOW_TIME: 8,
    changelog_pb2.KEY_WINDOW_TIME_STORE: 12,
    changelog_pb2.KEY_WINDOW_SESSION: 16,
}


class _WindowedKeys(KeyReader):
    """Keys with a window behind them, which chooses no partition."""

    def __init__(self, inner: KeyReader, columns: Sequence[KeyColumn], window: int) -> None:
        for column in columns:
            if column.type not in (KeyType.TIMESTAMP, KeyType.INT64):
                type_name = column.type.name.lower()
                raise UnfitTopic(
                    f'key column "{column.name}" is the time of a window, and of type {type_name}; '
                    "make it a google.protobuf.Timestamp, or an int64 of milliseconds"
                )
        self._inner = inner
        self._scales = [1_000 if column.type is KeyType.TIMESTAMP else 1 for column in columns]
        self._is_session = window == changelog_pb2.KEY_WINDOW_SESSION
        self._bytes = _WINDOW_BYTES[window]

    @override
    def read(self, key: bytes) -> tuple[KeyValue, ...]:
        at = len(key) - self._bytes
        if at < 0:
            raise UndecodableRecord("key has no window behind it")
        times = [_TIME.unpack_from(key, at)[0]]
        if self._is_session:
            times.insert(0, _TIME.unpack_from(key, at + 8)[0])  # the end comes first in it
        if not all(0 <= time <= _WINDOW_MS_MAX for time in times):
            raise UndecodableRecord("key has a window at no time")
        return (*self._inner.read(key[:at]), *(time * by for time, by in zip(times, self._scales, strict=True)))

    @override
    def write(self, values: Sequence[KeyValue]) -> bytes:
        return self._inner.write(self._without_window(values))

    @override
    def placed_by(self, key: bytes, values: Sequence[KeyValue]) -> bytes:
        return self._inner.placed_by(key[: len(key) - self._bytes], self._without_window(values))

    def _without_window(self, values: Sequence[KeyValue]) -> Sequence[KeyValue]:
        return values[: len(values) - len(self._scales)]


def has_one_writing(topic: ForeignTopic) -> bool:
    """Return whether a key's columns say what its bytes are, so that its partition can be computed."""
    if topic.key_codec == changelog_pb2.KEY_CODEC_PROTOBUF:
        return False  # it has a schema id, which nobody knows
    if topic.key_codec in (changelog_pb2.KEY_CODEC_AVRO, changelog_pb2.KEY_CODEC_AVRO_PLAIN):
        return len(topic.key_schemas) == 1 or PLAIN_ID in topic.key_schemas
    return True
