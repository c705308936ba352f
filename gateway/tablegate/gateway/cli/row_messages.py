"""Row messages of what has a table's fields already: an Avro schema, a sample of JSON, a Protobuf message.

A record, an object or a message in it becomes a message beside the row. What no row can have is refused by name, with
what to do: most often to leave the field out.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from tablegate.gateway.contract.binder.files import build_pool, messages_of
from tablegate.gateway.contract.columns import (
    DURATION,
    JSON_MESSAGES,
    MONEY,
    TIMESTAMP,
    WRAPPERS,
    column_problem,
    is_map,
    oneof_of,
    type_name,
)
from tablegate.gateway.contract.descriptors import load_descriptors
from tablegate.gateway.contract.generated.names import capitalized, folded, snake_case, words_of
from tablegate.gateway.contract.generated.text import Names

SAMPLE_BYTES_MAX = 16 * 2**20  # thousands of objects say no more than hundreds

_IMPORTS = {
    TIMESTAMP: "google/protobuf/timestamp.proto",
    MONEY: "google/type/money.proto",
    DURATION: "google/protobuf/duration.proto",
    "google.protobuf.Any": "google/protobuf/any.proto",
    **dict.fromkeys(WRAPPERS, "google/protobuf/wrappers.proto"),
    **dict.fromkeys(JSON_MESSAGES, "google/protobuf/struct.proto"),
}
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
_AVRO_NAMED = ("enum", "fixed", "record")
_AVRO_KINDS = {*_AVRO_TYPES, "array", "map", "null", "record"}
_AVRO_TIMES = {f"{local}timestamp-{unit}" for local in ("", "local-") for unit in ("millis", "micros", "nanos")}
_AVRO_OTHERS = {"time-millis", "time-micros", "duration", "big-decimal"}
_NANO_DIGITS = 9  # behind the point of a google.type.Money
_UNIT_DIGITS = 18  # before it
_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
_INT64 = range(-(2**63), 2**63)
INSIDE = "\x1f"  # between the name of a field and that of one in it: names may have dots
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class RowError(Exception):
    """What cannot be a row; the message says which field, and what to do."""


@dataclass(frozen=True, slots=True)
class Column:
    """A field of a row. `source`: its name where it comes from. `oneof`: the one that it is in.

    `json_name`: its name in JSON where that does not follow from its own. `number`: 0 where it is its place.
    """

    source: str
    name: str
    type: str
    optional: bool = False
    comment: str = ""
    oneof: str = ""
    json_name: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True)
class Inner:
    """A message or an enum that columns need. `source`: its name where it comes from, "" for an object of a sample.

    The name of an enum may be that of the message that it is in, a point, and its own.
    """

    name: str
    source: str
    columns: Sequence[Column] = ()
    enum: EnumDescriptor | None = None
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A row message, and what else its columns need. `name` is "" where the source has none."""

    name: str
    columns: Sequence[Column]
    comment: str = ""
    inner: Sequence[Inner] = ()

    def column(self, name: str) -> str:
        """Return the column that is called so here or in the source; the name itself where there is none."""
        return next((one.name for one in self.columns if name in (one.name, one.source)), name)

    def text(self, package: str, key: Collection[str]) -> str:
        """Return the .proto that has this message and those in it. Key columns are always there."""
        every = [*self.columns, *(column for one in self.inner for column in one.columns)]
        imports = sorted({_IMPORTS[name] for one in every if (name := _named_in(one.type)) in _IMPORTS})
        names = Names(package, [self.name, *(one.name for one in self.inner)])
        lines = ['syntax = "proto3";', "", f"package {package};", ""]
        lines += [*(f'import "{name}";' for name in imports), ""] if imports else []
        enums: dict[str, list[tuple[str, EnumDescriptor]]] = {"": []}  # by the message that they are in
        for one in self.inner:
            if one.enum is not None:
                of, _, name = one.name.rpartition(".")
                enums.setdefault(of, []).append((name, one.enum))
        messages = [(self.name, self.comment, self.columns, key)]
        messages += [(one.name, one.comment, one.columns, ()) for one in self.inner if one.enum is None]
        named = {name for name, *_ in messages}
        messages += [(of, "", (), ()) for of in enums if of and of not in named]
        for name, comment, columns, always in messages:
            written = [replace(one, type=_written(one.type, names)) for one in columns]
            lines += [*_message(name, comment, written, always, enums.get(name, ())), ""]
        for name, enum in enums[""]:
            lines += [*_enum(name, enum), ""]
        return "\n".join(lines)


