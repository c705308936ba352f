"""Formats as Spark SQL: bytes of a record to fields, what can be wrong with them, and expressions to bytes.

All of it is expressions, not Python functions, because Real-time Mode takes no Python; but for `Protobuf`, of which
Spark's own expressions are in a jar of their own, and which runs in micro-batches.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as sql
from pyspark.sql.avro.functions import from_avro
from tablegate.jobs.dataflow.protobuf import decoded_message
from tablegate.jobs.formats import Avro, Bytes, Double, Format, Json, Long, Protobuf, Text
from tablegate.jobs.messages import frame_indexes
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
    """How the bytes of one column become fields: a struct column, and what can be wrong, where bytes are not null."""

    struct: Column
    fields: tuple[str, ...]
    problems: tuple[Problem, ...]


def decoded(form: Format, bytes_column: str, into: str, schemas: WriterSchemas | None) -> Decoded:
    """Return the decoding of `bytes_column`, whose struct will be the column `into`."""
    what = bytes_column.rpartition(".")[2]
    if isinstance(form, Avro):
        return _decoded_avro(form, bytes_column, into, schemas)
    if isinstance(form, Protobuf):
        return _decoded_protobuf(form, bytes_column, into)
    if isinstance(form, Json):
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        text = sql.expr(f"IF(is_valid_utf8({bytes_column}), CAST({bytes_column} AS STRING), NULL)")
        struct = sql.from_json(text, f"{form.fields}, {_CORRUPT} STRING", options)
        wrong = Problem(
            f"not_json_{what}",
            f"{into} IS NULL OR {into}.{_CORRUPT} IS NOT NULL",
            f"'{what} is not a JSON object of the fields {form.fields.replace(chr(39), '')}'",
        )
        return Decoded(struct, form.field_names, (wrong,))
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

    A damaged record and one whose fields are all null would look the same. So the reader's schema has one field more,
    which no writer has: Avro fills in its default wherever a record decodes.
    """
    reader = json.loads(form.schema)
    reader["fields"].append({"name": _DECODED, "type": "boolean", "default": True})
    options = {"mode": "PERMISSIVE", "avroSchema": json.dumps(reader)}
    body = sql.expr(f"substring({bytes_column}, {_FRAME_BYTES + 1})")
    problems = [
        Problem(
            "not_framed",
            f"NOT {is_framed_sql(bytes_column)}",
            "'value is not Avro in the Confluent wire format'",
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
            text = f"schema {number} cannot be read as the declared one: {why}"
            problems.append(Problem("incompatible_schema", f"{schema_id} = {number}", _literal(text)))
        known = ", ".join(str(number) for number in [-1, *schemas.decoded, *schemas.ignored, *schemas.incompatible])
        problems.append(
            Problem(
                "unknown_schema",
                f"{schema_id} NOT IN ({known})",
                f"concat('schema id ', {schema_id}, ' is not that of a schema of this topic')",
            )
        )
    problems.append(Problem("undecodable", f"{into}.{_DECODED} IS NULL", "'value does not decode by its Avro schema'"))
    return Decoded(struct, form.field_names, tuple(problems))


def _decoded_protobuf(form: Protobuf, bytes_column: str, into: str) -> Decoded:
    """Decode the message to a struct, null where it does not decode."""
    what = bytes_column.rpartition(".")[2]
    undecodable = Problem(f"undecodable_{what}", f"{into} IS NULL", f"'{what} is no message {form.message}'")
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


def ignored_sql(schemas: WriterSchemas | None) -> str:
    """Return the SQL of the name of the record type that a framed value has, where it is passed over; else null."""
    if schemas is None or not schemas.ignored:
        return "CAST(NULL AS STRING)"
    names: Mapping[int, str] = schemas.ignored
    branches = " ".join(f"WHEN {number} THEN {_literal(name)}" for number, name in names.items())
    return f"CASE WHEN {is_framed_sql('kafka.value')} THEN CASE {schema_id_sql('kafka.value')} {branches} END END"


def encoded_sql(form: Format) -> str:
    """Return the SQL of an output's bytes; null where its expression is."""
    if isinstance(form, Json):
        return f"CAST(to_json(struct({form.fields})) AS BINARY)"
    assert not isinstance(form, Avro | Protobuf), "declarations refuse it"
    if isinstance(form, Text):
        return f"CAST(CAST({form.expression} AS STRING) AS BINARY)"
    if isinstance(form, Long):
        return f"unhex(lpad(hex(CAST({form.expression} AS BIGINT)), 16, '0'))"
    if isinstance(form, Double):
        number = f"CAST({form.expression} AS DOUBLE)"
        lowest_first = f"""to_avro(coalesce({number}, 0D), '"double"')"""
        return f"IF({number} IS NULL, NULL, transform(array({lowest_first}), x -> {_reversed('x')})[0])"
    return f"CAST({form.expression} AS BINARY)"
