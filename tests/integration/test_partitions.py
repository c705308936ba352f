"""One key, one partition: librdkafka, Java's producer, Spark's Kafka sink, the gateway and the golden files agree."""

import json
import subprocess
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from tablegate.examples.demo.kafka import Broker
from tablegate.gateway.contract.catalogue import Partitioner, Table
from tablegate.gateway.contract.keys import KeyColumn, KeyType
from tablegate.jobs.dataflow.keys import key_bytes_sql, partition_sql, without_ansi
from tablegate.jobs.jars.jars import class_path
from tablegate.jobs.jars.java import find_java
from tablegate.jobs.running.session import spark_session
from tests.kit.programs.kafka import CONSUME_TIMEOUT_S, NewRecord, consume, new_topic, produce

pytestmark = pytest.mark.jvm

PARTITION_COUNT = 7  # a prime: a hash that is wrong in any bit lands elsewhere
GOLDEN = Path(__file__).parents[1] / "golden"
KEY_WRITER = Path(__file__).parents[1] / "kit/job/KeyWriter.java"
JAVA_TIMEOUT_S = 120.0  # 3 s on a quiet machine
COLUMN_SQL = {
    KeyType.INT64: "bigint",
    KeyType.BOOL: "boolean",
    KeyType.STRING: "string",
    KeyType.BYTES: "binary",
    KeyType.TIMESTAMP: "bigint",
}

Placed = Mapping[bytes, Set[int]]
"""The partitions in which a key lies, by its bytes."""


def golden(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((GOLDEN / name).read_text("utf-8"))
    return found


KEYS = golden("keys.json")


def columns_of(one: Mapping[str, Any]) -> tuple[KeyColumn, ...]:
    return tuple(KeyColumn(name, KeyType[type_]) for name, type_ in one["columns"])


def table_of(columns: tuple[KeyColumn, ...], partitioner: Partitioner) -> Table:
    """Return a table with this key, of which CRC32 takes the first column."""
    return Table(
        name="placed",
        row=None,  # type: ignore[arg-type] # not asked
        row_class=None,  # type: ignore[arg-type]
        key=columns,
        partition_by_count=1 if partitioner is Partitioner.CRC32 else len(columns),
        partitioner=partitioner,
    )


def key_bytes() -> list[bytes]:
    """Return the golden keys, each once: some types have bytes in common."""
    return sorted({bytes.fromhex(one["key"]) for one in KEYS})


def expected(partitioner: Partitioner) -> Placed:
    """Return where the golden files and the gateway place each golden key, which is one and the same partition."""
    partitions = {
        bytes.fromhex(one["key"]): one["partitions"][str(PARTITION_COUNT)]
        for one in golden("partitions.json")
        if one["partitioner"] == partitioner.name
    }
    placed: defaultdict[bytes, set[int]] = defaultdict(set)
    for one in KEYS:
        table = table_of(columns_of(one), partitioner)
        key = bytes.fromhex(one["key"])
        partition = partitions[table.partition_prefix(key)]
        assert table.partition_of(key, PARTITION_COUNT) == partition, one["name"]
        placed[key].add(partition)
    return placed


def landed(broker: Broker, topic: str) -> Placed:
    """Return where the records of a topic are."""
    placed: defaultdict[bytes, set[int]] = defaultdict(set)
    for record in consume(broker.bootstrap, topic):
        assert record.key is not None
        placed[record.key].add(record.partition)
    return placed


def test_the_golden_keys_reach_every_partition() -> None:
    for partitioner in Partitioner:
        placed = expected(partitioner)
        assert len(placed) >= 55
        assert set().union(*placed.values()) == set(range(PARTITION_COUNT))


def test_librdkafka(broker: Broker) -> None:
    topic = new_topic(broker.bootstrap, PARTITION_COUNT, "librdkafka")
    produce(broker.bootstrap, topic, [NewRecord(key, b"") for key in key_bytes()])
    assert landed(broker, topic) == expected(Partitioner.MURMUR2)


def test_librdkafka_consistent(broker: Broker) -> None:
    """Its CRC32 is of the whole key, so prefixes are written."""
    topic = new_topic(broker.bootstrap, PARTITION_COUNT, "consistent")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "consistent"})
    wanted: dict[bytes, set[int]] = {}
    for one in golden("partitions.json"):
        if one["partitioner"] == "CRC32" and one["key"]:  # an empty key goes anywhere
            wanted[bytes.fromhex(one["key"])] = {one["partitions"][str(PARTITION_COUNT)]}
    for prefix in wanted:
        producer.produce(topic, key=prefix)
    assert producer.flush(CONSUME_TIMEOUT_S) == 0
    assert landed(broker, topic) == wanted


