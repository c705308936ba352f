"""What must hold before the queries of a table start: checkpoint, changelog, sources and declaration belong together.

Spark checks none of it. It would begin with an empty state where a checkpoint is missing, and give rows versions again
that clients have seen with other contents; it would go on with another topic under the same name; it would add to sums
that another expression has made. Each function here raises `JobError`, and its sentence says the way on.

Decision: docs/decisions/0077-a-job-goes-on-or-refuses.md
"""

import json
from collections.abc import Iterable, Mapping

from tablegate.jobs.errors import JobError
from tablegate.jobs.kafka.markers import SourceOffsets
from tablegate.jobs.kafka.topics import KafkaAdmin, source_admin
from tablegate.jobs.planning.declarations import job_argument, rebuild_hint
from tablegate.jobs.planning.logic import logic_changes
from tablegate.jobs.planning.plan import Plan, SidePlan
from tablegate.jobs.running.checkpoint import Checkpoint, Identity
from tablegate.jobs.running.new_topics import is_of_pattern
from tablegate.jobs.running.operations import newest_marker
from tablegate.jobs.running.queries import TABLE_QUERY
from tablegate.jobs.table import Mode


def is_written(plan: Plan, admin: KafkaAdmin) -> bool:
    """Return whether the generation's changelog has, or ever had, a record."""
    return any(end > 0 for end in admin.end_offsets(plan.changelog).values())


def check_begins(plan: Plan, admin: KafkaAdmin) -> None:
    """Raise `JobError` where a generation has no checkpoint and yet a changelog: it was built before."""
    if is_written(plan, admin):
        raise JobError(
            f'table "{plan.table.name}" generation {plan.generation} was built before, and its checkpoint is not at '
            f'"{plan.checkpoint}"; give the --checkpoints it had, or {rebuild_hint(plan.table)}'
        )


def check_source_tables(plan: Plan, identity: Identity) -> None:
    """Raise `JobError` where a generation was made of rows of a table that has been built anew since."""
    for side in plan.streamed.values():
        if side.generation and side.topic.name not in identity.source_topic_ids:
            raise source_rebuilt(plan, side)


def source_rebuilt(plan: Plan, side: SidePlan, generation: int | None = None) -> JobError:
    """Return the error of a table whose rows another one is made of, and that is at another generation now."""
    return JobError(
        f'table "{side.source.topic}" was built anew, and is at generation {generation or side.generation}; table '
        f'"{plan.table.name}" generation {plan.generation} was made of the rows of the one before; '
        f"{rebuild_hint(plan.table)}"
    )


