"""Three gateways under all that can befall them, on a real Kafka, with readers and subscribers that watch every answer.

No reader misses a row that exists, sees one go back, or an answer older than it says; and calls do not fail.
"""

import shutil
import signal
import socket
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import pytest
from tablegate.examples.demo.kafka import Broker
from tablegate.gateway.query.forwarding import HEARD_S

from tests.kit.gateway_processes.cells.changelog import CONTRACT, Cells, filled_cells
from tests.kit.gateway_processes.cells.load import Load
from tests.kit.gateway_processes.cells.readers import (
    EACH_IN_TURN,
    NO_RETRIES,
    Failure,
    Gets,
    Reader,
    ShelfWalks,
    TableWalks,
    until_readable,
)
from tests.kit.gateway_processes.cluster import Cluster, free_port
from tests.kit.gateway_processes.gateway import soon
from tests.kit.programs.kafka import delete_topic

pytestmark = pytest.mark.jvm

PARTITIONS = 12
SHELVES = 120
SHELF_CELLS = 25
EMPTY = "all partitions are with other gateways: this one may be stopped"


def long(*values: Any, seconds: float = 1_800) -> Any:
    """Return the parameters of a test's long form."""
    return pytest.param(*values, marks=[pytest.mark.long, pytest.mark.timeout(seconds)], id="long")


class Site(NamedTuple):
    """A broker, the cells on it, and the gateways that serve them."""

    broker: Broker
    cells: Cells
    cluster: Cluster


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("cluster")
    with Broker(directory / "kafka", port=free_port(), log_file=directory / "kafka.log") as broker:
        cells = filled_cells(broker.bootstrap, shelves=SHELVES, shelf_cells=SHELF_CELLS, partition_count=PARTITIONS)
        cluster = Cluster(
            directory,
            broker.bootstrap,
            contract=CONTRACT,
            table=cells.table.name,
            partition_count=PARTITIONS,
            tables_topic=cells.tables_topic,
            spare=["g4"],
        )
        with cluster:
            yield Site(broker, cells, cluster)


@pytest.fixture
def site(running: Site) -> Site:
    """The gateways, all of them up and with all that they are to have, whatever the test before did."""
    for name in ("g1", "g2", "g3"):
        if not running.cluster[name].is_up:
            running.cluster[name].start()
    running.cluster.wait_whole()
    return running


class Outage(NamedTuple):
    """From when to when, on the monotonic clock, a gateway's processes were dying."""

    begin_s: float
    end_s: float


def in_flight(failure: Failure, outages: Sequence[Outage]) -> bool:
    """Return whether a call was on its way when a gateway was killed."""
    return failure.code == "UNAVAILABLE" and any(
        failure.begin_s <= outage.end_s and outage.begin_s <= failure.end_s for outage in outages
    )


@pytest.mark.parametrize("kills", [pytest.param(5, id="short"), long(50)])
def test_a_killed_gateway_is_not_missed(site: Site, kills: int) -> None:
    """Each stays away for a moment; or until the others take it for dead; or until they have its partitions.

    Who asks another gateway sees nothing of it, though it tries nothing again.
    """
    cluster, outages, readable_s = site.cluster, [], []
    with Load(site.cells, cluster) as load:
        for number in range(kills):
            name = cluster.names_up[number % 3]
            load.wait_for_owner(name)
            with Gets(site.cells, client_of_another(site, name), pause_s=0.002, options=NO_RETRIES) as impatient:
                soon(partial(has_read, impatient, 10), "it reads")
                begin_s = time.monotonic()
                cluster[name].kill()
                outages.append(Outage(begin_s, time.monotonic()))
                until_readable(site.cells, cluster)
                readable_s.append(time.monotonic() - begin_s)
                load.wait_for_reads()
            assert impatient.violations == []
            assert impatient.failures == [], "a client of a gateway that lives saw it"
            if number % 5 == 2:
                wait_until_dead(site, name)
            if number % 10 == 7:
                cluster.wait_whole()
            cluster[name].start()
            cluster.wait_whole()
        load.finish()
    tell(load, f"{kills} kills; readable after {spread(readable_s)} s")
    assert load.violations == []
    assert [failure for failure in (*load.failures, *load.breaks) if not in_flight(failure, outages)] == []


