"""The generations of a table that are followed here, which of them is answered from, and how the next takes its place.

`serving` is what the store tells the workers of. `building` is a newer one beside it; or, in a gateway that has
answered from nothing yet, beside what the other gateways answer from (`LateJoiner`).

A switch leaves no gap and takes nobody back in time:

1. The new generation is BUILDING: restored beside the old one, which is followed and answered from. Each partition that
   is answered from here is built here too, whoever it is assigned to (`Generations.reconcile`).
2. The job of the old one ends it with a last marker in each partition. They name the source records that its rows were
   made from. Once the new one is live and its markers name as many, it is READY (`unmet_requirement`).
3. The gateways switch one after the other, each when every partition of the new one is live on some gateway
   (`Assignment.unmet_requirement`). Reads are answered by one generation at a time, see `query/`.
4. The old one is RETIRED, and its rows are removed in small steps.

Whatever changes is stored first, and then remembered: a store may refuse any write. Then all is here as it was, but for
what is stored already, and the same is tried again.

Decision: docs/decisions/0013-final-markers-end-a-generation.md
Decision: docs/decisions/0040-late-joiners-wait.md
Decision: docs/decisions/0041-build-what-is-answered.md
Decision: docs/decisions/0066-stored-before-it-is-so.md
"""

import logging

from tablegate.gateway.cluster.assignment import Assignment
from tablegate.gateway.contract.types import Partition, StoreId
from tablegate.gateway.kafka.log import Clock
from tablegate.gateway.replication.partitions import GenerationReplica, PartitionReplica
from tablegate.gateway.replication.progress import TableLog
from tablegate.gateway.replication.states import (
    GenerationEvent,
    GenerationState,
    PartitionState,
    TableEvent,
    TableMachine,
)
from tablegate.gateway.replication.stored import StoredTable, next_name
from tablegate.gateway.stores.base import StoreFull
from tablegate.v1.changelog_pb2 import Manifest

RETURN_S = 7.0  # with the time after which a gateway is taken for dead, that after which its partitions are given away


