"""A table of the contract, and what is followed for it.

    no manifest ──► looking at its topic ──► serving ◄──(nothing older by it)── building the next generation
         ▲                  │                   │
         └──────────────────┴── a problem ◄─────┘      a problem ends by a good manifest, or a good look

`serving` is what the store tells the workers of; each of its partitions is answered once it is LIVE. A new generation
is built beside it, and takes its place when it is restored and was made from all source records that the old one was
made from (`lack_of`); until then the old one is followed, and served on even where its topic is gone. A changelog that
lost records, or was made anew, is not served on where there is no next generation: the table starts over from an empty
store id.
"""

import logging
import secrets
from collections.abc import Mapping

from gateway.contract.catalogue import Table
from gateway.contract.types import StoreId
from gateway.internal.v1.store_pb2 import TableState
from gateway.replication.following import Following, closed_facts, lack_of, partitions, stored_position
from gateway.replication.log import Clock, Log, TopicFacts
from gateway.replication.manifests import follows_on, problem_of
from gateway.replication.replica import Replica, SkippedRecords
from gateway.replication.retention import early_removal
from gateway.replication.table_log import TableLog
from gateway.replication.topic_look import Looked, TopicLook, topic_fault
from gateway.stores.base import StoreWriter
from gateway.v1.changelog_pb2 import Manifest

OLD_STORE_PART = 0.5  # of delete.retention.ms: an older store may have missed deletes


def next_name(table_name: str) -> str:
    """Return the name under which the store keeps the generation that is being built; no table has such a name."""
    return f"{table_name}/next"


