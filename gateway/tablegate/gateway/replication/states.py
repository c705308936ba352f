"""The states of a table, of its generations and of their partitions, and every way from one to another.

A replicator follows tables. Three things have a state of their own, each inside the one before:

    Table       what is known of it: whether there is a manifest, whether its topic is there, what is followed
    Generation  one manifest, followed into one store id; a table has up to two: one serves, the next is built beside it
    Partition   one partition of a generation, as far as this gateway has it

Each has one enum of states, one of events, and one table `(state, event) → state`. `StateMachine.move` is the only way
to change a state: it logs and announces. A move that is not in the table is a defect of ours, `ForbiddenMove`: the
replicator process ends, and its supervisor starts another one from what is stored.

The store keeps what its readers need, not the states: the phase with each position (RESTORING, CATCHING_UP; LIVE for
all that is answered from), the manifest or the problem of a table. After a restart the states follow from that. A
partition's phase is stored before its state moves, so that a full store leaves both as they were.

Decision: docs/decisions/0052-states-in-tables.md
"""

import logging
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from tablegate.gateway.contract.types import Partition, StoreId

_logger = logging.getLogger("tablegate.gateway.replication")


class TableState(Enum):
    """What is known of a table, and what is followed of it."""

    NO_MANIFEST = "no manifest"  # its job has published none, or it was removed
    RESOLVING_TOPIC = "resolving topic"  # the manifest is good; its topic is asked for, or is not as it should be
    JOINING = "joining"  # its first generation is built here, while other gateways answer from an older one
    SERVING = "serving"  # a generation is answered from, as far as its partitions are live; the next may be built
    REFUSED = "refused"  # the manifest does not fit the contract, or the one before it


class TableEvent(Enum):
    """What happens to a table."""

    MANIFEST_ACCEPTED = "manifest accepted"
    MANIFEST_REMOVED = "manifest removed"  # or never published
    MANIFEST_REFUSED = "manifest refused"  # and no older generation can be served on
    TOPIC_UNFIT = "topic unfit"  # it is missing, or another one than the manifest's
    STARTED_OVER = "started over"  # what was followed is dropped: it is restored from the start, or by another manifest
    BUILT_FIRST = "built first"  # beside what the other gateways answer from
    SERVED = "served"  # a generation is answered from here, from now on


TABLE_TRANSITIONS: Mapping[tuple[TableState, TableEvent], TableState] = {
    (TableState.NO_MANIFEST, TableEvent.MANIFEST_ACCEPTED): TableState.RESOLVING_TOPIC,
    (TableState.NO_MANIFEST, TableEvent.MANIFEST_REMOVED): TableState.NO_MANIFEST,
    (TableState.NO_MANIFEST, TableEvent.MANIFEST_REFUSED): TableState.REFUSED,
    (TableState.RESOLVING_TOPIC, TableEvent.MANIFEST_ACCEPTED): TableState.RESOLVING_TOPIC,
    (TableState.RESOLVING_TOPIC, TableEvent.MANIFEST_REMOVED): TableState.NO_MANIFEST,
    (TableState.RESOLVING_TOPIC, TableEvent.MANIFEST_REFUSED): TableState.REFUSED,
    (TableState.RESOLVING_TOPIC, TableEvent.TOPIC_UNFIT): TableState.RESOLVING_TOPIC,
    (TableState.RESOLVING_TOPIC, TableEvent.BUILT_FIRST): TableState.JOINING,
    (TableState.RESOLVING_TOPIC, TableEvent.SERVED): TableState.SERVING,
    (TableState.JOINING, TableEvent.MANIFEST_ACCEPTED): TableState.JOINING,
    (TableState.JOINING, TableEvent.MANIFEST_REMOVED): TableState.NO_MANIFEST,
    (TableState.JOINING, TableEvent.MANIFEST_REFUSED): TableState.REFUSED,
    (TableState.JOINING, TableEvent.TOPIC_UNFIT): TableState.RESOLVING_TOPIC,
    (TableState.JOINING, TableEvent.STARTED_OVER): TableState.RESOLVING_TOPIC,
    (TableState.JOINING, TableEvent.BUILT_FIRST): TableState.JOINING,
    (TableState.JOINING, TableEvent.SERVED): TableState.SERVING,
    (TableState.SERVING, TableEvent.MANIFEST_ACCEPTED): TableState.SERVING,
    (TableState.SERVING, TableEvent.MANIFEST_REMOVED): TableState.NO_MANIFEST,
    (TableState.SERVING, TableEvent.MANIFEST_REFUSED): TableState.REFUSED,
    (TableState.SERVING, TableEvent.TOPIC_UNFIT): TableState.RESOLVING_TOPIC,
    (TableState.SERVING, TableEvent.STARTED_OVER): TableState.RESOLVING_TOPIC,
    (TableState.SERVING, TableEvent.BUILT_FIRST): TableState.JOINING,
    (TableState.SERVING, TableEvent.SERVED): TableState.SERVING,
    (TableState.REFUSED, TableEvent.MANIFEST_ACCEPTED): TableState.RESOLVING_TOPIC,
    (TableState.REFUSED, TableEvent.MANIFEST_REMOVED): TableState.NO_MANIFEST,
    (TableState.REFUSED, TableEvent.MANIFEST_REFUSED): TableState.REFUSED,
}


