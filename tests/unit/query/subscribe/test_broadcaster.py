"""The broadcaster: one reading for all who have everything before it."""

import asyncio
import random
from collections.abc import Callable, Sequence

import pytest
from typing_extensions import override

from tablegate.gateway.contract.types import Offset, Partition, StoreId
from tablegate.gateway.query.errors import CorruptRow
from tablegate.gateway.query.limits import DEFAULT_LIMITS, QueryLimits
from tablegate.gateway.query.subscribe.broadcaster import ChangeBroadcaster, ChangePositions, Positions, Subscriber
from tablegate.gateway.query.subscribe.cursor import Cursor, Given, HistoryLost, ReadBudget, Selection, step
from tablegate.gateway.stores.base import PastChange, Phase, Position, Snapshot, StoreUnavailable
from tests.kit.call.subscribe_world import (
    ALL_RED,
    BLUE,
    EVERYTHING,
    LETTERS,
    ONE_KEY,
    PARTITIONS,
    RED,
    SELECTIONS,
    SOME_KEYS,
    STORE,
    Copy,
    TurnsByHand,
    World,
    at_once,
    positions,
)
from tests.kit.seeds import seeds
from tests.kit.store.changes import position
from tests.kit.store.memory import MemorySnapshot

LONG_S = 1_000.0
P0, P1, P2 = PARTITIONS


class Encoder:
    """Encodes as a number of what it remembers, padded to `size` bytes."""

    def __init__(self, size: int = 1) -> None:
        self.size = size
        self.given: dict[bytes, list[Given]] = {}
        self.whole: dict[bytes, bool] = {}

    def __call__(self, given: Sequence[Given], marks: ChangePositions, at: Positions, is_whole: bool) -> bytes:
        data = (b"%d;" % len(self.given)).ljust(self.size, b".")
        self.given[data], self.whole[data] = list(given), is_whole
        return data


class DamagedRow(Encoder):
    """Meets a row that is damaged."""

    @override
    def __call__(self, given: Sequence[Given], marks: ChangePositions, at: Positions, is_whole: bool) -> bytes:
        raise CorruptRow("a row is damaged")


def join(
    broadcaster: ChangeBroadcaster, world: World, selection: Selection, encoder: Encoder, name: str = ""
) -> Subscriber | None:
    """Join with a copy that is whole now."""
    with world.store.snapshot() as snapshot:
        cursor = Cursor()
        while not step(snapshot, STORE, positions(snapshot), selection, cursor, budget=ReadBudget(9, 999)).is_whole:
            pass
        return broadcaster.join(
            name or str(selection), selection, encoder, cursor.change_positions, positions(snapshot)
        )


def joined(
    broadcaster: ChangeBroadcaster, world: World, selection: Selection, encoder: Encoder, name: str = ""
) -> Subscriber:
    subscriber = join(broadcaster, world, selection, encoder, name)
    assert subscriber is not None
    return subscriber


def publish_all(broadcaster: ChangeBroadcaster, snapshot: Snapshot) -> bool:
    """Publish as when everything may have changed."""
    broadcaster.add_changed()
    return broadcaster.publish(snapshot)


def publish(broadcaster: ChangeBroadcaster, world: World) -> bool:
    with world.store.snapshot() as snapshot:
        return publish_all(broadcaster, snapshot)


def popped(subscriber: Subscriber) -> list[bytes]:
    messages = []
    while (message := subscriber.pop()) is not None:
        messages.append(message.data)
    return messages


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def broadcaster() -> ChangeBroadcaster:
    return ChangeBroadcaster(STORE, DEFAULT_LIMITS, bytes, at_once)


def test_who_asks_for_the_same_gets_the_very_same_bytes(world: World, broadcaster: ChangeBroadcaster) -> None:
    encoder = Encoder()
    first, second = (joined(broadcaster, world, EVERYTHING, encoder) for _ in range(2))
    other = joined(broadcaster, world, ALL_RED, encoder)
    world.write(P0, [(b"a"[0], RED), (b"b"[0], BLUE)])
    assert publish(broadcaster, world)
    [data], [same], [red] = popped(first), popped(second), popped(other)
    assert data is same
    assert len(encoder.given) == 2
    assert encoder.given[data] == [Given(b"a0", b"r1"), Given(b"b0", b"b2")]
    assert encoder.given[red] == [Given(b"a0", b"r1")]


