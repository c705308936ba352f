"""Row messages of what has a table's fields already: an Avro schema, a sample of JSON, a Protobuf message.

A row is flat. What it cannot have is refused by name, with what to do: most often to leave the field out.
"""

import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor

from tablegate.gateway.contract.binder.files import build_pool, messages_of
from tablegate.gateway.contract.columns import MONEY, TIMESTAMP, in_oneof, is_one_value, type_name
from tablegate.gateway.contract.descriptors import load_descriptors

SAMPLE_BYTES_MAX = 16 * 2**20  # thousands of objects say no more than hundreds

_IMPORTS = {TIMESTAMP: "google/protobuf/timestamp.proto", MONEY: "google/type/money.proto"}
_AVRO_TYPES = {
    "int": "int32",
    "long": "int64",
    "float": "float",
    "double": "double",
    "boolean": "bool",
    "string": "string",
    "bytes": "bytes",
    "fixed": "bytes",
    "enum": "string",
}
_AVRO_TIMES = {f"{local}timestamp-{unit}" for local in ("", "local-") for unit in ("millis", "micros", "nanos")}
_AVRO_OTHERS = {"date", "time-millis", "time-micros", "duration", "big-decimal"}
_NANO_DIGITS = 9  # behind the point of a google.type.Money
_UNIT_DIGITS = 18  # before it
_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
_INT64 = range(-(2**63), 2**63)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class RowError(Exception):
    """What cannot be a row; the message says which field, and what to do."""


@dataclass(frozen=True, slots=True)
class Column:
    """A field of a row. `source`: its name where it comes from."""

    source: str
    name: str
    type: str
    optional: bool = False
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A row message, and the enums that its columns need. `name` is "" where the source has none."""

    name: str
    columns: Sequence[Column]
    comment: str = ""
    enums: Sequence[EnumDescriptor] = ()

    def column(self, name: str) -> str:
        """Return the column that is called so here or in the source; the name itself where there is none."""
        return next((one.name for one in self.columns if name in (one.name, one.source)), name)

    def text(self, package: str, key: Collection[str]) -> str:
        """Return the .proto that has this message alone. Key columns are always there."""
        imports = sorted({_IMPORTS[one.type] for one in self.columns if one.type in _IMPORTS})
        lines = ['syntax = "proto3";', "", f"package {package};", ""]
        lines += [*(f'import "{name}";' for name in imports), ""] if imports else []
        lines += [f"// {self.comment or f'One {_words(self.name)}.'}", f"message {self.name} {{"]
        for number, one in enumerate(self.columns, 1):
            optional = "optional " if one.optional and one.name not in key else ""
            lines += [f"  // {one.comment or f'{_capitalized(_words(one.name))}.'}"]
            lines += [f"  {optional}{one.type} {one.name} = {number};"]
        lines += ["}", *(line for enum in self.enums for line in _enum(enum))]
        return "\n".join([*lines, ""])


def row_of(path: Path, name: str = "", skipped: Collection[str] = ()) -> Row:
    """Return the row of a file: .avsc, .json, .jsonl, .proto, or a descriptor set.

    `name`: the message of a .proto, else the row's own. `skipped`: fields to leave out. Raise `RowError`,
    `DescriptorError` and `OSError`.
    """
    if path.suffix in (".avsc", ".json", ".jsonl", ".ndjson"):
        if path.stat().st_size > SAMPLE_BYTES_MAX:
            raise RowError(f'"{path}" has more than {SAMPLE_BYTES_MAX // 2**20} MiB; give fewer objects of it')
        try:
            text = path.read_text("utf-8-sig")
        except UnicodeDecodeError:
            raise RowError(f'"{path}" is not UTF-8; save it as that') from None
        make = avro_row if path.suffix == ".avsc" else json_row
        return make(text, name, skipped, what=f'"{path}"')
    return _proto_row(path, name, skipped)


def avro_row(text: str, name: str, skipped: Collection[str], *, what: str) -> Row:
    """Return the row of an Avro record's schema; raise `RowError`."""
    try:
        record = json.loads(text)
        fields = [(field["name"], field["type"], field.get("doc")) for field in record["fields"]]
        if record["type"] != "record" or not all(isinstance(one[0], str) for one in fields):
            raise ValueError
        own_name = str(record["name"]).rpartition(".")[2]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise RowError(f"{what} is not the schema of an Avro record; give one of type record, with fields") from None
    named = dict(_named(record))

    def column(source: str, schema: Any, doc: object) -> Column:
        optional = isinstance(schema, list) and "null" in schema
        branches = [one for one in schema if one != "null"] if isinstance(schema, list) else [schema]
        if len(branches) != 1:
            raise _refusal(source, f"is a union of {len(branches)} types" if branches else "is always null")
        type_ = _avro_type(branches[0], named, source)
        return Column(source, _column_name(source), type_, optional, _sentence(doc))

    columns = [column(*field) for field in fields if not _is_skipped(field[0], skipped)]
    return _row(name or _message_name(own_name), columns, what, comment=_sentence(record.get("doc")))


