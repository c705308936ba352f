"""`spark.read.format("tablegate")`: a real Spark, a server in this process; the rows, and what was asked."""

import json
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from tablegate.client.arrow import arrow_table
from tablegate.client.spark import PUSHDOWN, register
from tablegate.gateway.query.errors import ShuttingDown
from tests.kit.gateways_in_process.recorded import RecordedTable
from tests.kit.job.user_session import user_session
from tests.kit.table.filled import ORDERS, RATINGS, orders, rating
from tests.kit.table.random_orders import random_order

pytestmark = pytest.mark.jvm

ROWS = 500
RATED = [rating(number, average=number / 100, count=number % 10) for number in range(ROWS)]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with user_session() as session:
        register(session)
        yield session


@pytest.fixture
def ratings() -> Iterator[RecordedTable]:
    with RecordedTable(RATINGS, "ratings", RATED) as served:
        yield served


def _frame(spark: SparkSession, served: RecordedTable, table: str = "ratings", **options: Any) -> DataFrame:
    reader = spark.read.format("tablegate").option("address", served.address).option("table", table)
    return reader.options(**options).load()


def _ids(frame: DataFrame) -> list[int]:
    return sorted(row.movie_id for row in frame.collect())


def _asked(served: RecordedTable) -> Sequence[str]:
    return [name for name, _ in served.asked]


def test_each_task_reads_a_slice(spark: SparkSession, ratings: RecordedTable) -> None:
    frame = _frame(spark, ratings)
    assert [(column, kind) for column, kind in frame.dtypes] == [
        ("movie_id", "bigint"),
        ("average_rating", "double"),
        ("rating_count", "bigint"),
        ("update_time", "timestamp"),
    ]
    rows = sorted(frame.collect())
    assert [(row.movie_id, row.average_rating, row.rating_count) for row in rows] == [
        (row.movie_id, row.average_rating, row.rating_count) for row in RATED
    ]
    assert {row.update_time.astimezone(UTC) for row in rows} == {datetime.fromtimestamp(1_700_000_000, UTC)}
    tokens = [request.scan_options.resume_token for _, request in ratings.asked]
    assert (len(tokens), len({*tokens})) == (5, 5)  # for the slices, and of each of them


def test_every_kind_of_column(spark: SparkSession) -> None:
    choice = random.Random(7)
    rows = [random_order(choice) for _ in range(60)]
    for number, row in enumerate(rows):
        row.id = number  # type: ignore[attr-defined]
    with RecordedTable(ORDERS, "orders", rows) as served:
        read = _frame(spark, served, "orders").orderBy("id").toArrow()
    wanted = arrow_table(rows, orders().row_class)
    assert read.column_names == wanted.column_names
    for name in wanted.column_names:
        assert _plain(read, name) == _plain(wanted, name), name


def _plain(table: pa.Table, name: str) -> Any:
    values = table[name].to_pylist()
    if name == "extra":  # a Struct, whose fields have no order
        return [None if value is None else json.loads(value) for value in values]
    return repr(values)  # in which NaN is NaN


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        ("movie_id = 7", [7]),
        ("movie_id IN (3, 9, 100000)", [3, 9]),
        ("movie_id IN (3, 9) AND movie_id IN (9, 11)", [9]),
        ("movie_id = 3 AND rating_count = 4", []),
        ("movie_id = 3 AND movie_id = 4", []),
    ],
)
def test_keys_are_read_by_batch_get(
    spark: SparkSession, ratings: RecordedTable, condition: str, wanted: list[int]
) -> None:
    assert _ids(_frame(spark, ratings).where(condition)) == wanted
    assert {*_asked(ratings)} <= {"BatchGetRatings"}
    assert sum(len(request.keys) for _, request in ratings.asked) <= 3


