"""The feed of a table: its new changes, read once for all subscribers that have everything before them.

Subscribers who ask for the same are a group, and get the very same bytes. A member that does not take what it is given
costs a bounded number of bytes and nobody's time: it is let go, and comes back by its own cursor. Where a member waits,
and its client takes a message at once, no task has to run for it.
"""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tablegate.gateway.contract.types import Partition, StoreId
from tablegate.gateway.query.subscribe.cursor import (
    ChangePosition,
    Given,
    HistoryLost,
    ReadBudget,
    Selection,
    read_changes,
)
from tablegate.gateway.stores.base import PastChange, Phase, Position, Snapshot

MESSAGE_ROWS_MAX = 500
MESSAGE_BYTES_MAX = 64 * 1024
MEMBER_BYTES_MAX = 256 * 1024  # given to a member that has not taken it yet
PUMP_MESSAGES_MAX = 2  # before subscribers get their turn: half of what one may leave untaken

Marks = Mapping[Partition, ChangePosition]
Positions = Mapping[Partition, Position]
Changes = list[tuple[Partition, list[PastChange]]]
"""Changes by partition, oldest first; a partition may come more than once."""


class Message(NamedTuple):
    """What members of a group are given: the bytes, where whoever took them stands, and when they were made."""

    data: bytes
    marks: Marks
    made_s: float  # of the monotonic clock


Offer = Callable[[bytes], bool]
"""Sends bytes to a client at once, or returns False."""

Encode = Callable[[Sequence[Given], Marks, Positions, bool], bytes]
"""From what is given, the marks behind it, positions, and whether the copy is then whole, to a message's bytes."""


class Subscriber:
    """A subscriber, live. `lost`: it was let go; `is_slow`: because it took too little.

    `newest` is the last message that it took, or that its client took from an offer; whoever has noted it may clear it.
    """

    def __init__(self, group: "SubscriberGroup") -> None:
        self.group = group
        self.lost = False
        self.is_slow = False
        self.newest: Message | None = None
        self._messages: deque[Message] = deque()
        self._bytes = 0
        self._waiting: asyncio.Future[None] | None = None
        self._offer: Offer | None = None

    @property
    def has_messages(self) -> bool:
        """Return whether there is something to take."""
        return bool(self._messages)

    def take(self) -> Message | None:
        """Return the next message; None where there is none now."""
        if not self._messages:
            return None
        message = self._messages.popleft()
        self._bytes -= len(message.data)
        self.newest = message
        return message

    async def wait(self, timeout_s: float, offer: Offer | None = None) -> None:
        """Return when there is something to take, or the member is let go or woken, or after `timeout_s`.

        There is nothing to take of what is taken from an `offer`.
        """
        if self._messages or self.lost:
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

    def wake(self) -> None:
        """Let it look around."""
        if self._waiting is not None and not self._waiting.done():
            self._offer = None
            self._waiting.set_result(None)

    def give(self, message: Message) -> None:
        """Give it a message; let it go where it has too many."""
        if self._offer is not None and self._offer(message.data):
            self.newest = message
            return
        self._bytes += len(message.data)
        if self._bytes > MEMBER_BYTES_MAX and self._messages:
            self.is_slow = True
            self.let_go()
        else:
            self._messages.append(message)
            self.wake()

    def let_go(self) -> None:
        """Give it nothing more."""
        self.lost = True
        self._messages.clear()
        self.group.members.discard(self)
        self.wake()


class SubscriberGroup:
    """Members who get the same. `is_told_whole`: the last message said that the copy is whole."""

    def __init__(self, name: Hashable, selection: Selection, encode: Encode) -> None:
        self.name = name
        self.selection = selection
        self.partitions = frozenset(selection.partitions)
        self.encode = encode
        self.members: set[Subscriber] = set()
        self.is_told_whole = True  # as by the message after which a member joined

    def wanted_keys(self) -> Iterator[bytes]:
        """Yield the keys of the selection, where it is for certain ones."""
        for keys in (self.selection.keys or {}).values():
            yield from keys

    def give(self, changes: Sequence[PastChange], feed: "ChangeBroadcaster", *, is_whole: bool) -> None:
        """Give all members what they see of `changes`, which are all selected; or that this is the whole."""
        selection = self.selection
        given = list(selection.shown(changes))
        has_news = bool(given) or (is_whole and not self.is_told_whole)
        if not has_news or not self.members:
            return
        self.is_told_whole = is_whole
        marks = {partition: feed.marks[partition] for partition in selection.partitions}
        message = Message(self.encode(given, marks, feed.positions, is_whole), marks, time.monotonic())
        for member in list(self.members):
            member.give(message)


