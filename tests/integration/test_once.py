"""A driver killed in the middle of a batch: each record of the output is there once."""

import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

from tablegate.examples.demo.kafka import Broker
from tests.kit.job.once_job import HOLD_FILE, INVOICES
from tests.kit.programs.kafka import NewRecord, consume, new_topic, produce
from tests.kit.programs.processes import kill_tree

pytestmark = pytest.mark.jvm

WAIT_S = 120.0  # many times what it takes: these machines are shared
ROOT = Path(__file__).parents[2]
CUSTOMERS = 100
REPEATED_EACH = 7


def start_job(bootstrap: str, source: str, output: str, directory: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.kit.job.once_job", bootstrap, source, output, str(directory)]
    return subprocess.Popen(command, cwd=ROOT)


def test_each_invoice_once_after_a_kill(broker: Broker, tmp_path: Path) -> None:
    source = new_topic(broker.bootstrap, partitions=2, prefix="invoices")
    output = new_topic(broker.bootstrap, partitions=2, prefix="counts")
    sent = [(number % CUSTOMERS, number) for number in range(CUSTOMERS * INVOICES)]
    # An invoice that is sent again is another record, with an output of its own. They come last, so that a kill falls
    # between the two.
    sent += [one for one in sent if one[1] % REPEATED_EACH == 0]
    produce(
        broker.bootstrap,
        source,
        (NewRecord(f"customer-{customer}".encode(), f"invoice-{number}".encode()) for customer, number in sent),
    )
    hold = tmp_path / HOLD_FILE
    hold.touch()
    job = start_job(broker.bootstrap, source, output, tmp_path)
    try:
        end_s = time.monotonic() + WAIT_S
        while not (written := consume(broker.bootstrap, output)):
            assert job.poll() is None, "the job has ended"
            assert time.monotonic() < end_s, "nothing is written"
            time.sleep(0.1)
    finally:
        kill_tree(job)
    written = consume(broker.bootstrap, output)
    assert 0 < len(written) < len(sent), "the kill came too late to show anything"
    hold.unlink()

    # What came meanwhile is no part of the batch that was cut off, though its place may be before what that has.
    late = [(customer, len(sent) + customer) for customer in range(CUSTOMERS)]
    produce(
        broker.bootstrap,
        source,
        (NewRecord(f"customer-{of}".encode(), f"invoice-{number}".encode(), partition=0) for of, number in late),
    )
    sent += late

    job = start_job(broker.bootstrap, source, output, tmp_path)
    try:
        assert job.wait(WAIT_S) == 0
    finally:
        if job.poll() is None:
            kill_tree(job)
    records = consume(broker.bootstrap, output)
    found: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for record in records:
        customer, count, sequence = (record.value or b"").decode().split(" ")
        assert record.key is not None
        assert count == sequence
        number = int(record.key.decode().removeprefix("invoice-"))
        found[int(customer.removeprefix("customer-"))].append((int(count), number))
    # One output for each input, numbered as its customer's invoices came.
    expected: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for of, number in sent:
        expected[of].append((len(expected[of]) + 1, number))
    assert {customer: sorted(counted) for customer, counted in found.items()} == expected
