"""A replica: one partition of a changelog, applied to a store. Plain code over records.

    RESTORING ──(next offset has reached the end offset seen when it opened)──► LIVE

It is served only while LIVE: before, a key that exists may not be there yet.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from google.protobuf.message import DecodeError

from gateway.contract.keys import KEY_BYTES_MAX
from gateway.contract.rows import RowDecoder, UndecodableRecord
from gateway.contract.types import Offset, Partition, StoreId
from gateway.contract.versions import VERSION_BYTES
from gateway.replication.log import Fetched, Record, Source
from gateway.stores.base import Change, Phase, Position, StoreWriter
from gateway.v1.changelog_pb2 import ProgressMarker

_logger = logging.getLogger("gateway.replication")
_change = tuple.__new__  # Change(...) costs twice as much, a million times a restore


class Poison(Exception):
    """A record that cannot be applied; the message is the reason, without data."""


@dataclass(slots=True)
class SkippedRecords:
    """The poison of a table, by reason. Each reason is logged once."""

    table: str
    reasons: Counter[str] = field(default_factory=Counter)

    def count(self, reason: str, source: Source, offset: Offset) -> None:
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
    skipped: list[tuple[str, Offset]] = field(default_factory=list)


class Replica:
    """Follows one partition into the store. One thread; only `position` and `barrier` are read by others."""

    def __init__(
        self,
        *,
        store: StoreWriter,
        store_id: StoreId,
        source: Source,
        generation: int,
        decoder: RowDecoder,
        position: Position,
        barrier: Offset,
        skipped: SkippedRecords,
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
        self.position = replace(position, phase=Phase.LIVE if position.next_offset >= barrier else Phase.RESTORING)
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
        as_of_ms = fetched.records[-1].time_ms if fetched.records else self.position.as_of_ms
        position = self.position.moved_to(max(fetched.next_offset, self.position.next_offset), as_of_ms)
        phase = Phase.LIVE if self.is_live or position.next_offset >= self.barrier else Phase.RESTORING
        position = replace(position, phase=phase, source_offsets=batch.source_offsets)
        if position != self.position or batch.changes:
            applied, stale = self._store.apply(self._store_id, self.partition, batch.changes, position)
            self.rows_applied += applied
            self.stale_records += len(stale)
        self.position = position
        self.end_offset = max(self.end_offset, position.next_offset)
        for reason, offset in batch.skipped:
            self._skipped.count(reason, self.source, offset)

    def _read(self, records: list[Record]) -> _Batch:
        """Turn records into changes. The loop runs for each record of a restore: keep it short."""
        batch = _Batch([], self.position.source_offsets)
        decode, generation_bytes, append = self.decoder.decode, self._generation_bytes, batch.changes.append
        for record in records:
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
                    batch.source_offsets = self._read_marker(value, batch.source_offsets)
                else:
                    raise Poison(self._why_not_a_row(record))
            except (Poison, UndecodableRecord) as error:
                batch.skipped.append((str(error), offset))
        return batch

    def _read_marker(self, value: bytes | None, before: Mapping[tuple[str, int], int]) -> Mapping[tuple[str, int], int]:
        """Return the source offsets with a progress marker's: none goes back."""
        try:
            marker = ProgressMarker.FromString(value or b"")
        except DecodeError:
            raise Poison("progress marker does not parse") from None
        if marker.generation != self._generation:
            raise Poison("progress marker of another generation")
        offsets = dict(before)
        for topic in marker.sources:
            for partition, next_offset in topic.next_offsets.items():
                at = (topic.topic, partition)
                offsets[at] = max(next_offset, offsets.get(at, next_offset))
        return offsets

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