class Generations:
    """What is followed of one table. One thread.

    `unmet`: what keeps `building` from being answered from. Store ids that are to be removed are in `garbage`; none
    that is or was one is used again, by any table: they are kept in `abandoned`.
    """

    def __init__(
        self,
        table: str,
        *,
        machine: TableMachine,
        stored: StoredTable,
        assignment: Assignment,
        clock: Clock,
        table_log: TableLog,
        abandoned: set[StoreId],
    ) -> None:
        self.serving: GenerationReplica | None = None
        self.building: GenerationReplica | None = None
        self.unmet = ""
        self.garbage: list[StoreId] = []
        self.abandoned = abandoned
        self._table = table
        self._machine = machine
        self._stored = stored
        self._assignment = assignment
        self._clock = clock
        self._log = table_log
        self._late_joiner: LateJoiner | None = None  # until rows of the first generation are answered

    @property
    def current(self) -> GenerationReplica | None:
        """Return the newest that is followed."""
        return self.building or self.serving

    def followed(self) -> list[GenerationReplica]:
        """Return what is followed, the older one first."""
        return [generation for generation in (self.serving, self.building) if generation is not None]

    def replicas(self) -> list[PartitionReplica]:
        """Return the partitions of all that is followed."""
        return [replica for generation in self.followed() for replica in generation.replicas]

    def older(self, manifest: Manifest) -> GenerationReplica | None:
        """Return what is served of an older generation, beside which that of `manifest` is to be built."""
        serving = self.serving
        return serving if serving is not None and serving.manifest.generation < manifest.generation else None

    @property
    def manifest(self) -> Manifest | None:
        """Return that of the generation that is answered from, here or, as far as it is known, by others."""
        if self.serving is not None:
            return self.serving.manifest
        return self._late_joiner.others if self._late_joiner is not None and self.building is not None else None

    def update(self, manifest: Manifest) -> None:
        """Accept another manifest of the newest that is followed."""
        current = self.current
        assert current is not None
        self._stored.keep(self._table if current is self.serving else next_name(self._table), manifest, current.copy)
        current.update(manifest)

    # What begins, and what ends.

    def build(self, generation: GenerationReplica) -> None:
        """Follow a generation beside what is served."""
        self._stored.keep(next_name(self._table), generation.manifest, generation.copy)
        self._late_joiner = None
        generation.machine.move(GenerationEvent.BUILD)
        self.building = generation

    def serve(self, generation: GenerationReplica) -> None:
        """Answer from a generation, from now on; there is none beside it."""
        self._stored.keep(self._table, generation.manifest, generation.copy)
        self._stored.forget(next_name(self._table))
        self._late_joiner = None
        generation.machine.move(GenerationEvent.SERVE)
        self.serving, self.building, self.unmet = generation, None, ""
        self._machine.move(TableEvent.SERVED)

    def serve_first(self, generation: GenerationReplica) -> None:
        """Answer from a generation where nothing was answered from, as soon as others have no older one."""
        late_joiner = LateJoiner(self._table, generation, assignment=self._assignment, clock=self._clock)
        # A gateway that stands alone, or comes first, serves a first generation while it is restored: partition by
        # partition.
        if late_joiner.may_serve():
            self.serve(generation)
            self._late_joiner = late_joiner
        else:
            self._let_others_answer(generation, late_joiner)

    def resume(self, generation: GenerationReplica) -> None:
        """Answer from a generation that was answered from before a restart, beside a newer one that may be stored."""
        self._stored.keep(self._table, generation.manifest, generation.copy)
        generation.machine.move(GenerationEvent.SERVE)
        self.serving = generation
        self._machine.move(TableEvent.SERVED)

    def stop(self) -> None:
        """Follow nothing. What is stored stays, but for what the store names no more: a switch was broken off."""
        named = {StoreId(state.store_id) for state in self._stored.states().values()}
        for generation in self.followed():
            generation.stop()
            if generation.store_id not in named:
                self.abandon(generation.store_id)
        self.serving = self.building = self._late_joiner = None
        self.unmet = ""

    def forget(self, generation: GenerationReplica, *, problem: str) -> None:
        """Drop what is followed; where it is what was served, the store says why nothing is."""
        was_built = generation is self.building
        if was_built:
            self._stored.forget(next_name(self._table))
        else:
            self._stored.forget(self._table, problem=problem, manifest=generation.manifest)
        generation.stop()
        self.abandon(generation.store_id)
        if was_built:
            self.building, self.unmet = None, ""
        else:
            self.serving = None
        if self.current is None:
            self._machine.move(TableEvent.STARTED_OVER)

    def abandon(self, *store_ids: StoreId) -> None:
        """Have store ids removed."""
        # The replicator removes their rows in small steps between two fetches: a live record may wait for it.
        self.garbage += store_ids
        self.abandoned.update(store_ids)

    # From one to the next.

    def reconcile(self) -> None:
        """Make what is here what is assigned.

        What is answered here is built here, whoever is to have it: would others only have it in the new generation, it
        would be nowhere between this gateway's switch and theirs. Once all have switched, it goes to them.
        """
        serving, building = self.serving, self.building
        if serving is not None:
            serving.reconcile(is_served=True)
        if building is not None:
            building.reconcile(is_served=False, answered=_answered_of(serving, building.manifest))

    def serve_when_due(self) -> None:
        """Answer from the first generation that is here when it is time.

        Until something of it is LIVE, others may yet be found to answer from an older one.
        """
        late_joiner, generation = self._late_joiner, self.current
        if late_joiner is None or generation is None:
            return
        others, may_serve = late_joiner.others, late_joiner.may_serve()
        if self.building is None:
            if not may_serve:
                self._let_others_answer(generation, late_joiner)
            elif any(replica.is_live for replica in generation.replicas):
                self._late_joiner = None
        elif may_serve:
            self.switch(generation)
        elif late_joiner.others != others:
            try:
                self._let_others_answer(generation, late_joiner)
            except StoreFull:
                late_joiner.others = others  # the workers do not know of the new ones yet
                raise

    def _let_others_answer(self, generation: GenerationReplica, late_joiner: "LateJoiner") -> None:
        """Build the first generation that is here, beside what others answer from if that is known."""
        self._stored.keep(next_name(self._table), generation.manifest, generation.copy)
        # The workers route by this: the generation, partition count and topic id of the others, and no rows of ours.
        self._stored.forget(self._table, manifest=late_joiner.others)
        if generation is self.serving:
            # Nothing of it is live yet, so no client has been given a row of it: it may step back without anybody
            # seeing rows go back.
            generation.machine.move(GenerationEvent.YIELD)
        elif generation is not self.building:
            generation.machine.move(GenerationEvent.BUILD)
        self.serving, self.building, self._late_joiner = None, generation, late_joiner
        self._machine.move(TableEvent.BUILT_FIRST)
        if late_joiner.others is not None:
            self._wait(generation, f"other gateways answer from generation {late_joiner.others.generation}")

    def switch_when_due(self) -> None:
        """Answer from what is built when it is as far as what is served, and the other gateways are."""
        building, serving = self.building, self.serving
        if building is None:
            return
        if serving is None:  # then it is for `serve_when_due`
            _set_ready(building, is_ready=building.is_live)
            return
        unmet = unmet_requirement(building, serving)
        _set_ready(building, is_ready=unmet is None)
        unmet = unmet or self._assignment.unmet_requirement(
            self._table,
            building.manifest.partition_count,
            old=serving.manifest.generation,
            new=building.manifest.generation,
            has_part=bool(serving.replicas),
        )
        self.unmet = unmet or ""
        if unmet is None:
            # Its changelog is gone, so nobody will ever know what its last rows were made from. A generation that grows
            # is better than one that is frozen.
            if not serving.is_closed and not serving.is_foreign:
                why = f"the changelog of generation {serving.manifest.generation} ended without its last markers"
                older = f"rows of generation {building.manifest.generation} may be older than what was served"
                self._log.log(logging.WARNING, f"{why}: {older}")
            self.switch(building)
        elif building.is_live:
            self._wait(building, unmet)

    def _wait(self, building: GenerationReplica, unmet: str) -> None:
        self.unmet = unmet
        self._log.log_once(logging.INFO, f"generation {building.manifest.generation} is not served yet: {unmet}")

    def switch(self, building: GenerationReplica) -> None:
        """Answer from the new generation in place of the old one, which is dropped."""
        old = self.serving
        # First the store names the new generation, then the old one is stopped: a crash between leaves an old one to
        # remove, and never nothing to answer from.
        self.serve(building)
        if old is not None:
            old.stop()
            self.abandon(old.store_id)
        self._log.log(logging.INFO, "switched to its new generation", generation=building.manifest.generation)


