"""GetHistory: how one row has changed, as far back as the history of its partition reaches.

The history of a store is in the order of offsets, for those who follow a partition; nothing finds one key in it. So it
is read from one end to the other, some changes at a time, each part in a snapshot and a turn of its own: a worker goes
on with its other calls between them. Who asks again asks from where the last answer ended, which costs next to nothing.

Where the history is cut meanwhile, up to what is read next or behind it, or begins anew, there is a gap. What was found
before that is forgotten, so that an answer has all changes of the row since its `history_start`.

Rows, and the ones before them, are seen as by the Get: what a view does not show is not there.

Decision: docs/decisions/0173-a-rows-history-is-asked-by-its-get.md
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from google.protobuf.message import Message

from tablegate.gateway.access.views import View
from tablegate.gateway.contract.catalogue import Catalogue, GetQuery
from tablegate.gateway.contract.types import Offset, Partition, read_version
from tablegate.gateway.query.call import Call
from tablegate.gateway.query.errors import InvalidField, PartitionUnavailable
from tablegate.gateway.query.requests import key_reader, parse
from tablegate.gateway.query.serving import ServedGeneration, TableAccess
from tablegate.gateway.stores.base import PastChange, Position, Snapshot
from tablegate.v1.status_pb2 import GetHistoryResponse, RowChange, RowContent

LIMIT, LIMIT_MAX = 100, 1_000  # changes of an answer: unless the request says, and whatever it says
ROWS_BYTES_MAX = 1024 * 1024  # of the rows of an answer; its newest change comes however long that is
STEP_CHANGES = 2_000  # read at once, in some milliseconds
STEP_BYTES = 2 * 1024 * 1024  # of rows that are read at once, as far as the ones before tell: what others wait for
FIRST_CHANGES = 100  # read at first, while nothing tells how large they are


class RowHistories:
    """Answers for the Gets by key of a catalogue, whose tables are accessed by `accesses`."""

    def __init__(
        self,
        catalogue: Catalogue,
        accesses: Mapping[str, TableAccess],
        *,
        step_changes: int = STEP_CHANGES,
        step_bytes: int = STEP_BYTES,
    ) -> None:
        self._step_changes, self._step_bytes = step_changes, step_bytes
        self._long = asyncio.Lock()
        self._gets = {
            path: (query, accesses[query.table.name])
            for path, query in catalogue.queries.items()
            if isinstance(query, GetQuery) and query.index is None
        }

    def request_class(self, method: str) -> type[Message]:
        """Return the class of a method's requests; raise `InvalidField` where it is no Get by key."""
        return self._get(method)[0].request_class

    def row_class(self, method: str) -> type[Message]:
        """Return the class of the rows of a method; raise `InvalidField` where it is no Get by key."""
        return self._get(method)[0].table.row_class

    async def history(
        self, method: str, data: bytes, call: Call, view: View | None, *, start: int, limit: int
    ) -> GetHistoryResponse:
        """Return the changes of the row of a request, as somebody with a view sees them.

        Raise `InvalidField`, `PartitionUnavailable`, or `StoreUnavailable`.
        """
        query, access = self._get(method)
        if view is not None:
            access = access.seen(view)
        key = key_reader([param.field for param in query.params], query.table.key)(parse(query.request_class, data))
        if start < 0:
            raise InvalidField("start_offset", "is negative; send next_offset of the answer before, or leave it out")
        if not 0 <= limit <= LIMIT_MAX:
            raise InvalidField("limit", f"is none of 0 to {LIMIT_MAX}; send fewer, or leave it out")
        found = _Found(key, access, limit or LIMIT)
        reading = _Reading(access, key, Offset(start), self._step_changes, self._step_bytes)
        if reading.step(found):
            # Long ones come one after the other: side by side, all of them would end when the last one does, or not in
            # time.
            async with self._long:
                await call.turn()
                while reading.step(found):
                    await call.turn()
        return reading.answer(found)

    def _get(self, method: str) -> tuple[GetQuery, TableAccess]:
        found = self._gets.get(f"/{method.removeprefix('/')}")
        if found is None:
            raise InvalidField("method", 'is no Get by key here; send package.Service/Method, of "tablegate tables"')
        return found