def _named_in(type_: str) -> str:
    """Return the type of a value of a column."""
    name = type_.removeprefix("repeated ")
    return name.removesuffix(">").partition(", ")[2] if name.startswith("map<") else name


def _written(type_: str, names: Names) -> str:
    """Return a column's type as it is written in its file: some types of other files need a dot before them there."""
    name = _named_in(type_)
    return type_.replace(name, names.written(name)) if name in _IMPORTS else type_


def _message(
    name: str,
    comment: str,
    columns: Sequence[Column],
    key: Collection[str],
    enums: Iterable[tuple[str, EnumDescriptor]],
) -> Iterator[str]:
    yield f"// {comment or f'One {words_of(snake_case(name))}.'}"
    yield f"message {name} {{"
    for enum in enums:
        yield from (f"  {line}".rstrip() for line in _enum(*enum))
    oneof = ""
    for place, one in enumerate(columns, 1):
        if oneof and one.oneof != oneof:
            yield "  }"
        if one.oneof and one.oneof != oneof:
            yield f"  // {capitalized(words_of(snake_case(one.oneof)))}: one of these."
            yield f"  oneof {one.oneof} {{"
        oneof = one.oneof
        indent = "    " if oneof else "  "
        optional = "optional " if one.optional and one.name not in key else ""
        yield f"{indent}// {one.comment or f'{capitalized(words_of(one.name))}.'}"
        json_name = f" [json_name = {json.dumps(one.json_name)}]" if one.json_name else ""
        yield f"{indent}{optional}{one.type} {one.name} = {one.number or place}{json_name};"
    if oneof:
        yield "  }"
    yield "}"


class Inners:
    """The messages and enums that a row needs, as they are found. Names are short, and each is there once."""

    def __init__(self) -> None:
        self._found: dict[str, Inner | None] = {}  # by name; None: it is being made
        self._names: dict[str, str] = {}  # by source

    def named(self, source: str, wanted: str) -> str:
        """Return the name of what comes from `source`, the same each time, but for "": that is always another."""
        known = self._names.get(source)
        if known is not None:
            return known
        name, number = wanted, 1
        while name in self._found or name in self._names.values():
            number += 1
            name = f"{wanted}{number}"
        if source:
            self._names[source] = name
        return name

    def add(self, source: str, wanted: str, make: Callable[[str], Inner], *, field: str) -> str:
        """Return the name of what comes from `source`, which is made where it is not yet; "": always."""
        name = self.named(source, wanted)
        if name not in self._found:
            self._found[name] = None
            self._found[name] = make(name)
        elif self._found[name] is None:
            raise refusal(field, "contains itself, and a row has an end")
        return name

    def all(self) -> list[Inner]:
        """Return those that are made."""
        return [one for one in self._found.values() if one is not None]


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
    return proto_row(load_descriptors(path, what="message file"), name, skipped, what=f'"{path}"')


def avro_row(text: str, name: str, skipped: Collection[str], *, what: str) -> Row:
    """Return the row of an Avro record's schema; raise `RowError`."""
    try:
        record = _with_whole_names(json.loads(text))
        fields = [(field["name"], field["type"], field.get("doc")) for field in record["fields"]]
        if record["type"] != "record" or not all(isinstance(one[0], str) for one in fields):
            raise ValueError
        own_name = str(record["name"]).rpartition(".")[2]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise RowError(f"{what} is not the schema of an Avro record; give one of type record, with fields") from None
    types = _AvroTypes(record)
    columns = [types.column(*field) for field in fields if not is_skipped(field[0], skipped)]
    made = name or message_name(own_name)
    return make_row(made, columns, what, comment=sentence(record.get("doc")), inner=types.inners.all())