def check_logic(plan: Plan, before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise `JobError` where a generation's rows were computed by another declaration."""
    changes = logic_changes(before, now)
    if changes:
        raise JobError(
            f'{plan.table.declared_at}: table "{plan.table.name}" has changed since generation {plan.generation} was '
            f"begun: {changes}; {rebuild_hint(plan.table)}"
        )


def check_resumes(plan: Plan, committed: SourceOffsets | None, admin: KafkaAdmin) -> None:
    """Raise `JobError` where the checkpoint is older than the changelog, or the sources have lost what it has not.

    `committed`: how far the checkpoint has read; None where nothing was.
    """
    _check_not_older(plan, committed or {}, admin)
    sources = source_admin(plan.bootstrap)
    for side in plan.streamed.values() if committed is not None else ():
        name = side.topic.name
        first, end = sources.first_offsets(side.topic), sources.end_offsets(side.topic)
        read = (committed or {}).get(name, {})
        if plan.table.source_of(side.side).pattern:
            read = {**dict.fromkeys(first, 0), **read}  # one that was matched since begins at its start
        for partition, next_offset in sorted(read.items()):
            where = f'source topic "{name}" partition {partition}'
            if first.get(partition, 0) > next_offset:
                lost = first[partition] - next_offset
                raise JobError(
                    f'{where} has dropped {lost} records that table "{plan.table.name}" has not read, offsets '
                    f"{next_offset} to {first[partition] - 1}; {rebuild_hint(plan.table)}"
                )
            if end.get(partition, 0) < next_offset:
                raise lost_tail(plan, name, partition, end=end.get(partition, 0), next_offset=next_offset)


def lost_tail(plan: Plan, topic: str, partition: int, *, end: int, next_offset: int) -> JobError:
    """Return the error of a source partition that ends before what was read."""
    return JobError(
        f'source topic "{topic}" partition {partition} ends at offset {end}, and table "{plan.table.name}" has read it '
        f"up to {next_offset}: it lost its last records, as by an unclean leader election; {rebuild_hint(plan.table)}"
    )


def _check_not_older(plan: Plan, committed: SourceOffsets, admin: KafkaAdmin) -> None:
    marker = newest_marker(plan.bootstrap, admin, plan.changelog)
    if marker is None or marker.final:  # a final marker is written by whoever ends the generation, without a batch
        return
    own = {side.topic.name for side in plan.streamed.values()}
    for source in marker.sources:
        for partition, marked in sorted(source.next_offsets.items()):
            reached = committed.get(source.topic, {}).get(partition, 0)
            if source.topic in own and marked > reached:
                raise JobError(
                    f'checkpoint "{checkpoint_name(plan)}" is older than the changelog of table "{plan.table.name}": '
                    f'source topic "{source.topic}" partition {partition} was read up to {marked}, and it is at '
                    f"{reached}; give the newest checkpoint, or {rebuild_hint(plan.table)}"
                )


def checkpoint_name(plan: Plan) -> str:
    """Return where the checkpoint of the table's query is."""
    return f"{plan.checkpoint}/{TABLE_QUERY}"


def first_offsets(plan: Plan) -> dict[str, dict[str, int]]:
    """Return the first records that a generation which begins now is made of, by topic and partition."""
    admin = source_admin(plan.bootstrap)
    found: dict[str, dict[str, int]] = {}
    for side in plan.streamed.values():
        offsets = admin.first_offsets(side.topic)
        if side.starting_offsets != "earliest":
            offsets |= {int(text): at for text, at in json.loads(side.starting_offsets)[side.topic.name].items()}
        found[side.topic.name] = {str(partition): offset for partition, offset in offsets.items()}
    return found


def as_offsets(texts: Mapping[str, Mapping[str, int]]) -> SourceOffsets:
    """Return what `first_offsets` has with partitions as numbers."""
    return {topic: {int(partition): at for partition, at in offsets.items()} for topic, offsets in texts.items()}


def lost_records(
    identity: Identity, older: Identity | None, read: SourceOffsets, *, gone: Iterable[str] = ()
) -> dict[str, int]:
    """Return how many records an older generation was made of that a new one cannot read any more, by topic.

    `read`: how far the older one has read its sources. Without its identity, it was made of all that there ever were.
    `gone`: topics of the older one that are there no more, and would be read.
    """
    lost = {}
    for topic in gone:
        began = older.first_offsets.get(topic, {}) if older is not None else {}
        lost[topic] = sum(end - began.get(str(partition), 0) for partition, end in read.get(topic, {}).items())
    for topic, firsts in identity.first_offsets.items():
        began = older.first_offsets.get(topic, {}) if older is not None else {}
        if older is not None and older.source_topic_ids.get(topic) not in (None, identity.source_topic_ids[topic]):
            # Another topic under the same name: it has none of the records.
            lost[topic] = sum(end - began.get(str(partition), 0) for partition, end in read.get(topic, {}).items())
        elif older is None or topic in older.source_topic_ids:
            lost[topic] = sum(max(first - began.get(partition, 0), 0) for partition, first in firsts.items())
    return {topic: count for topic, count in lost.items() if count > 0}


def check_loss(plan: Plan, identity: Identity, checkpoint: Checkpoint) -> None:
    """Raise `JobError` where the next generation would know less than the one that is served."""
    if plan.older is None:
        return
    old = checkpoint.sibling(plan.older.generation)
    older = old.owner()
    before = {*older.source_topic_ids} - {*identity.source_topic_ids} if older is not None else ()
    gone = [topic for topic in before if is_of_pattern(plan.table, topic)]
    lost = lost_records(identity, older, old.committed_offsets(TABLE_QUERY) or {}, gone=gone)
    # A history stands for what comes before the records that are read.
    with_history = {side.topic.name for side in plan.streamed.values() if side.source.history is not None}
    lost = {topic: count for topic, count in lost.items() if topic not in with_history}
    if lost:
        counts = ", ".join(f'{count} of source topic "{topic}"' for topic, count in lost.items())
        raise JobError(
            f'table "{plan.table.name}" generation {plan.older.generation} was made of records that can no longer be '
            f"read: {counts}; keep it as it is, or build the next from what is left: tablegate job rebuild "
            f"{job_argument(plan.table)} --accept-loss"
        )


def must_catch_up(plan: Plan, admin: KafkaAdmin) -> bool:
    """Return whether Real-time Mode might take away from a row what a reader has seen in it.

    Whatever a job writes before its next commit is computed again after a restart. Real-time Mode reads all partitions
    at once, each time in another order: a row of 80 records of one partition, and none of the other, would become one
    of 34 and 47. A first batch that has every record that there is gives no row less than it had. A version that is an
    offset says which records are in a row, as all are in one partition; so does a count where there is one partition.
    """
    if plan.mode is Mode.MICROBATCH or plan.table.has_keyed_versions:
        return False
    partitions = sum(side.topic.partition_count for side in plan.streamed.values())
    return partitions > 1 and is_written(plan, admin)
