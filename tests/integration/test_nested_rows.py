"""Rows with messages, lists, maps and oneofs: from a DataFrame and from a declared job, to clients."""

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from pyspark.sql import DataFrame, SparkSession

from tablegate.examples.demo.kafka import Broker
from tablegate.gateway.contract.binder.binder import bind
from tablegate.gateway.contract.descriptors import load_descriptors
from tablegate.jobs import FrameTable, Json, Mode, Processor, Source, Table
from tablegate.jobs.publishing import JobError, publish, publish_batch
from tablegate.jobs.testing import Event, run_table, stop_spark
from tests.kit.gateway_processes.gateway import GatewayProcess, soon
from tests.kit.gateway_processes.row_queries import RowQueries
from tests.kit.job.user_session import user_session
from tests.kit.programs.kafka import NewRecord, consume, new_topic, produce
from tests.kit.table.filled import ORDERS

pytestmark = pytest.mark.jvm

ITEM = (
    "struct<sku:string,pieces:bigint,price:decimal(38,9),marks:array<string>,"
    "sent_to:struct<street:string,city:string,floor:int>,courier:string,locker:int>"
)
COLUMNS = f"""
    id BIGINT, items ARRAY<{ITEM}>, address STRUCT<floor: INT, street: STRING, city: STRING>, tags ARRAY<STRING>,
    labels MAP<STRING, STRING>, by_line MAP<BIGINT, {ITEM}>, card STRING, cash DOUBLE,
    invoice STRUCT<street: STRING, city: STRING, floor: INT>, nickname STRING, points BIGINT,
    took INTERVAL DAY TO SECOND, extra STRING, anything STRUCT<type_url: STRING, value: BINARY>, deltas ARRAY<INT>,
    weights ARRAY<DOUBLE>, flags ARRAY<BOOLEAN>, history ARRAY<INT>, times ARRAY<TIMESTAMP>,
    counts MAP<BOOLEAN, INT>, free BOOLEAN, blobs ARRAY<BINARY>, maybes ARRAY<DOUBLE>, any_value STRING,
    waits MAP<STRING, INTERVAL DAY TO SECOND>, small ARRAY<FLOAT>, fixed ARRAY<BIGINT>
"""
FULL: dict[str, Any] = {
    "id": 1,
    "items": [
        {"sku": "a", "pieces": 2, "price": Decimal("9.99"), "marks": ["x", "y"], "locker": 0},
        {"sku": "b", "sent_to": {"street": "s", "city": "", "floor": 3}, "courier": "c"},
    ],
    "address": {"street": "Main", "city": "Bern", "floor": 2},
    "tags": ["new", "ü"],
    "labels": {"a": "1", "b": "2"},
    "by_line": {7: {"sku": "c", "pieces": 1}},
    "cash": 0.0,
    "nickname": "",
    "points": 5,
    "took": timedelta(days=1, microseconds=-1),
    "extra": '{"a": [1, null]}',
    "anything": {"type_url": "x/y", "value": b"\1"},
    "deltas": [-1, 1],
    "weights": [1.5],
    "flags": [True, False],
    "history": [1, 0],
    "times": [datetime(2026, 1, 1, tzinfo=UTC)],
    "counts": {True: 4},
    "blobs": [b"\0"],
    "maybes": [0.0, 2.5],
    "any_value": '"text"',
    "waits": {"a": timedelta(seconds=-1.5)},
    "small": [0.5],
    "fixed": [2**32 - 1],
}
FULL_JSON = {
    "id": "1",
    "items": [
        {"sku": "a", "pieces": "2", "price": {"units": "9", "nanos": 990_000_000}, "marks": ["x", "y"], "locker": 0},
        {"sku": "b", "sentTo": {"street": "s", "city": "", "floor": 3}, "courier": "c"},
    ],
    "address": {"street": "Main", "city": "Bern", "floor": 2},
    "tags": ["new", "ü"],
    "labels": {"a": "1", "b": "2"},
    "byLine": {"7": {"sku": "c", "pieces": "1"}},
    "cash": 0.0,
    "nickname": "",
    "points": "5",
    "took": "86399.999999s",
    "extra": {"a": [1.0, None]},
    "deltas": ["-1", "1"],
    "weights": [1.5],
    "flags": [True, False],
    "history": ["STATUS_PAID", "STATUS_UNSPECIFIED"],
    "times": ["2026-01-01T00:00:00Z"],
    "counts": {"true": 4},
    "blobs": ["AA=="],
    "maybes": [0.0, 2.5],
    "anyValue": "text",
    "waits": {"a": "-1.500s"},
    "small": [0.5],
    "fixed": [2**32 - 1],
}


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with user_session() as session:
        yield session


@pytest.fixture
def name() -> str:
    return f"nested_{uuid.uuid4().hex[:8]}"


