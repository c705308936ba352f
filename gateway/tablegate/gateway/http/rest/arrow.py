"""Rows as one stream of Arrow (its IPC format), for who accepts that: those of a Scan, and of a page of a Range.

How it works: the messages of a Scan are gathered, still as bytes, until there are enough rows for a record batch. One
thread of this process makes columns of them, by Arrow's own functions, which let the event loop run meanwhile; the next
rows are gathered beside. What is not a row stays JSON: a Scan's progress is the metadata of each batch, what else a
page has is the metadata of the schema, under `ABOUT`.

A reader of Arrow takes a stream that ends between two batches for a whole one. So one in which something goes wrong
ends with the beginning of a message that does not come (`cut`), which every reader refuses.

It needs `tablegate-gateway[arrow]`: the columns are those of `tablegate.client.arrow`. Without it who accepts nothing
else is told so. Nothing of it is imported before somebody asks.

Decision: docs/decisions/0176-arrow-over-http-is-an-extra.md
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple, ParamSpec, TypeGuard, TypeVar

from google.protobuf.message import DecodeError, Message

from tablegate.gateway.contract.catalogue import Query, RangeQuery, ScanQuery
from tablegate.gateway.contract.http_rules import HttpRoute
from tablegate.gateway.contract.wire import MessageSplitter
from tablegate.gateway.http.json_codec import JsonCodec
from tablegate.gateway.query.call import Call, StreamMethod
from tablegate.gateway.query.errors import CorruptRow, NotServed, Overloaded
from tablegate.gateway.query.masks import wanted_of

ARROW = b"application/vnd.apache.arrow.stream"
ABOUT = "tablegate"
"""The key of metadata under which JSON says what is no row."""

NO_ROWS = "only a Scan and a Range answer as Arrow; accept application/json here"
NO_EXTRA = "this gateway makes no Arrow: install tablegate-gateway[arrow] there, or accept application/json"

_JSON_TYPES = (b"application/json", b"application/x-ndjson", b"text/event-stream")
_ANY_TYPES = (b"*/*", b"application/*")
_CONTINUES, _MISSING_BYTES = b"\xff\xff\xff\xff", 64

Given = ParamSpec("Given")
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowLimits:
    """What streams of Arrow may have at work in one process, and how much a batch has."""

    at_work_max: int = 16  # streams and pages: each holds some 8 MiB at worst
    batch_rows: int = 32_768  # a quarter of them cost half as much again, each
    batch_bytes: int = 1024 * 1024  # of rows as they are stored
    batch_cells: int = 262_144  # rows times columns: of wide rows with little in them, 2 MiB of columns
    flush_s: float = 1.0  # rows that pass a filter wait no longer for others


class Accepted(NamedTuple):
    """What a client accepts: Arrow rather than JSON, and JSON where there is no Arrow."""

    arrow: bool
    json: bool


def accepted_by(accept: bytes) -> Accepted:
    """Return what an `accept` header says about Arrow. Who does not name it gets none."""
    weights: dict[bytes, float] = {}
    for item in accept.lower().split(b","):
        name, *parameters = (part.strip() for part in item.split(b";"))
        weights[name] = next((_weight(part[2:]) for part in parameters if part.startswith(b"q=")), 1.0)
    arrow = weights.get(ARROW, 0.0)
    json = max(weights.get(name, 0.0) for name in _JSON_TYPES)
    return Accepted(
        arrow > 0 and arrow >= json, any(weights.get(name, 0.0) > 0 for name in (*_JSON_TYPES, *_ANY_TYPES))
    )


def _weight(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return 1.0


def gives_rows(query: Query | None, route: HttpRoute) -> TypeGuard[ScanQuery | RangeQuery]:
    """Return whether a route answers with rows, which may be Arrow."""
    return isinstance(query, (ScanQuery, RangeQuery)) and route.response_body in (None, query.rows)


def cut(reason: bytes) -> bytes:
    """Return what no reader of Arrow takes for the end of a stream: a message that is longer than what comes of it."""
    return _CONTINUES + (len(reason) + _MISSING_BYTES).to_bytes(4, "little") + reason


class ArrowRows:
    """Makes Arrow of the rows of routes. `has_extra`: whether what it needs is installed."""

    def __init__(
        self,
        queries: Mapping[str, Query],
        codec: JsonCodec,
        limits: ArrowLimits | None = None,
        has_extra: Callable[[], bool] = lambda: all(map(find_spec, ("pyarrow", "tablegate.client"))),
    ) -> None:
        self.limits = limits or ArrowLimits()
        self._queries = queries
        self._codec = codec
        self._is_there = has_extra()
        self._at_work = 0
        # One thread: columns of many streams take no more than one CPU beside the event loop.
        self._thread = ThreadPoolExecutor(1, "tablegate-arrow")

    def of(self, route: HttpRoute) -> "ArrowRoute | str":
        """Return what makes Arrow of a route's rows, or the sentence why nothing does."""
        query = self._queries.get(route.path)
        if not gives_rows(query, route):
            return NO_ROWS
        return ArrowRoute(self, query, self._codec) if self._is_there else NO_EXTRA

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Count what is at work for as long as the context; raise `Overloaded` where there is too much."""
        if self._at_work >= self.limits.at_work_max:
            raise Overloaded(
                f"all clients together have {self._at_work} answers of Arrow at work here; back off, or accept JSON",
                limit="answers of Arrow",
            )
        self._at_work += 1
        try:
            yield
        finally:
            self._at_work -= 1

    def start(self, work: Callable[Given, Made], *given: Given.args, **named: Given.kwargs) -> "asyncio.Future[Made]":
        """Let the thread do something."""
        return asyncio.wrap_future(self._thread.submit(work, *given, **named))


class ArrowRoute:
    """Makes Arrow of the rows of one query."""

    def __init__(self, rows: ArrowRows, query: ScanQuery | RangeQuery, codec: JsonCodec) -> None:
        self._rows = rows
        self._query = query
        self._codec = codec
        self._splitter = MessageSplitter(query.rows, None)
        limits, columns = rows.limits, len(query.table.row.fields)
        self._batch_rows = max(1, min(limits.batch_rows, limits.batch_cells // max(1, columns)))

    def stream(self, method: StreamMethod) -> StreamMethod:
        """Return the method whose messages are pieces of a stream of Arrow."""

        def handle(data: bytes, call: Call) -> AsyncIterator[bytes]:
            return self._pieces(method.handler(data, call), data, call)

        return StreamMethod(handle, is_bulk=method.is_bulk)

    async def page(self, response: bytes, request: bytes, call: Call) -> bytes:
        """Return a response as a whole stream of Arrow; raise `CorruptRow`, `NotServed` or `Overloaded`."""
        with self._rows.hold():
            rows, rest = self._splitter.rows(response)
            columns, about = self._columns(request, call), self._about(rest)
            return await self._rows.start(lambda: self._writer(columns, about).piece(rows, b"", is_last=True))

    async def _pieces(self, messages: AsyncIterator[bytes], data: bytes, call: Call) -> AsyncIterator[bytes]:
        rows: list[bytes] = []
        size, rest, since_s = 0, b"", 0.0
        writing: asyncio.Future[bytes] | None = None
        limits = self._rows.limits
        with self._rows.hold():
            try:
                async with aclosing(messages):  # type: ignore[type-var]
                    writer = await self._rows.start(self._writer, self._columns(data, call))
                    async for message in messages:
                        since_s = since_s if rows else time.monotonic()
                        some, rest = self._splitter.rows(message)
                        rows += some
                        size += len(message)
                        is_full = len(rows) >= self._batch_rows or size >= limits.batch_bytes
                        if not is_full and time.monotonic() < since_s + limits.flush_s:
                            await call.turn()
                            continue
                        written = b"" if writing is None else await writing
                        writing = self._rows.start(writer.piece, rows, self._about(rest))
                        rows, size, rest = [], 0, b""
                        if written:
                            yield written
                if writing is not None:
                    yield await writing
                yield await self._rows.start(writer.piece, rows, self._about(rest), is_last=True)
            finally:
                if writing is not None:
                    writing.cancel()

    def _columns(self, request: bytes, call: Call) -> Sequence[str] | None:
        """Return the columns that are given, None for all: what is hidden or not asked for is no column."""
        query, view = self._query, call.view
        wanted = None
        if query.read_mask is not None:
            mask: Any = getattr(query.request_class.FromString(request), query.read_mask.name)
            wanted = wanted_of(query.read_mask.name, mask.paths, query.table.row) if mask.paths else None
        hidden = () if view is None else view.hidden
        if wanted is None and not hidden:
            return None
        keys = [column.name for column in query.table.key]
        names = [field.name for field in query.table.row.fields]
        return [name for name in names if name not in hidden and (wanted is None or name in wanted or name in keys)]

    def _about(self, rest: bytes) -> bytes:
        """Return the JSON of a response without its rows; b"" where there is nothing."""
        return self._codec.to_json(self._query.response_class, rest) if rest else b""

    def _writer(self, columns: Sequence[str] | None, about: bytes = b"") -> "_Writer":
        table = self._query.table
        try:
            return _Writer(table.row_class, table.name, columns, about)
        except ValueError as error:  # a row that contains itself
            raise NotServed(f"{error}; accept application/json") from None


class _Writer:
    """One stream of Arrow, for one thread at a time. `about`: of all of it."""

    def __init__(self, row: type[Message], table: str, columns: Sequence[str] | None, about: bytes) -> None:
        import pyarrow as pa

        from tablegate.client.arrow import arrow_schema
        from tablegate.client.arrow_rows import row_batches

        schema = arrow_schema(row, columns=columns)
        self._empty = pa.RecordBatch.from_pylist([], schema)
        self._batches: Callable[[Sequence[bytes]], Iterator[Any]]
        self._batches = lambda rows: row_batches([rows], row, columns=columns)
        self._table = table
        self._written = _Written()
        self._stream = pa.ipc.new_stream(self._written, schema.with_metadata({ABOUT: about}) if about else schema)

    def piece(self, rows: Sequence[bytes], about: bytes, *, is_last: bool = False) -> bytes:
        """Return the bytes of the next batches, from the beginning of the stream on; raise `CorruptRow`."""
        try:
            batches = list(self._batches(rows)) or ([self._empty] if about else [])
        except DecodeError:
            text = f'table "{self._table}" has a damaged row; its store must be made anew'
            raise CorruptRow(text, table=self._table) from None
        for batch in batches:
            self._stream.write_batch(batch, custom_metadata={ABOUT: about} if about else None)
        if is_last:
            self._stream.close()
        return self._written.pop()


class _Written:
    """A file that keeps what is written to it until it is popped."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        """Keep some bytes."""
        self._parts.append(data)
        return len(data)

    def flush(self) -> None:
        """Nothing."""

    def pop(self) -> bytes:
        """Return what was written since the last time."""
        data = b"".join(self._parts)
        self._parts.clear()
        return data
