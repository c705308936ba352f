"""Alerts that need no Kafka to be provoked: a real Prometheus scrapes what gateways serve it.

A gateway without a Kafka is a process. What happens to a table is shown by replicators over a broker in memory, whose
stores are served as a worker serves its own.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from typing_extensions import override

from tablegate.examples.demo.kafka import HOST, free_port
from tablegate.gateway.contract.types import Partition, StoreId
from tablegate.gateway.http.rpc.calls import Calls
from tablegate.gateway.http.server import HttpServer
from tablegate.gateway.query.call import Methods
from tablegate.gateway.replication.replicator import Replicator
from tablegate.gateway.server.child import ProcessFile
from tablegate.gateway.server.metrics import Metrics
from tablegate.gateway.server.snapshots import RETRY_S, SnapshotWriter, numbers_of
from tablegate.gateway.stores.base import Applied, Change, Position, Snapshot, StoreReader
from tablegate.gateway.stores.snapshots.files import DirectoryFiles
from tablegate.v1.status_pb2 import GetStatusResponse
from tests.kit.gateway_processes.gateway import GatewayProcess, soon
from tests.kit.gateways_in_process.threaded import ServerThread
from tests.kit.programs.prometheus import IS_INSTALLED, Prometheus
from tests.kit.replication.memory_log import MemoryBroker, MemoryLog
from tests.kit.replication.replicator import FakeClock, Gateway, Job
from tests.kit.replication.replicators import another_contract
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import SIGNER, catalogue_of

pytestmark = [pytest.mark.tools, pytest.mark.skipif(not IS_INSTALLED, reason="prometheus is not installed")]

TARGETS = "gateways"


def test_alert_of_a_kafka_that_is_away(tmp_path: Path) -> None:
    target = f"{HOST}:{free_port()}"
    gateway = GatewayProcess(
        tmp_path / "gateway", f"{HOST}:{free_port()}", workers=1, options=["--admin", target], listen=f"{HOST}:0"
    )
    with gateway, Prometheus(tmp_path / "prometheus", {TARGETS: [target]}) as prometheus:
        prometheus.wait_for("TablegateKafkaUnreachable", target)
        prometheus.wait_for("TablegateTableNotServed", "ratings")
        assert "TablegateReplicatorHangs" not in prometheus.firing(), "it lives, and says so"


class ShownStore(StoreReader):
    """A view of whichever store a test shows."""

    def __init__(self, store: StoreReader) -> None:
        self.store = store

    @override
    def snapshot(self) -> AbstractContextManager[Snapshot]:
        return self.store.snapshot()

    @override
    def is_current(self) -> bool:
        return True

    @override
    def close(self) -> None:
        return


class FaultyStore(MemoryStore):
    """A store that fails at every change, as on what nobody thought of."""

    @override
    def apply(self, store_id: StoreId, partition: Partition, changes: Sequence[Change], position: Position) -> Applied:
        if changes:
            raise ValueError("nobody thought of it")
        return super().apply(store_id, partition, changes, position)


class World:
    """A table in a broker in memory, and the stores of gateways that have met it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.broker = MemoryBroker(self.clock.now_ms)
        self.broker.create("tables", 1)
        self.job = Job(self.broker).create().publish()
        self.job.put(range(20), count=100)

    def healthy(self) -> MemoryStore:
        """Return the store of a gateway that serves it."""
        gateway = Gateway(self.broker, self.clock)
        gateway.seconds(10)
        assert gateway.is_served()
        return gateway.store

    def with_stale_records(self) -> MemoryStore:
        """Return the store of one to which older rows have come behind newer ones."""
        self.job.put(range(20), count=50)
        gateway = Gateway(self.broker, self.clock)
        gateway.seconds(10)
        return gateway.store

    def of_another_contract(self) -> MemoryStore:
        """Return the store of one whose contract is not the table's."""
        gateway = Gateway(self.broker, self.clock, catalogue=another_contract())
        gateway.seconds(10)
        return gateway.store

    def with_a_fault(self) -> MemoryStore:
        """Return a store that fails, at a moment when its gateway has set the table aside."""
        store = FaultyStore()
        replicator = Replicator(catalogue_of(), log=MemoryLog(self.broker), store=store, clock=self.clock)
        for _ in range(100):
            replicator.step(poll_s=0)
            self.clock.passed_s += 0.5
            with store.snapshot() as snapshot:
                if any(table.fault for table in GetStatusResponse.FromString(snapshot.status()).tables):
                    return store
        raise AssertionError("nothing has failed")


@contextmanager
def scraped(directory: Path, store: StoreReader) -> Iterator[Prometheus]:
    """Serve the metrics of a store, and scrape them."""

    def web(_methods: Methods, calls: Calls) -> Sequence[Metrics]:
        file = ProcessFile(directory / "processes", name="worker-0", parent=1)
        return [Metrics(calls, store, file, lambda: {"connections": 0, "kept_bytes": 0, "kept_bytes_max": 1})]

    with (
        ServerThread(lambda: HttpServer({}, f"{HOST}:0", web=web)) as server,
        Prometheus(directory / "prometheus", {TARGETS: [f"{HOST}:{server.port}"]}) as prometheus,
    ):
        yield prometheus


def test_alert_of_a_directory_of_snapshots_that_is_away(tmp_path: Path) -> None:
    world = World()
    store, place = world.healthy(), tmp_path / "snapshots"
    writer = SnapshotWriter(
        catalogue_of(),
        DirectoryFiles(place),
        every_s=1,
        keep=1,
        signer=SIGNER,
        clock=world.clock,
        offsets_min=1,
    )
    file = ProcessFile(tmp_path / "processes", name="snapshots", parent=1)

    def write() -> None:
        world.clock.passed_s += RETRY_S
        for _ in writer.round(store):
            pass
        file.write(numbers_of(writer))

    place.write_text("a disk that is not mounted, say")
    write()
    with scraped(tmp_path, store) as prometheus:
        soon(lambda: "TablegateSnapshotsFail" in prometheus.firing(), "its alert fires", 60)
        place.unlink()
        write()
        soon(lambda: "TablegateSnapshotsFail" not in prometheus.firing(), "they are written again", 60)
    assert list(DirectoryFiles(place).list("ratings"))


@pytest.mark.parametrize(
    ("alert", "happens"),
    [
        ("TablegatePendingRepairs", World.with_stale_records),
        ("TablegateTableRefused", World.of_another_contract),
        ("TablegateTableFault", World.with_a_fault),
    ],
)
def test_alerts_of_a_table_to_which_it_happens(
    alert: str, happens: Callable[[World], MemoryStore], tmp_path: Path
) -> None:
    world = World()
    healthy = world.healthy()
    shown = ShownStore(healthy)
    with scraped(tmp_path, shown) as prometheus:
        soon(lambda: prometheus.value("tablegate_table_serving") == 1, "the table is scraped, and served", 60)
        assert alert not in prometheus.firing()
        shown.store = happens(world)
        prometheus.wait_for(alert, "ratings")
        shown.store = healthy
        soon(lambda: alert not in prometheus.firing(), "it is over", 60)
