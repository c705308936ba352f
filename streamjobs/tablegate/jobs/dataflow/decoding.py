"""Formats as Spark SQL: bytes of a record to fields, what can be wrong with them, and expressions to bytes.

All of it is expressions, not Python functions, because Real-time Mode runs no Python; but for `Protobuf`, of which
Spark's own expressions are in a jar of their own, and which runs in micro-batches.

Decision: docs/decisions/0011-protobuf-sources-in-python.md
Decision: docs/decisions/0012-no-record-stops-a-job.md
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from operator import attrgetter
from typing import Any

import pyarrow as pa
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql import types as spark_types
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.pandas.types import to_arrow_type

from tablegate.jobs.dataflow.keys import is_row_key_sql, row_key_parts_sql
from tablegate.jobs.dataflow.processors import pickled_by_value
from tablegate.jobs.dataflow.protobuf_encoding import encoded_message_sql
from tablegate.jobs.formats import OWN_SCHEMA_ID, Avro, Bytes, Double, Format, Json, Long, Protobuf, RowKey, Text
from tablegate.jobs.messages import files_of, frame_indexes, pool_of
from tablegate.jobs.planning.schemas import WriterSchemas

_FRAME_BYTES = 5  # 00 and the schema id
_DECODED = "__decoded"
_CORRUPT = "__corrupt"


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that can be wrong with a record: SQL of the condition and of the text. `kind` is what is counted."""

    kind: str
    condition: str
    text: str


@dataclass(frozen=True, slots=True)
class Decoded:
    """How the bytes of one column become fields: a struct column, and what can be wrong, where bytes are not null.

    `at`: name of the struct in it that has the fields, where it is not the struct itself.
    """

    struct: Column
    fields: tuple[str, ...]
    problems: tuple[Problem, ...]
    at: str | None = None


def decoded(form: Format | RowKey, bytes_column: str, into: str, schemas: WriterSchemas | None) -> Decoded:
    """Return the decoding of `bytes_column`, whose struct will be the column `into`."""
    what = bytes_column.rpartition(".")[2]
    if isinstance(form, Avro):
        return _decoded_avro(form, bytes_column, into, schemas)
    if isinstance(form, RowKey):
        parts = row_key_parts_sql(form.columns, bytes_column)
        fields = ", ".join(f"{part} AS `{name}`" for name, part in zip(form.field_names, parts, strict=True))
        no_key = Problem("no_key", f"NOT {is_row_key_sql(form.columns, bytes_column)}", "'key is not that of a row'")
        return Decoded(sql.expr(f"struct({fields})"), form.field_names, (no_key,))
    if isinstance(form, Protobuf):
        return _decoded_protobuf(form, bytes_column, into)
    if isinstance(form, Json):
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        text = sql.expr(f"IF(is_valid_utf8({bytes_column}), CAST({bytes_column} AS STRING), NULL)")
        fields = form.fields if form.at is None else f"`{form.at}` STRUCT<{form.fields}>"
        struct = sql.from_json(text, f"{fields}, {_CORRUPT} STRING", options)
        object_is_null = "" if form.at is None else f" OR {into}.`{form.at}` IS NULL"
        wrong = Problem(
            f"not_json_{what}",
            f"{into} IS NULL OR {into}.{_CORRUPT} IS NOT NULL{object_is_null}",
            f"'{what} is not a JSON object of the fields {fields.replace(chr(39), '')}'",
        )
        return Decoded(struct, form.field_names, (wrong,), form.at)
    name = form.field_names[0]
    if isinstance(form, Text):
        field = f"IF(is_valid_utf8({bytes_column}), CAST({bytes_column} AS STRING), NULL)"
        problem = Problem(f"not_text_{what}", f"NOT is_valid_utf8({bytes_column})", f"'{what} is not UTF-8'")
    elif isinstance(form, Bytes):
        return Decoded(sql.expr(f"named_struct('{name}', {bytes_column})"), (name,), ())
    else:
        field = _long(bytes_column) if isinstance(form, Long) else _double(bytes_column)
        problem = Problem(f"not_8_bytes_{what}", f"octet_length({bytes_column}) <> 8", f"'{what} is not 8 bytes'")
    return Decoded(sql.expr(f"named_struct('{name}', {field})"), (name,), (problem,))


