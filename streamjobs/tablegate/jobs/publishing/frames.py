"""`publish` and `publish_batch`: how rows of a DataFrame become a table.

A row's version is of its batch: the generation, and the batch's sequence. A batch that Spark runs again after a crash
has the versions that it had, so gateways drop what they have already. A stream goes on from its checkpoint; one whose
checkpoint is lost would count its batches from 0 again, so it is refused.

While it runs, a stream or a run is the only member of the table's group in Kafka, as a job is: of two that publish one
table, the second is refused wherever it runs. What one writes that was frozen meanwhile, and wakes when another has
begun, does not count: rows and markers have the number of a run, as those of jobs have.

Decision: docs/decisions/0087-dataframes-as-tables.md
Decision: docs/decisions/0146-published-dataframes-have-runs.md
Decision: docs/decisions/0182-a-run-has-its-number-before-it-asks.md
Decision: docs/decisions/0193-a-published-stream-waits-for-brokers.md
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from tablegate.gateway.contract import catalogue
from tablegate.gateway.contract.registry_settings import RegistrySettings
from tablegate.gateway.contract.rows import row_schema
from tablegate.jobs import metrics
from tablegate.jobs.arguments import reach_kafka, reach_registry
from tablegate.jobs.dataflow.frame_batches import (
    NOTHING,
    BatchCounts,
    BatchTarget,
    check_columns,
    frame_of,
    output_mode_hint,
    write_batch,
)
from tablegate.jobs.dataflow.java_classes import java_class
from tablegate.jobs.dataflow.java_errors import KAFKA_AWAY, NO_SPACE, error_reason, is_interrupted, thrown_reason
from tablegate.jobs.errors import BrokersAway, JobError, NotJoined
from tablegate.jobs.frame_table import FrameTable
from tablegate.jobs.jars.jars import jars
from tablegate.jobs.kafka.job_group import JOINED_WITHIN_S, JobGroup, Tenure, job_group
from tablegate.jobs.kafka.manifests import past_generation, read_manifest, replace_manifest
from tablegate.jobs.kafka.markers import Markers
from tablegate.jobs.kafka.topic_watch import TopicWatch
from tablegate.jobs.kafka.topics import (
    DEAD_LETTERS_NEW_SETTINGS,
    DEAD_LETTERS_SETTINGS,
    MANIFESTS_SETTINGS,
    KafkaAdmin,
    changelog_name,
    changelog_settings,
    dead_letters_name,
    manifests_topic,
)
from tablegate.jobs.log import log
from tablegate.jobs.planning.declarations import find_contract, job_argument
from tablegate.jobs.planning.plan import PARTITIONS, changelog_lifetime_us, make_manifest
from tablegate.jobs.planning.registry import SchemaRegistry, choose_value_schema
from tablegate.jobs.running.checkpoint import OFFSETS, Checkpoint, Identity
from tablegate.jobs.running.operations import newest_marker
from tablegate.jobs.running.session import has_connectors
from tablegate.jobs.table import Mode
from tablegate.v1 import changelog_pb2

Answer = TypeVar("Answer")

MICROBATCH_S = 0.1  # an idle stream looks for new data ten times a second
AWAY_S = 120.0  # as long as Spark waits for brokers that are to take a record
ASK_AGAIN_S = 0.5  # of brokers that are away
WATCH_S = 0.2  # how late a stream that nobody may publish any more is stopped
QUERY = "table"
_DATASET = "org.apache.spark.sql.classic.Dataset"
_POLLING_DELAY = "spark.sql.streaming.pollingDelay"
"""Of a query that runs its batches one after the other: how long it waits where there is nothing new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What a run of `publish_batch` has written: rows and deletes by count, and the rows that are set aside."""

    generation: int
    rows: int
    deleted: int
    set_aside: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target(BatchTarget):
    """Where rows go: what is settled with Kafka before the first one is written."""

    manifest: changelog_pb2.Manifest


def spark_jars(*, msk: bool = False) -> str:
    """Return the jars that a session of your own needs, for its setting `spark.jars`; downloads them once.

    `msk`: also what the mechanism AWS_MSK_IAM needs.
    """
    return ",".join(str(jar) for jar in [*jars("spark"), *(jars("msk") if msk else ())])


def publish(
    frame: DataFrame,
    table: FrameTable,
    *,
    checkpoint: str | Path,
    bootstrap: str | None = None,
    kafka: Path | None = None,
    history: DataFrame | None = None,
    output_mode: str = "update",
    every_s: float | None = None,
    available_now: bool = False,
    partitions: int | None = None,
    schema_registry: str | None = None,
) -> StreamingQuery:
    """Publish a streaming DataFrame, and return its query, which runs; raise `JobError`.

    `bootstrap`: Kafka's brokers. `kafka`: a TOML file that says how they are reached, where not in plain text.
    `checkpoint`: a directory or URL that Spark can write, for this table alone. `history`: a batch DataFrame of the
    same columns, which is published before the stream when the table is new. `output_mode`: "update" or "append", as
    Spark has it. `every_s`: how often rows come at most; by default as soon as there are some. `available_now`: end
    when everything that is there now is published. `partitions`: of a new table; 4 where nothing is said.
    `schema_registry`: URL that takes the schema of the values, instead of the one of [registry] in the file.

    With a new `generation` the table is built beside the one that is served, and gateways switch once the stream has
    found nothing new.

    The query fails, as Spark's do, when another job takes the table, and when it has a batch to write and no broker
    answers for two minutes: `awaitTermination` raises `StreamingQueryException`.
    """
    _check_has_no_rows(table)
    _check_partitions(table, partitions)
    checkpoint = _location_of(checkpoint, table)
    spark = frame.sparkSession
    _check_session(spark)
    if not frame.isStreaming:
        raise JobError(f"{frame_of(table)}: the DataFrame is no stream; publish it with publish_batch")
    bootstrap, registry = reach_kafka(bootstrap, kafka), reach_registry(schema_registry, kafka)
    contract = find_contract(table)
    value_schema = row_schema(contract)
    check_columns(frame, table, contract.row, value_schema)
    if history is not None:
        check_columns(history, table, contract.row, value_schema)
    group = _join(bootstrap, table)
    try:
        stored = Checkpoint(spark, checkpoint)
        owner = stored.owner()
        old = read_manifest(bootstrap, table.name)
        generation = _generation_of_stream(bootstrap, table, old, owner, checkpoint)
        is_new = generation is not None
        target = _target(
            table,
            contract,
            value_schema,
            bootstrap,
            old,
            generation=generation,
            mode=Mode.MICROBATCH,
            partitions=partitions,
            registry=registry,
        )
        first = _first_sequence(owner, old, target)
        _check_not_older(target, stored, first)
        markers = Markers(bootstrap, target.changelog, target.generation)
        run = markers.begin_run(group.tenure)
        if owner is None and history is not None and is_new:
            first += 1
            _write(_apart(history), target, first, run=run)
        identity = Identity(
            table=table.name,
            generation=target.generation,
            changelog_topic_id=target.changelog.topic_id,
            source_topic_ids={},
            begins=json.dumps({"sequence": first}),
        )
        stored.claim(identity)
        is_building = is_new and old is not None
        if not is_building:
            replace_manifest(bootstrap, target.manifest, old=old)
        group.check()
        sink = _StreamSink(target, first, markers, group, run)
        query = _start(frame, sink, stored, output_mode, every_s, available_now=available_now)
    except BaseException:
        group.leave()
        raise
    watch = _Watch(query, group, target, old if is_building else None, ends=available_now)
    watch.start()
    return _PublishedQuery(query, watch)


def publish_batch(
    frame: DataFrame,
    table: FrameTable,
    *,
    bootstrap: str | None = None,
    kafka: Path | None = None,
    replace: bool = False,
    partitions: int | None = None,
    schema_registry: str | None = None,
) -> Published:
    """Publish the rows of a batch DataFrame; return when readers may have them; raise `JobError`.

    By default rows are added or replaced, and deleted where `deletes` says so; other keys stay as they are. `replace`:
    the table is what this DataFrame has and nothing else. It is built as a new generation, and gateways switch to it
    without a failed read. The last two changelogs before stay. A run that fails may be begun again. `bootstrap`
    and `kafka`: as of `publish`.
    """
    _check_has_no_rows(table)
    _check_partitions(table, partitions)
    _check_session(frame.sparkSession)
    if frame.isStreaming:
        raise JobError(f"{frame_of(table)}: the DataFrame is a stream; publish it with publish")
    bootstrap, registry = reach_kafka(bootstrap, kafka), reach_registry(schema_registry, kafka)
    contract = find_contract(table)
    value_schema = row_schema(contract)
    check_columns(frame, table, contract.row, value_schema)
    with _joined(bootstrap, table) as group:
        old = read_manifest(bootstrap, table.name)
        is_new = replace or old is None or table.generation > old.generation
        if not is_new and old is not None and old.mode != changelog_pb2.JOB_MODE_BATCH:
            raise JobError(
                f"{frame_of(table)} is kept by a stream, whose next row of a key would be older than this run's; "
                "publish the whole table with replace=True, or feed the stream"
            )
        # Before the changelogs of runs that failed are dropped: one of these may only stand still, and would write to
        # the topic of that name, whosever it is by then.
        generation = _free_generation(bootstrap, table, old) if is_new else None
        if is_new:
            _drop_unused(bootstrap, table, old)
        target = _target(
            table,
            contract,
            value_schema,
            bootstrap,
            old,
            generation=generation,
            mode=None,
            partitions=partitions,
            registry=registry,
        )
        sequence = 1 if is_new or old is None else old.run_sequence + 1
        target.manifest.run_sequence = sequence
        if not is_new:
            replace_manifest(bootstrap, target.manifest, old=old)
        markers = Markers(bootstrap, target.changelog, target.generation)
        counts = _write(_apart(frame), target, sequence, run=markers.begin_run(group.tenure))
        markers.publish_batch(sequence)
        group.tenure()  # else these rows may not count
        if is_new:
            replace_manifest(bootstrap, target.manifest, old=old)
            _end(bootstrap, old)
    log("published", table=table.name, generation=target.generation, sequence=sequence, **asdict(counts))
    return Published(generation=target.generation, **asdict(counts))


# What is settled before anything is written.


def _check_has_no_rows(table: FrameTable) -> None:
    if table.rows is not None:
        raise JobError(f"{frame_of(table)} has rows=, so a job keeps it: tablegate job run {job_argument(table)}")


def _check_partitions(table: FrameTable, partitions: int | None) -> None:
    if partitions is not None and partitions < 1:
        raise JobError(f"{frame_of(table)}: partitions={partitions}; give a number from 1 on")


def _location_of(checkpoint: object, table: FrameTable) -> str:
    if not isinstance(checkpoint, str | Path) or not str(checkpoint).strip():
        raise JobError(f"{frame_of(table)}: checkpoint={checkpoint!r}; give a directory or URL that Spark can write")
    return str(checkpoint)


def _check_session(spark: object) -> None:
    if not isinstance(spark, SparkSession):  # that of Spark Connect is another class, and has no JVM to ask
        raise JobError(
            "the DataFrame is of Spark Connect, and publishing needs a Spark session of this process; make it with "
            "SparkSession.builder.master(…), without .remote(…)"
        )
    if not has_connectors(spark):
        raise JobError(
            "the Spark session has no Kafka connector; make it with "
            '.config("spark.jars", tablegate.jobs.publishing.spark_jars())'
        )


def _generation_of_stream(
    bootstrap: str, table: FrameTable, old: changelog_pb2.Manifest | None, owner: Identity | None, checkpoint: str
) -> int | None:
    """Return the generation that a stream builds; None: it goes on with that of `old`.

    Raise `JobError` where the checkpoint, which `owner` says the content of, fits neither.
    """
    if old is not None and table.generation <= old.generation:
        if owner is None and old.mode != changelog_pb2.JOB_MODE_BATCH:
            raise JobError(
                f'{frame_of(table)} was published before, and its checkpoint is not at "{checkpoint}"; give the one '
                f"that it had, or build it anew: generation={old.generation + 1}"
            )
        return None
    if owner is None:
        return _free_generation(bootstrap, table, old)
    if old is not None and owner.generation <= old.generation:
        raise JobError(
            f'{frame_of(table)}: checkpoint "{checkpoint}" belongs to generation {owner.generation}; give the next one '
            "a checkpoint of its own"
        )
    return owner.generation  # which was begun before


def _free_generation(bootstrap: str, table: FrameTable, old: changelog_pb2.Manifest | None) -> int:
    """Return a number that no changelog of the table has had: what a run left that failed is none of the new one."""
    newest = old.generation if old is not None else past_generation(bootstrap, table.name)
    begun = max(KafkaAdmin(bootstrap).changelogs(table.name), default=0)
    return max(table.generation, newest + 1, begun + 1)


def _target(
    table: FrameTable,
    contract: catalogue.Table,
    value_schema: Mapping[str, Any],
    bootstrap: str,
    old: changelog_pb2.Manifest | None,
    *,
    generation: int | None,
    mode: Mode | None,
    partitions: int | None,
    registry: RegistrySettings | None,
) -> _Target:
    """Return where rows go, the topics made; `generation` None: that of `old`, whose changelog goes on."""
    admin = KafkaAdmin(bootstrap)
    if generation is None:
        assert old is not None, "a table without a manifest begins with a generation"
        _check_same(table, contract, old)
        generation = old.generation
    changelog = admin.ensure(
        changelog_name(bootstrap, table.name, generation),
        changelog_settings(changelog_lifetime_us(contract)),
        partition_count=partitions,
        new_partition_count=old.partition_count if old is not None else PARTITIONS,
    )
    if old is not None and old.generation == generation and old.changelog_topic_id != changelog.topic_id:
        raise JobError(
            f'{frame_of(table)}: changelog topic "{changelog.name}" was deleted and made again since it was published; '
            f"build the table anew: generation={generation + 1}"
        )
    dead_letters = admin.ensure(
        dead_letters_name(bootstrap, table.name), DEAD_LETTERS_SETTINGS, new_settings=DEAD_LETTERS_NEW_SETTINGS
    )
    asked = SchemaRegistry(registry) if registry is not None else None
    schema_id, value_schemas = choose_value_schema(value_schema, changelog.name, generation, old, asked)
    manifest = make_manifest(
        table, contract, generation=generation, changelog=changelog, mode=mode, value_schemas=value_schemas
    )
    return _Target(
        table=table,
        contract=contract,
        bootstrap=bootstrap,
        generation=generation,
        changelog=changelog,
        dead_letters=dead_letters,
        value_schema=value_schema,
        schema_id=schema_id,
        manifest=manifest,
    )


def _check_same(table: FrameTable, contract: catalogue.Table, old: changelog_pb2.Manifest) -> None:
    """Raise `JobError` where rows of this contract are none of the generation that is there."""
    if old.contract_fingerprint != contract.fingerprint:
        raise JobError(
            f"{frame_of(table)}: key, windows or partitioning have changed since generation {old.generation} was "
            f"built; build the table anew: generation={old.generation + 1}"
        )
    if old.declared_generation > table.generation:
        raise JobError(
            f"{frame_of(table)} is declared with generation {table.generation}, and was published by a newer "
            f"declaration, with {old.declared_generation}; use that one"
        )


def _first_sequence(owner: Identity | None, old: changelog_pb2.Manifest | None, target: _Target) -> int:
    """Return the sequence before the stream's first batch: behind what runs have written to the same generation."""
    if owner is not None:
        return int(json.loads(owner.begins or "{}").get("sequence", 0))
    return int(old.run_sequence) if old is not None and old.generation == target.generation else 0


