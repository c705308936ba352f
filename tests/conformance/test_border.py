"""Boundary values of each field of each kind of record, against each store: what it cannot hold never reaches it."""

from collections.abc import Callable

import pytest

from tablegate.gateway.contract.types import Partition, StoreId, Version, make_version
from tablegate.gateway.kafka.log import TopicPartition
from tablegate.gateway.replication.replicator import Replicator
from tablegate.gateway.stores.base import Position, StoreWriter
from tablegate.v1.changelog_pb2 import Manifest, ProgressMarker
from tablegate.v1.status_pb2 import GetStatusResponse, TableStatus
from tests.kit.replication.memory_log import MemoryBroker, MemoryLog
from tests.kit.replication.replicator import START_MS, FakeClock, Job, key_of, value_of
from tests.kit.table.filled import catalogue_of

pytestmark = pytest.mark.tools

INT32_MAX, INT64_MAX, UINT64_MAX = 2**31 - 1, 2**63 - 1, 2**64 - 1
DEEP = "[" * 100_000


class Border:
    """A replicator that writes a store of each kind, and the job whose topics anybody may write to."""

    def __init__(self, store: StoreWriter) -> None:
        self.clock = FakeClock()
        self.time_ms = START_MS
        self.broker = MemoryBroker(lambda: self.time_ms)
        self.broker.create("tables", 1)
        self.job = Job(self.broker, partitions=1).create().publish()
        self.store = store
        self.replicator = Replicator(catalogue_of(), log=MemoryLog(self.broker), store=store, clock=self.clock)
        self.steps()

    def steps(self, count: int = 4) -> None:
        for _ in range(count):
            self.replicator.step(poll_s=0)
            self.clock.passed_s += 0.6

    def append(self, key: bytes | None, value: bytes | None, version: bytes | None = None) -> None:
        self.broker.append(TopicPartition(self.job.topic, Partition(0)), key, value, version=version)

    def put_manifest(self, key: bytes | None, value: bytes | None) -> None:
        self.broker.append(TopicPartition("tables", Partition(0)), key, value)

    def status(self) -> TableStatus:
        with self.store.snapshot() as snapshot:
            return GetStatusResponse.FromString(snapshot.status()).tables[0]

    def position(self) -> Position:
        with self.store.snapshot() as snapshot:
            state = snapshot.table("ratings")
            assert state is not None
            found = snapshot.position(StoreId(state.store_id), Partition(0))
        assert found is not None
        return found

    def row(self, movie_id: int) -> bytes | None:
        with self.store.snapshot() as snapshot:
            state = snapshot.table("ratings")
            assert state is not None
            return snapshot.get(StoreId(state.store_id), Partition(0), key_of(movie_id))

    def goes_on(self) -> None:
        """Check that rows behind what came are applied, and served."""
        self.job.put([7_000])
        self.steps()
        assert self.row(7_000) is not None
        assert self.status().serving
        assert not self.status().fault


@pytest.fixture
def border(store: StoreWriter) -> Border:
    return Border(store)


def marker(topic: str = "ratings", partition: int = 0, next_offset: int = 1, **more: int) -> bytes:
    value = ProgressMarker(generation=1, **more)  # type: ignore[arg-type]
    value.sources.add(topic=topic, next_offsets={partition: next_offset})
    return value.SerializeToString()


