"""The sink of a table of a function: each batch of its query becomes records of one sequence.

A batch that Spark runs again after a crash has the number that it had, and so the versions.
"""

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from tablegate.jobs.dataflow.frame_batches import target_of, write_batch
from tablegate.jobs.dataflow.java_errors import error_reason
from tablegate.jobs.errors import JobError
from tablegate.jobs.log import log
from tablegate.jobs.planning.plan import Plan
from tablegate.jobs.running.batch_changes import BatchChanges


class FrameSink:
    """Writes the batches of one query, one after the other: `writer.foreachBatch(sink.write_batch)`."""

    def __init__(self, plan: Plan, run: int | None) -> None:
        self._target = target_of(plan)
        self._run = run
        self.changes = BatchChanges()

    def write_batch(self, rows: DataFrame, batch_id: int) -> None:
        """Write a batch, and return when Kafka has it; raise `JobError`, and then the query ends."""
        try:
            counts = write_batch(rows, self._target, batch_id + 1, run=self._run)
        except (PySparkException, Py4JError) as error:
            raise JobError(error_reason(error)) from None
        self.changes.add(batch_id, counts.rows + counts.deleted)
        if counts.set_aside:
            table, topic = self._target.table.name, self._target.dead_letters.name
            log("dead_letters", table=table, topic=topic, records=counts.set_aside, reasons={"row": counts.set_aside})

    def close(self) -> None:
        """Do nothing: what was written was committed."""
