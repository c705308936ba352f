"""The tables of moves: which there are, and that there are no others."""

from collections.abc import Mapping
from enum import Enum
from typing import Any

import pytest
from typing_extensions import override

from tablegate.gateway.cluster.assignment import SoleGateway
from tablegate.gateway.contract.types import Partition, StoreId
from tablegate.gateway.kafka.log import TopicPartition
from tablegate.gateway.replication import states
from tablegate.gateway.replication.replicator import GENERATION_STATES, PARTITION_STATES, TABLE_STATES, announcement
from tablegate.gateway.replication.states import (
    ForbiddenMove,
    GenerationEvent,
    GenerationState,
    Move,
    PartitionEvent,
    PartitionState,
    StateMachine,
    Subject,
    TableEvent,
    TableState,
)
from tablegate.gateway.stores.base import Phase
from tablegate.v1 import status_pb2
from tests.kit.replication.memory_log import MemoryBroker
from tests.kit.replication.replicator import Gateway, Job

TABLES: tuple[tuple[type[Enum], type[Enum], Mapping[Any, Any], Enum], ...] = (
    (TableState, TableEvent, states.TABLE_TRANSITIONS, TableState.NO_MANIFEST),
    (GenerationState, GenerationEvent, states.GENERATION_TRANSITIONS, GenerationState.DISCOVERED),
    (PartitionState, PartitionEvent, states.PARTITION_TRANSITIONS, PartitionState.ABSENT),
)
PAIRS = [(table, state, event) for table in TABLES for state in table[0] for event in table[1]]


@pytest.mark.parametrize(("table", "state", "event"), PAIRS, ids=lambda each: getattr(each, "name", ""))
def test_event_moves_where_its_table_says_and_is_refused_elsewhere(table: Any, state: Enum, event: Enum) -> None:
    moves: list[Move] = []
    subject = Subject("ratings", 2, StoreId(7), Partition(3))
    machine = StateMachine(subject, state, table[2], moves.append)
    after = table[2].get((state, event))
    if after is None:
        with pytest.raises(ForbiddenMove, match=rf'^table "ratings" generation 2 partition 3 is {state.name}, where "'):
            machine.move(event)
        assert (machine.state, moves) == (state, [])
    else:
        assert machine.next(event) is after
        assert machine.state is state  # nothing has happened yet
        machine.move(event)
        assert machine.state is after
        assert moves == [Move(subject, state, event, after)]


@pytest.mark.parametrize("writes", range(2, 5))  # two positions are demoted at the start; then both open
def test_states_go_on_after_a_disk_that_is_full_at_a_start(gateway: Gateway, job: Job, writes: int) -> None:
    job.publish().put(range(9))
    gateway.steps()
    assert gateway.is_served()
    free = [1] * writes
    gateway.store._free_bytes = lambda: free.pop() if free else 0
    gateway.restart()
    gateway.seconds(3)
    gateway.store._free_bytes = lambda: 1
    gateway.seconds(3)  # the observer sees each move
    assert gateway.is_served()
    assert set(gateway.rows()) == set(range(9))


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table[0].__name__)
def test_every_state_can_be_reached_and_every_event_can_happen(table: Any) -> None:
    kinds, events, transitions, initial = table
    reached = {initial}
    for _ in kinds:
        reached |= {after for (before, _), after in transitions.items() if before in reached}
    assert reached == set(kinds)
    assert {event for _, event in transitions} == set(events)


def test_what_ends_and_what_goes_on() -> None:
    """A generation ends. A table and a partition can always come back to where they began."""
    left = {before for before, _ in states.GENERATION_TRANSITIONS}
    assert set(GenerationState) - left == {GenerationState.RETIRED, GenerationState.REFUSED}
    for state in TableState:
        assert states.TABLE_TRANSITIONS[state, TableEvent.MANIFEST_REMOVED] is TableState.NO_MANIFEST
    for place in set(PartitionState) - {PartitionState.ABSENT}:
        assert states.PARTITION_TRANSITIONS[place, PartitionEvent.STOP] is PartitionState.ABSENT


def test_nobody_is_answered_from_a_partition_that_was_not_at_its_barrier() -> None:
    """What is LIVE, or can follow on that, was at its barrier or its last marker before."""
    answered = {PartitionState.LIVE, PartitionState.FINAL, PartitionState.FROZEN}
    arrivals = {PartitionEvent.REACH_BARRIER, PartitionEvent.REACH_LAST_MARKER}
    for (before, event), after in states.PARTITION_TRANSITIONS.items():
        if after in answered and before not in answered | {PartitionState.REVOKING}:
            assert event in arrivals
    assert {before for (before, event) in states.PARTITION_TRANSITIONS if event is PartitionEvent.REVOKE} == {
        *answered,
        PartitionState.CATCHING_UP,
    }


@pytest.mark.parametrize(
    ("numbers", "enum"),
    [
        (TABLE_STATES, status_pb2.TableState),
        (GENERATION_STATES, status_pb2.GenerationState),
        (PARTITION_STATES, status_pb2.PartitionState),
    ],
    ids=["table", "generation", "partition"],
)
def test_the_status_has_a_number_for_each_state(numbers: Mapping[Enum, int], enum: Any) -> None:
    assert sorted(numbers.values()) == sorted(set(enum.values()) - {0})


