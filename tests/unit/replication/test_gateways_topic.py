"""What a gateway makes of the records of the others."""

import logging
from typing import Any

import pytest

from tablegate.gateway.cluster.gateways_topic import ALIVE_MS, FORGOTTEN_MS, GONE_MS, GatewaysTopic, NameInUse
from tablegate.gateway.cluster.membership import Membership
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.kafka.log import TopicPartition
from tablegate.gateway.replication.replicator import Replicator
from tablegate.v1.cluster_pb2 import (
    REPLICA_PHASE_CATCHING_UP,
    REPLICA_PHASE_LIVE,
    GatewayRecord,
    GenerationAnnouncement,
    TableAnnouncement,
)
from tablegate.v1.status_pb2 import GatewayStatus
from tests.kit.replication.memory_log import MemoryBroker, MemoryLog
from tests.kit.replication.replicator import FakeClock
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import catalogue_of

SOURCE = TopicPartition("gateways", Partition(0))


@pytest.fixture
def topic(broker: MemoryBroker, clock: FakeClock) -> GatewaysTopic:
    broker.create("gateways", 1)
    return GatewaysTopic("gateways", gateway_id="us", start_id=7, log=MemoryLog(broker), clock=clock)


def record(name: str, *, start_id: int = 1, beat: int = 1, offset: int = 0, live: tuple[int, ...] = ()) -> bytes:
    held = GenerationAnnouncement(
        generation=2,
        partitions=[*live, 99],
        phases=[*(REPLICA_PHASE_LIVE for _ in live), REPLICA_PHASE_CATCHING_UP],
        next_offsets=[offset] * (len(live) + 1),
    )
    table = TableAnnouncement(table="ratings", replicas=2, serving=held)
    return GatewayRecord(gateway_id=name, start_id=start_id, beat=beat, tables=[table]).SerializeToString()


class Topic:
    """The topic as a gateway reads it, and the gateways that write there."""

    def __init__(self, topic: GatewaysTopic, broker: MemoryBroker, clock: FakeClock) -> None:
        self.topic, self.broker, self.clock = topic, broker, clock
        self.log = topic._log

    def say(self, name: str, value: bytes | None) -> None:
        self.broker.append(SOURCE, name.encode(), value)

    def read(self) -> None:
        self.topic.tick()
        for fetched in self.log.fetch(records_max=1_000, timeout_s=0):
            self.topic.apply(fetched)

    def beat(self, seconds: float, *names: str, start_id: int = 7) -> None:
        """Let time pass, in which these gateways beat."""
        for number in range(round(seconds * 2)):
            self.clock.passed_s += 0.5
            for name in names:
                self.say(name, record(name, start_id=start_id if name == "us" else 1, beat=number + 2))
            self.read()


@pytest.fixture
def read(topic: GatewaysTopic, broker: MemoryBroker, clock: FakeClock) -> Topic:
    return Topic(topic, broker, clock)


def test_who_does_not_beat_is_dead_and_after_a_while_gone(read: Topic) -> None:
    read.beat(2.0, "us", "other")
    assert read.topic.alive() == {"us", "other"}
    read.beat(ALIVE_MS / 1_000, "us")
    assert read.topic.alive() == {"us", "other"}
    read.beat(0.5, "us")
    assert read.topic.alive() == {"us"}
    read.beat((GONE_MS - ALIVE_MS) / 1_000 - 0.5, "us")
    assert read.topic.present() == {"us", "other"}
    read.beat(0.5, "us")
    assert read.topic.present() == {"us"}
    assert set(read.topic.known) == {"us", "other"}


def test_who_leaves_is_dead_at_once_but_may_come_back(read: Topic) -> None:
    read.beat(1.0, "us", "other")
    read.say("other", None)
    read.read()
    assert read.topic.alive() == {"us"}
    assert read.topic.present() == {"us", "other"}
    read.beat(1.0, "us", "other")
    assert read.topic.alive() == {"us", "other"}


@pytest.mark.tools
def test_who_is_not_heard_for_very_long_is_forgotten(read: Topic) -> None:
    read.beat(1.0, "us", "other")
    read.beat(FORGOTTEN_MS / 1_000, "us")
    assert read.topic.forgotten() == []
    read.beat(0.5, "us")
    assert read.topic.forgotten() == ["other"]
    assert set(read.topic.known) == {"us"}


def test_nobody_dies_while_kafka_is_away(read: Topic) -> None:
    read.beat(1.0, "us", "other")
    read.clock.passed_s += 3_600
    read.read()
    assert read.topic.alive() == {"us", "other"}
    read.beat(0.5, "us")
    assert read.topic.alive() == {"us", "other"}
    read.beat(3.0, "us")
    assert read.topic.alive() == {"us"}


@pytest.fixture
def shift_ms(broker: MemoryBroker) -> dict[str, int]:
    """How far the broker's clock is ahead: "ms"; a test changes it."""
    shift, right_ms = {"ms": 0}, broker.now_ms
    broker.now_ms = lambda: right_ms() + shift["ms"]
    return shift


