"""The store protocol: rows, history and positions of the partitions on this machine.

One process writes a store (the replicator); any number of processes read it (the workers), each read a snapshot. A
batch of changes, its history entries and the new position are one transaction. A store is disposable: the changelog is
the truth. Gateways that share a store (Redis) keep one copy of a partition together: rows, history and position are
common; phase, tables and status are each gateway's own.

What a store keeps for a partition (of one incarnation of a table, its `StoreId`):
  rows       key bytes → version, deleted or not, row bytes. A deleted row stays as a versioned tombstone, so that a
             stale record cannot bring it back; `drop_tombstones` removes old ones.
  history    the bounded run of latest changes, by offset; rows that expired are in it as deletes
  position   next offset, as-of time, phase, incarnation, the lineage of what was read, and the bookmark of the newest
             progress marker
  repairs    the keys whose newest record is not their last in the changelog: compaction would keep the wrong one
  indexes    of each index of the table, the entries of its rows, and whether they are there of all rows. Entries change
             with their row, in the same transaction, from the moment on that the writer is told of the index
             (`keep_indexes`); those of rows that were there before are added in small steps (`build_indexes`).

Decision: docs/decisions/0115-index-entries-beside-their-rows.md
Decision: docs/decisions/0022-history-keeps-the-row-before.md
"""

import secrets
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple, Protocol

from typing_extensions import override

from tablegate.gateway.contract.indexes import Index, RowIndexes
from tablegate.gateway.contract.lineage import Lineage
from tablegate.gateway.contract.types import Offset, Partition, StoreId, Version
from tablegate.internal.v1.store_pb2 import TableState
from tablegate.v1 import cluster_pb2

HISTORY_CHANGES_MAX = 100_000  # a partition; about a minute of the busiest table


class StoredPartition(NamedTuple):
    """A partition of one generation of a table, as a store names it."""

    store_id: StoreId
    partition: Partition


class Phase(IntEnum):
    """What a replica of a partition does, as the replicator leaves it in the store. Numbers as in the status.

        RESTORING ──► LIVE ◄──► CATCHING_UP        (any of them ──► RESTORING, where the partition begins anew)

    RESTORING: its rows come from the beginning of the changelog, or from another gateway or a snapshot file and then
    the changelog; it is in any state in between. Nobody is answered from it, and it has no history: the changes of a
    restore are nobody's news.
    LIVE: it has all that was in the changelog when it became live. Queries are answered from it, and from it alone.
    CATCHING_UP: it was live and may be behind now, as the replicator has started again or it came to another gateway.
    It is not answered from, but its history goes on: who followed it while it was live misses nothing.
    """

    RESTORING = cluster_pb2.REPLICA_PHASE_RESTORING
    LIVE = cluster_pb2.REPLICA_PHASE_LIVE
    CATCHING_UP = cluster_pb2.REPLICA_PHASE_CATCHING_UP


@dataclass(frozen=True, slots=True)
class Position:
    """How far a partition is. `as_of_ms`: nothing committed before it is missing (LogAppendTime, ms since 1970).

    `incarnation_id`, where rows expire: drawn when a restore of the partition begins, so that one that left and came
    back is another incarnation. What expired between is in the history of neither. 0 where rows stay until they are
    deleted.
    """

    next_offset: Offset
    as_of_ms: int
    phase: Phase
    history_start: Offset  # history holds every change at or after this offset
    source_offsets: Mapping[tuple[str, int], int] = field(default_factory=dict)  # next offsets, of the newest marker
    is_final: bool = False  # that marker was its generation's last: nothing after it belongs to the partition
    incarnation_id: int = 0
    lineage: Lineage = ()  # which leader epochs wrote what was read

    def moved_to(self, next_offset: Offset, as_of_ms: int) -> "Position":
        """Return this position further on; time does not go back."""
        return replace(self, next_offset=next_offset, as_of_ms=max(self.as_of_ms, as_of_ms))

    def in_restore(self) -> "Position":
        """Return this position with no history: that begins behind it, or later where it is to."""
        return replace(self, history_start=max(self.history_start, self.next_offset))

    def in_phase(self, phase: Phase) -> "Position":
        """Return this position in another phase."""
        return replace(self, phase=phase)


