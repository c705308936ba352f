"""What the store has of a table's generations, and whether it can be followed on from. It keeps no state of its own.

Under its own name the store has the generation that a table is answered from, under another name (`next_name`) the one
that is built, and under a third one the newest manifest that was followed, whatever became of it. After a restart they
are followed on from where they are, unless something may be missing in them:

    deletes     a store that was away for long does not see tombstones that Kafka has removed meanwhile (`is_too_old`)
    rows        those of another row message, or that were removed by a shorter retention
    positions   that are not in the changelog any more, or not yet

Decision: docs/decisions/0021-age-of-a-store.md
"""

import logging
from collections.abc import Mapping, Sequence

from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.foreign.topics import rows_digest
from tablegate.gateway.contract.types import Offset, Partition, StoreId
from tablegate.gateway.kafka.log import Clock, TopicFacts
from tablegate.gateway.replication.manifests import DELETE_RETENTION_MIN_MS, follows_on, problem_of
from tablegate.gateway.replication.progress import TableLog
from tablegate.gateway.stores.base import Copy, Phase, Position, StoreWriter
from tablegate.internal.v1.store_pb2 import TableState
from tablegate.v1.changelog_pb2 import Manifest

OLD_STORE_PART = 0.5  # of delete.retention.ms: an older store may have missed deletes


def next_name(table_name: str) -> str:
    """Return the name under which the store keeps the generation that is being built; no table has such a name."""
    return f"{table_name}/next"


def newest_name(table_name: str) -> str:
    """Return the name under which the store keeps the newest manifest that was followed; no table has such a name."""
    return f"{table_name}/newest"


class StoredTable:
    """The states of one table in the store. `caught_up_ms` is always when it last had its whole changelog; 0: never."""

    def __init__(self, table: Table, *, store: StoreWriter, clock: Clock, table_log: TableLog) -> None:
        self._table = table
        self._store = store
        self._clock = clock
        self._log = table_log

    def state(self, name: str) -> TableState | None:
        """Return what is stored under a name."""
        with self._store.snapshot() as snapshot:
            return snapshot.table(name)

    def states(self) -> Mapping[str, TableState]:
        """Return what the store has of the table's generations, by name."""
        names = (self._table.name, next_name(self._table.name))
        return {name: state for name in names if (state := self.state(name)) is not None and state.store_id}

    def keep(self, name: str, manifest: Manifest, copy: Copy) -> None:
        """Store that a manifest is followed under a name, into that store id."""
        state = TableState(
            store_id=copy.store_id,
            incarnation_id=copy.incarnation_id,
            manifest=manifest,
            retention_us=self._table.retention_us or 0,
            row_digest=rows_digest(self._table, manifest),
        )
        self._put(name, state)

    def _put(self, name: str, state: TableState) -> None:
        """Store a state, unless it is stored: what was refused is tried again with all that was done before it."""
        if state != (self.state(name) or TableState()):
            self._store.put_table(name, state)

    def forget(self, name: str, *, problem: str = "", manifest: Manifest | None = None) -> None:
        """Store that nothing is followed under a name, and why; `manifest`: by which it was."""
        self._put(name, TableState(problem=problem, manifest=manifest))

    def refuse(self, problem: str) -> None:
        """Store that the table is not served. Its rows stay."""
        state = self.state(self._table.name)
        kept = TableState()
        if state is not None:
            kept.CopyFrom(state)
        kept.problem = problem
        self._put(self._table.name, kept)

    def newest_manifest(self) -> Manifest | None:
        """Return the newest manifest that was followed since the table was made; None where none is known.

        Of a generation that other gateways alone have followed, it has the number and nothing else.
        """
        state = self.state(newest_name(self._table.name))
        return state.manifest if state is not None and state.HasField("manifest") else None

    def keep_newest(self, manifest: Manifest | None) -> None:
        """Store which manifest is the newest; None: the table was removed."""
        self._put(newest_name(self._table.name), TableState(manifest=manifest))

    def older(self, manifest: Manifest) -> Manifest | None:
        """Return the manifest of an older generation that is stored, and that this contract can serve on."""
        state = self.states().get(self._table.name)
        if state is None or not state.HasField("manifest") or state.manifest.generation >= manifest.generation:
            return None
        problem = problem_of(self._table, state.manifest)
        if problem is not None:
            self._log.log(logging.WARNING, f"{problem}; what is stored of it is not served on")
            return None
        return state.manifest

    def usable(self, manifest: Manifest, facts: TopicFacts, *, caught_up_ms: int) -> TableState | None:
        """Return the state whose store id has rows of this changelog, to be followed on from; None if there is none."""
        for state in self.states().values():
            if state.HasField("manifest") and follows_on(state.manifest, manifest):
                why = self.fault_of(state, facts, caught_up_ms=caught_up_ms)
                if why is None:
                    return state
                self._log.log(logging.WARNING, f"{why}: restoring from the start")
        return None

    def fault_of(self, state: TableState, facts: TopicFacts, *, caught_up_ms: int) -> str | None:
        """Return why what is stored cannot be followed on from; None if it can."""
        positions = self._positions(state)
        if not any(positions):
            return None
        if state.row_digest != rows_digest(self._table, state.manifest):
            return "its rows were stored by another row message of the contract"
        if self._store.is_shared and state.retention_us != (self._table.retention_us or 0):
            return "its retention is another, and other gateways may keep its rows by the old one"
        for position, start, end in zip(positions, facts.start_offsets, facts.end_offsets, strict=True):
            if position is None:
                continue
            # What is shared may have moved on since it was asked; the next answer shows whether it is beyond the end.
            if position.next_offset < start or (position.next_offset > end and not self._store.is_shared):
                return "its stored position is not in the changelog"
        caught_up_ms = whole_as_of_ms(self._store, positions, caught_up_ms)
        is_closed = closed_facts(state.manifest, positions) is not None
        if not is_closed and self.is_too_old(caught_up_ms, facts):
            return "its store is too old, and may have missed deletes"
        return early_removal(self._table, stored_retention_us=state.retention_us)

    def closed_facts(self, manifest: Manifest) -> TopicFacts | None:
        """Return the topic of a generation that is stored to its end, for which no broker need be asked."""
        for state in self.states().values():
            if follows_on(state.manifest, manifest):
                return closed_facts(manifest, self._positions(state))
        return None

    def _positions(self, state: TableState) -> list[Position | None]:
        return stored_positions(self._store, StoreId(state.store_id), state.manifest)

    def is_too_old(self, caught_up_ms: int, facts: TopicFacts) -> bool:
        """Return whether a store may have missed deletes."""
        return is_too_old(caught_up_ms, facts, now_ms=self._clock.now_ms())


