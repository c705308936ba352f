"""Timers of processors in jobs that are killed: one that was due meanwhile runs once, whatever a kill cuts off."""

import itertools
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tablegate.examples.demo.kafka import Broker
from tablegate.jobs.running.checkpoint import read_offset_log
from tests.kit.job.counting_job import orders, write_job, written
from tests.kit.job.process import JobProcess, wait_until
from tests.kit.programs.kafka import consume, new_topic, produce

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

EVERY_S = 3.0
PROCESSOR = f"""from tablegate.jobs import Processor, ProcessorOutput, Text


class Counts(Processor):
    state = emits = "orders BIGINT, timers BIGINT"
    every_s = {EVERY_S}

    def on_record(self, key, record, state):
        state.orders += 1

    def on_timer(self, key, state, now):
        state.timers += 1
        yield {{"orders": state.orders, "timers": state.timers}}


"""
OUTPUT = """mode=Mode.REALTIME, trigger_s=5, outputs=(
        ProcessorOutput(
            "{topic}", processor=Counts(), by={{"customer": "customer"}}, key=Text("customer"),
            value=Json("customer, orders, timers"),
        ),
    )"""


@dataclass(frozen=True)
class Timed:
    """A job with timers, and what these have emitted: by customer, how many orders there were, in order."""

    broker: Broker
    directory: Path
    job: str
    topic: str
    query: str  # the directory of its checkpoint, or one above it
    emitted: Callable[[], list[tuple[str, int, int]]]

    def running(self) -> JobProcess:
        arguments = ("--table", self.job, "--bootstrap", self.broker.bootstrap)
        return JobProcess(self.directory / "job", *arguments, "--checkpoints", str(self.directory / "checkpoints"))

    def order(self, customer: str, count: int = 1) -> None:
        produce(self.broker.bootstrap, self.topic, orders(customer, count))

    def of(self, customer: str) -> list[int]:
        """Return how many orders there were at each timer; fail where one ran twice, or was left out."""
        found = [(timers, count) for name, count, timers in self.emitted() if name == customer]
        assert [timers for timers, _ in found] == list(range(1, len(found) + 1)), found
        counts = [count for _, count in found]
        assert all(before < after for before, after in itertools.pairwise(counts)), found
        return counts

    def committed(self) -> int:
        """Return how many orders the processor's query has read in batches that are done."""
        # A query of outputs is named after a topic's id, which may have a slash in it.
        for directory in (self.directory / "checkpoints" / self.query).rglob("commits"):
            commits = [int(file.name) for file in directory.glob("[0-9]*") if file.name.isdigit()]
            if commits:
                offsets = read_offset_log((directory.parent / "offsets" / str(max(commits))).read_text())
                return sum(offsets[self.topic].values())
        return 0


def rows_of_table(broker: Broker, job: str) -> list[tuple[str, int, int]]:
    """Return the rows of a table; a batch that ran again has written the same ones."""
    by_version: dict[tuple[str, int], tuple[int, int]] = {}
    for row in written(broker.bootstrap, job):
        content = row.first, int(row.second)
        assert by_version.setdefault((row.customer, row.sequence), content) == content
    return [(customer, *content) for (customer, _), content in sorted(by_version.items())]


def records_of_output(broker: Broker, topic: str) -> list[tuple[str, int, int]]:
    found = [json.loads(record.value or b"") for record in consume(broker.bootstrap, topic)]
    return sorted((one["customer"], one["orders"], one["timers"]) for one in found)


@pytest.fixture(params=["table", "output"])
def timed(request: pytest.FixtureRequest, broker: Broker, tmp_path: Path) -> Timed:
    """Return a processor that makes a table in micro-batches, or feeds an output of one in Real-time Mode."""
    topic, output = new_topic(broker.bootstrap, 2), new_topic(broker.bootstrap)
    name = f"timed_{request.param}_{random.randrange(10**9)}"
    if request.param == "table":
        columns = {"order_count": "orders", "amount": "CAST(timers AS DOUBLE)"}
        job = write_job(tmp_path, name, topic, columns=columns, more="mode=Mode.MICROBATCH, processor=Counts()")
        emitted: Callable[[], list[tuple[str, int, int]]] = lambda: rows_of_table(broker, job)  # noqa: E731
    else:
        job = write_job(tmp_path, name, topic, more=OUTPUT.format(topic=output))
        emitted = lambda: records_of_output(broker, output)  # noqa: E731
    Path(job).write_text(PROCESSOR + Path(job).read_text())
    query = f"{name}/g1/table" if request.param == "table" else f"{name}/outputs"
    return Timed(broker, tmp_path, job, topic, query, emitted)


def test_a_timer_that_was_due_in_the_meantime_runs_once(timed: Timed) -> None:
    count = 0
    for _ in itertools.count():
        with timed.running() as job:
            job.wait_for("running")
            timed.order("ann")
            count += 1
            # Its timer is set with the batch of its record, which has to be committed before the job is killed.
            wait_until("the order is read", lambda wanted=count: timed.committed() == wanted, job)
        if timed.of("ann")[-1:] != [count]:  # the kill has come before the timer
            break
    before = timed.of("ann")
    time.sleep(EVERY_S)  # now it is due
    with timed.running() as job:
        # Spark runs no batch before the first record of any key.
        timed.order("bob")
        wait_until("ann's timer", lambda: timed.of("ann") == [*before, count], job)
        for number in range(2):
            wait_until("bob's timer", lambda known=number: len(timed.of("bob")) > known, job)
            timed.order("bob")
    assert timed.of("ann") == [*before, count]


# By day the table, whose batches a kill cuts off; a timer of an output that a kill has stopped is the test above.
@pytest.mark.parametrize(
    ("timed", "kills"),
    [
        ("table", 3),
        pytest.param("output", 3, marks=pytest.mark.long),
        pytest.param("table", 20, marks=[pytest.mark.long, pytest.mark.timeout(3_600)]),
        pytest.param("output", 20, marks=[pytest.mark.long, pytest.mark.timeout(3_600)]),
    ],
    indirect=["timed"],
)
def test_kills_among_timers_repeat_none_and_lose_none(timed: Timed, kills: int) -> None:
    chosen = random.Random(17)
    count = dict.fromkeys(("ann", "bob", "cid"), 0)
    for _ in range(kills):
        with timed.running() as job:
            job.wait_for("running")
            end_s = time.monotonic() + chosen.uniform(1.0, 4 * EVERY_S)
            while time.monotonic() < end_s:
                customer = chosen.choice([*count])
                timed.order(customer, number := chosen.randrange(1, 4))
                count[customer] += number
                time.sleep(chosen.uniform(0.0, 0.5))
    with timed.running() as job:
        for customer in count:  # a record of each, so that each has a timer
            timed.order(customer)
            count[customer] += 1
        wait_until("the last timers", lambda: {one: timed.of(one)[-1:] for one in count} == wanted(count), job)


def wanted(count: dict[str, int]) -> dict[str, list[int]]:
    return {customer: [number] for customer, number in count.items()}
