"""What the job asks of Spark SQL, on one Spark session: key bytes, partitions, reasons, errors of declarations."""

import io
import json
import random
import signal
import struct
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.errors import SparkRuntimeException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from tablegate.examples.demo.kafka import Broker
from tablegate.examples.tables.ratings import RATING_SCHEMA, TABLE
from tablegate.gateway.contract.catalogue import Partitioner
from tablegate.gateway.contract.catalogue import Table as ContractTable
from tablegate.gateway.contract.keys import INT64_MAX, INT64_MIN, KeyColumn, KeyType, KeyValue, encode_key
from tablegate.gateway.contract.rows import RowDecoder, row_schema
from tablegate.gateway.contract.types import make_version
from tablegate.jobs.dataflow.frames import make_rows
from tablegate.jobs.dataflow.inputs import group_records, side_inputs
from tablegate.jobs.dataflow.keys import key_bytes_sql, partition_sql, without_ansi
from tablegate.jobs.dataflow.sink_records import changelog_records, dead_letters
from tablegate.jobs.dataflow.sources import KAFKA_SCHEMA, Records, SourceSchemas, decode_source, with_key
from tablegate.jobs.errors import JobError, UnknownSchema
from tablegate.jobs.formats import Avro
from tablegate.jobs.planning.declarations import load_contract, load_table
from tablegate.jobs.planning.logic import NOT_REPEATABLE
from tablegate.jobs.planning.schemas import WriterSchemas
from tablegate.jobs.running.checkpoint import IDENTITY_FILE, Checkpoint, Identity
from tablegate.jobs.running.session import spark_session
from tablegate.jobs.table import Source, Table
from tests.kit.job.declared import COLUMNS, write_job
from tests.kit.job.process import wait_until
from tests.kit.programs.processes import alive, process_tree

pytestmark = pytest.mark.jvm

COLUMN_SQL = {
    KeyType.INT64: "bigint",
    KeyType.BOOL: "boolean",
    KeyType.STRING: "string",
    KeyType.BYTES: "binary",
    KeyType.TIMESTAMP: "timestamp",
}
COLUMNS_OF_EACH_TYPE = [KeyColumn(key_type.name.lower(), key_type) for key_type in KeyType]
TEXT_PARTS = [
    "",
    "\0",
    "\0\0",
    "a",
    "\xff",
    "é",
    "\u07ff",
    "\uffff",
    "\U0001f600",
    "\U0010ffff",
    "\n",
    "'",
    "\\",
    "ÿ\0",
]
BYTE_PARTS = [b"", b"\x00", b"\xff", b"\x00\xff", b"\x0a\x00", b"\xa0\x0b", b"\x01", b"\x00\x00", b"\x80"]
LATEST_MICROS = 253_402_300_799_999_999  # of the year 9999


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    checkpoint = tmp_path_factory.mktemp("spark")
    with spark_session(
        "tests", master="local[2]", checkpoints=str(checkpoint), spark_log=checkpoint / "log"
    ) as session:
        session.conf.set("spark.sql.shuffle.partitions", 2)
        yield session


def test_a_setting_that_keeps_spark_from_starting_is_named(tmp_path: Path) -> None:
    script = """
from pathlib import Path
from tablegate.jobs.running.session import spark_session
with spark_session("t", master="local[1]", checkpoints="c", spark_log=Path("log"), conf={"spark.driver.memory": "x"}):
    pass
"""
    found = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "JobError: Spark does not start: " in found.stderr
    assert found.stderr.rstrip().endswith("read its log, and look at what --conf gives: spark.driver.memory")


def test_a_spark_of_fewer_slots_is_not_used(tmp_path: Path) -> None:
    script = """
from pathlib import Path
from tablegate.jobs.errors import JobError
from tablegate.jobs.running.session import spark_session
with spark_session("t", master="local[2]", checkpoints="c", spark_log=Path("log")):
    try:
        with spark_session("t", master="local[6]", checkpoints="c", spark_log=Path("log")):
            pass
    except JobError as error:
        print(error)
    with spark_session("t", master="local[2]", checkpoints="c", spark_log=Path("log")):
        print("as many")
"""
    found = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    refused, used = found.stdout.splitlines()
    assert refused == (
        'this process has started Spark already, with master "local[2]", and "local[6]" is needed; start no Spark in '
        "a declaration, or give that one as many slots"
    )
    assert used == "as many"


