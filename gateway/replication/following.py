"""One manifest, followed into one store id: a replica for each partition, and how far they all are."""

from collections.abc import Sequence

from gateway.contract.catalogue import Table
from gateway.contract.rows import RowDecoder
from gateway.contract.types import Offset, Partition, StoreId
from gateway.replication.log import Log, Source, TopicFacts
from gateway.replication.replica import Replica, SkippedRecords
from gateway.stores.base import Phase, Position, StoreWriter
from gateway.v1.changelog_pb2 import Manifest


class Following:
    """The replicas of a table's partitions. They are fetched from the moment this is made, until `stop`."""

    def __init__(
        self,
        *,
        table: Table,
        manifest: Manifest,
        store_id: StoreId,
        facts: TopicFacts,
        store: StoreWriter,
        log: Log,
        skipped: SkippedRecords,
        started_s: float,
    ) -> None:
        self.manifest = manifest
        self.store_id = store_id
        self.facts = facts
        self.started_s = started_s
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
            )
            self.replicas.append(replica)
        self.offsets_at_start = self._offsets_done()
        for replica in self.replicas:
            log.follow(replica.source, replica.position.next_offset)

    def stop(self) -> None:
        """Fetch no more."""
        for replica in self.replicas:
            self._log.unfollow(replica.source)

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