def test_many_keys_are_shared_by_tasks(spark: SparkSession, ratings: RecordedTable) -> None:
    ids = ", ".join(str(number) for number in range(-600, 600))
    assert _ids(_frame(spark, ratings).where(f"movie_id IN ({ids})")) == [*range(ROWS)]
    assert _asked(ratings) == ["BatchGetRatings"] * 3


@pytest.mark.parametrize(
    ("condition", "sent"),
    [
        ("rating_count >= 8", {"min_rating_count": 8}),
        ("rating_count > 7", {"min_rating_count": 7}),
        ("rating_count = 8", {"min_rating_count": 8}),
        ("rating_count IN (8, 9)", {}),
        ("rating_count < 8", {}),
        ("average_rating >= 2.5", {}),  # to Spark NaN is above
        ("movie_id > 300", {}),  # no field of the Scan
        ("rating_count >= 8 OR movie_id = 3", {}),
        ("rating_count >= 8 AND movie_id > 300", {"min_rating_count": 8}),
    ],
)
def test_filters_of_the_scan_are_sent(
    spark: SparkSession, ratings: RecordedTable, condition: str, sent: dict[str, int]
) -> None:
    here = spark.createDataFrame([(row.movie_id, row.average_rating, row.rating_count) for row in RATED])
    wanted = here.toDF("movie_id", "average_rating", "rating_count").where(condition)
    assert _ids(_frame(spark, ratings).where(condition)) == _ids(wanted)
    assert {*_asked(ratings)} == {"ScanRatings"}
    for _, request in ratings.asked:
        request.ClearField("scan_options")
        assert {field.name: value for field, value in request.ListFields()} == sent


def test_only_the_named_fields_are_sent(spark: SparkSession, ratings: RecordedTable) -> None:
    frame = _frame(spark, ratings, fields="rating_count")
    assert frame.columns == ["movie_id", "rating_count"]
    assert frame.count() == ROWS
    assert _ids(frame.where("movie_id = 7")) == [7]
    assert {tuple(request.read_mask.paths) for _, request in ratings.asked} == {("rating_count",)}


def test_a_stream_that_breaks_goes_on(spark: SparkSession, ratings: RecordedTable) -> None:
    messages = 0

    def fail_now_and_then() -> None:
        nonlocal messages
        messages += 1
        if messages % 3 == 0:
            raise ShuttingDown

    ratings.on_message = fail_now_and_then
    assert _ids(_frame(spark, ratings, slices=2)) == [*range(ROWS)]
    assert len(_asked(ratings)) > 3


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"table": ""}, 'the option "table" is missing: add .option("table", ...)'),
        ({"table": "rating"}, 'has no table "rating": it has ratings'),
        ({"address": "127.0.0.1:1"}, "no gateway answers at 127.0.0.1:1 (UNAVAILABLE"),
        ({"fields": "mean"}, 'the option fields names "mean", which Rating has not: it has movie_id'),
        ({"slices": "0"}, 'the option slices is "0": give a number from 1 to 1000'),
        ({"colour": "red"}, 'the format tablegate has no option "colour": it has address, table'),
        ({"credential": "/no/file"}, 'the file "/no/file" of option credential cannot be read (No such file or'),
        ({"cert": "/dev/null"}, "a client certificate needs its key: give both options, cert and key"),
    ],
)
def test_a_wrong_option_has_one_sentence(
    spark: SparkSession, ratings: RecordedTable, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(Exception, match="QueryError") as raised:
        _frame(spark, ratings, **{"table": "ratings", "address": ratings.address, **options})
    assert sentence in str(raised.value)


def test_a_schema_of_ones_own_is_refused(spark: SparkSession, ratings: RecordedTable) -> None:
    reader = spark.read.format("tablegate").schema("movie_id BIGINT").option("address", ratings.address)
    with pytest.raises(Exception, match=r"the columns come from the contract: leave \.schema"):
        reader.option("table", "ratings").load().collect()


def test_spark_is_told_to_give_filters(spark: SparkSession) -> None:
    assert spark.conf.get(PUSHDOWN) == "true"
