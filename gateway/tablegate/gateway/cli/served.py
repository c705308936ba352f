"""What a gateway's status says of the tables that are served, by it and by the others of its cluster."""

from tablegate.gateway.cluster.directory import Directory
from tablegate.gateway.contract.placement import takes_part
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
    """Return the tables of which each partition is answered, by whichever gateway; `directory` is the status's."""
    if not status.gateway_id:
        return frozenset(table.table for table in status.tables if table.serving)
    return frozenset(table.table for table in status.tables if _is_served(table, directory))


def whole_tables(status: GetStatusResponse, directory: Directory) -> frozenset[str]:
    """Return the tables of which each partition is live on as many gateways as are to have it, as far as they live.

    None while this gateway is not yet heard of in its cluster.
    """
    served = served_tables(status, directory)
    if not status.gateway_id:
        return served
    if status.gateway_id not in {peer.gateway_id for peer in directory.peers}:
        return frozenset()
    return frozenset(table.table for table in status.tables if table.table in served and _is_whole(table, directory))


def _is_whole(table: TableStatus, directory: Directory) -> bool:
    told = {
        record.gateway_id: held.replicas
        for record in directory.records
        for held in record.tables
        if held.table == table.table and _takes_part(held, table.manifest.generation)
    }
    count = len(told)
    if all(told.values()):
        count = min(count, max(told.values(), default=0))
    numbers = (Partition(number) for number in range(partition_count(table)))
    live = ([peer for peer in directory.replicas(table.table, number) if peer.gateway_id in told] for number in numbers)
    return all(len(peers) >= count for peers in live)


def _takes_part(held: TableAnnouncement, generation: int) -> bool:
    return takes_part(
        generation,
        serving=held.serving.generation,
        building=held.building.generation,
        refused=held.refused_generation,
    )


def _is_served(table: TableStatus, directory: Directory) -> bool:
    if table.problem or not table.manifest.generation:
        return False
    here = {each.partition for each in table.partitions if each.phase == REPLICA_PHASE_LIVE}
    numbers = (Partition(number) for number in range(partition_count(table)) if number not in here)
    return all(directory.replicas(table.table, number) for number in numbers)
