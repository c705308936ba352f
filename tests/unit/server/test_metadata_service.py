"""Where a table is: told by gateways that share one, and by one that stands alone."""

import asyncio
from collections.abc import Callable

from tablegate.gateway.contract.keys import KeyType
from tablegate.gateway.http.server import HttpServer
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.server.metadata import metadata_methods
from tablegate.gateway.stores.base import Phase
from tablegate.gateway.stores.notifier import Notifier
from tablegate.v1 import cluster_pb2, options_pb2
from tablegate.v1 import status_pb2 as own
from tablegate.v1.status_pb2 import GetStatusResponse, TableMetadata
from tests.kit.gateways_in_process.cluster import ALONE, EACH_ON_TWO, GrpcCluster
from tests.kit.gateways_in_process.metadata import ROWS, Asked, at, ranked_ids, refused
from tests.kit.gateways_in_process.threaded import ServerThread
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import SIGNER, catalogue_of, rating, ratings_table


def _roles(table: TableMetadata) -> dict[int, list[tuple[str, str]]]:
    return {
        each.partition: [
            (replica.gateway_id, own.ReplicaRole.Name(replica.role).removeprefix("REPLICA_ROLE_").lower())
            for replica in each.replicas
        ]
        for each in table.partitions
    }


def test_every_gateway_names_the_owner_that_the_placement_has(cluster: GrpcCluster) -> None:
    told = []
    for gateway_id in "abc":
        with at(cluster, gateway_id) as asked:
            told.append(asked.table())
    assert told[0] == told[1] == told[2]
    [table] = told[:1]
    assert (table.table, table.generation, table.partition_count, table.partition_by_count) == ("ratings", 1, 6, 1)
    assert table.partitioner == options_pb2.PARTITIONER_MURMUR2
    assert [(column.name, column.type) for column in table.key] == [("movie_id", KeyType.INT64)]
    for partition, names in enumerate(("ac", "ac", "ab", "ab", "bc", "bc")):
        order = ranked_ids(partition, names)
        assert _roles(table)[partition] == [(order[0], "owner"), (order[1], "standby")]
    for each in table.partitions:
        for replica in each.replicas:
            assert replica.endpoint == f"127.0.0.1:{cluster[replica.gateway_id].port}"
            assert replica.phase == cluster_pb2.REPLICA_PHASE_LIVE


def test_a_gateway_that_stands_alone_names_no_other_address(cluster: GrpcCluster) -> None:
    with at(cluster, ALONE) as asked:
        table = asked.table()
        offsets = [each.replicas[0].next_offset for each in table.partitions]
        assert _roles(table) == {partition: [("", "owner")] for partition in range(6)}
        assert {each.replicas[0].endpoint for each in table.partitions} == {""}
        assert sum(offsets) == ROWS
        cluster.whole.hold([0, 1])
        assert _roles(asked.table()) == {
            partition: [("", "owner" if partition < 2 else "unspecified")] for partition in range(6)
        }


def test_replicas_that_are_not_asked_come_last(cluster: GrpcCluster) -> None:
    status = GetStatusResponse.FromString(cluster["a"].status)
    building, restoring, dead = status.gateways.add(alive=True), status.gateways.add(alive=True), status.gateways.add()
    for told, name in ((building, "next"), (restoring, "new"), (dead, "gone")):
        told.record.gateway_id = name
        held = told.record.tables.add(table="ratings").serving
        held.generation = 2 if name == "next" else 1
        held.partitions.append(3)
        held.phases.append(cluster_pb2.REPLICA_PHASE_RESTORING)
        held.next_offsets.append(17)
    cluster.announce_to(cluster["a"], status.SerializeToString())
    with at(cluster, "a") as asked:
        [partition] = [each for each in asked.table().partitions if each.partition == 3]
    *live, last = partition.replicas
    assert [replica.gateway_id for replica in live] == ranked_ids(3, "ab")
    assert (last.gateway_id, last.role, last.next_offset) == ("new", own.REPLICA_ROLE_UNSPECIFIED, 17)
    assert last.phase == cluster_pb2.REPLICA_PHASE_RESTORING