class Change(NamedTuple):
    """A row written (`row` is its bytes) or deleted (`row` is None) by the record at `offset`."""

    offset: Offset
    key: bytes
    version: Version
    row: bytes | None
    time_ms: int


class PastChange(NamedTuple):
    """A change of the history, and the row that it took the place of; `before` is None where there was none."""

    offset: Offset
    key: bytes
    version: Version
    row: bytes | None
    time_ms: int
    before: bytes | None


class Repeat(Change):
    """A stale change with the version and the content that are stored, as of a job that runs a batch again."""


class Conflict(Change):
    """A stale change with the stored version and other content: one of the two is wrong, and nobody knows which."""


class Repair(NamedTuple):
    """A key whose newest record, at `offset`, has another one behind it in the changelog."""

    key: bytes
    offset: Offset
    version: Version


class StoredRow(NamedTuple):
    """What a store holds at a key; `row` is None for a tombstone."""

    version: Version
    row: bytes | None


class StoredRows(NamedTuple):
    """Keys, and of each the value as LMDB has it: apart, as a million pairs are slow to make."""

    keys: list[bytes]
    values: list[bytes]


class StoreUsage(NamedTuple):
    """What a store takes on this machine; `entries` by kind, tombstones among the rows."""

    size_bytes: int
    free_bytes: int  # of its disk
    entries: Mapping[str, int]


class StoreUnavailable(Exception):
    """The store cannot be read or written now; the message says what to do."""


class StoreCorrupt(StoreUnavailable):
    """The store's files are damaged: it must be wiped and restored."""


class StoreFull(StoreUnavailable):
    """No room for the batch, which was not applied; what is stored stays readable."""


class StoreWentBack(StoreUnavailable):
    """The store lost what was written to it: go on from what it has now. Nothing of the refused write is stored."""


