"""Rows that expire: deleted, forgotten, and begun anew, whatever is cut off. Real Kafka and Spark."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typing_extensions import override

from tablegate.examples.demo.kafka import Broker
from tablegate.gateway.contract.types import VERSION_HEADER
from tablegate.jobs.errors import JobError
from tablegate.jobs.kafka.job_group import Tenure
from tablegate.jobs.kafka.markers import Markers
from tablegate.jobs.planning.declarations import load_table
from tablegate.jobs.planning.options import Options
from tablegate.jobs.running.audit import EQUAL, audit_table
from tablegate.jobs.running.checkpoint import COMMITS, Checkpoint
from tablegate.jobs.running.expiry import SWEEP_FILE, adopt_sweep, finish_sweep, newest_sweep, sweep
from tablegate.jobs.running.queries import TABLE_QUERY
from tablegate.jobs.running.session import table_session
from tablegate.jobs.running.state_records import read_state
from tests.kit.job.counting_job import JobInProcess, orders, rows, write_job
from tests.kit.job.process import WAIT_S, JobProcess, wait_until
from tests.kit.programs.kafka import NewRecord, consume, new_topic, produce

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

EXPIRING = "mode=Mode.MICROBATCH, expires_after_s=60"
# Rows that are to stay have an input that is ahead of the clock, as a test may take longer than they would live.
OLD_MIN, NEW_MIN = -60, 50
OUTPUT = 'outputs=(RowOutput("{topic}", key=Text("customer"), value=Json("customer, order_count")),)'


def time_ms(minutes: float) -> int:
    return round((time.time() + minutes * 60) * 1000)


def of(customer: str, count: int, minutes: float = NEW_MIN, *, partition: int = 0) -> list[NewRecord]:
    return orders(customer, count, partition=partition, timestamp_ms=time_ms(minutes))


def run_until_rows(running: JobInProcess, options: Options, job: str, expected: dict[str, tuple[int, float]]) -> None:
    def is_so() -> bool:
        running.table.poll()
        return rows(options.bootstrap, job) == expected

    wait_until(f"rows {expected}", is_so)


def changes(options: Options, name: str, customer: bytes) -> list[bool]:
    """Return of each change of a customer's row, by its version, whether the row was there."""
    records = [one for one in consume(options.bootstrap, f"{name}-g1-changelog") if customer in (one.key or b"")]
    return [one.value is not None for one in sorted(records, key=lambda one: dict(one.headers)[VERSION_HEADER])]


def state_rows(spark: SparkSession, options: Options, name: str) -> int:
    checkpoint = Checkpoint(spark, f"{options.checkpoints}/{name}/g1")
    batch = checkpoint.newest_batch(TABLE_QUERY, COMMITS)
    assert batch is not None
    return read_state(spark, checkpoint.query_location(TABLE_QUERY), batch).count()


def check_audit(spark: SparkSession, options: Options, job: str) -> None:
    found = audit_table(spark, load_table(job), bootstrap=options.bootstrap, checkpoints=options.checkpoints)
    assert {verdict for verdict, number in found.counts.items() if number} == {EQUAL}, found.differences


def test_old_rows_are_deleted_forgotten_and_begun_anew(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: Options
) -> None:
    topic, output = new_topic(broker.bootstrap, 2), new_topic(broker.bootstrap)
    job = write_job(tmp_path, "expiring", topic, more=f"{EXPIRING}, {OUTPUT.format(topic=output)}")
    declared = Path(job).read_text().replace("Source, Table", "RowOutput, Source, Table, Text")
    Path(job).write_text(declared)
    old = [record for number in range(5) for record in of(f"old{number}", 3, OLD_MIN)]
    # What is old in one partition is not, where the other has a later input.
    both = of("both", 2, OLD_MIN) + of("both", 1, partition=1)
    produce(broker.bootstrap, topic, old + both + of("new", 4))
    with JobInProcess(spark, job, options) as running:
        run_until_rows(running, options, job, {"both": (2, 1.0), "new": (4, 0.0)})
        produce(broker.bootstrap, topic, of("old1", 1) + of("new", 1, partition=1))
        again = {"both": (2, 1.0), "new": (4, 1.0), "old1": (1, 0.0)}
        run_until_rows(running, options, job, again)
        # One that comes late makes a row, which the next sweep removes.
        produce(broker.bootstrap, topic, of("old2", 1, OLD_MIN) + of("last", 1))
        run_until_rows(running, options, job, {**again, "last": (1, 0.0)})

        def is_gone_again() -> bool:
            running.table.poll()
            return changes(options, "expiring", b"old2")[-3:] == [False, True, False]

        wait_until("the late row, and its end", is_gone_again)
    assert state_rows(spark, options, "expiring") == 4
    check_audit(spark, options, job)
    seen = {record.key: record.value for record in consume(broker.bootstrap, output)}
    assert {key for key, value in seen.items() if value is None} == {b"old0", b"old2", b"old3", b"old4"}
    with JobInProcess(spark, job, options) as running:
        produce(broker.bootstrap, topic, of("new", 1))
        run_until_rows(running, options, job, {**again, "last": (1, 0.0), "new": (5, 1.0)})


class CutOff(Checkpoint):
    """A checkpoint whose job ends where it would decide something."""

    @override
    def decide(self, name: str, text: str) -> None:
        raise InterruptedError


