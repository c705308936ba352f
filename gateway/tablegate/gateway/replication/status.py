"""The gateway's status, as the replicator knows it."""

from collections.abc import Iterable, Sequence

from tablegate.gateway.replication.announcement import PHASES
from tablegate.gateway.replication.partition import PartitionReplica
from tablegate.gateway.replication.table import TableReplicator
from tablegate.v1.status_pb2 import GatewayStatus, GetStatusResponse, PartitionStatus, TableStatus


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
    status = TableStatus(table=table.table.name, problem=table.problem, poison_records=table.skipped.total)
    if table.caught_up_ms:
        status.caught_up_time.FromMilliseconds(table.caught_up_ms)
    if table.generations.manifest is not None:
        status.manifest.CopyFrom(table.generations.manifest)
    following = table.serving
    if following is not None:
        status.serving = following.is_live
        status.partitions.extend(_partition_status(replica) for replica in following.replicas)
    restoring = table.building or table.serving
    if restoring is not None and not restoring.is_live:
        status.restore_rows_per_second = restoring.rows_per_second(now_s)
        status.restore_seconds_left = restoring.seconds_left(now_s)
    return status


def _partition_status(replica: PartitionReplica) -> PartitionStatus:
    status = PartitionStatus(
        partition=replica.partition,
        phase=PHASES[replica.position.phase],
        next_offset=replica.position.next_offset,
        end_offset=replica.end_offset,
    )
    status.as_of_time.FromMilliseconds(replica.position.as_of_ms)
    return status
