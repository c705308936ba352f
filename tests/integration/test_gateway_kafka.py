"""A whole gateway on a real Kafka: restore, queries, crashes, Kafka away."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse

from tablegate.examples.demo.kafka import Broker, free_port
from tablegate.gateway.contract.types import Partition, StoreId
from tablegate.gateway.stores.base import StoreUnavailable
from tablegate.gateway.stores.lmdb.store import LmdbReader
from tests.kit.gateway_processes.changelog import RatingsChangelog, many
from tests.kit.gateway_processes.gateway import SERVICE, GatewayProcess, soon
from tests.kit.table.filled import catalogue_of

pytestmark = pytest.mark.jvm

RESTORED = 150_000  # rows, which take seconds


@pytest.fixture
def changelog(broker: Broker) -> RatingsChangelog:
    return RatingsChangelog(broker.bootstrap)


def _gateway(tmp_path: Path, changelog: RatingsChangelog, **more: Any) -> GatewayProcess:
    return GatewayProcess(tmp_path / "gateway", changelog.bootstrap, tables_topic=changelog.tables_topic, **more)


@pytest.fixture
def gateway(tmp_path: Path, changelog: RatingsChangelog) -> Iterator[GatewayProcess]:
    with _gateway(tmp_path, changelog) as running:
        yield running


def test_a_table_is_restored_answered_and_followed(gateway: GatewayProcess, changelog: RatingsChangelog) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        gateway.ask("GetRating", movie_id=1)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    changelog.put({362: (9.0, 2), **dict(many(300))})
    changelog.delete([3, 4])
    changelog.mark(source_next_offset=300)
    changelog.publish()
    gateway.wait_until_serving()
    assert gateway.rows() == changelog.rows
    assert gateway.ask("GetRating", movie_id=362).rating.average_rating == 9.0
    with pytest.raises(grpc.RpcError) as refused:
        gateway.ask("GetRating", movie_id=3)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND

    request: Any = catalogue_of().queries[f"{SERVICE}/BatchGetRatings"].request_class()
    for movie_id in (1, 3, 362):
        request.keys.add(movie_id=movie_id)
    results = gateway.ask("BatchGetRatings", request).results
    assert [result.WhichOneof("result") for result in results] == ["found", "missing", "found"]

    seen, token = [], ""
    while True:
        page = gateway.ask("ListRatings", page_size=40, page_token=token)
        seen += [row.movie_id for row in page.ratings]
        token = page.next_page_token
        if not token:
            break
    assert seen == sorted(changelog.rows)

    changelog.put({1: (7.5, 2)})
    changelog.mark(source_next_offset=301, batch_id=2)
    request = catalogue_of().queries[f"{SERVICE}/GetRating"].request_class(movie_id=1)
    request.read_options.at_least_source.topics.add(topic="ratings").offsets[0] = 300
    request.read_options.max_wait.seconds = 10
    assert gateway.ask("GetRating", request, deadline_s=20).rating.average_rating == 7.5

    changelog.delete([1])
    soon(lambda: gateway.rows() == changelog.rows, "the delete is followed")
    soon(lambda: [table.serving for table in gateway.status().tables] == [True], "the status tells it")
    assert gateway.status().kafka_reachable
    assert {line["process"] for line in gateway.log()} >= {"gateway", "replicator", "worker-0", "worker-1"}


def test_a_stopped_gateway_starts_from_its_store(tmp_path: Path, changelog: RatingsChangelog) -> None:
    changelog.put(dict(many(500)))
    changelog.publish()
    gateway = _gateway(tmp_path, changelog)
    with gateway:
        gateway.wait_until_serving()
        assert gateway.stop() == 0
    changelog.put({7: (1.0, 2)})
    with gateway:
        gateway.wait_until_serving()
        assert gateway.rows() == changelog.rows


def test_a_replicator_killed_during_restore_opens_right(tmp_path: Path, changelog: RatingsChangelog) -> None:
    changelog.put(dict(many(RESTORED)))
    changelog.publish()
    partial = 0
    with _gateway(tmp_path, changelog, workers=1) as gateway:
        for _ in range(20):
            before = _restored(tmp_path)
            if before == RESTORED:  # the last kill came too late
                if partial:
                    break
                gateway.kill_replicator(signal.SIGBUS)  # it begins with an empty store
                continue
            soon(lambda before=before: _restored(tmp_path) > before, "the restore goes on")  # type: ignore[misc]
            gateway.kill_replicator()
            partial += 0 < _restored(tmp_path) < RESTORED
            if partial == 3:
                break
        assert partial, "every kill came too late"
        gateway.wait_until_serving()
        assert len(gateway.rows()) == RESTORED


def _restored(tmp_path: Path) -> int:
    """Return how many records of the changelog the store has applied."""
    try:
        reader = LmdbReader(tmp_path / "gateway" / "store")
    except StoreUnavailable:
        return 0
    with closing(reader), reader.snapshot() as snapshot:
        positions = [
            snapshot.position(StoreId(store_id), Partition(number)) for store_id in (1, 2) for number in (0, 1)
        ]
        return sum(position.next_offset for position in positions if position is not None)


def test_a_replicator_killed_during_apply_opens_right(gateway: GatewayProcess, changelog: RatingsChangelog) -> None:
    changelog.put(dict(many(100)))
    changelog.publish()
    gateway.wait_until_serving()
    for round_number in range(3):
        changelog.put({movie_id: (float(round_number), round_number + 2) for movie_id in range(2_000)})
        gateway.kill_replicator()
    soon(lambda: gateway.rows() == changelog.rows, "all is applied")


def test_a_killed_gateway_leaves_nothing_and_starts_again(tmp_path: Path, changelog: RatingsChangelog) -> None:
    changelog.put(dict(many(200)))
    changelog.publish()
    gateway = _gateway(tmp_path, changelog)
    with gateway:
        gateway.wait_until_serving()
        gateway.kill()
        gateway.start()
        gateway.wait_until_serving()
        assert gateway.rows() == changelog.rows


def test_a_dead_worker_is_replaced(gateway: GatewayProcess, changelog: RatingsChangelog) -> None:
    changelog.put(dict(many(10)))
    changelog.publish()
    gateway.wait_until_serving()
    before = set(gateway.children())
    [worker, *_] = sorted(before - {gateway.replicator()})
    os.kill(worker, signal.SIGKILL)
    soon(lambda: len(set(gateway.children()) - before) == 1 and worker not in gateway.children(), "it is replaced")
    soon(lambda: gateway.rows() == changelog.rows, "all is served")


def test_a_damaged_store_is_wiped_and_restored(tmp_path: Path, changelog: RatingsChangelog) -> None:
    changelog.put(dict(many(20_000)))
    changelog.publish()
    gateway = _gateway(tmp_path, changelog)
    data_file = tmp_path / "gateway" / "store" / "data.mdb"
    with gateway:
        gateway.wait_until_serving()
        gateway.stop()
        for damage in (b"\xff" * 8192, b""):
            with data_file.open("r+b") as damaged:
                damaged.write(damage)
                damaged.truncate(max(4096, len(damage)))
            gateway.start()
            gateway.wait_until_serving()
            assert gateway.rows() == changelog.rows
            gateway.stop()


def test_a_replicator_that_dies_in_its_store_gets_a_new_one(
    gateway: GatewayProcess, changelog: RatingsChangelog
) -> None:
    changelog.put(dict(many(1_000)))
    changelog.publish()
    gateway.wait_until_serving()
    gateway.kill_replicator(signal.SIGBUS)
    soon(lambda: any("wiped" in line["message"] for line in gateway.log()), "the store is wiped")
    soon(lambda: gateway.rows() == changelog.rows, "all is restored")


def test_a_manifest_that_disagrees_is_told(gateway: GatewayProcess, changelog: RatingsChangelog) -> None:
    changelog.put(dict(many(10)))
    wrong = changelog.manifest()
    wrong.key[0].name = "film_id"
    changelog.publish(wrong)

    def refused_for_its_key() -> bool:
        with pytest.raises(grpc.RpcError) as refused:
            gateway.ask("GetRating", movie_id=1)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        return "film_id" in (refused.value.details() or "")

    soon(refused_for_its_key, "the key is named")
    soon(lambda: "film_id" in gateway.status().tables[0].problem, "the status tells it")
    changelog.publish()
    gateway.wait_until_serving()
    assert gateway.rows() == changelog.rows


def test_a_new_generation_replaces_the_old_one_whole(gateway: GatewayProcess, changelog: RatingsChangelog) -> None:
    changelog.put(dict(many(100, average=1.0)))
    changelog.publish()
    gateway.wait_until_serving()
    page = gateway.ask("ListRatings", page_size=10)
    changelog.mark(final=True)
    changelog.generation = 2
    changelog.new_topic()
    changelog.put(dict(many(50, average=2.0)))
    changelog.mark()
    changelog.publish()
    soon(lambda: gateway.rows() == changelog.rows, "the new generation is served")
    with pytest.raises(grpc.RpcError) as refused:
        gateway.ask("ListRatings", page_token=page.next_page_token)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


def test_kafka_goes_away_and_comes_back(tmp_path: Path) -> None:
    """Serving goes on, with honest staleness; nothing is lost, and nobody has to do anything."""
    with Broker(tmp_path / "kafka", port=free_port(), log_file=tmp_path / "kafka.log") as broker:
        changelog = RatingsChangelog(broker.bootstrap)
        changelog.put(dict(many(100)))
        changelog.mark()
        changelog.publish()
        with _gateway(tmp_path, changelog) as gateway:
            gateway.wait_until_serving()
            broker.kill()
            soon(lambda: not gateway.status().kafka_reachable, "it sees that Kafka is away")
            time.sleep(1.0)
            assert gateway.rows() == changelog.rows
            request: Any = catalogue_of().queries[f"{SERVICE}/GetRating"].request_class(movie_id=1)
            request.read_options.max_staleness.nanos = 500_000_000
            request.read_options.max_wait.nanos = 1
            with pytest.raises(grpc.RpcError) as refused:
                gateway.ask("GetRating", request)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            gateway.stop()
            gateway.start()  # it cannot know what it missed: it waits for Kafka
            soon(lambda: not gateway.status().kafka_reachable, "it tells that Kafka is away")
            with pytest.raises(grpc.RpcError) as refused:
                gateway.ask("GetRating", movie_id=1)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            broker.start()
            changelog.put({1: (9.0, 3), 1_000: (2.0, 1)})
            soon(lambda: gateway.rows() == changelog.rows, "it goes on by itself", 60)
            soon(lambda: gateway.status().kafka_reachable, "it sees that Kafka is back")


def test_a_replicator_that_stands_still_is_told_and_restarted(tmp_path: Path, changelog: RatingsChangelog) -> None:
    changelog.put(dict(many(50)))
    changelog.publish()
    with _gateway(tmp_path, changelog, hang_limit_s=12.0) as gateway:
        gateway.wait_until_serving()
        old = gateway.replicator()
        os.kill(old, signal.SIGSTOP)
        soon(lambda: gateway.status().replicator_hangs, "status says that the replicator hangs")
        soon(lambda: gateway.health() == HealthCheckResponse.NOT_SERVING, "health says so")
        assert gateway.replicator() == old
        assert gateway.rows() == changelog.rows
        soon(lambda: gateway._replicators() not in ([], [old]), "another replicator starts")
        changelog.put({362: (9.0, 2)})
        soon(lambda: gateway.rows() == changelog.rows, "the table is followed again")
        soon(lambda: gateway.health() == HealthCheckResponse.SERVING, "health says so")
        assert not gateway.status().replicator_hangs
        assert [line for line in gateway.log() if line.get("message") == "a process hangs; it is killed"]
