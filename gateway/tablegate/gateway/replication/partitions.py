"""One manifest, followed into one store id: a replica of each partition that is here, and how far they all are.

    lacking ──(what an earlier stay left is removed)──(a look at the topic that was asked for since)──► followed
                                                                                                           │
    removed ◄──(and we have heard ourselves say so)── leaving ◄──(not wanted, and LIVE on all that are to have it)

A partition that is leaving is still answered here, but announced no more. What is wanted again stays.
"""

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import attrgetter

from tablegate.gateway.cluster.assignment import Assignment
from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.rows import RowDecoder
from tablegate.gateway.contract.types import Offset, Partition, StoreId
from tablegate.gateway.kafka.log import Clock, Log, TopicFacts, TopicPartition
from tablegate.gateway.replication.partition import PartitionReplica, SkippedRecords
from tablegate.gateway.stores.base import Phase, Position, StoreWriter
from tablegate.v1.changelog_pb2 import Manifest

CLEAN_ROWS_MAX = 500  # at once: under a millisecond, as a live record may wait for it
CLEAN_PARTITIONS_MAX = 50  # of which nothing is left
OLD_STORE_PART = 0.5  # of delete.retention.ms: an older store may have missed deletes


class GenerationReplica:
    """The replicas of a table's partitions. They are fetched from the moment this is made, until `stop`.

    `caught_up_ms`: when the store was last known to have the whole changelog, as far as it is here. `is_new`: the store
    id has no rows of ours yet. `joined` were found in the store, where other gateways keep them. `lacking` are wanted
    and not followed yet; `leaving` may be removed when the beat of that number was heard. `version` is another one when
    something else is to be announced.
    """

    def __init__(
        self,
        *,
        table: Table,
        manifest: Manifest,
        store_id: StoreId,
        life_id: int,
        facts: TopicFacts,
        store: StoreWriter,
        log: Log,
        share: Assignment,
        skipped: SkippedRecords,
        clock: Clock,
        caught_up_ms: int,
        is_new: bool,
    ) -> None:
        self.manifest = manifest
        self.is_frozen = False
        self.joined: set[Partition] = set()
        self.lacking: frozenset[Partition] = frozenset()
        self.leaving: dict[Partition, int] = {}
        self.version = 0
        self.is_new = is_new
        self.store_id = store_id
        self.life_id = life_id
        self.facts = facts
        self.replicas: list[PartitionReplica] = []
        self._table = table
        self._store = store
        self._log = log
        self._share = share
        self._seen: tuple[int, frozenset[Partition]] | None = None
        self._is_share_known = False
        self._skipped = skipped
        self._clock = clock
        self._decoder = RowDecoder(table, manifest.value_schemas)
        self._asked: frozenset[Partition] = frozenset()
        positions = stored_positions(store, store_id, manifest)
        found = zip(partitions(manifest), positions, strict=True)
        stored = {partition: position for partition, position in found if position is not None}
        self.caught_up_ms = whole_as_of_ms(store, positions, caught_up_ms) if stored else clock.now_ms()
        self._unclean = set() if is_new else set(partitions(manifest)).difference(stored)
        life_id = self._drawn_life()
        for partition, position in stored.items():
            self._add(partition, position, life_id)
        if is_new:
            self._add_first(self.wanted() or ())
        self._begin()

    def _drawn_life(self) -> int:
        """Return a life for partitions of which nothing is here."""
        return 0 if self._table.expiry is None else secrets.randbits(64)

    def _add(self, partition: Partition, position: Position, life_id: int) -> None:
        """Follow a partition from a position, which may be in a life already."""
        replica = PartitionReplica(
            store=self._store,
            store_id=self.store_id,
            source=TopicPartition(self.manifest.changelog_topic, partition),
            generation=self.manifest.generation,
            decoder=self._decoder,
            position=replace(position, life_id=position.life_id or life_id),
            barrier=self.facts.end_offsets[partition],
            skipped=self._skipped,
            expiry=self._table.expiry,
            now_ms=self._clock.now_ms,
        )
        self.replicas.append(replica)
        if not replica.position.is_final:
            self._log.follow(replica.source, replica.position.next_offset)

    def _add_first(self, gained: Iterable[Partition]) -> None:
        """Follow partitions of which nothing is here, not those whose end is not known.

        From the start; or from where other gateways are with a partition, that keep it in the same store.
        """
        life_id = self._drawn_life()
        held = {replica.partition for replica in self.replicas}  # a full store may have broken an earlier try off
        for partition in sorted(set(gained) - held):
            if self.facts.end_offsets[partition] >= 0:
                self._add(partition, self._joined(partition) or first_position(self.facts, partition), life_id)
        self.replicas.sort(key=attrgetter("partition"))

    def _joined(self, partition: Partition) -> Position | None:
        joined = self._store.join(self.store_id, partition)
        if joined is None:
            return None
        position, facts = joined.position, self.facts
        start, end = facts.start_offsets[partition], facts.end_offsets[partition]
        is_old = position.next_offset < end and is_too_old(position.as_of_ms, facts, now_ms=self._clock.now_ms())
        if joined.is_kept or position.is_final or not (is_old or position.next_offset < start):
            self.joined.add(partition)
            return position
        self._store.expel(self.store_id, partition)
        return None

    def _begin(self) -> None:
        """Count from here how far restoring is."""
        self.started_s = self._clock.monotonic_s()
        self.restored_s: float | None = None
        self._rows_at_start = {replica: replica.rows_applied for replica in self.replicas}
        self._offsets_at_start = {replica: replica.position.next_offset for replica in self.replicas}

    # Which partitions are here.

    def share_out(self, *, is_served: bool, answered: frozenset[Partition] = frozenset()) -> None:
        """Take notice of which partitions are to be here; let go of those that all who are to have them have.

        `is_served`: this is the generation that is answered, and those must answer from it. `answered` are here in any
        case.
        """
        seen = self._share.version, answered
        if seen == self._seen:
            return
        self._seen = seen
        wanted = self.wanted()
        self._is_share_known = wanted is not None
        if wanted is None:
            return
        wanted |= answered
        for replica in list(self.replicas):
            partition = replica.partition
            if partition in wanted:
                self._stay(partition)
            elif replica.position.phase is Phase.RESTORING:
                self.let_go(replica)
            elif not self._is_elsewhere(partition, is_served=is_served):
                self._stay(partition)
            elif partition not in self.leaving:
                self.leaving[partition] = self._share.next_beat
                self.version += 1
            elif self._share.heard_beat >= self.leaving[partition]:
                self.let_go(replica)
        held = [replica.partition for replica in self.replicas]
        self.lacking = frozenset() if self.is_frozen else wanted.difference(held)

    def wanted(self) -> frozenset[Partition] | None:
        """Return the partitions that are to be here; None while that is not known."""
        manifest = self.manifest
        return self._share.wanted(self._table.name, manifest.partition_count, generation=manifest.generation)

    def _is_elsewhere(self, partition: Partition, *, is_served: bool) -> bool:
        return self._share.is_elsewhere(
            self._table.name,
            partition,
            partition_count=self.manifest.partition_count,
            generation=self.manifest.generation,
            is_served=is_served,
        )

    def _stay(self, partition: Partition) -> None:
        if self.leaving.pop(partition, None) is not None:
            self.version += 1

    def let_go(self, replica: PartitionReplica) -> None:
        """Follow a partition no more, and remove it: its position at once, so that nobody reads the rest."""
        self._log.unfollow(replica.source)
        self.replicas.remove(replica)
        self.joined.discard(replica.partition)
        self.leaving.pop(replica.partition, None)
        self.version += 1
        self._seen = None  # it may be wanted again
        self._unclean.add(replica.partition)
        self._clean(replica.partition)

    @property
    def is_unclean(self) -> bool:
        """Return whether there may be rows of partitions that are not here."""
        return bool(self._unclean)

    def clean(self) -> None:
        """Remove some of what is left of partitions that are not here."""
        for _ in range(CLEAN_PARTITIONS_MAX):
            if not self._unclean or not self._clean(next(iter(self._unclean & self.lacking or self._unclean))):
                return

    def _clean(self, partition: Partition) -> bool:
        is_clean = self._store.drop_partition(self.store_id, partition, limit=CLEAN_ROWS_MAX)
        if is_clean:
            self._unclean.discard(partition)
        return is_clean

    def asks(self) -> bool:
        """Return whether the topic is to be looked at anew, for partitions that may be followed then."""
        if self.lacking <= self._asked:
            return False
        asked = self.lacking - self._unclean
        is_new = not asked <= self._asked
        self._asked = asked
        return is_new

    def gain(self, facts: TopicFacts) -> list[Partition]:
        """Follow what was asked for, by a look that was made since; return those partitions."""
        gained = sorted(self._asked & self.lacking)
        self._asked = frozenset()
        if gained:
            self.facts = facts
            self._add_first(gained)
            self.lacking = self.lacking.difference(gained)
            self.version += 1
            self._begin()
        return gained

    def replica_of(self, partition: Partition) -> PartitionReplica | None:
        """Return the replica of a partition that is here."""
        return next((replica for replica in self.replicas if replica.partition == partition), None)

    def stop(self) -> None:
        """Fetch no more."""
        for replica in self.replicas:
            self._log.unfollow(replica.source)

    def stop_final(self) -> None:
        """Fetch no more of the partitions whose last marker was applied: their topic may go."""
        for replica in self.replicas:
            if replica.position.is_final:
                self._log.unfollow(replica.source)

    def freeze(self) -> None:
        """Fetch no more, for good: the changelog cannot be followed on, and what is stored stays as it is."""
        self.stop()
        self.is_frozen = True
        self.lacking = frozenset()

    def update(self, manifest: Manifest) -> None:
        """Take a manifest of the same changelog, with more schemas perhaps."""
        self.manifest = manifest
        self._decoder = RowDecoder(self._table, manifest.value_schemas)
        for replica in self.replicas:
            replica.decoder = self._decoder

    def note_facts(self, facts: TopicFacts) -> None:
        """Take what a later look saw."""
        self.facts = facts
        for replica in self.replicas:
            replica.end_offset = max(facts.end_offsets[replica.partition], replica.position.next_offset)

    @property
    def is_live(self) -> bool:
        """Return whether every partition that is to be here may be served."""
        return self._is_share_known and not self.lacking and self.has_only_live

    @property
    def has_only_live(self) -> bool:
        """Return whether every partition that is here may be served."""
        return all(replica.is_live for replica in self.replicas)

    @property
    def is_closed(self) -> bool:
        """Return whether the last marker of every partition that is here was applied: nothing more will come."""
        return all(replica.position.is_final for replica in self.replicas)

    @property
    def was_answered(self) -> bool:
        """Return whether clients may have had rows of it: here, before a restart, or of another gateway."""
        is_alone = self._share.is_alone
        return not is_alone or not self.is_new or any(replica.is_live for replica in self.replicas)

    @property
    def rows_applied(self) -> int:
        """Return how many changes were applied since the start."""
        return sum(replica.rows_applied - self._rows_at_start.get(replica, 0) for replica in self.replicas)

    @property
    def stale_records(self) -> int:
        """Return how many records were older than what was stored."""
        return sum(replica.stale_records for replica in self.replicas)

    @property
    def offsets_left(self) -> int:
        """Return how many offsets are left to the barriers."""
        return sum(max(0, replica.barrier - replica.position.next_offset) for replica in self.replicas)

    def rows_per_second(self, now_s: float) -> float:
        """Return the mean rate of applied rows since the start."""
        return self.rows_applied / max(now_s - self.started_s, 1e-3)

    def seconds_left(self, now_s: float) -> float:
        """Return how long the restore takes at the mean rate of offsets; 0 when nothing is known."""
        done = sum(each.position.next_offset - self._offsets_at_start.get(each, 0) for each in self.replicas)
        rate = done / max(now_s - self.started_s, 1e-3)
        return self.offsets_left / rate if rate > 0 else 0.0


