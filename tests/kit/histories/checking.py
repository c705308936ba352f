"""Holds a history to the guarantees, in one pass over its lines, with the checker of the simulator's worlds.

The changelog comes first: what Kafka acknowledged, and what is in the topic at the end, make the log that answers are
folded from. Of a loss it is seen in both: an offset that was given twice, or has another record in the end.
"""

import json
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.kit.histories.history import History
from tests.kit.world.checker import Appended, CheckedCopy, Checker, Guarantee, GuaranteeBroken, Stated, TrueLog

NEVER_MS = 2**62  # of what was not acknowledged
KEPT_CHANGES_MAX = 100_000  # of a partition, to go back to by a resume token
BROKEN_SHOWN_MAX = 20

Line = Mapping[str, Any]
Place = tuple[int, int]
"""Generation and partition."""


@dataclass
class Fault:
    """What befell the run, and what was seen of it: `refused` calls, changed `owners`, and other `evidence`."""

    what: str
    refused: int = 0
    owners: set[int] = field(default_factory=set)  # partitions
    evidence: list[str] = field(default_factory=list)

    @property
    def bit(self) -> bool:
        """Return whether anything was seen of it."""
        return bool(self.refused or self.owners or self.evidence)

    def __str__(self) -> str:
        seen = [f"{self.refused} calls refused"] if self.refused else []
        seen += [f"{len(self.owners)} partitions changed owners"] if self.owners else []
        return f"{self.what}: {', '.join([*seen, *self.evidence]) or 'it did not bite'}"


@dataclass
class Verdict:
    """What came of a history. `answers` counts what was checked, by operation."""

    answers: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    faults: list[Fault] = field(default_factory=list)
    broken: list[GuaranteeBroken] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """Return why the run does not count; none where it does."""
        found = [str(each) for each in self.broken[:BROKEN_SHOWN_MAX]]
        if len(self.broken) > BROKEN_SHOWN_MAX:
            found.append(f"and {len(self.broken) - BROKEN_SHOWN_MAX} more")
        if not sum(self.answers.values()):
            found.append("nothing was answered: the run shows nothing")
        if self.faults and not any(fault.bit for fault in self.faults):
            found.append(f"no fault bit, of {[fault.what for fault in self.faults]}: the run shows nothing")
        return found

    def __str__(self) -> str:
        answers = ", ".join(f"{count} {op}" for op, count in sorted(self.answers.items()))
        refused = ", ".join(f"{count} {reason}" for reason, count in sorted(self.refused.items()))
        lines = [f"checked: {answers or 'nothing'}; refused: {refused or 'nothing'}"]
        lines += [f"fault: {fault}" for fault in self.faults]
        lines += [f"BROKEN: {each}" for each in self.problems]
        return "\n".join(lines)


def check(path: Path) -> Verdict:
    """Return what comes of a history."""
    with path.open() as file:
        lines = [json.loads(line) for line in file]
    return _Checking(lines).run()


# The changelog.


class _Record(NamedTuple):
    key: int | None
    sequence: int
    deletes: bool
    broker_ms: int
    true_ms: int

    def is_same(self, other: "_Record") -> bool:
        return self[:3] == other[:3]


