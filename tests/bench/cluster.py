"""Several gateways: what a hop costs, what more of them answer, restoring many partitions, and losing one.

All share the cores of this machine with the load: more gateways have no more cores.
"""

import itertools
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tablegate.examples.demo.kafka import Broker
from tests.bench.figures import Figures
from tests.bench.load import CONNECTIONS, Generators, Load, Requests, Target, say
from tests.kit.gateway_processes.cells.changelog import CONTRACT, SERVICE, CellKey, Cells, by_partition, filled_cells
from tests.kit.gateway_processes.cells.readers import request_of, until_readable
from tests.kit.gateway_processes.cluster import Cluster

GET_PATH = f"{SERVICE}/GetCell"
NAMES = ("g1", "g2", "g3")
PARTITIONS = 12
SHELF_CELLS = 25
SHELVES = 400
RESTORE_PARTITIONS = (12, 120, 1_200)
RESTORE_SHELVES = 4_000
RESTORE_TIMEOUT_S = 300.0
HOP_RATE = 500.0  # calls a second: few enough that none waits for another
KILLS = 10


def measure(work: Path, figures: Figures, *, seconds: float, repeat: int) -> None:
    """Record all figures."""
    directory = work / "cluster"
    directory.mkdir()
    generators = Generators(CONTRACT, directory)
    with Broker(directory / "kafka", log_file=directory / "kafka.log", compiler=()) as broker:
        cells = filled_cells(broker.bootstrap, shelves=SHELVES, shelf_cells=SHELF_CELLS, partition_count=PARTITIONS)
        place = _Place(directory, broker, cells)
        if generators.go:
            _measure_hop(place, generators, figures, seconds=seconds, repeat=repeat)
            _measure_rates(place, generators, figures, seconds=seconds, repeat=repeat)
        _measure_kills(place, figures)
        for partition_count in RESTORE_PARTITIONS:
            _measure_restore(directory, broker, partition_count, figures, repeat=min(repeat, 3))


@dataclass(frozen=True, slots=True)
class _Place:
    """What gateways serve, from which broker, and where they have their data."""

    directory: Path
    broker: Broker
    cells: Cells

    def cluster(self, name: str, names: Sequence[str], *, replicas: int = 2) -> Cluster:
        """Return gateways that are not started yet, in a new directory of that name."""
        place = self.directory / name
        place.mkdir()
        return Cluster(
            place,
            self.broker.bootstrap,
            contract=CONTRACT,
            table=self.cells.table.name,
            partition_count=self.cells.newest.partition_count,
            tables_topic=self.cells.tables_topic,
            names=names,
            replicas=replicas,
        )


def _requests(generators: Generators, keys: Collection[CellKey]) -> Requests:
    messages = [request_of("GetCell", shelf=shelf, number=number).SerializeToString() for shelf, number in keys]
    return generators.requests(GET_PATH, messages)


def _target(cluster: Cluster, name: str) -> Target:
    process = cluster[name].process
    assert process is not None
    return Target("tablegate", cluster[name].listens_at, process.pid)


def _measure_hop(place: _Place, generators: Generators, figures: Figures, *, seconds: float, repeat: int) -> None:
    """Ask one gateway for what it has, and for what only the other has, in turns."""
    say("Get here and from another gateway")
    with place.cluster("hop", NAMES[:2], replicas=1) as cluster:
        placement = cluster["g1"].placement(cluster.table)
        keys = by_partition(place.cells, place.cells.lasting)
        kinds = {
            kind: _requests(generators, [key for partition in placement[name] for key in keys[partition]])
            for kind, name in (("here", "g1"), ("forwarded", "g2"))
        }
        target = _target(cluster, "g1")
        loads: dict[str, list[Load]] = {kind: [] for kind in kinds}
        for _, (kind, requests) in itertools.product(range(repeat), kinds.items()):
            loads[kind].append(generators.calls(target, requests, seconds, connections=1, rate=HOP_RATE))
    for kind, each in loads.items():
        for percentile, values in (("p50", [one.p50_ms for one in each]), ("p99", [one.p99_ms for one in each])):
            figures.record(f"Get, {kind}, {percentile}", "tablegate", values, f"ms at {HOP_RATE:.0f}/s", load="Go")
    added = [away.p50_ms - here.p50_ms for here, away in zip(loads["here"], loads["forwarded"], strict=True)]
    figures.record("Get, what the hop adds to p50", "tablegate", added, "ms", load="Go")


def _measure_rates(place: _Place, generators: Generators, figures: Figures, *, seconds: float, repeat: int) -> None:
    """Ask all gateways at once for any keys; of three, each has two thirds of them."""
    requests = _requests(generators, place.cells.lasting)
    for count in range(1, len(NAMES) + 1):
        name = f"Get, any key, {count} gateway{'s' if count > 1 else ''}"
        say(name)
        with place.cluster(f"rates-{count}", NAMES[:count]) as cluster, ThreadPoolExecutor(count) as pool:

            def load(member: str, cluster: Cluster = cluster, count: int = count) -> float:
                target = _target(cluster, member)
                return generators.calls(target, requests, seconds, connections=CONNECTIONS // count).per_second

            rates = [sum(pool.map(load, NAMES[:count])) for _ in range(repeat)]
        figures.record(name, "tablegate", rates, "requests/s", load="Go")


def _measure_kills(place: _Place, figures: Figures) -> None:
    """Kill one of three gateways after another, and read each partition by the two that are left."""
    say(f"{KILLS} kills")
    took_s = []
    with place.cluster("kills", NAMES) as cluster:
        for number in range(KILLS):
            name = NAMES[number % len(NAMES)]
            begin_s = time.monotonic()
            cluster[name].kill()
            until_readable(place.cells, cluster)
            took_s.append(time.monotonic() - begin_s)
            cluster[name].start()
            cluster.wait_whole()
    figures.record("SIGKILL → all its partitions read by the others", "tablegate", took_s, "s")


def _measure_restore(directory: Path, broker: Broker, partition_count: int, figures: Figures, *, repeat: int) -> None:
    """Start a gateway with nothing, which is to have all partitions."""
    say(f"restore of {partition_count:,} partitions")
    cells = filled_cells(
        broker.bootstrap, shelves=RESTORE_SHELVES, shelf_cells=SHELF_CELLS, partition_count=partition_count
    )
    place = _Place(directory, broker, cells)
    name = f"restore, {RESTORE_SHELVES * SHELF_CELLS:,} rows, {partition_count:,} partitions"
    took_s, restore_s = [], []
    for number in range(repeat):
        member = place.cluster(f"restore-{partition_count}-{number}", NAMES[:1])["g1"]
        begin_s = time.monotonic()
        member.start()
        try:
            member.wait_until_serving(RESTORE_TIMEOUT_S)
            took_s.append(time.monotonic() - begin_s)
            restore_s.append(sum(_restored(member.log())))
        finally:
            member.stop()
    figures.record(f"{name}, from the start of the process", "tablegate", took_s, "s")
    figures.record(name, "tablegate", restore_s, "s")


def _restored(lines: Sequence[dict[str, object]]) -> list[float]:
    """Return the seconds that restores took, of which the log tells."""
    return [float(str(line["seconds"])) for line in lines if str(line["message"]).endswith(": restored")]