def test_java_maps_the_archive_of_its_classes(broker: Broker, tmp_path: Path) -> None:
    """A process of its own starts Spark: in this one a test may have started Java without our options."""
    script = """
from pathlib import Path
from tablegate.jobs.running.session import spark_session
with spark_session("t", master="local[2]", checkpoints="c", spark_log=Path("log")) as spark:
    print(Path(f"/proc/{spark.sparkContext._gateway.proc.pid}/maps").read_text())
"""
    found = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "/classes/spark-" in found.stdout
    assert "/classes/broker-" in Path(f"/proc/{broker.pid}/maps").read_text()


def some_keys(count: int) -> list[tuple[KeyValue, ...]]:
    """Return keys of one column of each type, with every awkward value among them."""
    choice = random.Random(7)
    edges = [0, 1, -1, 255, 256, -256, 2**31, -(2**31), INT64_MIN, INT64_MAX, INT64_MIN + 1]
    moments = [0, 1, -1, -1_000_000, LATEST_MICROS, 1_700_000_000_123_456]
    keys: list[tuple[KeyValue, ...]] = []
    for number in range(count):
        values: dict[KeyType, KeyValue] = {
            KeyType.INT64: edges[number % len(edges)] if number % 2 else choice.randint(INT64_MIN, INT64_MAX),
            KeyType.BOOL: choice.random() < 0.5,
            KeyType.STRING: "".join(choice.choices(TEXT_PARTS, k=choice.randint(0, 8))),
            KeyType.BYTES: b"".join(choice.choices(BYTE_PARTS, k=choice.randint(0, 8))),
            KeyType.TIMESTAMP: moments[number % len(moments)] if number % 3 else choice.randint(-(10**15), 10**16),
        }
        keys.append(tuple(values[column.type] for column in COLUMNS_OF_EACH_TYPE))
    return keys


def frame_of(spark: SparkSession, keys: list[tuple[KeyValue, ...]]) -> DataFrame:
    names = [column.name for column in COLUMNS_OF_EACH_TYPE]
    raw = {KeyType.TIMESTAMP: "bigint"}
    schema = ", ".join(
        f"`{column.name}` {raw.get(column.type, COLUMN_SQL[column.type])}" for column in COLUMNS_OF_EACH_TYPE
    )
    rows = spark.createDataFrame([dict(zip(names, key, strict=True)) for key in keys], schema)
    return rows.withColumn("timestamp", sql.expr("timestamp_micros(`timestamp`)"))


def test_key_bytes_and_partitions_are_those_of_python(spark: SparkSession) -> None:
    keys = some_keys(4_000)
    contract = ContractTable(
        name="all",
        row=None,  # type: ignore[arg-type] # not asked
        row_class=None,  # type: ignore[arg-type]
        key=tuple(COLUMNS_OF_EACH_TYPE),
        partition_by_count=3,
        partitioner=Partitioner.CRC32,
    )
    partition = partition_sql(contract, 7)
    assert partition is not None
    with without_ansi(spark):
        computed = frame_of(spark, keys).select(
            *(sql.expr(key_bytes_sql([column])).alias(f"{column.name}_bytes") for column in COLUMNS_OF_EACH_TYPE),
            sql.expr(key_bytes_sql(COLUMNS_OF_EACH_TYPE)).alias("whole"),
            sql.expr(partition).alias("partition"),
        )
    for key, row in zip(keys, computed.collect(), strict=True):
        for column, value in zip(COLUMNS_OF_EACH_TYPE, key, strict=True):
            assert bytes(row[f"{column.name}_bytes"]) == encode_key([column], [value]), (column, value)
        whole = encode_key(COLUMNS_OF_EACH_TYPE, key)
        assert bytes(row["whole"]) == whole
        assert row["partition"] == contract.partition_of(whole, 7)


def test_murmur2_is_left_to_the_producer() -> None:
    assert partition_sql(load_contract(TABLE), 7) is None


# Records as a source has them, without Kafka.


def avro(schema: str, record: dict[str, Any], schema_id: int = 1) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(schema)), record)
    return b"\0" + schema_id.to_bytes(4, "big") + out.getvalue()


def records_of(spark: SparkSession, values: list[bytes | None]) -> DataFrame:
    rows = [
        {"key": b"k", "value": value, "topic": "ratings", "partition": 0, "offset": offset}
        for offset, value in enumerate(values)
    ]
    records = spark.createDataFrame(rows, KAFKA_SCHEMA)
    return records.withColumn("timestamp", sql.expr("timestamp_millis(1700000000000 + offset)"))


