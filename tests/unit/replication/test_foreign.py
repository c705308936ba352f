"""A topic that others write, as a replicator follows it: what happens to it, and what it promises then."""

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tablegate.gateway.contract.catalogue import Catalogue
from tablegate.gateway.contract.foreign.framing import SchemaIds
from tablegate.gateway.contract.keys import murmur2_partition
from tablegate.gateway.contract.types import Offset, Partition, StoreId
from tablegate.gateway.kafka.log import TopicPartition
from tablegate.gateway.replication.foreign import EndTimes
from tablegate.gateway.replication.manifests import problem_of
from tablegate.gateway.replication.partitions import GenerationReplica
from tablegate.internal.v1.store_pb2 import TableState
from tablegate.v1.changelog_pb2 import Manifest
from tests.kit.replication.memory_log import MemoryBroker
from tests.kit.replication.replicator import START_MS, FakeClock, Gateway
from tests.kit.table.contracts import bind_sources, edited
from tests.kit.table.foreign import BAD_VALUE, FRAME, SCHEMA_ID, TOPICS, Topic, foreign_catalogue

THEIRS = "theirs"
PARTITIONS = 2
JSON, NESTED = (next(one for one in TOPICS if one.name == name) for name in ("utf8, json", "utf8, avro nested"))


class Foreign:
    """The table `orders`, or another one, over a topic of others, and a gateway that follows it."""

    def __init__(self, table: str = "orders", **config: Any) -> None:
        self.table = table
        self.clock = FakeClock()
        self.broker = MemoryBroker(self.clock.now_ms)
        self.broker.create("tables", 1)
        self.topic_id = self.create(**config)
        self.gateway = Gateway(self.broker, self.clock, Catalogue({table: foreign_catalogue().tables[table]}, {}))

    def create(self, partitions: int = PARTITIONS, **config: Any) -> str:
        self.partitions = partitions
        self.topic_id = self.broker.create(THEIRS, partitions, **config)
        return self.topic_id

    def manifest(self, generation: int = 1, topic: Topic = JSON) -> Manifest:
        return topic.manifest(topic_id=self.topic_id, partitions=self.partitions, generation=generation)

    def publish(self, manifest: Manifest | None) -> None:
        value = None if manifest is None else manifest.SerializeToString()
        self.broker.append(TopicPartition("tables", Partition(0)), self.table.encode(), value)

    def put(self, *numbers: int, delete: bool = False, topic: Topic = JSON) -> None:
        for number in numbers:
            columns = topic.columns(number)
            partition = murmur2_partition(topic.place(columns), self.partitions)
            value = topic.delete(columns) if delete else topic.value(columns)
            self.broker.append(TopicPartition(THEIRS, partition), topic.key(columns), value)

    def state(self) -> TableState:
        with self.gateway.store.snapshot() as snapshot:
            return snapshot.table(self.table) or TableState()

    def history_start(self, partition: Partition) -> int:
        with self.gateway.store.snapshot() as snapshot:
            position = snapshot.position(StoreId(self.state().store_id), partition)
        assert position is not None
        return position.history_start

    def generation(self) -> GenerationReplica:
        serving = self.gateway.replicator._tables[self.table].serving
        assert serving is not None
        return serving

    def numbers(self) -> set[int]:
        """Return the numbers of the rows that are served."""
        state, found = self.state(), set()
        if state.problem or not state.HasField("manifest"):
            return set()
        with self.gateway.store.snapshot() as snapshot:
            for partition in range(state.manifest.partition_count):
                rows = snapshot.range(StoreId(state.store_id), Partition(partition), start=b"", end=None, limit=1_000)
                found |= {JSON.contract.row_class.FromString(row).quantity + 2 for _, row in rows}  # type: ignore[attr-defined]
        return found


@pytest.fixture
def foreign() -> Foreign:
    return Foreign()


