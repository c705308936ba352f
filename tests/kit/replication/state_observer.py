"""Watches the states of a replicator: each move must be in its table, and go on from where the one before ended.

It keeps its own copy of every state, from moves alone, and compares it with what the replicator says and stores.
"""

from collections.abc import Mapping
from enum import Enum

from tablegate.gateway.contract.types import Partition
from tablegate.gateway.replication.replicator import Replicator
from tablegate.gateway.replication.states import (
    GENERATION_TRANSITIONS,
    PARTITION_TRANSITIONS,
    TABLE_TRANSITIONS,
    GenerationState,
    Move,
    PartitionState,
    Subject,
    TableState,
)
from tablegate.gateway.stores.base import Phase, StoreWriter

TRANSITIONS: Mapping[tuple[Enum, Enum], Enum] = {
    **TABLE_TRANSITIONS,
    **GENERATION_TRANSITIONS,
    **PARTITION_TRANSITIONS,
}
INITIAL: Mapping[type[Enum], Enum] = {
    TableState: TableState.NO_MANIFEST,
    GenerationState: GenerationState.DISCOVERED,
    PartitionState: PartitionState.ABSENT,
}
ENDED = (GenerationState.RETIRED, GenerationState.REFUSED, PartitionState.ABSENT)
PHASES: Mapping[PartitionState, tuple[Phase, ...]] = {
    PartitionState.RESTORING: (Phase.RESTORING,),
    PartitionState.CATCHING_UP: (Phase.CATCHING_UP,),
    PartitionState.LIVE: (Phase.LIVE,),
    PartitionState.REVOKING: (Phase.LIVE, Phase.CATCHING_UP),
    PartitionState.FINAL: (Phase.LIVE,),
    PartitionState.FROZEN: (Phase.LIVE,),
}

SEEN: set[tuple[Enum, Enum]] = set()
"""Every (state, event) that any replicator of this process went through."""


class StateObserver:
    """Observes one replicator, from its start; give it as its `on_move`."""

    def __init__(self) -> None:
        self.states: dict[Subject, Enum] = {}
        self._is_checked = False

    def __call__(self, move: Move) -> None:
        """Hold a move to the table, and to the moves before it."""
        self._is_checked = False
        before = self.states.pop(move.subject, INITIAL[type(move.before)])
        assert move.before is before, f"{move} comes after {before}"
        assert TRANSITIONS[move.before, move.event] is move.after, move
        SEEN.add((move.before, move.event))
        if move.after not in ENDED:
            self.states[move.subject] = move.after

    def check(self, replicator: Replicator, store: StoreWriter) -> None:
        """Hold the states of all that is followed, and the phases that are stored, to what was observed."""
        assert not replicator._faulty, replicator._faulty  # what a table's boundary keeps from the others is a defect
        if self._is_checked:  # nothing moved since
            return
        self._is_checked = True
        for name, table in replicator._tables.items():
            assert self.states.get(Subject(name), TableState.NO_MANIFEST) is table.state
            assert (table.serving is not None) is (table.state is TableState.SERVING)
            assert (table.serving is None and table.building is not None) is (table.state is TableState.JOINING)
            for generation in table.generations.followed():
                subject = generation.machine.subject
                assert self.states[subject] is generation.machine.state
                observed = {
                    each.partition: state
                    for each, state in self.states.items()
                    if each._replace(partition=None) == subject
                }
                observed.pop(None)  # the generation's own
                assert observed == generation.states
                numbers = map(Partition, range(generation.manifest.partition_count))
                with store.snapshot() as snapshot:
                    found = {number: snapshot.position(generation.store_id, number) for number in numbers}
                stored = {number: position.phase for number, position in found.items() if position is not None}
                here = {
                    each: state for each, state in generation.states.items() if state is not PartitionState.ASSIGNED
                }
                assert stored.keys() == here.keys()
                assert all(stored[number] in PHASES[state] for number, state in here.items()), (stored, here)
