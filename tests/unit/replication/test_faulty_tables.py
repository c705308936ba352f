"""A table that fails by a mistake of ours: the others go on, and it is begun anew."""

import json
import struct
from collections.abc import Sequence
from concurrent.futures import Future
from io import BytesIO
from itertools import pairwise
from typing import Any

import fastavro
import pytest
from typing_extensions import override

from tablegate.gateway.contract.catalogue import Catalogue
from tablegate.gateway.contract.keys import encode_key
from tablegate.gateway.contract.rows import row_schema
from tablegate.gateway.contract.types import Offset, Partition, StoreId, make_version
from tablegate.gateway.kafka.client import DELETE_RETENTION_MS, retention_ms_of
from tablegate.gateway.kafka.log import TopicFacts, TopicPartition
from tablegate.gateway.replication.replicator import FAULT_RETRY_MAX_S, Replicator
from tablegate.gateway.stores.base import Applied, Change, Position, StoreFull
from tablegate.v1.changelog_pb2 import Manifest
from tablegate.v1.status_pb2 import GetStatusResponse, TableStatus
from tests.kit.replication.memory_log import MemoryBroker, MemoryLog
from tests.kit.replication.replicator import FakeClock, Job, key_of
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import catalogue_of
from tests.kit.table.parcels import PARCELS

PARCEL = catalogue_of(PARCELS).tables["parcels"]
CHANGELOG = TopicPartition("parcels-changelog", Partition(0))


class FragileStore(MemoryStore):
    """A store that fails on a key, as on what nobody thought of. `tries` counts how often it did."""

    def __init__(self) -> None:
        super().__init__()
        self.bad_key = b""
        self.error: Exception = ValueError("nobody thought of it")
        self.tries = 0

    @override
    def apply(self, store_id: StoreId, partition: Partition, changes: Sequence[Change], position: Position) -> Applied:
        if any(change.key == self.bad_key for change in changes):
            self.tries += 1
            raise self.error
        return super().apply(store_id, partition, changes, position)


class OddBrokers(MemoryLog):
    """Brokers whose description of one topic is not understood, while `odd` says how."""

    odd: "TopicFacts | Exception | None" = None

    @override
    def describe_topic(self, topic: str) -> "Future[TopicFacts | None]":
        answer: Future[TopicFacts | None] = Future()
        if self.odd is None or topic not in (CHANGELOG.topic, "tables"):
            return super().describe_topic(topic)
        if isinstance(self.odd, Exception):
            answer.set_exception(self.odd)
        else:
            answer.set_result(self.odd)
        return answer


class World:
    """A replicator of two tables, ratings and parcels, over a fragile store."""

    def __init__(self, broker: MemoryBroker, clock: FakeClock, job: Job) -> None:
        self.broker, self.clock, self.job = broker, clock, job
        self.store, self.log = FragileStore(), OddBrokers(broker)
        tables = {**catalogue_of().tables, PARCEL.name: PARCEL}
        self.replicator = Replicator(Catalogue(tables, {}), log=self.log, store=self.store, clock=clock)
        self.numbers = 0
        job.publish()
        topic_id = broker.create(CHANGELOG.topic, 1)
        manifest = PARCEL.manifest(
            generation=1,
            changelog_topic=CHANGELOG.topic,
            changelog_topic_id=topic_id,
            partition_count=1,
            value_schemas={1: json.dumps(row_schema(PARCEL))},
        )
        broker.append(TopicPartition("tables", Partition(0)), b"parcels", manifest.SerializeToString())
        self.seconds(3)

    def put(self, depot: str) -> bytes:
        """Write a parcel; return its key."""
        self.numbers += 1
        key = encode_key(PARCEL.key, [depot, self.numbers])
        body = BytesIO()
        columns: dict[str, Any] = {"depot": depot, "number": self.numbers, "weight": 1, "moves": 1}
        fastavro.schemaless_writer(body, fastavro.parse_schema(row_schema(PARCEL)), columns)
        value = struct.pack(">bI", 0, 1) + body.getvalue()
        self.broker.append(CHANGELOG, key, value, version=make_version(1, self.numbers))
        return key

    def seconds(self, seconds: float) -> None:
        for _ in range(round(seconds * 2)):
            self.replicator.step(poll_s=0)
            self.clock.passed_s += 0.5

    def status(self, table: str) -> TableStatus:
        with self.store.snapshot() as snapshot:
            status = GetStatusResponse.FromString(snapshot.status())
        return next(each for each in status.tables if each.table == table)

    def has(self, table: str, key: bytes) -> bool:
        with self.store.snapshot() as snapshot:
            state = snapshot.table(table)
            assert state is not None
            found = (snapshot.get(StoreId(state.store_id), Partition(number), key) for number in range(2))
            return any(each is not None for each in found)


