"""How far a job has come, as the partitions say that are here."""

from tablegate.gateway.contract.types import Partition
from tablegate.gateway.replication.records import RUN_AT
from tablegate.gateway.server.job_progress import job_statuses
from tablegate.gateway.stores.base import Phase
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import ratings_table


def _reached(store: MemoryStore) -> tuple[int, dict[str, dict[int, int]]]:
    with store.snapshot() as snapshot:
        [job] = job_statuses(snapshot, ["ratings"])
    return job.run, {each.topic: dict(each.next_offsets) for each in job.reached}


def test_a_job_has_reached_what_each_partition_has_reached() -> None:
    store = MemoryStore()
    table = ratings_table(store, 2)
    assert _reached(store) == (0, {})
    table.move(Partition(0), source_offsets={("ratings", 0): 100, ("ratings", 1): 50, RUN_AT: 3})
    assert _reached(store) == (3, {}), "the other partition has heard nothing yet"
    table.move(Partition(1), source_offsets={("ratings", 0): 90, RUN_AT: 3})
    assert _reached(store) == (3, {"ratings": {0: 90}}), "the source has grown, and the other has nothing of that"
    table.move(Partition(1), source_offsets={("ratings", 0): 110, ("ratings", 1): 60, RUN_AT: 3})
    assert _reached(store) == (3, {"ratings": {0: 100, 1: 50}})
    table.move(Partition(1), phase=Phase.RESTORING)
    assert _reached(store) == (3, {}), "what is restored from the beginning has nothing yet"
