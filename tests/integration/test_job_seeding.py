"""A generation that begins from the state of the one before: no input is lost or counted twice, and no row is wrong."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tablegate.examples.demo.kafka import Broker
from tablegate.jobs.errors import JobError
from tablegate.jobs.kafka.manifests import read_manifest
from tablegate.jobs.kafka.topics import KafkaAdmin
from tablegate.jobs.planning.declarations import load_table
from tablegate.jobs.planning.options import Options
from tablegate.jobs.running.audit import EQUAL, audit_table
from tablegate.jobs.running.checkpoint import IDENTITY_FILE
from tablegate.jobs.running.handover import HandoverPhase
from tests.kit.job.counting_job import JobInProcess, orders, write_job, written
from tests.kit.job.process import JobProcess, wait_until
from tests.kit.programs.kafka import NewRecord, drop_records, new_topic, produce
from tests.kit.programs.processes import kill_tree

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(900)]

CUSTOMERS = ("ann", "bob", "cid")
BEFORE = {"order_count": "count(*)", "amount": "avg(amount)"}
# Other columns of the same aggregates, in another order.
NOW = {"amount": "avg(amount) * count(*)", "order_count": "10 * count(*)"}
HAVING = 'mode=Mode.MICROBATCH, having="{}"'


def place_orders(bootstrap: str, topic: str, count: int, *, partitions: int = 2, first: int = 0) -> None:
    """Place so many orders: of `CUSTOMERS` in turn, of 1.0, 2.0, …, in the partitions in turn."""
    placed: list[NewRecord] = []
    for number in range(first, first + count):
        placed += orders(CUSTOMERS[number % 3], 1, partition=number % partitions, amount=float(number + 1))
    produce(bootstrap, topic, placed)


def fold(amounts: Mapping[str, Sequence[float]]) -> dict[str, tuple[int, int, object]]:
    """Return what `NOW` makes of the amounts of each customer, as `rows` has it."""
    return {one: (len(own), 10 * len(own), pytest.approx(sum(own))) for one, own in amounts.items()}


def amounts_of(count: int) -> dict[str, list[float]]:
    """Return the amounts of each customer that so many placed orders have."""
    return {one: [float(n + 1) for n in range(count) if CUSTOMERS[n % 3] == one] for one in CUSTOMERS}


def rows(bootstrap: str, job: str, generation: int) -> dict[str, tuple[int, int, float]]:
    """Return the sequence, the count and the amount of each customer."""
    found = written(bootstrap, job, generation)
    return {row.customer: (row.sequence, row.first, row.second) for row in found}


def complete(running: JobInProcess) -> None:
    def is_in_place() -> bool:
        running.table.poll()
        return running.table.phase is HandoverPhase.IN_PLACE

    wait_until("the generation in place", is_in_place)


def check_audit(spark: SparkSession, job: str, options: Options, count: int) -> None:
    found = audit_table(spark, load_table(job), bootstrap=options.bootstrap, checkpoints=options.checkpoints)
    assert found.is_settled
    assert {verdict: number for verdict, number in found.counts.items() if number} == {EQUAL: count}, found.differences


def test_history_is_kept_that_sources_dropped(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: Options
) -> None:
    topic = new_topic(broker.bootstrap, 2)
    job = write_job(tmp_path, "seeded", topic, columns=BEFORE, more=HAVING.format("order_count > 33"))
    place_orders(broker.bootstrap, topic, 101)
    with JobInProcess(spark, job, options) as running:
        running.run_until_read(topic, 101)
    # One of the three customers has too few orders for a row, and is in the state all the same.
    assert set(rows(broker.bootstrap, job, 1)) == {"ann", "bob"}
    for partition in (0, 1):
        drop_records(broker.bootstrap, topic, 45, partition=partition)
    produce(broker.bootstrap, topic, orders("cid", 1, amount=500.0))  # behind the seam

    write_job(tmp_path, "seeded", topic, columns=NOW, more=HAVING.format("order_count > 0"))
    with pytest.raises(JobError, match="90 of source topic"):
        JobInProcess(spark, job, options, generation=2, is_rebuild=True)
    seeding = replace(options, from_state=True)
    with JobInProcess(spark, job, seeding, generation=3, is_rebuild=True) as running:
        complete(running)
        running.run_until_read(topic, 102)
    amounts = amounts_of(101)
    amounts["cid"].append(500.0)
    assert rows(broker.bootstrap, job, 3) == fold(amounts)
    check_audit(spark, job, options, 3)

    # It goes on as any other generation does, and can be begun from in its turn.
    produce(broker.bootstrap, topic, orders("dan", 2, amount=2.0) + orders("ann", 1, partition=1, amount=7.0))
    with JobInProcess(spark, job, options) as running:
        running.run_until_read(topic, 105)
    with JobInProcess(spark, job, seeding, generation=4, is_rebuild=True) as running:
        complete(running)
    amounts |= {"dan": [2.0, 2.0], "ann": [*amounts["ann"], 7.0]}
    assert rows(broker.bootstrap, job, 4) == fold(amounts)
    check_audit(spark, job, options, 4)


def test_column_that_the_state_lacks(spark: SparkSession, broker: Broker, tmp_path: Path, options: Options) -> None:
    topic = new_topic(broker.bootstrap)
    source = ", keyed=True"
    job = write_job(tmp_path, "lacking", topic, columns=BEFORE, source=source)
    place_orders(broker.bootstrap, topic, 9, partitions=1)
    with JobInProcess(spark, job, options) as running:
        running.run_until_read(topic, 9)
    write_job(tmp_path, "lacking", topic, columns={**BEFORE, "amount": "sum(amount)"}, source=source)
    seeding = replace(options, from_state=True)
    with pytest.raises(JobError) as caught:
        JobInProcess(spark, job, seeding, generation=2, is_rebuild=True)
    assert str(caught.value) == (
        f'{tmp_path}/job.py:3: table "lacking" column "amount" is made of what the state of the old generation does '
        "not have; leave it as it was, or let it begin with what comes from now on: --from-now amount"
    )
    with pytest.raises(JobError, match='has no column "amuont"; correct --from-now'):
        JobInProcess(spark, job, replace(seeding, from_now=("amuont",)), generation=2, is_rebuild=True)
    produce(broker.bootstrap, topic, orders("ann", 1, amount=4.0))
    with JobInProcess(spark, job, replace(seeding, from_now=("amount",)), generation=2, is_rebuild=True) as running:
        complete(running)
        running.run_until_read(topic, 10)
    assert rows(broker.bootstrap, job, 2) == {"ann": (9, 4, 4.0), "bob": (7, 3, 0.0), "cid": (8, 3, 0.0)}
    check_audit(spark, job, options, 3)


def test_source_dropped_what_the_state_has_not(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: Options
) -> None:
    topic = new_topic(broker.bootstrap)
    job = write_job(tmp_path, "seam", topic, columns=BEFORE)
    produce(broker.bootstrap, topic, orders("ann", 5))
    with JobInProcess(spark, job, options) as running:
        running.run_until_read(topic, 5)
    produce(broker.bootstrap, topic, orders("ann", 5))
    drop_records(broker.bootstrap, topic, 7)
    seeding = replace(options, from_state=True)
    with pytest.raises(JobError, match='has dropped 2 records that table "seam" has not read, offsets 5 to 6'):
        JobInProcess(spark, job, seeding, generation=2, is_rebuild=True)
    assert rows(broker.bootstrap, job, 2) == {}


def test_state_of_headers_functions_and_maps(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: Options
) -> None:
    def declare(amount: str) -> str:
        columns, more = {**BEFORE, "amount": amount}, "mode=Mode.MICROBATCH, functions={'twice': twice}"
        file = Path(write_job(tmp_path, "beginnings", topic, columns=columns, source=", headers=True", more=more))
        types = "from pyspark.sql import functions as sql, types"
        twice = "twice = sql.udf(lambda amount: 2 * amount, types.DoubleType(), useArrow=False)"
        file.write_text(f"{types}\n{twice}\n{file.read_text()}")
        return str(file)

    topic = new_topic(broker.bootstrap)
    placed = [one._replace(headers=[("vat", b"1")]) for one in orders("ann", 2, amount=3.0)]
    of_map = "element_at(max_by(map('a', amount), amount), 'a')"
    job = declare(of_map)
    produce(broker.bootstrap, topic, placed)
    with JobInProcess(spark, job, options) as running:
        running.run_until_read(topic, 2)
    seeding = replace(options, from_state=True, from_now=("amount",))
    declare(f"1 + {of_map}")
    with pytest.raises(JobError, match=r"has an aggregate that keeps a map, .*; build it from its sources"):
        JobInProcess(spark, job, seeding, generation=2, is_rebuild=True)
    assert rows(broker.bootstrap, job, 2) == {}
    declare("sum(twice(amount) + CAST(CAST(kafka.headers['vat'] AS STRING) AS INT))")
    with JobInProcess(spark, job, seeding, generation=2, is_rebuild=True) as running:
        complete(running)
        produce(broker.bootstrap, topic, placed[:1])
        running.run_until_read(topic, 3)
    assert rows(broker.bootstrap, job, 2) == {"ann": (3, 3, 7.0)}


@pytest.mark.parametrize("mode", ["MICROBATCH", pytest.param("REALTIME", marks=pytest.mark.long)])
def test_seam_beside_a_running_job(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: Options, mode: str
) -> None:
    topic = new_topic(broker.bootstrap, 2)
    more = f"mode=Mode.{mode}"
    name = f"beside_{mode.lower()}"
    job = write_job(tmp_path, name, topic, columns=BEFORE, more=more)
    where = ["--bootstrap", broker.bootstrap, "--checkpoints", options.checkpoints]
    rebuild = [sys.executable, "-m", "tablegate.gateway.cli", "job", "rebuild", job, "--from-state", *where]
    placed = 300
    place_orders(broker.bootstrap, topic, placed)
    with JobProcess(tmp_path / "logs", "--table", job, *where) as running:
        # A batch is committed: what comes after it is of the next one.
        committed = tmp_path / "checkpoints" / name / "g1/table/commits/0"
        wait_until("a committed batch", committed.exists, running)
        write_job(tmp_path, name, topic, columns=NOW, more=more)
        with (tmp_path / "log").open("wb") as log, subprocess.Popen(rebuild, stdout=log, stderr=log) as rebuilding:
            while rebuilding.poll() is None:
                place_orders(broker.bootstrap, topic, 3, first=placed)
                placed += 3
        assert rebuilding.returncode == 0, (tmp_path / "log").read_text()
        wait_until(
            "the new generation", lambda: any(one["generation"] == 2 for one in running.events("running")), running
        )
        place_orders(broker.bootstrap, topic, 3, first=placed)
        expected = fold(amounts_of(placed + 3))
        wait_until("the rows of all orders", lambda: rows(broker.bootstrap, job, 2) == expected, running)
        check_audit(spark, job, options, 3)


STOPS_BEHIND_ROWS = """
import os, runpy, signal
from tablegate.jobs.running import seeding

