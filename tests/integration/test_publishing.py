"""DataFrames of a user's own, published as tables: streams, batches, and what must be refused. Real Kafka and Spark."""

import json
import random
import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import grpc
import pyarrow
import pyarrow.compute
import pytest
from prometheus_client import REGISTRY
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.functions import arrow_udf

from tablegate.examples.demo.kafka import Broker
from tablegate.examples.samples import create_topic
from tablegate.gateway.contract.types import RUN_HEADER, VERSION_HEADER, make_version
from tablegate.jobs import FrameTable
from tablegate.jobs.dataflow.java_classes import java_class
from tablegate.jobs.kafka.manifests import read_manifest, replace_manifest
from tablegate.jobs.kafka.topics import KafkaAdmin, changelog_settings
from tablegate.jobs.publishing import JobError, publish, publish_batch
from tablegate.v1.changelog_pb2 import Manifest
from tests.kit.gateway_processes.gateway import GatewayProcess, soon
from tests.kit.job.scores.declared import Scores, write_contract
from tests.kit.job.user_session import spark_warnings, user_session
from tests.kit.programs.kafka import NewRecord, RawRecord, consume, delete_topic, new_topic, produce

pytestmark = pytest.mark.jvm

ROWS = "user BIGINT, score DOUBLE, model STRING, scored_at TIMESTAMP"
AT = "TIMESTAMP '2026-01-01 00:00:00Z'"
SLEEP = "java_method('java.lang.Thread', 'sleep', 60000L)"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with user_session() as session:
        yield session


@pytest.fixture
def name() -> str:
    return f"scores_{uuid.uuid4().hex[:8]}"


@pytest.fixture
def contract(tmp_path: Path, name: str) -> Path:
    return write_contract(tmp_path, name)


@pytest.fixture
def table(name: str, contract: Path) -> FrameTable:
    return FrameTable(name=name, contract=str(contract), order="scored_at")


@pytest.fixture
def scores(broker: Broker, tmp_path: Path, contract: Path) -> Iterator[Scores]:
    """Give a gateway that serves the table as soon as there is one."""
    with GatewayProcess(tmp_path / "data", broker.bootstrap, contract=contract, workers=1) as gateway:
        yield Scores(gateway, contract)


def frame(spark: SparkSession, *rows: tuple[int | None, float, str]) -> DataFrame:
    """Return a batch DataFrame; a later row is newer."""
    listed = spark.createDataFrame(
        [(user, score, model, number) for number, (user, score, model) in enumerate(rows)],
        "user BIGINT, score DOUBLE, model STRING, number INT",
    )
    return listed.withColumn("scored_at", sql.expr(f"{AT} + make_dt_interval(0, 0, 0, number)"))


def test_a_batch_is_served_added_to_and_replaced(
    spark: SparkSession, broker: Broker, name: str, table: FrameTable, scores: Scores
) -> None:
    first = publish_batch(frame(spark, (1, 0.5, "a"), (2, 0.25, "a")), table, bootstrap=broker.bootstrap)
    assert (first.generation, first.rows, first.deleted, first.set_aside) == (1, 2, 0, 0)
    soon(lambda: scores.all() == {1: (0.5, "a"), 2: (0.25, "a")}, "rows served")

    # Of a key's rows the newest counts; a row without a key is set aside; a condition deletes.
    changes = frame(spark, (1, 0.1, "b"), (1, 0.9, "b"), (None, 0.0, "b"), (2, -1.0, "b"), (3, 0.3, "b"))
    deleting = FrameTable(name=name, contract=table.contract, order="scored_at", deletes="score < 0")
    second = publish_batch(changes, deleting, bootstrap=broker.bootstrap)
    assert (second.generation, second.rows, second.deleted, second.set_aside) == (1, 2, 1, 1)
    assert REGISTRY.get_sample_value("tablegate_job_dead_letters_total", {"table": name, "kind": "row"}) == 1
    soon(lambda: scores.all() == {1: (0.9, "b"), 3: (0.3, "b")}, "changes served")
    (letter,) = consume(broker.bootstrap, f"{name}-dead-letters")
    assert b'"model":"b"' in (letter.value or b"")
    assert dict(letter.headers or ())["reason"] == b'key column "user" is null'

    stop, wrong = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            score = scores.of(1)
            if score not in (0.9, 1.5):
                wrong.append(score)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        third = publish_batch(frame(spark, (1, 1.5, "c")), table, bootstrap=broker.bootstrap, replace=True)
        assert third.generation == 2
        soon(lambda: scores.all() == {1: (1.5, "c")}, "the replacement is served")
    finally:
        stop.set()
        reader.join()
    assert not wrong
    fourth = publish_batch(frame(spark, (5, 5.0, "d")), table, bootstrap=broker.bootstrap, replace=True)
    soon(lambda: scores.all() == {5: (5.0, "d")}, "the next replacement is served")
    assert list(KafkaAdmin(broker.bootstrap).changelogs(name)) == [1, 2, fourth.generation]


