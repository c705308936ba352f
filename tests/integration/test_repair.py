"""Stale records that land last, real compaction, and stores that are empty after it."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tablegate.examples.demo.kafka import Broker
from tablegate.gateway.contract.keys import encode_key
from tablegate.gateway.contract.types import VERSION_HEADER, Offset, Partition, StoreId, make_version
from tablegate.gateway.kafka.client import KafkaLog
from tablegate.gateway.kafka.log import RecordId, SystemClock, TopicPartition
from tablegate.gateway.replication.replicator import Replicator
from tablegate.gateway.stores.lmdb.store import LmdbStore
from tablegate.v1.changelog_pb2 import ProgressMarker
from tablegate.v1.status_pb2 import GetStatusResponse, TableStatus
from tests.kit.gateway_processes.changelog import manifest_of, value_writer
from tests.kit.programs.kafka import NewRecord, consume, new_topic, produce
from tests.kit.table.filled import catalogue_of

pytestmark = pytest.mark.jvm

TABLE = catalogue_of().tables["ratings"]
PARTITIONS = 2
WAIT_S = 120.0
VALUE = value_writer(TABLE)
NEVER_ROLL = {"segment.ms": "3600000"}
ROLL = {"segment.ms": "100"}


class Changelog:
    """A changelog of ratings that is compacted when the test wants it, and at once."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.tables_topic = new_topic(bootstrap, prefix="tables", cleanup_policy="compact")
        self.topic = new_topic(
            bootstrap,
            PARTITIONS,
            "ratings-changelog",
            cleanup_policy="compact",
            message_timestamp_type="LogAppendTime",
            min_compaction_lag_ms="0",
            min_cleanable_dirty_ratio="0.0001",
            segment_ms=NEVER_ROLL["segment.ms"],
        )
        manifest = manifest_of(bootstrap, TABLE, topic=self.topic, partition_count=PARTITIONS, source="ratings")
        produce(bootstrap, self.tables_topic, [NewRecord(b"ratings", manifest.SerializeToString())])

    def put(self, movie_ids: Iterable[int], *, version: int, delete: bool = False) -> None:
        """Write a row of each movie, whose count is its version."""
        records = []
        for movie_id in movie_ids:
            row = {"movie_id": movie_id, "average_rating": 5.0, "rating_count": version, "update_time": None}
            key = encode_key(TABLE.key, [movie_id])
            headers = [(VERSION_HEADER, make_version(1, version))]
            partition = TABLE.partition_of(key, PARTITIONS)
            records.append(NewRecord(key, None if delete else VALUE(row), headers, partition))
        produce(self.bootstrap, self.topic, records)

    def compact(self) -> None:
        """Have all but the last record of each key removed."""
        self.configure(ROLL)
        soon(self._is_compact, each_s=0.3)
        self.configure(NEVER_ROLL)

    def _is_compact(self) -> bool:
        marker = ProgressMarker(generation=1).SerializeToString()
        produce(self.bootstrap, self.topic, [NewRecord(b"", marker, (), number) for number in range(PARTITIONS)])
        keys = [record.key for record in consume(self.bootstrap, self.topic) if record.key]
        return len(keys) == len(set(keys))

    def configure(self, settings: Mapping[str, str]) -> None:
        """Change settings of the topic."""
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)  # type: ignore[no-untyped-call]
            for name, value in settings.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, self.topic, incremental_configs=entries)
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.incremental_alter_configs([resource])[resource].result(20)


class Gateway:
    """A replicator on a store of its own."""

    def __init__(self, changelog: Changelog, log: KafkaLog, store: LmdbStore) -> None:
        self._store = store
        self._replicator = Replicator(
            catalogue_of(),
            log=log,
            store=store,
            clock=SystemClock(),
            tables_topic=changelog.tables_topic,
            repair_grace_s=1.0,
        )

    def step_until(self, done: Callable[[TableStatus], bool]) -> None:
        """Go on until the status of the table is as wanted."""

        def is_done() -> bool:
            self._replicator.step()
            return done(self.status())

        soon(is_done)

    def status(self) -> TableStatus:
        with self._store.snapshot() as snapshot:
            tables = GetStatusResponse.FromString(snapshot.status()).tables
        return tables[0] if tables else TableStatus()

    def rows(self) -> dict[int, int]:
        """Return rating counts by movie."""
        found = {}
        with self._store.snapshot() as snapshot:
            state = snapshot.table("ratings")
            assert state is not None
            for partition in map(Partition, range(PARTITIONS)):
                for _, row in snapshot.range(StoreId(state.store_id), partition, start=b"", end=None, limit=10_000):
                    rating = TABLE.row_class.FromString(row)
                    found[rating.movie_id] = rating.rating_count  # type: ignore[attr-defined]
        return found


