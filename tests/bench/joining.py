"""A gateway that joins two others while they are read: `python -m tests.bench.joining [--rows 10000000]`.

Each partition of a table of 23-byte rows is to be on two gateways. Two of them have all rows, from the changelog. Then
a third is started with an empty store, beside readers that ask for any row and try nothing twice. The figures: until
the third has its first partition, and all that it is to have; how many rows these are, by the share of partitions; and
what readers got meanwhile. All processes share the cores of this machine with the broker and the readers.
"""

import argparse
import random
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import grpc

from tablegate.examples.demo.kafka import Broker
from tests.bench.changelog import PARTITIONS, Changelog
from tests.bench.load import SERVICE, say
from tests.kit.gateway_processes.cluster import Cluster
from tests.kit.gateway_processes.gateway import soon
from tests.kit.table.filled import RATINGS, catalogue_of

READERS = 2
RESTORE_S = 1_800.0


class _Reader(threading.Thread):
    """Asks one gateway for rows by chance until `ended` is set; `seen` counts the answers by their status."""

    def __init__(self, address: str, rows: int, ended: threading.Event, seed: int) -> None:
        super().__init__()
        self._address, self._rows, self._ended = address, rows, ended
        self._choice = random.Random(seed)
        self.seen: Counter[str] = Counter()
        self.took_ms: list[float] = []

    def run(self) -> None:
        request_class = catalogue_of().queries[f"{SERVICE}/GetRating"].request_class
        options = [("grpc.enable_retries", 0)]
        with grpc.insecure_channel(self._address, options=options) as channel:
            get = channel.unary_unary(f"{SERVICE}/GetRating")
            while not self._ended.wait(0.005):
                request = request_class(movie_id=self._choice.randrange(1, self._rows + 1))
                begun_s = time.monotonic()
                try:
                    get(request.SerializeToString(), timeout=30)
                    self.seen["OK"] += 1
                except grpc.RpcError as error:
                    self.seen[str(error.code().name)] += 1  # type: ignore[attr-defined]
                self.took_ms.append((time.monotonic() - begun_s) * 1_000)


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.joining", description="A third gateway joins two.")
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory(prefix="tablegate-bench-") as work:
        directory = Path(work)
        with Broker(directory / "kafka", log_file=directory / "kafka.log", compiler=()) as broker:
            say(f"writing {rows:,} rows")
            Changelog(catalogue_of().tables["ratings"]).seed(broker.bootstrap, rows)
            cluster = Cluster(
                directory,
                broker.bootstrap,
                contract=RATINGS,
                table="ratings",
                partition_count=PARTITIONS,
                tables_topic="tables",
                names=("g1", "g2"),
                spare=("g3",),
            )
            say("two gateways restore them")
            try:
                for member in (cluster["g1"], cluster["g2"]):
                    member.start()
                cluster.wait_whole(seconds=RESTORE_S)
                _join(cluster, rows)
            finally:
                cluster.__exit__()


def _join(cluster: Cluster, rows: int) -> None:
    ended = threading.Event()
    readers = [_Reader(cluster[name].listens_at, rows, ended, seed) for seed, name in enumerate(("g1", "g2") * READERS)]
    for reader in readers:
        reader.start()
    time.sleep(2)
    alone_ms = sorted(each for reader in readers for each in reader.took_ms)
    for reader in readers:
        reader.took_ms.clear()
    say("a third joins")
    begun_s = time.monotonic()
    third = cluster["g3"]
    third.start()
    soon(lambda: bool(cluster["g1"].placement("ratings").get("g3")), "it has a partition", RESTORE_S)
    first_s = time.monotonic() - begun_s
    cluster.wait_whole(seconds=RESTORE_S)
    whole_s = time.monotonic() - begun_s
    ended.set()
    for reader in readers:
        reader.join()
    beside_ms = sorted(each for reader in readers for each in reader.took_ms)
    share = len(cluster["g3"].placement("ratings")["g3"])
    seen = sum((reader.seen for reader in readers), Counter[str]())
    print(f"first partition after {first_s:.1f} s; all {share} of {PARTITIONS} after {whole_s:.1f} s")
    print(f"{rows * share // PARTITIONS:,} rows; answers {dict(seen)}")
    for name, took in (("before", alone_ms), ("meanwhile", beside_ms)):
        print(f"Get {name}: p50 {took[len(took) // 2]:.2f} ms, p99 {took[len(took) * 99 // 100]:.2f} ms")


if __name__ == "__main__":
    main()