def keyed_records(
    spark: SparkSession,
    values: list[bytes | None],
    *,
    table: Table = TABLE,
    contract: ContractTable | None = None,
    writers: WriterSchemas | None = None,
) -> Records:
    source = table.source_of("")
    records = decode_source(records_of(spark, values), source, SourceSchemas(writers), deletes=False)
    return with_key(records, source, table, contract or load_contract(table))


def reasons_of(spark: SparkSession, values: list[bytes | None], **change: Any) -> dict[int, str]:
    """Return the reasons in the dead letters' headers, by offset."""
    letters = dead_letters([keyed_records(spark, values, **change)], "letters").collect()
    found = {}
    for letter in letters:
        headers = {header["key"]: bytes(header["value"]).decode() for header in letter["headers"]}
        assert set(headers) == {"reason", "topic", "partition", "offset"}
        assert (letter["topic"], letter["key"]) == ("letters", b"k")
        value = values[int(headers["offset"])]
        assert letter["value"] == (None if value is None else bytearray(value))
        found[int(headers["offset"])] = headers["reason"]
    return found


def test_reasons_of_malformed_records(spark: SparkSession) -> None:
    good = avro(RATING_SCHEMA, {"movie_id": 1, "rating": 2.0})
    values = [good, None, b"", b"{}", b"\x01" + good[1:], good[:-1], good[:5], b"\0\0\0\0", good]
    framing = "value is not Avro in the Confluent wire format"
    decoding = "value does not decode by its Avro schema"
    expected = {1: "value is null", 2: framing, 3: framing, 4: framing, 5: decoding, 6: decoding, 7: framing}
    assert reasons_of(spark, values) == expected


def test_writers_schemas_are_found_by_id(spark: SparkSession) -> None:
    newer = json.loads(RATING_SCHEMA)
    newer["fields"].insert(0, {"name": "comment", "type": "string"})
    writers = WriterSchemas(
        decoded={7: RATING_SCHEMA, 4_000_000_000: json.dumps(newer)}, ignored={8: "other.Type"}, incompatible={6: "no"}
    )
    values: list[bytes | None] = [
        avro(RATING_SCHEMA, {"movie_id": 1, "rating": 2.0}, 7),
        avro(json.dumps(newer), {"movie_id": 2, "rating": 3.0, "comment": "good"}, 4_000_000_000),
        avro(RATING_SCHEMA, {"movie_id": 1, "rating": 2.0}, 9),
        b"\0\0\0\0\x08whatever",
        b"\0\0\0\0\x06whatever",
    ]
    assert reasons_of(spark, values, writers=writers) == {
        2: "schema id 9 is not that of a schema of this topic",
        4: "schema 6 cannot be read as the declared one: no",
    }
    fields = keyed_records(spark, values, writers=writers).frame
    found = [(row["movie_id"], row["rating"], row["__ignored"]) for row in fields.collect()]
    assert found[:2] == [(1, 2.0, None), (2, 3.0, None)]
    assert found[3] == (None, None, "other.Type")


def test_a_schema_that_the_registry_may_know_ends_the_query(spark: SparkSession) -> None:
    schemas = SourceSchemas(WriterSchemas(decoded={7: RATING_SCHEMA}, ignored={}, incompatible={}), can_learn=True)
    value = avro(RATING_SCHEMA, {"movie_id": 1, "rating": 2.0}, 9)
    records = decode_source(records_of(spark, [value]), TABLE.source_of(""), schemas, deletes=False)
    with pytest.raises(SparkRuntimeException) as caught:
        records.frame.collect()
    unknown = UnknownSchema.found_in(str(caught.value))
    assert unknown is not None
    assert (unknown.topic, unknown.schema_id) == ("ratings", 9)


