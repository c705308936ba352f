"""The generations of a table that are followed here, and which of them is answered from.

`serving` is what the store tells the workers of. `building` is a newer one beside it; or, in a gateway that has
answered from nothing yet, beside what the others answer from (`LateJoiner`).
"""

import logging

from tablegate.gateway.cluster.assignment import Assignment
from tablegate.gateway.contract.types import Partition, StoreId
from tablegate.gateway.kafka.log import Clock
from tablegate.gateway.replication.late_joiner import LateJoiner
from tablegate.gateway.replication.partition import PartitionReplica
from tablegate.gateway.replication.partitions import GenerationReplica, lack_of
from tablegate.gateway.replication.stored_table import StoredTable, next_name
from tablegate.gateway.replication.table_log import TableLog
from tablegate.gateway.stores.base import Phase
from tablegate.v1.changelog_pb2 import Manifest


class Generations:
    """What is followed of one table. One thread.

    `is_ready`: what is built may be answered from. Store ids that are to be removed are in `garbage`; none that is or
    was one is taken again, by any table: they are kept in `given_up`.
    """

    def __init__(
        self,
        table: str,
        *,
        stored: StoredTable,
        share: Assignment,
        clock: Clock,
        lines: TableLog,
        given_up: set[StoreId],
    ) -> None:
        self.serving: GenerationReplica | None = None
        self.building: GenerationReplica | None = None
        self.is_ready = False
        self.garbage: list[StoreId] = []
        self.given_up = given_up
        self._table = table
        self._stored = stored
        self._share = share
        self._clock = clock
        self._lines = lines
        self._newcomer: LateJoiner | None = None  # until rows of the first generation are answered

    @property
    def current(self) -> GenerationReplica | None:
        """Return the newest that is followed."""
        return self.building or self.serving

    def followings(self) -> list[GenerationReplica]:
        """Return what is followed, the older one first."""
        return [following for following in (self.serving, self.building) if following is not None]

    def replicas(self) -> list[PartitionReplica]:
        """Return the replicas of all that is followed."""
        return [replica for following in self.followings() for replica in following.replicas]

    def older(self, manifest: Manifest) -> GenerationReplica | None:
        """Return what is served of an older generation, beside which that of `manifest` is to be built."""
        serving = self.serving
        return serving if serving is not None and serving.manifest.generation < manifest.generation else None

    @property
    def manifest(self) -> Manifest | None:
        """Return that of the generation that is answered from, here or, as far as it is known, by others."""
        if self.serving is not None:
            return self.serving.manifest
        return self._newcomer.others if self._newcomer is not None and self.building is not None else None

    def update(self, manifest: Manifest) -> None:
        """Take another manifest of the newest that is followed."""
        current = self.current
        assert current is not None
        current.update(manifest)
        self._stored.keep(current, self._table if current is self.serving else next_name(self._table))

    # What begins, and what ends.

    def build(self, following: GenerationReplica) -> None:
        """Follow a generation beside what is served."""
        self._newcomer = None
        self.building = following
        self._stored.keep(following, next_name(self._table))

    def serve(self, following: GenerationReplica) -> None:
        """Answer from a generation, from now on; there is none beside it."""
        self._newcomer = None
        self._stored.keep(following, self._table)
        self._stored.forget(next_name(self._table))
        self.serving, self.building = following, None

    def serve_first(self, following: GenerationReplica) -> None:
        """Answer from a generation where nothing was answered from, as soon as others have no older one."""
        newcomer = LateJoiner(self._table, following, share=self._share, clock=self._clock)
        if newcomer.may_begin():
            self.serve(following)
            self._newcomer = newcomer
        else:
            self._let_others_answer(following, newcomer)

    def resume(self, following: GenerationReplica) -> None:
        """Answer from a generation that was answered from before a restart, beside a newer one that may be stored."""
        self._stored.keep(following, self._table)
        self.serving = following

    def stop(self) -> None:
        """Follow nothing. What is stored stays."""
        for following in self.followings():
            following.stop()
        self.serving = self.building = self._newcomer = None

    def forget(self, following: GenerationReplica, *, problem: str) -> None:
        """Drop what is followed; where it is what was served, the store says why nothing is."""
        following.stop()
        self.give_up(following.store_id)
        if following is self.building:
            self.building = None
            self._stored.forget(next_name(self._table))
        else:
            self.serving = None
            self._stored.forget(self._table, problem=problem, manifest=following.manifest)

    def give_up(self, *store_ids: StoreId) -> None:
        """Have store ids removed."""
        self.garbage += store_ids
        self.given_up.update(store_ids)

    # From one to the next.

    def share_out(self) -> None:
        """Take notice of which partitions are to be here.

        What is answered here is built here, whoever is to have it: would others only have it in the new generation, it
        would be nowhere between this gateway's switch and theirs. Once all have switched, it goes to them.
        """
        serving, building = self.serving, self.building
        if serving is not None:
            serving.share_out(is_served=True)
        if building is not None:
            building.share_out(is_served=False, answered=_answered_of(serving, building.manifest))

    def begin_when_due(self) -> None:
        """Answer from the first generation that is here when it is time.

        Until something of it is LIVE, others may yet be found to answer from an older one.
        """
        newcomer, following = self._newcomer, self.current
        if newcomer is None or following is None:
            return
        others, may_begin = newcomer.others, newcomer.may_begin()
        if self.building is None:
            if not may_begin:
                self._let_others_answer(following, newcomer)
            elif any(replica.is_live for replica in following.replicas):
                self._newcomer = None
        elif may_begin:
            self.switch(following)
        elif newcomer.others != others:
            self._let_others_answer(following, newcomer)

    def _let_others_answer(self, following: GenerationReplica, newcomer: LateJoiner) -> None:
        """Build the first generation that is here, beside what others answer from if that is known."""
        self.serving = None
        self.build(following)
        self._newcomer = newcomer
        self._stored.forget(self._table, manifest=newcomer.others)
        if newcomer.others is not None:
            new, old = following.manifest.generation, newcomer.others.generation
            why = f"other gateways answer from generation {old}"
            self._lines.say_once(logging.INFO, f"generation {new} is not served yet: {why}")

    def switch_when_due(self) -> None:
        """Answer from what is built when it is as far as what is served, and the other gateways are."""
        self.is_ready = False
        building, serving = self.building, self.serving
        if building is None or serving is None:
            return
        old, new = serving.manifest.generation, building.manifest.generation
        lack = lack_of(building, serving) or self._share.lack(
            self._table,
            building.manifest.partition_count,
            old=old,
            new=new,
            has_part=bool(serving.replicas),
        )
        self.is_ready = lack is None
        if lack is None:
            if not serving.is_closed:
                why = f"the changelog of generation {old} ended without its last markers"
                self._lines.say(logging.WARNING, f"{why}: rows of generation {new} may be older than what was served")
            self.switch(building)
        elif building.is_live:
            self._lines.say_once(logging.INFO, f"generation {new} is not served yet: {lack}")

    def switch(self, building: GenerationReplica) -> None:
        """Answer from the new generation in place of the old one, which is dropped."""
        old = self.serving
        self.serve(building)
        if old is not None:
            old.stop()
            self.give_up(old.store_id)
        self._lines.say(logging.INFO, "switched to its new generation", generation=building.manifest.generation)


def _answered_of(serving: GenerationReplica | None, new: Manifest) -> frozenset[Partition]:
    """Return the partitions that are answered from `serving`, if they are the same ones in the new generation."""
    if serving is None or serving.manifest.partition_count != new.partition_count:
        return frozenset()
    return frozenset(each.partition for each in serving.replicas if each.position.phase is not Phase.RESTORING)
