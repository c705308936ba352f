"""Networks that fail between a gateway and Kafka, and between gateways, while clients reach every gateway.

What readers and subscribers saw is checked when a run is over.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import pytest

from tests.kit.gateway_processes.cells.changelog import CONTRACT, Cells, filled_cells
from tests.kit.gateway_processes.cells.load import Load
from tests.kit.gateway_processes.cells.readers import FreshGets, Gets
from tests.kit.gateway_processes.cluster import Cluster
from tests.kit.gateway_processes.gateway import soon
from tests.kit.programs.brokers import Brokers
from tests.kit.programs.network import Link

pytestmark = pytest.mark.jvm

PARTITIONS = 6
SHELVES, SHELF_CELLS = 60, 10
LINKED = "g2"
WAYS: dict[str, Callable[[Link], None]] = {
    "cut": Link.cut,
    "answers stall": partial(Link.stall, there=False),
    "requests stall": partial(Link.stall, back=False),
    "all stalls": Link.stall,
    "slow": partial(Link.slow, delay_s=0.3),
}
SHORT, LONG = ["cut", "answers stall"], list(WAYS)


class Site(NamedTuple):
    """Gateways of which one reaches Kafka through one link, and is reached by the others through another one."""

    cells: Cells
    cluster: Cluster
    to_kafka: Link
    from_others: Link


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("network")
    with ExitStack() as stack:
        brokers = stack.enter_context(Brokers(directory, linked=[LINKED]))
        link = stack.enter_context(Link())
        cells = filled_cells(brokers.bootstrap, shelves=SHELVES, shelf_cells=SHELF_CELLS, partition_count=PARTITIONS)
        cluster = Cluster(
            directory,
            brokers.bootstrap,
            contract=CONTRACT,
            table=cells.table.name,
            partition_count=PARTITIONS,
            tables_topic=cells.tables_topic,
        )
        bootstrap = brokers.bootstrap_of(LINKED)
        member = cluster.add(LINKED, zone="b", advertise=link.address, bootstrap=bootstrap)
        link.target = member.listens_at
        stack.enter_context(cluster)
        yield Site(cells, cluster, brokers.links[LINKED, 1], link)


@pytest.fixture
def site(running: Site) -> Site:
    """The gateways, all of them with all that they are to have, whatever the test before did."""
    for link in (running.to_kafka, running.from_others):
        link.mend()
    running.cluster.wait_whole()
    return running


def ways_of(*, seconds: float = 900) -> list[object]:
    """Return the short and the long form of a test."""
    return [
        pytest.param(SHORT, id="short"),
        pytest.param(LONG, marks=[pytest.mark.long, pytest.mark.timeout(seconds)], id="long"),
    ]


def is_dead_to_the_others(site: Site) -> bool:
    return all(LINKED not in site.cluster[name].placement(site.cluster.table) for name in ("g1", "g3"))


@pytest.mark.parametrize("ways", ways_of())
def test_a_gateway_that_is_cut_off_from_kafka_tells_no_lies(site: Site, ways: Sequence[str]) -> None:
    """The others take it for dead, and go on. Its own clients get what it has, and are told how old that is."""
    cells, link = site.cells, site.to_kafka
    own_target = site.cluster.target(names=[LINKED])
    with (
        Load(cells, site.cluster, names=["g1", "g3"]) as load,
        Gets(load.history, cells, own_target, pause_s=0.01) as own,
        FreshGets(load.history, cells, own_target, pause_s=0.01) as fresh,
    ):
        for way in ways:
            load.wait_for_owner(LINKED)
            with load.history.fault(f"{LINKED} and Kafka: {way}") as saw:
                WAYS[way](link)
                if way == "slow":
                    before = link.delayed_bytes
                    soon(lambda before=before: link.delayed_bytes > before, "something is slow")
                    saw("it was slow")
                else:
                    soon(partial(is_dead_to_the_others, site), f"{LINKED} is dead to the others", 60)
                    # A client tries again to its deadline: a fault that ends before then refuses nothing.
                    refused = fresh.refused
                    soon(lambda refused=refused: fresh.refused > refused, f"{LINKED} refuses what it cannot know", 60)
                load.wait_for_reads()
            link.mend()
            site.cluster.wait_whole()
            load.wait_for_reads()
        load.finish()
        print(f"\n{load.figures()}; its own clients: {own.reads} read, {fresh.refused} refused, {own.failures[:3]}")
        assert [*load.failures, *load.breaks] == []
        assert {failure.code for failure in (*own.failures, *fresh.failures)} <= {"UNAVAILABLE"}


@pytest.mark.parametrize("ways", ways_of())
def test_gateways_that_cannot_reach_each_other_tell_no_lies(site: Site, ways: Sequence[str]) -> None:
    """Each is alive to the others, as Kafka has its beats; yet who asks it hears nothing."""
    link = site.from_others
    with Load(site.cells, site.cluster) as load:
        for way in ways:
            load.wait_for_owner(LINKED)
            before = link.cuts, link.delayed_bytes
            with load.history.fault(f"the others and {LINKED}: {way}") as saw:
                WAYS[way](link)
                load.wait_for_reads(each=5)
                soon(lambda before=before: (link.cuts, link.delayed_bytes) != before, "somebody noticed")
                saw(f"{link.cuts - before[0]} connections cut, {link.delayed_bytes - before[1]} bytes held up")
                load.wait_for_reads()
            link.mend()
            load.wait_for_reads()
        load.finish()
        print(f"\n{load.figures()}")
        assert {failure.code for failure in (*load.failures, *load.breaks)} <= {"UNAVAILABLE"}