class GenerationState(Enum):
    """What becomes of one generation of a table."""

    DISCOVERED = "discovered"  # there is a manifest; nothing is followed yet
    BUILDING = "building"  # it is restored beside what is answered from
    READY = "ready"  # restored, and made from all that the old one was made from: only other gateways are awaited
    SERVING = "serving"  # rows are answered from it
    RETIRED = "retired"  # it is followed no more
    REFUSED = "refused"  # our contract, or the manifest before, does not agree with its manifest


class GenerationEvent(Enum):
    """What happens to a generation."""

    BUILD = "build"
    MADE_READY = "made ready"
    FELL_BEHIND = "fell behind"  # a partition was assigned, or the old generation moved on
    SERVE = "serve"
    YIELD = "yield"  # other gateways are found to answer from an older one: it is built beside that
    RETIRE = "retire"
    REFUSE = "refuse"


GENERATION_TRANSITIONS: Mapping[tuple[GenerationState, GenerationEvent], GenerationState] = {
    (GenerationState.DISCOVERED, GenerationEvent.BUILD): GenerationState.BUILDING,
    (GenerationState.DISCOVERED, GenerationEvent.SERVE): GenerationState.SERVING,
    (GenerationState.DISCOVERED, GenerationEvent.REFUSE): GenerationState.REFUSED,
    (GenerationState.BUILDING, GenerationEvent.MADE_READY): GenerationState.READY,
    (GenerationState.BUILDING, GenerationEvent.SERVE): GenerationState.SERVING,
    (GenerationState.BUILDING, GenerationEvent.RETIRE): GenerationState.RETIRED,
    (GenerationState.READY, GenerationEvent.FELL_BEHIND): GenerationState.BUILDING,
    (GenerationState.READY, GenerationEvent.SERVE): GenerationState.SERVING,
    (GenerationState.READY, GenerationEvent.RETIRE): GenerationState.RETIRED,
    (GenerationState.SERVING, GenerationEvent.YIELD): GenerationState.BUILDING,
    (GenerationState.SERVING, GenerationEvent.RETIRE): GenerationState.RETIRED,
}


class PartitionState(Enum):
    """What this gateway has of one partition of a generation."""

    ABSENT = "absent"  # nothing, or rows that are being removed
    ASSIGNED = "assigned"  # what an earlier stay left is removed, rows of others come, its topic is asked for
    RESTORING = "restoring"  # filled from the changelog, up to its barrier; not answered from
    CATCHING_UP = "catching up"  # was live, and reads what came since; its history goes on
    LIVE = "live"  # answered from, and followed
    REVOKING = "revoking"  # not ours any more: answered from until the others know, but announced no longer
    FINAL = "final"  # live, and at the last marker of its generation: nothing more comes
    FROZEN = "frozen"  # live, but its changelog is gone: answered from until the next generation is there


