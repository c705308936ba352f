"""Three gateways under all that can befall them, on a real Kafka; what readers and subscribers saw is checked then.

Every answer is held to the fold of the changelog when a run is over; and calls do not fail.
"""

import itertools
import shutil
import signal
import socket
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from tablegate.examples.demo.kafka import Broker, free_port
from tablegate.gateway.query.forwarding import HEARD_S
from tests.kit.gateway_processes.cells.changelog import CONTRACT, Cells, filled_cells
from tests.kit.gateway_processes.cells.load import ALL_S, Load
from tests.kit.gateway_processes.cells.readers import (
    EACH_IN_TURN,
    NO_RETRIES,
    Failure,
    FreshGets,
    Gets,
    Reader,
    ShelfWalks,
    TableWalks,
    until_readable,
)
from tests.kit.gateway_processes.cluster import Cluster, Member
from tests.kit.gateway_processes.gateway import soon
from tests.kit.programs.kafka import delete_topic
from tests.kit.programs.machine import NoSmallDisk, skewed, small_disk
from tests.kit.programs.release import last_release

pytestmark = pytest.mark.jvm

PARTITIONS = 12
SHELVES = 120
SHELF_CELLS = 25
IMPATIENT = (*NO_RETRIES, *EACH_IN_TURN)
HOUR_S = 3_600  # by which clocks of gateways may differ
PAUSE_MIN_S = 0.04  # by day: 150 reads a second, as faults last for seconds; 500 cost as much as all gateways
DISK_MIB = 320  # a gateway writes while 256 MiB are free
EMPTY = "all partitions are with other gateways: this one may be stopped"


def long(*values: Any, seconds: float = 1_800) -> Any:
    """Return the parameters of a test's long form."""
    return pytest.param(*values, marks=[pytest.mark.long, pytest.mark.timeout(seconds)], id="long")


class Site(NamedTuple):
    """A broker, the cells on it, and the gateways that serve them."""

    broker: Broker
    cells: Cells
    cluster: Cluster
    pause_min_s: float = PAUSE_MIN_S

    def load(self, names: Sequence[str] | None = None) -> Load:
        """Return clients of all kinds, who are to be started."""
        return Load(self.cells, self.cluster, names=names, pause_min_s=self.pause_min_s)


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
def site(request: pytest.FixtureRequest, running: Site) -> Site:
    """The gateways, all of them up and with all that they are to have, whatever the test before did."""
    for name in ("g1", "g2", "g3"):
        member = running.cluster[name]
        if member.environment:
            restarted(member)
        elif not member.is_up:
            member.start()
    running.cluster.wait_whole()
    return running._replace(pause_min_s=0.0) if request.node.get_closest_marker("long") else running


class Outage(NamedTuple):
    """From when to when, on the monotonic clock, a gateway's processes were dying."""

    begin_s: float
    end_s: float


def in_flight(failure: Failure, outages: Sequence[Outage]) -> bool:
    """Return whether a call was on its way when a gateway was killed."""
    return failure.code == "UNAVAILABLE" and any(
        failure.begin_s <= outage.end_s and outage.begin_s <= failure.end_s for outage in outages
    )


@pytest.mark.parametrize("kills", [pytest.param(3, id="short"), long(50)])
def test_a_killed_gateway_is_not_missed(site: Site, kills: int) -> None:
    """Each stays away for a moment; or until the others take it for dead; or until they have its partitions.

    Who asks another gateway sees nothing of it, though it tries nothing again.
    """
    cluster, outages, readable_s = site.cluster, [], []
    with site.load() as load:
        for number in range(kills):
            name = cluster.names_up[number % 3]
            load.wait_for_owner(name)
            other = client_of_another(site, name)
            with (
                Gets(load.history, site.cells, other, pause_s=0.002, options=NO_RETRIES) as impatient,
                load.history.fault(f"SIGKILL {number} of {name}"),
            ):
                soon(partial(has_read, impatient, 10), "it reads")
                begin_s = time.monotonic()
                cluster[name].kill()
                outages.append(Outage(begin_s, time.monotonic()))
                until_readable(site.cells, cluster)
                readable_s.append(time.monotonic() - begin_s)
                load.wait_for_reads()
            assert impatient.failures == [], "a client of a gateway that lives saw it"
            if number % 5 == 2:
                wait_until_dead(site, name)
            if number % 10 == 7:
                cluster.wait_whole()
            cluster[name].start()
            cluster.wait_whole()
        load.finish()
        tell(load, f"{kills} kills; readable after {spread(readable_s)} s")
        assert [failure for failure in (*load.failures, *load.breaks) if not in_flight(failure, outages)] == []