@dataclass
class _Written:
    """What is known of a changelog partition. `acknowledged` is cut where an offset was given again."""

    acknowledged: list[dict[int, _Record]] = field(default_factory=lambda: [{}])
    cuts: list[int] = field(default_factory=list)
    found: dict[int, _Record] = field(default_factory=dict)  # in the topic, in the end
    end: int | None = None
    final: int | None = None

    def acknowledge(self, offset: int, record: _Record) -> None:
        newest = self.acknowledged[-1]
        if newest and offset <= next(reversed(newest)):
            known = newest.get(offset)
            if known is not None and known.is_same(record):
                return
            self._cut(offset)
        self.acknowledged[-1][offset] = record

    def _cut(self, offset: int) -> None:
        self.cuts.append(offset)
        self.acknowledged.append({})

    def compare(self) -> None:
        """Find a loss that no later acknowledgement shows: in the end there is something else, or nothing."""
        end = self.end
        if end is None:
            return
        for offset, record in sorted(self._present().items()):
            found = self.found.get(offset)
            if offset >= end or (found is not None and not found.is_same(record)):
                self._cut(offset)
                return

    def _present(self) -> dict[int, _Record]:
        present: dict[int, _Record] = {}
        for number, records in enumerate(self.acknowledged):
            low = self.cuts[number - 1] if number else 0
            present = {offset: record for offset, record in present.items() if offset < low} | records
        return present

    def branches(self) -> Iterator[tuple[int | None, list[tuple[int, _Record]]]]:
        """Yield what was appended after each cut, with the cut; the first one is None."""
        for number, records in enumerate(self.acknowledged):
            low = self.cuts[number - 1] if number else 0
            # What was found and not acknowledged is of the last branch that reaches so far.
            high = min(self.cuts[number:], default=NEVER_MS)
            more = {offset: record for offset, record in self.found.items() if low <= offset < high}
            yield (low if number else None), sorted((more | records).items())


def _true_log(lines: Iterable[Line]) -> tuple[TrueLog, dict[Place, _Written], bool]:
    """Return the log, what it was made of, and whether a changelog lost something."""
    written: defaultdict[Place, _Written] = defaultdict(_Written)
    for line in lines:
        if line["op"] == "write" and line["type"] == "ok":
            place = _place(line["id"])
            record = _Record(line["key"], line["version"], line["deletes"], line["broker_ms"], line["time"])
            written[place].acknowledge(line["offset"], record)
            if line["final"]:
                written[place].final = line["offset"]
        elif line["op"] == "log":
            place = _place(line["id"])
            written[place].end = line["end"]
            for offset, key, sequence, deletes, broker_ms in line["value"]:
                written[place].found[offset] = _Record(key, sequence, deletes, broker_ms, NEVER_MS)
    log = TrueLog()
    for (generation, partition), each in written.items():
        each.compare()
        for cut, records in each.branches():
            if cut is not None:
                log.lose_tail(generation, partition, cut)
            for offset, record in _in_order_of_time(records):
                version = None if record.key is None else (generation, record.sequence)
                count = None if record.deletes else record.sequence
                appended = Appended(offset, record.key, version, count, record.true_ms, record.broker_ms)
                log.append(generation, partition, appended)
        if each.end is not None and log.end(generation, partition) < each.end:
            # What the brokers wrote themselves, as the end of a transaction.
            log.append(generation, partition, Appended(each.end - 1, None, None, None, NEVER_MS, NEVER_MS))
        if each.final is not None:
            log.end_with(generation, partition, each.final)
    return log, dict(written), any(each.cuts for each in written.values())


def _in_order_of_time(records: Sequence[tuple[int, _Record]]) -> list[tuple[int, _Record]]:
    """Return records of which none was there later than one behind it."""
    ordered: list[tuple[int, _Record]] = []
    least_ms = NEVER_MS
    for offset, record in reversed(records):
        least_ms = min(least_ms, record.true_ms)
        ordered.append((offset, record._replace(true_ms=least_ms)))
    return ordered[::-1]


def _place(numbers: Sequence[int]) -> Place:
    return numbers[0], numbers[1]


def _stated(position: Sequence[Any], as_of_ms: int | None = None) -> Stated:
    return Stated(position[0], {int(partition): offset for partition, offset in position[1].items()}, as_of_ms)


# The answers.


class _Saved(NamedTuple):
    """What a subscriber has if it loses all since."""

    rows: Mapping[int, int]
    stated: Stated | None
    place: int | None


@dataclass
class _Subscription:
    copy: CheckedCopy
    stated: Stated | None = None  # of the newest message that said that the copy is current
    goes_on: bool = False  # its newest stream began with a token, and has not begun anew
    is_empty: bool = True  # its newest stream began without one, and has told nothing
    place: int | None = None  # among the changes of its one key, of the newest one that it got
    saved: _Saved | None = None


