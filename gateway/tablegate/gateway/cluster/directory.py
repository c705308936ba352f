"""The directory: which gateways answer from which partitions, as this gateway's replicator knows it."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from google.protobuf.message import DecodeError

from tablegate.gateway.contract.placement import Candidate, live_partitions, ranked
from tablegate.gateway.contract.types import Partition
from tablegate.v1.cluster_pb2 import GatewayRecord
from tablegate.v1.status_pb2 import GetStatusResponse

SWITCH_S = 5.0  # all gateways have switched long before, if they do


class Peer(NamedTuple):
    """A gateway that can be asked; `endpoint` is host:port."""

    gateway_id: str
    endpoint: str
    zone: str


class _AnnouncedGateway(NamedTuple):
    """What a gateway that lives answers from: the generation of each table, and the partitions that are live."""

    peer: Peer
    is_draining: bool
    tables: Mapping[str, tuple[int, frozenset[Partition]]]


class Directory:
    """A worker's view of the gateways, from the status that the replicator leaves in the store. One thread.

    `version` is another one after each change of what it answers.
    """

    def __init__(self, *, switch_s: float = SWITCH_S) -> None:
        self.own_id = ""
        self.version = 0
        self._switch_s = switch_s
        self._status = b""
        self._gateways: tuple[_AnnouncedGateway, ...] = ()
        self._records: tuple[GatewayRecord, ...] = ()
        self._replicas: dict[tuple[str, int, int], tuple[Peer, ...]] = {}
        self._generations: dict[str, frozenset[int]] = {}
        self._switched_s: dict[str, float] = {}

    @property
    def peers(self) -> Sequence[Peer]:
        """Return the gateways that live, this one too."""
        return [gateway.peer for gateway in self._gateways]

    @property
    def records(self) -> Sequence[GatewayRecord]:
        """Return what those that live announced last, with phases and positions, which are no part of `version`."""
        return self._records

    def update(self, status: bytes) -> None:
        """Apply a GetStatusResponse; without a gateway's name in it, this one stands alone."""
        # The replicator writes its status twice a second; mostly it is the same, and there is nothing to parse.
        if status == self._status:
            return
        self._status = status
        try:
            answer = GetStatusResponse.FromString(status)
        except DecodeError:
            return
        # Records hold positions, which change all the time; only what is answered from them is part of `version`.
        self._records = tuple(each.record for each in answer.gateways if each.alive)
        gateways = tuple(_announced(record) for record in self._records)
        if answer.gateway_id != self.own_id or gateways != self._gateways:
            self.own_id, self._gateways = answer.gateway_id, gateways
            # Whatever was ranked may be ranked otherwise now; it is done again when it is asked for.
            self._replicas.clear()
            self.version += 1
            self._record_generations()

    def _record_generations(self) -> None:
        found: dict[str, set[int]] = {}
        for gateway in self._gateways:
            for table, (generation, live) in gateway.tables.items():
                if live:
                    found.setdefault(table, set()).add(generation)
        for table, generations in found.items():
            if self._generations.setdefault(table, frozenset(generations)) != generations:
                self._generations[table] = frozenset(generations)
                self._switched_s[table] = time.monotonic()

    def is_switching(self, table: str) -> bool:
        """Return whether a gateway has gone on to another generation of a table a moment ago: others may be about to.

        Gateways that stay apart, as some refuse the new one, switch no more.
        """
        return time.monotonic() < self._switched_s.get(table, -math.inf) + self._switch_s

    def replicas(self, table: str, partition: Partition, generation: int = 0) -> Sequence[Peer]:
        """Return the gateways that answer from a partition of `generation` (0: of any), best first, ours included."""
        asked = table, partition, generation
        known = self._replicas.get(asked)
        if known is None:
            known = self._replicas[asked] = self._ranked(table, partition, generation)
        return known

    def _ranked(self, table: str, partition: Partition, generation: int) -> tuple[Peer, ...]:
        holders = {each.peer.gateway_id: each for each in self._gateways if _has(each, table, partition, generation)}
        candidates = [Candidate(gateway.peer.gateway_id, gateway.peer.zone) for gateway in holders.values()]
        order = [holders[each.gateway_id] for each in ranked(table, partition, candidates)]
        order.sort(key=lambda gateway: gateway.is_draining)  # they are to go: the others keep their order before them
        return tuple(gateway.peer for gateway in order)


def _announced(record: GatewayRecord) -> _AnnouncedGateway:
    tables = {}
    for table in record.tables:
        tables[table.table] = (table.serving.generation, live_partitions(table.serving))
    return _AnnouncedGateway(Peer(record.gateway_id, record.endpoint, record.zone), record.draining, tables)


def _has(gateway: _AnnouncedGateway, table: str, partition: Partition, generation: int) -> bool:
    serving, live = gateway.tables.get(table, (0, frozenset()))
    return partition in live and generation in (0, serving)
