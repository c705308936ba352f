"""Processors on a real Spark: order, state, timers, errors, and workers that cannot import the project."""

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from tablegate.jobs.dataflow.java_errors import failure_in_python
from tablegate.jobs.dataflow.processors import apply_processor
from tablegate.jobs.errors import JobError
from tablegate.jobs.processor import Processor
from tablegate.jobs.running.session import spark_session, table_session

pytestmark = pytest.mark.jvm

WAIT_S = 90.0  # many times what it takes: these machines are shared
KAFKA = "kafka STRUCT<key: BINARY, value: BINARY, topic: STRING, partition: INT, offset: BIGINT, timestamp: TIMESTAMP>"
RECORDS = f"customer STRING, record STRUCT<amount: BIGINT, {KAFKA}>"


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    directory = tmp_path_factory.mktemp("spark")
    with spark_session("tests", master="local[2]", checkpoints=str(directory), spark_log=directory / "log") as session:
        yield table_session(session, shuffle_partitions=2)


class Points(Processor):
    state = "points BIGINT"
    emits = "amount BIGINT, total BIGINT"

    def on_record(self, key: Any, record: Any, state: Any) -> Iterator[dict[str, object]]:
        state.points += record.amount
        yield {"amount": record.amount, "total": state.points}


class Stream:
    """Batches of records that Spark reads, one file a batch, and what came of them."""

    def __init__(self, spark: SparkSession, directory: Path, schema: str = RECORDS) -> None:
        self._spark = spark
        self._input, self.checkpoint = directory / "input", directory / "checkpoint"
        self._input.mkdir()
        self._schema = schema
        self._written = 0
        self.emitted: dict[int, list[dict[str, Any]]] = {}

    def write(self, *records: dict[str, Any]) -> None:
        """Add a batch."""
        self._written += 1
        partial = self._input / f"_{self._written}"  # Spark passes over such names
        partial.write_text("\n".join(json.dumps(record) for record in records))
        os.utime(partial, (self._written, self._written))  # Spark reads them by age
        partial.rename(self._input / f"{self._written:03}.json")

    def frame(self) -> DataFrame:
        return self._spark.readStream.schema(self._schema).option("maxFilesPerTrigger", 1).json(str(self._input))

    def start(self, processor: Processor, *key: str, **trigger: Any) -> StreamingQuery:
        emitted = apply_processor(self.frame(), processor, key or ("customer",), owner='table "invoices"')

        def keep(frame: DataFrame, batch_id: int) -> None:
            self.emitted[batch_id] = [row.asDict(recursive=True) for row in frame.collect()]

        writer = emitted.writeStream.foreachBatch(keep).outputMode("update")
        return writer.option("checkpointLocation", str(self.checkpoint)).trigger(**trigger).start()

    def run(self, processor: Processor, *key: str) -> None:
        """Work off what is there."""
        self.start(processor, *key, availableNow=True).awaitTermination()


def record(customer: str, amount: int, offset: int, partition: int = 0) -> dict[str, Any]:
    kafka = {"topic": "invoices", "partition": partition, "offset": offset, "timestamp": "2026-11-21T12:00:00Z"}
    return {"customer": customer, "record": {"amount": amount, "kafka": kafka}}


def wait_until(happened: Callable[[], bool], query: StreamingQuery) -> None:
    end_s = time.monotonic() + WAIT_S
    while not happened():
        assert query.isActive, query.exception()
        assert time.monotonic() < end_s, "it does not happen"
        time.sleep(0.1)


def test_records_of_a_key_come_in_order_and_sequences_grow(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path)
    places = [(partition, offset) for offset in (9, 11, 10) for partition in (1, 0)]
    stream.write(*(record(customer, 100 * at[0] + at[1], at[1], at[0]) for at in places for customer in "ab"))
    stream.write(record("a", 5, 12), record("c", 7, 13))
    stream.run(Points())
    for customer in "ab":
        of_key = [row for row in stream.emitted[0] if row["customer"] == customer]
        assert [row["amount"] for row in of_key] == [9, 10, 11, 109, 110, 111]
        assert [row["__sequence"] for row in of_key] == [1, 2, 3, 4, 5, 6]
    second = {row["customer"]: (row["amount"], row["total"], row["__sequence"]) for row in stream.emitted[1]}
    assert second == {"a": (5, 365, 7), "c": (7, 7, 1)}


