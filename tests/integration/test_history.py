"""Records of a batch DataFrame, then those of a topic: together they come to the fold of both. Real Kafka and Spark."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typing_extensions import override

from tablegate.examples.demo.kafka import Broker
from tablegate.jobs.dataflow.frames import build
from tablegate.jobs.dataflow.history import topics_of_streams
from tablegate.jobs.errors import JobError
from tablegate.jobs.planning.declarations import load_table
from tablegate.jobs.planning.options import Options
from tablegate.jobs.planning.plan import make_plan
from tablegate.jobs.running.audit import EQUAL, audit_table
from tablegate.jobs.running.checkpoint import Checkpoint
from tablegate.jobs.running.checks import check_table
from tablegate.jobs.running.handover import HandoverPhase
from tablegate.jobs.running.history import keep_histories, read_histories
from tablegate.jobs.running.running_table import identity_of
from tablegate.jobs.running.session import table_session
from tests.kit.job.counting_job import CONTRACT, JobInProcess, orders, written
from tests.kit.job.process import wait_until
from tests.kit.programs.kafka import drop_records, new_topic, produce

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(900)]

CUSTOMERS = 100
JOB = """from tablegate.jobs import FrameTable, History, Json, Mode, Source, Table

def past(spark):
    return spark.read.parquet({parquet!r}){then}

ORDERS = Source("{topic}", Json("customer STRING, amount DOUBLE"), history=History(past{ends}))
"""
TABLE = """
TABLE = Table(
    name="{name}",
    contract="orders.proto",
    source=ORDERS,
    key={{"customer": "customer"}},
    columns={{"order_count": "count(*)", "amount": "sum(amount)"}},
    mode=Mode.{mode},
)
"""
FRAME_TABLE = """
def totals(orders):
    return orders.groupBy("customer").agg({{"*": "count", "amount": "sum"}}).selectExpr(
        "customer", "`count(1)` AS order_count", "`sum(amount)` AS amount"
    )

TABLE = FrameTable(name="{name}", contract="orders.proto", rows=totals, sources={{"orders": ORDERS}})
"""
KINDS = {"microbatch": TABLE, "realtime": TABLE, "frame": FRAME_TABLE}


def write_job(
    directory: Path, name: str, topic: str, kind: str = "microbatch", *, then: str = "", ends: str = ""
) -> str:
    """Declare a table whose source has the Parquet of `directory` before its topic."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "orders.proto").write_text(CONTRACT.read_text().replace('"order_totals"', f'"{name}"'))
    path = directory / "job.py"
    text = JOB.format(parquet=str(directory / "parquet"), topic=topic, then=then, ends=ends)
    path.write_text(text + KINDS[kind].format(name=name, mode=kind.upper()))
    return str(path)


def write_history(spark: SparkSession, directory: Path, count: int) -> Counter[str]:
    """Write so many orders of 2.0 each, of all customers in turn; return how many each has."""
    frame = spark.range(count).selectExpr(f"concat('c', id % {CUSTOMERS}) AS customer", "2D AS amount")
    frame.write.parquet(str(directory / "parquet"))
    return Counter(f"c{number % CUSTOMERS}" for number in range(count))


def newest(bootstrap: str, job: str, generation: int = 1) -> dict[str, tuple[int, float]]:
    """Return count and amount of each customer, by its newest version."""
    rows = sorted(written(bootstrap, job, generation), key=lambda row: row.sequence)
    return {row.customer: (row.first, row.second) for row in rows}