def _check_not_older(target: _Target, checkpoint: Checkpoint, first: int) -> None:
    """Raise `JobError` where the stream would give sequences once more that rows of other batches have.

    Gateways would drop what it writes for these keys, without a word.
    """
    marker = newest_marker(target.bootstrap, KafkaAdmin(target.bootstrap), target.changelog, of_batch=True)
    planned = checkpoint.newest_batch(QUERY, OFFSETS)  # a batch that a crash has cut off runs again as it was
    newest = first if planned is None else first + planned + 1
    if marker is not None and not marker.final and marker.batch_id > newest:
        raise JobError(
            f'{frame_of(target.table)}: checkpoint "{checkpoint.location}" is older than what was published, as one is '
            f"that comes from a backup, or has lost files: it has {newest} batches of {marker.batch_id}; give the "
            f"newest one, or another one, and build the table anew: generation={target.generation + 1}"
        )


# One at a time.


class _Membership:
    """The table's group, joined: its poll is called from a thread of its own while Spark works."""

    def __init__(self, group: JobGroup) -> None:
        self._group = group
        self._lock = threading.Lock()  # of the group
        self._error: JobError | None = None
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="tablegate-group", daemon=True)
        self._thread.start()

    def _poll(self) -> None:
        while not self._ends.wait(WATCH_S):
            try:
                with self._lock:
                    self._group.poll()
            except JobError as error:
                self._error = error
                return

    def check(self) -> None:
        """Raise `JobError` where another one has the table. While no broker answers, nobody knows."""
        if self._error is not None:
            raise self._error
        self._group.check_kept()  # after it was frozen, its poll may not have heard of it yet

    def tenure(self) -> Tenure:
        """Return the tenure of now; raise `JobError` where another one may have had the table since this has joined.

        What this one has read before it begins would be older than what the other has published.
        """
        return self._tenure(since_joining=True)

    def tenure_now(self) -> Tenure:
        """Return the tenure of now; raise `JobError` where another one has the table, `NotJoined` where none has it."""
        return self._tenure(since_joining=False, within_s=ASK_AGAIN_S)

    def _tenure(self, *, since_joining: bool, within_s: float = JOINED_WITHIN_S) -> Tenure:
        if self._error is not None:
            raise self._error
        with self._lock:
            return self._group.tenure(since_joining=since_joining, within_s=within_s)

    def leave(self) -> None:
        """Leave the group."""
        self._ends.set()
        self._thread.join()
        self._group.leave()