def json_row(text: str, name: str, skipped: Collection[str], *, what: str) -> Row:
    """Return the row of a sample of JSON: an object, an array of objects, or an object in each line."""
    return objects_row(_objects(text, what), name, skipped, what=what)


def objects_row(objects: Sequence[dict[str, Any]], name: str, skipped: Collection[str], *, what: str) -> Row:
    """Return the row of objects; raise `RowError`."""
    inners = Inners()
    columns = _json_columns(objects, inners, path="", skipped=skipped)
    return make_row(name, columns, what, inner=inners.all())


def _json_columns(
    objects: Sequence[dict[str, Any]], inners: Inners, *, path: str, skipped: Collection[str]
) -> list[Column]:
    values: dict[str, list[Any]] = {}
    for one in objects:
        for key, value in one.items():
            if path or not is_skipped(key, skipped):
                values.setdefault(key, []).append(value)
    columns = []
    for key, found in values.items():
        present = [value for value in found if value is not None]
        source = f"{path}{key}"
        if not present:
            raise refusal(
                source, "is null in the whole sample, which says no type", "add an object where it is not, or"
            )
        name = column_name(key, source)
        type_ = _json_type(present, source, name, inners)
        optional = len(present) < len(objects) and not type_.startswith("repeated ")
        columns.append(Column(source, name, type_, optional and is_scalar(type_), json_name=json_name_of(key, name)))
    return columns


def proto_row(files: FileDescriptorSet, name: str, skipped: Collection[str], *, what: str) -> Row:
    """Return the row of a message of some files; raise `RowError`."""
    _, own = build_pool(files)
    messages = [message for file in own for message in messages_of(file) if not message.GetOptions().map_entry]
    found = [message for message in messages if name in (message.name, message.full_name)] if name else messages
    if len(found) != 1:
        few = "one of these: " if found else ""
        names = ", ".join(message.full_name for message in found or messages)
        there = f"{len(found)} messages {name}".strip() if found else f"no message {name}".strip()
        raise RowError(f"{what} has {there}; say which with --row{f', {few}{names}' if names else ''}")
    [message] = found
    fields = [field for field in message.fields if not is_skipped(field.name, skipped)]
    inners = Inners()
    inners.named(message.full_name, message.name)
    for field in fields:
        problem = column_problem(field, (message.full_name,))
        if problem is not None:
            raise refusal(field.name, f"cannot be kept: {problem[0]}")
    columns = [_proto_column(field, inners) for field in fields]
    return make_row(message.name, columns, what, inner=inners.all())


def _proto_column(field: FieldDescriptor, inners: Inners) -> Column:
    """Return the column of a field, with its number: a topic may have the message's own bytes."""
    if is_map(field):
        assert field.message_type is not None
        key, value = field.message_type.fields
        type_ = f"map<{type_name(key)}, {_proto_type(value, inners)}>"
    else:
        type_ = f"{'repeated ' if field.is_repeated else ''}{_proto_type(field, inners)}"
    oneof = oneof_of(field) or ""
    return Column(
        field.name,
        field.name,
        type_,
        optional=field.has_presence and field.message_type is None and not oneof,
        oneof=oneof,
        json_name="" if field.json_name == _json_name(field.name) else field.json_name,
        number=field.number,
    )


def _proto_type(field: FieldDescriptor, inners: Inners) -> str:
    """Return the type of one value of a field; what it names is there, too."""
    enum, message = field.enum_type, field.message_type
    if enum is not None:
        if enum.values[0].number:
            raise refusal(field.name, f"is of enum {enum.name}, whose first value is not 0, as a row's have it")
        # Values have the scope of their enum, so those of two may have one name only where they are in two messages.
        within = f"{inners.named(of.full_name, of.name)}." if (of := enum.containing_type) is not None else ""
        return inners.add(
            enum.full_name,
            f"{within}{enum.name}",
            lambda name: Inner(name, enum.full_name, enum=enum),
            field=field.name,
        )
    if message is None or message.full_name in _IMPORTS:
        return type_name(field)

    def make(name: str) -> Inner:
        columns = [_proto_column(one, inners) for one in message.fields]
        return Inner(name, message.full_name, columns)

    return inners.add(message.full_name, message.name, make, field=field.name)


