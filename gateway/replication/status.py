"""The gateway's status, as the replicator knows it."""

from collections.abc import Iterable

from gateway.replication.followed_table import FollowedTable
from gateway.replication.replica import Replica
from gateway.stores.base import Phase
from gateway.v1 import status_pb2
from gateway.v1.status_pb2 import GetStatusResponse, PartitionStatus, TableStatus

_PHASES = {
    Phase.RESTORING: status_pb2.REPLICA_PHASE_RESTORING,
    Phase.LIVE: status_pb2.REPLICA_PHASE_LIVE,
    Phase.CATCHING_UP: status_pb2.REPLICA_PHASE_CATCHING_UP,
}


def gateway_status(
    tables: Iterable[FollowedTable], *, now_ms: int, now_s: float, kafka_reachable: bool
) -> GetStatusResponse:
    """Return the status of a gateway."""
    status = GetStatusResponse(kafka_reachable=kafka_reachable)
    status.tables.extend(_table_status(table, now_s) for table in tables)
    status.beat_time.FromMilliseconds(now_ms)
    return status


def _table_status(table: FollowedTable, now_s: float) -> TableStatus:
    status = TableStatus(table=table.table.name, problem=table.problem, poison_records=table.skipped.total)
    if table.caught_up_ms:
        status.caught_up_time.FromMilliseconds(table.caught_up_ms)
    following = table.serving
    if following is not None:
        status.serving = following.is_live
        status.manifest.CopyFrom(following.manifest)
        status.partitions.extend(_partition_status(replica) for replica in following.replicas)
    restoring = table.building or table.serving
    if restoring is not None and not restoring.is_live:
        status.restore_rows_per_second = restoring.rows_per_second(now_s)
        status.restore_seconds_left = restoring.seconds_left(now_s)
    return status


def _partition_status(replica: Replica) -> PartitionStatus:
    status = PartitionStatus(
        partition=replica.partition,
        phase=_PHASES[replica.position.phase],
        next_offset=replica.position.next_offset,
        end_offset=replica.end_offset,
    )
    status.as_of_time.FromMilliseconds(replica.position.as_of_ms)
    return status
