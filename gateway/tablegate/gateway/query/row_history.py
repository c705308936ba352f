"""GetHistory: how one row has changed, as far back as the history of its partition reaches.

The history of a store is in the order of offsets, for those who follow a partition; nothing finds one key in it. So it
is read from one end to the other, some changes at a time, each part in a snapshot and a turn of its own: a worker goes
on with its other calls between them. Who asks again asks from where the last answer ended, which costs next to nothing.

Where the history is cut meanwhile, up to what is read next or behind it, or begins anew, there is a gap. What was found
before that is forgotten, so that an answer has all changes of the row since its `history_start`.

Rows, and the ones before them, are seen as by the Get: what a view does not show is not there. A gateway that has not
got the partition asks one that has, as for a Get.

Decision: docs/decisions/0173-a-rows-history-is-asked-by-its-get.md
Decision: docs/decisions/0183-a-history-comes-from-who-has-the-row.md
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from google.protobuf.message import DecodeError, Message
from google.rpc import code_pb2
from google.rpc.status_pb2 import Status

from tablegate.gateway.cluster.directory import Peer
from tablegate.gateway.cluster.scatter import PeerFailed
from tablegate.gateway.contract.catalogue import Catalogue, GetQuery
from tablegate.gateway.contract.types import Offset, Partition, read_version
from tablegate.gateway.query.call import Answer, Call, Fields
from tablegate.gateway.query.consistency import ConsistencyRequirement
from tablegate.gateway.query.errors import InvalidField, PartitionUnavailable
from tablegate.gateway.query.forwarding import (
    NotServedHere,
    answer_later,
    failing_as_peer,
    forward_whole,
    gather_all,
    unless_store_away,
)
from tablegate.gateway.query.requests import key_reader, parse
from tablegate.gateway.query.serving import Scope, ServedGeneration, TableAccess, several_trailer
from tablegate.gateway.stores.base import PastChange, Position, Snapshot
from tablegate.v1.status_pb2 import GetHistoryRequest, GetHistoryResponse, RowChange, RowContent

HISTORY_PATH = "/tablegate.v1.GatewayService/GetHistory"
LIMIT, LIMIT_MAX = 100, 1_000  # changes of an answer: unless the request says, and whatever it says
ROWS_BYTES_MAX = 1024 * 1024  # of the rows of an answer; its newest change comes however long that is
STEP_CHANGES = 2_000  # read at once, in some milliseconds
STEP_BYTES = 2 * 1024 * 1024  # of rows that are read at once, as far as the ones before tell: what others wait for
FIRST_CHANGES = 100  # read at first, while nothing tells how large they are


class JsonForm(Protocol):
    """Messages as JSON text."""

    def from_json(self, message_class: type[Message], text: bytes) -> bytes:
        """Return the bytes of a message; raise `InvalidField`."""

    def to_json(self, message_class: type[Message], data: bytes) -> bytes:
        """Return the text of a message."""


class RowHistories:
    """Answers for the Gets by key of a catalogue, whose tables are accessed by `accesses`. One event loop."""

    def __init__(
        self,
        catalogue: Catalogue,
        accesses: Mapping[str, TableAccess],
        json_form: JsonForm,
        *,
        step_changes: int = STEP_CHANGES,
        step_bytes: int = STEP_BYTES,
    ) -> None:
        self.json_form = json_form
        self.step_changes, self.step_bytes = step_changes, step_bytes
        # Long ones are read one after the other: side by side, all of them would end when the last one does, or not in
        # time.
        self.long = asyncio.Lock()
        self._gets = {
            path: (query, accesses[query.table.name])
            for path, query in catalogue.queries.items()
            if isinstance(query, GetQuery) and query.index is None
        }

    def answer(self, data: bytes, call: Call) -> Answer:
        """Return the answer to a GetHistoryRequest, as its caller sees rows; or as another gateway asks for it.

        Raise `InvalidField`, `ForeignForward` or `NotAllowed`; the coroutine raises other `QueryError`s, too.
        """
        request: Any = parse(GetHistoryRequest, data)
        path, forwarded = f"/{request.method.removeprefix('/')}", call.forwarded
        view = None if forwarded is not None else call.view_of(path)
        found = self._gets.get(path)
        if found is None:
            raise InvalidField("method", 'is no Get by key here; send package.Service/Method, of "tablegate tables"')
        query, access = found
        if forwarded is not None:
            view = access.forwarded_view(forwarded)
        if view is not None:
            access = access.seen(view)
        scope = None if forwarded is None else access.scope(forwarded)
        read = _HistoryRead(self, query, access, data, request, call, scope)
        return answer_later(read, read.local)


class _HistoryRead:
    """A request, parsed."""

    requirement: ConsistencyRequirement | None = None

    def __init__(
        self,
        histories: RowHistories,
        query: GetQuery,
        access: TableAccess,
        data: bytes,
        request: Any,
        call: Call,
        scope: Scope | None,
    ) -> None:
        """Parse a request; raise `InvalidField`."""
        self.access = access
        self.call = call
        self.scope = scope
        self._histories = histories
        self._data = data
        self._start, self._limit = Offset(request.start_offset), request.limit or LIMIT
        self._is_json = request.WhichOneof("request") == "json"
        self._row_class = query.table.row_class
        asked = request.message
        if self._is_json:
            asked = histories.json_form.from_json(query.request_class, request.json.encode())
        self._key = key_reader([param.field for param in query.params], query.table.key)(
            parse(query.request_class, asked)
        )
        if request.start_offset < 0:
            raise InvalidField("start_offset", "is negative; send next_offset of the answer before, or leave it out")
        if not 0 <= request.limit <= LIMIT_MAX:
            raise InvalidField("limit", f"is none of 0 to {LIMIT_MAX}; send fewer, or leave it out")

    async def local(self) -> bytes:
        """Return the answer from this gateway's store; raise a `QueryError` or `StoreUnavailable`."""
        return (await self._read(self.scope)).SerializeToString()

    def partitions(self, served: ServedGeneration) -> Iterable[Partition]:
        """Return the key's partition, or all that may have it."""
        return self.access.places_of(self._key, served.partition_count)

    async def remote(self, reason: NotServedHere) -> bytes:
        """Return the answer of another gateway, as it is; or of that which has the row, where any may have it."""
        served = self.access.view().served
        if served.is_anywhere:
            return await self._gathered(served, reason)
        token = self.access.forward_token()
        return await forward_whole(self, reason, HISTORY_PATH, self._data, token, is_long=True)

    async def _read(self, scope: Scope | None) -> GetHistoryResponse:
        """Return the answer from this gateway's store, of the partitions of a scope."""
        histories, access, call = self._histories, self.access, self.call
        found = _Found(self._key, access, self._limit)
        reading = _Reading(access, self._key, self._start, scope, histories.step_changes, histories.step_bytes)
        if reading.step(found):
            async with histories.long:
                await call.turn()
                while reading.step(found):
                    await call.turn()
        call.set_trailer(reading.trailer())
        answer = reading.answer(found)
        if self._is_json:
            for change in answer.changes:
                for name in ("row", "before"):
                    if change.HasField(name):
                        content = getattr(change, name)
                        content.json = histories.json_form.to_json(self._row_class, content.message).decode()
        return answer

    async def _gathered(self, served: ServedGeneration, reason: NotServedHere) -> bytes:
        """Return the answer of who has the row, of all that have partitions, some of which may be here."""
        access, call = self.access, self.call
        ids: set[str] = set()

        async def ask_local(partitions: Sequence[Partition]) -> GetHistoryResponse:
            ids.add(access.router.directory.own_id)
            with failing_as_peer():
                return await self._read(Scope(served.generation, partitions, ""))

        async def ask(peer: Peer, partitions: Sequence[Partition]) -> GetHistoryResponse:
            token = access.forward_token(served.generation, partitions)
            answer = await access.router.forwarder.unary(
                peer, HISTORY_PATH, self._data, token, call.time_left_s(), may_wait=True
            )
            ids.add(peer.gateway_id)
            try:
                return GetHistoryResponse.FromString(answer.message)
            except DecodeError:
                why = Status(code=code_pb2.INTERNAL, message="an answer that is not to what was asked")
                raise PeerFailed(why) from None

        with unless_store_away(reason):
            parts = await gather_all(access, served, ask, call, ask_local=ask_local, may_wait=True)
        call.set_trailer(several_trailer(frozenset(ids)))
        best = min(parts, key=lambda part: (not part.has_row, not part.changes, part.partition))
        return best.SerializeToString()


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
    _has_row = False

    def __init__(
        self,
        access: TableAccess,
        key: bytes,
        start: Offset,
        scope: Scope | None,
        step_changes: int,
        step_bytes: int,
    ) -> None:
        self._access = access
        self._key = key
        self._scope = scope
        self._at, self._skip = start, 0
        self._limit = min(FIRST_CHANGES, step_changes)
        self._step_changes, self._step_bytes = step_changes, step_bytes

    def step(self, found: _Found) -> bool:
        """Read a part; return whether there is more."""
        access = self._access
        with access.store.snapshot() as snapshot:
            served = access.served(snapshot)
            if self._served is None:
                if not self._begin(snapshot, served):
                    return False
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
            if not more:
                self._has_row = self._sees_row(snapshot, served, self._partition)
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

    def _begin(self, snapshot: Snapshot, served: ServedGeneration) -> bool:
        """Find where the row is; return whether there is anything to read."""
        access, scope = self._access, self._scope
        if scope is not None:
            scope.check(access.table.name, served.generation)
        self._served = served
        if not served.is_anywhere:
            self._partition = access.partition_of(self._key, served.partition_count)
            self._begin_at(snapshot, served, access.live(snapshot, served, self._partition))
            return True
        places = served.partitions if scope is None or scope.partitions is None else scope.partitions
        place = self._place_among(snapshot, served, places)
        self._partition = places[0] if place is None else place
        self._position = access.live(snapshot, served, self._partition)
        self._begin_at(snapshot, served, self._position)
        return place is not None

    def _place_among(
        self, snapshot: Snapshot, served: ServedGeneration, places: Sequence[Partition]
    ) -> Partition | None:
        """Return the first of these partitions that has the row, or that had it; None where none has.

        Raise `PartitionUnavailable` where one that may have it is not here.
        """
        access = self._access
        for place in places:
            if access.is_live(snapshot, served, place) and self._sees_row(snapshot, served, place):
                return place
        for place in places:
            access.live(snapshot, served, place)
        if access.visible is not None and access.visible.view.rows:
            # What is left of a deleted row does not tell whose it was. Neither partition nor time of the answer may
            # tell that it was there: so all is as for a row that never was.
            return None
        return next((each for each in places if snapshot.get_stored(served.store_id, each, self._key)), None)

    def _sees_row(self, snapshot: Snapshot, served: ServedGeneration, partition: Partition) -> bool:
        row, visible = snapshot.get(served.store_id, partition, self._key), self._access.visible
        return row is not None and (visible is None or visible.shows(row))

    def _begin_at(self, snapshot: Snapshot, served: ServedGeneration, position: Position) -> None:
        self._first = position
        oldest = snapshot.history(served.store_id, self._partition, start=position.history_start, limit=1)
        self._oldest_ms = oldest[0].time_ms if oldest else None

    def trailer(self) -> Fields:
        """Return what follows the answer, after the last step."""
        assert self._served is not None
        return self._access.trailer(self._served, {self._partition: self._position})

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
            gateway_id=self._access.router.directory.own_id,
            has_row=self._has_row,
        )
        if self._oldest_ms is not None:
            answer.history_start_time.FromMilliseconds(self._oldest_ms)
        return answer
