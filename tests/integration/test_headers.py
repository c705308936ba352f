"""Headers of records in expressions: by name, null where there is none, of several the last."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tablegate.examples.demo.kafka import Broker
from tablegate.jobs.planning.options import Options
from tablegate.jobs.table import Json, Mode, Processor, Source, Table
from tablegate.jobs.testing import Event, run_table
from tests.kit.job.counting_job import CONTRACT, JobInProcess, orders, write_job, written
from tests.kit.programs.kafka import new_topic, produce

pytestmark = [pytest.mark.jvm, pytest.mark.usefixtures("spark")]  # the kit takes the session that is there

COLUMNS = {"order_count": "count(*)", "amount": "sum(CAST(CAST(kafka.headers['weight'] AS STRING) AS DOUBLE))"}
TWICE = (("weight", b"1"), ("region", b"emea"), ("weight", b"2"))


def table_of(directory: Path, **change: Any) -> Table:
    (directory / "orders.proto").write_text(CONTRACT.read_text())
    declared: dict[str, Any] = {
        "key": {"customer": "coalesce(CAST(kafka.headers['region'] AS STRING), 'none')"},
        "columns": {
            "order_count": "count(*)",
            "amount": "sum(CAST(CAST(kafka.headers['weight'] AS STRING) AS DOUBLE))",
        },
        **change,
    }
    return Table(
        name="order_totals",
        contract=str(directory / "orders.proto"),
        source=Source("orders", Json("customer STRING"), headers=True),
        mode=Mode.MICROBATCH,
        **declared,
    )


def event(*headers: tuple[str, bytes | None]) -> Event:
    return Event("orders", value={"customer": "ann"}, headers=headers)


def test_headers_by_name(tmp_path: Path) -> None:
    events = [event(*TWICE), event(("weight", b"5"), ("Region", b"apac")), event(("region", None)), event()]
    result = run_table(table_of(tmp_path), events)
    assert result.rows == {
        ("emea",): {"order_count": 1, "amount": 2.0},
        ("none",): {"order_count": 3, "amount": 5.0},
    }
    assert result.dead_letters == ()


class Weights(Processor):
    state = "weight STRING"
    emits = "order_count BIGINT, amount DOUBLE"

    def on_record(self, key: Any, record: Any, state: Any) -> Iterator[dict[str, Any]]:
        state.weight = (state.weight or "") + record.kafka.headers.get("weight", b"0").decode()
        yield {"order_count": int(state.weight), "amount": 0.0}


def test_processor_gets_headers(tmp_path: Path) -> None:
    columns = {"order_count": "order_count", "amount": "amount"}
    table = table_of(tmp_path, key={"customer": "customer"}, columns=columns, processor=Weights())
    result = run_table(table, [event(*TWICE), event(("weight", b"7")), event()])
    assert result.rows == {("ann",): {"order_count": 270, "amount": 0.0}}


@pytest.mark.parametrize("mode", ["MICROBATCH", "REALTIME, trigger_s=5"])
def test_job_reads_headers(spark: SparkSession, broker: Broker, tmp_path: Path, options: Options, mode: str) -> None:
    topic, name = new_topic(broker.bootstrap), f"headers_{mode[:5].lower()}"
    job = write_job(tmp_path, name, topic, columns=COLUMNS, source=", headers=True", more=f"mode=Mode.{mode}")
    plain = orders("ann", 1)[0]
    produce(broker.bootstrap, topic, [plain._replace(headers=TWICE), plain, plain._replace(value=b"{")])
    with JobInProcess(spark, job, options) as running:
        running.run_until_read(topic, 3)
    newest = written(broker.bootstrap, job)[-1]
    assert (newest.sequence, newest.first, newest.second) == (2, 2, 2.0)
