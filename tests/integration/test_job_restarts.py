"""What a job does after a crash, and what it refuses when checkpoint, sources or declaration are not what they were."""

import json
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]
from pyspark.sql import SparkSession

from tablegate.examples.demo.kafka import Broker, free_port
from tablegate.examples.samples import create_topic
from tablegate.jobs.errors import JobError
from tablegate.jobs.kafka.manifests import read_manifest
from tablegate.jobs.kafka.topics import KafkaAdmin, Topic
from tablegate.jobs.planning.declarations import load_table
from tablegate.jobs.planning.options import Options
from tablegate.jobs.planning.plan import make_plan
from tablegate.jobs.running.handover import HandoverPhase
from tablegate.jobs.running.operations import newest_marker
from tablegate.jobs.running.rebuild import can_resume
from tablegate.jobs.running.running_table import RESTARTS_MAX, RunningTable
from tests.kit.job.counting_job import COLUMNS, JobInProcess, Written, orders, rows, write_job, written
from tests.kit.job.process import WAIT_S, JobProcess, wait_until
from tests.kit.programs.kafka import NewRecord, Tail, consume, delete_topic, drop_records, new_topic, produce

pytestmark = pytest.mark.jvm

CUSTOMERS = ("ann", "bob", "cid")
EACH = 200  # records of each customer in each partition


def changelog(bootstrap: str, table: str, generation: int) -> Topic:
    found = KafkaAdmin(bootstrap).find(f"{table}-g{generation}-changelog")
    assert found is not None
    return found


def check_honest(rows: list[Written]) -> None:
    """Fail where one version has two contents, or a newer version of a row has fewer records of a partition."""
    by_version: dict[str, dict[int, tuple[int, float]]] = defaultdict(dict)
    for row in rows:
        known = by_version[row.customer].setdefault(row.sequence, (row.first, row.second))
        assert known == (row.first, row.second), f"{row.customer} {row.sequence} has two contents"
    for customer, contents in by_version.items():
        before = (0, 0.0)
        for sequence, now in sorted(contents.items()):
            assert now >= before, f"{customer} {sequence} lost records: {before}, then {now}"
            assert now[1] >= before[1], f"{customer} {sequence} lost records: {before}, then {now}"
            before = now


def test_realtime_mode_forgets_nothing_when_killed(broker: Broker, tmp_path: Path) -> None:
    topic = new_topic(broker.bootstrap, 2)
    job = write_job(tmp_path, "forgets_nothing", topic, more="mode=Mode.REALTIME, trigger_s=600")
    arguments = ["--table", job, "--bootstrap", broker.bootstrap, "--checkpoints", str(tmp_path / "checkpoints")]

    def counted() -> set[tuple[int, float]]:
        newest: dict[str, Written] = {}
        for row in written(broker.bootstrap, job):
            newest[row.customer] = max(newest.get(row.customer, row), row, key=lambda one: one.sequence)
        return {(row.first, row.second) for row in newest.values()}

    with JobProcess(tmp_path / "logs", *arguments) as running:
        running.wait_for("running")
        # One partition after the other: read again together, they mix.
        for partition in (0, 1):
            for customer in CUSTOMERS:
                produce(broker.bootstrap, topic, orders(customer, EACH, partition=partition))
            wanted = (EACH, float(EACH * partition))
            wait_until("rows of the partition", lambda wanted=wanted: counted() == {wanted}, running)  # type: ignore[misc]
        running.kill()  # nothing is committed yet
    produce(broker.bootstrap, topic, orders("ann", 1))
    with JobProcess(tmp_path / "logs", *arguments) as running:
        running.wait_for("running")
        produce(broker.bootstrap, topic, [record for customer in CUSTOMERS for record in orders(customer, 2)])
        last = {(EACH + 3, float(EACH)), (EACH + 2, float(EACH))}
        wait_until("rows of everything", lambda: counted() == last, running)
        assert running.stop() == 0
    check_honest(written(broker.bootstrap, job))


