"""A driver killed in the middle of a batch: each record of the output is there once."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from streamjobs.local.kafka import Broker
from tests.support.kafka import NewRecord, consume, new_topic, produce
from tests.support.processes import alive, process_tree

pytestmark = pytest.mark.jvm

WAIT_S = 120.0  # many times what it takes: these machines are shared
ROOT = Path(__file__).parents[2]
CUSTOMERS, INVOICES = 100, 40  # of each customer; a batch of all takes two seconds to write


def start_job(bootstrap: str, source: str, output: str, directory: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.support.once_job", bootstrap, source, output, str(directory)]
    return subprocess.Popen(command, cwd=ROOT)


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """Kill the driver, its JVM and its workers at once, as a lost machine does."""
    pids = process_tree(process.pid)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    process.wait()
    while any(alive(pid) for pid in pids):
        time.sleep(0.01)


def test_each_invoice_once_after_a_kill(broker: Broker, tmp_path: Path) -> None:
    source = new_topic(broker.bootstrap, partitions=2, prefix="invoices")
    output = new_topic(broker.bootstrap, partitions=2, prefix="counts")
    produce(
        broker.bootstrap,
        source,
        (
            NewRecord(f"customer-{number % CUSTOMERS}".encode(), f"invoice-{number}".encode())
            for number in range(CUSTOMERS * INVOICES)
        ),
    )
    job = start_job(broker.bootstrap, source, output, tmp_path)
    try:
        end_s = time.monotonic() + WAIT_S
        while not (written := consume(broker.bootstrap, output)):
            assert job.poll() is None, "the job has ended"
            assert time.monotonic() < end_s, "nothing is written"
            time.sleep(0.1)
    finally:
        kill_all(job)
    written = consume(broker.bootstrap, output)
    assert 0 < len(written) < CUSTOMERS * INVOICES, "the kill came too late to show anything"

    job = start_job(broker.bootstrap, source, output, tmp_path)
    try:
        assert job.wait(WAIT_S) == 0
    finally:
        if job.poll() is None:
            kill_all(job)
    records = consume(broker.bootstrap, output)
    assert records[: len(written)] != []
    times = Counter(record.key for record in records)
    assert set(times.values()) == {1}
    assert len(times) == CUSTOMERS * INVOICES
    # One output for each input, numbered as its customer's invoices came.
    numbers = {customer: [] for customer in range(CUSTOMERS)}  # type: dict[int, list[tuple[int, int]]]
    for record in records:
        customer, count, sequence = (record.value or b"").decode().split(" ")
        assert record.key is not None
        numbers[int(customer.removeprefix("customer-"))].append((int(record.key.decode().split("-")[1]), int(count)))
        assert count == sequence
    for customer, counted in numbers.items():
        assert sorted(counted) == [(customer + CUSTOMERS * index, index + 1) for index in range(INVOICES)]