@pytest.mark.parametrize("restarts", [pytest.param(3, id="short"), long(20)])
def test_a_rolling_restart_fails_no_call(site: Site, restarts: int) -> None:
    cluster = site.cluster
    with Load(site.cells, cluster) as load:
        for number in range(restarts):
            name = cluster.names_up[number % 3]
            load.wait_for_owner(name)
            assert cluster[name].stop() == 0
            load.wait_for_reads()
            cluster[name].start()
            cluster.wait_whole()
        load.finish()
    tell(load, f"{restarts} restarts")
    assert load.violations == []
    assert load.failures == []
    assert {broken.reason for broken in load.breaks} <= {"SHUTTING_DOWN"}


@pytest.mark.parametrize("frozen_s", [pytest.param(4.0, id="short"), long(10.0)])
@pytest.mark.parametrize("only_replicator", [False, True], ids=["gateway", "replicator"])
def test_a_frozen_gateway_tells_no_lies(site: Site, frozen_s: float, only_replicator: bool) -> None:
    """Clients of the others see nothing of it; its own may wait, and get nothing older than they are told."""
    cluster, name = site.cluster, "g3"
    member = cluster[name]
    with (
        Load(site.cells, cluster, names=["g1", "g2"]) as load,
        Gets(site.cells, cluster.target(names=[name]), pause_s=0.01) as own,
        ShelfWalks(site.cells, cluster.target(names=[name]), pause_s=0.01) as walks,
        Gets(site.cells, cluster.target(names=["g1", name]), pause_s=0.005, options=EACH_IN_TURN) as roaming,
    ):
        clients = own, walks, roaming
        load.wait_for_owner(name)
        for reader in clients:
            soon(partial(has_read, reader, 1), "its own clients read")
        frozen = [member.replicator()] if only_replicator else None
        member.freeze(frozen)
        time.sleep(frozen_s)
        wait_until_dead(site, name)
        load.wait_for_reads()
        member.thaw(frozen)
        cluster.wait_whole()
        for reader in clients:
            soon(partial(has_read, reader, reader.reads + 1), "its own clients read again")
        load.finish()
    tell(load, f"its own clients' calls failed: {[len(reader.failures) for reader in clients]}")
    assert load.violations + own.violations + walks.violations + roaming.violations == []
    assert [*load.failures, *load.breaks] == []
    wanted = {"UNAVAILABLE"} if only_replicator else {"UNAVAILABLE", "DEADLINE_EXCEEDED"}
    assert {failure.code for reader in clients for failure in reader.failures} <= wanted


@pytest.mark.parametrize("wipes", [pytest.param(1, id="short"), long(9)])
def test_a_gateway_that_lost_its_store_answers_by_others(site: Site, wipes: int) -> None:
    cluster = site.cluster
    with Load(site.cells, cluster) as load:
        for number in range(wipes):
            name = cluster.names_up[number % 3]
            load.wait_for_owner(name)
            assert cluster[name].stop() == 0
            shutil.rmtree(cluster[name].data)
            cluster[name].start()
            with Gets(site.cells, cluster.target(names=[name]), pause_s=0.005) as own:
                soon(partial(has_read, own, 10), "it answers")
                cluster.wait_whole()
            assert own.violations == []
            assert own.failures == []
        load.finish()
    tell(load, f"{wipes} wipes")
    assert load.violations == []
    assert load.failures == []


@pytest.mark.parametrize("is_silent", [pytest.param(False, id="short"), long(True)])
def test_a_gateway_that_nobody_can_reach_is_no_harm(site: Site, is_silent: bool) -> None:
    """Either nobody listens where it says that it is, or somebody who never says a word."""
    cluster = site.cluster
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", free_port()))
        if is_silent:
            listener.listen(100)
        host, port = listener.getsockname()
        name = f"away-{is_silent}"
        member = cluster.add(name, advertise=f"{host}:{port}")
        load = stack.enter_context(Load(site.cells, cluster, names=["g1", "g2", "g3"]))
        stack.callback(member.stop)
        member.start()
        cluster.wait_whole()
        assert cluster["g1"].placement(cluster.table)[name], "it has nothing: nobody asks for it"
        load.wait_for_reads(each=10)
        member.signal(signal.SIGUSR1)
        cluster.wait_whole(without=[name])
        assert member.stop() == 0
        load.finish()
    tell(load, "one out of reach")
    assert load.violations == []
    assert [*load.failures, *load.breaks] == []