def _join(bootstrap: str, table: FrameTable) -> _Membership:
    # Its members follow this topic.
    KafkaAdmin(bootstrap).ensure(manifests_topic(bootstrap), MANIFESTS_SETTINGS, partition_count=1)
    return _Membership(JobGroup.join(bootstrap, table.name, job_group(table.name), generation=table.generation))


@contextmanager
def _joined(bootstrap: str, table: FrameTable) -> Iterator[_Membership]:
    group = _join(bootstrap, table)
    try:
        yield group
    finally:
        group.leave()


class _Watch(threading.Thread):
    """Follows a stream until it ends: keeps its place in the group, and puts a new generation into its place."""

    def __init__(
        self,
        query: StreamingQuery,
        group: _Membership,
        target: _Target,
        old: changelog_pb2.Manifest | None,
        *,
        ends: bool,
    ) -> None:
        # A program may end with its query, and has to stay until the new generation is in its place.
        super().__init__(name=f"tablegate-{target.table.name}", daemon=old is None)
        self._query = query
        self._group = group
        self._target = target
        self._old = old  # that is served until this one has caught up
        self._ends = ends  # by itself, with what is there
        self._changelog = TopicWatch(KafkaAdmin(target.bootstrap), [target.changelog])
        self.is_stopped = False  # by who has published it, maybe before it has caught up
        self.error: StreamingQueryException | None = None  # for which the query was ended

    def run(self) -> None:
        """Watch, until the query has ended."""
        running = metrics.RUNNING.labels(self._target.table.name)
        metrics.GENERATION.labels(self._target.table.name).set(self._target.generation)
        try:
            running.set(1)
            while self._query.isActive:
                self._group.check()
                self._changelog.check_same()
                if self._old is not None and self._has_caught_up():
                    with suppress(BrokersAway):  # the next look does it
                        self._replace(self._old)
                self._query.awaitTermination(WATCH_S)
            # It was to end with what there was, and has not failed: Spark says the same of one that was stopped.
            if self._old is not None and self._ends and not self.is_stopped and self._query.exception() is None:
                self._replace(self._old)
        except JobError as error:
            log("stopped", table=self._target.table.name, reason=str(error))
            self.error = StreamingQueryException(str(error))
            self._query.stop()
        except (PySparkException, Py4JError, ConnectionError):
            pass  # the query has failed, which its owner hears from it, too, or Spark has gone
        finally:
            with suppress(Py4JError, ConnectionError):
                self._log_failure()
            running.set(0)
            self._group.leave()

    def _log_failure(self) -> None:
        """Log in a sentence what the query's own error has between two stack traces of Spark's."""
        failure = self._query._jsq.exception()
        if failure.isDefined():
            log("failed", table=self._target.table.name, reason=_sentence(self._target, thrown_reason(failure.get())))

    def _has_caught_up(self) -> bool:
        if self._query.lastProgress is None or self._query.status["isDataAvailable"]:
            return False
        return bool(self._query.isActive)  # asked last: of a query that has ended Spark says that it has no data

    def _replace(self, old: changelog_pb2.Manifest) -> None:
        replace_manifest(self._target.bootstrap, self._target.manifest, old=old)
        _end(self._target.bootstrap, old)
        self._old = None
        log("in_place", table=self._target.table.name, generation=self._target.generation)


