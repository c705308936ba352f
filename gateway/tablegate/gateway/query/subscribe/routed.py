"""Subscribe: the rows, then every change, from whichever gateways have the partitions."""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from google.protobuf.message import Message
from tablegate.gateway.cluster.directory import Peer
from tablegate.gateway.cluster.forward_token import ForwardToken
from tablegate.gateway.cluster.forwarding import PeerFailed
from tablegate.gateway.contract.catalogue import SubscribeQuery
from tablegate.gateway.contract.types import Offset, Partition
from tablegate.gateway.query.call import Call, StreamHandler
from tablegate.gateway.query.errors import PartitionUnavailable, ShuttingDown, TableRebuilt, resume_token_refused
from tablegate.gateway.query.live_table import LiveTable
from tablegate.gateway.query.requests import parse
from tablegate.gateway.query.router import Router, Scope, told
from tablegate.gateway.query.serving import ServedGeneration, TableAccess
from tablegate.gateway.query.subscribe.local import Asked, Pace, SubscribePlan, SubscribeRun
from tablegate.gateway.query.subscribe.merged_cursor import MergedCursor
from tablegate.gateway.query.subscribe.partition_stream import PartCall, PartitionStream
from tablegate.gateway.query.subscribe.sources import Group, PartitionSources
from tablegate.gateway.stores.base import Phase, Position, StoreUnavailable
from tablegate.internal.v1.tokens_pb2 import TOKEN_KIND_SUBSCRIBE
from tablegate.v1.query_pb2 import (
    SUBSCRIBE_PHASE_CATCHING_UP,
    SUBSCRIBE_PHASE_CURRENT,
    SUBSCRIBE_PHASE_RESET,
    SubscribePhase,
    SubscribeProgress,
)

LOOK_S = 1.0  # how often it is looked whether gateways still live, and where those partitions are that nobody gives
AGAIN_S = 0.5  # the same, while there are such
SILENT_TIMES = 3  # so many missed messages of progress, and a moment, mean a dead stream
SILENT_S = 2.0
PATIENCE_S = 2.0  # for partitions that nobody gives, while this gateway's store is away: others may have just left


def subscribe_handler(query: SubscribeQuery, access: TableAccess, live: LiveTable) -> StreamHandler:
    """Return the handler of `query`."""
    plan = SubscribePlan(query, access, live)

    async def handle(data: bytes, call: Call) -> AsyncIterator[bytes]:
        request = parse(query.request_class, data)
        asked = plan.asked(request)
        scope = access.scope(call)
        pace = Pace(call, asked.progress_s, is_part=scope is not None)
        is_here = True
        while is_here:
            run = SubscribeRun(plan, asked, call, pace, scope)
            is_here = False
            try:
                async with aclosing(run.messages()) as messages:
                    async for message in messages:
                        yield message
            except (PartitionUnavailable, StoreUnavailable) as missing:
                if scope is not None or access.router is None:
                    raise
                is_here = run.is_open and isinstance(missing, PartitionUnavailable)
            asked = replace(asked, resume_token=run.token())
        router = access.router
        assert router is not None, "a run ends with an error"
        async with aclosing(RoutedSubscription(plan, router, request, asked, call, pace).messages()) as messages:
            async for message in messages:
                yield message

    return handle


