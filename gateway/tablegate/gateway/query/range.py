"""Range: a run of keys, a page at a time. A page ends at its last key, so its token is good on any gateway.

A page of one partition is read by whichever gateway has it. A page over all partitions takes a page of each source,
this gateway's store being one of them, and merges them by key. Where a source has more rows behind its page, rows of
others beyond its last key are cut off: they would come before rows that are not known yet.

Rows are in the order of their keys (`KeyOrder`) or of an index (`IndexOrder`): what is said of keys here is as true of
the entries of an index, by which its rows are merged and its pages end.

The token has, beside the last key, up to where the pages so far were read. Whoever answers the next page has to have
that as well (`behind_walk`): a replica that is behind would leave out rows, or show those that were deleted.

Decision: docs/decisions/0070-walks-carry-positions.md
Decision: docs/decisions/0123-a-range-filters-its-run.md
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

from google.protobuf.message import Message
from google.rpc import code_pb2
from google.rpc.status_pb2 import Status

from tablegate.gateway.cluster.directory import Peer
from tablegate.gateway.cluster.scatter import Forwarded, PeerFailed
from tablegate.gateway.contract.catalogue import CountQuery, Op, RangeQuery
from tablegate.gateway.contract.indexes import INDEX_BYTES_MAX, Index, make_entry
from tablegate.gateway.contract.tokens import ReadPositions, positions_of
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.contract.wire import FieldEncoder, fields
from tablegate.gateway.query.call import Answer, Call, UnaryHandler
from tablegate.gateway.query.consistency import ConsistencyRequirement, behind_walk, requirement_reader
from tablegate.gateway.query.errors import (
    InvalidField,
    InvalidPageToken,
    NotCaughtUp,
    PartitionUnavailable,
    QueryError,
    status_of,
)
from tablegate.gateway.query.forwarding import (
    NotServedHere,
    answer,
    forward_whole,
    gather,
    local_result,
    unless_store_away,
)
from tablegate.gateway.query.index_reads import EntryRun, IndexReader, partition_reader
from tablegate.gateway.query.masks import Trim, mask_reader
from tablegate.gateway.query.requests import (
    KeyBounds,
    Test,
    bounds_reader,
    filters_reader,
    index_bounds_reader,
    key_reader,
    parse,
)
from tablegate.gateway.query.serving import (
    MergedRead,
    Scope,
    ServedGeneration,
    TableAccess,
    read_positions,
    several_trailer,
)
from tablegate.gateway.query.visible_rows import row_tester
from tablegate.gateway.stores.base import Position, Snapshot
from tablegate.internal.v1.tokens_pb2 import TOKEN_KIND_PAGE, Token
from tablegate.v1 import query_pb2
from tablegate.v1.query_pb2 import ReadInfo

Row = tuple[bytes, bytes]
"""Key, or entry of the index, and row bytes."""

Show = Callable[[bytes], bytes | None]
"""From a row to what is given of it; None: nothing. It raises `CorruptRow`."""

KEY = itemgetter(0)

READ_ROWS = 500  # rows at a time, of which some are seen
READ_ROWS_MIN = 100  # rows of a partition, of however many: so that a page gets on

READ_TRAILER = b"tablegate-read"  # of a part of a page whose contract has no read info: its consistency token


def range_handler(query: RangeQuery, access: TableAccess) -> UnaryHandler:
    """Return the handler of `query`."""
    plan = RangePlan(query, access)

    def handle(data: bytes, call: Call) -> Answer:
        return answer(RangeRead(plan, data, call))

    return handle


class Page:
    """What one call asks for. `token` is that of the page before it, `read_before` up to where the pages were read."""

    __slots__ = ("bounds", "descending", "partition_prefix", "read_before", "size", "tests", "token")

    def __init__(
        self,
        bounds: KeyBounds,
        tests: Sequence[Test],
        *,
        partition_prefix: bytes | None,
        descending: bool,
        size: int,
        token: Token | None,
    ) -> None:
        self.bounds = bounds
        self.tests = tests
        self.partition_prefix = partition_prefix
        self.descending = descending
        self.size = size
        self.token = token
        self.read_before = ReadPositions() if token is None else positions_of(token)


class RowRun(Protocol):
    """What a page wants, of each partition: rows in an order."""

    def rows(self, snapshot: Snapshot, served: ServedGeneration, partition: Partition, limit: int) -> list[Row]:
        """Return the first rows of a partition, at most `limit`; raise `IndexNotBuilt`."""

    def behind(self, place: bytes, /) -> "RowRun":
        """Return what is behind a key, or an entry of the index."""


class StoreRead(NamedTuple):
    """The rows of a page and one more, where there is one; and what they were read from.

    `until`: the page ends at this key for now, as no more rows are looked at in one go; None: it does not.
    """

    rows: list[Row]
    served: ServedGeneration
    positions: Mapping[Partition, Position]
    until: bytes | None = None


class RangePlan:
    """A Range, compiled."""

    def __init__(self, query: RangeQuery, access: TableAccess) -> None:
        self.query = query
        self.access = access
        self.order = order_of(query, access)
        hidden = () if access.visible is None else access.visible.view.hidden
        self._read_filters = filters_reader(query.filters, hidden)
        self.read_mask = mask_reader(query)
        self.read_part_mask = mask_reader(query, () if query.index is None else query.index.column_names)
        """For a part of a page: whoever puts the page together finds the place of each row by its columns."""
        self._page_bytes_max = access.limits.page_bytes_max
        self._request_hash: Callable[[Message], int] = access.request_hasher(query)
        self._read_requirement = requirement_reader(query, access)
        self._row_field = FieldEncoder(query.rows.number)
        self._token_field = FieldEncoder(query.next_page_token.number)
        self._info_field = None if query.read_info is None else FieldEncoder(query.read_info.number)

    def page(self, request: Message) -> Page:
        """Return what `request` asks for; raise `InvalidField` or `InvalidPageToken`."""
        query = self.query
        size, token_text = getattr(request, query.page_size.name), getattr(request, query.page_token.name)
        if size < 0:
            raise InvalidField(query.page_size.name, "is negative; send 0 for the default, or how many rows you want")
        return Page(
            self.order.read_bounds(request),
            self._read_filters(request),
            partition_prefix=self.order.partition_prefix(request),
            descending=self._descending(request),
            size=min(size or query.default_page_size, query.max_page_size),
            token=self.opened(request, token_text) if token_text else None,
        )

    def opened(self, request: Message, token_text: str) -> Token:
        """Return what is in a page token, of whichever generation; raise `InvalidPageToken`."""
        return self.access.open_any_generation(
            token_text, kind=TOKEN_KIND_PAGE, request_hash=self._request_hash(request), refused=_page_token_refused
        )

    def requirement(self, request: Message, page: Page) -> ConsistencyRequirement | None:
        """Return how fresh the page must be: as the request says, and as the pages before it; raise `InvalidField`."""
        return behind_walk(
            page.token, page.read_before, request, self.query, self.access, self._read_requirement(request)
        )

    def _descending(self, request: Message) -> bool:
        if self.query.order is None:
            return False
        order: Any = getattr(request, self.query.order.name)
        if order not in query_pb2.Order.values():
            raise InvalidField(self.query.order.name, "is no known order; send ORDER_ASCENDING or ORDER_DESCENDING")
        return bool(order == query_pb2.ORDER_DESCENDING)

    def read(self, page: Page, requirement: ConsistencyRequirement | None, scope: Scope | None) -> StoreRead:
        """Return the rows of a page, from one snapshot: of all partitions that it has, or of those of `scope`."""
        access = self.access
        with access.store.snapshot() as snapshot:
            served = access.served(snapshot)
            if scope is not None:
                scope.check(access.table.name, served.generation)
            some = None if scope is None else scope.partitions
            positions: dict[Partition, Position] = {}
            for partition in partitions_of(page, access, served) if some is None else some:
                positions[partition] = position = access.live(snapshot, served, partition)
                if requirement is not None:
                    requirement.check(access, served, partition, position)
            run = self.remaining(page, served)
            if run is None:
                return StoreRead([], served, positions)
            show = shower(access, page.tests)
            if show is None:
                rows = _merge_partitions(run, snapshot, served, list(positions), page)
                return StoreRead(rows, served, positions)
            most = access.limits.read_rows_max
            each_max = max(min(READ_ROWS_MIN, most), most // max(1, len(positions)))
            wanted = page.size + 1
            found = [_shown_rows(run, snapshot, served, each, show, wanted, each_max) for each in positions]
            rows, until = _merged(found, page)
        return StoreRead(rows, served, positions, until)

    def response(
        self,
        request: Message,
        page: Page,
        rows: list[Row],
        merged: MergedRead,
        *,
        trim: Trim | None,
        until: bytes | None,
        info: bytes,
    ) -> bytes:
        """Return the response of the first of `rows`, which are in order.

        `until`: there may be others behind this key, None: there are none. `merged` is what they were read from.
        """
        if trim is not None:
            rows = [(key, trim(row)) for key, row in rows]
        page_rows = _page_of(rows, page.size, self._page_bytes_max)
        parts = [self._row_field.encode_all([row for _, row in page_rows])]
        if len(page_rows) < len(rows):
            until = page_rows[-1][0]
        if until is not None:
            read = page.read_before.joined(merged.read)
            parts.append(self._token_field.encode(self._token(request, merged.generation, read, until)))
        if self._info_field is not None:
            parts.append(self._info_field.encode(info))
        return b"".join(parts)

    def remaining(self, page: Page, served: ServedGeneration) -> RowRun | None:
        """Return what the page token leaves, None for nothing; raise `TableRebuilt` or `PartitionUnavailable`."""
        token = page.token
        if token is not None:
            self.access.check_generation(token, served)
        return self.order.run(page, None if token is None else token.after_key)

    def _token(self, request: Message, generation: int, read: ReadPositions, after_key: bytes) -> bytes:
        token = Token(
            kind=TOKEN_KIND_PAGE,
            table=self.access.table.name,
            generation=generation,
            request_hash=self._request_hash(request),
            issue_time_ms=self.access.now_ms(),
            after_key=after_key,
        )
        return self.access.signer.sign_read(token, read).encode("ascii")


def partitions_of(page: Page, access: TableAccess, served: ServedGeneration) -> list[Partition]:
    """Return the partitions that a page's rows are in."""
    if page.partition_prefix is None:
        return served.partitions
    return list(access.places_of(page.partition_prefix, served.partition_count))