def make_row(name: str, columns: Sequence[Column], what: str, *, comment: str = "", inner: Sequence[Inner] = ()) -> Row:
    """Return a row of columns, each of another name; raise `RowError`. `what` they come from."""
    if not columns:
        raise RowError(f"{what} has no field for a row; give one that has")
    if name and _NAME.fullmatch(name) is None:
        raise RowError(f'no message can be called "{name}"; give the row a name such as Order: --row Order')
    for each in (columns, *(one.columns for one in inner)):
        seen: dict[str, str] = {}
        for column in each:
            first = seen.setdefault(folded(column.name), column.source)
            if first != column.source:
                raise refusal(column.source, f'would have the name of field "{_shown(first)}"')
    if any(one.name == name for one in inner):
        raise RowError(f'{what} has another message "{name}" in it; give the row a name of its own: --row {name}Row')
    return Row(name, columns, comment, inner)


def is_scalar(type_: str) -> bool:
    """Return whether a column of a type may be `optional`: where it is null, it is not set."""
    return type_ in {*_AVRO_TYPES.values()}


def refusal(source: str, text: str, do: str = "") -> RowError:
    """Return the error of a field. What is left out is the field of the row that it is in."""
    whole = json.dumps(source.partition(INSIDE)[0], ensure_ascii=False)
    return RowError(f'field "{_shown(source)}" {text}; {f"{do} " if do else ""}leave it out: --skip {whole}')


def _shown(source: str) -> str:
    return source.replace(INSIDE, ".")


def is_skipped(source: str, skipped: Collection[str]) -> bool:
    """Return whether a field is to be left out."""
    return bool({source, snake_case(source)} & {*skipped})


def _with_whole_names(schema: Any, space: str = "") -> Any:
    """Return a schema where types have their whole names, and are called by these. `space`: the namespace around it."""
    if isinstance(schema, list):
        return [_with_whole_names(branch, space) for branch in schema]
    if isinstance(schema, str):
        is_whole = "." in schema or schema in _AVRO_KINDS or not space
        return schema if is_whole else f"{space}.{schema}"
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    if schema.get("type") in _AVRO_NAMED and isinstance(schema.get("name"), str):
        own, _, name = schema["name"].rpartition(".")
        space = own or str(schema.get("namespace", space))
        found["name"] = f"{space}.{name}" if space else name
    for key in ("type", "items", "values"):
        if key in schema:
            found[key] = _with_whole_names(schema[key], space)
    if isinstance(schema.get("fields"), list):
        found["fields"] = [
            {**field, "type": _with_whole_names(field.get("type"), space)} if isinstance(field, dict) else field
            for field in schema["fields"]
        ]
    return found


