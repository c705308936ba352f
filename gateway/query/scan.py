"""Scan: every row that passes the filters, partition by partition, in short snapshots and by key cursor."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from google.protobuf.message import DecodeError, Message

from gateway.contract.catalogue import ScanQuery
from gateway.contract.tokens import request_hasher
from gateway.contract.types import Partition
from gateway.internal.v1.tokens_pb2 import TOKEN_KIND_SCAN, Token
from gateway.query.access import Life, TableAccess
from gateway.query.call import Call, StreamHandler
from gateway.query.errors import CorruptRow, DeadlineExceeded, ShuttingDown, TableRebuilt, resume_token_refused
from gateway.query.filters import Test, filters_reader
from gateway.query.freshness import Wish, when_fresh, wish_reader
from gateway.query.params import parse
from gateway.query.ranges import Row
from gateway.query.wire import Heads
from gateway.stores.base import Position
from gateway.v1.query_pb2 import ScanProgress

MESSAGE_ROWS_MAX = 500  # more win nothing: the cost of a message is spread already
MESSAGE_BYTES_MAX = 64 * 1024  # what a client that stops reading makes us hold
READ_BYTES = 256 * 1024  # aimed at in one snapshot, so that long rows do not fill the memory
FIRST_READ_ROWS = 50  # before the length of rows is known
FLUSH_S = 0.01  # rows that passed a filter wait no longer for others
PROGRESS_S = 1.0  # a message at least this often, though no row passes


def scan_handler(query: ScanQuery, access: TableAccess) -> StreamHandler:
    """Return the handler of `query`."""
    plan = _ScanPlan(query, access)

    async def handle(data: bytes, call: Call) -> AsyncIterator[bytes]:
        request = parse(query.request_class, data)
        tests = plan.read_filters(request)
        wish = plan.read_wish(request)
        if wish is None:
            life = plan.open(None)
        else:
            opened = when_fresh(lambda: plan.open(wish), wish, call)
            life = opened if isinstance(opened, Life) else await opened
        run = _ScanRun(plan, life, tests, plan.resumed(request, life))
        async for message in run.messages(call):
            yield message

    return handle


class _ScanPlan:
    """A Scan, compiled."""

    def __init__(self, query: ScanQuery, access: TableAccess) -> None:
        self.query = query
        self.access = access
        self.read_filters = filters_reader(query.filters)
        self.read_wish = wish_reader(query, access)
        self.row_heads = Heads(query.rows.number)
        self.progress_heads = None if query.progress is None else Heads(query.progress.number)
        self.info_heads = Heads(ScanProgress.READ_INFO_FIELD_NUMBER)
        self.token_heads = Heads(ScanProgress.RESUME_TOKEN_FIELD_NUMBER)
        self._request_hash = request_hasher(query)

    def open(self, wish: Wish | None) -> Life:
        """Return the life that is scanned, once every partition may be answered and is fresh enough."""
        access = self.access
        with access.store.snapshot() as snapshot:
            life = access.life(snapshot)
            for partition in life.partitions:
                position = access.live(snapshot, life, partition)
                if wish is not None:
                    wish.check(access, life, partition, position)
        return life

    def resumed(self, request: Message, life: Life) -> Token:
        """Return where the scan starts, as a token; raise `InvalidResumeToken` or `TableRebuilt`."""
        table = self.access.table.name
        request_hash = self._request_hash(request)
        options = self.query.scan_options
        text = getattr(request, options.name).resume_token if options is not None else ""
        if not text:
            return Token(kind=TOKEN_KIND_SCAN, table=table, generation=life.generation, request_hash=request_hash)
        return self.access.open_token(
            text, kind=TOKEN_KIND_SCAN, request_hash=request_hash, life=life, refused=resume_token_refused
        )


class _ScanRun:
    """One scan, as far as it is. `_token` says what was given, `_cursor` what was read."""

    def __init__(self, plan: _ScanPlan, life: Life, tests: list[Test], token: Token) -> None:
        self._plan = plan
        self._access = plan.access
        self._life = life
        self._tests = tests
        self._token = token
        self._partition = Partition(token.partition)
        self._cursor = token.after_key
        self._positions: dict[Partition, Position] = {}
        self._limit = FIRST_READ_ROWS
        self._row_class = plan.access.table.row_class

    async def messages(self, call: Call) -> AsyncIterator[bytes]:
        """Yield the stream's messages: at least one, and the last one tells that all is read."""
        pending: list[Row] = []  # read and not given yet, all of one partition
        flushed = time.monotonic()
        told = False  # whether the last message told all that was read
        while not self._finished(pending):
            _check(call)
            partition = self._partition
            pending += self._passed(self._read())[: self._rows_left(pending)]
            if self._due(pending, partition, time.monotonic() - flushed):
                for message in self._spliced(pending, partition):
                    yield message
                pending, told, flushed = [], True, time.monotonic()
            else:
                told = False
                await asyncio.sleep(0)
        if not told:
            for message in self._spliced(pending, self._partition):
                yield message

    def _rows_left(self, pending: list[Row]) -> int | None:
        """Return how many more rows the scan may give; None for any number."""
        most = self._plan.query.max_rows
        return max(0, most - self._token.rows_given - len(pending)) if most else None

    def _finished(self, pending: list[Row]) -> bool:
        return self._partition >= self._life.partition_count or self._rows_left(pending) == 0

    def _due(self, pending: list[Row], partition: Partition, waited_s: float) -> bool:
        """Return whether what is read makes a message."""
        if not pending:
            return waited_s >= PROGRESS_S
        full = len(pending) >= MESSAGE_ROWS_MAX or not self._tests
        return full or waited_s >= FLUSH_S or partition != self._partition

    def _read(self) -> list[Row]:
        """Return the next rows of the partition, which may be none, and move on."""
        access = self._access
        with access.store.snapshot() as snapshot:
            life = access.life(snapshot)
            if life.generation != self._life.generation:
                raise TableRebuilt(access.table.name)
            position = access.live(snapshot, life, self._partition)
            self._positions.setdefault(self._partition, position)
            start = self._cursor + b"\x00" if self._cursor else b""
            rows = snapshot.range(life.store_id, self._partition, start=start, end=None, limit=self._limit)
        if len(rows) < self._limit:
            self._partition, self._cursor = Partition(self._partition + 1), b""
        else:
            self._cursor = rows[-1][0]
        if rows:
            row_bytes = _row_bytes(rows) // len(rows) + 1
            self._limit = max(1, min(MESSAGE_ROWS_MAX, READ_BYTES // row_bytes))
        return rows

    def _passed(self, rows: list[Row]) -> list[Row]:
        tests = self._tests
        if not tests:
            return rows
        parse_row = self._row_class.FromString
        first, others = tests[0], tests[1:]
        passed = []
        try:
            for pair in rows:
                row: Any = parse_row(pair[1])
                if first(row) and all(test(row) for test in others):
                    passed.append(pair)
        except DecodeError:
            text = f'table "{self._access.table.name}" partition {self._partition} has a damaged row'
            raise CorruptRow(f"{text}; its store must be made anew", table=self._access.table.name) from None
        return passed

    def _spliced(self, rows: list[Row], partition: Partition) -> Iterator[bytes]:
        """Yield messages with all of `rows`, which are of `partition`; the last tells how far the scan has read."""
        while _row_bytes(rows) > MESSAGE_BYTES_MAX and len(rows) > 1:
            count = _fitting(rows)
            yield self._message(rows[:count], partition, rows[count - 1][0])
            rows = rows[count:]
        yield self._message(rows, self._partition, self._cursor)

    def _message(self, rows: list[Row], partition: Partition, after_key: bytes) -> bytes:
        """Return a message whose resume token goes on after `after_key` of `partition`."""
        plan, token = self._plan, self._token
        token.rows_given += len(rows)
        body = plan.row_heads.embed_all([row for _, row in rows])
        if plan.progress_heads is None:
            return body
        token.partition, token.after_key, token.issue_time_ms = partition, after_key, self._access.now_ms()
        resume_token = plan.token_heads.embed(self._access.signer.sign(token).encode("ascii"))
        info = plan.info_heads.embed(self._access.read_info(self._life, self._positions))
        return body + plan.progress_heads.embed(resume_token + info)


def _row_bytes(rows: list[Row]) -> int:
    return sum([len(row) for _, row in rows])


def _fitting(rows: list[Row]) -> int:
    """Return how many of the first rows fit one message; at least 1."""
    message_bytes = 0
    for count, (_, row) in enumerate(rows):
        message_bytes += len(row)
        if message_bytes > MESSAGE_BYTES_MAX and count:
            return count
    return len(rows)


def _check(call: Call) -> None:
    if call.draining:
        raise ShuttingDown
    left_s = call.time_left_s()
    if left_s is not None and left_s <= 0:
        raise DeadlineExceeded
