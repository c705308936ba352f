"""What a cluster costs each of its gateways: placing partitions, beats, and what workers are told."""

import time
from collections.abc import Callable

from tablegate.gateway.cluster.gateways_topic import GatewaysTopic
from tablegate.gateway.contract.placement import Candidate, wanted_of_all
from tablegate.gateway.contract.types import Offset, Partition
from tablegate.gateway.kafka.log import Fetched, Record, SystemClock
from tablegate.gateway.replication.cluster import BEAT_S
from tablegate.v1.cluster_pb2 import REPLICA_PHASE_LIVE, GatewayRecord
from tablegate.v1.status_pb2 import GetStatusResponse

from tests.bench.figures import Figures
from tests.kit.replication.memory_log import MemoryBroker, MemoryLog

CLUSTERS = ((3, 12), (10, 100), (10, 1_000), (30, 1_000), (100, 1_000), (100, 10_000))  # gateways, partitions
REPLICAS = 2
TABLE = "ratings"
OFFSET = 123_456_789
TOPIC_ID = "f4lJ8xHbQ0iGkzYpT2mWqA"


def measure(figures: Figures, *, repeat: int) -> None:
    """Measure clusters from small to large, of one table, in this process."""
    for gateways, partitions in CLUSTERS:
        _measure(figures, gateways, partitions, repeat)


def _measure(figures: Figures, gateways: int, partitions: int, repeat: int) -> None:
    candidates = [Candidate(f"gateway-{number}", f"zone-{number % 3}") for number in range(gateways)]
    size = f"{gateways} gateways, {partitions:,} partitions"
    placed = list(wanted_of_all(TABLE, partitions, candidates, REPLICAS))
    figures.record(
        f"place all, {size}",
        "tablegate",
        [_ms(lambda: list(wanted_of_all(TABLE, partitions, candidates, REPLICAS))) for _ in range(repeat)],
        "ms",
    )
    held: dict[str, list[Partition]] = {each.gateway_id: [] for each in candidates}
    for number, best in enumerate(placed):
        for each in best:
            held[each.gateway_id].append(Partition(number))
    records = [_record(each, held[each.gateway_id], partitions) for each in candidates]
    beats = [record.SerializeToString() for record in records]
    figures.record(f"a beat, {size}", "tablegate", [len(beat) for beat in beats], "bytes")
    figures.record(f"all beats, {size}", "tablegate", [sum(map(len, beats)) / BEAT_S / 1_024], "KiB/s")
    took = [_hear(records, beats) for _ in range(repeat)]
    figures.record(f"hearing all beats, {size}", "tablegate", [each / BEAT_S / 10 for each in took], "% of a core")
    status = _status(records)
    figures.record(f"what workers are told, {size}", "tablegate", [len(status) / 1_024], "KiB")
    figures.record(
        f"reading that, {size}",
        "tablegate",
        [_ms(lambda: GetStatusResponse.FromString(status)) for _ in range(repeat)],
        "ms",
    )


def _record(candidate: Candidate, partitions: list[Partition], partition_count: int) -> GatewayRecord:
    record = GatewayRecord(
        gateway_id=candidate.gateway_id, endpoint=f"{candidate.gateway_id}.example:50051", zone=candidate.zone, beat=1
    )
    held = record.tables.add(table=TABLE, replicas=REPLICAS).serving
    held.generation, held.partition_count, held.changelog_topic_id = 1, partition_count, TOPIC_ID
    held.partitions.extend(partitions)
    held.phases.extend([REPLICA_PHASE_LIVE] * len(partitions))
    held.next_offsets.extend([OFFSET] * len(partitions))
    return record


def _fetched(records: list[GatewayRecord], beats: list[bytes], *, start: int, topic: GatewaysTopic) -> Fetched:
    taken = [
        Record(Offset(start + number), record.gateway_id.encode(), beat, None, 1_000 + start)
        for number, (record, beat) in enumerate(zip(records, beats, strict=True))
    ]
    return Fetched(topic.topic_partition, taken, Offset(start + len(taken)))


def _hear(records: list[GatewayRecord], beats: list[bytes]) -> float:
    """Return how many ms it takes to take in one beat of each, of which all say what they said before."""
    log = MemoryLog(MemoryBroker(lambda: 0))
    topic = GatewaysTopic("gateways", gateway_id="gateway-0", start_id=0, log=log, clock=SystemClock())
    topic.apply(_fetched(records, beats, start=0, topic=topic))
    return _ms(lambda: topic.apply(_fetched(records, beats, start=len(beats), topic=topic)))


def _status(records: list[GatewayRecord]) -> bytes:
    status = GetStatusResponse(gateway_id="gateway-0")
    for record in records:
        status.gateways.add(record=record, alive=True).beat_time.GetCurrentTime()
    return status.SerializeToString()


def _ms(call: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    call()
    return (time.perf_counter() - started_s) * 1_000
