"""Binds the window and the retention of a table."""

from collections.abc import Sequence

from google.protobuf.descriptor import Descriptor
from google.protobuf.duration_pb2 import Duration
from tablegate.gateway.contract.binder.problems import Problems
from tablegate.gateway.contract.columns import TIMESTAMP, is_timestamp, type_name
from tablegate.gateway.contract.keys import KeyColumn, column_place
from tablegate.gateway.contract.windows import Expiry, Window
from tablegate.v1 import options_pb2

DURATION_MAX_US = 315_576_000_000 * 1_000_000  # 10,000 years: what google.protobuf.Duration allows


def bind_window(
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


def bind_expiry(
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
    elif not is_timestamp(column):
        text, hint = f'the end column "{name}" is a {type_name(column)}', f"make it a {TIMESTAMP}"
    else:
        return
    problems.of_message(row, text, hint, field="window.end_column")