def json_row(text: str, name: str, skipped: Collection[str], *, what: str) -> Row:
    """Return the row of a sample of JSON: an object, an array of objects, or an object in each line."""
    values: dict[str, list[Any]] = {}
    objects = _objects(text, what)
    for one in objects:
        for key, value in one.items():
            if not _is_skipped(key, skipped):
                values.setdefault(key, []).append(value)
    columns = []
    for key, found in values.items():
        present = [value for value in found if value is not None]
        if not present:
            raise _refusal(key, "is null in the whole sample, which says no type", "add an object where it is not, or")
        optional = len(present) < len(objects)
        columns.append(Column(key, _column_name(key), _json_type(present, key), optional))
    return _row(name, columns, what)


def _proto_row(path: Path, name: str, skipped: Collection[str]) -> Row:
    files = load_descriptors(path, what="message file")
    _, own = build_pool(files)
    messages = [message for file in own for message in messages_of(file)]
    found = [message for message in messages if name in (message.name, message.full_name)] if name else messages
    if len(found) != 1:
        few = "one of these: " if found else ""
        names = ", ".join(message.full_name for message in found or messages)
        there = f"{len(found)} messages {name}".strip() if found else f"no message {name}".strip()
        raise RowError(f'"{path}" has {there}; say which with --row{f", {few}{names}" if names else ""}')
    [message] = found
    fields = [field for field in message.fields if not _is_skipped(field.name, skipped)]
    columns = [Column(field.name, field.name, _proto_type(field), _is_optional(field)) for field in fields]
    enums = {field.enum_type.full_name: field.enum_type for field in fields if field.enum_type is not None}
    return _row(message.name, columns, f'"{path}"', enums=list(enums.values()))


def _row(
    name: str, columns: Sequence[Column], what: str, *, comment: str = "", enums: Sequence[EnumDescriptor] = ()
) -> Row:
    if not columns:
        raise RowError(f"{what} has no field for a row; give one that has")
    seen: dict[str, str] = {}
    for one in columns:
        first = seen.setdefault(one.name.replace("_", "").lower(), one.source)
        if first != one.source:
            raise _refusal(one.source, f'would have the name of field "{first}"')
    return Row(name, columns, comment, enums)


def _refusal(source: str, text: str, do: str = "") -> RowError:
    return RowError(f'field "{source}" {text}; {f"{do} " if do else ""}leave it out: --skip {json.dumps(source)}')


def _is_skipped(source: str, skipped: Collection[str]) -> bool:
    return bool({source, _snake_case(source)} & {*skipped})


