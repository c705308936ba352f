"""Values of records that others write: their bytes to those of a row, or to a delete.

The columns of the key come from the record's key, whatever the value has in fields of these names. So a value and a
key never disagree, and a value needs no key columns.
"""

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Protocol

from google.protobuf.message import DecodeError, EncodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from typing_extensions import override

from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.columns import JSON_MESSAGES, is_map, messages_in, type_name
from tablegate.gateway.contract.foreign.avro import AvroSchemas
from tablegate.gateway.contract.foreign.columns import REQUIRED_MISSING, Hints, RowMaker, avro_hints, connect_hints
from tablegate.gateway.contract.foreign.framing import PLAIN_ID, ProtobufFrame, schema_id_of
from tablegate.gateway.contract.foreign.keys import UnfitTopic, read_json
from tablegate.gateway.contract.foreign.sayable import check_of
from tablegate.gateway.contract.keys import KeyValue
from tablegate.gateway.contract.rows import (
    VALUE_PREFIX_BYTES,
    UndecodableRecord,
    UnfitSchema,
    row_reader,
)
from tablegate.gateway.contract.value_schemas import columns_of, fit_fields
from tablegate.v1 import changelog_pb2
from tablegate.v1.changelog_pb2 import ForeignTopic

_TIME_BYTES = 8


class ValueReader(Protocol):
    """Values of a topic."""

    def read(self, value: bytes, key: Sequence[KeyValue]) -> bytes | None:
        """Return the bytes of the row with that key, None where it is deleted; raise `UndecodableRecord`."""

    def content(self, value: bytes) -> Any:
        """Return what the row of a value is made of, also that which it leaves out: an object, or a message.

        The value is one that `read` has made a row of.
        """


def value_reader(table: Table, topic: ForeignTopic, value_schemas: Mapping[int, str]) -> ValueReader:
    """Return what reads the values of a topic; raise `UnfitTopic`."""
    reader = _reader(table, topic, value_schemas)
    if topic.stored_format == changelog_pb2.STORED_FORMAT_UNSPECIFIED:
        return reader
    if topic.stored_format in (changelog_pb2.STORED_FORMAT_TIMESTAMPED, changelog_pb2.STORED_FORMAT_VERSIONED):
        return _StoredValues(
            reader, stored_bytes(topic), has_flag=topic.stored_format == changelog_pb2.STORED_FORMAT_VERSIONED
        )
    raise UnfitTopic("the format of its values is of a newer version of Tablegate; start newer gateways")


def stored_bytes(topic: ForeignTopic) -> int:
    """Return how many bytes a store of Kafka Streams has put before a value."""
    match topic.stored_format:
        case changelog_pb2.STORED_FORMAT_TIMESTAMPED:
            return _TIME_BYTES
        case changelog_pb2.STORED_FORMAT_VERSIONED:
            return _TIME_BYTES + 1
    return 0


def _reader(table: Table, topic: ForeignTopic, value_schemas: Mapping[int, str]) -> ValueReader:
    match codec := topic.value_codec:
        case changelog_pb2.VALUE_CODEC_JSON:
            return _JsonValues(table)
        case changelog_pb2.VALUE_CODEC_JSON_SCHEMA:
            return _JsonValues(table, has_prefix=True)
        case changelog_pb2.VALUE_CODEC_DEBEZIUM_JSON:
            return _JsonValues(table, is_debezium=True)
        case changelog_pb2.VALUE_CODEC_PROTOBUF:
            return _ProtobufValues(table, ProtobufFrame(topic.value_index, "value"))
        case changelog_pb2.VALUE_CODEC_PROTOBUF_PLAIN:
            return _ProtobufValues(table, None)
        case changelog_pb2.VALUE_CODEC_AVRO | changelog_pb2.VALUE_CODEC_AVRO_PLAIN:
            if (PLAIN_ID in value_schemas) is not (codec == changelog_pb2.VALUE_CODEC_AVRO_PLAIN):
                raise UnfitTopic("its value schemas have ids where its values have none, or none where they have")
            try:
                return _AvroValues(table, value_schemas)
            except UnfitSchema as error:
                raise UnfitTopic(str(error)) from None
        case changelog_pb2.VALUE_CODEC_DEBEZIUM_AVRO:
            try:
                return _DebeziumAvroValues(table, value_schemas)
            except UnfitSchema as error:
                raise UnfitTopic(str(error)) from None
    raise UnfitTopic("the codec of its values is of a newer version of Tablegate; start newer gateways")


