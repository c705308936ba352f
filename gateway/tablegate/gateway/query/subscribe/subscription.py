"""Subscribe: the rows, then every change, from whichever gateways have the partitions.

How it works:

1. The source that costs nothing is this gateway's store (`LocalStream`). As long as it serves all partitions, its
   messages are the stream. A gateway that stands alone, or that another gateway asks, never goes further.
2. Otherwise the partitions are divided among sources: this gateway for what it has, and as few others as can be. Each
   source is a stream of its own (`PartitionStream`), and their messages are merged as they come. Changes go on as
   bytes; only the progress is replaced, by a token of this stream.
3. Sources send their rows one after the other: a resume token has one frontier, the key up to which one partition is
   filled. Sources that are done with their rows send changes meanwhile.
4. When a source ends or its gateway dies, its partitions are unassigned, and others go on with them from the cursor.
   A source that runs is left alone, wherever its partitions move: a move costs the client nothing.

On a table with retention a partition is read from the same gateway as before, also for a client that comes back with a
token: another store has removed expired rows at its own time, and can only begin the stream anew.

Debt: `_check_sources` looks at all partitions of a stream once a second; the directory could say which have moved.
"""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from tablegate.gateway.cluster.directory import Peer
from tablegate.gateway.cluster.scatter import PeerFailed
from tablegate.gateway.contract.catalogue import SubscribeQuery
from tablegate.gateway.contract.lineage import lineage_of
from tablegate.gateway.contract.types import Offset, Partition
from tablegate.gateway.query.call import Call, Parked, ParkedStream, StreamHandler
from tablegate.gateway.query.errors import PartitionUnavailable, ShuttingDown, TableRebuilt, resume_token_refused
from tablegate.gateway.query.forwarding import error_for
from tablegate.gateway.query.requests import parse
from tablegate.gateway.query.serving import Scope, ServedGeneration, TableAccess, error_for_store
from tablegate.gateway.query.subscribe.local import Idle, LocalStream, Pace, SubscribePlan
from tablegate.gateway.query.subscribe.messages import MergedCursor, client_token
from tablegate.gateway.query.subscribe.open_streams import OpenStream, Sent
from tablegate.gateway.query.subscribe.publisher import TablePublisher
from tablegate.gateway.query.subscribe.selections import SubscribeRequest
from tablegate.gateway.query.subscribe.sources import Group, PartCall, PartitionSources, PartitionStream
from tablegate.gateway.stores.base import Phase, Position, StoreUnavailable
from tablegate.internal.v1.tokens_pb2 import TOKEN_KIND_SUBSCRIBE
from tablegate.v1.query_pb2 import (
    SUBSCRIBE_PHASE_CATCHING_UP,
    SUBSCRIBE_PHASE_CURRENT,
    SUBSCRIBE_PHASE_RESET,
    SubscribePhase,
    SubscribeProgress,
)

SILENT_TIMES = 3  # so many missed messages of progress, and a moment, mean a dead stream


def subscribe_handler(query: SubscribeQuery, access: TableAccess, publisher: TablePublisher) -> StreamHandler:
    """Return the handler of `query`."""
    plan = SubscribePlan(query, access, publisher)

    def handle(data: bytes, call: Call) -> AsyncIterator[bytes]:
        return Subscription(plan, data, call).messages()

    return handle


