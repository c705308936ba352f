"""tablegate.internal.v1.TransferService: gives the rows of a partition to another gateway of the cluster.

No snapshot stays open, as it would pin pages for as long as the transfer takes: rows are read in many, by key, and each
is as it was at the first position or later. The other gateway follows the changelog from that position on, and drops by
their versions the changes that its rows have already. So after the last position it has what is here.

Who asks shows a forward token, as for any call between gateways; without one nothing is given.

Decision: docs/decisions/0147-rows-come-from-another-gateway.md
"""

import struct
from collections.abc import AsyncIterator
from hashlib import sha256
from typing import Any

from tablegate.gateway.cluster.parts import TRANSFER_PATH
from tablegate.gateway.contract.catalogue import Catalogue
from tablegate.gateway.contract.lineage import Place, is_of_another_log, place_at
from tablegate.gateway.contract.tokens import TokenSigner
from tablegate.gateway.contract.types import Offset, Partition, StoreId
from tablegate.gateway.query.call import Call, Methods, StreamMethod
from tablegate.gateway.query.errors import ForeignForward, PartitionUnavailable, ShuttingDown, StoreAway
from tablegate.gateway.query.requests import parse
from tablegate.gateway.query.service import table_accesses
from tablegate.gateway.query.serving import NowMs, TableAccess, wall_clock_ms
from tablegate.gateway.stores.base import Position, Snapshot, StoredRows, StoreReader, StoreUnavailable
from tablegate.gateway.stores.lmdb import layout
from tablegate.gateway.stores.notifier import Notifier
from tablegate.gateway.telemetry.measures import Measures
from tablegate.internal.v1.transfer_pb2 import TransferRequest, TransferResponse

PART_BYTES = 256 * 1024  # read in one snapshot, as of a Scan: some milliseconds
REPAIRS_MAX = 10_000  # more of them than that are not transferred, nor is their partition


def transfer_methods(
    catalogue: Catalogue,
    store: StoreReader,
    signer: TokenSigner,
    notifier: Notifier,
    *,
    now_ms: NowMs = wall_clock_ms,
    part_bytes: int = PART_BYTES,
    measures: Measures | None = None,
) -> Methods:
    """Return the method by which other gateways get rows of `store`, which is LMDB; `measures`: where it is counted."""
    measured = Measures() if measures is None else measures
    accesses = table_accesses(catalogue, store, signer, notifier, ends=None, router=None, now_ms=now_ms)

    async def transfer(data: bytes, call: Call) -> AsyncIterator[bytes]:
        if call.forwarded is None:
            raise ForeignForward("is missing")
        request: Any = parse(TransferRequest, data)
        access = accesses.get(request.table)
        if access is None:
            raise PartitionUnavailable(request.table, None, "no contract here has it")
        scope = access.scope(call.forwarded)
        partition = Partition(request.partition)
        if scope.partitions != (partition,):
            raise ForeignForward("is for another partition")
        outgoing = Outgoing(access, request, partition, part_bytes)
        try:
            await call.turn()
            yield outgoing.begin(store).SerializeToString()
            while not outgoing.is_done:
                await call.turn()
                if call.draining:
                    raise ShuttingDown
                yield outgoing.next(store).SerializeToString()
        except StoreUnavailable as error:
            raise StoreAway from error
        finally:
            name = access.table.name
            measured.transfers[name, "out", "done" if outgoing.is_done else "failed"] += 1
            measured.transferred_rows[name, "out"] += outgoing.rows

    return {TRANSFER_PATH: StreamMethod(transfer, checks_forward_token=True)}


class Outgoing:
    """The rows of a partition, part by part: `begin`, then `next` until it `is_done`. `rows`: how many were read.

    Both raise `PartitionUnavailable` where the partition is none to be given, or is no more; and `StoreUnavailable`.
    """

    def __init__(self, access: TableAccess, request: TransferRequest, partition: Partition, part_bytes: int) -> None:
        self._access = access
        self._request = request
        self._partition = partition
        self._part_bytes = part_bytes
        self.rows = 0
        self.is_done = False
        self._place = Place(Offset(0))
        self._store_id: StoreId | None = None  # of the first part
        self._digest = sha256()
        self._after: bytes | None = None

    def begin(self, store: StoreReader) -> TransferResponse:
        """Return the first part: where the partition is, and its repairs."""
        with store.snapshot() as snapshot:
            first, store_id = self._position(snapshot)
            repairs = snapshot.repairs(store_id, self._partition, limit=REPAIRS_MAX + 1)
        if len(repairs) > REPAIRS_MAX:
            raise self._unavailable(f"more than {REPAIRS_MAX} of its keys are to be repaired")
        part = TransferResponse(first_position=layout.pack_position(first, 0))
        for repair in repairs:
            part.repairs.add(key=repair.key, offset=repair.offset, version=repair.version)
        return part

    def next(self, store: StoreReader) -> TransferResponse:
        """Return the rows that follow; behind them the last part: where the partition is now."""
        with store.snapshot() as snapshot:
            position, store_id = self._position(snapshot)
            rows = snapshot.stored_rows(store_id, self._partition, after=self._after, bytes_max=self._part_bytes)
        if not rows.keys:
            self.is_done = True
            last = layout.pack_position(position, 0)
            return TransferResponse(last_position=last, rows=self.rows, digest=self._digest.digest())
        self._after = rows.keys[-1]
        self.rows += len(rows.keys)
        part = _part_of(rows)
        self._digest.update(part.keys)
        self._digest.update(part.values)
        return part

    def _position(self, snapshot: Snapshot) -> tuple[Position, StoreId]:
        """Return where the partition is, and of which store id; raise where it is not LIVE, or not what was asked for.

        Between two parts it may have been restored, as its changelog had lost a tail: what was read before may be gone.
        """
        request, access = self._request, self._access
        served = access.served(snapshot)
        state, manifest = served.state, served.manifest
        if request.format != layout.FORMAT_VERSION:
            raise self._unavailable("rows are stored in another format here")
        if (request.generation, request.changelog_topic_id) != (served.generation, manifest.changelog_topic_id):
            raise self._unavailable("another generation is served here")
        if (request.row_digest, request.retention_us) != (state.row_digest, state.retention_us):
            raise self._unavailable("its rows are stored by another contract here")
        position = access.live(snapshot, served, self._partition)
        is_restored = self._store_id not in (None, served.store_id) or position.next_offset < self._place.next_offset
        if is_restored or is_of_another_log(self._place, position.lineage):
            raise self._unavailable("it began anew")
        self._store_id, self._place = served.store_id, place_at(position.lineage, position.next_offset)
        return position, served.store_id

    def _unavailable(self, why: str) -> PartitionUnavailable:
        return PartitionUnavailable(self._request.table, self._partition, why)


def _part_of(rows: StoredRows) -> TransferResponse:
    keys, values = rows
    lengths = struct.Struct(f"<{len(keys)}I").pack
    return TransferResponse(
        key_lengths=lengths(*map(len, keys)),
        keys=b"".join(keys),
        value_lengths=lengths(*map(len, values)),
        values=b"".join(values),
    )
