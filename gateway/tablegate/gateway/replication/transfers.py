"""Rows of a partition from another gateway that has it LIVE, in place of a restore from the changelog's start.

1. A partition is ASSIGNED, and its changelog is long. Another gateway answers from it: that one is asked. Where none
   does, the newest snapshot file is read, which is what a gateway gave once.
2. Rows are stored as they come. The partition has no position yet, so nobody reads them, and after a crash they are
   found and removed as any rows without a position.
3. All have come, and their number and digest are right. Each is as it was at the first position or later, none later
   than the last. The first position is stored, RESTORING: from it the changelog is followed, as by any restore.

A transfer that ends otherwise is thrown away, and the next gateway is asked, or an older file read, in the end the
changelog. So is one whose last position cannot be proved to be in the changelog: rows of a tail that brokers have lost
since would never go away. One whose first position is of no use any more ends with its first part.

Decision: docs/decisions/0147-rows-come-from-another-gateway.md
Decision: docs/decisions/0161-snapshots-have-names-and-no-pointer.md
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from io import BytesIO
from itertools import islice
from operator import ge, itemgetter
from typing import NamedTuple, Protocol

from tablegate.gateway.cluster.assignment import Assignment, Holder, IncomingParts, OriginAway, TransferFailed
from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.foreign.topics import rows_digest
from tablegate.gateway.contract.keys import KEY_BYTES_MAX
from tablegate.gateway.contract.lineage import Place, place_at
from tablegate.gateway.contract.types import Offset, Partition, StoreId, Version
from tablegate.gateway.kafka.log import Clock
from tablegate.gateway.replication.snapshots import SnapshotSource
from tablegate.gateway.stores.base import Phase, Position, Repair, StoredRows, StoreUnavailable, StoreWriter
from tablegate.gateway.stores.lmdb import layout
from tablegate.gateway.stores.snapshots.format import SnapshotName
from tablegate.gateway.telemetry.measures import Measures
from tablegate.internal.v1.transfer_pb2 import TransferRequest, TransferResponse
from tablegate.v1.changelog_pb2 import Manifest

OFFSETS_MIN = 20_000  # of a changelog: what is shorter is read at once
AT_ONCE = 2  # partitions of a table: more would only share the same network and disk
PARTS_AT_ONCE = 4  # stored between two fetches: as many rows as of a restore
SILENT_S = 10.0  # without a part: the other gateway hangs
ASK_AGAIN_S = 60.0  # a gateway for a partition: what it gave may have been of no use
FOUND_S = 5.0  # what files there are is asked again after that, not each moment for each partition that waits

_KINDS = frozenset((layout.IS_ROW, layout.IS_TOMBSTONE))
_kind = itemgetter(layout.KIND_AT)

_logger = logging.getLogger("tablegate.gateway.replication")


class TransferClient(Protocol):
    """Asks other gateways for rows. One thread."""

    def ask(self, holder: Holder, request: TransferRequest) -> IncomingParts:
        """Begin a transfer."""


class _Transfer:
    """One transfer, on the side that gets. `repairs` and `first` are of its first part, `last` of its last.

    `why_useless`: of a first position, why rows from there on are of no use; "": they are.
    """

    def __init__(
        self, origin: Holder | SnapshotName, parts: IncomingParts, now_s: float, why_useless: Callable[[Position], str]
    ) -> None:
        self.origin = origin
        self.is_useless = False
        self.rows = 0
        self.first: Position | None = None
        self.last: Position | None = None
        self.repairs: Sequence[Repair] = ()
        self._parts = parts
        self._why_useless = why_useless
        self._digest = sha256()
        self._heard_s = self.begun_s = now_s
        self._refused = StoredRows([], [])  # by a full store
        self._last_key = b""

    def close(self) -> None:
        self._parts.close()

    def step(self, store: StoreWriter, store_id: StoreId, partition: Partition, now_s: float) -> None:
        """Store what has come; raise `TransferFailed`, or what the store raises: then it is stored the next time."""
        rows, self._refused = self._refused, StoredRows([], [])
        if rows.keys:  # no more are taken into memory, and who sends them waits
            self._heard_s = now_s
        else:
            self._receive_some(rows, now_s)
        if rows.keys:
            assert self.first is not None  # else no row was received
            try:
                store.put_transferred(store_id, partition, rows, time_ms=self.first.as_of_ms)
            except StoreUnavailable:
                self._refused = rows
                raise
            except Exception as error:  # of the index keys of a damaged row: its digest comes last
                raise TransferFailed(f"it has a row that cannot be read ({type(error).__name__})") from error

    def _receive_some(self, rows: StoredRows, now_s: float) -> None:
        """Add the rows of the parts that have come; raise `TransferFailed` where none has come for too long."""
        for _ in range(PARTS_AT_ONCE):
            if self.last is not None or (part := self._parts.next()) is None:
                break
            self._heard_s = now_s
            self._receive(part, rows)
        if self.last is None and now_s > self._heard_s + SILENT_S:
            raise OriginAway("it does not go on")

    def _receive(self, part: TransferResponse, rows: StoredRows) -> None:
        """Add the rows of a part, or note what else it says."""
        if (self.first is None) is not bool(part.first_position):
            raise TransferFailed("its parts came in another order")
        if part.first_position:
            self.first = _position_of(part.first_position)
            self.repairs = [Repair(each.key, Offset(each.offset), Version(each.version)) for each in part.repairs]
            why = self._why_useless(self.first)
            if why:
                self.is_useless = True
                raise TransferFailed(why)
            return
        if part.last_position:
            if (part.rows, part.digest) != (self.rows, self._digest.digest()):
                raise TransferFailed("its rows are not those that were sent")
            self.last = _position_of(part.last_position)
            return
        self._digest.update(part.keys)
        self._digest.update(part.values)
        keys, key_lengths = _split(part.key_lengths, part.keys)
        values, value_lengths = _split(part.value_lengths, part.values)
        if len(keys) != len(values):
            raise TransferFailed("it has not as many values as keys")
        if not keys:
            raise TransferFailed("a part of it is empty")
        # The store puts keys behind those before them, and would lose one that is not.
        if keys[0] <= self._last_key or any(map(ge, keys, islice(keys, 1, None))):
            raise TransferFailed("its keys are not in order")
        is_short = min(value_lengths) < layout.ROW_AT
        if is_short or max(key_lengths) > KEY_BYTES_MAX or not _KINDS.issuperset(map(_kind, values)):
            raise TransferFailed("it has what is no row")
        self._last_key = keys[-1]
        rows.keys.extend(keys)
        rows.values.extend(values)
        self.rows += len(keys)


def _position_of(data: bytes) -> Position:
    try:
        return layout.unpack_position(data)[0]
    except Exception as error:
        raise TransferFailed("a position in it cannot be read") from error


def _split(packed: bytes, data: bytes) -> tuple[list[bytes], tuple[int, ...]]:
    """Return the pieces of `data`, and the length of each, which `packed` has."""
    if len(packed) % 4:
        raise TransferFailed("its lengths cannot be read")
    lengths = tuple(memoryview(packed).cast("I"))
    if sum(lengths) != len(data):
        raise TransferFailed("it has not as many bytes as it says")
    # As a file that is read: slices, one after the other, take three times as long.
    return list(map(BytesIO(data).read, lengths)), lengths


@dataclass(frozen=True, slots=True)
class Transferred:
    """Rows that are stored, and the repairs among them. They are followed on from `first`, and are whole at `end`."""

    first: Position
    end: Place
    repairs: Sequence[Repair]


Asked = dict[tuple[int, Partition, str], float]
"""Generation, partition, and gateway or snapshot file → seconds of the monotonic clock."""

WhyUseless = Callable[[Partition, Position], str]
"""Partition and first position of its rows → why the changelog cannot be followed from there; "": it can."""


class _LeftFiles(NamedTuple):
    """The snapshot files of a partition that may be read, and until when that is good."""

    left: Sequence[SnapshotName]
    until_s: float


class NewTransfers(Protocol):
    """Makes the transfers of a table's generation."""

    def __call__(self, *, manifest: Manifest, store_id: StoreId, why_useless: WhyUseless) -> "Transfers":
        """Return them."""