def test_rows_come_and_go_with_their_records(foreign: Foreign) -> None:
    foreign.put(*range(20))
    foreign.publish(foreign.manifest())
    foreign.gateway.steps()
    assert foreign.numbers() == {*range(20)}
    foreign.put(3, 4, delete=True)
    foreign.put(30)
    foreign.gateway.steps()
    assert foreign.numbers() == {*range(20), 30} - {3, 4}
    foreign.gateway.restart()
    foreign.put(5, delete=True)
    foreign.gateway.steps()
    assert foreign.numbers() == {*range(20), 30} - {3, 4, 5}
    foreign.publish(None)
    foreign.gateway.steps()
    assert not foreign.numbers()


def test_a_bad_record_leaves_the_row_before_it_and_is_counted(foreign: Foreign) -> None:
    foreign.put(*range(5))
    columns = JSON.columns(2)
    partition = murmur2_partition(JSON.place(columns), PARTITIONS)
    foreign.broker.append(TopicPartition(THEIRS, partition), JSON.key(columns), b"{")
    foreign.broker.append(TopicPartition(THEIRS, Partition(1 - partition)), JSON.key(columns), b"{}")
    foreign.broker.append(TopicPartition(THEIRS, Partition(0)), None, b"{}")
    foreign.publish(foreign.manifest())
    foreign.gateway.seconds(1)
    assert foreign.numbers() == {*range(5)}
    poison = {each.reason: each.count for each in foreign.gateway.table_status().poison}
    other = (
        "key belongs to another partition: producers place keys in another way (say --partitioner unknown), or wrote "
        "it when the topic had fewer (have them write it again)"
    )
    assert poison == {"value is not JSON": 1, other: 1, "key is null": 1}