class PartitionEvent(Enum):
    """What happens to a partition."""

    ASSIGN = "assign"
    UNASSIGN = "unassign"
    RESTORE = "restore"
    CATCH_UP = "catch up"
    REACH_BARRIER = "reach barrier"  # the end offset that was seen when it opened
    REACH_LAST_MARKER = "reach last marker"
    FREEZE = "freeze"
    REVOKE = "revoke"
    KEEP_CATCHING_UP = "keep catching up"  # assigned again, before it was removed; and so the three below
    KEEP_LIVE = "keep live"
    KEEP_FINAL = "keep final"
    KEEP_FROZEN = "keep frozen"
    REMOVE = "remove"
    STOP = "stop"  # its generation is followed no more; the rows stay


PARTITION_TRANSITIONS: Mapping[tuple[PartitionState, PartitionEvent], PartitionState] = {
    (PartitionState.ABSENT, PartitionEvent.ASSIGN): PartitionState.ASSIGNED,
    (PartitionState.ASSIGNED, PartitionEvent.UNASSIGN): PartitionState.ABSENT,
    (PartitionState.ASSIGNED, PartitionEvent.RESTORE): PartitionState.RESTORING,
    (PartitionState.ASSIGNED, PartitionEvent.CATCH_UP): PartitionState.CATCHING_UP,
    (PartitionState.ASSIGNED, PartitionEvent.STOP): PartitionState.ABSENT,
    (PartitionState.RESTORING, PartitionEvent.REACH_BARRIER): PartitionState.LIVE,
    (PartitionState.RESTORING, PartitionEvent.REACH_LAST_MARKER): PartitionState.FINAL,
    (PartitionState.RESTORING, PartitionEvent.REMOVE): PartitionState.ABSENT,  # nobody was answered from it
    (PartitionState.RESTORING, PartitionEvent.STOP): PartitionState.ABSENT,
    (PartitionState.CATCHING_UP, PartitionEvent.REACH_BARRIER): PartitionState.LIVE,
    (PartitionState.CATCHING_UP, PartitionEvent.REACH_LAST_MARKER): PartitionState.FINAL,
    (PartitionState.CATCHING_UP, PartitionEvent.REVOKE): PartitionState.REVOKING,
    (PartitionState.CATCHING_UP, PartitionEvent.STOP): PartitionState.ABSENT,
    (PartitionState.LIVE, PartitionEvent.REACH_LAST_MARKER): PartitionState.FINAL,
    (PartitionState.LIVE, PartitionEvent.FREEZE): PartitionState.FROZEN,
    (PartitionState.LIVE, PartitionEvent.REVOKE): PartitionState.REVOKING,
    (PartitionState.LIVE, PartitionEvent.STOP): PartitionState.ABSENT,
    # A partition that is being revoked is followed as before; it is back where it is then, should it be kept.
    (PartitionState.REVOKING, PartitionEvent.REACH_BARRIER): PartitionState.REVOKING,
    (PartitionState.REVOKING, PartitionEvent.REACH_LAST_MARKER): PartitionState.REVOKING,
    (PartitionState.REVOKING, PartitionEvent.FREEZE): PartitionState.REVOKING,
    (PartitionState.REVOKING, PartitionEvent.KEEP_CATCHING_UP): PartitionState.CATCHING_UP,
    (PartitionState.REVOKING, PartitionEvent.KEEP_LIVE): PartitionState.LIVE,
    (PartitionState.REVOKING, PartitionEvent.KEEP_FINAL): PartitionState.FINAL,
    (PartitionState.REVOKING, PartitionEvent.KEEP_FROZEN): PartitionState.FROZEN,
    (PartitionState.REVOKING, PartitionEvent.REMOVE): PartitionState.ABSENT,
    (PartitionState.REVOKING, PartitionEvent.STOP): PartitionState.ABSENT,
    (PartitionState.FINAL, PartitionEvent.FREEZE): PartitionState.FINAL,  # its topic may go: it is needed no more
    (PartitionState.FINAL, PartitionEvent.REVOKE): PartitionState.REVOKING,
    (PartitionState.FINAL, PartitionEvent.STOP): PartitionState.ABSENT,
    (PartitionState.FROZEN, PartitionEvent.REVOKE): PartitionState.REVOKING,
    (PartitionState.FROZEN, PartitionEvent.STOP): PartitionState.ABSENT,
}


