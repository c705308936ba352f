"""Protobuf messages as Spark's structs, decoded in Python workers.

They unpickle this module and `tablegate.jobs.messages` by value: they need only PySpark, pyarrow and protobuf there.
"""

from collections.abc import Callable, Sequence
from decimal import Decimal
from operator import attrgetter
from typing import Any

import pyarrow as pa
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from pyspark.cloudpickle import register_pickle_by_value, unregister_pickle_by_value
from pyspark.sql import Column
from pyspark.sql import functions as sql
from pyspark.sql import types as spark_types
from pyspark.sql.pandas.types import to_arrow_type
from tablegate import jobs
from tablegate.jobs.formats import Protobuf
from tablegate.jobs.messages import files_of, pool_of

_Convert = Callable[[Any], Any]

_TIMESTAMP_S = range(-62_135_596_800, 253_402_300_800)  # the years 1 to 9999, as Timestamp itself is bounded
_DURATION_S = range(-315_576_000_000, 315_576_000_001)  # 10,000 years, as Duration itself is bounded
_NANOS, _SIGNED_NANOS = range(1_000_000_000), range(-999_999_999, 1_000_000_000)
_MONEY_SCALE = 9  # its nanos
_MONEY_DIGITS = 28

_INT, _BIGINT, _STRING = spark_types.IntegerType(), spark_types.LongType(), spark_types.StringType()
_SCALARS = {
    FieldDescriptor.TYPE_DOUBLE: spark_types.DoubleType(),
    FieldDescriptor.TYPE_FLOAT: spark_types.FloatType(),
    FieldDescriptor.TYPE_INT32: _INT,
    FieldDescriptor.TYPE_SINT32: _INT,
    FieldDescriptor.TYPE_SFIXED32: _INT,
    FieldDescriptor.TYPE_UINT32: _BIGINT,
    FieldDescriptor.TYPE_FIXED32: _BIGINT,
    FieldDescriptor.TYPE_INT64: _BIGINT,
    FieldDescriptor.TYPE_SINT64: _BIGINT,
    FieldDescriptor.TYPE_SFIXED64: _BIGINT,
    FieldDescriptor.TYPE_UINT64: spark_types.DecimalType(20, 0),
    FieldDescriptor.TYPE_FIXED64: spark_types.DecimalType(20, 0),
    FieldDescriptor.TYPE_BOOL: spark_types.BooleanType(),
    FieldDescriptor.TYPE_BYTES: spark_types.BinaryType(),
}
_MONEY = spark_types.StructType(
    [
        spark_types.StructField("currency_code", _STRING),
        spark_types.StructField("amount", spark_types.DecimalType(_MONEY_DIGITS, _MONEY_SCALE)),
    ]
)
_WRAPPERS = tuple(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_ANY_JSON = ("google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue")


class _Unfit(ValueError):
    """A value that is no value of its type."""


def decoded_message(form: Protobuf, message: Column) -> Column:
    """Return the struct of the bytes of a message, null where they are no such message."""
    descriptor = form.descriptor
    decoder = Decoder(files_of(descriptor), descriptor.full_name)

    def decode(messages: pa.Array) -> pa.Array:
        return decoder(messages)

    register_pickle_by_value(jobs)
    try:
        # Called nondeterministic, as Spark would else move filters before it and decode each record twice.
        return sql.arrow_udf(decode, decoder.schema).asNondeterministic()(message)
    finally:
        unregister_pickle_by_value(jobs)


class Decoder:
    """Turns serialized messages into rows of `schema`. It pickles, which descriptors do not."""

    def __init__(self, files: Sequence[bytes], message: str) -> None:
        self._made_of = (files, message)
        descriptor = pool_of(files).FindMessageTypeByName(message)
        self._parse = GetMessageClass(descriptor).FromString
        self.schema, self._row = _message(descriptor, ())
        self._type = to_arrow_type(self.schema, timezone="UTC")

    def __reduce__(self) -> tuple[Any, ...]:
        return Decoder, self._made_of

    def __call__(self, messages: pa.Array) -> pa.Array:
        """Return the rows, null where there is no message of the type."""
        return pa.array([self._decoded(message) for message in messages.to_pylist()], self._type)

    def _decoded(self, message: bytes | None) -> dict[str, Any] | None:
        if message is None:
            return None
        try:
            parsed = self._parse(message)
            return self._row(parsed) if parsed.IsInitialized() else None  # proto2 has fields that must be there
        except (DecodeError, _Unfit):
            return None


def _message(descriptor: Descriptor, within: tuple[str, ...]) -> tuple[spark_types.StructType, _Convert]:
    """Return the struct of a message, and what makes its row. `within`: messages that it lies in."""
    schema = spark_types.StructType()
    readers: list[tuple[str, _Convert]] = []
    for field in descriptor.fields:
        data_type, read = _field(field, (*within, descriptor.full_name))
        schema.add(field.name, data_type)
        readers.append((field.name, read))
    return schema, lambda message: {name: read(message) for name, read in readers}


def _field(field: FieldDescriptor, within: tuple[str, ...]) -> tuple[spark_types.DataType, _Convert]:
    """Return the type of a field, and what takes it out of a message: None where it is not set and could be."""
    get, name = attrgetter(field.name), field.name
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entry = field.message_type.fields_by_name
        key_type, convert_key = _value(entry["key"], within)
        value_type, convert_value = _value(entry["value"], within)
        return spark_types.MapType(key_type, value_type), lambda message: [
            (convert_key(key), convert_value(value)) for key, value in get(message).items()
        ]
    data_type, convert = _value(field, within)
    if field.is_repeated:
        return spark_types.ArrayType(data_type), lambda message: [convert(value) for value in get(message)]
    if field.has_presence:
        return data_type, lambda message: convert(get(message)) if message.HasField(name) else None
    if convert is _same:
        return data_type, get
    return data_type, lambda message: convert(get(message))


def _value(field: FieldDescriptor, within: tuple[str, ...]) -> tuple[spark_types.DataType, _Convert]:
    """Return the type of one value of a field, and what converts it."""
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return _STRING, lambda number: names.get(number) or str(number)
    if field.message_type is None:
        return (_STRING, _text) if field.type == FieldDescriptor.TYPE_STRING else (_SCALARS[field.type], _same)
    descriptor = field.message_type
    match descriptor.full_name:
        case "google.protobuf.Timestamp":
            return spark_types.TimestampType(), lambda value: _microseconds(value, _TIMESTAMP_S, _NANOS)
        case "google.protobuf.Duration":
            return spark_types.DayTimeIntervalType(), lambda value: _microseconds(value, _DURATION_S, _SIGNED_NANOS)
        case "google.type.Money":
            return _MONEY, _money
        case name if name in _WRAPPERS:
            data_type, convert = _value(descriptor.fields_by_name["value"], within)
            return data_type, lambda wrapper: convert(wrapper.value)
        case name if name in _ANY_JSON or name in within:
            return _STRING, _json  # Spark has no type that holds itself
    return _message(descriptor, within)


def _same(value: Any) -> Any:
    return value


def _text(value: str | bytes) -> str:
    if isinstance(value, bytes):  # as proto2 lets texts be that are not UTF-8
        raise _Unfit
    return value


def _microseconds(value: Any, seconds: range, nanos: range) -> int:
    if value.seconds not in seconds or value.nanos not in nanos:
        raise _Unfit
    return int(value.seconds * 1_000_000 + value.nanos // 1000)


def _money(value: Any) -> dict[str, Any]:
    if value.nanos not in _SIGNED_NANOS:
        raise _Unfit
    nanos = value.units * 10**_MONEY_SCALE + value.nanos
    return {"currency_code": _text(value.currency_code), "amount": Decimal(nanos).scaleb(-_MONEY_SCALE)}


def _json(message: Any) -> str:
    try:
        return json_format.MessageToJson(
            message,
            preserving_proto_field_name=True,
            indent=None,
            ensure_ascii=False,
            descriptor_pool=message.DESCRIPTOR.file.pool,
        )
    except (json_format.Error, ValueError, TypeError):  # NaN, a time out of bounds, an Any of an unknown type
        raise _Unfit from None
