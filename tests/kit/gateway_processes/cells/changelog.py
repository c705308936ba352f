"""The changelog of the cells, written by hand, and what a history has to know of it.

Cells of the shelves stay once they are there: no reader may miss one. Beside them each shelf has some that come and go.
The sequence of a row's version is its revision, so an answer says by itself which version it has.
"""

import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

from confluent_kafka import Message, Producer

from tablegate.gateway.contract.keys import encode_key
from tablegate.gateway.contract.types import VERSION_HEADER, make_version
from tablegate.v1.changelog_pb2 import ProgressMarker
from tests.kit.gateway_processes.changelog import found_record, manifest_of, value_writer, write_log
from tests.kit.histories.history import History, now_ms
from tests.kit.programs.kafka import RawRecord, consume, new_topic
from tests.kit.table.filled import catalogue_of

CONTRACT = Path(__file__).with_name("cells.proto")
SERVICE = "/tests.cells.CellsService"
HOT = 60  # keys that half of all changes are of, and that readers ask for again and again
PASSING = 3  # cells of a shelf that come and go, behind those that stay
FLUSH_TIMEOUT_S = 120.0
DEAF_S = 15.0
MARK_EVERY_S = 0.5
TURN_S = 0.02
SHELF_NUMBERS = 1_000

CellKey = tuple[int, int]
"""Shelf, number."""


def number_of(key: CellKey) -> int:
    """Return a key as histories have it: a number, in the order of keys."""
    return key[0] * SHELF_NUMBERS + key[1]


class Generation(NamedTuple):
    """A generation of the table: its changelog."""

    number: int
    topic: str
    partition_count: int


class _Written(NamedTuple):
    """A record that Kafka has acknowledged."""

    time_ms: int
    generation: Generation
    partition: int
    offset: int
    key: CellKey | None  # None: a marker
    sequence: int
    deletes: bool
    is_final: bool
    broker_ms: int


