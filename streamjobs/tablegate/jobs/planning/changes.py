"""What a changed declaration means for the rows that a table has: column by column.

A generation keeps the text of what its rows are computed by (`logic.py`). The state of its job has aggregates for each
key, and no rows: a column whose aggregates are all in there can go on from it, whatever is made of them. Here the texts
are compared, which needs no Spark. A rebuild compares what Spark makes of them, and has the last word.

Decision: docs/decisions/0097-a-generation-begins-from-the-state.md
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from tablegate.jobs.frame_table import Declared, FrameTable
from tablegate.jobs.planning.logic import COLUMN_ORDER, EXPIRY, column_of, function_of, logic_of, masked

AGGREGATES = (
    *("any_value", "approx_count_distinct", "approx_percentile", "array_agg", "avg", "bit_and", "bit_or", "bit_xor"),
    *("bool_and", "bool_or", "collect_list", "collect_set", "corr", "count", "count_if", "covar_pop", "covar_samp"),
    *("every", "first", "first_value", "kurtosis", "last", "last_value", "listagg", "max", "max_by", "mean", "median"),
    *("min", "min_by", "mode", "percentile", "percentile_approx", "regr_count", "regr_slope", "skewness", "some"),
    *("std", "stddev", "stddev_pop", "stddev_samp", "string_agg", "sum", "try_avg", "try_sum", "var_pop", "var_samp"),
    "variance",
)
_AGGREGATE = re.compile(rf"(?<![\w.])(?:{'|'.join(AGGREGATES)})\(", re.IGNORECASE)
_WORD = re.compile(r"(?<!\w)[A-Za-z_]\w*")


class Change(StrEnum):
    """What has become of a column."""

    UNCHANGED = "unchanged"
    ADDED = "added"
    REMOVED = "removed"
    EXPRESSION_CHANGED = "expression changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChange:
    """A column, before and now. `is_kept`: whether a rebuild from the state keeps its history; `why_not` else."""

    name: str
    is_key: bool
    change: Change
    before: str | None
    now: str | None
    is_kept: bool
    why_not: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartChange:
    """Something else that rows are computed by and that has changed, like `having`; None is nothing there."""

    part: str
    before: str | None
    now: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclarationChange:
    """How a declaration differs from the one that a generation's rows were computed by.

    `parts`: what is no column and has changed. `why_not`: why no rebuild can begin from the state, whatever the columns
    are; "" where it can.
    """

    table: str
    generation: int
    columns: tuple[ColumnChange, ...]
    parts: tuple[PartChange, ...]
    why_not: str

    @property
    def is_unchanged(self) -> bool:
        """Whether a job of this declaration can go on with the generation."""
        return not self.parts and all(column.change is Change.UNCHANGED for column in self.columns)


def declaration_change(table: Declared, before: Mapping[str, str], generation: int) -> DeclarationChange:
    """Return how a declaration differs from the logic of a generation, as `logic_of` has it."""
    now = logic_of(table)
    parts = list({**now, **before})
    why_not = why_not_from_state(table, before)
    columns = tuple(
        _column_change(name, is_key, before.get(part), now.get(part), before, table, why_not)
        for part in parts
        if (found := column_of(part)) is not None
        for name, is_key in [found]
    )
    # A column that is new or gone changes the order, too; its own change says more.
    has_other_columns = any(column.change in (Change.ADDED, Change.REMOVED) for column in columns)
    others = tuple(
        PartChange(part=part, before=before.get(part), now=now.get(part))
        for part in parts
        if column_of(part) is None
        and before.get(part) != now.get(part)
        and not (has_other_columns and part == COLUMN_ORDER)
    )
    return DeclarationChange(table=table.name, generation=generation, columns=columns, parts=others, why_not=why_not)


def why_not_from_state(table: Declared, before: Mapping[str, str]) -> str:
    """Return why no generation of this declaration can begin from the state of `before`; "" where one can."""
    if isinstance(table, FrameTable):
        return "only the function knows what its state means"
    if table.processor is not None:
        return "only the processor knows what its state means"
    if table.window is not None:
        return "the state lacks the windows that have ended, and the table has their rows"
    if table.source is None:
        return "its state has records of its sides, and a rebuild carries over aggregates alone"
    if table.atomic:
        return "its rows would come at once, and an atomic batch has not so many changes"
    now = logic_of(table)
    for part in {**now, **before}:
        old, new, column = before.get(part), now.get(part), column_of(part)
        if old == new or part in (COLUMN_ORDER, "having") or (column is not None and not column[1]):
            continue
        if part == EXPIRY and old is not None and new is not None:  # the state has the time of each row either way
            continue
        function = function_of(part)
        if function is not None and new is None:
            return f'the state was computed with function "{function}", which is gone; leave it in functions='
        # A field that no column used before, or none uses any more, is in no aggregate that is kept. Nor is a function
        # that was not there.
        is_named = " field " in part or function is not None
        if not is_named or (old is not None and new is not None):
            return f"{part} has changed, so the state was computed otherwise"
    return ""


def _column_change(
    name: str,
    is_key: bool,
    old: str | None,
    new: str | None,
    before: Mapping[str, str],
    table: Declared,
    why_not: str,
) -> ColumnChange:
    change = (
        Change.REMOVED
        if new is None
        else Change.ADDED
        if old is None
        else Change.UNCHANGED
        if old == new
        else Change.EXPRESSION_CHANGED
    )
    if new is not None and change is not Change.UNCHANGED:
        why_not = why_not or _why_not_kept(new, before, table)
    return ColumnChange(
        name=name,
        is_key=is_key,
        change=change,
        before=old,
        now=new,
        is_kept=new is not None and not why_not,
        why_not=why_not if new is not None else "",
    )


def _why_not_kept(expression: str, before: Mapping[str, str], table: Declared) -> str:
    """Return why the state lacks what a column is made of; "" where it has all of it."""
    # The version of a row is in its state, too.
    known = {"max(kafka.offset)"} if table.has_keyed_versions else {"count(*)", "count(1)"}
    for part, old in before.items():
        column = column_of(part)
        if column is not None and not column[1]:
            known |= {_folded(text) for text in aggregates_in(old)}
    unknown = [text for text in aggregates_in(expression) if _folded(text) not in known]
    if unknown:
        return f"the state has no {unknown[0]}, as no column was made of it"
    fields = {"kafka", *(name.lower() for side in table.all_sides for name in table.source_of(side).field_names)}
    rest = masked(_without_aggregates(expression))
    if any(word.group().lower() in fields for word in _WORD.finditer(rest)):
        return "it has an aggregate that this command does not know"
    return ""


def _folded(text: str) -> str:
    """Return SQL in lower case, but for what is in quotes."""
    return "".join(one if hidden == "'" else one.lower() for one, hidden in zip(text, masked(text), strict=True))


def aggregates_in(expression: str) -> list[str]:
    """Return the calls of aggregates in a normalized expression, with their FILTER; not those within others."""
    return [expression[begin:end] for begin, end in _calls(expression)]


def _without_aggregates(expression: str) -> str:
    parts, at = [], 0
    for begin, end in _calls(expression):
        parts.append(expression[at:begin])
        at = end
    return "0".join([*parts, expression[at:]])


def _calls(expression: str) -> Iterator[tuple[int, int]]:
    text, at = masked(expression), 0
    while found := _AGGREGATE.search(text, at):
        at = _closing(text, found.end())
        if text[at:].upper().startswith("FILTER("):
            at = _closing(text, at + len("FILTER("))
        yield found.start(), at


def _closing(text: str, at: int) -> int:
    """Return the place behind the bracket that closes the one before `at`."""
    depth = 1
    while at < len(text) and depth > 0:
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    return at
