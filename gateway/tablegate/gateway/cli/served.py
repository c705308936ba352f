"""Which tables are served, by the gateway that is asked and by the others of its cluster, as its status says."""

from tablegate.gateway.cluster.directory import Directory
from tablegate.gateway.contract.placement import is_candidate
from tablegate.gateway.contract.types import Partition
from tablegate.v1.cluster_pb2 import REPLICA_PHASE_LIVE, TableAnnouncement
from tablegate.v1.status_pb2 import GetStatusResponse, TableStatus


def directory_of(status: GetStatusResponse) -> Directory:
    """Return the directory that the gateway itself routes by."""
    directory = Directory()
    directory.update(status.SerializeToString())
    return directory


def partition_count(table: TableStatus) -> int:
    """Return how many partitions a table has."""
    return table.manifest.partition_count or len(table.partitions)


def served_tables(status: GetStatusResponse, directory: Directory) -> frozenset[str]:
    """Return the tables of which some live gateway answers each partition. `directory` is made of the same status."""
    if not status.gateway_id:
        return frozenset(table.table for table in status.tables if table.serving)
    return frozenset(table.table for table in status.tables if _is_served(table, directory))


def whole_tables(status: GetStatusResponse, directory: Directory) -> frozenset[str]:
    """Return the served tables of which each partition is live on as many gateways as it should be.

    That is the number of replicas, or the number of live gateways if it is smaller. No table is whole before the
    gateway itself has joined its cluster.
    """
    served = served_tables(status, directory)
    if not status.gateway_id:
        return served
    if status.gateway_id not in {peer.gateway_id for peer in directory.peers}:
        return frozenset()
    return frozenset(table.table for table in status.tables if table.table in served and _is_whole(table, directory))


def _is_whole(table: TableStatus, directory: Directory) -> bool:
    replicas = {
        record.gateway_id: announced.replicas
        for record in directory.records
        for announced in record.tables
        if announced.table == table.table and _is_candidate(announced, table.manifest.generation)
    }
    count = len(replicas)
    if all(replicas.values()):  # 0 means: on every gateway
        count = min(count, max(replicas.values(), default=0))
    numbers = (Partition(number) for number in range(partition_count(table)))
    live = (
        [peer for peer in directory.replicas(table.table, number) if peer.gateway_id in replicas] for number in numbers
    )
    return all(len(peers) >= count for peers in live)


def _is_candidate(announced: TableAnnouncement, generation: int) -> bool:
    return is_candidate(
        generation,
        serving=announced.serving.generation,
        building=announced.building.generation,
        refused=announced.refused_generation,
    )


def _is_served(table: TableStatus, directory: Directory) -> bool:
    if table.problem or not table.manifest.generation:
        return False
    live = {partition.partition for partition in table.partitions if partition.phase == REPLICA_PHASE_LIVE}
    numbers = (Partition(number) for number in range(partition_count(table)) if number not in live)
    return all(directory.replicas(table.table, number) for number in numbers)
