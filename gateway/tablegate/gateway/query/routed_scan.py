"""Scan: every row that passes the filters, partition by partition, by whichever gateways have the partitions."""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from contextlib import aclosing
from typing import NamedTuple

from google.protobuf.message import Message
from tablegate.gateway.cluster.directory import Peer
from tablegate.gateway.cluster.forward_token import ForwardToken
from tablegate.gateway.cluster.forwarding import PeerFailed
from tablegate.gateway.contract.catalogue import ScanQuery
from tablegate.gateway.contract.types import Offset, Partition
from tablegate.gateway.query.call import Call, StreamHandler
from tablegate.gateway.query.consistency import ConsistencyRequirement
from tablegate.gateway.query.errors import PartitionUnavailable, QueryError, TableRebuilt
from tablegate.gateway.query.filters import Test
from tablegate.gateway.query.requests import parse
from tablegate.gateway.query.router import Router, Scope, told
from tablegate.gateway.query.scan import Scanned, ScanPlan, ScanRun, check
from tablegate.gateway.query.serving import TableAccess
from tablegate.gateway.stores.base import Phase, Position, StoreUnavailable
from tablegate.internal.v1.tokens_pb2 import TOKEN_KIND_CONSISTENCY
from tablegate.v1.query_pb2 import ReadInfo, ScanProgress

PATIENCE_S = 2.0  # for a partition that nobody has: a stream that is broken off costs its client more than a call
AGAIN_S = 0.1
LOOK_S = 1.0  # how often a stream that a gateway is silent on is looked at: whether it is to go on, and with it


def scan_handler(query: ScanQuery, access: TableAccess) -> StreamHandler:
    """Return the handler of `query`."""
    plan = ScanPlan(query, access)

    async def handle(data: bytes, call: Call) -> AsyncIterator[bytes]:
        request = parse(query.request_class, data)
        tests = plan.read_filters(request)
        wish = plan.read_wish(request)
        scope, router = access.scope(call), access.router
        if scope is not None:
            messages = _scoped(plan, request, call, tests, wish, scope)
        elif router is None:
            messages = _alone(plan, request, call, tests, wish)
        else:
            messages = _RoutedScan(plan, router, request, call, tests, wish, data=data).messages()
        async with aclosing(messages):
            async for message in messages:
                yield message

    return handle


async def _alone(
    plan: ScanPlan, request: Message, call: Call, tests: Sequence[Test], wish: ConsistencyRequirement | None
) -> AsyncGenerator[bytes, None]:
    """Yield a scan by this gateway, which has all partitions."""
    life = await plan.opened(wish, call)
    scanned = Scanned(plan, life, plan.resumed(request, plan.token_text(request), life))
    async for message in ScanRun(plan, scanned, tests, _rest(life.partitions, scanned)).messages(call):
        yield message


async def _scoped(
    plan: ScanPlan,
    request: Message,
    call: Call,
    tests: Sequence[Test],
    wish: ConsistencyRequirement | None,
    scope: Scope,
) -> AsyncGenerator[bytes, None]:
    """Yield what another gateway asks for."""
    life = await plan.opened(wish, call, scope.partitions)
    scope.check(plan.access.table.name, life)
    scanned = Scanned(plan, life, plan.resumed(request, scope.resume_token or plan.token_text(request), life))
    partitions = _rest(sorted(life.partitions if scope.partitions is None else scope.partitions), scanned)
    async for message in ScanRun(plan, scanned, tests, partitions).messages(call):
        yield message


def _rest(partitions: Sequence[Partition], scanned: Scanned) -> list[Partition]:
    return [partition for partition in partitions if partition >= scanned.token.partition]


class _Piece(NamedTuple):
    """A run of partitions, and the gateway that reads them; None: this one."""

    peer: Peer | None
    partitions: list[Partition]


