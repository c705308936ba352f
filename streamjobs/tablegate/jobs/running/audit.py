"""`tablegate job audit`: whether the rows that a table's changelog serves are those that its job's state says.

    changelog ── runs that count ── newest record of each key ──┐
                                                                 ├── by key ── counts, and the first that differ
    state of a committed batch ── the job's own last steps ──────┘

The state of a table's query holds, for each key, what its aggregates have come to so far. What follows them in the
query (columns, `having`, casts, Avro) is not written here a second time: Spark plans the table's own query, and the
rows of the state are put in where the aggregates would end (`state_records.py`). So the state gives records as the
job writes them, with their versions.

Which records the state must have:

1. The end of the changelog is noted, then the newest batch that was planned. What lies before that end was written by
   this batch, or by one before it.
2. When that batch is committed, its state is read, and the changelog up to its end at that time.
3. A key whose newest record is newer than the state and lies behind the first end was changed meanwhile: it is
   skipped. One before the first end is the work of nobody whom the state knows.

In Real-time Mode a batch is planned when it ends, so the one after the newest is waited for. If it does not end soon,
or the job stands still within a batch, all keys with newer records than the state are skipped.

It only reads. The job may run meanwhile.

Decision: docs/decisions/0088-an-audit-reads-the-state.md
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation, Row, SparkSession, Window
from pyspark.sql import functions as sql
from pyspark.sql.avro.functions import from_avro

from tablegate.gateway.contract.kafka_settings import spark_options
from tablegate.gateway.contract.keys import KEY_BYTES_MAX
from tablegate.gateway.contract.types import (
    RUN_BYTES,
    RUN_HEADER,
    RUN_KEY_PREFIX,
    VERSION_BYTES,
    VERSION_HEADER,
    Version,
    read_version,
)
from tablegate.jobs.dataflow.frames import build
from tablegate.jobs.dataflow.java_classes import scala_object
from tablegate.jobs.dataflow.java_errors import error_reason
from tablegate.jobs.dataflow.keys import key_bytes_sql, partition_sql, without_ansi
from tablegate.jobs.errors import JobError
from tablegate.jobs.frame_table import Declared, FrameTable
from tablegate.jobs.kafka.job_group import job_group, rebuild_group
from tablegate.jobs.kafka.manifests import JOB_MODES, read_manifest
from tablegate.jobs.kafka.topics import KafkaAdmin
from tablegate.jobs.planning.logic import logic_of
from tablegate.jobs.planning.plan import Plan, check_contract_unchanged, plan_without_cluster
from tablegate.jobs.running.checkpoint import COMMITS, OFFSETS, Checkpoint, check_owner
from tablegate.jobs.running.expiry import newest_sweep
from tablegate.jobs.running.queries import TABLE_QUERY
from tablegate.jobs.running.resuming import check_logic
from tablegate.jobs.running.session import spark_session, table_session
from tablegate.jobs.running.state_records import read_state, records_of_state
from tablegate.jobs.table import Mode, Table, is_window_start

DIFFERENCES_MAX = 10  # a person reads them; the counts have all
BATCH_WAIT_S = 60.0  # for the batch that runs when the audit begins: a person waits
POLL_S = 0.2
RECORDS_PER_TASK = 200_000  # some 50 MB: sorted in memory
RECORDS_PER_POLL = 20_000  # some 2 MB; with Kafka's 500, to ask for records takes as long as to read them
TOLERANCES = {"double": "1e-9", "float": "1e-6"}
"""How far two numbers of a type may be apart, relative to the larger: a batch that runs again adds in another order."""

EQUAL, DIFFERENT = "equal", "different"
MISSING_IN_CHANGELOG, MISSING_IN_STATE = "missing in changelog", "missing in state"
SKIPPED = "skipped"
VERDICTS = (EQUAL, DIFFERENT, MISSING_IN_CHANGELOG, MISSING_IN_STATE, SKIPPED)

_ROW, _KEY, _VERSION, _RUN, _VERDICT = "__row", "__key", "__version", "__run", "__verdict"
_OFFSET, _PARTITION, _PLACE = "__offset", "__partition", "__place"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A key whose rows differ, or that one side lacks. Rows are columns by name, as JSON has them; None without one.

    `columns`: those that differ. The sequences are those of the versions.
    """

    verdict: str
    columns: tuple[str, ...]
    changelog: Mapping[str, Any] | None
    changelog_sequence: int | None
    state: Mapping[str, Any] | None
    state_sequence: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What an audit has found. `batch`: the one whose state was read. `counts`: rows by verdict, each of `VERDICTS`.

    `is_settled`: whether all that was in the changelog when the audit began is of committed batches. If it is not, all
    keys with newer records than the state were skipped.
    """

    table: str
    generation: int
    batch: int
    is_settled: bool
    counts: Mapping[str, int]
    differences: tuple[Difference, ...]

    @property
    def compared(self) -> int:
        """How many rows were compared."""
        return sum(count for verdict, count in self.counts.items() if verdict != SKIPPED)

    @property
    def is_equal(self) -> bool:
        """Whether all rows that were compared are equal."""
        return self.compared == self.counts[EQUAL]


def audit_job(
    table: Declared, *, bootstrap: str, checkpoints: str, master: str | None, spark_log: Path | None
) -> Audit:
    """Start Spark, and return what `audit_table` does; raise `JobError`."""
    _check_auditable(table)  # before the seconds that Spark needs
    with spark_session(
        f"tablegate audit {table.name}", master=master or "local[*]", checkpoints=checkpoints, spark_log=spark_log
    ) as spark:
        return audit_table(spark, table, bootstrap=bootstrap, checkpoints=checkpoints)


def audit_table(spark: SparkSession, table: Declared, *, bootstrap: str, checkpoints: str) -> Audit:
    """Return how the rows of a table's changelog compare with its job's state; raise `JobError` where none can say."""
    auditable = _check_auditable(table)
    try:
        return _audit(spark, auditable, bootstrap, checkpoints)
    except (PySparkException, Py4JError) as error:
        raise JobError(
            f'table "{table.name}" cannot be audited: {error_reason(error)}; if the job runs, it may have removed what '
            "was to be read: audit again"
        ) from None


def _check_auditable(table: Declared) -> Table:
    """Return the table; raise `JobError` where its state does not tell its rows."""
    if isinstance(table, FrameTable):
        raise JobError(
            f'{table.declared_at}: table "{table.name}" cannot be audited: its rows are what a function of yours '
            "returns, and the state of its query does not tell them"
        )
    if table.processor is not None:
        raise JobError(
            f'{table.declared_at}: table "{table.name}" cannot be audited: its rows are what the processor '
            f'"{type(table.processor).__name__}" emits, and its state does not tell them'
        )
    return table


def _audit(spark: SparkSession, table: Table, bootstrap: str, checkpoints: str) -> Audit:
    admin = KafkaAdmin(bootstrap)
    plan = _plan(table, admin, bootstrap, checkpoints)
    checkpoint = Checkpoint(spark, plan.checkpoint)
    _check_checkpoint(plan, checkpoint)
    last_sweep = newest_sweep(checkpoint)
    plan = replace(plan, sequence_base=last_sweep.sequence_base)
    begin = admin.readable_ends(plan.changelog)
    batch, is_settled = _await_batch(plan, checkpoint, admin)
    ends = admin.readable_ends(plan.changelog)
    tasks = sum(ends.values()) // RECORDS_PER_TASK + spark.sparkContext.defaultParallelism
    session = table_session(spark, shuffle_partitions=tasks)
    compared = _compared(
        _changelog_rows(session, plan, ends),
        _state_rows(session, plan, checkpoint, batch),
        plan,
        settled=begin if is_settled else {},
        watermark_us=checkpoint.watermark_us(TABLE_QUERY, batch),
    )
    observation = Observation("verdicts")
    counted = (sql.count_if(sql.col(_VERDICT) == verdict).alias(verdict) for verdict in VERDICTS)
    wrong = compared.observe(observation, *counted).where(~sql.col(_VERDICT).isin(EQUAL, SKIPPED))
    # The first by key: so all are looked at, and a second audit names the same.
    rows = (
        wrong.orderBy(_KEY)
        .limit(DIFFERENCES_MAX)
        .selectExpr(
            _VERDICT,
            "differing",
            "changelog_version",
            "state_version",
            *(f"to_json({side}, map('ignoreNullFields', 'false')) AS {side}_json" for side in ("changelog", "state")),
        )
    )
    first = rows.collect()
    if newest_sweep(checkpoint) != last_sweep or not last_sweep.is_done:
        raise JobError(f'table "{table.name}" cannot be audited while its job removes expired rows: audit again')
    return Audit(
        table=table.name,
        generation=plan.generation,
        batch=batch,
        is_settled=is_settled,
        counts={verdict: int(observation.get[verdict]) for verdict in VERDICTS},
        differences=tuple(map(_difference, first)),
    )


# What is compared.


def _plan(table: Table, admin: KafkaAdmin, bootstrap: str, checkpoints: str) -> Plan:
    """Return the plan of the generation that is served. Nothing is made that is not there."""
    manifest = read_manifest(bootstrap, table.name)
    if manifest is None:
        raise JobError(f'table "{table.name}" has no manifest at {bootstrap}; tablegate job list shows the tables')
    changelog = admin.find(manifest.changelog_topic)
    if changelog is None:
        raise JobError(f'changelog topic "{manifest.changelog_topic}" of table "{table.name}" is not there any more')
    modes = {number: mode for mode, number in JOB_MODES.items()}
    if manifest.mode not in modes:
        raise JobError(f'table "{table.name}" cannot be audited: it is published from a DataFrame, and has no job')
    location = f"{checkpoints.rstrip('/')}/{table.name}"
    plan = plan_without_cluster(table, location)
    check_contract_unchanged(table, plan.contract, manifest, manifest.generation)
    schemas = {number: json.loads(text) for number, text in manifest.value_schemas.items()}
    return replace(
        plan,
        bootstrap=bootstrap,
        mode=modes[manifest.mode],
        generation=manifest.generation,
        checkpoint=f"{location}/g{manifest.generation}",
        changelog=changelog,
        # That of equal rows, so that their bytes are equal. Else one that no record has.
        schema_id=max((number for number, known in schemas.items() if known == plan.value_schema), default=0),
        manifest=manifest,
    )


def _check_checkpoint(plan: Plan, checkpoint: Checkpoint) -> None:
    """Raise `JobError` where the checkpoint is not that of the changelog, or its rows were computed otherwise."""
    owner = check_owner(checkpoint.owner(), plan.checkpoint, plan.manifest, plan.changelog.topic_id, plan.bootstrap)
    check_logic(plan, owner.logic, logic_of(plan.table))


def _await_batch(plan: Plan, checkpoint: Checkpoint, admin: KafkaAdmin) -> tuple[int, bool]:
    """Return the batch whose state to read, and whether all records that were there before are of it or older ones."""
    committed = checkpoint.newest_batch(TABLE_QUERY, COMMITS)
    wanted = checkpoint.newest_batch(TABLE_QUERY, OFFSETS) or 0
    if plan.mode is Mode.REALTIME and committed is not None:
        wanted = committed + 1
    groups = job_group(plan.table.name), rebuild_group(plan.table.name)
    end_s = time.monotonic() + BATCH_WAIT_S
    while committed is None or committed < wanted:
        if time.monotonic() >= end_s or not any(map(admin.members, groups)):
            break
        time.sleep(POLL_S)
        committed = checkpoint.newest_batch(TABLE_QUERY, COMMITS)
    if committed is None:
        raise JobError(
            f'the job of table "{plan.table.name}" has not finished a batch of generation {plan.generation}: audit it '
            "when it has"
        )
    return committed, committed >= wanted


# The rows of the state.


def _state_rows(session: SparkSession, plan: Plan, checkpoint: Checkpoint, batch: int) -> DataFrame:
    """Return the rows as the state of a batch says: `_KEY`, `_VERSION`, `_ROW`, which is null where none exists."""
    changelog = build(session, plan, row_outputs=False).table
    state = read_state(session, checkpoint.query_location(TABLE_QUERY), batch)
    records = records_of_state(changelog, state, plan)
    row = from_avro(sql.expr("substring(value, 6)"), json.dumps(plan.value_schema))
    return records.select(
        sql.col("key").alias(_KEY),
        sql.col("headers")[0]["value"].alias(_VERSION),
        sql.when(sql.col("value").isNotNull(), row).alias(_ROW),
    )


# The rows of the changelog.


def _changelog_rows(session: SparkSession, plan: Plan, ends: Mapping[int, int]) -> DataFrame:
    """Return the rows that gateways serve, of each key the newest: `_KEY`, `_VERSION`, `_ROW`, `_PARTITION`, `_OFFSET`.

    `_ROW` is null for a tombstone. What gateways skip is left out, but for a key in another partition than its own
    where the Java producer chose it.

    The topic is read once, into a shuffle by key. From there come first the runs, then the rows.
    """
    topic = plan.changelog.name
    records = (
        session.read.format("kafka")
        .options(**spark_options(plan.bootstrap))
        .option("kafka.isolation.level", "read_committed")
        .option("kafka.max.poll.records", RECORDS_PER_POLL)
        .option("assign", json.dumps({topic: list(ends)}))
        .option("startingOffsets", "earliest")
        .option("endingOffsets", json.dumps({topic: ends}))
        # Compaction may remove what was there a moment ago.
        .option("failOnDataLoss", "false")
        .option("includeHeaders", "true")
        .load()
        .select(
            sql.col("key").alias(_KEY),
            "value",
            sql.col("partition").alias(_PARTITION),
            sql.col("offset").alias(_OFFSET),
            _header(VERSION_HEADER).alias(_VERSION),
            _header(RUN_HEADER).alias(_RUN),
        )
    )
    is_row = (
        f"octet_length({_KEY}) BETWEEN 1 AND {KEY_BYTES_MAX} AND octet_length({_VERSION}) = {VERSION_BYTES} "
        f"AND substring({_VERSION}, 1, 4) = X'{plan.generation:08X}' "
        f"AND ({_RUN} IS NULL OR octet_length({_RUN}) = {RUN_BYTES})"
    )
    records = _shuffled_once(records)
    rows = _of_runs_that_count(records, _fences(records, is_row)).where(is_row)
    rows = rows.withColumn(_ROW, sql.when(sql.col("value").isNotNull(), _decoded(plan)))
    with without_ansi(session):
        own = f"{key_bytes_sql(plan.contract.key, _ROW)} <=> {_KEY}"
        partition = partition_sql(plan.contract, plan.changelog.partition_count, _ROW)
        own += f" AND {partition} <=> {_PARTITION}" if partition is not None else ""
        rows = rows.where(f"value IS NULL OR ({own})").drop("value")
    newest = Window.partitionBy(_KEY).orderBy(sql.col(_VERSION).desc(), sql.col(_OFFSET))  # of two contents the first
    return rows.withColumn(_PLACE, sql.row_number().over(newest)).where(f"{_PLACE} = 1").drop(_PLACE, _RUN)


def _header(name: str) -> Column:
    """Return the value of the last header of this name; null without one."""
    # Nearly all records have one header or two, which need no function that is called for each.
    last = f"try_element_at(filter(headers, h -> h.key = '{name}'), -1).value"
    second, first = (f"headers[{place}].key = '{name}', headers[{place}].value" for place in (1, 0))
    one, two = f"IF({first}, NULL)", f"IF({second}, IF({first}, NULL))"
    return sql.expr(f"CASE size(headers) WHEN 1 THEN {one} WHEN 2 THEN {two} ELSE {last} END")


def _shuffled_once(records: DataFrame) -> DataFrame:
    """Return records that lie in partitions by their keys, and are read and shuffled once for all plans over them.

    Each plan of Spark's would read the topic again. So its plans have the shuffle's own output as their source.
    """
    session = records.sparkSession
    shuffled = records.repartition(_KEY)._jdf
    sources = scala_object(session.sparkContext, "org.apache.spark.sql.execution.LogicalRDD")
    arguments = [shuffled.queryExecution().toRdd(), shuffled, False]
    try:
        source = sources.fromDataset(*arguments)
    except Py4JError:  # Spark 4.3 takes one more
        source = sources.fromDataset(*arguments, getattr(sources, "fromDataset$default$4")())
    datasets = scala_object(session.sparkContext, "org.apache.spark.sql.classic.Dataset")
    return DataFrame(datasets.ofRows(session._jsparkSession, source), session)


def _decoded(plan: Plan) -> Column:
    """Return the row in a record's value as a struct; null, or without its key, where it does not decode."""
    reader = json.dumps(plan.value_schema)
    body, row = sql.expr("substring(value, 6)"), sql.expr("NULL")
    for number, writer in plan.manifest.value_schemas.items():
        decoded = from_avro(body, writer, {"mode": "PERMISSIVE", "avroSchema": reader})
        row = sql.when(sql.expr(f"startswith(value, X'00{number:08X}')"), decoded).otherwise(row)
    return row


