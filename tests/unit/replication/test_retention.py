"""Tables with retention: what is expired is not stored, and what is stored is swept when its time comes."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablegate.gateway.contract.types import Offset, Partition, make_version
from tablegate.gateway.kafka.log import TopicPartition
from tablegate.gateway.replication.sweep import SweepLimits
from tablegate.gateway.stores.base import Change
from tablegate.gateway.stores.lmdb.store import LmdbStore
from tests.kit.replication.replicator import START_MS
from tests.kit.replication.windows import (
    DAY_S,
    NAME,
    PARTITIONS,
    SIZE_S,
    TOPIC,
    Setup,
    aged,
    contract,
    key_of,
    value_of,
)
from tests.kit.seeds import examples
from tests.kit.store.memory import MemoryStore

pytestmark = pytest.mark.tools


@pytest.fixture(params=["memory", "lmdb"])
def setup(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Setup]:
    store = MemoryStore() if request.param == "memory" else LmdbStore(tmp_path / "store")
    yield Setup(store)
    store.close()


def test_what_is_expired_is_not_stored_and_the_position_moves_on(setup: Setup) -> None:
    kept, gone = ("firefox", aged(-60)), ("firefox", aged(1))
    setup.put([kept, gone, ("chrome", aged(100)), ("chrome", aged(0))])
    setup.put([("firefox", aged(2))], delete=True)
    setup.steps()
    assert setup.is_served()
    assert setup.windows() == {kept}
    assert not setup.is_stored(("firefox", aged(2)))
    assert sum(setup.position(partition).next_offset for partition in range(PARTITIONS)) == 5
    setup.put([("firefox", aged(3))])
    setup.steps()
    assert setup.windows() == {kept}
    assert sum(setup.position(partition).next_offset for partition in range(PARTITIONS)) == 6
    assert setup.status().tables[0].poison_records == 0


def test_what_expires_is_swept_and_told_as_a_delete(setup: Setup) -> None:
    first, second, later = ("a", aged(-20)), ("a", aged(-21)), ("a", aged(-500))
    setup.steps()
    setup.put([first, second, later])
    setup.steps()
    before = setup.position(setup.source(first).partition)
    setup.seconds(40)
    assert setup.windows() == {later}
    assert not setup.is_stored(first)
    changes = setup.history(first)[-2:]
    assert [(change.key, change.row) for change in changes] == [(key_of(second), None), (key_of(first), None)][::-1]
    assert [change.version for change in changes] == [make_version(1, 1), make_version(1, 2)]
    assert {change.offset for change in changes} == {before.next_offset}
    after = setup.position(setup.source(first).partition)
    assert (after.next_offset, after.as_of_ms, after.history_start) == (
        *(before.next_offset, before.as_of_ms),
        before.history_start,
    )


@pytest.mark.parametrize("restarted", [False, True])
def test_a_replay_brings_nothing_back(setup: Setup, restarted: bool) -> None:
    windows = [("a", aged(-10)), ("b", aged(-10))]
    setup.put(windows)
    setup.steps()
    setup.seconds(30)
    assert setup.windows() == set()
    if restarted:
        setup.restart()
    for window in windows:
        old = next(iter(setup.broker.read(setup.source(window), Offset(0), 1).records))  # type: ignore[union-attr]
        setup.broker.append(setup.source(window), old.key, old.value, version=old.version)
    setup.put(windows)  # and newer versions of them
    setup.steps()
    assert setup.is_served()
    assert not any(setup.is_stored(window) for window in windows)


def test_a_sweep_goes_in_steps_and_records_are_applied_between(setup: Setup) -> None:
    setup.restart(sweep_limits=SweepLimits(step_max=10))
    setup.put((browser, aged(-30 - number)) for number in range(100) for browser in "abc")
    setup.steps()
    setup.seconds(12)
    assert len(setup.windows()) == 300
    setup.clock.passed_s += 200
    counts = [300]
    while counts[-1] > 1:
        setup.put([("new", -len(counts))])
        setup.steps(1)
        assert ("new", -len(counts)) in setup.windows()
        counts.append(len([window for window in setup.windows() if window[0] != "new"]))
        assert counts[-2] - counts[-1] <= 2 * 10
        assert len(counts) < 100
        if counts[-1] == 0:
            break
    assert len(counts) > 15
    assert {window[0] for window in setup.windows()} == {"new"}


@examples(60)
@given(
    windows=st.sets(st.tuples(st.sampled_from(["", "a", "a\x00", "b", "c", "é"]), st.integers(0, 60)), max_size=60),
    deleted=st.sets(st.integers(0, 60)),
    step=st.integers(1, 9),
    moments=st.lists(st.integers(11, 40), max_size=3),
)
def test_a_sweep_removes_all_that_is_expired_and_nothing_else(
    windows: set[tuple[str, int]], deleted: set[int], step: int, moments: list[int]
) -> None:
    setup = Setup()
    ages = {(browser, aged(-20 - age)) for browser, age in windows}
    setup.restart(sweep_limits=SweepLimits(step_max=step))
    setup.put(sorted(ages))
    dead = [window for place, window in enumerate(sorted(ages)) if place in deleted]
    setup.put(dead, delete=True)
    setup.steps()
    for moment in moments:
        setup.clock.passed_s += moment
        setup.steps(150, pass_s=0)
        passed_s = setup.clock.passed_s
        left = {window for window in ages - set(dead) if window[1] + SIZE_S + DAY_S > passed_s}
        assert setup.windows() == left
    expired = {window for window in ages - set(dead) if moments and window[1] + SIZE_S + DAY_S <= setup.clock.passed_s}
    told = [change.key for window in (("", 0), ("a", 0), ("b", 0), ("c", 0)) for change in setup.history(window)]
    assert {key_of(window) for window in expired} <= set(told)


def test_the_history_holds_all_that_expired_at_its_offset(setup: Setup) -> None:
    """Else nobody could read on from the offset that is next, until a record comes."""
    setup.restart(sweep_limits=SweepLimits(at_offset_max=20))
    setup.put(("a", aged(-30 - number)) for number in range(50))
    setup.steps()
    setup.clock.passed_s += 500
    setup.seconds(30)
    assert len(setup.windows()) == 30
    setup.mark()
    setup.seconds(30)
    assert len(setup.windows()) == 10
    setup.mark()
    setup.seconds(30)
    assert setup.windows() == set()
    for partition in range(PARTITIONS):
        assert setup.position(partition).history_start <= setup.position(partition).next_offset


def test_a_table_of_many_runs_is_swept_less_often(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    setup.put([("a", aged(-30))])
    setup.steps()
    setup.seconds(12)
    begun = []
    sweep = setup.replicator._sweep
    begin = type(sweep)._begin

    def begin_slow(self: Any, tables: Any) -> None:
        begun.append(setup.clock.passed_s)
        begin(self, tables)
        setup.clock.passed_s += 2  # what the sweep takes

    monkeypatch.setattr(type(sweep), "_begin", begin_slow)
    setup.seconds(250)
    assert [round(later - earlier) for earlier, later in pairwise(begun)] == [102, 102]


@pytest.mark.parametrize(
    ("retention_s", "restored"), [(DAY_S, False), (DAY_S // 8, False), (DAY_S + 1, True), (None, True)]
)
def test_a_longer_retention_restores_what_the_shorter_one_removed(
    setup: Setup, retention_s: float | None, restored: bool
) -> None:
    """A shorter one is enforced at once, on what is stored."""
    old, young = ("a", aged(-5)), ("a", aged(-DAY_S * 3 // 4))
    setup.put([old, young, ("b", aged(10))])
    setup.steps()
    setup.seconds(30)
    before = setup.store_id()
    assert setup.windows() == {young}
    setup.restart(contract(retention_s))
    setup.seconds(30)
    assert setup.is_served()
    assert (setup.store_id() != before) is restored
    if retention_s is None:
        assert setup.windows() == {old, young, ("b", aged(10))}
    else:
        assert setup.windows() == ({young} if retention_s >= DAY_S else set())
    setup.restart(contract(retention_s))
    before = setup.store_id()
    setup.seconds(5)
    assert setup.store_id() == before


def test_a_longer_retention_is_remembered_over_a_refusal(setup: Setup) -> None:
    setup.put([("a", aged(-5))])
    setup.steps()
    setup.seconds(30)
    setup.broker.append(TopicPartition("tables", Partition(0)), NAME.encode(), None)
    setup.seconds(3)
    assert setup.state().problem
    assert setup.state().retention_us == DAY_S * 1_000_000


@pytest.mark.tools
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("ahead_s", [9, 3_600, -3_600])
def test_a_clock_that_is_wrong_for_a_while_loses_no_window(setup: Setup, restarted: bool, ahead_s: float) -> None:
    """What comes, and what is stored, is removed when Kafka's clock says so: not by one that is ahead, for seconds."""
    soon, late = ("a", aged(-100)), ("b", aged(-5_000))
    setup.put([soon, late])
    setup.seconds(2)
    setup.clock.ahead_s = ahead_s
    if restarted:
        setup.restart()
    came = ("c", aged(-90))
    setup.put([came])
    setup.seconds(25)
    assert setup.windows() == {soon, late, came}
    before = setup.store_id()
    setup.clock.ahead_s = 0.0
    if restarted:
        setup.restart()
    setup.seconds(25)
    assert setup.is_served()
    assert setup.windows() == {soon, late, came}
    assert setup.store_id() == before
    setup.clock.ahead_s = ahead_s
    setup.seconds(90)
    assert setup.windows() == {late}


