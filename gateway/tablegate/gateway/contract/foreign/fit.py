"""Whether a topic's own schema can become the columns of a contract; where not, the two lines that disagree.

A command asks this once, when a table is added. It refuses only what no record could make right: a boolean for a
number. A text for a number may be one, so it is read record by record, and counted where it is none (`columns.py`).

Decision: docs/decisions/0122-a-contract-beside-the-topics-schema.md
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from typing_extensions import override

from tablegate.gateway.contract.columns import (
    ANY_JSON,
    DURATION,
    MONEY,
    TIMESTAMP,
    WRAPPERS,
    is_map,
    is_message,
    type_name,
)

_LINE_CHARACTERS_MAX = 120
_ABSENT = "(nothing of this name)"

# What a value may be, whatever language describes it. A clock's time of the day is nothing that a column holds.
ANY, NULL, BOOLEAN, INTEGER, NUMBER, DECIMAL, TEXT, NAME, UUID, BYTES, TIME, CLOCK, LIST, MAP, OBJECT = (
    "any", "null", "boolean", "integer", "number", "decimal", "text", "name of an enum", "uuid", "bytes", "time",
    "time of the day", "list", "map", "object",
)  # fmt: skip
_NUMBERS = frozenset({INTEGER, NUMBER, DECIMAL})
_INTEGERS = frozenset({*_NUMBERS, TEXT})
_OBJECTS = frozenset({OBJECT, MAP})
_KINDS_OF_SCALARS = {
    FieldDescriptor.CPPTYPE_BOOL: frozenset({BOOLEAN}),
    FieldDescriptor.CPPTYPE_FLOAT: _NUMBERS,
    FieldDescriptor.CPPTYPE_DOUBLE: _NUMBERS,
    FieldDescriptor.CPPTYPE_ENUM: _INTEGERS | {NAME},
}
_KINDS_OF_MESSAGES = {
    TIMESTAMP: _INTEGERS | {TIME},
    MONEY: _INTEGERS | {BYTES, OBJECT},
    DURATION: frozenset({TEXT, INTEGER}),
    "google.protobuf.Struct": _OBJECTS | {TEXT},
    "google.protobuf.ListValue": frozenset({LIST, TEXT}),
    ANY_JSON: _OBJECTS | _INTEGERS | {NULL, BOOLEAN, NAME, LIST},
}


class Misfit(NamedTuple):
    """A line of the contract, and that of the schema beside it."""

    contract: str
    schema: str


class Description(Protocol):
    """A language of schemas: what the values of a schema may be, and what is in them."""

    def kinds(self, schema: Any) -> Iterable[tuple[str, Any]]:
        """Yield each kind of value that a schema allows, with the schema of that kind alone."""

    def fields(self, schema: Any) -> Mapping[str, Any] | None:
        """Return the schemas of an object's fields by name; None where they are not said."""

    def items(self, schema: Any) -> Any:
        """Return the schema of what is in a list or a map; None where it is not said."""


def misfits(
    columns: Iterable[FieldDescriptor], fields: Mapping[str, Any], of: Description, *, every: bool, path: str = ""
) -> Iterator[Misfit]:
    """Yield the columns that no value of their field's schema fits.

    `every`: each column must have a field.
    """
    for column in columns:
        name = column.name if column.name in fields else column.json_name
        if name in fields:
            yield from _of_value(column, fields[name], of, every=every, path=path, name=name)
        elif every:
            yield Misfit(line_of(column, path), _ABSENT)


def _of_value(
    column: FieldDescriptor, schema: Any, of: Description, *, every: bool, path: str, name: str
) -> Iterator[Misfit]:
    here = Misfit(line_of(column, path), _cut(f'"{path}{name}": {json.dumps(schema, separators=(", ", ": "))}'))
    kinds, values = [*of.kinds(schema)], [schema]
    if is_map(column):
        assert column.message_type is not None
        column = column.message_type.fields_by_name["value"]
        values = [of.items(one) for kind, one in kinds if kind in (MAP, OBJECT)]
        kinds = [pair for pair in kinds if pair[0] in (ANY, LIST)]  # a list of entries is left to its records
    elif column.is_repeated:
        values = [of.items(one) for kind, one in kinds if kind == LIST]
        kinds = [pair for pair in kinds if pair[0] == ANY]
    else:
        kinds = [pair for pair in kinds if _fits(column, [pair])]
    if not kinds and not any(one is None or _fits(column, of.kinds(one)) for one in values):
        yield here
    elif is_message(column):
        assert column.message_type is not None
        objects = [one for value in values if value is not None for kind, one in of.kinds(value) if kind == OBJECT]
        for found in filter(None, map(of.fields, objects)):
            yield from misfits(column.message_type.fields, found, of, every=every, path=f"{path}{name}.")