def test_a_batch_that_runs_again_emits_the_same(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path)
    for batch in range(3):
        stream.write(*(record("ab"[offset % 2], offset, 10 * batch + offset) for offset in range(5)))
    stream.run(Points())
    emitted = stream.emitted.pop(2)
    assert [row["__sequence"] for row in emitted if row["customer"] == "a"] == [7, 8, 9]
    (stream.checkpoint / "commits" / "2").unlink()  # as if the job had been killed before it committed
    stream.run(Points())
    assert stream.emitted[2] == emitted


class EveryType(Processor):
    COLUMNS = (
        "flag BOOLEAN, tiny TINYINT, small SMALLINT, medium INT, big BIGINT, half FLOAT, full DOUBLE, text STRING, "
        "raw BINARY, at TIMESTAMP, day DATE, price DECIMAL(12, 2), tags ARRAY<STRING>, counts MAP<STRING, BIGINT>, "
        "nested STRUCT<at: TIMESTAMP, days: ARRAY<DATE>, prices: MAP<STRING, DECIMAL(5, 1)>>"
    )
    NAMES = tuple(part.split()[0] for part in COLUMNS.split(", ") if part[0].islower())[:15]
    VALUE: dict[str, object] = {  # noqa: RUF012 - only read
        "flag": True,
        "tiny": -128,
        "small": 32767,
        "medium": -(2**31),
        "big": 2**63 - 1,
        "half": 0.5,
        "full": 0.1,
        "text": "zwölf \0 \U0001f600",
        "raw": b"\0\xff",
        "at": datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        "day": date(1969, 12, 31),
        "price": Decimal("-9999999999.99"),
        "tags": ["a", None, ""],
        "counts": {"a": 1, "b": None},
        "nested": {
            "at": datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
            "days": [date(2026, 11, 21)],
            "prices": {"x": Decimal("1234.5")},
        },
    }
    state = COLUMNS
    emits = COLUMNS

    def on_record(self, key: Any, record: Any, state: Any) -> Iterator[dict[str, object]]:
        if record.amount == 0:
            assert (state.big, state.text, state.tags, state.at, state.nested) == (0, "", [], None, None)
            for name, value in self.VALUE.items():
                setattr(state, name, value)
        yield {name: getattr(state, name) for name in self.VALUE}
        if record.amount == 1:
            for name in self.VALUE:
                setattr(state, name, None)


def test_values_of_each_type_are_kept_exactly(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path)
    for offset in range(3):
        stream.write(record("a", offset, offset))
    stream.run(EveryType())
    expected = {"customer": "a", **EveryType.VALUE}
    for batch in (0, 1):
        (row,) = stream.emitted[batch]
        assert row.pop("__sequence") == batch + 1
        # Spark hands timestamps over without a time zone, in that of the machine.
        row["at"] = row["at"].astimezone(UTC)
        row["nested"]["at"] = row["nested"]["at"].astimezone(UTC)
        row["raw"] = bytes(row["raw"])
        assert row == expected
    (row,) = stream.emitted[2]
    assert {name for name in EveryType.VALUE if row[name] is not None} == set()


class Kinds(Processor):
    state = "count BIGINT"
    emits = "kinds STRING, count BIGINT"

    def on_record(self, key: Any, record: Any, state: Any) -> Iterator[dict[str, object]]:
        state.count += 1
        values = [key.customer, key.at, key.raw, record.item, record.items, record.labels, record.kafka.timestamp]
        yield {"kinds": repr(values), "count": state.count}