@dataclass(slots=True)
class _Found:
    """The newest changes of a key that were found, the oldest first. `truncated`: there were older ones."""

    key: bytes
    access: TableAccess
    limit: int
    truncated: bool = False
    _changes: deque[RowChange] = field(default_factory=deque)
    _bytes: int = 0

    def add(self, changes: Sequence[PastChange]) -> None:
        """Add those of the key that are seen, and forget the oldest where they become too many."""
        for change in changes:
            if change.key == self.key and (seen := self._seen(change)) is not None:
                self._changes.append(seen)
                self._bytes += seen.ByteSize()
                while len(self._changes) > self.limit or (self._bytes > ROWS_BYTES_MAX and len(self._changes) > 1):
                    self._bytes -= self._changes.popleft().ByteSize()
                    self.truncated = True

    def forget(self) -> None:
        """Forget all that was found."""
        self._changes.clear()
        self._bytes, self.truncated = 0, False

    def newest_first(self) -> list[RowChange]:
        """Return them."""
        return list(reversed(self._changes))

    def _seen(self, change: PastChange) -> RowChange | None:
        """Return what is seen of a change; None where that is nothing."""
        visible = self.access.visible
        row, before = (change.row, change.before) if visible is None else visible.rows((change.row, change.before))
        if row is None and before is None:
            return None
        if visible is not None and row == before:  # in what is hidden alone
            return None
        generation, sequence = read_version(change.version)
        seen = RowChange(offset=change.offset, generation=generation, sequence=sequence)
        seen.time.FromMilliseconds(change.time_ms)
        if row is not None:
            seen.row.CopyFrom(RowContent(message=row))
        if before is not None:
            seen.before.CopyFrom(RowContent(message=before))
        return seen


class _Reading:
    """One way through the history of the partition of a key. No snapshot is open between its steps."""

    _served: ServedGeneration | None = None
    _partition: Partition
    _first: Position  # where the history begins that was read without a gap
    _position: Position
    _oldest_ms: int | None = None

    def __init__(self, access: TableAccess, key: bytes, start: Offset, step_changes: int, step_bytes: int) -> None:
        self._access = access
        self._key = key
        self._at, self._skip = start, 0
        self._limit = min(FIRST_CHANGES, step_changes)
        self._step_changes, self._step_bytes = step_changes, step_bytes

    def step(self, found: _Found) -> bool:
        """Read a part; return whether there is more."""
        access = self._access
        with access.store.snapshot() as snapshot:
            served = access.served(snapshot)
            if self._served is None:
                self._begin(snapshot, served)
            elif served.store_id != self._served.store_id:
                raise PartitionUnavailable(access.table.name, self._partition, "its table has been made anew")
            self._position = position = access.live(snapshot, served, self._partition)
            is_anew = position.incarnation_id != self._first.incarnation_id
            if is_anew or self._at < position.history_start:
                found.forget()
                self._begin_at(snapshot, served, position)
                self._at, self._skip = position.history_start, 0
            changes = snapshot.history(
                served.store_id, self._partition, start=self._at, limit=self._limit + 1, skip=self._skip
            )
        more = changes[self._limit :]
        changes = changes[: self._limit]
        found.add(changes)
        if not more:
            return False
        # Several changes may have one offset; those of it that were read are passed over next time.
        at = more[0].offset
        self._skip = sum(1 for each in changes if each.offset == at) + (self._skip if at == self._at else 0)
        self._at = at
        mean = sum(len(each.row or b"") + len(each.before or b"") for each in changes) // len(changes)
        self._limit = min(2 * self._limit, self._step_changes, max(1, self._step_bytes // max(1, mean)))
        return True

    def _begin(self, snapshot: Snapshot, served: ServedGeneration) -> None:
        self._served = served
        places = self._access.places_of(self._key, served.partition_count)
        # Where any partition may have a key, it is the first that has its row, as for a Get; or the first that had one.
        stored = {each: snapshot.get_stored(served.store_id, each, self._key) for each in places}
        had = [each for each, row in stored.items() if row is not None]
        has = [each for each in had if (row := stored[each]) is not None and row.row is not None]
        self._partition = next(iter([*has, *had, *places]))
        self._begin_at(snapshot, served, self._access.live(snapshot, served, self._partition))

    def _begin_at(self, snapshot: Snapshot, served: ServedGeneration, position: Position) -> None:
        self._first = position
        oldest = snapshot.history(served.store_id, self._partition, start=position.history_start, limit=1)
        self._oldest_ms = oldest[0].time_ms if oldest else None

    def answer(self, found: _Found) -> GetHistoryResponse:
        """Return the answer, after the last step."""
        assert self._served is not None
        answer = GetHistoryResponse(
            table=self._access.table.name,
            generation=self._served.generation,
            partition=self._partition,
            changes=found.newest_first(),
            truncated=found.truncated,
            history_start=self._first.history_start,
            next_offset=self._position.next_offset,
        )
        if self._oldest_ms is not None:
            answer.history_start_time.FromMilliseconds(self._oldest_ms)
        return answer
