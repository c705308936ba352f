"""From a Subscribe request to what it asks for: which rows, by key and by filters, and how they are to come.

Fields become key bytes and tests in `query.requests`; what a principal may see of the table bounds both.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from google.protobuf.message import Message

from tablegate.gateway.contract.catalogue import Op, Param, SubscribeQuery, Table
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.errors import InvalidField, TooManyKeys
from tablegate.gateway.query.limits import QueryLimits
from tablegate.gateway.query.masks import Trim, mask_reader
from tablegate.gateway.query.requests import (
    bounds_reader,
    filters_reader,
    fixed_reader,
    key_reader,
    keys_reader,
    parse,
    seconds_of,
)
from tablegate.gateway.query.serving import TableAccess
from tablegate.gateway.query.subscribe.cursor import Matches, See, Selection
from tablegate.gateway.query.visible_rows import VisibleRows, row_tester
from tablegate.v1.query_pb2 import SUBSCRIBE_START_LIVE, SubscribeStart

KEYS_MAX = 1_000  # of one subscription
PARTITIONS_MAX = 1_000  # of a subscription: each message has a token with the change position of each of them
PROGRESS_S = 5.0  # unless the request says otherwise
PROGRESS_MAX_S = 60.0  # proxies close streams that are silent for longer

PlacesOf = Callable[[bytes, int], Sequence[Partition]]
"""From a key, or what chooses the partition of it, and the number of partitions to those that may have it."""
Select = Callable[[int, PlacesOf], Selection]
"""From the number of partitions, and where keys are in them, to the selection."""


class SubscribeRequest:
    """What a Subscribe asks for. `data` are its bytes, without the `resume_token`."""

    __slots__ = ("_reader", "_select", "data", "progress_s", "request_hash", "resume_token", "starts_live")

    def __init__(self, reader: "SubscribeReader", data: bytes) -> None:
        """Parse a request; raise `InvalidField` or `TooManyKeys`."""
        request = parse(reader.query.request_class, data)
        name = reader.options_name
        options: Any = getattr(request, name)
        if options.start not in SubscribeStart.values():
            text = "is no known start; send SUBSCRIBE_START_SNAPSHOT or SUBSCRIBE_START_LIVE"
            raise InvalidField(f"{name}.start", text)
        self.data = data
        self.starts_live = options.start == SUBSCRIBE_START_LIVE
        self.progress_s = _progress_s(f"{name}.progress_interval", options, reader.access.limits)
        self.resume_token: str = options.resume_token
        if self.resume_token:
            options.resume_token = ""  # it may have kilobytes, and the stream is soon beyond it
            self.data = request.SerializeToString()
        self.request_hash = reader.request_hash(request)
        self._reader = reader
        self._select: Select | None = reader.select_of(request)

    def select(self, partition_count: int, places_of: PlacesOf) -> Selection:
        """Return what it selects; raise `InvalidField` where the partitions are too many."""
        select = self._select
        if select is None:
            reader = self._reader
            select = self._select = reader.select_of(parse(reader.query.request_class, self.data))
        return select(partition_count, places_of)

    def forget_select(self) -> None:
        """Keep its bytes alone: what selects takes ten times as much, and is asked for once or twice in hours."""
        self._select = None

    def resumed(self, token: str) -> "SubscribeRequest":
        """Return the same, from where a token says."""
        resumed = copy(self)
        resumed.resume_token = token
        return resumed


class SubscribeReader:
    """What reads the requests of a Subscribe, compiled."""

    def __init__(self, query: SubscribeQuery, access: TableAccess) -> None:
        self.query = query
        self.access = access
        self.request_hash = access.request_hasher(query)
        self.read_selection = selection_reader(query, access.visible)
        self._read_mask = mask_reader(query)
        self.options_name = query.subscribe_options.name

    def select_of(self, request: Message) -> Select:
        """Return what a request selects; raise `InvalidField` or `TooManyKeys`."""
        return self._bounded(_trimmed(self.read_selection(request), self._read_mask(request)))

    def _bounded(self, select: Select) -> Select:
        """Return what selects, which raises `InvalidField` where the partitions are too many."""
        table = self.access.table

        def select_bounded(partition_count: int, places_of: PlacesOf) -> Selection:
            selection = select(partition_count, places_of)
            count = len(selection.partitions)
            if count > PARTITIONS_MAX:
                narrower = ", ".join(column.name for column in table.key[: table.partition_by_count])
                text = f'{count} partitions of table "{table.name}" are more than the {PARTITIONS_MAX} that one'
                raise InvalidField("", f"{text} subscription follows; subscribe to certain keys, or to one {narrower}")
            return selection

        return select_bounded


def _progress_s(field: str, options: Any, limits: QueryLimits) -> float:
    if not options.HasField("progress_interval"):
        return PROGRESS_S
    seconds = seconds_of(options.progress_interval)
    if seconds <= 0:
        raise InvalidField(field, "is not positive; send how often you want to hear, or leave it out")
    return min(max(seconds, limits.progress_min_s), PROGRESS_MAX_S)


def selection_reader(query: SubscribeQuery, visible: VisibleRows | None = None) -> Callable[[Message], Select]:
    """Return the function from a request to what it selects of what is visible; it raises `InvalidField`."""
    read_run = _run_reader(query.params, query.table, visible)
    keys = query.keys
    if keys is None:
        return read_run
    read_keys = keys_reader(keys, query.key_fields, query.table)

    def read(request: Message) -> Select:
        select = read_run(request)
        given = getattr(request, keys.name)
        if len(given) > KEYS_MAX:
            raise TooManyKeys(len(given), KEYS_MAX)
        return _only(select, frozenset(read_keys(request))) if given else select

    return read


def _trimmed(select: Select, trim: Trim | None) -> Select:
    """Return the selection of the same rows, of which only what a mask names is given."""
    if trim is None:
        return select

    def select_trimmed(partition_count: int, places_of: PlacesOf) -> Selection:
        selection = select(partition_count, places_of)
        return replace(selection, see=trim if selection.see is None else _seen_then_trimmed(selection.see, trim))

    return select_trimmed


def _seen_then_trimmed(see: See, trim: Trim) -> See:
    return lambda row: None if (seen := see(row)) is None else trim(seen)


def _only(select: Select, keys: frozenset[bytes]) -> Select:
    """Return the selection of those rows that have one of the keys."""

    def select_keys(partition_count: int, places_of: PlacesOf) -> Selection:
        run = select(partition_count, places_of)
        found: dict[Partition, list[bytes]] = {}
        for key in sorted(keys):
            for partition in places_of(key, partition_count) if run.holds(key) else ():
                if partition in run.partitions:
                    found.setdefault(partition, []).append(key)
        return replace(run, partitions=sorted(found), keys=found)

    return select_keys


def _run_reader(params: Sequence[Param], table: Table, visible: VisibleRows | None) -> Callable[[Message], Select]:
    equal = {param.key_index: param for param in params if param.op is Op.EQ and param.key_index is not None}
    counts = [count for count in range(len(table.key) + 1) if _leads(equal, count)]
    readers = [_Reader(params, equal, count, table, visible) for count in counts]

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

    def __init__(
        self, params: Sequence[Param], equal: dict[int, Param], count: int, table: Table, visible: VisibleRows | None
    ) -> None:
        self._table = table
        self._visible = visible
        prefix = [equal[index] for index in range(count)]
        column = table.key[count] if count < len(table.key) else None
        bounds = [
            param
            for param in params
            if param.key_index == count and not param.required and column is not None and param.op is not Op.IN
        ]
        self._is_key = column is None
        self._one_partition = count >= table.partition_by_count
        self._read_prefix = key_reader([param.field for param in prefix], table.key[:count])
        self._read_bounds = bounds_reader(self._read_prefix, bounds, column)
        filters = [param for param in params if param not in prefix and param not in bounds]
        self._read_filters = filters_reader(filters, () if visible is None else visible.view.hidden)
        self._read_fixed = fixed_reader(filters)

    def read(self, request: Message) -> Select:
        prefix = self._read_prefix(request)
        bounds = self._read_bounds(request)
        tests = self._read_filters(request)
        matches = row_tester(tests, self._table) if tests else None
        fixed = self._read_fixed(request)
        visible, see, hides = self._visible, None, False
        if visible is not None:
            bounds = visible.within(bounds)
            fixed += visible.fixed
            matches, see, hides = _both(visible.shows, matches), visible.row, bool(visible.view.hidden)
        start, end = bounds.start, bounds.end

        def select(partition_count: int, places_of: PlacesOf) -> Selection:
            partitions: Sequence[Partition] = [Partition(number) for number in range(partition_count)]
            if self._one_partition:
                partitions = places_of(prefix, partition_count)
            if start is None or bounds.empty:
                return Selection((), b"", b"")
            keys = dict.fromkeys(partitions, (prefix,)) if self._is_key else None
            return Selection(partitions, start, end, matches, keys, see, fixed, hides)

        return select


def _both(first: Matches, second: Matches | None) -> Matches:
    return first if second is None else lambda row: first(row) and second(row)
