"""Filters of a Scan: typed comparisons of a row's columns with request fields."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.message import Message
from tablegate.gateway.contract.catalogue import Op, Param
from tablegate.gateway.contract.columns import is_timestamp
from tablegate.gateway.query.requests import timestamp_parts

Test = Callable[[Any], bool]
"""Whether a row passes. A column without a value passes no comparison, as in SQL."""

_COMPARE: dict[Op, Callable[[Any, Any], bool]] = {
    Op.EQ: operator.eq,
    Op.GT: operator.gt,
    Op.GTE: operator.ge,
    Op.LT: operator.lt,
    Op.LTE: operator.le,
    Op.PREFIX: lambda value, prefix: value.startswith(prefix),
}


def filters_reader(params: Sequence[Param]) -> Callable[[Message], list[Test]]:
    """Return the function from a request to the tests it asks for; it raises `InvalidField`."""
    makers = [_test_maker(param) for param in params]

    def read(request: Message) -> list[Test]:
        return [test for maker in makers if (test := maker(request)) is not None]

    return read


def _test_maker(param: Param) -> Callable[[Message], Test | None]:
    name = param.field.name
    always = param.required or not param.field.has_presence
    timestamps = is_timestamp(param.column)

    def make(request: Message) -> Test | None:
        if not always and not request.HasField(name):
            return None
        value = getattr(request, name)
        return _test(param, timestamp_parts(name, value) if timestamps else value)

    return make


def _test(param: Param, wanted: Any) -> Test:
    column, compare = param.column.name, _COMPARE[param.op]
    if is_timestamp(param.column):

        def test_timestamp(row: Any) -> bool:
            moment = getattr(row, column)
            return row.HasField(column) and compare((moment.seconds, moment.nanos), wanted)

        return test_timestamp
    if param.column.has_presence:
        return lambda row: row.HasField(column) and compare(getattr(row, column), wanted)
    return lambda row: compare(getattr(row, column), wanted)
