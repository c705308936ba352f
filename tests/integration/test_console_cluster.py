"""The console while a gateway of a cluster, a process on a real Kafka, is killed."""

from pathlib import Path

import pytest

from tablegate.examples.demo.kafka import Broker
from tests.kit.gateway_processes.changelog import RatingsChangelog, many
from tests.kit.gateway_processes.cluster import Cluster
from tests.kit.programs.chromium import PROGRAM, Chromium
from tests.kit.programs.console_page import ConsolePage
from tests.kit.table.filled import RATINGS

pytestmark = [pytest.mark.jvm, pytest.mark.skipif(PROGRAM is None, reason="Chromium is not installed")]

PARTITIONS = 12


def test_a_kill_while_one_looks(tmp_path: Path, broker: Broker) -> None:
    changelog = RatingsChangelog(broker.bootstrap, partition_count=PARTITIONS)
    changelog.put(dict(many(300)))
    changelog.mark(source_next_offset=300)
    changelog.publish()
    cluster = Cluster(
        tmp_path,
        changelog.bootstrap,
        contract=RATINGS,
        table="ratings",
        partition_count=PARTITIONS,
        tables_topic=changelog.tables_topic,
        options=["--reflection"],
    )
    with cluster, Chromium() as browser:
        page = ConsolePage(browser, int(cluster["g1"].listens_at.rpartition(":")[2]))
        page.open("job/ratings")
        page.wait_for(".figures div", "it.innerText.includes('Newest marker') && it.innerText.includes('ago')")
        page.wait_for(".offsets", "it.innerText.includes('300')")
        page.open("calls")
        page.wait("Nobody is subscribed")
        page.open("map/ratings")
        page.wait_for("[data-gateway=g3]")
        assert _owners(page) == PARTITIONS
        cluster["g2"].kill()
        page.wait_for("[data-gateway=g2]", "it.innerText.includes('does not answer')")
        page.wait_for(".log li", "it.innerText.includes('g2 → ')")
        assert _owners(page) == PARTITIONS, "each partition has another one that answers"
        cluster.wait_whole()
        page.wait_for("[data-gateway=g3]", f"it.querySelectorAll('.owner, .standby').length === {PARTITIONS}")
        page.open("rows/ratings?query=SubscribeRatings")
        page.wait("300 rows, live")
        page.open("row/ratings?movieId=7")
        page.wait("The history of partition")
        cluster["g2"].start()
        page.open("map/ratings")
        page.wait_for("[data-gateway=g2] .cell.owner")
        assert not page.foreign_requests()


def _owners(page: ConsolePage) -> int:
    count: int = page.run("document.querySelectorAll('.cells .cell.owner').length")
    return count
