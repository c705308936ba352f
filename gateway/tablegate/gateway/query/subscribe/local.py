"""Subscribe to this gateway's store: the rows, then every change, from wherever a token says.

A stream has two states. It catches up by its own cursor, a step of rows and changes from a snapshot at a time
(`_catch_up`); once its copy is whole it joins the table's broadcaster, which reads each change once for all subscribers
(`_follow`). A subscriber that is too slow, or whose broadcaster ends, catches up again.

One that follows and has nothing to send is parked: it gives up its task, and all generators with it, which take twice
as much as the rest of it. What comes is offered to its client, as is progress, by a timer; what the client does not
take at once, and all that ends the stream, wakes it to a task again. One that was woken keeps its task until nothing
has come for as long as progress takes: a client that takes little costs no new task for each message.

Decision: docs/decisions/0026-incarnations-where-rows-expire.md
Decision: docs/decisions/0069-tokens-under-4-kb.md
Decision: docs/decisions/0189-a-stream-that-waits-has-no-task.md
"""

import asyncio
import math
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import replace
from functools import partial

from tablegate.gateway.contract.catalogue import SubscribeQuery
from tablegate.gateway.contract.types import Partition, StoreId
from tablegate.gateway.query.call import Call
from tablegate.gateway.query.errors import (
    PartitionUnavailable,
    ShuttingDown,
    SlowSubscription,
    StreamExpired,
    TableRebuilt,
    resume_token_refused,
)
from tablegate.gateway.query.limits import QueryLimits
from tablegate.gateway.query.serving import Scope, ServedGeneration, TableAccess
from tablegate.gateway.query.subscribe.broadcaster import ChangeBroadcaster, Subscriber
from tablegate.gateway.query.subscribe.cursor import (
    Cursor,
    HistoryLost,
    ReadBudget,
    Selection,
    Step,
    start_live,
    step,
)
from tablegate.gateway.query.subscribe.messages import ChangeEncoder, Positions, ProgressEncoder, cursor_of, sources_of
from tablegate.gateway.query.subscribe.open_streams import Sent
from tablegate.gateway.query.subscribe.publisher import TablePublisher, is_same
from tablegate.gateway.query.subscribe.selections import SubscribeReader, SubscribeRequest
from tablegate.gateway.stores.base import Snapshot, StoredPartition
from tablegate.internal.v1.tokens_pb2 import TOKEN_KIND_SUBSCRIBE
from tablegate.v1.query_pb2 import (
    SUBSCRIBE_PHASE_CATCHING_UP,
    SUBSCRIBE_PHASE_CURRENT,
    SUBSCRIBE_PHASE_RESET,
)

UNSERVED_CHECK_S = 1.0  # of a table that was served and is not now: nothing may notify of its return
CONFLATED_ROWS_MAX = 5_000  # changes that a slow subscriber catches up on at once
CONFLATED_BYTES_MAX = 256 * 1024
DUE_TOGETHER_S = 0.02  # each stream alone would take a round of the event loop, and a write to its connection


class SubscribePlan(SubscribeReader):
    """A Subscribe, compiled: what reads its requests, and what streams share."""

    def __init__(self, query: SubscribeQuery, access: TableAccess, publisher: TablePublisher) -> None:
        super().__init__(query, access)
        self.publisher = publisher
        self.encoder = ChangeEncoder(query)


class Pace:
    """When a stream has to send something, and when it ends."""

    __slots__ = ("_call", "_ends_s", "_progress_s", "sent_s")

    def __init__(self, call: Call, progress_s: float, limits: QueryLimits, *, is_part: bool = False) -> None:
        """Begin a stream; one that `is_part` of another ends with that."""
        share = 1.0 if is_part else random.random()
        self.sent_s = 0.0  # when the last message was made
        # A change for all makes progress of all due together: a tenth of the time lies between the first and the last.
        self._progress_s = progress_s * (0.9 + 0.1 * share)
        self._call = call
        lasts_s = math.inf if is_part else limits.stream_min_s + (limits.stream_max_s - limits.stream_min_s) * share
        self._ends_s = time.monotonic() + lasts_s

    def seconds_to_progress(self) -> float:
        """Return the seconds until it is to send something again."""
        return max(0.0, self.sent_s + self._progress_s - time.monotonic())

    def seconds_to_wait(self) -> float:
        """Return the seconds until it is to send something again, or has to end."""
        return max(0.0, min(self.sent_s + self._progress_s, self._ends_s) - time.monotonic())

    def ending(self) -> ShuttingDown | StreamExpired | None:
        """Return why the stream has to end now."""
        if self._call.draining:
            return ShuttingDown()
        return StreamExpired() if time.monotonic() >= self._ends_s else None


