"""The broadcaster of a table: its new changes, read once for all subscribers that have everything before them.

Subscribers who ask for the same are a group, and get the very same bytes; an index finds the groups that a change is
for (`selection_index`). The notification of a commit names the partitions that changed; those alone are read, from
where the broadcaster is in each of them (`change_positions`) to where the snapshot is. A subscriber that joins brings a
copy that is where the broadcaster is, or it may not join: so nothing is missed and nothing comes twice.

What was read is sent in turns of the event loop: a commit may be for thousands of groups, and a message for each of
them would take it for seconds; a group may have a hundred thousand subscribers. Until all is sent no more is read.
Meanwhile a subscriber that has yet to have its turn is behind the broadcaster; whoever has to be where that is gets its
part at once (`send_unsent`).

A subscriber that does not pop what is queued for it costs a bounded number of bytes and nobody's time: it is evicted,
and comes back by its own cursor. All together are bounded, too, by another number: what many are to pop counts once.
Where a subscriber waits, and its client takes a message at once, no task has to run for it.

Decision: docs/decisions/0029-messages-are-offered.md
Decision: docs/decisions/0030-broadcaster-paces-itself.md
Decision: docs/decisions/0178-streams-are-many-and-their-queues-bounded.md
Decision: docs/decisions/0191-changes-are-sent-in-turns.md
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from tablegate.gateway.contract.types import Partition, StoreId
from tablegate.gateway.query.call import AtTurn
from tablegate.gateway.query.errors import QueryError
from tablegate.gateway.query.limits import QueryLimits
from tablegate.gateway.query.subscribe.cursor import (
    ChangePosition,
    Given,
    HistoryLost,
    ReadBudget,
    Selection,
    read_changes,
)
from tablegate.gateway.query.subscribe.selection_index import SelectionIndex
from tablegate.gateway.stores.base import PastChange, Phase, Position, Snapshot

_CHANGES_OF_MESSAGE = 20  # that take as long as signing a message of none

ChangePositions = Mapping[Partition, ChangePosition]
Positions = Mapping[Partition, Position]


class Accepted(NamedTuple):
    """What is known of who has accepted a message: where its copy is; and when it was made, by the monotonic clock."""

    change_positions: ChangePositions
    made_s: float


class Message:
    """What a group is sent: the bytes, and what is known of who has accepted them.

    `queues`: how many subscribers have yet to pop it.
    """

    __slots__ = ("accepted", "data", "queues")

    def __init__(self, data: bytes, accepted: Accepted) -> None:
        self.data = data
        self.accepted = accepted
        self.queues = 0


class QueuedBytes:
    """How many bytes all subscribers of a table have yet to pop. A message counts once, however many are to pop it."""

    __slots__ = ("_bytes", "_bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self._bytes = 0
        self._bytes_max = bytes_max

    def fits(self, message: Message) -> bool:
        """Return whether a message may be queued once more."""
        return bool(message.queues) or self._bytes + len(message.data) <= self._bytes_max

    def add(self, message: Message) -> None:
        """Count a message for one more subscriber."""
        if not message.queues:
            self._bytes += len(message.data)
        message.queues += 1

    def remove(self, message: Message) -> None:
        """Count it for one subscriber less."""
        message.queues -= 1
        if not message.queues:
            self._bytes -= len(message.data)


Offer = Callable[[bytes], bool]
"""Sends bytes to a client at once, or returns False."""

Encode = Callable[[Sequence[Given], ChangePositions, Positions, bool], bytes]
"""From changes, the change positions after them, positions, and whether the copy is then whole, to the message."""


class Subscriber:
    """A live subscriber. `is_evicted`: nothing more is queued for it; `is_slow`: because it popped too little.

    `newest` is of the last message that it popped, or that its client took from an offer; whoever has noted it may
    clear it. Nothing keeps the bytes of such a message: thousands may each have accepted one of their own.
    """

    __slots__ = (
        "_bytes",
        "_bytes_max",
        "_evicted_since_s",
        "_messages",
        "_offer",
        "_on_wake",
        "_queued",
        "_waiting",
        "group",
        "is_evicted",
        "is_slow",
        "newest",
    )

    def __init__(self, group: "SubscriberGroup", bytes_max: int, queued: QueuedBytes) -> None:
        """Begin without messages; `bytes_max` may be queued, or one message, however long."""
        self.group = group
        self.is_evicted = False
        self.is_slow = False
        self.newest: Accepted | None = None
        self._messages: deque[Message] | None = None  # none: mostly nothing is queued, and a deque takes 700 bytes
        self._bytes = 0
        self._bytes_max = bytes_max
        self._queued = queued
        self._waiting: asyncio.Future[None] | None = None
        self._offer: Offer | None = None
        self._on_wake: Callable[[], None] | None = None  # where it waits without a task
        self._evicted_since_s = 0.0

    def behind_since_s(self) -> float | None:
        """Return since when (of the monotonic clock) it has not got all that there was for it; None: it has."""
        if self.is_evicted:
            return self._evicted_since_s
        return self._messages[0].accepted.made_s if self._messages else None

    @property
    def has_messages(self) -> bool:
        """Return whether there is something to pop."""
        return self._messages is not None

    def pop(self) -> Message | None:
        """Return the next message; None where there is none now."""
        messages = self._messages
        if messages is None:
            return None
        message = messages.popleft()
        if not messages:
            self._messages = None
        self._bytes -= len(message.data)
        self._queued.remove(message)
        self.newest = message.accepted
        return message

    async def wait(self, timeout_s: float, offer: Offer | None = None) -> None:
        """Return when there is something to pop, when it is evicted or woken, or after `timeout_s`.

        There is nothing to pop of what is taken from an `offer`.
        """
        if self._messages is not None or self.is_evicted:
            return
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        self._offer = offer
        timer = loop.call_later(timeout_s, self.wake)
        try:
            await self._waiting
        finally:
            timer.cancel()
            self._waiting = self._offer = None

    def park(self, on_wake: Callable[[], None], offer: Offer) -> None:
        """Call `on_wake` at each wake-up instead, until `unpark`; messages are offered meanwhile."""
        self._on_wake, self._offer = on_wake, offer

    def unpark(self) -> None:
        """Offer nothing more: what comes is queued."""
        self._on_wake = self._offer = None

    def wake(self) -> None:
        """End its wait: it is to check whether it can go on."""
        if self._on_wake is not None:
            self._on_wake()
        elif self._waiting is not None and not self._waiting.done():
            self._offer = None
            self._waiting.set_result(None)

    def enqueue(self, message: Message) -> None:
        """Offer a message to its client, or queue it; evict the subscriber where too much is queued."""
        if self._offer is not None and self._offer(message.data):
            self.newest = message.accepted
            return
        self._bytes += len(message.data)
        # Who publishes never waits. A client that reads too slowly falls back to its own cursor, and goes on from there
        # by the history.
        messages = self._messages
        if messages is None:
            messages = self._messages = deque()
        elif self._bytes > self._bytes_max or not self._queued.fits(message):
            self.is_slow = True
            self.evict()
            return
        messages.append(message)
        self._queued.add(message)
        self.wake()

    def evict(self) -> None:
        """Queue nothing more for it, and drop what is queued."""
        self._evicted_since_s = self.behind_since_s() or time.monotonic()
        self.is_evicted = True
        self.drop()
        self.group.subscribers.discard(self)
        self.wake()

    def drop(self) -> None:
        """Drop what is queued for it."""
        for message in self._messages or ():
            self._queued.remove(message)
        self._messages = None


class SubscriberGroup:
    """Subscribers who get the same. `is_current`: the last message said that the copy is whole."""

    __slots__ = ("encode", "is_current", "name", "selection", "subscribers")

    def __init__(self, name: Hashable, selection: Selection, encode: Encode) -> None:
        self.name = name
        self.selection = selection
        self.encode = encode
        self.subscribers: set[Subscriber] = set()
        self.is_current = True  # as by the message after which a subscriber joined

    def message(
        self, changes: Sequence[PastChange], broadcaster: "ChangeBroadcaster", *, is_whole: bool
    ) -> Message | None:
        """Return what all subscribers are sent of `changes`, which are all selected; or that this is the whole."""
        if not self.subscribers:  # all are evicted, and have yet to leave
            return None
        selection = self.selection
        shown = list(selection.shown(changes))
        # One that is served no more in the middle of a burst has changes that nobody here has read.
        is_whole = is_whole and (not broadcaster.unserved or broadcaster.is_whole(selection.partitions))
        if not shown and (self.is_current or not is_whole):
            return None
        self.is_current = is_whole
        # Encoded once for all subscribers of the group. It holds the resume token, so each may go on from any message.
        change_positions = {partition: broadcaster.change_positions[partition] for partition in selection.partitions}
        data = self.encode(shown, change_positions, broadcaster.positions, is_whole)
        if changes:
            broadcaster.note_sent(min(change.time_ms for change in changes))
        return Message(data, Accepted(change_positions, time.monotonic()))


class Delivery:
    """A message on its way to the subscribers that a group had when it was made."""

    __slots__ = ("_message", "_rest", "group")

    def __init__(self, group: SubscriberGroup, message: Message) -> None:
        self.group = group
        self._message = message
        self._rest = set(group.subscribers)

    @property
    def is_done(self) -> bool:
        """Return whether all have it."""
        return not self._rest

    def is_for(self, subscriber: Subscriber) -> bool:
        """Return whether a subscriber has yet to get it."""
        return subscriber in self._rest

    def give(self, subscriber: Subscriber) -> None:
        """Give it to one, if it is for it."""
        if subscriber in self._rest:
            self._rest.discard(subscriber)
            self._give(subscriber)

    def give_next(self, most: int) -> None:
        """Give it to so many."""
        rest = self._rest
        for _ in range(min(most, len(rest))):
            self._give(rest.pop())

    def _give(self, subscriber: Subscriber) -> None:
        if subscriber in self.group.subscribers:  # it has not left, nor was it evicted
            subscriber.enqueue(self._message)


class UnsentChanges:
    """Changes that were read, and the groups that have yet to be sent them. `is_whole`: there are no others.

    First they are found for whom they are; `is_found`: that is known of all. `deliveries` are of groups of which some
    have got theirs. `made_s`: when the changes were read, by the monotonic clock.
    """

    __slots__ = ("_changes", "_of_group", "_rest", "_settled", "deliveries", "is_found", "is_whole", "made_s")

    def __init__(self, changes: Sequence[tuple[Partition, Sequence[PastChange]]], *, is_whole: bool) -> None:
        """Begin with changes by partition, oldest first; a partition may come more than once."""
        self.is_whole = is_whole
        self.is_found = False
        self.deliveries: dict[SubscriberGroup, Delivery] = {}
        self.made_s = time.monotonic()
        self._changes = changes
        self._rest = ((partition, change) for partition, past in changes for change in past)
        self._of_group: dict[SubscriberGroup, list[PastChange]] = {}
        self._settled: set[SubscriberGroup] = set()  # before all is found

    @property
    def is_sent(self) -> bool:
        """Return whether all groups have been sent theirs."""
        return self.is_found and not self._of_group and not self.deliveries

    def is_for(self, subscriber: Subscriber) -> bool:
        """Return whether a subscriber may have yet to be sent something."""
        group = subscriber.group
        if group in self._of_group if self.is_found else group not in self._settled:
            return True
        delivery = self.deliveries.get(group)
        return delivery is not None and delivery.is_for(subscriber)

    def settle(self, group: SubscriberGroup) -> None:
        """Let nothing be for a group."""
        if not self.is_found:
            self._settled.add(group)

    def find(self, index: SelectionIndex[SubscriberGroup], most: int) -> None:
        """Find for whom the next changes are, until that is as many groups in all."""
        of_group, left = self._of_group, most
        for partition, change in self._rest:
            groups = index.owners(partition, change)
            for group in groups:
                its_changes = of_group.get(group)
                if its_changes is None:
                    of_group[group] = [change]
                else:
                    its_changes.append(change)
            left -= len(groups) + 1
            if left <= 0:
                return
        for group in self._settled:
            of_group.pop(group, None)
        self.is_found = True

    def add(self, groups: Iterable[SubscriberGroup]) -> None:
        """Be for these, too, at least to say that this is the whole."""
        for group in groups:
            self._of_group.setdefault(group, [])

    def pop(self, group: SubscriberGroup) -> Sequence[PastChange] | None:
        """Return the changes of a group, which are sent to it now; None where it needs nothing."""
        if self.is_found:
            return self._of_group.pop(group, None)
        if group in self._settled:
            return None
        self._settled.add(group)
        selection = group.selection
        return [
            change
            for partition, past in self._changes
            if partition in selection.partition_set
            for change in past
            if selection.holds(change.key)
        ]

    def parts(self, most: int) -> Iterator[list[SubscriberGroup]]:
        """Yield the groups, so many at once as have so many changes, or one."""
        part: list[SubscriberGroup] = []
        left = most
        for group, changes in self._of_group.items():
            part.append(group)
            left -= len(changes) + _CHANGES_OF_MESSAGE + len(group.subscribers)
            if left <= 0:
                yield part
                part, left = [], most
        if part:
            yield part


class ChangeBroadcaster:
    """The changes of one generation of a table. `change_positions` say up to where they were read for subscribers.

    `unserved` are the partitions of these that may not be served now: they stay where they are. `parse` is from row
    bytes to the message. `note_sent` gets the time of the oldest change of each message, in milliseconds
    since 1970. What takes long goes on `at_turn`; then `on_sent` is called once all that was read is sent, with whether
    that was the whole.
    """

    def __init__(
        self,
        store_id: StoreId,
        limits: QueryLimits,
        parse: Callable[[bytes], Any],
        at_turn: AtTurn,
        on_sent: Callable[[bool], None] = lambda _: None,
        note_sent: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.note_sent = note_sent
        self.store_id = store_id
        self.unserved: set[Partition] = set()
        self.change_positions: dict[Partition, ChangePosition] = {}
        self.positions: dict[Partition, Position] = {}
        self._limits = limits
        self._changed: set[Partition] = set()  # may have changes that are not read yet
        self._groups: dict[Hashable, SubscriberGroup] = {}
        self._parse = parse
        self._index: SelectionIndex[SubscriberGroup] = SelectionIndex(parse)
        self._behind: set[SubscriberGroup] = set()  # those that are not current
        self._unsent: UnsentChanges | None = None
        self._at_turn = at_turn
        self._on_sent = on_sent
        self._is_publishing = False
        self._queued = QueuedBytes(limits.queued_bytes_max)

    @property
    def has_subscribers(self) -> bool:
        """Return whether anybody is subscribed."""
        return bool(self._groups)

    @property
    def has_changes(self) -> bool:
        """Return whether partitions are to be read."""
        return bool(self._changed)

    @property
    def is_sending(self) -> bool:
        """Return whether groups have yet to be sent what was read."""
        return self._unsent is not None

    @property
    def is_drained(self) -> bool:
        """Return whether all subscribers have popped what was queued for them."""
        return self._unsent is None and not any(
            subscriber.has_messages for group in self._groups.values() for subscriber in group.subscribers
        )

    def is_whole(self, partitions: Sequence[Partition]) -> bool:
        """Return whether subscribers have been sent all up to the positions of these partitions."""
        return all(self.change_positions[each].offset == self.positions[each].next_offset for each in partitions)

    def add_changed(self, partitions: Iterable[Partition] | None = None) -> None:
        """Have these partitions read at the next `publish`, of those that anybody is subscribed to; None: all."""
        change_positions = self.change_positions
        self._changed.update(
            change_positions if partitions is None else (each for each in partitions if each in change_positions)
        )

    def publish(self, snapshot: Snapshot) -> bool:
        """Send subscribers what is new in `snapshot` of the partitions that have changed; return whether all is read.

        Where it is not, the rest comes with a later call: none reads more while something is unsent. Whatever it
        raises, subscribers are evicted before: they may not have been sent what the change positions say.
        """
        self._is_publishing = True
        try:
            for _ in range(self._limits.publish_messages_max):
                if self._unsent is not None or not self._changed:
                    break
                self._unsent = self._read(snapshot)
                self._find(self._unsent)
        except HistoryLost:
            self.evict_all()
        except BaseException:
            self.evict_all()
            raise
        finally:
            self._is_publishing = False
        return not self._changed

    def _read(self, snapshot: Snapshot) -> UnsentChanges:
        """Read what has changed, as much as goes into one message."""
        limits, unsent = self._limits, []
        budget = ReadBudget(limits.message_rows_max, limits.message_bytes_max)
        # Only what has changed is read, and each partition once for all who are subscribed to it. Changes of several go
        # out in one message until the budget is used up.
        for partition in sorted(self._changed):
            position = snapshot.position(self.store_id, partition)
            if position is None or position.phase is not Phase.LIVE:
                self._changed.discard(partition)  # it changes again when it is live
                self.set_unserved([partition])
                continue
            self.unserved.discard(partition)
            self.positions[partition] = position
            changes, self.change_positions[partition] = read_changes(
                snapshot, self.store_id, partition, self.change_positions[partition], position, budget
            )
            unsent.append((partition, changes))
            if not budget.rows:
                # This partition stays among the changed: its change position says where it goes on.
                return UnsentChanges(unsent, is_whole=False)
            self._changed.discard(partition)
        return UnsentChanges(unsent, is_whole=True)

    def _find(self, unsent: UnsentChanges) -> None:
        """Find for whom changes are, then send them. What one turn has no time for goes on in others."""
        try:
            unsent.find(self._index, self._limits.publish_found_max)
        except QueryError:
            self.evict_all()  # a row is damaged: each reads by its own cursor now, and who meets it fails
            return
        except BaseException:
            self.evict_all()
            raise
        if not unsent.is_found:
            self._go_on_later(unsent, partial(self._find, unsent))
            return
        if unsent.is_whole:
            unsent.add(self._behind)
        if unsent.is_sent:
            self._end(unsent)
            return
        now, *later = [*unsent.parts(self._limits.publish_sent_max)] or [[]]  # some are on their way already
        self._send(now)
        for groups in later:
            self._go_on_later(unsent, partial(self._send, groups))

    def _go_on_later(self, unsent: UnsentChanges, go_on: Callable[[], None]) -> None:
        """Go on when it is the turn, unless all were evicted meanwhile."""
        self._at_turn(lambda: go_on() if unsent is self._unsent else None)

    def _send(self, groups: Sequence[SubscriberGroup]) -> None:
        unsent = self._unsent
        for group in groups:
            if unsent is None or unsent is not self._unsent:
                return
            if (delivery := self._begin(unsent, group)) is not None:
                self._deliver_next(unsent, delivery)

    def has_unsent(self, subscriber: Subscriber) -> bool:
        """Return whether a subscriber may have yet to be sent something that was read: it is not where this is."""
        return self._unsent is not None and self._unsent.is_for(subscriber)

    def unsent_since_s(self, subscriber: Subscriber) -> float | None:
        """Return since when (of the monotonic clock) there is something that it was not sent; None: it was."""
        unsent = self._unsent
        return unsent.made_s if unsent is not None and unsent.is_found and unsent.is_for(subscriber) else None

    def send_unsent(self, subscriber: Subscriber) -> None:
        """Send a subscriber what was read for it, now. Others of its group get that in their turns."""
        unsent, group = self._unsent, subscriber.group
        if unsent is None:
            return
        begun = self._begin(unsent, group)
        if (delivery := unsent.deliveries.get(group)) is not None:
            self._deliver(unsent, delivery, subscriber)
        if begun is not None and not begun.is_done:
            self._go_on_later(unsent, partial(self._deliver_next, unsent, begun))

    def _begin(self, unsent: UnsentChanges, group: SubscriberGroup) -> Delivery | None:
        """Make the message of a group, which is to be delivered; None where there is none, or it was made before."""
        changes = unsent.pop(group)
        if changes is None:
            return None
        try:
            message = group.message(changes, self, is_whole=unsent.is_whole)
        except QueryError:
            self.evict_all()
            return None
        except BaseException:
            self.evict_all()
            raise
        if group.is_current:
            self._behind.discard(group)
        elif group.subscribers:
            self._behind.add(group)
        if message is not None:
            delivery = unsent.deliveries[group] = Delivery(group, message)
            return delivery
        if unsent.is_sent:
            self._end(unsent)
        return None

    def _deliver_next(self, unsent: UnsentChanges, delivery: Delivery) -> None:
        self._deliver(unsent, delivery)
        if not delivery.is_done:
            self._go_on_later(unsent, partial(self._deliver_next, unsent, delivery))

    def _deliver(self, unsent: UnsentChanges, delivery: Delivery, subscriber: Subscriber | None = None) -> None:
        """Give a message to a subscriber, or to as many as one turn has time for; it may be the last of all."""
        try:
            if subscriber is None:
                delivery.give_next(self._limits.publish_given_max)
            else:
                delivery.give(subscriber)
        except BaseException:
            self.evict_all()
            raise
        if delivery.is_done and unsent.deliveries.pop(delivery.group, None) is not None and unsent.is_sent:
            self._end(unsent)

    def _end(self, unsent: UnsentChanges) -> None:
        """All that was read is sent."""
        self._unsent = None
        if not self._is_publishing:
            self._on_sent(unsent.is_whole)

    def set_unserved(self, partitions: Iterable[Partition]) -> None:
        """Leave partitions where they are; wake subscribers when these are new."""
        new = {partition for partition in partitions if partition in self.change_positions} - self.unserved
        if new:
            self.unserved |= new
            self.wake()

    def join(
        self,
        name: Hashable,
        selection: Selection,
        encode: Encode,
        change_positions: ChangePositions,
        positions: Positions,
    ) -> Subscriber | None:
        """Add a subscriber whose copy is at `change_positions`, those of `positions`; None where this is not.

        What is named alike gets the same: it has the same selection, and its messages are encoded alike.
        """
        # Without subscribers nothing was read. Where to go on from is where the first subscriber is.
        if not self._groups:
            self.change_positions, self.positions, self.unserved, self._changed = {}, {}, set(), set()
            self._unsent = None
        if any(
            self.change_positions.get(partition, change_position) != change_position
            for partition, change_position in change_positions.items()
        ):
            return None
        for partition, change_position in change_positions.items():
            self.change_positions[partition] = change_position
            self.positions[partition] = positions[partition]
            self.unserved.discard(partition)
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = SubscriberGroup(name, selection, encode)
            self._index.add(group, selection)
            if self._unsent is not None:
                self._unsent.settle(group)  # the copy has what was read
        elif self._unsent is not None:
            self._send([group])  # who joins has it
            if self._groups.get(name) is not group:  # a row of it is damaged, and all were evicted
                return None
        subscriber = Subscriber(group, self._limits.subscriber_bytes_max, self._queued)
        group.subscribers.add(subscriber)
        return subscriber

    def leave(self, subscriber: Subscriber) -> None:
        """Remove a subscriber."""
        subscriber.drop()
        group = subscriber.group
        group.subscribers.discard(subscriber)
        if not group.subscribers and self._groups.get(group.name) is group:
            del self._groups[group.name]
            self._index.remove(group, group.selection)
            self._behind.discard(group)

    def wake(self) -> None:
        """Wake all subscribers."""
        for group in self._groups.values():
            for subscriber in group.subscribers:
                subscriber.wake()

    def evict_all(self) -> None:
        """Evict all subscribers: nothing more comes from here."""
        for group in list(self._groups.values()):
            for subscriber in list(group.subscribers):
                subscriber.evict()
        self._groups, self._index, self._behind = {}, SelectionIndex(self._parse), set()
        self._unsent, self._changed = None, set()