def test_frozen_job_that_wakes_is_not_read(broker: Broker, tmp_path: Path) -> None:
    topic = new_topic(broker.bootstrap, 2)
    job = write_job(tmp_path, "woken", topic, more="mode=Mode.REALTIME, trigger_s=600")
    arguments = ["--table", job, "--bootstrap", broker.bootstrap, "--checkpoints", str(tmp_path / "checkpoints")]

    def rows() -> list[Written]:
        return written(broker.bootstrap, job)

    def order(count: int) -> None:
        for partition in (0, 1):
            produce(
                broker.bootstrap, topic, [one for name in CUSTOMERS for one in orders(name, count, partition=partition)]
            )

    def is_complete(count: int, of_run: int) -> bool:
        last = {
            row.customer for row in rows() if row.run == of_run and (row.first, row.second) == (count, float(count))
        }
        return last == set(CUSTOMERS)

    with JobProcess(tmp_path / "frozen", *arguments) as frozen:
        frozen.wait_for("running")
        order(20)
        wait_until("rows of the first job", lambda: bool(rows()) and is_complete(20, rows()[-1].run), frozen)
        first_run = rows()[-1].run
        frozen.freeze()
        with JobProcess(tmp_path / "second", *arguments) as second:
            second.wait_for("running")
            second_run = rows()[-1].run
            assert second_run > first_run > 0
            frozen.thaw_java()
            order(20)
            # The two meet in the checkpoint, too: then the second one starts its queries again, as another run.
            wait_until("rows of the second job", lambda: is_complete(40, max(row.run for row in rows())), second)
            wait_until("rows of the one that woke", lambda: is_complete(40, first_run), second)
            assert second.stop() == 0
    newest, accepted, dropped = 0, [], []
    for row in rows():
        newest = max(newest, row.run)
        (accepted if row.run == newest else dropped).append(row)
    check_honest(accepted)
    assert dropped, "the first job has written nothing after it woke"


def test_a_run_for_a_scheduler_works_off_what_there_is(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: Options
) -> None:
    topic = new_topic(broker.bootstrap)
    job = write_job(tmp_path, "scheduled", topic, more="mode=Mode.REALTIME")

    def run(generation: int = 1) -> Written:
        with JobInProcess(spark, job, replace(options, once=True), generation=generation) as running:

            def is_done() -> bool:
                running.table.poll()
                return running.table.is_done

            wait_until("end of the run", is_done)
        return written(broker.bootstrap, job, generation)[-1]

    produce(broker.bootstrap, topic, orders("ann", 5))
    arguments = ["--table", job, "--bootstrap", broker.bootstrap, "--checkpoints", options.checkpoints, "--once"]
    with JobProcess(tmp_path / "logs", *arguments) as process:
        assert process.process.wait(WAIT_S) == 0, process.errors()
        assert process.events("worked_off")
    assert written(broker.bootstrap, job)[-1] == Written("ann", 5, 5, 0.0, run=0)
    assert run() == Written("ann", 5, 5, 0.0, run=0)
    produce(broker.bootstrap, topic, [*orders("ann", 3), NewRecord(b"ann", b"{")])
    assert run() == Written("ann", 8, 8, 0.0, run=0)
    assert len(consume(broker.bootstrap, "scheduled-dead-letters")) == 1
    marker = newest_marker(broker.bootstrap, KafkaAdmin(broker.bootstrap), changelog(broker.bootstrap, "scheduled", 1))
    assert marker is not None
    assert marker.sources[0].next_offsets == {0: 9}

    assert run(generation=2) == Written("ann", 8, 8, 0.0, run=0)
    manifest = read_manifest(broker.bootstrap, "scheduled")
    assert manifest is not None
    assert manifest.generation == 2
    marker = newest_marker(broker.bootstrap, KafkaAdmin(broker.bootstrap), changelog(broker.bootstrap, "scheduled", 1))
    assert marker is not None
    assert marker.final


