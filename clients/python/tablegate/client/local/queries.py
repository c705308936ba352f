"""The contract's queries over the rows of a directory: requests and responses are those of a gateway.

How it works: the contract is bound, and requests are read, by the code of gateways: which keys and entries a request
asks for, what its filters let through, what its mask leaves. What is here puts a read together: one moment of the
directory, the run of keys or entries in it, and the response.

A directory has all partitions, so there is nothing to merge: a page is a walk of its run. A token has where its walk
is, for which request, and of which copy of the table.

Decision: docs/decisions/0196-a-local-table-answers-by-the-gateways-code.md
"""

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import DecodeError, Message

from tablegate.client.fields import ContractMismatch
from tablegate.client.local.directory import CopyDirectory, CopyState, IsGone, Moment
from tablegate.client.local.refusals import (
    InvalidPageToken,
    InvalidResumeToken,
    NotProven,
    NotServed,
    refusal_of,
)
from tablegate.gateway.contract.binder.binder import ContractError, bind
from tablegate.gateway.contract.catalogue import (
    BatchGetQuery,
    Catalogue,
    CountQuery,
    GetQuery,
    Query,
    RangeQuery,
    ScanQuery,
    Table,
)
from tablegate.gateway.contract.indexes import (
    INDEX_BYTES_MAX,
    Index,
    is_cut,
    make_entry,
    split_entry,
)
from tablegate.gateway.contract.keys import after_prefix
from tablegate.gateway.contract.wire import FieldEncoder, varint
from tablegate.gateway.query.errors import (
    CorruptRow,
    IndexNotUnique,
    InvalidField,
    QueryError,
    RowNotFound,
    TableRebuilt,
    TooManyKeys,
)
from tablegate.gateway.query.index_reads import IndexKey, index_keys_reader
from tablegate.gateway.query.masks import Trim, mask_reader
from tablegate.gateway.query.requests import (
    KeyBounds,
    ReadKey,
    Test,
    bounds_reader,
    filters_reader,
    index_bounds_reader,
    index_values_reader,
    key_reader,
    keys_reader,
    parse,
    seconds_of,
)
from tablegate.v1 import query_pb2

PAGE_BYTES_MAX = 1024 * 1024  # as of gateways: a page of long rows ends early
READ_ROWS = 500  # at once
READ_ROWS_MAX = 5_000  # of a page, of which few pass its filters: it goes on by its token
MESSAGE_ROWS_MAX = 500  # of a stream
WAIT_PART = 0.5  # of the deadline: so long a read waits for rows that are fresh enough, where it does not say

Place = tuple[bytes, bytes]
"""Where a row is in its run, its key or its entry of the index; and the row."""

Require = Callable[[float | None, float], None]
"""Wait until the copy is as fresh as that (`max_staleness_s`), for `max_wait_s`; raise `LocalReadError`."""


def files_of(file: Any) -> FileDescriptorSet:
    """Return a file of generated code, and all that it imports."""
    found: dict[str, Any] = {}

    def add(each: Any) -> None:
        if each.name not in found:
            for other in each.dependencies:
                add(other)
            found[each.name] = each

    add(file)
    files = FileDescriptorSet()
    for each in found.values():
        each.CopyToProto(files.file.add())
    return files


def bound(file: Any) -> Catalogue:
    """Return the catalogue of a contract, from a file of its generated code; raise `ContractMismatch`."""
    try:
        return bind(files_of(file))
    except ContractError as error:
        text = f"{file.name} is no contract that this client knows: generate code and client from one version\n{error}"
        raise ContractMismatch(text) from None


def table_of(row: Any) -> Table:
    """Return the table of a row message; raise `ContractMismatch`."""
    for table in bound(row.file).tables.values():
        if table.row.full_name == row.full_name:
            return table
    raise ContractMismatch(f"{row.full_name} is no row of a table")


def gone_at(row: Any) -> Callable[[int], IsGone]:
    """Return what, for a time in µs since 1970, says of keys whether their rows are over; raise `ContractMismatch`."""
    expiry = table_of(row).expiry
    assert expiry is not None, "the row's table has a retention"
    return lambda now_us: lambda key: expiry.is_gone(key, now_us)


