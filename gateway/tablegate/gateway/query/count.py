"""Count: how many rows a run of keys has, or of an index, that pass the filters. The number is exact.

How it works: the rows of a partition are read in slices, each in a short snapshot, as all others are to be served
meanwhile. Rows change between two slices. So a slice first reads the changes since the one before, and corrects the
number by those whose rows were counted, or would have been: the ones whose places are up to where was read. After the
last slice the number is that of the partition at the slice's position, as if it had been counted in that moment.
Where the history does not reach back to the slice before, the partition is counted anew.

It is a subscriber's cursor (`query.subscribe.cursor`) that keeps no rows. Partitions are counted one after the other,
here or by the gateways that have them, and each number is exact at a position of its own, which the read info has.

A count is of one time: what expires while it goes on is counted, unless it is removed before it is read.

Decision: docs/decisions/0134-counts-are-corrected-by-the-history.md
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError, Message
from google.rpc import code_pb2
from google.rpc.status_pb2 import Status

from tablegate.gateway.cluster.directory import Peer
from tablegate.gateway.cluster.scatter import PeerFailed
from tablegate.gateway.contract.catalogue import CountQuery
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.contract.wire import FieldEncoder, varint
from tablegate.gateway.query.call import Call, UnaryHandler
from tablegate.gateway.query.consistency import ConsistencyRequirement, requirement_reader, when_fresh
from tablegate.gateway.query.errors import (
    DeadlineExceeded,
    NotCaughtUp,
    PartitionUnavailable,
    StoreAway,
    status_of,
)
from tablegate.gateway.query.forwarding import RETRY_S, TIME_PART, gather
from tablegate.gateway.query.range import Page, Show, order_of, partitions_of, shower
from tablegate.gateway.query.requests import filters_reader, parse
from tablegate.gateway.query.serving import Scope, ServedGeneration, TableAccess, error_for_store, several_trailer
from tablegate.gateway.query.subscribe.cursor import (
    ChangePosition,
    HistoryLost,
    ReadBudget,
    newest_position,
    read_changes,
)
from tablegate.gateway.stores.base import PastChange, Position, Snapshot, StoreReader, StoreUnavailable
from tablegate.gateway.stores.expiry import UnexpiredReader

CHANGES_BYTES_MAX = 1024 * 1024  # of changes that are read in one slice


def count_handler(query: CountQuery, access: TableAccess) -> UnaryHandler:
    """Return the handler of `query`."""
    plan = CountPlan(query, access)

    def handle(data: bytes, call: Call) -> Any:
        return CountRead(plan, data, call).answer()

    return handle


class CountPlan:
    """A Count, compiled."""

    def __init__(self, query: CountQuery, access: TableAccess) -> None:
        self.query = query
        self.access = access
        self.order = order_of(query, access)
        self._read_filters = filters_reader(query.filters, () if access.visible is None else access.visible.view.hidden)
        self.read_requirement = requirement_reader(query, access)
        self._tag = varint(query.count.number << 3)
        self._info_field = None if query.read_info is None else FieldEncoder(query.read_info.number)

    def asked(self, request: Message) -> Page:
        """Return which rows are counted; raise `InvalidField` or `NotAllowed`."""
        return Page(
            self.order.read_bounds(request),
            self._read_filters(request),
            partition_prefix=self.order.partition_prefix(request),
            descending=False,
            size=0,
            token=None,
        )

    def response(self, count: int, info: bytes) -> bytes:
        """Return the response; `info` is left out where the contract has no field for it."""
        number = self._tag + varint(count)
        return number if self._info_field is None else number + self._info_field.encode(info)


class _Counted(NamedTuple):
    """The rows of some partitions; and what they were counted at, here (`positions`) or by another (`infos`)."""

    gateway_id: str
    row_count: int
    positions: Mapping[Partition, Position]
    infos: Sequence[bytes]


class CountRead:
    """A request, parsed."""

    def __init__(self, plan: CountPlan, data: bytes, call: Call) -> None:
        """Parse a request; raise `InvalidField`, `NotAllowed` or `ForeignForward`."""
        self._plan = plan
        self._access = plan.access
        self._call = call
        self._data = data
        request = parse(plan.query.request_class, data)
        self._page = plan.asked(request)
        self._requirement = plan.read_requirement(request)
        forwarded = call.forwarded
        self._scope = None if forwarded is None else plan.access.scope(forwarded)

    async def answer(self) -> bytes:
        """Return the answer; raise a `QueryError`."""
        try:
            if self._scope is not None or not self._access.router.is_clustered:
                return await self._alone()
            return await self._together()
        except StoreUnavailable as away:
            raise error_for_store(away) from away

    async def _alone(self) -> bytes:
        """Return what this gateway's store has: of all partitions that are asked for, or those of the scope."""
        access = self._access
        with access.store.snapshot() as snapshot:
            served = access.served(snapshot)
        if self._scope is not None:
            self._scope.check(access.table.name, served.generation)
        some = None if self._scope is None else self._scope.partitions
        counted = await self._here(served, partitions_of(self._page, access, served) if some is None else some)
        access.note_read(counted.positions.values())
        self._call.set_trailer(access.trailer(served, counted.positions))
        return self._plan.response(counted.row_count, access.read_info(served, counted.positions))

    async def _together(self) -> bytes:
        """Return the sum of what the gateways have that have the partitions, this one among them."""
        access = self._access
        left_s, retries_s = self._call.time_left_s(), access.limits.retries_s
        end_s = time.monotonic() + (retries_s if left_s is None else min(retries_s, left_s * TIME_PART))
        while True:
            view = access.view(lambda served: partitions_of(self._page, access, served))
            try:
                parts = await self._gathered(view.served, view.partitions)
                break
            except PartitionUnavailable:
                # Others may be about to have it, or to switch to another generation.
                if time.monotonic() + RETRY_S > end_s:
                    if view.away is not None:
                        raise view.away from None
                    raise
            await asyncio.sleep(RETRY_S)
        self._call.set_trailer(several_trailer(frozenset(part.gateway_id for part in parts)))
        positions = {partition: position for part in parts for partition, position in part.positions.items()}
        infos = [info for part in parts for info in part.infos]
        has_info = self._plan.query.read_info is not None
        info = access.merged_read_info(view.served, positions, infos) if has_info else b""
        return self._plan.response(sum(part.row_count for part in parts), info)

    async def _gathered(self, served: ServedGeneration, local: Sequence[Partition]) -> list[_Counted]:
        """Return the numbers of all sources that are needed, all of one generation."""
        access, call, may_wait = self._access, self._call, self._requirement is not None
        router = access.router

        async def ask_local(partitions: Sequence[Partition]) -> _Counted:
            try:
                return await self._here(served, partitions)
            except (PartitionUnavailable, NotCaughtUp) as reason:
                raise PeerFailed(status_of(reason)) from None
            except StoreUnavailable:
                raise PeerFailed(status_of(StoreAway())) from None

        async def ask(peer: Peer, partitions: Sequence[Partition]) -> _Counted:
            token = access.forward_token(served.generation, partitions)
            path, left_s = self._plan.query.path, call.time_left_s()
            answer = await router.forwarder.unary(peer, path, self._data, token, left_s, may_wait=may_wait)
            return self._part(peer, answer.message)

        return await gather(
            access,
            partitions_of(self._page, access, served),
            ask,
            call,
            ask_local=ask_local,
            local=local,
            generation=served.generation,
            may_wait=may_wait,
        )

    def _part(self, peer: Peer, message: bytes) -> _Counted:
        """Return what another gateway has counted; raise `PeerFailed` where it is no answer."""
        query = self._plan.query
        try:
            response: Any = query.response_class.FromString(message)
        except DecodeError:
            why = Status(code=code_pb2.INTERNAL, message="an answer that is not to what was asked")
            raise PeerFailed(why) from None
        infos = [] if query.read_info is None else [getattr(response, query.read_info.name).SerializeToString()]
        return _Counted(peer.gateway_id, getattr(response, query.count.name), {}, infos)

    async def _here(self, served: ServedGeneration, partitions: Sequence[Partition]) -> _Counted:
        """Count partitions of this gateway's store, once it is fresh enough; raise why it cannot."""
        access, requirement, plan = self._access, self._requirement, self._plan
        store = access.store.frozen() if isinstance(access.store, UnexpiredReader) else access.store
        show = shower(access, self._page.tests)
        counts = [PartitionCount(plan, self._page, partition, requirement, show) for partition in partitions]

        def attempt() -> bool:
            return count_slice(store, access, served, counts)

        await self._call.turn()
        # Only the beginning may have to wait: what comes later is newer.
        is_done = attempt() if requirement is None else await when_fresh(attempt, requirement, self._call)
        while not is_done:
            await self._call.turn()
            left_s = self._call.time_left_s()
            if left_s is not None and left_s <= 0:
                raise DeadlineExceeded
            is_done = attempt()
        positions = {each.partition: each.position for each in counts if each.position is not None}
        return _Counted(access.router.directory.own_id, sum(each.count for each in counts), positions, ())