@pytest.mark.parametrize(
    ("topic", "partition", "next_offset"),
    [
        ("a" * 249, 0, 0),
        ("ratings", INT32_MAX, INT64_MAX),
        ("A.b_c-9", 0, INT64_MAX),
    ],
)
def test_a_marker_at_its_bounds_is_a_bookmark(border: Border, topic: str, partition: int, next_offset: int) -> None:
    border.append(b"", marker(topic, partition, next_offset, batch_id=-1))
    border.steps()
    assert border.position().source_offsets == {(topic, partition): next_offset}
    border.goes_on()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (marker(partition=-1), "progress marker has a partition below 0"),
        (marker(partition=-(2**31)), "progress marker has a partition below 0"),
        (marker(next_offset=-1), "progress marker has an offset below 0"),
        (marker(next_offset=-(2**63)), "progress marker has an offset below 0"),
        (marker(topic=""), "progress marker names a source that can be no topic"),
        (marker(topic="a" * 250), "progress marker names a source that can be no topic"),
        (marker(topic="a" * 65_536), "progress marker names a source that can be no topic"),
        (marker(topic=".."), "progress marker names a source that can be no topic"),
        (marker(topic="a b"), "progress marker names a source that can be no topic"),
        (marker(topic="a\0"), "progress marker names a source that can be no topic"),
        (None, "progress marker of another generation"),
        (b"\xff", "progress marker does not parse"),
    ],
    ids=range(12),
)
def test_a_marker_beyond_its_bounds_is_poison(border: Border, value: bytes | None, reason: str) -> None:
    border.append(b"", value)
    border.steps()
    assert border.position().source_offsets == {}
    assert {each.reason: each.count for each in border.status().poison} == {reason: 1}
    border.goes_on()


def test_markers_name_no_more_source_partitions_than_a_position_can_hold(border: Border) -> None:
    value = ProgressMarker(generation=1)
    value.sources.add(topic="ratings", next_offsets=dict.fromkeys(range(65_537), 1))
    border.append(b"", value.SerializeToString())
    for number in range(2):
        value = ProgressMarker(generation=1)
        value.sources.add(topic=f"ratings-{number}", next_offsets=dict.fromkeys(range(40_000), 1))
        border.append(b"", value.SerializeToString())
    border.steps()
    assert len(border.position().source_offsets) == 40_000
    assert {each.reason: each.count for each in border.status().poison} == {
        "progress marker has more than 65536 source partitions": 1,
        "progress markers have more than 65536 source partitions": 1,
    }
    border.goes_on()


@pytest.mark.parametrize("time_ms", [-(2**63), -1, 0, 2**62, INT64_MAX])
def test_a_record_of_no_time_is_applied(border: Border, time_ms: int) -> None:
    before_ms = border.position().as_of_ms
    border.time_ms = time_ms
    border.job.put([1])
    border.append(b"", marker())
    border.steps()
    assert border.row(1) is not None
    assert border.position().as_of_ms == before_ms
    border.goes_on()


@pytest.mark.parametrize("sequence", [0, 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, UINT64_MAX - 1])
def test_the_next_sequence_is_newer_and_the_same_is_not(border: Border, sequence: int) -> None:
    for number, count in ((sequence, 1), (sequence + 1, 2), (sequence + 1, 3), (sequence, 4)):
        border.append(key_of(1), value_of(1, count), make_version(1, number))
        border.steps(1)
    assert border.row(1) == _row(2)
    border.append(key_of(1), None, make_version(1, sequence + 1))
    border.steps()
    assert border.row(1) == _row(2)
    border.goes_on()


def _row(count: int) -> bytes:
    message = catalogue_of().tables["ratings"].row_class(movie_id=1, average_rating=5.0, rating_count=count)
    return message.SerializeToString()


@pytest.mark.parametrize("version", [b"", b"\0" * 11, b"\0" * 13, Version(b"\xff" * 12), Version(b"\0" * 12), None])
@pytest.mark.parametrize("value", [None, value_of(1, 1)], ids=["tombstone", "row"])
def test_a_version_that_is_none_of_the_table_is_poison(
    border: Border, version: bytes | None, value: bytes | None
) -> None:
    border.append(key_of(1), value, version)
    border.steps()
    assert border.row(1) is None
    assert border.status().poison_records == 1
    border.goes_on()