def test_groups_of_one_key_see_that_key_alone(world: World, broadcaster: ChangeBroadcaster) -> None:
    encoder, other_encoder = Encoder(), Encoder()
    subscriber, all_subscriber = (
        joined(broadcaster, world, ONE_KEY, encoder),
        joined(broadcaster, world, EVERYTHING, other_encoder),
    )
    for partition in PARTITIONS:
        world.write(partition, [(letter, RED) for letter in LETTERS])
    publish(broadcaster, world)
    assert [given for data in popped(subscriber) for given in encoder.given[data]] == [Given(b"c1", b"r9")]
    assert sum(len(other_encoder.given[data]) for data in popped(all_subscriber)) == 3 * len(LETTERS)
    world.write(P1, [(b"d"[0], RED)])
    publish(broadcaster, world)
    assert popped(subscriber) == []


def test_a_subscriber_that_pops_too_little_is_evicted_alone(world: World, broadcaster: ChangeBroadcaster) -> None:
    encoder = Encoder(size=DEFAULT_LIMITS.subscriber_bytes_max // 4)
    slow, quick = (joined(broadcaster, world, EVERYTHING, encoder) for _ in range(2))
    for number in range(5):
        assert not slow.is_evicted
        world.write(P0, [(b"a"[0], RED)])
        publish(broadcaster, world)
        assert len(popped(quick)) == 1, number
    assert slow.is_evicted
    assert slow.is_slow
    assert popped(slow) == []
    assert not quick.is_evicted


@pytest.mark.parametrize("leaves", [False, True], ids=["pops", "leaves"])
def test_all_subscribers_together_have_a_bound(world: World, leaves: bool) -> None:
    """What is queued for several counts once; who pops or leaves makes room."""
    broadcaster = ChangeBroadcaster(STORE, QueryLimits(queued_bytes_max=450), bytes, at_once)
    encoder, key_encoder = Encoder(size=100), Encoder(size=100)
    everything = [joined(broadcaster, world, EVERYTHING, encoder) for _ in range(4)]
    one_key = joined(broadcaster, world, ONE_KEY, key_encoder)
    for partition, letter in ((P0, b"a"), (P0, b"a"), (P1, b"c")):  # three messages for four, and one for one
        world.write(partition, [(letter[0], RED)])
        publish(broadcaster, world)
    assert not any(each.is_evicted for each in (*everything, one_key))
    world.write(P0, [(b"a"[0], RED)])
    publish(broadcaster, world)
    assert [each.is_slow for each in (*everything, one_key)] == [True] * 4 + [False]
    later = joined(broadcaster, world, EVERYTHING, encoder)
    for _ in range(8):
        if leaves:
            broadcaster.leave(later)
            later = joined(broadcaster, world, EVERYTHING, encoder)
        for _ in range(2):
            world.write(P0, [(b"a"[0], RED)])
            publish(broadcaster, world)
        if not leaves:
            assert len(popped(later)) == 2
    assert not later.is_evicted


def test_one_message_is_given_however_long(world: World, broadcaster: ChangeBroadcaster) -> None:
    encoder = Encoder(size=DEFAULT_LIMITS.subscriber_bytes_max * 2)
    subscriber = joined(broadcaster, world, EVERYTHING, encoder)
    for _ in range(3):
        world.write(P0, [(b"a"[0], RED)])
        publish(broadcaster, world)
        assert len(popped(subscriber)) == 1
    assert not subscriber.is_evicted


def test_nothing_is_encoded_for_those_who_were_evicted(world: World, broadcaster: ChangeBroadcaster) -> None:
    encoder = Encoder()
    subscriber = joined(broadcaster, world, EVERYTHING, encoder)
    subscriber.evict()
    world.write(P0, [(b"a"[0], RED)])
    publish(broadcaster, world)
    assert not encoder.given
    broadcaster.leave(subscriber)
    assert not broadcaster.has_subscribers


def test_who_is_elsewhere_does_not_join(world: World, broadcaster: ChangeBroadcaster) -> None:
    encoder = Encoder()
    joined(broadcaster, world, EVERYTHING, encoder)
    world.write(P1, [(b"a"[0], RED)])
    assert join(broadcaster, world, ONE_KEY, encoder) is None
    publish(broadcaster, world)
    assert join(broadcaster, world, ONE_KEY, encoder) is not None


def test_an_expired_row_more_is_elsewhere(world: World, broadcaster: ChangeBroadcaster) -> None:
    encoder = Encoder()
    world.write(P1, [(letter, RED) for letter in LETTERS])
    subscriber = joined(broadcaster, world, EVERYTHING, encoder)
    world.expire(P1, b"a")
    assert join(broadcaster, world, ONE_KEY, encoder) is None
    publish(broadcaster, world)
    assert join(broadcaster, world, ONE_KEY, encoder) is not None
    assert [given for data in popped(subscriber) for given in encoder.given[data]] == [Given(b"a1", None)]


def test_a_broadcaster_that_nobody_followed_begins_where_the_next_one_is(
    world: World, broadcaster: ChangeBroadcaster
) -> None:
    encoder = Encoder()
    broadcaster.leave(joined(broadcaster, world, EVERYTHING, encoder))
    world.write(P0, [(b"a"[0], RED)])
    subscriber = joined(broadcaster, world, EVERYTHING, encoder)
    publish(broadcaster, world)
    assert popped(subscriber) == []
    world.write(P0, [(b"a"[0], RED)])
    publish(broadcaster, world)
    [data] = popped(subscriber)
    assert encoder.given[data] == [Given(b"a0", b"r2")]


def test_all_are_evicted_where_the_history_is_too_short(broadcaster: ChangeBroadcaster) -> None:
    world, encoder = World(history_changes_max=3), Encoder()
    subscriber = joined(broadcaster, world, EVERYTHING, encoder)
    for _ in range(4):
        world.write(P0, [(b"a"[0], RED)])
    assert publish(broadcaster, world)
    assert subscriber.is_evicted
    assert not subscriber.is_slow
    assert not broadcaster.has_subscribers


def test_a_partition_that_is_not_served_stays_and_goes_on(world: World, broadcaster: ChangeBroadcaster) -> None:
    encoder = Encoder()
    subscriber = joined(broadcaster, world, EVERYTHING, encoder)
    world.write(P0, [(b"a"[0], RED)])
    world.write(P1, [(b"a"[0], RED)])
    world.store.apply(STORE, P0, [], position(1, phase=Phase.CATCHING_UP))
    publish(broadcaster, world)
    world.store.apply(STORE, P0, [], position(1))
    publish(broadcaster, world)
    assert [given for data in popped(subscriber) for given in encoder.given[data]] == [
        Given(b"a1", b"r2"),
        Given(b"a0", b"r1"),
    ]


def test_subscribers_are_woken_when_a_partition_is_served_no_more(world: World, broadcaster: ChangeBroadcaster) -> None:
    async def talk() -> None:
        subscriber = joined(broadcaster, world, EVERYTHING, Encoder())
        waiting = asyncio.ensure_future(subscriber.wait(LONG_S))
        await asyncio.sleep(0)
        world.store.apply(STORE, P1, [], position(0, phase=Phase.CATCHING_UP))
        publish(broadcaster, world)
        await asyncio.wait_for(waiting, 10)
        assert broadcaster.unserved == {P1}
        world.store.apply(STORE, P1, [], position(0))
        publish(broadcaster, world)
        assert not broadcaster.unserved

    asyncio.run(talk())


def test_a_group_of_some_partitions_is_given_those_alone(world: World, broadcaster: ChangeBroadcaster) -> None:
    encoder = Encoder()
    whole = joined(broadcaster, world, EVERYTHING, encoder, "whole")
    part = joined(broadcaster, world, EVERYTHING.within([P1]), encoder, "part")
    keys = joined(broadcaster, world, SOME_KEYS.within([P2]), encoder, "keys")
    for partition in PARTITIONS:
        world.write(partition, [(letter, RED) for letter in b"ab"])
    publish(broadcaster, world)
    found = [{key for data in popped(each) for key, _ in encoder.given[data]} for each in (whole, part, keys)]
    assert found == [{b"a0", b"b0", b"a1", b"b1", b"a2", b"b2"}, {b"a1", b"b1"}, {b"b2"}]


def test_what_has_not_changed_is_not_read(
    world: World, broadcaster: ChangeBroadcaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, read = Encoder(), list[Partition]()
    subscriber = joined(broadcaster, world, EVERYTHING, encoder)
    joined(broadcaster, world, ONE_KEY, encoder)
    position_of = MemorySnapshot.position

    def counting(self: MemorySnapshot, store_id: StoreId, partition: Partition) -> Position | None:
        read.append(partition)
        return position_of(self, store_id, partition)

    monkeypatch.setattr(MemorySnapshot, "position", counting)
    for partition in (P0, P2):
        world.write(partition, [(b"a"[0], RED)])
    read.clear()
    broadcaster.add_changed([P2, Partition(99)])
    with world.store.snapshot() as snapshot:
        assert broadcaster.publish(snapshot)
    assert read == [P2]
    [data] = popped(subscriber)
    assert encoder.given[data] == [Given(b"a2", b"r2")]
    assert encoder.whole[data]
    assert not broadcaster.has_changes


def test_the_rest_of_a_burst_stays_to_be_read(world: World) -> None:
    broadcaster = ChangeBroadcaster(STORE, QueryLimits(message_rows_max=2, publish_messages_max=1), bytes, at_once)
    encoder = Encoder()
    subscriber = joined(broadcaster, world, EVERYTHING, encoder)
    for partition in (P0, P1):
        world.write(partition, [(letter, RED) for letter in LETTERS])
    broadcaster.add_changed([P0, P1])
    turns = 0
    while broadcaster.has_changes:
        with world.store.snapshot() as snapshot:
            assert broadcaster.publish(snapshot) != broadcaster.has_changes
        turns += 1
    assert turns > 3
    assert sum(len(encoder.given[data]) for data in popped(subscriber)) == 2 * len(LETTERS)


def test_a_burst_that_is_broken_off_makes_no_copy_whole(world: World) -> None:
    """A partition may be served no more before all of a burst is read: what says so comes when it is here again."""
    broadcaster = ChangeBroadcaster(STORE, QueryLimits(message_rows_max=2, publish_messages_max=1), bytes, at_once)
    encoder = Encoder()
    subscriber = joined(broadcaster, world, EVERYTHING, encoder)
    others = joined(broadcaster, world, EVERYTHING.within([P1]), encoder, "others")
    for partition in (P0, P1):
        world.write(partition, [(letter, RED) for letter in LETTERS])
    assert not publish(broadcaster, world)
    end = world.next_offsets[P0]
    for phase, is_whole in ((Phase.CATCHING_UP, False), (Phase.LIVE, True)):
        world.store.apply(STORE, P0, [], position(end, phase=phase))
        for _ in LETTERS:
            publish(broadcaster, world)
        assert encoder.whole[popped(subscriber)[-1]] is is_whole
        if not is_whole:
            assert encoder.whole[popped(others)[-1]]
    assert sum(map(len, encoder.given.values())) == 3 * len(LETTERS)


def test_a_group_of_many_is_given_its_message_in_turns(world: World) -> None:
    turns, encoder, sent = TurnsByHand(), Encoder(), list[bool]()
    limits = QueryLimits(publish_given_max=2)
    broadcaster = ChangeBroadcaster(STORE, limits, bytes, turns, on_sent=sent.append)
    members = [joined(broadcaster, world, EVERYTHING, encoder) for _ in range(7)]
    world.write(P0, [(b"a"[0], RED)])
    publish(broadcaster, world)
    have = [each for each in members if each.has_messages]
    assert len(have) == 2
    waiting = [each for each in members if broadcaster.has_unsent(each)]
    assert {*have, *waiting} == {*members}
    assert all(broadcaster.unsent_since_s(each) for each in waiting)
    first, gone, evicted = waiting[:3]
    broadcaster.send_unsent(first)  # as who tells its client that it has all
    broadcaster.send_unsent(first)
    broadcaster.leave(gone)
    evicted.evict()
    late = joined(broadcaster, world, EVERYTHING, encoder)
    assert not broadcaster.has_unsent(late)
    world.write(P0, [(b"b"[0], BLUE)])
    assert not publish(broadcaster, world)  # no more is read until all have it
    while broadcaster.is_sending:
        turns.give()
    assert sent == [True]
    assert [len(popped(each)) for each in members] == [0 if each in (gone, evicted) else 1 for each in members]
    publish(broadcaster, world)
    while broadcaster.is_sending:
        turns.give()
    assert [len(popped(each)) for each in (*have, first, late)] == [1, 1, 1, 1]


def test_nobody_joins_a_group_that_was_evicted_meanwhile(world: World) -> None:
    """Who joins makes its group's message at once. What is damaged in it ends the group: it would hear of nothing."""
    turns, encoder = TurnsByHand(), Encoder()
    broadcaster = ChangeBroadcaster(STORE, QueryLimits(publish_sent_max=1), bytes, turns)
    joined(broadcaster, world, ALL_RED, encoder)
    first = joined(broadcaster, world, EVERYTHING, DamagedRow(), "everything")
    world.write(P0, [(b"a"[0], RED)])
    publish(broadcaster, world)
    assert broadcaster.has_unsent(first)
    assert join(broadcaster, world, EVERYTHING, encoder, "everything") is None
    assert first.is_evicted
    second = joined(broadcaster, world, EVERYTHING, encoder, "everything")
    world.write(P0, [(b"a"[0], RED)])
    publish(broadcaster, world)
    assert len(popped(second)) == 1


def test_a_read_that_fails_evicts_all(
    world: World, broadcaster: ChangeBroadcaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would never get what had been read before it."""
    encoder = Encoder()
    subscriber = joined(broadcaster, world, EVERYTHING, encoder)
    world.write(P0, [(b"a"[0], RED)])
    history = MemorySnapshot.history

    def failing(
        self: MemorySnapshot, store_id: StoreId, partition: Partition, *, start: Offset, limit: int, skip: int = 0
    ) -> list[PastChange]:
        if partition == P1:
            raise StoreUnavailable("the disk is gone")
        return history(self, store_id, partition, start=start, limit=limit, skip=skip)

    monkeypatch.setattr(MemorySnapshot, "history", failing)
    with pytest.raises(StoreUnavailable):
        publish(broadcaster, world)
    assert subscriber.is_evicted
    assert not broadcaster.has_subscribers


def test_a_burst_is_given_in_turns_and_its_end_is_told_to_all(world: World) -> None:
    broadcaster = ChangeBroadcaster(STORE, QueryLimits(message_rows_max=4, publish_messages_max=2), bytes, at_once)
    encoder, key_encoder = Encoder(), Encoder()
    subscriber, key_subscriber = (
        joined(broadcaster, world, EVERYTHING, encoder),
        joined(broadcaster, world, ONE_KEY, key_encoder),
    )
    world.write(P0, [(letter, RED) for letter in LETTERS])
    world.write(P1, [(b"c"[0], RED), *((b"a"[0], RED) for _ in range(10))])
    turns = 1
    while not publish(broadcaster, world):
        turns += 1
        assert not broadcaster.is_whole(PARTITIONS)
    assert turns == 3
    assert broadcaster.is_whole(PARTITIONS)
    messages = popped(subscriber)
    assert [encoder.whole[data] for data in messages] == [False] * (len(messages) - 1) + [True]
    assert sum(len(encoder.given[data]) for data in messages) == 17
    given, told = popped(key_subscriber)
    assert key_encoder.given[given] == [Given(b"c1", b"r7")]
    assert (key_encoder.given[told], key_encoder.whole[told]) == ([], True)
    assert publish(broadcaster, world)
    assert popped(subscriber) == popped(key_subscriber) == []


def test_waiting_ends_with_a_message_a_wake_an_eviction_and_in_time(
    world: World, broadcaster: ChangeBroadcaster
) -> None:
    encoder = Encoder()

    async def talk() -> None:
        subscriber = joined(broadcaster, world, EVERYTHING, encoder)

        def write() -> None:
            world.write(P0, [(b"a"[0], RED)])
            publish(broadcaster, world)

        ways: list[Callable[[], None]] = [broadcaster.wake, write, subscriber.evict]
        for way in ways:
            popped(subscriber)
            waiting = asyncio.ensure_future(subscriber.wait(LONG_S))
            await asyncio.sleep(0)
            assert not waiting.done()
            way()
            await asyncio.wait_for(waiting, 10)
        await asyncio.wait_for(subscriber.wait(LONG_S), 10)  # it was evicted
        await asyncio.wait_for(joined(broadcaster, world, EVERYTHING, encoder).wait(0.0), 10)

    asyncio.run(talk())


class Follower:
    """A copy that is fed where it can be, and steps by itself where not. Sometimes it takes nothing for a while."""

    def __init__(self, selection: Selection, encoder: Encoder) -> None:
        self.copy = Copy(selection)
        self.encoder = encoder
        self.subscriber: Subscriber | None = None

    def take(self, world: World) -> None:
        """Take all that it was given."""
        subscriber = self.subscriber
        if subscriber is None:
            return
        while (message := subscriber.pop()) is not None:
            self.copy.take(self.encoder.given[message.data])
            self.copy.cursor.change_positions = dict(message.accepted.change_positions)
            self.copy.check(world)

    def move(self, world: World, broadcaster: ChangeBroadcaster) -> None:
        """Take all that there is and be where the broadcaster is, as who sends progress."""
        if self.subscriber is None:
            return
        broadcaster.send_unsent(self.subscriber)
        assert not broadcaster.has_unsent(self.subscriber)
        self.take(world)
        if not self.subscriber.is_evicted:
            partitions = self.copy.selection.partitions
            self.copy.cursor.change_positions = {each: broadcaster.change_positions[each] for each in partitions}
            self.copy.check(world)

    def come_back(self, world: World, broadcaster: ChangeBroadcaster) -> None:
        """Step and join again, where it was evicted."""
        if self.subscriber is not None and not self.subscriber.is_evicted:
            return
        if self.subscriber is not None:
            broadcaster.leave(self.subscriber)
            self.subscriber = None
        with world.store.snapshot() as snapshot:
            at = positions(snapshot)
            try:
                result = step(snapshot, STORE, at, self.copy.selection, self.copy.cursor, budget=ReadBudget(4, 30))
            except HistoryLost:
                self.copy.reset()
                return
            self.copy.take(result.given)
            self.copy.check(world)
            broadcaster.add_changed(self.copy.selection.partitions)
            broadcaster.publish(snapshot)
            if result.is_whole:
                name, marks = id(self.encoder), self.copy.cursor.change_positions
                self.subscriber = broadcaster.join(name, self.copy.selection, self.encoder, marks, at)


@pytest.mark.tools
@pytest.mark.parametrize("names", [False, True], ids=["everything", "named partitions"])
@pytest.mark.parametrize("seed", seeds(25, in_check=3))
def test_any_mix_of_subscribers_leaves_each_copy_where_its_marks_say(seed: int, names: bool) -> None:
    """Notifications say that everything may have changed, or which partitions have."""
    choice, by_hand = random.Random(seed), seed % 3 > 0
    limits = QueryLimits(
        message_rows_max=3,
        subscriber_bytes_max=40,
        publish_messages_max=2,
        publish_found_max=choice.choice([1, 4, 1_000]),
        publish_sent_max=choice.choice([1, 50]),
        publish_given_max=choice.choice([1, 2, 300]),
    )
    turns = TurnsByHand()
    world = World(history_changes_max=choice.choice([15, 1_000]))
    broadcaster = ChangeBroadcaster(STORE, limits, bytes, turns if by_hand else at_once)
    encoders = [Encoder(size=8) for _ in SELECTIONS]
    subscribers = [
        Follower(selection, encoder) for selection, encoder in zip(SELECTIONS * 2, encoders * 2, strict=True)
    ]
    evicted = sending = 0
    changed: set[Partition] = set()  # since the last notification
    for _ in range(150):
        partition = choice.choice(PARTITIONS)
        changed.add(partition)
        if choice.random() < 0.2:
            world.expire(partition, choice.sample(LETTERS, choice.randrange(4)))
        else:
            count = choice.randrange(12)
            world.write(partition, [(choice.choice(LETTERS), choice.choice([RED, BLUE, None])) for _ in range(count)])
        if choice.random() < 0.7:
            broadcaster.add_changed(changed if names else None)
            changed.clear()
            with world.store.snapshot() as snapshot:
                broadcaster.publish(snapshot)
        sending += broadcaster.is_sending
        for one in subscribers:
            for _ in range(choice.choice([0, 0, 1, 2])):
                turns.give()
            if choice.random() < 0.5:
                one.take(world)
            if choice.random() < 0.1:
                one.move(world, broadcaster)
            if choice.random() < 0.8:
                evicted += one.subscriber is not None and one.subscriber.is_evicted
                one.come_back(world, broadcaster)
            if one.subscriber is not None and choice.random() < 0.02:
                broadcaster.leave(one.subscriber)
                one.subscriber = None
    assert evicted
    assert bool(sending) == by_hand
    for one in subscribers:
        for _ in range(200):
            one.come_back(world, broadcaster)
            publish(broadcaster, world)
            while turns.waiting:
                turns.give()
            one.take(world)
        one.copy.check_whole(world)
