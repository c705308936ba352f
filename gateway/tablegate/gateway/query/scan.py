"""Scan: every row that passes the filters, partition by partition, by key.

How it works: the partitions that are left are cut into pieces, a piece being a run of partitions that one source has:
this gateway's store, or another gateway that has the next partition. Pieces are read one after the other: this
gateway's in short snapshots, another's as a stream whose messages go on as they came, each with a token of this scan.
Where a source fails, the next piece goes on behind the last row that was given, on whoever has the partition then. So
the state of a scan is one token: the partition, the last key, how many rows were given, and up to where what is left
was read or known when the scan began. Whoever goes on has to have that, and is waited for; where it does not get there,
another replica is asked.

A request may ask for slices: tokens of this kind that end before a partition, from which several streams read the table
side by side. All are of one generation, and none is older than what was known when they were made.

A gateway that stands alone has one piece: all that is left, or the error why it cannot be read. That is so for a scan
that another gateway asks for, too.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from contextlib import aclosing, suppress
from typing import NamedTuple

from tablegate.gateway.cluster.directory import Peer
from tablegate.gateway.cluster.scatter import PeerFailed
from tablegate.gateway.contract.catalogue import ScanQuery
from tablegate.gateway.contract.lineage import lineage_of
from tablegate.gateway.contract.tokens import ReadPositions, positions_of
from tablegate.gateway.contract.types import Offset, Partition
from tablegate.gateway.query.call import Call, StreamHandler
from tablegate.gateway.query.errors import (
    NotCaughtUp,
    PartitionUnavailable,
    QueryError,
    TableRebuilt,
)
from tablegate.gateway.query.forwarding import RETRY_S, error_for, heard_by_s
from tablegate.gateway.query.requests import parse
from tablegate.gateway.query.serving import ServedGeneration, TableAccess, read_positions
from tablegate.gateway.query.store_scan import Scanned, ScanPlan, StoreScan, check_call
from tablegate.gateway.stores.base import Phase, Position, StoreUnavailable
from tablegate.internal.v1.tokens_pb2 import TOKEN_KIND_CONSISTENCY
from tablegate.v1.query_pb2 import ReadInfo, ScanProgress

CHECK_S = 1.0  # how often a scan that a gateway is silent on is checked: whether it is to go on, and with it


def scan_handler(query: ScanQuery, access: TableAccess) -> StreamHandler:
    """Return the handler of `query`."""
    plan = ScanPlan(query, access)

    def handle(data: bytes, call: Call) -> AsyncIterator[bytes]:
        return Scan(plan, data, call).messages()

    return handle


class _Piece(NamedTuple):
    """A run of partitions, and the gateway that reads them; None: this one."""

    peer: Peer | None
    partitions: Sequence[Partition]


class Scan:
    """A scan, from a request to its messages."""

    _scanned: Scanned
    _partitions: Sequence[Partition]
    _is_new: bool  # whether it goes on behind nothing

    def __init__(self, plan: ScanPlan, data: bytes, call: Call) -> None:
        """Parse a request; raise `InvalidField` or `ForeignForward`."""
        self._plan = plan
        self._access = plan.access
        self._router = plan.access.router
        self._call = call
        self._data = data
        self._request = request = parse(plan.query.request_class, data)
        self._tests = plan.read_filters(request)
        self._rows_max = plan.rows_max(request)
        self._slice_count = plan.slice_count(request)
        self._trim = plan.read_mask(request)
        plan.requirement(request, None)  # refused at once, where it is none
        forwarded = call.forwarded
        self._scope = None if forwarded is None else plan.access.scope(forwarded)
        self._may_ask_others = self._scope is None and self._router.is_clustered
        self._failed: set[str] = set()  # gateways, maybe this one, since the last message
        self._failure: QueryError | None = None
        self._away: StoreUnavailable | None = None  # of this gateway's store, when it was last read
        self._given_s = time.monotonic()  # when the last message was, or, before any, when it began
        self._has_given = False

    async def messages(self) -> AsyncGenerator[bytes, None]:
        """Yield the messages: at least one, and the last one tells that all is read."""
        await self._open()
        scanned = self._scanned
        if self._slice_count and self._is_new:
            yield scanned.slices(self._partitions, self._slice_count)
            return
        if not (remaining := self._remaining()) or scanned.rows_left() == 0:
            async for message in StoreScan(self._plan, scanned, self._tests, ()).messages(self._call):
                yield message
            return
        while remaining and scanned.rows_left() != 0:
            check_call(self._call)
            try:
                piece = self._piece(remaining)
            except TableRebuilt:
                if self._has_given or not self._is_new:
                    raise
                await self._open()  # nothing was given of the generation before
                remaining = self._remaining()
                continue
            if piece is None:
                await self._wait(remaining[0])
                continue
            source = self._local(piece) if piece.peer is None else self._remote(piece, piece.peer)
            async with aclosing(source) as messages:
                async for message in messages:
                    yield message
                    self._failed.clear()
                    self._given_s, self._has_given = time.monotonic(), True
            remaining = self._remaining()

    async def _open(self) -> None:
        """Find where to start; raise `InvalidResumeToken` or `TableRebuilt`, or why nothing can be read."""
        plan, access, scope = self._plan, self._access, self._scope
        token_text, some = plan.token_text(self._request), None
        if scope is not None:
            token_text, some = scope.resume_token or token_text, scope.partitions
        walked = plan.opened_token(self._request, token_text)
        if self._may_ask_others:
            served = access.view().served
        else:
            # A lone source is opened as a whole, before anything is given: nobody else could go on with the rest.
            served = await plan.opened(plan.requirement(self._request, walked), self._call, some)
        if scope is not None:
            scope.check(access.table.name, served.generation)
        token = plan.resumed(self._request, token_text, served)
        partitions = served.partitions if some is None else sorted(some)
        end = token.end_partition or served.partition_count
        self._partitions = [each for each in partitions if each < end]
        self._is_new = not token_text
        self._scanned = Scanned(plan, served, token, self._positions_here(served), rows_max=self._rows_max)

    def _positions_here(self, served: ServedGeneration) -> ReadPositions:
        """Return up to where this gateway has what is live here: rows that are there are to be given."""
        access, found = self._access, {}
        with suppress(StoreUnavailable, PartitionUnavailable), access.store.snapshot() as snapshot:
            if access.served(snapshot).generation == served.generation:
                for partition in self._partitions:
                    position = access.live_position(snapshot, served, partition)
                    if position is not None:
                        found[partition] = position
        return read_positions(found)

    def _remaining(self) -> Sequence[Partition]:
        """Return the partitions that are not read to their end."""
        return [each for each in self._partitions if each >= self._scanned.token.partition]

    async def _wait(self, partition: Partition) -> None:
        """Wait for somebody to have a partition; raise why nobody has where the wait is over.

        Before its first message it waits as other calls do: for long only while gateways switch to a generation.
        """
        access, end_s = self._access, self._given_s + self._access.limits.retries_s
        if not self._has_given:
            end_s = heard_by_s(access, self._given_s, end_s)
        if time.monotonic() + RETRY_S > end_s:
            text = "no live gateway has it"
            raise self._away or self._failure or PartitionUnavailable(access.table.name, partition, text)
        self._failed.clear()
        await access.notifier.wait(RETRY_S)

    def _piece(self, remaining: Sequence[Partition]) -> _Piece | None:
        """Return what is read next, None where nobody has it; raise `TableRebuilt`."""
        if not self._may_ask_others:
            return _Piece(None, remaining)
        access, generation = self._access, self._scanned.served.generation
        view = access.view(lambda now: remaining if now.generation == generation else ())
        # A scan is of one generation from its first row to its last: rows of two would be neither table.
        if view.away is None and view.served.generation != generation:
            raise TableRebuilt(access.table.name)
        local: Collection[Partition] = ()
        # This gateway's store is tried again after a message from somebody, or after a wait: a store that is away stays
        # so for a moment.
        if self._router.directory.own_id not in self._failed:
            local, self._away = frozenset(view.partitions), view.away
        is_local = [each in local for each in remaining]
        if is_local[0]:
            return _Piece(None, remaining[: _run_length(is_local)])
        # The best gateway for the first partition reads on as far as it has partitions and this one has not.
        peers = self._router.candidates(access.table.name, remaining[0], generation=generation, without=self._failed)
        if not peers:
            return None
        is_there = [not here and self._has(peers[0], each) for each, here in zip(remaining, is_local, strict=True)]
        return _Piece(peers[0], remaining[: _run_length(is_there)])

    def _has(self, peer: Peer, partition: Partition) -> bool:
        generation = self._scanned.served.generation
        return peer in self._router.directory.replicas(self._access.table.name, partition, generation)

    async def _local(self, piece: _Piece) -> AsyncGenerator[bytes, None]:
        """Yield what this gateway has; end where it has a partition no more, or its store is away, and others go on."""
        try:
            if self._may_ask_others:
                requirement = self._plan.requirement(self._request, self._scanned.walked())
                await self._plan.opened(requirement, self._call, piece.partitions)
            source = StoreScan(self._plan, self._scanned, self._tests, piece.partitions, self._trim)
            async for message in source.messages(self._call):
                yield message
        except (PartitionUnavailable, StoreUnavailable, NotCaughtUp) as error:
            if not self._may_ask_others:
                raise
            if isinstance(error, StoreUnavailable):
                self._failed.add(self._router.directory.own_id)
                self._away = error
            elif isinstance(error, NotCaughtUp):
                self._failed.add(self._router.directory.own_id)
                self._failure = error

    async def _remote(self, piece: _Piece, peer: Peer) -> AsyncGenerator[bytes, None]:
        """Yield what another gateway gives; end where it has failed and a replica may go on."""
        scanned, name = self._scanned, self._access.table.name
        # The forward begins with a resume token of this scan. So the other gateway needs no protocol of its own: it
        # goes on as it would for a client.
        resume_token = scanned.signed_token(to_peer=True)
        token = self._access.forward_token(scanned.served.generation, piece.partitions, resume_token)
        path, left_s = self._plan.query.path, self._call.time_left_s()
        messages = self._router.stream(peer, path, self._data, token, left_s)

        def check() -> None:
            check_call(self._call)
            # A gateway that hangs keeps its connection open and says nothing. That it died, or gave the partition away,
            # is heard from the cluster.
            if not self._has(peer, Partition(scanned.token.partition)):
                raise _Gone

        try:
            async with aclosing(_watched(messages, check)) as answered:
                async for message in answered:
                    yield self._rewritten(message)
        except _Gone:
            self._failed.add(peer.gateway_id)
        except PeerFailed as error:
            self._failure = error_for(error, name)
            if not error.another_may_continue:
                raise self._failure from None
            self._failed.add(peer.gateway_id)
        else:
            # The other gateway's last message says where it stopped reading, and not that its piece is done.
            if scanned.rows_left() != 0:
                scanned.token.partition, scanned.token.after_key = piece.partitions[-1] + 1, b""

    def _rewritten(self, message: bytes) -> bytes:
        """Return the message of another gateway as one of this scan: the same rows, another token."""
        plan, scanned = self._plan, self._scanned
        parts = plan.splitter.split(message)
        # Without progress in the response the last row says how far the other gateway is; so its key is decoded.
        if plan.query.progress is None:
            partition, after_key = scanned.token.partition, scanned.token.after_key
            if parts.count:
                scanned.read_unnamed()
                after_key = self._access.key_of_row(parts.last)
                partition = self._access.partition_of(after_key, scanned.served.partition_count)
        else:
            progress = ScanProgress.FromString(parts.progress)
            token = plan.resumed(self._request, progress.resume_token, scanned.served)
            partition, after_key = token.partition, token.after_key
            self._record(progress.read_info)
        return scanned.message(parts.repeated, parts.count, partition=partition, after_key=after_key)

    def _record(self, info: ReadInfo) -> None:
        """Record where another gateway has read."""
        served = self._scanned.served
        token = self._access.signer.open(
            info.consistency_token,
            kind=TOKEN_KIND_CONSISTENCY,
            table=self._access.table.name,
            generation=served.generation,
        )
        as_of_ms, read = info.as_of_time.ToMilliseconds(), positions_of(token)
        if read.everything:
            self._scanned.read_unnamed(as_of_ms)
        for partition, place in read.places.items():
            position = Position(place.next_offset, as_of_ms, Phase.LIVE, Offset(0), lineage=lineage_of(place))
            self._scanned.read_by_other(partition, position)


class _Gone(Exception):
    """The gateway that is asked is not there any more."""


async def _next(messages: AsyncGenerator[bytes, None]) -> bytes | None:
    """Return the next message, None at the end. (A task of `anext` with a default is not cancelled well.)"""
    try:
        return await anext(messages)
    except StopAsyncIteration:
        return None


async def _watched(messages: AsyncGenerator[bytes, None], check: Callable[[], None]) -> AsyncGenerator[bytes, None]:
    """Yield the messages, one asked for at a time; while there is none, check each `CHECK_S`, which may raise."""
    async with aclosing(messages):
        while True:
            coming = asyncio.ensure_future(_next(messages))
            try:
                while not (await asyncio.wait({coming}, timeout=CHECK_S))[0]:
                    check()
                message = coming.result()
            finally:
                if not coming.done():
                    coming.cancel()
                    await asyncio.wait({coming})
            if message is None:
                return
            yield message


def _run_length(holds: Sequence[bool]) -> int:
    """Return how many of the first hold."""
    return holds.index(False) if False in holds else len(holds)