class LocalQueries:
    """Answers the queries of a row's table, by their paths. Any thread may ask."""

    def __init__(self, row: Any, directory: CopyDirectory, require: Require) -> None:
        self._row = row
        self._directory = directory
        self._require = require
        self._catalogues: dict[str, Catalogue] = {}
        self._plans: dict[str, _Plan] = {}

    def plan(self, path: str) -> "_Plan":
        """Return what answers the query at a path; raise `NotServed` or `ContractMismatch`."""
        plan = self._plans.get(path)
        if plan is None:
            plan = self._plans[path] = self._made(path)
        return plan

    def _made(self, path: str) -> "_Plan":
        service = path[1:].rpartition("/")[0]
        try:
            file = self._row.file.pool.FindServiceByName(service).file
        except KeyError:
            raise NotServed(f'no code of a service "{service}" is imported here: import it beside the row') from None
        if file.name not in self._catalogues:
            self._catalogues[file.name] = bound(file)
        query = self._catalogues[file.name].queries.get(path)
        kind = _KINDS.get(type(query))
        if query is None or kind is None:
            raise NotServed(f'a local table does not answer "{path}": ask a gateway')
        if query.table.row.full_name != self._row.full_name:
            raise NotServed(f'"{path}" reads {query.table.row.full_name}, and here are rows of {self._row.full_name}')
        return kind(query, self._directory, self._require)


class _Plan:
    """A query, compiled."""

    is_short = False  # whether an answer takes no longer than a turn of an event loop may

    def __init__(self, query: Any, directory: CopyDirectory, require: Require) -> None:
        self.query = query
        self.table: Table = query.table
        self.directory = directory
        self._require = require
        self._read_mask = mask_reader(query)
        self._info = None if query.read_info is None else FieldEncoder(query.read_info.number)

    def parsed(self, data: bytes) -> Any:
        """Return the request in bytes; raise `LocalReadError`."""
        try:
            return parse(self.query.request_class, data)
        except QueryError as error:
            raise refusal_of(error) from None

    def answer(self, request: Any, timeout_s: float | None = None) -> bytes:
        """Return the response; raise `LocalReadError`."""
        try:
            return self._answer(request, timeout_s)
        except QueryError as error:
            raise refusal_of(error) from None

    def _answer(self, request: Any, timeout_s: float | None) -> bytes:
        """Return the response; raise `LocalReadError` or what a gateway raises."""
        raise NotImplementedError

    def requires(self, request: Any) -> bool:
        """Return whether a request says how fresh the answer has to be."""
        options = self.query.read_options
        return options is not None and request.HasField(options.name)

    def require(self, request: Any, timeout_s: float | None) -> None:
        """Return once the copy is as fresh as a request says; raise `LocalReadError`."""
        if not self.requires(request):
            self._require(None, 0.0)
            return
        name = self.query.read_options.name
        options = getattr(request, name)
        kind = options.WhichOneof("consistency")
        max_staleness_s = None
        if kind == "max_staleness":
            max_staleness_s = _seconds(f"{name}.max_staleness", options.max_staleness)
        elif kind in ("minimize_latency", "latest") and not getattr(options, kind):
            raise InvalidField(f"{name}.{kind}", "is false; set it to true, or leave it out")
        max_wait_s = (timeout_s or self.query.default_timeout_s) * WAIT_PART
        if options.HasField("max_wait"):
            max_wait_s = _seconds(f"{name}.max_wait", options.max_wait)
        is_own = kind == "at_least" and options.at_least == self.directory.state.consistency_token
        if kind not in (None, "minimize_latency", "max_staleness") and not is_own:
            raise NotProven(kind)
        self._require(max_staleness_s, max_wait_s)

    def trim(self, request: Any) -> Trim | None:
        """Return how rows are trimmed; None: not."""
        return self._read_mask(request)

    def info(self, state: CopyState) -> bytes:
        """Return the field of the read info."""
        return b"" if self._info is None else self._info.encode(read_info(state))


def read_info(state: CopyState) -> bytes:
    """Return what rows were read at."""
    info = query_pb2.ReadInfo(consistency_token=state.consistency_token)
    info.as_of_time.FromMicroseconds(state.as_of_us)
    return bytes(info.SerializeToString())


def _seconds(field: str, duration: Any) -> float:
    seconds = seconds_of(duration)
    if seconds < 0:
        raise InvalidField(field, "is negative; send a duration of 0 or more")
    return seconds


