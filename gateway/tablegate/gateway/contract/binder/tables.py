"""Binds messages with a `table` option to tables, with their windows and their retention."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from google.protobuf.descriptor import Descriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message_factory import GetMessageClass

from tablegate.gateway.contract.binder.files import option
from tablegate.gateway.contract.binder.indexes import bind_indexes
from tablegate.gateway.contract.binder.problems import Problems
from tablegate.gateway.contract.catalogue import Partitioner, Table
from tablegate.gateway.contract.columns import (
    DURATION_S_MAX,
    TIMESTAMP,
    column_problem,
    in_oneof,
    is_timestamp,
    key_type,
    type_name,
)
from tablegate.gateway.contract.keys import KeyColumn, column_place
from tablegate.gateway.contract.windows import Expiry, Window
from tablegate.v1 import options_pb2

DURATION_MAX_US = DURATION_S_MAX * 1_000_000

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")  # a table's name is part of the names of topics
TABLE_NAME_HINT = "take a lower-case letter, then at most 62 lower-case letters, digits or underscores"
_KEY_TYPES = "string, bytes, bool, integer, enum or google.protobuf.Timestamp"


def is_table_name(name: str) -> bool:
    """Return whether a table may be called so."""
    return _NAME.fullmatch(name) is not None


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
    if not is_table_name(options.name):
        text = f'"{options.name}" is no name for a table' if options.name else "the table has no name"
        problems.of_message(row, text, TABLE_NAME_HINT, field="name")
    _check_columns(row, problems)
    key = _bind_key(row, options, problems)
    _check_partitioning(row, options, problems)
    window = _bind_window(row, options, key, problems)
    expiry = _bind_expiry(row, options, window, problems)
    indexes = bind_indexes(row, options, problems, is_name=is_table_name)
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
        indexes=indexes,
    )


def _check_columns(row: Descriptor, problems: Problems) -> None:
    for field in row.fields:
        found = column_problem(field, (row.full_name,))
        if found is not None:
            problems.of_message(row, *found, field=field.name)


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
            continue
        type_ = key_type(field)
        if field.is_repeated:
            text, hint = "a column that is repeated or a map cannot be in the key", f"take a {_KEY_TYPES}"
        elif in_oneof(field):
            text, hint = "a column in a oneof cannot be in the key: a row may lack it", "take it out of the oneof"
        elif type_ is None:
            why = "messages have no key bytes" if field.message_type else "equal numbers may differ in their bytes"
            text, hint = f"a {type_name(field)} cannot be in the key: {why}", f"take a {_KEY_TYPES}"
        else:
            columns.append(KeyColumn(name, type_))
            continue
        problems.of_message(row, text, hint, field=name)
    return tuple(columns)


def _check_partitioning(row: Descriptor, options: options_pb2.TableOptions, problems: Problems) -> None:
    leading = list(options.key[: len(options.partition_by)])
    if list(options.partition_by) != leading:
        text = f"partition_by ({', '.join(options.partition_by)}) is no prefix of the key ({', '.join(options.key)})"
        problems.of_message(row, text, "name the leading key columns, in their order", field="partition_by")
    elif options.partitioner == options_pb2.PARTITIONER_MURMUR2 and 0 < len(leading) < len(options.key):
        text = "MURMUR2 takes the whole key, and partition_by names only a part of it"
        problems.of_message(row, text, "take PARTITIONER_CRC32, or leave the partitioner out", field="partitioner")


def _bind_window(
    row: Descriptor, options: options_pb2.TableOptions, key: Sequence[KeyColumn], problems: Problems
) -> Window | None:
    """Return the window of a table's rows; None where they are none, or where it has problems."""
    if not options.HasField("window"):
        return None
    before = len(problems.found)
    window = options.window
    if not window.HasField("size"):
        problems.of_message(row, "the window has no size", "say how long a window is", field="window.size")
    size_us = _bind_duration(row, "window.size", window.size, problems) if window.HasField("size") else 0
    hop_us = _bind_duration(row, "window.hop", window.hop, problems) if window.HasField("hop") else size_us
    if len(problems.found) == before and hop_us > size_us:
        text = "the hop is longer than the window, so moments between two windows would be in none"
        problems.of_message(row, text, "take a hop of at most the size", field="window.hop")
    start_index = _bind_start(row, options, problems)
    _check_end(row, window, problems)
    if len(problems.found) > before or len(key) != len(options.key):
        return None
    return Window(
        size_us=size_us,
        hop_us=hop_us,
        end_column=window.end_column or None,
        leading=tuple(key[:start_index]),
        start_place=column_place(key, start_index),
    )


def _bind_expiry(
    row: Descriptor, options: options_pb2.TableOptions, window: Window | None, problems: Problems
) -> Expiry | None:
    """Return when a table's rows are gone; None where they stay, or where the retention has problems."""
    if not options.HasField("retention"):
        return None
    retention_us = _bind_duration(row, "retention", options.retention, problems)
    if not options.HasField("window"):
        text = "the table has a retention but no window, and nothing else says how old a row is"
        problems.of_message(row, text, "say what the windows are, or remove the retention", field="retention")
    return None if window is None else Expiry(window, retention_us)


def _bind_duration(row: Descriptor, name: str, duration: Duration, problems: Problems) -> int:
    """Return a duration in microseconds."""
    nanoseconds = duration.seconds * 1_000_000_000 + duration.nanos
    duration_us, rest = divmod(nanoseconds, 1_000)
    if rest or not 0 < duration_us <= DURATION_MAX_US:
        text = f"{nanoseconds / 1e9:.15g} s is no length of time that a table can keep to"
        problems.of_message(row, text, "take whole microseconds, above 0 and at most 10,000 years", field=name)
    return duration_us


def _bind_start(row: Descriptor, options: options_pb2.TableOptions, problems: Problems) -> int:
    """Return the place of the start column in the key."""
    name = options.window.start_column
    if not name:
        text, hint = "the window has no start column", f"name the {TIMESTAMP} of the key that is a window's start"
    elif name not in options.key:
        text, hint = f'the start column "{name}" is no column of the key', f"name the {TIMESTAMP} of the key"
    elif name in row.fields_by_name and not is_timestamp(row.fields_by_name[name]):
        text = f'the start column "{name}" is a {type_name(row.fields_by_name[name])}'
        hint = f"make it a {TIMESTAMP}"
    else:
        return list(options.key).index(name)
    problems.of_message(row, text, hint, field="window.start_column")
    return 0


def _check_end(row: Descriptor, window: options_pb2.WindowOptions, problems: Problems) -> None:
    name = window.end_column
    column = row.fields_by_name.get(name)
    if not name:
        return
    if name == window.start_column:
        text, hint = f'the end column "{name}" is the start column too', "name another column, or leave it out"
    elif column is None:
        text, hint = f'the end column "{name}" is no field of message {row.name}', "name one, or leave it out"
    elif not is_timestamp(column) or column.is_repeated:
        kind = f"{'repeated ' if column.is_repeated else ''}{type_name(column)}"
        text, hint = f'the end column "{name}" is a {kind}', f"make it a {TIMESTAMP}"
    else:
        return
    problems.of_message(row, text, hint, field="window.end_column")
