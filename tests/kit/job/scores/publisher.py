"""A program that publishes rows of scores in Parquet files, once or as a stream.

python -m tests.kit.job.scores.publisher BOOTSTRAP NAME CONTRACT ROWS [CHECKPOINT]
"""

import sys

from tablegate.jobs import FrameTable
from tablegate.jobs.publishing import publish, publish_batch
from tests.kit.job.user_session import user_session

SCHEMA = "user BIGINT, score DOUBLE, model STRING, scored_at TIMESTAMP"


def main() -> None:
    """Publish, and return when all is published or the stream has been stopped."""
    bootstrap, name, contract, rows, *checkpoint = sys.argv[1:]
    table = FrameTable(name=name, contract=contract, order="scored_at")
    with user_session() as spark:
        if checkpoint:
            stream = spark.readStream.schema(SCHEMA).parquet(rows)
            publish(stream, table, bootstrap=bootstrap, checkpoint=checkpoint[0]).awaitTermination()
        else:
            publish_batch(spark.read.schema(SCHEMA).parquet(rows), table, bootstrap=bootstrap)


if __name__ == "__main__":
    main()