def _fits(column: FieldDescriptor, kinds: Iterable[tuple[str, Any]]) -> bool:
    """Return whether one value of a column may be of one of the kinds."""
    wanted = _kinds_of(column)
    return any(kind == ANY or kind in wanted for kind, _ in kinds)


def _kinds_of(column: FieldDescriptor) -> Collection[str]:
    """Return the kinds of values that one value of a column is made of, by `columns.py`."""
    message = column.message_type
    if message is not None:
        if message.full_name in WRAPPERS:
            return _kinds_of(message.fields_by_name["value"])
        return _KINDS_OF_MESSAGES.get(message.full_name, _OBJECTS)
    if column.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return (TEXT, NAME, UUID, TIME) if column.type == FieldDescriptor.TYPE_STRING else (BYTES, TEXT, NAME)
    return _KINDS_OF_SCALARS.get(column.cpp_type, _INTEGERS)


def line_of(field: FieldDescriptor, path: str = "") -> str:
    """Return a field as a .proto has it, with the way to it before its name."""
    if is_map(field):
        assert field.message_type is not None
        key, value = field.message_type.fields
        kind = f"map<{type_name(key)}, {type_name(value)}>"
    else:
        kind = f"repeated {type_name(field)}" if field.is_repeated else type_name(field)
    return f"{kind} {path}{field.name} = {field.number};"


def _cut(line: str) -> str:
    return line if len(line) <= _LINE_CHARACTERS_MAX else f"{line[:_LINE_CHARACTERS_MAX]}…"


# Avro.