class _Checking:
    """One pass over the lines."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines
        self._log, self._written, has_loss = _true_log(lines)
        self._checker = Checker(self._log)
        self._settled_ms = NEVER_MS if has_loss else 0
        self._may_begin_anew = has_loss or len({generation for generation, _ in self._written}) > 1
        self._keys = sorted({key for generation, _ in self._written for key in self._log.keys(generation)})
        self._times: dict[Place, list[int]] = {}
        floors = [_stated(line["position"]) for line in lines if line["op"] == "floor"]
        self._floors = {floor.generation: floor for floor in floors}
        self._asked: dict[int, Line] = {}
        self._changes: dict[int, list[int | None]] = {}
        self._seen: dict[tuple[int, str], dict[int, int]] = {}  # by client and session: the rows of its last answer
        self._walks: dict[int, list[tuple[Stated, Mapping[int, int]]]] = {}
        self._subscriptions: dict[int, _Subscription] = {}
        self._faults: list[Fault] = []  # that go on
        self._usual: set[tuple[str, str, bool]] = set()  # what is refused without any fault
        self._owners: dict[int, str] = {}
        self._verdict = Verdict()

    def run(self) -> Verdict:
        for number, line in enumerate(self._lines, start=1):
            if line["op"] in ("write", "log", "floor"):
                continue
            try:
                self._line(line, f"{line['op']} of process {line['process']} (line {number})")
            except GuaranteeBroken as broken:
                self._verdict.broken.append(broken)
        return self._verdict

    def _line(self, line: Line, what: str) -> None:
        if line["process"] < 0:
            self._about(line)
        elif line["type"] == "invoke":
            self._asked[line["process"]] = line
            self._begin(line)
        elif line["type"] == "ok":
            self._answer(self._asked[line["process"]], line, what)
        else:
            self._refusal(self._asked.get(line["process"], {}), line, what)

    def _about(self, line: Line) -> None:
        match line["op"]:
            case "settled":
                self._settled_ms = line["time"]
            case "restored":
                self._may_begin_anew = True
            case "fault" if line["phase"] == "begin":
                self._faults.append(Fault(line["what"]))
                self._verdict.faults.append(self._faults[-1])
            case "fault":
                self._faults = [fault for fault in self._faults if fault.what != line["what"]]
            case "evidence":
                for fault in self._faults:
                    if fault.what == line["what"]:
                        fault.evidence.append(line["seen"])
            case "died":
                raise GuaranteeBroken(Guarantee.STAYS_UP, f"a client died: {line['why']}")

    def _begin(self, asked: Line) -> None:
        process = asked["process"]
        if asked["op"] == "subscribe":
            kept = self._subscriptions.get(process)
            if kept is None:
                kept = self._subscriptions[process] = _Subscription(CheckedCopy(self._checker, self._keys_of(asked)))
            kept.goes_on = asked.get("goes_on", False)
            kept.is_empty = not kept.goes_on
            if asked.get("goes_back"):
                assert kept.saved is not None, "nothing was saved"
                kept.copy = CheckedCopy(self._checker, self._keys_of(asked), kept.saved.rows)
                _, kept.stated, kept.place = kept.saved
        elif "walk" in asked and asked["first"]:
            self._walks[process] = []

    def _refusal(self, asked: Line, line: Line, what: str) -> None:
        reason = line.get("reason") or line["code"]
        if reason == "ROW_NOT_FOUND" or line["code"] == "NOT_FOUND":
            self._verdict.answers[line["op"]] += 1
            self._not_found(asked["keys"][0], what)
            return
        self._verdict.refused[reason] += 1
        kind = line["op"], reason, "own" in asked
        if not self._verdict.faults:
            self._usual.add(kind)
        for fault in self._faults:
            fault.refused += kind not in self._usual

    def _not_found(self, key: int, what: str) -> None:
        """No position says what was read: it is false where each that a gateway may have been at has the row."""
        for generation, floor in self._floors.items():
            partition = self._log.partition_of(generation, key)
            if partition is None:
                return
            low, end = floor.positions.get(partition, 0), self._log.end(generation, partition)
            branches = self._log.branches(generation, partition, is_settled=False)
            if not all(branch.is_always_there(key, low, end) for branch in branches):
                return
        if self._floors:
            raise GuaranteeBroken(Guarantee.NOT_FOUND, f"{what} has not key {key}, which is always there")

    def _answer(self, asked: Line, line: Line, what: str) -> None:
        is_message = line["op"] == "subscribe"
        self._checker.is_settled = (line if is_message else asked)["time"] >= self._settled_ms
        if is_message:
            self._message(asked, line, what)
            return
        self._verdict.answers[line["op"]] += 1
        if line["position"] is None:  # of a stream that ended without another message
            self._end_walk(asked, what)
            return
        self._note_owner(line)
        stated, rows = _stated(line["position"], line["as_of"]), dict(line["value"])
        self._form(asked, line, what)
        keys = rows if line["op"] == "scan" else self._keys_of({**asked, **line})
        self._checker.rows(stated, keys, rows, what)
        self._asked_for(asked, stated, rows, what)
        if "session" in asked:
            self._in_session(asked, stated, rows, what)
        if "walk" in asked:
            self._of_walk(asked, line, stated, rows, what)

    def _form(self, asked: Line, line: Line, what: str) -> None:
        """Keys come once, in the order of the request or of keys. A scan has an order within each partition alone."""
        given = [key for key, _ in line["value"]]
        rows = set(given)
        wanted = given if line["op"] == "scan" else [key for key in asked.get("keys", sorted(rows)) if key in rows]
        if len(given) != len(rows) or given != wanted:
            raise GuaranteeBroken(Guarantee.PAGES, f"{what} gives keys twice, or in another order: {given}")

    def _note_owner(self, line: Line) -> None:
        if not line.get("owner") or len(line["position"][1]) != 1:
            return
        [partition] = map(int, line["position"][1])
        if self._owners.get(partition, line["by"]) != line["by"]:
            for fault in self._faults:
                fault.owners.add(partition)
        self._owners[partition] = line["by"]

    def _asked_for(self, asked: Line, stated: Stated, rows: Mapping[int, int], what: str) -> None:
        if "staleness_ms" in asked:
            since_ms = asked["time"] - asked["staleness_ms"] - 1
            text = f"{what}, no more than {asked['staleness_ms']} ms old,"
            self._checker.fresh(stated, since_ms=since_ms, what=text)
        if asked.get("latest"):
            ends = {
                (stated.generation, partition): self._end_at(stated.generation, partition, asked["time"])
                for partition in stated.positions
            }
            self._checker.latest(stated, ends, f"{what}, the latest,")
        if "own" in asked:
            [key] = asked["keys"]
            self._checker.own_write(stated, key, rows.get(key), asked["own"], f"{what}, with a write of its own,")

    def _end_at(self, generation: int, partition: int, time_ms: int) -> int:
        """Return the end of what was acknowledged before a time."""
        [branch, *_] = self._log.branches(generation, partition, is_settled=False)
        times = self._times.get((generation, partition))
        if times is None:
            times = self._times[generation, partition] = [record.true_ms for record in branch.records]
        place = bisect_left(times, time_ms)
        return branch.ends_at(branch.records[place - 1].offset + 1) if place else 0

    def _in_session(self, asked: Line, stated: Stated, rows: Mapping[int, int], what: str) -> None:
        session = asked["process"], asked["session"]
        if "token" in asked:
            self._checker.at_least(stated, _stated(asked["token"]), what)
            for key, count in self._seen.get(session, {}).items():
                self._checker.not_back(key, count, rows.get(key), what)
        self._seen[session] = dict(rows)

    def _of_walk(self, asked: Line, line: Line, stated: Stated, rows: Mapping[int, int], what: str) -> None:
        self._walks[asked["process"]].append((stated, rows))
        if line["last"]:
            self._end_walk(asked, what)

    def _end_walk(self, asked: Line, what: str) -> None:
        pages = self._walks.pop(asked["process"])
        if pages:
            self._checker.walk(pages, f"the walk that ends with {what}", self._keys_of({"range": asked["walk"]}))

    # Subscriptions.

    def _message(self, asked: Line, line: Line, what: str) -> None:
        self._verdict.answers["message"] += 1
        subscription = self._subscriptions[asked["process"]]
        if subscription.is_empty and line["phase"] != "reset":
            raise GuaranteeBroken(Guarantee.RESUME, f"{what} goes on without a token")
        subscription.is_empty = False
        if line["phase"] == "reset":
            subscription.copy.reset()
            subscription.place = None
            if subscription.goes_on:
                self._reset(subscription, what)
        low, high = asked["range"]
        for key, count in line["changes"]:
            if not low <= key < high:
                raise GuaranteeBroken(Guarantee.WHOLE, f"{what} gives key {key}, and is of {low} to {high}")
            if count is None:
                subscription.copy.delete(key, what)
            else:
                subscription.copy.upsert(key, count, what)
            if asked.get("each"):
                self._next_change(subscription, key, count, what)
        subscription.copy.is_current = False
        if line["phase"] == "current":
            subscription.stated = _stated(line["position"], line["as_of"])
            subscription.copy.current(subscription.stated, what)
        if line.get("saved"):
            subscription.saved = _Saved(dict(subscription.copy.rows), subscription.stated, subscription.place)

    def _next_change(self, subscription: _Subscription, key: int, count: int | None, what: str) -> None:
        """Find a change of the key that was left out, or given again. The first one after a reset may be any."""
        changes = self._changes_of(key)
        before = subscription.place
        first = changes.index(count) if count in changes else len(changes)
        place = first if before is None else before + 1
        if changes[place : place + 1] != [count]:
            raise GuaranteeBroken(Guarantee.WHOLE, f"{what} gives {count} of key {key}, not what came after {before}")
        subscription.place = place

    def _changes_of(self, key: int) -> Sequence[int | None]:
        """Return what a key became, one after the other; None where it was deleted."""
        found: list[int | None] | None = self._changes.get(key)
        if found is None:
            records = (
                record
                for generation, partition in self._written
                if self._log.partition_of(generation, key) == partition
                for branch in self._log.branches(generation, partition, is_settled=True)
                for record in branch.records
                if record.key == key
            )
            found, newest = [], (0, 0)
            for record in records:
                if record.version is not None and record.version > newest:  # a job repeats after a crash
                    found.append(record.count)
                    newest = record.version
            self._changes[key] = found
        return found

    def _reset(self, subscription: _Subscription, what: str) -> None:
        """A stream that goes on begins anew only where the log is another one, or was restored, or changed much."""
        stated = subscription.stated
        subscription.goes_on = False
        if stated is None or self._may_begin_anew:
            return
        behind = (
            self._log.end(stated.generation, partition) - next_offset
            for partition, next_offset in stated.positions.items()
        )
        if max(behind) <= KEPT_CHANGES_MAX:
            raise GuaranteeBroken(Guarantee.RESUME, f"{what} begins anew, though its token is of a moment ago")

    def _keys_of(self, asked: Line) -> Sequence[int]:
        """Return the keys that an answer is about; of a range, those that ever had a row."""
        if "keys" in asked:
            return list(asked["keys"])
        low, high = asked["range"]
        return self._keys[bisect_left(self._keys, low) : bisect_left(self._keys, high)]


@contextmanager
def recorded(write_log: Callable[[History], object]) -> Iterator[History]:
    """Give a history, and check it when the block ends. Where that or the block fails its file stays, and is named.

    What it shows is told of a block that fails, too. `write_log` writes what was in the changelog.
    """
    history, verdict = History(), None
    try:
        try:
            yield history
        finally:
            write_log(history)
            history.close()
        verdict = check(history.path)
        print(f"\n{verdict}")  # for whoever looks (`pytest -s`)
        assert not verdict.problems, "\n".join(verdict.problems)
    except BaseException as error:
        history.close()
        if verdict is None:
            with suppress(Exception):  # what failed may have left half a history
                error.add_note(str(check(history.path)))
        error.add_note(f"its history: {history.path}; python -m tests.kit.histories FILE checks it again")
        raise
    history.path.unlink()
