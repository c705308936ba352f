"""An index that a contract adds is built from what is stored, beside live records; no read fails, nothing restores."""

from pathlib import Path
from typing import Any

import pytest

from tablegate.gateway.contract.catalogue import Catalogue
from tablegate.gateway.contract.indexes import INDEX_ID_BYTES, make_entry
from tablegate.gateway.contract.types import Partition, StoreId
from tests.kit.replication.memory_log import MemoryBroker
from tests.kit.replication.replicator import PARTITIONS, FakeClock, Gateway, Job
from tests.kit.table.contracts import RATINGS, bind_sources, edited

STEP_ROWS = 10
ROWS = 6 * STEP_ROWS * PARTITIONS


@pytest.fixture
def indexed(tmp_path: Path) -> Catalogue:
    key = '    key: "movie_id"\n'
    text = edited(RATINGS, (key, key + '    index: {name: "by_count" columns: "rating_count"}\n'))
    return bind_sources(tmp_path, examples__ratings__v1__ratings=text)


def entries(gateway: Gateway, catalogue: Catalogue) -> list[Any]:
    """Return what each partition's index has; None where it is not whole."""
    [index] = catalogue.tables["ratings"].indexes
    with gateway.store.snapshot() as snapshot:
        store_id = StoreId(gateway.state().store_id)
        return [
            snapshot.index_range(store_id, Partition(number), index, start=b"", end=None, limit=ROWS)
            for number in range(PARTITIONS)
        ]


def expected(gateway: Gateway, catalogue: Catalogue) -> list[Any]:
    [index] = catalogue.tables["ratings"].indexes
    found = []
    with gateway.store.snapshot() as snapshot:
        store_id = StoreId(gateway.state().store_id)
        for number in range(PARTITIONS):
            rows = snapshot.range(store_id, Partition(number), start=b"", end=None, limit=2 * ROWS)
            keyed = [(index.keys_of(row)[0][INDEX_ID_BYTES:], key, row) for key, row in rows]
            found.append(sorted((make_entry(values, key), row) for values, key, row in keyed))
    return found


def test_an_added_index_is_built_beside_live_records(
    indexed: Catalogue, broker: MemoryBroker, clock: FakeClock, job: Job
) -> None:
    job.publish()
    job.put(range(ROWS))
    gateway = Gateway(broker, clock, index_rows_max=STEP_ROWS)
    gateway.steps(12)
    before = gateway.state().store_id
    assert gateway.is_served()

    gateway.catalogue = indexed
    gateway.restart()
    partly, is_served = 0, False
    for step in range(60):
        job.put([step, ROWS + step])
        job.put([ROWS - 1 - step], delete=True)
        gateway.steps(1, pass_s=0.3)
        is_served |= gateway.is_served()
        assert gateway.is_served() == is_served  # once it is live it stays so, whatever is built
        partly += None in entries(gateway, indexed)
    assert partly > 3
    assert gateway.state().store_id == before  # no restore
    assert entries(gateway, indexed) == expected(gateway, indexed)


def test_a_build_goes_on_after_a_restart(indexed: Catalogue, broker: MemoryBroker, clock: FakeClock, job: Job) -> None:
    job.publish()
    job.put(range(ROWS))
    gateway = Gateway(broker, clock, index_rows_max=STEP_ROWS)
    gateway.steps(12)
    gateway.catalogue = indexed
    for _ in range(30):
        gateway.restart()
        gateway.steps(4)
    assert entries(gateway, indexed) == expected(gateway, indexed)


def test_an_index_of_a_table_that_restores_is_whole_at_once(
    indexed: Catalogue, broker: MemoryBroker, clock: FakeClock, job: Job
) -> None:
    job.publish()
    job.put(range(100))
    gateway = Gateway(broker, clock, catalogue=indexed)
    while not gateway.is_served():
        gateway.steps(1)
    assert entries(gateway, indexed) == expected(gateway, indexed)


def test_a_build_waits_while_the_store_is_full(
    indexed: Catalogue, broker: MemoryBroker, clock: FakeClock, job: Job
) -> None:
    """What is stored is served on; with room, the build goes on from where it was."""
    job.publish()
    job.put(range(ROWS))
    gateway = Gateway(broker, clock, index_rows_max=STEP_ROWS)
    gateway.steps(12)
    gateway.catalogue = indexed
    gateway.restart()
    gateway.steps(4)
    assert None in entries(gateway, indexed)
    gateway.full = True
    gateway.seconds(20)
    assert gateway.is_served()
    assert None in entries(gateway, indexed)
    gateway.full = False
    gateway.steps(40, pass_s=0.3)
    assert entries(gateway, indexed) == expected(gateway, indexed)
