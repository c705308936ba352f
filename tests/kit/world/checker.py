"""Holds what clients were answered to the fold of the changelog, and says which guarantee broke.

It imports nothing of the product. What it knows comes from the brokers' side alone: every record as it was appended,
before compaction took it away, and when. From these it computes itself what a table was at a position: of each key the
record of the highest version before that offset. An answer states its position (`Stated`), and must be that fold.

A changelog that lost its tail has several branches: what was appended before each loss, and what is there now. An
answer may be of any branch while gateways find out (`is_settled` False); afterwards of the present one alone.

The names of guarantees are those of docs/explanation/guarantees.md. Each check costs what its answer is long, however
long the log is: histories of real gateways (`tests/kit/histories`) are checked here as well.

Decision: docs/decisions/0071-worlds-from-seeds.md
Decision: docs/decisions/0075-histories-of-real-runs.md
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

Version = tuple[int, int]
"""Generation and sequence."""


class Guarantee(Enum):
    """What is promised, in the words of the page."""

    NO_LOST_UPDATE = "no lost update"
    NEVER_BACK = "never back in time"
    CONVERGENCE = "convergence"
    STALENESS = "honest staleness"
    NOT_FOUND = 'no false "not found"'
    PAGES = "sane pages"
    OWN_WRITES = "read your writes"
    LATEST = "latest"
    WHOLE = "subscriptions are whole"
    RESUME = "resume"
    STAYS_UP = "it stays up"
    MALFORMED = "malformed records stop nobody"
    LOST_LOG = "a lost or recreated changelog is noticed"
    RESURRECTION = "no resurrection"


class GuaranteeBroken(AssertionError):
    """A promise that was not kept; `guarantee` says which."""

    def __init__(self, guarantee: Guarantee, text: str) -> None:
        super().__init__(f"{guarantee.value}: {text}")
        self.guarantee = guarantee
        self.text = text


class Appended(NamedTuple):
    """A record as the brokers got it; without a `key`, it is no row. `count` is the row's content, None: a tombstone.

    `true_ms` is the world's time, which goes on from record to record; `broker_ms` what the broker's clock said.
    """

    offset: int
    key: int | None
    version: Version | None
    count: int | None
    true_ms: int
    broker_ms: int


@dataclass(slots=True)
class _Branch:
    """A changelog partition between two losses. `final`: the offset of its last marker, which ends it."""

    records: list[Appended] = field(default_factory=list)
    start: int = 0  # of `records`; what is before it was never there
    end: int = 0
    final: int | None = None
    by_key: dict[int, list[Appended]] = field(default_factory=dict)
    _winners: dict[int, list[Appended]] = field(default_factory=dict)  # of each of `by_key`: the highest version so far

    def append(self, record: Appended) -> None:
        if self.records and self.records[-1].broker_ms > record.broker_ms:
            # The brokers' clock went back: what it had passed by then is all that can be said of the record's time.
            record = record._replace(broker_ms=self.records[-1].broker_ms)
        self.records.append(record)
        self.end = record.offset + 1
        if record.key is not None:
            self.by_key.setdefault(record.key, []).append(record)
            winners = self._winners.setdefault(record.key, [])
            is_higher = not winners or _version(record) > _version(winners[-1])
            winners.append(record if is_higher else winners[-1])

    def cut(self, offset: int) -> "_Branch":
        """Return the branch that begins with what is before an offset."""
        branch = _Branch(final=self.final if self.final is not None and self.final < offset else None)
        for record in self.records:
            if record.offset < offset:
                branch.append(record)
        branch.end = offset
        return branch

    def winner(self, key: int, position: int) -> Appended | None:
        """Return the record of the highest version before a position; None where there is none."""
        records = self.by_key.get(key, [])
        place = bisect_left(records, self.ends_at(position), key=_offset)
        return self._winners[key][place - 1] if place else None

    def ends_at(self, position: int) -> int:
        """Return the position, or the one behind the last marker where that is less."""
        return position if self.final is None else min(position, self.final + 1)

    def first_from(self, position: int) -> Appended | None:
        """Return the first record of the table at or behind a position; None where there is none."""
        place = bisect_left(self.records, position, key=_offset)
        found = self.records[place] if place < len(self.records) else None
        return found if found is not None and (self.final is None or found.offset <= self.final) else None

    def keys_between(self, low: int, high: int) -> set[int]:
        """Return the keys that have a record from `low` up to `high`."""
        begin, end = (bisect_left(self.records, offset, key=_offset) for offset in (low, high))
        return {record.key for record in self.records[begin:end] if record.key is not None}

    def stays(self, key: int, low: int, high: int) -> bool:
        """Return whether a key has the same row at each position from `low` to `high`."""
        counts = self._counts(key, low, high)
        return len(counts) == 1 and None not in counts

    def is_always_there(self, key: int, low: int, high: int) -> bool:
        """Return whether the key has a row at each position from `low` to `high`."""
        return None not in self._counts(key, low, high)

    def _counts(self, key: int, low: int, high: int) -> set[int | None]:
        """Return what the rows of a key count at the positions from `low` to `high`; None: there is no row at one."""
        moments = [low, *(record.offset + 1 for record in self.by_key.get(key, ()) if low <= record.offset < high)]
        return {None if (winner := self.winner(key, moment)) is None else winner.count for moment in moments}


def _version(record: Appended) -> Version:
    assert record.version is not None
    return record.version


def _offset(record: Appended) -> int:
    return record.offset


class Stated(NamedTuple):
    """What an answer says of itself: generation, next offset by partition, and the time that it misses nothing of."""

    generation: int
    positions: Mapping[int, int]
    as_of_ms: int | None


class TrueLog:
    """Every record of every changelog, as it was appended. Names of changelogs are generations."""

    def __init__(self) -> None:
        self._branches: dict[tuple[int, int], list[_Branch]] = {}
        self._partitions: dict[tuple[int, int], int] = {}
        self._losses: list[tuple[tuple[int, int], int]] = []

    def append(self, generation: int, partition: int, record: Appended) -> None:
        """Note a record."""
        self._of(generation, partition)[-1].append(record)
        if record.key is not None:
            self._partitions[generation, record.key] = partition

    def end_with(self, generation: int, partition: int, offset: int) -> None:
        """Note that the record at an offset was the last marker: nothing behind it belongs to the table."""
        branch = self._of(generation, partition)[-1]
        if branch.final is None:
            branch.final = offset

    def lose_tail(self, generation: int, partition: int, offset: int) -> None:
        """Note that the records at and behind an offset are gone."""
        branches = self._of(generation, partition)
        branches.append(branches[-1].cut(offset))
        self._losses.append(((generation, partition), offset))

    def losses(self) -> int:
        """Return how often a partition has lost its tail."""
        return len(self._losses)

    def kept(self, ends: Mapping[tuple[int, int], int], losses: int) -> Mapping[tuple[int, int], int]:
        """Return ends from when there were so many `losses`, before what was lost since: nobody can have that."""
        kept = dict(ends)
        for place, offset in self._losses[losses:]:
            kept[place] = min(kept.get(place, 0), offset)
        return kept

    def _of(self, generation: int, partition: int) -> list[_Branch]:
        return self._branches.setdefault((generation, partition), [_Branch()])

    def has(self, generation: int, partition: int) -> bool:
        """Return whether there is such a changelog partition."""
        return (generation, partition) in self._branches

    def branches(self, generation: int, partition: int, *, is_settled: bool) -> list[_Branch]:
        """Return the branches that an answer may be of, the present one first."""
        found = self._of(generation, partition)
        return found[-1:] if is_settled else found[::-1]

    def written_between(self, before: Stated, after: Stated) -> set[int] | None:
        """Return the keys with records between two positions of the same partitions, on the way forward.

        None where anything else may be otherwise, too: a tail was lost, or what comes behind a last marker is none.
        """
        if before.generation != after.generation or before.positions.keys() != after.positions.keys():
            return None
        found: set[int] = set()
        for partition, high in after.positions.items():
            [*others, branch] = self._of(after.generation, partition)
            low = before.positions[partition]
            if others or branch.final is not None or low > high:
                return None
            found |= branch.keys_between(low, high)
        return found

    def partition_of(self, generation: int, key: int) -> int | None:
        """Return where records of a key were written; None where none was."""
        return self._partitions.get((generation, key))

    def keys(self, generation: int) -> list[int]:
        """Return all keys that ever had a record."""
        return sorted(key for number, key in self._partitions if number == generation)

    def end(self, generation: int, partition: int) -> int:
        """Return the first offset that is not written."""
        return self._of(generation, partition)[-1].end

    def newest(self, key: int) -> Appended | None:
        """Return the record of a key with the highest sequence in any generation; None where there is none."""
        found = [
            record
            for branches in self._branches.values()
            for branch in branches
            for record in branch.by_key.get(key, ())
        ]
        return max(found, key=lambda record: _version(record)[1], default=None)

    def fold(self, generation: int, partition: int, position: int) -> dict[int, int]:
        """Return key → count of a partition at a position, of the present branch."""
        branch = self._of(generation, partition)[-1]
        winners = {key: branch.winner(key, position) for key in branch.by_key}
        return {key: each.count for key, each in winners.items() if each is not None and each.count is not None}


class Checker:
    """Holds answers to the log."""

    def __init__(self, log: TrueLog) -> None:
        self.log = log
        self.is_settled = False
        self.checked = 0

    # One answer.

    def rows(self, stated: Stated, keys: Iterable[int], rows: Mapping[int, int], what: str) -> None:
        """Check the rows of an answer about `keys`: of each what the fold at the stated position has, or none."""
        self.checked += 1
        for partition, position in stated.positions.items():
            if position > max(each.end for each in self.log.branches(stated.generation, partition, is_settled=False)):
                text = f"{what} is at {position} of partition {partition}, which ends before"
                raise GuaranteeBroken(Guarantee.NO_LOST_UPDATE, text)
        for key in keys:
            partition = self.log.partition_of(stated.generation, key)
            if partition is None:
                if key in rows:
                    raise GuaranteeBroken(Guarantee.CONVERGENCE, f"{what} has key {key}, which was never written")
            elif partition in stated.positions:
                self._row(stated, partition, key, rows.get(key), what)
        for key in rows:
            partition = self.log.partition_of(stated.generation, key)
            if partition not in stated.positions:
                raise GuaranteeBroken(Guarantee.PAGES, f"{what} has key {key} of partition {partition}, not read")
        self._time(stated, what)

    def sought(self, stated: Stated, key: int, count: int, found: int | None, what: str) -> None:
        """Check what was found by a count, which `key` alone ever has: that key, or None where it has another one."""
        partition = self.log.partition_of(stated.generation, key)
        if found not in (None, key):
            raise GuaranteeBroken(Guarantee.CONVERGENCE, f"{what} finds key {found} by {count}, that of {key}")
        if partition is None:
            if found is not None:
                raise GuaranteeBroken(Guarantee.CONVERGENCE, f"{what} has key {key}, which was never written")
            return
        if partition not in stated.positions:
            raise GuaranteeBroken(Guarantee.NOT_FOUND, f"{what} says of partition {partition}, which it has not read")
        branches = self.log.branches(stated.generation, partition, is_settled=self.is_settled)
        winners = [branch.winner(key, stated.positions[partition]) for branch in branches]
        if all((found is not None) != (winner is not None and winner.count == count) for winner in winners):
            at = f"{partition}@{stated.positions[partition]} of generation {stated.generation}"
            raise GuaranteeBroken(Guarantee.NOT_FOUND, f"{what} has key {found} by {count} at {at}; the fold has not")

    def _row(self, stated: Stated, partition: int, key: int, count: int | None, what: str) -> None:
        position = stated.positions[partition]
        branches = self.log.branches(stated.generation, partition, is_settled=self.is_settled)
        folded = []
        for branch in branches:
            winner = branch.winner(key, position)
            folded.append(None if winner is None else winner.count)
        if count in folded:
            return
        expected = folded[0]
        text = f"{what} has key {key} as {count} at {partition}@{position} of generation {stated.generation}"
        raise GuaranteeBroken(self._why(stated, partition, key, count, expected), f"{text}; the fold has {expected}")

    def _why(self, stated: Stated, partition: int, key: int, count: int | None, expected: int | None) -> Guarantee:
        older = self.log.branches(stated.generation, partition, is_settled=False)[1:]
        lost = [branch.winner(key, stated.positions[partition]) for branch in older]
        if any(count == (None if winner is None else winner.count) for winner in lost):
            return Guarantee.LOST_LOG
        if count is None:
            return Guarantee.NOT_FOUND
        return Guarantee.RESURRECTION if expected is None else Guarantee.CONVERGENCE

    def _time(self, stated: Stated, what: str) -> None:
        """Nothing that the brokers appended before the stated time may be missing."""
        if stated.as_of_ms is None:
            return
        for partition, position in stated.positions.items():
            branches = self.log.branches(stated.generation, partition, is_settled=self.is_settled)
            if all(self._misses(branch, position, stated.as_of_ms) for branch in branches):
                text = f"{what} is as of {stated.as_of_ms}, and misses older records behind {partition}@{position}"
                raise GuaranteeBroken(Guarantee.STALENESS, text)

    def _misses(self, branch: _Branch, position: int, as_of_ms: int) -> bool:
        first = branch.first_from(position)  # those behind it are no older
        return first is not None and first.broker_ms < as_of_ms

    # What was asked for.

    def fresh(self, stated: Stated, *, since_ms: int, what: str) -> None:
        """Check that an answer misses nothing that was appended up to `since_ms`, of the world's time."""
        for partition, position in stated.positions.items():
            for branch in self.log.branches(stated.generation, partition, is_settled=True):
                first = branch.first_from(position)  # those behind it are no older
                if first is not None and first.true_ms <= since_ms:
                    late_ms = since_ms - first.true_ms
                    text = f"{what} misses {partition}@{first.offset}, {late_ms} ms older than was asked for"
                    raise GuaranteeBroken(Guarantee.STALENESS, text)

    def at_least(self, stated: Stated, token: Stated, what: str) -> None:
        """Check that an answer is as fresh as one whose token it was asked with."""
        if stated.generation < token.generation:
            text = f"{what} is of generation {stated.generation}, its token of {token.generation}"
            raise GuaranteeBroken(Guarantee.NEVER_BACK, text)
        for partition, position in stated.positions.items():
            if stated.generation == token.generation and position < token.positions.get(partition, 0):
                text = f"{what} is at {partition}@{position}, its token at {token.positions[partition]}"
                raise GuaranteeBroken(Guarantee.NEVER_BACK, text)

    def latest(self, stated: Stated, ends: Mapping[tuple[int, int], int], what: str) -> None:
        """Check that an answer has all that was in the changelogs when the call was made."""
        for partition, position in stated.positions.items():
            end = ends.get((stated.generation, partition), 0)
            if position < end:
                text = f"{what} is at {partition}@{position}, the changelog was at {end}"
                raise GuaranteeBroken(Guarantee.LATEST, text)

    def own_write(self, stated: Stated, key: int, count: int | None, written: int, what: str) -> None:
        """Check that an answer has a written event of its key, or a later one; `count` None: no row.

        What the brokers have lost since nobody can have: then the fold alone holds the answer.
        """
        if self._was_lost(stated.generation, key, written):
            return
        newest = self.log.newest(key)
        if count is None:
            is_deleted = newest is not None and any(
                record.count is None and _version(record)[1] >= written for record in self._records_of(key)
            )
            if not is_deleted:
                raise GuaranteeBroken(Guarantee.OWN_WRITES, f"{what} has not key {key}, of which {written} was written")
        elif count < written:
            raise GuaranteeBroken(Guarantee.OWN_WRITES, f"{what} has key {key} as {count}; {written} was written")

    def _was_lost(self, generation: int, key: int, written: int) -> bool:
        partition = self.log.partition_of(generation, key)
        if partition is None:
            return False
        present, *older = (
            {_version(record)[1] for record in branch.by_key.get(key, ())}
            for branch in self.log.branches(generation, partition, is_settled=False)
        )
        return written not in present and any(written in each for each in older)

    def _records_of(self, key: int) -> list[Appended]:
        branches = [branch for found in self.log._branches.values() for branch in found]
        return [record for branch in branches for record in branch.by_key.get(key, ())]

    def not_back(self, key: int, before: int, count: int | None, what: str) -> None:
        """Check that a session which has seen `before` of a key sees no older row, nor none without a delete."""
        if count is not None and count < before:
            raise GuaranteeBroken(Guarantee.NEVER_BACK, f"{what} has key {key} as {count}; {before} was seen before")
        if count is None and not any(
            record.count is None and _version(record)[1] > before for record in self._records_of(key)
        ):
            raise GuaranteeBroken(Guarantee.NEVER_BACK, f"{what} has not key {key}, seen as {before} and never deleted")

    # Several answers that are one.

    def browse(self, pages: list[tuple[Stated, Mapping[int, int]]], what: str) -> None:
        """Check pages by an index of what rows count: each row that stays as it is comes once."""
        if len({stated.generation for stated, _ in pages}) != 1:
            raise GuaranteeBroken(Guarantee.PAGES, f"{what} is of several generations")
        generation = pages[0][0].generation
        low: dict[int, int] = {}
        high: dict[int, int] = {}
        for stated, _ in pages:
            for partition, position in stated.positions.items():
                low[partition] = min(position, low.get(partition, position))
                high[partition] = max(position, high.get(partition, 0))
        for key in self.log.keys(generation):
            partition = self.log.partition_of(generation, key)
            if partition not in low:
                continue
            branches = self.log.branches(generation, partition, is_settled=False)
            stays = all(branch.stays(key, low[partition], high[partition]) for branch in branches)
            times = sum(key in rows for _, rows in pages)
            if stays and times != 1:
                raise GuaranteeBroken(Guarantee.PAGES, f"{what} gives key {key} {times} times, which stays as it is")

    def walk(self, pages: list[tuple[Stated, Mapping[int, int]]], what: str, keys: Iterable[int] | None = None) -> None:
        """Check pages, or messages of a scan, that together give the whole table: each row that stays comes once.

        With `keys`, they give the rows of these.
        """
        if len({stated.generation for stated, _ in pages}) != 1:
            raise GuaranteeBroken(Guarantee.PAGES, f"{what} is of several generations")
        generation = pages[0][0].generation
        given: dict[int, int] = {}
        low: dict[int, int] = {}
        high: dict[int, int] = {}
        for stated, rows in pages:
            for key in rows:
                given[key] = given.get(key, 0) + 1
            for partition, position in stated.positions.items():
                low.setdefault(partition, position)
                high[partition] = max(position, high.get(partition, 0))
        twice = sorted(key for key, times in given.items() if times > 1)
        if twice:
            raise GuaranteeBroken(Guarantee.PAGES, f"{what} gives keys {twice} more than once")
        for key in self.log.keys(generation) if keys is None else keys:
            partition = self.log.partition_of(generation, key)
            if key in given or partition not in low:
                continue
            branches = self.log.branches(generation, partition, is_settled=False)
            if all(branch.is_always_there(key, low[partition], high[partition]) for branch in branches):
                at = f"{partition}@{low[partition]} to {high[partition]}"
                raise GuaranteeBroken(Guarantee.PAGES, f"{what} has not key {key}, which is there from {at}")


