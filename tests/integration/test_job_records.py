"""What becomes of records that are hard on a table: those that cannot be computed, come too early, or move a row."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tablegate.jobs import (
    Avro,
    Join,
    Json,
    Latest,
    Long,
    Mode,
    RecordOutput,
    RowOutput,
    Source,
    Table,
    Text,
    Window,
)
from tablegate.jobs.errors import JobError
from tablegate.jobs.planning.declarations import load_table
from tablegate.jobs.testing import Event, Result, run_table, stop_spark
from tablegate.jobs.testing.events import START_TIME

pytestmark = pytest.mark.jvm

INT64_MAX = 2**63 - 1


@pytest.fixture(scope="module", autouse=True)
def spark_ends_with_the_module() -> Iterator[None]:
    yield
    stop_spark()


def table(source: Source | None, expression: str, **changes: Any) -> Table:
    """Return a table of a number for each text."""
    return Table(
        name="suspicious_browsers",
        contract="examples/browsers/v1/browsers.proto",
        source=source,
        **{
            "key": {"browser": "name"},
            "columns": {"action_count": expression},
            "mode": Mode.MICROBATCH,
            **changes,
        },
    )


SOURCE = Source("amounts", Json("name STRING, amount STRING, number BIGINT"))


def amount(name: str, amount: str = "0", number: int = 0) -> Event:
    return Event("amounts", value={"name": name, "amount": amount, "number": number})


def counts(result: Result) -> dict[str, int]:
    return {key[0]: row["action_count"] for key, row in result.rows.items()}


def reasons(result: Result) -> dict[int, str]:
    return {letter.offset: letter.reason for letter in result.dead_letters}


UNCOMPUTABLE = 'column "action_count" cannot be computed with this record'


class TestWhatCannotBeComputed:
    def test_a_text_that_is_no_number_is_set_aside(self) -> None:
        events = [amount("a", "1"), amount("a", "many"), amount("a", "2"), amount("b", "few")]
        result = run_table(table(SOURCE, "sum(CAST(amount AS BIGINT)) + count(*)"), events, [amount("a", "3")])
        assert counts(result) == {"a": 9}
        assert reasons(result) == {1: UNCOMPUTABLE, 3: UNCOMPUTABLE}

    def test_division_by_zero_is_set_aside(self) -> None:
        divided = table(SOURCE, "CAST(sum(100 DIV number) AS BIGINT)")
        result = run_table(divided, [amount("a", number=50), amount("a", number=0)])
        assert (counts(result), reasons(result)) == ({"a": 2}, {1: UNCOMPUTABLE})

    def test_a_product_beyond_bigint_is_set_aside(self) -> None:
        events = [amount("a", number=2), amount("a", number=INT64_MAX)]
        result = run_table(table(SOURCE, "sum(number * 2)"), events)
        assert (counts(result), reasons(result)) == ({"a": 4}, {1: UNCOMPUTABLE})

    def test_what_a_filter_leaves_out_is_not_computed(self) -> None:
        filtered = table(SOURCE, "sum(CAST(amount AS BIGINT)) FILTER (WHERE number = 1)")
        result = run_table(filtered, [amount("a", "5", 1), amount("a", "many", 0), amount("a", "many", 1)])
        assert (counts(result), reasons(result)) == ({"a": 5}, {2: UNCOMPUTABLE})
        percentile = table(SOURCE, "CAST(percentile(number * 2, 0.5) FILTER (WHERE number < 9) AS BIGINT)")
        result = run_table(percentile, [amount("a", number=3), amount("a", number=INT64_MAX)])
        assert (counts(result), reasons(result)) == ({"a": 6}, {})

    def test_what_does_not_pass_is_not_computed(self) -> None:
        passing = table(replace(SOURCE, where="number = 1"), "sum(CAST(amount AS BIGINT))")
        result = run_table(passing, [amount("a", "5", 1), amount("a", "many", 0)])
        assert (counts(result), reasons(result)) == ({"a": 5}, {})

    def test_a_sum_goes_beyond_bigint_and_comes_back(self) -> None:
        big = [amount("a", number=INT64_MAX), amount("b", number=1)]
        result = run_table(table(SOURCE, "sum(number)"), big, [amount("a", number=1)], [amount("a", number=-2)])
        changes = [change.row and change.row["action_count"] for change in result.changes if change.key == ("a",)]
        assert changes == [INT64_MAX, None, INT64_MAX - 1]
        assert counts(result) == {"a": INT64_MAX - 1, "b": 1}
        assert not result.dead_letters

    def test_a_row_that_cannot_be_computed_is_gone_until_it_can(self) -> None:
        quotient = table(SOURCE, "CAST(100 DIV sum(number) AS BIGINT)")
        result = run_table(quotient, [amount("a", number=2)], [amount("a", number=-2)], [amount("a", number=4)])
        assert [change.row and change.row["action_count"] for change in result.changes] == [50, None, 25]

    def test_two_columns_that_share_what_fails(self) -> None:
        ratings = replace(
            load_table("ratings"),
            columns={
                "average_rating": "CAST(1 DIV sum(CAST(rating AS BIGINT)) AS DOUBLE)",
                "rating_count": "1 DIV sum(CAST(rating AS BIGINT))",
                "update_time": "max(kafka.timestamp)",
            },
            outputs=(),
        )
        rating = Event("ratings", value={"movie_id": 1, "rating": 0.0})
        assert not run_table(ratings, [rating]).rows

    def test_a_join_sets_aside_by_side(self) -> None:
        sides = {
            "amounts": SOURCE,
            "names": Latest(Source("names", Json("full STRING"), key=Text("name")), join=Join.LEFT),
        }
        joined = table(None, "sum(CAST(amounts.amount AS BIGINT)) + length(names.full)", sides=sides)
        named = Event("names", key="a", value={"full": "ann"})
        result = run_table(joined, [amount("a", "1"), amount("a", "many"), named, Event("names", key="a", value=b"{")])
        assert counts(result) == {"a": 4}
        assert sorted((letter.topic, letter.offset) for letter in result.dead_letters) == [("amounts", 1), ("names", 1)]

    def test_an_output_leaves_out_what_it_cannot_compute(self) -> None:
        outputs = (
            RecordOutput("numbers", key=Text("name"), value=Long("CAST(amount AS BIGINT)")),
            RowOutput("quotients", key=Text("browser"), value=Long("1 DIV (action_count - 1)")),
        )
        result = run_table(
            table(SOURCE, "count(*)", outputs=outputs), [amount("a", "x"), amount("b", "7"), amount("b", "8")]
        )
        assert result.outputs == {"numbers": (("b", 7), ("b", 8)), "quotients": (("b", 1),)}
        assert counts(result) == {"a": 1, "b": 2}

    def test_a_letter_has_the_head_of_what_is_too_large(self) -> None:
        key, value = b"k" * 2_000_000, b"{" * 2_000_000
        result = run_table(table(SOURCE, "count(*)"), [Event("amounts", key=key, value=value)])
        (letter,) = result.dead_letters
        assert (letter.key, letter.value) == (key[: 64 * 1024], value[: 768 * 1024])
        assert (letter.key_bytes, letter.value_bytes) == (2_000_000, 2_000_000)


WINDOWED = load_table("action_counts")


def action(second: float, *, partition: int = 0, browser: str = "b", kafka_second: float | None = None) -> Event:
    return Event(
        "browser_actions",
        value={"browser": browser, "action": "click", "time": START_TIME + timedelta(seconds=second)},
        partition=partition,
        timestamp=START_TIME + timedelta(seconds=second if kafka_second is None else kafka_second),
    )


class TestEventTime:
    def test_an_event_of_the_far_future_ends_no_window(self) -> None:
        far = (datetime(2100, 1, 1, tzinfo=UTC) - START_TIME).total_seconds()
        result = run_table(WINDOWED, [action(0), action(far, kafka_second=1)], [action(2)], [action(4)])
        assert sum(row["action_count"] for row in result.rows.values()) == 9
        assert (reasons(result), result.late) == (
            {1: "event time is more than 3600 s ahead of the time that Kafka has of it"},
            0,
        )

    def test_the_bound_is_declared(self) -> None:
        window = replace(WINDOWED.window or Window(size_s=1), ahead_s=10)
        result = run_table(
            replace(WINDOWED, window=window), [action(10, kafka_second=0), action(10.001, kafka_second=0)]
        )
        assert list(reasons(result)) == [1]

    @pytest.mark.parametrize("time", ["-290308-12-21T19:59:05Z", "+294247-01-10T04:00:54Z", "0000-06-01T00:00:00Z"])
    def test_a_time_at_either_end_is_set_aside(self, time: str) -> None:
        extreme = Event("browser_actions", value={"browser": "b", "action": "click", "time": time})
        result = run_table(WINDOWED, [extreme, action(0)], [action(1)])
        assert list(reasons(result)) == [0]
        assert sum(row["action_count"] for row in result.rows.values()) == 3 + 2  # at 0 s there are three windows

    def test_a_partition_behind_another_loses_nothing(self) -> None:
        ahead = [action(3600 + second, partition=0, browser="ahead") for second in range(5)]
        behind = [action(second, partition=1, browser="behind") for second in range(5)]
        later = [action(3600 + second, partition=1, browser="behind") for second in range(5)]
        result = run_table(WINDOWED, ahead, behind, later)
        assert result.late == 0
        assert {key[0] for key in result.rows} == {"ahead", "behind"}

    def test_late_within_a_partition_is_late(self) -> None:
        both = [action(100, partition=partition) for partition in (0, 1)]
        result = run_table(WINDOWED, both, [action(0, partition=1)])
        assert result.late == 3

    def test_an_idle_partition_holds_windows_for_a_day(self) -> None:
        idle = [action(0, partition=1, browser="idle")]
        days = [[action(86_400 * day, browser="busy")] for day in (1, 2)]
        result = run_table(WINDOWED, idle, *days, [action(1, partition=1, browser="idle")])
        assert result.late > 0


ORDERS = Source("orders", Json("customer STRING, amount BIGINT"), key=Text("id"))
PLACED_ORDERS = """
syntax = "proto3";
package tests.placed;
import "tablegate/v1/options.proto";
import "tablegate/v1/query.proto";
service PlacedOrdersService {
  rpc ScanPlacedOrders(ScanPlacedOrdersRequest) returns (stream ScanPlacedOrdersResponse) {
    option (tablegate.v1.query) = { scan: {} };
  }
}
message ScanPlacedOrdersRequest { tablegate.v1.ScanOptions scan_options = 1; }
message ScanPlacedOrdersResponse {
  repeated PlacedOrder placed_orders = 1;
  tablegate.v1.ScanProgress progress = 2;
}
message PlacedOrder {
  option (tablegate.v1.table) = { name: "placed_orders" key: "customer" key: "id" };
  string customer = 1;
  string id = 2;
  int64 amount = 3;
}
"""


def order(key: str, customer: str | None, amount: int = 0) -> Event:
    return Event("orders", key=key, value=None if customer is None else {"customer": customer, "amount": amount})


class TestLatest:
    @pytest.fixture
    def index(self, tmp_path: Path) -> Table:
        (tmp_path / "orders.proto").write_text(PLACED_ORDERS)
        return Table(
            name="placed_orders",
            contract=str(tmp_path / "orders.proto"),
            sides={"orders": Latest(ORDERS)},
            key={"customer": "customer", "id": "id"},
            columns={"amount": "orders.amount"},
            mode=Mode.MICROBATCH,
        )

    def test_a_row_moves_with_its_record(self, index: Table) -> None:
        result = run_table(index, [order("o1", "ann", 5)], [order("o1", "bob", 6)], [order("o1", None)])
        seen = [{change.key: change.row for change in result.changes if change.batch == batch} for batch in (1, 2, 3)]
        ann, bob = ("ann", "o1"), ("bob", "o1")
        assert seen == [{ann: {"amount": 5}}, {ann: None, bob: {"amount": 6}}, {ann: None, bob: None}]
        assert (result.rows, result.dead_letters) == ({}, ())

    def test_a_row_that_moves_within_a_batch_and_back(self, index: Table) -> None:
        moves = [order("o1", name, number) for number, name in enumerate(["ann", "bob", "cid", "bob"])]
        result = run_table(index, moves, [order("o2", "ann", 7)], [order("o1", "ann", 8)])
        assert result.rows == {("ann", "o1"): {"amount": 8}, ("ann", "o2"): {"amount": 7}}

    def test_only_a_place_is_missing(self, index: Table) -> None:
        result = run_table(
            index, [order("o1", "ann", 5), Event("orders", key="o1", value={"amount": 1}), order("o1", None)]
        )
        assert reasons(result) == {1: 'key column "customer" is null'}
        assert not result.rows

    def test_what_stops_matching_takes_its_moving_row(self, index: Table) -> None:
        matching = replace(index, sides={"orders": Latest(replace(ORDERS, where="amount < 10"))})
        assert not run_table(matching, [order("o1", "ann", 5)], [order("o1", "bob", 50)]).rows

    def test_a_record_that_stops_matching_takes_its_row(self) -> None:
        regular = Latest(replace(ORDERS, where="amount < 10"))
        matching = table(None, "orders.amount", sides={"orders": regular}, key={"browser": "id"})
        result = run_table(matching, [order("o1", "a", 5), order("o2", "b", 50)], [order("o1", "a", 20)])
        assert [(change.key[0], change.row is not None) for change in result.changes] == [("o1", True), ("o1", False)]

    def test_no_tombstone_where_there_never_was_a_row(self) -> None:
        customers = load_table("customers")
        batches = [[Event("tp_prospects", key="1", value={"name": name})] for name in ("ann", "bob")]
        assert not run_table(customers, *batches).changes


ENVELOPE = """{
  "type": "record", "name": "Envelope", "namespace": "shop.orders",
  "fields": [
    {"name": "before", "type": ["null", {"type": "record", "name": "Value", "fields": [
      {"name": "id", "type": "long"}, {"name": "customer", "type": "string"}]}], "default": null},
    {"name": "after", "type": ["null", "Value"], "default": null},
    {"name": "op", "type": "string"}
  ]
}"""
KEY = '{"type": "record", "name": "Key", "namespace": "shop.orders", "fields": [{"name": "id", "type": "long"}]}'


# As the documentation of Debezium's connectors has it, and Confluent's converter writes it.
DOCUMENTED_ENVELOPE = """{
  "type": "record", "name": "Envelope", "namespace": "shop.public.orders", "connect.version": 2,
  "connect.name": "shop.public.orders.Envelope",
  "fields": [
    {"name": "before", "default": null, "type": ["null", {
      "type": "record", "name": "Value", "connect.name": "shop.public.orders.Value", "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": ["null", "string"], "default": null},
        {"name": "price", "default": null, "type": ["null", {"type": "bytes", "scale": 2, "precision": 10,
          "connect.version": 1, "connect.parameters": {"scale": "2", "connect.decimal.precision": "10"},
          "connect.name": "org.apache.kafka.connect.data.Decimal", "logicalType": "decimal"}]},
        {"name": "placed", "type": {"type": "long", "connect.version": 1,
          "connect.name": "io.debezium.time.MicroTimestamp"}},
        {"name": "state", "default": "new", "type": {"type": "string", "connect.version": 1,
          "connect.default": "new", "connect.parameters": {"allowed": "new,paid"},
          "connect.name": "io.debezium.data.Enum"}}
      ]}]},
    {"name": "after", "type": ["null", "Value"], "default": null},
    {"name": "source", "type": {"type": "record", "name": "Source", "namespace": "io.debezium.connector.postgresql",
      "connect.name": "io.debezium.connector.postgresql.Source", "fields": [
        {"name": "version", "type": "string"}, {"name": "connector", "type": "string"},
        {"name": "name", "type": "string"}, {"name": "ts_ms", "type": "long"},
        {"name": "snapshot", "default": "false", "type": [{"type": "string", "connect.version": 1,
          "connect.parameters": {"allowed": "true,first,last,false,incremental"}, "connect.default": "false",
          "connect.name": "io.debezium.data.Enum"}, "null"]},
        {"name": "lsn", "type": ["null", "long"], "default": null}
      ]}},
    {"name": "transaction", "default": null, "type": ["null", {"type": "record", "name": "block",
      "namespace": "event", "connect.version": 1, "connect.name": "event.block", "fields": [
        {"name": "id", "type": "string"}, {"name": "total_order", "type": "long"},
        {"name": "data_collection_order", "type": "long"}]}]},
    {"name": "op", "type": "string"},
    {"name": "ts_ms", "type": ["null", "long"], "default": null},
    {"name": "ts_us", "type": ["null", "long"], "default": null},
    {"name": "ts_ns", "type": ["null", "long"], "default": null}
  ]
}"""
SOURCE_BLOCK = {
    "version": "3.0.0.Final",
    "connector": "postgresql",
    "name": "shop",
    "ts_ms": 1,
    "snapshot": "false",
    "lsn": 23_876_408,
}


def documented_row(customer: str, price: str) -> dict[str, object]:
    return {"id": 7, "customer": customer, "price": Decimal(price), "placed": 3, "state": "paid"}


class TestDebezium:
    def rows_of(self, source: Source, *events: Event) -> Result:
        latest = Latest(replace(source, where="after IS NOT NULL"))
        return run_table(
            table(
                None, "length(orders.after.customer)", sides={"orders": latest}, key={"browser": "CAST(id AS STRING)"}
            ),
            *([event] for event in events),
        )

    def test_avro_with_an_avro_key(self) -> None:
        source = Source("orders", Avro(ENVELOPE), key=Avro(KEY))
        created = {"before": None, "after": {"id": 7, "customer": "ann"}, "op": "c"}
        deleted = {"before": {"id": 7, "customer": "ann"}, "after": None, "op": "d"}
        events = [Event("orders", key={"id": 7}, value=value) for value in (created, deleted, None)]
        result = self.rows_of(source, *events)
        assert [change.row for change in result.changes] == [{"action_count": 3}, None, None]
        broken = self.rows_of(
            source, Event("orders", key=b"7", value=created), Event("orders", key=b"\0" * 5, value=created)
        )
        assert reasons(broken) == {
            0: "key is not Avro in the Confluent wire format",
            1: "key does not decode by its Avro schema",
        }

    def test_avro_as_documented(self) -> None:
        source = Source("orders", Avro(DOCUMENTED_ENVELOPE), key=Avro(KEY))
        old, new = documented_row("ann", "10.50"), documented_row("bob", "0.07")

        def event(op: str, number: int | None = 7, **both: object) -> Event:
            value = {"before": None, "after": None, **both, "source": SOURCE_BLOCK, "transaction": None, "op": op}
            times = {"ts_ms": 1, "ts_us": 1_000, "ts_ns": 1_000_000}
            return Event("orders", key=None if number is None else {"id": number}, value={**value, **times})

        gone = Event("orders", key={"id": 7}, value=None)
        events = [
            event("r", after=old),  # of the snapshot at first
            event("u", before=old, after=new),
            event("u", before=None, after={**new, "price": None}),  # as without REPLICA IDENTITY FULL
            event("d", before=old),
            gone,  # which Debezium writes behind each delete
            event("t", None),  # a truncation has no key, and is of all rows
            event("c", after=old),
            event("d", before=old),
            gone,
            event("c", 8, after={**old, "id": 8}),  # another primary key is a delete and a new row
        ]
        latest = Latest(replace(source, where="after IS NOT NULL"))
        cents = "CAST(coalesce(orders.after.price, -1) * 100 + orders.after.placed AS BIGINT)"
        result = run_table(
            table(None, cents, sides={"orders": latest}, key={"browser": "CAST(id AS STRING)"}),
            *([one] for one in events),
        )
        seen = [change.row and change.row["action_count"] for change in result.changes]
        assert seen == [1_053, 10, -97, None, None, 1_053, None, None, 1_053]
        assert result.rows == {("8",): {"action_count": 1_053}}
        assert [letter.offset for letter in result.dead_letters] == [5]

    def test_json_with_schemas(self) -> None:
        fields = "before STRUCT<id BIGINT, customer STRING>, after STRUCT<id BIGINT, customer STRING>, op STRING"
        source = Source("orders", Json(fields, at="payload"), key=Json("id BIGINT", at="payload"))
        values = [
            {
                "schema": {"type": "struct"},
                "payload": {"before": None, "after": {"id": 7, "customer": "ann"}, "op": "c"},
            },
            {
                "schema": {"type": "struct"},
                "payload": {"before": {"id": 7, "customer": "ann"}, "after": None, "op": "d"},
            },
            {"schema": {"type": "struct"}},
        ]
        key = {"schema": {"type": "struct"}, "payload": {"id": 7}}
        result = self.rows_of(source, *(Event("orders", key=key, value=value) for value in values))
        assert [change.row for change in result.changes] == [{"action_count": 3}, None]
        assert list(reasons(result)) == [2]


def test_fields_that_spark_cannot_read_are_told_in_a_sentence() -> None:
    wrong = Source("amounts", Json("name STRIN, amount BIGINT"))
    with pytest.raises(JobError) as caught:
        run_table(table(wrong, "count(*)"))
    assert 'source "amounts" has fields that Spark cannot read: ' in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_suggestion_names_no_column_of_the_jobs_own() -> None:
    with pytest.raises(JobError) as caught:
        run_table(table(SOURCE, "sum(numbr)"))
    assert "`number`" in str(caught.value)
    assert "__" not in str(caught.value)


def test_a_field_that_no_event_has_is_told() -> None:
    misspelt = Source("amounts", Json("name STRING, amonut STRING, number BIGINT"))
    result = run_table(
        table(misspelt, "count(amonut) + sum(number)"), [amount("a", "1", 2), Event("amounts", value=b"{")]
    )
    assert result.unseen_fields == ("amounts: amonut",)
    assert run_table(table(SOURCE, "sum(number)"), [amount("a")], [amount("b")]).unseen_fields == ()


def test_a_null_that_reads_as_zero_is_told() -> None:
    averaged = table(SOURCE, "max(number)")
    assert run_table(averaged, [amount("a", number=1)]).null_columns == ()
    missing = Event("amounts", value={"name": "a"})
    result = run_table(averaged, [missing])
    assert (counts(result), result.null_columns) == ({"a": 0}, ("action_count",))
    assert run_table(averaged, [missing, amount("a", number=1)]).null_columns == ()
