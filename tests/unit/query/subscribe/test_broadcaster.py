"""The feed: one reading for all who have everything before it."""

import asyncio
import random
from collections.abc import Callable, Sequence

import pytest
from tablegate.gateway.contract.types import Offset, Partition, StoreId
from tablegate.gateway.query.subscribe import broadcaster as feeds
from tablegate.gateway.query.subscribe.broadcaster import ChangeBroadcaster, Marks, Positions, Subscriber
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
    World,
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

    def __call__(self, given: Sequence[Given], marks: Marks, at: Positions, is_whole: bool) -> bytes:
        data = (b"%d;" % len(self.given)).ljust(self.size, b".")
        self.given[data], self.whole[data] = list(given), is_whole
        return data


def join(
    feed: ChangeBroadcaster, world: World, selection: Selection, encoder: Encoder, name: str = ""
) -> Subscriber | None:
    """Join with a copy that is whole now."""
    with world.store.snapshot() as snapshot:
        cursor = Cursor()
        while not step(snapshot, STORE, positions(snapshot), selection, cursor, room=ReadBudget(9, 999)).is_whole:
            pass
        return feed.join(name or str(selection), selection, encoder, cursor.marks, positions(snapshot))


def joined(feed: ChangeBroadcaster, world: World, selection: Selection, encoder: Encoder, name: str = "") -> Subscriber:
    member = join(feed, world, selection, encoder, name)
    assert member is not None
    return member


def publish_all(feed: ChangeBroadcaster, snapshot: Snapshot) -> bool:
    """Publish as when everything may have changed."""
    feed.add_changed()
    return feed.publish(snapshot)


def pump(feed: ChangeBroadcaster, world: World) -> bool:
    with world.store.snapshot() as snapshot:
        return publish_all(feed, snapshot)


def taken(member: Subscriber) -> list[bytes]:
    messages = []
    while (message := member.pop()) is not None:
        messages.append(message.data)
    return messages


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def feed() -> ChangeBroadcaster:
    return ChangeBroadcaster(STORE)


def test_who_asks_for_the_same_gets_the_very_same_bytes(world: World, feed: ChangeBroadcaster) -> None:
    encoder = Encoder()
    first, second = (joined(feed, world, EVERYTHING, encoder) for _ in range(2))
    other = joined(feed, world, ALL_RED, encoder)
    world.write(P0, [(b"a"[0], RED), (b"b"[0], BLUE)])
    assert pump(feed, world)
    [data], [same], [red] = taken(first), taken(second), taken(other)
    assert data is same
    assert len(encoder.given) == 2
    assert encoder.given[data] == [Given(b"a0", b"r1"), Given(b"b0", b"b2")]
    assert encoder.given[red] == [Given(b"a0", b"r1")]


def test_groups_of_one_key_see_that_key_alone(world: World, feed: ChangeBroadcaster) -> None:
    encoder, other_encoder = Encoder(), Encoder()
    member, all_member = joined(feed, world, ONE_KEY, encoder), joined(feed, world, EVERYTHING, other_encoder)
    for partition in PARTITIONS:
        world.write(partition, [(letter, RED) for letter in LETTERS])
    pump(feed, world)
    assert [given for data in taken(member) for given in encoder.given[data]] == [Given(b"c1", b"r9")]
    assert sum(len(other_encoder.given[data]) for data in taken(all_member)) == 3 * len(LETTERS)
    world.write(P1, [(b"d"[0], RED)])
    pump(feed, world)
    assert taken(member) == []


