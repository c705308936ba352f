"""A gateway that comes back with another contract, over what it stored by the one before."""

from tablegate.gateway.stores.redis.store import RedisStore
from tests.kit.programs.redis import RedisServer, needs_redis
from tests.kit.replication.memory_log import MemoryBroker
from tests.kit.replication.replicator import FakeClock, Gateway, Job
from tests.kit.table.filled import catalogue_of, other_rows

COUNTS = {movie: movie + 1 for movie in range(40)}


def test_rows_that_were_stored_by_another_message_are_not_read(
    broker: MemoryBroker, clock: FakeClock, job: Job
) -> None:
    job.publish().put(range(40))
    gateway = Gateway(broker, clock, other_rows())
    gateway.steps()
    assert gateway.is_served()
    before = gateway.state().store_id
    gateway.restart()
    gateway.steps()
    assert gateway.state().store_id == before
    gateway.catalogue = catalogue_of()
    gateway.restart()
    gateway.steps()
    assert gateway.is_served()
    assert gateway.rows() == COUNTS


@needs_redis
def test_gateways_of_other_contracts_share_no_copy(
    redis_server: RedisServer, broker: MemoryBroker, clock: FakeClock, job: Job
) -> None:
    job.publish().put(range(40))
    url = redis_server.new_url()
    gateways = [Gateway(broker, clock, catalogue) for catalogue in (other_rows(), catalogue_of())]
    for gateway, name in zip(gateways, "ab", strict=True):
        gateway.store = RedisStore(url, name)
        gateway.restart()
        gateway.steps()
        assert gateway.is_served()
    old, new = gateways
    assert new.rows() == COUNTS
    assert old.state().store_id != new.state().store_id
    old.catalogue = catalogue_of()
    old.restart()
    old.steps()
    assert old.state().store_id == new.state().store_id
    assert old.rows() == COUNTS
    for gateway in gateways:
        gateway.store.close()
