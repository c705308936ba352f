"""Freshness on a real gateway and a real Kafka: what was written just now is in the answer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tablegate.examples.demo.kafka import Broker
from tests.kit.gateway_processes.changelog import RatingsChangelog, many
from tests.kit.gateway_processes.gateway import GatewayProcess
from tests.kit.table.filled import catalogue_of

pytestmark = pytest.mark.jvm

WRITES = 200
MAX_WAIT_S = 10  # the most that the contract allows: on a busy machine a replicator may stand still for seconds
GET = "/examples.ratings.v1.RatingsService/GetRating"


@pytest.fixture
def changelog(broker: Broker) -> RatingsChangelog:
    return RatingsChangelog(broker.bootstrap)


@pytest.fixture
def gateway(tmp_path: Path, changelog: RatingsChangelog) -> Iterator[GatewayProcess]:
    changelog.put(dict(many(10)))
    changelog.publish()
    running = GatewayProcess(tmp_path / "gateway", changelog.bootstrap, tables_topic=changelog.tables_topic)
    with running:
        running.wait_until_serving()
        yield running


def _request(movie_id: int, **options: Any) -> Any:
    request: Any = catalogue_of().queries[GET].request_class(movie_id=movie_id)
    request.read_options.max_wait.seconds = MAX_WAIT_S
    for name, value in options.items():
        setattr(request.read_options, name, value)
    return request


def test_latest_has_what_was_written_before_the_call(gateway: GatewayProcess, changelog: RatingsChangelog) -> None:
    for number in range(WRITES):
        changelog.put({7: (5.0, number)})
        assert (
            gateway.ask("GetRating", _request(7, latest=True), deadline_s=2 * MAX_WAIT_S).rating.rating_count == number
        )


def test_a_read_waits_for_the_source_record_that_its_client_has_written(
    gateway: GatewayProcess, changelog: RatingsChangelog
) -> None:
    for number in range(WRITES):
        changelog.put({7: (5.0, number)})
        changelog.mark(source_next_offset=number + 1)
        request = _request(7)
        request.read_options.at_least_source.topics.add(topic="ratings").offsets[0] = number
        assert gateway.ask("GetRating", request, deadline_s=2 * MAX_WAIT_S).rating.rating_count == number


def test_a_source_record_that_is_not_there(
    gateway: GatewayProcess, changelog: RatingsChangelog, broker: Broker
) -> None:
    request = _request(7)
    request.read_options.at_least_source.topics.add(topic="none").offsets[0] = 1
    with pytest.raises(grpc.RpcError) as refused:
        gateway.ask("GetRating", request)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    manifest = changelog.manifest()
    del manifest.sources[:]
    manifest.sources.add(topic=changelog.topic, partition_count=2)  # any topic that exists
    changelog.publish(manifest)
    request = _request(7)
    request.read_options.at_least_source.topics.add(topic=changelog.topic).offsets[0] = 1_000_000

    def code() -> grpc.StatusCode:
        with pytest.raises(grpc.RpcError) as refused:
            gateway.ask("GetRating", request)
        return refused.value.code()

    while (found := code()) is grpc.StatusCode.INVALID_ARGUMENT:
        continue  # the gateway has the manifest of before
    assert found is grpc.StatusCode.OUT_OF_RANGE
