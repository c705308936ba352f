"""Any run of writes, against a plain dictionary: all stores answer what the model says."""

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tablegate.gateway.contract.types import Offset, Partition, StoreId
from tablegate.gateway.stores.base import Change, PastChange, Phase, Position, StoredRow, StoreWriter
from tablegate.gateway.stores.lmdb.store import LmdbStore
from tablegate.gateway.stores.redis.store import RedisStore
from tests.kit.programs.redis import RedisServer
from tests.kit.store.changes import change, past, position
from tests.kit.store.memory import MemoryStore

HISTORY_CHANGES_MAX = 6
PLACES = [(StoreId(1), Partition(0)), (StoreId(1), Partition(1)), (StoreId(2), Partition(0))]

keys = st.one_of(st.sampled_from([b"a", b"b", b"\x00", b"\xff"]), st.binary(max_size=3))
rows = st.one_of(st.none(), st.binary(max_size=4))
drafts = st.lists(st.tuples(keys, st.integers(1, 2), st.integers(0, 12), rows, st.integers(0, 2)), max_size=6)
places = st.sampled_from(PLACES)


class Model:
    """What a partition should hold."""

    def __init__(self) -> None:
        self.rows: dict[bytes, Change] = {}
        self.history: list[PastChange] = []
        self.recorded: list[Change] = []  # of the history: what records changed
        self.position: Position | None = None
        self.repairs: dict[bytes, tuple[int, bytes]] = {}

    def apply(self, changes: Sequence[Change], moved_to: Position) -> tuple[int, list[Change]]:
        applied, stale = [], []
        for each in changes:
            if each.key in self.rows and each.version <= self.rows[each.key].version:
                stale.append(each)
                self.pass_over(each)
            else:
                known = self.rows.get(each.key)
                self.repairs.pop(each.key, None)
                self.rows[each.key] = each
                self.recorded.append(each)
                applied.append(past(each, None if known is None else known.row))
        start = moved_to.history_start if self.position is None else self.position.history_start
        if moved_to.phase is Phase.RESTORING:
            self.history, start = [], moved_to.next_offset
        self.position = replace(moved_to, history_start=start)
        if moved_to.phase is not Phase.RESTORING:
            self.remember(self.position, applied)
        return len(applied), stale

    def pass_over(self, stale: Change) -> None:
        newest = self.rows[stale.key]
        if stale.offset <= newest.offset:
            return
        if (stale.version, stale.row) == (newest.version, newest.row):
            self.rows[stale.key] = stale
            self.repairs.pop(stale.key, None)
        else:
            self.repairs[stale.key] = newest.offset, newest.version

    def remember(self, position: Position, changes: Sequence[PastChange]) -> None:
        self.history += changes
        while len(self.history) > HISTORY_CHANGES_MAX:
            position = replace(position, history_start=Offset(self.history.pop(0).offset + 1))
        self.position = position

    def expire(self, names: Sequence[bytes], time_ms: int) -> int:
        found = [
            self.rows.pop(key) for key in dict.fromkeys(names) if key in self.rows and self.rows[key].row is not None
        ]
        for key in names:
            self.repairs.pop(key, None)
        if self.position is not None and self.position.phase is not Phase.RESTORING:
            offset = self.position.next_offset
            deletes = [PastChange(offset, each.key, each.version, None, time_ms, each.row) for each in found]
            self.remember(self.position, deletes)
        return len(found)

    def live(self) -> list[tuple[bytes, bytes]]:
        return sorted((key, each.row) for key, each in self.rows.items() if each.row is not None)


