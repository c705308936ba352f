"""Range: a run of keys, a page at a time. A page ends at its last key, so its token is good on any gateway."""

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, NamedTuple

from google.protobuf.message import Message
from tablegate.gateway.contract.catalogue import RangeQuery
from tablegate.gateway.contract.tokens import request_hasher
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.call import Call
from tablegate.gateway.query.consistency import ConsistencyRequirement, wish_reader
from tablegate.gateway.query.errors import InvalidField, InvalidPageToken, QueryError
from tablegate.gateway.query.requests import KeyBounds, bounds_reader, key_reader
from tablegate.gateway.query.router import Scope
from tablegate.gateway.query.serving import ServedGeneration, TableAccess
from tablegate.gateway.query.wire import Heads
from tablegate.gateway.stores.base import Position, Snapshot
from tablegate.internal.v1.tokens_pb2 import TOKEN_KIND_PAGE, Token
from tablegate.v1 import query_pb2

PAGE_BYTES_MAX = 1024 * 1024  # a client takes answers of 4 MiB by default; a page of long rows ends early

Row = tuple[bytes, bytes]
"""Key and row bytes."""

KEY = itemgetter(0)


class Page:
    """What one call asks for."""

    __slots__ = ("bounds", "descending", "partition_prefix", "size", "token_text")

    def __init__(
        self, bounds: KeyBounds, *, partition_prefix: bytes | None, descending: bool, size: int, token_text: str
    ) -> None:
        self.bounds = bounds
        self.partition_prefix = partition_prefix
        self.descending = descending
        self.size = size
        self.token_text = token_text


class Run(NamedTuple):
    """The rows of a page and one more, where there is one; and what they were read from."""

    rows: list[Row]
    life: ServedGeneration
    positions: Mapping[Partition, Position]