def test_keys_and_records_as_python_sees_them(spark: SparkSession, tmp_path: Path) -> None:
    fields = "item: STRUCT<name: STRING, price: DECIMAL(5, 2)>, items: ARRAY<STRUCT<n: INT>>, labels: MAP<STRING, INT>"
    schema = f"customer BIGINT, at TIMESTAMP, raw BINARY, record STRUCT<{fields}, {KAFKA}>"
    stream = Stream(spark, tmp_path, schema)
    one = record("", 0, 0)["record"]
    del one["amount"]
    one |= {"item": {"name": "nut", "price": 1.25}, "items": [{"n": 1}, {"n": None}], "labels": {"a": 1}}
    keyed = {"customer": 2**62, "at": "2026-11-21T12:00:00.000001Z", "raw": "AP8=", "record": one}
    stream.write(keyed, keyed | {"record": one | {"kafka": one["kafka"] | {"offset": 1}}})
    stream.run(Kinds(), "customer", "at", "raw")
    first, second = stream.emitted[0]
    moment = "datetime.datetime(2026, 11, 21, 12, 0{}, tzinfo=datetime.timezone.utc)"
    item = "Fields(name='nut', price=Decimal('1.25'))"
    items = "[Fields(n=1), Fields(n=None)]"
    at = moment.format(", 0, 1")
    assert first["kinds"] == f"[{2**62}, {at}, b'\\x00\\xff', {item}, {items}, {{'a': 1}}, {moment.format('')}]"
    assert (first["customer"], bytes(first["raw"]), second["count"]) == (2**62, b"\0\xff", 2)
    assert first["at"].astimezone(UTC) == datetime(2026, 11, 21, 12, 0, 0, 1, UTC)


class Sums(Processor):
    state = "sum BIGINT, timers BIGINT"
    emits = "sum BIGINT, timers BIGINT"
    every_s = 0.2

    def on_record(self, key: Any, record: Any, state: Any) -> None:
        state.sum += record.amount

    def on_timer(self, key: Any, state: Any, now: datetime) -> Iterator[dict[str, object]]:
        assert now.tzinfo is UTC
        state.timers += 1
        yield {"sum": state.sum, "timers": state.timers}


def test_a_timer_runs_once_after_records_of_its_key(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path)
    query = stream.start(Sums(), processingTime="200 milliseconds")

    def rows() -> list[dict[str, Any]]:
        return sorted((row for batch in [*stream.emitted.values()] for row in batch), key=lambda row: row["__sequence"])

    try:
        stream.write(record("a", 1, 0), record("a", 2, 1))
        wait_until(lambda: len(rows()) == 1, query)
        batches = len(stream.emitted)
        wait_until(lambda: len(stream.emitted) > batches + 5, query)  # five times in which nothing is due
        stream.write(record("a", 4, 2))
        wait_until(lambda: len(rows()) > 1, query)
    finally:
        query.stop()
    assert rows() == [
        {"customer": "a", "sum": 3, "timers": 1, "__sequence": 1},
        {"customer": "a", "sum": 7, "timers": 2, "__sequence": 2},
    ]


USER_FILE = """
from dataclasses import dataclass
from enum import Enum

from tablegate.jobs.processor import Processor


class Level(Enum):
    GOLD = 100


@dataclass(frozen=True, slots=True)
class Rule:
    least: int
    level: Level


def points_of(amount, rule):
    return amount * (2 if amount >= rule.least else 1)


class Counting(Processor):
    state = "total BIGINT"
    emits = "total BIGINT"


    def on_record(self, key, record, state):
        state.total += 1
        yield {"total": state.total}


class Levels(Counting):
    def __init__(self, rule):
        self.rule = rule

    def on_record(self, key, record, state):
        state.total += points_of(record.amount, self.rule)
        yield {"total": state.total // (record.amount - 13)}


PROCESSOR = Levels(Rule(10, Level.GOLD))
"""
BLOCKER = """
import sys


class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tablegate", "job_levels", "job_levels_rates", "tests", "pandas", "fastavro"):
            raise ImportError(f"{name} is not on this machine")


sys.meta_path.insert(0, Blocker())
"""