class _StoredValues(ValueReader):
    """Values with what a store of Kafka Streams puts before them."""

    def __init__(self, inner: ValueReader, byte_count: int, *, has_flag: bool) -> None:
        self._inner = inner
        self._bytes = byte_count
        self._has_flag = has_flag

    @override
    def read(self, value: bytes, key: Sequence[KeyValue]) -> bytes | None:
        if len(value) < self._bytes:
            raise UndecodableRecord("value has no time before it")
        if self._has_flag and value[_TIME_BYTES]:
            return None
        return self._inner.read(value[self._bytes :], key)

    @override
    def content(self, value: bytes) -> Any:
        return self._inner.content(value[self._bytes :])


class _JsonValues(ValueReader):
    def __init__(self, table: Table, *, has_prefix: bool = False, is_debezium: bool = False) -> None:
        self._rows = RowMaker(table)
        self._has_prefix = has_prefix
        self._is_debezium = is_debezium
        # An amount is not rounded on its way; other numbers are read faster without.
        self._options: dict[str, Any] = {"parse_float": Decimal} if self._rows.has_money else {}

    @override
    def read(self, value: bytes, key: Sequence[KeyValue]) -> bytes | None:
        if self._has_prefix:
            schema_id_of(value, "value")
            value = value[VALUE_PREFIX_BYTES:]
        found, schema = read_json(value, "value", **self._options)
        if self._is_debezium:
            if after_of(found) is None:
                return None
            found = found["after"]
            schema = _field_schema(schema, "after") if schema is not None else None
        hints = connect_hints(schema) if schema is not None and self._rows.has_hints else {}
        return self._rows.make(found, key, hints)

    @override
    def content(self, value: bytes) -> Any:
        found, _ = read_json(value[VALUE_PREFIX_BYTES if self._has_prefix else 0 :], "value")
        return after_of(found) if self._is_debezium else found


def after_of(envelope: Any) -> Any:
    """Return the row after a change in Debezium's envelope; None where it is deleted. Raise `UndecodableRecord`."""
    if not isinstance(envelope, dict) or not isinstance(envelope.get("op"), str):
        raise UndecodableRecord("value is no envelope of Debezium")
    match envelope["op"]:
        case "c" | "u" | "r":
            if envelope.get("after") is None:
                raise UndecodableRecord("value is an envelope without the row after the change")
            return envelope["after"]
        case "d":
            return None
        case "t":
            raise UndecodableRecord("value is a truncation of the table, which names no rows")
        case "m":
            raise UndecodableRecord("value is a message of the database, which is no row")
    raise UndecodableRecord("value is an envelope of an unknown operation")


def _field_schema(schema: Any, name: str) -> Any:
    fields = schema.get("fields") if isinstance(schema, dict) else None
    for field in fields if isinstance(fields, list) else ():
        if isinstance(field, dict) and field.get("field") == name:
            return field
    return None


class _AvroValues(ValueReader):
    """Schemas whose fields are columns are read as those of our own changelogs are; others by way of Python."""

    def __init__(self, table: Table, schemas: Mapping[int, str]) -> None:
        self._rows = RowMaker(table)
        self._schemas = AvroSchemas("value", schemas)
        self._start = 0 if self._schemas.is_plain else VALUE_PREFIX_BYTES
        self._fast: dict[int, Callable[[bytes], bytes]] = {}
        self._hints: dict[int, Hints] = {}
        key = [column.name for column in table.key]
        # That a field of proto2 is there which has to be, the runtime says of a message that it writes.
        has_required = any(column.is_required for column in columns_of(table.row))
        for schema_id, text in schemas.items():
            try:
                if has_required:
                    raise UnfitSchema("it has required fields")
                fields = fit_fields(f"value schema {schema_id}", table, text, without=key, by_json_names=True)
                self._fast[schema_id] = row_reader(fields, start=self._start)
            except UnfitSchema:
                self._hints[schema_id] = avro_hints(self._schemas.parsed[schema_id])
        found = {field["name"] for parsed in self._schemas.parsed.values() for field in _fields_of(parsed)}
        for column in table.row.fields:
            if column.name not in key and not found & {column.name, column.json_name}:
                raise UnfitSchema(
                    f'no value schema has the field "{column.name}" of the contract; take it out of the row, or say in '
                    "the contract what the field is called, by json_name"
                )

    @override
    def read(self, value: bytes, key: Sequence[KeyValue]) -> bytes | None:
        schema_id = self._schemas.id_of(value)
        fast = self._fast.get(schema_id)
        if fast is not None:
            return fast(value) + self._rows.key_bytes(key)
        _, found = self._schemas.read(value)
        return self._rows.make(found, key, self._hints[schema_id])

    @override
    def content(self, value: bytes) -> Any:
        return self._schemas.read(value)[1]


