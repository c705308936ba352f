"""The rows of a table that a view shows, and what it shows of them. Compiled once for each view."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.message import DecodeError

from tablegate.gateway.access.views import View
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
            text = f'table "{name}" has a damaged row; its store must be made anew'
            raise CorruptRow(text, table=name) from None

    return parse_row


def row_tester(tests: Sequence[Test], table: Table) -> Callable[[bytes], bool]:
    """Return the function that says whether a row passes all tests; it raises `CorruptRow`."""
    parse_row = row_parser(table)

    def passes(data: bytes) -> bool:
        row = parse_row(data)
        return all(test(row) for test in tests)

    return passes


class VisibleRows:
    """What those see of a table who have a view. Every row that a query gives passes through `row`.

    `start` and `end` (None: the last key) bound the keys whose rows may be seen, as far as those tell. `fixed`: the
    columns of which those rows have one value.
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

    def row(self, row: bytes) -> bytes | None:
        """Return what is seen of a row; None where it is not seen. Raise `CorruptRow`."""
        message = self._message(row)
        if not self._shows(message):
            return None
        if not self._hidden:
            return row
        for name in self._hidden:
            message.ClearField(name)
        message.DiscardUnknownFields()  # a newer contract may hide them
        return bytes(message.SerializeToString())

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
