"""From the request of a Subscribe to the rows that it is for."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from google.protobuf.message import DecodeError, Message
from tablegate.gateway.contract.catalogue import Op, Param, SubscribeQuery, Table
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.errors import CorruptRow, TooManyKeys
from tablegate.gateway.query.requests import Test, bounds_reader, filters_reader, key_reader, keys_reader
from tablegate.gateway.query.subscribe.cursor import Matches, Selection

KEYS_MAX = 1_000  # of one subscription

Select = Callable[[int], Selection]
"""From the number of partitions to the selection."""


def selection_reader(query: SubscribeQuery) -> Callable[[Message], Select]:
    """Return the function from a request to what it selects; it raises `InvalidField`."""
    read_run = _run_reader(query.params, query.table)
    keys = query.keys
    if keys is None:
        return read_run
    read_keys = keys_reader(keys, query.key_fields, query.table)

    def read(request: Message) -> Select:
        select = read_run(request)
        given = getattr(request, keys.name)
        if len(given) > KEYS_MAX:
            raise TooManyKeys(len(given), KEYS_MAX)
        return _only(select, frozenset(read_keys(request)), query.table) if given else select

    return read


def _only(select: Select, keys: frozenset[bytes], table: Table) -> Select:
    """Return the selection of those rows that have one of the keys."""

    def select_keys(partition_count: int) -> Selection:
        run = select(partition_count)
        found: dict[Partition, list[bytes]] = {}
        for key in sorted(keys):
            partition = table.partition_of(key, partition_count)
            if partition in run.partitions and run.holds(key):
                found.setdefault(partition, []).append(key)
        return replace(run, partitions=sorted(found), keys=found)

    return select_keys


def _run_reader(params: Sequence[Param], table: Table) -> Callable[[Message], Select]:
    equal = {param.key_index: param for param in params if param.op is Op.EQ and param.key_index is not None}
    readers = [_Reader(params, equal, count, table) for count in range(len(table.key) + 1) if _leads(equal, count)]

    def read(request: Message) -> Select:
        given = 0
        while (param := equal.get(given)) is not None and _is_set(param, request):
            given += 1
        return readers[given].read(request)

    return read


def _leads(equal: dict[int, Param], count: int) -> bool:
    return all(index in equal for index in range(count))


def _is_set(param: Param, request: Message) -> bool:
    return param.required or request.HasField(param.field.name)


class _Reader:
    """Reads requests that fix the first `count` key columns; the other params are bounds on the next, and filters."""

    def __init__(self, params: Sequence[Param], equal: dict[int, Param], count: int, table: Table) -> None:
        self._table = table
        prefix = [equal[index] for index in range(count)]
        column = table.key[count] if count < len(table.key) else None
        bounds = [param for param in params if param.key_index == count and not param.required and column is not None]
        self._is_key = column is None
        self._one_partition = count >= table.partition_by_count
        self._read_prefix = key_reader([param.field for param in prefix], table.key[:count])
        self._read_bounds = bounds_reader(self._read_prefix, bounds, column)
        self._read_filters = filters_reader([param for param in params if param not in prefix and param not in bounds])

    def read(self, request: Message) -> Select:
        prefix = self._read_prefix(request)
        bounds = self._read_bounds(request)
        tests = self._read_filters(request)
        matches = _matches(tests, self._table) if tests else None
        table = self._table
        start, end = bounds.start, bounds.end

        def select(partition_count: int) -> Selection:
            partitions: Sequence[Partition] = [Partition(number) for number in range(partition_count)]
            if self._one_partition:
                partitions = [table.partition_of(prefix, partition_count)]
            if start is None or bounds.empty:
                return Selection((), b"", b"")
            keys = {partitions[0]: (prefix,)} if self._is_key else None
            return Selection(partitions, start, end, matches, keys)

        return select


def _matches(tests: Sequence[Test], table: Table) -> Matches:
    parse_row = table.row_class.FromString

    def matches(row_bytes: bytes) -> bool:
        try:
            row: Any = parse_row(row_bytes)
        except DecodeError:
            text = f'table "{table.name}" has a damaged row; its store must be made anew'
            raise CorruptRow(text, table=table.name) from None
        return all(test(row) for test in tests)

    return matches
