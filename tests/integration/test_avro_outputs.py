"""Outputs in Avro: framed, with the types of their schema, under ids of a registry where there is one."""

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import SparkSession

from tablegate.examples.demo.kafka import Broker
from tablegate.gateway.contract.registry_settings import RegistrySettings
from tablegate.jobs.errors import JobError
from tablegate.jobs.planning.options import Options
from tablegate.jobs.table import Avro, Json, Mode, RecordOutput, RowOutput, Source, Table, Text
from tablegate.jobs.testing import Event, run_table
from tablegate.jobs.testing.events import START_TIME
from tests.kit.job.counting_job import CONTRACT, JobInProcess, orders, write_job
from tests.kit.job.process import wait_until
from tests.kit.programs.kafka import consume, new_topic, produce

pytestmark = [pytest.mark.jvm, pytest.mark.usefixtures("spark")]  # the kit takes the session that is there


def schema(*fields: tuple[str, Any]) -> str:
    return json.dumps(
        {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields]}
    )


ROW = Avro(schema(("customer", "string"), ("order_count", "int"), ("amount", ["null", "double"])))
KEY = Avro(schema(("customer", "string")))
LINE: dict[str, Any] = {
    "type": "record",
    "name": "Line",
    "fields": [{"name": "sku", "type": "string"}, {"name": "n", "type": "int"}],
}
RECORD = Avro(
    schema(
        ("customer", ["null", "string"]),
        ("at", {"type": "long", "logicalType": "timestamp-millis"}),
        ("kind", {"type": "enum", "name": "Kind", "symbols": ["NEW", "SENT"]}),
        ("lines", {"type": "array", "items": LINE}),
    )
)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    (tmp_path / "orders.proto").write_text(CONTRACT.read_text())
    fields = "customer STRING, at TIMESTAMP, kind STRING, lines ARRAY<STRUCT<sku: STRING, n: BIGINT>>"
    return Table(
        name="order_totals",
        contract=str(tmp_path / "orders.proto"),
        source=Source("orders", Json(fields)),
        key={"customer": "customer"},
        columns={"order_count": "count(*)", "amount": "CAST(count(*) AS DOUBLE)"},
        having="order_count < 2",
        outputs=(
            RowOutput("rows", key=KEY, value=ROW),
            RecordOutput("records", key=Text("customer"), value=RECORD),
        ),
        mode=Mode.MICROBATCH,
    )


def event(customer: str, kind: str | None) -> Event:
    lines = [{"sku": "a", "n": 1}, {"sku": "b", "n": 2}]
    return Event("orders", value={"customer": customer, "at": START_TIME, "kind": kind, "lines": lines})


def test_rows_and_records_in_avro(table: Table) -> None:
    result = run_table(table, [event("ann", "NEW"), event("bob", "NEW")], [event("bob", None), event("eve", "OLD")])
    assert sorted(result.outputs["rows"], key=str) == [
        ({"customer": "ann"}, {"customer": "ann", "order_count": 1, "amount": 1.0}),
        ({"customer": "bob"}, None),
        ({"customer": "bob"}, {"customer": "bob", "order_count": 1, "amount": 1.0}),
        ({"customer": "eve"}, {"customer": "eve", "order_count": 1, "amount": 1.0}),
    ]
    # What the schema cannot hold, no kind and one that it does not know, is left out.
    lines = [{"sku": "a", "n": 1}, {"sku": "b", "n": 2}]
    assert sorted(result.outputs["records"]) == [
        (name, {"customer": name, "at": START_TIME, "kind": "NEW", "lines": lines}) for name in ("ann", "bob")
    ]


def test_fields_of_messages_go_by_their_names(table: Table) -> None:
    line = {**LINE, "fields": LINE["fields"][::-1]}
    nested = {"type": "record", "name": "Box", "fields": [{"name": "first", "type": ["null", "Line"]}]}
    value = Avro(schema(("lines", {"type": "array", "items": line}), ("by", {"type": "map", "values": nested})))
    sku = "struct<sku: STRING, n: BIGINT>"
    fields = f"customer STRING, lines ARRAY<{sku}>, by MAP<STRING, STRUCT<other: INT, first: {sku}>>"
    output = RecordOutput("records", key=Text("customer"), value=value)
    given = {"lines": [{"sku": "a", "n": 1}], "by": {"x": {"first": {"sku": "5", "n": 6}}, "y": {"first": None}}}
    result = run_table(
        replace(table, source=Source("orders", Json(fields)), outputs=(output,)),
        [Event("orders", value={"customer": "ann", **given})],
    )
    assert result.outputs["records"] == (("ann", given),)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Avro(schema(("nobody", "string"))), 'output "records" does not compute: .*nobody'),
        (
            Avro(schema(("lines", {"type": "array", "items": {**LINE, "fields": [{"name": "m", "type": "int"}]}}))),
            'output "records" does not compute: .*No such struct field `m`',
        ),
        (Avro(schema(("lines", "int"))), 'output "records" does not compute: .*lines'),
        (Avro(schema(("customer", "unknown"))), 'output "records" has an Avro schema that Spark cannot read'),
    ],
)
def test_schema_that_does_not_fit_is_refused(table: Table, value: Avro, words: str) -> None:
    wrong = replace(table, outputs=(RecordOutput("records", key=Text("customer"), value=value),))
    with pytest.raises(JobError, match=words):
        run_table(wrong)


def test_consumers_read_by_the_registry(
    spark: SparkSession, broker: Broker, schema_registry: str, tmp_path: Path, options: Options
) -> None:
    source, topic = new_topic(broker.bootstrap), new_topic(broker.bootstrap)
    more = f"""mode=Mode.MICROBATCH,
    outputs=(RowOutput("{topic}", key=Avro({KEY.schema!r}), value=Avro({ROW.schema!r})),)"""
    job = write_job(tmp_path, "in_avro", source, more=more)
    text = Path(job).read_text()
    Path(job).write_text(text.replace("import Json,", "import Avro, Json, RowOutput,"))
    produce(broker.bootstrap, source, orders("ann", 3))
    with JobInProcess(spark, job, replace(options, registry=RegistrySettings(url=schema_registry))) as running:
        running.run_until_read(source, 3)
        wait_until("the row is there", lambda: bool(consume(broker.bootstrap, topic)))
    found = consume(broker.bootstrap, topic)[-1]
    with closing(SchemaRegistryClient({"url": schema_registry})) as client:
        read = AvroDeserializer(client)
        assert read(found.key, SerializationContext(topic, MessageField.KEY)) == {"customer": "ann"}
        value = read(found.value, SerializationContext(topic, MessageField.VALUE))
    assert value == {"customer": "ann", "order_count": 3, "amount": 0.0}
