"""An application of a user's own, as spark-submit runs it: what it has computed becomes a table by `publish`.

Its arguments: the brokers, the topic of visits, the table's name, its contract, and a directory for the checkpoint.
"""

import sys

import pyarrow
import pyarrow.compute
from pyspark.sql import SparkSession
from pyspark.sql.functions import arrow_udf
from pyspark.sql.types import DoubleType

from tablegate.jobs import FrameTable
from tablegate.jobs.publishing import publish


@arrow_udf(DoubleType())  # an object: "double" would need a Spark that runs already
def scored(user: pyarrow.Array) -> pyarrow.Array:
    return pyarrow.compute.multiply(user, 0.5)


def main() -> None:
    bootstrap, topic, name, contract, checkpoint = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    visits = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS user", "timestamp AS scored_at", "'half' AS model")
    )
    table = FrameTable(name=name, contract=contract, order="scored_at")
    query = publish(visits.withColumn("score", scored("user")), table, bootstrap=bootstrap, checkpoint=checkpoint)
    query.awaitTermination()


if __name__ == "__main__":
    main()
