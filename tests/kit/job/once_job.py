"""A job of its own that counts invoices and writes each once, for tests that kill it: source, output, directory."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tablegate.jobs.dataflow.processors import apply_processor
from tablegate.jobs.processor import Processor
from tablegate.jobs.running.checkpoint import Checkpoint
from tablegate.jobs.running.outputs import IdempotentSink
from tablegate.jobs.running.session import spark_session, table_session

INVOICES = 40  # of each customer, before any of them comes again
SLOW_CUSTOMER = "customer-7"
HOLD_FILE = "hold"  # in the directory


class Count(Processor):
    """Counts a customer's invoices. While a file is there it stands still among those of one customer."""

    state = "count BIGINT"
    emits = "invoice STRING, count BIGINT"

    def __init__(self, hold_file: str) -> None:
        self._hold_file = hold_file

    def on_record(self, key: Any, record: Any, state: Any) -> Iterator[dict[str, object]]:
        state.count += 1
        while key.customer == SLOW_CUSTOMER and state.count > INVOICES and os.path.exists(self._hold_file):
            time.sleep(0.05)
        yield {"invoice": record.invoice, "count": state.count}


def main(bootstrap: str, source: str, output: str, directory: str) -> None:
    """Work off what the source has, then end."""
    checkpoint = f"{directory}/checkpoint"
    with spark_session("once", master="local[2]", checkpoints=checkpoint, spark_log=Path(directory, "log")) as session:
        spark = table_session(session, shuffle_partitions=2)
        records = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .load()
            .selectExpr(
                "CAST(key AS STRING) AS customer",
                "struct(CAST(value AS STRING) AS invoice, struct(topic, partition, offset, timestamp) AS kafka) record",
            )
        )
        count = Count(str(Path(directory, HOLD_FILE)))
        counted = apply_processor(records, count, ("customer",), owner='output "counts"')
        written = counted.selectExpr(
            f"'{output}' AS topic", "invoice AS key", "concat_ws(' ', customer, count, __sequence) AS value"
        )
        writer = written.writeStream.outputMode("update").trigger(availableNow=True)
        queries = Checkpoint(spark, checkpoint)
        writer = writer.foreachBatch(
            IdempotentSink(bootstrap, {output: "counts"}, "counts/invoices", queries).write_batch
        )
        writer = writer.option("checkpointLocation", queries.query_location("counts"))
        queries.discard_uncommitted("counts")  # as a job does
        writer.start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
