"""A job that writes windows into a broker in memory, and a replicator of them that a test steps."""

import json
from collections.abc import Iterable
from io import BytesIO
from typing import Any

import fastavro
from google.protobuf.duration_pb2 import Duration
from typing_extensions import override

from tablegate.gateway.contract.binder.binder import bind
from tablegate.gateway.contract.catalogue import Catalogue, Table
from tablegate.gateway.contract.descriptors import load_descriptors
from tablegate.gateway.contract.keys import decode_key, encode_key
from tablegate.gateway.contract.rows import row_schema
from tablegate.gateway.contract.types import Offset, Partition, StoreId, make_version
from tablegate.gateway.kafka.log import TopicPartition
from tablegate.gateway.replication.replicator import Replicator
from tablegate.gateway.replication.sweep import SweepLimits
from tablegate.gateway.stores.base import PastChange, Position, StoreWriter
from tablegate.internal.v1.store_pb2 import TableState
from tablegate.v1 import options_pb2
from tablegate.v1.changelog_pb2 import ProgressMarker
from tablegate.v1.status_pb2 import GetStatusResponse
from tests.kit.replication.memory_log import MemoryBroker, MemoryLog
from tests.kit.replication.replicator import START_MS, FakeClock
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import ACTIONS, catalogue_of

NAME, TOPIC, PARTITIONS = "action_counts", "action-counts-g1-changelog", 2
SIZE_S = 5
DAY_S = 86_400

Window = tuple[str, int]
"""Browser, and start in seconds before or after the moment at which a test begins."""


def table() -> Table:
    return catalogue_of(ACTIONS).tables[NAME]


def contract(retention_s: float | None) -> Catalogue:
    """Return the contract with another retention."""
    files = load_descriptors(ACTIONS)
    [row] = [message for file in files.file for message in file.message_type if message.name == "ActionCount"]
    options = row.options.Extensions[options_pb2.table]
    options.ClearField("retention")
    if retention_s is not None:
        options.retention.CopyFrom(Duration(seconds=int(retention_s)))
    return bind(files)


def key_of(window: Window) -> bytes:
    browser, start_s = window
    return encode_key(table().key, [browser, START_MS * 1_000 + start_s * 1_000_000])


def value_of(window: Window, count: int) -> bytes:
    body = BytesIO()
    start_us = START_MS * 1_000 + window[1] * 1_000_000
    columns: dict[str, Any] = {"browser": window[0], "window_start": start_us, "window_end": None}
    fastavro.schemaless_writer(body, fastavro.parse_schema(row_schema(table())), {**columns, "action_count": count})
    return b"\x00\x00\x00\x00\x01" + body.getvalue()


class AdjustedClock(FakeClock):
    """A gateway's clock, and how far it is ahead of the right one, which is the broker's."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead_s = 0.0

    def right_ms(self) -> int:
        return super().now_ms()

    @override
    def now_ms(self) -> int:
        return self.right_ms() + round(self.ahead_s * 1_000)


class Setup:
    """A job that writes windows into a broker in memory, and a replicator that a test steps."""

    def __init__(self, store: StoreWriter | None = None) -> None:
        self.clock = AdjustedClock()
        self.broker = MemoryBroker(self.clock.right_ms)
        self.broker.create("tables", 1)
        self.topic_id = self.broker.create(TOPIC, PARTITIONS)
        self.store = store or MemoryStore()
        self.sequence = 0
        manifest = table().manifest(
            generation=1,
            changelog_topic=TOPIC,
            changelog_topic_id=self.topic_id,
            partition_count=PARTITIONS,
            value_schemas={1: json.dumps(row_schema(table()))},
        )
        self.broker.append(TopicPartition("tables", Partition(0)), NAME.encode(), manifest.SerializeToString())
        self.restart()

    def restart(self, catalogue: Catalogue | None = None, sweep_limits: SweepLimits | None = None) -> None:
        catalogue = catalogue or catalogue_of(ACTIONS)
        log = MemoryLog(self.broker)
        self.replicator = Replicator(catalogue, log=log, store=self.store, clock=self.clock, sweep_limits=sweep_limits)

    def source(self, window: Window) -> TopicPartition:
        return TopicPartition(TOPIC, table().partition_of(key_of(window), PARTITIONS))

    def put(self, windows: Iterable[Window], *, delete: bool = False) -> None:
        for window in windows:
            self.sequence += 1
            value = None if delete else value_of(window, self.sequence)
            version = make_version(1, self.sequence)
            self.broker.append(self.source(window), key_of(window), value, version=version)

    def mark(self) -> None:
        for partition in range(PARTITIONS):
            value = ProgressMarker(generation=1).SerializeToString()
            self.broker.append(TopicPartition(TOPIC, Partition(partition)), b"", value)

    def steps(self, count: int = 8, *, pass_s: float = 0.01) -> None:
        for _ in range(count):
            self.replicator.step(poll_s=0)
            self.clock.passed_s += pass_s

    def seconds(self, seconds: float) -> None:
        self.steps(round(seconds * 2) + 1, pass_s=0.5)

    def state(self) -> TableState:
        with self.store.snapshot() as snapshot:
            return snapshot.table(NAME) or TableState()

    def store_id(self) -> StoreId:
        return StoreId(self.state().store_id)

    def position(self, partition: int) -> Position:
        with self.store.snapshot() as snapshot:
            found = snapshot.position(self.store_id(), Partition(partition))
        assert found is not None
        return found

    def is_served(self) -> bool:
        state = self.state()
        return not state.problem and all(self.position(number).phase.name == "LIVE" for number in range(PARTITIONS))

    def windows(self) -> set[Window]:
        """Return the windows that are stored, expired or not."""
        found = set()
        with self.store.snapshot() as snapshot:
            for partition in range(PARTITIONS):
                rows = snapshot.range(self.store_id(), Partition(partition), start=b"", end=None, limit=10**6)
                for key, _ in rows:
                    browser, start_us = decode_key(table().key, key)
                    assert isinstance(start_us, int)
                    found.add((str(browser), (start_us - START_MS * 1_000) // 1_000_000))
        return found

    def history(self, window: Window) -> list[PastChange]:
        """Return the changes of a window's partition."""
        with self.store.snapshot() as snapshot:
            return snapshot.history(self.store_id(), self.source(window).partition, start=Offset(0), limit=10**6)

    def is_stored(self, window: Window) -> bool:
        """Return whether the store knows of a key, be it by a tombstone."""
        with self.store.snapshot() as snapshot:
            return snapshot.get_stored(self.store_id(), self.source(window).partition, key_of(window)) is not None

    def status(self) -> GetStatusResponse:
        with self.store.snapshot() as snapshot:
            return GetStatusResponse.FromString(snapshot.status())


def aged(seconds: int) -> int:
    """Return the start of a window that has been expired for so long (negative: will be) when a test begins."""
    return -DAY_S - SIZE_S - seconds
