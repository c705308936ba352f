"""Protobuf records in a real Spark: every type of field, hard records, and what Confluent's serializer writes."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.message_factory import GetMessageClass

from tablegate.gateway.contract.rows import RowDecoder, row_schema
from tablegate.gateway.contract.types import is_marker_key
from tablegate.jobs.dataflow.sources import (
    KAFKA_SCHEMA,
    KEY_COLUMN,
    SourceSchemas,
    decode_source,
    well_formed,
    with_key,
)
from tablegate.jobs.planning.declarations import load_contract, load_table
from tablegate.jobs.testing import Event, run_table, stop_spark
from tablegate.jobs.testing.session import process_session
from tests.kit.job.orders.declared import LEGACY, LINE, ORDER, TABLE, table_of
from tests.kit.job.process import JobProcess, wait_until
from tests.kit.programs.kafka import Broker, NewRecord, consume, new_topic, produce

pytestmark = pytest.mark.jvm

Order = GetMessageClass(ORDER.descriptor)
FRAME = bytes([0, 0, 0, 0, 1, 2, 2])
FULL = {
    "order_id": "a",
    "is_gift": True,
    "delta": -1,
    "small": 2**32 - 1,
    "big": -(2**63),
    "biggest": 2**64 - 1,
    "weight": 0.5,
    "distance": -0.25,
    "raw": b"\0\xff",
    "status": 1,
    "history": [1, 9],
    "counts": {-1: 5},
    "lines": [{"product": "ü", "price": {"units": 1, "nanos": 500_000_000}, "parts": [{"pieces": 1}]}, {}],
    "lines_by_name": {"x": {"pieces": 2}},
    "remark": "",
    "order_time": {"seconds": -1, "nanos": 1_999},
    "took": {"seconds": 90_061, "nanos": 1_000},
    "points": {"value": 7},
    "extra": {"a": [1, None]},
    "nothing": {},
    "cash": {"currency_code": "EUR", "units": 2, "nanos": 10_000_000},
}


@pytest.fixture(scope="module", autouse=True)
def spark_ends_with_the_module() -> Iterator[None]:
    yield
    stop_spark()


def newest(rows: Any, order_id: str) -> Any:
    return json.loads(rows[order_id,]["newest"])


def test_every_type_of_field() -> None:
    rows = run_table(TABLE, [Event("orders", value=FULL), Event("orders", value={"order_id": "b"})]).rows
    assert newest(rows, "a") == {
        **{
            name: FULL[name]
            for name in ("order_id", "is_gift", "delta", "small", "big", "biggest", "weight", "distance")
        },
        "raw": "AP8=",
        "status": "STATUS_PAID",
        "history": ["STATUS_PAID", "9"],
        "counts": {"-1": 5},
        "lines": [
            {
                "product": "ü",
                "pieces": 0,
                "price": {"currency_code": "", "amount": 1.5},
                "parts": ['{"pieces": 1}'],
            },
            {"product": "", "pieces": 0, "price": None, "parts": []},
        ],
        "lines_by_name": {"x": {"product": "", "pieces": 2, "price": None, "parts": []}},
        "remark": "",
        "order_time": "1969-12-31T23:59:59.000Z",
        "took": "INTERVAL '1 01:01:01.000001' DAY TO SECOND",
        "points": 7,
        "extra": '{"a": [1.0, null]}',
        "nothing": {},
        "card": None,
        "cash": {"currency_code": "EUR", "amount": 2.01},
    }
    unset = ("remark", "order_time", "took", "points", "extra", "nothing", "card", "cash")
    assert [name for name, value in newest(rows, "b").items() if value is None] == sorted(
        unset, key=ORDER.field_names.index
    )


def test_malformed_records() -> None:
    good = Order(order_id="a", cash={"units": 3}).SerializeToString()
    hard = [
        (None, "value is null"),
        (b"", "value is not Protobuf in the Confluent wire format"),
        (good, "value is not Protobuf in the Confluent wire format"),
        (FRAME[:5], "value is not Protobuf in the Confluent wire format"),
        (b"\1" + FRAME[1:] + good, "value is not Protobuf in the Confluent wire format"),
        (FRAME[:6], "value has another message index than tests.orders.Order has in orders.proto"),
        (FRAME[:5] + b"\0" + good, "value has another message index than tests.orders.Order has in orders.proto"),
        (FRAME[:5] + b"\2\4" + good, "value has another message index than tests.orders.Order has in orders.proto"),
        (FRAME + good[:-1], "value is not a message tests.orders.Order"),
        (FRAME + b"\x12\x01\xff", "value is not a message tests.orders.Order"),
        (FRAME + Order(order_time={"nanos": -1}).SerializeToString(), "value is not a message tests.orders.Order"),
    ]
    events = [Event("orders", value=value) for value, _ in hard]
    of_the_class = Event("orders", value=Order(order_id="a", cash={"units": 4}))
    result = run_table(TABLE, [Event("orders", value=FRAME + good), *events, of_the_class], [Event("orders", value={})])
    assert [(letter.value, letter.reason) for letter in result.dead_letters] == hard
    counted = {key: (row["order_count"], row["cash"]) for key, row in result.rows.items()}
    assert counted == {("a",): (2, 7), ("",): (1, 0)}


def test_bare_messages_and_keys() -> None:
    table = table_of(value=LEGACY, key=LINE)
    events = [
        Event("orders", value={"name": "a"}, key={"product": "p"}),
        Event("orders", value=b"\x0a\x01a", key=b"\0\0\0\0\1\0"),
        Event("orders", value=b"", key={}),
    ]
    result = run_table(table, events)
    assert {key: row["order_count"] for key, row in result.rows.items()} == {("a",): 1}
    assert [letter.reason for letter in result.dead_letters] == [
        "key has another message index than tests.orders.Order.Line has in orders.proto",
        "value is not a message tests.orders.Legacy",
    ]


def test_a_record_is_decoded_once() -> None:
    source = replace(TABLE.source_of(""), where="is_gift")
    records = process_session().createDataFrame([], KAFKA_SCHEMA)
    decoded = decode_source(records, source, SourceSchemas(), deletes=False)
    keyed = with_key(decoded, source, TABLE, load_contract(TABLE)).frame
    plan = well_formed(keyed).groupBy(KEY_COLUMN).count()._jdf.queryExecution().executedPlan().toString()
    assert plan.count("ArrowEvalPython") == 1


JOB = """from tablegate.jobs.table import Mode, Protobuf, Source, Table