def test_javas_producer(broker: Broker) -> None:
    java = find_java()
    if not java.with_name("javac").exists():
        pytest.skip(f'"{java}" has no compiler')
    topic = new_topic(broker.bootstrap, PARTITION_COUNT, "java")
    done = subprocess.run(
        [java, "-XX:TieredStopAtLevel=1", "-cp", class_path("broker"), KEY_WRITER, broker.bootstrap, topic],
        input="".join(f"{key.hex()}\n" for key in key_bytes()),
        capture_output=True,
        text=True,
        timeout=JAVA_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert landed(broker, topic) == expected(Partitioner.MURMUR2)


def test_sparks_sink(broker: Broker, tmp_path: Path) -> None:
    topics = {each: new_topic(broker.bootstrap, PARTITION_COUNT, each.name.lower()) for each in Partitioner}
    with spark_session("tests", master="local[2]", checkpoints=str(tmp_path), spark_log=tmp_path / "log") as spark:
        records = reduce(DataFrame.union, (_records(spark, each, topic) for each, topic in topics.items()))
        records.write.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap).save()
    for partitioner, topic in topics.items():
        assert landed(broker, topic) == expected(partitioner)


def _records(spark: SparkSession, partitioner: Partitioner, topic: str) -> DataFrame:
    """Return the golden keys as the sink takes them, with keys and partitions computed as a job computes them.

    One frame has the columns of all kinds of keys: a frame for each kind would take Spark a minute.
    """
    kinds = list(dict.fromkeys(columns_of(one) for one in KEYS))
    own = [
        tuple(KeyColumn(f"{column.name}_{kind}", column.type) for column in columns)
        for kind, columns in enumerate(kinds)
    ]
    types = {column.name: COLUMN_SQL[column.type] for columns in own for column in columns}
    partitions = [partition_sql(table_of(columns, partitioner), PARTITION_COUNT) or "NULL" for columns in own]
    rows = []
    for one in KEYS:
        kind = kinds.index(columns_of(one))
        values = {
            column.name: bytes.fromhex(value) if column.type is KeyType.BYTES else value
            for column, value in zip(own[kind], one["values"], strict=True)
        }
        rows.append({"kind": kind, **dict.fromkeys(types), **values})
    frame = spark.createDataFrame(
        rows, ", ".join(f"`{name}` {type_}" for name, type_ in {"kind": "int", **types}.items())
    )
    times = [column.name for columns in own for column in columns if column.type is KeyType.TIMESTAMP]
    frame = frame.withColumns({name: sql.timestamp_micros(name) for name in times})
    with without_ansi(spark):
        return frame.select(
            sql.lit(topic).alias("topic"),
            sql.expr(_case(partitions)).cast("int").alias("partition"),
            sql.expr(_case([key_bytes_sql(columns) for columns in own])).alias("key"),
            sql.lit(b"").alias("value"),
        )


def _case(expressions: Sequence[str]) -> str:
    """Return the SQL that is another one for each kind."""
    return f"CASE kind {' '.join(f'WHEN {kind} THEN {each}' for kind, each in enumerate(expressions))} END"
