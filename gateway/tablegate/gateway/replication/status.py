"""What is said of the tables: to readers of this gateway (`gateway_status`), to other gateways (`announcement`).

Both name the phase of a replica, which says whether it is answered from. The status names the states, too.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tablegate.gateway.replication.partitions import GenerationReplica, PartitionReplica
from tablegate.gateway.replication.states import GenerationState, PartitionState, TableState
from tablegate.gateway.replication.table import TableReplicator
from tablegate.gateway.stores.base import Phase
from tablegate.v1 import cluster_pb2, status_pb2
from tablegate.v1.cluster_pb2 import GenerationAnnouncement, TableAnnouncement
from tablegate.v1.status_pb2 import GatewayStatus, GenerationStatus, GetStatusResponse, PartitionStatus, TableStatus

PHASES = {
    Phase.RESTORING: cluster_pb2.REPLICA_PHASE_RESTORING,
    Phase.LIVE: cluster_pb2.REPLICA_PHASE_LIVE,
    Phase.CATCHING_UP: cluster_pb2.REPLICA_PHASE_CATCHING_UP,
}
TABLE_STATES: Mapping[TableState, Any] = {
    state: status_pb2.TableState.Value(f"TABLE_STATE_{state.name}") for state in TableState
}
GENERATION_STATES: Mapping[GenerationState, Any] = {
    state: status_pb2.GenerationState.Value(f"GENERATION_STATE_{state.name}") for state in GenerationState
}
PARTITION_STATES: Mapping[PartitionState, Any] = {
    state: status_pb2.PartitionState.Value(f"PARTITION_STATE_{state.name}") for state in PartitionState
}


def announcement(table: TableReplicator, *, replicas: int) -> TableAnnouncement:
    """Return what is here of a table, but for partitions that are being revoked; `replicas` are wanted of each."""
    announced = TableAnnouncement(
        table=table.table.name, replicas=replicas, refused_generation=table.refused_generation
    )
    if table.serving is not None:
        announced.serving.CopyFrom(_announced(table.serving))
    if table.building is not None:
        announced.building.CopyFrom(_announced(table.building))
    return announced


def _announced(generation: GenerationReplica) -> GenerationAnnouncement:
    replicas = [replica for replica in generation.replicas if replica.state is not PartitionState.REVOKING]
    return GenerationAnnouncement(
        generation=generation.manifest.generation,
        partitions=[replica.partition for replica in replicas],
        phases=[PHASES[replica.position.phase] for replica in replicas],
        next_offsets=[replica.position.next_offset for replica in replicas],
        partition_count=generation.manifest.partition_count,
        changelog_topic_id=generation.manifest.changelog_topic_id,
    )


def gateway_status(
    tables: Iterable[TableReplicator],
    *,
    now_ms: int,
    now_s: float,
    kafka_reachable: bool,
    gateway_id: str = "",
    gateways: Sequence[GatewayStatus] = (),
) -> GetStatusResponse:
    """Return the status of a gateway; one that stands alone has no `gateway_id`."""
    status = GetStatusResponse(kafka_reachable=kafka_reachable, gateway_id=gateway_id, gateways=gateways)
    status.tables.extend(_table_status(table, now_s) for table in tables)
    status.beat_time.FromMilliseconds(now_ms)
    return status


def _table_status(table: TableReplicator, now_s: float) -> TableStatus:
    status = TableStatus(
        table=table.table.name,
        problem=table.problem,
        poison_records=table.skipped.total,
        state=TABLE_STATES[table.state],
        generations=_generation_statuses(table),
    )
    if table.caught_up_ms:
        status.caught_up_time.FromMilliseconds(table.caught_up_ms)
    if table.generations.manifest is not None:
        status.manifest.CopyFrom(table.generations.manifest)
    serving = table.serving
    if serving is not None:
        status.serving = serving.is_live
        status.partitions.extend(_partition_status(replica) for replica in serving.replicas)
    restoring = table.building or table.serving
    if restoring is not None and not restoring.is_live:
        status.restore_rows_per_second = restoring.progress.rows_per_second(now_s)
        status.restore_seconds_left = restoring.progress.seconds_left(now_s)
    return status


def _generation_statuses(table: TableReplicator) -> list[GenerationStatus]:
    """Return the generations that are followed, discovered or refused, the oldest first."""
    known = {
        each.manifest.generation: GenerationStatus(
            state=GENERATION_STATES[each.machine.state],
            waits_for=table.generations.unmet if each is table.building else "",
            assigned=sorted(each.pending),
        )
        for each in table.generations.followed()
    }
    if table.manifest is not None and table.manifest.generation not in known:
        state = GENERATION_STATES[GenerationState.DISCOVERED]
        known[table.manifest.generation] = GenerationStatus(state=state, waits_for=table.problem)
    if table.refused_generation:
        state = GENERATION_STATES[GenerationState.REFUSED]
        known[table.refused_generation] = GenerationStatus(state=state, waits_for=table.problem)
    for number, status in known.items():
        status.generation = number
    return [known[number] for number in sorted(known)]


def _partition_status(replica: PartitionReplica) -> PartitionStatus:
    status = PartitionStatus(
        partition=replica.partition,
        phase=PHASES[replica.position.phase],
        next_offset=replica.position.next_offset,
        end_offset=replica.end_offset,
        state=PARTITION_STATES[replica.state],
    )
    status.as_of_time.FromMilliseconds(replica.position.as_of_ms)
    return status