def partitions(manifest: Manifest) -> Sequence[Partition]:
    """Return all partitions of a manifest."""
    return [Partition(number) for number in range(manifest.partition_count)]


def stored_positions(store: StoreWriter, store_id: StoreId, manifest: Manifest) -> list[Position | None]:
    """Return the positions that the store has, one of each partition."""
    with store.snapshot() as snapshot:
        return [snapshot.position(store_id, partition) for partition in partitions(manifest)]


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
    return TopicFacts(manifest.changelog_topic_id, (Offset(0),) * len(ends), ends, delete_retention_ms=0)


def lack_of(new: GenerationReplica, old: GenerationReplica) -> str | None:
    """Return what `new` lacks to take the place of `old` without going back in time; None when it may.

    The last markers of `old` say which source records its rows were made from. Topics that the job of `new` does not
    read do not count.
    """
    if not new.is_live:
        return "it is being restored"
    if old.is_frozen and not old.is_closed:
        return None
    for replica in old.replicas:
        if not replica.position.is_final:
            return f"partition {replica.partition} of generation {old.manifest.generation} has no last marker yet"
    wanted: dict[tuple[str, int], int] = {}
    for replica in old.replicas:
        for at, next_offset in replica.position.source_offsets.items():
            wanted[at] = max(next_offset, wanted.get(at, 0))
    read = {source.topic for source in new.manifest.sources}
    for (topic, source_partition), next_offset in wanted.items():
        for replica in new.replicas if topic in read else ():
            if replica.position.source_offsets.get((topic, source_partition), 0) < next_offset:
                return (
                    f"its partition {replica.partition} has no marker yet for offset {next_offset} of partition "
                    f'{source_partition} of source topic "{topic}"'
                )
    return None
