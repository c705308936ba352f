"""What this gateway announces of a table."""

from tablegate.gateway.replication.partitions import GenerationReplica
from tablegate.gateway.replication.table import TableReplicator
from tablegate.gateway.stores.base import Phase
from tablegate.v1 import cluster_pb2
from tablegate.v1.cluster_pb2 import HeldGeneration, HeldTable

PHASES = {
    Phase.RESTORING: cluster_pb2.REPLICA_PHASE_RESTORING,
    Phase.LIVE: cluster_pb2.REPLICA_PHASE_LIVE,
    Phase.CATCHING_UP: cluster_pb2.REPLICA_PHASE_CATCHING_UP,
}


def held_table(table: TableReplicator, *, replicas: int) -> HeldTable:
    """Return what is here of a table, but for partitions that are leaving; `replicas` are wanted of each."""
    held = HeldTable(
        table=table.table.name,
        replicas=replicas,
        ready=table.generations.is_ready,
        refused_generation=table.refused_generation,
    )
    if table.serving is not None:
        held.serving.CopyFrom(_held(table.serving))
    if table.building is not None:
        held.building.CopyFrom(_held(table.building))
    return held


def _held(following: GenerationReplica) -> HeldGeneration:
    replicas = [replica for replica in following.replicas if replica.partition not in following.leaving]
    return HeldGeneration(
        generation=following.manifest.generation,
        partitions=[replica.partition for replica in replicas],
        phases=[PHASES[replica.position.phase] for replica in replicas],
        next_offsets=[replica.position.next_offset for replica in replicas],
        partition_count=following.manifest.partition_count,
        changelog_topic_id=following.manifest.changelog_topic_id,
    )
