"""Whole gateways whose store is a real Redis: no restore after a restart or where another has it, a flush, a death."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from redis.crc import key_slot

from tablegate.examples.demo.kafka import Broker
from tests.kit.gateway_processes.changelog import RatingsChangelog, many
from tests.kit.gateway_processes.cluster import Cluster, Member
from tests.kit.gateway_processes.gateway import GatewayProcess, MonotoneReader, soon
from tests.kit.programs.redis import RedisNodeServers, RedisServer
from tests.kit.table.filled import RATINGS, catalogue_of

pytestmark = pytest.mark.jvm


@pytest.fixture
def changelog(broker: Broker) -> RatingsChangelog:
    changelog = RatingsChangelog(broker.bootstrap)
    changelog.put(dict(many(300)))
    changelog.delete([3, 4])
    changelog.mark()
    changelog.publish()
    return changelog


@pytest.fixture
def gateway(
    tmp_path: Path, changelog: RatingsChangelog, own_redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[GatewayProcess]:
    monkeypatch.setenv("TABLEGATE_STORE", own_redis_server.url(prefix="gateway-1"))
    with GatewayProcess(tmp_path / "gateway", changelog.bootstrap, tables_topic=changelog.tables_topic) as running:
        running.wait_until_serving()
        yield running


def restores(gateway: GatewayProcess) -> int:
    return sum("restoring from" in line["message"] for line in gateway.log())


def test_a_gateway_on_another_disk_goes_on_without_a_restore(
    gateway: GatewayProcess, changelog: RatingsChangelog, own_redis_server: RedisServer
) -> None:
    assert gateway.rows() == changelog.rows
    assert not (gateway.data / "store").exists()
    before = restores(gateway)
    gateway.kill()
    shutil.rmtree(gateway.data)
    changelog.put({7: (1.0, 2), 3: (2.0, 1)})
    gateway.start()
    gateway.wait_until_serving()
    assert gateway.rows() == changelog.rows
    assert restores(gateway) == before
    stream = own_redis_server.run("HGET", "gateway-1:{tables}:ratings-stream", 0)
    assert own_redis_server.run("XLEN", stream) > 0


def test_what_a_flush_took_comes_back(
    gateway: GatewayProcess, changelog: RatingsChangelog, own_redis_server: RedisServer
) -> None:
    with MonotoneReader(gateway, [*changelog.rows][:50]) as reader:
        soon(lambda: reader.answers > 100, "rows are read")
        own_redis_server.flush()
        soon(lambda: reader.unavailable, "it sees that nothing is there")
        answers = reader.answers
        soon(lambda: reader.answers > answers + 100, "rows are read again")
    assert reader.violations == []
    assert gateway.rows() == changelog.rows
    assert any("went back" in line["message"] for line in gateway.log())


def test_a_redis_that_dies_is_waited_for(
    gateway: GatewayProcess, changelog: RatingsChangelog, own_redis_server: RedisServer
) -> None:
    own_redis_server.run("CONFIG", "SET", "appendonly", "yes")
    soon(lambda: not own_redis_server.client.info("persistence")["aof_rewrite_in_progress"], "its log is written")
    own_redis_server.kill()
    with pytest.raises(grpc.RpcError) as refused:
        gateway.ask("GetRating", movie_id=1)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    changelog.put({7: (1.0, 2), 1_000: (2.0, 1)})
    own_redis_server.start("--appendonly", "yes")
    soon(lambda: gateway.rows() == changelog.rows, "it goes on by itself")


def test_a_copy_of_a_node_of_redis_takes_over(
    tmp_path: Path,
    changelog: RatingsChangelog,
    own_redis_nodes: RedisNodeServers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TABLEGATE_STORE", own_redis_nodes.url())
    with GatewayProcess(tmp_path / "gateway", changelog.bootstrap, tables_topic=changelog.tables_topic) as gateway:
        gateway.wait_until_serving()
        with MonotoneReader(gateway, [*changelog.rows][:50]) as reader:
            soon(lambda: reader.answers > 100, "rows are read")
            own_redis_nodes.of_slot(key_slot(b"tablegate:{tables}:store")).kill()
            soon(lambda: reader.unavailable, "it sees that the node is away")
            answers = reader.answers
            changelog.put({7: (1.0, 2), 3: (2.0, 1)})
            soon(lambda: reader.answers > answers + 100, "rows are read again")
        assert reader.violations == []
        soon(lambda: gateway.rows() == changelog.rows, "it has what was written meanwhile")


@pytest.fixture
def cluster(
    tmp_path: Path, changelog: RatingsChangelog, own_redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cluster]:
    """Three gateways, one of them spare, that keep each partition together, in one copy; each has all."""
    monkeypatch.setenv("TABLEGATE_STORE", own_redis_server.url(prefix="cluster"))
    with cluster_of(tmp_path, changelog, names=("g1", "g2"), spare=("g3",), replicas=3) as cluster:
        yield cluster


def cluster_of(directory: Path, changelog: RatingsChangelog, **gateways: Any) -> Cluster:
    return Cluster(
        directory,
        changelog.bootstrap,
        contract=RATINGS,
        table="ratings",
        partition_count=changelog.partition_count,
        tables_topic=changelog.tables_topic,
        **gateways,
    )


def said(gateway: Member, text: str) -> bool:
    return any(text in line["message"] for line in gateway.log())


def test_gateways_share_a_copy_that_the_next_one_need_not_restore(
    cluster: Cluster, changelog: RatingsChangelog, own_redis_server: RedisServer
) -> None:
    copies = own_redis_server.run("HVALS", "cluster:{tables}:copies")
    assert len(copies) == 1
    rows = f"cluster:{{{copies[0].decode().partition('/')[0]}/0}}:rows"
    used = own_redis_server.run("HLEN", rows)
    assert used
    with MonotoneReader(cluster["g1"], [*changelog.rows][:50]) as reader:
        cluster["g3"].start()
        cluster.wait_whole()
        changelog.put({7: (1.0, 2), 3: (2.0, 1)})
        for name in ("g1", "g2", "g3"):
            soon(lambda name=name: cluster[name].rows() == changelog.rows, f"{name} has the rows")  # type: ignore[misc]
        assert said(cluster["g3"], "following its changelog")
        assert not said(cluster["g3"], "restoring from its changelog")
        assert own_redis_server.run("HVALS", "cluster:{tables}:copies") == copies
        assert own_redis_server.run("HLEN", rows) <= used + 1

        cluster["g2"].kill()
        changelog.put({8: (1.0, 3)})
        soon(lambda: cluster["g1"].rows() == cluster["g3"].rows() == changelog.rows, "the others go on")
        answers = reader.answers
        soon(lambda: reader.answers > answers + 100, "rows are read on")
    assert reader.violations == []
    assert reader.unavailable == 0


def test_a_flush_of_what_they_share_comes_back(
    cluster: Cluster, changelog: RatingsChangelog, own_redis_server: RedisServer
) -> None:
    with MonotoneReader(cluster["g1"], [*changelog.rows][:50]) as reader:
        soon(lambda: reader.answers > 100, "rows are read")
        own_redis_server.flush()
        changelog.put({9: (1.0, 4)})
        cluster.wait_whole()
        for name in ("g1", "g2"):
            soon(lambda name=name: cluster[name].rows() == changelog.rows, f"{name} has the rows")  # type: ignore[misc]
        answers = reader.answers
        soon(lambda: reader.answers > answers + 100, "rows are read again")
    assert reader.violations == []
    assert len(own_redis_server.run("HVALS", "cluster:{tables}:copies")) == 1


@pytest.fixture
def apart(
    tmp_path: Path, changelog: RatingsChangelog, own_redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Cluster, RedisServer]]:
    """Two gateways that have all partitions each, "g1" in a Redis that stays, "g2" in one that a test may kill."""
    with RedisServer() as stays:
        monkeypatch.setenv("TABLEGATE_STORE", stays.url())
        cluster = cluster_of(tmp_path, changelog, names=("g1",), spare=("g2",))
        with cluster:
            monkeypatch.setenv("TABLEGATE_STORE", own_redis_server.url())
            cluster["g2"].start()
            cluster.wait_whole()
            yield cluster, own_redis_server


def test_a_gateway_whose_redis_is_gone_answers_by_the_others(
    apart: tuple[Cluster, RedisServer], changelog: RatingsChangelog
) -> None:
    cluster, server = apart
    keys = [{"movie_id": movie} for movie in changelog.rows]
    subscribed = subscription(cluster["g2"])
    copy = next(subscribed)
    soon(lambda: next(subscribed) == changelog.rows, "the subscriber has all rows")
    with MonotoneReader(cluster["g2"], [*changelog.rows][:50]) as reader:
        soon(lambda: reader.answers > 100, "rows are read")
        server.kill()
        for name in ("g1", "g2"):
            member = cluster[name]
            assert member.rows() == changelog.rows
            assert len(member.ask("ListRatings", page_size=1_000).ratings) == len(changelog.rows)
            found = [result.found for result in member.ask("BatchGetRatings", keys=keys[:100]).results]
            assert [row.movie_id for row in found] == [key["movie_id"] for key in keys[:100]]
        answers = reader.answers
        soon(lambda: reader.answers > answers + 200, "rows are read on")
        assert reader.unavailable == 0
    assert reader.violations == []
    changelog.put({7: (1.0, 2), 1_000: (2.0, 1)})
    soon(lambda: next(subscribed) == changelog.rows, "the subscriber has what came since")
    assert copy is next(subscribed)
    server.start()
    cluster.wait_whole()
    soon(lambda: cluster["g2"].rows() == changelog.rows, "it has a copy of its own again")


def subscription(gateway: Member) -> Iterator[dict[int, tuple[float, int]]]:
    """Yield a subscriber's copy after each message; the same one, which changes."""
    assert gateway.channel is not None
    query = catalogue_of().queries["/examples.ratings.v1.RatingsService/SubscribeRatings"]
    call = gateway.channel.unary_stream(query.path, response_deserializer=query.response_class.FromString)
    request = query.request_class(subscribe_options={"progress_interval": {"nanos": 100_000_000}})
    copy: dict[int, tuple[float, int]] = {}
    for message in call(request.SerializeToString(), timeout=120):
        for change in message.changes:
            if change.HasField("upsert"):
                row = change.upsert
                copy[row.movie_id] = (row.average_rating, row.rating_count)
            else:
                del copy[change.delete.movie_id]
        yield copy