def _long(bytes_column: str) -> str:
    return f"IF(octet_length({bytes_column}) = 8, CAST(conv(hex({bytes_column}), 16, -10) AS BIGINT), NULL)"


def _double(bytes_column: str) -> str:
    # Avro's double is the same 8 bytes, the lowest first.
    return f"""IF(octet_length({bytes_column}) = 8, from_avro({_reversed(bytes_column)}, '"double"', map()), NULL)"""


def _reversed(bytes_column: str) -> str:
    return f"concat({', '.join(f'substring({bytes_column}, {place}, 1)' for place in range(8, 0, -1))})"


def _decoded_avro(form: Avro, bytes_column: str, into: str, schemas: WriterSchemas | None) -> Decoded:
    """Decode the record to a struct, all of whose fields are null where it does not decode.

    A damaged record and one whose fields are all null would both be null. So the reader's schema has one field more,
    which no writer has: Avro fills in its default wherever a record decodes.
    """
    what = bytes_column.rpartition(".")[2]
    suffix = "" if what == "value" else f"_{what}"
    reader = json.loads(form.schema)
    reader["fields"].append({"name": _DECODED, "type": "boolean", "default": True})
    options = {"mode": "PERMISSIVE", "avroSchema": json.dumps(reader)}
    body = sql.expr(f"substring({bytes_column}, {_FRAME_BYTES + 1})")
    problems = [
        Problem(
            f"not_framed{suffix}",
            f"NOT {is_framed_sql(bytes_column)}",
            f"'{what} is not Avro in the Confluent wire format'",
        )
    ]
    if schemas is None:
        struct = from_avro(body, form.schema, options)
    else:
        schema_id = schema_id_sql(bytes_column)
        struct = sql.expr("NULL")
        for number, writer in schemas.decoded.items():
            struct = sql.when(sql.expr(f"{schema_id} = {number}"), from_avro(body, writer, options)).otherwise(struct)
        for number, why in schemas.incompatible.items():
            text = f"schema {schemas.called(number)} cannot be read as the declared one: {why}"
            problems.append(Problem("incompatible_schema", f"{schema_id} = {number}", _literal(text)))
        known = ", ".join(str(number) for number in [-1, *schemas.decoded, *schemas.ignored, *schemas.incompatible])
        problems.append(
            Problem(
                "unknown_schema",
                f"{schema_id} NOT IN ({known})",
                f"concat('schema id ', {schema_id}, ' is not that of a schema of this topic')",
            )
        )
    undecodable = f"'{what} does not decode by its Avro schema'"
    problems.append(Problem(f"undecodable{suffix}", f"{into}.{_DECODED} IS NULL", undecodable))
    return Decoded(struct, form.field_names, tuple(problems))


def _decoded_protobuf(form: Protobuf, bytes_column: str, into: str) -> Decoded:
    """Decode the message to a struct, null where it does not decode."""
    what = bytes_column.rpartition(".")[2]
    undecodable = Problem(f"undecodable_{what}", f"{into} IS NULL", f"'{what} is not a message {form.message}'")
    if not form.framed:
        return Decoded(decoded_message(form, sql.expr(bytes_column)), form.field_names, (undecodable,))
    branches, is_own = "", []
    for index in frame_indexes(form.descriptor):
        is_own.append(f"substring({bytes_column}, {_FRAME_BYTES + 1}, {len(index)}) = X'{index.hex()}'")
        branches += f" WHEN {is_own[-1]} THEN substring({bytes_column}, {_FRAME_BYTES + 1 + len(index)})"
    is_framed = f"({is_framed_sql(bytes_column)} AND octet_length({bytes_column}) > {_FRAME_BYTES})"
    other = f"{what} has another message index than {form.message} has in {form.file}"
    message = sql.expr(f"CASE WHEN NOT {is_framed} THEN NULL{branches} END")
    problems = (
        Problem(f"not_framed_{what}", f"NOT {is_framed}", f"'{what} is not Protobuf in the Confluent wire format'"),
        Problem(f"other_message_{what}", f"NOT ({' OR '.join(is_own)})", _literal(other)),
        undecodable,
    )
    return Decoded(decoded_message(form, message), form.field_names, problems)