def fold(past: Counter[str], live: Counter[str]) -> dict[str, tuple[int, float]]:
    """Return what the table has to be: orders of the past are of 2.0, those of the topic of 1.0."""
    return {one: (past[one] + live[one], 2.0 * past[one] + live[one]) for one in past | live}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [3_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_history_and_then_the_topic_equal_a_fold(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: Options, kind: str, count: int
) -> None:
    topic = new_topic(broker.bootstrap, 2)
    past = write_history(spark, tmp_path, count)
    # What the topic has before the place where it goes on is in the history already.
    produce(broker.bootstrap, topic, orders("c1", 5) + orders("c2", 7, partition=1) + orders("c3", 2, partition=1))
    job = write_job(tmp_path, f"history_{kind}", topic, kind, ends=", topic_from={0: 5, 1: 7}")
    with JobInProcess(spark, job, options) as running:
        running.run_until_read(topic, 14)
        live = Counter({"c3": 2})
        wait_until("history and topic", lambda: newest(broker.bootstrap, job) == fold(past, live))
        produce(broker.bootstrap, topic, orders("c1", 3) + orders("new", 4, partition=1))
        running.run_until_read(topic, 21)
    live = Counter({"c1": 3, "c3": 2, "new": 4})
    assert newest(broker.bootstrap, job) == fold(past, live)
    # The history is read once: the directory may go, and the job goes on without it.
    (tmp_path / "parquet").rename(tmp_path / "gone")
    produce(broker.bootstrap, topic, orders("c1", 1))
    with JobInProcess(spark, job, options) as running:
        running.run_until_read(topic, 22)
    assert newest(broker.bootstrap, job) == fold(past, live + Counter({"c1": 1}))
    if kind != "frame":
        found = audit_table(spark, load_table(job), bootstrap=options.bootstrap, checkpoints=options.checkpoints)
        assert {verdict for verdict, number in found.counts.items() if number} == {EQUAL}, found.differences


class CutOff(Checkpoint):
    """A checkpoint whose job ends where it would note that the history has been read."""

    @override
    def adopt_offsets(self, query: str, lines: Sequence[str]) -> None:
        raise InterruptedError


@pytest.mark.parametrize("moment", ["before its batch", "before its offsets are noted"])
def test_a_start_that_was_cut_off_in_the_history_goes_on(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: Options, moment: str
) -> None:
    topic = new_topic(broker.bootstrap, 2)
    past = write_history(spark, tmp_path, 500)
    produce(broker.bootstrap, topic, orders("c1", 5))
    job = write_job(tmp_path, f"history_cut_{moment.count(' ')}", topic)
    plan = make_plan(load_table(job), options)
    session = table_session(spark, shuffle_partitions=plan.changelog.partition_count)
    frame = build(session, plan, row_outputs=True).table
    checkpoint, identity = CutOff(session, plan.checkpoint), identity_of(plan, None)
    keep_histories(session, plan, checkpoint, topics_of_streams(frame))
    checkpoint.claim(identity)
    if moment != "before its batch":
        with pytest.raises(InterruptedError):
            read_histories(session, plan, checkpoint, identity, frame, row_outputs=True, poll=lambda: None)
        assert len(written(broker.bootstrap, job)) == CUSTOMERS
    # What it had of the history is kept, so that versions that are written again have the same contents.
    (tmp_path / "parquet").rename(tmp_path / "gone")
    with JobInProcess(spark, job, options) as running:
        running.run_until_read(topic, 5)
    assert newest(broker.bootstrap, job) == fold(past, Counter({"c1": 5}))
    contents: dict[tuple[str, int], set[tuple[int, float]]] = {}
    for row in written(broker.bootstrap, job):
        contents.setdefault((row.customer, row.sequence), set()).add((row.first, row.second))
    assert {len(same) for same in contents.values()} == {1}


def test_a_rebuild_reads_the_history_again(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: Options
) -> None:
    topic = new_topic(broker.bootstrap)
    past = write_history(spark, tmp_path, 500)
    produce(broker.bootstrap, topic, orders("c1", 5))
    job = write_job(tmp_path, "history_rebuilt", topic, ends=', topic_from="2020-01-01T00:00:00Z"')
    with JobInProcess(spark, job, options) as running:
        running.run_until_read(topic, 5)
    write_job(tmp_path, "history_rebuilt", topic, then=".where(\"customer != 'c7'\")")
    with pytest.raises(JobError, match="the history of source"):
        JobInProcess(spark, job, options)
    with JobInProcess(spark, job, options, generation=2, is_rebuild=True) as running:

        def is_in_place() -> bool:
            running.table.poll()
            return running.table.phase is HandoverPhase.IN_PLACE

        wait_until("the generation in place", is_in_place)
    del past["c7"]
    assert newest(broker.bootstrap, job, 2) == fold(past, Counter({"c1": 5}))


@pytest.mark.parametrize(
    ("then", "ends", "sentence"),
    [
        ('.selectExpr("customer")', "", 'column "amount" is missing'),
        (
            '.selectExpr("customer", "CAST(amount AS INT) AS amount")',
            "",
            'column "amount" is int, the source has double: write CAST(amount AS DOUBLE)',
        ),
        (".nothing()", "", "does not run: "),
        (".count()", "", "is int; return a batch DataFrame"),
        ("", ", topic_from={0: 0}", "has topic_from for partitions 0, and the topic has 0 to 1"),
        ("", ", topic_from={0: 9, 1: 0}", "has topic_from 9 for partition 0, which ends at 0"),
        (
            '.selectExpr("nullif(customer, \'c3\') AS customer", "amount")',
            "",
            "has a history with 5 records that no row can be made of: null_key_customer 5",
        ),
    ],
)
def test_a_history_that_does_not_fit_is_refused_before_a_row(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: Options, then: str, ends: str, sentence: str
) -> None:
    topic = new_topic(broker.bootstrap, 2)
    write_history(spark, tmp_path, 500)
    job = write_job(tmp_path, f"history_wrong_{len(sentence)}", topic, then=then, ends=ends)
    with pytest.raises(JobError) as refused:
        JobInProcess(spark, job, options)
    assert sentence in str(refused.value)
    assert not list((tmp_path / "checkpoints").rglob("tablegate.json"))


def test_a_topic_that_has_dropped_what_follows_the_history(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: Options
) -> None:
    topic = new_topic(broker.bootstrap)
    write_history(spark, tmp_path, 5)
    produce(broker.bootstrap, topic, orders("c1", 9))
    drop_records(broker.bootstrap, topic, 7)
    with pytest.raises(JobError, match=r"has dropped 2 records that .* has not read, offsets 5 to 6"):
        JobInProcess(spark, write_job(tmp_path, "history_gap", topic, ends=", topic_from={0: 5}"), options)


def test_a_history_without_records(spark: SparkSession, broker: Broker, tmp_path: Path, options: Options) -> None:
    topic = new_topic(broker.bootstrap)
    write_history(spark, tmp_path, 5)
    produce(broker.bootstrap, topic, orders("c1", 5))
    with JobInProcess(spark, write_job(tmp_path, "history_empty", topic, then='.where("false")'), options) as running:
        running.run_until_read(topic, 5)
    assert newest(broker.bootstrap, str(tmp_path / "job.py")) == fold(Counter(), Counter({"c1": 5}))


def test_check_looks_at_the_history(spark: SparkSession, tmp_path: Path) -> None:
    write_history(spark, tmp_path, 5)
    job = write_job(tmp_path, "history_checked", "past_orders", then='.drop("amount")')
    with pytest.raises(JobError, match='column "amount" is missing'):
        check_table(spark, load_table(job))
