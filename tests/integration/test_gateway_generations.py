"""From one generation of a table to the next on a real Kafka: topics deleted and made anew, a restart in the middle."""

from pathlib import Path

import grpc
import pytest

from tablegate.examples.demo.kafka import Broker
from tests.kit.gateway_processes.changelog import RatingsChangelog, many
from tests.kit.gateway_processes.gateway import GatewayProcess, soon
from tests.kit.programs.kafka import delete_topic

pytestmark = pytest.mark.jvm


def _told(gateway: GatewayProcess, words: str) -> bool:
    return any(words in str(line["message"]) for line in gateway.log())


def _serves(gateway: GatewayProcess, *, generation: int) -> bool:
    table = gateway.status().tables[0]
    return table.serving and table.manifest.generation == generation


def test_nothing_goes_back_by_a_new_generation(tmp_path: Path, broker: Broker) -> None:
    old = RatingsChangelog(broker.bootstrap, partition_count=1)
    new = RatingsChangelog(broker.bootstrap, partition_count=1, generation=2)
    new.tables_topic = old.tables_topic
    old.put(dict(many(300, average=1.0)))
    old.publish()
    gateway = GatewayProcess(tmp_path / "gateway", broker.bootstrap, tables_topic=old.tables_topic)
    with gateway:
        gateway.wait_until_serving()
        new.put(dict(many(400, average=2.0)))
        new.mark(4)
        new.publish()
        soon(lambda: _told(gateway, "partition 0 of generation 1 has no last marker yet"), "generation 2 is restored")
        old.put({7: (9.0, 9)})
        soon(lambda: gateway.rows() == old.rows, "generation 1 is followed on")
        old.mark(5, final=True)
        soon(lambda: _told(gateway, "has no marker yet for offset 5"), "the last marker is applied")
        delete_topic(broker.bootstrap, old.topic)
        gateway.stop()
    with gateway:
        gateway.wait_until_serving()
        assert gateway.rows() == old.rows
        new.put({7: (9.5, 10)})
        assert gateway.rows() == old.rows
        new.mark(5)
        soon(lambda: gateway.rows() == new.rows, "generation 2 is served")
    assert not [line for line in gateway.log() if line["level"] == "warning"]


def test_a_changelog_made_anew_is_served_as_a_new_generation_only(tmp_path: Path, broker: Broker) -> None:
    old = RatingsChangelog(broker.bootstrap, partition_count=1)
    old.put(dict(many(300)))
    old.publish()
    with GatewayProcess(tmp_path / "gateway", broker.bootstrap, tables_topic=old.tables_topic) as gateway:
        gateway.wait_until_serving()
        old.recreate_topic()
        old.put(dict(many(10)))
        old.publish()
        soon(lambda: _told(gateway, "was replaced by one with another topic id"), "the manifest is refused")
        for movie_id in (7, 1_000):
            with pytest.raises(grpc.RpcError) as caught:
                gateway.ask("GetRating", movie_id=movie_id)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        soon(lambda: "its changelog was made anew" in gateway.status().tables[0].problem, "the status says why")
        assert [line for line in gateway.log() if line["level"] == "error"]
        new = RatingsChangelog(broker.bootstrap, partition_count=1, generation=2)
        new.tables_topic = old.tables_topic
        new.put(dict(many(20)))
        new.publish()
        soon(lambda: _serves(gateway, generation=2), "generation 2 is served")
        assert gateway.rows() == new.rows
