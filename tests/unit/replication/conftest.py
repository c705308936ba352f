"""A replicator over a broker in memory, and the job that writes there."""

import pytest

from tests.kit.replication.memory_log import MemoryBroker
from tests.kit.replication.replicator import FakeClock, Gateway, Job


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def broker(clock: FakeClock) -> MemoryBroker:
    broker = MemoryBroker(clock.now_ms)
    broker.create("tables", 1)
    return broker


@pytest.fixture
def job(broker: MemoryBroker) -> Job:
    return Job(broker).create()


@pytest.fixture
def gateway(broker: MemoryBroker, clock: FakeClock) -> Gateway:
    return Gateway(broker, clock)
