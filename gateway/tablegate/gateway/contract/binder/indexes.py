"""Binds the indexes of a table, and finds the one by which a query reads."""

from collections.abc import Callable, Iterable, Sequence

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from tablegate.gateway.contract.binder.problems import Problems
from tablegate.gateway.contract.catalogue import Op, Param
from tablegate.gateway.contract.columns import is_map, is_message, key_type, type_name
from tablegate.gateway.contract.indexes import INDEX_BYTES_MAX, INDEXES_MAX, Index, IndexColumn
from tablegate.v1 import options_pb2

_TYPES = "string, bytes, bool, integer, enum or google.protobuf.Timestamp"


def bind_indexes(
    row: Descriptor,
    options: options_pb2.TableOptions,
    problems: Problems,
    *,
    is_name: Callable[[str], object],
) -> tuple[Index, ...]:
    """Return the indexes of a table; leave out those that have problems. `is_name` tells what may be one's name."""
    found: list[Index] = []
    names: set[str] = set()
    if len(options.index) > INDEXES_MAX:
        text = f"the table has {len(options.index)} indexes, and each makes every write slower"
        problems.of_message(row, text, f"leave at most {INDEXES_MAX}", field="index")
    for each in options.index:
        if not is_name(each.name):
            text = f'"{each.name}" is no name for an index' if each.name else "an index has no name"
            hint = "take a lower-case letter, then at most 62 lower-case letters, digits or underscores"
            problems.of_message(row, text, hint, field="index.name")
        elif each.name in names:
            problems.of_message(row, f'two indexes are called "{each.name}"', "rename one", field="index.name")
        names.add(each.name)
        index = _bind_index(row, each, problems)
        same = next((other for other in found if index is not None and other.id == index.id), None)
        if index is not None and same is not None:
            text = f'index "{index.name}" has the columns of index "{same.name}"'
            problems.of_message(row, text, "remove one of them", field="index.columns")
        elif index is not None:
            found.append(index)
    return tuple(found)


def _bind_index(row: Descriptor, options: options_pb2.IndexOptions, problems: Problems) -> Index | None:
    what = f'index "{options.name}"'
    before = len(problems.found)
    columns = []
    for name in options.columns:
        path = _column(row, name, what, problems)
        if path is not None:
            columns.append(IndexColumn(path))
    if not options.columns:
        problems.of_message(row, f"{what} has no columns", "name some, in sort order", field="index.columns")
    if len(set(options.columns)) < len(options.columns):
        problems.of_message(row, f"{what} names a column twice", "name it once", field="index.columns")
    if sum(column.is_repeated for column in columns) > 1:
        text = f"{what} has several repeated columns, and would have an entry for each pair of elements"
        problems.of_message(row, text, "leave one of them", field="index.columns")
    bytes_min = sum(column.bytes_min for column in columns)
    if bytes_min > INDEX_BYTES_MAX:
        text = f"the columns of {what} take at least {bytes_min} bytes, and an index key has {INDEX_BYTES_MAX}"
        problems.of_message(row, text, "leave out the last of them", field="index.columns")
    if len(problems.found) > before:
        return None
    return Index(options.name, tuple(columns), options.unique, GetMessageClass(row))


def _column(row: Descriptor, name: str, what: str, problems: Problems) -> list[FieldDescriptor] | None:
    """Return the column of that name, behind the messages that it is in; None where there is a problem."""
    path: list[FieldDescriptor] = []
    message: Descriptor | None = row
    for part in name.split("."):
        column = message.fields_by_name.get(part) if message is not None else None
        if column is None:
            text = f'{what} names column "{name}", which message {row.name} does not have'
            problems.of_message(row, text, "name a field of the row, or of a message in it", field="index.columns")
            return None
        if path and path[-1].is_repeated:
            text = f'{what} names column "{name}", and "{path[-1].name}" is repeated: it has no one value of it'
            problems.of_message(row, text, "name another column", field=path[0].name)
            return None
        path.append(column)
        message = column.message_type
    column = path[-1]
    if key_type(column) is not None and not is_map(column):
        return path
    why = "messages have no order" if column.message_type is not None else "equal numbers may differ in their bytes"
    hint = f"take a {_TYPES}"
    if is_message(column) and not column.is_repeated:
        hint = "name a field of it"
    kind = "map" if is_map(column) else type_name(column)
    problems.of_message(row, f'{what} names column "{name}", a {kind}: {why}', hint, field=path[0].name)
    return None


def whole_index(indexes: Iterable[Index], params: Sequence[Param]) -> Index | None:
    """Return the unique index all of whose columns params give, and nothing else; None where there is none."""
    given = {param.column_name for param in params}
    for index in indexes:
        if index.unique and given == set(index.column_names) and len(params) == len(given):
            return index
    return None


def run_index(indexes: Iterable[Index], params: Sequence[Param]) -> Index | None:
    """Return the first index in which params ask for a run of entries; None where there is none.

    That is: equal to leading columns, then bounds on the next one. A row is met once only where its repeated column is
    fixed.
    """
    required = {param.column_name for param in params if param.required}
    optional = {param.column_name for param in params if not param.required}
    for index in indexes:
        names = index.column_names
        count = len(required)
        is_run = set(names[:count]) == required and optional <= set(names[count : count + 1])
        if is_run and not any(column.is_repeated for column in index.columns[count:]):
            return index
    return None


def is_index_equal(op: Op, column: FieldDescriptor) -> bool:
    """Return whether an operator fixes a column of an index: EQ, or of one that is repeated, CONTAINS."""
    return op is (Op.CONTAINS if column.is_repeated else Op.EQ)