def is_framed_sql(bytes_column: str) -> str:
    """Return the SQL of whether a value is in the Confluent wire format."""
    return f"(octet_length({bytes_column}) >= {_FRAME_BYTES} AND substring({bytes_column}, 1, 1) = X'00')"


def schema_id_sql(bytes_column: str) -> str:
    """Return the SQL of the schema id of a framed value."""
    return f"CAST(conv(hex(substring({bytes_column}, 2, {_FRAME_BYTES - 1})), 16, 10) AS BIGINT)"


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def ignored_sql(schemas: WriterSchemas | None, bytes_column: str) -> str:
    """Return the SQL of the name of the record type that a framed value has, where it is passed over; else null."""
    if schemas is None or not schemas.ignored:
        return "CAST(NULL AS STRING)"
    names: Mapping[int, str] = schemas.ignored
    branches = " ".join(f"WHEN {number} THEN {_literal(name)}" for number, name in names.items())
    return f"CASE WHEN {is_framed_sql(bytes_column)} THEN CASE {schema_id_sql(bytes_column)} {branches} END END"


def _encoded_avro(form: Avro, schema_id: int) -> str:
    # Spark refuses other types than the schema's only when it writes a record, so they are made the same before.
    reader = SparkSession.active().range(0).select(from_avro(sql.lit(b""), form.schema).alias("record"))
    record = reader.schema["record"].dataType
    assert isinstance(record, spark_types.StructType), "declarations refuse other schemas"
    fields = ", ".join(f"{_as_type(f'`{one.name}`', one.dataType)} AS `{one.name}`" for one in record.fields)
    return f"concat(X'00{schema_id:08X}', to_avro(struct({fields}), {_literal(form.schema)}))"


def _as_type(value: str, wanted: spark_types.DataType, depth: int = 0) -> str:
    """Return the SQL of a value as another type. A cast alone would take the fields of a struct by their places."""
    if "struct<" not in wanted.simpleString():
        return f"CAST({value} AS {wanted.simpleString()})"
    one = f"one_{depth}"
    match wanted:
        case spark_types.StructType():
            parts = (f"{_as_type(f'{value}.`{of.name}`', of.dataType, depth)} AS `{of.name}`" for of in wanted.fields)
            return f"IF({value} IS NULL, NULL, struct({', '.join(parts)}))"
        case spark_types.ArrayType():
            return f"transform({value}, {one} -> {_as_type(one, wanted.elementType, depth + 1)})"
    assert isinstance(wanted, spark_types.MapType), "no other type has a struct in it"
    values = f"transform_values({value}, (key_{depth}, {one}) -> {_as_type(one, wanted.valueType, depth + 1)})"
    return f"transform_keys({values}, (key_{depth}, {one}) -> CAST(key_{depth} AS STRING))"


def encoded_sql(form: Format, schema_id: int = OWN_SCHEMA_ID) -> str:
    """Return the SQL of an output's bytes; null where its expression is. `schema_id`: of Avro and Protobuf.

    Raise `PySparkException` or `Py4JError` where Spark cannot read an Avro schema.
    """
    if isinstance(form, Json):
        return f"CAST(to_json(struct({form.fields})) AS BINARY)"
    if isinstance(form, Avro):
        return _encoded_avro(form, schema_id)
    if isinstance(form, Protobuf):
        return encoded_message_sql(form, schema_id)
    if isinstance(form, Text):
        return f"CAST(CAST({form.expression} AS STRING) AS BINARY)"
    if isinstance(form, Long):
        return f"unhex(lpad(hex(CAST({form.expression} AS BIGINT)), 16, '0'))"
    if isinstance(form, Double):
        number = f"CAST({form.expression} AS DOUBLE)"
        lowest_first = f"""to_avro(coalesce({number}, 0D), '"double"')"""
        return f"IF({number} IS NULL, NULL, transform(array({lowest_first}), x -> {_reversed('x')})[0])"
    return f"CAST({form.expression} AS BINARY)"


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

    with pickled_by_value(()):
        # Called nondeterministic, as Spark would else move filters before it and decode each record twice.
        return sql.arrow_udf(decode, decoder.schema).asNondeterministic()(message)


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
    """Return the type of a field, and the function that reads it: None where a field with presence is not set."""
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
