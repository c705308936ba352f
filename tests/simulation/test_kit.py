"""The world itself: its brokers and its gateways fail as real ones do."""

from tablegate.gateway.cluster.scatter import PeerFailed
from tablegate.gateway.contract.types import Offset, Partition, make_version
from tablegate.gateway.kafka.log import TopicPartition
from tests.kit.replication.replicator import FakeClock, key_of, value_of
from tests.kit.table.filled import LocalCall
from tests.kit.world.broker import WorldBroker
from tests.kit.world.checker import TrueLog
from tests.kit.world.clients import SERVICE
from tests.kit.world.loop import StillLoop, still_time
from tests.kit.world.world import STEPS_UP, Story, World

CHANGELOG = TopicPartition("changelog", Partition(0))


def _counts(broker: WorldBroker) -> list[int]:
    found = broker.read(CHANGELOG, Offset(0), 100)
    assert found is not None
    return [broker.rows[record.key or b"", record.version][1] or 0 for record in found.records if record.version]


def test_records_superseded_by_lost_ones_are_there_again() -> None:
    """Each broker compacts its own log: one that never had the lost records has kept what is older than them."""
    clock = FakeClock()
    broker = WorldBroker(clock, TrueLog())
    broker.create(CHANGELOG.topic, 1)
    broker.changelogs[CHANGELOG.topic] = 1
    for count, key in enumerate([1, 2, 1, 2, 3], start=1):
        version = make_version(1, count)
        broker.rows[key_of(key), version] = (key, count)
        broker.append(CHANGELOG, key_of(key), value_of(key, count), version=version)
    clock.passed_s += 86_400
    broker.clean(CHANGELOG)
    assert _counts(broker) == [3, 4, 5]
    broker.lose_tail(CHANGELOG, Offset(3))
    assert _counts(broker) == [2, 3]
    broker.lose_tail(CHANGELOG, Offset(2))
    assert _counts(broker) == [1, 2]


def _world(loop: StillLoop, clock: FakeClock) -> World:
    """Return a world of one gateway that is up, and of nobody who asks it."""
    world = World(0, loop, clock, Story(), gateways=1, partitions=2, replicas=1, directory=None)
    world.clients = ()
    world.gateways["g0"].start()
    world.run(STEPS_UP)
    return world


def test_a_stream_ends_with_its_process_though_the_next_one_runs() -> None:
    clock = FakeClock()
    with still_time(lambda: clock.passed_s, 0) as loop:
        world = _world(loop, clock)
        gateway = world.gateways["g0"]
        request = world.request("SubscribeRatings")
        messages = gateway.messages(f"{SERVICE}/SubscribeRatings", request, LocalCall(None))
        loop.run_until_complete(anext(messages))
        gateway.kill()
        gateway.start()
        after = loop.create_task(anext(messages))  # type: ignore[arg-type]
        loop.turn()
        assert after.done()
        assert isinstance(after.exception(), PeerFailed)
        world.close()