def test_a_clock_that_is_days_ahead_forgets_no_tombstone(setup: Setup) -> None:
    """Else a record of before the delete, which a job repeats, would bring the row back."""
    setup.put([("a", 0)])
    setup.put([("a", 0)], delete=True)
    setup.seconds(2)
    setup.clock.ahead_s = 5.0 * DAY_S
    setup.put([("b", 0)])
    setup.seconds(70)
    assert setup.windows() == {("b", 0)}
    assert setup.is_stored(("a", 0))


def test_windows_are_removed_though_no_record_comes(setup: Setup) -> None:
    setup.put([("a", aged(-100)), ("b", aged(-5_000))])
    setup.seconds(2)
    setup.restart()
    setup.seconds(150)
    assert setup.windows() == {("b", aged(-5_000))}


def test_a_repair_of_a_deleted_window_ends_when_it_expires(setup: Setup) -> None:
    """What is appended again of it is passed over from then on, and would end no repair."""
    soon, late = ("soon", aged(-20)), ("late", aged(-9_000))
    for delete in (False, True, False):
        setup.sequence = 7 if delete else 5
        setup.put([soon, late], delete=delete)  # the row, its delete, and the row again, which comes late
    setup.steps()

    def pending() -> set[bytes]:
        found = [setup.store.repairs(setup.store_id(), Partition(each), limit=9) for each in range(PARTITIONS)]
        return {repair.key for repairs in found for repair in repairs}

    assert pending() == {key_of(soon), key_of(late)}
    setup.seconds(60)
    assert pending() == {key_of(late)}
    setup.seconds(600)  # longer than it takes until it is appended
    assert not pending()