def test_what_gateways_of_another_version_announce_does_no_harm(cluster: GrpcCluster) -> None:
    """A phase that is not known here is not LIVE; positions or phases that are not told are none."""
    status = GetStatusResponse.FromString(cluster["a"].status)
    for place, told in enumerate(status.gateways):
        del told.record.tables[0].serving.next_offsets[place:]
    newer = status.gateways.add(alive=True).record
    newer.gateway_id = "newer"
    held = newer.tables.add(table="ratings").serving
    held.generation = 1
    held.partitions.extend([0, 1, 2])
    held.phases.extend([99, cluster_pb2.REPLICA_PHASE_LIVE])  # type: ignore[list-item]
    held.next_offsets.extend([5, 6, 7, 8])
    cluster.announce_to(cluster["a"], status.SerializeToString())
    with at(cluster, "a") as asked:
        table = asked.table()
    replicas = {(part.partition, each.gateway_id): each for part in table.partitions for each in part.replicas}
    unspecified = cluster_pb2.REPLICA_PHASE_UNSPECIFIED
    for partition, phase, next_offset in ((0, unspecified, 5), (2, unspecified, 7)):
        replica = replicas[partition, "newer"]
        assert (replica.role, replica.phase, replica.next_offset) == (0, phase, next_offset)
    assert replicas[1, "newer"].role
    assert sorted(key for key in replicas if key[1] in EACH_ON_TWO) == sorted(
        (partition, gateway_id) for gateway_id, held in EACH_ON_TWO.items() for partition in held
    )
    assert {replicas[partition, "a"].next_offset for partition in EACH_ON_TWO["a"]} == {0}
    assert [each.role for part in table.partitions for each in part.replicas[:1]] == [own.REPLICA_ROLE_OWNER] * 6


def test_a_table_that_is_not_there_is_refused(cluster: GrpcCluster) -> None:
    with at(cluster, "a") as asked:
        for ask in (lambda: asked.table("rating"), lambda: next(asked.watch("rating"))):
            code, reason, text = refused(ask)
            assert (code, reason) == ("INVALID_ARGUMENT", "INVALID_FIELD")
            assert 'field "table": is no table of the contracts here; send one of ratings' in text


def test_a_table_without_a_manifest_is_unavailable() -> None:
    with _LoneServer() as lone, Asked(lone.port) as asked:
        for ask in (asked.table, lambda: next(asked.watch()), lambda: asked.explain("GetRating", {"movieId": 1})):
            assert refused(ask)[:2] == ("UNAVAILABLE", "PARTITION_UNAVAILABLE")


def test_a_watch_tells_each_change_and_no_mere_progress(cluster: GrpcCluster) -> None:
    with at(cluster, "a") as asked:
        watch = asked.watch()
        assert _roles(next(watch).table)[0] == [(name, role) for name, role in _told(0, "ac")]
        cluster.put(rating(number) for number in range(ROWS))  # the bell rings, positions move
        cluster["a"].do(lambda: None)
        cluster.announce(dead={"c"})
        table = next(watch).table
        assert _roles(table)[0] == [("a", "owner")]
        assert _roles(table)[4] == [("b", "owner")]
        cluster.announce()
        assert _roles(next(watch).table)[0] == _told(0, "ac")
        watch.cancel()


def _told(partition: int, names: str) -> list[tuple[str, str]]:
    return list(zip(ranked_ids(partition, names), ("owner", "standby"), strict=True))


def test_all_who_watch_are_told_the_same(cluster: GrpcCluster) -> None:
    with at(cluster, "b") as asked:
        first, second = asked.watch(), asked.watch()
        assert next(first) == next(second)
        cluster.announce(dead={"a"})
        assert next(first) == next(second)
        first.cancel()
        cluster.announce()
        assert _roles(next(second).table)[2] == _told(2, "ab")
        third = asked.watch()
        assert _roles(next(third).table)[2] == _told(2, "ab")
        second.cancel()
        third.cancel()


class _LoneServer(ServerThread):
    """A gateway that stands alone, whose table is published, moved and drained while it is watched."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        super().__init__(self._make_it)

    def do(self, *work: Callable[[], object]) -> None:
        """Do something in the thread of the event loop, and ring."""

        async def run() -> None:
            for each in work:
                each()
            self.bell.notify()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def _make_it(self) -> HttpServer:
        self._loop, self.bell, catalogue = asyncio.get_running_loop(), Notifier(), catalogue_of()
        parts = catalogue, self.store, SIGNER, self.bell
        self.server = HttpServer({**query_methods(*parts), **metadata_methods(*parts)}, "127.0.0.1:0")
        return self.server


def test_a_watch_ends_when_the_gateway_drains() -> None:
    with _LoneServer() as lone, Asked(lone.port) as asked:
        ratings_table(lone.store)
        watch = asked.watch()
        assert len(next(watch).table.partitions) == 3
        lone.do(lone.server.drain, lone.bell.shutdown)
        assert refused(lambda: next(watch))[:2] == ("UNAVAILABLE", "SHUTTING_DOWN")


def test_a_watch_follows_a_lone_gateways_phases_and_generations() -> None:
    with _LoneServer() as lone, Asked(lone.port) as asked:
        table = ratings_table(lone.store)
        watch = asked.watch()
        assert {role for [(_, role)] in _roles(next(watch).table).values()} == {"owner"}

        def restore() -> None:
            table.generation = 2
            table.publish(phase=Phase.RESTORING)

        lone.do(restore)
        told = next(watch).table
        assert told.generation == 2
        assert {role for [(_, role)] in _roles(told).values()} == {"unspecified"}
        lone.do(lambda: table.publish(problem="its key is another one"))
        assert "its key is another one" in refused(lambda: next(watch))[2]