class _PublishedQuery(StreamingQuery):  # type: ignore[misc] # mypy skips PySpark
    """Spark's query, which has also failed where it was ended for an error of its watch: Spark can only stop one.

    It has ended when its watch has: then a new generation is in its place, and another stream may begin.
    """

    def __init__(self, query: StreamingQuery, watch: _Watch) -> None:
        super().__init__(query._jsq)
        self._watch = watch

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802 — Spark's name
        """Wait as Spark's query does; raise `StreamingQueryException`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            if super().awaitTermination(timeout) is False:
                return False
        except StreamingQueryException:
            self._watch.join(timeout)  # until its log says why
            raise
        self._watch.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        if self._watch.error is not None:
            raise self._watch.error
        return None if timeout is None else not self._watch.is_alive()

    def stop(self) -> None:
        """Stop as Spark's query does. A new generation that has not caught up replaces nothing."""
        self._watch.is_stopped = True
        super().stop()

    def exception(self) -> StreamingQueryException | None:
        """Return why the query has failed."""
        return super().exception() or self._watch.error


# Rows.


class _StreamSink:
    """Writes the batches of one stream, one after the other: `writer.foreachBatch(sink.write_batch)`."""

    def __init__(
        self,
        target: _Target,
        first: int,
        markers: Markers,
        group: _Membership,
        run: int,
        *,
        away_s: float = AWAY_S,
    ) -> None:
        self._target = target
        self._first = first  # the sequence before the first batch
        self._markers = markers
        self._group = group
        self._run = run
        self._away_s = away_s

    @property
    def table(self) -> FrameTable:
        """The table that it writes."""
        return self._target.table

    def write_batch(self, rows: DataFrame, batch_id: int) -> None:
        """Write a batch, and return when Kafka has it; raise `JobError`, and then the query ends.

        It waits for brokers that are away, as Spark does where it writes the rows.
        """
        sequence, table = self._first + batch_id + 1, self._target.table.name
        context = rows.sparkSession.sparkContext
        next_run = partial(self._answered, context, self._next_run)
        counts = _write(rows, self._target, sequence, run=self._run, next_run=next_run)
        self._answered(context, lambda: self._markers.publish_batch(sequence))
        metrics.CHANGES.labels(table).inc(counts.rows + counts.deleted)
        metrics.MARKER_TIME.labels(table).set(time.time())
        if counts != NOTHING:
            log("batch", table=table, batch=batch_id, **asdict(counts))

    def _answered(self, context: SparkContext, ask: Callable[[], Answer]) -> Answer:
        """Return the answer to what is asked of Kafka, again and again while no broker answers; raise `JobError`."""
        end_s, is_logged = time.monotonic() + self._away_s, False
        while True:
            try:
                return ask()
            except (BrokersAway, NotJoined):
                if time.monotonic() >= end_s:
                    raise JobError(
                        f"{frame_of(self._target.table)}: {_stopped_answering(self._target)}; {_AGAIN}"
                    ) from None
                if not is_logged:
                    is_logged = True
                    log("brokers_away", table=self._target.table.name, bootstrap=self._target.bootstrap)
            # In Java, where Spark interrupts it when the query is stopped.
            java_class(context, "java.lang.Thread").sleep(round(ASK_AGAIN_S * 1000))

    def _next_run(self) -> int | None:
        """Return the run that begins now; None where that of before lasts. Raise `JobError`.

        Where this stream was left out of the group, another may have come and gone, behind whose run nothing counts.
        """
        if self._group.tenure_now() == self._markers.tenure:
            return None
        target, found = self._target, read_manifest(self._target.bootstrap, self._target.table.name)
        newest = (found.generation, found.run_sequence) if found is not None else (0, 0)
        if newest > (target.generation, target.manifest.run_sequence):
            raise JobError(
                f"{frame_of(target.table)} was published by another while this stream stood still; start it again"
            )
        log("left_out", table=target.table.name, generation=target.generation)
        self._run = self._markers.begin_run(self._group.tenure_now)
        return self._run