class Snapshot(Protocol):
    """One moment of a store, in one thread. Keep it open for milliseconds only: it pins pages."""

    def table(self, name: str) -> TableState | None:
        """Return what the store knows of table `name`; None if nothing. Callers do not change it."""

    def position(self, store_id: StoreId, partition: Partition) -> Position | None:
        """Return the position; None for a partition that this store does not have."""

    def get(self, store_id: StoreId, partition: Partition, key: bytes) -> bytes | None:
        """Return the row's bytes; None if the key has no row (a tombstone is no row). An empty row is b""."""

    def get_stored(self, store_id: StoreId, partition: Partition, key: bytes) -> StoredRow | None:
        """Return what is stored at the key, tombstones too; None if nothing ever was."""

    def get_many(self, store_id: StoreId, partition: Partition, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the rows of `keys`, as `get`, in the order of `keys`; a key may repeat."""

    def range(
        self,
        store_id: StoreId,
        partition: Partition,
        *,
        start: bytes,
        end: bytes | None,
        limit: int,
        descending: bool = False,
    ) -> list[tuple[bytes, bytes]]:
        """Return at most `limit` (key, row bytes) with start <= key < end (None: to the last), in byte order.

        Descending: the highest keys first. Tombstones are left out and do not count.
        """

    def index_range(
        self,
        store_id: StoreId,
        partition: Partition,
        index: Index,
        *,
        start: bytes,
        end: bytes | None,
        limit: int,
        after: bytes | None = None,
        descending: bool = False,
    ) -> list[tuple[bytes, bytes]] | None:
        """Return at most `limit` (entry, row bytes) of an index, in the order of entries; None: it is not whole here.

        Those whose column bytes are start <= bytes < end (None: to the last), and of them, those behind the entry
        `after`. Descending: the highest entries first, and `after` is the one that they are below. What was cut counts
        as it is.
        """

    def history(
        self, store_id: StoreId, partition: Partition, *, start: Offset, limit: int, skip: int = 0
    ) -> list[PastChange]:
        """Return at most `limit` changes with offset >= start, in order of offset, from `history_start` on.

        Several may have one offset: what expired before the record of that offset came, and then that record's. Whoever
        has had `skip` of those of `start`, but not the record's, goes on behind them.
        """

    def status(self) -> bytes:
        """Return what `set_status` kept last; b"" before."""

    def usage(self) -> StoreUsage | None:
        """Return what the store takes; None of one that is not on this machine. It costs microseconds."""

    # Of stores that no other gateway writes to, for gateways that are to have the same partition.

    def stored_rows(
        self, store_id: StoreId, partition: Partition, *, after: bytes | None, bytes_max: int
    ) -> StoredRows:
        """Return rows and tombstones in order of keys: those behind a key (None: the first ones).

        As many as have `bytes_max` together, one at least; none where no more follow.
        """

    def repairs(self, store_id: StoreId, partition: Partition, *, limit: int) -> list[Repair]:
        """Return at most `limit` keys whose newest record is to be appended again, in any order."""


class StoreReader(Protocol):
    """A process's view of a store. Threads: each uses snapshots of its own."""

    def snapshot(self) -> AbstractContextManager[Snapshot]:
        """Open a snapshot; raise `StoreUnavailable`, or `StoreCorrupt`."""

    def is_current(self) -> bool:
        """Return False once the store was wiped and made anew: what this reader sees is old, open another."""

    def close(self) -> None:
        """Let go of the store. Repeats do nothing."""


class Applied(NamedTuple):
    """What `apply` did: changes applied; stale ones, which were dropped, by offset, oldest first.

    Stale is what is not newer: `Repeat` and `Conflict` tell those of the stored version. What another gateway had
    applied already is neither.
    """

    applied: int
    stale: list[Change]


class Copy(NamedTuple):
    """Where a store has the rows of a changelog: the same store id and incarnation for all gateways that share it."""

    store_id: StoreId
    incarnation_id: int


class Joined(NamedTuple):
    """What other gateways keep of a partition, CATCHING_UP or RESTORING; `is_kept`: one of them is there."""

    position: Position
    is_kept: bool


class StoreWriter(StoreReader, Protocol):
    """The store for its one writing process, from one thread. `changes_max`: of a batch, so that readers do not wait.

    `is_shared`: other gateways may write to it too, the same changes of the same changelog.
    """

    changes_max: int
    is_shared: bool

    def put_table(self, name: str, state: TableState) -> None:
        """Keep what is known of table `name`, in place of what was known."""

    def new_store_id(self) -> StoreId:
        """Return a number that no rows of this store have had. The first is 1."""

    def copy_of(self, changelog: str, *, unwanted: Collection[StoreId]) -> Copy:
        """Return the copy that gateways share of what is named `changelog`, but none of `unwanted`; else a new one."""

    def join(self, store_id: StoreId, partition: Partition) -> Joined | None:
        """Take part in a partition that other gateways keep here; None where none does."""

    def expel(self, store_id: StoreId, partition: Partition) -> None:
        """Take a partition from all gateways that keep it here: they notice, as of a loss."""

    def store_ids(self) -> set[StoreId]:
        """Return the numbers that have a position or rows."""

    def keep_indexes(self, store_id: StoreId, indexes: RowIndexes) -> None:
        """Keep these indexes of the rows of `store_id` from now on, and no others; said by each process that writes.

        In a partition without a position they are whole from its first row on. In others, those that were not kept
        before are not whole until `build_indexes` says so. Raise as `apply` does.
        """

    def build_indexes(self, store_id: StoreId, partition: Partition, *, limit: int) -> bool:
        """Add entries of at most `limit` rows to indexes that are not whole; or remove so many of one that is gone.

        Return True when nothing is left to do. A crash, or other work in between, leaves the rest for a repeat.
        Raise as `apply` does.
        """

    def apply(self, store_id: StoreId, partition: Partition, changes: Sequence[Change], position: Position) -> Applied:
        """Apply `changes` (in order of offset) and move to `position`, in one transaction.

        A change is applied only if its version is newer than what is stored at its key, tombstones included; others
        are returned as stale. Applied changes enter the history but while `position.phase` is RESTORING; the history
        keeps the newest `HISTORY_CHANGES_MAX` of a partition, and `history_start` of the stored position follows from
        that (while RESTORING it is that of `position`, or `position.next_offset` where that is higher). Where that of
        `position` is higher than what is stored, the history begins anew there: changes before it, also those of this
        batch, are not in it. Several changes of one key may come in one batch. Of what gateways share, the incarnation
        is that of whoever was first.
        A stale change behind the record that is stored makes its key pending in `repairs`, unless it is a `Repeat`:
        that is the newest record from then on. So is an applied change: neither needs a repair. Of one version with
        two contents, the one that came first stays.
        Raise `StoreFull` or `StoreCorrupt`; then nothing of the batch is stored.
        """

    def expire(self, store_id: StoreId, partition: Partition, keys: Sequence[bytes], *, time_ms: int) -> int:
        """Remove the rows of `keys`, in one transaction; return how many there were. No tombstone or repair stays.

        But while the stored position is RESTORING they enter the history, in the order of `keys`: as deletes at the
        position's next offset, with the versions that they had. The position stays the same, but for `history_start`.
        """

    def repairs(self, store_id: StoreId, partition: Partition, *, limit: int) -> list[Repair]:
        """Return at most `limit` keys whose newest record is to be appended again, in any order."""

    def put_transferred(self, store_id: StoreId, partition: Partition, rows: StoredRows, *, time_ms: int) -> None:
        """Add what `stored_rows` of another gateway's store gave, part by part, to a partition that has no position.

        Tombstones count as written at `time_ms`. Nobody reads rows before `end_transfer`: a crash leaves some that are
        to be dropped. Raise as `apply` does.
        """

    def end_transfer(
        self, store_id: StoreId, partition: Partition, repairs: Sequence[Repair], position: Position
    ) -> None:
        """Keep repairs, and a position that is RESTORING, of a partition whose rows are there. Raise as `apply`."""

    def drop_tombstones(self, store_id: StoreId, partition: Partition, *, before_ms: int, limit: int) -> int:
        """Remove at most `limit` tombstones whose record is older than `before_ms`; return how many.

        Pending repairs of their keys stay.
        """

    def drop(self, store_id: StoreId, *, limit: int) -> bool:
        """Remove the positions of `store_id`, then at most `limit` of its rows and changes; return True at the end.

        Repeat until True: a crash, or other work in between, leaves the rest for a repeat.
        """

    def drop_partition(self, store_id: StoreId, partition: Partition, *, limit: int) -> bool:
        """Remove one partition of `store_id`, as `drop` does all: its position first, so that nobody reads the rest.

        Return True at the end, and at once where there is nothing. Nothing is applied to it in between. What other
        gateways keep stays.
        """

    def set_status(self, status: bytes) -> None:
        """Keep the gateway's status for readers."""


class OwnStore(StoreWriter):
    """What stores have in common to which no other gateway writes."""

    changes_max = 20_000  # enough that a transaction costs little beside its rows, few enough to stay small
    is_shared = False

    @override
    def copy_of(self, changelog: str, *, unwanted: Collection[StoreId]) -> Copy:
        return Copy(self.new_store_id(), secrets.randbits(64))

    @override
    def join(self, store_id: StoreId, partition: Partition) -> Joined | None:
        return None

    @override
    def expel(self, store_id: StoreId, partition: Partition) -> None:
        raise AssertionError("no other gateway has it")