class PartitionCount:
    """The number of rows of a partition, as far as they are counted: exact of those up to the place `_after`.

    `position`: at which. It is of the generation that was served when it began.
    """

    def __init__(
        self,
        plan: CountPlan,
        page: Page,
        partition: Partition,
        requirement: ConsistencyRequirement | None,
        show: Show | None,
    ) -> None:
        self.partition = partition
        self._access = plan.access
        self._order = plan.order
        self._page = page
        self._show = show
        self._requirement = requirement
        self._begin()

    def _begin(self) -> None:
        self.count = 0
        self.is_done = False
        self.position: Position | None = None
        self._after: bytes | None = None
        self._changes: ChangePosition | None = None  # up to where they are in the number

    def step(self, snapshot: Snapshot, served: ServedGeneration, end_s: float) -> None:
        """Go on until a time of the monotonic clock, or the end; raise `PartitionUnavailable` or `NotCaughtUp`."""
        self.position = position = self._access.live(snapshot, served, self.partition)
        try:
            is_corrected = self._changes is None or self._correct(snapshot, served, position)
        except HistoryLost:
            self._begin()
            self.position, is_corrected = position, True
        if self._changes is None:
            if self._requirement is not None:
                self._requirement.check(self._access, served, self.partition, position)
            self._changes = newest_position(snapshot, served.store_id, self.partition, position)
        if is_corrected:
            self._count_rows(snapshot, served, end_s)

    def _count_rows(self, snapshot: Snapshot, served: ServedGeneration, end_s: float) -> None:
        show, limit = self._show, self._access.limits.count_read_rows
        run = self._order.run(self._page, self._after)
        while run is not None:
            rows = run.rows(snapshot, served, self.partition, limit)
            self.count += len(rows) if show is None else sum([show(row) is not None for _, row in rows])
            if len(rows) < limit:
                break
            self._after = rows[-1][0]
            if time.monotonic() > end_s:
                return
            run = run.behind(self._after)
        self.is_done = True

    def _correct(self, snapshot: Snapshot, served: ServedGeneration, position: Position) -> bool:
        """Correct the number by what has changed; return whether that is all of it. Raise `HistoryLost`."""
        assert self._changes is not None
        budget = ReadBudget(self._access.limits.count_changes_max, CHANGES_BYTES_MAX)
        changes, self._changes = read_changes(
            snapshot, served.store_id, self.partition, self._changes, position, budget
        )
        expiry = self._access.table.expiry
        now_us = self._access.now_ms() * 1_000
        for change in changes:
            # What is removed as it has expired stays in the number.
            if expiry is None or change.row is not None or not expiry.is_gone(change.key, now_us):
                self.count += self._counts(change, change.row) - self._counts(change, change.before)
        return budget.rows > 0

    def _counts(self, change: PastChange, row: bytes | None) -> bool:
        """Return whether a row, before or after a change, is one of those that are counted so far."""
        if row is None or self._after is None:
            return False
        place = self._order.place(change.key, row, self._page)
        return place is not None and place <= self._after and (self._show is None or self._show(row) is not None)


def count_slice(
    store: StoreReader,
    access: TableAccess,
    served: ServedGeneration,
    counts: Sequence[PartitionCount],
) -> bool:
    """Go on with a count in one snapshot; return whether it is done. Raise as `PartitionCount.step` does."""
    with store.snapshot() as snapshot:
        now = access.served(snapshot)
        Scope(served.generation, None, "").check(access.table.name, now.generation)
        end_s = time.monotonic() + access.limits.count_slice_s
        for each in counts:
            if not each.is_done:
                each.step(snapshot, now, end_s)
                if not each.is_done:
                    return False
    return True
