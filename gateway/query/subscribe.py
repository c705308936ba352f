"""Subscribe: the rows, then every change, from wherever a token says."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from typing import Any

from google.protobuf.message import Message

from gateway.contract.catalogue import SubscribeQuery
from gateway.contract.tokens import request_hasher
from gateway.internal.v1.tokens_pb2 import TOKEN_KIND_SUBSCRIBE
from gateway.query.access import Life, TableAccess
from gateway.query.call import Call, StreamHandler
from gateway.query.errors import (
    InvalidField,
    PartitionUnavailable,
    ShuttingDown,
    SlowSubscription,
    StreamExpired,
    TableRebuilt,
    resume_token_refused,
)
from gateway.query.live_table import LiveTable, is_same
from gateway.query.params import parse, seconds_of
from gateway.query.selections import selection_reader
from gateway.query.subscription_messages import ChangeEncoder, Positions, Speaker, cursor_of
from gateway.stores.base import Snapshot
from gateway.subscription.cursor import Cursor, HistoryLost, Room, Selection, Step, start_live, step
from gateway.subscription.feed import MESSAGE_BYTES_MAX, MESSAGE_ROWS_MAX, Feed, Member
from gateway.v1.query_pb2 import (
    SUBSCRIBE_PHASE_CATCHING_UP,
    SUBSCRIBE_PHASE_CURRENT,
    SUBSCRIBE_PHASE_RESET,
    SUBSCRIBE_START_LIVE,
    SubscribeStart,
)

PROGRESS_S = 5.0  # unless the request says otherwise
PROGRESS_MIN_S = 0.1
PROGRESS_MAX_S = 60.0  # proxies close streams that are silent for longer
STREAM_MIN_S, STREAM_MAX_S = 1_800.0, 3_600.0  # the longest time of a stream is drawn: subscribers move on one by one
UNSERVED_LOOK_S = 1.0  # at a table that was served and is not now: nothing may ring when it is again
CONFLATED_ROWS_MAX = 5_000  # changes that a slow subscriber catches up on at once
CONFLATED_BYTES_MAX = 256 * 1024


def subscribe_handler(query: SubscribeQuery, access: TableAccess, live: LiveTable) -> StreamHandler:
    """Return the handler of `query`."""
    plan = _Plan(query, access, live)

    async def handle(data: bytes, call: Call) -> AsyncIterator[bytes]:
        run = _Run(plan, parse(query.request_class, data), call)
        try:
            async for message in run.messages():
                yield message
        finally:
            run.leave()

    return handle


class _Plan:
    """A Subscribe, compiled."""

    def __init__(self, query: SubscribeQuery, access: TableAccess, live: LiveTable) -> None:
        self.query = query
        self.access = access
        self.live = live
        self.encoder = ChangeEncoder(query)
        self.request_hash = request_hasher(query)
        self.read_selection = selection_reader(query)
        self.options_name = query.subscribe_options.name


class _Run:
    """One stream, as far as it is. `_cursor` says what the client's copy is once it has all that was yielded."""

    _life: Life
    _selection: Selection
    _speaker: Speaker

    def __init__(self, plan: _Plan, request: Message, call: Call) -> None:
        self._plan = plan
        self._call = call
        options: Any = getattr(request, plan.options_name)
        if options.start not in SubscribeStart.values():
            text = "is no known start; send SUBSCRIBE_START_SNAPSHOT or SUBSCRIBE_START_LIVE"
            raise InvalidField(f"{plan.options_name}.start", text)
        self._starts_live = options.start == SUBSCRIBE_START_LIVE
        self._progress_s = _progress_s(f"{plan.options_name}.progress_interval", options)
        self._resume_token = options.resume_token
        self._request_hash = plan.request_hash(request)
        self._select = plan.read_selection(request)
        self._ends_s = time.monotonic() + random.uniform(STREAM_MIN_S, STREAM_MAX_S)
        self._told_s = 0.0  # when the last message was made
        self._told_current = False  # whether that said that the copy is whole
        self._cursor = Cursor()
        self._positions: Positions = {}
        self._is_slow = False
        self._feed: Feed | None = None
        self._member: Member | None = None

    async def messages(self) -> AsyncIterator[bytes]:
        """Yield the stream's messages, until the stream has to end."""
        if not self._open():
            yield self._reset()
        while True:
            async for message in self._catch_up():
                yield message
            async for message in self._follow():
                yield message

    def leave(self) -> None:
        """Let go of the feed."""
        if self._feed is not None and self._member is not None:
            self._feed.leave(self._member)
        self._feed = self._member = None

    # Where it starts.

    def _open(self) -> bool:
        """Find the cursor to start from; return whether the client has a copy, or wants none."""
        access = self._plan.access
        with access.store.snapshot() as snapshot:
            self._use(access.life(snapshot))
            positions = self._live_positions(snapshot)
            if self._resume_token:
                cursor = self._resumed()
            elif self._starts_live:
                cursor = start_live(snapshot, self._life.store_id, positions, self._selection)
            else:
                cursor = None
        self._cursor = cursor or Cursor()
        return cursor is not None

    def _use(self, life: Life) -> None:
        plan = self._plan
        self._life = life
        self._selection = self._select(life.partition_count)
        self._speaker = Speaker(plan.encoder, plan.access, life, self._selection, self._request_hash)

    def _live_positions(self, snapshot: Snapshot) -> Positions:
        live = self._plan.access.live
        return {partition: live(snapshot, self._life, partition) for partition in self._selection.partitions}

    def _resumed(self) -> Cursor | None:
        """Return the cursor of the resume token; None where only a new snapshot helps. Raise `InvalidResumeToken`."""
        access, life = self._plan.access, self._life
        try:
            token = access.open_token(
                self._resume_token,
                kind=TOKEN_KIND_SUBSCRIBE,
                request_hash=self._request_hash,
                life=life,
                refused=resume_token_refused,
            )
        except TableRebuilt:
            return None
        return cursor_of(token, life, self._selection, ages=access.table.expiry is not None)

    # When it speaks, and when it ends.

    def _reset(self) -> bytes:
        """Return the message that begins a new snapshot."""
        self._cursor = Cursor()
        self._told_s, self._told_current = time.monotonic(), False
        return self._speaker.say((), SUBSCRIBE_PHASE_RESET, self._cursor)

    def _said(self, result: Step | None = None) -> bytes:
        """Return the message of a step; or of none, while the copy stays behind."""
        self._told_s, self._told_current = time.monotonic(), result is not None and result.is_whole
        given = result.given if result is not None else ()
        if self._told_current:
            return self._speaker.say(given, SUBSCRIBE_PHASE_CURRENT, self._cursor, self._positions)
        return self._speaker.say(given, SUBSCRIBE_PHASE_CATCHING_UP, self._cursor)

    def _seconds_to_progress(self) -> float:
        return max(0.0, self._told_s + self._progress_s - time.monotonic())

    def _ending(self) -> ShuttingDown | StreamExpired | None:
        """Return why the stream has to end now."""
        if self._call.draining:
            return ShuttingDown()
        return StreamExpired() if time.monotonic() >= self._ends_s else None

    # By its own cursor.

    async def _catch_up(self) -> AsyncIterator[bytes]:
        """Yield what is between the cursor and now; return when the feed goes on from there."""
        while True:
            if (end := self._ending()) is not None:
                yield self._said()
                raise end
            try:
                result = self._step()
            except HistoryLost:
                yield self._reset()
                continue
            except PartitionUnavailable:
                result = None  # it was served when this began, and comes back
            if result is None or result.is_ahead:
                if not self._seconds_to_progress():
                    yield self._said()
                await self._plan.live.bell.wait(min(UNSERVED_LOOK_S, self._seconds_to_progress()))
                continue
            news = bool(result.given) or result.is_whole != self._told_current
            if news or not self._seconds_to_progress():
                yield self._said(result)
            if self._member is not None:
                self._is_slow = False
                return
            await asyncio.sleep(0)

    def _step(self) -> Step:
        """Take a step in a snapshot of its own; join the feed where that makes the copy whole."""
        access, live = self._plan.access, self._plan.live
        room = Room(MESSAGE_ROWS_MAX, MESSAGE_BYTES_MAX)
        if self._is_slow:
            room = Room(CONFLATED_ROWS_MAX, CONFLATED_BYTES_MAX)
        with access.store.snapshot() as snapshot:
            life = access.life(snapshot)
            if not is_same(life, self._life):
                self._use(life)
                raise HistoryLost
            self._life = life
            self._positions = positions = self._live_positions(snapshot)
            result = step(
                snapshot, life.store_id, positions, self._selection, self._cursor, room=room, conflate=self._is_slow
            )
            if result.is_whole and live.pump(snapshot, life):
                name = (self._plan.query.path, self._request_hash)
                self._feed = live.feed(life)
                self._member = self._feed.join(
                    name, self._selection, self._speaker.say_live, self._cursor.marks, positions
                )
        return result

    # With the feed.

    async def _follow(self) -> AsyncIterator[bytes]:
        """Yield what the feed gives, until it lets go; raise `SlowSubscription` where the contract says so."""
        member, feed = self._member, self._feed
        assert member is not None
        assert feed is not None
        while True:
            while (message := member.take()) is not None:
                yield message.data
            if (newest := member.newest) is not None:
                self._cursor.marks, self._told_s = dict(newest.marks), newest.made_s
                member.newest = None
            if member.lost:
                break
            # All that the feed had for it is given: its copy is where the feed is.
            self._cursor.marks = {partition: feed.marks[partition] for partition in self._selection.partitions}
            end = self._ending()
            if end is not None or not self._seconds_to_progress():
                yield self._live_progress(feed)
            if end is not None:
                raise end
            await member.wait(self._seconds_to_progress(), self._call.offer)
        self.leave()
        self._told_current = False  # what the feed said last does not count: it is to be said that this goes on
        if member.is_slow:
            if self._plan.query.disconnects_slow:
                raise SlowSubscription(self._plan.access.table.name)
            self._is_slow = True

    def _live_progress(self, feed: Feed) -> bytes:
        self._told_s = time.monotonic()
        is_whole = feed.is_whole(self._selection.partitions)
        return self._speaker.say_live((), self._cursor.marks, feed.positions, is_whole)


def _progress_s(field: str, options: Any) -> float:
    if not options.HasField("progress_interval"):
        return PROGRESS_S
    seconds = seconds_of(options.progress_interval)
    if seconds <= 0:
        raise InvalidField(field, "is not positive; send how often you want to hear, or leave it out")
    return min(max(seconds, PROGRESS_MIN_S), PROGRESS_MAX_S)
