"""Appends the newest record of a key again where another one lies behind it in the changelog.

A stale record that lands late, from a job's task that was thought dead, has the highest offset of its key. Stores drop
it, but compaction deletes all before it: who restores after that has the older row, or one that was deleted. The store
remembers such keys in the write that drops the record (`stores.settling`). Compaction looks at no record before it is
`COMPACTION_LAG_MS` old, so there is time:

1. Each gateway checks what is pending in its live partitions, some of them each second.
2. After a grace the owner has the record appended again, byte for byte, from its offset: no contract and no schema is
   between what the job wrote and what is there then.
3. All read it, as a repeat: it is no change, and ends the repair. Where it does not come, it is appended once more.

A gateway that is not the owner waits for it, some graces more: the owner's disk may be full, so that it does not know,
or it may not write. Two that append at once append the same, which is harmless; so is a newer row that comes between
the two: what was appended is stale then, and its key pending again.

Decision: docs/decisions/0062-the-owner-appends-its-row-again.md
"""

import logging
from collections import deque
from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

from tablegate.gateway.cluster.assignment import Assignment
from tablegate.gateway.kafka.log import Clock, Log, LogUnavailable, RecordId
from tablegate.gateway.replication.partitions import GenerationReplica, PartitionReplica
from tablegate.gateway.replication.states import PartitionState
from tablegate.gateway.replication.table import TableReplicator
from tablegate.gateway.stores.base import Repair, StoreWriter

REPAIR_GRACE_S = 300.0  # a job that runs a batch again has repaired it by then; far below `COMPACTION_LAG_MS`
OWNER_GRACES = 3  # more, for which the others wait for the owner
CHECK_EVERY_S = 1.0
CHECK_PARTITIONS_MAX = 100  # each time; in Redis each is a round trip
REPAIRS_MAX = 1_000  # of a partition that are known here at a time; the others wait
REPEATS_MAX = 100  # records in one request: a zombie of a busy job must not double the load of the brokers

_logger = logging.getLogger("tablegate.gateway.replication")


class _Place(NamedTuple):
    table: TableReplicator
    generation: GenerationReplica
    replica: PartitionReplica

    @property
    def is_repaired(self) -> bool:
        """Return whether the partition goes on, and is whole here."""
        goes_on = not self.generation.is_frozen and not self.generation.is_foreign
        return self.replica.state is PartitionState.LIVE and goes_on


@dataclass(slots=True)
class _Request:
    place: _Place
    repairs: dict[RecordId, Repair]
    answer: "Future[list[RecordId]]"


class Repairing:
    """Repairs the changelogs of all tables, one request after the other. `step` over and over; it does not wait."""

    def __init__(
        self, *, store: StoreWriter, log: Log, clock: Clock, assignment: Assignment, grace_s: float = REPAIR_GRACE_S
    ) -> None:
        self._store = store
        self._log = log
        self._clock = clock
        self._assignment = assignment
        self._grace_s = grace_s
        self._check_at_s = 0.0
        self._waiting: deque[_Place] = deque()
        self._due_s: dict[PartitionReplica, dict[Repair, float]] = {}  # of those that have any; monotonic
        self._request: _Request | None = None

    def step(self, tables: Collection[TableReplicator]) -> None:
        """Use the answer of the last request; check some partitions when it is time."""
        self._finish()
        now_s = self._clock.monotonic_s()
        if now_s < self._check_at_s:
            return
        self._check_at_s = now_s + CHECK_EVERY_S
        if not self._waiting:
            self._begin(tables)
        for _ in range(min(CHECK_PARTITIONS_MAX, len(self._waiting))):
            place = self._waiting.popleft()
            if place.is_repaired:
                self._check(place, now_s)

    def _begin(self, tables: Collection[TableReplicator]) -> None:
        """Begin a round over all partitions that are repaired, and forget the others."""
        followed = [
            _Place(table, generation, replica)
            for table in tables
            for generation in table.generations.followed()
            for replica in generation.replicas
        ]
        self._waiting = deque(place for place in followed if place.is_repaired)
        here = {place.replica: place.table for place in self._waiting}
        self._due_s = {replica: due_s for replica, due_s in self._due_s.items() if replica in here}
        for table in tables:
            table.repairs.pending = sum(len(due_s) for replica, due_s in self._due_s.items() if here[replica] is table)
            if not table.repairs.pending:
                table.repairs.problem = ""

    def _check(self, place: _Place, now_s: float) -> None:
        found = self._store.repairs(place.generation.store_id, place.replica.partition, limit=REPAIRS_MAX)
        known = self._due_s.pop(place.replica, {})
        place.table.repairs.pending += len(found) - len(known)
        if not found:
            return
        # By a clock that only goes on: nobody's time of day can put it off.
        due_s = {repair: known.get(repair, now_s + self._grace_s) for repair in found}
        self._due_s[place.replica] = due_s
        due = self._due(place, now_s)[:REPEATS_MAX]
        if due and self._request is None:
            self._repeat(place, due, now_s)

    def _due(self, place: _Place, now_s: float) -> list[Repair]:
        """Return what this gateway is to repair now."""
        due = [(repair, at_s) for repair, at_s in self._due_s[place.replica].items() if at_s <= now_s]
        if due and not self._is_owner(place):
            due = [(repair, at_s) for repair, at_s in due if at_s + OWNER_GRACES * self._grace_s <= now_s]
        return [repair for repair, _ in due]

    def _is_owner(self, place: _Place) -> bool:
        manifest = place.generation.manifest
        return self._assignment.is_owner(
            place.table.table.name,
            place.replica.partition,
            partition_count=manifest.partition_count,
            generation=manifest.generation,
        )

    def _repeat(self, place: _Place, repairs: list[Repair], now_s: float) -> None:
        records = {RecordId(each.offset, each.key, each.version): each for each in sorted(repairs, key=_by_offset)}
        for each in repairs:
            self._due_s[place.replica][each] = now_s + self._grace_s  # once more, unless it comes back
        self._request = _Request(place, records, self._log.repeat(place.replica.topic_partition, list(records)))

    def _finish(self) -> None:
        """Count what was appended; say what was not."""
        request = self._request
        if request is None or not request.answer.done():
            return
        self._request = None
        table, topic = request.place.table, request.place.replica.topic_partition.topic
        try:
            appended = request.answer.result()
        except LogUnavailable as error:
            self._report(table, f'changelog "{topic}" does not take repairs: {error}', logging.WARNING)
            return
        table.repairs.repaired += len(appended)
        gone = len(request.repairs) - len(appended)
        if not gone:
            table.repairs.problem = ""
            return
        self._report(
            table,
            f'the newest records of {gone} keys are gone from the changelog "{topic}", and older ones are there: '
            "a store that is restored lacks them; rebuild the table",
            logging.ERROR,
        )

    def _report(self, table: TableReplicator, problem: str, level: int) -> None:
        if problem != table.repairs.problem:
            table.repairs.problem = problem
            _logger.log(level, "%s", problem, extra={"table": table.table.name})


def _by_offset(repair: Repair) -> int:
    return repair.offset