class _IndexReads:
    """Reads of an index in a moment."""

    def __init__(self, index: Index, table: Table) -> None:
        self.index = index
        self._table = table.name

    def entries(
        self, moment: Moment, bounds: KeyBounds, after: bytes | None, limit: int, *, is_descending: bool
    ) -> list[Place]:
        """Return at most `limit` entries and rows whose column bytes are in `bounds`, behind an entry."""
        head, start, end = self.index.id, bounds.start, bounds.end
        assert start is not None, "the run has entries"
        # What is stored is cut: whoever has the same beginning may be in the bounds or not.
        low = head + start[:INDEX_BYTES_MAX]
        if end is None:
            high = after_prefix(head)
        else:
            cut = end if len(end) <= INDEX_BYTES_MAX else after_prefix(end[:INDEX_BYTES_MAX])
            high = after_prefix(head) if cut is None else head + cut
        found: list[Place] = []
        for values, key, row in moment.entries(low, high, _behind(head, after), is_descending=is_descending):
            entry = make_entry(values[len(head) :], key)
            if not is_cut(entry) or self.index.holds(row, start, end):
                found.append((entry, row))
                if len(found) >= limit:
                    break
        return found

    def row(self, moment: Moment, values: bytes) -> bytes | None:
        """Return the one row that has these values; raise `IndexNotUnique`."""
        found = self.entries(moment, KeyBounds(values, after_prefix(values)), None, 2, is_descending=False)
        if len(found) > 1:
            raise IndexNotUnique(self._table, self.index.name)
        return found[0][1] if found else None


def _behind(head: bytes, entry: bytes | None) -> tuple[bytes, bytes] | None:
    if entry is None:
        return None
    values, key = split_entry(entry)
    return head + values, key


class _GetPlan(_Plan):
    is_short = True

    def __init__(self, query: GetQuery, directory: CopyDirectory, require: Require) -> None:
        super().__init__(query, directory, require)
        fields = [param.field for param in query.params]
        index = query.index
        self._reads = None if index is None else _IndexReads(index, query.table)
        self._key: ReadKey = (
            key_reader(fields, query.table.key) if index is None else index_values_reader(fields, index.columns)
        )
        self._row = FieldEncoder(query.row.number)

    def _answer(self, request: Any, timeout_s: float | None) -> bytes:
        key, trim, reads = self._key(request), self.trim(request), self._reads
        self.require(request, timeout_s)

        def read(moment: Moment) -> tuple[bytes | None, CopyState]:
            return (moment.get(key) if reads is None else reads.row(moment, key)), moment.state

        row, state = self.directory.read(read)
        if row is None:
            if not self.query.missing_is_empty:
                raise RowNotFound(self.table.name, self.table.row.full_name)
            return self.info(state)
        return self._row.encode(row if trim is None else trim(row)) + self.info(state)


class _BatchGetPlan(_Plan):
    is_short = True

    def __init__(self, query: BatchGetQuery, directory: CopyDirectory, require: Require) -> None:
        super().__init__(query, directory, require)
        index = query.index
        self._reads = None if index is None else _IndexReads(index, query.table)
        self._keys = (
            keys_reader(query.keys, query.key_fields, query.table)
            if index is None
            else _values_of(index_keys_reader(query.keys, query.key_fields, index, query.table))
        )
        self._found = FieldEncoder(query.found.number)
        self._result = FieldEncoder(query.results.number)

    def _answer(self, request: Any, timeout_s: float | None) -> bytes:
        query, asked = self.query, getattr(request, self.query.keys.name)
        if len(asked) > query.max_keys:
            raise TooManyKeys(len(asked), query.max_keys)
        keys, trim, reads = self._keys(request), self.trim(request), self._reads
        self.require(request, timeout_s)

        def read(moment: Moment) -> tuple[list[bytes | None], CopyState]:
            if reads is None:
                return [moment.get(key) for key in keys], moment.state
            return [reads.row(moment, key) for key in keys], moment.state

        rows, state = self.directory.read(read)
        parts = []
        for key, row in zip(asked, rows, strict=True):
            if row is None:
                parts.append(self._missing(key))
            else:
                parts.append(self._result.encode(self._found.encode(row if trim is None else trim(row))))
        return b"".join(parts) + self.info(state)

    def _missing(self, key: Any) -> bytes:
        query = self.query
        response = query.response_class()
        entry = getattr(response, query.results.name).add()
        if query.missing.message_type is None:
            setattr(entry, query.missing.name, key)
        else:
            missing = getattr(entry, query.missing.name)
            missing.SetInParent()
            missing.MergeFromString(key.SerializeToString())
        return bytes(response.SerializeToString())


