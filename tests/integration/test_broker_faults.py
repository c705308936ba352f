"""Brokers that lose what they have acknowledged, and a gateway that is away for longer than deletes are kept.

What readers and subscribers saw is checked when a run is over.
"""

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.kit.gateway_processes.cells.changelog import CONTRACT, Cells, filled_cells
from tests.kit.gateway_processes.cells.load import ALL_S, Load
from tests.kit.gateway_processes.cluster import Cluster
from tests.kit.gateway_processes.gateway import soon
from tests.kit.programs.brokers import Brokers
from tests.kit.programs.kafka import consume, new_topic

pytestmark = pytest.mark.jvm

PARTITIONS = 3
SHELVES, SHELF_CELLS = 30, 10
LEADER, FOLLOWER, WITNESS = 1, 2, 3
ALL_BROKERS = {LEADER, FOLLOWER, WITNESS}
SAFE = {"default.replication.factor": "3", "replica.lag.time.max.ms": "5000"}
BROKERS_S = 90.0
DOOMED_NUMBER = 500  # of cells that are deleted
TOMBSTONES_STAY_MS = 60_000  # the least that a gateway accepts
TOMBSTONES_GONE_S = 300.0


@contextmanager
def running(
    directory: Path, brokers: Brokers, new_changelog: Callable[..., str], names: str
) -> Iterator[tuple[Cells, Cluster]]:
    """Run brokers, and gateways of these names over cells in a topic that `new_changelog` makes."""
    with brokers:
        cells = filled_cells(
            brokers.bootstrap,
            shelves=SHELVES,
            shelf_cells=SHELF_CELLS,
            partition_count=PARTITIONS,
            new_changelog=new_changelog,
        )
        cluster = Cluster(
            directory,
            brokers.bootstrap,
            contract=CONTRACT,
            table=cells.table.name,
            partition_count=PARTITIONS,
            tables_topic=cells.tables_topic,
            names=names.split(),
        )
        with cluster:
            yield cells, cluster


def led_by_one(brokers: Brokers, _: str, partitions: int, prefix: str, **config: str) -> str:
    """Create a topic whose copies are with two brokers, and which one alone may go on with, though it misses some."""
    name = f"{prefix}-{uuid.uuid4().hex[:12]}"
    unsafe = {"min_insync_replicas": "1", "unclean_leader_election_enable": "true"}
    brokers.create_topic(name, [[LEADER, FOLLOWER]] * partitions, **config, **unsafe)
    return name


def is_led(brokers: Brokers, topic: str, by: int, in_sync: set[int]) -> bool:
    found = brokers.leaders(topic)
    return bool(found) and all(each == (by, in_sync) for each in found.values())


@pytest.mark.long
def test_a_changelog_that_lost_its_tail_is_told_by_nobody(tmp_path: Path) -> None:
    """One broker alone has the newest records, and is lost; one that was behind leads instead.

    Rows of the lost records are answered by nobody once the gateways know; tokens of them are refused.
    """
    brokers = Brokers(tmp_path, 3, settings=SAFE)
    with (
        running(tmp_path, brokers, partial(led_by_one, brokers), "g1 g2") as (cells, cluster),
        Load(cells, cluster) as load,
    ):
        topic = cells.newest.topic
        with load.history.fault("an election of a leader that misses records") as saw:
            brokers.kill(FOLLOWER)
            soon(lambda: is_led(brokers, topic, LEADER, {LEADER}), "one broker alone has it", BROKERS_S)
            load.wait_for_any(500)
            with load.writing.paused():
                cells.flush()
                before = len(consume(brokers.bootstrap, topic))
                brokers.kill(LEADER)
                brokers.start(FOLLOWER)
                soon(lambda: is_led(brokers, topic, FOLLOWER, {FOLLOWER}), "the other one leads", BROKERS_S)
                lost = before - cells.begin_anew()
                assert lost > 0, "nothing was lost"
                saw(f"{lost} records are lost")
            brokers.start(LEADER)
            soon(lambda: brokers.answers(ALL_BROKERS), "all brokers are there", BROKERS_S)
            cluster.wait_whole()
        load.finish()
        load.history.about("settled")
        load.wait_for_reads()
        print(f"\n{load.figures()}, tokens refused: {sum(reader.rebuilt for reader in load.readers)}")


def compacted_at_once(bootstrap: str, partitions: int, prefix: str, **config: str) -> str:
    """Create a topic whose tombstones go as soon as gateways allow."""
    soon_gone = {
        "delete_retention_ms": str(TOMBSTONES_STAY_MS),
        "segment_ms": "500",
        "min_cleanable_dirty_ratio": "0.0001",
    }
    return new_topic(bootstrap, partitions, prefix, **config, **soon_gone)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_deletes_are_told_whose_tombstones_are_gone(tmp_path: Path) -> None:
    """A replicator stands still for longer than deletes are kept: what goes on then is not what it had."""
    brokers = Brokers(tmp_path, settings={"log.cleaner.backoff.ms": "500"})
    with running(tmp_path, brokers, compacted_at_once, "") as (cells, cluster), ExitStack() as stack:
        member = cluster.add("g1", hang_limit_s=600.0)
        member.start()
        stack.callback(member.stop)
        cluster.wait_whole()
        load = stack.enter_context(Load(cells, cluster))
        doomed = {(shelf, DOOMED_NUMBER) for shelf in cells.shelves}  # nobody else writes them
        with load.writing.paused():
            cells.put(doomed)
            cells.flush()
        soon(lambda: doomed <= set(load.copies[0].rows), "the copy has what is deleted next", ALL_S)
        with load.history.fault("a replicator stands still") as saw:
            frozen = [member.replicator()]
            member.freeze(frozen)
            stack.callback(member.thaw, frozen)
            with load.writing.paused():
                cells.delete(doomed)
                cells.flush()
                deleted = cells.written
            soon(lambda: not cells.has_tombstones(deleted), "the tombstones are gone", TOMBSTONES_GONE_S)
            assert doomed <= set(load.copies[0].rows)
            saw("the tombstones of rows that it has are gone")
            load.history.about("restored")
        member.thaw(frozen)
        load.finish()
        load.wait_for_reads()
        print(f"\n{load.figures()}")