@pytest.mark.parametrize("jump_s", [-7_200, -30, 30, 7_200])
def test_who_dies_is_dead_though_kafkas_clock_jumps(read: Topic, shift_ms: dict[str, int], jump_s: int) -> None:
    read.beat(5.0, "us", "other", "third")
    shift_ms["ms"] = jump_s * 1_000
    read.beat(ALIVE_MS / 1_000, "us", "third")
    assert read.topic.alive() >= {"us", "third"}
    read.beat(1.0, "us", "third")
    assert read.topic.alive() == {"us", "third"}
    read.beat(GONE_MS / 1_000, "us", "third")
    assert read.topic.present() == {"us", "third"}


@pytest.mark.parametrize("jump_s", [-7_200, 7_200])
def test_a_jump_of_the_clock_of_kafka_kills_nobody(read: Topic, shift_ms: dict[str, int], jump_s: int) -> None:
    read.beat(5.0, "us", "other")
    shift_ms["ms"] = jump_s * 1_000
    for _ in range(20):
        read.beat(0.5, "us", "other")
        assert read.topic.alive() == {"us", "other"}


def test_a_beat_that_comes_a_moment_after_a_jump_is_waited_for(read: Topic, shift_ms: dict[str, int]) -> None:
    read.beat(5.0, "us", "other")
    shift_ms["ms"] = 7_200_000
    read.beat(0.5, "us")
    assert read.topic.alive() == {"us", "other"}


@pytest.mark.parametrize("jump_s", [-7_200, -60])
def test_who_comes_after_a_jump_of_the_clock_of_kafka(
    read: Topic, broker: MemoryBroker, shift_ms: dict[str, int], jump_s: int
) -> None:
    read.say("dead", record("dead"))
    read.clock.passed_s += 20
    read.say("other", record("other"))
    shift_ms["ms"] = jump_s * 1_000
    read.clock.passed_s += 0.5
    for name in ("other", "third"):
        read.say(name, record(name))
    read.beat(1.0, "us", "other", "third")
    assert read.topic.alive() == {"us", "other", "third"}
    read.beat(ALIVE_MS / 1_000 + 1.0, "us", "third")
    assert read.topic.alive() == {"us", "third"}


def test_who_was_dead_long_before_we_came_is_so_as_soon_as_all_was_read(read: Topic) -> None:
    read.say("dead", record("dead"))
    read.clock.passed_s += 3_600
    read.say("other", record("other"))
    read.read()
    read.read()
    assert read.topic.is_read
    assert read.topic.present() == {"other"}
    read.beat(0.5, "us")
    assert read.topic.alive() == {"us", "other"}


def test_who_was_dead_when_we_come_alone_is_so_once_we_are_heard(read: Topic) -> None:
    read.say("dead", record("dead"))
    read.clock.passed_s += 3_600
    read.read()
    read.read()
    assert read.topic.alive() == {"us", "dead"}
    read.beat(0.5, "us")
    assert read.topic.present() == {"us"}


def test_what_was_known_before_a_restart_is_until_the_topic_is_read(read: Topic) -> None:
    read.say("dead", record("dead"))
    read.beat(20.0, "other")
    told = [GatewayStatus(record=GatewayRecord.FromString(record("other", live=(3,))), alive=True)]
    told += [GatewayStatus(record=GatewayRecord.FromString(record("dead")), alive=False)]
    for each in told:
        each.beat_time.FromMilliseconds(read.clock.now_ms() + 5_000)
    again = GatewaysTopic("gateways", gateway_id="us", start_id=8, log=MemoryLog(read.broker), clock=read.clock)
    again.remember(told)
    assert again.alive() == {"us", "other"}
    assert again.known["other"].tables["ratings"].partitions == {3}
    read = Topic(again, read.broker, read.clock)
    read.read()
    read.read()
    assert again.is_read
    assert again.known["other"].tables["ratings"].partitions == set()
    assert again.present() == {"other"}


def test_a_version_counts_what_is_new_and_not_beats(read: Topic) -> None:
    read.beat(1.0, "us")
    for value in (record("other"), record("other", live=(1,)), record("other", live=(1, 2)), None, record("other")):
        version = read.topic.version
        read.say("other", value)
        read.read()
        assert read.topic.version == version + 1
    version = read.topic.version
    for beat in range(2, 6):
        read.say("other", record("other", beat=beat, offset=1_000 + beat))
        read.read()
    assert read.topic.version == version
    assert read.topic.known["other"].record.tables[0].serving.next_offsets == [1_005]


def test_what_a_gateway_has(read: Topic) -> None:
    read.say("other", record("other", live=(1, 4)))
    read.read()
    read.read()
    live = read.topic.known["other"].tables["ratings"]
    assert live.has(Partition(4), 2, is_served=True)
    assert live.has(Partition(4), 1, is_served=True)
    assert not live.has(Partition(4), 3, is_served=True)
    assert not live.has(Partition(99), 2, is_served=False)


