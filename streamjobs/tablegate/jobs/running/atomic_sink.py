"""The sink of an atomic table: each batch of the query becomes one transaction.

Decision: docs/decisions/0073-atomic-batches.md
"""

from pyspark.sql import DataFrame

from tablegate.gateway.contract.types import BATCH_CHANGES_MAX, VERSION_HEADER
from tablegate.jobs.errors import JobError
from tablegate.jobs.kafka.batches import BatchRecord, BatchWriter
from tablegate.jobs.planning.declarations import job_argument
from tablegate.jobs.planning.plan import Plan
from tablegate.jobs.running.batch_changes import BatchChanges

_COLUMNS = ("partition", "key", "value", f"filter(headers, h -> h.key = '{VERSION_HEADER}')[0].value AS version")


class AtomicSink:
    """Writes the batches of one query, one after the other: `writer.foreachBatch(sink.write_batch)`.

    Rows have the columns that the Kafka sink takes.
    """

    def __init__(self, plan: Plan, *, changes_max: int = BATCH_CHANGES_MAX) -> None:
        self._plan = plan
        self._changes_max = changes_max
        self.changes = BatchChanges()
        self._writer = BatchWriter(plan.bootstrap, plan.changelog, plan.generation)

    def open(self) -> None:
        """Fence the jobs that have opened before; raise `JobError`."""
        self._writer.open()

    def write_batch(self, rows: DataFrame, batch_id: int) -> None:
        """Write a batch, and return when it is committed; raise `JobError`, and then the query ends."""
        found = rows.selectExpr(*_COLUMNS).toArrow()
        if found.num_rows > self._changes_max:
            raise self._too_many(batch_id, found.num_rows)
        if found.num_rows == 0:
            return
        contract, partition_count = self._plan.contract, self._plan.changelog.partition_count
        partitions, keys, values, versions = (column.to_pylist() for column in found.columns)
        # A null partition is left to the sink: that of the Java producer's partitioner.
        chosen = (
            contract.partition_of(key, partition_count) if partition is None else partition
            for partition, key in zip(partitions, keys, strict=True)
        )
        self._writer.write(batch_id, map(BatchRecord, chosen, keys, values, versions))
        self.changes.add(batch_id, found.num_rows)

    def _too_many(self, batch_id: int, changes: int) -> JobError:
        table = self._plan.table
        return JobError(
            f'{table.declared_at}: table "{table.name}" batch {batch_id} has {changes} changes, and an atomic batch at '
            f"most {self._changes_max}; have the processor emit fewer rows at a time, or remove atomic, and build the "
            f"next generation: tablegate job rebuild {job_argument(table)}"
        )

    def close(self) -> None:
        """Give up what is not committed, and write no more. Repeats do nothing."""
        self._writer.close()