def test_a_member_that_takes_too_little_is_let_go_alone(world: World, feed: ChangeBroadcaster) -> None:
    encoder = Encoder(size=feeds.SUBSCRIBER_BYTES_MAX // 4)
    slow, quick = (joined(feed, world, EVERYTHING, encoder) for _ in range(2))
    for number in range(5):
        assert not slow.is_evicted
        world.write(P0, [(b"a"[0], RED)])
        pump(feed, world)
        assert len(taken(quick)) == 1, number
    assert slow.is_evicted
    assert slow.is_slow
    assert taken(slow) == []
    assert not quick.is_evicted


def test_one_message_is_given_however_long(world: World, feed: ChangeBroadcaster) -> None:
    encoder = Encoder(size=feeds.SUBSCRIBER_BYTES_MAX * 2)
    member = joined(feed, world, EVERYTHING, encoder)
    for _ in range(3):
        world.write(P0, [(b"a"[0], RED)])
        pump(feed, world)
        assert len(taken(member)) == 1
    assert not member.is_evicted


def test_nothing_is_encoded_for_those_who_were_let_go(world: World, feed: ChangeBroadcaster) -> None:
    encoder = Encoder()
    member = joined(feed, world, EVERYTHING, encoder)
    member.evict()
    world.write(P0, [(b"a"[0], RED)])
    pump(feed, world)
    assert not encoder.given
    feed.leave(member)
    assert not feed.has_subscribers


def test_who_is_elsewhere_does_not_join(world: World, feed: ChangeBroadcaster) -> None:
    encoder = Encoder()
    joined(feed, world, EVERYTHING, encoder)
    world.write(P1, [(b"a"[0], RED)])
    assert join(feed, world, ONE_KEY, encoder) is None
    pump(feed, world)
    assert join(feed, world, ONE_KEY, encoder) is not None


def test_an_expired_row_more_is_elsewhere(world: World, feed: ChangeBroadcaster) -> None:
    encoder = Encoder()
    world.write(P1, [(letter, RED) for letter in LETTERS])
    member = joined(feed, world, EVERYTHING, encoder)
    world.expire(P1, b"a")
    assert join(feed, world, ONE_KEY, encoder) is None
    pump(feed, world)
    assert join(feed, world, ONE_KEY, encoder) is not None
    assert [given for data in taken(member) for given in encoder.given[data]] == [Given(b"a1", None)]


def test_a_feed_that_nobody_followed_begins_where_the_next_one_is(world: World, feed: ChangeBroadcaster) -> None:
    encoder = Encoder()
    feed.leave(joined(feed, world, EVERYTHING, encoder))
    world.write(P0, [(b"a"[0], RED)])
    member = joined(feed, world, EVERYTHING, encoder)
    pump(feed, world)
    assert taken(member) == []
    world.write(P0, [(b"a"[0], RED)])
    pump(feed, world)
    [data] = taken(member)
    assert encoder.given[data] == [Given(b"a0", b"r2")]


def test_all_are_let_go_where_the_history_is_too_short(feed: ChangeBroadcaster) -> None:
    world, encoder = World(history_changes_max=3), Encoder()
    member = joined(feed, world, EVERYTHING, encoder)
    for _ in range(4):
        world.write(P0, [(b"a"[0], RED)])
    assert pump(feed, world)
    assert member.is_evicted
    assert not member.is_slow
    assert not feed.has_subscribers


def test_a_partition_that_is_not_served_stays_and_goes_on(world: World, feed: ChangeBroadcaster) -> None:
    encoder = Encoder()
    member = joined(feed, world, EVERYTHING, encoder)
    world.write(P0, [(b"a"[0], RED)])
    world.write(P1, [(b"a"[0], RED)])
    world.store.apply(STORE, P0, [], position(1, phase=Phase.CATCHING_UP))
    pump(feed, world)
    world.store.apply(STORE, P0, [], position(1))
    pump(feed, world)
    assert [given for data in taken(member) for given in encoder.given[data]] == [
        Given(b"a1", b"r2"),
        Given(b"a0", b"r1"),
    ]


def test_members_look_around_when_a_partition_is_served_no_more(world: World, feed: ChangeBroadcaster) -> None:
    async def talk() -> None:
        member = joined(feed, world, EVERYTHING, Encoder())
        waiting = asyncio.ensure_future(member.wait(LONG_S))
        await asyncio.sleep(0)
        world.store.apply(STORE, P1, [], position(0, phase=Phase.CATCHING_UP))
        pump(feed, world)
        await asyncio.wait_for(waiting, 10)
        assert feed.unserved == {P1}
        world.store.apply(STORE, P1, [], position(0))
        pump(feed, world)
        assert not feed.unserved

    asyncio.run(talk())


def test_a_group_of_some_partitions_is_given_those_alone(world: World, feed: ChangeBroadcaster) -> None:
    encoder = Encoder()
    whole = joined(feed, world, EVERYTHING, encoder, "whole")
    part = joined(feed, world, EVERYTHING.within([P1]), encoder, "part")
    keys = joined(feed, world, SOME_KEYS.within([P2]), encoder, "keys")
    for partition in PARTITIONS:
        world.write(partition, [(letter, RED) for letter in b"ab"])
    pump(feed, world)
    found = [{key for data in taken(each) for key, _ in encoder.given[data]} for each in (whole, part, keys)]
    assert found == [{b"a0", b"b0", b"a1", b"b1", b"a2", b"b2"}, {b"a1", b"b1"}, {b"b2"}]


def test_what_has_not_changed_is_not_read(
    world: World, feed: ChangeBroadcaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, read = Encoder(), list[Partition]()
    member = joined(feed, world, EVERYTHING, encoder)
    joined(feed, world, ONE_KEY, encoder)
    position_of = MemorySnapshot.position

    def counting(self: MemorySnapshot, store_id: StoreId, partition: Partition) -> Position | None:
        read.append(partition)
        return position_of(self, store_id, partition)

    monkeypatch.setattr(MemorySnapshot, "position", counting)
    for partition in (P0, P2):
        world.write(partition, [(b"a"[0], RED)])
    read.clear()
    feed.add_changed([P2, Partition(99)])
    with world.store.snapshot() as snapshot:
        assert feed.publish(snapshot)
    assert read == [P2]
    [data] = taken(member)
    assert encoder.given[data] == [Given(b"a2", b"r2")]
    assert encoder.whole[data]
    assert not feed.has_changes


def test_the_rest_of_a_burst_stays_to_be_read(
    world: World, feed: ChangeBroadcaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "MESSAGE_ROWS_MAX", 2)
    monkeypatch.setattr(feeds, "PUBLISH_MESSAGES_MAX", 1)
    encoder = Encoder()
    member = joined(feed, world, EVERYTHING, encoder)
    for partition in (P0, P1):
        world.write(partition, [(letter, RED) for letter in LETTERS])
    feed.add_changed([P0, P1])
    turns = 0
    while feed.has_changes:
        with world.store.snapshot() as snapshot:
            assert feed.publish(snapshot) != feed.has_changes
        turns += 1
    assert turns > 3
    assert sum(len(encoder.given[data]) for data in taken(member)) == 2 * len(LETTERS)


def test_a_read_that_fails_lets_all_go(world: World, feed: ChangeBroadcaster, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would never get what had been read before it."""
    encoder = Encoder()
    member = joined(feed, world, EVERYTHING, encoder)
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
        pump(feed, world)
    assert member.is_evicted
    assert not feed.has_subscribers


def test_a_burst_is_given_in_turns_and_its_end_is_told_to_all(
    world: World, feed: ChangeBroadcaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "MESSAGE_ROWS_MAX", 4)
    monkeypatch.setattr(feeds, "PUBLISH_MESSAGES_MAX", 2)
    encoder, key_encoder = Encoder(), Encoder()
    member, key_member = joined(feed, world, EVERYTHING, encoder), joined(feed, world, ONE_KEY, key_encoder)
    world.write(P0, [(letter, RED) for letter in LETTERS])
    world.write(P1, [(b"c"[0], RED), *((b"a"[0], RED) for _ in range(10))])
    turns = 1
    while not pump(feed, world):
        turns += 1
        assert not feed.is_whole(PARTITIONS)
    assert turns == 3
    assert feed.is_whole(PARTITIONS)
    messages = taken(member)
    assert [encoder.whole[data] for data in messages] == [False] * (len(messages) - 1) + [True]
    assert sum(len(encoder.given[data]) for data in messages) == 17
    given, told = taken(key_member)
    assert key_encoder.given[given] == [Given(b"c1", b"r7")]
    assert (key_encoder.given[told], key_encoder.whole[told]) == ([], True)
    assert pump(feed, world)
    assert taken(member) == taken(key_member) == []


def test_waiting_ends_with_a_message_a_wake_being_let_go_and_in_time(world: World, feed: ChangeBroadcaster) -> None:
    encoder = Encoder()

    async def talk() -> None:
        member = joined(feed, world, EVERYTHING, encoder)

        def write() -> None:
            world.write(P0, [(b"a"[0], RED)])
            pump(feed, world)

        ways: list[Callable[[], None]] = [feed.wake, write, member.evict]
        for way in ways:
            taken(member)
            waiting = asyncio.ensure_future(member.wait(LONG_S))
            await asyncio.sleep(0)
            assert not waiting.done()
            way()
            await asyncio.wait_for(waiting, 10)
        await asyncio.wait_for(member.wait(LONG_S), 10)  # it was let go
        await asyncio.wait_for(joined(feed, world, EVERYTHING, encoder).wait(0.0), 10)

    asyncio.run(talk())


class Follower:
    """A copy that is fed where it can be, and steps by itself where not. Sometimes it takes nothing for a while."""

    def __init__(self, selection: Selection, encoder: Encoder) -> None:
        self.copy = Copy(selection)
        self.encoder = encoder
        self.member: Subscriber | None = None

    def take(self, world: World) -> None:
        """Take all that it was given."""
        member = self.member
        if member is None:
            return
        while (message := member.pop()) is not None:
            self.copy.take(self.encoder.given[message.data])
            self.copy.cursor.marks = dict(message.marks)
            self.copy.check(world)

    def come_back(self, world: World, feed: ChangeBroadcaster) -> None:
        """Step and join again, where it was let go."""
        if self.member is not None and not self.member.is_evicted:
            return
        if self.member is not None:
            feed.leave(self.member)
            self.member = None
        with world.store.snapshot() as snapshot:
            at = positions(snapshot)
            try:
                result = step(snapshot, STORE, at, self.copy.selection, self.copy.cursor, room=ReadBudget(4, 30))
            except HistoryLost:
                self.copy.reset()
                return
            self.copy.take(result.given)
            self.copy.check(world)
            feed.add_changed(self.copy.selection.partitions)
            if result.is_whole and feed.publish(snapshot):
                name, marks = id(self.encoder), self.copy.cursor.marks
                self.member = feed.join(name, self.copy.selection, self.encoder, marks, at)


@pytest.mark.parametrize("names", [False, True], ids=["everything", "named partitions"])
@pytest.mark.parametrize("seed", seeds(25, in_check=8))
def test_any_mix_of_members_leaves_each_copy_where_its_marks_say(
    seed: int, names: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Notifications say that everything may have changed, or which partitions have."""
    for name, limit in (("MESSAGE_ROWS_MAX", 3), ("SUBSCRIBER_BYTES_MAX", 40), ("PUBLISH_MESSAGES_MAX", 2)):
        monkeypatch.setattr(feeds, name, limit)
    choice = random.Random(seed)
    world, feed = World(history_changes_max=choice.choice([15, 1_000])), ChangeBroadcaster(STORE)
    encoders = [Encoder(size=8) for _ in SELECTIONS]
    subscribers = [
        Follower(selection, encoder) for selection, encoder in zip(SELECTIONS * 2, encoders * 2, strict=True)
    ]
    let_go = 0
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
            feed.add_changed(changed if names else None)
            changed.clear()
            with world.store.snapshot() as snapshot:
                feed.publish(snapshot)
        for one in subscribers:
            if choice.random() < 0.5:
                one.take(world)
            if choice.random() < 0.8:
                let_go += one.member is not None and one.member.is_evicted
                one.come_back(world, feed)
    assert let_go
    for one in subscribers:
        for _ in range(200):
            one.come_back(world, feed)
            pump(feed, world)
            one.take(world)
        one.copy.check_whole(world)
