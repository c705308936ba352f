"""Outputs beside the table's changes: which of them share a query, and how each record is written once.

Outputs of records of one side share a query, so that their source is read and decoded once for all of them. A query has
one place in its source. So those share one that are at the same place: all that are new, which begin at the start; and
those that shared one before. Who adds an output later gets a query for it, which begins at the start, too. Where an
output is no longer declared, the others go on in a copy of the checkpoint, and it goes on from its own when it is back.

    outputs.json     which query has the place of each output
    <output>         checkpoint of a query of one output
    records-<hash>   checkpoint of a query of several

Decision: docs/decisions/0109-outputs-of-records-share-a-query.md
"""

import functools
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sql

from tablegate.gateway.contract.kafka_settings import spark_options
from tablegate.jobs.dataflow.java_classes import HADOOP_PATH, IO_UTILS, java_class
from tablegate.jobs.dataflow.java_errors import error_reason
from tablegate.jobs.errors import JobError
from tablegate.jobs.kafka.topics import KafkaAdmin, Topic
from tablegate.jobs.planning.plan import Plan
from tablegate.jobs.running.checkpoint import OFFSETS, Checkpoint
from tablegate.jobs.table import ProcessorOutput, RecordOutput, SharedOutputs, shared_outputs

PLACES_FILE = "outputs.json"
_DIRECTORY = "begun-batches"
_HASH_CHARS = 22  # of what names several topics, as many as the id of one has


@dataclass(frozen=True, slots=True)
class OutputQuery:
    """A query that feeds outputs. `name`: of its checkpoint. `places`: the names under which outputs have their place.

    `before`: the name of the checkpoint that has that place until now; None where they begin at the start.
    """

    name: str
    outputs: SharedOutputs
    places: tuple[str, ...]
    before: str | None


def output_queries(plan: Plan, checkpoint: Checkpoint) -> list[OutputQuery]:
    """Return the queries of a plan's outputs beside the table's changes; raise `JobError`."""
    noted = _noted(checkpoint)
    found = []
    for outputs in shared_outputs(plan.table.outputs):
        if isinstance(outputs[0], ProcessorOutput):
            name = _place_name(outputs[0], plan)
            found.append(OutputQuery(name, outputs, (name,), _begun(name, checkpoint)))
            continue
        at: dict[str | None, list[RecordOutput]] = {}
        for output in outputs:
            name = _place_name(output, plan)
            at.setdefault(_begun(noted.get(name, name), checkpoint), []).append(output)
        found += [_query_of_records(sharing, plan, before) for before, sharing in at.items()]
    return found


def _query_of_records(outputs: Sequence[RecordOutput], plan: Plan, before: str | None) -> OutputQuery:
    places = tuple(sorted({_place_name(output, plan) for output in outputs}))
    name = places[0] if len(places) == 1 else f"records-{_hash(places)}"
    return OutputQuery(name, tuple(outputs), places, before)


def _begun(name: str, checkpoint: Checkpoint) -> str | None:
    """Return the name of a checkpoint that has planned a batch; None where it has none."""
    return name if checkpoint.newest_batch(name, OFFSETS) is not None else None


def _place_name(output: RecordOutput | ProcessorOutput, plan: Plan) -> str:
    # A source that was deleted and made again is read from its start: its offsets are others.
    ids = [side.topic.topic_id for side in plan.topics_of(output.side or "")]
    return f"{output.topic}-{ids[0] if len(ids) == 1 else _hash(ids)}"


def _hash(names: Sequence[str]) -> str:
    return hashlib.sha256("-".join(names).encode()).hexdigest()[:_HASH_CHARS]


def keep_places(queries: Sequence[OutputQuery], checkpoint: Checkpoint) -> None:
    """Let each query go on where its outputs are, before it starts; raise `JobError`."""
    noted = _noted(checkpoint)
    found = dict(noted)
    for query in queries:
        if query.before is None:
            # Of a source that was deleted and made again, whose batches had the same numbers.
            for output in query.outputs:
                checkpoint.discard(f"{_DIRECTORY}/{output.topic}")
        elif query.before != query.name:
            # Whatever is there is a copy that a crash has cut off: nobody notes it.
            checkpoint.copy_query(query.before, query.name)
        if len(query.places) > 1 or any(place in noted for place in query.places):
            found.update(dict.fromkeys(query.places, query.name))
    if found != noted:
        checkpoint.decide(PLACES_FILE, json.dumps(found, indent=2))


def _noted(checkpoint: Checkpoint) -> Mapping[str, str]:
    try:
        found: Mapping[str, str] = json.loads(checkpoint.decided(PLACES_FILE) or "{}")
    except ValueError:
        raise JobError(
            f'checkpoint "{checkpoint.location}" has a damaged {PLACES_FILE}, which says where outputs go on; put it '
            "back, or remove it and give the outputs other topics"
        ) from None
    return found


Offsets = dict[int, int]
"""Next offset by partition."""

_COPY = "__copy"
_EARLIEST = -2  # as Spark's Kafka source has it