seeding.write_state = lambda *_: os.kill(os.getpid(), signal.SIGSTOP)
runpy.run_module("tablegate.gateway.cli", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    ("moment", "generation"),
    [
        ("rows", 3),  # no checkpoint is claimed for them: the next generation begins
        pytest.param("event running", 2, marks=pytest.mark.long),
        pytest.param("phase published", 3, marks=pytest.mark.long),  # it is begun from in its turn
    ],
)
def test_kill_in_the_middle_of_seeding(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: Options, moment: str, generation: int
) -> None:
    topic = new_topic(broker.bootstrap, 2)
    name = f"killed_{moment.split()[-1]}"
    job = write_job(tmp_path, name, topic, columns=BEFORE)
    place_orders(broker.bootstrap, topic, 30)
    with JobInProcess(spark, job, options) as running:
        running.run_until_read(topic, 30)
    for partition in (0, 1):
        drop_records(broker.bootstrap, topic, 14, partition=partition)
    place_orders(broker.bootstrap, topic, 6, first=30)
    write_job(tmp_path, name, topic, columns=NOW)
    words = ["job", "rebuild", job, "--from-state"]
    words += ["--bootstrap", broker.bootstrap, "--checkpoints", options.checkpoints]
    command = [sys.executable, "-m", "tablegate.gateway.cli"]
    first = [sys.executable, "-c", STOPS_BEHIND_ROWS] if moment == "rows" else command

    with JobProcess(tmp_path / "killed", *words, command=first) as killed:
        if moment == "rows":
            killed.wait_frozen()
        elif moment == "event running":
            killed.wait_for("running")
        else:
            wait_until(
                moment, lambda: any(each.get("phase") == "published" for each in killed.events("generation")), killed
            )
        changelog = KafkaAdmin(broker.bootstrap).find(f"{name}-g2-changelog")
        assert changelog is not None
        assert any(KafkaAdmin(broker.bootstrap).end_offsets(changelog).values())
        kill_tree(killed.process)
    assert (tmp_path / "checkpoints" / name / "g2" / IDENTITY_FILE).exists() == (moment != "rows")
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    manifest = read_manifest(broker.bootstrap, name)
    assert manifest is not None
    assert manifest.generation == generation
    assert rows(broker.bootstrap, job, generation) == fold(amounts_of(36))
    check_audit(spark, job, options, 3)
