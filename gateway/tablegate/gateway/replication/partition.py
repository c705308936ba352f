"""A replica: one partition of a changelog, applied to a store. Plain code over records.

    RESTORING, CATCHING_UP ──(next offset has reached the end offset seen when it opened, or the last marker)──► LIVE

It is served only while LIVE: before, a key that exists may not be there yet. One that was live not long ago CATCHES UP,
and its history goes on. What comes after the last marker of its generation is not applied: the next generation may lack
it.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from google.protobuf.message import DecodeError
from tablegate.gateway.contract.keys import KEY_BYTES_MAX
from tablegate.gateway.contract.rows import RowDecoder, UndecodableRecord
from tablegate.gateway.contract.types import COMPACTION_LAG_MS, Offset, Partition, StoreId
from tablegate.gateway.contract.versions import VERSION_BYTES
from tablegate.gateway.contract.windows import Expiry
from tablegate.gateway.kafka.log import Fetched, Record, TopicPartition
from tablegate.gateway.replication.retention import split_expired
from tablegate.gateway.stores.base import Change, Phase, Position, StoreWriter
from tablegate.v1.changelog_pb2 import ProgressMarker

HISTORY_RESTORED_MS = COMPACTION_LAG_MS // 2  # younger changes have not been compacted, by any clock

_logger = logging.getLogger("tablegate.gateway.replication")
_change = tuple.__new__  # Change(...) costs twice as much, a million times a restore
_LATE = "row comes after the last marker of its generation"
_FOREIGN_KEY = "key is too short for the table's key columns"


class Poison(Exception):
    """A record that cannot be applied; the message is the reason, without data."""


@dataclass(slots=True)
class SkippedRecords:
    """The poison of a table, by reason. Each reason is logged once."""

    table: str
    reasons: Counter[str] = field(default_factory=Counter)

    def count(self, reason: str, source: TopicPartition, offset: Offset) -> None:
        """Count a record."""
        self.reasons[reason] += 1
        if self.reasons[reason] == 1:
            _logger.warning(
                "skipped a record: %s (more of this kind are counted, not logged)",
                reason,
                extra={"table": self.table, "topic": source.topic, "partition": source.partition, "offset": offset},
            )

    @property
    def total(self) -> int:
        """Return how many records were skipped."""
        return self.reasons.total()


@dataclass(slots=True)
class _Batch:
    """What records come to, before it is stored."""

    changes: list[Change]
    source_offsets: Mapping[tuple[str, int], int]
    as_of_ms: int
    is_final: bool
    skipped: list[tuple[str, Offset]] = field(default_factory=list)


def _count_old(changes: Sequence[Change], now_ms: int) -> int:
    """Return how many of the changes, the oldest, are no good for a history.

    They may have had compaction take the rows that they took the place of, which subscribers may have.
    """
    young_ms = now_ms - HISTORY_RESTORED_MS
    return max((number for number, change in enumerate(changes, start=1) if change.time_ms < young_ms), default=0)


def _phase(position: Position, barrier: Offset) -> Phase:
    """Return the phase of a replica that is at `position`: not yet at the barrier, it is what it was."""
    if position.is_final or position.next_offset >= barrier:
        return Phase.LIVE
    return Phase.RESTORING if position.phase is Phase.RESTORING else Phase.CATCHING_UP


class PartitionReplica:
    """Follows one partition into the store. One thread; only `position` and `barrier` are read by others."""

    def __init__(
        self,
        *,
        store: StoreWriter,
        store_id: StoreId,
        source: TopicPartition,
        generation: int,
        decoder: RowDecoder,
        position: Position,
        barrier: Offset,
        skipped: SkippedRecords,
        expiry: Expiry | None,
        now_ms: Callable[[], int],
    ) -> None:
        self.source = source
        self.barrier = barrier
        self.decoder = decoder
        self.end_offset = barrier
        self.rows_applied = 0
        self.stale_records = 0
        self._store = store
        self._store_id = store_id
        self._generation = generation
        self._generation_bytes = generation.to_bytes(4, "big")
        self._skipped = skipped
        self._expiry = expiry
        self._now_ms = now_ms
        if position.as_of_ms < now_ms() - HISTORY_RESTORED_MS and position.phase is not Phase.RESTORING:
            position = position.in_phase(Phase.RESTORING)  # what comes has been compacted, perhaps: it is no history
        self.position = replace(position, phase=_phase(position, barrier))
        store.apply(store_id, source.partition, [], self.position)

    @property
    def partition(self) -> Partition:
        """Return the partition's number."""
        return self.source.partition

    @property
    def is_live(self) -> bool:
        """Return whether the replica may be served."""
        return self.position.phase is Phase.LIVE

    def apply(self, fetched: Fetched) -> None:
        """Apply what was fetched, whole or, with an exception of the store's, not at all."""
        batch = self._read(fetched.records)
        if self._expiry is not None and batch.changes:
            batch.changes, foreign = split_expired(batch.changes, self._expiry, now_us=self._now_ms() * 1_000)
            batch.skipped += [(_FOREIGN_KEY, offset) for offset in foreign]
        position = self.position.moved_to(max(fetched.next_offset, self.position.next_offset), batch.as_of_ms)
        position = replace(position, source_offsets=batch.source_offsets, is_final=batch.is_final)
        position = replace(position, phase=Phase.LIVE if self.is_live else _phase(position, self.barrier))
        if position != self.position or batch.changes:
            self._apply(batch.changes, position)
        self.position = position
        self.end_offset = max(self.end_offset, position.next_offset)
        for reason, offset in batch.skipped:
            self._skipped.count(reason, self.source, offset)

    def _apply(self, changes: list[Change], position: Position) -> None:
        """Store changes and position. Where this ends a restore, the history begins, with what is young enough."""
        if self.position.phase is Phase.RESTORING and position.phase is Phase.LIVE:
            old = _count_old(changes, self._now_ms())
            at = changes[old].offset if old < len(changes) else position.next_offset
            restored = replace(position, next_offset=at, is_final=position.is_final and old == len(changes))
            self._put(changes[:old], restored.in_phase(Phase.RESTORING))
            changes = changes[old:]
        self._put(changes, position)

    def _put(self, changes: list[Change], position: Position) -> None:
        applied, stale = self._store.apply(self._store_id, self.partition, changes, position)
        self.rows_applied += applied
        self.stale_records += len(stale)

    def _read(self, records: list[Record]) -> _Batch:
        """Turn records into changes. The loop runs for each record of a restore: keep it short."""
        batch = _Batch([], self.position.source_offsets, self.position.as_of_ms, self.position.is_final)
        decode, generation_bytes, append = self.decoder.decode, self._generation_bytes, batch.changes.append
        left = iter(records)
        for record in () if batch.is_final else left:
            offset, key, value, version, time_ms = record
            try:
                if (
                    key
                    and version is not None
                    and len(version) == VERSION_BYTES
                    and version[:4] == generation_bytes
                    and len(key) <= KEY_BYTES_MAX
                ):
                    row = None if value is None else decode(value)
                    append(_change(Change, (offset, key, version, row, time_ms)))
                elif key == b"":
                    self._read_marker(value, batch)
                    if batch.is_final:
                        batch.as_of_ms = time_ms
                        break
                else:
                    raise Poison(self._why_not_a_row(record))
            except (Poison, UndecodableRecord) as error:
                batch.skipped.append((str(error), offset))
        if records and not batch.is_final:
            batch.as_of_ms = records[-1].time_ms
        batch.skipped += [(_LATE, record.offset) for record in left if record.key != b""]
        return batch

    def _read_marker(self, value: bytes | None, batch: _Batch) -> None:
        """Take a progress marker: no source offset goes back, and those of the last marker count alone."""
        try:
            marker = ProgressMarker.FromString(value or b"")
        except DecodeError:
            raise Poison("progress marker does not parse") from None
        if marker.generation != self._generation:
            raise Poison("progress marker of another generation")
        offsets = {} if marker.final else dict(batch.source_offsets)
        for topic in marker.sources:
            for partition, next_offset in topic.next_offsets.items():
                at = (topic.topic, partition)
                offsets[at] = max(next_offset, offsets.get(at, next_offset))
        batch.source_offsets, batch.is_final = offsets, marker.final

    def _why_not_a_row(self, record: Record) -> str:
        if record.key is None:
            return "key is null"
        if len(record.key) > KEY_BYTES_MAX:
            return f"key is longer than {KEY_BYTES_MAX} bytes"
        if record.version is None:
            return "version header is missing"
        if len(record.version) != VERSION_BYTES:
            return f"version header has not {VERSION_BYTES} bytes"
        return "version is of another generation"
