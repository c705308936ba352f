"""Turns the records of a topic that others write into changes for a store, beside `records.py` of our own changelogs.

A record is a row (a key and a value), a delete (a key and no value, or an envelope that says so), or poison: skipped
and counted. Nobody marks progress there, no run writes, no marker ends it. A row's version is the record's offset, as
each key is in one partition alone.

How fresh a partition is: an end that was seen at a time and is reached proves that all before that time is here
(`EndTimes`). What the records say of their times is of producers' clocks, or of events long ago.

Compaction may look at a record at once, so what was not read as it came is history only where no offset is missing.

Decision: docs/decisions/0093-topics-of-others.md
"""

from collections.abc import Callable
from operator import itemgetter

from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.foreign.framing import SchemaIds
from tablegate.gateway.contract.foreign.topics import ForeignRows
from tablegate.gateway.contract.rows import NO_KEY, UndecodableRecord
from tablegate.gateway.contract.types import Offset, Partition, make_version
from tablegate.gateway.kafka.border import TIME_MS_MAX
from tablegate.gateway.kafka.log import Record
from tablegate.gateway.replication.records import Batch, split_expired
from tablegate.gateway.stores.base import Change, Position
from tablegate.v1.changelog_pb2 import Manifest

_change = tuple.__new__  # Change(...) costs twice as much, a million times a restore
# These are asked of each record of a restore, and cost a third of what Python asks for.
_KEY_AND_VALUE: Callable[[Record], tuple[bytes | None, bytes | None]] = itemgetter(1, 2)
_SCHEMA_IDS: Callable[[Record], SchemaIds | None] = itemgetter(5)
IN_TOUCH_S = 60.0  # since an end was reached: compaction has hardly had time for what came since


class ForeignReader:
    """Reads the records of one generation of a table, of all its partitions. As `RecordReader`."""

    def __init__(self, table: Table, manifest: Manifest) -> None:
        self._rows = ForeignRows(table, manifest)
        self._generation = manifest.generation
        self._expiry = table.expiry

    def read(self, records: list[Record], position: Position, partition: Partition, *, passed_ms: int) -> Batch:
        """Return what records of a partition that follow on a position come to.

        `passed_ms`: a time that is over by Kafka's clock.
        """
        batch = Batch([], position.source_offsets, position.as_of_ms, is_final=False)
        next_offset, append, generation = position.next_offset, batch.changes.append, self._generation
        pairs = [*map(_KEY_AND_VALUE, records)]
        if self._rows.reads_headers and any(map(_SCHEMA_IDS, records)):
            rows = self._rows.read_all_with_ids(pairs, [*map(_SCHEMA_IDS, records)], partition)
        else:
            rows = self._rows.read_all(pairs, partition)
        for (offset, _, _, _, time_ms, _), found in zip(records, rows, strict=True):
            if offset != next_offset:
                batch.last_repeat = offset  # what was between may have been another row of a key that comes later
            next_offset = Offset(offset + 1)
            if isinstance(found, Exception):
                batch.skipped.append((_reason(found), offset))
                continue
            key, row = found
            version = make_version(generation, offset)
            append(_change(Change, (offset, key, version, row, time_ms if 0 <= time_ms <= TIME_MS_MAX else 0)))
        if self._expiry is not None and batch.changes:
            batch.changes, strange = split_expired(batch.changes, self._expiry, now_us=passed_ms * 1_000)
            batch.skipped += [(NO_KEY, offset) for offset in strange]
        return batch


def _reason(error: Exception) -> str:
    # A mistake of ours in one record is no reason to serve none of the others.
    is_theirs = isinstance(error, UndecodableRecord)
    return str(error) if is_theirs else f"reading it failed with {type(error).__name__}"


class EndTimes:
    """Where a partition ended when the brokers were asked, until that is reached."""

    def __init__(self, end_offset: Offset, asked_ms: int) -> None:
        self._ends: list[tuple[Offset, int]] = []
        self.note(end_offset, asked_ms)

    def note(self, end_offset: Offset, asked_ms: int) -> None:
        """Record where the partition ended when the brokers were asked; -1: they did not say."""
        if end_offset < 0:
            return
        # Two are enough: the one that is waited for, however far behind the partition is, and the newest.
        self._ends = [*self._ends[:1], (end_offset, asked_ms)]

    def as_of_ms(self, next_offset: Offset) -> int:
        """Return the time up to which all is here, by the ends that a position has come to; 0: by none."""
        reached = [end for end in self._ends if end[0] <= next_offset]
        self._ends = [end for end in self._ends if end not in reached]
        return max((asked_ms for _, asked_ms in reached), default=0)
