"""Tables made of the rows of other tables: their deletes, their versions, their generations. Real Kafka and Spark."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tablegate.examples.demo.kafka import Broker
from tablegate.gateway.contract.keys import KeyColumn, KeyType, KeyValue, encode_key
from tablegate.gateway.contract.types import make_version
from tablegate.jobs.dataflow.keys import is_row_key_sql, row_key_parts_sql
from tablegate.jobs.errors import JobError
from tablegate.jobs.planning.declarations import load_table
from tablegate.jobs.planning.options import Options
from tablegate.jobs.running.audit import EQUAL, audit_table
from tablegate.jobs.running.handover import HandoverPhase
from tests.kit.job.counting_job import CONTRACT, JobInProcess, newest_by_key, orders, rows
from tests.kit.job.process import wait_until
from tests.kit.programs.kafka import NewRecord, new_topic, produce

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

COLUMNS = (
    KeyColumn("number", KeyType.INT64),
    KeyColumn("text", KeyType.STRING),
    KeyColumn("flag", KeyType.BOOL),
    KeyColumn("raw", KeyType.BYTES),
    KeyColumn("time", KeyType.TIMESTAMP),
)
KEYS: list[list[KeyValue]] = [
    [0, "", False, b"", 0],
    [-1, "a", True, b"\x00", 1],
    [2**63 - 1, "\x00", True, b"\x00\xff\x00\x00", -1],
    [-(2**63), "a\x00b\x00\x00", False, b"\xff\x00", 253_402_300_799_999_999],
    [258, "\xa0\x0b ä €", True, bytes(range(256)), 1_700_000_000_123_456],
    [1 << 32, "0000", False, b"\x0b\x00\xa0", -62_135_596_800_000_000],
]


def test_key_bytes_are_read_as_they_were_written(spark: SparkSession) -> None:
    written = [encode_key(COLUMNS, key) for key in KEYS]
    wrong = [b"", written[0][:-1], written[1] + b"\x00", b"\x00" * 9 + b"\x01", b"x" * 2000]
    frame = spark.createDataFrame([(bytearray(key),) for key in (*written, *wrong)], "key BINARY")
    parts = row_key_parts_sql(COLUMNS, "key")
    parts[-1] = f"unix_micros({parts[-1]})"
    found = [tuple(row) for row in frame.selectExpr(is_row_key_sql(COLUMNS, "key"), *parts).collect()]
    expected = [(True, *(bytearray(one) if isinstance(one, bytes) else one for one in key)) for key in KEYS]
    assert found == [*expected, *((False, *[None] * len(COLUMNS)) for _ in wrong)]


JOB = """from tablegate.jobs import Json, Latest, Mode, Source, Table, rows_of