class ChangeBroadcaster:
    """The changes of one life of a table. `marks` say up to where members have been given them.

    `unserved` are the partitions of these that may not be served now: they stay where they are.
    """

    def __init__(self, store_id: StoreId) -> None:
        self.store_id = store_id
        self.unserved: set[Partition] = set()
        self.marks: dict[Partition, ChangePosition] = {}
        self.positions: dict[Partition, Position] = {}
        self._groups: dict[Hashable, SubscriberGroup] = {}
        self._keys: dict[bytes, list[SubscriberGroup]] = {}  # groups of one key
        self._runs: list[SubscriberGroup] = []  # all others

    @property
    def is_followed(self) -> bool:
        """Return whether anybody is fed."""
        return bool(self._groups)

    @property
    def is_taken(self) -> bool:
        """Return whether all members have taken what they were given."""
        return not any(member.has_messages for group in self._groups.values() for member in group.members)

    def is_whole(self, partitions: Sequence[Partition]) -> bool:
        """Return whether members have been given all up to the positions of these partitions."""
        return all(self.marks[each].offset == self.positions[each].next_offset for each in partitions)

    def pump(self, snapshot: Snapshot, partitions: Sequence[Partition]) -> bool:
        """Give members what is new in `snapshot`; return whether that is all of it.

        Whatever it raises, members are let go before: they may not have been given what the marks say.
        """
        try:
            return self._pump(snapshot, partitions)
        except HistoryLost:
            self.break_off()
            return True
        except BaseException:
            self.break_off()
            raise

    def _pump(self, snapshot: Snapshot, partitions: Sequence[Partition]) -> bool:
        messages = 0
        pending: Changes = []
        room = ReadBudget(MESSAGE_ROWS_MAX, MESSAGE_BYTES_MAX)
        for partition in partitions:
            if partition not in self.marks:
                continue
            position = snapshot.position(self.store_id, partition)
            if position is None or position.phase is not Phase.LIVE:
                self.leave_unserved([partition])
                continue
            self.unserved.discard(partition)
            self.positions[partition] = position
            while True:
                changes, self.marks[partition] = read_changes(
                    snapshot, self.store_id, partition, self.marks[partition], position, room
                )
                pending.append((partition, changes))
                if room.rows:
                    break
                self._give(pending, is_whole=False)
                pending, room = [], ReadBudget(MESSAGE_ROWS_MAX, MESSAGE_BYTES_MAX)
                messages += 1
                if messages == PUMP_MESSAGES_MAX:
                    return False
        self._give(pending, is_whole=True)
        return True

    def _give(self, changes: Changes, *, is_whole: bool) -> None:
        self._give_changes([(partition, past) for partition, past in changes if past], is_whole=is_whole)
        if is_whole:
            for group in self._groups.values():
                if not group.is_told_whole:
                    group.give((), self, is_whole=True)

    def _give_changes(self, changes: Changes, *, is_whole: bool) -> None:
        if not changes:
            return
        for group in self._runs:
            holds = group.selection.holds
            selected = [
                change
                for partition, past in changes
                if partition in group.partitions
                for change in past
                if holds(change.key)
            ]
            group.give(selected, self, is_whole=is_whole)
        if self._keys:
            found: defaultdict[SubscriberGroup, list[PastChange]] = defaultdict(list)
            for _, past in changes:
                for change in past:
                    for group in self._keys.get(change.key, ()):
                        found[group].append(change)
            for group, its_changes in found.items():
                group.give(its_changes, self, is_whole=is_whole)

    def leave_unserved(self, partitions: Iterable[Partition]) -> None:
        """Leave partitions where they are; members look around when these are new."""
        new = {partition for partition in partitions if partition in self.marks} - self.unserved
        if new:
            self.unserved |= new
            self.wake()

    def join(
        self, name: Hashable, selection: Selection, encode: Encode, marks: Marks, positions: Positions
    ) -> Subscriber | None:
        """Feed a subscriber whose copy is at `marks`, which are those of `positions`; None where the feed is elsewhere.

        What is named alike gets the same: it has the same selection, and its messages are encoded alike.
        """
        if not self._groups:
            self.marks, self.positions, self.unserved = {}, {}, set()
        if any(self.marks.get(partition, mark) != mark for partition, mark in marks.items()):
            return None
        for partition, mark in marks.items():
            self.marks[partition] = mark
            self.positions[partition] = positions[partition]
            self.unserved.discard(partition)
        group = self._groups.get(name)
        if group is None:
            group = SubscriberGroup(name, selection, encode)
            self._add(group)
        member = Subscriber(group)
        group.members.add(member)
        return member

    def leave(self, member: Subscriber) -> None:
        """Feed a member no more."""
        group = member.group
        group.members.discard(member)
        if not group.members and self._groups.get(group.name) is group:
            self._remove(group)

    def _add(self, group: SubscriberGroup) -> None:
        """Note what a new group looks at: certain keys, or each change."""
        self._groups[group.name] = group
        if group.selection.keys is None:
            self._runs.append(group)
            return
        for key in group.wanted_keys():
            self._keys.setdefault(key, []).append(group)

    def _remove(self, group: SubscriberGroup) -> None:
        del self._groups[group.name]
        if group.selection.keys is None:
            self._runs.remove(group)
            return
        for key in group.wanted_keys():
            self._keys[key].remove(group)
            if not self._keys[key]:
                del self._keys[key]

    def wake(self) -> None:
        """Let all members look around."""
        for group in self._groups.values():
            for member in group.members:
                member.wake()

    def break_off(self) -> None:
        """Let all members go: there will be nothing more to give them from here."""
        for group in list(self._groups.values()):
            for member in list(group.members):
                member.let_go()
        self._groups, self._keys, self._runs = {}, {}, []
