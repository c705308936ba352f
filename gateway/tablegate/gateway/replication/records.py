"""Turns the records of a changelog into changes for a store. Plain code; it keeps nothing but counts.

A record is a row (a key of the table in the key's partition, a version header of this generation, an Avro value of the
same key or none), a progress marker (an empty key, or that of a run), or poison: it is skipped and counted, as a
gateway that stops at a bad record would serve nothing, and one that stores it would answer falsely of other rows. What
comes after the last marker of a generation is not applied: the next generation may lack it. Rows that have expired are
left out, by a time that Kafka's clock has passed (`PartitionReplica.passed_ms`).

A run of a job writes its number in its rows and markers, and before its first row a marker with a key of its own, which
compaction keeps. Behind that, what has a lower number comes from a job that was frozen, and does not count: its markers
are passed over, and its rows become deletes of the lowest version. A store drops these as stale. So the newest record
of the key is appended again behind it, before compaction removes that.

Decision: docs/decisions/0003-an-empty-key-marks-progress.md
Decision: docs/decisions/0060-a-rows-key-is-checked-at-apply.md
Decision: docs/decisions/0025-no-history-of-what-may-be-compacted.md
Decision: docs/decisions/0080-runs-fence-frozen-jobs.md
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.keys import KEY_BYTES_MAX, InvalidKey
from tablegate.gateway.contract.rows import NO_KEY, RowDecoder, UndecodableRecord
from tablegate.gateway.contract.types import (
    COMPACTION_LAG_MS,
    PARTITIONS_MAX,
    RUN_BYTES,
    VERSION_BYTES,
    Offset,
    Partition,
    is_marker_key,
)
from tablegate.gateway.contract.windows import Expiry
from tablegate.gateway.kafka.border import RUN_MAX, TIME_MS_MAX, Poison, known_time_ms, read_marker
from tablegate.gateway.kafka.log import Record, TopicPartition
from tablegate.gateway.stores.base import Change, Conflict, Position, Repeat

HISTORY_RESTORED_MS = COMPACTION_LAG_MS // 2  # younger changes have not been compacted, by any clock

_logger = logging.getLogger("tablegate.gateway.replication")
_change = tuple.__new__  # Change(...) costs twice as much, a million times a restore
_LOWEST = bytes(VERSION_BYTES - 4)  # the sequence of no row: a job counts from 1
_NO_RUN = bytes(RUN_BYTES)
_LATE = "row comes after the last marker of its generation"
_REPLACED = "progress marker of a run that another one has replaced"
RUN_AT = ("", 0)
"""Where source offsets keep the highest run: as they do, it never goes back, and no topic has this name."""
_OTHER_PARTITION = "key belongs to another partition"


@dataclass(slots=True)
class SkippedRecords:
    """The poison of a table, by reason. Each reason is logged once."""

    table: str
    reasons: Counter[str] = field(default_factory=Counter)
    stale: int = 0  # older than the row that is stored
    conflicting: int = 0  # of the version that is stored, with other content

    def count_stale(self, changes: Sequence[Change], topic_partition: TopicPartition) -> None:
        """Count what a store has dropped; what it has already is neither stale nor a conflict."""
        conflicts = [change for change in changes if isinstance(change, Conflict)]
        self.stale += sum(not isinstance(change, Repeat | Conflict) for change in changes)
        if conflicts and not self.conflicting:
            _logger.error(
                "a record has the version of the row that is here, and other content: what came first stays; the job's "
                "fold depends on the order of its input, or two jobs write (more of this kind are counted, not logged)",
                extra={
                    "table": self.table,
                    "topic": topic_partition.topic,
                    "partition": topic_partition.partition,
                    "offset": conflicts[0].offset,
                },
            )
        self.conflicting += len(conflicts)

    def count(self, reason: str, topic_partition: TopicPartition, offset: Offset) -> None:
        """Count a record."""
        self.reasons[reason] += 1
        if self.reasons[reason] == 1:
            _logger.warning(
                "skipped a record: %s (more of this kind are counted, not logged)",
                reason,
                extra={
                    "table": self.table,
                    "topic": topic_partition.topic,
                    "partition": topic_partition.partition,
                    "offset": offset,
                },
            )

    @property
    def total(self) -> int:
        """Return how many records were skipped."""
        return self.reasons.total()


@dataclass(slots=True)
class Batch:
    """What records come to, before it is stored: changes, the bookmark of the newest marker, and what was skipped.

    `last_repeat`: offset of the last row that a gateway has appended again; -1 where there is none. `marker_ms`: when
    Kafka appended the newest marker; 0 where there is none.
    """

    changes: list[Change]
    source_offsets: Mapping[tuple[str, int], int]
    as_of_ms: int
    is_final: bool
    skipped: list[tuple[str, Offset]] = field(default_factory=list)
    last_repeat: int = -1
    marker_ms: int = 0


class RecordReader:
    """Reads the records of one generation of a table, of all its partitions.

    `decoder` may be replaced by one of more schemas.
    """

    def __init__(self, generation: int, *, table: Table, partition_count: int, decoder: RowDecoder) -> None:
        self.decoder = decoder
        self._table = table
        self._partition_count = partition_count
        self._generation = generation
        self._generation_bytes = generation.to_bytes(4, "big")
        self._expiry = table.expiry

    def read(self, records: list[Record], position: Position, partition: Partition, *, passed_ms: int) -> Batch:
        """Return what records of a partition that follow on a position come to.

        `passed_ms`: a time that is over by Kafka's clock.
        """
        batch = self._decode(records, position)
        self._keep_own(batch, partition)
        if self._expiry is not None and batch.changes:
            now_us = max(passed_ms, batch.as_of_ms) * 1_000
            batch.changes, foreign = split_expired(batch.changes, self._expiry, now_us=now_us)
            batch.skipped += [(NO_KEY, offset) for offset in foreign]
        return batch

    def _keep_own(self, batch: Batch, partition: Partition) -> None:
        """Leave out the changes of keys that belong to another partition: a Get asks for them there."""
        keys = [change[1] for change in batch.changes]
        found = self._table.partitions_of(keys, self._partition_count)
        if found.count(partition) < len(keys):
            changes, batch.changes = zip(batch.changes, found, strict=True), []
            for change, its in changes:
                if its == partition:
                    batch.changes.append(change)
                else:
                    batch.skipped.append((_OTHER_PARTITION, change.offset))

    def _decode(self, records: list[Record], position: Position) -> Batch:
        """Turn records into changes. The loop runs for each record of a restore: keep it short."""
        batch = Batch([], position.source_offsets, position.as_of_ms, position.is_final)
        decode, is_key, append = self.decoder.decode_row, self.decoder.is_key, batch.changes.append
        generation_bytes = self._generation_bytes
        run = position.source_offsets.get(RUN_AT, 0).to_bytes(RUN_BYTES, "big")
        left = iter(records)
        for record in () if batch.is_final else left:
            offset, key, value, version, time_ms, _ = record
            try:
                if version is not None and len(version) == VERSION_BYTES + RUN_BYTES:
                    version, its_run = version[:VERSION_BYTES], version[VERSION_BYTES:]
                    if its_run != run:
                        if its_run < run:
                            value, version = None, version[:4] + _LOWEST
                        elif version[:4] == generation_bytes:
                            _note_run(its_run, batch)
                            run = its_run
                elif version is not None and run != _NO_RUN:
                    batch.last_repeat = offset
                if (
                    key
                    and version is not None
                    and len(version) == VERSION_BYTES
                    and version[:4] == generation_bytes
                    and len(key) <= KEY_BYTES_MAX
                ):
                    if not 0 <= time_ms <= TIME_MS_MAX:
                        time_ms = 0
                    if value is not None:
                        row = decode(key, value)
                    elif is_key(key):
                        row = None
                    else:
                        raise Poison(NO_KEY)
                    append(_change(Change, (offset, key, version, row, time_ms)))
                elif is_marker_key(key):
                    self._read_marker(value, batch)
                    batch.marker_ms = known_time_ms(time_ms)
                    run = batch.source_offsets.get(RUN_AT, 0).to_bytes(RUN_BYTES, "big")
                    if batch.is_final:
                        batch.as_of_ms = known_time_ms(time_ms)
                        break
                else:
                    raise Poison(self._why_not_a_row(record))
            except (Poison, UndecodableRecord) as error:
                batch.skipped.append((str(error), offset))
            # A mistake of ours in one record is no reason to serve none of the others.
            except Exception as error:  # noqa: BLE001
                batch.skipped.append((f"reading it failed with {type(error).__name__}", offset))
        if records and not batch.is_final:
            batch.as_of_ms = known_time_ms(records[-1].time_ms)
        batch.skipped += [(_LATE, record.offset) for record in left if not is_marker_key(record.key)]
        return batch

    def _read_marker(self, value: bytes | None, batch: Batch) -> None:
        """Record a progress marker: no source offset goes back, and those of the last marker count alone."""
        marker = read_marker(value)
        if marker.generation != self._generation:
            raise Poison("progress marker of another generation")
        run = batch.source_offsets.get(RUN_AT, 0)
        if 0 < marker.run < run:
            raise Poison(_REPLACED)
        offsets = {} if marker.is_final else dict(batch.source_offsets)
        if max(run, marker.run):
            offsets[RUN_AT] = max(run, marker.run)
        for at, next_offset in marker.next_offsets.items():
            offsets[at] = max(next_offset, offsets.get(at, next_offset))
        if len(offsets) > PARTITIONS_MAX:
            raise Poison(f"progress markers have more than {PARTITIONS_MAX} source partitions")
        batch.source_offsets, batch.is_final = offsets, marker.is_final

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


def _note_run(run: bytes, batch: Batch) -> None:
    """Record that a run writes: also where compaction has removed the marker before its first row."""
    number = int.from_bytes(run, "big")
    if number > RUN_MAX:
        raise Poison(f"run is beyond {RUN_MAX}")
    batch.source_offsets = {**batch.source_offsets, RUN_AT: number}


def split_expired(changes: Sequence[Change], expiry: Expiry, *, now_us: int) -> tuple[list[Change], list[Offset]]:
    """Return the changes whose rows are not expired, and the offsets of those whose keys are none of the table."""
    kept: list[Change] = []
    foreign: list[Offset] = []
    for change in changes:
        try:
            if expiry.at_us(change.key) > now_us:
                kept.append(change)
        except InvalidKey:
            foreign.append(change.offset)
    return kept, foreign


def count_old(changes: Sequence[Change], now_ms: int, *, last_repeat: int) -> int:
    """Return how many of the changes, the oldest, are no good for a history.

    They may have had compaction remove the rows that they replaced, which subscribers may have. And what a gateway has
    appended again is as old as its first record: compaction may have removed that, and subscribers may have had it.
    """
    young_ms = now_ms - HISTORY_RESTORED_MS
    old = (
        number
        for number, change in enumerate(changes, start=1)
        if change.time_ms < young_ms or change.offset <= last_repeat
    )
    return max(old, default=0)
