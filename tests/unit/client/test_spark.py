"""The format "tablegate" without Java: what Spark would ask of it, from a server in this process."""

import math
import pickle
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from pyspark.sql.pandas.types import to_arrow_schema

from tablegate.client.arrow import arrow_table
from tablegate.client.spark import Tablegate
from tests.kit.gateways_in_process.recorded import RecordedTable
from tests.kit.table.filled import ORDERS, RATINGS, catalogue_of, orders, rating
from tests.kit.table.random_orders import random_order

pytestmark = pytest.mark.tools

NANS = [math.nan, 1.5, -0.0, math.inf, -math.inf]
OPS = {
    EqualTo: lambda one, other: one == other,
    GreaterThan: lambda one, other: one > other,
    GreaterThanOrEqual: lambda one, other: one >= other,
    LessThan: lambda one, other: one < other,
    LessThanOrEqual: lambda one, other: one <= other,
    In: lambda one, others: one in others,
}


def _hard_rating(number: int) -> Any:
    row = rating(number, average=NANS[number % 5], count=number % 4)
    row.update_time.nanos = number % 3 * 500  # less than a microsecond
    return row


RATED = [_hard_rating(number) for number in range(60)]


@pytest.fixture(scope="module")
def ratings() -> Iterator[RecordedTable]:
    with RecordedTable(RATINGS, "ratings", RATED) as served:
        yield served


def read(served: RecordedTable, table: str, filters: Sequence[Filter] = (), **options: str) -> pa.Table:
    """Return the rows that Spark would get, before it filters them itself."""
    source = _copy(Tablegate({"address": served.address, "table": table, **options}))
    schema = source.schema()
    reader = source.reader(schema)
    assert list(reader.pushFilters(list(filters))) == list(filters)
    parts = reader.partitions()
    reader = _copy(reader)
    batches = [batch for part in parts for batch in reader.read(_copy(part))]
    return pa.Table.from_batches(batches, to_arrow_schema(schema, timezone="UTC"))


def _copy(value: Any) -> Any:
    """Return what comes out of another process."""
    return pickle.loads(pickle.dumps(value))


def test_every_kind_of_column_is_one_of_spark() -> None:
    choice = random.Random(7)
    rows = [random_order(choice) for _ in range(60)]
    with RecordedTable(ORDERS, "orders", rows) as served:
        found = read(served, "orders").sort_by("id")
    wanted = arrow_table(rows, orders().row_class).sort_by("id")
    assert found.column_names == wanted.column_names
    for name in {*wanted.column_names} - {"extra"}:  # a Struct's fields have no order
        assert repr(found[name].to_pylist()) == repr(wanted[name].to_pylist()), name


def _columns(row: Any) -> dict[str, Any]:
    [values] = arrow_table([row], type(row)).to_pylist()
    return values


@pytest.mark.parametrize("seed", range(40))
def test_what_is_sent_never_lets_too_little_through(ratings: RecordedTable, seed: int) -> None:
    choice = random.Random(seed)
    filters = [_random_filter(choice) for _ in range(choice.randrange(1, 4))]
    found = {row["movie_id"] for row in read(ratings, "ratings", filters).to_pylist()}
    wanted = {row.movie_id for row in RATED if all(_passes(_columns(row), each) for each in filters)}
    assert wanted <= found


def _random_filter(choice: random.Random) -> Filter:
    kind = choice.choice([*OPS])
    row = _columns(choice.choice(RATED))
    column = choice.choice([*row])
    return kind((column,), (row[column], _columns(choice.choice(RATED))[column]) if kind is In else row[column])


def _passes(row: dict[str, Any], each: Any) -> bool:
    """Return what Spark says: NaN is itself, and above all numbers."""
    value, wanted = row[each.attribute[0]], each.value
    if isinstance(value, float):
        value, wanted = _sorted(value), [*map(_sorted, wanted)] if type(each) is In else _sorted(wanted)
    return bool(OPS[type(each)](value, wanted))


def _sorted(number: float) -> tuple[bool, float]:
    return (math.isnan(number), 0.0 if math.isnan(number) else number)


def test_a_text_is_sent_as_its_column_has_it() -> None:
    rows = [orders().row_class(id=number, card=f"card{number}") for number in range(9)]
    with RecordedTable(ORDERS, "orders", rows) as served:
        assert read(served, "orders", [EqualTo(("card",), "card3")])["id"].to_pylist() == [3]
        assert len(read(served, "orders", [StringStartsWith(("card",), "card3")])) == 9  # no field of the Scan
        assert len(read(served, "orders", [EqualTo(("address", "street"), "s")])) == 9


def test_more_keys_than_are_worth_it_are_scanned(ratings: RecordedTable) -> None:
    ratings.asked.clear()
    assert len(read(ratings, "ratings", [In(("movie_id",), tuple(range(10_001)))])) == len(RATED)
    assert {name for name, _ in ratings.asked} == {"ScanRatings"}


TIMED = """
syntax = "proto3";
package timed;
import "google/protobuf/timestamp.proto";
import "tablegate/v1/options.proto";
message Visit {
  option (tablegate.v1.table) = { name: "visits" key: "id" };
  int64 id = 1;
  google.protobuf.Timestamp at = 2;
}
message ScanVisitsRequest {
  google.protobuf.Timestamp until = 1 [(tablegate.v1.param) = { column: "at" op: OP_LTE }];
  google.protobuf.Timestamp same = 2 [(tablegate.v1.param) = { column: "at" op: OP_EQ }];
}
message ScanVisitsResponse { repeated Visit visits = 1; }
service VisitService {
  rpc ScanVisits(ScanVisitsRequest) returns (stream ScanVisitsResponse) {
    option (tablegate.v1.query) = { scan: {} };
  }
}
"""


def test_a_time_has_less_than_a_microsecond_that_spark_has_not(tmp_path: Path) -> None:
    (tmp_path / "timed.proto").write_text(TIMED)
    visit = catalogue_of(tmp_path / "timed.proto").tables["visits"].row_class
    at = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [visit(id=1, at={"seconds": int(at.timestamp()), "nanos": 500})]  # type: ignore[call-arg]
    with RecordedTable(tmp_path / "timed.proto", "visits", rows) as served:
        for each in (EqualTo(("at",), at), LessThanOrEqual(("at",), at)):
            assert read(served, "visits", [each])["at"].to_pylist() == [at]