class ForbiddenMove(Exception):
    """A defect of ours: something happened that cannot happen in that state."""


class Subject(NamedTuple):
    """Whose state it is: a table's; with a generation, that generation's; with a partition, too, that partition's."""

    table: str
    generation: int = 0
    store_id: StoreId = StoreId(0)
    partition: Partition | None = None

    def __str__(self) -> str:
        of_generation = f" generation {self.generation}" if self.generation else ""
        of_partition = "" if self.partition is None else f" partition {self.partition}"
        return f'table "{self.table}"{of_generation}{of_partition}'


class Move(NamedTuple):
    """A change of state that has happened."""

    subject: Subject
    before: Enum
    event: Enum
    after: Enum


OnMove = Callable[[Move], None]
_S = TypeVar("_S", bound=Enum)
_E = TypeVar("_E", bound=Enum)


class StateMachine(Generic[_S, _E]):
    """The state of one subject. One thread. `on_move` is called after each move, also after one to the same state."""

    __slots__ = ("_on_move", "_transitions", "state", "subject")

    def __init__(self, subject: Subject, initial: _S, transitions: Mapping[tuple[_S, _E], _S], on_move: OnMove) -> None:
        self.state = initial
        self.subject = subject
        self._transitions = transitions
        self._on_move = on_move

    def next(self, event: _E) -> _S:
        """Return the state that the event leads to; raise `ForbiddenMove` where it leads to none."""
        after = self._transitions.get((self.state, event))
        if after is None:
            raise ForbiddenMove(f'{self.subject} is {self.state.name}, where "{event.value}" cannot happen')
        return after

    def move(self, event: _E) -> None:
        """Change the state, log the change, announce it."""
        before, after = self.state, self.next(event)
        self.state = after
        if before is not after:
            # A gateway may have thousands of partitions; tables and generations are few.
            level = logging.INFO if self.subject.partition is None else logging.DEBUG
            if _logger.isEnabledFor(level):
                extra = {"table": self.subject.table, "state": after.name}
                _logger.log(level, "%s: %s -> %s (%s)", self.subject, before.name, after.name, event.value, extra=extra)
        self._on_move(Move(self.subject, before, event, after))


TableMachine = StateMachine[TableState, TableEvent]
GenerationMachine = StateMachine[GenerationState, GenerationEvent]
PartitionMachine = StateMachine[PartitionState, PartitionEvent]


def table_machine(table: str, on_move: OnMove) -> TableMachine:
    """Return the machine of a table of which nothing is known yet."""
    return StateMachine(Subject(table), TableState.NO_MANIFEST, TABLE_TRANSITIONS, on_move)


def generation_machine(table: str, generation: int, store_id: StoreId, on_move: OnMove) -> GenerationMachine:
    """Return the machine of a generation that has just been discovered."""
    subject = Subject(table, generation, store_id)
    return StateMachine(subject, GenerationState.DISCOVERED, GENERATION_TRANSITIONS, on_move)


def partition_machine(generation: Subject, partition: Partition, on_move: OnMove) -> PartitionMachine:
    """Return the machine of a partition of which nothing is here."""
    subject = generation._replace(partition=partition)
    return StateMachine(subject, PartitionState.ABSENT, PARTITION_TRANSITIONS, on_move)
