"""A subscriber's cursor: which state of the table its copy is, exactly, at any moment of the way.

How it works:

1. A copy starts empty. It is filled partition by partition, in key order, a bounded number of rows at each step.
2. Changes go on meanwhile. A step reads them in the same snapshot as its rows, before the rows, and for each partition
   that was begun: of the one that is being filled, only changes of keys up to `after_key`. A key beyond it needs none:
   its row comes later, and has them.
3. So after each step the copy of a partition equals the store at one position, up to one key: no gap, no overlap, and
   no row goes back in time. Whatever happens next, the cursor is enough to go on: it is what a resume token holds.
4. What has been filled completely needs only its change positions. From there the broadcaster sends one message to all
   subscribers that stand at the same place; a cursor of its own is needed again only for who falls behind.

An offset alone is not a position: rows that expire are removed without a record, between two offsets, each store in its
own time. So a change position also counts how many such removals at its offset were sent, and of which incarnation of
the partition they are (`incarnation_id`).

The idea of reading a table in chunks between its changes is that of DBLog (Andreakis and Papapanagiotou, 2019); one
snapshot of both makes its watermarks needless. Tested against a model in tests/unit/query/subscribe.

Decision: docs/decisions/0024-snapshot-behind-the-history.md
Decision: docs/decisions/0072-a-new-snapshot-has-floors.md
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from tablegate.gateway.contract.lineage import UNKNOWN_EPOCH, Place, is_of_another_log, place_at
from tablegate.gateway.contract.types import Offset, Partition, StoreId
from tablegate.gateway.query.requests import Fixed
from tablegate.gateway.stores.base import PastChange, Position, Snapshot

EXPIRED_READ = 1_000

Matches = Callable[[bytes], bool]
"""Whether row bytes pass the filters of a subscription, and are seen at all."""
See = Callable[[bytes], bytes | None]
"""From row bytes to what is seen of them."""


class HistoryLost(Exception):
    """The history does not reach back to the cursor, or is of another incarnation or log: only a new snapshot helps."""


class ChangePosition(NamedTuple):
    """Up to where changes of a partition were sent: those below `offset`, and `skip` of what expired at `offset`.

    `incarnation_id` is that of the store's position: what has expired is known of that incarnation alone.
    `leader_epoch` and `gap` say of which log the offset is (`contract.lineage.Place`).
    """

    offset: Offset
    skip: int = 0
    incarnation_id: int = 0
    leader_epoch: int = UNKNOWN_EPOCH
    gap: int = 0

    @property
    def place(self) -> Place:
        """Return up to where the changelog was read."""
        return Place(self.offset, self.leader_epoch, self.gap)


class Given(NamedTuple):
    """What a subscriber is given: a row, or with `row` None that the key has none any more."""

    key: bytes
    row: bytes | None


@dataclass(slots=True)
class ReadBudget:
    """How much more may be read at once: rows or changes, and bytes. One is always read, however long."""

    rows: int
    bytes: int

    def reserve(self, sizes: Sequence[int]) -> int:
        """Return how many of things of these sizes there is room for, in their order, and give it to them."""
        fitting = sizes[: self.rows]
        total = sum(fitting)
        if total <= self.bytes:
            count, self.bytes = len(fitting), self.bytes - total
        else:
            count = 0
            for size in fitting:
                # A row longer than all that may be sent at once would otherwise never be sent.
                if size > self.bytes and count:
                    break
                self.bytes = max(0, self.bytes - size)
                count += 1
        is_full = count < len(sizes) or not self.bytes
        self.rows = 0 if is_full else self.rows - count
        return count


@dataclass(frozen=True)
class Selection:
    """Which rows a subscription is for: start <= key < end (None: to the last), and `matches` where it is not None.

    `keys` are those that can be in it, by partition and in order, where it is for certain keys; else None. `see`: from
    a row that matches to what is given of it; None: all. `fixed`: columns of which all rows that match have one value.
    `hides`: columns are kept from the subscriber, who is not to hear when nothing but those has changed.
    """

    partitions: Sequence[Partition]
    start: bytes
    end: bytes | None
    matches: Matches | None = None
    keys: Mapping[Partition, Sequence[bytes]] | None = None
    see: See | None = None
    fixed: Sequence[Fixed] = ()
    hides: bool = False

    @cached_property
    def partition_set(self) -> frozenset[Partition]:
        """Its partitions."""
        return frozenset(self.partitions)

    @cached_property
    def holds(self) -> Callable[[bytes], bool]:
        """Whether a key of its partitions is in it."""
        start, end = self.start, self.end
        if self.keys is not None:
            return frozenset(key for keys in self.keys.values() for key in keys).__contains__
        if end is None:
            return start.__le__
        return lambda key: start <= key < end

    def within(self, partitions: Collection[Partition]) -> "Selection":
        """Return what there is of it in some partitions."""
        chosen = frozenset(partitions)
        kept = [partition for partition in self.partitions if partition in chosen]
        keys = self.keys
        return replace(
            self, partitions=kept, keys=None if keys is None else {each: keys[each] for each in kept if each in keys}
        )

    def shown(self, changes: Sequence[PastChange]) -> Iterator[Given]:
        """Yield what a subscriber sees of changes whose keys are in it."""
        matches, see = self.matches, self.see
        for _, key, _, row, _, before in changes:
            if row is not None and (matches is None or matches(row)):
                given = row if see is None else see(row)
                if not (self.hides and self._had(before, given)):
                    yield Given(key, given)
            elif before is not None and (matches is None or matches(before)):
                yield Given(key, None)

    def _had(self, before: bytes | None, given: bytes | None) -> bool:
        """Return whether what is given of a row was given of the one before."""
        if before is None or self.see is None or (self.matches is not None and not self.matches(before)):
            return False
        return self.see(before) == given


@dataclass(slots=True)
class Cursor:
    """Where a copy is. `change_positions` are those of the partitions whose rows were begun.

    `filling` is the index, in the selection's partitions, of the one that is being filled; their number when all
    are filled. `after_key` is the last key that was sent of it. `floors`: where the copy before this one was. A
    partition is begun once the store has all up to its floor, so that no row goes back in time.
    """

    change_positions: dict[Partition, ChangePosition] = field(default_factory=dict)
    filling: int = 0
    after_key: bytes = b""
    floors: Mapping[Partition, ChangePosition] = field(default_factory=dict)

    def begun_anew(self) -> "Cursor":
        """Return the cursor of a copy that takes the place of this one."""
        return Cursor(floors={**self.floors, **self.change_positions})


@dataclass(frozen=True, slots=True)
class Step:
    """What a step gives.

    `is_whole`: the copy is the store's state in the snapshot. `is_ahead`: the store has to come up to the cursor first.
    Neither: another step goes on.
    """

    given: list[Given]
    is_whole: bool
    is_ahead: bool = False


def step(
    snapshot: Snapshot,
    store_id: StoreId,
    positions: Mapping[Partition, Position],
    selection: Selection,
    cursor: Cursor,
    *,
    budget: ReadBudget,
    conflate: bool = False,
) -> Step:
    """Move the cursor on by as much as there is room for, and return what that gives; raise `HistoryLost`.

    `positions` are those of the snapshot. With `conflate` the changes of a key that are read at once are given as one.
    """
    given: list[Given] = []
    is_ahead = False
    for partition in selection.partitions[: cursor.filling + 1]:
        start = cursor.change_positions.get(partition)
        if start is None:
            continue
        if not budget.rows:
            return Step(given, is_whole=False)
        changes, moved = read_changes(snapshot, store_id, partition, start, positions[partition], budget)
        cursor.change_positions[partition] = moved
        # Changes of keys beyond `after_key` are dropped, not kept: their rows are still to be read, and will have them.
        known = _known(changes, selection, cursor, partition)
        given += selection.shown(joined(known) if conflate else known)
        # The token came from a gateway that was further. Rows read now would be older than changes that were sent
        # already.
        is_ahead |= moved.offset > positions[partition].next_offset
    if is_ahead:
        return Step(given, is_whole=False, is_ahead=True)
    while budget.rows and cursor.filling < len(selection.partitions):
        if _is_below_floor(positions, cursor, selection.partitions[cursor.filling]):
            return Step(given, is_whole=False, is_ahead=True)
        matches, see = selection.matches, selection.see
        rows = _next_rows(snapshot, store_id, positions, selection, cursor, budget)
        given += [Given(key, row if see is None else see(row)) for key, row in rows if matches is None or matches(row)]
    return Step(given, is_whole=bool(budget.rows) and cursor.filling == len(selection.partitions))


def start_live(
    snapshot: Snapshot, store_id: StoreId, positions: Mapping[Partition, Position], selection: Selection
) -> Cursor:
    """Return the cursor of whoever wants what changes after `positions` alone."""
    newest = {each: newest_position(snapshot, store_id, each, positions[each]) for each in selection.partitions}
    return Cursor(newest, filling=len(newest))


def read_changes(
    snapshot: Snapshot,
    store_id: StoreId,
    partition: Partition,
    start: ChangePosition,
    position: Position,
    budget: ReadBudget,
) -> tuple[list[PastChange], ChangePosition]:
    """Return changes from `start` to `position`, as many as there is room for, and the change position behind them.

    Raise `HistoryLost`.
    """
    # Of another log are records that the changelog has lost: the copy has them, and no change takes them back.
    if start.incarnation_id != position.incarnation_id or is_of_another_log(start.place, position.lineage):
        raise HistoryLost
    if start.offset > position.next_offset:
        return [], start  # made on a gateway that was further: there is nothing to read yet
    # Changes between the two were dropped from the history: to go on would leave a gap that nobody sees.
    if start.offset < position.history_start:
        raise HistoryLost
    found = snapshot.history(store_id, partition, start=start.offset, limit=budget.rows + 1, skip=start.skip)
    count = budget.reserve([len(change.key) + len(change.row or b"") for change in found])
    if count < len(found):
        at = found[count].offset
        return found[:count], _change_position(position, at, _count_at(at, found[:count], start))
    # At the next offset there is nothing but what expired before its record came.
    at = position.next_offset
    return found, _change_position(position, at, _count_at(at, found, start))


def joined(changes: Sequence[PastChange]) -> list[PastChange]:
    """Return one change for each key: from before the first of it to after the last, in the order of the last."""
    newest: dict[bytes, PastChange] = {}
    for change in changes:
        earlier = newest.pop(change.key, None)
        # `before` decides whether a deletion is shown at all: what counts is what the subscriber has, from before the
        # first.
        newest[change.key] = change if earlier is None else change._replace(before=earlier.before)
    return list(newest.values())


def _change_position(position: Position, offset: Offset, skip: int) -> ChangePosition:
    _, leader_epoch, gap = place_at(position.lineage, offset)
    return ChangePosition(offset, skip, position.incarnation_id, leader_epoch, gap)


def _count_at(offset: Offset, read: Sequence[PastChange], start: ChangePosition) -> int:
    """Return how many changes of an offset were given, with those before `start`."""
    return sum(1 for change in read if change.offset == offset) + (start.skip if start.offset == offset else 0)


def newest_position(snapshot: Snapshot, store_id: StoreId, partition: Partition, position: Position) -> ChangePosition:
    """Return the change position of whoever has all up to `position`, what has expired there included."""
    at, skip = position.next_offset, 0
    # Expirations at the next offset are in the rows of this snapshot already. They are counted, so that they are not
    # sent.
    while found := snapshot.history(store_id, partition, start=at, limit=EXPIRED_READ, skip=skip):
        skip += len(found)
    return _change_position(position, at, skip)


def _known(
    changes: Sequence[PastChange], selection: Selection, cursor: Cursor, partition: Partition
) -> list[PastChange]:
    """Return the changes of keys that are selected, and that the rows sent so far have reached."""
    known = [change for change in changes if selection.holds(change.key)]
    if cursor.filling < len(selection.partitions) and selection.partitions[cursor.filling] == partition:
        return [change for change in known if change.key <= cursor.after_key]
    return known


def _is_below_floor(positions: Mapping[Partition, Position], cursor: Cursor, partition: Partition) -> bool:
    """Return whether a partition is not to be begun, as the copy before this one had more of it."""
    floor, position = cursor.floors.get(partition), positions[partition]
    if floor is None or partition in cursor.change_positions or position.next_offset >= floor.offset:
        return False
    return not is_of_another_log(floor.place, position.lineage)


def _next_rows(
    snapshot: Snapshot,
    store_id: StoreId,
    positions: Mapping[Partition, Position],
    selection: Selection,
    cursor: Cursor,
    budget: ReadBudget,
) -> list[tuple[bytes, bytes]]:
    """Return the next rows of the partition that is being filled, and move the cursor behind them."""
    partition = selection.partitions[cursor.filling]
    if partition not in cursor.change_positions:
        # The changes up to this snapshot are in its rows. What the filling reads from now on begins behind them.
        cursor.change_positions[partition] = newest_position(snapshot, store_id, partition, positions[partition])
    # One more than there is room for: it tells whether the partition ends here, without another read.
    found = _rows_after(snapshot, store_id, partition, selection, cursor.after_key, budget.rows + 1)
    count = budget.reserve([len(row) for _, row in found])
    if count < len(found):
        cursor.after_key = found[count - 1][0]
    else:
        cursor.filling, cursor.after_key = cursor.filling + 1, b""
    return found[:count]


def _rows_after(
    snapshot: Snapshot, store_id: StoreId, partition: Partition, selection: Selection, after_key: bytes, limit: int
) -> list[tuple[bytes, bytes]]:
    """Return at most `limit` rows of the selection, in key order."""
    if selection.keys is None:
        start = after_key + b"\x00" if after_key else selection.start
        return snapshot.range(store_id, partition, start=start, end=selection.end, limit=limit)
    keys = selection.keys[partition]
    rows = snapshot.get_many(store_id, partition, keys)
    return [(key, row) for key, row in zip(keys, rows, strict=True) if row is not None and key > after_key][:limit]
