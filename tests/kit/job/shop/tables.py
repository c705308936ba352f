"""Tables of functions: what a Spark developer does to streams, each in a few lines."""

import pyarrow
import pyarrow.compute
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.functions import arrow_udf
from pyspark.sql.types import DoubleType

from tablegate.jobs import FrameTable, Json, Source

ORDERS = Source("shop_orders", Json("id BIGINT, lines ARRAY<STRUCT<product: STRING, pieces: INT, price: DOUBLE>>"))
VISITS = Source("shop_visits_of_users", Json("user BIGINT, pages INT, at TIMESTAMP"))
HOUSES = Source("shop_houses", Json("house BIGINT, size DOUBLE"))
CHANGES = Source(
    "shop_changes",
    Json("before STRUCT<id: BIGINT, name: STRING>, after STRUCT<id: BIGINT, name: STRING>, op STRING, ts_ms BIGINT"),
    where="op IS NOT NULL",  # behind a delete, Debezium writes a record without value
)
SOLD = [(50.0, 110.0), (100.0, 210.0), (150.0, 310.0)]
"""Size and price of houses: the price is twice the size, and 10."""


@arrow_udf(DoubleType())
def weighed(pages: pyarrow.Array) -> pyarrow.Array:
    return pyarrow.compute.multiply(pages.cast("double"), 0.5)


def revenue(orders: DataFrame) -> DataFrame:
    lines = orders.selectExpr("explode(lines) AS line").select("line.*")
    sums = lines.groupBy("product").agg(
        sql.sum(sql.expr("pieces * price")).alias("revenue"), sql.sum("pieces").alias("pieces")
    )
    return sums.where("product IS NOT NULL")


def visits(session: SparkSession, visits: DataFrame) -> DataFrame:
    segments = session.createDataFrame([(0, "even"), (1, "odd")], "rest INT, segment STRING")
    joined = visits.join(segments, sql.expr("user % 2 = rest"))
    return joined.withColumn("score", weighed("pages"))


def forecasts(spark: SparkSession, houses: DataFrame) -> DataFrame:
    sold = spark.createDataFrame(SOLD, "size DOUBLE, price DOUBLE")
    fitted = sold.selectExpr("regr_slope(price, size) AS slope", "regr_intercept(price, size) AS base").first()
    assert fitted is not None
    slope, base = fitted["slope"], fitted["base"]

    @arrow_udf("double")
    def predicted(size: pyarrow.Array) -> pyarrow.Array:
        return pyarrow.compute.add(pyarrow.compute.multiply(size, slope), base)

    return houses.select("house", predicted("size").alias("price"))


def sessions(visits: DataFrame) -> DataFrame:
    by_user = visits.withWatermark("at", "0 seconds").groupBy("user", sql.session_window("at", "10 minutes"))
    counted = by_user.agg(sql.sum("pages").alias("pages"))
    return counted.selectExpr("user", "session_window.start AS start", "pages")


def customers(changes: DataFrame) -> DataFrame:
    return changes.selectExpr("coalesce(after.id, before.id) AS id", "after.name", "op", "ts_ms", "kafka.offset")


REVENUE = FrameTable(name="shop_revenue", contract="shop.proto", rows=revenue, sources={"orders": ORDERS})
VISITS_TABLE = FrameTable(
    name="shop_visits", contract="shop.proto", rows=visits, sources={"visits": VISITS}, order="at"
)
FORECASTS = FrameTable(
    name="shop_forecasts", contract="shop.proto", rows=forecasts, sources={"houses": HOUSES}, order="price"
)
SESSIONS = FrameTable(
    name="shop_sessions", contract="shop.proto", rows=sessions, sources={"visits": VISITS}, output_mode="append"
)
CUSTOMERS = FrameTable(
    name="shop_customers",
    contract="shop.proto",
    rows=customers,
    sources={"changes": CHANGES},
    deletes="op = 'd'",
    order="struct(ts_ms, offset)",
)
TABLES = (REVENUE, VISITS_TABLE, FORECASTS, SESSIONS, CUSTOMERS)