def shower(access: TableAccess, tests: Sequence[Test]) -> Show | None:
    """Return the function from a row to what is shown of those that pass `tests`; None where all are, as they are."""
    visible = access.visible
    if not tests:
        return None if visible is None else visible.row
    passes = row_tester(tests, access.table)
    if visible is None:
        return lambda row: row if passes(row) else None
    see = visible.row
    # Before the filters of the request: what is not seen is not asked either.
    return lambda row: seen if (seen := see(row)) is not None and passes(seen) else None


class _PartialResult(NamedTuple):
    """The rows of a page that some partitions have, in order. `until`: they may have others, behind this key."""

    gateway_id: str
    rows: list[Row]
    until: bytes | None
    info: bytes
    positions: Mapping[Partition, Position]  # where this gateway read them


class RangeRead:
    """A request, parsed."""

    def __init__(self, plan: RangePlan, data: bytes, call: Call) -> None:
        """Parse a request; raise `InvalidField`, `InvalidPageToken`, `ForeignForward` or `ForView`."""
        self.access = plan.access
        self.call = call
        self._plan = plan
        self._data = data
        forwarded = call.forwarded
        self.scope = None if forwarded is None else plan.access.scope(forwarded)
        self._request = request = parse(plan.query.request_class, data)
        self._page = plan.page(request)  # whose token is of the view that the scope is for
        is_part = self.scope is not None and self.scope.partitions is not None
        self._trim = plan.read_part_mask(request) if is_part else plan.read_mask(request)
        self.requirement = plan.requirement(request, self._page)

    def local(self) -> bytes:
        """Return the answer from this gateway's store."""
        plan, access = self._plan, self.access
        rows, served, positions, until = plan.read(self._page, self.requirement, self.scope)
        access.note_read(positions.values())
        trailer, info = access.trailer(served, positions), b""
        if plan.query.read_info is not None:
            info = access.read_info(served, positions)
        elif self.scope is not None and self.scope.partitions is not None:
            # Whoever puts the page together needs it for the page's token, also of partitions that have no more rows.
            read_info = ReadInfo.FromString(access.read_info(served, positions))
            trailer += ((READ_TRAILER, read_info.consistency_token.encode("ascii")),)
        self.call.set_trailer(trailer)
        merged = MergedRead(served.generation, read_positions(positions), ())
        return plan.response(self._request, self._page, rows, merged, trim=self._trim, until=until, info=info)

    def partitions(self, served: ServedGeneration) -> list[Partition]:
        """Return the partitions that the page's rows are in."""
        return partitions_of(self._page, self.access, served)

    async def remote(self, reason: NotServedHere) -> bytes:
        """Return the answer of the gateway that has the one partition, or of all sources together."""
        query, access = self._plan.query, self.access
        if self._page.partition_prefix is not None and not access.is_anywhere:
            return await forward_whole(self, reason, query.path, self._data, access.forward_token())
        served, local, _ = access.view(self.partitions)
        if isinstance(reason, NotCaughtUp):
            local = ()  # others have all of it, and may be ahead
        with unless_store_away(reason):
            results = await self._gathered(served, local)
            self.call.set_trailer(several_trailer(frozenset(each.gateway_id for each in results)))
            return self._merge_sources(served, results)

    async def _gathered(self, served: ServedGeneration, local: Sequence[Partition]) -> list[_PartialResult]:
        """Return a page of each source that is needed, all of the generation that is known here."""
        plan, access, call, requirement = self._plan, self.access, self.call, self.requirement
        router, may_wait = access.router, requirement is not None

        async def ask_local(partitions: Sequence[Partition]) -> _PartialResult:
            scope = Scope(served.generation, partitions, "")
            attempt = partial(plan.read, self._page, requirement, scope)
            rows, _, positions, until = await local_result(attempt, requirement, call)
            if len(rows) > self._page.size:
                until = rows[-1][0]
            return _PartialResult(router.directory.own_id, rows, until, b"", positions)

        async def ask(peer: Peer, partitions: Sequence[Partition]) -> _PartialResult:
            token = access.forward_token(served.generation, partitions)
            left_s = call.time_left_s()
            answer = await router.forwarder.unary(peer, plan.query.path, self._data, token, left_s, may_wait=may_wait)
            return self._partial(peer, answer, partitions)

        return await gather(
            access,
            served.partitions,
            ask,
            call,
            ask_local=ask_local,
            local=local,
            generation=served.generation,
            may_wait=may_wait,
        )

    def _partial(self, peer: Peer, answer: Forwarded, partitions: Sequence[Partition]) -> _PartialResult:
        """Take an answer apart; raise `PeerFailed` where it is no page, or one of another order."""
        response = answer.message
        query, place_of, page = self._plan.query, self._plan.order.place_of, self._page
        info_number = 0 if query.read_info is None else query.read_info.number
        rows: list[Row] = []
        info, page_token = b"", ""
        try:
            for number, _, start, end in fields(response):
                if number == query.rows.number:
                    row = response[start:end]
                    rows.append((place_of(row, page), row))
                elif number == query.next_page_token.number:
                    page_token = response[start:end].decode("ascii")
                elif number == info_number:
                    info = response[start:end]
        except ValueError:
            raise PeerFailed(Status(code=code_pb2.INTERNAL, message="an answer that is no page")) from None
        if query.read_info is None:
            token = dict(answer.trailer).get(READ_TRAILER)
            if token is None:
                raise PeerFailed(Status(code=code_pb2.INTERNAL, message="an answer that says not what was read"))
            info = ReadInfo(consistency_token=token.decode("ascii")).SerializeToString()
        try:
            until = self._plan.opened(self._request, page_token).after_key if page_token else None
        except InvalidPageToken:
            # Its contract is older or newer, and reads by another index: these are the first rows of another order.
            text = (
                f'gateway "{peer.gateway_id}" reads it in another order, by another contract, or signs by another key'
            )
            raise PeerFailed(status_of(PartitionUnavailable(self.access.table.name, partitions[0], text))) from None
        return _PartialResult(peer.gateway_id, rows, until, info, {})

    def _merge_sources(self, served: ServedGeneration, results: Sequence[_PartialResult]) -> bytes:
        """Return the response with the first rows of all results: up to where the first that has more ends."""
        plan, page = self._plan, self._page
        rows = sorted((row for each in results for row in each.rows), key=KEY, reverse=page.descending)
        # A source that has more ends the page at its last key: what others have beyond that key may come after rows
        # that were not sent.
        until = _first_end([each.until for each in results], page)
        rows = _up_to(rows, until, page)
        positions = next((each.positions for each in results if each.positions), {})
        infos = [each.info for each in results if each.info]
        merged = self.access.merged_read(served, positions, infos)
        info = b"" if plan.query.read_info is None else self.access.signed_read_info(merged)
        return plan.response(self._request, page, rows, merged, trim=self._trim, until=until, info=info)