def test_ids_in_headers_are_read_beside_those_before_values(foreign: Foreign, caplog: pytest.LogCaptureFixture) -> None:
    manifest = foreign.manifest(topic=NESTED)
    guid = UUID(int=7)
    manifest.foreign.schema_guids[str(guid)] = SCHEMA_ID
    foreign.put(*range(5), topic=NESTED)
    for number in range(5, 15):
        columns = NESTED.columns(number)
        key, value = NESTED.key(columns), (NESTED.value(columns) or b"")[len(FRAME) :]
        header = b"\x01" + (guid if number % 2 else UUID(int=8)).bytes
        at = TopicPartition(THEIRS, murmur2_partition(key, PARTITIONS))
        foreign.broker.append(at, key, value, schema_ids=SchemaIds(None, header))
    foreign.publish(manifest)
    foreign.gateway.seconds(1)
    assert foreign.numbers() == {*range(5), 5, 7, 9, 11, 13}
    [poison] = foreign.gateway.table_status().poison
    assert (poison.reason, poison.count) == ("value has a schema GUID in a header that is not in the manifest", 5)
    assert sum("schema GUID in a header" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("topic", [pytest.param(one, id=one.name) for one in TOPICS])
def test_the_first_bad_record_of_a_kind_is_logged_without_data(topic: Topic, caplog: pytest.LogCaptureFixture) -> None:
    foreign = Foreign(topic.table)
    foreign.put(1, topic=topic)
    columns = topic.columns(1)
    partition = murmur2_partition(topic.place(columns), PARTITIONS)
    for key, value in (
        (topic.key(columns), BAD_VALUE),
        (topic.key(columns), BAD_VALUE),
        (None, BAD_VALUE),
        (None, None),
    ):
        foreign.broker.append(TopicPartition(THEIRS, partition), key, value)
    foreign.put(2, topic=topic)
    foreign.publish(foreign.manifest(topic=topic))
    foreign.gateway.seconds(1)
    poison = {one.reason: one.count for one in foreign.gateway.table_status().poison}
    assert [*poison.values()] == [2, 2]
    logged = [record for record in caplog.records if "skipped a record" in record.getMessage()]
    assert sorted(str(record.args[0]) for record in logged if isinstance(record.args, tuple)) == sorted(poison)
    assert [(vars(record)["table"], vars(record)["topic"]) for record in logged] == [(topic.table, THEIRS)] * 2
    assert "SECRE" not in str([vars(record) for record in caplog.records])
    state = foreign.state()
    with foreign.gateway.store.snapshot() as snapshot:
        rows = [
            topic.contract.row_class.FromString(row)
            for number in range(PARTITIONS)
            for _, row in snapshot.range(StoreId(state.store_id), Partition(number), start=b"", end=None, limit=9)
        ]
    assert sorted(map(str, rows)) == sorted(str(topic.row(topic.columns(number))) for number in (1, 2))


KINDS = """syntax = "proto3";
package shop.others.v1;
import "tablegate/v1/options.proto";
enum Kind { KIND_UNSPECIFIED = 0; KIND_SALE = 1; }
message Order {
  option (tablegate.v1.table) = {name: "orders", key: "order_id"};
  string order_id = 1;
  int64 quantity = 3;
  oneof by { string customer = 2; string shop = 4; }
  Kind kind = 5;
}
"""


@pytest.mark.parametrize(
    ("edit", "value"),
    [
        (("KIND_SALE = 1;", "KIND_SALE = 1; KIND_GIFT = 2;"), b'{"kind": "KIND_GIFT"}'),
        (("KIND_SALE", "KIND_GIFT"), b'{"kind": "KIND_GIFT"}'),
        (("int64 quantity = 3;", 'int64 quantity = 3 [json_name = "pieces"];'), b'{"pieces": 7}'),
        (("oneof by { string customer = 2;", "oneof to { string customer = 2;"), b"{}"),
    ],
)
def test_rows_are_read_anew_by_a_contract_that_reads_otherwise(
    foreign: Foreign, tmp_path: Path, edit: tuple[str, str], value: bytes
) -> None:
    foreign.gateway.catalogue = bind_sources(tmp_path / "old", shop=KINDS)
    foreign.gateway.restart()
    foreign.put(*range(5))
    partition = murmur2_partition(b"o-9", PARTITIONS)
    foreign.broker.append(TopicPartition(THEIRS, partition), b"o-9", value)
    foreign.publish(foreign.manifest())
    foreign.gateway.steps()
    before = foreign.state().store_id
    foreign.gateway.restart()
    foreign.gateway.steps()
    assert foreign.state().store_id == before
    foreign.gateway.catalogue = bind_sources(tmp_path / "new", shop=edited(KINDS, edit))
    foreign.gateway.restart()
    foreign.gateway.steps()
    assert foreign.state().store_id != before
    assert not foreign.gateway.replicator._tables["orders"].skipped.total


BOTH = (
    KINDS
    + """
message Buyer {
  option (tablegate.v1.table) = {name: "buyers", key: "order_id"};
  string order_id = 1;
  string customer = 2;
}
"""
)


def test_two_tables_of_one_topic(foreign: Foreign, tmp_path: Path) -> None:
    foreign.gateway.catalogue = bind_sources(tmp_path, shop=BOTH)
    foreign.gateway.restart()
    tables, log = TopicPartition("tables", Partition(0)), TopicPartition(THEIRS, Partition(0))

    def publish(name: str, generation: int = 1) -> None:
        manifest = foreign.manifest(generation)
        manifest.table, manifest.contract_fingerprint = name, foreign.gateway.catalogue.tables[name].fingerprint
        foreign.broker.append(tables, name.encode(), manifest.SerializeToString())

    def counts() -> list[int]:
        found = []
        for name in ("orders", "buyers"):
            with foreign.gateway.store.snapshot() as snapshot:
                state = snapshot.table(name)
                assert state is not None
                is_served = not state.problem
                rows = snapshot.range(StoreId(state.store_id), Partition(0), start=b"", end=None, limit=1_000)
                found.append(len([*rows]) if is_served else 0)
        return found

    foreign.create(partitions=1)
    foreign.put(*range(5))
    publish("orders")
    foreign.gateway.steps()
    publish("buyers")
    foreign.put(5)
    foreign.gateway.steps()
    assert counts() == [6, 6]
    foreign.gateway.restart()
    foreign.put(6)
    foreign.gateway.steps()
    assert counts() == [7, 7]
    publish("buyers", generation=2)  # the topic is read anew for one of them
    foreign.gateway.steps(20)
    foreign.put(7)
    foreign.gateway.steps()
    assert counts() == [8, 8]
    foreign.broker.append(tables, b"orders", None)
    foreign.broker.append(log, b"o-9", b"{}")
    foreign.gateway.steps()
    assert counts() == [0, 9]
    publish("orders")
    foreign.gateway.steps(20)
    assert counts() == [9, 9]


def test_a_table_of_the_topic_of_manifests(foreign: Foreign, tmp_path: Path) -> None:
    foreign.gateway.catalogue = bind_sources(tmp_path, shop=BOTH)
    foreign.gateway.restart()
    facts = foreign.broker.facts("tables")
    assert facts is not None
    manifest = foreign.manifest()
    manifest.changelog_topic, manifest.changelog_topic_id, manifest.partition_count = "tables", facts.topic_id, 1
    manifest.contract_fingerprint = foreign.gateway.catalogue.tables["orders"].fingerprint
    foreign.publish(manifest)
    foreign.gateway.steps()
    assert foreign.gateway.replicator._tables["orders"].skipped.reasons == {"value is not JSON": 1}
    foreign.publish(None)
    foreign.gateway.steps()
    assert foreign.state().problem


def test_an_end_that_was_seen_says_how_fresh_it_is(foreign: Foreign) -> None:
    foreign.put(*range(5))
    foreign.publish(foreign.manifest())
    foreign.gateway.steps()

    def as_of_s() -> list[float]:
        return [(each.position.as_of_ms - START_MS) / 1_000 for each in foreign.generation().replicas]

    first = as_of_s()
    assert all(0 <= each <= 0.1 for each in first)
    foreign.gateway.seconds(20)  # nobody writes
    assert all(10 < each <= 21 for each in as_of_s())


def test_a_partition_that_lags_is_known_to_be_of_some_time() -> None:
    ends = EndTimes(Offset(10), 1_000)
    times = []
    for number in range(2, 20):  # asked each second, and three seconds behind
        ends.note(Offset(10 * number), 1_000 * number)
        times.append(ends.as_of_ms(Offset(10 * (number - 3))))
    assert [time for time in times if time] == [1_000, 4_000, 7_000, 10_000, 13_000, 16_000]
    ends.note(Offset(-1), 50_000)  # the brokers did not say
    assert ends.as_of_ms(Offset(10_000)) == 19_000
    assert ends.as_of_ms(Offset(10_000)) == 0


def test_what_compaction_may_have_removed_is_no_history(foreign: Foreign) -> None:
    foreign.put(*range(5))
    foreign.publish(foreign.manifest())
    foreign.gateway.seconds(6)
    before = {each.partition: each.position for each in foreign.generation().replicas}
    foreign.put(1, 1, 2)
    foreign.gateway.steps()
    assert all(foreign.history_start(each.partition) == 0 for each in foreign.generation().replicas)
    foreign.gateway.replicator.close()
    foreign.put(1, 1, 1, 1, 2, 2, 2, 2, 7, 8, 9, 10)
    for partition in range(PARTITIONS):
        foreign.broker.compact(TopicPartition(THEIRS, Partition(partition)))
    foreign.clock.passed_s += 600
    foreign.gateway.restart()
    foreign.gateway.steps()
    changed = [each for each in foreign.generation().replicas if each.next_offset > before[each.partition].next_offset]
    assert changed
    assert all(foreign.history_start(each.partition) > before[each.partition].next_offset for each in changed)


def test_another_description_is_another_generation_beside_the_first(foreign: Foreign) -> None:
    foreign.put(*range(10))
    foreign.publish(foreign.manifest())
    foreign.gateway.steps()
    foreign.put(*range(20, 30), topic=NESTED)  # not JSON: set aside by the first generation
    foreign.publish(foreign.manifest(topic=NESTED))
    foreign.gateway.steps()
    assert "was replaced by one with another description of its records" in foreign.state().problem
    foreign.publish(foreign.manifest(2, topic=NESTED))
    foreign.gateway.steps(20)
    assert foreign.state().manifest.generation == 2
    assert foreign.numbers() == {*range(20, 30)}
    foreign.put(40, topic=NESTED)
    foreign.gateway.steps()
    assert foreign.numbers() == {*range(20, 30), 40}


def test_a_generation_that_two_commands_wrote_is_removed_and_added_again(foreign: Foreign) -> None:
    """To add it again alone changes nothing: the manifest that is there says what is asked for."""
    foreign.put(*range(10))
    foreign.publish(foreign.manifest())
    foreign.publish(foreign.manifest(2, topic=NESTED))
    foreign.publish(foreign.manifest(2))
    foreign.gateway.steps(20)
    assert "tablegate table remove orders, then add it again" in foreign.state().problem
    foreign.publish(foreign.manifest(2))
    foreign.gateway.steps(20)
    assert not foreign.numbers()
    foreign.publish(None)
    foreign.publish(foreign.manifest(3))
    foreign.gateway.steps(20)
    assert foreign.numbers() == {*range(10)}


def test_a_topic_made_anew_is_refused_until_it_is_added_again(foreign: Foreign) -> None:
    foreign.put(*range(10))
    foreign.publish(foreign.manifest())
    foreign.gateway.steps()
    foreign.create()
    foreign.put(50)
    foreign.gateway.seconds(12)
    assert foreign.state().problem == (
        'table "orders": topic "theirs" was made anew; add the table again: tablegate table add orders'
    )
    foreign.publish(foreign.manifest(2))
    foreign.gateway.seconds(6)
    assert foreign.numbers() == {50}


def test_added_partitions_are_refused_until_it_is_added_again(foreign: Foreign) -> None:
    foreign.publish(foreign.manifest())
    foreign.gateway.steps()
    old_id = foreign.topic_id
    foreign.create(3)
    foreign.broker._topics[THEIRS].topic_id = foreign.topic_id = old_id
    foreign.gateway.seconds(12)
    assert "has 3 partitions, and had 2: keys have moved to others; add the table again" in foreign.state().problem


@pytest.mark.parametrize(
    ("retention_ms", "seconds", "problem"),
    [
        (
            86_400_000,
            0,
            "has cleanup.policy=delete, so rows whose records are old are missing in it; have it compacted",
        ),
        (86_400_000, 86_401, "keeps records for 86400 s, and the table's retention is 86401 s; raise retention.ms"),
        (86_400_000, 86_400, ""),
        (-1, 10**8, ""),
    ],
)
def test_a_topic_that_deletes_by_age_needs_a_retention(retention_ms: int, seconds: int, problem: str) -> None:
    foreign = Foreign(retention_ms=retention_ms)
    manifest = foreign.manifest()
    if seconds:
        manifest.foreign.retention.seconds = seconds
    foreign.put(1)
    foreign.publish(manifest)
    foreign.gateway.seconds(1)
    if problem:
        assert problem in foreign.state().problem
    else:
        assert foreign.numbers() == {1}


def test_a_lost_tail_is_read_again(foreign: Foreign) -> None:
    foreign.put(*range(10))
    foreign.publish(foreign.manifest())
    foreign.gateway.steps()
    foreign.broker.create(THEIRS, PARTITIONS)
    foreign.broker._topics[THEIRS].topic_id = foreign.topic_id
    foreign.put(1, 2)
    foreign.gateway.seconds(12)
    assert foreign.numbers() == {1, 2}


def test_a_contract_that_does_not_fit_says_so(foreign: Foreign) -> None:
    manifest = foreign.manifest()
    manifest.foreign.key_codec = 1_000  # type: ignore[assignment]
    problem = problem_of(JSON.contract, manifest)
    assert problem is not None
    assert problem.startswith('table "orders": the codec of its keys is of a newer version')
