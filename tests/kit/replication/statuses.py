"""What replicators say of a cluster, written by hand, and what a worker reads out of it."""

from collections.abc import Mapping

from tablegate.gateway.cluster.directory import Directory
from tablegate.gateway.stores.base import Phase
from tablegate.v1.status_pb2 import GetStatusResponse


def status(held: Mapping[str, Mapping[int, Phase]], *, own_id: str = "a", generation: int = 3) -> GetStatusResponse:
    answer = GetStatusResponse(gateway_id=own_id)
    for gateway_id, phases in held.items():
        told = answer.gateways.add(alive=True)
        told.record.gateway_id, told.record.endpoint, told.record.zone = gateway_id, f"{gateway_id}:7070", "z1"
        serving = told.record.tables.add(table="ratings").serving
        serving.generation = generation
        serving.partitions.extend(phases)
        serving.phases.extend(phases.values())  # type: ignore[arg-type]
        serving.next_offsets.extend([0] * len(phases))
    return answer


def live(*partitions: int) -> Mapping[int, Phase]:
    return dict.fromkeys(partitions, Phase.LIVE)


def told(answer: GetStatusResponse) -> Directory:
    directory = Directory()
    directory.update(answer.SerializeToString())
    return directory