@pytest.mark.parametrize("times", [pytest.param(1, id="short"), long(5)])
def test_gateways_come_and_go(site: Site, times: int) -> None:
    cluster, member = site.cluster, site.cluster["g4"]
    with Load(site.cells, cluster, names=["g1", "g2", "g3"]) as load:
        for _ in range(times):
            member.start()
            with Gets(site.cells, cluster.target(names=["g4"]), pause_s=0.005) as own:
                cluster.wait_whole()
                load.wait_for_owner("g4")
                member.signal(signal.SIGUSR1)
                cluster.wait_whole(without=["g4"])
                soon(lambda: EMPTY in [line["message"] for line in member.log()], "it says that it is empty")
                soon(partial(has_read, own, own.reads + 1), "it still answers")
            assert own.violations == []
            assert own.failures == []
            assert member.stop() == 0
            cluster.wait_whole()
        load.finish()
    tell(load, f"a fourth came and went {times} times")
    assert load.violations == []
    assert [*load.failures, *load.breaks] == []


@pytest.mark.parametrize("rebuilds", [pytest.param(2, id="short"), long(12)])
def test_a_rebuild_fails_no_call(site: Site, rebuilds: int) -> None:
    """The next generation has as many partitions as the one before, or more, or fewer; a gateway may restart meanwhile.

    Tokens of the generation before are refused, and clients go on without. A client that tries nothing again sees
    nothing of it, unless the gateways take longer to switch than it is kept waiting.
    """
    cluster, cells = site.cluster, site.cells
    more = PARTITIONS + PARTITIONS // 2
    with (
        Load(cells, cluster) as load,
        Gets(cells, cluster.target(), pause_s=0.002, options=(*NO_RETRIES, *EACH_IN_TURN)) as gets,
        TableWalks(cells, cluster.target(), pause_s=0.02, options=(*NO_RETRIES, *EACH_IN_TURN)) as walks,
    ):
        for number in range(rebuilds):
            old = cells.newest
            cluster.partition_count = (PARTITIONS, more, more, PARTITIONS)[number % 4]
            with load.writing.paused():
                cells.rebuild(cluster.partition_count)
            load.wait_for_reads()
            if number % 3 == 2:
                name = cluster.names_up[number % 3]
                assert cluster[name].stop() == 0
                cluster[name].start()
            with load.writing.paused():
                cells.end_old()
            cluster.wait_generation(cells.newest.number)
            delete_topic(cells.bootstrap, old.topic)
            cluster.wait_whole()
            load.wait_for_reads()
        load.finish()
    impatient = [*gets.failures, *walks.failures]
    tell(load, f"{rebuilds} rebuilds; without retries {gets.reads + walks.reads} calls, {len(impatient)} failed")
    assert load.violations + gets.violations + walks.violations == []
    assert [failure for failure in impatient if failure.end_s - failure.begin_s < HEARD_S] == []
    assert load.failures == []
    assert {broken.reason for broken in load.breaks} <= {"SHUTTING_DOWN"}
    assert all(copy.resets == rebuilds + 1 for copy in load.copies)


@pytest.mark.parametrize("restarts", [pytest.param(1, id="short"), long(5)])
def test_a_restart_of_the_broker_loses_nothing(site: Site, restarts: int) -> None:
    """While it is away, a gateway may be asked for what only another had: that is the one thing it may refuse."""
    cluster = site.cluster
    with Load(site.cells, cluster) as load:
        for number in range(restarts):
            load.wait_for_reads()
            if number % 2:
                site.broker.kill()
            else:
                site.broker.stop()
            load.wait_for_any(100)
            site.broker.start()
            cluster.wait_whole()
        load.finish()
    tell(load, f"{restarts} restarts of the broker")
    assert load.violations == []
    assert {failure.reason for failure in (*load.failures, *load.breaks)} <= {"NOT_CAUGHT_UP"}


def client_of_another(site: Site, name: str) -> str:
    """Return the target of a client that knows another gateway alone."""
    other = next(each for each in site.cluster.names_up if each != name)
    return site.cluster.target(names=[other])


def has_read(reader: Reader, reads: int) -> bool:
    return reader.reads >= reads


def wait_until_dead(site: Site, name: str) -> None:
    """Wait until the others take a gateway for dead."""
    others = [member for other, member in site.cluster.members.items() if member.is_up and other != name]
    soon(lambda: all(name not in other.placement(site.cluster.table) for other in others), f"{name} is dead")


def tell(load: Load, what: str) -> None:
    """Print what the load saw, for whoever looks (`pytest -s`)."""
    print(f"\n{what}; {load.figures()}")


def spread(values: Sequence[float]) -> str:
    return f"median {statistics.median(values):.3f}, most {max(values):.3f}"
