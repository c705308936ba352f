"""Binds the parts of responses that hold rows and keys: which table a method reads, results of a batch, changes."""

from collections.abc import Mapping
from typing import NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor

from tablegate.gateway.contract.binder.fields import Fields, Method
from tablegate.gateway.contract.binder.problems import Problems
from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.columns import in_oneof, same_type, type_name
from tablegate.gateway.contract.indexes import Index


def find_table(
    method: MethodDescriptor, named: str, tables: Mapping[str, Table], rows: set[str], problems: Problems
) -> Table | None:
    """Return the table that `method` reads: the one whose row its response holds, which is `named` if that is set.

    `rows` are the full names of all rows, `tables` the good tables by them; None where there was a problem.
    """
    row_names = _rows_in(method.output_type, rows)
    if not row_names:
        text = "holds no row of a table, itself or in the message that it repeats"
        problems.of_method(method, text, "add a field with the row", message=method.output_type)
        return None
    if len(row_names) > 1:
        text = f"holds rows of {len(row_names)} tables ({', '.join(sorted(row_names))})"
        problems.of_method(method, text, "read one table a method", message=method.output_type)
        return None
    table = tables.get(row_names.pop())
    if table is not None and named not in ("", table.name):
        exists = any(named == other.name for other in tables.values())
        text = f'names table "{named}", ' + (
            f'and its response holds the row of table "{table.name}"' if exists else "which no message describes"
        )
        problems.of_method(method, text, "leave the name out, or name the table of the response's row")
        return None
    return table


def named_table(method: MethodDescriptor, named: str, tables: Mapping[str, Table], problems: Problems) -> Table | None:
    """Return the table that a method names, whose response has no row; None where there was a problem.

    `tables` are the good tables by the full names of their rows.
    """
    known = {table.name: table for table in tables.values()}
    if not named:
        hint = f'write `table: "{next(iter(known), "…")}"` beside `count` in its query option'
        problems.of_method(method, "counts the rows of a table that it does not name", hint)
    elif named not in known:
        text = f'names table "{named}", which no message describes'
        problems.of_method(method, text, f"name one of {', '.join(known) or 'the tables'}")
    return known.get(named)


def number_field(method: Method, fields: Fields) -> FieldDescriptor | None:
    """Return the field of the response that holds the number; None where there was a problem."""
    found = [bound for bound in fields.rest if bound.type == bound.TYPE_INT64 and not bound.is_repeated]
    for bound in fields.rest:
        if not found or bound is not found[0]:
            method.wrong_field(bound, f"nothing fills this field: {method.kind} answers with one int64", "remove it")
    if not found:
        method.wrong("lacks an int64", "add a field for the number", message=method.descriptor.output_type)
        return None
    if in_oneof(found[0]):
        method.wrong_field(found[0], "the number is in a oneof", "take it out of the oneof")
    return found[0]


def _rows_in(response: Descriptor, rows: set[str]) -> set[str]:
    direct = [bound.message_type for bound in response.fields if bound.message_type is not None]
    nested = [inner.message_type for outer in direct if outer.full_name not in rows for inner in outer.fields]
    return {message.full_name for message in [*direct, *nested] if message is not None and message.full_name in rows}


def single_field(method: Method, fields: Fields, *, repeated: bool, of: str) -> FieldDescriptor | None:
    """Return the one field of the response that is not bound by type or name; it should hold `of`."""
    messages = [bound for bound in fields.rest if bound.message_type is not None]
    for bound in fields.rest:
        if not messages or bound is not messages[0]:
            method.wrong_field(bound, f"nothing fills this field: {method.kind} answers with {of}", "remove it")
    if not fields.rest:
        method.wrong(f"lacks {of}", "add a field for it", message=method.descriptor.output_type)
    if messages and messages[0].is_repeated != repeated:
        text = f"is {'not ' if repeated else ''}repeated, and {method.kind} answers with {of}"
        method.wrong_field(messages[0], text, f'{"write" if repeated else "remove"} "repeated" before its type')
        return None
    return messages[0] if len(messages) == len(fields.rest) == 1 else None