class Subscription(OpenStream, ParkedStream):
    """One stream, of whichever sources there are. `_cursor` says where a copy is that has all that was yielded."""

    _served: ServedGeneration
    _partitions: Sequence[Partition]  # that are selected
    # Of several sources. Most streams have but one, and none of these.
    _cursor: MergedCursor
    _streams: list[PartitionStream]
    _ended: set[asyncio.Future[None]]
    _sources: PartitionSources

    def __init__(self, plan: SubscribePlan, data: bytes, call: Call) -> None:
        """Parse a request; raise `InvalidField`, `TooManyKeys` or `ForeignForward`."""
        self._plan = plan
        self._access = plan.access
        self._limits = limits = plan.access.limits
        self._router = plan.access.router
        self._call = call
        self._asked = SubscribeRequest(plan, data)
        forwarded = call.forwarded
        self._scope = None if forwarded is None else plan.access.scope(forwarded)
        self._may_ask_others = self._scope is None and self._router.is_clustered
        self.path, self.is_part, self.opened_s = plan.query.path, self._scope is not None, time.monotonic()
        self._pace = Pace(call, self._asked.progress_s, limits, is_part=self.is_part)
        self._local: LocalStream | None = None  # while its messages are those of the stream
        self._starts_live = False  # nothing is sent until each source has said from where on it sends changes
        self._checks_s = 0.0  # when sources are checked next
        self._away: StoreUnavailable | None = None  # of this gateway's store, when it was last read
        self._is_assigned = False  # each partition, to some source
        self._whole_s = -math.inf  # when each partition was last known to have a source that sends
        self._was_current = False
        self._waiting: asyncio.Future[None] | None = None

    async def messages(self) -> AsyncGenerator[bytes, None]:
        """Yield the stream's messages, until the stream has to end.

        First those of this gateway's store, for as long as it has all partitions: one source needs no merging, its
        messages are those of the stream. Where it stops and others may go on, `_asked` has the token to go on from.
        """
        streams, is_parked = self._plan.publisher.streams, False
        streams.add(self)
        try:
            is_local = True
            while is_local:
                # Where it was parked, that goes on.
                local = self._local or LocalStream(self._plan, self._asked, self._call, self._pace, self._scope)
                self._local, is_local = local, False
                try:
                    async with aclosing(local.messages()) as messages:
                        async for message in messages:
                            yield message
                except (PartitionUnavailable, StoreUnavailable) as reason:
                    if not self._may_ask_others:
                        raise
                    # Once more where it had begun: perhaps it lacks partitions of a table that begins anew.
                    is_local = local.is_open and isinstance(reason, PartitionUnavailable)
                self._asked = self._asked.resumed(local.token())
                self._local = None
            async with aclosing(self._merged()) as merged:
                async for message in merged:
                    yield message
        except Idle:
            is_parked = True
            raise Parked(self) from None
        except StoreUnavailable as error:
            raise error_for_store(error) from error
        finally:
            if not is_parked:
                streams.discard(self)

    def wait(self, wake: Callable[[], None]) -> None:
        """Wait without a task."""
        assert self._local is not None, "only a local stream is parked"
        self._asked.forget_select()
        self._local.wait(wake)

    def leave(self) -> None:
        """End it while it is parked."""
        assert self._local is not None, "only a local stream is parked"
        self._local.leave()
        self._plan.publisher.streams.discard(self)

    def sent(self) -> Sent:
        """Return up to where it was sent."""
        if self._local is not None:
            return self._local.sent()
        is_filling = not all(map(self._cursor.is_done, self._partitions))
        return Sent(self._served.store_id, self._cursor.change_positions, is_filling)

    def behind_since_s(self) -> float | None:
        """Return since when it was not sent all changes that are here for it; None: it was, or has rows to come."""
        if self._local is not None:
            return self._local.behind_since_s()
        # What other gateways have for it, and did not send, they know.
        return self._pace.sent_s if self._has_news else None

    async def _merged(self) -> AsyncGenerator[bytes, None]:
        """Yield the stream of several sources."""
        self._cursor, self._streams, self._ended = MergedCursor(), [], set()
        self._sources = PartitionSources(self._access)
        self._plan.publisher.on_shutdown.add(self._wake)
        try:
            if not self._open():
                yield self._reset()
            while True:
                if (end := self._pace.ending()) is not None:
                    if not self._starts_live:
                        yield self._changes_message()
                    raise end
                if self._check_sources():
                    yield self._reset()
                    continue
                message = self._first_message() if self._starts_live else self._next_message()
                if message is not None:
                    yield message
                elif not self._has_news:
                    if not self._starts_live and not self._pace.seconds_to_progress():
                        yield self._changes_message()
                    await self._wait()
        finally:
            await self._leave()

    async def _leave(self) -> None:
        self._plan.publisher.on_shutdown.discard(self._wake)
        self._end(self._streams)
        if self._ended:
            await asyncio.wait(self._ended)

    # Where it starts.

    def _open(self) -> bool:
        """Find where to start from; return whether the client has a copy, or wants none."""
        self._use(self._access.view().served)
        if self._asked.resume_token:
            return self._resume()
        # Who wants changes only is to miss none from one moment on: the first message waits until every source has
        # begun.
        self._starts_live = self._asked.starts_live
        return self._starts_live

    def _use(self, served: ServedGeneration) -> None:
        self._served = served
        self._partitions = self._asked.select(served.partition_count, self._access.places_of).partitions

    def _resume(self) -> bool:
        """Go on from the token; return False where only a new snapshot helps. Raise `InvalidResumeToken`."""
        try:
            token = self._access.open_token(
                self._asked.resume_token,
                kind=TOKEN_KIND_SUBSCRIBE,
                request_hash=self._asked.request_hash,
                served=self._served,
                refused=resume_token_refused,
            )
        except TableRebuilt:
            return False
        # The offsets of another topic mean nothing here, even where the generation has the same number.
        if token.changelog_topic_id != self._served.manifest.changelog_topic_id:
            return False
        self._cursor.apply(token)
        return True

    # What it sends.

    def _reset(self) -> bytes:
        """Begin a new snapshot, and return the message that says so."""
        self._end(self._streams)
        self._cursor = self._cursor.begun_anew()
        self._checks_s = 0.0
        return self._message(b"", SUBSCRIBE_PHASE_RESET)

    def _changes_message(self, changes: bytes = b"") -> bytes:
        """Return a message with changes as they are on the wire."""
        return self._message(changes, SUBSCRIBE_PHASE_CURRENT if self._is_current else SUBSCRIBE_PHASE_CATCHING_UP)

    def _message(self, changes: bytes, phase: SubscribePhase) -> bytes:
        access, served, cursor = self._access, self._served, self._cursor
        self._pace.sent_s, self._was_current = time.monotonic(), phase == SUBSCRIBE_PHASE_CURRENT
        request_hash = self._asked.request_hash
        token = cursor.token(access, served, request_hash, self._partitions)
        token = client_token(token, access, served, request_hash)
        read_info = None
        if self._was_current:
            # The read info is made from what each source said last, and signed here: sources sign only for their own
            # partitions.
            as_of_ms = {partition: stream.as_of_ms for stream in self._streams for partition in stream.partitions}
            at = cursor.change_positions
            positions = {
                each: Position(
                    at[each].offset, as_of_ms[each], Phase.LIVE, Offset(0), lineage=lineage_of(at[each].place)
                )
                for each in self._partitions
            }
            read_info = access.read_info(served, positions)
        return self._plan.encoder.joined(changes, SubscribeProgress(phase=phase, resume_token=token), read_info)

    @property
    def _is_current(self) -> bool:
        """Return whether each partition has a source, and the copy is whole by the last message of each."""
        assigned = sum(len(stream.partitions) for stream in self._streams)
        return assigned == len(self._partitions) and all(stream.is_current for stream in self._streams)

    # What the sources send.

    @property
    def _has_news(self) -> bool:
        if any(stream.has_ended for stream in self._streams):
            return True
        has_message = [stream.has_message for stream in self._streams]
        return all(has_message) if self._starts_live else any(has_message)

    def _next_message(self) -> bytes | None:
        """Pop a message of a source, in turns; return what the client gets for it, if anything."""
        stream = next((each for each in self._streams if each.has_message), None)
        if stream is None:
            return None
        self._streams.remove(stream)
        # In turns, so that a source with many changes does not keep the others waiting.
        self._streams.append(stream)
        changes, progress = self._plan.encoder.split(stream.pop())
        if progress.phase == SUBSCRIBE_PHASE_RESET:
            # A source that begins anew takes the whole stream along: a client has no way to drop the rows of some
            # partitions.
            return self._reset() if self._cursor.has_any(stream.partitions) else None
        self._record(stream, progress)
        # Progress of a source alone is no news for the client: it would get as many messages as there are gateways.
        if changes or (self._is_current and not self._was_current):
            return self._changes_message(changes)
        return None

    def _first_message(self) -> bytes | None:
        """Return the first message, of all sources together, once each has said from where on it sends changes."""
        if not all(stream.has_message for stream in self._streams):
            return None
        changes = b""
        for stream in self._streams:
            its_changes, progress = self._plan.encoder.split(stream.pop())
            self._record(stream, progress)
            changes += its_changes
        self._starts_live = False
        return self._changes_message(changes)

    def _record(self, stream: PartitionStream, progress: SubscribeProgress) -> None:
        """Move the cursor to where a source is."""
        token = self._access.open_token(
            progress.resume_token,
            kind=TOKEN_KIND_SUBSCRIBE,
            request_hash=self._asked.request_hash,
            served=self._served,
            refused=resume_token_refused,
        )
        self._cursor.apply(token)
        stream.record(progress)
        if stream.is_filling and all(self._cursor.is_done(partition) for partition in stream.partitions):
            stream.is_filling = False
            self._checks_s = 0.0  # the next may fill

    # Which source has which partitions.

    def _check_sources(self) -> bool:
        """Give each partition a source again; return whether the stream begins anew."""
        now_s = time.monotonic()
        if now_s < self._checks_s and not any(stream.has_ended for stream in self._streams):
            return False
        if self._is_assigned and self._streams and all(stream.has_sent for stream in self._streams):
            self._whole_s = now_s
        self._away = None
        self._drop_ended()
        local: Mapping[Partition, Position] = {}
        try:
            with self._access.store.snapshot() as snapshot:
                served = self._access.served(snapshot)
                is_anew = served.manifest.changelog_topic_id != self._served.manifest.changelog_topic_id
                # A new generation, or a topic that was made anew, has other offsets: whatever was sent is of the past.
                if is_anew or served.generation != self._served.generation:
                    self._use(served)
                    self._end(self._streams)
                    self._cursor = MergedCursor()
                    if not self._starts_live:
                        return True
                self._served = served
                found = {each: self._access.live_position(snapshot, served, each) for each in self._unassigned()}
                local = {each: position for each, position in found.items() if position is not None}
        except StoreUnavailable as away:
            self._away = away
        if unassigned := self._unassigned():
            self._assign(unassigned, local)
        limits = self._limits
        self._checks_s = now_s + (limits.sources_retry_s if self._unassigned() else limits.sources_check_s)
        return False

    def _unassigned(self) -> list[Partition]:
        """Return the partitions without a source."""
        assigned = {partition for stream in self._streams for partition in stream.partitions}
        return [partition for partition in self._partitions if partition not in assigned]

    def _drop_ended(self) -> None:
        """Drop sources that have ended, or whose gateways are dead; raise an error that any source would give."""
        silent_max_s = SILENT_TIMES * self._asked.progress_s + self._limits.silent_s
        for stream in list(self._streams):
            # A connection can hang without an error. Sources send progress at the client's own interval, so silence is
            # a sign.
            is_gone = stream.silent_s > silent_max_s or not self._sources.is_alive(stream.peer)
            if is_gone or stream.has_ended:
                self._end([stream])
                self._sources.record_end(stream.peer, has_sent=stream.has_sent)
                self._check(stream.error)

    def _check(self, error: Exception | None) -> None:
        """Raise an error that another gateway would make no better."""
        if isinstance(error, StoreUnavailable):
            self._away = error
        elif isinstance(error, PeerFailed):
            if not error.another_may_continue:
                raise error_for(error, self._access.table.name)
        elif error is not None and not isinstance(error, (PartitionUnavailable, ShuttingDown)):
            raise error

    def _end(self, streams: Sequence[PartitionStream]) -> None:
        for stream in list(streams):
            self._streams.remove(stream)
            ended = stream.cancel()
            self._ended.add(ended)
            ended.add_done_callback(self._ended.discard)

    def _assign(self, unassigned: Sequence[Partition], local: Mapping[Partition, Position]) -> None:
        """Start sources for partitions that have none, as far as a gateway has them; wait for the others.

        Raise `PartitionUnavailable` instead where nothing was sent yet, `StoreUnavailable` where this gateway's store
        is away for long.
        """
        sources = {
            partition: self._cursor.source_of(
                partition, local[partition].incarnation_id if partition in local else None
            )
            for partition in unassigned
        }
        groups = self._sources.groups(unassigned, local, sources, self._served.generation)
        found = {partition for _, partitions in groups for partition in partitions}
        missing = next((partition for partition in unassigned if partition not in found), None)
        self._is_assigned = missing is None
        is_long = time.monotonic() > self._whole_s + self._limits.retries_s
        if self._away is not None and not self._is_assigned and is_long:
            raise self._away
        # From now on for all partitions or not at all: a stream of changes that lacks a partition would look complete.
        if self._starts_live and missing is not None:
            raise PartitionUnavailable(self._access.table.name, missing, "no live gateway has it")
        # Rows come from one source at a time, in the order of partitions, so that the cursor of all is still one key in
        # one partition.
        fills = self._filling(groups)
        for number, (peer, partitions) in enumerate(groups):
            ready = partitions
            if number != fills and not self._starts_live:
                # Partitions whose rows come later wait for their turn; those that are filled send their changes
                # meanwhile.
                ready = [partition for partition in partitions if self._cursor.is_done(partition)]
            if ready:
                self._start(peer, ready, is_filling=number == fills)

    def _filling(self, groups: Sequence[Group]) -> int | None:
        """Return the index of the group whose rows come next; None where one is at it, or no group can."""
        cursor = self._cursor
        if self._starts_live or any(stream.is_filling for stream in self._streams):
            return None
        for number, (_, partitions) in enumerate(groups):
            if cursor.filling in partitions if cursor.filling is not None else not all(map(cursor.is_done, partitions)):
                return number
        return None

    def _start(self, peer: Peer | None, partitions: Sequence[Partition], *, is_filling: bool) -> None:
        """Begin a stream."""
        access, plan, generation = self._access, self._plan, self._served.generation
        token = ""
        if not self._starts_live:
            token = self._cursor.token(access, self._served, self._asked.request_hash, partitions)
        if peer is None:
            asked, call = self._asked.resumed(token), PartCall(self._call)
            pace = Pace(call, asked.progress_s, self._limits, is_part=True)
            messages = LocalStream(plan, asked, call, pace, Scope(generation, partitions, "")).messages()
        else:
            request: Any = parse(plan.query.request_class, self._asked.data)
            # The other gateway answers it as it would a client that returns: the token says which partitions are done,
            # and up to where.
            getattr(request, plan.options_name).resume_token = token
            forward_token = access.forward_token(generation, partitions)
            left_s = self._call.time_left_s()
            messages = self._router.stream(peer, plan.query.path, request.SerializeToString(), forward_token, left_s)
        self._streams.append(PartitionStream(peer, partitions, messages, self._wake, is_filling=is_filling))

    # Waiting.

    async def _wait(self) -> None:
        """Return when a source has news, when it is time to check or to send progress, or at the shutdown."""
        timeout_s = max(0.0, self._checks_s - time.monotonic())
        if not self._starts_live:
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