def _named(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield the types that a schema names, with and without their namespace."""
    if isinstance(schema, list):
        for branch in schema:
            yield from _named(branch)
    elif isinstance(schema, dict):
        if schema.get("type") in ("enum", "fixed", "record") and isinstance(schema.get("name"), str):
            name, space = schema["name"], schema.get("namespace")
            yield from ((name, schema), (name.rpartition(".")[2], schema))
            yield from [(f"{space}.{name}", schema)] if space else []
        for key in ("type", "items", "values"):
            yield from _named(schema.get(key))
        for field in schema.get("fields") or []:
            yield from _named(field)


def _avro_type(schema: Any, named: dict[str, Any], source: str) -> str:
    """Return the type of a column that has the values of an Avro schema."""
    if isinstance(schema, dict) and isinstance(schema.get("type"), dict | list):
        schema = schema["type"]  # {"type": {"type": "int"}} is allowed
    if isinstance(schema, str):
        schema = named.get(schema, {"type": schema})
    kind = schema.get("type") if isinstance(schema, dict) else None
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    if logical in _AVRO_TIMES:
        return TIMESTAMP
    if logical == "decimal":
        precision, scale = (int(schema.get(part) or 0) for part in ("precision", "scale"))
        if scale > _NANO_DIGITS or precision - scale > _UNIT_DIGITS:
            raise _refusal(
                source, f"is a decimal with {precision} digits, {scale} behind the point: too many for a row"
            )
        return MONEY
    if not isinstance(kind, str) or kind not in _AVRO_TYPES or logical in _AVRO_OTHERS:
        raise _refusal(source, f"is of type {logical or kind}, which no column has")
    return _AVRO_TYPES[kind]


def _objects(text: str, what: str) -> Sequence[dict[str, Any]]:
    """Return the objects of a sample."""
    try:
        try:
            value = json.loads(text)
        except ValueError:
            value = [json.loads(line) for line in text.split("\n") if line.strip()]
            if not value:
                raise
    except (ValueError, RecursionError):
        raise RowError(f"{what} is not JSON; give an object, or one in each line") from None
    objects = value if isinstance(value, list) else [value]
    if not objects or not all(isinstance(one, dict) for one in objects):
        raise RowError(f"{what} has something else than objects; give an object, or one in each line")
    return objects


def _json_type(values: Sequence[Any], source: str) -> str:
    """Return the type of a column that has these values."""
    kinds = {type(value) for value in values}
    for kind, text in ((dict, "is an object"), (list, "is an array")):
        if kind in kinds:
            raise _refusal(source, f"{text}, and a row has one value in each column", "put its parts into columns, or")
    if kinds == {bool}:
        return "bool"
    if kinds == {int}:
        if all(value in _INT64 for value in values):
            return "int64"
        raise _refusal(source, "has a number that is no int64", "write it as text, or")
    if kinds <= {int, float}:
        return "double"
    if kinds == {str}:
        return TIMESTAMP if all(map(_is_time, values)) else "string"
    names = {bool: "bool", int: "number", float: "number", str: "text"}
    raise _refusal(source, f"has values of several types ({', '.join(sorted({names[kind] for kind in kinds}))})")


def _is_time(text: str) -> bool:
    if _RFC_3339.fullmatch(text) is None:
        return False
    try:
        datetime.fromisoformat(text[:19])
    except ValueError:
        return False
    return True


def _proto_type(field: FieldDescriptor) -> str:
    if field.is_repeated:
        raise _refusal(field.name, "is repeated or a map, and a row has one value in each column")
    if in_oneof(field):
        raise _refusal(field.name, "is in a oneof, and a row has none")
    if not is_one_value(field):
        raise _refusal(field.name, f"is of type {type_name(field)}, which no column has")
    return field.enum_type.name if field.enum_type is not None else type_name(field)


def _is_optional(field: FieldDescriptor) -> bool:
    return field.has_presence and field.message_type is None


def _enum(enum: EnumDescriptor) -> Iterator[str]:
    yield from ("", f"// {_capitalized(_words(enum.name))}.", f"enum {enum.name} {{")
    if enum.GetOptions().allow_alias:
        yield from ("  option allow_alias = true;", "")
    for value in enum.values:
        yield from (f"  // {_capitalized(_words(value.name).lower())}.", f"  {value.name} = {value.number};")
    yield "}"


def _snake_case(name: str) -> str:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return re.sub(r"[-. _]+", "_", words).lower()


def _column_name(source: str) -> str:
    name = _snake_case(source)
    if _NAME.fullmatch(name) is None:
        raise _refusal(source, "has a name that no field of a message can have", "rename it, or")
    return name


def _message_name(name: str) -> str:
    return "".join(_capitalized(word) for word in name.split("_"))


def _words(name: str) -> str:
    words = _snake_case(name).split("_")
    return " ".join("ID" if word == "id" else word for word in words if word) or name


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def _sentence(doc: object) -> str:
    """Return a comment of one line of what a schema says of a field."""
    text = " ".join(doc.split()) if isinstance(doc, str) else ""
    return text if not text or text.endswith((".", "!", "?")) else f"{text}."
