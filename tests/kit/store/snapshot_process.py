"""A process that writes snapshot files of a store over and over: `STORE FILES [BYTES]`.

It prints a line for each part of the work. With BYTES no file gets longer, as on a disk that is full then.
"""

import resource
import signal
import sys
from pathlib import Path

from tablegate.gateway.server.snapshots import SnapshotWriter
from tablegate.gateway.stores.lmdb.store import LmdbReader
from tablegate.gateway.stores.snapshots.opening import open_files
from tests.kit.replication.replicator import FakeClock
from tests.kit.table.filled import SIGNER, catalogue_of

EVERY_S = 3_600


def main(store: str, url: str, file_bytes_max: str = "") -> None:
    """Write until somebody kills it."""
    catalogue = catalogue_of()
    if file_bytes_max:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(file_bytes_max), resource.RLIM_INFINITY))
    clock, files, reader = FakeClock(), open_files(url), LmdbReader(Path(store))
    while True:
        clock.passed_s += 2 * EVERY_S
        writer = SnapshotWriter(
            catalogue,
            files,
            every_s=EVERY_S,
            keep=2,
            clock=clock,
            signer=SIGNER,
            offsets_min=1,
            part_bytes=1_000,
        )
        for _ in writer.round(reader):
            print("part", flush=True)
        print("done" if any(each.time_ms for each in writer.newest.values()) else "nothing", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
