"""The partitions of one generation that are here, and how far they are.

How a partition comes, is answered from, and goes (`states.PARTITION_TRANSITIONS`):

    ABSENT ─► ASSIGNED ─► RESTORING or CATCHING_UP ─► LIVE ─► REVOKING ─► ABSENT

1. The assignment names it: it is ASSIGNED. What an earlier stay left is removed, rows may come from another gateway
   (`transfers.py`), and the topic is described anew.
2. It opens at the stored position, else at the start of its changelog. Its barrier is the end offset that the brokers
   named then. Before the barrier a row that exists may not be here yet, so nobody is answered from it. One that was
   live not long ago is CATCHING_UP: its history goes on. All others are RESTORING, and their history begins at the end.
3. At the barrier, or at the last marker of its generation, it is LIVE. Not before the brokers have shown that what was
   read earlier is still in the changelog: where leaders have changed, the same offsets may be other records.
4. Assigned to others, it is answered from until all of them have it live. Then it is announced no more, which is
   REVOKING, and removed once this gateway has read its own announcement: of two gateways that rely on each other, the
   one whose announcement comes second in the topic reads the other's first, and keeps the partition.

After the last marker nothing more comes (FINAL). Where the changelog of an older generation is gone, what is stored is
answered from as it is until the next generation is there (FROZEN). Rows, history, position and phase are stored in one
write; the state moves after that.

Decision: docs/decisions/0025-no-history-of-what-may-be-compacted.md
Decision: docs/decisions/0027-live-replicas-catch-up.md
Decision: docs/decisions/0039-revoke-after-hearing.md
Decision: docs/decisions/0065-the-last-record-is-read-again.md
"""

import secrets
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import replace
from operator import attrgetter

from tablegate.gateway.cluster.assignment import Assignment
from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.lineage import (
    UNKNOWN_EPOCH,
    Place,
    continued,
    is_continued_by,
    is_of_another_log,
    place_at,
)
from tablegate.gateway.contract.rows import RowDecoder
from tablegate.gateway.contract.types import Offset, Partition
from tablegate.gateway.kafka.log import Clock, Fetched, Log, TopicFacts, TopicPartition
from tablegate.gateway.replication.batches import BROKEN_OFF, PendingBatch
from tablegate.gateway.replication.foreign import IN_TOUCH_S, EndTimes, ForeignReader
from tablegate.gateway.replication.progress import RestoreProgress
from tablegate.gateway.replication.records import HISTORY_RESTORED_MS, RecordReader, SkippedRecords, count_old
from tablegate.gateway.replication.states import (
    GenerationEvent,
    OnMove,
    PartitionEvent,
    PartitionMachine,
    PartitionState,
    generation_machine,
    partition_machine,
)
from tablegate.gateway.replication.stored import (
    first_position,
    is_too_old,
    partitions_of,
    stored_positions,
    whole_as_of_ms,
)
from tablegate.gateway.replication.transfers import NewTransfers
from tablegate.gateway.stores.base import Change, Copy, Phase, Position, StoreUnavailable, StoreWriter
from tablegate.v1.changelog_pb2 import Manifest

CLEAN_ROWS_MAX = 500  # at once: under a millisecond, as a live record may wait for it
CLEAN_PARTITIONS_MAX = 50  # of which nothing is left