class FollowedTable:
    """Follows one table. `caught_up_ms`: when its store was last known to have its whole changelog; 0 = never."""

    def __init__(self, table: Table, *, store: StoreWriter, log: Log, clock: Clock, caught_up_ms: int) -> None:
        self.table = table
        self.skipped = SkippedRecords(table.name)
        self.serving: Following | None = None
        self.building: Following | None = None
        self.problem = ""
        self.garbage: list[StoreId] = []
        self.caught_up_ms = caught_up_ms
        self._store = store
        self._log = log
        self._clock = clock
        self._manifest: Manifest | None = None
        self._resuming: Manifest | None = None  # of the older generation that was served before a restart
        self._look, self._older_look = TopicLook(log, clock), TopicLook(log, clock)
        self._lines = TableLog(table.name, clock)

    # What the topic of manifests says.

    def offer(self, manifest: Manifest | None, *, missing: str) -> None:
        """Take the newest manifest; `missing` says why there is none."""
        if manifest is None:
            self._manifest = None
            self._refuse(missing)
            return
        if self._manifest is not None and manifest.generation < self._manifest.generation:
            self._lines.say(logging.WARNING, f"ignored a manifest of the older generation {manifest.generation}")
            return
        problem = problem_of(self.table, manifest)
        if problem is not None:
            self._decline(manifest, problem)
            return
        self._manifest = manifest
        current = self.building or self.serving
        if current is not None and follows_on(current.manifest, manifest):
            self._update(current, manifest)
            return
        self._look.ask_at_once()
        self._older_look.ask_at_once()
        if current is None:
            self._resuming = self._stored_older(manifest)

    def _decline(self, manifest: Manifest, problem: str) -> None:
        """Serve the old generation on beside a new one that we cannot follow; else nothing."""
        if self.serving is not None and manifest.generation > self.serving.manifest.generation:
            self._lines.say(logging.WARNING, f"{problem}; generation {self.serving.manifest.generation} is served on")
            return
        self._manifest = None
        self._refuse(problem)

    def _update(self, current: Following, manifest: Manifest) -> None:
        current.update(manifest)
        self._keep(current, self.table.name if current is self.serving else next_name(self.table.name))

    def _stored_older(self, manifest: Manifest) -> Manifest | None:
        """Return the manifest of an older generation that is stored, and that this contract can serve on."""
        state = self._stored(self.table.name)
        if state is None or not state.HasField("manifest") or state.manifest.generation >= manifest.generation:
            return None
        problem = problem_of(self.table, state.manifest)
        if problem is not None:
            self._lines.say(logging.WARNING, f"{problem}; what is stored of it is not served on")
            return None
        return state.manifest

    def _refuse(self, problem: str) -> None:
        """Serve nothing, and say why. Rows stay: a good manifest or look goes on with them."""
        if problem == self.problem:
            return
        self.problem = problem
        self._lines.say(logging.WARNING, problem)
        self._stop()
        state = self._stored(self.table.name) or TableState()
        kept = TableState(
            store_id=state.store_id, life_id=state.life_id, problem=problem, retention_us=state.retention_us
        )
        if state.HasField("manifest"):
            kept.manifest.CopyFrom(state.manifest)
        self._store.put_table(self.table.name, kept)

    def _stop(self) -> None:
        for following in self._followings():
            following.stop()
        self.serving = self.building = self._resuming = None

    # What its topics say.

    @property
    def is_looking(self) -> bool:
        """Return whether an answer of the brokers is awaited."""
        return self._look.is_pending or self._older_look.is_pending

    def tick(self) -> None:
        """Ask for the topics when it is time, take the answers, switch generations, report progress."""
        if self._manifest is not None:
            self._look_around(self._manifest)
        self._switch_when_due()
        for following in self._followings():
            following.stop_final()
            if following.is_closed:
                following.caught_up_ms = max(following.caught_up_ms, self._clock.now_ms())
            self._lines.report(following)
        ages = [each.caught_up_ms for each in self._followings() if not each.is_frozen]
        self.caught_up_ms = min(ages, default=self.caught_up_ms)

    def _look_around(self, manifest: Manifest) -> None:
        if self._resuming is not None:
            looked = self._older_look.take(self._resuming.changelog_topic, ())
            if looked is not None:
                self._resume(self._resuming, looked.facts)
            return
        older = self._older(manifest)
        if older is not None and not older.is_closed and not older.is_frozen:
            looked = self._older_look.take(older.manifest.changelog_topic, older.replicas)
            if looked is not None:
                self._take_older(older, looked)
        looked = self._look.take(manifest.changelog_topic, self._replicas())
        if looked is not None:
            self._take(manifest, looked)

    def _older(self, manifest: Manifest) -> Following | None:
        """Return what is served of an older generation, beside which that of `manifest` is to be built."""
        serving = self.serving
        return serving if serving is not None and serving.manifest.generation < manifest.generation else None

    def _take(self, manifest: Manifest, looked: Looked) -> None:
        facts = self._closed_facts(manifest) or looked.facts
        fault = topic_fault(manifest, facts)
        if fault is not None or facts is None:
            self._miss(manifest, f'table "{self.table.name}": {"; ".join(fault or ())}')
            return
        following = self.building or self.serving
        if following is None or not follows_on(following.manifest, manifest):
            self._open(manifest, facts)
        elif (why := self._fault_of(following, facts, looked)) is not None:
            self._start_over(following, manifest, facts, why)
        self._look.rest()

    def _take_older(self, older: Following, looked: Looked) -> None:
        fault = topic_fault(older.manifest, looked.facts)
        why = fault.what if fault is not None else None
        if looked.facts is not None and why is None:
            why = self._fault_of(older, looked.facts, looked)
        if why is not None:
            self._freeze(older, why)
        self._older_look.rest()

    def _fault_of(self, following: Following, facts: TopicFacts, looked: Looked) -> str | None:
        """Return why what is followed must not be gone on with; take notice of what the look saw, where it may."""
        if not following.is_closed and self._is_too_old(following.caught_up_ms, facts):
            return "it was away for too long, and may have missed deletes"
        ends = list(zip(following.replicas, facts.end_offsets, strict=True))
        if any(looked.was_beyond(replica, end) for replica, end in ends):
            return "its changelog lost records that were applied"
        why = self._early_removal(following.caught_up_ms)
        if why is not None:
            return why
        following.note_facts(facts)
        # To be in touch is not enough: a store that lags, or that a full disk holds up, may be missing deletes.
        if all(replica.position.next_offset >= end for replica, end in ends):
            following.caught_up_ms = looked.asked_ms
        return None

    def _miss(self, manifest: Manifest, problem: str) -> None:
        """Serve the old generation on where the changelog of the new one is not there; else nothing."""
        older = self._older(manifest)
        if older is None or (older.is_frozen and not older.is_closed):
            self._refuse(problem)
            return
        if self.building is not None:
            self._forget(self.building)
        self._lines.say_once(logging.WARNING, f"{problem}; generation {older.manifest.generation} is served on")

    def _closed_facts(self, manifest: Manifest) -> TopicFacts | None:
        """Return the topic of a generation that is stored to its end, for which no broker need be asked."""
        for state in self._states().values():
            if follows_on(state.manifest, manifest):
                store_id = StoreId(state.store_id)
                positions = [stored_position(self._store, store_id, partition) for partition in partitions(manifest)]
                return closed_facts(manifest, positions)
        return None

    def follows(self, replica: Replica) -> bool:
        """Return whether the replica is still one of this table's."""
        return any(replica is one for one in self._replicas())

    def _replicas(self) -> list[Replica]:
        return [replica for following in self._followings() for replica in following.replicas]

    def _followings(self) -> list[Following]:
        return [following for following in (self.serving, self.building) if following is not None]

    def lost(self, replica: Replica) -> None:
        """Take notice that the log has not the offset that `replica` is at."""
        following = next((each for each in self._followings() if replica in each.replicas), None)
        if following is None or replica.position.is_final:
            return
        why = f"changelog has no offset {replica.position.next_offset} of partition {replica.partition}"
        if self._manifest is not None and following is self._older(self._manifest):
            self._freeze(following, why)
            return
        self._lines.say(logging.WARNING, f"{why}: restoring from the start")
        self._forget(following)
        self._look.ask_at_once()

    def _freeze(self, older: Following, why: str) -> None:
        """Serve what is stored of an older generation, which cannot be followed on, until the next one is restored."""
        generation = older.manifest.generation
        if older.is_live:
            older.freeze()
            more = f"what is stored of generation {generation} is served until the next one is restored"
            self._lines.say(logging.WARNING, f"{why}; {more}")
            return
        self._lines.say(logging.WARNING, f"{why}; generation {generation} is given up for the next one")
        if self.building is not None:
            self._switch(self.building)
        else:
            self._forget(older)
            self._look.ask_at_once()

    def _forget(self, following: Following) -> None:
        """Drop what is followed; the next look starts over."""
        following.stop()
        self.garbage.append(following.store_id)
        if following is self.building:
            self.building = None
            self._store.put_table(next_name(self.table.name), TableState())
        else:
            self.serving = None
            self._store.put_table(self.table.name, TableState(problem=_RESTORING.format(self.table.name)))

    def _is_too_old(self, caught_up_ms: int, facts: TopicFacts) -> bool:
        return self._clock.now_ms() - caught_up_ms > facts.delete_retention_ms * OLD_STORE_PART

    # Which generation is followed, and into which store id.

    def _start_over(self, following: Following, manifest: Manifest, facts: TopicFacts, why: str) -> None:
        self._lines.say(logging.WARNING, f"restoring from the start: {why}")
        if following is self.building:
            self._forget(following)
            self._open(manifest, facts)
        else:
            self._stop()
            self._open(manifest, facts, from_start=True)

    def _resume(self, manifest: Manifest, facts: TopicFacts | None) -> None:
        """Go on with the older generation that was served before a restart, so that nothing goes back by the next."""
        facts = self._closed_facts(manifest) or facts
        fault = topic_fault(manifest, facts)
        state = self._stored(self.table.name)
        why = fault.what if fault is not None else None
        if facts is not None and state is not None and why is None:
            why = self._fault_of_stored(state, facts)
            if why is None:
                self.serving = self._follow(manifest, facts, state)
                self._keep(self.serving, self.table.name)
                self._resuming, self.problem = None, ""
                return
        self._resuming = None
        self._lines.say(logging.WARNING, f"{why}; generation {manifest.generation} is given up for the next one")

    def _open(self, manifest: Manifest, facts: TopicFacts, *, from_start: bool = False) -> None:
        """Follow a manifest: on top of stored rows where they are of its changelog, beside an older generation."""
        older = self._older(manifest)
        beside = older is not None and older.was_answered
        if not beside:
            self._stop()
        elif self.building is not None:
            self._forget(self.building)
        states = self._states()
        following = self._follow(manifest, facts, None if from_start else self._usable(manifest, facts, states))
        if beside:
            self.building = following
            self._keep(following, next_name(self.table.name))
        else:
            self.serving = following
            self._keep(following, self.table.name)
            self._store.put_table(next_name(self.table.name), TableState())
        unused = {state.store_id for state in states.values()} - {each.store_id for each in self._followings()}
        self.garbage += [StoreId(number) for number in sorted(unused)]
        self.problem = ""

    def _follow(self, manifest: Manifest, facts: TopicFacts, stored: TableState | None) -> Following:
        """Follow a manifest into what is stored, or from the start into a new store id."""
        following = Following(
            table=self.table,
            manifest=manifest,
            store_id=self._store.new_store_id() if stored is None else StoreId(stored.store_id),
            life_id=secrets.randbits(64) if stored is None else stored.life_id,
            facts=facts,
            store=self._store,
            log=self._log,
            skipped=self.skipped,
            clock=self._clock,
            # Where nothing is stored yet, nothing can be too old.
            caught_up_ms=self._clock.now_ms() if stored is None else self.caught_up_ms,
            is_new=stored is None,
        )
        self._lines.started(following, is_new=stored is None)
        return following

    def _usable(self, manifest: Manifest, facts: TopicFacts, states: Mapping[str, TableState]) -> TableState | None:
        """Return the state whose store id has rows of this changelog, to be followed on from; None if there is none."""
        for state in states.values():
            if state.HasField("manifest") and follows_on(state.manifest, manifest):
                why = self._fault_of_stored(state, facts)
                if why is None:
                    return state
                self._lines.say(logging.WARNING, f"{why}: restoring from the start")
        return None

    def _fault_of_stored(self, state: TableState, facts: TopicFacts) -> str | None:
        """Return why what is stored cannot be followed on from; None if it can."""
        store_id = StoreId(state.store_id)
        positions = [stored_position(self._store, store_id, partition) for partition in partitions(state.manifest)]
        bounds = zip(positions, facts.start_offsets, facts.end_offsets, strict=True)
        if any(position is not None and not start <= position.next_offset <= end for position, start, end in bounds):
            return "its stored position is not in the changelog"
        is_closed = closed_facts(state.manifest, positions) is not None
        if any(positions) and not is_closed and self._is_too_old(self.caught_up_ms, facts):
            return "its store is too old, and may have missed deletes"
        return self._early_removal(self.caught_up_ms, state.retention_us) if any(positions) else None

    def _early_removal(self, caught_up_ms: int, stored_retention_us: int = 0) -> str | None:
        return early_removal(
            self.table,
            now_ms=self._clock.now_ms(),
            caught_up_ms=caught_up_ms,
            stored_retention_us=stored_retention_us,
        )

    def _switch_when_due(self) -> None:
        if self.building is None or self.serving is None:
            return
        lack = lack_of(self.building, self.serving)
        old, new = self.serving.manifest.generation, self.building.manifest.generation
        if lack is None:
            if not self.serving.is_closed:
                why = f"the changelog of generation {old} ended without its last markers"
                self._lines.say(logging.WARNING, f"{why}: rows of generation {new} may be older than what was served")
            self._switch(self.building)
        elif self.building.is_live:
            self._lines.say_once(logging.INFO, f"generation {new} is not served yet: {lack}")

    def _switch(self, building: Following) -> None:
        """Serve the new generation in place of the old one, which is dropped."""
        self._keep(building, self.table.name)
        self._store.put_table(next_name(self.table.name), TableState())
        if self.serving is not None:
            self.serving.stop()
            self.garbage.append(self.serving.store_id)
        self.serving, self.building = building, None
        self._lines.say(logging.INFO, "switched to its new generation", generation=building.manifest.generation)

    def _stored(self, name: str) -> TableState | None:
        with self._store.snapshot() as snapshot:
            return snapshot.table(name)

    def _states(self) -> Mapping[str, TableState]:
        """Return what the store has of the table's generations, by name."""
        names = (self.table.name, next_name(self.table.name))
        return {name: state for name in names if (state := self._stored(name)) is not None and state.store_id}

    def _keep(self, following: Following, name: str) -> None:
        retention_us = self.table.retention_us or 0
        state = TableState(
            store_id=following.store_id,
            life_id=following.life_id,
            manifest=following.manifest,
            retention_us=retention_us,
        )
        self._store.put_table(name, state)


_RESTORING = 'table "{}" is restored from the start, as its changelog lost records'