TOTALS = Table(
    name="{name}",
    contract="orders.proto",
    source=Source("{topic}", Json("customer STRING, amount DOUBLE")),
    key={{"customer": "customer"}},
    columns={{"order_count": "count(*)", "amount": "sum(amount)"}},
    having="amount >= 0",
    mode=Mode.MICROBATCH,
)
DOUBLED = Table(
    name="{name}_doubled",
    contract="doubled.proto",
    sides={{"totals": Latest(rows_of("{name}", contract="orders.proto"))}},
    key={{"customer": "customer"}},
    columns={{"order_count": "totals.order_count", "amount": "totals.amount * 2"}},
    mode=Mode.{mode},
)
TABLES = (DOUBLED, TOTALS)
"""


def write_jobs(directory: Path, name: str, topic: str, mode: str = "MICROBATCH") -> tuple[str, str]:
    directory.mkdir(parents=True, exist_ok=True)
    for file, table in (("orders", name), ("doubled", f"{name}_doubled")):
        (directory / f"{file}.proto").write_text(CONTRACT.read_text().replace('"order_totals"', f'"{table}"'))
    path = directory / "job.py"
    path.write_text(JOB.format(name=name, topic=topic, mode=mode))
    return f"{path}:{name}", f"{path}:{name}_doubled"


def run_until(options: Options, job: str, expected: dict[str, tuple[int, float]], *running: JobInProcess) -> None:
    def is_so() -> bool:
        for one in running:
            one.table.poll()
        return rows(options.bootstrap, job) == expected

    wait_until(f"rows {expected}", is_so)


@pytest.mark.parametrize("mode", ["MICROBATCH", "REALTIME"])
def test_a_table_follows_the_rows_of_another(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: Options, mode: str
) -> None:
    topic = new_topic(broker.bootstrap, 2)
    name = f"followed_{mode.lower()}"
    totals, doubled = write_jobs(tmp_path, name, topic, mode)
    produce(broker.bootstrap, topic, orders("ann", 2) + orders("bob", 3, partition=1))
    with JobInProcess(spark, totals, options) as source:
        with JobInProcess(spark, doubled, options) as reader:
            both = (source, reader)
            run_until(options, doubled, {"ann": (2, 4.0), "bob": (3, 6.0)}, *both)
            # Below what `having` wants, the row is deleted there, and so here.
            produce(broker.bootstrap, topic, orders("ann", 1, amount=-10.0))
            run_until(options, doubled, {"bob": (3, 6.0)}, *both)
            produce(broker.bootstrap, topic, orders("ann", 1, amount=20.0))
            run_until(options, doubled, {"bob": (3, 6.0), "ann": (4, 24.0)}, *both)
        # A record that a killed job has written late is older than the row, however far behind it lies.
        produce(broker.bootstrap, topic, orders("bob", 1))
        run_until(options, totals, {"bob": (4, 4.0), "ann": (4, 12.0)}, source)
    table = load_table(totals)
    bob = next(record for record in newest_by_key(broker.bootstrap, totals).values() if b"bob" in (record.key or b""))
    late = NewRecord(bob.key, None, headers=[("v", make_version(1, 3))], partition=bob.partition)
    foreign = NewRecord(b"who knows", b"what", partition=0)
    produce(broker.bootstrap, f"{table.name}-g1-changelog", [late, foreign])
    with JobInProcess(spark, doubled, options) as reader:
        run_until(options, doubled, {"bob": (4, 8.0), "ann": (4, 24.0)}, reader)
        reader.run_until_read(f"{table.name}-g1-changelog", 1)
        if mode == "MICROBATCH":
            found = audit_table(spark, load_table(doubled), bootstrap=broker.bootstrap, checkpoints=options.checkpoints)
            assert {verdict for verdict, number in found.counts.items() if number} == {EQUAL}, found.differences


def test_a_table_that_is_built_anew_stops_those_that_read_it(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: Options
) -> None:
    topic = new_topic(broker.bootstrap)
    totals, doubled = write_jobs(tmp_path, "built_anew", topic)
    produce(broker.bootstrap, topic, orders("ann", 2))
    with pytest.raises(JobError, match=r'reads table "built_anew", which has no manifest; start its job first'):
        JobInProcess(spark, doubled, options)
    with JobInProcess(spark, totals, options) as source, JobInProcess(spark, doubled, options) as reader:
        run_until(options, doubled, {"ann": (2, 4.0)}, source, reader)
    with JobInProcess(spark, doubled, options) as reader:
        with JobInProcess(spark, totals, options, generation=2, is_rebuild=True) as rebuilt:

            def is_in_place() -> bool:
                rebuilt.table.poll()
                return rebuilt.table.phase is HandoverPhase.IN_PLACE

            wait_until("the generation in place", is_in_place)
        sentence = 'table "built_anew" was built anew, and is at generation 2'
        with pytest.raises(JobError, match=sentence):
            wait_until("the end of the reader", lambda: reader.table.poll() is not None)
    with pytest.raises(JobError, match=sentence):
        JobInProcess(spark, doubled, options)
    with JobInProcess(spark, doubled, options, generation=2, is_rebuild=True) as rebuilt:
        wait_until("the generation in place", is_in_place)
    assert rows(broker.bootstrap, doubled, 2) == {"ann": (2, 4.0)}
