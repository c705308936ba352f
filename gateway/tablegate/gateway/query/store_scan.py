"""Scan of this gateway's store: rows that pass the filters, partition by partition, in short snapshots, by key.

A scan has to go on where all that it has read is: its token has the positions (`Scanned.walked`), and whoever goes on
waits until the store has come up to them.

Decision: docs/decisions/0070-walks-carry-positions.md
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from typing import Any

from google.protobuf.message import DecodeError, Message

from tablegate.gateway.contract.catalogue import ScanQuery
from tablegate.gateway.contract.lineage import Place, is_of_another_log, place_at
from tablegate.gateway.contract.tokens import (
    POSITIONS_MAX,
    InvalidToken,
    ReadPositions,
    TokenFault,
    clear_positions,
    positions_of,
    put_positions,
)
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.contract.wire import FieldEncoder, MessageSplitter
from tablegate.gateway.query.call import Call
from tablegate.gateway.query.consistency import (
    ConsistencyRequirement,
    behind_walk,
    requirement_reader,
    when_fresh,
)
from tablegate.gateway.query.errors import (
    LOST_RECORDS,
    CorruptRow,
    DeadlineExceeded,
    InvalidField,
    NotCaughtUp,
    ShuttingDown,
    TableRebuilt,
    resume_token_refused,
)
from tablegate.gateway.query.masks import Trim, mask_reader
from tablegate.gateway.query.range import Row
from tablegate.gateway.query.requests import Test, filters_reader
from tablegate.gateway.query.serving import MergedRead, ServedGeneration, TableAccess, read_positions
from tablegate.gateway.stores.base import Position
from tablegate.internal.v1.tokens_pb2 import TOKEN_KIND_SCAN, TOKEN_KIND_SLICE, Token
from tablegate.v1.query_pb2 import ScanProgress

READ_BYTES = 256 * 1024  # aimed at in one snapshot, so that long rows do not fill the memory
SLICES_MAX = 1_000  # of a scan: so many tokens of partitions make a message under 4 MiB
PROGRESS_S = 1.0  # a message at least this often, though no row passes


class ScanPlan:
    """A Scan, compiled."""

    def __init__(self, query: ScanQuery, access: TableAccess) -> None:
        self.query = query
        self.access = access
        self.read_filters = filters_reader(query.filters, () if access.visible is None else access.visible.view.hidden)
        self.read_mask = mask_reader(query)
        self._read_requirement = requirement_reader(query, access)
        self.row_field = FieldEncoder(query.rows.number)
        self.splitter = MessageSplitter(query.rows, query.progress)
        self.progress_field = None if query.progress is None else FieldEncoder(query.progress.number)
        self.info_field = FieldEncoder(ScanProgress.READ_INFO_FIELD_NUMBER)
        self.token_field = FieldEncoder(ScanProgress.RESUME_TOKEN_FIELD_NUMBER)
        self.slice_field = FieldEncoder(ScanProgress.SLICE_TOKENS_FIELD_NUMBER)
        self.request_hash = access.request_hasher(query)

    async def opened(
        self, requirement: ConsistencyRequirement | None, call: Call, partitions: Sequence[Partition] | None
    ) -> ServedGeneration:
        """Return the generation that is scanned, once these partitions (None: all) are served and fresh enough."""
        if requirement is None:
            return self._open(None, partitions)
        return await when_fresh(lambda: self._open(requirement, partitions), requirement, call)

    def _open(
        self, requirement: ConsistencyRequirement | None, partitions: Sequence[Partition] | None
    ) -> ServedGeneration:
        access = self.access
        with access.store.snapshot() as snapshot:
            served = access.served(snapshot)
            for partition in served.partitions if partitions is None else partitions:
                position = access.live(snapshot, served, partition)
                if requirement is not None:
                    requirement.check(access, served, partition, position)
        return served

    def token_text(self, request: Message) -> str:
        """Return the resume token of a request; "" for none."""
        options = self.query.scan_options
        return "" if options is None else str(getattr(request, options.name).resume_token)

    def rows_max(self, request: Message) -> int | None:
        """Return how many rows a scan may give, resumes and all; None for any number. Raise `InvalidField`."""
        options = self.query.scan_options
        limit: int = 0 if options is None else getattr(request, options.name).limit
        if options is not None and limit < 0:
            raise InvalidField(f"{options.name}.limit", "is negative; send 0 for all rows, or how many you want")
        return min(filter(None, (limit, self.query.max_rows)), default=None)

    def slice_count(self, request: Message) -> int:
        """Return how many slices a request asks for; 0 where it asks for rows. Raise `InvalidField`."""
        options = self.query.scan_options
        count: int = 0 if options is None else getattr(request, options.name).slices
        if options is not None and not 0 <= count <= SLICES_MAX:
            raise InvalidField(f"{options.name}.slices", f"is {count}; send 0 for rows, or at most {SLICES_MAX}")
        return count

    def resumed(self, request: Message, token_text: str, served: ServedGeneration) -> Token:
        """Return where the scan starts, as a token; raise `InvalidResumeToken` or `TableRebuilt`."""
        token = self.opened_token(request, token_text)
        if token is not None:
            self.access.check_generation(token, served)
            return token
        return Token(
            kind=TOKEN_KIND_SCAN,
            table=self.access.table.name,
            generation=served.generation,
            request_hash=self.request_hash(request),
        )

    def opened_token(self, request: Message, token_text: str) -> Token | None:
        """Return what is in a resume token, of whichever generation; None for none. Raise `InvalidResumeToken`."""
        if not token_text:
            return None
        access, request_hash = self.access, self.request_hash(request)
        try:
            return access.signer.open(
                token_text, kind=TOKEN_KIND_SCAN, table=access.table.name, generation=None, request_hash=request_hash
            )
        except InvalidToken as error:
            if error.fault is not TokenFault.OTHER_KIND:
                raise resume_token_refused(error.fault.value) from None
        return access.open_any_generation(
            token_text, kind=TOKEN_KIND_SLICE, request_hash=request_hash, refused=resume_token_refused
        )

    def requirement(self, request: Message, walked: Token | None) -> ConsistencyRequirement | None:
        """Return how fresh partitions must be: as the request says, and as what was read before `walked`."""
        read = ReadPositions() if walked is None else positions_of(walked)
        return behind_walk(walked, read, request, self.query, self.access, self._read_requirement(request))


class Scanned:
    """What a scan has given: `token` goes on behind it; `positions` are what it was read at, by partition.

    A partition is read in several snapshots, maybe of several gateways: its position has the next offset of the newest,
    as no row may be older afterwards, and the time of the oldest, as no row may be older than is told.

    `begun` are positions of partitions when the scan began, as far as they were known: rows that were there then are
    not to be missed either.
    """

    def __init__(
        self,
        plan: ScanPlan,
        served: ServedGeneration,
        token: Token,
        begun: ReadPositions | None = None,
        *,
        rows_max: int | None = None,
    ) -> None:
        self.served = served
        self.token = token
        self.positions: dict[Partition, Position] = {}
        self._plan = plan
        self._rows_max = rows_max
        self._before = positions_of(token).joined(begun or ReadPositions())
        self._is_unnamed = False  # whether something was read elsewhere at positions that are not known
        self._unnamed_as_of_ms: list[int] = []
        clear_positions(token)

    def read_at(self, partition: Partition, position: Position) -> None:
        """Record where rows of a partition were read; raise `TableRebuilt` or `NotCaughtUp` where it went back."""
        known = self.positions.get(partition)
        if known is None:
            self._check_goes_on(partition, self._before.places.get(partition), position)
            self.positions[partition] = position
        elif position is not known:
            self._check_goes_on(partition, place_at(known.lineage, known.next_offset), position)
            self.positions[partition] = replace(position, as_of_ms=min(known.as_of_ms, position.as_of_ms))

    def _check_goes_on(self, partition: Partition, read: Place | None, position: Position) -> None:
        """Raise `TableRebuilt` or `NotCaughtUp` where a store has not, or no more, what was read up to a place."""
        if read is None:
            return
        name = self._plan.access.table.name
        if is_of_another_log(read, position.lineage):
            raise TableRebuilt(name, LOST_RECORDS)
        if position.next_offset < read.next_offset:
            raise NotCaughtUp(name, partition, "its store has lost what was read")

    def read_by_other(self, partition: Partition, position: Position) -> None:
        """Record where another gateway has read rows of a partition."""
        known = self.positions.get(partition)
        if known is not None:
            newest = known if known.next_offset >= position.next_offset else position
            position = replace(newest, as_of_ms=min(known.as_of_ms, position.as_of_ms))
        self.positions[partition] = position

    def read_unnamed(self, as_of_ms: int | None = None) -> None:
        """Record that another gateway has read rows at positions that it did not say."""
        self._is_unnamed = True
        if as_of_ms is not None:
            self._unnamed_as_of_ms = [min([as_of_ms, *self._unnamed_as_of_ms])]

    def signed_token(self, *, to_peer: bool = False) -> str:
        """Return the text of a token that goes on behind what was given.

        `to_peer`: for another gateway, which is told its partitions beside it, and may know no slices.
        """
        # Of so many none is in the token anyway; to put them together would take longer than to read the rows.
        is_wide = len(self._before.places) - self.token.partition > POSITIONS_MAX
        read = ReadPositions(everything=True) if is_wide else self._read_so_far()
        token = self._copied_token()
        if to_peer:
            token.kind, token.end_partition = TOKEN_KIND_SCAN, 0
        return self._plan.access.signer.sign_read(token, read)

    def walked(self) -> Token:
        """Return that token."""
        token = self._copied_token()
        put_positions(token, self._read_so_far())
        return token

    def _copied_token(self) -> Token:
        token = Token()
        token.CopyFrom(self.token)
        return token

    def slices(self, partitions: Sequence[Partition], count: int) -> bytes:
        """Return a message with the tokens of at most `count` slices of these partitions."""
        count = min(count, len(partitions)) if self._rows_max is None else 1  # who may have few rows has them once
        encode, tokens = self._plan.slice_field.encode, list[bytes]()
        self.token.issue_time_ms = self._plan.access.now_ms()
        self.token.kind = TOKEN_KIND_SLICE
        for number in range(count):
            slice_ = partitions[number * len(partitions) // count : (number + 1) * len(partitions) // count]
            self.token.partition, self.token.end_partition = slice_[0], slice_[-1] + 1
            tokens.append(encode(self.signed_token().encode("ascii")))
        assert self._plan.progress_field is not None, "a contract with scan options has progress"
        return self._plan.progress_field.encode(b"".join(tokens))

    def _read_so_far(self) -> ReadPositions:
        """Return what whoever goes on must have; nothing of partitions that are done, or of another slice."""
        read = self._before.joined(read_positions(self.positions))
        first, end = self.token.partition, self.token.end_partition or self.served.partition_count
        left = {each: place for each, place in read.places.items() if first <= each < end}
        return ReadPositions(left, read.everything or self._is_unnamed)

    def rows_left(self, pending: int = 0) -> int | None:
        """Return how many rows may be given beside those that are pending; None for any number."""
        most = self._rows_max
        return None if most is None else max(0, most - self.token.rows_given - pending)

    def message(self, rows: bytes, count: int, *, partition: int, after_key: bytes) -> bytes:
        """Return a message with `count` rows, their tags included, behind which `after_key` of `partition` was read."""
        plan, token = self._plan, self.token
        token.rows_given += count
        token.partition, token.after_key = partition, after_key
        if plan.progress_field is None:
            return rows
        token.issue_time_ms = plan.access.now_ms()
        resume_token = plan.token_field.encode(self.signed_token().encode("ascii"))
        info = plan.info_field.encode(self._read_info())
        return rows + plan.progress_field.encode(resume_token + info)

    def _read_info(self) -> bytes:
        if not self._is_unnamed:
            return self._plan.access.read_info(self.served, self.positions)
        as_of_ms = [*self._unnamed_as_of_ms, *(position.as_of_ms for position in self.positions.values())]
        read = ReadPositions({}, everything=True)
        return self._plan.access.signed_read_info(MergedRead(self.served.generation, read, as_of_ms))


class StoreScan:
    """A scan of some partitions of this gateway's store, as far as it is.

    `scanned` says what was given, `_cursor` what was read.

    `partitions` are in order, and none is done already. Where the scan has begun with one, it goes on.
    """

    def __init__(
        self,
        plan: ScanPlan,
        scanned: Scanned,
        tests: Sequence[Test],
        partitions: Sequence[Partition],
        trim: Trim | None = None,
    ) -> None:
        self._plan = plan
        self._access = plan.access
        self._scanned = scanned
        self._tests = tests
        self._trim = trim
        token = scanned.token
        self._partitions = [*partitions, Partition(partitions[-1] + 1 if partitions else token.partition)]
        self._done = 0
        self._cursor = token.after_key if self._partition == token.partition else b""
        self._limits = plan.access.limits
        self._limit = self._limits.scan_first_read_rows
        self._row_class = plan.access.table.row_class

    async def messages(self, call: Call) -> AsyncIterator[bytes]:
        """Yield the messages: at least one, and the last one tells that all is read."""
        pending: list[Row] = []  # read and not given yet, all of one partition
        flushed = time.monotonic()
        is_complete = False  # whether the last message says all that was read
        while not self._finished(pending):
            check_call(call)
            done, partition = self._done, self._partition
            rows, left = self._passed(self._read()), self._scanned.rows_left(len(pending))
            if left is not None and len(rows) > left:
                rows = rows[:left]
                self._done, self._cursor = done, rows[-1][0]  # whoever resumes with a higher limit gets the rest
            trim = self._trim
            pending += rows if trim is None else [(key, trim(row)) for key, row in rows]
            if self._due(pending, partition, time.monotonic() - flushed):
                messages = self._spliced(pending, partition)
                rows, pending = [], []  # whoever reads slowly, or waits for a turn, holds a message and not its rows
                for message in messages:
                    yield message
                is_complete, flushed = True, time.monotonic()
            else:
                is_complete = False
                # A selective filter reads many rows for each one that it lets through: other calls get their turn
                # between two reads.
                await asyncio.sleep(0)
        if not is_complete:
            for message in self._spliced(pending, self._partition):
                yield message

    @property
    def _partition(self) -> Partition:
        """Return the partition that is read; when all are, the number behind the last."""
        return self._partitions[self._done]

    def _finished(self, pending: list[Row]) -> bool:
        return self._done == len(self._partitions) - 1 or self._scanned.rows_left(len(pending)) == 0

    def _due(self, pending: list[Row], partition: Partition, waited_s: float) -> bool:
        """Return whether what is read makes a message."""
        if not pending:
            return waited_s >= PROGRESS_S
        full = len(pending) >= self._limits.message_rows_max or self._passes_all
        return full or waited_s >= self._limits.scan_flush_s or partition != self._partition

    def _read(self) -> list[Row]:
        """Return the next rows of the partition, which may be none, and move on."""
        access = self._access
        with access.store.snapshot() as snapshot:
            served = access.served(snapshot)
            # Another generation has other partitions: rows of both together would be the state of no moment.
            if served.generation != self._scanned.served.generation:
                raise TableRebuilt(access.table.name)
            position = access.live(snapshot, served, self._partition)
            self._scanned.read_at(self._partition, position)
            start, end = self._cursor + b"\x00" if self._cursor else b"", None
            if access.visible is not None:
                start, end = max(start, access.visible.start), access.visible.end
            rows = snapshot.range(served.store_id, self._partition, start=start, end=end, limit=self._limit)
        if len(rows) < self._limit:
            self._done, self._cursor = self._done + 1, b""
        else:
            self._cursor = rows[-1][0]
        if rows:
            # The next read is as many rows as READ_BYTES has room for, by the mean length of these.
            row_bytes = _row_bytes(rows) // len(rows) + 1
            self._limit = max(1, min(self._limits.message_rows_max, READ_BYTES // row_bytes))
        return rows

    @property
    def _passes_all(self) -> bool:
        """Return whether every row is given, so that no read gives only a few."""
        return not self._tests and self._access.visible is None

    def _passed(self, rows: list[Row]) -> list[Row]:
        tests, visible = self._tests, self._access.visible
        if visible is not None:
            # Before the filters of the request: what is not seen is not asked either.
            rows = [(key, seen) for key, row in rows if (seen := visible.row(row)) is not None]
        if not tests:
            return rows
        parse_row = self._row_class.FromString
        # Most rows fail the first test; it is called without a generator around it.
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
        """Yield messages with all of `rows`, which are of `partition`; the last tells how far the scan has read.

        While a message is taken, only rows of those behind it are held here.
        """
        bytes_max = self._limits.message_bytes_max
        while _row_bytes(rows) > bytes_max and len(rows) > 1:
            count = _fitting(rows, bytes_max)
            message = self._message(rows[:count], partition, rows[count - 1][0])
            rows = rows[count:]
            yield message
        message = self._message(rows, self._partition, self._cursor)
        rows = []
        yield message

    def _message(self, rows: list[Row], partition: Partition, after_key: bytes) -> bytes:
        spliced = self._plan.row_field.encode_all([row for _, row in rows])
        return self._scanned.message(spliced, len(rows), partition=partition, after_key=after_key)


def _row_bytes(rows: list[Row]) -> int:
    return sum([len(row) for _, row in rows])


def _fitting(rows: list[Row], bytes_max: int) -> int:
    """Return how many of the first rows fit one message; at least 1."""
    message_bytes = 0
    for count, (_, row) in enumerate(rows):
        message_bytes += len(row)
        if message_bytes > bytes_max and count:
            return count
    return len(rows)


def check_call(call: Call) -> None:
    """Raise what ends a stream now: `ShuttingDown` or `DeadlineExceeded`."""
    if call.draining:
        raise ShuttingDown
    left_s = call.time_left_s()
    if left_s is not None and left_s <= 0:
        raise DeadlineExceeded