@pytest.fixture
def contract(tmp_path: Path, name: str) -> Path:
    path = tmp_path / f"{name}.proto"
    path.write_text(ORDERS.read_text().replace('name: "orders"', f'name: "{name}"'))
    return path


class Orders(RowQueries):
    """Orders as protobuf's JSON."""

    def json(self, number: int) -> Any:
        """Return an order; without its Any, of which the type is not known."""
        row = self.get(id=number)
        row.ClearField("anything")
        return json_format.MessageToDict(row)

    def ids(self, **filters: Any) -> set[int]:
        """Return the ids of the orders that pass filters."""
        return {row.id for row in self.rows(**filters)}


@pytest.fixture
def orders(broker: Broker, tmp_path: Path, contract: Path) -> Iterator[Orders]:
    with GatewayProcess(tmp_path / "data", broker.bootstrap, contract=contract, workers=1) as gateway:
        yield Orders(gateway, bind(load_descriptors(contract)).queries.values())


def frame(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    return spark.createDataFrame(list(rows), COLUMNS)


def test_a_frame_of_nested_columns_is_served(
    spark: SparkSession, broker: Broker, name: str, contract: Path, orders: Orders
) -> None:
    table = FrameTable(name=name, contract=str(contract))
    wrong = [
        {"id": 3, "tags": ["a", None]},
        {"id": 4, "labels": {"a": None}},
        {"id": 5, "card": "", "cash": 0.0},
        {"id": 6, "items": [{"sku": "a"}, None]},
        {"id": 7, "items": [{"courier": "a", "locker": 1}]},
        {"id": 8, "by_line": {1: None}},
        {"id": 9, "items": [{"marks": [None]}]},
        {"id": 10, "fixed": [2**32]},
        {"id": 11, "fixed": [-1]},
        {"id": 12, "took": timedelta(days=4_000_000)},
        {"id": 13, "waits": {"a": timedelta(days=-4_000_000)}},
        {"id": 14, "items": [{"price": Decimal(2**63)}]},
        {"id": 15, "extra": "text"},
        {"id": 16, "extra": "[1]"},
        {"id": 17, "any_value": "{"},
    ]
    rows = [FULL, {"id": 2, "tags": ["new"], "items": [], "address": {}}, *wrong]
    done = publish_batch(frame(spark, *rows), table, bootstrap=broker.bootstrap)
    assert (done.rows, done.set_aside) == (2, len(wrong))
    soon(lambda: orders.json(1) == FULL_JSON, "the order as it is")
    assert orders.json(2) == {"id": "2", "tags": ["new"], "address": {}}
    assert orders.ids(tags_contains="ü") == {1}
    assert orders.ids(tags_contains="new", card="x") == set()
    letters = consume(broker.bootstrap, f"{name}-dead-letters")
    assert {dict(letter.headers or ())["reason"][:31] for letter in letters} == {b"row is none of the contract: a "}
    assert {json.loads(letter.value or b"")["id"] for letter in letters} == {row["id"] for row in wrong}


def test_a_frame_of_other_types_is_refused(spark: SparkSession, broker: Broker, name: str, contract: Path) -> None:
    table = FrameTable(name=name, contract=str(contract))
    other = frame(spark, FULL).selectExpr(
        "* EXCEPT (items, labels, took)", "tags AS items", "array(1) AS labels", "1 AS took"
    )
    with pytest.raises(JobError) as refused:
        publish_batch(other, table, bootstrap=broker.bootstrap)
    text = str(refused.value)
    assert 'column "items" is array<string>, the contract wants array<struct<sku:string,pieces:bigint,' in text
    assert 'column "labels" is array<int>, the contract wants map<string,string>' in text
    assert 'column "took" is int, the contract wants interval day to second' in text


def test_a_stream_of_nested_columns_is_served(
    spark: SparkSession, broker: Broker, name: str, contract: Path, orders: Orders, tmp_path: Path
) -> None:
    topic = new_topic(broker.bootstrap, 1)
    for number in (1, 2):
        produce(broker.bootstrap, topic, [NewRecord(None, json.dumps({"id": number, "tags": ["a"] * number}).encode())])
    read = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
    records = read.option("subscribe", topic).option("startingOffsets", "earliest").load()
    parsed = records.selectExpr("from_json(CAST(value AS STRING), 'id BIGINT, tags ARRAY<STRING>') AS it")
    others = [column for column in frame(spark, FULL).dtypes if column[0] not in ("id", "tags")]
    nulls = [f"CAST(NULL AS {kind}) AS {name}" for name, kind in others]
    parsed = parsed.selectExpr("it.id", "it.tags", *nulls)
    query = publish(
        parsed,
        FrameTable(name=name, contract=str(contract)),
        checkpoint=str(tmp_path / "checkpoint"),
        bootstrap=broker.bootstrap,
    )
    try:
        soon(lambda: orders.json(2) == {"id": "2", "tags": ["a", "a"]}, "the second order")
    finally:
        query.stop()


CUSTOMERS = """
syntax = "proto3";
package test.customers.v1;
import "google/protobuf/wrappers.proto";
import "google/type/money.proto";
import "tablegate/v1/options.proto";
message Line { string sku = 1; int64 pieces = 2; google.type.Money price = 3; }
message Customer {
  option (tablegate.v1.table) = { name: "customers" key: "customer" };
  string customer = 1;
  repeated Line last_lines = 2;
  map<string, int64> pieces_of = 3;
  google.protobuf.StringValue city = 4;
  oneof paid_by { string card = 5; double cash = 6; }
}
"""
LINES = "ARRAY<STRUCT<sku: STRING, pieces: INT, price: DECIMAL(10, 2)>>"


def customers(contract: Path, mode: Mode) -> Table:
    return Table(
        name="customers",
        contract=str(contract),
        source=Source("orders", Json(f"customer STRING, lines {LINES}, city STRING, card STRING, cash DOUBLE")),
        key={"customer": "customer"},
        columns={
            "last_lines": "max_by(lines, kafka.offset)",
            "pieces_of": "map_from_entries(transform(max_by(lines, kafka.offset), x -> struct(x.sku, x.pieces)))",
            "city": "max_by(city, kafka.offset)",
            "card": "max_by(card, kafka.offset)",
            "cash": "max_by(cash, kafka.offset)",
        },
        mode=mode,
    )


USERS = """
syntax = "proto3";
package test.users.v1;
import "google/protobuf/timestamp.proto";
import "tablegate/v1/options.proto";
message View { string page = 1; google.protobuf.Timestamp time = 2; }
message User {
  option (tablegate.v1.table) = { name: "users" key: "user" };
  string user = 1;
  repeated View last_views = 2;
}
"""


class LastViews(Processor):
    """Keeps the last five views of a user: a list that does not grow."""

    state = "views ARRAY<STRUCT<page: STRING, time: TIMESTAMP>>"
    emits = "last_views ARRAY<STRUCT<page: STRING, time: TIMESTAMP>>"

    def on_record(self, key: Any, record: Any, state: Any) -> Iterator[dict[str, object]]:
        state.views = [*state.views, {"page": record.page, "time": record.kafka.timestamp}][-5:]
        yield {"last_views": state.views}


def test_the_last_five_events_of_a_user(spark: SparkSession, tmp_path: Path) -> None:
    """The process has a Spark of its own, with Spark's own settings, which keep no state of processors."""
    contract = tmp_path / "users.proto"
    contract.write_text(USERS)
    table = Table(
        name="users",
        contract=str(contract),
        source=Source("views", Json("user STRING, page STRING")),
        key={"user": "user"},
        processor=LastViews(),
        columns={"last_views": "last_views"},
        mode=Mode.MICROBATCH,
    )
    start = datetime(2026, 1, 1, tzinfo=UTC)
    events = [
        Event("views", value={"user": "ann", "page": str(number)}, timestamp=start + timedelta(seconds=number))
        for number in range(8)
    ]
    try:
        rows = run_table(table, events).rows
    finally:
        stop_spark()
    views = [{"page": str(number), "time": start + timedelta(seconds=number)} for number in range(3, 8)]
    assert rows == {("ann",): {"last_views": views}}


def test_a_declared_table_of_nested_columns(tmp_path: Path) -> None:
    contract = tmp_path / "customers.proto"
    contract.write_text(CUSTOMERS)
    lines = [{"sku": "a", "pieces": 2, "price": 1.5}, {"sku": "b", "pieces": 1, "price": 0.25}]
    events = [
        Event("orders", value={"customer": "ann", "lines": lines[:1], "city": "Bern"}),
        Event("orders", value={"customer": "ann", "lines": lines, "card": "visa"}),
        Event("orders", value={"customer": "bob", "lines": [], "cash": 0}),
        Event("orders", value={"customer": "eve", "lines": [], "cash": 1, "card": "x"}),
        Event("orders", value={"customer": "joe", "lines": [None], "cash": 1}),
    ]
    try:
        result = run_table(customers(contract, Mode.MICROBATCH), events)
    finally:
        stop_spark()
    assert result.rows == {
        ("ann",): {
            "last_lines": [
                {"sku": "a", "pieces": 2, "price": Decimal("1.5")},
                {"sku": "b", "pieces": 1, "price": Decimal("0.25")},
            ],
            "pieces_of": {"a": 2, "b": 1},
            "city": None,
            "card": "visa",
            "cash": None,
        },
        ("bob",): {"last_lines": [], "pieces_of": {}, "city": None, "card": None, "cash": 0.0},
    }