class IdempotentSink:
    """Writes each record of an output topic exactly once, also when a batch runs again.

    Spark repeats a micro-batch that a crash cut off, and its Kafka sink then writes the batch's records a second time.
    This sink leaves out those that are there already:

    1. Before a batch writes for the first time, the end offsets of the topic are saved in the checkpoint
       (`BatchStarts`).
    2. A batch that finds saved end offsets has begun before. Whatever it wrote then lies behind these offsets.
    3. So the records behind them are read back, and of each topic, key and value as many are left out as were read.

    This is right only where a batch has the same rows each time, which `Processor` asks of its functions, and where no
    task writes twice within one batch: `spark.task.maxFailures` must be 1. Kafka's transactions would do the same, but
    Spark's sink has none. A record of another producer with the same key and value would be taken for ours: give the
    topic one writer. If retention has dropped what the batch wrote, nobody can tell any more, and the job stops.

    One sink is for one query and its topics: `writer.foreachBatch(sink.write_batch)`. Spark calls it in one thread, for
    one batch after the other. Rows have the columns that the Kafka sink takes, `topic` among them.
    """

    def __init__(self, bootstrap: str, topics: Collection[str], checkpoint: Checkpoint) -> None:
        self._bootstrap = bootstrap
        self._directories = {topic: checkpoint.query_location(f"{_DIRECTORY}/{topic}") for topic in topics}
        self._admin = KafkaAdmin(bootstrap)

    def write_batch(self, rows: DataFrame, batch_id: int) -> None:
        """Write a batch without the records that an earlier try of it has written; raise `JobError`."""
        spark = rows.sparkSession
        written = []
        for topic, directory in self._directories.items():
            starts = BatchStarts(spark, directory)
            offsets = starts.load(batch_id)
            if offsets is None:
                starts.save(batch_id, self._admin.end_offsets(self._topic_now(topic)))
            else:
                written.append(self._written_since(spark, topic, offsets))
        if written:
            # The rows may be used in one action only: a second one would compute the state again.
            rows = _without(rows, functools.reduce(DataFrame.union, written))
        rows.write.format("kafka").options(**spark_options(self._bootstrap)).save()

    def _written_since(self, spark: SparkSession, name: str, offsets: Offsets) -> DataFrame:
        topic = self._topic_now(name)
        ends = self._admin.end_offsets(topic)
        for partition, first in self._admin.first_offsets(topic).items():
            since = offsets.get(partition, first)
            # An end below what was saved means another topic under the same name; a start above it, that retention has
            # removed records.
            if not first <= since <= ends[partition]:
                raise JobError(
                    f'output topic "{name}" partition {partition} has offsets {first} to {ends[partition]}, and '
                    f"a batch that was cut off wrote from {since} on; its records are gone, so nobody can tell which "
                    "were written: give the output another topic"
                )
        starting = {partition: offsets.get(partition, _EARLIEST) for partition in ends}
        return (
            spark.read.format("kafka")
            .options(**spark_options(self._bootstrap))
            .option("assign", json.dumps({name: list(starting)}))
            .option("startingOffsets", json.dumps({name: starting}))
            .option("endingOffsets", json.dumps({name: ends}))
            .load()
            .select("topic", "key", "value")
        )

    def _topic_now(self, name: str) -> Topic:
        return self._admin.require(name, "output topic", "start the job again: it creates it")


def _without(rows: DataFrame, written: DataFrame) -> DataFrame:
    """Return the rows that are not written yet. Of equal rows, as many are left out as were written."""
    ours, theirs = _with_copy(rows), _with_copy(written)
    # Keys and values may be null, and in SQL null is not equal to null.
    same = [ours[name].eqNullSafe(theirs[name]) for name in ("topic", "key", "value", _COPY)]
    return ours.join(theirs, same, "left_anti").drop(_COPY)


def _with_copy(rows: DataFrame) -> DataFrame:
    bytes_of = {name: sql.col(name).cast("binary") for name in ("key", "value")}
    copies = Window.partitionBy("topic", "key", "value").orderBy("key")
    return rows.withColumns(bytes_of).withColumn(_COPY, sql.row_number().over(copies))


class BatchStarts:
    """End offsets of the output topic before a batch wrote: one file, of the newest batch, wherever Spark can write."""

    def __init__(self, spark: SparkSession, directory: str) -> None:
        self._context = spark.sparkContext
        self._directory = java_class(self._context, HADOOP_PATH)(directory)
        self._files = self._directory.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())

    def load(self, batch_id: int) -> Offsets | None:
        """Return the end offsets before a batch began; None where it never has; raise `JobError`."""
        try:
            path = self._path(str(batch_id))
            if not self._files.exists(path):
                return None
            stream = self._files.open(path)
            try:
                text = str(java_class(self._context, IO_UTILS).toString(stream, "UTF-8"))
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
        return java_class(self._context, HADOOP_PATH)(self._directory, name)

    def _unusable(self, error: Exception) -> JobError:
        return JobError(f'checkpoint "{self._directory.toString()}" cannot be used: {error_reason(error)}')