def _values_of(read: Callable[[Message], list[IndexKey]]) -> Callable[[Message], list[bytes]]:
    return lambda request: [key.values for key in read(request)]


class _Run(NamedTuple):
    """What a page or a count reads, in an order."""

    bounds: KeyBounds
    tests: Sequence[Test]
    is_descending: bool
    after: bytes | None


class _RunPlan(_Plan):
    """A query that reads a run: of keys, or of an index."""

    def __init__(self, query: RangeQuery | CountQuery, directory: CopyDirectory, require: Require) -> None:
        super().__init__(query, directory, require)
        self._reads = None if query.index is None else _IndexReads(query.index, query.table)
        count, key = len(query.prefix), query.table.key
        if query.index is None:
            prefix = key_reader([param.field for param in query.prefix], key[:count])
            self.bounds = bounds_reader(prefix, query.bounds, key[count] if count < len(key) else None)
        else:
            self.bounds = index_bounds_reader(query.prefix, query.bounds, query.index)
        self.filters = filters_reader(query.filters)
        self._passes = _passer(query.table)

    def places(self, moment: Moment, run: _Run, limit: int) -> list[Place]:
        """Return the first rows of a run that is not empty, whether they pass its filters or not."""
        start, end = run.bounds.start, run.bounds.end
        assert start is not None
        if self._reads is not None:
            return self._reads.entries(moment, run.bounds, run.after, limit, is_descending=run.is_descending)
        if run.after is not None:
            if run.is_descending:
                end = run.after if end is None else min(end, run.after)
            else:
                start = max(start, run.after + b"\x00")
        return moment.rows(start, end, limit=limit, is_descending=run.is_descending)

    def passing(self, places: list[Place], tests: Sequence[Test]) -> list[Place]:
        """Return the rows that pass."""
        return [place for place in places if self._passes(place[1], tests)] if tests else places


def _passer(table: Table) -> Callable[[bytes, Sequence[Test]], bool]:
    parse_row, name = table.row_class.FromString, table.name

    def passes(data: bytes, tests: Sequence[Test]) -> bool:
        try:
            row = parse_row(data)
        except DecodeError:
            raise CorruptRow(f'table "{name}" has a damaged row; its directory must be made anew') from None
        return all(test(row) for test in tests)

    return passes


class _RangePlan(_RunPlan):
    def __init__(self, query: RangeQuery, directory: CopyDirectory, require: Require) -> None:
        super().__init__(query, directory, require)
        self._rows = FieldEncoder(query.rows.number)
        self._next = FieldEncoder(query.next_page_token.number)
        may_change = (query.page_size, query.page_token, query.read_mask, query.read_options)
        self._tokens = _Tokens(query, may_change, InvalidPageToken)

    def _answer(self, request: Any, timeout_s: float | None) -> bytes:
        query = self.query
        size, text = getattr(request, query.page_size.name), getattr(request, query.page_token.name)
        if size < 0:
            raise InvalidField(query.page_size.name, "is negative; send 0 for the default, or how many rows you want")
        bounds, tests, is_descending = self.bounds(request), self.filters(request), self._descending(request)
        size = min(size or query.default_page_size, query.max_page_size)
        token = self._tokens.opened(request, text) if text else None
        trim = self.trim(request)
        self.require(request, timeout_s)
        run = _Run(bounds, tests, is_descending, None if token is None else token.after)

        def read(moment: Moment) -> tuple[list[Place], bytes | None, CopyState]:
            if token is not None:
                token.check(moment.state, self.table)
            return *self._page(moment, run, size + 1), moment.state

        rows, until, state = self.directory.read(read)
        if trim is not None:
            rows = [(place, trim(row)) for place, row in rows]
        page = _page_of(rows, size)
        if len(page) < len(rows):
            until = page[-1][0]
        parts = [self._rows.encode(row) for _, row in page]
        if until is not None:
            parts.append(self._next.encode(self._tokens.made(request, state, until).encode("ascii")))
        return b"".join([*parts, self.info(state)])

    def _page(self, moment: Moment, run: _Run, wanted: int) -> tuple[list[Place], bytes | None]:
        """Return at most so many rows that pass, and where the read stopped for having looked at too many others."""
        if run.bounds.empty:
            return [], None
        if not run.tests:
            return self.places(moment, run, wanted), None
        rows: list[Place] = []
        read_count = 0
        while len(rows) < wanted:
            if read_count >= READ_ROWS_MAX:
                return rows, run.after
            found = self.places(moment, run, READ_ROWS)
            rows += self.passing(found, run.tests)
            if len(found) < READ_ROWS:
                break
            read_count += len(found)
            run = run._replace(after=found[-1][0])
        return rows[:wanted], None

    def _descending(self, request: Any) -> bool:
        if self.query.order is None:
            return False
        order = getattr(request, self.query.order.name)
        if order not in query_pb2.Order.values():
            raise InvalidField(self.query.order.name, "is no known order; send ORDER_ASCENDING or ORDER_DESCENDING")
        return bool(order == query_pb2.ORDER_DESCENDING)