def _start(
    frame: DataFrame,
    sink: _StreamSink,
    checkpoint: Checkpoint,
    output_mode: str,
    every_s: float | None,
    *,
    available_now: bool,
) -> StreamingQuery:
    trigger: dict[str, Any] = {"availableNow": True}
    if not available_now:
        # Of an interval that nobody has asked for, Spark would warn at each batch that it is too short.
        trigger = {"processingTime": f"{round((every_s or 0.0) * 1000)} milliseconds"}
    writer = frame.writeStream.outputMode(output_mode).trigger(**trigger).queryName(f"{sink.table.name}-{QUERY}")
    writer = writer.option("checkpointLocation", checkpoint.query_location(QUERY)).foreachBatch(sink.write_batch)
    checkpoint.discard_uncommitted(QUERY)
    try:
        with _polling(frame.sparkSession):
            return writer.start()
    except PySparkException as error:
        hint = output_mode_hint(error, output_mode)
        raise JobError(f"{frame_of(sink.table)} does not run: {error_reason(error)}{hint}") from None


_starting = threading.Lock()


@contextmanager
def _polling(spark: SparkSession) -> Iterator[None]:
    """Let a query that starts in the block look for new data as often as `MICROBATCH_S`, or as its session says.

    It is a setting of the program's own session, which has to know the query. One thread at a time changes it.
    """
    with _starting:
        if spark.conf.get(_POLLING_DELAY, None) is not None:
            yield
            return
        spark.conf.set(_POLLING_DELAY, f"{round(MICROBATCH_S * 1000)}ms")
        try:
            yield
        finally:
            spark.conf.unset(_POLLING_DELAY)