@pytest.fixture
def world(broker: MemoryBroker, clock: FakeClock, job: Job) -> World:
    return World(broker, clock, job)


def test_a_table_that_fails_is_set_aside_and_the_others_go_on(world: World, caplog: pytest.LogCaptureFixture) -> None:
    before = world.put("ash")
    world.seconds(1)
    world.store.bad_key = world.put("birch")
    after = world.put("oak")
    world.job.put([1])
    world.seconds(1)
    assert "nobody thought of it" in world.status("parcels").fault
    assert world.status("parcels").serving
    assert not world.status("ratings").fault
    assert world.has("ratings", key_of(1))
    assert world.has("parcels", before)
    assert not world.has("parcels", after)
    world.seconds(30)
    world.job.put([2])
    world.seconds(1)
    assert world.has("ratings", key_of(2))
    assert len([line for line in caplog.records if "is set aside" in line.message]) == 1


def test_a_table_that_was_set_aside_is_tried_again_with_longer_pauses(world: World) -> None:
    world.store.bad_key = world.put("birch")
    world.seconds(1)
    tries = []
    for _ in range(6):
        world.seconds(FAULT_RETRY_MAX_S)
        tries.append(world.store.tries)
    assert tries[0] > 4
    assert [after - before for before, after in pairwise(tries[1:])] == [1] * 4
    world.store.bad_key = b""
    last = world.put("oak")
    world.seconds(FAULT_RETRY_MAX_S + 3)
    assert world.has("parcels", last)
    assert not world.status("parcels").fault
    assert world.status("parcels").serving
    assert world.status("parcels").poison_records == 0


def test_what_the_store_refuses_sets_no_table_aside(world: World) -> None:
    world.store.error = StoreFull("no room")
    world.store.bad_key = world.put("birch")
    world.seconds(5)
    assert not world.status("parcels").fault
    world.store.bad_key = b""
    world.seconds(5)
    assert world.has("parcels", world.put("oak")) is False
    world.seconds(1)
    assert world.status("parcels").serving


@pytest.mark.parametrize(
    "odd",
    [
        KeyError("delete.retention.ms"),
        TopicFacts("id", (), (), 1, ()),
        TopicFacts("id", (Offset(0),), (), 1, ()),
        TopicFacts("id", (Offset(-2),), (Offset(0),), 1, (0,)),
        TopicFacts("id", (Offset(0),), (Offset(0),), -1, (0,)),
    ],
    ids=range(5),
)
def test_a_description_that_is_not_understood_is_asked_for_again(
    world: World, odd: "TopicFacts | Exception", caplog: pytest.LogCaptureFixture
) -> None:
    world.log.odd = odd
    world.seconds(20)
    last = world.put("oak")
    world.seconds(1)
    assert world.has("parcels", last)
    assert not world.status("parcels").fault
    logged = [line for line in caplog.records if "is not understood" in line.message]
    assert {line.args[0] for line in logged if isinstance(line.args, tuple)} == {CHANGELOG.topic, "tables"}
    assert len(logged) == 2
    world.log.odd = None
    world.seconds(10)
    assert world.status("parcels").serving


class Entry:
    def __init__(self, value: object) -> None:
        self.value = value


@pytest.mark.parametrize("config", [{}, {"delete.retention.ms": Entry(None)}, {"delete.retention.ms": Entry("long")}])
def test_a_broker_that_tells_no_retention_has_kafkas_default(config: dict[str, Any]) -> None:
    assert retention_ms_of(config) == DELETE_RETENTION_MS
    assert retention_ms_of({"delete.retention.ms": Entry("60000")}) == 60_000


def test_manifests_of_tables_of_others_are_not_kept(world: World) -> None:
    topic = world.replicator._manifest_topic
    for number in range(1_000):
        manifest = Manifest(table=f"other-{number}", generation=1)
        world.broker.append(
            TopicPartition("tables", Partition(0)), manifest.table.encode(), manifest.SerializeToString()
        )
    world.seconds(2)
    assert topic.next_offset > 1_000
    assert topic.manifests.keys() == {"ratings", "parcels"}
    assert not topic.poison
    assert sum(map(len, topic._unread.values())) == 0
