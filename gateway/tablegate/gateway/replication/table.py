"""A table of the contract, and what is followed for it.

    no manifest ──► looking at its topic ──► serving ◄──(nothing older by it)── building the next generation
         ▲                  │                   │
         └──────────────────┴── a problem ◄─────┘      a problem ends by a good manifest, or a good look

`serving` is what the store tells the workers of; each of its partitions is answered once it is LIVE. A new generation
is built beside it, and takes its place when it is restored and was made from all source records that the old one was
made from (`lack_of`); until then the old one is followed, and served on even where its topic is gone. Where there is no
next generation, a changelog that lost records is not served on: the table starts over from an empty store id. One that
was made anew needs a new generation: a manifest that changes within its own is refused (`ManifestSequence`).
"""

import logging
from collections.abc import Hashable, Sequence

from tablegate.gateway.cluster.assignment import Assignment
from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.types import StoreId
from tablegate.gateway.kafka.log import Clock, Log, TopicFacts
from tablegate.gateway.replication.generations import Generations
from tablegate.gateway.replication.manifests import ManifestSequence, follows_on, problem_of
from tablegate.gateway.replication.partition import PartitionReplica, SkippedRecords
from tablegate.gateway.replication.partitions import GenerationReplica
from tablegate.gateway.replication.stored_table import StoredTable
from tablegate.gateway.replication.table_log import TableLog
from tablegate.gateway.replication.topic_watcher import TopicDescription, TopicWatcher, topic_fault
from tablegate.gateway.stores.base import Copy, Phase, StoreWriter
from tablegate.internal.v1.store_pb2 import TableState
from tablegate.v1.changelog_pb2 import Manifest