class StoreMachine(RuleBasedStateMachine):
    """A store and its model side by side."""

    kind = "memory"
    server: RedisServer

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="store-model-"))
        self.models = {place: Model() for place in PLACES}
        self.next_offset = 0
        self.url = ""
        self.store: StoreWriter

    @initialize()
    def open(self) -> None:
        if self.kind == "memory":
            self.store = MemoryStore(history_changes_max=HISTORY_CHANGES_MAX)
        elif self.kind == "redis":
            self.url = self.url or self.server.new_url()
            self.store = RedisStore(self.url, history_changes_max=HISTORY_CHANGES_MAX)
        else:
            self.store = LmdbStore(self.directory, history_changes_max=HISTORY_CHANGES_MAX)

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.directory)

    @rule(place=places, draft=drafts, phase=st.sampled_from(Phase), gap=st.integers(0, 3))
    def apply(
        self,
        place: tuple[StoreId, Partition],
        draft: list[tuple[bytes, int, int, bytes | None, int]],
        phase: Phase,
        gap: int,
    ) -> None:
        changes = []
        for key, generation, sequence, row, step in draft:
            changes.append(
                change(self.next_offset, key, sequence, row, generation=generation, time_ms=self.next_offset)
            )
            self.next_offset += 1 + step
        self.next_offset += gap
        moved_to = position(self.next_offset, phase=phase, as_of_ms=self.next_offset, source_offsets={("t", 0): gap})
        assert self.store.apply(*place, changes, moved_to) == self.models[place].apply(changes, moved_to)

    @rule(place=places)
    def apply_again(self, place: tuple[StoreId, Partition]) -> None:
        """A repeat of what is in the history is stale, but for keys whose tombstones were dropped, or which expired."""
        model = self.models[place]
        if model.position is not None:
            versions = {key: each.version for key, each in model.rows.items()}
            past_ones = [Change(*each[:5]) for each in model.history]
            again = [each for each in past_ones if each.key in versions and each.version <= versions[each.key]]
            assert self.store.apply(*place, again, model.position) == model.apply(again, model.position) == (0, again)

    @rule(place=places, names=st.lists(keys, max_size=4), everything=st.booleans())
    def expire(self, place: tuple[StoreId, Partition], names: list[bytes], everything: bool) -> None:
        model = self.models[place]
        names = [*names, *sorted(model.rows)] if everything else names
        time_ms = -1  # of no record
        assert self.store.expire(*place, names, time_ms=time_ms) == model.expire(names, time_ms)

    @rule(place=places, before_ms=st.integers(0, 60), limit=st.integers(0, 3))
    def drop_tombstones(self, place: tuple[StoreId, Partition], before_ms: int, limit: int) -> None:
        model = self.models[place]
        old = sorted(each for each in model.rows.values() if each.row is None and each.time_ms < before_ms)[:limit]
        assert self.store.drop_tombstones(*place, before_ms=before_ms, limit=limit) == len(old)
        for each in old:
            del model.rows[each.key]

    @rule(store_id=st.sampled_from([StoreId(1), StoreId(2)]), limit=st.integers(1, 5))
    def drop(self, store_id: StoreId, limit: int) -> None:
        while not self.store.drop(store_id, limit=limit):
            pass
        for place in PLACES:
            if place[0] == store_id:
                self.models[place] = Model()

    @rule(place=places, limit=st.integers(1, 5))
    def drop_partition(self, place: tuple[StoreId, Partition], limit: int) -> None:
        while not self.store.drop_partition(*place, limit=limit):
            with self.store.snapshot() as snapshot:
                assert snapshot.position(*place) is None
        self.models[place] = Model()

    @precondition(lambda self: self.kind != "memory")
    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.open()

    @rule(place=places, start=keys, end=st.none() | keys, limit=st.integers(0, 5), descending=st.booleans())
    def range(
        self, place: tuple[StoreId, Partition], start: bytes, end: bytes | None, limit: int, descending: bool
    ) -> None:
        expected = [row for row in self.models[place].live() if start <= row[0] and (end is None or row[0] < end)]
        if descending:
            expected.reverse()
        with self.store.snapshot() as snapshot:
            found = snapshot.range(*place, start=start, end=end, limit=limit, descending=descending)
        assert found == expected[:limit]

    @rule(place=places, limit=st.integers(1, 3))
    def walk_history(self, place: tuple[StoreId, Partition], limit: int) -> None:
        """A reader gets all of the history in small parts, though many changes may have one offset."""
        model = self.models[place]
        start, skip = Offset(0) if model.position is None else model.position.history_start, 0
        expected = [each for each in model.history if each.offset >= start]
        walked: list[PastChange] = []
        while True:
            with self.store.snapshot() as snapshot:
                found = snapshot.history(*place, start=start, limit=limit, skip=skip)
            if not found:
                break
            walked += found
            start = walked[-1].offset
            skip = sum(1 for each in walked if each.offset == start)
            if Change(*walked[-1][:5]) in model.recorded:
                start, skip = Offset(start + 1), 0
        assert walked == expected

    @rule(place=places, start=st.integers(0, 60), limit=st.integers(0, 5))
    def history(self, place: tuple[StoreId, Partition], start: int, limit: int) -> None:
        expected = [each for each in self.models[place].history if each.offset >= start][:limit]
        with self.store.snapshot() as snapshot:
            assert snapshot.history(*place, start=Offset(start), limit=limit) == expected

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        with self.store.snapshot() as snapshot:
            for place, model in self.models.items():
                assert snapshot.position(*place) == model.position
                repairs = {each.key: (each.offset, each.version) for each in self.store.repairs(*place, limit=99)}
                assert repairs == model.repairs
                names = [*model.rows, b"never"]
                assert snapshot.get_many(*place, names) == [each.row for each in model.rows.values()] + [None]
                for key, each in model.rows.items():
                    assert snapshot.get_stored(*place, key) == StoredRow(each.version, each.row)
        assert self.store.store_ids() >= {place[0] for place, model in self.models.items() if model.position}


class LmdbMachine(StoreMachine):
    """The same over LMDB."""

    kind = "lmdb"


class RedisMachine(StoreMachine):
    """The same over Redis."""

    kind = "redis"


@pytest.mark.parametrize("machine", [StoreMachine, LmdbMachine, RedisMachine])
def test_a_store_does_what_the_model_does(machine: type[StoreMachine], request: pytest.FixtureRequest) -> None:
    if machine is RedisMachine:
        machine.server = request.getfixturevalue("redis_server")
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=150, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