class _RoutedScan:
    """A scan over the gateways: a run of partitions is read here, or streamed from a gateway that has it.

    What a gateway gives goes on as it came, with a token of this scan. Where one fails, the next goes on behind the
    last row that was given.
    """

    _scanned: Scanned

    def __init__(
        self,
        plan: ScanPlan,
        router: Router,
        request: Message,
        call: Call,
        tests: Sequence[Test],
        wish: ConsistencyRequirement | None,
        *,
        data: bytes,
    ) -> None:
        self._plan = plan
        self._access = plan.access
        self._router = router
        self._request = request
        self._call = call
        self._tests = tests
        self._wish = wish
        self._data = data
        self._failed: set[str] = set()  # gateways, maybe this one, since the last message
        self._failure: QueryError | None = None
        self._away: StoreUnavailable | None = None  # of this gateway's store, when it was last looked at
        self._given_s = -math.inf  # when the last message was

    async def messages(self) -> AsyncGenerator[bytes, None]:
        """Yield the messages: at least one, and the last one tells that all is read."""
        plan, life = self._plan, self._access.held().life
        token = plan.resumed(self._request, plan.token_text(self._request), life)
        self._scanned = Scanned(plan, life, token)
        if token.partition >= life.partition_count or self._scanned.rows_left() == 0:
            async for message in ScanRun(plan, self._scanned, self._tests, ()).messages(self._call):
                yield message
        while token.partition < life.partition_count and self._scanned.rows_left() != 0:
            check(self._call)
            piece = self._piece(Partition(token.partition))
            if piece is None:
                await self._wait(Partition(token.partition))
                continue
            async with aclosing(self._read(piece) if piece.peer is None else self._asked(piece, piece.peer)) as given:
                async for message in given:
                    yield message
                    self._failed.clear()
                    self._given_s = time.monotonic()

    async def _wait(self, partition: Partition) -> None:
        """Wait for somebody to have a partition; raise why nobody has where that takes long, or nothing was given."""
        if time.monotonic() > self._given_s + PATIENCE_S:
            text = "no gateway that lives has it"
            raise self._away or self._failure or PartitionUnavailable(self._access.table.name, partition, text)
        self._failed.clear()
        await self._access.bell.wait(AGAIN_S)

    def _piece(self, partition: Partition) -> _Piece | None:
        """Return what is read next, None where nobody has it; raise `TableRebuilt`."""
        access, life = self._access, self._scanned.life
        rest = life.partitions[partition:]
        held = access.held(lambda now: rest if now.generation == life.generation else ())
        if held.away is None and held.life.generation != life.generation:
            raise TableRebuilt(access.table.name)
        here: Collection[Partition] = ()
        if self._router.directory.own_id not in self._failed:
            here, self._away = frozenset(held.partitions), held.away
        is_here = [each in here for each in rest]
        if is_here[0]:
            return _Piece(None, rest[: _run_length(is_here)])
        peers = self._router.others(access.table.name, partition, generation=life.generation, without=self._failed)
        if not peers:
            return None
        is_there = [not here and self._has(peers[0], each) for each, here in zip(rest, is_here, strict=True)]
        return _Piece(peers[0], rest[: _run_length(is_there)])

    def _has(self, peer: Peer, partition: Partition) -> bool:
        return peer in self._router.directory.replicas(
            self._access.table.name, partition, self._scanned.life.generation
        )

    async def _read(self, piece: _Piece) -> AsyncGenerator[bytes, None]:
        """Yield what this gateway has; end where it has a partition no more, or its store is away."""
        try:
            await self._plan.opened(self._wish, self._call, piece.partitions)
            async for message in ScanRun(self._plan, self._scanned, self._tests, piece.partitions).messages(self._call):
                yield message
        except PartitionUnavailable:
            return
        except StoreUnavailable as away:
            self._failed.add(self._router.directory.own_id)
            self._away = away

    async def _asked(self, piece: _Piece, peer: Peer) -> AsyncGenerator[bytes, None]:
        """Yield what another gateway gives; end where it has failed and a replica may go on."""
        scanned, name = self._scanned, self._access.table.name
        resume_token = self._access.signer.sign(scanned.token)
        mark = ForwardToken(name, scanned.life.generation, tuple(piece.partitions), resume_token)
        path, left_s = self._plan.query.path, self._call.time_left_s()
        messages = self._router.stream(peer, path, self._data, mark, left_s)

        def look() -> None:
            check(self._call)
            if not self._has(peer, Partition(scanned.token.partition)):
                raise _Gone

        try:
            async with aclosing(_looked_after(messages, look)) as answered:
                async for message in answered:
                    yield self._taken(message)
        except _Gone:
            self._failed.add(peer.gateway_id)
        except PeerFailed as error:
            self._failure = told(error, name)
            if not error.is_elsewhere_for_stream:
                raise self._failure from None
            self._failed.add(peer.gateway_id)
        else:
            if scanned.rows_left() != 0:
                scanned.token.partition, scanned.token.after_key = piece.partitions[-1] + 1, b""

    def _taken(self, message: bytes) -> bytes:
        """Return the message of another gateway as one of this scan."""
        plan, scanned = self._plan, self._scanned
        parts = plan.splitter.split(message)
        if plan.query.progress is None:
            partition, after_key = scanned.token.partition, scanned.token.after_key
            if parts.count:
                after_key = self._access.key_of_row(parts.last)
                partition = self._access.table.partition_of(after_key, scanned.life.partition_count)
        else:
            progress = ScanProgress.FromString(parts.progress)
            token = plan.open_token(progress.resume_token, scanned.token.request_hash, scanned.life)
            partition, after_key = token.partition, token.after_key
            self._note(progress.read_info)
        return scanned.message(parts.repeated, parts.count, partition=partition, after_key=after_key)

    def _note(self, info: ReadInfo) -> None:
        """Take in where another gateway has read."""
        life = self._scanned.life
        name = self._access.table.name
        token = self._access.signer.open(
            info.consistency_token, kind=TOKEN_KIND_CONSISTENCY, table=name, generation=life.generation
        )
        as_of_ms = info.as_of_time.ToMilliseconds()
        for number, next_offset in zip(token.partitions or life.partitions, token.next_offsets, strict=False):
            position = Position(Offset(next_offset), as_of_ms, Phase.LIVE, history_start=Offset(0))
            self._scanned.read_at(Partition(number), position)


class _Gone(Exception):
    """The gateway that is asked is not there any more."""


async def _next(messages: AsyncGenerator[bytes, None]) -> bytes | None:
    """Return the next message, None at the end. (A task of `anext` with a default is not cancelled well.)"""
    try:
        return await anext(messages)
    except StopAsyncIteration:
        return None


async def _looked_after(messages: AsyncGenerator[bytes, None], look: Callable[[], None]) -> AsyncGenerator[bytes, None]:
    """Yield the messages, one asked for at a time; while there is none, look each `LOOK_S`, which may raise."""
    async with aclosing(messages):
        while True:
            coming = asyncio.ensure_future(_next(messages))
            try:
                while not (await asyncio.wait({coming}, timeout=LOOK_S))[0]:
                    look()
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
