"""A source of several topics: read as one, watched each on its own."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tablegate.examples.demo.kafka import Broker
from tablegate.examples.samples import create_topic
from tablegate.jobs.errors import JobError
from tablegate.jobs.planning.options import Options
from tablegate.jobs.table import Json, Mode, RecordOutput, Source, Table, Text
from tablegate.jobs.testing import Event, run_table
from tests.kit.job.counting_job import CONTRACT, JobInProcess, orders, write_job, written
from tests.kit.job.process import wait_until
from tests.kit.programs.kafka import NewRecord, consume, delete_topic, new_topic, produce

pytestmark = [pytest.mark.jvm, pytest.mark.usefixtures("spark")]  # the kit takes the session that is there


def order(topic: str, customer: str | None, amount: float) -> Event:
    return Event(topic, value={"customer": customer, "amount": amount})


def test_topics_are_read_as_one(tmp_path: Path) -> None:
    (tmp_path / "orders.proto").write_text(CONTRACT.read_text())
    table = Table(
        name="order_totals",
        contract=str(tmp_path / "orders.proto"),
        source=Source("a", Json("customer STRING, amount DOUBLE"), more_topics=("b",)),
        key={"customer": "customer"},
        columns={"order_count": "count_if(kafka.topic = 'b')", "amount": "sum(amount)"},
        outputs=(RecordOutput("copies", key=Text("customer"), value=Text("kafka.topic")),),
        mode=Mode.MICROBATCH,
    )
    batches = [order("a", "ann", 1.0), order("b", "ann", 2.0)], [order("b", "ann", 4.0), order("b", None, 8.0)]
    result = run_table(table, *batches)
    assert result.rows == {("ann",): {"order_count": 2, "amount": 7.0}}
    assert [(letter.topic, letter.offset) for letter in result.dead_letters] == [("b", 2)]
    assert sorted(result.outputs["copies"]) == [("ann", "a"), ("ann", "b"), ("ann", "b")]


def declared(broker: Broker, tmp_path: Path, mode: str, name: str) -> tuple[str, str, str]:
    """Return the job of two topics, which have two orders each and one malformed record, and the topics."""
    first, second = new_topic(broker.bootstrap), new_topic(broker.bootstrap)
    columns: Any = {"order_count": f"count_if(kafka.topic = '{second}')", "amount": "sum(amount)"}
    more = f"mode=Mode.{mode}"
    job = write_job(tmp_path, name, first, columns=columns, source=f', more_topics=("{second}",)', more=more)
    for topic in (first, second):
        produce(broker.bootstrap, topic, [*orders("ann", 2), NewRecord(b"ann", topic.encode())])
    return job, first, second


@pytest.mark.parametrize("mode", ["MICROBATCH", "REALTIME, trigger_s=5"])
def test_job_of_two_topics(spark: SparkSession, broker: Broker, tmp_path: Path, options: Options, mode: str) -> None:
    job, first, second = declared(broker, tmp_path, mode, name := f"both_{mode[:5].lower()}")

    def are_set_aside() -> bool:
        running.table.poll()
        return len(consume(broker.bootstrap, f"{name}-dead-letters")) == 2

    with JobInProcess(spark, job, options) as running:
        running.run_until_read(first, 3)
        running.run_until_read(second, 3)
        wait_until("both are set aside", are_set_aside)
    produce(broker.bootstrap, second, orders("ann", 3))
    with JobInProcess(spark, job, options) as running:
        running.run_until_read(second, 6)
    newest = written(broker.bootstrap, job)[-1]
    assert (newest.sequence, newest.first, newest.second) == (7, 5, 7.0)
    letters = consume(broker.bootstrap, f"{name}-dead-letters")
    assert {letter.value for letter in letters} == {first.encode(), second.encode()}


def test_second_topic_that_is_made_again_stops_the_job(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: Options
) -> None:
    job, _, second = declared(broker, tmp_path, "MICROBATCH", "second_again")
    sentence = f'source topic "{second}" of table "second_again" was deleted and created again while the job read it'
    with JobInProcess(spark, job, options) as running:
        running.run_until_read(second, 3)
        delete_topic(broker.bootstrap, second)
        create_topic(broker.bootstrap, second, 1, {})
        produce(broker.bootstrap, second, orders("ann", 20))
        with pytest.raises(JobError, match=sentence):
            running.run_until_read(second, 1_000)
    with pytest.raises(JobError, match="as it was before it was deleted and created again; build the table anew"):
        JobInProcess(spark, job, options)
