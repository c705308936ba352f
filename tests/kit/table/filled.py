"""Tables in stores without Kafka: rows are applied as the replicator would, in a chosen number of partitions."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from tablegate.gateway.access.views import View
from tablegate.gateway.contract.binder.binder import bind
from tablegate.gateway.contract.catalogue import Catalogue, Table
from tablegate.gateway.contract.descriptors import load_descriptors
from tablegate.gateway.contract.keys import encode_key
from tablegate.gateway.contract.tokens import TokenSigner
from tablegate.gateway.contract.types import Offset, Partition, StoreId, make_version
from tablegate.gateway.query.call import AtTurn, Call, Fields
from tablegate.gateway.stores.base import Change, Phase, Position, StoreWriter
from tablegate.internal.v1.store_pb2 import TableState
from tablegate.v1.changelog_pb2 import SourceTopic

ROOT = Path(__file__).parents[3]
RATINGS = ROOT / "examples/tablegate/examples/contracts/examples/ratings/v1/ratings.proto"
ACTIONS = ROOT / "examples/tablegate/examples/contracts/examples/actions/v1/actions.proto"
ORDERS = ROOT / "tests/kit/table/orders.proto"  # every kind of column
SIGNER = TokenSigner([b"k" * 32])
SOURCES = (("ratings", 2),)
ROWS_AT_ONCE = 20_000  # into a store


@cache
def catalogue_of(path: Path = RATINGS) -> Catalogue:
    """Return the catalogue of a contract."""
    return bind(load_descriptors(path))


def other_rows() -> Catalogue:
    """Return the contract with another number of a field of its row message."""
    files = load_descriptors(RATINGS)
    [row] = [message for file in files.file for message in file.message_type if message.name == "Rating"]
    [count] = [field for field in row.field if field.name == "rating_count"]
    count.number = 99
    return bind(files)


def orders() -> Table:
    """Return a table with every kind of column."""
    return catalogue_of(ORDERS).tables["orders"]


def now_ms() -> int:
    """Return the milliseconds since 1970."""
    return time.time_ns() // 1_000_000


@dataclass
class FilledTable:
    """A table of a store, as its writer sees it."""

    store: StoreWriter
    table: Table
    partition_count: int
    generation: int = 1
    store_id: StoreId = field(default=StoreId(0))
    next_offsets: dict[Partition, int] = field(default_factory=dict)
    sequence: int = 0
    keyed: bool = False  # whether sequences are offsets of the one source
    incarnation_id: int = 0  # of each partition
    place: Callable[[bytes], Partition] | None = None  # of others than the table's partitioner

    def publish(self, *, problem: str = "", phase: Phase = Phase.LIVE) -> None:
        """Make the table known, with empty partitions."""
        self.store_id = self.store.new_store_id()
        self.next_offsets = {Partition(number): 0 for number in range(self.partition_count)}
        state = TableState(store_id=self.store_id, problem=problem, row_digest=self.table.row_digest)
        state.manifest.table = self.table.name
        state.manifest.generation = self.generation
        state.manifest.partition_count = self.partition_count
        state.manifest.changelog_topic = f"{self.table.name}-g{self.generation}-changelog"
        state.manifest.changelog_topic_id = f"id of {state.manifest.changelog_topic}"
        state.manifest.sources.extend(
            SourceTopic(topic=name, partition_count=count, keyed=self.keyed) for name, count in SOURCES
        )
        self.store.put_table(self.table.name, state)
        self.store.keep_indexes(self.store_id, self.table.row_indexes)
        for partition in self.next_offsets:
            self.move(partition, phase=phase)

    def key_of(self, row: Message) -> bytes:
        """Return the key bytes of a row."""
        values = [getattr(row, column.name) for column in self.table.key]
        return encode_key(
            self.table.key, [value.ToMicroseconds() if isinstance(value, Message) else value for value in values]
        )

    def partition_of(self, row: Message) -> Partition:
        """Return the partition of a row."""
        return self._place(self.key_of(row))

    def _place(self, key: bytes) -> Partition:
        return self.table.partition_of(key, self.partition_count) if self.place is None else self.place(key)

    def put(self, rows: Iterable[Message]) -> None:
        """Apply rows."""
        self._apply((self.key_of(row), row.SerializeToString()) for row in rows)

    def delete(self, rows: Iterable[Message]) -> None:
        """Apply tombstones of the keys of `rows`."""
        self._apply((self.key_of(row), None) for row in rows)

    def _apply(self, pairs: Iterable[tuple[bytes, bytes | None]]) -> None:
        changes: dict[Partition, list[Change]] = {}
        for key, row in pairs:
            partition = self._place(key)
            self.sequence += 1
            version = make_version(self.generation, self.sequence)
            offset = Offset(self.next_offsets[partition])
            self.next_offsets[partition] += 1
            changes.setdefault(partition, []).append(Change(offset, key, version, row, now_ms()))
        for partition, batch in changes.items():
            self.move(partition, changes=batch)

    def move(
        self,
        partition: Partition,
        *,
        changes: list[Change] | None = None,
        phase: Phase = Phase.LIVE,
        as_of_ms: int | None = None,
        source_offsets: Mapping[tuple[str, int], int] | None = None,
    ) -> None:
        """Apply `changes` and set the position."""
        position = Position(
            next_offset=Offset(self.next_offsets[partition]),
            as_of_ms=now_ms() if as_of_ms is None else as_of_ms,
            phase=phase,
            history_start=Offset(0),
            source_offsets=source_offsets or {},
            incarnation_id=self.incarnation_id,
        )
        self.store.apply(self.store_id, partition, changes or [], position)


def ratings_table(store: StoreWriter, partition_count: int = 3) -> FilledTable:
    """Return the ratings table in `store`, published."""
    filled = FilledTable(store, catalogue_of().tables["ratings"], partition_count)
    filled.publish()
    return filled


def live_partition(store: StoreWriter, rows: int) -> FilledTable:
    """Return the ratings table of an empty store, with one partition that is LIVE and can be given to others."""
    table = FilledTable(store, catalogue_of().tables["ratings"], 1)
    table.publish(phase=Phase.RESTORING)
    for start in range(0, rows, ROWS_AT_ONCE):
        table.put(rating(number) for number in range(start, min(rows, start + ROWS_AT_ONCE)))
    table.move(partition=0, phase=Phase.LIVE)
    return table


def rating(movie_id: int, average: float = 5.0, count: int = 1) -> Any:
    """Return a row of the ratings table."""
    row: Any = catalogue_of().tables["ratings"].row_class()
    row.movie_id, row.average_rating, row.rating_count = movie_id, average, count
    row.update_time.seconds = 1_700_000_000
    return row


def _in_the_next_round(go_on: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(go_on)


@dataclass
class LocalCall(Call):
    """A call without a transport."""

    left_s: float | None = 5.0
    draining: bool = False
    forwarded: str | None = None
    trailer: Fields = ()
    view: View | None = None

    def __post_init__(self) -> None:
        self._end = None if self.left_s is None else time.monotonic() + self.left_s

    def time_left_s(self) -> float | None:
        """Return the seconds left."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def view_of(self, path: str) -> View | None:
        """See of every table what this one shows."""
        return self.view

    def offer(self, message: bytes) -> bool:
        """Take nothing: it all comes from the handler."""
        return False

    @property
    def parks(self) -> bool:
        """Return that its handler keeps its task."""
        return False

    async def turn(self) -> None:
        """Go on in the next round of the event loop."""
        await asyncio.sleep(0)

    @property
    def at_turn(self) -> AtTurn:
        """Go on in the next round of the event loop."""
        return _in_the_next_round

    @property
    def at_turn_for_many(self) -> AtTurn:
        """Go on in the next round of the event loop."""
        return self.at_turn

    def set_trailer(self, trailer: Fields) -> None:
        """Keep the trailer."""
        self.trailer = trailer
