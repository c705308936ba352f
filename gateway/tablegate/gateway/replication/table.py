"""A table of the contract: from a manifest to rows that are served, and what happens when something breaks.

    NO_MANIFEST ─► RESOLVING_TOPIC ─► (JOINING ─►) SERVING      any of them ─► REFUSED, by a manifest that does not fit

1. The table's job publishes a manifest. It is held against the contract (`problem_of`) and against the manifest before
   it (`ManifestSequence`): what places rows stays as it is within a generation. Then it is accepted.
2. The brokers describe its changelog topic. One that is missing, or another one than the manifest names, is asked for
   again and again: a good description ends the problem.
3. The generation is followed (`GenerationReplica`): on top of stored rows where they are of its changelog, else from
   the start. It is served at once where nothing was, beside an older generation it is built first (`generations.py`).
4. The topic is described every few seconds from then on. Rows may have been lost, or deletes missed.

What breaks, and what is done: an older generation is served on wherever there is one, followed or frozen, also where
its topic is gone. Where there is none, a changelog that lost records is not served on: the table starts over from an
empty store id. A changelog that was created anew needs a new generation, see `ManifestSequence`.

Debt: a table that starts over answers nothing until it is restored, though its old rows are still there.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from tablegate.gateway.cluster.assignment import Assignment
from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.foreign.topics import rows_digest
from tablegate.gateway.contract.types import StoreId
from tablegate.gateway.kafka.log import Clock, Log, TopicFacts
from tablegate.gateway.kafka.topic_watcher import TopicDescription, TopicWatcher
from tablegate.gateway.replication.generations import Generations
from tablegate.gateway.replication.manifests import ManifestSequence, follows_on, problem_of, topic_fault
from tablegate.gateway.replication.partitions import GenerationReplica, PartitionReplica
from tablegate.gateway.replication.progress import TableLog
from tablegate.gateway.replication.records import SkippedRecords
from tablegate.gateway.replication.states import (
    GenerationEvent,
    OnMove,
    PartitionState,
    TableEvent,
    TableState,
    generation_machine,
    table_machine,
)
from tablegate.gateway.replication.stored import StoredTable
from tablegate.gateway.replication.transfers import NewTransfers
from tablegate.gateway.stores.base import Copy, StoreFull, StoreWriter
from tablegate.internal.v1 import store_pb2
from tablegate.v1.changelog_pb2 import Manifest


@dataclass(slots=True)
class RepairState:
    """The repairs of a table's changelogs, by this gateway: pending, appended, and why not ("" where none fails)."""

    pending: int = 0
    repaired: int = 0
    problem: str = ""


