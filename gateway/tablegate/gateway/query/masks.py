"""Field masks: which fields of a row a request wants (AIP-157), and rows that are trimmed to them on the wire.

How it works: a row is parsed by a message type that has the wanted fields and no others. All else is unknown to it, and
is dropped. So the runtime, in C, passes over what is not wanted: a wide row costs hardly more than a narrow one, where
parsing it by its own type and clearing fields costs as much as there are fields. The types of such a *narrow* message
are chosen so that nothing is decoded needlessly: text and whole messages are bytes to it.

What is set last of a oneof clears the others, wanted or not. So where a field of one is wanted, the row is parsed by
its own type, and what is not wanted is cleared.

Fields that the contract does not know are dropped with a mask; the key's columns and proto2's required fields stay.

Decision: docs/decisions/0133-a-mask-is-a-narrow-message.md
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from tablegate.gateway.contract.catalogue import Query, Table
from tablegate.gateway.contract.columns import in_oneof
from tablegate.gateway.query.errors import CorruptRow, InvalidField

PATHS_MAX = 1_000  # of a mask: more than a row has columns, and they take half a millisecond
MASKS_MAX = 1_000  # kept compiled, of all queries and all who ask; each takes some 6 KB

Trim = Callable[[bytes], bytes]
"""From the bytes of a row to those of what is wanted of it; raises `CorruptRow`."""

Wanted: TypeAlias = dict[str, "Wanted | None"]
"""The wanted fields of a message, by name: None for all of a field, else what is wanted of the message in it."""

_ALL = "*"
_SHOWN = re.compile(r"[\w.*]{1,48}", re.ASCII)  # what an error repeats of a path: a name, and no text of somebody's


def mask_reader(query: Query, always: Sequence[str] = ()) -> Callable[[Message], Trim | None]:
    """Return the function from a request to how its rows are trimmed, None where they are not; raises `InvalidField`.

    Rows keep the columns of the key, and those whose paths are in `always`.
    """
    mask = query.read_mask
    if mask is None:
        return lambda _: None
    name, table = mask.name, query.table
    kept = (*(column.name for column in table.key), *always)

    def read(request: Any) -> Trim | None:
        if not request.HasField(name):
            return None
        paths = getattr(request, name).paths
        if len(paths) > PATHS_MAX:
            raise InvalidField(name, f"has {len(paths)} paths, and at most {PATHS_MAX} are read; leave it out for all")
        return _compiled(name, tuple(paths), kept, table) if paths else None

    return read


@lru_cache(MASKS_MAX)
def _compiled(field: str, paths: tuple[str, ...], kept: tuple[str, ...], table: Table) -> Trim | None:
    wanted = wanted_of(field, paths, table.row)
    if wanted is None:
        return None
    for path in kept:
        problem = _add(wanted, path, table.row)
        assert problem is None, "the contract was checked"
    return trimmer(wanted, table)


def wanted_of(field: str, paths: Iterable[str], row: Descriptor) -> Wanted | None:
    """Return what the paths of a mask name of a row, None for all of it; raise `InvalidField`, of `field`."""
    wanted: Wanted = {}
    is_all = False
    for at, path in enumerate(paths):
        if path == _ALL:
            is_all = True
            continue
        problem = _add(wanted, path, row)
        if problem is not None:
            shown = f'"{path}"' if _SHOWN.fullmatch(path) else f"a path at place {at}"
            raise InvalidField(field, f'names {shown}, and {problem}; name columns of {row.name}, or "*" for all')
    return None if is_all else wanted


def _add(wanted: Wanted, path: str, message: Descriptor) -> str | None:
    """Add a path to what is wanted of a message; return what is wrong with it, None for nothing."""
    *holders, last = path.split(".")
    into: Wanted | None = wanted
    for name in holders:
        holder = _field(message, name)
        if holder is None:
            return f"{message.name} has no such field"
        if holder.message_type is None or holder.is_repeated:
            return f'"{holder.name}" holds no single message, so a path ends with it'
        # Where all of a message is wanted already, the rest of the path says nothing new; it is checked all the same.
        into = None if into is None else into.setdefault(holder.name, {})
        message = holder.message_type
    field = _field(message, last)
    if field is None:
        return f"{message.name} has no such field"
    if into is not None:
        into[field.name] = None
    return None


def _field(message: Descriptor, name: str) -> FieldDescriptor | None:
    """Return a field by its name, in the contract or in JSON."""
    known = message.fields_by_name.get(name)
    return known or next((field for field in message.fields if field.json_name == name), None)


def trimmer(wanted: Wanted, table: Table) -> Trim:
    """Return the function that trims rows of a table to what is wanted."""
    _add_required(wanted, table.row)
    trim = _clearing(wanted, table.row_class) if _has_oneof(wanted, table.row) else _narrowing(wanted, table.row)
    name = table.name

    def trim_row(row: bytes) -> bytes:
        try:
            return trim(row)
        except DecodeError:
            text = f'table "{name}" has a damaged row; its store must be made anew'
            raise CorruptRow(text, table=name) from None

    return trim_row


def _add_required(wanted: Wanted, message: Descriptor) -> None:
    """Add what proto2 requires of each message of which there is something: without it a client could not parse it."""
    for field in message.fields:
        if field.is_required:
            wanted[field.name] = None
        inner = wanted.get(field.name)
        if inner is not None and field.message_type is not None:
            _add_required(inner, field.message_type)


def _has_oneof(wanted: Wanted, message: Descriptor) -> bool:
    for name, inner in wanted.items():
        field = message.fields_by_name[name]
        if in_oneof(field):
            return True
        if inner is not None and field.message_type is not None and _has_oneof(inner, field.message_type):
            return True
    return False


def _clearing(wanted: Wanted, row_class: type[Message]) -> Trim:
    """Return the function that parses a row by its own type, and clears what is not wanted."""

    def trim(row: bytes) -> bytes:
        message = row_class.FromString(row)
        _clear(message, wanted)
        message.DiscardUnknownFields()
        return bytes(message.SerializePartialToString())

    return trim


def _clear(message: Any, wanted: Wanted) -> None:
    for field, value in message.ListFields():
        if field.is_extension:
            message.ClearExtension(field)
        elif field.name not in wanted:
            message.ClearField(field.name)
        elif (inner := wanted[field.name]) is not None:
            _clear(value, inner)


def _narrowing(wanted: Wanted, row: Descriptor) -> Trim:
    """Return the function that parses a row by a narrow message."""
    # With proto2 what is on the wire stays, a zero too, and text is not checked.
    file = FileDescriptorProto(name="narrow.proto", syntax="proto2")
    name = _add_narrow(file, wanted, row)
    pool = DescriptorPool()
    pool.Add(file)
    parse: Callable[[bytes], Any] = GetMessageClass(pool.FindMessageTypeByName(name)).FromString

    def trim(data: bytes) -> bytes:
        message = parse(data)
        message.DiscardUnknownFields()
        return bytes(message.SerializeToString())

    return trim


def _add_narrow(file: FileDescriptorProto, wanted: Wanted, message: Descriptor) -> str:
    """Add to a file the narrow type of what is wanted of a message; return its name."""
    narrow = file.message_type.add(name=f"Narrow{len(file.message_type)}")
    for name, inner in wanted.items():
        field = message.fields_by_name[name]
        declared = narrow.field.add(name=name, number=field.number)
        if inner is not None and field.message_type is not None:
            # Of one that comes several times the parts are one message, as the runtime merges them.
            declared.label, declared.type = FieldDescriptorProto.LABEL_OPTIONAL, FieldDescriptorProto.TYPE_MESSAGE
            declared.type_name = _add_narrow(file, inner, field.message_type)
        elif field.message_type is not None:
            # As bytes it stays as it is; repeated, so that one that comes several times does.
            declared.label, declared.type = FieldDescriptorProto.LABEL_REPEATED, FieldDescriptorProto.TYPE_BYTES
        else:
            _declare_scalar(declared, field)
    return narrow.name


def _declare_scalar(declared: FieldDescriptorProto, field: FieldDescriptor) -> None:
    of_bytes = field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
    declared.label = FieldDescriptorProto.LABEL_OPTIONAL
    if field.is_repeated:
        declared.label = FieldDescriptorProto.LABEL_REPEATED
        if not of_bytes:
            declared.options.packed = True  # parsers take both forms; this one is shorter
    if of_bytes:
        declared.type = FieldDescriptorProto.TYPE_BYTES
    elif field.enum_type is not None:
        declared.type = FieldDescriptorProto.TYPE_INT32  # on the wire the same, and no number is refused
    else:
        declared.type = FieldDescriptorProto.Type.ValueType(field.type)