def partitions_of(manifest: Manifest) -> Sequence[Partition]:
    """Return all partitions of a manifest."""
    return [Partition(number) for number in range(manifest.partition_count)]


def stored_positions(store: StoreWriter, store_id: StoreId, manifest: Manifest) -> list[Position | None]:
    """Return the positions that the store has, one of each partition."""
    with store.snapshot() as snapshot:
        return [snapshot.position(store_id, partition) for partition in partitions_of(manifest)]


def whole_as_of_ms(store: StoreWriter, positions: Sequence[Position | None], caught_up_ms: int) -> int:
    """Return when positions, one of them at least, were last known to have all: others may have gone on with them."""
    as_of_ms = min(position.as_of_ms for position in positions if position is not None)
    return max(caught_up_ms, as_of_ms) if store.is_shared else caught_up_ms


def is_too_old(caught_up_ms: int, facts: TopicFacts, *, now_ms: int) -> bool:
    """Return whether a store may have missed deletes."""
    return now_ms - caught_up_ms > facts.delete_retention_ms * OLD_STORE_PART


def first_position(facts: TopicFacts, partition: Partition) -> Position:
    """Return where a restore from nothing starts."""
    start: Offset = facts.start_offsets[partition]
    return Position(start, 0, Phase.RESTORING, start)


def closed_facts(manifest: Manifest, positions: Sequence[Position | None]) -> TopicFacts | None:
    """Return the topic of a generation that is stored up to its last markers; None for one that is not.

    All that is here of it is whole, so it needs its topic no more, whatever became of that. Where the topic starts is
    not known: whoever would restore from these facts stays short of the end until it has read the topic itself. The end
    of a partition that is not here is -1.
    """
    stored = [position for position in positions if position is not None]
    if not stored or not all(position.is_final for position in stored):
        return None
    ends = tuple(Offset(-1) if position is None else position.next_offset for position in positions)
    return TopicFacts(
        manifest.changelog_topic_id, (Offset(0),) * len(ends), ends, DELETE_RETENTION_MIN_MS, leader_epochs=()
    )


def early_removal(table: Table, *, stored_retention_us: int) -> str | None:
    """Return why a store may lack rows that are not expired; None where it does not.

    `stored_retention_us`: the retention by which it removed rows (0: none).
    """
    retention_us = table.retention_us
    if stored_retention_us and (retention_us is None or retention_us > stored_retention_us):
        return "its retention is longer than it was, and rows were removed by the shorter one"
    return None
