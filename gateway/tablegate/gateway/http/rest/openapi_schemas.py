"""JSON schemas, and examples, of the contracts' messages: what proto3's JSON makes of them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from google.api import field_behavior_pb2
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FileDescriptorProto, FileDescriptorSet

from tablegate.gateway.contract.columns import is_map

Schema = dict[str, Any]

_Field = FieldDescriptor
# Patterns bound the digits, not the number: one that did would be 200 characters at each field.
_INT64: Schema = {"type": "string", "format": "int64", "pattern": "^-?[0-9]{1,19}$"}
_UINT64: Schema = {"type": "string", "format": "uint64", "pattern": "^[0-9]{1,20}$"}
_INT32: Schema = {"type": "integer", "format": "int32"}
_UINT32: Schema = {"type": "integer", "format": "uint32", "minimum": 0}
_BYTES: Schema = {"type": "string", "contentEncoding": "base64"}
_TIME, _DURATION = "2026-01-31T12:00:00Z", "1.5s"

_SCALARS: Mapping[int, tuple[Schema, Any]] = {
    _Field.TYPE_INT32: (_INT32, 1),
    _Field.TYPE_SINT32: (_INT32, 1),
    _Field.TYPE_SFIXED32: (_INT32, 1),
    _Field.TYPE_UINT32: (_UINT32, 1),
    _Field.TYPE_FIXED32: (_UINT32, 1),
    _Field.TYPE_INT64: (_INT64, "1"),
    _Field.TYPE_SINT64: (_INT64, "1"),
    _Field.TYPE_SFIXED64: (_INT64, "1"),
    _Field.TYPE_UINT64: (_UINT64, "1"),
    _Field.TYPE_FIXED64: (_UINT64, "1"),
    _Field.TYPE_FLOAT: ({"type": "number", "format": "float"}, 1.5),
    _Field.TYPE_DOUBLE: ({"type": "number", "format": "double"}, 1.5),
    _Field.TYPE_BOOL: ({"type": "boolean"}, True),
    _Field.TYPE_STRING: ({"type": "string"}, "text"),
    _Field.TYPE_BYTES: (_BYTES, "AAE="),
}
"""Schema and example of each scalar type."""

_WELL_KNOWN: Mapping[str, tuple[Schema, Any]] = {
    "Timestamp": ({"type": "string", "format": "date-time"}, _TIME),
    "Duration": ({"type": "string", "pattern": r"^-?[0-9]+(\.[0-9]{1,9})?s$"}, _DURATION),
    "FieldMask": ({"type": "string"}, "movieId"),
    "Struct": ({"type": "object"}, {}),
    "Value": ({}, None),
    "ListValue": ({"type": "array", "items": {}}, []),
    "Any": ({"type": "object", "properties": {"@type": {"type": "string"}}}, {}),
    "Empty": ({"type": "object"}, {}),
}
_PREFIX = "google.protobuf."
_EXAMPLES: Mapping[str, Any] = {"google.type.Money": {"units": "14", "nanos": 750_000_000}}
"""Examples of messages that are more than one for each of their fields."""
_ONLY_TRUE = frozenset({"tablegate.v1.ReadOptions.minimize_latency", "tablegate.v1.ReadOptions.latest"})
"""Fields that choose by being there: false is refused."""


class Comments:
    """What the contracts' authors wrote above services, methods, messages, fields and enums, by full name.

    Empty where the descriptor set came without source info.
    """

    def __init__(self, files: FileDescriptorSet) -> None:
        self._texts: dict[str, str] = {}
        for file in files.file:
            paths = {
                tuple(location.path): location.leading_comments or location.trailing_comments
                for location in file.source_code_info.location
            }
            for path, name in _names(file):
                text = paths.get(path, "")
                if text:
                    self._texts[name] = " ".join(text.split())

    def of(self, full_name: str) -> str:
        """Return a comment as one line, "" where there is none."""
        return self._texts.get(full_name, "")


def _names(file: FileDescriptorProto) -> Iterable[tuple[tuple[int, ...], str]]:
    package = f"{file.package}." if file.package else ""
    for at, message in enumerate(file.message_type):
        yield from _names_in((FileDescriptorProto.MESSAGE_TYPE_FIELD_NUMBER, at), package, message)
    for at, enum in enumerate(file.enum_type):
        yield from _names_in_enum((FileDescriptorProto.ENUM_TYPE_FIELD_NUMBER, at), package, enum)
    for at, service in enumerate(file.service):
        path = (FileDescriptorProto.SERVICE_FIELD_NUMBER, at)
        yield path, package + service.name
        for inner, method in enumerate(service.method):
            yield (*path, 2, inner), f"{package}{service.name}.{method.name}"


def _names_in(path: tuple[int, ...], prefix: str, message: DescriptorProto) -> Iterable[tuple[tuple[int, ...], str]]:
    name = prefix + message.name
    yield path, name
    for at, field in enumerate(message.field):
        yield (*path, DescriptorProto.FIELD_FIELD_NUMBER, at), f"{name}.{field.name}"
    for at, nested in enumerate(message.nested_type):
        yield from _names_in((*path, DescriptorProto.NESTED_TYPE_FIELD_NUMBER, at), f"{name}.", nested)
    for at, enum in enumerate(message.enum_type):
        yield from _names_in_enum((*path, DescriptorProto.ENUM_TYPE_FIELD_NUMBER, at), f"{name}.", enum)


def _names_in_enum(
    path: tuple[int, ...], prefix: str, enum: EnumDescriptorProto
) -> Iterable[tuple[tuple[int, ...], str]]:
    yield path, prefix + enum.name
    for at, value in enumerate(enum.value):
        # Values are siblings of their enum; here they are named inside of it, so that each has one place.
        yield (*path, EnumDescriptorProto.VALUE_FIELD_NUMBER, at), f"{prefix}{enum.name}.{value.name}"


class Schemas:
    """The schemas of messages and enums, made as they are asked for. `components`: all of them, by name."""

    def __init__(self, comments: Comments, components: dict[str, Schema]) -> None:
        self.components = components
        self._comments = comments
        self._names: dict[str, str] = {}

    def of_message(self, message: Descriptor) -> Schema:
        """Return a schema that refers to that of `message`."""
        if message.full_name.startswith(_PREFIX):
            return _well_known(message)[0]
        name, is_new = self._name(message)
        if is_new:
            schema = self.components[name] = {"type": "object"}
            text = [self._comments.of(message.full_name)]
            for oneof in message.oneofs:
                if len(oneof.fields) > 1:
                    text.append(f"At most one of {', '.join(field.json_name for field in oneof.fields)}.")
            _describe(schema, " ".join(filter(None, text)))
            schema["properties"] = {field.json_name: self.of_field(field) for field in message.fields}
            required = [field.json_name for field in message.fields if is_required(field)]
            if required:
                schema["required"] = required
        return {"$ref": f"#/components/schemas/{name}"}

    def of_field(self, field: FieldDescriptor) -> Schema:
        """Return the schema of a field, with its description."""
        if is_map(field):
            assert field.message_type is not None
            value = field.message_type.fields_by_name["value"]
            schema: Schema = {"type": "object", "additionalProperties": self._of_one(value)}
        elif field.is_repeated:
            schema = {"type": "array", "items": self._of_one(field)}
        else:
            schema = dict(self._of_one(field))
            if field.full_name in _ONLY_TRUE:
                schema["enum"] = [True]
        return _describe(schema, self._comments.of(field.full_name))

    def _of_one(self, field: FieldDescriptor) -> Schema:
        if field.message_type is not None:
            return self.of_message(field.message_type)
        if field.enum_type is not None:
            return self._of_enum(field.enum_type)
        return _SCALARS[field.type][0]

    def _of_enum(self, enum: EnumDescriptor) -> Schema:
        name, is_new = self._name(enum)
        if is_new:
            comments = {value.name: self._comments.of(f"{enum.full_name}.{value.name}") for value in enum.values}
            values = [f"- `{name}`: {text}" for name, text in comments.items() if text]
            text = "\n".join([self._comments.of(enum.full_name), "", *values]).strip()
            schema = {"type": "string", "enum": [value.name for value in enum.values]}
            self.components[name] = _describe(schema, text)
        return {"$ref": f"#/components/schemas/{name}"}

    def _name(self, described: Descriptor | EnumDescriptor) -> tuple[str, bool]:
        """Return the schema's name, short where that is nobody else's, and whether it is yet to be made."""
        known = self._names.get(described.full_name)
        if known is not None:
            return known, False
        short = described.full_name.removeprefix(f"{described.file.package}.")
        name = self._names[described.full_name] = described.full_name if short in self.components else short
        return name, True


def is_required(field: FieldDescriptor) -> bool:
    """Return whether the contract says that a field must be given."""
    return field_behavior_pb2.REQUIRED in field.GetOptions().Extensions[field_behavior_pb2.field_behavior]


def example_of(message: Descriptor, *, only: Sequence[str] | None = None) -> Any:
    """Return what a message may look like; with `only`, no other fields than these and, inside, required ones.

    Of a oneof there is the first field.
    """
    return _example_of(message, (), only)


def example_of_field(field: FieldDescriptor) -> Any:
    """Return a value that a field may have."""
    return _field_example(field, (), all_fields=True)


def _example_of(message: Descriptor, above: tuple[Descriptor, ...], only: Sequence[str] | None) -> Any:
    if message.full_name.startswith(_PREFIX):
        return _well_known(message)[1]
    if message.full_name in _EXAMPLES:
        return _EXAMPLES[message.full_name]
    shown = {}
    for field in message.fields:
        oneof = field.containing_oneof
        if only is not None and field.name not in only:
            continue
        if (oneof is not None and oneof.fields[0] is not field) or field.message_type in (*above, message):
            continue
        shown[field.json_name] = _field_example(field, (*above, message), all_fields=only is None)
    return shown


def _field_example(field: FieldDescriptor, above: tuple[Descriptor, ...], *, all_fields: bool) -> Any:
    if is_map(field):
        return {}
    if field.message_type is not None:
        required = None if all_fields else [inner.name for inner in field.message_type.fields if is_required(inner)]
        value = _example_of(field.message_type, above, required)
    elif field.enum_type is not None:
        value = field.enum_type.values[-1 if len(field.enum_type.values) == 1 else 1].name
    else:
        value = _SCALARS[field.type][1]
    return [value] if field.is_repeated else value


def _well_known(message: Descriptor) -> tuple[Schema, Any]:
    known = _WELL_KNOWN.get(message.full_name.removeprefix(_PREFIX))
    return known if known is not None else _SCALARS[message.fields_by_name["value"].type]  # a wrapper


def _describe(schema: Schema, text: str) -> Schema:
    if text:
        schema["description"] = text
    return schema