TABLE = Table(
    name="customer_totals",
    contract="totals.proto",
    source=Source("{topic}", Protobuf("tests.orders.Order", file="orders.proto")),
    key={{"order_id": "order_id"}},
    columns={{"order_count": "count(*)", "cash": "coalesce(sum(cash.amount), 0)", "newest": "max(status)"}},
    mode=Mode.MICROBATCH,
)
"""


def test_job_reads_what_confluents_serializer_writes(broker: Broker, schema_registry: str, tmp_path: Path) -> None:
    for name in ("orders.proto", "totals.proto"):
        shutil.copy(Path(ORDER.declared_at.file).parent / name, tmp_path)
    topic = new_topic(broker.bootstrap, 1, prefix="orders")
    job = tmp_path / "job.py"
    job.write_text(JOB.format(topic=topic))
    with SchemaRegistryClient({"url": schema_registry}) as registry:
        values = []
        for form, fields in ((ORDER, {"cash": {"units": 1}}), (ORDER, {"cash": {"units": 2}, "status": 1}), (LINE, {})):
            message = GetMessageClass(form.descriptor)(**fields)
            serializer = ProtobufSerializer(type(message), registry)
            values.append(serializer(message, SerializationContext(topic, MessageField.VALUE)))
    produce(broker.bootstrap, topic, [NewRecord(None, value) for value in values])
    contract = load_contract(load_table(str(job)))
    changelog = "customer_totals-g1-changelog"
    arguments = ["--table", str(job), "--bootstrap", broker.bootstrap, "--checkpoints", str(tmp_path / "checkpoint")]
    with JobProcess(tmp_path / "logs", *arguments) as running:
        running.wait_for("running")
        wait_until(
            "the row", lambda: any(not is_marker_key(one.key) for one in consume(broker.bootstrap, changelog)), running
        )
        wait_until("dead letter", lambda: bool(consume(broker.bootstrap, "customer_totals-dead-letters")), running)
        assert running.stop() == 0
        assert "Traceback" not in running.errors()
    decoder = RowDecoder(contract, {1: json.dumps(row_schema(contract))})
    (value,) = (one.value for one in consume(broker.bootstrap, changelog) if not is_marker_key(one.key))
    assert value is not None
    row: Any = contract.row_class.FromString(decoder.decode(value))
    assert (row.order_id, row.order_count, row.cash.units, row.newest) == ("", 2, 3, "STATUS_UNSPECIFIED")
    (letter,) = consume(broker.bootstrap, "customer_totals-dead-letters")
    assert letter.value == values[-1]
    assert b"value has another message index" in dict(letter.headers)["reason"]