@contextmanager
def gateway_of(changelog: Changelog, directory: Path) -> Iterator[Gateway]:
    with closing(KafkaLog(changelog.bootstrap)) as log, closing(LmdbStore(directory)) as store:
        yield Gateway(changelog, log, store)


def soon(done: Callable[[], bool], *, each_s: float = 0.0) -> None:
    """Ask until it is done; fail after `WAIT_S`."""
    until_s = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < until_s, "it is not done in time"
        time.sleep(each_s)


def is_whole(status: TableStatus) -> bool:
    lags = [each.end_offset - each.next_offset for each in status.partitions]
    return status.serving and lags == [0] * PARTITIONS


def test_stale_records_compaction_and_empty_stores_three_times(broker: Broker, tmp_path: Path) -> None:
    changelog = Changelog(broker.bootstrap)
    movies = range(200)
    for number in range(3):
        newest = 100 * (number + 1)
        deleted = {movie for movie in movies if movie % 5 == number}
        with gateway_of(changelog, tmp_path / str(number)) as gateway:
            changelog.put(set(movies) - deleted, version=newest)
            changelog.put(deleted, version=newest, delete=True)
            changelog.put(movies, version=newest - 50)  # of a task that was thought dead
            gateway.step_until(lambda status: (status.repaired_records, status.pending_repairs) == (200, 0))
            assert gateway.status().stale_records == 200
        changelog.compact()
        expected = dict.fromkeys(set(movies) - deleted, newest)
        with gateway_of(changelog, tmp_path / f"{number}-wiped") as restored:
            restored.step_until(is_whole)
            rows = restored.rows()
        assert sum(rows.get(movie) == expected.get(movie) for movie in movies) == 200


def test_a_repair_that_the_brokers_refuse_is_done_once_they_take_it(broker: Broker, tmp_path: Path) -> None:
    changelog = Changelog(broker.bootstrap)
    with gateway_of(changelog, tmp_path) as gateway:
        changelog.put([1], version=9)
        changelog.put([1], version=4)
        changelog.configure({"max.message.bytes": "10"})
        gateway.step_until(lambda status: bool(status.repair_problem))
        assert changelog.topic in gateway.status().repair_problem
        assert gateway.rows() == {1: 9}
        changelog.configure({"max.message.bytes": "1000000"})
        gateway.step_until(lambda status: (status.repaired_records, status.repair_problem) == (1, ""))


def test_records_are_appended_again_as_they_are(broker: Broker) -> None:
    topic = new_topic(broker.bootstrap, 2)
    version = make_version(1, 7)
    headers = [("other", b"kept"), (VERSION_HEADER, version)]
    noise = [NewRecord(b"n", b"n", (), 1)] * 1_500
    row, tombstone = NewRecord(b"k", b"\x00value", headers, 1), NewRecord(b"d", None, headers, 1)
    produce(broker.bootstrap, topic, [row, *noise, tombstone])
    end = 1_502
    wanted = [RecordId(Offset(end - 1), b"d", version), RecordId(Offset(0), b"k", version)]
    others = [RecordId(Offset(1), b"k", version), RecordId(Offset(end + 9), b"k", version)]
    older = RecordId(Offset(0), b"k", make_version(1, 6))
    with closing(KafkaLog(broker.bootstrap)) as log:
        at = TopicPartition(topic, Partition(1))
        assert sorted(log.repeat(at, [*wanted, *others, older]).result(WAIT_S)) == sorted(wanted)
    appended = [each[2:5] for each in consume(broker.bootstrap, topic) if each.offset >= end]
    assert appended == [(b"k", b"\x00value", tuple(headers)), (b"d", None, tuple(headers))]
