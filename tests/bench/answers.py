"""What answers cost that are compressed, trimmed by a mask, or counts: bytes, and CPU of the server's process.

Run: python -m tests.bench.answers. The rows are in LMDB, the client is curl, and the least of some runs counts.
"""

import random
import subprocess
import tempfile
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.http.server import HttpServer, web_protocols
from tablegate.gateway.query.masks import trimmer, wanted_of
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.stores.lmdb.store import LmdbStore
from tablegate.gateway.stores.notifier import Notifier
from tests.kit.gateways_in_process.threaded import ServerThread
from tests.kit.table.filled import SIGNER, catalogue_of, rating, ratings_table

ROWS = 100_000
RUNS = 7
SERVICE = "/examples.ratings.v1.RatingsService"
COLUMNS = (6, 20, 100)
WANTED = ["f1", "f2"]


def main() -> None:
    """Print a line for each answer, and for each length of row."""
    with tempfile.TemporaryDirectory() as directory:
        _measure_answers(Path(directory))
    for columns in COLUMNS:
        table, row = _wide(columns)
        wanted = wanted_of("read_mask", WANTED, table.row)
        assert wanted is not None
        names = [field.name for field in table.row.fields if field.name not in WANTED]

        def cleared(data: bytes, table: Table = table, names: list[str] = names) -> bytes:
            message = table.row_class.FromString(data)
            for name in names:
                message.ClearField(name)
            return bytes(message.SerializeToString())

        trim = trimmer(wanted, table)
        assert cleared(row) == trim(row)
        print(f"a row of {columns} columns: {_us(trim, row):.2f} µs by a mask, {_us(cleared, row):.2f} µs by clearing")


def _us(trim: Callable[[bytes], bytes], row: bytes) -> float:
    number = 20_000
    return min(timeit.repeat(lambda: trim(row), number=number, repeat=RUNS)) / number * 1e6


def _wide(columns: int) -> tuple[Table, bytes]:
    """Return a table whose rows have so many columns, of integers, texts and doubles in turns; and a row."""
    types = (FieldDescriptorProto.TYPE_INT64, FieldDescriptorProto.TYPE_STRING, FieldDescriptorProto.TYPE_DOUBLE)
    file = FileDescriptorProto(name="wide.proto", syntax="proto3")
    message = file.message_type.add(name="Wide")
    for number in range(1, columns + 1):
        of_one = FieldDescriptorProto.LABEL_OPTIONAL
        message.field.add(name=f"f{number}", number=number, label=of_one, type=types[number % 3])
    pool = DescriptorPool()
    pool.Add(file)
    row = pool.FindMessageTypeByName("Wide")
    row_class = GetMessageClass(row)
    filled: Any = row_class()
    for number in range(1, columns + 1):
        setattr(filled, f"f{number}", (number, f"text {number}", number / 2)[number % 3])
    ratings = catalogue_of().tables["ratings"]
    table = Table("wide", row, row_class, (), 0, ratings.partitioner)
    return table, filled.SerializeToString()


def _measure_answers(directory: Path) -> None:
    choice, catalogue, store = random.Random(1), catalogue_of(), LmdbStore(directory / "store")
    table = ratings_table(store, 4)

    def row(number: int) -> Any:
        made = rating(number, round(choice.random() * 5, 2), choice.randrange(500))
        made.update_time.seconds += choice.randrange(10**6)
        made.update_time.nanos = choice.randrange(1_000) * 10**6
        return made

    for first in range(0, ROWS, 5_000):
        table.put(row(number) for number in range(first, first + 5_000))
    scan = catalogue.queries[f"{SERVICE}/ScanRatings"].request_class
    files = {"plain": scan(), "mask": scan(read_mask={"paths": ["average_rating"]})}  # type: ignore[call-arg]
    for name, request in files.items():
        data = request.SerializeToString()
        (directory / name).write_bytes(b"\0" + len(data).to_bytes(4, "big") + data)

    def over_grpc(name: str, *more: str) -> list[str]:
        words = [f"{SERVICE}/ScanRatings", "--http2-prior-knowledge", "-H", "content-type: application/grpc"]
        return [*words, "-H", "te: trailers", "--data-binary", f"@{directory / name}", *more]

    zipped = ("-H", "accept-encoding: gzip")
    cases = {
        "Scan, gRPC": over_grpc("plain"),
        "Scan, gRPC, gzip": over_grpc("plain", "-H", "grpc-encoding: gzip"),
        "Scan, gRPC, a mask": over_grpc("mask"),
        "Scan, REST": ["/v1/ratings:scan"],
        "Scan, REST, gzip": ["/v1/ratings:scan", *zipped],
        "Scan, REST, a mask": ["/v1/ratings:scan?read_mask=averageRating"],
        "1,000 rows, REST": ["/v1/ratings?pageSize=1000"],
        "1,000 rows, REST, gzip": ["/v1/ratings?pageSize=1000", *zipped],
        "Count": ["/v1/ratings:count"],
        "Count with a filter": ["/v1/ratings:count?minAverageRating=4.5"],
    }

    def server() -> HttpServer:
        methods = query_methods(catalogue, store, SIGNER, Notifier())
        return HttpServer(methods, "127.0.0.1:0", web=web_protocols(catalogue))

    best: dict[str, tuple[float, int]] = {}
    with ServerThread(server) as served:
        for _ in range(RUNS):
            for name, (path, *words) in cases.items():
                url = f"http://127.0.0.1:{served.port}{path}"
                begin_s = time.process_time()
                asked = ["curl", "-sSf", "-o", "/dev/null", "-w", "%{size_download}", url, *words]
                done = subprocess.run(asked, capture_output=True, check=True, text=True)
                found = time.process_time() - begin_s, int(done.stdout)
                best[name] = min(best.get(name, found), found)
    store.close()
    for name, (cpu_s, length) in best.items():
        print(f"{name:24} {length:>12,} bytes {cpu_s * 1e3:8.1f} ms of CPU")


if __name__ == "__main__":
    main()
