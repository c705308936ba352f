"""What snapshot files cost: `python -m tests.bench.snapshot_files [--rows 1000000] [--url s3://bucket/folder]`.

An LMDB store is written to a file, as the process does that writes them, but without its pauses; and a file is read and
stored into an empty one, as a replicator does. CPU is of this process, µs a row, all of its threads together.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tablegate.gateway.cluster.assignment import SoleGateway
from tablegate.gateway.kafka.log import SystemClock
from tablegate.gateway.query.serving import wall_clock_ms
from tablegate.gateway.replication.snapshots import FileSnapshots
from tablegate.gateway.server.snapshots import SnapshotWriter
from tablegate.gateway.stores.lmdb.store import LmdbReader, LmdbStore
from tablegate.gateway.stores.snapshots.opening import open_files
from tests.bench.transferring import receive, transfers_into
from tests.kit.table.filled import SIGNER, catalogue_of, live_partition


class _Cost(NamedTuple):
    rows_per_s: float
    cpu_us: float


def _measured(work: Callable[[], None], rows: int) -> _Cost:
    cpu_s, begin_s = time.process_time(), time.monotonic()
    work()
    return _Cost(rows / (time.monotonic() - begin_s), (time.process_time() - cpu_s) / rows * 1e6)


def _write(source: Path, url: str, rows: int) -> _Cost:
    with closing(LmdbReader(source)) as store:
        writer = SnapshotWriter(catalogue_of(), open_files(url), every_s=0.001, keep=1, signer=SIGNER)

        def work() -> None:
            for _ in writer.round(store):
                pass

        return _measured(work, rows)


def _read(url: str, directory: Path, rows: int) -> _Cost:
    with closing(LmdbStore(directory)) as store:
        files = FileSnapshots(open_files(url), SystemClock())
        transfers = transfers_into(store, assignment=SoleGateway(), snapshots=files)
        return _measured(partial(receive, transfers), rows)


def main() -> None:
    """Print the costs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--url", default="", help="an object store, in place of a directory")
    arguments = parser.parse_args()
    begun_ms = wall_clock_ms()
    with tempfile.TemporaryDirectory() as directory:
        live_partition(LmdbStore(Path(directory, "source")), arguments.rows).store.close()
        url = arguments.url or f"{directory}/files"
        costs = []
        for number in range(arguments.repeat):
            wrote = _write(Path(directory, "source"), url, arguments.rows)
            costs.append((wrote, _read(url, Path(directory, str(number)), arguments.rows)))
        sizes = [each.size_bytes for each in open_files(url).list("ratings")]
    took_s = (wall_clock_ms() - begun_ms) / 1_000
    for name, each in zip(("write", "read and store"), zip(*costs, strict=True), strict=True):
        rate, cpu_us = (statistics.median(values) for values in zip(*each, strict=True))
        print(f"{name}: {rate:,.0f} rows/s, {cpu_us:.2f} µs of CPU a row")
    about = f"{arguments.rows:,} rows, {max(sizes) / arguments.rows:.0f} bytes each in the file"
    print(f"{about}; median of {arguments.repeat}; {took_s:.0f} s; load {os.getloadavg()[0]:.0f}")


if __name__ == "__main__":
    main()
