"""What atomic batches cost: one job with them and one without work off a backlog, then answer single records.

    python -m tests.bench.atomic [RECORDS]

Both in micro-batches. Time runs from when the job says that it runs to its last change, as the brokers stamp it.
Latency is from a producer's acknowledgement to the row, for a reader of what is committed.
"""

import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from tablegate.examples.demo.kafka import Broker
from tablegate.gateway.contract.types import BATCH_CHANGES_MAX, VERSION_HEADER, is_marker_key
from tests.bench.load import say
from tests.kit.job.process import JobProcess
from tests.kit.job.transfers.declared import ACCOUNTS, BANKS, write_job
from tests.kit.programs.kafka import NewRecord, new_topic, produce

RECORDS = 10 * BATCH_CHANGES_MAX
SINGLE_RECORDS = 20
PARTITIONS = 2
WAIT_S = 600.0


def booking(choice: random.Random) -> NewRecord:
    """Return a record that changes one of many accounts."""
    fields = {"bank": choice.choice(BANKS), "account": choice.randrange(100 * len(ACCOUNTS)), "amount": 1}
    return NewRecord(None, json.dumps(fields).encode(), partition=choice.randrange(PARTITIONS))


@contextmanager
def changes(bootstrap: str, topic: str) -> Iterator[Consumer]:
    """Follow a changelog from its start."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "fetch.wait.max.ms": 10})
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
    try:
        yield consumer
    finally:
        consumer.close()


def follow(consumer: Consumer, counts: dict[bytes, int], records: int) -> float:
    """Read until the rows are made of so many records; return when the last change was written, in s since 1970.

    `counts`: of how many records each row is made, by key: the sequence of its version.
    """
    last_ms = 0
    end_s = time.monotonic() + WAIT_S
    total = sum(counts.values())
    while total < records:
        assert time.monotonic() < end_s, f"{total} of {records}"
        for message in consumer.consume(10_000, timeout=0.01):
            key = message.key()
            if message.error() is not None or key is None or is_marker_key(key):
                continue
            version = dict(message.headers() or [])[VERSION_HEADER]
            assert isinstance(version, bytes)
            count = int.from_bytes(version[4:], "big")
            total += count - counts.get(key, 0)
            counts[key] = count
            last_ms = max(last_ms, message.timestamp()[1])
    return last_ms / 1000


def measure(broker: Broker, directory: Path, records: int, *, atomic: bool) -> tuple[float, float]:
    """Return records/s of a backlog, and the median latency of a single record in s."""
    name = f"bench_{'atomic' if atomic else 'default'}"
    directory.mkdir()
    source = new_topic(broker.bootstrap, PARTITIONS)
    choice = random.Random(1)
    for done in range(0, records, BATCH_CHANGES_MAX):  # no more than the producer's queue has room for
        produce(broker.bootstrap, source, [booking(choice) for _ in range(min(BATCH_CHANGES_MAX, records - done))])
    declaration, _ = write_job(directory, name, source, atomic=atomic)
    arguments = ["--table", str(declaration), "--bootstrap", broker.bootstrap]
    arguments += ["--checkpoints", str(directory / "checkpoint"), "--partitions", str(PARTITIONS)]
    with JobProcess(directory / "logs", *arguments) as job:
        job.wait_for("running")
        started_s = time.time()
        with changes(broker.bootstrap, f"{name}-g1-changelog") as consumer:
            counts: dict[bytes, int] = {}
            last_s = follow(consumer, counts, records)
            latencies = []
            for number in range(SINGLE_RECORDS):
                produce(broker.bootstrap, source, [booking(choice)])
                acknowledged_s = time.monotonic()
                follow(consumer, counts, records + number + 1)
                latencies.append(time.monotonic() - acknowledged_s)
    return records / (last_s - started_s), statistics.median(latencies)


def main(records: int) -> None:
    """Measure both, one after the other."""
    with (
        tempfile.TemporaryDirectory() as directory,
        Broker(Path(directory, "kafka"), log_file=Path(directory, "kafka.log"), compiler=()) as broker,
    ):
        for atomic in (False, True):
            pace, latency_s = measure(broker, Path(directory, f"atomic-{atomic}"), records, atomic=atomic)
            say(f"{'atomic' if atomic else 'default'}: {pace:,.0f} records/s, {latency_s * 1000:,.0f} ms a record")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else RECORDS)
