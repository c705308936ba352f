"""Outputs in Protobuf: the bytes that protobuf's own library writes, framed as Confluent's serializers frame them."""

import random
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from tablegate.examples.demo.kafka import Broker
from tablegate.gateway.contract.registry_settings import RegistrySettings
from tablegate.jobs.dataflow.decoding import decoded_message, encoded_sql
from tablegate.jobs.dataflow.expressions import attempt
from tablegate.jobs.errors import JobError
from tablegate.jobs.planning.options import Options
from tablegate.jobs.table import Json, Mode, Protobuf, RecordOutput, RowOutput, Source, Table, Text
from tablegate.jobs.testing import Event, run_table
from tests.kit.job.counting_job import CONTRACT, JobInProcess, orders, write_job
from tests.kit.job.process import wait_until
from tests.kit.programs.kafka import consume, new_topic, produce

pytestmark = [pytest.mark.jvm, pytest.mark.usefixtures("spark")]  # the kit takes the session that is there

FILES = Path("tests/kit/job/written").absolute()
EVERY = Protobuf("tests.written.Every", file=str(FILES / "written.proto"))
ORDER = replace(EVERY, message="tests.written.Order")
PART = replace(EVERY, message="tests.written.Every.Part", framed=False)
LEGACY = Protobuf("tests.written.Legacy", file=str(FILES / "legacy.proto"), framed=False)
Every = GetMessageClass(EVERY.descriptor)
Legacy = GetMessageClass(LEGACY.descriptor)

BITS = {"int32": 32, "sint32": 32, "sfixed32": 32, "int64": 64, "sint64": 64, "sfixed64": 64}
UNSIGNED = {"uint32": 32, "fixed32": 32, "uint64": 64, "fixed64": 64}


def message(chance: random.Random) -> Any:
    """Return a message with any of its fields; numbers are often at the ends of their types, and texts long."""
    given: dict[str, Any] = {}

    def whole(bits: int, *, signed: bool = True) -> int:
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        edges = [low, high, 0, 1, min(127, high), 128, 16_383, 16_384, *([-1, -64, -65] if signed else [])]
        return chance.choice([chance.choice(edges), chance.randint(low, high), 1 << chance.randrange(bits - 1)])

    def text() -> str:
        return chance.choice(["", "a", "ü€😀", "x" * 127, "y" * 128, "z" * 20_000, "with 'quotes' and \\ \0"])

    def number() -> float:
        return chance.choice([0.0, -0.0, 1.5, float("inf"), float("-inf"), 5e-324, chance.random()])

    def part() -> dict[str, Any]:
        inner = {"n": chance.choice([0, -1, 300]), "texts": [text() for _ in range(chance.randrange(3))]}
        return chance.choice([{}, {"name": text(), "pieces": whole(32)}, {"inner": inner}, {"inner": {}}])

    def time() -> dict[str, int]:
        return {
            "seconds": chance.choice([0, -1, 1_700_000_000, -62_000_000_000]),
            "nanos": chance.choice([0, 1_000, 999_999_000]),
        }

    makers: dict[str, Any] = {
        "a_double": number,
        "a_float": lambda: chance.choice([0.0, -0.0, 0.5, float("inf")]),
        **{f"a_{kind}": (lambda bits=bits: whole(bits)) for kind, bits in BITS.items() if kind[0] != "i"},
        "an_int32": lambda: whole(32),
        "an_int64": lambda: whole(64),
        **{f"a_{kind}": (lambda bits=bits: whole(bits, signed=False)) for kind, bits in UNSIGNED.items()},
        "a_bool": lambda: chance.random() < 0.5,
        "a_string": text,
        "some_bytes": lambda: chance.choice([b"", b"\0", bytes(range(256))]),
        "kind": lambda: chance.choice([0, 1, -5, 77]),
        "perhaps": lambda: chance.choice([0, 5]),
        chance.choice(["left", "right"]): None,
        "numbers": lambda: [whole(64) for _ in range(chance.randrange(5))],
        "unpacked": lambda: [whole(32) for _ in range(chance.randrange(5))],
        "parts": lambda: [part() for _ in range(chance.randrange(4))],
        "by_name": lambda: {text()[:200]: part() for _ in range(chance.randrange(4))},
        "by_number": lambda: {whole(64): number() for _ in range(chance.randrange(4))},
        "by_bool": lambda: {chance.random() < 0.5: text() for _ in range(chance.randrange(3))},
        "at": time,
        "took": lambda: chance.choice([{}, {"seconds": 90_061, "nanos": 1_000}, {"seconds": -5, "nanos": -2_000}]),
        "wrapped": lambda: chance.choice([{}, {"value": whole(64)}]),
        "wrapped_text": lambda: {"value": text()},
        "times": lambda: [time() for _ in range(chance.randrange(3))],
        "cash": lambda: chance.choice(
            [{}, {"currency_code": "EUR", "units": 2**62, "nanos": 1}, {"units": -3, "nanos": -999_999_999}]
        ),
        "kinds": lambda: [chance.choice([0, 1, -5]) for _ in range(chance.randrange(3))],
    }
    makers |= {name: (text if name == "left" else part) for name in ("left", "right") if name in makers}
    given = {name: make() for name, make in makers.items() if chance.random() < 0.6}
    return Every(**given)