def _fields_of(parsed: Any) -> Sequence[Any]:
    if not isinstance(parsed, dict) or parsed.get("type") != "record":
        raise UnfitSchema("a value schema is no Avro record")
    fields: Sequence[Any] = parsed["fields"]
    return fields


class _DebeziumAvroValues(ValueReader):
    def __init__(self, table: Table, schemas: Mapping[int, str]) -> None:
        self._rows = RowMaker(table)
        self._schemas = AvroSchemas("value", schemas)
        self._hints = {schema_id: avro_hints(row_schema_of(each)) for schema_id, each in self._schemas.parsed.items()}

    @override
    def read(self, value: bytes, key: Sequence[KeyValue]) -> bytes | None:
        schema_id, found = self._schemas.read(value)
        after = after_of(found)
        return None if after is None else self._rows.make(after, key, self._hints[schema_id])

    @override
    def content(self, value: bytes) -> Any:
        return after_of(self._schemas.read(value)[1])


def row_schema_of(envelope: Any) -> Any:
    """Return the schema of a row in that of its envelope: where it is defined, which is mostly `before`.

    Raise `UnfitSchema`.
    """
    for field in _fields_of(envelope):
        for one in field["type"] if isinstance(field["type"], list) else ():
            if field["name"] in ("before", "after") and isinstance(one, dict) and one.get("type") == "record":
                return one
    raise UnfitSchema("a value schema is no envelope of Debezium: it has no record before or after")


class _ProtobufValues(ValueReader):
    """Values whose bytes are the row's: they are checked, and copied where nothing is to be left out."""

    def __init__(self, table: Table, frame: ProtobufFrame | None) -> None:
        self._parse: Callable[[bytes], Any] = table.row_class.FromString
        self._rows = RowMaker(table)
        self._frame = frame
        self._check = check_of(table.row)
        # Lists of numbers and entries of maps, as a Struct has them, are all that may be shorter than we write it.
        self._is_shortest = not any(
            column.is_repeated or type_name(column) in JSON_MESSAGES for column in columns_of(table.row)
        )

    @override
    def read(self, value: bytes, key: Sequence[KeyValue]) -> bytes | None:
        if self._frame is not None:
            value = self._frame.body(value)
        try:
            row = self._parse(value)
        except DecodeError:
            raise UndecodableRecord("value does not parse") from None
        if self._check is not None:
            self._check(row)
        # Clients are given what the contract has, and nothing else that is in the topic. To look at each message for
        # what is left out would take half of the time; that it became shorter says as much.
        try:
            whole = len(value) if self._is_shortest else row.ByteSize()
            row.DiscardUnknownFields()
            if row.ByteSize() != whole and self._has_unknown(value, row):
                _check_unknown_fields(self._parse(value))
            elif self._rows.has_key(row, key):
                return value
        except EncodeError:
            raise UndecodableRecord(REQUIRED_MISSING) from None
        for name in self._rows.key_names:
            row.ClearField(name)
        self._rows.put_key(row, key)
        return bytes(row.SerializeToString())

    @override
    def content(self, value: bytes) -> Any:
        return self._parse(value if self._frame is None else self._frame.body(value))

    def _has_unknown(self, value: bytes, row: Any) -> bool:
        """Return whether a value has more than its row; it may also be longer than it would have to be."""
        return bool(self._parse(value).ByteSize() != row.ByteSize())


def _check_unknown_fields(message: Any) -> None:
    """Raise `UndecodableRecord` where a message, or one in it, has a field that its type has as another type."""
    unknown = UnknownFieldSet(message)
    for at in range(len(unknown)):
        field = message.DESCRIPTOR.fields_by_number.get(unknown[at].field_number)
        if field is None:
            continue
        of = field.message_type.fields_by_name["value"] if is_map(field) else field
        if of.enum_type is not None and of.enum_type.is_closed:
            raise UndecodableRecord("value has a number of an enum of proto2 that the contract lacks")
        raise UndecodableRecord("value has a field of another type than the contract")
    for inner in messages_in(message):
        _check_unknown_fields(inner)