class AvroDescription(Description):
    """A parsed schema, whose types have full names."""

    _KINDS: Mapping[str, str] = {
        "null": NULL,
        "boolean": BOOLEAN,
        "int": INTEGER,
        "long": INTEGER,
        "float": NUMBER,
        "double": NUMBER,
        "string": TEXT,
        "enum": NAME,
        "bytes": BYTES,
        "fixed": BYTES,
        "array": LIST,
        "map": MAP,
        "record": OBJECT,
    }
    _LOGICAL: Mapping[str, str] = {
        "decimal": DECIMAL,
        "uuid": UUID,
        "date": TIME,
        "time-millis": CLOCK,
        "time-micros": CLOCK,
    }

    def __init__(self, schema: Any) -> None:
        self._named: dict[str, Any] = {}
        self._collect(schema)

    def _collect(self, schema: Any) -> None:
        if isinstance(schema, list):
            for branch in schema:
                self._collect(branch)
        elif isinstance(schema, dict):
            if "name" in schema and schema.get("type") in ("record", "enum", "fixed"):
                self._named[schema["name"]] = schema
            for inner in (schema.get("type"), schema.get("items"), schema.get("values")):
                self._collect(inner)
            for field in schema.get("fields") or ():
                self._collect(field["type"])

    @override
    def kinds(self, schema: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(schema, list):
            for branch in schema:
                yield from self.kinds(branch)
        elif isinstance(schema, str):
            yield (
                (self._KINDS[schema], schema) if schema in self._KINDS else next(iter(self.kinds(self._named[schema])))
            )
        elif isinstance(schema["type"], dict | list):
            yield from self.kinds(schema["type"])
        else:
            logical = str(schema.get("logicalType", ""))
            is_time = logical.removeprefix("local-").startswith("timestamp-")
            yield TIME if is_time else self._LOGICAL.get(logical) or self._KINDS[schema["type"]], schema

    @override
    def fields(self, schema: Any) -> Mapping[str, Any]:
        return {field["name"]: field["type"] for field in schema["fields"]}

    @override
    def items(self, schema: Any) -> Any:
        return schema.get("items") or schema.get("values")


# JSON Schema.


class JsonDescription(Description):
    """A schema of JSON. What is said in a way that is not followed here, such as a condition, may be anything."""

    _KINDS: Mapping[str, str] = {
        "null": NULL,
        "boolean": BOOLEAN,
        "integer": INTEGER,
        "number": NUMBER,
        "string": TEXT,
        "array": LIST,
        "object": OBJECT,
    }
    _CHOICES = ("oneOf", "anyOf")

    def __init__(self, schema: Any) -> None:
        self._whole = schema

    @override
    def kinds(self, schema: Any) -> Iterator[tuple[str, Any]]:
        yield from self._kinds(schema, ())

    def _kinds(self, schema: Any, above: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        if not isinstance(schema, dict):
            yield ANY, schema
            return
        place = schema.get("$ref")
        if isinstance(place, str):
            found = None if place in above else self._at(place)
            yield from self._kinds(found, (*above, place))
            return
        choices = next((schema[name] for name in self._CHOICES if isinstance(schema.get(name), list)), None)
        if choices is not None:
            for choice in choices:
                yield from self._kinds(choice, above)
            return
        types = schema.get("type")
        for one in types if isinstance(types, list) else (types,):
            yield self._KINDS.get(one, ANY) if isinstance(one, str) else ANY, schema

    def _at(self, place: str) -> Any:
        """Return what a reference within the schema stands for; None, which is anything, for others."""
        if place != "#" and not place.startswith("#/"):
            return None
        found = self._whole
        for part in place.split("/")[1:]:
            found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        return found

    @override
    def fields(self, schema: Any) -> Mapping[str, Any] | None:
        found = schema.get("properties")
        is_all = not any(name in schema for name in ("allOf", "patternProperties", "if"))
        return found if isinstance(found, dict) and found and is_all else None

    @override
    def items(self, schema: Any) -> Any:
        found = schema.get("additionalProperties" if schema.get("type") == "object" else "items")
        return found if isinstance(found, dict) else None


# Protobuf.

_VARINTS = {
    FieldDescriptor.TYPE_INT32: ("int32", "int64", "enum"),
    FieldDescriptor.TYPE_INT64: ("int64",),
    FieldDescriptor.TYPE_UINT32: ("uint32", "uint64", "int64"),
    FieldDescriptor.TYPE_UINT64: ("uint64",),
    FieldDescriptor.TYPE_SINT32: ("sint32", "sint64"),
    FieldDescriptor.TYPE_BOOL: ("bool", "int32", "int64", "uint32", "uint64"),
    FieldDescriptor.TYPE_ENUM: ("enum", "int32", "int64"),
    FieldDescriptor.TYPE_STRING: ("string", "bytes"),
}
"""By the type of a writer: those of a reader that lose nothing of its bytes, beside its own."""


def message_misfits(
    row: Descriptor, theirs: Descriptor, without: Sequence[str] = (), path: str = ""
) -> Iterator[Misfit]:
    """Yield the fields of a message that bytes of another one do not fit: fields meet by their numbers."""
    for column in row.fields:
        if column.name in without:
            continue
        field = theirs.fields_by_number.get(column.number)
        namesake = theirs.fields_by_name.get(column.name)
        if namesake is not None and namesake is not field:
            yield Misfit(line_of(column, path), line_of(namesake, path))
        elif field is None:
            yield Misfit(line_of(column, path), "(nothing of this number)")
        elif not _same_bytes(column, field):
            yield Misfit(line_of(column, path), line_of(field, path))
        elif column.message_type is not None and is_message(column):
            assert field.message_type is not None
            yield from message_misfits(column.message_type, field.message_type, (), f"{path}{column.name}.")


def _same_bytes(column: FieldDescriptor, field: FieldDescriptor) -> bool:
    if (column.is_repeated, is_map(column)) != (field.is_repeated, is_map(field)):
        return False
    if column.message_type is not None or field.message_type is not None:
        if column.message_type is None or field.message_type is None:
            return False
        return (is_message(column) and is_message(field)) or type_name(column) == type_name(field)
    if (column.enum_type is not None and field.enum_type is not None) or column.type == field.type:
        return True
    wanted = "enum" if column.enum_type is not None else type_name(column)
    return wanted in _VARINTS.get(field.type, ())
