"""What a worker reads out of its replicator's status."""

from tablegate.gateway.cluster.directory import Directory, Peer
from tablegate.gateway.contract.placement import Candidate, ranked
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.stores.base import Phase
from tests.kit.replication.statuses import live, status, told


def ids(directory: Directory, partition: int, generation: int = 0, table: str = "ratings") -> list[str]:
    return [peer.gateway_id for peer in directory.replicas(table, Partition(partition), generation)]


def test_replicas_are_in_the_order_of_placement() -> None:
    directory = told(status({name: live(*range(20)) for name in "dacb"}))
    for partition in range(20):
        order = ranked("ratings", Partition(partition), [Candidate(name, "z1") for name in "abcd"])
        assert ids(directory, partition) == [each.gateway_id for each in order]
    assert len({ids(directory, partition)[0] for partition in range(20)}) == 4
    assert directory.replicas("ratings", Partition(0))[0] in [Peer(name, f"{name}:7070", "z1") for name in "abcd"]


def test_only_what_is_live_answers() -> None:
    directory = told(
        status({"a": live(0), "b": {0: Phase.CATCHING_UP, 1: Phase.LIVE}, "c": {0: Phase.RESTORING}, "d": {}})
    )
    assert ids(directory, 0) == ["a"]
    assert ids(directory, 1) == ["b"]
    assert ids(directory, 2) == []
    assert ids(directory, 0, table="other") == []


def test_a_phase_that_is_not_known_here_is_not_live() -> None:
    answer = status({"a": live(0, 1), "b": live(0, 1), "c": live(0, 1)})
    answer.gateways[1].record.tables[0].serving.phases[0] = 99  # type: ignore[call-overload]
    del answer.gateways[2].record.tables[0].serving.phases[1:]
    del answer.gateways[2].record.tables[0].serving.next_offsets[:]
    directory = told(answer)
    assert sorted(ids(directory, 0)) == ["a", "c"]
    assert sorted(ids(directory, 1)) == ["a", "b"]


def test_the_dead_are_not_asked_and_who_is_to_go_is_asked_last() -> None:
    answer = status({name: live(*range(20)) for name in "abc"})
    answer.gateways[1].alive = False
    answer.gateways[2].record.draining = True
    directory = told(answer)
    assert [peer.gateway_id for peer in directory.peers] == ["a", "c"]
    assert all(ids(directory, partition) == ["a", "c"] for partition in range(20))


def test_a_generation_can_be_asked_for() -> None:
    answer = status({"a": live(0)}, generation=3)
    answer.gateways.extend(status({"b": live(0)}, generation=4).gateways)
    answer.gateways[0].record.tables[0].building.CopyFrom(answer.gateways[1].record.tables[0].serving)
    directory = told(answer)
    assert sorted(ids(directory, 0)) == ["a", "b"]
    assert ids(directory, 0, 3) == ["a"]
    assert ids(directory, 0, 4) == ["b"]
    assert ids(directory, 0, 5) == []


def test_beats_alone_change_nothing() -> None:
    answer = status({"a": live(0), "b": live(0)})
    directory = told(answer)
    version, replicas = directory.version, directory.replicas("ratings", Partition(0))
    answer.beat_time.seconds = 17
    answer.gateways[0].beat_time.seconds = 17
    answer.gateways[0].record.tables[0].serving.next_offsets[0] = 99
    directory.update(answer.SerializeToString())
    assert directory.version == version
    assert directory.replicas("ratings", Partition(0)) is replicas

    answer.gateways[1].alive = False
    directory.update(answer.SerializeToString())
    assert directory.version != version
    assert ids(directory, 0) == ["a"]


def test_a_gateway_may_stand_alone() -> None:
    directory = Directory()
    assert (directory.own_id, ids(directory, 0)) == ("", [])
    directory.update(status({}, own_id="").SerializeToString())
    assert directory.own_id == ""
    directory.update(status({"a": live(0)}).SerializeToString())
    assert directory.own_id == "a"


def test_damaged_bytes_leave_what_was_known() -> None:
    directory = told(status({"a": live(0)}))
    directory.update(b"\xff\xff")
    assert ids(directory, 0) == ["a"]