def _page_token_refused(fault: str) -> QueryError:
    return InvalidPageToken(f"the page token {fault}; start over at the first page")


def _merge_partitions(
    run: RowRun, snapshot: Snapshot, served: ServedGeneration, partitions: list[Partition], page: Page
) -> list[Row]:
    """Return the page's rows and one more, where there is one, in order over all `partitions`."""
    # One row more than the page tells whether there is a next page, without a second read.
    limit = page.size + 1
    rows: list[Row] = []
    for partition in partitions:
        rows += run.rows(snapshot, served, partition, limit)
    # Timsort finds the sorted runs, so this is a merge in C, and faster than heapq's in Python.
    if len(partitions) > 1:
        rows.sort(key=KEY, reverse=page.descending)  # runs that are sorted already: this merges them
    return rows[:limit]


class KeyRun(NamedTuple):
    """The keys of a page that are left, start <= key < end, from the lowest on, or from the highest."""

    start: bytes
    end: bytes | None
    descending: bool

    def behind(self, key: bytes) -> "KeyRun":
        """Return what is behind a key."""
        if self.descending:
            return self._replace(end=key if self.end is None else min(self.end, key))
        return self._replace(start=max(self.start, key + b"\x00"))  # the lowest key above it

    def rows(self, snapshot: Snapshot, served: ServedGeneration, partition: Partition, limit: int) -> list[Row]:
        """Return the first rows of a partition."""
        return snapshot.range(
            served.store_id, partition, start=self.start, end=self.end, limit=limit, descending=self.descending
        )


