"""Where a table is: which partition a key is in, and which gateways have that."""

from collections.abc import Iterator
from itertools import zip_longest
from typing import NamedTuple

from tablegate.gateway.contract.placement import Candidate, ranked
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.serving import ServedGeneration, TableAccess
from tablegate.gateway.stores.base import Snapshot
from tablegate.v1.changelog_pb2 import KeyColumn
from tablegate.v1.cluster_pb2 import REPLICA_PHASE_UNSPECIFIED, GatewayRecord, ReplicaPhase
from tablegate.v1.status_pb2 import (
    REPLICA_ROLE_OWNER,
    REPLICA_ROLE_STANDBY,
    PartitionReplicas,
    Replica,
    ReplicaRole,
    TableMetadata,
)


class _Announced(NamedTuple):
    """What a gateway says of a partition that it has."""

    record: GatewayRecord
    phase: ReplicaPhase
    next_offset: int

    @property
    def candidate(self) -> Candidate:
        """Return the gateway, as it is ranked."""
        return Candidate(self.record.gateway_id, self.record.zone)

    def replica(self, role: ReplicaRole | None) -> Replica:
        """Return it as a client sees it; without a role it is not asked."""
        record = self.record
        return Replica(
            gateway_id=record.gateway_id,
            endpoint=record.endpoint,
            zone=record.zone,
            role=role,
            phase=self.phase,
            next_offset=self.next_offset,
        )


class Whereabouts:
    """Who has the partitions of a served table: as all gateways have announced it, or by the store of a lone one.

    For as long as the snapshot is open.
    """

    def __init__(self, access: TableAccess, snapshot: Snapshot, served: ServedGeneration) -> None:
        self._access = access
        self._snapshot = snapshot
        self._served = served
        self._announced: dict[Partition, dict[str, _Announced]] = {}
        for record in access.router.directory.records:
            for partition, replica in _announced_by(record, access.table.name, served.generation):
                self._announced.setdefault(partition, {})[record.gateway_id] = replica

    def replicas(self, partition: Partition) -> list[Replica]:
        """Return the replicas of a partition: the owner, then the standbys, best first; then those that are not asked.

        The order of the last is that in which they would own it.
        """
        router = self._access.router
        if not router.is_clustered:
            return self._ours(partition)
        announced = dict(self._announced.get(partition, {}))
        replicas: list[Replica] = []
        for peer in router.directory.replicas(self._access.table.name, partition, self._served.generation):
            replica = announced.pop(peer.gateway_id)
            replicas.append(replica.replica(REPLICA_ROLE_STANDBY if replicas else REPLICA_ROLE_OWNER))
        others = [replica.candidate for replica in announced.values()]
        ranks = ranked(self._access.table.name, partition, others)
        return replicas + [announced[candidate.gateway_id].replica(None) for candidate in ranks]

    def _ours(self, partition: Partition) -> list[Replica]:
        position = self._snapshot.position(self._served.store_id, partition)
        if position is None:
            return []
        is_live = self._access.is_live(self._snapshot, self._served, partition)
        role = REPLICA_ROLE_OWNER if is_live else None
        return [Replica(role=role, phase=int(position.phase), next_offset=position.next_offset)]  # type: ignore[arg-type]


def _announced_by(record: GatewayRecord, table: str, generation: int) -> Iterator[tuple[Partition, _Announced]]:
    for announced in record.tables:
        for part in (announced.serving, announced.building) if announced.table == table else ():
            if part.generation == generation:
                for number, phase, next_offset in zip_longest(part.partitions, part.phases, part.next_offsets):
                    if number is not None:
                        yield Partition(number), _Announced(record, _known(phase), next_offset or 0)


def _known(phase: ReplicaPhase | None) -> ReplicaPhase:
    """Return what a replica does; UNSPECIFIED where that is not known, or only to gateways of another version."""
    return REPLICA_PHASE_UNSPECIFIED if phase is None or phase not in ReplicaPhase.values() else phase


def table_metadata(access: TableAccess, snapshot: Snapshot) -> TableMetadata:
    """Return where a table is; raise `PartitionUnavailable` where it is not served for want of a manifest."""
    table, served = access.table, access.served(snapshot)
    whereabouts = Whereabouts(access, snapshot, served)
    return TableMetadata(
        table=table.name,
        generation=served.generation,
        # Clients compute partitions by it. Those of a topic that others write are found by other bytes than key bytes.
        partitioner=None if served.manifest.HasField("foreign") else table.partitioner.value,
        partition_count=served.partition_count,
        key=[KeyColumn(name=column.name, type=int(column.type)) for column in table.key],  # type: ignore[arg-type]
        partition_by_count=table.partition_by_count,
        partitions=[
            PartitionReplicas(partition=partition, replicas=whereabouts.replicas(partition))
            for partition in served.partitions
        ],
    )
