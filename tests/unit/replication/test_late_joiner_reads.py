"""What comes to a gateway that answers from nothing yet, of a table that is rebuilt: the others answer it."""

from collections.abc import Iterator

import pytest

from tablegate.v1.query_pb2 import SUBSCRIBE_PHASE_CURRENT
from tablegate.v1.status_pb2 import PARTITION_ROUTE_FORWARDED
from tests.kit.gateways_in_process.cluster import ALONE, GrpcCluster
from tests.kit.gateways_in_process.metadata import at
from tests.kit.replication.replicators import World
from tests.kit.table.filled import rating

ROWS = 60


@pytest.fixture
def cluster() -> Iterator[GrpcCluster]:
    """Three gateways. What `new` knows of the table is what a replicator leaves that joined while it was rebuilt."""
    world = World(1, partitions=6, lag=False)
    for _ in range(2):
        world.join()
    world.settle()
    world.rebuild()
    late_joiner = world.join()
    world.run(10.0)
    assert late_joiner.held() == set()
    with GrpcCluster({"a": range(6), "b": range(6), "new": ()}) as cluster:
        state = late_joiner.state()
        with cluster["a"].table.store.snapshot() as snapshot:
            there = snapshot.table("ratings")
        assert there is not None
        state.manifest.changelog_topic_id = there.manifest.changelog_topic_id
        cluster["new"].do(lambda: cluster["new"].table.store.put_table("ratings", state))
        cluster.put(rating(number, count=number) for number in range(ROWS))
        yield cluster


def test_what_is_asked_of_it_the_others_answer(cluster: GrpcCluster) -> None:
    for number in range(0, ROWS, 5):
        assert cluster.ask("new", "GetRating", movie_id=number).rating.rating_count == number
    keys = [{"movie_id": number} for number in range(0, ROWS + 10, 3)]
    assert (
        cluster.ask("new", "BatchGetRatings", keys=keys).results
        == cluster.ask(ALONE, "BatchGetRatings", keys=keys).results
    )
    page = cluster.ask("new", "ListRatings", page_size=50)
    assert page.ratings == cluster.ask(ALONE, "ListRatings", page_size=50).ratings
    scanned = [row.movie_id for message in cluster.stream("new", "ScanRatings") for row in message.ratings]
    assert sorted(scanned) == list(range(ROWS))


def test_a_subscriber_gets_what_the_others_have(cluster: GrpcCluster) -> None:
    found = set()
    for message in cluster.stream("new", "SubscribeRatings"):
        found |= {change.upsert.movie_id for change in message.changes}
        if message.progress.phase == SUBSCRIBE_PHASE_CURRENT:
            break
    assert found == set(range(ROWS))


def test_it_explains_that(cluster: GrpcCluster) -> None:
    with at(cluster, "new") as asked:
        answer = asked.explain("ListRatings")
    assert answer.generation == 1
    assert {plan.route for plan in answer.partitions} == {PARTITION_ROUTE_FORWARDED}
    assert all({each.gateway_id for each in plan.replicas} == {"a", "b"} for plan in answer.partitions)