_RUN_KEY_HEX = f"^{RUN_KEY_PREFIX.hex().upper()}(3[0-9]|6[1-6]){{16}}$"  # the digits in hex, once more
Fences = Sequence[tuple[int, bytes, int]]
"""Partition, run, and the offset from which on records of that run do not count there."""


def _fences(records: DataFrame, is_row: str) -> Fences:
    """Return from where on the runs of a changelog do not count: behind the first record of a later one."""
    is_begin = f"startswith({_KEY}, X'{RUN_KEY_PREFIX.hex()}') AND hex({_KEY}) RLIKE '{_RUN_KEY_HEX}'"
    run_of_key = f"unhex(CAST(substring({_KEY}, {len(RUN_KEY_PREFIX) + 1}) AS STRING))"
    first = (
        records.where(f"({is_begin}) OR ({_RUN} IS NOT NULL AND {is_row})")
        .withColumn(_RUN, sql.expr(f"IF({is_begin}, {run_of_key}, {_RUN})"))
        .groupBy(_PARTITION, _RUN)
        .agg(sql.min(_OFFSET))
        .collect()
    )
    begins: dict[int, dict[bytes, int]] = {}
    for partition, run, offset in first:
        begins.setdefault(partition, {})[bytes(run)] = offset
    fences = []
    for partition, runs in begins.items():
        fence: int | None = None
        for run in sorted(runs, reverse=True):
            if fence is not None:
                fences.append((partition, run, fence))
            fence = min(runs[run], runs[run] if fence is None else fence)
    return fences


