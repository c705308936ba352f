"""Keeps the rows of an atomic batch together: what is fetched of one is held until its end was fetched, too.

A job writes a batch of an atomic table in one Kafka transaction. In each partition the rows come first, and then a
marker that ends the batch. The brokers give a reader nothing of a transaction before it is committed; but a fetch may
end in the middle of one, as it has a limit. So from the first row behind the last end on, records are held:

    rows, end │ rows, end │ rows …            fetched so far
              applied     │ held

Three things let go of rows without an end:

- What is known to be no batch. Where the committed records of a partition end, no batch is half written. So once all
  before such an end was fetched, a row before it that has no end behind it belongs to no batch; somebody else wrote it.
- Age, while nobody is answered from the partition. Compaction keeps only the last marker, so the ends of old batches
  are gone.
- Size. Jobs write no batch of more than `BATCH_CHANGES_MAX` changes. One that is larger all the same would fill the
  memory, so it is applied in parts, and logged as an error.

Decision: docs/decisions/0073-atomic-batches.md
"""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tablegate.gateway.contract.lineage import Lineage, continued, cut
from tablegate.gateway.contract.types import BATCH_CHANGES_MAX, Offset, is_marker_key
from tablegate.gateway.kafka.border import Marker, Poison, read_marker
from tablegate.gateway.kafka.log import Fetched, Record
from tablegate.gateway.replication.records import HISTORY_RESTORED_MS

BROKEN_OFF = "row of a batch that had no end before the last marker of its generation"

_logger = logging.getLogger("tablegate.gateway.replication")


class Split(NamedTuple):
    """What may be applied, what is held, and the offsets of rows that are dropped: no end of theirs will come."""

    whole: Fetched
    pending: Sequence[Record]
    dropped: Sequence[Offset] = ()


class PendingBatch:
    """The batch of one partition that is fetched in part. One thread.

    `committed_end`: an offset at which committed records ended, so no batch goes over it. `records`: what is held.
    `next_offset`: the first offset that was not fetched.
    """

    def __init__(
        self,
        generation: int,
        *,
        committed_end: Offset,
        next_offset: Offset,
        now_ms: Callable[[], int],
        changes_max: int = BATCH_CHANGES_MAX,
    ) -> None:
        self.committed_end = committed_end
        self.next_offset = next_offset
        self.records: Sequence[Record] = ()
        self._runs: Lineage = ()  # of what is held
        self._generation = generation
        self._now_ms = now_ms
        self._changes_max = changes_max

    def split(self, fetched: Fetched, *, is_live: bool) -> Split:
        """Return what was fetched or held before, in two: whole batches, and the one whose end is awaited.

        It changes nothing, as the store may refuse what is whole: `keep` does. `is_live`: the partition is answered
        from.
        """
        records = [*self.records, *fetched.records] if self.records else fetched.records
        next_offset = max(fetched.next_offset, self.next_offset)
        whole = fetched._replace(records=records, next_offset=next_offset, runs=continued(self._runs, fetched.runs))
        since = self.committed_end if next_offset >= self.committed_end else Offset(0)
        young_ms = 0 if is_live else self._now_ms() - HISTORY_RESTORED_MS
        after_end = self._after_last_end(records)
        first = next(
            (
                at
                for at in range(after_end, len(records))
                if not is_marker_key(records[at].key)
                and records[at].offset >= since
                and records[at].time_ms >= young_ms
            ),
            None,
        )
        if first is None:
            return Split(whole, ())
        final = next((at for at in range(first, len(records)) if self._marker(records[at]).is_final), None)
        if final is not None:
            # The job was killed in the middle of the batch, and somebody else ended its generation. The next one has
            # these rows.
            dropped = [record.offset for record in records[first:final] if not is_marker_key(record.key)]
            markers = [record for record in records[first:final] if is_marker_key(record.key)]
            return Split(whole._replace(records=[*records[:first], *markers, *records[final:]]), (), dropped)
        pending = records[first:]
        if sum(not is_marker_key(record.key) for record in pending) > self._changes_max:
            _logger.error(
                "a batch has more than %d changes, which no job writes: it is applied in parts",
                self._changes_max,
                extra={"topic": fetched.topic_partition.topic, "partition": fetched.topic_partition.partition},
            )
            return Split(whole, ())
        end = pending[0].offset
        return Split(whole._replace(records=records[:first], next_offset=end, runs=cut(whole.runs, end)), pending)

    def keep(self, split: Split, fetched: Fetched) -> None:
        """Hold what was split off: the rest was applied."""
        runs, at = continued(self._runs, fetched.runs), split.whole.next_offset
        self._runs = tuple(run._replace(start=max(run.start, at)) for run in runs if run.end > at)
        self.records = split.pending
        self.next_offset = max(fetched.next_offset, self.next_offset)

    def is_due(self, committed_end: Offset) -> bool:
        """Record where committed records ended; return whether rows are held that are of no batch, as that shows."""
        self.committed_end = max(committed_end, self.committed_end)
        return bool(self.records) and self.records[0].offset < self.committed_end <= self.next_offset

    def _after_last_end(self, records: Sequence[Record]) -> int:
        for at in range(len(records) - 1, -1, -1):
            if is_marker_key(records[at].key) and self._marker(records[at]).ends_batch:
                return at + 1
        return 0

    def _marker(self, record: Record) -> Marker:
        """Return the marker of a record of this generation; an empty one where it is none."""
        if not is_marker_key(record.key):
            return _NO_MARKER
        try:
            marker = read_marker(record.value)
        except Poison:
            return _NO_MARKER
        return marker if marker.generation == self._generation else _NO_MARKER


_NO_MARKER = Marker(generation=0, is_final=False, ends_batch=False, next_offsets={})