def test_ids_of_schemas_in_headers(spark: SparkSession) -> None:
    known, lost, unknown = uuid.UUID(int=7), uuid.UUID(int=8), uuid.UUID(int=9)
    writers = WriterSchemas({7: RATING_SCHEMA}, {5: "other.Type"}, {}, {known.hex.upper(): 7}).and_lost({1 << 31: lost})
    framed = avro(RATING_SCHEMA, {"movie_id": 1, "rating": 2.0}, 7)

    def reasons(*values: tuple[bytes | None, bytes | None]) -> list[str | None]:
        records = records_of(spark, [value for value, _ in values])
        ids = {offset: header for offset, (_, header) in enumerate(values) if header is not None}
        found = "map(" + ", ".join(f"{offset}L, X'{header.hex()}'" for offset, header in ids.items()) + ")"
        header = f"struct('__value_schema_id' AS key, try_element_at({found}, offset) AS value)"
        all_of = f"array(struct('a' AS key, X'00' AS value), {header})"
        headers = f"IF(array_contains(map_keys({found}), offset), {all_of}, NULL)"
        with_headers = records.withColumn("headers", sql.expr(headers))
        schemas = SourceSchemas(writers, can_learn=True)
        rows = decode_source(with_headers, TABLE.source_of(""), schemas, deletes=False).frame.collect()
        assert all(row["rating"] == 2.0 for row in rows if row["__reason"] is None and row["__ignored"] is None)
        return [row["__ignored"] or (row["__reason"] and row["__reason"]["text"]) for row in rows]

    assert reasons(
        (framed, None),
        (framed[5:], b"\x01" + known.bytes),
        (framed[5:], framed[:5]),
        (b"whatever", b"\0\0\0\0\x05"),
        (framed[5:], b"\x01" + lost.bytes),
        (None, b"\x01" + known.bytes),
        (framed[5:], b"\x02" + known.bytes),
    ) == [
        None,
        None,
        None,
        "other.Type",
        f"schema {lost} cannot be read as the declared one: the schema registry does not know it",
        "value is null",
        "value is not Avro in the Confluent wire format",
    ]
    with pytest.raises(SparkRuntimeException) as caught:
        reasons((framed[5:], b"\x01" + unknown.bytes))
    error = UnknownSchema.found_in(str(caught.value))
    assert error is not None
    assert (error.topic, error.schema_id) == ("ratings", unknown)


def test_the_id_of_a_keys_schema_in_a_header(spark: SparkSession) -> None:
    by_text = '{"type": "record", "name": "K", "fields": [{"name": "name", "type": "string"}]}'
    guid = uuid.UUID(int=7)
    schemas = SourceSchemas(WriterSchemas({7: RATING_SCHEMA}, {}, {}, {guid.hex.upper(): 7}), can_learn=True)
    source = Source("ratings", Avro(RATING_SCHEMA), key=Avro(by_text))
    records = records_of(spark, [avro(RATING_SCHEMA, {"movie_id": 1, "rating": 2.0}, 7)])
    key = avro(by_text, {"name": "ann"})
    for text, header in ((key, b""), (key[5:], b"\x01" + guid.bytes), (key[5:], b"\0\0\0\0\x09")):
        headers = f"array(struct('__key_schema_id' AS key, X'{header.hex()}' AS value))"
        given = records.withColumn("key", sql.lit(text)).withColumn("headers", sql.expr(headers))
        [row] = decode_source(given, source, schemas, deletes=False).frame.collect()
        assert (row["name"], row["__reason"]) == ("ann", None)


def test_keys_that_no_table_can_hold(spark: SparkSession) -> None:
    by_text = '{"type": "record", "name": "R", "fields": [{"name": "name", "type": ["null", "string"]}]}'
    table = replace(TABLE, source=Source("ratings", Avro(by_text)), key={"name": "name"}, columns=COLUMNS)
    contract = ContractTable(
        name="ratings",
        row=None,  # type: ignore[arg-type] # not asked
        row_class=None,  # type: ignore[arg-type]
        key=(KeyColumn("name", KeyType.STRING),),
        partition_by_count=1,
        partitioner=Partitioner.MURMUR2,
    )
    bad_text = avro(by_text, {"name": "abc"}).replace(b"abc", b"a\xffc")
    values: list[bytes | None] = [
        avro(by_text, {"name": "x" * 498}),
        avro(by_text, {"name": None}),
        bad_text,
        avro(by_text, {"name": "x" * 499}),
        avro(by_text, {"name": "\0" * 260}),
        avro(by_text, {"name": ""}),
    ]
    assert reasons_of(spark, values, table=table, contract=contract) == {
        1: 'key column "name" is null',
        2: 'key column "name" is not UTF-8',
        3: "key has 501 bytes, more than 500",
        4: "key has 522 bytes, more than 500",
    }