class Cells:
    """The table. `lasting` are the keys that stay, `hot` and `cold` some of them and the others; `passing` do not.

    `rows` is what a gateway must have: key → revision. One thread writes at a time; any may ask for `acknowledged`.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        shelves: int,
        shelf_cells: int,
        partition_count: int,
        new_changelog: Callable[..., str] = new_topic,
    ) -> None:
        self._new_changelog = new_changelog
        self.table = catalogue_of(CONTRACT).tables["cells"]
        self.tables_topic = new_topic(bootstrap, prefix="tables", cleanup_policy="compact")
        self.shelves = range(shelves)
        self.shelf_cells = shelf_cells
        self.lasting = [(shelf, number) for shelf in self.shelves for number in range(shelf_cells)]
        self.hot = self.lasting[:: max(1, len(self.lasting) // HOT)]
        self.cold = sorted(set(self.lasting).difference(self.hot))
        self.passing = [(shelf, shelf_cells + number) for shelf in self.shelves for number in range(PASSING)]
        self.rows: dict[CellKey, int] = {}
        self.written = 0
        self._acknowledged: dict[CellKey, int] = {}
        self._log: list[_Written] = []
        self._logs_in_the_end: dict[Generation, list[RawRecord]] = {}  # of generations before
        self._floors: dict[int, dict[int, int]] = {}  # generation → partition → what each gateway has that serves it
        self._value = value_writer(self.table)
        self.bootstrap = bootstrap
        self._waiting: dict[int, Callable[[], None]] = {}  # what Kafka has not acknowledged: writes it again
        self._sent = 0
        self._heard_s = 0.0
        self._producer = self._new_producer()
        self._generations = [self._new_generation(1, partition_count)]  # those that are written: one, or two

    def _new_generation(self, number: int, partition_count: int) -> Generation:
        topic = self._new_changelog(
            self.bootstrap,
            partition_count,
            "cells-changelog",
            cleanup_policy="compact",
            message_timestamp_type="LogAppendTime",
        )
        return Generation(number, topic, partition_count)

    @property
    def newest(self) -> Generation:
        """Return the generation that gateways are to answer from, in the end."""
        return self._generations[-1]

    def publish(self) -> None:
        """Write the manifest."""
        manifest = manifest_of(
            self.bootstrap,
            self.table,
            topic=self.newest.topic,
            partition_count=self.newest.partition_count,
            source="cells",
            generation=self.newest.number,
        )
        self._send(self.tables_topic, 0, self.table.name.encode(), manifest.SerializeToString())
        self.flush()
        floor = self._floors[self.newest.number] = dict.fromkeys(range(self.newest.partition_count), 0)
        for written in self._log:
            if written.generation == self.newest:
                floor[written.partition] = max(floor[written.partition], written.offset + 1)

    def rebuild(self, partition_count: int) -> None:
        """Begin the next generation with all rows that are there, and publish it; the old one is written on."""
        self.flush()
        new = self._new_generation(self.newest.number + 1, partition_count)
        self._generations.append(new)
        for key, revision in self.rows.items():
            self._write([new], key, revision)
        self.mark()
        self.flush()  # what a gateway of the new one has at least is known then
        self.publish()

    def end_old(self) -> None:
        """Write the last markers of the generation before. Its topic may go once all gateways have switched."""
        old, _ = self._generations
        self._mark(old, is_final=True)
        self.flush()  # nothing is written to the new one alone before
        self._logs_in_the_end[old] = consume(self.bootstrap, old.topic)
        self._generations.remove(old)
        self.mark()

    def partition_of(self, key: CellKey) -> int:
        """Return the partition of a key."""
        return self.table.partition_of(encode_key(self.table.key, key), self.newest.partition_count)

    def put(self, keys: Iterable[CellKey]) -> None:
        """Write rows, each with the next revision."""
        for key in keys:
            self.written += 1
            self.rows[key] = self.written
            self._write(self._generations, key, self.written)

    def delete(self, keys: Iterable[CellKey]) -> None:
        """Write tombstones."""
        for key in keys:
            self.written += 1
            self.rows.pop(key, None)
            self._write(self._generations, key, self.written, deletes=True)

    def mark(self) -> None:
        """Write a progress marker to every partition."""
        for generation in self._generations:
            self._mark(generation)

    def _mark(self, generation: Generation, *, is_final: bool = False) -> None:
        marker = ProgressMarker(generation=generation.number, batch_id=1, final=is_final)
        marker.sources.add(topic="cells").next_offsets[0] = self.written
        marker.commit_time.GetCurrentTime()
        for partition in range(generation.partition_count):
            noted = partial(self._note, generation, None, 0, False, is_final)
            self._send(generation.topic, partition, b"", marker.SerializeToString(), on_acknowledged=noted)

    @property
    def unacknowledged(self) -> int:
        """Return how many records wait for Kafka."""
        return len(self._waiting)

    def poll(self, timeout_s: float = 0.0) -> None:
        """Take in what Kafka has acknowledged. A client that hears nothing for long gives way to another."""
        self._producer.poll(timeout_s)
        if self._waiting and time.monotonic() > self._heard_s + DEAF_S:
            self._producer.purge()
            self._producer = self._new_producer()
            for write in list(self._waiting.values()):
                write()

    def flush(self) -> None:
        """Wait until Kafka has everything."""
        deadline = time.monotonic() + FLUSH_TIMEOUT_S
        while self._waiting:
            assert time.monotonic() < deadline, f"{len(self._waiting)} records are not written"
            self.poll(0.1)

    def begin_anew(self) -> int:
        """Go on with the rows that are in the changelog, of which some was lost; return how many records are there.

        All that was written must have been acknowledged before. A new client goes on, as a job does that starts again.
        """
        assert not self._waiting
        self._producer = self._new_producer()
        records = consume(self.bootstrap, self.newest.topic)
        rows: dict[CellKey, tuple[int, bool]] = {}
        for _, number, sequence, deletes, _ in map(self._found, records):
            if number is not None:
                key = divmod(number, SHELF_NUMBERS)
                rows[key] = max(rows.get(key, (0, False)), (sequence, deletes))
        self.rows = {key: sequence for key, (sequence, deletes) in rows.items() if not deletes}
        return len(records)

    def has_tombstones(self, revision_max: int) -> bool:
        """Return whether there are tombstones of deletes up to a revision."""
        found = map(self._found, consume(self.bootstrap, self.newest.topic))
        return any(deletes and sequence <= revision_max for _, _, sequence, deletes, _ in found)

    def acknowledged(self, key: CellKey) -> int:
        """Return the newest revision of a key that Kafka has, in each generation that is written."""
        return self._acknowledged[key]

    def write_log(self, history: History) -> None:
        """Write into a history what was written to all changelogs, and what is in them now."""
        for number, floor in self._floors.items():
            history.about("floor", position=[number, floor])
        for written in list(self._log):
            history.ok(
                -1,
                "write",
                time=written.time_ms,
                id=[written.generation.number, written.partition],
                offset=written.offset,
                key=None if written.key is None else number_of(written.key),
                version=written.sequence,
                deletes=written.deletes,
                final=written.is_final,
                broker_ms=written.broker_ms,
            )
        present = {each: consume(self.bootstrap, each.topic) for each in self._generations}
        for generation, records in {**self._logs_in_the_end, **present}.items():
            partitions = range(generation.partition_count)
            write_log(history, self.table, records, partitions, generation=generation.number, number_of=number_of)

    def _found(self, record: RawRecord) -> list[Any]:
        return found_record(self.table, record, number_of)

    def _write(self, generations: Iterable[Generation], key: CellKey, revision: int, *, deletes: bool = False) -> None:
        """Write a row, or a tombstone, to these changelogs."""
        missing = set(generations)

        def acknowledged(generation: Generation, message: Message) -> None:
            self._note(generation, key, revision, deletes, False, message)
            missing.remove(generation)
            if not missing:
                self._acknowledged[key] = revision

        row = {"shelf": key[0], "number": key[1], "revision": revision}
        value = None if deletes else self._value(row)
        data = encode_key(self.table.key, key)
        for each in sorted(missing):
            partition = self.table.partition_of(data, each.partition_count)
            version = make_version(each.number, revision)
            self._send(each.topic, partition, data, value, version, partial(acknowledged, each))

    def _note(
        self,
        generation: Generation,
        key: CellKey | None,
        sequence: int,
        deletes: bool,
        is_final: bool,
        message: Message,
    ) -> None:
        """Note what Kafka has acknowledged. Of a record that it had already it does not say where."""
        offset, partition = message.offset(), message.partition()
        if offset is not None and partition is not None and offset >= 0:
            broker_ms = message.timestamp()[1]
            self._log.append(
                _Written(now_ms(), generation, partition, offset, key, sequence, deletes, is_final, broker_ms)
            )

    def _send(
        self,
        topic: str,
        partition: int,
        key: bytes,
        value: bytes | None,
        version: bytes | None = None,
        on_acknowledged: Callable[[Message], None] = lambda _: None,
    ) -> None:
        number = self._sent
        self._sent += 1

        def delivered(error: object, message: Message) -> None:
            if error is None and self._waiting.pop(number, None) is not None:
                self._heard_s = time.monotonic()
                on_acknowledged(message)

        def write() -> None:
            headers: Any = [] if version is None else [(VERSION_HEADER, version)]
            self._producer.produce(
                topic, key=key, value=value, headers=headers, partition=partition, on_delivery=delivered
            )

        if not self._waiting:
            self._heard_s = time.monotonic()
        self._waiting[number] = write
        write()

    def _new_producer(self) -> Producer:
        self._heard_s = time.monotonic()
        return Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "reconnect.backoff.max.ms": 1_000,
                "queue.buffering.max.messages": 1_000_000,
                "log_level": 0,
            }
        )


def filled_cells(
    bootstrap: str,
    *,
    shelves: int,
    shelf_cells: int,
    partition_count: int,
    new_changelog: Callable[..., str] = new_topic,
) -> Cells:
    """Return a table with all lasting cells, published."""
    cells = Cells(
        bootstrap,
        shelves=shelves,
        shelf_cells=shelf_cells,
        partition_count=partition_count,
        new_changelog=new_changelog,
    )
    cells.put(cells.lasting)
    cells.mark()
    cells.publish()
    return cells


class CellsWriter:
    """Changes cells while the block runs, some each turn; all are in Kafka when it ends."""

    def __init__(self, cells: Cells, *, changes_per_s: int, seed: int = 0) -> None:
        self._cells = cells
        self._turn_changes = max(1, int(changes_per_s * TURN_S))
        self._writing = threading.Lock()
        self._choice = random.Random(seed)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._cells.mark()
        self._cells.flush()

    def _run(self) -> None:
        turns = 0
        while not self._stopping.wait(TURN_S):
            with self._writing:
                self._change(self._turn_changes)
                turns += 1
                if turns % int(MARK_EVERY_S / TURN_S) == 0:
                    self._cells.mark()
                self._cells.poll()

    @contextmanager
    def paused(self) -> Iterator[Cells]:
        """Change nothing while the block runs, which may write instead."""
        with self._writing:
            yield self._cells

    def _change(self, count: int) -> None:
        cells, choice = self._cells, self._choice
        cells.put([choice.choice(choice.choice((cells.hot, cells.cold))) for _ in range(count)])
        passing = choice.choice(cells.passing)
        (cells.delete if passing in cells.rows else cells.put)([passing])


def by_partition(cells: Cells, keys: Collection[CellKey]) -> dict[int, list[CellKey]]:
    """Return keys by their partitions."""
    found: dict[int, list[CellKey]] = {}
    for key in keys:
        found.setdefault(cells.partition_of(key), []).append(key)
    return found
