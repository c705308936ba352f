"""Generated queries as descriptors, in the file of their rows: what protoc makes of their text."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from google.api import annotations_pb2, field_behavior_pb2
from google.protobuf import field_mask_pb2
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
    MethodOptions,
    ServiceDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool

from tablegate.gateway.contract.generated.queries import IMPORTS, Field, Label, Message, Method, Queries
from tablegate.v1 import options_pb2, query_pb2

_GIVEN = (
    annotations_pb2.DESCRIPTOR,
    field_behavior_pb2.DESCRIPTOR,
    field_mask_pb2.DESCRIPTOR,
    options_pb2.DESCRIPTOR,
    query_pb2.DESCRIPTOR,
)
_ENUMS = frozenset(enum.full_name for enum in query_pb2.DESCRIPTOR.enum_types_by_name.values())
_SCALARS = {
    name.removeprefix("TYPE_").lower(): number
    for name, number in FieldDescriptorProto.Type.items()
    if name not in ("TYPE_MESSAGE", "TYPE_ENUM", "TYPE_GROUP")
}


def with_queries(
    files: FileDescriptorSet, pool: DescriptorPool, added: Mapping[str, Sequence[Queries]]
) -> FileDescriptorSet:
    """Return the files, with queries in those that `added` names, and with what these import.

    `pool` has the files: it says which types are enums.
    """
    by_name = {file.name: file for file in files.file}
    for given in _GIVEN:
        _add_given(given, by_name)
    for name, queries in added.items():
        by_name[name] = _extended(by_name[name], pool, queries)
    return FileDescriptorSet(file=by_name.values())


def imports_to_add(file: FileDescriptorProto) -> list[str]:
    """Return what a file of rows has to import besides, for queries."""
    return sorted(set(IMPORTS) - set(file.dependency))


def _add_given(given: FileDescriptor, by_name: dict[str, FileDescriptorProto]) -> None:
    if given.name in by_name:
        return
    for imported in given.dependencies:
        _add_given(imported, by_name)
    by_name[given.name] = FileDescriptorProto.FromString(given.serialized_pb)


def _extended(rows: FileDescriptorProto, pool: DescriptorPool, added: Iterable[Queries]) -> FileDescriptorProto:
    file = FileDescriptorProto()
    file.CopyFrom(rows)
    file.dependency.extend(imports_to_add(rows))
    comments = _Comments(file)
    types = _Types(file.package, pool)
    for queries in added:
        service = queries.service
        comments.add([file.SERVICE_FIELD_NUMBER, len(file.service)], service.comment)
        declared = file.service.add(name=service.name)
        for method in service.methods:
            path = [file.SERVICE_FIELD_NUMBER, len(file.service) - 1]
            comments.add([*path, ServiceDescriptorProto.METHOD_FIELD_NUMBER, len(declared.method)], method.comment)
            declared.method.append(_method(method, types))
        for message in queries.messages:
            _comment_message([file.MESSAGE_TYPE_FIELD_NUMBER, len(file.message_type)], message, comments)
            file.message_type.append(_message(message, types))
    return file


class _Comments:
    """The comments of a file, which pages for people show."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self._info = file.source_code_info

    def add(self, path: Sequence[int], comment: str) -> None:
        self._info.location.add(path=path, span=[0, 0, 0], leading_comments=f" {comment}\n")


def _comment_message(path: Sequence[int], message: Message, comments: _Comments) -> None:
    comments.add(path, message.comment)
    if message.oneof:
        comments.add([*path, DescriptorProto.ONEOF_DECL_FIELD_NUMBER, 0], message.oneof_comment)
    for place, field in enumerate(message.fields):
        comments.add([*path, DescriptorProto.FIELD_FIELD_NUMBER, place], field.comment)


class _Types:
    """The types of fields, by how a contract writes them."""

    def __init__(self, package: str, pool: DescriptorPool) -> None:
        self._prefix = f".{package}." if package else "."
        self._pool = pool

    def of(self, name: str) -> tuple[FieldDescriptorProto.Type.ValueType, str]:
        """Return type and type_name of a field."""
        if name in _SCALARS:
            return _SCALARS[name], ""
        if name in _ENUMS or _has_enum(self._pool, name):
            return FieldDescriptorProto.TYPE_ENUM, f".{name}"
        return FieldDescriptorProto.TYPE_MESSAGE, f".{name}"

    def own(self, name: str) -> str:
        """Return the type_name of a message of the package."""
        return self._prefix + name


def _has_enum(pool: DescriptorPool, name: str) -> bool:
    try:
        pool.FindEnumTypeByName(name)
    except KeyError:
        return False
    return True


def _method(method: Method, types: _Types) -> MethodDescriptorProto:
    options = MethodOptions()
    extensions: Any = options.Extensions  # the stubs take handles of ours for those of others
    if not method.streams:
        options.idempotency_level = MethodOptions.NO_SIDE_EFFECTS
    rule = extensions[annotations_pb2.http]
    verb, path = method.http
    setattr(rule, verb, path)
    if verb == "post":
        rule.body = "*"
    query = extensions[options_pb2.query]
    query.table = method.table
    kind = getattr(query, method.kind)
    kind.SetInParent()
    if method.scatter:
        kind.scatter = True
    return MethodDescriptorProto(
        name=method.name,
        input_type=types.own(f"{method.name}Request"),
        output_type=types.own(f"{method.name}Response"),
        server_streaming=method.streams or None,
        options=options,
    )


def _message(message: Message, types: _Types) -> DescriptorProto:
    declared = DescriptorProto(name=message.name)
    if message.oneof:
        declared.oneof_decl.add(name=message.oneof)
    names = {message.oneof, *(field.name for field in message.fields)}
    for number, field in message.numbered:
        one = _field(field, number, types)
        if message.oneof:
            one.oneof_index = 0
        elif field.label is Label.OPTIONAL:
            one.proto3_optional = True
            one.oneof_index = len(declared.oneof_decl)
            declared.oneof_decl.add(name=_free_oneof(field.name, names))
        declared.field.append(one)
    return declared


def _free_oneof(name: str, names: set[str]) -> str:
    """Return the name that protoc gives to the oneof that `optional` makes behind the scenes."""
    oneof = name if name.startswith("_") else f"_{name}"
    while oneof in names:
        oneof = f"X{oneof}"
    names.add(oneof)
    return oneof


def _field(field: Field, number: int, types: _Types) -> FieldDescriptorProto:
    repeated = field.label is Label.REPEATED
    type_, type_name = types.of(field.type)
    declared = FieldDescriptorProto(
        name=field.name,
        number=number,
        label=FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL,
        type=type_,
        json_name=_json_name(field.name),
    )
    if type_name:
        declared.type_name = type_name
    extensions: Any = declared.options.Extensions
    if field.required:
        extensions[field_behavior_pb2.field_behavior].append(field_behavior_pb2.REQUIRED)
    if field.column:
        extensions[options_pb2.param].column = field.column
    if field.op is not None:
        extensions[options_pb2.param].op = field.op.value
    return declared


def _json_name(name: str) -> str:
    """Return the name that protoc gives to a field in JSON."""
    return re.sub(r"_+([^_]?)", lambda found: found[1].upper(), name)