class KeyOrder:
    """Rows in the order of their keys."""

    def __init__(self, query: RangeQuery | CountQuery, access: TableAccess) -> None:
        key = access.table.key
        prefix_count = len(query.prefix)
        self._access = access
        self._read_prefix = key_reader([param.field for param in query.prefix], key[:prefix_count])
        column = key[prefix_count] if prefix_count < len(key) else None
        self.read_bounds = bounds_reader(self._read_prefix, query.bounds, column)
        """From a request to the keys that it asks for; raises `InvalidField`."""
        self._one_partition = prefix_count >= access.table.partition_by_count

    def partition_prefix(self, request: Message) -> bytes | None:
        """Return the bytes that choose the partition; None where the request does not fix them."""
        return self._read_prefix(request) if self._one_partition else None

    def run(self, page: Page, after: bytes | None) -> KeyRun | None:
        """Return the keys of a page behind `after`; None where there are none."""
        bounds, visible = page.bounds, self._access.visible
        if visible is not None:
            bounds = visible.within(bounds)
        if bounds.start is None:
            return None
        run = KeyRun(bounds.start, bounds.end, descending=page.descending)
        if after is not None:
            run = run.behind(after)
        return None if run.end is not None and run.start >= run.end else run

    def place(self, key: bytes, _row: bytes, page: Page) -> bytes | None:
        """Return the place of a row among those of the page; None where it is not one of them."""
        start, end = page.bounds.start, page.bounds.end
        return key if start is not None and start <= key and (end is None or key < end) else None

    def place_of(self, row: bytes, _page: Page) -> bytes:
        """Return the key of a row that another gateway gave; raise `ValueError` where it is no row."""
        return self._access.key_of_row(row)


