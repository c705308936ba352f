"""What a whole table costs one client as Arrow's columns: `python -m tests.bench.columns [--rows 1000000]`.

One process serves an LMDB store of four partitions over a real socket, as a worker does; this one scans it. CPU is of
either process, µs a row. In one run, in turns: bytes that nobody reads, columns made of the rows' bytes, columns made
of parsed messages, and columns that the gateway made, as Arrow over HTTP. With `--spark` (it starts Java), a Spark of
two tasks sums a column up: rows/s alone.
"""

import argparse
import asyncio
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pyarrow as pa

from tablegate.client import open_channel
from tablegate.client.arrow import record_batches
from tablegate.client.arrow_rows import row_batches
from tablegate.client.queries import TableQueries, queries_of
from tablegate.gateway.http.server import HttpServer, web_protocols
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.server.metadata import reflection_methods
from tablegate.gateway.stores.lmdb.store import LmdbStore
from tablegate.gateway.stores.notifier import Notifier
from tests.kit.job.user_session import user_session
from tests.kit.table.filled import SIGNER, FilledTable, catalogue_of, rating

PARTITIONS = 4
AT_ONCE = 20_000


def _serve(directory: Path, rows: int, pipe: Connection) -> None:
    """Fill a store and serve it; answer each message with the CPU seconds that were used."""
    table = FilledTable(LmdbStore(directory), catalogue_of().tables["ratings"], PARTITIONS)
    table.publish()
    for start in range(0, rows, AT_ONCE):
        table.put(rating(number, average=number / 7) for number in range(start, min(rows, start + AT_ONCE)))
    asyncio.run(_answer(table, pipe))


async def _answer(table: FilledTable, pipe: Connection) -> None:
    catalogue = catalogue_of()
    methods = query_methods(catalogue, table.store, SIGNER, Notifier())
    server = HttpServer({**methods, **reflection_methods(catalogue)}, "127.0.0.1:0", web=web_protocols(catalogue))
    await server.start()
    pipe.send(server.port)
    while await asyncio.to_thread(pipe.recv):
        pipe.send(time.process_time())
    await server.stop(0)


def _messages(address: str, queries: TableQueries, response_class: Any) -> Iterator[Any]:
    with open_channel(address) as channel:
        parse = None if response_class is None else response_class.FromString
        yield from channel.unary_stream(queries.scan, None, parse)(b"")


def _of_bytes(address: str, queries: TableQueries) -> Iterator[pa.RecordBatch]:
    scanned: Iterator[Sequence[bytes]] = (one.rows for one in _messages(address, queries, queries.scanned_class))
    return row_batches(scanned, queries.row_class)


def _of_messages(address: str, queries: TableQueries) -> Iterator[pa.RecordBatch]:
    found = _messages(address, queries, queries.classes(queries.scan)[1])
    return record_batches((row for one in found for row in one.ratings), queries.row_class)


def _over_http(address: str) -> int:
    asked = Request(f"http://{address}/v1/ratings:scan", headers={"accept": "application/vnd.apache.arrow.stream"})
    with urlopen(asked) as answer:
        return sum(batch.num_rows for batch in pa.ipc.open_stream(answer))


def _measure(pipe: Connection, rows: int, read: Callable[[], int | None]) -> tuple[float, float, float]:
    """Return rows/s, and the CPU of a row in µs, here and there."""
    pipe.send(True)
    there_s, here_s, began_s = pipe.recv(), time.process_time(), time.monotonic()
    found = read()
    took_s, here_s = time.monotonic() - began_s, time.process_time() - here_s
    pipe.send(True)
    there_s = pipe.recv() - there_s
    assert found in (rows, None), "rows are missing"
    return rows / took_s, here_s / rows * 1e6, there_s / rows * 1e6


def _by_spark(address: str, rows: int) -> float:
    from tablegate.client.spark import register

    with user_session() as spark:
        register(spark)
        frame = spark.read.format("tablegate").option("address", address).option("table", "ratings").load()
        frame.selectExpr("sum(average_rating)").collect()  # the first starts processes
        began_s = time.monotonic()
        assert frame.selectExpr("count(average_rating)").collect()[0][0] == rows
        return rows / (time.monotonic() - began_s)


def main() -> None:
    """Measure, and print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--spark", action="store_true")
    given = parser.parse_args()
    pipe, other = multiprocessing.Pipe()
    with tempfile.TemporaryDirectory() as directory, closing(pipe):
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=_serve, args=(Path(directory), given.rows, other))
        process.start()
        address = f"127.0.0.1:{pipe.recv()}"
        with open_channel(address) as channel:
            queries = queries_of(channel, address, "ratings")
        ways: dict[str, Callable[[], int | None]] = {
            "bytes, not read": lambda: sum(len(one) for one in _messages(address, queries, None)) and None,
            "columns of bytes": lambda: sum(batch.num_rows for batch in _of_bytes(address, queries)),
            "columns of messages": lambda: sum(batch.num_rows for batch in _of_messages(address, queries)),
            "columns over HTTP": lambda: _over_http(address),
        }
        runs = [{name: _measure(pipe, given.rows, read) for name, read in ways.items()} for _ in range(given.runs)]
        for name in ways:
            rate, here, there = (statistics.median(run[name][place] for run in runs) for place in range(3))
            print(f"{name}: {rate:,.0f} rows/s, CPU {here:.2f} us a row here and {there:.2f} there")
        if given.spark:
            print(f"Spark, two tasks: {_by_spark(address, given.rows):,.0f} rows/s")
        pipe.send(None)
        process.join()


if __name__ == "__main__":
    main()
