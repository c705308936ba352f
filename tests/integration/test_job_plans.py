"""What Spark's optimizer makes of the example tables' frames."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tablegate.jobs.dataflow.frames import build, malformed_records
from tablegate.jobs.dataflow.sources import KAFKA_SCHEMA
from tablegate.jobs.formats import Avro, Json
from tablegate.jobs.planning.declarations import example_names, load_table
from tablegate.jobs.planning.plan import plan_without_cluster
from tablegate.jobs.table import Mode, shared_outputs
from tablegate.jobs.testing import stop_spark
from tablegate.jobs.testing.session import process_session

pytestmark = pytest.mark.jvm

DECODING = ("from_avro(", "from_json(")


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    yield process_session()
    stop_spark()


class OneFile:
    """Topics of one record each, a `Reader` of frames that can be planned without being started."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self._file = directory / "topic.json"
        self._file.write_text(json.dumps({"offset": 0}))

    def stream(self, topic: str, *, batched: bool, starting_offsets: str) -> DataFrame:
        return self.read_all(topic)

    def read_all(self, topic: str) -> DataFrame:
        return self._spark.read.schema(KAFKA_SCHEMA).json(str(self._file))


def decodings(frame: DataFrame, names: Sequence[str] = DECODING) -> int:
    optimized = frame._jdf.queryExecution().optimizedPlan().toString()
    return sum(optimized.count(name) for name in names)


@pytest.mark.parametrize("name", example_names())
def test_a_record_is_decoded_once_in_each_query(spark: SparkSession, tmp_path: Path, name: str) -> None:
    table = load_table(name)
    plan = replace(plan_without_cluster(table, str(tmp_path)), mode=Mode.MICROBATCH)
    topics = OneFile(spark, tmp_path)
    frames = build(spark, plan, row_outputs=True, other_outputs=shared_outputs(table.outputs), reader=topics)
    decoded = sum(isinstance(table.source_of(side).value, Avro | Json) for side in table.all_sides)
    assert decodings(frames.table) == decoded
    assert decodings(frames.table, ["to_avro(struct("]) == 1  # and a row is encoded once
    assert decodings(malformed_records(plan, topics)) == decoded
    for _, frame in frames.outputs:
        assert decodings(frame) == 1