def _of_runs_that_count(records: DataFrame, fences: Fences) -> DataFrame:
    if not fences:
        return records
    fenced = records.sparkSession.createDataFrame(fences, f"{_PARTITION} INT, {_RUN} BINARY, __fence BIGINT")
    joined = records.join(sql.broadcast(fenced), [_PARTITION, _RUN], "left")
    return joined.where(f"__fence IS NULL OR {_OFFSET} < __fence").drop("__fence")


# The comparison.


def _compared(
    changelog: DataFrame, state: DataFrame, plan: Plan, *, settled: Mapping[int, int], watermark_us: int
) -> DataFrame:
    """Return the rows of both by key, with `_VERDICT`; null where neither has one.

    `settled`: the offset in each partition up to which the state must know all records.
    """
    ours = changelog.select(
        _KEY,
        sql.col(_ROW).alias("changelog"),
        sql.col(_VERSION).alias("changelog_version"),
        sql.expr(_or(f"({_PARTITION} = {at} AND {_OFFSET} < {end})" for at, end in settled.items())).alias("settled"),
    )
    theirs = state.select(_KEY, sql.col(_ROW).alias("state"), sql.col(_VERSION).alias("state_version"))
    joined = ours.join(theirs, _KEY, "full")
    differing = [
        f"IF({_same(name, kind)}, NULL, '{name}')"
        for name, kind in ((field.name, field.dataType.simpleString()) for field in changelog.schema[_ROW].dataType)
    ]
    assert isinstance(plan.table, Table), "another is not auditable"
    start = next((name for name, expression in plan.table.key.items() if is_window_start(expression)), None)
    window_end_us = ""
    if plan.table.window is not None:
        window_end_us = f"try_add(unix_micros(either.`{start}`), {round(plan.table.window.size_s * 1e6)})"
    # What the watermark has passed is no longer in the state; what has expired need not be in the changelog either.
    is_closed = f"state_version IS NULL AND {window_end_us} <= {watermark_us}" if window_end_us else "false"
    is_expired = "false"
    if plan.contract.expiry is not None:
        is_expired = f"try_add({window_end_us}, {plan.contract.expiry.retention_us}) <= {time.time_ns() // 1000}"
    is_newer = "changelog_version > coalesce(state_version, X'')"
    verdict = f"""CASE
        WHEN either IS NULL OR {is_expired} THEN NULL
        WHEN coalesce({is_newer} AND NOT settled, false) OR {is_closed} THEN '{SKIPPED}'
        WHEN changelog IS NULL THEN '{MISSING_IN_CHANGELOG}'
        WHEN state IS NULL THEN '{MISSING_IN_STATE}'
        WHEN {is_newer} OR size(differing) > 0 THEN '{DIFFERENT}'
        ELSE '{EQUAL}' END"""
    return (
        joined.withColumn("either", sql.expr("coalesce(state, changelog)"))
        .withColumn("differing", sql.expr(f"array_compact(array({', '.join(differing)}))"))
        .withColumn(_VERDICT, sql.expr(verdict))
    )


