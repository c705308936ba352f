"""Spark's `from_avro` with a writer's and a reader's schema: the ground that evolution stands on."""

import copy
import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.avro.functions import from_avro

from tablegate.jobs.running.session import spark_session
from tests.kit.job.avro_pairs import PAIRS, Pair, encode, field

pytestmark = pytest.mark.jvm

MARK = field("__decoded", "boolean", default=True)  # a job adds it, to tell what does not decode from nulls


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[Any]]]:
    """What Spark reads of the records of each pair, by its name."""
    directory = tmp_path_factory.mktemp("spark")
    with spark_session("tests", master="local[2]", checkpoints=str(directory), spark_log=directory / "log") as spark:
        yield read_all(spark)


def read_all(spark: SparkSession) -> dict[str, list[Any]]:
    """Read the first record of all pairs in one query, the second of those that have one in the next, and so on."""
    found: dict[str, list[Any]] = {}
    for number in range(max(len(pair.reads) for pair in PAIRS)):
        pairs = {pair.name: pair for pair in PAIRS if number < len(pair.reads)}
        values = [encode(pair.writer, pair.reads[number][0]) for pair in pairs.values()]
        names = [f"c{place}" for place in range(len(pairs))]
        frame = spark.createDataFrame([tuple(values)], ", ".join(f"{name} binary" for name in names))
        columns = [decoded(name, pair) for name, pair in zip(names, pairs.values(), strict=True)]
        (row,) = frame.select(columns).collect()
        for name, value in zip(pairs, row, strict=True):
            found.setdefault(name, []).append(plain(value))
    return found


def decoded(column: str, pair: Pair) -> Any:
    reader = copy.deepcopy(pair.reader)
    reader["fields"].append(MARK)
    options = {"mode": "PERMISSIVE", "avroSchema": json.dumps(reader)}
    return from_avro(sql.col(column), json.dumps(pair.writer), options).alias(column)


def plain(value: Any) -> Any:
    """Return a record without the mark; None where the mark says that it did not decode."""
    if isinstance(value, Row):
        fields = value.asDict()
        if fields.pop("__decoded", True) is None:
            return None
        return {name: plain(part) for name, part in fields.items()}
    if isinstance(value, list):
        return [plain(part) for part in value]
    if isinstance(value, datetime):
        return round(value.timestamp() * 1_000_000)
    return bytes(value) if isinstance(value, bytearray) else value


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_spark_reads(read: dict[str, list[Any]], pair: Pair) -> None:
    assert read[pair.name] == [expected for _, expected in pair.reads]