def test_a_small_batch_is_few_tasks(spark: SparkSession, broker: Broker, table: FrameTable) -> None:
    """Not one for each partition that Spark shuffles into: a user has 200 of these, unless he says otherwise."""
    before = spark.conf.get("spark.sql.shuffle.partitions")
    assert before is not None
    spark.conf.set("spark.sql.shuffle.partitions", "200")
    group = uuid.uuid4().hex
    spark.sparkContext.setJobGroup(group, "publish")
    try:
        assert publish_batch(frame(spark, (1, 0.5, "a"), (2, 0.25, "a")), table, bootstrap=broker.bootstrap).rows == 2
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)
    tracker = spark.sparkContext.statusTracker()
    jobs = [job for each in tracker.getJobIdsForGroup(group) if (job := tracker.getJobInfo(each)) is not None]
    stages = [tracker.getStageInfo(stage) for stage in {stage for job in jobs for stage in job.stageIds}]
    tasks = [stage.numTasks for stage in stages if stage is not None]
    assert tasks
    assert sum(tasks) < 40


class PacedReads:
    """Reads scores at a pace while the block runs, and notes what failed or went back to an earlier night."""

    def __init__(self, scores: Scores, *, users: int, reads_per_s: int, threads: int = 8) -> None:
        self._scores = scores
        self._users = users
        self._every_s = threads / reads_per_s
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(seed,)) for seed in range(threads)]
        self.wrong: list[str] = []
        self.counts = [0] * threads

    def _run(self, seed: int) -> None:
        chosen, newest = random.Random(seed), 0.0
        next_s = time.monotonic()
        while not self._stop.is_set():
            user = chosen.randrange(self._users)
            try:
                score = self._scores.of(user)
            except grpc.RpcError as error:
                self.wrong.append(f"user {user}: {error}")
            else:
                night = (score or 0.0) - user
                if score is None or night < newest:
                    self.wrong.append(f"user {user}: night {night} after {newest}")
                newest = max(newest, night)
            self.counts[seed] += 1
            next_s = max(next_s + self._every_s, time.monotonic() - 1.0)
            self._stop.wait(max(next_s - time.monotonic(), 0.0))

    def __enter__(self) -> "PacedReads":
        self._began_s = time.monotonic()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self.reads_per_s = sum(self.counts) / (time.monotonic() - self._began_s)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_rows_of_a_database_are_published(
    spark: SparkSession, broker: Broker, table: FrameTable, scores: Scores
) -> None:
    # Derby comes with Spark, and would write a log into the working directory.
    spark._jvm.java.lang.System.setProperty("derby.stream.error.file", "/dev/null")  # type: ignore[union-attr]
    options = {"url": f"jdbc:derby:memory:{table.name};create=true", "dbtable": "scores"}
    given = frame(spark, *((user, user / 2, "a") for user in range(100)))
    given.drop("number").write.format("jdbc").options(**options, createTableColumnTypes="model VARCHAR(8)").save()
    stored = spark.read.format("jdbc").options(**options)
    # Read side by side, each part by its own query.
    parts = stored.options(partitionColumn="user", lowerBound="0", upperBound="100", numPartitions="4").load()
    columns = [name.lower() for name in parts.columns]
    published = publish_batch(parts.toDF(*columns), table, bootstrap=broker.bootstrap)
    assert (published.rows, published.set_aside) == (100, 0)
    soon(lambda: len(scores.all()) == 100 and scores.all()[99] == (49.5, "a"), "the database's rows")