def test_what_is_no_record_of_a_gateway_is_skipped(read: Topic, caplog: pytest.LogCaptureFixture) -> None:
    read.say("other", b"\xff")
    read.say("other", record("third"))
    read.say("", b"\xff")
    read.say("", record(""))
    read.beat(0.5, "us")
    assert set(read.topic.known) == {"us"}
    assert read.topic.poison == {
        "gateway's record does not parse": 2,
        "gateway's record is of another gateway than its key": 2,
    }
    assert [line.args[0] for line in caplog.records if isinstance(line.args, tuple)] == list(read.topic.poison)


def announced(**changes: Any) -> bytes:
    table = TableAnnouncement(
        table="ratings", serving=GenerationAnnouncement(generation=1, partition_count=2, **changes)
    )
    return GatewayRecord(gateway_id="other", tables=[table]).SerializeToString()


@pytest.mark.parametrize(
    "value",
    [
        announced(partitions=[-1], phases=[REPLICA_PHASE_LIVE]),
        announced(partitions=[2], phases=[REPLICA_PHASE_LIVE]),
        announced(partitions=[1]),
        announced(partitions=[1], phases=[REPLICA_PHASE_LIVE], next_offsets=[1, 2]),
        announced(changelog_topic_id="a" * 256),
        GatewayRecord(
            gateway_id="other", tables=[{"table": "a", "serving": {"partition_count": -1}}]
        ).SerializeToString(),
        GatewayRecord(
            gateway_id="other", tables=[{"table": "a", "building": {"partition_count": 65_537}}]
        ).SerializeToString(),
        GatewayRecord(gateway_id="other", tables=[{"table": "a", "replicas": -1}]).SerializeToString(),
        GatewayRecord(gateway_id="other", tables=[{"table": ""}]).SerializeToString(),
        GatewayRecord(gateway_id="other", endpoint="no port").SerializeToString(),
        GatewayRecord(gateway_id="other", endpoint="a\0:1").SerializeToString(),
        GatewayRecord(gateway_id="other", zone="a" * 256).SerializeToString(),
    ],
    ids=range(12),
)
def test_what_no_gateway_can_have_is_set_aside(read: Topic, value: bytes) -> None:
    read.say("other", value)
    read.read()
    assert "other" not in read.topic.known
    assert read.topic.poison.total() == 1
    read.say("other", record("other", live=(1, 4)))
    read.read()
    assert "other" in read.topic.known


@pytest.mark.parametrize("time_ms", [-(2**63), -1, 2**62, 2**63 - 1])
def test_a_record_of_no_time_moves_no_time_of_the_topic(read: Topic, time_ms: int) -> None:
    read.beat(0.5, "other", "us")
    alive = read.topic.alive()
    read.broker.now_ms = lambda: time_ms
    read.say("third", record("third"))
    read.read()
    assert read.topic.known["third"].beat_ms == 0
    assert read.topic.alive() >= alive
    read.broker.now_ms = read.clock.now_ms
    read.beat(GONE_MS / 1_000 + 1, "us")
    assert "other" not in read.topic.alive()


def test_another_of_our_name_that_started_later(read: Topic) -> None:
    read.say("us", record("us", start_id=5))
    read.beat(1.0, "us")
    assert read.topic.heard_beat
    read.say("us", record("us", start_id=5))  # of before us, and late
    read.read()
    read.say("us", record("us", start_id=9))
    with pytest.raises(NameInUse, match=r'another gateway named "us" has started.*--gateway-id'):
        read.read()


def test_of_two_with_one_name_the_first_ends_and_the_second_stays(broker: MemoryBroker, clock: FakeClock) -> None:
    def start(start_id: int) -> Replicator:
        return Replicator(
            catalogue_of(),
            log=MemoryLog(broker),
            store=MemoryStore(),
            clock=clock,
            membership=Membership(gateway_id="us", endpoint=f"us:{start_id}"),
            start_id=start_id,
        )

    first = start(1)
    for _ in range(20):
        first.step(poll_s=0)
        clock.passed_s += 0.1
    second = start(2)
    ends = ""
    for _ in range(50):
        try:
            first.step(poll_s=0)
        except NameInUse as error:
            ends = str(error)
        second.step(poll_s=0)
        clock.passed_s += 0.1
    assert "at us:2" in ends


def test_nothing_is_followed_before_the_topic_was_read(
    broker: MemoryBroker, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    broker.is_up = False
    store = MemoryStore()
    replicator = Replicator(
        catalogue_of(),
        log=MemoryLog(broker),
        store=store,
        clock=clock,
        membership=Membership(gateway_id="us", endpoint="us:1"),
    )
    for _ in range(50):
        replicator.step(poll_s=0)
        clock.passed_s += 0.5
    assert broker.facts("gateways") is None
    broker.is_up = True
    for _ in range(50):
        replicator.step(poll_s=0)
        clock.passed_s += 0.1
    assert broker.facts("gateways") is not None
    with store.snapshot() as snapshot:
        state = snapshot.table("ratings")
    assert state is not None
    assert "has no manifest" in state.problem