class CheckedCopy:
    """What a subscriber makes of its stream; each message is checked as it comes."""

    def __init__(
        self, checker: Checker, keys: Iterable[int] | None = None, rows: Mapping[int, int] | None = None
    ) -> None:
        self.rows: dict[int, int] = dict(rows or {})
        self.is_current = False
        self._stated: Stated | None = None
        self._checker = checker
        self._keys = keys  # that the subscription is of; None: all
        self._changed: set[int] | None = None  # keys, since the copy was found to be the table; None: never found so

    def reset(self) -> None:
        """Drop every row."""
        self.rows.clear()
        self.is_current = False
        self._changed = None

    def upsert(self, key: int, count: int, what: str) -> None:
        """Apply a row, which must be newer than what is there."""
        before = self.rows.get(key)
        if before is not None and before >= count:
            raise GuaranteeBroken(Guarantee.WHOLE, f"{what} gives key {key} as {count} after {before}")
        self.rows[key] = count
        self._note(key)

    def delete(self, key: int, what: str) -> None:
        """Apply a delete, whose row must be there."""
        if self.rows.pop(key, None) is None:
            raise GuaranteeBroken(Guarantee.WHOLE, f"{what} deletes key {key}, which is not in the copy")
        self._note(key)

    def _note(self, key: int) -> None:
        if self._changed is not None:
            self._changed.add(key)

    def current(self, stated: Stated, what: str) -> None:
        """Check the copy, which is said to be the table at a position.

        Where it was found to be the table before, all keys are as they were but those that were written since, and
        those that have changed in the copy: all of thousands of rows, with each message, took most of the time.
        """
        self.is_current = True
        keys = self._checker.log.keys(stated.generation) if self._keys is None else self._keys
        rows: Mapping[int, int] = self.rows
        others = self._others(stated)
        if others is not None:
            keys = others.intersection(keys)
            rows = {key: self.rows[key] for key in others if key in self.rows}
        try:
            self._checker.rows(stated, keys, rows, what)
        except GuaranteeBroken as broken:
            raise GuaranteeBroken(Guarantee.WHOLE, broken.text) from None
        self._changed = set()
        before, self._stated = self._stated, stated
        if before is not None and before.generation == stated.generation:
            for partition, position in stated.positions.items():
                # What the brokers have lost since nobody can have.
                branches = self._checker.log.branches(stated.generation, partition, is_settled=False)
                if position < before.positions.get(partition, 0) and len(branches) == 1:
                    text = f"{what} is at {partition}@{position}, and was at {before.positions[partition]}"
                    raise GuaranteeBroken(Guarantee.NEVER_BACK, text)

    def _others(self, stated: Stated) -> set[int] | None:
        """Return the keys that may be otherwise than when the copy was found to be the table; None: any may."""
        if self._stated is None or self._changed is None:
            return None
        written = self._checker.log.written_between(self._stated, stated)
        return None if written is None else written | self._changed
