"""One manifest, followed into one store id: a replica for each partition, and how far they all are."""

from collections.abc import Sequence

from gateway.contract.catalogue import Table
from gateway.contract.rows import RowDecoder
from gateway.contract.types import Offset, Partition, StoreId
from gateway.replication.log import Clock, Log, Source, TopicFacts
from gateway.replication.replica import Replica, SkippedRecords
from gateway.stores.base import Phase, Position, StoreWriter
from gateway.v1.changelog_pb2 import Manifest


class Following:
    """The replicas of a table's partitions. They are fetched from the moment this is made, until `stop`.

    `caught_up_ms`: when the store was last known to have the whole changelog. `is_new`: the store id has no rows yet.
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
        skipped: SkippedRecords,
        clock: Clock,
        caught_up_ms: int,
        is_new: bool,
    ) -> None:
        self.manifest = manifest
        self.caught_up_ms = caught_up_ms
        self.is_frozen = False
        self._is_new = is_new
        self.store_id = store_id
        self.life_id = life_id
        self.facts = facts
        self.started_s = clock.monotonic_s()
        self.restored_s: float | None = None
        self._table = table
        self._log = log
        decoder = RowDecoder(table, manifest.value_schemas)
        self.replicas: list[Replica] = []
        for partition in partitions(manifest):
            replica = Replica(
                store=store,
                store_id=store_id,
                source=Source(manifest.changelog_topic, partition),
                generation=manifest.generation,
                decoder=decoder,
                position=stored_position(store, store_id, partition) or first_position(facts, partition),
                barrier=facts.end_offsets[partition],
                skipped=skipped,
                expiry=table.expiry,
                now_ms=clock.now_ms,
            )
            self.replicas.append(replica)
        self.offsets_at_start = self._offsets_done()
        for replica in self.replicas:
            if not replica.position.is_final:
                log.follow(replica.source, replica.position.next_offset)

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

    def update(self, manifest: Manifest) -> None:
        """Take a manifest of the same changelog, with more schemas perhaps."""
        self.manifest = manifest
        decoder = RowDecoder(self._table, manifest.value_schemas)
        for replica in self.replicas:
            replica.decoder = decoder

    def note_facts(self, facts: TopicFacts) -> None:
        """Take what a later look saw."""
        self.facts = facts
        for replica, end_offset in zip(self.replicas, facts.end_offsets, strict=True):
            replica.end_offset = max(end_offset, replica.position.next_offset)

    @property
    def is_live(self) -> bool:
        """Return whether every partition may be served."""
        return all(replica.is_live for replica in self.replicas)

    @property
    def is_closed(self) -> bool:
        """Return whether the last marker of every partition was applied: the store has all of the generation."""
        return all(replica.position.is_final for replica in self.replicas)

    @property
    def was_answered(self) -> bool:
        """Return whether clients may have had rows of it, here or before a restart."""
        return not self._is_new or any(replica.is_live for replica in self.replicas)

    @property
    def rows_applied(self) -> int:
        """Return how many changes were applied since the start."""
        return sum(replica.rows_applied for replica in self.replicas)

    @property
    def stale_records(self) -> int:
        """Return how many records were older than what was stored."""
        return sum(replica.stale_records for replica in self.replicas)

    @property
    def offsets_left(self) -> int:
        """Return how many offsets are left to the barriers."""
        return sum(max(0, replica.barrier - replica.position.next_offset) for replica in self.replicas)

    def _offsets_done(self) -> int:
        return sum(replica.position.next_offset for replica in self.replicas)

    def rows_per_second(self, now_s: float) -> float:
        """Return the mean rate of applied rows since the start."""
        return self.rows_applied / max(now_s - self.started_s, 1e-3)

    def seconds_left(self, now_s: float) -> float:
        """Return how long the restore takes at the mean rate of offsets; 0 when nothing is known."""
        rate = (self._offsets_done() - self.offsets_at_start) / max(now_s - self.started_s, 1e-3)
        return self.offsets_left / rate if rate > 0 else 0.0


def partitions(manifest: Manifest) -> Sequence[Partition]:
    """Return all partitions of a manifest."""
    return [Partition(number) for number in range(manifest.partition_count)]


def stored_position(store: StoreWriter, store_id: StoreId, partition: Partition) -> Position | None:
    """Return the position that the store has."""
    with store.snapshot() as snapshot:
        return snapshot.position(store_id, partition)


def first_position(facts: TopicFacts, partition: Partition) -> Position:
    """Return where a restore from nothing starts."""
    start: Offset = facts.start_offsets[partition]
    return Position(start, 0, Phase.RESTORING, start)


def closed_facts(manifest: Manifest, positions: Sequence[Position | None]) -> TopicFacts | None:
    """Return the topic of a generation that is stored up to its last markers; None for one that is not.

    All of it is here, so nothing needs its topic any more, whatever became of that. Where the topic starts is not
    known: whoever would restore from these facts stays short of the end until it has read the topic itself.
    """
    ends = tuple(position.next_offset for position in positions if position is not None and position.is_final)
    if len(ends) < manifest.partition_count:
        return None
    return TopicFacts(manifest.changelog_topic_id, (Offset(0),) * len(ends), ends, delete_retention_ms=0)


def lack_of(new: Following, old: Following) -> str | None:
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