def restart(
    load: Load, cluster: Cluster, name: str, fault: str, environment: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Restart a gateway under load, and wait until the cluster is whole again."""
    load.wait_for_owner(name)
    with load.history.fault(fault):
        assert cluster[name].stop() == 0
        load.wait_for_reads()
    cluster[name].environment = environment
    cluster[name].start()
    cluster.wait_whole()


@pytest.mark.parametrize("restarts", [pytest.param(2, id="short"), long(20)])
def test_a_rolling_restart_fails_no_call(site: Site, restarts: int) -> None:
    cluster = site.cluster
    with site.load() as load:
        for number in range(restarts):
            name = cluster.names_up[number % 3]
            restart(load, cluster, name, f"SIGTERM {number} of {name}")
        load.finish()
        tell(load, f"{restarts} restarts")
        assert load.failures == []
        assert [broken for broken in load.breaks if broken.reason != "SHUTTING_DOWN"] == []


def test_gateways_of_the_last_release_serve_beside_these(site: Site, tmp_path: Path) -> None:
    """Each goes back to the release, one after the other, and then up to this version again, with the store it has."""
    cluster, release = site.cluster, last_release(tmp_path)
    with site.load() as load:
        for environment, name in itertools.product((release, {}), ("g1", "g2", "g3")):
            restart(load, cluster, name, f"SIGTERM of {name}", environment)
            load.wait_for_reads()
        load.finish()
        tell(load, "back to the last release and up again")
        assert load.failures == []
        assert [broken for broken in load.breaks if broken.reason != "SHUTTING_DOWN"] == []


@pytest.mark.parametrize("frozen_s", [pytest.param(4.0, id="short"), long(10.0)])
@pytest.mark.parametrize("only_replicator", [False, True], ids=["gateway", "replicator"])
def test_a_frozen_gateway_tells_no_lies(site: Site, frozen_s: float, only_replicator: bool) -> None:
    """Clients of the others see nothing of it; its own may wait, and get nothing older than they are told."""
    cluster, name = site.cluster, "g3"
    member = cluster[name]
    with (
        site.load(["g1", "g2"]) as load,
        Gets(load.history, site.cells, cluster.target(names=[name]), pause_s=0.01) as own,
        ShelfWalks(load.history, site.cells, cluster.target(names=[name]), pause_s=0.01) as walks,
        Gets(
            load.history, site.cells, cluster.target(names=["g1", name]), pause_s=0.005, options=EACH_IN_TURN
        ) as roaming,
    ):
        clients = own, walks, roaming
        load.wait_for_owner(name)
        for reader in clients:
            soon(partial(has_read, reader, 1), "its own clients read")
        frozen = [member.replicator()] if only_replicator else None
        with load.history.fault(f"SIGSTOP of {name}"):
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
        assert [*load.failures, *load.breaks] == []
        wanted = {"UNAVAILABLE"} if only_replicator else {"UNAVAILABLE", "DEADLINE_EXCEEDED"}
        assert {failure.code for reader in clients for failure in reader.failures} <= wanted


@pytest.mark.parametrize("wipes", [pytest.param(1, id="short"), long(9)])
def test_a_gateway_that_lost_its_store_answers_by_others(site: Site, wipes: int) -> None:
    cluster = site.cluster
    with site.load() as load:
        for number in range(wipes):
            name = cluster.names_up[number % 3]
            load.wait_for_owner(name)
            with load.history.fault(f"loss {number} of the store of {name}"):
                assert cluster[name].stop() == 0
                shutil.rmtree(cluster[name].data)
                load.wait_for_reads()
                cluster[name].start()
                with Gets(load.history, site.cells, cluster.target(names=[name]), pause_s=0.005) as own:
                    soon(partial(has_read, own, 10), "it answers")
                    cluster.wait_whole()
            assert own.failures == []
        load.finish()
        tell(load, f"{wipes} wipes")
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
        load = stack.enter_context(site.load(["g1", "g2", "g3"]))
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
        assert [*load.failures, *load.breaks] == []


@pytest.mark.parametrize("times", [pytest.param(1, id="short"), long(5)])
def test_gateways_come_and_go(site: Site, times: int) -> None:
    cluster, member = site.cluster, site.cluster["g4"]
    with site.load(["g1", "g2", "g3"]) as load:
        for number in range(times):
            member.start()
            with (
                load.history.fault(f"{number}: g4 comes and goes"),
                Gets(load.history, site.cells, cluster.target(names=["g4"]), pause_s=0.005) as own,
            ):
                cluster.wait_whole()
                load.wait_for_owner("g4")
                member.signal(signal.SIGUSR1)
                cluster.wait_whole(without=["g4"])
                soon(lambda: EMPTY in [line["message"] for line in member.log()], "it says that it is empty")
                soon(partial(has_read, own, own.reads + 1), "it still answers")
            assert own.failures == []
            assert member.stop() == 0
            cluster.wait_whole()
        load.finish()
        tell(load, f"a fourth came and went {times} times")
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
        site.load() as load,
        Gets(
            load.history, cells, cluster.target(), pause_s=max(0.002, site.pause_min_s / 4), options=IMPATIENT
        ) as gets,
        TableWalks(load.history, cells, cluster.target(), pause_s=0.02, options=IMPATIENT) as walks,
    ):
        for number in range(rebuilds):
            old = cells.newest
            cluster.partition_count = (PARTITIONS, more, more, PARTITIONS)[number % 4]
            with load.history.fault(f"rebuild {number}"):
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
        assert [failure for failure in impatient if failure.end_s - failure.begin_s < HEARD_S] == []
        assert load.failures == []
        assert [broken for broken in load.breaks if broken.reason != "SHUTTING_DOWN"] == []
        assert all(copy.resets == rebuilds + 1 for copy in load.copies)


@pytest.mark.parametrize("restarts", [pytest.param(1, id="short"), long(5)])
def test_a_restart_of_the_broker_loses_nothing(site: Site, restarts: int) -> None:
    """While it is away, a gateway may be asked for what only another had: that is the one thing it may refuse."""
    cluster = site.cluster
    with site.load() as load:
        for number in range(restarts):
            load.wait_for_reads()
            with load.history.fault(f"restart {number} of the broker") as saw:
                if number % 2:
                    site.broker.kill()
                else:
                    site.broker.stop()
                load.wait_for_any(100)
                soon(lambda: site.cells.unacknowledged > 0, "changes wait for Kafka")
                saw(f"{site.cells.unacknowledged} changes waited for Kafka, and gateways answered")
                site.broker.start()
                cluster.wait_whole()
        load.finish()
        tell(load, f"{restarts} restarts of the broker")
        assert {failure.reason for failure in (*load.failures, *load.breaks)} <= {"NOT_CAUGHT_UP"}


@pytest.mark.parametrize("skews_s", [pytest.param([61, -7_200], id="short"), long([61, -61, 7_200, -7_200])])
def test_a_gateway_whose_clock_is_wrong_tells_no_lies(site: Site, tmp_path: Path, skews_s: Sequence[int]) -> None:
    """What an answer says of its time is by Kafka's clock. By minutes, nobody notices anything.

    By hours, gateways do not believe each other who asks: the others pass it over, and its own clients are told why.
    """
    cluster, member = site.cluster, site.cluster["g3"]
    own_target = cluster.target(names=["g3"])
    with site.load(["g1", "g2"]) as load:
        with ExitStack() as stack:
            stack.callback(restarted, member)
            for number, skew_s in enumerate(skews_s):
                assert member.stop() == 0
                processes = tmp_path / str(number)
                member.environment = skewed(processes, skew_s)
                member.start()
                with (
                    load.history.fault(f"the clock of g3 is {skew_s} s off") as saw,
                    Gets(load.history, site.cells, own_target, pause_s=0.01) as own,
                    FreshGets(load.history, site.cells, own_target, pause_s=0.01) as fresh,
                ):
                    cluster.wait_whole()
                    load.wait_for_reads()
                    for reader in (own, fresh):
                        # What is to be young is refused where its clock is ahead, after a second each time.
                        soon(partial(has_read, reader, 20), "its own clients read", seconds=120)
                    assert {str(pid) for pid in member.children()} <= {each.name for each in processes.iterdir()}
                    saw(f"{len(member.children())} processes had it")
                reasons = {failure.reason for failure in (*own.failures, *fresh.failures)}
                assert reasons <= ({"FOREIGN_FORWARD"} if abs(skew_s) > HOUR_S else set())
        cluster.wait_whole()
        load.finish()
        tell(load, f"a clock {skews_s} s off")
        assert load.failures == []
        assert [broken for broken in load.breaks if broken.reason != "SHUTTING_DOWN"] == []


def restarted(member: Member) -> None:
    """Start a gateway again, with a clock that is right, and of this version."""
    member.stop()
    member.environment = {}
    member.start()


def test_a_gateway_whose_disk_is_full_serves_what_it_has(site: Site) -> None:
    """It stays a member, answers what is stored, and catches up once there is room."""
    cluster = site.cluster
    member = cluster.add("small", zone="b")
    with ExitStack() as stack:
        try:
            disk = stack.enter_context(small_disk(member.data, DISK_MIB))
        except NoSmallDisk as error:
            pytest.skip(f"no file system may be mounted here: {error}")
        load = stack.enter_context(site.load(["g1", "g2", "g3"]))
        stack.callback(member.stop)
        member.start()
        cluster.wait_whole()
        own = stack.enter_context(Gets(load.history, site.cells, cluster.target(names=["small"]), pause_s=0.01))
        with load.history.fault("its disk is full") as saw:
            disk.fill()
            soon(member.behind, "it is behind")
            saw(f"{disk.free_bytes()} bytes are free")
            behind_by = sum(member.behind().values())
            soon(partial(has_read, own, own.reads + 100), "its own clients read")
            soon(lambda: sum(member.behind().values()) > behind_by, "it stands still")
            assert "small" in cluster["g1"].placement(cluster.table), "it is dead to the others"
            saw(f"it is {sum(member.behind().values())} records behind, and its clients were answered")
        disk.free()
        soon(lambda: not member.behind(), "it has caught up", ALL_S)
        load.finish()
        tell(load, f"a full disk; its own clients' failures: {own.failures}")
        assert own.failures == []
        assert [*load.failures, *load.breaks] == []


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