class RoutedSubscription:
    """One stream that several gateways give. `_cursor` says where a copy is that has all that was yielded.

    What they give goes on as it came, with a token of this stream. They give their rows one after the other, so that a
    token has one frontier; meanwhile those who have given theirs give changes. When one ends, or lives no more, others
    go on from the cursor, for those partitions alone. A running part stays where it is, wherever its partitions move.

    On a table with retention a partition is given by the same gateway as before, also to who comes back with a token:
    another store has removed what is expired at its own time, and begins the stream anew.
    """

    _life: ServedGeneration
    _partitions: Sequence[Partition]  # that are selected

    def __init__(
        self, plan: SubscribePlan, router: Router, request: Message, asked: Asked, call: Call, pace: Pace
    ) -> None:
        self._plan = plan
        self._access = plan.access
        self._router = router
        self._request = request
        self._asked = asked
        self._call = call
        self._pace = pace
        self._cursor = MergedCursor()
        self._begins_live = False  # nothing is said until each part has said from where on it gives changes
        self._parts: list[PartitionStream] = []
        self._ended: set[asyncio.Future[None]] = set()
        self._givers = PartitionSources(plan.access, router)
        self._looks_s = 0.0  # when it is next looked who gives what
        self._away: StoreUnavailable | None = None  # of this gateway's store, when it was last looked at
        self._is_asked = False  # somebody for each partition
        self._given_s = -math.inf  # when each of them was last known to speak
        self._told_current = False
        self._waiting: asyncio.Future[None] | None = None

    async def messages(self) -> AsyncGenerator[bytes, None]:
        """Yield the stream's messages, until the stream has to end."""
        self._plan.live.on_shutdown.add(self._wake)
        try:
            if not self._open():
                yield self._reset()
            while True:
                if (end := self._pace.ending()) is not None:
                    if not self._begins_live:
                        yield self._said()
                    raise end
                if self._look():
                    yield self._reset()
                    continue
                message = self._begun() if self._begins_live else self._next()
                if message is not None:
                    yield message
                elif not self._has_news:
                    if not self._begins_live and not self._pace.seconds_to_progress():
                        yield self._said()
                    await self._wait()
        finally:
            await self._leave()

    async def _leave(self) -> None:
        self._plan.live.on_shutdown.discard(self._wake)
        self._end(self._parts)
        if self._ended:
            await asyncio.wait(self._ended)

    # Where it starts.

    def _open(self) -> bool:
        """Find where to start from; return whether the client has a copy, or wants none."""
        self._use(self._access.held().life)
        if self._asked.resume_token:
            return self._resume()
        self._begins_live = self._asked.starts_live
        return self._begins_live

    def _use(self, life: ServedGeneration) -> None:
        self._life = life
        self._partitions = self._asked.select(life.partition_count).partitions

    def _resume(self) -> bool:
        """Go on from the token; return False where only a new snapshot helps. Raise `InvalidResumeToken`."""
        try:
            token = self._access.open_token(
                self._asked.resume_token,
                kind=TOKEN_KIND_SUBSCRIBE,
                request_hash=self._asked.request_hash,
                life=self._life,
                refused=resume_token_refused,
            )
        except TableRebuilt:
            return False
        if token.changelog_topic_id != self._life.manifest.changelog_topic_id:
            return False
        self._cursor.take(token)
        return True

    # What it says.

    def _reset(self) -> bytes:
        """Begin a new snapshot, and return the message that says so."""
        self._end(self._parts)
        self._cursor = MergedCursor()
        self._looks_s = 0.0
        return self._message(b"", SUBSCRIBE_PHASE_RESET)

    def _said(self, changes: bytes = b"") -> bytes:
        """Return a message with changes as they are on the wire."""
        return self._message(changes, SUBSCRIBE_PHASE_CURRENT if self._is_current else SUBSCRIBE_PHASE_CATCHING_UP)

    def _message(self, changes: bytes, phase: SubscribePhase) -> bytes:
        access, life, cursor = self._access, self._life, self._cursor
        self._pace.told_s, self._told_current = time.monotonic(), phase == SUBSCRIBE_PHASE_CURRENT
        token = cursor.token(access, life, self._asked.request_hash, self._partitions)
        read_info = None
        if self._told_current:
            as_of_ms = {partition: part.as_of_ms for part in self._parts for partition in part.partitions}
            positions = {
                each: Position(cursor.marks[each].offset, as_of_ms[each], Phase.LIVE, history_start=Offset(0))
                for each in self._partitions
            }
            read_info = access.read_info(life, positions)
        return self._plan.encoder.joined(changes, SubscribeProgress(phase=phase, resume_token=token), read_info)

    @property
    def _is_current(self) -> bool:
        """Return whether all is given, and the copy is whole by what each gateway said last."""
        given = sum(len(part.partitions) for part in self._parts)
        return given == len(self._partitions) and all(part.is_current for part in self._parts)

    # What the parts say.

    @property
    def _has_news(self) -> bool:
        if any(part.has_ended for part in self._parts):
            return True
        heard = [part.has_message for part in self._parts]
        return all(heard) if self._begins_live else any(heard)

    def _next(self) -> bytes | None:
        """Take a message of a part, in turns; return what the client is told of it, if anything."""
        part = next((each for each in self._parts if each.has_message), None)
        if part is None:
            return None
        self._parts.remove(part)
        self._parts.append(part)
        changes, progress = self._plan.encoder.split(part.take())
        if progress.phase == SUBSCRIBE_PHASE_RESET:
            return self._reset() if self._cursor.has_any(part.partitions) else None
        self._note(part, progress)
        if changes or (self._is_current and not self._told_current):
            return self._said(changes)
        return None

    def _begun(self) -> bytes | None:
        """Return the first message, of all parts together, once each has said from where on it gives changes."""
        if not all(part.has_message for part in self._parts):
            return None
        changes = b""
        for part in self._parts:
            its_changes, progress = self._plan.encoder.split(part.take())
            self._note(part, progress)
            changes += its_changes
        self._begins_live = False
        return self._said(changes)

    def _note(self, part: PartitionStream, progress: SubscribeProgress) -> None:
        """Move to where a part is."""
        token = self._access.open_token(
            progress.resume_token,
            kind=TOKEN_KIND_SUBSCRIBE,
            request_hash=self._asked.request_hash,
            life=self._life,
            refused=resume_token_refused,
        )
        self._cursor.take(token)
        part.note(progress)
        if part.is_filling and all(self._cursor.is_done(partition) for partition in part.partitions):
            part.is_filling = False
            self._looks_s = 0.0  # the next may fill

    # Who gives what.

    def _look(self) -> bool:
        """See to it that all partitions are given; return whether the stream begins anew."""
        now_s = time.monotonic()
        if now_s < self._looks_s and not any(part.has_ended for part in self._parts):
            return False
        if self._is_asked and self._parts and all(part.has_spoken for part in self._parts):
            self._given_s = now_s
        self._away = None
        self._let_go()
        here: Mapping[Partition, Position] = {}
        try:
            with self._access.store.snapshot() as snapshot:
                life = self._access.life(snapshot)
                is_anew = life.manifest.changelog_topic_id != self._life.manifest.changelog_topic_id
                if is_anew or life.generation != self._life.generation:
                    self._use(life)
                    self._end(self._parts)
                    if not self._begins_live:
                        return True
                self._life = life
                found = {each: self._access.live_position(snapshot, life, each) for each in self._free()}
                here = {each: position for each, position in found.items() if position is not None}
        except StoreUnavailable as away:
            self._away = away
        if free := self._free():
            self._give(free, here)
        self._looks_s = now_s + (AGAIN_S if self._free() else LOOK_S)
        return False

    def _free(self) -> list[Partition]:
        """Return the partitions that nobody gives."""
        given = {partition for part in self._parts for partition in part.partitions}
        return [partition for partition in self._partitions if partition not in given]

    def _let_go(self) -> None:
        """Let go of parts that have ended, or whose gateways do not live; raise what others would say, too."""
        silent_max_s = SILENT_TIMES * self._asked.progress_s + SILENT_S
        for part in list(self._parts):
            is_gone = part.silent_s > silent_max_s or not self._givers.is_alive(part.peer)
            if is_gone or part.has_ended:
                self._end([part])
                self._givers.left(part.peer, has_spoken=part.has_spoken)
                self._check(part.error)

    def _check(self, error: Exception | None) -> None:
        """Raise an error that another gateway would make no better."""
        if isinstance(error, StoreUnavailable):
            self._away = error
        elif isinstance(error, PeerFailed):
            if not error.is_elsewhere_for_stream:
                raise told(error, self._access.table.name)
        elif error is not None and not isinstance(error, (PartitionUnavailable, ShuttingDown)):
            raise error

    def _end(self, parts: Sequence[PartitionStream]) -> None:
        for part in list(parts):
            self._parts.remove(part)
            ended = part.cancel()
            self._ended.add(ended)
            ended.add_done_callback(self._ended.discard)

    def _give(self, free: Sequence[Partition], here: Mapping[Partition, Position]) -> None:
        """Ask for the partitions that nobody gives, as far as somebody may; wait for the others.

        Raise `PartitionUnavailable` instead where nothing was said yet, `StoreUnavailable` where this gateway's store
        is away for long.
        """
        givers = {
            partition: self._cursor.giver_of(partition, here[partition].life_id if partition in here else None)
            for partition in free
        }
        groups = self._givers.groups(free, here, givers, self._life.generation)
        found = {partition for _, partitions in groups for partition in partitions}
        missing = next((partition for partition in free if partition not in found), None)
        self._is_asked = missing is None
        if self._away is not None and not self._is_asked and time.monotonic() > self._given_s + PATIENCE_S:
            raise self._away
        if self._begins_live and missing is not None:
            raise PartitionUnavailable(self._access.table.name, missing, "no gateway that lives has it")
        fills = self._filling(groups)
        for number, (peer, partitions) in enumerate(groups):
            ready = partitions
            if number != fills and not self._begins_live:
                ready = [partition for partition in partitions if self._cursor.is_done(partition)]
            if ready:
                self._ask(peer, ready, is_filling=number == fills)

    def _filling(self, groups: Sequence[Group]) -> int | None:
        """Return the index of the group whose rows are taken next; None where one is at it, or nobody can."""
        cursor = self._cursor
        if self._begins_live or any(part.is_filling for part in self._parts):
            return None
        for number, (_, partitions) in enumerate(groups):
            if cursor.filling in partitions if cursor.filling is not None else not all(map(cursor.is_done, partitions)):
                return number
        return None

    def _ask(self, peer: Peer | None, partitions: Sequence[Partition], *, is_filling: bool) -> None:
        """Begin a part."""
        access, plan, generation = self._access, self._plan, self._life.generation
        token = ""
        if not self._begins_live:
            token = self._cursor.token(access, self._life, self._asked.request_hash, partitions)
        if peer is None:
            asked, call = replace(self._asked, resume_token=token), PartCall(self._call)
            pace = Pace(call, asked.progress_s, is_part=True)
            messages = SubscribeRun(plan, asked, call, pace, Scope(generation, partitions, "")).messages()
        else:
            request: Any = plan.query.request_class()
            request.CopyFrom(self._request)
            getattr(request, plan.options_name).resume_token = token
            mark = ForwardToken(access.table.name, generation, tuple(partitions))
            left_s = self._call.time_left_s()
            messages = self._router.stream(peer, plan.query.path, request.SerializeToString(), mark, left_s)
        self._parts.append(PartitionStream(peer, partitions, messages, self._wake, is_filling=is_filling))

    # Waiting.

    async def _wait(self) -> None:
        """Return when a part has news, when it is time to look or to say something, or at the toll."""
        timeout_s = max(0.0, self._looks_s - time.monotonic())
        if not self._begins_live:
            timeout_s = min(timeout_s, self._pace.seconds_to_progress())
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        timer = loop.call_later(timeout_s, self._wake)
        try:
            await self._waiting
        finally:
            timer.cancel()
            self._waiting = None

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