def rows_of(keyed: Records, table: Table) -> DataFrame:
    inputs = side_inputs({"": keyed}, {}, table)
    grouped = group_records({"": inputs[""].frame}, table)
    return make_rows(grouped, table, row_schema(load_contract(table)))


def test_rows_as_changelog_records(spark: SparkSession) -> None:
    ratings = [(362, 10.0), (-1, 2.0), (362, 8.0)]
    values: list[bytes | None] = [
        avro(RATING_SCHEMA, {"movie_id": movie, "rating": rating}) for movie, rating in ratings
    ]
    contract = load_contract(TABLE)
    schema = row_schema(contract)
    keyed = keyed_records(spark, [*values, b"junk"])
    records = changelog_records(
        rows_of(keyed, TABLE),
        TABLE,
        contract,
        topic="changelog",
        generation=3,
        value_schema=schema,
        schema_id=258,
        partition_count=4,
        row_outputs=True,
        schema_ids={},
    ).collect()
    averages = {bytes(one["key"]): bytes(one["value"]) for one in records if one["topic"] == "rating-averages"}
    assert averages == {struct.pack(">q", 362): struct.pack(">d", 9.0), struct.pack(">q", -1): struct.pack(">d", 2.0)}
    records = [one for one in records if one["topic"] == "changelog"]
    decoder = RowDecoder(contract, {258: json.dumps(schema)})
    found = {bytes(record["key"]): record for record in records}
    assert set(found) == {encode_key(contract.key, [362]), encode_key(contract.key, [-1])}
    record = found[encode_key(contract.key, [362])]
    row: Any = contract.row_class.FromString(decoder.decode(bytes(record["value"])))
    assert (row.movie_id, row.average_rating, row.rating_count) == (362, 9.0, 2)
    assert row.update_time.ToMilliseconds() == 1_700_000_000_002
    assert [(header["key"], bytes(header["value"])) for header in record["headers"]] == [("v", make_version(3, 2))]


def analyze(spark: SparkSession, table: Table) -> None:
    keyed = keyed_records(spark, [None], table=table)
    rows_of(keyed, table)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"columns": {**COLUMNS, "average_rating": "avg(ratin)"}}, 'column "average_rating" does not compute: [UNRES'),
        ({"columns": {**COLUMNS, "average_rating": "avg(rating"}}, 'column "average_rating" does not compute: [PARSE'),
        ({"columns": {**COLUMNS, "average_rating": "rating"}}, 'column "average_rating" does not compute: [MISSING'),
        ({"columns": {**COLUMNS, "rating_count": "'many'"}}, 'column "rating_count" is string, the contract wants big'),
        ({"columns": {**COLUMNS, "rating_count": "avg(rating)"}}, "write CAST(… AS BIGINT)"),
        ({"key": {"movie_id": "movie"}}, 'column "movie_id" does not compute'),
        ({"key": {"movie_id": "rating"}}, 'column "movie_id" is double, the contract wants bigint'),
    ],
)
def test_wrong_expression_is_refused(
    spark: SparkSession, tmp_path: Path, change: dict[str, dict[str, str]], words: str
) -> None:
    table = load_table(write_job(tmp_path, **change))  # type: ignore[arg-type]
    with pytest.raises(JobError) as caught:
        analyze(spark, table)
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path}/job.py:")
    assert "\n" not in str(caught.value)


def test_what_is_not_repeatable_is_what_spark_says(spark: SparkSession) -> None:
    jvm: Any = spark.sparkContext._jvm
    of_name = jvm.java.lang.Class.forName
    nondeterministic = of_name("org.apache.spark.sql.catalyst.expressions.Nondeterministic")
    functions = [one for one in spark.catalog.listFunctions() if (one.className or "").startswith("org.apache.spark")]
    assert len(functions) > 300
    found = {one.name for one in functions if nondeterministic.isAssignableFrom(of_name(one.className))}
    assert {"rand", "uuid"} <= found
    assert found <= set(NOT_REPEATABLE)


IDENTITY = Identity(table="ratings", generation=2, changelog_topic_id="c", source_topic_ids={"ratings": "s"})