def test_a_clock_that_is_put_right_restores_nothing(setup: Setup) -> None:
    setup.put([("a", 0)])
    setup.clock.ahead_s = 3_600.0
    setup.seconds(12)
    before = setup.store_id()
    setup.clock.ahead_s = 0.0
    setup.seconds(12)
    assert setup.store_id() == before


def test_a_key_without_a_start_is_poison(setup: Setup) -> None:
    setup.broker.append(
        TopicPartition(TOPIC, Partition(0)), b"a\x00\x00", value_of(("a", 0), 1), version=make_version(1, 1)
    )
    setup.put([("a", 0)])
    setup.seconds(2)
    assert setup.is_served()
    assert setup.status().tables[0].poison_records == 1
    assert setup.windows() == {("a", 0)}


def test_what_is_no_key_neither_stops_a_sweep_nor_is_swept(setup: Setup) -> None:
    """Bytes of a foreign writer, which an earlier version stored; nothing of its neighbours goes with it."""
    kept, gone = ("ab", aged(-500)), ("ab", aged(-5))
    partition = setup.source(kept).partition
    setup.put([kept, gone])
    foreign = b"a" + (2**63 + START_MS * 1_000).to_bytes(8, "big")
    setup.steps()
    with setup.store.snapshot() as snapshot:
        position = snapshot.position(setup.store_id(), partition)
    assert position is not None
    row = Change(Offset(position.next_offset - 1), foreign, make_version(1, 1), b"", START_MS)
    setup.store.apply(setup.store_id(), partition, [row], position)
    setup.clock.passed_s += 60
    setup.seconds(12)
    with setup.store.snapshot() as snapshot:
        rows = snapshot.range(setup.store_id(), partition, start=b"", end=None, limit=9)
    assert {key for key, _ in rows} == {foreign, key_of(kept)}


# Changelogs that Kafka also deletes from: `cleanup.policy=compact,delete`.


def truncate(setup: Setup, offset: int | None = None) -> None:
    """Let Kafka delete what is before an offset, or everything."""
    facts = setup.broker.facts(TOPIC)
    assert facts is not None
    for partition, end in enumerate(facts.end_offsets):
        start = end if offset is None else Offset(offset)
        setup.broker.truncate_before(TopicPartition(TOPIC, Partition(partition)), start)


def test_a_changelog_that_begins_late_is_restored(setup: Setup) -> None:
    setup.put((browser, -number) for number in range(20) for browser in "abcd")
    truncate(setup, 10)
    setup.steps()
    assert setup.is_served()
    assert len(setup.windows()) == 60


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("everything", [False, True])
def test_a_store_that_is_up_to_date_stays_when_the_changelog_is_cut(
    setup: Setup, restarted: bool, everything: bool
) -> None:
    setup.put((browser, -number) for number in range(20) for browser in "abcd")
    setup.steps()
    before = setup.store_id()
    truncate(setup, None if everything else 10)
    if restarted:
        setup.restart()
    setup.seconds(12)
    setup.put([("e", 0)])
    setup.seconds(1)
    assert setup.is_served()
    assert setup.store_id() == before
    assert len(setup.windows()) == 81


def test_a_changelog_that_is_cut_while_it_is_restored(setup: Setup) -> None:
    setup.store.changes_max = 2
    setup.put((browser, -number) for number in range(20) for browser in "abcd")
    while not setup.state().HasField("manifest") or not setup.windows():
        setup.steps(1)
    truncate(setup, 20)
    setup.seconds(60)
    assert setup.is_served()
    assert len(setup.windows()) == 40
    assert setup.store.store_ids() == {setup.store_id()}
