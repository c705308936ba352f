"""What the rows of a table are computed by: compared when a job goes on, and computed the same again.

A checkpoint has sums of what was. A job that went on with other expressions would add to them what they are not, so the
logic is kept with the state, part by part: an error can then name the parts that have changed. What changes no row,
as outputs, mode and trigger, is not in it. Nor is the code of processors: nobody can compare what that means. Of
functions, which have no state, the code is in it (`function_code.py`).

Decision: docs/decisions/0078-the-logic-is-kept-with-the-state.md
"""

import json
import re
from collections.abc import Iterator, Mapping

from tablegate.jobs.errors import JobError
from tablegate.jobs.formats import Avro, Format, Json, Protobuf, RowKey, split_at_commas
from tablegate.jobs.frame_table import Declared, FrameTable
from tablegate.jobs.table import KAFKA_COLUMN, Global, Latest, Source, Table

CHANGES_LISTED_MAX = 4  # in an error, which is one sentence

COLUMN_ORDER = "the order of the columns"
"""The part of a logic that says in which order its columns are."""
EXPIRY = "expires_after_s"
"""The part that says when rows expire."""
_COLUMN = re.compile(r'(key )?column "([^"]*)"')
_FUNCTION = re.compile(r'the code of function "([^"]*)"')
_QUOTED = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|`[^`]*`""", re.DOTALL)
_KAFKA_FIELD = re.compile(rf"\b{KAFKA_COLUMN}\.(\w+)", re.IGNORECASE)
_CLOCKS = (
    "now",
    "current_timestamp",
    "current_date",
    "curdate",
    "current_time",
    "localtimestamp",
)
_OF_CHANCE = ("rand", "random", "randn", "randstr", "uniform", "uuid", "shuffle")
_OF_THE_RUN = (
    "monotonically_increasing_id",
    "spark_partition_id",
    "input_file_name",
    "input_file_block_start",
    "input_file_block_length",
    "java_method",
    "reflect",
    "try_reflect",
)
NOT_REPEATABLE = (*_CLOCKS, *_OF_CHANCE, *_OF_THE_RUN)
"""Functions of Spark that give something else when a batch runs again."""
_WITHOUT_BRACKETS = ("current_timestamp", "current_date", "current_time", "localtimestamp")
_CALLED = re.compile(rf"(?<![\w.])({'|'.join(NOT_REPEATABLE)})\s*\(", re.IGNORECASE)
_NAMED = re.compile(rf"(?<![\w.])({'|'.join(_WITHOUT_BRACKETS)})(?![\w.])", re.IGNORECASE)
_NOW = re.compile(r"(?<![\w.])(unix_timestamp)\s*\(\s*\)", re.IGNORECASE)


def logic_of(table: Declared) -> dict[str, str]:
    """Return what the table's rows are computed by: a text for each part, by the name that an error gives it."""
    if isinstance(table, FrameTable):
        own = {"the code of rows": table.code, "output_mode": table.output_mode}
        return {**own, **dict(_of_frame(table)), **dict(_named_fields(table)), **dict(_histories(table))}
    return {
        **{f'key column "{name}"': normalized(expression) for name, expression in table.key.items()},
        **{f'column "{name}"': normalized(expression) for name, expression in table.columns.items()},
        # Spark keeps the state of aggregates by their places.
        COLUMN_ORDER: ", ".join([*table.key, *table.columns]),
        **dict(_clauses(table)),
        **dict(_sides(table)),
        **dict(_histories(table)),
    }


def logic_changes(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return what has changed, as a part of a sentence; "" where nothing has."""
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    # A column that is new or gone changes the order, too; its own change says more.
    found = [_change(name, before.get(name), now.get(name)) for name in names if name != COLUMN_ORDER] or [
        _change(name, before.get(name), now.get(name)) for name in names
    ]
    more = len(found) - CHANGES_LISTED_MAX
    return "; ".join(found[:CHANGES_LISTED_MAX]) + (f"; and {more} more" if more > 0 else "")


def column_of(part: str) -> tuple[str, bool] | None:
    """Return the column that a part of a logic is about, and whether it is of the key; None where it is about none."""
    found = _COLUMN.fullmatch(part)
    return (found.group(2), found.group(1) is not None) if found is not None else None


def function_of(part: str) -> str | None:
    """Return the function of the user's that a part of a logic is about; None where it is about none."""
    found = _FUNCTION.fullmatch(part)
    return found.group(1) if found is not None else None


def masked(expression: str) -> str:
    """Return SQL of the same length with nothing in its quotes, so that what is found in it is no text."""
    return _QUOTED.sub(lambda quoted: "'" * len(quoted.group()), expression)


def _change(name: str, before: str | None, now: str | None) -> str:
    if before is None:
        return f"{name} is new, {now}"
    return f"{name} is gone, it was {before}" if now is None else f"{name} is {now}, it was {before}"


def normalized(expression: str) -> str:
    """Return SQL without the white space that means nothing."""
    parts, end = [], 0
    for quoted in _QUOTED.finditer(expression):
        parts += [_without_space(expression[end : quoted.start()]), quoted.group()]
        end = quoted.end()
    return "".join([*parts, _without_space(expression[end:])]).strip()


def _without_space(text: str) -> str:
    return re.sub(r" ?([(),]) ?", r"\1", re.sub(r"\s+", " ", text))


def _of_frame(table: FrameTable) -> Iterator[tuple[str, str]]:
    for clause, expression in (("deletes", table.deletes), ("order", table.order)):
        if expression is not None:
            yield clause, normalized(expression)
    for name, source in table.sources.items():
        yield f'source "{name}" kind', _kind(source)
        if source.where is not None:
            yield f'source "{name}" where', normalized(source.where)


def _named_fields(table: FrameTable) -> Iterator[tuple[str, str]]:
    # Which fields the function uses is in its code, but not of which types they are.
    for name, source in table.sources.items():
        for field, field_type in _fields(source):
            if field.lower() in table.words:
                yield f'source "{name}" field "{field}"', field_type


def _histories(table: Declared) -> Iterator[tuple[str, str]]:
    for name in table.all_sides:
        source = table.source_of(name)
        if source.history is not None:
            yield f'the history of source "{source.topic}"', source.history.text


def kafka_fields_used(table: Declared, side: str) -> list[str]:
    """Return the fields of the struct `kafka` that are used: by expressions, for windows, by rows that expire."""
    text = " ".join(_QUOTED.sub("''", expression) for _, expression in _expressions(table))
    used = dict.fromkeys(name.lower() for name in _KAFKA_FIELD.findall(text))
    if isinstance(table, Table) and table.window is not None and table.source_of(side).event_time is None:
        used["timestamp"] = None
    if isinstance(table, Table) and table.expires_after_s is not None:
        used["timestamp"] = None
    return [*used]


def _clauses(table: Table) -> Iterator[tuple[str, str]]:
    for name, code in table.function_codes.items():
        yield f'the code of function "{name}"', code
    if table.having is not None:
        yield "having", normalized(table.having)
    if table.expires_after_s is not None:
        yield EXPIRY, f"{table.expires_after_s:g} s"
    if table.window is not None:
        hop_s = table.window.hop_s or table.window.size_s
        bounds = f"late by {table.window.late_s:g} s, ahead by {table.window.ahead_s:g} s"
        yield "window", f"{table.window.size_s:g} s each {hop_s:g} s, {bounds}"
    if table.processor is not None:
        yield "the processor's state", normalized(table.processor.state)
        yield "what the processor emits", normalized(table.processor.emits)
        if table.processor.every_s is not None:
            yield "the processor's timer", f"each {table.processor.every_s:g} s"


def _sides(table: Table) -> Iterator[tuple[str, str]]:
    used = " ".join(expression for _, expression in _expressions(table))
    for name, side in table.all_sides.items():
        source = table.source_of(name)
        what = f'side "{name}"' if name else f'source "{source.topic}"'
        yield f"{what} kind", _kind(side)
        for clause, expression in _clauses_of(source):
            if expression is not None:
                yield f"{what} {clause}", normalized(expression)
        if source.keyed:
            yield f"{what} keyed", "True"
        if isinstance(side, Latest) and side.key is not None:
            for column, expression in side.key.items():
                yield f'{what} key "{column}"', normalized(expression)
        if isinstance(side, Global):
            yield f"{what} key", normalized(side.key)
            yield f"{what} on", normalized(side.on)
        for field, field_type in _fields(source):
            # The newest record of a `Latest` side is in the state, with all its fields.
            if isinstance(side, Latest) or re.search(rf"(?<!\w){re.escape(field)}(?!\w)", used, re.IGNORECASE):
                yield f'{what} field "{field}"', field_type


def _clauses_of(source: Source) -> tuple[tuple[str, str | None], ...]:
    return ("where", source.where), ("event_time", source.event_time), ("each", source.each)


def _kind(side: Source | Latest | Global) -> str:
    if isinstance(side, Source):
        topics = ", ".join(f'"{topic}"' for topic in side.topics)
        return f"Source({topics}{', pattern' if side.pattern else ''})"
    return f'{type(side).__name__}("{side.source.topic}", {side.join.value})'


def _fields(source: Source) -> Iterator[tuple[str, str]]:
    for form in (source.value, source.key):
        if form is not None:
            yield from _fields_of(form)


def _fields_of(form: Format | RowKey) -> Iterator[tuple[str, str]]:
    match form:
        case Avro():
            for field in json.loads(form.schema)["fields"]:
                yield str(field["name"]), json.dumps(field["type"], sort_keys=True)
        case Json():
            for name, part in zip(form.field_names, split_at_commas(form.fields), strict=True):
                yield name, normalized(part) + (f" in {form.at}" if form.at is not None else "")
        case RowKey():
            yield from ((column.name, column.type.name) for column in form.columns)
        case Protobuf():
            for one in form.descriptor.fields:
                kind = one.message_type or one.enum_type
                yield one.name, f"{one.type} {kind.full_name if kind is not None else ''}".strip()
        case _:
            yield form.field_names[0], type(form).__name__


def check_repeatable(table: Declared) -> None:
    """Raise `JobError` where an expression gives another result when a batch that a crash cut off runs again.

    The row would then have the same version with another content.
    """
    fields = {name.lower() for side in table.all_sides for name in table.source_of(side).names}
    for what, expression in _expressions(table):
        text = _QUOTED.sub("''", expression)
        found = _CALLED.search(text) or _NOW.search(text)
        if found is None:
            named = _NAMED.search(text)
            found = named if named is not None and named.group(1).lower() not in fields else None
        if found is not None:
            name = found.group(1)
            is_clock = name.lower() in (*_CLOCKS, "unix_timestamp")
            instead = "kafka.timestamp, the time of the record" if is_clock else "what is in the record"
            raise JobError(
                f'{table.declared_at}: table "{table.name}" {what} uses {name}, which gives something else when a '
                f"batch runs again; use {instead}"
            )


def _expressions(table: Declared) -> Iterator[tuple[str, str]]:
    """Yield the expressions that rows are computed by, each with the name that an error gives it."""
    if isinstance(table, FrameTable):
        yield from _of_frame(table)
        return
    yield from ((f'key column "{name}"', expression) for name, expression in table.key.items())
    yield from ((f'column "{name}"', expression) for name, expression in table.columns.items())
    if table.having is not None:
        yield "having", table.having
    for name, side in table.all_sides.items():
        source = table.source_of(name)
        what = f'side "{name}"' if name else f'source "{source.topic}"'
        for clause, expression in _clauses_of(source):
            if expression is not None:
                yield f"{what} {clause}", expression
        if isinstance(side, Latest) and side.key is not None:
            yield from ((f'{what} key "{column}"', expression) for column, expression in side.key.items())
        if isinstance(side, Global):
            yield from ((f"{what} key", side.key), (f"{what} on", side.on))