class IndexOrder:
    """Rows in the order of an index."""

    def __init__(self, query: RangeQuery | CountQuery, index: Index, access: TableAccess) -> None:
        self._access = access
        self._reader = IndexReader(index, access)
        self._bounds = index_bounds_reader(query.prefix, query.bounds, index)
        equal = {param.column_name: param.field for param in query.prefix if param.op is Op.EQ}
        self._read_prefix = partition_reader(equal, access.table)

    def read_bounds(self, request: Message) -> KeyBounds:
        """Return the column bytes that a request asks for; raise `InvalidField` or `NotAllowed`."""
        self._reader.check_seen()
        return self._bounds(request)

    def partition_prefix(self, request: Message) -> bytes | None:
        """Return the bytes that choose the partition; None where the request does not fix them."""
        return None if self._read_prefix is None else self._read_prefix(request)

    def run(self, page: Page, after: bytes | None) -> EntryRun | None:
        """Return the entries of a page behind `after`; None where there are none."""
        return None if page.bounds.empty else EntryRun(self._reader, page.bounds, after, descending=page.descending)

    def place(self, _key: bytes, row: bytes, page: Page) -> bytes | None:
        """Return the place of a row among those of the page; None where it is not one of them."""
        try:
            return self.place_of(row, page)
        except ValueError:
            return None

    def place_of(self, row: bytes, page: Page) -> bytes:
        """Return the entry of a row that another gateway gave; raise `ValueError` where it is not of the page."""
        key, start, end = self._access.key_of_row(row), page.bounds.start, page.bounds.end
        index = self._reader.index
        for values in index.values_of(index.row_class.FromString(row)):
            if start is not None and start <= values and (end is None or values < end):
                return make_entry(values[:INDEX_BYTES_MAX], key)
        raise ValueError("the row is not one of the page")