class Transfers:
    """The transfers of one generation into its store id. `ended`: partitions whose rows are there, without a position.

    `failed`: partitions of which rows are to be removed; who removes them empties it.
    `client` is None where no other gateway is asked, `snapshots` where there are no snapshot files. `offsets_min`: a
    shorter changelog is read. `asked`: which gateway was asked, or which file was read, for which partition of which
    generation, and when; of all transfers of a table. `measures`: where those that have ended are counted.
    """

    def __init__(
        self,
        client: TransferClient | None,
        *,
        table: Table,
        manifest: Manifest,
        store: StoreWriter,
        store_id: StoreId,
        assignment: Assignment,
        clock: Clock,
        asked: Asked,
        why_useless: WhyUseless,
        snapshots: SnapshotSource | None = None,
        offsets_min: int = OFFSETS_MIN,
        measures: Measures | None = None,
    ) -> None:
        self.ended: dict[Partition, Transferred] = {}
        self.failed: set[Partition] = set()
        has_no_use = store.is_shared or manifest.atomic
        self._client = None if has_no_use else client
        self._snapshots = None if has_no_use else snapshots
        self._why_useless = why_useless
        self._table = table
        self._manifest = manifest
        self._store = store
        self._store_id = store_id
        self._assignment = assignment
        self._clock = clock
        self._offsets_min = offsets_min
        self._measures = Measures() if measures is None else measures
        self._at_work: dict[Partition, _Transfer] = {}
        self._asked = asked
        self._holders: dict[Partition, Sequence[Holder]] = {}  # those that are left, as of the version
        self._files: dict[Partition, _LeftFiles] = {}
        self._version = -1

    @property
    def is_under_way(self) -> bool:
        """Return whether rows are coming."""
        return bool(self._at_work)

    def wanted(self, partition: Partition, offsets: int) -> bool:
        """Return whether rows of a partition that is not here are to come from elsewhere, are coming, or may be.

        `offsets`: how many its changelog has.
        """
        if partition in self._at_work:
            return True
        if partition in self.ended or offsets < self._offsets_min:
            return False
        left = self._left(partition)
        return left is None or bool(left)

    def _left(self, partition: Partition) -> Sequence[Holder | SnapshotName] | None:
        """Return what rows of a partition may come from and have not yet, what is to be asked next first.

        Gateways that have it are further than any snapshot file. None: the files are not known yet.
        """
        holders = self._left_holders(partition)
        if holders or self._snapshots is None:
            return holders[partition % len(holders) :] if holders else ()  # each gives some
        now_s = self._clock.monotonic_s()
        known = self._files.get(partition)
        if known is None or now_s >= known.until_s:
            found = self._snapshots.found(self._request(partition))
            if found is None:
                return None
            left = [each for each in found if not self._was_asked(partition, each, now_s - ASK_AGAIN_S)]
            known = self._files[partition] = _LeftFiles(left, now_s + FOUND_S)
        return known.left

    def _left_holders(self, partition: Partition) -> Sequence[Holder]:
        if self._client is None:
            return ()
        if self._version != self._assignment.version:
            self._version = self._assignment.version
            self._holders.clear()
        found = self._holders.get(partition)
        if found is None:
            generation, before_s = self._manifest.generation, self._clock.monotonic_s() - ASK_AGAIN_S
            holders = self._assignment.holders(self._table.name, partition, generation=generation)
            found = [each for each in holders if not self._was_asked(partition, each, before_s)]
            self._holders[partition] = found
        return found

    def _was_asked(self, partition: Partition, origin: Holder | SnapshotName, before_s: float) -> bool:
        """Return whether rows of a partition were asked for there, and not before a time."""
        asked_s = self._asked.get((self._manifest.generation, partition, _name_of(origin)), -math.inf)
        return asked_s >= before_s

    def begin(self, wanted: Iterator[Partition]) -> None:
        """Ask for partitions, as many as may come at once."""
        for partition in wanted:
            if len(self._at_work) >= AT_ONCE:
                return
            if partition not in self._at_work and (left := self._left(partition)):
                self._ask(partition, left[0])

    def _ask(self, partition: Partition, origin: Holder | SnapshotName) -> None:
        self._note_asked(partition, origin)
        request = self._request(partition)
        if isinstance(origin, Holder):
            assert self._client is not None, "it has named the gateway"
            parts = self._client.ask(origin, request)
        else:
            assert self._snapshots is not None, "it has found the file"
            parts = self._snapshots.read(origin, request)
        why_useless = partial(self._why_useless, partition)
        self._at_work[partition] = _Transfer(origin, parts, self._clock.monotonic_s(), why_useless)

    def _note_asked(self, partition: Partition, origin: Holder | SnapshotName) -> None:
        self._asked[self._manifest.generation, partition, _name_of(origin)] = self._clock.monotonic_s()
        self._holders.pop(partition, None)
        self._files.pop(partition, None)

    def _request(self, partition: Partition) -> TransferRequest:
        return TransferRequest(
            table=self._table.name,
            partition=partition,
            generation=self._manifest.generation,
            changelog_topic_id=self._manifest.changelog_topic_id,
            row_digest=rows_digest(self._table, self._manifest),
            retention_us=self._table.retention_us or 0,
            format=layout.FORMAT_VERSION,
        )

    def step(self) -> None:
        """Store what has come; raise `StoreFull`."""
        for partition, transfer in list(self._at_work.items()):
            now_s = self._clock.monotonic_s()
            try:
                transfer.step(self._store, self._store_id, partition, now_s)
            except TransferFailed as error:
                self._log(logging.WARNING, f"no rows of partition {partition} are used: {error}", transfer)
                if transfer.is_useless and isinstance(transfer.origin, SnapshotName) and self._snapshots is not None:
                    for older in self._snapshots.found(self._request(partition)) or ():
                        self._note_asked(partition, older)
                self.failed.add(partition)
                self.stop(partition)
                self._count("failed", transfer, problem=str(error), was_away=isinstance(error, OriginAway))
                continue
            if transfer.last is not None:
                assert transfer.first is not None
                self._log(
                    logging.INFO,
                    f"partition {partition} has come from {_kind_of(transfer.origin)}",
                    transfer,
                    rows=transfer.rows,
                    seconds=round(now_s - transfer.begun_s, 1),
                )
                self.stop(partition)
                self._count("done", transfer)
                # Incarnations are of a gateway: what has expired there is not in the history here.
                first = replace(transfer.first, phase=Phase.RESTORING, incarnation_id=0)
                end = place_at(transfer.last.lineage, transfer.last.next_offset)
                self.ended[partition] = Transferred(first, end, transfer.repairs)

    def _count(self, result: str, transfer: _Transfer, *, problem: str = "", was_away: bool = False) -> None:
        name, measures = self._table.name, self._measures
        if isinstance(transfer.origin, Holder):
            measures.transfers[name, "in", result] += 1
            measures.transferred_rows[name, "in"] += transfer.rows
        else:
            measures.snapshots[name, "read", result] += 1
            measures.snapshot_rows[name, "read"] += transfer.rows
            assert self._snapshots is not None, "it has found the file"
            self._snapshots.note(transfer.origin, problem=problem, was_away=was_away)

    def stop(self, partition: Partition) -> bool:
        """Want no more of a partition; return whether there may be rows of it."""
        transfer = self._at_work.pop(partition, None)
        if transfer is not None:
            transfer.close()
        return self.ended.pop(partition, None) is not None or transfer is not None

    def stop_all(self) -> None:
        """Want no more of any."""
        for partition in [*self._at_work, *self.ended]:
            self.stop(partition)

    def _log(self, level: int, message: str, transfer: _Transfer, **more: object) -> None:
        name = self._table.name
        kind = "gateway" if isinstance(transfer.origin, Holder) else "snapshot"
        extra = {"table": name, kind: _name_of(transfer.origin), **more}
        _logger.log(level, 'table "%s": %s', name, message, extra=extra)


def _name_of(origin: Holder | SnapshotName) -> str:
    """Return the name of a gateway, or of a snapshot file, which has slashes."""
    return origin.gateway_id if isinstance(origin, Holder) else origin.file.name


def _kind_of(origin: Holder | SnapshotName) -> str:
    return "another gateway" if isinstance(origin, Holder) else "a snapshot file"