def test_messages_have_the_bytes_of_protobufs_own_library(spark: SparkSession) -> None:
    chance = random.Random(17)
    wanted = [message(chance).SerializeToString(deterministic=True) for _ in range(400)] + [b""]
    given = spark.createDataFrame([(bytearray(one),) for one in wanted], "message BINARY").coalesce(1)
    plain = replace(EVERY, framed=False)
    fields = given.select("message", decoded_message(plain, sql.col("message")).alias("fields")).select(
        "message", "fields.*"
    )
    found = fields.select("message", sql.expr(encoded_sql(plain)).alias("written")).collect()
    parsed = [(Every.FromString(row.message), Every.FromString(row.written)) for row in found]
    assert [pair for pair in parsed if pair[0] != pair[1]] == []
    # Libraries differ in the order of a map's entries, and in nothing else.
    plain_ones = [row for row, (one, _) in zip(found, parsed, strict=True) if _entries(one) < 2]
    assert len(plain_ones) > len(wanted) / 4
    assert [row for row in plain_ones if row.message != row.written] == []
    assert len(found) == len(wanted)


def _entries(one: Any) -> int:
    """Return how many entries the largest of a message's maps has."""
    return max(len(one.by_name), len(one.by_number), len(one.by_bool))


@pytest.mark.parametrize(
    ("fields", "written"),
    [
        ("'ann' AS customer, 7 AS order_count, array(1, 300) AS numbers", {"order_count": 7, "numbers": [1, 300]}),
        ("'ann' AS customer, CAST(NULL AS INT) AS order_count, CAST(NULL AS ARRAY<INT>) AS numbers", {}),
        ("'ann' AS customer, '12' AS order_count, array() AS numbers", {"order_count": 12}),
        ("CAST(NULL AS STRING) AS customer, 7 AS order_count, CAST(NULL AS ARRAY<INT>) AS numbers", None),
        ("'ann' AS customer, 3000000000 AS order_count, CAST(NULL AS ARRAY<INT>) AS numbers", None),
        ("'ann' AS customer, 'x' AS order_count, CAST(NULL AS ARRAY<INT>) AS numbers", None),
        ("'ann' AS customer, 1 AS order_count, array(1, NULL) AS numbers", None),
    ],
)
def test_values_that_a_message_cannot_hold_fail(
    spark: SparkSession, fields: str, written: dict[str, Any] | None
) -> None:
    found = (
        spark.sql(f"SELECT {fields}").select(attempt(sql.expr(encoded_sql(LEGACY))).alias("tried")).collect()[0].tried
    )
    wanted = Legacy(customer="ann", **written).SerializeToString() if written is not None else None
    assert (found.value if found is not None else None) == wanted


@pytest.mark.parametrize("value", ["-1", "CAST(18446744073709551616 AS DECIMAL(38, 0))", "1.5e19"])
def test_unsigned_field_takes_no_other_number(spark: SparkSession, value: str) -> None:
    form = replace(EVERY, message="tests.written.Every")
    others = [
        f"NULL AS `{one.name}`" for one in form.descriptor.fields if one.name not in ("a_uint64", "at", "took", "cash")
    ]
    times = ["CAST(NULL AS TIMESTAMP) AS at", "CAST(NULL AS INTERVAL DAY TO SECOND) AS took"]
    times.append("CAST(NULL AS STRUCT<currency_code: STRING, amount: DECIMAL(28, 9)>) AS cash")
    typed = [one.replace("NULL", kind) for one in others for kind in [_null_of(one)]]
    frame = spark.sql(f"SELECT {', '.join([*typed, *times, f'{value} AS a_uint64'])}")
    tried = frame.select(attempt(sql.expr(encoded_sql(form))).alias("tried")).collect()[0].tried
    if value == "1.5e19":
        assert Every.FromString(tried.value[7:]).a_uint64 == 15 * 10**18
    else:
        assert tried is None