class RangePlan:
    """A Range, compiled."""

    def __init__(self, query: RangeQuery, access: TableAccess) -> None:
        self.query = query
        self.access = access
        key = access.table.key
        prefix_count = len(query.prefix)
        self._read_prefix = key_reader([param.field for param in query.prefix], key[:prefix_count])
        column = key[prefix_count] if prefix_count < len(key) else None
        self._read_bounds = bounds_reader(self._read_prefix, query.bounds, column)
        self._one_partition = prefix_count >= access.table.partition_by_count
        self._request_hash: Callable[[Message], int] = request_hasher(query)
        self.read_wish = wish_reader(query, access)
        self._row_heads = Heads(query.rows.number)
        self._token_heads = Heads(query.next_page_token.number)
        self._info_heads = None if query.read_info is None else Heads(query.read_info.number)

    def page(self, request: Message) -> Page:
        """Return what `request` asks for; raise `InvalidField`."""
        query = self.query
        size = getattr(request, query.page_size.name)
        if size < 0:
            raise InvalidField(query.page_size.name, "is negative; send 0 for the default, or how many rows you want")
        return Page(
            self._read_bounds(request),
            partition_prefix=self._read_prefix(request) if self._one_partition else None,
            descending=self._descending(request),
            size=min(size or query.default_page_size, query.max_page_size),
            token_text=getattr(request, query.page_token.name),
        )

    def _descending(self, request: Message) -> bool:
        if self.query.order is None:
            return False
        order: Any = getattr(request, self.query.order.name)
        if order not in query_pb2.Order.values():
            raise InvalidField(self.query.order.name, "is no known order; send ORDER_ASCENDING or ORDER_DESCENDING")
        return bool(order == query_pb2.ORDER_DESCENDING)

    def answer(
        self, request: Message, page: Page, wish: ConsistencyRequirement | None, call: Call, scope: Scope | None
    ) -> bytes:
        """Return the response from one snapshot."""
        access = self.access
        run = self.run(request, page, wish, scope)
        call.set_trailer(access.trailer(run.life, run.positions))
        info = b"" if self.query.read_info is None else access.read_info(run.life, run.positions)
        return self.response(request, page, run.life, run.rows, has_more=False, info=info)

    def run(self, request: Message, page: Page, wish: ConsistencyRequirement | None, scope: Scope | None) -> Run:
        """Return the rows of a page, from one snapshot: of all partitions that it has, or of those of `scope`."""
        access = self.access
        with access.store.snapshot() as snapshot:
            life = access.life(snapshot)
            if scope is not None:
                scope.check(access.table.name, life)
            some = None if scope is None else scope.partitions
            positions: dict[Partition, Position] = {}
            for partition in self.partitions(page, life) if some is None else some:
                positions[partition] = position = access.live(snapshot, life, partition)
                if wish is not None:
                    wish.check(access, life, partition, position)
            bounds = self.rest(request, page, life)
            rows = [] if bounds.empty else _merged(snapshot, life, list(positions), bounds, page)
        return Run(rows, life, positions)

    def response(
        self, request: Message, page: Page, life: ServedGeneration, rows: list[Row], *, has_more: bool, info: bytes
    ) -> bytes:
        """Return the response of the first of `rows`, which are in order; `has_more`: there are others behind them."""
        given = _page_of(rows, page.size)
        parts = [self._row_heads.embed_all([row for _, row in given])]
        if has_more or len(given) < len(rows):
            parts.append(self._token_heads.embed(self._token(request, life, given[-1][0])))
        if self._info_heads is not None:
            parts.append(self._info_heads.embed(info))
        return b"".join(parts)

    def partitions(self, page: Page, life: ServedGeneration) -> list[Partition]:
        """Return the partitions that a page's rows are in."""
        if page.partition_prefix is None:
            return life.partitions
        return [self.access.table.partition_of(page.partition_prefix, life.partition_count)]

    def rest(self, request: Message, page: Page, life: ServedGeneration) -> KeyBounds:
        """Return the bounds of what the page token leaves; raise `InvalidPageToken` or `TableRebuilt`."""
        if not page.token_text:
            return page.bounds
        token = self.access.open_token(
            page.token_text,
            kind=TOKEN_KIND_PAGE,
            request_hash=self._request_hash(request),
            life=life,
            refused=_page_token_refused,
        )
        start, end = page.bounds.start, page.bounds.end
        if page.descending:
            return KeyBounds(start, token.after_key if end is None else min(end, token.after_key))
        after = token.after_key + b"\x00"  # the lowest key above it
        return KeyBounds(None if start is None else max(start, after), end)

    def _token(self, request: Message, life: ServedGeneration, after_key: bytes) -> bytes:
        token = Token(
            kind=TOKEN_KIND_PAGE,
            table=self.access.table.name,
            generation=life.generation,
            request_hash=self._request_hash(request),
            issue_time_ms=self.access.now_ms(),
            after_key=after_key,
        )
        return self.access.signer.sign(token).encode("ascii")


def _page_token_refused(fault: str) -> QueryError:
    return InvalidPageToken(f"the page token {fault}; start over at the first page")


def _merged(
    snapshot: Snapshot, life: ServedGeneration, partitions: list[Partition], bounds: KeyBounds, page: Page
) -> list[Row]:
    """Return the page's rows and one more, where there is one, in order over all `partitions`."""
    limit = page.size + 1
    rows: list[Row] = []
    for partition in partitions:
        rows += snapshot.range(
            life.store_id,
            partition,
            start=bounds.start or b"",
            end=bounds.end,
            limit=limit,
            descending=page.descending,
        )
    if len(partitions) > 1:
        rows.sort(key=KEY, reverse=page.descending)  # runs that are sorted already: this merges them
    return rows[:limit]


def _page_of(rows: list[Row], size: int) -> list[Row]:
    """Return at most `size` rows, fewer where they are long, but one where there is one."""
    given = rows[:size]
    page_bytes = 0
    for place, (_, row) in enumerate(given):
        page_bytes += len(row)
        if page_bytes > PAGE_BYTES_MAX and place:
            return given[:place]
    return given