def _or(conditions: Iterable[str]) -> str:
    return " OR ".join(conditions) or "false"


def _same(name: str, kind: str) -> str:
    ours, theirs = f"changelog.`{name}`", f"state.`{name}`"
    if "map<" in kind:  # Spark compares no maps
        ours, theirs = f"to_json(struct({ours}))", f"to_json(struct({theirs}))"
    same = f"{ours} <=> {theirs}"
    if kind in TOLERANCES:
        apart = f"abs({ours} - {theirs})"
        largest = f"greatest(abs({ours}), abs({theirs}))"
        # Infinity is near nothing but itself.
        same += f" OR coalesce({apart} <= {TOLERANCES[kind]} * {largest} AND {apart} < double('Infinity'), false)"
    return same


def _difference(found: Row) -> Difference:
    def read(side: str) -> tuple[Mapping[str, Any] | None, int | None]:
        row, version = found[f"{side}_json"], found[f"{side}_version"]
        sequence = read_version(Version(bytes(version)))[1] if version is not None else None
        return (json.loads(row) if row is not None else None), sequence

    changelog, changelog_sequence = read("changelog")
    state, state_sequence = read("state")
    return Difference(
        verdict=found[_VERDICT],
        columns=tuple(found["differing"]) if changelog is not None and state is not None else (),
        changelog=changelog,
        changelog_sequence=changelog_sequence,
        state=state,
        state_sequence=state_sequence,
    )