class LateJoiner:
    """A gateway that has answered from nothing of a table, where others may answer from an older generation of it.

    Would it answer from the new one as soon as that is restored, a client that asks one gateway and then another would
    see rows of the new generation and then of the old one. So it follows the new one as they do, beside what they
    answer from, sends reads to them meanwhile, and serves when one of them does. If they die or drain, it serves
    without them.

    `others` has generation, partition count and topic id of what other gateways answer from; None: nothing older.
    """

    def __init__(self, table: str, generation: GenerationReplica, *, assignment: Assignment, clock: Clock) -> None:
        self.others: Manifest | None = None
        self._table = table
        self._generation = generation
        self._assignment = assignment
        self._clock = clock
        self._missed_s: float | None = None  # since when the others do not answer from everything

    def may_serve(self) -> bool:
        """Ask what the others have; return whether the generation may be answered from.

        Before all were heard, it may if nothing of it is here: who is found to have an older one then answers.
        """
        generation, now_s = self._generation, self._clock.monotonic_s()
        new = generation.manifest.generation
        older = self._assignment.older_generation(self._table, new=new)
        if older is not None:
            self.others = Manifest(
                table=self._table,
                generation=older.generation,
                partition_count=older.partition_count,
                changelog_topic_id=older.topic_id,
                # Their keys are found as those of the new one are.
                foreign=generation.manifest.foreign if generation.is_foreign else None,
            )
        if self.others is None:
            return generation.assigned() is not None or not generation.replicas
        if older is not None and older.is_whole:
            self._missed_s = None
        elif self._missed_s is None:
            self._missed_s = now_s
        is_missed = self._missed_s is not None and now_s >= self._missed_s + RETURN_S
        is_due = self._assignment.is_switch_due(self._table, new=new)
        return is_due or (is_missed and (older is None or generation.is_live))


def _set_ready(building: GenerationReplica, *, is_ready: bool) -> None:
    if is_ready is not (building.machine.state is GenerationState.READY):
        building.machine.move(GenerationEvent.MADE_READY if is_ready else GenerationEvent.FELL_BEHIND)


def _answered_of(serving: GenerationReplica | None, new: Manifest) -> frozenset[Partition]:
    """Return the partitions that are answered from `serving`, if they are the same ones in the new generation."""
    if serving is None or serving.manifest.partition_count != new.partition_count:
        return frozenset()
    return frozenset(each.partition for each in serving.replicas if each.state is not PartitionState.RESTORING)


def unmet_requirement(new: GenerationReplica, old: GenerationReplica) -> str | None:
    """Return why `new` may not take the place of `old` without going back in time; None when it may.

    The last markers of `old` say which source records its rows were made from. Topics that the job of `new` does not
    read do not count.
    """
    if not new.is_live:
        return "it is being restored"
    if old.is_foreign and old.manifest.changelog_topic_id == new.manifest.changelog_topic_id:
        here = {replica.partition: replica.next_offset for replica in new.replicas}
        behind = [one.partition for one in old.replicas if here.get(one.partition, one.next_offset) < one.next_offset]
        return f"partition {behind[0]} had more of its topic" if behind else None
    if (old.is_frozen and not old.is_closed) or old.is_foreign:
        return None
    for replica in old.replicas:
        if not replica.position.is_final:
            return f"partition {replica.partition} of generation {old.manifest.generation} has no last marker yet"
    needed: dict[tuple[str, int], int] = {}
    for replica in old.replicas:
        for at, next_offset in replica.position.source_offsets.items():
            needed[at] = max(next_offset, needed.get(at, 0))
    read = {source.topic for source in new.manifest.sources}
    for (topic, source_partition), next_offset in needed.items():
        for replica in new.replicas if topic in read else ():
            if replica.position.source_offsets.get((topic, source_partition), 0) < next_offset:
                return (
                    f"its partition {replica.partition} has no marker yet for offset {next_offset} of partition "
                    f'{source_partition} of source topic "{topic}"'
                )
    return None