def test_a_checkpoint_that_has_lost_batches_is_refused(
    spark: SparkSession, broker: Broker, table: FrameTable, tmp_path: Path
) -> None:
    """Spark would begin anew, and rows would get the versions that other rows of their keys have."""
    rows, checkpoint = str(tmp_path / "rows"), tmp_path / "checkpoint"
    frame(spark, (0, 0.5, "a")).write.parquet(rows)
    stream = spark.readStream.schema(f"{ROWS}, number INT").parquet(rows)

    def publish_next(user: int) -> None:
        frame(spark, (user, 0.5, "a")).write.mode("append").parquet(rows)
        query = publish(stream, table, bootstrap=broker.bootstrap, checkpoint=checkpoint, available_now=True)
        assert query.awaitTermination(60)

    publish_next(1)
    publish_next(2)
    shutil.rmtree(checkpoint / "table")
    with pytest.raises(JobError, match=r"older than what was published.* has 0 batches of 2; .*generation=2"):
        publish_next(2)


def test_a_stream_whose_changelog_is_made_again_ends(
    spark: SparkSession, broker: Broker, name: str, table: FrameTable, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    query = publish(ticking(spark), table, bootstrap=broker.bootstrap, checkpoint=checkpoint, partitions=1)
    try:
        soon((checkpoint / "table" / "commits" / "0").exists, "a batch", 60)
        delete_topic(broker.bootstrap, f"{name}-g1-changelog")
        soon(lambda: KafkaAdmin(broker.bootstrap).find(f"{name}-g1-changelog") is None, "it is gone")
        create_topic(broker.bootstrap, f"{name}-g1-changelog", 1, changelog_settings(None))
        with pytest.raises(StreamingQueryException, match="was deleted and made again while it was written"):
            query.awaitTermination(60)
    finally:
        query.stop()
    with pytest.raises(JobError, match=r"was deleted and made again since it was published; .*generation=2"):
        publish(ticking(spark), table, bootstrap=broker.bootstrap, checkpoint=checkpoint)


@pytest.mark.parametrize(("users", "nights"), [(10_000, 2), pytest.param(100_000, 5, marks=pytest.mark.long)])
def test_a_nightly_replacement_from_parquet_fails_no_read(
    spark: SparkSession, broker: Broker, table: FrameTable, scores: Scores, tmp_path: Path, users: int, nights: int
) -> None:

    def publish_night(night: int) -> None:
        path = str(tmp_path / f"night-{night}")
        row = f"id AS user, id + {night}D AS score, 'night {night}' AS model, {AT} AS scored_at"
        spark.range(users).selectExpr(*row.split(", ")).write.parquet(path)
        done = publish_batch(spark.read.parquet(path), table, bootstrap=broker.bootstrap, replace=True)
        assert done.rows == users
        soon(lambda: scores.of(0) == night, "the night is served", 120.0)

    publish_night(1)
    soon(lambda: len(scores.all()) == users, "all rows of the first night are served", 120.0)
    with PacedReads(scores, users=users, reads_per_s=500) as reads:
        for night in range(2, nights + 1):
            publish_night(night)
    print(f"{nights - 1} replacements of {users} rows under {reads.reads_per_s:.0f} reads/s, {sum(reads.counts)} reads")
    assert not reads.wrong, reads.wrong[:3]


def test_what_cannot_be_published_is_refused_in_words(
    spark: SparkSession, broker: Broker, name: str, table: FrameTable, tmp_path: Path
) -> None:
    wrong = spark.sql("SELECT 'x' AS user, 1 AS score, TIMESTAMP '2026-01-01' AS scored_at")
    with pytest.raises(JobError) as refused:
        publish_batch(wrong, table, bootstrap=broker.bootstrap)
    text = str(refused.value)
    assert 'column "user" is string, the contract wants bigint: write CAST(user AS BIGINT)' in text
    assert 'column "score" is int, the contract wants double: write CAST(score AS DOUBLE)' in text
    assert 'column "model" is missing' in text
    assert str(Path(__file__)) in text

    unordered = FrameTable(name=name, contract=table.contract)
    with pytest.raises(JobError, match="several rows of one key; give order="):
        publish_batch(frame(spark, (1, 1.0, "a"), (1, 2.0, "a")), unordered, bootstrap=broker.bootstrap)
    deletes = FrameTable(name=name, contract=table.contract, deletes="score")
    with pytest.raises(JobError, match="deletes= is double; write a condition"):
        publish_batch(frame(spark, (1, 1.0, "a")), deletes, bootstrap=broker.bootstrap)
    descending = FrameTable(name=name, contract=table.contract, order="score DESC")
    with pytest.raises(JobError, match=r'order="score DESC" is more than an expression'):
        publish_batch(frame(spark, (1, 1.0, "a")), descending, bootstrap=broker.bootstrap)
    with pytest.raises(JobError, match="publish it with publish_batch"):
        publish(frame(spark, (1, 1.0, "a")), table, bootstrap=broker.bootstrap, checkpoint=str(tmp_path / "c"))
    with pytest.raises(JobError, match="checkpoint=''; give a directory or URL that Spark can write"):
        publish(ticking(spark), table, bootstrap=broker.bootstrap, checkpoint="")
    with pytest.raises(JobError, match="partitions=0; give a number from 1 on"):
        publish_batch(frame(spark, (1, 1.0, "a")), table, bootstrap=broker.bootstrap, partitions=0)


def test_what_is_too_large_for_kafka_is_set_aside(
    spark: SparkSession, broker: Broker, name: str, table: FrameTable
) -> None:
    large = "x" * 2_000_000
    rows = frame(spark, (1, 0.5, large), (None, 0.5, large), (2, 0.5, "a"))
    # The name of a column that nobody wants is nobody's concern.
    rows = rows.select(sql.lit(0).alias("odd`name"), "*")
    done = publish_batch(rows, table, bootstrap=broker.bootstrap)
    assert (done.rows, done.set_aside) == (1, 2)
    letters = consume(broker.bootstrap, f"{name}-dead-letters")
    assert {len(letter.value or b"") for letter in letters} == {768 * 1024}
    assert {int(head(letter)["value_bytes"]) > len(large) for letter in letters} == {True}
    reasons = sorted(head(letter)["reason"] for letter in letters)
    assert reasons[0] == b'key column "user" is null'
    assert reasons[1].startswith(b"row has 20000")


def test_what_a_frozen_run_writes_behind_another_does_not_count(
    spark: SparkSession, broker: Broker, name: str, table: FrameTable, scores: Scores, tmp_path: Path
) -> None:
    changelog = f"{name}-g1-changelog"
    publish_batch(frame(spark, (1, 0.5, "a"), (2, 0.5, "a")), table, bootstrap=broker.bootstrap)
    rows = [
        record for record in consume(broker.bootstrap, changelog) if record.value and VERSION_HEADER in head(record)
    ]
    publish_batch(frame(spark, (1, 0.9, "b")), table, bootstrap=broker.bootstrap)
    # It wakes: the rows that it still had to write come behind those of the other.
    newer = make_version(1, 9)
    late = [
        NewRecord(one.key, one.value, [(VERSION_HEADER, newer), (RUN_HEADER, head(one)[RUN_HEADER])], one.partition)
        for one in rows
    ]
    produce(broker.bootstrap, changelog, late)
    publish_batch(frame(spark, (2, 0.7, "c"), (3, 0.3, "c")), table, bootstrap=broker.bootstrap)
    soon(lambda: scores.all() == {1: (0.9, "b"), 2: (0.7, "c"), 3: (0.3, "c")}, "rows of the other runs alone")


def test_a_replacement_takes_no_number_that_another_run_had(
    spark: SparkSession, broker: Broker, name: str, table: FrameTable
) -> None:
    publish_batch(frame(spark, (1, 0.5, "a")), table, bootstrap=broker.bootstrap)
    # Of one that is frozen: its tasks go on writing to the topic of this name when it wakes.
    create_topic(broker.bootstrap, f"{name}-g2-changelog", 1, {})
    published = publish_batch(frame(spark, (2, 0.5, "b")), table, bootstrap=broker.bootstrap, replace=True)
    assert published.generation == 3
    assert KafkaAdmin(broker.bootstrap).changelogs(name).keys() == {1, 3}


def test_a_frozen_run_publishes_nothing_over_another(
    spark: SparkSession, broker: Broker, name: str, table: FrameTable
) -> None:
    publish_batch(frame(spark, (1, 0.5, "a")), table, bootstrap=broker.bootstrap)
    old = read_manifest(broker.bootstrap, name)
    assert old is not None
    # Frozen behind its last check: all that it has to do yet is to publish.
    frozen = Manifest.FromString(old.SerializeToString())
    frozen.generation = 2
    publish_batch(frame(spark, (2, 0.5, "b")), table, bootstrap=broker.bootstrap, replace=True)
    publish_batch(frame(spark, (3, 0.5, "c")), table, bootstrap=broker.bootstrap, replace=True)
    newest = read_manifest(broker.bootstrap, name)
    with pytest.raises(JobError, match=f'table "{name}" has been published by another run while this one stood still'):
        replace_manifest(broker.bootstrap, frozen, old=old)
    (*_, last) = [record for record in consume(broker.bootstrap, "tables") if record.key == name.encode()]
    assert Manifest.FromString(last.value or b"") == newest == read_manifest(broker.bootstrap, name)
    # One that has died behind its write is passed over.
    produce(broker.bootstrap, "tables", [NewRecord(name.encode(), frozen.SerializeToString())])
    assert read_manifest(broker.bootstrap, name) == newest
    # Of two that add rows, the second would write under the number of the first.
    added = publish_batch(frame(spark, (4, 0.5, "d")), table, bootstrap=broker.bootstrap)
    assert newest is not None
    late = Manifest.FromString(newest.SerializeToString())
    late.run_sequence += 1
    with pytest.raises(JobError, match="so what this one has is not published; begin it again"):
        replace_manifest(broker.bootstrap, late, old=newest)
    assert added.generation == newest.generation


def head(record: RawRecord) -> dict[str, bytes]:
    return dict(record.headers)


def test_a_stream_that_fails_says_why_in_a_sentence(
    spark: SparkSession,
    broker: Broker,
    name: str,
    contract: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    frame(spark, (1, 0.5, "a"), (1, 0.25, "a")).write.parquet(str(tmp_path / "rows"))
    stream = spark.readStream.schema(f"{ROWS}, number INT").parquet(str(tmp_path / "rows"))
    unordered = FrameTable(name=name, contract=str(contract))
    query = publish(stream, unordered, bootstrap=broker.bootstrap, checkpoint=str(tmp_path / "checkpoint"))
    with pytest.raises(StreamingQueryException):
        query.awaitTermination(60)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    (reason,) = (line["reason"] for line in lines if line["event"] == "failed")
    assert reason.endswith("a batch has several rows of one key; give order=, which says which counts")

    # With an order the same batch goes through.
    ordered = FrameTable(name=name, contract=str(contract), order="number")
    again = publish(
        stream, ordered, bootstrap=broker.bootstrap, checkpoint=str(tmp_path / "checkpoint"), available_now=True
    )
    assert again.awaitTermination(60)


def ticking(spark: SparkSession) -> DataFrame:
    row = "value AS user, 0.5D AS score, 'm' AS model, timestamp AS scored_at"
    return spark.readStream.format("rate").load().selectExpr(*row.split(", "))


def test_a_stream_that_is_stopped_in_a_batch_has_not_failed(
    spark: SparkSession, broker: Broker, table: FrameTable, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = ticking(spark).withColumn("score", sql.expr(f"IF({SLEEP} IS NULL, score, 0)"))
    query = publish(slow, table, bootstrap=broker.bootstrap, checkpoint=str(tmp_path / "checkpoint"))
    tasks = spark.sparkContext.statusTracker()
    soon(lambda: bool(tasks.getActiveStageIds()), "a batch is computed", 60)
    query.stop()
    assert query.awaitTermination(60)
    assert query.exception() is None
    assert '"failed"' not in capsys.readouterr().out


def test_a_stream_whose_job_is_cancelled_by_its_stop_has_not_failed(
    spark: SparkSession, broker: Broker, table: FrameTable, tmp_path: Path
) -> None:
    slow = ticking(spark).withColumn("score", sql.expr(f"IF({SLEEP} IS NULL, score, 0)"))
    query = publish(slow, table, bootstrap=broker.bootstrap, checkpoint=str(tmp_path / "checkpoint"))
    tasks = spark.sparkContext.statusTracker()
    soon(lambda: bool(tasks.getActiveStageIds()), "a batch is computed", 60)
    # What Spark does first where it stops a query. Then it interrupts the batch, which may have ended by then.
    ended = java_class(spark.sparkContext, "org.apache.spark.sql.execution.streaming.runtime.TERMINATED$")
    query._jsq.streamingQuery().state().set(getattr(ended, "MODULE$"))
    spark.sparkContext._jsc.sc().cancelJobGroup(query.runId, f"Query [runId = {query.runId}] was stopped")
    assert query.awaitTermination(60)
    assert query.exception() is None


def test_a_generation_whose_stream_was_stopped_replaces_nothing(
    spark: SparkSession, broker: Broker, name: str, table: FrameTable, tmp_path: Path
) -> None:
    publish_batch(frame(spark, (1, 0.5, "a"), (2, 0.5, "a")), table, bootstrap=broker.bootstrap)
    rows = str(tmp_path / "rows")
    for user in (1, 2):
        frame(spark, (user, 1.5, "b")).coalesce(1).write.mode("append").parquet(rows)
    stream = spark.readStream.schema(f"{ROWS}, number INT").option("maxFilesPerTrigger", 1).parquet(rows)
    slow = stream.withColumn("score", sql.expr(f"CASE user WHEN 2 THEN IF({SLEEP} IS NULL, score, 0) ELSE score END"))
    anew = FrameTable(name=name, contract=table.contract, order="scored_at", generation=2)
    checkpoint = str(tmp_path / "checkpoint")
    query = publish(slow, anew, bootstrap=broker.bootstrap, checkpoint=checkpoint, available_now=True)
    soon(lambda: query.lastProgress is not None, "the first batch is done", 60)
    query.stop()
    assert query.awaitTermination(60)
    manifest = read_manifest(broker.bootstrap, name)
    assert manifest is not None
    assert manifest.generation == 1


def test_nobody_is_warned_of_an_interval_that_is_ours(
    spark: SparkSession, broker: Broker, table: FrameTable, tmp_path: Path
) -> None:
    before = spark.conf.get("spark.sql.streaming.pollingDelay", None)
    with spark_warnings(spark) as warnings:
        query = publish(
            ticking(spark), table, bootstrap=broker.bootstrap, checkpoint=str(tmp_path / "checkpoint"), partitions=1
        )
        soon((tmp_path / "checkpoint" / "table" / "commits" / "2").exists, "batches", 60)
        query.stop()
    assert not [line for line in warnings() if "falling behind" in line]
    assert spark.conf.get("spark.sql.streaming.pollingDelay", None) == before


def test_settings_of_a_session_are_its_own_while_rows_are_published(
    spark: SparkSession, broker: Broker, table: FrameTable
) -> None:
    """Another thread may use the session meanwhile, or publish by it."""
    names = ("spark.sql.ansi.enabled", "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning")
    given = {name: spark.conf.get(name) for name in names}
    stop, others = threading.Event(), []

    def compare() -> None:
        while not stop.is_set():
            others.extend(name for name in names if spark.conf.get(name) != given[name])

    comparing = threading.Thread(target=compare)
    comparing.start()
    try:
        assert publish_batch(frame(spark, (1, 0.5, "a")), table, bootstrap=broker.bootstrap).rows == 1
    finally:
        stop.set()
        comparing.join()
    assert not others, set(others)


def test_a_stream_with_a_join_and_a_model_goes_on_after_a_stop(
    spark: SparkSession, broker: Broker, name: str, table: FrameTable, scores: Scores, tmp_path: Path
) -> None:
    topic = new_topic(broker.bootstrap, partitions=2, prefix="visits")
    models = spark.createDataFrame([(0, "even"), (1, "odd")], "rest INT, model STRING")

    @arrow_udf("double")
    def scored(user: pyarrow.Array) -> pyarrow.Array:
        return pyarrow.compute.multiply(user, 0.5)

    def stream(factor: str = "1") -> DataFrame:
        visits = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", broker.bootstrap)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .load()
            .selectExpr("split(CAST(value AS STRING), ' ') AS said", "timestamp AS scored_at")
            .selectExpr("CAST(said[0] AS BIGINT) AS user", "CAST(said[1] AS DOUBLE) AS weight", "scored_at")
        )
        joined = visits.join(models, sql.expr("user % 2 = rest"))
        return joined.withColumn("score", scored("user") * sql.expr(f"weight * {factor}"))

    produce(broker.bootstrap, topic, [NewRecord(None, b"%d 1" % user) for user in range(4)])
    checkpoint = str(tmp_path / "checkpoint")
    history = frame(spark, (7, 7.0, "old"), (1, 7.0, "old"))
    query = publish(stream(), table, bootstrap=broker.bootstrap, checkpoint=checkpoint, history=history)
    expected = {0: (0.0, "even"), 1: (0.5, "odd"), 2: (1.0, "even"), 3: (1.5, "odd"), 7: (7.0, "old")}
    soon(lambda: scores.all() == expected, "history, then the stream", 60)

    with pytest.raises(JobError, match="is kept by another job"):
        publish_batch(frame(spark, (1, 1.0, "a")), table, bootstrap=broker.bootstrap)
    query.stop()
    assert query.awaitTermination(60), "it has left the group"
    with pytest.raises(JobError, match="is kept by a stream"):
        publish_batch(frame(spark, (1, 1.0, "a")), table, bootstrap=broker.bootstrap)
    lost = str(tmp_path / "another")
    with pytest.raises(JobError, match=r"its checkpoint is not at .*generation=2"):
        publish(stream(), table, bootstrap=broker.bootstrap, checkpoint=lost)

    produce(broker.bootstrap, topic, [NewRecord(None, b"9 1"), NewRecord(None, b"1 3")])
    publish(stream(), table, bootstrap=broker.bootstrap, checkpoint=checkpoint, available_now=True).awaitTermination(60)
    soon(lambda: scores.all() == expected | {9: (4.5, "odd"), 1: (1.5, "odd")}, "it goes on from its checkpoint")

    # With other logic it is built beside the one that is served.
    anew = FrameTable(name=name, contract=table.contract, order="scored_at", generation=2)
    query = publish(stream("10"), anew, bootstrap=broker.bootstrap, checkpoint=lost)
    users = (0, 1, 2, 3, 9)
    wanted = {user: (user * 5.0, "odd" if user % 2 else "even") for user in users} | {1: (15.0, "odd")}
    soon(lambda: scores.all() == wanted, "the new generation is served", 60)
    query.stop()