COUNTS = """from tablegate.jobs import Processor


class Counts(Processor):
    state = emits = "orders BIGINT"
    every_s = 1.0

    def on_record(self, key, record, state):
        state.orders += 1

    def on_timer(self, key, state, now):
        yield {"orders": state.orders}


"""


def write_processor_job(directory: Path, name: str, topic: str) -> str:
    """Declare a table of `Counts`."""
    columns = {"order_count": "orders", "amount": "CAST(orders AS DOUBLE)"}
    job = write_job(directory, name, topic, columns=columns, more="mode=Mode.MICROBATCH, processor=Counts()")
    Path(job).write_text(COUNTS + Path(job).read_text())
    return job


def test_a_run_for_a_scheduler_ends_when_timers_have_run(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: Options
) -> None:
    topic = new_topic(broker.bootstrap)
    job = write_processor_job(tmp_path, "timed", topic)
    for new, count in ((5, 5), (3, 8)):
        produce(broker.bootstrap, topic, orders("ann", new))
        with JobInProcess(spark, job, replace(options, once=True)) as running:

            def is_done(table: RunningTable = running.table) -> bool:
                table.poll()
                return table.is_done

            wait_until("end of the run", is_done)
        newest = written(broker.bootstrap, job)[-1]
        assert (newest.first, newest.second) == (count, float(count))


LATE = RESTARTS_MAX + 1  # starts of a Python worker
SLOW_PYTHON = f"""#!/bin/sh
echo >>"$0.starts"
[ "$(wc -l <"$0.starts")" -gt {LATE} ] || sleep 11
exec {sys.executable} "$@"
"""


