"""What one commit costs a worker's event loop: `python -m tests.bench.notification`.

A table of many partitions in an LMDB store, one subscriber of all of it; each commit changes one row. What is timed is
the CPU time of the event loop's thread from the notification in the worker's pipe until the subscriber has the change
and the loop has nothing more to do. The commit itself, which is the replicator's work, is not.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import typer

from tablegate.gateway.query.call import StreamMethod
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.server.worker_pipe import ReplicatorEnd, WorkerEnd, open_pipe
from tablegate.gateway.stores.changes import NotifyingStore
from tablegate.gateway.stores.lmdb.store import LmdbStore
from tablegate.gateway.stores.notifier import Notifier
from tests.kit.table.filled import SIGNER, LocalCall, catalogue_of, rating, ratings_table

PARTITION_COUNTS = (12, 120, 1_000)
SUBSCRIBE = "/examples.ratings.v1.RatingsService/SubscribeRatings"
PAUSE_S = 0.06  # between commits: each is told by itself
ROWS_S = 0.5  # silence after the rows
SETTLE_S = 0.005  # what is due after a change has been given


def measure(partition_count: int, commits: int) -> list[float]:
    """Return the milliseconds of the event loop that each commit took."""
    with tempfile.TemporaryDirectory(prefix="tablegate-bench-") as directory:
        return asyncio.run(_measure(Path(directory) / "store", partition_count, commits))


async def _measure(path: Path, partition_count: int, commits: int) -> list[float]:
    pipe, notifier = open_pipe(), Notifier()
    store = NotifyingStore(LmdbStore(path), ReplicatorEnd([pipe.replicator_fd]).publish)
    table = ratings_table(store, partition_count)
    table.put(rating(number) for number in range(4 * partition_count))
    methods = query_methods(catalogue_of(), store, SIGNER, notifier)
    WorkerEnd(pipe.worker_fd, notifier).listen()
    store.publish()
    handler: Any = methods[SUBSCRIBE]
    assert isinstance(handler, StreamMethod)
    messages = handler.handler(b"", LocalCall(None))
    waiting = await _first_wait(messages)
    took_ms = []
    for number in range(commits):
        await asyncio.sleep(PAUSE_S)
        table.put([rating(number % (4 * partition_count), average=float(number))])
        begin_s = time.thread_time()
        store.publish()
        await waiting
        waiting = asyncio.ensure_future(anext(messages))
        await asyncio.sleep(SETTLE_S)
        took_ms.append((time.thread_time() - begin_s) * 1_000)
    waiting.cancel()
    store.close()
    return took_ms


async def _first_wait(messages: AsyncIterator[bytes]) -> asyncio.Future[bytes]:
    """Take the rows; return the wait for the first change."""
    while True:
        waiting = asyncio.ensure_future(anext(messages))
        if not (await asyncio.wait({waiting}, timeout=ROWS_S))[0]:
            return waiting


def main(commits: Annotated[int, typer.Option(min=1, help="Commits of each size.")] = 100) -> None:
    """Print the median time of a commit for each number of partitions."""
    for partition_count in PARTITION_COUNTS:
        took_ms = measure(partition_count, commits)
        print(f"{partition_count:>6,} partitions: {statistics.median(took_ms):.3f} ms a commit of one partition")


if __name__ == "__main__":
    typer.run(main)