def row_field(method: Method, fields: Fields, *, repeated: bool) -> FieldDescriptor | None:
    """Return the field of the response that holds the row or, `repeated`, the rows."""
    of = f"{'a repeated' if repeated else 'a single'} {method.table.row.name}"
    bound = single_field(method, fields, repeated=repeated, of=of)
    if bound is not None and not _is_row(method, bound):
        method.wrong_field(bound, f"is not {of}", f"make its type {method.table.row.name}")
        return None
    if bound is not None and in_oneof(bound):
        method.wrong_field(bound, "the row is in a oneof", "take it out of the oneof")
        return None
    return bound


class Either(NamedTuple):
    """A oneof of a row and something of its key, in the message that `outer` repeats."""

    outer: FieldDescriptor
    row: FieldDescriptor
    other: FieldDescriptor


def either_field(method: Method, fields: Fields, *, other: str) -> Either | None:
    """Return the repeated field of the response, whose message is a oneof of row and `other` and nothing else."""
    outer = single_field(method, fields, repeated=True, of=f"a repeated oneof of row and {other}")
    if outer is None:
        return None
    message = outer.message_type
    assert message is not None, "single_field looks for messages"
    rows = [bound for bound in message.fields if _is_row(method, bound)]
    others = [bound for bound in message.fields if bound not in rows]
    together = len(message.oneofs) == 1 and all(in_oneof(bound) for bound in message.fields)
    if len(rows) == len(others) == 1 and together:
        return Either(outer, rows[0], others[0])
    text = f"must be one oneof of a {method.table.row.name} and a {other}, and nothing else"
    method.wrong(text, "give it these two fields in one oneof", message=message)
    return None


def _is_row(method: Method, bound: FieldDescriptor) -> bool:
    return bound.message_type is not None and bound.message_type.full_name == method.table.row.full_name


def key_fields(method: Method, message: Descriptor) -> tuple[FieldDescriptor, ...] | None:
    """Return the fields of a key message, in key order: the key columns by name and type, and nothing else."""
    row_fields = method.table.row.fields_by_name
    columns = {column.name: row_fields[column.name] for column in method.table.key}
    return _fields_of(method, message, columns, "key column", f'table "{method.table.name}"')


def index_key_fields(method: Method, message: Descriptor, index: Index) -> tuple[FieldDescriptor, ...] | None:
    """Return the fields of a message of the columns of an index, in their order, and nothing else.

    Of a column inside of a message, the field has the name `city` or, where that is taken, `address_city`.
    """
    columns = {}
    for column in index.columns:
        last = column.name.rpartition(".")[2]
        columns[last if last in message.fields_by_name else column.name.replace(".", "_")] = column.field
    return _fields_of(method, message, columns, "column", f'index "{index.name}"')


def _fields_of(
    method: Method, message: Descriptor, columns: Mapping[str, FieldDescriptor], what: str, of: str
) -> tuple[FieldDescriptor, ...] | None:
    """Return the fields of a message by the names of `columns`, with their types."""
    before = len(method.problems.found)
    for bound in message.fields:
        column = columns.get(bound.name)
        if column is None:
            text = f"is no {what} of {of}"
            method.wrong_field(bound, text, f"leave exactly the {what}s ({', '.join(columns)})")
        elif not same_type(bound, column) or bound.is_repeated or in_oneof(bound):
            text = f"must be a single {type_name(column)} outside of a oneof, as the {what} is"
            method.wrong_field(bound, text, f"give it the type of the {what}")
    for name in columns:
        if name not in message.fields_by_name:
            text = f'lacks {what} "{name}" of {of}'
            method.wrong(text, "add it, with the type that the row has", message=message)
    if len(method.problems.found) > before or set(columns) != set(message.fields_by_name):  # some are reported above
        return None
    return tuple(message.fields_by_name[name] for name in columns)