def _page_of(rows: list[Place], size: int) -> list[Place]:
    """Return at most `size` rows, fewer where they are long, but one where there is one."""
    page, page_bytes = rows[:size], 0
    for at, (_, row) in enumerate(page):
        page_bytes += len(row)
        if page_bytes > PAGE_BYTES_MAX and at:
            return page[:at]
    return page


class _CountPlan(_RunPlan):
    def __init__(self, query: CountQuery, directory: CopyDirectory, require: Require) -> None:
        super().__init__(query, directory, require)
        self._tag = varint(query.count.number << 3)

    def _answer(self, request: Any, timeout_s: float | None) -> bytes:
        run = _Run(self.bounds(request), self.filters(request), False, None)
        self.require(request, timeout_s)

        def read(moment: Moment) -> tuple[int, CopyState]:
            return self._count(moment, run), moment.state

        count, state = self.directory.read(read)
        return self._tag + varint(count) + self.info(state)

    def _count(self, moment: Moment, run: _Run) -> int:
        if run.bounds.empty:
            return 0
        if self._reads is None and not run.tests and run.bounds == KeyBounds(b"", None):
            return moment.count()
        count = 0
        while True:
            found = self.places(moment, run, READ_ROWS)
            count += len(self.passing(found, run.tests))
            if len(found) < READ_ROWS:
                return count
            run = run._replace(after=found[-1][0])


class _ScanPlan(_Plan):
    def __init__(self, query: ScanQuery, directory: CopyDirectory, require: Require) -> None:
        super().__init__(query, directory, require)
        self._filters = filters_reader(query.filters)
        self._passes = _passer(query.table)
        self._rows = FieldEncoder(query.rows.number)
        self._progress = None if query.progress is None else FieldEncoder(query.progress.number)
        self._tokens = _Tokens(query, (query.scan_options, query.read_mask, query.read_options), InvalidResumeToken)

    def messages(self, request: Any, timeout_s: float | None = None) -> Iterator[bytes]:
        """Yield the responses, at least one; raise `LocalReadError`."""
        try:
            yield from self._messages(request, timeout_s)
        except QueryError as error:
            raise refusal_of(error) from None

    def _messages(self, request: Any, timeout_s: float | None) -> Iterator[bytes]:
        query, tests, trim = self.query, self._filters(request), self.trim(request)
        options: Any = query_pb2.ScanOptions()
        if query.scan_options is not None:
            name = query.scan_options.name
            options = getattr(request, name)
            if options.limit < 0:
                raise InvalidField(f"{name}.limit", "is negative; send 0 for all rows, or how many you want")
            if not 0 <= options.slices <= _SLICES_MAX:
                raise InvalidField(f"{name}.slices", f"is {options.slices}; send 0 for rows, or at most {_SLICES_MAX}")
        rows_max = min(filter(None, (options.limit, query.max_rows)), default=None)
        token = self._tokens.opened(request, options.resume_token) if options.resume_token else None
        self.require(request, timeout_s)
        state = self.directory.state
        walk = token or _Token(state.copy, 0, None)
        walk.check(state, self.table)
        if options.slices and token is None:
            slice_token = self._tokens.made(request, state, None)
            assert self._progress is not None, "a contract with scan options has progress"
            progress = query_pb2.ScanProgress(slice_tokens=[slice_token])
            yield self._progress.encode(bytes(progress.SerializeToString()))
            return
        yield from self._walked(request, walk, tests, trim, rows_max)

    def _walked(
        self, request: Any, walk: "_Token", tests: Sequence[Test], trim: Trim | None, rows_max: int | None
    ) -> Iterator[bytes]:
        while True:
            left = None if rows_max is None else max(0, rows_max - walk.given)
            start = b"" if walk.after is None else walk.after + b"\x00"

            found, state = self.directory.read(partial(_rows_of, walk=walk, start=start, table=self.table))
            passed = [place for place in found if self._passes(place[1], tests)] if tests else found
            is_last = len(found) < MESSAGE_ROWS_MAX
            if left is not None and len(passed) >= left:
                found = passed = passed[:left]
                is_last = True
            after = found[-1][0] if found else walk.after
            walk = _Token(walk.copy, walk.given + len(passed), after)
            rows = [self._rows.encode(row if trim is None else trim(row)) for _, row in passed]
            yield b"".join(rows) + self._progress_field(request, state, walk)
            if is_last:
                return
            self._require(None, 0.0)

    def _progress_field(self, request: Any, state: CopyState, walk: "_Token") -> bytes:
        if self._progress is None:
            return b""
        token = self._tokens.made(request, state, walk.after, walk.given)
        progress = query_pb2.ScanProgress(resume_token=token)
        progress.read_info.MergeFromString(read_info(state))
        return self._progress.encode(bytes(progress.SerializeToString()))