def test_the_status_names_the_states(gateway: Gateway, job: Job, broker: MemoryBroker) -> None:
    def named() -> tuple[str, list[tuple[int, str, bool]], set[str]]:
        gateway.seconds(1)
        status = gateway.table_status()
        generations = [
            (each.generation, status_pb2.GenerationState.Name(each.state), bool(each.waits_for))
            for each in status.generations
        ]
        partitions = {status_pb2.PartitionState.Name(each.state) for each in status.partitions}
        return status_pb2.TableState.Name(status.state), generations, partitions

    gateway.steps()
    assert named() == ("TABLE_STATE_NO_MANIFEST", [], set())
    job.put(range(10))
    broker.delete(job.topic)
    job.publish()
    gateway.steps()
    assert named() == ("TABLE_STATE_RESOLVING_TOPIC", [(1, "GENERATION_STATE_DISCOVERED", True)], set())
    broker.append(TopicPartition("tables", Partition(0)), b"ratings", None)
    job.create().publish()
    job.put(range(10))
    gateway.seconds(10)
    serving = (1, "GENERATION_STATE_SERVING", False)
    assert named() == ("TABLE_STATE_SERVING", [serving], {"PARTITION_STATE_LIVE"})
    newer = Job(broker, generation=2, sequence=1_000).create()
    newer.put(range(10))
    newer.publish()
    gateway.seconds(10)
    building = (2, "GENERATION_STATE_BUILDING", True)
    assert named() == ("TABLE_STATE_SERVING", [serving, building], {"PARTITION_STATE_LIVE"})
    broker.delete(job.topic)
    gateway.seconds(10)
    state, generations, partitions = named()
    assert (state, generations) == ("TABLE_STATE_SERVING", [(2, "GENERATION_STATE_SERVING", False)])
    assert partitions == {"PARTITION_STATE_LIVE"}
    newer.mark_all({0: 10}, final=True)
    gateway.seconds(1)
    assert named()[2] == {"PARTITION_STATE_FINAL"}
    third = Job(broker, generation=3).create()
    third.publish(third.manifest(contract_fingerprint=b"another"))
    gateway.seconds(1)
    assert named()[:2] == (
        "TABLE_STATE_SERVING",
        [(2, "GENERATION_STATE_SERVING", False), (3, "GENERATION_STATE_REFUSED", False)],
    )


def test_a_forbidden_move_stops_the_replicator_before_anything_is_stored(gateway: Gateway, job: Job) -> None:
    job.publish().put(range(10))
    gateway.steps()
    serving = gateway.replicator._tables["ratings"].serving
    assert serving is not None
    replica = serving.replicas[0]
    replica._machine.state = PartitionState.ASSIGNED  # which follows nothing
    next_offset = gateway.position(0).next_offset
    job.mark(0, {0: 1}, final=True)
    with pytest.raises(ForbiddenMove, match=r'partition 0 is ASSIGNED, where "reach last marker" cannot happen$'):
        gateway.steps()
    assert gateway.position(0).next_offset == next_offset


class ScriptedAssignment(SoleGateway):
    """Assigns partition 0 or not, as a test says; where not, all others have it. No beat is heard until it says so."""

    version = 0
    next_beat = 5
    heard_beat = 4
    is_assigned = True

    @override
    def assigned(self, table: str, partition_count: int, *, generation: int) -> frozenset[Partition] | None:
        return frozenset(map(Partition, range(0 if self.is_assigned else 1, partition_count)))

    @override
    def are_others_live(
        self, table: str, partition: Partition, *, partition_count: int, generation: int, is_served: bool
    ) -> bool:
        return True

    def assign(self, *, is_assigned: bool) -> None:
        self.is_assigned = is_assigned
        self.version += 1


@pytest.mark.parametrize("state", [s for s in PartitionState if s.name in ("CATCHING_UP", "LIVE", "FINAL", "FROZEN")])
@pytest.mark.parametrize("is_heard", [True, False])
def test_revoking_partition_returns_or_is_removed_once_others_know(
    gateway: Gateway, job: Job, broker: MemoryBroker, state: PartitionState, is_heard: bool
) -> None:
    job.publish().put(range(20))
    gateway.steps()
    table = gateway.replicator._tables["ratings"]
    if state is PartitionState.FINAL:
        job.mark_all({0: 1}, final=True)
    elif state is PartitionState.CATCHING_UP:
        job.put(range(20))
        gateway.restart()
        gateway.replicator._log.fetch = lambda **_: []  # type: ignore[method-assign]
        table = gateway.replicator._tables["ratings"]
        table.accept([job.manifest()], missing="")
    gateway.steps()
    serving = table.serving
    assert serving is not None
    if state is PartitionState.FROZEN:
        serving.freeze()
    assert serving.states[Partition(0)] is state
    assignment = serving._assignment = ScriptedAssignment()
    assignment.assign(is_assigned=False)
    gateway.steps()
    assert serving.states[Partition(0)] is PartitionState.REVOKING
    assert serving.states[Partition(1)] is state
    assert list(announcement(table, replicas=2).serving.partitions) == [1]
    assert gateway.position(0).phase is (Phase.CATCHING_UP if state is PartitionState.CATCHING_UP else Phase.LIVE)
    if is_heard:
        assignment.heard_beat = 5
        assignment.assign(is_assigned=False)
        gateway.steps()
        assert Partition(0) not in serving.states
        with pytest.raises(AssertionError):  # no position
            gateway.position(0)
    else:
        assignment.assign(is_assigned=True)
        gateway.steps()
        assert serving.states[Partition(0)] is state
        assert list(announcement(table, replicas=2).serving.partitions) == [0, 1]