def _named(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield the types that a schema defines, by their whole names."""
    if isinstance(schema, list):
        for branch in schema:
            yield from _named(branch)
    elif isinstance(schema, dict):
        if schema.get("type") in _AVRO_NAMED and isinstance(schema.get("name"), str):
            yield schema["name"], schema
        for key in ("type", "items", "values"):
            yield from _named(schema.get(key))
        for field in schema.get("fields") or []:
            yield from _named(field)


class _AvroTypes:
    """Columns of the fields of an Avro record, and of the records in it."""

    def __init__(self, record: Any) -> None:
        self.inners = Inners()
        self._named = dict(_named(record))

    def column(self, source: str, schema: Any, doc: object, path: str = "") -> Column:
        """Return the column of a field."""
        place = f"{path}{source}"
        optional = isinstance(schema, list) and "null" in schema
        type_ = self._type(schema, place)
        name = column_name(source, place)
        is_optional, json_name = optional and is_scalar(type_), json_name_of(source, name)
        return Column(place, name, type_, is_optional, sentence(doc), json_name=json_name)

    def _type(self, schema: Any, place: str) -> str:
        schema = self._resolved(self._branch(schema, place))
        kind = schema.get("type") if isinstance(schema, dict) else None
        match kind:
            case "array":
                return f"repeated {self._one(schema.get('items'), place)}"
            case "map":
                return f"map<string, {self._one(schema.get('values'), place)}>"
        return self._one(schema, place)

    def _branch(self, schema: Any, place: str) -> Any:
        branches = [one for one in schema if one != "null"] if isinstance(schema, list) else [schema]
        if len(branches) != 1:
            raise refusal(place, f"is a union of {len(branches)} types" if branches else "is always null")
        return branches[0]

    def _resolved(self, schema: Any) -> Any:
        inside = schema.get("type") if isinstance(schema, dict) else None
        if isinstance(inside, dict | list) or (isinstance(inside, str) and inside in self._named):
            schema = inside  # {"type": {"type": "int"}} is allowed
        return self._named.get(schema, {"type": schema}) if isinstance(schema, str) else schema

    def _one(self, schema: Any, place: str) -> str:
        """Return the type of one value: no list of them, and no map."""
        schema = self._resolved(self._branch(schema, place))
        kind = schema.get("type") if isinstance(schema, dict) else None
        logical = schema.get("logicalType") if isinstance(schema, dict) else None
        if kind == "record" and isinstance(schema.get("fields"), list) and isinstance(schema.get("name"), str):
            return self._record(schema, place)
        if logical in _AVRO_TIMES:
            return TIMESTAMP
        if (kind, logical) == ("int", "date"):
            return "string"  # a day is no moment: gateways write it as JSON has it, 2026-11-26
        if logical == "decimal":
            precision, scale = (schema.get(part) or 0 for part in ("precision", "scale"))
            if not (isinstance(precision, int) and isinstance(scale, int)):
                raise refusal(place, "is a decimal without digits")
            if scale > _NANO_DIGITS or precision - scale > _UNIT_DIGITS:
                text = f"is a decimal with {precision} digits, {scale} behind the point: too many for a row"
                raise refusal(place, text)
            return MONEY
        if not isinstance(kind, str) or kind not in _AVRO_TYPES or logical in _AVRO_OTHERS:
            raise refusal(place, f"is of type {logical or kind}, which no column has")
        return _AVRO_TYPES[kind]

    def _record(self, record: dict[str, Any], place: str) -> str:
        fields = [field for field in record["fields"] if isinstance(field, dict) and isinstance(field.get("name"), str)]
        if not fields:
            raise refusal(place, "is a record without fields")
        source = record["name"]
        wanted = message_name(column_name(source.rpartition(".")[2], place))

        def make(name: str) -> Inner:
            columns = [
                self.column(field["name"], field.get("type"), field.get("doc"), f"{place}{INSIDE}") for field in fields
            ]
            return Inner(name, source, columns, comment=sentence(record.get("doc")))

        return self.inners.add(source, wanted, make, field=place)


def _objects(text: str, what: str) -> Sequence[dict[str, Any]]:
    """Return the objects of a sample."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = _objects_of_lines(text, what)
    objects = value if isinstance(value, list) else [value]
    if not objects or not all(isinstance(one, dict) for one in objects):
        raise RowError(f"{what} has something else than objects; give an object, or one in each line")
    return objects


def _objects_of_lines(text: str, what: str) -> list[Any]:
    """Return what lines have, one each; a line that is not JSON is named where others are."""
    found: list[Any] = []
    for number, line in enumerate(text.split("\n"), 1):
        try:
            if line.strip():
                found.append(json.loads(line))
        except (ValueError, RecursionError):
            where = f"line {number} of {what}" if found else what
            raise RowError(f"{where} is not JSON; give an object, or one in each line") from None
    if not found:
        raise RowError(f"{what} is not JSON; give an object, or one in each line")
    return found


def _json_type(values: Sequence[Any], source: str, name: str, inners: Inners) -> str:
    """Return the type of a column that has these values. `name`: its own."""
    if {type(value) for value in values} == {list}:
        items = [item for value in values for item in value]
        if not items:
            raise refusal(
                source, "is empty in the whole sample, which says no type", "add an object where it is not, or"
            )
        if None in items:
            raise refusal(source, "has a null in a list")
        if any(isinstance(item, list) for item in items):
            raise refusal(source, "has lists in a list")
        return f"repeated {_json_one(items, source, _singular(name), inners)}"
    return _json_one(values, source, name, inners)


def _json_one(values: Sequence[Any], source: str, name: str, inners: Inners) -> str:
    kinds = {type(value) for value in values}
    if kinds == {dict}:
        columns = _json_columns(values, inners, path=f"{source}{INSIDE}", skipped=())
        if not columns:
            raise refusal(source, "has no fields in the whole sample")
        wanted = message_name(name)
        return inners.add("", wanted, lambda made: Inner(made, "", columns), field=source)
    if kinds == {bool}:
        return "bool"
    if kinds == {int}:
        if all(value in _INT64 for value in values):
            return "int64"
        raise refusal(source, "has a number that is no int64", "write it as text, or")
    if kinds <= {int, float}:
        return "double"
    if kinds == {str}:
        return TIMESTAMP if all(map(_is_time, values)) else "string"
    names = {bool: "bool", int: "number", float: "number", str: "text", dict: "object", list: "list"}
    counted = Counter(names[type(value)] for value in values)
    types = ", ".join(f"{count} times {kind}" for kind, count in counted.most_common())
    raise refusal(source, f"has values of several types ({types})", "take out the objects that are odd, or")


def row_name(file: Path) -> str:
    """Return what a row is called whose file is called so, in the plural: "Order" of orders.proto; "": nothing."""
    name = message_name(_singular(snake_case(file.stem)))
    return name if _NAME.fullmatch(name) is not None else ""


def _singular(name: str) -> str:
    if name.endswith("ies"):
        return f"{name[:-3]}y"
    if re.search(r"(s|x|z|ch|sh)es$", name):
        return name[:-2]
    return name.removesuffix("s") or name


def _is_time(text: str) -> bool:
    if _RFC_3339.fullmatch(text) is None:
        return False
    try:
        datetime.fromisoformat(text[:19])
    except ValueError:
        return False
    return True


def _enum(name: str, enum: EnumDescriptor) -> Iterator[str]:
    yield from (f"// {capitalized(words_of(snake_case(name)))}.", f"enum {name} {{")
    if enum.GetOptions().allow_alias:
        yield from ("  option allow_alias = true;", "")
    for value in enum.values:
        yield from (
            f"  // {capitalized(words_of(snake_case(value.name)).lower())}.",
            f"  {value.name} = {value.number};",
        )
    yield "}"


def column_name(source: str, place: str) -> str:
    """Return the name of the column that a field becomes; raise `RowError`, with where the field is."""
    name = snake_case(source)
    if _NAME.fullmatch(name) is None:
        raise refusal(place, "has a name that no field of a message can have", "rename it, or")
    return name


def json_name_of(source: str, name: str) -> str:
    """Return the JSON name that a column must be given, so that records are found to have it; "": none."""
    return "" if source in (name, _json_name(name)) else source


def _json_name(name: str) -> str:
    """Return the JSON name that protoc makes of a field's own."""
    first, *others = name.split("_")
    return first + "".join(map(capitalized, others))


def message_name(name: str) -> str:
    """Return the name of a message, of that of a column."""
    return "".join(capitalized(word) for word in name.split("_"))


def sentence(doc: object) -> str:
    """Return a comment of one line of what a schema says of a field."""
    # A schema may have any text, a .proto may not: no bytes of a terminal's commands, no half of a surrogate pair.
    text = "".join(one if one.isprintable() else " " for one in doc) if isinstance(doc, str) else ""
    text = " ".join(text.split())
    return text if not text or text.endswith((".", "!", "?")) else f"{text}."
