"""A topic that others write, shared out among the gateways of a cluster: each answers all of it."""

from pathlib import Path

import pytest

from tablegate.examples.demo.kafka import Broker
from tests.kit.gateway_processes.cluster import Cluster
from tests.kit.gateway_processes.foreign import ForeignTables
from tests.kit.programs.kafka import new_topic
from tests.kit.table.foreign import FOREIGN, TOPICS

pytestmark = pytest.mark.jvm

COUNT = 60
PARTITIONS = 6


@pytest.mark.parametrize("partitioner", ["murmur2", "unknown"])
def test_each_gateway_answers_all_of_a_topic(tmp_path: Path, broker: Broker, partitioner: str) -> None:
    tables = ForeignTables(tmp_path, broker.bootstrap)
    topic = next(one for one in TOPICS if one.name == "utf8, json")
    name = new_topic(broker.bootstrap, PARTITIONS, "orders", cleanup_policy="compact")

    def write(start: int) -> None:
        rows = [topic.columns(number) for number in range(start, start + COUNT)]
        tables.write(name, [(topic.key(row), topic.key(row), topic.value(row)) for row in rows], PARTITIONS)

    write(0)
    tables.add("orders", "--topic", name, "--key", "utf8", "--value", "json", "--partitioner", partitioner)
    cluster = Cluster(
        tmp_path,
        broker.bootstrap,
        contract=FOREIGN,
        table="orders",
        partition_count=PARTITIONS,
        tables_topic=tables.tables_topic,
    )
    with cluster:
        write(COUNT)
        for member in cluster.up:
            tables.gateway = member
            _check(tables, latest=True)
        cluster["g2"].kill()
        for member in cluster.up:
            tables.gateway = member
            _check(tables)


def _check(tables: ForeignTables, **options: bool) -> None:
    topic = next(one for one in TOPICS if one.name == "utf8, json")
    expected = [topic.row(topic.columns(number)) for number in range(2 * COUNT)]
    for row in expected:
        assert tables.get("orders", row, **options) == row
    assert sorted(map(str, tables.rows("orders"))) == sorted(map(str, expected))
