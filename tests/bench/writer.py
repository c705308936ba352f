"""A process that changes rows of the changelog at a pace: each has the time at which it was sent.

Says "ready", begins at a line on stdin, and ends after its time.
"""

import random
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from confluent_kafka import Producer

from tablegate.gateway.contract.binder.binder import bind
from tablegate.gateway.contract.descriptors import load_descriptors
from tests.bench.changelog import Changelog

FAST = 1_000.0  # changes a second, from which on requests for one row each would take the broker's cores
FAST_LINGER_MS = 5
BATCH_S = 0.001  # what is due within it is sent together: a sleep is no shorter


def main(
    protoset: Annotated[Path, typer.Option()],
    bootstrap: Annotated[str, typer.Option()],
    rows: Annotated[int, typer.Option(help="The movies 1 … rows change.")],
    rate: Annotated[float, typer.Option(help="Changes a second.")],
    seconds: Annotated[float, typer.Option()],
) -> None:
    """Write."""
    changelog = Changelog(bind(load_descriptors(protoset)).tables["ratings"])
    linger_ms = FAST_LINGER_MS if rate >= FAST else 0
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": linger_ms})
    choice = random.Random(1)
    print("ready", flush=True)
    sys.stdin.readline()
    begin = time.monotonic()
    for number in range(int(rate * seconds)):
        wait_s = begin + number / rate - time.monotonic()
        if wait_s > BATCH_S:
            time.sleep(wait_s)
        producer.produce(**changelog.record(choice.randint(1, rows), time.time_ns() // 1_000))
        producer.poll(0)
    producer.flush()


if __name__ == "__main__":
    typer.run(main)
