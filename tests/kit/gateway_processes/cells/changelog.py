"""The changelog of the cells, written by hand, and what every reader may hold against a gateway.

Cells of the shelves stay once they are there: no reader may miss one. Beside them each shelf has some that come and go.
"""

import random
import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

from confluent_kafka import Producer

from tablegate.gateway.contract.keys import encode_key
from tablegate.gateway.contract.types import VERSION_HEADER, make_version
from tablegate.v1.changelog_pb2 import ProgressMarker
from tests.kit.gateway_processes.changelog import manifest_of, value_writer
from tests.kit.programs.kafka import new_topic
from tests.kit.table.filled import catalogue_of, now_ms

CONTRACT = Path(__file__).with_name("cells.proto")
SERVICE = "/tests.cells.CellsService"
HOT = 60  # keys that half of all changes are of, and that readers ask for again and again
PASSING = 3  # cells of a shelf that come and go, behind those that stay
FLUSH_TIMEOUT_S = 120.0
DEAF_S = 15.0
MARK_EVERY_S = 0.5
TURN_S = 0.02

CellKey = tuple[int, int]
"""Shelf, number."""


class Generation(NamedTuple):
    """A generation of the table: its changelog."""

    number: int
    topic: str
    partition_count: int


class Cells:
    """The table. `lasting` are the keys that stay, `hot` and `cold` some of them and the others.

    `rows` is what a gateway must have: key → revision. One thread writes at a time; any may ask for `floor`.
    """

    def __init__(self, bootstrap: str, *, shelves: int, shelf_cells: int, partition_count: int) -> None:
        self.table = catalogue_of(CONTRACT).tables["cells"]
        self.tables_topic = new_topic(bootstrap, prefix="tables", cleanup_policy="compact")
        self.shelves = range(shelves)
        self.shelf_cells = shelf_cells
        self.lasting = [(shelf, number) for shelf in self.shelves for number in range(shelf_cells)]
        self.hot = self.lasting[:: max(1, len(self.lasting) // HOT)]
        self.cold = sorted(set(self.lasting).difference(self.hot))
        self.rows: dict[CellKey, int] = {}
        self.written = 0
        self._acknowledged: defaultdict[CellKey, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        self._sequences: dict[CellKey, int] = {}
        self._value = value_writer(self.table)
        self.bootstrap = bootstrap
        self._waiting: dict[int, Callable[[], None]] = {}  # what Kafka has not acknowledged: writes it again
        self._sent = 0
        self._heard_s = 0.0
        self._producer = self._new_producer()
        self._generations = [self._new_generation(1, partition_count)]  # those that are written: one, or two

    def _new_generation(self, number: int, partition_count: int) -> Generation:
        topic = new_topic(
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

    def rebuild(self, partition_count: int) -> None:
        """Begin the next generation with all rows that are there, and publish it; the old one is written on."""
        self.flush()
        new = self._new_generation(self.newest.number + 1, partition_count)
        self._generations.append(new)
        for key, revision in self.rows.items():
            self._write([new], key, revision)
        self.mark()
        self.publish()

    def end_old(self) -> None:
        """Write the last markers of the generation before. Its topic may go once all gateways have switched."""
        old, _ = self._generations
        self._mark(old, is_final=True)
        self.flush()  # nothing is written to the new one alone before
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
            self._write(self._generations, key, None)

    def mark(self) -> None:
        """Write a progress marker to every partition."""
        for generation in self._generations:
            self._mark(generation)

    def _mark(self, generation: Generation, *, is_final: bool = False) -> None:
        marker = ProgressMarker(generation=generation.number, batch_id=1, final=is_final)
        marker.sources.add(topic="cells").next_offsets[0] = self.written
        marker.commit_time.GetCurrentTime()
        for partition in range(generation.partition_count):
            self._send(generation.topic, partition, b"", marker.SerializeToString())

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

    def floor(self, key: CellKey, as_of_ms: int) -> int:
        """Return the newest revision of a key that Kafka had before `as_of_ms`; 0 for none."""
        times, revisions = self._acknowledged[key]
        place = bisect_left(times, as_of_ms)
        return revisions[place - 1] if place else 0

    def _write(self, generations: Iterable[Generation], key: CellKey, revision: int | None) -> None:
        """Write a row, or a tombstone, to these changelogs."""
        missing = set(generations)

        def acknowledged(generation: Generation) -> None:
            missing.remove(generation)
            if not missing:
                times, revisions = self._acknowledged[key]
                revisions.append(revision or 0)
                times.append(now_ms())

        row = {"shelf": key[0], "number": key[1], "revision": revision}
        value = None if revision is None else self._value(row)
        data = encode_key(self.table.key, key)
        sequence = self._sequences[key] = self._sequences.get(key, 0) + 1
        for each in sorted(missing):
            partition = self.table.partition_of(data, each.partition_count)
            version = make_version(each.number, sequence)
            self._send(each.topic, partition, data, value, version, partial(acknowledged, each))

    def _send(
        self,
        topic: str,
        partition: int,
        key: bytes,
        value: bytes | None,
        version: bytes | None = None,
        on_acknowledged: Callable[[], None] = lambda: None,
    ) -> None:
        number = self._sent
        self._sent += 1

        def delivered(error: object, _message: object) -> None:
            if error is None and self._waiting.pop(number, None) is not None:
                self._heard_s = time.monotonic()
                on_acknowledged()

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


def filled_cells(bootstrap: str, *, shelves: int, shelf_cells: int, partition_count: int) -> Cells:
    """Return a table with all lasting cells, published."""
    cells = Cells(bootstrap, shelves=shelves, shelf_cells=shelf_cells, partition_count=partition_count)
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
        passing = (choice.choice(cells.shelves), cells.shelf_cells + choice.randrange(PASSING))
        (cells.delete if passing in cells.rows else cells.put)([passing])


def by_partition(cells: Cells, keys: Collection[CellKey]) -> dict[int, list[CellKey]]:
    """Return keys by their partitions."""
    found: dict[int, list[CellKey]] = {}
    for key in keys:
        found.setdefault(cells.partition_of(key), []).append(key)
    return found
