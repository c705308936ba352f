"""From one generation of a table to the next on a real Kafka: the old topic deleted, a restart in the middle."""

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from streamjobs.local.kafka import Broker
from tests.support.changelog import RatingsChangelog, many
from tests.support.gateway import GatewayProcess, soon

pytestmark = pytest.mark.jvm


def _told(gateway: GatewayProcess, words: str) -> bool:
    return any(words in str(line["message"]) for line in gateway.log())


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
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.delete_topics([old.topic])[old.topic].result(20)
        gateway.stop()
    with gateway:
        gateway.wait_until_serving()
        assert gateway.rows() == old.rows
        new.put({7: (9.5, 10)})
        assert gateway.rows() == old.rows
        new.mark(5)
        soon(lambda: gateway.rows() == new.rows, "generation 2 is served")
    assert not [line for line in gateway.log() if line["level"] == "warning"]
