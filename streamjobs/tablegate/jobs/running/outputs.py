"""Outputs beside the table's changes: which of them share a query, and how each record is written once.

Outputs of records of one side share a query, so that their source is read and decoded once for all of them. A query has
one place in its source. So those share one that are at the same place: all that are new, which begin at the start; and
those that shared one before. Who adds an output later gets a query for it, which begins at the start, too. Where an
output is no longer declared, the others go on in a copy of the checkpoint, and it goes on from its own when it is back.

    outputs.json     which query has the place of each output
    <output>         checkpoint of a query of one output
    records-<hash>   checkpoint of a query of several

Decision: docs/decisions/0109-outputs-of-records-share-a-query.md
Decision: docs/decisions/0145-records-of-outputs-name-their-writer.md
Decision: docs/decisions/0186-a-topics-id-makes-no-directory.md
"""

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sql

from tablegate.gateway.contract.kafka_settings import spark_options
from tablegate.jobs.errors import JobError
from tablegate.jobs.kafka.topics import KafkaAdmin, Topic
from tablegate.jobs.planning.plan import Plan
from tablegate.jobs.running.checkpoint import OFFSETS, Checkpoint
from tablegate.jobs.table import ProcessorOutput, RecordOutput, SharedOutputs, shared_outputs

PLACES_FILE = "outputs.json"
WRITER_HEADER = "w"
"""Name of the header of an output's record that says who wrote it: the table, and the topic that it was made of."""
_BEGUN = "begun-batches"
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
            name = _place_name(outputs[0], plan, checkpoint)
            found.append(OutputQuery(name, outputs, (name,), _begun(name, checkpoint)))
            continue
        at: dict[str | None, list[RecordOutput]] = {}
        for output in outputs:
            name = _place_name(output, plan, checkpoint)
            at.setdefault(_begun(noted.get(name, name), checkpoint), []).append(output)
        found += [_query_of_records(sharing, plan, before, checkpoint) for before, sharing in at.items()]
    return found


def _query_of_records(
    outputs: Sequence[RecordOutput], plan: Plan, before: str | None, checkpoint: Checkpoint
) -> OutputQuery:
    places = tuple(sorted({_place_name(output, plan, checkpoint) for output in outputs}))
    name = places[0] if len(places) == 1 else f"records-{_hash(places)}"
    return OutputQuery(name, tuple(outputs), places, before)


def _begun(name: str, checkpoint: Checkpoint) -> str | None:
    """Return the name of a checkpoint that has planned a batch; None where it has none."""
    return name if checkpoint.newest_batch(name, OFFSETS) is not None else None


def _place_name(output: RecordOutput | ProcessorOutput, plan: Plan, checkpoint: Checkpoint) -> str:
    # A source that was deleted and made again is read from its start: its offsets are others.
    ids = [side.topic.topic_id for side in plan.topics_of(output.side or "")]
    before = f"{output.topic}-{ids[0] if len(ids) == 1 else _hash(ids)}"
    # A slash, which ids may have, would make a directory in it. What was begun under such a name keeps it.
    name = before.replace("/", "_")
    if name != before and (_begun(before, checkpoint) is not None or before in _noted(checkpoint)):
        return before
    return name


def _hash(names: Sequence[str]) -> str:
    return hashlib.sha256("-".join(names).encode()).hexdigest()[:_HASH_CHARS]


def output_sink(plan: Plan, outputs: SharedOutputs, checkpoint: Checkpoint) -> "IdempotentSink":
    """Return what writes the records of a query's outputs."""
    places = {output.topic: _place_name(output, plan, checkpoint) for output in outputs}
    source = plan.table.source_of(outputs[0].side or "")
    return IdempotentSink(plan.bootstrap, places, f"{plan.table.name}/{source.topic}", checkpoint)


def _begun_file(place: str) -> str:
    return f"{_BEGUN}/{place}.json"


def keep_places(queries: Sequence[OutputQuery], checkpoint: Checkpoint) -> None:
    """Let each query go on where its outputs are, before it starts; raise `JobError`."""
    noted = _noted(checkpoint)
    found = dict(noted)
    for query in queries:
        if query.before is None:
            # Of a query whose checkpoint is gone, and whose batches had the same numbers.
            for place in query.places:
                checkpoint.discard(_begun_file(place))
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


_COPY = "__copy"
_EARLIEST = -2  # as Spark's Kafka source has it


class IdempotentSink:
    """Writes each record of an output topic exactly once, also when a batch runs again.

    Spark repeats a micro-batch that a crash cut off, and its Kafka sink then writes the batch's records a second time.
    This sink leaves out those that are there already:

    1. Before a batch writes for the first time, the end offsets of the topic are saved in the checkpoint, in one file
       of the newest batch.
    2. A batch that finds saved end offsets has begun before. Whatever it wrote then lies behind these offsets.
    3. So the records behind them that have the header of this query are read back, and of each topic, key and value as
       many are left out as were read.

    This is right only where a batch has the same rows each time, which `Processor` asks of its functions, and where no
    task writes twice within one batch: `spark.task.maxFailures` must be 1. Kafka's transactions would do the same, but
    Spark's sink has none. Others may write the topic, too; tables that do have names of their own. If retention has
    dropped what the batch wrote, nobody can tell any more, and the job stops.

    One sink is for one query and its topics: `writer.foreachBatch(sink.write_batch)`. Spark calls it in one thread, for
    one batch after the other. Rows have the columns that the Kafka sink takes, `topic` among them.

    `places`: under which name each topic's end offsets are kept in the checkpoint. `writer`: of its records' header.
    """

    def __init__(self, bootstrap: str, places: Mapping[str, str], writer: str, checkpoint: Checkpoint) -> None:
        self._bootstrap = bootstrap
        self._places = places
        self._writer = sql.expr(f"struct('{WRITER_HEADER}' AS key, X'{writer.encode().hex()}' AS value)")
        self._checkpoint = checkpoint
        self._admin = KafkaAdmin(bootstrap)

    def write_batch(self, rows: DataFrame, batch_id: int) -> None:
        """Write a batch without the records that an earlier try of it has written; raise `JobError`."""
        written = []
        for topic, place in self._places.items():
            begun = json.loads(self._checkpoint.decided(_begun_file(place)) or "{}")
            if begun.get("batch") == batch_id:
                offsets = {int(partition): int(offset) for partition, offset in begun["offsets"].items()}
                written.append(self._written_since(rows.sparkSession, topic, offsets))
            else:
                begun = {"batch": batch_id, "offsets": self._admin.end_offsets(self._topic_now(topic))}
                self._checkpoint.decide(_begun_file(place), json.dumps(begun))
        if written:
            # The rows may be used in one action only: a second one would compute the state again.
            rows = _without(rows, functools.reduce(DataFrame.union, written))
        rows = rows.withColumn("headers", sql.array(self._writer))
        rows.write.format("kafka").options(**spark_options(self._bootstrap)).save()

    def _written_since(self, spark: SparkSession, name: str, offsets: Mapping[int, int]) -> DataFrame:
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
            .option("includeHeaders", "true")
            .load()
            .where(sql.array_contains("headers", self._writer))
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