def _null_of(field: str) -> str:
    part2 = "STRUCT<n: INT, texts: ARRAY<STRING>>"
    part = f"STRUCT<name: STRING, pieces: INT, inner: {part2}>"
    kinds = {
        "right": part,
        "numbers": "ARRAY<BIGINT>",
        "unpacked": "ARRAY<INT>",
        "parts": f"ARRAY<{part}>",
        "by_name": f"MAP<STRING, {part}>",
        "by_number": "MAP<BIGINT, DOUBLE>",
        "by_bool": "MAP<BOOLEAN, STRING>",
        "times": "ARRAY<TIMESTAMP>",
        "kinds": "ARRAY<STRING>",
    }
    return next((f"CAST(NULL AS {kind})" for name, kind in kinds.items() if f"`{name}`" in field), "NULL")


@pytest.fixture
def table(tmp_path: Path) -> Table:
    (tmp_path / "orders.proto").write_text(CONTRACT.read_text())
    return Table(
        name="order_totals",
        contract=str(tmp_path / "orders.proto"),
        source=Source("orders", Json("name STRING, pieces BIGINT, inner STRUCT<texts: ARRAY<STRING>, n: INT>")),
        key={"customer": "name"},
        columns={"order_count": "count(*)", "amount": "CAST(count(*) AS DOUBLE)"},
        having="order_count < 2",
        outputs=(
            RowOutput("rows", key=Text("customer"), value=ORDER),
            RecordOutput("records", key=PART, value=PART, where="pieces <> 0"),
        ),
        mode=Mode.MICROBATCH,
    )


def event(name: str, pieces: int, **more: Any) -> Event:
    return Event("orders", value={"name": name, "pieces": pieces, **more})


def test_rows_and_records_in_protobuf(table: Table) -> None:
    inner = {"texts": ["x", "y"], "n": 4}
    result = run_table(table, [event("ann", 1, inner=inner), event("bob", 0)], [event("bob", 2**40), event("eve", -3)])
    assert sorted(result.outputs["rows"], key=str) == [
        ("ann", {"customer": "ann", "order_count": 1, "amount": 1.0}),
        ("bob", None),
        ("bob", {"customer": "bob", "order_count": 1, "amount": 1.0}),
        ("eve", {"customer": "eve", "order_count": 1, "amount": 1.0}),
    ]
    # A number that the field cannot hold is left out, as in Avro.
    parts = [{"name": "ann", "pieces": 1, "inner": inner}, {"name": "eve", "pieces": -3, "inner": None}]
    assert sorted(result.outputs["records"], key=str) == [(one, one) for one in parts]


def test_field_that_no_column_has_is_refused(table: Table) -> None:
    output = RowOutput("rows", key=Text("customer"), value=replace(ORDER, message="tests.written.Every.Part"))
    with pytest.raises(JobError, match=r'output "rows" does not compute: .*`name`'):
        run_table(replace(table, outputs=(output,)), [event("ann", 1)])


@pytest.mark.parametrize("mode", ["MICROBATCH", "REALTIME, trigger_s=5"])
def test_registered_message_is_that_of_confluents_serializer(
    spark: SparkSession, broker: Broker, tmp_path: Path, options: Options, schema_registry: str, mode: str
) -> None:
    source, rows = new_topic(broker.bootstrap), new_topic(broker.bootstrap)
    value = f'Protobuf("tests.written.Order", file="{FILES / "written.proto"}")'
    more = f"mode=Mode.{mode}, outputs=(RowOutput('{rows}', key=Text('customer'), value={value}),)"
    job = write_job(tmp_path, name := f"in_protobuf_{mode[:5].lower()}", source, more=more, columns=COLUMNS)
    path = Path(job)
    path.write_text(path.read_text().replace("import Json,", "import Protobuf, RowOutput, Text, Json,"))
    produce(broker.bootstrap, source, orders("ann", 1))
    with JobInProcess(spark, job, replace(options, registry=RegistrySettings(url=schema_registry))) as running:
        running.run_until_read(source, 1)
        wait_until("a record", lambda: bool(consume(broker.bootstrap, rows)))
    written = consume(broker.bootstrap, rows)[0]
    order = GetMessageClass(ORDER.descriptor)(customer="ann", order_count=1, amount=2.5)
    with closing(SchemaRegistryClient({"url": schema_registry})) as client:
        registered = client.get_latest_version(f"{rows}-value")
        assert registered.schema.schema_type == "PROTOBUF"
        serializer = ProtobufSerializer(
            type(order), client, {"auto.register.schemas": False, "use.latest.version": True}
        )
        assert written.value == serializer(order, SerializationContext(rows, MessageField.VALUE))
        # What Confluent's serializer registers of the same file is no other version.
        ProtobufSerializer(type(order), client)(order, SerializationContext(rows, MessageField.VALUE))
        assert client.get_versions(f"{rows}-value") == [registered.version]
    assert (written.key, name) == (b"ann", name)


COLUMNS: Any = {"order_count": "count(*)", "amount": "max(2.5D)"}
