"""Binds the fields of requests and responses: by type, by name, or to a column of the table."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum

from google.api import field_behavior_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor

from tablegate.gateway.contract.binder.files import option
from tablegate.gateway.contract.binder.indexes import is_index_equal
from tablegate.gateway.contract.binder.problems import Problems
from tablegate.gateway.contract.catalogue import Op, Param, Table
from tablegate.gateway.contract.columns import in_oneof, is_map, operator_fits, same_type, type_name
from tablegate.v1 import options_pb2


class Part(Enum):
    """What binds by type (the value is a full name), or by name in a Range (the value is name and type)."""

    READ_OPTIONS = "tablegate.v1.ReadOptions"
    READ_MASK = "google.protobuf.FieldMask"
    SCAN_OPTIONS = "tablegate.v1.ScanOptions"
    SUBSCRIBE_OPTIONS = "tablegate.v1.SubscribeOptions"
    ORDER = "tablegate.v1.Order"
    READ_INFO = "tablegate.v1.ReadInfo"
    SCAN_PROGRESS = "tablegate.v1.ScanProgress"
    SUBSCRIBE_PROGRESS = "tablegate.v1.SubscribeProgress"
    PAGE_SIZE = "int32 page_size"
    PAGE_TOKEN = "string page_token"
    NEXT_PAGE_TOKEN = "string next_page_token"


_BY_TYPE = {part.value: part for part in Part if " " not in part.value}
_BY_NAME = {part.value.split()[1]: part for part in Part if " " in part.value}


@dataclass(frozen=True, slots=True)
class Method:
    """A method that is being bound: what is bound to which table, and where problems go."""

    descriptor: MethodDescriptor
    kind: str  # "a Get", for sentences
    table: Table
    problems: Problems
    whole_key: bool = False  # every param is a key column that must be given
    reads_indexes: bool = False  # columns of indexes may be given as those of the key are

    def wrong(self, text: str, hint: str, *, message: Descriptor | None = None) -> None:
        """Add a problem of the method, or of its request or response."""
        self.problems.of_method(self.descriptor, text, hint, message=message)

    def wrong_field(self, bound: FieldDescriptor, text: str, hint: str) -> None:
        """Add a problem of a field."""
        self.problems.of_field(self.descriptor, bound, text, hint)


@dataclass(slots=True)
class Fields:
    """Fields of a request or response: what binds by type or name, what constrains a column, and all the rest."""

    parts: dict[Part, FieldDescriptor] = field(default_factory=dict)
    params: list[Param] = field(default_factory=list)
    rest: list[FieldDescriptor] = field(default_factory=list)


def bind_request(method: Method, allowed: AbstractSet[Part], *, keys: FieldDescriptor | None = None) -> Fields:
    """Return the fields of the request but `keys`, each a part or a param."""
    fields = Fields()
    for bound in method.descriptor.input_type.fields:
        if bound is keys:
            continue
        annotated = option(bound, options_pb2.param) is not None
        if not annotated and _bind_part(method, bound, allowed, fields):
            continue
        if bound.is_repeated and not is_choice(bound):
            hint = "take one value, say `op: OP_IN` in its param option, or make the method a BatchGet"
            method.wrong_field(bound, "a repeated field constrains no column", hint)
            continue
        param = _bind_param(method, bound)
        if param is None:
            continue
        if any(other.column_name == param.column_name and other.op is param.op for other in fields.params):
            text = f'column "{param.column_name}" has this constraint from another field already'
            method.wrong_field(bound, text, "remove one of them")
        fields.params.append(param)
    return fields


def is_choice(bound: FieldDescriptor) -> bool:
    """Return whether a request field says that a column is one of its values."""
    param = option(bound, options_pb2.param)
    return param is not None and param.op == options_pb2.OP_IN


def bind_parts(method: Method, message: Descriptor, allowed: AbstractSet[Part]) -> Fields:
    """Return the fields of a message, each a part or the rest, which should be what holds the rows or keys."""
    fields = Fields()
    for bound in message.fields:
        if not _bind_part(method, bound, allowed, fields):
            fields.rest.append(bound)
    return fields


def _bind_part(method: Method, bound: FieldDescriptor, allowed: AbstractSet[Part], fields: Fields) -> bool:
    """Bind a field whose type or name says what it is; return whether it does."""
    part = _BY_TYPE.get(type_name(bound))
    if part is None:
        part = _BY_NAME.get(bound.name)
        if part not in allowed:
            return False  # the name means nothing here: it may be a column's
    assert part is not None, "None is in no set of parts"
    if part not in allowed:
        method.wrong_field(bound, f"{method.kind} has no place for {part.value} here", "remove it")
    elif part in fields.parts:
        method.wrong_field(bound, f"is a second {part.value}", "remove one of them")
    elif bound.is_repeated or in_oneof(bound):
        method.wrong_field(bound, f"{part.value} must be a field of its own", "take it out of repeated, map or oneof")
    elif part in _BY_NAME.values() and part.value != f"{type_name(bound)} {bound.name}":
        method.wrong_field(bound, f"its type is {type_name(bound)}", f"make it {part.value}")
    else:
        fields.parts[part] = bound
    return True


def _bind_param(method: Method, bound: FieldDescriptor) -> Param | None:
    options = option(bound, options_pb2.param) or options_pb2.ParamOptions()
    path = _find_column(method, bound, options.column)
    if path is None or options.op not in options_pb2.Op.values():  # the second is said where options are checked
        return None
    *within, column = path
    name = ".".join(field.name for field in path)
    op = Op(options.op or options_pb2.OP_EQ)
    fitting = ", ".join(f"OP_{other.name}" for other in Op if operator_fits(other, column))
    if not fitting:
        text = f'constrains column "{name}", and no operator compares a {_kind(column)}'
        method.wrong_field(bound, text, "constrain another column, or remove the field")
        return None
    if not same_type(bound, column):
        text = f'its type is {type_name(bound)}, and that of column "{name}" is {type_name(column)}'
        method.wrong_field(bound, text, "give both the same type")
        return None
    if not operator_fits(op, column):
        text = f'OP_{op.name} has no meaning for column "{name}" of type {_kind(column)}'
        method.wrong_field(bound, text, f"take another column, or one of {fitting}")
        return None
    if op is Op.IN and not bound.is_repeated:
        method.wrong_field(bound, "OP_IN takes several values", 'write "repeated" before its type, or take OP_EQ')
        return None
    return _checked_param(method, bound, column, op, tuple(within))


def _kind(column: FieldDescriptor) -> str:
    if is_map(column):
        return "map"
    return f"{'repeated ' if column.is_repeated else ''}{type_name(column)}"


def _find_column(method: Method, bound: FieldDescriptor, named: str) -> list[FieldDescriptor] | None:
    """Return the column that a field constrains, behind the messages that it is in."""
    row: Descriptor | None = method.table.row
    path: list[FieldDescriptor] = []
    for name in (named or bound.name).split("."):
        column = row.fields_by_name.get(name) if row is not None else None
        if column is None or (path and path[-1].is_repeated):
            text = (
                f'constrains column "{named}", which message {method.table.row.name} does not have'
                if named
                else f"binds to nothing: it is nothing that {method.kind} takes, and message {method.table.row.name} "
                "has no such column"
            )
            if path and path[-1].is_repeated:
                text = f'constrains column "{named}", and "{path[-1].name}" is repeated: it has no one value of it'
            method.wrong_field(bound, text, "name its column with (tablegate.v1.param).column, or remove the field")
            return None
        path.append(column)
        row = column.message_type
    return path


def _checked_param(
    method: Method, bound: FieldDescriptor, column: FieldDescriptor, op: Op, within: tuple[FieldDescriptor, ...]
) -> Param | None:
    names = [part.name for part in method.table.key]
    key_index = names.index(column.name) if not within and column.name in names else None
    may_be_required = op is Op.EQ and key_index is not None
    if method.reads_indexes and is_index_equal(op, column):
        name = ".".join(field.name for field in (*within, column))
        may_be_required |= any(name in index.column_names for index in method.table.indexes)
    required = may_be_required and (method.whole_key or not bound.has_presence or _is_marked_required(bound))
    if not bound.has_presence and not may_be_required and not method.whole_key and op is not Op.IN:
        text = 'has no presence, and a field that is not set must mean "no constraint"'
        method.wrong_field(bound, text, 'write "optional" before its type')
        return None
    if required and in_oneof(bound):
        method.wrong_field(bound, "a field that must be given is in a oneof", "take it out of the oneof")
        return None
    return Param(field=bound, column=column, op=op, key_index=key_index, required=required, within=within)


def _is_marked_required(bound: FieldDescriptor) -> bool:
    behaviors = bound.GetOptions().Extensions[field_behavior_pb2.field_behavior]
    return field_behavior_pb2.REQUIRED in behaviors
