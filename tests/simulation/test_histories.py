"""Histories of real runs: what is true passes, and each lie breaks its guarantee, as its file alone tells it."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.kit.histories.checking import Verdict, check, recorded
from tests.kit.histories.history import History
from tests.kit.table.filled import ROOT
from tests.kit.world.checker import Guarantee

ALL = [0, 100]

ROWS: Sequence[tuple[int, int]] = [(1, 1), (2, 2), (1, 3), (2, -4), (3, 5)]
"""Key and sequence of each record of partition 0, written at 1000, 1100, …; a negative sequence deletes."""


class Story:
    """A history that a test writes: a changelog, and clients that ask and are answered."""

    def __init__(self, path: Path) -> None:
        self.history = History(path)
        for offset, (key, sequence) in enumerate(ROWS):
            self.write(offset, key, sequence, 1_000 + offset * 100)

    def write(self, offset: int, key: int, sequence: int, at_ms: int) -> None:
        """Write a record that was acknowledged."""
        self.history.ok(
            -1,
            "write",
            time=at_ms,
            id=[1, 0],
            offset=offset,
            key=key,
            version=abs(sequence),
            deletes=sequence < 0,
            final=False,
            broker_ms=at_ms,
        )

    def log(self, records: Sequence[tuple[int, int, int]], end: int) -> None:
        """Say what is in the changelog in the end: offset, key and sequence."""
        value = [[offset, key, abs(sequence), sequence < 0, 1_000] for offset, key, sequence in records]
        self.history.about("log", id=[1, 0], end=end, value=value)

    def ask(self, op: str = "batch", *, at_ms: int = 9_000, process: int = 0, **asked: Any) -> None:
        """Let a client ask."""
        self.history.invoke(process, op, time=at_ms, **asked)

    def ok(
        self,
        value: Sequence[tuple[int, int]],
        next_offset: int,
        op: str = "batch",
        *,
        as_of: int | None = None,
        **more: Any,
    ) -> None:
        """Answer it."""
        self.history.ok(0, op, time=9_001, value=value, position=[1, {0: next_offset}], as_of=as_of, **more)

    def batch(self, value: Sequence[tuple[int, int]], next_offset: int, **asked: Any) -> None:
        """Ask for keys 1 to 3, and answer."""
        as_of = asked.pop("as_of", None)
        self.ask(keys=[1, 2, 3], **asked)
        self.ok(value, next_offset, as_of=as_of)

    def pages(self, *pages: tuple[int, int, Sequence[tuple[int, int]], int]) -> None:
        """Walk: from and below of each page, its rows, and where it is."""
        for number, (low, high, value, next_offset) in enumerate(pages):
            self.ask("page", walk=ALL, first=number == 0)
            self.ok(value, next_offset, "page", range=[low, high], last=number == len(pages) - 1)

    def message(
        self, phase: str, changes: Sequence[tuple[int, int | None]], next_offset: int | None = None, **more: Any
    ) -> None:
        """Send a subscriber a message."""
        if next_offset is not None:
            more |= {"position": [1, {0: next_offset}], "as_of": None}
        self.history.ok(0, "subscribe", time=9_001, phase=phase, changes=changes, **more)

    def snapshot(self) -> None:
        """Subscribe, and get all that is there at offset 3."""
        self.ask("subscribe", range=ALL)
        self.message("reset", [])
        self.message("current", [(1, 3), (2, 2)], 3)

    def goes_on(self, wanted: Sequence[int] = ALL, **asked: Any) -> None:
        """Break the subscription, and go on with its token."""
        self.history.fail(0, "subscribe", code="UNAVAILABLE", reason="")
        self.ask("subscribe", **{"range": wanted, "goes_on": True, **asked})


def verdict_of(directory: Path, narrate: Any) -> Verdict:
    story = Story(directory / "history.jsonl")
    narrate(story)
    story.history.close()
    return check(story.history.path)


def in_session(story: Story) -> None:
    story.batch([(1, 1), (2, 2)], 2, session="a")
    story.batch([(1, 3), (3, 5)], 5, session="a", token=[1, {0: 2}])


def with_a_loss(story: Story) -> None:
    """What was at offsets 3 and 4 is lost, and another record is written there."""
    story.write(3, 3, 6, 2_000)
    story.log([(0, 1, 1), (1, 2, 2), (2, 1, 3), (3, 3, 6)], 4)
    story.history.about("settled", time=8_000)


def scanned(story: Story) -> None:
    story.ask("scan", walk=ALL, first=True)
    story.ok([(1, 1)], 2, "scan", last=False)
    story.ask("scan", walk=ALL, first=False)
    story.history.ok(0, "scan", position=None, time=9_001)


def each_of_one(story: Story, *after: int, goes_back: bool = False) -> None:
    """Subscribe to each change of key 1, which are 1, 3 and 6; get the first, and those after it."""
    story.write(5, 1, 6, 1_500)
    story.ask("subscribe", range=[1, 2], each=True)
    story.message("reset", [(1, 1)], saved=True)
    story.message("current", [], 1)
    if goes_back:
        story.message("catching up", [(1, 3)])
        story.goes_on([1, 2], each=True, goes_back=True)
    for sequence in after:
        story.message("catching up", [(1, sequence)])


TRUTHS: dict[str, Any] = {
    "a batch": lambda story: story.batch([(1, 3)], 4),
    "an age": lambda story: story.batch([(1, 3)], 4, as_of=1_400),
    "the latest": lambda story: story.batch([(1, 3), (3, 5)], 5, latest=True),
    "no older": lambda story: story.batch([(1, 3), (2, 2)], 3, at_ms=2_000, staleness_ms=800),
    "a session": in_session,
    "pages": lambda story: story.pages((0, 2, [(1, 3)], 3), (2, 100, [(3, 5)], 5)),
    "a subscription": lambda story: (
        story.snapshot(),
        story.goes_on(),
        story.message("catching up", [(2, None)]),
        story.message("current", [(3, 5)], 5),
    ),
    "each change": lambda story: each_of_one(story, 3, 6),
    "each change again, by one who went back": lambda story: each_of_one(story, 3, 6, goes_back=True),
    "a loss": lambda story: (with_a_loss(story), story.batch([(1, 3), (2, 2), (3, 6)], 4)),
    "before a loss was known": lambda story: (with_a_loss(story), story.batch([(1, 3)], 4, at_ms=7_000)),
    "a row that was never acknowledged": lambda story: (
        story.log([(0, 1, 1), (4, 3, 5), (5, 2, 9)], 6),
        story.batch([(1, 3), (2, 9), (3, 5)], 6),
    ),
    "no row": lambda story: (
        story.ask("get", keys=[2]),
        story.history.fail(0, "get", code="NOT_FOUND", reason="ROW_NOT_FOUND"),
        story.history.about("floor", position=[1, {0: 2}]),
    ),
}
LIES: list[tuple[Guarantee, str, Any]] = [
    (Guarantee.NO_LOST_UPDATE, "beyond the end", lambda story: story.batch([(1, 3), (3, 5)], 9)),
    (Guarantee.CONVERGENCE, "an older row", lambda story: story.batch([(1, 1), (3, 5)], 5)),
    (Guarantee.CONVERGENCE, "a row of nobody", lambda story: (story.ask(keys=[9]), story.ok([(9, 1)], 5))),
    (Guarantee.RESURRECTION, "a deleted row", lambda story: story.batch([(1, 3), (2, 2), (3, 5)], 5)),
    (Guarantee.NOT_FOUND, "a missing row", lambda story: story.batch([(3, 5)], 5)),
    (
        Guarantee.NOT_FOUND,
        "not found",
        lambda story: (
            story.ask("get", keys=[1]),
            story.history.fail(0, "get", code="NOT_FOUND", reason="ROW_NOT_FOUND"),
            story.history.about("floor", position=[1, {0: 2}]),
        ),
    ),
    (Guarantee.STALENESS, "an age", lambda story: story.batch([(1, 3)], 4, as_of=1_401)),
    (
        Guarantee.STALENESS,
        "older than asked",
        lambda story: story.batch([(1, 3), (2, 2)], 3, at_ms=2_000, staleness_ms=600),
    ),
    (Guarantee.LATEST, "not the latest", lambda story: story.batch([(1, 3)], 4, latest=True)),
    (
        Guarantee.OWN_WRITES,
        "not its own write",
        lambda story: (story.ask("get", keys=[1], own=3), story.ok([(1, 1)], 2, "get")),
    ),
    (
        Guarantee.NEVER_BACK,
        "behind its token",
        lambda story: (
            story.batch([(1, 3), (2, 2)], 3, session="a"),
            story.batch([(1, 1), (2, 2)], 2, session="a", token=[1, {0: 3}]),
        ),
    ),
    (
        Guarantee.NEVER_BACK,
        "behind what was seen",
        lambda story: (
            story.batch([(1, 3), (2, 2)], 3, session="a"),
            story.batch([(1, 1), (2, 2)], 2, session="a", token=[1, {}]),
        ),
    ),
    (
        Guarantee.NEVER_BACK,
        "a generation before",
        lambda story: (
            story.batch([(1, 3), (2, 2)], 3, session="a"),
            story.batch([(1, 3), (2, 2)], 3, session="a", token=[2, {0: 1}]),
        ),
    ),
    (Guarantee.PAGES, "a key twice", lambda story: story.pages((0, 2, [(1, 3)], 3), (1, 100, [(1, 3), (3, 5)], 5))),
    (Guarantee.PAGES, "a key left out", lambda story: story.pages((0, 1, [], 3), (2, 100, [(3, 5)], 5))),
    (Guarantee.PAGES, "no order", lambda story: story.pages((0, 100, [(2, 2), (1, 3)], 3))),
    (Guarantee.PAGES, "a scan that ends early", scanned),
    (Guarantee.WHOLE, "a gap", lambda story: (story.snapshot(), story.message("current", [(3, 5)], 5))),
    (Guarantee.WHOLE, "a repeat", lambda story: (story.snapshot(), story.message("current", [(1, 3)], 3))),
    (
        Guarantee.WHOLE,
        "a delete of nothing",
        lambda story: (story.snapshot(), story.message("current", [(3, None)], 3)),
    ),
    (
        Guarantee.WHOLE,
        "a gap where it goes on",
        lambda story: (story.snapshot(), story.goes_on(), story.message("current", [(2, None)], 5)),
    ),
    (
        Guarantee.RESUME,
        "anew without need",
        lambda story: (
            story.snapshot(),
            story.goes_on(),
            story.message("reset", []),
            story.message("current", [(1, 3), (3, 5)], 5),
        ),
    ),
    (
        Guarantee.RESUME,
        "no snapshot at first",
        lambda story: (story.ask("subscribe", range=ALL), story.message("current", [(1, 3), (3, 5)], 5)),
    ),
    (
        Guarantee.RESUME,
        "no snapshot where it goes on without a token",
        lambda story: (story.snapshot(), story.goes_on(goes_on=False), story.message("current", [(2, None)], 4)),
    ),
    (
        Guarantee.WHOLE,
        "a key of others",
        lambda story: (story.ask("subscribe", range=[1, 2]), story.message("reset", [(1, 3), (3, 5)])),
    ),
    (
        Guarantee.WHOLE,
        "a change of nobody",
        lambda story: (story.ask("subscribe", range=[1, 2], each=True), story.message("reset", [(1, 9)])),
    ),
    (Guarantee.WHOLE, "not each change", lambda story: each_of_one(story, 6)),
    (Guarantee.WHOLE, "a change again", lambda story: each_of_one(story, 3, 3)),
    (Guarantee.WHOLE, "not each change, after it went back", lambda story: each_of_one(story, 6, goes_back=True)),
    (
        Guarantee.LOST_LOG,
        "of what was lost",
        lambda story: (with_a_loss(story), story.batch([(1, 3)], 4)),
    ),
    (Guarantee.STAYS_UP, "a client died", lambda story: story.history.about("died", why="an error")),
]


@pytest.mark.parametrize("name", TRUTHS)
def test_a_true_history_passes(tmp_path: Path, name: str) -> None:
    verdict = verdict_of(tmp_path, TRUTHS[name])
    assert verdict.problems == []
    assert sum(verdict.answers.values()) > 0


@pytest.mark.parametrize(("guarantee", "name", "lie"), LIES, ids=[f"{lie[0].name}-{lie[1]}" for lie in LIES])
def test_a_false_history_breaks_its_guarantee(tmp_path: Path, guarantee: Guarantee, name: str, lie: Any) -> None:
    verdict = verdict_of(tmp_path, lie)
    assert guarantee in {broken.guarantee for broken in verdict.broken}, f"{name}: {verdict}"


def refused(story: Story, reason: str = "NO_OWNER") -> None:
    story.ask(keys=[1])
    story.history.fail(0, "batch", code="UNAVAILABLE", reason=reason)


def test_a_fault_that_nobody_saw_does_not_count(tmp_path: Path) -> None:
    def narrate(story: Story) -> None:
        refused(story, "ALWAYS")
        with story.history.fault("SIGKILL of g1"):
            story.batch([(1, 3)], 4)
            refused(story, "ALWAYS")

    verdict = verdict_of(tmp_path, narrate)
    assert [fault.bit for fault in verdict.faults] == [False]
    assert verdict.problems == ["no fault bit, of ['SIGKILL of g1']: the run shows nothing"]


def test_what_is_seen_of_faults(tmp_path: Path) -> None:
    def narrate(story: Story) -> None:
        def owned(by: str) -> None:
            story.ask(keys=[1])
            story.ok([(1, 3)], 4, by=by, owner=True)

        owned("g1")
        with story.history.fault("a refusal"):
            refused(story)
        with story.history.fault("another owner"):
            owned("g2")
        with story.history.fault("the same owner"):
            owned("g2")
        with story.history.fault("a full disk") as saw:
            saw("no space is left")

    verdict = verdict_of(tmp_path, narrate)
    assert [str(fault) for fault in verdict.faults] == [
        "a refusal: 1 calls refused",
        "another owner: 1 partitions changed owners",
        "the same owner: it did not bite",
        "a full disk: no space is left",
    ]
    assert verdict.problems == []


def test_a_history_without_answers_shows_nothing(tmp_path: Path) -> None:
    assert verdict_of(tmp_path, lambda _: None).problems == ["nothing was answered: the run shows nothing"]


@pytest.mark.tools
@pytest.mark.parametrize("name", ["a missing row", "a batch"])
def test_a_file_is_checked_again(tmp_path: Path, name: str) -> None:
    narrate = TRUTHS.get(name) or next(lie for _, each, lie in LIES if each == name)
    problems = verdict_of(tmp_path, narrate).problems
    command = [sys.executable, "-m", "tests.kit.histories", str(tmp_path / "history.jsonl")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == bool(problems), done.stderr
    assert all(f"BROKEN: {problem}" in done.stdout for problem in problems)


def test_the_file_of_a_failed_run_stays_and_is_named() -> None:
    paths: list[Path] = []
    with pytest.raises(AssertionError, match="nothing was answered") as failed, recorded(lambda _: None) as history:
        paths.append(history.path)
    assert paths[0].exists()
    assert str(paths[0]) in failed.value.__notes__[0]
    paths[0].unlink()


def test_the_file_of_a_run_that_passed_goes() -> None:
    with recorded(lambda _: None) as history:
        history.ok(0, "write", id=[1, 0], offset=0, key=1, version=1, deletes=False, final=False, broker_ms=1)
        history.invoke(0, "get", keys=[1])
        history.ok(0, "get", value=[[1, 1]], position=[1, {0: 1}], as_of=None)
    assert not history.path.exists()