class TableReplicator:
    """Follows one table. `caught_up_ms`: when its store was last known to have its whole changelog; 0 = never."""

    def __init__(
        self,
        table: Table,
        *,
        store: StoreWriter,
        log: Log,
        clock: Clock,
        share: Assignment,
        caught_up_ms: int,
        given_up: set[StoreId],
    ) -> None:
        self.table = table
        self.skipped = SkippedRecords(table.name)
        self.problem = ""
        self.refused_generation = 0  # the newest, where our contract does not agree with it
        self.caught_up_ms = caught_up_ms
        self._store = store
        self._log = log
        self._clock = clock
        self._share = share
        self._manifest: Manifest | None = None
        self._resuming: Manifest | None = None  # of the older generation that was served before a restart
        self._look, self._older_look = TopicWatcher(log, clock), TopicWatcher(log, clock)
        self._lines = TableLog(table.name, clock)
        self._stored = StoredTable(table, store=store, clock=clock, lines=self._lines)
        self.generations = Generations(
            table.name, stored=self._stored, share=share, clock=clock, lines=self._lines, given_up=given_up
        )
        self._succession = ManifestSequence(self._stored.newest_manifest())

    @property
    def serving(self) -> GenerationReplica | None:
        """Return the generation that is answered from here."""
        return self.generations.serving

    @property
    def building(self) -> GenerationReplica | None:
        """Return the newer generation that is built here."""
        return self.generations.building

    # What the topic of manifests says.

    def offer(self, news: Sequence[Manifest | None], *, missing: str) -> None:
        """Take the manifests since the last offer, the newest last, None for a removed one; `missing`: why none is."""
        manifest = breach = problem = None
        for manifest in news:
            if manifest is None:
                self._succession.end()
                continue
            breach = self._succession.breach_of(manifest)
            problem = problem_of(self.table, manifest)
            if breach is None and problem is None:
                self._succession.take(manifest)
        if manifest is None:
            self._manifest, self.refused_generation = None, 0
            self._refuse(missing)
            return
        if self._manifest is not None and manifest.generation < self._manifest.generation:
            self._lines.say(logging.WARNING, f"ignored a manifest of the older generation {manifest.generation}")
            return
        if breach is not None:
            self._break_with(manifest, breach)
            return
        if problem is not None:
            self._decline(manifest, problem)
            return
        self._manifest, self.refused_generation = manifest, 0
        current = self.generations.current
        if current is not None and follows_on(current.manifest, manifest):
            self.generations.update(manifest)
            return
        self._look.ask_at_once()
        self._older_look.ask_at_once()
        if current is None:
            self._resuming = self._stored.older(manifest)

    def _decline(self, manifest: Manifest, problem: str) -> None:
        """Serve the old generation on beside a new one that we cannot follow; else nothing."""
        self.refused_generation = manifest.generation
        serving = self.generations.older(manifest)
        if serving is not None:
            self._lines.say(logging.WARNING, f"{problem}; generation {serving.manifest.generation} is served on")
            return
        self._manifest = None
        self._refuse(problem)

    def _break_with(self, manifest: Manifest, breach: str) -> None:
        """Give up a generation whose manifest has changed; an older one may be served on, else nothing is."""
        serving = self.generations.older(manifest)
        older = self._stored.older(manifest) if serving is None else serving.manifest
        if older is None:
            self._manifest = None
            self._refuse(breach, level=logging.ERROR)
            return
        self._lines.say(logging.ERROR, f"{breach}; generation {older.generation} is served on")
        if self.building is not None:
            self._forget(self.building)
        self._manifest, self._resuming = older, None
        self._look.ask_at_once()

    def _refuse(self, problem: str, *, level: int = logging.WARNING) -> None:
        """Serve nothing, and say why. Rows stay: a good manifest or look goes on with them."""
        if problem == self.problem:
            return
        self.problem = problem
        self._lines.say(level, problem)
        self._stop()
        self._stored.refuse(problem)

    def _stop(self) -> None:
        self.generations.stop()
        self._resuming = None

    # What its topics say.

    @property
    def is_looking(self) -> bool:
        """Return whether an answer of the brokers is awaited."""
        return self._look.is_pending or self._older_look.is_pending

    def tick(self) -> None:
        """Ask for the topics when it is time, take the answers, switch generations, report progress."""
        if self._manifest is not None:
            self._look_around(self._manifest)
        self.generations.begin_when_due()
        self.generations.share_out()
        for following in self.generations.followings():
            self._see_to_share(following)
        self.generations.switch_when_due()
        for following in self.generations.followings():
            following.stop_final()
            if following.is_closed:
                following.caught_up_ms = max(following.caught_up_ms, self._clock.now_ms())
            self._lines.report(following)
        ages = [each.caught_up_ms for each in self.generations.followings() if not each.is_frozen]
        self.caught_up_ms = min(ages, default=self.caught_up_ms)

    def _see_to_share(self, following: GenerationReplica) -> None:
        following.clean()
        if following.asks():
            is_older = self._manifest is not None and following is self.generations.older(self._manifest)
            (self._older_look if is_older else self._look).ask_at_once()

    @property
    def is_unclean(self) -> bool:
        """Return whether rows of partitions that are not to be here are being removed."""
        return any(following.is_unclean for following in self.generations.followings())

    @property
    def shape(self) -> Hashable:
        """Return what is another value when something else is to be announced, beside phases."""
        versions = [following.version for following in self.generations.followings()]
        followed = self.serving, self.building, self.generations.is_ready
        return *followed, self.refused_generation, self.problem, *versions

    def _look_around(self, manifest: Manifest) -> None:
        if self._resuming is not None:
            looked = self._older_look.take(self._resuming.changelog_topic, ())
            if looked is not None:
                self._resume(self._resuming, looked.facts)
            return
        older = self.generations.older(manifest)
        if older is not None and not older.is_frozen and (older.lacking or not older.is_closed):
            looked = self._older_look.take(older.manifest.changelog_topic, older.replicas)
            if looked is not None:
                self._take_older(older, looked)
        looked = self._look.take(manifest.changelog_topic, self.generations.replicas())
        if looked is not None:
            self._take(manifest, looked)

    def _take(self, manifest: Manifest, looked: TopicDescription) -> None:
        closed = self._stored.closed_facts(manifest)
        facts = closed or looked.facts
        fault = topic_fault(manifest, facts)
        if fault is not None or facts is None:
            self._miss(manifest, f'table "{self.table.name}": {"; ".join(fault or ())}')
            return
        following = self.generations.current
        if following is None or not follows_on(following.manifest, manifest):
            self._open(manifest, facts)
        elif (why := self._fault_of(following, facts, looked)) is not None:
            self._start_over(following, manifest, facts, why)
        elif looked.facts is not None and (closed is None or topic_fault(manifest, looked.facts) is None):
            self._gain(following, looked.facts)
        self._look.rest()

    def _take_older(self, older: GenerationReplica, looked: TopicDescription) -> None:
        fault = topic_fault(older.manifest, looked.facts)
        why = fault.what if fault is not None else None
        if looked.facts is not None and why is None:
            why = self._fault_of(older, looked.facts, looked)
        if why is not None:
            self._freeze(older, why)
        elif looked.facts is not None:
            self._gain(older, looked.facts)
        self._older_look.rest()

    def _fault_of(self, following: GenerationReplica, facts: TopicFacts, looked: TopicDescription) -> str | None:
        """Return why what is followed must not be gone on with; take notice of what the look saw, where it may."""
        if not following.is_closed and self._stored.is_too_old(following.caught_up_ms, facts):
            return "it was away for too long, and may have missed deletes"
        ends = [(replica, facts.end_offsets[replica.partition]) for replica in following.replicas]
        if any(looked.was_beyond(replica, end) for replica, end in ends):
            return "its changelog lost records that were applied"
        why = self._stored.early_removal(following.caught_up_ms)
        if why is not None:
            return why
        following.note_facts(facts)
        # To be in touch is not enough: a store that lags, or that a full disk holds up, may be missing deletes.
        if all(replica.position.next_offset >= end for replica, end in ends):
            following.caught_up_ms = looked.asked_ms
        return None

    def _gain(self, following: GenerationReplica, facts: TopicFacts) -> None:
        gained = following.gain(facts)
        if gained:
            numbers = ", ".join(map(str, gained))
            are = (
                "are in the store already" if following.joined.issuperset(gained) else "are restored from its changelog"
            )
            self._lines.say(logging.INFO, f"taking over partitions {numbers}, which {are}")

    def _miss(self, manifest: Manifest, problem: str) -> None:
        """Serve the old generation on where the changelog of the new one is not there; else nothing."""
        older = self.generations.older(manifest)
        if older is None or (older.is_frozen and not older.is_closed):
            self._refuse(problem)
            return
        if self.building is not None:
            self._forget(self.building)
        self._lines.say_once(logging.WARNING, f"{problem}; generation {older.manifest.generation} is served on")

    def follows(self, replica: PartitionReplica) -> bool:
        """Return whether the replica is still one of this table's."""
        return any(replica is one for one in self.generations.replicas())

    def lost(self, replica: PartitionReplica) -> None:
        """Take notice that the log has not the offset that `replica` is at."""
        following = next((each for each in self.generations.followings() if replica in each.replicas), None)
        if following is None or replica.position.is_final:
            return
        why = f"changelog has no offset {replica.position.next_offset} of partition {replica.partition}"
        if self._manifest is not None and following is self.generations.older(self._manifest):
            self._freeze(following, why)
            return
        self._lines.say(logging.WARNING, f"{why}: restoring from the start")
        if replica.position.phase is Phase.RESTORING and any(each.is_live for each in following.replicas):
            following.let_go(replica)  # nobody was answered from it: the others may stay
            return
        self._forget(following)
        self._look.ask_at_once()

    def _freeze(self, older: GenerationReplica, why: str) -> None:
        """Serve what is stored of an older generation, which cannot be followed on, until the next one is restored."""
        generation = older.manifest.generation
        if older.has_only_live:
            older.freeze()
            more = f"what is stored of generation {generation} is served until the next one is restored"
            self._lines.say(logging.WARNING, f"{why}; {more}")
            return
        self._lines.say(logging.WARNING, f"{why}; generation {generation} is given up for the next one")
        if self.building is not None:
            self.generations.switch(self.building)
        else:
            self._forget(older)
            self._look.ask_at_once()

    def _forget(self, following: GenerationReplica) -> None:
        """Drop what is followed; the next look starts over."""
        self.generations.forget(following, problem=_RESTORING.format(self.table.name))

    # Which generation is followed, and into which store id.

    def _start_over(self, following: GenerationReplica, manifest: Manifest, facts: TopicFacts, why: str) -> None:
        self._lines.say(logging.WARNING, f"restoring from the start: {why}")
        if following is self.building:
            self._forget(following)
            self._open(manifest, facts)
        else:
            self._stop()
            self._open(manifest, facts, from_start=True)

    def _resume(self, manifest: Manifest, facts: TopicFacts | None) -> None:
        """Go on with the older generation that was served before a restart, so that nothing goes back by the next."""
        facts = self._stored.closed_facts(manifest) or facts
        fault = topic_fault(manifest, facts)
        state = self._stored.state(self.table.name)
        why = fault.what if fault is not None else None
        if facts is not None and state is not None and why is None:
            why = self._stored.fault_of(state, facts, caught_up_ms=self.caught_up_ms)
            if why is None:
                self.generations.resume(self._follow(manifest, facts, state))
                self._resuming, self.problem = None, ""
                return
        self._resuming = None
        self._lines.say(logging.WARNING, f"{why}; generation {manifest.generation} is given up for the next one")

    def _open(self, manifest: Manifest, facts: TopicFacts, *, from_start: bool = False) -> None:
        """Follow a manifest: on top of stored rows where they are of its changelog, beside an older generation."""
        older = self.generations.older(manifest)
        beside = older is not None and older.was_answered
        if not beside:
            self._stop()
        elif self.building is not None:
            self._forget(self.building)
        states = self._stored.states()
        stored = None if from_start else self._stored.usable(manifest, facts, caught_up_ms=self.caught_up_ms)
        used = {each.store_id for each in self.generations.followings()} | {
            stored.store_id if stored is not None else 0
        }
        self.generations.give_up(*sorted({StoreId(state.store_id) for state in states.values()} - used))
        following = self._follow(manifest, facts, stored)
        served = states.get(self.table.name)
        was_served = from_start or (served is not None and served.store_id == following.store_id)
        self.problem = ""
        if beside:
            self.generations.build(following)
        elif was_served:
            self.generations.serve(following)
        else:
            self.generations.serve_first(following)

    def _follow(self, manifest: Manifest, facts: TopicFacts, stored: TableState | None) -> GenerationReplica:
        """Follow a manifest into what is stored, or into a new store id, or one in which other gateways have it."""
        if stored is None:
            of = (manifest.table, manifest.generation, manifest.changelog_topic_id)
            rows_by = (self.table.fingerprint.hex(), self.table.row_digest.hex(), self.table.retention_us or 0)
            changelog = "/".join(map(str, (*of, *rows_by)))
            copy = self._store.copy_of(changelog, unwanted=self.generations.given_up)
        else:
            copy = Copy(StoreId(stored.store_id), stored.life_id)
        following = GenerationReplica(
            table=self.table,
            manifest=manifest,
            store_id=copy.store_id,
            life_id=copy.life_id,
            facts=facts,
            store=self._store,
            log=self._log,
            share=self._share,
            skipped=self.skipped,
            clock=self._clock,
            caught_up_ms=self.caught_up_ms,
            is_new=stored is None,
        )
        self._lines.started(following)
        return following


_RESTORING = 'table "{}" is restored from the start, as its changelog lost records'
