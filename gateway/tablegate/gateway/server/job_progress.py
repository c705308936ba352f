"""What the status says of jobs: how far each has come in its sources, as the markers say that were applied here.

Each partition's position has the source offsets of its newest marker. A job writes its markers one partition after the
other, so what all of them have reached is the least of each: nothing before it is missing here. How much is left in the
sources, gateways do not know: they may not read these.

Decision: docs/decisions/0175-a-jobs-progress-is-what-its-markers-say.md
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tablegate.gateway.contract.types import Partition, StoreId
from tablegate.gateway.replication.records import RUN_AT
from tablegate.gateway.stores.base import Snapshot
from tablegate.v1.status_pb2 import JobStatus


def job_statuses(snapshot: Snapshot, tables: Iterable[str]) -> Iterator[JobStatus]:
    """Yield how far the jobs of these tables have come, of those that a job keeps."""
    for name in tables:
        state = snapshot.table(name)
        if state is None or not state.HasField("manifest") or state.manifest.HasField("foreign"):
            continue
        store_id = StoreId(state.store_id)
        partitions = map(Partition, range(state.manifest.partition_count))
        positions = [snapshot.position(store_id, each) for each in partitions]
        yield _job_status(name, [each.source_offsets for each in positions if each is not None])


def _job_status(name: str, offsets: Sequence[Mapping[tuple[str, int], int]]) -> JobStatus:
    run = max((of_partition.get(RUN_AT, 0) for of_partition in offsets), default=0)
    # A partition that has no offset of a source, as one that is being restored, may have nothing of it.
    known = set[tuple[str, int]].intersection(*map(set, offsets)) if offsets else set[tuple[str, int]]()
    reached = {at: min(of_partition[at] for of_partition in offsets) for at in known - {RUN_AT}}
    status = JobStatus(table=name, run=run)
    by_topic = {topic: status.reached.add(topic=topic) for topic in sorted({topic for topic, _ in reached})}
    for (topic, partition), next_offset in reached.items():
        by_topic[topic].next_offsets[partition] = next_offset
    return status