def order_of(query: RangeQuery | CountQuery, access: TableAccess) -> KeyOrder | IndexOrder:
    """Return the order in which a query reads rows."""
    return KeyOrder(query, access) if query.index is None else IndexOrder(query, query.index, access)


def _shown_rows(
    run: RowRun,
    snapshot: Snapshot,
    served: ServedGeneration,
    partition: Partition,
    show: Show,
    wanted: int,
    read_max: int,
) -> tuple[list[Row], bytes | None]:
    """Return at most `wanted` rows that are shown, and where it stopped for having looked at too many others; or None.

    Nobody else is served while it looks.
    """
    rows: list[Row] = []
    last: bytes | None = None
    while len(rows) < wanted:
        if read_max <= 0:
            return rows, last
        limit = min(read_max, READ_ROWS)
        found = run.rows(snapshot, served, partition, limit)
        rows += [(key, seen) for key, row in found if (seen := show(row)) is not None]
        if len(found) < limit:
            break
        read_max -= limit
        last = found[-1][0]
        run = run.behind(last)
    return rows[:wanted], None


def _merged(found: Sequence[tuple[list[Row], bytes | None]], page: Page) -> tuple[list[Row], bytes | None]:
    """Return the rows of all partitions in order, up to the first key at which one of them stopped, and that key."""
    rows = sorted((row for some, _ in found for row in some), key=KEY, reverse=page.descending)
    until = _first_end([end for _, end in found], page)
    return _up_to(rows, until, page)[: page.size + 1], until


def _first_end(ends: Iterable[bytes | None], page: Page) -> bytes | None:
    known = [end for end in ends if end is not None]
    if not known:
        return None
    return max(known) if page.descending else min(known)


def _up_to(rows: list[Row], until: bytes | None, page: Page) -> list[Row]:
    if until is None:
        return rows
    return [row for row in rows if (row[0] >= until if page.descending else row[0] <= until)]


def _page_of(rows: list[Row], size: int, bytes_max: int) -> list[Row]:
    """Return at most `size` rows, fewer where they are long, but one where there is one."""
    page_rows = rows[:size]
    page_bytes = 0
    for index, (_, row) in enumerate(page_rows):
        page_bytes += len(row)
        if page_bytes > bytes_max and index:
            return page_rows[:index]
    return page_rows