def test_python_that_is_late_many_times_is_waited_for(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(broker.bootstrap)
    job = write_processor_job(tmp_path, "late_python", topic)
    produce(broker.bootstrap, topic, orders("ann", 5))
    python = tmp_path / "python"
    python.write_text(SLOW_PYTHON)
    python.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    with JobInProcess(spark, job, options) as running:
        running.run_until_read(topic, 5)
    assert len(Path(f"{python}.starts").read_text().splitlines()) > LATE


def test_checkpoint_that_another_job_has_written_to(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: Options
) -> None:
    topic, name = new_topic(broker.bootstrap), "conflict"
    job = write_job(tmp_path, name, topic)
    produce(broker.bootstrap, topic, orders("ann", 5))
    planned = tmp_path / "checkpoints" / name / "g1" / "table" / "offsets"
    with JobInProcess(spark, job, options) as running:
        running.run_until_read(topic, 5)
        wait_until("first batch", (planned.parent / "commits/0").exists)
        number = max(int(log.name) for log in planned.glob("[0-9]*")) + 1
        shutil.copyfile(planned / str(number - 1), planned / str(number))  # as one that was frozen would
        produce(broker.bootstrap, topic, orders("ann", 3))

        def is_gone_on() -> bool:
            running.table.poll()
            return (planned.parent / f"commits/{number + 1}").exists()

        wait_until("next batch", is_gone_on)
        running.run_until_read(topic, 8)
    assert written(broker.bootstrap, job)[-1] == Written("ann", 8, 8, 0.0, run=0)


@pytest.mark.parametrize(
    ("more", "lost"),
    [
        ("mode=Mode.MICROBATCH", ""),
        ("mode=Mode.MICROBATCH, atomic=True", "g1/table"),
        pytest.param("mode=Mode.MICROBATCH", "g1/table", marks=pytest.mark.long),
        pytest.param("mode=Mode.MICROBATCH, atomic=True", "", marks=pytest.mark.long),
    ],
)
def test_lost_checkpoint_is_refused(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: Options, more: str, lost: str
) -> None:
    topic = new_topic(broker.bootstrap)
    name = f"lost{'_atomic' if 'atomic' in more else ''}{'_part' if lost else ''}"
    job = write_job(tmp_path, name, topic, more=more)
    produce(broker.bootstrap, topic, orders("ann", 60))
    with JobInProcess(spark, job, options) as running:
        running.run_until_read(topic, 60)
    before = written(broker.bootstrap, job)
    shutil.rmtree(tmp_path / "checkpoints" / name / lost)
    with pytest.raises(JobError) as caught:
        JobInProcess(spark, job, options)
    sentence = (
        f'source topic "{topic}" partition 0 was read up to 60, and it is at 0; give the newest checkpoint'
        if lost
        else f'table "{name}" generation 1 was built before, and its checkpoint is not at "{options.checkpoints}/{name}'
    )
    assert sentence in str(caught.value)
    assert str(caught.value).endswith(f"build the next generation: tablegate job rebuild {job}:{name}")
    assert written(broker.bootstrap, job) == before


def test_source_made_again_under_a_running_job(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: Options
) -> None:
    topic = new_topic(broker.bootstrap)
    job = write_job(tmp_path, "made_again", topic)
    produce(broker.bootstrap, topic, orders("ann", 5))
    sentence = f'source topic "{topic}" of table "made_again" was deleted and created again while the job read it'
    with JobInProcess(spark, job, options) as running:
        running.run_until_read(topic, 5)
        delete_topic(broker.bootstrap, topic)
        create_topic(broker.bootstrap, topic, 1, {})
        produce(broker.bootstrap, topic, orders("ann", 20))
        with pytest.raises(JobError, match=sentence):
            running.run_until_read(topic, 1_000)
    with pytest.raises(JobError, match="as it was before it was deleted and created again; build the table anew"):
        JobInProcess(spark, job, options)


def test_source_deleted_under_a_running_job(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: Options
) -> None:
    topic = new_topic(broker.bootstrap)
    job = write_job(tmp_path, "deleted", topic)
    produce(broker.bootstrap, topic, orders("ann", 5))
    sentence = f'table "deleted" has stopped, as topic "{topic}" was deleted while the job ran; start the job again'
    with JobInProcess(spark, job, options) as running:
        running.run_until_read(topic, 5)
        delete_topic(broker.bootstrap, topic)
        with pytest.raises(JobError, match=sentence):
            running.run_until_read(topic, 1_000)
    with pytest.raises(JobError, match=f'source topic "{topic}" does not exist'):
        JobInProcess(spark, job, options)


def test_records_dropped_before_they_were_read(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: Options
) -> None:
    topic = new_topic(broker.bootstrap)
    job = write_job(tmp_path, "dropped", topic)
    produce(broker.bootstrap, topic, orders("ann", 5))
    with JobInProcess(spark, job, options) as running:
        running.run_until_read(topic, 5)
    produce(broker.bootstrap, topic, orders("ann", 20))
    drop_records(broker.bootstrap, topic, 15)
    with pytest.raises(JobError) as caught:
        JobInProcess(spark, job, options)
    assert (
        f'source topic "{topic}" partition 0 has dropped 10 records that table "dropped" has not read, offsets 5 to'
        in str(caught.value)
    )
    assert str(caught.value).endswith(f"tablegate job rebuild {job}:dropped")


def test_records_dropped_while_the_job_runs(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: Options
) -> None:
    topic = new_topic(broker.bootstrap)
    emit_s = 20
    job = write_job(tmp_path, "overtaken", topic, more=f"mode=Mode.MICROBATCH, emit_interval_s={emit_s}")
    produce(broker.bootstrap, topic, orders("ann", 5))
    with JobInProcess(spark, job, options) as running:
        running.run_until_read(topic, 5)
        # Spark begins a batch at each such multiple of seconds since 1970: none may come between the two below.
        left_s = emit_s - time.time() % emit_s
        time.sleep(left_s + 1 if left_s < emit_s / 2 else 0)
        produce(broker.bootstrap, topic, orders("ann", 20))
        drop_records(broker.bootstrap, topic, 25)
        with pytest.raises(JobError) as caught:
            running.run_until_read(topic, 1_000)
    sentence = f'source topic "{topic}" partition 0 has dropped 20 records that table "overtaken" has not read'
    assert sentence in str(caught.value)
    assert str(caught.value).endswith(f"tablegate job rebuild {job}:overtaken")


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker that a test may kill."""
    with Broker(tmp_path / "data", free_port(), log_file=tmp_path / "broker.log") as broker:
        yield broker


def run_until_noted(running: JobInProcess, topic: str, next_offset: int) -> int:
    """Keep a table until a place of its source is noted; return the leader epoch there."""
    file = Path(running.table.plan.checkpoint, "source-places.json")

    def place() -> tuple[int, int]:
        running.table.poll()
        next_offset, leader_epoch = json.loads(file.read_text())[topic]["0"] if file.exists() else (0, 0)
        return next_offset, leader_epoch

    wait_until("the place is noted", lambda: place()[0] == next_offset)
    return place()[1]


@pytest.mark.parametrize(
    ("grown", "is_running"),
    [
        (1, True),
        (8, False),
        pytest.param(1, False, marks=pytest.mark.long),
        pytest.param(8, True, marks=pytest.mark.long),
    ],
)
def test_source_that_lost_its_end(
    spark: SparkSession, own_broker: Broker, tmp_path: Path, is_running: bool, grown: int
) -> None:
    name = f"ended_{grown}_{is_running}".lower()
    options = Options(bootstrap=own_broker.bootstrap, checkpoints=str(tmp_path / "checkpoints"))
    topic = new_topic(own_broker.bootstrap)
    job = write_job(tmp_path, name, topic)
    where = f'source topic "{topic}" partition 0'
    sentence = (
        f'{where} ends at offset 6, and table "{name}" has read it up to 10: it lost its last records'
        if grown == 1
        else f'{where} has lost its last records before offset 10, up to which table "{name}" has read it, as by an '
        "unclean leader election: there are others now, and it ends at 13"
    )

    def lose(tail: Tail) -> None:
        tail.lose()
        produce(own_broker.bootstrap, topic, orders("cid", grown))

    def check_refused(error: JobError) -> None:
        assert sentence in str(error)
        assert str(error).endswith(f"build the next generation: tablegate job rebuild {job}:{name}")

    produce(own_broker.bootstrap, topic, orders("ann", 5))
    tail = Tail(own_broker, topic)
    produce(own_broker.bootstrap, topic, orders("bob", 5))
    with JobInProcess(spark, job, options) as running:
        running.run_until_read(topic, 10)
        run_until_noted(running, topic, 10)
        if is_running:
            lose(tail)
            with pytest.raises(JobError) as caught:
                running.run_until_read(topic, 1_000)
            check_refused(caught.value)
    if not is_running:
        lose(tail)
    with pytest.raises(JobError) as caught:
        JobInProcess(spark, job, options)
    check_refused(caught.value)


def test_source_with_a_new_leader_goes_on(spark: SparkSession, own_broker: Broker, tmp_path: Path) -> None:
    options = Options(bootstrap=own_broker.bootstrap, checkpoints=str(tmp_path / "checkpoints"))
    topic = new_topic(own_broker.bootstrap)
    job = write_job(tmp_path, "led_anew", topic)

    def order() -> None:
        # The end of a transaction has an offset, and no consumer is given it.
        producer = Producer({"bootstrap.servers": own_broker.bootstrap, "transactional.id": "orders"})
        producer.init_transactions(20)
        producer.begin_transaction()
        for record in orders("ann", 2):
            producer.produce(topic, key=record.key, value=record.value, partition=0)
        producer.commit_transaction(20)

    order()
    with JobInProcess(spark, job, options) as running:
        first_epoch = run_until_noted(running, topic, 3)
        own_broker.kill()
        own_broker.start()
        order()
        second_epoch = run_until_noted(running, topic, 6)
        assert second_epoch > first_epoch
    own_broker.kill()
    own_broker.start()
    order()
    with JobInProcess(spark, job, options) as running:
        assert run_until_noted(running, topic, 9) > second_epoch
    assert written(own_broker.bootstrap, job)[-1] == Written("ann", 6, 6, 0.0, run=0)


def grow(broker: Broker, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(20)


def test_source_that_grows(spark: SparkSession, broker: Broker, tmp_path: Path, options: Options) -> None:
    topic = new_topic(broker.bootstrap)
    job = write_job(tmp_path, "grows", topic)
    produce(broker.bootstrap, topic, orders("ann", 5))
    with JobInProcess(spark, job, options) as running:
        running.run_until_read(topic, 5)
        grow(broker, topic, 2)

        def is_published() -> bool:
            running.table.poll()
            manifest = read_manifest(broker.bootstrap, "grows")
            return manifest is not None and manifest.sources[0].partition_count == 2

        wait_until("a manifest with both partitions", is_published)
        produce(broker.bootstrap, topic, orders("ann", 3, partition=1))
        running.run_until_read(topic, 8)
    assert written(broker.bootstrap, job)[-1] == Written("ann", 8, 5, 3.0, run=0)


def test_source_that_grows_under_realtime_mode(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: Options
) -> None:
    topic = new_topic(broker.bootstrap)
    job = write_job(tmp_path, "grows_live", topic, more="mode=Mode.REALTIME, trigger_s=5")
    with JobInProcess(spark, job, options) as running:
        grow(broker, topic, 2)
        with pytest.raises(
            JobError, match="has grown from 1 to 2 partitions, and Real-time Mode needs a slot for each"
        ):
            running.run_until_read(topic, 1)
    produce(broker.bootstrap, topic, orders("ann", 3, partition=1))
    with JobInProcess(spark, job, options) as running:
        running.run_until_read(topic, 3)


def test_keyed_source_whose_keys_move_when_it_grows(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: Options
) -> None:
    topic = new_topic(broker.bootstrap)
    job = write_job(tmp_path, "moves", topic, source=", keyed=True")
    produce(broker.bootstrap, topic, orders("ann", 5))
    with JobInProcess(spark, job, options) as running:
        running.run_until_read(topic, 5)
        grow(broker, topic, 2)
        produce(broker.bootstrap, topic, orders("ann", 3, partition=1))
        with pytest.raises(JobError) as stopped:
            running.run_until_read(topic, 8)
    sentence = "is declared keyed, but records of one key are in several partitions; remove keyed=True, and build"
    assert sentence in str(stopped.value)
    assert str(stopped.value).endswith(f"build the next generation: tablegate job rebuild {job}:moves")
    # Half of the way is none: neither a rebuild by the same declaration, nor the other one without a rebuild.
    rebuilt = JobInProcess(spark, job, options, generation=2, is_rebuild=True)
    with rebuilt as running, pytest.raises(JobError, match=sentence):
        running.run_until_read(topic, 8)
    write_job(tmp_path, "moves", topic)
    with pytest.raises(JobError, match=rf'source "{topic}" keyed is gone, it was True; build the next generation'):
        JobInProcess(spark, job, options)
    # What `job rebuild` takes: the generation that was begun is of another declaration.
    assert not can_resume(spark, make_plan(load_table(job), options, generation=2), None)
    with JobInProcess(spark, job, options, generation=3, is_rebuild=True) as running:

        def is_in_place() -> bool:
            running.table.poll()
            return running.table.phase is HandoverPhase.IN_PLACE

        wait_until("the generation in place", is_in_place)
    assert rows(broker.bootstrap, job, 3) == {"ann": (5, 3.0)}
    produce(broker.bootstrap, topic, orders("ann", 1) + orders("ann", 2, partition=1))
    with JobInProcess(spark, job, options) as running:
        running.run_until_read(topic, 11)
    assert rows(broker.bootstrap, job, 3) == {"ann": (6, 5.0)}


def test_other_logic_needs_a_rebuild(spark: SparkSession, broker: Broker, tmp_path: Path, options: Options) -> None:
    topic = new_topic(broker.bootstrap)
    job = write_job(tmp_path, "logic", topic)
    produce(broker.bootstrap, topic, orders("ann", 5))
    with JobInProcess(spark, job, options) as running:
        running.run_until_read(topic, 5)
    write_job(tmp_path, "logic", topic, columns={**COLUMNS, "order_count": "count_if( kafka.partition =  0 )"})
    with JobInProcess(spark, job, options):
        pass  # the same, written otherwise
    write_job(tmp_path, "logic", topic, columns={**COLUMNS, "amount": "sum(amount * 100)"})
    with pytest.raises(JobError) as caught:
        JobInProcess(spark, job, options)
    assert (
        f'{job}:3: table "logic" has changed since generation 1 was begun: column "amount" is sum(amount * 100), '
        f'it was CAST(count_if(kafka.partition = 1)AS DOUBLE); source "{topic}" field "amount" is new'
        in str(caught.value)
    )
    assert str(caught.value).endswith(f"build the next generation: tablegate job rebuild {job}:logic")
    manifest = read_manifest(broker.bootstrap, "logic")
    assert manifest is not None
    with JobInProcess(spark, job, options, generation=2, is_rebuild=True) as running:
        running.run_until_read(topic, 5)
    assert written(broker.bootstrap, job, generation=2)[-1].second == 500.0


def test_rebuild_goes_on_only_by_the_same_declaration(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: Options
) -> None:
    topic = new_topic(broker.bootstrap)
    job = write_job(tmp_path, "begun", topic)
    produce(broker.bootstrap, topic, orders("ann", 5))
    with JobInProcess(spark, job, options) as running:
        running.run_until_read(topic, 5)

    def can_go_on() -> bool:
        return can_resume(spark, make_plan(load_table(job), options, generation=2), None)

    assert can_go_on()  # nothing is begun
    with JobInProcess(spark, job, options, generation=2, is_rebuild=True):
        pass
    assert can_go_on()
    write_job(tmp_path, "begun", topic, columns={**COLUMNS, "order_count": "count(*)"})
    assert not can_go_on()
    write_job(tmp_path, "begun", topic)
    shutil.rmtree(tmp_path / "checkpoints/begun/g2")
    assert not can_go_on()


def test_next_generation_of_what_sources_dropped(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: Options
) -> None:
    topic = new_topic(broker.bootstrap)
    job = write_job(tmp_path, "loss", topic)
    produce(broker.bootstrap, topic, orders("ann", 10))
    drop_records(broker.bootstrap, topic, 4)  # before the table began: nobody misses them
    with JobInProcess(spark, job, options) as running:
        running.run_until_read(topic, 10)
    with JobInProcess(spark, job, options, generation=2, is_rebuild=True):
        pass
    drop_records(broker.bootstrap, topic, 9)
    with pytest.raises(JobError) as caught:
        JobInProcess(spark, job, options, generation=3, is_rebuild=True)
    assert str(caught.value) == (
        f'table "loss" generation 1 was made of records that can no longer be read: 5 of source topic "{topic}"; keep '
        f"it as it is, or build the next from what is left: tablegate job rebuild {job}:loss --accept-loss"
    )
    accepting = Options(bootstrap=broker.bootstrap, checkpoints=options.checkpoints, accept_loss=True)
    with JobInProcess(spark, job, accepting, generation=3, is_rebuild=True) as running:
        running.run_until_read(topic, 10)
    assert [row.sequence for row in written(broker.bootstrap, job, generation=3)] == [1]
