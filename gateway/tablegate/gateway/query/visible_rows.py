"""The rows of a table that a view shows, and what it shows of them. Compiled once for each view."""

import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any

from google.protobuf.message import DecodeError

from tablegate.gateway.access.views import Value, View
from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.keys import after_prefix, encode_key
from tablegate.gateway.query.errors import CorruptRow
from tablegate.gateway.query.requests import Fixed, KeyBounds, Test


def row_parser(table: Table) -> Callable[[bytes], Any]:
    """Return the function from row bytes to the message; it raises `CorruptRow`."""
    parse, name = table.row_class.FromString, table.name

    def parse_row(row: bytes) -> Any:
        try:
            return parse(row)
        except DecodeError:
            raise _corrupt(name) from None

    return parse_row


def _corrupt(table: str) -> CorruptRow:
    return CorruptRow(f'table "{table}" has a damaged row; its store must be made anew', table=table)


def row_tester(tests: Sequence[Test], table: Table) -> Callable[[bytes], bool]:
    """Return the function that says whether a row passes all tests; it raises `CorruptRow`."""
    parse_row = row_parser(table)

    def passes(data: bytes) -> bool:
        row = parse_row(data)
        return all(test(row) for test in tests)

    return passes


class VisibleRows:
    """What those see of a table who have a view. Every row that a query gives passes through `row`.

    `row`: returns what is seen of a row, None where it is not seen; it raises `CorruptRow`.
    `start` and `end` (None: the last key) bound the keys whose rows may be seen, as far as those tell.
    `fixed`: the columns of which those rows have one value; subscriptions are found by them (`SelectionIndex`).
    """

    def __init__(self, view: View, table: Table) -> None:
        self.view = view
        self._message = row_parser(table)
        columns = table.row.fields_by_name
        self._rules = [(name, columns[name].has_presence, frozenset(values)) for name, values in view.rows]
        self._hidden = view.hidden
        self.fixed = [
            Fixed(name, next(iter(values)), operator.attrgetter(name)) for name, values in view.rows if len(values) == 1
        ]
        self.start, self.end = _run(view, table)
        self.row: Callable[[bytes], bytes | None] = self._trimmed if view.hidden else self._whole
        if len(self._rules) == 1 and not self._rules[0][1] and not view.hidden:
            self.row = _whole_by(table, *view.rows[0])

    def _whole(self, row: bytes) -> bytes | None:
        return row if self._shows(self._message(row)) else None

    def _trimmed(self, row: bytes) -> bytes | None:
        message = self._message(row)
        if not self._shows(message):
            return None
        for name in self._hidden:
            message.ClearField(name)
        message.DiscardUnknownFields()  # a newer contract may hide them
        return bytes(message.SerializeToString(deterministic=True))  # equal for rows that look the same

    def shows(self, row: bytes) -> bool:
        """Return whether a row is seen; raise `CorruptRow`."""
        return self._shows(self._message(row))

    def _shows(self, message: Any) -> bool:
        for name, is_optional, values in self._rules:
            if is_optional and not message.HasField(name):
                return False
            if getattr(message, name) not in values:
                return False
        return True

    def within(self, bounds: KeyBounds) -> KeyBounds:
        """Return the bounds of those keys whose rows may be seen."""
        start, end = bounds.start, bounds.end
        if start is not None:
            start = max(start, self.start)
        if self.end is not None:
            end = self.end if end is None else min(end, self.end)
        return KeyBounds(start, end)

    def rows(self, rows: Sequence[bytes | None]) -> list[bytes | None]:
        """Return what is seen of rows, None for those that are not there or not seen."""
        see = self.row
        return [None if row is None else see(row) for row in rows]


def _whole_by(table: Table, column: str, values: Collection[Value]) -> Callable[[bytes], bytes | None]:
    """Return the function that gives a row where its column, which each row has, is one of the values: the usual rule.

    It is `VisibleRows.row` in one call instead of three.
    """
    parse, name = table.row_class.FromString, table.name
    value_of, seen = operator.attrgetter(column), frozenset(values)

    def see(row: bytes) -> bytes | None:
        try:
            return row if value_of(parse(row)) in seen else None
        except DecodeError:
            raise _corrupt(name) from None

    return see


def _run(view: View, table: Table) -> tuple[bytes, bytes | None]:
    """Return start and end of the keys that begin with the columns of which one value is seen."""
    rules = dict(view.rows)
    values = []
    for column in table.key:
        allowed = rules.get(column.name, ())
        if len(allowed) != 1:
            break
        values.append(allowed[0])
    if not values:
        return b"", None
    prefix = encode_key(table.key[: len(values)], values)
    return prefix, after_prefix(prefix)
