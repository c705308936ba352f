"""Publishes DataFrames of your own as tables: a streaming one for as long as it runs, a batch's result at once.

    from tablegate.jobs import FrameTable
    from tablegate.jobs.publishing import publish, publish_batch

    SCORES = FrameTable(name="scores", contract="scores.proto", order="scored_at")

    query = publish(scored, SCORES, bootstrap="127.0.0.1:9092", checkpoint="/data/scores")  # a streaming DataFrame
    publish_batch(nightly, SCORES, bootstrap="127.0.0.1:9092", replace=True)  # any DataFrame

Any transformation that Spark allows may be behind a DataFrame. It has a column for each field of the contract's row.
"""

from tablegate.jobs.errors import JobError
from tablegate.jobs.publishing.frames import Published, publish, publish_batch, spark_jars

__all__ = ["JobError", "Published", "publish", "publish_batch", "spark_jars"]
