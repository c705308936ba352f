"""Any history and any way through it: a copy is exactly where its cursor says, after each step."""

import copy

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.subscribe.cursor import HistoryLost, ReadBudget, start_live, step
from tests.kit.call.subscribe_world import (
    BLUE,
    LETTERS,
    PARTITIONS,
    RED,
    SELECTIONS,
    STORE,
    Copy,
    World,
    positions,
)
from tests.kit.store.changes import change, position
from tests.kit.store.memory import MemoryStore

STEPS_MAX = 1_000  # to a whole copy, which takes twenty
partitions = st.sampled_from(PARTITIONS)
letters = st.sampled_from(LETTERS)
colours = st.sampled_from([RED, RED, BLUE, None])
numbers = st.integers(0, len(SELECTIONS) - 1)


class CursorMachine(RuleBasedStateMachine):
    """Subscribers of each selection; and of a second store behind the first, where no rows expire."""

    history_changes_max = 1_000
    expires = False

    def __init__(self) -> None:
        super().__init__()
        self.world = World(history_changes_max=self.history_changes_max)
        self.behind = MemoryStore(history_changes_max=self.history_changes_max)
        self.applied: dict[Partition, int] = dict.fromkeys(PARTITIONS, 0)  # of what happened, by the store behind
        self.copies: list[Copy] = []
        self.saved: list[tuple[int, Copy]] = []

    @initialize(conflates=st.booleans())
    def open(self, conflates: bool) -> None:
        self.conflates = conflates
        self.copies = [Copy(selection) for selection in SELECTIONS]
        for partition in PARTITIONS:
            self.behind.apply(STORE, partition, [], position(0))

    @rule(partition=partitions, changed=st.lists(st.tuples(letters, colours), max_size=5), gap=st.integers(0, 2))
    def write(self, partition: Partition, changed: list[tuple[int, bytes | None]], gap: int) -> None:
        self.world.write(partition, changed, gap)

    @rule(partition=partitions, gone=st.lists(letters, max_size=4, unique=True))
    def expire(self, partition: Partition, gone: list[int]) -> None:
        if self.expires:
            self.world.expire(partition, gone)

    @rule(partition=partitions, most=st.integers(1, 6))
    def follow(self, partition: Partition, most: int) -> None:
        """Let the store behind come nearer."""
        first = self.applied[partition]
        new = self.world.happened[partition][first : first + most]
        if new and not self.expires:
            self.applied[partition] += len(new)
            changes = [change(each.offset, each.key, each.offset + 1, each.row) for each in new]
            self.behind.apply(STORE, partition, changes, position(new[-1].offset + 1))

    @rule(number=numbers, rows=st.integers(1, 4), size=st.integers(1, 12), is_behind=st.booleans())
    def step(self, number: int, rows: int, size: int, is_behind: bool) -> None:
        store = self.behind if is_behind and not self.expires else self.world.store
        self.take_step(self.copies[number], ReadBudget(rows, size), store)

    @rule(number=numbers)
    def arrive(self, number: int) -> None:
        """Step until the copy is whole: it is the store's state."""
        one = self.copies[number]
        for _ in range(STEPS_MAX):
            if self.take_step(one, ReadBudget(3, 20), self.world.store):
                one.check_whole(self.world)
                return
        pytest.fail("the copy never gets whole")

    @rule(number=numbers)
    def save(self, number: int) -> None:
        self.saved.append((number, copy.deepcopy(self.copies[number])))

    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        """Go on from what was once saved, as after a crash of the client."""
        if self.saved:
            number, one = data.draw(st.sampled_from(self.saved))
            self.copies[number] = copy.deepcopy(one)

    @rule(number=numbers)
    def begin_live(self, number: int) -> None:
        """Begin with what changes from now on, and with a copy that was had from elsewhere."""
        one = self.copies[number]
        with self.world.store.snapshot() as snapshot:
            one.cursor = start_live(snapshot, STORE, positions(snapshot), one.selection)
        shown = [self.world.shown(one.selection, partition) for partition in one.selection.partitions]
        one.rows = {key: row for rows in shown for key, row in rows.items()}

    def take_step(self, one: Copy, room: ReadBudget, store: MemoryStore) -> bool:
        """Take a step; return whether the copy is whole."""
        with store.snapshot() as snapshot:
            at = positions(snapshot)
            try:
                result = step(snapshot, STORE, at, one.selection, one.cursor, budget=room, conflate=self.conflates)
            except HistoryLost:
                assert any(mark.offset < at[each].history_start for each, mark in one.cursor.change_positions.items())
                one.reset()
                return False
        is_ahead = any(mark.offset > at[each].next_offset for each, mark in one.cursor.change_positions.items())
        assert is_ahead or not result.is_ahead
        assert not (is_ahead and result.is_whole)
        if self.conflates:
            assert len({each.key for each in result.given}) == len(result.given)
        one.take(result.given)
        one.check(self.world)
        return result.is_whole

    @invariant()
    def copies_are_where_they_were(self) -> None:
        for one in self.copies:
            one.check(self.world)


@pytest.mark.tools
@pytest.mark.parametrize("expires", [False, True], ids=["a store behind", "expiry"])
@pytest.mark.parametrize("history_changes_max", [1_000, 10], ids=["whole history", "short history"])
def test_a_copy_is_where_its_cursor_says(expires: bool, history_changes_max: int) -> None:
    class Machine(CursorMachine):
        pass

    Machine.expires, Machine.history_changes_max = expires, history_changes_max
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Machine, settings=settings(stateful_step_count=40, deadline=None)
    )