class PartitionReplica:
    """Follows one partition into the store. One thread.

    `position` is what is stored. `barrier`: the offset at which it is LIVE. `machine` has to be ASSIGNED. `is_proved`:
    the position is known to be one of this changelog; else the first fetch shows it, and it is not LIVE before.
    `whole_s`: when Kafka was asked last for an end that is reached, so that all that comes now is younger; None: not
    yet. `batch`: keeps the batches of an atomic table together; None for others. `end_times`: when the
    end of a topic that others write was seen; None of our own. `whole_at`: how far another gateway was that its rows
    came from, as it has to be the same changelog up to there; None where they came from the changelog. `marker_ms`:
    when Kafka appended the newest marker; 0 where none was read since this was made.
    """

    def __init__(
        self,
        *,
        store: StoreWriter,
        topic_partition: TopicPartition,
        reader: RecordReader | ForeignReader,
        position: Position,
        barrier: Offset,
        skipped: SkippedRecords,
        clock: Clock,
        machine: PartitionMachine,
        is_proved: bool = True,
        batch: PendingBatch | None = None,
        end_times: EndTimes | None = None,
        whole_at: Place | None = None,
    ) -> None:
        self.whole_s: float | None = None
        self.topic_partition = topic_partition
        self.barrier = barrier
        self.end_offset = barrier
        self.rows_applied = 0
        self.stale_records = 0
        self.marker_ms = 0
        self._store = store
        self.store_id = machine.subject.store_id
        self._reader = reader
        self._skipped = skipped
        self._clock = clock
        self._machine = machine
        self._ahead_ms = 0
        self._note_time(position.as_of_ms)
        self._batch = batch
        self._end_times = end_times
        self._whole_at = whole_at
        # What comes has been compacted, perhaps, where that is long ago: it is no history.
        is_young = position.as_of_ms >= clock.now_ms() - HISTORY_RESTORED_MS
        continues = is_young and position.phase is not Phase.RESTORING
        self.position = position.in_phase(Phase.CATCHING_UP if continues else Phase.RESTORING)
        arrival = self._event_on_reaching(position) if is_proved or position.is_final else None
        if arrival is not None:
            self.position = position.in_phase(Phase.LIVE)
        store.apply(self.store_id, topic_partition.partition, [], self.position)
        machine.move(PartitionEvent.CATCH_UP if continues else PartitionEvent.RESTORE)
        if arrival is not None:
            machine.move(arrival)

    @property
    def partition(self) -> Partition:
        """Return the partition's number."""
        return self.topic_partition.partition

    @property
    def state(self) -> PartitionState:
        """Return what the replica does."""
        return self._machine.state

    @property
    def is_followed(self) -> bool:
        """Return whether it is still a partition of a generation that is followed."""
        return self._machine.state is not PartitionState.ABSENT

    @property
    def is_fetched(self) -> bool:
        """Return whether what was fetched of it is to be applied still."""
        return self._machine.state not in (PartitionState.ABSENT, PartitionState.FROZEN)

    @property
    def next_offset(self) -> Offset:
        """Return the first offset that is not applied."""
        return self.position.next_offset

    @property
    def is_live(self) -> bool:
        """Return whether the replica is answered from: LIVE, or what can follow on that."""
        return self.position.phase is Phase.LIVE

    def is_lost_by(self, fetched: Fetched) -> bool:
        """Return whether what was fetched shows that the changelog is another one than what was applied came from."""
        comes_late = bool(fetched.records) and fetched.records[0].offset < self.position.next_offset
        if fetched.lost or comes_late or not is_continued_by(self.position.lineage, fetched.runs):
            return True
        place = self._whole_at
        return place is not None and is_of_another_log(place, continued(self.position.lineage, fetched.runs))

    def apply(self, fetched: Fetched) -> None:
        """Apply what was fetched, whole or, with an exception of the store's, not at all."""
        if self._batch is None:
            self._apply_whole(fetched)
            return
        split = self._batch.split(fetched, is_live=self.is_live)
        self._apply_whole(split.whole)
        self._batch.keep(split, fetched)
        for offset in split.dropped:
            self._skipped.count(BROKEN_OFF, self.topic_partition, offset)

    def record_end(self, end_offset: Offset, asked_ms: int) -> None:
        """Record where the brokers say that the partition ends: as long ago as they were asked."""
        # The description is older than what has been fetched since: a lag is never negative.
        self.end_offset = max(end_offset, self.position.next_offset)
        if self._batch is not None and self._batch.is_due(end_offset):
            self.apply(Fetched(self.topic_partition, [], self._batch.next_offset))
        if self._end_times is not None:
            self._end_times.note(end_offset, asked_ms)
            self._apply_whole(Fetched(self.topic_partition, [], self.position.next_offset))

    def _apply_whole(self, fetched: Fetched) -> None:
        batch = self._reader.read(fetched.records, self.position, self.partition, passed_ms=self.passed_ms())
        next_offset = max(fetched.next_offset, self.position.next_offset)
        as_of_ms = batch.as_of_ms if self._end_times is None else self._end_times.as_of_ms(next_offset)
        position = self.position.moved_to(next_offset, as_of_ms)
        lineage = continued(position.lineage, fetched.runs)
        position = replace(position, source_offsets=batch.source_offsets, is_final=batch.is_final, lineage=lineage)
        arrival = self._event_on_reaching(position)
        if arrival is not None:
            self._machine.next(arrival)  # raises before anything is stored
            position = position.in_phase(Phase.LIVE)
        if position != self.position or batch.changes:
            self._apply(batch.changes, position, batch.last_repeat)
        self.position = position
        if self._whole_at is not None and position.next_offset >= self._whole_at.next_offset:
            self._whole_at = None
        self._note_time(position.as_of_ms)
        self.marker_ms = batch.marker_ms or self.marker_ms
        self.end_offset = max(self.end_offset, position.next_offset)
        if arrival is not None:
            self._machine.move(arrival)
        for reason, offset in batch.skipped:
            self._skipped.count(reason, self.topic_partition, offset)

    def _event_on_reaching(self, position: Position) -> PartitionEvent | None:
        """Return what happens to the replica as it comes to a position; None: nothing but that."""
        is_first = not self.is_live
        if position.is_final:
            return PartitionEvent.REACH_LAST_MARKER if is_first or not self.position.is_final else None
        return PartitionEvent.REACH_BARRIER if is_first and position.next_offset >= self.barrier else None

    def _apply(self, changes: list[Change], position: Position, last_repeat: int) -> None:
        """Store changes and position. Where this ends a restore, the history begins, with what is young enough.

        It begins anew, too, where what comes is old: this gateway was away for hours, or its store went back.
        """
        if position.phase is Phase.RESTORING:
            self._put(changes, position)
            return
        old = 0 if self._is_in_touch() else count_old(changes, self._clock.now_ms(), last_repeat=last_repeat)
        is_restored = self.position.phase is Phase.RESTORING
        if is_restored:  # rows that another gateway gave have some of the changes before this already, unseen
            old = max(old, bisect_left(changes, self.position.history_start, key=attrgetter("offset")))
        if is_restored or old:
            at = changes[old].offset if old < len(changes) else position.next_offset
            position = replace(position, history_start=at)
        if is_restored and old:
            # Two writes: what is too old for the history is stored as a restore does it, without history; only then
            # does the history begin. A crash between them leaves a restore that reads the same records once more: what
            # markers say, such as the run, is known of the last of them, and would be wrong of those before it.
            self._put(changes[:old], self.position)
            changes = changes[old:]
        self._put(changes, position)

    def passed_ms(self) -> int:
        """Return a time that the clock of the partition's broker has passed, as surely as that does not go back.

        It is what that said when it appended the newest record, and what has passed here since that came. What is
        removed by it had expired, whatever the clock of this gateway says.
        """
        return round(self._clock.monotonic_s() * 1_000) + self._ahead_ms

    def _note_time(self, appended_ms: int) -> None:
        """Record that Kafka has appended a record at a time, which it had done by now."""
        self._ahead_ms = max(self._ahead_ms, appended_ms - round(self._clock.monotonic_s() * 1_000))

    def _is_in_touch(self) -> bool:
        """Return whether all that comes is young, whatever clocks say."""
        since_s = self.whole_s
        # A topic of others has no lag of compaction that we know of.
        in_touch_s = HISTORY_RESTORED_MS / 1_000 if self._end_times is None else IN_TOUCH_S
        return since_s is not None and self._clock.monotonic_s() - since_s <= in_touch_s

    def _put(self, changes: list[Change], position: Position) -> None:
        applied, stale = self._store.apply(self.store_id, self.partition, changes, position)
        self.rows_applied += applied
        self.stale_records += len(stale)
        self._skipped.count_stale(stale, self.topic_partition)

    def move(self, event: PartitionEvent) -> None:
        """Change the state, where nothing is stored for it."""
        self._machine.move(event)

    def keep(self, *, is_frozen: bool) -> None:
        """Have it here after all."""
        if self.position.is_final:
            event = PartitionEvent.KEEP_FINAL
        elif is_frozen:
            event = PartitionEvent.KEEP_FROZEN
        else:
            event = PartitionEvent.KEEP_LIVE if self.is_live else PartitionEvent.KEEP_CATCHING_UP
        self._machine.move(event)