def test_checkpoint_is_claimed_once(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = Checkpoint(spark, str(tmp_path / "deep" / "checkpoint"))
    assert checkpoint.owner() is None
    checkpoint.claim(IDENTITY)
    checkpoint.claim(IDENTITY)
    assert checkpoint.owner() == IDENTITY


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"table": "other"}, 'belongs to table "other", not "ratings"; give each table its own'),
        ({"generation": 1}, "belongs to generation 1, the declaration says 2"),
        ({"source_topic_ids": {"ratings": "x"}}, 'belongs to source topic "ratings" as it was before'),
        ({"source_topic_ids": {}}, 'belongs to a table without the source topic "ratings"'),
        ({"source_topic_ids": {"ratings": "s", "b": "t"}}, 'belongs to a table with the source topic "b"'),
        ({"changelog_topic_id": "x"}, "belongs to the changelog topic as it was before"),
    ],
)
def test_checkpoint_of_another_job(spark: SparkSession, tmp_path: Path, change: dict[str, Any], words: str) -> None:
    checkpoint = Checkpoint(spark, str(tmp_path))
    checkpoint.claim(replace(IDENTITY, **change))
    with pytest.raises(JobError) as caught:
        checkpoint.claim(IDENTITY)
    assert words in str(caught.value)


def test_damaged_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / IDENTITY_FILE).write_text("{")
    with pytest.raises(JobError, match=r"has a damaged tablegate\.json"):
        Checkpoint(spark, str(tmp_path)).owner()


def test_state_that_was_never_committed_is_discarded(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = Checkpoint(spark, str(tmp_path))
    checkpoint.discard_uncommitted("table")
    commits, planned, state = (tmp_path / "table" / name for name in ("commits", "offsets", "state"))
    for directory in (commits, planned, state):
        directory.mkdir(parents=True)
    (commits / ".0.b536013d.tmp").touch()
    (planned / "0").touch()
    checkpoint.discard_uncommitted("table")
    assert [path.name for path in (tmp_path / "table").iterdir()] == ["offsets"]
    for directory in (commits, state):
        directory.mkdir()
    (commits / "0").touch()
    checkpoint.discard_uncommitted("table")
    assert (commits / "0").exists()
    assert state.exists()


def test_checkpoint_that_cannot_be_written(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JobError, match=r'checkpoint ".*/file" cannot be used: '):
        Checkpoint(spark, str(tmp_path / "file")).claim(IDENTITY)


def test_code_of_many_tables_is_compiled_once(tmp_path: Path) -> None:
    """In a process of its own: in this one a test may have started a session of a user, and the first one counts."""
    script = """
from pathlib import Path
from tablegate.jobs.running.session import spark_session

with spark_session("t", master="local[2]", checkpoints="c", spark_log=Path("log")) as spark:
    compiled = spark._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME().getCount
    for _ in range(2):
        before = compiled()
        for number in range(120):  # Spark would keep 100
            assert spark.range(number, number + 1).selectExpr(f"id - {number}L AS zero").first()[0] == 0
        print(compiled() - before)
"""
    found = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    first, second = map(int, found.stdout.split())
    assert first > 100
    assert second == 0


LONG_CALL = """
from pathlib import Path
from tablegate.jobs.errors import JobError
from tablegate.jobs.running.session import spark_session

try:
    with spark_session("t", master="local[1]", checkpoints="c", spark_log=Path("log")) as spark:
        print("runs", flush=True)
        try:
            spark.sql("SELECT java_method('java.lang.Thread', 'sleep', 600000L)").collect()
        except Exception as error:
            raise JobError(str(error)) from None
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("moment", ["Java starts", "Java is called"])
def test_ctrl_c_leaves_neither_java_nor_traces(tmp_path: Path, moment: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", LONG_CALL], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        if moment == "Java is called":
            assert process.stdout.readline() == "runs\n"
            wait_until("task", lambda: _has_thread(process.pid, "Executor task l"))
        else:
            wait_until("Java", lambda: _has_thread(process.pid, "java"))
        tree = process_tree(process.pid)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=200)
        assert output == "interrupted\n"
        assert "Traceback" not in errors
        wait_until("end of Java", lambda: not any(alive(pid) for pid in tree))
    finally:
        process.kill()
        process.communicate()


def _has_thread(pid: int, name: str) -> bool:
    """Return whether a process, or one that it has started, has a thread of this name; Linux keeps 15 characters."""
    names = set()
    for each in process_tree(pid):
        for path in Path(f"/proc/{each}/task").glob("*/comm"):
            with suppress(OSError):  # it has ended
                names.add(path.read_text().strip())
    return name in names
