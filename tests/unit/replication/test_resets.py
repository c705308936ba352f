"""A table that was reset, and is built again as its next generation."""

import pytest

from tablegate.gateway.contract.types import StoreId
from tablegate.gateway.kafka.log import TopicPartition
from tablegate.gateway.query.errors import TableRebuilt
from tablegate.v1.changelog_pb2 import Manifest
from tests.kit.call.asker import Asker
from tests.kit.replication.memory_log import MemoryBroker, source
from tests.kit.replication.replicator import Gateway, Job


def reset(broker: MemoryBroker, job: Job) -> Job:
    """Do what `tablegate job reset` does; return the job that builds the table again."""
    tables: TopicPartition = source("tables", 0)
    past = Manifest(table="ratings/past", generation=job.generation)
    broker.append(tables, b"ratings/past", past.SerializeToString())
    broker.append(tables, b"ratings", None)
    broker.delete(job.topic)
    return Job(broker, generation=job.generation + 1).create()


def asker_of(gateway: Gateway) -> Asker:
    return Asker(gateway.catalogue, gateway.store, "/examples.ratings.v1.RatingsService", None)


@pytest.mark.parametrize("is_seen", [False, True])
def test_what_is_built_again_takes_the_place_of_what_was_there(
    broker: MemoryBroker, job: Job, gateway: Gateway, is_seen: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Who sees no moment without a manifest serves what it has until the next generation is restored."""
    job.publish().put(range(20))
    gateway.steps()
    assert len(gateway.rows()) == 20
    anew = reset(broker, job)
    if is_seen:
        gateway.seconds(6)
        assert not gateway.is_served()
    anew.put(range(5))
    anew.publish()
    for _ in range(30):
        gateway.steps(1, pass_s=0.5)
        if gateway.is_served() and gateway.rows().keys() != set(range(5)):
            assert not is_seen
            assert gateway.state().manifest.generation == 1
    assert gateway.is_served()
    assert gateway.rows().keys() == set(range(5))
    assert gateway.store.store_ids() == {StoreId(gateway.state().store_id)}
    assert "is no manifest" not in caplog.text


def test_a_token_of_before_is_refused(broker: MemoryBroker, job: Job, gateway: Gateway) -> None:
    job.publish().put(range(20))
    gateway.steps()
    asker = asker_of(gateway)
    token = asker.ask("GetRating", movie_id=1).read_info.consistency_token
    assert asker.ask("GetRating", movie_id=1, read_options={"at_least": token}).rating.movie_id == 1
    anew = reset(broker, job)
    anew.put(range(40))
    anew.publish()
    gateway.seconds(12)
    assert gateway.is_served()
    with pytest.raises(TableRebuilt):
        asker.ask("GetRating", movie_id=1, read_options={"at_least": token})
