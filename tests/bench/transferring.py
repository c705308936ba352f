"""What it costs to get a partition from another gateway: `python -m tests.bench.transferring [--rows 1000000]`.

One process serves an LMDB store over a real socket, as a worker does. This one gets its rows and stores them, as a
replicator does. CPU is of either process, µs a row; the rate says what both do on the cores that there are.
"""

import argparse
import asyncio
import multiprocessing
import os
import statistics
import tempfile
import time
from contextlib import closing
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from typing_extensions import override

from tablegate.gateway.cluster.assignment import Holder, SoleGateway
from tablegate.gateway.cluster.forward_token import ForwardTokenSigner
from tablegate.gateway.cluster.transfers import GrpcTransfers
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.http.server import HttpServer
from tablegate.gateway.kafka.log import SystemClock
from tablegate.gateway.query.serving import wall_clock_ms
from tablegate.gateway.replication.snapshots import SnapshotSource
from tablegate.gateway.replication.transfers import TransferClient, Transfers
from tablegate.gateway.server.transfers import transfer_methods
from tablegate.gateway.stores.lmdb.store import LmdbStore
from tablegate.gateway.stores.notifier import Notifier
from tests.kit.table.filled import SIGNER, FilledTable, catalogue_of, live_partition

P0 = Partition(0)


class _Cost(NamedTuple):
    rows_per_s: float
    source_us: float
    target_us: float


class _Other(SoleGateway):
    """The gateway that has the partition."""

    def __init__(self, endpoint: str) -> None:
        self._holder = Holder("other", endpoint)

    @override
    def holders(self, table: str, partition: Partition, *, generation: int) -> list[Holder]:
        return [self._holder]


def _give(directory: Path, rows: int, pipe: Connection) -> None:
    """Fill a store and serve it; answer each message with the CPU seconds that were used."""
    table = live_partition(LmdbStore(directory), rows)
    asyncio.run(_serve(table, pipe))


async def _serve(table: FilledTable, pipe: Connection) -> None:
    methods = transfer_methods(catalogue_of(), table.store, SIGNER, Notifier())
    server = HttpServer(methods, "127.0.0.1:0")
    await server.start()
    pipe.send(server.port)
    while await asyncio.to_thread(pipe.recv):
        pipe.send(time.process_time())
    await server.stop(0)


def transfers_into(
    store: LmdbStore,
    client: TransferClient | None = None,
    *,
    assignment: SoleGateway,
    snapshots: SnapshotSource | None = None,
    partition_count: int = 1,
) -> Transfers:
    """Return the transfers of the ratings table into an empty store."""
    table = catalogue_of().tables["ratings"]
    manifest = table.manifest(
        generation=1,
        changelog_topic="ratings-g1-changelog",
        changelog_topic_id="id of ratings-g1-changelog",
        partition_count=partition_count,
        value_schemas={},
        sources=[],
    )
    return Transfers(
        client,
        table=table,
        manifest=manifest,
        store=store,
        store_id=store.new_store_id(),
        assignment=assignment,
        clock=SystemClock(),
        asked={},
        why_useless=lambda *_: "",
        snapshots=snapshots,
    )


def receive(transfers: Transfers) -> None:
    """Have all rows of the partition come."""
    while P0 not in transfers.ended:
        transfers.begin(iter([P0]))
        transfers.step()
        assert not transfers.failed, "see the log"
        time.sleep(0.0005)


def _get(port: int, directory: Path, rows: int, pipe: Connection) -> _Cost:
    """Get all rows into an empty store."""
    client = GrpcTransfers(ForwardTokenSigner(SIGNER, wall_clock_ms).sign)
    with closing(LmdbStore(directory)) as store:
        transfers = transfers_into(store, client, assignment=_Other(f"127.0.0.1:{port}"))
        cpu_s, begin_s, source_s = time.process_time(), time.monotonic(), _used_s(pipe)
        receive(transfers)
        took_s, cpu_s = time.monotonic() - begin_s, time.process_time() - cpu_s
        return _Cost(rows / took_s, (_used_s(pipe) - source_s) / rows * 1e6, cpu_s / rows * 1e6)


def _used_s(pipe: Connection) -> float:
    pipe.send(True)
    return float(pipe.recv())


def main() -> None:
    """Print the costs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory:
        pipe, other = spawn.Pipe()
        source = spawn.Process(target=partial(_give, Path(directory, "source"), arguments.rows, other), daemon=True)
        source.start()
        port = pipe.recv()
        costs = [_get(port, Path(directory, str(number)), arguments.rows, pipe) for number in range(arguments.repeat)]
        pipe.send(False)
        source.join()
    rate, source_us, target_us = (statistics.median(values) for values in zip(*costs, strict=True))
    print(f"{arguments.rows:,} rows of a partition, median of {arguments.repeat}; load {os.getloadavg()[0]:.0f}")
    print(f"{rate:,.0f} rows/s; CPU a row: {source_us:.2f} µs to give it, {target_us:.2f} µs to get and store it")


if __name__ == "__main__":
    main()
