"""Pairs of Avro schemas, a writer's and a reader's: what Spark reads of records, and why it cannot read any.

They are the truth about evolution: one test holds Spark to it, another our own check.
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import fastavro

Json = Any


@dataclass(frozen=True)
class Pair:
    """`reads`: records and what comes of each, None for one that does not decode. `why`: None where it is readable."""

    name: str
    writer: Json
    reader: Json
    reads: Sequence[tuple[Mapping[str, Any], Mapping[str, Any] | None]]
    why: str | None = None


def record(*fields: Json, name: str = "R", **attributes: Any) -> Json:
    return {"type": "record", "name": name, "fields": list(fields), **attributes}


def field(name: str, kind: Json, **attributes: Any) -> Json:
    return {"name": name, "type": kind, **attributes}


def one(kind: Json, name: str = "R") -> Json:
    """Return a record of one field `a`."""
    return record(field("a", kind), name=name)


def logical(kind: str, meaning: str, **attributes: Any) -> Json:
    return {"type": kind, "logicalType": meaning, **attributes}


def enum(name: str, *symbols: str, **attributes: Any) -> Json:
    return {"type": "enum", "name": name, "symbols": list(symbols), **attributes}


def fixed(name: str, size: int, **attributes: Any) -> Json:
    return {"type": "fixed", "name": name, "size": size, **attributes}


def decimal(precision: int, scale: int) -> Json:
    return logical("bytes", "decimal", precision=precision, scale=scale)


def encode(schema: Json, value: Mapping[str, Any]) -> bytes:
    """Return a record's bytes, without a frame."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), dict(value))
    return out.getvalue()


_INT = one("int")
_SECONDS = 1_700_000_000
_MICROS = logical("long", "timestamp-micros")
_MILLIS = logical("long", "timestamp-millis")
_LINE = record(field("amount", "int"), field("note", "string"), name="Line")
_NEW_LINE = record(field("amount", "long"), field("tax", "int", default=5), name="Line")
_TWO_FIELDS = record(field("a", "int"), field("b", "int"), name="N")

