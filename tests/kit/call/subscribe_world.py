"""A table that changes, as a plain list of what happened; and copies of it, which fail where they break a promise.

It knows nothing of steps, marks that move, rooms or groups.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from tablegate.gateway.contract.types import Partition, StoreId
from tablegate.gateway.query.requests import Fixed
from tablegate.gateway.query.subscribe.cursor import ChangePosition, Cursor, Given, Selection
from tablegate.gateway.stores.base import Position, Snapshot
from tests.kit.store.changes import change, position
from tests.kit.store.memory import MemoryStore

STORE = StoreId(1)
PARTITIONS = [Partition(number) for number in range(3)]
LETTERS = b"abcdef"
RED, BLUE = b"r", b"b"


def at_once(go_on: Callable[[], None]) -> None:
    """Give a turn to whoever asks for one."""
    go_on()


class TurnsByHand:
    """Gives turns when it is told to, in the order in which they were asked for."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], None]] = deque()

    def __call__(self, go_on: Callable[[], None]) -> None:
        self.waiting.append(go_on)

    def give(self) -> None:
        """Give the next turn, if anybody waits for one."""
        if self.waiting:
            self.waiting.popleft()()


def key_of(partition: Partition, letter: int) -> bytes:
    return bytes([letter]) + b"%d" % partition


def is_red(row: bytes) -> bool:
    return row.startswith(RED)


def sequence_of(row: bytes) -> int:
    return int(row[1:])


def fixed(colour: bytes) -> list[Fixed]:
    """Return that all rows of a selection have this colour."""
    return [Fixed("colour", colour, itemgetter(slice(1)))]


EVERYTHING = Selection(PARTITIONS, b"", None)
ALL_RED = Selection(PARTITIONS, b"", None, is_red)
A_RUN = Selection(PARTITIONS, b"b", b"e", is_red)
FOUND_BY_COLOUR = Selection(PARTITIONS, b"", None, is_red, fixed=fixed(RED))
FOUND_BY_START = Selection(PARTITIONS, b"b", b"c")
FOUND_BY_BOTH = Selection(PARTITIONS[1:], b"b", b"c", is_red, fixed=fixed(RED))
ONE_KEY = Selection([Partition(1)], b"c1", b"c1\x00", None, {Partition(1): [b"c1"]})
SOME_KEYS = Selection(
    [Partition(0), Partition(2)], b"", None, is_red, {Partition(0): [b"a0", b"c0", b"e0", b"z0"], Partition(2): [b"b2"]}
)
NOTHING = Selection((), b"", b"")
SELECTIONS = [EVERYTHING, ALL_RED, A_RUN, FOUND_BY_COLOUR, FOUND_BY_START, FOUND_BY_BOTH, ONE_KEY, SOME_KEYS, NOTHING]


@dataclass(frozen=True)
class Happened:
    """A record's change, or with `order` the removal of an expired row: the how manieth before the record came."""

    offset: int
    key: bytes
    row: bytes | None
    order: int | None = None


class World:
    """A table's changelog, and the store that is up to date with it."""

    def __init__(self, *, history_changes_max: int = 1_000) -> None:
        self.store = MemoryStore(history_changes_max=history_changes_max)
        self.happened: dict[Partition, list[Happened]] = {each: [] for each in PARTITIONS}
        self.next_offsets: dict[Partition, int] = dict.fromkeys(PARTITIONS, 0)
        self.sequence = 0
        for partition in PARTITIONS:
            self.store.apply(STORE, partition, [], position(0))

    def write(self, partition: Partition, changed: Iterable[tuple[int, bytes | None]], gap: int = 0) -> None:
        """Write rows of a colour (None: tombstones); `gap` offsets after them hold no change."""
        changes = []
        for letter, colour in changed:
            self.sequence += 1
            offset = self.next_offsets[partition]
            row = None if colour is None else colour + b"%d" % self.sequence
            changes.append(change(offset, key_of(partition, letter), self.sequence, row))
            self.happened[partition].append(Happened(offset, changes[-1].key, row))
            self.next_offsets[partition] += 1
        self.next_offsets[partition] += gap
        self.store.apply(STORE, partition, changes, position(self.next_offsets[partition]))

    def expire(self, partition: Partition, letters: Iterable[int]) -> None:
        offset, rows = self.next_offsets[partition], self.state(partition)
        keys = [key for letter in letters if (key := key_of(partition, letter)) in rows]
        first = sum(1 for each in self.happened[partition] if each.offset == offset)
        assert self.store.expire(STORE, partition, keys, time_ms=0) == len(keys)
        self.happened[partition] += [Happened(offset, key, None, first + number) for number, key in enumerate(keys)]

    def state(self, partition: Partition, mark: ChangePosition | None = None) -> dict[bytes, bytes]:
        """Return the rows at a mark; None: of now."""
        rows: dict[bytes, bytes] = {}
        for each in self.happened[partition]:
            if mark is not None:
                is_skipped = each.order is not None and each.order < mark.skip
                if each.offset > mark.offset or (each.offset == mark.offset and not is_skipped):
                    break
            if each.row is None:
                rows.pop(each.key, None)
            else:
                rows[each.key] = each.row
        return rows

    def shown(
        self, selection: Selection, partition: Partition, mark: ChangePosition | None = None
    ) -> dict[bytes, bytes]:
        """Return what a selection has of `state`."""
        matches, holds = selection.matches, selection.holds
        return {
            key: row
            for key, row in self.state(partition, mark).items()
            if holds(key) and (matches is None or matches(row))
        }


def positions(snapshot: Snapshot) -> Mapping[Partition, Position]:
    found = {each: snapshot.position(STORE, each) for each in PARTITIONS}
    return {each: position for each, position in found.items() if position is not None}


@dataclass
class Copy:
    """A subscriber's copy, and where it is."""

    selection: Selection
    cursor: Cursor = field(default_factory=Cursor)
    rows: dict[bytes, bytes] = field(default_factory=dict)

    def take(self, given: Sequence[Given]) -> None:
        for key, row in given:
            if row is None:
                assert key in self.rows, "a delete of a row that the copy lacks"
                del self.rows[key]
            else:
                known = self.rows.get(key)
                assert known is None or sequence_of(known) < sequence_of(row), "a row that is no newer"
                self.rows[key] = row

    def reset(self) -> None:
        self.cursor, self.rows = Cursor(), {}

    def part(self, partition: Partition) -> dict[bytes, bytes]:
        return {key: row for key, row in self.rows.items() if key.endswith(b"%d" % partition)}

    def check(self, world: World) -> None:
        """Fail unless the copy is what its cursor says."""
        for number, partition in enumerate(self.selection.partitions):
            mark = self.cursor.change_positions.get(partition)
            assert number <= self.cursor.filling or mark is None
            wanted = {} if mark is None else world.shown(self.selection, partition, mark)
            if number == self.cursor.filling:
                wanted = {key: row for key, row in wanted.items() if key <= self.cursor.after_key}
            assert self.part(partition) == wanted

    def check_whole(self, world: World) -> None:
        """Fail unless the copy is the table of now."""
        for partition in self.selection.partitions:
            assert self.part(partition) == world.shown(self.selection, partition)