@pytest.fixture
def levels(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> tuple[Processor, Path]:
    """Return a user's processor, loaded from a file, and have workers that cannot import it, nor the project."""
    file = tmp_path / "levels.py"
    file.write_text(USER_FILE)
    spec = importlib.util.spec_from_file_location("job_levels", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "job_levels", module)
    spec.loader.exec_module(module)
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "sitecustomize.py").write_text(BLOCKER)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}/bare:$PYTHONPATH" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    return module.PROCESSOR, file


def test_workers_need_nothing_of_the_project(
    spark: SparkSession, tmp_path: Path, levels: tuple[Processor, Path]
) -> None:
    stream = Stream(spark, tmp_path)
    stream.write(record("a", 14, 0), record("a", 2, 1))
    stream.run(levels[0])
    assert [row["total"] for row in stream.emitted[0]] == [28, -3]


def test_what_a_users_file_imports_from_beside_it_travels_with_it(
    spark: SparkSession, tmp_path: Path, levels: tuple[Processor, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job_levels_rates").mkdir()
    (tmp_path / "job_levels_rates" / "__init__.py").write_text("from job_levels_rates.of_gold import RATE\n")
    (tmp_path / "job_levels_rates" / "of_gold.py").write_text("class Rate:\n    factor = 5\n\n\nRATE = Rate()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    rates, module = importlib.import_module("job_levels_rates"), sys.modules["job_levels"]
    monkeypatch.setattr(module, "points_of", lambda amount, _: amount * rates.RATE.factor)
    stream = Stream(spark, tmp_path)
    stream.write(record("a", 14, 0))
    stream.run(levels[0])
    assert [row["total"] for row in stream.emitted[0]] == [70]


def test_an_error_in_a_users_file(spark: SparkSession, tmp_path: Path, levels: tuple[Processor, Path]) -> None:
    processor, file = levels
    stream = Stream(spark, tmp_path)
    stream.write(record("ann", 13, 7, partition=1))
    with pytest.raises(StreamingQueryException) as caught:
        stream.run(processor)
    line = USER_FILE.splitlines().index('        yield {"total": state.total // (record.amount - 13)}') + 1
    assert failure_in_python(str(caught.value)) == (
        f'{file}:{line}: table "invoices" processor "Levels" (key "customer"), record of topic "invoices" partition 1 '
        "offset 7, on_record: raises ZeroDivisionError; correct it and start the job again"
    )


def test_a_time_that_python_cannot_have(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path)
    far = record("a", 1, 3)
    far["record"]["kafka"]["timestamp"] = "+12026-11-21T12:00:00Z"
    stream.write(far)
    with pytest.raises(StreamingQueryException) as caught:
        stream.run(Points())
    failure = failure_in_python(str(caught.value))
    assert failure is not None
    assert 'record of topic "invoices" partition 0 offset 3, on_record: record.kafka.timestamp is a time' in failure


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (RECORDS.replace("customer STRING", "customer DOUBLE"), 'key column "customer" is double; cast it to one of'),
        (RECORDS.replace("amount: BIGINT", "amount: INTERVAL DAY"), 'a field "amount" of type interval day'),
    ],
)
def test_types_that_do_not_do(spark: SparkSession, tmp_path: Path, schema: str, words: str) -> None:
    stream, processor = Stream(spark, tmp_path, schema), Points()
    with pytest.raises(JobError) as caught:
        stream.start(processor)
    assert words in str(caught.value)
    assert str(caught.value).startswith(f'{processor.declared_at}: table "invoices" processor "Points" ')


def test_key_columns_are_not_emitted_twice(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path, RECORDS.replace("customer", "TOTAL"))
    with pytest.raises(JobError, match=r'emits "total", which is a key column and there anyway; remove it'):
        stream.start(Points(), "TOTAL")
