"""What the status says of snapshot files: the newest of each partition, and those that were of no use.

One process writes them, another one reads them; each keeps what it knows in its process file, beside its measures. So
the worker that is asked opens no snapshot file, and lists none.
"""

import time
from collections.abc import Callable

from tablegate.gateway.server.child import ProcessFile, SnapshotSettings
from tablegate.v1.status_pb2 import GetStatusResponse, SnapshotsStatus


def snapshots_status(
    file: ProcessFile, settings: SnapshotSettings, *, now_ms: Callable[[], float] = lambda: time.time() * 1_000
) -> GetStatusResponse:
    """Return what the processes of this gateway know of snapshot files."""
    status = SnapshotsStatus()
    gone_ms = now_ms() - (settings.keep + 1) * settings.every_s * 1_000  # as old as this, newer ones have its place
    for numbers in file.all():
        status.problem = status.problem or numbers.get("snapshots_problem", "")
        for table, partition, time_ms, next_offset in numbers.get("snapshot_files", ()):
            one = status.files.add(table=table, partition=partition, next_offset=next_offset)
            if time_ms:
                one.write_time.FromMilliseconds(time_ms)
        for table, partition, time_ms, name, problem in numbers.get("snapshot_problems", ()):
            if time_ms > gone_ms:
                status.useless.add(table=table, partition=partition, file=name, problem=problem)
    return GetStatusResponse(snapshots=status)
