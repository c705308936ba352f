"""When a table is served: here, or by others."""

from collections.abc import Collection
from typing import cast

import pytest

from tablegate.gateway.cluster.directory import Directory
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.call import Call, UnaryMethod
from tablegate.gateway.server.health import ReplicatorBeat, live_tables
from tablegate.gateway.server.metadata import status_methods
from tablegate.gateway.stores.base import Phase
from tablegate.v1.status_pb2 import GetStatusResponse
from tests.kit.replication.statuses import live, told
from tests.kit.replication.statuses import status as status_of
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import FilledTable, ratings_table

CALL = cast(Call, None)  # nothing is asked of it
NAMES = frozenset({"ratings"})


@pytest.fixture
def table() -> FilledTable:
    return ratings_table(MemoryStore(), 3)


def hold(table: FilledTable, here: Collection[int]) -> None:
    for partition in map(Partition, range(3)):
        table.move(partition, phase=Phase.LIVE if partition in here else Phase.RESTORING)


@pytest.mark.parametrize(
    ("here", "there", "is_served"),
    [([0, 1, 2], [], True), ([0], [1, 2], True), ([], [0, 1, 2], True), ([0, 1], [0, 1], False), ([], [], False)],
)
def test_each_partition_is_live_somewhere(
    here: list[int], there: list[int], is_served: bool, table: FilledTable
) -> None:
    hold(table, here)
    directory = told(status_of({"a": live(*here), "b": live(*there)}))
    assert live_tables(table.store, NAMES, directory) == (NAMES if is_served else frozenset())


def test_who_stands_alone_has_to_have_all_of_it(table: FilledTable) -> None:
    hold(table, [0, 1])
    assert live_tables(table.store, NAMES, Directory()) == frozenset()
    hold(table, [0, 1, 2])
    assert live_tables(table.store, NAMES, Directory()) == NAMES


def test_what_only_the_dead_have_is_not_served(table: FilledTable) -> None:
    hold(table, [0, 1])
    answer = status_of({"a": live(0, 1), "b": live(2)})
    answer.gateways[1].alive = False
    assert live_tables(table.store, NAMES, told(answer)) == frozenset()


def test_a_replicator_that_stores_no_other_status_is_late() -> None:
    now_s = [100.0]
    beat = ReplicatorBeat(20.0, lambda: now_s[0])
    assert not beat.is_late
    for status in (b"1", b"2"):
        now_s[0] += 19.9
        assert not beat.is_late
        beat.note(status)
    now_s[0] += 19.9
    beat.note(b"2")
    assert not beat.is_late
    now_s[0] += 0.1
    assert beat.is_late
    beat.note(b"3")
    assert not beat.is_late


def test_status_says_that_its_replicator_hangs(table: FilledTable) -> None:
    table.store.set_status(GetStatusResponse(gateway_id="a").SerializeToString())
    late = [False]
    [method] = status_methods(table.store, is_late=lambda: late[0]).values()
    assert isinstance(method, UnaryMethod)
    for is_late in (False, True):
        late[0] = is_late
        answer = GetStatusResponse.FromString(method.handler(b"", CALL))  # type: ignore[arg-type]
        assert answer == GetStatusResponse(gateway_id="a", replicator_hangs=is_late)