class TableReplicator:
    """Follows one table. `caught_up_ms`: when its store was last known to have its whole changelog; 0 = never.

    `problem`: why nothing is served; "" where something may be. `manifest`: the newest that was accepted.
    `refused_generation`: the newest, where our contract does not agree with it; 0: none.
    """

    def __init__(
        self,
        table: Table,
        *,
        store: StoreWriter,
        log: Log,
        log_for: Callable[[str], Log],
        clock: Clock,
        assignment: Assignment,
        caught_up_ms: int,
        abandoned: set[StoreId],
        new_transfers: NewTransfers,
        on_move: OnMove = lambda _: None,
    ) -> None:
        self.table = table
        self.skipped = SkippedRecords(table.name)
        self.repairs = RepairState()
        self.problem = ""
        self.manifest: Manifest | None = None
        self.refused_generation = 0
        self.caught_up_ms = caught_up_ms
        self._store = store
        self._log_for = log_for
        self._clock = clock
        self._assignment = assignment
        self._on_move = on_move
        self._new_transfers = new_transfers
        self._machine = table_machine(table.name, on_move)
        self._resuming: Manifest | None = None  # of the older generation that was served before a restart
        # Two topics may be in question at a time: that of the newest manifest, and that of the older generation which
        # is still answered from.
        self._watcher, self._older_watcher = TopicWatcher(log, clock), TopicWatcher(log, clock)
        self._table_log = TableLog(table.name, clock)
        self._stored = StoredTable(table, store=store, clock=clock, table_log=self._table_log)
        self.generations = Generations(
            table.name,
            machine=self._machine,
            stored=self._stored,
            assignment=assignment,
            clock=clock,
            table_log=self._table_log,
            abandoned=abandoned,
        )
        self._sequence = ManifestSequence(self._stored.newest_manifest())

    @property
    def state(self) -> TableState:
        """Return what is known of the table."""
        return self._machine.state

    @property
    def serving(self) -> GenerationReplica | None:
        """Return the generation that is answered from here."""
        return self.generations.serving

    @property
    def building(self) -> GenerationReplica | None:
        """Return the newer generation that is built here."""
        return self.generations.building

    # What the topic of manifests says.

    def accept(self, manifests: Sequence[Manifest | None], *, missing: str) -> None:
        """Accept or refuse the manifests that came since the last call, the newest last, None for a removed one.

        `missing`: why there is none.
        """
        self._hear_of_others(manifests)
        manifest = older = breach = problem = None
        for each in manifests:
            if each is None:
                # A removed manifest ends the sequence: a table that was deleted and made again begins with any
                # generation.
                self._stored.keep_newest(None)
                self._sequence.end()
                manifest = older = None
            elif self._sequence.is_older(each):
                older = each
            else:
                manifest, older = each, None
                breach, problem = self._judge(each)
        if older is not None:
            self._table_log.log(logging.WARNING, f"ignored a manifest of the older generation {older.generation}")
            if manifest is None:
                manifest = self._newest_instead_of(older)
                if manifest is None:
                    return
                breach, problem = self._judge(manifest)
        if manifest is None:
            self.manifest, self.refused_generation = None, 0
            self._refuse(missing, TableEvent.MANIFEST_REMOVED)
            return
        if breach is not None:
            self._refuse_breach(manifest, breach)
            return
        if problem is not None:
            self._refuse_manifest(manifest, problem)
            return
        self.manifest, self.refused_generation = manifest, 0
        self._machine.move(TableEvent.MANIFEST_ACCEPTED)
        current = self.generations.current
        # The same changelog: only what a manifest may add within a generation, such as a schema, is new.
        if current is not None and follows_on(current.manifest, manifest):
            self.generations.update(manifest)
            return
        self._watcher.ask_at_once()
        self._older_watcher.ask_at_once()
        if current is None:
            # The process may have died between two generations. What was answered before goes on first; else rows would
            # go missing until the new generation is restored.
            self._resuming = self._stored.older(manifest)

    def _judge(self, manifest: Manifest) -> tuple[str | None, str | None]:
        """Return why nobody, or not this contract, may follow a manifest. One that may be followed is recorded."""
        breach, problem = self._sequence.breach_of(manifest), problem_of(self.table, manifest)
        if breach is None and problem is None:
            self._stored.keep_newest(manifest)
            self._sequence.accept(manifest)
        return breach, problem

    def _hear_of_others(self, manifests: Sequence[Manifest | None]) -> None:
        """Record which generation other gateways have followed, unless the table was removed: they may not know yet."""
        generation = self._assignment.newest_generation(self.table.name)
        newest = Manifest(table=self.table.name, generation=generation)
        is_newer = any(each is not None and each.generation < generation for each in manifests)
        if is_newer and None not in manifests and not self._sequence.was_removed:
            known = self._stored.newest_manifest()
            if known is None or known.generation < generation:
                self._stored.keep_newest(newest)
                self._sequence.accept(newest)

    def _newest_instead_of(self, older: Manifest) -> Manifest | None:
        """Return what to follow at a start, where the topic has only an older manifest; None: nothing, or as before."""
        if self.state is not TableState.NO_MANIFEST:
            return None
        newest = self._stored.newest_manifest()
        assert newest is not None  # else none would be older
        if newest.changelog_topic:
            return newest
        self.refused_generation = newest.generation
        problem = f'table "{self.table.name}": manifest of generation {older.generation} came after generation'
        hint = f"start the job of generation {newest.generation}, or remove the table first"
        self._refuse(f"{problem} {newest.generation}, which other gateways follow; {hint}", TableEvent.MANIFEST_REFUSED)
        return None

    def _refuse_manifest(self, manifest: Manifest, problem: str) -> None:
        """Serve the old generation on beside a new one that we cannot follow; else nothing."""
        self.refused_generation = manifest.generation
        self._move_refused(manifest)
        serving = self.generations.older(manifest)
        if serving is not None:
            generation = serving.manifest.generation
            self._table_log.log(logging.WARNING, f"{problem}; generation {generation} is served on")
            return
        self.manifest = None
        self._refuse(problem, TableEvent.MANIFEST_REFUSED)

    def _refuse_breach(self, manifest: Manifest, breach: str) -> None:
        """Give up a generation whose manifest has changed; an older one may be served on, else nothing is."""
        self._move_refused(manifest)
        serving = self.generations.older(manifest)
        older = self._stored.older(manifest) if serving is None else serving.manifest
        if older is None:
            self.manifest = None
            self._refuse(breach, TableEvent.MANIFEST_REFUSED, level=logging.ERROR)
            return
        self._table_log.log(logging.ERROR, f"{breach}; generation {older.generation} is served on")
        if self.building is not None:
            self._forget(self.building)
        self.manifest, self._resuming = older, None
        self._machine.move(TableEvent.MANIFEST_ACCEPTED)
        self._watcher.ask_at_once()

    def _move_refused(self, manifest: Manifest) -> None:
        machine = generation_machine(self.table.name, manifest.generation, StoreId(0), self._on_move)
        machine.move(GenerationEvent.REFUSE)

    def _refuse(self, problem: str, event: TableEvent, *, level: int = logging.WARNING) -> None:
        """Serve nothing, and log why. Rows stay: a good manifest or topic goes on with them."""
        is_new = problem != self.problem
        if is_new:
            self._stored.refuse(problem)
            self.problem = problem
            self._table_log.log(level, problem)
            self.generations.stop()
            self._resuming = None
        # The same problem is heard of again and again, at each description of the topic. It is one move and one line of
        # the log.
        if is_new or self._machine.next(event) is not self.state:
            self._machine.move(event)

    def note_full_store(self, why: str) -> None:
        """Say that a full store keeps a table from being served, where it says what was wrong before that.

        What is stored of a table without a problem is answered, whatever this process has come to.
        """
        if self.state is not TableState.RESOLVING_TOPIC or self.problem == why:
            return
        stored = self._stored.state(self.table.name)
        if stored is not None and stored.problem:
            self.problem = why
            with suppress(StoreFull):  # the status has it all the same
                self._stored.refuse(why)

    # What its topics are.

    @property
    def is_pending(self) -> bool:
        """Return whether an answer of the brokers is awaited."""
        return self._watcher.is_pending or self._older_watcher.is_pending

    def tick(self) -> None:
        """Ask for the topics when it is time, use the answers, switch generations, report progress."""
        if self.manifest is not None:
            self._check_topics(self.manifest)
        # The switch comes after what may put it off: a generation that gains a partition here is not live until that is
        # restored.
        self.generations.serve_when_due()
        self.generations.reconcile()
        for generation in self.generations.followed():
            self._open_pending(generation)
        self.generations.switch_when_due()
        for generation in self.generations.followed():
            generation.unfollow_final()
            # After the last marker nothing can be missing, however long no broker has answered.
            if generation.is_closed:
                generation.caught_up_ms = max(generation.caught_up_ms, self._clock.now_ms())
            if generation.progress.ended_s is None:
                number = generation.manifest.generation
                self._table_log.report(generation.progress, is_live=generation.is_live, generation=number)
        # One time is kept for all that is stored of the table, so it is that of what is furthest behind.
        ages = [each.caught_up_ms for each in self.generations.followed() if not each.is_frozen]
        self.caught_up_ms = min(ages, default=self.caught_up_ms)

    def _open_pending(self, generation: GenerationReplica) -> None:
        """Remove what is left of earlier stays, and ask for the topic where partitions may be followed then."""
        generation.clean()
        generation.transfer()
        if generation.asks():
            is_older = self.manifest is not None and generation is self.generations.older(self.manifest)
            (self._older_watcher if is_older else self._watcher).ask_at_once()

    @property
    def is_unclean(self) -> bool:
        """Return whether rows of partitions that are not to be here are being removed."""
        return any(generation.is_unclean for generation in self.generations.followed())

    @property
    def is_transferring(self) -> bool:
        """Return whether rows are coming from other gateways."""
        return any(generation.transfers.is_under_way for generation in self.generations.followed())

    def _check_topics(self, manifest: Manifest) -> None:
        if self._resuming is not None:
            described = self._older_watcher.poll(self._resuming.changelog_topic, ())
            if described is not None:
                self._resume(self._resuming, described.facts)
            return
        older = self.generations.older(manifest)
        # A closed generation needs its topic no more, and the job may have deleted it. It is asked for only where this
        # gateway takes partitions over.
        if older is not None and not older.is_frozen and (older.pending or not older.is_closed):
            described = self._older_watcher.poll(older.manifest.changelog_topic, older.replicas)
            if described is not None:
                self._check_older(older, described)
        described = self._watcher.poll(manifest.changelog_topic, self.generations.replicas())
        if described is not None:
            self._check_newest(manifest, described)

    def _check_newest(self, manifest: Manifest, described: TopicDescription) -> None:
        """Follow the newest manifest, or check that what is followed of it can be followed on."""
        # What is stored up to the last marker is complete without its topic, so the topic need not be there any more.
        closed = self._stored.closed_facts(manifest)
        facts = closed or described.facts
        fault = topic_fault(manifest, facts)
        if fault is not None or facts is None:
            self._refuse_topic(manifest, f'table "{self.table.name}": {"; ".join(fault or ())}')
            return
        current = self.generations.current
        if current is None or not follows_on(current.manifest, manifest):
            self._open(manifest, facts)
        elif (why := self._fault_of(current, facts, described)) is not None:
            self._start_over(current, manifest, facts, why)
        elif described.facts is not None and (closed is None or topic_fault(manifest, described.facts) is None):
            self._open_assigned(current, described.facts)
        self._watcher.rest()

    def _check_older(self, older: GenerationReplica, described: TopicDescription) -> None:
        """Check that the older generation can be followed on; else freeze it."""
        fault = topic_fault(older.manifest, described.facts)
        why = fault.what if fault is not None else None
        if described.facts is not None and why is None:
            why = self._fault_of(older, described.facts, described)
        if why is not None:
            self._freeze(older, why)
        elif described.facts is not None:
            self._open_assigned(older, described.facts)
        self._older_watcher.rest()

    def _fault_of(self, generation: GenerationReplica, facts: TopicFacts, described: TopicDescription) -> str | None:
        """Return why what is followed must not be gone on with; where it may, record what its topic is."""
        if self.may_miss_deletes(generation, facts):
            return "it was away for too long, and may have missed deletes"
        ends = [(replica, facts.end_offsets[replica.partition]) for replica in generation.replicas]
        # They were applied and are gone, as after an unclean election of a leader. What came in their place is unknown
        # here.
        if any(described.was_beyond(replica, end) for replica, end in ends):
            return "its changelog lost records that were applied"
        generation.record_facts(facts)
        for replica, end in ends:
            if replica.position.next_offset >= end:
                replica.whole_s = described.asked_s
        # To be in touch is not enough: a store that lags, or that a full disk holds up, may be missing deletes.
        if all(replica.position.next_offset >= end for replica, end in ends):
            generation.caught_up_ms = described.asked_ms
        return None

    def may_miss_deletes(self, generation: GenerationReplica, facts: TopicFacts) -> bool:
        """Return whether deletes may be gone from a generation's topic that it has not heard of."""
        return not generation.is_closed and self._stored.is_too_old(generation.caught_up_ms, facts)

    def _open_assigned(self, generation: GenerationReplica, facts: TopicFacts) -> None:
        gained = generation.open_pending(facts)
        if gained:
            numbers = ", ".join(map(str, gained))
            is_stored = generation.joined.issuperset(gained)
            are = "are in the store already" if is_stored else "are restored from its changelog"
            self._table_log.log(logging.INFO, f"taking over partitions {numbers}, which {are}")

    def _refuse_topic(self, manifest: Manifest, problem: str) -> None:
        """Serve the old generation on where the changelog of the new one is not there; else nothing."""
        older = self.generations.older(manifest)
        # Neither changelog can be followed. To answer on would be to serve rows that only grow older, without a word.
        if older is None or (older.is_frozen and not older.is_closed):
            self._refuse(problem, TableEvent.TOPIC_UNFIT)
            return
        if self.building is not None:
            self._forget(self.building)
        generation = older.manifest.generation
        self._table_log.log_once(logging.WARNING, f"{problem}; generation {generation} is served on")

    def lost(self, replica: PartitionReplica) -> None:
        """Act on a log that has not the offset that `replica` is at, or other records before it."""
        generation = next((each for each in self.generations.followed() if replica in each.replicas), None)
        if generation is None or replica.position.is_final:
            return
        at = f"offset {replica.position.next_offset} of partition {replica.partition}"
        why = f"changelog has not what was read up to {at}"
        if self.manifest is not None and generation is self.generations.older(self.manifest):
            self._freeze(generation, why)
            return
        self._table_log.log(logging.WARNING, f"{why}: restoring from the start")
        # Nobody was answered from this partition, and its fellows lost nothing: it alone begins again.
        if replica.state is PartitionState.RESTORING and any(each.is_live for each in generation.replicas):
            generation.remove(replica)  # nobody was answered from it: the others may stay
            return
        self._forget(generation)
        self._watcher.ask_at_once()

    def _freeze(self, older: GenerationReplica, why: str) -> None:
        """Serve what is stored of an older generation, which cannot be followed on, until the next one is restored."""
        generation = older.manifest.generation
        # Partitions that were still being restored will never be whole, so a generation that has some is of no use.
        if older.has_only_live:
            older.freeze()
            more = f"what is stored of generation {generation} is served until the next one is restored"
            self._table_log.log(logging.WARNING, f"{why}; {more}")
            return
        self._table_log.log(logging.WARNING, f"{why}; generation {generation} is given up for the next one")
        if self.building is not None:
            self.generations.switch(self.building)
        else:
            self._forget(older)
            self._watcher.ask_at_once()

    def _forget(self, generation: GenerationReplica) -> None:
        """Drop what is followed; the next description of its topic starts over."""
        self.generations.forget(generation, problem=_RESTORING.format(self.table.name))

    # Which generation is followed, and into which store id.

    def _start_over(self, generation: GenerationReplica, manifest: Manifest, facts: TopicFacts, why: str) -> None:
        self._table_log.log(logging.WARNING, f"restoring from the start: {why}")
        if generation is self.building:
            self._forget(generation)
            self._open(manifest, facts)
        else:
            # What is served is given up, too: nobody can tell which of its rows are wrong. That is stored first: should
            # a full store put off what comes next, it is not gone on with these rows.
            self._stored.forget(self.table.name, problem=_RESTORING.format(self.table.name))
            self._stop()
            self._open(manifest, facts, from_start=True)

    def _stop(self) -> None:
        """Follow nothing, to follow something else at once."""
        self._resuming = None
        if self.generations.current is not None:
            self.generations.stop()
            self._machine.move(TableEvent.STARTED_OVER)

    def _resume(self, manifest: Manifest, facts: TopicFacts | None) -> None:
        """Go on with the older generation that was served before a restart, so that nothing goes back by the next."""
        facts = self._stored.closed_facts(manifest) or facts
        fault = topic_fault(manifest, facts)
        state = self._stored.state(self.table.name)
        why = fault.what if fault is not None else None
        if facts is not None and state is not None and why is None:
            why = self._stored.fault_of(state, facts, caught_up_ms=self.caught_up_ms)
            if why is None:
                generation = self._follow(manifest, facts, state)
                with self._unless_refused(generation):
                    self.generations.resume(generation)
                self._resuming, self.problem = None, ""
                return
        self._resuming = None
        self._table_log.log(logging.WARNING, f"{why}; generation {manifest.generation} is given up for the next one")

    def _open(self, manifest: Manifest, facts: TopicFacts, *, from_start: bool = False) -> None:
        """Follow a manifest: on top of stored rows where they are of its changelog, beside an older generation."""
        older = self.generations.older(manifest)
        if older is not None and not older.is_frozen and older.manifest.changelog_topic == manifest.changelog_topic:
            # A topic that others write is read again, by another description. It is fetched once at a time.
            self._freeze(older, f'topic "{manifest.changelog_topic}" is read anew')
            older = self.generations.older(manifest)
        # Rows that nobody was given need no generation beside them: the new one takes their place at once.
        beside = older is not None and older.was_answered
        if not beside:
            self._stop()
        elif self.building is not None:
            self._forget(self.building)
        states = self._stored.states()
        stored = None if from_start else self._stored.usable(manifest, facts, caught_up_ms=self.caught_up_ms)
        # Whatever else is stored under names of this table is of generations that were given up, perhaps before a
        # crash.
        used = {each.store_id for each in self.generations.followed()}
        if stored is not None:
            used.add(StoreId(stored.store_id))
        given_up = {name: state for name, state in states.items() if StoreId(state.store_id) not in used}
        for name, state in given_up.items():
            # Nobody may come upon rows that are being removed.
            self._stored.forget(name, manifest=state.manifest if name == self.table.name else None)
        self.generations.abandon(*sorted({StoreId(state.store_id) for state in given_up.values()}))
        generation = self._follow(manifest, facts, stored)
        served = states.get(self.table.name)
        # A generation that was answered from before a restart is no late joiner: its clients have seen its rows
        # already.
        was_served = from_start or (served is not None and served.store_id == generation.store_id)
        with self._unless_refused(generation):
            if beside:
                self.generations.build(generation)
            elif was_served:
                self.generations.serve(generation)
            else:
                self.generations.serve_first(generation)
        self.problem = ""

    @contextmanager
    def _unless_refused(self, generation: GenerationReplica) -> Iterator[None]:
        """Let go of a generation that a full store has not let in: it is opened again, from what is stored then."""
        try:
            yield
        except StoreFull:
            generation.abandon()
            self._give_up(generation.copy)
            raise

    def _give_up(self, copy: Copy) -> None:
        """Have what was stored under a new store id removed, unless the store names it already, or others share it."""
        named = {StoreId(state.store_id) for state in self._stored.states().values()}
        if copy.store_id not in named and not self._store.is_shared:
            self.generations.abandon(copy.store_id)

    def _follow(self, manifest: Manifest, facts: TopicFacts, stored: store_pb2.TableState | None) -> GenerationReplica:
        """Follow a manifest into what is stored, or into a new store id, or one in which other gateways have it."""
        if stored is None:
            of = (manifest.table, manifest.generation, manifest.changelog_topic_id)
            # Gateways share a copy only where they would write the same bytes: the same changelog, row message and
            # retention.
            digest = rows_digest(self.table, manifest).hex()
            rows_by = (self.table.fingerprint.hex(), digest, self.table.retention_us or 0)
            changelog = "/".join(map(str, (*of, *rows_by)))
            copy = self._store.copy_of(changelog, unwanted=self.generations.abandoned)
        else:
            copy = Copy(StoreId(stored.store_id), stored.incarnation_id)
        try:
            generation = GenerationReplica(
                table=self.table,
                manifest=manifest,
                copy=copy,
                facts=facts,
                store=self._store,
                log=self._log_for(manifest.changelog_topic),
                assignment=self._assignment,
                skipped=self.skipped,
                clock=self._clock,
                caught_up_ms=self.caught_up_ms,
                is_new=stored is None,
                on_move=self._on_move,
                new_transfers=self._new_transfers,
            )
        except StoreFull:
            if stored is None:
                self._give_up(copy)
            raise
        self._table_log.started(
            generation.progress,
            from_start=generation.is_new and bool(generation.replicas) and not generation.joined,
            topic=manifest.changelog_topic,
            generation=manifest.generation,
        )
        return generation


_RESTORING = 'table "{}" is restored from the start, as its changelog lost records'
