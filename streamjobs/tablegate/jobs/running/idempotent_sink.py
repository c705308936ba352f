"""Each record of an output topic exactly once, also when a batch runs again.

Spark repeats a micro-batch that a crash cut off, and its Kafka sink then writes the batch's records a second time. This
sink leaves out those that are there already:

1. Before a batch writes for the first time, the end offsets of the topic are saved in the checkpoint (`BatchStarts`).
2. A batch that finds saved end offsets has begun before. Whatever it wrote then lies behind these offsets.
3. So the records behind them are read back, and of each key and value as many are left out as were read.

This is right only where a batch has the same rows each time, which `Processor` asks of its functions, and where no task
writes twice within one batch: `spark.task.maxFailures` must be 1. Kafka's transactions would do the same, but Spark's
sink has none. A record of another producer with the same key and value would be taken for ours: give the topic one
writer. If retention has dropped what the batch wrote, nobody can tell any more, and the job stops.
"""

import json
from typing import Any

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined] # its stubs do not export it
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sql

from tablegate.jobs.dataflow.java_errors import error_reason
from tablegate.jobs.errors import JobError
from tablegate.jobs.kafka.topics import BROKER_TIMEOUT_S, QUIET_CLIENT
from tablegate.jobs.running.checkpoint import Checkpoint

Offsets = dict[int, int]
"""Next offset by partition."""

_DIRECTORY = "begun-batches"
_COPY = "__copy"
_EARLIEST = -2  # as Spark's Kafka source has it
_FIRST = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_END = OffsetSpec.latest()  # type: ignore[no-untyped-call]


class IdempotentSink:
    """Writes the batches of one query to one topic: `writer.foreachBatch(sink.write_batch)`.

    Spark calls it in one thread, for one batch after the other. Rows have the columns that the Kafka sink takes.
    """

    def __init__(self, bootstrap: str, topic: str, checkpoint: Checkpoint) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._directory = checkpoint.query_location(f"{_DIRECTORY}/{topic}")
        self._admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET_CLIENT})

    def write_batch(self, rows: DataFrame, batch_id: int) -> None:
        """Write a batch without the records that an earlier try of it has written; raise `JobError`."""
        spark = rows.sparkSession
        starts = BatchStarts(spark, self._directory)
        offsets = starts.load(batch_id)
        if offsets is None:
            starts.save(batch_id, self._offsets(_END))
        else:
            # The rows may be used in one action only: a second one would compute the state again.
            written = self._written_since(spark, offsets)
            rows = _without(rows, written)
        rows.write.format("kafka").option("kafka.bootstrap.servers", self._bootstrap).option(
            "topic", self._topic
        ).save()

    def _written_since(self, spark: SparkSession, offsets: Offsets) -> DataFrame:
        ends = self._offsets(_END)
        for partition, first in self._offsets(_FIRST).items():
            since = offsets.get(partition, first)
            # An end below what was saved means another topic under the same name; a start above it, that retention has
            # removed records.
            if not first <= since <= ends[partition]:
                raise JobError(
                    f'output topic "{self._topic}" partition {partition} has offsets {first} to {ends[partition]}, and '
                    f"a batch that was cut off wrote from {since} on; its records are gone, so nobody can tell which "
                    "were written: give the output another topic"
                )
        starting = {partition: offsets.get(partition, _EARLIEST) for partition in ends}
        return (
            spark.read.format("kafka")
            .option("kafka.bootstrap.servers", self._bootstrap)
            .option("assign", json.dumps({self._topic: list(starting)}))
            .option("startingOffsets", json.dumps({self._topic: starting}))
            .option("endingOffsets", json.dumps({self._topic: ends}))
            .load()
            .select("key", "value")
        )

    def _offsets(self, of: OffsetSpec) -> Offsets:
        try:
            described = self._admin.list_topics(self._topic, timeout=BROKER_TIMEOUT_S).topics[self._topic]
            partitions = [TopicPartition(self._topic, partition) for partition in described.partitions]
            futures = self._admin.list_offsets(dict.fromkeys(partitions, of), request_timeout=BROKER_TIMEOUT_S)
            return {partition.partition: future.result().offset for partition, future in futures.items()}
        except KafkaException as error:
            raise JobError(
                f'the offsets of output topic "{self._topic}" cannot be read at {self._bootstrap}: '
                f"{error.args[0].str()}; start the job again when they can"
            ) from None


def _without(rows: DataFrame, written: DataFrame) -> DataFrame:
    """Return the rows that are not written yet. Of equal rows, as many are left out as were written."""
    ours, theirs = _with_copy(rows), _with_copy(written)
    # Keys and values may be null, and in SQL null is not equal to null.
    same = [ours[name].eqNullSafe(theirs[name]) for name in ("key", "value", _COPY)]
    return ours.join(theirs, same, "left_anti").drop(_COPY)


def _with_copy(rows: DataFrame) -> DataFrame:
    bytes_of = {name: sql.col(name).cast("binary") for name in ("key", "value")}
    copies = Window.partitionBy("key", "value").orderBy("key")
    return rows.withColumns(bytes_of).withColumn(_COPY, sql.row_number().over(copies))


class BatchStarts:
    """End offsets of the output topic before a batch wrote: one file, of the newest batch, wherever Spark can write."""

    def __init__(self, spark: SparkSession, directory: str) -> None:
        self._jvm: Any = spark.sparkContext._jvm
        self._directory = self._jvm.org.apache.hadoop.fs.Path(directory)
        self._files = self._directory.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())

    def load(self, batch_id: int) -> Offsets | None:
        """Return the end offsets before a batch began; None where it never has; raise `JobError`."""
        try:
            path = self._path(str(batch_id))
            if not self._files.exists(path):
                return None
            stream = self._files.open(path)
            try:
                text = str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            finally:
                stream.close()
        except Exception as error:  # noqa: BLE001 - py4j's errors have no common class of their own
            raise self._unusable(error) from None
        return {int(partition): int(offset) for partition, offset in json.loads(text).items()}

    def save(self, batch_id: int, offsets: Offsets) -> None:
        """Save a batch's end offsets by an atomic rename, and remove those of other batches; raise `JobError`."""
        try:
            # Listed first, so that the new file is not among them; deleted last, so that a crash leaves one too many
            # and never none.
            old = [status.getPath() for status in self._listed()]
            partial = self._path(f"_{batch_id}")
            stream = self._files.create(partial, True)
            try:
                stream.write(json.dumps(offsets).encode())
            finally:
                stream.close()
            if not self._files.rename(partial, self._path(str(batch_id))):
                raise OSError("a file cannot be renamed")
            for path in old:
                self._files.delete(path, False)
        except Exception as error:  # noqa: BLE001 - as above
            raise self._unusable(error) from None

    def _listed(self) -> list[Any]:
        return list(self._files.listStatus(self._directory)) if self._files.exists(self._directory) else []

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._directory, name)

    def _unusable(self, error: Exception) -> JobError:
        return JobError(f'checkpoint "{self._directory.toString()}" cannot be used: {error_reason(error)}')