def _apart(frame: DataFrame) -> DataFrame:
    """Return a DataFrame in a session that is a copy of its own: to write it needs settings that are nobody else's.

    Another thread of the program may use the session meanwhile, or publish, too. A stream has such a copy of Spark's.
    """
    context = frame.sparkSession.sparkContext
    copy = frame.sparkSession._jsparkSession.cloneSession()
    made = java_class(context, _DATASET).ofRows(copy, frame._jdf.queryExecution().analyzed())
    return DataFrame(made, SparkSession(context, copy))


def _write(
    rows: DataFrame,
    target: _Target,
    sequence: int,
    *,
    run: int,
    next_run: Callable[[], int | None] = lambda: None,
) -> BatchCounts:
    try:
        return write_batch(rows, target, sequence, run=run, next_run=next_run)
    except (PySparkException, Py4JError) as error:
        if is_interrupted(error):  # Spark, which has done it, must see that
            raise
        raise _not_written(target, error_reason(error)) from None


def _not_written(target: _Target, reason: str) -> JobError:
    of = frame_of(target.table)
    if reason.startswith(KAFKA_AWAY):
        # Of a topic that is not there a producer has nothing else to say.
        with suppress(JobError):
            if KafkaAdmin(target.bootstrap).find(target.changelog.name) is None:
                return JobError(
                    f'{of}: changelog topic "{target.changelog.name}" was deleted while it was written; publish again: '
                    "the start says how to go on"
                )
        return JobError(f"{of}: {_stopped_answering(target)} ({reason}); {_AGAIN}")
    return JobError(f"{of}: a batch cannot be written: {reason}")