PAIRS = [
    Pair(
        "field added with default",
        _INT,
        record(field("a", "int"), field("b", "string", default="x")),
        [({"a": 1}, {"a": 1, "b": "x"})],
    ),
    Pair(
        "field added without default",
        _INT,
        record(field("a", "int"), field("b", "string")),
        [({"a": 1}, None)],
        'field "b" is missing, and the declared schema has no default for it',
    ),
    Pair("field removed", record(field("z", "string"), field("a", "int")), _INT, [({"a": 1, "z": "q"}, {"a": 1})]),
    Pair(
        "recursive field removed",
        record(field("a", "int"), field("next", ["null", "R"])),
        _INT,
        [({"a": 1, "next": {"a": 2, "next": None}}, {"a": 1})],
    ),
    Pair("int to long", _INT, one("long"), [({"a": 1}, {"a": 1})]),
    Pair("int to double", _INT, one("double"), [({"a": 1}, {"a": 1.0})]),
    Pair("long to int", one("long"), _INT, [({"a": 1}, None)], 'field "a" is long, not int'),
    Pair("string to bytes", one("string"), one("bytes"), [({"a": "é"}, {"a": "é".encode()})]),
    Pair("enum to string", one(enum("E", "A")), one("string"), [({"a": "A"}, None)], 'field "a" is enum, not string'),
    Pair("renamed field, with alias", _INT, record(field("b", "int", aliases=["a"])), [({"a": 7}, {"b": 7})]),
    Pair(
        "renamed field, with alias, in a record of another name",
        one("int", name="Other"),
        record(field("b", "int", aliases=["a"])),
        [({"a": 7}, None)],
        'field "b" is missing, and the declared schema has no default for it',
    ),
    Pair(
        "renamed field and record, with aliases",
        one("int", name="Other"),
        record(field("b", "int", aliases=["a"]), aliases=["Other"]),
        [({"a": 7}, {"b": 7})],
    ),
    Pair("names differ by case", one("int"), record(field("A", "int", default=3)), [({"a": 1}, {"A": 3})]),
    Pair("record of another name", one("int", name="Other"), _INT, [({"a": 7}, {"a": 7})]),
    Pair(
        "nested record of another name", one(one("int", name="M")), one(one("int", name="N")), [({"a": {"a": 1}},) * 2]
    ),
    Pair("field may be null, reader's may not", one(["null", "int"]), _INT, [({"a": 7},) * 2, ({"a": None}, None)]),
    Pair("reader's field may be null", _INT, one(["null", "long"]), [({"a": 7},) * 2]),
    Pair(
        "null or another type",
        one(["null", "string"]),
        one(["null", "int"]),
        [({"a": None},) * 2, ({"a": "x"}, None)],
        'field "a" is string, not int',
    ),
    Pair("symbol unknown", one(enum("E", "A", "B")), one(enum("E", "A")), [({"a": "A"},) * 2, ({"a": "B"}, None)]),
    Pair(
        "symbol unknown, with default",
        one(enum("E", "A", "B")),
        one(enum("E", "A", default="A")),
        [({"a": "B"}, {"a": "A"})],
    ),
    Pair(
        "all symbols unknown",
        one(enum("E", "B")),
        one(enum("E", "A")),
        [({"a": "B"}, None)],
        'field "a" has no symbol that the declared schema has',
    ),
    Pair(
        "enum of another name",
        one(enum("F", "A")),
        one(enum("E", "A")),
        [({"a": "A"}, None)],
        'field "a" is enum "F", not "E"',
    ),
    Pair("enum of an alias", one(enum("F", "A")), one(enum("E", "A", aliases=["F"])), [({"a": "A"},) * 2]),
    Pair(
        "enum of another namespace",
        one(enum("E", "A", namespace="p")),
        one(enum("E", "A", namespace="q")),
        [({"a": "A"},) * 2],
    ),
    Pair(
        "fixed of another namespace",
        one(fixed("F", 2, namespace="p")),
        one(fixed("F", 2, namespace="q")),
        [({"a": b"ab"},) * 2],
    ),
    Pair(
        "fixed of another name",
        one(fixed("F", 2)),
        one(fixed("G", 2)),
        [({"a": b"ab"}, None)],
        'field "a" is fixed "F", not "G"',
    ),
    Pair(
        "fixed of another size",
        one(fixed("F", 2)),
        one(fixed("F", 4)),
        [({"a": b"ab"}, None)],
        'field "a" is fixed of 2 bytes, not fixed of 4 bytes',
    ),
    Pair("wider decimal", one(decimal(9, 2)), one(decimal(12, 2)), [({"a": Decimal("1234567.89")},) * 2]),
    Pair(
        "narrower decimal",
        one(decimal(9, 2)),
        one(decimal(4, 2)),
        [({"a": Decimal("12.34")},) * 2, ({"a": Decimal("1234567.89")}, None)],
    ),
    Pair(
        "decimal of another scale: Avro reads another number",
        one(decimal(9, 2)),
        one(decimal(9, 4)),
        [({"a": Decimal("12.34")}, {"a": Decimal("0.1234")})],
        'field "a" is bytes (decimal of scale 2), not bytes (decimal of scale 4)',
    ),
    Pair(
        "decimal in fixed, not in bytes",
        one(fixed("F", 8, logicalType="decimal", precision=9, scale=2)),
        one(decimal(9, 2)),
        [({"a": Decimal("12.34")}, None)],
        'field "a" is fixed of 8 bytes (decimal of scale 2), not bytes (decimal of scale 2)',
    ),
    Pair(
        "time of another unit: Avro reads another time",
        one(_MILLIS),
        one(_MICROS),
        [({"a": _SECONDS * 1_000},) * 2],
        'field "a" is long (timestamp-millis), not long (timestamp-micros)',
    ),
    Pair("long as a time", one("long"), one(_MILLIS), [({"a": _SECONDS * 1_000}, {"a": _SECONDS * 1_000_000})]),
    Pair("time as a long", one(_MILLIS), one("long"), [({"a": 7},) * 2]),
    Pair(
        "elements of an array evolve",
        one({"type": "array", "items": _LINE}),
        one({"type": "array", "items": _NEW_LINE}),
        [({"a": [{"amount": 1, "note": "q"}]}, {"a": [{"amount": 1, "tax": 5}]}), ({"a": []},) * 2],
    ),
    Pair(
        "array of another type",
        one({"type": "array", "items": "string"}),
        one({"type": "array", "items": "int"}),
        [({"a": ["x"]}, None), ({"a": []},) * 2],
        'field "a[]" is string, not int',
    ),
    Pair(
        "values of a map evolve",
        one({"type": "map", "values": "int"}),
        one({"type": "map", "values": "long"}),
        [({"a": {"k": 1}},) * 2],
    ),
    Pair(
        "nested record lacks a field",
        one(["null", one("int", name="N")]),
        one(["null", _TWO_FIELDS]),
        [({"a": {"a": 1}}, None), ({"a": None},) * 2],
        'field "a.b" is missing, and the declared schema has no default for it',
    ),
    Pair("null alone", one("null"), one(["null", "int"]), [({"a": None},) * 2]),
]
