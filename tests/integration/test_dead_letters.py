"""Malformed records: counted by the table's query, and read once more where it has met some."""

import json
import math
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tablegate.examples.demo.kafka import Broker
from tablegate.jobs.planning.options import Options
from tests.kit.job.counting_job import JobInProcess, Written, orders, rows, write_job, written
from tests.kit.job.process import wait_until
from tests.kit.programs.kafka import NewRecord, consume, new_topic, produce

pytestmark = pytest.mark.jvm

MALFORMED = NewRecord(b"ann", b"{")
JOINED = """from tablegate.jobs import Global, Json, Mode, Source, Table

TABLE = Table(
    name="{name}",
    contract="orders.proto",
    sides={{
        "ordered": Source("{ordered}", Json("customer STRING, amount DOUBLE")),
        "rates": Global(Source("{rates}", Json("customer STRING, rate DOUBLE")), key="customer", on="customer"),
    }},
    key={{"customer": "customer"}},
    columns={{"order_count": "count(*)", "amount": "sum(ordered.amount * coalesce(rates.rate, 1.0))"}},
    mode=Mode.MICROBATCH,
)
"""


def letters(broker: Broker, table: str) -> list[tuple[bytes | None, bytes]]:
    """Return the value and the offset of each dead letter."""
    found = consume(broker.bootstrap, f"{table}-dead-letters")
    return [(letter.value, dict(letter.headers)["offset"]) for letter in found]


@pytest.mark.parametrize("mode", ["MICROBATCH", pytest.param("REALTIME, trigger_s=5", marks=pytest.mark.long)])
def test_what_a_crash_left_unchecked_is_read_once_more(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: Options, mode: str
) -> None:
    topic, name = new_topic(broker.bootstrap), f"unchecked_{mode[:5].lower()}"
    job = write_job(tmp_path, name, topic, more=f"mode=Mode.{mode}")
    note = Path(options.checkpoints, name, "g1", "dead-letters.json")
    produce(broker.bootstrap, topic, [*orders("ann", 3), MALFORMED])

    def checked() -> int:
        running.table.poll()
        text = note.read_text() if note.exists() else ""  # it may be about to be written
        return json.loads(text)[topic]["0"] if text else 0

    with JobInProcess(spark, job, options) as running:
        running.table._dead_letters._next_s = math.inf  # it ends before it has set the record aside
        running.run_until_read(topic, 4)
    assert (letters(broker, name), note.exists()) == ([], False)
    with JobInProcess(spark, job, options) as running:
        wait_until("all is checked", lambda: checked() == 4)
        assert letters(broker, name) == [(b"{", b"3")]
        produce(broker.bootstrap, topic, orders("ann", 2))
        wait_until("what is clean is checked", lambda: checked() == 6)
        produce(broker.bootstrap, topic, [MALFORMED, *orders("ann", 1)])
        wait_until("the second one", lambda: checked() == 8)
    assert letters(broker, name) == [(b"{", b"3"), (b"{", b"6")]
    assert written(broker.bootstrap, job)[-1] == Written("ann", 6, 6, 0.0, run=0)


def test_a_global_side_is_set_aside_too(spark: SparkSession, broker: Broker, tmp_path: Path, options: Options) -> None:
    ordered, rates = new_topic(broker.bootstrap), new_topic(broker.bootstrap)
    job = write_job(tmp_path, "joined_letters", ordered)
    Path(job).write_text(JOINED.format(name="joined_letters", ordered=ordered, rates=rates))
    produce(broker.bootstrap, rates, [MALFORMED, NewRecord(b"ann", b'{"customer": "ann", "rate": 2.0}')])
    produce(broker.bootstrap, ordered, orders("ann", 3))

    def is_set_aside(count: int) -> bool:
        running.table.poll()
        return len(letters(broker, "joined_letters")) == count

    with JobInProcess(spark, job, options) as running:
        running.run_until_read(ordered, 3)
        wait_until("the first one", lambda: is_set_aside(1))
        produce(broker.bootstrap, rates, [MALFORMED])
        wait_until("the second one", lambda: is_set_aside(2))
    assert letters(broker, "joined_letters") == [(b"{", b"0"), (b"{", b"2")]
    assert written(broker.bootstrap, job)[-1] == Written("ann", 3, 3, 6.0, run=0)


def test_a_row_too_large_for_kafka_ends_no_table(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: Options, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = new_topic(broker.bootstrap)
    columns = {"order_count": "count(*)", "amount": "sum(amount)", "note": "repeat('x', CAST(sum(amount) AS INT))"}
    job = write_job(tmp_path, "large_rows", topic, columns=columns)
    contract = tmp_path / "orders.proto"
    contract.write_text(contract.read_text().replace("double amount = 3;", "double amount = 3;\n  string note = 4;"))
    produce(broker.bootstrap, topic, [*orders("ann", 1), *orders("ann", 1, amount=2e6), *orders("bob", 1)])
    with JobInProcess(spark, job, options) as running:
        running.run_until_read(topic, 3)
        assert rows(broker.bootstrap, job) == {"bob": (1, 1.0)}
        produce(broker.bootstrap, topic, orders("ann", 1, amount=-2e6))
        running.run_until_read(topic, 4)
    assert rows(broker.bootstrap, job) == {"ann": (3, 1.0), "bob": (1, 1.0)}
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [line["records"] for line in lines if line["event"] == "uncomputable"] == [1]
