"""Gateways of a cluster on a real Kafka: who has which partition."""

import secrets
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]

from tablegate.examples.demo.kafka import HOST, Broker, free_port
from tablegate.gateway.kafka.client import KafkaLog
from tablegate.gateway.replication.transfers import OFFSETS_MIN
from tests.kit.gateway_processes.changelog import RatingsChangelog, many
from tests.kit.gateway_processes.cluster import Member, Placement
from tests.kit.gateway_processes.gateway import soon
from tests.kit.table.filled import RATINGS

pytestmark = pytest.mark.jvm

PARTITIONS = 6

Start = Callable[..., Member]


@pytest.fixture
def changelog(broker: Broker) -> RatingsChangelog:
    changelog = RatingsChangelog(broker.bootstrap, partition_count=PARTITIONS)
    changelog.put(dict(many(300)))
    changelog.mark(source_next_offset=300)
    changelog.publish()
    return changelog


@pytest.fixture
def start(tmp_path: Path, changelog: RatingsChangelog) -> Iterator[Start]:
    """Return a function that starts a gateway of the cluster, under a name."""
    keys = tmp_path / "token.keys"
    keys.write_text(f"{secrets.token_hex(32)}\n")
    gateways: list[Member] = []
    topic = f"gateways-{secrets.token_hex(6)}"

    def start_one(name: str, *, data: str | None = None) -> Member:
        address = f"{HOST}:{free_port()}"
        options = ["--advertise", address, "--gateway-id", name]
        options += ["--token-key", str(keys), "--gateways-topic", topic]
        gateway = Member(
            tmp_path / (data or name),
            changelog.bootstrap,
            listen=address,
            contract=RATINGS,
            tables_topic=changelog.tables_topic,
            options=options,
        )
        gateways.append(gateway)
        gateway.start()
        return gateway

    yield start_one
    for gateway in gateways:
        gateway.stop()


def live(gateway: Member) -> Placement:
    """Return the partitions that each living gateway has LIVE, as this one knows it."""
    return gateway.placement("ratings")


def holders(gateway: Member) -> list[int]:
    """Return how many gateways have each partition LIVE."""
    return [sum(number in having for having in live(gateway).values()) for number in range(PARTITIONS)]


def test_partitions_of_dead_and_drained_gateways_move_to_the_others(start: Start, changelog: RatingsChangelog) -> None:
    first = start("gw-1")
    soon(lambda: holders(first) == [1] * PARTITIONS, "one gateway has everything")
    assert first.status().gateway_id == "gw-1"
    second, third = start("gw-2"), start("gw-3")
    for gateway in (first, second, third):
        soon(lambda gateway=gateway: len(live(gateway)) == 3, "each knows all")
        # Two have all before the third has any.
        soon(
            lambda gateway=gateway: holders(gateway) == [2] * PARTITIONS and all(live(gateway).values()),
            "each partition is on two, and each gateway has some",
        )
    held = {table.table: [each.partition for each in table.partitions] for table in second.status().tables}
    assert set(held["ratings"]) == live(first)["gw-2"]

    changelog.put({1: (9.0, 7)})
    third.kill()
    soon(lambda: "gw-3" not in live(first), "it is dead")
    assert all(holders(first))
    soon(lambda: holders(first) == [2] * PARTITIONS, "the two that are left have everything")

    second.signal(signal.SIGUSR1)
    soon(lambda: live(second) == {"gw-1": set(range(PARTITIONS)), "gw-2": set()}, "all is given to the first")
    told = "all partitions are with other gateways: this one may be stopped"
    soon(lambda: told in [line["message"] for line in second.log()], "it says that it is empty")
    second.stop()
    soon(lambda: [each.record.gateway_id for each in first.status().gateways if each.alive] == ["gw-1"], "it has left")
    soon(lambda: first.rows() == changelog.rows, "the one that is left has all rows")


def test_a_late_joiner_gets_long_partitions_from_who_has_them(start: Start, changelog: RatingsChangelog) -> None:
    changelog.put(dict(many(PARTITIONS * OFFSETS_MIN * 11 // 10)))
    changelog.delete(range(100))
    first = start("gw-1")
    soon(lambda: holders(first) == [1] * PARTITIONS, "one gateway has everything")
    second = start("gw-2")
    soon(lambda: holders(second) == [2] * PARTITIONS, "both have everything")
    came = [line for line in second.log() if "has come from another gateway" in line["message"]]
    assert [line["gateway"] for line in came] == ["gw-1"] * PARTITIONS
    assert sum(line["rows"] for line in came) == len(changelog.rows) + 100, "rows, and tombstones of deleted ones"
    changelog.put({1: (9.0, 7)})
    first.kill()
    soon(lambda: second.rows() == changelog.rows, "it has all rows, alone")


def test_a_second_gateway_of_a_name_ends_the_first(start: Start) -> None:
    first = start("gw-1")
    soon(lambda: holders(first) == [1] * PARTITIONS, "it has everything")
    second = start("gw-1", data="another")
    assert first.process is not None
    assert first.process.wait(30) == 1
    first._reader.join()
    assert 'another gateway named "gw-1" has started' in first.lines[-1]
    first.process = None
    soon(lambda: holders(second) == [1] * PARTITIONS, "the second goes on")


def test_a_topic_is_made_compacted_and_with_the_brokers_time(broker: Broker) -> None:
    log = KafkaLog(broker.bootstrap)
    topic = f"gateways-{secrets.token_hex(6)}"
    log.append(topic, b"key", b"lost, and no topic is made for it")
    for _ in range(2):
        log.create(topic).result(30)
    soon(lambda: log.describe_topic(topic).result(30) is not None, "it is there")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    resource = ConfigResource(ResourceType.TOPIC, topic)
    config = admin.describe_configs([resource])[resource].result(30)
    assert config["cleanup.policy"].value == "compact"
    assert config["message.timestamp.type"].value == "LogAppendTime"
    log.append(topic, b"key", b"value")
    log.append(topic, b"key", None)
    log.close()
    with closing(KafkaLog(broker.bootstrap)) as other:
        facts = other.describe_topic(topic).result(30)
    assert facts is not None
    assert facts.partition_count == 1
    assert facts.end_offsets[0] >= 2
