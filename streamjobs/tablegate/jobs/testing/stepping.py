"""Streaming queries over a test's records that run one batch at a time, at a time that the test says.

Spark has the parts, for tests of its own: a clock that stands still until it is set, streams and sinks in memory. They
have no Python, so they are reached through py4j.
"""

import base64
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from tablegate.jobs.dataflow.sources import KAFKA_SCHEMA
from tablegate.jobs.errors import JobError
from tablegate.jobs.running.java_errors import thrown_reason
from tablegate.jobs.table import Table
from tablegate.jobs.testing.events import Record
from tablegate.jobs.testing.results import Written

POLL_S = 0.005

_WRITTEN = """to_json(struct(topic, hex(key) AS key, hex(value) AS value,
    map_from_entries(transform(headers, one -> struct(one.key, hex(one.value)))) AS headers))"""


class MemoryTopics:
    """Topics of a test's records, for `Queries`; `add` makes the records of the next batch be there.

    A topic that is read whole is a file, which Spark finds once and then reads in each batch: so it keeps its length.
    """

    def __init__(self, spark: SparkSession, directory: Path, batches: Sequence[Sequence[Record]]) -> None:
        self._spark = spark
        self._directory = directory
        self._streams: list[tuple[str, Any]] = []
        self._lines: dict[str, list[str]] = {}
        self._lengths: dict[str, int] = {}
        for record in (record for batch in batches for record in batch):
            self._lengths[record.topic] = self._lengths.get(record.topic, 0) + len(_line(record)) + 1
        jvm: Any = spark.sparkContext._jvm
        self._encoder = jvm.org.apache.spark.sql.Encoders.STRING()
        self._source = jvm.org.apache.spark.sql.execution.streaming.runtime.MemoryStream
        self._to_seq = jvm.PythonUtils.toSeq

    def stream(self, topic: str, *, batched: bool, starting_offsets: str) -> DataFrame:  # noqa: ARG002 - see `Reader`
        """Return the topic's records as they come; a batch is one JSON array of them."""
        stream = self._source.apply(self._spark._jsparkSession, self._encoder)
        self._streams.append((topic, stream))
        arrays = DataFrame(stream.toDF(), self._spark)
        return arrays.selectExpr(f"inline(from_json(value, 'ARRAY<STRUCT<{KAFKA_SCHEMA}>>'))")

    def whole(self, topic: str) -> DataFrame:
        """Return the records that are there when a batch begins."""
        self._lines[topic] = []
        self._write_whole(topic)
        return self._spark.read.schema(KAFKA_SCHEMA).json(str(self._path(topic)))

    def add(self, records: Iterable[Record]) -> None:
        """Add the records of a batch."""
        lines: dict[str, list[str]] = {}
        for record in records:
            lines.setdefault(record.topic, []).append(_line(record))
        for topic in self._lines:
            self._lines[topic] += lines.get(topic, [])
            self._write_whole(topic)
        for topic, stream in self._streams:
            stream.addData(self._to_seq([f"[{','.join(lines.get(topic, []))}]"]))

    def _write_whole(self, topic: str) -> None:
        text = "".join(f"{line}\n" for line in self._lines[topic])
        self._path(topic).write_text(text.ljust(max(self._lengths.get(topic, 0), 1), "\n"))

    def _path(self, topic: str) -> Path:
        return self._directory / f"whole-{topic}.json"


def _line(record: Record) -> str:
    """Return a record as Spark reads it from JSON, in ASCII."""
    fields = {
        "key": None if record.key is None else base64.b64encode(record.key).decode(),
        "value": None if record.value is None else base64.b64encode(record.value).decode(),
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp.isoformat(timespec="milliseconds"),
        "timestampType": 0,
    }
    return json.dumps(fields)


class Clock:
    """The time of a test's queries. It stands still, and they with it, until it is set to a later one."""

    def __init__(self, spark: SparkSession, now_ms: int) -> None:
        jvm: Any = spark.sparkContext._jvm
        self.of_spark = jvm.org.apache.spark.util.ManualClock(now_ms)

    def set(self, now_ms: int) -> None:
        """Let the next batch run, at this time."""
        self.of_spark.setTime(now_ms)


def milliseconds(moment: datetime) -> int:
    """Return the time since 1970."""
    return round(moment.timestamp() * 1000)


class SteppedQuery:
    """A query that runs its first batch when it is made, and the next when the clock is set; raises `JobError`."""

    def __init__(self, frame: DataFrame, table: Table, *, clock: Clock, checkpoint: str) -> None:
        spark = frame.sparkSession
        jvm: Any = spark.sparkContext._jvm
        option, streaming = jvm.scala.Option, jvm.org.apache.spark.sql.streaming
        self._table = table
        self._next_batch_id = 0
        self._sink = jvm.org.apache.spark.sql.execution.streaming.sources.MemorySink()
        nothing = option.empty()
        self._query = spark._jsparkSession.streams().startQuery(
            nothing,  # name
            nothing,  # name of the source of an upgrade
            option.apply(checkpoint),
            frame.select(sql.expr(_WRITTEN))._jdf,
            jvm.PythonUtils.toScalaMap({}),  # options
            self._sink,
            streaming.OutputMode.Update(),
            False,  # no checkpoint of Spark's own choice
            True,  # goes on from the checkpoint
            streaming.Trigger.ProcessingTime(1),
            clock.of_spark,
            nothing,  # catalogue and name of a table to write to
            nothing,  # that table
        )

    def finish_batch(self) -> tuple[list[Written], Mapping[str, Any]]:
        """Wait for the end of the batch that runs; return its records and Spark's report of it."""
        batch_id = self._next_batch_id
        while (report := self._query.lastProgress()) is None or report.batchId() < batch_id:
            failure = self._query.exception()
            if failure.isDefined():
                raise self._failure(failure.get())
            time.sleep(POLL_S)
        self._next_batch_id += 1
        rows = str(self._sink.dataSinceBatch(batch_id - 1).mkString("\n"))  # each in brackets
        return [_written(json.loads(row[1:-1])) for row in rows.splitlines()], json.loads(report.json())

    def _failure(self, failure: Any) -> JobError:
        return JobError(f'{self._table.declared_at}: table "{self._table.name}" has stopped: {thrown_reason(failure)}')

    def stop(self) -> None:
        """End the query."""
        self._query.stop()


def _written(fields: Mapping[str, Any]) -> Written:
    return Written(
        topic=fields["topic"],
        key=_from_hex(fields.get("key")),
        value=_from_hex(fields.get("value")),
        headers={name: bytes.fromhex(value) for name, value in fields.get("headers", {}).items()},
    )


def _from_hex(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)