def _rows_of(moment: Moment, walk: "_Token", start: bytes, table: Table) -> tuple[list[Place], CopyState]:
    walk.check(moment.state, table)
    return moment.rows(start, None, limit=MESSAGE_ROWS_MAX, is_descending=False), moment.state


_SLICES_MAX = 1_000  # as of gateways, though there is one slice here


class _Token(NamedTuple):
    """Where a walk is: behind a place, None where it begins; having given so many rows, of a copy."""

    copy: int
    given: int
    after: bytes | None

    def check(self, state: CopyState, table: Table) -> None:
        """Raise `TableRebuilt` where the copy has been replaced since."""
        if self.copy != state.copy:
            raise TableRebuilt(table.name)


class _Tokens:
    """Tokens of a query's walks. They are for this directory: there is nothing in them to hide, and nothing to win."""

    def __init__(self, query: Query, may_change: Sequence[Any], refusal: Callable[[], Exception]) -> None:
        self._path = query.path.encode() + (query.index.id if isinstance(query, RangeQuery) and query.index else b"")
        self._request_class = query.request_class
        self._may_change = [field.name for field in may_change if field is not None]
        self._refusal = refusal

    def made(self, request: Message, state: CopyState, after: bytes | None, given: int = 0) -> str:
        """Return the text of a token."""
        where = [state.copy, given, None if after is None else after.hex()]
        parts = [self._digest(request, where), *where]
        return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode("ascii")

    def opened(self, request: Message, text: str) -> _Token:
        """Return what is in a token; raise the refusal of one that is not of this request."""
        try:
            digest, *where = json.loads(base64.b64decode(text.encode("ascii"), b"-_", validate=True))
            copy, given, after = where
            token = _Token(int(copy), int(given), None if after is None else bytes.fromhex(after))
        except (ValueError, TypeError, RecursionError, OverflowError):
            raise self._refusal() from None
        if digest != self._digest(request, where):
            raise self._refusal()
        return token

    def _digest(self, request: Message, where: Sequence[Any]) -> str:
        params = self._request_class()
        params.CopyFrom(request)
        params.DiscardUnknownFields()
        for name in self._may_change:
            params.ClearField(name)
        canonical = json.dumps(where).encode() + b"\x00" + self._path + b"\x00"
        return hashlib.sha256(canonical + params.SerializeToString(deterministic=True)).hexdigest()[:16]


_KINDS: dict[type[Any], type[_Plan]] = {
    GetQuery: _GetPlan,
    BatchGetQuery: _BatchGetPlan,
    RangeQuery: _RangePlan,
    CountQuery: _CountPlan,
    ScanQuery: _ScanPlan,
}