@pytest.mark.parametrize("value", [b"", b"\0", b"\0\0\0\0\1", b"\0\xff\xff\xff\xff", b"\xff" * 70_000])
def test_a_value_that_is_no_row_is_poison(border: Border, value: bytes) -> None:
    border.append(key_of(1), value, make_version(1, 1))
    border.steps()
    assert border.row(1) is None
    assert border.status().poison_records == 1
    border.goes_on()


@pytest.mark.parametrize("movie_id", [-(2**63), -1, 0, 1, INT64_MAX])
def test_a_key_at_its_bounds_is_a_row(border: Border, movie_id: int) -> None:
    border.job.put([movie_id])
    border.steps()
    assert border.row(movie_id) is not None
    border.job.put([movie_id], delete=True)
    border.steps()
    assert border.row(movie_id) is None
    assert border.status().poison_records == 0
    border.goes_on()


GUID = "89791762-2336-4186-9674-299b90a802e2"
Change = Callable[[Manifest], object]


def _second(**changes: object) -> Change:
    return lambda manifest: manifest.MergeFrom(Manifest(**changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_second(value_schemas={-1: "{}"}), "manifest has a value schema with an id below 0"),
        (_second(value_schemas={2: DEEP}), "manifest has a value schema that is not JSON, or nested too deep"),
        (_second(value_schemas={2: '{"type":' * 900 + "1" + "}" * 900}), None),
        (_second(value_schemas={2: "[" * 129 + "]" * 129}), "manifest has a value schema of more than 128 levels"),
        (_second(value_schemas={2: ""}), "manifest has a value schema that is not JSON, or nested too deep"),
        (_second(foreign={"schema_guids": {"a": 1}}), "manifest has a schema GUID that is none"),
        (_second(foreign={"schema_guids": {GUID: -1}}), "manifest has a schema GUID that is none"),
        (
            _second(foreign={"schema_guids": {f"{number:08}{GUID[8:]}": 1 for number in range(2_001)}}),
            "manifest has more than 2000 schema GUIDs",
        ),
        (_second(changelog_topic="a" * 65_536), "manifest names a changelog that can be no topic"),
        (_second(changelog_topic="a\0"), "manifest names a changelog that can be no topic"),
        (_second(changelog_topic_id="a" * 256), "manifest has a topic id of more than 255 bytes"),
        (_second(sources=[{"topic": ""}]), "manifest names a source that can be no topic"),
        (_second(sources=[{"topic": "a", "partition_count": -1}]), "manifest names a source that can be no topic"),
        (_second(publish_time={"seconds": 2**62}), "manifest has a time that is none"),
        (_second(publish_time={"nanos": -1}), "manifest has a time that is none"),
        (_second(table=""), None),
        (lambda manifest: manifest.ClearField("table"), "manifest is of another table than its key"),
    ],
    ids=range(17),
)
def test_a_manifest_beyond_its_bounds_is_set_aside(border: Border, change: Change, reason: str | None) -> None:
    manifest = border.job.manifest()
    change(manifest)
    border.put_manifest(b"ratings", manifest.SerializeToString())
    border.steps()
    if reason is not None:
        assert {each.reason: each.count for each in border.status().poison} == {reason: 1}
    border.goes_on()


@pytest.mark.parametrize("key", [None, b"", b"\xff", b"a" * 70_000, b"others", b"ratings/past"])
@pytest.mark.parametrize("value", [None, b"", b"\xff" * 70_000])
def test_records_of_other_keys_among_manifests_do_no_harm(
    border: Border, key: bytes | None, value: bytes | None
) -> None:
    border.put_manifest(key, value)
    border.steps()
    border.goes_on()


def test_a_manifest_that_is_set_aside_is_named_where_there_is_no_other(store: StoreWriter) -> None:
    border = Border(store)
    border.put_manifest(b"ratings", None)
    border.put_manifest(b"ratings", b"\xff")
    border.steps()
    assert "its newest manifest was set aside: manifest does not parse" in border.status().problem
    border.job.publish()
    border.steps(8)
    border.goes_on()
