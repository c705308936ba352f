"""What a table that is larger than memory costs: `python -m tests.bench.large_table [--rows 100000000]`.

Rows of 100 bytes are put into an LMDB store as those of another gateway are, partition by partition in order of keys.
Then the file is read, written and copied in this process, without a network and without Kafka. *Cold* is with nothing
of the file in the system's cache, where this process may empty it (as root); else the cache has what it has. A hundred
million rows take 16 GB of disk, 1.2 GB each for a snapshot file and a copy.
"""

import argparse
import os
import random
import resource
import statistics
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from struct import pack

from tablegate.gateway.cluster.assignment import SoleGateway
from tablegate.gateway.contract.keys import encode_key
from tablegate.gateway.contract.types import Offset, Partition, make_version
from tablegate.gateway.kafka.log import SystemClock
from tablegate.gateway.query.call import UnaryMethod
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.replication.snapshots import FileSnapshots
from tablegate.gateway.server.snapshots import SnapshotWriter
from tablegate.gateway.stores.base import Change, Phase, StoredRows
from tablegate.gateway.stores.lmdb import layout
from tablegate.gateway.stores.lmdb.environment import DATA_FILE
from tablegate.gateway.stores.lmdb.store import LmdbReader, LmdbStore
from tablegate.gateway.stores.notifier import Notifier
from tablegate.gateway.stores.snapshots.opening import open_files
from tests.bench.load import SERVICE, say
from tests.bench.transferring import receive, transfers_into
from tests.kit.table.filled import SIGNER, FilledTable, LocalCall, catalogue_of, now_ms, rating

ROW_BYTES = 100
PARTITIONS = 12
AT_ONCE = 20_000
KEYED_AT_ONCE = 200_000
GETS, PAGES, BATCHES = 5_000, 500, 20


def _row(number: int) -> bytes:
    """Return a row, filled up by a column that the contract lacks: the gateway keeps it as it is."""
    row: bytes = rating(number).SerializeToString()
    left = ROW_BYTES - len(row) - 2
    return row + b"\x7a" + bytes([left]) + b"x" * left


def _numbers(table: FilledTable, rows: int) -> list["array[int]"]:
    """Return the numbers of the rows of each partition, in order."""
    found = [array("q") for _ in range(table.partition_count)]
    say("placing keys")
    for start in range(0, rows, KEYED_AT_ONCE):
        numbers = range(start, min(rows, start + KEYED_AT_ONCE))
        keys = [encode_key(table.table.key, [number]) for number in numbers]
        for number, partition in zip(numbers, table.table.partitions_of(keys, table.partition_count), strict=True):
            found[partition].append(number)
    return found


def _load(path: Path, rows: int) -> FilledTable:
    """Fill a store, and close it."""
    table = FilledTable(LmdbStore(path), catalogue_of().tables["ratings"], PARTITIONS)
    table.publish(phase=Phase.RESTORING)
    numbers, store_s = _numbers(table, rows), 0.0
    for partition in map(Partition, range(PARTITIONS)):
        say(f"storing partition {partition}")
        own = numbers[partition]
        for at in range(0, len(own), AT_ONCE):
            some = own[at : at + AT_ONCE]
            heads = [make_version(1, number) + pack(">BQ", layout.IS_ROW, number) for number in some]
            values = [head + _row(number) for head, number in zip(heads, some, strict=True)]
            stored = StoredRows([encode_key(table.table.key, [number]) for number in some], values)
            begun_s = time.monotonic()
            table.store.put_transferred(table.store_id, partition, stored, time_ms=now_ms())
            store_s += time.monotonic() - begun_s
        table.next_offsets[partition] = rows
        table.move(partition, phase=Phase.LIVE)
    begun_s = time.monotonic()
    table.store.close()
    closed_s = time.monotonic() - begun_s
    size = (path / DATA_FILE).stat().st_size
    print(f"{rows:,} rows of {ROW_BYTES} bytes: {size / 1e9:.2f} GB, {size / rows:.0f} bytes a row")
    print(f"stored in order: {rows / store_s:,.0f} rows/s; then {closed_s:.1f} s until all is on the disk")
    return table