class GenerationReplica:
    """One manifest, followed into one store id: its partitions that are here. They are fetched until `stop`.

    `machine` has the generation's state. `caught_up_ms`: when the store was last known to have the whole changelog, as
    far as it is here. `is_new`: the store id has no rows of ours yet. `joined` were found in the store, where other
    gateways keep them, or have come from one. `pending` are ASSIGNED; `revoking` may be removed when the beat of that
    number was heard. `transfers`: of rows from other gateways.
    """

    def __init__(
        self,
        *,
        table: Table,
        manifest: Manifest,
        copy: Copy,
        facts: TopicFacts,
        store: StoreWriter,
        log: Log,
        assignment: Assignment,
        skipped: SkippedRecords,
        clock: Clock,
        caught_up_ms: int,
        is_new: bool,
        on_move: OnMove,
        new_transfers: NewTransfers,
    ) -> None:
        self.manifest = manifest
        self.copy = copy
        self.store_id = copy.store_id
        self.machine = generation_machine(table.name, manifest.generation, copy.store_id, on_move)
        self.is_frozen = False
        self.is_new = is_new
        self.facts = facts
        self.joined: set[Partition] = set()
        self.pending: frozenset[Partition] = frozenset()
        self.revoking: dict[Partition, int] = {}
        self.replicas: list[PartitionReplica] = []
        self._table = table
        self._store = store
        self.log = log
        self._assignment = assignment
        self._reconciled: tuple[int, frozenset[Partition]] | None = None  # with what; None: anew
        self._is_assignment_known = False
        self._skipped = skipped
        self._clock = clock
        self._on_move = on_move
        self._reader = _reader_of(table, manifest)
        self._machines: dict[Partition, PartitionMachine] = {}  # of those that are not ABSENT
        self._asked: frozenset[Partition] = frozenset()
        self.transfers = new_transfers(manifest=manifest, store_id=copy.store_id, why_useless=self._why_useless)
        positions = stored_positions(store, copy.store_id, manifest)
        found = zip(partitions_of(manifest), positions, strict=True)
        stored = {partition: position for partition, position in found if position is not None}
        self.caught_up_ms = whole_as_of_ms(store, positions, caught_up_ms) if stored else clock.now_ms()
        # A crash may have left rows of partitions that were being removed: their position goes first, so they are those
        # without one.
        self._unclean = set() if is_new else set(partitions_of(manifest)).difference(stored)
        incarnation_id = self._draw_incarnation()
        try:
            store.keep_indexes(copy.store_id, table.row_indexes)  # before any row is written
            for partition, position in stored.items():
                self._open(partition, position, incarnation_id)
            if is_new:
                self._open_first(each for each in self.assigned() or () if not self._is_transferred(each))
        except StoreUnavailable:  # nobody gets this object: the generation is opened again, from what is stored
            self._stop_partitions()
            raise
        self.progress = RestoreProgress(self.replicas, now_s=clock.monotonic_s())

    def _draw_incarnation(self) -> int:
        """Return an incarnation for partitions of which nothing is here."""
        return 0 if self._table.expiry is None else secrets.randbits(64)

    def _open(
        self, partition: Partition, position: Position, incarnation_id: int, *, whole_at: Place | None = None
    ) -> None:
        """Follow a partition from a position, which may be of an incarnation already."""
        replica = PartitionReplica(
            store=self._store,
            topic_partition=TopicPartition(self.manifest.changelog_topic, partition),
            reader=self._reader,
            # Stores of an older version kept no incarnation. Without expiry it stays 0, as offsets alone say what was
            # read.
            position=replace(position, incarnation_id=position.incarnation_id or incarnation_id),
            barrier=max(self.facts.end_offsets[partition], Offset(0) if whole_at is None else whole_at.next_offset),
            skipped=self._skipped,
            clock=self._clock,
            machine=self._assign(partition),
            is_proved=self._is_proved(partition, position),
            batch=self._pending_batch(partition, position) if self.manifest.atomic else None,
            end_times=EndTimes(self.facts.end_offsets[partition], self.facts.asked_ms) if self.is_foreign else None,
            whole_at=whole_at,
        )
        self.replicas.append(replica)
        self.pending -= {partition}  # also where a full store breaks off before the next: no older rows are asked for
        if not replica.position.is_final:
            self.log.follow(replica.topic_partition, self._place(partition, replica.position))

    def _place(self, partition: Partition, position: Position) -> Place:
        """Return the place to follow a partition from."""
        place = place_at(position.lineage, position.next_offset)
        # Where retention has removed the last record, it cannot be read again. Nothing was lost while its leader leads.
        is_removed = place.read_end <= self.facts.start_offsets[partition]
        return Place(place.next_offset) if is_removed and self._is_proved(partition, position) else place

    def _is_proved(self, partition: Partition, position: Position) -> bool:
        """Return whether the leader that wrote what was read last leads still, so that nothing was lost."""
        return not position.lineage or position.lineage[-1].leader_epoch == self._leader_epoch(partition)

    def _leader_epoch(self, partition: Partition) -> int:
        epochs = self.facts.leader_epochs
        return epochs[partition] if epochs else UNKNOWN_EPOCH

    def _pending_batch(self, partition: Partition, position: Position) -> PendingBatch:
        return PendingBatch(
            self.manifest.generation,
            committed_end=self.facts.end_offsets[partition],
            next_offset=position.next_offset,
            now_ms=self._clock.now_ms,
        )

    def _open_first(self, gained: Iterable[Partition]) -> None:
        """Follow partitions of which nothing is here, but for those whose end is not known.

        From the start; or from where other gateways are with a partition, that keep it in the same store.
        """
        incarnation_id = self._draw_incarnation()
        here = {replica.partition for replica in self.replicas}  # a full store may have broken an earlier try off
        for partition in sorted(set(gained) - here):
            # The brokers did not say where the partition ends. Without a barrier it could never be live, so the next
            # description is waited for.
            if self.facts.end_offsets[partition] >= 0:
                if partition in self.transfers.ended:
                    self._open_transferred(partition, incarnation_id)
                    continue
                position = self._joined(partition) or first_position(self.facts, partition)
                self._open(partition, position, incarnation_id)
        self.replicas.sort(key=attrgetter("partition"))

    def _open_transferred(self, partition: Partition, incarnation_id: int) -> None:
        """Follow a partition on from where the rows are that another gateway gave, if the changelog has that place."""
        transferred, facts = self.transfers.ended[partition], self.facts
        first, end, log_end = transferred.first, transferred.end, facts.end_offsets[partition]
        if self._why_useless(partition, first) or end.next_offset > log_end:
            self._drop_transferred(partition)
            return
        # A history that began before `end` would lack changes that the rows have: kept, as this may end before that.
        first = replace(first, incarnation_id=incarnation_id, history_start=end.next_offset)
        self._store.end_transfer(self.store_id, partition, transferred.repairs, first)
        self.joined.add(partition)
        self._open(partition, first, incarnation_id, whole_at=end)
        self.transfers.stop(partition)

    def _why_useless(self, partition: Partition, first: Position) -> str:
        """Return why the changelog does not lead on from a position, as far as that is known; "": it does."""
        facts, log_end = self.facts, self.facts.end_offsets[partition]
        if first.next_offset < facts.start_offsets[partition]:
            return "the changelog begins behind it"
        # Who gave them may have been away for longer than tombstones are kept, and not know it yet.
        if first.next_offset < log_end and is_too_old(first.as_of_ms, facts, now_ms=self._clock.now_ms()):
            return "it is so old that deletes may have been compacted away since"
        return ""

    def _drop_transferred(self, partition: Partition) -> None:
        """Want no rows of a partition from another gateway any more, and have those removed that have come."""
        if self.transfers.stop(partition):
            self._unclean.add(partition)
            self._reconciled = None

    def _is_transferred(self, partition: Partition) -> bool:
        """Return whether rows of a partition are to come from another gateway, or are coming."""
        facts = self.facts
        return self.transfers.wanted(partition, facts.end_offsets[partition] - facts.start_offsets[partition])

    def transfer(self) -> None:
        """Store the rows that other gateways have sent, and ask for more."""
        try:
            self.transfers.step()
        finally:
            self._unclean |= self.transfers.failed
            self.transfers.failed.clear()
        waiting = self.pending - self._unclean - self._asked
        self.transfers.begin(each for each in sorted(waiting) if self._is_transferred(each))

    def _joined(self, partition: Partition) -> Position | None:
        joined = self._store.join(self.store_id, partition)
        if joined is None:
            return None
        position, facts = joined.position, self.facts
        start, end = facts.start_offsets[partition], facts.end_offsets[partition]
        # What nobody has kept may have been away for longer than tombstones are kept: then deletes were compacted away
        # unseen.
        is_old = position.next_offset < end and is_too_old(position.as_of_ms, facts, now_ms=self._clock.now_ms())
        if joined.is_kept or position.is_final or not (is_old or position.next_offset < start):
            self.joined.add(partition)
            return position
        self._store.expel(self.store_id, partition)
        return None

    # Which partitions are here.

    def reconcile(self, *, is_served: bool, answered: frozenset[Partition] = frozenset()) -> None:
        """Make what is here what is assigned: assign what is not here; revoke what all who are to have it have.

        `is_served`: this is the generation that is answered from, and the others must answer from it, too. `answered`
        are here in any case.
        """
        # It is called at each step. Nothing can have changed unless the gateways, or what is answered here, have.
        known = self._assignment.version, answered
        if known == self._reconciled:
            return
        self._reconciled = None  # until it is done: the store may refuse to remove a partition
        was_removed = self._reconcile(is_served=is_served, answered=answered)
        self._reconciled = None if was_removed else known  # it may be assigned again

    def _reconcile(self, *, is_served: bool, answered: frozenset[Partition]) -> bool:
        """Do so; return whether a partition was removed."""
        was_removed = False
        assigned = self.assigned()
        self._is_assignment_known = assigned is not None
        if assigned is None:
            return False
        assigned |= answered
        for replica in list(self.replicas):
            partition = replica.partition
            if partition in assigned:
                self._keep(replica)
            # Nobody reads what is being restored, so nobody has to have it before it may go.
            elif replica.state is PartitionState.RESTORING:
                self.remove(replica)
                was_removed = True
            elif not self._are_others_live(partition, is_served=is_served):
                self._keep(replica)
            elif partition not in self.revoking:
                # The others may be about to revoke the same partition, relying on us. So this gateway first announces
                # itself without it, and drops it only after it has read that announcement back and looked again
                # (decision 39).
                self.revoking[partition] = self._assignment.next_beat
                replica.move(PartitionEvent.REVOKE)
            elif self._assignment.heard_beat >= self.revoking[partition]:
                self.remove(replica)
                was_removed = True
        here = [replica.partition for replica in self.replicas]
        self._set_pending(frozenset() if self.is_frozen else assigned.difference(here))
        return was_removed

    def assigned(self) -> frozenset[Partition] | None:
        """Return the partitions that are to be here; None while that is not known."""
        manifest = self.manifest
        return self._assignment.assigned(self._table.name, manifest.partition_count, generation=manifest.generation)

    def _are_others_live(self, partition: Partition, *, is_served: bool) -> bool:
        return self._assignment.are_others_live(
            self._table.name,
            partition,
            partition_count=self.manifest.partition_count,
            generation=self.manifest.generation,
            is_served=is_served,
        )

    def _assign(self, partition: Partition) -> PartitionMachine:
        """Return the machine of a partition that is to be here."""
        machine = self._machines.get(partition)
        if machine is None:
            machine = partition_machine(self.machine.subject, partition, self._on_move)
            machine.move(PartitionEvent.ASSIGN)
            self._machines[partition] = machine
        return machine

    def _set_pending(self, pending: frozenset[Partition]) -> None:
        for partition in pending - self.pending:
            self._assign(partition)
        for partition in self.pending - pending:
            if self._machines[partition].state is PartitionState.ASSIGNED:
                self._drop_transferred(partition)
                self._machines.pop(partition).move(PartitionEvent.UNASSIGN)
        self.pending = pending

    def _keep(self, replica: PartitionReplica) -> None:
        if self.revoking.pop(replica.partition, None) is not None:
            replica.keep(is_frozen=self.is_frozen)

    def remove(self, replica: PartitionReplica) -> None:
        """Follow a partition no more, and remove it: its position at once, so that nobody reads the rest."""
        # A crash from here on leaves rows without a position. The next start finds them by that, and removes them.
        is_clean = self._store.drop_partition(self.store_id, replica.partition, limit=CLEAN_ROWS_MAX)
        if not self.is_frozen:
            self.log.unfollow(replica.topic_partition)
        self.replicas.remove(replica)
        self.joined.discard(replica.partition)
        self.revoking.pop(replica.partition, None)
        self._machines.pop(replica.partition).move(PartitionEvent.REMOVE)
        self._reconciled = None  # it may be assigned again
        if not is_clean:
            self._unclean.add(replica.partition)

    @property
    def is_unclean(self) -> bool:
        """Return whether there may be rows of partitions that are not here."""
        return bool(self._unclean)

    def clean(self) -> None:
        """Remove some of what is left of partitions that are not here."""
        for _ in range(CLEAN_PARTITIONS_MAX):
            if not self._unclean or not self._clean(next(iter(self._unclean & self.pending or self._unclean))):
                return

    def _clean(self, partition: Partition) -> bool:
        is_clean = self._store.drop_partition(self.store_id, partition, limit=CLEAN_ROWS_MAX)
        if is_clean:
            self._unclean.discard(partition)
        return is_clean

    def asks(self) -> bool:
        """Return whether the topic is to be described anew, for partitions that may be followed then."""
        if self.pending <= self._asked:
            return False
        # Rows of an earlier stay would mix with those of the restore, so these partitions wait until they are removed.
        # Of others they are coming from another gateway.
        waiting = self.pending - self._unclean - self._asked
        asked = (self._asked & self.pending) | {each for each in waiting if not self._is_transferred(each)}
        is_new = not asked <= self._asked
        self._asked = asked
        return is_new

    def open_pending(self, facts: TopicFacts) -> list[Partition]:
        """Follow what was asked for, by a description of the topic since; return those partitions."""
        # One that was unassigned and assigned again meanwhile may have rows of a transfer, and waits for their removal.
        gained = sorted((self._asked & self.pending) - self._unclean)
        self._asked = frozenset()
        if gained:
            self.facts = facts
            self._open_first(gained)
            self._set_pending(self.pending.difference(gained))
            # The rate and the time left were of fewer partitions.
            self.progress = RestoreProgress(self.replicas, now_s=self._clock.monotonic_s())
        return gained

    def stop(self) -> None:
        """Fetch no more: the generation is retired."""
        self._stop_partitions()
        self.machine.move(GenerationEvent.RETIRE)

    def abandon(self) -> None:
        """Fetch no more: the generation was never followed, as it could not be stored that it is."""
        self._stop_partitions()

    def _stop_partitions(self) -> None:
        self._unfollow()
        self.transfers.stop_all()
        self.pending = frozenset()
        # Partitions that were only assigned have a machine, too, and no replica.
        while self._machines:
            self._machines.popitem()[1].move(PartitionEvent.STOP)

    def _unfollow(self) -> None:
        for replica in self.replicas if not self.is_frozen else ():  # the next generation may fetch the same topic
            self.log.unfollow(replica.topic_partition)

    def unfollow_final(self) -> None:
        """Fetch no more of the partitions whose last marker was applied: their topic may go."""
        for replica in self.replicas:
            if replica.position.is_final:
                self.log.unfollow(replica.topic_partition)

    def freeze(self) -> None:
        """Fetch no more, for good: the changelog cannot be followed on, and what is stored stays as it is."""
        self._unfollow()
        self.is_frozen = True
        self._set_pending(frozenset())
        for replica in self.replicas:
            replica.move(PartitionEvent.FREEZE)

    def update(self, manifest: Manifest) -> None:
        """Accept a manifest of the same changelog, with more schemas perhaps."""
        self.manifest = manifest
        if isinstance(self._reader, RecordReader):  # what others write is described once in a generation
            self._reader.decoder = RowDecoder(self._table, manifest.value_schemas)

    def record_facts(self, facts: TopicFacts) -> None:
        """Record what the topic is by a later description."""
        self.facts = facts
        for replica in self.replicas:
            replica.record_end(facts.end_offsets[replica.partition], facts.asked_ms)

    @property
    def is_foreign(self) -> bool:
        """Return whether others write its topic: nothing there says that it ends, and nobody may append to it."""
        return self.manifest.HasField("foreign")

    @property
    def states(self) -> Mapping[Partition, PartitionState]:
        """Return the states of all partitions that are not ABSENT."""
        return {partition: machine.state for partition, machine in self._machines.items()}

    @property
    def is_live(self) -> bool:
        """Return whether every partition that is to be here is answered from, or may be."""
        return self._is_assignment_known and not self.pending and self.has_only_live

    @property
    def has_only_live(self) -> bool:
        """Return whether every partition that is here is answered from, or may be."""
        return all(replica.is_live for replica in self.replicas)

    @property
    def is_closed(self) -> bool:
        """Return whether the last marker of every partition that is here was applied: nothing more will come."""
        return all(replica.position.is_final for replica in self.replicas)

    @property
    def was_answered(self) -> bool:
        """Return whether clients may have had rows of it: here, before a restart, or of another gateway."""
        is_alone = self._assignment.is_alone
        return not is_alone or not self.is_new or any(replica.is_live for replica in self.replicas)


def _reader_of(table: Table, manifest: Manifest) -> RecordReader | ForeignReader:
    if manifest.HasField("foreign"):
        return ForeignReader(table, manifest)
    decoder = RowDecoder(table, manifest.value_schemas)
    return RecordReader(manifest.generation, table=table, partition_count=manifest.partition_count, decoder=decoder)
