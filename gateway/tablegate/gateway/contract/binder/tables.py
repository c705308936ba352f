"""Binds messages with a `table` option to tables."""

import re
from collections import Counter
from collections.abc import Iterable

from google.protobuf.descriptor import Descriptor
from google.protobuf.message_factory import GetMessageClass
from tablegate.gateway.contract.binder.files import option
from tablegate.gateway.contract.binder.problems import Problems
from tablegate.gateway.contract.binder.windows import bind_expiry, bind_window
from tablegate.gateway.contract.catalogue import Partitioner, Table
from tablegate.gateway.contract.columns import in_oneof, is_column_type, is_money, key_type, type_name
from tablegate.gateway.contract.keys import KeyColumn
from tablegate.v1 import options_pb2

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")  # a table's name is part of the names of topics
_KEY_TYPES = "string, bytes, bool, integer, enum or google.protobuf.Timestamp"


def find_rows(messages: Iterable[Descriptor]) -> list[Descriptor]:
    """Return the messages that are a table's row."""
    return [message for message in messages if option(message, options_pb2.table) is not None]


def bind_tables(rows: Iterable[Descriptor], problems: Problems) -> dict[str, Table]:
    """Return the tables of `rows` by the full names of the rows; leave out those that have problems."""
    tables: dict[str, Table] = {}
    owners: dict[str, Descriptor] = {}
    for row in rows:
        options = option(row, options_pb2.table)
        assert options is not None, "find_rows chose it for its option"
        first = owners.setdefault(options.name, row)
        if first is not row and options.name:
            text = f'table "{options.name}" is also the table of message {first.full_name} in {first.file.name}'
            problems.of_message(row, text, "give one of them another name")
        table = _bind_table(row, options, problems)
        if table is not None:
            tables[row.full_name] = table
    return tables


def _bind_table(row: Descriptor, options: options_pb2.TableOptions, problems: Problems) -> Table | None:
    before = len(problems.found)
    if not _NAME.fullmatch(options.name):
        text = f'"{options.name}" is no name for a table' if options.name else "the table has no name"
        hint = "take a lower-case letter, then at most 62 lower-case letters, digits or underscores"
        problems.of_message(row, text, hint, field="name")
    _check_columns(row, problems)
    key = _bind_key(row, options, problems)
    _check_partitioning(row, options, problems)
    window = bind_window(row, options, key, problems)
    expiry = bind_expiry(row, options, window, problems)
    if len(problems.found) > before:
        return None
    whole = len(options.partition_by) in (0, len(key))
    chosen = options.partitioner or (Partitioner.MURMUR2 if whole else Partitioner.CRC32).value
    return Table(
        name=options.name,
        row=row,
        row_class=GetMessageClass(row),
        key=key,
        partition_by_count=len(options.partition_by) or len(key),
        partitioner=Partitioner(chosen),
        window=window,
        expiry=expiry,
    )


def _check_columns(row: Descriptor, problems: Problems) -> None:
    for field in row.fields:
        if field.is_repeated:
            text, hint = "a column that is repeated or a map cannot be kept", "put one value into each column"
        elif not is_column_type(field):
            text = f"a column of type {type_name(field)} cannot be kept"
            hint = (
                "take scalars, enums, google.protobuf.Timestamp and google.type.Money: "
                "a column for each part of the message"
            )
        elif in_oneof(field):
            text, hint = "a column in a oneof cannot be kept", "take it out of the oneof"
        else:
            continue
        problems.of_message(row, text, hint, field=field.name)


def _bind_key(row: Descriptor, options: options_pb2.TableOptions, problems: Problems) -> tuple[KeyColumn, ...]:
    if not options.key:
        problems.of_message(row, "the table has no key", "name its key columns, in sort order", field="key")
    columns = []
    for name, count in Counter(options.key).items():
        if count > 1:
            problems.of_message(row, "the key names this column twice", "name it once", field=name)
        field = row.fields_by_name.get(name)
        if field is None:
            text = f"the key names a column that message {row.name} does not have"
            problems.of_message(row, text, "name a field of the row", field=name)
        elif not field.is_repeated:  # else it is no column at all, which has been said
            type_ = key_type(field)
            if type_ is not None:
                columns.append(KeyColumn(name, type_))
            elif is_column_type(field):
                why = "amounts have no key bytes" if is_money(field) else "equal numbers may differ in their bytes"
                text = f"a {type_name(field)} cannot be in the key: {why}"
                problems.of_message(row, text, f"take a {_KEY_TYPES}", field=name)
    return tuple(columns)


def _check_partitioning(row: Descriptor, options: options_pb2.TableOptions, problems: Problems) -> None:
    leading = list(options.key[: len(options.partition_by)])
    if list(options.partition_by) != leading:
        text = f"partition_by ({', '.join(options.partition_by)}) is no prefix of the key ({', '.join(options.key)})"
        problems.of_message(row, text, "name the leading key columns, in their order", field="partition_by")
    elif options.partitioner == options_pb2.PARTITIONER_MURMUR2 and 0 < len(leading) < len(options.key):
        text = "MURMUR2 takes the whole key, and partition_by names only a part of it"
        problems.of_message(row, text, "take PARTITIONER_CRC32, or leave the partitioner out", field="partitioner")