def _made_cold() -> bool:
    """Empty the system's cache of files; return whether that was allowed."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3", encoding="ascii")
    except OSError:
        return False
    return True


def _percentiles(what: str, calls: Sequence[Callable[[], object]]) -> None:
    took_us = []
    for call in calls:
        begun_ns = time.perf_counter_ns()
        call()
        took_us.append((time.perf_counter_ns() - begun_ns) / 1e3)
    took_us.sort()
    print(f"{what}: p50 {statistics.median(took_us):,.0f} µs, p99 {took_us[len(took_us) * 99 // 100]:,.0f} µs")


def _reads(store: LmdbReader, rows: int, how: str, choice: random.Random) -> None:
    """Ask for rows and pages by chance, then for the same ones again."""
    methods = query_methods(catalogue_of(), store, SIGNER, Notifier())

    def calls(name: str, count: int, **fields: int) -> Iterator[Callable[[], object]]:
        method, request = methods[f"{SERVICE}/{name}"], catalogue_of().queries[f"{SERVICE}/{name}"].request_class
        assert isinstance(method, UnaryMethod)
        column = "movie_id" if name == "GetRating" else "movie_id_from"
        for _ in range(count):
            data = request(**{column: choice.randrange(rows)}, **fields).SerializeToString()
            yield lambda data=data: _answered(method.handler(data, LocalCall()))

    for what, asked in (
        ("Get", list(calls("GetRating", GETS))),
        ("Range of 50 from all partitions", list(calls("ListRatings", PAGES, page_size=50))),
    ):
        _percentiles(f"{what}, {how}", asked)
        _percentiles(f"{what}, the same again", asked)


def _answered(answer: object) -> None:
    assert isinstance(answer, bytes), answer


def _writes(path: Path, filled: FilledTable, rows: int, how: str, choice: random.Random) -> None:
    """Apply batches to LIVE partitions: of keys by chance, and of new keys behind all others."""
    with closing(LmdbStore(path)) as store:
        table = replace(filled, store=store)
        for what, numbers in (
            ("keys by chance", [choice.randrange(rows) for _ in range(BATCHES * AT_ONCE)]),
            ("new keys behind all others", range(rows, rows + BATCHES * AT_ONCE)),
        ):
            changes: dict[Partition, list[Change]] = {}
            for number in numbers:
                key = encode_key(table.table.key, [number])
                partition = table.table.partition_of(key, table.partition_count)
                offset = table.next_offsets[partition] + len(changes.get(partition, ()))
                version = make_version(2, offset)
                changes.setdefault(partition, []).append(Change(Offset(offset), key, version, _row(number), now_ms()))
            begun_s, cpu_s = time.monotonic(), time.process_time()
            for partition, own in changes.items():
                for at in range(0, len(own), AT_ONCE):
                    some = own[at : at + AT_ONCE]
                    table.next_offsets[partition] += len(some)
                    table.move(partition, changes=some)
            took_s, cpu_s = time.monotonic() - begun_s, time.process_time() - cpu_s
            print(
                f"apply {len(numbers):,} {what}, {how}: {len(numbers) / took_s:,.0f} rows/s, "
                f"{cpu_s / len(numbers) * 1e6:.1f} µs of CPU a row"
            )
            how = "after that"


def _copy(path: Path, directory: Path, how: str) -> None:
    """Write a snapshot file of the first partition, as it is written for others, and store its rows elsewhere."""
    files = open_files(f"{directory}/files")
    with closing(LmdbReader(path)) as store:
        writer = SnapshotWriter(catalogue_of(), files, every_s=3_600, keep=1, signer=SIGNER)
        begun_s, cpu_s = time.monotonic(), time.process_time()
        with closing(writer.round(store)) as parts:
            for _ in parts:
                if any(files.list("ratings")):
                    break
        took_s, cpu_s = time.monotonic() - begun_s, time.process_time() - cpu_s
    [file] = files.list("ratings")
    size = f"{file.size_bytes / 1e6:,.0f} MB"
    print(f"a snapshot file of one partition, {how}: {size} in {took_s:.1f} s, {cpu_s:.1f} s of CPU")
    with closing(LmdbStore(directory / "copy")) as store:
        transfers = transfers_into(
            store, assignment=SoleGateway(), snapshots=FileSnapshots(files, SystemClock()), partition_count=PARTITIONS
        )
        begun_s, cpu_s = time.monotonic(), time.process_time()
        receive(transfers)
        took_s, cpu_s = time.monotonic() - begun_s, time.process_time() - cpu_s
        with store.snapshot() as snapshot:
            rows = snapshot.usage().entries["rows"]
    print(f"its {rows:,} rows stored elsewhere: {rows / took_s:,.0f} rows/s, {cpu_s / rows * 1e6:.2f} µs of CPU a row")


def main() -> None:
    """Print the costs."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.large_table", description="A table beyond memory.")
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--directory", type=Path, help="Where files are made; else in the system's.")
    arguments = parser.parse_args()
    rows, choice = arguments.rows, random.Random(1)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        path = Path(name, "store")
        table = _load(path, rows)
        how = "cold" if _made_cold() else "as it was in the cache"
        begun_s = time.monotonic()
        LmdbStore(path).close()
        print(f"opened by its writer and closed, {how}: {(time.monotonic() - begun_s) * 1e3:.0f} ms")
        begun_s = time.monotonic()
        with closing(LmdbReader(path)) as store:
            print(f"opened by a reader: {(time.monotonic() - begun_s) * 1e3:.1f} ms")
            _reads(store, rows, how, choice)
        _made_cold()
        _writes(path, table, rows, how, choice)
        _made_cold()
        _copy(path, Path(name), how)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"resident at most: {resident:,.0f} MiB, pages of the file among them")


if __name__ == "__main__":
    main()