MOMENTS = ("before it counts", "before its state moves", "before its tombstones", "before its end is noted")


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_sweep_that_was_cut_off_is_finished(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: Options, moment: str
) -> None:
    topic = new_topic(broker.bootstrap, 2)
    name = f"cut_off_{MOMENTS.index(moment)}"
    job = write_job(tmp_path, name, topic)
    Path(job).write_text(Path(job).read_text().replace("mode=Mode.MICROBATCH", EXPIRING))
    # Neither is old to the job, so it does not sweep by itself.
    produce(broker.bootstrap, topic, of("old", 3, NEW_MIN - 20) + of("new", 4))
    with JobInProcess(spark, job, options) as running:
        running.run_until_read(topic, 7)
        plan = running.table.plan
    session = table_session(spark, shuffle_partitions=plan.changelog.partition_count)
    checkpoint, cut_off = Checkpoint(session, plan.checkpoint), CutOff(session, plan.checkpoint)
    before_us = time_ms(NEW_MIN - 10) * 1_000
    if moment == MOMENTS[0]:
        with pytest.raises(InterruptedError):
            sweep(session, plan, cut_off, before_us=before_us)
        assert newest_sweep(checkpoint).number == 0
    else:
        found = sweep(session, plan, checkpoint, before_us=before_us)
        assert not found.is_done
    if moment in MOMENTS[2:]:
        adopt_sweep(checkpoint)
    if moment == MOMENTS[3]:
        swept = replace(plan, sequence_base=newest_sweep(checkpoint).sequence_base)
        run = Markers(options.bootstrap, plan.changelog, plan.generation).begin_run(lambda: Tenure("sweeper", 0))
        with pytest.raises(InterruptedError):
            finish_sweep(session, swept, cut_off, run=run, row_outputs=True)
    produce(broker.bootstrap, topic, of("old", 1) + of("new", 1, partition=1))
    with ThreadPoolExecutor(1) as starting:  # as jobs start their tables
        started = starting.submit(JobInProcess, spark, job, options).result()
    with started as running:
        # The old row's state has gone with the sweep, where that counts; else it had an input in time.
        old = (4, 0.0) if moment == MOMENTS[0] else (1, 0.0)
        run_until_rows(running, options, job, {"old": old, "new": (4, 1.0)})
        running.run_until_read(topic, 9)  # so that the batch is done, and the audit skips no row
    check_audit(spark, options, job)
    if moment != MOMENTS[0]:
        assert newest_sweep(checkpoint).is_done


class SweepSteps:
    """Counts the steps of a table's sweeps, by what is in its checkpoint."""

    def __init__(self, options: Options, name: str) -> None:
        self._directory = Path(options.checkpoints) / name / "g1"
        self._last: object = None
        self.count = 0

    def watch(self) -> None:
        """Count a step, where there is something else than before: rows being sorted, decided, removed, done."""
        file = self._directory / SWEEP_FILE
        text = file.read_text() if file.exists() else ""
        now = text, (self._directory / "sweep-expired").exists(), (self._directory / "sweep-query").exists()
        self.count += now != self._last
        self._last = now


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.long)])
def test_kills_among_sweeps_lose_no_input(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: Options, kills: int
) -> None:
    chosen = random.Random(7)
    topic = new_topic(broker.bootstrap, 2)
    job = write_job(tmp_path, name := f"kills_expiring_{kills}", topic, more=EXPIRING)
    arguments = ("--table", job, "--bootstrap", broker.bootstrap, "--checkpoints", options.checkpoints)
    counts: dict[str, list[int]] = {}
    produced = 0
    for number in range(kills):
        with JobProcess(tmp_path / "job", *arguments) as running:
            running.wait_for("running")
            # A sweep comes each six seconds at most, and takes some: a life of so many steps ends anywhere in one.
            steps, wanted = SweepSteps(options, name), chosen.randrange(2, 9)
            end_s = time.monotonic() + WAIT_S
            while steps.count < wanted and time.monotonic() < end_s:
                partition, customer = chosen.randrange(2), f"new{chosen.randrange(50)}"
                counts.setdefault(customer, [0, 0])[partition] += 1
                old = of(f"old{number}", 1, OLD_MIN)  # so that there are rows to be removed at each sweep
                produce(broker.bootstrap, topic, [*of(customer, 1, partition=partition), *old])
                produced += 2
                steps.watch()
                time.sleep(0.02)  # the job needs the machine, too
            time.sleep(chosen.uniform(0.0, 0.5))
    expected = {customer: (first, float(second)) for customer, (first, second) in counts.items()}
    expected["last"] = (1, 0.0)
    with JobInProcess(spark, job, options) as last:
        produce(broker.bootstrap, topic, of("last", 1))
        run_until_rows(last, options, job, expected)
        last.run_until_read(topic, produced + 1)  # so that the batch is done, and the audit skips no row
    checkpoint = Checkpoint(spark, f"{options.checkpoints}/{name}/g1")
    print(f"{kills} kills, {newest_sweep(checkpoint).number} sweeps, {len(expected)} rows, 0 different")
    assert newest_sweep(checkpoint).number > 0
    assert state_rows(spark, options, name) == len(expected)
    check_audit(spark, options, job)


def test_another_time_is_another_table(spark: SparkSession, broker: Broker, tmp_path: Path, options: Options) -> None:
    topic = new_topic(broker.bootstrap)
    job = write_job(tmp_path, "other_time", topic, more=EXPIRING)
    produce(broker.bootstrap, topic, of("new", 1))
    with JobInProcess(spark, job, options) as running:
        running.run_until_read(topic, 1)
    write_job(tmp_path, "other_time", topic, more=EXPIRING.replace("60", "7200"))
    with pytest.raises(JobError, match=r"expires_after_s is 7200 s, it was 60 s; .*job rebuild"):
        JobInProcess(spark, job, options)