def _sentence(target: _Target, reason: str) -> str:
    """Return why a stream has failed, where Spark's reason may be one of ours already."""
    of = frame_of(target.table)
    if reason.startswith(str(target.table.declared_at)):
        return reason
    if NO_SPACE in reason:
        return (
            f"{of} has stopped, as a disk is full ({reason}): make room at its checkpoint, and where Spark has its "
            f"scratch files (spark.local.dir), then publish it again: it goes on from there"
        )
    return f"{of} has stopped: {reason}"


_AGAIN = "publish it again when it does: a stream goes on from its checkpoint"


def _stopped_answering(target: _Target) -> str:
    return f"Kafka at {target.bootstrap} has stopped answering"


# Generations.


def _end(bootstrap: str, old: changelog_pb2.Manifest | None) -> None:
    """Write the final marker of a generation, and of those before it that a run which failed has left without."""
    if old is None:
        return
    admin = KafkaAdmin(bootstrap)
    for number, name in admin.changelogs(old.table).items():
        changelog = admin.find(name)
        if number > old.generation or changelog is None:
            continue
        marker = newest_marker(bootstrap, admin, changelog)
        if marker is None or not marker.final:
            markers = Markers(bootstrap, changelog, number)
            markers.publish_final({})
            markers.close()


def _drop_unused(bootstrap: str, table: FrameTable, old: changelog_pb2.Manifest | None) -> None:
    """Delete the changelogs that no gateway needs: of runs that failed, and those before the last two.

    The last but one is still served where gateways have yet to read the last one.
    """
    newest = old.generation if old is not None else 0
    admin = KafkaAdmin(bootstrap)
    changelogs = admin.changelogs(table.name)
    kept = [number for number in changelogs if number <= newest][-2:]
    names = [name for number, name in changelogs.items() if number not in kept]
    if names:
        admin.delete(names)
        log("dropped", table=table.name, topics=names)
