"""A generation that begins from the state of the one before, for sources that no longer have what that was made of.

    state of a committed batch ── by aggregate ──► rows of the new state ──┬── the query's last steps ──► changelog
    (its offsets, its aggregates)                  (a Parquet directory)   └── batch 0 of the checkpoint

The state of a batch is of all records before the offsets of that batch, and of no others. So it is exact where the new
generation reads on from these offsets, whatever the old job does meanwhile; nothing of its changelog is needed, which
may have rows of a batch that was not committed, and lacks what `having` hides.

1. Spark plans the aggregates of both declarations over the same records, and so tells which are the same. Those that
   the state lacks begin with nothing, for columns that the user has named.
2. The rows of the new state are written once, to a directory of the checkpoint: the old job may remove its own state.
3. Their records go to the changelog, made by the last steps of the table's own query, as an audit makes them.
4. A query whose aggregate takes over such rows column by column writes them as the state of batch 0. Its source is the
   directory; the offsets of its batch are replaced by those of the old batch. So the table's query begins at batch 1.
5. Whoever runs this claims the checkpoint then. A crash before leaves a changelog without a checkpoint, and the next
   rebuild begins another generation, as it does wherever it finds that.

Decision: docs/decisions/0097-a-generation-begins-from-the-state.md
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql

from tablegate.jobs.dataflow.expressions import StateAggregate, state_aggregates
from tablegate.jobs.dataflow.frames import TRIED, aggregates_of_both
from tablegate.jobs.dataflow.java_errors import error_reason
from tablegate.jobs.dataflow.sink_records import save_records
from tablegate.jobs.errors import JobError
from tablegate.jobs.kafka.topics import KafkaAdmin
from tablegate.jobs.log import log
from tablegate.jobs.planning.changes import why_not_from_state
from tablegate.jobs.planning.logic import column_of
from tablegate.jobs.planning.options import Options
from tablegate.jobs.planning.plan import Plan
from tablegate.jobs.running.checkpoint import COMMITS, OFFSET_LOG_HEAD, Checkpoint, Identity, read_offset_log
from tablegate.jobs.running.new_topics import with_new_topics
from tablegate.jobs.running.queries import TABLE_QUERY
from tablegate.jobs.running.resuming import check_resumes
from tablegate.jobs.running.source_places import PLACES_FILE
from tablegate.jobs.running.state_records import read_state, records_of_state
from tablegate.jobs.table import Table

_BEGINS = "from the state of generation "
_ROWS = "seed"


def begins_from_state(begins: str) -> bool:
    """Return whether a generation has begun from a state, by its `Identity.begins`."""
    return begins.startswith(_BEGINS)


def seed(
    session: SparkSession,
    plan: Plan,
    checkpoint: Checkpoint,
    identity: Identity,
    *,
    changelog: DataFrame,
    options: Options,
    admin: KafkaAdmin,
) -> Identity:
    """Write state and rows of a generation that begins, and return what its checkpoint is to be claimed for.

    `changelog`: the frame of the table's query. Raise `JobError` where the new rows would not be exact.
    """
    if plan.older is None:
        raise JobError(
            f'table "{plan.table.name}" has no generation before {plan.generation}; build it without --from-state'
        )
    old = checkpoint.sibling(plan.older.generation)
    owner = _check_old(plan, old, identity)
    batch = old.newest_batch(TABLE_QUERY, COMMITS)
    if batch is None:
        raise JobError(
            f'the job of table "{plan.table.name}" has not finished a batch of generation {plan.older.generation}; '
            "build the next from its sources, without --from-state"
        )
    offset_log = old.offset_log(TABLE_QUERY, batch)  # now: the job goes on, and removes old batches
    check_resumes(plan, read_offset_log(offset_log), admin)
    checkpoint.note(PLACES_FILE, old.noted(PLACES_FILE))
    try:
        state = read_state(session, old.query_location(TABLE_QUERY), batch)
        table = plan.table
        assert isinstance(table, Table), "`_check_old` has asked"
        rows = _carried_over(session, plan, table, state, _before(table, owner), options.from_now)
        directory = checkpoint.query_location(_ROWS)
        rows.write.mode("overwrite").parquet(directory)
        rows = session.read.schema(rows.schema).parquet(directory)
        records = records_of_state(changelog, rows, plan)
        save_records(records, plan.bootstrap)
        write_state(session, rows, directory, checkpoint.query_location(TABLE_QUERY))
    except (PySparkException, Py4JError) as error:
        raise JobError(
            f'table "{plan.table.name}" generation {plan.generation} cannot begin from the state of generation '
            f"{plan.older.generation}: {error_reason(error)}; if the job runs, it may have removed what was to be "
            "read: stop it, and give the command again"
        ) from None
    checkpoint.adopt_offsets(TABLE_QUERY, offset_log.splitlines()[OFFSET_LOG_HEAD:])
    checkpoint.discard(_ROWS)
    log("seeded", table=plan.table.name, generation=plan.generation, older=plan.older.generation, batch=batch)
    return replace(identity, begins=f"{_BEGINS}{plan.older.generation}", first_offsets=owner.first_offsets)


def _check_old(plan: Plan, old: Checkpoint, identity: Identity) -> Identity:
    """Return what the old state was built from; raise `JobError` where the new generation cannot begin from it."""
    assert plan.older is not None, "seed has asked"
    table, owner = plan.table, old.owner()
    if owner is None or owner.changelog_topic_id != plan.older.changelog_topic_id:
        raise JobError(
            f'the checkpoint of table "{table.name}" generation {plan.older.generation} is not at "{old.location}"; '
            "give the --checkpoints of its job"
        )
    why_not = why_not_from_state(table, owner.logic)
    owner = with_new_topics(plan, owner, identity)
    if owner.source_topic_ids != identity.source_topic_ids:
        why_not = why_not or "a source topic was deleted and created again since"
    if why_not:
        raise JobError(
            f'{table.declared_at}: table "{table.name}" cannot begin from the state of generation '
            f"{plan.older.generation}: {why_not}; build it from its sources, without --from-state"
        )
    return owner


def _before(table: Table, owner: Identity) -> Table:
    """Return the declaration that the old state was computed by, as far as aggregates go."""
    columns = {
        column[0]: expression
        for part, expression in owner.logic.items()
        if (column := column_of(part)) is not None and not column[1]
    }
    return replace(table, columns=columns, having=owner.logic.get("having"), outputs=())


def _carried_over(
    session: SparkSession, plan: Plan, table: Table, state: DataFrame, before: Table, from_now: Sequence[str]
) -> DataFrame:
    """Return the rows of the new state: those of the old one, with the aggregates that the new declaration has."""
    unknown = [name for name in from_now if name not in table.columns]
    if unknown:
        raise JobError(f'table "{table.name}" has no column "{unknown[0]}"; correct --from-now')
    both, size = aggregates_of_both(session, plan, before)
    (old, _), (new, by_column) = state_aggregates(both, size, len(both.columns) - len(table.key) - size)
    for name, aggregates in by_column.items():
        column = name.removeprefix(TRIED)
        missing = [one for one in aggregates if not any(map(one.is_same, old))]
        if missing and column not in from_now:
            raise JobError(
                f'{table.declared_at}: table "{table.name}" column "{column}" is made of what the state of the old '
                "generation does not have; leave it as it was, or let it begin with what comes from now on: "
                f"--from-now {column}"
            )
        if any(one.initial is None for one in missing):
            raise JobError(
                f'{table.declared_at}: table "{table.name}" column "{column}" has an aggregate that cannot begin in '
                "the middle; add it by a rebuild from the sources, without --from-state"
            )
    _check_types(plan, state, old)
    places, at = [], 0
    for one in old:
        places.append([f"value_{at + number}" for number in range(len(one.types))])
        at += len(one.types)
    values = []
    for one in new:
        found = next((place for other, place in zip(old, places, strict=True) if one.is_same(other)), None)
        values += [sql.col(name) for name in found] if found is not None else list(one.initial or ())
    keys = [name for name in state.columns if name.startswith("key_")]
    rows = state.select(*keys, *(value.alias(f"value_{number}") for number, value in enumerate(values)))
    try:
        rows.agg(*_greatest(rows))
    except PySparkException:
        raise JobError(
            f'{table.declared_at}: table "{table.name}" has an aggregate that keeps a map, which the state of another '
            "generation cannot be made of; build it from its sources, without --from-state"
        ) from None
    return rows


def _greatest(rows: DataFrame) -> list[Column]:
    return [sql.max(name) for name in rows.columns if name.startswith("value_")]


def _check_types(plan: Plan, state: DataFrame, old: Sequence[StateAggregate]) -> None:
    """Raise `JobError` where the state has not the columns that these aggregates have."""
    wanted = [kind for one in old for kind in one.types]
    found = [field.dataType.simpleString() for field in state.schema.fields if field.name.startswith("value_")]
    if wanted != found:
        raise JobError(
            f'table "{plan.table.name}" cannot begin from the state of the old generation, which has columns of the '
            f"types {', '.join(found)}, and not {', '.join(wanted)}; use the version of Spark that its job runs on"
        )


def write_state(session: SparkSession, rows: DataFrame, directory: str, location: str) -> None:
    """Write rows, which lie in a directory, as the state of batch 0 of a query with its checkpoint at `location`."""
    # Each key is there once, and of one value the largest is that value: so each column of a row becomes the column of
    # the state that an aggregate of the table's query has in its place.
    keys = [name for name in rows.columns if name.startswith("key_")]
    seeds: Any = session.readStream.schema(rows.schema).parquet(directory).groupBy(*keys)
    query = (
        seeds.agg(*_greatest(rows))
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", location)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