class Idle(Exception):
    """A stream follows, has nothing to send, and may be parked."""


class LocalStream:
    """One stream from this store, as far as it is. `_cursor` says where a copy is that has all that was yielded.

    With a `scope` it is for some partitions only, and a source of another stream. Where other gateways may go on, it
    ends with `PartitionUnavailable` when a partition is not served here any more, or not of the same incarnation; it
    ends with `StoreUnavailable` when the store is away. `is_open`: it has begun, all its partitions being served. Where
    its call parks, it ends with `Idle`, and is either parked by `wait` or left; `messages` goes on with it.
    """

    __slots__ = (
        "_asked",
        "_awaits_store",
        "_behind_since_s",
        "_broadcaster",
        "_call",
        "_cursor",
        "_encoder",
        "_is_slow",
        "_pace",
        "_plan",
        "_positions",
        "_scope",
        "_selection",
        "_served",
        "_subscriber",
        "_timer",
        "_wake",
        "_was_current",
        "_was_woken",
        "is_open",
    )
    _served: ServedGeneration
    _selection: Selection
    _encoder: ProgressEncoder

    def __init__(
        self, plan: SubscribePlan, asked: SubscribeRequest, call: Call, pace: Pace, scope: Scope | None = None
    ) -> None:
        self._plan = plan
        self._asked = asked
        self._call = call
        self._pace = pace
        self._scope = scope
        self.is_open = False
        self._was_current = False  # whether the last message said that the copy is whole
        self._cursor = Cursor()
        self._positions: Positions = {}
        self._is_slow = False
        self._behind_since_s = time.monotonic()  # while it catches up
        self._awaits_store = False  # which has nothing for it now
        self._broadcaster: ChangeBroadcaster | None = None
        self._subscriber: Subscriber | None = None
        self._was_woken = False  # since nothing came for as long as progress takes
        self._wake: Callable[[], None] | None = None  # while it is parked, as what follows
        self._timer: asyncio.TimerHandle | None = None

    async def messages(self) -> AsyncGenerator[bytes, None]:
        """Yield the stream's messages, until the stream has to end."""
        is_idle = False
        try:
            if not self.is_open and not self._open():
                yield self._reset()
            while True:
                if self._subscriber is None:
                    async for message in self._catch_up():
                        yield message
                async for message in self._follow():
                    yield message
        except Idle:
            is_idle = True
            raise
        finally:
            if not is_idle:
                self.leave()

    def token(self) -> str:
        """Return the token that goes on behind what was yielded."""
        return self._encoder.token(self._cursor) if self.is_open else self._asked.resume_token

    @property
    def _may_leave(self) -> bool:
        """Return whether other gateways may go on where this one cannot."""
        return self._scope is not None or self._plan.access.router.is_clustered

    def sent(self) -> Sent:
        """Return up to where it was sent."""
        if not self.is_open:
            return Sent(StoreId(0), {}, is_filling=True)
        store_id, partitions = self._served.store_id, self._selection.partitions
        member, broadcaster = self._subscriber, self._broadcaster
        if member is None or broadcaster is None or member.is_evicted:
            return Sent(store_id, self._cursor.change_positions, self._cursor.filling < len(partitions))
        if not member.has_messages and not broadcaster.has_unsent(member):
            # Its copy is where the broadcaster is: what was not sent was not for it.
            positions = {each: broadcaster.change_positions[each] for each in partitions}
        else:
            positions = self._cursor.change_positions if member.newest is None else dict(member.newest.change_positions)
        return Sent(store_id, positions, is_filling=False)

    def behind_since_s(self) -> float | None:
        """Return since when (of the monotonic clock) it was not sent all changes; None: it was, or has rows to come."""
        if self._subscriber is not None and self._broadcaster is not None:
            return self._subscriber.behind_since_s() or self._broadcaster.unsent_since_s(self._subscriber)
        if not self.is_open or self._awaits_store or self._cursor.filling < len(self._selection.partitions):
            return None
        return self._behind_since_s

    def leave(self) -> None:
        """Leave the broadcaster."""
        self._unpark()
        if self._broadcaster is not None and self._subscriber is not None:
            self._broadcaster.leave(self._subscriber)
        self._broadcaster = self._subscriber = None

    # Where it starts.

    def _open(self) -> bool:
        """Find the cursor to start from; return whether the client has a copy, or wants none."""
        access = self._plan.access
        with access.store.snapshot() as snapshot:
            served = access.served(snapshot)
            if self._scope is not None:
                self._scope.check(access.table.name, served.generation)
            selection = self._asked.select(served.partition_count, access.places_of)
            if self._scope is not None and self._scope.partitions is not None:
                selection = selection.within(self._scope.partitions)
            self._use(served, selection)
            positions = self._live_positions(snapshot)
            if self._asked.resume_token:
                is_resumed = self._resume(positions)
            else:
                is_resumed = self._asked.starts_live
                if is_resumed:
                    self._cursor = start_live(snapshot, served.store_id, positions, selection)
        self.is_open = True
        return is_resumed

    def _use(self, served: ServedGeneration, selection: Selection) -> None:
        plan = self._plan
        self._served, self._selection = served, selection
        request_hash, is_part = self._asked.request_hash, self._scope is not None
        self._encoder = ProgressEncoder(plan.encoder, plan.access, served, selection, request_hash, is_part=is_part)

    def _live_positions(self, snapshot: Snapshot) -> Positions:
        live = self._plan.access.live
        return {partition: live(snapshot, self._served, partition) for partition in self._selection.partitions}

    def _resume(self, positions: Positions) -> bool:
        """Go on from the token; return False where only a new snapshot helps.

        Raise `InvalidResumeToken`, or `PartitionUnavailable` where other gateways may go on and this one cannot.
        """
        access, served, asked = self._plan.access, self._served, self._asked
        try:
            token = access.open_token(
                asked.resume_token,
                kind=TOKEN_KIND_SUBSCRIBE,
                request_hash=asked.request_hash,
                served=served,
                refused=resume_token_refused,
            )
        except TableRebuilt:
            return False
        found = cursor_of(token, served, self._selection)
        if found is None:
            return False
        self._cursor, selection = found
        foreign = {each: known.incarnation_id for each, known in self._cursor.change_positions.items()}
        # A row that expired in another store's time may be in the copy, and not in this store: only the gateway that
        # sent it knows.
        foreign = {
            each: incarnation_id
            for each, incarnation_id in foreign.items()
            if incarnation_id != positions[each].incarnation_id
        }
        if foreign:
            if self._may_others_continue(foreign, sources_of(token)):
                raise PartitionUnavailable(access.table.name, next(iter(foreign)), "it was given by another gateway")
            return False
        self._use(served, selection)
        return True

    def _may_others_continue(self, incarnations: Mapping[Partition, int], sources: Mapping[int, str]) -> bool:
        """Return whether the gateways that sent these partitions, of these incarnations, may be asked to go on."""
        access = self._plan.access
        if self._scope is not None or not access.router.is_clustered:
            return False
        others = partial(access.router.candidates, access.table.name, generation=self._served.generation)
        return all(
            sources.get(incarnation_id, "") in [peer.gateway_id for peer in others(partition)]
            for partition, incarnation_id in incarnations.items()
        )

    # What it sends.

    def _reset(self) -> bytes:
        """Return the message that begins a new snapshot."""
        self._cursor = self._cursor.begun_anew()
        self._pace.sent_s, self._was_current = time.monotonic(), False
        return self._encoder.encode((), SUBSCRIBE_PHASE_RESET, self._cursor)

    def _progress_message(self, result: Step | None = None) -> bytes:
        """Return the message of a step; or of none, while the copy stays behind."""
        self._pace.sent_s, self._was_current = time.monotonic(), result is not None and result.is_whole
        given = result.given if result is not None else ()
        if self._was_current:
            return self._encoder.encode(given, SUBSCRIBE_PHASE_CURRENT, self._cursor, self._positions)
        return self._encoder.encode(given, SUBSCRIBE_PHASE_CATCHING_UP, self._cursor)

    # By its own cursor.

    async def _catch_up(self) -> AsyncIterator[bytes]:
        """Yield what is between the cursor and now; return when the broadcaster goes on from there."""
        while True:
            if (end := self._pace.ending()) is not None:
                yield self._progress_message()
                raise end
            try:
                result = self._step()
            except HistoryLost:
                yield self._reset()
                continue
            except PartitionUnavailable:
                if self._may_leave:
                    raise
                result = None  # it was served when this began, and comes back
            if result is None or result.is_ahead:
                # One partition may be behind the cursor while others are not: the cursor has passed what these gave.
                if (result is not None and result.given) or not self._pace.seconds_to_progress():
                    yield self._progress_message(result)
                timeout_s = min(UNSERVED_CHECK_S, self._pace.seconds_to_progress())
                store_id, partitions = self._served.store_id, self._selection.partitions
                self._awaits_store = True
                await self._plan.publisher.notifier.wait(
                    timeout_s, [StoredPartition(store_id, each) for each in partitions]
                )
                self._awaits_store = False
                continue
            # A step without changes still counts where it says for the first time that the copy is whole, or no longer
            # is.
            news = bool(result.given) or result.is_whole != self._was_current
            is_due = news or not self._pace.seconds_to_progress()
            message = self._progress_message(result) if is_due else None
            del result  # whoever reads slowly, or waits for a turn, holds a message and not its rows
            if message is not None:
                yield message
            if self._subscriber is not None:
                self._is_slow = False
                return
            if news:
                await asyncio.sleep(0)  # it had to wait for its turn as that was sent
            else:
                await self._call.turn()

    def _step(self) -> Step:
        """Take a step in a snapshot of its own; join the broadcaster where that makes the copy whole."""
        access, publisher = self._plan.access, self._plan.publisher
        # A copy: a store that fails in the middle takes along what it gave.
        cursor = replace(self._cursor, change_positions=dict(self._cursor.change_positions))
        budget = ReadBudget(access.limits.message_rows_max, access.limits.message_bytes_max)
        if self._is_slow:
            budget = ReadBudget(CONFLATED_ROWS_MAX, CONFLATED_BYTES_MAX)
        with access.store.snapshot() as snapshot:
            served = access.served(snapshot)
            # Offsets of another incarnation mean nothing here. Others may still have the one that the cursor is of.
            if not is_same(served, self._served):
                if self._may_leave:
                    raise PartitionUnavailable(access.table.name, None, "this gateway begins it anew")
                if served.manifest.changelog_topic_id != self._served.manifest.changelog_topic_id:
                    self._cursor = Cursor()  # its offsets mean nothing in another changelog
                self._use(served, self._asked.select(served.partition_count, access.places_of))
                # The copy is of another incarnation. No change leads from there to here, so a new snapshot begins.
                raise HistoryLost
            self._served = served
            self._positions = positions = self._live_positions(snapshot)
            result = step(
                snapshot, served.store_id, positions, self._selection, cursor, budget=budget, conflate=self._is_slow
            )
            # The broadcaster is brought to this very snapshot first, as far as that goes now. Only where both stand at
            # the same place does this stream join: the next change reaches it from exactly one of them.
            if result.is_whole:
                publisher.publish(snapshot, served, self._selection.partitions)
                publisher.use_turns(self._call.at_turn_for_many)
                part = None if self._scope is None else frozenset(self._selection.partitions)
                name = (self._plan.query.path, self._asked.request_hash, part)
                self._broadcaster = publisher.broadcaster(served)
                self._subscriber = self._broadcaster.join(
                    name, self._selection, self._encoder.encode_live, cursor.change_positions, positions
                )
        self._cursor = cursor
        return result

    # With the broadcaster.

    async def _follow(self) -> AsyncIterator[bytes]:
        """Yield what the broadcaster gives, until it lets go; raise `SlowSubscription` where the contract says so."""
        member, broadcaster = self._subscriber, self._broadcaster
        assert member is not None
        assert broadcaster is not None
        has_turn = False
        while True:
            while (message := member.pop()) is not None:
                yield message.data
            self._note_accepted(member)
            if member.is_evicted:
                break
            if broadcaster.has_unsent(member):
                await self._call.turn()
                broadcaster.send_unsent(member)
                continue
            self._move_to(broadcaster)
            if self._may_leave:
                self._check_served(broadcaster)
            if (end := self._pace.ending()) is not None:
                yield self._live_progress(broadcaster)
                raise end
            if not self._pace.seconds_to_progress():
                if not has_turn:
                    # After a change for all, that of all is due at once. What comes meanwhile goes first.
                    await self._call.turn()
                    has_turn = True
                    continue
                progress = self._live_progress(broadcaster)
                # Offered, as changes are: thousands of streams that have no news do this every five seconds.
                if not self._call.offer(progress):
                    yield progress
            has_turn = False
            if self._call.parks and not self._was_woken:
                raise Idle
            await member.wait(self._pace.seconds_to_wait(), self._call.offer)
            self._was_woken = member.has_messages
        self._behind_since_s = member.behind_since_s() or time.monotonic()
        self.leave()
        self._was_current = False  # what the broadcaster said last does not count: it is to be said that this goes on
        if member.is_slow:
            if self._plan.query.disconnects_slow:
                raise SlowSubscription(self._plan.access.table.name)
            self._is_slow = True

    def _note_accepted(self, member: Subscriber) -> None:
        """Move the cursor behind the last message that was popped, or taken from an offer."""
        if (newest := member.newest) is not None:
            self._cursor.change_positions, self._pace.sent_s = dict(newest.change_positions), newest.made_s
            member.newest = None

    def _move_to(self, broadcaster: ChangeBroadcaster) -> None:
        """Move the cursor to where the broadcaster is, as all that this had for it is given."""
        self._cursor.change_positions = {
            partition: broadcaster.change_positions[partition] for partition in self._selection.partitions
        }

    # Parked.

    def wait(self, wake: Callable[[], None]) -> None:
        """Wait without a task, and call `wake` once when it is to go on."""
        assert self._subscriber is not None, "it follows"
        self._wake = wake
        self._positions = {}  # of the last step, whose message is sent
        self._subscriber.park(self._check_parked, self._call.offer)
        self._set_timer()
        self._check_parked()

    def _check_parked(self) -> None:
        """Wake it where there is something that its task has to do."""
        member, broadcaster = self._subscriber, self._broadcaster
        assert member is not None
        assert broadcaster is not None
        has_work = member.has_messages or member.is_evicted or self._pace.ending() is not None
        if has_work or (self._may_leave and not broadcaster.unserved.isdisjoint(self._selection.partitions)):
            self._go_on()

    def _on_time(self) -> None:
        self._timer = None
        self._call.at_turn(self._on_turn)  # after a change for all, progress of all is due at once

    def _on_turn(self) -> None:
        """Send progress where it is time, past the task."""
        if self._wake is None or self._timer is not None:  # it was woken or left, and may be parked again
            return
        try:
            is_sent = self._offer_progress()
        except Exception:  # noqa: BLE001  its task meets the same, and the client gets a status
            is_sent = False
        if self._wake is None:
            return
        if is_sent:
            self._set_timer()
        else:
            self._go_on()

    def _offer_progress(self) -> bool:
        """Return whether the client has got what is due, or the task goes on."""
        member, broadcaster = self._subscriber, self._broadcaster
        assert member is not None
        assert broadcaster is not None
        broadcaster.send_unsent(member)
        if self._wake is not None:
            self._check_parked()
        if self._wake is None:
            return True
        self._note_accepted(member)
        if self._pace.seconds_to_progress():
            return True
        self._move_to(broadcaster)
        sent_s = self._pace.sent_s
        if self._call.offer(self._live_progress(broadcaster)):
            return True
        self._pace.sent_s = sent_s  # so that the task sends it
        return False

    def _set_timer(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = math.ceil((loop.time() + self._pace.seconds_to_wait()) / DUE_TOGETHER_S) * DUE_TOGETHER_S
        self._timer = loop.call_at(due_s, self._on_time, context=self._plan.publisher.context)

    def _go_on(self) -> None:
        wake = self._wake
        self._was_woken = True
        self._unpark()
        if wake is not None:
            wake()

    def _unpark(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._subscriber is not None:
            self._subscriber.unpark()
        self._wake = None

    def _check_served(self, broadcaster: ChangeBroadcaster) -> None:
        """Raise `PartitionUnavailable` where the broadcaster stands still."""
        for partition in broadcaster.unserved:
            if partition in self._cursor.change_positions:
                raise PartitionUnavailable(self._plan.access.table.name, partition, "it is on other gateways now")

    def _live_progress(self, broadcaster: ChangeBroadcaster) -> bytes:
        self._pace.sent_s = time.monotonic()
        is_whole = broadcaster.is_whole(self._selection.partitions)
        return self._encoder.encode_live((), self._cursor.change_positions, broadcaster.positions, is_whole)
